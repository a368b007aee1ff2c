"""How checks compare outputs, and run policies to get some. Axes as in ``protocol``."""

from collections.abc import Callable, Sequence
from typing import Any, NamedTuple

import torch
from jaxtyping import Bool, Float
from torch import Tensor

from rltransformers.conformance.protocol import PolicyWithMemory
from rltransformers.core.errors import ConfigError, error_line

ROWS = 3
SHORT, BEFORE = 13, 6
"""Steps of a segment, and steps before something happens; both differ from ``ROWS``, so that swapped axes show."""
TOLERANCES = {torch.float32: 1e-5, torch.float64: 1e-10}
"""Absolute, for outputs around 1, see ``tolerance_of``.

Two orders of the same sums differ by some units in the last place: 6e-8 in float32 and 1e-16 in float64, times some
hundred for a few layers of a few hundred products. The next slip of a memory by one step is at least 1e-3.
"""


class Found(NamedTuple):
    """The largest difference, its tolerance and its place; ``remark`` is told of a check that passed."""

    difference: float
    tolerance: float
    place: str
    remark: str = ""

    @property
    def passes(self) -> bool:
        return self.difference <= self.tolerance


class Inapplicable(Exception):  # noqa: N818  # it is no error
    """Raised inside a check or a law that has nothing to check; its text is the reason."""


def tolerance_of(outputs: Tensor) -> float:
    """Of ``outputs``: absolute, and in the units of the largest of them above 1; ConfigError for lower precisions."""
    if outputs.dtype not in TOLERANCES:
        raise ConfigError(f"outputs must be float32 or float64, got {outputs.dtype}; compute in float32")
    return TOLERANCES[outputs.dtype] * max(1.0, float(outputs.abs().max()))


def compared(found: Tensor, expected: Tensor, place: str = "row {row}, step {step}") -> Found:
    """The largest difference of outputs [B, T, A] or [B, T], and the ``place`` of it; NaN is infinitely far."""
    if found.shape != expected.shape:
        return Found(float("inf"), 0.0, f"shapes {tuple(found.shape)} and {tuple(expected.shape)}")
    tolerance = tolerance_of(expected.nan_to_num(nan=0.0, posinf=0.0, neginf=0.0))
    difference = (found - expected).abs().nan_to_num(nan=float("inf"))
    difference = difference.masked_fill(found == expected, 0.0)  # masked logits are minus infinity on both sides
    difference = difference if difference.ndim == 2 else difference.amax(-1)
    row, step = divmod(int(difference.argmax()), difference.shape[1])
    return Found(float(difference[row, step]), tolerance, place.format(row=row, step=step))


def worst(findings: Sequence[Found]) -> Found:
    """The one that exceeds its tolerance most."""
    return max(findings, key=lambda each: each.difference / each.tolerance if each.tolerance else float("inf"))


def numbers(policy: PolicyWithMemory, steps: int, seed: int = 0) -> Float[Tensor, "B T D"]:
    """Inputs that follow from ``seed``."""
    dtype = next(iter(policy.weights())).dtype
    generator = torch.Generator().manual_seed(seed)
    return torch.randn(ROWS, steps, policy.inputs, generator=generator).to(dtype)


def first_steps(rows: int, steps: int, *at: tuple[int, ...]) -> Bool[Tensor, "B T"]:
    """Where episodes begin: at step 0 of every row, and at the steps ``at[i]`` of row i."""
    first = torch.zeros(rows, steps, dtype=torch.bool)
    first[:, 0] = True
    for row, places in enumerate(at):
        first[row, list(places)] = True
    return first


def stepped(
    policy: PolicyWithMemory,
    inputs: Float[Tensor, "B T D"],
    first: Bool[Tensor, "B T"] | None = None,
    state: Any = None,
) -> tuple[Float[Tensor, "B T A"], Any]:
    """Outputs of all steps, taken one at a time, and the state after them; without a state episodes begin."""
    if first is None:
        first = first_steps(*inputs.shape[:2]) if state is None else torch.zeros(inputs.shape[:2], dtype=torch.bool)
    state, outputs = policy.reset(inputs.shape[0]) if state is None else state, []
    for t in range(inputs.shape[1]):
        output, state = policy.step(inputs[:, t], first[:, t], state)
        outputs.append(output)
    return torch.stack(outputs, 1), state


def steps_of(policy: PolicyWithMemory) -> int:
    """Steps of a segment that the policy takes."""
    longest = policy.traits.longest
    return SHORT if longest is None else min(SHORT, longest)


def histories(policy: PolicyWithMemory) -> list[int]:
    """Steps before something happens: a few, and as many as fill what is remembered, where the policy goes on after."""
    full = policy.traits.full
    if full is None or full + 2 <= BEFORE:
        return [BEFORE]
    _, refusal = until_refused(policy, numbers(policy, full + 2 + SHORT))
    return [BEFORE] if refusal else [BEFORE, full + 2]


def row_by_row(compute: Callable[..., Tensor], *batch: Tensor) -> Tensor:
    """What ``compute`` gives for every row of its arguments by itself."""
    return torch.cat([compute(*(part[row : row + 1] for part in batch)) for row in range(ROWS)])


def until_refused(policy: PolicyWithMemory, inputs: Float[Tensor, "B T D"]) -> tuple[Float[Tensor, "B t A"], str]:
    """Outputs of the steps up to the first that raises, and what it says; ValueError when that is the first step."""
    state, outputs, refusal = policy.reset(inputs.shape[0]), [], ""
    first = first_steps(*inputs.shape[:2])
    for t in range(inputs.shape[1]):
        taken, refusal = attempted(policy.step, inputs[:, t], first[:, t], state)
        if taken is None:
            break
        output, state = taken
        outputs.append(output)
    if not outputs:
        raise ValueError(f"the policy refuses its first step: {refusal}")
    return torch.stack(outputs, 1), refusal


def attempted(compute: Callable[..., Any], *arguments: Any) -> tuple[Any, str]:
    """Result of ``compute``, or None and the exception in a line: whatever a library raises is a refusal."""
    try:
        return compute(*arguments), ""
    except Exception as error:
        text = error_line(error)
        return None, text if len(text) <= 90 else f"{text[:90]}…"
