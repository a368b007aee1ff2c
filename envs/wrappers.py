"""Observation wrappers for partial observability, for inputs that memory agents want, and for spaces others refuse.

They record their constructor arguments for specs of datasets, and take and return single (not batched) observations.
"""

import random
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from typing import Any

import gymnasium
import numpy as np
from gymnasium import spaces
from gymnasium.error import ResetNeeded
from gymnasium.utils import RecordConstructorArgs

from rltransformers.core.action_masks import ACTION_MASK, MASK_METHOD, fit_masks, mask_space
from rltransformers.core.errors import ConfigError, did_you_mean
from rltransformers.core.ranges import UnitInterval, check
from rltransformers.core.spaces import (
    SUPPORTED_LEAVES,
    check_not_empty,
    check_supported,
    leaf_values,
    map_leaves,
    nest_leaves,
    observation_leaves,
    space_of,
)

Env = gymnasium.Env[Any, Any]
Space = gymnasium.Space[Any]

VELOCITY_INDICES: dict[str, tuple[int, ...]] = {
    "CartPole-v0": (1, 3),
    "CartPole-v1": (1, 3),
    "Pendulum-v1": (2,),
    "MountainCar-v0": (1,),
    "MountainCarContinuous-v0": (1,),
    "Acrobot-v1": (4, 5),
    "Hopper-v4": tuple(range(5, 11)),
    "Hopper-v5": tuple(range(5, 11)),
    "HalfCheetah-v4": tuple(range(8, 17)),
    "HalfCheetah-v5": tuple(range(8, 17)),
    "Walker2d-v4": tuple(range(8, 17)),
    "Walker2d-v5": tuple(range(8, 17)),
    "Ant-v5": tuple(range(13, 27)),
    "LunarLander-v3": (2, 3, 5),
}
"""Entries of the observation that are velocities, for ``DropIndices(env, VELOCITY_INDICES[env.spec.id])``."""


class _Wrapper(gymnasium.Wrapper[Any, Any, Any, Any], RecordConstructorArgs):
    """Base that records the arguments of the constructor."""

    def __init__(self, env: Env, **arguments: Any) -> None:
        RecordConstructorArgs.__init__(self, **arguments)
        gymnasium.Wrapper.__init__(self, env)


class _Select(_Wrapper, gymnasium.ObservationWrapper[Any, Any, Any]):
    """The entries of a vector observation at fixed places."""

    def _select(self, indices: list[int]) -> None:
        space = _vector_space(self.env)
        self._indices = indices
        self.observation_space = spaces.Box(space.low[indices], space.high[indices], dtype=_dtype(space))

    def observation(self, observation: Any) -> Any:
        return observation[self._indices]


class KeepIndices(_Select):
    """Only the entries ``indices`` of a vector observation, in the given order.

    Raises:
        ConfigError: when the observation is not a vector, or an index is repeated, out of range, or none is given.
    """

    def __init__(self, env: Env, indices: Sequence[int]) -> None:
        super().__init__(env, indices=indices)
        self._select(_checked_indices(env, indices))


class DropIndices(_Select):
    """A vector observation without the entries ``indices``; the others keep their order.

    Args:
        indices: places to drop, or the word "velocities" for those that ``VELOCITY_INDICES`` lists for the
            environment's id.

    Raises:
        ConfigError: when the observation is not a vector, an index is repeated or out of range, nothing is left, or
            the velocities of this environment are not known.
    """

    def __init__(self, env: Env, indices: Sequence[int] | str) -> None:
        super().__init__(env, indices=indices)
        dropped = _checked_indices(env, _velocities(env, indices) if isinstance(indices, str) else indices)
        remaining = [index for index in range(_vector_space(env).shape[0]) if index not in dropped]
        if not remaining:
            raise ConfigError(f"indices {dropped} drop the whole observation; leave at least one entry")
        self._select(remaining)


class History(_Wrapper):
    """A Dict observation with the previous action, the previous reward and a first-step flag beside the original.

    Keys: ``observation`` (the original), ``previous_action``, ``previous_reward`` (float32 [1]) and ``first_step``
    (float32 [1], 1 right after a reset). At the first step the previous reward is 0 and the previous action is "none":
    0 for Discrete and MultiDiscrete, whose actions are shifted up by one to make room for it; zeros (moved into the
    bounds) for Box; zeros for MultiBinary.

    Raises:
        ConfigError: when nothing is to be added, or the previous action of an unsupported action space is asked for.
    """

    def __init__(
        self, env: Env, previous_action: bool = True, previous_reward: bool = True, first_step: bool = True
    ) -> None:
        switches = {"previous_action": previous_action, "previous_reward": previous_reward, "first_step": first_step}
        for name, switch in switches.items():
            check(switch, bool, name)
        super().__init__(env, **switches)
        if not any(switches.values()):
            raise ConfigError("History adds nothing; switch on previous_action, previous_reward or first_step")
        members: dict[str, Space] = {"observation": env.observation_space}
        if previous_action:
            members["previous_action"] = _space_with_none(env.action_space)
        if previous_reward:
            members["previous_reward"] = spaces.Box(-np.inf, np.inf, (1,), np.float32)
        if first_step:
            members["first_step"] = spaces.Box(0.0, 1.0, (1,), np.float32)
        self.observation_space = spaces.Dict(members)

    def reset(self, *, seed: int | None = None, options: dict[str, Any] | None = None) -> tuple[Any, dict[str, Any]]:
        observation, info = self.env.reset(seed=seed, options=options)
        return self._joined(observation, None, 0.0), info

    def step(self, action: Any) -> tuple[Any, Any, bool, bool, dict[str, Any]]:
        observation, reward, terminated, truncated, info = self.env.step(action)
        return self._joined(observation, action, float(reward)), reward, terminated, truncated, info

    def _joined(self, observation: Any, action: Any, reward: float) -> dict[str, Any]:
        """The Dict observation; ``action`` None stands for the first step."""
        assert isinstance(self.observation_space, spaces.Dict)
        keys = self.observation_space.spaces
        joined = {"observation": observation}
        if "previous_action" in keys:
            joined["previous_action"] = _action_or_none(self.env.action_space, action)
        if "previous_reward" in keys:
            joined["previous_reward"] = np.array([reward], np.float32)
        if "first_step" in keys:
            joined["first_step"] = np.array([action is None], np.float32)
        return joined


class ActionMasks(_Wrapper):
    """A Dict observation with the mask of allowed actions under ``action_mask``, which the agents keep to.

    The mask is what the environment's method ``action_masks()`` says (the convention of MaskablePPO of sb3-contrib and
    its ``ActionMasker``), or else what its infos hold under ``action_mask``. The observation keeps its keys, one that
    is no Dict stands under ``observation``. Masks that are part of the observation are recorded with it, and are
    wherever it is: in evaluations by Stable-Baselines3, in last observations of episodes that a limit cut.

    Raises:
        ConfigError: for actions that cannot be counted, an observation that has such a key, and in the first step where
            there is no mask.
    """

    def __init__(self, env: Env) -> None:
        super().__init__(env)
        inner = env.observation_space
        members = dict(inner.spaces) if isinstance(inner, spaces.Dict) else {"observation": inner}
        if ACTION_MASK in members:
            raise ConfigError(f"the observation has a key {ACTION_MASK!r} already; leave the wrapper ActionMasks out")
        self.observation_space = spaces.Dict(members | {ACTION_MASK: mask_space(env.action_space)})

    def reset(self, *, seed: int | None = None, options: dict[str, Any] | None = None) -> tuple[Any, dict[str, Any]]:
        observation, info = self.env.reset(seed=seed, options=options)
        return self._joined(observation, info), info

    def step(self, action: Any) -> tuple[Any, Any, bool, bool, dict[str, Any]]:
        observation, reward, terminated, truncated, info = self.env.step(action)
        return self._joined(observation, info), reward, terminated, truncated, info

    def _joined(self, observation: Any, info: dict[str, Any]) -> dict[str, Any]:
        if self.env.has_wrapper_attr(MASK_METHOD):
            mask = self.env.get_wrapper_attr(MASK_METHOD)()
        elif ACTION_MASK in info:
            mask = info[ACTION_MASK]
        else:
            raise ConfigError(
                f"the environment has no method {MASK_METHOD}() and no {ACTION_MASK!r} in its info, so that nobody "
                "knows its masks: wrap it in ActionMasker of sb3-contrib first"
            )
        is_dict = isinstance(self.env.observation_space, spaces.Dict)
        members = dict(observation) if is_dict else {"observation": observation}
        return members | {ACTION_MASK: fit_masks(mask, self.env.action_space, 1)[0]}


class DropUnsupported(_Wrapper, gymnasium.ObservationWrapper[Any, Any, Any]):
    """A Dict or Tuple observation without the fields that no encoder takes: text, graphs, sequences, MiniGrid missions.

    Raises:
        ConfigError: when nothing is left, or the observation is itself such a field.
    """

    def __init__(self, env: Env) -> None:
        super().__init__(env)
        leaves = _supported(env.observation_space, env.observation_space)
        if leaves is None:
            raise ConfigError(f"no field of the observation is supported: {env.observation_space}")
        self.observation_space = space_of(leaves)

    def observation(self, observation: Any) -> Any:
        return _supported(self.env.observation_space, observation)


class GridSymbols(_Wrapper, gymnasium.ObservationWrapper[Any, Any, Any]):
    """MiniGrid's view as what it is: H x W cells of three symbols (object, color, state), not an image of bytes.

    The observation is a Dict of ``symbols`` (MultiDiscrete, 3 H W indices) and ``direction`` (Discrete 4), without the
    mission. An index goes through an embedding table here and through one-hot in Stable-Baselines3.

    Raises:
        ConfigError: for an environment whose observation has no ``image`` of three bytes per cell and no ``direction``.
    """

    SYMBOLS = (11, 6, 4)  # kinds of objects, of colors, and of states (an agent's state is its direction)

    def __init__(self, env: Env) -> None:
        super().__init__(env)
        fields = env.observation_space.spaces if isinstance(env.observation_space, spaces.Dict) else {}
        shape: tuple[int, ...] = getattr(fields.get("image"), "shape", None) or ()
        if len(shape) != 3 or shape[2] != len(self.SYMBOLS) or "direction" not in fields:
            raise ConfigError(f"GridSymbols is for the views of MiniGrid and BabyAI, got {env.observation_space}")
        symbols = spaces.MultiDiscrete(np.tile(np.array(self.SYMBOLS), shape[0] * shape[1]))
        self.observation_space = spaces.Dict({"direction": fields["direction"], "symbols": symbols})

    def observation(self, observation: Any) -> dict[str, Any]:
        symbols = np.asarray(observation["image"], np.int64).reshape(-1)
        return {"direction": observation["direction"], "symbols": symbols}


class CopyObservation(_Wrapper, gymnasium.ObservationWrapper[Any, Any, Any]):
    """Observations that the environment will not write into again.

    Some environments return the same arrays at every step; then a last observation that is kept over a reset, as for
    bootstrapping at a truncation, turns into the first of the next episode.
    """

    def __init__(self, env: Env) -> None:
        super().__init__(env)

    def observation(self, observation: Any) -> Any:
        if type(observation) is np.ndarray:
            return observation.copy()
        return map_leaves(lambda leaf: leaf.copy() if isinstance(leaf, np.ndarray) else leaf, observation)


class Flicker(_Wrapper, gymnasium.ObservationWrapper[Any, Any, Any]):
    """Sensors that fail at random: with ``probability`` an observation, the first included, is zeros all over.

    Every observation fails by itself, all its leaves together. The coins come from a generator of their own, made from
    the seed of ``reset``, so that the environment draws what it draws without the wrapper; a reset without a seed goes
    on with it. Bounds of a Box that leave out 0 are widened to it. Wrappers around this one see what is left; what
    ``History`` adds never fails.

    Source: flickering observations of Hausknecht and Stone 2015 (arXiv 1507.06527), where ``probability`` is 0.5.

    Raises:
        ConfigError: when ``probability`` is outside [0, 1], and for a leaf that has no number for "nothing": classes,
            masks of actions, text.
    """

    def __init__(self, env: Env, probability: float) -> None:
        probability = check(probability, UnitInterval, "probability")
        super().__init__(env, probability=probability)
        self._probability = probability
        self._generator: np.random.Generator | None = None
        leaves = observation_leaves(env.observation_space)
        self._leaves = {path: _with_zero(path, leaf) for path, leaf in leaves.items()}
        self.observation_space = space_of(nest_leaves(env.observation_space, self._leaves))

    def reset(self, *, seed: int | None = None, options: dict[str, Any] | None = None) -> tuple[Any, dict[str, Any]]:
        if seed is not None or self._generator is None:
            # another branch of the seed: the plain one is that of the environment, whose draws the coins would repeat
            self._generator = np.random.default_rng(np.random.SeedSequence(seed, spawn_key=(1,)))
        return super().reset(seed=seed, options=options)

    def observation(self, observation: Any) -> Any:
        if self._generator is None:
            raise ResetNeeded("call reset before the first step")
        if self._generator.random() >= self._probability:
            return observation
        zeros = {path: np.zeros(leaf.shape, leaf.dtype) for path, leaf in self._leaves.items()}
        return nest_leaves(self.env.observation_space, zeros)


class GlobalSeed(_Wrapper):
    """An environment that draws from the global generators, of NumPy and of Python, as if they were its own.

    The seed of ``reset`` reaches what such an environment draws, in the reset and in the steps behind it; a reset
    without a seed goes on, and the first one without takes a seed of the system. Copies do not draw from each other,
    and nothing outside of the environment finds the generators changed. ``make_vec_env`` puts it around environments
    that are known to need it (``rltransformers.core.registry.GLOBAL_RANDOMNESS``).
    """

    def __init__(self, env: Env) -> None:
        super().__init__(env)
        self._states: tuple[Any, Any] | None = None

    def reset(self, *, seed: int | None = None, options: dict[str, Any] | None = None) -> tuple[Any, dict[str, Any]]:
        if seed is not None or self._states is None:
            # another branch of the seed than that of the environment's own generator, whose draws it would repeat
            words = np.random.SeedSequence(seed, spawn_key=(2,)).generate_state(2)
            self._states = np.random.RandomState(words[0]).get_state(), random.Random(int(words[1])).getstate()
        with self._generators():
            return self.env.reset(seed=seed, options=options)

    def step(self, action: Any) -> tuple[Any, Any, bool, bool, dict[str, Any]]:
        with self._generators():
            return self.env.step(action)

    @contextmanager
    def _generators(self) -> Iterator[None]:
        """The global generators where this environment left them."""
        if self._states is None:
            raise ResetNeeded("call reset before the first step")
        outside = np.random.get_state(), random.getstate()
        _set_generators(self._states)
        try:
            yield
        finally:
            self._states = np.random.get_state(), random.getstate()
            _set_generators(outside)


class FlatDict(_Wrapper, gymnasium.ObservationWrapper[Any, Any, Any]):
    """A nested Dict or Tuple observation as one flat Dict, keyed by path: "camera/left", "0", "1/position".

    Raises:
        ConfigError: when the observation is neither a Dict nor a Tuple.
    """

    def __init__(self, env: Env) -> None:
        super().__init__(env)
        if not isinstance(env.observation_space, spaces.Dict | spaces.Tuple):
            raise ConfigError(f"only Dict and Tuple observations can be flattened, got {env.observation_space}")
        self.observation_space = spaces.Dict(observation_leaves(env.observation_space))

    def observation(self, observation: Any) -> dict[str, Any]:
        return leaf_values(self.env.observation_space, observation)


WRAPPERS: dict[str, type[gymnasium.Wrapper[Any, Any, Any, Any]]] = {
    each.__name__: each
    for each in (
        KeepIndices, DropIndices, History, ActionMasks, DropUnsupported,
        GridSymbols, CopyObservation, Flicker, GlobalSeed, FlatDict,
    )
}  # fmt: skip
"""The wrappers that a configuration can name."""


def check_observation_space(space: Space) -> None:
    """Raise ConfigError, with the way out, unless the space has leaves and every one has an encoder."""
    leaves = observation_leaves(space)
    check_not_empty(leaves, space, "observation")
    for path, leaf in leaves.items():
        check_supported(leaf, f"observation {path!r}" if path else "observation")


def _vector_space(env: Env) -> spaces.Box:
    space = env.observation_space
    if not isinstance(space, spaces.Box) or len(space.shape) != 1:
        raise ConfigError(f"indices can be chosen from a vector observation (Box of one axis), got {space}")
    return space


def _with_zero(path: str, leaf: Space) -> spaces.Box | spaces.MultiBinary:
    """The leaf with bounds that let 0 in."""
    which = f"observation {path!r}" if path else "the observation"
    if path == ACTION_MASK:
        raise ConfigError(f"{which} would forbid every action when it is zeros; put Flicker inside of ActionMasks")
    if isinstance(leaf, spaces.MultiBinary):
        return leaf
    if not isinstance(leaf, SUPPORTED_LEAVES):
        raise ConfigError(f"{which} is {type(leaf).__name__}, which cannot flicker; drop it by DropUnsupported first")
    if not isinstance(leaf, spaces.Box):
        raise ConfigError(
            f"{which} is {leaf}, of which no class says 'nothing', so that it cannot flicker; make a Box of it "
            "(FlattenObservation of gymnasium.wrappers), or put Flicker inside of the wrapper that adds it"
        )
    zero = _dtype(leaf)(0)
    return spaces.Box(np.minimum(leaf.low, zero), np.maximum(leaf.high, zero), dtype=_dtype(leaf))


def _dtype(space: spaces.Box) -> Any:
    assert space.dtype is not None
    return space.dtype.type


def _checked_indices(env: Env, indices: Sequence[int]) -> list[int]:
    size = _vector_space(env).shape[0]
    chosen = [check(index, int, "an entry of indices") for index in indices]
    if not chosen or len(set(chosen)) < len(chosen) or not all(0 <= index < size for index in chosen):
        raise ConfigError(f"indices must be different numbers in 0..{size - 1}, at least one; got {list(indices)}")
    return chosen


def _velocities(env: Env, word: str) -> tuple[int, ...]:
    if word != "velocities":
        raise ConfigError(f"indices must be a list of numbers or 'velocities', got {word!r}")
    env_id = env.spec.id if env.spec is not None else ""
    if env_id not in VELOCITY_INDICES:
        raise ConfigError(
            f"the velocities of {env_id!r} are not known ({did_you_mean(env_id, VELOCITY_INDICES)}); give the indices"
        )
    return VELOCITY_INDICES[env_id]


def _space_with_none(action_space: Space) -> Space:
    """The space of "an action, or none yet"."""
    if isinstance(action_space, spaces.Discrete):
        return spaces.Discrete(int(action_space.n) + 1)
    if isinstance(action_space, spaces.MultiDiscrete):
        return spaces.MultiDiscrete(action_space.nvec + 1)
    if isinstance(action_space, spaces.Box | spaces.MultiBinary):
        return action_space
    raise ConfigError(f"the previous action of {action_space} cannot be observed; set previous_action=False")


def _action_or_none(space: Space, action: Any) -> Any:
    """``action`` as a member of ``_space_with_none(space)``; None is "none yet"."""
    if isinstance(space, spaces.Discrete):
        return np.int64(0 if action is None else int(action) - int(space.start) + 1)
    if isinstance(space, spaces.MultiDiscrete):
        return np.zeros_like(space.nvec) if action is None else np.asarray(action) - space.start + 1
    if isinstance(space, spaces.Box):
        assert space.dtype is not None
        # a copy: the caller may write into its action array before the observation is used
        return np.clip(np.zeros(space.shape) if action is None else action, space.low, space.high).astype(space.dtype)
    assert isinstance(space, spaces.MultiBinary)
    return np.zeros(space.shape, space.dtype) if action is None else np.array(action, space.dtype)


def _set_generators(states: tuple[Any, Any]) -> None:
    np.random.set_state(states[0])
    random.setstate(states[1])


def _supported(space: Space, value: Any) -> Any:
    """``value`` without what belongs to unsupported leaves and without containers left empty by that; None: nothing.

    ``value`` is an observation, or the space itself.
    """
    if isinstance(space, spaces.Dict):
        members = {key: _supported(child, value[key]) for key, child in space.spaces.items()}
        return {key: part for key, part in members.items() if part is not None} or None
    if isinstance(space, spaces.Tuple):
        parts = (_supported(child, part) for child, part in zip(space.spaces, value, strict=True))
        return tuple(part for part in parts if part is not None) or None
    return value if isinstance(space, SUPPORTED_LEAVES) else None
