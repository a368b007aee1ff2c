"""Tasks that ask: CueRecall for one cue at the end, the others again and again while the answer changes."""

from abc import abstractmethod
from dataclasses import dataclass
from typing import Annotated, ClassVar

import numpy as np
from annotated_types import Ge, Le

from rltransformers.core.ranges import UnitInterval, check
from rltransformers.envs.memory_rules.interface import (
    Array,
    Length,
    Rules,
    RulesOutcome,
    State,
    check_shortest,
    log_uniform,
    random_shares,
    random_words,
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
        drawn = self.cues * uniform[:, 0]
        cue = drawn.astype(np.int64)
        delay = self.delay if self.shortest_delay is None else log_uniform(drawn - cue, self.shortest_delay, self.delay)
        zero = np.zeros(len(uniform), np.int64)
        return {"cue": cue, "due": zero + delay + 1, "t": zero}

    def observe(self, state: State) -> Array:
        observation = np.zeros((len(state["t"]), self.entries), np.float32)
        first = state["t"] == 0
        if np.count_nonzero(first):
            observation[first, state["cue"][first]] = 1.0
        observation[:, -1] = state["t"] == state["due"]
        return observation

    def step(self, state: State, action: Array) -> RulesOutcome:
        answered = state["t"] == state["due"]
        right = answered & (action == state["cue"])
        return RulesOutcome(state | {"t": state["t"] + 1}, right.astype(np.float64), answered, right)


@dataclass(frozen=True)
class _Questions(Rules):
    """Something changes step by step; at random steps, and at the last one, the agent is asked how it stands now.

    One of every ``steps_per_question`` steps asks, each of them as likely: episodes of one length ask as often as each
    other, but for one question. Rewards are 1 / number of questions for each right answer, so the return of an episode
    is its share of right answers, and the best return is 1. An episode succeeds if all answers are right. Neither the
    time nor the length of the episode is shown. What happens at step t is random words of (seed, t): an episode of any
    length takes two draws.
    """

    length: Annotated[int, Ge(1), Le(10**6)] = 40
    shortest_length: Annotated[int, Ge(1), Le(10**6)] | None = None
    steps_per_question: Length = 4

    draws: ClassVar[int] = 2
    words: ClassVar[int] = 4
    """Random words of a step; of a step with which ``steps_per_question`` begin anew, the first says which asks."""

    def __post_init__(self) -> None:
        check_shortest("length", self.length, self.shortest_length)
        name = "length" if self.shortest_length is None else "shortest_length"
        first = self.before_questions + 1
        check(getattr(self, name), Annotated[int, Ge(first)], f"{name} with questions from step {first} on")

    @property
    def before_questions(self) -> int:
        """How many first steps never ask."""
        return 0

    @property
    def horizon(self) -> int:
        return self.length

    def start(self, uniform: Array) -> State:
        seed = whole(uniform[:, 0], 2**53)
        last = log_uniform(uniform[:, 1], self.shortest_length, self.length) - 1
        blocks, rest = np.divmod(last - self.before_questions, self.steps_per_question)
        state = {
            "seed": seed,
            "t": np.zeros(len(seed), np.int64),
            "last": last,
            "questions": 1 + blocks + (self._asking_place(seed, last - rest) < rest),
            "all_right": np.ones(len(seed), bool),
        }
        return self._with_event(state | self.first_values(len(seed)))

    def step(self, state: State, action: Array) -> RulesOutcome:
        right = state["asked"] & (action == self.answer(state))
        all_right = state["all_right"] & (right | ~state["asked"])
        ended = state["t"] >= state["last"]
        after = self._with_event(state | {"t": state["t"] + 1, "all_right": all_right})
        return RulesOutcome(after, right / state["questions"], ended, ended & all_right)

    @abstractmethod
    def first_values(self, copies: int) -> State:
        """What the task keeps, before the first step."""

    @abstractmethod
    def event(self, state: State, words: Array) -> State:
        """What a step shows and what it changes, from random words [N, words]; ``state`` has "t" and "asked"."""

    @abstractmethod
    def answer(self, state: State) -> Array:
        """The right action where the step asks."""

    def _with_event(self, state: State) -> State:
        t = state["t"]
        place = (t - self.before_questions) % self.steps_per_question
        drawn = (place == self._asking_place(state["seed"], t - place)) & (t >= self.before_questions)
        state = state | {"asked": drawn | (t == state["last"])}
        words = random_words(state["seed"][:, None], self.words * t[:, None] + np.arange(self.words))
        return state | self.event(state, words)

    def _asking_place(self, seed: Array, begin: Array) -> Array:
        """Which of the ``steps_per_question`` steps from ``begin`` on asks."""
        place: Array = random_words(seed, self.words * begin) % np.uint64(self.steps_per_question)
        return place.astype(np.int64)


@dataclass(frozen=True)
class Parity(_Questions):
    """Each step shows a random bit; asked for the parity of all bits so far, the present one included.

    Observation: Box [3] of zeros and ones: the bit one-hot, then whether an answer is due. Action: Discrete(2), the
    parity, looked at only when an answer is due. A random one of the first ``steps_per_question`` steps s asks, one of
    the next, and so on, and the last step always. Each right answer pays 1 / number of questions, so the return is the
    share of right answers; the best is 1. An episode succeeds if all answers are right. It has ``length`` steps L; with
    ``shortest_length`` it draws a length of its own from shortest_length..length, log-uniformly: questions after few
    bits are easy, and teach the others.

    Without memory only the answer to a question at the first step is better than a coin. The best mean return without
    memory is (1 + w) / 2, where w is the expected share of that question: w = (1 - r / s) / (s (b + 1)) + r / (s^2 (b
    + 2)) for L - 1 = b s + r with b >= 1, 1 / (2 s) for 1 < L <= s, and 1 for L = 1. That is 0.512 with the defaults,
    and 1/2 for long episodes. Success without memory: 2^-n for n questions behind the first step.

    Nothing can be forgotten and nothing has to be kept but one bit. Attention over a window that is shorter than the
    episode cannot do it, and softmax attention can hardly at any length (Hahn 2020, arXiv 1906.06755); linear recurrent
    memories need negative eigenvalues (Grazzi et al. 2024, arXiv 2411.12537).
    """

    entries: ClassVar[int] = 3
    actions: ClassVar[int] = 2

    def first_values(self, copies: int) -> State:
        return {"parity": np.zeros(copies, np.int64)}

    def event(self, state: State, words: Array) -> State:
        bit = (words[:, 1] % np.uint64(2)).astype(np.int64)
        return {"bit": bit, "parity": state["parity"] ^ bit}

    def observe(self, state: State) -> Array:
        return np.stack([state["bit"] == 0, state["bit"] == 1, state["asked"]], 1).astype(np.float32)

    def answer(self, state: State) -> Array:
        return state["parity"]


@dataclass(frozen=True)
class Dihedral(_Questions):
    """Each step turns or flips a regular polygon, or leaves it; asked for its pose. The order of moves matters.

    The polygon has ``sides`` corners and begins with corner 0 at place 0, face up. A turn moves every corner one place
    on; a flip mirrors the polygon through place 0 and turns it over. Each of the three moves is equally likely.
    Observation: Box [3] of zeros and ones: turn, flip (both 0: it stays), then whether an answer is due. Action:
    Discrete(2 sides), the place of corner 0 plus ``sides`` if the face is down, after the present move; looked at only
    when an answer is due. Questions, rewards, success and length are those of ``Parity``; the best return is 1.

    Without memory an answer can only use the present move m. The best mean return without memory is
    sum over m of max over a of sum over t of w_t P(move m at t, pose a behind it), where w_t is the expected share of a
    question at step t: 0.192 with the defaults, and 1 / (2 sides) for long episodes, as the pose forgets its start.

    The poses are the dihedral group; with 3 sides it is S3, the smallest group in which the order matters. After the
    state tracking of Merrill et al. 2024 (arXiv 2404.08819).
    """

    sides: Annotated[int, Ge(3), Le(1000)] = 3

    entries: ClassVar[int] = 3

    @property
    def actions(self) -> int:
        return 2 * self.sides

    def first_values(self, copies: int) -> State:
        return {"place": np.zeros(copies, np.int64), "face_down": np.zeros(copies, bool)}

    def event(self, state: State, words: Array) -> State:
        move = (words[:, 1] % np.uint64(3)).astype(np.int64)  # 0 turns, 1 flips, 2 stays
        flips = move == 1
        place = np.where(flips, -state["place"], state["place"] + (move == 0)) % self.sides
        return {"move": move, "place": place, "face_down": state["face_down"] ^ flips}

    def observe(self, state: State) -> Array:
        return np.stack([state["move"] == 0, state["move"] == 1, state["asked"]], 1).astype(np.float32)

    def answer(self, state: State) -> Array:
        pose: Array = state["place"] + self.sides * state["face_down"]
        return pose


@dataclass(frozen=True)
class _Facts(_Questions):
    """A value under each of a few keys; a step tells the value of one key, asks for that of one key, or is silent.

    Values are -1 as long as they were not told; "key" is -1 in a silent step, "told" where the step tells no value.
    """

    @property
    @abstractmethod
    def sizes(self) -> tuple[int, int]:
        """How many keys and values there are."""

    @property
    def entries(self) -> int:
        return sum(self.sizes) + 1

    @property
    def actions(self) -> int:
        return self.sizes[1]

    def first_values(self, copies: int) -> State:
        return {"values": np.full((copies, self.sizes[0]), -1)}

    def observe(self, state: State) -> Array:
        keys, values = (np.arange(size) for size in self.sizes)
        parts = [state["key"][:, None] == keys, state["told"][:, None] == values, state["asked"][:, None]]
        return np.concatenate(parts, axis=1).astype(np.float32)

    def answer(self, state: State) -> Array:
        return state["values"][np.arange(len(state["key"])), state["key"]]

    def tell(self, state: State, key: Array, told: Array) -> State:
        """The event that shows ``key`` and ``told``, and remembers it; nothing is told where the step asks."""
        told = np.where(state["asked"], -1, told)
        tells = (np.arange(self.sizes[0]) == key[:, None]) & (told >= 0)[:, None]
        return {"key": key, "told": told, "values": np.where(tells, told[:, None], state["values"])}


@dataclass(frozen=True)
class LastKey(_Facts):
    """Each step stores a random value under a random key, over the old one, or asks for the latest value under a key.

    Observation: Box [keys + values + 1] of zeros and ones: the key one-hot, the value one-hot (zeros when an answer is
    due), then whether an answer is due. Action: Discrete(values), the latest value under the key that is shown, looked
    at only when an answer is due. Any key that was written is equally likely to be asked for. The first step stores;
    questions among the later ones, rewards, success and length are those of ``Parity``; the best return is 1. Without
    memory, and without reading from it by key, the mean return is 1 / values.

    It is recall by association, with overwriting: what has to be kept is a value per key, not the pairs. After the
    multi-query recall of Arora et al. 2023 (arXiv 2312.04927), in which no key is written twice.
    """

    keys: Annotated[int, Ge(1), Le(1000)] = 4
    values: Annotated[int, Ge(2), Le(1000)] = 4

    @property
    def before_questions(self) -> int:
        return 1

    @property
    def sizes(self) -> tuple[int, int]:
        return self.keys, self.values

    def event(self, state: State, words: Array) -> State:
        count = np.cumsum(state["values"] >= 0, axis=1)
        written = np.maximum(count[:, -1], 1).astype(np.uint64)  # 0 before the first step, which does not ask
        asked_key = (count > (words[:, 1] % written).astype(np.int64)[:, None]).argmax(axis=1)
        key = np.where(state["asked"], asked_key, (words[:, 1] % np.uint64(self.keys)).astype(np.int64))
        return self.tell(state, key, (words[:, 2] % np.uint64(self.values)).astype(np.int64))


@dataclass(frozen=True)
class MovingCue(_Facts):
    """Objects of different colors stand in places and are moved now and then; asked where a color stands now.

    The first steps tell the place of each of the ``colors`` objects, which was drawn uniformly from ``places``; places
    may be shared. Later steps ask for a random color, as often as those of ``Parity``; else, with
    ``move_probability``, a random object is moved to a random other place, which is told once; else a step is silent.
    Observation: Box [colors + places + 1] of zeros and ones: the color one-hot, its new place one-hot, then whether an
    answer is due; zeros in silence. Action: Discrete(places), looked at only when an answer is due. The last step
    asks. Rewards, success and length are those of ``Parity``; the best return is 1. Without memory the mean return is
    1 / places.

    ``LastKey`` writes at every step that does not ask. Here all is told at the start and little changes afterwards: a
    fact has to outlast silence until it is overwritten. After the first task of bAbI (Weston et al. 2015, arXiv
    1502.05698) and the rewriting tasks of "Memory retention is not enough" (2026, arXiv 2601.15086).
    """

    colors: Annotated[int, Ge(1), Le(1000)] = 3
    places: Annotated[int, Ge(2), Le(1000)] = 4
    move_probability: UnitInterval = 0.1

    @property
    def before_questions(self) -> int:
        return self.colors

    @property
    def sizes(self) -> tuple[int, int]:
        return self.colors, self.places

    def event(self, state: State, words: Array) -> State:
        first = state["t"] < self.colors
        key = np.where(first, state["t"], (words[:, 1] % np.uint64(self.colors)).astype(np.int64))
        moves = random_shares(words[:, 3]) < self.move_probability
        key = np.where(first | moves | state["asked"], key, -1)
        old = state["values"][np.arange(len(key)), key]
        other = (old + 1 + (words[:, 2] % np.uint64(self.places - 1)).astype(np.int64)) % self.places
        place = np.where(first, (words[:, 2] % np.uint64(self.places)).astype(np.int64), other)
        return self.tell(state, key, np.where(key >= 0, place, -1))
