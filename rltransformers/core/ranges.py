"""Types and ranges of settings, written once as annotations, ``Annotated[int, Ge(1)]``, and checked by ``check``.

Numbers are always finite, a boolean is never a number, and 1e5 is a whole one.
"""

import functools
import inspect
import io
import operator
import os
import sys
import types
import typing
from collections.abc import Callable, Iterator, Mapping, Sequence
from enum import StrEnum
from typing import Annotated, Any, Literal, ParamSpec, TypeVar, Union, get_args, get_origin

import numpy as np
from annotated_types import Ge, Gt, Interval, Le, Lt

from rltransformers.core.errors import ConfigError, did_you_mean, one_line, refuse_unknown

Count = Annotated[int, Ge(1)]
WholeNumber = Annotated[int, Ge(0)]
LARGEST = 1e30  # networks compute in float32, which ends at 3.4e38: what is multiplied once more must fit too
PositiveNumber = Annotated[float, Gt(0), Le(LARGEST)]
NonNegativeNumber = Annotated[float, Ge(0), Le(LARGEST)]
Weight = Annotated[float, Ge(0), Le(1e6)]
"""Of a term of a loss, a step or a bound of the change in one; far more than any that trains."""
UnitInterval = Annotated[float, Ge(0), Le(1)]
Fraction = Annotated[float, Gt(0), Le(1)]
DropoutRate = Annotated[float, Ge(0), Lt(1)]
Seed = Annotated[int, Ge(0), Lt(2**32)]  # seeds that numpy's global generator takes, which Stable-Baselines3 seeds too
Steps = Annotated[int, Ge(1), Lt(2**63)]
Environments = Annotated[int, Ge(1), Le(2**16)]
Episodes = Annotated[int, Ge(1), Le(10**6)]
Threads = Annotated[int, Ge(1), Le(1024)]  # more is a slip of the finger, which OpenMP answers by ending the process
Processes = bool | Literal["envpool", "tensors"]
"""How environments run in parallel, see ``rltransformers.envs.make_vec_env``."""

LIMITS = {"ge": Ge, "gt": Gt, "le": Le, "lt": Lt}
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
    if isinstance(value, Mapping):
        for record in filter(typing.is_typeddict, get_args(annotation) if is_union(annotation) else (annotation,)):
            checked = check_settings(members_of(record), value, f"{name}.")
            for key in members_of(record):
                if key in record.__required_keys__ and key not in value:
                    raise ConfigError(f"{name} needs {key}: it is {describe(record)}, got {shown(value)}")
            return checked
    fitted = _fitted(value, annotation)
    if fitted is _MISFIT:
        raise ConfigError(f"{name} must be {describe(annotation)}, got {shown(value)}{_suggestion(value, annotation)}")
    return fitted


def check_settings(hints: Mapping[str, Any], values: Mapping[str, Any], prefix: str = "") -> dict[str, Any]:
    """``values`` by name, each checked against its annotation in ``hints``; messages put ``prefix`` before a name."""
    refuse_unknown(values, hints, prefix)
    return {name: check(value, hints[name], prefix + name) for name, value in values.items()}


def check_fields(record: Any, prefix: str = "") -> None:
    """Set every field of a dataclass to what ``check`` returns for its annotation; for ``__post_init__``."""
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
def annotations(function: Callable[..., Any], **names: Any) -> dict[str, Any]:
    """Annotations of the parameters by name, without ``self``, ``*args`` and ``**kwargs``; Any where there is none.

    ``names``: what names in them mean that its module does not have.
    """
    hints = typing.get_type_hints(function, localns=names, include_extras=True)
    parameters = inspect.signature(function).parameters.values()
    return {
        each.name: hints.get(each.name, Any)
        for each in parameters
        if each.kind not in (each.VAR_POSITIONAL, each.VAR_KEYWORD) and each.name not in ("self", "cls")
    }


def constructor_annotations(kind: type) -> dict[str, Any]:
    """``annotations`` of a constructor, with those of the ones that it hands ``**kwargs`` on to."""
    hints: dict[str, Any] = {}
    for make in _constructors(kind):
        hints = annotations(make) | hints
    return hints


def constructor_defaults(kind: type) -> dict[str, Any]:
    """Defaults of the arguments that ``constructor_annotations`` names, but for those that have none."""
    defaults: dict[str, Any] = {}
    for make in _constructors(kind):
        parts = inspect.signature(make).parameters.values()
        defaults = {part.name: part.default for part in parts if part.default is not part.empty} | defaults
    return defaults


def _constructors(kind: type) -> Iterator[Callable[..., Any]]:
    """The constructor of a class, and those that it hands ``**kwargs`` on to."""
    for make in (vars(each)["__init__"] for each in kind.__mro__ if "__init__" in vars(each)):
        yield make
        if all(part.kind is not part.VAR_KEYWORD for part in inspect.signature(make).parameters.values()):
            break


def shown(value: Any) -> str:
    """``value`` in one short line of a message."""
    try:
        text = one_line(repr(value))
    except ValueError:  # Python prints no whole number of more than 4,300 digits
        return "a number of thousands of digits"
    return text if len(text) <= 120 else f"{text[:110]}..."


def fits(value: Any, annotation: Any) -> bool:
    """Whether ``value`` has the type and lies in the range that ``annotation`` says."""
    return _fitted(value, annotation) is not _MISFIT


_MISFIT: Any = object()


def _fitted(value: Any, annotation: Any) -> Any:
    """``value`` as ``check`` returns it, or ``_MISFIT``."""
    origin, parts = get_origin(annotation), get_args(annotation)
    if annotation is Any:
        return value
    if origin is Annotated:
        fitted = _fitted(value, parts[0])
        limits = {} if fitted is _MISFIT else limits_of(parts[1:])
        return fitted if all(getattr(operator, name)(fitted, limit) for name, limit in limits.items()) else _MISFIT
    if is_union(annotation):
        fitting = {part: fitted for part in parts if (fitted := _fitted(value, part)) is not _MISFIT}
        same = [part for part in fitting if type(value) in (part, *get_args(part)[:1])]
        return fitting[(same or list(fitting))[0]] if fitting else _MISFIT
    if origin is Literal:
        return value if any(type(value) is type(part) and value == part for part in parts) else _MISFIT
    if is_enumeration(annotation):
        return annotation(value) if isinstance(value, str) and value in list(annotation) else _MISFIT
    if annotation is None or annotation is type(None):
        return None if value is None else _MISFIT
    if annotation is bool:
        return value if isinstance(value, bool) else _MISFIT
    if annotation is int:
        whole = isinstance(value, int) and not isinstance(value, bool)
        return int(value) if whole or (isinstance(value, float) and value.is_integer()) else _MISFIT
    if annotation is float:
        number = isinstance(value, int | float) and not isinstance(value, bool)
        return float(value) if number and abs(value) <= sys.float_info.max else _MISFIT
    if typing.is_typeddict(annotation):
        members = members_of(annotation)
        if not isinstance(value, Mapping) or not annotation.__required_keys__ <= value.keys() <= members.keys():
            return _MISFIT
        return _fitted_items({key: _fitted(item, members[key]) for key, item in value.items()})
    if origin is type:
        made = isinstance(value, type) and (not parts or parts[0] is Any or issubclass(value, parts[0]))
        return value if made else _MISFIT
    kind = origin or annotation
    if kind is Callable:
        return value if callable(value) else _MISFIT
    by_place = kind is tuple and bool(parts) and parts[-1] is not Ellipsis
    if not isinstance(value, tuple | list if by_place else kind):  # a list from a file is as good as a tuple
        return _MISFIT
    if not parts or not issubclass(kind, Mapping | Sequence):  # members of other containers are not looked at
        return value
    if isinstance(value, Mapping):
        if not all(fits(key, parts[0]) for key in value):
            return _MISFIT
        fitted = _fitted_items({key: _fitted(item, parts[1]) for key, item in value.items()})
        return fitted if fitted is _MISFIT or type(value) is dict else value
    if isinstance(value, str) or (by_place and len(value) != len(parts)):
        return _MISFIT
    items = [_fitted(item, parts[index] if by_place else parts[0]) for index, item in enumerate(value)]
    if any(item is _MISFIT for item in items):
        return _MISFIT
    return type(value)(items) if type(value) in (list, tuple) else value


def _fitted_items(items: dict[str, Any]) -> Any:
    return _MISFIT if any(item is _MISFIT for item in items.values()) else items


def describe(annotation: Any) -> str:
    """Values that ``annotation`` accepts in words, for the sentence "... must be <description>"."""
    origin, parts = get_origin(annotation), get_args(annotation)
    if origin is Annotated:
        return f"{describe(parts[0])}{_range(limits_of(parts[1:]))}"
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


def members_of(record: Any) -> dict[str, Any]:
    """Annotations of the members of a TypedDict by name, without NotRequired and Required."""
    marks = (typing.NotRequired, typing.Required)
    hints = typing.get_type_hints(record, include_extras=True)
    return {name: get_args(hint)[0] if get_origin(hint) in marks else hint for name, hint in hints.items()}


def is_enumeration(annotation: Any) -> bool:
    """Whether it is a class of named texts."""
    return isinstance(annotation, type) and issubclass(annotation, StrEnum)


def is_union(annotation: Any) -> bool:
    """Whether it is several annotations, of which one has to hold."""
    return get_origin(annotation) in (Union, types.UnionType)


def limits_of(metadata: Sequence[Any]) -> dict[str, Any]:
    """The bounds in ``metadata`` by "ge", "gt", "le" and "lt"; other annotations say nothing about values."""
    single = [bound for each in metadata for bound in (each if isinstance(each, Interval) else [each])]
    return {name: getattr(bound, name) for bound in single for name in LIMITS if hasattr(bound, name)}


def _range(limits: Mapping[str, Any]) -> str:
    """ " of at least 1", " above 0", " in [0, 1)" and the like."""
    if len(limits) == 2:
        left = f"[{limits['ge']}" if "ge" in limits else f"({limits['gt']}"
        right = f"{limits['le']}]" if "le" in limits else f"{limits['lt']})"
        return f" in {left}, {right}"
    words = {"ge": "of at least", "gt": "above", "le": "of at most", "lt": "below"}
    return "".join(f" {words[name]} {limit}" for name, limit in limits.items())


def _plural(annotation: Any) -> str:
    names = {int: "whole numbers", float: "finite numbers", str: "texts", bool: "booleans"}
    base, limits = annotation, ""
    if get_origin(annotation) is Annotated:
        base, *metadata = get_args(annotation)
        limits = _range(limits_of(metadata))
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
