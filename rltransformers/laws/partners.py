"""Small settings of every mechanism of the library, at which each of them has something to do in 19 tokens."""

from collections.abc import Mapping
from typing import Any

BAND = {"name": "band", "window": 4}
ADAPTIVE = {"name": "adaptive", "ramp": 2.0, "initial": 0.3}
COMPRESSIVE = {"name": "compressive", "slots": 3, "rate": 2}

ROUTING = {"name": "routing", "clusters": 3, "window": 2}

SIZES: dict[str, Any] = {"width": 12, "heads": 4, "layers": 2, "memory": 14, "ff_width": 7}

MECHANISMS: dict[str, dict[str, dict[str, Any]]] = {
    "position": {
        "none": {"position": "none"},
        "sinusoidal": {"position": "sinusoidal"},
        "learned": {"position": {"name": "learned", "max_len": 64}},
        "sinusoidal_learned_base": {"position": "sinusoidal_learned_base"},
        "shaw": {"position": {"name": "shaw", "max_distance": 3}},
        "t5": {"position": {"name": "t5", "buckets": 6, "max_distance": 8}},
        "trxl": {"position": "trxl"},
        "rope": {"position": "rope"},
        "alibi": {"position": "alibi"},
        "global_labels": {"position": {"name": "global_labels", "max_distance": 3}},
        "timestep": {"position": {"name": "timestep", "max_len": 64}},
        "attn_only": {"position": "attn_only"},
        "untied": {"position": "untied"},
        "ut_2d": {"position": "ut_2d"},
        "deberta": {"position": {"name": "deberta", "max_distance": 4}},
        "shaw_sinusoidal": {"position": "shaw_sinusoidal"},
        "da": {"position": "da"},
        "multiplicative": {"position": {"name": "multiplicative", "max_distance": 3}},
    },
    "pattern": {
        "full": {"pattern": "full"},
        "band": {"pattern": BAND},
        "dilated": {"pattern": {"name": "dilated", "window": 3, "dilation": 2}},
        "longformer": {"pattern": {"name": "longformer", "window": 3, "sinks": 2}},
        "etc": {"pattern": {"name": "etc", "window": 3, "block": 2, "globals": 1}},
        "bp": {"pattern": {"name": "bp", "neighbors": 2}},
        "global": {"pattern": {"name": "global", "sinks": 2}},
        "random": {"pattern": {"name": "random", "count": 2}},
        "block_local": {"pattern": {"name": "block_local", "block": 3, "back": 1}},
        "image_1d": {"pattern": {"name": "image_1d", "block": 3, "before": 4}},
        "image_2d": {"pattern": {"name": "image_2d", "width": 4, "rows": 2, "columns": 2, "above": 1}},
        "sparse_strided": {"pattern": {"name": "sparse_strided", "stride": 3}},
        "sparse_fixed": {"pattern": {"name": "sparse_fixed", "block": 4, "summary": 1}},
        "blockwise": {"pattern": {"name": "blockwise", "block": 3, "shifts": [0, 1, 2]}},
        "bigbird": {"pattern": {"name": "bigbird", "window": 3, "random": 2, "sinks": 2}},
        "union": {"pattern": {"name": "union", "patterns": [BAND, {"name": "longformer", "window": 2, "sinks": 1}]}},
        "adjacency": {"pattern": {"name": "adjacency", "offsets": [2, 5], "edges": [[4, 3], [3, 0]]}},
        "schedule": {"pattern": ["full", BAND]},
    },
    "selection": {
        "none": {"selection": "none"},
        "topk": {"selection": {"name": "topk", "k": 2}},
        "routing": {"selection": ROUTING},
        "sac": {"selection": {"name": "sac", "edges": 3, "width": 5}},
        "sinkhorn": {"selection": {"name": "sinkhorn", "block": 3}},
        "lsh": {"selection": {"name": "lsh", "rounds": 2, "buckets": 4, "window": 3}},
    },
    "mixer": {
        "softmax": {"mixer": "softmax"},
        "hopfield": {"mixer": {"name": "hopfield", "updates": 2}},
        "additive": {"mixer": "additive"},
        "synthesizer_dense": {"mixer": "synthesizer_dense"},
        "synthesizer_random": {"mixer": "synthesizer_random"},
        "hard_gaussian": {"mixer": "hard_gaussian"},
        "gcn": {"mixer": "gcn"},
        "lowrank_band": {"mixer": {"name": "lowrank_band", "rank": 2, "window": 3}},
        "linear": {"mixer": "linear"},
        "performer": {"mixer": "performer"},
        "rfa": {"mixer": {"name": "rfa", "directions": 5}},
        "fast_weight": {"mixer": "fast_weight"},
        "set_transformer": {"mixer": {"name": "set_transformer", "points": 5}},
        "luna": {"mixer": {"name": "luna", "slots": 5}},
        "clustered": {"mixer": {"name": "clustered", "clusters": 5, "top": 3}},
        "nystrom": {"mixer": {"name": "nystrom", "block": 3, "landmarks": 4}},
        "average": {"mixer": "average"},
        "light_conv": {"mixer": "light_conv"},
        "dynamic_conv": {"mixer": "dynamic_conv"},
        "gmlp": {"mixer": {"name": "gmlp", "tokens": 5}},
        "memory_compressed": {"mixer": {"name": "memory_compressed", "blocks": 2}},
        "linformer": {"mixer": {"name": "linformer", "block": 4, "slots": 2}},
        "csalr": {"mixer": {"name": "csalr", "block": 3, "landmarks": 4}},
        "informer": {"mixer": {"name": "informer", "samples": 3, "active_queries": 2, "candidates": 5}},
        "poolingformer": {"mixer": {"name": "poolingformer", "window": 3, "reach": 8, "kernel": 4, "stride": 2}},
        "linformer_prefix": {"mixer": {"name": "linformer_prefix", "slots": 3, "max_len": 9}},
    },
    "prior": {
        "none": {"prior": "none"},
        "gaussian_transformer": {"prior": "gaussian_transformer"},
        "gaussian_predicted": {"prior": "gaussian_predicted"},
        "lazyformer": {"prior": "lazyformer"},
        "predictive": {"prior": "predictive"},
        "camtl": {"prior": {"name": "camtl", "tasks": 2, "task": 0, "block": 3}},
        "realformer": {"prior": "realformer"},
    },
    "head_mixing": {
        "mha": {"head_mixing": "mha"},
        "mqa": {"kv_heads": 1},
        "decoupled": {"head_dim": 5, "value_dim": 3},
        "talking": {"head_mixing": "talking"},
        "collaborative": {"head_mixing": {"name": "collaborative", "width": 8}},
        "capsule_dynamic": {"head_mixing": "capsule_dynamic"},
        "capsule_em": {"head_mixing": "capsule_em"},
    },
    "span": {
        "full": {"span": "full"},
        "adaptive": {"span": ADAPTIVE},
        "adaptive_dynamic": {"span": {"name": "adaptive_dynamic", "ramp": 2.0, "bias": 0.0}},
        "multi_scale": {"span": {"name": "multi_scale", "windows": [1, 3, 15]}},
    },
    "memory_kind": {
        "cache": {"memory_kind": "cache"},
        "transformer_xl": {"memory_kind": "transformer_xl"},
        "compressive": {"memory_kind": COMPRESSIVE},
        "memorizing": {"memory_kind": {"name": "memorizing", "store": 3, "neighbors": 2}},
    },
    "depth": {
        "fixed": {"depth": "fixed"},
        "universal": {"depth": "universal"},
        "act": {"depth": "universal_act"},
        "universal_act": {"depth": "universal_act"},
        "depth_adaptive": {"depth": "depth_adaptive"},
        "calm": {"depth": {"name": "calm", "threshold": 0.6}},
    },
    "residual": {
        "post_ln": {"residual": "post_ln"},
        "pre_ln": {"residual": "pre_ln"},
        "pre_ln_relu": {"residual": "pre_ln_relu"},
        "gru": {"residual": "gru"},
        "input": {"residual": "input"},
        "output": {"residual": "output"},
        "highway": {"residual": "highway"},
        "sigtanh": {"residual": "sigtanh"},
        "reversible": {"residual": "reversible"},
        "checkpoint": {"checkpoint": True},
        "mixed_precision": {"compute_dtype": "bfloat16"},
    },
    "ff": {
        "ffn": {"ff": "ffn"},
        "glu": {"ff": "glu"},
        "sep_conv": {"ff": "sep_conv"},
        "none": {"ff": "none"},
        "chunked": {"ff_chunks": 3},
    },
    "topology": {
        "decoder": {"topology": "decoder"},
        "encoder_decoder": {"topology": "encoder_decoder"},
    },
    # A loss comes with a mechanism that produces it; the other mechanism of the pair may replace that one.
    "losses": {
        "span": {"losses": {"span": 1e-3}, "span": ADAPTIVE},
        "ponder": {"losses": {"ponder": 1e-2}, "depth": "universal_act"},
        "compression": {"losses": {"compression": 1.0}, "memory_kind": COMPRESSIVE},
        "commitment": {"losses": {"commitment": 1e-4}, "selection": ROUTING},
        "exits": {"losses": {"exits": 1.0}, "depth": "depth_adaptive"},
        "al_rfou": {"losses": {"al_rfou": 1.0}},
        "disagreement": {"losses": {"disagreement": {"weight": 0.1, "on": "position"}}},
        "pattern": {"losses": {"pattern": {"weight": 0.1, "target": "first"}}},
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


def sized(values: Mapping[str, Any]) -> dict[str, Any]:
    """Return settings in front of which ``SIZES`` stand, as far as they fit."""
    return {**SIZES, **({"ff_width": None} if values.get("ff") == "none" else {}), **values}


def settings_of(axis: str, name: str, example: Mapping[str, Any]) -> Mapping[str, Any]:
    """Return the settings of a mechanism; of one of another package its ``example``, or its name alone."""
    return MECHANISMS.get(axis, {}).get(name) or example or {axis: name}
