"""Processes of many runs: their input, what they print and leave, and that Ray starts lost ones again."""

import os
import signal
import sys
import time
from collections.abc import Callable, Iterator
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import Any

import pytest

from rltransformers.cli import engines, worker
from rltransformers.cli.engines import Engine, Job, LocalEngine, Order, RayEngine
from rltransformers.cli.main import main
from rltransformers.cli.seeds import train_seeds
from rltransformers.cli.sweep import train_variants
from rltransformers.cli.variants import Variant
from rltransformers.core.errors import ConfigError, MissingExtraError
from rltransformers.training.runs.experiment import build_experiment
from tests.cli.test_runs import ONLINE

pytestmark = pytest.mark.xdist_group("ray")  # one Ray at a time

PROGRAM = """
import os, pathlib, sys
print("asked for", sys.stdin.readline().strip(), os.environ["COLOR"])
pathlib.Path(sys.argv[1]).write_text("done")
sys.exit(int(sys.argv[2]))
"""


@pytest.fixture(scope="module")
def ray() -> Iterator[Engine]:
    """One Ray for all tests: a process can hold only one."""
    pytest.importorskip("ray", reason="needs rltransformers[ray]")
    made = RayEngine()
    yield made
    made.close()


@pytest.fixture(params=["local", pytest.param("ray", marks=pytest.mark.third_party)])
def engine(request: pytest.FixtureRequest) -> Engine:
    return LocalEngine() if request.param == "local" else request.getfixturevalue("ray")


def status_of(job: Job, seconds: float = 60) -> int:
    """The exit status, once there is one."""
    end = time.monotonic() + seconds
    while (status := job.poll()) is None:
        assert time.monotonic() < end
        time.sleep(0.05)
    return status


def wait_for(condition: Callable[[], bool], seconds: float = 60) -> None:
    """Until it holds."""
    end = time.monotonic() + seconds
    while not condition():
        assert time.monotonic() < end
        time.sleep(0.05)


def order_of(folder: Path, program: str, *words: str) -> Order:
    return Order(
        ("-c", program, str(folder / "result"), *words),
        "tea\n",
        folder / "logs" / "run.log",
        (folder / "result",),
        {"COLOR": "green"},
    )


@pytest.mark.parametrize("status", [0, 3])
def test_a_process_has_its_input_its_variables_and_leaves_a_log_and_a_status(
    engine: Engine, status: int, tmp_path: Path
) -> None:
    assert engine.slots >= 1
    order = order_of(tmp_path, PROGRAM, str(status))
    job = engine.start(order)
    assert status_of(job) == status and job.poll() == status
    assert order.log.read_text() == "asked for tea green\n" and order.results[0].read_text() == "done"


def test_a_process_that_is_stopped_ends(engine: Engine, tmp_path: Path) -> None:
    program = "import os, pathlib, sys\npathlib.Path(sys.argv[1]).write_text(str(os.getpid()))\nsys.stdin.read()\n"
    order = order_of(tmp_path, program)
    job = engine.start(order)
    wait_for(order.results[0].exists)
    process = int(order.results[0].read_text() or "0")
    job.stop()
    assert job.wait() != 0
    wait_for(lambda: not Path(f"/proc/{process}").exists())


@pytest.mark.third_party
def test_workers_of_ray_import_nothing_from_the_current_folder(ray: Any) -> None:
    assert os.getcwd() not in ray.ray.get(ray.ray.remote(lambda: sys.path).remote())


@pytest.mark.third_party
def test_a_process_whose_worker_is_killed_starts_again(ray: Engine, tmp_path: Path) -> None:
    program = (
        "import os, pathlib, signal, sys\n"
        "path = pathlib.Path(sys.argv[1])\n"
        "if not path.exists():\n"
        "    path.write_text('lost')\n"
        f"    os.kill(os.getppid(), {signal.SIGKILL:d})\n"
        "    sys.stdin.read()\n"
        "    sys.exit(9)\n"
        "path.write_text('found')\n"
    )
    order = order_of(tmp_path, program)
    assert status_of(ray.start(order), 120) == 0
    assert order.results[0].read_text() == "found"


@dataclass
class Counted(Engine):
    """Jobs that end at the third look at them, or when they are stopped; what happened, in order."""

    slots = 9
    log: list[str] = field(default_factory=list)
    running: int = 0
    most: int = 0

    def start(self, order: Order) -> Job:
        """Runs."""
        self.running += 1
        self.most = max(self.most, self.running)
        return CountedJob(self, order.text)

    def close(self) -> None:
        """Nothing is held."""


@dataclass
class CountedJob(Job):
    engine: Counted
    name: str
    looks: int = 0

    def poll(self) -> int | None:
        """0 at the third look."""
        self.looks += 1
        self.engine.running -= self.looks == 3
        return 0 if self.looks >= 3 else None

    def stop(self) -> None:
        """Noted."""
        self.engine.log.append(f"stop {self.name}")

    def wait(self) -> int:
        """Noted."""
        self.engine.log.append(f"wait {self.name}")
        return 1


def numbered(tmp_path: Path, count: int) -> list[tuple[int, Order]]:
    return [(number, Order((), str(number), tmp_path / "log")) for number in range(count)]


def test_so_many_run_at_a_time_and_what_ends_decides_what_comes(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(engines, "POLL_SECONDS", 0)
    engine, ended, looks = Counted(), list[int](), list[int]()
    orders = (order for order in numbered(tmp_path, 7) if order[0] < 5 or 2 not in ended)
    engines.carry_out(engine, orders, 3, lambda key, status: ended.append(key), lambda key, job: looks.append(key))
    assert ended == [0, 1, 2, 3, 4] and engine.most == 3 and engine.log == []
    assert sorted(looks) == [number for number in range(5) for _ in range(3)]  # once more behind the end


def test_an_error_stops_all_at_once_and_waits_for_them(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(engines, "POLL_SECONDS", 0)
    engine = Counted()
    with pytest.raises(ZeroDivisionError):
        engines.carry_out(engine, numbered(tmp_path, 5), 3, lambda key, status: print(1 // key))
    assert engine.log == ["stop 1", "stop 2", "wait 1", "wait 2"]


def test_the_lines_of_a_growing_file_come_once_and_whole(tmp_path: Path) -> None:
    path = tmp_path / "log"
    path.write_text("of an earlier run\n")
    lines = engines.Lines(path)
    assert engines.Lines(tmp_path / "none").new() == [] == lines.new()
    seen = list[str]()
    with path.open("a") as file:
        for part in ("on", "e\nt", "wo\n", "\n", "three"):
            file.write(part)
            file.flush()
            seen += lines.new()
    assert seen == ["one", "two", ""]


@pytest.mark.slow  # trains
def test_a_run_stops_behind_a_checkpoint_when_whoever_ordered_it_is_gone(tmp_path: Path) -> None:
    config = build_experiment(ONLINE | {"output": str(tmp_path), "train": {"total_timesteps": 10**9}})
    order = worker.order_of(config, "run")
    job = LocalEngine().start(order)
    wait_for((tmp_path / "run" / "last.zip").exists, 120)
    assert job.process.stdin is not None
    job.process.stdin.close()
    assert job.process.wait(60) == 128 + signal.SIGTERM
    assert "go on with: rltransformers train --resume" in order.log.read_text()
    report = worker.Report(order)
    assert not report.path.exists() and report.close() == {}  # that of an earlier process is not read


FAKE_RUN = (
    "import json, pathlib, sys\n"
    "order = json.loads(sys.stdin.readline())\n"
    "told = {'run': order['name'], 'results': [order['config']['seed']]}\n"
    "pathlib.Path(order['report']).write_text(json.dumps(told) + '\\n')\n"
)


def test_seeds_train_on_either_engine(engine: Engine, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(worker, "PROCESS", ("-c", FAKE_RUN))
    runs = train_seeds(build_experiment(ONLINE | {"output": str(tmp_path)}), "x", range(4, 7), engine, 2)
    assert runs == [{"seed": seed, "run": f"x-seed{seed}", "results": [seed]} for seed in (4, 5, 6)]
    first = (tmp_path / "x-seed4.log").read_bytes()
    again = train_seeds(build_experiment(ONLINE | {"output": str(tmp_path)}), "x", [4], engine, 1)
    assert again[0]["run"] == "x-seed4-2" and (tmp_path / "x-seed4-2.log").is_file()  # a log of its own
    assert (tmp_path / "x-seed4.log").read_bytes() == first


@pytest.mark.third_party
def test_a_sweep_trains_on_ray_and_skips_what_is_finished(
    ray: Engine, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    config = build_experiment(ONLINE | {"output": str(tmp_path)})
    variants = [
        Variant(f"memory {memory}", f"m{memory}", replace(config, backbone=config.backbone | {"memory": memory}))
        for memory in (5, 0)
    ]
    for state in "new", "finished":
        comparison, failed = train_variants("swept", variants, [0], ray, 2, trusted=False)
        captured = capsys.readouterr()
        assert not failed and [group["group"] for group in comparison.summary()] == ["memory 5", "memory 0"]
        assert captured.out == "" and captured.err.startswith(f"2 runs in {tmp_path / 'swept'}: 2 {state}\n")
        assert ("memory 0, seed 0: run folder: " in captured.err) == (state == "new")


def test_files_come_from_machines_without_a_common_file_system(tmp_path: Path) -> None:
    order = order_of(tmp_path, PROGRAM, "0")
    status, files = engines.run(order)
    assert (status, sorted(path.name for path in files)) == (0, ["result", "run.log"])
    for path in files:
        path.unlink()
    assert engines.RayJob(OtherMachine(), files, order).poll() == 0
    assert {path: path.read_bytes() for path in files} == files


class OtherMachine:
    """Ray, whose one task another machine has done."""

    class exceptions:  # noqa: N801 - as in ray
        """Errors of Ray."""

        RayError = TaskCancelledError = OSError

    def wait(self, references: list[object], timeout: float) -> tuple[list[object], list[object]]:
        """Ready."""
        return references, []

    def get(self, files: dict[Path, bytes]) -> tuple[int, dict[Path, bytes]]:
        """What ``run`` returned there."""
        return 0, files


def test_an_engine_that_is_not_installed_names_its_extra(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setitem(sys.modules, "ray", None)
    with pytest.raises(MissingExtraError, match=r"pip install 'rltransformers\[ray\]'"):
        RayEngine()


def test_a_dry_run_starts_no_ray(monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]) -> None:
    monkeypatch.setitem(sys.modules, "ray", None)
    assert main(["suite", "vmpo", "--engine", "ray", "--dry-run"]) == 0
    assert " to do" in capsys.readouterr().out


NOWHERE = {"127.0.0.1:1": ConnectionRefusedError, "here": ValueError, "a:b": ValueError}


@pytest.mark.parametrize("address", NOWHERE)
def test_a_cluster_that_is_not_there_is_noticed_at_once(address: str) -> None:
    with pytest.raises(NOWHERE[address]):
        engines.knock(address)


@pytest.mark.third_party
@pytest.mark.parametrize("address", NOWHERE)
def test_nobody_waits_for_a_cluster_that_is_not_there(address: str) -> None:
    pytest.importorskip("ray", reason="needs rltransformers[ray]")
    with pytest.raises(ConfigError, match=f"no Ray cluster answers at '{address}'"):
        RayEngine(address).slots  # noqa: B018  # connects
