"""Stacks against layers called one by one: which layer, with which state, what passes on, and what is told."""

from collections.abc import Iterator
from typing import Any

import pytest
import torch
from torch import Tensor

from rltransformers.backbone import PLAIN, Backbone, BackboneConfig, Record
from rltransformers.core.record import Probe
from rltransformers.functional.call import EVERY, Call
from rltransformers.laws import perturbed
from rltransformers.positions.interface import sinusoid

LAYERS, TIME = 3, 7


@pytest.fixture(autouse=True)
def double() -> Iterator[None]:
    torch.set_default_dtype(torch.float64)
    yield
    torch.set_default_dtype(torch.float32)


def backbone_of(**values: Any) -> tuple[Backbone, Tensor, Call, list[dict[str, Tensor]]]:
    """A backbone, a stream, and what its stack takes besides."""
    sizes = {"width": 12, "heads": 2, "layers": LAYERS, "memory": 4, "position": "alibi"}
    backbone = perturbed(BackboneConfig(**{**PLAIN, **sizes, **values}))
    x = torch.randn(2, TIME, 12)
    call = Call(backbone.locate(x), Probe(Record()), EVERY)
    return backbone, x, call, backbone.layer_states(None, x)


def applied(backbone: Backbone, index: int, x: Tensor, call: Call, state: Any, below: Any = None) -> Any:
    return backbone.layer(index)(x, state, call.at(index, EVERY), below)


def test_a_plain_stack_applies_its_layers_in_turn_and_hands_logits_up() -> None:
    backbone, x, call, states = backbone_of(prior="realformer")
    y, after = backbone.stack.run(x, states, call)
    below = None
    for index, state in enumerate(states):
        mixed = applied(backbone, index, x, call, state, below)
        x, below = mixed.out, mixed.logits
        assert torch.equal(after[index]["hidden"], mixed.state["hidden"])
    assert torch.equal(y, x)


def test_a_universal_stack_applies_one_layer_and_says_which_time_it_is() -> None:
    backbone, x, call, states = backbone_of(depth="universal")
    y, _ = backbone.stack.run(x, states, call)
    for index, state in enumerate(states):
        x = x + sinusoid(torch.tensor(index + 1), 12, x)
        x = applied(backbone, 0, x, call, state).out
    torch.testing.assert_close(y, x, rtol=0, atol=1e-13)


def test_adaptive_time_weighs_the_applications_by_the_probabilities_of_halting() -> None:
    backbone, x, call, states = backbone_of(depth="universal_act")
    y, _ = backbone.stack.run(x, states, call)
    assert backbone.halt is not None
    total, spent, halted = torch.zeros_like(x), torch.zeros(x.shape[:2]), torch.zeros(x.shape[:2], dtype=torch.bool)
    for index, state in enumerate(states):
        signal = sinusoid(torch.tensor(index + 1), 12, x)
        out = applied(backbone, 0, x + signal, call, state).out
        probability = torch.sigmoid(backbone.halt(out))[..., 0]
        ends = (spent + probability >= 1 - 0.01) | (index == LAYERS - 1)
        weight = torch.where(halted, 0.0, torch.where(ends, 1 - spent, probability))
        total, x = total + weight[..., None] * out, torch.where(halted[..., None], x, out)
        spent, halted = spent + weight, halted | ends
    torch.testing.assert_close(y, total, rtol=0, atol=1e-13)


def test_a_token_that_has_left_stays_as_it_is_in_all_deeper_layers() -> None:
    backbone, x, call, states = backbone_of(depth={"name": "calm", "threshold": 0.6, "decay": None})
    y, _ = backbone.stack.run(x, states, call)
    left = torch.zeros(x.shape[:2], dtype=torch.bool)
    for index, state in enumerate(states):
        before, x = x, torch.where(left[..., None], x, applied(backbone, index, x, call, state).out)
        if index < LAYERS - 1:
            left = left | (torch.cosine_similarity(before, x, dim=-1) > 0.6)
    torch.testing.assert_close(y, x, rtol=0, atol=1e-13)
    assert 0 < int(left.sum()) < left.numel()


def test_a_reversible_stack_is_two_streams_whose_mean_comes_out() -> None:
    backbone, x, call, states = backbone_of(residual="reversible")
    y, _ = backbone.stack.run(x, states, call)
    one, two = x, x
    for index, state in enumerate(states):
        layer = backbone.layer(index)
        one = one + layer.mix(two, state, call.at(index, EVERY), None).out
        two = two + layer.transform(one)
    torch.testing.assert_close(y, (one + two) / 2, rtol=0, atol=1e-13)
