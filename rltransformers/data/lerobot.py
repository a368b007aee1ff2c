"""Folders of LeRobot (https://github.com/huggingface/lerobot), versions 2 and 3 of its layout, as trajectories.

``meta/info.json`` describes the columns ("features") of ``data/**/*.parquet``, which have a row per step ("frame"):
version 2 has a file per episode, version 3 many episodes in a file. Axis letters: N rows, E episodes.
"""

import io
import json
import os
import warnings
from collections.abc import Iterator, Mapping
from dataclasses import replace
from pathlib import Path
from typing import Annotated, Any

import numpy as np
from annotated_types import Gt
from gymnasium import spaces
from PIL import Image

from rltransformers.core.errors import DataError, require
from rltransformers.core.files import read_json, replacing_folder
from rltransformers.core.ranges import check
from rltransformers.core.spaces import leaf_spaces
from rltransformers.core.values import Array
from rltransformers.data.checks import damage, leaf_name
from rltransformers.data.columns import NESTED, value_or_error
from rltransformers.data.films import read_frames
from rltransformers.data.spaces import Options
from rltransformers.data.steps import trajectories_from_steps
from rltransformers.data.tables import column_values, file_batches
from rltransformers.data.trajectories import Trajectories

INFO = Path("meta") / "info.json"
VERSION = "v3.0"
FILE_BYTES = 100 * 2**20
"""Bytes of numbers after which the next episode begins a new file."""
FILES_PER_CHUNK = 1000
_OF_ROWS = ("episode_index", "frame_index")
_OTHERS = {"rewards": "next.reward", "dones": "next.done", "episode": "episode_index", "step": "frame_index"}
_OTHERS |= {"terminations": "next.terminated", "truncations": "next.truncated"}
_OBSERVATION = "observation."


def is_lerobot(path: Path) -> bool:
    """Whether a path names a folder of LeRobot."""
    return (path / INFO).is_file() and (path / "data").is_dir()


def lerobot_files(path: str | os.PathLike[str]) -> list[Path]:
    """The files of such a folder: descriptions, tables and films."""
    parts = (Path(path).expanduser() / part for part in ("meta", "data", "videos"))
    return [file for part in parts for file in sorted(part.rglob("*")) if file.is_file()]


def read_lerobot(path: str | os.PathLike[str], options: Options) -> Trajectories:
    """Read a folder of LeRobot; episodes are what shares an ``episode_index``.

    Leaves of the observations are the features "observation.<leaf>", images among them; what lies in video files is
    decoded where ``observation_leaves`` names it, else left out with a warning. Tasks are texts: they are kept in the
    metadata, and where there are several, their number is the leaf "task".
    """
    folder = Path(path).expanduser()
    files = sorted((folder / "data").glob("**/*.parquet"))
    if not files:
        raise DataError(f"{folder / 'data'} holds no .parquet file; download the data set again, or all of it")
    info = read_json(info_file := folder / INFO, DataError, "download the data set again")
    features = info.get("features") if isinstance(info, dict) else None
    if not isinstance(features, dict) or not all(isinstance(feature, dict) for feature in features.values()):
        raise DataError(f"{info_file} lists no features; lerobot's converters bring older data sets to version 2 or 3")
    batches = [batch for batch in file_batches(files) if batch.num_rows]
    if not batches:
        raise DataError(f"{folder} holds no rows; nothing can be learned from it")
    name = options.name or folder.name
    with damage(f"{folder / 'data'}: its files have different columns", "download the data set again"):
        table = require("pyarrow", "parquet").Table.from_batches(batches)
    columns: dict[str, Any] = {}
    for key in table.column_names:
        kind, column = features.get(key, {}).get("dtype"), table.column(key).combine_chunks()
        if kind == "image":
            columns[key] = _pictures(column, f"{name}: {key}")
        elif kind not in ("string", "language", None):
            columns[key] = value_or_error(column_values, column, f"{name}: {key}")
    films = [key for key, feature in features.items() if feature.get("dtype") == "video"]
    for key in films:
        if _leaf(key) in (options.observation_leaves or ()):
            numbers = [columns[index] for index in _OF_ROWS if isinstance(columns.get(index), np.ndarray)]
            if len(numbers) < 2:
                raise DataError(f"{name}: films are found by 'episode_index' and 'frame_index'; leave {key!r} out")
            columns[key] = read_frames(folder, info, key, *numbers)
    if unread := {key: _leaf(key) for key in films if key not in columns}:
        warnings.warn(
            f"{name}: films are not read: {list(unread)}; the other features are, and observation_leaves=[...] with "
            f"{list(unread.values())} decodes these into memory",
            stacklevel=2,
        )
    known = {role: key for role, key in _OTHERS.items() if key in columns} | _leaves(columns, features)
    tasks = _tasks(folder)
    if "task_index" in columns and "observations" in known and np.ptp(columns["task_index"]) > 0:
        known["observations"]["task"] = "task_index"
    data = trajectories_from_steps(columns, options, name, "lerobot", known)
    if info.get("total_episodes", len(data)) != len(data):
        warnings.warn(
            f"{name}: {INFO} counts {info['total_episodes']} episodes, the files hold {len(data)}; download the others "
            "where they are missing",
            stacklevel=2,
        )
    names = {kind: _names(features, columns) for kind, columns in data.metadata["columns"].items() if kind in NESTED}
    facts = {"tasks": tasks, **{key: info[key] for key in ("fps", "robot_type") if info.get(key) is not None}}
    facts["names"] = {kind: leaves for kind, leaves in names.items() if leaves}
    return replace(data, metadata=dict(data.metadata) | facts, verify=False)


def _leaves(columns: Mapping[str, Any], features: Mapping[str, Any]) -> dict[str, Any]:
    """Columns of observations by leaf and of actions; a feature of shape [1] is stored as a number."""

    def column(key: str) -> Any:
        values, is_one = columns[key], features[key].get("shape") == [1]
        single = is_one and isinstance(values, np.ndarray) and values.ndim == 1 and values.dtype.kind == "f"
        return [key] if single else key

    names = {key: key.removeprefix(_OBSERVATION) for key in columns if key.startswith(_OBSERVATION)}
    paths = {key: _leaf(key) for key in names}
    if any(longer.startswith(f"{path}/") for path in paths.values() for longer in paths.values()):
        paths = {key: leaf.replace(".", "_") for key, leaf in names.items()}  # one leaf is not below another
    known: dict[str, Any] = {"observations": {path: column(key) for key, path in paths.items()}} if paths else {}
    return known | ({"actions": column("action")} if "action" in columns else {})


def _leaf(key: str) -> str:
    """The path of the leaf that a feature of observations is."""
    return key.removeprefix(_OBSERVATION).replace(".", "/")


def _names(features: Mapping[str, Any], value: Any) -> dict[str, list[str]]:
    """Leaf path → names of its components, as far as the features of what ``columns`` says list them."""
    parts = value if isinstance(value, Mapping) else {"": value}
    listed = {}
    for path, key in parts.items():
        feature = features.get(key if isinstance(key, str) else key[0], {})
        names, shape = feature.get("names"), feature.get("shape") or []
        if isinstance(names, dict) and len(names) == 1:  # {"motors": ["shoulder", "elbow"]}
            (names,) = names.values()
        if isinstance(names, list) and [len(names)] == list(shape) and all(isinstance(name, str) for name in names):
            listed[path] = names
    return listed


def _pictures(column: Any, where: str) -> Array:
    """Images [N, height, width, 3] of encoded ones, which are stored as {bytes, path}."""
    files = [(value or {}).get("bytes") or b"" for value in column.to_pylist()]
    with damage(f"{where} holds no pictures in the table", "download the data set again"):
        return np.stack([np.asarray(Image.open(io.BytesIO(content)).convert("RGB")) for content in files])


def _tasks(folder: Path) -> list[str]:
    """The texts of tasks by their number; none where no file lists them."""
    lines, table = folder / "meta" / "tasks.jsonl", folder / "meta" / "tasks.parquet"
    if lines.is_file():
        with damage(f"{lines} is damaged", "download the data set again"):
            rows = [json.loads(line) for line in lines.read_text(encoding="utf-8").splitlines() if line.strip()]
            return [row["task"] for row in sorted(rows, key=lambda row: row["task_index"])]
    if not table.is_file():
        return []
    with damage(f"{table} is damaged", "download the data set again"):
        (batch,) = (
            require("pyarrow", "parquet").Table.from_batches(list(file_batches([table]))).combine_chunks().to_batches()
        )
        others = [name for name in batch.schema.names if name != "task_index"]
        text = next((name for name in ("task", "__index_level_0__") if name in others), others[0])
        columns = (batch.column(name).to_pylist() for name in ("task_index", text))
        return [str(text) for _, text in sorted(zip(*columns, strict=True))]


def write_lerobot(
    data: Trajectories,
    folder: str | os.PathLike[str],
    *,
    fps: float | None = None,
    task: str | None = None,
    robot_type: str | None = None,
    overwrite: bool = False,
) -> Path:
    """Write a folder in version 3 of LeRobot's layout, all or nothing; return it.

    An unnamed observation is the feature "observation.state", a leaf "a/b" "observation.a.b"; pictures are stored as
    PNG. Ends are "next.done", and "next.terminated" and "next.truncated" beside it. The layout has no place for the
    observation after the last action.

    Args:
        fps: steps per second, for timestamps; None: those that the data were read with, else 30.
        task: what the episodes show, in words; None: what the data were read with, else their name.
        robot_type: as LeRobot calls the robot; None: what the data were read with.

    Raises:
        DataError: when ``folder`` exists and ``overwrite`` is False or it is none of LeRobot's, and for actions that
            are nested.
        MissingExtraError: without pandas and pyarrow.
    """
    target, stored = Path(folder), data.metadata
    rate = check(stored.get("fps", 30) if fps is None else fps, Annotated[float, Gt(0)], "fps")
    if target.exists() and not (overwrite and is_lerobot(target)):
        way_out = "choose another folder" if not is_lerobot(target) else "pass overwrite=True or another folder"
        raise DataError(f"{target} exists; {way_out}")
    if list(data.actions) != [""]:
        raise DataError(
            f"{data.name}: LeRobot stores one array of actions, and these have the leaves {list(data.actions)}"
        )
    tasks, of_steps = _tasks_of(data, task)
    columns = _columns_of(data, rate, of_steps, numbered=len(tasks) > 1)
    names = {_feature_name(path): data.component_names("observations", path) for path in data.observations}
    names["action"] = data.component_names("actions", "")
    features = {key: _feature(values, names.get(key)) for key, values in columns.items()}
    info = {"codebase_version": VERSION, "robot_type": robot_type or stored.get("robot_type")}
    info |= {"total_episodes": len(data), "total_frames": data.steps, "total_tasks": len(tasks)}
    info |= {
        "chunks_size": FILES_PER_CHUNK,
        "data_files_size_in_mb": FILE_BYTES // 2**20,
        "video_files_size_in_mb": 200,
    }
    info |= {"fps": int(rate) if rate == int(rate) else rate, "splits": {"train": f"0:{len(data)}"}}
    info |= {"data_path": "data/chunk-{chunk_index:03d}/file-{file_index:03d}.parquet", "video_path": None}
    with replacing_folder(target) as temporary:
        _write_tables(data, temporary, columns, tasks, of_steps)
        statistics = {key: _statistics(values) for key, values in columns.items()}
        for file, content in (("info", info | {"features": features}), ("stats", statistics)):
            (temporary / "meta" / f"{file}.json").write_text(json.dumps(content, indent=4))
    return target


def _tasks_of(data: Trajectories, task: str | None) -> tuple[list[str], Array]:
    """Texts of tasks, and the number of that of every step [N]: the leaf "task" of what was read from such a folder."""
    stored = data.metadata.get("tasks")
    known = [str(text) for text in stored] if isinstance(stored, list) else []
    if task is None and len(known) > 1 and isinstance(leaf_spaces(data.observation_space).get("task"), spaces.Discrete):
        return known, _before_actions(data, "task").astype(np.int64)
    return [check(task if task is not None else (known or [data.name])[0], str, "task")], np.zeros(data.steps, np.int64)


def _before_actions(data: Trajectories, path: str) -> Array:
    """The observations [N, ...] of a leaf before an action."""
    return np.asarray(data.observations[path][np.arange(data.steps) + data.episode_of_steps])


def _columns_of(data: Trajectories, fps: float, tasks: Array, numbered: bool) -> dict[str, Array]:
    """The columns [N, ...] of the tables by feature; ``numbered``: ``tasks`` are the leaf "task"."""
    columns = {}
    for path in data.observations:
        if path == "task" and numbered:
            continue
        key = _feature_name(path)
        columns[key] = _before_actions(data, path)
        if columns[key].ndim > 3 and not _is_picture(columns[key]):
            where = leaf_name("observations", path)
            raise DataError(
                f"{data.name}: {where} has shape {columns[key].shape[1:]}; LeRobot stores vectors and pictures"
            )
    index, episodes = np.arange(data.steps), data.episode_of_steps
    frame = index - data.offsets[episodes]
    columns["action"] = np.asarray(data.actions[""])
    if data.has_rewards:
        columns["next.reward"] = np.asarray(data.rewards)
    columns |= {"next.done": data.terminations | data.truncations}
    columns |= {"next.terminated": np.asarray(data.terminations), "next.truncated": np.asarray(data.truncations)}
    columns |= {"timestamp": (frame / fps).astype(np.float32), "frame_index": frame}
    columns |= {"episode_index": episodes, "index": index}
    return columns | {"task_index": tasks}


def _feature_name(path: str) -> str:
    """What a leaf of the observations is called as a feature."""
    return _OBSERVATION + (path.replace("/", ".") or "state")


def _is_picture(values: Array) -> bool:
    return values.ndim == 4 and values.dtype == np.uint8 and values.shape[-1] == 3


def _feature(values: Array, names: list[str] | None) -> dict[str, Any]:
    """A column as LeRobot describes it; a robot of LeRobot is read and moved by the names of the numbers."""
    if _is_picture(values):
        return {"dtype": "image", "shape": list(values.shape[1:]), "names": ["height", "width", "channels"]}
    return {"dtype": str(values.dtype), "shape": list(values.shape[1:]) or [1], "names": names}


def _write_tables(
    data: Trajectories, folder: Path, columns: Mapping[str, Array], tasks: list[str], of_steps: Array
) -> None:
    """Write the rows, a row group per episode, and the tables of episodes and of tasks."""
    pandas, pyarrow = require("pandas", "csv"), require("pyarrow", "parquet")
    parquet = require("pyarrow.parquet", "parquet")
    places = list(_files(data, sum(values.nbytes for values in columns.values()) / data.steps))
    rows = []
    for file in range(places[-1] + 1):
        path = folder / "data" / f"chunk-{file // FILES_PER_CHUNK:03d}" / f"file-{file % FILES_PER_CHUNK:03d}.parquet"
        path.parent.mkdir(parents=True, exist_ok=True)
        writer = None
        for episode in np.flatnonzero(np.asarray(places) == file).tolist():
            start, end = int(data.offsets[episode]), int(data.offsets[episode + 1])
            table = pyarrow.table({key: _arrow(values[start:end], pyarrow) for key, values in columns.items()})
            writer = writer or parquet.ParquetWriter(path, table.schema)
            writer.write_table(table)
            row = {"episode_index": episode, "tasks": [tasks[number] for number in np.unique(of_steps[start:end])]}
            row |= {"length": end - start, "dataset_from_index": start, "dataset_to_index": end}
            row |= {"data/chunk_index": file // FILES_PER_CHUNK, "data/file_index": file % FILES_PER_CHUNK}
            rows.append(row | {"meta/episodes/chunk_index": 0, "meta/episodes/file_index": 0})
        if writer is not None:
            writer.close()
    episodes = folder / "meta" / "episodes" / "chunk-000"
    episodes.mkdir(parents=True)
    parquet.write_table(pyarrow.Table.from_pylist(rows), episodes / "file-000.parquet")
    index = pandas.Index(tasks, name="task")
    pandas.DataFrame({"task_index": range(len(tasks))}, index=index).to_parquet(folder / "meta" / "tasks.parquet")


def _files(data: Trajectories, row_bytes: float) -> Iterator[int]:
    """The number of the file that each episode goes to."""
    file, filled = 0, 0.0
    for steps in data.lengths.tolist():
        if filled and filled + steps * row_bytes > FILE_BYTES:
            file, filled = file + 1, 0.0
        filled += steps * row_bytes
        yield file


def _arrow(values: Array, pyarrow: Any) -> Any:
    """Rows as a column: numbers, lists of a fixed size, lists of lists, or encoded pictures."""
    if _is_picture(values):
        kind = pyarrow.struct([("bytes", pyarrow.binary()), ("path", pyarrow.string())])
        return pyarrow.array([{"bytes": _png(picture), "path": None} for picture in values], kind)
    if values.ndim == 1 or values.shape[1:] == (1,):
        return pyarrow.array(values.reshape(len(values)))
    if values.ndim == 2:
        return pyarrow.FixedSizeListArray.from_arrays(pyarrow.array(values.reshape(-1)), values.shape[1])
    return pyarrow.array(values.tolist(), pyarrow.list_(pyarrow.list_(pyarrow.from_numpy_dtype(values.dtype))))


def _png(picture: Array) -> bytes:
    file = io.BytesIO()
    Image.fromarray(picture).save(file, "PNG")
    return file.getvalue()


def _statistics(values: Array) -> dict[str, Any]:
    """What LeRobot normalizes with, per component; of pictures per channel, in [0, 1], with shape [3, 1, 1]."""
    picture = _is_picture(values)
    rows = values.reshape(-1, 3) if picture else values.reshape(len(values), *(values.shape[1:] or (1,)))
    numbers = {name: getattr(rows, name)(axis=0, dtype=np.float64) for name in ("mean", "std")}
    numbers |= {"min": rows.min(axis=0), "max": rows.max(axis=0)}
    quantiles = () if picture or rows.dtype.kind == "b" else (0.01, 0.1, 0.5, 0.9, 0.99)
    numbers |= {f"q{round(100 * share):02d}": np.quantile(rows, share, axis=0) for share in quantiles}
    shaped = {name: (number / 255.0).reshape(3, 1, 1) if picture else number for name, number in numbers.items()}
    return {name: np.asarray(number).tolist() for name, number in shaped.items()} | {"count": [len(values)]}
