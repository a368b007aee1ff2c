"""Dropout (Srivastava et al. 2014, JMLR 15) without one slow draw per number on the CPU."""

import torch
from torch import Tensor

LEVELS = 65_536


def dropout(x: Tensor, rate: float, training: bool) -> Tensor:
    """``x`` with a share ``rate`` of its numbers set to 0 and the others divided by 1 - rate; ``x`` itself otherwise.

    On the CPU the kernel of PyTorch draws every number on its own and takes longer than the matrix products around it.
    There four 16-bit draws come out of one 64-bit draw, so ``rate`` is rounded to a multiple of 1/65,536, and the scale
    is that of the rounded rate: the mean is unbiased.
    """
    if not training or rate == 0.0:
        return x
    if x.device.type != "cpu" or round(rate * LEVELS) in (0, LEVELS):
        return torch.nn.functional.dropout(x, rate)
    return x * keep_factor(x, rate)


def keep_factor(like: Tensor, rate: float) -> Tensor:
    """The factors of dropout: 0, or 1 / (1 - rate), in the shape of ``like``; from the default generator."""
    if like.device.type != "cpu":
        return torch.nn.functional.dropout(torch.ones_like(like), rate)
    count, dropped = like.numel(), round(rate * LEVELS)
    draws = torch.empty(-(-count // 4), dtype=torch.int64).random_(-(2**63), None).view(torch.int16)[:count]
    return draws.ge(dropped - LEVELS // 2).view(like.shape).to(like.dtype).mul_(LEVELS / max(LEVELS - dropped, 1))
