"""Rows and twins of further entries: depths."""

from __future__ import annotations

import math
from typing import TYPE_CHECKING

import torch
from torch import Tensor

from rltransformers.backbone import Backbone
from rltransformers.laws import Limit
from rltransformers.laws.gradients import Edit
from tests.attention import twins
from tests.attention.row import BLOCKS, HALTING, Row
from tests.attention.twins import Rows

if TYPE_CHECKING:
    from tests.attention.references import Walk


def leaving_early(walk: Walk, tokens: Rows) -> Rows:
    """Token by token: one that has left is the input of all deeper layers."""
    left = [False] * len(tokens)
    first = tokens
    for layer in range(walk.layers):
        outputs, _ = walk.layer(layer, tokens, {})
        before = tokens
        tokens = [old if gone else new for old, new, gone in zip(tokens, outputs, left, strict=True)]
        first = first if layer else tokens
        for t, gone in enumerate(left):
            if not gone and layer < walk.layers - 1:
                left[t] = decide(walk, layer, before[t], tokens[t], first[t], t)
    return tokens


def decide(walk: Walk, layer: int, before: Tensor, after: Tensor, first: Tensor, p: int) -> bool:
    """Elbayad et al. 2020, equations 6 to 8; Schuster et al. 2022, section 3.5 and equation 5."""
    options = walk.reader(0).options("depth")
    tensors = {name: value.detach() for name, value in walk.reader(0).tensors.items()}
    before, after, first = before.detach(), after.detach(), first.detach()
    if hasattr(options, "predictor"):
        weight, bias = tensors["halt.predict.weight"], tensors["halt.predict.bias"]
        if options.predictor == "geometric":
            return bool(1 / (1 + torch.exp(-(weight[layer] @ after + bias[layer]))) > 0.5)
        scores = [float(row @ first + b) for row, b in zip(weight, bias, strict=True)]
        return scores.index(max(scores)) <= layer
    if options.confidence == "saturation":
        sure = float(before @ after / (before @ before).sqrt() / (after @ after).sqrt())
    else:
        sure = 1 / (
            1 + math.exp(-float(tensors["halt.classifier.weight"][0] @ after + tensors["halt.classifier.bias"][0]))
        )
    least = float(options.threshold)
    if options.decay is not None:
        least = min(1.0, max(0.0, 0.9 * least + 0.1 * math.exp(-options.decay * p / options.horizon)))
    return sure >= least


def leave_after(layer: int) -> Edit:
    """A predictor that names one layer, whatever the token is."""

    def edit(special: Backbone, plain: Backbone) -> None:
        special.get_parameter("halt.predict.weight").data.zero_()
        bias = special.get_parameter("halt.predict.bias").data
        bias.fill_(-50.0)
        bias[layer] = 50.0

    return edit


COMPUTE = "tests/backbone/test_compute.py::"
EXITS = "tests/policies/test_exits.py::"
OBJECTIVES = "tests/attention/test_objectives.py::"
ROUNDED = "products are rounded to 8 bits in every type but float64"

ROWS: dict[tuple[str, str], Row] = {
    ("depth", "act"): Row(
        twin=twins.Depth(twins.halting),
        config={"layers": 3, "residual": "pre_ln"},
        limits=(
            f"{BLOCKS}test_halting_follows_the_numbers_of_the_paper",
            f"{BLOCKS}test_only_the_remainder_of_the_ponder_cost_has_a_gradient",
        ),
        bfloat16=1.0,
        why=HALTING,
    ),
    # Against github.com/elbayadm/attn2d, 9826534, DynamicHalterNclasses and DynamicHalterStickBreaking with the same
    # weights in float64: the same exits, largest error of log-probabilities 8.9e-16.
    ("depth", "depth_adaptive"): Row(
        twin=twins.Depth(leaving_early, embeds_once=True),
        config={"layers": 4},
        limits=(
            Limit({"depth": "depth_adaptive", "layers": 3}, {"layers": 3}, leave_after(2)),
            Limit({"depth": "depth_adaptive", "layers": 3}, {"layers": 2}, leave_after(1)),
        ),
        bfloat16=1.0,
        why=HALTING,
    ),
    # Against github.com/google-research/t5x, cc342d4, confidences "state" and "meta" in float64: largest error 2.2e-16.
    # The threshold is that of the paper; there all of it decays, and both agree to 1.1e-16 where it is 1.
    ("depth", "calm"): Row(
        twin=twins.Depth(leaving_early, embeds_once=True),
        config={"layers": 4, "residual": "pre_ln", "depth": {"name": "calm", "threshold": 0.92}},
        limits=(
            Limit({"depth": {"name": "calm", "threshold": 2.0, "decay": None}, "layers": 3}, {"layers": 3}),
            Limit({"depth": {"name": "calm", "threshold": -1.0, "decay": None}, "layers": 3}, {"layers": 1}),
        ),
        bfloat16=1.0,
        why=HALTING,
    ),
    ("losses", "al_rfou"): Row(
        limits=(
            f"{EXITS}test_losses_of_inner_layers_end_one_after_the_other_and_the_next_step_is_of_the_same_episode",
            f"{EXITS}test_streams_are_those_of_stacks_of_fewer_layers",
        )
    ),
    ("losses", "exits"): Row(
        limits=(f"{EXITS}test_exits_lose_what_a_loop_over_layers_says",),
        bfloat16=1.0,
        why=HALTING,
    ),
    ("ff", "chunked"): Row(
        twin=twins.feed_forward,
        config={"ff": "glu"},
        limits=(
            Limit({"ff_chunks": 4}, {"ff_chunks": 1}),
            f"{COMPUTE}test_a_transform_in_chunks_keeps_the_hidden_units_of_none",
        ),
    ),
    ("residual", "rms"): Row(
        twin=twins.PRE_NORM,
        config={"input_norm": True, "final_norm": True},
        limits=("tests/blocks/test_blocks.py::test_rms_norm_of_rows_without_a_mean_is_layer_norm",),
    ),
    ("residual", "checkpoint"): Row(
        twin=twins.PRE_NORM,
        config={"layers": 3, "prior": "realformer"},
        limits=(
            Limit({"checkpoint": True}, {}),
            f"{COMPUTE}test_layers_that_are_computed_again_keep_their_inputs_only",
        ),
    ),
    ("residual", "mixed_precision"): Row(
        twin=twins.PRE_NORM,
        limits=(
            Limit({"compute_dtype": "bfloat16"}, {}),  # float64 is left alone
            f"{COMPUTE}test_mixed_precision_rounds_products_and_nothing_that_is_kept",
        ),
        float32=0.1,
        why=ROUNDED,
    ),
    ("losses", "disagreement"): Row(
        limits=(
            f"{OBJECTIVES}test_identical_heads_agree_in_everything_and_orthogonal_ones_with_themselves_only",
            f"{OBJECTIVES}test_losses_of_a_backbone_are_the_sums_of_the_formula",
        )
    ),
    ("losses", "pattern"): Row(
        limits=(
            f"{OBJECTIVES}test_weights_that_are_the_pattern_cost_nothing_and_rows_without_a_target_do_not_count",
            f"{OBJECTIVES}test_losses_of_a_backbone_are_the_sums_of_the_formula",
        )
    ),
}
VARIANTS: dict[str, Row] = {
    "exits one decision after the other": Row(
        {"depth": {"name": "depth_adaptive", "predictor": "geometric"}, "layers": 3, "losses": {"exits": 1.0}},
        bfloat16=1.0,
        why=HALTING,
    ),
    "exits by a classifier": Row(
        {
            "depth": {"name": "calm", "confidence": "classifier", "threshold": 0.5, "horizon": 9},
            "layers": 3,
            "residual": "post_ln",
            "memory_kind": "cache",
        },
        bfloat16=1.0,
        why=HALTING,
    ),
    "halting computed again": Row(
        {"depth": "universal_act", "layers": 3, "checkpoint": True, "ff_chunks": 5, "losses": {"ponder": 0.1}},
        bfloat16=1.0,
        why=HALTING,
    ),
}
PRESET_ROWS: dict[str, Row] = {
    "calm": Row({"depth": {"name": "calm", "threshold": 0.6}, "layers": 3}, bfloat16=1.0, why=HALTING),
    "depth_adaptive": Row({"layers": 3}, bfloat16=1.0, why=HALTING),
}
