"""Cost of every encoder of an observation by the number of its elements, and its growth. N elements, W width."""

from collections.abc import Iterator, Sequence
from pathlib import Path

import torch
from gymnasium import spaces

from benchmarks.attention import HEADS, WIDTH
from benchmarks.catalogue import LENGTHS, Cost, Forward, growth_row, measure, picture, write_costs
from benchmarks.harness import RESULTS, Row
from benchmarks.laws import require_green
from rltransformers.policies.observed import SetEncoder, build_encoder
from rltransformers.policies.set_encoders.catalogue import ENCODERS, read_encoder

NUMBERS, LAYERS = 16, 2
LAWS = Path("tests", "policies", "set_encoders", "test_contract.py")
SCALED = {
    "set_transformer": {"points": 32},
    "linformer": {"slots": 32},
    "luna": {"slots": 32},
    "nystrom": {"landmarks": 32},
}
SETTING = (
    f"width {WIDTH}, {HEADS} heads, hidden units {4 * WIDTH}, elements of {NUMBERS} numbers, one observation, per "
    f"layer of {LAYERS}: tokens, layers and the vector for all elements; 32 points, slots, packed rows, landmarks"
)


def encoders(*, repetitions: int = 3, counts: Sequence[int] = LENGTHS) -> Iterator[Row]:
    """Cost of every encoder at every number of elements, and its growth against what the entry declares.

    Args:
        repetitions: of every number; 3 are enough for a growth.
        counts: numbers of elements, ascending, each twice the one before.
    """
    green = require_green(ENCODERS, LAWS)
    costs: list[Cost] = []
    for name, spec in ENCODERS.items():
        if name in green:
            found = costs_of(name, counts, min(repetitions, 3))
            costs += found
            yield growth_row(found, spec.traits.time, SETTING, counts)
    write_costs(costs, RESULTS / "encoders_cost.csv", SETTING, "N")
    title = f"Cost of one layer of an encoder of elements: width {WIDTH}, {HEADS} heads, one observation"
    picture(
        costs, {name: name for name in ENCODERS if name in green}, RESULTS / "cost-encoder.png", title, "elements N"
    )


def costs_of(name: str, counts: Sequence[int], repetitions: int) -> list[Cost]:
    """Of one encoder; every number of elements has an encoder of its own."""

    def forward_of(count: int) -> Forward:
        encoder, x = encoder_of(name, count), torch.randn(1, count, NUMBERS)
        return lambda: encoder({"": x}).pooled, list(encoder.parameters())

    return measure(name, forward_of, counts, repetitions, 0, LAYERS)


def encoder_of(name: str, count: int) -> SetEncoder:
    """With sizes that stay as they are where there are more elements."""
    choice = read_encoder({"name": name, "layers": LAYERS, "heads": HEADS, **SCALED.get(name, {})})
    assert choice is not None
    torch.manual_seed(0)
    return build_encoder(choice, spaces.Box(-1, 1, (count, NUMBERS)), WIDTH)
