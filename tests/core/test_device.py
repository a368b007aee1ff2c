"""Names of devices, read in one place."""

import subprocess
import sys
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch

from rltransformers.core import device as module
from rltransformers.core.device import bytes_of_device, find_device
from rltransformers.core.errors import ConfigError
from rltransformers.core.values import to_tensor


@pytest.mark.parametrize("name", ["cpu", torch.device("cpu"), "cpu:0"])
def test_the_cpu_is_found_by_its_names(name: Any) -> None:
    assert find_device(name).type == "cpu"


@pytest.mark.parametrize("name", ["auto", "cuda", torch.device("cuda"), "cuda:7"])
def test_without_cuda_it_is_the_cpu_and_who_asked_for_cuda_hears_of_it(
    name: Any, monkeypatch: pytest.MonkeyPatch, recwarn: pytest.WarningsRecorder
) -> None:
    monkeypatch.setattr(torch.cuda, "is_available", lambda: False)
    assert find_device(name, "algorithm.device") == torch.device("cpu")
    warnings = [] if name == "auto" else [f"algorithm.device is {name}, but torch finds no CUDA here; the CPU is taken"]
    assert [str(each.message) for each in recwarn] == warnings


@pytest.mark.parametrize("name", ["nonsense", "", "cpu:-1", "meta", "cuda:x", "xpu", "line\nline", "x" * 10_000])
def test_a_name_that_holds_no_tensor_here_is_refused_in_one_line(name: str) -> None:
    with pytest.raises(ConfigError) as caught:
        find_device(name, "algorithm.device")
    message = str(caught.value)
    assert message.startswith("algorithm.device must be 'auto', 'cpu', 'cuda' or another device of this machine, got ")
    assert len(message) < 500 and "\n" not in message


def test_memory_is_what_limits_of_the_process_and_of_its_container_leave(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    cpu = torch.device("cpu")
    monkeypatch.setattr(module, "_physical_memory", lambda: 64)
    monkeypatch.setattr(module, "_process_limits", lambda: [])
    monkeypatch.setattr(module, "_container_limits", lambda: [])
    assert bytes_of_device(cpu) == 64
    monkeypatch.setattr(module, "_process_limits", lambda: [32, 99])
    assert bytes_of_device(cpu) == 32
    monkeypatch.setattr(module, "_container_limits", lambda: [16])
    assert bytes_of_device(cpu) == 16


@pytest.mark.parametrize(
    ("groups", "files", "limits"),
    [
        ("0::/user/job\n", {"user/job/memory.max": "300\n", "user/memory.max": "max\n"}, [300]),
        ("0::/user/job\n", {"memory.max": "200"}, [200]),
        ("0::/\n", {"memory.max": "max"}, []),
        ("1:cpu:/x\n4:memory:/x\n0::/\n",
         {"memory/x/memory.limit_in_bytes": "1", "memory/memory.limit_in_bytes": "9", "x/memory.max": "5"}, [1, 9]),
    ],
)  # fmt: skip
def test_limits_of_a_container_are_read_in_both_versions(
    groups: str, files: dict[str, str], limits: list[int], tmp_path: Path
) -> None:
    listing = tmp_path / "listing"
    listing.write_text(groups)
    for name, text in files.items():
        (tmp_path / name).parent.mkdir(parents=True, exist_ok=True)
        (tmp_path / name).write_text(text)
    assert module._container_limits(listing, tmp_path) == limits
    assert module._container_limits(tmp_path / "absent", tmp_path) == []


@pytest.mark.skipif(sys.platform == "win32", reason="Windows has no such limits")
def test_a_limit_of_a_process_is_seen() -> None:
    command = (
        "import resource as r; r.setrlimit(r.RLIMIT_DATA, (2**36, r.getrlimit(r.RLIMIT_DATA)[1]));"
        "from rltransformers.core.device import _process_limits; print(_process_limits())"
    )
    assert (
        "68719476736"
        in subprocess.run([sys.executable, "-c", command], capture_output=True, text=True, check=True).stdout
    )


@pytest.mark.parametrize("values", [np.arange(3), np.arange(3, dtype=np.float32), np.arange(3) > 1, [0, 1, 2], 1.5])
@pytest.mark.parametrize("dtype", [None, torch.float32, torch.int64])
def test_a_tensor_of_values_is_that_of_torch(values: Any, dtype: torch.dtype | None) -> None:
    got, expected = to_tensor(values, torch.device("cpu"), dtype), torch.as_tensor(values, dtype=dtype)
    assert got.dtype == expected.dtype and torch.equal(got, expected)
    if isinstance(values, np.ndarray):
        assert np.shares_memory(got.numpy(), values) == np.shares_memory(expected.numpy(), values)
