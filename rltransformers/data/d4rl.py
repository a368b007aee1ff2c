"""D4RL files and dictionaries as trajectories, and reference scores (Fu et al., arXiv 2004.07219), without d4rl.

Axis letters: N rows of the flat arrays, E episodes.
"""

import math
import os
import re
import warnings
from collections.abc import Mapping
from pathlib import Path
from typing import Any

import numpy as np
import numpy.typing as npt

from rltransformers.core.errors import DataError
from rltransformers.core.spaces import Space, first_leaf, leaf_values, map_leaves
from rltransformers.core.values import Bools, flags, numbers
from rltransformers.data.checks import jumps, leaf_name, locate, prefixing
from rltransformers.data.hdf5 import lazy_tree, opened_hdf5
from rltransformers.data.keys import IGNORED, key_names, pick_leaves
from rltransformers.data.spaces import Joined, Options, choose_spaces, chunks, lazy_numbers
from rltransformers.data.trajectories import Trajectories
from rltransformers.data.writer import TrajectoryWriter, column

# Returns of a random and of an expert policy: D4RL's normalized score is 0 at the first and 100 at the second.
REFERENCE_SCORES: dict[str, tuple[float, float]] = {
    "hopper": (-20.272305, 3234.3),
    "halfcheetah": (-280.178953, 12135.0),
    "walker2d": (1.629008, 4592.3),
    "ant": (-325.6, 3879.7),
    "antmaze": (0.0, 1.0),
    "kitchen": (0.0, 4.0),
    "pen": (96.262799, 3076.8331017826877),
    "door": (-56.512833, 2880.5693087298737),
    "hammer": (-274.856578, 12794.134825156867),
    "relocate": (-6.425911, 4233.877797728884),
    "maze2d-umaze": (23.85, 161.86),
    "maze2d-medium": (13.13, 277.39),
    "maze2d-large": (6.7, 273.99),
    "maze2d-open": (0.01, 20.66),
    "maze2d-open-dense": (11.17817, 27.166538620695782),
    "maze2d-umaze-dense": (68.537689, 193.66285642381482),
    "maze2d-medium-dense": (44.264742, 297.4552547777125),
    "maze2d-large-dense": (30.569041, 303.4857382709002),
    "minigrid-fourrooms": (0.01442, 2.89685),
}

# Names of tasks: a pattern for the whole name, as words without namespace and version, and the key of its scores.
# They are the ids of D4RL (and its file names), of Minari, and of environments in Gymnasium, Gymnasium-Robotics and
# Minigrid. Whole names, because a first word alone says little: "door-key" is no task of D4RL.
_QUALITIES = "random|medium|expert|simple|mixed|(medium|full) replay|(medium|random) expert"
_DEXTROUS = "human|cloned|expert|(demos|expert) clipped|demos bc combined"
_NAMES = [
    (rf"(?P<key>hopper|halfcheetah|walker2d|ant)( ({_QUALITIES}))?", r"\g<key>"),
    ("walker mixed", "walker2d"),
    (rf"(?P<key>pen|door|hammer|relocate)( ({_DEXTROUS}))?", r"\g<key>"),
    (r"adroithand(?P<key>pen|door|hammer|relocate)", r"\g<key>"),
    ("kitchen (complete|partial|mixed)|frankakitchen", "kitchen"),
    ("(mini )?kitchen microwave kettle (light slider|bottomburner light)", "kitchen"),
    (r"maze2d (?P<key>open|umaze|medium|large)( sparse)?", r"maze2d-\g<key>"),
    (r"maze2d (?P<key>open|umaze|medium|large) dense", r"maze2d-\g<key>-dense"),
    ("antmaze (open|umaze|medium|large|bigmaze|hardestmaze)( (play|diverse( gr?)?|dgr?))?", "antmaze"),
    ("ant maze (u|big|hardest) maze noisy multistart (true|false) multigoal (true|false) sparse( fixed)?", "antmaze"),
    ("minigrid fourrooms( random)?", "minigrid-fourrooms"),
]


_LOCOMOTION = ("halfcheetah", "hopper", "walker2d", "ant")
_FILE_QUALITIES = ("random", "medium", "expert", "medium-replay", "full-replay", "medium-expert")
_HANDS = ("pen", "hammer", "relocate", "door")
_ANTMAZES = {
    "umaze": "u-maze_noisy_multistart_False_multigoal_False",
    "umaze-diverse": "u-maze_noisy_multistart_True_multigoal_True",
    "medium-play": "big-maze_noisy_multistart_True_multigoal_False",
    "medium-diverse": "big-maze_noisy_multistart_True_multigoal_True",
    "large-play": "hardest-maze_noisy_multistart_True_multigoal_False",
    "large-diverse": "hardest-maze_noisy_multistart_True_multigoal_True",
}

D4RL_FILES: dict[str, str] = {
    **{f"{task}-{quality}-{version}": f"{task}_{quality.replace('-', '_')}-{version}"
       for task in _LOCOMOTION for quality in _FILE_QUALITIES for version in ("v1", "v2")},
    **{f"{task}-{quality}-v0": f"{task}_{quality.replace('-', '_')}"
       for task in _LOCOMOTION for quality in ("random", "medium", "expert", "medium-expert")},
    **{f"{task}-medium-replay-v0": f"{task.removesuffix('2d')}_mixed" for task in _LOCOMOTION},
    "ant-random-expert-v0": "ant_random_expert",
    **{f"antmaze-{maze}-v0": f"Ant_maze_{name}_sparse" for maze, name in _ANTMAZES.items()},
    **{f"antmaze-{maze}-v2": f"Ant_maze_{name}_sparse_fixed" for maze, name in _ANTMAZES.items()},
    **{f"{task}-human-v0": f"{task}-v0_demos_clipped" for task in _HANDS},
    **{f"{task}-cloned-v0": f"{task}-demos-v0-bc-combined" for task in _HANDS},
    **{f"{task}-expert-v0": f"{task}-v0_expert_clipped" for task in _HANDS},
    **{f"{task}-{kind}-v1": f"{task}-{kind}-v1" for task in _HANDS for kind in ("human", "cloned", "expert")},
    "kitchen-complete-v0": "mini_kitchen_microwave_kettle_light_slider-v0",
    "kitchen-partial-v0": "kitchen_microwave_kettle_light_slider-v0",
    "kitchen-mixed-v0": "kitchen_microwave_kettle_bottomburner_light-v0",
    "maze2d-open-v0": "maze2d-open-sparse",
    "maze2d-open-dense-v0": "maze2d-open-dense",
    **{f"maze2d-{maze}-v1": f"maze2d-{maze}-sparse-v1" for maze in ("umaze", "medium", "large")},
    **{f"maze2d-{maze}-dense-v1": f"maze2d-{maze}-dense-v1" for maze in ("umaze", "medium", "large")},
    "minigrid-fourrooms-v0": "minigrid4rooms",
    "minigrid-fourrooms-random-v0": "minigrid4rooms_random",
}  # fmt: skip
"""D4RL id → the file that d4rl downloads for it, without its ending ``.hdf5``: the URLs in its ``infos.py`` end so."""


def reference_scores(task: str) -> tuple[float, float] | None:
    """(random, expert) return of an environment or data set id, or None where D4RL has no reference.

    Takes D4RL ids ("hopper-medium-v2") and names of its files ("hopper_medium-v2"), Minari ids ("D4RL/pen/human-v2")
    and Gymnasium ids in any version ("Hopper-v5"), whose v5 physics differ slightly from those of the data.
    """
    name = re.sub(r"^(d4rl|mujoco|gym)/", "", task.lower())
    name = " ".join(word for word in re.split(r"[^a-z0-9]+", name) if not re.fullmatch(r"(v\d+)?", word))
    for pattern, key in _NAMES:
        if match := re.fullmatch(pattern, name):
            return REFERENCE_SCORES[match.expand(key)]
    return None


def normalized_score(task: str, returns: npt.ArrayLike) -> npt.NDArray[np.float64] | None:
    """100 (return - random) / (expert - random) as in D4RL, or None where no reference exists for ``task``."""
    reference = reference_scores(task)
    if reference is None:
        return None
    low, high = reference
    return 100.0 * (np.asarray(returns, np.float64) - low) / (high - low)


def d4rl_arrays(file: Any) -> dict[str, Any]:
    """Flat arrays of an open HDF5 file, at its root, or in parts in order, ``virtual/<i>/...``."""
    if "episode_0" in file and "total_steps" in file["episode_0"].attrs:
        raise DataError(f"{file.filename} belongs to a Minari data set; pass the Minari id, or the folder above 'data'")
    return _virtual_parts(file) if "virtual" in file and "observations" not in file else _tree(file)


def d4rl_file(name: str) -> Path | None:
    """The file of a D4RL id where d4rl keeps it, there or not; None for other ids."""
    if name not in D4RL_FILES:
        return None
    folder = os.environ.get("D4RL_DATASET_DIR") or "~/.d4rl/datasets"
    return Path(folder).expanduser() / f"{D4RL_FILES[name]}.hdf5"


def existing_d4rl_file(name: str) -> Path:
    """Return the file of a D4RL id; raise DataError when it is not there."""
    file = d4rl_file(name)
    if file is None or not file.is_file():
        raise DataError(
            f"the D4RL data set {name!r} is not on this machine: there is no file {file}; download it there, "
            f"set D4RL_DATASET_DIR to the folder that holds it, or pass the path of another file"
        )
    return file


def read_d4rl_id(dataset: str, options: Options) -> Trajectories:
    """Read the file that the d4rl package keeps for one of its ids."""
    with opened_hdf5(existing_d4rl_file(dataset)) as file:
        return trajectories_from_d4rl(d4rl_arrays(file), options, dataset)


def _tree(group: Any) -> dict[str, Any]:
    """All arrays that may be read as a dict of lazily read HDF5 data sets; nested groups stay nested."""
    return {key: lazy_tree(group[key]) for key in group if key not in (*IGNORED, "virtual")}


def _virtual_parts(file: Any) -> dict[str, Any]:
    import h5py

    group = file["virtual"]
    wrong = not isinstance(group, h5py.Group) or [
        key for key in group if not (key.isdecimal() and isinstance(group[key], h5py.Group))
    ]
    if wrong:
        which = "no group" if wrong is True else f"a group with {wrong[0]!r}"
        raise DataError(f"{file.filename}: 'virtual' is {which}; it should hold groups of arrays numbered 0, 1, ...")
    parts = [_tree(group[key]) for key in sorted(group, key=int)]
    if not parts:
        raise DataError(f"{file.filename}: the group 'virtual' is empty")
    names = key_names(parts[0], f"{file.filename}: virtual")
    for index, part in enumerate(parts):
        if set(part) != set(parts[0]):
            raise DataError(f"{file.filename}: part {index} of 'virtual' has {sorted(part)}, part 0 {sorted(parts[0])}")
    return {key: map_leaves(Joined, *(part[key] for part in parts)) for key in names.values()}


def trajectories_from_d4rl(
    arrays: Mapping[str, Any],
    options: Options,
    name: str = "dict",
    source: str = "d4rl",
    starts: npt.NDArray[np.int64] | None = None,
) -> Trajectories:
    """Trajectories of what D4RL's ``env.get_dataset()`` returns: flat arrays of N rows, without an episode index.

    An episode ends with a row whose ``terminals`` or ``timeouts`` is set. Without ``timeouts`` it also ends after
    ``time_limit`` steps since its own start. The last, unfinished episode is kept and marked truncated. The
    observation after the last action is known only where ``next_observations`` are stored.

    With ``split_on_discontinuity`` an episode also ends where a stored next observation differs from the observation of
    the following row by more than 1e-6; AntMaze files need it, their ``timeouts`` do not mark all resets.

    Args:
        name: where the options have none.
        source: the format that the arrays were stored in, kept in the metadata.
        starts: rows [E] where episodes begin, of sources that know; the flags then only say how they end.
    """
    name = options.name or name
    arrays = pick_leaves(arrays, options.observation_leaves)
    names = key_names(arrays, name)
    given = {ours: arrays[theirs] for ours, theirs in names.items()}
    rewards = _array(given["rewards"], f"{name}: {names['rewards']}") if "rewards" in given else None
    counted = _array(first_leaf(given["actions"]), f"{name}: actions") if rewards is None else rewards
    rows, *axes = counted.shape
    if rewards is not None and math.prod(axes) != 1:
        raise DataError(
            f"{name}: rewards have shape {rewards.shape}, one number per step is needed; of episodes of equal length "
            f"pass [{{key: rows[e] for key, rows in data.items()}} for e in range({rows})]"
        )
    if rows == 0:
        raise DataError(f"{name}: holds no rows; nothing can be learned from it")
    if "terminations" not in given and options.time_limit is None and not options.split_on_discontinuity:
        observed = first_leaf(given["observations"])
        if hasattr(observed, "__len__") and len(observed) == rows + 1:
            raise DataError(f"{name}: observations have a row more than actions, as of an episode; pass [episode]")
        raise DataError(
            f"{name}: the key 'terminals' is missing, present are {sorted(map(str, arrays))}; pass "
            f"time_limit=<steps of an episode> to cut the {rows:,} rows, or time_limit={rows} where they are one"
        )
    seen = {**given, "observations": _with_following(given)}
    observation_space, action_space, guesses = choose_spaces(options, seen.__getitem__, name)

    def check_rows(key: str, values: Any) -> None:
        if len(values) != rows:
            raise DataError(f"{name}: {key} has {len(values)} rows for {rows} steps; the file is incomplete")

    def marks(key: str) -> Bools:
        if key not in given:
            return np.zeros(rows, bool)
        values = _array(given[key], where := f"{name}: {names[key]}")
        with prefixing(where):
            values = column(flags(values))
        check_rows(names[key], values)
        return values

    def leaves(key: str, space: Space) -> dict[str, Any]:
        with prefixing(f"{name}: {names[key]} do not fit the space:"):
            arrays = leaf_values(space, given[key])
        arrays = {path: _array(leaf, leaf_name(f"{name}: {names[key]}", path)) for path, leaf in arrays.items()}
        for path, leaf in arrays.items():
            check_rows(f"{key} {path}".strip(), leaf)
        return arrays

    terminations, truncations = marks("terminations"), marks("truncations")
    observations, actions = leaves("observations", observation_space), leaves("actions", action_space)
    following = leaves("next_observations", observation_space) if "next_observations" in given else None
    resets = None if following is None else _discontinuities(observations, following)
    marked = "truncations" in given or starts is not None
    ends = _ends(terminations | truncations, resets, starts, marked, options, name)
    bounds = np.append(0, np.flatnonzero(ends) + 1)
    writer = TrajectoryWriter(np.diff(bounds), observation_space, action_space, name, options)
    writer.fill(observations, actions, rewards, terminations, truncations, following)
    return writer.finish({"format": source}, guesses=guesses)


def _ends(
    flagged: Bools,
    resets: Bools | None,
    starts: npt.NDArray[np.int64] | None,
    limits_are_marked: bool,
    options: Options,
    name: str,
) -> Bools:
    """Rows [N] that end an episode; warns of ends that nothing marks.

    Args:
        flagged: rows with a flag.
        resets: rows whose next observation is not that of the following row; None without next observations.
    """
    ends = flagged if starts is None else _ends_before(starts, flagged, name)
    if options.split_on_discontinuity:
        if resets is None:
            raise DataError(f"{name}: split_on_discontinuity compares 'next_observations', which the data lack")
        ends = ends | resets
    if not limits_are_marked and options.time_limit is not None:
        ends = _cut_at(ends, options.time_limit)
    inside = np.flatnonzero([] if resets is None else resets & ~ends)
    if not limits_are_marked and options.time_limit is None and not ends[-1]:
        split = f", or split_on_discontinuity=True: {inside.size:,} next_observations are not followed"
        warnings.warn(
            f"{name}: there are no 'timeouts', so episodes end only at 'terminals' and the last one is unfinished; "
            f"pass time_limit=<the environment's step limit> if episodes were also cut by time"
            f"{split if inside.size else ''}",
            stacklevel=3,
        )
    elif inside.size:
        warnings.warn(
            f"{name}: within episodes {inside.size:,} next_observations differ from the observations of the following "
            f"row, first in row {inside[0]:,}; pass split_on_discontinuity=True where these are resets that nothing "
            "marks; as it is, observations count and next_observations do not",
            stacklevel=3,
        )
    ends[-1] = True
    return ends


def _array(values: Any, where: str) -> Any:
    with prefixing(where):
        values = lazy_numbers(values)
    if len(values.shape) == 0:
        raise DataError(f"{where} is a single number, one row per step is needed")
    return values


def _with_following(given: Mapping[str, Any]) -> Any:
    """Observations, and behind them next ones where they are classes: the last of an episode may be the highest."""
    observations = given["observations"]

    def join(rows: Any, after: Any) -> Any:
        rows = lazy_numbers(rows)
        if rows.dtype.kind not in "iu" or len(rows.shape) > 2:
            return rows
        after = numbers(after)
        same = after.astype(rows.dtype)
        return Joined(rows, same) if np.array_equal(same, after) else rows

    try:
        return map_leaves(join, observations, given["next_observations"])
    except (DataError, KeyError, TypeError, ValueError):  # none, or other rows, which is said later
        return observations


def _discontinuities(observations: Mapping[str, Any], following: Mapping[str, Any]) -> Bools:
    rows = len(next(iter(observations.values())))
    resets = np.zeros(rows, bool)
    for path, leaf in observations.items():
        for chunk in chunks(leaf, rows - 1):
            after, observed = following[path][chunk], leaf[chunk.start + 1 : chunk.stop + 1]
            resets[chunk] |= jumps(np.asarray(after), np.asarray(observed))
    return resets


def _ends_before(starts: npt.NDArray[np.int64], flagged: Bools, name: str) -> Bools:
    """Where episodes end that begin at ``starts``; DataError for a flag elsewhere."""
    ends = np.zeros(len(flagged), bool)
    ends[starts[1:] - 1] = ends[-1] = True
    if (wrong := np.flatnonzero(flagged & ~ends)).size:
        episode, step = locate(int(wrong[0]), starts)
        raise DataError(
            f"{name}: step {step} of episode {episode} is flagged as an end, and the episode "
            f"goes on; pass columns={{'episode': None}} where flags say the ends, or None for the flags"
        )
    return ends


def _cut_at(ends: Bools, limit: int) -> Bools:
    """``ends`` and every ``limit``-th step counted from the start of the own episode."""
    steps = np.arange(len(ends))
    starts = np.maximum.accumulate(np.where(np.append(True, ends[:-1]), steps, 0))
    cut: Bools = ends | ((steps - starts) % limit == limit - 1)
    return cut
