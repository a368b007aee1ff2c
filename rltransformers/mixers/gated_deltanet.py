"""Gated DeltaNet: a matrix per head that forgets a share with every token, then corrects what it holds under a key.

Axes: B batch, T tokens, D width, H heads, G key-value heads, R corrections per token, K and V widths of a head.
"""

from dataclasses import dataclass
from typing import Annotated

import torch
from annotated_types import Ge, Le
from jaxtyping import Float
from torch import Tensor, nn
from torch.nn import functional as F

from rltransformers.core.spec import Feature, Spec, Traits
from rltransformers.functional.call import Call
from rltransformers.functional.delta import delta_products
from rltransformers.functional.stages import GatedOutput, ShortConvolution, bias_of_steps, unit_length
from rltransformers.mixers.interface import Dims, LayerState, Mixed, StateMixer


@dataclass(frozen=True)
class Options:
    """Options of Gated DeltaNet.

    Attributes:
        decay: whether a head forgets; without, this is DeltaNet (Yang et al. 2024, arXiv 2406.06484).
        negative_eigenvalues: rates of correction reach to 2 instead of 1: a token can turn the sign of what is read
            under its key, which counting needs (Grazzi et al. 2024, arXiv 2411.12537).
        householder: corrections per token, each with a key, a value and a rate (Siems et al. 2025, arXiv 2502.10297).
        conv: taps of the convolution in front of queries, keys and values; 0 for none.
    """

    decay: bool = True
    negative_eigenvalues: bool = False
    householder: Annotated[int, Ge(1), Le(3)] = 1
    conv: Annotated[int, Ge(0), Le(64)] = 4


class GatedDeltaNet(StateMixer):
    """``S = a_t S_(t-1)``, then ``S_t = S + beta_t k_t (v_t - S^T k_t)^T``; ``o_t = S_t^T q_t / sqrt(K)``.

    Heads that share keys and values forget and correct at rates of their own.
    """

    def __init__(self, dims: Dims, options: Options) -> None:
        super().__init__()
        self.dims, self.count, self.top = dims, options.householder, 2.0 if options.negative_eigenvalues else 1.0
        query, key, value = dims.widths
        self.widths = [query, key * self.count, value * self.count]
        self.project = dims.projection(dims.width, sum(self.widths))
        self.conv = ShortConvolution(sum(self.widths), options.conv)
        self.rate = dims.projection(dims.width, dims.heads * self.count)
        self.decay = nn.Linear(dims.width, dims.heads, bias=False) if options.decay else None
        if options.decay:
            self.log_scale = nn.Parameter((16 * (1 - torch.rand(dims.heads))).log())  # below 16 per unit of time
            self.step_bias = nn.Parameter(bias_of_steps(dims.heads))
        self.out = GatedOutput(dims.width, dims.heads, dims.value_dim, "silu", dims.bias)

    def state_shapes(self) -> dict[str, tuple[int, ...]]:
        """The matrix of every head, and rows of the convolution."""
        return {
            "weights": (self.dims.heads, self.dims.head_dim, self.dims.value_dim),
            "taps": self.conv.state_shape,
        }

    def forward(self, h: Float[Tensor, "B T D"], state: LayerState, call: Call) -> Mixed:
        """Tells the mean of beta as "rate", and of a as "kept"."""
        dims = self.dims
        rows, taps = self.conv(self.project(h), state["taps"], call.tokens)
        q, k, v = rows.split(self.widths, -1)
        q = unit_length(q.unflatten(-1, (dims.heads, -1))).transpose(1, 2) * dims.head_dim**-0.5
        k, v = (x.unflatten(-1, (self.count, dims.kv_heads, -1)).permute(0, 3, 1, 2, 4) for x in (k, v))
        k, v = (x.repeat_interleave(dims.share, 1) for x in (unit_length(k), v))
        beta = self.top * self.rate(h).sigmoid()
        beta = beta.unflatten(-1, (self.count, -1)).permute(0, 3, 1, 2)
        log_decay = self.log_decay(h)
        read, weights = delta_products(q, k, v, beta, state["weights"], call.tokens, log_decay=log_decay)
        if call.probe.listens:
            valid = call.tokens.valid()
            call.probe.metric("rate", beta.detach().permute(0, 2, 1, 3)[valid].mean())
            if log_decay is not None:
                call.probe.metric("kept", log_decay.detach().transpose(1, 2)[valid].exp().mean())
        return Mixed(self.out(read, h, call.wanted), {"weights": weights, "taps": taps})

    def log_decay(self, h: Float[Tensor, "B T D"]) -> Float[Tensor, "B H T"] | None:
        """``-exp(log_scale) softplus(w h + step_bias)``, the logarithm of a; None without decay."""
        if self.decay is None:
            return None
        return (-self.log_scale.exp() * F.softplus(self.decay(h) + self.step_bias)).transpose(1, 2)


SPEC = Spec(
    id="N4", name="gated_deltanet", axis="mixer",
    paper="Yang, Kautz and Hatamizadeh 2025, arXiv 2412.06464; Grazzi et al. 2024, arXiv 2411.12537; "
    "Siems et al. 2025, arXiv 2502.10297",
    summary="a matrix of fast weights forgets a share with every token, then corrects the value under its key",
    build=GatedDeltaNet, options=Options,
    traits=Traits(
        family="KERN", horizon="episode", state="H Dk Dv + (conv - 1) (H Dk + R G (Dk + Dv))",
        causal_form="heads are as wide as those of attention, in the authors' code values twice as wide; heads that "
        "share keys forget and correct by themselves; weight decay, where an agent has any, acts on all of a_t",
    ),
    offers=(Feature.KEYS,),
    formula="S' = a_t S_(t-1), S_t = S' + beta_t k_t (v_t - S'^T k_t)^T, o_t = S_t^T q_t / sqrt(Dk), "
    "beta_t = sigmoid(w_b x_t), a_t = exp(-exp(A) softplus(w_a x_t + b)); q, k, v by a short convolution with SiLU, "
    "q and k of length 1; out = W_o (RMSNorm(o_t) silu(W_g x_t))",
)  # fmt: skip
