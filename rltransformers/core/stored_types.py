"""Annotations of settings as JSON values, so that ``ranges.check`` can read them without the modules they stand in."""

import typing
from collections.abc import Callable, Mapping, Sequence
from typing import Annotated, Any, Literal, NotRequired, Union, get_args, get_origin

from annotated_types import Ge, Gt, Le, Lt

from rltransformers.core.ranges import bounds, is_enumeration, is_union, members_of

_PLAIN: Mapping[str, Any] = {"any": Any, "none": None, "bool": bool, "int": int, "float": float, "str": str}
_BOUNDS = {"ge": Ge, "gt": Gt, "le": Le, "lt": Lt}


def to_json(annotation: Any) -> Any:
    """An annotation of the kinds that ``check`` takes. Classes that no file can hold are there by name alone."""
    origin, parts = get_origin(annotation), get_args(annotation)
    for name, kind in _PLAIN.items():
        if annotation is kind or (kind is None and annotation is type(None)):
            return name
    if origin is Annotated:
        limits = {name: getattr(each, name) for each in bounds(parts[1:]) for name in _BOUNDS if hasattr(each, name)}
        return {"of": to_json(parts[0]), **limits} if limits else to_json(parts[0])
    if is_union(annotation):
        return {"union": [to_json(part) for part in parts]}
    if origin is Literal or is_enumeration(annotation):
        return {"literal": [str(each) for each in annotation] if is_enumeration(annotation) else list(parts)}
    if typing.is_typeddict(annotation):
        members = {name: to_json(hint) for name, hint in members_of(annotation).items()}
        return {"record": members, "required": sorted(annotation.__required_keys__), "name": annotation.__name__}
    kind = origin or annotation
    if kind is Callable:
        return {"function": True}
    if kind is type:
        return {"class": None if not parts or parts[0] is Any else parts[0].__name__}
    if kind is tuple and parts and parts[-1] is not Ellipsis:
        return {"tuple": [to_json(part) for part in parts]}
    if issubclass(kind, Mapping):
        return {"mapping": [to_json(part) for part in parts]}
    if issubclass(kind, Sequence):
        return {"list": [to_json(part) for part in parts[:1]]}
    return {"instance": kind.__name__}


def from_json(stored: Any) -> Any:
    """An annotation for ``check`` that takes, and says, what the stored one did."""
    if isinstance(stored, str):
        return _PLAIN[stored]
    if "of" in stored:
        limits = [_BOUNDS[name](value) for name, value in stored.items() if name in _BOUNDS]
        return Annotated[(from_json(stored["of"]), *limits)]
    if "record" in stored:
        members = {
            name: from_json(part) if name in stored["required"] else NotRequired[from_json(part)]
            for name, part in stored["record"].items()
        }
        return typing.TypedDict(stored["name"], members)  # type: ignore[operator]
    ((kind, inside),) = stored.items()
    if kind == "union":
        return Union[tuple(from_json(part) for part in inside)]  # noqa: UP007 (they are not known before)
    if kind == "literal":
        return Literal[tuple(inside)]
    if kind == "function":
        return Callable[..., Any]
    if kind == "instance":
        return type(inside, (), {})
    if kind == "class":
        return type[Any] if inside is None else type[type(inside, (), {})]
    parts = tuple(from_json(part) for part in inside)
    container: Any = {"tuple": tuple, "mapping": Mapping, "list": Sequence}[kind]
    return container[parts] if parts else container
