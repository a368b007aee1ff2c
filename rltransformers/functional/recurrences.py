"""Sums over the past of an episode, in chunks: what linear attention and running means have in common.

Axes: B batch, H heads, T tokens, N chunks of C tokens, F features of a key, V numbers of a value.
"""

import torch
from jaxtyping import Bool, Float, Int
from torch import Tensor
from torch.nn import functional as F

from rltransformers.functional.windows import Tokens

# Forward and backward of 1024 tokens on one CPU core (torch 2.13, widths 64 to 256, 4 and 8 heads) are fastest with 32
# or 64: smaller chunks carry more states, larger ones multiply more of the triangle that the mask throws away.
CHUNK = 64


def causal_sums(
    query: Float[Tensor, "B H T F"],
    key: Float[Tensor, "B H T F"],
    value: Float[Tensor, "B H T V"],
    state: Float[Tensor, "B H F V"],
    tokens: Tokens,
    chunk: int = CHUNK,
) -> tuple[Float[Tensor, "B H T V"], Float[Tensor, "B H F V"]]:
    """``query_t @ S_t`` with S_t the sum of ``key_a value_a^T`` over the episode up to t; S at the last valid token.

    ``state`` is S before the call. Sums are taken in float32 at least, whatever autocast says. Work and saved memory
    grow linearly in T: inside a chunk the masked product of all pairs, between chunks the state
    (Katharopoulos et al. 2020, arXiv 2006.16236, equations 10-12, in chunks as in Hua et al. 2022, arXiv 2202.10447).
    """
    kept = torch.promote_types(torch.promote_types(value.dtype, state.dtype), torch.float32)
    time = value.shape[2]
    count = -(-time // chunk)
    size = -(-time // count)
    with torch.autocast(value.device.type, enabled=False):
        q, k, v = (_in_chunks(each.to(kept), count, size) for each in (query, key, value))
        borders = _Borders.of(tokens, count, size)
        inside = (q @ k.transpose(-1, -2)).masked_fill(~borders.visible, 0.0) @ v
        added = k.masked_fill(~borders.selected, 0.0).transpose(-1, -2) @ v
        starts, state = _carry(state.to(kept), added, borders.keep)
        before = (q @ starts).masked_fill(~borders.carried, 0.0)
    return (inside + before).flatten(2, 3)[:, :, :time], state


def kernel_attention(
    query: Float[Tensor, "B H T F"],
    key: Float[Tensor, "B G T F"],
    value: Float[Tensor, "B G T V"],
    state: dict[str, Tensor],
    tokens: Tokens,
    eps: float = 0.0,
) -> tuple[Float[Tensor, "B H T V"], dict[str, Tensor]]:
    """Values weighted by ``query . key`` of non-negative features, divided by the sum of the weights plus ``eps``.

    Key and value heads are shared by ``H / G`` query heads each. State: "sum" [B, H, F, V] and "norm" [B, H, F].
    """
    share = query.shape[1] // key.shape[1]
    if share > 1:
        key, value = key.repeat_interleave(share, 1), value.repeat_interleave(share, 1)
    counted = torch.cat([value, torch.ones_like(value[..., :1])], -1)  # the last column sums the weights
    before = torch.cat([state["sum"], state["norm"][..., None]], -1)
    out, after = causal_sums(query, key, counted, before, tokens)
    mixed = out[..., :-1] / (out[..., -1:] + eps)
    return mixed, {"sum": after[..., :-1], "norm": after[..., -1]}


class _Borders:
    """Where episodes, padding and chunks end; every mask has its axes at the places of [B, H, N, C, ...]."""

    visible: Bool[Tensor, "B 1 N C C"]
    carried: Bool[Tensor, "B 1 N C 1"]
    selected: Bool[Tensor, "B 1 N C 1"]
    keep: Bool[Tensor, "B N"]

    def __init__(
        self, p: Int[Tensor, "B N C"], live: Bool[Tensor, "B N C"], end: Int[Tensor, "B N 1"], inside: Int[Tensor, " C"]
    ) -> None:
        """``end`` is the last valid token inside each chunk, negative where there is none."""
        age = inside[:, None] - inside
        carried = live | (p > inside)
        last = end.clamp(min=0)
        self.visible = ((age >= 0) & (age <= p[..., None]))[:, None]
        self.carried = carried[:, None, ..., None]
        self.selected = ((inside <= end) & (end - inside <= p.gather(2, last)))[:, None, ..., None]
        self.keep = (carried.gather(2, last) | (end < 0)).squeeze(2)

    @staticmethod
    def of(tokens: Tokens, count: int, size: int) -> "_Borders":
        """The borders of ``count`` chunks of ``size`` tokens."""
        device = tokens.p.device
        batch, time = tokens.p.shape
        missing = count * size - time
        p = F.pad(tokens.p, (0, missing)).unflatten(1, (count, size))
        live = F.pad(tokens.live, (0, missing)).unflatten(1, (count, size))
        length = tokens.p.new_full((batch,), time) if tokens.length is None else tokens.length
        end = (length[:, None] - size * torch.arange(count, device=device)).clamp(max=size) - 1
        return _Borders(p, live, end[..., None], torch.arange(size, device=device))


def _in_chunks(rows: Tensor, count: int, size: int) -> Tensor:
    """[B, H, T, X] to [B, H, N, C, X], zeros at the end."""
    return F.pad(rows, (0, 0, 0, count * size - rows.shape[2])).unflatten(2, (count, size))


def _carry(
    state: Float[Tensor, "B H F V"], added: Float[Tensor, "B H N F V"], keep: Bool[Tensor, "B N"]
) -> tuple[Float[Tensor, "B H N F V"], Float[Tensor, "B H F V"]]:
    """The state in front of every chunk, and the one after the last."""
    starts = []
    for index, update in enumerate(added.unbind(2)):
        starts.append(state)
        state = state.masked_fill(~keep[:, index, None, None, None], 0.0) + update
    return torch.stack(starts, 2), state
