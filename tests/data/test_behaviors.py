"""Behaviors named by a text: random actions, Stable-Baselines3 files old and new, functions and objects."""

import base64
import io
import json
import pickle
import zipfile
from pathlib import Path
from typing import Any

import gymnasium as gym
import numpy as np
import pytest
import torch
from gymnasium import spaces
from sb3_contrib import RecurrentPPO
from stable_baselines3 import A2C, DQN, PPO, SAC
from stable_baselines3.common.running_mean_std import RunningMeanStd
from stable_baselines3.common.vec_env import DummyVecEnv, VecNormalize

from rltransformers.core.errors import ConfigError, DataError
from rltransformers.core.spaces import leaf_spaces, leaf_values
from rltransformers.data import load_behavior, mixture, record, register_behavior
from rltransformers.data.behaviors import Random, as_behavior
from tests.agents.masked_envs import Locks

OBSERVATIONS = spaces.Box(-np.inf, np.inf, (4,), np.float32)
STARTS = np.ones(3, bool)
BATCH = np.random.default_rng(1).normal(size=(3, 4)).astype(np.float32)


def rng(seed: int = 0) -> np.random.Generator:
    return np.random.default_rng(seed)


def cart_pole(text: str, **options: Any) -> Any:
    return load_behavior(text, OBSERVATIONS, spaces.Discrete(2), **options)


@pytest.fixture(scope="module")
def ppo_zip(tmp_path_factory: pytest.TempPathFactory) -> Path:
    path = tmp_path_factory.mktemp("ppo") / "CartPole-v1.zip"
    PPO("MlpPolicy", "CartPole-v1", n_steps=8, batch_size=8, policy_kwargs={"net_arch": [4]}, device="cpu").save(path)
    return path


@pytest.mark.parametrize(
    "space",
    [
        spaces.Discrete(3, start=-1),
        spaces.MultiDiscrete([2, 5], start=[1, 0]),
        spaces.MultiBinary(3),
        spaces.Box(np.array([-2.0, 0.0], np.float32), np.array([-1.0, 9.0], np.float32)),
        spaces.Box(0, 255, (2, 2), np.uint8),
        spaces.Dict({"move": spaces.Discrete(2), "aim": spaces.Tuple([spaces.Box(-1, 1, (2,)), spaces.Discrete(3)])}),
    ],
    ids=str,
)
def test_random_actions_cover_their_space_evenly(space: gym.Space[Any]) -> None:
    actions = Random(space).act(None, np.zeros(4000, bool), rng())
    for path, leaf in leaf_spaces(space).items():
        rows = np.asarray(leaf_values(space, actions)[path])
        assert leaf.shape is not None
        assert rows.shape == (4000, *leaf.shape) and all(leaf.contains(row) for row in rows[:50])
        low = getattr(leaf, "low", getattr(leaf, "start", 0))
        high = leaf.high if isinstance(leaf, spaces.Box) else low + getattr(leaf, "nvec", getattr(leaf, "n", 2)) - 1
        high = np.ones(leaf.shape) if isinstance(leaf, spaces.MultiBinary) else high
        middle, width = (np.asarray(low, float) + high) / 2, np.asarray(high, float) - low
        # a uniform mean has deviation at most 0.5 * width / sqrt(4000) = 0.008 widths; five of them
        assert (np.abs(rows.mean(axis=0) - middle) <= 0.04 * width + 1e-9).all()


MASKED = spaces.Tuple([spaces.MultiDiscrete([2, 3], start=[1, 0]), spaces.Box(-1, 1, (2,)), spaces.MultiBinary(1)])


@pytest.mark.parametrize("dtype", [np.uint8, np.int32, np.int64])
def test_random_classes_have_the_type_of_their_space(dtype: Any) -> None:
    space = spaces.Dict({"a": spaces.Discrete(3, start=2, dtype=dtype)})
    action = Random(space).act(BATCH, STARTS, rng())["a"]
    assert action.dtype == dtype and space.contains({"a": action[0]})


def test_random_actions_are_uniform_among_those_that_a_mask_allows() -> None:
    masks = np.array([[1, 0, 1, 1, 0, 1, 1], [0, 1, 1, 1, 1, 0, 1]], np.int8)
    observed = spaces.Dict({"action_mask": spaces.MultiBinary(7), "place": spaces.Discrete(2)})
    behavior = Random(MASKED, observation_space=observed)
    seen: dict[str, np.ndarray] = {"action_mask": masks.repeat(3000, 0), "place": np.zeros(6000, np.int64)}
    pairs, box, bit = behavior.act(seen, np.zeros(6000, bool), rng())
    assert np.unique(pairs[:3000, 0]).tolist() == [1] and np.unique(pairs[3000:, 0]).tolist() == [2]
    # five standard errors of 3,000 draws, of shares of 1/2 and 1/3
    assert set(np.abs(np.bincount(pairs[:3000, 1]) - [1500, 1500]) < 137) == {True}
    assert set(np.abs(np.bincount(pairs[3000:, 1]) - [1000, 1000, 1000]) < 130) == {True}
    assert abs(bit[:3000].mean() - 0.5) < 0.046 and bool((bit[3000:] == 1).all()) and box.shape == (6000, 2)
    seen["action_mask"][4] = 0
    with pytest.raises(DataError, match="the action mask of environment 4 allows no action in component 0 of 3"):
        behavior.act(seen, np.zeros(6000, bool), rng())


def test_a_leaf_that_is_no_mask_changes_no_random_action() -> None:
    other = spaces.Dict({"action_mask": spaces.Box(-1, 1, (7,))})
    actions = [
        Random(MASKED, observation_space=space).act({"action_mask": np.zeros((5, 7))}, np.zeros(5, bool), rng())
        for space in (None, other)
    ]
    np.testing.assert_array_equal(actions[0][0], actions[1][0])


def test_random_episodes_keep_to_masks() -> None:
    data = record(lambda: Locks(observed=True), "random", episodes=6, seed=0)  # Locks refuses other actions
    masks = data.observations["action_mask"]
    assert len(data.lengths) == 6 and 0 < masks.mean() < 1


def test_unbounded_actions_are_standard_normal() -> None:
    actions = Random(spaces.Box(-np.inf, np.inf, (2,))).act(None, np.zeros(4000, bool), rng())
    assert abs(actions.mean()) < 0.06 and abs(actions.std() - 1) < 0.06  # five standard errors of 8000 draws


@pytest.mark.parametrize(
    ("algorithm", "make"),
    [
        ("ppo", lambda: PPO("MlpPolicy", "CartPole-v1", n_steps=8, batch_size=8, device="cpu")),
        ("a2c", lambda: A2C("MlpPolicy", "CartPole-v1", device="cpu")),
        ("dqn", lambda: DQN("MlpPolicy", "CartPole-v1", buffer_size=8, device="cpu")),
        ("recurrentppo", lambda: RecurrentPPO("MlpLstmPolicy", "CartPole-v1", n_steps=8, batch_size=8, device="cpu")),
    ],
)
def test_a_saved_policy_acts_as_its_model_does(algorithm: str, make: Any, tmp_path: Path) -> None:
    model = make()
    model.save(tmp_path / "model.zip")
    behavior = cart_pole(f"sb3:{algorithm}:{tmp_path / 'model.zip'}", deterministic=True)
    expected, state = model.predict(BATCH, episode_start=STARTS, deterministic=True)
    np.testing.assert_array_equal(behavior.act(BATCH, STARTS, rng()), expected)
    later, _ = model.predict(-BATCH, state=state, episode_start=~STARTS, deterministic=True)
    np.testing.assert_array_equal(behavior.act(-BATCH, ~STARTS, rng()), later)


def test_sampled_actions_follow_the_generator_and_leave_the_global_ones_alone(ppo_zip: Path) -> None:
    behavior = cart_pole(f"sb3:ppo:{ppo_zip}")
    many = np.repeat(BATCH, 30, axis=0)
    torch.manual_seed(3)
    np.random.seed(3)
    before = torch.random.get_rng_state(), np.random.get_state(legacy=False)["state"]["key"].copy()
    draws = [behavior.act(many, np.ones(90, bool), rng(seed)) for seed in (0, 0, 1)]
    assert (draws[0] == draws[1]).all() and not (draws[0] == draws[2]).all()
    assert torch.equal(torch.random.get_rng_state(), before[0])
    assert (np.random.get_state(legacy=False)["state"]["key"] == before[1]).all()


def test_state_dependent_exploration_draws_noise_for_every_environment(tmp_path: Path) -> None:
    model = SAC("MlpPolicy", "Pendulum-v1", use_sde=True, buffer_size=8, policy_kwargs={"net_arch": [4]}, device="cpu")
    model.save(tmp_path / "sac.zip")
    env = gym.make("Pendulum-v1")
    behavior = load_behavior(f"sb3:sac:{tmp_path / 'sac.zip'}", env.observation_space, env.action_space)
    actions = behavior.act(np.ones((5, 3), np.float32), np.ones(5, bool), rng())
    assert len(np.unique(actions)) == 5


def old_pickle(value: Any) -> bytes:
    """The pickle of ``value`` as a version that used ``gym`` wrote it; protocol 2 spells module names as lines."""
    return pickle.dumps(value, protocol=2).replace(b"cgymnasium.spaces", b"cgym.spaces")


def test_files_that_name_the_package_gym_and_hold_old_code_load(ppo_zip: Path, tmp_path: Path) -> None:
    old = tmp_path / "old.zip"
    with zipfile.ZipFile(ppo_zip) as source, zipfile.ZipFile(old, "w") as target:
        for item in source.namelist():
            content = source.read(item)
            if item == "data":
                data = json.loads(content)
                for key, value in (("observation_space", OBSERVATIONS), ("action_space", spaces.Discrete(2))):
                    data[key][":serialized:"] = base64.b64encode(old_pickle(value)).decode()
                data["some_box"] = {
                    ":type:": "Box",
                    ":serialized:": base64.b64encode(old_pickle(OBSERVATIONS)).decode(),
                }
                # what a Python 3.7 function looks like to a later one: an unreadable code object
                broken = base64.b64encode(b"\x80\x02c__builtin__\ngetattr\n(K\x01K\x02tR.").decode()
                data["lr_schedule"] = {":type:": "function", ":serialized:": broken}
                data["clip_range"] = {":type:": "function", ":serialized:": broken}
                content = json.dumps(data).encode()
            target.writestr(item, content)
    behavior = cart_pole(f"sb3:ppo:{old}", deterministic=True)
    expected = cart_pole(f"sb3:ppo:{ppo_zip}", deterministic=True).act(BATCH, STARTS, rng())
    np.testing.assert_array_equal(behavior.act(BATCH, STARTS, rng()), expected)
    assert isinstance(behavior.model.some_box, spaces.Box)
    with pytest.raises(ImportError):
        __import__("gym")  # the alias lasts for the loading alone


def statistics(tmp_path: Path) -> tuple[Path, Path, np.ndarray]:
    normalize = VecNormalize(DummyVecEnv([lambda: gym.make("CartPole-v1")]), clip_obs=1.5)
    assert isinstance(normalize.obs_rms, RunningMeanStd)
    normalize.obs_rms.mean, normalize.obs_rms.var = np.arange(4.0), np.arange(4.0) + 0.5
    normalize.save(str(tmp_path / "vecnormalize.pkl"))
    arrays: dict[str, Any] = {
        "mean": np.arange(4.0),
        "var": np.arange(4.0) + 0.5,
        "epsilon": 1e-8,
        "clip_obs": 1.5,
        "norm_obs": True,
    }
    np.savez(tmp_path / "obs_norm.npz", **arrays)
    expected = np.clip((BATCH - np.arange(4.0)) / np.sqrt(np.arange(4.0) + 0.5 + 1e-8), -1.5, 1.5)
    return tmp_path / "vecnormalize.pkl", tmp_path / "obs_norm.npz", expected


def test_observation_statistics_come_from_a_pickle_or_from_arrays(ppo_zip: Path, tmp_path: Path) -> None:
    *files, expected = statistics(tmp_path)
    for file in files:
        behavior = cart_pole(f"sb3:ppo:{ppo_zip}:{file}")
        np.testing.assert_allclose(behavior.normalize(BATCH), expected, rtol=1e-6)  # float32
    assert cart_pole(f"sb3:ppo:{ppo_zip}").normalize is None


def test_statistics_beside_the_policy_are_found_and_named(ppo_zip: Path, tmp_path: Path) -> None:
    zoo = tmp_path / "CartPole-v1.zip"
    zoo.write_bytes(ppo_zip.read_bytes())
    zoo.with_suffix("").mkdir()
    *_, expected = statistics(zoo.with_suffix(""))
    behavior = cart_pole(f"sb3:ppo:{zoo}")
    np.testing.assert_allclose(behavior.normalize(BATCH), expected, rtol=1e-6)
    assert behavior.name == "sb3:ppo:CartPole-v1.zip:obs_norm.npz"


def test_functions_classes_and_registered_kinds_are_found_by_name() -> None:
    assert list(cart_pole("tests.data.behaviors_for_tests:zeros").act(BATCH, STARTS, rng())) == [0, 0, 0]
    assert list(cart_pole("tests.data.behaviors_for_tests:Constant").act(BATCH, STARTS, rng())) == [1, 1, 1]
    data = record("CartPole-v1", "tests.data.behaviors_for_tests:zeros", 20)
    assert data.metadata["behaviors"][0]["name"] == "tests.data.behaviors_for_tests:zeros"
    seen: list[Any] = []

    def loader(*arguments: Any) -> Random:
        seen.extend(arguments)
        return Random(arguments[2])

    register_behavior("own", loader)
    assert isinstance(cart_pole("own:a:b", deterministic=True), Random)
    assert seen == ["a:b", OBSERVATIONS, spaces.Discrete(2), True]


@pytest.mark.parametrize(
    ("text", "message"),
    [
        ("randm", "is none of: random, demonstration:<task>, sb3"),
        ("sb3:pop:x.zip", "did you mean 'ppo'"),
        ("sb3:ppo", "should read sb3:<algorithm>:<zip>"),
        ("tests.data.behaviors_for_tests:zero", "did you mean 'zeros'"),
        ("tests.data.behaviors_for_tests:not_a_behavior", "got int"),
        ("no_such_module:thing", "the module 'no_such_module' cannot be imported"),
        (":thing", "must be MODULE:NAME"),
        (".relative:thing", "cannot be imported"),
        ("tests.data.behaviors_for_tests:of_observations",
         r"of_observations is called with \(observations, episode_starts, generator\), but it takes \(observations"),
        ("tests.data.behaviors_for_tests:WithoutSpaces",
         r"WithoutSpaces is called with \(observation_space, action_space\), but it takes \(\): too many"),
    ],
)  # fmt: skip
def test_texts_that_name_nothing_are_refused(text: str, message: str) -> None:
    with pytest.raises(ConfigError, match=message):
        cart_pole(text)


def test_a_function_of_other_arguments_is_no_behavior_and_one_that_takes_them_is() -> None:
    with pytest.raises(ConfigError, match=r"<lambda> is called with \(observations, episode_starts, generator\)"):
        record("CartPole-v1", lambda observations: observations, 5)
    made = as_behavior(lambda *given: given[1] * 0, OBSERVATIONS, spaces.Discrete(2))
    assert list(made.act(BATCH, STARTS, rng())) == [0, 0, 0]


def test_files_that_cannot_be_used_are_named(ppo_zip: Path, tmp_path: Path) -> None:
    with pytest.raises(DataError, match=r"there is no policy file gone\.zip"):
        cart_pole("sb3:ppo:gone.zip")
    (tmp_path / "text.zip").write_text("hello")
    with pytest.raises(DataError, match=r"text\.zip could not be loaded as PPO"):
        cart_pole(f"sb3:ppo:{tmp_path / 'text.zip'}")
    with pytest.raises(DataError, match="could not be loaded as PPO for observations"):
        load_behavior(f"sb3:ppo:{ppo_zip}", spaces.Box(-1, 1, (7,)), spaces.Discrete(2))
    (tmp_path / "statistics.pkl").write_bytes(io.BytesIO(b"no").getvalue())
    with pytest.raises(DataError, match="no readable observation statistics"):
        cart_pole(f"sb3:ppo:{ppo_zip}:{tmp_path / 'statistics.pkl'}")


def test_mixtures_need_positive_weights() -> None:
    with pytest.raises(ConfigError, match="at least one"):
        mixture([])
    weights: list[Any] = [0.0, -1.0, float("nan"), float("inf"), "0.5", True, None]
    for weight in weights:
        with pytest.raises(ConfigError, match="the weight of 'random' must be a positive number, got"):
            mixture([(1.0, "random"), (weight, "random")])
    assert mixture([(np.float32(1.0), "random"), (2, "random")]).shares(3) == [1, 2]  # type: ignore[list-item]
    with pytest.raises(ConfigError, match=r"of 1 a mixture gives 'random' nothing, whose weight is 2; record more"):
        mixture([(3.0, "zero"), (2.0, "random")]).shares(1)
    wrong: list[Any] = [["random"], "random", [(1.0,)], [1.0], [(1.0, "random", 2)]]
    for parts in wrong:
        with pytest.raises(ConfigError, match=r"made of \(weight, behavior\) pairs"):
            mixture(parts)
