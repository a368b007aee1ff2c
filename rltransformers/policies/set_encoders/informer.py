"""The encoder of Informer: only queries that single out some keys read by them (Zhou et al. 2021, arXiv 2012.07436).

Axes: B observations, N elements, U sampled keys, A active queries, H heads, Dh width of a head.
"""

import math
from dataclasses import dataclass
from typing import Annotated

import torch
from annotated_types import Ge, Le
from jaxtyping import Bool, Float, Int
from torch import Tensor

from rltransformers.attention.informer import MAX_SAMPLES, NO_DEFAULTS, sparsity
from rltransformers.core.errors import ConfigError
from rltransformers.core.spec import Size, Spec, Traits
from rltransformers.functional.draws import DrawSeed, layer_key, mix
from rltransformers.functional.modules import wide_type
from rltransformers.policies.set_encoders.interface import (
    Attention,
    EncoderOptions,
    Position,
    PostNormStack,
    attend,
    check_table,
)


def drawn_keys(elements: int, samples: int, seed: int, layer: int) -> Int[Tensor, "N U"]:
    """Large numbers whose remainders say which keys every query samples; 0 ... N - 1 where it samples as many."""
    draws = torch.arange(samples).expand(elements, -1)
    if samples == elements:
        return draws.contiguous()
    return mix(mix(torch.arange(elements), layer_key(seed, layer))[:, None], draws)


def sampled_keys(draws: Int[Tensor, "N U"], exists: Bool[Tensor, "B N"]) -> Int[Tensor, "B N U"]:
    """Which element every draw means: the remainder counts the elements that exist."""
    places = torch.arange(exists.shape[1], device=exists.device)
    present_first = (places + ~exists * len(places)).argsort(-1)
    among = draws % exists.sum(-1).clamp(min=1)[:, None, None]
    return present_first.gather(1, among.flatten(1)).unflatten(1, draws.shape)


def most_active(
    q: Float[Tensor, "B H N Dh"],
    k: Float[Tensor, "B H N Dh"],
    sampled: Int[Tensor, "B N U"],
    exists: Bool[Tensor, "B N"],
    active: int,
) -> Int[Tensor, "B H A"]:
    """The queries whose largest product lies farthest above the mean (equation 4), float32 at least."""
    index = sampled.flatten(1)[:, None, :, None].expand(-1, k.shape[1], -1, k.shape[-1])
    keys = k.gather(2, index).unflatten(2, sampled.shape[1:])
    measure = sparsity(q, keys, wide_type(q))
    return measure.masked_fill(~exists[:, None], -1.0).topk(active, -1).indices  # measures are not below 0


class ProbSparseAttention(Attention):
    """Active queries read by softmax over all elements, lazy ones the mean of the values (equation 3).

    Samples depend on the seed, the layer and the place alone, so that acting and learning agree about who is active.
    """

    draws: Tensor

    def __init__(self, width: int, heads: int, active: int, draws: Int[Tensor, "N U"]) -> None:
        super().__init__(width, heads)
        self.active = active
        self.register_buffer("draws", draws, persistent=False)

    def read(self, q: Tensor, k: Tensor, v: Tensor, exists: Tensor) -> Tensor:
        with torch.no_grad():
            index = most_active(q, k, sampled_keys(self.draws, exists), exists, self.active)
        index = index[..., None].expand(-1, -1, -1, q.shape[-1])
        found = attend(q.gather(2, index), k, v, exists)
        count = exists.sum(-1).clamp(min=1)[:, None, None, None]
        mean = v.masked_fill(~exists[:, None, :, None], 0.0).sum(2, keepdim=True) / count
        return mean.expand(v.shape).to(found.dtype).scatter(2, index, found)


@dataclass(frozen=True)
class Options(EncoderOptions):
    """Options of Informer.

    Attributes:
        factor: c in the defaults of ``samples`` and ``active_queries``; not read where both are given.
        samples: keys that the measure of a query looks at; default: c ceil(ln N), at most N.
        active_queries: queries that read by their products; default: c ceil(ln N), at most N.
        seed: of the samples.
    """

    position: Position = "sinusoidal"
    factor: Annotated[int, Ge(1), Le(100), NO_DEFAULTS] = 5
    samples: Annotated[int, Ge(1), Le(MAX_SAMPLES)] | None = None
    active_queries: Size | None = None
    seed: DrawSeed = 0


def build(elements: int, width: int, options: Options) -> PostNormStack:
    """Build ProbSparse attention, unmasked, in post-norm layers with GELU.

    The distilling between layers (equation 5) is left out: it would merge neighbors of a set, and its batch norm would
    let observations change each other.

    Compared with github.com/zhouhaoyi/Informer2020 at 29f2a73 (two times ``EncoderLayer`` with ``ProbAttention``, no
    mask), with its weights and our samples, in float64: largest error 5.6e-16 once the measure there divides
    by the number of samples, 0.22 as it is, where other queries are active.

    Raises:
        ConfigError: more samples or active queries than elements, or samples that would fill the memory.
    """
    usual = max(1, min(elements, MAX_SAMPLES, options.factor * math.ceil(math.log(elements))))
    samples, active = options.samples or usual, options.active_queries or usual
    for name, count in (("samples", samples), ("active_queries", active)):
        if count > elements:
            raise ConfigError(
                f"encoder 'informer': {name} ({count}) is more than there are elements; at most {elements}"
            )
    check_table("the samples of encoder 'informer'", 2 * elements, samples, "lower samples, or use larger elements")
    attentions = [
        ProbSparseAttention(width, options.heads, active, drawn_keys(elements, samples, options.seed, layer))
        for layer in range(options.layers)
    ]
    return PostNormStack(width, attentions, options.ff_width or 4 * width, embedding_norm=False)


SPEC = Spec(
    id="S13-encoder", name="informer", axis="encoder", paper="Zhou et al. 2021, arXiv 2012.07436, equations 3 and 4",
    summary="Only the elements with the most uneven scores attend to others; the rest read the mean of all values.",
    build=build, options=Options,
    example={"observation": {"encoder": {"name": "informer", "layers": 1, "samples": 2, "active_queries": 2}}},
    traits=Traits(
        causality="N/A",
        horizon="-",
        time="N ln N",
        causal_form="the mean of sampled products divides by their number, the authors' code divides their sum by N; "
        "samples are drawn once for all heads and observations, from the elements that exist, there anew in "
        "every call; no distilling between layers, no norm behind the last one",
    ),
    formula="o_i = softmax_j(q_i k_j / sqrt(Dh)) v_j if M_i is among the `active_queries` largest, else mean_j v_j; "
    "M_i = max_s x_is - mean_s x_is, x_is = q_i k_s / sqrt(Dh), s sampled",
)  # fmt: skip
