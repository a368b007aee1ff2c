"""Folders of LeRobot, laid out as versions 2.1 and 3.0 of its code do, and written back."""

import io
import json
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from gymnasium import spaces
from PIL import Image

from rltransformers.core.errors import DataError
from rltransformers.data import Trajectories, load_trajectories, write_lerobot
from rltransformers.data.lerobot import FILE_BYTES
from tests.data.coded import LENGTHS, code, coded_episodes, wrong_pairs

pandas = pytest.importorskip("pandas", reason="needs the extra csv")
pa = pytest.importorskip("pyarrow", reason="needs the extra parquet")
parquet = pytest.importorskip("pyarrow.parquet", reason="needs the extra parquet")

DONE = {"next.done": {"dtype": "bool", "shape": [1], "names": None}}
FEATURES: dict[str, Any] = {
    "observation.state": {"dtype": "float32", "shape": [2], "names": ["left", "right"]},
    "action": {"dtype": "float32", "shape": [1], "names": None},
    "next.reward": {"dtype": "float32", "shape": [1], "names": None},
    **DONE,
    "timestamp": {"dtype": "float32", "shape": [1], "names": None},
    **{
        key: {"dtype": "int64", "shape": [1], "names": None}
        for key in ("frame_index", "episode_index", "index", "task_index")
    },
}


def frames(lengths: tuple[int, ...] = LENGTHS) -> list[Any]:
    """A DataFrame per coded episode; done where it terminates; tasks 0, 1, 0, ..."""
    parts = []
    for index, episode in enumerate(coded_episodes(lengths, final=False)):
        length = len(episode["rewards"])
        columns = {"observation.state": list(episode["observations"]), "action": episode["actions"][:, 0]}
        columns |= {"next.reward": episode["rewards"], "next.done": episode["terminations"]}
        columns |= {"timestamp": np.arange(length, dtype=np.float32) / 50, "frame_index": np.arange(length)}
        columns |= {"episode_index": index, "index": np.arange(length) + sum(lengths[:index]), "task_index": index % 2}
        parts.append(pandas.DataFrame(columns))
    return parts


def described(folder: Path, version: str, features: dict[str, Any], episodes: int) -> Path:
    """``meta`` of a folder."""
    (folder / "meta").mkdir(parents=True, exist_ok=True)
    info = {"codebase_version": version, "fps": 50, "features": features, "total_episodes": episodes}
    (folder / "meta" / "info.json").write_text(json.dumps(info | {"robot_type": "aloha"}))
    return folder


def version_2(folder: Path, parts: list[Any], features: dict[str, Any] | None = None) -> Path:
    """A file per episode, tasks as lines of JSON."""
    for index, part in enumerate(parts):
        path = folder / "data" / f"chunk-{index // 3:03d}" / f"episode_{index:06d}.parquet"
        path.parent.mkdir(parents=True, exist_ok=True)
        part.to_parquet(path, index=False)
    described(folder, "v2.1", features or FEATURES, len(parts))
    lines = [json.dumps({"task_index": index, "task": f"walk {index}"}) for index in (1, 0)]
    (folder / "meta" / "tasks.jsonl").write_text("\n".join(lines) + "\n")
    return folder


def version_3(folder: Path, parts: list[Any], features: dict[str, Any] | None = None) -> Path:
    """Two files of many episodes, tasks as the index of a table."""
    (folder / "data" / "chunk-000").mkdir(parents=True)
    for file, some in enumerate((parts[:1], parts[1:])):
        pandas.concat(some).to_parquet(folder / "data" / "chunk-000" / f"file-{file:03d}.parquet", index=False)
    described(folder, "v3.0", features or FEATURES, len(parts))
    tasks = pandas.DataFrame({"task_index": [0, 1]}, index=["walk 0", "walk 1"])
    tasks.to_parquet(folder / "meta" / "tasks.parquet")
    return folder


LAYOUTS = pytest.mark.parametrize("layout", [version_2, version_3])


@LAYOUTS
def test_two_episodes_of_five_and_seven_rows_are_two_episodes(layout: Any, tmp_path: Path) -> None:
    parts = [part.assign(task_index=0) for part in frames((5, 7))]
    data = load_trajectories(layout(tmp_path / "walks", parts))
    assert data.lengths.tolist() == [5, 7] and list(data.observations) == ["state"]
    assert data.rewards.tolist() == [*range(1, 6), *range(11, 18)]
    assert (data.name, data.metadata["tasks"], data.metadata["fps"]) == ("walks", ["walk 0", "walk 1"], 50)


@LAYOUTS
def test_every_frame_keeps_what_belongs_to_it_and_several_tasks_are_a_leaf(layout: Any, tmp_path: Path) -> None:
    folder = layout(tmp_path / "walks", frames())
    data = load_trajectories(folder)
    assert data.observation_space["task"] == spaces.Discrete(2)  # type: ignore[index]
    assert data.observations["task"][data.offsets[:-1] + np.arange(5)].tolist() == [0, 1, 0, 1, 0]
    alone = load_trajectories(folder, observation_leaves=["state"], cache=tmp_path / "cache")
    assert wrong_pairs(unnamed(alone)) == 0 and alone.actions[""].shape == (30, 1)
    assert load_trajectories(folder, columns={"rewards": "timestamp"}).rewards[1] == np.float32(0.02)
    first = load_trajectories(folder, cache=tmp_path / "cache").metadata["tasks"]
    for file in (folder / "meta").glob("tasks.*"):
        file.unlink()
    assert load_trajectories(folder, cache=tmp_path / "cache").metadata["tasks"] != first


def unnamed(data: Trajectories) -> Trajectories:
    """The only leaf of observations without its name."""
    from dataclasses import replace

    (leaf,) = data.observations
    space = data.observation_space[leaf]  # type: ignore[index]
    return replace(data, observations={"": data.observations[leaf]}, observation_space=space)


def test_components_keep_their_names(tmp_path: Path) -> None:
    motors = {"action": {"dtype": "float32", "shape": [1], "names": {"motors": ["gripper"]}}}
    data = load_trajectories(version_3(tmp_path / "walks", frames(), FEATURES | motors))
    assert data.component_names("observations", "state") == ["left", "right"]
    assert data.component_names("actions", "") == ["gripper"]
    write_lerobot(data, tmp_path / "back")
    features = json.loads((tmp_path / "back" / "meta" / "info.json").read_text())["features"]
    assert (features["observation.state"]["names"], features["action"]["names"]) == (["left", "right"], ["gripper"])
    assert features["next.reward"]["names"] is None
    table = {"x": [0.0, 1.0], "v": [2.0, 3.0], "force": [0.5, 1.0], "episode": [0, 0]}
    columns = {"observations": ["x", "v"], "actions": ["force"], "episode": "episode"}
    with pytest.warns(UserWarning, match="has no rewards"):
        write_lerobot(load_trajectories(pa.table(table), columns=columns), tmp_path / "table")
    features = json.loads((tmp_path / "table" / "meta" / "info.json").read_text())["features"]
    assert (features["observation.state"]["names"], features["action"]["names"]) == (["x", "v"], ["force"])
    wrong = {"observation.state": {"dtype": "float32", "shape": [2], "names": ["x"]}}
    odd = load_trajectories(version_3(tmp_path / "odd", frames(), FEATURES | wrong))
    assert odd.component_names("observations", "state") is None


def test_without_rewards_and_flags_the_index_of_episodes_says_all(tmp_path: Path) -> None:
    parts = [part.drop(columns=["next.reward", "next.done"]) for part in frames()]
    with pytest.warns(UserWarning, match="walks: has no rewards"):
        data = load_trajectories(version_3(tmp_path / "walks", parts))
    assert not data.has_rewards and data.lengths.tolist() == list(LENGTHS) and data.truncations.sum() == 5


def test_pictures_are_read_and_films_are_left_out_with_a_word(tmp_path: Path) -> None:
    pictures = [np.full((4, 6, 3), 20 * step, np.uint8) for step in range(12)]
    parts = frames((5, 7))
    for part, rows in zip(parts, (pictures[:5], pictures[5:]), strict=True):
        encoded = []
        for picture in rows:
            Image.fromarray(picture).save(file := io.BytesIO(), "PNG")
            encoded.append({"bytes": file.getvalue(), "path": "frame.png"})
        part["observation.images.top"] = encoded
    film = {"observation.images.wrist": {"dtype": "video", "shape": [4, 6, 3], "names": None}}
    seen = {"observation.images.top": {"dtype": "image", "shape": [4, 6, 3], "names": None}}
    folder = version_2(tmp_path / "walks", parts, FEATURES | seen | film)
    with pytest.warns(UserWarning, match=r"films are not read: \['observation.images.wrist'\]"):
        data = load_trajectories(folder, observation_leaves=["images/top"])
    np.testing.assert_array_equal(data.episode(1).observations["images/top"][:-1], pictures[5:])
    write_lerobot(data, tmp_path / "back")
    back = load_trajectories(tmp_path / "back")
    np.testing.assert_array_equal(back.observations["images/top"], data.observations["images/top"])
    statistics = json.loads((tmp_path / "back" / "meta" / "stats.json").read_text())["observation.images.top"]
    assert statistics["max"] == [[[220 / 255]]] * 3 and statistics["count"] == [12]


def film_of(path: Path, pictures: Any) -> None:
    """The pictures as a film of 50 frames per second."""
    package = pytest.importorskip("imageio_ffmpeg", reason="needs the extra video")
    path.parent.mkdir(parents=True, exist_ok=True)
    writer = package.write_frames(path, pictures[0].shape[1::-1], fps=50)
    next(writer)
    for picture in pictures:
        writer.send(picture)
    writer.close()


@pytest.mark.filterwarnings("ignore::ResourceWarning", "ignore::pytest.PytestUnraisableExceptionWarning")  # of ffmpeg
@LAYOUTS
def test_films_are_decoded_where_they_are_asked_for(layout: Any, tmp_path: Path) -> None:
    key, pictures = "observation.images.top", [np.full((32, 48, 3), 20 * step, np.uint8) for step in range(12)]
    film = {key: {"dtype": "video", "shape": [32, 48, 3], "names": ["height", "width", "channels"]}}
    folder = layout(tmp_path / "walks", frames((5, 7)), FEATURES | film)
    info = json.loads((folder / "meta" / "info.json").read_text())
    if layout is version_2:
        info |= {"video_path": "videos/c-{episode_chunk:03d}/{video_key}/e-{episode_index:06d}.mp4", "chunks_size": 1}
        film_of(folder / f"videos/c-000/{key}/e-000000.mp4", pictures[:5])
        film_of(last := folder / f"videos/c-001/{key}/e-000001.mp4", pictures[5:])
    else:
        info["video_path"] = "videos/{video_key}/c-{chunk_index:03d}/f-{file_index:03d}.mp4"
        film_of(last := folder / f"videos/{key}/c-000/f-000.mp4", pictures)
        begins: dict[str, Any] = {f"videos/{key}/chunk_index": [0, 0], f"videos/{key}/file_index": [0, 0]}
        begins |= {"episode_index": [0, 1], f"videos/{key}/from_timestamp": [0.0, 5 / 50]}
        (folder / "meta" / "episodes").mkdir()
        parquet.write_table(pa.table(begins), folder / "meta" / "episodes" / "file-000.parquet")
    (folder / "meta" / "info.json").write_text(json.dumps(info))
    data = load_trajectories(folder, observation_leaves=["state", "images/top"])
    for episode, steps in ((0, range(5)), (1, range(5, 12))):
        means = data.episode(episode).observations["images/top"][:-1].mean((1, 2, 3))
        np.testing.assert_allclose(means, [20 * step for step in steps], atol=4)  # films lose a little
    with pytest.warns(UserWarning, match=r"films are not read: .* with \['images/top'\] decodes these"):
        assert "images/top" not in load_trajectories(folder).observations
    parts = [part.drop(columns="frame_index") for part in frames((5, 7))]
    unnumbered = version_2(tmp_path / "unnumbered", parts, FEATURES | film)
    with pytest.raises(DataError, match="films are found by 'episode_index' and 'frame_index'; leave"):
        load_trajectories(unnumbered, observation_leaves=["images/top"])
    film_of(last, pictures[:3])
    with pytest.raises(DataError, match="ends before its frame 3; download"):
        load_trajectories(folder, observation_leaves=["images/top"])
    last.write_bytes(b"no film")
    with pytest.raises(DataError, match="is no film that can be read"):
        load_trajectories(folder, observation_leaves=["images/top"])
    (folder / "meta" / "info.json").write_text(json.dumps(info | {"video_path": "../outside.mp4"}))
    with pytest.raises(DataError, match="lies outside of"):
        load_trajectories(folder, observation_leaves=["images/top"])


@pytest.mark.parametrize("file_bytes", [FILE_BYTES, 400])
def test_what_is_written_is_read_back(file_bytes: int, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("rltransformers.data.lerobot.FILE_BYTES", file_bytes)
    monkeypatch.setattr("rltransformers.data.lerobot.FILES_PER_CHUNK", 2)
    data = load_trajectories(coded_episodes(final=False))
    folder = write_lerobot(data, tmp_path / "walks", fps=20, task="walk", robot_type="biped")
    assert wrong_pairs(unnamed(load_trajectories(folder))) == 0
    tables = sorted((folder / "data").glob("*/*.parquet"))
    assert len(tables) == (1 if file_bytes == FILE_BYTES else 4)
    rows = parquet.read_table(folder / "meta" / "episodes" / "chunk-000" / "file-000.parquet").to_pylist()
    for index, row in enumerate(rows):
        path = f"data/chunk-{row['data/chunk_index']:03d}/file-{row['data/file_index']:03d}.parquet"
        frame = parquet.read_table(folder / path).to_pandas()
        frame = frame[frame["episode_index"] == index]
        np.testing.assert_array_equal(
            np.stack(frame["observation.state"])[:, 0], code(index, np.arange(LENGTHS[index]))
        )
        assert (row["length"], row["tasks"]) == (LENGTHS[index], ["walk"])
        assert frame["index"].tolist() == list(range(row["dataset_from_index"], row["dataset_to_index"]))
    np.testing.assert_allclose(frame["timestamp"], np.arange(12) / 20, rtol=1e-6)
    info = json.loads((folder / "meta" / "info.json").read_text())
    assert (info["total_frames"], info["fps"], info["robot_type"]) == (30, 20, "biped")
    assert info["features"]["observation.state"] == {"dtype": "float32", "shape": [2], "names": None}


def test_tasks_leaves_classes_and_missing_rewards_survive_a_round_trip(tmp_path: Path) -> None:
    data = load_trajectories(version_2(tmp_path / "walks", frames()))
    write_lerobot(data, tmp_path / "back")
    again = load_trajectories(tmp_path / "back")
    assert again.fingerprint() == data.fingerprint() and again.metadata["tasks"] == data.metadata["tasks"]
    rows = [
        {"observations": {"arm": {"x": np.arange(4.0)}, "turn": np.arange(4) % 3}, "actions": np.arange(4) % 2}
        | {"rewards": np.ones(4), "terminations": True, "truncations": True}
    ] * 2
    nested = load_trajectories(rows)
    write_lerobot(nested, tmp_path / "nested")
    known: Any = {"observation_space": nested.observation_space, "action_space": nested.action_space}
    assert load_trajectories(tmp_path / "nested", **known).fingerprint() == nested.fingerprint()
    steps = {"obs": [0.0, 1.0], "action": [[0.0], [0.5]], "episode": [0, 0], "step": [0, 1]}
    with pytest.warns(UserWarning, match="has no rewards"):
        silent = load_trajectories(pa.table(steps), columns={"episode": "episode", "step": "step"})
        assert not load_trajectories(write_lerobot(silent, tmp_path / "silent")).has_rewards


def test_texts_of_tasks_are_found_beside_other_columns(tmp_path: Path) -> None:
    folder = version_3(tmp_path / "walks", frames())
    tasks = pandas.DataFrame({"level": [3, 4], "task_index": [1, 0]}, index=["walk 1", "walk 0"])
    for table in (tasks, tasks.rename_axis("task"), tasks.rename_axis("task").reset_index()):
        table.to_parquet(folder / "meta" / "tasks.parquet")
        assert load_trajectories(folder).metadata["tasks"] == ["walk 0", "walk 1"]


def test_a_leaf_of_tasks_is_an_observation_where_a_text_stands_for_all(tmp_path: Path) -> None:
    data = load_trajectories(version_2(tmp_path / "walks", frames()))
    again = load_trajectories(write_lerobot(data, tmp_path / "back", task="walk"))
    assert again.metadata["tasks"] == ["walk"] and list(again.observations) == list(data.observations)


def test_what_is_wrong_is_named(tmp_path: Path) -> None:
    data = load_trajectories(coded_episodes())
    folder = write_lerobot(data, tmp_path / "walks")
    with pytest.raises(DataError, match="exists; pass overwrite=True or another folder"):
        write_lerobot(data, folder)
    write_lerobot(data, folder, overwrite=True)
    (tmp_path / "other").mkdir()
    with pytest.raises(DataError, match="exists; choose another folder"):
        write_lerobot(data, tmp_path / "other", overwrite=True)
    described(folder, "v3.0", FEATURES, 9)
    with pytest.warns(UserWarning, match="counts 9 episodes, the files hold 5"):
        load_trajectories(folder)
    (folder / "meta" / "info.json").write_text('{"codebase_version": "v1.6"}')
    with pytest.raises(DataError, match="lists no features; lerobot's converters"):
        load_trajectories(folder)
    (folder / "data" / "chunk-000" / "file-000.parquet").write_bytes(b"PAR1")
    described(folder, "v3.0", FEATURES, 5)
    with pytest.raises(DataError, match="is truncated or no table"):
        load_trajectories(folder)
    (folder / "data" / "chunk-000" / "file-000.parquet").unlink()
    with pytest.raises(DataError, match=r"holds no \.parquet file"):
        load_trajectories(folder)
