"""Where tensors live: one place that reads a device setting, and how much fits there."""

import os
import warnings
from contextlib import suppress
from pathlib import Path
from typing import Any

import numpy as np
import torch
from torch import Tensor

from rltransformers.core.errors import ConfigError
from rltransformers.core.ranges import shown

CPU = torch.device("cpu")


def find_device(device: torch.device | str, name: str = "device") -> torch.device:
    """The device of this name; "auto" is CUDA where there is one; "cuda" without one is the CPU, with a warning.

    Raises:
        ConfigError: for a name that torch does not know, or a device that holds no tensor here.
    """
    try:
        found = torch.device("cuda" if device == "auto" else device)
        if found.type == "cuda" and not torch.cuda.is_available():
            if device != "auto":
                warnings.warn(f"{name} is {device}, but torch finds no CUDA here; the CPU is taken", stacklevel=1)
            return torch.device("cpu")
        torch.empty(0, device=found).cpu()
    except (RuntimeError, NotImplementedError, AssertionError) as error:
        raise ConfigError(
            f"{name} must be 'auto', 'cpu', 'cuda' or another device of this machine, got {shown(str(device))}"
        ) from error
    return found


def memory_of(device: torch.device) -> int:
    """Bytes of memory that this process may have, used or not: of its GPU, or of its machine, container and limits."""
    if device.type == "cuda":
        return int(torch.cuda.get_device_properties(device).total_memory)
    return min([_physical_memory(), *_process_limits(), *_container_limits()])


def check_memory(needed: int, what: str, way_out: str, device: torch.device | None = None) -> None:
    """Raise ConfigError, "<what> so much memory, there is so much; <way_out>", unless ``needed`` bytes fit into it.

    Args:
        device: where they lie; None for the CPU.
    """
    room = memory_of(torch.device("cpu") if device is None else device)
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


def to_tensor(values: Any, device: torch.device, dtype: torch.dtype | None = None) -> Tensor:
    """``torch.as_tensor`` on a device, of arrays of any memory layout, in half its time for one that stays on the CPU.

    The tensor shares the memory of an array on the CPU, unless the type changes, or torch cannot have the array as it
    is: read-only, with negative strides, or in another byte order.
    """
    if not isinstance(values, np.ndarray):
        return torch.as_tensor(values, dtype=dtype, device=device)
    try:
        tensor = torch.from_numpy(values if values.flags.writeable else _plain(values))
    except (ValueError, TypeError):
        tensor = torch.from_numpy(_plain(values))
    return tensor.to(device, dtype) if device.type != "cpu" or (dtype is not None and tensor.dtype != dtype) else tensor


def _plain(values: np.ndarray) -> np.ndarray:
    """A copy of an array in the layout and the byte order of this machine, of a type that torch has."""
    longer = values.dtype.kind == "f" and values.dtype.itemsize > 8
    return np.array(values, np.float64 if longer else values.dtype.newbyteorder("="), order="C", subok=False)
