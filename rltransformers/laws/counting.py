"""Cost of a forward pass, counted: FLOPs, and bytes kept for the backward pass."""

import math
from collections.abc import Callable, Sequence
from typing import Any

import torch
from torch import Tensor
from torch.utils import flop_counter


def fused_attention_flops(query: Sequence[int], key: Sequence[int], value: Sequence[int], *_: Any, **__: Any) -> int:
    """FLOPs of torch's fused attention on the CPU; masks do not lower them."""
    return flop_counter.sdpa_flop_count(query, key, value)


def added_product_flops(_: Sequence[int], left: Sequence[int], right: Sequence[int], **__: Any) -> int:
    """FLOPs of a product that is added to a tensor in place."""
    return 2 * math.prod(left) * right[-1]


# Torch's counter knows neither the fused attention of the CPU nor products that are added in place.
UNCOUNTED = {
    torch.ops.aten._scaled_dot_product_flash_attention_for_cpu: fused_attention_flops,
    torch.ops.aten.baddbmm_: added_product_flops,
    torch.ops.aten.addmm_: added_product_flops,
}


def cost(forward: Callable[[], Tensor]) -> tuple[int, int]:
    """FLOPs of a forward pass, and bytes of the distinct storages that it keeps for the backward pass."""
    storages: dict[int, int] = {}

    def note(saved: Tensor) -> Tensor:
        storages[saved.untyped_storage().data_ptr()] = saved.untyped_storage().nbytes()
        return saved.detach()  # a node that kept its own output as it is would keep itself, for ever

    with (
        flop_counter.FlopCounterMode(display=False, custom_mapping=UNCOUNTED) as counter,
        torch.autograd.graph.saved_tensors_hooks(note, lambda saved: saved),
    ):
        kept_alive = forward()
    del kept_alive
    return counter.get_total_flops(), sum(storages.values())
