"""Auxiliary losses of what attention computes: by hand, against loops over heads, and their gradients."""

from collections.abc import Iterator
from typing import Any

import pytest
import torch
from torch import Tensor

from rltransformers.attention import engines, reach
from rltransformers.attention.engines import dense
from rltransformers.attention.layer import Attention
from rltransformers.attention.objectives.disagreement import agreement, overlap
from rltransformers.attention.objectives.guidance import squared_distance
from rltransformers.attention.reach import beside
from rltransformers.backbone import PLAIN, Backbone, BackboneConfig, Record
from rltransformers.laws import perturbed

SIZES: dict[str, Any] = {"width": 12, "heads": 3, "layers": 2, "memory": 5, "ff_width": 7, "position": "trxl"}
ROUTING = {"name": "routing", "clusters": 2, "window": 3}


@pytest.fixture(autouse=True)
def double(monkeypatch: pytest.MonkeyPatch) -> Iterator[None]:
    monkeypatch.setattr(reach, "SMALLEST_BLOCK", 4)
    torch.set_default_dtype(torch.float64)
    yield
    torch.set_default_dtype(torch.float32)


def backbone_of(**values: Any) -> Backbone:
    return perturbed(BackboneConfig(**{**PLAIN, **SIZES, **values}))


def test_identical_heads_agree_in_everything_and_orthogonal_ones_with_themselves_only() -> None:
    same = torch.randn(2, 1, 5, 7).expand(2, 3, 5, 7)
    torch.testing.assert_close(agreement(same), torch.ones(2, 5))
    apart = torch.eye(7)[:3].view(1, 3, 1, 7) * 5
    torch.testing.assert_close(agreement(apart), torch.full((1, 1), 1 / 3))
    one_hot = torch.eye(7)[:3].view(1, 3, 1, 7)
    torch.testing.assert_close(overlap(one_hot), torch.full((1, 1), 1 / 3))  # disjoint: the diagonal alone
    torch.testing.assert_close(overlap(one_hot[:, :1].expand(1, 3, 1, 7)), torch.ones(1, 1))


def test_weights_that_are_the_pattern_cost_nothing_and_rows_without_a_target_do_not_count() -> None:
    distance = (torch.arange(4)[:, None] - torch.arange(4)).view(1, 1, 4, 4)
    visible, p = distance >= 0, torch.arange(4)[None]
    previous = torch.diag(torch.ones(3), -1).view(1, 1, 4, 4)
    found = squared_distance(previous, distance, visible, torch.ones_like(p))
    assert found.loss[0, 0, 1:].eq(0).all()
    assert found.counts.tolist() == [[[False, True, True, True]]]
    uniform = torch.full((1, 1, 4, 4), 0.25)
    found = squared_distance(uniform, distance, visible, p)  # the first token: 3/4 ^ 2 + 3 * 1/4 ^ 2
    torch.testing.assert_close(found.loss, torch.full((1, 1, 4), 0.75))
    assert found.counts.all()


def watched(backbone: Backbone, x: Tensor, reset: Tensor, monkeypatch: pytest.MonkeyPatch) -> list[dict[str, Tensor]]:
    """Weights [B, H, T, S] with distances, outputs and values of every layer, of a call that is not cut."""
    seen: list[dict[str, Tensor]] = []

    def spy(plan: Any, query: Any, groups: Any, scores: Any, listed: Any, view: Any, training: bool) -> Any:
        found = dense(plan, query, groups, scores, listed, view, training)
        distance = beside(view.columns.distances()).expand_as(found[2])
        v = groups[-1].v[:, :, -query.shape[2] :] if groups[-1].v.dim() == 4 else torch.zeros(0)
        visible = view.columns.visible.expand_as(found[2])
        seen.append({"weights": found[2], "distance": distance, "seen": visible, "outputs": found[0], "values": v})
        return found

    monkeypatch.setattr(engines, "dense", spy)
    monkeypatch.setattr(reach, "SMALLEST_BLOCK", 1000)
    with torch.no_grad():
        backbone(x, None, reset, record=Record(weights=True))
    return seen


def by_hand(seen: dict[str, Tensor], name: str, options: dict[str, Any], p: Tensor, valid: Tensor) -> Tensor:
    """One layer, pair of heads by pair of heads, row by row."""
    heads, total, count = seen["weights"].shape[1], torch.zeros(()), 0
    for b, t in valid.nonzero().tolist():
        if name == "pattern":
            back = {"previous": 1, "self": 0, "first": int(p[b, t])}[options["target"]]
            for h in range(max(1, round(options["share"] * heads))):
                goal = (seen["distance"][b, h, t] == back) & seen["seen"][b, h, t]
                if goal.any():
                    total = total + (seen["weights"][b, h, t] - goal.double() / goal.sum()).square().sum()
                    count += 1
            continue
        count += 1
        for i in range(heads):
            for j in range(heads):
                if options["on"] == "position":
                    for d in range(int(seen["distance"].max()) + 1):
                        a, c = ((seen["weights"][b, h, t] * (seen["distance"][b, h, t] == d)).sum() for h in (i, j))
                        total = total + a * c / heads**2
                else:
                    u = seen["outputs" if options["on"] == "output" else "values"][b, :, t]
                    total = total + torch.cosine_similarity(u[i], u[j], dim=0) / heads**2
    return total / count


@pytest.mark.parametrize(
    ("name", "options"),
    [
        ("disagreement", {"on": "subspace"}), ("disagreement", {"on": "output"}), ("disagreement", {"on": "position"}),
        ("pattern", {"target": "previous", "share": 0.5}), ("pattern", {"target": "first", "share": 1.0}),
        ("pattern", {"target": "self", "share": 0.1}),
    ],
    ids=str,
)  # fmt: skip
@pytest.mark.parametrize("others", [{}, {"selection": ROUTING}, {"tokens_per_step": 3, "memory": 2}], ids=str)
def test_losses_of_a_backbone_are_the_sums_of_the_formula(
    name: str, options: dict[str, Any], others: dict[str, Any], monkeypatch: pytest.MonkeyPatch
) -> None:
    backbone = backbone_of(losses={name: {"weight": 1.0, **options}}, **others)
    x, reset = torch.randn(2, 13, 12), torch.zeros(2, 13, dtype=torch.bool)
    reset[0, 6] = True
    record, plain = Record(), backbone_of(**others)
    y, _ = backbone(x, None, reset, record=record)
    torch.testing.assert_close(plain(x, None, reset)[0], y)
    gradients = torch.autograd.grad(record.losses[name], list(backbone.parameters()), allow_unused=True)
    assert any(each is not None and each.ne(0).any() for each in gradients)
    p = torch.arange(13).repeat(2, 1)
    p[0, 6:] -= 6
    seen = watched(backbone, x, reset, monkeypatch)
    assert len(seen) == 2
    if options.get("on") == "subspace" and "selection" in others:
        return  # values are gathered key by key there
    expected = sum(by_hand(each, name, options, p, torch.ones(2, 13, dtype=torch.bool)) for each in seen)
    torch.testing.assert_close(record.losses[name], torch.as_tensor(expected))


def test_heads_that_share_their_values_count_once_and_padding_not_at_all() -> None:
    config = {"losses": {"disagreement": {"weight": 1.0, "on": "subspace"}}, "kv_heads": 1}
    backbone, record = backbone_of(**config), Record()
    backbone(torch.randn(2, 7, 12), record=record)
    torch.testing.assert_close(
        record.losses["disagreement"], torch.tensor(2.0)
    )  # one head per layer agrees with itself
    backbone = backbone_of(losses={"pattern": 1.0, "disagreement": {"weight": 1.0, "on": "position"}})
    x, valid, records = torch.randn(2, 7, 12), torch.ones(2, 9, dtype=torch.bool), (Record(), Record())
    valid[:, [0, 5]] = False
    padded = 10 * torch.randn(2, 9, 12)
    padded[valid] = x.flatten(0, 1)
    backbone(x, record=records[0])
    backbone(padded, valid=valid, record=records[1])
    for key, value in records[0].losses.items():
        torch.testing.assert_close(records[1].losses[key], value)


def test_weights_are_explicit_only_where_a_loss_reads_them(monkeypatch: pytest.MonkeyPatch) -> None:
    calls: list[int] = []

    def counted(*args: Any) -> Any:
        calls.append(1)
        return dense(*args)

    monkeypatch.setattr(engines, "dense", counted)
    x = torch.randn(1, 6, 12)
    for losses, listens, expected in (
        ({"disagreement": {"weight": 1.0, "on": "position"}}, True, 2),
        ({"disagreement": {"weight": 1.0, "on": "position"}}, False, 0),
        ({"disagreement": {"weight": 1.0, "on": "output"}}, True, 0),
        ({}, True, 0),
    ):
        calls.clear()
        backbone = backbone_of(losses=losses, position="none")
        assert isinstance(backbone.layer(0).mixing.mixer, Attention)
        backbone(x, record=Record() if listens else None)
        assert len(calls) == expected
