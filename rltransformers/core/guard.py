"""Environments that stop at the first wrong thing they return or raise, and say where. N: number of environments.

``CheckedEnv`` checks types and shapes of one environment, before anything casts or broadcasts them. ``FiniteVecEnv``
checks the values of all environments at once; ``Guard`` is the one of an agent, ``guarding`` the one of an evaluation
or a recording.
"""

import copyreg
import inspect
import math
import traceback
import warnings
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager, nullcontext, suppress
from copy import deepcopy
from functools import cache, wraps
from multiprocessing.process import BaseProcess
from typing import Any

import gymnasium
import numpy as np
from gymnasium import spaces
from gymnasium.vector import AsyncVectorEnv, SyncVectorEnv, VectorEnv, VectorWrapper
from stable_baselines3.common.monitor import Monitor
from stable_baselines3.common.vec_env import (
    DummyVecEnv,
    SubprocVecEnv,
    VecEnv,
    VecEnvWrapper,
    VecMonitor,
    VecNormalize,
    is_vecenv_wrapped,
    unwrap_vec_normalize,
)
from stable_baselines3.common.vec_env.base_vec_env import VecEnvObs, VecEnvStepReturn

from rltransformers.core.action_masks import ACTION_MASK, LAST_MASK, MASK_METHOD, check_masks, choices_of, fit_masks
from rltransformers.core.errors import ConfigError, DataError, MissingExtraError, WorldError, one_line
from rltransformers.core.members import all_finite, all_members, finite, flags, members, numbers
from rltransformers.core.spaces import (
    SUPPORTED_LEAVES,
    Space,
    is_nested,
    leaf_values,
    nested_leaves,
    observation_leaves,
)

_LARGEST = float(np.finfo(np.float32).max)
_FAULT = "rltransformers_fault"
_WAY_OUT = "repair the environment or its wrappers"
ENVIRONMENT_ERRORS = (ConfigError, DataError, MissingExtraError, WorldError)
"""Errors of ours that an environment or a wrapper may raise: they say enough by themselves."""
When = Callable[[], str]
"""Returns the step, for messages, as "in step 3"."""
Place = Callable[[int], str]
"""Row of a batch to its environment and, where known, the step, for messages, as "2 in step 7"."""
AnyVectorEnv = VecEnv | VectorEnv[Any, Any, Any]


# One environment -------------------------------------------------------


class CheckedEnv(gymnasium.Wrapper[Any, Any, Any, Any]):
    """Environment ``index`` of a vector, unchanged as long as it returns the types and shapes of its spaces.

    The last observation of an episode is copied, so that the next reset of an environment that reuses its arrays does
    not overwrite it. Attributes that are set on the wrapper are set on the environment.

    Args:
        relay: put the message of an error into the info, where ``FiniteVecEnv`` reads it. For an environment in a
            process of its own, which an exception would end without a message.

    Raises:
        DataError: names environment, step (of the episode; 0 is the reset) and episode (from 0) when the environment
            raises an exception, which is chained; when an observation has no such shape or members, or a reward or a
            flag is none.
    """

    def __init__(self, env: gymnasium.Env[Any, Any], index: int, relay: bool = False) -> None:
        super().__init__(env)
        self._index, self._relay, self._t, self._episode = index, relay, 0, -1
        self._space = env.observation_space
        self._leaves = [
            (path, leaf.dtype, leaf.shape, _classes(leaf)) for path, leaf in read_leaves(self._space).items()
        ]
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
            return self._space.sample(), {_FAULT: str(error)}
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
            if type(reward) is not float or not -_LARGEST <= reward <= _LARGEST:
                _check_value("reward", reward, self._index, self._when)
            if terminated is not True and terminated is not False:
                _check_value("terminated", terminated, self._index, self._when)
            if truncated is not True and truncated is not False:
                _check_value("truncated", truncated, self._index, self._when)
            if truncated and not terminated and self.env.has_wrapper_attr(MASK_METHOD):
                with suppress(Exception):  # whoever reads masks calls the method in every step, and raises then
                    info[LAST_MASK] = np.array(self.env.get_wrapper_attr(MASK_METHOD)())  # the reset may write into it
        except DataError as error:
            if not self._relay:
                raise
            return self._space.sample(), 0.0, False, False, {_FAULT: str(error)}
        if terminated or truncated:
            observation = deepcopy(observation)
        return observation, reward, terminated, truncated, info

    def _check_results(self, method: str, results: Any, count: int) -> None:
        """Raise DataError unless a method returned so many values, the last of them an info."""
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
                _check_value("reward", frame.f_locals["reward"], self._index, self._when)
            except DataError as fault:
                return fault
        text = f"environment {self._index} raised {type(error).__name__} {self._when()}: {one_line(error)}"
        return DataError(_with_way_out(text))

    def _check_observation(self, observation: Any) -> None:
        """Raise DataError unless the observation is of the space; arrays are checked for type and shape alone."""
        flat = self._flat and type(observation) is dict and len(observation) == len(self._leaves)
        try:
            values = observation if flat else leaf_values(self._space, observation)
        except DataError:
            values = {}
        for path, dtype, shape, classes in self._leaves:
            value = values.get(path)
            if type(value) is np.ndarray:
                good = value.dtype == dtype and value.shape == shape
            else:
                good = classes is not None and type(value) in (int, np.int64) and value in classes
            if not good:
                check_single(self._space, observation, "observation", f"{self._index} {self._when()}")
                return

    def _when(self) -> str:
        return f"in step {self._t} of its episode {self._episode}"


def _classes(leaf: Space) -> range | None:
    return range(int(leaf.start), int(leaf.start + leaf.n)) if isinstance(leaf, spaces.Discrete) else None


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


def _with_way_out(text: str) -> str:
    return f"{text}; {RETURNS}" if any(sign in text for sign in _OF_OLD_GYM) else text


# Vector environments -------------------------------------------------------


def check_copies(env: AnyVectorEnv) -> None:
    """Put a ``CheckedEnv`` around every environment in this process that has none."""
    holder: Any = innermost(env)
    if isinstance(holder, DummyVecEnv | SyncVectorEnv):
        inner = enumerate(holder.envs)
        holder.envs = type(holder.envs)(
            each if isinstance(each, CheckedEnv) else CheckedEnv(each, index) for index, each in inner
        )


@contextmanager
def guarding(env: VecEnv) -> Iterator[VecEnv]:
    """Within the block, check all that comes out of ``env``; afterwards it is as the caller made it."""
    holder: Any = innermost(env)
    before = getattr(holder, "envs", None)
    check_copies(env)
    try:
        yield env if is_vecenv_wrapped(env, FiniteVecEnv) else FiniteVecEnv(env)
    finally:
        if before is not None:
            holder.envs = before


def innermost(env: AnyVectorEnv) -> AnyVectorEnv:
    """Return the vector environment inside all wrappers of vector environments."""
    if isinstance(env, VecEnvWrapper):
        return innermost(env.venv)
    if isinstance(env, VectorEnv):
        return env.unwrapped
    program = vars(env).get("env")
    return program.unwrapped if isinstance(program, VectorEnv) else env


_STATISTICS = {"NormalizeObservation": "obs_rms", "NormalizeReward": "return_rms"}
"""Wrappers of Gymnasium, for single and for vector environments, and the attribute that each has."""


def warn_of_statistics(env: AnyVectorEnv) -> None:
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


def _has_attribute(env: AnyVectorEnv, name: str) -> bool:
    """Whether an environment, a wrapper of one or a vector wrapper of Gymnasium has such an attribute."""
    layer: Any = env if isinstance(env, VectorEnv) else vars(env.unwrapped).get("env")
    while isinstance(layer, VectorWrapper):
        if name in vars(layer):
            return True
        layer = layer.env
    holder: Any = innermost(env)
    if isinstance(holder, DummyVecEnv | SyncVectorEnv):
        return any(each.has_wrapper_attr(name) for each in holder.envs)
    if isinstance(holder, AsyncVectorEnv):
        return any(holder.call("has_wrapper_attr", name))
    return isinstance(holder, SubprocVecEnv) and holder.has_attr(name)


def reset_rows(env: VecEnv) -> np.ndarray:
    """Environments [N] whose newest step was a reset, as a ``GymnasiumVecEnv`` marks it; its action was ignored."""
    rows: np.ndarray = vars(env.unwrapped).get("reset_rows", np.zeros(env.num_envs, bool))
    return rows


def waiting_rows(env: VecEnv) -> np.ndarray:
    """Environments [N] whose next step will be a reset and ignore its action, as a ``GymnasiumVecEnv`` says."""
    rows: np.ndarray = getattr(env.unwrapped, "resets_next", np.zeros(env.num_envs, bool))
    return rows


def guarded(env: VecEnv) -> bool:
    """Whether ``env`` is a ``FiniteVecEnv``, under nothing that changes what comes out of it."""
    while isinstance(env, VecMonitor):
        env = env.venv
    return isinstance(env, FiniteVecEnv)


class FiniteVecEnv(VecEnvWrapper):
    """Check all that comes out of ``venv``, and what a ``VecNormalize`` in it takes in; hand it on unchanged.

    One comparison per leaf and step. What a ``guarded`` one lets through is not checked again.

    Args:
        when: the step, for messages; None counts from the last reset of this wrapper (0 is the reset itself).

    Raises:
        DataError: when an observation (terminal ones included) or a reward is no finite number, or a class lies outside
            its space; when the environment raises an exception or a process of it ends. Names the environment and the
            step. The statistics of a ``VecNormalize`` are then as they were before the step.
    """

    def __init__(self, venv: VecEnv, when: When | None = None) -> None:
        super().__init__(venv)
        self._step = 0
        self._when = self._own_step if when is None else when
        checked = guarded(venv)
        self._leaves = {} if checked else read_leaves(venv.observation_space)
        self._flat = not is_nested(venv.observation_space)
        self._checks_outcomes = not checked and not getattr(type(venv), "checks_outcomes", False)
        self._relays = not checked and isinstance(innermost(venv), SubprocVecEnv | AsyncVectorEnv)
        normalizer = unwrap_vec_normalize(venv)
        inside = normalizer is not None and not guarded(normalizer.venv)
        self.inside = _GuardInside(normalizer, self._when) if inside else nullcontext()  # type: ignore[arg-type]

    def reset(self) -> VecEnvObs:
        self._step = 0
        with self.inside:
            observation = attempt(self.venv, self._own_step, self.venv.reset)
        if self._relays:
            _refuse_faults(self.venv.reset_infos)
        self.check(observation, self._own_step)
        return observation

    def step_async(self, actions: np.ndarray) -> None:
        attempt(self.venv, self._when, self.venv.step_async, actions)

    def step_wait(self) -> VecEnvStepReturn:
        self._step += 1
        with self.inside:
            observation, rewards, dones, infos = attempt(self.venv, self._when, self.venv.step_wait)
        if self._relays:
            _refuse_faults(infos)
        if self._checks_outcomes:
            check_outcome(self.num_envs, rewards, {"done": dones}, self._when)
        if self._leaves:
            self.check(observation, self._when)
        dones = np.asarray(dones, bool)
        if self._leaves and np.count_nonzero(dones):
            if self._relays:
                _refuse_faults(self.venv.reset_infos)
            ended = [index for index in np.flatnonzero(dones).tolist() if "terminal_observation" in infos[index]]
            if ended:
                rows = [self._values(infos[index]["terminal_observation"]) for index in ended]
                last = {path: [row.get(path) for row in rows] for path in self._leaves}
                check_observations(
                    self._leaves, last, "terminal observation", lambda row: f"{ended[row]} {self._when()}"
                )
        return observation, rewards, dones, infos

    def check(self, observation: Any, when: When) -> None:
        """Raise DataError unless the observation of all environments is of the space, and finite."""
        check_observations(self._leaves, self._values(observation), place=lambda index: f"{index} {when()}")

    def _values(self, observation: Any) -> Mapping[str, Any]:
        """Leaves by path."""
        values = observation if self._flat else leaf_values(self.venv.observation_space, observation)
        return values if isinstance(values, dict) else {"": values}

    def state_dict(self) -> dict[str, Any]:
        return {"step": self._step}

    def load_state_dict(self, state: Mapping[str, Any]) -> None:
        self._step = state["step"]

    def close(self) -> None:
        processes = _processes(innermost(self.venv))
        if processes and not all(process.is_alive() for process in processes):
            return  # Stable-Baselines3 would wait for an answer of the dead
        self.venv.close()

    def __getstate__(self) -> dict[str, Any]:
        return {name: value for name, value in vars(self).items() if name != "class_attributes"}  # they do not pickle

    def __setstate__(self, state: dict[str, Any]) -> None:
        vars(self).update(state, class_attributes=dict(inspect.getmembers(type(self))))

    def _own_step(self) -> str:
        return f"in step {self._step}"


class _GuardInside:
    """Within the block, check what a ``VecNormalize`` takes in: one NaN would stay in its statistics for good.

    Only there: Stable-Baselines3 compares wrappers of training and evaluation one by one.
    """

    def __init__(self, normalizer: VecNormalize, when: When) -> None:
        self._normalizer, self._guard = normalizer, FiniteVecEnv(normalizer.venv, when)

    def __enter__(self) -> None:
        self._normalizer.venv = self._guard

    def __exit__(self, *_: object) -> None:
        self._normalizer.venv = self._guard.venv


def _refuse_faults(infos: Any) -> None:
    """Raise the error that a ``CheckedEnv`` in another process relayed."""
    for info in infos:
        if info and _FAULT in info:
            raise DataError(info[_FAULT])


class Guard(FiniteVecEnv):
    """Step the environments of an agent: checked, with masks of actions, and aware of resets and steps by others.

    The agent keeps its own stack of wrappers. Resets and steps are counted where they end: in the innermost environment
    of every copy in this process, else in the vector environment that talks to the copies. Such an object gets a
    subclass of its class that counts (as ``torch.nn.utils.parametrize`` does it); it stays an instance of its class,
    and its copies are plain ones again.

    Args:
        steps: returns the steps that the run has made so far.
        masks: whether the agent reads masks of actions.
        beside: whether these are what the environments' method ``action_masks()`` says, and no part of the observation.
    """

    def __init__(self, venv: VecEnv, steps: Callable[[], int], masks: bool, beside: bool) -> None:
        self._steps = steps
        super().__init__(venv, self._next_step)
        self._masks, self._beside = masks, beside
        self._programs = [_counting(program) for program in _programs(venv)]
        self.note()

    def _next_step(self) -> str:
        return f"at step {self._steps() + 1} of this run"

    def _place(self, row: int) -> str:
        return f"{row} at step {self._steps()} of this run"

    def note(self) -> None:
        """Take all resets and steps so far for the agent's own."""
        self._known = [program.get(_MOVES, 0) for program in self._programs]

    @property
    def moved(self) -> bool:
        """Whether somebody reset or stepped an environment since ``note``."""
        return self._known != [program.get(_MOVES, 0) for program in self._programs]

    def leaves(self, observation: Any) -> dict[str, Any]:
        """Return the leaves [N, ...] of the newest observation and, if the agent reads them, its masks [N, M].

        Raises:
            DataError: for what is no mask, or one that allows nothing.
        """
        leaves = nested_leaves(observation)
        if self._masks:
            if self._beside:
                masks = attempt(self.venv, lambda: f"in {MASK_METHOD}()", self.venv.env_method, MASK_METHOD)
                leaves[ACTION_MASK] = fit_masks(masks, self.action_space, self.num_envs)
            acting = np.flatnonzero(~waiting_rows(self))
            masks = np.asarray(leaves[ACTION_MASK])[acting]
            check_masks(masks, self.action_space, lambda row: self._place(int(acting[row])))
        return leaves

    def last_leaves(
        self, dones: np.ndarray, infos: Sequence[Mapping[str, Any]], values_read_masks: bool = False
    ) -> tuple[list[int], dict[str, np.ndarray]]:
        """Environments whose episode a limit cut, and the leaves of their true last observations.

        Args:
            values_read_masks: whether the values of last observations depend on their masks.

        Raises:
            DataError: where values depend on masks, and an environment has reset before anybody asked for its mask.
        """
        cut = [index for index in np.flatnonzero(dones).tolist() if infos[index].get("TimeLimit.truncated", False)]
        cut = [index for index in cut if "terminal_observation" in infos[index]]
        rows = [nested_leaves(infos[index]["terminal_observation"]) for index in cut]
        leaves = {path: np.stack([np.asarray(row[path]) for row in rows]) for path in (rows[0] if rows else ())}
        if self._masks and cut:
            if self._beside:
                masks = [infos[index].get(LAST_MASK) for index in cut]
                leaves[ACTION_MASK] = self._last_masks(masks, cut, values_read_masks)
            if values_read_masks:
                check_masks(np.asarray(leaves[ACTION_MASK]), self.action_space, lambda row: self._place(cut[row]))
        return cut, leaves

    def _last_masks(self, masks: list[Any], cut: list[int], needed: bool) -> np.ndarray:
        lost = [index for index, mask in zip(cut, masks, strict=True) if mask is None]
        if lost and needed:
            raise DataError(
                f"environment {self._place(lost[0])} was cut by a limit and has reset, and its last mask of actions "
                "went with it, without which the value of the last observation is not known: put the wrapper "
                "ActionMasks of rltransformers.envs around the environments"
            )
        all_allowed = np.ones(sum(choices_of(self.action_space)), np.int8)
        masks = [all_allowed if mask is None else mask for mask in masks]
        return fit_masks(np.stack(masks), self.action_space, len(cut))


_MOVES = "rltransformers_moves"
_MOVERS = ("reset", "reset_async", "step", "step_async")
_CALLER = "env_method"  # which calls a method of environments in other processes by its name


def _programs(env: VecEnv) -> Sequence[Any]:
    """The objects that every reset and step of the environments comes to."""
    holder: Any = innermost(env)
    if not isinstance(holder, DummyVecEnv | SyncVectorEnv):
        return [holder]
    programs: list[Any] = list(holder.envs)
    for index in range(len(programs)):
        while isinstance(programs[index], gymnasium.Wrapper):  # ``unwrapped`` may be anything
            programs[index] = programs[index].env
    return programs


def _counting(program: Any) -> dict[str, Any]:
    """Let ``program`` count its resets and steps from now on; return its attributes, which hold the count."""
    kind = type(program)
    if _MOVES not in vars(kind):
        with suppress(TypeError):  # of classes in C, which have no subclasses of the same layout
            program.__class__ = _counting_class(kind)  # type: ignore[arg-type]  # a class is hashable
    return vars(program)


def _new(kind: type, *arguments: Any) -> Any:
    return kind.__new__(kind, *arguments)


@cache
def _counting_class(kind: type) -> type:
    """A subclass of the same name that counts calls of ``kind``'s methods in its objects' dictionaries."""

    def counting(name: str, method: Callable[..., Any]) -> Callable[..., Any]:
        @wraps(method)  # with its signature, which checkers of environments read
        def call(self: Any, *arguments: Any, **keywords: Any) -> Any:
            if name in _MOVERS or (arguments and arguments[0] in _MOVERS):
                attributes = self.__dict__
                attributes[_MOVES] = attributes.get(_MOVES, 0) + 1
            return method(self, *arguments, **keywords)

        return call

    def reduce(self: Any, protocol: Any) -> Any:
        reduced: Any = super(counted, self).__reduce_ex__(protocol)
        if isinstance(reduced, str) or not reduced[1] or reduced[1][0] is not counted:
            return reduced
        # pickle insists on the class of the object only where it is made by this function
        make = _new if reduced[0] is copyreg.__newobj__ else reduced[0]  # type: ignore[attr-defined]
        return make, (kind, *reduced[1][1:]), *reduced[2:]

    methods = {
        name: counting(name, getattr(kind, name)) for name in (*_MOVERS, _CALLER) if callable(getattr(kind, name, None))
    }
    names = {"__module__": kind.__module__, "__qualname__": kind.__qualname__, "__doc__": kind.__doc__, _MOVES: 0}
    counted: Any = type(kind)(kind.__name__, (kind,), {**names, **methods, "__reduce_ex__": reduce})
    return counted


# Exceptions of vector environments -------------------------------------------------------


def raised_in_reset(error: BaseException) -> bool:
    """Whether a vector environment was being reset when ``error`` was raised."""
    return any(
        frame.f_code.co_name == "reset" and isinstance(frame.f_locals.get("self"), VecEnv)
        for frame, _ in traceback.walk_tb(error.__traceback__)
    )


def attempt(env: AnyVectorEnv, when: When, call: Any, *arguments: Any, **keywords: Any) -> Any:
    """Return the result of ``call``, a method of ``env``.

    Raises:
        DataError: in place of any exception, which is chained; names the step and, where it can be known, the
            environment.
    """
    try:
        return call(*arguments, **keywords)
    except ENVIRONMENT_ERRORS:
        raise
    except Exception as error:
        raise named_fault(env, error, when()) from error


def named_fault(env: AnyVectorEnv, error: Exception, when: str) -> DataError:
    """Return the error to raise for an exception of ``env``."""
    broken = isinstance(error, EOFError | ConnectionError)
    text = _ended_process(innermost(env), when) if broken else None
    if text is not None:
        return DataError(text)
    index = _environment_at_fault(error, when)
    if isinstance(index, DataError):
        return index
    if index is None and env.num_envs == 1:
        index = 0
    who = f"one of the environments 0..{env.num_envs - 1}" if index is None else f"environment {index}"
    return DataError(_with_way_out(f"{who} raised {type(error).__name__} {when}: {one_line(error)}"))


def _environment_at_fault(error: BaseException, when: str) -> int | DataError | None:
    """The environment, or what is wrong with it, from the frames that both libraries were in; None if unknown."""
    for frame, _ in traceback.walk_tb(error.__traceback__):
        local = frame.f_locals
        if isinstance(local.get("self"), AsyncVectorEnv) and isinstance(local.get("index"), int):
            return int(local["index"])
        try:
            if frame.f_code.co_name == "_stack_obs":  # of SubprocVecEnv: the observations do not fit on each other
                for index, observation in enumerate(local["obs_list"]):
                    check_single(local["space"], observation, "observation", f"{index} {when}")
            if isinstance(local.get("self"), SubprocVecEnv) and "rews" in local:
                for index, reward in enumerate(local["rews"]):
                    _check_value("reward", reward, index, lambda: when)
        except DataError as fault:
            return fault
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


# Values -------------------------------------------------------


def read_leaves(space: Space) -> dict[str, Space]:
    """The leaves that a network can read; a recording may leave out others."""
    return {path: leaf for path, leaf in observation_leaves(space).items() if isinstance(leaf, SUPPORTED_LEAVES)}


def check_outcome(count: int, rewards: Any, ends: Mapping[str, Any], when: When) -> None:
    """Raise DataError unless there is one finite reward and one flag of each kind per environment.

    The message names the first environment at fault.

    Args:
        ends: flags [N] by name.
    """
    plain = type(rewards) is np.ndarray and rewards.dtype.kind == "f" and rewards.shape == (count,)
    if not plain or not all_finite(rewards):
        _check_each("reward", rewards, count, when)
    for name, ended in ends.items():
        if not (type(ended) is np.ndarray and ended.dtype.kind == "b" and ended.shape == (count,)):
            _check_each(name, ended, count, when)


def _check_each(what: str, values: Any, count: int, when: When) -> None:
    if np.ndim(values) == 0 or len(values) != count:
        raise DataError(
            f"{what} must be one for each of {count} environments, got {_short(values)} {when()}; {_WAY_OUT}"
        )
    for index, value in enumerate(values):
        _check_value(what, value, index, when)


def _check_value(what: str, value: Any, index: int, when: When) -> None:
    """Raise DataError unless the value of environment ``index`` is a finite reward, or a flag of another name."""
    try:
        array = numbers(value) if what == "reward" else flags(value)
        if array.shape != ():
            due = "one number, as float(reward)" if what == "reward" else "True or False"
            raise DataError(f"has shape {array.shape}, it must be {due}")
    except DataError as error:
        raise DataError(f"{what} of environment {index} {error} {when()}; {_WAY_OUT}") from error
    if not finite(array.astype(np.float64)).all():
        raise DataError(f"{what} of environment {index} is {array} {when()}, not finite in float32; {_WAY_OUT}")


def _short(value: Any) -> str:
    return one_line(repr(value))[:80]


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
    if type(rows) is not list and np.ndim(rows) == 0:
        raise DataError(
            f"{name} of environment {place(0)} is {_short(rows)}, one is due for each environment; {_WAY_OUT}"
        )
    for row, value in enumerate(rows):
        try:
            shape = numbers(value).shape
            if shape != space.shape:
                raise DataError(f"has shape {shape}, the space {space.shape}")
        except DataError as error:
            raise DataError(f"{name} of environment {place(row)} {error}; {_WAY_OUT}") from error
    try:
        return numbers(rows).reshape(len(rows), *(space.shape or ()))
    except DataError as error:
        raise DataError(f"{name} {error}; {_WAY_OUT}") from error


def check_single(space: Space, observation: Any, what: str, place: str) -> None:
    """Raise DataError unless the observation of one environment is of ``space``; ``place`` as for ``Place``."""
    try:
        values = leaf_values(space, observation)
    except DataError as error:
        raise DataError(f"{what} of environment {place}: {error}; {_WAY_OUT}") from error
    leaves = read_leaves(space)
    check_observations(leaves, {path: [values[path]] for path in leaves}, what, lambda _: place)


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
