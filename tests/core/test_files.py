"""Files and folders that are whole or absent."""

import os
from pathlib import Path
from typing import Any

import pytest

from rltransformers.agents import GTrXLPPO
from rltransformers.core.errors import ConfigError
from rltransformers.core.files import check_folder, file_lock, replacing, replacing_folder


def test_the_new_content_appears_when_the_block_ends(tmp_path: Path) -> None:
    path = tmp_path / "a" / "b.zip"
    with replacing(path) as temporary:
        temporary.write_text("new")
        assert not path.exists()
        assert (temporary.parent, temporary.suffix, temporary.name[0]) == (path.parent, ".zip", ".")
    assert path.read_text() == "new" and list(path.parent.iterdir()) == [path]


def test_an_error_leaves_the_old_content_and_nothing_else(tmp_path: Path) -> None:
    path = tmp_path / "b.json"
    path.write_text("old")
    with pytest.raises(KeyError), replacing(path) as temporary:
        temporary.write_text("half")
        raise KeyError
    assert path.read_text() == "old" and list(tmp_path.iterdir()) == [path]


@pytest.mark.skipif(os.name == "nt", reason="modes of files are those of POSIX")
def test_others_may_read_what_the_umask_lets_them(tmp_path: Path) -> None:
    with replacing(tmp_path / "shared") as temporary:
        temporary.touch()
    (tmp_path / "plain").touch()
    assert (tmp_path / "shared").stat().st_mode == (tmp_path / "plain").stat().st_mode


def test_a_new_folder_appears_when_the_block_ends(tmp_path: Path) -> None:
    path = tmp_path / "a" / "b"
    with replacing_folder(path) as temporary:
        (temporary / "c").mkdir()
        (temporary / "c" / "d").write_text("new")
        assert not path.exists()
        assert temporary.parent == path.parent and temporary.name[0] == "."
    assert (path / "c" / "d").read_text() == "new" and list(path.parent.iterdir()) == [path]
    (tmp_path / "plain").mkdir()
    assert path.stat().st_mode == (tmp_path / "plain").stat().st_mode


def test_an_old_folder_goes_when_the_new_one_is_whole(tmp_path: Path) -> None:
    path = tmp_path / "b"
    path.mkdir()
    (path / "old").touch()
    with pytest.raises(KeyError), replacing_folder(path) as temporary:
        (temporary / "half").touch()
        raise KeyError
    assert [each.name for each in path.iterdir()] == ["old"] and list(tmp_path.iterdir()) == [path]
    with replacing_folder(path) as temporary:
        (temporary / "new").touch()
        assert [each.name for each in path.iterdir()] == ["old"]
    assert [each.name for each in path.iterdir()] == ["new"] and list(tmp_path.iterdir()) == [path]


def test_an_old_folder_comes_back_when_the_new_one_cannot_take_its_name(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    path, replace = tmp_path / "b", os.replace
    path.mkdir()
    (path / "old").touch()

    def refusing(source: Path, target: Path) -> None:
        if target == path and not source.name.endswith(".before"):
            raise OSError("no space")
        replace(source, target)

    monkeypatch.setattr(os, "replace", refusing)
    with pytest.raises(OSError, match="no space"), replacing_folder(path) as temporary:
        (temporary / "new").touch()
    assert [each.name for each in path.iterdir()] == ["old"] and list(tmp_path.iterdir()) == [path]


@pytest.mark.parametrize("door", [replacing, replacing_folder, lambda path: file_lock(path, "it", ConfigError)])
def test_a_path_with_a_nul_character_is_refused(door: Any, tmp_path: Path) -> None:
    with pytest.raises(ConfigError, match="holds a NUL character"), door(f"{tmp_path}/a\0.zip"):
        pass
    assert not list(tmp_path.iterdir())


@pytest.mark.parametrize("below", ["", "/runs", "/a/b"])
def test_a_file_in_place_of_a_folder_is_named(tmp_path: Path, below: str) -> None:
    (tmp_path / "x").write_text("")
    with pytest.raises(ConfigError, match=r"^tensorboard_log='.*': .*x is a file, and a folder is needed"):
        check_folder(f"{tmp_path}/x{below}", "tensorboard_log")
    assert check_folder(tmp_path / "y" / "z", "tensorboard_log") == tmp_path / "y" / "z"
    with pytest.raises(ConfigError, match=r"^tensorboard_log='xxx.*: File name too long; choose another folder"):
        check_folder("x" * 5000, "tensorboard_log")


def test_a_file_in_place_of_a_log_is_refused_when_an_agent_is_made(tmp_path: Path) -> None:
    (tmp_path / "x").write_text("")
    with pytest.raises(ConfigError, match="x is a file, and a folder is needed"):
        GTrXLPPO("GTrXLPolicy", "CartPole-v1", tensorboard_log=f"{tmp_path}/x/runs", device="cpu")
