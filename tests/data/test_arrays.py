"""Flat arrays in ``.npz`` files, and D4RL ids: what is read is what was written, and what is wrong is named."""

import io
import tracemalloc
import zipfile
from pathlib import Path
from typing import Any

import h5py
import numpy as np
import pytest
from gymnasium import spaces

from rltransformers.core.errors import ConfigError, DataError
from rltransformers.data import load_trajectories, write_minari
from rltransformers.data.d4rl import D4RL_FILES, reference_scores
from tests.data.coded import LENGTHS, coded_episodes, flat, wrong_pairs

D3RLPY = ("observations", "actions", "rewards", "terminals", "timeouts")
GYMNASIUM = ("obs", "acts", "rews", "terminated", "truncated")


def written(folder: Path, arrays: dict[str, Any], name: str = "flat.npz") -> Path:
    """The arrays as ``numpy.savez`` writes them."""
    np.savez(folder / name, **arrays)
    return folder / name


@pytest.mark.parametrize("names", [D3RLPY, GYMNASIUM])
@pytest.mark.parametrize("following", [True, False])
@pytest.mark.parametrize("save", [np.savez, np.savez_compressed])
def test_flat_arrays_become_the_episodes_they_are_made_of(
    names: tuple[str, ...], following: bool, save: Any, tmp_path: Path
) -> None:
    arrays = flat(coded_episodes(), next_observations=following)
    renamed = {dict(zip(D3RLPY, names, strict=True)).get(key, key): value for key, value in arrays.items()}
    save(tmp_path / "flat.npz", **renamed)
    data = load_trajectories(tmp_path / "flat.npz")
    assert wrong_pairs(data) == 0 and data.final_observations == following
    assert (data.name, data.metadata["format"]) == ("flat", "npz")


@pytest.mark.parametrize("save", [np.savez, np.savez_compressed])
@pytest.mark.parametrize("guessed", [True, False])
def test_large_arrays_pass_into_a_cache_in_pieces(
    save: Any, guessed: bool, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    rows, piece = np.random.default_rng(0).normal(size=(1000, 1024)).astype(np.float32), 2**17
    ends = np.arange(1000) % 10 == 9
    following = np.concatenate([rows[1:], rows[:1]])
    arrays = {"observations": rows, "actions": np.tanh(rows), "rewards": rows[:, 0], "terminals": ends}
    save(tmp_path / "large.npz", **arrays, next_observations=following)
    for module in ("spaces", "arrays"):
        monkeypatch.setattr(f"rltransformers.data.{module}.CHUNK_BYTES", piece)
    box = spaces.Box(-1, 1, (1024,))
    given: dict[str, Any] = {} if guessed else {"action_space": box, "observation_space": box}
    tracemalloc.start()
    try:
        data = load_trajectories(tmp_path / "large.npz", cache=tmp_path / "cache", **given)
        _, peak = tracemalloc.get_traced_memory()  # without what is mapped
    finally:
        tracemalloc.stop()
    assert peak < rows.nbytes / 4 and peak < 10 * piece
    np.testing.assert_array_equal(data.episode(3).observations[""], following[29:40])
    np.testing.assert_array_equal(data.actions[""], np.tanh(rows))


def test_nested_leaves_are_arrays_named_by_their_paths(tmp_path: Path) -> None:
    arrays = flat(coded_episodes())
    for kind in ("observations", "next_observations"):
        rows = arrays.pop(kind)
        arrays |= {f"{kind}/arm/joints": rows, f"{kind}/turn": np.zeros(len(rows), np.int64)}
    data = load_trajectories(written(tmp_path, arrays), observation_leaves=["arm/joints"])
    plain = load_trajectories(coded_episodes())
    np.testing.assert_array_equal(data.observations["arm/joints"], plain.observations[""])
    with pytest.raises(DataError, match="holds both 'observations' and leaves below it"):
        load_trajectories(written(tmp_path, arrays | {"observations": np.zeros((30, 2))}))


def test_options_and_cache_apply_to_files_of_arrays(tmp_path: Path) -> None:
    cut = load_trajectories(written(tmp_path, flat(coded_episodes((4, 4, 3)), timeouts=False)), time_limit=4)
    assert tuple(cut.lengths) == (4, 4, 3)
    arrays = flat(coded_episodes())
    arrays["timeouts"][:-1] = False  # not every reset is marked
    path = written(tmp_path, arrays)
    with pytest.warns(UserWarning, match="pass split_on_discontinuity=True"):
        assert len(load_trajectories(path)) < len(LENGTHS)
    split = load_trajectories(path, split_on_discontinuity=True, cache=tmp_path / "cache")
    assert tuple(split.lengths) == LENGTHS and isinstance(split.rewards, np.memmap)
    assert wrong_pairs(load_trajectories(path, split_on_discontinuity=True, cache=tmp_path / "cache")) == 0
    assert len(list((tmp_path / "cache").glob("trajectories-*"))) == 1


@pytest.mark.parametrize("key", ["observations", "actions", "rewards", "terminals"])
def test_an_absent_array_and_one_of_another_length_are_named(key: str, tmp_path: Path) -> None:
    arrays = flat(coded_episodes())
    short = written(tmp_path, arrays | {key: arrays[key][:-1]}, "short.npz")
    with pytest.raises(DataError, match=r"has (29|30) rows for (29|30) steps"):
        load_trajectories(short)
    del arrays[key]
    if key == "rewards":
        return
    with pytest.raises(DataError, match=rf"absent lacks '{key}'; present: |absent: the key '{key}' is missing"):
        load_trajectories(written(tmp_path, arrays, "absent.npz"))


def test_what_is_wrong_in_a_file_of_arrays_is_named(tmp_path: Path) -> None:
    arrays = flat(coded_episodes())
    rewards = arrays["rewards"].copy()
    rewards[8] = np.nan
    with pytest.raises(DataError, match="rewards of episode 2, step 2 is nan"):
        load_trajectories(written(tmp_path, arrays | {"rewards": rewards}))
    with pytest.raises(DataError, match=r"unknown key 'terminalz'.*did you mean"):
        load_trajectories(written(tmp_path, arrays | {"terminalz": arrays["terminals"]}))
    with pytest.raises(DataError, match="'dones', which does not tell"):
        load_trajectories(written(tmp_path, arrays | {"dones": arrays["terminals"]}))
    with pytest.raises(DataError, match="actions holds pickled objects, which are not read"):
        load_trajectories(written(tmp_path, arrays | {"actions": np.array([None] * 30)}))
    with pytest.raises(ConfigError, match="pickle"):
        (tmp_path / "arrays.pkl").write_bytes(b"")
        load_trajectories(tmp_path / "arrays.pkl")


def test_files_that_are_cut_foreign_or_lie_about_their_size_are_named(tmp_path: Path) -> None:
    whole = written(tmp_path, flat(coded_episodes())).read_bytes()
    for name, content in (("half", whole[: len(whole) // 2]), ("text", b"hello"), ("nothing", b"")):
        (tmp_path / f"{name}.npz").write_bytes(content)
        with pytest.raises(DataError, match=rf"{name}\.npz is truncated or no \.npz file"):
            load_trajectories(tmp_path / f"{name}.npz")
    header = io.BytesIO()
    description = {"descr": "<f8", "fortran_order": False, "shape": (10**12,)}
    np.lib.format.write_array_header_1_0(header, description)
    with zipfile.ZipFile(tmp_path / "large.npz", "w", zipfile.ZIP_DEFLATED) as archive:
        archive.writestr("rewards.npy", header.getvalue())
    with pytest.raises(DataError, match=r"rewards states the shape \(1000000000000,\)"):
        load_trajectories(tmp_path / "large.npz")
    with zipfile.ZipFile(tmp_path / "other.npz", "w") as archive:
        archive.writestr("readme.txt", "hello")
    with pytest.raises(DataError, match=r"'readme\.txt' is no array"):
        load_trajectories(tmp_path / "other.npz")


@pytest.mark.parametrize("save", [np.savez, np.savez_compressed])
def test_damage_inside_a_large_array_is_found_and_leaves_no_copy(
    save: Any, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    for module in ("spaces", "arrays"):
        monkeypatch.setattr(f"rltransformers.data.{module}.CHUNK_BYTES", 64)
    path, cache = tmp_path / "flat.npz", tmp_path / "cache"
    save(path, **flat(coded_episodes((700, 800))))
    assert wrong_pairs(load_trajectories(path), (700, 800)) == 0
    with zipfile.ZipFile(path) as archive:
        first = archive.infolist()[0]
    content = bytearray(path.read_bytes())
    content[first.header_offset + first.compress_size] ^= 255  # near its end, as the header stands in front
    path.write_bytes(content)

    def seek(*_: Any) -> None:
        pytest.fail("Python 3.12 and newer compare no checksum of an array in which they seek")

    monkeypatch.setattr(zipfile.ZipExtFile, "seek", seek)
    for options in ({}, {"cache": cache}):
        with pytest.raises(DataError, match=r"flat\.npz is truncated or no \.npz file"):
            load_trajectories(path, **options)  # type: ignore[arg-type]
    assert not list(cache.glob("*trajectories*"))


# D4RL ids ------------------------------------------------------------


def d4rl_set(folder: Path, file: str) -> None:
    """A file as d4rl keeps it."""
    folder.mkdir(parents=True, exist_ok=True)
    with h5py.File(folder / file, "w") as opened:
        for key, value in flat(coded_episodes()).items():
            opened[key] = value


@pytest.mark.parametrize(
    ("name", "file"),
    [
        ("hopper-medium-v2", "hopper_medium-v2.hdf5"),
        ("walker2d-medium-replay-v2", "walker2d_medium_replay-v2.hdf5"),
        ("walker2d-medium-replay-v0", "walker_mixed.hdf5"),
        ("pen-human-v1", "pen-human-v1.hdf5"),
        ("antmaze-large-play-v2", "Ant_maze_hardest-maze_noisy_multistart_True_multigoal_False_sparse_fixed.hdf5"),
        ("maze2d-umaze-v1", "maze2d-umaze-sparse-v1.hdf5"),
        ("kitchen-complete-v0", "mini_kitchen_microwave_kettle_light_slider-v0.hdf5"),
    ],
)
def test_an_id_of_d4rl_is_the_file_that_d4rl_keeps(
    name: str, file: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("HOME", str(tmp_path))
    monkeypatch.delenv("D4RL_DATASET_DIR", raising=False)
    monkeypatch.setattr("socket.socket", None)  # nothing may even try the network
    with pytest.raises(DataError, match=rf"'{name}' is not on this machine: there is no file .*{file}; download it"):
        load_trajectories(name)
    d4rl_set(tmp_path / ".d4rl" / "datasets", file)
    data = load_trajectories(name)
    assert wrong_pairs(data) == 0 and data.name == name
    monkeypatch.setenv("D4RL_DATASET_DIR", str(tmp_path / "mine"))
    with pytest.raises(DataError, match="mine"):
        load_trajectories(name)
    d4rl_set(tmp_path / "mine", file)
    assert wrong_pairs(load_trajectories(name)) == 0


def test_a_minari_set_of_the_same_name_is_found_too(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("D4RL_DATASET_DIR", str(tmp_path))
    write_minari(load_trajectories(coded_episodes()), "hopper-medium-v2")
    assert load_trajectories("hopper-medium-v2").metadata["format"] == "minari"


def test_every_id_of_d4rl_has_reference_scores() -> None:
    assert [name for name in D4RL_FILES if reference_scores(name) is None] == []
