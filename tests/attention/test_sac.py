"""Facts about drawn edges that the contract does not state: two limits, and that blocks of queries change nothing."""

from collections.abc import Iterator
from typing import Any

import pytest
import torch
from torch import Tensor

from rltransformers.attention import reach
from rltransformers.attention.selections import sac
from rltransformers.backbone import Backbone
from rltransformers.core.errors import ConfigError
from rltransformers.laws import EXACT, perturbed
from tests.attention.rows import config_of


@pytest.fixture(autouse=True)
def double() -> Iterator[None]:
    torch.set_default_dtype(torch.float64)
    yield
    torch.set_default_dtype(torch.float32)


def drawn(edges: int, memory: int = 6, **overrides: Any) -> Backbone:
    return perturbed(
        config_of({"selection": {"name": "sac", "edges": edges, "width": 4}, "memory": memory, **overrides})
    )


def with_weights_of(special: Backbone, **overrides: Any) -> Backbone:
    """Plain attention with the same projections."""
    plain = perturbed(config_of(overrides))
    mine = dict(special.named_parameters())
    for name, value in plain.named_parameters():
        value.data.copy_(mine[name].data)
    return plain


def test_edges_to_all_that_add_nothing_are_full_attention(monkeypatch: pytest.MonkeyPatch) -> None:
    special = drawn(edges=6)
    step = sac.EdgePredictor.step

    def silent(self: sac.EdgePredictor, *given: Tensor) -> tuple[Tensor, Tensor]:
        found, log = step(self, *given)
        return found, 0 * log

    monkeypatch.setattr(sac.EdgePredictor, "step", silent)
    x, plain = torch.randn(2, 19, 15), with_weights_of(special)
    torch.testing.assert_close(special(x)[0], plain(x)[0], rtol=EXACT, atol=EXACT)


def test_a_walk_that_always_steps_to_the_newest_token_is_a_band(monkeypatch: pytest.MonkeyPatch) -> None:
    special = drawn(edges=3)

    def newest(self: sac.EdgePredictor, hidden: Tensor, y: Tensor, free: Tensor) -> tuple[Tensor, Tensor]:
        last = (free * torch.arange(free.shape[-1])).argmax(-1, keepdim=True)
        return last, torch.zeros(last.shape)

    monkeypatch.setattr(sac.EdgePredictor, "step", newest)
    x, plain = torch.randn(2, 19, 15), with_weights_of(special, pattern={"name": "band", "window": 4})
    torch.testing.assert_close(special(x)[0], plain(x)[0], rtol=EXACT, atol=EXACT)


def test_blocks_of_queries_find_the_edges_of_the_whole_call(monkeypatch: pytest.MonkeyPatch) -> None:
    backbone, x = drawn(edges=3), torch.randn(2, 50, 15)
    reset = torch.zeros(2, 50, dtype=torch.bool)
    reset[0, 13] = reset[1, 44] = True
    whole, _ = backbone(x, None, reset)
    monkeypatch.setattr(reach, "SMALLEST_BLOCK", 4)
    parts, _ = backbone(x, None, reset)
    torch.testing.assert_close(parts, whole, rtol=EXACT, atol=EXACT)


def test_edges_without_a_memory_are_refused() -> None:
    with pytest.raises(ConfigError, match="set memory to at least 1"):
        drawn(edges=3, memory=0)
