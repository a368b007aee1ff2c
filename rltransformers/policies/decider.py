"""How a Decision Transformer acts: cached, in batches (arXiv 2106.01345, section 5.1).

B environments, K steps of context, G tokens per step, W model width, A head outputs, C candidates of an action.
"""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any, Literal

import torch
from jaxtyping import Bool, Float, Int, Shaped
from torch import Tensor

from rltransformers.backbone import State
from rltransformers.core.action_masks import ACTION_MASK
from rltransformers.core.errors import ConfigError
from rltransformers.core.ranges import check
from rltransformers.functional.call import Context
from rltransformers.functional.windows import descending
from rltransformers.policies.decision_network import DecisionPolicy
from rltransformers.policies.observations import check_state
from rltransformers.policies.returns import MAX_SCALED

ActingMode = Literal["refresh", "banded", "recompute"]  # what acting remembers; see ``Decider``
NEWEST = slice(-1, None)


@dataclass(frozen=True)
class ActingState:
    """State of acting in B environments; every tensor is batch first, and none ever changes its shape.

    Rows of ``memory``, that of the backbone, are the streams of the first environment, of the second and so on: one
    stream in the mode ``banded``, two in ``refresh``, as many for every candidate; None in ``recompute``. ``tokens``
    are the embedded ones of the newest steps in ``recompute``, the last one before an action at the end, candidates
    one after another.
    """

    memory: State | None
    tokens: Float[Tensor, "B N W"]
    action: Float[Tensor, "B W"]  # token of the action decided last
    return_to_go: Float[Tensor, " B"]  # asked for in the last step, in reward units, float64; NaN where nobody asked
    step: Int[Tensor, " B"]  # number of the last step inside its episode

    def __repr__(self) -> str:
        return f"ActingState(batch {self.batch_size}, memory {self.memory}, tokens {tuple(self.tokens.shape)})"

    def __getitem__(self, rows: Int[Tensor, " R"]) -> "ActingState":
        memory = None
        if self.memory is not None:
            streams = torch.arange(self.memory.batch_size, device=rows.device).view(self.batch_size, -1)
            memory = self.memory[streams[rows].flatten()]
        return ActingState(memory, *(each[rows] for each in (self.tokens, self.action, self.return_to_go, self.step)))

    @property
    def batch_size(self) -> int:
        return self.step.shape[0]


@dataclass(frozen=True)
class Decider:
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
        jitter: of C candidates, how much more return each is asked for than the target, in reward units; the action
            that the more pessimistic critic values most is taken (QT, arXiv 2405.17098). Empty for one action.
        range_to_go: lowest and highest return-to-go in the data; with a discount what is asked for leaves it only as
            far as the target does.

    In the mode ``refresh`` two streams of every environment read the same tokens. Stream s begins anew at the steps n h
    with n even (s = 0) or odd (s = 1), and decides from its K - h-th step to its K-th, the first one from its first: by
    then it has seen what a restart from the newest K - h steps would read.
    """

    policy: DecisionPolicy
    context_length: int
    mode: ActingMode = "refresh"
    discount: float = 1.0
    delayed_reward: bool = False
    jitter: tuple[float, ...] = ()
    range_to_go: tuple[float, float] = (-MAX_SCALED, MAX_SCALED)

    def __post_init__(self) -> None:
        check(self.mode, ActingMode, "acting_mode")
        policy = self.policy
        if self.mode == "recompute" and policy.backbone.reads_context:
            raise ConfigError(
                "acting_mode 'recompute' keeps the tokens of past steps and not the elements that layers look at; take "
                "'refresh' or 'banded', or set topology to 'decoder'"
            )
        asked_only = policy.takes_target and policy.return_head is None
        if self.jitter and (policy.critics is None or not asked_only):
            raise ConfigError(
                "candidates differ in the return they are asked for, and critics choose one;"
                " without both, leave jitter empty"
            )

    @property
    def period(self) -> int:
        """h, the steps from one beginning of a cache to the next."""
        return self.context_length - self.context_length // 2

    @property
    def streams(self) -> int:
        """Caches of every candidate."""
        return {"refresh": 2, "banded": 1, "recompute": 0}[self.mode]

    @property
    def prefixes(self) -> int:
        """Candidates whose pasts differ: all, or one where returns are no part of the sequence."""
        return len(self.jitter) if self.jitter and self.policy.condition is None else 1

    def check_state(self, state: Any, rows: int) -> None:
        """Raise ConfigError unless a state has the tensors, and these the shapes, of states of this policy and mode."""
        check_state(state, ActingState, rows)
        tensors = {name: getattr(state, name) for name in ("tokens", "action", "return_to_go", "step")}
        memory = {} if state.memory is None else state.memory.tensors
        found = {name: tuple(value.shape) for name, value in (tensors | memory).items()}
        expected = self.state_shapes(state.batch_size)
        for name in [*expected, *found]:
            if found.get(name) != expected.get(name):
                raise ConfigError(
                    f"the state is of another model or another acting_mode: {name} has shape {found.get(name)}, here "
                    f"{expected.get(name)}; pass what predict of this one returned, or None to begin anew"
                )

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
        weight, shapes = self.policy.head.linear.weight, self.state_shapes(batch_size)
        rows = batch_size * self.prefixes * self.streams
        return ActingState(
            self.policy.backbone.initial_state(rows, cached="only") if rows else None,
            weight.new_zeros(shapes["tokens"]),
            weight.new_zeros(shapes["action"]),
            torch.zeros(shapes["return_to_go"], dtype=torch.float64, device=weight.device),
            torch.zeros(shapes["step"], dtype=torch.long, device=weight.device),
        )

    def state_shapes(self, batch_size: int) -> dict[str, tuple[int, ...]]:
        policy = self.policy
        count = self.context_length * policy.tokens_per_step - 1 if self.mode == "recompute" else 0
        rows = batch_size * self.prefixes * self.streams
        memory = policy.backbone.state_forms["only"] if rows else {}
        return {
            "tokens": (batch_size, self.prefixes * count, policy.width),
            "action": (batch_size, policy.width),
            "return_to_go": (batch_size,),
            "step": (batch_size,),
        } | {name: (rows, *shape) for name, shape in memory.items()}

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
            target_return: what an episode that starts here is asked to return; not read elsewhere. NaN asks for
                nothing: a policy that predicts returns then fills in what it predicts, in every step.
            noise: numbers in [0, 1) to sample actions with, [B, U]; None takes the most probable action.
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
        inputs = start, reward, target_return, noise
        actions, _, state = self.decide(observations, state, *inputs, tables=tables, overwrites=overwrites)
        return actions, state

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
        start: Bool[Tensor, " B"],
        reward: Float[Tensor, " B"],
        target_return: Float[Tensor, " B"],
        noise: Float[Tensor, "B U"] | None,
        *,
        tables: dict[str, Tensor],
        greedy: Bool[Tensor, " B"] | None = None,
        overwrites: bool = False,
    ) -> tuple[dict[str, Tensor], Float[Tensor, "B A"], ActingState]:
        """``act`` in fixed shapes and without a look at data, with head outputs that the actions were decoded from.

        Rows that are ``greedy`` take the most probable action.
        """
        policy, asked = self.policy, state.return_to_go
        if not self.delayed_reward:
            asked = asked - reward.to(asked)
        if self.discount != 1.0:
            asked = self.within_range(asked / self.discount, state.return_to_go)
        asked = torch.where(start, target_return.to(asked), asked)
        step = next_step(state, start)
        goals = policy.scaled(self.goals(asked, step))
        features, reading = self._features(observations, state, goals, start, step, tables, overwrites)
        candidates = max(len(self.jitter), 1)
        masks = {path: by_stream(each, candidates) for path, each in observations.items() if path == ACTION_MASK}
        outputs = policy.masked(policy.head(features), masks)
        noise, greedy = (None if each is None else by_stream(each, candidates) for each in (noise, greedy))
        actions = (
            policy.head.decode(outputs, noise) if greedy is None else policy.head.decode_some(outputs, noise, greedy)
        )
        if self.jitter:
            best = self._best(observations, actions)
            actions, outputs = {path: value[best] for path, value in actions.items()}, outputs[best]
        after = ActingState(reading.memory, reading.newest(), policy.head.embed(actions), asked, step)
        return actions, outputs, after

    def goals(self, asked: Float[Tensor, " B"], step: Int[Tensor, " B"]) -> Float[Tensor, "B C"]:
        """Return asked for by candidate: a difference in the first step grows as the rest of the return does."""
        if not self.jitter:
            return self.policy.best_bin(asked)[:, None]
        more = torch.tensor(self.jitter, dtype=asked.dtype, device=asked.device)
        if self.discount == 1.0:
            return asked[:, None] + more
        growth = ((1.0 / self.discount) ** step.to(asked.dtype)).clamp(max=MAX_SCALED)
        return self.within_range(asked[:, None] + more * growth[:, None], asked[:, None] + more)

    def within_range(self, returns: Float[Tensor, "*n"], unbounded: Float[Tensor, "*n"]) -> Float[Tensor, "*n"]:
        """Returns that division by the discount made larger, at most as far outside the data as ``unbounded`` ones.

        What an episode lacks of the return it was asked for grows by 1/discount in every step, soon beyond all that
        the network has seen.
        """
        lowest, highest = self.range_to_go
        return torch.minimum(torch.maximum(returns, unbounded.clamp(max=lowest)), unbounded.clamp(min=highest))

    def _features(
        self,
        observations: Mapping[str, Tensor],
        state: ActingState,
        goals: Float[Tensor, "B C"],
        start: Bool[Tensor, " B"],
        step: Int[Tensor, " B"],
        tables: dict[str, Tensor],
        overwrites: bool,
    ) -> tuple[Float[Tensor, "R W"], "Reading"]:
        """Input of the head, for every candidate of every environment, under returns in network units."""
        policy, count, prefixes = self.policy, goals.shape[1], self.prefixes
        task = None if policy.task is None else policy.task.read(observations)
        reading = Reading(self, state, start, step, task, tables, overwrites)
        seen = policy.observe(observations).at_once()
        before, token = (by_stream(each, prefixes) for each in (state.action, seen.token[:, 0]))
        if policy.embed_return is None or policy.return_head is not None:
            features = reading.feed([before, token], policy.context(seen, slice(1, 2)))
            if policy.return_head is not None:
                goals = torch.where(goals.isnan(), policy.predicted_return(features)[:, None], goals)
            if policy.embed_return is not None:
                features = reading.feed([policy.embed_scaled(goals.flatten())], policy.context(seen, slice(0, 0)))
            elif policy.condition is not None:
                features = policy.conditioned(by_stream(features, count), goals.flatten())
            return features, reading
        tokens = [before, policy.embed_scaled(goals.flatten()), token]
        return reading.feed(tokens, policy.context(seen, slice(2, 3))), reading

    def _best(self, observations: Mapping[str, Tensor], actions: dict[str, Tensor]) -> Int[Tensor, " B"]:
        """Of the candidates of every environment, the row of the one that the more pessimistic critic values most."""
        policy, count = self.policy, len(self.jitter)
        assert policy.critics is not None
        numbers = policy.head.as_numbers(actions).unflatten(0, (-1, count))
        best = policy.critics(policy.standardized(observations), numbers).amin(0).argmax(1)
        return torch.arange(best.shape[0], device=best.device) * count + best

    def beginnings(self, step: Int[Tensor, " B"]) -> Bool[Tensor, "B 2"]:
        """Which streams begin anew; an odd K leaves a cache one step too old, which begins anew before it is used."""
        cycle = 2 * self.period
        within, found = step % cycle, []
        for first in (0, self.period):
            again = (first + self.context_length) % cycle
            begins = within == first
            found.append(begins if again == first else begins | (within == again))
        return torch.stack(found, -1)


class Reading:
    """Feeds the tokens of one step, a part at a time, to what acting remembers; holds what it remembers then.

    Rows are environments times candidates whose pasts differ (``Decider.prefixes``), R of them.
    """

    def __init__(
        self,
        decider: Decider,
        state: ActingState,
        start: Bool[Tensor, " B"],
        step: Int[Tensor, " B"],
        task: Int[Tensor, " B"] | None,
        tables: dict[str, Tensor],
        overwrites: bool,
    ) -> None:
        self.decider, self.backbone, self.group = decider, decider.policy.backbone, decider.policy.tokens_per_step
        self.memory, self.tables, self.overwrites = state.memory, tables, overwrites
        count = decider.prefixes
        self.start, self.step, self.before = (by_stream(each, count) for each in (start, step, state.step))
        self.task = None if task is None else by_stream(task, count)
        rows, width = self.step.shape[0], state.tokens.shape[-1]
        self.length = state.tokens.shape[1] // count
        self.tokens = state.tokens.reshape(rows, self.length, width)
        self.opens = True

    def feed(self, new: Sequence[Float[Tensor, "R W"]], context: Context | None) -> Float[Tensor, "R W"]:
        """Features of the last of these tokens; the first part of a step begins with the previous action."""
        tokens = torch.stack(tuple(new), 1)
        features = self._recompute(tokens) if self.memory is None else self._cached(tokens, context)
        self.opens = False
        return features

    def newest(self) -> Float[Tensor, "B N W"]:
        """The newest tokens, in the mode ``recompute``."""
        rows, length, width = self.tokens.shape
        return self.tokens.reshape(rows // self.decider.prefixes, self.decider.prefixes * length, width)

    def _cached(self, new: Float[Tensor, "R N W"], context: Context | None) -> Float[Tensor, "R W"]:
        """By feeding only new tokens to all streams.

        Where a stream begins anew, it does so at the second token and at the first one too: that is the previous
        action, which nobody looks at then, and behind what the stream read before there may be no place for it.
        """
        assert self.memory is not None
        count, streams, reset = new.shape[1], self.decider.streams, None
        times = [self.step] * count
        if self.opens:
            begins = self.start[:, None]
            if streams == 2:
                begins = begins | self.decider.beginnings(self.step)
            reset = torch.stack([begins, begins] + [torch.zeros_like(begins)] * (count - 2), -1).flatten(0, 1)
            times[0] = self.before
        task = self.task
        features, self.memory = self.backbone.step(
            by_stream(new, streams),
            self.memory,
            reset,
            timestep=by_stream(torch.stack(times, 1), streams),
            task=None if task is None else by_stream(task[:, None].expand(-1, count), streams),
            context=None if context is None else context.repeated(self.decider.prefixes * streams),
            wanted=NEWEST,
            tables=self.tables,
            overwrites=self.overwrites,
        )
        if streams == 1:
            return features[:, -1]
        even, odd = features[:, -1].unflatten(0, (-1, 2)).unbind(1)
        return torch.where(self.decider.cache(self.step)[:, None] % 2 == 1, odd, even)

    def _recompute(self, new: Float[Tensor, "R N W"]) -> Float[Tensor, "R W"]:
        """From the newest steps alone: an episode of their own.

        What is kept ends with the last token before an action; a part of a step ends earlier.
        """
        group, count = self.group, self.length
        missing = group - new.shape[1] if self.opens else 0
        self.tokens = torch.cat([self.tokens, new], 1)[:, missing - count :]
        length = self.tokens.shape[1]
        first = count + 1 - group * self.decider.window(self.step)
        index = torch.arange(length, device=new.device)
        steps_ago = descending(count + 1, new.device)[:length] // group
        timestep = (self.step[:, None] - steps_ago).clamp(min=0)
        tasks = None if self.task is None else self.task[:, None].expand(-1, length)
        reset = index == first[:, None]
        features, _ = self.backbone(self.tokens, reset=reset, timestep=timestep, task=tasks, wanted=NEWEST)
        return features[:, -1]


def next_step(state: ActingState, start: Bool[Tensor, " B"]) -> Int[Tensor, " B"]:
    """Number of the step to decide inside its episode."""
    return (state.step + 1).masked_fill(start, 0)


def by_stream(rows: Shaped[Tensor, "B ..."], streams: int) -> Shaped[Tensor, "Bs ..."]:
    """Every row for every stream of its environment."""
    return rows if streams == 1 else rows.repeat_interleave(streams, 0)
