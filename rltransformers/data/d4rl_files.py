"""Where the d4rl package keeps the files of its ids.

The names of the files are those of the URLs in d4rl's tables (Farama-Foundation/D4RL, ``d4rl/infos.py`` and the
``__init__.py`` of its environments); its ``offline_env.py`` says where they are kept.
"""

import os
from pathlib import Path

from rltransformers.core.errors import DataError

_LOCOMOTION = ("halfcheetah", "hopper", "walker2d", "ant")
_QUALITIES = ("random", "medium", "expert", "medium-replay", "full-replay", "medium-expert")
_DEXTROUS = ("pen", "hammer", "relocate", "door")
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
       for task in _LOCOMOTION for quality in _QUALITIES for version in ("v1", "v2")},
    **{f"{task}-{quality}-v0": f"{task}_{quality.replace('-', '_')}"
       for task in _LOCOMOTION for quality in ("random", "medium", "expert", "medium-expert")},
    **{f"{task}-medium-replay-v0": f"{task.removesuffix('2d')}_mixed" for task in _LOCOMOTION},
    "ant-random-expert-v0": "ant_random_expert",
    **{f"antmaze-{maze}-v0": f"Ant_maze_{name}_sparse" for maze, name in _ANTMAZES.items()},
    **{f"antmaze-{maze}-v2": f"Ant_maze_{name}_sparse_fixed" for maze, name in _ANTMAZES.items()},
    **{f"{task}-human-v0": f"{task}-v0_demos_clipped" for task in _DEXTROUS},
    **{f"{task}-cloned-v0": f"{task}-demos-v0-bc-combined" for task in _DEXTROUS},
    **{f"{task}-expert-v0": f"{task}-v0_expert_clipped" for task in _DEXTROUS},
    **{f"{task}-{kind}-v1": f"{task}-{kind}-v1" for task in _DEXTROUS for kind in ("human", "cloned", "expert")},
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
"""D4RL id → the file that d4rl downloads for it, without its ending ``.hdf5``."""


def d4rl_file(name: str) -> Path | None:
    """The file of a D4RL id, there or not, in D4RL_DATASET_DIR or else in ~/.d4rl/datasets; None for other ids."""
    if name not in D4RL_FILES:
        return None
    folder = os.environ.get("D4RL_DATASET_DIR") or "~/.d4rl/datasets"
    return Path(folder).expanduser() / f"{D4RL_FILES[name]}.hdf5"


def existing_d4rl_file(name: str) -> Path:
    """Return the file of a D4RL id.

    Raises:
        DataError: when it is not there, with the place where it would lie.
    """
    file = d4rl_file(name)
    if file is None or not file.is_file():
        raise DataError(
            f"the D4RL data set {name!r} is not on this machine: there is no file {file}; download it there, "
            f"set D4RL_DATASET_DIR to the folder that holds it, or pass the path of another file"
        )
    return file
