"""Episodes through one mixer."""

from typing import Any

import torch
from torch import Tensor

from rltransformers.core.record import Probe
from rltransformers.functional.call import Call, Tokens
from rltransformers.mixers.interface import Dims, Mixed

DIMS = Dims(width=12, heads=4, kv_heads=2, head_dim=3, value_dim=5, memory=1)
T = 11


def one_episode(time: int = T, batch: int = 1, first: int = 0) -> Tokens:
    """Tokens of one episode from the position ``first`` on, in every stream."""
    p = torch.arange(first, first + time).expand(batch, time)
    return Tokens(p, p, torch.full((batch, time), first > 0), torch.full((batch,), first - 1))


def fresh(mixer: Any, batch: int = 1) -> dict[str, Tensor]:
    """The state of a mixer that has seen nothing."""
    return {name: torch.zeros(batch, *shape) for name, shape in mixer.state_shapes().items()}


def mixed(mixer: Any, x: Tensor, probe: Probe | None = None) -> Mixed:
    """Outputs of an episode, and the state after it."""
    result: Mixed = mixer(x, fresh(mixer, len(x)), Call(one_episode(x.shape[1], len(x)), probe or Probe()))
    return result


def run(mixer: Any, x: Tensor, probe: Probe | None = None) -> Tensor:
    """Outputs of an episode."""
    return mixed(mixer, x, probe).out


def read(mixer: Any, x: Tensor, probe: Probe | None = None) -> tuple[Tensor, dict[str, Tensor]]:
    """What the heads read in episodes [B, H, T, V], in front of a gated output ``mixer.out``, and the last state."""
    reads: list[Tensor] = []
    with mixer.out.register_forward_pre_hook(lambda module, arguments: reads.append(arguments[0])):
        state = mixed(mixer, x, probe).state
    return reads[0], state


def heads_of(mixer: Any, x: Tensor) -> tuple[Tensor, Tensor, Tensor]:
    """Queries, keys and values [B, H, T, .] with key and value heads repeated."""
    dims: Dims = mixer.dims
    counts = dims.heads, dims.kv_heads, dims.kv_heads
    q, k, v = (
        rows.unflatten(-1, (count, -1)).transpose(1, 2)
        for rows, count in zip(mixer.project(x).split(dims.widths, -1), counts, strict=True)
    )
    return q, k.repeat_interleave(dims.share, 1), v.repeat_interleave(dims.share, 1)
