"""A store of older keys: every head retrieves the nearest of them (Wu et al. 2022, arXiv 2203.08913).

Axes: B batch, T tokens, N key rows in view, H heads, G key-value heads, K head width, V value width, C retrieved keys,
M rows of a bank, L queries of a key-value head, Q, R and O numbers of a query row, and that a head retrieves and gives.
"""

from functools import partial

import torch
from jaxtyping import Float
from torch import Tensor, nn

from rltransformers.attention.reach import Reach, window_distance
from rltransformers.functional.call import Call
from rltransformers.functional.keys import Ring, Rows
from rltransformers.functional.modules import unit_length, wide
from rltransformers.functional.nearest import FlatIndex, Search, searches_outside
from rltransformers.functional.windows import fetch
from rltransformers.mixers.interface import Dims

unit = partial(unit_length, eps=1e-12)


class Store(nn.Module):
    """For every head the ``neighbors`` keys behind the window with the largest products, and a softmax over them.

    Queries and keys of the whole layer have length 1; every head learns a scale, which starts where products have the
    spread that they have in other layers. What is stored gets no gradient and has no position.

    Args:
        steps: that the store holds.
        joint: one softmax over what is retrieved and the window; otherwise every head learns how to mix the outputs of
            two.
        bank: further keys [M, G, K] and values [M, G, V], the same for all streams.
        search: how the bank is searched.

    Attributes:
        farthest: largest distance in tokens of a row that is read.
        weighs: True if it needs the logarithm of the sum of exponentials of every head's logits in the window.
    """

    def __init__(
        self, dims: Dims, steps: int, neighbors: int, joint: bool, bank: tuple[Tensor, Tensor] | None, search: Search
    ) -> None:
        super().__init__()
        self.dims, self.neighbors, self.weighs, self.search = dims, neighbors, joint, search
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
        """Scale queries to length K exp(log_scale): products over sqrt(K) are cosines times sqrt(K) exp(log_scale)."""
        width = self.dims.head_dim
        scale = width * self.log_scale.exp()
        return (unit(query.unflatten(-1, (-1, width))) * scale[:, None]).flatten(-2).to(query.dtype)

    def keys(self, k: Float[Tensor, "B S K"]) -> Float[Tensor, "B S K"]:
        """Scale the keys of all heads to length 1."""
        return unit(k.unflatten(-1, (-1, self.dims.head_dim))).flatten(-2).to(k.dtype)

    def retrieve(
        self,
        query: Float[Tensor, "B T Q"],
        k: Float[Tensor, "B N G K"],
        v: Float[Tensor, "B N G V"],
        place: Rows | Ring,
        call: Call,
    ) -> Float[Tensor, "B T H R"]:
        """Values that every head reads, V numbers, and the logarithm of the sum of its exponentials.

        Args:
            k, v: of the rows of store and window together, which get no gradient.
            place: of these rows.
        """
        dims, p, time, groups = self.dims, call.tokens.p, query.shape[1], self.dims.kv_heads
        distance = window_distance(place, time, k.shape[1], k.device)
        older = distance > self.near.limit(p)[..., None]
        seen = older & (distance <= torch.minimum(self.far.limit(p), p)[..., None])
        k, v = k.detach().transpose(1, 2), v.detach().transpose(1, 2)
        # One search per key-value head, for the queries of all of its heads.
        q = query.unflatten(-1, (groups, dims.heads // groups, -1)).permute(0, 2, 3, 1, 4).flatten(2, 3)
        seen = seen.repeat(1, dims.heads // groups, 1)[:, None]
        with torch.autocast(q.device.type, enabled=False):  # acting and learning have to find the same keys
            q = wide(q) * dims.head_dim**-0.5
            logits = (q @ k.to(q.dtype).transpose(-1, -2)).masked_fill(~seen, torch.finfo(q.dtype).min)
            logits, index = logits.topk(min(self.neighbors, k.shape[2]), -1)
            candidates = [(logits, fetch(v.to(q.dtype), index))]
            if self.bank_keys is not None and self.bank_values is not None:
                candidates.append(self.of_bank(q, self.bank_keys.to(q.dtype), self.bank_values.to(q.dtype)))
            out = mixture(candidates, self.neighbors)
        return out.unflatten(2, (-1, time)).flatten(1, 2).transpose(1, 2)

    def of_bank(
        self, q: Float[Tensor, "B G L K"], keys: Float[Tensor, "G M K"], values: Float[Tensor, "G M V"]
    ) -> tuple[Float[Tensor, "B G L C"], Float[Tensor, "B G L C V"]]:
        """Logits and values of the nearest keys of the bank."""
        count = min(self.neighbors, keys.shape[1])
        if searches_outside(self.search, q):
            index = torch.stack([self.indices[g].search(q[:, g], keys[g], count) for g in range(len(keys))], 1)
            chosen = torch.stack([keys[g][index[:, g]] for g in range(len(keys))], 1)
            logits = (chosen * q[..., None, :]).sum(-1)
        else:
            logits, index = (q @ keys.transpose(-1, -2)).topk(count, -1)
        return logits, torch.stack([values[g][index[:, g]] for g in range(len(values))], 1)

    def join(self, window: Float[Tensor, "B T HV"], retrieved: Float[Tensor, "B T H R"]) -> Float[Tensor, "B T HO"]:
        """Mix the two outputs of every head; where there is none, keep that of the window.

        Args:
            window: outputs of all heads side by side; where the store ``weighs``, each ends with its log-sum.
        """
        out, total = retrieved[..., :-1], retrieved[..., -1:]
        local = window.unflatten(-1, (self.dims.heads, -1))
        if self.gate is None:
            local, own = local[..., :-1], local[..., -1:]
            share = (total - own).sigmoid()
        else:
            share = self.gate.sigmoid()[:, None] * (total > torch.finfo(total.dtype).min / 2)
        return (local + share.to(local.dtype) * (out.to(local.dtype) - local)).flatten(-2)


def mixture(candidates: list[tuple[Tensor, Tensor]], count: int) -> Float[Tensor, "B G L R"]:
    """Values weighted by a softmax over the ``count`` largest logits, and the logarithm of the sum of exponentials.

    Args:
        candidates: logits [B, G, L, C], the lowest finite number where there is no key, and values [B, G, L, C, V].
    """
    logits, values = torch.cat([part[0] for part in candidates], -1), torch.cat([part[1] for part in candidates], -2)
    lowest = torch.finfo(logits.dtype).min
    if len(candidates) > 1 and logits.shape[-1] > count:
        index = logits.topk(count, -1).indices
        others = torch.ones_like(logits, dtype=torch.bool).scatter(-1, index, False)
        logits = logits.masked_fill(others, lowest)
    exists = logits > lowest / 2
    weights = logits.softmax(-1) * exists
    total = logits.logsumexp(-1, keepdim=True)
    total = total.masked_fill(~exists.any(-1, keepdim=True), lowest)
    return torch.cat([(weights[..., None, :] @ values).squeeze(-2), total], -1)
