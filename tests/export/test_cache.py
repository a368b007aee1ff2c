"""Compiled steps on disk: where they lie, whole or absent, made once however many processes want them."""

import os
import subprocess
import sys
import time
import zipfile
from pathlib import Path

import pytest

from rltransformers.export import cache
from rltransformers.export.cache import VARIABLE, cache_folder, found_or_made


def archive(path: Path) -> None:
    with zipfile.ZipFile(path, "w") as made:
        made.writestr("code", "machine code " * 1000)


def never(path: Path) -> None:
    raise AssertionError(f"{path} was to be found")


@pytest.mark.parametrize(
    ("own", "standard", "expected"),
    [
        ("/own", "/standard", "/own"),
        (None, "/standard", "/standard/rltransformers"),
        ("", "", "/home/someone/.cache/rltransformers"),
        (None, "relative", "/home/someone/.cache/rltransformers"),  # the XDG rules: a relative path is no path
        (None, None, "/home/someone/.cache/rltransformers"),
        ("~/own", None, "/home/someone/own"),
    ],
)
def test_the_folder_is_the_users(
    monkeypatch: pytest.MonkeyPatch, own: str | None, standard: str | None, expected: str
) -> None:
    monkeypatch.setenv("HOME", "/home/someone")
    for name, value in [(VARIABLE, own), ("XDG_CACHE_HOME", standard)]:
        monkeypatch.delenv(name, raising=False)
        if value is not None:
            monkeypatch.setenv(name, value)
    assert cache_folder() == Path(expected)


def test_what_is_whole_is_not_made_again(tmp_path: Path) -> None:
    path = tmp_path / "deep" / "step.pt2"
    found_or_made(path, archive)
    found_or_made(path, never)


@pytest.mark.parametrize("damage", ["bit", "cut", "empty", "text"])
def test_what_is_damaged_is_made_again(tmp_path: Path, damage: str) -> None:
    path = tmp_path / "step.pt2"
    archive(path)
    whole = path.read_bytes()
    middle = len(whole) // 3
    path.write_bytes(
        {
            "bit": whole[:middle] + bytes([whole[middle] ^ 1]) + whole[middle + 1 :],
            "cut": whole[:-100],
            "empty": b"",
            "text": b"no archive",
        }[damage]
    )
    found_or_made(path, archive)
    found_or_made(path, never)
    with zipfile.ZipFile(path) as made:
        assert made.testzip() is None


def test_what_fails_halfway_leaves_no_file_and_can_be_tried_again(tmp_path: Path) -> None:
    def broken(path: Path) -> None:
        path.write_bytes(b"half")
        raise OSError("disk full")

    path = tmp_path / "step.pt2"
    with pytest.raises(OSError, match="disk full"):
        found_or_made(path, broken)
    assert [each.name for each in tmp_path.iterdir() if each.suffix != ".lock"] == []
    found_or_made(path, archive)


def test_left_overs_of_a_killed_process_are_removed(tmp_path: Path) -> None:
    left = tmp_path / ".step.abcdefgh.tmp.pt2"
    left.write_bytes(b"half")
    found_or_made(tmp_path / "step.pt2", archive)
    assert not left.exists()


def names(folder: Path) -> set[str]:
    return {path.stem for path in folder.iterdir()}


def used_before(path: Path, seconds: float) -> None:
    """As another process left it that long ago."""
    archive(path)
    path.with_suffix(".lock").touch()
    os.utime(path, (time.time() - seconds,) * 2)


def test_the_oldest_uses_make_room_for_what_is_made(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(cache, "CAPACITY", 3)
    for name, seconds in [("second", 3e5), ("oldest", 4e5), ("newest", 1e5), ("found", 5e5)]:
        used_before(tmp_path / f"{name}.pt2", seconds)
    (tmp_path / ".other.abcdefgh.tmp.pt2").write_bytes(b"being written by another process")
    (tmp_path / "notes.txt").write_text("none of ours")
    found_or_made(tmp_path / "found.pt2", never)  # a file that is used again is new again
    assert names(tmp_path) == {"found", "second", "newest", ".other.abcdefgh.tmp", "notes"}
    monkeypatch.setattr(cache, "_of_this_process", set())  # another process
    found_or_made(tmp_path / "made.pt2", archive)
    assert names(tmp_path) == {"found", "made", "newest", ".other.abcdefgh.tmp", "notes"}


def test_what_this_process_uses_is_never_removed(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(cache, "CAPACITY", 2)
    mine = [f"mine{count}" for count in range(3)]
    for name in mine:
        found_or_made(tmp_path / f"{name}.pt2", archive)
        os.utime(tmp_path / f"{name}.pt2", (0, 0))
    used_before(tmp_path / "other.pt2", 10.0)
    found_or_made(tmp_path / "made.pt2", archive)
    assert names(tmp_path) == {*mine, "made"}


def test_a_folder_that_must_not_be_written_to_serves_what_it_holds(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    def refused(*_: object) -> None:
        raise PermissionError("read-only")

    archive(tmp_path / "step.pt2")
    monkeypatch.setattr(os, "utime", refused)
    found_or_made(tmp_path / "step.pt2", never)


def test_of_two_processes_one_makes_it_and_the_other_waits(tmp_path: Path) -> None:
    code = (
        "import sys, time, zipfile\n"
        "from pathlib import Path\n"
        "from rltransformers.export.cache import found_or_made\n"
        "def make(path):\n"
        "    print('made', flush=True)\n"
        "    time.sleep(1)\n"
        "    with zipfile.ZipFile(path, 'w') as made:\n"
        "        made.writestr('code', 'x')\n"
        "print('ready', flush=True); sys.stdin.readline()\n"
        "found_or_made(Path(sys.argv[1]), make)\n"
    )
    processes = [
        subprocess.Popen(
            [sys.executable, "-c", code, os.fspath(tmp_path / "step.pt2")],
            stdin=subprocess.PIPE,
            stdout=subprocess.PIPE,
            text=True,
        )
        for _ in range(2)
    ]
    for process in processes:  # both start from the same moment
        assert process.stdout is not None and process.stdout.readline() == "ready\n"
    for process in processes:
        assert process.stdin is not None
        process.stdin.write("\n")
        process.stdin.flush()
    printed = "".join(process.communicate(timeout=60)[0] for process in processes)
    assert [process.returncode for process in processes] == [0, 0]
    assert printed == "made\n"
