"""Nearest keys among many: flat indices of FAISS beside exact search.

Axes: K width, M keys, L queries, C keys found.
"""

from typing import Any, Literal

import torch
from jaxtyping import Float, Int
from torch import Tensor

from rltransformers.core.errors import require

Search = Literal["exact", "faiss"]
"""How keys are searched: all products in PyTorch, or a flat index of FAISS, which finds the same keys on the CPU."""


class FlatIndex:
    """An index of FAISS over keys that do not change, made at the first search; copies and files leave it behind.

    Args:
        by_distance: nearest by Euclidean distance; otherwise by product.

    Raises:
        MissingExtraError: FAISS is not installed.
    """

    def __init__(self, by_distance: bool = False) -> None:
        require("faiss", "knn")
        self.by_distance = by_distance
        self._index: Any = None

    def __getstate__(self) -> dict[str, Any]:
        return {"by_distance": self.by_distance, "_index": None}

    def forget(self) -> None:
        """The keys have changed: the next search makes the index anew."""
        self._index = None

    def search(self, queries: Float[Tensor, "*n K"], keys: Float[Tensor, "M K"], count: int) -> Int[Tensor, "*n C"]:
        """The ``count`` nearest of ``keys``, which are the same until ``forget``, nearest first."""
        if self._index is None:
            faiss = require("faiss", "knn")
            self._index = (faiss.IndexFlatL2 if self.by_distance else faiss.IndexFlatIP)(keys.shape[1])
            self._index.add(keys.detach().float().contiguous().numpy())
        flat = queries.detach().flatten(0, -2).float().contiguous().numpy()
        return torch.from_numpy(self._index.search(flat, count)[1]).unflatten(0, queries.shape[:-1])


def searches_outside(search: Search, queries: Tensor) -> bool:
    """Whether FAISS searches: on the CPU, and not while a step is compiled or written to a file."""
    return search == "faiss" and queries.is_cpu and not torch.compiler.is_compiling()
