"""How a Decision Transformer acts: cached, in batches (arXiv 2106.01345, section 5.1).

B environments, K steps of context, G tokens per step, W model width, A head outputs, C candidates of an action.
"""

import warnings
from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any, Literal

import torch
from jaxtyping import Bool, Float, Int, Shaped
from torch import Tensor

from rltransformers.backbone import State
from rltransformers.core.action_masks import ACTION_MASK
from rltransformers.core.errors import ConfigError
from rltransformers.core.ranges import check
from rltransformers.functional.windows import descending
from rltransformers.policies.action_chunks import of_step
from rltransformers.policies.decision_network import DecisionPolicy
from rltransformers.policies.observations import check_state, read_task
from rltransformers.policies.returns import MAX_SCALED

ActingMode = Literal["refresh", "banded", "recompute"]  # what acting remembers; see ``Decider``
NEWEST = slice(-1, None)
BEYOND = 0.1
"""Share of the range of returns by which a prediction may exceed the data before a warning."""
OF_SOME: dict[str, torch.dtype | None] = {
    **{"predicted_return": torch.float64, "asked": torch.bool},
    **{"plan": None, "plan_noise": torch.float64, "plan_greedy": torch.bool},
}
"""What the states of some policies hold besides, and its type, None for that of the weights."""


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
    return_to_go: Float[Tensor, " B"]  # what the last action was to return, in reward units, float64; NaN: anything
    step: Int[Tensor, " B"]  # number of the last step inside its episode
    predicted_return: Float[Tensor, " B"] | None = None
    """What a return head predicted in the last step, before its limits, in reward units, float64; None without one."""
    asked: Bool[Tensor, " B"] | None = None
    """Where a return was asked for, so that the head does not answer; None without a return head."""
    plan: Float[Tensor, "B k A"] | None = None
    """Head outputs of the last decision, k rows; None for a policy without chunks (``action_chunks``)."""
    plan_noise: Float[Tensor, "B U"] | None = None
    """What actions of the plan are sampled with, float64; None where nothing is sampled."""
    plan_greedy: Bool[Tensor, " B"] | None = None
    """Where the plan takes the most probable actions; None where nothing is sampled."""

    def __repr__(self) -> str:
        return f"ActingState(batch {self.batch_size}, memory {self.memory}, tokens {tuple(self.tokens.shape)})"

    def __getitem__(self, rows: Int[Tensor, " R"]) -> "ActingState":
        memory = None
        if self.memory is not None:
            streams = torch.arange(self.memory.batch_size, device=rows.device).view(self.batch_size, -1)
            memory = self.memory[streams[rows].flatten()]
        return ActingState(memory, **{name: value[rows] for name, value in self.tensors().items()})

    def tensors(self) -> dict[str, Tensor]:
        """All tensors but those of the memory, by name."""
        names = ("tokens", "action", "return_to_go", "step", *OF_SOME)
        return {name: value for name in names if (value := getattr(self, name)) is not None}

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

    Where nobody asks for a return, a return head answers: with the return-to-go that it predicts, or with what the
    reward left of its answer before where that is more, but at most with the largest return-to-go of the data at this
    step of an episode (``DecisionPolicy.limit``).

    In the mode ``refresh`` two streams of every environment read the same tokens. Stream s begins anew at the steps n h
    with n even (s = 0) or odd (s = 1), and decides from its K - h-th step to its K-th, the first one from its first: by
    then it has seen what a restart from the newest K - h steps would read.

    A policy with chunks decides at the steps 0, n, 2n, ... of an episode, n its ``decide_every``; other steps take the
    action that the last decision planned for them.
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
        memory = {} if state.memory is None else state.memory.tensors
        found = {name: tuple(value.shape) for name, value in (state.tensors() | memory).items()}
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

    def rows(self, step: Int[Tensor, " B"], candidate: Int[Tensor, " B"] | int = 0) -> Int[Tensor, " B"]:
        """Streams that decide at ``step`` of an episode, of those of all environments; of one candidate each."""
        row = torch.arange(len(step), device=step.device) * self.prefixes + candidate
        return 2 * row + self.cache(step) % 2 if self.streams == 2 else row

    def initial_state(self, batch_size: int) -> ActingState:
        """A state before any step; the first ``step`` must say that every episode starts."""
        weight, shapes = self.policy.head.linear.weight, self.state_shapes(batch_size)
        rows = batch_size * self.prefixes * self.streams
        return ActingState(
            self.policy.backbone.initial_state(rows, cached="only") if rows else None,
            weight.new_zeros(shapes["tokens"]),
            weight.new_zeros(shapes["action"]),
            torch.zeros(shapes["return_to_go"], dtype=torch.float64, device=weight.device),
            torch.zeros(shapes["step"], dtype=torch.long, device=weight.device),
            **{name: weight.new_zeros(shapes[name], dtype=kind) for name, kind in OF_SOME.items() if name in shapes},
        )

    def state_shapes(self, batch_size: int) -> dict[str, tuple[int, ...]]:
        policy = self.policy
        count = self.context_length * policy.tokens_per_step - 1 if self.mode == "recompute" else 0
        rows = batch_size * self.prefixes * self.streams
        memory = policy.backbone.state_forms["only"] if rows else {}
        names = ["return_to_go", "step"]
        if policy.return_head is not None:
            names += ["predicted_return", "asked"]
        plan: dict[str, tuple[int, ...]] = {}
        if policy.chunk > 1:
            plan["plan"] = batch_size, policy.chunk, sum(leaf.outputs for leaf in policy.head.by_path.values())
            if policy.head.draws:
                plan["plan_noise"], plan["plan_greedy"] = (batch_size, policy.head.draws), (batch_size,)
        return {
            "tokens": (batch_size, self.prefixes * count, policy.width),
            "action": (batch_size, policy.width),
            **dict.fromkeys(names, (batch_size,)),
            **plan,
            **{name: (rows, *shape) for name, shape in memory.items()},
        }

    @torch.inference_mode()
    def step(
        self,
        observations: Mapping[str, Tensor],
        state: ActingState,
        *,
        start: Bool[Tensor, " B"],
        reward: Float[Tensor, " B"],
        target_return: Float[Tensor, " B"],
        noise: Float[Tensor, "B U"] | None = None,
        overwrites: bool = False,
    ) -> tuple[dict[str, Tensor], Float[Tensor, " B"], ActingState]:
        """One decision for every environment, the sum of the outputs of the head, and the state after it.

        Args:
            observations: by leaf path, [B, *leaf shape].
            start: True where this observation is the first of an episode; what ``state`` held there is forgotten.
            reward: of the previous step; not read where an episode starts. NaN where it is unknown, which is allowed
                where nobody asks for a return: only the data limit the answer of a return head then.
            target_return: what an episode that starts here is asked to return; not read elsewhere. NaN asks for
                nothing: a return head then answers in every step.
            noise: numbers in [0, 1) to sample actions with, [B, U]; None takes the most probable action. A policy with
                chunks reads it where it decides.
            overwrites: nobody needs ``state`` any more: its rings are written in place and belong to the next state.

        Raises:
            DataError: an episode is longer than a position table.
        """
        tables, policy = self.policy.tables.current(), self.policy
        self.check_places(state, start)
        inputs, acted = (start, reward, target_return, noise), None
        if policy.machine_code is not None and self.mode != "recompute":
            acted = policy.machine_code(self, observations, state, *inputs, tables, overwrites)
        if acted is None:
            actions, outputs, after = self.network_step(
                observations, state, *inputs, tables=tables, overwrites=overwrites
            )
            total = outputs.sum(-1)
        else:
            actions, total, after = acted
        if policy.return_head is not None and not policy.warned:
            self.warn_beyond_data(after)
        return actions, total, after

    def warn_beyond_data(self, state: ActingState) -> None:
        """Warn once per policy of a prediction that lies a tenth of the range of returns beyond the data, or more."""
        assert state.predicted_return is not None and state.asked is not None
        limit = self.policy.limit(state.step)
        beyond = (state.predicted_return - limit).masked_fill(state.asked, -torch.inf)
        row, (lowest, highest) = int(beyond.argmax()), self.range_to_go
        if float(beyond[row]) <= BEYOND * (highest - lowest):
            return
        self.policy.warned = True
        warnings.warn(
            f"the return head predicts a return-to-go of {float(state.predicted_return[row]):.4g} in step"
            f" {int(state.step[row])}, where no episode of the data had more than {float(limit[row]):.4g};"
            f" acting takes {float(state.return_to_go[row]):.4g}. More updates or a lower expectile bring it nearer to"
            " the data, and target_return asks for a return of your own",
            UserWarning,
            stacklevel=3,
        )

    def check_places(self, state: ActingState, start: Bool[Tensor, " B"]) -> None:
        """Raise DataError unless position tables reach to the next step."""
        step = next_step(state, start)
        # A cache that decides has been as long as the episode, up to K; the observation is the last but one of a step.
        longest = step + 1 if self.mode == "banded" else (step + 1).clamp(max=self.context_length)
        self.policy.backbone.check_places(longest * self.policy.tokens_per_step - 2, step)

    def network_step(
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
        """``step`` in fixed shapes and without a look at data, with head outputs that the actions were decoded from.

        Rows that are ``greedy`` take the most probable action.
        """
        policy, asked = self.policy, state.return_to_go
        if not self.delayed_reward:
            asked = asked - reward.to(asked)
        if self.discount != 1.0:
            asked = self.within_range(asked / self.discount, state.return_to_go)
        asked = torch.where(start, target_return.to(asked), asked)
        step, of_some = next_step(state, start), dict[str, Tensor]()
        features, memory, tokens = self._read(observations, state, asked, start, step, tables, overwrites)
        if state.asked is not None:
            somebody_asks = (start & ~target_return.isnan()) | (~start & state.asked)  # runtimes choose numbers only
            predicted, answer = self.answer(features, asked, step)
            asked = torch.where(somebody_asks, asked, answer)
            of_some |= {"predicted_return": predicted, "asked": somebody_asks}
        if policy.condition is not None:
            goals = self.goals(asked, step)
            features = policy.conditioned(by_stream(features, goals.shape[1]), policy.scaled(goals).flatten())
        candidates = max(len(self.jitter), 1)
        masks = {path: by_stream(each, candidates) for path, each in observations.items() if path == ACTION_MASK}
        outputs = policy.head(features)
        noise, greedy = (None if each is None else by_stream(each, candidates) for each in (noise, greedy))
        if state.plan is not None:
            of_some |= self.plan(state, step, outputs, noise, greedy)
            outputs, noise, greedy = of_some["plan"], of_some.get("plan_noise"), of_some.get("plan_greedy")
        outputs = policy.masked(outputs, masks)
        actions = (
            policy.head.decode(outputs, noise) if greedy is None else policy.head.decode_some(outputs, noise, greedy)
        )
        if state.plan is not None:
            position = step % policy.decide_every
            actions = {path: of_step(value, position) for path, value in actions.items()}
            outputs = of_step(outputs, position)
        if self.jitter:
            best = self._best(observations, actions)
            actions, outputs = {path: value[best] for path, value in actions.items()}, outputs[best]
        after = ActingState(memory, tokens, policy.head.embed(actions), asked, step, **of_some)
        return actions, outputs, after

    def plan(
        self,
        state: ActingState,
        step: Int[Tensor, " B"],
        outputs: Float[Tensor, "B k A"],
        noise: Float[Tensor, "B U"] | None,
        greedy: Bool[Tensor, " B"] | None,
    ) -> dict[str, Tensor]:
        """What a policy with chunks goes by from this step on: what it decides here, or goes on with, by name."""
        assert state.plan is not None
        decides = step % self.policy.decide_every == 0
        plan = {"plan": torch.where(decides[:, None, None], outputs, state.plan)}
        if state.plan_noise is not None and state.plan_greedy is not None:
            if greedy is None:
                greedy = torch.full_like(decides, noise is None)
            noise = torch.zeros_like(state.plan_noise) if noise is None else noise.to(state.plan_noise)
            plan["plan_noise"] = torch.where(decides[:, None], noise, state.plan_noise)
            plan["plan_greedy"] = (decides & greedy) | (~decides & state.plan_greedy)  # runtimes choose numbers only
        return plan

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

    def answer(
        self, features: Float[Tensor, "B W"], left: Float[Tensor, " B"], step: Int[Tensor, " B"]
    ) -> tuple[Float[Tensor, " B"], Float[Tensor, " B"]]:
        """What the return head predicts, and its answer within the limits, in reward units.

        Args:
            left: what the reward left of the last answer; NaN where there is none.
        """
        predicted = self.policy.predicted_return(features).to(left.dtype) * self.policy.return_scale
        wanted = predicted.maximum(left.masked_fill(left.isnan(), -torch.inf))
        return predicted, wanted.minimum(self.policy.limit(step))

    def _read(
        self,
        observations: Mapping[str, Tensor],
        state: ActingState,
        asked: Float[Tensor, " B"],
        start: Bool[Tensor, " B"],
        step: Int[Tensor, " B"],
        tables: dict[str, Tensor],
        overwrites: bool,
    ) -> tuple[Float[Tensor, "R W"], State | None, Float[Tensor, "B N W"]]:
        """Features of the observations, the memory after them, and the newest tokens.

        Rows are environments times candidates whose pasts differ (``prefixes``), R of them. With a memory all streams
        are fed the tokens of this step alone. Where a stream begins anew, it does so at the second token and at the
        first one too: that is the previous action, which nobody looks at then, and behind what the stream read before
        there may be no place for it.
        """
        policy, count, streams = self.policy, self.prefixes, self.streams
        seen = policy.observe(observations).at_once()
        new = [by_stream(each, count) for each in (state.action, seen.token[:, 0])]
        if policy.embed_return is not None:
            new.insert(1, policy.embed_scaled(policy.scaled(self.goals(asked, step)).flatten()))
        tokens, task = torch.stack(new, 1), None if policy.task is None else read_task(observations, policy.task)
        if state.memory is None:
            return self._recompute(tokens, state, step, task)
        group, rows = len(new), count * streams
        begins = start[:, None]
        if streams == 2:
            begins = begins | self.beginnings(step)
        reset = torch.stack([begins, begins] + [torch.zeros_like(begins)] * (group - 2), -1)
        times = torch.stack([state.step] + [step] * (group - 1), 1)
        context = policy.context(seen, slice(group - 1, group))
        features, memory = policy.backbone.step(
            by_stream(tokens, streams),
            state.memory,
            by_stream(reset, count).flatten(0, 1),
            timestep=by_stream(times, rows),
            task=None if task is None else by_stream(task[:, None].expand(-1, group), rows),
            context=None if context is None else context.repeated(rows),
            wanted=NEWEST,
            tables=tables,
            overwrites=overwrites,
        )
        newest = features[:, -1]
        if streams == 2:
            even, odd = newest.unflatten(0, (-1, 2)).unbind(1)
            newest = torch.where(by_stream(self.cache(step), count)[:, None] % 2 == 1, odd, even)
        return newest, memory, state.tokens

    def _recompute(
        self, new: Float[Tensor, "R G W"], state: ActingState, step: Int[Tensor, " B"], task: Int[Tensor, " B"] | None
    ) -> tuple[Float[Tensor, "R W"], None, Float[Tensor, "B N W"]]:
        """From the newest steps alone: an episode of their own."""
        rows, group, width = new.shape
        length = state.tokens.shape[1] // self.prefixes
        tokens = torch.cat([state.tokens.reshape(rows, length, width), new], 1)[:, -length:]
        step = by_stream(step, self.prefixes)
        first = length + 1 - group * self.window(step)
        steps_ago = descending(length + 1, new.device)[:length] // group
        timestep = (step[:, None] - steps_ago).clamp(min=0)
        tasks = None if task is None else by_stream(task, self.prefixes)[:, None].expand(-1, length)
        reset = torch.arange(length, device=new.device) == first[:, None]
        features, _ = self.policy.backbone(tokens, reset=reset, timestep=timestep, task=tasks, wanted=NEWEST)
        return features[:, -1], None, tokens.reshape(state.tokens.shape)

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


def next_step(state: ActingState, start: Bool[Tensor, " B"]) -> Int[Tensor, " B"]:
    """Number of the step to decide inside its episode."""
    return (state.step + 1).masked_fill(start, 0)


def by_stream(rows: Shaped[Tensor, "B ..."], streams: int) -> Shaped[Tensor, "Bs ..."]:
    """Every row for every stream of its environment."""
    return rows if streams == 1 else rows.repeat_interleave(streams, 0)
