"""Kimi Delta Attention: the corrections of Gated DeltaNet, with a decay for every channel of the key.

Axes: B batch, T tokens, D width, H heads, K width of a head.
"""

from dataclasses import dataclass

import torch
from jaxtyping import Float
from torch import Tensor, nn
from torch.nn import functional as F

from rltransformers.core.spec import Feature, Size, Spec, Traits
from rltransformers.functional.call import Tokens
from rltransformers.functional.channels import channel_delta_sums
from rltransformers.functional.modules import wide
from rltransformers.functional.stages import GatedOutput, bias_of_steps
from rltransformers.mixers.delta_rule import DeltaOptions, DeltaRule
from rltransformers.mixers.interface import Dims


@dataclass(frozen=True)
class Options(DeltaOptions):
    """Options of Kimi Delta Attention.

    Attributes:
        rank: numbers of a token from which the decays of all channels are made; None for the width of a head.
    """

    rank: Size | None = None


class KimiDeltaAttention(DeltaRule):
    """The delta rule with a decay per channel."""

    def __init__(self, dims: Dims, options: Options) -> None:
        super().__init__(dims, options)
        rank, channels = options.rank or dims.head_dim, dims.heads * dims.head_dim
        self.decay = nn.Sequential(nn.Linear(dims.width, rank, bias=False), nn.Linear(rank, channels, bias=False))
        self.log_scale = nn.Parameter(torch.empty(dims.heads).uniform_(1, 16).log())  # of rates per unit of time
        self.step_bias = nn.Parameter(bias_of_steps(channels))
        self.out = GatedOutput(dims.width, dims.heads, dims.value_dim, "sigmoid", dims.bias, options.norm)

    def log_decay(self, h: Float[Tensor, "B T D"]) -> Float[Tensor, "B H T K"]:
        """``-exp(log_scale) softplus(W_2 W_1 h + step_bias)``; float32 at least."""
        steps = self.decay(h)
        steps = F.softplus(wide(steps) + self.step_bias)
        return -self.log_scale.exp()[:, None, None] * steps.unflatten(-1, (self.dims.heads, -1)).transpose(1, 2)

    @staticmethod
    def correct(
        q: Tensor, k: Tensor, v: Tensor, beta: Tensor, state: Tensor, tokens: Tokens, log_decay: Tensor
    ) -> tuple[Tensor, Tensor]:
        return channel_delta_sums(q, k.squeeze(3), v.squeeze(3), beta.squeeze(3), state, tokens, log_decay)


SPEC = Spec(
    id="N11", name="kda", axis="mixer", paper="Kimi Team 2025, arXiv 2510.26692",
    summary="Kimi Delta Attention: the gated delta rule with a decay for every channel of the key",
    build=KimiDeltaAttention, options=Options,
    traits=Traits(
        family="KERN", horizon="episode", state="H Dk Dv + (conv - 1) (H Dk + G Dk + G Dv)",
        causal_form="the gate of the output has one matrix, in the authors' code two of low rank and a bias; "
                    "heads that share keys have decays and corrections of their own",
    ),
    offers=(Feature.KEYS,),
    formula="S' = diag(a_t) S_(t-1), S_t = S' + beta_t k_t (v_t - S'^T k_t)^T, o_t = S_t^T q_t / sqrt(Dk), "
    "beta_t = sigmoid(w_b x_t), a_t = exp(-exp(A) softplus(W_2 W_1 x_t + b)); q, k, v by a short convolution with "
    "SiLU, q and k of length 1; out = W_o (RMSNorm(o_t) sigmoid(W_g x_t))",
)  # fmt: skip
