"""Where tensors live: one place that reads a device setting, and how much fits there."""

import os
import warnings
from typing import Any

import numpy as np
import torch
from torch import Tensor

from rltransformers.core.errors import ConfigError
from rltransformers.core.ranges import shown


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
    """Bytes of memory of this machine or of its GPU, used or not."""
    if device.type == "cuda":
        return int(torch.cuda.get_device_properties(device).total_memory)
    return os.sysconf("SC_PAGE_SIZE") * os.sysconf("SC_PHYS_PAGES") if hasattr(os, "sysconf") else 2**63


def to_tensor(values: Any, device: torch.device, dtype: torch.dtype | None = None) -> Tensor:
    """``torch.as_tensor`` on a device, in half its time for an array that stays on the CPU.

    The tensor of such an array shares its memory, unless its type changes.
    """
    if type(values) is np.ndarray and device.type == "cpu":
        tensor = torch.from_numpy(values)
        return tensor if dtype is None or tensor.dtype == dtype else tensor.to(dtype)
    return torch.as_tensor(values, dtype=dtype, device=device)
