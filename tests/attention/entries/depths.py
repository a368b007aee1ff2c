"""Rows and twins of further entries: depths."""

from tests.attention import twins
from tests.attention.row import BLOCKS, HALTING, Row

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
}
VARIANTS: dict[str, Row] = {}
PRESET_ROWS: dict[str, Row] = {}
