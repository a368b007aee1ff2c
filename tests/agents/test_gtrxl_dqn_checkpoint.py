"""Saving, loading, resuming and repeating runs of GTrXLDQN, and everything else Stable-Baselines3 expects of it."""

from collections.abc import Callable
from contextlib import suppress
from pathlib import Path
from typing import Any, get_args

import numpy as np
import pytest
import torch
from gymnasium import spaces
from gymnasium.vector import AutoresetMode, SyncVectorEnv
from stable_baselines3.common.callbacks import CheckpointCallback, EvalCallback
from stable_baselines3.common.evaluation import evaluate_policy
from stable_baselines3.common.logger import Logger
from stable_baselines3.common.vec_env import DummyVecEnv, VecEnv, VecFrameStack, VecMonitor, VecNormalize

from rltransformers.agents import GTrXLDQN, GTrXLPPO
from rltransformers.core.checkpoint import load_checkpoint, save_checkpoint
from rltransformers.core.errors import CheckpointError, ConfigError
from rltransformers.envs import make_vec_env
from rltransformers.training.online.off_policy_agent import ReplayMemoryRefresh
from rltransformers.training.online.stored_agent import settings_of
from tests.agents.replayed import agent, collect, replay_of, strolls
from tests.agents.test_gtrxl_ppo_checkpoint import Rows, SaveAndStop, assert_equal, everything
from tests.agents.tiny_envs import AnySpace, Stroll

STEPS = 4 * 24


def walking() -> VecEnv:
    env = strolls()
    env.seed(0)
    return VecMonitor(env)


def cues() -> VecEnv:
    return make_vec_env("rltransformers/CueRecall-v0", 4, seed=0, env_kwargs={"delay": 5, "shortest_delay": 1})


@pytest.mark.parametrize("memory_refresh", get_args(ReplayMemoryRefresh))
@pytest.mark.parametrize(("prioritized", "normalized", "make"), [(True, False, cues), (False, True, walking)])
def test_stopping_and_resuming_is_the_same_run_as_not_stopping(
    tmp_path: Path, memory_refresh: str, prioritized: bool, normalized: bool, make: Callable[[], VecEnv]
) -> None:
    """Weights, target network, optimizer, generators, replay, statistics, place and logged metrics."""

    def begun() -> GTrXLDQN:
        model = agent(
            VecNormalize(make()) if normalized else make(),
            memory_refresh=memory_refresh,
            prioritized=prioritized,
            learning_rate={"start": 1e-2, "end": 0.0},
            exploration={"start": 1.0, "end": 0.1, "fraction": 0.7},
            target_update_interval=3,
            learning_starts=40,
            gradient_steps=2,
            scale_rewards=True,
        )
        model.set_logger(Logger(None, [Rows()]))
        return model

    def logged(model: GTrXLDQN) -> list[dict[str, Any]]:
        (rows,) = model.logger.output_formats
        assert isinstance(rows, Rows)
        return rows.rows

    straight = begun().learn(4 * STEPS, log_interval=5)
    stopped = begun()
    with suppress(KeyboardInterrupt):
        stopped.learn(4 * STEPS, callback=SaveAndStop(2 * STEPS, tmp_path / "half"), log_interval=5)
    np.random.rand(3), torch.rand(3)  # whatever happens in between
    resumed = GTrXLDQN.load(tmp_path / "half", env=stopped.get_env(), device="cpu", force_reset=False)
    resumed.set_logger(Logger(None, [Rows()]))
    assert resumed.num_timesteps == 2 * STEPS and replay_of(resumed).size() == replay_of(stopped).size() > 100
    resumed.learn(2 * STEPS, reset_num_timesteps=False, log_interval=5)
    assert resumed.num_timesteps == straight.num_timesteps == 4 * STEPS
    assert_equal(everything(resumed), everything(straight))
    assert_equal(logged(stopped) + logged(resumed), logged(straight))
    assert len(logged(straight)) > 3


def test_environments_that_tell_where_they_stand_resume_in_a_new_process(tmp_path: Path) -> None:
    straight = agent(VecNormalize(cues())).learn(4 * STEPS)
    half = agent(VecNormalize(cues()))
    with suppress(KeyboardInterrupt):
        half.learn(4 * STEPS, callback=SaveAndStop(2 * STEPS, tmp_path / "half"))
    resumed = GTrXLDQN.load(tmp_path / "half", env=cues(), device="cpu", force_reset=None)
    resumed.learn(2 * STEPS, reset_num_timesteps=False)
    assert_equal(everything(resumed), everything(straight))


def test_a_run_that_begins_new_episodes_keeps_its_replay(tmp_path: Path) -> None:
    model = agent().learn(STEPS)
    model.save(tmp_path / "model")
    loaded = GTrXLDQN.load(tmp_path / "model", env=strolls(), device="cpu")
    held = replay_of(loaded).written.copy()
    assert held.tolist() == replay_of(model).written.tolist()
    loaded.learn(STEPS, reset_num_timesteps=False)
    replay = replay_of(loaded)
    for row in range(4):  # whatever ran when it was saved ends in a last observation
        assert bool(replay.first[row, held[row] % replay.rows])
        newest = (held[row] - 1) % replay.rows
        assert bool(replay.terminal[row, newest]) or not bool(replay.counts[row, newest])


def test_a_checkpoint_without_replay_is_small_and_fills_a_new_one(tmp_path: Path) -> None:
    model = agent(checkpoint_replay=False).learn(STEPS)
    model.save(tmp_path / "model")
    assert load_checkpoint(tmp_path / "model").tensors["replay"] is None
    loaded = GTrXLDQN.load(tmp_path / "model", env=strolls(), device="cpu")
    assert replay_of(loaded).size() == 0 and not loaded.checkpoint_replay
    assert loaded.learn(STEPS, reset_num_timesteps=False)._n_updates > model._n_updates


def test_a_replay_can_be_saved_and_loaded_by_itself(tmp_path: Path) -> None:
    model = agent().learn(STEPS)
    model.save_replay_buffer(tmp_path / "replay.pkl")
    other = agent(seed=5)
    collect(other, 3)  # in the middle of episodes
    other.load_replay_buffer(tmp_path / "replay.pkl")
    assert torch.equal(replay_of(other).observations[""], replay_of(model).observations[""])
    held = replay_of(other).written.copy()
    other.learn(2 * STEPS, reset_num_timesteps=False)
    for row in range(4):
        assert bool(replay_of(other).first[row, held[row] % replay_of(other).rows])
    with pytest.raises(ConfigError, match="same environments, buffer_size and segment_length"):
        agent(buffer_size=4 * 100).load_replay_buffer(tmp_path / "replay.pkl")
    with pytest.raises(ConfigError, match="truncate_last_traj=True"):
        other.load_replay_buffer(tmp_path / "replay.pkl", truncate_last_traj=False)
    model.save(tmp_path / "model")
    with pytest.raises(CheckpointError, match="is a GTrXLDQN checkpoint"):
        other.load_replay_buffer(tmp_path / "model")
    with pytest.raises(ConfigError, match="no environment"):
        GTrXLDQN.load(tmp_path / "model").save_replay_buffer(tmp_path / "none")


@pytest.mark.parametrize(
    ("observations", "actions", "words"),
    [
        (spaces.Box(-1, 1, (3,)), spaces.Discrete(3), "its action_space"),
        (spaces.Box(-1, 1, (3,)), spaces.Discrete(2, start=1), "its action_space"),
        (spaces.Box(-1, 1, (4,)), spaces.Discrete(2), "its observations"),
        (spaces.Box(0, 9, (3,), np.int16), spaces.Discrete(2), "its observations"),
    ],
)
def test_a_replay_of_another_environment_is_refused(
    observations: spaces.Space[Any], actions: spaces.Space[Any], words: str, tmp_path: Path
) -> None:
    def made(observed: spaces.Space[Any], acting: spaces.Space[Any]) -> GTrXLDQN:
        return agent(DummyVecEnv([lambda: AnySpace(observed, acting)] * 4))

    made(spaces.Box(-1, 1, (3,)), spaces.Discrete(2)).learn(STEPS).save_replay_buffer(tmp_path / "replay")
    made(spaces.Box(-1, 1, (3,)), spaces.Discrete(2)).load_replay_buffer(tmp_path / "replay")
    with pytest.raises(ConfigError, match=f"is a replay of another environment: {words}"):
        made(observations, actions).load_replay_buffer(tmp_path / "replay")


def test_a_damaged_replay_is_named(tmp_path: Path) -> None:
    agent().learn(STEPS).save(tmp_path / "model")
    whole = load_checkpoint(tmp_path / "model")
    rows = whole.tensors["replay"]["rows"]
    for name, value, reason in (
        ("rewards", rows["rewards"][:, :-1], "replay.(first|written|observations|actions)"),
        ("written", rows["written"] + 1000, "replay.written says"),
        ("priorities", rows["priorities"][:2], "replay.priorities is"),
        ("largest_priority", -1.0, "replay.largest_priority"),
        ("counts", rows["counts"].float(), "replay.counts is"),
    ):
        damaged = whole.tensors | {"replay": whole.tensors["replay"] | {"rows": rows | {name: value}}}
        save_checkpoint(tmp_path / "bad", "GTrXLDQN", whole.settings, damaged)
        with pytest.raises(CheckpointError, match=reason):
            GTrXLDQN.load(tmp_path / "bad", env=strolls(), device="cpu")


def test_an_agent_without_environment_predicts_keeps_its_replay_and_takes_an_environment_later(tmp_path: Path) -> None:
    model = agent(policy={}).learn(STEPS)
    model.save(tmp_path / "model")
    loaded = GTrXLDQN.load(tmp_path / "model.zip", device="cpu")
    states: list[Any] = [None, None]
    for observation in torch.randn(6, 3).numpy():
        actions = []
        for i, one in enumerate((model, loaded)):
            action, states[i] = one.predict(observation, states[i], deterministic=True)
            actions.append(action)
        assert actions[0] == actions[1]
    with pytest.raises(ConfigError, match="no environment to learn in"):
        loaded.learn(10)
    loaded.save(tmp_path / "again")
    again = GTrXLDQN.load(tmp_path / "again", device="cpu")
    again.set_env(strolls())
    assert torch.equal(replay_of(again).rewards, replay_of(model).rewards)
    assert again._stored["replay"] is None  # not a second time beside the replay itself
    assert again.learn(STEPS, reset_num_timesteps=False).num_timesteps == 2 * model.num_timesteps


@pytest.mark.parametrize("force_reset", [True, False])
def test_an_environment_that_is_set_after_loading_is_normalized_as_one_given_to_load(
    tmp_path: Path, force_reset: bool
) -> None:
    agent(VecNormalize(strolls(), clip_obs=3.0)).learn(STEPS).save(tmp_path / "model")
    GTrXLDQN.load(tmp_path / "model", device="cpu", force_reset=force_reset).save(tmp_path / "again")
    expected = GTrXLDQN.load(tmp_path / "model", env=strolls(), device="cpu", force_reset=force_reset)
    loaded = GTrXLDQN.load(tmp_path / "again", device="cpu", force_reset=force_reset)
    loaded.set_env(strolls(), force_reset=force_reset)
    assert_equal(everything(loaded), everything(expected))
    for model in (loaded, expected):
        assert model.env is not None
        model.env.seed(0)
        model.env.unwrapped.reset()  # VecNormalize has seen nothing: what goes on begins with the stored observation
        assert model.actor().normalizes and model.learn(STEPS, reset_num_timesteps=False)._n_updates > 0
    assert_equal(everything(loaded), everything(expected))


@pytest.mark.parametrize("change", ["environments", "buffer_size"])
def test_a_replay_that_does_not_fit_is_left_out_with_a_warning(tmp_path: Path, change: str) -> None:
    agent().learn(STEPS).save(tmp_path / "model")
    env = strolls((5, 9)) if change == "environments" else strolls()
    settings: dict[str, Any] = {"buffer_size": 4 * 90} if change == "buffer_size" else {}
    with pytest.warns(UserWarning, match="replay of the checkpoint is left out.*same number of environments, buffer_"):
        loaded = GTrXLDQN.load(tmp_path / "model", env=env, device="cpu", **settings)
    assert replay_of(loaded).size() == 0
    agent().save(tmp_path / "empty")
    GTrXLDQN.load(tmp_path / "empty", env=env, device="cpu", **settings)  # nothing is lost, nothing is said


def test_a_file_with_more_segments_than_can_be_drawn_by_priority_predicts_and_goes_on_without_them(
    tmp_path: Path,
) -> None:
    """Such a run of an earlier release stopped when it had filled that many; its weights are good."""
    agent(prioritized=True).learn(STEPS).save(tmp_path / "model")
    file = load_checkpoint(tmp_path / "model")
    settings = file.settings | {"buffer_size": 2**25, "segment_length": 1}
    save_checkpoint(tmp_path / "old", file.kind, settings, file.tensors | {"replay": None})
    loaded = GTrXLDQN.load(tmp_path / "old", device="cpu")
    loaded.predict(np.zeros(3, np.float32))
    with pytest.raises(ConfigError, match="prioritized draws from at most"):
        loaded.set_env(strolls())
    with pytest.raises(ConfigError, match="or set prioritized=False"):
        GTrXLDQN.load(tmp_path / "old", env=strolls(), device="cpu")
    again = GTrXLDQN.load(tmp_path / "old", env=strolls(), device="cpu", prioritized=False, buffer_size=4 * 60)
    assert again.learn(STEPS, reset_num_timesteps=False)._n_updates > loaded._n_updates


def test_a_seed_begins_the_random_streams(tmp_path: Path) -> None:
    model = agent(cues()).learn(STEPS)
    model.save(tmp_path / "half")
    weights, drawn = [], []
    for seed in (1, 1, 2):
        loaded = GTrXLDQN.load(tmp_path / "half", env=cues(), device="cpu", force_reset=None, seed=seed)
        loaded.learn(STEPS, reset_num_timesteps=False)
        weights.append(torch.nn.utils.parameters_to_vector(loaded.policy.parameters()).detach())
        model.set_random_seed(seed)
        drawn.append(model._action_generator.get_state())
    for found in (weights, drawn):
        assert torch.equal(found[0], found[1]) and not torch.equal(found[1], found[2])


def test_settings_come_back(tmp_path: Path) -> None:
    settings: dict[str, Any] = {
        "buffer_size": 4 * 77,
        "learning_starts": 3,
        "batch_size": 5,
        "segment_length": 6,
        "burn_in": 8,
        "train_freq": 7,
        "gradient_steps": 3,
        "target_update_interval": 11,
        "tau": 0.4,
        "gamma": 0.8,
        "n_step": 4,
        "value_rescale": True,
        "prioritized": True,
        "exploration": {"start": 0.9, "end": 0.2, "fraction": 0.3},
        "max_grad_norm": 0.7,
        "memory_refresh": "update",
    }
    agent(**settings).save(tmp_path / "model")
    loaded = GTrXLDQN.load(tmp_path / "model", env=strolls(), device="cpu")
    for name, value in settings.items():
        assert settings_of(loaded)[name] == value
    agent(exploration="ladder").save(tmp_path / "ladder")
    assert GTrXLDQN.load(tmp_path / "ladder", env=strolls()).exploration == "ladder"
    with pytest.raises(CheckpointError, match=r"load it with GTrXLDQN\.load, not GTrXLPPO\.load"):
        GTrXLPPO.load(tmp_path / "model")
    with pytest.raises(CheckpointError, match=r"load it with GTrXLDQN\.load, not load_replay_buffer of an agent"):
        loaded.load_replay_buffer(tmp_path / "model")
    loaded.save_replay_buffer(tmp_path / "replay")
    with pytest.raises(CheckpointError, match=r"load it with load_replay_buffer of an agent, not GTrXLDQN\.load"):
        GTrXLDQN.load(tmp_path / "replay")


@pytest.mark.parametrize(
    ("setting", "message"),
    [
        ({"n_step": 6}, "n_step must be"),
        ({"tau": 0.0}, "tau must be"),
        ({"exploration": 1.5}, "exploration is a probability, got 1.5"),
        ({"exploration": {"start": 1.0, "end": 2.0}}, "got 2.0 at progress 0"),
        ({"exploration": "greedy"}, "exploration must be"),
        ({"buffer_size": 60}, "buffer_size must be at least"),
        ({"buffer_size": 10**15}, "lower buffer_size"),
        ({"prioritized": True, "buffer_size": 2**26, "segment_length": 2, "n_step": 1},
         "from at most 16,777,216 segments, .* are 33,554,432; raise segment_length"),
        ({"gradient_steps": 0}, "gradient_steps must be"),
        ({"policy": {"shared_backbone": False}}, "shared_backbone"),
        ({"backbone": {"dropout": 0.1}}, "must be 0 online"),
    ],
)  # fmt: skip
def test_a_setting_that_cannot_work_is_refused(setting: dict[str, Any], message: str) -> None:
    with pytest.raises(ConfigError, match=message):
        agent(**setting)


def test_the_same_seed_is_the_same_run_and_predicting_in_between_changes_nothing() -> None:
    def weights(model: GTrXLDQN) -> torch.Tensor:
        return torch.nn.utils.parameters_to_vector(model.policy.parameters()).detach()

    first, second, other = (agent(cues(), seed=seed).learn(STEPS) for seed in (3, 3, 4))
    assert torch.equal(weights(first), weights(second)) and not torch.equal(weights(first), weights(other))
    quiet, busy = agent(cues(), policy={}), agent(cues(), policy={})
    quiet.learn(STEPS).learn(STEPS, reset_num_timesteps=False)
    busy.learn(STEPS)
    for _ in range(5):
        busy.predict(busy.observation_space.sample())
    busy.learn(STEPS, reset_num_timesteps=False)
    assert torch.equal(weights(quiet), weights(busy))


def test_callbacks_of_stable_baselines_work(tmp_path: Path) -> None:
    model = agent(VecMonitor(strolls()), policy={}, tensorboard_log=str(tmp_path / "board"))
    evaluates = EvalCallback(VecMonitor(strolls()), eval_freq=20, n_eval_episodes=3, verbose=0)
    saves = CheckpointCallback(40, str(tmp_path), save_replay_buffer=True)
    model.learn(3 * STEPS, callback=[evaluates, saves], log_interval=3)
    assert np.isfinite(evaluates.last_mean_reward) and evaluates.n_calls == 3 * STEPS // 4
    (replay,) = tmp_path.glob("rl_model_replay_buffer_160_steps.pkl")
    agent(policy={}).load_replay_buffer(replay)
    assert GTrXLDQN.load(tmp_path / "rl_model_160_steps").num_timesteps == 160
    assert list((tmp_path / "board").rglob("events*"))
    mean, _ = evaluate_policy(model, VecMonitor(strolls()), 4)
    assert np.isfinite(mean)


def test_metrics_are_logged() -> None:
    model = agent()
    model.set_logger(Logger(None, [Rows()]))
    model.learn(3 * STEPS, log_interval=4)
    (rows,) = model.logger.output_formats
    names = set(rows.rows[-1])  # type: ignore[attr-defined]
    for name in ("loss", "td_loss", "td_error", "q_value", "target", "grad_norm", "n_updates", "learning_rate"):
        assert f"train/{name}" in names
    assert {"rollout/exploration_rate", "replay/size", "memory/layer0/lookback"} <= names


def test_vector_environments_of_gymnasium_train() -> None:
    for mode in AutoresetMode:
        env = SyncVectorEnv([Stroll] * 3, autoreset_mode=mode)
        assert agent(env, buffer_size=3 * 60).learn(60).num_timesteps == 72  # whole rounds of 6 steps


def test_nested_observations_and_actions_that_count_from_elsewhere_train() -> None:
    nested = spaces.Dict(
        {"a": spaces.Tuple([spaces.Discrete(3, start=4)]), "b": spaces.Box(0, 255, (7, 7, 3), np.uint8)}
    )
    model = agent(AnySpace(nested, spaces.Discrete(4, start=-1)), buffer_size=60).learn(60)
    assert model._n_updates > 3
    assert replay_of(model).observations["b"].dtype == torch.uint8


def test_vec_normalize_must_be_next_to_the_policy() -> None:
    with pytest.raises(ConfigError, match="make VecNormalize the outer wrapper"):
        agent(VecFrameStack(VecNormalize(strolls()), 2))


def test_defaults_need_no_word() -> None:
    model = GTrXLDQN("GTrXLQPolicy", "CartPole-v1", device="cpu")
    assert model.context == 128 and model.policy.config.memory == 64
    assert model.learn(8).num_timesteps == 8
