"""What a refusal proposes, carried out."""

import re
from collections.abc import Iterator
from typing import Any

import yaml

from rltransformers.backbone import PLAIN, BackboneConfig
from rltransformers.core.errors import ConfigError


def refusal(values: dict[str, Any]) -> str:
    """What is said against a config on top of the plain stack; "" if nothing is."""
    try:
        BackboneConfig(**{**PLAIN, **values})
    except ConfigError as error:
        return str(error)
    return ""


def mended(values: dict[str, Any], message: str) -> dict[str, Any]:
    """The config after the first change that a message proposes, or after the only one that always ends."""
    if found := re.search(r"set (\w+) to (?:at least )?('?\w+'?|{})", message):
        return {**values, found[1]: None if found[2] == "None" else yaml.safe_load(found[2])}
    if found := re.search(r"leave (\w+) out", message):
        return {name: value for name, value in values.items() if name != found[1]}
    if found := re.search(r"raise memory to (\d+)", message):
        return {**values, "memory": int(found[1])}
    if "use 'band', which counts steps" in message:
        return {**values, "pattern": {"name": "band", "window": 3}}
    if found := re.search(r"(?:positions|mixer) .*; (?:keep one of them|change one of the two)", message):
        return {**values, **({"position": "none"} if "positions" in message else {"heads": 1})}
    if found := re.search(r"(\w+) \(\d+\) must divide .*nearest that do: (\d+)", message):
        return {**values, found[1]: int(found[2])}
    raise AssertionError(f"no way out in: {message}")


def other_ways(values: dict[str, Any], message: str) -> Iterator[dict[str, Any]]:
    """The config after every other change of one field: "or mixer to 'x' or 'y'", "it needs span: x or span: y"."""
    for field, names in re.findall(r"or (\w+) to ((?:'\w+'(?: or )?)+)", message):
        for name in re.findall(r"'(\w+)'", names):
            blocks = {"name": name, "block": 3, "landmarks": 4}
            yield {**values, field: blocks if name in ("nystrom", "csalr") else name}
    for field, choice in re.findall(r"(?:it needs|or) (\w+): ({.*?}|\w+)", message):
        yield {**values, field: yaml.safe_load(choice)}
    if found := re.search(r"write ({name: \w+, .*?})", message):
        yield {**values, "position": yaml.safe_load(found[1])}
