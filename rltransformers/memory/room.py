"""Appending rows to a memory without copying the memory.

A step of acting adds one row to a window of M rows. Joining them anew would move the whole window at every step, so
rows live in storage with spare room behind them: a step writes its row there, and the window is a view that moves
along. When the room is used up the window moves to new storage, once in many steps.

States stay values: a state that is not the newest one of its storage (two continuations of the same state, a value
asked for in passing) is copied before anything is written behind it, so no state ever changes.

Axes: B batch, R rows of the past, T new rows, X numbers of a row.
"""

import weakref
from dataclasses import dataclass

import torch
from jaxtyping import Float
from torch import Tensor

SMALLEST_ROOM = 32
"""Rows; larger windows get a quarter of their size, so that a window moves four rows for one that is appended."""


@dataclass
class _Storage:
    rows: Tensor
    end: int  # rows written
    newest: "weakref.ref[Tensor]"  # forgets the storage when the window is dropped


_storages: dict[int, _Storage] = {}  # by identity of the one window that may be extended in place


def append(
    past: Float[Tensor, "B R X"], rows: Float[Tensor, "B T X"]
) -> tuple[Float[Tensor, "B R+T X"], Float[Tensor, "B R X"]]:
    """``[past ; rows]`` and its newest R rows; where a gradient is needed, by plain concatenation."""
    count, time = past.shape[1], rows.shape[1]
    needs_gradient = torch.is_grad_enabled() and (past.requires_grad or rows.requires_grad)
    if needs_gradient or count == 0 or past.dtype != rows.dtype:
        joined = torch.cat([past, rows], 1)
        return joined, joined[:, time:]
    storage = _storages.pop(id(past), None)
    if storage is None or storage.newest() is not past or storage.end + time > storage.rows.shape[1]:
        room = time + max(SMALLEST_ROOM, count // 4)
        storage = _Storage(past.new_empty(len(past), count + room, past.shape[2]), count, weakref.ref(past))
        storage.rows.narrow(1, 0, count).copy_(past)
    storage.rows.narrow(1, storage.end, time).copy_(rows)
    storage.end += time
    joined = storage.rows.narrow(1, storage.end - time - count, count + time)
    kept = joined.narrow(1, time, count)
    name = id(kept)
    storage.newest = weakref.ref(kept, lambda _: _storages.pop(name, None))
    _storages[name] = storage
    return joined, kept
