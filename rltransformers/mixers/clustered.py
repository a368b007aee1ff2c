"""Clustered attention, causal: queries read the running softmax of the nearest word of a codebook.

Axes: B batch, T tokens, H heads, G key-value heads, C codewords, w keys that are attended exactly, Dh width of a head.
"""

import math
from dataclasses import dataclass
from typing import Annotated

import torch
from annotated_types import Ge, Le, Lt
from jaxtyping import Float, Int
from torch import Tensor
from torch.nn import functional as F

from rltransformers.core.spec import Feature, Spec, Traits
from rltransformers.functional.call import Call
from rltransformers.functional.draws import DrawSeed, fill, layer_generator, seeded_normal
from rltransformers.functional.modules import wide_type
from rltransformers.functional.online_means import OnlineMeans
from rltransformers.functional.prefixes import bounded_exp
from rltransformers.functional.recurrences import weighted_sums
from rltransformers.functional.running_top import Largest, running_largest
from rltransformers.functional.windows import fetch
from rltransformers.mixers.interface import Dims, LayerState
from rltransformers.mixers.kernel import HeadsMixer, exact_product


def nearest_word(q: Float[Tensor, "B H T Dh"], words: Float[Tensor, "H C Dh"]) -> Int[Tensor, "B H T"]:
    """The codeword at the smallest distance, in full precision: acting and learning have to find the same one."""
    product = exact_product(q, words)
    return (product - words.to(product.dtype).square().sum(-1)[:, None] / 2).argmax(-1)


@dataclass(frozen=True)
class Options:
    """Options of clustered attention.

    Attributes:
        clusters: codewords C of every head.
        top: keys w of the largest weight for a codeword, which its queries attend one by one ("improved"); 0 for none.
        decay: share of a codeword that stays when it moves.
        seed: of the first codebook.
    """

    clusters: Annotated[int, Ge(1), Le(10_000)] = 16
    top: Annotated[int, Ge(0), Le(1000)] = 8
    decay: Annotated[float, Ge(0), Lt(1)] = 0.999
    seed: DrawSeed = 0


class Clustered(OnlineMeans, HeadsMixer):
    """A query takes the attention of its codeword; among the w keys that weigh most there, it attends by itself.

    Source: Vyas et al. 2020 (arXiv 2007.04825), equations 4-6 and 8-11. There clusters are those of the queries of one
    sequence and a codeword is their mean; here the codebook is the same for all sequences, moves in ``maintain`` only
    and gets no gradient. So attention of every codeword is a sum that grows by one term a token, and the keys that
    weigh most are a list. Queries learn from those keys only: with ``top: 0`` their projection has no gradient.
    """

    codebook: Tensor

    def __init__(self, dims: Dims, options: Options) -> None:
        super().__init__(dims)
        self.top, self.decay = options.top, options.decay
        shape = dims.heads, options.clusters, dims.head_dim
        self.register_buffer("codebook", torch.empty(shape))
        self.make_sums(shape)
        # The first weights give queries of normalized inputs a variance of 1/3.
        fill(self.codebook, lambda: seeded_normal(shape, layer_generator(options.seed, dims.layer)) / 3**0.5)

    def state_shapes(self) -> dict[str, tuple[int, ...]]:
        """Values weighted for each codeword, the sum of the weights, and the keys that weigh most with their values."""
        words, dims = self.codebook.shape[:2], self.dims
        shapes: dict[str, tuple[int, ...]] = {"sum": (*words, dims.value_dim), "norm": tuple(words)}
        if self.top:
            shapes["top"] = (*words, self.top, dims.head_dim + dims.value_dim)
        return shapes

    def read(
        self, h: Tensor, q: Tensor, k: Tensor, v: Tensor, state: LayerState, call: Call
    ) -> tuple[Tensor, LayerState]:
        """Attention of the codewords, and what the keys that weigh most add to it."""
        k, v = k.repeat_interleave(self.dims.share, 1), v.repeat_interleave(self.dims.share, 1)
        own = nearest_word(q.detach(), self.codebook)
        self._watch(q.detach(), own, call)
        weights = bounded_exp(self._logits(k))
        word = F.one_hot(own, weights.shape[-1]).to(weights.dtype)
        sums, total, new = weighted_sums(word, weights, v, state, call.tokens)
        mixed = sums / total
        if not self.top:
            return mixed, new
        asked, rows, new["top"] = self._lists(k, v, own, state["top"], call)
        keys, values = fetch(rows, asked.index).split([self.dims.head_dim, self.dims.value_dim], -1)
        logits = (q[..., None, :] * keys).sum(-1) / math.sqrt(self.dims.head_dim)
        words = self.codebook.to(keys.dtype)[torch.arange(len(self.codebook), device=q.device)[:, None], own]
        of_word = bounded_exp((words[..., None, :] * keys).sum(-1) / math.sqrt(self.dims.head_dim))
        of_word = of_word.masked_fill(~asked.exists, 0.0) / total
        exact = logits.to(of_word.dtype).masked_fill(~asked.exists, float("-inf")).softmax(-1)
        change = of_word.sum(-1, keepdim=True) * exact - of_word
        return mixed + (change[..., None, :] @ values.to(change.dtype)).squeeze(-2), new

    def _logits(self, k: Float[Tensor, "B H n Dh"]) -> Float[Tensor, "B H n C"]:
        """Of keys for every codeword."""
        return exact_product(k, self.codebook) / math.sqrt(self.dims.head_dim)

    def _lists(self, k: Tensor, v: Tensor, own: Tensor, held: Tensor, call: Call) -> tuple[Largest, Tensor, Tensor]:
        """The places that the keys of each token have in all rows, the rows, and the new lists."""
        old = held[..., : self.dims.head_dim]
        dtype = wide_type(k)
        scores = (old.to(dtype) * self.codebook[:, :, None].to(dtype)).sum(-1) / math.sqrt(self.dims.head_dim)
        place = torch.arange(self.top, device=k.device)
        scores = scores.masked_fill(place > call.tokens.before[:, None, None, None], float("-inf"))
        asked, last = running_largest(self._logits(k.detach()), scores.detach(), own, call.tokens)
        dtype = torch.promote_types(k.dtype, held.dtype)
        rows = torch.cat([held.flatten(2, 3).to(dtype), torch.cat([k, v], -1).to(dtype)], 2)
        return asked, rows, fetch(rows, last.index).masked_fill(~last.exists[..., None], 0.0)

    def _watch(self, q: Tensor, own: Tensor, call: Call) -> None:
        """Sum up the queries of a call by codeword for ``maintain``; tell how far they lie from it as "distance"."""
        learns = self.training and torch.is_grad_enabled()
        if not learns and not call.probe.listens:
            return
        valid = call.tokens.valid()[:, None]
        if learns:
            self.add(q, own, valid)
        if call.probe.listens:
            heads = torch.arange(q.shape[1], device=q.device)[:, None]
            away = (q - self.codebook[heads, own]).square().sum(-1).sqrt() * valid
            call.probe.metric("distance", away.sum() / (valid.sum() * q.shape[1]).clamp(min=1))

    def maintain(self) -> None:
        """Move every codeword with members towards the mean of its queries since the last call."""
        self.move(self.codebook, self.decay)


SPEC = Spec(
    id="S12", name="clustered", axis="mixer", paper="Vyas et al. 2020, arXiv 2007.04825",
    summary="queries share the attention of their nearest codeword; each scores only the top keys of it by itself",
    build=Clustered, options=Options, example={"mixer": {"name": "clustered", "clusters": 4, "top": 3}},
    traits=Traits(
        causality="X", family="KERN", horizon="episode", state="H C (Dv + 1 + w (Dh + Dv))",
        causal_form="a codebook learned by online k-means replaces the clustering of the queries of every "
                    "sequence; the softmax is a running one with logits clipped to [-40, 40]; codewords pass no "
                    "gradient to queries",
    ),
    offers=(Feature.KEYS,),
    formula="a_ts = softmax_s(mu_c(q_t) k_s / sqrt(Dh)), on the w largest of them m_t softmax(q_t k_s / sqrt(Dh)) with "
    "m_t their sum, o_t = sum_s a_ts v_s",
)  # fmt: skip
