"""Files and folders that are whole or absent, whenever the process that writes them is killed."""

import errno
import itertools
import json
import os
import re
import shutil
import socket
import tempfile
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from pathlib import Path
from typing import Any

from filelock import FileLock, Timeout

from rltransformers.core.errors import ConfigError, DataError, one_line
from rltransformers.core.ranges import shown

PICKLES = (".pkl", ".pickle")  # files that are programs
LARGEST_JSON = 16 * 2**20  # bytes of the longest description that is read
LONGEST_NAME = 200  # bytes of the name of a run folder; file systems take 255, and a number may come behind it
_CUT_SHORT = re.compile(r"\d+ requested and \d+ written")
_RANDOM = "[a-z0-9_]{8}"  # what tempfile puts into a name


def is_pickle(path: str | os.PathLike[str]) -> bool:
    """Whether what ``path`` names would be read as a pickle, however the path is written ("file.pkl/" is one, too)."""
    return Path(path).suffix.lower() in PICKLES


def check_path(path: str | os.PathLike[str]) -> Path:
    """``path``, where a file or folder may be called that; ConfigError for a NUL character, which ends a name."""
    if "\0" in os.fspath(path):
        raise ConfigError(f"{os.fspath(path)!r} is no path: it holds a NUL character; leave it out")
    return Path(path)


def check_folder(path: str | os.PathLike[str], name: str) -> Path:
    """Return the path of a setting ``name``, where a folder stands or can be made; else raise ConfigError."""
    folder = check_path(path)
    try:
        there = next(part for part in (folder, *folder.absolute().parents) if part.exists())
    except OSError as error:  # names that are too long, folders that may not be read
        raise ConfigError(f"{name}={shown(os.fspath(path))}: {error.strerror}; choose another folder") from error
    if not there.is_dir():
        raise ConfigError(f"{name}={os.fspath(path)!r}: {there} is a file, and a folder is needed; choose another")
    return folder


def check_run(path: str | os.PathLike[str]) -> None:
    """Raise ConfigError unless ``path`` is the folder of a run."""
    folder, config = check_path(path), "config.yaml"
    if (folder / config).is_file():
        return
    if folder.is_file() and (folder.parent / config).is_file():
        raise ConfigError(
            f"{path} is a file of the run {folder.parent}; name the run (evaluate takes --checkpoint, too)"
        )
    raise ConfigError(f"{path} is not a run folder: it has no {config}; runs are made by `rltransformers train`")


def check_no_run(folder: Path, what: str) -> None:
    """Raise ConfigError where ``what`` of several runs would lie in the folder of one."""
    if (folder / "config.yaml").is_file():
        raise ConfigError(f"{folder} is the folder of a run: give the {what} another --name")


def existing_file(path: str | os.PathLike[str]) -> Path:
    """The path of a file that is there; DataError when there is none says what there is instead."""
    file = Path(path).expanduser()
    if file.is_file():
        return file
    if file.is_dir():
        raise DataError(f"{file} is a folder, a file is needed")
    missing = next((each for each in reversed(file.parents) if not each.exists()), None)
    where = "" if missing is None else f" (there is no folder {missing})"
    raise DataError(f"there is no file {file}{where}; check the path, or put the file there first")


def read_text(path: str | os.PathLike[str], what: str) -> str:
    """The text of a file in UTF-8, which messages call ``what``; ConfigError where it cannot be read."""
    try:
        return Path(path).read_text(encoding="utf-8")
    except UnicodeDecodeError as error:
        raise ConfigError(f"{what} {path} cannot be read: {error}; save it as UTF-8") from error
    except (OSError, ValueError) as error:  # ValueError: a NUL character in the path
        raise ConfigError(f"{what} {path} cannot be read: {error}") from error


def read_json(path: str | os.PathLike[str], refusal: type[Exception], way_out: str) -> Any:
    """Content of a small JSON file; raises ``refusal`` with ``way_out`` when it is missing, damaged or too large."""
    file = Path(path)
    try:
        if (size := file.stat().st_size) > LARGEST_JSON:
            raise ValueError(f"it has {size:,} bytes, at most {LARGEST_JSON:,} are read")
        return json.loads(file.read_text(encoding="utf-8"))
    except (OSError, ValueError, RecursionError) as error:
        raise refusal(f"{file} is missing or damaged ({one_line(error)}); {way_out}") from error


def check_free(path: Path, *ours: str) -> None:
    """Raise ConfigError for a place of a new run that holds anything but a run, hidden files or files named ``ours``.

    A process that is killed before it has written its config leaves hidden files alone.
    """
    if not path.exists() or (path / "config.yaml").is_file():
        return
    if path.is_file() or any(not each.name.startswith(".") and each.name not in ours for each in path.iterdir()):
        raise ConfigError(f"{path} is in the way: it is no run folder; move it away")


def check_name(
    name: str,
    what: str = "the name of a run",
    way_out: str = "; --output chooses the folder that it is made in",
) -> None:
    """Raise ConfigError unless ``name`` is that of one folder: printable, not too long, without separators."""
    if name in ("", ".", "..") or not name.isprintable() or any(each in name for each in "/\\"):
        fault = "must be the name of one folder, without / and \\ and with printable characters only"
    elif len(os.fsencode(name)) > LONGEST_NAME:
        fault = f"has {len(os.fsencode(name))} bytes, at most {LONGEST_NAME} are taken"
    else:
        return
    raise ConfigError(f"{what} {fault}, got {name[:60]!r}{way_out}")


def numbered(name: str) -> Iterator[str]:
    """``name``, ``name-2``, ``name-3`` and so on."""
    return (name if number == 1 else f"{name}-{number}" for number in itertools.count(1))


@contextmanager
def file_lock(
    lock: str | os.PathLike[str], what: str, refusal: type[Exception], *, wait: bool = False
) -> Iterator[None]:
    """Hold the lock file ``lock`` during the block; the system lets go of it when this process ends, however it does.

    The process that holds it may hold it again within the block. The file stays behind, for removing it could let two
    processes hold two locks of one name. ``wait`` until another process that holds it lets go; without, raise
    ``refusal``, which names ``what``, and the process where it is known.
    """
    path = check_path(lock)
    path.parent.mkdir(parents=True, exist_ok=True)
    guard = FileLock(path, timeout=0, is_singleton=True)
    try:
        guard.acquire(timeout=-1 if wait else 0)
    except Timeout:
        try:
            holder = path.read_text().strip()
        except OSError:
            holder = ""
        raise refusal(f"{what} is in use by {holder or 'another process'}; wait until it ends, or end it") from None
    try:
        with suppress(OSError):  # where a locked file cannot be written, the holder has no name
            path.write_text(f"process {os.getpid()} on {socket.gethostname()}")
        yield
    finally:
        guard.release()


def remove_left_overs(*paths: Path) -> None:
    """Remove what ``replacing`` and ``replacing_folder`` of these paths left behind in a process that was killed.

    An old folder whose name the new one had not taken yet gets it back. Only for whoever alone writes these paths.
    """
    for path in paths:
        if not path.parent.is_dir():
            continue
        file = re.compile(rf"\.{re.escape(path.stem)}\.{_RANDOM}\.tmp{re.escape(path.suffix)}")
        folder = re.compile(rf"\.{re.escape(path.name)}\.{_RANDOM}(\.before)?")
        for each in sorted(path.parent.iterdir()):
            if file.fullmatch(each.name) and each.is_file():
                each.unlink()
            elif folder.fullmatch(each.name) and each.is_dir():
                if each.suffix == ".before" and not path.exists():
                    os.replace(each, path)
                else:
                    shutil.rmtree(each, ignore_errors=True)


@contextmanager
def naming(path: str | os.PathLike[str]) -> Iterator[None]:
    """Errors of the operating system in the block name ``path`` in place of no file or of a temporary one."""
    path = check_path(path)
    try:
        yield
    except OSError as error:
        names = [os.fsdecode(each) for each in (error.filename, error.filename2) if each is not None]
        own = not names or any(part.startswith(f".{path.stem}.") for each in names for part in Path(each).parts)
        if error.errno is None and _CUT_SHORT.fullmatch(str(error)):  # NumPy does not say why
            raise OSError(errno.ENOSPC, os.strerror(errno.ENOSPC), os.fspath(path)) from error
        if error.errno is None or not own:
            raise
        raise OSError(error.errno, error.strerror, os.fspath(path)) from error


def refusal(error: OSError) -> str:
    """Message about a refusal of the operating system: the file, and what to do; one line."""
    if error.errno is None:
        return str(error)
    place = "standard output or an open file" if error.filename is None else os.fsdecode(error.filename)
    return f"{place}: {os.strerror(error.errno)}{_WAYS_OUT.get(error.errno, '')}"


_NO_ROOM = "; free some space or choose another folder: what was there before is still whole"
_NO_RIGHT = "; choose a folder that you may write to, or change the rights of this one"
_WAYS_OUT = {
    errno.ENOSPC: _NO_ROOM,
    errno.EDQUOT: _NO_ROOM,
    errno.EFBIG: _NO_ROOM,
    errno.EROFS: _NO_RIGHT,
    errno.EACCES: _NO_RIGHT,
    errno.EPERM: _NO_RIGHT,
    errno.ENAMETOOLONG: "; choose a shorter name",
}


@contextmanager
def replacing(path: str | os.PathLike[str]) -> Iterator[Path]:
    """A file beside ``path`` to write to, which takes the place of ``path`` when the block ends without an error.

    Its name begins with a dot and ends as that of ``path`` does. Readers see the old content or the new one, which has
    reached the disk before it gets the name. Folders above ``path`` are made.
    """
    path = Path(path)
    with naming(path):
        path.parent.mkdir(parents=True, exist_ok=True)
        descriptor, name = tempfile.mkstemp(prefix=f".{path.stem}.", suffix=f".tmp{path.suffix}", dir=path.parent)
        os.close(descriptor)
        temporary = Path(name)
        try:
            yield temporary
            sync(temporary)
            temporary.chmod(0o666 & ~_umask())  # mkstemp makes private files; this one is to be an ordinary one
            os.replace(temporary, path)
        except BaseException:
            temporary.unlink(missing_ok=True)
            raise
        sync(path.parent)


@contextmanager
def replacing_folder(path: str | os.PathLike[str]) -> Iterator[Path]:
    """An empty folder beside ``path`` to fill, which takes the place of ``path`` when the block ends without an error.

    Its name begins with a dot. What ``path`` held before goes only when the new folder, all of whose files have reached
    the disk, has its name. Folders above ``path`` are made, and go again after an error.
    """
    path = check_path(path)
    made = [parent for parent in path.parents if not parent.exists()]
    with naming(path):
        path.parent.mkdir(parents=True, exist_ok=True)
        temporary = Path(tempfile.mkdtemp(prefix=f".{path.name}.", dir=path.parent))
    before = temporary.with_name(f"{temporary.name}.before")
    try:
        with naming(path):
            yield temporary
        for each in temporary.rglob("*"):
            sync(each)
        temporary.chmod(0o777 & ~_umask())  # mkdtemp makes private folders
        if path.exists():
            os.replace(path, before)
        os.replace(temporary, path)
    except BaseException:
        shutil.rmtree(temporary, ignore_errors=True)
        if before.exists() and not path.exists():
            os.replace(before, path)
        with suppress(OSError):  # another process has put something there meanwhile
            for parent in made:
                parent.rmdir()
        raise
    sync(path.parent)
    shutil.rmtree(before, ignore_errors=True)


def sync(path: Path) -> None:
    """Return when a file, or the names in a folder, have reached the disk."""
    if os.name == "nt" and path.is_dir():  # there a folder cannot be opened
        return
    descriptor = os.open(path, os.O_RDWR if path.is_file() else os.O_RDONLY)
    try:
        os.fsync(descriptor)
    finally:
        os.close(descriptor)


def _umask() -> int:
    mask = os.umask(0)
    os.umask(mask)
    return mask
