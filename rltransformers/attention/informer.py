"""ProbSparse attention, causal: only queries that single out some of their keys are compared with all of them.

Axes: B batch, H heads, T tokens, N key rows, U sampled keys, R queries that compete, K key width.
"""

import math
from dataclasses import dataclass
from typing import Annotated

import torch
from annotated_types import Ge, Le
from jaxtyping import Bool, Float, Int
from torch import Tensor

from rltransformers.attention.layer import Attention
from rltransformers.attention.plan import Plan
from rltransformers.core.spec import Feature, Spec, Traits, Unread
from rltransformers.functional import windows
from rltransformers.functional.call import Call
from rltransformers.functional.draws import DrawSeed, layer_key, mix
from rltransformers.functional.keys import Group, Past, slots_of
from rltransformers.functional.modules import wide_type
from rltransformers.functional.taps import newest_rows, with_past
from rltransformers.functional.windows import fetch
from rltransformers.mixers.interface import Dims, Mixed

MAX_SAMPLES = 4096


def sparsity(
    q: Float[Tensor, "B H T K"], sampled: Float[Tensor, "B H T U K"], dtype: torch.dtype
) -> Float[Tensor, "B H T"]:
    """Largest less mean scaled product with the sampled keys (arXiv 2012.07436, equation 4); 0 where they agree."""
    with torch.autocast(q.device.type, enabled=False):
        products = (q.to(dtype)[..., None, :] * sampled.to(dtype)).sum(-1) / math.sqrt(q.shape[-1])
        return (products.amax(-1, keepdim=True) - products).mean(-1)


def most_active(
    measures: Float[Tensor, "B N H"], p: Int[Tensor, "B T"], candidates: int, active: int
) -> Bool[Tensor, "B H T"]:
    """Whether fewer than ``active_queries`` of the last ``candidates`` queries of the episode have a larger measure.

    Rows are contiguous in time, end with the tokens of the call and begin ``candidates`` - 1 tokens earlier.
    """
    rivals = measures.unfold(1, candidates, 1)  # B T H R, the query itself at the end
    age = windows.descending(candidates, p.device)
    larger = (rivals > rivals[..., -1:]) & (age <= p[..., None])[:, :, None]
    return (larger.sum(-1) < active).transpose(1, 2)


class ProbSparse(Attention):
    """Attention whose lazy queries are zero, so that they read the mean of the values of the window.

    Scores by distance, where there are any, act on lazy queries, too. Every query is compared with all keys: which ones
    are lazy is known too late for other shapes.
    """

    def __init__(self, dims: Dims, plan: Plan, samples: int, active: int, candidates: int, seed: int) -> None:
        super().__init__(dims, plan)
        self.samples, self.active, self.candidates = samples, active, candidates
        self.key = layer_key(seed, dims.layer)

    def state_shapes(self) -> dict[str, tuple[int, ...]]:
        """Measures of the last queries."""
        return super().state_shapes() | {"measures": (self.candidates - 1, self.dims.heads)}

    def forward(
        self, h: Tensor, query: Tensor, past: Past, state: dict[str, Tensor], call: Call, below: Tensor | None
    ) -> Mixed:
        """The wanted tokens."""
        tokens, before = call.tokens, state["measures"]
        with torch.no_grad():
            measures = self.sparsities(query.detach(), past[-1], call).transpose(1, 2)
            measures = with_past(before, measures.to(before.dtype))
            active = most_active(measures, tokens.p, self.candidates, self.active)
            after = newest_rows(measures, before, tokens)
        heads = query.unflatten(-1, (self.dims.heads, -1)).masked_fill(~active.transpose(1, 2)[..., None], 0.0)
        done = super().forward(h, heads.flatten(2), past, state, call, below)
        return Mixed(done.out, done.state | {"measures": after}, done.logits)

    def sparsities(self, query: Float[Tensor, "B T Q"], window: Group, call: Call) -> Float[Tensor, "B H T"]:
        """``sparsity`` by content, float32 at least."""
        q, rows = self.plan.score.split_queries(query), window.rows.shape[1]
        row = torch.arange(rows - q.shape[2], rows, device=q.device)[:, None] - self.sampled(call.tokens.p)
        keys, _ = self.split(window.rows.detach())
        sampled = fetch(keys, slots_of(row, window.place, rows))
        return sparsity(q, sampled, wide_type(q))

    def sampled(self, p: Int[Tensor, "B T"]) -> Int[Tensor, "B H T U"]:
        """Distances of the sampled keys, drawn from the window with replacement, always the same for a position."""
        heads = torch.arange(self.dims.heads, device=p.device)[:, None]
        draws = mix(mix(mix(p, self.key)[:, None], heads)[..., None], torch.arange(self.samples, device=p.device))
        limit = torch.minimum(p, self.plan.pattern.limits(p)[:, 0])
        return draws % (limit + 1)[:, None, :, None]


NO_DEFAULTS = Unread(
    "samples and active_queries of their own",
    lambda options: options.samples is not None and options.active_queries is not None,
)


@dataclass(frozen=True)
class Options:
    """Options of ProbSparse attention.

    Attributes:
        factor: c in the defaults of ``samples`` and ``active_queries``; not read where both are given.
        samples: keys that the measure of a query looks at; default: c ln(keys in the window).
        active_queries: queries among the candidates that read by their scores; default: c ln(candidates).
        candidates: the newest queries of the episode, with the one in question; default: as many as the window has.
        seed: of the samples.
    """

    factor: Annotated[int, Ge(1), Le(100), NO_DEFAULTS] = 5
    samples: Annotated[int, Ge(1), Le(MAX_SAMPLES)] | None = None
    active_queries: Annotated[int, Ge(0), Le(1_000_000)] | None = None
    candidates: Annotated[int, Ge(2), Le(1_000_000)] | None = None
    seed: DrawSeed = 0


def build(dims: Dims, plan: Plan, options: Options) -> ProbSparse:
    """Build ProbSparse attention for one layer; ``dims.layer`` makes the samples of every layer different."""
    window, factor, active = plan.pattern.horizon + 1, options.factor, options.active_queries
    candidates = options.candidates or max(2, window)
    samples = options.samples or max(1, min(MAX_SAMPLES, window, factor * math.ceil(math.log(window))))
    active = factor * math.ceil(math.log(candidates)) if active is None else active
    return ProbSparse(dims, plan, samples, active, candidates, options.seed)


SPEC = Spec(
    id="S13", name="informer", axis="mixer", paper="Zhou et al. 2021, arXiv 2012.07436, equations 3 and 4",
    summary="Only the queries with the most uneven scores attend; the others read the mean of the window.", build=build,
    options=Options, example={"mixer": {"name": "informer", "samples": 3, "active_queries": 2, "candidates": 5}},
    traits=Traits(
        causality="X",
        family="SEL",
        horizon="memory + candidates - 1",
        state="memory D (training), memory kv_heads (Dh + Dv) more (acting), H (candidates - 1)",
        causal_form="a query competes with earlier queries alone; it samples keys of its window and otherwise "
                    "reads their mean",
    ),
    offers=(Feature.SCORES, Feature.PRODUCTS, Feature.OUTPUTS, Feature.ROWS, Feature.KEYS, Feature.VALUES),
    formula="o_t = softmax_s(q_t k_s / sqrt(Dh)) v_s if M_t is among the `active_queries` largest of the last "
    "`candidates`, else mean_s v_s; M_t = max_i x_ti - mean_i x_ti, x_ti = q_t k_i / sqrt(Dh), i sampled",
)  # fmt: skip
