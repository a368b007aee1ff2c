"""What the command line says about mechanisms and settings: entries of its catalogue, as JSON values.

Those of this package stand in ``catalogue.json``, those of registered mechanisms are made when they are asked for.
"""

import dataclasses
import inspect
import json
import re
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import asdict
from typing import Annotated, Any, Literal, NotRequired, TypedDict, Union, get_args, get_origin, is_typeddict

from rltransformers.core.ranges import LIMITS, Weight, describe, is_enumeration, is_union, limits_of, members_of
from rltransformers.core.spec import WEIGHT, Choice, Spec

REQUIRED = "required"
CHOICES = "choices"  # the type of an option that is a list of mechanisms
Entry = dict[str, Any]


def mechanism_entry(spec: Spec) -> dict[str, Any]:
    """Describe a mechanism for ``rltransformers list``."""
    return {
        "id": spec.id,
        "name": spec.name,
        "paper": spec.paper,
        "summary": spec.summary,
        "formula": spec.formula,
        "settings": spec.settings,
        "options": spec.options_text(),
        "traits": {
            name: value
            for name, value in asdict(spec.traits).items()
            # Told where they are not usual.
            if (spec.traits.rounding or name not in ("single", "half", "rounding"))
            and (value or name != "stops_gradient")
        },
    }


def choice_entries(key: str, specs: Mapping[str, Spec]) -> Iterator[Entry]:
    """Explain the keys of a mechanism that is written with its options."""
    yield setting_entry(f"{key}.name", str, dataclasses.MISSING, "The mechanism, where its options are set too") | {
        "names": [name for name, spec in specs.items() if not spec.settings]
    }
    for spec in specs.values():
        yield from option_entries(key, spec)


def option_entries(key: str, spec: Spec) -> Iterator[Entry]:
    """Explain the options of a mechanism that stands at ``key``."""
    explained, ranges, defaults = explanations(spec.options), spec.ranges(), spec.defaults()
    if len(defaults) == 1:  # the record of a single option may say it in its first line
        (name,), (first, *_) = defaults, (inspect.getdoc(spec.options) or "").split("\n\n")
        explained = {name: _explanation(name, first)} | explained
    for name, default in defaults.items():
        entry = setting_entry(f"{key}.{name}", ranges[name], default, explained.get(name, "")) | {"of": spec.name}
        yield entry | ({"accepts": f"a list of choices of {spec.axis}"} if entry.get("type") == CHOICES else {})


def loss_entries(spec: Spec) -> Iterator[Entry]:
    """Explain the weight and the options of an auxiliary loss."""
    key = f"backbone.losses.{spec.name}"
    yield setting_entry(key, Weight, 0.0, f"Weight of the auxiliary loss: {spec.summary.rstrip('.')}")
    if spec.ranges():
        weight = "Weight of the auxiliary loss, where its options are set too"
        yield setting_entry(f"{key}.{WEIGHT}", Weight, dataclasses.MISSING, weight)
        yield from option_entries(key, spec)


def setting_entry(key: str, hint: Any, default: Any, says: str) -> Entry:
    """Explain one setting."""
    names = [name if isinstance(name, str) else str(name).lower() for name in _names(hint)]
    entry: Entry = {"key": key, "accepts": describe(hint), "default": plain_default(default), "says": says}
    if key.startswith(("backbone.", "algorithm.", "policy.")) and hint is not Any:  # other sections need no torch
        entry["type"] = CHOICES if hint == Sequence[Choice] else to_json(hint)
    return entry | ({"names": sorted(names)} if names else {})


def plain_default(value: Any) -> str:
    """Write a default as YAML; "required" where there is none."""
    if value in (dataclasses.MISSING, inspect.Parameter.empty):
        return REQUIRED
    if isinstance(value, str):
        return str(value) or "''"
    if isinstance(value, type):
        return value.__name__
    return json.dumps(value, default=str)


def _names(hint: Any) -> list[Any]:
    if hint is bool:
        return [True, False]
    if get_origin(hint) is Literal:
        return list(get_args(hint))
    if is_enumeration(hint):
        return [each.value for each in hint]
    return [name for part in get_args(hint) for name in _names(part)]


def explanations(described: type) -> dict[str, str]:
    """Explanation of each argument or attribute in the docstring of a class, or of one it is made from.

    Read is ``name, other: text`` under "Args:" or "Attributes:".
    """
    texts_by_name: dict[str, str] = {}
    for each in reversed(described.__mro__):
        documents = [inspect.cleandoc(part.__doc__ or "") for part in (each, each.__init__)]  # type: ignore[misc]
        for document in documents:
            block = re.search(r"^(?:Args|Attributes):\n((?: {4}.*\n?|\n)*)", document, re.MULTILINE)
            entries = re.findall(r"^ {4}([\w, ]+): (.*(?:\n {5,}.*)*)", block.group(1) if block else "", re.MULTILINE)
            for names, words in entries:
                texts_by_name |= {name: _explanation(name, words) for name in names.split(", ")}
    return texts_by_name


def _explanation(name: str, words: str) -> str:
    """The text of an entry as a sentence of its own: behind its name, "learning_rate: of AdamW" leaves the noun out."""
    line = " ".join(words.split()).replace("``", "").rstrip(".;, ")
    if line.startswith("of "):
        line = f"{name.replace('_', ' ')} {line}"
    return line if "_" in line.split()[0] else line[:1].upper() + line[1:]


# Annotations as JSON values, which ``check`` takes without the modules they stand in -----------------------

_PLAIN: Mapping[str, Any] = {"any": Any, "none": None, "bool": bool, "int": int, "float": float, "str": str}


def to_json(annotation: Any) -> Any:
    """Write an annotation that ``check`` takes as JSON values; classes that no file can hold stand by name alone."""
    origin, parts = get_origin(annotation), get_args(annotation)
    for name, kind in _PLAIN.items():
        if annotation is kind or (kind is None and annotation is type(None)):
            return name
    if origin is Annotated:
        limits = limits_of(parts[1:])
        return {"of": to_json(parts[0]), **limits} if limits else to_json(parts[0])
    if is_union(annotation):
        return {"union": [to_json(part) for part in parts]}
    if origin is Literal or is_enumeration(annotation):
        return {"literal": [str(each) for each in annotation] if is_enumeration(annotation) else list(parts)}
    if is_typeddict(annotation):
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
    """Make an annotation for ``check`` that takes, and says, what the stored one did."""
    if isinstance(stored, str):
        return _PLAIN[stored]
    if "of" in stored:
        limits = [LIMITS[name](value) for name, value in stored.items() if name in LIMITS]
        return Annotated[(from_json(stored["of"]), *limits)]
    if "record" in stored:
        members = {
            name: from_json(part) if name in stored["required"] else NotRequired[from_json(part)]
            for name, part in stored["record"].items()
        }
        return TypedDict(stored["name"], members)  # type: ignore[operator]
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
