"""Environments that stop at the first wrong thing they return or raise, with its place. N is the number of copies.

``CheckedEnv`` looks at the types and shapes of one copy, before anything casts or broadcasts them; ``FiniteVecEnv`` and
``check_outcome`` at the values of all copies at once. Environments that a caller built get the same by
``check_copies`` and ``attempt``.
"""

import math
import traceback
import warnings
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager, suppress
from copy import deepcopy
from multiprocessing.process import BaseProcess
from typing import Any

import gymnasium
import numpy as np
from gymnasium import spaces
from gymnasium.envs.registration import EnvSpec
from gymnasium.vector import AsyncVectorEnv, SyncVectorEnv, VectorEnv, VectorWrapper
from stable_baselines3.common.monitor import Monitor
from stable_baselines3.common.vec_env import DummyVecEnv, SubprocVecEnv, VecEnv, VecEnvWrapper, VecMonitor
from stable_baselines3.common.vec_env.base_vec_env import VecEnvObs, VecEnvStepReturn

from rltransformers.core.action_masks import LAST_MASK, MASK_METHOD
from rltransformers.core.errors import ConfigError, DataError, MissingExtraError, WorldError, error_line, one_line
from rltransformers.core.members import all_finite, all_members, finite, flags, members, numbers
from rltransformers.core.ranges import shown
from rltransformers.core.spaces import SUPPORTED_LEAVES, Space, is_nested, leaf_values, observation_leaves

_LARGEST = float(np.finfo(np.float32).max)
_FAULT = "rltransformers_fault"
_WAY_OUT = "repair the environment or its wrappers"
ENVIRONMENT_ERRORS = (ConfigError, DataError, MissingExtraError, WorldError)
"""Errors of ours that an environment or a wrapper may raise: they say enough by themselves."""


def source_name(source: str | EnvSpec | Callable[..., Any] | gymnasium.Env[Any, Any]) -> str:
    """How messages call an environment."""
    if isinstance(source, EnvSpec):
        return source.id
    if isinstance(source, gymnasium.Env):
        return source.spec.id if source.spec is not None else type(source.unwrapped).__name__
    return str(getattr(source, "__qualname__", source))


@contextmanager
def construction(source: str | EnvSpec | Callable[..., Any], options: Mapping[str, Any]) -> Iterator[None]:
    """Turn exceptions of a constructor into an error of ours that names the environment."""
    try:
        yield
    except (gymnasium.error.DependencyNotInstalled, ModuleNotFoundError) as error:
        mujoco = ".mujoco." in str(getattr(source, "entry_point", ""))
        extra = ": pip install 'rltransformers[mujoco]'" if mujoco else ""
        raise MissingExtraError(
            f"{source_name(source)} needs a package that is not installed{extra} ({one_line(error)})"
        ) from error
    except ConfigError as error:
        raise ConfigError(f"env_kwargs of {source_name(source)}: {error}") from error
    except ENVIRONMENT_ERRORS:
        raise
    except Exception as error:  # whatever a constructor raises for keywords that it was not made for
        raise ConfigError(
            f"{source_name(source)} cannot be made with env_kwargs {dict(options)}: {error_line(error)}"
        ) from error


def made_by(function: Callable[..., Any], options: Mapping[str, Any]) -> gymnasium.Env[Any, Any]:
    """The environment that ``function`` makes.

    Raises:
        ConfigError: when it raises an exception (chained), or makes something else.
    """
    with construction(function, options):
        made = function(**options)
    if not isinstance(made, gymnasium.Env):
        raise ConfigError(
            f"{source_name(function)} makes {shown(made)}, which is no environment of Gymnasium; a function makes one "
            "environment, and vector environments are given themselves"
        )
    return made


class CheckedEnv(gymnasium.Wrapper[Any, Any, Any, Any]):
    """Copy ``index`` of an environment, unchanged as long as what it returns has the types and shapes of its spaces.

    The last observation of an episode is a copy, which outlives the next reset of an environment that writes into the
    arrays it returned.

    Attributes that are set on it are set on the environment.

    Args:
        relay: in a process of its own, where an exception would end the process without a word: put the message into
            the info instead, where ``FiniteVecEnv`` finds it.

    Raises:
        DataError: names copy, step (of the episode; 0 is the reset) and episode (from 0) when the environment raises an
            exception, which is chained; when an observation has no such shape or members, or a reward or a flag is
            none.
    """

    def __init__(self, env: gymnasium.Env[Any, Any], index: int, relay: bool = False) -> None:
        super().__init__(env)
        self._index, self._relay, self._t, self._episode = index, relay, 0, -1
        self._space = env.observation_space
        self._checks = _leaf_checks(self._space)
        bare = len(self._checks) == 1 and self._checks[0][0] == ""
        self._bare: tuple[Any, Any] = self._checks[0][2:4] if bare else (None, None)  # type and shape of the one leaf
        self._flat = isinstance(self._space, spaces.Dict) and set(observation_leaves(self._space)) == set(self._space)

    def __setattr__(self, name: str, value: Any) -> None:
        if name == "env" or name[0] == "_":
            object.__setattr__(self, name, value)
        else:
            setattr(self.env, name, value)

    @property
    def spec(self) -> Any:  # type: ignore[override]  # gymnasium declares a plain attribute
        """That of the environment: a dataset need not know who watched its recording."""
        return self.env.spec

    def reset(self, *, seed: int | None = None, options: dict[str, Any] | None = None) -> tuple[Any, dict[str, Any]]:
        object.__setattr__(self, "_t", 0)
        self._episode += 1
        try:
            try:
                results: Any = self.env.reset(seed=seed, options=options)
                if not (isinstance(results, tuple | list) and len(results) == 2 and isinstance(results[1], Mapping)):
                    raise self._wrong_results("reset", results)
                observation, info = results
            except Exception as error:
                raise self._raised(error) from error
            self._check_observation(observation)
        except DataError as error:
            if not self._relay:
                raise
            return self._space.sample(), {_FAULT: str(error)}
        return observation, info

    def step(self, action: Any) -> tuple[Any, Any, bool, bool, dict[str, Any]]:
        object.__setattr__(self, "_t", self._t + 1)  # past __setattr__, for speed
        try:
            try:
                results: Any = self.env.step(action)
                if not (isinstance(results, tuple | list) and len(results) == 5 and isinstance(results[4], Mapping)):
                    raise self._wrong_results("step", results)
                observation, reward, terminated, truncated, info = results
            except Exception as error:
                raise self._raised(error) from error
            if type(observation) is not np.ndarray or (observation.dtype, observation.shape) != self._bare:
                self._check_observation(observation)
            if type(reward) is not float or not -_LARGEST <= reward <= _LARGEST:
                self._check_reward(reward)
            if terminated is not True and terminated is not False:
                self._check_flag("terminated", terminated)
            if truncated is not True and truncated is not False:
                self._check_flag("truncated", truncated)
            if truncated and not terminated and self._masks():
                with suppress(Exception):  # who reads masks asks in every step, and is told there what is wrong
                    info[LAST_MASK] = np.array(self.env.get_wrapper_attr(MASK_METHOD)())  # the reset may write into it
        except DataError as error:
            if not self._relay:
                raise
            return self._space.sample(), 0.0, False, False, {_FAULT: str(error)}
        if terminated or truncated:
            observation = deepcopy(observation)
        return observation, reward, terminated, truncated, info

    def _masks(self) -> bool:
        """Whether the environment says which actions it allows; a reset makes it forget what it allowed last."""
        return self.env.has_wrapper_attr(MASK_METHOD) and callable(self.env.get_wrapper_attr(MASK_METHOD))

    def _raised(self, error: Exception) -> Exception:
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
                _check_reward(frame.f_locals["reward"])
            except DataError as fault:
                return self._error("reward", str(fault))
        text = f"environment {self._index} raised {type(error).__name__} {self._when()}: {one_line(error)}"
        return DataError(_with_way_out(text))

    def _check_observation(self, observation: Any) -> None:
        try:
            if not self._checks:
                return
            flat = self._flat and type(observation) is dict and len(observation) == len(self._space)  # type: ignore[arg-type]
            found = observation if flat else leaf_values(self._space, observation)
            for path, leaf, dtype, shape, classes in self._checks:
                value = found[path] if path in found else _missing(path, found)
                kind = type(value)
                if kind is np.ndarray:
                    if value.dtype == dtype and value.shape == shape:
                        continue
                elif classes is not None and (kind is int or kind is np.int64) and value in classes:
                    continue
                _check_leaf(path, leaf, value)
        except DataError as error:
            raise self._error("observation", str(error)) from error

    def _check_reward(self, reward: Any) -> None:
        try:
            _check_reward(reward)
        except DataError as error:
            raise self._error("reward", str(error)) from error

    def _check_flag(self, name: str, flag: Any) -> None:
        try:
            if flags(flag).shape != ():
                raise DataError(f"has shape {np.shape(flag)}, it must be True or False")
        except DataError as error:
            raise self._error(name, str(error)) from error

    def _error(self, what: str, text: str) -> DataError:
        return DataError(f"{what} of environment {self._index} {text} {self._when()}; {_WAY_OUT}")

    def _wrong_results(self, call: str, results: Any) -> DataError:
        kinds = (
            [type(value).__name__ for value in results] if isinstance(results, tuple | list) else type(results).__name__
        )
        return DataError(f"{call} of environment {self._index} returned {kinds} {self._when()}; {RETURNS}")

    def _when(self) -> str:
        return f"in step {self._t} of its episode {self._episode}"


def read_leaves(space: Space) -> dict[str, Space]:
    """The leaves that a network can read; a recording may leave out others."""
    return {path: leaf for path, leaf in observation_leaves(space).items() if isinstance(leaf, SUPPORTED_LEAVES)}


LeafCheck = tuple[str, Space, Any, tuple[int, ...], range | None]


def _leaf_checks(space: Space) -> list[LeafCheck]:
    """Per leaf: path, space, dtype, shape and, for one class, the allowed ones."""
    return [
        (
            path,
            leaf,
            leaf.dtype,
            tuple(leaf.shape or ()),
            range(int(leaf.start), int(leaf.start + leaf.n)) if isinstance(leaf, spaces.Discrete) else None,
        )
        for path, leaf in read_leaves(space).items()
    ]


def _check_leaf(path: str, leaf: Space, value: Any) -> None:
    at = f"at {path!r} " if path else ""
    try:
        rows = _shaped_leaf(leaf, value)
    except DataError as error:
        raise DataError(f"{at}{error}") from error
    if not members(leaf, rows[None])[0]:
        raise DataError(f"{at}is {one_line(value)}, not of {leaf} (or not finite)")


def _shaped_leaf(leaf: Space, value: Any) -> np.ndarray:
    rows = numbers(value)
    if rows.shape != leaf.shape:
        raise DataError(f"has shape {rows.shape}, the space {leaf.shape}")
    return rows


def _check_reward(reward: Any) -> None:
    value = numbers(reward)
    if value.shape != ():
        raise DataError(f"has shape {value.shape}, it must be one number, as float(reward)")
    if not finite(value.astype(np.float64)).all():
        raise DataError(f"is {value.reshape(())}, not finite in float32")


def _missing(path: str, found: Mapping[str, Any]) -> Any:
    raise DataError(f"the key {path!r} is missing; present: {sorted(map(str, found))}")


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
"""What Python says of a reset or a step that returns, or takes, something else."""


def _with_way_out(text: str) -> str:
    return f"{text}; {RETURNS}" if any(sign in text for sign in _OF_OLD_GYM) else text


# Vector environments that a caller built -------------------------------------------------------


def check_copies(env: VecEnv | VectorEnv[Any, Any, Any]) -> None:
    """Puts a ``CheckedEnv`` around every copy in this process that has none; copies elsewhere stay as they are."""
    holder: Any = innermost(env)
    if isinstance(holder, DummyVecEnv | SyncVectorEnv):
        copies = enumerate(holder.envs)
        holder.envs = type(holder.envs)(
            copy if isinstance(copy, CheckedEnv) else CheckedEnv(copy, index) for index, copy in copies
        )


@contextmanager
def checked_copies(env: VecEnv | VectorEnv[Any, Any, Any]) -> Iterator[None]:
    """``check_copies`` for the length of the block; afterwards the copies are those of the caller again."""
    holder: Any = innermost(env)
    before = getattr(holder, "envs", None)
    check_copies(env)
    try:
        yield
    finally:
        if before is not None:
            holder.envs = before


def innermost(env: VecEnv | VectorEnv[Any, Any, Any]) -> VecEnv | VectorEnv[Any, Any, Any]:
    """The vector environment inside all wrappers of vector environments."""
    if isinstance(env, VecEnvWrapper):
        return innermost(env.venv)
    if isinstance(env, VectorEnv):
        return env.unwrapped
    program = vars(env).get("env")
    return program.unwrapped if isinstance(program, VectorEnv) else env


_STATISTICS = {"NormalizeObservation": "obs_rms", "NormalizeReward": "return_rms"}
"""Wrappers of Gymnasium, for single and for vector environments, and the attribute that each has."""


def warn_of_statistics(env: VecEnv | VectorEnv[Any, Any, Any]) -> None:
    """Warn of wrappers whose running statistics are lost with the environment."""
    names = [name for name, attribute in _STATISTICS.items() if _has_attribute(env, attribute)]
    if names:
        warnings.warn(
            f"the environment is wrapped in {' and '.join(names)} of Gymnasium, whose running statistics no checkpoint "
            "and no dataset holds: an environment that is made again, as for load and evaluate, begins them anew and "
            "shows other numbers; take VecNormalize of Stable-Baselines3 (in configs environment.normalize_observation "
            "and normalize_reward), whose statistics checkpoints hold",
            UserWarning,
            stacklevel=3,
        )


def _has_attribute(env: VecEnv | VectorEnv[Any, Any, Any], name: str) -> bool:
    """Whether a copy, a wrapper of one or a vector wrapper of Gymnasium has such an attribute."""
    layer: Any = env if isinstance(env, VectorEnv) else vars(env.unwrapped).get("env")
    while isinstance(layer, VectorWrapper):
        if name in vars(layer):
            return True
        layer = layer.env
    holder: Any = innermost(env)
    if isinstance(holder, DummyVecEnv | SyncVectorEnv):
        return any(copy.has_wrapper_attr(name) for copy in holder.envs)
    if isinstance(holder, AsyncVectorEnv):
        return any(holder.call("has_wrapper_attr", name))
    return isinstance(holder, SubprocVecEnv) and holder.has_attr(name)


def reset_rows(env: VecEnv) -> np.ndarray:
    """Environments [N] whose newest step was a reset, as a ``GymnasiumVecEnv`` marks it; its action was ignored."""
    rows: np.ndarray = vars(env.unwrapped).get("reset_rows", np.zeros(env.num_envs, bool))
    return rows


def raised_in_reset(error: BaseException) -> bool:
    """Whether a vector environment was being reset when ``error`` was raised."""
    return any(
        frame.f_code.co_name == "reset" and isinstance(frame.f_locals.get("self"), VecEnv)
        for frame, _ in traceback.walk_tb(error.__traceback__)
    )


def attempt(env: VecEnv | VectorEnv[Any, Any, Any], when: str, call: Any, *arguments: Any, **keywords: Any) -> Any:
    """Result of ``call``, a method of ``env``.

    Args:
        when: the step, for messages, as "in step 3".

    Raises:
        DataError: in place of any exception, which is chained; names the step and, where it can be known, the copy.
    """
    try:
        return call(*arguments, **keywords)
    except ENVIRONMENT_ERRORS:
        raise
    except Exception as error:
        raise named_fault(env, error, when) from error


def named_fault(env: VecEnv | VectorEnv[Any, Any, Any], error: Exception, when: str) -> DataError:
    """The error to raise for an exception of ``env``."""
    broken = isinstance(error, EOFError | ConnectionError)
    text = _ended_process(innermost(env), when) if broken else None
    return DataError(text or _raised_by(env, error, when))


def _raised_by(env: VecEnv | VectorEnv[Any, Any, Any], error: Exception, when: str) -> str:
    found = _copy_at_fault(error)
    if isinstance(found, str):
        return f"{found} {when}; {_WAY_OUT}"
    if found is None and env.num_envs == 1:
        found = 0
    who = f"one of the environments 0..{env.num_envs - 1}" if found is None else f"environment {found}"
    return _with_way_out(f"{who} raised {type(error).__name__} {when}: {one_line(error)}")


def _copy_at_fault(error: BaseException) -> int | str | None:
    """The copy, or what is wrong with it, from the frames that both libraries were in; None where they do not tell."""
    for frame, _ in traceback.walk_tb(error.__traceback__):
        local = frame.f_locals
        if isinstance(local.get("self"), AsyncVectorEnv) and isinstance(local.get("index"), int):
            return int(local["index"])
        if frame.f_code.co_name == "_stack_obs":  # of SubprocVecEnv: the copies do not fit on each other
            for index, observation in enumerate(local["obs_list"]):
                try:
                    found = leaf_values(local["space"], observation)
                    for path, leaf, *_ in _leaf_checks(local["space"]):
                        _check_leaf(path, leaf, found[path])
                except DataError as fault:
                    return f"observation of environment {index} {fault}"
        if isinstance(local.get("self"), SubprocVecEnv) and "rews" in local:
            for index, reward in enumerate(local["rews"]):
                try:
                    _check_reward(reward)
                except DataError as fault:
                    return f"reward of environment {index} {fault}"
    return None


def _ended_process(holder: Any, when: str) -> str | None:
    """The message for the first process of ``holder`` that ended; the others, which wait for commands, are ended."""
    processes = _processes(holder)
    for process in processes:
        process.join(timeout=1.0)  # the pipe closes a moment before the process has ended
        if not process.is_alive():
            break
    codes = [(i, process.exitcode) for i, process in enumerate(processes) if not process.is_alive()]
    if not codes:
        return None
    for process in processes:
        process.terminate()
        process.join()
    for pipe in holder.remotes if isinstance(holder, SubprocVecEnv) else holder.parent_pipes:
        if pipe is not None:
            pipe.close()
    holder.closed = True  # closing would wait for an answer of the dead
    index, code = codes[0]
    return (
        f"the process of environment {index} ended {when} (exit code {code}; 1: an exception, printed above; negative: "
        f"killed by that signal, -9 is often a lack of memory); {_WAY_OUT}, or take fewer environments"
    )


def _processes(holder: Any) -> list[BaseProcess]:
    return list(holder.processes) if isinstance(holder, SubprocVecEnv | AsyncVectorEnv) else []


def check_outcome(count: int, rewards: Any, ends: Mapping[str, Any], when: "When") -> None:
    """Raise unless there is one finite reward and one flag of each kind per copy.

    Args:
        ends: flags [N] by name.
        when: the step, for messages, as "in step 3".

    Raises:
        DataError: names the first copy at fault.
    """
    if not (type(rewards) is np.ndarray and rewards.dtype.kind == "f" and rewards.shape == (count,)):
        _check_each("reward", rewards, count, when, _check_reward)
    elif not all_finite(rewards):
        index = int(np.argmin(finite(rewards)))
        raise DataError(
            f"reward of environment {index} is {rewards[index]} {_at(when, index)}, not finite in float32; {_WAY_OUT}"
        )
    for name, ended in ends.items():
        if not (type(ended) is np.ndarray and ended.dtype.kind == "b" and ended.shape == (count,)):
            _check_each(name, ended, count, when, flags)


def _check_each(what: str, values: Any, count: int, when: "When", check: Any) -> None:
    if np.ndim(values) == 0 or len(values) != count:
        raise DataError(
            f"{what} must be one for each of {count} environments, got {_short(values)} {_at(when, 0)}; {_WAY_OUT}"
        )
    for index, value in enumerate(values):
        try:
            if np.shape(value) != ():
                raise DataError(f"has shape {np.shape(value)}, it must be one number")
            check(value)
        except DataError as error:
            raise DataError(f"{what} of environment {index} {error} {_at(when, index)}; {_WAY_OUT}") from error


When = str | Callable[[int], str]
"""The step, for messages, as "in step 3"; of this copy."""


def _at(when: When, index: int) -> str:
    return when if isinstance(when, str) else when(index)


def _short(value: Any) -> str:
    return one_line(repr(value))[:80]


Place = Callable[[int], str]
"""How messages call a row of a batch: the number of its environment and, where known, the step, as "2 in step 7"."""


def check_observations(
    leaves: Mapping[str, Space], values: Mapping[str, Any], what: str = "observation", place: Place = str
) -> None:
    """Raise DataError unless every leaf [N, ...] has the shape of its space, finite numbers, and classes inside it.

    The message names the first row and leaf at fault.
    """
    for path, space in leaves.items():
        if path not in values:
            raise DataError(f"the {what} lacks {path or 'a bare value'!r}; it has {sorted(map(str, values))}")
        rows = values[path]
        if not (type(rows) is np.ndarray and rows.dtype.kind in "biuf" and rows.shape[1:] == space.shape):
            rows = _checked_rows(named(what, path), space, rows, place)
        if not all_members(space, rows):
            row = int(np.argmin(members(space, rows)))
            raise _wrong_value(f"{named(what, path)} of environment {place(row)}", rows[row], space)


def _checked_rows(name: str, space: Space, rows: Any, place: Place) -> np.ndarray:
    """``rows`` as an array, where it was none or has another shape; names the first row that is at fault."""
    if np.ndim(rows) == 0:
        raise DataError(
            f"{name} of environment {place(0)} is {_short(rows)}, one is due for each environment; {_WAY_OUT}"
        )
    for row, value in enumerate(rows):
        try:
            _shaped_leaf(space, value)
        except DataError as error:
            raise DataError(f"{name} of environment {place(row)} {error}; {_WAY_OUT}") from error
    try:
        return numbers(rows).reshape(len(rows), *(space.shape or ()))
    except DataError as error:
        raise DataError(f"{name} {error}; {_WAY_OUT}") from error


def named(what: str, path: str) -> str:
    """``what`` with the path of the leaf it is, for messages; a space that is one leaf has the empty path."""
    return f"{what} {path!r}" if path else what


def _wrong_value(what: str, value: Any, space: Space) -> DataError:
    wrong = np.argwhere(~finite(np.asarray(value)))
    if not len(wrong):
        return DataError(f"{what} is {_short(value)}, outside {space}; {_WAY_OUT}, or declare the space that it has")
    entry = [int(position) for position in wrong[0]]
    number = value[tuple(entry)]
    beyond = " (beyond float32)" if math.isfinite(number) else ""
    at = f" at entry {entry}" if entry else ""
    return DataError(
        f"{what} is {number}{beyond}{at}, not finite; look for a division by zero or an overflow in the environment or "
        "its wrappers, or clip the value in a wrapper"
    )


def check_actions(actions: Mapping[str, np.ndarray]) -> None:
    """Raise DataError for a Box of a policy's actions [N, ...], by leaf path, that holds no finite numbers."""
    for path, rows in actions.items():
        if rows.dtype.kind == "f" and not all_finite(rows):
            row = int(np.argmin(finite(rows).reshape(len(rows), -1).all(1)))
            raise DataError(
                f"the policy's {named('action', path)} for environment {row} is {_short(rows[row].tolist())}; "
                f"{NOT_FINITE}"
            )


NOT_FINITE = (
    "look whether its weights are finite, and scale observations that are too large for float32 inside the network "
    "(VecNormalize does)"
)


def surely_good(leaves: Mapping[str, Space], observations: Sequence[Mapping[str, Any]]) -> bool:
    """Whether all observations pass ``check_observations``, seen at once; False also where that takes a look at each.

    True only for arrays of the shapes and types of the leaves.
    """
    for path, leaf in leaves.items():
        values = [observation.get(path) for observation in observations]
        arrays = [v for v in values if type(v) is np.ndarray and v.shape == leaf.shape and v.dtype == leaf.dtype]
        if len(arrays) < len(values) or (arrays and not all_members(leaf, np.stack(arrays))):
            return False
    return True


def check_single(space: Space, observation: Any, what: str, place: str) -> None:
    """Raise DataError unless the observation of one environment is of ``space``; ``place`` as for ``Place``."""
    try:
        values = leaf_values(space, observation)
    except DataError as error:
        raise DataError(f"{what} of environment {place}: {error}; {_WAY_OUT}") from error
    alone = {path: [values[path]] for path in read_leaves(space)}
    check_observations(read_leaves(space), alone, what, lambda _: place)


def guarded(env: VecEnv) -> bool:
    """Whether all that comes out of ``env`` has passed a ``FiniteVecEnv`` and nothing after it that changes it."""
    while isinstance(env, VecMonitor):
        env = env.venv
    return isinstance(env, FiniteVecEnv)


class FiniteVecEnv(VecEnvWrapper):
    """Hands everything on unchanged; one comparison per leaf and step.

    Raises:
        DataError: when an observation (terminal ones included) or a reward is no finite number, or a class lies outside
            its space; when the environment raises an exception or a process of it ends. Names the sub-environment and
            the step, counted from this wrapper's last reset (0 is the reset itself).
    """

    def __init__(self, venv: VecEnv) -> None:
        super().__init__(venv)
        self._step = 0
        self._leaves = read_leaves(venv.observation_space)
        self._flat = not is_nested(venv.observation_space)
        self._relays = isinstance(innermost(venv), SubprocVecEnv | AsyncVectorEnv)
        self._checks_outcomes = not getattr(type(venv), "checks_outcomes", False)

    def reset(self) -> VecEnvObs:
        self._step = 0
        observation = attempt(self.venv, self._when(), self.venv.reset)
        self._refuse_faults(self.venv.reset_infos)
        self._check_observation(observation)
        return observation

    def step_async(self, actions: np.ndarray) -> None:
        attempt(self.venv, self._when(), self.venv.step_async, actions)

    def step_wait(self) -> VecEnvStepReturn:
        self._step += 1
        when = self._when()
        observation, rewards, dones, infos = attempt(self.venv, when, self.venv.step_wait)
        self._refuse_faults(infos)
        if self._checks_outcomes:
            check_outcome(self.num_envs, rewards, {"done": dones}, when)
        self._check_observation(observation)
        dones = np.asarray(dones, bool)
        if np.count_nonzero(dones):
            self._refuse_faults(self.venv.reset_infos)
            self._check_last(dones, infos)
        return observation, rewards, dones, infos

    def state_dict(self) -> dict[str, Any]:
        return {"step": self._step}

    def load_state_dict(self, state: Mapping[str, Any]) -> None:
        self._step = state["step"]

    def close(self) -> None:
        processes = _processes(innermost(self.venv))
        if processes and not all(process.is_alive() for process in processes):
            return  # Stable-Baselines3 would wait for an answer of the dead
        self.venv.close()

    def _when(self) -> str:
        return f"in step {self._step}"

    def _place(self, index: int) -> str:
        return f"{index} {self._when()}"

    def _refuse_faults(self, infos: Any) -> None:
        if self._relays:
            for info in infos:
                if info and _FAULT in info:
                    raise DataError(info[_FAULT])

    def _check_observation(self, observation: Any) -> None:
        values = observation if self._flat else leaf_values(self.venv.observation_space, observation)
        check_observations(self._leaves, values if isinstance(values, dict) else {"": values}, place=self._place)

    def _check_last(self, dones: np.ndarray, infos: Sequence[Mapping[str, Any]]) -> None:
        ended = [index for index in np.flatnonzero(dones).tolist() if "terminal_observation" in infos[index]]
        last = [infos[index]["terminal_observation"] for index in ended]
        if self._flat and surely_good(self._leaves, [one if isinstance(one, dict) else {"": one} for one in last]):
            return
        for index, one in zip(ended, last, strict=True):
            check_single(self.venv.observation_space, one, "terminal observation", self._place(index))
