"""BP-Transformer: near tokens one by one, far ones as nodes of a binary tree over the episode (Ye et al. 2019).

Axes: B batch, H heads, T tokens, S key rows, N chosen nodes, n nodes of a level, c leaves of a node, K head width,
V value width. Node m of level l covers the positions m 2^l ... (m + 1) 2^l - 1 of the episode, so neither a reset nor
the way a stream is cut into calls moves a node.
"""

from dataclasses import dataclass

import torch
from jaxtyping import Bool, Float, Int
from torch import Tensor, nn

from rltransformers.attention.reach import Reach
from rltransformers.attention.roles import Chooser, Heads, Selected
from rltransformers.core.spec import Feature, Refusal, Size, Spec, Traits
from rltransformers.functional.call import Call
from rltransformers.functional.keys import At, oldest_first, slots_of
from rltransformers.functional.windows import descending, fetch, positions_behind
from rltransformers.mixers.interface import Dims


@dataclass(frozen=True)
class Options:
    """Nodes of each level that a token looks at: leaves first, then nodes that cover twice as much every time."""

    neighbors: Size = 4


def spans(
    p: Int[Tensor, "B T"], neighbors: int, slots: tuple[int, ...]
) -> tuple[Int[Tensor, "B T N"], Int[Tensor, "B T N"], Int[Tensor, "B T N"]]:
    """Leaves and nodes that tokens at ``p`` see besides themselves: level (0: a leaf), first and last position.

    They are found on a walk to the left, one level up after every ``neighbors`` nodes. Where it goes up between two
    siblings, the parent would cover the right one, which was taken before, so the left one stands in its place. With
    all slots the spans are disjoint and tile the positions 0 ... p - 1. The first position is negative where there is
    no such node.

    Args:
        slots: for each level of the walk how many of the ``neighbors`` nodes are listed.
    """
    node, sibling = p - 1, torch.zeros_like(p, dtype=torch.bool)
    level, first, last = [], [], []
    for height, count in enumerate(slots):
        slot = torch.arange(count, device=p.device)
        begin = (node[..., None] - slot) * 2**height
        half = sibling[..., None] & (slot == 0)
        level.append(height - half.long())
        first.append(begin)
        last.append(begin + torch.where(half, 2**height // 2, 2**height) - 1)
        node = node - neighbors
        sibling = node % 2 == 0
        node = node // 2
    return torch.cat(level, -1), torch.cat(first, -1), torch.cat(last, -1)


def slots_in_reach(neighbors: int, horizon: int) -> tuple[tuple[int, ...], int]:
    """How many slots of each level of the walk some token sees wholly, and the highest level of a node it sees.

    The nearest that the walk can go up to a level is by taking a left sibling first at every level below.
    """
    counts, height, levels, covered = [min(neighbors, horizon)], 0, 0, neighbors
    while covered + 2**height <= horizon:
        height += 1
        half = 2 ** (height - 1)
        counts.append(min(neighbors, 1 + (horizon - covered - half) // 2**height))
        levels += covered + 2**height <= horizon
        covered += half + (neighbors - 1) * 2**height
    return tuple(counts), levels


def complete_nodes(p: Int[Tensor, "B S"], level: int) -> tuple[Int[Tensor, "B n"], Int[Tensor, "B S"]]:
    """The last rows of the nodes of a level whose leaves are all there, and which of the nodes ends at a row.

    Nodes share no rows, so that there are at most n = S / 2^level of them. Surplus nodes end at row 0, and the rows
    where no node ends name any.
    """
    rows, size = p.shape[1], 2**level
    row, most = torch.arange(rows, device=p.device), rows // size
    ends: Bool[Tensor, "B S"] = ((p + 1) % size == 0) & (p + 1 >= size) & (row + 1 >= size)
    order = ends.cumsum(1) - 1
    slot = torch.where(ends, order, most)
    last = p.new_zeros(p.shape[0], most + 1).scatter(1, slot, row.expand_as(p))
    return last[:, :most], order.clamp(0, max(0, most - 1))


def node_means(
    leaves: Float[Tensor, "B H S X"], query: Float[Tensor, "H K"], last: Int[Tensor, "B n"], level: int
) -> Float[Tensor, "B H n X"]:
    """Means of the keys and values (side by side) of the leaves, weighted by what a query gives to their keys."""
    back = descending(2**level, last.device)
    own = fetch(leaves, (last[..., None] - back).clamp(min=0)[:, None])
    width = query.shape[-1]
    logits = own[..., :width] @ (query * width**-0.5)[:, None, :, None]
    return (logits.softmax(-2).transpose(-1, -2).to(own.dtype) @ own).squeeze(-2).to(own.dtype)


class BinaryPartition(Chooser):
    """Every token sees itself, ``neighbors`` leaves, and as many nodes of each level of the tree, all in one softmax.

    Key and value of a node are means of those of its leaves, weighted by a softmax of a query that every head learns
    for every level. The n-th edge of a token has a vector that is added to its key, as in Shaw et al. 2018. The memory
    bounds the tree.
    """

    def __init__(self, dims: Dims, options: Options) -> None:
        super().__init__()
        self.neighbors = options.neighbors
        self.reach = Reach(dims.memory + 1, tokens_per_step=dims.tokens_per_step)
        self.slots, self.levels = slots_in_reach(self.neighbors, self.reach.horizon)
        self.node_query = nn.Parameter(torch.zeros(self.levels, dims.heads, dims.head_dim)) if self.levels else None
        self.edges = nn.Parameter(torch.zeros(1 + sum(self.slots), dims.head_dim))

    def choose(
        self, q: Float[Tensor, "B H T K"], window: Heads, state: dict[str, Tensor], call: Call
    ) -> tuple[Selected, dict[str, Tensor]]:
        """The token and its leaves in the window, and the nodes beside it."""
        p, rows = call.tokens.p, window.k.shape[2]
        own = torch.arange(rows - p.shape[1], rows, device=p.device)[:, None].expand(*p.shape, 1)
        level, first, last = spans(p, self.neighbors, self.slots)
        row = (own - p[..., None] + last).clamp(min=0)
        near = self.slots[0]
        shift = q @ (self.edges * q.shape[-1] ** -0.5).T
        index = slots_of(torch.cat([own, row[..., :near]], -1), window.place, rows)
        leaves = torch.cat([p[..., None], first[..., :near]], -1)
        at = self.place(p, leaves, leaves)
        others: tuple[Heads, ...] = ()
        if len(self.slots) > 1:
            k, v = self.nodes(window, level[..., near:], row[..., near:], call)
            far = self.place(p, first[..., near:], last[..., near:])
            others = (Heads(k, v, far, shift[..., 1 + near :]),)
        return Selected(index[:, None], at, shift[..., : 1 + near], others), state

    def place(self, p: Int[Tensor, "B T"], first: Int[Tensor, "B T N"], last: Int[Tensor, "B T N"]) -> At:
        """Spans stand where their last leaf stands, and are seen where all of their leaves are in reach."""
        assert self.reach is not None
        here = p[..., None]
        seen = (first >= 0) & (here - first <= self.reach.limit(p)[..., None])
        return At(here - last, seen, farthest=self.reach.horizon)

    def nodes(
        self, window: Heads, level: Int[Tensor, "B T N"], row: Int[Tensor, "B T N"], call: Call
    ) -> tuple[Float[Tensor, "B H T N K"], Float[Tensor, "B H T N V"]]:
        """Keys and values of the nodes of a ``level`` that end at a ``row`` in order."""
        leaves = oldest_first(torch.cat([window.k, window.v], -1), window.place, 2)
        rows, tokens = leaves.shape[2], call.tokens
        p = torch.cat([positions_behind(tokens.before, rows - tokens.p.shape[1]), tokens.p], 1)
        table, ends = [leaves], [torch.arange(rows, device=row.device).expand_as(p)]
        for height in range(1, self.levels + 1):
            last, order = complete_nodes(p, height)
            assert self.node_query is not None
            ends.append(order + sum(part.shape[2] for part in table))
            table.append(node_means(leaves, self.node_query[height - 1], last, height))
        # Nodes that no token sees wholly are not made; some other row stands for them.
        end = (level.clamp(max=self.levels) * rows + row).flatten(1)
        nodes = torch.cat(table, 2)
        index = torch.cat(ends, 1).gather(1, end).clamp(max=nodes.shape[2] - 1).unflatten(1, row.shape[1:])
        found = fetch(nodes, index[:, None])
        k, v = found.split_with_sizes([window.k.shape[-1], window.v.shape[-1]], -1)
        return k, v


SPEC = Spec(
    id="A15", name="bp", axis="pattern", paper="Ye et al. 2019, arXiv 1911.04070",
    summary="Every token sees `neighbors` tokens, then as many nodes of each level of a binary tree over the episode.",
    build=BinaryPartition, options=Options, example={"pattern": {"name": "bp", "neighbors": 2}},
    traits=Traits(
        family="SEL",
        horizon="memory",
        state="memory D; a step makes the nodes anew from its keys, memory log(memory)",
        causal_form="left context only; a learned query makes a node from the keys and values of its leaves, "
                    "there it is a token with layers of its own; a node is seen while the memory holds all of its"
                    " leaves",
    ),
    offers=(Feature.REACH, Feature.CHOICE), needs=(Feature.PATTERNS, Feature.PRODUCTS),
    refuses=(Refusal(Feature.HEAD_PATTERNS, "its tree serves all heads alike"),),
    formula="s, then `neighbors` nodes of every level of the tree to the left of t; spans tile 0 ... p_t - 1",
)  # fmt: skip
