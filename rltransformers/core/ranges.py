"""Types and ranges of settings, written once as annotations and checked where a value is given.

``Annotated[int, Ge(1)]`` says both what a reader should know and what ``check`` enforces; the short names below cover
most settings. Numbers are always finite, a boolean is never a number, and 1e5 is a whole one.
"""

import functools
import inspect
import io
import os
import sys
import types
import typing
from collections.abc import Callable, Mapping, Sequence
from enum import StrEnum
from typing import Annotated, Any, Literal, ParamSpec, TypeVar, Union, get_args, get_origin

import numpy as np
from annotated_types import Ge, Gt, Interval, Le, Lt

from rltransformers.core.errors import ConfigError, did_you_mean, one_line, refuse_unknown

Count = Annotated[int, Ge(1)]
WholeNumber = Annotated[int, Ge(0)]
LARGEST = 1e30
"""Networks compute in float32, which ends at 3.4e38: what is multiplied once more must fit too."""
PositiveNumber = Annotated[float, Gt(0), Le(LARGEST)]
NonNegativeNumber = Annotated[float, Ge(0), Le(LARGEST)]
Weight = Annotated[float, Ge(0), Le(1e6)]
"""Of a term of a loss, a step or a bound of the change in one; far more than any that trains."""
UnitInterval = Annotated[float, Ge(0), Le(1)]
Fraction = Annotated[float, Gt(0), Le(1)]
DropoutRate = Annotated[float, Ge(0), Lt(1)]
Seed = Annotated[int, Ge(0), Lt(2**32)]
"""Seeds that numpy's global generator takes, which Stable-Baselines3 seeds too."""
Steps = Annotated[int, Ge(1), Lt(2**63)]
Environments = Annotated[int, Ge(1), Le(2**16)]
Episodes = Annotated[int, Ge(1), Le(10**6)]
Threads = Annotated[int, Ge(1), Le(1024)]
"""More is a slip of the finger, which OpenMP answers by ending the process."""
Processes = bool | Literal["async", "envpool"]
"""Who steps the copies of an environment, see ``rltransformers.envs.make_vec_env``."""

Arguments = ParamSpec("Arguments")
Result = TypeVar("Result")


def check(value: Any, annotation: Any, name: str) -> Any:
    """``value`` if it has the type and lies in the range that ``annotation`` says.

    Numpy numbers become Python's, whole numbers int or float as the annotation says, and texts that name a member of an
    enumeration become it, also inside lists and mappings: a setting given as 1 and as 1.0 is the same one.

    Args:
        annotation: int, float, bool, str, None, a Literal, a StrEnum, a class, type[...], Callable, Any; unions,
            Mapping, Sequence, list, tuple and dict of them; a TypedDict, whose members are checked by their own names
            ("learning_rate.start"); ``Annotated`` with bounds of the package annotated_types.
        name: how the message calls the value, e.g. "algorithm.gamma".

    Raises:
        ConfigError: names the value and what is accepted in its place.
    """
    if isinstance(value, np.generic):
        value = value.item()
    record = _record(annotation) if isinstance(value, Mapping) else None
    if record is not None:
        return _check_members(value, record, name)
    if not fits(value, annotation):
        raise ConfigError(f"{name} must be {describe(annotation)}, got {shown(value)}{_suggestion(value, annotation)}")
    return _converted(value, annotation)


def check_settings(hints: Mapping[str, Any], values: Mapping[str, Any], prefix: str = "") -> dict[str, Any]:
    """``values`` by name, each checked against the annotation of its name in ``hints``.

    Args:
        prefix: put before a name in messages, e.g. "algorithm.".

    Raises:
        ConfigError: for a value outside its type or range, and for a name that ``hints`` does not have.
    """
    refuse_unknown(values, hints, prefix)
    return {name: check(value, hints[name], prefix + name) for name, value in values.items()}


def check_fields(record: Any, prefix: str = "") -> None:
    """Check every field of a dataclass against its annotation, and set it to what ``check`` returns.

    For ``__post_init__``.

    Raises:
        ConfigError: for the first value outside its type or range.
    """
    for name, annotation in typing.get_type_hints(type(record), include_extras=True).items():
        # Fields of frozen dataclasses can be set in no other way.
        object.__setattr__(record, name, check(getattr(record, name), annotation, prefix + name))


def strict(function: Callable[Arguments, Result]) -> Callable[Arguments, Result]:
    """The same function, which checks its arguments against its annotations before it does anything else."""
    named = suggesting(function)
    signature = inspect.signature(function)

    @functools.wraps(function)
    def call(*args: Arguments.args, **kwargs: Arguments.kwargs) -> Result:
        try:
            bound = signature.bind(*args, **kwargs)
        except TypeError:  # a missing or an unknown argument
            return named(*args, **kwargs)
        for name, annotation in annotations(function).items():
            if name in bound.arguments:
                bound.arguments[name] = check(bound.arguments[name], annotation, name)
        return function(*bound.args, **bound.kwargs)

    return call


def suggesting(function: Callable[Arguments, Result]) -> Callable[Arguments, Result]:
    """The same function, whose TypeError for an unknown argument says which one may be meant."""
    parameters = inspect.signature(function).parameters

    @functools.wraps(function)
    def call(*args: Arguments.args, **kwargs: Arguments.kwargs) -> Result:
        unknown = [name for name in kwargs if name not in parameters]
        if unknown and not any(each.kind is each.VAR_KEYWORD for each in parameters.values()):
            known = [name for name in parameters if name not in ("self", "cls")]
            raise TypeError(
                f"{function.__qualname__}() has no argument {unknown[0]!r}; {did_you_mean(unknown[0], known)}"
            )
        return function(*args, **kwargs)  # of a missing one Python's own message is best

    return call


@functools.cache
def annotations(function: Callable[..., Any]) -> dict[str, Any]:
    """Annotations of the parameters by name, without ``self``, ``*args`` and ``**kwargs``; Any where there is none."""
    hints = typing.get_type_hints(function, include_extras=True)
    parameters = inspect.signature(function).parameters.values()
    return {
        each.name: hints.get(each.name, Any)
        for each in parameters
        if each.kind not in (each.VAR_POSITIONAL, each.VAR_KEYWORD) and each.name not in ("self", "cls")
    }


def shown(value: Any) -> str:
    """``value`` in one short line of a message."""
    try:
        text = one_line(repr(value))
    except ValueError:  # Python prints no whole number of more than 4,300 digits
        return "a number of thousands of digits"
    return text if len(text) <= 120 else f"{text[:110]}..."


def fits(value: Any, annotation: Any) -> bool:
    """Whether ``value`` has the type and lies in the range that ``annotation`` says."""
    origin, parts = get_origin(annotation), get_args(annotation)
    if annotation is Any:
        return True
    if origin is Annotated:
        return fits(value, parts[0]) and all(_holds(value, bound) for bound in bounds(parts[1:]))
    if is_union(annotation):
        return any(fits(value, part) for part in parts)
    if origin is Literal:
        return any(type(value) is type(part) and value == part for part in parts)
    if is_enumeration(annotation):
        return isinstance(value, str) and value in list(annotation)
    if annotation is None or annotation is type(None):
        return value is None
    if annotation is bool:
        return isinstance(value, bool)
    if annotation is int:
        return (isinstance(value, int) and not isinstance(value, bool)) or (
            isinstance(value, float) and value.is_integer()
        )
    if annotation is float:
        return isinstance(value, int | float) and not isinstance(value, bool) and abs(value) <= sys.float_info.max
    if typing.is_typeddict(annotation):
        return isinstance(value, Mapping) and _members_fit(value, annotation)
    if origin is type:
        return isinstance(value, type) and (not parts or parts[0] is Any or issubclass(value, parts[0]))
    kind = origin or annotation
    if kind is Callable:
        return callable(value)
    if kind is tuple and parts and parts[-1] is not Ellipsis:  # a list from a file is as good
        same = isinstance(value, tuple | list) and len(value) == len(parts)
        return same and all(fits(item, part) for item, part in zip(value, parts, strict=True))
    if not isinstance(value, kind):
        return False
    if not parts:
        return True
    if issubclass(kind, Mapping):
        return all(fits(key, parts[0]) and fits(item, parts[1]) for key, item in value.items())
    if issubclass(kind, Sequence):
        return not isinstance(value, str) and all(fits(item, parts[0]) for item in value)
    return True


def describe(annotation: Any) -> str:
    """Values that ``annotation`` accepts in words, for the sentence "... must be <description>"."""
    origin, parts = get_origin(annotation), get_args(annotation)
    if origin is Annotated:
        return f"{describe(parts[0])}{_range(bounds(parts[1:]))}"
    if is_union(annotation):
        *others, last = (describe(part) for part in parts)
        return f"{', '.join(others)} or {last}"
    if origin is Literal:
        return f"one of {', '.join(map(repr, parts))}" if len(parts) > 1 else repr(parts[0])
    if is_enumeration(annotation):
        return f"one of {', '.join(repr(each.value) for each in annotation)}"
    if annotation is None or annotation is type(None):
        return "None (null)"
    names = {bool: "true or false", int: "a whole number", float: "a finite number", str: "a text", Any: "anything"}
    if annotation in names:
        return names[annotation]
    if typing.is_typeddict(annotation):
        return f"a mapping with {', '.join(annotation.__annotations__)}"
    kind = origin or annotation
    if kind is Callable:
        return "a function"
    if kind is type:
        return f"a class made from {parts[0].__name__}" if parts and parts[0] is not Any else "a class"
    if kind is os.PathLike:
        return "a path"
    if kind is io.BufferedIOBase:
        return "an open file of bytes"
    if kind is tuple and parts and parts[-1] is not Ellipsis:
        return f"a list of {len(parts)}: {', '.join(map(describe, parts))}"
    if issubclass(kind, Mapping):
        return f"a mapping to {_plural(parts[1])}" if parts and parts[1] is not Any else "a mapping"
    if issubclass(kind, Sequence):
        return f"a list of {_plural(parts[0])}" if parts and parts[0] is not Any else "a list"
    return f"a {kind.__name__}"


def _converted(value: Any, annotation: Any) -> Any:
    """``value``, which fits ``annotation``, with floats and members of enumerations where the annotation says so."""
    origin, parts = get_origin(annotation), get_args(annotation)
    if is_union(annotation):
        fitting = [part for part in parts if fits(value, part)]
        same = [part for part in fitting if type(value) in (part, *get_args(part)[:1])]
        return _converted(value, (same or fitting)[0])
    if origin is Annotated:
        return _converted(value, parts[0])
    if annotation in (int, float) or is_enumeration(annotation):
        return annotation(value)
    if typing.is_typeddict(annotation):
        hints = typing.get_type_hints(annotation, include_extras=True)
        return {key: _converted(item, without_marks(hints[key])) for key, item in value.items()}
    # Of other containers, such as Iterable, ``fits`` has not seen the members.
    if type(value) is dict and len(parts) == 2:
        return {key: _converted(item, parts[1]) for key, item in value.items()}
    if type(value) in (list, tuple) and parts and issubclass(origin or object, Sequence):
        one_by_one = origin is tuple and parts[-1] is not Ellipsis
        each = parts if one_by_one else [parts[0]] * len(value)
        return type(value)(_converted(item, part) for item, part in zip(value, each, strict=True))
    return value


def _record(annotation: Any) -> Any:
    """The TypedDict among the alternatives of ``annotation``, if there is one."""
    alternatives = get_args(annotation) if is_union(annotation) else (annotation,)
    return next((each for each in alternatives if typing.is_typeddict(each)), None)


def _check_members(value: Mapping[str, Any], record: Any, name: str) -> dict[str, Any]:
    members = typing.get_type_hints(record, include_extras=True)
    checked = check_settings({key: without_marks(hint) for key, hint in members.items()}, value, f"{name}.")
    for key in members:
        if key in record.__required_keys__ and key not in value:
            raise ConfigError(f"{name} needs {key}: it is {describe(record)}, got {shown(value)}")
    return checked


def _members_fit(value: Mapping[str, Any], record: Any) -> bool:
    members = typing.get_type_hints(record, include_extras=True)
    known = all(key in members and fits(item, without_marks(members[key])) for key, item in value.items())
    return known and all(key in value for key in record.__required_keys__)


def without_marks(annotation: Any) -> Any:
    """The annotation inside NotRequired or Required."""
    marked = get_origin(annotation) in (typing.NotRequired, typing.Required)
    return get_args(annotation)[0] if marked else annotation


def is_enumeration(annotation: Any) -> bool:
    """Whether it is a class of named texts."""
    return isinstance(annotation, type) and issubclass(annotation, StrEnum)


def is_union(annotation: Any) -> bool:
    """Whether it is several annotations, of which one has to hold."""
    return get_origin(annotation) in (Union, types.UnionType)


def bounds(metadata: Sequence[Any]) -> list[Any]:
    """The bounds in ``metadata`` one by one; other annotations say nothing about values."""
    single: list[Any] = []
    for each in metadata:
        single.extend(each if isinstance(each, Interval) else [each])
    return [each for each in single if isinstance(each, Ge | Gt | Le | Lt)]


def _holds(value: Any, bound: Any) -> bool:
    match bound:
        case Ge():
            return bool(value >= bound.ge)
        case Gt():
            return bool(value > bound.gt)
        case Le():
            return bool(value <= bound.le)
        case _:
            return bool(value < bound.lt)


def _range(bounds: Sequence[Any]) -> str:
    """ " of at least 1", " above 0", " in [0, 1)" and the like."""
    low = next((bound for bound in bounds if isinstance(bound, Ge | Gt)), None)
    high = next((bound for bound in bounds if isinstance(bound, Le | Lt)), None)
    if low is not None and high is not None:
        left = f"[{low.ge}" if isinstance(low, Ge) else f"({low.gt}"
        right = f"{high.le}]" if isinstance(high, Le) else f"{high.lt})"
        return f" in {left}, {right}"
    if low is not None:
        return f" of at least {low.ge}" if isinstance(low, Ge) else f" above {low.gt}"
    if high is not None:
        return f" of at most {high.le}" if isinstance(high, Le) else f" below {high.lt}"
    return ""


def _plural(annotation: Any) -> str:
    names = {int: "whole numbers", float: "finite numbers", str: "texts", bool: "booleans"}
    base, limits = annotation, ""
    if get_origin(annotation) is Annotated:
        base, *metadata = get_args(annotation)
        limits = _range(bounds(metadata))
    return f"{names[base]}{limits}" if base in names else f"items that are {describe(annotation)}"


def _suggestion(value: Any, annotation: Any) -> str:
    """The closest name where a text is one of several names, mistyped; of a mapping the key that is no text."""
    if isinstance(value, Mapping) and (keys := [key for key in value if not isinstance(key, str)]):
        return f"; the key {keys[0]!r} is no text"
    parts = get_args(annotation) if is_union(annotation) else (annotation,)
    names = [name for part in parts if get_origin(part) is Literal for name in get_args(part)]
    names += [each.value for part in parts if is_enumeration(part) for each in part]
    if not isinstance(value, str) or not names:
        return ""
    sentence = did_you_mean(value, names)
    return f"; {sentence}" if sentence.startswith("did you mean") else ""
