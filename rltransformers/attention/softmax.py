"""Softmax attention, the neutral mixer; in the layer with a store it reads that as well (Wu et al. 2022).

Axes: B batch, T tokens, S key rows, D model width, H heads, V value width, Q and E numbers of a query and a key row.
"""

from dataclasses import dataclass, replace
from typing import Annotated

import torch
from annotated_types import Ge, Le
from jaxtyping import Float
from torch import Tensor, nn

from rltransformers.attention.layer import Attention
from rltransformers.attention.plan import Plan
from rltransformers.attention.reach import block_of
from rltransformers.attention.roles import Part, QueryKeyNorm, Stage, View
from rltransformers.attention.store import Store
from rltransformers.core.errors import ConfigError
from rltransformers.core.spec import Feature, Spec, Traits
from rltransformers.functional import windows
from rltransformers.functional.call import EVERY, Call, chosen
from rltransformers.functional.keys import At, Group, Past, Ring, Rows, cut_past
from rltransformers.mixers.interface import Dims


class Memorizing(Attention):
    """Attention to the window, joined with what the store of the plan finds in the rows behind it."""

    retriever: Store

    def __init__(self, dims: Dims, plan: Plan) -> None:
        super().__init__(dims, plan)
        self.stored = self.retriever.farthest - self.horizon

    def queries_and_keys(self, h: Float[Tensor, "B T D"]) -> tuple[Float[Tensor, "B T Q"], Float[Tensor, "B T E"]]:
        """Queries and keys as the store compares them."""
        query, keys = super().queries_and_keys(h)
        return self.retriever.queries(query), self.score.with_keys(keys, self.retriever.keys)

    def keys(self, h: Float[Tensor, "B S D"]) -> Float[Tensor, "B S E"]:
        """Keys as the store compares them."""
        return self.score.with_keys(super().keys(h), self.retriever.keys)

    def heads(
        self, h: Tensor, query: Tensor, past: Past, state: dict[str, Tensor], call: Call, below: Tensor | None
    ) -> tuple[Float[Tensor, "B t HO"], dict[str, Tensor], Tensor | None]:
        """Join what the heads read in the window with what they retrieve from the whole of the rows."""
        rows = past[-1]
        window = newest(rows, self.horizon, self.dims.tokens_per_step, call)
        whole = call if call.wanted == EVERY else replace(call, wanted=EVERY)
        out, state, handed = super().heads(h, query, (*past[:-1], window), state, whole, below)
        return chosen(self.retriever.join(out, self.recall(query, rows, call)), call.wanted), state, handed

    def recall(self, query: Float[Tensor, "B T Q"], rows: Group, call: Call) -> Float[Tensor, "B T H R"]:
        """Retrieve for every query, long calls in blocks."""
        (batch, time), horizon = query.shape[:2], self.horizon + self.stored
        block = block_of((rows,), horizon)
        if block:
            (rows,) = cut_past((rows,), block, horizon, time)
            query, call = windows.fold(query, block), call.cut(block)
        assert not isinstance(rows.place, At)
        retrieved = self.retriever.retrieve(query, *self.score.keys_of(rows.rows), rows.place, call)
        return windows.unfold_tokens(retrieved, time, batch) if block else retrieved


def newest(store: Group, horizon: int, tokens_per_step: int, call: Call) -> Group:
    """The window at the end of a store, as a memory that keeps ``horizon`` rows has it."""
    rows, place, time = store.rows, store.place, call.tokens.p.shape[1]
    if isinstance(place, Rows):
        return Group(rows[:, max(0, rows.shape[1] - horizon - time) :], place)
    assert isinstance(place, Ring) and call.clock is not None
    size = horizon + tokens_per_step
    last = (call.clock + (time - 1)) % size
    back = last - torch.arange(size, device=rows.device)
    age = torch.where(back < 0, back + size, back)
    return Group(rows.index_select(1, (place.newest - age) % rows.shape[1]), Ring(age, last))


@dataclass(frozen=True)
class Options:
    """Options of softmax attention that keep its logits in bounds, all of them off.

    Attributes:
        qk_norm: RMS normalization of every head's queries and keys, with gains that the heads share.
        softcap: c of c tanh(l / c), which takes the place of the logits l of content, positions and priors; None: none.
        sink_logit: every head learns a logit that counts in the sum of its softmax and reads nothing.
    """

    qk_norm: bool = False
    softcap: Annotated[float, Ge(0.1), Le(1e6)] | None = None
    sink_logit: bool = False


OFF = Options()


class Cap(Part):
    """``c tanh(l / c)`` of logits l."""

    stages = Stage.LOGITS

    def __init__(self, largest: float) -> None:
        super().__init__()
        self.largest = largest

    def logits(self, logits: Float[Tensor, "B H T S"], view: View) -> Float[Tensor, "B H T S"]:
        return self.largest * torch.tanh(logits / self.largest)


def build(dims: Dims, plan: Plan, options: Options = OFF) -> Attention:
    """Build softmax attention, with the store of the plan where it has one; ConfigError for options without effect."""
    if options != OFF:
        if options.qk_norm and not plan.score.has_keys:
            raise ConfigError(
                "mixer 'softmax' with qk_norm normalizes keys as a memory keeps them, and head_mixing 'mla' keeps "
                "none; set qk_norm to False or head_mixing to 'mha'"
            )
        if options.qk_norm and plan.score.own != plan.score.query_width:
            raise ConfigError(
                "mixer 'softmax' with qk_norm has gains of queries and of keys, and selection 'lsh' makes both by one "
                "projection; set qk_norm to False or selection to 'none'"
            )
        if options.sink_logit and Stage.WEIGHTS in plan.span.stages:
            raise ConfigError(
                "mixer 'softmax' with sink_logit has weights that sum to less than 1, and learned spans normalize them "
                "again; set sink_logit to False or span to 'full'"
            )
        if options.sink_logit:
            plan.score.sink = nn.Parameter(torch.zeros(plan.score.dims.heads))
        if options.qk_norm:
            plan.score.norm = QueryKeyNorm(plan.score.dims.head_dim)
        plan = replace(plan, cap=Part() if options.softcap is None else Cap(options.softcap))
    return Attention(dims, plan) if plan.store is None else Memorizing(dims, plan)


SPEC = Spec(
    id="S0", name="softmax", axis="mixer",
    paper="Vaswani et al. 2017, arXiv 1706.03762, equation 1; qk_norm: Dehghani et al. 2023, arXiv 2302.05442; "
    "softcap: Gemma Team 2024, arXiv 2408.00118; sink_logit: OpenAI 2025, arXiv 2508.10925",
    summary="Scaled dot products, normalized by a softmax over the window.", build=build, options=Options,
    traits=Traits(
        family="EXPL",
        state="memory D (training), memory kv_heads (Dh + Dv) more (acting)",
        causal_form="qk_norm is an RMSNorm before positions act, there a LayerNorm",
    ),
    offers=(
        *(Feature.SCORES, Feature.LOGITS, Feature.PRODUCTS, Feature.CHANNELS, Feature.OUTPUTS, Feature.COMMON_KEYS),
        *(Feature.PATTERNS, Feature.ROWS, Feature.SLOTS, Feature.KEYS, Feature.RETRIEVAL, Feature.VALUES),
    ),
    formula="o_t = sum_s softmax_s(q_t k_s / sqrt(Dh)) v_s; with options q <- RMSNorm(q), "
    "k <- RMSNorm(k); logits l <- c tanh(l / c); exp(b_h) more in the denominator",
)  # fmt: skip
