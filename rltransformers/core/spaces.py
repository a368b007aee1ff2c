"""Nested Gymnasium spaces as flat dictionaries of leaves, and spaces as JSON.

A leaf path is "" for a bare leaf, "camera/left" inside nested Dicts and "0" for a Tuple member.
"""

import ast
import json
import math
import re
from collections.abc import Callable, Mapping, Sequence
from typing import Any

import gymnasium as gym
import numpy as np
from gymnasium import spaces

from rltransformers.core.errors import ConfigError, DataError, error_line, one_line
from rltransformers.core.ranges import shown

Space = gym.Space[Any]
LARGEST_SPACE = 2**28
"""Numbers in one leaf of a space that is read from a file; an image of 4096 x 4096 pixels has 2^26."""
LARGEST_LAYER = 2**28
"""Bytes of the largest weight that a leaf of a space may ask for; Adam keeps three times as much beside it."""
SPACES = ("Box", "Discrete", "MultiDiscrete", "MultiBinary", "Dict", "Tuple")
PRINTED_TYPES = (
    *("bool", "float16", "float32", "float64"),
    *(f"{kind}{bits}" for kind in ("int", "uint") for bits in (8, 16, 32, 64)),
)
PRINTED_GAP = re.compile(r"('[^']*'|\"[^\"]*\")|([\d.\]]|inf|True|False)\s+(?=[-\d\[]|inf|True|False)")
"""A quoted text, which stays as it is, or a number and the blanks between it and the next in a printed array."""
SUPPORTED_LEAVES = (spaces.Box, spaces.Discrete, spaces.MultiDiscrete, spaces.MultiBinary)


def _join(path: str, name: str) -> str:
    return f"{path}/{name}" if path else name


def leaf_spaces(space: Space) -> dict[str, Space]:
    """The leaves of a nested Dict/Tuple space by path, in its order; ConfigError when two would share a path."""
    leaves: dict[str, Space] = {}

    def walk(path: str, node: Space) -> None:
        if isinstance(node, spaces.Dict):
            children = [(str(key), child) for key, child in node.spaces.items()]
        elif isinstance(node, spaces.Tuple):
            children = [(str(index), child) for index, child in enumerate(node.spaces)]
        else:
            if path in leaves:
                raise ConfigError(
                    f"two leaves of the space share the path {path!r}; rename the Dict keys that hold '/'"
                )
            leaves[path] = node
            return
        for name, child in children:
            if not name or "/" in name:
                raise ConfigError(f"the Dict key {name!r} under {path!r} must be non-empty and hold no '/'; rename it")
            walk(_join(path, name), child)

    walk("", space)
    return leaves


def observation_leaves(space: Space) -> dict[str, Space]:
    """``leaf_spaces(space)``, but a flat Dict is taken as it is, so that the keys ``FlatDict`` makes may hold a "/"."""
    return dict(space.spaces) if isinstance(space, spaces.Dict) and not is_nested(space) else leaf_spaces(space)


def is_nested(space: Space) -> bool:
    """Whether the space is a Tuple, or a Dict that holds a Dict or a Tuple, or has keys that are no texts.

    Stable-Baselines3 refuses those, or fails in them.
    """
    if isinstance(space, spaces.Dict):
        members = space.spaces.items()
        return any(not isinstance(key, str) or isinstance(each, spaces.Dict | spaces.Tuple) for key, each in members)
    return isinstance(space, spaces.Tuple)


def leaf_values(space: Space, value: Any) -> dict[str, Any]:
    """The leaves of ``value`` by the paths of ``leaf_spaces(space)``, with any leading axes; DataError if one lacks."""
    leaves: dict[str, Any] = {}

    def walk(path: str, node: Space, part: Any) -> None:
        if isinstance(node, spaces.Dict):
            if not isinstance(part, Mapping):
                raise DataError(
                    f"{path or 'the value'} should be a dict with keys {list(node.spaces)}, got {_kind(part)}"
                )
            for key, child in node.spaces.items():
                if key not in part:
                    raise DataError(f"the key {_join(path, str(key))!r} is missing; present: {sorted(map(str, part))}")
                walk(_join(path, str(key)), child, part[key])
        elif isinstance(node, spaces.Tuple):
            if not isinstance(part, Sequence) or isinstance(part, str) or len(part) != len(node.spaces):
                raise DataError(
                    f"{path or 'the value'} should be a tuple of {len(node.spaces)} members, got {_kind(part)}"
                )
            for index, child in enumerate(node.spaces):
                walk(_join(path, str(index)), child, part[index])
        else:
            leaves[path] = part

    walk("", space, value)
    return leaves


def nest_leaves(space: Space, leaves: Mapping[str, Any]) -> Any:
    """The inverse of ``leaf_values``: dicts and tuples shaped like ``space`` around the given leaves."""

    def walk(path: str, node: Space) -> Any:
        if isinstance(node, spaces.Dict):
            return {key: walk(_join(path, str(key)), child) for key, child in node.spaces.items()}
        if isinstance(node, spaces.Tuple):
            return tuple(walk(_join(path, str(index)), child) for index, child in enumerate(node.spaces))
        return leaves[path]

    return walk("", space)


def map_leaves(function: Callable[..., Any], value: Any, *others: Any) -> Any:
    """Nest ``function`` of every leaf, and of those of ``others`` there, like ``value``; KeyError where they differ."""
    if isinstance(value, Mapping):
        if any(not isinstance(other, Mapping) or set(other) != set(value) for other in others):
            raise KeyError("they have different leaves")
        return {key: map_leaves(function, part, *(other[key] for other in others)) for key, part in value.items()}
    if isinstance(value, tuple):
        return tuple(map_leaves(function, *parts) for parts in zip(value, *others, strict=True))
    return function(value, *others)


def nested_leaves(value: Any, path: str = "") -> dict[str, Any]:
    """The leaves of nested mappings and tuples by path, whatever space they came from."""
    if isinstance(value, np.ndarray):
        return {path: value}
    if isinstance(value, Mapping):
        members = [(str(key), part) for key, part in value.items()]
    elif isinstance(value, tuple):
        members = [(str(index), part) for index, part in enumerate(value)]
    else:
        return {path: value}
    leaves: dict[str, Any] = {}
    for name, part in members:
        leaves |= nested_leaves(part, _join(path, name))
    return leaves


def first_leaf(value: Any) -> Any:
    """The first leaf of nested mappings and tuples, which has as many rows as all others."""
    return next(iter(nested_leaves(value).values()))


def nest_paths(leaves: Mapping[str, Any]) -> Any:
    """Nested dicts (never tuples) that hold the leaves at their paths; the bare leaf for the single path ""."""
    if set(leaves) == {""}:
        return leaves[""]
    tree: dict[str, Any] = {}
    for path, leaf in leaves.items():
        *parents, name = path.split("/")
        node = tree
        for parent in parents:
            node = node.setdefault(parent, {})
        node[name] = leaf
    return tree


def stack_members(space: Space, values: Sequence[Any]) -> Any:
    """Members of ``space`` as one nested batch: dicts and tuples around leaves [B, ...]."""
    rows = [leaf_values(space, value) for value in values]
    return nest_leaves(space, {path: np.stack([row[path] for row in rows]) for path in leaf_spaces(space)})


def split_members(space: Space, leaves: Mapping[str, Any]) -> Any:
    """Members of ``space`` from leaves [B, ...] by path: the array of a bare leaf, else a list of B nested members."""
    if "" in leaves:
        return leaves[""]
    rows = len(next(iter(leaves.values())))
    return [nest_leaves(space, {path: leaf[row] for path, leaf in leaves.items()}) for row in range(rows)]


def space_from_leaves(leaves: Mapping[str, Space]) -> Space:
    """A space with the given leaves: the bare leaf for the single path "", else nested Dicts (never Tuples)."""
    return space_of(nest_paths(leaves))


def space_of(nested: Any) -> Space:
    """Nested mappings and tuples of spaces as one space, in their order."""
    if isinstance(nested, gym.Space):  # first: a Dict is a mapping too
        return nested
    if isinstance(nested, Mapping):
        return spaces.Dict([(str(name), space_of(child)) for name, child in nested.items()])
    return spaces.Tuple([space_of(child) for child in nested])


def _kind(value: Any) -> str:
    if isinstance(value, Mapping):
        return f"a dict with keys {sorted(map(str, value))}"
    if isinstance(value, tuple | list):
        return f"a {type(value).__name__} of {len(value)}"
    return f"{type(value).__name__} of shape {np.shape(value)}" if hasattr(value, "shape") else type(value).__name__


def check_not_empty(leaves: Mapping[str, Space], space: Space, role: str) -> None:
    """Raise ConfigError where a space has no leaf."""
    if not leaves:
        raise ConfigError(f"the {role} space {space} holds nothing; give it at least one member")


def check_supported(space: Space, role: str, way_out: str | None = None) -> None:
    """Raise ConfigError unless every leaf is a Box, Discrete, MultiDiscrete or MultiBinary, and there is one.

    ``role`` is how the message calls the space; ``way_out`` how to leave out a field, None for the wrapper that does.
    """
    leaves = leaf_spaces(space)
    check_not_empty(leaves, space, role)
    for path, leaf in leaves.items():
        where = f"{role} space" + (f" at {path!r}" if path else "")
        if not isinstance(leaf, SUPPORTED_LEAVES):
            raise ConfigError(
                f"{where} is {type(leaf).__name__}, which is not supported; supported leaves are Box, Discrete, "
                f"MultiDiscrete and MultiBinary (inside Dict or Tuple): {way_out or _way_out(leaf, role)}"
            )
        if isinstance(leaf, spaces.Box) and not np.issubdtype(leaf.dtype, np.number) and leaf.dtype != np.bool_:
            raise ConfigError(f"{where} is a Box of dtype {leaf.dtype}; use a numeric dtype")
        if 0 in (leaf.shape or ()):
            kind = type(leaf).__name__
            raise ConfigError(f"{where} is a {kind} of shape {leaf.shape}, which holds no number; drop the field")


def _way_out(leaf: Space, role: str) -> str:
    if "observation" not in role:
        return "encode it as one of these"
    if type(leaf).__name__ == "MissionSpace":
        return (
            "take the wrapper GridSymbols, which leaves the mission out and lets the network tell the objects in view "
            "apart; DropUnsupported keeps a picture that is nearly black"
        )
    return "drop the field with the wrapper DropUnsupported, or encode it as one of these"


def check_width(space: Space, role: str, width: int) -> None:
    """Raise ConfigError for a leaf whose layer of ``width`` numbers per class or entry exceeds ``LARGEST_LAYER``."""
    for path, leaf in leaf_spaces(space).items():
        if isinstance(leaf, spaces.Discrete | spaces.MultiDiscrete):
            count = sum(int(n) for n in np.reshape(leaf.n if isinstance(leaf, spaces.Discrete) else leaf.nvec, -1))
        else:
            count = math.prod(leaf.shape or ())
        if 4 * width * count > LARGEST_LAYER:
            where = f"{role} space" + (f" at {path!r}" if path else "")
            raise ConfigError(
                f"{where} is {leaf}: {count:,} classes or entries with {width} weights each take "
                f"{4 * width * count / 2**20:,.0f} MiB, at most {LARGEST_LAYER / 2**20:,.0f} are allowed; encode it "
                f"with fewer (a Box of numbers, several smaller components), or lower the width"
            )


def stored_dtype(leaf: Space) -> np.dtype[Any]:
    """The type a leaf is stored in, by rollouts and datasets: float32 for floats, int64 for classes, else its own."""
    if isinstance(leaf, spaces.Discrete | spaces.MultiDiscrete):
        return np.dtype(np.int64)
    dtype = np.dtype(leaf.dtype)
    return np.dtype(np.float32) if np.issubdtype(dtype, np.floating) else dtype


def box_bounds(space: spaces.Box) -> tuple[np.ndarray, np.ndarray]:
    """Low and high bounds in float64, infinite where there are none.

    Gymnasium writes the largest number of the type where an integer has no bound; in types of 32 bits and more that is
    taken for none, as no observation comes near it.
    """
    low, high = space.low.astype(np.float64), space.high.astype(np.float64)
    dtype: np.dtype[Any] = np.dtype(space.dtype)
    if dtype.kind in "iu" and dtype.itemsize >= 4:
        limits = np.iinfo(dtype)
        low = np.where(space.low == limits.min, -np.inf, low)
        high = np.where(space.high == limits.max, np.inf, high)
    return low, high


def normalized_leaves(space: Space) -> list[str]:
    """Paths of the observation leaves that are standardized: Boxes of floats, and of integers without bounds."""
    return [
        path
        for path, leaf in leaf_spaces(space).items()
        if isinstance(leaf, spaces.Box)
        and (np.issubdtype(leaf.dtype, np.floating) or not np.isfinite(box_bounds(leaf)).all())
    ]


def space_outline(space: Space) -> dict[str, str]:
    """Outline that two spaces must share: leaf paths, kinds, sizes, whether Boxes are floats. Their bounds may differ.

    A picture in bytes and one in floats, of the same shape, mean other numbers: 255 is white in one, 1 in the other.
    """
    outline = {}
    for path, leaf in observation_leaves(space).items():
        match leaf:
            case spaces.Discrete():
                outline[path] = f"Discrete({leaf.n}, start={leaf.start})"
            case spaces.MultiDiscrete():
                outline[path] = f"MultiDiscrete({leaf.nvec.tolist()}, start={leaf.start.tolist()})"
            case spaces.Box():
                kind = "floats" if np.issubdtype(leaf.dtype, np.floating) else "integers"
                outline[path] = f"Box{leaf.shape} of {kind}"
            case _:
                outline[path] = f"{type(leaf).__name__}{leaf.shape}"
    return outline


def differing_spaces(ours: tuple[Space, Space], theirs: tuple[Space, Space]) -> list[tuple[str, Space, Space]]:
    """Of two pairs (observation space, action space) those with other outlines: (role, ours, theirs) each."""
    compared = zip(("observation", "action"), ours, theirs, strict=True)
    return [(role, mine, other) for role, mine, other in compared if space_outline(mine) != space_outline(other)]


def space_to_json(space: Space) -> str:
    """The space as a JSON text, which ``space_from_json`` reads; ConfigError for an unsupported leaf."""
    check_supported(space, "stored")
    return json.dumps(_describe(space))


def space_from_json(text: str) -> Space:
    """The space that ``space_to_json`` wrote; nothing in the text is executed. DataError for another text."""
    try:
        return _rebuild(json.loads(text))
    except (KeyError, TypeError, ValueError, AssertionError, ArithmeticError, RecursionError, AttributeError) as error:
        raise DataError(f"not the description of a space ({one_line(error)}): {str(text)[:80]!r}") from error


def space_from_text(text: str) -> Space:
    """The space that a text like "Discrete(3)", "Box(-1, 1, (4,))" or "Dict({'a': MultiBinary(2)})" makes in Python.

    What a Box, a Discrete, a MultiDiscrete or a MultiBinary prints is read, too. Nothing in a text is executed.
    Raises ConfigError for a text that makes no space.
    """

    def value(node: ast.AST) -> Any:
        match node:
            case ast.Call(func=ast.Name(id=name)) if name in SPACES:
                arguments = [value(each) for each in node.args]
                options = {option.arg or "": value(option.value) for option in node.keywords}
                if name == "Box":
                    _check_size(options.get("shape", arguments[2] if len(arguments) > 2 else ()))
                    dtype = options.get("dtype", arguments[3] if len(arguments) > 3 else np.float32)
                    bounds = (int(each) if isinstance(each, bool) else each for each in arguments[:2])
                    arguments[:2] = [np.asarray(each, dtype) if isinstance(each, list) else each for each in bounds]
                return getattr(spaces, name)(*arguments, **options)
            case ast.Name(id="inf"):
                return math.inf
            case ast.Name(id=name) if name in PRINTED_TYPES:
                return np.dtype(name).type
            case ast.UnaryOp(op=ast.USub()):
                return -value(node.operand)
            case ast.List() | ast.Tuple():
                parts = [value(each) for each in node.elts]
                return parts if isinstance(node, ast.List) else tuple(parts)
            case ast.Dict():
                return {value(key): value(each) for key, each in zip(node.keys, node.values, strict=True) if key}
            case ast.Constant():
                return node.value
        raise ValueError(f"{ast.unparse(node)} is no part of a space")

    try:
        with_commas = PRINTED_GAP.sub(lambda found: found[1] or f"{found[2]}, ", text.strip())
        space = value(ast.parse(with_commas, mode="eval").body)
        if not isinstance(space, gym.Space):
            raise ValueError(f"{shown(space)} is no space")
        space_from_json(space_to_json(space))  # of a size that memory holds
    except Exception as error:  # whatever other arguments make the constructors raise
        raise ConfigError(
            f"{shown(text)} makes no space ({error_line(error)}); write it as in Python, one of {', '.join(SPACES)}"
        ) from error
    return space


def _describe(space: Space) -> dict[str, Any]:
    if isinstance(space, spaces.Dict):
        return {"type": "Dict", "members": [[key, _describe(child)] for key, child in space.spaces.items()]}
    if isinstance(space, spaces.Tuple):
        return {"type": "Tuple", "members": [_describe(child) for child in space.spaces]}
    if isinstance(space, spaces.Discrete):
        return {"type": "Discrete", "n": int(space.n), "start": int(space.start), "dtype": str(space.dtype)}
    if isinstance(space, spaces.MultiDiscrete):
        nvec, start = space.nvec.tolist(), space.start.tolist()
        return {"type": "MultiDiscrete", "nvec": nvec, "start": start, "dtype": str(space.dtype)}
    if isinstance(space, spaces.MultiBinary):
        return {"type": "MultiBinary", "shape": list(space.shape)}
    assert isinstance(space, spaces.Box)
    low, high = _bounds_to_json(space.low), _bounds_to_json(space.high)
    return {"type": "Box", "shape": list(space.shape), "dtype": str(space.dtype), "low": low, "high": high}


def _rebuild(description: dict[str, Any]) -> Space:
    kind = description["type"]
    if kind == "Dict":
        return spaces.Dict([(key, _rebuild(child)) for key, child in description["members"]])
    if kind == "Tuple":
        return spaces.Tuple([_rebuild(child) for child in description["members"]])
    if kind == "Discrete":
        return spaces.Discrete(description["n"], start=description["start"], dtype=_integer(description["dtype"]))
    if kind == "MultiDiscrete":
        return spaces.MultiDiscrete(
            np.array(description["nvec"]), start=np.array(description["start"]), dtype=_integer(description["dtype"])
        )
    if kind == "MultiBinary":
        shape = description["shape"]
        _check_size(shape)
        return spaces.MultiBinary(shape[0] if len(shape) == 1 else shape)
    if kind != "Box":
        raise ValueError(f"unknown space type {kind!r}")
    shape, dtype = tuple(description["shape"]), np.dtype(description["dtype"])
    _check_size(shape)
    low = _bounds_from_json(description["low"], shape, dtype)
    high = _bounds_from_json(description["high"], shape, dtype)
    return spaces.Box(low=low, high=high, shape=shape, dtype=dtype.type)


def _check_size(shape: Sequence[int]) -> None:
    """Raise for a shape that no memory holds, before it is asked for."""
    if math.prod(shape) > LARGEST_SPACE:
        raise ValueError(f"shape {tuple(shape)} has more than {LARGEST_SPACE:,} numbers")


def _integer(name: str) -> Any:
    dtype = np.dtype(name)
    if not np.issubdtype(dtype, np.integer):
        raise ValueError(f"{name} is not an integer type")
    return dtype.type


def _bounds_to_json(bounds: np.ndarray) -> Any:
    """One number when all bounds are equal (images), else the nested list; infinities as text."""
    flat = bounds.reshape(-1).tolist()
    values = flat[:1] if len(set(flat)) <= 1 else flat
    words = [repr(value) if isinstance(value, float) and not np.isfinite(value) else value for value in values]
    return words[0] if len(words) == 1 else words


def _bounds_from_json(value: Any, shape: tuple[int, ...], dtype: np.dtype[Any]) -> np.ndarray:
    numbers = [
        float(item) if isinstance(item, str) else item for item in (value if isinstance(value, list) else [value])
    ]
    bounds = np.array(numbers, dtype=dtype)
    return np.full(shape, bounds[0], dtype=dtype) if bounds.size == 1 else bounds.reshape(shape)
