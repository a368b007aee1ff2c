"""Context windows from trajectories.

Axes: B windows, K steps of a window, k actions of a chunk, N steps and E episodes of the data.
"""

import warnings
from copy import copy
from dataclasses import dataclass

import torch
from jaxtyping import Bool, Float, Int
from torch import Tensor

from rltransformers.core.action_masks import ACTION_MASK
from rltransformers.core.errors import ConfigError
from rltransformers.core.ranges import Count, check
from rltransformers.core.values import Array
from rltransformers.data.rollout import OnDevice
from rltransformers.data.trajectories import Trajectories

EVERYTHING = slice(None)


@dataclass(frozen=True)
class ChunkTargets(OnDevice):
    """The k actions from every step of a window on: its own and those of the steps after it in its episode.

    They are read from the episode, which may go on behind the window. ``counts`` is False behind its end, where entries
    repeat its last step. ``masks`` is the leaf ``action_mask`` of the observations at these steps, where there is one.
    """

    actions: dict[str, Tensor]  # [B, K, k, leaf shape]
    counts: Bool[Tensor, "B K k"]
    masks: dict[str, Tensor]  # [B, K, k, M]


@dataclass(frozen=True)
class ContextBatch(OnDevice):
    """B windows of K consecutive steps of one episode each, padded on the right.

    ``timestep`` counts from the start of the episode, ``return_to_go`` includes the reward of its own step and is not
    scaled; a sampler of bins has these in its place. Where ``valid`` is False every entry repeats the last valid step:
    a member of its space, and never a target. ``episode`` is the number of each window's episode, ``episode_return``
    its return-to-go at its first step, and ``terminated`` says which steps end their episode for good (a truncation
    does not). ``chunks`` are of a sampler that draws them.
    """

    observations: dict[str, Tensor]
    actions: dict[str, Tensor]
    rewards: Float[Tensor, "B K"]
    return_to_go: Float[Tensor, "B K"]
    timestep: Int[Tensor, "B K"]
    valid: Bool[Tensor, "B K"]
    terminated: Bool[Tensor, "B K"]
    episode: Int[Tensor, " B"]
    episode_return: Float[Tensor, " B"]
    chunks: ChunkTargets | None = None


class ContextSampler:
    """Draws windows so that every step of the data has the same expected weight.

    A window may begin up to K - 1 steps before its episode; that part is cut off. Each step then lies in exactly K of
    the N + E (K - 1) equally likely windows. Uniform starts inside the episode, the usual choice, give the first step,
    where the commanded return matters most, only 1/K of the weight of the others.

    Args:
        context_length: K, the steps of a window.
        discount: of the return-to-go; Decision Transformer uses 1.
        whole_episodes: draw episodes uniformly and always from their first step, as acting with such a K sees them;
            None where K covers the longest episode.
        chunk: k, actions of a ``ChunkTargets``; 1 for none.

    Raises:
        ConfigError: for a context length below 1, or below the longest episode with ``whole_episodes``.
    """

    def __init__(
        self,
        trajectories: Trajectories,
        context_length: int,
        *,
        discount: float = 1.0,
        whole_episodes: bool | None = None,
        chunk: int = 1,
    ) -> None:
        longest = int(trajectories.lengths.max())
        context_length = check(context_length, Count, "context_length")
        if whole_episodes and context_length < longest:
            raise ConfigError(
                f"whole_episodes needs context_length >= {longest}, the longest episode, got {context_length}; "
                f"raise it or leave whole_episodes out"
            )
        whole_episodes = context_length >= longest if whole_episodes is None else whole_episodes
        self.trajectories = trajectories
        self.context_length, self.chunk = context_length, chunk
        self._before = 0 if whole_episodes else context_length - 1
        lengths = torch.from_numpy(trajectories.lengths)
        starts = torch.ones_like(lengths) if whole_episodes else lengths + self._before
        self._offsets = torch.from_numpy(trajectories.offsets)
        self._window_ends = starts.cumsum(0)
        self._window_starts = self._window_ends - starts
        self._arange = torch.arange(context_length, device="cpu")
        self._observations = {path: self._tensor(leaf) for path, leaf in trajectories.observations.items()}
        self._actions = {path: self._tensor(leaf) for path, leaf in trajectories.actions.items()}
        self._rewards = self._tensor(trajectories.rewards)
        self._return_to_go = self._tensor(trajectories.return_to_go(discount))
        self._episode_return = self._return_to_go[self._offsets[:-1]]
        self._terminated = self._tensor(trajectories.terminations)

    def with_bins(self, bins: Array) -> "ContextSampler":
        """The same windows with the bins of advantages, float32 [N], in the place of return-to-go."""
        other = copy(self)
        other._return_to_go = self._tensor(bins)
        return other

    def _tensor(self, array: Array) -> Tensor:
        with warnings.catch_warnings():  # the arrays may be read-only; batches are copies and nothing writes to them
            warnings.filterwarnings("ignore", message="The given NumPy array is not writable")
            return torch.from_numpy(array)

    @property
    def windows(self) -> int:
        """The number of equally likely windows: N + E (K - 1), or E with whole episodes."""
        return int(self._window_ends[-1])

    def sample(self, batch_size: int, generator: torch.Generator, part: slice = EVERYTHING) -> ContextBatch:
        """``batch_size`` independent windows, or a part of them; the generator alone decides which."""
        return self.window(torch.randint(self.windows, (batch_size,), generator=generator, device="cpu")[part])

    def window(self, index: Int[Tensor, " B"]) -> ContextBatch:
        """The windows with the given indices in 0 .. ``windows`` - 1, ordered by episode and start."""
        episode = torch.searchsorted(self._window_ends, index, right=True)
        first, end = self._offsets[episode], self._offsets[episode + 1]
        begin = index - self._window_starts[episode] - self._before  # negative: the window starts before its episode
        length = torch.minimum(begin + self.context_length, end - first) - begin.clamp(min=0)
        timestep = begin.clamp(min=0)[:, None] + torch.minimum(self._arange, length[:, None] - 1)
        steps = first[:, None] + timestep
        rows = steps + episode[:, None]
        return ContextBatch(
            {path: _gather(leaf, rows) for path, leaf in self._observations.items()},
            {path: _gather(leaf, steps) for path, leaf in self._actions.items()},
            _gather(self._rewards, steps),
            _gather(self._return_to_go, steps),
            timestep,
            self._arange < length[:, None],
            _gather(self._terminated, steps),
            episode,
            self._episode_return[episode],
            self._chunks(episode, timestep) if self.chunk > 1 else None,
        )

    def _chunks(self, episode: Int[Tensor, " B"], timestep: Int[Tensor, "B K"]) -> ChunkTargets:
        first, end = (self._offsets[each][:, None, None] for each in (episode, episode + 1))
        step = first + timestep[..., None] + torch.arange(self.chunk, device="cpu")
        place = torch.minimum(step, end - 1)
        masks = {path: leaf for path, leaf in self._observations.items() if path == ACTION_MASK}
        return ChunkTargets(
            {path: _gather(leaf, place) for path, leaf in self._actions.items()},
            step < end,
            {path: _gather(leaf, place + episode[:, None, None]) for path, leaf in masks.items()},
        )

    def windows_of(self, episodes: Bool[Tensor, " E"]) -> Int[Tensor, " N"]:
        """Indices of all windows of the episodes that are True."""
        counts = self._window_ends - self._window_starts
        return episodes.repeat_interleave(counts).nonzero()[:, 0]

    def windows_over(self, episodes: Int[Tensor, " E"]) -> tuple[Int[Tensor, " N"], Bool[Tensor, "N K"]]:
        """Windows that hold every step of some episodes once, and which of their steps these are.

        A window begins every h = K - K // 2 steps, and stands for its last h steps; the first one for all of its own.
        """
        length, period = self.context_length, self.context_length - self.context_length // 2
        steps = self._offsets[episodes + 1] - self._offsets[episodes]
        counts = 1 + (steps - length).clamp(min=0).add(period - 1).div(period, rounding_mode="floor")
        of_window = torch.arange(len(episodes), device="cpu").repeat_interleave(counts)
        begin = (torch.arange(len(of_window), device="cpu") - (counts.cumsum(0) - counts)[of_window]) * period
        first = torch.where(begin == 0, 0, length - period)
        wanted = (self._arange >= first[:, None]) & (self._arange < (steps[of_window] - begin)[:, None])
        return self._window_starts[episodes][of_window] + self._before + begin, wanted


def _gather(leaf: Tensor, places: Tensor) -> Tensor:
    """The rows of a leaf at these places, in their shape."""
    return leaf.index_select(0, places.flatten()).view(*places.shape, *leaf.shape[1:])
