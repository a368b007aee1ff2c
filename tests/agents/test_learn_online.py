"""Decision Transformers that play episodes and learn from them: what is played, what is learned, what a file holds."""

import copy
import math
from dataclasses import replace
from pathlib import Path
from typing import Any

import gymnasium as gym
import numpy as np
import pytest
import torch
from gymnasium import spaces
from gymnasium.vector import AutoresetMode, SyncVectorEnv
from stable_baselines3.common.callbacks import BaseCallback

from rltransformers.agents import DecisionTransformer
from rltransformers.core.checkpoint import load_checkpoint, save_checkpoint
from rltransformers.core.errors import CheckpointError, ConfigError, DataError
from rltransformers.core.seeding import numpy_stream, step_seed
from rltransformers.data import Trajectories
from rltransformers.data import record as record_episodes
from rltransformers.policies.decider import Decider
from rltransformers.training.offline.loss import EntropyBound
from tests.agents.test_decision_options import _tensors
from tests.agents.test_decision_transformer import (
    TINY,
    Drift,
    Losses,
    Narrow,
    looking_back,
    make,
    record,
    tokens_of,
    weights,
    wide_data,
)

DRIFT = "test/Drift-v0"


@pytest.fixture(scope="module")
def data() -> Trajectories:
    return record()


def stochastic(data: Trajectories, **settings: Any) -> DecisionTransformer:
    return make(data, learning_rate=1e-2, action_head="gaussian", **settings)


class Stop(BaseCallback):
    """Stops after some updates."""

    def __init__(self, updates: int) -> None:
        super().__init__()
        self.updates = updates

    def _on_step(self) -> bool:
        self.updates -= 1
        return self.updates > 0


def test_a_warm_up_that_is_left_open_counts_the_updates_of_the_episodes_to_come(data: Trajectories) -> None:
    model = stochastic(data, warmup_steps=None)
    model.learn_online(DRIFT, 60, updates_per_episode=20, callback=Stop(1))
    steps = 20 * math.ceil(60 / data.lengths.mean()) // 10
    assert model.settings.warmup_steps == steps > 1
    assert model._optimizer.param_groups[0]["lr"] == pytest.approx(1e-2 / steps)


# ------------------------------------------------------------------------------------------------------ episodes


def test_the_replay_holds_what_was_played_with_the_returns_that_came_of_it(data: Trajectories) -> None:
    model = stochastic(data).learn(2)
    model.learn_online(DRIFT, 60, replay_episodes=20, updates_per_episode=3, exploration_return=40.0)
    assert model._replay is not None
    replay = model._replay.data
    new = replay.select(np.arange(len(data), len(replay)))
    assert model.online_timesteps == new.steps >= 60 and new.steps - new.lengths[-1] < 60
    assert model._online.episodes == len(new) and model.num_timesteps == 2 + 3 * len(new)
    # The environment, replayed with the recorded actions, pays these rewards: nothing of the 40 asked for is in them.
    for index in range(len(new)):
        episode = new.episode(index)
        env: Any = gym.make(DRIFT).unwrapped
        env.reset(seed=0)
        env.x, env.t, env.limit = float(episode.observations[""][0, 0]), 0, len(episode)
        paid = [env.step(action)[1] for action in episode.actions[""]]
        np.testing.assert_allclose(paid, episode.rewards, atol=1e-5)  # float32 of observations and rewards
    sampler = model._sampler_of(replay)
    batch = sampler.window(torch.arange(sampler.windows))
    np.testing.assert_allclose(
        batch.return_to_go[batch.timestep == 0].unique(), np.unique(replay.returns.astype(np.float32)), rtol=1e-5
    )


def test_episodes_are_asked_for_more_than_the_data_hold_and_sampled(
    data: Trajectories, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Recomputed: the state begins with the target, and every action is the one that the noise of the seed gives."""
    model = stochastic(data).learn(2)
    asked: list[np.ndarray] = []
    unwatched = Decider.step

    def watching(decider: Decider, leaves: Any, state: Any, *, start: Any, noise: Any, **more: Any) -> Any:
        assert noise is not None and noise.shape == (len(start), 2)
        found = unwatched(decider, leaves, state, start=start, noise=noise, **more)
        asked.append(found[2].return_to_go.numpy().copy())
        return found

    with monkeypatch.context() as patch:
        patch.setattr(Decider, "step", watching)
        model.learn_online(DRIFT, 1, updates_per_episode=1)
    best, worst = float(data.returns.max()), float(data.returns.min())
    assert model._replay is not None
    episode = model._replay.data.episode(-1)
    expected = best + (best - worst) - np.concatenate([[0.0], np.cumsum(episode.rewards[:-1].astype(np.float64))])
    np.testing.assert_allclose(np.concatenate(asked)[: len(expected)], expected, rtol=1e-5)
    greedy = stochastic(data).learn(2).predict(episode.observations[""][0], deterministic=True)[0]
    assert not np.allclose(greedy, episode.actions[""][0])


def test_updates_read_the_replay_of_their_day(data: Trajectories, monkeypatch: pytest.MonkeyPatch) -> None:
    model = stochastic(data)
    update, read = model._update, list[int]()

    def watching(sampler: Any, with_panel: bool) -> Any:
        assert model._replay is not None and sampler.trajectories is model._replay.data
        read.append(len(sampler.trajectories))
        return update(sampler, with_panel)

    monkeypatch.setattr(model, "_update", watching)
    model.learn_online(DRIFT, 25, updates_per_episode=2)
    played = model._online.episodes
    assert played > 1 and read == [len(data) + n + 1 for n in range(played) for _ in range(2)]


@pytest.mark.parametrize("mode", ["refresh", "recompute"])
def test_noise_moves_the_one_action_of_a_box_and_is_remembered(data: Trajectories, mode: str) -> None:
    """Fed with the actions of an episode, the model decides where they lie but for the noise of the seed."""
    model = make(data, learning_rate=1e-2, acting_mode=mode).learn(20)
    twin = make(data, learning_rate=1e-2, acting_mode=mode).learn(20)
    model.learn_online(DRIFT, 40, updates_per_episode=1, exploration_noise=0.3)
    assert model._replay is not None
    episode = model._replay.data.episode(len(data))  # the first one that was played, with the weights of twin
    best, worst = float(data.returns.max()), float(data.returns.min())
    actor, state = twin.decider(), twin.decider().initial_state(1)
    differences = []
    for t in range(len(episode)):
        actions, _, state = actor.step(
            {"": torch.as_tensor(episode.observations[""][t : t + 1])},
            state,
            start=torch.tensor([t == 0]),
            reward=torch.tensor([float(episode.rewards[t - 1]) if t else 0.0], dtype=torch.float64),
            target_return=torch.tensor([2 * best - worst], dtype=torch.float64),
        )
        taken = torch.as_tensor(episode.actions[""][t : t + 1])
        differences.append(float((taken - actions[""])[0, 0]))
        with torch.inference_mode():
            state = replace(state, action=twin.policy.head.embed({"": taken}))
    assert (np.abs(episode.actions[""]) <= 2.0).all()
    seed = step_seed(model.seed, 0, "online")
    generator = numpy_stream(seed, "action")
    expected = []
    for _ in differences:
        generator.random((1, 0))
        expected.append(2.0 * 0.3 * generator.standard_normal((1, 1))[0, 0])  # bounds -2 and 2
    inside = np.abs(episode.actions[""][:, 0]) < 2.0
    assert inside.sum() > 2
    np.testing.assert_allclose(np.array(differences)[inside], np.array(expected)[inside], atol=1e-5)  # float32


def test_rewards_are_delayed_in_the_replay_too(data: Trajectories) -> None:
    model = stochastic(data, delayed_reward=True)
    model.learn_online(DRIFT, 1, updates_per_episode=1)
    assert model._replay is not None
    rewards = model._replay.data.episode(-1).rewards
    assert len(rewards) >= 3 and not rewards[:-1].any() and rewards[-1] != 0


def test_several_environments_play_one_episode_each(data: Trajectories) -> None:
    model = stochastic(data)
    model.learn_online(DRIFT, 1, num_envs=3, updates_per_episode=2)
    assert model._online.episodes == 3 and model.num_timesteps == 6
    envs = SyncVectorEnv([lambda: gym.make(DRIFT)] * 2, autoreset_mode=AutoresetMode.DISABLED)
    model.learn_online(envs, 1, updates_per_episode=2)
    assert model._online.episodes == 5 and model.num_timesteps == 10
    envs.reset()  # still open


# -------------------------------------------------------------------------------------------------------- resume


@pytest.mark.parametrize(
    "settings", [{}, {"critic": "qcs", "critic_kwargs": {"width": 16}}, {"return_head": "expectile"}]
)
@pytest.mark.parametrize("updates", [3, 4, 9])
def test_stopping_and_resuming_gives_the_run_that_never_stopped(
    data: Trajectories, tmp_path: Path, updates: int, settings: dict[str, Any]
) -> None:
    """In the middle of the updates of an episode, and behind the last of them; without the dataset."""
    options: Any = {"updates_per_episode": 4, "replay_episodes": 13}
    whole, first = stochastic(data, **settings).learn(1), stochastic(data, **settings).learn(1)
    losses, before, after = Losses(), Losses(), Losses()
    whole.learn_online(DRIFT, 30, callback=losses, **options)
    first.learn_online(DRIFT, 30, callback=[before, Stop(updates)], **options)
    assert len(before.values) == updates < len(losses.values)
    first.save(tmp_path / "model")
    second = DecisionTransformer.load(tmp_path / "model", device="cpu")
    assert second.online_updates == (4 - updates) % 4
    second.learn_online(DRIFT, max(30 - second.online_timesteps, 0), callback=after, **options)
    assert before.values + after.values == losses.values
    assert torch.equal(weights(whole), weights(second))
    assert whole._replay is not None and second._replay is not None
    np.testing.assert_array_equal(whole._replay.data.rewards, second._replay.data.rewards)
    assert whole._online == second._online and len(whole._replay.data) == 13
    assert whole._entropy is not None and second._entropy is not None
    one, other = (torch.cat(_tensors(each.tensors())) for each in (whole._entropy, second._entropy))
    assert torch.equal(one, other)


def test_a_replay_that_is_none_is_refused(data: Trajectories, tmp_path: Path) -> None:
    stochastic(data).learn_online(DRIFT, 1, updates_per_episode=1).save(tmp_path / "model")
    saved = load_checkpoint(tmp_path / "model")
    for name, change in {
        "rewards": lambda replay: replay | {"rewards": replay["rewards"][:-1]},
        "offsets": lambda replay: {key: value for key, value in replay.items() if key != "offsets"},
    }.items():
        tensors = saved.tensors | {"replay": change(saved.tensors["replay"])}
        save_checkpoint(tmp_path / name, saved.kind, saved.settings, tensors)
        with pytest.raises(CheckpointError, match=name):
            DecisionTransformer.load(tmp_path / name)


# ------------------------------------------------------------------------------------------------------- entropy


def test_the_loss_gains_the_entropy_at_its_temperature(data: Trajectories) -> None:
    model = stochastic(data)
    assert model._sampler is not None and model._entropy is not None
    batch = model._sampler.sample(8, torch.Generator().manual_seed(0))
    outputs = model.policy(batch.observations, batch.actions, batch.return_to_go, batch.timestep, batch.valid)
    ((_, leaf),) = model.policy.head.dense_boxes()
    mean, log_std = outputs.chunk(2, -1)
    deviation = (-5.0 + 3.5 * (log_std.tanh() + 1.0)).exp()
    normal = torch.distributions.Normal(mean.tanh(), deviation)
    taken = torch.where(batch.valid[..., None], batch.actions[""], 0.0) / 2.0  # bounds -2 and 2
    expected = (-normal.log_prob(taken) - 0.1 * normal.entropy())[batch.valid].mean()
    torch.testing.assert_close(model.loss(batch), expected, atol=1e-6, rtol=1e-5)
    assert leaf.components == 1 and float(model._entropy.temperature) == pytest.approx(0.1)


def test_the_temperature_rises_below_the_bound_and_falls_above_it() -> None:
    bound = EntropyBound(3, torch.device("cpu"))
    assert bound.bound == -3.0
    low, high = copy.deepcopy(bound), copy.deepcopy(bound)
    low.step(torch.tensor(-3.5))
    high.step(torch.tensor(-2.5))
    # The first step of Adam is its learning rate, in the logarithm.
    assert math.log(float(low.temperature)) == pytest.approx(math.log(0.1) + 1e-4, abs=1e-6)
    assert math.log(float(high.temperature)) == pytest.approx(math.log(0.1) - 1e-4, abs=1e-6)


# ------------------------------------------------------------------------------------------------------ learning


class Aim(gym.Env[Any, Any]):
    """Four steps; the reward is one minus the distance of the action from a place that the first observation tells."""

    observation_space, action_space = spaces.Box(-1, 1, (2,)), spaces.Box(-1, 1, (1,))

    def reset(self, *, seed: int | None = None, options: dict[str, Any] | None = None) -> tuple[Any, dict[str, Any]]:
        super().reset(seed=seed)
        self.t, self.place = 0, float(self.np_random.uniform(-0.8, 0.8))
        return np.array([self.place, 1.0], np.float32), {}

    def step(self, action: Any) -> tuple[Any, float, bool, bool, dict[str, Any]]:
        self.t += 1
        reward = 1.0 - abs(self.place - float(action[0]))
        return np.zeros(2, np.float32), reward, False, self.t == 4, {}


gym.register("test/Aim-v0", entry_point=lambda **_: Aim())


@pytest.mark.slow
def test_it_improves_on_what_it_was_taught() -> None:
    """One random episode in twenty returns 3 of 4 or more; taught by them 2.84, with episodes of its own 3.52 (seed 5).

    Seeds 3 and 4 gain 0.33 and 0.47; what another machine rounds differently is less than 0.3. Episodes that are stored
    with their actions turned round end at 1.19.
    """
    data = record_episodes("test/Aim-v0", "random", episodes=300, seed=0)
    settings: dict[str, Any] = {
        "batch_size": 64,
        "learning_rate": 1e-2,
        "warmup_steps": 1,
        "context_length": 4,
        "seed": 5,
        "policy_kwargs": {"backbone": {**TINY["backbone"], "layers": 1}},
    }
    model = make(data, action_head="gaussian", **settings).learn(150)
    before = model.evaluate("test/Aim-v0", episodes=50)[0].mean
    model.learn_online("test/Aim-v0", 400, updates_per_episode=8, num_envs=4, replay_episodes=100)
    after = model.evaluate("test/Aim-v0", episodes=50)[0].mean
    assert model._replay is not None
    assert after > before and after > np.quantile(data.returns, 0.95), (before, after)


def test_what_is_learned_online_is_logged(data: Trajectories, tmp_path: Path) -> None:
    model = stochastic(data, tensorboard_log=str(tmp_path))
    lines: list[dict[str, Any]] = []
    logger = model.logger
    dump = logger.dump

    def watched(step: int = 0) -> None:
        lines.append(dict(logger.name_to_value))
        dump(step)

    logger.dump = watched  # type: ignore[method-assign]
    model.learn_online(DRIFT, 20, updates_per_episode=2, log_interval=2)
    found = lines[-1]
    assert found["online/timesteps"] == model.online_timesteps and found["online/episodes"] == len(lines)
    assert {"online/return_mean", "online/length_mean", "train/entropy", "train/temperature"} <= set(found)
    assert model._replay is not None
    assert found["online/return_mean"] == pytest.approx(model._replay.data.returns[-1], rel=1e-5)


# -------------------------------------------------------------------------------------------------------- errors


def test_what_cannot_learn_online_says_why(data: Trajectories, tmp_path: Path) -> None:
    with pytest.raises(ConfigError, match=r"one action of the Box for every state.*action_head='gaussian'"):
        make(data).learn_online(DRIFT, 1)
    with pytest.raises(ConfigError, match=r"Box 'go' for every state"):
        make(record(3, action="mixed")).learn_online(DRIFT, 1)
    with pytest.raises(ConfigError, match="moves the one action of a Box, and all actions"):
        stochastic(data).learn_online(DRIFT, 1, exploration_noise=0.1)
    with pytest.raises(ConfigError, match="mode 'bc' asks for no return"):
        stochastic(data, mode="bc").learn_online(DRIFT, 1)
    with pytest.raises(ConfigError, match="must be a finite number"):
        stochastic(data).learn_online(DRIFT, 1, exploration_return=math.inf)
    with pytest.raises(ConfigError, match="observation space of the environment"):
        stochastic(data).learn_online("CartPole-v1", 1)
    stochastic(data).save(tmp_path / "model")
    with pytest.raises(ConfigError, match="no episodes to begin with; give a dataset"):
        DecisionTransformer.load(tmp_path / "model").learn_online(DRIFT, 1)
    gym.register("test/BrokenDrift-v0", entry_point=broken_drift)
    with pytest.raises(DataError, match=r"reward of environment 0 is nan.*in step 4 of its episode"):
        stochastic(data).learn_online("test/BrokenDrift-v0", 50)


def broken_drift(**_: Any) -> gym.Env[Any, Any]:
    return Drift(broken="reward")


# ------------------------------------------------------------------------------------------------------ spaces


def test_data_with_guessed_spaces_are_joined_by_what_is_played(data: Trajectories) -> None:
    episodes = [data.episode(index) for index in range(len(data))]
    told = [
        {
            "observations": each.observations[""].astype(np.float64),
            "actions": each.actions[""],
            "rewards": each.rewards,
            "truncations": each.truncations,
        }
        for each in episodes
    ]
    model = make(told, action_head="gaussian")
    env = Drift()
    assert model.observation_space != env.observation_space and model.action_space != env.action_space
    model.learn_online(DRIFT, 20, updates_per_episode=1)
    assert model._replay is not None and len(model._replay.data) > len(data)
    assert model._replay.data.observation_space == model.observation_space


@pytest.mark.parametrize("options", [{"exploration_noise": 0.3}, {}], ids=["noise", "gaussian"])
def test_an_environment_with_narrower_bounds_gets_and_the_policy_remembers_clipped_actions(
    options: dict[str, Any], monkeypatch: pytest.MonkeyPatch
) -> None:
    model = make(
        wide_data(), action_head="deterministic" if options else "gaussian", learning_rate=1e-2, warmup_steps=0
    ).learn(60)
    env, seen = Narrow(), looking_back(monkeypatch)
    model.learn_online(env, 8, updates_per_episode=1, **options)
    assert model._replay is not None
    played = model._replay.data.select([len(wide_data()), len(wide_data()) + 1])
    taken = env.taken
    assert np.abs(taken).max() == 1.0
    np.testing.assert_array_equal(played.actions[""], np.array(taken, np.float32))
    # The weights changed between the two episodes: the second one is of those that stand now.
    assert len(seen) == 6 and len(taken) == 8
    np.testing.assert_allclose(seen[3:], tokens_of(model, taken[4:7]), atol=0.02)


def test_whole_episodes_need_an_environment_that_plays_none_that_is_longer(data: Trajectories) -> None:
    model = stochastic(data, whole_episodes=True, context_length=14)
    with pytest.raises(ConfigError, match=r"at most context_length = 14 steps, .* plays without a limit; give longest"):
        model.learn_online(DRIFT, 5, updates_per_episode=1)
    assert model.online_timesteps == 0 and model._replay is None
    model.learn_online(DRIFT, 5, updates_per_episode=1, longest_episode=14)
    assert model.online_timesteps >= 5
    limited = {"max_episode_steps": 15}
    with pytest.raises(ConfigError, match="plays up to 15"):
        model.learn_online(DRIFT, 5, updates_per_episode=1, env_kwargs=limited)
    with pytest.raises(ConfigError, match="plays up to 15"):
        model.learn_online(DRIFT, 5, updates_per_episode=1, env_kwargs=limited, longest_episode=20)
    with pytest.raises(ConfigError, match="plays without a limit"):
        model.learn_online(DRIFT, 5, updates_per_episode=1, env_kwargs={"max_episode_steps": -1})
    # The smaller of the two counts: the environment cuts its episodes before they are an error.
    model.learn_online(DRIFT, 5, updates_per_episode=1, env_kwargs={"max_episode_steps": 14}, longest_episode=200)
