"""Retention: a sum of key-value products that decays, in place of a memory; a rate of its own for every head.

The library has a mixer ``retention``, too, whose queries and keys turn with the position; names have to differ.

Axes: B batch, T tokens, D width, H heads, G key-value heads, K and V widths of a head.
"""

from dataclasses import dataclass
from typing import Annotated

import torch
from annotated_types import Ge, Le
from torch import Tensor
from torch.nn import functional as F

from rltransformers.mechanisms import Call, Dims, Feature, HeadsMixer, Spec, Traits, causal_sums


@dataclass(frozen=True)
class Options:
    """Options of retention.

    Attributes:
        first: head h forgets the share 2^-(first + h) of its sum with every token.
    """

    first: Annotated[float, Ge(0.5), Le(20)] = 5.0


class Retention(HeadsMixer):
    """``o_t = norm(q_t S_t) * silu(W_g h_t)``, ``S_t = gamma_h S_(t-1) + k_t^T v_t``, the norm of every head alone."""

    log_decay: Tensor

    def __init__(self, dims: Dims, options: Options) -> None:
        super().__init__(dims)
        self.gate = dims.projection(dims.width, dims.heads * dims.value_dim)
        decay = torch.log1p(-(2.0 ** -(options.first + torch.arange(dims.heads))))
        self.register_buffer("log_decay", decay, persistent=False)

    def state_shapes(self) -> dict[str, tuple[int, ...]]:
        """The sum S of every head."""
        return {"sum": (self.dims.heads, self.dims.head_dim, self.dims.value_dim)}

    def read(
        self, h: Tensor, q: Tensor, k: Tensor, v: Tensor, state: dict[str, Tensor], call: Call
    ) -> tuple[Tensor, dict[str, Tensor]]:
        """Read the sums: in chunks for a segment, by one update for a step; ``causal_sums`` does both."""
        share = self.dims.heads // self.dims.kv_heads
        k, v = k.repeat_interleave(share, 1) * k.shape[-1] ** -0.5, v.repeat_interleave(share, 1)
        log_decay = self.log_decay[None, :, None].expand(q.shape[:3])
        out, after = causal_sums(q, k, v, state["sum"], call.tokens, log_decay=log_decay)
        gate = F.silu(self.gate(h)).unflatten(-1, (self.dims.heads, -1)).transpose(1, 2)
        return F.layer_norm(out, out.shape[-1:]) * gate, {"sum": after}


SPEC = Spec(
    name="own_retention",
    axis="mixer",
    paper="Sun et al. 2023, arXiv 2307.08621",
    summary="Sums of key-value products that decay, a rate per head: a fixed-size state remembers the episode.",
    build=Retention,
    options=Options,
    traits=Traits(family="KERN", horizon="episode", state="H Dh Dv"),
    offers=(Feature.KEYS,),
    formula="o_t = norm(q_t S_t) * silu(W_g h_t), S_t = (1 - 2^-(first + h)) S_(t-1) + k_t^T v_t / sqrt(Dh)",
)


def twin(module: Retention, h: Tensor) -> Tensor:
    """Compute one episode [t, D] as the formula reads; slow."""
    dims, rows = module.dims, []
    shape = (dims.heads, dims.head_dim, dims.value_dim)
    sums = [h.new_zeros(shape[1:]) for _ in range(dims.heads)]
    for row in h:
        q, k, v = module.project(row).split(module.widths)
        gate, heads = module.gate(row), []
        for head in range(dims.heads):
            group = head // (dims.heads // dims.kv_heads)
            key = k[group * dims.head_dim : (group + 1) * dims.head_dim] / dims.head_dim**0.5
            value = v[group * dims.value_dim : (group + 1) * dims.value_dim]
            sums[head] = module.log_decay[head].exp() * sums[head] + torch.outer(key, value)
            out = q[head * dims.head_dim : (head + 1) * dims.head_dim] @ sums[head]
            out = (out - out.mean()) / torch.sqrt(out.var(correction=0) + 1e-5)
            own = gate[head * dims.value_dim : (head + 1) * dims.value_dim]
            heads.append(out * own * torch.sigmoid(own))
        rows.append(module.out(torch.cat(heads)))
    return torch.stack(rows)
