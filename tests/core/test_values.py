"""What an environment says about the success of an episode."""

from typing import Any

import numpy as np
import pytest

from rltransformers.core.errors import DataError
from rltransformers.core.values import success_of


@pytest.mark.parametrize(
    ("info", "success"),
    [
        ({"is_success": True}, True),
        ({"is_success": np.array([False]), "success": True}, False),
        ({"success": 1.0}, True),
        ({"success": "at 3 o'clock"}, None),
        ({"is_success": None}, None),
        ({}, None),
    ],
)
def test_success_is_read_from_the_last_info(info: dict[str, Any], success: bool | None) -> None:
    assert success_of(info, 0) is success


@pytest.mark.parametrize("value", ["maybe", [1, 2], {"a": 1}, {"a": np.zeros(2)}, np.array(["x"]), np.nan])
def test_a_success_that_is_no_number_is_refused(value: Any) -> None:
    with pytest.raises(DataError, match=r"info\['is_success'\] of environment 3"):
        success_of({"is_success": value}, 3)
