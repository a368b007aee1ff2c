"""HDF5 and ``.npz`` files as trajectories, whichever library laid them out."""

import os
from pathlib import Path

from rltransformers.data.arrays import nested, opened_npz
from rltransformers.data.d3rlpy import is_dump, trajectories_from_dump
from rltransformers.data.d4rl import d4rl_arrays
from rltransformers.data.hdf5 import opened_hdf5
from rltransformers.data.items import trajectories_from_arrays
from rltransformers.data.ogbench import is_recording, trajectories_from_recording
from rltransformers.data.robomimic import has_demos, trajectories_from_demos
from rltransformers.data.spaces import Options
from rltransformers.data.trajectories import Trajectories


def read_hdf5(path: str | os.PathLike[str], options: Options) -> Trajectories:
    """Read an HDF5 file of D4RL, robomimic, LIBERO, ManiSkill or d3rlpy, or of arrays that ``columns`` names."""
    with opened_hdf5(path) as file:
        name = Path(file.filename).stem
        if options.columns is None and has_demos(file):
            return trajectories_from_demos(file, options, name)
        if options.columns is None and is_dump(file):
            return trajectories_from_dump(file, options, name)
        return trajectories_from_arrays(d4rl_arrays(file), options, name)


def read_npz(path: str | os.PathLike[str], options: Options) -> Trajectories:
    """Read an ``.npz`` file of OGBench, or of arrays of N rows by the names of ``keys.NAMES``.

    Leaves of nested observations are arrays "observations/camera".
    """
    with opened_npz(path) as arrays:
        name = Path(path).stem
        if options.columns is None and is_recording(arrays):
            return trajectories_from_recording(arrays, options, name)
        return trajectories_from_arrays(nested(arrays), options, name, "npz")
