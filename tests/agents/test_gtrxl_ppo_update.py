"""One update of the online agent equals a plain loop: advantages, losses, clipping, Adam, bounds, in this order.

Axes: E environments, T steps, R minibatches of an epoch.
"""

import copy
import math
from collections.abc import Callable
from dataclasses import dataclass, field, replace
from functools import partial
from typing import Any

import numpy as np
import pytest
import torch
from gymnasium import spaces
from stable_baselines3.common.vec_env import DummyVecEnv, VecEnv
from torch import Tensor

from rltransformers.agents import GTrXLPPO
from rltransformers.backbone import Record, State
from rltransformers.data.rollout import Segment
from rltransformers.policies.actor_critic import GTrXLPolicy
from rltransformers.policies.policy_state import PolicyState, StepInputs
from rltransformers.training import update
from tests.agents.rollouts import loud, rollout
from tests.agents.tiny_envs import AnySpace, Walk

ENVIRONMENTS, STEPS, ROWS, EPOCHS = 5, 7, 2, 3
PROGRESS = 0.6  # remaining part of the run; every schedule below is taken there
TINY = {"width": 16, "layers": 2, "heads": 2, "memory": 4}
ADAPTIVE = TINY | {
    "preset": "gtrxl",
    "span": [{"name": "adaptive", "ramp": 2.0, "initial": start} for start in (0.0, 1.0)],
    "position": {"name": "shaw", "max_distance": 8, "values": False},
    "losses": {"span": 0.7},
}
COMPRESSIVE = TINY | {
    "preset": "compressive",
    "memory_kind": {"name": "compressive", "slots": 3, "rate": 2},
    "losses": {"compression": 0.3},
}


def walks() -> VecEnv:
    """Real-valued actions; episodes end by a limit or for good, some of them in the last step of a rollout."""
    lengths = (5, 7, 40, 3, 9)
    return DummyVecEnv([partial(Walk, (length, 4, 6), length % 2 == 0 or length == 3) for length in lengths])


def choices() -> VecEnv:
    """Actions that can be counted; all episodes have four steps."""
    return DummyVecEnv([partial(AnySpace, spaces.Box(-1.0, 1.0, (3,)), spaces.Discrete(3))] * ENVIRONMENTS)


def agent(env: VecEnv, policy: dict[str, Any], **settings: Any) -> GTrXLPPO:
    """An agent whose heads are far from uniform and constant, so that everything in the loss has a gradient."""
    values = {"n_steps": STEPS, "batch_size": ROWS * STEPS, "n_epochs": EPOCHS, "seed": 0, "device": "cpu"}
    model = GTrXLPPO("GTrXLPolicy", env, policy_kwargs=policy, **(values | settings))  # type: ignore[arg-type]
    loud(model)
    return model


# The plain loop ---------------------------------------------------------------------------------------------


@dataclass
class Seen:
    """What the loop came across, so that a test can say that each rule mattered."""

    norms: list[float] = field(default_factory=list)
    clipped: float = 0.0
    clipped_values: float = 0.0
    auxiliary: list[float] = field(default_factory=list)
    out_of_bounds: float = 0.0


def advantages_of(model: GTrXLPPO, segment: Segment) -> Tensor:
    """Sum over k of (gamma lambda)^k delta_{t+k} to the end of the episode or of the rollout, term by term."""
    buffer: Any = model.rollout_buffer
    ends, gamma, trace = buffer.episode_ends, model.gamma, model.gae_lambda
    with torch.no_grad():
        leaves = model.policy.leaves_to_tensors({"": model._last_obs})
        bootstrap = model.policy.values(leaves, model.carry.acting, torch.as_tensor(model._last_episode_starts))
    result = torch.zeros(ENVIRONMENTS, STEPS)
    for e in range(ENVIRONMENTS):
        deltas = []
        for t in range(STEPS):
            after = bootstrap[e] if t == STEPS - 1 else segment.values[e, t + 1]
            if ends[e, t]:
                after = buffer.last_values[e, t] if buffer.truncated[e, t] else torch.tensor(0.0)
            deltas.append(segment.rewards[e, t] + gamma * after - segment.values[e, t])
        for t in range(STEPS):
            for k in range(t, STEPS):
                result[e, t] += (gamma * trace) ** (k - t) * deltas[k]
                if ends[e, k]:
                    break
    return result


def forward(
    policy: GTrXLPolicy, segment: Segment, window: int
) -> tuple[Tensor, Tensor, Tensor, Tensor | None, Tensor, PolicyState]:
    """Log-probability, value, entropy and barrier [E, T], weighted auxiliary loss, memory at the end."""
    actor: State = segment.memory.actor
    critic: State | None = segment.memory.critic
    before_a, before_r = segment.memory.previous_action[""], segment.memory.previous_reward
    parts: list[list[Tensor]] = [[], [], [], []]
    auxiliary = torch.zeros(())
    for begin in range(0, STEPS, window):
        steps = list(range(begin, min(begin + window, STEPS)))
        actions = torch.stack([before_a if t == 0 else segment.actions[""][:, t - 1] for t in steps], 1)
        rewards = torch.stack([before_r if t == 0 else segment.rewards[:, t - 1] for t in steps], 1)
        inputs = StepInputs({"": segment.observations[""][:, steps]}, {"": actions}, rewards, segment.first[:, steps])
        record = Record()
        features, actor = policy.actor(inputs, actor, record)
        of_value, records = features, [record]
        if policy.critic is not None:
            records.append(Record())
            of_value, critic = policy.critic(inputs, critic, records[-1])
        for each in records:
            for name, weight in policy.config.losses.items():
                auxiliary = auxiliary + weight * each.losses[name] * len(steps) / STEPS
        outputs = policy.action_head(policy.action_hidden(features))
        chosen = segment.actions[""][:, steps]
        if isinstance(policy.action_space, spaces.Box):
            (log_std,) = (parameter for name, parameter in policy.named_parameters() if name.endswith("log_std"))
            density = -(((chosen - outputs) / log_std.exp()) ** 2) / 2 - log_std - math.log(2 * math.pi) / 2
            parts[0].append(density.sum(-1))
            parts[2].append((0.5 + math.log(2 * math.pi) / 2 + log_std).sum().expand(chosen.shape[:2]))
        else:
            logs = outputs - outputs.exp().sum(-1, keepdim=True).log()
            parts[0].append(logs.gather(-1, chosen[..., None])[..., 0])
            parts[2].append(-(logs.exp() * logs).sum(-1))
            parts[3].append((logs - math.log(1 / 3)).mean(-1))  # minus the divergence of this from uniform
        parts[1].append(policy.value_net(policy.value_hidden(of_value))[..., 0])
    barrier = torch.cat(parts[3], 1) if parts[3] else None
    joined = [torch.cat(part, 1) for part in parts[:3]]
    after = PolicyState(actor, critic, {"": segment.actions[""][:, -1]}, segment.rewards[:, -1])
    return joined[0], joined[1], joined[2], barrier, auxiliary, after


def at_progress(value: Any) -> float:
    """A number, or a line from start (progress 1) to end (progress 0)."""
    if isinstance(value, dict):
        return float(value["end"] + (value["start"] - value["end"]) * PROGRESS)
    return float(value)


def plain_update(model: GTrXLPPO, segment: Segment, before: Segment | None, settings: dict[str, Any]) -> Any:
    """The policy after one update, and what was seen on the way. ``model`` stays as it is."""
    policy = copy.deepcopy(model.policy).requires_grad_(True)  # every parameter learns
    generator = torch.Generator()
    generator.set_state(model._batch_generator.get_state())
    adam = torch.optim.Adam(policy.parameters(), lr=at_progress(settings["learning_rate"]), eps=1e-5)
    advantages, returns = segment.advantages, segment.advantages + segment.values
    counts = segment.counts
    if settings.get("normalize_advantage", True):
        numbers = advantages[counts]
        least = settings.get("least_advantage_std", 0.1)
        advantages = (advantages - numbers.mean()) / max(numbers.std(correction=0) + 1e-8, least)
    clip, clip_value = at_progress(settings["clip_range"]), settings.get("clip_range_vf")
    seen = Seen()
    for epoch in range(EPOCHS):
        memory = segment.memory
        if epoch and settings.get("memory_refresh") == "epoch" and before is not None:
            with torch.no_grad():
                memory = forward(policy, before, STEPS)[-1]
        order = torch.randperm(ENVIRONMENTS, generator=generator)
        for begin in range(0, ENVIRONMENTS, ROWS):
            rows = order[begin : begin + ROWS]
            batch, use = replace(segment, memory=memory).rows(rows), counts[rows]
            log_probs, values, entropy, barrier, auxiliary, _ = forward(
                policy, batch, settings.get("gradient_window") or STEPS
            )
            ratio = (log_probs - batch.log_probs).exp()
            gain = torch.minimum(ratio * advantages[rows], ratio.clamp(1 - clip, 1 + clip) * advantages[rows])
            moved = values
            if clip_value is not None:
                bound = at_progress(clip_value)
                moved = batch.values + (values - batch.values).clamp(-bound, bound)
                seen.clipped_values += float((moved != values)[use].float().sum())
            error = (returns[rows] - moved) ** 2
            loss = -gain[use].mean() + settings["vf_coef"] * error[use].mean()
            loss = loss - at_progress(settings["ent_coef"]) * entropy[use].mean()
            if barrier is not None:
                loss = loss - at_progress(settings["barrier_coef"]) * barrier[use].mean()
            loss = loss + auxiliary
            seen.auxiliary.append(float(auxiliary.detach()))
            seen.clipped += float(((ratio - 1).abs() > clip)[use].float().sum())
            divergence = float((ratio - 1 - ratio.log())[use].mean().detach())
            if settings["target_kl"] is not None and divergence > 1.5 * settings["target_kl"]:
                return policy, seen
            adam.zero_grad()
            loss.backward()
            gradients = [parameter.grad for parameter in policy.parameters() if parameter.grad is not None]
            norm = torch.cat([gradient.flatten() for gradient in gradients]).norm()
            seen.norms.append(float(norm))
            for gradient in gradients:
                gradient.mul_(min(1.0, settings["max_grad_norm"] / (float(norm) + 1e-6)))
            adam.step()
            with torch.no_grad():
                for name, parameter in policy.named_parameters():
                    if name.endswith("span.fraction"):
                        bounded = parameter.clamp(0.0, 1.0)
                        seen.out_of_bounds = max(seen.out_of_bounds, float((parameter - bounded).abs().max()))
                        parameter.copy_(bounded)
    return policy, seen


def parameters(policy: GTrXLPolicy) -> dict[str, Tensor]:
    """Copies, by name."""
    return {name: parameter.detach().clone() for name, parameter in policy.named_parameters()}


def check_same(model: GTrXLPPO, policy: GTrXLPolicy, before: dict[str, Tensor]) -> None:
    """The parameters agree to a hundredth of a step of Adam: sums run in another order, and Adam divides by them."""
    step = model.policy.optimizer.param_groups[0]["lr"]
    torch.testing.assert_close(parameters(model.policy), parameters(policy), atol=0.01 * step, rtol=1e-5)
    assert sum(not torch.equal(before[name], found) for name, found in model.policy.named_parameters()) > 10


CASES: dict[str, tuple[Any, dict[str, Any], dict[str, Any]]] = {
    "one backbone, real actions": (
        walks,
        {"backbone": ADAPTIVE, "previous_action": True, "previous_reward": True, "first_step": True, "head_width": 6},
        {
            "learning_rate": {"start": 0.02, "end": 0.01},
            "clip_range": {"start": 0.3, "end": 0.05},
            "clip_range_vf": {"start": 0.2, "end": 0.05},
            "ent_coef": {"start": 0.2, "end": 0.0},
            "vf_coef": 0.4,
            "max_grad_norm": 0.3,
            "gamma": 0.8,
            "gae_lambda": 0.7,
            "gradient_window": 3,
            "target_kl": None,
        },
    ),
    "two backbones, actions that can be counted": (
        choices,
        {"backbone": COMPRESSIVE, "shared_backbone": False, "previous_action": True},
        {
            "learning_rate": 0.01,
            "clip_range": 0.1,
            "ent_coef": 0.03,
            "barrier_coef": {"start": 0.3, "end": 0.1},
            "vf_coef": 0.6,
            "max_grad_norm": 0.2,
            "gamma": 0.9,
            "gae_lambda": 0.6,
            "normalize_advantage": False,
            "memory_refresh": "epoch",
            "target_kl": None,
        },
    ),
}


@pytest.fixture(params=CASES)
def case(request: pytest.FixtureRequest) -> tuple[GTrXLPPO, dict[str, Any]]:
    """An agent in the middle of a run: two rollouts, so that memory, last action and last reward are not empty."""
    make, policy, settings = CASES[request.param]
    model = agent(make(), policy, **settings)
    rollout(model)
    segment = rollout(model)
    model._current_progress_remaining = PROGRESS
    # As if some rows were no transitions: they belong into no mean.
    counts = torch.rand(ENVIRONMENTS, STEPS, generator=torch.Generator().manual_seed(3)) < 0.8
    torch.testing.assert_close(segment.advantages, advantages_of(model, segment), atol=1e-5, rtol=1e-5)
    torch.testing.assert_close(segment.returns, segment.advantages + segment.values)
    model.carry.segment = replace(segment, counts=counts)
    return model, settings


def test_the_parameters_after_an_update_are_those_of_a_plain_loop(case: tuple[GTrXLPPO, dict[str, Any]]) -> None:
    model, settings = case
    segment, before = model.carry.segment, model.carry.before
    assert segment is not None
    start = parameters(model.policy)
    expected, seen = plain_update(model, segment, before, settings)
    model.train()
    check_same(model, expected, start)
    # Every rule of the loop had something to do.
    assert len(seen.norms) == EPOCHS * 3 and min(seen.norms) > settings["max_grad_norm"]
    assert seen.clipped > 3 and min(map(abs, seen.auxiliary)) > 0.01
    assert seen.clipped_values > 3 or settings.get("clip_range_vf") is None
    assert seen.out_of_bounds > 1e-3 or not isinstance(model.action_space, spaces.Box)
    assert (before is not None) == (settings.get("memory_refresh") == "epoch")


def test_an_update_ends_before_the_minibatch_that_is_too_far_away(case: tuple[GTrXLPPO, dict[str, Any]]) -> None:
    model, settings = case
    segment = model.carry.segment
    assert segment is not None
    # divergences of these updates: 0, 0.001, 0.038, 0.073 and 0, 0.097, 0.21; 1 times the target would stop one earlier
    target = 0.03 if isinstance(model.action_space, spaces.Box) else 0.09
    model.target_kl = target
    start = parameters(model.policy)
    expected, seen = plain_update(model, segment, model.carry.before, settings | {"target_kl": target})
    model.train()
    check_same(model, expected, start)
    assert len(seen.norms) == (3 if isinstance(model.action_space, spaces.Box) else 2)


def test_updates_after_one_that_ended_early_take_smaller_steps() -> None:
    model = agent(choices(), {"backbone": TINY}, learning_rate=0.01, target_kl=1e-9, n_epochs=10)

    def rate() -> float:
        """Of the update that is made now, as the optimizer has it and as it is logged."""
        rollout(model)
        model.train()
        (group,) = model.policy.optimizer.param_groups
        assert model.logger.name_to_value["train/learning_rate"] == group["lr"]
        return float(group["lr"])

    assert rate() == 0.01
    assert rate() == pytest.approx(0.01 / 1.5)
    model.target_kl = 1e9
    assert [rate() for _ in range(5)] == pytest.approx([0.01 / 1.5**2 * 1.2**n for n in range(5)])
    assert rate() == 0.01


def test_the_bounds_hold_for_the_spans_of_a_critic_of_its_own() -> None:
    model = agent(walks(), {"backbone": ADAPTIVE, "shared_backbone": False}, learning_rate=0.05)
    spans = {name: value for name, value in model.policy.named_parameters() if name.endswith("span.fraction")}
    assert {name.partition(".")[0] for name in spans} == {"actor", "critic"}
    before = {name: value.detach().clone() for name, value in spans.items()}
    rollout(model)
    model.train()
    for name, value in spans.items():  # each starts at 0 or 1 and is moved by 0.05 a step, so half of them want out
        assert float(value.detach().min()) >= 0.0 and float(value.detach().max()) <= 1.0, name
    assert any(not torch.equal(before[name], value) for name, value in spans.items() if name.startswith("critic"))


# Between rollouts -------------------------------------------------------------------------------------------


@pytest.mark.parametrize("memory_refresh", ["never", "update", "epoch"])
@pytest.mark.parametrize("shared", [True, False])
def test_acting_goes_on_from_the_memory_of_the_last_step(memory_refresh: str, shared: bool) -> None:
    """Also of the environments whose episode ended right there: three of the five, in the first rollout or the second.

    With a learning rate of 0 memory made anew must be what acting had.
    """
    lengths = (STEPS, 2 * STEPS, 40, 3, STEPS)
    env = DummyVecEnv([partial(Walk, (length, 4, 6), length == 3) for length in lengths])
    policy = {"backbone": TINY, "shared_backbone": shared, "previous_action": True, "previous_reward": True}
    model = agent(env, policy, learning_rate=0.0, memory_refresh=memory_refresh)
    ended = 0
    for _ in range(3):
        segment = rollout(model)
        ended += int(model._last_episode_starts.sum())  # type: ignore[union-attr]
        for trained in (False, True):
            if trained:
                model.train()
            found = model.policy.without_cache(model.carry.acting)
            expected = forward(model.policy, segment, STEPS)[-1]
            pairs = [(found.actor, expected.actor), (found.critic, expected.critic)]
            for mine, theirs in pairs if not shared else pairs[:1]:
                assert mine is not None and theirs is not None
                assert torch.equal(mine.tensors["position"], theirs.tensors["position"])
                for name, tensor in theirs.tensors.items():
                    torch.testing.assert_close(mine.tensors[name], tensor, atol=1e-5, rtol=1e-5)
            assert torch.equal(found.previous_action[""], segment.actions[""][:, -1])
            assert torch.equal(found.previous_reward, segment.rewards[:, -1])
    assert ended >= 4


def test_flags_and_rewards_stand_at_their_own_step() -> None:
    model = agent(walks(), {"backbone": TINY}, scale_rewards=False)
    first, second = rollout(model), rollout(model)
    buffer: Any = model.rollout_buffer
    assert bool(first.first[:, 0].all())
    np.testing.assert_array_equal(second.first[:, 1:], buffer.episode_ends[:, :-1])
    assert bool(second.first[:, 1:].any())
    numbers = model.policy.action_head.execute(second.actions)[""][..., 0]
    torch.testing.assert_close(second.rewards, numbers)  # the reward of a walk is its action


def test_mixers_learn_once_after_an_update_before_the_memory_follows_the_weights(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    model = agent(choices(), {"backbone": TINY})
    events: list[str] = []

    def noted(original: Callable[..., Any], name: str) -> Callable[..., Any]:
        def call(*args: Any, **kwargs: Any) -> Any:
            events.append(name)
            return original(*args, **kwargs)

        return call

    for place, name in (
        *((part.backbone, "maintain") for part in model.policy.backbones()),
        (update, "descend"),
        (update, "renew_memory"),
    ):
        monkeypatch.setattr(place, name, noted(getattr(place, name), name))
    model.learn(2 * STEPS * ENVIRONMENTS)
    count = len(list(model.policy.backbones()))
    # Many steps of the optimizer are one event here.
    runs = [name for index, name in enumerate(events) if name != "descend" or events[index - 1] != "descend"]
    assert runs == ["descend", *["maintain"] * count, "renew_memory"] * 2
