"""A policy as it stands in a file: acts as ``predict`` does on raw observations, and says what a client has to know."""

import json
from collections.abc import Mapping
from typing import Any

import gymnasium as gym
import numpy as np
import pytest
import torch
from gymnasium import spaces
from stable_baselines3.common.vec_env import DummyVecEnv, VecFrameStack, VecNormalize
from torch import Tensor

from rltransformers.agents import DecisionTransformer, GTrXLPPO
from rltransformers.core.errors import ConfigError, DataError
from rltransformers.core.spaces import leaf_spaces, leaf_values, space_from_json, stack_members
from rltransformers.data import load_trajectories
from rltransformers.envs import FlatDict
from rltransformers.export.step import Tensors
from rltransformers.policies import shipping
from rltransformers.policies.shipping import ActorCriticInFile, DecisionInFile, PolicyInFile
from rltransformers.policies.steps import leaf_name
from rltransformers.training.normalization import scalings_of
from tests.agents.tiny_envs import AnySpace

BACKBONE = {"width": 8, "layers": 1, "heads": 2, "memory": 4}
VECTOR = spaces.Box(-1.0, 1.0, (3,))
SMALL, DOUBLE = spaces.Box(-0.1, 0.1, (2,), np.float64), spaces.Box(-1.0, 1.0, (2, 2), np.float64)
IMAGE = spaces.Box(0, 255, (7, 7, 3), np.uint8)
SPACES: dict[str, tuple[gym.Space[Any], gym.Space[Any]]] = {
    "double": (DOUBLE, SMALL),
    "image": (IMAGE, spaces.Discrete(2, start=5)),
    "classes": (spaces.MultiDiscrete([3, 4], start=[1, -2]), spaces.MultiDiscrete([2, 3], start=[4, 1])),
    "bits": (spaces.MultiBinary(4), spaces.MultiBinary([2, 2])),
    "nested": (
        spaces.Dict({"camera": spaces.Dict({"left": IMAGE}), "rest": spaces.Tuple((VECTOR, spaces.Discrete(3)))}),
        spaces.Dict({"grip": spaces.Discrete(2, start=5), "arm": SMALL}),
    ),
}


def online(observation: gym.Space[Any], action: gym.Space[Any], **policy: Any) -> GTrXLPPO:
    kwargs = {"backbone": BACKBONE, **policy}
    return GTrXLPPO("GTrXLPolicy", AnySpace(observation, action), n_steps=8, seed=0, device="cpu", policy_kwargs=kwargs)


def offline(observation: gym.Space[Any], action: gym.Space[Any], **settings: Any) -> DecisionTransformer:
    observation.seed(0)
    action.seed(0)
    episode = {
        "observations": stack_members(observation, [observation.sample() for _ in range(7)]),
        "actions": stack_members(action, [action.sample() for _ in range(6)]),
        "rewards": np.arange(6.0),
        "terminations": np.arange(6) == 5,
        "truncations": np.zeros(6, bool),
    }
    data = load_trajectories([episode], observation_space=observation, action_space=action, name="any")
    chosen: dict[str, Any] = {
        "context_length": 4,
        "batch_size": 2,
        "seed": 3,
        "device": "cpu",
        "policy_kwargs": {"backbone": {"width": 8, "layers": 1}},
    }
    return DecisionTransformer("DTPolicy", data, **(chosen | settings))


def as_inputs(space: gym.Space[Any], rows: list[Any], examples: Tensors) -> Tensors:
    """Observations as a client gives them: in the types of the space, one tensor per leaf."""
    leaves = [leaf_values(space, row) for row in rows]
    found = {path: np.stack([np.asarray(row[path]) for row in leaves]) for path in leaf_spaces(space)}
    named = {leaf_name("observation", path): torch.from_numpy(value) for path, value in found.items()}
    assert {name: value.dtype for name, value in named.items()} == {name: examples[name].dtype for name in named}
    return named


def assert_same_actions(space: gym.Space[Any], outputs: Mapping[str, Tensor], actions: Any) -> None:
    """The file gives what the environment would get: members of the space, of its types."""
    expected = leaf_values(space, stack_members(space, actions) if isinstance(actions, list) else actions)
    for path, leaf in leaf_spaces(space).items():
        found = outputs[leaf_name("action", path)].numpy()
        assert found.dtype == leaf.dtype == expected[path].dtype
        np.testing.assert_allclose(found, expected[path], rtol=1e-6, atol=1e-6)  # sums in another order
        assert all(leaf.contains(row) for row in found)


def take(step: PolicyInFile, inputs: Tensors, state: Tensors) -> tuple[Tensors, Tensors]:
    with torch.no_grad():
        outputs, after = step(inputs, state)
    return outputs, after


@pytest.mark.parametrize("kinds", SPACES)
@pytest.mark.parametrize("greedy", [True, False])
def test_a_policy_with_memory_acts_in_a_file_as_predict_does(kinds: str, greedy: bool) -> None:
    observation, action = SPACES[kinds]
    model = online(observation, action, previous_action=True, previous_reward=True, shared_backbone=greedy)
    step = ActorCriticInFile(model.policy).eval()
    examples, state = step.examples(2)
    observation.seed(1)
    memory, (drawn, sampling) = None, (torch.Generator().manual_seed(7) for _ in range(2))
    for time in range(8):
        rows = [observation.sample() for _ in range(2)]
        first = np.array([time == 0, time in (0, 3)])
        reward = np.array([time, -1.0], np.float32)
        given = stack_members(observation, rows)
        actions, memory = model.policy.predict(given, memory, first, greedy, reward, sampling)
        noise = torch.zeros(2, model.policy.action_head.draws)
        noise = noise if greedy else model.policy.action_head.draw(2, drawn)
        outputs, state = take(
            step,
            {
                **as_inputs(observation, rows, examples),
                "first": torch.from_numpy(first),
                "reward": torch.from_numpy(reward),
                "greedy": torch.full((2,), greedy),
                "noise": noise,
            },
            state,
        )
        assert_same_actions(action, outputs, actions)


@pytest.mark.parametrize("kinds", SPACES)
@pytest.mark.parametrize("mode", ["dt", "bc"])
def test_a_decision_transformer_acts_in_a_file_as_predict_does(kinds: str, mode: str) -> None:
    observation, action = SPACES[kinds]
    model = offline(observation, action, mode=mode, acting_mode="refresh" if mode == "dt" else "banded")
    step = DecisionInFile(model.decider(), model.summary.best_return).eval()
    examples, state = step.examples(2)
    assert ("noise" in examples) == ("greedy" in examples) == (kinds != "double")  # a Box alone has one answer
    assert ("reward" in examples) == ("target_return" in examples) == (mode == "dt")
    memory = None
    for time in range(11):
        rows = [observation.sample() for _ in range(2)]
        start = np.array([time == 0, time in (0, 6)])
        reward, target = np.array([time, -1.0]), np.array([5.0, 9.0])
        asked = target if mode == "dt" else None
        actions, memory = model.predict(
            stack_members(observation, rows), memory, start, True, target_return=asked, reward=reward
        )
        inputs = {
            "start": torch.from_numpy(start),
            "reward": torch.from_numpy(reward),
            "target_return": torch.from_numpy(target),
            "greedy": torch.ones(2, dtype=torch.bool),
            "noise": examples.get("noise", torch.zeros(2, 0)),
        }
        inputs = {name: value for name, value in inputs.items() if name in examples}
        outputs, state = take(step, {**as_inputs(observation, rows, examples), **inputs}, state)
        assert_same_actions(action, outputs, actions)


@pytest.fixture(params=["box", "dict"])
def normalized(request: pytest.FixtureRequest) -> GTrXLPPO:
    """An agent that saw three updates of statistics, of a Box or of one leaf in a Dict."""
    observation: gym.Space[Any] = spaces.Box(-np.inf, np.inf, (3,))
    if request.param == "dict":
        observation = spaces.Dict({"place": spaces.Dict({"far": observation}), "image": IMAGE})

    def make() -> gym.Env[Any, Any]:
        env = AnySpace(observation, spaces.Box(-1, 1, (2,)))
        return FlatDict(env) if request.param == "dict" else env

    inner = DummyVecEnv([make] * 2)
    keys = ["place/far"] if request.param == "dict" else None
    env = VecNormalize(inner, norm_obs_keys=keys, clip_obs=1.0, clip_reward=0.5, epsilon=0.1)
    policy = {"backbone": BACKBONE, "previous_reward": True}
    model = GTrXLPPO("GTrXLPolicy", env, n_steps=8, n_epochs=1, seed=0, device="cpu", policy_kwargs=policy)
    return model.learn(48)


@pytest.mark.parametrize("loaded", [False, True])
def test_a_file_scales_observations_and_rewards_as_the_environment_did(
    normalized: GTrXLPPO, loaded: bool, tmp_path: Any
) -> None:
    env = normalized.get_vec_normalize_env()
    assert env is not None
    model = normalized
    if loaded:  # and saved once more, without an environment
        model.save(tmp_path / "first.zip")
        GTrXLPPO.load(tmp_path / "first.zip", device="cpu").save(tmp_path / "second.zip")
        model = GTrXLPPO.load(tmp_path / "second.zip", device="cpu")
    step = ActorCriticInFile(model.policy, *scalings_of(model._normalization())).eval()
    examples, state = step.examples(2)
    memory, first = None, np.ones(2, bool)
    raw_observation: Any = env.venv.reset()
    for time in range(8):
        raw_reward = np.array([time, -time], np.float32)
        scaled = env.normalize_obs(raw_observation)
        actions, memory = model.predict(scaled, memory, first, True, env.normalize_reward(raw_reward))
        leaves = raw_observation if isinstance(raw_observation, dict) else {"": raw_observation}
        outputs, state = take(
            step,
            {
                **{leaf_name("observation", path): torch.from_numpy(leaf) for path, leaf in leaves.items()},
                "first": torch.from_numpy(first),
                "reward": torch.from_numpy(raw_reward),
                "greedy": torch.ones(2, dtype=torch.bool),
                "noise": examples["noise"],
            },
            state,
        )
        np.testing.assert_allclose(outputs["action"].numpy(), actions, rtol=1e-6, atol=1e-6)
        raw_observation, _, first, _ = env.venv.step(actions)


def test_a_wrapper_between_the_statistics_and_the_policy_is_refused(tmp_path: Any) -> None:
    env = VecFrameStack(VecNormalize(DummyVecEnv([lambda: AnySpace(VECTOR, spaces.Discrete(2))])), 2)
    model = GTrXLPPO("GTrXLPolicy", env, n_steps=8, device="cpu", policy_kwargs={"backbone": BACKBONE})
    with pytest.raises(ConfigError, match="VecFrameStack stands between VecNormalize and the policy"):
        model.export(tmp_path / "policy.pt2")
    assert not list(tmp_path.iterdir())


@pytest.mark.parametrize("name", ["policy.tflite", "policy"])
def test_another_ending_is_refused_with_both_names(name: str, tmp_path: Any) -> None:
    for model in (online(VECTOR, SMALL), offline(VECTOR, SMALL)):
        (tmp_path / "folder.pt2").mkdir(exist_ok=True)
        with pytest.raises(ConfigError, match=r"folder\.pt2 is a folder; give the name of a file"):
            model.export(tmp_path / "folder.pt2")
        with pytest.raises(ConfigError, match=rf"'{name}' must end in \.pt2 .* or \.onnx"):
            model.export(tmp_path / name)


def test_a_mode_without_state_is_refused_with_the_way_out(tmp_path: Any) -> None:
    model = offline(VECTOR, SMALL, acting_mode="recompute")
    with pytest.raises(ConfigError, match=r"'recompute' .* export with acting_mode='refresh'"):
        model.export(tmp_path / "policy.pt2")


@pytest.mark.parametrize("kinds", SPACES)
@pytest.mark.parametrize("agent", [online, offline])
def test_the_metadata_build_a_first_state_that_acts_like_a_fresh_one(
    kinds: str, agent: Any, monkeypatch: pytest.MonkeyPatch, tmp_path: Any
) -> None:
    written: dict[str, Any] = {}

    def write(step: Any, path: Any, inputs: Tensors, state: Tensors, batch: Any, metadata: Any) -> None:
        written.update(step=step, state=state, **metadata)

    monkeypatch.setattr(shipping, "write_step", write)
    model = agent(*SPACES[kinds], **({"previous_action": True} if agent is online else {}))
    model.export(tmp_path / "policy.pt2")
    assert set(written["initial_state"]) == set(written["state"])
    for name, value in written["state"].items():
        built = np.full((2, *value.shape[1:]), written["initial_state"][name], str(value.dtype).removeprefix("torch."))
        np.testing.assert_array_equal(built, value.numpy())
    assert space_from_json(json.dumps(written["action_space"])) == model.action_space
    assert all(entry["numbers"] > 0 for entry in written["noise"])
    draws = sum(entry["numbers"] for entry in written["noise"])
    assert draws == written["step"].examples(2)[0].get("noise", torch.zeros(2, 0)).shape[1]


@pytest.mark.parametrize(
    ("position", "acting_mode", "longest"),
    [
        ({"name": "timestep", "max_len": 9}, "refresh", 9),
        ({"name": "learned", "max_len": 20}, "refresh", None),
        ({"name": "learned", "max_len": 19}, "banded", 6),
        ("rope", "banded", None),
    ],
)
def test_the_longest_episode_of_a_file_is_the_longest_that_the_policy_takes(
    position: Any, acting_mode: str, longest: int | None
) -> None:
    policy = {"backbone": {"width": 8, "layers": 1, "position": position, "memory": 3}}
    model = offline(VECTOR, spaces.Discrete(2), acting_mode=acting_mode, policy_kwargs=policy)
    assert DecisionInFile(model.decider(), 1.0).about()["longest_episode"] == longest
    state, limit = None, longest or 40
    for _ in range(limit):
        _, state = model.predict(np.zeros(3, np.float32), state, reward=0.0)
    if longest is not None:
        with pytest.raises(DataError, match="outside the position table"):
            model.predict(np.zeros(3, np.float32), state, reward=0.0)
