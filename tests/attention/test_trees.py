"""The tree of BP-Transformer: what its walk covers, what is in reach, what it costs."""

from typing import Any

import pytest
import torch
from torch import Tensor

from rltransformers import laws
from rltransformers.attention.layer import Attention
from rltransformers.attention.patterns.bp import BinaryPartition, slots_in_reach, spans
from rltransformers.backbone import Backbone
from tests.attention.rows import config_of
from tests.attention.twins import pointer_walk
from tests.backbone.ways_out import refusal

LONGEST = 200


def tree(backbone: Backbone) -> BinaryPartition:
    attention = backbone.get_submodule("layers.0.mixing.mixer")
    assert isinstance(attention, Attention)
    assert isinstance(attention.chooser, BinaryPartition)
    return attention.chooser


def backbone_of(neighbors: int, memory: int, **values: Any) -> Backbone:
    pattern = {"name": "bp", "neighbors": neighbors}
    return Backbone(config_of({"layers": 1, "position": "none", "memory": memory, "pattern": pattern, **values}))


@pytest.mark.parametrize("neighbors", [1, 2, 3, 4])
def test_spans_are_those_of_the_published_walk_and_tile_the_past(neighbors: int) -> None:
    slots, _ = slots_in_reach(neighbors, 4 * LONGEST)
    listed = spans(torch.arange(LONGEST)[None], neighbors, slots)
    for i in range(LONGEST):
        level, first, last = (each[0, i][listed[1][0, i] >= 0] for each in listed)
        nodes = list(zip(level.tolist(), (first // 2**level).tolist(), strict=True))
        assert nodes == pointer_walk(i, neighbors)
        assert torch.equal(last - first + 1, 2**level)
        leaves = [leaf for a, b in zip(first.tolist(), last.tolist(), strict=True) for leaf in range(a, b + 1)]
        assert sorted(leaves) == list(range(i))


@pytest.mark.parametrize("neighbors", [1, 2, 3, 5])
def test_every_slot_and_level_of_a_tree_is_seen_by_some_token_and_no_other_one_is(neighbors: int) -> None:
    p = torch.arange(600)[None]
    for horizon in range(40):
        slots, levels = slots_in_reach(neighbors, horizon)
        assert len(slots) < 11
        level, first, _ = spans(p, neighbors, (neighbors,) * 11)
        visible = (first >= 0) & (p[..., None] - first <= horizon)
        by_slot = visible[0].any(0).unflatten(0, (11, neighbors))
        assert [int(each) for each in by_slot.sum(1) if each] == [count for count in slots if count]
        assert int(torch.where(visible, level, 0).max()) == levels


def test_with_as_many_neighbors_as_tokens_there_are_no_nodes() -> None:
    for memory in (0, 5):
        chooser = tree(backbone_of(5, memory))
        assert chooser.node_query is None
        assert chooser.slots == (memory,)
        assert backbone_of(5, memory)(torch.randn(2, 9, 15))[0].isfinite().all()
    assert tree(backbone_of(5, 6)).node_query is None  # a node of two leaves needs a seventh token
    assert tree(backbone_of(5, 7)).node_query is not None


def cost(backbone: Backbone, time: int) -> Tensor:
    """FLOPs of a forward pass and bytes it keeps."""
    x = torch.randn(1, time, backbone.width)
    return torch.tensor(laws.costs.cost(lambda: backbone(x)[0]), dtype=torch.float64)


def test_work_and_kept_memory_grow_as_the_logarithm_of_the_memory() -> None:
    """Edges of a token grow by a few for every doubling of the memory, and each level of nodes reads every row once."""
    time = 512
    memories = (16, 64, 256)
    costs = [cost(backbone_of(4, memory), time) - cost(backbone_of(4, 0), time) for memory in memories]
    full = [cost(backbone_of(4, memory, pattern="full"), time) for memory in memories]
    # From 64 to 256 nearly as much is added as from 16 to 64; full attention adds three times as much.
    assert (costs[2] - costs[1] < 1.3 * (costs[1] - costs[0])).all()
    assert (costs[2] < 2 * costs[1]).all()
    assert (full[2] - full[1] > 3 * (full[1] - full[0])).all()


def test_a_head_has_no_tree_of_its_own() -> None:
    pattern = [[{"name": "bp", "neighbors": 2}, "full", "full", "full"]]
    assert "its tree serves all heads alike" in refusal({"pattern": pattern})
