"""Laws of every step, whatever it computes: eager, exported and compiled forms agree, and eager stays as it was.

``check_traced`` is fast (torch.export only); ``check_compiled`` compiles once, for tests marked slow.
"""

from collections.abc import Callable, Collection

import torch
from torch import Tensor, nn

from rltransformers.export.compiled import CompiledStep
from rltransformers.export.step import Tensors, check_step, described, pure_program

Draw = Callable[[torch.Generator], Tensors]
"""A generator → the inputs of one step."""
Run = list[tuple[Tensors, Tensors]]
"""Outputs and new state of each step."""

ROUNDING = 2e-5
"""Relative and absolute; compilers add in another order, and a recurrent state hands the differences on (float32)."""


def cloned(tensors: Tensors) -> Tensors:
    """Copies that nobody else writes to."""
    return {name: tensor.clone() for name, tensor in tensors.items()}


def random_like(inputs: Tensors, generator: torch.Generator) -> Tensors:
    """Inputs of these shapes and types: normal numbers, one truth in ten, integers from those that ``inputs`` has."""

    def drawn(tensor: Tensor) -> Tensor:
        if tensor.dtype == torch.bool:
            return torch.rand(tensor.shape, generator=generator) < 0.1
        if tensor.is_floating_point():
            return torch.randn(tensor.shape, generator=generator, dtype=tensor.dtype)
        order = torch.randperm(tensor.numel(), generator=generator)
        return tensor.flatten()[order].view(tensor.shape)

    return {name: drawn(tensor) for name, tensor in inputs.items()}


def run_of(step: Callable[[Tensors, Tensors], tuple[Tensors, Tensors]], draw: Draw, state: Tensors, steps: int) -> Run:
    """Take ``steps`` steps from ``state``; every form of a step gets the same inputs."""
    generator = torch.Generator().manual_seed(steps)
    state, run = cloned(state), []
    with torch.no_grad():
        for _ in range(steps):
            outputs, state = step(draw(generator), state)
            run.append((outputs, cloned(state)))
    return run


def assert_runs_equal(run: Run, expected: Run, *, tolerance: float) -> None:
    """Every output and state of every step agrees; whole numbers and truths exactly.

    ``tolerance`` is relative to a number, or to the largest of its tensor where that is larger than 1: a sum in which
    terms of both signs cancel is as exact as its terms.
    """
    if _equal_at_once(run, expected, tolerance):
        return
    for time, (found, wanted) in enumerate(zip(run, expected, strict=True)):
        for tensors, others in zip(found, wanted, strict=True):
            assert set(tensors) == set(others)
            for name, tensor in tensors.items():
                assert described(tensor) == described(others[name]), name
                real = tensor.is_floating_point()
                torch.testing.assert_close(
                    tensor,
                    others[name],
                    rtol=tolerance if real else 0,
                    atol=tolerance * _size(others[name]) if real else 0,
                    equal_nan=False,
                    msg=lambda text, time=time, name=name: f"step {time}, {name}: {text}",  # type: ignore[misc]
                )


def _equal_at_once(run: Run, expected: Run, tolerance: float) -> bool:
    """Whether the runs agree, told from the steps of each tensor in one piece, which takes a tenth of the time.

    False where steps differ in names, types or shapes, too: one step after the other says what is wrong.
    """
    if not run or len(run) != len(expected):
        return False
    for part in range(2):
        found, wanted = [step[part] for step in run], [step[part] for step in expected]
        if any(set(tensors) != set(wanted[0]) for tensors in found + wanted):
            return False
        for name, first in wanted[0].items():
            ours, theirs = [tensors[name] for tensors in found], [tensors[name] for tensors in wanted]
            if any(tensor.shape != first.shape or tensor.dtype != first.dtype for tensor in ours + theirs):
                return False
            one, other = (torch.stack(each).view(len(run), first.numel()) for each in (ours, theirs))
            close = one == other
            if first.is_floating_point() and not close.all():
                size = other.abs().where(other.isfinite(), 0.0).amax(1, keepdim=True).clamp(min=1.0)
                error = (one - other).abs()
                close |= error.isfinite() & (error <= tolerance * (size + other.abs()))
            if not close.all():
                return False
    return True


def _size(numbers: Tensor) -> float:
    """The largest finite number, at least 1."""
    finite = numbers.detach()[numbers.isfinite()]
    return max(1.0, float(finite.abs().max())) if finite.numel() else 1.0


def check_traced(
    module: nn.Module,
    inputs: Tensors,
    state: Tensors,
    *,
    shared: Collection[str] = (),
    steps: int = 100,
    draw: Draw | None = None,
    tolerance: float = 1e-6,
) -> None:
    """Steps keep shapes, exported equals eager for both ways of tracing, and tracing leaves nothing behind in eager.

    The examples have two rows or more; the programs are for any number, and also run on the first row alone.
    """
    draw = draw or (lambda generator: random_like(inputs, generator))
    check_step(module, inputs, state)
    before = run_of(module, draw, state, steps)
    for strict in (False, True):
        exported = pure_program(module, inputs, state, shared=shared, strict=strict).module()
        assert_runs_equal(run_of(exported, draw, state, steps), before, tolerance=tolerance)
        alone, lone = _first_row(draw, shared), _rows(state, 1, shared)
        assert_runs_equal(
            run_of(exported, alone, lone, min(steps, 3)),
            run_of(module, alone, lone, min(steps, 3)),
            tolerance=tolerance,
        )
    assert_runs_equal(run_of(module, draw, state, steps), before, tolerance=0)


def check_compiled(
    module: nn.Module,
    inputs: Tensors,
    state: Tensors,
    *,
    shared: Collection[str] = (),
    steps: int = 100,
    draw: Draw | None = None,
    tolerance: float = ROUNDING,
) -> CompiledStep:
    """Compiled equals eager, for the batch of the examples and for one row, and with other weights than it was made of.

    Outputs stay as they were returned.
    """
    draw = draw or (lambda generator: random_like(inputs, generator))
    compiled = CompiledStep(module, inputs, state, shared=shared)
    alone, lone = _first_row(draw, shared), _rows(state, 1, shared)

    def in_place(inputs: Tensors, state: Tensors) -> tuple[Tensors, Tensors]:
        return compiled.step(inputs, state), state

    assert_runs_equal(run_of(in_place, draw, state, steps), run_of(module, draw, state, steps), tolerance=tolerance)
    assert_runs_equal(run_of(in_place, alone, lone, steps), run_of(module, alone, lone, steps), tolerance=tolerance)
    generator = torch.Generator().manual_seed(steps)
    with torch.no_grad():
        for weight in module.parameters():
            weight.add_(0.1 * torch.randn(weight.shape, generator=generator))
    assert_runs_equal(run_of(in_place, draw, state, steps), run_of(module, draw, state, steps), tolerance=tolerance)
    return compiled


def _rows(tensors: Tensors, rows: int, shared: Collection[str]) -> Tensors:
    return {name: tensor[:rows] if tensor.ndim and name not in shared else tensor for name, tensor in tensors.items()}


def _first_row(draw: Draw, shared: Collection[str]) -> Draw:
    return lambda generator: _rows(draw(generator), 1, shared)
