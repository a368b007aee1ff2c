"""Gymnasium vector environments as Stable-Baselines3 expects them, whatever their autoreset mode. N: sub-environments.

Stable-Baselines3 resets within the step: at the end of an episode the observation is already that of the next episode,
and the info carries ``terminal_observation`` and ``TimeLimit.truncated``.
"""

from collections import OrderedDict
from collections.abc import Callable, Mapping, Sequence
from copy import deepcopy
from typing import Any, cast

import gymnasium
import numpy as np
from gymnasium import spaces
from gymnasium.vector import AsyncVectorEnv, AutoresetMode, SyncVectorEnv, VectorEnv
from stable_baselines3.common.env_util import is_wrapped
from stable_baselines3.common.monitor import Monitor
from stable_baselines3.common.vec_env import DummyVecEnv, VecEnv, VecMonitor
from stable_baselines3.common.vec_env.base_vec_env import VecEnvIndices, VecEnvObs, VecEnvStepReturn
from stable_baselines3.common.vec_env.util import dict_to_obs

from rltransformers.core.errors import ConfigError
from rltransformers.core.seeding import vector_seed
from rltransformers.core.spaces import check_supported, leaf_values, map_leaves, observation_leaves, stack_members
from rltransformers.core.values import check_outcome
from rltransformers.envs.memory_tasks import MemoryTaskVector
from rltransformers.envs.wrappers import check_observation_space

Infos = list[dict[str, Any]]


class EpisodeMonitor(VecMonitor):
    """A ``VecMonitor`` over a ``GymnasiumVecEnv``; rows in which a copy is only reset count in no length."""

    def step_wait(self) -> VecEnvStepReturn:
        self.episode_lengths -= self.resets_next.astype(self.episode_lengths.dtype)
        return super().step_wait()


def with_statistics(env: VecEnv) -> VecEnv:
    """``env`` with episode statistics in its infos: those of a ``Monitor`` in every copy, else of a ``VecMonitor``."""
    if all(env.env_is_wrapped(Monitor)):
        return env
    return VecMonitor(env) if getattr(env, "partial_reset", True) else EpisodeMonitor(env)


class SerialVecEnv(DummyVecEnv):
    """Environments one after another in this process: a ``DummyVecEnv`` that copies plainly what holds no references.

    What it returns is that of a ``DummyVecEnv``; a step of 16 CartPoles takes 15 microseconds of 102 less.
    """

    def step_wait(self) -> VecEnvStepReturn:
        infos: Infos = []
        rewards, ends = cast(Any, self.buf_rews), self.buf_dones
        bare = None if self.keys != [None] else cast(Any, self.buf_obs)[None]
        for index, env in enumerate(self.envs):
            observation, reward, terminated, truncated, info = env.step(self.actions[index])
            rewards[index] = reward
            ends[index] = ended = terminated or truncated
            info["TimeLimit.truncated"] = truncated and not terminated
            if ended:
                info["terminal_observation"] = observation
                observation, self.reset_infos[index] = env.reset()
            if bare is None:
                self._save_obs(index, observation)
            else:
                bare[index] = observation
            self.buf_infos[index] = info
            infos.append(info.copy() if len(info) == 1 else _copied(info))  # one: the flag of the limit, set above
        return self._obs_from_buf(), rewards.copy(), ends.copy(), infos

    def _obs_from_buf(self) -> VecEnvObs:
        copies = OrderedDict((key, buffer.copy()) for key, buffer in self.buf_obs.items())
        return dict_to_obs(self.observation_space, cast(Any, copies))


_VALUES = frozenset({bool, int, float, str, np.bool_, np.float32, np.float64, np.int64, type(None)})
"""Types whose objects never change."""


def _copied(info: dict[str, Any]) -> dict[str, Any]:
    copied = info.copy()
    for key, value in info.items():
        if type(value) not in _VALUES:
            plain = type(value) is np.ndarray and value.dtype.kind != "O"
            copied[key] = value.copy() if plain else deepcopy(value)
    return copied


class GymnasiumVecEnv(VecEnv):
    """A Stable-Baselines3 ``VecEnv`` around any ``gymnasium.vector.VectorEnv``.

    The three autoreset modes look the same from outside, and give the same episodes, returns and lengths for the same
    seeds and actions:

    * SAME_STEP: the wrapped environment has reset already; its ``final_obs`` and ``final_info`` are handed on.
    * DISABLED: sub-environments that ended are reset here with ``reset(options={"reset_mask": ended})``.
    * NEXT_STEP: likewise, where a partial reset is known to work (``supports_partial_reset``), so no row is wasted.
      Other NEXT_STEP environments need one call more to reset, in which the others move on. Then the observation after
      an end is the terminal one once more, and the following row, whose action was ignored and whose reward is 0, is
      marked in ``reset_rows``: a learner leaves it out of its loss and starts its memory anew after it. Returns are
      unchanged; a ``VecMonitor`` counts that row, ``with_statistics`` does not.

    Observations are copies, nested Dict and Tuple observations one flat Dict keyed by path ("camera/left", "0").
    Rewards are float32. The action space is ``single_action_space``; actions of a Dict or a Tuple come as a list, one
    for each copy.

    Args:
        raw: as recordings need it: rewards stay float64, leaves that no network reads are allowed, and NEXT_STEP
            environments always reset in a call of their own, also where they do not say that they do.

    Attributes:
        reset_rows: sub-environments whose newest row is a reset row [N].
        next_seed: returns the seed of the next episode of sub-environment i; None where seeds are as ``seed`` says.

    Raises:
        ConfigError: for unsupported spaces, or when the environment does not say how it resets.
    """

    checks_outcomes = True
    """Rewards and ends of episodes were looked at: ``FiniteVecEnv`` need not look again."""

    next_seed: Callable[[int], int | None] | None = None

    def __init__(self, env: VectorEnv[Any, Any, Any], raw: bool = False) -> None:
        self.env = env
        self.mode = _mode(env, AutoresetMode.NEXT_STEP if raw else None)
        # Whether rows of ended episodes are reset within the step.
        self.partial_reset = self.mode is not AutoresetMode.NEXT_STEP or (not raw and supports_partial_reset(env))
        self._reward_type = np.float64 if raw else np.float32
        self._single = env.single_observation_space
        if not raw:
            check_observation_space(self._single)
        check_supported(env.single_action_space, "action")
        leaves = observation_leaves(self._single)
        observation_space = leaves.get("", spaces.Dict(leaves))
        super().__init__(env.num_envs, observation_space, env.single_action_space)
        self._actions: Any = None
        self._nested_actions = isinstance(env.single_action_space, spaces.Dict | spaces.Tuple)
        self._bare = "" in leaves
        self._resets_next = np.zeros(env.num_envs, bool)  # sub-environments whose next row is a reset row
        self.reset_rows = np.zeros(env.num_envs, bool)
        self._step = 0

    def reset(self) -> VecEnvObs:
        seed = vector_seed(self.env, self._seeds)
        if self.next_seed is not None:
            seed = [self.next_seed(i) for i in range(self.num_envs)]
        observation, infos = self.env.reset(seed=seed, options=self._gymnasium_options())
        self._reset_seeds()
        self._reset_options()
        self._resets_next[:] = False
        self._step = 0
        self.reset_infos = _info_list(infos, self.num_envs)
        leaves = self._leaves(observation)
        return leaves.get("", leaves)

    def step_async(self, actions: Any) -> None:
        self._actions = stack_members(self.action_space, actions) if self._nested_actions else actions

    def step_wait(self) -> VecEnvStepReturn:
        assert self._actions is not None, "step_async comes before step_wait"
        observation, rewards, terminated, truncated, vector_infos = self.env.step(self._actions)
        self._step += 1
        flags = {"terminated": terminated, "truncated": truncated}
        check_outcome(self.num_envs, rewards, flags, lambda: f"in step {self._step}")
        leaves = self._leaves(observation)
        infos = _info_list(vector_infos, self.num_envs)
        terminated, truncated = np.asarray(terminated), np.asarray(truncated)
        ended = terminated | truncated
        if not self.partial_reset:
            self.reset_rows = self._resets_next
            for i in np.flatnonzero(self.reset_rows).tolist():
                self.reset_infos[i], infos[i] = infos[i], {}
        if np.count_nonzero(ended):
            if self.mode is AutoresetMode.SAME_STEP:  # infos are those of the reset, with the last ones inside
                for i in np.flatnonzero(ended).tolist():
                    final, self.reset_infos[i] = self._leaves(infos[i].pop("final_obs")), infos[i]
                    infos[i] = dict(infos[i].pop("final_info", {})) | {"terminal_observation": final.get("", final)}
            else:
                for i in np.flatnonzero(ended).tolist():
                    infos[i]["terminal_observation"] = self._row(leaves, i)
                if self.partial_reset:
                    leaves = self._reset_rows(ended, leaves)
        if not self.partial_reset:
            self._resets_next = ended.copy()
        for info, is_cut in zip(infos, (truncated & ~terminated).tolist(), strict=True):
            info["TimeLimit.truncated"] = is_cut
        return leaves.get("", leaves), np.array(rewards, self._reward_type), ended, infos

    @property
    def resets_next(self) -> np.ndarray:
        """Which copies begin an episode in the next step and ignore its action [N]."""
        return self._resets_next

    def state_dict(self) -> dict[str, Any] | None:
        """Where the environments stand (see ``envs.saving``); None when the wrapped one cannot tell."""
        if not hasattr(type(self.env), "state_dict"):
            return None
        return {"program": cast(Any, self.env).state_dict(), "resets_next": self._resets_next.copy()}

    def load_state_dict(self, state: Mapping[str, Any]) -> None:
        """Go on where ``state_dict`` was called; seeds that wait for a reset are forgotten."""
        cast(Any, self.env).load_state_dict(state["program"])
        self._resets_next = state["resets_next"].copy()
        self._reset_seeds()
        self._reset_options()

    def close(self) -> None:
        self.env.close()

    def get_images(self) -> Sequence[np.ndarray | None]:
        frames: Any = self.env.render()
        return [None] * self.num_envs if frames is None else list(frames)

    def get_attr(self, attr_name: str, indices: VecEnvIndices = None) -> list[Any]:
        chosen = list(self._get_indices(indices))
        ask = None if attr_name == "render_mode" else getattr(self.env.unwrapped, "get_attr", None)
        if ask is None:  # one program for all copies: they share their attributes
            return [getattr(self.env, attr_name) for _ in chosen]
        values = ask(attr_name)
        return [values[i] for i in chosen]

    def has_attr(self, attr_name: str) -> bool:
        """Whether all copies have such an attribute or method; ``get_attr`` of Gymnasium would call a method."""
        call = getattr(self.env.unwrapped, "call", None)
        if call is None:
            return hasattr(self.env, attr_name)
        return all(call("has_wrapper_attr", attr_name))

    def set_attr(self, attr_name: str, value: Any, indices: VecEnvIndices = None) -> None:
        self._all_at_once("set_attr", indices)
        tell = getattr(self.env.unwrapped, "set_attr", None)
        if tell is None:
            setattr(self.env, attr_name, value)
        else:
            tell(attr_name, [value] * self.num_envs)

    def env_method(
        self, method_name: str, *method_args: Any, indices: VecEnvIndices = None, **method_kwargs: Any
    ) -> list[Any]:
        """Results of a method in every sub-environment; ConfigError for some of them, or where there are none."""
        self._all_at_once("env_method", indices)
        call = getattr(self.env.unwrapped, "call", None)
        if call is None:
            raise ConfigError(f"{self.env} has no sub-environments whose {method_name} could be called")
        return list(call(method_name, *method_args, **method_kwargs))

    def env_is_wrapped(
        self, wrapper_class: type[gymnasium.Wrapper[Any, Any, Any, Any]], indices: Any = None
    ) -> list[bool]:
        """Per chosen sub-environment; False where they cannot be looked into (other processes, one program)."""
        envs = getattr(self.env.unwrapped, "envs", None)
        return [envs is not None and is_wrapped(envs[i], wrapper_class) for i in self._get_indices(indices)]

    def _leaves(self, observation: Any) -> dict[str, np.ndarray]:
        """A batched or a single observation as copied leaves."""
        if self._bare:
            return {"": np.array(observation)}
        return {path: np.array(leaf) for path, leaf in leaf_values(self._single, observation).items()}

    def _row(self, leaves: dict[str, np.ndarray], i: int) -> Any:
        row = {path: leaf[i].copy() for path, leaf in leaves.items()}
        return row.get("", row)

    def _reset_rows(self, ended: np.ndarray, leaves: dict[str, np.ndarray]) -> dict[str, np.ndarray]:
        options = {"reset_mask": ended.copy()}
        if self.next_seed is None:
            observation, infos = self.env.reset(options=options)
        else:
            seeds: Any = [self.next_seed(i) if ended[i] else None for i in range(self.num_envs)]
            observation, infos = self.env.reset(seed=seeds, options=options)
        fresh = leaf_values(self._single, observation)
        reset_infos = _info_list(infos, self.num_envs)
        for i in np.flatnonzero(ended).tolist():
            self.reset_infos[i] = reset_infos[i]
        for path, leaf in leaves.items():
            leaf[ended] = np.asarray(fresh[path])[ended]
        return leaves

    def _gymnasium_options(self) -> dict[str, Any] | None:
        first = self._options[0]
        if any(options != first for options in self._options):
            raise ConfigError("a Gymnasium vector environment takes the same reset options for all sub-environments")
        return first or None

    def _all_at_once(self, what: str, indices: VecEnvIndices) -> None:
        if list(self._get_indices(indices)) != list(range(self.num_envs)):
            raise ConfigError(
                f"{what} reaches all sub-environments of a Gymnasium vector environment; leave out indices"
            )


def supports_partial_reset(env: VectorEnv[Any, Any, Any]) -> bool:
    """Whether ``reset(options={"reset_mask": mask})`` is known to reset some sub-environments and spare the others.

    DISABLED environments have to offer it; others can say so with ``metadata["reset_mask"] = True``. Elsewhere an
    unaware environment would reset all without a word, so only known ones are trusted: our tasks, Gymnasium's
    ``SyncVectorEnv`` and its ``AsyncVectorEnv`` with shared memory (without it, the NEXT_STEP workers of Gymnasium 1.4
    do not clear their reset flag and reset twice). None is trusted inside a vector wrapper: Gymnasium's
    ``NormalizeObservation`` refuses partial resets, its ``RecordEpisodeStatistics`` clears the sums of all copies.
    """
    if _mode(env) is AutoresetMode.DISABLED or env.metadata.get("reset_mask", False):
        return True
    if isinstance(env, AsyncVectorEnv):
        return bool(env.shared_memory)
    return isinstance(env, SyncVectorEnv | MemoryTaskVector)


def _mode(env: VectorEnv[Any, Any, Any], default: AutoresetMode | None = None) -> AutoresetMode:
    mode = env.metadata.get("autoreset_mode", default)
    if not isinstance(mode, AutoresetMode):
        raise ConfigError(
            f"{env} does not say how it resets (metadata['autoreset_mode'] is {mode!r}); set a gymnasium AutoresetMode"
        )
    return mode


def _info_list(infos: Mapping[str, Any], num_envs: int) -> Infos:
    """Gymnasium's dictionary of arrays, with masks under "_key", as one dictionary per sub-environment.

    Without a mask an array of N entries is taken as one entry each, anything else as said of all.
    """
    listed: Infos = [{} for _ in range(num_envs)]
    for key, values in infos.items():
        if key.startswith("_") and key[1:] in infos:
            continue
        mask = infos.get(f"_{key}")
        chosen = range(num_envs) if mask is None else np.flatnonzero(mask).tolist()
        parts: Sequence[Any]
        if key == "final_obs" and not isinstance(values, np.ndarray):  # a batched Dict or Tuple observation
            parts = [map_leaves(lambda leaf, i=i: leaf[i], values) for i in range(num_envs)]
        elif isinstance(values, Mapping):
            parts = _info_list(values, num_envs)
        elif isinstance(values, np.ndarray | list | tuple) and len(values) == num_envs:
            # numpy scalars as Python's, arrays as copies: environments may go on writing into what they returned
            parts = [
                part.item() if isinstance(part, np.generic) else part.copy() if isinstance(part, np.ndarray) else part
                for part in values
            ]
        else:
            parts = [values] * num_envs
        for i in chosen:
            listed[i][key] = parts[i]
    return listed
