"""The replay: rings of rows written at their own pace, drawn as segments with context. Sizes all differ."""

from collections import Counter
from typing import Any

import gymnasium as gym
import numpy as np
import pytest
import torch
from gymnasium import spaces

from rltransformers.core.errors import ConfigError
from rltransformers.data.replay import Draw, SegmentReplay
from tests.agents.replayed import draw_from

E, L, C, N = 3, 4, 5, 2
Rows = tuple[int, ...]
SPACES: dict[str, gym.Space[Any]] = {
    "place": spaces.Box(-np.inf, np.inf, (2,)),
    "eye": spaces.Box(0, 255, (1, 3, 2), np.uint8),
}
ACTIONS = spaces.Discrete(7, start=2)


def replay(capacity: int = E * L * 5, **settings: Any) -> SegmentReplay:
    sizes = {"segment_length": L, "context": C, "n_step": N} | settings
    return SegmentReplay(capacity, E, observation_spaces=SPACES, action_space=ACTIONS, **sizes)


class Writer:
    """Writes rows whose numbers say which they are: the n-th row of environment e shows 100 e + n everywhere."""

    def __init__(self, buffer: SegmentReplay) -> None:
        self.buffer, self.count = buffer, np.zeros(E, int)
        self.starts = np.ones(E, bool)

    def leaves(self, numbers: np.ndarray) -> dict[str, np.ndarray]:
        place = np.stack([numbers, -numbers], 1).astype(np.float32)
        return {"place": place, "eye": np.tile((numbers % 256).astype(np.uint8)[:, None, None, None], (1, 1, 3, 2))}

    def step(
        self, terminal: tuple[int, ...] = (), cut: tuple[int, ...] = (), kept: tuple[int, ...] = (0, 1, 2)
    ) -> None:
        numbers = 100 * np.arange(E) + self.count
        ends, keep = np.isin(np.arange(E), terminal), np.isin(np.arange(E), kept)
        actions = {"": torch.as_tensor(2 + numbers % 7)}
        self.buffer.add(self.leaves(numbers), actions, numbers / 10, self.starts, ends, keep)
        self.count += keep
        if cut:
            rows = np.array(cut)
            self.buffer.add_last(list(cut), self.leaves(100 * rows + self.count[rows]))
            self.count[rows] += 1
        self.starts = ends | np.isin(np.arange(E), cut) | (self.starts & ~keep)

    def steps(self, count: int) -> None:
        for _ in range(count):
            self.step()


def test_a_window_is_what_was_written_in_order() -> None:
    buffer = replay()
    writer = Writer(buffer)
    for t in range(37):  # nearly twice around a ring of 20 rows
        writer.step(
            terminal=(1,) if t % 9 == 8 else (), cut=(2,) if t % 7 == 6 else (), kept=(0, 1, 2) if t % 5 else (0, 2)
        )
    oldest, counts = buffer.eligible()
    assert (counts > 0).all() and len(set(buffer.written.tolist())) == 3
    for row in range(E):
        for number in range(oldest[row], oldest[row] + counts[row]):
            window = buffer.gather(Draw(np.array([row]), np.array([number]), torch.ones(1)))
            rows = number * L + np.arange(-C, L + N)
            expected = torch.as_tensor(100.0 * row + rows)
            torch.testing.assert_close(window.observations["place"][0, :, 0], expected.float())
            assert torch.equal(window.observations["eye"][0, :, 0, 0, 0], (expected % 256).byte())
            inside = window.counts[0]
            assert torch.equal(window.rewards[0][inside], (expected[C:].float() / 10)[inside])
            before = window.previous_rewards[0, C + 1 :]
            assert torch.equal(before, window.rewards[0, :-1])
            assert torch.equal(window.previous_actions[""][0, C + 1 :], window.actions[""][0, :-1])
            assert torch.equal(window.actions[""][0][inside], (2 + expected[C:].long() % 7)[inside])
            position = int(window.position)
            for index, first in enumerate(window.first[0].tolist()):
                position = 0 if first else int(window.position) + index if index == 0 else position + 1
                assert int(buffer.positions[row, rows[index] % buffer.rows]) == position


def test_images_are_kept_as_bytes_and_actions_in_their_own_type() -> None:
    buffer = replay()
    assert buffer.observations["eye"].dtype == torch.uint8
    assert buffer.observations["eye"].shape == (E, 5 * L, 1, 3, 2)
    assert buffer.actions[""].dtype == torch.int64
    assert all(leaf.is_contiguous() for leaf in (*buffer.observations.values(), *buffer.actions.values()))


@pytest.mark.parametrize("steps", range(1, 60))
def test_what_can_be_drawn_is_whole_and_has_its_context(steps: int) -> None:
    buffer = replay(E * L * 4)
    Writer(buffer).steps(steps)
    oldest, counts = buffer.eligible()
    for first, count in zip(oldest.tolist(), counts.tolist(), strict=True):
        held = range(max(0, steps - buffer.rows), steps)
        can = [
            s for s in range(20)
            if all(t in held for t in range(s * L, (s + 1) * L + N))
            and (steps <= buffer.rows or s * L - C - 1 in held)
        ]  # fmt: skip
        assert can == list(range(first, first + count))
    if steps >= L + N:
        assert (counts > 0).all()  # the least capacity always has something to draw


def test_the_least_capacity_is_told() -> None:
    with pytest.raises(ConfigError, match=f"must be at least {4 * L * E}"):
        replay(E * L * 4 - 1)


def test_rows_before_the_beginning_repeat_it_and_begin_episodes() -> None:
    buffer = replay()
    Writer(buffer).steps(9)
    window = buffer.gather(Draw(np.array([2]), np.array([0]), torch.ones(1)))
    assert window.first[0].tolist() == [True] * (C + 1) + [False] * (L + N - 1)
    assert window.observations["place"][0, :C, 0].tolist() == [200.0] * C
    assert bool((window.previous_actions[""] >= 2).all())  # legal actions everywhere
    assert window.trimmed().context == 0


def test_drawing_is_uniform_over_segments_of_all_environments() -> None:
    buffer, generator = replay(), torch.Generator().manual_seed(0)
    writer = Writer(buffer)
    for _ in range(15):
        writer.step(kept=(0, 2))
    writer.steps(8)
    oldest, counts = buffer.eligible()
    assert counts.tolist() == [2, 1, 2]
    draw = draw_from(buffer, 5_000, generator)
    found = Counter(zip(draw.rows.tolist(), draw.segments.tolist(), strict=True))
    assert set(found) == {(row, oldest[row] + k) for row in range(E) for k in range(counts[row])}
    assert max(abs(count - 1000) for count in found.values()) < 100  # three standard deviations: 85
    assert torch.equal(draw.weights, torch.ones(5_000))


def test_prioritised_draws_follow_priorities_and_weights_make_up_for_them() -> None:
    buffer, generator = replay(), torch.Generator().manual_seed(0)
    Writer(buffer).steps(11)
    every = Draw(np.array([0, 0, 1, 1, 2, 2]), np.array([0, 1] * 3), torch.ones(6))
    assert len(buffer) == 6
    priorities = torch.tensor([1.0, 2.0, 3.0, 4.0, 5.0, 0.0])
    buffer.prioritize(every, priorities)
    draw = draw_from(buffer, 20_000, generator, prioritized=True)
    shares = priorities.clamp(min=1e-6) ** 0.9
    shares = shares / shares.sum()
    place = torch.as_tensor(draw.rows * 2 + draw.segments)
    found = torch.bincount(place, minlength=6) / 20_000
    torch.testing.assert_close(found, shares, atol=0.011, rtol=0)  # three standard deviations of a share
    weights = (6 * shares) ** -0.6
    drawn = torch.unique(place)
    torch.testing.assert_close(draw.weights, (weights / weights[drawn].max())[place], atol=1e-5, rtol=1e-5)


def test_a_segment_that_was_drawn_twice_gets_the_larger_priority_and_new_ones_the_largest_so_far() -> None:
    buffer = replay()
    writer = Writer(buffer)
    writer.steps(11)
    twice = Draw(np.array([1, 1, 0]), np.array([1, 1, 0]), torch.ones(3))
    buffer.prioritize(twice, torch.tensor([6.0, 2.0, 0.5]))
    assert buffer.priorities[1, 1] == 6.0 and buffer.priorities[0, 0] == 0.5
    writer.steps(4)
    assert buffer.priorities[:, 3].tolist() == [6.0] * 3
    buffer.prioritize(twice, torch.tensor([1.0, 3.0, 0.5]))
    assert buffer.priorities[1, 1] == 3.0 and buffer.largest_priority == 6.0


def test_a_beginning_behind_a_row_that_did_not_end_makes_it_a_last_observation() -> None:
    buffer = replay()
    writer = Writer(buffer)
    writer.steps(3)
    writer.starts[:] = [False, True, False]
    writer.steps(4)
    assert [torch.nonzero(~buffer.counts[row, :7])[:, 0].tolist() for row in range(E)] == [[], [2], []]
    assert torch.nonzero(buffer.first[1])[:, 0].tolist() == [0, 3]


def test_nothing_is_kept_before_the_first_beginning_or_behind_a_parting() -> None:
    buffer = replay()
    writer = Writer(buffer)
    writer.starts[:] = [True, False, True]
    writer.steps(3)
    assert buffer.written.tolist() == [3, 0, 3]
    buffer.part()
    writer.steps(2)
    assert buffer.written.tolist() == [3, 0, 3]
    assert not buffer.counts[0, 2] and buffer.counts[0, :2].all()
    writer.starts[:] = True
    writer.steps(2)
    assert buffer.written.tolist() == [5, 2, 5]
    assert torch.nonzero(buffer.first[0])[:, 0].tolist() == [0, 3]


def test_what_is_stored_of_a_replay_is_no_copy_of_it() -> None:
    buffer = replay()
    Writer(buffer).steps(33)
    state = buffer.state_dict()
    held = {**buffer.observations, "action": buffer.actions[""], "rewards": buffer.rewards}
    given = {**state["observations"], "action": state["actions"][""], "rewards": state["rewards"]}
    assert [given[name].data_ptr() for name in held] == [leaf.data_ptr() for leaf in held.values()]


@pytest.mark.parametrize("steps", [6, 20, 33])
def test_a_stored_replay_goes_on_as_if_nothing_had_happened(steps: int) -> None:
    buffer, other = replay(), replay()
    writer = Writer(buffer)
    writer.steps(steps - 1)
    writer.step(terminal=(2,))
    buffer.prioritize(Draw(np.array([2]), np.array([steps // L - 1]), torch.ones(1)), torch.tensor([4.0]))
    other.load_state_dict(buffer.state_dict())
    second = Writer(other)
    second.count, second.starts = writer.count.copy(), writer.starts.copy()
    for each in (writer, second):
        each.step(terminal=(0,), cut=(1,))
        each.steps(9)
    a, b = (draw_from(each, 20, torch.Generator().manual_seed(1), prioritized=True) for each in (buffer, other))
    assert np.array_equal(a.rows, b.rows) and np.array_equal(a.segments, b.segments)
    one, two = buffer.gather(a), other.gather(b)
    for name, value in vars(one).items():
        if isinstance(value, dict):
            assert all(torch.equal(value[path], getattr(two, name)[path]) for path in value)
        elif isinstance(value, torch.Tensor):
            assert torch.equal(value, getattr(two, name))


@pytest.mark.parametrize(
    ("kind", "path", "value", "words"),
    [
        ("actions", "", 1_000_000, "actions hold 1000000"),
        ("actions", "", 1, "outside Discrete"),
        ("observations", "place", np.nan, "'place' hold"),
        ("rewards", None, np.inf, "rewards are not finite"),
        ("priorities", None, np.nan, "priorities are not finite"),
        ("priorities", None, -1.0, "priorities hold -1"),
    ],
)
def test_rows_that_no_environment_gave_are_named(kind: str, path: str | None, value: float, words: str) -> None:
    writer = Writer(replay())
    for _ in range(6):
        writer.step()
    state = writer.buffer.state_dict(8)
    assert writer.buffer.fault(state) is None
    rows = state[kind] if path is None else state[kind][path]
    rows[1, min(3, rows.shape[1] - 1)] = value
    assert words in str(writer.buffer.fault(state))
