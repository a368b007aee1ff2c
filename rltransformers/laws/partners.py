"""Small settings of every mechanism of the library, at which each of them has something to do in 19 tokens."""

from collections.abc import Mapping
from typing import Any

from rltransformers.backbone import AXES

BAND = {"name": "band", "window": 4}
ADAPTIVE = {"name": "adaptive", "ramp": 2.0, "initial": 0.3}
COMPRESSIVE = {"name": "compressive", "slots": 3, "rate": 2}

SIZES: dict[str, Any] = {"width": 12, "heads": 4, "layers": 2, "memory": 14, "ff_width": 7}

SMALL: dict[str, dict[str, Any]] = {
    "position": {"global_labels": {"name": "global_labels", "max_distance": 3}},
    "pattern": {
        "global": {"name": "global", "sinks": 2},
        "image_1d": {"name": "image_1d", "block": 3, "before": 4},
        "image_2d": {"name": "image_2d", "width": 4, "rows": 2, "columns": 2, "above": 1},
        "sparse_strided": {"name": "sparse_strided", "stride": 3},
        "sparse_fixed": {"name": "sparse_fixed", "block": 4, "summary": 1},
        "blockwise": {"name": "blockwise", "block": 3, "shifts": [0, 1, 2]},
        "bigbird": {"name": "bigbird", "window": 3, "random": 2, "sinks": 2},
        "union": {"name": "union", "patterns": [BAND, {"name": "longformer", "window": 2, "sinks": 1}]},
        "adjacency": {"name": "adjacency", "offsets": [2, 5], "edges": [[4, 3], [3, 0]]},
        "schedule": ["full", BAND],
    },
    "selection": {
        "topk": {"name": "topk", "k": 2},
        "routing": {"name": "routing", "clusters": 3, "window": 2},
        "sac": {"name": "sac", "edges": 3, "width": 5},
    },
    "mixer": {
        "gcn": "gcn",
        "rfa": {"name": "rfa", "directions": 5},
        "set_transformer": {"name": "set_transformer", "points": 5},
        "luna": {"name": "luna", "slots": 5},
        "clustered": {"name": "clustered", "clusters": 5, "top": 3},
        "nystrom": {"name": "nystrom", "block": 3, "landmarks": 4},
        "gmlp": {"name": "gmlp", "tokens": 5},
        "memory_compressed": {"name": "memory_compressed", "blocks": 2},
        "linformer": {"name": "linformer", "block": 4, "slots": 2},
        "csalr": {"name": "csalr", "block": 3, "landmarks": 4},
        "poolingformer": {"name": "poolingformer", "window": 3, "reach": 8, "kernel": 4, "stride": 2},
        "linformer_prefix": {"name": "linformer_prefix", "slots": 3, "max_len": 9},
    },
    "prior": {
        "lazyformer": "lazyformer",
        "predictive": "predictive",
        "realformer": "realformer",
        "camtl": {"name": "camtl", "tasks": 2, "task": 0, "block": 3},
    },
    "span": {"multi_scale": {"name": "multi_scale", "windows": [1, 3, 15]}},
    "memory_kind": {"compressive": COMPRESSIVE, "slots": {"name": "slots", "slots": 2, "block": 3}},
}
"""Values of the mechanisms whose examples do not fit ``SIZES``, by axis and name."""

MECHANISMS: dict[str, dict[str, Mapping[str, Any]]] = {
    **{
        axis.name: {
            name: {axis.name: small[name]} if name in small else spec.example for name, spec in axis.table.items()
        }
        for axis in AXES.values()
        for small in [SMALL.get(axis.name, {})]
    },
    # What is no mechanism but decides what mechanisms can do.
    "setting": {
        "bias": {"attention_bias": True},
        "no_memory": {"memory": 0},
        "two_tokens": {"tokens_per_step": 2},
        "patterns_of_heads": {"pattern": [["full", "full", "full", BAND]]},
        "patterns_of_layers": {"pattern": ["full", BAND]},
        "mixers_of_layers": {"mixer": ["softmax", "linear"]},
    },
}
# A loss comes with a mechanism that produces it; the other mechanism of the pair may replace that one.
MECHANISMS["losses"] |= {
    "span": {"losses": {"span": 1e-3}, "span": ADAPTIVE},
    "compression": {"losses": {"compression": 1.0}, "memory_kind": COMPRESSIVE},
    "disagreement": {"losses": {"disagreement": {"weight": 0.1, "on": "position"}}},
    "pattern": {"losses": {"pattern": {"weight": 0.1, "target": "first"}}},
}


def sized(values: Mapping[str, Any]) -> dict[str, Any]:
    """Return settings in front of which ``SIZES`` stand, as far as they fit."""
    return {**SIZES, **({"ff_width": None} if values.get("ff") == "none" else {}), **values}


def settings_of(axis: str, name: str, example: Mapping[str, Any]) -> Mapping[str, Any]:
    """Return the settings of a mechanism; of one of another package its ``example``, or its name alone."""
    return MECHANISMS.get(axis, {}).get(name) or example or {axis: name}
