"""Small functions: dropout, moving averages, means. Axes: ... any leading axes, B batch, T time."""

from collections.abc import Callable, Mapping
from functools import partial

import torch
from jaxtyping import Bool, Float
from torch import Tensor, nn
from torch.nn import functional as F

EPS = 1e-5
"""Of norms: added to the mean of squares."""

Norm = nn.LayerNorm | nn.RMSNorm
NORMS: Mapping[str, Callable[[int], Norm]] = {"layer": nn.LayerNorm, "rms": partial(nn.RMSNorm, eps=EPS)}
"""Norms of joins, and around the layers, by their names in a config."""

LEVELS = 65_536
"""Dropout rates on the CPU are multiples of 1 / LEVELS: a number takes 16 random bits."""


def normalize_rms(x: Float[Tensor, "*n X"], gain: Float[Tensor, " X"]) -> Float[Tensor, "*n X"]:
    """``x / sqrt(mean x^2 + 1e-5) * gain`` (Zhang & Sennrich 2019, arXiv 1910.07467)."""
    return F.rms_norm(x, gain.shape, eps=EPS) * gain


def wide_type(*tensors: Tensor) -> torch.dtype:
    """The dtype that the numbers of all tensors fit into; float32 at least."""
    dtype = torch.float32
    for x in tensors:
        dtype = torch.promote_types(dtype, x.dtype)
    return dtype


def wide(x: Float[Tensor, "*n"]) -> Float[Tensor, "*n"]:
    """The same numbers in float32 at least."""
    return x.to(wide_type(x))


def unit_length(x: Float[Tensor, "*n X"], eps: float = 1e-6) -> Float[Tensor, "*n X"]:
    """Divide rows by their length; float32 at least. ``eps`` is added to the square of the length."""
    x = wide(x)
    return x * (x.square().sum(-1, keepdim=True) + eps).rsqrt()


def evenly(first: float, last: float, count: int) -> Float[Tensor, " n"]:
    """``count`` numbers at equal distances. ``torch.linspace`` on the device of no numbers loads PyTorch's compiler."""
    return torch.tensor([first + (last - first) * index / max(count - 1, 1) for index in range(count)])


@torch.no_grad()
def approach(slow: Mapping[str, Tensor], fast: Mapping[str, Tensor], share: float) -> None:
    """Let every tensor of ``slow`` take on its share of the one of that name; whole numbers and truths are copied."""
    for name, value in slow.items():
        value.lerp_(fast[name], share) if value.is_floating_point() else value.copy_(fast[name])


def dropout(x: Tensor, rate: float) -> Tensor:
    """Set a share ``rate`` > 0 of the numbers to 0 and divide the others by 1 - rate (Srivastava et al. 2014).

    On the CPU the kernel of PyTorch draws every number on its own and takes longer than the matrix products around it.
    There four 16-bit draws come out of one 64-bit draw, so ``rate`` is rounded to a multiple of 1/65,536, and the scale
    is that of the rounded rate: the mean is unbiased.
    """
    if x.device.type != "cpu" or round(rate * LEVELS) in (0, LEVELS):
        return F.dropout(x, rate)
    return x * keep_factor(x, rate)


def keep_factor(like: Tensor, rate: float) -> Tensor:
    """The factors of dropout: 0, or 1 / (1 - rate), in the shape of ``like``; from the default generator."""
    if like.device.type != "cpu":
        return F.dropout(torch.ones_like(like), rate)
    count, dropped = like.numel(), round(rate * LEVELS)
    draws = torch.empty(-(-count // 4), dtype=torch.int64).random_(-(2**63), None).view(torch.int16)[:count]
    return draws.ge(dropped - LEVELS // 2).view(like.shape).to(like.dtype).mul_(LEVELS / max(LEVELS - dropped, 1))


def scale_gradient(x: Float[Tensor, "*n"], factor: Float[Tensor, "*n"]) -> Float[Tensor, "*n"]:
    """The same numbers, whose gradient is multiplied by a factor."""
    fixed = x.detach()
    return fixed + factor * (x - fixed)


def add_optional(a: Tensor | None, b: Tensor | None) -> Tensor | None:
    """The sum of two tensors that may be missing."""
    return b if a is None else a if b is None else a + b


def masked_mean(values: Float[Tensor, "*n"], valid: Bool[Tensor, "*n"]) -> Float[Tensor, ""]:
    """Sum over valid entries divided by their number, so every valid step of a batch has the same weight.

    Invalid entries may hold anything, NaN included; 0 when nothing is valid.
    """
    return torch.where(valid, values, 0.0).sum() / valid.sum().clamp(min=1)


def masked_means(values: Float[Tensor, "*n B T"], valid: Bool[Tensor, "B T"]) -> Float[Tensor, "*n"]:
    """``masked_mean`` of every leading index, with the same valid entries."""
    return torch.where(valid, values, 0.0).sum((-2, -1)) / valid.sum().clamp(min=1)


def frequencies(dims: int, base: float | Tensor, like: Tensor) -> Float[Tensor, " half"]:
    """base^(-2f/dims) for f = 0 .. dims/2 - 1, in at least float32."""
    steps = torch.arange(0, dims, 2, device=like.device, dtype=wide_type(like))
    return base ** (-steps / dims)


def turn(
    x: Float[Tensor, "*n X"], cos: Float[Tensor, "*m half"], sin: Float[Tensor, "*m half"]
) -> Float[Tensor, "*n X"]:
    """Turn the pairs (2f, 2f + 1) of channels by the angle f; those that have none stay."""
    size = 2 * cos.shape[-1]
    if not size:
        return x
    a, b = x[..., 0:size:2], x[..., 1:size:2]
    pairs = torch.stack([a * cos - b * sin, a * sin + b * cos], -1).flatten(-2)
    return torch.cat([pairs, x[..., size:]], -1) if size < x.shape[-1] else pairs
