"""Tables of acting follow the weights, however these are changed, and are computed once otherwise."""

import torch
from torch import Tensor, nn

from rltransformers.backbone.state import Tables


def test_tables_are_computed_again_when_a_weight_or_buffer_changed_and_only_then() -> None:
    layer = nn.BatchNorm1d(3)
    calls: list[int] = []

    def compute() -> dict[str, Tensor]:
        calls.append(len(calls))
        return {"double": 2 * layer.weight}

    tables = Tables(layer, [layer], compute)
    first = tables.current()
    assert tables.current() is first
    changes = [
        lambda: layer.weight.data.add_(1),  # as an optimizer does
        lambda: layer.load_state_dict({**layer.state_dict(), "bias": torch.ones(3)}),
        lambda: setattr(layer, "weight", nn.Parameter(torch.full((3,), 5.0))),
        lambda: layer.running_mean.fill_(4) if layer.running_mean is not None else None,
        lambda: layer.double(),
    ]
    for count, change in enumerate(changes, 2):
        change()
        assert torch.equal(tables.current()["double"], 2 * layer.weight)
        tables.current()
        assert len(calls) == count
    assert tables.current()["double"].dtype == torch.float64
