"""Which tests a change needs."""

import subprocess
from pathlib import Path

import pytest

from tests._tools import chosen_tests
from tests._tools.chosen_tests import ALWAYS, LAWS, chosen

ROOT = Path(__file__).parents[2]


def test_a_mechanism_needs_its_own_laws_and_what_others_stand_on_needs_all() -> None:
    _, laws = chosen(["rltransformers/mixers/performer.py", "rltransformers/attention/priors/gaussian.py"])
    assert laws == [*LAWS, "-k", "mixer:performer or prior:gaussian_transformer"]
    for shared in ("attention/layer.py", "attention/catalogue.py", "functional/windows.py", "attention/gone.py"):
        assert chosen(["rltransformers/mixers/performer.py", f"rltransformers/{shared}"])[1] == [*LAWS]


def test_other_files_need_the_tests_of_their_folder() -> None:
    files = [
        "agents/gtrxl_ppo.py",
        "rltransformers/data/load.py",
        "docs/online/README.md",
        "tests/core/test_files.py",
        "README.md",
    ]
    (run,) = chosen(files)
    assert {*run} == {
        *ALWAYS, "tests/agents", "tests/peers", "tests/export", "tests/data", "tests/docs", "tests/core/test_files.py"
    }  # fmt: skip
    assert chosen(["tests/attention/row.py"]) == [[*sorted(ALWAYS), "tests/attention"]]
    assert chosen(["README.md", "pyproject.toml"]) == [["tests"]]


def test_every_folder_of_the_package_has_its_tests() -> None:
    for folder in (ROOT / "rltransformers").iterdir():
        if folder.is_dir() and not folder.name.startswith("__") and any(folder.glob("*.py")):
            runs = chosen([f"rltransformers/{folder.name}/new.py"])
            assert len({path for run in runs for path in run} - {*ALWAYS}) > 0, folder


def test_what_differs_is_read_from_git(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    def git(*words: str) -> None:
        subprocess.run(["git", "-c", "user.name=a", "-c", "user.email=a@b", *words], cwd=tmp_path, check=True)

    git("init", "-q", "-b", "main")
    for name in ("kept.py", "changed.py"):
        (tmp_path / name).write_text("1")
    git("add", ".")
    git("commit", "-qm", "first")
    (tmp_path / "changed.py").write_text("2")
    (tmp_path / "new.py").write_text("3")
    monkeypatch.setattr(chosen_tests, "ROOT", tmp_path)
    assert chosen_tests.changed_files(None) == ["changed.py", "new.py"]
    git("checkout", "-qb", "branch")
    git("add", ".")
    git("commit", "-qm", "second")
    assert chosen_tests.changed_files(None) == []
    assert chosen_tests.changed_files("main") == ["changed.py", "new.py"]
