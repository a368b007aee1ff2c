"""What users import and call is there; taking a line off the list breaks somebody's program."""

import importlib
import inspect
from pathlib import Path
from typing import Any

import pytest

LINES = (Path(__file__).parent / "public_names.txt").read_text().splitlines()


@pytest.mark.parametrize("module", sorted({line.split("(")[0].rsplit(".", 1)[0] for line in LINES}))
def test_public_names_are_there_with_their_parameters(module: str) -> None:
    missing = []
    for line in LINES:
        name, _, rest = line.partition("(")
        if name.rsplit(".", 1)[0] != module:
            continue
        try:
            value = found(name)
        except (ImportError, AttributeError):
            missing.append(line)
            continue
        parameters = [parameter for parameter in rest.rstrip(")").split(", ") if parameter]
        if parameters:
            known = inspect.signature(value).parameters
            missing += [f"{name}: {parameter}" for parameter in parameters if parameter not in known]
    assert not missing


def found(name: str) -> Any:
    """What a dotted name stands for."""
    parts = name.split(".")
    for count in range(len(parts), 0, -1):
        try:
            value: Any = importlib.import_module(".".join(parts[:count]))
        except ModuleNotFoundError:
            continue
        for part in parts[count:]:
            value = getattr(value, part)
        return value
    raise ImportError(name)
