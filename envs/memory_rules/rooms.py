"""Rooms with things to reach, and a line with a good end."""

from dataclasses import dataclass
from typing import Annotated, ClassVar

import numpy as np
from annotated_types import Ge, Le
from gymnasium import spaces

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
    random_shares,
    random_words,
    whole,
)

Size = Annotated[int, Ge(2), Le(10_000)]
"""Of a room with ``size`` x ``size`` cells."""


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
        starts = whole(uniform[:, :3], cells)
        objects = (starts[:, [0, 2]] + 1 + whole(uniform[:, 3:], cells - 1)) % cells
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

    def step(self, state: State, action: Array) -> RulesOutcome:
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
        return RulesOutcome(after, opens.astype(np.float64), t >= self.horizon, opened)

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
            "column": np.where(second, 0, whole(uniform[:, 1], self.size)),
            "behind": zero,
            "from_a": ~second,
        }

    def observe(self, state: State) -> Array:
        room, last = state["room"], self.size - 1
        return np.stack([room == 0, room == 1, state["row"] / last, state["column"] / last], 1).astype(np.float32)

    def step(self, state: State, action: Array) -> RulesOutcome:
        last = self.size - 1
        row, column = _walk(state["row"], state["column"], action, self.size)
        at_door = (state["room"] == 0) & (row == 0) & (column == 0)
        room = state["room"] + at_door
        behind = state["behind"] + ((state["room"] == 1) & state["from_a"])
        arrived = (room == 1) & (row == last) & (column == last)
        t = state["t"] + 1
        over = (t >= self.horizon) | (behind >= self.overlap if self.parts else False)
        after = state | {"t": t, "room": room, "row": row, "column": column, "behind": behind}
        return RulesOutcome(after, arrived.astype(np.float64), arrived, arrived, over & ~arrived)


@dataclass(frozen=True)
class TwoGates(Rules):
    """Pass walls one after another, each by one of two gates: two right actions for everything that is seen.

    The gates of a wall lie opposite each other on a circle of radius 0.7 about its middle, each of radius 0.3, turned
    by a random angle. Observation: Box [2] in [-1, 1], x and y of one of them. Action: Box [2] in [-1, 1], where the
    agent passes the wall. Off the gates it hits the wall, which ends the episode with reward 0; behind the last one of
    ``walls`` the reward is 1. Nothing is hidden, and every angle is drawn alone.

    ``demonstrate`` takes either gate at equal chance. The mean of its actions is the middle of the wall: who takes it
    earns 0. A normal distribution with independent components that has mean and deviations of the demonstrations passes
    0.40 of the walls where gates lie on an axis and 0.24 in the mean: three of them at most 0.064 of the times.
    Uniformly random actions pass 0.14, three walls 0.003. Best return 1, without memory.
    """

    walls: Annotated[int, Ge(1), Le(1_000)] = 3

    draws: ClassVar[int] = 1
    entries: ClassVar[int] = 2
    lowest: ClassVar[float] = -1.0
    distance: ClassVar[float] = 0.7
    radius: ClassVar[float] = 0.3
    spread: ClassVar[float] = 0.08

    @property
    def horizon(self) -> int:
        return self.walls

    @property
    def action_space(self) -> spaces.Box:
        return spaces.Box(-1.0, 1.0, (2,))

    def start(self, uniform: Array) -> State:
        return {"seed": whole(uniform[:, 0], 2**53), "t": np.zeros(len(uniform), np.int64)}

    def observe(self, state: State) -> Array:
        return self._gate(state).astype(np.float32)

    def step(self, state: State, action: Array) -> RulesOutcome:
        gate = self._gate(state)
        passes = np.linalg.norm([action - gate, action + gate], axis=-1).min(0) <= self.radius
        t = state["t"] + 1
        through = passes & (t >= self.walls)
        return RulesOutcome(state | {"t": t}, through.astype(np.float64), ~passes | through, through)

    @classmethod
    def demonstrate(cls, observations: Array, generator: np.random.Generator) -> Array:
        """Actions [N, 2] for observations [N, 2]: about the middle of either gate, 0.08 off on each axis."""
        side = np.where(generator.random((len(observations), 1)) < 0.5, -1.0, 1.0)
        action = side * observations + cls.spread * generator.standard_normal(observations.shape)
        return np.clip(action, -1.0, 1.0).astype(np.float32)

    def _gate(self, state: State) -> Array:
        """x and y of the gate in view, [N, 2]."""
        angle = 2.0 * np.pi * random_shares(random_words(state["seed"], state["t"]))
        return self.distance * np.stack([np.cos(angle), np.sin(angle)], 1)


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
            "cell": whole(uniform[:, 0], 5) - 2,
            "right": 2 * whole(uniform[:, 1], 2) - 1,
            "t": np.zeros(len(uniform), np.int64),
        }

    def observe(self, state: State) -> Array:
        right = np.where(state["t"] <= self.shown, state["right"], 0)
        return np.stack([-right, state["cell"] / self.half, right], 1).astype(np.float32)

    def step(self, state: State, action: Array) -> RulesOutcome:
        moves = state["t"] >= self.shown
        cell = np.clip(state["cell"] + moves * (2 * action - 1), -self.half, self.half)
        arrived = np.abs(cell) == self.half
        good = np.sign(cell) == state["right"]
        t = state["t"] + 1
        reward = np.where(arrived, np.where(good, 1.6, -1.6), -0.1 * moves)
        after, truncated = state | {"cell": cell, "t": t}, (t >= self.horizon) & ~arrived
        return RulesOutcome(after, reward, arrived, arrived & good, truncated)


def _walk(row: Array, column: Array, action: Array, size: int) -> tuple[Array, Array]:
    """The cell of a room after a move; a move into a wall stays."""
    row = np.clip(row + (action == DOWN) - (action == UP), 0, size - 1)
    return row, np.clip(column + (action == RIGHT) - (action == LEFT), 0, size - 1)
