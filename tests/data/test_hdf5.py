"""The HDF5 library reads what the writer wrote, and goes on writing into it."""

from pathlib import Path
from typing import Any

import h5py
import numpy as np
import pytest

from rltransformers.data.hdf5 import HDF5Writer

DTYPES = [np.float32, np.float64, np.int8, np.uint8, np.int64, np.uint16, bool]


def write(path: Path, groups: dict[str, Any]) -> Path:
    with path.open("wb") as file:
        writer = HDF5Writer(file)
        members = {
            name: writer.tree(tree, {"id": i, "total_steps": -i}) for i, (name, tree) in enumerate(groups.items())
        }
        writer.finish(writer.group(members))
    return path


def test_arrays_of_every_type_and_shape_read_back_with_their_types(tmp_path: Path) -> None:
    rng = np.random.default_rng(0)
    shapes = [(1,), (7,), (3, 2), (2, 4, 5, 3)]
    arrays = {
        f"{np.dtype(dtype)}{len(shape)}": (100 * rng.random(shape)).astype(dtype)
        for dtype in DTYPES
        for shape in shapes
    }
    arrays["strided"] = np.arange(24.0).reshape(4, 6).T[::2]
    path = write(tmp_path / "types.hdf5", {"all": {"inner": {"deep": arrays}}})
    with h5py.File(path) as file:
        read = file["all/inner/deep"]
        assert set(read) == set(arrays)
        for name, array in arrays.items():
            assert read[name].dtype == array.dtype and read[name].shape == array.shape
            np.testing.assert_array_equal(read[name][()], array)


@pytest.mark.parametrize("groups", [1, 8, 9, 256, 257, 2500])
def test_any_number_of_groups_can_be_found_listed_and_added_to(tmp_path: Path, groups: int) -> None:
    path = write(tmp_path / "many.hdf5", {f"episode_{i}": {"x": np.full(3, i)} for i in range(groups)})
    with h5py.File(path, "a") as file:
        assert list(file) == sorted(f"episode_{i}" for i in range(groups))
        for i in range(groups):
            assert dict(file[f"episode_{i}"].attrs) == {"id": i, "total_steps": -i}
            assert file[f"episode_{i}/x"][1] == i
        assert "episode_" not in file and "episode_10000" not in file and "a" not in file and "z" not in file
        del file["episode_0"]
        for i in range(groups, groups + 100):
            file[f"episode_{i}/x"] = np.full(3, i)
    with h5py.File(path) as file:
        assert len(file) == groups + 99
        assert all(file[f"episode_{i}/x"][2] == i for i in range(1, groups + 100))


def test_an_unfinished_file_is_refused(tmp_path: Path) -> None:
    with (tmp_path / "broken.hdf5").open("wb") as file:
        HDF5Writer(file).tree({"x": np.zeros(3)})
    with pytest.raises(OSError, match="file signature not found"):
        h5py.File(tmp_path / "broken.hdf5")
