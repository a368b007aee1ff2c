"""The laws of Q-learning from replay: what a segment says is what acting said, episodes, limits, padding, rates."""

import dataclasses
from functools import partial
from typing import Any

import numpy as np
import pytest
import torch
from gymnasium import spaces
from stable_baselines3.common.off_policy_algorithm import OffPolicyAlgorithm
from stable_baselines3.common.vec_env import DummyVecEnv, VecMonitor, VecNormalize
from torch import Tensor

from rltransformers.agents.gtrxl_dqn import GTrXLDQN, exploration_rates
from rltransformers.backbone import PRESETS, Backbone
from rltransformers.core.errors import ConfigError
from rltransformers.core.guard import FiniteVecEnv
from rltransformers.data.replay import Draw, Window
from rltransformers.policies.action_heads import ActionHead
from tests.agents.replayed import EVERYTHING, N_STEP, SEGMENT, TINY, agent, collect, replay_of, strolls, train_on
from tests.agents.rollouts import ACTING
from tests.agents.test_gtrxl_ppo_envs import ResetRows
from tests.agents.tiny_envs import AnySpace, Steady, Stroll
from tests.attention.rows import small_windows
from tests.choice import ALL_CASES

SIZES: dict[str, dict[str, Any]] = {
    "decision_transformer": {"dropout": 0.0},
    "nystromformer": {"memory": 15},
    "csalr": {"memory": 15},
    "memory_compressed": {"memory": 4},
    "poolingformer": {"memory": 4},
}
LONGEST = 30


def all_segments(model: GTrXLDQN) -> Draw:
    oldest, counts = replay_of(model).eligible()
    rows = np.repeat(np.arange(model.n_envs), counts)
    numbers = np.concatenate([np.arange(o, o + c) for o, c in zip(oldest, counts, strict=True)])
    return Draw(rows, numbers, torch.ones(len(rows)))


def replayed(model: GTrXLDQN, window: Window) -> Tensor:
    model.policy.set_training_mode(False)
    with torch.no_grad():
        return model.policy.evaluate_window(model._normalized(window)).q


def differences(model: GTrXLDQN, said: list[list[Tensor | None]], trim: bool = True) -> Tensor:
    """|replayed - said| of all rows with an action in all segments that can be drawn."""
    draw = all_segments(model)
    window = replay_of(model).gather(draw)
    q = replayed(model, window.trimmed() if trim else window)
    errors = []
    for index, (row, number) in enumerate(zip(draw.rows, draw.segments, strict=True)):
        for t in range(SEGMENT + N_STEP):
            value = said[row][number * SEGMENT + t]
            assert (value is not None) == bool(window.counts[index, t])
            if value is not None:
                errors.append((q[index, t] - value).abs().max())
    assert len(errors) > 100
    return torch.stack(errors)


def bounded(preset: str) -> bool:
    return Backbone(TINY | {"preset": preset, **SIZES.get(preset, small_windows(preset))}).receptive_field is not None


@pytest.mark.parametrize("preset", sorted(PRESETS) if ALL_CASES else ACTING)
def test_what_a_segment_says_is_what_acting_said_on_presets(preset: str) -> None:
    """With the context that the backbone asks for, or, where it knows no bound, of the longest episode."""
    context = None if bounded(preset) and preset != "memorizing" else LONGEST  # whose store has 1,024 rows
    backbone = {"preset": preset, **SIZES.get(preset, small_windows(preset))}
    model = agent(backbone=backbone, burn_in=context, buffer_size=4 * 600)
    # float32 sums in another order
    assert float(differences(model, collect(model, 90)).max()) <= 1e-5


@pytest.mark.parametrize("policy", [{}, EVERYTHING])
@pytest.mark.parametrize("trim", [False, True])
def test_a_ring_that_went_round_says_what_acting_said(policy: Any, trim: bool) -> None:
    model = agent(policy=policy)
    said = collect(model, 150)
    assert int(replay_of(model).written.min()) > 2 * replay_of(model).rows
    errors = differences(model, said, trim)
    assert float(errors.max()) <= 1e-6  # measured: 3e-8
    # And the law sees one row of context less: it shows where an episode goes on for longer than that.
    short = agent(policy=policy, burn_in=replay_of(model).context - 1)
    assert float(differences(short, collect(short, 150), trim).max()) > 1e-5


def test_a_backbone_without_a_bound_is_refused_unless_told_its_context() -> None:
    with pytest.raises(ConfigError, match="set burn_in, to the longest episode"):
        agent(backbone={"preset": "linear_transformer"})
    assert agent(backbone={"preset": "linear_transformer"}, burn_in=7).context == 7
    assert agent().context == TINY["layers"] * TINY["memory"]  # type: ignore[operator]


def test_a_shorter_context_is_a_burn_in() -> None:
    """Memory is then nearly right, the better the longer the context."""
    found = []
    for context in (0, 2, LONGEST):
        model = agent(backbone={"preset": "linear_transformer"}, burn_in=context, buffer_size=4 * 600)
        found.append(float(differences(model, collect(model, 90)).mean()))
    assert found[0] > found[1] > 100 * found[2]


def test_trimming_the_context_changes_nothing_and_leaves_what_is_needed() -> None:
    model = agent(strolls((5, 3, 4, 6)), burn_in=12)
    collect(model, 50)
    window = replay_of(model).gather(all_segments(model))
    trimmed = window.trimmed()
    torch.testing.assert_close(replayed(model, trimmed), replayed(model, window), atol=1e-5, rtol=1e-5)
    assert trimmed.context < window.context  # no episode has as many steps
    one = replay_of(model).window(np.array([1]), np.array([4]), 3, torch.ones(1))  # a row that begins an episode
    assert bool(one.first[0, one.context]) and one.trimmed().context == 0


def test_an_episode_does_not_see_the_one_before() -> None:
    model = agent()
    collect(model, 60)
    window = replay_of(model).gather(all_segments(model))
    index = torch.arange(window.first.shape[1])
    begun = torch.where(window.first, index, -1).cummax(1).values[:, window.context :]
    before = index < begun[:, :1]  # rows of episodes that ended before the segment, in the context
    assert int(before.sum()) > 10
    filthy = dataclasses.replace(
        window, observations={"": torch.where(before[..., None], 1e3, window.observations[""])}
    )
    # What stands in rows of other episodes is multiplied by exactly 0.
    assert torch.equal(replayed(model, filthy), replayed(model, window))


def test_segments_of_one_draw_do_not_touch_each_other() -> None:
    model = agent()
    collect(model, 60)
    draw = all_segments(model)
    together = replayed(model, replay_of(model).gather(draw).trimmed())
    for index in (0, 3, len(draw.rows) - 1):
        alone = Draw(draw.rows[[index]], draw.segments[[index]], draw.weights[[index]])
        q = replayed(model, replay_of(model).gather(alone).trimmed())
        torch.testing.assert_close(q[0], together[index], atol=1e-5, rtol=1e-5)


@pytest.mark.parametrize("truncates", [False, True])
@pytest.mark.parametrize("n_step", [1, 3])
def test_a_true_value_function_has_no_error_under_time_limits(truncates: bool, n_step: int) -> None:
    """Reward 1 for ever is worth 10 at a discount of 0.9, unless the episode really ends."""
    env = DummyVecEnv([lambda: Steady(7, truncates)] * 3)
    model = agent(env, policy={}, gamma=0.9, n_step=n_step, buffer_size=3 * 90)
    with torch.no_grad():
        for head in (model.policy.action_head, model.policy.target["action_head"]):
            assert isinstance(head, ActionHead)
            head.linear.weight.zero_()
            head.linear.bias.fill_(10.0)
    collect(model, 60)
    loss = train_on(model, replay_of(model).gather(all_segments(model)))["train/td_error"]
    assert loss < 1e-5 if truncates else loss > 0.5


CUTTING = partial(VecNormalize, clip_obs=0.01)  # nearly every number


@pytest.mark.parametrize("wrap", [VecMonitor, CUTTING, lambda env: CUTTING(FiniteVecEnv(env))])
def test_a_cut_episode_is_valued_at_its_last_observation_with_the_memory_of_that_moment(wrap: Any) -> None:
    model = agent(wrap(strolls((9, 9, 9, 9))))
    collect(model, 9)
    replay = replay_of(model)
    window = replay.window(np.array([2]), np.array([0]), 10, torch.ones(1))
    assert window.counts[0].tolist() == [True] * 9 + [False]
    last = model.env.unwrapped.buf_infos[2]["terminal_observation"]  # type: ignore[union-attr]
    assert np.array_equal(window.observations[""][0, -1].numpy(), last)
    assert not bool(window.first[0, -1])
    assert torch.equal(window.previous_actions[""][:, -1], window.actions[""][:, -2])
    assert torch.equal(window.previous_rewards[:, -1], window.rewards[:, -2])


def test_an_episode_that_was_left_ends_in_its_newest_observation() -> None:
    model = agent(strolls((30, 30, 30, 30)))
    collect(model, 8)
    model.begin_episodes(3)
    collect(model, 3)
    window = replay_of(model).window(np.array([0]), np.array([0]), 11, torch.ones(1))
    assert torch.nonzero(window.first[0, window.context :])[:, 0].tolist() == [0, 8]
    assert torch.nonzero(~window.counts[0])[:, 0].tolist() == [7]
    assert not bool(window.terminal.any())


class StrollingResets(ResetRows):
    """Episodes of 5, 4, 30, 5 ... steps, and reset rows."""

    def __init__(self) -> None:
        super().__init__()
        self.envs = [Stroll((5, 4, 30)), Stroll((4, 30))]
        self.action_space = self.envs[0].action_space


def test_reset_rows_are_not_kept() -> None:
    model = agent(StrollingResets())
    said = collect(model, 60)
    assert [len(rows) for rows in said] == [60 - 5, 60 - 3]
    assert model.num_timesteps == 2 * 60 - 8
    assert float(differences(model, said).max()) <= 1e-5


@pytest.mark.parametrize("wrapped", [True, False])
def test_replay_keeps_raw_numbers_and_is_normalized_with_the_statistics_of_the_day(wrapped: bool) -> None:
    """Rewards too, by the scale of ``VecNormalize`` or by that of the agent."""
    env = VecNormalize(strolls(), norm_reward=wrapped)
    model = agent(env, scale_rewards=True)
    collect(model, 40)
    window = replay_of(model).gather(all_segments(model))
    seen = model._normalized(window)
    expected = env.normalize_obs(window.observations[""].numpy())
    np.testing.assert_array_equal(seen.observations[""].numpy(), expected)
    raw = window.rewards[window.counts]
    assert set(raw.tolist()) == {-1.0, 0.0, 1.0}  # rewards of a stroll
    assert model._scale is not None
    deviation = np.sqrt((env.ret_rms if wrapped else model._scale.moments).var + 1e-8)
    np.testing.assert_allclose(seen.rewards, window.rewards.numpy() / deviation, rtol=1e-6)
    np.testing.assert_allclose(seen.previous_rewards, window.previous_rewards.numpy() / deviation, rtol=1e-6)
    env.training = False  # statistics stand still: acting and replay say the same
    model = agent(env, buffer_size=4 * 600)
    assert float(differences(model, collect(model, 90, fresh=True)).max()) <= 1e-5


@pytest.mark.parametrize("memory_refresh", ["never", "update"])
def test_acting_goes_on_from_the_memory_of_the_last_step(memory_refresh: str) -> None:
    """With a learning rate of 0 memory made anew is what acting had."""
    model = agent(learning_rate=0.0, memory_refresh=memory_refresh)
    for steps in (7, 20, 11):
        collect(model, steps)
        before = model.policy.without_cache(model.carry.acting)
        model.train(2, 3)
        after = model.policy.without_cache(model.carry.acting)
        going_on = ~torch.as_tensor(model._last_episode_starts)
        assert torch.equal(before.actor.tensors["position"][going_on], after.actor.tensors["position"][going_on])
        for name in ("layer0.hidden", "layer1.hidden"):
            old, new = before.actor.tensors[name][going_on], after.actor.tensors[name][going_on]
            lived = before.actor.tensors["position"][going_on]
            for row, position in enumerate(lived.tolist()):  # rows of other episodes are never seen
                rows = min(position + 1, old.shape[1])
                torch.testing.assert_close(new[row, -rows:], old[row, -rows:], atol=1e-5, rtol=1e-5)


def test_memory_refresh_update_encodes_the_newest_steps_with_the_new_weights() -> None:
    found = {}
    for refresh in ("never", "update"):
        model = agent(learning_rate=1e-2, memory_refresh=refresh, exploration=1.0)
        collect(model, 40)
        model.train(3, 4)
        said = collect(model, 12)
        window = replay_of(model).newest(np.array([2]), 12)  # an episode of 30 steps, at its step 10
        q = replayed(model, window)[0]
        found[refresh] = max(float((q[t] - value).abs().max()) for t, value in enumerate(said[2]) if value is not None)
    assert found["update"] <= 1e-5 < found["never"]


def test_environments_explore_at_the_rates_of_the_ladder() -> None:
    rates = exploration_rates("ladder", 0.3, 5)
    np.testing.assert_allclose(rates, [0.4 ** (1 + 7 * i / 4) for i in range(5)])
    np.testing.assert_allclose(exploration_rates("ladder", 0.3, 1), [0.4**4.5])
    line = {"start": 1.0, "end": 0.2, "fraction": 0.5}
    np.testing.assert_allclose(exploration_rates(line, 0.75, 3), [0.6] * 3)
    np.testing.assert_allclose(exploration_rates(line, 0.25, 3), [0.2] * 3)
    policy = agent().policy
    generator = torch.Generator().manual_seed(0)
    q = torch.tensor([0.0, 2.0, 1.0]).expand(30_000, 3)
    noise = policy.exploration(torch.full((30_000,), 0.3), generator)
    actions = policy.action_head.decode(q, noise)[""]
    shares = torch.bincount(actions - 5) / 30_000
    # three standard deviations of a share of 30,000: 0.008
    torch.testing.assert_close(shares, torch.tensor([0.1, 0.8, 0.1]), atol=0.008, rtol=0)


def test_rates_of_a_function_stay_probabilities_when_a_round_goes_beyond_the_end() -> None:
    model = agent(exploration=lambda left: left, learning_rate=lambda left: 1e-3 * left).learn(50)
    assert model.num_timesteps == 72  # whole rounds of 6 steps
    assert not model._rates().any() and model.lr_schedule(model._current_progress_remaining) == 0.0


def test_predict_takes_the_best_action_or_a_random_one_with_probability_epsilon() -> None:
    model = agent(policy={"epsilon": 0.6})
    observations = np.tile(np.array([0.1, -0.3, 0.2], np.float32), (20_000, 1))
    best, _ = model.predict(observations, deterministic=True)
    assert len(set(best.tolist())) == 1
    sampled, _ = model.predict(observations)
    shares = np.bincount(sampled - 5, minlength=3) / 20_000
    expected = np.full(3, 0.2) + 0.4 * np.eye(3)[best[0] - 5]
    np.testing.assert_allclose(shares, expected, atol=0.011)  # three standard deviations
    head, q = model.policy.action_head, torch.tensor([0.0, 2.0, 1.0])
    logs = head.log_prob(q.expand(3, 3), {"": torch.arange(5, 8)})
    torch.testing.assert_close(logs.exp(), torch.tensor([0.2, 0.6, 0.2]))


def test_before_learning_starts_all_actions_are_random() -> None:
    model = agent(learning_starts=10**6, exploration=0.0)
    collect(model, 300)
    taken = torch.bincount(replay_of(model).actions[""].flatten() - 5) / replay_of(model).actions[""].numel()
    torch.testing.assert_close(taken, torch.full((3,), 1 / 3), atol=0.1, rtol=0)
    weights = [parameter.clone() for parameter in model.policy.parameters()]
    model.learn(200)
    assert all(torch.equal(a, b) for a, b in zip(weights, model.policy.parameters(), strict=True))


def test_it_is_an_off_policy_algorithm_for_discrete_actions() -> None:
    assert isinstance(agent(), OffPolicyAlgorithm)
    box = AnySpace(spaces.Box(-1.0, 1.0, (3,)), spaces.MultiDiscrete([2, 3]))
    with pytest.raises(ConfigError, match="needs a Discrete action space, got MultiDiscrete"):
        agent(box)
