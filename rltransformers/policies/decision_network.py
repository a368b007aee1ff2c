"""The Decision Transformer as a module (arXiv 2106.01345, section 3); how it acts is in ``decider``.

One environment step is a group of tokens in this order: return-to-go, observation, action; observation and action
where returns are no tokens. B batch or environments, K steps of a window, G tokens per step, W model width, A head
outputs, L steps of the longest episode.
"""

from collections.abc import Callable, Mapping
from typing import Any

import torch
from jaxtyping import Bool, Float, Int
from torch import Tensor, nn

from rltransformers.backbone import Backbone, BackboneConfig, Record
from rltransformers.backbone.state import Tables
from rltransformers.core.action_masks import ACTION_MASK, add_masks, observes_mask
from rltransformers.core.described import count
from rltransformers.core.errors import ConfigError, DataError
from rltransformers.core.ranges import shown
from rltransformers.core.spaces import Space, leaf_spaces, normalized_leaves
from rltransformers.core.spec import Choice
from rltransformers.core.values import to_tensor
from rltransformers.functional.call import Context
from rltransformers.functional.windows import padded_behind
from rltransformers.policies.action_chunks import ChunkHead, outputs_taken
from rltransformers.policies.action_heads import ActionHead, blank_invalid
from rltransformers.policies.action_leaves import ContinuousAction, Units
from rltransformers.policies.critics import TwinCritics, check_alternatives
from rltransformers.policies.deep_losses import predicts_later
from rltransformers.policies.encoders import Observed, observe, unbounded
from rltransformers.policies.observations import (
    first_task,
    fit_action_sequences,
    fit_observation,
    fit_sequences,
    flat_masks,
    flat_steps,
    read_task,
)
from rltransformers.policies.observed import Encoding, observation_parts
from rltransformers.policies.output import PolicyOutput
from rltransformers.policies.registered import check_alike
from rltransformers.policies.returns import ReturnCondition, ReturnIn, return_embedding
from rltransformers.policies.several_modes import BoxLeaf


class DecisionPolicy(nn.Module):
    """Predicts every recorded action from the tokens before it, read at the last of them.

    Args:
        return_conditioned: whether actions depend on a return-to-go, or not (behavior cloning).
        return_in: "sequence": a return-to-go token opens every step (G = 3); "condition": only the newest return
            counts, see ``ReturnCondition`` (G = 2).
        advantage_bins: number of bins of advantages that stand in the place of returns, in tokens or as the condition;
            acting asks for the last one, the best. None for returns.
        highest_to_go: with it a head predicts the return-to-go (Zhuang et al. 2024, arXiv 2405.08740), which acting
            takes where nobody asks for a return. It reads no returns, so ``return_in`` is "condition", and its answer
            is at most this number for the step of the episode, the last one for all later steps: the largest
            return-to-go in the data [L], in reward units. None for no head.
        critic_width: of twin critics that stand beside the policy and judge its actions; None for no critics.
        value_scale: reward units per unit of what the networks of the critics say.
        box: what makes the leaf of a Box, see ``box_leaf``.
        action_units: mean and standard deviation of the actions of Boxes by path, the units of components without
            bounds; None leaves these as they are.
        return_scale: return-to-go is divided by this before it becomes a token.
        statistics: mean and standard deviation of the floating-point observation leaves by path; others pass as they
            are.
        readout: what the head adds of recorded actions; None for nothing.
        encoder: of the observation where it is not what the space says; None for nothing else.
        action_masks: whether only actions are predicted and taken that the leaf ``action_mask`` of the observation
            allows; None: where there is one.
        chunk: k, how many actions every state decides, its own and the k - 1 after it, see ``action_chunks``. With more
            than one, head outputs are [..., k, A] and not [..., A], and ``box`` is of the same chunk.
        decide_every: steps from one decision to the next; None takes all actions of a chunk.

    Raises:
        ConfigError: for an unsupported space, one without the elements that an encoder or the backbone reads,
            predicted returns in the sequence, chunks of a backbone that learns to predict later steps itself, and
            modules with BatchNorm or Dropout, in place of which ``backbone`` has a setting.
    """

    highest_to_go: Tensor  # [L], of a policy with a return head

    def __init__(
        self,
        observation_space: Space,
        action_space: Space,
        backbone: BackboneConfig,
        *,
        return_conditioned: bool = True,
        return_scale: float = 1.0,
        statistics: Mapping[str, tuple[Tensor, Tensor]] | None = None,
        readout: Choice | None = None,
        encoder: Encoding | None = None,
        action_masks: bool | None = None,
        return_in: ReturnIn = "sequence",
        highest_to_go: Float[Tensor, " L"] | None = None,
        critic_width: int | None = None,
        value_scale: float = 1.0,
        box: BoxLeaf = ContinuousAction,
        action_units: Mapping[str, Units] | None = None,
        advantage_bins: int | None = None,
        chunk: int = 1,
        decide_every: int | None = None,
    ) -> None:
        super().__init__()
        self.observation_space, self.action_space = observation_space, action_space
        self.observation_leaves = leaf_spaces(observation_space)
        self.return_conditioned, self.advantage_bins = return_conditioned, advantage_bins
        self.return_scale = return_scale if advantage_bins is None else 1.0
        in_sequence = return_conditioned and return_in == "sequence"
        self.backbone = Backbone(backbone)
        self.width = self.backbone.width
        self.masks = observes_mask(observation_space, action_space, action_masks)
        self.normalized = normalized_leaves(observation_space) if statistics is not None else []
        read = unbounded(observation_space, self.normalized) if self.normalized else observation_space
        encoder = encoder or Encoding()
        self.encoder, self.elements = observation_parts(read, backbone, encoder)
        self.task = first_task(observation_space, backbone.tasks)
        self.chunk, self.decide_every = chunk, decide_every or chunk
        if chunk == 1:
            self.head = ActionHead(action_space, self.width, readout=readout, box=box, units=action_units)
        else:
            self.head = ChunkHead(action_space, self.width, chunk, box, action_units)
        self.tables = Tables(self, self.backbone.table_sources(), self.backbone.tables)
        self.machine_code: Callable[..., Any] | None = None  # a Decider's decision, or None where it cannot
        later = predicts_later(self.backbone)
        if later and chunk > 1:
            raise ConfigError(
                f"backbone.losses predict the step after the next one, and chunk {chunk} predicts it already; set their"
                " future to 0, or chunk to 1"
            )
        self.later_net = nn.Linear(self.width, self.head.linear.out_features) if later else None
        self.embed_return = return_embedding(self.width, advantage_bins) if in_sequence else None
        in_condition = return_conditioned and not in_sequence
        self.condition = ReturnCondition(self.width, advantage_bins) if in_condition else None
        self.return_head: nn.Linear | None = None
        self.warned = False  # of predicted returns beyond the data
        if highest_to_go is not None:
            if self.condition is None:
                raise ConfigError("predicted returns are predicted from no returns; set return_in to 'condition'")
            self.return_head = nn.Linear(self.width, 1)
            self.register_buffer("highest_to_go", highest_to_go.double())
        self.critics: TwinCritics | None = None
        if critic_width is not None:
            check_alternatives(self.head)
            self.critics = TwinCritics(read, self.head.numbers, critic_width, encoder.leaves, value_scale)
            self.critics.requires_grad_(False)  # they learn in steps of their own
        for index, path in enumerate(self.normalized):
            mean, deviation = (statistics or {})[path]
            self.register_buffer(f"observation_mean_{index}", mean)
            self.register_buffer(f"observation_deviation_{index}", deviation)
        check_alike(self, f"policy {type(self).__name__}")

    def __repr__(self) -> str:
        config, parameters = self.backbone.config, sum(each.numel() for each in self.parameters())
        sizes = f"width {config.width}, {count(config.layers, 'layer')}, {count(parameters, 'parameter')}"
        leaves = {path: str(space) for path, space in self.observation_leaves.items()}
        return f"{type(self).__name__}({sizes})\n  observations {shown(leaves)}"

    @property
    def tokens_per_step(self) -> int:
        """G: 3 with return-to-go in the sequence, else 2."""
        return 2 if self.embed_return is None else 3

    @property
    def takes_target(self) -> bool:
        """Whether acting is asked for a return; behavior cloning and policies of advantages are not."""
        return self.return_conditioned and self.advantage_bins is None

    def actor_parameters(self) -> list[nn.Parameter]:
        """Parameters that learn to act: all but the critics."""
        return [each for name, each in self.named_parameters() if not name.startswith("critics.")]

    def statistics(self) -> list[tuple[str, Tensor, Tensor]]:
        """Path, mean and standard deviation of every standardized observation leaf."""
        buffers = self._buffers
        return [
            (path, buffers[f"observation_mean_{index}"], buffers[f"observation_deviation_{index}"])  # type: ignore[misc]
            for index, path in enumerate(self.normalized)
        ]

    def standardized(self, observations: Mapping[str, Tensor]) -> dict[str, Tensor]:
        """Observations as the network reads them."""
        values = dict(observations)
        for path, mean, deviation in self.statistics():
            values[path] = (values[path].to(mean.dtype) - mean) / deviation
        part = None if self.elements is None or self.critics is None else self.elements.elements
        if part is not None and part.leaf in self.normalized:  # critics read the leaf, as it is
            values[part.leaf] = part.present(values)[0].reshape(values[part.leaf].shape)
        return values

    def observe(self, observations: Mapping[str, Tensor]) -> Observed:
        """The token of an observation, and its elements."""
        return observe(self.encoder, self.elements, self.standardized(observations))

    def context(self, seen: Observed, tokens: slice) -> Context | None:
        """Context for the layers from the ``tokens`` of observations."""
        return seen.context(tokens) if self.backbone.reads_context else None

    def scaled(self, return_to_go: Float[Tensor, "*n"]) -> Float[Tensor, "*n"]:
        """Return-to-go in network units, from reward units."""
        return (return_to_go / self.return_scale).to(self.head.linear.weight.dtype)

    def best_bin(self, asked: Float[Tensor, "*n"]) -> Float[Tensor, "*n"]:
        """What acting asks for: the best bin of a policy of advantages, of others ``asked`` itself."""
        return asked if self.advantage_bins is None else torch.full_like(asked, self.advantage_bins - 1)

    def embed_scaled(self, scaled: Float[Tensor, "*n"]) -> Float[Tensor, "*n W"]:
        """The token of a return-to-go in network units."""
        assert self.embed_return is not None
        return self.embed_return(scaled.unsqueeze(-1))

    def predicted_return(self, features: Float[Tensor, "... W"]) -> Float[Tensor, "..."]:
        """Return-to-go in network units, from features of observation tokens, which no return has a part in."""
        assert self.return_head is not None
        return self.return_head(features).squeeze(-1)

    def limit(self, step: Int[Tensor, "*n"]) -> Float[Tensor, "*n"]:
        """The largest return-to-go that the data hold at these steps of an episode, in reward units."""
        return self.highest_to_go[step.clamp(max=len(self.highest_to_go) - 1)]

    def raise_limits(self, highest: Float[Tensor, " M"]) -> None:
        """Take the largest return-to-go at every step of other episodes into account, in place."""
        step = torch.arange(len(highest), device=self.highest_to_go.device).clamp(max=len(self.highest_to_go) - 1)
        self.highest_to_go.scatter_reduce_(0, step, highest.to(self.highest_to_go), "amax")

    def conditioned(self, features: Float[Tensor, "... W"], scaled: Float[Tensor, "..."]) -> Float[Tensor, "... W"]:
        """Input of the head: the features themselves, unless returns condition them."""
        return features if self.condition is None else self.condition(features, scaled)

    def masked(self, outputs: Float[Tensor, "... A"], observations: Mapping[str, Tensor]) -> Float[Tensor, "... A"]:
        """Head outputs where only allowed actions can be taken.

        Masks are the leaf ``action_mask`` of the observation, or stand there for a policy that learned without.
        """
        mask = observations.get(ACTION_MASK)
        if mask is None or (not self.masks and ACTION_MASK in self.observation_leaves):
            return outputs
        return self.head.masked(outputs, mask)

    def fields(
        self, observations: Mapping[str, Tensor], outputs: Float[Tensor, "... A"], actions: Mapping[str, Tensor]
    ) -> dict[str, dict[str, Tensor]]:
        """Fields of ``PolicyOutput`` by leaf, of head outputs and of actions."""
        found = {"action": dict(actions)} | self.head.distribution(outputs, actions)
        if self.critics is not None:
            numbers = self.head.as_numbers(actions).unsqueeze(-2)
            found["value"] = {"": self.critics(self.standardized(observations), numbers).amin(0).squeeze(-1)}
        return found

    def evaluate_actions(
        self,
        observations: Any,
        actions: Any,
        return_to_go: Any = None,
        timesteps: Any = None,
        action_masks: Any = None,
    ) -> PolicyOutput:
        """Log-probabilities, entropy and values of B windows of T steps as tensors [B, T] that carry gradients.

        They are computed as in an update; those of the first steps of an episode, up to the context length, equal those
        of acting. Longer sequences are cut into windows by the caller, of a policy with chunks where it decides.

        Args:
            observations: in the units of the environment, every leaf [B, T, ...].
            actions: taken in these steps, nested as the action space, every leaf [B, T, ...].
            return_to_go: what was still asked for in each step, in reward units [B, T]; behavior cloning does without,
                and a policy of advantages takes none: it is asked for its best bin, as in acting.
            timesteps: number of the steps inside their episode [B, T]; None for windows that begin an episode.
            action_masks: which actions were allowed [B, T, M]; those in the observation give way to it.

        Raises:
            DataError: for observations, actions, returns or masks that do not fit.
            ConfigError: for missing returns or masks, for returns that a policy of advantages would not read, and for
                windows that begin in the middle of a chunk.
        """
        if return_to_go is not None and self.advantage_bins is not None:
            raise ConfigError("this policy is asked for advantages, not for returns; leave return_to_go out")
        if return_to_go is None and self.takes_target:
            raise ConfigError("this policy reads returns: evaluate_actions(..., return_to_go=...), in reward units")
        flat, (rows, steps) = fit_sequences(self.observation_leaves, observations, "observations")
        arrays, _ = fit_observation(self.observation_leaves, flat)
        taken = fit_action_sequences(self.head.spaces, actions, rows, steps)
        takes = self.masks or ACTION_MASK not in self.observation_leaves
        add_masks(arrays, flat_masks(action_masks, rows, steps), self.action_space, takes, needs=self.masks)
        device = self.head.linear.weight.device
        asked, timestep = (
            to_tensor(
                flat_steps(0.0 if each is None else each, rows, steps, what).reshape(rows, steps), device
            ).double()
            for each, what in ((return_to_go, "return_to_go"), (timesteps, "timesteps"))
        )
        asked = self.best_bin(asked)
        if bool((timestep != timestep.floor().abs()).any()):
            raise DataError("timesteps number the steps of an episode: 0, 1, 2 and so on")
        timestep = torch.arange(steps, device=device).expand(rows, -1) if timesteps is None else timestep.long()
        seen, done = (
            {path: to_tensor(leaf, device).unflatten(0, (rows, steps)) for path, leaf in leaves.items()}
            for leaves in (arrays, taken)
        )
        self.backbone.check_places(timestep * 0, timestep)
        valid = torch.ones_like(timestep, dtype=torch.bool)
        outputs = self.outputs(self.read(seen, done, asked, timestep, valid)[0], None)
        if self.chunk > 1:
            if bool((timestep[:, 0] % self.decide_every != 0).any()):
                raise ConfigError(
                    f"the policy decides every {self.decide_every} steps of an episode, and a window begins at timestep"
                    f" {int(timestep[:, 0].max())}; begin windows at multiples of {self.decide_every}"
                )
            outputs = outputs_taken(outputs, timestep, self.decide_every)
        outputs = self.masked(outputs, seen)
        return PolicyOutput.of(self.action_space, self.fields(seen, outputs, done))

    def forward(
        self,
        observations: Mapping[str, Tensor],
        actions: Mapping[str, Tensor],
        return_to_go: Float[Tensor, "B K"],
        timestep: Int[Tensor, "B K"],
        valid: Bool[Tensor, "B K"],
        record: Record | None = None,
        episode: Int[Tensor, " B"] | None = None,
    ) -> Float[Tensor, "B K ..."]:
        """Head outputs for the action of every step, from windows of K steps; what stands in padding is never read.

        Those of a chunk are [B, K, k, A], all under the mask of the present step, the only one that is known.

        Args:
            timestep: number of the step inside its episode, 0 at the first.
            valid: False for padding, anywhere in the window.
            episode: number of the episode of a window, of whose steps a readout reads nothing; None for outputs that do
                not learn.
        """
        features, _ = self.read(observations, actions, return_to_go, timestep, valid, record)
        return self.masked(self.outputs(features, episode), observations)

    def outputs(self, features: Float[Tensor, "B K W"], episode: Int[Tensor, " B"] | None) -> Float[Tensor, "B K ..."]:
        """Head outputs from what the head reads; ``episode`` as for ``forward``."""
        if episode is None:
            return self.head(features)
        return self.head.learning(features, episode[:, None].expand(features.shape[:-1]))

    def read(
        self,
        observations: Mapping[str, Tensor],
        actions: Mapping[str, Tensor],
        return_to_go: Float[Tensor, "B K"],
        timestep: Int[Tensor, "B K"],
        valid: Bool[Tensor, "B K"],
        record: Record | None = None,
    ) -> tuple[Float[Tensor, "B K W"], Float[Tensor, "B K"] | None]:
        """Input of the head at every step, and the return-to-go that a head predicts, in network units, or None."""
        observations = blank_invalid(self.observation_leaves, observations, valid)
        asked = torch.where(valid, return_to_go, 0.0)
        seen = self.observe(observations)
        step = [seen.token, self.head.embed(blank_invalid(self.head.spaces, actions, valid))]
        if self.embed_return is not None:
            step.insert(0, self.embed_scaled(self.scaled(asked)))
        tokens = torch.stack(step, -2).flatten(1, 2)
        group, task = self.tokens_per_step, None if self.task is None else read_task(observations, self.task)
        # Padding behind the valid steps is never looked at; only what averages over tokens has to know of it.
        averages = record is not None and (record.weights or bool(self.backbone.aux_weights))
        needs_valid = averages or not padded_behind(valid)
        decides = slice(group - 2, None, group)
        features: Tensor
        features, _ = self.backbone(  # nothing is predicted from the last action
            tokens[:, :-1],
            valid=valid.repeat_interleave(group, 1)[:, :-1] if needs_valid else None,
            timestep=torch.where(valid, timestep, 0).repeat_interleave(group, 1)[:, :-1],
            task=None if task is None else task.repeat_interleave(group, 1)[:, :-1],
            context=self.context(seen, decides),
            wanted=decides,
            record=record,
        )
        predicted = None if self.return_head is None else self.predicted_return(features)
        return self.conditioned(features, self.scaled(asked)), predicted
