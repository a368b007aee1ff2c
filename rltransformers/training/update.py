"""Parts that the updates of all online agents share; the loop itself is ``train`` of each agent.

Axes: E environments, B of a minibatch, T steps, A outputs.
"""

import warnings
from collections.abc import Callable, Iterable, Iterator, Sequence
from dataclasses import dataclass, replace
from typing import Any, Literal, TypeVar

import torch
from stable_baselines3.common.logger import Logger
from torch import Tensor, nn
from torch.utils import _pytree as pytree

from rltransformers.algorithms.loss import Loss
from rltransformers.backbone import Record, State
from rltransformers.core.errors import DataError
from rltransformers.core.world import Sharing, rows_of
from rltransformers.data.replay import Window
from rltransformers.data.rollout import Recorded, Segment
from rltransformers.export.evaluation import CompiledEvaluation
from rltransformers.policies.actor_critic import GTrXLPolicy, SegmentEvaluation
from rltransformers.policies.memory_policy import MemoryPolicy
from rltransformers.policies.policy_state import PolicyState
from rltransformers.policies.popart import PopArt
from rltransformers.policies.q_network import QEvaluation
from rltransformers.policies.sac_policy import TrunkEvaluation
from rltransformers.policies.steps import announce
from rltransformers.training.auxiliary import losses_of_all
from rltransformers.training.online.carry import MemoryRefresh, segment_of, segment_tensors

LossT = TypeVar("LossT", bound=Loss)
UpdateMode = Literal["eager", "compiled"]
"""How what an update learns from is evaluated, forward and backward: operation by operation, or as machine code."""
RATIO_TOLERANCE = 0.01
"""Of the first probability ratio of an update: far above rounding, in bfloat16 (4e-4) too."""
for _kind in (Segment, Window, PolicyState, State, Record, SegmentEvaluation, QEvaluation, TrunkEvaluation):
    pytree.register_dataclass(_kind)  # machine code takes and returns trees of tensors


@dataclass(frozen=True)
class Minibatch:
    """Whole segments of some environments."""

    rows: Tensor  # the environments, among those of all processes
    segment: Segment  # their segments that this process evaluates
    outputs: Any  # action outputs of the target policy for these segments [B, T, A]; None for PPO
    takers: Tensor  # which process evaluates each of ``rows``


def minibatches(
    sharing: Sharing, segment: Segment, n_rows: int, generator: torch.Generator, outputs: Tensor | None = None
) -> Iterator[Minibatch]:
    """Yield the environments of all processes in random order, ``n_rows`` at a time; the last may hold fewer.

    Args:
        segment: of the environments of this process.
        outputs: action outputs beside it [E, T, A].
    """
    n_envs, device = len(segment), segment.rewards.device
    batches = torch.randperm(n_envs * sharing.size, generator=generator, device="cpu").split(n_rows)
    if sharing.is_single:
        for rows in batches:
            at = rows.to(device)
            yield Minibatch(at, segment.rows(at), None if outputs is None else outputs[at], torch.zeros_like(rows))
        return
    # Every process takes its share of every minibatch. What it lacks of it changes hands before the epoch.
    owners = [rows // n_envs for rows in batches]
    takers = [sharing.assign(ranks) for ranks in owners]
    order = torch.cat(batches)
    own = (order[torch.cat(owners) == sharing.rank] % n_envs).to(device)
    tree = {"segment": rows_of(segment_tensors(segment), own), "outputs": None if outputs is None else outputs[own]}
    tree = sharing.all_to_all(tree, torch.cat(owners), torch.cat(takers))
    begin = 0
    for rows, ranks in zip(batches, takers, strict=True):
        part = rows_of(tree, slice(begin, begin := begin + int((ranks == sharing.rank).sum())))
        yield Minibatch(rows.to(device), segment_of(part["segment"]), part["outputs"], ranks)


def in_mode(policy: MemoryPolicy, evaluate: Callable[..., Any], mode: UpdateMode) -> Callable[..., Any]:
    """``evaluate`` of a segment or a window by ``policy``, in eager mode or as machine code."""
    return CompiledEvaluation(policy, evaluate, announce) if mode == "compiled" else evaluate


def evaluate(
    evaluate_segment: Callable[[Segment], SegmentEvaluation], minibatch: Minibatch, sharing: Sharing
) -> SegmentEvaluation:
    """Evaluate a minibatch, each process its part; the numbers of all of it, but for outputs and auxiliary losses."""
    now = evaluate_segment(minibatch.segment)
    names = ("log_probs", "values", "entropy", "log_barrier")
    whole = sharing.gather({name: getattr(now, name) for name in names}, minibatch.takers)
    return replace(now, **whole)


def add_auxiliary(
    loss: LossT, now: SegmentEvaluation | QEvaluation | TrunkEvaluation, tokens: int, sharing: Sharing
) -> LossT:
    """Add the auxiliary losses of the network to the loss of an algorithm, of all processes.

    Args:
        now: the evaluation that they are in, of so many ``tokens``.
    """
    if now.auxiliary_loss is None:
        return loss
    losses, total = now.losses, now.auxiliary_loss
    if not sharing.is_single:
        losses = losses_of_all(now.means, tokens, sharing)
        total = torch.stack([weight * losses[name] for name, weight in now.weights.items()]).sum()
    return replace(loss, total=loss.total + total, auxiliary={name: each.detach() for name, each in losses.items()})


def descend(
    policy: MemoryPolicy,
    loss: Tensor,
    parameters: Iterable[nn.Parameter],
    max_norm: float,
    update: int,
    sharing: Sharing,
) -> Tensor:
    """Take one step of the optimizer of ``policy``; return the norm of the gradient before it was clipped.

    Args:
        parameters: those whose gradient is clipped to ``max_norm``.
        update: number of this update, for messages.

    Raises:
        DataError: for a loss that is not finite.
    """
    if not torch.isfinite(loss):
        raise DataError(
            f"the loss of update {update} is {float(loss.detach())}; rewards or observations may be far "
            "too large (VecNormalize scales observations, scale_rewards=True rewards), or learning_rate too high"
        )
    optimizer: torch.optim.Optimizer = policy.optimizer
    optimizer.zero_grad()
    loss.backward()
    sharing.sum_in_place(
        each.grad for group in optimizer.param_groups for each in group["params"] if each.grad is not None
    )
    norm = nn.utils.clip_grad_norm_(parameters, max_norm)
    optimizer.step()
    for part in policy.backbones():
        part.backbone.constrain_()
    return norm


def maintain(policy: MemoryPolicy, sharing: Sharing) -> None:
    """Let mixers learn from the inputs of an update, on all processes."""
    for part in policy.backbones():
        for sums in part.backbone.statistics():
            sharing.sum_in_place([sums])
        part.backbone.maintain()


def renew_memory(
    policy: GTrXLPolicy, segment: Segment, acting: PolicyState, refresh: MemoryRefresh, rows: Tensor
) -> tuple[PolicyState, float]:
    """Return the memory to go on with after an update on ``segment``, and the staleness of that of ``acting``.

    With ``refresh`` "never" it is that of ``acting``, whose staleness is measured in the environments ``rows`` alone.
    """
    stored = policy.without_cache(acting)
    if refresh == "never":
        return stored, staleness(stored[rows], policy.memory_after(segment.rows(rows)))
    renewed = policy.memory_after(segment)
    return renewed, staleness(stored, renewed)


def staleness(stored: PolicyState, renewed: PolicyState) -> float:
    """|stored - renewed| / |renewed| over all floating-point memory of actor and critic."""
    pairs = [(stored.actor, renewed.actor)]
    if stored.critic is not None and renewed.critic is not None:
        pairs.append((stored.critic, renewed.critic))
    difference = size = 0.0
    for old, new in pairs:
        for name, tensor in new.tensors.items():
            if tensor.is_floating_point() and name in old.tensors:
                difference += float((old.tensors[name] - tensor).square().sum())
                size += float(tensor.square().sum())
    return (difference / size) ** 0.5 if size else 0.0


def mean_of(losses: Sequence[LossT], part: str) -> float:
    """Return the mean over minibatches of one part of a loss."""
    return float(torch.stack([getattr(loss, part) for loss in losses]).mean())


def log_losses(logger: Logger, losses: Sequence[LossT], *parts: str, **renamed: str) -> None:
    """Record means over the minibatches of an update, of parts (``metric=part`` renames one) and auxiliary losses."""
    for metric, part in (dict(zip(parts, parts, strict=True)) | renamed).items():
        logger.record(f"train/{metric}", mean_of(losses, part))
    for name in losses[0].auxiliary:
        values = torch.stack([loss.auxiliary[name] for loss in losses])
        logger.record(f"train/{name}_loss", float(values.mean()))
    logger.record("train/loss", float(losses[-1].total.detach()))


def follow_returns(policy: GTrXLPolicy, batch: Recorded) -> None:
    """Move the statistics of a PopArt value head, and the head with them, before it learns from ``batch``."""
    head = policy.value_net
    if isinstance(head, PopArt) and bool(batch.counts.any()):
        head.follow(batch.returns[batch.counts])


@torch.no_grad()
def memory_panel(forward: Callable[[Record], object]) -> dict[str, Tensor]:
    """How far attention looks back and the like, by path of the metric.

    ``forward`` runs the network with this record, for nothing else, so that looking never changes an update.
    """
    record = Record(weights=True)
    forward(record)
    return {f"memory/{name}": value for name, value in record.metrics.items()}


def log_ratio_error(logger: Logger, error: float, sharing: Sharing) -> None:
    """Log how far the first probability ratio of an update is from 1; warn of more than rounding makes of it."""
    logger.record("train/first_ratio_error", error)
    if error > RATIO_TOLERANCE and sharing.is_leader:
        warnings.warn(
            f"acting and training disagree: train/first_ratio_error is above {RATIO_TOLERANCE}, where rounding "
            "leaves 1e-4; the agent learns about actions that it would not have drawn. Parts of your own may see "
            'more, or other, than one step at a time (docs/conformance.md); acting="eager" leaves out the compiler',
            stacklevel=2,
        )
