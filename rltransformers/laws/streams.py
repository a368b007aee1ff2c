"""Streams of episodes to try a backbone on, and how two results are compared.

Axes: B streams, T tokens, N elements, D width. Every stream of ``Case`` has several episodes; sizes differ.
"""

from collections.abc import Iterable, Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from itertools import pairwise
from typing import Any
from unittest.mock import patch

import torch
from jaxtyping import Float
from torch import Tensor

from rltransformers.attention import reach
from rltransformers.backbone import Backbone, BackboneConfig, State
from rltransformers.functional.call import Context

B, T = 3, 23
STARTS = [[7], [0, 3, 4, 15], [20]]  # adjacent episodes, one at the first token, one at the fourth token from the end
SPLITS = [[10, 2, 11], [5, 5, 5, 5, 3], [2] + 10 * [1] + [11]]
PADDING = [0, 1, 5, 6, 7, 13, 20, 30, 31]  # left, middle, right

# Rounding of float64 (1e-16) through three layers of a few hundred additions each.
EXACT = 1e-12

ELEMENTS = 4
LEAST = 153.5 / 512
"""An element exists where its entry of the token is larger; of normal tokens one in seven has no element at all.

The number lies in the middle between two numbers of bfloat16, so that rounding a token creates and removes no element.
"""


class LawError(AssertionError):
    """A backbone broke a law; the message says how."""


def require(holds: object, message: str) -> None:
    """Raise LawError unless a condition holds."""
    if not holds:
        raise LawError(message)


class Looking(Backbone):
    """A backbone that finds elements to look at in the tokens themselves, so that every config takes the same call."""

    def forward(self, x: Tensor, *arguments: Any, **keywords: Any) -> tuple[Tensor, State]:
        return super().forward(x, *arguments, context=elements_of(x), **keywords)

    def step(self, x: Tensor, *arguments: Any, context: Context | None = None, **keywords: Any) -> tuple[Tensor, State]:
        return super().step(x, *arguments, context=context or elements_of(x), **keywords)


def elements_of(x: Float[Tensor, "B T D"]) -> Context:
    """Return ``ELEMENTS`` that depend on every entry of their token, and on no other token."""
    rows = [torch.tanh(x.roll(place + 1, -1) * (place + 1) / 2) for place in range(ELEMENTS)]
    return Context(torch.stack(rows, 2), x[..., :ELEMENTS].float() > LEAST)


def backbone_of(config: BackboneConfig) -> Backbone:
    """Make the backbone of a config, with elements to look at where it reads any."""
    return (Looking if config.reads_context else Backbone)(config)


@dataclass
class Case:
    """A backbone in evaluation mode and the streams it is tried on.

    Attributes:
        x: tokens [B, T, D].
        reset: True at the first token of an episode [B, T].
        tolerance: allowed difference, relative to numbers of size 1.
        difference: the largest one so far.
    """

    backbone: Backbone
    x: Tensor
    reset: Tensor
    tolerance: float = EXACT
    difference: float = 0.0

    @staticmethod
    def of(
        backbone: Backbone, starts: Sequence[Sequence[int]] = STARTS, time: int = T, tolerance: float = EXACT
    ) -> "Case":
        """Draw random streams whose episodes begin at ``starts``."""
        reset = torch.zeros(len(starts), time, dtype=torch.bool)
        for row, places in zip(reset, starts, strict=True):
            row[list(places)] = True
        parameter = next(backbone.parameters())
        x = torch.randn(len(starts), time, backbone.width, dtype=torch.float64).to(parameter.dtype)
        return Case(backbone, x, reset, tolerance)

    def episodes(self) -> list[tuple[int, int, int]]:
        """List (row, first token, end) of every episode."""
        borders = (sorted({0, *row.nonzero().flatten().tolist(), self.x.shape[1]}) for row in self.reset)
        return [(row, first, end) for row, places in enumerate(borders) for first, end in pairwise(places)]

    def close(self, value: Tensor, expected: Tensor, what: str = "outputs") -> None:
        """Raise LawError unless two tensors differ by no more than the tolerance, relative to numbers of size 1."""
        require(
            value.shape == expected.shape,
            f"{what} have shape {tuple(value.shape)} and {tuple(expected.shape)}, which should be equal",
        )
        require(value.dtype == expected.dtype, f"{what} are of {value.dtype}, not {expected.dtype}")
        if not value.numel():
            return
        value, expected = value.detach(), expected.detach()
        error = (value - expected).abs() if value.is_floating_point() else (value != expected).double()
        self.difference = max(self.difference, float((error / expected.abs().clamp(min=1.0)).max()))
        allowed = error <= self.tolerance * (1 + expected.abs())
        require(allowed.all(), f"{what} differ by {float(error.max()):.1e}, allowed are {self.tolerance:.0e}")

    def close_states(self, value: State, expected: State, newest: bool = False) -> None:
        """Compare all tensors of two states; of rings what lies in the window, wherever the clocks stand.

        With ``newest`` compare only rows where a later token could look: those of the newest episode.
        """
        value, expected = (self.backbone.in_order(state) if state.acts else state for state in (value, expected))
        require(value.tensors.keys() == expected.tensors.keys(), "two states of one backbone have other tensors")
        for name, tensor in expected.tensors.items():
            rows = rows_of_newest(name, expected) if newest else ...
            self.close(value.tensors[name][rows], tensor[rows], f"state {name}")


def perturbed(config: BackboneConfig, seed: int = 0) -> Backbone:
    """Build a backbone in evaluation mode with no parameter at the special value it starts from."""
    if torch.cuda.is_available():
        torch.manual_seed(seed)
    else:  # without the stack trace that torch keeps per seed for a GPU that is not there
        torch.default_generator.manual_seed(seed)
    backbone = backbone_of(config).eval()
    with torch.no_grad():
        for parameter in backbone.parameters():
            parameter.add_(0.2 * torch.randn_like(parameter))
    backbone.constrain_()
    return backbone


@contextmanager
def blocks_of(tokens: int) -> Iterator[None]:
    """Let attention cut calls into blocks of so many tokens, in place of 32 at least."""
    with patch.object(reach, "SMALLEST_BLOCK", tokens):
        yield


@contextmanager
def in_double() -> Iterator[None]:
    """Make tensors in float64, and cut calls of 23 tokens into blocks as calls of thousands are."""
    before = torch.get_default_dtype()
    torch.set_default_dtype(torch.float64)
    try:
        with blocks_of(4):
            yield
    finally:
        torch.set_default_dtype(before)


def in_parts(case: Case, split: Iterable[int], state: State | None) -> tuple[Tensor, State]:
    """Return outputs and state when the streams arrive in several calls."""
    outputs, first = [], 0
    for count in split:
        part = slice(first, first + count)
        y, state = case.backbone(case.x[:, part], state, case.reset[:, part])
        outputs.append(y)
        first += count
    assert state is not None
    return torch.cat(outputs, 1), state


def rows_of_newest(name: str, state: State) -> Any:
    """Index the rows of a tensor of a state that belong to the newest episode; all of it, where it has no such rows."""
    tensor, p, last = state.tensors[name], state.tensors["position"], name.split(".")[-1]
    if last in ("hidden", "keys"):
        return torch.arange(tensor.shape[1] - 1, -1, -1) <= p[:, None]
    if last in ("sinks", "sink_keys"):
        return torch.arange(tensor.shape[1]) <= p[:, None]
    return state.tensors[name.replace("slot_keys", "slots")].ne(0).any(-1) if last == "slot_keys" else ...
