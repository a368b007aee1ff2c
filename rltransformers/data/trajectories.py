"""Logged episodes as one contiguous array per leaf, in memory or memory-mapped on disk.

Axis letters: E episodes, N steps of all episodes, T steps of one episode. Step n of episode e has its observation in
row n + e: every episode owns T + 1 observation rows, the last of which follows its last action.
"""

import hashlib
import itertools
import os
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import InitVar, dataclass, field, replace
from functools import cached_property
from pathlib import Path
from typing import Any, Literal

import numpy as np
import numpy.typing as npt

from rltransformers.core.described import count, spaces_line
from rltransformers.core.errors import DataError
from rltransformers.core.ranges import Fraction, UnitInterval, check, shown
from rltransformers.core.spaces import Space, normalized_leaves
from rltransformers.core.values import Array
from rltransformers.data.checks import check_contents, check_layout, check_order
from rltransformers.data.description import rounded, summary_of, summary_text
from rltransformers.data.spaces import chunks

Leaves = dict[str, Array]
UNKNOWN = "unknown"
"""What ``metadata["rewards"]`` says of data without rewards."""
LONG = 100_000  # steps of an episode whose returns to go take half a second, as the import of a filter for them does


@dataclass(frozen=True)
class Episode:
    """One episode: leaves of observations [T+1, ...] and actions [T, ...], and float32/bool arrays [T]."""

    observations: Leaves
    actions: Leaves
    rewards: Array
    terminations: Array
    truncations: Array

    def __repr__(self) -> str:
        return f"Episode({count(len(self), 'step')}, return {float(np.sum(self.rewards)):g})"

    def __len__(self) -> int:
        return len(self.rewards)


@dataclass(frozen=True, eq=False)
class Trajectories:
    """Whole episodes of one task, checked on construction.

    Args:
        observations: leaf path -> [N + E, ...]; step n of episode e is row n + e (see ``final_observations``).
        actions: leaf path -> [N, ...].
        rewards: float32 [N].
        terminations, truncations: bool [N]; at least one is True on the last step of an episode, neither before it.
        offsets: int64 [E + 1]; episode e holds the steps offsets[e] .. offsets[e + 1] - 1.
        final_observations: whether the last observation row of every episode was recorded. Sources such as D4RL
            may lack it; the row then repeats the one before. Samplers and statistics never read it.
        name: how messages and tables call the data.
        env_id, env_spec: the Gymnasium id and the spec as JSON, when the source tells them.
        metadata: further facts as JSON values.
        guesses: of spaces that were guessed, by "observation_space" and "action_space": what was guessed and what
            speaks against it, or "" where nothing does.

    Float leaves are float32 whatever the space says, Discrete and MultiDiscrete leaves int64, MultiBinary int8;
    byte, boolean and integer Boxes keep their type.

    Raises:
        DataError: names the data set, the leaf, the episode and the step that break a rule, and the way out.
    """

    observations: Leaves
    actions: Leaves
    rewards: Array
    terminations: Array
    truncations: Array
    offsets: npt.NDArray[np.int64]
    observation_space: Space
    action_space: Space
    name: str = "data"
    env_id: str | None = None
    env_spec: str | None = None
    final_observations: bool = True
    metadata: Mapping[str, Any] = field(default_factory=dict)
    verify: InitVar[bool] = True
    guesses: Mapping[str, str] = field(default_factory=dict)

    def __post_init__(self, verify: bool) -> None:
        check_layout(self)
        if verify:
            check_contents(self)

    def __repr__(self) -> str:
        returns = self.returns
        name = "" if self.env_id is None else f"{self.env_id}, "
        sizes = f"{count(len(self), 'episode')}, {count(self.steps, 'step')}"
        scores = f"returns {returns.min():g} to {returns.max():g}, mean {returns.mean():g}"
        return f"Trajectories({name}{sizes}, {scores})" + spaces_line(self.observation_space, self.action_space)

    def __len__(self) -> int:
        """The number of episodes E."""
        return len(self.offsets) - 1

    @property
    def steps(self) -> int:
        """The number of steps N of all episodes."""
        return int(self.offsets[-1])

    @property
    def lengths(self) -> npt.NDArray[np.int64]:
        """Steps of each episode, int64 [E]."""
        return np.diff(self.offsets)

    @property
    def episode_of_steps(self) -> npt.NDArray[np.int64]:
        """The episode of each step, int64 [N]; the observation before step n is row n + ``episode_of_steps[n]``."""
        return np.repeat(np.arange(len(self)), self.lengths)

    @property
    def has_rewards(self) -> bool:
        """Whether rewards were logged; where not they are zeros, which only behavior cloning takes (``mode="bc"``)."""
        return self.metadata.get("rewards") != UNKNOWN

    def component_names(self, kind: Literal["observations", "actions"], path: str) -> list[str] | None:
        """What the log calls each number of a leaf, such as ["motor_1", "motor_2"]; None where it has no names."""
        return self.metadata.get("names", {}).get(kind, {}).get(path)

    @cached_property
    def returns(self) -> npt.NDArray[np.float64]:
        """Undiscounted return of each episode, summed in float64 [E]."""
        return np.add.reduceat(np.asarray(self.rewards, np.float64), self.offsets[:-1])

    def target_returns(self, discount: float = 1.0) -> list[float]:
        """Returns worth asking for: what half of the episodes reach, what one in ten reaches, and the best.

        Each is that of an episode, to four digits of its own and of the range of returns, without repetitions;
        ``discount`` is that of the Decision Transformer that is asked.
        """
        returns = self.returns if discount == 1.0 else self.return_to_go(discount)[self.offsets[:-1]]
        quantiles = np.quantile(returns, [0.5, 0.9, 1.0], method="nearest")
        return list(dict.fromkeys(rounded(float(value), float(np.ptp(returns))) for value in quantiles))

    def return_to_go(self, discount: float = 1.0) -> npt.NDArray[np.float32]:
        """Discounted sum of the rewards from each step to the end of its episode, that step included; float32 [N]."""
        check(discount, UnitInterval, "discount")
        return discounted_sums(np.asarray(self.rewards, np.float64), self.offsets, discount).astype(np.float32)

    def episode(self, index: int) -> Episode:
        """Views of episode ``index``; negative indices count from the end."""
        if not -len(self) <= index < len(self):
            raise IndexError(f"episode {index} of {len(self)}")
        e = index % len(self)
        start, end = int(self.offsets[e]), int(self.offsets[e + 1])
        return Episode(
            {path: leaf[start + e : end + e + 1] for path, leaf in self.observations.items()},
            {path: leaf[start:end] for path, leaf in self.actions.items()},
            self.rewards[start:end],
            self.terminations[start:end],
            self.truncations[start:end],
        )

    def select(self, episodes: Sequence[int] | Sequence[bool] | Array) -> "Trajectories":
        """Copies of the given episodes, in the given order.

        Args:
            episodes: their numbers, or one boolean for each episode, such as ``data.returns > 100``.

        Raises:
            DataError: when no episode is given, one does not exist, or for what is neither numbers nor booleans.
        """
        try:
            numbers = np.asarray(episodes)
        except ValueError:  # rows of different lengths
            numbers = np.array(None)
        if numbers.dtype == bool and numbers.shape == (len(self),):
            numbers = np.flatnonzero(numbers)
        if numbers.size and numbers.dtype.kind not in "iu":
            raise DataError(
                f"{self.name}: episodes are selected by whole numbers, or by one boolean for each of the {len(self)}; "
                f"got {shown(episodes)}"
            )
        indices = numbers.reshape(-1).astype(np.int64)
        if indices.size == 0:
            raise DataError(f"{self.name}: no episode is left after the selection; loosen it")
        if indices.min() < 0 or indices.max() >= len(self):
            raise DataError(f"{self.name}: episodes {indices.min()}..{indices.max()} asked, 0..{len(self) - 1} exist")
        lengths = self.lengths[indices]
        steps = _ranges(self.offsets[indices], lengths)
        rows = _ranges(self.offsets[indices] + indices, lengths + 1)
        return self._take(rows, steps, np.concatenate([[0], np.cumsum(lengths)]))

    def _take(self, rows: Any, steps: Any, offsets: Array) -> "Trajectories":
        return replace(
            self,
            observations={path: leaf[rows] for path, leaf in self.observations.items()},
            actions={path: leaf[steps] for path, leaf in self.actions.items()},
            rewards=self.rewards[steps],
            terminations=self.terminations[steps],
            truncations=self.truncations[steps],
            offsets=offsets,
            verify=False,
        )

    def top_fraction(self, fraction: float) -> "Trajectories":
        """The best episodes by return that together hold at most ``fraction`` of the steps, in their order.

        At least the best episode; the first one that does not fit ends the choice, ties go to the earlier one. %BC of
        the Decision Transformer paper (arXiv 2106.01345, section 5.1), which takes a share of timesteps, too.

        Raises:
            ConfigError: for a fraction outside (0, 1].
        """
        check(fraction, Fraction, "top_fraction")
        best_first = np.argsort(-self.returns, kind="stable")
        steps = np.cumsum(self.lengths[best_first])
        episodes = max(1, int(np.searchsorted(steps, fraction * self.steps * (1 + 1e-12), side="right")))
        return self.select(np.sort(best_first[:episodes]))

    def delayed_rewards(self) -> "Trajectories":
        """The same episodes with their whole return paid on the last step (arXiv 2106.01345, section 5.6)."""
        rewards = np.zeros_like(self.rewards)
        rewards[self.offsets[1:] - 1] = self.returns
        return replace(self, rewards=rewards, verify=False)

    def observation_statistics(
        self, elements: Mapping[str, tuple[int, str | None]] | None = None
    ) -> tuple[Leaves, Leaves]:
        """Mean and population standard deviation of ``normalized_leaves`` over the N observations before an action.

        Args:
            elements: of leaves that hold a set, how many numbers an element has, and the path of the leaf that says
                which elements exist, None for all. All elements that exist have one mean and deviation per number,
                which stand at every place.
        """
        means: Leaves = {}
        deviations: Leaves = {}
        for path in normalized_leaves(self.observation_space):
            leaf, (size, mask) = self.observations[path], (elements or {}).get(path, (0, None))
            shape = (size,) if size else leaf.shape[1:]
            exists = None if mask is None else self.observations[mask]
            mean = self._mean(leaf, shape, exists, 1, np.float64(0.0))
            deviation = np.sqrt(self._mean(leaf, shape, exists, 2, mean))
            means[path], deviations[path] = (
                np.resize(each.astype(np.float32), leaf.shape[1:]) for each in (mean, deviation)
            )
        return means, deviations

    def _mean(self, leaf: Array, shape: tuple[int, ...], exists: Array | None, power: int, center: Any) -> Array:
        """Mean of (part - center)**power over the observations before an action, in float64.

        Parts of an observation are of this shape, and all of them count that are not 0 in ``exists``; 0 without any.
        """
        acted = np.ones(len(leaf), bool)
        acted[self.offsets[1:] + np.arange(len(self))] = False
        total, count = np.zeros(shape, np.float64), 0
        for chunk in chunks(leaf):
            rows = leaf[chunk][acted[chunk]].reshape(-1, *shape)
            if exists is not None:
                rows = rows[exists[chunk][acted[chunk]].reshape(-1) != 0]
            values = np.subtract(rows, center, dtype=np.float64)
            values **= power
            total += values.sum(axis=0)
            count += len(values)
            del values  # before the next ones are made
        return np.asarray(total / max(count, 1))

    def fingerprint(self) -> str:
        """Sixteen hexadecimal digits of SHA-256 over names, types, shapes and bytes of the arrays, and nothing else."""
        arrays = {name: getattr(self, name) for name in ("rewards", "terminations", "truncations", "offsets")}
        for kind in ("observations", "actions"):
            arrays |= {f"{kind}/{path}": leaf for path, leaf in getattr(self, kind).items()}
        digest = hashlib.sha256()
        for name, leaf in sorted(arrays.items()):
            digest.update(f"{name} {leaf.dtype.str} {leaf.shape}".encode())
            for chunk in chunks(leaf):
                digest.update(leaf[chunk].tobytes())
        return digest.hexdigest()[:16]

    def summary(self) -> dict[str, Any]:
        """What the data hold, as JSON values.

        Beside sizes, ends and spaces: shape, range and constant numbers of every leaf; how actions use their bounds,
        and the error of always giving the mean action, or the most frequent class; quantiles of returns, and how much
        of their variance the first observation explains (see ``rltransformers.data.starts``); ``target_returns``, and
        how many episodes are within 5 % of the range of returns of each.
        """
        return summary_of(self)

    def describe(self) -> str:
        """The summary as a text of 80 columns, which ``rltransformers inspect`` prints."""
        return summary_text(self.summary())

    def save(self, folder: str | os.PathLike[str], *, overwrite: bool = False) -> Path:
        """Write one .npy per leaf and a JSON description, all or nothing; return the folder.

        Raises:
            DataError: when ``folder`` exists and ``overwrite`` is False, or holds something else than trajectories.
        """
        from rltransformers.data.folders import save_trajectories

        return save_trajectories(self, folder, overwrite)

    @staticmethod
    def open(folder: str | os.PathLike[str], *, mmap: bool = True) -> "Trajectories":
        """Read a folder of ``save``, without executing code. All of it is read once and compared with its checksums.

        Args:
            mmap: map the files instead of keeping their content in memory; changes never reach the files.

        Raises:
            DataError: when a file is missing, damaged, edited, or of another format version.
        """
        from rltransformers.data.folders import open_trajectories

        return open_trajectories(folder, mmap)

    @staticmethod
    def concatenate(parts: "Iterable[Trajectories]", name: str | None = None) -> "Trajectories":
        """The episodes of all parts in memory, one part after the other; a single part is not copied.

        Args:
            name: of the result; None joins the names of the parts. The environments are those that all parts name.

        Raises:
            DataError: for no parts, and for parts of different spaces.
        """
        listed = list(parts)
        if not listed:
            raise DataError("there is nothing to concatenate; pass at least one Trajectories")
        for part in listed:
            if not isinstance(part, Trajectories):
                raise DataError(f"only Trajectories are concatenated, got {shown(part)}; load_trajectories makes them")
            check_order(part, listed[0].metadata.get("names"), listed[0].name)
        names = list(dict.fromkeys(part.name for part in listed))
        metadata: dict[str, Any] = {"format": "concatenated", "parts": names}
        for key in ("eval_env_spec", "names"):  # kept where all parts say the same
            if (fact := listed[0].metadata.get(key)) and all(part.metadata.get(key) == fact for part in listed):
                metadata[key] = fact
        if not all(part.has_rewards for part in listed):
            metadata["rewards"] = UNKNOWN
        joined = join_trajectories(listed, name or " + ".join(names), metadata)
        return joined if len({part.env_id for part in listed}) == 1 else replace(joined, env_id=None, env_spec=None)


def join_trajectories(
    parts: Sequence[Trajectories], name: str, metadata: Mapping[str, Any] | None = None, newest: int | None = None
) -> Trajectories:
    """The ``newest`` or all episodes of parts of the same spaces, in order; those of a single part are not copied."""
    first = parts[0]
    for part in parts[1:]:
        if part.observation_space != first.observation_space or part.action_space != first.action_space:
            raise DataError(
                f"{first.name} and {part.name} have different spaces and cannot be joined: observations "
                f"{first.observation_space} and {part.observation_space}, actions {first.action_space} and "
                f"{part.action_space}; where they were guessed, load both with the same observation_space and "
                f"action_space"
            )
    if newest is not None:
        parts = _newest(parts, newest)

    def join(arrays: Iterable[Array]) -> Array:
        listed = list(arrays)
        return listed[0] if len(listed) == 1 else np.concatenate(listed)

    return replace(
        first,
        observations={path: join(part.observations[path] for part in parts) for path in first.observations},
        actions={path: join(part.actions[path] for part in parts) for path in first.actions},
        rewards=join(part.rewards for part in parts),
        terminations=join(part.terminations for part in parts),
        truncations=join(part.truncations for part in parts),
        offsets=np.concatenate([[0], np.cumsum(join(part.lengths for part in parts))]).astype(np.int64),
        name=name,
        final_observations=all(part.final_observations for part in parts),
        guesses={key: said for key, said in first.guesses.items() if all(key in part.guesses for part in parts)},
        metadata=first.metadata if metadata is None else metadata,
        verify=False,
    )


def _newest(parts: Sequence[Trajectories], episodes: int) -> list[Trajectories]:
    views: list[Trajectories] = []
    for part in reversed(parts):
        if episodes > 0:
            first = max(len(part) - episodes, 0)
            start = int(part.offsets[first])
            views.insert(0, part._take(slice(start + first, None), slice(start, None), part.offsets[first:] - start))
            episodes -= len(part)
    return views


def _ranges(starts: Array, lengths: Array) -> npt.NDArray[np.int64]:
    """starts[0] .. starts[0] + lengths[0] - 1, then the same for the next, as one array."""
    ends = np.cumsum(lengths)
    return np.arange(ends[-1]) + np.repeat(starts - (ends - lengths), lengths)


def discounted_sums(rewards: Array, offsets: Array, discount: float) -> Array:
    """Discounted sum of the numbers from each step to the end of its episode, that step included; float64 [N]."""
    lengths = np.diff(offsets)
    result = np.empty(len(rewards), np.float64)
    if max(len(lengths), LONG) <= lengths.max():  # few long episodes: one filter each, which gives the same bits
        from scipy.signal import lfilter

        for start, end in itertools.pairwise(offsets):
            result[start:end] = lfilter([1.0], [1.0, -discount], rewards[start:end][::-1])[::-1]
        return result
    shortness = -lengths  # many short episodes: one step back in all of them at a time, the longest first
    order = np.argsort(shortness, kind="stable")
    last, shortness = offsets[1:][order] - 1, shortness[order]
    running = np.zeros(len(lengths))
    for back in range(int(lengths.max())):
        active = int(np.searchsorted(shortness, -back, side="left"))  # episodes longer than `back`
        rows = last[:active] - back
        running[:active] = rewards[rows] + discount * running[:active]
        result[rows] = running[:active]
    return result
