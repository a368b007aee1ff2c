"""Values in a YAML text, as configs and flags hold them, and texts of values."""

import re
from typing import Any

import yaml

from rltransformers.core.errors import ConfigError, one_line

MAX_VALUES = 100_000
"""Values in a config with its aliases written out; nine short lines of aliases can stand for thousands of millions."""


class _Dumper(yaml.SafeDumper):
    """Quotes texts that ``_Loader`` would read as numbers."""


class _Loader(yaml.SafeLoader):
    """YAML, in part as in 1.2: 3e-4 is a number, 010 ten, 1:30 a text. Besides, 1e6 is whole; keys stand once."""

    def construct_mapping(self, node: yaml.MappingNode, deep: bool = False) -> dict[Any, Any]:
        nodes = [key for key, _ in node.value if key.tag != "tag:yaml.org,2002:merge"]
        keys = [self.construct_object(key, deep=True) for key in nodes]
        for index, key in enumerate(keys):
            if key in keys[:index]:
                mark = nodes[index].start_mark
                raise yaml.constructor.ConstructorError(None, None, f"the key {key!r} is given twice", mark)
        return super().construct_mapping(node, deep)

    def construct_yaml_float(self, node: yaml.ScalarNode) -> Any:
        if ":" in node.value:
            return node.value
        value = super().construct_yaml_float(node)
        return int(value) if _WHOLE.fullmatch(node.value) and abs(value) < 2**53 else value

    def construct_yaml_int(self, node: yaml.ScalarNode) -> Any:
        value: str = node.value
        if ":" in value:
            return value
        return int(value.replace("_", "")) if _ZERO_FIRST.fullmatch(value) else super().construct_yaml_int(node)


_ZERO_FIRST = re.compile(r"[-+]?0[0-9_]+")
_WHOLE = re.compile(r"[-+]?\d+[eE]\+?\d+")
_Loader.add_constructor("tag:yaml.org,2002:float", _Loader.construct_yaml_float)
_Loader.add_constructor("tag:yaml.org,2002:int", _Loader.construct_yaml_int)
_EXPONENT = re.compile(r"[-+]?(\d+(\.\d*)?|\.\d+)[eE][-+]?\d+$")
for _kind in (_Loader, _Dumper):
    _kind.add_implicit_resolver("tag:yaml.org,2002:float", _EXPONENT, list("-+.0123456789"))
    _kind.add_implicit_resolver("tag:yaml.org,2002:int", re.compile(r"[-+]?0\d+$"), list("-+0"))


def yaml_of(value: Any, flow: bool = False) -> str:
    """The text of plain values that ``parse_yaml`` reads as the same values; in one line if ``flow``."""
    width = 10_000 if flow else 80
    text: str = yaml.dump(value, Dumper=_Dumper, default_flow_style=flow, sort_keys=False, width=width)
    return text


def parse_yaml(text: str, source: str) -> Any:
    """The values in a YAML text; ``source`` is named in errors.

    Raises ConfigError for text that is not YAML, for a key that is given twice, and for aliases that stand for more
    than ``MAX_VALUES`` values.
    """
    try:
        loader = _Loader(text)
        node = loader.get_single_node()
        if node is None:
            return None
        if _size(node, {}) > MAX_VALUES:
            raise ConfigError(f"{source} stands for more than {MAX_VALUES:,} values; write fewer aliases (*name)")
        return loader.construct_document(node)
    except RecursionError as error:
        raise ConfigError(f"{source} is nested too deeply") from error
    except ConfigError:
        raise
    except (yaml.YAMLError, ValueError) as error:  # ValueError: a date or a number that cannot be
        raise ConfigError(f"{source} is not valid YAML: {one_line(error)}") from error


def _size(node: yaml.Node, known: dict[int, int]) -> int:
    """Values that a node stands for once every alias is written out."""
    if id(node) in known:
        if not known[id(node)]:
            raise yaml.constructor.ConstructorError(None, None, "an alias stands inside itself", node.start_mark)
        return known[id(node)]
    known[id(node)] = 0
    parts = node.value if isinstance(node, yaml.CollectionNode) else []
    children = [child for part in parts for child in (part if isinstance(part, tuple) else (part,))]
    known[id(node)] = 1 + sum(_size(child, known) for child in children)
    return known[id(node)]
