"""Disks that are full, folders that refuse, names that lead elsewhere, damaged files: one line, exit code 2."""

import json
import resource
import sys
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

import pytest
import yaml

from rltransformers.cli.main import main
from rltransformers.core.errors import ConfigError, DataError
from rltransformers.training.evaluation import EvaluationResult, read_results
from rltransformers.training.runs.run_folder import RunFolder
from tests.cli.test_runs import ONLINE, refused, run


@pytest.fixture
def work(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """An empty folder to run in, with a short config."""
    monkeypatch.chdir(tmp_path)
    monkeypatch.setenv("MINARI_DATASETS_PATH", str(tmp_path / "minari"))
    (tmp_path / "minari").mkdir()
    (tmp_path / "online.yaml").write_text(yaml.safe_dump(ONLINE | {"train": {"total_timesteps": 24}}))
    return tmp_path


@contextmanager
def files_of_at_most(size: int) -> Iterator[None]:
    """Writing behind ``size`` bytes of any file fails, for root too, as on a full disk."""
    before = resource.getrlimit(resource.RLIMIT_FSIZE)
    resource.setrlimit(resource.RLIMIT_FSIZE, (size, before[1]))
    try:
        yield
    finally:
        resource.setrlimit(resource.RLIMIT_FSIZE, before)


def contents(folder: Path) -> dict[str, bytes]:
    """All files but the locks, which say who held them last."""
    files = [path for path in folder.rglob("*") if path.is_file() and not path.name.endswith(".lock")]
    return {str(path.relative_to(folder)): path.read_bytes() for path in files}


@pytest.mark.parametrize(("size", "file"), [(0, "config.yaml"), (8000, "last.zip")])
def test_a_disk_without_room_is_one_line_that_names_the_file(
    work: Path, capsys: pytest.CaptureFixture[str], size: int, file: str
) -> None:
    with files_of_at_most(size):
        message = refused(capsys, "train", "online.yaml")
    assert file in message and "File too large" in message and "free some space" in message
    assert len(message.splitlines()) <= 3  # threads and the folder of the run before it
    assert not [name for name in contents(Path("runs")) if "tmp" in name]


@pytest.mark.usefixtures("drawn_pictures")
def test_what_was_there_stays_whole_when_the_disk_is_full(work: Path, capsys: pytest.CaptureFixture[str]) -> None:
    run(capsys, "train", "online.yaml")
    run(capsys, "evaluate", "runs/online-seed0", "--plot", "lookback")
    before = contents(Path("runs"))
    for size, words in (
        (0, ["train", "--resume", "runs/online-seed0", "--train.total_timesteps", "48"]),
        (0, ["evaluate", "runs/online-seed0", "--plot", "lookback"]),
        (4000, ["evaluate", "runs/online-seed0", "--plot", "lookback", "--seed", "3"]),
    ):
        with files_of_at_most(size):
            message = refused(capsys, *words)
        assert "runs/online-seed0/" in message and "Traceback" not in message
        assert contents(Path("runs")) == before


@pytest.mark.parametrize("size", [0, 500, 3000])
def test_a_dataset_that_does_not_fit_leaves_nothing(work: Path, capsys: pytest.CaptureFixture[str], size: int) -> None:
    words = ["collect", "--env", "CartPole-v1", "--behavior", "random", "--steps", "2000", "--dataset", "ab/c-v0"]
    with files_of_at_most(size):
        message = refused(capsys, *words)
    assert "minari/ab/c-v0" in message
    assert contents(Path("minari")) == {}


def test_metrics_that_cannot_be_written_are_named(work: Path) -> None:
    folder = RunFolder(work)
    logger = folder.logger(stdout=False)
    logger.record("train/loss", 1.0)
    logger.dump(0)
    logger.record("train/note", "x" * 9000)
    with files_of_at_most(folder.metrics.stat().st_size + 100), pytest.raises(OSError, match=r"progress\.csv"):
        logger.dump(1)
    logger.close()


@pytest.mark.skipif(sys.platform != "linux", reason="/dev/full and /proc are of Linux")
def test_an_output_that_takes_nothing_is_one_line(work: Path, capfd: pytest.CaptureFixture[str]) -> None:
    for output in ("/proc/nothing", "/dev/full/runs", "a\0b", "x" * 300):
        Path("output.yaml").write_text(yaml.safe_dump(ONLINE | {"output": output}))
        assert main(["train", "output.yaml"]) == 2
        message = capfd.readouterr().err
        assert "Traceback" not in message and len(message.splitlines()) == 1


NAMES = ["", ".", "..", "../x", "/tmp/x", "a/b", "a\\b", "a\0b", "a\nb", "a\x1b[31mb", "x" * 201, "é" * 101, "a\udcffb"]


@pytest.mark.parametrize("name", NAMES, ids=ascii)
def test_a_run_stays_inside_the_output_folder(tmp_path: Path, name: str) -> None:
    with pytest.raises(ConfigError, match="the name of a run"):
        RunFolder.create(tmp_path / "runs", name)
    assert list(tmp_path.iterdir()) == []


def test_names_of_people_are_taken(tmp_path: Path) -> None:
    for name in ("a b", "Über-lauf (2)", "x" * 200, "-v", "a..b"):
        assert RunFolder.create(tmp_path, name).path.parent == tmp_path


def test_a_name_is_checked_by_the_command(work: Path, capsys: pytest.CaptureFixture[str]) -> None:
    assert "the name of one folder" in refused(capsys, "train", "online.yaml", "--name", "../../x")
    assert not Path("runs").exists()


@pytest.mark.parametrize("dataset", ["../x-v0", "/x-v0", "a/../b-v0", "a\nb-v0", "", "x", "a b-v0", "y" * 300 + "-v0"])
def test_a_dataset_id_that_leads_elsewhere_is_refused(
    work: Path, capsys: pytest.CaptureFixture[str], dataset: str
) -> None:
    words = ["collect", "--env", "CartPole-v1", "--behavior", "random", "--steps", "1", "--dataset", dataset]
    message = refused(capsys, *words)
    assert len(message.splitlines()) == 1 and contents(work / "minari") == {}


# Damaged files of a run ---------------------------------------------------------------------------------------


def result() -> EvaluationResult:
    return EvaluationResult("CartPole-v1", (1.0, 2.0), (1, 2), (0, 1))


DAMAGE = [b"{", b"[]", b"3", b'{"step": 1}', b'{"step": "x", "results": []}', b"\xff\xfe", b"[" * 100_000,
          b'{"step": 1, "results": [{"returns": []}]}', b"9" * 5000]  # fmt: skip


@pytest.mark.parametrize("damage", DAMAGE, ids=lambda each: ascii(each[:20]))
def test_a_damaged_line_of_evaluations_is_named_and_a_cut_last_one_is_left_out(tmp_path: Path, damage: bytes) -> None:
    folder = RunFolder(tmp_path)
    for step in (10, 20, 30):
        folder.append_evaluation(step, [result()])
    lines = folder.evaluations.read_bytes().splitlines()
    folder.evaluations.write_bytes(b"\n".join([lines[0], damage, lines[2], b""]))
    with pytest.raises(DataError, match=r"evaluations\.jsonl, line 2 is damaged"):
        folder.read_evaluations()
    folder.evaluations.write_bytes(b"\n".join([*lines[:2], damage]))
    assert [step for step, _ in folder.read_evaluations()] == [10, 20]
    for cut in range(1, len(lines[2]), 40):
        folder.evaluations.write_bytes(b"\n".join([*lines[:2], lines[2][:cut]]))
        assert [step for step, _ in folder.read_evaluations()] == [10, 20]


@pytest.mark.parametrize("damage", DAMAGE, ids=lambda each: ascii(each[:20]))
def test_a_damaged_final_evaluation_is_named(tmp_path: Path, damage: bytes) -> None:
    (tmp_path / "evaluation.json").write_bytes(damage if damage != b"[]" else b"[1]")
    with pytest.raises(DataError, match=r"evaluation\.json is not a list of evaluation results"):
        read_results(tmp_path / "evaluation.json")


def test_damaged_metrics_and_configs_of_a_run_are_named(work: Path, capsys: pytest.CaptureFixture[str]) -> None:
    run(capsys, "train", "online.yaml")
    folder = RunFolder("runs/online-seed0")
    resume = ["train", "--resume", str(folder.path), "--train.total_timesteps", "48"]
    folder.metrics.write_bytes(b"\xff\xfe\x00\n")
    assert "progress.csv, line 1 is damaged" in refused(capsys, *resume)
    config = folder.config.read_text()
    for damage in (b"\xff\xfe", b"agent: [", config[:10].encode(), b"", json.dumps([1]).encode()):
        folder.config.write_bytes(damage)
        assert "config.yaml" in refused(capsys, *resume)
        assert "config.yaml" in refused(capsys, "evaluate", str(folder.path))
