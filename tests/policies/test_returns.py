"""Targets of an evaluation."""

from typing import Any

import numpy as np
import pytest

from rltransformers.core.errors import ConfigError
from rltransformers.policies.returns import target_list


@pytest.mark.parametrize("targets", [{1: 2}, {1.0, 2.0}, "12", b"12", {}, [[1.0]], [True], [float("nan")], []])
def test_what_is_no_list_of_numbers_is_refused(targets: Any) -> None:
    with pytest.raises(ConfigError, match="target_returns"):
        target_list(targets, 1.0, 1.0)


@pytest.mark.parametrize("targets", [1, 1.0, [1], (1.0,), np.array([1.0]), np.float32(1), range(1, 2), None])
def test_numbers_and_lists_of_them_are_taken(targets: Any) -> None:
    assert target_list(targets, 1.0, 1.0) == [1.0]
