"""Critics that learn beside a Decision Transformer, and what they add to its loss. B windows, K steps of a window."""

import copy
from collections.abc import Mapping
from typing import Any

import torch
from jaxtyping import Float
from torch import Tensor

from rltransformers.algorithms.critic import (
    alignment_loss,
    critic_loss,
    policy_gain,
    stitching_weight,
    window_targets,
)
from rltransformers.core.checkpoint import restore_optimizer, restore_weights
from rltransformers.core.ranges import check
from rltransformers.core.world import Sharing
from rltransformers.data import ContextBatch
from rltransformers.functional.modules import approach
from rltransformers.policies.action_heads import blank_invalid
from rltransformers.policies.decision import DecisionPolicy
from rltransformers.training.offline.decision_data import DataSummary
from rltransformers.training.offline.decision_settings import CriticName, CriticOptions


class CriticLearner:
    """Twin critics, their slow copies, the averaged policy whose actions make the targets, and the optimizer.

    An update takes a step of the critics, then one of the policy with ``term`` in its loss, then ``follow``. The
    critics themselves belong to the policy (``DecisionPolicy.critics``), which may act by them.

    Differs from the published code: QT takes one critic, drawn in every update, over the mean size of the other, sets
    the reward of a step that ends an episode to 0, and clones next observations, too; QCS trains its critic beforehand.

    Args:
        name: which windows the value counts in: "qt" all alike, "qcs" those of poor episodes.
    """

    def __init__(self, policy: DecisionPolicy, name: CriticName, options: CriticOptions, summary: DataSummary) -> None:
        assert policy.critics is not None
        self.name, self.options, self.summary = name, options, summary
        self.critics = policy.critics
        self.slow = copy.deepcopy(policy.critics).eval()
        self.average = averaged(policy)
        self.optimizer = torch.optim.Adam(self.critics.parameters(), lr=options.learning_rate, fused=True)

    def step(self, policy: DecisionPolicy, batch: ContextBatch, sharing: Sharing) -> dict[str, Tensor]:
        """One step of the critics towards targets inside each window; metrics by path.

        Args:
            batch: what this process has of the whole one.
        """
        head = policy.head
        observations = self._observations(policy, batch)
        with torch.no_grad():
            outputs = self.average(batch.observations, batch.actions, batch.return_to_go, batch.timestep, batch.valid)
            values = self.slow.expected(observations, head, outputs).amin(0)
            last = batch.valid.long().cumsum(1).argmax(1, keepdim=True)
            targets, counts = window_targets(
                torch.where(batch.valid, batch.rewards, 0.0),
                batch.terminated,
                batch.valid,
                values.gather(1, last)[:, 0],
                self.options.discount,
            )
        taken = head.as_numbers(head.blank(batch.actions, batch.valid)).unsqueeze(-2)
        self.critics.requires_grad_(True)
        loss = critic_loss(self.critics(observations, taken).squeeze(-1), targets, counts, sharing.mean)
        self.optimizer.zero_grad(set_to_none=True)
        loss.backward()
        sharing.sum_in_place(each.grad for each in self.critics.parameters())
        self.optimizer.step()
        self.critics.requires_grad_(False)
        return {"train/critic_loss": loss.detach(), "train/target_mean": sharing.mean(targets, counts)}

    def term(
        self,
        policy: DecisionPolicy,
        batch: ContextBatch,
        outputs: Float[Tensor, "B K A"],
        chances: Float[Tensor, " B"],
        sharing: Sharing,
    ) -> tuple[Tensor, dict[str, Tensor]]:
        """Loss that is added to that of the policy, and metrics by path.

        Args:
            outputs: of the head, for this batch.
            chances: uniform in [0, 1), how far returns are shifted.
        """
        options, observations = self.options, self._observations(policy, batch)
        values = self.critics.expected(observations, policy.head, outputs).amin(0)
        gain = policy_gain(values, self.weight(batch), batch.valid, sharing.mean)
        metrics = {"train/value_mean": sharing.mean(values.detach(), batch.valid), "train/policy_gain": gain.detach()}
        if options.alignment == 0:
            return -gain, metrics
        shift = (2.0 * chances.to(values.device) - 1.0) * options.shift * self.summary.spread
        moved = policy(
            batch.observations, batch.actions, batch.return_to_go + shift[:, None], batch.timestep, batch.valid
        )
        shifted = self.critics.expected(observations, policy.head, moved).amin(0)
        aligned = alignment_loss(shifted, values, shift, batch.valid, sharing.mean)
        return options.alignment * aligned - gain, metrics | {"train/alignment_loss": aligned.detach()}

    def weight(self, batch: ContextBatch) -> Float[Tensor, " B"]:
        """How much values count in every window."""
        if self.name == "qt":
            return torch.full_like(batch.episode_return, self.options.weight)
        return stitching_weight(
            batch.episode_return, self.summary.best_return, self.summary.spread, self.options.weight
        )

    def begin(self, policy: DecisionPolicy) -> None:
        """Let the slow critics and the averaged policy be what the policy is now."""
        self.slow.load_state_dict(self.critics.state_dict())
        self.average.load_state_dict(policy.state_dict())

    def follow(self, policy: DecisionPolicy) -> None:
        """Let the slow critics and the averaged policy take on their share of today's."""
        approach(self.slow.state_dict(), self.critics.state_dict(), self.options.polyak)
        approach(self.average.state_dict(), policy.state_dict(), 1.0 - self.options.actor_average)

    def tensors(self) -> dict[str, Any]:
        """Tensors of a checkpoint besides the policy."""
        return {
            "slow": self.slow.state_dict(),
            "average": self.average.state_dict(),
            "optimizer": self.optimizer.state_dict(),
        }

    def restore(self, stored: Any) -> None:
        """Take on what a checkpoint holds.

        Raises:
            CheckpointError: names the first part that is missing or has another shape.
        """
        stored = check(stored, Mapping[str, Any], "critic")
        restore_weights(self.slow, stored["slow"], "critic.slow")
        restore_weights(self.average, stored["average"], "critic.average")
        restore_optimizer(self.optimizer, stored["optimizer"], "critic.optimizer")

    def _observations(self, policy: DecisionPolicy, batch: ContextBatch) -> dict[str, Tensor]:
        """As the critics read them."""
        return policy.standardized(blank_invalid(policy.observation_leaves, batch.observations, batch.valid))


def averaged(policy: DecisionPolicy) -> DecisionPolicy:
    """A copy that acts and does not learn, without critics."""
    critics, policy.critics = policy.critics, None
    try:
        average = copy.deepcopy(policy)
    finally:
        policy.critics = critics
    return average.eval().requires_grad_(False)
