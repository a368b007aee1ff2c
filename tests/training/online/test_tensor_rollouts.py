"""Agents in environments of tensors learn from what they would learn from in numpy, and copy nothing."""

from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import gymnasium
import numpy as np
import pytest
import torch
from stable_baselines3.common.callbacks import BaseCallback, CheckpointCallback, EvalCallback, StopTrainingOnMaxEpisodes
from stable_baselines3.common.evaluation import evaluate_policy
from stable_baselines3.common.monitor import Monitor
from stable_baselines3.common.running_mean_std import RunningMeanStd
from stable_baselines3.common.vec_env import DummyVecEnv, VecEnv, VecNormalize
from torch.utils._python_dispatch import TorchDispatchMode

from rltransformers.agents import GTrXLDQN, GTrXLPPO, GTrXLSAC, GTrXLVMPO
from rltransformers.core.errors import ConfigError, DataError
from rltransformers.core.seeding import branch_seeds
from rltransformers.envs.tensors import Outcome, TensorVecEnv
from rltransformers.envs.tensors.tasks import CartPole, Pendulum
from tests.envs.tensors.twins import Seeded

N, STEPS, LIMIT = 3, 10, 7
POLICY = {"backbone": {"preset": "gtrxl", "width": 8, "layers": 2, "heads": 2, "memory": 4}}
ON = {"n_steps": STEPS, "n_epochs": 2, "policy_kwargs": POLICY, "seed": 0, "device": "cpu"}
OFF = {
    "segment_length": 4, "buffer_size": 400, "train_freq": 8, "batch_size": 4, "learning_starts": 40,
    "policy_kwargs": POLICY, "seed": 0, "device": "cpu",
}  # fmt: skip
AGENTS: dict[str, tuple[Any, dict[str, Any], str]] = {
    "PPO": (GTrXLPPO, ON, "CartPole-v1"),
    "PPO, epochs": (GTrXLPPO, ON | {"memory_refresh": "epoch"}, "CartPole-v1"),
    "PPO, rewards": (GTrXLPPO, ON | {"policy_kwargs": POLICY | {"previous_reward": True}}, "CartPole-v1"),
    "PPO, critic": (GTrXLPPO, ON | {"policy_kwargs": POLICY | {"shared_backbone": False}}, "CartPole-v1"),
    "PPO, Box": (GTrXLPPO, ON, "Pendulum-v1"),
    "V-MPO": (GTrXLVMPO, {name: value for name, value in ON.items() if name != "n_epochs"}, "Pendulum-v1"),
    "DQN": (GTrXLDQN, OFF, "CartPole-v1"),
    "SAC": (GTrXLSAC, OFF, "Pendulum-v1"),
}


def tensors(task: str) -> TensorVecEnv:
    kind: Any = {"CartPole-v1": CartPole, "Pendulum-v1": Pendulum}[task]
    return kind(N, device="cpu", max_episode_steps=LIMIT)


def twin(task: str) -> VecEnv:
    """The same environments in numpy, with the random numbers that an agent of seed 0 gives those in tensors."""
    seeds = branch_seeds(0, "environment", N)

    def make(row: int) -> gymnasium.Env[Any, Any]:
        return Monitor(Seeded(gymnasium.make(task, max_episode_steps=LIMIT), seeds[row]))

    return DummyVecEnv([lambda row=row: make(row) for row in range(N)])  # type: ignore[misc]


def numbers(value: Any, path: str = "") -> Iterator[tuple[str, torch.Tensor]]:
    """Every tensor in nested mappings."""
    if isinstance(value, dict):
        for name, part in value.items():
            yield from numbers(part, f"{path}/{name}")
    elif isinstance(value, torch.Tensor):
        yield path, value


@pytest.mark.parametrize("normalizes", [False, True])
@pytest.mark.parametrize("name", AGENTS)
def test_an_agent_learns_as_in_numpy(name: str, normalizes: bool) -> None:
    kind, settings, task = AGENTS[name]
    models = []
    for make in (tensors, twin):
        env = make(task)
        model = kind(next(iter(kind.policy_aliases)), VecNormalize(env, gamma=0.9) if normalizes else env, **settings)
        model.learn(4 * STEPS * N)
        models.append(model)
    ours, theirs = models
    assert ours.num_timesteps == theirs.num_timesteps
    for mine, other in zip(ours.ep_info_buffer, theirs.ep_info_buffer, strict=True):
        assert (mine["l"], mine["r"]) == (other["l"], pytest.approx(other["r"], abs=1e-4))
    parts = [_parts(model) for model in models]
    assert [path for path, _ in parts[0]] == [path for path, _ in parts[1]]
    for (path, mine), (_, other) in zip(*parts, strict=True):
        # Sums in another order: values of cut episodes are encoded in one pass, and physics is rounded by torch.
        np.testing.assert_allclose(mine, other, rtol=1e-4, atol=2e-5, err_msg=path)


def _parts(model: Any) -> list[tuple[str, torch.Tensor]]:
    carry = model.carry
    parts: dict[str, Any] = {"policy": model.policy.state_dict(), "acting": carry.acting.tensors()}
    if carry.segment is not None:
        segment = vars(carry.segment)
        parts["segment"] = {name: value for name, value in segment.items() if name != "memory"}
        parts["memory"] = segment["memory"].tensors()
    if getattr(model, "replay_buffer", None) is not None:
        parts["replay"] = model.replay_buffer.state_dict()
    if model._scale is not None:
        parts["scale"] = model._scale.tensors() | {"returns": torch.as_tensor(model._scale.returns)}
    if (normalizer := model.get_vec_normalize_env()) is not None:
        parts["normalizer"] = {
            "mean": torch.as_tensor(normalizer.obs_rms.mean),
            "var": torch.as_tensor(normalizer.obs_rms.var),
        }
        parts["normalizer"]["returns"] = torch.as_tensor(normalizer.ret_rms.var)
    return list(numbers(parts))


class Copies(TorchDispatchMode):
    """Counts numbers and arrays that are read out of tensors: what would be a copy to the host from a device."""

    def __init__(self) -> None:
        super().__init__()
        self.count = 0

    def __torch_dispatch__(self, function: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        if "_local_scalar_dense" in str(function) or "nonzero" in str(function):
            self.count += 1
        return function(*args, **(kwargs or {}))


@contextmanager
def counted_copies(monkeypatch: pytest.MonkeyPatch) -> Iterator[Copies]:
    """What a block reads out of tensors, in whatever way."""
    copies = Copies()
    with monkeypatch.context() as patch, copies:
        for name in ("numpy", "tolist", "cpu", "__array__"):
            method = getattr(torch.Tensor, name)

            def counting(self: Any, *arguments: Any, method: Any = method, **keywords: Any) -> Any:
                copies.count += 1
                return method(self, *arguments, **keywords)

            patch.setattr(torch.Tensor, name, counting)
        yield copies


@pytest.mark.parametrize("normalizes", [False, True])
@pytest.mark.parametrize("name", AGENTS)
def test_a_step_copies_nothing_to_the_host(name: str, normalizes: bool, monkeypatch: pytest.MonkeyPatch) -> None:
    kind, settings, task = AGENTS[name]
    length = "n_steps" if "n_steps" in settings else "train_freq"
    counts = []
    for steps in (8, 24):
        env: Any = VecNormalize(tensors(task)) if normalizes else tensors(task)
        model = kind(next(iter(kind.policy_aliases)), env, **settings | {length: steps})
        model.learn(steps * N)
        _, callback = model._setup_learn(10**6, None, False)
        rollout = (model.rollout_buffer, steps) if length == "n_steps" else (model.train_freq, model.replay_buffer)
        with counted_copies(monkeypatch) as copies:
            model.collect_rollouts(model.env, callback, *rollout)
        counts.append(copies.count)
    assert counts[0] == counts[1], "copies grow with the steps of a rollout"
    assert counts[0] < 40


@pytest.mark.skipif(not torch.cuda.is_available(), reason="needs a GPU")
def test_the_profiler_sees_no_copy_per_step_on_a_gpu() -> None:
    counts = []
    for steps in (8, 40):
        settings = ON | {"device": "cuda", "n_steps": steps}
        model = GTrXLPPO("GTrXLPolicy", CartPole(N, device="cuda", max_episode_steps=LIMIT), **settings)  # type: ignore[arg-type]
        model.learn(steps * N)
        _, callback = model._setup_learn(10**6, None, False)
        activities = [torch.profiler.ProfilerActivity.CPU, torch.profiler.ProfilerActivity.CUDA]
        with torch.profiler.profile(activities=activities) as profile:
            model.collect_rollouts(model.env, callback, model.rollout_buffer, steps)  # type: ignore[arg-type]
        counts.append(sum("DtoH" in event.name for event in profile.events()))
    assert counts[0] == counts[1]


def test_the_first_ratio_is_one() -> None:
    model = GTrXLPPO("GTrXLPolicy", tensors("CartPole-v1"), **ON)  # type: ignore[arg-type]
    model.learn(3 * STEPS * N)
    assert model.logger.name_to_value["train/first_ratio_error"] < 1e-5


@pytest.mark.parametrize("make", [tensors, twin])
def test_a_rollout_under_autocast_keeps_float32(make: Any) -> None:
    model: Any = GTrXLPPO("GTrXLPolicy", make("CartPole-v1"), **ON)  # type: ignore[arg-type]
    _, callback = model._setup_learn(10**6, None, False)
    with torch.autocast("cpu", torch.bfloat16):
        model.collect_rollouts(model.env, callback, model.rollout_buffer, STEPS)
    segment = vars(model.carry.segment)
    for name in ("log_probs", "values", "advantages", "returns", "rewards"):
        assert segment[name].dtype == torch.float32, name


@pytest.mark.parametrize("name", ["PPO", "PPO, rewards", "V-MPO", "DQN", "SAC"])
def test_a_resumed_run_equals_one_that_never_stopped(name: str, tmp_path: Path) -> None:
    kind, settings, task = AGENTS[name]
    steps = 4 * STEPS * N
    whole = kind(next(iter(kind.policy_aliases)), VecNormalize(tensors(task)), **settings).learn(2 * steps)
    kind(next(iter(kind.policy_aliases)), VecNormalize(tensors(task)), **settings).learn(
        2 * steps, callback=_Stops(steps, tmp_path)
    )
    resumed = kind.load(tmp_path / "model", env=tensors(task), device="cpu", force_reset=None)
    assert resumed.is_in_episodes
    resumed.learn(2 * steps - resumed.num_timesteps, reset_num_timesteps=False)
    assert whole.num_timesteps == resumed.num_timesteps
    for (path, mine), (_, other) in zip(_parts(whole), _parts(resumed), strict=True):
        assert torch.equal(mine, other), path


class _Stops(BaseCallback):
    """Saves where a rollout begins at a step, and ends training."""

    def __init__(self, step: int, folder: Path) -> None:
        super().__init__()
        self.step, self.path, self.over = step, folder / "model", False

    def _on_rollout_start(self) -> None:
        if self.num_timesteps >= self.step and not self.over:
            self.over = True
            self.model.save(self.path)

    def _on_step(self) -> bool:
        return not self.over


@pytest.mark.parametrize("normalizes", [False, True])
@pytest.mark.parametrize("name", ["DQN", "SAC"])
def test_a_file_that_a_callback_wrote_in_a_rollout_holds_every_step(
    name: str, normalizes: bool, tmp_path: Path
) -> None:
    kind, settings, task = AGENTS[name]
    loaded = []
    for make in (tensors, twin):
        env = VecNormalize(make(task)) if normalizes else make(task)
        model = kind(next(iter(kind.policy_aliases)), env, **settings)
        model.learn(6 * 8 * N, callback=CheckpointCallback(13, str(tmp_path), "saved", save_replay_buffer=True))
        loaded.append(kind.load(tmp_path / f"saved_{13 * N}_steps", env=make(task), device="cpu"))
        loaded[-1].load_replay_buffer(tmp_path / f"saved_replay_buffer_{26 * N}_steps.pkl")
        loaded.append(kind.load(tmp_path / f"saved_{13 * N}_steps", env=make(task), device="cpu"))
    for mine, other in zip(loaded[:2], loaded[2:], strict=True):
        for (path, ours), (_, theirs) in zip(_parts(mine), _parts(other), strict=True):
            np.testing.assert_allclose(ours, theirs, rtol=1e-4, atol=2e-5, err_msg=path)


# Callbacks


class Looks(BaseCallback):
    """Keeps what callbacks of Stable-Baselines3 read."""

    def __init__(self) -> None:
        super().__init__()
        self.told: list[Any] = []

    def _on_step(self) -> bool:
        names = ("rewards", "dones")
        self.told.append([np.asarray(self.locals[name]).astype(float) for name in names] + [self.num_timesteps])
        self.told.append(
            [{k: v for k, v in info.items() if k == "TimeLimit.truncated"} for info in self.locals["infos"]]
        )
        self.told.append([float(info["terminal_observation"][0]) for info in self.locals["infos"] if "episode" in info])
        return True


@pytest.mark.parametrize("name", ["PPO", "DQN"])
def test_callbacks_are_told_what_they_are_told_in_numpy(name: str) -> None:
    kind, settings, task = AGENTS[name]
    told = []
    for make in (tensors, twin):
        callback = Looks()
        kind(next(iter(kind.policy_aliases)), make(task), **settings).learn(60, callback=callback)
        told.append(callback.told)
    for mine, other in zip(*told, strict=True):
        if isinstance(mine[0] if mine else None, dict):
            assert mine == other
        else:
            for a, b in zip(mine, other, strict=True):
                np.testing.assert_allclose(a, b, atol=1e-5)


class Moves(BaseCallback):
    """Resets the environments of the training in the middle of a rollout."""

    def _on_step(self) -> bool:
        if self.n_calls == 4:
            self.training_env.reset()
        return True


@pytest.mark.parametrize("normalizes", [False, True])
@pytest.mark.parametrize("evaluates", [False, True])
@pytest.mark.parametrize("name", ["PPO", "DQN"])
def test_episodes_that_a_callback_broke_off_end_there(name: str, evaluates: bool, normalizes: bool) -> None:
    kind, settings, task = AGENTS[name]
    models = []
    for make in (tensors, twin):
        env = VecNormalize(make(task)) if normalizes else make(task)
        model = kind(next(iter(kind.policy_aliases)), env, **settings)
        callback = EvalCallback(env, n_eval_episodes=1, eval_freq=4, verbose=0, warn=False) if evaluates else Moves()
        models.append(model.learn(60, callback=callback))
    for (path, mine), (_, other) in zip(*map(_parts, models), strict=True):
        np.testing.assert_allclose(mine, other, rtol=1e-4, atol=2e-5, err_msg=path)


@pytest.mark.filterwarnings("ignore:saved at step")  # in the middle of a rollout
def test_statistics_that_a_callback_takes_in_a_rollout_are_those_of_stable_baselines(tmp_path: Path) -> None:
    env: Any = VecNormalize(tensors("CartPole-v1"))
    model: Any = GTrXLPPO("GTrXLPolicy", env, **ON)  # type: ignore[arg-type]
    other: Any = VecNormalize(tensors("CartPole-v1"))
    evaluates = EvalCallback(other, n_eval_episodes=1, eval_freq=5, verbose=0)
    model.learn(30, callback=[CheckpointCallback(5, str(tmp_path), save_vecnormalize=True), evaluates])
    loaded: Any = VecNormalize.load(str(tmp_path / "rl_model_vecnormalize_15_steps.pkl"), tensors("CartPole-v1"))
    assert loaded.obs_rms.count == 1e-4 + 6 * N  # those of the reset, and of five steps
    loaded.reset()
    for each in (env, loaded, other):
        assert type(each.obs_rms) is type(each.ret_rms) is RunningMeanStd


@pytest.mark.parametrize("name", ["PPO", "DQN"])
def test_a_callback_ends_training(name: str) -> None:
    kind, settings, task = AGENTS[name]
    model = kind(next(iter(kind.policy_aliases)), tensors(task), **settings)
    model.learn(10**4, callback=StopTrainingOnMaxEpisodes(2))
    assert model.num_timesteps == 2 * LIMIT * N


def test_tools_of_stable_baselines_evaluate_in_them(tmp_path: Path) -> None:
    env: Any = VecNormalize(tensors("CartPole-v1"))
    model: Any = GTrXLPPO("GTrXLPolicy", env, **ON)  # type: ignore[arg-type]
    other: Any = VecNormalize(tensors("CartPole-v1"), training=False, norm_reward=False)
    callback = EvalCallback(other, n_eval_episodes=4, eval_freq=5, best_model_save_path=str(tmp_path), verbose=0)
    model.learn(60, callback=callback)
    assert callback.last_mean_reward == LIMIT
    mean, _ = evaluate_policy(model, other, n_eval_episodes=5)
    assert mean == LIMIT


# What is wrong


class Faulty(CartPole):
    """Breaks in step 5."""

    fault: Any = None

    def advance(self, actions: Any) -> Outcome:
        outcome = super().advance(actions)
        self.calls = getattr(self, "calls", 0) + 1
        return self.fault(outcome) if self.calls == 5 else outcome


def _nan(outcome: Outcome) -> Outcome:
    rewards = outcome.rewards.clone()
    rewards[1] = torch.nan
    return outcome._replace(rewards=rewards)


def _infinite(outcome: Outcome) -> Outcome:
    observations = outcome.observations.clone()
    observations[1, 2] = torch.inf
    return outcome._replace(observations=observations)


def _nan_at_the_end(outcome: Outcome) -> Outcome:
    observations, truncated = outcome.observations.clone(), torch.zeros_like(outcome.truncated)
    observations[2, 0], truncated[2] = torch.nan, True
    return outcome._replace(observations=observations, truncated=truncated)


def _raise(outcome: Outcome) -> Outcome:
    raise ZeroDivisionError("mass is 0")


@pytest.mark.parametrize(
    ("fault", "message"),
    [
        (_nan, r"reward of environment 1 is nan at step 5 of this run, not finite in float32; repair the environment"),
        (_infinite, r"observation of environment 1 at step 5 of this run is inf at entry \[2\], not finite; look for"),
        (
            _nan_at_the_end,
            r"terminal observation of environment 2 at step 5 of this run is nan at entry \[0\]",
        ),
        (_raise, r"environments 0\.\.2 raised ZeroDivisionError at step 5 of this run: mass is 0"),
    ],
)
@pytest.mark.parametrize("name", ["PPO", "DQN"])
def test_a_wrong_value_is_named_behind_the_rollout(name: str, fault: Any, message: str) -> None:
    kind, settings, _ = AGENTS[name]
    env = Faulty(N, device="cpu")
    env.fault = fault
    normalized: Any = VecNormalize(env)
    model = kind(next(iter(kind.policy_aliases)), normalized, **settings)
    with pytest.raises(DataError, match=message):
        model.learn(60)
    if fault is not _raise:
        assert normalized.obs_rms.count == pytest.approx(N, abs=0.01)  # as before the rollout: of the reset alone
    assert isinstance(normalized.obs_rms.mean, np.ndarray)
    assert np.isfinite(normalized.ret_rms.var)


def test_environments_elsewhere_than_the_agent_are_refused() -> None:
    env = tensors("CartPole-v1")
    env.device = torch.device("cuda")
    with pytest.raises(ConfigError, match=r"the environments are on cuda, the agent is on cpu: make both"):
        GTrXLPPO("GTrXLPolicy", env, **ON)  # type: ignore[arg-type]
