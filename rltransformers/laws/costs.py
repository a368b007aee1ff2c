"""Law L8: work and kept memory are counted, and grow with the tokens as the mechanisms declare."""

import math
from collections.abc import Callable, Sequence
from typing import Any

import torch
from torch import Tensor
from torch.utils.flop_counter import FlopCounterMode, sdpa_flop_count

from rltransformers.backbone import BackboneConfig
from rltransformers.core.errors import ConfigError
from rltransformers.core.spec import Feature
from rltransformers.laws.streams import backbone_of, require

LENGTHS = (256, 1024)
LINEAR, SQUARED = 1.15, 2.1  # largest exponents of the growth in tokens; rounding up to blocks adds to what is linear


def _added_product_flops(_: Sequence[int], left: Sequence[int], right: Sequence[int], **__: Any) -> int:
    return 2 * math.prod(left) * right[-1]


# Torch's counter knows neither the fused attention of the CPU nor products that are added in place.
UNCOUNTED = {
    torch.ops.aten._scaled_dot_product_flash_attention_for_cpu: lambda q, k, v, *_, **__: sdpa_flop_count(q, k, v),
    torch.ops.aten.baddbmm_: _added_product_flops,
    torch.ops.aten.addmm_: _added_product_flops,
}


def cost(forward: Callable[[], Tensor]) -> tuple[int, int]:
    """Count FLOPs of a forward pass, and bytes of the distinct storages that it keeps for the backward pass."""
    storages: dict[int, int] = {}

    def note(saved: Tensor) -> Tensor:
        storages[saved.untyped_storage().data_ptr()] = saved.untyped_storage().nbytes()
        return saved.detach()  # a node that kept its own output as it is would keep itself, for ever

    with (
        FlopCounterMode(display=False, custom_mapping=UNCOUNTED) as counter,
        torch.autograd.graph.saved_tensors_hooks(note, lambda saved: saved),
    ):
        kept_alive = forward()
    del kept_alive
    return counter.get_total_flops(), sum(storages.values())


def of_one_layer(config: BackboneConfig) -> BackboneConfig:
    """Take one layer, where all are alike and nothing passes between them."""
    alike = len(config.choices.kinds) == 1 and config.choices.depth.name == "fixed"
    if not alike or {Feature.CARRY, Feature.FIRST_VALUES} & {*config.choices.prior.spec.offers}:
        return config
    return BackboneConfig.from_dict({**config.to_dict(), "layers": 1})


def window_of_16(config: BackboneConfig) -> BackboneConfig:
    """Take a memory of 15 steps, where options do not depend on it, and tables of positions that are long enough."""
    values: dict[str, Any] = config.to_dict()
    names = [layer.mixer.name for layer in config.choices.kinds]
    if "nystrom" not in names and config.choices.memory_kind.name != "compressive" and config.memory:
        values["memory"] = 15
    for each in values["position"] if isinstance(values["position"], list) else [values["position"]]:
        if isinstance(each, dict) and "max_len" in each:
            each["max_len"] = 4096
    try:
        return BackboneConfig.from_dict(values)
    except ConfigError:  # an option depends on the memory
        return config


def grows_as_declared(config: BackboneConfig) -> float:
    """L8: work and kept memory grow with the tokens as declared; returns the larger exponent."""
    config = of_one_layer(window_of_16(config))
    backbone = backbone_of(config)
    declared = "T^2" if any(choice.spec.traits.time == "T^2" for choice in config.choices.chosen()) else "T"
    largest = SQUARED if declared == "T^2" else LINEAR
    streams = [torch.randn(1, time, backbone.width) for time in LENGTHS]
    short, long = (cost(lambda x=x: backbone(x)[0]) for x in streams)  # type: ignore[misc]
    exponents = []
    for what, least, most in zip(("work", "kept memory"), short, long, strict=True):
        exponents.append(math.log(most / least) / math.log(LENGTHS[1] / LENGTHS[0]))
        require(
            exponents[-1] <= largest,
            f"{what} grows as T^{exponents[-1]:.2f}, but Traits.time declares {declared}; compute in blocks, or "
            "declare 'T^2'",
        )
    return max(exponents)


def constant_steps(config: BackboneConfig) -> None:
    """L8: a step costs the same after 492 steps as after 12, and the state keeps its shapes."""
    backbone = backbone_of(of_one_layer(window_of_16(config))).eval()
    x = torch.randn(2, 501, backbone.width)
    state = backbone.initial_state(2, cached=True)
    shapes = {key: value.shape for key, value in state.tensors.items()}
    flops, first = [], 0
    with torch.no_grad():
        for steps in (12, 492):  # a compressive memory squeezes a block every 2 or 3 steps: compare steps that do
            _, state = backbone(x[:, first:steps], state)
            with FlopCounterMode(display=False, custom_mapping=UNCOUNTED) as counter:
                backbone(x[:, steps : steps + 1], state)
            flops.append(counter.get_total_flops())
            first = steps
            for key, value in state.tensors.items():
                require(value.shape == shapes.get(key), f"state {key} grows to {tuple(value.shape)} in {steps} steps")
    require(flops[0] == flops[1], f"a step takes {flops[0]} FLOPs after 12 steps and {flops[1]} after 492")
    require(flops[0] > 0, "a step computes nothing")
