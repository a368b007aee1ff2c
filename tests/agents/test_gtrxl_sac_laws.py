"""The laws of soft actor-critic from replay: acting and replay agree, ends of episodes, targets, two steps apart."""

from functools import partial
from typing import Any
from unittest.mock import patch

import numpy as np
import pytest
import torch
from gymnasium import spaces
from stable_baselines3.common.off_policy_algorithm import OffPolicyAlgorithm
from stable_baselines3.common.vec_env import DummyVecEnv
from torch import Tensor

from rltransformers.agents import GTrXLSAC, gtrxl_sac
from rltransformers.core.errors import ConfigError
from rltransformers.training.update import descend
from tests.agents.masked_envs import Locks
from tests.agents.replayed import N_STEP, SEGMENT, collect, replay_of, train_on
from tests.agents.soft import BOX, CHOICES, MIXED, SPACES, Step, all_segments, soft, vector, walks
from tests.agents.tiny_envs import AnySpace, Steady


def both(result: Any) -> Tensor:
    """Outputs of the actor, and the value by the critics."""
    return torch.cat([result[0], result[1].unsqueeze(-1)], -1)


def replayed(model: GTrXLSAC, window: Any) -> Tensor:
    policy = model.policy
    policy.set_training_mode(False)
    with torch.no_grad():
        z = policy.features(window, policy.trunk)
        features = z if policy.critic is None else policy.features(window, policy.actor)
        outputs = policy.window_outputs(features, window)
        likely = policy.action_head.drawn(outputs)
        values = (likely.log_probs.exp() * policy.critics(z, likely.boxes).amin(-2)).sum(-1)
    return torch.cat([outputs, values.unsqueeze(-1)], -1)


def differences(model: GTrXLSAC, said: list[list[Tensor | None]]) -> Tensor:
    draw = all_segments(model)
    window = model._normalized(replay_of(model).gather(draw).trimmed())
    found, errors = replayed(model, window), []
    for index, (row, number) in enumerate(zip(draw.rows, draw.segments, strict=True)):
        for t in range(SEGMENT + N_STEP):
            value = said[row][number * SEGMENT + t]
            if value is not None:
                errors.append((found[index, t] - value).abs().max())
    assert len(errors) > 100
    return torch.stack(errors)


@pytest.mark.parametrize("shared", [False, True])
@pytest.mark.parametrize("space", sorted(SPACES))
def test_policy_and_values_of_a_replayed_step_are_those_of_acting(space: str, shared: bool) -> None:
    model = soft(walks(SPACES[space]), policy={"shared_backbone": shared})
    said = collect(model, 150, read=both)
    assert int(replay_of(model).written.min()) > 2 * replay_of(model).rows
    assert float(differences(model, said).max()) <= 1e-6
    # And the law sees one row of context less.
    short = soft(walks(SPACES[space]), policy={"shared_backbone": shared}, burn_in=replay_of(model).context - 1)
    assert float(differences(short, collect(short, 150, read=both)).max()) > 3e-6


@pytest.mark.parametrize("memory_refresh", ["never", "update"])
def test_acting_goes_on_from_the_memory_of_the_last_step(memory_refresh: str) -> None:
    """Of the actor and of the critics: with a learning rate of 0 memory made anew is what acting had."""
    model = soft(learning_rate=0.0, memory_refresh=memory_refresh)
    collect(model, 17)
    before = model.policy.without_cache(model.carry.acting)
    model.train(2, 3)
    after = model.policy.without_cache(model.carry.acting)
    going_on = ~torch.as_tensor(model._last_episode_starts)
    for old, new in ((before.actor, after.actor), (before.critic, after.critic)):
        assert old is not None and new is not None
        assert torch.equal(old.tensors["position"][going_on], new.tensors["position"][going_on])
        for row, position in enumerate(old.tensors["position"][going_on].tolist()):
            a, b = old.tensors["layer1.hidden"][going_on][row], new.tensors["layer1.hidden"][going_on][row]
            rows = min(position + 1, len(a))  # rows of other episodes are never seen
            torch.testing.assert_close(a[-rows:], b[-rows:], atol=1e-5, rtol=1e-5)


@pytest.mark.parametrize("n_step", [1, 3])
@pytest.mark.parametrize("truncates", [False, True])
def test_time_limits_bootstrap_and_ends_do_not(truncates: bool, n_step: int) -> None:
    """Reward 1 in four steps at a discount of 0.5: for ever it is worth 2, to the end 1.875, 1.75, 1.5 and 1."""
    env = DummyVecEnv([lambda: Steady(4, truncates)] * 3)
    model = soft(env, gamma=0.5, n_step=n_step, buffer_size=3 * 90, ent_coef=0.0, learning_rate=0.0)
    with torch.no_grad():
        for critics in (model.policy.critics, model.policy.target["critics"]):
            for critic in critics.each:  # type: ignore[union-attr]
                critic[-1].weight.zero_()
                critic[-1].bias.fill_(2.0)
    collect(model, 60)
    window = replay_of(model).gather(all_segments(model))
    found = train_on(model, window)["train/target"]
    place = {False: 4, True: 5}[truncates]  # rows of an episode, its last observation included
    if truncates:
        assert found == pytest.approx(2.0, abs=1e-6)
        return
    position = (
        torch.arange(window.first.shape[1])
        - torch.where(window.first, torch.arange(window.first.shape[1]), -window.position[:, None]).cummax(1).values
    )
    left = place - position[:, window.context : window.context + SEGMENT]  # rewards that are still to come
    steps = left.clamp(max=n_step)
    expected = 2 - 2 * 0.5**steps + (left > n_step) * 2 * 0.5**steps
    assert found == pytest.approx(float(expected.float().mean()), abs=1e-6)
    assert found < 1.95


def test_the_target_network_sees_the_learning_one_by_polyak_alone() -> None:
    model = soft(tau=0.3)
    collect(model, 60)
    policy = model.policy
    old = {name: value.clone() for name, value in policy.target.named_parameters()}
    model.train(1, 3)
    own = dict(policy.named_parameters())
    for name, value in policy.target.named_parameters():
        torch.testing.assert_close(value, 0.7 * old[name] + 0.3 * own[name], atol=1e-7, rtol=1e-6)
        assert not value.requires_grad
    assert {name.split(".")[0] for name in old} == {"critic", "critics"}
    still = soft(tau=1e-30)
    collect(still, 60)
    before = vector(still.policy.target.parameters())
    still.train(2, 3)
    torch.testing.assert_close(before, vector(still.policy.target.parameters()), atol=1e-25, rtol=0)


@pytest.mark.parametrize("shared", [False, True])
def test_the_step_of_the_actor_changes_no_critic_and_that_of_the_critics_no_actor(shared: bool) -> None:
    model = soft(policy={"shared_backbone": shared})
    collect(model, 60)
    policy = model.policy
    seen: list[tuple[Tensor, Tensor]] = []

    def watched(*args: Any) -> Tensor:
        seen.append((vector(policy.actor_parameters()), vector(policy.critic_parameters())))
        norm = descend(*args)
        seen.append((vector(policy.actor_parameters()), vector(policy.critic_parameters())))
        return norm

    with patch.object(gtrxl_sac, "descend", watched):
        model.train(2, 3)
    for first in (0, 4):
        start, after_critic, before_actor, end = seen[first : first + 4]
        assert torch.equal(start[0], after_critic[0]) and not torch.equal(start[1], after_critic[1])
        assert not torch.equal(before_actor[0], end[0]) and torch.equal(before_actor[1], end[1])
    sizes = len(vector(policy.actor_parameters())) + len(vector(policy.critic_parameters()))
    assert sizes == len(vector(policy.learned))
    assert all(each.requires_grad for each in policy.learned)


def test_a_shared_trunk_learns_from_the_critics_alone() -> None:
    model = soft(policy={"shared_backbone": True}, learning_rate=1e-2)
    collect(model, 60)
    assert model.policy.critic is None and model.policy.trunk is model.policy.actor
    with torch.no_grad():
        critics: Any = model.policy.critics.each
        for critic in critics:
            critic[-1].weight.zero_()  # values do not depend on features
    before = vector(model.policy.actor.parameters())
    model.train(1, 3)
    assert torch.equal(before, vector(model.policy.actor.parameters()))
    model.train(1, 3)
    assert not torch.equal(before, vector(model.policy.actor.parameters()))


def test_trunks_learn_at_their_rate() -> None:
    for rate in (0.0, 0.25):
        model = soft(encoder_rate=rate, learning_rate=1e-2)
        collect(model, 60)
        before = vector(model.policy.critic.parameters()), vector(model.policy.critics.parameters())  # type: ignore[union-attr]
        model.train(1, 3)
        after = vector(model.policy.critic.parameters()), vector(model.policy.critics.parameters())  # type: ignore[union-attr]
        # The first step of Adam is its rate, whatever the gradient.
        assert float((after[0] - before[0]).abs().max()) == pytest.approx(rate * 1e-2, rel=1e-3)
        assert float((after[1] - before[1]).abs().max()) == pytest.approx(1e-2, rel=1e-3)


def test_actions_are_uniform_before_learning_starts() -> None:
    model = soft(walks(MIXED), learning_starts=10**6, buffer_size=4 * 600)
    collect(model, 500)
    rows = replay_of(model)
    used = rows.counts
    box = rows.actions["a"][used].flatten()
    for q in (0.1, 0.5, 0.9):
        assert float(box.quantile(q)) == pytest.approx(2 * q - 1, abs=0.06)
    shares = torch.bincount(rows.actions["b"][used].long() - 5) / int(used.sum())
    torch.testing.assert_close(shares, torch.full((3,), 1 / 3), atol=0.05, rtol=0)
    weights = vector(model.policy.parameters())
    model.learn(200)
    assert torch.equal(weights, vector(model.policy.parameters()))


def test_actions_that_a_mask_forbids_are_never_taken_and_have_no_probability() -> None:
    """The environment refuses them; before learning starts, too."""
    for space in (spaces.Discrete(4, start=3), spaces.MultiDiscrete([2, 3])):
        env = DummyVecEnv([partial(Locks, space, observed=True, truncates=True)] * 2)
        model = soft(env, learning_starts=60, buffer_size=2 * 100).learn(200)
        assert model._n_updates > 5 and np.isfinite(model.logger.name_to_value["train/entropy"])
    window = model._normalized(replay_of(model).gather(all_segments(model)))
    features = model.policy.features(window, model.policy.actor)
    drawn = model.policy.action_head.drawn(model.policy.window_outputs(features, window))
    mask = window.observations["action_mask"][:, window.context :].bool()
    allowed = mask[..., :2].sum(-1) * mask[..., 2:].sum(-1)
    assert torch.equal((drawn.log_probs.exp() > 0).sum(-1), allowed)
    torch.testing.assert_close(model._aims(drawn.log_probs), 0.686 * allowed.log())
    assert (allowed < 6).any()


OPTIONS: dict[str, dict[str, Any]] = {
    "shared trunk": {"policy": {"shared_backbone": True}},
    "rate of the trunks": {"encoder_rate": 1.0},
    "three critics": {"policy": {"n_critics": 3}},
    "one critic of two": {"target_critics": 1},
    "one step": {"n_step": 1},
    "layer norm": {"policy": {"layer_norm": True}},
    "width": {"policy": {"head_width": 16}},
    "temperature": {"ent_coef": 0.2},
    "first temperature": {"ent_coef": "auto_0.1"},
    "entropy": {"target_entropy": -7.0, "learning_rate": 1e-2},
    "reward scale": {"scale_rewards": True},
    "tau": {"tau": 0.5},
    "gamma": {"gamma": 0.5},
    "clip": {"max_grad_norm": 1e-3, "policy": {"optimizer_kwargs": {"eps": 1e-2}}},
    "refresh": {"memory_refresh": "update", "learning_rate": 1e-2},
    "twice": {"gradient_steps": 2},
}


def run(setting: dict[str, Any]) -> Tensor:
    model = soft(**setting).learn(96)
    extra = model.temperature.value.reshape(1), replay_of(model).actions[""].flatten()[:60]
    return torch.cat([vector(model.policy.learned), *extra])


@pytest.fixture(scope="module")
def plain() -> dict[str, Tensor]:
    return {
        "": run({}),
        "entropy": run({"learning_rate": 1e-2}),
        "refresh": run({"learning_rate": 1e-2}),
        "clip": run({"policy": {"optimizer_kwargs": {"eps": 1e-2}}}),
    }


@pytest.mark.xdist_group("soft options")
@pytest.mark.parametrize("name", sorted(OPTIONS))
def test_every_option_changes_something(name: str, plain: dict[str, Tensor]) -> None:
    found, before = run(OPTIONS[name]), plain.get(name, plain[""])
    assert bool(torch.isfinite(found).all())
    assert found.shape != before.shape or not torch.equal(found, before)


def test_fewer_target_critics_are_drawn_anew_for_every_update() -> None:
    model = soft(policy={"n_critics": 5}, target_critics=2)
    drawn = [model._chosen_critics() for _ in range(50)]
    assert all(isinstance(each, Tensor) and len(set(each.tolist())) == 2 for each in drawn)
    assert len({tuple(sorted(each.tolist())) for each in drawn if isinstance(each, Tensor)}) > 5
    assert soft()._chosen_critics() == slice(None)


@pytest.mark.parametrize(
    ("setting", "message"),
    [
        ({"ent_coef": "automatic"}, "write 'auto_0.1'"),
        ({"ent_coef": "auto_"}, "ent_coef is a number, 'auto'"),
        ({"ent_coef": "auto_-1"}, "a positive first value"),
        ({"ent_coef": "auto_x"}, "got 'auto_x'"),
        ({"ent_coef": -0.1}, "ent_coef must be"),
        ({"target_entropy": "large"}, "target_entropy must be"),
        ({"target_critics": 3}, "target_critics is 3, the policy has 2; lower it, or raise n_critics"),
        ({"n_step": 6}, "n_step must be"),
        ({"encoder_rate": -1.0}, "encoder_rate must be"),
        ({"policy": {"head_width": 0}}, "head_width must be"),
        (
            {"backbone": {"preset": "al_rfou", "losses": {"al_rfou": {"weight": 0.5, "future": 0.5}}}},
            "set future of the loss to 0",
        ),
    ],
)
def test_a_setting_that_cannot_work_is_refused(setting: dict[str, Any], message: str) -> None:
    with pytest.raises(ConfigError, match=message):
        soft(**setting)


def test_too_many_combinations_and_open_bounds_are_refused() -> None:
    with pytest.raises(ConfigError, match="at most 1,024, and this action space has 2,048"):
        soft(AnySpace(BOX, spaces.MultiBinary(11)))
    with pytest.raises(ConfigError, match="needs finite bounds"):
        soft(AnySpace(BOX, spaces.Box(-np.inf, 1.0, (2,))))
    largest = float(np.finfo(np.float32).max)
    with pytest.raises(ConfigError, match=r"must be smaller than 1e\+30, got 3.40282e\+38 .* rescale the action"):
        soft(Step(spaces.Box(-1.0, largest, (2,)), (5, 3), False))


def test_it_is_an_off_policy_algorithm_of_stable_baselines() -> None:
    model = soft(Step(CHOICES, (5, 3), False), buffer_size=60)
    assert isinstance(model, OffPolicyAlgorithm)
    assert model.learn(60)._n_updates > 3


def test_losses_and_mechanisms_of_the_backbone_train_in_both_trunks() -> None:
    """Masks that adapt, choosers that learn between updates, exits whose inner layers learn from the same losses."""
    for backbone, names in (
        ({"preset": "calm", "losses": {"exits": 0.5}}, ("exits_loss", "value_exits_loss")),
        ({"preset": "compressive", "losses": {"compression": 0.3}}, ("compression_loss", "value_compression_loss")),
        ({"preset": "universal_act"}, ()),
        ({"selection": {"name": "routing", "clusters": 2, "window": 3}}, ()),
    ):
        model = soft(backbone=backbone, burn_in=9)
        collect(model, 40)
        before = vector(model.policy.learned)
        model.train(2, 3)
        after = vector(model.policy.learned)
        assert bool(torch.isfinite(after).all()) and not torch.equal(before, after)
        assert all(model.logger.name_to_value[f"train/{name}"] != 0 for name in names)
