"""The policy of soft actor-critic with memory: an actor and critics, each over a backbone, and a target network.

Axes: B environments, T steps, W token width, O outputs of the action head, N critics, J combinations of countable
actions.
"""

from collections.abc import Callable, Mapping
from dataclasses import dataclass
from typing import Annotated, Any

from annotated_types import Ge, Le
from gymnasium import spaces
from jaxtyping import Float, Shaped
from stable_baselines3.common.type_aliases import Schedule
from torch import Tensor, nn

from rltransformers.backbone import BackboneConfig, Record
from rltransformers.core.errors import ConfigError
from rltransformers.core.ranges import strict
from rltransformers.core.spaces import Space
from rltransformers.data.replay import Window
from rltransformers.policies.deep_losses import Targets, predicts_later
from rltransformers.policies.encoders import unbounded
from rltransformers.policies.extractors import Extractor
from rltransformers.policies.observed import ObservationOptions, read_encoding
from rltransformers.policies.optimizers import OptimizerName, OptimizerOptions, decay_groups
from rltransformers.policies.replay_policy import ReplayPolicy
from rltransformers.policies.soft_head import Drawn, SoftCritics, SoftHead
from rltransformers.policies.token_backbone import BaseEvaluation, TokenBackbone, TokenParts


@dataclass
class TrunkEvaluation(BaseEvaluation):
    """Features of the steps of a window behind its context, of one trunk."""

    features: Float[Tensor, "B T W"]


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
        encoding = read_encoding(observation, features_extractor_class, features_extractor_kwargs)
        parts = TokenParts(encoding, previous_action, previous_reward, first_step)
        super().__init__(observation_space, action_space, backbone, parts, head_width, action_masks, shared_backbone)
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
        now = TrunkEvaluation(self.features(window, part, record), record=record)
        if record is not None:
            now.add_losses(part.backbone, record, of_critic=part is self.critic)
        return now

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
        first = window.first[:, window.context :][:, :steps]
        targets = Targets(lambda features: error(features[:, :steps]), None, window.counts[:, :steps], first)
        self.add_losses_of_layers(now, targets, part)
