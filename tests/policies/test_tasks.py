"""Tasks that an observation names reach the backbone of both agents, in training, in acting and in files."""

from typing import Any

import gymnasium as gym
import numpy as np
import pytest
import torch
from gymnasium import spaces
from torch import Tensor

from rltransformers.agents import GTrXLPPO
from rltransformers.attention import reach
from rltransformers.backbone import Backbone, BackboneConfig
from rltransformers.core.errors import ConfigError
from rltransformers.export.step import pure_program
from rltransformers.laws import perturbed
from rltransformers.policies.actor_critic import GTrXLPolicy
from rltransformers.policies.decider import Decider
from rltransformers.policies.decision_network import DecisionPolicy
from rltransformers.policies.observations import first_task
from rltransformers.policies.policy_state import StepInputs
from rltransformers.policies.steps import ActorCriticStep, DecisionStep

TASKS = 3
PRIOR = {"name": "camtl", "tasks": TASKS, "block": 4, "blocks": 2, "size": 5}
SMALL: dict[str, Any] = {"width": 12, "heads": 2, "layers": 2, "memory": 6, "prior": PRIOR}
OBSERVATION = spaces.Dict({"x": spaces.Box(-1.0, 1.0, (2,)), "task": spaces.Discrete(TASKS, start=1)})
ACTION = spaces.Discrete(4)


@pytest.fixture(autouse=True)
def double() -> Any:
    torch.set_default_dtype(torch.float64)
    yield
    torch.set_default_dtype(torch.float32)


class TaskOfTheEpisode(gym.Env[Any, Any]):
    """Four steps; the action with the number of the task is rewarded."""

    observation_space, action_space = OBSERVATION, ACTION

    def reset(self, *, seed: int | None = None, options: dict[str, Any] | None = None) -> tuple[Any, dict[str, Any]]:
        super().reset(seed=seed)
        self.t, self.task = 0, int(self.np_random.integers(1, 1 + TASKS))
        return self.observed(), {}

    def observed(self) -> dict[str, Any]:
        return {"x": self.np_random.uniform(-1, 1, 2).astype(np.float32), "task": np.int64(self.task)}

    def step(self, action: Any) -> tuple[Any, float, bool, bool, dict[str, Any]]:
        self.t += 1
        return self.observed(), float(action == self.task), self.t == 4, False, {}


def drawn(streams: int, time: int, seed: int = 0) -> tuple[dict[str, Tensor], Tensor]:
    """Observations [B, T] of episodes with a task each, and where they begin."""
    generator = torch.Generator().manual_seed(seed)
    first = torch.rand(streams, time, generator=generator) < 0.25
    first[:, 0] = True
    tasks = torch.randint(TASKS, (streams, time + 1), generator=generator).gather(1, first.long().cumsum(1))
    return {"x": torch.randn(streams, time, 2, generator=generator), "task": tasks + 1}, first


def test_a_backbone_computes_the_same_however_the_calls_are_cut_and_differs_by_task(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setattr(reach, "SMALLEST_BLOCK", 4)
    backbone = perturbed(BackboneConfig(**SMALL, position="none"))
    x = torch.randn(3, 23, 12)
    observations, reset = drawn(3, 23)
    task = observations["task"] - 1
    whole, _ = backbone(x, None, reset, task=task)
    for cached in (False, True):
        state, outputs = backbone.initial_state(3, cached=cached), []
        for count, first in ((9, 0), (1, 9), (13, 10)):
            part = slice(first, first + count)
            y, state = backbone(x[:, part], state, reset[:, part], task=task[:, part])
            outputs.append(y)
        torch.testing.assert_close(torch.cat(outputs, 1), whole)
    valid = torch.rand(3, 40) < 2
    valid[:, torch.randperm(40)[:17]] = False
    spread = [torch.zeros(3, 40, *each.shape[2:], dtype=each.dtype) for each in (x, reset, task)]
    for wide, narrow in zip(spread, (x, reset, task), strict=True):
        wide[valid] = narrow.flatten(0, 1)
    padded, _ = backbone(spread[0], None, spread[1], valid=valid, task=spread[2])
    torch.testing.assert_close(padded[valid], whole.flatten(0, 1))
    other, _ = backbone(x, None, reset, task=(task + 1) % TASKS)
    assert not torch.allclose(other, whole, atol=1e-3)


def test_a_fixed_task_equals_the_same_task_read() -> None:
    read = perturbed(BackboneConfig(**SMALL, position="none"))
    fixed = Backbone(BackboneConfig(**{**SMALL, "prior": {**PRIOR, "task": 2}}, position="none")).eval()
    fixed.load_state_dict(read.state_dict())
    x = torch.randn(2, 9, 12)
    torch.testing.assert_close(fixed(x)[0], read(x, task=torch.full((2, 9), 2))[0])


def test_a_call_without_its_task_and_a_space_without_tasks_are_refused() -> None:
    with pytest.raises(ConfigError, match="reads which of 3 tasks an episode is: pass task="):
        perturbed(BackboneConfig(**SMALL, position="none"))(torch.randn(2, 9, 12))
    for space in (OBSERVATION["x"], spaces.Dict({"task": spaces.Discrete(4)}), spaces.Dict({"task": OBSERVATION["x"]})):
        with pytest.raises(ConfigError, match=r"needs a key 'task' that is Discrete\(3\)"):
            first_task(space, TASKS)
    with pytest.raises(ConfigError, match="no task 3; set tasks to at least 4"):
        BackboneConfig(**{**SMALL, "prior": {**PRIOR, "task": 3}})


def actor_critic() -> GTrXLPolicy:
    torch.manual_seed(0)
    policy = GTrXLPolicy(OBSERVATION, ACTION, lambda _: 1e-3, backbone=SMALL, shared_backbone=False)
    with torch.no_grad():
        for parameter in policy.parameters():
            parameter.add_(0.2 * torch.randn_like(parameter))
    return policy.eval()


def test_an_actor_critic_acts_on_the_task_as_it_learns_and_so_does_its_step_in_a_file() -> None:
    policy, (observations, first) = actor_critic(), drawn(3, 11)
    actions = {"": torch.zeros(3, 11, dtype=torch.long)}
    read = StepInputs(observations, actions, torch.zeros(3, 11), first)
    found = policy.evaluate(read, policy.initial_state(3, cached=False))
    state, step = policy.initial_state(3), ActorCriticStep(policy).eval()
    outputs, values = [], []
    for t in range(11):
        now = {path: leaf[:, t] for path, leaf in observations.items()}
        if t == 3:
            inputs, before = step.inputs(now, state, first[:, t], None), step.to_dict(state)
            program = pure_program(step, inputs, before).module()
            torch.testing.assert_close(program(inputs, before)[0], step(inputs, before)[0])
        with torch.no_grad():
            out, value, state = policy.network_step(now, state, first[:, t], {})
        outputs.append(out)
        values.append(value)
    torch.testing.assert_close(torch.stack(outputs, 1), found.outputs)
    torch.testing.assert_close(torch.stack(values, 1), found.values)
    told = {**observations, "task": observations["task"] % TASKS + 1}
    other = policy.evaluate(read._replace(observations=told), policy.initial_state(3, cached=False))
    assert (other.outputs - found.outputs).abs().max() > 1e-3


def test_an_online_agent_learns_on_an_environment_of_tasks() -> None:
    torch.set_default_dtype(torch.float32)
    settings: dict[str, Any] = {"n_steps": 16, "n_epochs": 1, "seed": 0, "device": "cpu"}
    model = GTrXLPPO("GTrXLPolicy", TaskOfTheEpisode(), policy_kwargs={"backbone": SMALL}, **settings).learn(32)
    action, _ = model.predict(TaskOfTheEpisode().reset(seed=0)[0])
    assert ACTION.contains(int(action))
    with pytest.raises(ConfigError, match="needs a key 'task'"):
        GTrXLPPO("GTrXLPolicy", "CartPole-v1", policy_kwargs={"backbone": SMALL}, **settings)


@pytest.mark.parametrize("mode", ["banded", "refresh", "recompute"])
def test_a_decision_transformer_acts_on_the_task_as_it_was_trained(mode: Any) -> None:
    torch.manual_seed(1)
    config = BackboneConfig(**{**SMALL, "memory": 20}, tokens_per_step=3, position="none", residual="pre_ln")
    policy = DecisionPolicy(OBSERVATION, spaces.Box(-1.0, 1.0, (2,)), config).double().eval()
    with torch.no_grad():
        for parameter in policy.parameters():
            parameter.add_(0.2 * torch.randn_like(parameter))
    steps, rows = 7, 3
    observations, _ = drawn(rows, steps)
    observations["task"] = torch.tensor([[1], [2], [3]]).expand(rows, steps)
    actor = Decider(policy, 9, mode)
    state, zeros, taken = actor.initial_state(rows), torch.zeros(rows), []
    for t in range(steps):
        now = {path: leaf[:, t] for path, leaf in observations.items()}
        start = torch.full((rows,), t == 0)
        action, _, after = actor.step(now, state, start=start, reward=zeros, target_return=zeros + 3)
        step = DecisionStep(actor).eval()
        if t == 2 and mode == "refresh":
            inputs, before = step.inputs(now, start, zeros, zeros + 3, None), step.to_dict(state)
            program = pure_program(step, inputs, before).module()
            torch.testing.assert_close(program(inputs, before)[0], step(inputs, before)[0])
        state = after
        taken.append(action[""])
    actions, returns = torch.stack(taken, 1), torch.full((rows, steps), 3.0)
    time, valid = torch.arange(steps).expand(rows, -1), torch.ones(rows, steps, dtype=torch.bool)
    trained = policy(observations, {"": actions}, returns, time, valid)
    torch.testing.assert_close(policy.head.decode(trained, None)[""], torch.stack(taken, 1))
    padded = [torch.cat([each, each[:, :2]], 1) for each in (*observations.values(), actions, returns, time)]
    longer = torch.cat([valid, torch.zeros(rows, 2, dtype=torch.bool)], 1)
    again = policy({"x": padded[0], "task": padded[1]}, {"": padded[2]}, *padded[3:], longer)
    torch.testing.assert_close(again[:, :steps], trained)
