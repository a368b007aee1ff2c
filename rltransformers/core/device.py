"""Where tensors live: one place that reads a device setting, how much fits there, and the cores of the machine."""

import os
import warnings
from contextlib import AbstractContextManager, suppress
from pathlib import Path

import torch

from rltransformers.core.errors import ConfigError
from rltransformers.core.ranges import shown

CPU = torch.device("cpu")


def find_device(device: torch.device | str, name: str = "device") -> torch.device:
    """The device of this name; "auto" is CUDA where there is one; "cuda" without one is the CPU, with a warning.

    Raises ConfigError for a name that torch does not know, or a device that holds no tensor here.
    """
    try:
        found = torch.device("cuda" if device == "auto" else device)
        if found.type == "cuda" and not torch.cuda.is_available():
            if device != "auto":
                warnings.warn(f"{name} is {device}, but torch finds no CUDA here; the CPU is taken", stacklevel=1)
            return CPU
        torch.empty(0, device=found).cpu()
    except (RuntimeError, NotImplementedError, AssertionError) as error:
        raise ConfigError(
            f"{name} must be 'auto', 'cpu', 'cuda' or another device of this machine, got {shown(str(device))}"
        ) from error
    return found


def forked_rng(device: torch.device = CPU) -> AbstractContextManager[None]:
    """Within the block, what is drawn on the CPU and on ``device`` leaves torch's own random numbers as they were."""
    return torch.random.fork_rng(devices=[device] if device.type == "cuda" else [])


def cores() -> int:
    """Cores of this machine that this process may use."""
    return len(os.sched_getaffinity(0)) if hasattr(os, "sched_getaffinity") else os.cpu_count() or 1


def bytes_of_device(device: torch.device) -> int:
    """Bytes of memory that this process may have, used or not: of its GPU, or of its machine, container and limits."""
    if device.type == "cuda":
        return int(torch.cuda.get_device_properties(device).total_memory)
    return min([_physical_memory(), *_process_limits(), *_container_limits()])


def check_bytes(needed: int, what: str, way_out: str, device: torch.device | None = None) -> None:
    """Raise ConfigError, "<what> so much memory, there is so much; <way_out>", unless ``needed`` bytes fit there."""
    room = bytes_of_device(device or CPU)
    if needed > room:
        raise ConfigError(f"{what} {needed / 2**30:.3g} GiB, this process may have {room / 2**30:.3g}; {way_out}")


def _physical_memory() -> int:
    return os.sysconf("SC_PAGE_SIZE") * os.sysconf("SC_PHYS_PAGES") if hasattr(os, "sysconf") else 2**63


def _process_limits() -> list[int]:
    """Limits of ``ulimit``."""
    try:
        import resource  # which Windows lacks
    except ImportError:
        return []
    limits = [resource.getrlimit(which)[0] for which in (resource.RLIMIT_AS, resource.RLIMIT_DATA)]
    return [limit for limit in limits if limit != resource.RLIM_INFINITY]


def _container_limits(groups: Path = Path("/proc/self/cgroup"), root: Path = Path("/sys/fs/cgroup")) -> list[int]:
    """Limits of the control groups of this process and of those above them, in both versions of Linux."""
    limits = []
    with suppress(OSError):
        for line in groups.read_text().splitlines():
            number, names, place = line.split(":", 2)
            if number != "0" and "memory" not in names.split(","):
                continue
            top, file = (root, "memory.max") if number == "0" else (root / "memory", "memory.limit_in_bytes")
            inside = top / place.lstrip("/")  # not there inside a container, which sees its own group at the top
            for folder in (inside, *inside.parents):
                if folder.is_relative_to(top) and (folder / file).is_file():
                    text = (folder / file).read_text().strip()
                    limits += [int(text)] if text.isdigit() else []
    return limits
