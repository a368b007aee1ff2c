"""Names of devices, read in one place."""

from typing import Any

import numpy as np
import pytest
import torch

from rltransformers.core.device import find_device, to_tensor
from rltransformers.core.errors import ConfigError


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


@pytest.mark.parametrize("values", [np.arange(3), np.arange(3, dtype=np.float32), np.arange(3) > 1, [0, 1, 2], 1.5])
@pytest.mark.parametrize("dtype", [None, torch.float32, torch.int64])
def test_a_tensor_of_values_is_that_of_torch(values: Any, dtype: torch.dtype | None) -> None:
    got, expected = to_tensor(values, torch.device("cpu"), dtype), torch.as_tensor(values, dtype=dtype)
    assert got.dtype == expected.dtype and torch.equal(got, expected)
    if isinstance(values, np.ndarray):
        assert np.shares_memory(got.numpy(), values) == np.shares_memory(expected.numpy(), values)
