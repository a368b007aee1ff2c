"""Laws L5 to L7: values and gradients equal those of a slow twin, of a special case, and of finite differences."""

from collections.abc import Callable, Mapping
from contextlib import ExitStack
from dataclasses import dataclass
from typing import Any, TypeAlias
from unittest.mock import patch

import torch
from torch import Tensor

from rltransformers.backbone import Backbone, BackboneConfig, Record
from rltransformers.core.spec import Feature
from rltransformers.laws.costs import window_of_16
from rltransformers.laws.streams import EXACT, Case, LawError, perturbed, require
from rltransformers.mixers.interface import Mixed

Reference: TypeAlias = Callable[[Backbone, Tensor], tuple[Tensor, Mapping[str, Tensor] | None]]
"""Slow forward pass of one episode [t, D]: outputs [t, D], and what its state holds at the end, or None."""
Edit: TypeAlias = Callable[[Backbone, Backbone], None]


def equals_reference(backbone: Backbone, reference: Reference, tolerance: float = EXACT) -> Case:
    """L5: values, gradients and final state equal those of a slow twin, episode by episode; returns the comparison."""
    case = Case.of(backbone, [[0, 4]], time=15, tolerance=tolerance)
    x = case.x.requires_grad_()
    y, state = backbone(x, None, case.reset)
    first, _ = reference(backbone, x[0, :4])
    second, rows = reference(backbone, x[0, 4:])
    twin = torch.cat([first, second])
    case.close(y[0], twin, "outputs and those of the twin")
    for key, tensor in state.tensors.items() if rows is not None else ():
        assert rows is not None
        if key == "position":
            require(tensor.tolist() == [10], f"the state stands at position {tensor.tolist()}, not [10]")
            continue
        expected, value = rows[key], tensor[0]
        if key.endswith(("sinks", "sink_keys")):
            expected = expected[: len(value)]
        elif key.endswith((".hidden", ".keys")):  # what lies further back belongs to the episode before
            count = min(len(value), len(expected))
            expected, value = expected[len(expected) - count :], value[len(value) - count :]
        case.close(value, expected, f"state {key} and that of the twin")
    wanted = [x, *backbone.parameters()]
    weight = torch.randn_like(twin)
    gradients = torch.autograd.grad((y[0] * weight).sum(), wanted, allow_unused=True)
    by_twin = torch.autograd.grad((twin * weight).sum(), wanted, allow_unused=True)
    labels = ["x", *(name for name, _ in backbone.named_parameters())]
    for label, gradient, expected in zip(labels, gradients, by_twin, strict=True):
        value, expect = (torch.zeros(()) if each is None else each for each in (gradient, expected))
        # Gradients of sums over all tokens are up to 100 times larger than outputs.
        error = (value - expect).abs().max() / max(1.0, float(expect.abs().max()))
        require(error <= 100 * tolerance, f"the gradient of {label} differs from that of the twin by {error:.1e}")
    return case


TWIN_AXES = ("mixer", "ff", "residual")  # axes whose mechanisms are modules that a twin can stand in for


def reference_of(axis: str, twin: Callable[..., Any]) -> Reference:
    """Make a reference of a backbone that differs in one mechanism, which its twin computes for one episode at a time.

    ``twin(module, h)`` takes the normalized inputs [t, D] of a mixer or a feed-forward part, ``twin(module, x, y)`` the
    stream of a residual and the output of its submodule. All return [t, D].
    """

    def mixer_of(module: Any) -> Callable[..., Any]:
        return lambda h, *rest: Mixed(twin(module, h[0])[None], next(each for each in rest if isinstance(each, dict)))

    def one_of(module: Any) -> Callable[..., Any]:
        return lambda *streams: twin(module, *(stream[0] for stream in streams if isinstance(stream, Tensor)))[None]

    def reference(backbone: Backbone, x: Tensor) -> tuple[Tensor, None]:
        with ExitStack() as stack:
            for layer in [backbone.layer(index) for index in range(len(backbone.layers))]:
                if axis == "mixer":
                    stack.enter_context(patch.object(layer.mixing.mixer, "forward", mixer_of(layer.mixing.mixer)))
                elif axis == "ff":
                    stack.enter_context(patch.object(layer.ff, "forward", one_of(layer.ff)))
                elif axis == "residual":
                    for join in (layer.join_mixing, layer.join_ff):
                        if join is not None:
                            stack.enter_context(patch.object(join, "combine", one_of(join)))
            return backbone(x[None])[0][0], None

    return reference


@dataclass(frozen=True)
class Limit:
    """Settings ``special`` and ``plain`` give equal outputs once ``edit`` has put the special one at its limit.

    Parameters of equal name and shape are copied from special to plain first.
    """

    special: Mapping[str, Any]
    plain: Mapping[str, Any]
    edit: Edit = lambda special, plain: None
    tolerance: float = EXACT


def becomes_another(special_config: BackboneConfig, plain_config: BackboneConfig, limit: Limit) -> Case:
    """L6: at its limit a mechanism computes what another one does; returns what was compared."""
    special, plain = (perturbed(config, seed=seed) for seed, config in enumerate((special_config, plain_config)))
    case = Case.of(special, tolerance=limit.tolerance)
    before, _ = special(case.x, None, case.reset)
    mine, others = dict(special.named_parameters()), dict(plain.named_parameters())
    for name in mine.keys() & others.keys():
        if mine[name].shape == others[name].shape:
            others[name].data.copy_(mine[name].data)
    limit.edit(special, plain)
    value, _ = special(case.x, None, case.reset)
    expected, _ = plain(case.x, None, case.reset)
    case.close(value, expected, "outputs at the limit and those of the other mechanism")
    require(expected.std() > 0.01, "at the limit all outputs are the same number")
    if limit.edit is not Limit({}, {}).edit:
        require(before.isfinite().all(), "outputs are not finite away from the limit")
    return case


def finite_differences(config: BackboneConfig, start: int = 3, time: int = 8, allowed: float = 1e-6) -> float:
    """L7: gradients are those of finite differences along a random direction; returns the error.

    They are taken in training mode where the config has no dropout, on ``time`` tokens with a new episode at ``start``.
    """
    step, errors = 1e-6, []
    for seed in range(3):
        backbone = perturbed(config, seed=seed).train(not config.dropout)
        case = Case.of(backbone, [[0, start]], time)
        wanted = [case.x.requires_grad_(), *backbone.parameters()]
        weight = torch.randn(1, time, backbone.width)
        loss = (backbone(case.x, None, case.reset)[0] * weight).sum()
        gradients = torch.autograd.grad(loss, wanted, allow_unused=True)
        # One random direction through the input and all parameters, as torch.autograd.gradcheck does in its fast mode.
        direction = [torch.randn_like(value) for value in wanted]
        expected = sum(float((g * d).sum()) for g, d in zip(gradients, direction, strict=True) if g is not None)
        values = []
        with torch.no_grad():
            for move in (step, -2 * step):
                for value, each in zip(wanted, direction, strict=True):
                    value += move * each
                values.append(float((backbone(case.x, None, case.reset)[0] * weight).sum()))
        errors.append(abs((values[0] - values[1]) / (2 * step) - expected) / max(1.0, abs(expected)))
        # The error of a central difference is about step^2 for the curvature and 1e-16 / step for rounding. The step
        # may cross the kink of one of some thousand ReLUs, which no wrong gradient survives with three backbones.
        if errors[-1] < allowed:
            return errors[-1]
    raise LawError(f"gradients differ from finite differences by {min(errors):.1e} of their size")


def far_gradients(config: BackboneConfig) -> float:
    """L7: gradients flow through 220 tokens, as from chunk to chunk, unless a mechanism says where they stop.

    Returns the error; 0 where one stops.
    """
    if any(choice.spec.traits.stops_gradient for choice in config.choices.chosen()):
        return 0.0
    # Sums over so many tokens round more.
    return finite_differences(window_of_16(config), start=40, time=260, allowed=1e-5)


def gradients_everywhere(config: BackboneConfig) -> None:
    """L7: every parameter receives a gradient, of the outputs or of an auxiliary loss, and the given state none."""
    backbone = perturbed(config)
    case = Case.of(backbone)
    _, before = backbone(case.x, None, case.reset)
    state = before.map(lambda value: value.requires_grad_() if value.is_floating_point() else value)
    record = Record()
    y, _ = backbone(case.x, state, case.reset, record=record)
    loss = (y * torch.randn_like(y)).sum() + sum(record.losses.values())
    names, parameters = zip(*backbone.named_parameters(), strict=True)
    floats = [value for value in state.tensors.values() if value.is_floating_point() and value.numel()]
    gradients = torch.autograd.grad(loss, [*parameters, *floats], allow_unused=True)
    for label, gradient in zip(names, gradients, strict=False):
        if Feature.HALTING in config.choices.depth.spec.offers and gradient is None:
            # what decides for one layer or another has no gradient, but a loss
            require(label.startswith("halt."), f"the parameter {label} receives no gradient")
            continue
        if config.memory == 0 and ("query" in label or "position" in label):
            continue  # the weight of the only key is 1, whatever its score
        require(gradient is not None and gradient.ne(0).any(), f"the parameter {label} receives no gradient")
        require(gradient.isfinite().all(), f"the gradient of {label} is not finite")
    own = all(gradient is None for gradient in gradients[len(names) :])
    require(own, "a gradient flows into the state that a call begins with")
