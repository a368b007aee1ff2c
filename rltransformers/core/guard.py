"""Vector environments that stop at the first wrong value they return or raise, and say where. N: environments.

Values of all environments are checked here at once, types and shapes of each in ``core.checked_env``.
"""

import copyreg
import inspect
import traceback
import warnings
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager, nullcontext, suppress
from functools import cache, wraps
from multiprocessing.process import BaseProcess
from typing import Any

import gymnasium
import numpy as np
from gymnasium.vector import AsyncVectorEnv, SyncVectorEnv, VectorEnv, VectorWrapper
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

from rltransformers.core import values
from rltransformers.core.action_masks import (
    ACTION_MASK,
    LAST_MASK,
    MASK_METHOD,
    STUCK_AT_LIMIT,
    check_masks,
    choices_of,
    fit_masks,
)
from rltransformers.core.checked_env import ENVIRONMENT_ERRORS, FAULT, CheckedEnv, with_way_out
from rltransformers.core.errors import DataError, one_line
from rltransformers.core.spaces import is_nested, leaf_values
from rltransformers.core.values import When, read_leaves

AnyVectorEnv = VecEnv | VectorEnv[Any, Any, Any]


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
            stacklevel=3,
        )


def _has_attribute(env: AnyVectorEnv, name: str) -> bool:
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
        self.inside = nullcontext() if normalizer is None else _GuardInside(normalizer, self._when)
        self.last: dict[int, Any] = {}  # last observations of the newest step with an end

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
            values.check_outcome(self.num_envs, rewards, {"done": dones}, self._when)
        if self._leaves:
            self.check(observation, self._when)
        dones = np.asarray(dones, bool)
        if np.count_nonzero(dones):
            if self._relays:
                _refuse_faults(self.venv.reset_infos)
            ended = [index for index in np.flatnonzero(dones).tolist() if "terminal_observation" in infos[index]]
            self.last = {index: infos[index]["terminal_observation"] for index in ended}
            if self._leaves and ended:
                rows = [self._values(each) for each in self.last.values()]
                last = {path: [row.get(path) for row in rows] for path in self._leaves}
                values.check_observations(
                    self._leaves, last, "terminal observation", lambda row: f"{ended[row]} {self._when()}"
                )
        return observation, rewards, dones, infos

    def check(self, observation: Any, when: When) -> None:
        values.check_observations(self._leaves, self._values(observation), place=lambda index: f"{index} {when()}")

    def _values(self, observation: Any) -> Mapping[str, Any]:
        leaves = observation if self._flat else leaf_values(self.venv.observation_space, observation)
        return leaves if isinstance(leaves, dict) else {"": leaves}

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
        self._normalizer, self.guard = normalizer, FiniteVecEnv(normalizer.venv, when)

    def __enter__(self) -> None:
        self._normalizer.venv = self.guard

    def __exit__(self, *_: object) -> None:
        self._normalizer.venv = self.guard.venv


def _refuse_faults(infos: Any) -> None:
    """Raise the error that a ``CheckedEnv`` in another process relayed."""
    for info in infos:
        if info and FAULT in info:
            raise DataError(info[FAULT])


class Guard(FiniteVecEnv):
    """Step the environments of an agent: checked, with masks of actions, and aware of resets and steps by others.

    Resets and steps are counted where they end: in the innermost environment of every copy in this process, else in the
    vector environment that talks to the copies. Such an object gets a subclass of its class that counts (as
    ``torch.nn.utils.parametrize`` does it); it stays an instance of its class, and its copies are plain ones again.

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

    def _next_step(self) -> str:
        return f"at step {self._steps() + 1} of this run"

    def _place(self, row: int) -> str:
        return f"{row} at step {self._steps()} of this run"

    @property
    def moves(self) -> list[int]:
        """Numbers of resets and steps of the environments so far, by whomever."""
        return [program.get(_MOVES, 0) for program in self._programs]

    def leaves(self, observation: Any) -> dict[str, Any]:
        """Return the checked leaves [N, ...] of the newest observation and, if the agent reads them, masks [N, M]."""
        leaves = dict(self._values(observation))
        if self._masks:
            if self._beside:
                masks = attempt(self.venv, lambda: f"in {MASK_METHOD}()", self.venv.env_method, MASK_METHOD)
                leaves[ACTION_MASK] = fit_masks(masks, self.action_space, self.num_envs)
            acting = np.flatnonzero(~waiting_rows(self))
            masks = np.asarray(leaves[ACTION_MASK])[acting]
            check_masks(masks, self.action_space, lambda row: self._place(int(acting[row])))
        return leaves

    def last_leaves(
        self, dones: np.ndarray, infos: Sequence[Mapping[str, Any]], for_replay: bool = False
    ) -> tuple[list[int], dict[str, np.ndarray]]:
        """Environments whose episode a limit cut, and leaves of their true last observations.

        ``for_replay``: those of the newest step as ``VecNormalize`` was given them; values read their masks, and what
        is wrong with one raises DataError.
        """
        cut = [index for index in np.flatnonzero(dones).tolist() if infos[index].get("TimeLimit.truncated", False)]
        cut = [index for index in cut if "terminal_observation" in infos[index]]
        source = self.inside.guard if isinstance(self.inside, _GuardInside) else self
        shown = [source.last[index] if for_replay else infos[index]["terminal_observation"] for index in cut]
        rows = [self._values(each) for each in shown]
        leaves = {path: np.stack([np.asarray(row[path]) for row in rows]) for path in (rows[0] if rows else ())}
        if self._masks and cut:
            if self._beside:
                masks = [infos[index].get(LAST_MASK) for index in cut]
                leaves[ACTION_MASK] = self._last_masks(masks, cut, for_replay)
            if for_replay:
                seen = np.asarray(leaves[ACTION_MASK])
                check_masks(seen, self.action_space, lambda row: self._place(cut[row]), way_out=STUCK_AT_LIMIT)
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
_MOVERS = ("reset", "reset_async", "step", "step_async", "reset_tensors", "step_tensors")
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
    """Return the result of ``call``, a method of ``env``; an exception becomes a DataError that says where it was."""
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
    return DataError(with_way_out(f"{who} raised {type(error).__name__} {when}: {one_line(error)}"))


def _environment_at_fault(error: BaseException, when: str) -> int | DataError | None:
    """The environment, or what is wrong with it, from the frames that both libraries were in; None if unknown."""
    for frame, _ in traceback.walk_tb(error.__traceback__):
        local = frame.f_locals
        if isinstance(local.get("self"), AsyncVectorEnv) and isinstance(local.get("index"), int):
            return int(local["index"])
        try:
            if frame.f_code.co_name == "_stack_obs":  # of SubprocVecEnv: the observations do not fit on each other
                for index, observation in enumerate(local["obs_list"]):
                    values.check_single(local["space"], observation, "observation", f"{index} {when}")
            if isinstance(local.get("self"), SubprocVecEnv) and "rews" in local:
                for index, reward in enumerate(local["rews"]):
                    values.check_value("reward", reward, index, lambda: when)
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
        f"killed by that signal, -9 is often a lack of memory); {values.WAY_OUT}, or take fewer environments"
    )


def _processes(holder: Any) -> list[BaseProcess]:
    return list(holder.processes) if isinstance(holder, SubprocVecEnv | AsyncVectorEnv) else []
