"""The HDF5 library reads what the writer wrote, and goes on writing into it."""

import json
from collections.abc import Callable
from pathlib import Path
from typing import Any

import h5py
import numpy as np
import pytest

from rltransformers.core.errors import DataError
from rltransformers.data import load_trajectories
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


ROWS = 12
SECRET = "secret.hdf5"


def external_storage(file: Any, key: str, array: Any) -> None:
    np.ascontiguousarray(array).tofile("values.bin")
    file.create_dataset(key, array.shape, array.dtype, external=[("values.bin", 0, array.nbytes)])


def virtual(file: Any, key: str, array: Any) -> None:
    layout = h5py.VirtualLayout(array.shape, array.dtype)
    layout[...] = h5py.VirtualSource(SECRET, "values", array.shape)
    file.create_virtual_dataset(key, layout)


def soft_link(file: Any, key: str, array: Any) -> None:
    file[f"hidden_{key.replace('/', '_')}"] = array
    file[key] = h5py.SoftLink(f"/hidden_{key.replace('/', '_')}")


def unbounded(file: Any, key: str, array: Any) -> None:
    file.create_dataset(key, (10**12, *array.shape[1:]), array.dtype)


def wide_chunk(file: Any, key: str, array: Any) -> None:
    """Not written to, for a chunk takes its place in the file as a whole."""
    shape = array.shape[1:]
    file.create_dataset(key, array.shape, array.dtype, chunks=(2**27, *shape), maxshape=(None, *shape))


FOREIGN: dict[str, tuple[Callable[[Any, str, Any], None], str]] = {
    "external link": (lambda file, key, _: file.__setitem__(key, h5py.ExternalLink(SECRET, "values")), "is a link"),
    "soft link": (soft_link, "is a link"),
    "external storage": (external_storage, "has its values in other files"),
    "virtual": (virtual, "has its values in other files"),
    "shape without values": (unbounded, "states .* bytes and stores 0"),
    "chunk": (wide_chunk, "states .* bytes and stores"),
}


def arrays() -> dict[str, Any]:
    ends = np.arange(ROWS) % 4 == 3
    rng = np.random.default_rng(0)
    return {
        "observations": rng.random((ROWS, 3)).astype(np.float32),
        "actions": rng.random((ROWS, 2)).astype(np.float32),
        "rewards": rng.random(ROWS).astype(np.float32),
        "terminals": ends,
        "timeouts": np.zeros(ROWS, bool),
    }


@pytest.mark.parametrize("key", ["observations", "rewards"])
@pytest.mark.parametrize("kind", FOREIGN)
def test_a_d4rl_file_is_read_for_what_lies_in_it(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, kind: str, key: str
) -> None:
    monkeypatch.chdir(tmp_path)
    store, message = FOREIGN[kind]
    values = arrays()
    with h5py.File(SECRET, "w") as file:
        file["values"] = values[key]
    for name in ("whole.hdf5", "foreign.hdf5"):
        with h5py.File(name, "w") as file:
            for each, array in values.items():
                store(file, each, array) if (name, each) == ("foreign.hdf5", key) else file.create_dataset(
                    each, data=array
                )
    assert load_trajectories("whole.hdf5").steps == ROWS
    with pytest.raises(DataError, match=f"foreign.hdf5: '{key}' {message}"):
        load_trajectories("foreign.hdf5")


@pytest.mark.parametrize("kind", FOREIGN)
def test_a_minari_set_is_read_for_what_lies_in_it(tmp_path: Path, monkeypatch: pytest.MonkeyPatch, kind: str) -> None:
    monkeypatch.chdir(tmp_path)
    store, message = FOREIGN[kind]
    with h5py.File(SECRET, "w") as file:
        file["values"] = np.zeros((5, 3), np.float32)
    box = {"type": "Box", "dtype": "float32", "shape": [3], "low": [0.0] * 3, "high": [1.0] * 3}
    facts: dict[str, Any] = {
        "observation_space": json.dumps(box),
        "action_space": json.dumps(box),
        "data_format": "hdf5",
    }
    facts |= {"total_episodes": 1, "total_steps": 4, "dataset_id": "x/y-v0", "minari_version": "0.5.4"}
    Path("set/data").mkdir(parents=True)
    Path("set/data/metadata.json").write_text(json.dumps(facts))
    for foreign in (False, True):
        with h5py.File("set/data/main_data.hdf5", "w") as file:
            group = file.create_group("episode_0")
            group.attrs["id"], group.attrs["total_steps"] = 0, 4
            for name, rows in (("actions", 4), ("rewards", 4), ("terminations", 4), ("truncations", 4)):
                group[name] = np.zeros((rows, 3) if name == "actions" else rows, bool if name[0] == "t" else np.float32)
            seen = np.zeros((5, 3), np.float32)
            store(file, "episode_0/observations", seen) if foreign else group.create_dataset("observations", data=seen)
        if not foreign:
            assert load_trajectories("set").steps == 4
    with pytest.raises(DataError, match=message):
        load_trajectories("set")


def test_a_group_that_holds_itself_ends(tmp_path: Path) -> None:
    with h5py.File(tmp_path / "round.hdf5", "w") as file:
        for each, array in arrays().items():
            file[each] = array
        file["infos"] = file["/"]
    assert load_trajectories(tmp_path / "round.hdf5").steps == ROWS
    with h5py.File(tmp_path / "round.hdf5", "a") as file:
        group = file.create_group("observation")
        group["self"] = group
    with pytest.raises(DataError, match="the group '/observation' has several names"):
        load_trajectories(tmp_path / "round.hdf5")


def test_well_compressed_data_are_read(tmp_path: Path) -> None:
    """200,000 rows of zeros compress by a factor of about 1,000, those never written to take no bytes at all."""
    rows = 200_000
    with h5py.File(tmp_path / "zeros.hdf5", "w") as file:
        for each, array in arrays().items():
            shape = (rows, *array.shape[1:])
            if each != "timeouts":
                file.create_dataset(each, data=np.zeros(shape, array.dtype), compression="gzip", chunks=True)
        file.create_dataset("timeouts", (rows,), bool, chunks=True)
    assert load_trajectories(tmp_path / "zeros.hdf5").steps == rows
