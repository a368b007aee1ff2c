"""Rows at the end of a call, and blocks of tokens, against loops over rows."""

import pytest
import torch

from rltransformers.functional import windows
from rltransformers.functional.call import Tokens

BATCH, TIME, MEMORY, WIDTH = 3, 5, 4, 2


@pytest.mark.parametrize("padded", [False, True])
@pytest.mark.parametrize("count", [0, 1, 3, 7, 12])
def test_the_last_rows_are_the_newest_valid_ones(count: int, padded: bool) -> None:
    lengths = [5, 0, 2] if padded else [TIME] * BATCH
    p = torch.zeros(BATCH, TIME, dtype=torch.long)
    before = torch.full((BATCH,), -1)
    tokens = Tokens(p, p, p > 0, before, torch.tensor(lengths) if padded else None)
    rows = torch.randn(BATCH, MEMORY + TIME, WIDTH)
    found = tokens.newest_rows(rows, count)
    for row, length, last in zip(rows, lengths, found, strict=True):
        valid = [torch.zeros(WIDTH)] * count + list(row[: MEMORY + length])
        expected = torch.stack(valid[len(valid) - count :]) if count else torch.zeros(0, WIDTH)
        assert torch.equal(last, expected)


@pytest.mark.parametrize(("time", "block", "memory"), [(7, 3, 4), (6, 2, 1), (5, 8, 3), (1, 1, 2)])
def test_every_block_of_a_call_has_its_own_memory_in_front(time: int, block: int, memory: int) -> None:
    tokens, keys = torch.randn(BATCH, time, WIDTH), torch.randn(BATCH, memory + time, WIDTH)
    folded, of_blocks = windows.fold(tokens, block), windows.fold_keys(keys, memory, block)
    assert torch.equal(windows.unfold_tokens(folded, time, BATCH), tokens)
    count = -(-time // block)
    for stream in range(BATCH):
        for number in range(count):
            expected = keys[stream, number * block : number * block + memory + block]
            part = of_blocks[stream * count + number]
            assert torch.equal(part[: len(expected)], expected)
            assert part[len(expected) :].eq(0).all()
