"""Laws L9 and L10: states and weights can be saved, moved and continued; float32 and bfloat16 stay near float64."""

import io

import torch
from torch import Tensor

from rltransformers.backbone import BackboneConfig, State
from rltransformers.core.spec import Traits
from rltransformers.laws.streams import Case, backbone_of, require

SINGLE, HALF = Traits.single, Traits.half
"""Usual bounds of float32 and bfloat16, relative to the largest output."""


def portable_states(case: Case) -> None:
    """L9: states can be saved, picked, moved, joined and continued."""
    backbone, reset = case.backbone, case.reset
    with torch.no_grad():
        _, state = backbone(case.x, None, reset)
        for form in (state, backbone.with_cache(state)):
            y, after = backbone(case.x, form, reset)
            loaded = State(saved_and_loaded(form.tensors))
            halves = State.cat([form[:1], form[1:]])
            order = torch.tensor([2, 0, 1])
            turned = form[order]
            for other in (loaded, halves, form.clone().detach(), form.where(torch.tensor([True, False, True]), form)):
                same = other.tensors.keys() == form.tensors.keys() and all(
                    value.dtype == form.tensors[key].dtype and torch.equal(value, form.tensors[key])
                    for key, value in other.tensors.items()
                )
                require(same, "the same state, saved, joined or copied, holds other tensors")
            again, _ = backbone(case.x, loaded, reset)
            require(torch.equal(again, y), "a state that was saved and loaded gives other outputs")
            again, last = backbone(case.x[order], turned, reset[order])
            case.close(again, y[order], "outputs of streams in another order")
            case.close_states(last, after[order])
            fresh = backbone.initial_state(3, cached=form is not state)
            mixed, _ = backbone(case.x, form.where(torch.tensor([False, True, False]), fresh), reset)
            begun, _ = backbone(case.x, fresh, reset)
            case.close(mixed, torch.stack([y[0], begun[1], y[2]]), "outputs of streams of which one begins anew")
            moved = form.to(dtype=torch.float32)
            floats = [value for value in moved.tensors.values() if value.is_floating_point()]
            require(all(value.dtype == torch.float32 for value in floats), "a state in float32 holds other types")
            require(moved.tensors["position"].dtype == torch.long, "positions of a moved state are no whole numbers")


def same_weights(case: Case) -> None:
    """L9: a new backbone of the same config with the same weights computes and continues alike."""
    config = BackboneConfig.from_dict(case.backbone.config.to_dict())
    same = config.to_dict() == case.backbone.config.to_dict()
    require(same, "a config that was written and read again is another one")
    torch.manual_seed(77)
    other = backbone_of(config).eval()
    other.load_state_dict(saved_and_loaded(case.backbone.state_dict()))
    with torch.no_grad():
        y, state = case.backbone(case.x, None, case.reset)
        again, _ = other(case.x, None, case.reset)
        require(torch.equal(again, y), "another backbone with the same weights gives other outputs")
        same = torch.equal(other(case.x, state)[0], case.backbone(case.x, state)[0])
        require(same, "another backbone with the same weights continues a state to other outputs")


def saved_and_loaded(tensors: dict[str, Tensor]) -> dict[str, Tensor]:
    """Write tensors to a file in memory and read them back."""
    file = io.BytesIO()
    torch.save(tensors, file)
    file.seek(0)
    loaded: dict[str, Tensor] = torch.load(file, weights_only=True)
    return loaded


def autocast(case: Case, half: float = HALF) -> None:
    """L10: under autocast, segments, their gradients and acting stay in the bound ``half`` of bfloat16.

    Acting goes on behind it from the memory of a segment under it, as it does where an update alone lies under it.
    """
    with torch.no_grad():
        expected, _ = case.backbone(case.x, None, case.reset)
    bound = half * expected.abs().max()
    backbone, x = case.backbone.float(), case.x.float()
    few = 3  # calls of one token each; then the state of acting goes on with the rest
    with torch.autocast(x.device.type, torch.bfloat16):
        segment, learned = backbone(x, None, case.reset)
        segment.float().square().mean().backward()
        acted, state = [], backbone.initial_state(len(x), cached=True)
        with torch.no_grad():
            for place in range(few):
                y, state = backbone(x[:, place : place + 1], state, case.reset[:, place : place + 1])
                acted.append(y)
            rest, after = backbone(x[:, few:], state, case.reset[:, few:])
            carried = backbone.with_cache(learned.detach())
    with torch.no_grad():
        behind, _ = backbone(x[:, :1], carried, torch.zeros_like(case.reset[:, :1]))
    require(behind.dtype == x.dtype, f"acting behind autocast is of {behind.dtype}")
    for what, value in (("segments", segment.detach()), ("acting", torch.cat([*acted, rest], 1))):
        require(value.isfinite().all(), f"outputs of {what} under autocast are not finite")
        error = (value.double() - expected).abs().max()
        require(error <= bound, f"outputs of {what} under autocast differ by {error:.1e}, allowed are {bound:.1e}")
    gradients = [each.grad for each in backbone.parameters() if each.grad is not None]
    finite = gradients and all(each.isfinite().all() for each in gradients)
    require(finite, "gradients under autocast are not finite")
    finite = all(value.isfinite().all() for value in after.tensors.values())
    require(finite, "states under autocast are not finite")


def low_precision(case: Case, single: float = SINGLE, half: float = HALF) -> float:
    """L10: float32 and bfloat16 stay within ``single`` and ``half`` of float64; returns the error of float32."""
    weights = {name: value.clone() for name, value in case.backbone.state_dict().items()}
    with torch.no_grad():
        y, _ = case.backbone(case.x, None, case.reset)
        scale, errors = y.abs().max(), dict[torch.dtype, float]()
        for dtype, bound in ((torch.float32, single), (torch.bfloat16, half)):
            low = case.backbone.to(dtype)
            start = low.initial_state(len(y), cached=True)
            for form in (None, start):
                value, _ = low(case.x.to(dtype), form, case.reset)
                require(value.dtype == dtype, f"outputs of a backbone of {dtype} are of {value.dtype}")
                require(value.isfinite().all(), f"outputs of {dtype} are not finite")
                error = float((value.double() - y).abs().max() / scale)
                errors[dtype] = max(error, errors.get(dtype, 0.0))
                require(error <= bound, f"outputs of {dtype} differ by {error:.1e} of their size, allowed are {bound}")
            case.backbone.double()
            case.backbone.load_state_dict(weights)
    return errors[torch.float32]
