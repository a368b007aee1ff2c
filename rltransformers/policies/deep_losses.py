"""Losses of the streams after inner layers, where a config asks for them: the same head reads all of them.

Axes: N layers, B environments or windows, T steps, E numbers of a predictor of exits.
"""

import math
from collections.abc import Callable, Mapping
from dataclasses import dataclass

import torch
from jaxtyping import Bool, Float, Int
from torch import Tensor
from torch.nn import functional as F

from rltransformers.backbone import Backbone, Record
from rltransformers.backbone.losses import DeepOptions, ExitOptions
from rltransformers.core.record import Means
from rltransformers.functional.modules import masked_means


@dataclass(frozen=True)
class Targets:
    """Losses of every step from features [B, T, W]: of its action, and whatever else is predicted.

    ``later`` is that of the step after it, read by heads of its own; not used where that is another episode's.
    """

    now: Callable[[Tensor], Float[Tensor, "B T"]]
    later: Callable[[Tensor], Float[Tensor, "B T"]] | None
    counts: Bool[Tensor, "B T"]  # steps that enter the means
    first: Bool[Tensor, "B T"]  # steps that begin an episode


def predicts_later(backbone: Backbone) -> bool:
    """Whether a loss predicts the step after the next one, which takes a head of its own."""
    return any(
        isinstance(choice.options, DeepOptions) and choice.options.future > 0
        for choice in backbone.config.choices.losses
    )


def shifted(actions: Mapping[str, Tensor]) -> dict[str, Tensor]:
    """The actions [B, T, ...] of the step after each step; the last ones stay, and do not count."""
    return {path: torch.cat([leaf[:, 1:], leaf[:, -1:]], 1) for path, leaf in actions.items()}


def tell_deep_losses(backbone: Backbone, record: Record, targets: Targets, progress: float) -> None:
    """Add what the streams of a call lose to its record; ``progress`` is the part of training that is over, 0 to 1."""
    streams = record.streams
    if not streams:
        return
    for choice in backbone.config.choices.losses:
        if isinstance(choice.options, ExitOptions):
            losses = torch.stack([targets.now(stream) for stream in streams])
            mixed = None if record.random_exits is None else targets.now(record.random_exits)
            loss = exits_loss(losses, record.exits, targets, choice.options, mixed)
            record.add_loss(choice.name, loss, targets.counts.sum())
        elif isinstance(choice.options, DeepOptions):
            record.add_loss(choice.name, *deep_losses(streams, targets, choice.options, progress))


def exits_loss(
    losses: Float[Tensor, "N B T"],
    predictions: Float[Tensor, "B T E"] | None,
    targets: Targets,
    options: ExitOptions,
    mixed: Float[Tensor, "B T"] | None = None,
) -> Float[Tensor, ""]:
    """Weighted mean of what the layers lose, plus what the predictor of exits loses against what would have been best.

    ``mixed`` takes the place of the mean: what tokens lose that left after layers drawn for them. Elbayad et al. 2020
    (arXiv 1910.10073, equations 2 and 5), Schuster et al. 2022 (arXiv 2207.07061, equations 6 and 7).
    """
    layers = len(losses)
    weights = torch.ones(layers) if options.weights == "uniform" else torch.arange(1.0, layers + 1)
    weights = weights.to(losses)
    if mixed is None:
        total = (weights * masked_means(losses, targets.counts)).sum() / weights.sum()
    else:
        total = masked_means(mixed, targets.counts)
    if predictions is None or predictions.shape[-1] == 0:
        return total
    found = losses.detach()
    if predictions.shape[-1] == layers:
        best = oracle(found, targets, options.penalty, options.smoothing)
        missed = -predictions.gather(-1, best[..., None])[..., 0]
    else:
        right = (found[:-1] <= found[-1] + options.slack).movedim(0, -1).to(predictions.dtype)
        missed = F.binary_cross_entropy_with_logits(predictions, right, reduction="none").mean(-1)
    return total + masked_means(missed, targets.counts)


def oracle(losses: Float[Tensor, "N B T"], targets: Targets, penalty: float, smoothing: float) -> Int[Tensor, "B T"]:
    """The layer, counted from 0, whose smoothed loss plus ``penalty`` per layer is smallest.

    Smoothing sums over the steps t' of the episode, later ones included, with weights exp(-(t - t')^2 / smoothing):
    only a target of training knows the future.
    """
    losses = torch.where(targets.counts, losses, 0.0)
    if smoothing > 0:
        episode = targets.first.long().cumsum(1)
        t = torch.arange(losses.shape[-1], device=losses.device)
        near = torch.exp(-((t[:, None] - t).square() / smoothing)).to(losses.dtype)
        losses = torch.einsum("bts,nbs->nbt", near * (episode[:, :, None] == episode[:, None]), losses)
    number = torch.arange(1, len(losses) + 1, device=losses.device, dtype=losses.dtype)
    return (losses + penalty * number[:, None, None]).argmin(0)


def deep_losses(
    streams: list[Float[Tensor, "B T D"]], targets: Targets, options: DeepOptions, progress: float
) -> Means:
    """Losses of inner layers as long as they count, plus a share of those of all about the step after.

    Al-Rfou et al. 2018 (arXiv 1808.04444, section 2): what layer l of n loses counts until l / 2n of the training.
    """
    layers = len(streams)
    counted = streams[min(ended(layers, progress), layers - 1) :]
    found = [masked_means(targets.now(stream), targets.counts) for stream in counted[:-1]]
    numbers = [targets.counts.sum()] * len(found)
    if options.future > 0 and targets.later is not None:
        next_first = torch.cat([targets.first[:, 1:], torch.ones_like(targets.first[:, :1])], 1)
        follows = torch.cat([targets.counts[:, 1:], torch.zeros_like(targets.counts[:, :1])], 1)
        counts = targets.counts & follows & ~next_first
        found += [options.future * masked_means(targets.later(stream), counts) for stream in counted]
        numbers += [counts.sum()] * len(counted)
    return Means(torch.stack(found), torch.stack(numbers)) if found else Means(streams[0].new_zeros(()), None)


def ended(layers: int, progress: float) -> int:
    """Of how many layers, from the first one on, the loss counts no more."""
    return math.floor(2 * layers * progress)


def ended_losses(backbone: Backbone, progress: float) -> int:
    """Of how many layers of ``backbone`` the loss counts no more; 0 where none ever ends."""
    ends = any(isinstance(choice.options, DeepOptions) for choice in backbone.config.choices.losses)
    return ended(backbone.config.layers, progress) if ends else 0
