"""Notices resets and steps of environments, whoever makes them and through whatever reference."""

import copyreg
from collections.abc import Callable, Sequence
from contextlib import suppress
from functools import cache, wraps
from typing import Any

import gymnasium
from gymnasium.vector import SyncVectorEnv
from stable_baselines3.common.vec_env import DummyVecEnv, VecEnv

from rltransformers.core.guard import innermost

_MOVES = "rltransformers_moves"
_MOVERS = ("reset", "reset_async", "step", "step_async")
_CALLER = "env_method"  # which calls a method of environments in other processes by its name


class Moves:
    """The resets and steps that the environments of ``env`` have made, and how many of them its user knows of.

    They are counted where they end: in the innermost environment of every copy in this process, else in the vector
    environment that talks to the copies. Such an object gets a subclass of its class that counts (as
    ``torch.nn.utils.parametrize`` does it); it stays an instance of its class, and its copies are plain ones again.
    """

    def __init__(self, env: VecEnv) -> None:
        self._programs = [_counting(program) for program in _programs(env)]
        self.note()

    def note(self) -> None:
        """All moves so far are known."""
        self._known = self._counts()

    @property
    def unknown(self) -> bool:
        """Whether there was a move since ``note``."""
        return self._known != self._counts()

    def _counts(self) -> list[int]:
        return [program.get(_MOVES, 0) for program in self._programs]


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
    """The attributes of ``program``, among which it counts its moves from now on."""
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

    members = {
        name: counting(name, getattr(kind, name)) for name in (*_MOVERS, _CALLER) if callable(getattr(kind, name, None))
    }
    names = {"__module__": kind.__module__, "__qualname__": kind.__qualname__, "__doc__": kind.__doc__, _MOVES: 0}
    counted: Any = type(kind)(kind.__name__, (kind,), {**names, **members, "__reduce_ex__": reduce})
    return counted
