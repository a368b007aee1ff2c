"""The folder of the user where compiled steps are kept, and the one way in: found there, or made while others wait."""

import os
import zipfile
from collections.abc import Callable
from pathlib import Path

from filelock import FileLock

from rltransformers.core.files import remove_left_overs, replacing

VARIABLE = "RLTRANSFORMERS_CACHE"


def cache_folder() -> Path:
    """``$RLTRANSFORMERS_CACHE``, else ``rltransformers`` in ``$XDG_CACHE_HOME``, else ``~/.cache/rltransformers``."""
    if own := os.environ.get(VARIABLE):
        return Path(own).expanduser()
    base = os.environ.get("XDG_CACHE_HOME")
    return (Path(base) if base and Path(base).is_absolute() else Path.home() / ".cache") / "rltransformers"


def found_or_made(path: Path, make: Callable[[Path], None]) -> None:
    """Leave a whole archive at ``path``: the one that is there, or what ``make`` writes to the file it is given.

    Of several processes that want the same file one makes it and the others wait. A damaged file is made again.
    """
    if _whole(path):
        return
    path.parent.mkdir(parents=True, exist_ok=True)
    with FileLock(path.with_suffix(".lock")):
        if _whole(path):  # made while this process waited
            return
        remove_left_overs(path)
        with replacing(path) as temporary:
            make(temporary)


def _whole(path: Path) -> bool:
    """Whether every member of this archive has the checksum that was written with it."""
    try:
        with zipfile.ZipFile(path) as archive:
            return archive.testzip() is None
    except (OSError, zipfile.BadZipFile, EOFError, ValueError, NotImplementedError):
        return False
