"""The loss of a Decision Transformer on B windows of K steps; critics, and the price of entropy, learn beside it."""

import copy
import math
from collections.abc import Mapping
from typing import Any, NamedTuple

import torch
from jaxtyping import Bool, Float
from torch import Tensor

from rltransformers.algorithms.critic import alignment_loss, critic_loss, policy_gain, stitching_weight, window_targets
from rltransformers.algorithms.decision import expectile_loss, mean_of_chunk, step_losses
from rltransformers.backbone import Record
from rltransformers.core.checkpoint import check_tensor, restore_optimizer, restore_weights
from rltransformers.core.ranges import check
from rltransformers.core.seeding import step_seed
from rltransformers.core.world import Sharing
from rltransformers.data import ContextBatch
from rltransformers.functional.modules import approach
from rltransformers.policies.action_heads import ActionHead, blank_invalid
from rltransformers.policies.decision_network import DecisionPolicy
from rltransformers.policies.deep_losses import Targets, shifted, tell_deep_losses
from rltransformers.training.auxiliary import losses_of_all
from rltransformers.training.offline.data import DataSummary
from rltransformers.training.offline.settings import CriticName, CriticOptions

FIRST_TEMPERATURE, TEMPERATURE_LEARNING_RATE = 0.1, 1e-4
"""As in the published code of Zheng et al. 2022."""


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
        self.average = copy.deepcopy(policy).eval().requires_grad_(False)
        self.average.critics = None
        self.optimizer = torch.optim.Adam(self.critics.parameters(), lr=options.learning_rate, fused=True)

    def step(self, policy: DecisionPolicy, batch: ContextBatch, sharing: Sharing) -> dict[str, Tensor]:
        """One step of the critics towards targets inside the windows of this process; metrics by path."""
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
        taken = head.as_numbers(blank_invalid(head.spaces, batch.actions, batch.valid)).unsqueeze(-2)
        self.critics.requires_grad_(True)
        values, unit = self.critics(observations, taken).squeeze(-1), self.critics.scale
        loss = critic_loss(values / unit, targets / unit, counts, sharing.mean)
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
        """Loss that is added to that of the policy, and its metrics; ``chances`` say how far returns are shifted."""
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
        return {
            "slow": self.slow.state_dict(),
            "average": self.average.state_dict(),
            "optimizer": self.optimizer.state_dict(),
        }

    def restore(self, stored: Any) -> None:
        """Take on the tensors of a checkpoint, or raise CheckpointError."""
        stored = check(stored, Mapping[str, Any], "critic")
        restore_weights(self.slow, stored["slow"], "critic.slow")
        restore_weights(self.average, stored["average"], "critic.average")
        restore_optimizer(self.optimizer, stored["optimizer"], "critic.optimizer")

    def _observations(self, policy: DecisionPolicy, batch: ContextBatch) -> dict[str, Tensor]:
        return policy.standardized(blank_invalid(policy.observation_leaves, batch.observations, batch.valid))


class EntropyBound:
    """A temperature that rises while the entropy of a policy lies below a bound, and falls while it lies above.

    Zheng et al. 2022, section 4.1: the loss of the policy is its negative log-likelihood minus temperature times
    entropy, that of the temperature is temperature times (entropy - bound). The bound is minus one nat for each of the
    ``components`` of all Boxes, in units where the bounds of an action are -1 and 1.
    """

    def __init__(self, components: int, device: torch.device) -> None:
        self.bound = -float(components)
        self.log_temperature = torch.tensor(math.log(FIRST_TEMPERATURE), device=device, requires_grad=True)
        self.optimizer = torch.optim.Adam([self.log_temperature], lr=TEMPERATURE_LEARNING_RATE)

    @property
    def temperature(self) -> Float[Tensor, ""]:
        """Worth of a nat of entropy in nats of likelihood."""
        return self.log_temperature.detach().exp()

    def step(self, entropy: Float[Tensor, ""]) -> None:
        """Move the temperature by one step of Adam, for a policy of this mean entropy."""
        loss = self.log_temperature.exp() * (entropy.detach() - self.bound)
        self.optimizer.zero_grad(set_to_none=True)
        loss.backward()
        self.optimizer.step()

    def tensors(self) -> dict[str, Any]:
        return {"log_temperature": self.log_temperature.detach(), "optimizer": self.optimizer.state_dict()}

    def restore(self, stored: Any) -> None:
        """Take on the tensors of a checkpoint, or raise CheckpointError."""
        stored = check(stored, Mapping[str, Any], "entropy")
        log_temperature = check_tensor(stored["log_temperature"], "entropy.log_temperature", (), torch.float32)
        with torch.no_grad():
            self.log_temperature.copy_(log_temperature)
        restore_optimizer(self.optimizer, stored["optimizer"], "entropy.optimizer")


def loss_numbers(
    head: ActionHead, batch: ContextBatch, rows: int, part: slice, seed: int, step: int
) -> tuple[Float[Tensor, " B"], Float[Tensor, "B K L"] | None]:
    """``chances`` and ``noise`` of ``decision_loss`` in the update after ``step``: the ``part`` of those of ``rows``.

    They depend on seed, step and place alone: a resumed run and one of several processes draw the same.
    """
    shift, own = (torch.Generator().manual_seed(step_seed(seed, step, name)) for name in ("shift", "head"))
    chances = torch.rand(rows, generator=shift)[part]
    if not head.loss_draws:
        return chances, None
    noise = torch.rand(batch.valid.shape[1], rows, head.loss_draws, generator=own)  # more padding draws the same
    return chances, noise[:, part].transpose(0, 1).to(batch.valid.device)


def decision_loss(
    policy: DecisionPolicy,
    batch: ContextBatch,
    record: Record,
    expectile: float,
    critic: CriticLearner | None,
    entropy: EntropyBound | None,
    chances: Float[Tensor, " B"],
    noise: Float[Tensor, "B K L"] | None,
    sharing: Sharing,
    progress: float,
) -> tuple[Tensor, dict[str, Tensor]]:
    """Mean over the valid steps of a batch, plus the backbone's auxiliary losses; and its parts by path of the metric.

    Args:
        expectile: of the predicted returns, where there is a head for them.
        chances: uniform in [0, 1), what the critic's term draws.
        noise: uniform in [0, 1), what the loss of actions draws, see ``step_losses``.
        sharing: the processes of which each has a part of the batch; the loss is that of the whole batch.
        progress: share of the training that is over, 0 to 1.
    """
    features, predicted = policy.read(
        batch.observations, batch.actions, batch.return_to_go, batch.timestep, batch.valid, record
    )
    recorded = RecordedActions.of(policy, batch)
    outputs = policy.masked(policy.outputs(features, batch.episode), recorded.masks)
    balanced = policy.head.balance(outputs)
    loss = sharing.mean(step_losses(policy.head, balanced, recorded.actions, noise, recorded.counts), batch.valid)
    metrics: dict[str, Tensor] = {}
    if predicted is not None or critic is not None or entropy is not None:
        metrics["train/action_loss"] = loss.detach()
    if entropy is not None:
        values = policy.head.spread(balanced)
        values = values if recorded.counts is None else mean_of_chunk(values, recorded.counts)
        value = sharing.mean(values, batch.valid)
        loss = loss - entropy.temperature * value
        metrics |= {"train/entropy": value.detach(), "train/temperature": entropy.temperature}
    if predicted is not None:
        value = expectile_loss(predicted, policy.scaled(batch.return_to_go), expectile, batch.valid, sharing.mean)
        loss, metrics = loss + value, metrics | {"train/return_loss": value.detach()}
    if critic is not None:
        term, of_critic = critic.term(policy, batch, outputs, chances, sharing)
        loss, metrics = loss + term, metrics | of_critic
    if record.streams:
        tell_deep_losses(policy.backbone, record, deep_targets(policy, batch, recorded, noise), progress)
    losses = record.losses if sharing.is_single else losses_of_all(record.means, batch.valid.sum(), sharing)
    for name, weight in policy.backbone.aux_weights.items():
        loss = loss + weight * losses[name]
    return loss, metrics | {f"train/{name}_loss": value.detach() for name, value in losses.items()}


class RecordedActions(NamedTuple):
    """What a policy learns to predict at every step of a batch."""

    actions: dict[str, Tensor]  # by path [B, K, leaf shape], of chunks [B, K, k, leaf shape]; legal ones in padding
    counts: Bool[Tensor, "B K k"] | None  # actions of a chunk that lie in the episode; None for one action
    masks: Mapping[str, Tensor]  # holds the leaf ``action_mask`` of these actions, where there is one

    @classmethod
    def of(cls, policy: DecisionPolicy, batch: ContextBatch) -> "RecordedActions":
        chunks, spaces = batch.chunks, policy.head.spaces
        if chunks is None:
            return cls(blank_invalid(spaces, batch.actions, batch.valid), None, batch.observations)
        return cls(blank_invalid(spaces, chunks.actions, batch.valid), chunks.counts, chunks.masks)


def deep_targets(
    policy: DecisionPolicy, batch: ContextBatch, recorded: RecordedActions, noise: Tensor | None
) -> Targets:
    """Predictions of features behind inner layers: the recorded actions, as the policy does, and those after them."""
    head, later_net, later = policy.head, policy.later_net, shifted(recorded.actions)
    asked = policy.scaled(torch.where(batch.valid, batch.return_to_go, 0.0))

    def next_one(features: Tensor) -> Tensor:
        assert later_net is not None
        return step_losses(head, later_net(policy.conditioned(features, asked)), later, noise)

    return Targets(
        now=lambda features: step_losses(
            head,
            policy.masked(head(policy.conditioned(features, asked)), recorded.masks),
            recorded.actions,
            noise,
            recorded.counts,
        ),
        later=None if later_net is None else next_one,
        counts=batch.valid,
        first=batch.timestep == 0,
    )
