"""Losses of the Decision Transformer (arXiv 2106.01345, section 3): predicted against recorded actions, no padding.

B batch, K steps of context, k actions of a chunk; "..." stands for any leading axes.
"""

import math
from collections.abc import Callable, Mapping

import torch
from jaxtyping import Bool, Float
from torch import Tensor

from rltransformers.functional.modules import masked_mean
from rltransformers.policies.action_heads import ActionHead
from rltransformers.policies.action_leaves import ActionLeaf, ContinuousAction
from rltransformers.policies.several_modes import FlowAction, MixtureAction

Mean = Callable[[Tensor, Tensor], Tensor]
"""The mean of values over the entries that are valid: ``masked_mean``, or that over several processes."""


def leaf_loss(
    leaf: ActionLeaf, output: Float[Tensor, "... A"], action: Tensor, noise: Float[Tensor, "... L"] | None = None
) -> Float[Tensor, "..."]:
    """Loss of one leaf at every step: mean squared error in head units, of a flow, or the negative log-probability."""
    if leaf.has_density:
        return -leaf.log_prob(output, action)
    assert isinstance(leaf, ContinuousAction)
    if isinstance(leaf, FlowAction):
        assert noise is not None
        return leaf.matching_loss(output, action, noise)
    return (leaf.squash(output) - leaf.as_numbers(action)).square().mean(-1)


def step_losses(
    head: ActionHead,
    outputs: Float[Tensor, "B K ..."],
    actions: Mapping[str, Tensor],
    noise: Float[Tensor, "B K L"] | None = None,
    counts: Bool[Tensor, "B K k"] | None = None,
) -> Float[Tensor, "B K"]:
    """Loss of the recorded actions by path, legal ones also where there is no step; summed over the leaves.

    Args:
        noise: uniform numbers in [0, 1), ``head.loss_draws`` of them; None where that is 0.
        counts: which actions of a chunk lie in the episode, for outputs [B, K, k, A] and actions [B, K, k, ...]; the
            loss of a step is then the mean over those. None for one action.
    """
    parts = head.split(outputs)
    numbers = dict.fromkeys(parts) if noise is None else head.split(noise, "loss_draws")
    losses = []
    for path, leaf in head.by_path.items():
        inputs = parts[path], actions[path]
        if counts is not None and isinstance(leaf, MixtureAction):
            losses.append(-leaf.log_prob_of_chunk(*inputs, counts) / counts.sum(-1))
        else:
            loss = leaf_loss(leaf, *inputs, numbers[path])
            losses.append(loss if counts is None else mean_of_chunk(loss, counts))
    return torch.stack(losses).sum(0)


def mean_of_chunk(values: Float[Tensor, "B K k"], counts: Bool[Tensor, "B K k"]) -> Float[Tensor, "B K"]:
    """Mean over the actions of every chunk that count; at least the first does."""
    return torch.where(counts, values, 0.0).sum(-1) / counts.sum(-1)


def expectile_loss(
    prediction: Float[Tensor, "B K"],
    target: Float[Tensor, "B K"],
    expectile: float,
    valid: Bool[Tensor, "B K"],
    mean: Mean = masked_mean,
) -> Float[Tensor, ""]:
    """Mean over valid steps of |tau - 1[u < 0]| u^2 with u = target - prediction, both in network units.

    Reinformer (Zhuang et al. 2024, arXiv 2405.08740, section 4): tau towards 1 approaches the largest target that
    occurs. There u is divided by the mean |R| of the batch; ours is in units of ``return_scale``, because a batch in
    which nobody earns anything has no mean |R| to divide by.
    """
    u = target - prediction
    weight = torch.where(u < 0, u.new_tensor(1.0 - expectile), u.new_tensor(expectile))
    return mean(weight * u.square(), valid)


def difference(
    head: ActionHead, one: Float[Tensor, "B K ..."], other: Float[Tensor, "B K ..."]
) -> Float[Tensor, "B K"]:
    """How far decisions lie apart, in [0, 1]: 1 for another class or bit, a Box by the width of its bounds.

    The largest difference of all leaves, and of all actions of a chunk. Without bounds, two deviations of the recorded
    actions or more count as 1.
    """
    mine, others = head.split(one), head.split(other)
    found = []
    for path, leaf in head.by_path.items():
        if isinstance(leaf, ContinuousAction):
            apart = (leaf.squash(mine[path]) - leaf.squash(others[path])).abs().flatten(2)
            found.append(apart.amax(-1).clamp(max=2.0) / 2)
        else:
            same = leaf.decode(mine[path]) == leaf.decode(others[path])
            found.append((~same).flatten(2).any(-1).to(one.dtype) if same.dim() > 2 else (~same).to(one.dtype))
    return torch.stack(found).amax(0)


def default_warmup(updates: int, decay_steps: int | None = None) -> int:
    """Warm-up of a run of so many updates: a tenth of them, or of ``decay_steps`` where that is less, at most 1,000."""
    return min(1_000, min(updates, decay_steps or updates) // 10)


def learning_rate_factor(step: int, warmup_steps: int, decay: tuple[int, int] = (0, 0)) -> float:
    """Linear warm-up, (step + 1) / warmup_steps, then 1; ``step`` counts finished updates.

    From the first step of ``decay`` (or the end of the warm-up) it follows the cosine that ends at 0 with the last one,
    but never below 0.1, which it reaches after four fifths (the schedule of the paper's Atari experiments, there
    counted in tokens); with a last one of 0 it stays at 1.
    """
    if step < warmup_steps:
        return (step + 1) / warmup_steps
    begin, end = max(decay[0], warmup_steps), decay[1]
    if end == 0:
        return 1.0
    progress = min(1.0, (step - begin) / max(1, end - begin))
    return max(0.1, 0.5 * (1.0 + math.cos(math.pi * progress)))
