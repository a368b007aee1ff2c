"""Base of convolutions with a kernel per head. Axes: B batch, T tokens, D width, H heads, K taps."""

from abc import abstractmethod
from dataclasses import dataclass
from typing import Annotated, Literal

import torch
from annotated_types import Ge, Le
from jaxtyping import Float
from torch import Tensor, nn
from torch.nn import functional as F

from rltransformers.core.spec import Traits
from rltransformers.functional.call import Call, chosen
from rltransformers.functional.taps import causal_taps, newest_rows, tap_weights, with_past
from rltransformers.mixers.interface import Dims, LayerState, Mixed, StateMixer, check_heads


@dataclass(frozen=True)
class Options:
    """Options of a convolution.

    Attributes:
        taps: tokens K that the kernel covers, the token itself included; the paper uses 3, 7, 15, 31 from the lowest
            layer up.
        pad: "renormalize" lets the taps inside an episode share all weight; "zero" reads zeros before it, as published.
    """

    taps: Annotated[int, Ge(1), Le(4096)] = 7
    pad: Literal["renormalize", "zero"] = "renormalize"


TRAITS = Traits(
    family="VAL", horizon="taps - 1", state="(taps - 1) D",
    causal_form="taps before the episode leave their weight to the others (`pad: zero` as published)",
)  # fmt: skip


class Convolution(StateMixer):
    """``W_out conv(GLU(W_in x))`` with softmax-normalized kernels per head (Wu et al. 2019, arXiv 1901.10430).

    Attributes:
        name: of the mixer, for messages.

    Raises:
        ConfigError: heads, the groups of channels that share a kernel, do not divide the width.
    """

    name: str

    def __init__(self, dims: Dims, options: Options) -> None:
        super().__init__()
        check_heads(self.name, dims)
        self.width, self.heads, self.taps = dims.width, dims.heads, options.taps
        self.renormalize = options.pad == "renormalize"
        self.project = nn.Linear(dims.width, 2 * dims.width)
        self.add_kernels()
        self.out = nn.Linear(dims.width, dims.width)

    @abstractmethod
    def add_kernels(self) -> None:
        """Make the parameters of the kernels."""

    @abstractmethod
    def kernels(self, values: Float[Tensor, "B T D"]) -> Float[Tensor, "*#n H K"]:
        """Logits of the taps, lag 0 first; of all tokens, or token by token."""

    def state_shapes(self) -> dict[str, tuple[int, ...]]:
        """The values of the last K - 1 tokens of the episode, zeros where it is younger."""
        return {"taps": (self.taps - 1, self.width)}

    def forward(self, h: Float[Tensor, "B T D"], state: LayerState, call: Call) -> Mixed:
        """Tells the mean lag of the kernels as "lookback"."""
        tokens = call.tokens
        values = F.glu(self.project(h), -1)
        rows = with_past(state["taps"], values)
        weights = tap_weights(self.kernels(values), tokens, self.renormalize)
        call.tell("lookback", lambda: (weights * torch.arange(self.taps, device=h.device)).sum(-1))
        mixed = self.out(chosen(causal_taps(rows, weights), call.wanted))
        return Mixed(mixed, {"taps": newest_rows(rows, state["taps"], tokens)})
