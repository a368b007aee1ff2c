"""Lists of the largest scores against sorting."""

import pytest
import torch

from rltransformers.functional.running_top import running_largest
from tests.functional.test_recurrences import B, H, T, tokens_of

LISTS, WIDTH = 5, 3
STARTS = [[0], [3, 4, 9], [12]]  # row 2 lives on from before the call


@pytest.mark.parametrize("chunk", [1, 2, 5, 13, 64])
@pytest.mark.parametrize("length", [[13, 13, 13], [0, 7, 12]], ids=str)
def test_lists_are_what_sorting_the_episode_gives(chunk: int, length: list[int]) -> None:
    generator = torch.Generator().manual_seed(0)
    scores = torch.randn(B, H, T, LISTS, generator=generator)
    held = torch.randn(B, H, LISTS, WIDTH, generator=generator).sort(-1, descending=True).values
    held[:, :, :, 2] = float("-inf")
    asked = torch.randint(LISTS, (B, H, T), generator=generator)
    reset = torch.zeros(B, T, dtype=torch.bool)
    for row, starts in zip(reset, STARTS, strict=True):
        row[starts] = True
    tokens = tokens_of(reset, torch.tensor([6, 1, 1]), torch.tensor(length))
    found, last = running_largest(scores, held, asked, tokens, chunk)
    for each in (found, last):  # all can be read, those of empty places too
        assert each.index.min() >= 0 and each.index.max() < LISTS * WIDTH + T
    for b in range(B):
        for h in range(H):
            for t in range(length[b]):
                word = int(asked[b, h, t])
                mine = listed(scores[b, h, :, word], held[b, h, word], word, b, t)
                assert found.index[b, h, t][found.exists[b, h, t]].tolist() == mine
            for word in range(LISTS):
                mine = listed(scores[b, h, :, word], held[b, h, word], word, b, length[b] - 1)
                assert last.index[b, h, word][last.exists[b, h, word]].tolist() == mine


def listed(scores: torch.Tensor, held: torch.Tensor, word: int, b: int, t: int) -> list[int]:
    """Rows of one list at token t, the largest first."""
    start = max([s for s in STARTS[b] if s <= t], default=-1)
    rows = {LISTS * WIDTH + s: float(scores[s]) for s in range(max(start, 0), t + 1)}
    if start < 0:
        rows |= {word * WIDTH + place: float(held[place]) for place in range(2)}
    return sorted(rows, key=lambda row: -rows[row])[:WIDTH]
