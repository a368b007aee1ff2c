"""Corridors with junctions: walk to the end and turn to the side that a cue has shown."""

from dataclasses import dataclass
from typing import Annotated, ClassVar

import numpy as np
from annotated_types import Ge, Le, Lt

from rltransformers.core.ranges import check
from rltransformers.envs.memory_rules.interface import (
    DOWN,
    LEFT,
    RIGHT,
    UP,
    Array,
    Length,
    Rules,
    RulesOutcome,
    State,
    check_shortest,
    log_uniform,
    random_bits,
    random_words,
    whole,
)


@dataclass(frozen=True)
class _TMaze(Rules):
    """A corridor with a junction at its right end; the goal is above or below the junction.

    The agent starts ``detour`` cells right of the left end, where the goal is shown once. Published as the T-maze of
    Ni et al. 2023 (arXiv 2307.03864), after Bakker 2001. With ``shortest_corridor`` every episode draws a length of
    its own from shortest_corridor..corridor, log-uniformly: 2..3 as often as 4..7 or 8..15.
    """

    corridor: Length = 50
    shortest_corridor: Length | None = None

    draws: ClassVar[int] = 1
    entries: ClassVar[int] = 2
    lowest: ClassVar[float] = -1.0
    detour: ClassVar[int]

    def __post_init__(self) -> None:
        check_shortest("corridor", self.corridor, self.shortest_corridor)

    @property
    def horizon(self) -> int:
        return self.corridor + 2 * self.detour + 1

    def start(self, uniform: Array) -> State:
        zero = np.zeros(len(uniform), np.int64)
        side = whole(uniform[:, 0], 2)
        corridor = log_uniform(2 * uniform[:, 0] - side, self.shortest_corridor, self.corridor)
        return {
            "x": zero + self.detour,
            "y": zero,
            "end": self.detour + corridor,
            "goal": 2 * side - 1,
            "shown": zero.astype(bool),
            "t": zero,
        }

    def observe(self, state: State) -> Array:
        at_cue = (state["x"] == 0) & ~state["shown"]
        at_junction = state["x"] == state["end"]
        second = np.where(at_junction, state["y"], np.where(at_cue, state["goal"], 0))
        return np.stack([at_junction, second], axis=1).astype(np.float32)

    def step(self, state: State, action: Array) -> RulesOutcome:
        x, y, end, t = state["x"], state["y"], state["end"], state["t"] + 1
        along = (action == RIGHT).astype(np.int64) - (action == LEFT)
        across = (action == UP).astype(np.int64) - (action == DOWN)
        moved_x = np.where(y == 0, np.clip(x + along, 0, end), x)
        moved_y = np.where(x == end, np.clip(y + across, -1, 1), y)
        last = end + self.detour + 1
        terminated = t >= last
        success = terminated & (moved_y == state["goal"])
        behind = ~terminated & (moved_x < t - self.detour)
        reward = success - behind / (last - 1)
        shown = state["shown"] | (x == 0)
        return RulesOutcome(state | {"x": moved_x, "y": moved_y, "shown": shown, "t": t}, reward, terminated, success)


@dataclass(frozen=True)
class PassiveTMaze(_TMaze):
    """Walk ``corridor`` cells to the right, then turn to the side that was shown at the first step.

    Observation: Box [2]: (0, goal) at the first step with goal = +1 above, -1 below; (0, 0) in the corridor; (1, y)
    at the junction and in the arms. Actions: Discrete(4), right, up, left, down; a move into a wall stays. An episode
    lasts exactly corridor + 1 steps, so one step not to the right fails it. Reward: 1 at the last step in the right
    arm; before it, -1 / corridor for each step on which the agent is behind the fastest walk. Best return 1; a walker
    that ignores the cue gets 1/2. With ``shortest_corridor`` all this holds for the corridor of the episode: a learner
    sees the junction long before it can walk far.

    Source: Ni et al. 2023 (arXiv 2307.03864). ``penalty`` there is a free number; ours is 1 / corridor, so returns
    lie in [-1, 1].
    """

    detour: ClassVar[int] = 0


@dataclass(frozen=True)
class ActiveTMaze(_TMaze):
    """The T-maze in which the cue has to be fetched: one step to the left of the start, against the way to the goal.

    As ``PassiveTMaze``, with the start one cell right of the cue (first observation (0, 0)), corridor + 3 steps, and
    no penalty for the two steps that fetching the cue costs. Best return 1; a walker that does not look at the cue
    gets 1/2.
    """

    detour: ClassVar[int] = 1


@dataclass(frozen=True)
class DistractorTMaze(Rules):
    """A T-maze that shows the place, beside bits that mean nothing; the cue is shown at the first step alone.

    The agent starts in the first of ``corridor`` cells and turns in the last one. Observation: Box [10 + distractors]
    of zeros and ones: the cue, (0, 1) for up and (1, 0) for down at the first step, (0, 0) later; the cell as a Gray
    code of 8 bits, the highest first; ``distractors`` bits, 0 at the first step and drawn anew at every later one.
    Actions: Discrete(4), 0 up, 1 down, 2 left, 3 right. In the last cell up and down end the episode, with reward 4 on
    the side of the cue and -1 on the other; left and right do nothing there, up and down nothing elsewhere. Every other
    step costs 0.1. An episode is truncated after ``limit`` steps. The best return is 4 - 0.1 (corridor - 1), the best
    without memory 1.5 - 0.1 (corridor - 1). With ``shortest_way`` episodes start in any cell from which the junction is
    at least that many steps away, n steps about as often as 1 / n: a learner meets the junction long before it can walk
    far.

    Source: the second T-maze of AGaLiTe (Pramanik et al. 2023, arXiv 2310.15719), with the sizes of its configurations;
    ``shortest_way`` is ours.
    """

    corridor: Annotated[int, Ge(2), Le(256)] = 120  # what 8 bits can name
    distractors: Annotated[int, Ge(0), Le(10**6)] = 6
    limit: Length = 1000
    shortest_way: Length | None = None

    draws: ClassVar[int] = 2
    bits: ClassVar[int] = 8

    def __post_init__(self) -> None:
        check(self.limit, Annotated[int, Ge(self.corridor)], f"limit with corridor {self.corridor}")
        if self.shortest_way is not None:
            check(self.shortest_way, Annotated[int, Lt(self.corridor)], f"shortest_way with corridor {self.corridor}")

    @property
    def horizon(self) -> int:
        return self.limit

    @property
    def entries(self) -> int:
        return 2 + self.bits + self.distractors

    def start(self, uniform: Array) -> State:
        side = whole(uniform[:, 0], 2)
        last = self.corridor - 1
        return {
            "side": side,  # the action that wins: 0 is up
            "seed": whole(uniform[:, 1], 2**53),  # every bit of a uniform number
            "x": last - log_uniform(2 * uniform[:, 0] - side, self.shortest_way, last),
            "t": np.zeros(len(uniform), np.int64),
        }

    def observe(self, state: State) -> Array:
        first, x = state["t"] == 0, state["x"]
        observation = np.zeros((len(x), self.entries), np.float32)
        observation[:, 0] = first & (state["side"] == 1)
        observation[:, 1] = first & (state["side"] == 0)
        observation[:, 2 : 2 + self.bits] = (x ^ (x >> 1))[:, None] >> np.arange(self.bits)[::-1] & 1
        places = state["t"][:, None] * self.distractors + np.arange(self.distractors)
        observation[:, 2 + self.bits :] = random_bits(state["seed"][:, None], places) & ~first[:, None]
        return observation

    def step(self, state: State, action: Array) -> RulesOutcome:
        last = self.corridor - 1
        at_junction = state["x"] == last
        turned = at_junction & (action < 2)
        right = turned & (action == state["side"])
        along = (action == 3).astype(np.int64) - (action == 2)
        x = np.where(at_junction, last, np.clip(state["x"] + along, 0, last))
        t = state["t"] + 1
        reward = np.where(turned, np.where(right, 4.0, -1.0), -0.1)
        return RulesOutcome(state | {"x": x, "t": t}, reward, turned, right, (t >= self.limit) & ~turned)


@dataclass(frozen=True)
class EndlessTMaze(Rules):
    """Corridors one after another, each with a junction at its end and a cue of its own in its first cell.

    The agent walks by itself, one cell per step. Observation: Box [3] of zeros and ones: the cue, (1, 0) for left and
    (0, 1) for right in the first cell of a corridor, (0, 0) elsewhere; then whether the cell is a junction. Action:
    Discrete(2), left, right, looked at only in junctions. The side of the newest cue pays 1 and leads into the next
    corridor; the other side pays 0 and ends the episode. An episode succeeds, and ends, after ``junctions`` of them.
    Corridors have ``corridor`` cells, or shortest_corridor..corridor, each number equally likely. The best return is
    ``junctions``; the best mean return without memory is 1 - 2 ** -junctions.

    An older cue counts for nothing: what has to be learned is to overwrite. Who learned with 10 junctions can be asked
    for 1,000. After the task of "Memory retention is not enough" (2026, arXiv 2601.15086).
    """

    corridor: Annotated[int, Ge(2), Le(10**9)] = 8
    shortest_corridor: Annotated[int, Ge(2), Le(10**9)] | None = 3
    junctions: Length = 10

    draws: ClassVar[int] = 1
    entries: ClassVar[int] = 3
    actions: ClassVar[int] = 2

    def __post_init__(self) -> None:
        check_shortest("corridor", self.corridor, self.shortest_corridor)

    @property
    def horizon(self) -> int:
        return self.corridor * self.junctions

    def start(self, uniform: Array) -> State:
        seed = whole(uniform[:, 0], 2**53)
        return {"seed": seed, **self._corridor(seed, np.zeros(len(seed), np.int64))}

    def observe(self, state: State) -> Array:
        first = state["cell"] == 0
        cue = [first & (state["side"] == side) for side in (0, 1)]
        return np.stack([*cue, state["cell"] == state["end"]], 1).astype(np.float32)

    def step(self, state: State, action: Array) -> RulesOutcome:
        turned = state["cell"] == state["end"]
        right = turned & (action == state["side"])
        solved = right & (state["number"] == self.junctions - 1)
        walked = state | {"cell": state["cell"] + 1}
        next_corridor = self._corridor(state["seed"], state["number"] + 1)
        entered = {name: np.where(right, value, walked[name]) for name, value in next_corridor.items()}
        return RulesOutcome(walked | entered, right.astype(np.float64), solved | (turned & ~right), solved)

    def _corridor(self, seed: Array, number: Array) -> State:
        """The first cell of the corridor with this number, 0 first: its last cell and the side of its cue."""
        shortest = self.corridor if self.shortest_corridor is None else self.shortest_corridor
        drawn = random_words(seed, 2 * number) % np.uint64(self.corridor - shortest + 1)
        return {
            "number": number,
            "cell": np.zeros(len(seed), np.int64),
            "end": shortest - 1 + drawn.astype(np.int64),
            "side": random_bits(seed, 2 * number + 1).astype(np.int64),
        }
