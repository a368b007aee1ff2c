"""Induced attention: learned points summarize the episode so far, and tokens attend to the summaries.

Axes: B batch, T tokens, H heads, G key-value heads, m inducing points, Dh width of a query, Dv width of a value.
"""

import math
from dataclasses import dataclass

import torch
from torch import Tensor, nn

from rltransformers.core.spec import Feature, Size, Spec, Traits
from rltransformers.functional.call import Call
from rltransformers.functional.prefixes import bounded_exp, episode_totals, prefix_attention
from rltransformers.mixers.interface import Dims, LayerState
from rltransformers.mixers.kernel import HeadsMixer


@dataclass(frozen=True)
class Options:
    """Inducing points m of a head."""

    points: Size = 16


class InducedAttention(HeadsMixer):
    """``G_t[j]`` is attention of point j to the episode up to t; ``o_t`` is attention of token t to the m summaries.

    As the points are parameters, their softmax is a sum that grows by one term a token. Source: Lee et al. 2019
    (arXiv 1810.00825), equations 6, 9 and 10, per head, without the residuals, norms and feed-forward layers of both
    blocks and with the keys of summaries projected per head; their values are projected by the output projection alone.
    """

    def __init__(self, dims: Dims, options: Options) -> None:
        super().__init__(dims)
        self.points = nn.Parameter(torch.randn(dims.kv_heads, options.points, dims.head_dim))
        bound = dims.value_dim**-0.5
        self.of_summaries = nn.Parameter(torch.empty(dims.heads, dims.head_dim, dims.value_dim).uniform_(-bound, bound))

    def state_shapes(self) -> dict[str, tuple[int, ...]]:
        """Values weighted for each point, and the sum of the weights."""
        heads, points = self.dims.heads, self.points.shape[1]
        return {"sum": (heads, points, self.dims.value_dim), "norm": (heads, points)}

    def read(
        self, h: Tensor, q: Tensor, k: Tensor, v: Tensor, state: LayerState, call: Call
    ) -> tuple[Tensor, LayerState]:
        """Summaries are never formed: queries are taken to the width of values, which are summed per point."""
        share, scale = self.dims.share, 1 / math.sqrt(self.dims.head_dim)
        weights = bounded_exp(k @ self.points.transpose(-1, -2) * scale).repeat_interleave(share, 1)
        total, norm = episode_totals(weights, state["norm"], call.tokens)
        query, value = q @ self.of_summaries * scale, v.repeat_interleave(share, 1)
        sums = {"projected_keys": state["sum"].transpose(-1, -2), "projected_values": state["sum"]}
        mixed, sums = prefix_attention(query, value, value, weights, weights, sums, call.tokens, total)
        return mixed, {"sum": sums["projected_values"], "norm": norm}


SPEC = Spec(
    id="S9", name="set_transformer", axis="mixer", paper="Lee et al. 2019, arXiv 1810.00825",
    summary="learned points summarize the episode so far, and tokens attend to these summaries",
    build=InducedAttention, options=Options,
    traits=Traits(
        causality="X", family="KERN", horizon="episode", state="H m (Dv + 1)",
        causal_form="causal: points summarize the tokens up to the query, by a running softmax with logits "
                    "clipped to [-40, 40]; no norms, residuals or feed-forward layers between the two attentions;"
                    " products are divided by sqrt(Dh), there by sqrt(D); summaries are values without a "
                    "projection",
    ),
    offers=(Feature.KEYS,),
    formula="G_tj = sum_(s <= t) softmax_s(i_j k_s / sqrt(Dh)) v_s, o_t = sum_j softmax_j(q_t W G_tj / sqrt(Dh)) G_tj",
)  # fmt: skip
