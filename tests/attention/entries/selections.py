"""Rows and twins of further selections."""

import functools
import math
from typing import Any

import torch
from torch import Tensor

from tests.attention import twins
from tests.attention.row import Row
from tests.attention.twins import Key, Meeting, Reader, Rows, Window

SINKHORN = "tests/attention/test_sinkhorn.py::"
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


def block_edges(reader: Reader, size: int, t: int) -> list[Key]:
    """The tokens of the own block, and the rows that stand for those before it."""
    u = t // size
    mixed = [(f"row {i} of mixture", u, t - ((u - 1) * size + i)) for i in range(size)]
    return [("token", s, t - s) for s in range(u * size, t + 1)] + mixed


def mixture(reader: Reader, kind: str, u: int, head: int, tokens: list[tuple[Tensor, Tensor]]) -> tuple[Tensor, Tensor]:
    """Tay et al. 2020, section 3.2, over completed blocks of the memory before block u, and nothing."""
    options, place = reader.options("selection"), int(kind.split()[1])
    size, at = options.block, "mixing.mixer.chooser."
    earlier = (reader.config.memory * reader.config.tokens_per_step + 1) // size - 1
    before = [tokens[w * size : (w + 1) * size] for w in range(max(0, u - earlier), u)]
    nothing = reader[at + "none_key"][head], reader[at + "none_value"][head]
    seen = [k for block in before for k, _ in block] + [tokens[u * size][0]]
    psi = torch.stack(seen).sum(0) / len(seen)
    scores = [reader[at + "none_score"][head]]
    for block in before:
        mean = sum((k for k, _ in block[1:]), block[0][0]) / size
        scores.append(psi @ reader[at + "of_block"][head] @ mean / math.sqrt(len(psi)))
    shares = twins.softmax([score / options.temperature for score in scores])
    rows = [nothing, *(block[place] for block in before)]
    k, v = (sum(share * row[i] for share, row in zip(shares, rows, strict=True)) for i in (0, 1))
    assert isinstance(k, Tensor) and isinstance(v, Tensor)
    return k, v


def blocks(reader: Reader, options: Any) -> Window:
    """The own block and a mixture."""
    return Window(1, edges=functools.partial(block_edges, size=options.block), node=lambda *given: mixture(*given))


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
    ("selection", "sinkhorn"): Row(
        twin=twins.Selection(window=blocks),
        config={"memory": 10},
        limits=(
            f"{SINKHORN}test_a_mixture_of_the_block_before_alone_is_attention_to_two_blocks",
            f"{SINKHORN}test_a_mixture_that_is_not_seen_is_attention_to_the_own_block",
        ),
    ),
}
VARIANTS: dict[str, Row] = {
    "blocks sorted among steps": Row(
        {
            "selection": {"name": "sinkhorn", "block": 2, "temperature": 0.5},
            "tokens_per_step": 3,
            "memory": 2,
            "position": "rope",
            "memory_kind": "cache",
            "kv_heads": 1,
            "value_dim": 4,
        }
    ),
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
