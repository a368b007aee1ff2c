"""One environment that stops at the first wrong thing it returns or raises, and says where.

Types and shapes are checked here, before anything casts or broadcasts them; ``core.guard`` checks values.
"""

import traceback
from collections.abc import Mapping
from contextlib import suppress
from copy import deepcopy
from typing import Any

import gymnasium
import numpy as np
from gymnasium import spaces
from stable_baselines3.common.monitor import Monitor

from rltransformers.core.action_masks import LAST_MASK, MASK_METHOD
from rltransformers.core.errors import ConfigError, DataError, MissingExtraError, WorldError, one_line
from rltransformers.core.spaces import is_nested, leaf_values
from rltransformers.core.values import LARGEST_FLOAT, check_single, check_value, read_leaves

FAULT = "rltransformers_fault"
"""Key of an info under which an environment in another process relays the message of an error."""
ENVIRONMENT_ERRORS = (ConfigError, DataError, MissingExtraError, WorldError)
"""Errors of ours that an environment or a wrapper may raise: they say enough by themselves."""


class CheckedEnv(gymnasium.Wrapper[Any, Any, Any, Any]):
    """Environment ``index`` of a vector, unchanged as long as it returns the types and shapes of its spaces.

    The last observation of an episode is copied, so that the next reset of an environment that reuses its arrays does
    not overwrite it. Attributes that are set on the wrapper are set on the environment. In a process of its own, which
    an exception would end without a message, ``relay`` puts the message into the info for ``FiniteVecEnv``.

    Raises:
        DataError: for any exception of the environment, and for results of other types or shapes; names environment,
            step (of the episode; 0 is the reset) and episode (from 0).
    """

    def __init__(self, env: gymnasium.Env[Any, Any], index: int, relay: bool = False) -> None:
        super().__init__(env)
        self._index, self._relay, self._t, self._episode = index, relay, 0, -1
        self._space = env.observation_space
        self._leaves = [(path, leaf.dtype, leaf.shape, leaf) for path, leaf in read_leaves(self._space).items()]
        self._bare = self._leaves[0][1:3] if [leaf[0] for leaf in self._leaves] == [""] else None
        self._flat = isinstance(self._space, spaces.Dict) and not is_nested(self._space)

    def __setattr__(self, name: str, value: Any) -> None:
        if name == "env" or name[0] == "_":
            object.__setattr__(self, name, value)
        else:
            setattr(self.env, name, value)

    @property
    def spec(self) -> Any:  # type: ignore[override]  # gymnasium declares a plain attribute
        """That of the environment, so that a dataset does not record the check."""
        return self.env.spec

    def reset(self, *, seed: int | None = None, options: dict[str, Any] | None = None) -> tuple[Any, dict[str, Any]]:
        self._t, self._episode = 0, self._episode + 1
        try:
            try:
                results: Any = self.env.reset(seed=seed, options=options)
            except Exception as error:
                raise self._named_error(error) from error
            self._check_results("reset", results, 2)
            observation, info = results
            self._check_observation(observation)
        except DataError as error:
            if not self._relay:
                raise
            return self._space.sample(), {FAULT: str(error)}
        return observation, info

    def step(self, action: Any) -> tuple[Any, Any, bool, bool, dict[str, Any]]:
        object.__setattr__(self, "_t", self._t + 1)  # past __setattr__, for speed
        try:
            try:
                results: Any = self.env.step(action)
            except Exception as error:
                raise self._named_error(error) from error
            if not (type(results) is tuple and len(results) == 5 and type(results[4]) is dict):
                self._check_results("step", results, 5)
            observation, reward, terminated, truncated, info = results
            if type(observation) is not np.ndarray or (observation.dtype, observation.shape) != self._bare:
                self._check_observation(observation)
            if type(reward) is not float or not -LARGEST_FLOAT <= reward <= LARGEST_FLOAT:
                check_value("reward", reward, self._index, self._when)
            if terminated is not True and terminated is not False:
                check_value("terminated", terminated, self._index, self._when)
            if truncated is not True and truncated is not False:
                check_value("truncated", truncated, self._index, self._when)
            if truncated and not terminated and self.env.has_wrapper_attr(MASK_METHOD):
                with suppress(Exception):  # whoever reads masks calls the method in every step, and raises then
                    info[LAST_MASK] = np.array(self.env.get_wrapper_attr(MASK_METHOD)())  # the reset may write into it
        except DataError as error:
            if not self._relay:
                raise
            return self._space.sample(), 0.0, False, False, {FAULT: str(error)}
        if terminated or truncated:
            observation = deepcopy(observation)
        return observation, reward, terminated, truncated, info

    def _check_results(self, method: str, results: Any, count: int) -> None:
        several = isinstance(results, tuple | list)
        if not (several and len(results) == count and isinstance(results[-1], Mapping)):
            kinds = [type(value).__name__ for value in results] if several else type(results).__name__
            raise DataError(f"{method} of environment {self._index} returned {kinds} {self._when()}; {RETURNS}")

    def _named_error(self, error: Exception) -> Exception:
        if isinstance(error, ENVIRONMENT_ERRORS):
            return error
        if self._episode < 0 and self._t:
            return DataError(
                f"environment {self._index} is to take a step and was never reset ({one_line(error)}); reset it, or "
                "leave out force_reset=False, which is for environments that stand where a run stopped"
            )
        *_, (frame, _) = traceback.walk_tb(error.__traceback__)
        if isinstance(frame.f_locals.get("self"), Monitor) and "reward" in frame.f_locals:  # it adds rewards up
            try:
                check_value("reward", frame.f_locals["reward"], self._index, self._when)
            except DataError as fault:
                return fault
        text = f"environment {self._index} raised {type(error).__name__} {self._when()}: {one_line(error)}"
        return DataError(with_way_out(text))

    def _check_observation(self, observation: Any) -> None:
        flat = self._flat and type(observation) is dict and len(observation) == len(self._leaves)
        try:
            values = observation if flat else leaf_values(self._space, observation)
        except DataError:
            values = {}
        for path, dtype, shape, leaf in self._leaves:
            value = values.get(path)
            if type(value) is np.ndarray:
                good = value.dtype == dtype and value.shape == shape
            else:
                good = isinstance(leaf, spaces.Discrete) and type(value) in (int, np.int64) and value in leaf
            if not good:
                check_single(self._space, observation, "observation", f"{self._index} {self._when()}")
                return

    def _when(self) -> str:
        return f"in step {self._t} of its episode {self._episode}"


RETURNS = (
    "reset returns two values, observation and info (a dict), step returns five: observation, reward, terminated, "
    "truncated, info; reset takes the keywords seed and options; an environment of the old gym fits in "
    "shimmy.GymV21CompatibilityV0(env=env)"
)
_OF_OLD_GYM = (
    "values to unpack (expected",
    "cannot unpack non-iterable",
    "reset() got an unexpected keyword argument 'seed'",
    "reset() got an unexpected keyword argument 'options'",
)
"""Messages of Python about a reset or a step that returns, or takes, something else."""


def with_way_out(text: str) -> str:
    """``text``, and what environments return, where an exception comes from one that returns something else."""
    return f"{text}; {RETURNS}" if any(sign in text for sign in _OF_OLD_GYM) else text
