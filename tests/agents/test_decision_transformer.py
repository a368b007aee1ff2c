"""Behavior of the Decision Transformer agent on tiny data. E episodes, N environments."""

import zipfile
from dataclasses import replace
from functools import partial
from pathlib import Path
from typing import Any

import gymnasium as gym
import numpy as np
import pytest
import torch
from gymnasium import spaces
from gymnasium.vector import AutoresetMode, SyncVectorEnv
from stable_baselines3.common.callbacks import (
    BaseCallback,
    CallbackList,
    CheckpointCallback,
    ConvertCallback,
    EvalCallback,
    EveryNTimesteps,
)
from stable_baselines3.common.evaluation import evaluate_policy
from stable_baselines3.common.logger import configure
from stable_baselines3.common.monitor import Monitor
from stable_baselines3.common.vec_env import DummyVecEnv
from torch import Tensor

from rltransformers.agents import DecisionTransformer
from rltransformers.core.checkpoint import save_checkpoint
from rltransformers.core.errors import CheckpointError, ConfigError, DataError
from rltransformers.data import ContextBatch, Trajectories, load_trajectories
from rltransformers.policies.decider import Decider
from tests.agents.tiny_envs import AnySpace

TINY = {"backbone": {"width": 16, "layers": 2, "heads": 2, "dropout": 0.1}}
LOOKING = {
    "backbone": {**TINY["backbone"], "topology": "encoder_decoder"},
    "observation": {"encoder": {"name": "bert", "element_size": 1}},
}
"""Layers that look at the elements of an observation."""


class Drift(gym.Env[Any, Any]):
    """Episodes of 3 to 14 steps whose start and length come from the seed; the reward likes actions near the state."""

    def __init__(self, observation: str = "vector", action: str = "box", broken: str = "") -> None:
        self.kind, self.broken = observation, broken
        vector = spaces.Box(-10, 10, (2,), np.float32)
        image = spaces.Box(0, 255, (6, 6, 1), np.uint8)
        index = spaces.Discrete(4, start=1)
        several = spaces.MultiDiscrete([2, 3])
        nested = spaces.Tuple((spaces.Dict({"a": vector, "b": index}), several))
        observations: dict[str, spaces.Space[Any]] = {
            "vector": vector,
            "image": image,
            "index": index,
            "several": several,
            "dict": spaces.Dict({"v": vector, "i": image}),
            "nested": nested,
        }
        actions: dict[str, spaces.Space[Any]] = {
            "box": spaces.Box(-2, 2, (1,), np.float32),
            "discrete": spaces.Discrete(3, start=-1),
            "multi": spaces.MultiDiscrete([3, 2]),
            "binary": spaces.MultiBinary(2),
            "mixed": spaces.Dict({"go": spaces.Box(-1, 1, (2,), np.float32), "what": spaces.Discrete(3)}),
        }
        self.observation_space, self.action_space = observations[observation], actions[action]

    def _observe(self) -> Any:
        vector = np.array([self.x, self.t], np.float32)
        image = np.full((6, 6, 1), int(20 * abs(self.x)) % 256, np.uint8)
        index, several = 1 + self.t % 4, np.array([self.t % 2, self.t % 3])
        if self.broken == "observation" and self.t == 2:
            vector[0] = np.nan
        return {
            "vector": vector,
            "image": image,
            "index": index,
            "several": several,
            "dict": {"v": vector, "i": image},
            "nested": ({"a": vector, "b": index}, several),
        }[self.kind]

    def reset(self, *, seed: int | None = None, options: dict[str, Any] | None = None) -> tuple[Any, dict[str, Any]]:
        super().reset(seed=seed)
        self.x, self.t = float(self.np_random.normal()), 0
        self.limit = int(self.np_random.integers(3, 15))
        return self._observe(), {}

    def step(self, action: Any) -> tuple[Any, float, bool, bool, dict[str, Any]]:
        assert self.action_space.contains(action), action
        flat = float(np.sum([np.sum(part) for part in (action.values() if isinstance(action, dict) else [action])]))
        reward = 1.0 - abs(self.x - flat)
        if self.broken == "reward" and self.t == 3:
            reward = float("nan")
        self.x, self.t = 0.8 * self.x - 0.3 * flat, self.t + 1
        done = self.t >= self.limit
        return self._observe(), reward, False, done, {"is_success": abs(self.x) < 0.5} if done else {}


gym.register("test/Drift-v0", entry_point=lambda **options: Drift(**options))


def record(episodes: int = 12, **options: Any) -> Trajectories:
    """Random episodes of ``Drift``."""
    env = Drift(**options)
    env.action_space.seed(0)
    recorded = []
    for seed in range(episodes):
        observation, _ = env.reset(seed=seed)
        steps: dict[str, list[Any]] = {name: [] for name in ("observations", "actions", "rewards", "truncations")}
        steps["observations"].append(observation)
        while not steps["truncations"] or not steps["truncations"][-1]:
            action = env.action_space.sample()
            observation, reward, _, truncated, _ = env.step(action)
            for name, value in zip(steps, (observation, action, reward, truncated), strict=True):
                steps[name].append(value)
        whole: dict[str, Any] = {name: _stacked(values) for name, values in steps.items()}
        recorded.append({**whole, "terminations": np.zeros(len(steps["rewards"]), bool)})
    return load_trajectories(
        recorded, observation_space=env.observation_space, action_space=env.action_space, name="drift"
    )


def _stacked(values: list[Any]) -> Any:
    if isinstance(values[0], dict):
        return {key: _stacked([value[key] for value in values]) for key in values[0]}
    if isinstance(values[0], tuple):
        return tuple(_stacked([value[index] for value in values]) for index in range(len(values[0])))
    return np.array(values)


@pytest.fixture(scope="module")
def data() -> Trajectories:
    return record()


def make(dataset: Any, **settings: Any) -> DecisionTransformer:
    values = {
        "context_length": 5,
        "batch_size": 8,
        "warmup_steps": 10,
        "seed": 3,
        "policy_kwargs": TINY,
        "device": "cpu",
    }
    return DecisionTransformer("DTPolicy", dataset, **{**values, **settings})


@pytest.mark.parametrize(
    ("second", "head"),
    [("fixed", "gaussian"), ("unbounded", "deterministic"), ("half bounded", "gaussian"), ("fixed", "mixture")],
)
def test_a_component_without_a_range_does_not_drown_the_others(second: str, head: Any) -> None:
    random = np.random.default_rng(0)
    seen = random.normal(size=(40, 21, 1)).astype(np.float32)
    first, other = np.tanh(2.0 * seen), random.normal(1000.0, 100.0, seen.shape).astype(np.float32)
    low, high = {"fixed": (1e3, 1e3), "unbounded": (-np.inf, np.inf), "half bounded": (0.0, np.inf)}[second]
    other = np.clip(other, low, high)
    box = spaces.Box(np.array([-1.0, low], np.float32), np.array([1.0, high], np.float32))
    episodes = [
        {"observations": one, "actions": actions[:20], "rewards": np.zeros(20), "truncations": np.arange(20) == 19}
        for one, actions in zip(seen, np.concatenate([first, other], 2), strict=True)
    ]
    data = load_trajectories(episodes, observation_space=spaces.Box(-9, 9, (1,)), action_space=box)
    backbone = {"width": 16, "layers": 1, "heads": 1, "dropout": 0.0}
    settings: dict[str, Any] = {"policy_kwargs": {"backbone": backbone}, "mode": "bc", "batch_size": 64}
    model = make(data, context_length=1, learning_rate=1e-2, action_head=head, **settings).learn(250)
    observation = np.linspace(-2, 2, 9, dtype=np.float32)[:, None]
    action, _ = model.predict(observation, deterministic=True)
    assert np.abs(action[:, :1] - np.tanh(2.0 * observation)).mean() < 0.2  # 0.7 for an action that never moves
    assert 900 < action[:, 1].mean() < 1100


def test_units_of_components_without_bounds_come_back_with_a_checkpoint(tmp_path: Path) -> None:
    random = np.random.default_rng(0)
    actions = random.normal(50.0, 3.0, (4, 6, 2))
    episodes = [
        {"observations": random.normal(size=(7, 2)), "actions": one, "rewards": np.ones(6),
         "truncations": np.arange(6) == 5}
        for one in actions
    ]  # fmt: skip
    model = make(load_trajectories(episodes, action_space=spaces.Box(-np.inf, np.inf, (2,)))).learn(2)
    model.save(tmp_path / "model")
    again, observation = DecisionTransformer.load(tmp_path / "model"), np.ones(2)
    expected, _ = model.predict(observation, deterministic=True)
    np.testing.assert_array_equal(again.predict(observation, deterministic=True)[0], expected)
    assert model.summary.action_units is not None
    np.testing.assert_allclose(model.summary.action_units[""], [actions.mean((0, 1)), actions.std((0, 1))], rtol=1e-6)


def test_whole_numbers_that_float32_cannot_tell_are_reported() -> None:
    random = np.random.default_rng(0)
    episodes = [
        {"observations": 1_700_000_000 + 40 * random.integers(0, 2, (6, 1)), "actions": random.integers(0, 2, 6),
         "rewards": np.ones(6), "truncations": np.arange(6) == 5}
        for _ in range(4)
    ]  # fmt: skip
    space = spaces.Box(np.iinfo(np.int64).min, np.iinfo(np.int64).max, (1,), np.int64)
    with pytest.warns(UserWarning, match=r"numbers near 1.7e\+09 that deviate by .* taken for rounding"):
        model = make(load_trajectories(episodes, observation_space=space, action_space=spaces.Discrete(2)))
    seen = model.policy.standardized({"": torch.tensor([[1_700_000_040]])})[""]
    assert abs(float(seen)) < 1e-6  # not the 40 of a clock whose steps float32 rounds to 128


def test_a_clock_that_was_read_as_float32_is_reported() -> None:
    random = np.random.default_rng(0)
    episodes = [
        {"observations": 1.7e9 + random.normal(0, 100, (6, 1)), "actions": random.integers(0, 2, 6),
         "rewards": np.ones(6), "truncations": np.arange(6) == 5}
        for _ in range(4)
    ]  # fmt: skip
    with pytest.warns(UserWarning, match=r"numbers near 1.7e\+09 .* taken for rounding"):
        make(load_trajectories(episodes, action_space=spaces.Discrete(2)))


@pytest.mark.parametrize("bound", [np.inf, np.finfo(np.float32).max, 1e35])
def test_bounds_too_far_to_be_met_are_none(bound: float) -> None:
    random, space = np.random.default_rng(0), spaces.Box(-bound, bound, (1,))
    episodes = [
        {"observations": random.normal(size=(6, 1)), "actions": random.normal(0, 2_000, (5, 1)), "rewards": np.ones(5)}
        for _ in range(4)
    ]
    units = make(load_trajectories(episodes, action_space=space)).summary.action_units
    assert units is not None and 1_000 < units[""][1][0] < 3_000


def test_a_policy_that_is_asked_for_no_return_acts_whatever_returns_were() -> None:
    random = np.random.default_rng(0)
    episodes = [
        {"observations": random.normal(size=(6, 2)), "actions": random.integers(0, 2, 5), "rewards": np.full(5, 1e9)}
        for _ in range(4)
    ]
    model = make(load_trajectories(episodes), mode="advantage", advantage_kwargs={"updates": 2})
    assert model.predict(np.zeros(2))[0] in (0, 1)


def test_data_in_guessed_spaces_take_those_of_the_model() -> None:
    random = np.random.default_rng(0)

    def logged(classes: int) -> Trajectories:
        actions = np.arange(10) % classes
        return load_trajectories(
            [{"observations": random.normal(size=(11, 2)), "actions": actions, "rewards": np.ones(10)}] * 3
        )

    model = make(logged(3), mode="bc", validation=0.4)
    assert model.validate(logged(2)).episodes == 3
    with pytest.raises(ConfigError, match=r"Discrete\(4\)\) is not the one of the model \(Discrete\(3\)"):
        model.validate(logged(4))


def test_data_whose_columns_stand_in_another_order_are_refused() -> None:
    steps = np.arange(20.0)

    def logged(*columns: str) -> Trajectories:
        table = {name: np.sin(steps * len(name)) for name in columns}
        table |= {"action": np.cos(steps), "reward": steps, "episode": steps // 5}
        return load_trajectories(table, columns={"observations": list(columns), "actions": ["action"]})

    model = make(logged("speed", "angle"), mode="bc", validation=0.4)
    assert model.validate(logged("speed", "angle")).episodes == 4
    with pytest.raises(DataError, match=r"\['angle', 'speed'\], in the data of the model \['speed', 'angle'\]"):
        model.validate(logged("angle", "speed"))


@pytest.fixture(scope="module")
def trained(data: Trajectories) -> DecisionTransformer:
    return make(data, learning_rate=1e-2).learn(30)


class Losses(BaseCallback):
    """Collects the loss of every update."""

    def __init__(self) -> None:
        super().__init__()
        self.values: list[float] = []
        self.updates: list[int] = []

    def _on_step(self) -> bool:
        self.values.append(float(self.locals["metrics"]["train/loss"]))
        self.updates.append(self.num_timesteps)
        return True


def weights(model: DecisionTransformer) -> Tensor:
    return torch.cat([parameter.detach().flatten() for parameter in model.policy.parameters()])


# ----------------------------------------------------------------------------------------------------- learning


def test_observation_action_and_return_of_a_batch_belong_to_the_same_step() -> None:
    lengths = (3, 7, 1, 12)
    episodes = [
        {
            "observations": (1000 * e + np.arange(n + 1))[:, None].astype(np.float32),
            "actions": (1000 * e + np.arange(n))[:, None].astype(np.float32),
            "rewards": np.full(n, 0.25),
            "terminations": np.arange(n) == n - 1,
            "truncations": np.zeros(n, bool),
        }
        for e, n in enumerate(lengths)
    ]
    model = make(episodes, normalize_observations=False)
    assert model._sampler is not None
    batch = model._sampler.sample(500, torch.Generator().manual_seed(0))
    code = batch.observations[""][..., 0][batch.valid].long()
    torch.testing.assert_close(batch.actions[""][..., 0][batch.valid].long(), code)
    torch.testing.assert_close(batch.timestep[batch.valid].long(), code % 1000)
    remaining = torch.tensor(lengths)[code // 1000] - code % 1000
    torch.testing.assert_close(batch.return_to_go[batch.valid], 0.25 * remaining)
    assert set(code.tolist()) == {1000 * e + t for e, n in enumerate(lengths) for t in range(n)}  # worst episode too


@pytest.mark.slow
def test_an_action_that_is_a_function_of_its_observation_is_learnt() -> None:
    generator = np.random.default_rng(0)
    observations = generator.uniform(-1, 1, (40, 9, 1)).astype(np.float32)
    episodes = [
        {
            "observations": o,
            "actions": 0.9 * o[:-1],
            "rewards": np.ones(8),
            "terminations": np.arange(8) == 7,
            "truncations": np.zeros(8, bool),
        }
        for o in observations
    ]
    space = spaces.Box(-1, 1, (1,), np.float32)
    data = load_trajectories(episodes, observation_space=space, action_space=space)
    losses = Losses()
    make(
        data, learning_rate=5e-3, policy_kwargs={"backbone": {"width": 16, "layers": 1, "heads": 1, "dropout": 0.0}}
    ).learn(250, callback=losses)
    assert np.mean(losses.values[-20:]) < 0.02  # predicting the mean gives 0.27


def test_stopping_and_resuming_gives_the_losses_and_weights_of_not_stopping(data: Trajectories, tmp_path: Path) -> None:
    whole, first, second = Losses(), Losses(), Losses()
    straight = make(data).learn(9, callback=whole)
    torch.rand(7)  # the global generator must not matter
    half = make(data).learn(4, callback=first)
    half.save(tmp_path / "half")
    torch.rand(5)
    resumed = DecisionTransformer.load(tmp_path / "half", data, device="cpu").learn(5, callback=second)
    assert first.values + second.values == whole.values
    assert second.updates == [5, 6, 7, 8, 9]
    assert torch.equal(weights(resumed), weights(straight))


def test_the_same_seed_gives_the_same_run_and_another_seed_another(data: Trajectories) -> None:
    one, same, other = (make(data, seed=seed).learn(3) for seed in (5, 5, 6))
    assert torch.equal(weights(one), weights(same))
    assert not torch.equal(weights(one), weights(other))
    assert make(data, seed=None).seed != make(data, seed=None).seed


def test_learning_leaves_the_global_generator_alone(data: Trajectories) -> None:
    before = torch.random.get_rng_state()
    make(data).learn(2)
    assert torch.equal(before, torch.random.get_rng_state())


def test_the_learning_rate_rises_over_the_warm_up_and_then_stays_or_decays(data: Trajectories) -> None:
    def rates(**settings: Any) -> list[float]:
        model = make(data, learning_rate=0.4, warmup_steps=4, weight_decay=0.0, **settings)
        return [model.learn(1)._optimizer.param_groups[0]["lr"] for _ in range(10)]

    assert rates(decay_steps=0) == pytest.approx([0.1, 0.2, 0.3, *[0.4] * 7])
    decayed = [0.1, 0.2, 0.3, 0.4, 0.4, 0.2 + 0.2 * np.sqrt(0.5), 0.2, 0.2 - 0.2 * np.sqrt(0.5), 0.04, 0.04]
    assert rates(decay_steps=8) == pytest.approx(decayed)


@pytest.mark.parametrize(
    ("updates", "decay", "warmup"),
    [(40, None, 4), (250, None, 25), (9_999, None, 999), (10_000, None, 1_000), (10**6, None, 1_000), (250, 60, 6)],
)
def test_a_warm_up_that_is_left_open_is_a_tenth_of_the_updates(
    data: Trajectories, updates: int, decay: int | None, warmup: int
) -> None:
    model = make(data, learning_rate=0.4, warmup_steps=None, decay_steps=decay)
    model.learn(0)
    model.learn(updates, callback=lambda *_: False)
    assert model.settings.warmup_steps == warmup
    assert model._optimizer.param_groups[0]["lr"] == pytest.approx(0.4 / warmup)


def rates(model: DecisionTransformer, updates: int, stop: int = 10**6) -> list[float]:
    """The learning rate of every update until the last one, or the one before which somebody stops."""
    seen: list[float] = []

    def look(*_: Any) -> bool:
        seen.append(model._optimizer.param_groups[0]["lr"])
        return len(seen) < stop

    model.learn(updates, callback=look)
    return seen


def test_a_decay_that_is_left_open_takes_every_call_anew(data: Trajectories) -> None:
    model = make(data, learning_rate=0.4, warmup_steps=2)
    assert rates(model, 6) == pytest.approx([0.2, 0.4, 0.4, 0.2 + 0.2 * np.sqrt(0.5), 0.2, 0.2 - 0.2 * np.sqrt(0.5)])
    assert rates(model, 2) == pytest.approx([0.4, 0.2])
    assert [*rates(model, 1), *rates(model, 1)] == pytest.approx([0.4, 0.4])


def test_a_resumed_run_keeps_the_schedule_of_the_first_call(data: Trajectories, tmp_path: Path) -> None:
    whole = make(data, warmup_steps=None, learning_rate=0.4)
    expected = rates(whole, 40)
    part = make(data, warmup_steps=None, learning_rate=0.4)
    begun = rates(part, 40, stop=2)
    part.save(tmp_path / "last")
    resumed = DecisionTransformer.load(tmp_path / "last", data)
    assert begun + rates(resumed, 38) == expected
    assert expected[:5] == pytest.approx([0.1, 0.2, 0.3, 0.4, 0.4])
    assert expected[22] == pytest.approx(0.2)  # half of the way from 4 to 40
    assert torch.equal(weights(whole), weights(resumed))


def test_callbacks_of_stable_baselines3_work(data: Trajectories, tmp_path: Path) -> None:
    seen: list[int] = []

    def stop_at_seven(locals_: dict[str, Any], globals_: dict[str, Any]) -> bool:
        seen.append(locals_["self"].num_timesteps)
        return len(seen) < 7

    checkpoint = CheckpointCallback(save_freq=3, save_path=str(tmp_path), name_prefix="dt")
    model = make(data).learn(20, callback=[checkpoint, ConvertCallback(stop_at_seven)])
    assert model.num_timesteps == 7
    assert sorted(path.name for path in tmp_path.iterdir()) == ["dt_3_steps.zip", "dt_6_steps.zip"]
    assert DecisionTransformer.load(tmp_path / "dt_6_steps", device="cpu").num_timesteps == 6
    with pytest.raises(ConfigError, match="take EvaluationCallback of rltransformers"):
        make(data).learn(2, callback=EvalCallback(DummyVecEnv([Drift])))
    inner = EvalCallback(DummyVecEnv([Drift]))
    for outer in (CallbackList([inner]), EveryNTimesteps(1, inner), EveryNTimesteps(1, CallbackList([inner]))):
        with pytest.raises(ConfigError, match="take EvaluationCallback of rltransformers"):
            make(data).learn(2, callback=[outer])


def test_tensorboard_counts_updates_on_its_x_axis(data: Trajectories, tmp_path: Path) -> None:
    from tensorboard.backend.event_processing.event_accumulator import EventAccumulator

    model = make(data, tensorboard_log=tmp_path).learn(4, log_interval=2, tb_log_name="run")
    model.learn(2, log_interval=2)
    events = EventAccumulator(str(tmp_path / "run_1"))
    events.Reload()
    assert [event.step for event in events.Scalars("train/loss")] == [2, 4, 6]
    assert {"train/learning_rate", "train/grad_norm", "memory/layer0/lookback"} <= set(events.Tags()["scalars"])


def test_a_logger_can_be_set(data: Trajectories, tmp_path: Path) -> None:
    model = make(data)
    model.set_logger(configure(str(tmp_path), ["csv"]))
    model.learn(2, log_interval=1, progress_bar=True)
    model.logger.close()
    assert (tmp_path / "progress.csv").read_text().count("\n") == 3


def test_a_loss_that_is_not_finite_stops_training(data: Trajectories) -> None:
    model = make(data)
    with torch.no_grad():
        model.policy.head.linear.weight.fill_(float("nan"))
    with pytest.raises(DataError, match="loss is nan after 1 updates"):
        model.learn(3, log_interval=1)


def test_filtered_cloning_trains_on_the_best_episodes_only(data: Trajectories) -> None:
    model = make(data, mode="bc", top_fraction=0.25)
    assert model._sampler is not None
    assert model._sampler.windows == make(data.top_fraction(0.25), mode="bc")._sampler.windows  # type: ignore[union-attr]
    assert model.summary.best_return == pytest.approx(data.returns.max(), rel=1e-5)


def test_delayed_rewards_show_the_return_of_the_episode_at_every_step(data: Trajectories) -> None:
    model = make(data, delayed_reward=True)
    assert model._sampler is not None
    batch = model._sampler.sample(100, torch.Generator().manual_seed(0))
    known = torch.tensor(data.returns, dtype=torch.float32)
    gap = (batch.return_to_go[batch.valid][:, None] - known).abs().min(1).values
    assert gap.max() < 1e-5
    _, state = model.predict(np.zeros(2, np.float32), target_return=4.0)
    _, state = model.predict(np.zeros(2, np.float32), state)  # no reward needed
    assert state.return_to_go.tolist() == [4.0]


def test_returns_are_scaled_to_unit_mean_square_and_the_scale_is_saved(data: Trajectories, tmp_path: Path) -> None:
    model = make(data)
    scaled = data.return_to_go() / model.summary.return_scale
    assert np.mean(np.square(scaled)) == pytest.approx(1.0, rel=1e-4)
    model.save(tmp_path / "m")
    assert DecisionTransformer.load(tmp_path / "m", device="cpu").policy.return_scale == model.summary.return_scale
    assert make(data, return_scale=50.0).policy.return_scale == 50.0


def test_statistics_of_observations_are_saved_and_numbers_that_never_change_stay_finite(tmp_path: Path) -> None:
    data = record()
    data.observations[""][:, 1] = 7.0
    model = make(data)
    mean = model.policy.get_buffer("observation_mean_0")
    assert mean[1] == 7.0
    assert model.policy.get_buffer("observation_deviation_0")[1] == 7.0
    model.save(tmp_path / "m")
    loaded = DecisionTransformer.load(tmp_path / "m", device="cpu")
    torch.testing.assert_close(loaded.policy.get_buffer("observation_mean_0"), mean)
    assert not make(data, normalize_observations=False).policy.normalized


def test_observations_are_standardized_whatever_their_scale() -> None:
    """A number counts as one that never changes where it moves by rounding alone: by that of numbers of its size."""
    changes = np.random.default_rng(0).normal(size=(400, 1))

    def deviations(*columns: np.ndarray) -> tuple[np.ndarray, np.ndarray]:
        observations = np.concatenate(columns, 1).astype(np.float32)
        episode = {"observations": observations, "actions": changes[:-1], "rewards": np.zeros(399)}
        ((_, _, used),) = make([episode]).policy.statistics()
        return used.numpy(), observations[:-1].std(axis=0, dtype=np.float64)

    for scale in (1e-12, 5e-7, 1e-3, 1.0, 1e6):
        used, true = deviations(scale * changes, 2 * scale * changes + scale)
        np.testing.assert_allclose(used, true, rtol=1e-4)
    for size in (1e-6, 0.1, 1.0, 1e5):  # the smallest changes that float32 knows
        used, true = deviations(size * (1 + 1.2e-7 * (changes > 0)))
        np.testing.assert_allclose(used, max(size, 1.0))
        assert true > 0
    used, true = deviations(changes, 1e-16 * changes, 1e-4 * changes, 0 * changes)
    np.testing.assert_allclose(used, [true[0], 1.0, true[2], 1.0], rtol=1e-4)


def one_episode(steps: int) -> Trajectories:
    recorded = {
        "observations": np.zeros((steps + 1, 1), np.float32),
        "actions": np.zeros((steps, 1), np.float32),
        "rewards": np.ones(steps, np.float32),
    }
    return load_trajectories([recorded], action_space=spaces.Box(-1.0, 1.0, (1,)))


@pytest.mark.parametrize(("longest", "context"), [(1, 1), (12, 12), (64, 64), (65, 20)])
def test_the_defaults_fit_the_episodes(longest: int, context: int) -> None:
    model = DecisionTransformer("DTPolicy", one_episode(longest), device="cpu")
    assert model.settings.context_length == context
    assert model._sampler is not None and model._sampler.windows == (1 if longest == context else longest + 19)
    sizes = model.backbone_config
    assert (sizes.width, sizes.layers, sizes.heads, sizes.memory) == (64, 2, 2, context - 1)
    earlier = DecisionTransformer(
        "DTPolicy", one_episode(longest), device="cpu", **DecisionTransformer.earlier_defaults
    )
    assert earlier._sampler is not None and earlier._sampler.windows == longest + 19
    sizes = earlier.backbone_config
    assert (sizes.width, sizes.layers, sizes.heads, sizes.memory) == (128, 3, 1, 19)


def test_whole_episodes_can_be_the_windows(data: Trajectories) -> None:
    model = make(data, whole_episodes=True, context_length=14).learn(1)
    assert model._sampler is not None
    batch = model._sampler.sample(50, torch.Generator().manual_seed(0))
    assert torch.all(batch.timestep[:, 0] == 0)
    assert set(batch.valid.sum(1).tolist()) <= set(data.lengths.tolist())


# ------------------------------------------------------------------------------------------ acting, evaluation


def test_results_do_not_depend_on_how_many_environments_run_at_once(trained: DecisionTransformer) -> None:
    def run(**options: Any) -> list[Any]:
        return trained.evaluate("test/Drift-v0", [-3.0, 5.0], episodes=9, seed=40, **options)

    one_by_one = run(num_envs=1)
    for options in ({"num_envs": 4}, {"num_envs": 100}):
        for ours, theirs in zip(run(**options), one_by_one, strict=True):
            assert ours.seeds == theirs.seeds and len(set(ours.seeds)) == 9
            assert ours.lengths == theirs.lengths
            assert ours.successes == theirs.successes
            np.testing.assert_allclose(ours.returns, theirs.returns, atol=1e-4)  # float32 kernels of other shapes
    assert len(set(one_by_one[0].lengths)) > 3
    assert one_by_one[0].mean != one_by_one[1].mean
    assert trained.evaluate("test/Drift-v0", 5.0, episodes=9, seed=40)[0].returns == pytest.approx(
        one_by_one[1].returns, abs=1e-4
    )


def test_evaluation_equals_a_plain_loop_of_predict(trained: DecisionTransformer) -> None:
    result = trained.evaluate("test/Drift-v0", [2.0], episodes=3, seed=7)[0]
    env = Drift()
    for seed, expected in zip(result.seeds, result.returns, strict=True):
        observation, _ = env.reset(seed=seed)
        state, reward, total, done = None, 0.0, 0.0, False
        while not done:
            action, state = trained.predict(observation, state, target_return=2.0, reward=reward, deterministic=True)
            observation, reward, _, done, _ = env.step(action)
            total += reward
        assert total == pytest.approx(expected, abs=1e-4)


class Jerk(gym.Wrapper[Any, Any, Any, Any]):
    """Pays for the distance between an action and the one before, which it keeps as it was given or copies."""

    def __init__(self, env: gym.Env[Any, Any], copies: bool) -> None:
        super().__init__(env)
        self.copies, self.last = copies, np.zeros(1)

    def step(self, action: Any) -> tuple[Any, float, bool, bool, dict[str, Any]]:
        observation, _, terminated, truncated, info = self.env.step(action)
        reward = float(np.abs(action - self.last).sum())
        self.last = action.copy() if self.copies else action
        return observation, reward, terminated, truncated, info


@pytest.mark.parametrize("num_envs", [1, 3])
def test_an_environment_may_keep_its_last_action(trained: DecisionTransformer, num_envs: int) -> None:
    def returns(copies: bool) -> tuple[float, ...]:
        return trained.evaluate(lambda: Jerk(Drift(), copies), [2.0], episodes=4, seed=7, num_envs=num_envs)[0].returns

    assert returns(False) == returns(True) and np.ptp(returns(True)) > 0


def test_the_return_asked_for_falls_by_every_reward_received(
    trained: DecisionTransformer, monkeypatch: pytest.MonkeyPatch
) -> None:
    asked: list[float] = []
    scaled = trained.policy.scaled

    def spy(return_to_go: Tensor) -> Tensor:
        asked.append(float(return_to_go))
        return scaled(return_to_go)

    monkeypatch.setattr(trained.policy, "scaled", spy)
    result = trained.evaluate("test/Drift-v0", [6.0], episodes=1, seed=3)[0]
    env = Drift()
    rewards: list[float] = []
    observation, _ = env.reset(seed=result.seeds[0])
    state = None
    for t in range(result.lengths[0]):
        previous = rewards[-1] if rewards else None
        action, state = trained.predict(observation, state, target_return=6.0, reward=previous, deterministic=True)
        observation, reward, *_ = env.step(action)
        rewards.append(reward)
        assert asked[t] == pytest.approx(6.0 - sum(rewards[:-1]), abs=1e-4)
    assert len(asked) == 2 * result.lengths[0]


def test_a_vector_environment_that_never_resets_by_itself_gives_the_same_results(trained: DecisionTransformer) -> None:
    envs = SyncVectorEnv([Drift] * 3, autoreset_mode=AutoresetMode.DISABLED)
    ours = trained.evaluate(envs, [1.0], episodes=7, seed=2)[0]
    theirs = trained.evaluate("test/Drift-v0", [1.0], episodes=7, seed=2, num_envs=3)[0]
    assert ours == replace(theirs, env_id=None), "copies without an id"
    assert trained.evaluate(envs, [1.0], episodes=2, seed=2)[0].returns == pytest.approx(ours.returns[:2], abs=1e-4)
    with pytest.raises(ConfigError, match="DISABLED"):
        trained.evaluate(SyncVectorEnv([Drift] * 3), [1.0])


def test_sampled_actions_follow_the_seed_of_the_episode() -> None:
    model = make(record(action="multi"))
    options: Any = {"episodes": 5, "seed": 3, "env_kwargs": {"action": "multi"}, "deterministic": False}
    one, several = (model.evaluate("test/Drift-v0", [1.0], num_envs=n, **options)[0] for n in (1, 3))
    np.testing.assert_allclose(one.returns, several.returns, atol=1e-4)
    greedy = model.evaluate("test/Drift-v0", [1.0], **{**options, "deterministic": True})[0]
    assert one.returns != greedy.returns


def test_scores_are_those_of_the_environment_that_is_played(data: Trajectories) -> None:
    model = make(replace(data, env_id="Walker2d-v5"))
    gym.register("gym/Hopper-v0", entry_point=lambda **options: Drift(**options))
    result = model.evaluate("gym/Hopper-v0", [1.0], episodes=2)[0]
    assert result.env_id == "gym/Hopper-v0"
    expected = [100 * (value + 20.272305) / (3234.3 + 20.272305) for value in result.returns]
    assert result.normalized_scores == pytest.approx(expected)
    assert result.summary()["normalized_score"] == pytest.approx(np.mean(expected))
    assert model.evaluate("test/Drift-v0", [1.0], episodes=2)[0].normalized_scores is None
    unnamed = model.evaluate(Drift, [1.0], episodes=2)[0]
    assert unnamed.env_id == "Walker2d-v5" and unnamed.normalized_scores is not None, "the data name what has no id"


@pytest.mark.parametrize(
    "targets",
    [np.array([5, 7]), np.array([5.0, 7.0], np.float32), [np.float32(5.0), np.int64(7)], (5, np.float64(7.0))],
)
def test_target_returns_may_be_numbers_of_numpy(trained: DecisionTransformer, targets: Any) -> None:
    results = trained.evaluate("test/Drift-v0", targets, episodes=1)
    assert [result.target_return for result in results] == [5.0, 7.0]
    for alone in (np.array(5.0), np.float32(5.0)):
        assert trained.evaluate("test/Drift-v0", alone, episodes=1)[0].target_return == 5.0  # type: ignore[arg-type]


@pytest.mark.parametrize(
    "targets",
    [["high"], "high", [float("nan")], [float("inf")], [None], [True], [], np.array(np.nan), np.array([True]), [[1.0]]],
)
def test_a_target_return_that_is_not_a_number_is_refused(trained: DecisionTransformer, targets: Any) -> None:
    with pytest.raises(ConfigError, match="target"):
        trained.evaluate("test/Drift-v0", targets)


def test_behavior_cloning_takes_no_target(data: Trajectories) -> None:
    model = make(data, mode="bc")
    with pytest.raises(ConfigError, match="no target"):
        model.evaluate("test/Drift-v0", [1.0])
    with pytest.raises(ConfigError, match="asked for no return; leave target_return out"):
        model.predict(np.zeros(2, np.float32), target_return=5.0)
    assert model.evaluate("test/Drift-v0", episodes=3)[0].target_return is None


def test_evaluate_policy_of_stable_baselines3_drives_behavior_cloning_and_delayed_rewards(data: Trajectories) -> None:
    for model in (make(data, mode="bc"), make(data, delayed_reward=True)):
        venv = DummyVecEnv([lambda: Monitor(Drift())] * 3)
        returns, lengths = evaluate_policy(model, venv, n_eval_episodes=5, return_episode_rewards=True)  # type: ignore[arg-type]
        assert isinstance(returns, list)
        assert isinstance(lengths, list)
        assert len(returns) == 5
        assert all(3 <= length <= 14 for length in lengths)


def test_predict_takes_batches_and_single_observations_and_starts_episodes_anew(trained: DecisionTransformer) -> None:
    generator = np.random.default_rng(0)
    observations = generator.normal(size=(4, 3, 2)).astype(np.float32)
    state = None
    for observation in observations:
        action, state = trained.predict(observation, state, target_return=[1.0, 2.0, 3.0], reward=np.zeros(3))
    assert action.shape == (3, 1)
    single, fresh = trained.predict(observations[0, 1], target_return=2.0)
    assert single.shape == (1,)
    restart = np.array([False, True, False])
    again, state = trained.predict(observations[0], state, restart, target_return=2.0, reward=np.zeros(3))
    np.testing.assert_allclose(again[1], single, atol=1e-5)
    assert state.step.tolist() == [4, 0, 4]
    assert fresh.batch_size == 1


def test_predict_asks_for_what_it_needs(trained: DecisionTransformer) -> None:
    observation = np.zeros((2, 2), np.float32)
    _, state = trained.predict(observation)
    with pytest.raises(ConfigError, match="reward"):
        trained.predict(observation, state)
    with pytest.raises(ConfigError, match="belongs to 2 environments, the observation to 1"):
        trained.predict(np.zeros(2, np.float32), state, reward=0.0)
    with pytest.raises(ConfigError, match="target_return"):
        trained.predict(observation, target_return="much")  # type: ignore[arg-type]
    with pytest.raises(DataError, match="shape"):
        trained.predict(np.zeros((2, 3), np.float32))
    with pytest.raises(DataError, match=r"^observation of environment 1 is nan at entry \[0\], not finite"):
        trained.predict(np.array([[0.0, 0.0], [np.nan, 0.0]], np.float32))


OTHERS: dict[str, dict[str, Any]] = {
    "wider": {"policy_kwargs": {"backbone": {**TINY["backbone"], "width": 32}}},
    "deeper": {"policy_kwargs": {"backbone": {**TINY["backbone"], "layers": 3}}},
    "longer": {"context_length": 9},
    "banded": {"acting_mode": "banded"},
    "recompute": {"acting_mode": "recompute"},
    "candidates": {"critic": "qt", "critic_kwargs": {"candidates": 2, "width": 16}},
}


@pytest.mark.parametrize("other", OTHERS)
def test_predict_refuses_the_state_of_another_model(
    data: Trajectories, trained: DecisionTransformer, other: str
) -> None:
    observation, model = np.zeros((2, 2), np.float32), make(data, **OTHERS[other])
    for one, two in ((model, trained), (trained, model)):
        _, state = one.predict(observation, deterministic=True)
        with pytest.raises(ConfigError, match=r"of another model or another acting_mode: .* has shape .*; pass what"):
            two.predict(observation, state, deterministic=True, reward=np.zeros(2))
        one.predict(observation, state, deterministic=True, reward=np.zeros(2))


@pytest.mark.parametrize(("broken", "message"), [("observation", "in step 2"), ("reward", "in step 4 of its episode")])
def test_an_environment_that_breaks_is_named_with_its_step(
    trained: DecisionTransformer, broken: str, message: str
) -> None:
    with pytest.raises(DataError, match=f"environment [0-3] .*{message}"):
        trained.evaluate("test/Drift-v0", [1.0], episodes=4, num_envs=4, env_kwargs={"broken": broken})


@pytest.mark.parametrize(
    ("observation", "action"),
    [
        ("vector", "discrete"),
        ("vector", "binary"),
        ("image", "multi"),
        ("index", "box"),
        ("several", "discrete"),
        ("dict", "box"),
        ("nested", "multi"),
    ],
)
def test_every_kind_of_space_trains_and_acts(observation: str, action: str) -> None:
    model = make(record(6, observation=observation, action=action)).learn(2)
    options = {"observation": observation, "action": action}
    result = model.evaluate("test/Drift-v0", [1.0], episodes=3, env_kwargs=options)[0]
    assert len(result.returns) == 3


def test_actions_of_several_kinds_at_once_train_and_act() -> None:
    model = make(record(6, action="mixed")).learn(2)
    envs = SyncVectorEnv([lambda: Drift(action="mixed")] * 2, autoreset_mode=AutoresetMode.DISABLED)
    assert len(model.evaluate(envs, [1.0], episodes=3)[0].returns) == 3


def test_an_environment_with_other_spaces_than_the_data_is_refused(trained: DecisionTransformer) -> None:
    with pytest.raises(ConfigError, match="observation space"):
        trained.evaluate("test/Drift-v0", [1.0], env_kwargs={"observation": "image"})
    with pytest.raises(ConfigError, match="action space"):
        trained.evaluate("test/Drift-v0", [1.0], env_kwargs={"action": "discrete"})


def test_wrappers_are_applied(data: Trajectories) -> None:
    first = replace(
        data,
        observations={"": data.observations[""][:, :1].copy()},
        observation_space=spaces.Box(-10, 10, (1,), np.float32),
    )
    keep = {"name": "KeepIndices", "indices": [0]}
    model = make(first)
    assert len(model.evaluate("test/Drift-v0", [1.0], episodes=2, wrappers=[keep])[0].returns) == 2
    seen: list[Any] = []

    def look(env: gym.Env[Any, Any]) -> gym.Env[Any, Any]:
        seen.append(env.observation_space.shape)
        return env

    model.evaluate("test/Drift-v0", [1.0], episodes=1, wrappers=[look, keep])
    assert seen == [(1,)]  # functions come after names


# ------------------------------------------------------------------------------------------------------- memory


def test_windows_longer_than_the_memory_train_it_and_are_acted_on_without_restarts(data: Trajectories) -> None:
    backbone = {"width": 16, "layers": 2, "heads": 2, "memory": 3, "position": "rope"}
    model = make(data, context_length=12, policy_kwargs={"backbone": backbone}).learn(2)
    assert model.settings.acting_mode == "banded"
    assert make(data).settings.acting_mode == "refresh"
    first = model.evaluate("test/Drift-v0", [1.0], episodes=5)[0]
    whole = model.evaluate("test/Drift-v0", [1.0], episodes=5, acting_mode="recompute")[
        0
    ]  # episodes of at most 14 steps
    short = [i for i, length in enumerate(first.lengths) if length <= 12]
    assert [first.returns[i] for i in short] == pytest.approx([whole.returns[i] for i in short], abs=1e-4)


@pytest.mark.parametrize("mode", ["dt", "advantage"])
@pytest.mark.parametrize("preset", ["gtrxl", "gpt", "linear_transformer"])
def test_any_backbone_can_be_chosen(data: Trajectories, preset: str, mode: Any) -> None:
    options = {"advantage_kwargs": {"updates": 1}} if mode == "advantage" else {}
    backbone, target = {"preset": preset, "width": 16, "layers": 1, "heads": 2}, 1.0 if mode == "dt" else None
    model = make(data, mode=mode, policy_kwargs={"backbone": backbone}, **options).learn(2)
    cached, whole = (
        model.evaluate("test/Drift-v0", target, episodes=4, acting_mode=way)[0] for way in ("refresh", "recompute")
    )
    # episodes no longer than the context are seen whole in both modes
    short = [i for i, length in enumerate(cached.lengths) if length <= 5]
    assert [cached.returns[i] for i in short] == pytest.approx([whole.returns[i] for i in short], abs=1e-4)


def test_mixers_learn_after_every_step_of_the_optimizer(data: Trajectories, monkeypatch: pytest.MonkeyPatch) -> None:
    model = make(data)
    events: list[str] = []
    step = model._optimizer.step

    def noted() -> None:
        events.append("step")
        step()

    monkeypatch.setattr(model._optimizer, "step", noted)
    monkeypatch.setattr(model.policy.backbone, "maintain", lambda: events.append("maintain"))
    model.learn(3)
    assert events == ["step", "maintain"] * 3


def test_data_with_more_steps_than_the_timestep_table_are_refused(data: Trajectories, tmp_path: Path) -> None:
    backbone = {**TINY["backbone"], "position": {"name": "timestep", "max_len": 8}}
    longest = int(data.lengths.argmax())
    message = (
        rf"drift: episode {longest} has {data.lengths.max()} steps: environment step .* table of 8 rows; raise max_len"
    )
    with pytest.raises(DataError, match=message):
        make(data, policy_kwargs={"backbone": backbone}).learn(1)
    short = data.select(data.lengths <= 8)
    model = make(short, policy_kwargs={"backbone": backbone})
    model.save(tmp_path / "model")
    with pytest.raises(DataError, match=message):
        DecisionTransformer.load(tmp_path / "model", dataset=data).learn(1)
    assert DecisionTransformer.load(tmp_path / "model", dataset=short).learn(1).num_timesteps == 1


# -------------------------------------------------------------------------------------------------- checkpoints


def test_a_loaded_model_acts_like_the_saved_one(trained: DecisionTransformer, tmp_path: Path) -> None:
    trained.save(tmp_path / "model")
    loaded = DecisionTransformer.load(tmp_path / "model", device="cpu")
    options: Any = {"target_returns": [2.0], "episodes": 4}
    assert loaded.evaluate("test/Drift-v0", **options) == trained.evaluate("test/Drift-v0", **options)
    assert loaded.settings == trained.settings
    assert loaded.backbone_config == trained.backbone_config
    with pytest.raises(ConfigError, match="dataset"):
        loaded.learn(1)
    with pytest.raises(ConfigError, match="action space"):
        DecisionTransformer.load(tmp_path / "model", record(3, action="discrete"), device="cpu")


def test_a_loaded_model_goes_on_with_the_sampled_actions_of_the_saved_one(tmp_path: Path) -> None:
    model = make(record(action="discrete"), seed=5)
    observations = np.zeros((32, 2), np.float32)
    begin = model.predict(observations)[0]
    path = tmp_path / "model.zip"
    model.save(path)
    load = partial(DecisionTransformer.load, device="cpu")
    loaded, again, other = load(path), *(load(path, custom_objects={"seed": seed}) for seed in (5, 6))
    np.testing.assert_array_equal(again.predict(observations)[0], begin)
    assert not np.array_equal(other.predict(observations)[0], begin)
    for _ in range(2):
        np.testing.assert_array_equal(loaded.predict(observations)[0], model.predict(observations)[0])


def test_checkpoints_of_other_agents_and_damaged_ones_are_refused(trained: DecisionTransformer, tmp_path: Path) -> None:
    save_checkpoint(tmp_path / "other", "GTrXLPPO", {}, {})
    with pytest.raises(CheckpointError, match="GTrXLPPO"):
        DecisionTransformer.load(tmp_path / "other")
    save_checkpoint(tmp_path / "empty", "DecisionTransformer", {}, {})
    with pytest.raises(CheckpointError, match="does not hold a complete DecisionTransformer: it lacks 'policy'"):
        DecisionTransformer.load(tmp_path / "empty")
    trained.save(tmp_path / "cut")
    whole = (tmp_path / "cut.zip").read_bytes()
    (tmp_path / "cut.zip").write_bytes(whole[: len(whole) // 2])
    with pytest.raises(CheckpointError, match="corrupt"):
        DecisionTransformer.load(tmp_path / "cut")


def test_loading_never_runs_code_from_the_file(trained: DecisionTransformer, tmp_path: Path) -> None:
    class Payload:
        def __reduce__(self) -> tuple[Any, tuple[Any, ...]]:
            return Path.touch, (tmp_path / "touched",)

    trained.save(tmp_path / "model")
    with zipfile.ZipFile(tmp_path / "model.zip") as archive:
        header = archive.read("header.json")
    torch.save({"policy": Payload()}, tmp_path / "tensors.pt")
    with zipfile.ZipFile(tmp_path / "evil.zip", "w") as archive:
        archive.writestr("header.json", header)
        archive.write(tmp_path / "tensors.pt", "tensors.pt")
    with pytest.raises(CheckpointError, match="refused"):
        DecisionTransformer.load(tmp_path / "evil.zip")
    assert not (tmp_path / "touched").exists()


# ----------------------------------------------------------------------------------------------------- settings


@pytest.mark.parametrize(
    ("settings", "message"),
    [
        ({"policy_kwargs": {"backbon": {}}}, "did you mean 'backbone'"),
        ({"policy_kwargs": {"backbone": {"wdth": 3}}}, "did you mean 'width'"),
        ({"policy_kwargs": {"backbone": {"tokens_per_step": 2}}}, "tokens_per_step"),
        ({"mode": "db"}, "mode must be one of 'dt', 'advantage', 'bc', got 'db'"),
        ({"acting_mode": "refesh"}, "did you mean 'refresh'"),
        ({"acting_mode": "recompute", "policy_kwargs": LOOKING}, "take 'refresh' or 'banded'"),
        ({"mode": "bc", "delayed_reward": True}, "no effect"),
        ({"mode": "bc", "return_scale": 2.0}, "no effect"),
        ({"warmup_steps": 9, "decay_steps": 9}, "decay_steps"),
        ({"context_length": 0}, "context_length"),
        ({"learning_rate": -1.0}, "learning_rate"),
        ({"top_fraction": 0.0}, "top_fraction"),
        ({"discount": 1.5}, "discount"),
        ({"return_scale": 0.0}, "return_scale"),
        ({"seed": -1}, "seed"),
    ],
)
def test_impossible_settings_are_refused(data: Trajectories, settings: dict[str, Any], message: str) -> None:
    with pytest.raises(ConfigError, match=message):
        make(data, **settings)


def test_an_unknown_policy_is_refused(data: Trajectories) -> None:
    with pytest.raises(ConfigError, match="did you mean 'DTPolicy'"):
        DecisionTransformer("DTPolcy", data)


def test_a_batch_can_be_moved_and_gives_the_loss_that_learning_uses(data: Trajectories) -> None:
    model = make(data)
    assert model._sampler is not None
    batch: ContextBatch = model._sampler.sample(4, torch.Generator().manual_seed(0))
    assert torch.equal(model.loss(batch), model.loss(batch.to("cpu")))


def test_integers_without_bounds_are_standardized_as_floats_are(tmp_path: Path) -> None:
    counts = np.random.default_rng(0).integers(0, 10_000, (6, 9, 2))
    episodes = [{"observations": rows, "actions": np.zeros((8, 1)), "rewards": np.ones(8)} for rows in counts]
    models = []
    for dtype in (np.int64, np.float32):
        told = [episode | {"observations": episode["observations"].astype(dtype)} for episode in episodes]
        space = spaces.Box(0, np.inf, (2,), dtype)
        models.append(make(load_trajectories(told, observation_space=space)).learn(3))
    models[0].save(tmp_path / "model")
    loaded = DecisionTransformer.load(tmp_path / "model", device="cpu")
    actions = [
        model.predict(counts[0, 0].astype(model.observation_space.dtype))[0] for model in (models[1], models[0], loaded)
    ]
    assert np.array_equal(actions[0], actions[1]) and np.array_equal(actions[1], actions[2])


def test_going_on_with_actions_that_the_model_cannot_take_is_refused(data: Trajectories, tmp_path: Path) -> None:
    make(data).save(tmp_path / "model")
    wide = replace(data, actions={"": 2 * data.actions[""]}, action_space=spaces.Box(-4, 4, (1,), np.float32))
    with pytest.raises(DataError, match=r"outside the bounds -2.0..2.0"):
        DecisionTransformer.load(tmp_path / "model", wide, device="cpu")


@pytest.mark.parametrize("delayed", [False, True])
def test_with_a_discount_a_target_is_compared_with_the_discounted_return(data: Trajectories, delayed: bool) -> None:
    model = make(data, discount=0.5, delayed_reward=delayed)
    (result,) = model.evaluate("test/Drift-v0", [2.0], episodes=3, seed=7)
    env = Drift()
    for seed, total, obtained in zip(result.seeds, result.returns, result.obtained, strict=True):
        observation, _ = env.reset(seed=seed)
        state, rewards, done = None, [0.0], False
        while not done:
            action, state = model.predict(observation, state, target_return=2.0, reward=rewards[-1])
            observation, reward, _, done, _ = env.step(action)
            rewards.append(reward)
        steps = np.arange(len(rewards) - 1)
        weights = np.full(len(steps), 0.5 ** steps[-1]) if delayed else 0.5**steps
        assert total == pytest.approx(sum(rewards), abs=1e-4)
        assert obtained == pytest.approx(float(weights @ rewards[1:]), abs=1e-4)


def wide_data() -> list[dict[str, Any]]:
    """Episodes of one action, 3, which is outside the Box of ``Narrow``."""
    return [
        {"observations": np.ones((6, 2), np.float32), "actions": np.full((5, 2), 3.0, np.float32), "rewards": [1.0] * 5}
        for _ in range(4)
    ]


class Narrow(AnySpace):
    """One observation; takes actions in [-1, 1] and keeps them."""

    def __init__(self) -> None:
        super().__init__(spaces.Box(1.0, 1.0, (2,)), spaces.Box(-1.0, 1.0, (2,), np.float64))
        self.taken: list[Any] = []

    def step(self, action: Any) -> tuple[Any, float, bool, bool, dict[str, Any]]:
        self.taken.append(action.copy())
        return super().step(action)


def looking_back(monkeypatch: pytest.MonkeyPatch) -> list[np.ndarray]:
    """The last action that each decision of a model looks back on, one environment at a time: a token."""
    unwatched, seen = Decider.step, list[np.ndarray]()

    def watching(decider: Decider, leaves: Any, state: Any, *, start: Any, **options: Any) -> Any:
        if not start[0]:
            seen.append(state.action[0].numpy().copy())
        return unwatched(decider, leaves, state, start=start, **options)

    monkeypatch.setattr(Decider, "step", watching)
    return seen


def tokens_of(model: DecisionTransformer, actions: list[Any]) -> np.ndarray:
    with torch.inference_mode():
        return model.policy.head.embed({"": torch.tensor(np.array(actions), dtype=torch.float32)}).numpy()


@pytest.mark.parametrize("mode", ["dt", "bc"])
def test_actions_are_clipped_to_a_box_that_is_narrower_than_that_of_the_data(
    mode: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    model = make(wide_data(), context_length=3, mode=mode, learning_rate=1e-2, warmup_steps=0).learn(60)
    assert float(model.predict(np.ones(2, np.float32), deterministic=True)[0].min()) > 1.0
    env = Narrow()
    seen = looking_back(monkeypatch)
    model.evaluate(env, episodes=2)
    assert np.array(env.taken).max() == 1.0 and len(env.taken) == 8
    # Every decision but the first of an episode looks back on the action that was executed before it.
    np.testing.assert_allclose(seen, tokens_of(model, env.taken[0:3] + env.taken[4:7]), atol=1e-6)
