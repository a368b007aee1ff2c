"""Mechanisms of a module of one's own on the command line: trained, resumed, evaluated, listed, exported."""

import sys
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest
import yaml

from rltransformers.training.runs.experiment import read_experiment
from tests.cli.test_runs import OFFLINE, ONLINE, refused, run
from tests.extending import MODULE, unregistered, write_module

OWN = {"position": "none", "mixer": "own_mixer", "residual": "own_gate"}
SHORT = {"algorithm": {"n_steps": 8, "n_epochs": 1, "device": "cpu"}, "train": {"total_timesteps": 24}}


@pytest.fixture(autouse=True)
def work(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[Path]:
    """An empty folder with the module ``own`` and configs that choose its mechanisms; nothing is registered."""
    monkeypatch.chdir(tmp_path)
    write_module(tmp_path, "own", f"{MODULE}\nfrom pathlib import Path\nPath('owned').touch()\n")
    configs: dict[str, dict[str, Any]] = {"online": {**ONLINE, **SHORT}, "offline": OFFLINE}
    for name, config in configs.items():
        backbone = {**config["backbone"], **OWN}
        Path(f"{name}.yaml").write_text(yaml.safe_dump({**config, "backbone": backbone}))
        Path(f"{name}-imports.yaml").write_text(yaml.safe_dump({**config, "imports": ["own"], "backbone": backbone}))
    path = list(sys.path)
    with unregistered():
        yield tmp_path
    sys.modules.pop("own", None)
    sys.path[:] = path


def forget() -> None:
    """Be a process that has not seen the module."""
    from rltransformers.core.extensions import EXTENSIONS
    from rltransformers.mechanisms import TABLES

    sys.modules.pop("own", None)
    for axis, name in list(EXTENSIONS):
        del TABLES[axis][name]  # type: ignore[attr-defined]
    EXTENSIONS.clear()
    Path("owned").unlink(missing_ok=True)


@pytest.mark.parametrize("name", ["online", "offline"])
def test_a_typed_import_needs_no_trust_and_the_run_remembers_it(capsys: pytest.CaptureFixture[str], name: str) -> None:
    assert "unknown mixer 'own_mixer'" in refused(capsys, "train", f"{name}.yaml")
    out = run(capsys, "train", f"{name}.yaml", "--import", "own")
    folder = f"runs/{name}-seed0"
    assert read_experiment(f"{folder}/config.yaml").imports == ["own"]
    assert "--trust" in out
    forget()
    for words in (["evaluate", folder], ["train", "--resume", folder]):
        assert f"{folder} would run code of whoever made it: imports runs the module own" in refused(capsys, *words)
        assert not Path("owned").exists()
    assert "import own first (on the command line: --import own)" in refused(
        capsys, "export", folder, "--format", "pt2"
    )
    run(capsys, "evaluate", folder, "--import", "own")
    forget()
    run(capsys, "evaluate", folder, "--trust")
    forget()
    run(capsys, "train", "--resume", folder, "--import", "own")
    forget()
    run(capsys, "export", folder, "--format", "pt2", "--import", "own")
    forget()
    run(capsys, "evaluate", folder, "--import", "own")


def test_imports_of_a_config_run_only_when_trusted(capsys: pytest.CaptureFixture[str]) -> None:
    for command in ("train", "show"):
        if command == "train":
            message = refused(capsys, command, "online-imports.yaml")
            assert "online-imports.yaml would run code of whoever made it: imports runs the module own" in message
            assert "--trust" in message and not Path("owned").exists()
    run(capsys, "train", "online-imports.yaml", "--trust")
    assert Path("owned").exists()
    forget()
    run(capsys, "show", "online-imports.yaml", "--import", "own")
    forget()
    run(capsys, "show", "online.yaml", "--imports", "[own]")


def test_a_person_at_a_terminal_is_asked_once(
    capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch, terminal: Callable[[str], None]
) -> None:
    terminal("y\n")
    run(capsys, "train", "online-imports.yaml", "--verbose")


@pytest.fixture
def terminal(monkeypatch: pytest.MonkeyPatch) -> Callable[[str], None]:
    import io

    class Terminal(io.StringIO):
        def isatty(self) -> bool:
            return True

    def type_in(text: str) -> None:
        monkeypatch.setattr(sys, "stdin", Terminal(text))
        monkeypatch.setattr(sys.stderr, "isatty", lambda: True)

    return type_in


def test_seeds_train_in_processes_of_their_own(capsys: pytest.CaptureFixture[str]) -> None:
    run(capsys, "train", "online.yaml", "--import", "own", "--seeds", "1")


def test_settings_and_list_show_what_is_imported(capsys: pytest.CaptureFixture[str]) -> None:
    assert "own_mixer" not in run(capsys, "list")
    assert "own_mixer" in run(capsys, "list", "--import", "own")
    assert "own_gate" in run(capsys, "settings", "backbone.residual", "--import", "own")


@pytest.mark.parametrize(
    ("words", "message"),
    [
        (["--import", "absent"], "imports: the module 'absent' cannot be imported: ModuleNotFoundError"),
        (
            ["--import", "broken"],
            "the module 'broken' cannot be imported: ConfigError: mixer 'linear' is taken",
        ),
        (["--imports", "3"], "imports must be a list of texts, got 3"),
    ],
)
def test_an_import_that_fails_says_why(capsys: pytest.CaptureFixture[str], words: list[str], message: str) -> None:
    Path("broken.py").write_text(
        "import dataclasses, rltransformers\nfrom rltransformers.mechanisms import TABLES\n"
        "rltransformers.register(dataclasses.replace(TABLES['mixer']['linear'], id=''))\n"
    )
    assert message in refused(capsys, "show", "online.yaml", *words)


def test_imports_are_the_same_in_all_trials(capsys: pytest.CaptureFixture[str]) -> None:
    message = refused(capsys, "tune", "online.yaml", "--import", "own", "--search", "imports=['own','other']")
    assert "imports is no setting to search" in message
