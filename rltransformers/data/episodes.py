"""Episodes as dicts of arrays, one dict per episode, as trajectories. Axis letter: T steps of one episode."""

import os
from collections.abc import Iterable, Mapping, Sequence
from typing import Any

import numpy as np

from rltransformers.core.errors import ConfigError, DataError, one_line
from rltransformers.core.spaces import Space, first_leaf, leaf_values, map_leaves, nest_leaves
from rltransformers.core.values import as_array, numbers
from rltransformers.data.checks import jumps, prefixing
from rltransformers.data.columns import array_of
from rltransformers.data.keys import NAMES, key_names, pick_leaves
from rltransformers.data.spaces import Joined, Options, choose_spaces
from rltransformers.data.trajectories import Trajectories
from rltransformers.data.writer import TrajectoryWriter, column

_MISFITS = (ValueError, KeyError, IndexError, TypeError)


def trajectories_from_episodes(
    episodes: Iterable[Mapping[str, Any]], options: Options, name: str = "episodes", source: str = "episodes"
) -> Trajectories:
    """Read episode dicts, or objects with such attributes; keys as in ``load_trajectories``.

    Arrays of files are read an episode at a time.
    """
    if options.split_on_discontinuity:
        raise ConfigError("split_on_discontinuity does not apply to episodes, which are split already")
    name, leaves = options.name or name, options.observation_leaves
    listed = [_arrays(pick_leaves(_as_dict(episode), leaves), index, name) for index, episode in enumerate(episodes)]
    if not listed:
        raise DataError(f"{name}: holds no episode; nothing can be learned from it")
    without = ["rewards" not in episode for episode in listed]
    if any(without) and not all(without):
        raise DataError(f"{name}: episode {without.index(True)} lacks 'rewards', and others have them; fill them in")
    lengths = [len(episode.get("rewards", first_leaf(episode["actions"]))) for episode in listed]
    if 0 in lengths:
        raise DataError(f"{name}: episode {lengths.index(0)} is empty; drop episodes without steps")
    observation_space, action_space, guesses = choose_spaces(options, lambda key: _stack(listed, key, name), name)
    writer = TrajectoryWriter(lengths, observation_space, action_space, name, options)
    for index, episode in enumerate(listed):
        observations = episode["observations"]
        if "next_observations" in episode:
            where = f"{name}: next_observations of episode {index}"
            observations = _append_last(observation_space, episode, lengths[index], where)
        writer.add(
            observations,
            episode["actions"],
            episode.get("rewards"),
            episode.get("terminations", False),
            episode.get("truncations", False),
        )
    return writer.finish({"format": source}, guesses=guesses)


def _as_dict(episode: Any) -> Any:
    """The arrays of an episode that is an object, as those of imitation, d3rlpy and Minari are; others as they are."""
    if isinstance(episode, Mapping | Sequence | np.ndarray):
        return episode
    arrays = {key: getattr(episode, key) for names in NAMES.values() for key in names if hasattr(episode, key)}
    # imitation keeps observations of a Dict space in an object of its own
    return {key: value.unwrap() if hasattr(value, "unwrap") else value for key, value in arrays.items()} or episode


def _arrays(episode: Any, index: int, name: str) -> dict[str, Any]:
    """The arrays of one episode under our names (see ``key_names``), rewards as numbers [T] where there are any."""
    where = f"{name}: episode {index}"
    if not isinstance(episode, Mapping):
        files = isinstance(episode, str | os.PathLike)
        way_out = "; files are joined by Trajectories.concatenate(map(load_trajectories, files))" if files else ""
        raise DataError(f"{where} is {type(episode).__name__}, expected a dict of arrays{way_out}")
    episode = {key: values for key, values in episode.items() if values is not None}  # imitation's Trajectory has such
    arrays = {ours: episode[theirs] for ours, theirs in key_names(episode, where).items()}
    for key, values in arrays.items():
        if isinstance(arrays.get("rewards"), tuple) and isinstance(values, tuple) and key != "rewards":
            values = _steps_or_leaves(values, len(arrays["rewards"]), f"{where}: {key}")
        nested = isinstance(values, list) and values and isinstance(values[0], Mapping)
        arrays[key] = array_of(values, f"{where}: {key}") if nested else values
    if "rewards" in arrays:
        with prefixing(f"{name}: rewards of episode {index}"):
            arrays["rewards"] = np.atleast_1d(column(numbers(arrays["rewards"])))
    return arrays


def _steps_or_leaves(values: tuple[Any, ...], steps: int, where: str) -> Any:
    """Values of an episode that ``zip(*steps)`` made, as a list; the leaves of a Tuple space as they are."""
    as_steps = len(values) in (steps, steps + 1)
    as_leaves = all(hasattr(leaf, "__len__") and len(leaf) in (steps, steps + 1) for leaf in values)
    if as_steps and as_leaves:
        raise DataError(f"{where} may be {len(values)} steps or as many leaves of a Tuple space; give steps as a list")
    return list(values) if as_steps else values


def _stack(episodes: Sequence[Mapping[str, Any]], key: str, name: str) -> Any:
    """All rows of all episodes, per leaf, for the inference of a space."""
    values = [episode[key] for episode in episodes]
    try:
        return map_leaves(Joined, *values)
    except _MISFITS:
        for index, value in enumerate(values):
            try:
                map_leaves(Joined, values[0], value)
            except _MISFITS as error:
                what = f"{key} of episode {index}" + (" do not fit those of episode 0" if index else " are unfit")
                text = isinstance(error, DataError) and key == "observations" and isinstance(value, Mapping | tuple)
                way_out = "; observation_leaves=[...] keeps the leaves that are numbers" if text else ""
                rows = [each.shape[1:] if isinstance(each, np.ndarray) else None for each in (values[0], value)]
                differ = None not in rows and rows[0] != rows[1]
                fault = f"rows of shape {rows[0]}, then of {rows[1]}" if differ else str(error)
                raise DataError(f"{name}: {what}: {fault}{way_out}") from error
        raise


def _append_last(space: Space, episode: Mapping[str, Any], steps: int, where: str) -> Any:
    """Observations with the last row of ``next_observations`` behind them, nested like the space."""

    def join(rows: Any, after: Any) -> Any:
        rows, after = as_array(rows), as_array(after)
        if len(after) != steps:
            raise ValueError(f"{len(after)} rows for {steps} steps")
        if (wrong := np.flatnonzero(jumps(after[: len(rows) - 1], rows[1 : steps + 1]))).size:
            raise ValueError(f"they differ about what follows step {wrong[0]}; leave out one of the two")
        return np.concatenate([rows, after[-1:]]) if len(rows) == steps else rows

    try:
        last = leaf_values(space, episode["next_observations"])
        joined = {path: join(rows, last[path]) for path, rows in leaf_values(space, episode["observations"]).items()}
        return nest_leaves(space, joined)
    except _MISFITS as error:
        raise DataError(f"{where} do not fit the observations ({one_line(error)})") from error
