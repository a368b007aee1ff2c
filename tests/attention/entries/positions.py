"""Rows and twins of further entries: positions."""

import math
from typing import Any

from torch import Tensor

from rltransformers.attention.layer import Attention
from rltransformers.backbone import Backbone
from tests.attention import twins
from tests.attention.row import NONE, Edit, Limit, Row, both, zero
from tests.attention.twins import Reader, sinusoid_at

AT = "mixing.mixer.position."


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


ROWS: dict[tuple[str, str], Row] = {
    ("position", "attn_only"): Row(
        twin=twins.Position(source=with_code),
        limits=(Limit({"position": {"name": "attn_only", "max_len": 24}}, NONE, zero("codes.table")),),
    ),
    ("position", "untied"): Row(
        twin=twins.Position(beside=place_channels),
        limits=(Limit({"position": "untied"}, NONE, both(zero("position.query.weight"), hotter(2))),),
    ),
}
VARIANTS: dict[str, Row] = {
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
PRESET_ROWS: dict[str, Row] = {}
