"""The policy of Q-learning with memory: observation tokens, a backbone, and the value of every action.

Axes: B environments, T steps, W token width, A actions.
"""

import math
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from typing import Annotated, Any

import torch
from annotated_types import Ge, Le
from gymnasium import spaces
from jaxtyping import Float
from stable_baselines3.common.type_aliases import Schedule
from torch import Tensor, nn

from rltransformers.backbone import BackboneConfig, Record
from rltransformers.core.action_masks import ACTION_MASK
from rltransformers.core.errors import ConfigError
from rltransformers.core.ranges import UnitInterval, strict
from rltransformers.core.spaces import Space
from rltransformers.data.replay import Window
from rltransformers.policies.action_heads import ActionHead
from rltransformers.policies.action_leaves import LEAST, MASKED, CategoricalAction
from rltransformers.policies.deep_losses import Targets, predicts_later, shifted
from rltransformers.policies.extractors import Extractor
from rltransformers.policies.observed import ObservationOptions, read_encoding
from rltransformers.policies.optimizers import OptimizerName, OptimizerOptions
from rltransformers.policies.replay_policy import ReplayPolicy
from rltransformers.policies.token_backbone import BaseEvaluation, TokenParts, hidden_layer


class EpsilonGreedyAction(CategoricalAction):
    """A Discrete leaf whose outputs are values of actions: takes the best one, or with ``epsilon`` any allowed one.

    One number of noise decides: below 0 a random action, from 0 to ``epsilon`` a random action, above it the best. The
    numbers of ``draw`` are uniform in [0, 1); negative ones come from whoever explores at a rate of its own.
    """

    def __init__(self, space: spaces.Discrete, epsilon: float) -> None:
        super().__init__(space, None)
        self.epsilon = epsilon

    def decode(self, output: Float[Tensor, "... A"], noise: Float[Tensor, "... 1"] | None = None) -> Tensor:
        best = output.argmax(-1, keepdim=True)
        if noise is not None:
            share = torch.where(noise < 0.0, noise + 1.0, noise / max(self.epsilon, LEAST))
            passed = (output > 0.5 * MASKED).cumsum(-1)  # how many of the allowed actions come up to this one
            count = passed[..., -1:]
            wanted = torch.minimum((share.clamp(0.0, 1.0) * count).long(), count - 1)
            drawn = (passed <= wanted).sum(-1, keepdim=True).clamp(max=self.outputs - 1)
            best = torch.where(noise < self.epsilon, drawn, best)
        return (best if self.counted_from_zero else best + self.start).view(output.shape[:-1])

    def probabilities(self, output: Float[Tensor, "... A"]) -> Float[Tensor, "... A"]:
        """Of every action where ``epsilon`` is the rate of exploration."""
        allowed, best = output > 0.5 * MASKED, output.argmax(-1, keepdim=True)
        random = self.epsilon * allowed / allowed.sum(-1, keepdim=True).clamp(min=1)
        return random.scatter_add(-1, best, torch.full_like(random[..., :1], 1.0 - self.epsilon))

    def distribution(self, output: Float[Tensor, "... A"]) -> dict[str, Tensor]:
        """Fields of ``PolicyOutput``: probabilities under ``epsilon``, and the values of all actions."""
        q_values = output.masked_fill(output <= 0.5 * MASKED, -math.inf)
        return {"probabilities": self.probabilities(output), "q_values": q_values}

    def log_prob(self, output: Float[Tensor, "... A"], action: Tensor) -> Float[Tensor, "..."]:
        return self.probabilities(output).gather(-1, self.classes(action)).squeeze(-1).clamp(min=LEAST).log()

    def entropy(self, output: Float[Tensor, "... A"]) -> Float[Tensor, "..."]:
        chances = self.probabilities(output)
        return -(chances * chances.clamp(min=LEAST).log()).sum(-1)


class QHead(ActionHead):
    """Linear layer from features to the value of every action."""

    def __init__(self, space: spaces.Discrete, width: int, epsilon: float) -> None:
        super().__init__(space, width, embeds=False)
        self.by_path = {"": EpsilonGreedyAction(space, epsilon)}
        self.leaves = nn.ModuleList(self.by_path.values())


@dataclass
class QEvaluation(BaseEvaluation):
    """Values ``q`` [B, T, A] of the actions at the steps of a window behind its context."""

    q: Tensor


class GTrXLQPolicy(ReplayPolicy):
    """Values of actions over a transformer backbone (GTrXL, arXiv 1910.06764, by default), and a target network.

    Args:
        observation_space: any nesting of Box, Discrete, MultiDiscrete, MultiBinary in Dict and Tuple.
        action_space: Discrete.
        lr_schedule: learning rate by remaining progress (1 to 0).
        epsilon: share of random actions where ``predict`` samples (``deterministic=False``); learning explores at
            rates of its own.

    Other arguments are those of ``GTrXLPolicy``.

    Raises:
        ConfigError: for an unsupported space, a setting outside its range, or dropout above 0.
    """

    action_space: spaces.Discrete
    target_parts = ("actor", "action_hidden", "action_head")

    @strict
    def __init__(
        self,
        observation_space: Space,
        action_space: Space,
        lr_schedule: Schedule,
        *,
        backbone: BackboneConfig | Mapping[str, Any] | str | None = None,
        previous_action: bool = False,
        previous_reward: bool = False,
        first_step: bool = False,
        head_width: Annotated[int, Ge(0), Le(2**16)] = 0,
        epsilon: UnitInterval = 0.05,
        observation: ObservationOptions | None = None,
        features_extractor_class: Extractor | None = None,
        features_extractor_kwargs: Mapping[str, Any] | None = None,
        action_masks: bool | None = None,
        optimizer: OptimizerName = "adam",
        optimizer_kwargs: OptimizerOptions | None = None,
    ) -> None:
        if not isinstance(action_space, spaces.Discrete):
            raise ConfigError(
                f"Q-learning needs a Discrete action space, got {action_space}: number the actions with a wrapper, or "
                "take GTrXLPPO, which learns any actions"
            )
        encoding = read_encoding(observation, features_extractor_class, features_extractor_kwargs)
        parts = TokenParts(encoding, previous_action, previous_reward, first_step)
        super().__init__(observation_space, action_space, backbone, parts, head_width, action_masks)
        self.action_hidden, latent = hidden_layer(self.config.width, head_width)
        self.action_head = QHead(action_space, latent, epsilon)
        # Small first values, so that none is preferred before it is tried.
        self.init_weights(self.action_head.linear, gain=0.01)
        later = predicts_later(self.actor.backbone)
        self.later_net = nn.Linear(latent, self.action_head.linear.out_features) if later else None
        self._begin_learning(lr_schedule, optimizer, optimizer_kwargs)

    def _read(
        self, features: Tensor, value_features: Tensor, observations: Mapping[str, Tensor]
    ) -> tuple[Tensor, Tensor]:
        """Values of all allowed actions [..., A], and of the best one [...]."""
        q = self.outputs(features, observations)
        return q, q.amax(-1)

    # Acting

    def exploration(self, rates: Tensor, generator: torch.Generator | None) -> Float[Tensor, "B 1"]:
        """Noise for ``step`` with which environment i takes a random action with probability ``rates[i]``."""
        drawn = torch.rand(2, len(rates), generator=generator, device=rates.device)
        return torch.where(drawn[0] < rates, drawn[1] - 1.0, 1.0).unsqueeze(-1)

    # Windows of replay

    def evaluate_window(self, window: Window, target: bool = False) -> QEvaluation:
        """Values of allowed actions behind the context; the gradient flows through these steps alone."""
        parts: Any = self.target if target else dict(self.named_children())
        actor = parts["actor"]
        record = Record() if actor.backbone.aux_weights and not target else None
        q = parts["action_head"](parts["action_hidden"](self.features(window, actor, record)))
        if self.masks:
            q = self.action_head.masked(q, window.observations[ACTION_MASK][:, window.context :])
        now = QEvaluation(q, record=record)
        if record is not None:
            now.add_losses(actor.backbone, record)
        return now

    def classes(self, window: Window) -> Tensor:
        """The actions [B, T] of a window, counted from 0."""
        leaf = self.action_head.by_path[""]
        assert isinstance(leaf, CategoricalAction)
        return leaf.classes(window.actions[""]).squeeze(-1)

    def add_deep_losses(
        self, now: QEvaluation, window: Window, error: Callable[[Tensor], Float[Tensor, "B L"]], steps: int
    ) -> None:
        """Losses of features behind inner layers: the first ``steps`` rows as the last layer, by ``error`` of values.

        ``error`` takes values [B, T, A]. Where a loss predicts later steps, that is the action taken next.
        """

        def value_loss(features: Tensor) -> Tensor:
            return error(self.action_head(self.action_hidden(features)))

        def next_one(features: Tensor) -> Tensor:
            assert self.later_net is not None
            later = shifted({"": self.classes(window)})[""][:, :steps, None]
            logs = self.later_net(self.action_hidden(features[:, :steps])).log_softmax(-1)
            return -logs.gather(-1, later).squeeze(-1)

        then, first = None if self.later_net is None else next_one, window.first[:, window.context :][:, :steps]
        self.add_losses_of_layers(now, Targets(value_loss, then, window.counts[:, :steps], first), self.actor)
