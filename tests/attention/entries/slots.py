"""Rows and twins of further entries: what stands for many tokens at once."""

import copy
import math
from collections.abc import Callable
from typing import Any

import torch
from torch import Tensor

from rltransformers.backbone import Backbone
from rltransformers.laws import Limit
from tests.attention import twins
from tests.attention.row import GROUPED, GROUPED_SIZES, KEEP_ALL, Row, projections, tie_projections
from tests.attention.twins import Key, Logits, Mixture, Reader, Rows, Window
from tests.mixers.twins import csalr_twin

Pairs = list[tuple[Tensor, Tensor]]
Compress = Callable[[Reader, int, Pairs], Pairs]
"""Keys and values of the slots of a block, from one head and the keys and values of its tokens."""


def slot_attention(compress: Compress, sizes: Callable[[Reader], tuple[int, int, int, int]]) -> Callable[..., Mixture]:
    """Softmax attention whose keys are the slots of completed blocks and the tokens behind them.

    Args:
        sizes: tokens of a block, blocks kept, slots of a block, tokens between the places of two slots.
    """

    def mixture(reader: Reader, tokens: Rows, prepared: Rows, below: Logits) -> Mixture:
        block, kept, slots, span = sizes(reader)
        shown: list[Key] = []

        def edges(reader: Reader, t: int) -> list[Key]:
            done = (t + 1) // block
            shown[:] = [
                ("block", m * slots + c, t - (m * block + block - 1 - span * (slots - 1 - c)))
                for m in range(max(0, done - kept), done)
                for c in range(slots)
            ]
            shown.extend(("token", s, t - s) for s in range(done * block, t + 1))
            return list(shown)

        def node(reader: Reader, kind: str, index: int, head: int, all_tokens: Pairs) -> tuple[Tensor, Tensor]:
            m, c = divmod(index, slots)
            return compress(reader, head, all_tokens[m * block : m * block + block])[c]

        def shift(reader: Reader, q: Tensor, n: int) -> Tensor:
            counts = shown[n][0] == "block" and getattr(reader.options("mixer"), "mass", False)
            return q.new_tensor(math.log(block) if counts else 0.0)

        changed, find = copy.copy(reader), reader.find
        pattern = Window(1, edges=edges, node=node, shift=shift)
        changed.find = lambda axis, name: (lambda *_: pattern) if axis == "pattern" else find(axis, name)
        return twins.attention(changed, tokens, prepared, below)

    return mixture


def kept_of(reader: Reader, block: int) -> int:
    """The blocks that fit into the memory beside one that is nearly complete."""
    given = reader.options("mixer").blocks
    tokens = (reader.config.memory + 1) * reader.config.tokens_per_step
    return given or (tokens + 1) // block - 1


def one_slot(reader: Reader) -> tuple[int, int, int, int]:
    """Of a block."""
    block = reader.options("mixer").block
    return block, kept_of(reader, block), 1, 0


def group_of(reader: Reader, head: int) -> int:
    """The key-value head of a query head."""
    return head // (reader.heads // (reader.config.kv_heads or reader.heads))


def convolved(reader: Reader, head: int, tokens: Pairs) -> Pairs:
    """Liu et al. 2018, section 4.2.3: one product per tap, kernels of their own for keys and values."""
    if reader.options("mixer").compress == "mean":
        k, v = (sum(token[i] for token in tokens[1:]) + tokens[0][i] for i in (0, 1))
        return [(k / len(tokens), v / len(tokens))]
    group, found = group_of(reader, head), []
    for i, name in enumerate(("of_keys", "of_values")):
        weight, bias = (reader[f"mixing.mixer.compression.{name}.{part}"][group] for part in ("weight", "bias"))
        found.append(sum((weight[j] @ token[i] for j, token in enumerate(tokens)), bias))
    return [(found[0], found[1])]


def identity_taps(special: Backbone, plain: Backbone) -> None:
    """Convolutions of one tap that change nothing."""
    for name, value in special.named_parameters():
        if ".compression." in name:
            value.data.copy_(torch.eye(value.shape[-1]).expand_as(value) if name.endswith("weight") else 0 * value)


def linformer_sizes(reader: Reader) -> tuple[int, int, int, int]:
    """Learned mixtures stand at the end of the block, what is made of a part at its end."""
    options = reader.options("mixer")
    tokens = (reader.config.memory + 1) * reader.config.tokens_per_step
    block = options.block or min(16, (tokens + 1) // 2)
    slots = options.slots or max(1, block // 4)
    return block, kept_of(reader, block), slots, 0 if options.projection == "learned" else block // slots


def projected(reader: Reader, head: int, tokens: Pairs) -> Pairs:
    """Wang et al. 2020, equation 7, for the tokens of a block; pooled and convolved as section 4 proposes."""
    options, (_, _, slots, span) = reader.options("mixer"), linformer_sizes(reader)
    owner = Reader(reader.backbone, 0, reader.find) if options.sharing == "layers" else reader
    group = group_of(reader, head) if options.sharing == "none" else 0
    found: list[list[Tensor]] = []
    for i, own in enumerate(("of_keys", "of_values")):
        name = f"mixing.mixer.compression.{'of_keys' if options.sharing in ('kv', 'layers') else own}."
        vectors = [token[i] for token in tokens]
        rows = []
        for c in range(slots):
            part = vectors[c * span : (c + 1) * span]
            if options.projection == "learned":
                weight = owner[name + "weight"][group, c]
                rows.append(sum((w * x for w, x in zip(weight[1:], vectors[1:], strict=True)), weight[0] * vectors[0]))
            elif options.projection == "conv":
                weight, bias = owner[name + "weight"][group], owner[name + "bias"][group]
                rows.append(sum((weight[j] @ x for j, x in enumerate(part)), bias))
            elif options.projection == "mean":
                rows.append(sum(part[1:], part[0]) / span)
            else:
                rows.append(torch.stack(part).max(0).values)
        found.append(rows)
    return list(zip(*found, strict=True))


def prefix_twin(mixer: Any, x: Tensor) -> tuple[Tensor, dict[str, Tensor]]:
    """Wang et al. 2020, equation 7, with the projections of every prefix added up token by token."""
    dims, owner = mixer.dims, mixer.projections
    share = dims.heads // dims.kv_heads
    rows = [mixer.project(row).split(dims.widths) for row in x]
    outputs: list[list[Tensor]] = [[] for _ in x]
    keys, values = [], []
    for head in range(dims.heads):
        group = head // share
        sums = [torch.zeros(mixer.slots, dims.head_dim), torch.zeros(mixer.slots, dims.value_dim)]
        for t, (q, k, v) in enumerate(rows):
            own = k.view(dims.kv_heads, -1)[group], v.view(dims.kv_heads, -1)[group]
            for i, part in enumerate((owner.of_keys, owner.of_values)):
                table = part.weight
                columns = table[t % len(table), group if table.shape[1] > 1 else 0]
                sums[i] = sums[i] + torch.outer(columns, own[i])
            logits = sums[0] @ q.view(dims.heads, -1)[head] / math.sqrt(dims.head_dim)
            outputs[t].append(torch.stack(twins.softmax(list(logits))) @ sums[1])
        keys.append(sums[0].T)
        values.append(sums[1])
    return mixer.out(torch.stack([torch.cat(row) for row in outputs])), {
        "projected_keys": torch.stack(keys),
        "projected_values": torch.stack(values),
    }


def identity_projections(special: Backbone, plain: Backbone) -> None:
    """As many slots as tokens, each of which is a token."""
    for name, value in special.named_parameters():
        if ".compression." in name:
            value.data.copy_(torch.eye(value.shape[-1]))


def linformer(**options: Any) -> dict[str, Any]:
    return {"mixer": {"name": "linformer", **options}}


def drawn(seed: int, layer: int, head: int, p: int, draw: int) -> int:
    """Fifth powers of sums, one number after the other, in whole numbers of any size."""
    prime = 2**31 - 1
    number = pow(pow(seed + 2, 5, prime) + layer + 1, 5, prime)
    for first, second in ((p, number), (None, head), (None, draw)):
        number = pow((number if first is None else first) + second + 1, 5, prime)
    return number


def probsparse(reader: Reader, tokens: Rows, prepared: Rows, below: Logits) -> Mixture:
    """Zhou et al. 2021, equations 3 and 4, in a window: lazy queries are zero, so all of their keys weigh the same."""
    options, heads, width = reader.options("mixer"), reader.heads, reader.head_dim
    group, steps = reader.config.tokens_per_step, reader.config.memory
    window = (steps + 1) * group
    candidates = options.candidates or max(2, window)
    samples = options.samples or max(1, min(window, options.factor * math.ceil(math.log(window))))
    active = (
        options.factor * math.ceil(math.log(candidates)) if options.active_queries is None else options.active_queries
    )
    measures: list[list[float]] = [[] for _ in range(heads)]
    lazy: list[list[bool]] = [[] for _ in range(heads)]
    for t, row in enumerate(prepared):
        seen = min(t, steps * group + t % group) + 1
        for head in range(heads):
            q = reader.query_of(row).view(heads, width)[head]
            logits = []
            for draw in range(samples):
                key = prepared[t - drawn(options.seed, reader.layer, head, t, draw) % seen]
                k = reader.key_value_of(key)[: (reader.config.kv_heads or heads) * width].view(-1, width)
                logits.append(float((q @ k[group_of(reader, head)]).detach()) / math.sqrt(width))
            own = sum(max(logits) - each for each in logits) / len(logits)
            rivals = measures[head][-(candidates - 1) :]
            lazy[head].append(sum(rival > own for rival in rivals) >= active)
            measures[head].append(own)
    changed, query_of = copy.copy(reader), reader.query_of

    def silenced(row: Tensor) -> Tensor:
        t = next(t for t, each in enumerate(prepared) if each is row)
        q = query_of(row).view(heads, width)
        return torch.stack([0 * q[head] if lazy[head][t] else q[head] for head in range(heads)]).flatten()

    changed.query_of = silenced  # type: ignore[method-assign]
    mixed, state, logits_above = twins.attention(changed, tokens, prepared, below)
    kept = torch.tensor(measures).T[-(candidates - 1) :]
    missing = torch.zeros(candidates - 1 - len(kept), heads)
    return mixed, {**state, "measures": torch.cat([missing, kept])}, logits_above


def silent_queries(special: Backbone, plain: Backbone) -> None:
    """Softmax attention that weighs all keys alike."""
    for index in range(len(plain.layers)):
        projections(plain.get_submodule(f"layers.{index}.mixing.mixer"))[0].zero_()


def two_levels(reader: Reader, tokens: Rows, prepared: Rows, below: Logits) -> Mixture:
    """Zhang et al. 2021, section 3: a window of tokens, then pooled keys and values of its outputs."""
    options, heads, width = reader.options("mixer"), reader.heads, reader.head_dim
    groups, steps = reader.config.kv_heads or heads, reader.config.tokens_per_step
    window = options.window or max(1, (reader.config.memory + 1) // 4)
    reach = (options.reach or reader.config.memory + 2 - window) * steps
    kernel, stride, cut = options.kernel, options.stride, groups * width
    level_one, find = copy.copy(reader), reader.find
    level_one.find = lambda axis, name: (lambda *_: Window(window)) if axis == "pattern" else find(axis, name)
    y, state, logits = twins.attention(level_one, tokens, prepared, below)

    def affine(name: str, row: Tensor) -> Tensor:
        out, bias = reader[f"mixing.mixer.{name}.weight"] @ row, reader.get(f"mixing.mixer.{name}.bias")
        return out if bias is None else out + bias

    queries, rows = [], []
    for row in y:
        made = affine("second", row)
        queries.append(made[: heads * width].view(heads, width))
        rows.append(made[heads * width :])
    slots: list[Tensor] = []
    outputs = []
    for t in range(len(y)):
        first = t - kernel + 1
        if first >= 0 and first % stride == 0:
            slots.append(pooled(reader, rows[first : t + 1], groups, cut))
        seen = [row for m, row in enumerate(slots) if t - m * stride < reach]
        read = []
        for head in range(heads):
            group = head // (heads // groups)
            keys = [row[:cut].view(groups, -1)[group] for row in seen]
            weights = twins.softmax([queries[t][head] @ key / math.sqrt(width) for key in keys]) if seen else []
            values = [row[cut:].view(groups, -1)[group] for row in seen]
            read.append(sum((w * v for w, v in zip(weights, values, strict=True)), torch.zeros(reader.value_dim)))
        outputs.append(y[t] + affine("second_output", torch.cat(read)))
    kept = (reach - kernel) // stride + 1
    empty = torch.zeros(len(rows[0]))
    # What lies further back than the state goes cannot be seen any more.
    newest = (len(y) - kernel) // stride
    state = {
        **state,
        "pooled": torch.stack([slots[m] if m >= 0 else empty for m in range(newest - kept + 1, newest + 1)]),
    }
    if kernel > 1:
        state["recent"] = torch.stack(([empty] * kernel + rows)[1 - kernel :])
    return outputs, state, logits


def pooled(reader: Reader, rows: Rows, groups: int, cut: int) -> Tensor:
    """One row of many."""
    pooling, kernel = reader.options("mixer").pooling, len(rows)
    if pooling == "mean":
        return sum(rows[1:], rows[0]) / kernel
    if pooling == "max":
        return torch.stack(rows).max(0).values
    logits = (reader["mixing.mixer.pool.weigh.weight"] @ rows[kernel // 2][cut:]).view(groups, kernel)
    parts = []
    for first, last in ((0, cut), (cut, len(rows[0]))):
        for group in range(groups):
            weights = twins.softmax(list(logits[group]))
            vectors = [row[first:last].view(groups, -1)[group] for row in rows]
            parts.append(sum((w * x for w, x in zip(weights, vectors, strict=True)), 0 * vectors[0]))
    return torch.cat(parts)


def pooling(**options: Any) -> dict[str, Any]:
    return {"mixer": {"name": "poolingformer", **options}}


def no_second_level(special: Backbone, plain: Backbone) -> None:
    """What is read from slots is not joined with anything."""
    for name, value in special.named_parameters():
        if "second_output" in name:
            value.data.zero_()


def compressing(**options: Any) -> dict[str, Any]:
    return {"mixer": {"name": "memory_compressed", **options}}


SLOTS = "tests/attention/test_slots.py::"
LAZY = "rounding changes which of two queries with nearly equal measures is lazy"

ROWS: dict[tuple[str, str], Row] = {
    # The tokens that complete a block equal lucidrains/memory-compressed-attention a806696 without its null key, with
    # copied weights and one kernel for keys and values: 4e-16 in float64. It divides by sqrt(D).
    ("mixer", "memory_compressed"): Row(
        twin=slot_attention(convolved, one_slot),
        config={**compressing(blocks=2), "memory": 7, "kv_heads": 1, "value_dim": 4},
        limits=(
            Limit(compressing(block=1), {}, identity_taps),
            f"{SLOTS}test_a_slot_of_equal_tokens_counts_for_all_of_them_or_for_one",
        ),
    ),
    ("mixer", "linformer"): Row(
        twin=slot_attention(projected, linformer_sizes),
        config={**linformer(block=3, slots=2, blocks=2, sharing="none"), "memory": 7, "kv_heads": 1, "value_dim": 4},
        limits=(Limit({**linformer(block=3, slots=3), **KEEP_ALL}, KEEP_ALL, identity_projections),),
    ),
    # No published code was found to compare with (looked for CSALR and for compressed self-attention).
    ("mixer", "csalr"): Row(
        twin=twins.other_mixer(csalr_twin),
        config={**GROUPED, "mixer": {"name": "csalr", "block": 3, "landmarks": 2}, "memory": 9},
        limits=(
            Limit(
                {"memory": 47, "position": "none", "mixer": {"name": "csalr", "block": 24, "landmarks": 1}},
                {"memory": 47, "position": "none"},
                tie_projections,
            ),
            f"{SLOTS}test_weights_of_regularized_landmarks_sum_to_the_published_half",
        ),
    ),
    # The last of n tokens, lazy or active as there, equals zhouhaoyi/Informer2020 29f2a73 without a mask: 3e-16 in
    # float64. With one, the published code sums the values of lazy queries.
    ("mixer", "informer"): Row(
        twin=probsparse,
        config={"kv_heads": 1, "value_dim": 4},
        limits=(
            Limit({"mixer": {"name": "informer", "active_queries": 4, "candidates": 4}}, {}),
            Limit({"mixer": {"name": "informer", "active_queries": 0}, **KEEP_ALL}, KEEP_ALL, silent_queries),
            f"{SLOTS}test_a_lazy_query_reads_the_mean_and_an_active_one_by_its_scores",
        ),
        bfloat16=1.0,
        why=LAZY,
    ),
    # No published code was found to compare with (looked for Poolingformer and for its title).
    ("mixer", "poolingformer"): Row(
        twin=two_levels,
        config={**pooling(window=2, reach=6, kernel=3, stride=2), "kv_heads": 1, "value_dim": 4},
        limits=(
            Limit(pooling(window=3, reach=5), {"pattern": {"name": "band", "window": 3}}, no_second_level),
            f"{SLOTS}test_slots_of_one_token_are_a_band_over_the_first_level",
        ),
    ),
    # The last of n tokens equals lucidrains/linformer 970e1c3 and tatp22/linformer-pytorch 3ecfc0e, both of which show
    # every token all others, with copied weights: 2e-16 in float64.
    ("mixer", "linformer_prefix"): Row(
        twin=twins.other_mixer(prefix_twin),
        config={
            "mixer": {"name": "linformer_prefix", "slots": 5, "max_len": 9},
            "position": "sinusoidal",
            "kv_heads": 1,
            "value_dim": 4,
        },
        limits=(f"{SLOTS}test_a_prefix_as_long_as_its_projections_is_the_published_linformer",),
    ),
}
VARIANTS: dict[str, Row] = {
    "pooled rows among steps": Row(
        {
            **pooling(window=1, reach=2, kernel=2, stride=1, pooling="max"),
            "memory": 2,
            "tokens_per_step": 3,
            "position": "rope",
            "memory_kind": "cache",
            "attention_bias": True,
        }
    ),
    "lazy queries among steps": Row(
        {
            "mixer": {"name": "informer", "samples": 4, "active_queries": 2, "candidates": 4, "seed": 3},
            "memory": 2,
            "tokens_per_step": 3,
            "position": "rope",
            "memory_kind": "cache",
            "kv_heads": 1,
        },
        bfloat16=1.0,
        why=LAZY,
    ),
    "landmarks by LU": Row(
        {**GROUPED, "mixer": {"name": "csalr", "block": 2, "landmarks": 3, "ridge": 0.5, "iterations": 0}, "memory": 7}
    ),
    "convolved parts of blocks in every layer": Row(
        {
            **linformer(block=4, slots=2, blocks=1, projection="conv", sharing="layers"),
            "layers": 3,
            "position": "none",
            "prior": "gaussian_transformer",
        }
    ),
    "compressed keys among steps": Row(
        {
            **compressing(block=2, compress="mean", mass=True),
            "memory": 2,
            "tokens_per_step": 3,
            "position": "rope",
            "memory_kind": "cache",
            "span": {"name": "adaptive", "ramp": 3.0, "initial": 0.4},
        }
    ),
}
PRESET_ROWS: dict[str, Row] = {
    "poolingformer": Row(GROUPED_SIZES),
    "csalr": Row({**GROUPED_SIZES, "mixer": {"name": "csalr", "block": 2, "landmarks": 2}}),
}
