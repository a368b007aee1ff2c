"""Saving, loading, resuming, exporting GTrXLSAC, and what Stable-Baselines3 expects of it."""

from collections.abc import Callable
from contextlib import suppress
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from gymnasium import spaces
from stable_baselines3.common.callbacks import CheckpointCallback, EvalCallback
from stable_baselines3.common.evaluation import evaluate_policy
from stable_baselines3.common.logger import Logger
from stable_baselines3.common.vec_env import DummyVecEnv, VecEnv, VecMonitor, VecNormalize

from rltransformers.agents import GTrXLDQN, GTrXLSAC, load_agent
from rltransformers.core.checkpoint import load_checkpoint, save_checkpoint
from rltransformers.core.errors import CheckpointError, ConfigError
from rltransformers.envs import make_vec_env
from rltransformers.policies import steps
from rltransformers.policies.sac_policy import GTrXLSACPolicy
from rltransformers.training.online.stored_agent import settings_of
from tests.agents.replayed import replay_of
from tests.agents.soft import BOX, MIXED, SPACES, soft, vector, walks
from tests.agents.test_export import assert_file_equals_eager
from tests.agents.test_gtrxl_ppo_checkpoint import Rows, SaveAndStop, assert_equal, everything
from tests.agents.tiny_envs import AnySpace
from tests.export.stand_in import StandIn

STEPS = 4 * 24


def walking() -> VecEnv:
    env = walks(MIXED)
    env.seed(0)
    return VecMonitor(env)


def cues() -> VecEnv:
    return make_vec_env("rltransformers/CueRecall-v0", 4, seed=0, env_kwargs={"delay": 5, "shortest_delay": 1})


@pytest.mark.parametrize(
    ("settings", "normalized", "make"),
    [
        ({"ent_coef": "auto_0.5"}, True, walking),
        ({"policy": {"shared_backbone": True}, "memory_refresh": "update"}, False, walking),
        ({"policy": {"n_critics": 3}, "ent_coef": 0.2}, False, cues),
    ],
)
def test_stopping_and_resuming_is_the_same_run_as_not_stopping(
    tmp_path: Path, settings: dict[str, Any], normalized: bool, make: Callable[[], VecEnv]
) -> None:
    """Weights, targets, temperature, both optimizers, generators, replay, statistics, place and logged metrics."""

    def begun() -> GTrXLSAC:
        env = VecNormalize(make()) if normalized else make()
        line = {"start": 1e-2, "end": 0.0}
        model = soft(env, learning_rate=line, learning_starts=40, gradient_steps=2, scale_rewards=True, **settings)
        model.set_logger(Logger(None, [Rows()]))
        return model

    def logged(model: GTrXLSAC) -> list[dict[str, Any]]:
        (rows,) = model.logger.output_formats
        assert isinstance(rows, Rows)
        return rows.rows

    straight = begun().learn(4 * STEPS, log_interval=5)
    stopped = begun()
    with suppress(KeyboardInterrupt):
        stopped.learn(4 * STEPS, callback=SaveAndStop(2 * STEPS, tmp_path / "half"), log_interval=5)
    np.random.rand(3), torch.rand(3)  # whatever happens in between
    resumed = GTrXLSAC.load(tmp_path / "half", env=stopped.get_env(), device="cpu", force_reset=False)
    resumed.set_logger(Logger(None, [Rows()]))
    assert float(resumed.temperature.value) == float(stopped.temperature.value)
    assert resumed.num_timesteps == 2 * STEPS and replay_of(resumed).size() == replay_of(stopped).size() > 100
    resumed.learn(2 * STEPS, reset_num_timesteps=False, log_interval=5)
    assert resumed.num_timesteps == straight.num_timesteps == 4 * STEPS
    assert_equal(everything(resumed), everything(straight))
    assert_equal(logged(stopped) + logged(resumed), logged(straight))
    assert len(logged(straight)) > 3


def test_temperature_targets_and_both_optimizers_are_in_the_file_and_among_the_parameters(tmp_path: Path) -> None:
    model = soft(learning_rate=1e-2, ent_coef="auto_0.3").learn(STEPS)
    model.save(tmp_path / "model")
    tensors = load_checkpoint(tmp_path / "model").tensors
    assert float(tensors["temperature"]["log_ent_coef"].exp()) == pytest.approx(float(model.temperature.value))
    assert float(model.temperature.value) != pytest.approx(0.3, abs=1e-4)
    assert tensors["temperature_optimizer"]["state"][0]["step"] == model._n_updates
    target = [value for name, value in tensors["policy"].items() if name.startswith("target.")]
    assert torch.equal(
        torch.cat([each.flatten() for each in target]), vector(model.policy.target.state_dict().values())
    )
    other = soft(seed=5)
    other.set_parameters(model.get_parameters())
    assert float(other.temperature.value) == float(model.temperature.value)
    assert set(model.get_parameters()) == {"policy", "policy.optimizer", "temperature", "temperature_optimizer"}
    damages: dict[str, Any] = {"temperature": {}, "temperature_optimizer": {"state": {}, "param_groups": []}}
    for name, value in damages.items():
        save_checkpoint(
            tmp_path / "bad", "GTrXLSAC", load_checkpoint(tmp_path / "model").settings, tensors | {name: value}
        )
        with pytest.raises(CheckpointError, match="temperature"):
            GTrXLSAC.load(tmp_path / "bad", env=walks(), device="cpu")
    loaded = GTrXLSAC.load(tmp_path / "model", env=walks(), device="cpu", ent_coef=0.7)
    assert float(loaded.learn(STEPS, reset_num_timesteps=False).temperature.value) == pytest.approx(0.7)


def test_a_file_holds_the_temperature_as_it_is_by_now(tmp_path: Path) -> None:
    soft(ent_coef="auto_0.2").save(tmp_path / "model")
    for ent_coef, value in ((0.5, 0.5), ("auto", 0.2)):
        loaded = GTrXLSAC.load(tmp_path / "model", ent_coef=ent_coef)
        assert float(loaded.temperature.value) == pytest.approx(value)
    with pytest.raises(ConfigError, match="ent_coef: the first value of what the file holds"):
        GTrXLSAC.load(tmp_path / "model", ent_coef="auto_0.5")


@pytest.mark.parametrize("fixed", [0.0, 0.2])
def test_a_temperature_that_was_fixed_is_learned_from_its_first_value_on(fixed: float, tmp_path: Path) -> None:
    soft(ent_coef="auto_0.3").learn(STEPS).save(tmp_path / "model")
    GTrXLSAC.load(tmp_path / "model", ent_coef=fixed, device="cpu").save(tmp_path / "model")
    for ent_coef, value in (("auto", 1.0), ("auto_0.1", 0.1)):
        loaded = GTrXLSAC.load(tmp_path / "model", env=walks(), device="cpu", ent_coef=ent_coef)
        assert float(loaded.temperature.value) == pytest.approx(value)
        assert not loaded.temperature_optimizer.state
        assert float(loaded.learn(STEPS).temperature.value) != pytest.approx(value, rel=1e-6)


def test_every_group_of_a_loaded_optimizer_has_the_rate_that_it_was_saved_with(tmp_path: Path) -> None:
    """Also before an update sets them: a run that was killed behind its last one ends with the same file."""
    model = soft(cues(), learning_rate=1e-3, encoder_rate=0.5, learning_starts=40)
    model.learn(STEPS)
    rates = [group["lr"] for group in model.policy.optimizer.param_groups]
    assert set(rates) == {1e-3, 5e-4}
    model.save(tmp_path / "sac.zip")
    loaded = GTrXLSAC.load(tmp_path / "sac.zip", env=cues())
    assert [group["lr"] for group in loaded.policy.optimizer.param_groups] == rates


def test_a_replay_can_be_saved_and_loaded_by_itself(tmp_path: Path) -> None:
    """Of any actions, those of Boxes of integers too."""
    model = soft(walks(MIXED)).learn(STEPS)
    model.save_replay_buffer(tmp_path / "replay")
    other = soft(walks(MIXED), seed=5)
    other.load_replay_buffer(tmp_path / "replay")
    for path, leaf in replay_of(other).actions.items():
        assert torch.equal(leaf, replay_of(model).actions[path])
    assert other.learn(STEPS, reset_num_timesteps=False)._n_updates > 0
    with pytest.raises(ConfigError, match="another environment: its action_space"):
        soft(walks(BOX)).load_replay_buffer(tmp_path / "replay")


def test_settings_come_back_and_other_agents_refuse_the_file(tmp_path: Path) -> None:
    settings: dict[str, Any] = {
        "buffer_size": 4 * 77,
        "learning_starts": 3,
        "batch_size": 5,
        "segment_length": 6,
        "burn_in": 8,
        "train_freq": 7,
        "gradient_steps": 3,
        "encoder_rate": 0.1,
        "tau": 0.4,
        "gamma": 0.8,
        "n_step": 4,
        "ent_coef": "auto_0.2",
        "target_entropy": -3.5,
        "target_critics": 1,
        "max_grad_norm": 0.7,
        "memory_refresh": "update",
        "checkpoint_replay": False,
    }
    soft(policy={"n_critics": 3, "layer_norm": True}, **settings).save(tmp_path / "model")
    loaded = load_agent(tmp_path / "model", device="cpu")
    assert isinstance(loaded, GTrXLSAC) and loaded.policy.n_critics == 3
    for name, value in settings.items():
        assert settings_of(loaded)[name] == value
    with pytest.raises(CheckpointError, match="load it with GTrXLSAC"):
        GTrXLDQN.load(tmp_path / "model")


@pytest.mark.parametrize("name", sorted(SPACES))
def test_policies_are_saved_alone_and_evaluate_what_they_did(name: str, tmp_path: Path) -> None:
    model = soft(walks(SPACES[name]), policy={"previous_reward": False}).learn(STEPS)
    model.policy.save(tmp_path / "policy")
    loaded = GTrXLSACPolicy.load(tmp_path / "policy", device="cpu")
    states: list[Any] = [None, None]
    observations = np.random.default_rng(0).normal(size=(6, 1, 3)).astype(np.float32)
    taken = []
    for observation in observations:
        actions = []
        for i, policy in enumerate((model.policy, loaded)):
            action, states[i] = policy.predict(observation, states[i], deterministic=True)
            actions.append(action[0])
        taken.append(actions[0])
        assert_equal_actions(*actions)
    stacked: Any = np.stack(taken) if not isinstance(taken[0], dict) else {
        key: np.stack([each[key] for each in taken]) for key in taken[0]
    }  # fmt: skip
    one = {key: leaf[None] for key, leaf in stacked.items()} if isinstance(stacked, dict) else stacked[None]
    output = model.policy.evaluate_actions(np.swapaxes(observations, 0, 1), one)
    assert output.log_prob.shape == (1, 6) and output.value.shape == (1, 6)
    assert (output.entropy is None) is (name != "choices")


def assert_equal_actions(a: Any, b: Any) -> None:
    if isinstance(a, dict):
        for key in a:
            np.testing.assert_allclose(a[key], b[key], atol=1e-6)
    else:
        np.testing.assert_allclose(a, b, atol=1e-6)


def test_callbacks_of_stable_baselines_work_and_metrics_are_logged(tmp_path: Path) -> None:
    model = soft(VecMonitor(walks()), policy={"previous_reward": False}, tensorboard_log=str(tmp_path / "board"))
    evaluates = EvalCallback(VecMonitor(walks()), eval_freq=20, n_eval_episodes=3, verbose=0)
    saves = CheckpointCallback(40, str(tmp_path), save_replay_buffer=True)
    model.learn(3 * STEPS, callback=[evaluates, saves], log_interval=3)
    assert np.isfinite(evaluates.last_mean_reward)
    assert list((tmp_path / "board").rglob("events*")) and list(tmp_path.glob("rl_model_replay_buffer_160_steps.pkl"))
    mean, _ = evaluate_policy(model, VecMonitor(walks()), 4)
    assert np.isfinite(mean)
    rows = Rows()
    model.set_logger(Logger(None, [rows]))
    model.learn(3 * STEPS, log_interval=4)
    names = {"actor_loss", "critic_loss", "ent_coef", "ent_coef_loss", "entropy", "td_error", "q_value", "target"}
    names |= {"actor_grad_norm", "critic_grad_norm", "learning_rate", "n_updates"}
    assert {f"train/{name}" for name in names} | {"replay/size", "memory/layer0/lookback"} <= set(rows.rows[-1])


@pytest.mark.slow
def test_files_equal_eager_acting_and_hold_no_target_network(tmp_path: Path) -> None:
    model = soft(VecNormalize(walks()), policy={"first_step": False, "previous_reward": False}).learn(96)
    for name, tolerance in (("policy.pt2", 1e-6), ("policy.onnx", 1e-5)):
        model.export(tmp_path / name)
        assert_file_equals_eager(tmp_path / name, model, 100, 3, tolerance)
    held = torch.export.load(tmp_path / "policy.pt2")
    assert not any("target" in name for name in held.state_dict)


@pytest.mark.slow
def test_files_of_mixed_actions_equal_eager_acting(tmp_path: Path) -> None:
    model = soft(walks(MIXED), policy={"previous_reward": False, "shared_backbone": True}).learn(96)
    model.export(tmp_path / "policy.onnx")
    assert_file_equals_eager(tmp_path / "policy.onnx", model, 50, 3, 1e-5)


def test_compiled_acting_is_eager_acting(monkeypatch: pytest.MonkeyPatch) -> None:
    """Random actions before learning starts included, which the next step reads."""
    monkeypatch.setattr(steps, "CompiledStep", StandIn)
    eager, compiled = (soft(learning_starts=50, acting=acting).learn(96) for acting in ("eager", "compiled"))
    assert isinstance(compiled.policy.machine_code._compiled, StandIn)  # type: ignore[union-attr]
    assert torch.equal(vector(eager.policy.parameters()), vector(compiled.policy.parameters()))
    assert torch.equal(replay_of(eager).actions[""], replay_of(compiled).actions[""])


def test_observations_of_any_space_are_learned_from(tmp_path: Path) -> None:
    nested = spaces.Dict(
        {"a": spaces.Tuple([spaces.Discrete(3, start=4)]), "b": spaces.Box(0, 255, (7, 7, 3), np.uint8)}
    )
    env = DummyVecEnv([lambda: AnySpace(spaces.MultiBinary(3), spaces.Box(-1.0, 1.0, (1, 2)))] * 2)
    for place in (AnySpace(nested, BOX), env):
        model = soft(place, buffer_size=2 * 60).learn(60)
        assert model._n_updates > 3
        model.save(tmp_path / "agent")
        loaded = GTrXLSAC.load(tmp_path / "agent", place, device="cpu")
        assert loaded.learn(8, reset_num_timesteps=False).num_timesteps > 60


def test_defaults_need_no_word() -> None:
    model = GTrXLSAC("GTrXLSACPolicy", "Pendulum-v1", device="cpu")
    assert model.context == 128 and model.policy.config.memory == 64
    assert model.learn(8).num_timesteps == 8
