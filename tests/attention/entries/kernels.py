"""Kernels: rows with their twins, which follow one episode token by token, [t, D] to [t, D] and the final state."""

import math
from collections.abc import Callable
from typing import Any

import torch
from torch import Tensor

from rltransformers.laws import Limit
from tests.attention.row import (
    GROUPED,
    GROUPED_SIZES,
    KEEP_ALL,
    Row,
    both,
    mean_by_softmax,
    tie_projections,
    zero,
)
from tests.attention.stages import State
from tests.attention.twins import other_mixer

Head = Callable[[int, list[Tensor], list[Tensor], list[Tensor]], tuple[list[Tensor], State]]


def by_head(mixer: Any, x: Tensor, head: Head) -> tuple[Tensor, State]:
    """Outputs and states of heads that know the rows of their queries, keys and values."""
    dims = mixer.dims
    widths = [dims.heads * dims.head_dim, dims.kv_heads * dims.head_dim, dims.kv_heads * dims.value_dim]
    queries, keys, values = mixer.project(x).split(widths, -1)
    found = []
    for h in range(dims.heads):
        g = h * dims.kv_heads // dims.heads
        q, k = (rows[:, i * dims.head_dim :][:, : dims.head_dim] for rows, i in ((queries, h), (keys, g)))
        found.append(head(h, list(q), list(k), list(values[:, g * dims.value_dim :][:, : dims.value_dim])))
    out = torch.stack([torch.cat([rows[t] for rows, _ in found]) for t in range(len(x))])
    return mixer.out(out), {name: torch.stack([state[name] for _, state in found]) for name in found[0][1]}


def rfa_twin(mixer: Any, x: Tensor) -> tuple[Tensor, State]:
    share = mixer.dims.heads // mixer.dims.kv_heads

    def head(h: int, q: list[Tensor], k: list[Tensor], v: list[Tensor]) -> tuple[list[Tensor], State]:
        rows = [w if mixer.scale is None else w * mixer.scale[h // share, 0] for w in mixer.directions[h // share]]

        def phi(y: Tensor) -> Tensor:
            angles = [w @ y / torch.sqrt(y @ y) for w in rows]
            return torch.stack([*map(torch.sin, angles), *map(torch.cos, angles)]) / math.sqrt(len(rows))

        total, norm, out = torch.zeros(2 * len(rows), len(v[0])), torch.zeros(2 * len(rows)), []
        for t, row in enumerate(x):
            keep = add = torch.ones(())
            if mixer.gate is not None:
                keep = 1 / (1 + torch.exp(-mixer.gate(row)[h // share]))
                add = 1 - keep
            total = keep * total + add * torch.outer(phi(k[t]), v[t])
            norm = keep * norm + add * phi(k[t])
            weight = phi(q[t]) @ norm
            out.append(phi(q[t]) @ total / (weight if weight > mixer.floor else mixer.floor))
        return out, {"sum": total, "norm": norm}

    return by_head(mixer, x, head)


def fast_weight_twin(mixer: Any, x: Tensor) -> tuple[Tensor, State]:
    def phi(y: Tensor) -> Tensor:
        if mixer.nu == 0:
            features = torch.where(y > 0, y + 1, y.clamp(max=0).exp())
        else:
            r = [max(a, torch.zeros(())) for a in [*y, *-y]]
            features = torch.stack([r[i] * r[i - j] for j in range(1, mixer.nu + 1) for i in range(len(r))])
        return features / features.sum()

    def head(h: int, q: list[Tensor], k: list[Tensor], v: list[Tensor]) -> tuple[list[Tensor], State]:
        weights, out = torch.zeros(len(v[0]), len(phi(k[0]))), []
        for t, row in enumerate(x):
            if mixer.rate is None:
                weights = weights + torch.outer(v[t], phi(k[t]))
            else:
                beta = 1 / (1 + torch.exp(-mixer.rate(row)[h * mixer.dims.kv_heads // mixer.dims.heads]))
                weights = weights + beta * torch.outer(v[t] - weights @ phi(k[t]), phi(k[t]))
            out.append(weights @ phi(q[t]))
        return out, {"weights": weights.T}

    return by_head(mixer, x, head)


def set_transformer_twin(mixer: Any, x: Tensor) -> tuple[Tensor, State]:
    def head(h: int, q: list[Tensor], k: list[Tensor], v: list[Tensor]) -> tuple[list[Tensor], State]:
        points = mixer.points[h * mixer.dims.kv_heads // mixer.dims.heads]
        root, out = math.sqrt(len(q[0])), []
        weights = torch.stack([torch.stack([(point @ k_s / root).exp() for k_s in k]) for point in points])
        for t in range(len(x)):
            seen = weights[:, : t + 1]
            summaries = [sum(w * v_s for w, v_s in zip(row / row.sum(), v, strict=False)) for row in seen]
            logits = torch.stack([q[t] @ (mixer.of_summaries[h] @ summary) / root for summary in summaries])
            shares = logits.exp() / logits.exp().sum()
            out.append(torch.stack([a * summary for a, summary in zip(shares, summaries, strict=True)]).sum(0))
        return out, {"sum": weights @ torch.stack(v), "norm": weights.sum(1)}

    return by_head(mixer, x, head)


def luna_twin(mixer: Any, x: Tensor) -> tuple[Tensor, State]:
    def head(h: int, q: list[Tensor], k: list[Tensor], v: list[Tensor]) -> tuple[list[Tensor], State]:
        g, root = h * mixer.dims.kv_heads // mixer.dims.heads, math.sqrt(len(q[0]))
        keys, values, out = torch.zeros(()), torch.zeros(()), []
        for t, row in enumerate(x):
            key = mixer.packing_keys(row)[g * len(q[0]) : (g + 1) * len(q[0])]
            logit = torch.stack([query @ key / root for query in mixer.packing_queries[g]])
            if mixer.activation == "elu":
                weight = torch.where(logit > 0, logit + 1, logit.clamp(max=0).exp())
            else:
                weight = torch.log2(1 + 2**logit)
            keys, values = keys + torch.outer(k[t], weight), values + torch.outer(weight, v[t])
            unpack = (q[t] @ keys / root / (t + 1)).exp()
            out.append(unpack / unpack.sum() @ values / (t + 1))
        return out, {"projected_keys": keys, "projected_values": values}

    return by_head(mixer, x, head)


def clustered_twin(mixer: Any, x: Tensor) -> tuple[Tensor, State]:
    def head(h: int, q: list[Tensor], k: list[Tensor], v: list[Tensor]) -> tuple[list[Tensor], State]:
        words, out, root = mixer.codebook[h], [], math.sqrt(len(q[0]))
        logits = torch.stack([torch.stack([word @ key / root for key in k]) for word in words])

        def order(c: int, t: int) -> list[int]:
            return sorted(range(t + 1), key=lambda s: -float(logits[c, s].detach()))[: mixer.top]

        for t in range(len(x)):
            c = int(torch.stack([(q[t] - word).square().sum() for word in words]).argmin())
            weights = list(logits[c, : t + 1].exp() / logits[c, : t + 1].exp().sum())
            top = order(c, t)
            if top:
                mass = torch.stack([weights[s] for s in top]).sum()
                powers = torch.stack([(q[t] @ k[s] / root).exp() for s in top])
                for s, power in zip(top, powers, strict=True):
                    weights[s] = mass * power / powers.sum()
            out.append(torch.stack([a * v_s for a, v_s in zip(weights, v, strict=False)]).sum(0))
        state = {"sum": logits.exp() @ torch.stack(v), "norm": logits.exp().sum(1)}
        if mixer.top:
            state["top"] = torch.zeros(len(words), mixer.top, len(k[0]) + len(v[0]))
            for c in range(len(words)):
                for place, s in enumerate(order(c, len(x) - 1)):
                    state["top"][c, place] = torch.cat([k[s], v[s]])
        return out, state

    return by_head(mixer, x, head)


KERNELS = "tests/mixers/test_kernels.py::"
NEAREST = "rounding changes which of two nearly equal codewords is the nearest, or which key weighs more"

ROWS: dict[tuple[str, str], Row] = {
    # Against github.com/Noahs-ARK/RFA, b075fa8, incremental attention with the denominator held above 1 / (0.01 r), the
    # same weights in float64: largest error 2.2e-16, 6e-4 with the 1e-3 that the authors add to lengths.
    ("mixer", "rfa"): Row(
        twin=other_mixer(rfa_twin),
        config={**GROUPED, "mixer": {"name": "rfa", "directions": 7, "sigma": 2.0}},
        limits=(
            Limit({"mixer": "rfa", **KEEP_ALL}, KEEP_ALL, mean_by_softmax),
            f"{KERNELS}test_random_features_approach_softmax_of_unit_queries_and_keys",
            f"{KERNELS}test_a_gate_of_n_by_n_plus_1_is_no_gate",
        ),
    ),
    # Against github.com/IDSIA/lmtool-fwp, 0159201, its updates token by token for the same projections in float64:
    # largest error 2.4e-16 (delta), 1.7e-16 (delta with nu = 3), 1.1e-15 (sum), once its 1/sqrt(Dh) is left out.
    ("mixer", "fast_weight"): Row(
        twin=other_mixer(fast_weight_twin),
        config={**GROUPED, "tokens_per_step": 3},
        limits=(
            f"{KERNELS}test_under_orthonormal_keys_fast_weights_hold_the_latest_value",
            f"{KERNELS}test_summing_fast_weights_are_linear_attention_without_its_denominator",
        ),
    ),
    # The last token, against github.com/juho-lee/set_transformer, 73432c6, two MABs without the queries that they add
    # and their networks, the scale per head, the same weights in float64: largest error 1.3e-16.
    ("mixer", "set_transformer"): Row(
        twin=other_mixer(set_transformer_twin),
        config={**GROUPED, "mixer": {"name": "set_transformer", "points": 6}},
        limits=(
            Limit({"mixer": "set_transformer", **KEEP_ALL}, KEEP_ALL, both(zero("mixer.points"), mean_by_softmax)),
            f"{KERNELS}test_induced_attention_is_the_attention_of_two_blocks",
        ),
    ),
    # Against github.com/XuezheMax/fairseq-apollo, 3644d20, LunarCausalAttention with keys and values not tied, the same
    # weights in float64: largest error 1.3e-15.
    ("mixer", "luna"): Row(
        twin=other_mixer(luna_twin),
        config={**GROUPED, "mixer": {"name": "luna", "slots": 6}},
        limits=(Limit({"mixer": "luna", **KEEP_ALL}, KEEP_ALL, both(zero("packing_queries"), mean_by_softmax)),),
    ),
    # The last token, against github.com/idiap/fast-transformers, 2ad36b9, ClusteredAttention and
    # ImprovedClusteredAttention in float64, its kernels written in PyTorch, once our codewords are the means of their
    # queries: largest error 6.7e-16.
    ("mixer", "clustered"): Row(
        twin=other_mixer(clustered_twin),
        config={**GROUPED, "mixer": {"name": "clustered", "clusters": 6, "top": 3}},
        limits=(
            Limit({"mixer": {"name": "clustered", "top": 30}, **KEEP_ALL}, KEEP_ALL, tie_projections),
            f"{KERNELS}test_a_codebook_that_holds_every_query_gives_full_attention",
        ),
        bfloat16=0.4,
        why=NEAREST,
    ),
}

VARIANTS: dict[str, Row] = {
    "random features with a gate": Row(
        {
            **GROUPED,
            "tokens_per_step": 3,
            "mixer": {"name": "rfa", "directions": 5, "gate": True, "learned_scale": False, "sigma": 1.3},
        },
    ),
    "fast weights that sum products": Row(
        {**GROUPED, "attention_bias": True, "mixer": {"name": "fast_weight", "rule": "sum", "nu": 2}}
    ),
    "packed by elu": Row(
        {
            **GROUPED,
            "attention_bias": True,
            "tokens_per_step": 2,
            "mixer": {"name": "luna", "slots": 1, "activation": "elu"},
        }
    ),
    "clustered without exact keys": Row(
        {**GROUPED, "tokens_per_step": 3, "mixer": {"name": "clustered", "clusters": 5, "top": 0}},
        bfloat16=0.4,
        why=NEAREST,
    ),
}

PRESET_ROWS: dict[str, Row] = {
    "clustered": Row(
        {**GROUPED_SIZES, "mixer": {"name": "clustered", "clusters": 3, "top": 2}}, bfloat16=0.4, why=NEAREST
    ),
    "luna": Row({**GROUPED_SIZES, "mixer": {"name": "luna", "slots": 4}}),
    "fast_weight": Row(GROUPED_SIZES),
    "rfa": Row({**GROUPED_SIZES, "mixer": {"name": "rfa", "directions": 6, "sigma": 2.0, "gate": True}}),
}
