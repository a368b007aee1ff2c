"""The policy of the online agents: observation tokens, a backbone with memory, an action head and a value head.

Axes: B environments, T steps, W token width, A action numbers.
"""

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Annotated, Any

import torch
from annotated_types import Ge, Le
from stable_baselines3.common.type_aliases import Schedule
from torch import Tensor, nn

from rltransformers.backbone import BackboneConfig, Record
from rltransformers.core.ranges import strict
from rltransformers.core.record import Means
from rltransformers.core.spaces import Space
from rltransformers.data.rollout import Segment
from rltransformers.functional.modules import add_optional
from rltransformers.policies.action_heads import ActionHead
from rltransformers.policies.action_leaves import GaussianAction
from rltransformers.policies.deep_losses import Targets, predicts_later, shifted
from rltransformers.policies.extractors import Extractor
from rltransformers.policies.memory_policy import NOTHING, MemoryPolicy
from rltransformers.policies.observed import ObservationOptions, read_encoding
from rltransformers.policies.optimizers import OptimizerName, OptimizerOptions, decay_groups, make_optimizer, over
from rltransformers.policies.policy_state import PolicyState, StepInputs
from rltransformers.policies.popart import PopArt
from rltransformers.policies.readouts.catalogue import read_readout
from rltransformers.policies.registered import check_alike
from rltransformers.policies.token_backbone import BaseEvaluation, TokenParts, hidden_layer


@dataclass
class Evaluation(BaseEvaluation):
    """Evaluation of [B, T] steps by the policy; ``outputs`` [B, T, A] are those of its action head."""

    outputs: Tensor
    values: Tensor
    state: PolicyState


@dataclass
class SegmentEvaluation(BaseEvaluation):
    """Evaluation of the steps of a whole segment, each [B, T]; ``outputs`` [B, T, A] are those of the action head."""

    outputs: Tensor
    log_probs: Tensor
    values: Tensor
    entropy: Tensor
    log_barrier: Tensor | None


class GTrXLPolicy(MemoryPolicy):
    """An actor-critic over a transformer backbone (GTrXL, arXiv 1910.06764, by default).

    Args:
        observation_space: any nesting of Box, Discrete, MultiDiscrete, MultiBinary in Dict and Tuple.
        action_space: any nesting of Discrete, MultiDiscrete, MultiBinary and Box with finite bounds in Dict and Tuple.
        lr_schedule: learning rate by remaining progress (1 to 0).
        backbone: a ``BackboneConfig``, its dictionary, ``{"preset": "gtrxl", "width": 64, "memory": 64}``, or a preset,
            ``"gtrxl"``.
        shared_backbone: False gives the value function an encoder and a backbone of its own.
        previous_action: add the action of the step before to every token.
        previous_reward: add the reward of the step before to every token.
        first_step: tell the network which step is the first of its episode.
        head_width: units of one hidden layer (tanh) in front of each head; 0 for none.
        log_std_init: first logarithm of the standard deviation of Box actions, in units where the bounds are -1 and 1.
        readout: what the action head adds of recorded actions: "knn", "spalm" or {"name": ..., option: ...}; their
            store fills after every update, and is frozen from then to the end of the next one.
        observation: ``{"encoder": "bert"}`` or {"encoder": {"name": ..., option: ...}} reads the elements of a set or
            sequence inside the observation; with the backbone's ``topology: encoder_decoder`` every layer looks at
            them, otherwise they are pooled into the token. ``{"leaves": {path: name}}`` chooses the encoder of a leaf
            (the path of a bare observation is ""): "vector", "index", "image", or one of ``register_encoder``.
        features_extractor_class: a subclass of ``BaseFeaturesExtractor`` of Stable-Baselines3, or its name: it reads
            the observation, and a linear map makes the token of its features.
        features_extractor_kwargs: keywords of its constructor, JSON values.
        action_masks: whether only actions are taken that a mask allows: the leaf ``action_mask`` of the observation, or
            what the method ``action_masks()`` of the environment says. None: wherever there is one.
        optimizer: "adam", "adamw", or "muon": Muon for the weights of hidden layers, AdamW for everything else; see
            docs/lab/optimizers.md.
        optimizer_kwargs: keywords of the optimizer beside the learning rate, see ``OptimizerOptions``.

    Raises:
        ConfigError: for an unsupported space, a setting outside its range, or dropout above 0: the action
            probabilities of rollout and update would differ, and their ratio would be noise.
    """

    @strict
    def __init__(
        self,
        observation_space: Space,
        action_space: Space,
        lr_schedule: Schedule,
        *,
        backbone: BackboneConfig | Mapping[str, Any] | str | None = None,
        shared_backbone: bool = True,
        previous_action: bool = False,
        previous_reward: bool = False,
        first_step: bool = False,
        head_width: Annotated[int, Ge(0), Le(2**16)] = 0,
        log_std_init: Annotated[float, Ge(-20), Le(20)] = 0.0,
        readout: str | Mapping[str, Any] | None = None,
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
        width = self.config.width
        self.action_hidden, latent = hidden_layer(width, head_width)
        self.value_hidden, _ = hidden_layer(width, head_width)
        self.action_head = ActionHead(
            action_space,
            latent,
            embeds=False,
            readout=read_readout(readout),
            box=lambda leaf, *_: GaussianAction(leaf, log_std_init),
        )
        self.value_net: nn.Linear = nn.Linear(latent, 1)
        later = predicts_later(self.actor.backbone)
        self.later_net = nn.Linear(latent, self.action_head.linear.out_features) if later else None
        # Small first logits: every action is tried before any is preferred (arXiv 2006.05990, section 3.2).
        self.init_weights(self.action_head.linear, gain=0.01)
        self.init_weights(self.value_net, gain=1.0)
        options: dict[str, Any] = {"eps": 1e-5, "fused": True} | dict(optimizer_kwargs or {})
        groups = decay_groups(self, self.parameters())
        self.optimizer = make_optimizer(optimizer, self, groups, lr_schedule(1.0), options)

    def complete(self) -> None:
        """Let the optimizer learn what a subclass put in place after it was made; agents call it once, at the start.

        Raises ConfigError for a part that computes something else in training than in acting.
        """
        check_alike(self, f"policy {type(self).__name__}")
        self.optimizer = over(self.optimizer, self, decay_groups(self, self.parameters()))

    def normalize_values(self, step: float) -> PopArt:
        """Let the value head follow the scale of its targets by ``step`` at a time; values stay as they are."""
        self.value_net, self.popart = PopArt(self.value_net, step), step
        return self.value_net

    @property
    def value_units(self) -> Tensor | float:
        """Factor of a squared error of the value, so that it is in the units of the value head."""
        return self.value_net.scale**-2 if isinstance(self.value_net, PopArt) else 1.0

    # Forward passes

    def evaluate(self, inputs: StepInputs, state: PolicyState, record: Record | None = None) -> Evaluation:
        """Action outputs and values of [B, T] steps that follow ``state``, which no gradient reaches.

        The caller puts action and reward of the last step into the returned state.
        """
        if record is None and self.actor.backbone.aux_weights:
            record = Record()  # the auxiliary losses are needed even when nobody looks
        value_record = None if record is None else Record(weights=record.weights)
        features, value_features, after = self.run_backbones(inputs, state, record, value_record)
        outputs, values = self._read(features, value_features, inputs.observations)
        result = Evaluation(outputs, values, after, record=record)
        if record is not None:
            result.add_losses(self.actor.backbone, record)
        if self.critic is not None and value_record is not None:
            result.add_losses(self.critic.backbone, value_record, of_critic=True)
        return result

    def evaluate_segment(
        self, segment: Segment, record: Record | None = None, gradient_window: int | None = None
    ) -> SegmentEvaluation:
        """All steps of a segment, from the memory it started with.

        Gradient flows through the whole segment, or through chunks of ``gradient_window`` steps: at a chunk border the
        memory keeps its value and loses its gradient. Only one of ``record`` and ``gradient_window`` is given: every
        chunk would count the losses of the chunks before, which one record holds.
        """
        assert record is None or gradient_window is None
        state: PolicyState = segment.memory
        inputs = state.inputs(segment.observations, segment.actions, segment.rewards, segment.first)
        steps, head = segment.rewards.shape[1], self.action_head
        window = steps if gradient_window is None else gradient_window
        results: list[Evaluation] = []
        auxiliary: Tensor | None = None
        losses: dict[str, Tensor] = {}
        means: dict[str, list[Means]] = {}
        for begin in range(0, steps, window):
            part = slice(begin, min(begin + window, steps))
            result = self.evaluate(inputs if window >= steps else inputs.part(part), state, record)
            state = result.state
            if result.record is not None and result.record.streams:
                self._add_deep_losses(result, segment, part)
            results.append(result)
            share = (part.stop - part.start) / steps
            if result.auxiliary_loss is not None:
                auxiliary = add_optional(auxiliary, share * result.auxiliary_loss)
            losses = {name: losses.get(name, 0.0) + share * value for name, value in result.losses.items()}
            for name, parts in result.means.items():
                means.setdefault(name, []).extend(each._replace(values=share * each.values) for each in parts)
        outputs = torch.cat([each.outputs for each in results], 1)
        return SegmentEvaluation(
            outputs=outputs,
            log_probs=head.log_prob(outputs, segment.actions),
            values=torch.cat([each.values for each in results], 1),
            entropy=head.entropy(outputs),
            log_barrier=head.log_barrier(outputs),
            auxiliary_loss=auxiliary,
            losses=losses,
            means=means,
            weights=results[0].weights,
        )

    def _add_deep_losses(self, result: Evaluation, segment: Segment, part: slice) -> None:
        """Losses of features behind inner layers: they clone the policy that acted, and follow its value function.

        A surrogate of their own would compare them with probabilities that another layer gave, and be clipped.
        """
        head, taken = self.action_head, {path: leaf[:, part] for path, leaf in segment.actions.items()}
        seen = {path: leaf[:, part] for path, leaf in segment.observations.items()}

        def now(features: Tensor) -> Tensor:
            outputs, values = self._read(features, features, seen)
            lost = -head.log_prob(outputs, taken)
            if self.critic is not None:
                return lost
            return lost + self.value_units * (values - result.values.detach()).square()

        def next_one(features: Tensor) -> Tensor:
            assert self.later_net is not None
            return -head.log_prob(self.later_net(self.action_hidden(features)), shifted(taken))

        then = None if self.later_net is None else next_one
        targets = Targets(now, then, segment.counts[:, part], segment.first[:, part])
        self.add_losses_of_layers(result, targets, self.actor)

    def memory_after(self, segment: Segment) -> PolicyState:
        """The memory at the end of a segment, every step of it encoded again with today's weights; training form."""
        before: PolicyState = segment.memory
        inputs = before.inputs(segment.observations, segment.actions, segment.rewards, segment.first)
        _, _, state = self.run_backbones(inputs, before, wanted=NOTHING)
        return state.after(segment.actions, segment.rewards)

    @torch.no_grad()
    def remember(self, segment: Segment) -> None:
        """Store features under today's weights and the actions of a segment, for the readout."""
        readout, before = self.action_head.readout, segment.memory
        assert readout is not None
        inputs = before.inputs(segment.observations, segment.actions, segment.rewards, segment.first)
        features, _ = self.actor(inputs, before.actor, None)
        actions = self.action_head.as_numbers(self.action_head.execute(segment.actions))
        rows = segment.counts & (segment.advantages > 0) if readout.options.better else segment.counts
        latent, actions, rows = (each.transpose(0, 1) for each in (self.action_hidden(features), actions, rows))
        readout.store.add(latent[rows], actions[rows], rows.new_zeros(int(rows.sum()), dtype=torch.long))

    def _read(
        self, features: Tensor, value_features: Tensor, observations: Mapping[str, Tensor]
    ) -> tuple[Tensor, Tensor]:
        values = self.value_net(self.value_hidden(value_features)).squeeze(-1)
        if isinstance(self.value_net, PopArt):
            values = self.value_net.in_units(values)
        return self.outputs(features, observations), values
