"""Interface of readouts, and the store of features and actions that they read.

Axes: W width of features, A outputs of an action head, N rows of a store, C neighbors, R rows that are added.
"""

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Annotated

import torch
from annotated_types import Ge, Le
from jaxtyping import Bool, Float, Int
from torch import Tensor, nn

from rltransformers.core.spec import Size
from rltransformers.functional.nearest import FlatIndex, Search, searches_outside
from rltransformers.policies.action_leaves import ActionLeaf

MAX_ROWS = 2**20
LARGEST_PRODUCT = 2**22
"""Distances that are computed at once, where nothing is compiled: more of them leave the cache of a processor."""
FARTHEST = 1e9
"""In steps of the resolution; times ``MAX_ROWS`` and plus a row it is still a whole number of float64."""


@dataclass(frozen=True)
class StoreOptions:
    """Options that all readouts have.

    Attributes:
        neighbors: stored steps that every step reads.
        size: steps that the store holds.
        search: how the store is searched; "faiss" needs the extra `knn`.
        better: online, store only steps with a positive advantage; of a dataset, only episodes with at least its mean
            return.
        refresh: updates of a Decision Transformer after which its store is made anew.
    """

    neighbors: Size = 32
    size: Annotated[int, Ge(1), Le(MAX_ROWS)] = 10_000
    search: Search = "exact"
    better: bool = False
    refresh: Size = 1_000


@dataclass(frozen=True)
class Neighbors:
    """Rows of a store, nearest first: their squared distances, and which of them exist."""

    index: Int[Tensor, "*n C"]
    distance: Float[Tensor, "*n C"]
    exists: Bool[Tensor, "*n C"]


class Datastore(nn.Module):
    """A ring of features, the actions taken there, and the episodes that they are from; part of the saved weights.

    Distances are compared in steps of ``resolution``, and equal ones by row: the rounding by which acting and learning
    differ does not decide which of two alike features is read.
    """

    keys: Float[Tensor, "N W"]
    actions: Float[Tensor, "N A"]
    episodes: Int[Tensor, " N"]
    filled: Int[Tensor, ""]
    cursor: Int[Tensor, ""]

    def __init__(self, size: int, width: int, outputs: int, search: Search, resolution: float) -> None:
        super().__init__()
        self.search, self.resolution = search, resolution
        self.register_buffer("keys", torch.zeros(size, width))
        self.register_buffer("actions", torch.zeros(size, outputs))
        self.register_buffer("episodes", torch.zeros(size, dtype=torch.long))
        self.register_buffer("filled", torch.zeros((), dtype=torch.long))
        self.register_buffer("cursor", torch.zeros((), dtype=torch.long))
        self._index = FlatIndex(by_distance=True) if search == "faiss" else None
        self._version = -1

    @property
    def size(self) -> int:
        return self.keys.shape[0]

    @torch.no_grad()
    def clear(self) -> None:
        self.filled.zero_()
        self.cursor.zero_()

    @torch.no_grad()
    def add(self, keys: Float[Tensor, "R W"], actions: Float[Tensor, "R A"], episodes: Int[Tensor, " R"]) -> None:
        """Write rows over the oldest ones; of more rows than there is room for the last ones stay."""
        keys, actions, episodes = (rows[-self.size :] for rows in (keys, actions, episodes))
        count = len(keys)
        slots = (self.cursor + torch.arange(count, device=self.keys.device)) % self.size
        for held, rows in ((self.keys, keys), (self.actions, actions), (self.episodes, episodes)):
            held.index_copy_(0, slots, rows.to(held.dtype))
        self.cursor.copy_((self.cursor + count) % self.size)
        self.filled.copy_((self.filled + count).clamp(max=self.size))

    @torch.no_grad()
    def nearest(self, features: Float[Tensor, "*n W"], count: int, own: Int[Tensor, "*n"] | None = None) -> Neighbors:
        """The ``count`` rows nearest to each of the features; none of the episode ``own``."""
        flat = features.detach().flatten(0, -2)
        others = None if own is None else own.flatten()
        with torch.autocast(flat.device.type, enabled=False):
            if others is None and searches_outside(self.search, flat):
                found = self._outside(flat, count)
            else:
                found = self._in_parts(flat, count, others)
        index, distance, exists = (each.unflatten(0, features.shape[:-1]) for each in found)
        return Neighbors(index, distance.to(features.dtype), exists)

    def _in_parts(self, flat: Tensor, count: int, others: Tensor | None) -> tuple[Tensor, ...]:
        """Exact search of as many features at once as fit."""
        rows = max(1, LARGEST_PRODUCT // self.size)
        if torch.compiler.is_compiling() or len(flat) <= rows:
            return self._exact(flat, count, others)
        parts = [
            self._exact(part, count, None if others is None else others[first : first + rows])
            for first, part in zip(range(0, len(flat), rows), flat.split(rows), strict=True)
        ]
        return tuple(torch.cat(part) for part in zip(*parts, strict=True))

    def _exact(self, flat: Tensor, count: int, others: Tensor | None) -> tuple[Tensor, ...]:
        row = torch.arange(self.size, device=flat.device)
        present = row < self.filled
        if others is not None:
            present = present & (self.episodes != others[:, None])
        wide, keys = flat.double(), self.keys.double()
        # Features of equal states differ by rounding alone, which a difference of squares in single precision hides.
        distance = (wide @ keys.T).mul_(-2).add_(wide.square().sum(-1, keepdim=True)).add_(keys.square().sum(-1))
        return self._choose(distance.clamp_(min=0), row.expand_as(distance), present.expand_as(distance), count)

    def _outside(self, flat: Tensor, count: int) -> tuple[Tensor, ...]:
        """By FAISS, which looks for more of them, because it compares other distances."""
        assert self._index is not None
        filled = int(self.filled)
        if self._version != self.keys._version:
            self._version = self.keys._version
            self._index.forget()
        if not filled:
            empty = flat.new_zeros(len(flat), 1, dtype=torch.float64)
            return empty.long(), empty, empty > 0
        index = self._index.search(flat, self.keys[:filled], min(filled, 4 * count))
        distance = (flat.double()[:, None] - self.keys[index].double()).square().sum(-1)
        return self._choose(distance, index, torch.ones_like(index, dtype=torch.bool), count)

    def _choose(self, distance: Tensor, row: Tensor, present: Tensor, count: int) -> tuple[Tensor, ...]:
        """Rows, distances and existence of the least distances in steps of the resolution; of equal ones by row."""
        steps = (distance / self.resolution).round_().clamp_(max=FARTHEST)
        code = steps.mul_(self.size).add_(row).masked_fill_(~present, torch.inf)
        least, place = code.topk(min(count, code.shape[-1]), -1, largest=False)
        return row.gather(-1, place), distance.gather(-1, place), least < torch.inf


class Readout(nn.Module):
    """Makes outputs of an action head from features and what is stored.

    Attributes:
        store: what it reads; frozen between the collection of a rollout and the end of the update on it.
        learns: whether training on recorded actions goes through it.
    """

    learns = False

    def __init__(self, width: int, leaves: Sequence[ActionLeaf], options: StoreOptions, resolution: float) -> None:
        super().__init__()
        self.leaves, self.options = list(leaves), options
        outputs = sum(leaf.outputs for leaf in self.leaves)
        self.store = Datastore(options.size, width, outputs, options.search, resolution)

    def forward(
        self, features: Float[Tensor, "*n W"], layer: nn.Linear, own: Int[Tensor, "*n"] | None = None
    ) -> Float[Tensor, "*n A"]:
        """Outputs of the head whose last layer is ``layer``; nothing is read of the episode ``own``."""
        raise NotImplementedError("a readout defines forward")

    def split(self, outputs: Float[Tensor, "*n A"]) -> Sequence[Tensor]:
        return outputs.split_with_sizes([leaf.outputs for leaf in self.leaves], -1)
