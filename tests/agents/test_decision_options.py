"""Decision Transformers beyond cloning: predicted returns, critics, returns outside the sequence."""

import copy
from dataclasses import replace
from pathlib import Path
from typing import Any

import gymnasium as gym
import numpy as np
import pytest
import torch
from gymnasium import spaces
from torch import Tensor

from rltransformers.agents import DecisionTransformer
from rltransformers.core.checkpoint import load_checkpoint, save_checkpoint
from rltransformers.core.errors import CheckpointError, ConfigError
from rltransformers.data import ContextBatch, Trajectories, load_trajectories
from rltransformers.data.sampler import ChunkTargets
from rltransformers.policies.shipping import DecisionInFile
from rltransformers.training.evaluation import EvaluationResult
from rltransformers.training.offline.evaluation_callback import EvaluationCallback
from tests.agents.test_decision_transformer import TINY, Losses, make, record, weights

pytestmark = pytest.mark.filterwarnings("ignore:the return head predicts")  # after a few updates

OPTIONS: dict[str, dict[str, Any]] = {
    "head": {"return_head": "expectile"},
    "condition": {"return_in": "condition"},
    "qcs": {"critic": "qcs", "critic_kwargs": {"width": 16, "alignment": 0.5, "weight": 2.0}},
    "qt": {"critic": "qt", "critic_kwargs": {"width": 16, "candidates": 4}},
    "qt, condition": {"critic": "qt", "critic_kwargs": {"width": 16, "candidates": 3}, "return_in": "condition"},
    "qcs, head": {"return_head": "expectile", "critic": "qcs", "critic_kwargs": {"width": 16, "alignment": 0.5}},
    "gaussian": {"action_head": "gaussian"},
    "mixture": {"action_head": "mixture", "action_head_kwargs": {"components": 3}},
    "flow, head": {"action_head": "flow", "action_head_kwargs": {"steps": 4, "width": 8}, "return_head": "expectile"},
    "gaussian, qt, condition": {
        "action_head": "gaussian", "return_in": "condition",
        "critic": "qt", "critic_kwargs": {"width": 16, "candidates": 3},
    },
    "qt, bc": {"critic": "qt", "critic_kwargs": {"width": 16}, "mode": "bc"},
    "advantage": {"mode": "advantage", "advantage_kwargs": {"updates": 3, "bins": 4}},
    "advantage, condition, qcs": {
        "mode": "advantage", "advantage_kwargs": {"updates": 3}, "return_in": "condition", "critic": "qcs",
        "critic_kwargs": {"width": 16},
    },
    "chunk": {"chunk": 3},
    "chunk, mixture": {"chunk": 3, "decide_every": 2, "action_head": "mixture", "mode": "bc"},
    "chunk, flow, head": {
        "chunk": 4, "action_head": "flow", "action_head_kwargs": {"steps": 4, "width": 8}, "return_head": "expectile",
    },
}  # fmt: skip


@pytest.fixture(scope="module")
def data() -> Trajectories:
    return record()


# ----------------------------------------------------------------------------------------------------- learning


@pytest.mark.parametrize("kind", OPTIONS)
def test_stopping_and_resuming_gives_the_losses_and_weights_of_not_stopping(
    data: Trajectories, tmp_path: Path, kind: str
) -> None:
    whole, first = make(data, learning_rate=1e-2, **OPTIONS[kind]), make(data, learning_rate=1e-2, **OPTIONS[kind])
    losses, before, after = Losses(), Losses(), Losses()
    whole.learn(9, losses)
    first.learn(4, before).save(tmp_path / "model")
    second = DecisionTransformer.load(tmp_path / "model", data, device="cpu").learn(5, after)
    assert before.values + after.values == losses.values
    assert torch.equal(weights(whole), weights(second))
    assert (whole._critic is None) == (second._critic is None)
    for part in ("_critic", "_entropy", "_advantage"):
        if getattr(whole, part) is not None:
            one, other = (torch.cat(_tensors(getattr(model, part).tensors())) for model in (whole, second))
            assert torch.equal(one, other)
    asked = [2.0] if whole.settings.takes_target and not whole.settings.return_head else None
    results = [model.evaluate("test/Drift-v0", asked, episodes=3) for model in (whole, second)]
    assert results[0] == results[1]


def _tensors(value: Any) -> list[Tensor]:
    if isinstance(value, Tensor):
        return [value.double().flatten()]
    parts = value.values() if isinstance(value, dict) else value if isinstance(value, list | tuple) else []
    return [tensor for part in parts for tensor in _tensors(part)]


@pytest.mark.parametrize("kind", OPTIONS)
@pytest.mark.parametrize("action", ["discrete", "mixed"])
def test_every_kind_of_action_trains_and_acts(kind: str, action: str) -> None:
    if action == "discrete" and OPTIONS[kind].get("action_head"):
        with pytest.raises(ConfigError, match="has no Box: its actions are drawn already; leave action_head out"):
            make(record(6, action=action), **OPTIONS[kind])
        return
    model = make(record(6, action=action), **OPTIONS[kind]).learn(2)
    leaves, space = model.policy.observation_leaves[""], model.action_space
    decided, state = model.predict(np.stack([leaves.sample() for _ in range(3)]))
    assert state.batch_size == 3
    single, _ = model.predict(leaves.sample())
    assert space.contains(single if action == "mixed" else int(single))
    assert decided is not None


@pytest.mark.parametrize("kind", OPTIONS)
def test_amount_and_content_of_padding_do_not_change_the_loss(data: Trajectories, kind: str) -> None:
    model = make(data, **OPTIONS[kind])
    assert model._sampler is not None
    batch = model._sampler.sample(6, torch.Generator().manual_seed(4))
    assert not batch.valid.all()

    def pad(value: Tensor, filling: float) -> Tensor:
        return torch.cat([value, torch.full_like(value[:, :1], filling).repeat_interleave(3, 1)], 1)

    longer = ContextBatch(
        {path: pad(leaf, float("nan")) for path, leaf in batch.observations.items()},
        {path: pad(leaf, float("nan")) for path, leaf in batch.actions.items()},
        pad(batch.rewards, float("nan")), pad(batch.return_to_go, float("nan")), pad(batch.timestep, 3),
        pad(batch.valid, 0), pad(batch.terminated, 1), batch.episode, batch.episode_return,
        None if batch.chunks is None else ChunkTargets(
            {path: pad(leaf, float("nan")) for path, leaf in batch.chunks.actions.items()},
            pad(batch.chunks.counts, 1), {},
        ),
    )  # fmt: skip
    torch.testing.assert_close(model.loss(longer), model.loss(batch), atol=1e-6, rtol=1e-5)  # sums in another order
    if model._critic is not None:
        critics = copy.deepcopy(model._critic), copy.deepcopy(model._critic)
        told = [
            critic.step(model.policy, each, model.sharing)
            for critic, each in zip(critics, (batch, longer), strict=True)
        ]
        torch.testing.assert_close(told[1], told[0], atol=1e-6, rtol=1e-5)


def test_what_options_add_is_logged(data: Trajectories) -> None:
    seen: dict[str, float] = {}
    model = make(data, **OPTIONS["qcs, head"])
    model.learn(2, lambda locals_, _: bool(seen.update({k: float(v) for k, v in locals_["metrics"].items()})) or True)
    names = ("action_loss", "return_loss", "critic_loss", "target_mean", "value_mean", "policy_gain", "alignment_loss")
    assert {f"train/{name}" for name in names} <= set(seen) and all(np.isfinite(list(seen.values())))
    assert seen["train/loss"] == pytest.approx(
        seen["train/action_loss"] + seen["train/return_loss"] - seen["train/policy_gain"]
        + 0.5 * seen["train/alignment_loss"], abs=1e-5,
    )  # fmt: skip


# ---------------------------------------------------------------------------------------- the update, written out


def plain_episodes(kind: str) -> Trajectories:
    generator = np.random.default_rng(7)
    space: spaces.Space[Any] = spaces.Box(-2, 2, (2,), np.float32) if kind == "real" else spaces.Discrete(3)
    space.seed(1)
    recorded = [
        {
            "observations": generator.normal(size=(n + 1, 3)).astype(np.float32),
            "actions": np.array([space.sample() for _ in range(n)]),
            "rewards": generator.normal(1, 2, n).astype(np.float32),
            "terminations": (np.arange(n) == n - 1) & (n % 2 == 0),
            "truncations": (np.arange(n) == n - 1) & (n % 2 == 1),
        }
        for n in (3, 9, 4, 2, 7)
    ]
    observation = spaces.Box(-np.inf, np.inf, (3,), np.float32)
    return load_trajectories(recorded, observation_space=observation, action_space=space, name="random")


def plain_outputs(policy: Any, batch: ContextBatch, b: int, more: float) -> tuple[Tensor, Tensor]:
    """Head outputs and predicted returns of one window, token by token and without padding."""
    tokens, times, n = [], [], int(batch.valid[b].sum())
    for t in range(n):
        tokens.append(policy.encoder({"": batch.observations[""][b, t]}))
        tokens.append(policy.head.embed({"": batch.actions[""][b, t]}))
        times += 2 * [int(batch.timestep[b, t])]
    features, _ = policy.backbone(torch.stack(tokens)[None], timestep=torch.tensor(times)[None])
    outputs, returns = [], []
    for t in range(n):
        seen, place = features[0, 2 * t], policy.condition
        scaled = (batch.return_to_go[b, t] + more)[None] / policy.return_scale
        scale, shift = place.modulate(torch.nn.functional.silu(place.embed(scaled))).split(8)
        normal = (seen - seen.mean()) / (seen.var(unbiased=False) + 1e-5).sqrt()
        hidden = torch.nn.functional.gelu(place.expand(normal * (1 + scale) + shift))
        outputs.append(policy.head.linear(seen + place.contract(hidden)))
        returns.append(policy.return_head(seen)[0])
    return torch.stack(outputs), torch.stack(returns)


@pytest.mark.parametrize("option", OPTIONS)
def test_rewards_in_another_unit_teach_the_same(option: str, data: Trajectories) -> None:
    """A power of two, which floats are multiplied by without rounding; only Adam's epsilon is not in these units."""
    unit = 2.0**13
    model, other = (
        make(replace(data, rewards=data.rewards * np.float32(scale)), learning_rate=1e-2, **OPTIONS[option]).learn(8)
        for scale in (1.0, unit)
    )
    torch.testing.assert_close(weights(other), weights(model), rtol=0.0, atol=1e-5)
    if model.policy.critics is not None:
        actors = model.actor(), other.actor()
        for actor in actors:
            actor.reset()
        value, in_other_unit = (actor.decide(data.episode(0).observations[""][:1]).value for actor in actors)
        np.testing.assert_allclose(in_other_unit, value * unit, rtol=1e-3)


def test_the_unit_of_critics_is_that_of_the_values_behind_every_step(data: Trajectories) -> None:
    """Also where the rewards of whole episodes cancel; weights are taken over with their unit, which was 1 before."""
    rewards = data.rewards.copy()
    rewards[data.offsets[1:] - 1] -= data.returns.astype(np.float32)
    closed = make(replace(data, rewards=rewards), **OPTIONS["qt"])
    other = make(replace(data, rewards=5 * data.rewards), **OPTIONS["qt"])
    assert closed.policy.critics is not None and other.policy.critics is not None
    assert float(closed.policy.critics.scale) == pytest.approx(
        np.abs(replace(data, rewards=rewards).return_to_go()).max()
    )
    other.set_parameters(closed.get_parameters())
    assert float(other.policy.critics.scale) == float(closed.policy.critics.scale)


def plain_value(critics: Any, kind: str, observation: Tensor, output: Tensor) -> Tensor:
    """Of a policy under the more pessimistic critic: of its action, or summed over its three."""
    values = []
    for critic in (critics.first, critics.second):

        def of(action: Tensor, critic: Any = critic) -> Tensor:
            hidden = torch.relu(critic.encoder({"": observation}) + critic.action.weight @ action)
            hidden = torch.relu(critic.third(torch.relu(critic.second(hidden))))
            return critics.scale * critic.value(hidden)[0]

        if kind == "real":
            values.append(of(output.tanh()))
        else:
            chances = output.exp() / output.exp().sum()
            values.append(sum((chances[a] * of(torch.eye(3)[a]) for a in range(3)), torch.zeros(())))
    return torch.stack(values)


@pytest.mark.parametrize("name", ["qcs", "qt"])
@pytest.mark.parametrize("kind", ["real", "counted"])
def test_the_parameters_after_some_updates_are_those_of_a_plain_loop(kind: str, name: Any) -> None:
    data = plain_episodes(kind)
    options = {
        "weight": 2.0, "discount": 0.9, "alignment": 0.7, "shift": 0.5, "learning_rate": 0.01, "width": 8,
        "polyak": 0.3, "actor_average": 0.6,
    }  # fmt: skip
    model = DecisionTransformer(
        "DTPolicy", data, context_length=5, batch_size=6, learning_rate=0.01, decay_steps=0, warmup_steps=0,
        weight_decay=0.1, seed=1, normalize_observations=False, max_grad_norm=1e6, device="cpu",
        return_head="expectile", expectile=0.8, critic=name, critic_kwargs=options,
        policy_kwargs={"backbone": {"width": 8, "layers": 1, "heads": 1, "dropout": 0.0}},
    )  # fmt: skip
    policy = copy.deepcopy(model.policy)
    critics = policy.critics
    assert critics is not None and model._sampler is not None
    assert float(critics.scale) == pytest.approx(np.abs(data.return_to_go()).max())
    slow, average = copy.deepcopy(critics), copy.deepcopy(policy)
    adam = torch.optim.AdamW(policy.actor_parameters(), lr=0.01, weight_decay=0.1)
    critic_adam = torch.optim.Adam(critics.parameters(), lr=0.01)
    batches: list[ContextBatch] = []
    shifts: list[Tensor] = []
    draw, term = model._sampler.sample, torch.rand

    def watch(batch_size: int, generator: torch.Generator, part: slice) -> ContextBatch:
        batches.append(draw(batch_size, generator, part))
        return batches[-1]

    def watch_shift(*size: int, generator: torch.Generator) -> Tensor:
        shifts.append(term(*size, generator=generator))
        return shifts[-1]

    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(model._sampler, "sample", watch)
        patch.setattr(torch, "rand", watch_shift)
        model.learn(3)
    returns = data.returns
    best, spread = returns.max(), returns.max() - returns.min()
    for update, batch in enumerate(batches):
        critics.requires_grad_(True)
        errors: list[Tensor] = []
        count = 0
        for b in range(6):
            n = int(batch.valid[b].sum())
            done = bool(batch.terminated[b, n - 1])
            with torch.no_grad():
                output = plain_outputs(average, batch, b, 0.0)[0][-1]
                later = plain_value(slow, kind, batch.observations[""][b, n - 1], output).min()
            for t in range(n if done else n - 1):
                target = sum(0.9 ** (j - t) * batch.rewards[b, j] for j in range(t, n - 1))
                target = target + 0.9 ** (n - 1 - t) * (batch.rewards[b, n - 1] if done else later)
                taken = batch.actions[""][b, t]
                number = taken / 2 if kind == "real" else torch.eye(3)[taken]
                observation = batch.observations[""][b, t]
                for critic in (critics.first, critics.second):
                    errors.append((critic({"": observation}, number[None])[0] - target / critics.scale) ** 2)
                count += 1
        critic_adam.zero_grad()
        (torch.stack(errors).sum() / count).backward()
        critic_adam.step()
        critics.requires_grad_(False)
        parts: dict[str, list[Tensor]] = {"action": [], "return": [], "gain": [], "align": [], "size": []}
        for b in range(6):
            shift = float((2 * shifts[update][b] - 1) * 0.5 * spread)
            outputs, predicted = plain_outputs(policy, batch, b, 0.0)
            moved, _ = plain_outputs(policy, batch, b, shift)
            poor = max(0.0, best - returns[int(batch.episode[b])]) / spread
            weight = 2.0 * (poor if name == "qcs" else 1.0)
            for t, output in enumerate(outputs):
                taken, observation = batch.actions[""][b, t], batch.observations[""][b, t]
                if kind == "real":
                    parts["action"].append((output.tanh() - taken / 2).square().mean())
                else:
                    parts["action"].append(output.exp().sum().log() - output[int(taken)])
                gap = batch.return_to_go[b, t] / policy.return_scale - predicted[t]
                parts["return"].append((0.2 if gap < 0 else 0.8) * gap**2)
                value = plain_value(critics, kind, observation, output).min()
                other = plain_value(critics, kind, observation, moved[t]).min()
                parts["gain"].append(weight * value)
                parts["size"].append(value.detach().abs())
                difference = other - value.detach()
                parts["align"].append(
                    difference.abs() if np.sign(shift) * float(difference.detach()) < 0 else 0 * other
                )
        mean = {key: torch.stack(values).mean() for key, values in parts.items()}
        adam.zero_grad()
        total = mean["action"] + mean["return"] + (0.7 * mean["align"] - mean["gain"]) / mean["size"]
        total.backward()
        adam.step()
        with torch.no_grad():
            for theirs, ours in zip(slow.parameters(), critics.parameters(), strict=True):
                theirs.copy_(0.7 * theirs + 0.3 * ours)
            for theirs, ours in zip(average.actor_parameters(), policy.actor_parameters(), strict=True):
                theirs.copy_(0.6 * theirs + 0.4 * ours)
    # A fiftieth of a step of Adam: sums run in another order, and Adam divides by what may be small.
    close: dict[str, Any] = {"atol": 2e-4, "rtol": 1e-3}
    torch.testing.assert_close(dict(model.policy.named_parameters()), dict(policy.named_parameters()), **close)
    assert model._critic is not None
    torch.testing.assert_close(dict(model._critic.slow.named_parameters()), dict(slow.named_parameters()), **close)
    for theirs, ours in zip(model._critic.average.parameters(), average.actor_parameters(), strict=True):
        torch.testing.assert_close(theirs.detach(), ours.detach(), **close)


# ------------------------------------------------------------------------------------------------------- returns


@pytest.mark.slow
@pytest.mark.parametrize(
    ("expectile", "expected"),
    [(0.5, "mean"), (0.999, "largest")],
)
def test_the_head_predicts_the_mean_or_the_largest_return_of_two_behaviors(expectile: float, expected: str) -> None:
    """From the same first observation one behavior earns 2 a step, the other 10: 12 and 60 in all."""
    earned = [10.0, 2.0, 2.0] * 20
    recorded = [
        {
            "observations": np.arange(7, dtype=np.float32)[:, None],
            "actions": np.full((6, 1), 0.8 if each == 10.0 else -0.8, np.float32),
            "rewards": np.full(6, each),
            "terminations": np.arange(6) == 5,
            "truncations": np.zeros(6, bool),
        }
        for each in earned
    ]
    data = load_trajectories(
        recorded, observation_space=spaces.Box(0, 6, (1,), np.float32),
        action_space=spaces.Box(-1, 1, (1,), np.float32), name="two",
    )  # fmt: skip
    model = make(
        data, return_head="expectile", expectile=expectile, context_length=6, learning_rate=1e-2,
        decay_steps=500, batch_size=64, whole_episodes=True,
        policy_kwargs={"backbone": {**TINY["backbone"], "layers": 1, "dropout": 0.0}},
    ).learn(500)  # fmt: skip
    assert model._sampler is not None
    batch = model._sampler.sample(1, torch.Generator())
    with torch.no_grad():
        found = model.policy.read(batch.observations, batch.actions, batch.return_to_go, batch.timestep, batch.valid)[1]
    assert found is not None
    first = float(found[0, 0]) * model.summary.return_scale
    # The expectile 0.999 of this mixture is 59.9. The share of either behavior in a batch of 64, 1/3 up to 0.06 off,
    # moves its mean by 10 %, that of the last hundred batches by 1 %: 4 standard deviations.
    value, tolerance = {"mean": (28.0, 0.04), "largest": (60.0, 0.02)}[expected]
    assert first == pytest.approx(value, rel=tolerance)
    if expected == "largest":  # and acting does as the better behavior did
        action, _ = model.predict(np.zeros((1, 1), np.float32))
        assert float(action[0, 0]) == pytest.approx(0.8, abs=0.1)


@pytest.mark.parametrize("settings", [{}, {"discount": 0.9}, {"delayed_reward": True}])
def test_the_limits_of_a_head_are_the_largest_returns_of_the_data_by_step(
    data: Trajectories, tmp_path: Path, settings: dict[str, Any]
) -> None:
    model = make(data, return_head="expectile", **settings)
    shaped = data.delayed_rewards() if "delayed_reward" in settings else data
    expected: dict[int, float] = {}
    for first, last in zip(shaped.offsets[:-1], shaped.offsets[1:], strict=True):
        rewards = np.asarray(shaped.rewards[first:last], np.float64)
        for t in range(len(rewards)):
            powers = settings.get("discount", 1.0) ** np.arange(len(rewards) - t)
            expected[t] = max(expected.get(t, -np.inf), float((rewards[t:] * powers).sum()))
    assert sorted(expected) == list(range(len(model.policy.highest_to_go)))
    limits = [expected[t] for t in range(len(expected))]
    assert model.policy.highest_to_go.tolist() == pytest.approx(limits, abs=1e-4)  # float32 sums
    model.save(tmp_path / "model")
    loaded = DecisionTransformer.load(tmp_path / "model", device="cpu")
    assert torch.equal(loaded.policy.highest_to_go, model.policy.highest_to_go)
    richer = replace(data, rewards=data.rewards + 10.0)
    other = DecisionTransformer.load(tmp_path / "model", richer, device="cpu")
    assert bool((other.policy.highest_to_go > loaded.policy.highest_to_go).all())


def test_evaluations_say_what_the_head_predicted(data: Trajectories) -> None:
    model = make(data, learning_rate=1e-2, return_head="expectile").learn(60)
    (alone,) = model.evaluate("test/Drift-v0", episodes=4, num_envs=3)
    first = [gym.make("test/Drift-v0").reset(seed=seed)[0] for seed in alone.seeds]
    _, state = model.predict(np.stack(first))
    assert alone.predicted_returns == pytest.approx(state.return_to_go.tolist(), abs=1e-4)
    assert alone.summary()["predicted_return_mean"] == pytest.approx(float(state.return_to_go.mean()), abs=1e-4)
    assert "predicted " in repr(alone) and EvaluationResult.from_dict(alone.to_dict()) == alone
    assert model.evaluate("test/Drift-v0", 2.0, episodes=1)[0].predicted_returns is None
    lines: dict[str, Any] = {}
    callback = EvaluationCallback("test/Drift-v0", n_eval_episodes=4, eval_freq=1)
    logger = model.logger
    dump = logger.dump

    def watch(step: int = 0) -> None:
        lines.update(logger.name_to_value)
        dump(step)

    logger.dump = watch  # type: ignore[method-assign]
    model.learn(1, callback)
    assert lines["eval/predicted_return"] == callback.results[0][1].predicted_return


def test_a_prediction_far_beyond_the_data_warns_once(data: Trajectories) -> None:
    model = make(data, return_head="expectile")
    head = model.policy.return_head
    assert head is not None
    torch.nn.init.constant_(head.bias, 100.0)
    observations = np.zeros((2, 2), np.float32)
    limit, scale = float(model.policy.highest_to_go[0]), model.summary.return_scale
    with pytest.warns(UserWarning, match=rf"had more than {limit:.4g}; acting takes {limit:.4g}") as told:
        _, state = model.predict(observations)
        model.predict(observations, state)
    assert len(told) == 1 and "lower expectile" in str(told[0].message)
    assert state.predicted_return is not None and float(state.predicted_return[0]) > 90 * scale
    asked = make(data, return_head="expectile")
    asked.policy.load_state_dict(model.policy.state_dict())
    asked.predict(observations, target_return=2.0)  # whoever asks hears nothing of it


def test_a_head_makes_targets_unnecessary_and_obeys_those_that_are_given(data: Trajectories) -> None:
    model = make(data, learning_rate=1e-2, return_head="expectile").learn(60)
    alone = model.evaluate("test/Drift-v0", episodes=4)
    assert [result.target_return for result in alone] == [None]
    low, high = model.evaluate("test/Drift-v0", [-9.0, 9.0], episodes=4)
    assert low.target_return == -9.0 and low.returns != high.returns
    observations = np.random.default_rng(0).normal(size=(5, 2, 2)).astype(np.float32)
    state = None
    for observation in observations:  # nobody asked, so nobody has to tell rewards
        _, state = model.predict(observation, state)
    assert state is not None and state.predicted_return is not None
    limits = model.policy.limit(state.step)
    torch.testing.assert_close(state.return_to_go, state.predicted_return.minimum(limits))
    _, asked = model.predict(observations[0], target_return=[3.0, float(np.float32(2.0))])
    with pytest.raises(ConfigError, match="needs the reward of its last step"):
        model.predict(observations[1], asked)


# -------------------------------------------------------------------------------------------- files and refusals


@pytest.mark.parametrize("kind", OPTIONS)
def test_a_file_acts_as_predict_does(data: Trajectories, kind: str) -> None:
    model = make(data, learning_rate=1e-2, **OPTIONS[kind]).learn(20)
    step = DecisionInFile(model.decider(), model.summary.best_return).eval()
    inputs, state = step.examples(2)
    head, targets_read = model.settings.return_head is not None, model.settings.takes_target
    assert step.about()["predicts_return"] == head
    assert (step.step.policy.critics is None) == (model.policy.critics is None)  # they say what an action is worth
    targets = torch.full((2,), torch.nan if head else 1.5, dtype=torch.float64)
    memory, generator = None, np.random.default_rng(3)
    for time in range(9):
        observation, reward = generator.normal(size=(2, 2)).astype(np.float32), generator.normal(size=2)
        start = np.array([time == 0, time in (0, 4)])
        actions, memory = model.predict(
            observation,
            memory,
            start,
            True,
            target_return=[1.5, 1.5] if targets_read and not head else None,
            reward=reward,
        )
        given = {
            "observation": torch.tensor(observation), "start": torch.tensor(start), "reward": torch.tensor(reward),
            "target_return": targets, "noise": torch.rand(2, model.policy.head.draws), "greedy": torch.ones(2).bool(),
        }  # fmt: skip
        outputs, state = step({name: given[name] for name in inputs}, state)
        # float32, in kernels of other shapes
        torch.testing.assert_close(outputs["action"], torch.as_tensor(actions), atol=1e-5, rtol=0.0)


@pytest.mark.slow
@pytest.mark.parametrize(
    "kind",
    ["head", "flow, head", "advantage", pytest.param("mixture", marks=pytest.mark.third_party), "chunk, mixture"],
)
def test_options_can_be_written_to_files(data: Trajectories, tmp_path: Path, kind: str) -> None:
    from tests.agents.test_export import assert_files_equal_eager

    one_layer = {"backbone": {**TINY["backbone"], "layers": 1}}
    model = make(data, learning_rate=1e-2, policy_kwargs=one_layer, **OPTIONS[kind]).learn(5)
    files = [tmp_path / "policy.pt2", tmp_path / "policy.onnx"]
    for file in files:
        model.export(file)
    # float32; the density of a narrow normal magnifies its rounding
    assert_files_equal_eager(dict.fromkeys(files, 1e-4 if "mixture" in kind else 1e-5), model, 60, 3)


@pytest.mark.slow
@pytest.mark.third_party
@pytest.mark.parametrize("kind", ["qt", "condition", "advantage", "mixture", "flow, head", "chunk, mixture"])
def test_compiled_acting_equals_eager_acting(
    data: Trajectories, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, kind: str
) -> None:
    """Options that ``tests/agents/test_compiled_acting.py`` leaves out: it has a head that predicts returns."""
    monkeypatch.setenv("RLTRANSFORMERS_CACHE", str(tmp_path))
    make(data, learning_rate=1e-2, **OPTIONS[kind]).learn(20).save(tmp_path / "model")
    eager, compiled = (
        DecisionTransformer.load(tmp_path / "model", device="cpu", acting=way).evaluate(
            "test/Drift-v0", episodes=5, deterministic=not ("mixture" in kind or "flow" in kind)
        )[0]
        for way in ("eager", "compiled")
    )
    assert list(tmp_path.rglob("*.pt2"))
    assert compiled.returns == pytest.approx(eager.returns, abs=1e-4)


@pytest.mark.parametrize(
    ("settings", "message"),
    [
        ({"mode": "bc", "return_head": "expectile"}, "leave return_head out"),
        ({"mode": "bc", "return_in": "condition"}, "no effect; leave it out"),
        ({"return_head": "expectile", "return_in": "sequence"}, "no part of the sequence; leave return_in out"),
        ({"critic_kwargs": {"weight": 2.0}}, "without a critic; set critic to 'qcs' or 'qt'"),
        ({"critic": "qt", "critic_kwargs": {"wieght": 2.0}}, "did you mean 'weight'"),
        ({"critic": "qt", "critic_kwargs": {"polyak": 0.0}}, r"critic_kwargs\.polyak must be"),
        ({"critic": "qtt"}, "did you mean 'qt'"),
        ({"expectile": 1.0}, "expectile must be"),
        ({"expectile": 0.9}, "no effect without a return_head"),
        ({"mode": "bc", "critic": "qt", "critic_kwargs": {"alignment": 1.0}}, "leave it at 0 or set mode to 'dt'"),
        ({"mode": "bc", "critic": "qt", "critic_kwargs": {"candidates": 2}}, "leave it at 1"),
        ({"return_head": "expectile", "critic": "qt", "critic_kwargs": {"candidates": 9}}, "leave it at 1"),
        ({"critic": "qt", "policy_kwargs": {**TINY, "readout": "spalm"}}, "leave one of the two out"),
        ({"return_in": "condition", "policy_kwargs": {"backbone": {"tokens_per_step": 3}}}, "has 2 tokens per step"),
        ({"chunk": 0}, r"chunk must be a whole number in \[1, 1000\], got 0"),
        (
            {"chunk": 2, "decide_every": 3},
            r"decide_every \(3\) .* a chunk of 2; lower decide_every, or make .* chunk=3",
        ),
        ({"decide_every": 2}, "a chunk of 1; lower decide_every"),
        ({"chunk": 2, "critic": "qt"}, "leave chunk at 1, or critic out"),
        ({"chunk": 2, "policy_kwargs": {**TINY, "readout": "spalm"}}, "leave chunk at 1, or readout out"),
        (
            {"chunk": 2, "policy_kwargs": {"backbone": {"losses": {"al_rfou": 1.0}}}},
            "set their future to 0, or chunk to 1",
        ),
    ],
)
def test_impossible_settings_are_refused(data: Trajectories, settings: dict[str, Any], message: str) -> None:
    with pytest.raises(ConfigError, match=message):
        make(data, **settings)


@pytest.mark.parametrize(
    ("part", "value", "words"),
    [
        ("slow", {}, "critic.slow lacks scale"),
        ("average", 3, "critic.average must be a mapping"),
        ("optimizer", {"state": {}, "param_groups": [{"lr": -1.0}]}, "critic.optimizer.lr must be"),
    ],
)
def test_a_damaged_critic_is_refused(data: Trajectories, tmp_path: Path, part: str, value: Any, words: str) -> None:
    make(data, **OPTIONS["qcs"]).learn(1).save(tmp_path / "model")
    saved = load_checkpoint(tmp_path / "model", "DecisionTransformer")
    tensors = {**saved.tensors, "critic": {**saved.tensors["critic"], part: value}}
    save_checkpoint(tmp_path / "other", saved.kind, saved.settings, tensors)
    with pytest.raises(CheckpointError, match=words):
        DecisionTransformer.load(tmp_path / "other", device="cpu")


@pytest.mark.parametrize("settings", [OPTIONS["head"], OPTIONS["condition"]])
def test_readouts_and_exits_work_with_returns_read_and_predicted_elsewhere(
    data: Trajectories, settings: dict[str, Any]
) -> None:
    read = make(data, policy_kwargs={**TINY, "readout": {"name": "spalm", "size": 50}}, **settings).learn(3)
    assert len(read.evaluate("test/Drift-v0", episodes=3)[0].returns) == 3
    backbone = {**TINY["backbone"], "depth": {"name": "calm"}, "losses": {"exits": 1.0}}
    exits = make(data, policy_kwargs={"backbone": backbone}, **settings).learn(3)
    assert exits.calibrate_exits(bound=0.5, windows=64) < 1.0  # decisions of a fresh model hardly differ


@pytest.mark.parametrize("critic", ["qt", "qcs"])
def test_a_critic_of_windows_of_one_step_is_refused(data: Trajectories, critic: str) -> None:
    with pytest.raises(ConfigError, match="value of the next step, and context_length is 1; set it to at least 2"):
        make(data, critic=critic, context_length=1)


# ------------------------------------------------------------------------------------------------- heads of a Box


def test_stochastic_is_refused_with_the_line_to_write(data: Trajectories) -> None:
    with pytest.raises(TypeError, match="no argument 'stochastic'; did you mean 'action_head': 'gaussian'"):
        make(data, stochastic=True)


@pytest.mark.parametrize("mode", ["refresh", "banded"])
@pytest.mark.parametrize("kind", ["mixture", "flow, head"])
def test_the_same_noise_gives_the_same_action_cached_recomputed_and_in_a_file(
    data: Trajectories, kind: str, mode: Any
) -> None:
    model = make(data, learning_rate=1e-2, **OPTIONS[kind]).learn(20)
    deciders = [model.decider(mode), model.decider("recompute")]
    step = DecisionInFile(deciders[0], model.summary.best_return).eval()
    inputs, state = step.examples(2)
    states, generator = [each.initial_state(2) for each in deciders], np.random.default_rng(3)
    target = torch.full((2,), torch.nan if model.settings.return_head else 1.5, dtype=torch.float64)
    found = []
    for time in range(4):  # the first steps, in which all ways to act see the same
        given = {
            "observation": torch.tensor(generator.normal(size=(2, 2)), dtype=torch.float32),
            "start": torch.tensor([time == 0] * 2),
            "reward": torch.tensor(generator.normal(size=2)),
            "target_return": target,
            "noise": torch.tensor(generator.random((2, model.policy.head.draws))),
            "greedy": torch.zeros(2, dtype=torch.bool),
        }
        outputs, state = step({name: given[name] for name in inputs}, state)
        for index, each in enumerate(deciders):
            rest: dict[str, Any] = {name: given[name] for name in ("start", "reward", "target_return", "noise")}
            actions, _, states[index] = each.step({"": given["observation"]}, states[index], **rest)
            torch.testing.assert_close(actions[""], outputs["action"], atol=1e-5, rtol=0.0)
        found.append(outputs["action"])
    assert float(torch.cat(found).detach().std()) > 0.05  # noise counts


@pytest.mark.parametrize("head", ["mixture", "flow"])
def test_heads_with_several_modes_refuse_what_needs_one(data: Trajectories, head: Any) -> None:
    with pytest.raises(ConfigError, match="leave action_head or critic out"):
        make(data, action_head=head, critic="qt")
    with pytest.raises(ConfigError, match="has a distribution there; leave one of the two out"):
        make(data, action_head=head, policy_kwargs={**TINY, "readout": "spalm"})


def test_a_mixture_learns_online_and_a_flow_says_what_does(data: Trajectories) -> None:
    mixture = make(data, action_head="mixture").learn_online("test/Drift-v0", 9, updates_per_episode=2)
    assert mixture.online_timesteps >= 9 and mixture._entropy is not None
    with pytest.raises(ConfigError, match="'flow' has neither entropy nor density; make the model with"):
        make(data, action_head="flow").learn_online("test/Drift-v0", 9)


def test_the_loss_of_a_flow_is_the_same_until_the_next_update(data: Trajectories) -> None:
    model = make(data, action_head="flow")
    assert model._sampler is not None
    batch = model._sampler.sample(6, torch.Generator().manual_seed(4))
    first = model.loss(batch)
    torch.rand(7)
    assert torch.equal(model.loss(batch), first)
    model.num_timesteps += 1
    assert not torch.equal(model.loss(batch), first)
