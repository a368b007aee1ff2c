"""Rows and twins of further selections."""

import functools
import math
from typing import Any

import torch
from torch import Tensor

from tests.attention import twins
from tests.attention.row import Row
from tests.attention.twins import Key, Meeting, Reader, Rows, Window

SAC = "tests/attention/test_sac.py::"
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


def lstm(reader: Reader, row: Tensor, hidden: Tensor, cell: Tensor) -> tuple[Tensor, Tensor]:
    """Hochreiter & Schmidhuber 1997 with a forget gate, in the order input, forget, cell, output."""
    at = "mixing.mixer.chooser.walk."
    made = reader[at + "weight_ih"] @ row + reader[at + "bias_ih"] + reader[at + "weight_hh"] @ hidden
    gates = (made + reader[at + "bias_hh"]).chunk(4)
    write, keep, read = (twins.sigmoid(gates[i]) for i in (0, 1, 3))
    cell = keep * cell + write * torch.tanh(gates[2])
    return read * torch.tanh(cell), cell


def walked_edges(reader: Reader, head: int, q: Tensor, keys: Rows) -> dict[int, Tensor]:
    """Steps of the walk with the logarithms of their probabilities; the token itself with nothing."""
    options, at = reader.options("selection"), "mixing.mixer.chooser."
    past = keys[-1 - reader.config.memory * reader.config.tokens_per_step : -1]  # whole steps, counted from the token
    first = len(keys) - 1 - len(past)
    targets = [reader[at + "target.weight"] @ key for key in past]
    hidden = torch.tanh(reader[at + "start.weight"] @ q + reader[at + "start.bias"])
    cell, found = torch.zeros_like(hidden), {len(keys) - 1: torch.zeros(())}
    for _ in range(min(options.edges, len(past))):
        free = [i for i in range(len(past)) if first + i not in found]
        scores = torch.stack([hidden @ targets[i] for i in free]) / math.sqrt(len(hidden))
        best = int(scores.argmax())
        found[first + free[best]] = scores[best] - torch.log(torch.exp(scores).sum())
        hidden, cell = lstm(reader, targets[free[best]], hidden, cell)
    return found


ROWS: dict[tuple[str, str], Row] = {
    # Against github.com/lucidrains/reformer-pytorch, 66a19b6, LSHAttention inside buckets with the same rotations in
    # float64: largest error 4.4e-16 in one round; in three, where duplicates are not allowed and no bucket is longer
    # than the chunks reach, 3.4e-10 of the 1e-9 that it adds in a logarithm.
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
    # Against github.com/lucidrains/sinkhorn-transformer, 531bdbe, SinkhornCausalAttention with our shares as its
    # matrix, a head that it does not shift, in float64: largest error 4.4e-16.
    ("selection", "sinkhorn"): Row(
        twin=twins.Selection(window=blocks),
        config={"memory": 10},
        limits=(
            f"{SINKHORN}test_a_mixture_of_the_block_before_alone_is_attention_to_two_blocks",
            f"{SINKHORN}test_a_mixture_that_is_not_seen_is_attention_to_the_own_block",
        ),
    ),
    # No published code was found to compare with (looked for sparse adaptive connection and for edge predictors).
    ("selection", "sac"): Row(
        twin=twins.Selection(added=walked_edges),
        limits=(
            f"{SAC}test_edges_to_all_that_add_nothing_are_full_attention",
            f"{SAC}test_a_walk_that_always_steps_to_the_newest_token_is_a_band",
        ),
        bfloat16=1.0,
        why="rounding changes which of two nearly equal steps a walk takes, and all steps after it",
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
    "walks among steps": Row(
        {
            "selection": {"name": "sac", "edges": 20, "width": 3},
            "tokens_per_step": 2,
            "memory": 3,
            "position": "rope",
            "memory_kind": "cache",
            "kv_heads": 1,
            "value_dim": 4,
        },
        bfloat16=1.0,
        why="as the row of sac",
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
