"""Rows and twins of further selections."""

import torch
from torch import Tensor

from tests.attention import twins
from tests.attention.row import Row
from tests.attention.twins import Meeting, Reader, Rows

LSH = "tests/attention/test_lsh.py::"


def unit(row: Tensor) -> Tensor:
    """Length 1."""
    return row / torch.sqrt((row * row).sum())


def shared_keys(reader: Reader, row: Tensor) -> list[tuple[Tensor, Tensor]]:
    """Keys of length 1 from the outputs that are queries, too, and values."""
    width = reader.heads * reader.head_dim
    both = reader.projected_by(slice(None), row)
    k, v = both[:width].view(reader.heads, -1), both[width:].view(reader.heads, -1)
    return [(unit(k[head]), v[head]) for head in range(reader.heads)]


def hashed_keys(reader: Reader, head: int, q: Tensor, keys: Rows, logits: Rows) -> list[int]:
    """Kitaev et al. 2020, section 2, with the newest keys of a bucket in place of a chunk of the sorted ones."""
    options, rotations = reader.options("selection"), reader["mixing.mixer.chooser.rotations"][head]
    found: set[int] = set()
    for rotation in rotations:

        def bucket(row: Tensor, rotation: Tensor = rotation) -> int:
            products = [float(row.detach() @ column) for column in rotation.T]
            products += [-each for each in products]
            return products.index(max(products))

        same = [i for i, key in enumerate(keys) if bucket(key) == bucket(q)]
        found |= set(same[-options.window :])
    return sorted(found)


ROWS: dict[tuple[str, str], Row] = {
    ("selection", "lsh"): Row(
        twin=twins.Selection(
            chosen=hashed_keys,
            shift=lambda distance: 0.0 if distance else -5e4,
            meeting=Meeting(keys=shared_keys),
        ),
        limits=(f"{LSH}test_one_bucket_is_attention_with_shared_projections_that_avoids_itself",),
        bfloat16=1.0,
        why="rounding changes the bucket of a vector that lies between two of them, and so which keys it finds",
    ),
}
VARIANTS: dict[str, Row] = {
    "one hash among steps": Row(
        {
            "selection": {"name": "lsh", "rounds": 1, "buckets": 2, "window": 4},
            "tokens_per_step": 2,
            "memory": 3,
            "position": "rope",
            "memory_kind": "cache",
            "value_dim": 4,
            "attention_bias": True,
        },
        bfloat16=1.0,
        why="as the row of lsh",
    ),
}
PRESET_ROWS: dict[str, Row] = {}
