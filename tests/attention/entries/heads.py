"""Rows and twins of further entries: heads."""

import math
from typing import Any

import torch
from torch import Tensor

from rltransformers.attention.heads.differential import Differential
from rltransformers.attention.roles import Combine
from rltransformers.backbone import Backbone
from rltransformers.laws import Limit
from tests.attention.row import Row
from tests.attention.twins import HeadMixing, Meeting, Reader, Rows, sigmoid

HEADS = "tests/attention/test_heads.py::"


# Collaborative heads


def common_width(reader: Reader) -> int:
    """K."""
    return reader.options("head_mixing").width or reader.heads * reader.head_dim


def weighed_queries(reader: Reader, row: Tensor) -> Rows:
    """q * m_h for every head, times sqrt(H) so that products are divided by sqrt(K / H)."""
    q = reader.projected_by(slice(None, common_width(reader)), row)
    return [q * m * math.sqrt(reader.heads) for m in reader["mixing.mixer.score.mixing"]]


def one_key(reader: Reader, row: Tensor) -> list[tuple[Tensor, Tensor]]:
    """The same key for all heads, and values."""
    width = common_width(reader)
    k = reader.projected_by(slice(width, 2 * width), row)
    values = reader.projected_by(slice(2 * width, None), row).view(reader.heads, reader.value_dim)
    return [(k, v) for v in values]


def sliced(special: Backbone, plain: Backbone) -> None:
    """Every head looks at channels of its own."""
    for index in range(len(special.layers)):
        mixing = special.get_parameter(f"layers.{index}.mixing.mixer.score.mixing").data
        heads, width = mixing.shape
        for head in range(heads):
            for channel in range(width):
                mixing[head, channel] = float(channel // (width // heads) == head)


# Capsules


def votes(reader: Reader, outputs: Rows) -> list[Rows]:
    """o_h W_hn for heads and capsules."""
    weight = reader["mixing.mixer.output.weight"]
    count = reader.options("head_mixing").capsules or reader.heads
    return [list((o @ weight[head]).view(count, -1)) for head, o in enumerate(outputs)]


def total(rows: Rows) -> Tensor:
    """The sum."""
    return sum(rows[1:], rows[0])


def shares(numbers: Rows) -> Rows:
    """Softmax."""
    largest = max(float(number.detach()) for number in numbers)
    powers = [torch.exp(number - largest) for number in numbers]
    return [power / total(powers) for power in powers]


def by_agreement(reader: Reader, outputs: Rows) -> Tensor:
    """Sabour et al. 2017, procedure 1."""
    voted = votes(reader, outputs)
    heads, count = range(len(voted)), range(len(voted[0]))
    b = [[torch.zeros(()) for _ in count] for _ in heads]
    capsules: Rows = []
    for _ in range(reader.options("head_mixing").iterations):
        c = [shares(row) for row in b]
        capsules = []
        for n in count:
            s = total([c[h][n] * voted[h][n] for h in heads])
            squared = s @ s
            capsules.append(squared / (1 + squared) * s / torch.sqrt(squared + 1e-8))
        b = [[b[h][n] + capsules[n] @ voted[h][n] for n in count] for h in heads]
    return torch.cat(capsules)


def by_em(reader: Reader, outputs: Rows) -> Tensor:
    """Hinton et al. 2018, procedure 1, with 0.001 added to variances and to sums of shares."""
    voted = votes(reader, outputs)
    heads, count = range(len(voted)), range(len(voted[0]))
    beta_u, beta_a = (reader[f"mixing.mixer.output.{name}"] for name in ("cost", "threshold"))
    r = [[torch.tensor(1 / len(count)) for _ in count] for _ in heads]
    capsules: Rows = []
    for _ in range(reader.options("head_mixing").iterations):
        capsules, logs = [], [[torch.zeros(()) for _ in count] for _ in heads]
        for n in count:
            weight = total([r[h][n] for h in heads])
            mean = total([r[h][n] * voted[h][n] for h in heads]) / (weight + 1e-3)
            variance = total([r[h][n] * (voted[h][n] - mean) ** 2 for h in heads]) / (weight + 1e-3) + 1e-3
            cost = total([torch.log(torch.sqrt(v)) + beta_u[n] for v in variance]) * weight
            activation = sigmoid(reader.options("head_mixing").sharpness * (beta_a[n] - cost))
            for h in heads:
                density = [
                    -((vote - m) ** 2) / (2 * v) - torch.log(torch.sqrt(2 * math.pi * v))
                    for vote, m, v in zip(voted[h][n], mean, variance, strict=True)
                ]
                logs[h][n] = torch.log(activation) + total(density)
            capsules.append(activation * mean)
        r = [shares(row) for row in logs]
    return torch.cat(capsules)


# Gates


def gates(reader: Reader, row: Tensor, outputs: Rows) -> Rows:
    """Qiu et al. 2025, equation 5, head by head and channel by channel."""
    weight, bias = reader["mixing.mixer.output.gate.weight"], reader.get("mixing.mixer.output.gate.bias")
    own = weight @ row if bias is None else weight @ row + bias
    of_heads = own.view(len(outputs), -1)
    return [
        torch.stack([x * sigmoid(gate[i % len(gate)]) for i, x in enumerate(o)])
        for o, gate in zip(outputs, of_heads, strict=True)
    ]


def behind_gates(reader: Reader, outputs: Rows) -> Tensor:
    """The projection of heads side by side."""
    out, bias = (
        reader["mixing.mixer.output.project.weight"] @ torch.cat(outputs),
        reader.get("mixing.mixer.output.project.bias"),
    )
    return out if bias is None else out + bias


def half_open(special: Backbone, plain: Backbone) -> None:
    """Gates that look at nothing are half open: a projection twice as large makes up for them."""
    for index in range(len(special.layers)):
        output = special.get_submodule(f"layers.{index}.mixing.mixer.output")
        output.get_parameter("gate.weight").data.zero_()
        project = plain.get_parameter(f"layers.{index}.mixing.mixer.output.weight").data
        output.get_parameter("project.weight").data.copy_(2 * project)


# Differential heads


def keys_of_pairs(reader: Reader, row: Tensor) -> list[tuple[Tensor, Tensor]]:
    """The key of every head, and of the values of its pair those that it reads: the first or the second half."""
    groups, width = reader.config.kv_heads or reader.heads, reader.head_dim
    both, share = reader.key_value_of(row), reader.heads // groups
    k, v = both[: groups * width].view(groups, width), both[groups * width :].view(groups // 2, 2, reader.value_dim)
    return [(k[head // share], v[head // 2 // share, head % 2]) for head in range(reader.heads)]


def share_of_second(reader: Reader) -> Tensor:
    """Ye et al. 2024, equation 2."""
    q, k = (reader[f"mixing.mixer.output.{name}"] for name in ("queries", "keys"))
    return torch.exp(q[0] @ k[0]) - torch.exp(q[1] @ k[1]) + initial_share(reader)


def initial_share(reader: Reader) -> float:
    """Of a layer, counted from 0."""
    given: float | None = reader.options("head_mixing").initial
    return 0.8 - 0.6 * math.exp(-0.3 * reader.layer) if given is None else given


def differences(reader: Reader, weights: list[Rows]) -> list[Rows]:
    """Ye et al. 2024, equation 1: both heads of a pair read with the weights of the first less those of the second."""
    factor, mixed = share_of_second(reader), []
    for first, second in zip(weights[::2], weights[1::2], strict=True):
        mixed += 2 * [[a - factor * b for a, b in zip(first, second, strict=True)]]
    return mixed


def behind_norms(reader: Reader, outputs: Rows) -> Tensor:
    """Ye et al. 2024, equation 3."""
    at, rows = "mixing.mixer.output.", []
    for one, other in zip(outputs[::2], outputs[1::2], strict=True):
        row = torch.cat([one, other])
        rows.append((1 - initial_share(reader)) * row / torch.sqrt(row @ row / len(row) + 1e-5) * reader[at + "gain"])
    out, bias = reader[at + "project.weight"] @ torch.cat(rows), reader.get(at + "project.bias")
    return out if bias is None else out + bias


class NormedHeads(Combine):
    """Heads of plain attention in front of the norm and the projection of differential attention."""

    def __init__(self, differential: Differential) -> None:
        super().__init__()
        self.gain, self.project, self.share = differential.gain, differential.project, 1 - differential.initial

    def forward(self, heads: Tensor) -> Tensor:
        rows = heads.unflatten(-1, (-1, len(self.gain)))
        norm = torch.sqrt(rows.square().mean(-1, keepdim=True) + 1e-5)
        return self.project((rows / norm * self.gain * self.share).flatten(-2))


def nothing_taken_off(special: Backbone, plain: Backbone) -> None:
    """lambda is 0: the first heads of all pairs are plain heads that have the values of two."""
    for index in range(len(special.layers)):
        mine, other = (backbone.get_submodule(f"layers.{index}.mixing.mixer") for backbone in (special, plain))
        output = mine.get_submodule("output")
        assert isinstance(output, Differential)
        output.queries.data.zero_()
        output.queries.data[1], output.keys.data[1] = math.log(1 + output.initial) / output.queries.shape[1], 1.0
        q, k, v = mine.get_parameter("project.weight").data.split([12, 12, 12])
        firsts = [rows.view(2, 2, 3, 12)[:, 0].flatten(0, 1) for rows in (q, k)]
        other.get_parameter("project.weight").data.copy_(torch.cat([*firsts, v]))
        other.output = NormedHeads(output)


# Heads of a latent


def latent_row(reader: Reader, row: Tensor) -> Tensor:
    """What a memory keeps of a token: the shared key, and the latent."""
    options = reader.options("head_mixing")
    made = reader.projected_by(slice(reader.heads * (reader.head_dim + options.turned), None), row)
    key, c = made[: options.turned], made[options.turned :]
    if options.norm:
        c = c / torch.sqrt(c @ c / len(c) + 1e-5) * reader["mixing.mixer.score.gain"]
    return torch.cat([key, c])


def queries_of_two_parts(reader: Reader, row: Tensor) -> Rows:
    """Channels that turn, and the others."""
    width = reader.head_dim + reader.options("head_mixing").turned
    return list(reader.projected_by(slice(None, reader.heads * width), row).view(reader.heads, width))


def made_of_latents(reader: Reader, row: Tensor) -> list[tuple[Tensor, Tensor]]:
    """DeepSeek-AI 2024, equations 10, 14 and 15, head by head."""
    turned = reader.options("head_mixing").turned
    kept, up = latent_row(reader, row), reader["mixing.mixer.score.up"]
    made = [matrix @ kept[turned:] for matrix in up]
    return [(torch.cat([kept[:turned], both[: reader.head_dim]]), both[reader.head_dim :]) for both in made]


def products(special: Backbone, plain: Backbone) -> None:
    """Projections of keys and values that are products of two."""
    for index in range(len(special.layers)):
        mine, other = (backbone.get_submodule(f"layers.{index}.mixing.mixer") for backbone in (special, plain))
        queries, down = mine.get_parameter("project.weight").data.split([15, 15])
        keys, values = mine.get_parameter("score.up").data.split([5, 5], 1)
        weights = [queries, keys.flatten(0, 1) @ down, values.flatten(0, 1) @ down]
        other.get_parameter("project.weight").data.copy_(torch.cat(weights))


DIFFERENTIAL: dict[str, Any] = {"head_mixing": "differential", "width": 12, "heads": 4}

ROWS: dict[tuple[str, str], Row] = {
    # Equals CollaborativeAttention of epfml/collaborative-attention, 5b05408, without its biases to 9e-17.
    ("head_mixing", "collaborative"): Row(
        twin=HeadMixing(meeting=Meeting(weighed_queries, one_key)),
        limits=(
            Limit(
                {"head_mixing": "collaborative", "position": "none"},
                {"position": "none"},
                sliced,
            ),
        ),
    ),
    # Equals CapsuleLayer of gram-ai/capsule-networks, 6eeda08, to 4e-16 once its softmax is taken over capsules, as in
    # the paper, and not over heads.
    ("head_mixing", "capsule_dynamic"): Row(
        twin=HeadMixing(join=by_agreement),
        limits=(
            f"{HEADS}test_one_iteration_is_the_squashed_mean_of_the_votes",
            f"{HEADS}test_capsules_are_shorter_than_one",
        ),
    ),
    # Equals ConvCaps of yl-1993/Matrix-Capsules-EM-PyTorch, ca4cd7f, to 6e-14 where 1e-13 is added in both.
    ("head_mixing", "capsule_em"): Row(
        {"head_mixing": {"name": "capsule_em", "capsules": 5, "sharpness": 0.6}},
        HeadMixing(join=by_em),
        (
            f"{HEADS}test_votes_that_agree_leave_a_gaussian_around_them",
            f"{HEADS}test_the_shares_of_a_head_in_capsules_sum_to_one",
        ),
    ),
    ("head_mixing", "gated"): Row(
        twin=HeadMixing(gate=gates, join=behind_gates),
        limits=(Limit({"head_mixing": "gated"}, {}, half_open),),
    ),
    # Against github.com/microsoft/unilm, 768a3c8, MultiheadDiffAttn in float64 with the same weights and rotary places,
    # layers 0, 1 and 3, keys shared by two and four heads, too: largest error of values and gradients 9e-15.
    ("head_mixing", "differential"): Row(
        DIFFERENTIAL,
        HeadMixing(after=differences, meeting=Meeting(keys=keys_of_pairs), join=behind_norms),
        (
            Limit(
                {**DIFFERENTIAL, "position": "rope"},
                {"width": 12, "heads": 2, "head_dim": 3, "value_dim": 6, "position": "rope"},
                nothing_taken_off,
            ),
            f"{HEADS}test_what_both_heads_of_a_pair_read_alike_is_taken_off",
        ),
    ),
    # Against transformers 5.24, DeepseekV2Attention: tests/mixers/test_published_code.py.
    ("head_mixing", "mla"): Row(
        {"head_mixing": {"name": "mla", "latent": 7, "turned": 4}},
        HeadMixing(meeting=Meeting(queries_of_two_parts, made_of_latents), row=latent_row),
        (
            Limit(
                {"head_mixing": {"name": "mla", "latent": 15, "turned": 0, "norm": False}, "position": "alibi"},
                {"position": "alibi"},
                products,
            ),
            Limit(
                {"head_mixing": {"name": "mla", "turned": 4}, "position": "rope"},
                {"head_mixing": {"name": "mla", "turned": 4}, "position": {"name": "rope", "dims": 4}},
            ),
            f"{HEADS}test_a_step_reads_latents_as_they_are",
        ),
    ),
}
VARIANTS: dict[str, Row] = {
    "latents beside turned keys, kept by a cache, with sinks": Row(
        {
            "head_mixing": {"name": "mla", "latent": 9, "turned": 4},
            "position": {"name": "rope", "dims": 4},
            "mixer": {"name": "softmax", "sink_logit": True},
            "pattern": {"name": "longformer", "window": 3, "sinks": 2},
            "memory_kind": "cache",
            "value_dim": 4,
            "attention_bias": True,
        }
    ),
    "differential heads that share keys, with sinks of both kinds": Row(
        {
            **DIFFERENTIAL,
            "heads": 8,
            "kv_heads": 4,
            "head_dim": 4,
            "value_dim": 2,
            "head_mixing": {"name": "differential", "initial": 0.4},
            "mixer": {"name": "softmax", "sink_logit": True},
            "position": "t5",
            "pattern": {"name": "longformer", "window": 3, "sinks": 2},
            "attention_bias": True,
        }
    ),
    "gates of heads with biases": Row(
        {
            "head_mixing": {"name": "gated", "by": "head"},
            "value_dim": 4,
            "kv_heads": 1,
            "position": "rope",
            "attention_bias": True,
        }
    ),
    "collaborative heads that start apart": Row(
        {
            "head_mixing": {"name": "collaborative", "width": 7, "initial": "normal"},
            "value_dim": 4,
            "position": "rope",
            "attention_bias": True,
            "memory": 3,
            "memory_kind": {"name": "compressive", "slots": 2, "rate": 3},
        }
    ),
}
PRESET_ROWS: dict[str, Row] = {}
