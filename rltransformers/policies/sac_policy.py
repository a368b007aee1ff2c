"""The policy of soft actor-critic with memory: an actor and critics, each over a backbone, and a target network.

Axes: B environments, T steps, W token width, O outputs of the action head, N critics, J combinations of countable
actions.
"""

from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from typing import Annotated, Any

from annotated_types import Ge, Le
from gymnasium import spaces
from jaxtyping import Float, Shaped
from stable_baselines3.common.type_aliases import Schedule
from torch import Tensor, nn

from rltransformers.backbone import BackboneConfig, Record
from rltransformers.core.action_masks import ACTION_MASK
from rltransformers.core.errors import ConfigError
from rltransformers.core.ranges import strict
from rltransformers.core.spaces import Space
from rltransformers.data.replay import Window
from rltransformers.policies.deep_losses import Targets, predicts_later
from rltransformers.policies.encoders import unbounded
from rltransformers.policies.extractors import Extractor
from rltransformers.policies.observed import ObservationOptions
from rltransformers.policies.optimizers import OptimizerName, OptimizerOptions, decay_groups
from rltransformers.policies.replay_policy import ReplayPolicy
from rltransformers.policies.soft_head import Drawn, SoftCritics, SoftHead
from rltransformers.policies.token_backbone import TokenBackbone, weighted_losses


@dataclass
class TrunkEvaluation:
    """Features of the steps of a window behind its context, of one trunk.

    ``auxiliary_loss`` is the weighted sum of ``losses``, which are named as in the config.
    """

    features: Float[Tensor, "B T W"]
    record: Record | None = None
    auxiliary_loss: Tensor | None = None
    losses: dict[str, Tensor] = field(default_factory=dict)


class GTrXLSACPolicy(ReplayPolicy):
    """An actor and critics over transformer backbones (GTrXL, arXiv 1910.06764, by default), and a target network.

    Args:
        observation_space: any nesting of Box, Discrete, MultiDiscrete, MultiBinary in Dict and Tuple.
        action_space: any nesting of Box with finite bounds, Discrete, MultiDiscrete and MultiBinary, of these three
            with at most 1,024 combinations.
        lr_schedule: learning rate by remaining progress (1 to 0).
        shared_backbone: True gives actor and critics one encoder and backbone, which the critics train: the actor reads
            its features without gradient. False: one for the actor, one for the critics.
        head_width: units of the two hidden layers of the actor and of every critic.
        n_critics: number of critics.
        layer_norm: whether the critics have a LayerNorm before every activation.

    Other arguments are those of ``GTrXLPolicy``.

    Raises:
        ConfigError: for an unsupported space, a setting outside its range, dropout above 0, or a loss that predicts
            later actions.
    """

    action_head: SoftHead

    @strict
    def __init__(
        self,
        observation_space: Space,
        action_space: Space,
        lr_schedule: Schedule,
        *,
        backbone: BackboneConfig | Mapping[str, Any] | str | None = None,
        shared_backbone: bool = False,
        previous_action: bool = False,
        previous_reward: bool = False,
        first_step: bool = False,
        head_width: Annotated[int, Ge(1), Le(2**16)] = 256,
        n_critics: Annotated[int, Ge(1), Le(64)] = 2,
        layer_norm: bool = False,
        observation: ObservationOptions | None = None,
        features_extractor_class: Extractor | None = None,
        features_extractor_kwargs: Mapping[str, Any] | None = None,
        action_masks: bool | None = None,
        optimizer: OptimizerName = "adam",
        optimizer_kwargs: OptimizerOptions | None = None,
    ) -> None:
        super().__init__(
            observation_space,
            action_space,
            backbone=backbone,
            shared_backbone=shared_backbone,
            previous_action=previous_action,
            previous_reward=previous_reward,
            first_step=first_step,
            head_width=head_width,
            observation=observation,
            features_extractor_class=features_extractor_class,
            features_extractor_kwargs=features_extractor_kwargs,
            action_masks=action_masks,
        )
        if predicts_later(self.actor.backbone):
            raise ConfigError(
                "soft actor-critic has no head that predicts the action after the next one; set future of the loss to 0"
            )
        width = self.config.width
        self.action_hidden = nn.Sequential(
            nn.Linear(width, head_width), nn.ReLU(), nn.Linear(head_width, head_width), nn.ReLU()
        )
        self.action_head = SoftHead(action_space, head_width)
        # Small first outputs: every action is tried before any is preferred.
        self.init_weights(self.action_head.linear, gain=0.01)
        head = self.action_head
        self.critics = SoftCritics(width, head.box_numbers, head.combinations, head_width, n_critics, layer_norm)
        self.n_critics = n_critics
        self.target_parts = ("actor" if shared_backbone else "critic", "critics")
        self._begin_learning(lr_schedule, optimizer, optimizer_kwargs)

    @property
    def trunk(self) -> TokenBackbone:
        """The encoder and backbone that the critics read and train."""
        return self.actor if self.critic is None else self.critic

    @property
    def target_trunk(self) -> TokenBackbone:
        """The slow copy of ``trunk``."""
        part: Any = self.target[self.target_parts[0]]
        return part

    @property
    def drawn_space(self) -> Space:
        leaves = self.action_head.spaces
        return unbounded(self.action_space, [path for path, leaf in leaves.items() if isinstance(leaf, spaces.Box)])

    def _groups(self) -> list[dict[str, Any]]:
        """Groups of the optimizer; those of encoders and backbones say so by "trunk"."""
        trunk = {id(each) for part in self.backbones() for each in part.parameters()}
        groups = []
        for is_trunk in (False, True):
            own = [each for each in self.learned if (id(each) in trunk) is is_trunk]
            groups += [group | {"trunk": is_trunk} for group in decay_groups(self, own)]
        return groups

    def critic_parameters(self) -> list[nn.Parameter]:
        """Parameters that the loss of the critics trains."""
        return [*self.critics.parameters(), *self.trunk.parameters()]

    def actor_parameters(self) -> list[nn.Parameter]:
        """Parameters that the loss of the actor trains."""
        critic = {id(each) for each in self.critic_parameters()}
        return [each for each in self.learned if id(each) not in critic]

    def outputs(self, features: Float[Tensor, "... W"], observations: Mapping[str, Tensor]) -> Float[Tensor, "... O"]:
        """Outputs of the action head, of allowed actions, of features of these observations."""
        outputs = self.action_head.forward(self.action_hidden(features))
        return self.action_head.masked(outputs, observations[ACTION_MASK]) if self.masks else outputs

    def _read(
        self, features: Tensor, value_features: Tensor, observations: Mapping[str, Tensor]
    ) -> tuple[Tensor, Tensor]:
        """Outputs, and the value of the policy by the lowest critic: of the most likely action of Boxes."""
        outputs = self.outputs(features, observations)
        likely = self.action_head.drawn(outputs)
        q = self.critics(value_features, likely.boxes)
        return outputs, (likely.log_probs.exp() * q.amin(-2)).sum(-1)

    # Windows of replay

    def evaluate_trunk(self, window: Window, part: TokenBackbone) -> TrunkEvaluation:
        """Features behind the context, and the auxiliary losses of the backbone unless it only follows another one."""
        record = Record() if part.backbone.aux_weights and part is not self.target_trunk else None
        features = self.features(window, part, record)
        if record is None:
            return TrunkEvaluation(features)
        prefix = "value_" if part is self.critic else ""
        losses = {prefix + name: loss for name, loss in record.losses.items()}
        return TrunkEvaluation(features, record, weighted_losses(part.backbone, record), losses)

    def window_outputs(self, features: Float[Tensor, "B T W"], window: Window) -> Float[Tensor, "B T O"]:
        """``outputs`` at the first T steps of a window behind its context."""
        steps = slice(window.context, window.context + features.shape[1])
        return self.outputs(features, {path: leaf[:, steps] for path, leaf in window.observations.items()})

    def target_values(self, features: Float[Tensor, "B T W"], drawn: Drawn) -> Float[Tensor, "B T N J"]:
        """Values of the drawn actions by the target network, from features of ``target_trunk``."""
        return self.target["critics"](features, drawn.boxes)

    def taken_values(
        self, features: Float[Tensor, "B L W"], boxes: Float[Tensor, "B L A"], index: Shaped[Tensor, "B L"]
    ) -> Float[Tensor, "B L N"]:
        """Values of the actions that were taken."""
        q = self.critics(features, boxes)
        return q.gather(-1, index[..., None, None].expand(*q.shape[:-1], 1)).squeeze(-1)

    def critic_errors(
        self,
        features: Float[Tensor, "B L W"],
        boxes: Float[Tensor, "B L A"],
        index: Shaped[Tensor, "B L"],
        targets: Float[Tensor, "B L"],
    ) -> Float[Tensor, "B L"]:
        """Half the squared errors of the actions that were taken, the sum over the critics."""
        return 0.5 * (self.taken_values(features, boxes, index) - targets.unsqueeze(-1)).square().sum(-1)

    def add_deep_losses(
        self,
        now: TrunkEvaluation,
        part: TokenBackbone,
        window: Window,
        error: Callable[[Tensor], Float[Tensor, "B L"]],
        steps: int,
    ) -> None:
        """Losses of features behind inner layers: the first ``steps`` rows as the last layer, by ``error`` of them."""
        record = now.record
        if record is None or not record.streams:
            return
        cut = slice(None, steps)
        record.exits = None if record.exits is None else record.exits[:, cut]
        first = window.first[:, window.context :][:, cut]
        targets = Targets(lambda features: error(features[:, cut]), None, window.counts[:, cut], first)
        told = set(now.losses)
        self.tell_deep_losses(now, targets, part)
        if part is self.critic:
            now.losses = {name if name in told else f"value_{name}": loss for name, loss in now.losses.items()}
