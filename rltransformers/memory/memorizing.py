"""Memorizing memory: one layer retrieves the nearest of many older keys (Wu et al. 2022, arXiv 2203.08913).

Axes: G key-value heads, K head width, V value width, M rows of a bank. A token enters the store when it leaves the
window, so that what is found depends on ages alone, however the stream is split into calls.
"""

import os
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Annotated
from zipfile import BadZipFile

import numpy as np
import torch
from annotated_types import Ge, Le
from jaxtyping import Float
from torch import Tensor

from rltransformers.attention.store import Store
from rltransformers.core.errors import ConfigError, one_line
from rltransformers.core.files import replacing
from rltransformers.core.spec import Feature, Refusal, Size, Spec, Traits
from rltransformers.functional.nearest import Search
from rltransformers.memory.interface import MemoryOptions, build_cache
from rltransformers.mixers.interface import Dims


def save_bank(
    path: str | os.PathLike[str], keys: Float[np.ndarray, "M G K"], values: Float[np.ndarray, "M G V"]
) -> None:
    """Write keys and values of demonstrations, as ``Backbone.stored_keys`` gives them, for the option ``bank``.

    A name without ".npz" gets it. Raises ConfigError for arrays of other shapes, and without a single step.
    """
    if keys.ndim != 3 or values.ndim != 3 or len(keys) != len(values) or not len(keys):
        raise ConfigError(f"a bank has keys [M, G, K] and values [M, G, V], got {keys.shape} and {values.shape}")
    with replacing(bank_file(path)) as temporary:
        np.savez(temporary, keys=keys, values=values)


def bank_file(path: str | os.PathLike[str]) -> Path:
    """The file of a bank, whose name may lack ".npz"."""
    file = Path(path)
    return file if file.suffix == ".npz" else file.with_name(f"{file.name}.npz")


def load_bank(path: str, dims: Dims) -> tuple[Tensor, Tensor]:
    """Keys and values of a bank; ConfigError if the file is missing, no bank, or of a layer of other sizes."""
    bank = Path(path) if Path(path).is_file() else bank_file(path)
    if not bank.is_file():
        raise ConfigError(f"memory_kind 'memorizing': bank {path!r} is not there; write it with save_bank")
    try:
        with open(bank, "rb") as raw, np.load(raw, allow_pickle=False) as file:
            arrays = [file[name] for name in ("keys", "values")]
    except (OSError, ValueError, KeyError, EOFError, TypeError, BadZipFile) as error:  # TypeError: a single array
        raise ConfigError(
            f"memory_kind 'memorizing': {path!r} is no bank ({one_line(error)}); write it with save_bank"
        ) from error
    for name, values in zip(("keys", "values"), arrays, strict=True):
        if values.dtype.kind not in "fiu" or not np.isfinite(values).all():
            raise ConfigError(f"memory_kind 'memorizing': {name} of the bank {path!r} are not all finite numbers")
    keys, values = (torch.from_numpy(values.astype(np.float32)) for values in arrays)
    wanted = (dims.kv_heads, dims.head_dim), (dims.kv_heads, dims.value_dim)
    if keys.dim() != 3 or (keys.shape[1:], values.shape[1:]) != wanted or len(keys) != len(values) or not len(keys):
        raise ConfigError(
            f"memory_kind 'memorizing': bank {path!r} holds keys {tuple(keys.shape)} and values {tuple(values.shape)}, "
            f"the layer has key-value heads and widths {wanted[0]} and {wanted[1]}; make it with this backbone"
        )
    return keys, values


@dataclass(frozen=True)
class Options(MemoryOptions):
    """Options of the memorizing memory.

    Attributes:
        layer: index of the layer that reads the store; None takes the last but one of a few layers and one a quarter
            below the top of many (the ninth of twelve).
        store: steps that the store holds, those behind the window.
        neighbors: keys that every query and head retrieves.
        joint: one softmax over what is retrieved and the window in place of a gate per head.
        bank: a file of keys and values of demonstrations (`save_bank`), searched beside the store; its values stay.
        search: how the bank is searched; "faiss" needs the extra `knn`.
    """

    layer: Annotated[int, Ge(0), Le(999)] | None = None
    store: Size = 1024
    neighbors: Size = 32
    joint: bool = False
    bank: str | None = None
    search: Search = "exact"

    def layer_with_store(self, able: Sequence[int], layers: int) -> int | None:
        """``layer``, or the highest one that is able to and is not too near to the top."""
        if self.layer is None:
            high = min(layers - 2, 3 * layers // 4 - 1)
            return max((index for index in able if index <= high), default=min(able, default=None))
        if self.layer not in able:
            raise ConfigError(
                f"memory_kind 'memorizing': layer {self.layer} cannot read a store; the layers that can are "
                f"{', '.join(map(str, able)) or 'none'}; leave layer out or name one of them"
            )
        return self.layer

    def build_store(self, dims: Dims) -> Store:
        """Reader of the store; ConfigError for what it cannot work with."""
        if dims.memory == 0:
            raise ConfigError(
                "memory_kind 'memorizing' keeps a store, so memory 0 does not make it memoryless; "
                "set memory to at least 1 or memory_kind to 'cache'"
            )
        if dims.head_dim == 1:
            raise ConfigError(
                "memory_kind 'memorizing' compares keys of length 1, which all are 1 or -1 where head_dim is 1; "
                "set head_dim to at least 2"
            )
        if self.search != "exact" and self.bank is None:
            raise ConfigError(
                f"memory_kind 'memorizing': search {self.search!r} is how a bank is searched, and there is none; "
                "name a bank or leave search out"
            )
        bank = None if self.bank is None else load_bank(self.bank, dims)
        return Store(dims, self.store, self.neighbors, self.joint, bank, self.search)


SPEC = Spec(
    id="M3", name="memorizing", axis="memory_kind", paper="Wu et al. 2022, arXiv 2203.08913, section 3",
    summary="One layer also retrieves the `neighbors` nearest keys from a store of older steps, weighed by a gate"
            " per head.",
    build=build_cache, options=Options, example={"memory_kind": {"name": "memorizing", "store": 3, "neighbors": 2}},
    traits=Traits(
        horizon="memory + store", state="(memory + store in one layer) kv_heads (Dh + Dv)",
        causal_form="a token enters the store when it leaves the window, there when its segment ends; while the "
                    "store is empty the window is read alone; scales of products are learned as logarithms and "
                    "start at sqrt(Dh)",
        stops_gradient="keys and values of the store",
    ),
    offers=(Feature.STORE,), needs=(Feature.RETRIEVAL, Feature.PRODUCTS),
    refuses=(
        Refusal(Feature.SHARED, "one of several layers reads the store, and there is only one layer"),
        Refusal(Feature.PLACES, "keys of the store have length 1 and are compared by contents"),
        Refusal(Feature.REACH, "the store begins behind the memory, and nobody would read what lies in between"),
    ),
    formula="o = g softmax_{s in the nearest neighbors of the store}(c q.SG(k_s)) SG(v_s) + (1 - g) o_window with "
    "|q| = |k| = 1 and g = sigmoid(b) and c of the head",
)  # fmt: skip
