"""Spaces, policies and files that environments of tensors have to get along with."""

import warnings
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from gymnasium import spaces
from stable_baselines3.common.callbacks import CheckpointCallback
from stable_baselines3.common.vec_env import VecCheckNan, VecFrameStack, VecNormalize

from rltransformers.agents import GTrXLDQN, GTrXLPPO, GTrXLSAC
from rltransformers.core.errors import DataError
from rltransformers.envs.tensors import Outcome, TensorVecEnv
from rltransformers.envs.tensors.tasks import CartPole
from rltransformers.training.evaluation import evaluate_online

N = 3
POLICY: dict[str, Any] = {"backbone": {"preset": "gtrxl", "width": 8, "layers": 1, "heads": 2, "memory": 4}}
ON: dict[str, Any] = {"n_steps": 8, "n_epochs": 1, "policy_kwargs": POLICY, "seed": 0, "device": "cpu"}


class Rooms(TensorVecEnv):
    """Nested observations with a mask: only the room whose number is the time may be entered. Cut after 5 steps."""

    def __init__(self, nested_actions: bool = False) -> None:
        observation = spaces.Dict(
            {
                "action_mask": spaces.MultiBinary(3),
                "place": spaces.Dict(
                    {"room": spaces.Discrete(3, start=2), "map": spaces.Box(0, 255, (2, 2), np.uint8)}
                ),
                "vector": spaces.Box(-1.0, 1.0, (2,)),
            }
        )
        action: Any = spaces.Discrete(3)
        if nested_actions:
            action = spaces.Dict({"room": spaces.Discrete(3), "push": spaces.Box(-2.0, 2.0, (1,), np.float64)})
        super().__init__(N, observation, action, "cpu")
        self.state: dict[str, torch.Tensor] = {}
        self.taken: list[torch.Tensor] = []

    def begin(self, mask: torch.Tensor) -> Any:
        fresh = {"t": (self.draw(mask, 1)[:, 0] * 3).long()}
        self.state = {name: torch.where(mask, new, self.state.get(name, new)) for name, new in fresh.items()}
        return self._observe()

    def advance(self, actions: Any) -> Outcome:
        room = actions["room"] if isinstance(actions, dict) else actions
        if isinstance(actions, dict):
            assert actions["push"].dtype == torch.float64
            assert bool((actions["push"].abs() <= 2).all())
        self.taken.append(room == self.state["t"] % 3)
        self.state = {"t": self.state["t"] + 1}
        over = self.state["t"] >= 5
        return Outcome(self._observe(), room.float(), torch.zeros_like(over), over)

    def _observe(self) -> Any:
        room = self.state["t"] % 3
        picture = (room[:, None, None] * 80).expand(-1, 2, 2).to(torch.uint8)
        mask = (room[:, None] == torch.arange(3)).to(torch.int8)
        vector = torch.stack([room / 3, room * 0.0], 1)
        return {"action_mask": mask, "place": {"room": room + 2, "map": picture}, "vector": vector}


@pytest.mark.parametrize("kind", [GTrXLPPO, GTrXLDQN, GTrXLSAC])
def test_nested_observations_and_masks_are_read(kind: Any) -> None:
    off: dict[str, Any] = {"segment_length": 4, "buffer_size": 300, "train_freq": 4, "learning_starts": 20}
    settings = ON if kind is GTrXLPPO else off | {"policy_kwargs": POLICY, "seed": 0, "device": "cpu"}
    env = Rooms()
    model = kind(next(iter(kind.policy_aliases)), env, **settings).learn(72)
    assert torch.stack(env.taken).all(), "the mask allows one action"
    other = Rooms()
    result = evaluate_online(model, other, "", episodes=4, deterministic=False)
    assert torch.stack(other.taken).all()
    assert set(result.lengths) <= {3, 4, 5}
    if kind is GTrXLPPO:
        assert model.logger.name_to_value["train/first_ratio_error"] < 1e-5


def test_nested_actions_come_nested() -> None:
    settings = ON | {"policy_kwargs": POLICY | {"action_masks": False}}
    model = GTrXLPPO("GTrXLPolicy", Rooms(nested_actions=True), **settings).learn(48)
    actions, _ = model.predict(model.env.reset())  # type: ignore[union-attr]
    assert set(actions[0]) == {"room", "push"}
    step = model.env.step(actions)  # type: ignore[union-attr]
    assert set(step[0]) == {"action_mask", "place/room", "place/map", "vector"}


class Wrong(TensorVecEnv):
    """Every kind of leaf, cut after 5 steps; ``fault`` writes into what is seen at step 3, or where they are cut."""

    def __init__(self, fault: Any, at_ends: bool = False) -> None:
        observation = {
            "action_mask": spaces.MultiBinary(5),
            "flags": spaces.MultiBinary((2, 2)),
            "kind": spaces.Discrete(300, start=2),
            "kinds": spaces.MultiDiscrete([2, 3], start=[1, 0]),
            "picture": spaces.Box(0, 255, (2, 2), np.uint8),
            "vector": spaces.Box(-1.0, 1.0, (2,), np.float64),
        }
        super().__init__(N, spaces.Dict(observation), spaces.MultiDiscrete([2, 3]), "cpu")
        self.state: dict[str, torch.Tensor] = {}
        self.fault, self.at_ends = fault, at_ends

    def begin(self, mask: torch.Tensor) -> Any:
        t = torch.zeros(N, dtype=torch.int64)
        self.state = {"t": torch.where(mask, t, self.state.get("t", t))}
        return self._observe()

    def advance(self, actions: Any) -> Outcome:
        self.state = {"t": self.state["t"] + 1}
        over = self.state["t"] >= 5
        return Outcome(self._observe(), torch.ones(N), torch.zeros_like(over), over)

    def _observe(self) -> Any:
        seen: dict[str, torch.Tensor] = {
            "action_mask": torch.ones(N, 5, dtype=torch.int8),
            "flags": torch.ones(N, 2, 2, dtype=torch.int8),
            "kind": torch.full((N,), 2, dtype=torch.int16),
            "kinds": torch.ones(N, 2, dtype=torch.int64),
            "picture": torch.full((N, 2, 2), 255),
            "vector": torch.zeros(N, 2, dtype=torch.float64),
        }
        if self.state["t"][1] == (5 if self.at_ends else 3):
            self.fault(seen)
        return seen


def _writes(path: str, value: float, *place: int) -> Any:
    def fault(seen: dict[str, torch.Tensor]) -> None:
        if isinstance(value, float):
            seen[path] = seen[path].double()
        seen[path][(1, *place)] = value

    return fault


VALUES: dict[str, tuple[Any, str]] = {
    "flag": (_writes("flags", 2, 1, 0), r"'flags' of environment 1 {} is .*, outside MultiBinary"),
    "half a flag": (_writes("flags", 0.5, 1, 0), r"'flags' of environment 1 {} is .*, outside MultiBinary"),
    "class": (_writes("kind", 302), r"'kind' of environment 1 {} is .*302.*, outside Discrete\(300, start=2\); repair"),
    "classes": (_writes("kinds", 0, 0), r"'kinds' of environment 1 {} is .*, outside MultiDiscrete"),
    "picture": (_writes("picture", 256, 1, 1), r"'picture' of environment 1 {} is .*, outside Box"),
    "vector": (_writes("vector", 1e39, 1), r"'vector' of environment 1 {} is 1e\+39 \(beyond float32\) at entry \[1\]"),
}
MASK = _writes("action_mask", 0, slice(2, 5))  # type: ignore[arg-type]
NO_ACTION = r"the action mask of environment 1 {} allows no action in component 1 of 2; {}"
STUCK = "an environment in which"


@pytest.mark.parametrize("at_ends", [False, True])
@pytest.mark.parametrize("name", VALUES)
def test_a_value_outside_its_space_is_named(name: str, at_ends: bool) -> None:
    fault, message = VALUES[name]
    step = 5 if at_ends else 3
    what = "terminal observation " if at_ends else "observation "
    with pytest.raises(DataError, match="^" + what + message.format(f"at step {step} of this run")):
        GTrXLPPO("GTrXLPolicy", Wrong(fault, at_ends), **ON).learn(24)
    model = GTrXLPPO("GTrXLPolicy", Wrong(lambda _: None), **ON)
    with pytest.raises(DataError, match="^" + what + message.format(f"in step {step}")):
        evaluate_online(model, Wrong(fault, at_ends), "", episodes=2)


@pytest.mark.parametrize(("kind", "at_ends"), [(GTrXLPPO, False), (GTrXLSAC, False), (GTrXLSAC, True)])
def test_a_mask_that_allows_nothing_is_named(kind: Any, at_ends: bool) -> None:
    off: dict[str, Any] = {"segment_length": 4, "buffer_size": 300, "train_freq": 8, "learning_starts": 20}
    settings = ON if kind is GTrXLPPO else off | {"policy_kwargs": POLICY, "seed": 0, "device": "cpu"}
    alias = next(iter(kind.policy_aliases))
    at, way_out = (5, "a limit cut its episode") if at_ends else (3, STUCK)
    with pytest.raises(DataError, match=NO_ACTION.format(f"at step {at} of this run", way_out)):
        kind(alias, Wrong(MASK, at_ends), **settings).learn(24)
    with pytest.raises(DataError, match=NO_ACTION.format("in step 3", STUCK)):
        evaluate_online(kind(alias, Wrong(lambda _: None), **settings), Wrong(MASK), "", episodes=2)


def test_whatever_is_inside_its_space_is_taken() -> None:
    def edges(seen: dict[str, torch.Tensor]) -> None:
        for path, value in {"flags": 0.0, "kind": 301.0, "kinds": 1, "picture": 0, "vector": 1e4}.items():
            seen[path] = torch.full_like(seen[path], value, dtype=torch.float64)
        seen["action_mask"] = torch.tensor([0, 1, 0, 0, 1]).expand(N, -1) == 1

    for at_ends in (False, True):
        GTrXLPPO("GTrXLPolicy", Wrong(edges, at_ends), **ON).learn(24)


@pytest.mark.parametrize(
    "policy",
    [
        {"backbone": {"preset": "gtrxl", "width": 8, "layers": 1, "heads": 2, "memory": 4, "position": "learned"}},
        {"backbone": {"width": 8, "layers": 1, "heads": 2, "mixer": "gru", "position": "none"}},
    ],
)
def test_other_memories_value_cut_episodes_too(policy: dict[str, Any]) -> None:
    env = CartPole(N, device="cpu", max_episode_steps=5)
    model: Any = GTrXLPPO("GTrXLPolicy", env, **ON | {"policy_kwargs": policy}).learn(48)
    assert bool(model.rollout_buffer.truncated.any())
    assert model.logger.name_to_value["train/first_ratio_error"] < 1e-5


def test_files_in_the_middle_of_a_rollout_hold_the_statistics_of_then(tmp_path: Path) -> None:
    env: Any = VecNormalize(CartPole(N, device="cpu"))
    model: Any = GTrXLPPO("GTrXLPolicy", env, **ON)
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")  # the file says that steps are lost
        model.learn(24, callback=CheckpointCallback(5, str(tmp_path)))
    loaded: Any = GTrXLPPO.load(next(tmp_path.glob("*.zip")), env=CartPole(N, device="cpu"), device="cpu")
    counted = loaded.get_vec_normalize_env().obs_rms.count
    assert counted == pytest.approx(6 * N, abs=0.01)  # a reset and five steps
    assert env.obs_rms.count == pytest.approx(9 * N, abs=0.01)


@pytest.mark.parametrize("wrap", [lambda env: VecFrameStack(env, 2), VecCheckNan])
def test_within_other_wrappers_they_are_stepped_in_numpy(wrap: Any) -> None:
    env = wrap(CartPole(N, device="cpu", max_episode_steps=5))
    model: Any = GTrXLPPO("GTrXLPolicy", env, **ON).learn(48)
    assert model._tensors is None
    assert {each["l"] for each in model.ep_info_buffer} == {5}


def test_an_agent_moves_between_tensors_and_numpy(tmp_path: Path) -> None:
    model: Any = GTrXLPPO("GTrXLPolicy", VecNormalize(CartPole(N, device="cpu")), **ON).learn(24)
    model.set_env(VecNormalize(VecCheckNan(CartPole(N, device="cpu"))))
    model.learn(24, reset_num_timesteps=False)
    model.set_env(VecNormalize(CartPole(N, device="cpu")))
    model.learn(24, reset_num_timesteps=False).save(tmp_path / "model")
    alone: Any = GTrXLPPO.load(tmp_path / "model", device="cpu")
    alone.set_env(CartPole(N, device="cpu"))
    assert alone.learn(24, reset_num_timesteps=False).num_timesteps == 96
