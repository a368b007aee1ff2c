"""The same numbers with less memory: transforms in chunks, layers that are computed again, products in bfloat16."""

from collections.abc import Iterator
from typing import Any

import pytest
import torch
from torch import Tensor

from rltransformers.backbone import PLAIN, Backbone, BackboneConfig, Record
from rltransformers.laws import perturbed
from rltransformers.laws.costs import cost

SIZES: dict[str, Any] = {"width": 12, "heads": 3, "layers": 2, "memory": 6, "ff_width": 35, "position": "trxl"}
ADAPTIVE = {"name": "adaptive", "ramp": 2.0, "initial": 0.3}


@pytest.fixture
def double() -> Iterator[None]:
    torch.set_default_dtype(torch.float64)
    yield
    torch.set_default_dtype(torch.float32)


def backbone_of(**values: Any) -> Backbone:
    return perturbed(BackboneConfig(**{**PLAIN, **SIZES, **values}))


def kept(backbone: Backbone, time: int = 64) -> int:
    """Bytes kept for the backward pass."""
    return cost(lambda: backbone(torch.randn(1, time, backbone.width))[0])[1]


def gradients(backbone: Backbone, x: Tensor, record: Record | None = None) -> list[Tensor]:
    torch.manual_seed(5)
    y, _ = backbone(x, record=record)
    loss = (y * torch.linspace(-1, 1, y.numel(), dtype=y.dtype).view_as(y)).sum()
    if record is not None:
        loss = loss + 3 * sum(record.losses.values())
    found = torch.autograd.grad(loss, [x, *backbone.parameters()], allow_unused=True)
    return [y, *(torch.zeros(()) if each is None else each for each in found)]


SAVING: list[dict[str, Any]] = [
    {"ff_chunks": 5}, {"checkpoint": True}, {"checkpoint": True, "ff_chunks": 3},
    {"checkpoint": True, "depth": "universal_act", "losses": {"ponder": 0.1}},
    {"checkpoint": True, "prior": "realformer"},
    {"checkpoint": True, "span": ADAPTIVE, "losses": {"span": 0.1}},
    {"checkpoint": True, "mixer": ["linear", "softmax"]},
    {"ff_chunks": 4, "residual": "reversible"},
]  # fmt: skip


@pytest.mark.parametrize("dropout", [0.0, 0.3])
@pytest.mark.parametrize("values", SAVING, ids=str)
def test_gradients_equal_those_of_what_was_kept(values: dict[str, Any], dropout: float, double: None) -> None:
    """With dropout, whose numbers the second run draws again; losses and metrics are told once."""
    plain = {key: value for key, value in values.items() if key not in ("ff_chunks", "checkpoint")}
    saving, keeping = (backbone_of(dropout=dropout, **each).train() for each in (values, plain))
    x, records = torch.randn(2, 23, 12, requires_grad=True), (Record(), Record())
    for one, same in zip(gradients(saving, x, records[0]), gradients(keeping, x, records[1]), strict=True):
        torch.testing.assert_close(one, same, rtol=1e-10, atol=1e-10)  # sums over chunks round in another order
    assert records[0].losses.keys() == records[1].losses.keys()
    for name, value in records[1].losses.items():
        torch.testing.assert_close(records[0].losses[name], value)


def test_a_transform_in_chunks_keeps_the_hidden_units_of_none() -> None:
    wide, narrow = ({"ff_width": width} for width in (4000, 100))
    growth = [
        kept(backbone_of(ff_chunks=chunks, **wide)) - kept(backbone_of(ff_chunks=chunks, **narrow)) for chunks in (4, 1)
    ]
    assert growth[0] == 0
    assert growth[1] >= 2 * 64 * 3900 * 4


def test_layers_that_are_computed_again_keep_their_inputs_only() -> None:
    stream = 64 * 12 * 4
    assert [kept(backbone_of(checkpoint=True, layers=layers)) for layers in (2, 8)] == [2 * stream, 8 * stream]
    few, many = (kept(backbone_of(layers=layers)) for layers in (2, 8))
    assert many > 3 * few


def test_mixed_precision_rounds_products_and_nothing_that_is_kept() -> None:
    low, full = backbone_of(compute_dtype="bfloat16"), backbone_of()
    x = torch.randn(2, 9, 12)
    (y, state), (expected, _) = low(x), full(x)
    assert y.dtype == torch.float32
    error = (y - expected).abs().max() / expected.abs().max()
    assert 1e-4 < error < 0.05
    acting = low.with_cache(state)
    z, after = low(x[:, :1], acting)
    assert z.dtype == torch.float32
    for found in (state, acting, after):
        assert {value.dtype for value in found.tensors.values() if value.is_floating_point()} == {torch.float32}
    y.sum().backward()
    assert all(each.grad is None or each.grad.dtype == torch.float32 for each in low.parameters())
    with torch.no_grad():
        begun, parts = low.initial_state(2, cached=True), []
        for t in range(9):
            part, begun = low(x[:, t : t + 1], begun)
            parts.append(part)
    torch.testing.assert_close(torch.cat(parts, 1), expected, rtol=1e-4, atol=1e-4)  # steps are not rounded
