"""Lists and dicts of steps or episodes as trajectories, as programs hold them and JSON files store them."""

import json
import os
from collections.abc import Iterable, Mapping, Sequence
from typing import Any

import numpy as np

from rltransformers.core.errors import DataError
from rltransformers.core.files import existing_file
from rltransformers.core.ranges import shown
from rltransformers.core.spaces import first_leaf
from rltransformers.core.values import numbers
from rltransformers.data.buffers import is_buffer
from rltransformers.data.checks import damage
from rltransformers.data.columns import STARTS, STEPS, USUAL, value_or_error
from rltransformers.data.d4rl import trajectories_from_d4rl
from rltransformers.data.episodes import trajectories_from_episodes
from rltransformers.data.keys import PER_STEP, is_ignored
from rltransformers.data.spaces import Options
from rltransformers.data.steps import FLAGS, is_frame, starts_of, trajectories_from_frames, trajectories_from_steps
from rltransformers.data.trajectories import Trajectories

_TRANSITION = ("observations", "actions", "rewards", "next_observations", "terminations", "truncations")
"""The members of the tuple of a step; with five of them the last one says done."""


def read_json(path: str | os.PathLike[str], options: Options) -> Trajectories:
    """Read a JSON file: a list of steps or episodes, or an object of arrays."""
    file = existing_file(path)
    with damage(f"{file} is no JSON", "write a list of steps"):
        content = json.loads(file.read_text(encoding="utf-8-sig"))
    if isinstance(content, Mapping):
        return trajectories_from_arrays(content, options, file.stem, "json")
    if not isinstance(content, list):
        raise DataError(f"{file} holds {shown(content)}; write a list of steps")
    return trajectories_from_items(content, options, file.stem)


def read_jsonl(path: str | os.PathLike[str], options: Options) -> Trajectories:
    """Read a file with a JSON object per line, each a step or an episode; or a list per line, the steps of one."""
    file, items = existing_file(path), []
    with damage(f"{file} is no text", "write a JSON object per line"), file.open(encoding="utf-8-sig") as lines:
        for number, line in enumerate(lines, 1):
            with damage(f"{file}: line {number} is no JSON", "write an object per line"):
                items += [json.loads(line)] if line.strip() else []
    return trajectories_from_items(items, options, file.stem)


def trajectories_from_arrays(
    arrays: Mapping[str, Any], options: Options, name: str = "dict", source: str = "d4rl"
) -> Trajectories:
    """Read a dict of arrays: episodes or DataFrames by name, a row per step with ``columns`` or a column of episodes,
    else flat rows as D4RL's."""
    arrays = {key: values for key, values in arrays.items() if values is not None}
    if (columns := _by_row(arrays)) is not None:
        return trajectories_from_steps(columns, options, name, source)
    parts = list(arrays.values())
    if (
        parts
        and not PER_STEP & set(map(str, arrays))
        and all(is_frame(part) or isinstance(part, Mapping) for part in parts)
    ):
        return trajectories_from_items(parts, options, name)
    if options.columns is not None or any(key in arrays for key in (*USUAL["episode"], *STARTS)):
        return trajectories_from_steps(arrays, options, name, source)
    return trajectories_from_d4rl(arrays, options, name, source)


def _by_row(arrays: Mapping[str, Any]) -> dict[str, list[Any]] | None:
    """The columns of a table that pandas wrote as a dict of dicts, column -> row -> value; None for others."""
    if not all(isinstance(part, Mapping) and part for part in arrays.values()):
        return None
    parts = {key: {str(row): value for row, value in part.items()} for key, part in arrays.items()}
    rows = [str(row) for row in range(max(map(len, parts.values()), default=0))]
    if not rows or any(part.keys() != set(rows) for part in parts.values()):
        return None
    return {key: [part[row] for row in rows] for key, part in parts.items()}


def trajectories_from_items(items: Iterable[Any], options: Options, name: str = "episodes") -> Trajectories:
    """Read a list of episode dicts, of step dicts, or of ``(o, a, r, o2, done)`` or ``(..., terminated, truncated)``.

    A dict whose reward is a single number is a step. Named tuples are dicts; a dict of infos at the end of a tuple is
    not read. Lists of steps and DataFrames are episodes.
    """
    name, starts = options.name or name, None
    if isinstance(items, np.ndarray) and items.dtype.names is not None:
        return trajectories_from_steps({key: items[key] for key in items.dtype.names}, options, name)
    listed = list(items)
    if listed and is_frame(listed[0]):
        return trajectories_from_frames(listed, options, name)
    if all(isinstance(item, Mapping) and isinstance(item.get(STEPS), list | tuple) for item in listed):  # of RLDS
        listed = [item[STEPS] for item in listed]
    if listed and all(map(_holds_steps, listed)):
        starts, listed = starts_of(listed), [step for episode in listed for step in episode]
    listed = [item._asdict() if hasattr(item, "_asdict") else item for item in listed]
    if not listed or not (isinstance(listed[0], tuple | list) or _is_step(listed[0], options)):
        _check_episodes(listed, name)
        return trajectories_from_episodes(listed, options, name)
    first = listed[0]
    for row, item in enumerate(listed):
        if _members(item) != _members(first):
            raise DataError(
                f"{name}: step {row} has {_members(item)}, step 0 has {_members(first)}; make them alike, flags as "
                f"[{{'done': False}} | step for step in steps]"
            )
    if isinstance(first, Mapping):
        columns = {str(key): [item[key] for item in listed] for key in first}
    else:
        size = len(first) - (len(first) > 0 and isinstance(first[-1], Mapping))
        columns = {key: [item[index] for item in listed] for index, key in enumerate(_TRANSITION[:size])}
        begins = [] if starts is None else starts.tolist()
        if size not in (5, 6) or not (
            options.split_on_discontinuity or _follow(columns, begins, certain=isinstance(first, tuple))
        ):
            raise DataError(
                f"{name}: step 0 has {size} members, {shown(first)}; a step is (observation, action, reward, "
                f"next_observation, done), or (..., terminated, truncated) with both flags; of rows of numbers pass a "
                f"DataFrame with names"
            )
    for key in USUAL["next_observations"]:  # None where an episode ends, which are the only ones that would be read
        if any(value is None for value in columns.get(key, ())):
            del columns[key]
    return trajectories_from_steps(columns, options, name, starts=starts, files=starts)


def _holds_steps(item: Any) -> bool:
    """Whether this is a list of steps, of which each has several members; a step has a single number among them."""
    if not isinstance(item, list | tuple) or hasattr(item, "_asdict") or not item:
        return False
    return all(isinstance(step, Mapping | tuple | list) and len(step) > 2 for step in item)


def _check_episodes(items: Sequence[Any], name: str) -> None:
    """Raise DataError for what looks like episodes, and is more than one, or less."""
    for index, item in enumerate(items):
        if isinstance(item, Trajectories) or is_buffer(item):
            raise DataError(
                f"{name}: item {index} is {type(item).__name__}, which holds many episodes; pass it alone, or join "
                f"several: Trajectories.concatenate(map(load_trajectories, them))"
            )
    if _are_steps(items):
        raise DataError(
            f"{name}: every item holds one reward, and not all end, so they are steps, kept as arrays of one; write "
            f"[{{key: value[0] for key, value in step.items()}} for step in steps]"
        )


def _are_steps(items: Sequence[Any]) -> bool:
    """Whether several dicts that look like episodes of one step are none: one observation each, and not all end."""
    known = [each for role in FLAGS for each in USUAL[role]]
    goes_on = False
    for item in items:
        if not isinstance(item, Mapping):
            return False
        rewards = [item[key] for key in USUAL["rewards"] if key in item]
        observed = [item[key] for key in USUAL["observations"] if key in item]
        if not rewards or not observed or _only(rewards[0]) is None:
            return False
        if len(shape := np.shape(first_leaf(observed[0]))) > 1 and shape[0] == 2:  # the last observation, too
            return False
        ends = [_only(item[key]) for key in known if key in item]
        goes_on |= bool(ends) and not any(ends)
    return goes_on and len(items) > 1


def _only(values: Any) -> float | None:
    """The number in an array or a list of one; None for others."""
    array = value_or_error(numbers, values)
    return None if isinstance(array, DataError) or array.size != 1 else float(array.item())


def _follow(columns: Mapping[str, Sequence[Any]], starts: Sequence[int], certain: bool) -> bool:
    """Whether the fourth members of steps may be next observations: they have the form of observations.

    Single numbers that may be flags, or unless ``certain`` anything else, have to be what mostly follows.
    """
    before, after = columns["observations"], columns["next_observations"]
    known = next((each for each in after if each is not None), None)
    if known is None:
        return True
    if isinstance(known, bool | np.bool_) or _form(known) != _form(before[0]):
        return False
    if _form(known) or (certain and not all(each in (0, 1) for each in after)):
        return True
    ended = [any(marks) for marks in zip(*(columns[key] for key in FLAGS if key in columns), strict=True)]
    follows = [row for row in range(1, len(before)) if not ended[row - 1] and row not in starts]
    return 2 * sum(abs(after[row - 1] - before[row]) < 1e-6 for row in follows) >= len(follows)


def _form(value: Any) -> Any:
    if isinstance(value, Mapping):
        return sorted(map(str, value))
    try:
        return np.shape(value)
    except (ValueError, TypeError, RuntimeError):  # of a tuple of arrays
        return len(value)


def _members(item: Any) -> Any:
    """The names of the members of a dict, the number of them in a tuple."""
    if isinstance(item, Mapping):
        return sorted(map(str, item))
    return f"{len(item)} members" if isinstance(item, tuple | list) else shown(item)


def _is_step(item: Any, options: Options) -> bool:
    if not isinstance(item, Mapping) or options.columns is not None:
        return isinstance(item, Mapping)
    single = {key for key, value in item.items() if value is None or isinstance(value, int | float)}
    single |= {key for key, value in item.items() if getattr(value, "ndim", 1) == 0}
    arrays = {key: item[key] for key in USUAL["dones"] if hasattr(item.get(key), "ndim")}
    single |= {key for key, value in arrays.items() if _only(value) is not None}
    if any(key in item for key in USUAL["rewards"]) and not any(key in single for key in USUAL["dones"]):
        return any(key in single for key in USUAL["rewards"])
    flags_of_episodes = {key for role in ("terminations", "truncations") for key in USUAL[role]}
    return any(key not in flags_of_episodes and not is_ignored(str(key)) for key in single)
