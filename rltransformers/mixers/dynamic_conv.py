"""Dynamic convolution: every head weighs the last K values by weights that the token itself predicts.

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


class DynamicConv(StateMixer):
    """``W_out conv(y; softmax(W_k y_t))`` with ``y = GLU(W_in x)`` a kernel per head and token (arXiv 1901.10430)."""

    def __init__(self, dims: Dims, taps: int, renormalise: bool) -> None:
        super().__init__()
        self.width, self.heads, self.taps, self.renormalise = dims.width, dims.heads, taps, renormalise
        self.project = nn.Linear(dims.width, 2 * dims.width)
        self.predict = nn.Linear(dims.width, dims.heads * taps, bias=False)
        self.out = nn.Linear(dims.width, dims.width)

    def state_shapes(self) -> dict[str, tuple[int, ...]]:
        """The values of the last K - 1 tokens of the episode, zeros where it is younger."""
        return {"taps": (self.taps - 1, self.width)}

    def forward(self, h: Float[Tensor, "B T D"], state: dict[str, Tensor], call: Call) -> Mixed:
        """Tells the mean lag of the kernels as "lookback"."""
        tokens = call.tokens
        values = F.glu(self.project(h), -1)
        rows = with_past(state["taps"], values)
        logits = self.predict(values).unflatten(-1, (self.heads, self.taps))
        weights = tap_weights(logits, tokens, self.renormalise)
        if call.probe.listens:
            lags = torch.arange(self.taps, device=h.device)
            call.probe.metric("lookback", (weights.detach()[tokens.valid()] * lags).sum(-1).mean())
        mixed = self.out(chosen(causal_taps(rows, weights), call.wanted))
        return Mixed(mixed, {"taps": newest_rows(rows, state["taps"], tokens)})


@dataclass(frozen=True)
class Options:
    """Options of the dynamic convolution.

    Attributes:
        taps: K, the token itself included; the paper uses 3, 7, 15, 31 from the lowest layer up.
        pad: "renormalise" lets the taps inside an episode share all weight; "zero" reads zeros before it, as published.
    """

    taps: Annotated[int, Ge(1), Le(4096)] = 7
    pad: Literal["renormalise", "zero"] = "renormalise"


def build(dims: Dims, options: Options) -> DynamicConv:
    """Dynamic convolution for one layer; the heads are the groups of channels that share a kernel.

    Raises:
        ConfigError: heads do not divide the width.
    """
    if dims.width % dims.heads:
        raise ConfigError(
            f"dynamic_conv needs heads ({dims.heads}) to divide width ({dims.width}): change one of the two"
        )
    return DynamicConv(dims, options.taps, options.pad == "renormalise")


SPEC = Spec(
    id="F4",
    name="dynamic_conv",
    axis="mixer",
    paper="Wu et al. 2019, arXiv 1901.10430, equation 4",
    summary="Convolution over the last K tokens with weights that the token predicts, shared by a head's channels.",
    build=build,
    options=Options,
    example={"mixer": "dynamic_conv"},
    traits=Traits(
        family="VAL",
        horizon="taps - 1",
        state="(taps - 1) D",
        causal_form="taps before the episode leave their weight to the others (`pad: zero` as published)",
    ),
    formula="o_t = W_out sum_(k < K) softmax_k(W_h y_t) y_(t-k), y = GLU(W_in x)",
)
