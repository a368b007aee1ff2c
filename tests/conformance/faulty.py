"""A policy that conforms, and one for every check that does not: each differs from it by one slip.

One layer of attention over the newest M steps with a bias per distance, in float64. B rows, T steps, D = 2 inputs, W
numbers of a key, A = 3 outputs of which the last is a value. A state holds the newest M inputs, their keys and values,
and which of them are there, oldest first. Outputs are scaled by a number that is no weight, as running statistics are.
"""

from collections.abc import Iterable, Sequence
from pathlib import Path
from typing import Any, Self

import torch
from torch import Tensor

from rltransformers.conformance import Bootstrap, Traits

MEMORY, WIDTH = 8, 5
State = dict[str, Tensor]


class Conforming:
    inputs = 2
    padding = "left"
    traits = Traits(full=MEMORY, cache="keys and values")

    def __init__(self) -> None:
        generator = torch.Generator().manual_seed(0)

        def drawn(*shape: int) -> Tensor:
            return torch.randn(*shape, generator=generator, dtype=torch.float64)

        self.keys_and_values, self.query = drawn(2, 2 * WIDTH), drawn(2, WIDTH)
        self.bias, self.out = drawn(MEMORY + 1), drawn(WIDTH, 3)  # bias by distance, 0 to M
        self.scale = 1 + torch.rand((), dtype=torch.float64)  # another one in every object

    def weights(self) -> Iterable[Tensor]:
        return [self.keys_and_values, self.query, self.bias, self.out]

    # Acting

    def reset(self, batch: int) -> State:
        return {
            "inputs": torch.zeros(batch, MEMORY, 2, dtype=torch.float64),
            "cache": torch.zeros(batch, MEMORY, 2 * WIDTH, dtype=torch.float64),
            "there": torch.zeros(batch, MEMORY, dtype=torch.bool),
        }

    def step(self, inputs: Tensor, first: Tensor, state: State) -> tuple[Tensor, State]:
        there = self.kept(state["there"], first)
        seen = torch.cat([state["inputs"], inputs[:, None]], 1)
        cache = torch.cat([state["cache"], (inputs @ self.keys_and_values)[:, None]], 1)
        there = torch.cat([there, torch.ones_like(first)[:, None]], 1)
        outputs = self.attended(inputs[:, None] @ self.query, cache, there[:, None], self.distances())[:, 0]
        return outputs, {"inputs": seen[:, 1:], "cache": cache[:, 1:], "there": there[:, 1:]}

    def kept(self, there: Tensor, first: Tensor) -> Tensor:
        return there & ~first[:, None]

    def distances(self) -> Tensor:
        return torch.arange(MEMORY, -1, -1)[None]

    def attended(self, query: Tensor, cache: Tensor, visible: Tensor, distance: Tensor) -> Tensor:
        keys, values = cache.chunk(2, -1)
        scores = query @ keys.transpose(1, 2) + self.bias[distance.clamp(0, MEMORY)]
        return scores.masked_fill(~visible, -torch.inf).softmax(-1) @ values @ self.out * self.scale

    # Training

    def segment(self, inputs: Tensor, first: Tensor, state: State) -> Tensor:
        seen = torch.cat([state["inputs"], inputs], 1)
        there = torch.cat([state["there"], torch.ones_like(first)], 1)
        episode = torch.cat([torch.zeros_like(state["there"]), first], 1).long().cumsum(1)
        place = torch.arange(seen.shape[1])
        distance = (place[:, None] - place)[MEMORY:]
        visible = there[:, None] & (episode[:, MEMORY:, None] == episode[:, None]) & self.reached(distance)
        return self.attended(inputs @ self.query, seen @ self.keys_and_values, visible, distance)

    def reached(self, distance: Tensor) -> Tensor:
        return (distance >= 0) & (distance <= MEMORY)

    def pad(self, inputs: Tensor, valid: Tensor) -> Tensor:
        place = torch.arange(inputs.shape[1])
        distance = place[:, None] - place
        own = torch.eye(len(place), dtype=torch.bool)  # padding sees itself, so that its softmax is one
        visible = self.unpadded(valid) & self.reached(distance) | own
        return self.attended(inputs @ self.query, inputs @ self.keys_and_values, visible, distance)

    def unpadded(self, valid: Tensor) -> Tensor:
        return valid[:, None]

    # Learning

    def renew(self, state: State) -> State:
        return state | {"cache": state["inputs"] @ self.keys_and_values}

    def save(self, state: State, folder: Path) -> None:
        torch.save({"state": state, "weights": list(self.weights()), "scale": self.scale}, folder / "all.pt")

    def load(self, folder: Path) -> tuple[Self, State]:
        stored, again = torch.load(folder / "all.pt", weights_only=True), type(self)()
        for weight, value in zip(again.weights(), stored["weights"], strict=True):
            weight.copy_(value)
        again.read(stored)
        return again, stored["state"]

    def read(self, stored: dict[str, Any]) -> None:
        self.scale = stored["scale"]

    def resume(self, folder: Path) -> tuple[Tensor, Tensor]:
        inputs, no = self.episode(5), torch.zeros(1, dtype=torch.bool)
        state = self.after(inputs)
        self.save(state, folder)
        again, loaded = self.load(folder)
        return again.step(inputs[:, 0], no, loaded)[0], self.step(inputs[:, 0], no, state)[0]

    def log_probabilities(self) -> tuple[Tensor, Tensor]:
        before, now = self.episode(5, seed=1), self.episode(6)
        state, acted = self.after(before), []
        remembered, no = self.after(before), torch.zeros(1, 6, dtype=torch.bool)
        for t in range(6):
            output, state = self.step(now[:, t], no[:, t], state)
            acted.append(output)
        trained = self.segment(self.in_update(now), no, self.stored(remembered))
        return self.acting_logits(torch.stack(acted, 1)).log_softmax(-1)[:, 0], trained[0, :, :2].log_softmax(-1)[:, 0]

    def in_update(self, inputs: Tensor) -> Tensor:
        return inputs

    def acting_logits(self, outputs: Tensor) -> Tensor:
        return outputs[0, :, :2]

    def stored(self, state: State) -> State:
        return state

    def bootstraps(self) -> Sequence[Bootstrap]:
        inputs = self.episode(7)
        value = self.step(inputs[:, -1], torch.zeros(1, dtype=torch.bool), self.before_the_end(inputs))[0][0, -1]
        return [Bootstrap(inputs[0], float(value), "time limit")]

    def before_the_end(self, inputs: Tensor) -> State:
        return self.after(inputs[:, :-1])

    def episode(self, steps: int, seed: int = 0) -> Tensor:
        generator = torch.Generator().manual_seed(seed)
        return torch.randn(1, steps, 2, generator=generator, dtype=torch.float64)

    def after(self, inputs: Tensor) -> State:
        state = self.reset(1)
        for t in range(inputs.shape[1]):
            _, state = self.step(inputs[:, t], torch.full((1,), t == 0), state)
        return state


class ForgetsTheOldestStep(Conforming):
    """Acting masks one step more than training does."""

    def kept(self, there: Tensor, first: Tensor) -> Tensor:
        there = super().kept(there, first).clone()
        there[:, 0] = False
        return there


class ActsOnTheEpisodeBefore(Conforming):
    def kept(self, there: Tensor, first: Tensor) -> Tensor:
        return there


class TrainsOnTheEpisodeBefore(Conforming):
    def segment(self, inputs: Tensor, first: Tensor, state: State) -> Tensor:
        return super().segment(inputs, torch.zeros_like(first), state)


class ResetsItsNeighbor(Conforming):
    """Acting: where an episode begins, the next row forgets as well."""

    def kept(self, there: Tensor, first: Tensor) -> Tensor:
        return super().kept(there, first | first.roll(1))


class ResetsAStepLate(Conforming):
    """Acting: the first step of an episode still remembers the episode before."""

    def reset(self, batch: int) -> State:
        return super().reset(batch) | {"began": torch.zeros(batch, dtype=torch.bool)}

    def step(self, inputs: Tensor, first: Tensor, state: State) -> tuple[Tensor, State]:
        outputs, after = super().step(inputs, state["began"], state)
        return outputs, after | {"began": first}


class KeepsThatItWasFull(Conforming):
    """Acting: a reset clears the counter of the ring, but not the flag that all of it is in use."""

    def reset(self, batch: int) -> State:
        return super().reset(batch) | {
            "count": torch.zeros(batch, dtype=torch.long),
            "full": torch.zeros(batch, dtype=torch.bool),
        }

    def step(self, inputs: Tensor, first: Tensor, state: State) -> tuple[Tensor, State]:
        count = state["count"] * ~first
        there = (torch.arange(MEMORY).flip(0) < count[:, None]) | state["full"][:, None]
        outputs, after = super().step(inputs, torch.zeros_like(first), state | {"there": there})
        return outputs, after | {"count": count + 1, "full": state["full"] | (count + 1 >= MEMORY)}


class ReadsTheRingFromItsFirstSlot(Conforming):
    """Training takes the slots of the memory in their order, which is that of steps until the ring turns."""

    def reset(self, batch: int) -> State:
        return super().reset(batch) | {"count": torch.zeros(1, dtype=torch.long)}

    def step(self, inputs: Tensor, first: Tensor, state: State) -> tuple[Tensor, State]:
        outputs, after = super().step(inputs, first, state)
        return outputs, after | {"count": state["count"] + 1}

    def segment(self, inputs: Tensor, first: Tensor, state: State) -> Tensor:
        turned = int(state["count"]) % MEMORY if int(state["count"]) > MEMORY else 0
        seen = {name: state[name].roll(turned, 1) for name in ("inputs", "there")}
        return super().segment(inputs, first, state | seen)


class SavesTheNewestSteps(Conforming):
    """A file holds six steps of the memory."""

    def save(self, state: State, folder: Path) -> None:
        there = state["there"].clone()
        there[:, :-6] = False
        super().save(state | {"there": there}, folder)


class SubtractsTheMeanOfTheBatch(Conforming):
    def step(self, inputs: Tensor, first: Tensor, state: State) -> tuple[Tensor, State]:
        return super().step(inputs - 0.3 * inputs.mean(0), first, state)

    def segment(self, inputs: Tensor, first: Tensor, state: State) -> Tensor:
        return super().segment(inputs - 0.3 * inputs.mean(0), first, state)


class ResetsAllRows(Conforming):
    """An episode that begins in one row begins in all, acting and in training."""

    def kept(self, there: Tensor, first: Tensor) -> Tensor:
        return there & ~first.any()

    def segment(self, inputs: Tensor, first: Tensor, state: State) -> Tensor:
        return super().segment(inputs, first.any(0).expand_as(first), state)


class PadsAsTheFirstRow(Conforming):
    def unpadded(self, valid: Tensor) -> Tensor:
        return valid[:1].expand_as(valid)[:, None]


class LooksAhead(Conforming):
    def reached(self, distance: Tensor) -> Tensor:
        return (distance >= -1) & (distance <= MEMORY)


class AttendsToPadding(Conforming):
    def unpadded(self, valid: Tensor) -> Tensor:
        return torch.ones_like(valid)[:, None]


class KeepsStaleKeys(Conforming):
    def renew(self, state: State) -> State:
        return state


class WrapsPositions(Conforming):
    """Acting counts distances by the slots of a ring that turns, and forgets that it turned."""

    def reset(self, batch: int) -> State:
        return super().reset(batch) | {"turn": torch.zeros(1, dtype=torch.long)}

    def step(self, inputs: Tensor, first: Tensor, state: State) -> tuple[Tensor, State]:
        self.turn = int(state["turn"])
        outputs, after = super().step(inputs, first, state)
        return outputs, after | {"turn": state["turn"] + 1}

    def distances(self) -> Tensor:
        slots = super().distances()
        return slots if self.turn <= 2 * MEMORY else slots.roll(self.turn % MEMORY, -1)


class RestartsPositions(Conforming):
    """Training gives positions inside the segment, and memory those that it had in the segment before."""

    def segment(self, inputs: Tensor, first: Tensor, state: State) -> Tensor:
        self.memory_there = bool(state["there"].any())
        return super().segment(inputs, first, state)

    def attended(self, query: Tensor, cache: Tensor, visible: Tensor, distance: Tensor) -> Tensor:
        if distance.shape[0] > 1 and self.memory_there:
            distance = torch.cat([distance[:, :MEMORY] - MEMORY, distance[:, MEMORY:]], 1)
        return super().attended(query, cache, visible, distance)


class ForgetsWhereTheRolloutBegan(Conforming):
    def stored(self, state: State) -> State:
        return self.reset(1)


class DropsOutInTheUpdate(Conforming):
    def in_update(self, inputs: Tensor) -> Tensor:
        return torch.nn.functional.dropout(inputs, 0.5)


class ActsUnderAMask(Conforming):
    """Acting forbids an action, the update does not."""

    def acting_logits(self, outputs: Tensor) -> Tensor:
        return super().acting_logits(outputs).clone().index_fill_(-1, torch.tensor([1]), -torch.inf)


class SavesNoMemory(Conforming):
    def save(self, state: State, folder: Path) -> None:
        super().save(self.reset(state["there"].shape[0]), folder)


class SavesNoStatistics(Conforming):
    """A number that is no weight keeps the value it has in a new object."""

    def read(self, stored: dict[str, Any]) -> None:
        pass


class BootstrapsWithoutTheLastStep(Conforming):
    """The value of the last observation follows what was remembered one step before."""

    def before_the_end(self, inputs: Tensor) -> State:
        return self.after(inputs[:, :-2])


FAULTS: dict[type[Conforming], tuple[str, ...]] = {
    ForgetsTheOldestStep: ("step = segment", "positions are contiguous", "first ratio is 1"),
    ActsOnTheEpisodeBefore: ("reset leaks nothing",),
    TrainsOnTheEpisodeBefore: ("reset leaks nothing",),
    ResetsItsNeighbor: ("step = segment",),
    ResetsAStepLate: ("step = segment", "reset leaks nothing"),
    KeepsThatItWasFull: ("reset leaks nothing",),
    ReadsTheRingFromItsFirstSlot: ("step = segment",),
    SavesTheNewestSteps: ("saved in mid-episode",),
    SubtractsTheMeanOfTheBatch: ("step = segment",),
    ResetsAllRows: ("step = segment",),
    PadsAsTheFirstRow: ("padding does not matter",),
    LooksAhead: ("no look-ahead",),
    AttendsToPadding: ("padding does not matter",),
    KeepsStaleKeys: ("changed weights take effect",),
    WrapsPositions: ("positions are contiguous",),
    RestartsPositions: ("step = segment", "first ratio is 1"),
    ForgetsWhereTheRolloutBegan: ("first ratio is 1",),
    DropsOutInTheUpdate: ("first ratio is 1",),
    ActsUnderAMask: ("first ratio is 1",),
    SavesNoMemory: ("saved in mid-episode", "stopped run keeps memory"),
    SavesNoStatistics: ("saved in mid-episode", "stopped run keeps memory"),
    BootstrapsWithoutTheLastStep: ("bootstraps from the right memory",),
}
"""Checks that a slip has to fail; it may fail others."""


class Windowed:
    """The mean of embedded steps of the newest window, with a position from a table of 9 per step of the episode."""

    inputs = 2
    traits = Traits(full=MEMORY, longest=MEMORY, resets_inside=False, continues=False)
    rows = 9

    def __init__(self) -> None:
        generator = torch.Generator().manual_seed(0)
        self.table = torch.randn(self.rows, 2, generator=generator, dtype=torch.float64)

    def weights(self) -> Iterable[Tensor]:
        return [self.table]

    def reset(self, batch: int) -> Any:
        return torch.zeros(batch, 0, 2, dtype=torch.float64)

    def step(self, inputs: Tensor, first: Tensor, state: Any) -> tuple[Tensor, Any]:
        steps = torch.cat([state, inputs[:, None]], 1) if not bool(first.all()) else inputs[:, None]
        start = steps.shape[1] - self.lookback(steps.shape[1] - 1)
        place = self.place(torch.arange(start, steps.shape[1]))
        return (steps[:, start:] * self.table[place]).mean(1), steps

    def place(self, steps: Tensor) -> Tensor:
        return steps

    def segment(self, inputs: Tensor, first: Tensor, state: Any) -> Tensor:
        return self.window(inputs, 0)

    def window(self, inputs: Tensor, start: int) -> Tensor:
        place = torch.arange(start, start + inputs.shape[1])
        return (inputs * self.table[place]).cumsum(1) / (place - start + 1)[:, None]

    def lookback(self, step: int) -> int:
        return min(step + 1, MEMORY)


class StaysAtTheLastPosition(Windowed):
    """Acting uses the last row of the table for ever."""

    def place(self, steps: Tensor) -> Tensor:
        return steps.clamp(max=self.rows - 1)


class CountsFromTheWindow(Windowed):
    """Acting gives positions inside the window, training inside the episode."""

    def place(self, steps: Tensor) -> Tensor:
        return steps - steps[0]


class Memoryless(Conforming):
    def kept(self, there: Tensor, first: Tensor) -> Tensor:
        return torch.zeros_like(there)
