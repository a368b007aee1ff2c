"""What every test shares: one thread, fixed seeds, no display, and datasets that land in a temporary folder."""

import gc
import os
import random
import signal
from collections.abc import Iterator
from typing import Any

os.environ["MPLBACKEND"] = "Agg"  # pictures are written to files; must be set before matplotlib is imported
os.environ["SDL_VIDEODRIVER"] = "dummy"  # pygame draws without a display
os.environ["OMP_NUM_THREADS"] = "1"  # also for the processes that tests start
# Compiling a step tries sets of instructions with the C++ compiler, 7 of 25 seconds; here the processor says which.
os.environ.setdefault("TORCHINDUCTOR_VEC_ISA_OK", "1")
# What calls the kernels is compiled as it is written, without tables for debuggers; kernels are compiled as for users.
os.environ.setdefault("AOT_INDUCTOR_COMPILE_WRAPPER_OPT_LEVEL", "O0")
os.environ.setdefault("AOT_INDUCTOR_ENABLE_LINE_TABLES", "0")

import hypothesis
import numpy as np
import pytest
import torch
from xdist.scheduler import LoadGroupScheduling

from tests.seeding import seed
from tests.shapes import check_package

# Annotated shapes hold in every call of this process; those that tests start check nothing.
check_package("rltransformers")

# PyTorch keeps a stack trace of every seed for each kind of device that is not there: half a millisecond.
for devices in (torch.cuda, torch.xpu, torch.mtia):
    if not devices.is_available():
        setattr(devices, "manual_seed_all", lambda seed: None)  # noqa: B010


def sync_nothing(fd: Any) -> None:
    """Refuse what is no open file, and wait for no disk: files of this process need not outlive the machine."""
    os.fstat(fd if isinstance(fd, int) else fd.fileno())


os.fsync = sync_nothing  # processes that tests start and kill wait as those of users do

torch.set_num_threads(1)  # two test processes on two cores; more threads only wait for each other

# The same examples on every run, and no deadline: the first call of a torch function is slow for reasons of its own.
hypothesis.settings.register_profile("rltransformers", deadline=None, derandomize=True)
hypothesis.settings.load_profile("rltransformers")


def pytest_collection_finish() -> None:
    """The collector of garbage leaves alone what lives to the end: modules, thousands of tests, caches of torch.

    It would look through them again and again, an eighth of the time of the laws of exported steps. What has survived
    one look through everything is not looked at again.
    """
    hypothesis.given(hypothesis.strategies.none())(lambda _: None)()  # looks once who holds its generator: none frozen
    gc.callbacks.append(freeze_survivors)
    gc.collect()


def freeze_survivors(phase: str, collection: dict[str, int]) -> None:
    """Called by the collector before and after each of its rounds."""
    if phase == "stop" and collection["generation"] == 2:
        gc.freeze()


def pytest_collection_modifyitems(config: pytest.Config, items: list[pytest.Item]) -> None:
    """Several processes begin with the files that have slow tests, so that none waits for a long test at the end."""
    if hasattr(config, "workerinput"):
        slow = {item.path for item in items if item.get_closest_marker("slow")}
        items.sort(key=lambda item: item.path not in slow)


class Functions(LoadGroupScheduling):
    """Gives processes a test function with all its parameters, or a group, at a time.

    One test at a time takes 2 ms of scheduling for each, an eighth of the tests of the laws.
    """

    def _split_scope(self, nodeid: str) -> str:
        scope: str = super()._split_scope(nodeid)
        return scope.partition("[")[0]

    def _assign_work_unit(self, node: Any) -> None:
        work = self.assigned_work.get(node, {})
        for scope in [scope for scope, tests in work.items() if all(tests.values())]:
            del work[scope]  # which would be counted again after every test
        super()._assign_work_unit(node)


@pytest.hookimpl(optionalhook=True)
def pytest_xdist_make_scheduler(config: pytest.Config, log: Any) -> Functions | None:
    return Functions(config, log) if config.getvalue("dist") == "loadgroup" else None


@pytest.fixture(autouse=True)
def fixed_seeds() -> None:
    """Global generators start equal in every test; a fixture of wider scope that draws numbers seeds itself."""
    random.seed(0)
    np.random.seed(0)
    seed(0)


@pytest.fixture(scope="session", autouse=True)
def minari_datasets_in_a_temporary_folder(tmp_path_factory: pytest.TempPathFactory) -> Iterator[None]:
    """Minari reads this variable at every call; the tests never touch the datasets of whoever runs them."""
    with pytest.MonkeyPatch.context() as patch:
        patch.setenv("MINARI_DATASETS_PATH", str(tmp_path_factory.mktemp("minari")))
        yield


@pytest.fixture
def law_device() -> Iterator[None]:
    """The laws make tensors and modules on the device that RLTRANSFORMERS_LAW_DEVICE names, the CPU by default."""
    device = os.environ.get("RLTRANSFORMERS_LAW_DEVICE", "cpu")
    if device == "cpu":
        yield
        return
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(torch.backends.cudnn, "allow_tf32", False)  # convolutions of float32 in 10 bits otherwise
        torch.set_default_device(device)
        yield
        torch.set_default_device(None)


@pytest.fixture
def default_signals() -> Iterator[None]:
    """Signals do what they do by default, also where the tests run in the background, as under nohup."""
    numbers = (signal.SIGINT, signal.SIGTERM, signal.SIGHUP)
    before = [signal.signal(number, signal.SIG_DFL) for number in numbers]
    yield
    for number, handler in zip(numbers, before, strict=True):
        signal.signal(number, handler)
