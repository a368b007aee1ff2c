"""Means of the entries that count."""

import torch
from jaxtyping import Bool, Float
from torch import Tensor


def masked_mean(values: Float[Tensor, "*n"], valid: Bool[Tensor, "*n"]) -> Float[Tensor, ""]:
    """Sum over valid entries divided by their number, so every valid step of a batch has the same weight.

    Invalid entries may hold anything, NaN included; 0 when nothing is valid.
    """
    return torch.where(valid, values, 0.0).sum() / valid.sum().clamp(min=1)


def masked_means(values: Float[Tensor, "*n B T"], valid: Bool[Tensor, "B T"]) -> Float[Tensor, "*n"]:
    """``masked_mean`` of every leading index, with the same valid entries."""
    return torch.where(valid, values, 0.0).sum((-2, -1)) / valid.sum().clamp(min=1)
