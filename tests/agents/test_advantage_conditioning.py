"""A Decision Transformer that is conditioned on advantages: what it learns from data full of luck, and its laws."""

from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from gymnasium import spaces

from rltransformers.agents import DecisionTransformer
from rltransformers.core.checkpoint import load_checkpoint, save_checkpoint
from rltransformers.core.errors import CheckpointError, ConfigError
from rltransformers.data import Trajectories, load_trajectories
from tests.agents.test_decision_transformer import make, record

SMALL = {"backbone": {"width": 16, "layers": 1, "heads": 2, "dropout": 0.0}}


def games(episodes: int = 2_000, luck: float = 2.0, cues: bool = False, steps: int = 3) -> Trajectories:
    """Episodes of a useless step, a choice, and a step that pays luck; three choices of ten are right.

    The right choice pays 1 at once. Which one it is says a cue in the first observation, if there are ``cues``; a good
    cue is then worth 4 to everybody.
    """
    generator, recorded = np.random.default_rng(5), []
    for _ in range(episodes):
        cue = int(generator.integers(2)) if cues else 1
        actions = generator.integers(0, 2, steps)
        right = generator.random() < 0.3
        actions[1] = cue if right else 1 - cue
        observations = np.zeros((steps + 1, 2), np.float32)
        observations[0, 0] = 2 * cue - 1 if cues else 0
        observations[:, 1] = np.arange(steps + 1)
        rewards = np.zeros(steps)
        rewards[1] = right + 4.0 * cue * cues
        rewards[-1] += generator.laplace(0.0, luck)
        ends = np.arange(steps) == steps - 1
        recorded.append({
            "observations": observations, "actions": actions, "rewards": rewards, "terminations": ends,
            "truncations": np.zeros(steps, bool),
        })  # fmt: skip
    space = spaces.Box(-10, 10, (2,), np.float32)
    return load_trajectories(recorded, observation_space=space, action_space=spaces.Discrete(2), name="games")


def player(data: Trajectories, **settings: Any) -> DecisionTransformer:
    common: dict[str, Any] = {
        "context_length": 3, "learning_rate": 5e-3, "max_grad_norm": 1.0, "whole_episodes": True, "seed": 0,
        "device": "cpu", "policy_kwargs": SMALL,
    }  # fmt: skip
    return DecisionTransformer("DTPolicy", data, **common | settings)


def choices(model: DecisionTransformer, cues: tuple[int, ...]) -> list[int]:
    """The most probable choices behind first observations with these cues."""
    rows = len(cues)
    first, second = (np.stack([[cue if t == 0 else 0, t] for cue in cues]).astype(np.float32) for t in (0, 1))
    _, state = model.predict(first, deterministic=True)
    chosen, _ = model.predict(second, state, deterministic=True, reward=np.zeros(rows))
    return [int(each) for each in chosen]


NO_LUCK: dict[str, Any] = {
    "mode": "advantage",
    "advantage_kwargs": {"bins": 3, "updates": 400, "gae_lambda": 0.0, "learning_rate": 3e-3},
}


@pytest.mark.slow
def test_the_right_action_is_found_where_most_of_the_return_is_luck() -> None:
    data = games()
    assert choices(player(data).learn(300), (0,)) == [0]  # what most of the lucky ones did
    model = player(data, **NO_LUCK).learn(300)
    assert choices(model, (0,)) == [1]
    assert model._advantage is not None
    gained = model._advantage._advantages(data, model._advantage.values_of(model._windows_of(data)))[1::3]
    right = data.actions[""][1::3] == 1
    # 1 more for the right action, up to what values of 1,000 episodes know of luck with deviation 2.8
    assert gained[right].mean() - gained[~right].mean() == pytest.approx(1.0, abs=0.5)
    bins = model._advantage.bins(model._windows_of(data))[1::3]
    assert (bins[right] == 2).mean() > 0.9 and (bins[~right] == 2).mean() < 0.1


@pytest.mark.slow
def test_the_right_action_is_found_where_a_cue_seen_earlier_says_which_it_is() -> None:
    data = games(cues=True)
    model = player(data, **NO_LUCK).learn(300)
    assert choices(model, (-1, 1)) == [0, 1]
    assert choices(player(data).learn(300), (-1, 1)) != [0, 1]


@pytest.mark.slow
def test_values_explain_what_the_history_tells_and_nothing_of_the_luck_of_their_own_episode() -> None:
    shares = []
    for luck, cues in ((0.01, True), (4.0, False)):
        data = games(60, luck=luck, cues=cues)
        if not cues:  # what each episode can be known by
            observations = data.observations[""].copy()
            observations[:, 0] = np.random.default_rng(0).normal(size=len(observations))
            data = Trajectories(**{**vars_of(data), "observations": {"": observations}})
        model = player(data, mode="advantage", advantage_kwargs={"updates": 200, "learning_rate": 5e-3})
        assert model._advantage is not None
        bins, metrics = model._advantage.fit(windows := model._windows_of(data), 0)
        assert set(metrics) == {"advantage/value_loss", "advantage/explained_variance"}
        assert np.array_equal(bins, model._advantage.bins(windows))
        shares.append(metrics["advantage/explained_variance"])
    assert shares[0] > 0.8  # of the cue, which is worth 4; the choice, of variance 0.2, is made later
    assert shares[1] < 0.1


def test_equal_returns_make_every_advantage_the_best_and_learn_what_cloning_learns() -> None:
    data = games(60, luck=0.0)
    data = Trajectories(**{**vars_of(data), "rewards": np.zeros(data.steps, np.float32)})
    model = player(data, mode="advantage", advantage_kwargs={"updates": 2}).learn(150)
    assert model._advantage is not None and (model._advantage.bins(model._windows_of(data)) == 2).all()
    cloned, losses = player(data, mode="bc").learn(150), []
    for each in (model, cloned):
        assert each._sampler is not None
        losses.append(float(each.loss(each._sampler.sample(64, torch.Generator().manual_seed(0))).detach()))
    assert losses[0] == pytest.approx(losses[1], abs=0.02)


def vars_of(data: Trajectories) -> dict[str, Any]:
    names = (
        "observations",
        "actions",
        "rewards",
        "terminations",
        "truncations",
        "offsets",
        "observation_space",
        "action_space",
    )
    return {name: getattr(data, name) for name in names}


def moved(data: Trajectories, more: np.ndarray) -> Trajectories:
    """The episodes with so much more reward at their end."""
    rewards = data.rewards.copy()
    rewards[data.offsets[1:] - 1] += more.astype(np.float32)
    return Trajectories(**{**vars_of(data), "rewards": rewards})


def bins_of_fit(data: Trajectories, **options: Any) -> np.ndarray:
    model = player(data, mode="advantage", advantage_kwargs=options)
    assert model._advantage is not None
    return model._advantage.fit(model._windows_of(data), 0)[0]


def test_a_constant_on_every_return_changes_no_bin() -> None:
    data = games(50)
    rounded = np.round(data.rewards * 8) / 8  # so that sums are exact
    data = Trajectories(**{**vars_of(data), "rewards": rounded.astype(np.float32)})
    options = {"updates": 20, "gae_lambda": 1.0, "bins": 4}
    one, other = (bins_of_fit(each, **options) for each in (data, moved(data, np.full(50, 16.0))))
    assert len(np.unique(one)) == 4
    assert np.array_equal(one, other)


@pytest.mark.slow
def test_a_constant_for_all_episodes_that_start_alike_leaves_the_best_bin_to_the_same_steps() -> None:
    data = games(400, luck=0.1, cues=True, steps=2)
    cue = data.observations[""][data.offsets[:-1] + np.arange(400), 0] > 0
    options = {"updates": 300, "learning_rate": 3e-3, "gae_lambda": 1.0, "bins": 3}
    shifted = moved(data, np.where(cue, -9.0, 3.0))  # now the other cue is worth 8 more
    right = data.actions[""][1::2] == cue
    for best in (bins_of_fit(each, **options)[1::2] == 2 for each in (data, shifted)):
        for start in (cue, ~cue):  # a quarter is right and a third is in the best bin, so some of the rest is, too
            assert best[right & start].mean() > 0.9 and best[~right & start].mean() < 0.3


def test_a_single_episode_to_learn_from_and_a_single_one_held_out_have_bins() -> None:
    for episodes, validation in ((1, 0.0), (10, 0.1)):
        held_out = {"validation": validation, "advantage_kwargs": {"updates": 2}}
        model = player(games(episodes), mode="advantage", **held_out).learn(2)
        assert not validation or model.validate().episodes == 1


def test_the_same_data_and_seed_give_the_same_bins_and_a_checkpoint_keeps_them(tmp_path: Path) -> None:
    data = record()
    options = {"mode": "advantage", "advantage_kwargs": {"updates": 3, "bins": 4}, "validation": 0.2}
    one, other = (make(data, **options).learn(1) for _ in range(2))
    one.save(tmp_path / "model")
    loaded = DecisionTransformer.load(tmp_path / "model", data, device="cpu")
    samplers = [model._sampler for model in (one, other, loaded)]
    first, *others = [sampler._return_to_go for sampler in samplers if sampler is not None]
    assert len(first.unique()) == 4 and all(torch.equal(first, each) for each in others)
    results = [model.validate() for model in (one, other, loaded)]
    assert results[0] == results[1] == results[2]
    saved = load_checkpoint(tmp_path / "model", "DecisionTransformer")
    for part, value, words in (
        ("edges", torch.tensor([3.0, 2.0, 1.0]).double(), "advantage.edges are not in order"),
        ("edges", torch.zeros(7).double(), "advantage.edges is"),
        ("first", {}, "advantage.first lacks"),
    ):
        tensors = {**saved.tensors, "advantage": {**saved.tensors["advantage"], part: value}}
        save_checkpoint(tmp_path / "other", saved.kind, saved.settings, tensors)
        with pytest.raises(CheckpointError, match=words):
            DecisionTransformer.load(tmp_path / "other", device="cpu")


@pytest.mark.parametrize(
    ("settings", "message"),
    [
        ({"delayed_reward": True}, "leave delayed_reward at False"),
        ({"return_scale": 2.0}, "leave it at None"),
        ({"return_head": "expectile"}, "leave return_head out"),
        ({"critic": "qt", "critic_kwargs": {"alignment": 1.0}}, "leave it at 0 or set mode to 'dt'"),
        ({"critic": "qt", "critic_kwargs": {"candidates": 3}}, "mode 'advantage' nobody asks; leave it at 1"),
        ({"advantage_kwargs": {"bins": 1}}, r"advantage_kwargs\.bins must be"),
        ({"advantage_kwargs": {"bin": 3}}, "did you mean 'bins'"),
        ({"mode": "dt", "advantage_kwargs": {"bins": 3}}, "no effect with mode 'dt'; set mode to 'advantage'"),
        ({"policy_kwargs": {"backbone": {"tokens_per_step": 2}}}, "mode 'advantage' has 3 tokens per step"),
    ],
)
def test_what_makes_no_sense_with_advantages_is_refused(settings: dict[str, Any], message: str) -> None:
    with pytest.raises(ConfigError, match=message):
        make(record(3), **{"mode": "advantage"} | settings)


def test_no_call_takes_a_target_and_own_episodes_are_refused() -> None:
    model = make(record(6, action="discrete"), mode="advantage", advantage_kwargs={"updates": 1}).learn(1)
    observations = np.zeros((2, 2), np.float32)
    for call in (
        lambda: model.predict(observations, target_return=1.0),
        lambda: model.actor(target_return=1.0),
        lambda: model.evaluate("test/Drift-v0", [1.0], episodes=1),
        lambda: model.policy.evaluate_actions(observations[None], np.zeros((1, 2), int), np.ones((1, 2))),
    ):
        with pytest.raises(ConfigError, match=r"no return; leave|no target return|leave return_to_go out"):
            call()
    with pytest.raises(ConfigError, match="train a new model on them and the dataset"):
        model.learn_online("test/Drift-v0", 10, updates_per_episode=1)
    for _ in range(2):
        _, state = model.predict(observations)
        model.predict(observations, state)  # no reward is needed
    (result,) = model.evaluate("test/Drift-v0", episodes=3, env_kwargs={"action": "discrete"})
    assert result.target_return is None and len(result.returns) == 3
