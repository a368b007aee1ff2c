"""CueRecall: one cue, one question."""

from dataclasses import dataclass
from typing import Annotated, ClassVar

import numpy as np
from annotated_types import Ge, Le

from rltransformers.envs.memory_rules.interface import (
    Array,
    Length,
    Outcome,
    Rules,
    State,
    check_shortest,
    log_uniform,
    whole,
)


@dataclass(frozen=True)
class CueRecall(Rules):
    """A cue is shown at the first step; after ``delay`` empty steps it is asked for.

    Observation: Box [cues + 1], the cue one-hot at the first step, then zeros, the last entry 1 when the answer is due.
    Action: Discrete(cues), looked at only when the answer is due. Reward 1 for the right answer, else 0. An episode has
    delay + 2 steps. Chance is 1 / cues, with or without sight of the present observation; the best return is 1.
    With ``shortest_delay`` every episode draws a delay of its own from shortest_delay..delay, log-uniformly.
    """

    delay: Annotated[int, Ge(0), Le(10**9)] = 16
    cues: Annotated[int, Ge(2), Le(10**6)] = 2
    shortest_delay: Length | None = None

    draws: ClassVar[int] = 1

    def __post_init__(self) -> None:
        check_shortest("delay", self.delay, self.shortest_delay)

    @property
    def horizon(self) -> int:
        return self.delay + 2

    @property
    def entries(self) -> int:
        return self.cues + 1

    @property
    def actions(self) -> int:
        return self.cues

    def start(self, uniform: Array) -> State:
        cue = whole(uniform[:, 0], self.cues)
        delay = log_uniform(self.cues * uniform[:, 0] - cue, self.shortest_delay, self.delay)
        return {"cue": cue, "due": delay + 1, "t": np.zeros(len(uniform), np.int64)}

    def observe(self, state: State) -> Array:
        observation = np.zeros((len(state["t"]), self.entries), np.float32)
        first = state["t"] == 0
        if np.count_nonzero(first):
            observation[first, state["cue"][first]] = 1.0
        observation[:, -1] = state["t"] == state["due"]
        return observation

    def step(self, state: State, action: Array) -> Outcome:
        answered = state["t"] == state["due"]
        right = answered & (action == state["cue"])
        return Outcome(state | {"t": state["t"] + 1}, right.astype(np.float64), answered, right)
