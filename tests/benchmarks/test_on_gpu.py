"""The visit to a GPU, as far as it can be tried without one: its plan, its parts at tiny sizes, its seconds."""

import csv
import itertools
import re
import subprocess
import time
from collections.abc import Iterator
from pathlib import Path
from xml.etree import ElementTree

import pytest
import torch

from benchmarks import gpu, harness
from benchmarks.gpu import FULL, PARTS, TINY, WHOLE, Acting, Part, Sizes
from benchmarks.harness import Row, absolute
from rltransformers.policies.steps import ActorCriticMachine

ROOT = Path(__file__).parents[2]
without_gpu = pytest.mark.skipif(torch.cuda.is_available(), reason="says what happens without a GPU")


def rows_of(*names: str) -> Iterator[Row]:
    for name in names:
        yield absolute(name, "sizes", "ms", [1.0])


def endless(sizes: Sizes, device: str, seconds: float) -> Iterator[Row]:
    yield from rows_of("first")
    while True:
        time.sleep(0.001)


def broken(sizes: Sizes, device: str, seconds: float) -> Iterator[Row]:
    yield from rows_of("half")
    raise RuntimeError("no kernel image")


def quick(sizes: Sizes, device: str, seconds: float) -> Iterator[Row]:
    yield absolute(f"whole, {device}", "sizes", "s", [seconds])


def idle(sizes: Sizes, device: str, seconds: float) -> Iterator[Row]:
    yield from ()


@pytest.fixture
def folder(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    monkeypatch.setattr(harness, "ROOT", tmp_path)
    monkeypatch.setattr(gpu, "FOLDER", tmp_path / "gpu")
    monkeypatch.setattr(torch.cuda, "empty_cache", lambda: None)
    return tmp_path / "gpu"


@pytest.mark.parametrize("name", [name for name in PARTS if name != "laws"])
def test_every_part_can_be_built_and_is_planned_in_full(name: str, capsys: pytest.CaptureFixture[str]) -> None:
    assert gpu.main(["--dry-run", name]) == 0
    shown = capsys.readouterr().out
    assert f"{name}: {PARTS[name].seconds:.0f} s" in shown
    assert gpu.USED[name](FULL) in shown
    assert "tiny, on the CPU" in shown
    assert "nothing was written" in shown


def test_the_sizes_are_those_that_were_asked_for() -> None:
    assert (FULL.decision["width"], FULL.decision["layers"], FULL.context) == (768, 12, 100)
    assert (FULL.gtrxl["width"], FULL.gtrxl["layers"], FULL.gtrxl["memory"]) == (512, 12, 512)
    assert FULL.envs == (16, 64, 256, 1024, 4096)
    assert FULL.lengths[-1] == 65536
    assert FULL.graph_steps == 1000


def test_all_parts_together_fit_the_visit() -> None:
    assert sum(part.seconds for part in PARTS.values()) <= WHOLE
    cut = re.search(r"timeout .* (\d+) ", (ROOT / "scripts" / "on_gpu.sh").read_text())
    assert cut is not None
    assert WHOLE < float(cut[1]) < 600
    text = (ROOT / "docs" / "benchmarks" / "gpu" / "README.md").read_text()
    for name, part in PARTS.items():
        assert f"| {name} | {part.seconds:.0f} |" in text


@without_gpu
def test_without_a_gpu_there_is_one_line_and_no_figure(folder: Path, capsys: pytest.CaptureFixture[str]) -> None:
    assert gpu.main([]) == 2
    shown = capsys.readouterr()
    assert not shown.out
    assert shown.err.count("\n") == 1
    assert "sees no CUDA GPU" in shown.err
    assert "--dry-run" in shown.err
    assert not folder.exists()


def test_an_unknown_part_is_refused_with_the_nearest_name(capsys: pytest.CaptureFixture[str]) -> None:
    assert gpu.main(["--dry-run", "atention"]) == 2
    assert "did you mean 'attention'" in capsys.readouterr().err


def test_a_part_out_of_time_writes_what_it_has_and_the_next_one_runs(
    folder: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(gpu, "PARTS", {"long": Part(endless, 0.05), "next": Part(quick, 30), "last": Part(quick, 10)})
    assert gpu.run(["long", "next", "last"], 40.05) == 0
    with (folder / "long.csv").open(newline="") as file:
        assert [row["name"] for row in csv.DictReader(file)] == ["first"]
    with (folder / "next.csv").open(newline="") as file:
        assert [(row["name"], float(row["ours"])) for row in csv.DictReader(file)] == [("whole, cuda", 30.0)]
    assert "scripts/on_gpu.sh" in (folder / "next.csv").read_text()


def test_parts_that_are_chosen_share_the_time_of_those_left_out(folder: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(gpu, "PARTS", {"one": Part(quick, 10), "two": Part(quick, 30), "other": Part(quick, 60)})
    assert gpu.run(["one", "two"], 100) == 0
    with (folder / "one.csv").open(newline="") as file:
        assert [float(row["ours"]) for row in csv.DictReader(file)] == [25.0]


def test_the_end_of_the_time_does_not_cut_off_whoever_takes_the_rows() -> None:
    rows = gpu.within(itertools.chain(rows_of("a", "b"), endless(TINY, "cpu", 0)), 0.05)
    names = []
    for row in rows:
        names.append(row.name)
        if row.name == "b":
            time.sleep(0.1)
    assert names == ["a", "b"]


def test_the_last_part_gets_what_is_left_and_none_starts_without_time(
    folder: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.setattr(gpu, "PARTS", {"one": Part(quick, 30), "two": Part(quick, 30)})
    clock = itertools.chain([0.0, 1.0], itertools.repeat(48.0))
    monkeypatch.setattr(gpu, "within", lambda rows, seconds: rows)
    monkeypatch.setattr(gpu, "monotonic", lambda: next(clock))
    assert gpu.run(["one", "two", "one"], 60) == 0
    with (folder / "two.csv").open(newline="") as file:
        assert float(next(csv.DictReader(file))["ours"]) == 12.0
    clock = itertools.chain([0.0], itertools.repeat(56.0))
    (folder / "one.csv").unlink()
    assert gpu.run(["one"], 60) == 0
    assert "one: left out, 4 s are left" in capsys.readouterr().out
    assert not (folder / "one.csv").exists()


def test_a_part_that_fails_is_named_and_the_others_count(
    folder: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.setattr(gpu, "PARTS", {"bad": Part(broken, 30), "idle": Part(idle, 30), "good": Part(quick, 30)})
    assert gpu.run(["bad", "idle", "good"], 90) == 1
    assert "bad: failed: RuntimeError: no kernel image" in capsys.readouterr().err
    assert {path.name for path in folder.iterdir()} == {"good.csv"}


def test_the_time_of_eager_steps_does_not_pass_for_that_of_a_graph() -> None:
    acting = Acting(TINY.acting, 2, "cpu", graph=False)
    acting.require_graph()
    machine = ActorCriticMachine(acting.policy)
    acting.policy.machine_code = machine
    acting.require_graph()
    machine.graph.failed = True
    with pytest.raises(SystemExit, match="not captured as a CUDA graph"):
        acting.require_graph()


def test_broken_laws_are_named(tmp_path: Path) -> None:
    suite = ElementTree.Element("testsuite")
    for name, outcome in (("test_l1[a]", None), ("test_l2[b]", "failure"), ("test_l3[c]", "skipped")):
        case = ElementTree.SubElement(suite, "testcase", name=name)
        if outcome:
            ElementTree.SubElement(case, outcome)
    ElementTree.ElementTree(suite).write(tmp_path / "laws.xml")
    row = gpu.law_row(tmp_path / "laws.xml", TINY, "cuda", "cut off after 9 s")
    assert (row.ours, row.met, row.note) == (1, False, "cut off after 9 s; broken: test_l2[b]")
    with pytest.raises(SystemExit, match="could not be checked"):
        gpu.law_row(tmp_path / "none.xml", TINY, "cuda")


def test_the_shell_file_is_valid() -> None:
    subprocess.run(["bash", "-n", str(ROOT / "scripts" / "on_gpu.sh")], check=True)
