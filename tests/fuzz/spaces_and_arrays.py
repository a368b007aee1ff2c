"""Nested spaces in every way to name an environment, and memory layouts of arrays at every door that takes one."""

import math
import random
import tempfile
from collections.abc import Callable
from functools import cache
from pathlib import Path
from typing import Any

import gymnasium as gym
import numpy as np
from gymnasium import spaces

from rltransformers.agents import DecisionTransformer, GTrXLDQN, GTrXLPPO, GTrXLSAC, GTrXLVMPO
from rltransformers.core.action_masks import choices_of
from rltransformers.data import record
from rltransformers.envs.make import make_vec_env
from rltransformers.policies.soft_head import MOST_COMBINATIONS
from rltransformers.training.actor import Actor
from rltransformers.training.evaluation import evaluate_online
from tests.fuzz.keywords import BACKBONE, DT, PPO
from tests.fuzz.probe import Probe, WrongError

LEAVES: tuple[Callable[[], spaces.Space[Any]], ...] = (
    lambda: spaces.Discrete(3),
    lambda: spaces.Discrete(2, start=-1),
    lambda: spaces.Box(-1.0, 1.0, (2,)),
    lambda: spaces.Box(-np.inf, np.inf, ()),
    lambda: spaces.Box(0, 255, (4, 3, 2), np.uint8),
    lambda: spaces.MultiBinary(3),
    lambda: spaces.MultiDiscrete([2, 3]),
)
ACTION_LEAVES = LEAVES[:3] + LEAVES[5:]
LENGTH = 3


class Shown(gym.Env[Any, Any]):
    """Episodes of three steps with observations drawn from a space."""

    def __init__(self, observation: spaces.Space[Any], action: spaces.Space[Any]) -> None:
        self.observation_space, self.action_space = observation, action
        self.t = 0

    def reset(self, *, seed: int | None = None, options: dict[str, Any] | None = None) -> tuple[Any, dict[str, Any]]:
        super().reset(seed=seed)
        self.t = 0
        return self.observation_space.sample(), {}

    def step(self, action: Any) -> tuple[Any, float, bool, bool, dict[str, Any]]:
        if not self.action_space.contains(action):
            raise WrongError(f"the action {action!r} is none of {self.action_space}")
        self.t += 1
        return self.observation_space.sample(), 1.0, self.t == LENGTH, False, {}


def draw(chance: random.Random) -> Probe:
    """A nested space and a way to name its environment, or an array and a door."""
    return _draw_spaces(chance) if chance.random() < 0.5 else _draw_layout(chance)


# Spaces x names x agents -----------------------------------------------------------------------------------


def _tree(chance: random.Random, leaves: tuple[Callable[[], spaces.Space[Any]], ...], depth: int) -> spaces.Space[Any]:
    kind = chance.choice(("leaf", "dict", "tuple") if depth < 3 else ("leaf",))
    if kind == "leaf":
        return chance.choice(leaves)()
    parts = [_tree(chance, leaves, depth + 1) for _ in range(chance.randrange(1, 4))]
    return spaces.Tuple(parts) if kind == "tuple" else spaces.Dict(dict(zip("yxz", parts, strict=False)))


def _draw_spaces(chance: random.Random) -> Probe:
    observation, use = _tree(chance, LEAVES, 0), chance.choice(sorted(USES))
    action = spaces.Discrete(3) if use == "GTrXLDQN" or chance.random() < 0.5 else _tree(chance, ACTION_LEAVES, 1)
    if use == "GTrXLSAC" and math.prod(choices_of(action)) > MOST_COMBINATIONS:
        action = spaces.Discrete(3)
    name = chance.choice(sorted(NAMES))
    if name == "make_vec_env" and use not in ("GTrXLPPO", "GTrXLVMPO", "GTrXLDQN", "GTrXLSAC"):
        name = "function"
    text = f"{use} of {observation} -> {action} by {name}"
    return Probe(text, lambda: USES[use](NAMES[name](observation, action)), False)


def _class(observation: Any, action: Any) -> Any:
    class Named(Shown):
        def __init__(self) -> None:
            super().__init__(observation, action)

    return Named


def _registered(observation: Any, action: Any) -> str:
    gym.register("fuzz/Shown-v0", lambda **_: Shown(observation, action))
    return "fuzz/Shown-v0"


NAMES: dict[str, Callable[[Any, Any], Any]] = {
    "instance": Shown,
    "function": lambda observation, action: lambda: Shown(observation, action),
    "class": _class,
    "id": _registered,
    "make_vec_env": lambda observation, action: make_vec_env(lambda: Shown(observation, action), 2, seed=0),
    "SyncVectorEnv": lambda observation, action: gym.vector.SyncVectorEnv([lambda: Shown(observation, action)] * 2),
}


def _train(agent: Any, policy: str = "GTrXLPolicy", **settings: Any) -> Callable[[Any], None]:
    def use(env: Any) -> None:
        model = agent(policy, env, seed=0, device="cpu", policy_kwargs={"backbone": BACKBONE}, **settings)
        model.learn(16)
        evaluate_online(model, make_vec_env(_again(env), 2, seed=0), "fuzz", episodes=2, seed=0)

    return use


def _again(env: Any) -> Any:
    """A way to name an environment of the same spaces that nobody uses yet."""
    if isinstance(env, str | type) or not hasattr(env, "reset"):
        return env
    one = env.envs[0].unwrapped if hasattr(env, "envs") else env
    return lambda: Shown(one.observation_space, one.action_space)


def _record(env: Any) -> None:
    data = record(env, "random", episodes=2, seed=0)
    model = DecisionTransformer("DTPolicy", data, **{**DT, "context_length": 2, "learning_rate": 1e-3})
    model.learn(1)
    model.evaluate(_again(env), target_returns=[1.0], episodes=2, num_envs=2)


USES: dict[str, Callable[[Any], None]] = {
    "GTrXLPPO": _train(GTrXLPPO, n_steps=4, n_epochs=1),
    "GTrXLVMPO": _train(GTrXLVMPO, n_steps=4, n_epochs=1),
    "GTrXLDQN": _train(
        GTrXLDQN, "GTrXLQPolicy", buffer_size=200, learning_starts=8, segment_length=4, train_freq=4, batch_size=2
    ),
    "GTrXLSAC": _train(
        GTrXLSAC, "GTrXLSACPolicy", buffer_size=200, learning_starts=8, segment_length=4, train_freq=4, batch_size=2
    ),
    "record and DecisionTransformer": _record,
}


# Layouts x doors -------------------------------------------------------------------------------------------

LAYOUTS: dict[str, Callable[[np.ndarray], Any]] = {
    "negative strides": lambda array: np.flip(np.ascontiguousarray(np.flip(array))),
    "a negative stride in the last axis": lambda array: np.ascontiguousarray(array[..., ::-1])[..., ::-1],
    "read-only": lambda array: _read_only(array.copy()),
    "Fortran order": np.asfortranarray,
    "big-endian": lambda array: array.astype(array.dtype.newbyteorder(">")),
    "every other of twice as many": lambda array: np.repeat(array, 2, axis=-1)[..., ::2],
    "broadcast": lambda array: np.broadcast_to(array, array.shape),
    "unaligned": lambda array: _unaligned(array),
    "float64": lambda array: array.astype(np.float64),
    "a list": lambda array: array.tolist(),
    "a subclass of arrays": lambda array: array.view(_Subclass),
    "a memoryview": lambda array: np.asarray(memoryview(np.ascontiguousarray(array).data)),
}  # fmt: skip
"""Ways to hold the same numbers."""


class _Subclass(np.ndarray):
    pass


def _read_only(array: np.ndarray) -> np.ndarray:
    array.flags.writeable = False
    return array


def _unaligned(array: np.ndarray) -> np.ndarray:
    room = np.zeros(array.nbytes + 1, np.uint8)[1:]
    result = room[: array.nbytes].view(array.dtype).reshape(array.shape)
    result[...] = array
    return result


def _draw_layout(chance: random.Random) -> Probe:
    kind, door, layout = (
        chance.choice(("image", "vector")),
        chance.choice(sorted(DOORS)),
        chance.choice(sorted(LAYOUTS)),
    )
    rows = chance.choice((1, 3))
    numbers = np.random.default_rng(chance.randrange(2**32))
    space = OBSERVED[kind]
    array = np.stack([numbers.integers(0, 256, space.shape).astype(space.dtype) for _ in range(rows)])
    array = array if kind == "image" else (array / 128 - 1).astype(space.dtype)
    if rows == 1 and chance.random() < 0.5:
        array = array[0]

    def act() -> None:
        door_of = DOORS[door](kind)
        plain, other = door_of(array), door_of(LAYOUTS[layout](array))
        if not np.allclose(plain, other, atol=1e-6):  # sums of other layouts are rounded otherwise
            raise WrongError(f"the action is {other}, that of the same numbers in one piece {plain}")

    return Probe(f"{door} of {kind} {array.shape} as {layout}", act, False)


OBSERVED: dict[str, spaces.Box] = {
    "image": spaces.Box(0, 255, (4, 5, 3), np.uint8),
    "vector": spaces.Box(-1.0, 1.0, (6,)),
}
ACTED = spaces.Box(-2.0, 2.0, (2,))


@cache
def _online(kind: str) -> GTrXLPPO:
    return GTrXLPPO("GTrXLPolicy", Shown(OBSERVED[kind], ACTED), **PPO)


@cache
def _offline(kind: str) -> DecisionTransformer:
    data = record(lambda: Shown(OBSERVED[kind], ACTED), "random", episodes=3, seed=0)
    return DecisionTransformer("DTPolicy", data, **{**DT, "policy_kwargs": {"backbone": {**BACKBONE, "memory": 2}}})


_FOLDER = tempfile.TemporaryDirectory(prefix="fuzz-exports-")


@cache
def _exported(kind: str, agent: str, ending: str) -> Actor:
    path = Path(_FOLDER.name) / f"{kind}-{agent}{ending}"
    model = _online(kind) if agent == "online" else _offline(kind)
    model.export(path)
    return Actor.from_export(path)


def _acting(actor: Actor) -> Callable[[Any], Any]:
    def act(observation: Any) -> Any:
        actor.reset()
        return actor(observation, 0.0)

    return act


DOORS: dict[str, Callable[[str], Callable[[Any], Any]]] = {
    "predict of GTrXLPPO": lambda kind: lambda x: _online(kind).predict(x, deterministic=True)[0],
    "predict of its policy": lambda kind: lambda x: _online(kind).policy.predict(x, deterministic=True)[0],
    "predict of DecisionTransformer": lambda kind: lambda x: _offline(kind).predict(x, deterministic=True)[0],
    "an actor of GTrXLPPO": lambda kind: _acting(_online(kind).actor()),
    "an actor of DecisionTransformer": lambda kind: _acting(_offline(kind).actor()),
    "predict of an actor": lambda kind: lambda x: _online(kind).actor().predict(x)[0],
    "a .pt2 file": lambda kind: _acting(_exported(kind, "online", ".pt2")),
    "an .onnx file": lambda kind: _acting(_exported(kind, "online", ".onnx")),
    "an .onnx file of DecisionTransformer": lambda kind: _acting(_exported(kind, "offline", ".onnx")),
}
