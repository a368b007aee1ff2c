"""The folder of the user where compiled steps are kept, and the one way in: found there, or made while others wait."""

import os
import zipfile
from collections.abc import Callable
from contextlib import suppress
from pathlib import Path

from filelock import FileLock

from rltransformers.core.files import remove_left_overs, replacing

VARIABLE = "RLTRANSFORMERS_CACHE"
CAPACITY = 100  # compiled steps that a folder keeps; those whose last use is oldest make room for a new one

_of_this_process: set[Path] = set()


def cache_folder() -> Path:
    """``$RLTRANSFORMERS_CACHE``, else ``rltransformers`` in ``$XDG_CACHE_HOME``, else ``~/.cache/rltransformers``."""
    if own := os.environ.get(VARIABLE):
        return Path(own).expanduser()
    base = os.environ.get("XDG_CACHE_HOME")
    return (Path(base) if base and Path(base).is_absolute() else Path.home() / ".cache") / "rltransformers"


def found_or_made(path: Path, make: Callable[[Path], None]) -> None:
    """Leave a whole archive at ``path``: the one that is there, or what ``make`` writes to the file it is given.

    Of several processes that want the same file one makes it and the others wait. A damaged file is made again. A file
    that is made takes the place of the one whose last use is oldest, where the folder holds ``CAPACITY`` already; files
    that this process has used stay.
    """
    if not _whole(path):
        path.parent.mkdir(parents=True, exist_ok=True)
        with FileLock(path.with_suffix(".lock")):
            if not _whole(path):  # else made while this process waited
                remove_left_overs(path)
                with replacing(path) as temporary:
                    make(temporary)
    _of_this_process.add(path)
    with suppress(OSError):  # a folder that must not be written to
        os.utime(path)  # the time of the last use
        _make_room(path.parent, path.suffix)


def _make_room(folder: Path, suffix: str) -> None:
    """Remove files until ``CAPACITY`` are left, oldest use first, but none of this process."""
    # Names that begin with a dot are being written.
    used = {each: each.stat().st_mtime for each in folder.iterdir() if each.match(f"[!.]*{suffix}")}
    for path in sorted(used.keys() - _of_this_process, key=used.__getitem__)[: max(0, len(used) - CAPACITY)]:
        path.unlink(missing_ok=True)
        # Whoever waits for this lock meanwhile makes the file, and at worst another process makes it too.
        path.with_suffix(".lock").unlink(missing_ok=True)


def _whole(path: Path) -> bool:
    """Whether every member of this archive has the checksum that was written with it."""
    try:
        with zipfile.ZipFile(path) as archive:
            return archive.testzip() is None
    except (OSError, zipfile.BadZipFile, EOFError, ValueError, NotImplementedError):
        return False
