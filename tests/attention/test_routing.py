"""Facts about routing attention that the contract does not state: its limit, its clusters, its cost."""

from collections.abc import Iterator
from typing import Any

import pytest
import torch
from torch import Tensor
from torch.nn import functional as F
from torch.utils._python_dispatch import TorchDispatchMode
from torch.utils._pytree import tree_leaves
from torch.utils.flop_counter import FlopCounterMode

from rltransformers.attention.layer import Attention
from rltransformers.attention.reach import window_distance
from rltransformers.attention.selections.interface import newest_by_distance, newest_in_order
from rltransformers.attention.selections.routing import Routing
from rltransformers.backbone import Backbone, Record
from rltransformers.core.errors import ConfigError
from rltransformers.functional.keys import Rows
from rltransformers.laws import EXACT, perturbed
from rltransformers.laws.costs import UNCOUNTED
from tests.attention.rows import config_of


@pytest.fixture(autouse=True)
def double() -> Iterator[None]:
    torch.set_default_dtype(torch.float64)
    yield
    torch.set_default_dtype(torch.float32)


def routed(clusters: int = 3, window: int = 4, decay: float = 0.75, **overrides: Any) -> Backbone:
    """One layer whose skip path is open."""
    selection = {"name": "routing", "clusters": clusters, "window": window, "decay": decay}
    plain = {"layers": 1, "residual": "pre_ln", "position": "none", "memory": 30}
    return perturbed(config_of({**plain, "selection": selection, **overrides}))


def mixer_of(backbone: Backbone) -> Attention:
    mixer = backbone.get_submodule("layers.0.mixing.mixer")
    assert isinstance(mixer, Attention)
    return mixer


def chooser_of(backbone: Backbone) -> Routing:
    chooser = mixer_of(backbone).chooser
    assert isinstance(chooser, Routing)
    return chooser


def normalized_heads(backbone: Backbone, x: Tensor) -> tuple[Tensor, Tensor, Tensor]:
    """Normalized queries and keys, and values, of a backbone of one layer: [B, H, T, K] each."""
    norm, project = (
        backbone.get_submodule(f"layers.0.{name}") for name in ("join_mixing.norm", "mixing.mixer.project")
    )
    q, k, v = (each.unflatten(-1, (3, 5)).transpose(1, 2) for each in project(norm(x)).chunk(3, -1))
    return F.layer_norm(q, (5,)), F.layer_norm(k, (5,)), v


def test_one_cluster_is_attention_of_normalized_queries_and_keys() -> None:
    backbone = routed(clusters=1, window=31)
    x = torch.randn(2, 11, 15)
    for name in ("weight", "bias"):
        backbone.get_parameter(f"layers.0.ff.out.{name}").data.zero_()
    out = F.scaled_dot_product_attention(*normalized_heads(backbone, x), is_causal=True).transpose(1, 2).flatten(2)
    torch.testing.assert_close(backbone(x)[0] - x, mixer_of(backbone).output(out), rtol=EXACT, atol=EXACT)


def test_both_ways_to_find_keys_give_the_newest_of_the_cluster() -> None:
    generator = torch.Generator().manual_seed(0)
    rows, time, count = 29, 17, 4
    of_keys = torch.randint(5, (2, 3, rows), generator=generator)
    of_queries = torch.randint(5, (2, 3, time), generator=generator)
    sorted_way = newest_in_order(of_queries, of_keys, count)
    fixed_way = newest_by_distance(of_queries, of_keys, window_distance(Rows(), time, rows, of_keys.device), count)
    for b, h, t in torch.cartesian_prod(torch.arange(2), torch.arange(3), torch.arange(time)).tolist():
        same = [s for s in range(rows - time + t + 1) if of_keys[b, h, s] == of_queries[b, h, t]]
        for index, exists in (sorted_way, fixed_way):
            assert index[b, h, t][exists[b, h, t]].tolist() == same[::-1][:count]


class Numbers(TorchDispatchMode):
    """Counts the numbers that operations give, for what is no product of matrices."""

    count = 0

    def __torch_dispatch__(self, function: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        out = function(*args, **(kwargs or {}))
        self.count += sum(each.numel() for each in tree_leaves(out) if isinstance(each, Tensor))
        return out


def work(memory: int, time: int, window: int | None = None) -> int:
    """FLOPs of products of matrices, and numbers of everything else, of one pass."""
    values: dict[str, Any] = {"layers": 1, "position": "none", "memory": memory}
    if window is not None:
        values["selection"] = {"name": "routing", "clusters": 3, "window": window}
    backbone = perturbed(config_of(values))
    with FlopCounterMode(display=False, custom_mapping=UNCOUNTED) as flops, Numbers() as numbers:
        backbone(torch.randn(1, time, 15))
    return flops.get_total_flops() + numbers.count


def test_work_grows_with_tokens_and_keys_of_a_query_and_not_with_the_memory() -> None:
    assert work(120, 400) > 1.2 * work(60, 400)
    assert work(120, 400, window=4) < 1.01 * work(60, 400, window=4)  # the state after the call has more rows
    assert work(60, 1600, window=4) < 4.1 * work(60, 400, window=4)
    steps = [work(60, 400, window) for window in (4, 8, 12)]
    assert steps[2] - steps[1] == steps[1] - steps[0] > 0


def test_every_valid_query_and_key_lies_in_one_cluster_and_is_counted_once() -> None:
    backbone = routed().train()
    x, valid = torch.randn(2, 11, 15), torch.rand(2, 11) < 0.7
    _, state = backbone(x, None, valid=valid)
    backbone(x, state, valid=valid)  # what is remembered of the first call is not counted again
    assert chooser_of(backbone).counts.sum(1).tolist() == [2 * 2 * int(valid.sum())] * 3


def test_centroids_move_in_maintain_only_and_by_what_was_seen_in_training() -> None:
    backbone = routed(clusters=9)
    chooser, x = chooser_of(backbone), torch.randn(1, 4, 15)
    before = chooser.centroids.clone()
    _, state = backbone(torch.randn(1, 6, 15))
    with torch.no_grad():
        backbone.train()(x, record=Record())
    backbone.maintain()
    assert torch.equal(chooser.centroids, before)
    backbone(x, state)
    assert torch.equal(chooser.centroids, before)
    backbone.maintain()
    q, k, _ = normalized_heads(backbone, x)
    seen, empty = torch.cat([q, k], 2)[0], 0
    for head in range(3):
        nearest = [int((before[head] @ row).argmax()) for row in seen[head]]
        for cluster in range(9):
            members = [row for row, own in zip(seen[head], nearest, strict=True) if own == cluster]
            expected = before[head, cluster]
            if members:
                expected = F.layer_norm(0.75 * expected + 0.25 * sum(members[1:], members[0]) / len(members), (5,))
            torch.testing.assert_close(chooser.centroids[head, cluster], expected, rtol=EXACT, atol=EXACT)
            empty += not members
    assert 0 < empty < 27
    after = chooser.centroids.clone()
    backbone.maintain()
    assert torch.equal(chooser.centroids, after)


def test_the_commitment_loss_is_zero_on_centroids_and_trains_none() -> None:
    backbone, x = routed(clusters=2, losses={"commitment": 1.0}), torch.randn(1, 1, 15)
    chooser = chooser_of(backbone)
    q, k, _ = normalized_heads(backbone, x)
    losses = []
    for centroids in (torch.zeros(3, 2, 5), torch.cat([q, k], 2)[0].detach()):
        chooser.centroids.copy_(centroids)
        record = Record()
        backbone(x, record=record)
        losses.append(record.losses["commitment"])
    length = (q.square().sum(-1) + k.square().sum(-1)).mean() / 2
    torch.testing.assert_close(losses[0], length, rtol=EXACT, atol=EXACT)
    torch.testing.assert_close(losses[1], torch.zeros(()), rtol=0, atol=EXACT)
    assert not chooser.centroids.requires_grad
    record = Record()
    backbone(x + 1, record=record)
    (gradient,) = torch.autograd.grad(record.losses["commitment"], mixer_of(backbone).project.weight)
    assert gradient[:30].ne(0).any() and gradient[30:].eq(0).all()  # queries and keys; not values


def test_a_query_without_keys_in_its_cluster_reads_nothing() -> None:
    backbone, x = routed(clusters=2), torch.randn(1, 1, 15)
    q, k, _ = normalized_heads(backbone, x)
    chooser_of(backbone).centroids.copy_(torch.cat([q, k], 2)[0].detach())
    for name in ("weight", "bias"):
        backbone.get_parameter(f"layers.0.ff.out.{name}").data.zero_()
    assert torch.equal(backbone(x)[0], x)


def test_heads_of_one_number_are_refused() -> None:
    with pytest.raises(ConfigError, match="head_dim of 1 leaves only zeros; set head_dim to at least 2"):
        config_of({"position": "none", "selection": "routing", "head_dim": 1})
