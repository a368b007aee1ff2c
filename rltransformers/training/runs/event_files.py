"""TensorBoard event files cut back to a step: rewritten, so that every reader sees the same.

A marker of a restart (``purge_step``) would leave the taken back events in the file, and readers differ in what they
make of it.
"""

from collections.abc import Sequence
from pathlib import Path

from tensorboard.backend.event_processing.event_file_loader import RawEventFileLoader
from tensorboard.compat.proto.event_pb2 import Event
from tensorboard.summary.writer.record_writer import RecordWriter

from rltransformers.core.files import replacing

FRAME = 16
"""Bytes around a record: its length and two checksums."""


def cut_event_files(paths: Sequence[Path], step: int, evaluated: bool) -> None:
    """Keep the summaries up to ``step``, in the files of one run in the order they were written.

    Those of its evaluation stay only where it is ``evaluated``: tags are written in alphabetical order, so they begin
    with the first ``eval/``. A torn last record goes too, and a file that keeps nothing but its header.
    """
    evaluating = False
    for path in paths:
        records = []
        for record in _records(path):
            event = Event.FromString(record)
            if event.HasField("summary"):
                tags = [value.tag for value in event.summary.value]
                evaluating |= event.step == step and any(tag.startswith("eval/") for tag in tags)
                if event.step > step or (event.step == step and evaluating and not evaluated):
                    continue
            records.append(record)
        if not any(event.HasField("summary") for event in map(Event.FromString, records)):
            path.unlink()
        elif sum(len(record) + FRAME for record in records) != path.stat().st_size:
            with replacing(path) as temporary, temporary.open("wb") as file:
                writer = RecordWriter(file)
                for record in records:
                    writer.write(record)


def _records(path: Path) -> list[bytes]:
    """The whole records of a file; its reader ends at a torn one."""
    return list(RawEventFileLoader(str(path)).Load())
