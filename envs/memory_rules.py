"""The rules of our memory tasks as pure functions on N copies at once; N=1 is the scalar environment.

A state is a dictionary of arrays [N, ...]. An episode is a function of ``draws`` uniform numbers in [0, 1), so one
generator per copy gives the same episodes alone and in a batch.
"""

from abc import ABC, abstractmethod
from dataclasses import dataclass
from typing import Annotated, Any, ClassVar, NamedTuple

import numpy as np
from annotated_types import Ge, Le, Lt
from gymnasium import spaces
from numpy.typing import NDArray

from rltransformers.core.ranges import check

Array = NDArray[Any]
State = dict[str, Array]
RIGHT, UP, LEFT, DOWN = range(4)
Length = Annotated[int, Ge(1), Le(10**9)]
"""Of an episode or of a part of it, in steps or cells."""
Size = Annotated[int, Ge(2), Le(10_000)]
"""Of a room with ``size`` x ``size`` cells."""


class Outcome(NamedTuple):
    """Outcome of one step, per copy [N]; ``success`` counts only where the episode ends.

    ``truncated`` ends an episode that could go on; None where no task of this kind does.
    """

    state: State
    reward: Array
    terminated: Array
    success: Array
    truncated: Array | None = None


class Rules(ABC):
    """One task; its fields are annotated with the ranges that an environment checks.

    Stepping a finished copy is harmless and meaningless: whoever steps resets it.

    Attributes:
        draws: how many uniform numbers one episode takes.
        lowest: number of an observation, or of each of its entries; the largest is 1.
    """

    draws: ClassVar[int]
    lowest: ClassVar[float | tuple[float, ...]] = 0.0

    @property
    @abstractmethod
    def horizon(self) -> int:
        """The largest number of steps in an episode."""

    @property
    @abstractmethod
    def entries(self) -> int:
        """Length of an observation."""

    @property
    def actions(self) -> int:
        """How many actions there are."""
        return 4

    @property
    def observation_space(self) -> spaces.Box:
        return spaces.Box(np.full(self.entries, self.lowest, np.float32), 1.0)

    @property
    def action_space(self) -> spaces.Discrete:
        return spaces.Discrete(self.actions)

    @abstractmethod
    def start(self, uniform: Array) -> State:
        """The first state from uniform numbers [N, draws]."""

    @abstractmethod
    def observe(self, state: State) -> Array: ...

    @abstractmethod
    def step(self, state: State, action: Array) -> Outcome: ...


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
        _check_shortest("delay", self.delay, self.shortest_delay)

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
        cue = _whole(uniform[:, 0], self.cues)
        delay = _log_uniform(self.cues * uniform[:, 0] - cue, self.shortest_delay, self.delay)
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
        _check_shortest("corridor", self.corridor, self.shortest_corridor)

    @property
    def horizon(self) -> int:
        return self.corridor + 2 * self.detour + 1

    def start(self, uniform: Array) -> State:
        zero = np.zeros(len(uniform), np.int64)
        side = _whole(uniform[:, 0], 2)
        corridor = _log_uniform(2 * uniform[:, 0] - side, self.shortest_corridor, self.corridor)
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

    def step(self, state: State, action: Array) -> Outcome:
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
        return Outcome(state | {"x": moved_x, "y": moved_y, "shown": shown, "t": t}, reward, terminated, success)


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
class KeyToDoor(Rules):
    """Take a key in the first room, cross an empty room, reach the door in the third: one reward, far from its cause.

    Each of the three ``size`` x ``size`` rooms lasts ``phase_steps`` steps; the agent starts each in a random cell, key
    and door in a random other cell. Actions: Discrete(4), right, up, left, down; a move into a wall stays. Reward 1 on
    first standing on the door with the key, else 0; every episode lasts 3 x phase_steps steps, so its length tells
    nothing. Observation: Box [6] in [-1, 1], as the agent sees it: room one-hot (3), whether an object is in view,
    rows and columns from the agent to it (zeros when not). A key that is taken leaves the view; whether it is held is
    not shown in the later rooms. With 5 x 5 rooms of 8 steps every object can be reached (best return 1) and a
    uniformly random walk succeeds in 3.15 % of the episodes.

    Source: the Key-to-Door task of Decision Transformer (arXiv 2106.01345, section 5.4), after Mesnard et al. 2021
    (arXiv 2011.09464); its sizes were not published, ours reproduce its random rate of 3.1 %.
    """

    size: Size = 5
    phase_steps: Length = 8

    draws: ClassVar[int] = 5
    entries: ClassVar[int] = 6
    lowest: ClassVar[tuple[float, ...]] = (0, 0, 0, 0, -1, -1)

    @property
    def horizon(self) -> int:
        return 3 * self.phase_steps

    def start(self, uniform: Array) -> State:
        cells = self.size**2
        starts = _whole(uniform[:, :3], cells)
        objects = (starts[:, [0, 2]] + 1 + _whole(uniform[:, 3:], cells - 1)) % cells
        no = np.zeros(len(uniform), bool)
        return {
            "t": np.zeros(len(uniform), np.int64),
            "cell": starts[:, 0],
            "starts": starts,
            "key": objects[:, 0],
            "door": objects[:, 1],
            "has_key": no,
            "opened": no,
        }

    def observe(self, state: State) -> Array:
        room = self._room(state["t"])
        target = np.where(room == 0, state["key"], state["door"])
        in_view = np.where(room == 0, ~state["has_key"], room == 2)
        observation = np.zeros((len(room), 6), np.float32)
        observation[np.arange(len(room)), room] = 1.0
        observation[:, 3] = in_view
        away = self._coordinates(target) - self._coordinates(state["cell"])
        observation[:, 4], observation[:, 5] = np.where(in_view, away, 0.0)
        return observation

    def step(self, state: State, action: Array) -> Outcome:
        room = self._room(state["t"])
        row, column = _walk(*divmod(state["cell"], self.size), action, self.size)
        cell = row * self.size + column
        has_key = state["has_key"] | ((room == 0) & (cell == state["key"]))
        opens = ~state["opened"] & has_key & (room == 2) & (cell == state["door"])
        opened = state["opened"] | opens
        t = state["t"] + 1
        next_room = self._room(t)
        cell = np.where(next_room == room, cell, state["starts"][np.arange(len(room)), next_room])
        after = {**state, "t": t, "cell": cell, "has_key": has_key, "opened": opened}
        return Outcome(after, opens.astype(np.float64), t >= self.horizon, opened)

    def _room(self, t: Array) -> Array:
        room: Array = np.minimum(t // self.phase_steps, 2)
        return room

    def _coordinates(self, cell: Array) -> Array:
        """Row and column of a cell in [0, 1], [2, N]."""
        return np.stack([cell // self.size, cell % self.size]) / (self.size - 1)


@dataclass(frozen=True)
class Stitching(Rules):
    """Walk through two rooms: from A to the door B, and from B to C. Recorded in parts, no episode shows the whole way.

    Two rooms of ``size`` x ``size`` cells. A is the bottom row of the first one, in a random cell of which the agent
    starts; B is its top left cell and leads to the top left cell of the second room; C is the bottom right cell there.
    Actions: Discrete(4), right, up, left, down; a move into a wall stays. Reward 1 on reaching C, which ends the
    episode, else 0. An episode is truncated after twice ``part_steps`` steps. Observation: Box [4] in [0, 1], room
    one-hot (2), row and column: nothing is hidden.

    With ``parts`` an episode is one of two halves, at equal chance: it begins in A and is truncated ``overlap`` steps
    behind the door, or it begins behind the door; both are truncated after ``part_steps`` steps. Every episode from A
    returns 0, and those from B know nothing of A: who imitates episodes by their return cannot learn to reach C from A;
    who passes values on from step to step can. Best return 1.
    """

    size: Size = 5
    part_steps: Length = 16
    overlap: Length = 2
    parts: bool = False

    draws: ClassVar[int] = 2
    entries: ClassVar[int] = 4

    @property
    def horizon(self) -> int:
        return self.part_steps if self.parts else 2 * self.part_steps

    def start(self, uniform: Array) -> State:
        second = (uniform[:, 0] < 0.5) & self.parts
        zero = np.zeros(len(uniform), np.int64)
        return {
            "t": zero,
            "room": second.astype(np.int64),
            "row": np.where(second, 0, self.size - 1),
            "column": np.where(second, 0, _whole(uniform[:, 1], self.size)),
            "behind": zero,
            "from_a": ~second,
        }

    def observe(self, state: State) -> Array:
        room, last = state["room"], self.size - 1
        return np.stack([room == 0, room == 1, state["row"] / last, state["column"] / last], 1).astype(np.float32)

    def step(self, state: State, action: Array) -> Outcome:
        last = self.size - 1
        row, column = _walk(state["row"], state["column"], action, self.size)
        at_door = (state["room"] == 0) & (row == 0) & (column == 0)
        room = state["room"] + at_door
        behind = state["behind"] + ((state["room"] == 1) & state["from_a"])
        arrived = (room == 1) & (row == last) & (column == last)
        t = state["t"] + 1
        over = (t >= self.horizon) | (behind >= self.overlap if self.parts else False)
        after = state | {"t": t, "room": room, "row": row, "column": column, "behind": behind}
        return Outcome(after, arrived.astype(np.float64), arrived, arrived, over & ~arrived)


@dataclass(frozen=True)
class ProofOfMemory(Rules):
    """A line with a good and a bad end, which are shown while the agent cannot move yet; walk to the good one.

    The line has 11 cells, at -1, -0.8, ..., 1; an episode starts in one of the five from -0.4 to 0.4. Observation:
    Box [3] in [-1, 1]: left end, position, right end. One end is +1, the other -1, as long as they are shown: at the
    reset and behind the first two steps, which move nothing and pay 0. Later both are 0. Actions: Discrete(2), left,
    right. Reward: 1.6 on reaching the good end and -1.6 on reaching the bad one, which ends the episode; -0.1 for every
    other step behind the first two. An episode is truncated after 16 steps. The best mean return is 1.2, on walks of
    five steps in the mean. The ends are still in view at the first step that moves, which can carry one of them over in
    the position: who cannot remember gets 0.34 at best, who does not look at them -0.28.

    Source: ``ProofofMemory-v0`` of CleanRL's ``ppo_trxl``, by the authors of Pleines et al. 2023 (arXiv 2309.17207).
    """

    draws: ClassVar[int] = 2
    entries: ClassVar[int] = 3
    actions: ClassVar[int] = 2
    lowest: ClassVar[float] = -1.0
    horizon: ClassVar[int] = 16
    half: ClassVar[int] = 5
    shown: ClassVar[int] = 2

    def start(self, uniform: Array) -> State:
        return {
            "cell": _whole(uniform[:, 0], 5) - 2,
            "right": 2 * _whole(uniform[:, 1], 2) - 1,
            "t": np.zeros(len(uniform), np.int64),
        }

    def observe(self, state: State) -> Array:
        right = np.where(state["t"] <= self.shown, state["right"], 0)
        return np.stack([-right, state["cell"] / self.half, right], 1).astype(np.float32)

    def step(self, state: State, action: Array) -> Outcome:
        moves = state["t"] >= self.shown
        cell = np.clip(state["cell"] + moves * (2 * action - 1), -self.half, self.half)
        arrived = np.abs(cell) == self.half
        good = np.sign(cell) == state["right"]
        t = state["t"] + 1
        reward = np.where(arrived, np.where(good, 1.6, -1.6), -0.1 * moves)
        return Outcome(state | {"cell": cell, "t": t}, reward, arrived, arrived & good, (t >= self.horizon) & ~arrived)


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
    at least that many steps away, n steps as often as 1 / n: a learner meets the junction long before it can walk far.

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
        side = _whole(uniform[:, 0], 2)
        last = self.corridor - 1
        return {
            "side": side,  # the action that wins: 0 is up
            "seed": _whole(uniform[:, 1], 2**53),  # every bit of a uniform number
            "x": last - _log_uniform(2 * uniform[:, 0] - side, self.shortest_way, last),
            "t": np.zeros(len(uniform), np.int64),
        }

    def observe(self, state: State) -> Array:
        first, x = state["t"] == 0, state["x"]
        observation = np.zeros((len(x), self.entries), np.float32)
        observation[:, 0] = first & (state["side"] == 1)
        observation[:, 1] = first & (state["side"] == 0)
        observation[:, 2 : 2 + self.bits] = (x ^ (x >> 1))[:, None] >> np.arange(self.bits)[::-1] & 1
        places = state["t"][:, None] * self.distractors + np.arange(self.distractors)
        observation[:, 2 + self.bits :] = _random_bits(state["seed"][:, None], places) & ~first[:, None]
        return observation

    def step(self, state: State, action: Array) -> Outcome:
        last = self.corridor - 1
        at_junction = state["x"] == last
        turned = at_junction & (action < 2)
        right = turned & (action == state["side"])
        along = (action == 3).astype(np.int64) - (action == 2)
        x = np.where(at_junction, last, np.clip(state["x"] + along, 0, last))
        t = state["t"] + 1
        reward = np.where(turned, np.where(right, 4.0, -1.0), -0.1)
        return Outcome(state | {"x": x, "t": t}, reward, turned, right, (t >= self.limit) & ~turned)


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
        _check_shortest("corridor", self.corridor, self.shortest_corridor)

    @property
    def horizon(self) -> int:
        return self.corridor * self.junctions

    def start(self, uniform: Array) -> State:
        seed = _whole(uniform[:, 0], 2**53)
        return {"seed": seed, **self._corridor(seed, np.zeros(len(seed), np.int64))}

    def observe(self, state: State) -> Array:
        first = state["cell"] == 0
        cue = [first & (state["side"] == side) for side in (0, 1)]
        return np.stack([*cue, state["cell"] == state["end"]], 1).astype(np.float32)

    def step(self, state: State, action: Array) -> Outcome:
        turned = state["cell"] == state["end"]
        right = turned & (action == state["side"])
        solved = right & (state["number"] == self.junctions - 1)
        walked = state | {"cell": state["cell"] + 1}
        next_corridor = self._corridor(state["seed"], state["number"] + 1)
        entered = {name: np.where(right, value, walked[name]) for name, value in next_corridor.items()}
        return Outcome(walked | entered, right.astype(np.float64), solved | (turned & ~right), solved)

    def _corridor(self, seed: Array, number: Array) -> State:
        """The first cell of the corridor with this number, 0 first: its last cell and the side of its cue."""
        shortest = self.corridor if self.shortest_corridor is None else self.shortest_corridor
        drawn = _random_words(seed, 2 * number) % np.uint64(self.corridor - shortest + 1)
        return {
            "number": number,
            "cell": np.zeros(len(seed), np.int64),
            "end": shortest - 1 + drawn.astype(np.int64),
            "side": _random_bits(seed, 2 * number + 1).astype(np.int64),
        }


def _walk(row: Array, column: Array, action: Array, size: int) -> tuple[Array, Array]:
    """The cell of a room after a move; a move into a wall stays."""
    row = np.clip(row + (action == DOWN) - (action == UP), 0, size - 1)
    return row, np.clip(column + (action == RIGHT) - (action == LEFT), 0, size - 1)


def _whole(uniform: Array, n: int) -> Array:
    """Uniform numbers in [0, 1) as whole numbers 0..n-1."""
    return (uniform * n).astype(np.int64)


def _log_uniform(uniform: Array, shortest: int | None, longest: int) -> Array:
    """Uniform numbers in [0, 1) as whole numbers shortest..longest, n as often as 1 / n; without a shortest: longest.

    What is left of a uniform number after a coin has been read from it is uniform too, and independent of the coin.
    """
    if shortest is None:
        return np.full(len(uniform), longest, np.int64)
    return np.floor(shortest * ((longest + 1) / shortest) ** uniform).astype(np.int64)


def _random_bits(seed: Array, place: Array) -> Array:
    """A fair coin for every pair of seed and place: the highest bit of ``_random_words``."""
    coin: Array = _random_words(seed, place) >> np.uint64(63) == 1
    return coin


def _random_words(seed: Array, place: Array) -> Array:
    """64 random bits for every pair of seed and place, both whole numbers from 0: the same for the same pair.

    What SplitMix64 (Steele et al. 2014) draws at this place, from the seed mixed by it beforehand.
    """
    step = np.uint64(0x9E3779B97F4A7C15)
    begin = _mixed(seed.astype(np.uint64) * step)
    return _mixed(begin + place.astype(np.uint64) * step)


def _mixed(words: Array) -> Array:
    """The finalizer of SplitMix64 on unsigned words of 64 bits."""
    words = (words ^ (words >> np.uint64(30))) * np.uint64(0xBF58476D1CE4E5B9)
    words = (words ^ (words >> np.uint64(27))) * np.uint64(0x94D049BB133111EB)
    return words ^ (words >> np.uint64(31))


def _check_shortest(name: str, longest: int, shortest: int | None) -> None:
    if shortest is not None:
        check(longest, Annotated[int, Ge(shortest)], f"{name} with shortest_{name} {shortest}")
