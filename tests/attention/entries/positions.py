"""Rows and twins of further entries: positions."""

import math
from typing import Any

import torch
from torch import Tensor

from rltransformers.attention.layer import Attention
from rltransformers.backbone import Backbone
from rltransformers.laws import Limit
from rltransformers.laws.gradients import Edit
from tests.attention import twins
from tests.attention.row import NONE, Row, both, fill, projections, zero
from tests.attention.twins import Key, Reader, sinusoid_at

AT = "mixing.mixer.position."
POSITIONS = "tests/positions/test_positions.py::"


def code(reader: Reader, options: Any, p: int) -> Tensor:
    """The code of a place: a row of a learned table, or sines and cosines."""
    if options.max_len is None:
        return sinusoid_at(p, reader.width)
    return reader.tensors[f"layers.0.{AT}codes.table"][p]


def with_code(reader: Reader, options: Any, row: Tensor, p: int) -> Tensor:
    """Carion et al. 2020, figure 10."""
    return row + code(reader, options, p)


def place_channels(reader: Reader, options: Any, which: str, index: int, p: int) -> Tensor:
    """Ke et al. 2021, equation 7: products of these are added to those of the contents."""
    matrix = reader.tensors[f"layers.0.{AT}{which}.weight"]
    rows = slice(index * reader.head_dim, (index + 1) * reader.head_dim)
    return matrix[rows] @ code(reader, options, p)


def hotter(terms: int) -> Edit:
    """Queries of the special backbone that make up for a scale of 1 / sqrt(terms Dh)."""

    def edit(special: Backbone, plain: Backbone) -> None:
        for index in range(len(special.layers)):
            mixer = special.get_submodule(f"layers.{index}.mixing.mixer")
            assert isinstance(mixer, Attention)
            mixer.project.weight.data[: mixer.query_width] *= math.sqrt(terms)

    return edit


def multiplicative_score(reader: Reader, options: Any, head: int, q: Tensor, k: Tensor, distance: int) -> Tensor:
    """Huang et al. 2020, section 3.2."""
    table = reader[f"{AT}factor"]
    return q @ k / math.sqrt(len(q)) * table[head, min(distance, options.max_distance)]


def da_score(reader: Reader, options: Any, head: int, q: Tensor, k: Tensor, distance: int) -> Tensor:
    """Wu et al. 2021, section 3.2."""
    w, v = (reader[f"{AT}{name}"][head] for name in ("slope", "bound"))
    product = q @ k
    f = (1 + torch.exp(v)) / (1 + torch.exp(v - w * distance))
    return product * (product > 0) * f / math.sqrt(len(q))


def no_queries(special: Backbone, plain: Backbone) -> None:
    """Factors of 0, and queries of 0: both read all keys alike."""
    zero("position.factor")(special, plain)
    for index in range(len(plain.layers)):
        projections(plain.get_submodule(f"layers.{index}.mixing.mixer"))[0].zero_()


def positive_products(special: Backbone, plain: Backbone) -> None:
    """Factors of 1, and queries and keys whose products are above 0, which a ReLU leaves alone."""
    zero("position.slope")(special, plain)
    for index in range(len(special.layers)):
        for backbone in (special, plain):
            mixer = backbone.get_submodule(f"layers.{index}.mixing.mixer")
            assert isinstance(mixer, Attention)
            mixer.project.bias.data[: 2 * mixer.query_width] = 4.0


def vector_of_distance(reader: Reader, options: Any, name: str, distance: int, width: int) -> Tensor:
    """A sinusoid of the distance, projected or in the width that is needed."""
    matrix = reader.get(f"{AT}{name}.weight")
    assert (matrix is not None) == options.project
    return sinusoid_at(distance, width) if matrix is None else matrix @ sinusoid_at(distance, reader.width)


def shaw_sinusoidal_score(reader: Reader, options: Any, head: int, q: Tensor, k: Tensor, distance: int) -> Tensor:
    """Wei et al. 2019, section 3: Shaw et al. 2018 with sinusoids."""
    return q @ (k + vector_of_distance(reader, options, "keys", distance, len(q))) / math.sqrt(len(q))


def shaw_sinusoidal_value(reader: Reader, options: Any, row: Tensor, distance: int) -> Tensor:
    """The same of values."""
    return row + vector_of_distance(reader, options, "values", distance, len(row)) if options.values else row


def one_projection_of_distances(special: Backbone, plain: Backbone) -> None:
    """Transformer-XL without biases whose heads project distances alike."""
    zero("content_bias", "position_bias")(special, plain)
    for index in range(len(special.layers)):
        at = f"layers.{index}.{AT}"
        keys = plain.get_parameter(f"{at}keys.weight").data
        special.get_parameter(f"{at}project.weight").data.copy_(keys.repeat(special.config.heads, 1))


def deberta_score(reader: Reader, options: Any, head: int, q: Tensor, k: Tensor, distance: int) -> Tensor:
    """He et al. 2021, equations 2 to 4."""
    table, span = reader.tensors[f"layers.0.{AT}table"], options.max_distance

    def delta(x: int) -> int:
        return 0 if x <= -span else 2 * span - 1 if x >= span else x + span

    rows = slice(head * len(q), (head + 1) * len(q))
    key, query = (reader[f"{AT}{name}.weight"][rows] for name in ("key", "query"))
    products = q @ k + q @ (key @ table[delta(distance)]) + k @ (query @ table[delta(-distance)])
    return products / math.sqrt(3 * len(q))


def with_place(reader: Reader, options: Any, row: Tensor, p: int) -> Tensor:
    """Dehghani et al. 2019, equation 6, without the number of the application."""
    return row + sinusoid_at(p, len(row))


def with_place_and_layer(reader: Reader, options: Any, row: Tensor, p: int, number: int) -> Tensor:
    """The same with it."""
    return row + sinusoid_at(p, len(row)) + sinusoid_at(number, len(row))


def same_layers(special: Backbone, plain: Backbone) -> None:
    """Copies of the one layer of a universal backbone."""
    for layer in plain.layers:
        layer.load_state_dict(special.layers[0].state_dict())


def shaw_of_distances(special: Backbone, plain: Backbone) -> None:
    """No label, and the vectors of distances of the special backbone in the plain one."""
    for index in range(len(special.layers)):
        mine, other = (backbone.get_submodule(f"layers.{index}.mixing.mixer.position") for backbone in (special, plain))
        mine.get_parameter("label").data.zero_()
        other.get_parameter("keys").data.copy_(mine.get_parameter("distances").data)


def distance_vector_score(reader: Reader, options: Any, head: int, q: Tensor, k: Tensor, distance: int) -> Tensor:
    """Shaw et al. 2018, equation 4."""
    vector = reader["mixing.mixer.position.distances"][min(distance, options.max_distance)]
    return q @ (k + vector) / math.sqrt(len(q))


def relation_label(reader: Reader, q: Tensor, key: Key) -> Tensor:
    """Ainslie et al. 2020, section 3.2: a vector for first tokens that stand outside the window."""
    outside = key[0] != "token" or key[2] >= reader.config.choices.layer(reader.layer).patterns[0].options.window
    label = reader["mixing.mixer.position.label"]
    return q @ label / math.sqrt(len(q)) if outside else 0 * label.sum()


ROWS: dict[tuple[str, str], Row] = {
    ("position", "global_labels"): Row(
        twin=twins.Position(score=distance_vector_score, label=relation_label),
        limits=(
            Limit(
                {
                    "position": {"name": "global_labels", "max_distance": 6},
                    "pattern": {"name": "longformer", "window": 3, "sinks": 2},
                },
                {
                    "position": {"name": "shaw", "max_distance": 6, "values": False},
                    "pattern": {"name": "longformer", "window": 3, "sinks": 2},
                },
                shaw_of_distances,
            ),
        ),
    ),
    ("position", "attn_only"): Row(
        twin=twins.Position(source=with_code),
        limits=(Limit({"position": {"name": "attn_only", "max_len": 24}}, NONE, zero("codes.table")),),
    ),
    # Against github.com/guolinke/TUPE, 4c64ff7, its position bias and attention with a causal mask, no [CLS] token and
    # no biases, the same weights in float64: largest error 4.4e-16.
    ("position", "untied"): Row(
        twin=twins.Position(beside=place_channels),
        limits=(Limit({"position": "untied"}, NONE, both(zero("position.query.weight"), hotter(2))),),
    ),
    ("position", "multiplicative"): Row(
        twin=twins.Position(score=multiplicative_score),
        limits=(
            Limit({"position": "multiplicative"}, NONE, fill("position.factor", 1.0)),
            Limit({"position": "multiplicative"}, NONE, no_queries),
        ),
    ),
    # No published code was found to compare with (looked for wuch15/DA-Transformer and for distance-aware ports).
    ("position", "da"): Row(
        twin=twins.Position(score=da_score),
        limits=(
            Limit({"position": "da", "attention_bias": True}, {**NONE, "attention_bias": True}, positive_products),
            f"{POSITIONS}test_factors_of_da_grow_from_0_to_their_bound_and_are_1_at_the_token_itself",
        ),
    ),
    ("position", "shaw_sinusoidal"): Row(
        twin=twins.Position(score=shaw_sinusoidal_score, value=shaw_sinusoidal_value),
        limits=(Limit({"position": "trxl"}, {"position": "shaw_sinusoidal"}, one_projection_of_distances),),
    ),
    # With the rows of delta(d) in its third term it equals microsoft/DeBERTa 4d7fe0b; largest error in float64 4e-16.
    ("position", "deberta"): Row(
        twin=twins.Position(score=deberta_score),
        limits=(Limit({"position": "deberta"}, NONE, both(zero("position.table"), hotter(3))),),
    ),
    ("position", "ut_2d"): Row(
        twin=twins.Position(embed=with_place, every=with_place_and_layer),
        limits=(
            Limit({"depth": "universal", "position": "ut_2d"}, {"position": "ut_2d"}, same_layers),
            Limit({"depth": "universal", "position": "ut_2d"}, {"depth": "universal", "position": "sinusoidal"}),
        ),
    ),
}
VARIANTS: dict[str, Row] = {
    "number of the application told once": Row({"depth": "universal", "position": "ut_2d", "layers": 3}),
    "scores of keys at nodes and sinks": Row(
        {
            "position": {"name": "deberta", "max_distance": 4},
            "pattern": {"name": "longformer", "window": 3, "sinks": 2},
            "tokens_per_step": 2,
            "memory": 3,
            "kv_heads": 1,
        }
    ),
    "sinusoids as wide as a head": Row(
        {"position": {"name": "shaw_sinusoidal", "values": True, "project": False}, "value_dim": 4, "kv_heads": 1}
    ),
    "factors of nodes and of slots": Row(
        {
            "position": "da",
            "pattern": {"name": "bp", "neighbors": 1},
            "memory": 13,
            "kv_heads": 1,
        }
    ),
    "places of sinks and a table": Row(
        {
            "position": {"name": "attn_only", "max_len": 64},
            "pattern": {"name": "longformer", "window": 3, "sinks": 2},
            "attention_bias": True,
        }
    ),
    "places of slots and a table": Row(
        {
            "position": {"name": "untied", "max_len": 64},
            "memory": 3,
            "memory_kind": {"name": "compressive", "slots": 2, "rate": 3},
            "kv_heads": 1,
        }
    ),
}
PRESET_ROWS: dict[str, Row] = {"deberta": Row({"position": {"name": "deberta", "max_distance": 4}})}
