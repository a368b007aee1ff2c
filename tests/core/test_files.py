"""Files that are whole or absent."""

import os
from pathlib import Path

import pytest

from rltransformers.core.files import replacing


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
