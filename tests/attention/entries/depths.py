"""Rows and twins of further entries: depths."""

from tests.attention import twins
from tests.attention.row import BLOCKS, HALTING, Limit, Row

COMPUTE = "tests/backbone/test_compute.py::"
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
    ("ff", "chunked"): Row(
        twin=twins.feed_forward,
        config={"ff": "glu"},
        limits=(
            Limit({"ff_chunks": 4}, {"ff_chunks": 1}),
            f"{COMPUTE}test_a_transform_in_chunks_keeps_the_hidden_units_of_none",
        ),
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
    "halting computed again": Row(
        {"depth": "universal_act", "layers": 3, "checkpoint": True, "ff_chunks": 5, "losses": {"ponder": 0.1}},
        bfloat16=1.0,
        why=HALTING,
    ),
}
PRESET_ROWS: dict[str, Row] = {}
