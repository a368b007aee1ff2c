"""The Decision Transformer as a module, and its cached, batched acting (arXiv 2106.01345, sections 3 and 5.1).

One environment step is a group of tokens in this order: return-to-go (absent in behaviour cloning), observation,
action. B batch or environments, K steps of context, G tokens per step, W model width, A head outputs.
"""

from collections.abc import Callable, Mapping
from dataclasses import dataclass
from typing import Any, Literal

import gymnasium as gym
import numpy as np
import torch
from gymnasium import spaces
from jaxtyping import Bool, Float, Int, Shaped
from torch import Tensor, nn

from rltransformers.backbone import Backbone, BackboneConfig, Record, State
from rltransformers.backbone.tables import Tables
from rltransformers.core.ranges import check
from rltransformers.core.spaces import leaf_spaces
from rltransformers.core.spec import Choice
from rltransformers.functional.modules import linear
from rltransformers.functional.windows import oldest_first, padded_behind
from rltransformers.policies.action_heads import ActionHead, blank_invalid
from rltransformers.policies.deep_losses import predicts_later
from rltransformers.policies.encoders import ObservationEncoder
from rltransformers.policies.observations import task_leaf

MachineDecision = Callable[..., tuple[dict[str, Tensor], "ActingState"] | None]
"""Takes an ``Actor``'s decision as machine code; None where there is none."""

ActingMode = Literal["refresh", "banded", "recompute"]
NEWEST = slice(-1, None)


def normalised_leaves(space: gym.Space[Any]) -> list[str]:
    """Paths of the observation leaves that are standardised: floating-point Boxes."""
    return [
        path
        for path, leaf in leaf_spaces(space).items()
        if isinstance(leaf, spaces.Box) and np.issubdtype(leaf.dtype, np.floating)
    ]


class DecisionPolicy(nn.Module):
    """Predicts every recorded action from the tokens before it, read at the observation token of its step.

    Args:
        return_conditioned: whether a return-to-go token opens every step (G = 3) or not (G = 2, behaviour cloning).
        return_scale: return-to-go is divided by this before it becomes a token.
        statistics: mean and standard deviation of the floating-point observation leaves by path; others pass as they
            are.
        readout: what the head adds of recorded actions; None for nothing.

    Raises:
        ConfigError: for a space with an unsupported leaf.
    """

    def __init__(
        self,
        observation_space: gym.Space[Any],
        action_space: gym.Space[Any],
        backbone: BackboneConfig,
        *,
        return_conditioned: bool = True,
        return_scale: float = 1.0,
        statistics: Mapping[str, tuple[Tensor, Tensor]] | None = None,
        readout: Choice | None = None,
    ) -> None:
        super().__init__()
        self.observation_leaves = leaf_spaces(observation_space)
        self.return_conditioned, self.return_scale = return_conditioned, return_scale
        self.backbone = Backbone(backbone)
        self.width = self.backbone.width
        self.encoder = ObservationEncoder(observation_space, self.width)
        self.task = task_leaf(observation_space, backbone.tasks)
        self.head = ActionHead(action_space, self.width, readout=readout)
        self.tables = Tables(self, self.backbone.table_sources(), self.backbone.tables)
        self.machine_code: MachineDecision | None = None
        later = predicts_later(self.backbone)
        self.later_net = nn.Linear(self.width, self.head.linear.out_features) if later else None
        self.embed_return = nn.Linear(1, self.width) if return_conditioned else None
        self.normalised = normalised_leaves(observation_space) if statistics is not None else []
        for index, path in enumerate(self.normalised):
            mean, deviation = (statistics or {})[path]
            self.register_buffer(f"observation_mean_{index}", mean)
            self.register_buffer(f"observation_deviation_{index}", deviation)

    @property
    def tokens_per_step(self) -> int:
        """G: 3 with return-to-go, 2 without."""
        return 3 if self.return_conditioned else 2

    def statistics(self) -> list[tuple[str, Tensor, Tensor]]:
        """Path, mean and standard deviation of every standardised observation leaf."""
        buffers = self._buffers
        return [
            (path, buffers[f"observation_mean_{index}"], buffers[f"observation_deviation_{index}"])  # type: ignore[misc]
            for index, path in enumerate(self.normalised)
        ]

    def embed_step(
        self, observations: Mapping[str, Tensor], return_to_go: Float[Tensor, "*n"]
    ) -> Float[Tensor, "*n N W"]:
        """The tokens of a step that are known before its action: return-to-go (in reward units) and observation."""
        values = dict(observations)
        for path, mean, deviation in self.statistics():
            values[path] = (values[path].to(mean.dtype) - mean) / deviation
        tokens = [self.encoder(values)]
        if self.embed_return is not None:
            scaled = (return_to_go / self.return_scale).to(self.embed_return.weight.dtype)
            tokens.insert(0, linear(self.embed_return, scaled.unsqueeze(-1)))
        return torch.stack(tokens, -2)

    def embed_action(self, actions: Mapping[str, Tensor]) -> Float[Tensor, "... W"]:
        """The token of an executed action."""
        return self.head.embed(actions)

    def forward(
        self,
        observations: Mapping[str, Tensor],
        actions: Mapping[str, Tensor],
        return_to_go: Float[Tensor, "B K"],
        timestep: Int[Tensor, "B K"],
        valid: Bool[Tensor, "B K"],
        record: Record | None = None,
        episode: Int[Tensor, " B"] | None = None,
    ) -> Float[Tensor, "B K A"]:
        """Head outputs for the action of every step, from windows of K steps; what stands in padding is never read.

        Args:
            timestep: number of the step inside its episode, 0 at the first.
            valid: False for padding, anywhere in the window.
            episode: number of the episode of a window, of whose steps a readout reads nothing; None for outputs that do
                not learn.
        """
        features = self.features(observations, actions, return_to_go, timestep, valid, record)
        if episode is None:
            outputs: Tensor = self.head(features)
            return outputs
        return self.head.learning(features, episode[:, None].expand(timestep.shape))

    def features(
        self,
        observations: Mapping[str, Tensor],
        actions: Mapping[str, Tensor],
        return_to_go: Float[Tensor, "B K"],
        timestep: Int[Tensor, "B K"],
        valid: Bool[Tensor, "B K"],
        record: Record | None = None,
    ) -> Float[Tensor, "B K W"]:
        """What the head reads at every step; arguments as for ``forward``."""
        observations = blank_invalid(self.observation_leaves, observations, valid)
        known = self.embed_step(observations, torch.where(valid, return_to_go, 0.0))
        taken = self.embed_action(self.head.blank(actions, valid))
        tokens = torch.cat([known, taken[..., None, :]], -2).flatten(1, 2)
        group = self.tokens_per_step
        # Padding behind the valid steps is never looked at; only what averages over tokens has to know of it.
        averages = record is not None and (record.weights or bool(self.backbone.aux_weights))
        told = averages or not padded_behind(valid)
        features: Tensor
        features, _ = self.backbone(  # nothing is predicted from the last action
            tokens[:, :-1],
            valid=valid.repeat_interleave(group, 1)[:, :-1] if told else None,
            timestep=torch.where(valid, timestep, 0).repeat_interleave(group, 1)[:, :-1],
            task=None if self.task is None else self.task.read(observations).repeat_interleave(group, 1)[:, :-1],
            wanted=slice(group - 2, None, group),
            record=record,
        )
        return features


@dataclass(frozen=True)
class ActingState:
    """What acting remembers of B environments; every tensor is batch first, and none ever changes its shape.

    Attributes:
        memory: acting state of the backbone, whose rows are the streams of the first environment, of the second and so
            on: one stream in the mode ``banded``, two in ``refresh``; None in ``recompute``.
        tokens: embedded tokens of the newest steps in the mode ``recompute``, the last observation at the end [B, N,
            W].
        action: token of the action decided last [B, W].
        return_to_go: what was asked for in the last step, in reward units [B], float64.
        step: number of the last step inside its episode [B].
    """

    memory: State | None
    tokens: Float[Tensor, "B N W"]
    action: Float[Tensor, "B W"]
    return_to_go: Float[Tensor, " B"]
    step: Int[Tensor, " B"]

    def __getitem__(self, rows: Int[Tensor, " R"]) -> "ActingState":
        """The given environments, in the given order."""
        memory = None
        if self.memory is not None:
            streams = torch.arange(self.memory.batch_size, device=rows.device).view(self.batch_size, -1)
            memory = self.memory[streams[rows].flatten()]
        return ActingState(memory, *(each[rows] for each in (self.tokens, self.action, self.return_to_go, self.step)))

    @property
    def batch_size(self) -> int:
        """B."""
        return self.step.shape[0]


@dataclass(frozen=True)
class Actor:
    """How a trained policy acts; holds no state of its own.

    Attributes:
        context_length: K, the steps of a training window.
        mode: ``refresh`` lets a cache grow until it holds K steps, then goes on with one that began h = K - K // 2
            steps later: every decision equals an uncached model on a window of at most K and at least K - h + 1 steps,
            and as long as an episode is shorter than K, on the whole of it. ``banded`` never begins anew: the
            backbone's own memory limits the view, equal to one forward over the whole episode; for policies trained on
            windows longer than that memory. ``recompute`` runs the newest K steps anew for every decision, as
            published; the reference, and about K times slower.
        discount: of the return-to-go, 1 in the paper.
        delayed_reward: rewards are held back until the episode ends, so the return-to-go is not reduced by them.

    In the mode ``refresh`` two streams of every environment read the same tokens. Stream s begins anew at the steps n h
    with n even (s = 0) or odd (s = 1), and decides from its K - h-th step to its K-th, the first one from its first: by
    then it has seen what a restart from the newest K - h steps would read.
    """

    policy: DecisionPolicy
    context_length: int
    mode: ActingMode = "refresh"
    discount: float = 1.0
    delayed_reward: bool = False

    def __post_init__(self) -> None:
        check(self.mode, ActingMode, "acting_mode")

    @property
    def period(self) -> int:
        """h, the steps from one beginning of a cache to the next."""
        return self.context_length - self.context_length // 2

    @property
    def streams(self) -> int:
        """Caches of every environment."""
        return {"refresh": 2, "banded": 1, "recompute": 0}[self.mode]

    def window(self, step: Int[Tensor, " B"]) -> Int[Tensor, " B"]:
        """Steps that the decision at ``step`` looks back on, itself included; ``banded`` looks back on all of them."""
        if self.mode == "banded":
            return step + 1
        if self.mode == "recompute":
            return (step + 1).clamp(max=self.context_length)
        return step + 1 - self.period * self.cache(step)

    def cache(self, step: Int[Tensor, " B"]) -> Int[Tensor, " B"]:
        """Number of the cache that decides at ``step`` of an episode; the n-th begins at step n h."""
        return ((step - self.context_length) // self.period + 1).clamp(min=0)

    def initial_state(self, batch_size: int) -> ActingState:
        """A state before any step; the first call of ``act`` must say that every episode starts."""
        policy, weight = self.policy, self.policy.head.linear.weight
        count = self.context_length * policy.tokens_per_step - 1 if self.mode == "recompute" else 0
        rows = batch_size * self.streams
        return ActingState(
            policy.backbone.initial_state(rows, cached="only") if rows else None,
            weight.new_zeros(batch_size, count, policy.width),
            weight.new_zeros(batch_size, policy.width),
            torch.zeros(batch_size, dtype=torch.float64, device=weight.device),
            torch.zeros(batch_size, dtype=torch.long, device=weight.device),
        )

    @torch.inference_mode()
    def act(
        self,
        observations: Mapping[str, Tensor],
        state: ActingState,
        *,
        start: Bool[Tensor, " B"],
        reward: Float[Tensor, " B"],
        target_return: Float[Tensor, " B"],
        noise: Float[Tensor, "B U"] | None = None,
        overwrites: bool = False,
    ) -> tuple[dict[str, Tensor], ActingState]:
        """One decision for every environment, and the state after it.

        Args:
            observations: by leaf path, [B, *leaf shape].
            start: True where this observation is the first of an episode; what ``state`` held there is forgotten.
            reward: of the previous step; not read where an episode starts.
            target_return: what an episode that starts here is asked to return; not read elsewhere.
            noise: numbers in [0, 1) to sample discrete actions with; None takes the most probable action.
            overwrites: nobody needs ``state`` any more: its rings are written in place and belong to the next state.

        Raises:
            DataError: an episode is longer than a position table.
        """
        tables, policy = self.policy.tables.current(), self.policy
        self.check_places(state, start)
        if policy.machine_code is not None and self.mode != "recompute":
            found = policy.machine_code(
                self, observations, state, start, reward, target_return, noise, tables, overwrites
            )
            if found is not None:
                return found
        return self.decide(
            observations,
            state,
            start=start,
            reward=reward,
            target_return=target_return,
            noise=noise,
            tables=tables,
            overwrites=overwrites,
        )

    def check_places(self, state: ActingState, start: Bool[Tensor, " B"]) -> None:
        """Raise DataError unless position tables reach to the next step."""
        step = next_step(state, start)
        # A cache that decides has been as long as the episode, up to K; the observation is the last but one of a step.
        longest = step + 1 if self.mode == "banded" else (step + 1).clamp(max=self.context_length)
        self.policy.backbone.check_places(longest * self.policy.tokens_per_step - 2, step)

    def decide(
        self,
        observations: Mapping[str, Tensor],
        state: ActingState,
        *,
        start: Bool[Tensor, " B"],
        reward: Float[Tensor, " B"],
        target_return: Float[Tensor, " B"],
        noise: Float[Tensor, "B U"] | None,
        tables: dict[str, Tensor],
        greedy: Bool[Tensor, " B"] | None = None,
        overwrites: bool = False,
    ) -> tuple[dict[str, Tensor], ActingState]:
        """``act`` in fixed shapes and without a look at data; ``greedy`` rows take the most probable action."""
        policy, asked = self.policy, state.return_to_go
        if not self.delayed_reward:
            asked = asked - reward.to(asked)
        if self.discount != 1.0:
            asked = asked / self.discount
        asked = torch.where(start, target_return.to(asked), asked)
        step = next_step(state, start)
        new = torch.cat([state.action[:, None], policy.embed_step(observations, asked)], 1)
        task = None if policy.task is None else policy.task.read(observations)
        if self.mode == "recompute":
            tokens, memory = torch.cat([state.tokens, new], 1)[:, -state.tokens.shape[1] :], state.memory
            features = self._recompute(tokens, step, task)
        else:
            tokens = state.tokens
            features, memory = self._cached(new, state, step, start, task, tables, overwrites)
        outputs = policy.head(features)
        actions = (
            policy.head.decode(outputs, noise) if greedy is None else policy.head.decode_some(outputs, noise, greedy)
        )
        return actions, ActingState(memory, tokens, policy.embed_action(actions), asked, step)

    def _cached(
        self,
        new: Float[Tensor, "B G W"],
        state: ActingState,
        step: Int[Tensor, " B"],
        start: Bool[Tensor, " B"],
        task: Int[Tensor, " B"] | None,
        tables: dict[str, Tensor],
        overwrites: bool,
    ) -> tuple[Float[Tensor, "B W"], State]:
        """Features of the observation token by feeding only new tokens to all streams.

        Where a stream begins anew, it does so at the second token and at the first one too: that is the previous
        action, which nobody looks at then, and behind what the stream read before there may be no place for it.
        """
        assert state.memory is not None
        group, streams = self.policy.tokens_per_step, self.streams
        begins = start[:, None]
        if streams == 2:
            begins = begins | self._begins(step)
        reset = torch.stack([begins, begins] + [torch.zeros_like(begins)] * (group - 2), -1)
        timestep = torch.stack([state.step] + [step] * (group - 1), 1)
        features, memory = self.policy.backbone.step(
            by_stream(new, streams),
            state.memory,
            reset.flatten(0, 1),
            timestep=by_stream(timestep, streams),
            task=None if task is None else by_stream(task[:, None].expand(-1, group), streams),
            wanted=NEWEST,
            tables=tables,
            overwrites=overwrites,
        )
        if streams == 1:
            return features[:, -1], memory
        even, odd = features[:, -1].unflatten(0, (-1, 2)).unbind(1)
        return torch.where(self.cache(step)[:, None] % 2 == 1, odd, even), memory

    def _begins(self, step: Int[Tensor, " B"]) -> Bool[Tensor, "B 2"]:
        """Which streams begin anew; an odd K leaves a cache one step too old, which begins anew before it is used."""
        cycle = 2 * self.period
        within, found = step % cycle, []
        for first in (0, self.period):
            again = (first + self.context_length) % cycle
            begins = within == first
            found.append(begins if again == first else begins | (within == again))
        return torch.stack(found, -1)

    def _recompute(
        self, tokens: Float[Tensor, "B N W"], step: Int[Tensor, " B"], task: Int[Tensor, " B"] | None
    ) -> Float[Tensor, "B W"]:
        """Features of the observation token from the newest steps alone: an episode of their own."""
        group, count = self.policy.tokens_per_step, tokens.shape[1]
        first = count + 1 - group * self.window(step)
        index = torch.arange(count, device=tokens.device)
        timestep = (step[:, None] - oldest_first(count + 1, tokens.device)[:-1] // group).clamp(min=0)
        tasks = None if task is None else task[:, None].expand(-1, count)
        reset = index == first[:, None]
        features, _ = self.policy.backbone(tokens, reset=reset, timestep=timestep, task=tasks, wanted=NEWEST)
        return features[:, -1]


def next_step(state: ActingState, start: Bool[Tensor, " B"]) -> Int[Tensor, " B"]:
    """Number of the step to decide inside its episode."""
    return (state.step + 1).masked_fill(start, 0)


def by_stream(rows: Shaped[Tensor, "B ..."], streams: int) -> Shaped[Tensor, "Bs ..."]:
    """Every row for every stream of its environment."""
    return rows if streams == 1 else rows.repeat_interleave(streams, 0)
