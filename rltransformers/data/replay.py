"""Steps of all environments, kept for learning again and again. Axes: E environments, R rows, L steps of a segment.

Every environment has a ring of R rows, written at its own pace: an observation, the action taken there, the reward for
it and whether it ended the episode. Where a limit cut an episode, its last observation is a row without an action. A
sample brings the rows before a segment along, from which memory is computed with the weights of the day.
"""

from collections.abc import Mapping
from dataclasses import dataclass, replace
from typing import Any

import numpy as np
import torch
from torch import Tensor

from rltransformers.core.device import CPU
from rltransformers.core.errors import ConfigError
from rltransformers.core.spaces import Space, leaf_spaces
from rltransformers.core.values import finite, members, named, to_tensor
from rltransformers.data.rollout import Leaves, OnDevice, action_layout, observation_layout
from rltransformers.functional.call import episode_positions

PRIORITY_EXPONENT, IMPORTANCE_EXPONENT = 0.9, 0.6
"""How far priorities and the weights that make up for them count (Kapturowski et al. 2019, R2D2, table 2)."""
MIN_PRIORITY = 1e-6
"""So that a segment without errors can still be drawn."""
_RINGS = ("rewards", "first", "terminal", "counts", "positions")
_COUNTERS = ("written", "ended", "joined")


@dataclass(frozen=True)
class Window(OnDevice):
    """Rows in a row, C of context, then T: the segment, and those behind it that returns reach into.

    Rows of the context that were never written repeat the oldest one; like it they begin an episode.
    """

    observations: Leaves  # [B, C + T, leaf shape]
    previous_actions: Leaves  # [B, C + T, leaf shape], of the row before
    previous_rewards: Tensor  # [B, C + T], of the row before
    first: Tensor  # bool [B, C + T], rows that begin an episode
    position: Tensor  # [B], steps of its episode before the oldest row
    actions: Leaves  # [B, T, leaf shape]
    rewards: Tensor  # [B, T]
    terminal: Tensor  # bool [B, T], actions that ended their episode
    counts: Tensor  # bool [B, T], rows with an action
    weights: Tensor  # [B], of the losses of whole segments
    context: int  # C

    def tensors(self) -> dict[str, Any]:
        """All but the length of the context, by name."""
        return {name: value for name, value in vars(self).items() if name != "context"}

    def trimmed(self) -> "Window":
        """Without the context that belongs, in every row, to an episode before that of its segment."""
        position = episode_positions(self.position - 1, self.first)
        spare = max(0, self.context - int(position[:, self.context].max()))
        if spare == 0:
            return self
        return replace(
            self,
            observations={path: leaf[:, spare:] for path, leaf in self.observations.items()},
            previous_actions={path: leaf[:, spare:] for path, leaf in self.previous_actions.items()},
            previous_rewards=self.previous_rewards[:, spare:],
            first=self.first[:, spare:],
            position=position[:, spare],
            context=self.context - spare,
        )


@dataclass(frozen=True)
class Draw:
    """Segments that were drawn: environments [B], their numbers counted from the beginning of time, weights [B]."""

    rows: np.ndarray
    segments: np.ndarray
    weights: Tensor


def draw_segments(
    oldest: np.ndarray,
    counts: np.ndarray,
    priorities: Tensor,
    count: int,
    generator: torch.Generator,
    prioritized: bool,
) -> Draw:
    """Draw so many segments, each as likely as another or in proportion to its priority; one may be drawn twice.

    Args:
        oldest: the oldest segment [E] that can be drawn, counted from the beginning of time.
        counts: how many [E] from the oldest on.
        priorities: of all segments, by their places in the rings [E, places].
    """
    ends = np.cumsum(counts)
    if not prioritized:
        chosen = torch.randint(int(ends[-1]), (count,), generator=generator, device="cpu").numpy()
        weights = torch.ones(count)
    else:
        rows = np.repeat(np.arange(len(counts)), counts)
        numbers = oldest[rows] + np.arange(int(ends[-1])) - (ends - counts)[rows]
        shares = priorities[rows, numbers % priorities.shape[1]].clamp(min=MIN_PRIORITY).double() ** PRIORITY_EXPONENT
        picked = torch.multinomial(shares, count, replacement=True, generator=generator)
        weights = (shares[picked] / shares.sum() * len(shares)) ** -IMPORTANCE_EXPONENT
        weights, chosen = (weights / weights.max()).float(), picked.numpy()
    row = np.searchsorted(ends, chosen, side="right")
    return Draw(row, oldest[row] + chosen - (ends - counts)[row], weights)


SIGNED = {torch.uint16: torch.int16, torch.uint32: torch.int32, torch.uint64: torch.int64}


def as_signed(x: Tensor) -> Tensor:
    """The same bytes in a type that torch can write to places of a tensor: it cannot for most unsigned ones."""
    return x.view(SIGNED[x.dtype]) if x.dtype in SIGNED else x


class SegmentReplay:
    """The newest steps of ``n_envs`` environments, drawn as whole segments with the context they need.

    Segments lie at fixed places, whole rings of them, so that each can have a priority. Where an episode was left (a
    reset in the middle), its newest row becomes a last observation. Rows before the first beginning of an episode are
    not kept, so every context is either complete or reaches back to the start of the episode.

    Args:
        capacity: rows of all environments together; what is kept is the largest number of whole segments in it.
        segment_length: L.
        context: C, rows before a segment that are drawn with it.
        n_step: rows behind a segment that are drawn with it, at least 1.
        observation_spaces: leaves of an observation by path; integers keep their type (images stay bytes).
    """

    def __init__(
        self,
        capacity: int,
        n_envs: int,
        segment_length: int,
        context: int,
        n_step: int,
        observation_spaces: Mapping[str, Space],
        action_space: Space,
    ) -> None:
        self.n_envs, self.length, self.context, self.n_step = n_envs, segment_length, context, n_step
        self.segments = capacity // n_envs // segment_length
        self.rows = self.segments * segment_length
        needed = -(-(context + n_step) // segment_length) + 2
        if self.segments < needed:
            raise ConfigError(
                f"buffer_size ({capacity}) keeps {self.segments} segments of {segment_length} steps for each of "
                f"{n_envs} environments, but one with its context of {context} steps needs {needed}: buffer_size "
                f"must be at least {needed * segment_length * n_envs}"
            )
        self.spaces = {"observations": observation_spaces, "actions": leaf_spaces(action_space)}
        self.observation_leaves = observation_layout(observation_spaces)
        lead = (n_envs, self.rows)
        self.observations = {p: torch.zeros(*lead, *s, dtype=t) for p, (s, t) in self.observation_leaves.items()}
        self.actions = {p: torch.zeros(*lead, *s, dtype=t) for p, (s, t) in action_layout(action_space).items()}
        self.rewards = torch.zeros(lead)
        self.first, self.terminal, self.counts = (torch.zeros(lead, dtype=torch.bool) for _ in range(3))
        self.positions = torch.zeros(lead, dtype=torch.int32)
        self.priorities = torch.zeros(n_envs, self.segments)
        self.largest_priority = 1.0
        self.written = np.zeros(n_envs, np.int64)
        self.ended = np.ones(n_envs, bool)  # whether the newest row ended its episode
        self.joined = np.zeros(n_envs, bool)  # whether the next row follows the newest one, or begins an episode

    # Writing

    def add(
        self,
        observations: Mapping[str, Any],
        actions: Mapping[str, Tensor],
        rewards: np.ndarray,
        first: np.ndarray,
        terminal: np.ndarray,
        active: np.ndarray,
    ) -> None:
        """Store one step of the environments that are ``active`` bool [E]; every argument has a row for every one."""
        self.joined |= first
        rows = np.flatnonzero(active & self.joined)
        left = rows[first[rows] & ~self.ended[rows]]
        if len(left):
            self._end(left)
        if not len(rows):
            return
        place = self._next(rows, first)
        every = len(rows) == self.n_envs
        for path, leaf in self.observations.items():
            value = to_tensor(observations[path], CPU, leaf.dtype)
            as_signed(leaf)[place] = as_signed(value if every else value[rows])
        for path, leaf in self.actions.items():
            value = actions[path].to(device="cpu", dtype=leaf.dtype)
            as_signed(leaf)[place] = as_signed(value if every else value[rows])
        self.rewards[place] = to_tensor(rewards, CPU, torch.float32)[rows]
        self.terminal[place] = to_tensor(terminal, CPU)[rows]
        self.counts[place] = True
        self.ended[rows] = terminal[rows]

    def add_last(self, rows: list[int], observations: Mapping[str, Any]) -> None:
        """The last observations of episodes that a limit cut after the newest step of the environments ``rows``."""
        chosen = [index for index, row in enumerate(rows) if self.joined[row] and not self.ended[row]]
        if not chosen:
            return
        at = np.asarray(rows)[chosen]
        place = self._next(at, np.zeros(self.n_envs, bool))
        for path, leaf in self.observations.items():
            as_signed(leaf)[place] = as_signed(to_tensor(np.asarray(observations[path]), CPU, leaf.dtype)[chosen])
        for leaf in self.actions.values():
            as_signed(leaf)[place] = as_signed(leaf[self._newest(at, 1)])  # never read, and legal
        self._end(at)

    def fault(self, state: Mapping[str, Any]) -> str | None:
        """What rows of a ``state_dict`` hold that no environment gave: numbers outside their space, or not finite."""
        written = np.arange(state["rewards"].shape[1]) < np.asarray(state["written"])[:, None]
        for name in ("rewards", "priorities"):
            if not finite(state[name].numpy()).all():
                return f"{name} are not finite"
        if bool((state["priorities"] < 0).any()):
            return f"priorities hold {float(state['priorities'].min()):g}; they begin at 0"
        for kind, leaves in self.spaces.items():
            for path, leaf in leaves.items():
                rows = state[kind][path].numpy()[written]
                good = members(leaf, rows)
                if not good.all():
                    return f"{named(kind, path)} hold {rows[int(np.argmin(good))]}, outside {leaf}"
        return None

    def part(self) -> None:
        """Cut the recording: rows that are added next follow none, so wait for episodes to begin."""
        self._end(np.flatnonzero(~self.ended))
        self.joined[:] = False

    def _end(self, rows: np.ndarray) -> None:
        """The newest row of these environments becomes the last observation of an episode that was left."""
        place = self._newest(rows)
        self.counts[place] = self.terminal[place] = False
        self.rewards[place] = 0.0
        self.ended[rows] = True

    def _newest(self, rows: np.ndarray, back: int = 0) -> tuple[Tensor, Tensor]:
        return torch.from_numpy(rows), torch.from_numpy((self.written[rows] - 1 - back) % self.rows)

    def _next(self, rows: np.ndarray, first: np.ndarray) -> tuple[Tensor, Tensor]:
        """The places of the next rows of these environments, with their flags and positions in place."""
        before = self.positions[self._newest(rows)]
        self.written[rows] += 1
        place = self._newest(rows)
        begins = to_tensor(first[rows], CPU)
        self.first[place] = begins
        self.positions[place] = torch.where(begins, 0, before + 1).to(torch.int32)
        fresh = rows[(self.written[rows] - 1) % self.length == 0]
        self.priorities[fresh, (self.written[fresh] - 1) // self.length % self.segments] = self.largest_priority
        return place

    # Reading

    def eligible(self) -> tuple[np.ndarray, np.ndarray]:
        """The oldest segment of every environment that can be drawn, counted from the beginning of time, and how many.

        Its rows, those behind it and its context are in the ring, or there never were older rows.
        """
        oldest_row = np.maximum(self.written - self.rows, 0)
        whole = -(-(oldest_row + self.context + 1) // self.length)
        oldest = np.where(oldest_row > 0, whole, 0)
        newest = (self.written - self.n_step) // self.length  # exclusive
        return oldest, np.maximum(newest - oldest, 0)

    def __len__(self) -> int:
        """Segments that can be drawn."""
        return int(self.eligible()[1].sum())

    def size(self) -> int:
        """Rows that are held."""
        return int(np.minimum(self.written, self.rows).sum())

    def gather(self, draw: Draw) -> Window:
        """The rows of drawn segments, with their context in front and what returns reach into behind."""
        return self.window(draw.rows, draw.segments * self.length, self.length + self.n_step, draw.weights)

    def newest(self, rows: np.ndarray, steps: int) -> Window:
        """The newest ``steps`` rows of environments, with their context."""
        start = np.maximum(self.written[rows] - steps, 0)
        return self.window(rows, start, steps, torch.ones(len(rows)))

    def window(self, rows: np.ndarray, start: np.ndarray, steps: int, weights: Tensor) -> Window:
        """Rows from ``start`` on, counted from the beginning of time, and their context."""
        wanted = start[:, None] + np.arange(-self.context - 1, steps)
        env = torch.from_numpy(rows)[:, None]
        place = torch.from_numpy(np.maximum(wanted, 0) % self.rows)
        seen, before, later = place[:, 1:], place[:, :-1], place[:, self.context + 1 :]
        return Window(
            observations={path: leaf[env, seen] for path, leaf in self.observations.items()},
            previous_actions={path: leaf[env, before] for path, leaf in self.actions.items()},
            previous_rewards=self.rewards[env, before],
            first=self.first[env, seen],
            position=self.positions[env[:, 0], seen[:, 0]].long(),
            actions={path: leaf[env, later] for path, leaf in self.actions.items()},
            rewards=self.rewards[env, later],
            terminal=self.terminal[env, later],
            counts=self.counts[env, later],
            weights=weights,
            context=self.context,
        )

    def prioritize(self, draw: Draw, priorities: Tensor) -> None:
        """Give drawn segments their new priorities; of a segment that was drawn twice the larger one counts."""
        places = torch.from_numpy(draw.rows * self.segments + draw.segments % self.segments)
        values = priorities.detach().cpu().float()
        cleared = self.priorities.view(-1).index_fill(0, places, 0.0)
        self.priorities = cleared.scatter_reduce(0, places, values, "amax").view_as(self.priorities)
        self.largest_priority = max(self.largest_priority, float(values.max()))

    # Files

    @property
    def used(self) -> int:
        """Rows of the rings that were ever written, of the environment that has most of them."""
        return int(min(self.written.max(), self.rows))

    def state_dict(self, used: int | None = None) -> dict[str, Any]:
        """Everything that was written, the rows before ``used`` as views of the rings: use it before the next step."""
        used = self.used if used is None else used
        leaves = {
            name: {path: leaf[:, :used] for path, leaf in getattr(self, name).items()}
            for name in ("observations", "actions")
        }
        rings = {name: getattr(self, name)[:, :used] for name in _RINGS}
        counters = {name: torch.from_numpy(getattr(self, name).copy()) for name in _COUNTERS}
        priorities = {"priorities": self.priorities.clone(), "largest_priority": self.largest_priority}
        return leaves | rings | priorities | counters

    def load_state_dict(self, state: Mapping[str, Any]) -> None:
        """Take over what ``state_dict`` gave of a replay with the same settings."""
        used = state["rewards"].shape[1]
        for name in _RINGS:
            getattr(self, name)[:, :used] = state[name]
        for name in ("observations", "actions"):
            for path, leaf in getattr(self, name).items():
                leaf[:, :used] = state[name][path]
        self.priorities = state["priorities"].clone()
        self.largest_priority = float(state["largest_priority"])
        self.written, self.ended, self.joined = (state[name].numpy().copy() for name in _COUNTERS)
