"""Elements inside an observation reach the backbone of both agents, in training, in acting and in files."""

from pathlib import Path
from typing import Any

import gymnasium as gym
import numpy as np
import pytest
import torch
from gymnasium import spaces
from torch import Tensor

from rltransformers.agents import DecisionTransformer, GTrXLPPO
from rltransformers.backbone import BackboneConfig
from rltransformers.core.errors import ConfigError
from rltransformers.data import record
from rltransformers.export.step import pure_program
from rltransformers.policies.actor_critic import GTrXLPolicy
from rltransformers.policies.decider import Decider
from rltransformers.policies.decision_network import DecisionPolicy
from rltransformers.policies.observed import read_observation
from rltransformers.policies.policy_state import StepInputs
from rltransformers.policies.set_encoders.catalogue import ENCODERS
from rltransformers.policies.steps import ActorCriticStep, DecisionStep

COUNT = 5
LOOKING: dict[str, Any] = {"width": 12, "heads": 2, "layers": 2, "memory": 6, "topology": "encoder_decoder"}
OBSERVATION = spaces.Dict(
    {
        "x": spaces.Box(-1.0, 1.0, (2,)),
        "entities": spaces.Box(-1.0, 1.0, (COUNT, 3)),
        "here": spaces.MultiBinary(COUNT),
    }
)
ACTION = spaces.Discrete(4)
MASKED = {"name": "set_transformer", "leaf": "entities", "mask": "here", "heads": 2, "layers": 1}


@pytest.fixture(autouse=True)
def double() -> Any:
    torch.set_default_dtype(torch.float64)
    yield
    torch.set_default_dtype(torch.float32)


class Flagged(gym.Env[Any, Any]):
    """Four steps of a few entities; the action that names the flag of the first one is rewarded."""

    observation_space, action_space = OBSERVATION, ACTION

    def reset(self, *, seed: int | None = None, options: dict[str, Any] | None = None) -> tuple[Any, dict[str, Any]]:
        super().reset(seed=seed)
        self.t = 0
        return self.observed(), {}

    def observed(self) -> dict[str, Any]:
        draw = self.np_random
        entities = draw.uniform(-1, 1, (COUNT, 3)).astype(np.float32)
        here = (draw.random(COUNT) < 0.5).astype(np.int8)
        return {"x": draw.uniform(-1, 1, 2).astype(np.float32), "entities": entities, "here": here}

    def step(self, action: Any) -> tuple[Any, float, bool, bool, dict[str, Any]]:
        self.t += 1
        return self.observed(), float(action == 0), self.t == 4, False, {}


def drawn(streams: int, time: int) -> tuple[dict[str, Tensor], Tensor]:
    """Observations [B, T] and where episodes begin; some observations have no entity."""
    generator = torch.Generator().manual_seed(0)
    first = torch.rand(streams, time, generator=generator) < 0.25
    first[:, 0] = True
    entities = torch.randn(streams, time, COUNT, 3, generator=generator)
    here = (torch.rand(streams, time, COUNT, generator=generator) < 0.5).to(torch.int8)
    here[:, 2] = 0
    return {"x": torch.randn(streams, time, 2, generator=generator), "entities": entities, "here": here}, first


def shaken(policy: Any) -> Any:
    with torch.no_grad():
        for parameter in policy.parameters():
            parameter.add_(0.2 * torch.randn_like(parameter))
    return policy.double().eval()


def actor_critic(encoder: Any, backbone: dict[str, Any] = LOOKING) -> GTrXLPolicy:
    torch.manual_seed(0)
    policy: GTrXLPolicy = shaken(
        GTrXLPolicy(
            OBSERVATION,
            ACTION,
            lambda _: 1e-3,
            backbone=backbone,
            shared_backbone=False,
            observation={"encoder": encoder},
        )
    )
    return policy


def evaluated(policy: GTrXLPolicy, observations: dict[str, Tensor], first: Tensor) -> Tensor:
    rows, time = first.shape
    actions = {"": torch.zeros(rows, time, dtype=torch.long)}
    start = policy.initial_state(rows, cached=False)
    return policy.evaluate(StepInputs(observations, actions, torch.zeros(rows, time), first), start).outputs


@pytest.mark.parametrize("name", ENCODERS)
@pytest.mark.parametrize("topology", ["encoder_decoder", "decoder"])
def test_an_actor_critic_acts_on_elements_as_it_learns(name: str, topology: str) -> None:
    sized = {"linformer": {"slots": 3}, "nystrom": {"landmarks": 5}}.get(name, {})
    encoder = {**MASKED, "name": name, **sized}
    policy, (observations, first) = actor_critic(encoder, {**LOOKING, "topology": topology}), drawn(3, 11)
    whole = evaluated(policy, observations, first)
    state, outputs = policy.initial_state(3), []
    for t in range(11):
        now = {path: leaf[:, t] for path, leaf in observations.items()}
        with torch.no_grad():
            out, _, state = policy.network_step(now, state, first[:, t], {})
        outputs.append(out)
    torch.testing.assert_close(torch.stack(outputs, 1), whole)
    told = {**observations, "entities": observations["entities"] + 1}
    assert (evaluated(policy, told, first) - whole).abs().max() > 1e-3


def test_what_stands_at_entities_that_are_not_here_has_no_effect() -> None:
    policy, (observations, first) = actor_critic(MASKED), drawn(3, 11)
    other = torch.where(observations["here"][..., None] != 0, observations["entities"], torch.tensor(77.0))
    again = evaluated(policy, {**observations, "entities": other}, first)
    assert torch.equal(again, evaluated(policy, observations, first))


def test_a_step_with_elements_can_be_written_to_a_file() -> None:
    policy, (observations, first) = actor_critic(MASKED, {**LOOKING, "layers": 1}), drawn(3, 11)
    step, state = ActorCriticStep(policy).eval(), policy.initial_state(3)
    inputs = step.inputs({path: leaf[:, 0] for path, leaf in observations.items()}, state, first[:, 0], None)
    program = pure_program(step, inputs, step.to_dict(state)).module()
    torch.testing.assert_close(program(inputs, step.to_dict(state)), step(inputs, step.to_dict(state)))


def test_an_online_agent_learns_saves_and_loads_with_an_encoder(tmp_path: Path) -> None:
    torch.set_default_dtype(torch.float32)
    kwargs = {"backbone": LOOKING, "observation": {"encoder": MASKED}}
    settings: dict[str, Any] = {"n_steps": 16, "n_epochs": 1, "seed": 0, "device": "cpu"}
    model = GTrXLPPO("GTrXLPolicy", Flagged(), policy_kwargs=kwargs, **settings).learn(32)
    model.save(tmp_path / "model")
    loaded = GTrXLPPO.load(tmp_path / "model")
    observation = Flagged().reset(seed=0)[0]
    assert model.predict(observation, deterministic=True)[0] == loaded.predict(observation, deterministic=True)[0]
    assert loaded.policy.encoding.elements is not None
    assert loaded.policy.encoding.elements.name == "set_transformer"


@pytest.mark.parametrize(
    "kind",
    [
        {},
        {"return_in": "condition"},
        {"return_in": "condition", "highest_to_go": torch.ones(4)},
        {"return_conditioned": False},
    ],
)
@pytest.mark.parametrize("mode", ["banded", "refresh"])
def test_a_decision_transformer_acts_on_elements_as_it_was_trained(mode: Any, kind: dict[str, Any]) -> None:
    torch.manual_seed(1)
    tokens = 2 if kind.get("return_in") or "return_conditioned" in kind else 3
    config = BackboneConfig(**{**LOOKING, "memory": 20}, tokens_per_step=tokens, position="none", residual="pre_ln")
    choice = read_observation({"encoder": MASKED})
    policy = shaken(DecisionPolicy(OBSERVATION, spaces.Box(-1.0, 1.0, (2,)), config, encoder=choice, **kind))
    steps, rows = 7, 3
    observations, _ = drawn(rows, steps)
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
    torch.testing.assert_close(policy.head.decode(trained, None)[""], actions)
    padded = [torch.cat([each[:, :2], each], 1) for each in (*observations.values(), actions, returns, time)]
    longer = torch.cat([torch.zeros(rows, 2, dtype=torch.bool), valid], 1)
    leaves = dict(zip(observations, padded, strict=False))
    again = policy(leaves, {"": padded[3]}, *padded[4:], longer)
    torch.testing.assert_close(again[:, 2:], trained)


def test_a_decision_transformer_with_an_encoder_learns_saves_and_loads(tmp_path: Path) -> None:
    torch.set_default_dtype(torch.float32)
    gym.register("tests/Flagged-v0", lambda **_: Flagged(), max_episode_steps=4)
    try:
        data = record("tests/Flagged-v0", "random", episodes=6, seed=0)
        kwargs = {"backbone": {**LOOKING, "memory": 3, "layers": 1}, "observation": {"encoder": MASKED}}
        model = DecisionTransformer("DTPolicy", data, context_length=4, policy_kwargs=kwargs, seed=0, device="cpu")
        model.learn(gradient_steps=2)
        model.save(tmp_path / "model")
        loaded = DecisionTransformer.load(tmp_path / "model")
        observation = {path: torch.as_tensor(leaf)[None] for path, leaf in Flagged().reset(seed=0)[0].items()}
        one, other = (each.policy.observe(observation).token.detach() for each in (model, loaded))
        assert torch.equal(one, other)
    finally:
        del gym.registry["tests/Flagged-v0"]


def test_layers_that_read_elements_need_an_encoder_and_one_that_keeps_them() -> None:
    with pytest.raises(ConfigError, match=r"no encoder gives any: name one, as in observation: \{encoder: bert\}"):
        GTrXLPolicy(OBSERVATION, ACTION, lambda _: 1e-3, backbone=LOOKING)
    with pytest.raises(ConfigError, match="did you mean"):
        read_observation({"encodr": "bert"})
    with pytest.raises(ConfigError, match="did you mean 'bert'"):
        read_observation({"encoder": "brt"})
    config = BackboneConfig(**LOOKING, tokens_per_step=3, position="none", residual="pre_ln")
    policy = DecisionPolicy(OBSERVATION, ACTION, config, encoder=read_observation({"encoder": MASKED}))
    with pytest.raises(ConfigError, match="acting_mode 'recompute' keeps the tokens of past steps"):
        Decider(policy, 9, "recompute")


def test_an_observation_of_elements_alone_is_its_pooled_elements() -> None:
    space = spaces.Box(-1.0, 1.0, (COUNT, 3))
    policy = shaken(
        GTrXLPolicy(
            space, ACTION, lambda _: 1e-3, backbone=LOOKING, observation={"encoder": {"name": "bert", "heads": 2}}
        )
    )
    inputs = StepInputs({"": torch.randn(2, 4, COUNT, 3)}, {}, torch.zeros(2, 4), torch.zeros(2, 4).bool())
    seen = policy.actor.tokens(inputs)
    assert policy.actor.observation is None and seen.elements is not None
    assert torch.equal(seen.token, seen.elements.pooled)
