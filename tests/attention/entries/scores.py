"""Rows and twins of further entries: scores."""

import math

import torch
from torch import Tensor

from rltransformers.backbone import Backbone
from rltransformers.laws import Limit
from tests.attention.row import GROUPED_SIZES, Row, both, projections, zero
from tests.attention.twins import (
    Key,
    Logits,
    Meeting,
    Mixture,
    Reader,
    Rows,
    attention,
    attention_by,
    own_queries,
    positive,
    softmax,
)

SCORES = "tests/attention/test_scores.py::"
NONE = {"position": "none"}


def mixers(special: Backbone, plain: Backbone) -> list[tuple[torch.nn.Module, torch.nn.Module]]:
    """The mixers of both, layer by layer."""
    count = len(special.layers)
    return [
        (special.get_submodule(f"layers.{i}.mixing.mixer"), plain.get_submodule(f"layers.{i}.mixing.mixer"))
        for i in range(count)
    ]


# Hopfield


def beta(reader: Reader, head: int, width: int) -> Tensor:
    """Of one head."""
    given, factor = reader.options("mixer").beta, reader.get("mixing.mixer.score.factor")
    fixed = torch.tensor(1 / math.sqrt(width) if given is None else given)
    return fixed if factor is None else fixed * torch.exp(factor[head, 0, 0])


def moved(reader: Reader, head: int, q: Tensor, keys: Rows, added: Rows) -> Tensor:
    """Ramsauer et al. 2020, equation 3, from the query on; Transformer-XL's u belongs to the query."""
    u = reader.get("mixing.mixer.position.content_bias")
    xi = q if u is None else q + u[head, 0]
    for _ in range(reader.options("mixer").updates):
        shares = softmax([beta(reader, head, len(q)) * (xi @ k) + a for k, a in zip(keys, added, strict=True)])
        xi = sum((share * k for share, k in zip(shares, keys, strict=True)), 0 * q)
    return xi


def resemblance_of_any_width(reader: Reader, head: int, q: Tensor, k: Tensor, distance: int) -> Tensor:
    """q k / sqrt(width)."""
    return q @ k / math.sqrt(len(q))


def resemblance(reader: Reader, head: int, xi: Tensor, k: Tensor, distance: int) -> Tensor:
    """beta xi k."""
    return beta(reader, head, len(xi)) * (xi @ k)


# Additive


def shared_rows(reader: Reader, row: Tensor) -> Tensor:
    """z, head by head."""
    return reader.projected_by(slice(None), row).view(reader.heads, -1)


def additive_queries(reader: Reader, row: Tensor) -> Rows:
    """a1 z of every head."""
    vectors = reader["mixing.mixer.score.of_query"]
    return [(vectors[head] @ z)[None] for head, z in enumerate(shared_rows(reader, row))]


def additive_keys(reader: Reader, row: Tensor) -> list[tuple[Tensor, Tensor]]:
    """a2 z, and z."""
    vectors = reader["mixing.mixer.score.of_key"]
    return [((vectors[head] @ z)[None], z) for head, z in enumerate(shared_rows(reader, row))]


def leaky(reader: Reader, head: int, q: Tensor, k: Tensor, distance: int) -> Tensor:
    """Velickovic et al. 2018, equation 3."""
    total = q[0] + k[0]
    return total if total > 0 else reader.options("mixer").slope * total


def only_values(special: Backbone, plain: Backbone) -> None:
    """What softmax attention reads when it looks at nothing: the mean of the values of the special backbone."""
    for mine, other in mixers(special, plain):
        queries, keys = projections(other)
        values = mine.get_parameter("project.weight").data
        queries.zero_()
        keys[-len(values) :] = values


# Without keys


def no_query(reader: Reader, row: Tensor) -> Rows:
    """Nothing."""
    return [torch.zeros(1)] * reader.heads


def values(reader: Reader, row: Tensor) -> list[tuple[Tensor, Tensor]]:
    """Values in the place of keys."""
    return [(v, v) for v in reader.projected_by(slice(None), row).view(reader.heads, -1)]


def density(reader: Reader, head: int, q: Tensor, k: Tensor, distance: int) -> Tensor:
    """You et al. 2020, equation 3, as a logarithm."""
    return torch.tensor(-((distance - head % 2) ** 2) / (2 * reader.options("mixer").deviation ** 2))


def near(reader: Reader, head: int, t: int, key: Key) -> bool:
    """Inside four deviations around the token before, in whole steps."""
    group, (_, s, _) = reader.config.tokens_per_step, key
    tokens = math.ceil(4 * reader.options("mixer").deviation) + 1
    return t // group - s // group <= math.ceil(tokens / group)


def table_entry(reader: Reader, head: int, q: Tensor, k: Tensor, distance: int) -> Tensor:
    """r[h, d]."""
    at, options = "mixing.mixer.score.", reader.options("mixer")
    if options.rank is None:
        table = reader[at + "entries"]
        return table[head, min(distance, table.shape[1] - 1)]
    heads, places = reader[at + "of_heads"], reader[at + "of_places"]
    return heads[head] @ places[:, min(distance, places.shape[1] - 1)]


def peaks(special: Backbone, plain: Backbone) -> None:
    """Logits of a random Synthesizer that lets only the place of every head through."""
    for _, other in mixers(special, plain):
        logits = other.get_parameter("score.entries").data
        logits.fill_(-1e3)
        for head, row in enumerate(logits):
            row[head % 2] = 0


def written(reader: Reader, row: Tensor) -> Rows:
    """Tay et al. 2021, section 3.1; in factors, section 3.4."""
    at, options = "mixing.mixer.score.writer.", reader.options("mixer")
    hidden = positive(reader[at + "into.weight"] @ row + reader[at + "into.bias"])
    heads = (reader[at + "out.weight"] @ hidden + reader[at + "out.bias"]).view(reader.heads, -1)
    if not options.factorized:
        return list(heads)
    count = options.distances or (reader.config.memory + 1) * reader.config.tokens_per_step
    first = math.ceil(math.sqrt(count))
    second = math.ceil(count / first)
    return [torch.stack([head[n // second] * head[first + n % second] for n in range(count)]) for head in heads]


def own_entry(reader: Reader, head: int, q: Tensor, k: Tensor, distance: int) -> Tensor:
    """What the query wrote."""
    return q[min(distance, len(q) - 1)]


def beside_queries(reader: Reader, row: Tensor) -> Rows:
    """Queries, and what they write."""
    return [torch.cat(parts) for parts in zip(own_queries(reader, row), written(reader, row), strict=True)]


def weighed(reader: Reader, head: int, q: Tensor, k: Tensor, distance: int) -> Tensor:
    """Tay et al. 2021, section 3.5."""
    powers = torch.exp(reader["mixing.mixer.score.shares"])
    product = q[: len(k)] @ k / math.sqrt(len(k))
    return (powers[0] * own_entry(reader, head, q[len(k) :], k, distance) + powers[1] * product) / powers.sum()


def dense_synthesizer(reader: Reader, tokens: Rows, prepared: Rows, below: Logits) -> Mixture:
    """With products or without."""
    mixes = reader.options("mixer").mixture
    meeting = Meeting(beside_queries, content=weighed) if mixes else Meeting(written, values, own_entry)
    return attention(reader, tokens, prepared, below, meeting)


def blind_writers(special: Backbone, plain: Backbone) -> None:
    """Tokens that all write the same."""
    for mine, other in mixers(special, plain):
        mine.get_parameter("score.writer.out.weight").data.zero_()
        table = other.get_parameter("score.entries").data
        table.copy_(mine.get_parameter("score.writer.out.bias").data.view_as(table))


def products_alone(special: Backbone, plain: Backbone) -> None:
    """A mixture that leaves out what is written."""
    for mine, _ in mixers(special, plain):
        mine.get_parameter("score.shares").data.copy_(torch.tensor([-60.0, 60.0]))


# Low rank and band


def cut_heads(reader: Reader, rows: Tensor) -> Rows:
    """Narrow heads and wide ones."""
    options = reader.options("mixer")
    narrow = options.narrow_heads or max(1, reader.heads // 2)
    sizes = [options.rank] * narrow + [reader.head_dim] * (reader.heads - narrow)
    return list(rows.split(sizes))


def query_size(reader: Reader) -> int:
    """Numbers of all queries."""
    options = reader.options("mixer")
    narrow = options.narrow_heads or max(1, reader.heads // 2)
    return narrow * options.rank + (reader.heads - narrow) * reader.head_dim


def cut_queries(reader: Reader, row: Tensor) -> Rows:
    """Of all heads."""
    return cut_heads(reader, reader.projected_by(slice(None, query_size(reader)), row))


def cut_keys(reader: Reader, row: Tensor) -> list[tuple[Tensor, Tensor]]:
    """With their values."""
    count = query_size(reader)
    k = cut_heads(reader, reader.projected_by(slice(count, 2 * count), row))
    v = reader.projected_by(slice(2 * count, None), row).view(reader.heads, -1)
    return list(zip(k, v, strict=True))


def in_band(reader: Reader, head: int, t: int, key: Key) -> bool:
    """Wide heads see the newest steps only."""
    options, group = reader.options("mixer"), reader.config.tokens_per_step
    narrow = options.narrow_heads or max(1, reader.heads // 2)
    return head < narrow or t // group - key[1] // group < options.window


ALIBI, LOW = {"position": "alibi"}, {"name": "lowrank_band", "narrow_heads": 1, "rank": 5}

ROWS: dict[tuple[str, str], Row] = {
    # Two updates equal HopfieldCore of ml-jku/hopfield-layers, f56f929, with the same weights to 9e-17.
    ("mixer", "hopfield"): Row(
        twin=attention_by(Meeting(content=resemblance, settle=moved)),
        limits=(
            Limit({"mixer": {"name": "hopfield", "updates": 0}}, {}),
            f"{SCORES}test_the_energy_of_a_state_pattern_falls_with_every_update_and_is_never_negative",
            f"{SCORES}test_one_update_finds_the_nearest_of_patterns_that_lie_apart",
        ),
    ),
    # Heads side by side, projected, equal GraphAttentionLayer of Diego999/pyGAT, 3664f2d, without its ELU to 2e-16.
    ("mixer", "additive"): Row(
        {"position": "t5"},
        attention_by(Meeting(additive_queries, additive_keys, leaky)),
        (
            Limit({"mixer": "additive", **NONE}, NONE, both(zero("of_query", "of_key"), only_values)),
            f"{SCORES}test_additive_scores_are_those_of_query_and_key_side_by_side",
            f"{SCORES}test_additive_scores_without_a_kink_order_keys_alike_for_all_queries",
        ),
    ),
    ("mixer", "hard_gaussian"): Row(
        ALIBI,
        attention_by(Meeting(no_query, values, density, sees=near)),
        (
            Limit(
                {"mixer": {"name": "hard_gaussian", "deviation": 0.03}, **NONE},
                {"mixer": "synthesizer_random", **NONE},
                peaks,
            ),
            f"{SCORES}test_hard_gaussian_attention_is_a_convolution_with_fixed_taps",
        ),
    ),
    # Against github.com/tensorflow/mesh, da90793, synthetic_attention "random" on tensors of PyTorch with named axes,
    # R[t, h, s] = r[h, t - s], in float64: largest error 2.5e-16.
    ("mixer", "synthesizer_random"): Row(
        ALIBI,
        attention_by(Meeting(no_query, values, table_entry)),
        (
            Limit({"mixer": "synthesizer_random", **NONE}, NONE, both(zero("score.entries"), only_values)),
            f"{SCORES}test_frozen_logits_are_drawn_from_the_seed_and_the_layer_and_stay",
        ),
    ),
    # The last token, against github.com/tensorflow/mesh, da90793, "dense_minus" and "dense_plus_alpha" without our
    # biases, in float64: largest error 2.5e-16; with them against SynthesizerDense of
    # leaderj1001/Synthesizer-Rethinking-Self-Attention-Transformer-Models, 3ee5829: 1.9e-16.
    ("mixer", "synthesizer_dense"): Row(
        {"position": "t5"},
        dense_synthesizer,
        (
            Limit({"mixer": "synthesizer_dense", **NONE}, {"mixer": "synthesizer_random", **NONE}, blind_writers),
            Limit({"mixer": {"name": "synthesizer_dense", "mixture": True}, **NONE}, NONE, products_alone),
        ),
    ),
    ("mixer", "lowrank_band"): Row(
        ALIBI,
        attention_by(Meeting(cut_queries, cut_keys, resemblance_of_any_width, sees=in_band)),
        (
            Limit({"mixer": {**LOW, "window": 7}}, {}),
            Limit(
                {"mixer": {**LOW, "window": 3}},
                {"pattern": [["full", {"name": "band", "window": 3}, {"name": "band", "window": 3}]]},
            ),
            f"{SCORES}test_logits_of_narrow_heads_are_of_low_rank",
        ),
    ),
}
VARIANTS: dict[str, Row] = {
    "softmax of normalized queries and keys with a sink": Row(
        {
            "mixer": {"name": "softmax", "qk_norm": True, "sink_logit": True},
            "position": "rope",
            "kv_heads": 1,
            "head_dim": 4,
            "value_dim": 3,
            "memory_kind": "cache",
        }
    ),
    "softmax with every option among scores by distance, sinks and talking heads": Row(
        {
            "mixer": {"name": "softmax", "qk_norm": True, "softcap": 1.5, "sink_logit": True},
            "pattern": {"name": "longformer", "window": 3, "sinks": 2},
            "head_mixing": "talking",
        }
    ),
    "softmax with a sink beside scores by distance": Row(
        {"mixer": {"name": "softmax", "sink_logit": True}, "memory": 2, "tokens_per_step": 3}
    ),
    "softmax with a cap among compressed rows": Row(
        {
            "mixer": {"name": "softmax", "softcap": 0.8, "qk_norm": True},
            "memory": 3,
            "memory_kind": {"name": "compressive", "slots": 2, "rate": 2},
            "attention_bias": True,
        }
    ),
    "additive with biases and slots": Row(
        {
            "mixer": {"name": "additive", "slope": 0.5},
            "attention_bias": True,
            "position": "alibi",
            "memory": 3,
            "memory_kind": {"name": "compressive", "slots": 2, "rate": 3},
        }
    ),
    "hard gaussian among steps": Row(
        {"mixer": {"name": "hard_gaussian", "deviation": 0.6}, **ALIBI, "tokens_per_step": 2}
    ),
    "frozen factors": Row(
        {
            "mixer": {"name": "synthesizer_random", "rank": 2, "learned": False, "distances": 4, "seed": 3},
            **NONE,
            "head_mixing": "talking",
        }
    ),
    "dense synthesizer in factors": Row(
        {"mixer": {"name": "synthesizer_dense", "factorized": True, "hidden": 4}, **ALIBI}
    ),
    "dense synthesizer with products": Row({"mixer": {"name": "synthesizer_dense", "mixture": True}, **ALIBI}),
    "narrow heads and a band in blocks of steps of two tokens": Row(
        {
            "mixer": {"name": "lowrank_band", "rank": 2, "window": 1},
            "pattern": {"name": "block_local", "block": 2},
            "tokens_per_step": 2,
            "memory": 3,
            **ALIBI,
        }
    ),
    "hopfield with a learned beta": Row(
        {"mixer": {"name": "hopfield", "beta": 0.7, "learned": True}, "position": "alibi", **GROUPED_SIZES}
    ),
}
PRESET_ROWS: dict[str, Row] = {
    "synthesizer_random": Row({"mixer": {"name": "synthesizer_random", "distances": 5}}),
    "lowrank_band": Row({"mixer": {"name": "lowrank_band", "rank": 2, "window": 3}}),
}
