"""Memorizing memory: one layer retrieves the nearest of many older keys (Wu et al. 2022, arXiv 2203.08913).

Axes: B batch, T tokens, N key rows in view, H heads, G key-value heads, K head width, V value width, C retrieved keys,
M rows of a bank. A token enters the store when it leaves the window, so that what is found depends on ages alone,
however the stream is split into calls. Store and window are one run of rows, told apart by their distance.
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
from jaxtyping import Bool, Float
from torch import Tensor, nn

from rltransformers.attention.columns import window_distance
from rltransformers.attention.engines.gathered import fetch
from rltransformers.attention.reach import Reach
from rltransformers.attention.roles import Retriever
from rltransformers.core.errors import ConfigError, one_line
from rltransformers.core.files import replacing
from rltransformers.core.spec import Feature, Refusal, Size, Spec, Traits
from rltransformers.functional.call import Call
from rltransformers.functional.keys import At, Group
from rltransformers.functional.nearest import FlatIndex, Search, searches_outside, unit
from rltransformers.memory.interface import MemoryOptions, RowMemory
from rltransformers.mixers.interface import Dims


class Store(Retriever):
    """For every head the ``neighbours`` keys behind the window with the largest products, and a softmax over them.

    Queries and keys of the whole layer have length 1; every head learns a scale, which starts where products have the
    spread that they have in other layers. What is stored gets no gradient and has no position.

    Args:
        steps: that the store holds.
        joint: one softmax over what is retrieved and the window; otherwise every head learns how to mix the outputs of
            two.
        bank: further keys [M, G, K] and values [M, G, V], the same for all streams.
        search: how the bank is searched.
    """

    def __init__(
        self,
        dims: Dims,
        steps: int,
        neighbours: int,
        joint: bool,
        bank: tuple[Tensor, Tensor] | None,
        search: Search,
    ) -> None:
        super().__init__()
        self.dims, self.neighbours, self.weighs, self.search = dims, neighbours, joint, search
        self.near = Reach(dims.memory + 1, tokens_per_step=dims.tokens_per_step)
        self.far = Reach(dims.memory + 1 + steps, tokens_per_step=dims.tokens_per_step)
        self.farthest = self.far.horizon
        self.log_scale = nn.Parameter(torch.zeros(dims.heads))
        self.gate = None if joint else nn.Parameter(torch.zeros(dims.heads))
        keys, values = (None, None) if bank is None else bank
        # The file of the bank belongs to the config, as weights do not.
        self.register_buffer("bank_keys", None if keys is None else unit(keys).movedim(1, 0), persistent=False)
        self.register_buffer("bank_values", None if values is None else values.movedim(1, 0), persistent=False)
        self.indices = [FlatIndex() for _ in range(dims.kv_heads)] if search == "faiss" else []

    bank_keys: Float[Tensor, "G M K"] | None
    bank_values: Float[Tensor, "G M V"] | None

    def queries(self, query: Float[Tensor, "B T Q"]) -> Float[Tensor, "B T Q"]:
        """Of length K exp(log_scale): products divided by sqrt(K) are cosines times sqrt(K) exp(log_scale)."""
        width = self.dims.head_dim
        scale = width * self.log_scale.exp()
        return (unit(query.unflatten(-1, (-1, width))) * scale[:, None]).flatten(-2).to(query.dtype)

    def keys(self, keys: Float[Tensor, "B S E"]) -> Float[Tensor, "B S E"]:
        """Keys of length 1, values as they are."""
        k, v = keys.split_with_sizes(self.widths(), -1)
        return torch.cat([unit(k.unflatten(-1, (-1, self.dims.head_dim))).flatten(-2).to(v.dtype), v], -1)

    def widths(self) -> list[int]:
        """Numbers of all keys and of all values in a row."""
        return [self.dims.kv_heads * self.dims.head_dim, self.dims.kv_heads * self.dims.value_dim]

    def split(self, rows: Float[Tensor, "*n E"]) -> tuple[Float[Tensor, "*n G K"], Float[Tensor, "*n G V"]]:
        """Keys and values of all key-value heads."""
        k, v = (part.unflatten(-1, (self.dims.kv_heads, -1)) for part in rows.split_with_sizes(self.widths(), -1))
        return k, v

    def retrieve(self, query: Float[Tensor, "B T Q"], store: Group, call: Call) -> Float[Tensor, "B T H R"]:
        """Values that every head reads, V numbers, and the logarithm of the sum of its exponentials."""
        dims, place, rows = self.dims, store.place, store.rows.detach()
        assert not isinstance(place, At)
        p, time, groups = call.tokens.p, query.shape[1], dims.kv_heads
        distance = window_distance(place, time, rows.shape[1], rows.device)
        older = distance > self.near.limit(p)[..., None]
        seen = older & (distance <= torch.minimum(self.far.limit(p), p)[..., None])
        k, v = (part.transpose(1, 2) for part in self.split(rows))
        # One search per key-value head, for the queries of all of its heads.
        q = query.unflatten(-1, (groups, dims.heads // groups, -1)).permute(0, 2, 3, 1, 4).flatten(2, 3)
        seen = seen.repeat(1, dims.heads // groups, 1)[:, None]
        with torch.autocast(q.device.type, enabled=False):  # acting and learning have to find the same keys
            q = q.to(torch.promote_types(q.dtype, torch.float32)) * dims.head_dim**-0.5
            found = [nearest(q, k.to(q.dtype), v.to(q.dtype), seen, self.neighbours)]
            if self.bank_keys is not None and self.bank_values is not None:
                found.append(self.of_bank(q, self.bank_keys.to(q.dtype), self.bank_values.to(q.dtype)))
            out = mixture(found, self.neighbours)
        return out.unflatten(2, (-1, time)).flatten(1, 2).transpose(1, 2)

    def of_bank(
        self, q: Float[Tensor, "B G L K"], keys: Float[Tensor, "G M K"], values: Float[Tensor, "G M V"]
    ) -> "Found":
        """The nearest keys of the bank."""
        count = min(self.neighbours, keys.shape[1])
        if searches_outside(self.search, q):
            index = torch.stack([self.indices[g].search(q[:, g], keys[g], count) for g in range(len(keys))], 1)
            chosen = torch.stack([keys[g][index[:, g]] for g in range(len(keys))], 1)
            logits = (chosen * q[..., None, :]).sum(-1)
        else:
            logits, index = (q @ keys.transpose(-1, -2)).topk(count, -1)
        read = torch.stack([values[g][index[:, g]] for g in range(len(values))], 1)
        return Found(logits, torch.ones_like(logits, dtype=torch.bool), read)

    def join(self, window: Float[Tensor, "B T HV"], found: Float[Tensor, "B T H R"]) -> Float[Tensor, "B T HO"]:
        """The two outputs of every head, mixed; where nothing is found, that of the window alone."""
        out, total = found[..., :-1], found[..., -1:]
        local = window.unflatten(-1, (self.dims.heads, -1))
        if self.gate is None:
            local, own = local[..., :-1], local[..., -1:]
            share = (total - own).sigmoid()
        else:
            share = self.gate.sigmoid()[:, None] * (total > torch.finfo(total.dtype).min / 2)
        return (local + share.to(local.dtype) * (out.to(local.dtype) - local)).flatten(-2)


@dataclass(frozen=True)
class Found:
    """Keys that queries found: their logits, whether they exist, their values."""

    logits: Float[Tensor, "B G L C"]
    exists: Bool[Tensor, "B G L C"]
    values: Float[Tensor, "B G L C V"]


def nearest(
    q: Float[Tensor, "B G L K"],
    k: Float[Tensor, "B G N K"],
    v: Float[Tensor, "B G N V"],
    seen: Bool[Tensor, "B 1 L N"],
    count: int,
) -> Found:
    """The ``count`` keys with the largest products among those that are ``seen``."""
    lowest = torch.finfo(q.dtype).min
    logits, index = (q @ k.transpose(-1, -2)).masked_fill(~seen, lowest).topk(min(count, k.shape[2]), -1)
    return Found(logits, logits > lowest / 2, fetch(v, index))


def mixture(found: list[Found], count: int) -> Float[Tensor, "B G L R"]:
    """Values weighted by a softmax over the ``count`` largest logits, and the logarithm of the sum of exponentials."""
    logits, exists = torch.cat([each.logits for each in found], -1), torch.cat([each.exists for each in found], -1)
    values, lowest = torch.cat([each.values for each in found], -2), torch.finfo(logits.dtype).min
    if len(found) > 1 and logits.shape[-1] > count:
        index = logits.topk(count, -1).indices
        top: Bool[Tensor, "B G L C"] = torch.zeros_like(exists).scatter(-1, index, True)
        logits, exists = logits.masked_fill(~top, lowest), exists & top
    weights = logits.softmax(-1) * exists
    total = logits.logsumexp(-1, keepdim=True)
    total = total.masked_fill(~exists.any(-1, keepdim=True), lowest)
    return torch.cat([(weights[..., None, :] @ values).squeeze(-2), total], -1)


# Banks


def save_bank(
    path: str | os.PathLike[str], keys: Float[np.ndarray, "M G K"], values: Float[np.ndarray, "M G V"]
) -> None:
    """Write keys and values of demonstrations for the option ``bank``; ".npz" is added to a name without it.

    ``Backbone.stored_keys`` gives both; M steps, G heads of keys, K and V numbers each.

    Raises:
        ConfigError: for arrays of other shapes, and without a single step.
    """
    if keys.ndim != 3 or values.ndim != 3 or len(keys) != len(values) or not len(keys):
        raise ConfigError(f"a bank has keys [M, G, K] and values [M, G, V], got {keys.shape} and {values.shape}")
    file = Path(path)
    with replacing(file if file.suffix == ".npz" else file.with_name(f"{file.name}.npz")) as temporary:
        np.savez(temporary, keys=keys, values=values)


def load_bank(path: str, dims: Dims) -> tuple[Tensor, Tensor]:
    """Keys and values of a bank.

    Raises:
        ConfigError: the file is missing, is no bank, or is one of a layer of other sizes.
    """
    if not Path(path).is_file():
        raise ConfigError(f"memory_kind 'memorizing': bank {path!r} is not there; write it with save_bank")
    try:
        with open(path, "rb") as raw, np.load(raw, allow_pickle=False) as file:
            found = [file[name] for name in ("keys", "values")]
    except (OSError, ValueError, KeyError, EOFError, TypeError, BadZipFile) as error:  # TypeError: a single array
        raise ConfigError(
            f"memory_kind 'memorizing': {path!r} is no bank ({one_line(error)}); write it with save_bank"
        ) from error
    for name, values in zip(("keys", "values"), found, strict=True):
        if values.dtype.kind not in "fiu" or not np.isfinite(values).all():
            raise ConfigError(f"memory_kind 'memorizing': {name} of the bank {path!r} are not all finite numbers")
    keys, values = (torch.from_numpy(values.astype(np.float32)) for values in found)
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
        neighbours: keys that every query and head retrieves.
        joint: one softmax over what is retrieved and the window in place of a gate per head.
        bank: a file of keys and values of demonstrations (`save_bank`), searched beside the store; its values stay.
        search: how the bank is searched; "faiss" needs the extra `knn`.
    """

    layer: Annotated[int, Ge(0), Le(999)] | None = None
    store: Size = 1024
    neighbours: Size = 32
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

    def retriever(self, dims: Dims) -> Store:
        """Reader of the store.

        Raises:
            ConfigError: a memory of 0, which the store would belie, keys of one number, a search without the bank that
                it is for, or a bank that cannot be read.
        """
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
        return Store(dims, self.store, self.neighbours, self.joint, bank, self.search)


def build(rows: int, width: int, key_width: int, sinks: int, tokens_per_step: int, options: Options) -> RowMemory:
    """M3: keys and values as they were computed, in the layer with the store those behind the window too."""
    return RowMemory(rows, width, key_width, sinks, tokens_per_step, stores_inputs=False)


SPEC = Spec(
    id="M3",
    name="memorizing",
    axis="memory_kind",
    paper="Wu et al. 2022, arXiv 2203.08913, section 3",
    summary="One layer also reads the `neighbours` nearest of the keys behind its window, mixed in by a gate per head.",
    build=build,
    options=Options,
    example={"memory_kind": {"name": "memorizing", "store": 3, "neighbours": 2}},
    traits=Traits(
        horizon="memory + store",
        state="(memory + store in one layer) kv_heads (Dh + Dv)",
        causal_form="a token enters the store when it leaves the window, there when its segment ends; where nothing "
        "is stored yet the window stands alone; scales of products are learned as logarithms and start at sqrt(Dh)",
    ),
    offers=(Feature.STORE,),
    needs=(Feature.RETRIEVAL, Feature.PRODUCTS),
    refuses=(
        Refusal(Feature.SHARED, "one of several layers reads the store, and there is only one layer"),
        Refusal(Feature.PLACES, "keys of the store have length 1 and are compared by contents"),
        Refusal(Feature.REACH, "the store begins behind the memory, and nobody would read what lies in between"),
    ),
    formula="o = g softmax_{s in the kk nearest of the store}(c q.k_s) v_s + (1 - g) o_window with |q| = |k| = 1 and "
    "g = sigmoid(b) and c of the head",
)
