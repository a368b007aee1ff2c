"""Processes of many runs: their input, what they print and leave, and that Ray starts lost ones again."""

import signal
import sys
import time
from collections.abc import Callable, Iterator
from pathlib import Path

import pytest

from rltransformers.cli import engines
from rltransformers.cli.engines import Engine, Job, LocalEngine, Order, RayEngine
from rltransformers.core.errors import ConfigError, MissingExtraError

pytestmark = pytest.mark.xdist_group("ray")  # one Ray at a time

PROGRAM = """
import os, pathlib, sys
print("asked for", sys.stdin.readline().strip(), os.environ["COLOUR"])
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
        {"COLOUR": "green"},
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
        RayEngine(address)
