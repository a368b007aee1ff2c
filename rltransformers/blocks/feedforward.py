"""Transforms behind the mixer of a layer, and the table of all. Axes: B batch, T tokens, D model width."""

from collections.abc import Callable
from dataclasses import dataclass

import torch
from jaxtyping import Float
from torch import Tensor, nn
from torch.nn import functional as F
from torch.utils.checkpoint import checkpoint

from rltransformers.blocks import sep_conv
from rltransformers.blocks.activations import ACTIVATIONS, Activation
from rltransformers.core.spec import Feature, NoOptions, Refusal, Spec, Traits, by_name


class FeedForward(nn.Module):
    """W_2 act(W_1 x + b_1) + b_2, on [..., D]."""

    def __init__(self, width: int, hidden: int, act: Callable[[Tensor], Tensor]) -> None:
        super().__init__()
        self.into = nn.Linear(width, hidden)
        self.out = nn.Linear(hidden, width)
        self.act = act

    def forward(self, x: Tensor) -> Tensor:
        # Flat, because an activation that overwrites its input would copy it back and forth through a view.
        if x.dim() == 3 and x.shape[1] == 1:  # flat but for an axis of one
            return F.linear(self.act(F.linear(x, self.into.weight, self.into.bias)), self.out.weight, self.out.bias)
        hidden = self.act(F.linear(x.reshape(-1, x.shape[-1]), self.into.weight, self.into.bias))
        return F.linear(hidden, self.out.weight, self.out.bias).view(x.shape)


class GatedLinearUnit(nn.Module):
    """W (act(U_1 x) * U_2 x), on [..., D]."""

    def __init__(self, width: int, hidden: int, act: Callable[[Tensor], Tensor]) -> None:
        super().__init__()
        self.into = nn.Linear(width, 2 * hidden)
        self.out = nn.Linear(hidden, width)
        self.act = act

    def forward(self, x: Tensor) -> Tensor:
        gate, value = self.into(x).chunk(2, -1)
        return self.out(self.act(gate) * value)


def in_slices(transform: Callable[[Tensor], Tensor], x: Float[Tensor, "B T D"], chunks: int) -> Float[Tensor, "B T D"]:
    """``transform(x)``, in at most ``chunks`` slices of the tokens, one after the other.

    Its hidden units exist for one slice at a time. So that this holds in training as well, the backward pass computes
    those of a slice again.
    """
    if x.shape[1] == 1:
        return transform(x)
    parts = x.chunk(chunks, 1)
    if torch.is_grad_enabled():
        return torch.cat([checkpoint(transform, part, use_reentrant=False) for part in parts], 1)
    return torch.cat([transform(part) for part in parts], 1)


@dataclass(frozen=True)
class Options:
    """The activation between two linear maps."""

    activation: Activation = "relu"


@dataclass(frozen=True)
class GatedOptions:
    """The activation of the gate."""

    activation: Activation = "sigmoid"


def build_ffn(width: int, hidden: int, options: Options) -> nn.Module:
    """Build the two linear maps of Vaswani et al. 2017."""
    # The first linear map needs its output no more: the ReLU may overwrite it.
    act = torch.relu_ if options.activation == "relu" else ACTIVATIONS[options.activation]
    return FeedForward(width, hidden, act)


def build_glu(width: int, hidden: int, options: GatedOptions) -> nn.Module:
    """Build the gated linear unit."""
    return GatedLinearUnit(width, hidden, ACTIVATIONS[options.activation])


def build_none(width: int, hidden: int, options: NoOptions) -> None:
    """Layers end behind the mixer."""


FEED_FORWARDS = by_name(
    Spec(
        "F0", "ffn", "ff", "Vaswani et al. 2017, arXiv 1706.03762", "Two linear maps with an activation between.",
        build_ffn, Options, traits=Traits(causality="N/A"),
        formula="W_2 act(W_1 x + b_1) + b_2",
    ),
    Spec(
        "F1", "glu", "ff", "Dauphin et al. 2017, arXiv 1612.08083; Shazeer 2020, arXiv 2002.05202",
        "A linear map gated by another one.", build_glu, GatedOptions,
        traits=Traits(causality="N/A"), formula="W (act(U_1 x) * U_2 x)",
    ),
    sep_conv.SPEC,
    Spec(
        "F-none", "none", "ff", "-", "Layers have no feed-forward part.", build_none,
        traits=Traits(causality="N/A"), formula="x", offers=(Feature.MIXER_ALONE,),
        refuses=(Refusal(Feature.CHUNKS, "there is no transform"),),
    ),
    Spec(
        "R4", "chunked", "ff", "Kitaev et al. 2020, arXiv 2001.04451, section 3",
        "Computes the feed-forward part for a few tokens at a time, which saves memory.",
        settings="ff_chunks: n", example={"ff_chunks": 3}, traits=Traits(causality="N/A"),
        formula="[ff(x_1); ...; ff(x_n)] of n slices of the tokens, computed again in the backward pass",
    ),
)  # fmt: skip
