"""The loss of a Decision Transformer on a batch: actions, predicted returns, values, auxiliary losses."""

from collections.abc import Mapping

import torch
from jaxtyping import Float
from torch import Tensor

from rltransformers.algorithms.decision import expectile_loss, step_losses
from rltransformers.backbone import Record
from rltransformers.core.world import Sharing
from rltransformers.data import ContextBatch
from rltransformers.policies.decision import DecisionPolicy
from rltransformers.policies.deep_losses import Targets, shifted, tell_deep_losses
from rltransformers.training.offline.decision_critic import CriticLearner
from rltransformers.training.offline.entropy_bound import EntropyBound


def decision_loss(
    policy: DecisionPolicy,
    batch: ContextBatch,
    record: Record,
    expectile: float,
    critic: CriticLearner | None,
    entropy: EntropyBound | None,
    chances: Float[Tensor, " B"],
    sharing: Sharing,
    progress: float,
) -> tuple[Tensor, dict[str, Tensor]]:
    """Mean over the valid steps of a batch, plus the backbone's auxiliary losses; and its parts by path of the metric.

    Args:
        expectile: of the predicted returns, where there is a head for them.
        critic: adds what its values say about the policy; None adds nothing.
        entropy: adds the entropy of Boxes at its temperature; None adds nothing.
        chances: uniform in [0, 1), what the critic's term draws.
        sharing: the processes of which each has a part of the batch; the loss is that of the whole batch.
        progress: share of the training that is over, 0 to 1.
    """
    features, predicted = policy.read(
        batch.observations, batch.actions, batch.return_to_go, batch.timestep, batch.valid, record
    )
    outputs = policy.masked(policy.outputs(features, batch.episode), batch.observations)
    actions = policy.head.blank(batch.actions, batch.valid)
    loss = sharing.mean(step_losses(policy.head, outputs, actions), batch.valid)
    metrics: dict[str, Tensor] = {}
    if predicted is not None or critic is not None or entropy is not None:
        metrics["train/action_loss"] = loss.detach()
    if entropy is not None:
        value = sharing.mean(policy.head.box_entropy(outputs), batch.valid)
        loss = loss - entropy.temperature * value
        metrics |= {"train/entropy": value.detach(), "train/temperature": entropy.temperature}
    if predicted is not None:
        value = expectile_loss(predicted, policy.scaled(batch.return_to_go), expectile, batch.valid, sharing.mean)
        loss, metrics = loss + value, metrics | {"train/return_loss": value.detach()}
    if critic is not None:
        term, of_critic = critic.term(policy, batch, outputs, chances, sharing)
        loss, metrics = loss + term, metrics | of_critic
    if record.streams:
        tell_deep_losses(policy.backbone, record, deep_targets(policy, batch, actions), progress)
    # Means over steps, most of them: each part counts as many of the valid steps as it holds.
    share = 1.0 if sharing.is_single else batch.valid.sum() / sharing.sum(batch.valid.sum())
    losses = {name: sharing.sum(share * value) for name, value in record.losses.items()}
    for name, weight in policy.backbone.aux_weights.items():
        loss = loss + weight * losses[name]
    return loss, metrics | {f"train/{name}_loss": value.detach() for name, value in losses.items()}


def deep_targets(policy: DecisionPolicy, batch: ContextBatch, actions: Mapping[str, Tensor]) -> Targets:
    """Predictions of features behind inner layers: the recorded actions, as the policy does, and those after them."""
    head, later_net, later = policy.head, policy.later_net, shifted(actions)
    asked = policy.scaled(torch.where(batch.valid, batch.return_to_go, 0.0))

    def next_one(features: Tensor) -> Tensor:
        assert later_net is not None
        return step_losses(head, later_net(policy.conditioned(features, asked)), later)

    return Targets(
        now=lambda features: step_losses(
            head, policy.masked(head(policy.conditioned(features, asked)), batch.observations), actions
        ),
        later=None if later_net is None else next_one,
        counts=batch.valid,
        first=batch.timestep == 0,
    )
