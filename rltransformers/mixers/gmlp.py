"""gMLP: a linear map over time gates the channels. Axes: B batch, T tokens, D width, F gated channels, n tokens."""

from dataclasses import dataclass
from typing import Annotated, Literal

import torch
from annotated_types import Ge, Le
from jaxtyping import Float
from torch import Tensor, nn
from torch.nn import functional as F

from rltransformers.core.spec import Size, Spec, Traits
from rltransformers.functional.blocks import inside_block
from rltransformers.functional.call import Call, Tokens, chosen
from rltransformers.functional.taps import inside, many_taps, newest_rows, with_past
from rltransformers.mixers.interface import Dims, LayerState, Mixed, StateMixer

NEARLY_ZERO = 1e-3


def weights_of_taps(weight: Float[Tensor, " n"], tokens: Tokens) -> Float[Tensor, "B T n"]:
    """``weight[d]`` for the token d back, 0 before the episode."""
    return weight * inside(len(weight), tokens)


def weights_of_places(weight: Float[Tensor, "n n"], tokens: Tokens) -> Float[Tensor, "B T n"]:
    """``weight[p_t mod n, p_s mod n]`` for the token d = t - s back, 0 before the block of n tokens that p_t is in."""
    place = tokens.p % len(weight)
    return inside_block(weight[place], place, torch.arange(len(weight), device=weight.device))


@dataclass(frozen=True)
class Options:
    """Options of gMLP.

    Attributes:
        tokens: number n of tokens that the map over time reads, the token itself included.
        weights: "relative" has one number per distance; "absolute" one per pair of places in blocks of n tokens from
            the start of the episode on: as published for episodes of up to n tokens.
        hidden: gated channels; None takes 2 D.
    """

    tokens: Annotated[int, Ge(1), Le(4096)] = 64
    weights: Literal["relative", "absolute"] = "relative"
    hidden: Size | None = None


class SpatialGating(StateMixer):
    """``V (Z_1 * (W LN(Z_2) + b))`` with ``[Z_1, Z_2] = GELU(U x)``; W acts on tokens (arXiv 2105.08050)."""

    def __init__(self, dims: Dims, options: Options) -> None:
        super().__init__()
        tokens, absolute = options.tokens, options.weights == "absolute"
        self.tokens, self.absolute = tokens, absolute
        hidden = 2 * dims.width if options.hidden is None else options.hidden
        self.project = nn.Linear(dims.width, 2 * hidden)
        self.norm = nn.LayerNorm(hidden)
        shape = (tokens, tokens) if absolute else (tokens,)
        self.weight = nn.Parameter(nn.init.uniform_(torch.empty(shape), -NEARLY_ZERO / tokens, NEARLY_ZERO / tokens))
        self.bias = nn.Parameter(torch.ones(tokens if absolute else 1))
        self.out = nn.Linear(hidden, dims.width)

    def state_shapes(self) -> dict[str, tuple[int, ...]]:
        """Normalized Z_2 of the last n - 1 tokens of the episode, zeros where it is younger."""
        return {"taps": (self.tokens - 1, self.norm.normalized_shape[0])}

    def forward(self, h: Float[Tensor, "B T D"], state: LayerState, call: Call) -> Mixed:
        """Tells the mean gate as "gate"."""
        tokens = call.tokens
        value, read = F.gelu(self.project(h)).chunk(2, -1)
        rows = with_past(state["taps"], self.norm(read))
        weights = (weights_of_places if self.absolute else weights_of_taps)(self.weight, tokens)
        bias = self.bias[tokens.p % self.tokens][..., None] if self.absolute else self.bias
        gate = many_taps(rows, weights) + bias
        call.tell("gate", lambda: gate)
        mixed = self.out(chosen(value * gate, call.wanted))
        return Mixed(mixed, {"taps": newest_rows(rows, state["taps"], tokens)})


SPEC = Spec(
    id="F2", name="gmlp", axis="mixer", paper="Liu et al. 2021, arXiv 2105.08050, equations 1-4",
    summary="A linear map over the last n tokens gates the channels: no queries, no keys.",
    build=SpatialGating, options=Options, example={"mixer": {"name": "gmlp", "tokens": 5}, "ff": "none"},
    traits=Traits(
        causality="C*", family="VAL", horizon="tokens - 1", state="(tokens - 1) hidden",
        causal_form="W reads earlier tokens by their distance and b is one number (`weights: absolute`: both by places "
        "in blocks of n)",
    ),
    formula="V (Z_1 * (W LN(Z_2) + b)), [Z_1, Z_2] = GELU(U x), (W Z)_t = sum_(d < n) w_d Z_(t-d)",
)  # fmt: skip
