"""Frames of the video files of LeRobot folders. Axis letter: N rows, one per step."""

import os
from collections.abc import Mapping
from pathlib import Path
from typing import Any

import numpy as np

from rltransformers.core.errors import DataError, require
from rltransformers.core.files import existing_file
from rltransformers.core.values import Array
from rltransformers.data.checks import damage
from rltransformers.data.tables import file_batches


def read_frames(folder: Path, info: Mapping[str, Any], key: str, episodes: Array, steps: Array) -> Array:
    """Pictures [N, height, width, 3] of a feature at these steps [N] of episodes [N]; files are decoded once.

    Raises:
        DataError: for files that are missing, outside the folder, no video, or too short.
        MissingExtraError: without imageio_ffmpeg.
    """
    read = require("imageio_ffmpeg", "video").read_frames
    with damage(f"{folder / 'meta'} does not say where the films of {key!r} are", "download the data set again"):
        places = _places(folder, info, key, np.unique(episodes).tolist())
    rows_of: dict[Path, dict[int, int]] = {}
    for row, (episode, step) in enumerate(zip(episodes.tolist(), steps.tolist(), strict=True)):
        file, first = places[episode]
        rows_of.setdefault(file, {})[first + step] = row
    pictures: Array = np.empty(0)
    for file, rows in rows_of.items():
        if not file.resolve().is_relative_to(folder.resolve()):
            raise DataError(f"{file} lies outside of {folder}; download the data set again")
        with damage(f"{existing_file(file)} is no film that can be read", "download the data set again"):
            frames = read(os.fspath(file))
            width, height = next(frames)["size"]  # what is known of the film comes first
            if pictures.ndim == 1:
                pictures = np.empty((len(episodes), height, width, 3), np.uint8)
            for number, frame in enumerate(frames):
                if number in rows:
                    pictures[rows.pop(number)] = np.frombuffer(frame, np.uint8).reshape(height, width, 3)
        if rows:
            raise DataError(f"{file} ends before its frame {min(rows)}; download the data set again")
    return pictures


def _places(folder: Path, info: Mapping[str, Any], key: str, episodes: list[int]) -> dict[int, tuple[Path, int]]:
    """Episode to its file and the frame in it that it begins with: version 2 has a file per episode."""
    listed = sorted((folder / "meta" / "episodes").glob("**/*.parquet"))
    columns = [f"videos/{key}/{name}" for name in ("chunk_index", "file_index", "from_timestamp")]
    rows = [row for batch in file_batches(listed) for row in batch.select(["episode_index", *columns]).to_pylist()]
    known = {row["episode_index"]: [row[column] for column in columns] for row in rows}
    places = {}
    for episode in episodes:
        if listed:
            chunk, file, begin = known[episode]
            numbers, first = {"chunk_index": chunk, "file_index": file}, round(begin * info["fps"])
        else:
            numbers, first = {"episode_chunk": episode // info["chunks_size"], "episode_index": episode}, 0
        places[episode] = folder / info["video_path"].format(video_key=key, **numbers), first
    return places
