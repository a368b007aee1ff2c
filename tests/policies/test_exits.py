"""Losses behind inner layers, exits from the stack, and the threshold that keeps their risk below a bound."""

import math
from collections.abc import Iterator
from typing import Any

import gymnasium as gym
import numpy as np
import pytest
import torch
from gymnasium import spaces
from torch import Tensor

from rltransformers.agents import DecisionTransformer, GTrXLPPO
from rltransformers.algorithms.calibration import hoeffding, learn_then_test
from rltransformers.backbone import PLAIN, Backbone, BackboneConfig, Record
from rltransformers.backbone.losses import DeepOptions, ExitOptions
from rltransformers.blocks.layer import Layer
from rltransformers.blocks.leaving import NEVER, geometric, threshold_at
from rltransformers.core.errors import ConfigError
from rltransformers.data import Trajectories, load_trajectories
from rltransformers.laws import perturbed
from rltransformers.policies.deep_losses import Targets, deep_losses, ended, exits_loss, oracle, shifted
from rltransformers.stacks.exits import draw
from rltransformers.training.online.vec_envs import as_vec_env

SIZES: dict[str, Any] = {"width": 12, "heads": 3, "layers": 3, "memory": 5, "ff_width": 7, "position": "trxl"}
CALM = {"name": "calm", "threshold": 0.9, "horizon": 9}
DEEP: list[dict[str, Any]] = [
    {"depth": "depth_adaptive", "losses": {"exits": {"weight": 0.7, "smoothing": 2.0}}},
    {"depth": {"name": "depth_adaptive", "predictor": "geometric"}, "losses": {"exits": 0.7}},
    {"depth": {**CALM, "confidence": "classifier"}, "losses": {"exits": 0.7}},
    {"depth": CALM, "losses": {"exits": {"weight": 0.7, "weights": "uniform"}}},
    {"depth": "depth_adaptive", "losses": {"exits": {"weight": 0.7, "training": "mixed"}}},
    {"losses": {"al_rfou": 0.7}},
]


@pytest.fixture
def double() -> Iterator[None]:
    torch.set_default_dtype(torch.float64)
    yield
    torch.set_default_dtype(torch.float32)


def backbone_of(**values: Any) -> Backbone:
    return perturbed(BackboneConfig(**{**PLAIN, **SIZES, **values}))


def targets_of(counts: Tensor, first: Tensor) -> Targets:
    return Targets(lambda x: x[..., 0], lambda x: x[..., 1], counts, first)


# What is lost behind inner layers


def test_exits_lose_what_a_loop_over_layers_says(double: None) -> None:
    losses, counts = torch.rand(3, 2, 4), torch.tensor([[True, True, False, True], [True, False, True, True]])
    first = torch.zeros(2, 4, dtype=torch.bool)
    log_q = torch.randn(2, 4, 3).log_softmax(-1)
    for kind, weights in (("uniform", [1, 1, 1]), ("growing", [1, 2, 3])):
        options = ExitOptions(weights=kind, penalty=0.3)  # type: ignore[arg-type]
        total, chosen = 0.0, 0.0
        for b, t in counts.nonzero().tolist():
            total += sum(w * float(losses[n, b, t]) for n, w in enumerate(weights)) / sum(weights)
            best = min(range(3), key=lambda n: float(losses[n, b, t]) + 0.3 * (n + 1))
            chosen -= float(log_q[b, t, best])
        found = exits_loss(losses, log_q, targets_of(counts, first), options)
        assert float(found) == pytest.approx((total + chosen) / 6)
        alone = exits_loss(losses, None, targets_of(counts, first), options)
        assert float(alone) == pytest.approx(total / 6)
    single = exits_loss(losses[:1], None, targets_of(counts, first), ExitOptions())
    assert float(single) == pytest.approx(float(losses[0][counts].mean()))  # one layer: the plain loss
    logits = torch.randn(2, 4, 2)
    missed = 0.0
    for b, t in counts.nonzero().tolist():
        for n in range(2):
            p = 1 / (1 + math.exp(-float(logits[b, t, n])))
            right = float(losses[n, b, t]) <= float(losses[2, b, t]) + 0.1
            missed -= math.log(p if right else 1 - p) / 2
    found = exits_loss(losses, logits, targets_of(counts, first), ExitOptions(slack=0.1)) - exits_loss(
        losses, None, targets_of(counts, first), ExitOptions()
    )
    assert float(found) == pytest.approx(missed / 6)


def test_the_oracle_smooths_inside_an_episode_only() -> None:
    losses = torch.tensor([[[0.0, 1.0, 0.0, 0.6]], [[0.5, 0.4, 0.5, 0.5]]])
    counts, first = torch.ones(1, 4, dtype=torch.bool), torch.tensor([[True, False, False, True]])
    assert oracle(losses, targets_of(counts, first), 0.0, 0.0).tolist() == [[0, 1, 0, 1]]
    assert oracle(losses, targets_of(counts, first), 0.2, 0.0).tolist() == [[0, 1, 0, 0]]  # a layer costs 0.2
    assert oracle(losses, targets_of(counts, first), 0.0, 1e9).tolist() == [[0, 0, 0, 1]]  # sums of the episode


def test_probabilities_of_leaving_sum_to_1() -> None:
    logits = torch.tensor([0.3, -1.0, 2.0], dtype=torch.float64)
    chi = [1 / (1 + math.exp(-float(each))) for each in logits]
    expected = [chi[0], (1 - chi[0]) * chi[1], (1 - chi[0]) * (1 - chi[1]) * chi[2]]
    found = geometric(logits).exp()
    assert found[:3].tolist() == pytest.approx(expected)
    assert float(found.sum()) == pytest.approx(1.0)
    assert geometric(logits[:0]).exp().tolist() == [1.0]


def test_losses_of_inner_layers_end_one_after_the_other_and_the_next_step_is_of_the_same_episode() -> None:
    assert [ended(4, progress) for progress in (0.0, 0.124, 0.125, 0.3)] == [0, 0, 1, 2]
    streams = [torch.rand(1, 5, 2) for _ in range(3)]
    counts = torch.tensor([[True, True, True, False, True]])
    first = torch.tensor([[True, False, True, False, False]])
    targets, both = targets_of(counts, first), DeepOptions(future=0.5)
    # The step after 0 is 1 and that after 1 another episode's; 3 does not count, and 4 is the last.
    now = [float(stream[0, [0, 1, 2, 4], 0].mean()) for stream in streams]
    later = [0.5 * float(stream[0, 0, 1]) for stream in streams]
    assert float(deep_losses(streams, targets, both, 0.0).values.sum()) == pytest.approx(sum(now[:2]) + sum(later))
    assert float(deep_losses(streams, targets, both, 0.2).values.sum()) == pytest.approx(now[1] + sum(later[1:]))
    assert float(deep_losses(streams, targets, both, 1.0).values.sum()) == pytest.approx(later[2])
    assert float(deep_losses(streams, targets, DeepOptions(future=0.0), 1.0).values.sum()) == 0.0
    assert shifted({"": torch.arange(5)[None]})[""].tolist() == [[1, 2, 3, 4, 4]]


# Streams behind inner layers


@pytest.mark.parametrize("values", DEEP, ids=str)
def test_streams_are_those_of_stacks_of_fewer_layers(values: dict[str, Any], double: None) -> None:
    """Where nobody leaves, wherever padding stands, for the wanted tokens, and without touching the outputs."""
    backbone, record = backbone_of(final_norm=True, **values), Record()
    x, valid = torch.randn(2, 9, 12), torch.rand(2, 9) > 0.3
    y, _ = backbone(x, valid=valid, wanted=slice(1, None, 2), record=record)
    torch.testing.assert_close(backbone(x, valid=valid)[0][:, 1::2], y)
    assert record.streams is not None and len(record.streams) == 3
    for count, stream in enumerate(record.streams, 1):
        fewer = backbone_of(final_norm=True, layers=count)
        fewer.load_state_dict(backbone.state_dict(), strict=False)
        torch.testing.assert_close(fewer(x, valid=valid)[0][:, 1::2], stream)
    assert Record().streams is None
    assert "exits" not in str(backbone(x)[1].tensors.keys())


def test_a_backbone_hands_out_streams_only_to_those_who_ask() -> None:
    record = Record()
    backbone_of()(torch.randn(1, 3, 12), record=record)
    assert record.streams is None and record.exits is None


def test_mixed_training_draws_a_layer_for_every_token(double: None) -> None:
    """The stream of a pass with drawn exits is that of a token-by-token walk, and every token has its own layer."""
    losses = {"exits": {"weight": 1.0, "training": "mixed"}}
    backbone, record = backbone_of(depth="depth_adaptive", losses=losses), Record()
    x = torch.randn(2, 20, 12)
    backbone(x, record=record)
    assert record.random_exits is not None and record.streams is not None
    layer = draw(x, 3)
    assert layer.unique().tolist() == [0, 1, 2]
    again = Record()
    backbone(x, record=again)
    assert torch.equal(record.random_exits, again.random_exits if again.random_exits is not None else x)
    backbone(x + 1e-9, record=again)
    assert not torch.equal(draw(x + 1e-9, 3), layer)
    # The first token sees nobody, so it is exactly what the layers made of it.
    for b in range(2):
        torch.testing.assert_close(record.random_exits[b, 0], record.streams[int(layer[b, 0])][b, 0])
    counts, first = torch.ones(2, 4, dtype=torch.bool), torch.zeros(2, 4, dtype=torch.bool)
    lost, mixed = torch.rand(3, 2, 4), torch.rand(2, 4)
    found = exits_loss(lost, None, targets_of(counts, first), ExitOptions(training="mixed"), mixed)
    assert float(found) == pytest.approx(float(mixed.mean()))


# Leaving


def depth_of(backbone: Backbone, x: Tensor) -> float:
    record = Record()
    with torch.no_grad():
        backbone(x, record=record)
    return float(record.metrics["exits/layers"])


def test_fewer_layers_are_used_the_lower_the_threshold() -> None:
    x = torch.randn(4, 50, 12)
    depths = [
        depth_of(backbone_of(depth={"name": "calm", "threshold": threshold, "decay": None}), x)
        for threshold in (-1.0, 0.5, 0.8, 0.9, 2.0)
    ]
    assert depths == sorted(depths)
    assert depths[0] == 1.0 and depths[-1] == 3.0 and 1.0 < depths[2] < 3.0


def test_the_threshold_falls_along_the_episode_as_in_the_paper() -> None:
    p = torch.tensor([[0, 5, 100_000]])
    found = threshold_at(torch.tensor(0.8), p, 4.0, 10)
    assert found.tolist()[0] == pytest.approx([0.82, 0.72 + 0.1 * math.exp(-2), 0.72])
    assert threshold_at(torch.tensor(0.8), p, None, 10).tolist()[0] == pytest.approx([0.8] * 3)
    assert threshold_at(torch.tensor(1.1), p, 4.0, 10).tolist()[0] == pytest.approx([1.0, 1.0, 0.99])
    assert threshold_at(torch.tensor(2 * NEVER), p, 4.0, 10).tolist()[0] == pytest.approx([2 * NEVER] * 3)


@pytest.mark.parametrize("others", [{}, {"mixer": "linear", "position": "none"}, {"ff": "sep_conv"}], ids=str)
def test_layers_that_nobody_needs_are_left_out_of_acting(
    others: dict[str, Any], monkeypatch: pytest.MonkeyPatch
) -> None:
    """And the state is the same, bit for bit, as when they are computed."""
    backbone = backbone_of(depth={"name": "calm", "threshold": -1.0, "decay": None}, **others)
    tokens: list[int] = []
    forward = Layer.forward

    def spy(self: Layer, *args: Any) -> Any:
        found = forward(self, *args)
        tokens.append(found.out.shape[1])
        return found

    monkeypatch.setattr(Layer, "forward", spy)
    states = [backbone.initial_state(2, cached=True) for _ in range(2)]
    with torch.inference_mode():
        for _ in range(9):
            x = torch.randn(2, 1, 12)
            tokens.clear()
            y, states[0] = backbone.step(x, states[0], overwrites=True)
            assert tokens == [1, 0, 0]
            z, states[1] = backbone.step(x, states[1])
            assert torch.equal(y, z)
    for name, value in states[1].tensors.items():
        assert torch.equal(states[0].tensors[name], value), name


# Learn then Test


def test_a_tested_threshold_keeps_the_risk_below_the_bound() -> None:
    """Losses are 1 with a probability that grows as the threshold falls; the bound breaks in at most 1 of 10 draws."""
    generator, bound, error = np.random.default_rng(0), 0.2, 0.1
    tried = [1 - k / 20 for k in range(21)]
    broken, found = 0, []
    for _ in range(200):

        def losses(threshold: float) -> Tensor:
            return torch.from_numpy((generator.random(400) < 0.5 * (1 - threshold)).astype(float))

        threshold = learn_then_test(tried, losses, bound, error)
        assert threshold is not None
        found.append(threshold)
        broken += 0.5 * (1 - threshold) > bound
    assert broken <= 0.1 * 200
    assert 0.6 <= np.median(found) < 0.8  # not far above 0.6, the last one that is safe
    assert hoeffding(0.1, 0.2, 100) == pytest.approx(math.exp(-2))
    assert hoeffding(0.3, 0.2, 100) == 1.0
    assert learn_then_test(tried, lambda _: torch.ones(400), bound, error) is None
    assert learn_then_test(tried, lambda _: torch.zeros(400), bound, error) == 0.0


# Both agents


@pytest.mark.parametrize("values", DEEP, ids=str)
@pytest.mark.parametrize("shared", [True, False])
def test_an_online_agent_learns_from_the_loss_and_tells_it(values: dict[str, Any], shared: bool) -> None:
    backbone = {"preset": "gtrxl", **SIZES, **values}
    env = as_vec_env(gym.make("CartPole-v1"))
    agent = GTrXLPPO(
        "GTrXLPolicy", env, n_steps=16, n_epochs=2, seed=0,
        policy_kwargs={"backbone": backbone, "shared_backbone": shared},
    )  # fmt: skip
    before = {name: value.clone() for name, value in agent.policy.named_parameters()}

    agent.learn(16, log_interval=None)
    logged = agent.logger.name_to_value
    assert logged["train/first_ratio_error"] < 1e-5
    assert agent.policy.progress == 1.0  # of 16 steps, all
    (name,) = values["losses"]
    assert np.isfinite(logged[f"train/{name}_loss"]) and logged[f"train/{name}_loss"] > 0
    moved = {name for name, value in agent.policy.named_parameters() if not torch.equal(value, before[name])}
    learned = {name for name in before if name.startswith(("actor.backbone.halt", "later_net"))}
    assert learned <= moved
    assert bool(learned) == ("saturation" not in str(values) and values["depth"] != CALM if "depth" in values else True)


def episodes(kind: str) -> Trajectories:
    space: spaces.Space[Any] = spaces.Box(-1, 1, (2,), np.float32) if kind == "real" else spaces.Discrete(3)
    generator = np.random.default_rng(7)
    space.seed(7)
    recorded = [
        {
            "observations": generator.normal(size=(n + 1, 3)).astype(np.float32),
            "actions": np.array([space.sample() for _ in range(n)]),
            "rewards": generator.normal(size=n),
            "terminations": np.arange(n) == n - 1,
            "truncations": np.zeros(n, bool),
        }
        for n in (3, 9, 4, 2, 8)
    ]
    observation = spaces.Box(-np.inf, np.inf, (3,), np.float32)
    return load_trajectories(recorded, observation_space=observation, action_space=space, name="random")


def offline(kind: str, **values: Any) -> DecisionTransformer:
    backbone = {**SIZES, "position": {"name": "timestep", "max_len": 64}, "memory": 4, "layers": 3, **values}
    return DecisionTransformer(
        "DTPolicy", episodes(kind), context_length=5, batch_size=6, warmup_steps=1, learning_rate=1e-2, seed=0,
        policy_kwargs={"backbone": backbone},
    )  # fmt: skip


@pytest.mark.parametrize("values", DEEP, ids=str)
@pytest.mark.parametrize("kind", ["real", "discrete"])
def test_an_offline_agent_learns_from_the_loss_and_tells_it(values: dict[str, Any], kind: str) -> None:
    agent = offline(kind, **values)
    before = {name: value.clone() for name, value in agent.policy.named_parameters()}
    told: list[dict[str, Tensor]] = []
    update = agent._update

    def watch(*args: Any, **kwargs: Any) -> dict[str, Tensor]:
        told.append(update(*args, **kwargs))
        return told[-1]

    agent._update = watch  # type: ignore[method-assign]
    agent.learn(8)
    (name,) = values["losses"]
    assert all(torch.isfinite(each[f"train/{name}_loss"]) for each in told)
    assert agent._progress == 7 / 8
    moved = {name for name, value in agent.policy.named_parameters() if not torch.equal(value, before[name])}
    assert {name for name in before if name.startswith(("backbone.halt", "later_net"))} <= moved
    result = agent.predict(np.zeros(3, np.float32))
    assert result is not None


@pytest.mark.parametrize("kind", ["real", "discrete"])
def test_a_calibrated_threshold_is_saved_and_keeps_decisions_near_those_of_the_whole_stack(
    kind: str, tmp_path: Any
) -> None:
    agent = offline(kind, depth=CALM, losses={"exits": 1.0}).learn(20)
    strict, loose = (agent.calibrate_exits(bound=bound, error=0.1, windows=400) for bound in (0.01, 1.0))
    assert strict == pytest.approx(2 * NEVER)  # 400 windows cannot show a risk as small as that
    assert loose == 0.0
    agent.calibrate_exits(bound=0.3, windows=400)
    agent.save(tmp_path / "agent")
    loaded = DecisionTransformer.load(tmp_path / "agent")
    assert loaded.policy.get_buffer("backbone.halt.threshold") == agent.policy.get_buffer("backbone.halt.threshold")
    assert agent.calibrate_exits(bound=0.3, windows=400, dataset=episodes(kind)) == float(
        agent.calibrate_exits(bound=0.3, windows=400)
    )
    with pytest.raises(ConfigError, match="only depth 'calm' has a threshold, not 'fixed'"):
        offline(kind).calibrate_exits()
    with pytest.raises(ConfigError, match=r"the action space of the dataset \(.*\) is not the one of the model"):
        agent.calibrate_exits(dataset=episodes({"real": "discrete", "discrete": "real"}[kind]))
