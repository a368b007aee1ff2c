"""Lightweight convolution: every head weighs the last K values by weights that do not depend on the input.

Axes: B batch, T tokens, D width, H heads, K taps.
"""

from dataclasses import dataclass
from typing import Annotated, Literal

import torch
from annotated_types import Ge, Le
from jaxtyping import Float
from torch import Tensor, nn
from torch.nn import functional as F

from rltransformers.core.errors import ConfigError
from rltransformers.core.spec import Spec, Traits
from rltransformers.functional.call import Call, chosen
from rltransformers.functional.taps import causal_taps, newest_rows, tap_weights, with_past
from rltransformers.mixers.interface import Dims, Mixed, StateMixer


class LightConv(StateMixer):
    """``W_out conv(GLU(W_in x))`` with one softmax-normalised depthwise kernel per head (arXiv 1901.10430)."""

    def __init__(self, dims: Dims, taps: int, renormalise: bool) -> None:
        super().__init__()
        self.width, self.taps, self.renormalise = dims.width, taps, renormalise
        self.project = nn.Linear(dims.width, 2 * dims.width)
        self.kernel = nn.Parameter(nn.init.xavier_uniform_(torch.empty(dims.heads, taps)))
        self.out = nn.Linear(dims.width, dims.width)

    def state_shapes(self) -> dict[str, tuple[int, ...]]:
        """The values of the last K - 1 tokens of the episode, zeros where it is younger."""
        return {"taps": (self.taps - 1, self.width)}

    def forward(self, h: Float[Tensor, "B T D"], state: dict[str, Tensor], call: Call) -> Mixed:
        """Tells the mean lag of the kernels as "lookback"."""
        tokens = call.tokens
        values = F.glu(self.project(h), -1)
        rows = with_past(state["taps"], values)
        weights = tap_weights(self.kernel, tokens, self.renormalise)
        if call.probe.listens:
            lags = torch.arange(self.taps, device=h.device)
            call.probe.metric("lookback", (weights.detach()[tokens.valid()] * lags).sum(-1).mean())
        mixed = self.out(chosen(causal_taps(rows, weights), call.wanted))
        return Mixed(mixed, {"taps": newest_rows(rows, state["taps"], tokens)})


@dataclass(frozen=True)
class Options:
    """Options of the lightweight convolution.

    Attributes:
        taps: K, the token itself included; the paper uses 3, 7, 15, 31 from the lowest layer up.
        pad: "renormalise" lets the taps inside an episode share all weight; "zero" reads zeros before it, as published.
    """

    taps: Annotated[int, Ge(1), Le(4096)] = 7
    pad: Literal["renormalise", "zero"] = "renormalise"


def build(dims: Dims, options: Options) -> LightConv:
    """Lightweight convolution for one layer; the heads are the groups of channels that share a kernel.

    Raises:
        ConfigError: heads do not divide the width.
    """
    if dims.width % dims.heads:
        raise ConfigError(
            f"light_conv needs heads ({dims.heads}) to divide width ({dims.width}): change one of the two"
        )
    return LightConv(dims, options.taps, options.pad == "renormalise")


SPEC = Spec(
    id="F3",
    name="light_conv",
    axis="mixer",
    paper="Wu et al. 2019, arXiv 1901.10430",
    summary="depthwise convolution over the last K tokens, weights softmax-normalised and shared by a head's channels",
    build=build,
    options=Options,
    example={"mixer": "light_conv"},
    traits=Traits(causality="C", family="VAL", horizon="taps - 1", state="(taps - 1) D", time="T"),
    formula="o_tc = sum_k softmax_k(w_h) y_(t-k)c, y = GLU(W_in x)",
)
