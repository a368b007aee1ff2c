"""Environments to record in, of either library, and the specification that makes them again."""

import copy
import sys
import warnings
from collections.abc import Mapping, Sequence
from typing import Any, Literal

import gymnasium as gym
import numpy as np
from gymnasium.envs.registration import EnvSpec
from gymnasium.vector import SyncVectorEnv, VectorEnv, VectorWrapper
from gymnasium.wrappers.vector import RecordEpisodeStatistics, RecordVideo
from stable_baselines3.common.vec_env import VecCheckNan, VecEnv, VecEnvWrapper, VecMonitor, VecVideoRecorder

from rltransformers.core.errors import ConfigError, one_line
from rltransformers.core.guard import FiniteVecEnv
from rltransformers.core.ranges import Environments, check
from rltransformers.core.registry import find_spec
from rltransformers.core.spaces import leaf_values, nest_leaves, observation_leaves, space_from_leaves
from rltransformers.core.values import Bools
from rltransformers.envs.make import construction, make_by
from rltransformers.envs.vector import GymnasiumVecEnv

VectorMode = Literal["sync", "async", "vector_entry_point"]
"""How copies of an environment are stepped, see ``gymnasium.make_vec``."""
WATCHERS = ("stable_baselines3.common.monitor:Monitor",)
"""Wrappers of one environment that change nothing, and that Gymnasium cannot make again: left out of specifications."""
WATCHING_VECTORS = (FiniteVecEnv, VecMonitor, VecCheckNan, VecVideoRecorder, RecordEpisodeStatistics, RecordVideo)
"""Wrappers of vector environments that change nothing."""


class VectorSource:
    """Environments of either library as a ``VecEnv``, with the spaces of one environment as behaviors see them."""

    def __init__(self, source: VectorEnv[Any, Any, Any] | VecEnv) -> None:
        self.source = source
        if isinstance(source, VecEnv):
            self.env: VecEnv = source
            leaves = observation_leaves(source.observation_space)
            flattened = any("/" in path for path in leaves)  # of make_vec_env, which makes nested spaces flat
            self.observation_space = space_from_leaves(leaves) if flattened else source.observation_space
            self.spec = source.get_attr("spec")[0] if source.has_attr("spec") else None
        else:
            self.env = GymnasiumVecEnv(source, raw=True)
            self.observation_space = source.single_observation_space
            # Of one environment first: it knows its wrappers.
            self.spec = getattr(source.unwrapped, "envs", [source])[0].spec or source.spec
        self.action_space = self.env.action_space
        self.single_spec = _single_spec(self.spec)

    def nested(self, observation: Any) -> Any:
        """A batch of observations, nested as the observation space."""
        leaves = observation if isinstance(observation, dict) else {"": observation}
        return nest_leaves(self.observation_space, leaves)

    def last(self, infos: Sequence[Mapping[str, Any]], ended: Bools) -> Any:
        """The last observations of the environments that ended an episode, as a nested batch."""
        flat = self.env.observation_space
        rows = [leaf_values(flat, infos[index]["terminal_observation"]) for index in np.flatnonzero(ended).tolist()]
        return self.nested({path: np.stack([np.asarray(row[path]) for row in rows]) for path in rows[0]})


def vector_source(env: Any, num_envs: int, env_kwargs: dict[str, Any], mode: str | None) -> tuple[VectorSource, bool]:
    """The environments to play in, and whether they were made here."""
    check(mode, VectorMode | None, "vectorization_mode")
    is_id = isinstance(env, str | EnvSpec)
    if (env_kwargs and not (is_id or callable(env))) or (mode is not None and not is_id):
        raise ConfigError("env_kwargs apply to ids and functions that make environments, vectorization_mode to ids")
    if isinstance(env, VecEnv | VectorEnv | gym.Env) and num_envs not in (1, copies := getattr(env, "num_envs", 1)):
        raise ConfigError(
            f"num_envs ({num_envs}) is for ids and functions, and this environment is {copies}; leave it out"
        )
    if isinstance(env, VecEnv | VectorEnv):
        return VectorSource(env), False
    if isinstance(env, gym.Env):
        return VectorSource(SyncVectorEnv([lambda: env])), False
    count = check(num_envs, Environments, "num_envs")
    if is_id:
        spec = find_spec(env) if isinstance(env, str) else env
        with construction(spec, env_kwargs):
            return VectorSource(gym.make_vec(spec, count, mode, **env_kwargs)), True
    if callable(env):
        copies = iter([make_by(env, env_kwargs) for _ in range(count)])
        with construction(env, env_kwargs):
            return VectorSource(SyncVectorEnv([lambda: next(copies)] * count)), True
    raise ConfigError(f"cannot record in {type(env).__name__}; pass an id, a function, one environment or a vector")


def _single_spec(spec: Any) -> Any:
    """The spec of one environment: ``make_vec`` adds its own arguments, and those of vectors written as one program."""
    if spec is None:
        return None
    single = copy.deepcopy(spec)
    for key in ("num_envs", "vectorization_mode", "vector_kwargs", "wrappers", "autoreset_mode"):
        single.kwargs.pop(key, None)
    single.max_episode_steps = single.kwargs.pop("max_episode_steps", single.max_episode_steps)
    single.additional_wrappers = tuple(each for each in single.additional_wrappers if each.entry_point not in WATCHERS)
    return single


def spec_json(source: VectorSource) -> str | None:
    """The specification as JSON; None, with a warning, where Gymnasium makes no environment of it, or not this one."""
    spec = source.single_spec
    if spec is None:
        return None
    try:
        wrong = _not_made_again(source, spec)
        if wrong is None:
            return str(spec.to_json())
    except (TypeError, ValueError) as error:  # made by a function, or with arguments that JSON does not know
        wrong = one_line(error)
    warnings.warn(
        f"the recording of {spec.id} keeps no specification, so nothing can make its environment again: {wrong}",
        stacklevel=3,
    )
    return None


def _not_made_again(source: VectorSource, spec: EnvSpec) -> str | None:
    """What of the environments their ``spec`` does not make again; None where nothing is missing."""
    if source.spec is not None and source.spec.kwargs.get("wrappers"):
        return "make_vec put wrappers around each environment in a process of its own"
    inner: Any = source.source
    while isinstance(inner, VecEnvWrapper | VectorWrapper):
        if not isinstance(inner, WATCHING_VECTORS):
            return f"the wrapper {type(inner).__name__} is around all environments together"
        inner = inner.venv if isinstance(inner, VecEnvWrapper) else inner.env
    for wrapper in spec.additional_wrappers:
        if wrapper.kwargs is None:
            return f"the wrapper {wrapper.name} does not keep its arguments (RecordConstructorArgs of gymnasium.utils)"
    for place in (spec.entry_point, *(wrapper.entry_point for wrapper in spec.additional_wrappers)):
        module, _, name = str(place).partition(":")
        if module in sys.modules and not hasattr(sys.modules[module], name):
            return f"the module {module} has no {name}, which was made inside of a function"
    return None
