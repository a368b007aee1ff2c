"""Base of selections by classes of tokens: the newest keys of the query's own class.

Axes: B batch, H heads, T tokens, N key rows, w keys of a query. A class is a cluster, a bucket of a hash, or the like.
"""

import torch
from jaxtyping import Bool, Int
from torch import Tensor

from rltransformers.attention.reach import window_distance
from rltransformers.attention.roles import Part
from rltransformers.core.spec import Spec
from rltransformers.functional.keys import At, Place, Ring


def newest_of_class(
    of_queries: Int[Tensor, "B H T"], of_keys: Int[Tensor, "B H N"], place: Place, count: int
) -> tuple[Int[Tensor, "B H T w"], Int[Tensor, "B H T w"], Bool[Tensor, "B H T w"]]:
    """Rows of the ``count`` newest keys of a query's class, how far back they lie, and which of them exist."""
    time, rows = of_queries.shape[-1], of_keys.shape[-1]
    assert not isinstance(place, At)
    if isinstance(place, Ring):
        distance = window_distance(place, time, rows, of_keys.device)
        index, exists = newest_by_distance(of_queries, of_keys, distance, count)
        return index, distance.expand(*index.shape[:3], -1).gather(-1, index), exists
    index, exists = newest_in_order(of_queries, of_keys, count)
    return index, torch.arange(rows - time, rows, device=of_keys.device)[:, None] - index, exists


def newest_in_order(
    of_queries: Int[Tensor, "B H T"], of_keys: Int[Tensor, "B H N"], count: int
) -> tuple[Int[Tensor, "B H T w"], Bool[Tensor, "B H T w"]]:
    """Rows of the ``count`` newest keys of a query's class up to the query itself, newest first; which of them exist.

    Rows are contiguous in time and end with the tokens of the queries. Keys are put in the order of class and time,
    where those of one query lie side by side: work and memory grow as T w + N log N, never as T N.
    """
    rows, time = of_keys.shape[-1], of_queries.shape[-1]
    place = torch.arange(rows, device=of_keys.device)
    codes = of_keys * rows + place  # all differ, so that no order has to be stable
    order = codes.argsort(-1)
    own = of_queries * rows + place[rows - time :]
    behind = torch.searchsorted(codes.gather(-1, order), own, right=True)
    slot = behind[..., None] - 1 - torch.arange(count, device=of_keys.device)
    index = order.gather(-1, slot.clamp(min=0).flatten(-2)).unflatten(-1, (time, count))
    same = of_keys.gather(-1, index.flatten(-2)).unflatten(-1, (time, count)) == of_queries[..., None]
    return index, same & (slot >= 0)


def newest_by_distance(
    of_queries: Int[Tensor, "B H T"], of_keys: Int[Tensor, "B H N"], distance: Int[Tensor, "T N"], count: int
) -> tuple[Int[Tensor, "B H T w"], Bool[Tensor, "B H T w"]]:
    """The same for rows in any order, in fixed shapes."""
    same = (of_queries[..., None] == of_keys[..., None, :]) & (distance >= 0)
    never = distance.shape[-1]  # further than any row lies back
    far, index = torch.where(same, distance, never).topk(count, -1, largest=False)
    return index, far < never


NONE = Spec("C0", "none", "selection", "-", "All allowed keys are used.", Part, formula="all s that the pattern allows")
