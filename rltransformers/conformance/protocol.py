"""Interface of a policy with memory that can be checked. Axes: B episodes side by side, T steps, D inputs, A outputs.

An adapter for a policy is a class with the members of ``PolicyWithMemory``; nothing is inherited. What only some
policies can do (pad, act on a window, store a state, learn) are protocols of their own: a check whose protocol is not
offered does not apply.
"""

from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Annotated, Any, Protocol, runtime_checkable

from annotated_types import Ge
from jaxtyping import Bool, Float
from torch import Tensor

from rltransformers.core.ranges import WholeNumber, check_fields


@dataclass(frozen=True)
class Traits:
    """Kinds of memory of a policy.

    Attributes:
        full: steps after which a memory, a window or a table of positions is full; None where nothing fills, as in a
            recurrent state. Long streams go beyond three times as many.
        longest: steps that one call of ``segment`` takes at most; None for any number.
        resets_inside: whether ``first`` may be True at any step of a segment, and at other steps in other rows; else
            only in all rows at once, and at the first step of a segment.
        continues: whether a segment may follow a state; else it begins with the episode.
        cache: what is kept of earlier steps that could be computed again from what is remembered, in a few words; ""
            for nothing, as in a recurrent state, which is itself what is remembered.
        caller_holds_cache: the cache is an argument of a function and lives as long as its caller wants, so that no
            code of the library could know that weights have changed since.
        exempt: reasons for which checks do not apply, by the name of the check.

    Raises:
        ConfigError: for numbers outside their ranges, and segments of one step, in which there is nothing to compare.
    """

    full: WholeNumber | None
    longest: Annotated[int, Ge(2)] | None = None
    resets_inside: bool = True
    continues: bool = True
    cache: str = ""
    caller_holds_cache: bool = False
    exempt: Mapping[str, str] = field(default_factory=dict)

    def __post_init__(self) -> None:
        check_fields(self, "traits.")


class PolicyWithMemory(Protocol):
    """A policy as the checks see it: numbers in, numbers out.

    ``inputs`` is D: everything that one step tells the policy (observation, previous action, return-to-go, ...) as so
    many numbers around 1; the adapter says which is what. What is compared are outputs: parameters of distributions,
    actions or features, and values. The last output of a policy that offers ``Bootstraps`` is its value.
    """

    @property
    def inputs(self) -> int: ...

    @property
    def traits(self) -> Traits: ...

    def reset(self, batch: int) -> Any:
        """The state before the first step of ``batch`` episodes."""
        ...

    def step(
        self, inputs: Float[Tensor, "B D"], first: Bool[Tensor, " B"], state: Any
    ) -> tuple[Float[Tensor, "B A"], Any]:
        """Outputs of one step as acting computes them, and the state after it; ``state`` is not used again.

        ``first`` marks rows whose episode begins here: they forget what ``state`` holds, as the library does it.
        """
        ...

    def segment(self, inputs: Float[Tensor, "B T D"], first: Bool[Tensor, "B T"], state: Any) -> Float[Tensor, "B T A"]:
        """Outputs of T steps that follow ``state``, as the training pass computes them, without dropout."""
        ...

    def weights(self) -> Iterable[Tensor]:
        """All that learning changes; the checks change it in place, as optimizers and ``load_state_dict`` do."""
        ...


@runtime_checkable
class Pads(Protocol):
    """A training pass over episodes of several lengths, filled up with padding."""

    padding: str
    """The side of it: "left" or "right"."""

    def pad(self, inputs: Float[Tensor, "B T D"], valid: Bool[Tensor, "B T"]) -> Float[Tensor, "B T A"]:
        """Outputs of episodes that begin at their first valid step; what stands in padding must not matter."""
        ...


@runtime_checkable
class Windows(Protocol):
    """A policy whose decisions look at a window of the newest steps, which is also what it is trained on."""

    def lookback(self, step: int) -> int:
        """Steps that the decision at ``step`` (0 is the first) of an episode looks at, itself included."""
        ...

    def window(self, inputs: Float[Tensor, "B T D"], start: int) -> Float[Tensor, "B T A"]:
        """Outputs of the training pass on a window that begins at step ``start`` of an episode."""
        ...


@runtime_checkable
class Renews(Protocol):
    """A library that brings an acting state up to date when the weights have changed."""

    def renew(self, state: Any) -> Any:
        """The state for today's weights, made as the library's own loop makes it."""
        ...


@runtime_checkable
class Saves(Protocol):
    """A policy and its acting state that can be written in the middle of an episode, and read by another process."""

    def save(self, state: Any, folder: Path) -> None: ...

    def load(self, folder: Path) -> tuple[PolicyWithMemory, Any]:
        """Another policy object and the state, made of nothing but the files."""
        ...


@runtime_checkable
class Resumes(Protocol):
    """A learner whose run can be stopped in the middle of an episode."""

    def resume(self, folder: Path) -> tuple[Float[Tensor, "B A"], Float[Tensor, "B A"]]:
        """Outputs of the next step of a run that was saved and loaded, and of the same run without a stop."""
        ...


@runtime_checkable
class Ratios(Protocol):
    """A learner that compares probabilities of now with those of acting, as PPO does."""

    def log_probabilities(self) -> tuple[Float[Tensor, " N"], Float[Tensor, " N"]]:
        """Log-probabilities of actions when they were taken, and in the first training pass of the update.

        Of a rollout whose first steps go on with episodes of the rollout before.
        """
        ...


@dataclass(frozen=True)
class Bootstrap:
    """A value that a learner used for what comes after a cut: the end of a rollout, or a time limit.

    Attributes:
        inputs: [T, D], of the episode from its first step to the observation that is valued.
        value: what the learner used.
        where: which cut it is, in a few words.
    """

    inputs: Float[Tensor, "T D"]
    value: float
    where: str


@runtime_checkable
class Bootstraps(Protocol):
    """A learner that values what follows where a rollout or a time limit cuts an episode."""

    def bootstraps(self) -> Sequence[Bootstrap]:
        """Those of one rollout, episodes longer than the memory among them."""
        ...
