"""Separable convolutions in place of the two linear maps of a transform: every channel mixes its newest tokens first.

Axes: B batch, T tokens, D model width, F hidden units, K taps.
"""

import math
from collections.abc import Callable
from dataclasses import dataclass
from typing import Annotated

import torch
from annotated_types import Ge, Le
from jaxtyping import Float
from torch import Tensor, nn

from rltransformers.blocks.activations import ACTIVATIONS, Activation
from rltransformers.core.spec import Feature, Refusal, Spec, Traits
from rltransformers.functional.call import Call, chosen
from rltransformers.functional.taps import depthwise, newest_rows, with_past
from rltransformers.mixers.interface import Mixed, StateMixer

Taps = Annotated[int, Ge(1), Le(4096)]


class SeparableConv(StateMixer):
    """``W_2 (c_2 * act(W_1 (c_1 * x) + b_1)) + b_2``: ``*`` weighs the last K rows of every channel by K numbers."""

    def __init__(self, width: int, hidden: int, taps: int, second_taps: int, act: Callable[[Tensor], Tensor]) -> None:
        super().__init__()
        self.kernel = kernel(width, taps)
        self.into = nn.Linear(width, hidden)
        self.second_kernel = kernel(hidden, second_taps) if second_taps > 1 else None
        self.out = nn.Linear(hidden, width)
        self.act = act

    def state_shapes(self) -> dict[str, tuple[int, ...]]:
        """The inputs of both convolutions at the last K - 1 tokens of the episode, zeros where it is younger."""
        kernels = {"taps": self.kernel, "second_taps": self.second_kernel}
        return {name: (each.shape[1] - 1, each.shape[0]) for name, each in kernels.items() if each is not None}

    def forward(self, h: Float[Tensor, "B T D"], state: dict[str, Tensor], call: Call) -> Mixed:
        rows, after = with_past(state["taps"], h), {}
        after["taps"] = newest_rows(rows, state["taps"], call.tokens)
        hidden = self.act(self.into(depthwise(rows, self.kernel, call.tokens)))
        if self.second_kernel is not None:
            rows = with_past(state["second_taps"], hidden)
            after["second_taps"] = newest_rows(rows, state["second_taps"], call.tokens)
            hidden = depthwise(rows, self.second_kernel, call.tokens)
        return Mixed(self.out(chosen(hidden, call.wanted)), after)


def kernel(channels: int, taps: int) -> nn.Parameter:
    """Weights of every channel, lag 0 first."""
    return nn.Parameter(nn.init.uniform_(torch.empty(channels, taps), -1 / math.sqrt(taps), 1 / math.sqrt(taps)))


@dataclass(frozen=True)
class Options:
    """Options of the separable convolutions.

    Attributes:
        taps: tokens K that the first convolution covers, the token itself included.
        second_taps: tokens that the second convolution covers; 1 leaves a linear map.
        activation: between the two convolutions.
    """

    taps: Taps = 3
    second_taps: Taps = 1
    activation: Activation = "relu"


def build(width: int, hidden: int, options: Options) -> SeparableConv:
    """Build the separable convolutions."""
    return SeparableConv(width, hidden, options.taps, options.second_taps, ACTIVATIONS[options.activation])


SPEC = Spec(
    id="F5", name="sep_conv", axis="ff",
    paper="Dehghani et al. 2019, arXiv 1807.03819, section 2.1; Chollet 2017, arXiv 1610.02357",
    summary="Two linear maps, each after a depthwise convolution over the newest tokens.", build=build,
    options=Options,
    traits=Traits(
        horizon="taps + second_taps - 2", state="(taps - 1) D + (second_taps - 1) ff_width",
        causal_form="the second linear map has no convolution, in the authors' code one over 5 tokens "
                    "(`second_taps: 5`)",
    ),
    refuses=(
        Refusal(Feature.NO_MEMORY, "it keeps rows of its own, so that memory 0 does not make the layers memoryless"),
        Refusal(Feature.CHUNKS, "every token reads those before it"),
    ),
    formula="W_2 (c_2 * act(W_1 (c_1 * x) + b_1)) + b_2, (c * x)_t = sum_(k < K) c_k x_(t-k) per channel",
)  # fmt: skip
