"""One row per catalogue entry: the settings to test it with, what it becomes at a limit, its slow twin, tolerances.

The rows of further entries stand with their twins in `tests/attention/entries`, a module per family.
"""

from collections.abc import Mapping
from dataclasses import replace
from functools import cache
from typing import Any

from rltransformers.backbone import PLAIN, PRESETS, BackboneConfig, catalogue
from rltransformers.laws import Limit
from tests.attention import twins
from tests.attention.entries import FAMILIES
from tests.attention.row import (
    BASE,
    BLOCKS,
    CHOICE,
    EPSILON,
    FULL_SPAN,
    GATE_LIMIT,
    GROUPED,
    GROUPED_SIZES,
    HALTING,
    KEEP_ALL,
    KERNEL,
    MIXERS,
    NONE,
    PARTS,
    PSEUDO_INVERSE,
    ROUTING,
    TREES,
    Row,
    as_built,
    both,
    fill,
    flat_slopes,
    identity_heads,
    mean_by_softmax,
    same_layer_everywhere,
    span_of_bias,
    table_of_sinusoids,
    tie_keys,
    tie_projections,
    zero,
)
from tests.mixers import twins as mixer_twins

ROWS: dict[tuple[str, str], Row] = {
    ("position", "none"): Row(
        twin=twins.Position(),
        limits=(Limit({"position": "trxl"}, NONE, zero("content_bias", "position_bias", "position.project.weight")),),
    ),
    ("position", "sinusoidal"): Row(
        twin=twins.Position(embed=twins.with_sinusoid),
        limits=(
            Limit({"position": {"name": "learned", "max_len": 24}}, {"position": "sinusoidal"}, table_of_sinusoids),
        ),
    ),
    ("position", "learned"): Row(
        twin=twins.Position(embed=twins.with_place),
        limits=(Limit({"position": {"name": "learned", "max_len": 24}}, NONE, zero("table.weight")),),
    ),
    ("position", "sinusoidal_learned_base"): Row(
        twin=twins.Position(embed=twins.with_learned_base),
        limits=(
            Limit({"position": "sinusoidal_learned_base"}, {"position": "sinusoidal"}, as_built("positions.0.raw")),
        ),
    ),
    ("position", "shaw"): Row(
        twin=twins.Position(score=twins.shaw_score, value=twins.shaw_value),
        limits=(Limit({"position": "shaw"}, NONE, zero("position.keys", "position.values")),),
    ),
    ("position", "t5"): Row(
        twin=twins.Position(score=twins.t5_score),
        limits=(Limit({"position": "t5"}, NONE, fill("position.table", 0.7)),),
    ),
    ("position", "trxl"): Row(
        twin=twins.Position(score=twins.trxl_score),
        limits=(Limit({"position": "trxl"}, NONE, zero("content_bias", "position_bias", "position.project.weight")),),
    ),
    ("position", "rope"): Row(
        twin=twins.Position(score=twins.rope_score),
        limits=(
            Limit({"position": "rope", "memory": 0}, {"position": "none", "memory": 0}),
            "tests/positions/test_positions.py::test_rotary_scores_depend_on_the_distance_only",
        ),
    ),
    ("position", "alibi"): Row(
        twin=twins.Position(score=twins.alibi_score),
        limits=(
            Limit(
                {"position": "alibi"},
                NONE,
                flat_slopes,
            ),
        ),
    ),
    ("position", "timestep"): Row(
        twin=twins.Position(embed=twins.with_timestep),
        config={"tokens_per_step": 3, "memory": 2},
        limits=(
            Limit({"position": {"name": "timestep", "max_len": 24}}, {"position": {"name": "learned", "max_len": 24}}),
        ),
    ),
    ("pattern", "full"): Row(
        twin=twins.everything, limits=(Limit({"pattern": {"name": "band", "window": 7}}, {"pattern": "full"}),)
    ),
    ("pattern", "band"): Row(
        twin=twins.band,
        limits=(
            Limit({"pattern": {"name": "band", "window": 4}}, {"memory": 3}),
            Limit({"pattern": {"name": "band", "window": 4}}, {"pattern": [[{"name": "band", "window": 4}] * 3]}),
        ),
    ),
    ("pattern", "dilated"): Row(
        twin=twins.dilated,
        limits=(
            Limit(
                {"pattern": {"name": "dilated", "window": 4, "dilation": 1}}, {"pattern": {"name": "band", "window": 4}}
            ),
        ),
    ),
    ("pattern", "longformer"): Row(
        twin=twins.longformer,
        limits=(
            Limit(
                {"memory": 30, "pattern": {"name": "longformer", "window": 31, "sinks": 2}},
                {"memory": 30, "pattern": "full"},
            ),
            Limit(
                {"position": "none", "pattern": {"name": "longformer", "window": 2, "sinks": 21}},
                {"position": "none", "memory": 30},
            ),
        ),
    ),
    ("pattern", "bp"): Row(
        twin=twins.bp,
        config={"memory": 12},
        limits=(
            Limit({"pattern": {"name": "bp", "neighbors": 6}}, {}, zero("edges")),
            f"{TREES}test_with_as_many_neighbors_as_tokens_there_are_no_nodes",
        ),
    ),
    ("selection", "none"): Row(twin=twins.Selection(), limits=(Limit({"selection": {"name": "topk", "k": 7}}, {}),)),
    # Against github.com/ag1988/top_k_attention, 1f0e736, AttentionNoCache in chunks and its sparse form, causal, in
    # float64: largest error 6.7e-16.
    ("selection", "topk"): Row(
        twin=twins.Selection(chosen=twins.largest_keys),
        limits=(Limit({"selection": {"name": "topk", "k": 7}}, {}),),
        bfloat16=0.4,
        why=CHOICE,
    ),
    # Against github.com/lucidrains/routing-transformer, 3f6c461, KmeansAttention of two opposite centroids with as many
    # queries as keys each, for normalized queries and keys in float64: largest error 6.7e-16. The authors' code, read
    # in github.com/google-research/google-research, 0c1bbe5, does not divide their products by sqrt(Dh).
    ("selection", "routing"): Row(
        twin=twins.Selection(twins.spherical, twins.cluster_keys),
        limits=(f"{ROUTING}test_one_cluster_is_attention_of_normalized_queries_and_keys",),
        bfloat16=1.0,
        why="rounding changes which of two nearly equal centroids is the nearest, and what a query of another cluster "
        "reads is of the size of the outputs: 0.63 of it on a GPU",
    ),
    ("mixer", "softmax"): Row(
        twin=twins.attention,
        limits=(
            f"{PARTS}test_softmax_attention_equals_the_one_of_torch",
            Limit({"mixer": {"name": "softmax", "softcap": 1e6}}, {}, tolerance=1e-9),
            Limit({"mixer": {"name": "softmax", "sink_logit": True}}, {}, fill("score.sink", -1e3)),
        ),
    ),
    ("mixer", "linear"): Row(
        twin=twins.other_mixer(mixer_twins.linear_twin),
        config=GROUPED,
        limits=(
            Limit({"mixer": "linear", **KEEP_ALL}, KEEP_ALL, mean_by_softmax, tolerance=1e-5),
            f"{MIXERS}test_outputs_gradients_and_state_equal_the_twin_of_every_episode",
        ),
        why=EPSILON,
    ),
    ("mixer", "performer"): Row(
        twin=twins.other_mixer(mixer_twins.performer_twin),
        config={**GROUPED, "mixer": {"name": "performer", "features": 7}},
        limits=(
            Limit({"mixer": "performer", **KEEP_ALL}, KEEP_ALL, mean_by_softmax),
            f"{MIXERS}test_performer_error_falls_with_the_square_root_of_the_features",
        ),
        float32=1e-4,
        bfloat16=0.3,
        why="features are exponentials: an error of the exponent becomes a relative error of the weight",
    ),
    ("mixer", "nystrom"): Row(
        twin=twins.other_mixer(mixer_twins.nystrom_twin),
        config={**GROUPED, "mixer": {"name": "nystrom", "block": 3, "landmarks": 2, "conv": 4}, "memory": 9},
        limits=(
            Limit(
                {"memory": 47, "position": "none", "mixer": {"name": "nystrom", "block": 24, "landmarks": 1}},
                {"memory": 47, "position": "none"},
                tie_projections,
            ),
            f"{MIXERS}test_nystrom_with_blocks_of_one_token_is_full_attention",
        ),
        tolerance=1e-8,
        float32=1e-2,
        bfloat16=float("inf"),
        why=PSEUDO_INVERSE,
    ),
    # Against github.com/bzhangGo/transformer-aan, d838d55, its decoder layer on tensors of PyTorch, the same weights in
    # float64: largest error 4.4e-16.
    ("mixer", "average"): Row(
        twin=twins.other_mixer(mixer_twins.average_twin),
        config=KERNEL,
        limits=(
            f"{MIXERS}test_linear_and_average_of_a_constant_stream_are_constant",
            f"{PARTS}test_average_attention_without_its_network_is_the_mean_of_the_episode",
        ),
    ),
    # Against github.com/facebookresearch/fairseq, 3d262bb, LightweightConv1dTBC between our projections with the same
    # weights in float64, `pad: zero`: largest error 1.7e-16.
    ("mixer", "light_conv"): Row(
        twin=twins.other_mixer(mixer_twins.light_conv_twin),
        config={**KERNEL, "mixer": {"name": "light_conv", "taps": 4}},
        limits=(f"{PARTS}test_a_convolution_of_one_tap_mixes_no_tokens",),
    ),
    ("prior", "none"): Row(
        twin=twins.Prior(),
        limits=(
            Limit({"prior": "gaussian_transformer"}, {}, both(fill("prior.width", -1e3), fill("prior.offset", -1e3))),
        ),
    ),
    ("prior", "gaussian_transformer"): Row(
        twin=twins.Prior(shift=twins.gaussian_shift),
        limits=(
            Limit({"prior": "gaussian_transformer"}, {}, both(fill("prior.width", -1e3), fill("prior.offset", -1e3))),
            f"{PARTS}test_the_gaussian_prior_is_highest_at_its_distance",
        ),
    ),
    ("prior", "realformer"): Row(
        twin=twins.Prior(logits=twins.summed_logits),
        limits=(f"{PARTS}test_a_layer_without_queries_takes_over_the_weights_of_the_layer_below",),
    ),
    ("head_mixing", "mha"): Row(
        twin=twins.HeadMixing(), limits=(Limit({"head_mixing": "talking"}, {}, identity_heads),)
    ),
    ("head_mixing", "mqa"): Row(twin=twins.HeadMixing(), limits=(Limit({"kv_heads": 1}, {}, tie_keys),)),
    ("head_mixing", "decoupled"): Row(twin=twins.HeadMixing(), limits=(Limit({"head_dim": 5, "value_dim": 5}, {}),)),
    # Against github.com/lucidrains/x-transformers, 9252ed7, Attend with talking heads before and after its softmax,
    # which here is one in float64, the same weights: largest error 6.7e-16.
    ("head_mixing", "talking"): Row(
        twin=twins.HeadMixing(twins.talking("before"), twins.talking("after")),
        limits=(Limit({"head_mixing": "talking"}, {}, identity_heads),),
    ),
    ("span", "full"): Row(
        twin=twins.full_span, limits=(Limit({"span": FULL_SPAN}, {}, fill("span.fraction", 1.0), tolerance=1e-7),)
    ),
    ("span", "adaptive"): Row(
        twin=twins.adaptive_span,
        limits=(
            Limit({"span": FULL_SPAN}, {}, fill("span.fraction", 1.0), tolerance=1e-7),
            Limit(
                {"span": {"name": "adaptive", "ramp": 1e-6, "initial": 0.5}, "residual": "gru"},
                {"pattern": {"name": "band", "window": 4}, "residual": "gru"},
                fill("span.fraction", 0.5),
                tolerance=1e-7,
            ),
        ),
        why="1e-8 is added to the sum of the weights",
    ),
    ("span", "adaptive_dynamic"): Row(
        twin=twins.dynamic_span,
        limits=(
            Limit(
                {"span": {"name": "adaptive_dynamic", "ramp": 2.0}},
                {"span": {"name": "adaptive", "ramp": 2.0}},
                span_of_bias,
            ),
        ),
    ),
    ("memory_kind", "cache"): Row(
        twin=twins.Memory(rows=twins.layer_keys), limits=(Limit({"memory_kind": "cache"}, {}),)
    ),
    ("memory_kind", "transformer_xl"): Row(
        twin=twins.Memory(), limits=(Limit({}, {"pattern": {"name": "band", "window": 7}, "memory": 20}),)
    ),
    ("memory_kind", "compressive"): Row(
        twin=twins.Memory(twins.by_blocks, slots=twins.compressed, state_of_slots=twins.newest_blocks),
        limits=(
            Limit({"memory": 4, "memory_kind": {"name": "compressive", "slots": 2, "rate": 1, "function": "mean"}}, {}),
            Limit({"memory": 4, "memory_kind": {"name": "compressive", "slots": 2, "rate": 1, "function": "max"}}, {}),
        ),
    ),
    ("depth", "fixed"): Row(
        twin=twins.Depth(twins.in_turn, embeds_once=True),
        limits=(Limit({"depth": "universal", **NONE}, NONE, same_layer_everywhere),),
    ),
    ("depth", "universal"): Row(
        twin=twins.Depth(twins.again), limits=(Limit({"depth": "universal", **NONE}, NONE, same_layer_everywhere),)
    ),
    ("depth", "universal_act"): Row(
        twin=twins.Depth(twins.halting),
        config={"layers": 4},
        limits=(
            Limit(
                {"depth": "universal_act", "layers": 3},
                {"depth": "universal", "layers": 1},
                both(fill("halt.bias", 50.0), zero("halt.weight")),
            ),
            Limit(
                {"depth": "universal_act", "layers": 3},
                {"depth": "universal", "layers": 3},
                both(fill("halt.bias", -50.0), zero("halt.weight")),
            ),
        ),
        bfloat16=1.0,
        why=HALTING,
    ),
    ("residual", "post_ln"): Row(
        twin=twins.POST_NORM, limits=(f"{BLOCKS}test_without_submodules_only_the_norms_remain",)
    ),
    ("residual", "pre_ln"): Row(
        twin=twins.PRE_NORM, limits=(f"{BLOCKS}test_without_submodules_only_the_norms_remain",)
    ),
    ("residual", "pre_ln_relu"): Row(
        twin=twins.PRE_NORM_RELU, limits=(f"{BLOCKS}test_without_submodules_only_the_norms_remain",)
    ),
    ("residual", "gru"): Row(twin=twins.gated(twins.gru), limits=(GATE_LIMIT, f"{BLOCKS}test_gates_start_nearly_shut")),
    ("residual", "input"): Row(
        twin=twins.gated(twins.input_gate),
        limits=(f"{BLOCKS}test_an_input_gate_halves_the_stream_when_its_matrix_is_zero",),
    ),
    ("residual", "output"): Row(twin=twins.gated(twins.output_gate), limits=(GATE_LIMIT,)),
    ("residual", "highway"): Row(twin=twins.gated(twins.highway), limits=(GATE_LIMIT,)),
    ("residual", "sigtanh"): Row(twin=twins.gated(twins.sigtanh), limits=(GATE_LIMIT,)),
    ("residual", "reversible"): Row(
        twin=replace(twins.PRE_NORM, way=twins.two_streams),
        limits=(f"{BLOCKS}test_reversible_gradients_equal_those_of_the_stored_forward_pass",),
    ),
    ("ff", "ffn"): Row(
        twin=twins.by_token(twins.feed_forward), limits=(f"{BLOCKS}test_feed_forward_treats_every_token_alike",)
    ),
    ("ff", "glu"): Row(
        twin=twins.by_token(twins.glu), limits=(f"{BLOCKS}test_a_glu_without_gate_weights_is_half_a_linear_map",)
    ),
    ("losses", "span"): Row(limits=(f"{PARTS}test_the_span_loss_is_the_mean_span_of_the_heads",)),
    ("losses", "ponder"): Row(
        config={"layers": 4},
        limits=(f"{BLOCKS}test_halting_follows_the_numbers_of_the_paper",),
        bfloat16=1.0,
        why=HALTING,
    ),
    ("losses", "commitment"): Row(
        limits=(f"{ROUTING}test_the_commitment_loss_is_zero_on_centroids_and_trains_none",),
        bfloat16=1.0,
        why="rounding changes which of two nearly equal centroids is the nearest, and what a query of another cluster "
        "reads is of the size of the outputs: 0.63 of it on a GPU",
    ),
    ("losses", "compression"): Row(
        limits=(
            "tests/memory/test_memories.py::test_the_task_does_not_train_the_compression_and_its_loss_trains_nothing_else",
        )
    ),
}

# Options of the same entries that take another path through the code.
VARIANTS: dict[str, Row] = {
    "shaw without values": Row({"position": {"name": "shaw", "max_distance": 4, "values": False}, "value_dim": 4}),
    "rope on some channels": Row({"position": {"name": "rope", "dims": 2}}),
    "rope with sinks": Row({"position": "rope", "pattern": {"name": "longformer", "window": 3, "sinks": 2}}),
    "rope with slots": Row(
        {"position": "rope", "memory": 3, "memory_kind": {"name": "compressive", "slots": 2, "rate": 3}}
    ),
    "two positions": Row({"position": [{"name": "learned", "max_len": 64}, "rope"]}),
    "scaled sinusoid": Row({"position": {"name": "sinusoidal", "scale_input": True}}),
    "pattern per head": Row(
        {
            "pattern": [
                [
                    {"name": "band", "window": 2},
                    {"name": "dilated", "window": 3, "dilation": 2},
                    {"name": "longformer", "window": 3, "sinks": 2},
                ]
            ]
        }
    ),
    "pattern per layer": Row({"layers": 3, "pattern": [{"name": "band", "window": 3}, "full"]}),
    "pattern per head in one layer": Row({"pattern": ["full", [{"name": "band", "window": 3}, "full", "full"]]}),
    "tree with turned nodes": Row(
        {"pattern": {"name": "bp", "neighbors": 1}, "memory": 13, "position": "rope", "value_dim": 4}
    ),
    "tree among steps": Row(
        {
            "pattern": {"name": "bp", "neighbors": 2},
            "memory": 4,
            "tokens_per_step": 3,
            "kv_heads": 1,
            "position": "shaw",
            "memory_kind": "cache",
            "attention_bias": True,
        }
    ),
    "tree with logits of the layer below": Row(
        {
            "pattern": {"name": "bp", "neighbors": 3},
            "memory": 11,
            "prior": "realformer",
            "head_mixing": "talking",
            "span": {"name": "adaptive", "ramp": 3.0, "initial": 0.4},
            "layers": 3,
        }
    ),
    "mixer per layer": Row(
        {**GROUPED, "layers": 3, "mixer": ["softmax", "linear", {"name": "nystrom", "block": 2, "landmarks": 1}]},
        tolerance=1e-8,
        float32=1e-2,
        bfloat16=float("inf"),
        why=PSEUDO_INVERSE,
    ),
    "attention, mean and convolution": Row(
        {**KERNEL, "layers": 3, "mixer": ["softmax", "average", {"name": "light_conv", "taps": 3}]}
    ),
    "sinks kept as keys": Row(
        {"memory_kind": "cache", "pattern": {"name": "longformer", "window": 3, "sinks": 2}, "kv_heads": 1}
    ),
    "mean compression": Row(
        {"memory": 4, "memory_kind": {"name": "compressive", "slots": 2, "rate": 3, "function": "mean"}}
    ),
    "max compression": Row(
        {
            "memory": 3,
            "position": "alibi",
            "memory_kind": {"name": "compressive", "slots": 3, "rate": 2, "function": "max"},
        }
    ),
    "compression with shaw": Row(
        {
            "memory": 3,
            "position": "shaw",
            "span": {"name": "adaptive", "ramp": 3.0, "initial": 0.5},
            "memory_kind": {"name": "compressive", "slots": 2, "rate": 2},
        }
    ),
    "three tokens a step": Row(
        {
            "memory": 2,
            "tokens_per_step": 3,
            "pattern": ["full", {"name": "band", "window": 2}],
            "final_norm": True,
            "input_norm": True,
        }
    ),
    "sinks among steps": Row(
        {
            "memory": 2,
            "tokens_per_step": 2,
            "pattern": {"name": "longformer", "window": 2, "sinks": 3},
            "position": "t5",
        }
    ),
    "talking sinks": Row({"head_mixing": "talking", "pattern": {"name": "longformer", "window": 3, "sinks": 2}}),
    "layered logits with slots": Row(
        {"prior": "realformer", "memory": 3, "memory_kind": {"name": "compressive", "slots": 2, "rate": 2}}
    ),
    "talking realformer with spans": Row(
        {
            "prior": "realformer",
            "head_mixing": "talking",
            "span": {"name": "adaptive", "ramp": 3.0, "initial": 0.4},
            "layers": 3,
        }
    ),
    "universal with positions": Row({"depth": "universal", "position": ["sinusoidal", "trxl"], "layers": 3}),
    "halting with post norm": Row(
        {"depth": "universal_act", "residual": "post_ln", "position": "sinusoidal", "layers": 4},
        bfloat16=1.0,
        why=HALTING,
    ),
    "convolution padded with zeros": Row({**KERNEL, "mixer": {"name": "light_conv", "taps": 4, "pad": "zero"}}),
    "memoryless": Row({"memory": 0}),
    "RMS norms behind gates": Row({"norm": "rms", "residual": {"name": "gru", "bias": 0.0, "reordered": False}}),
    "RMS norms of compressed rows": Row(
        {"norm": "rms", "memory": 3, "memory_kind": {"name": "compressive", "slots": 2, "rate": 2}}
    ),
    "GRU gates behind the norm": Row({"residual": {"name": "gru", "bias": 0.0, "reordered": False}, "layers": 3}),
    "input gates behind the norm": Row({"residual": {"name": "input", "reordered": False}}),
    "biases": Row({"attention_bias": True, "kv_heads": 1, "value_dim": 4}),
    "biases and sinks kept as keys": Row(
        {"attention_bias": True, "memory_kind": "cache", "pattern": {"name": "longformer", "window": 3, "sinks": 2}}
    ),
    "biases and slots": Row(
        {
            "attention_bias": True,
            "position": "rope",
            "memory": 3,
            "memory_kind": {"name": "compressive", "slots": 2, "rate": 3},
        }
    ),
    "biases of kernels": Row(
        {
            **GROUPED,
            "attention_bias": True,
            "layers": 3,
            "mixer": ["linear", {"name": "performer", "features": 7}, "softmax"],
        },
        float32=1e-4,
        bfloat16=0.3,
        why="features are exponentials: an error of the exponent becomes a relative error of the weight",
    ),
    "biases of landmarks": Row(
        {
            **GROUPED,
            "attention_bias": True,
            "mixer": {"name": "nystrom", "block": 3, "landmarks": 2, "conv": 4},
            "memory": 9,
        },
        tolerance=1e-8,
        float32=1e-2,
        bfloat16=float("inf"),
        why=PSEUDO_INVERSE,
    ),
    "tanh gelu": Row({"ff": {"name": "ffn", "activation": "gelu_tanh"}}),
    "other activations": Row({"ff": {"name": "glu", "activation": "silu"}, "residual": "pre_ln"}),
    "bilinear": Row({"ff": {"name": "glu", "activation": "identity"}, "residual": "reversible", "layers": 3}),
    "gelu": Row({"ff": {"name": "ffn", "activation": "gelu"}, "residual": {"name": "gru", "bias": 0.5}}),
}

# Sizes that make a preset small; everything else is the preset's own.
SMALL: dict[str, Any] = {"width": 15, "heads": 3, "layers": 2, "memory": 6, "ff_width": 22}
PRESET_ROWS: dict[str, Row] = {
    "decision_transformer": Row({"heads": 1, "memory": 2, "layers": 3}),
    "compressive": Row({"memory_kind": {"name": "compressive", "slots": 3, "rate": 2}}),
    "adaptive_span": Row({"span": {"name": "adaptive", "ramp": 3.0, "initial": 0.3}}),
    "linear_transformer": Row(GROUPED_SIZES),
    "average": Row({"width": 12, "heads": 4}),
    "nystromformer": Row(
        {**GROUPED_SIZES, "mixer": {"name": "nystrom", "block": 2, "landmarks": 2}},
        tolerance=1e-8,
        float32=1e-2,
        bfloat16=float("inf"),
        why=PSEUDO_INVERSE,
    ),
    "topk": Row({"selection": {"name": "topk", "k": 3}}, bfloat16=0.4, why=CHOICE),
    "universal_act": Row({"layers": 4}, bfloat16=1.0, why=HALTING),
    "performer": Row(GROUPED_SIZES, float32=1e-4, bfloat16=0.3, why="see the row of the mixer"),
}


for family in FAMILIES:
    ROWS |= family.ROWS
    VARIANTS |= family.VARIANTS
    PRESET_ROWS |= family.PRESET_ROWS


def examples() -> dict[tuple[str, str], Mapping[str, Any]]:
    """The catalogue's own example of every entry."""
    return {(axis, spec.name): spec.example for axis, specs in catalogue().items() for spec in specs}


def entry_config(key: tuple[str, str], **overrides: Any) -> BackboneConfig:
    """The settings a catalogue entry is tested with."""
    return config_of({**examples()[key], **ROWS[key].config, **overrides})


def config_of(values: Mapping[str, Any]) -> BackboneConfig:
    """``BASE`` with overrides."""
    sizes = {**BASE, "ff_width": None} if values.get("ff") == "none" else BASE
    return BackboneConfig(**{**PLAIN, **sizes, **values})


def preset_config(name: str, **overrides: Any) -> BackboneConfig:
    """A preset at a small size."""
    row = PRESET_ROWS.get(name, Row())
    sizes = {**SMALL, "ff_width": None} if PRESETS[name].overrides.get("ff") == "none" else SMALL
    return BackboneConfig.preset(name, **{**sizes, **row.config, **overrides})


def small_windows(name: str, layers: int = 2) -> dict[str, Any]:
    """Settings of a preset whose windows have sizes of their own, or whose layers differ, for few steps and layers."""
    config = PRESET_ROWS.get(name, Row()).config
    sized = {key: config[key] for key in ("pattern", "span") if key in config}
    if isinstance(config.get("mixer"), list):
        sized["mixer"] = config["mixer"]
    sized = {key: value[:layers] if isinstance(value, list) else value for key, value in sized.items()}
    return {"memory": config.get("memory", SMALL["memory"]), **sized} if sized else {}


@cache
def cases() -> dict[str, tuple[BackboneConfig, Row]]:
    """Everything the laws are held against: catalogue entries and their variants."""
    found = {f"{axis}:{name}": (entry_config((axis, name)), row) for (axis, name), row in ROWS.items()}
    return found | {name: (config_of(row.config), row) for name, row in VARIANTS.items()}
