"""Operations that mechanisms may use survive torch.export, the compiler and, but for a few, ONNX; all in one step."""

from pathlib import Path

import pytest
import torch

from rltransformers.core.errors import ConfigError
from rltransformers.export.files import write_step
from tests.export.laws import assert_runs_equal, check_compiled, check_traced, run_of
from tests.export.operations import ONNX_LACKS, OPERATIONS, Operations, operation_inputs, operation_state
from tests.export.test_files import onnx_step

NEWTON = 1e-4
"""Twenty rounds of Newton's iterations and sums of logarithms enlarge the rounding of float32 by an order or two."""

# Operations of PyTorch, its compiler and ONNX; what our mechanisms take of them is traced by law L11.
pytestmark = [pytest.mark.slow, pytest.mark.third_party]


def test_every_operation_traces_and_equals_eager() -> None:
    module = Operations(list(OPERATIONS)).eval()
    check_traced(
        module,
        operation_inputs(3, torch.Generator()),
        operation_state(3),
        steps=8,
        draw=lambda it: operation_inputs(3, it),
    )


def test_every_operation_compiles_and_equals_eager(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("RLTRANSFORMERS_CACHE", str(tmp_path))
    check_compiled(
        Operations(list(OPERATIONS)).eval(),
        operation_inputs(3, torch.Generator()),
        operation_state(3),
        steps=8,
        draw=lambda it: operation_inputs(3, it),
        tolerance=NEWTON,
    )


def test_operations_that_onnx_has_equal_eager_in_a_file(tmp_path: Path) -> None:
    module = Operations([name for name in OPERATIONS if name not in ONNX_LACKS]).eval()
    write_step(module, tmp_path / "step.onnx", operation_inputs(3, torch.Generator()), operation_state(3))
    forms = (onnx_step(tmp_path / "step.onnx"), module)
    for batch in (1, 3):
        draw, state = (lambda it, batch=batch: operation_inputs(batch, it)), operation_state(batch)
        assert_runs_equal(*(run_of(form, draw, state, 8) for form in forms), tolerance=NEWTON)


@pytest.mark.parametrize("name", sorted(ONNX_LACKS))
def test_an_operation_that_onnx_lacks_is_named(tmp_path: Path, name: str) -> None:
    with pytest.raises(ConfigError, match=r"cannot be written as ONNX.*op='(aten|prims)\..*write a \.pt2 file"):
        write_step(
            Operations([name]).eval(),
            tmp_path / "step.onnx",
            operation_inputs(3, torch.Generator()),
            operation_state(3),
        )
    assert not list(tmp_path.iterdir())
