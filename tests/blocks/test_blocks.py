"""Gates, residual schemes, feed-forward, halting and reversible layers."""

import math
from collections.abc import Iterator
from typing import Any

import pytest
import torch
from torch import Tensor

from rltransformers.backbone import Backbone
from rltransformers.blocks.feedforward import FEED_FORWARDS, GatedOptions, build_glu
from rltransformers.blocks.residual import (
    Gate,
    GRUGate,
    HighwayGate,
    InputGate,
    OutputGate,
    SigTanhGate,
    normalized,
)
from rltransformers.core.record import Record
from rltransformers.core.spec import Choice
from rltransformers.functional.modules import NORMS
from rltransformers.functional.modules import dropout as apply_dropout
from rltransformers.laws import perturbed
from rltransformers.stacks.halting import Halting
from rltransformers.stacks.reversible import ReversibleLayer
from tests.attention.rows import config_of

GATES: dict[str, type[Any]] = {
    "gru": GRUGate, "input": InputGate, "output": OutputGate, "highway": HighwayGate, "sigtanh": SigTanhGate,
}  # fmt: skip
GATED_WITH_BIAS = ("gru", "output", "highway", "sigtanh")


@pytest.fixture(autouse=True)
def double() -> Iterator[None]:
    torch.set_default_dtype(torch.float64)
    yield
    torch.set_default_dtype(torch.float32)


def gate_of(name: str, bias: float = 2.0) -> Gate:
    gate: Gate = GATES[name](4, bias)
    return gate


def s(number: float) -> float:
    return 1 / (1 + math.exp(-number))


def by_hand(name: str, gate: Gate, x: list[float], y: list[float]) -> list[float]:
    """Parisotto et al. 2019, section 3.2, one channel after the other."""
    matrices = {key: value.tolist() for key, value in gate.state_dict().items()}
    b = matrices.get("bias", [0.0] * 4)

    def dot(matrix: str, row: int, v: list[float]) -> float:
        return sum(w * each for w, each in zip(matrices[f"{matrix}.weight"][row], v, strict=True))

    out = []
    r = [s(dot("from_y", c, y) + dot("from_x", c, x)) for c in range(4)] if name == "gru" else []
    for c in range(4):
        if name == "gru":
            z = s(dot("from_y", 4 + c, y) + dot("from_x", 4 + c, x) - b[c])
            h = math.tanh(
                dot("from_y", 8 + c, y) + dot("candidate", c, [r_i * x_i for r_i, x_i in zip(r, x, strict=True)])
            )
            out.append((1 - z) * x[c] + z * h)
        elif name == "input":
            out.append(s(dot("linear", c, x)) * x[c] + y[c])
        elif name == "output":
            out.append(x[c] + s(dot("linear", c, x) - b[c]) * y[c])
        elif name == "highway":
            out.append(s(dot("linear", c, x) + b[c]) * x[c] + (1 - s(dot("linear", c, x) + b[c])) * y[c])
        else:
            out.append(x[c] + s(dot("from_y", c, y) - b[c]) * math.tanh(dot("from_y", 4 + c, y)))
    return out


@pytest.mark.parametrize("name", GATES)
def test_gates_equal_a_loop_over_channels(name: str) -> None:
    gate = gate_of(name, 0.7)
    x, y = torch.randn(4), torch.randn(4)
    out, openness = gate(x, y)
    torch.testing.assert_close(out, torch.tensor(by_hand(name, gate, x.tolist(), y.tolist())))
    assert openness.shape == out.shape
    assert ((openness >= 0) & (openness <= 1)).all()


@pytest.mark.parametrize("name", GATED_WITH_BIAS)
def test_a_gate_that_is_shut_leaves_the_stream_alone(name: str) -> None:
    backbone = perturbed(config_of({"residual": name}))
    for key, value in backbone.named_parameters():
        if key.endswith("gate.bias"):
            value.data.fill_(60.0)
    x = torch.randn(2, 9, 15)
    # sigmoid(-60) is 1e-26
    torch.testing.assert_close(backbone(x)[0], x, rtol=1e-12, atol=1e-12)


@pytest.mark.parametrize("name", ["gru"])
def test_gates_start_nearly_shut(name: str) -> None:
    gate = gate_of(name, 2.0)
    for key, value in gate.named_parameters():
        if key != "bias":
            value.data *= 1e-3
    x = torch.randn(5, 4, requires_grad=True)
    out, openness = gate(x, torch.randn(5, 4))
    torch.testing.assert_close(openness, torch.full((5, 4), s(-2.0)), rtol=0.01, atol=0)
    assert s(-2.0) == pytest.approx(0.119, abs=5e-4)
    (slope,) = torch.autograd.grad(out.sum(), x)
    torch.testing.assert_close(slope, torch.full((5, 4), 1 - s(-2.0)), rtol=0.01, atol=0)
    default = Backbone(config_of({"residual": name}))
    biases = [value for key, value in default.named_parameters() if key.endswith("gate.bias")]
    assert len(biases) == 4 and all(value.eq(2.0).all() for value in biases)


def test_an_input_gate_halves_the_stream_when_its_matrix_is_zero() -> None:
    gate = gate_of("input")
    gate.get_parameter("linear.weight").data.zero_()
    x, y = torch.randn(2, 3, 4)
    torch.testing.assert_close(gate(x, y)[0], x / 2 + y)


def silent(residual: str) -> Backbone:
    """A backbone whose submodules put out zeros."""
    backbone = perturbed(config_of({"residual": residual, "position": "none"}))
    for key, value in backbone.named_parameters():
        if "output.weight" in key or "ff.out" in key:
            value.data.zero_()
    return backbone


def test_without_submodules_only_the_norms_remain() -> None:
    x = torch.randn(2, 7, 15)
    for residual in ("pre_ln", "pre_ln_relu", "reversible"):
        torch.testing.assert_close(silent(residual)(x)[0], x)
    backbone = silent("post_ln")
    expected = x
    for layer in backbone.layers:
        for join in ("join_mixing", "join_ff"):
            expected = layer.get_submodule(f"{join}.norm")(expected)
    torch.testing.assert_close(backbone(x)[0], expected)


@pytest.mark.parametrize("name", GATED_WITH_BIAS)
def test_shut_gates_leave_the_stream_or_without_reordering_its_norms(name: str) -> None:
    x = torch.randn(2, 7, 15)
    for reordered in (True, False):
        backbone = perturbed(config_of({"residual": {"name": name, "bias": 60.0, "reordered": reordered}}))
        expected = x
        for layer in backbone.layers:
            for join in ("join_mixing", "join_ff"):
                expected = expected if reordered else layer.get_submodule(f"{join}.norm")(expected)
        torch.testing.assert_close(backbone(x)[0], expected)


def test_the_openness_of_gates_is_recorded() -> None:
    backbone = perturbed(config_of({"residual": {"name": "gru", "bias": 60.0}}))
    record = Record()
    backbone(torch.randn(2, 3, 15), record=record)
    for name in ("layer0/gate_openness", "layer1/ff/gate_openness"):
        assert record.metrics[name].item() < 1e-12


@pytest.mark.parametrize("name", ["ffn", "glu"])
def test_feed_forward_treats_every_token_alike(name: str) -> None:
    module = Choice.parse(name, "ff", FEED_FORWARDS).build(6, 9)
    x, order = torch.randn(2, 5, 6), torch.tensor([3, 0, 4, 1, 2])
    torch.testing.assert_close(module(x[:, order]), module(x)[:, order])


def test_a_glu_without_gate_weights_is_half_a_linear_map() -> None:
    module = build_glu(6, 9, GatedOptions())
    module.get_parameter("into.weight").data[:9] = 0
    module.get_parameter("into.bias").data[:9] = 0
    x = torch.randn(4, 6)
    value = x @ module.get_parameter("into.weight")[9:].T + module.get_parameter("into.bias")[9:]
    torch.testing.assert_close(module(x), module.get_submodule("out")(value / 2))


def halted(probabilities: list[float]) -> tuple[list[float], Halting]:
    halting = Halting.start(torch.zeros(1, 1))
    weights = []
    for index, p in enumerate(probabilities):
        weight, halting = halting.step(torch.tensor([[p]]), index == len(probabilities) - 1, 0.01)
        weights.append(weight.item())
    return weights, halting


def test_halting_follows_the_numbers_of_the_paper() -> None:
    weights, halting = halted([0.3, 0.5, 0.4])
    assert weights == pytest.approx([0.3, 0.5, 0.2])
    assert halting.steps.item() == 3
    assert halting.remainder.item() == pytest.approx(0.2)
    assert halting.ponder().item() == pytest.approx(3.2)
    weights, halting = halted([0.995, 0.5, 0.4])
    assert weights == [1.0, 0.0, 0.0]
    assert (halting.steps.item(), halting.remainder.item()) == (1, 1)
    weights, halting = halted([0.1, 0.1, 0.1])  # never halts: the last step takes what is left
    assert weights == pytest.approx([0.1, 0.1, 0.8])


def test_only_the_remainder_of_the_ponder_cost_has_a_gradient() -> None:
    probabilities = torch.tensor([0.3, 0.5, 0.4], requires_grad=True)
    halting = Halting.start(torch.zeros(1, 1))
    for index, p in enumerate(probabilities):
        _, halting = halting.step(p.view(1, 1), index == 2, 0.01)
    (gradient,) = torch.autograd.grad(halting.ponder().sum(), probabilities)
    assert gradient.tolist() == [-1.0, -1.0, 0.0]


def test_a_halted_backbone_reports_its_steps_over_valid_tokens() -> None:
    backbone = perturbed(config_of({"depth": {"name": "universal_act", "epsilon": 0.01}, "layers": 3}))
    assert isinstance(backbone.halt, torch.nn.Linear)
    backbone.halt.weight.data.zero_()
    backbone.halt.bias.data.fill_(math.log(0.4 / 0.6))  # halting probability 0.4: three steps, remainder 0.2
    record = Record()
    valid = torch.tensor([[True, True, False]])
    backbone(torch.randn(1, 3, 15), valid=valid, record=record)
    assert record.metrics["halting/steps"].item() == 3
    assert record.losses["ponder"].item() == pytest.approx(3.2)


def stored(backbone: Backbone, x: Tensor) -> Tensor:
    """The reversible stack with its activations kept."""
    from rltransformers.functional.call import Call, Tokens

    batch, time = x.shape[:2]
    p = torch.arange(time).expand(batch, -1)
    tokens = Tokens(p, p, torch.zeros_like(p, dtype=torch.bool), torch.full((batch,), -1))
    x1 = x2 = x
    for index in range(backbone.config.layers):
        layer = backbone.layer(index)
        x1 = x1 + layer.mix(x2, backbone.layer_states(None, x)[index], Call(tokens), None).out
        x2 = x2 + layer.transform(x1)
    return (x1 + x2) / 2


def test_a_reversible_backward_pass_computes_under_the_autocast_of_the_forward_pass() -> None:
    seen: list[bool] = []

    def half(x: Tensor) -> Tensor:
        seen.append(torch.is_autocast_enabled("cpu"))
        return torch.tanh(x)

    for enabled in (True, False):
        x = torch.randn(2, 3, 5, requires_grad=True)
        with torch.autocast("cpu", torch.bfloat16, enabled=enabled):
            y1, y2 = ReversibleLayer.apply(half, half, [], True, x, x)
        (y1 + y2).sum().backward()
        assert seen == [enabled] * 4
        seen.clear()


@pytest.mark.parametrize("dropout", [0.0, 0.3])
def test_reversible_gradients_equal_those_of_the_stored_forward_pass(dropout: float) -> None:
    backbone = perturbed(config_of({"residual": "reversible", "layers": 3, "dropout": dropout})).train(dropout > 0)
    x = torch.randn(2, 8, 15, requires_grad=True)
    wanted = [x, *backbone.parameters()]
    weight = torch.randn(2, 8, 15)

    def outcome(function: Any) -> tuple[Tensor, tuple[Tensor, ...]]:
        torch.manual_seed(5)
        if function is stored:
            entered = apply_dropout(x, dropout) if dropout else x
            y = stored(backbone, entered)
        else:
            y = backbone(x)[0]
        return y, torch.autograd.grad((y * weight).sum(), wanted)

    y, gradients = outcome(backbone)
    expected, expected_gradients = outcome(stored)
    torch.testing.assert_close(y, expected)
    # Inputs are rebuilt by subtraction, which loses a digit or two per layer.
    torch.testing.assert_close(gradients, expected_gradients, rtol=1e-9, atol=1e-9)


@pytest.mark.parametrize("frozen", ["layers.0.", "layers.2.", ".ff.", ".mixing.", "layers.1.ff.out.bias", ""])
@pytest.mark.parametrize("of_input", [True, False])
def test_frozen_parameters_leave_the_other_gradients_of_a_reversible_stack_alone(frozen: str, of_input: bool) -> None:
    backbone = perturbed(config_of({"residual": "reversible", "layers": 3}))
    x = torch.randn(2, 8, 15, requires_grad=True)

    def gradients() -> dict[str, Tensor | None]:
        learning = {"x": x, **dict(backbone.named_parameters())}
        wanted = {name: value for name, value in learning.items() if value.requires_grad}
        found = torch.autograd.grad(backbone(x)[0].square().sum(), list(wanted.values()))
        return dict(zip(wanted, found, strict=True))

    every = gradients()
    for name, value in backbone.named_parameters():
        value.requires_grad_(frozen not in name)
    x.requires_grad_(of_input)
    if not frozen and not of_input:
        assert not backbone(x)[0].requires_grad
        return
    left = gradients()
    assert bool(left) and (set(left) < set(every))
    for name, gradient in left.items():
        torch.testing.assert_close(gradient, every[name], rtol=1e-9, atol=1e-9)


def test_a_reversible_half_without_anything_to_learn_hands_the_gradient_on() -> None:
    x = torch.randn(2, 3, 5, requires_grad=True)
    y1, y2 = ReversibleLayer.apply(torch.zeros_like, torch.tanh, [], True, x, x)
    (y1 + 2 * y2).sum().backward()
    expected = 1 + 2 * (1 - torch.tanh(x.detach()).square()) + 2
    torch.testing.assert_close(x.grad, expected)


def test_rms_norm_of_rows_without_a_mean_is_layer_norm() -> None:
    x = torch.randn(3, 7, 16)
    rms, layer = (NORMS[name](16) for name in ("rms", "layer"))
    centered = x - x.mean(-1, keepdim=True)
    torch.testing.assert_close(normalized(rms, centered), normalized(layer, centered))
    torch.testing.assert_close(normalized(rms, centered), rms(centered))
    assert (normalized(rms, x + 1) - normalized(layer, x + 1)).abs().max() > 0.1


def test_norms_of_a_config_are_those_of_every_join_and_around_the_layers() -> None:
    backbone = Backbone(config_of({"norm": "rms", "input_norm": True, "final_norm": True, "residual": "gru"}))
    names = [name for name, _ in backbone.named_parameters() if "norm" in name]
    assert len(names) == 6 and all(name.endswith("norm.weight") for name in names)
