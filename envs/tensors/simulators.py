"""Simulators that step many environments on a device as a ``TensorVecEnv``: Isaac Lab, mjlab and those of JAX.

Axis letter: N environments.
"""

from collections.abc import Sequence
from typing import Any

import numpy as np
import torch
from gymnasium import spaces
from torch import Tensor
from torch.utils.dlpack import from_dlpack

from rltransformers.core.errors import ConfigError, did_you_mean, require
from rltransformers.core.ranges import PositiveNumber, check, shown
from rltransformers.core.spaces import Space, map_leaves
from rltransformers.envs.tensors.base import Outcome, TensorStep, TensorVecEnv
from rltransformers.envs.tensors.streams import random_words

GROUPS = ("policy", "actor")
"""Names of the group of observations that the policy sees, in Isaac Lab and in mjlab."""


class SimulatorVecEnv(TensorVecEnv):
    """Environments of Isaac Lab or mjlab, or of anything with their interface, which reset themselves within a step.

    The interface is that of ``ManagerBasedRLEnv``, ``DirectRLEnv`` and mjlab's ``ManagerBasedRlEnv``: ``num_envs``,
    ``device``, ``single_observation_space`` (a Dict of groups), ``single_action_space`` (a Box), ``reset(seed=...)``,
    and ``step(actions)``, which returns observations by group, rewards, terminated, time-outs and extras, as tensors.

    They do not tell the last observation of an episode, so one that a limit cuts has the value of the observation
    before it, as in rsl_rl; with ``cfg.is_finite_horizon`` a limit is an end. Their state is in no checkpoint: a
    resumed run begins new episodes.

    Args:
        env: made by the simulator, wrappers of Gymnasium included.
        group: of observations; None for "policy" or "actor".
        action_limit: actions lie between minus this and this where the simulator's have no bounds.

    Raises:
        ConfigError: for what lacks that interface, an unknown group, or ``auto_reset=False`` in the config of mjlab.
    """

    def __init__(self, env: Any, *, group: str | None = None, action_limit: PositiveNumber = 1.0) -> None:
        self.simulator, inside = env, getattr(env, "unwrapped", env)
        names = ("num_envs", "device", "single_observation_space", "single_action_space", "reset", "step")
        if missing := [name for name in names if not hasattr(inside, name)]:
            raise ConfigError(
                f"{shown(env)} has no {missing[0]}, which environments of Isaac Lab and mjlab have; give the "
                "environment itself, without a wrapper for another learning library"
            )
        config = getattr(inside, "cfg", None)
        if not getattr(config, "auto_reset", True):
            raise ConfigError("cfg.auto_reset is False: these environments have to reset themselves, set it to True")
        self._limit_is_end = bool(getattr(config, "is_finite_horizon", False))
        groups = dict(inside.single_observation_space.spaces)
        known = [name for name in GROUPS if name in groups] or list(groups)
        self._group = known[0] if group is None else group
        if self._group not in groups:
            raise ConfigError(f"the simulator has no group of observations {group!r}; {did_you_mean(group, groups)}")
        limit = check(action_limit, PositiveNumber, "action_limit")
        actions = _space_of(inside.single_action_space, limit)
        super().__init__(inside.num_envs, _space_of(groups[self._group]), actions, inside.device)
        self._seed: int | None = None

    def take_seeds(self, seeds: Sequence[int]) -> None:
        """One seed for all environments, the first of them, as simulators have it."""
        super().take_seeds(seeds)
        self._seed = int(seeds[0]) % 2**31

    def begin(self, mask: Tensor) -> Any:
        observations, _ = self.simulator.reset(**({} if self._seed is None else {"seed": self._seed}))
        self._seed = None
        return self._copied(observations)

    def advance(self, actions: Any) -> Outcome:
        observations, rewards, terminated, truncated, _ = self.simulator.step(actions)
        terminated, truncated = terminated.bool().clone(), truncated.bool().clone()
        if self._limit_is_end:
            terminated = terminated | truncated
        return Outcome(self._copied(observations), rewards.clone(), terminated, truncated)

    def step_tensors(self, actions: Any) -> TensorStep:
        outcome, seen = self._advanced(actions)
        return self._counted(outcome, seen, outcome.truncated & ~outcome.terminated, None)

    def _copied(self, observations: Any) -> Any:
        """The observations of the policy; simulators write into the tensors that they returned."""
        return map_leaves(torch.clone, observations[self._group])

    def close(self) -> None:
        self.simulator.close()


def _space_of(node: Any, limit: float = np.inf) -> Space:
    """The space of Gymnasium for one like it, of Isaac Lab, mjlab or gymnax; a Box without bounds ends at ``limit``."""
    if hasattr(node, "spaces"):
        return spaces.Dict({name: _space_of(child, limit) for name, child in node.spaces.items()})
    if isinstance(node, spaces.Discrete | spaces.MultiDiscrete | spaces.MultiBinary):
        return node
    if hasattr(node, "n"):  # a Discrete of gymnax
        return spaces.Discrete(int(node.n))
    kind = np.dtype(getattr(node, "dtype", None) or np.float32)
    low, high = (np.broadcast_to(np.asarray(bound, kind), node.shape) for bound in (node.low, node.high))
    if kind.kind == "f":
        low, high = np.where(np.isfinite(low), low, -limit), np.where(np.isfinite(high), high, limit)
    return spaces.Box(low.astype(kind), high.astype(kind), dtype=kind.type)


class JaxVecEnv(TensorVecEnv):
    """Environments with the interface of gymnax, stepped by JAX; arrays become tensors by DLPack, without a copy.

    The interface: ``reset_env(key, params)``, ``step_env(key, state, action, params)``, ``observation_space(params)``
    and ``action_space(params)``, each of one environment. Episodes are begun anew here, so last observations are known.
    Where ``params`` have ``max_steps_in_episode`` and the environment ``is_terminal(state, params)``, an end that would
    be none with a longer limit is a truncation. Their state is in no checkpoint: a resumed run begins new episodes.

    Args:
        env: as ``gymnax.make`` gives it.
        params: of the environment; None for its defaults.
        device: of the agent; JAX has to have it, too.

    Raises:
        ConfigError: for what lacks that interface.
        MissingExtraError: without JAX.
    """

    def __init__(self, env: Any, num_envs: int, params: Any = None, *, device: torch.device | str = "auto") -> None:
        jax: Any = require("jax", "gymnax")
        if missing := [name for name in ("reset_env", "step_env", "observation_space") if not hasattr(env, name)]:
            raise ConfigError(f"{shown(env)} has no {missing[0]}, which environments of gymnax have")
        self._params = env.default_params if params is None else params
        observed, acted = env.observation_space(self._params), env.action_space(self._params)
        super().__init__(num_envs, _space_of(observed), _space_of(acted), device)
        longest = self._params
        if hasattr(self._params, "max_steps_in_episode") and hasattr(env, "is_terminal"):
            longest = self._params.replace(max_steps_in_episode=2**30)
        numpy = jax.numpy

        def key_of(words: Any) -> Any:
            return jax.random.wrap_key_data(jax.lax.bitcast_convert_type(words, numpy.uint32))

        def begin(words: Any, mask: Any, before: Any) -> Any:
            fresh = jax.vmap(lambda each: env.reset_env(key_of(each), self._params))(words)

            def choose(new: Any, old: Any) -> Any:
                return numpy.where(mask.reshape(-1, *[1] * (new.ndim - 1)), new, old)

            return fresh if before is None else jax.tree.map(choose, fresh, before)

        def advance(words: Any, state: Any, actions: Any) -> Any:
            def one(each: Any, place: Any, action: Any) -> Any:
                observation, after, reward, done, _ = env.step_env(key_of(each), place, action, self._params)
                terminal = done if longest is self._params else done & env.is_terminal(after, longest)
                return observation, after, reward.astype(numpy.float32), terminal, done

            return jax.vmap(one)(words, state, actions)

        self._begin, self._advance, self._from_torch = jax.jit(begin), jax.jit(advance), numpy.from_dlpack
        self._before: Any = None

    def begin(self, mask: Tensor) -> Any:
        words = random_words(self._streams, self._episodes + 1)
        self._episodes = self._episodes + mask
        self._before = self._begin(self._words(words), self._from_torch(mask), self._before)
        return self._to_torch(self._before[0])

    def advance(self, actions: Any) -> Outcome:
        words = random_words(random_words(self._streams, -self._episodes), self._lengths)
        # JAX counts in 32 bits unless it is told otherwise.
        taken = map_leaves(lambda leaf: self._from_torch(leaf.int() if leaf.dtype == torch.int64 else leaf), actions)
        observations, state, rewards, terminal, done = self._advance(self._words(words), self._before[1], taken)
        self._before = observations, state
        ends, all_ends = self._to_torch(terminal), self._to_torch(done)
        return Outcome(self._to_torch(observations), self._to_torch(rewards), ends, all_ends & ~ends)

    def _words(self, words: Tensor) -> Any:
        return self._from_torch(words.view(torch.int32).view(-1, 2))

    def _to_torch(self, arrays: Any) -> Any:
        return map_leaves(from_dlpack, arrays)
