"""Logged episodes as one contiguous array per leaf, in memory or memory-mapped on disk.

Axis letters: E episodes, N steps of all episodes, T steps of one episode. Step n of episode e has its observation in
row n + e: every episode owns T + 1 observation rows, the last of which follows its last action.
"""

import hashlib
import itertools
import json
import os
import zlib
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from dataclasses import InitVar, dataclass, field, replace
from functools import cached_property
from pathlib import Path
from types import UnionType
from typing import Any

import gymnasium as gym
import numpy as np
import numpy.typing as npt
from gymnasium import spaces

from rltransformers.core.described import count, spaces_line
from rltransformers.core.errors import DataError, did_you_mean, one_line
from rltransformers.core.files import replacing_folder
from rltransformers.core.members import (
    LARGEST_FLOAT,
    action_bounds,
    all_members,
    check_numeric,
    flags,
    members,
    numbers,
)
from rltransformers.core.ranges import Fraction, UnitInterval, check, shown
from rltransformers.core.spaces import (
    SUPPORTED_LEAVES,
    check_supported,
    leaf_spaces,
    leaf_values,
    normalised_leaves,
    space_from_json,
    space_to_json,
    stored_dtype,
)
from rltransformers.data.spaces import LARGEST_NUMBER, chunks

Array = npt.NDArray[Any]
Space = gym.Space[Any]
Leaves = dict[str, Array]
Allocate = Callable[[str, tuple[int, ...], np.dtype[Any]], Array]

FORMAT = "rltransformers-trajectories"
FORMAT_VERSION = 2
DESCRIPTION = "trajectories.json"
DESCRIBED: dict[str, type | UnionType] = {
    "observation_space": str,
    "action_space": str,
    "name": str,
    "env_id": str | None,
    "env_spec": str | None,
    "final_observations": bool,
    "metadata": dict,
    "guesses": dict,
    "checksums": dict,
}
"""Keys of the description beside format and version, and the types of their values."""
REWARD = spaces.Box(-np.inf, np.inf, (), np.float32)


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
        guesses: of spaces that were guessed and may not be those of the environment, by "observation_space" and
            "action_space": what was guessed and what speaks against it.

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
    contents_checked: InitVar[bool] = False
    guesses: Mapping[str, str] = field(default_factory=dict)

    def __post_init__(self, contents_checked: bool) -> None:
        _check_layout(self)
        if not contents_checked:
            _check_contents(self)

    def __repr__(self) -> str:
        returns = self.returns
        name = "" if self.env_id is None else f"{self.env_id}, "
        sizes = f"{count(len(self), 'episode')}, {count(self.steps, 'step')}"
        scores = f", returns {returns.min():g} to {returns.max():g}, mean {returns.mean():g}" if len(self) else ""
        return f"Trajectories({name}{sizes}{scores})" + spaces_line(self.observation_space, self.action_space)

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

    @cached_property
    def returns(self) -> npt.NDArray[np.float64]:
        """Undiscounted return of each episode, summed in float64 [E]."""
        return np.add.reduceat(np.asarray(self.rewards, np.float64), self.offsets[:-1])

    def target_returns(self, discount: float = 1.0) -> list[float]:
        """Returns worth asking for: what half of the episodes reach, what one in ten reaches, and the best.

        To four digits, without repetitions; asking for more than the best asks beyond the data. ``discount`` is that
        of the Decision Transformer that is asked.
        """
        returns = self.returns if discount == 1.0 else self.return_to_go(discount)[self.offsets[:-1]]
        quantiles = np.quantile(returns, [0.5, 0.9, 1.0])
        return list(dict.fromkeys(float(f"{value:.4g}") for value in quantiles))

    def return_to_go(self, discount: float = 1.0) -> npt.NDArray[np.float32]:
        """Discounted sum of the rewards from each step to the end of its episode, that step included; float32 [N].

        Decision Transformer (arXiv 2106.01345, section 3) uses discount 1. Summed backwards in float64 per episode.
        """
        return _return_to_go(np.asarray(self.rewards, np.float64), self.offsets, discount).astype(np.float32)

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
            given = np.asarray(episodes)
        except ValueError:  # rows of different lengths
            given = np.array(None)
        if given.dtype == bool and given.shape == (len(self),):
            given = np.flatnonzero(given)
        if given.size and given.dtype.kind not in "iu":
            raise DataError(
                f"{self.name}: episodes are selected by whole numbers, or by one boolean for each of the {len(self)}; "
                f"got {shown(episodes)}"
            )
        indices = given.reshape(-1).astype(np.int64)
        if indices.size == 0:
            raise DataError(f"{self.name}: no episode is left after the selection; loosen it")
        if indices.min() < 0 or indices.max() >= len(self):
            raise DataError(f"{self.name}: episodes {indices.min()}..{indices.max()} asked, 0..{len(self) - 1} exist")
        lengths = self.lengths[indices]
        offsets = np.concatenate([[0], np.cumsum(lengths)])
        steps = _ranges(self.offsets[indices], lengths)
        rows = _ranges(self.offsets[indices] + indices, lengths + 1)
        return replace(
            self,
            observations={path: leaf[rows] for path, leaf in self.observations.items()},
            actions={path: leaf[steps] for path, leaf in self.actions.items()},
            rewards=self.rewards[steps],
            terminations=self.terminations[steps],
            truncations=self.truncations[steps],
            offsets=offsets,
            contents_checked=True,
        )

    def top_fraction(self, fraction: float) -> "Trajectories":
        """The best episodes by return that together hold at most ``fraction`` of the steps, in their order.

        At least the best episode; the first one that does not fit ends the choice. The Decision Transformer paper calls
        training on it %BC and takes the best share of timesteps (arXiv 2106.01345, section 5.1), not of episodes: where
        good episodes are long, a tenth of the episodes is most of the data. Ties go to the earlier episode.

        Raises:
            ConfigError: for a fraction outside (0, 1].
        """
        check(fraction, Fraction, "top_fraction")
        best_first = np.argsort(-self.returns, kind="stable")
        steps = np.cumsum(self.lengths[best_first])
        count = max(1, int(np.searchsorted(steps, fraction * self.steps * (1 + 1e-12), side="right")))
        return self.select(np.sort(best_first[:count]))

    def delayed_rewards(self) -> "Trajectories":
        """The same episodes with their whole return paid on the last step (arXiv 2106.01345, section 5.6)."""
        rewards = np.zeros_like(self.rewards)
        rewards[self.offsets[1:] - 1] = self.returns
        return replace(self, rewards=rewards, contents_checked=True)

    def observation_statistics(self) -> tuple[Leaves, Leaves]:
        """Mean and population standard deviation over the N observations that saw an action.

        Of every leaf that ``normalised_leaves`` names.
        """
        means: Leaves = {}
        deviations: Leaves = {}
        for path in normalised_leaves(self.observation_space):
            leaf = self.observations[path]
            mean = self._mean(leaf, 1, np.float64(0.0))
            variance = self._mean(leaf, 2, mean)
            means[path], deviations[path] = mean.astype(np.float32), np.sqrt(variance).astype(np.float32)
        return means, deviations

    def _mean(self, leaf: Array, power: int, centre: Any) -> Array:
        """Mean of (row - centre)**power over the observations that saw an action, in float64."""
        acted = np.ones(len(leaf), bool)
        acted[self.offsets[1:] + np.arange(len(self))] = False
        total = np.zeros(leaf.shape[1:], np.float64)
        for chunk in chunks(leaf):
            values = np.subtract(leaf[chunk][acted[chunk]], centre, dtype=np.float64)
            values **= power
            total += values.sum(axis=0)
            del values  # before the next ones are made
        return np.asarray(total / self.steps)

    def fingerprint(self) -> str:
        """Sixteen hexadecimal digits that two recordings share when all their numbers are equal.

        SHA-256 over names, types, shapes and bytes of the arrays; spaces, names and metadata do not count.
        """
        digest = hashlib.sha256()
        leaves = {f"observations/{path}": leaf for path, leaf in self.observations.items()}
        leaves |= {f"actions/{path}": leaf for path, leaf in self.actions.items()}
        leaves |= {name: getattr(self, name) for name in ("rewards", "terminations", "truncations", "offsets")}
        for name, leaf in sorted(leaves.items()):
            digest.update(f"{name} {leaf.dtype.str} {leaf.shape}".encode())
            for chunk in chunks(leaf):
                digest.update(leaf[chunk].tobytes())
        return digest.hexdigest()[:16]

    def summary(self) -> dict[str, Any]:
        """Description for ``rltransformers inspect``, as JSON values."""
        returns, lengths = self.returns, self.lengths
        ends = self.offsets[1:] - 1
        leaves = [
            *self.observations.values(),
            *self.actions.values(),
            self.rewards,
            self.terminations,
            self.truncations,
        ]
        return {
            "name": self.name,
            "env_id": self.env_id,
            "episodes": len(self),
            "steps": self.steps,
            "length": _spread(lengths),
            "return": _spread(returns),
            "target_returns": self.target_returns(),
            "terminated_episodes": int(self.terminations[ends].sum()),
            "truncated_episodes": int(self.truncations[ends].sum()),
            "final_observations": self.final_observations,
            "observations": {path: str(leaf) for path, leaf in leaf_spaces(self.observation_space).items()},
            "actions": {path: str(leaf) for path, leaf in leaf_spaces(self.action_space).items()},
            "megabytes": round(sum(leaf.nbytes for leaf in leaves) / 1e6, 3),
            "fingerprint": self.fingerprint(),
            "metadata": dict(self.metadata),
            "guesses": dict(self.guesses),
        }

    def save(self, folder: str | os.PathLike[str], *, overwrite: bool = False) -> Path:
        """Writes one .npy per leaf and a JSON description, all or nothing; returns the folder.

        Raises:
            DataError: when ``folder`` exists and ``overwrite`` is False, or holds something else than trajectories.
        """
        target = Path(folder)
        if target.exists() and not overwrite:
            raise DataError(f"{target} exists; pass overwrite=True or another folder")
        if target.exists() and not (target / DESCRIPTION).is_file():
            raise DataError(f"{target} exists and holds no trajectories; it is not overwritten: choose another folder")
        with replacing_folder(target) as temporary:
            for file, array in self._files().items():
                np.save(temporary / file, array, allow_pickle=False)
            self._describe(temporary)
        return target

    def _files(self) -> Leaves:
        arrays = {f"observations.{i}.npy": leaf for i, leaf in enumerate(self.observations.values())}
        arrays |= {f"actions.{i}.npy": leaf for i, leaf in enumerate(self.actions.values())}
        arrays |= {f"{name}.npy": getattr(self, name) for name in ("rewards", "terminations", "truncations", "offsets")}
        return arrays

    def _describe(self, folder: Path) -> None:
        description = {
            "format": FORMAT,
            "version": FORMAT_VERSION,
            "observation_space": space_to_json(self.observation_space),
            "action_space": space_to_json(self.action_space),
            "name": self.name,
            "env_id": self.env_id,
            "env_spec": self.env_spec,
            "final_observations": self.final_observations,
            "metadata": dict(self.metadata),
            "guesses": dict(self.guesses),
            "checksums": {file.name: _checksum(file) for file in sorted(folder.glob("*.npy"))},
        }
        (folder / DESCRIPTION).write_text(json.dumps(description, indent=1))

    @classmethod
    def open(cls, folder: str | os.PathLike[str], *, mmap: bool = True) -> "Trajectories":
        """Read a folder of ``save``, without executing code. All of it is read once and compared with its checksums.

        Changes to memory-mapped arrays stay in memory and never reach the files.

        Args:
            mmap: map the files instead of keeping their content in memory.

        Raises:
            DataError: when a file is missing, damaged, edited, or of another format version.
        """
        path = Path(folder)
        try:
            description = json.loads((path / DESCRIPTION).read_text())
        except (OSError, ValueError, RecursionError) as error:
            raise DataError(
                f"{path} is no readable folder of trajectories ({one_line(error)}); save() writes one"
            ) from error
        if not isinstance(description, dict) or description.get("format") != FORMAT:
            raise DataError(f"{path / DESCRIPTION} does not describe trajectories of this library")
        if description.get("version") != FORMAT_VERSION:
            raise DataError(
                f"{path} has format version {description.get('version')}, this release reads {FORMAT_VERSION}; "
                f"load the source again"
            )
        for key, kind in DESCRIBED.items():
            if key not in description or not isinstance(description[key], kind):
                wrong = f"holds {shown(description[key])} as" if key in description else "lacks"
                raise DataError(f"{path / DESCRIPTION} {wrong} {key!r}: it is damaged; load the source again")

        def read(file: str) -> Array:
            try:  # mapping compares the shape in the header with the size of the file, reading would allocate it
                if _checksum(path / file) != description["checksums"].get(file):
                    raise ValueError("its content is not what was written")
                array: Array = np.load(path / file, mmap_mode="c", allow_pickle=False)
                return array if mmap else np.array(array)
            except Exception as error:  # an edited header makes numpy raise anything
                raise DataError(
                    f"{path / file} is missing or damaged ({one_line(error)}); load the source again"
                ) from error

        observation_space = space_from_json(description["observation_space"])
        action_space = space_from_json(description["action_space"])
        return cls(
            {leaf: read(f"observations.{i}.npy") for i, leaf in enumerate(leaf_spaces(observation_space))},
            {leaf: read(f"actions.{i}.npy") for i, leaf in enumerate(leaf_spaces(action_space))},
            read("rewards.npy"),
            read("terminations.npy"),
            read("truncations.npy"),
            np.array(read("offsets.npy")),
            observation_space,
            action_space,
            description["name"],
            description["env_id"],
            description["env_spec"],
            description["final_observations"],
            description["metadata"],
            guesses=description["guesses"],
        )

    @staticmethod
    def concatenate(parts: "Iterable[Trajectories]", name: str | None = None) -> "Trajectories":
        """The episodes of all parts in memory, one part after the other, e.g. of several files of one task.

        A single part is not copied. The environment, and the one for evaluations, is what all parts name, else unknown.

        Args:
            name: of the result; None joins the names of the parts.

        Raises:
            DataError: for no parts, and for parts of different spaces.
        """
        listed = list(parts)
        if not listed:
            raise DataError("there is nothing to concatenate; pass at least one Trajectories")
        for part in listed:
            if not isinstance(part, Trajectories):
                raise DataError(
                    f"only Trajectories are concatenated, got {shown(part)}; load_trajectories makes them of a source"
                )
        names = list(dict.fromkeys(part.name for part in listed))
        metadata: dict[str, Any] = {"format": "concatenated", "parts": names}
        (evaluated, *others) = (part.metadata.get("eval_env_spec") for part in listed)
        if evaluated is not None and all(each == evaluated for each in others):
            metadata["eval_env_spec"] = evaluated
        joined = join_trajectories(listed, name or " + ".join(names), metadata)
        return joined if len({part.env_id for part in listed}) == 1 else replace(joined, env_id=None, env_spec=None)

    @classmethod
    def from_episodes(
        cls,
        episodes: Iterable[Mapping[str, Any]],
        *,
        observation_space: Space | None = None,
        action_space: Space | None = None,
        name: str = "episodes",
        time_limit: int | None = None,
    ) -> "Trajectories":
        """Trajectories of episode dicts; the keys and the inference of spaces are those of ``load_trajectories``."""
        from rltransformers.data.episodes import trajectories_from_episodes

        return trajectories_from_episodes(
            episodes,
            observation_space=observation_space,
            action_space=action_space,
            name=name,
            time_limit=time_limit,
        )


class TrajectoryWriter:
    """Fills preallocated arrays episode by episode; the number of steps and episodes is known beforehand.

    ``allocate(file name, shape, dtype)`` decides where the arrays live (memory by default).
    """

    def __init__(
        self,
        lengths: Sequence[int] | Array,
        observation_space: Space,
        action_space: Space,
        *,
        name: str,
        allocate: Allocate | None = None,
    ) -> None:
        known = leaf_spaces(observation_space)
        numeric = [path for path, leaf in known.items() if path and isinstance(leaf, SUPPORTED_LEAVES)]
        way_out = f"keep the others with observation_leaves={numeric}" if numeric else "encode it as one of these"
        check_supported(observation_space, f"{name}: observation", way_out)
        check_supported(action_space, f"{name}: action", "encode it as one of these")
        self.name = name
        self.spaces = (observation_space, action_space)
        self.offsets = np.concatenate([[0], np.cumsum(np.asarray(lengths, np.int64))]).astype(np.int64)
        steps, episodes = int(self.offsets[-1]), len(self.offsets) - 1
        place = allocate or (lambda file, shape, dtype: np.empty(shape, dtype))

        def make(file: str, shape: tuple[int, ...], dtype: np.dtype[Any]) -> Array:
            try:
                return place(file, shape, dtype)
            except (MemoryError, ValueError, OverflowError) as error:
                raise DataError(
                    f"{name}: {steps:,} steps do not fit into memory ({error}); pass cache=folder, or check the source"
                ) from error

        def leaves(kind: str, space: Space, rows: int) -> Leaves:
            return {
                path: make(f"{kind}.{i}.npy", (rows, *(leaf.shape or ())), stored_dtype(leaf))
                for i, (path, leaf) in enumerate(leaf_spaces(space).items())
            }

        self.observations = leaves("observations", observation_space, steps + episodes)
        self.actions = leaves("actions", action_space, steps)
        self.rewards = make("rewards.npy", (steps,), np.dtype(np.float32))
        self.terminations = make("terminations.npy", (steps,), np.dtype(bool))
        self.truncations = make("truncations.npy", (steps,), np.dtype(bool))
        self.final_observations = True
        self._next = 0

    def add(
        self,
        observations: Any,
        actions: Any,
        rewards: Any,
        terminations: Any,
        truncations: Any,
        *,
        time_limit: int | None = None,
    ) -> None:
        """Writes the next episode: observations of T + 1 rows, or T when the last one is unknown; the others of T.

        A last step without any flag is marked truncated. With ``time_limit``, an episode of exactly that length that
        claims to have terminated counts as truncated: many exporters do not tell the two apart. A longer one is
        refused.
        """
        e = self._next
        start, end = int(self.offsets[e]), int(self.offsets[e + 1])
        length = end - start
        for path, rows in self._rows("observations", self.spaces[0], observations):
            if len(rows) not in (length, length + 1):
                raise self._error(
                    "observations", path, f"has {len(rows)} rows for {length} rewards; {length} or +1 fit"
                )
            target = self.observations[path]
            target[start + e : start + e + len(rows)] = rows
            if len(rows) == length:
                self.final_observations = False
                target[end + e] = target[end + e - 1]
        for path, rows in self._rows("actions", self.spaces[1], actions):
            if len(rows) != length:
                raise self._error("actions", path, f"has {len(rows)} rows for {length} rewards")
            self.actions[path][start:end] = rows
        for _, rows in self._rows("rewards", REWARD, rewards):
            if len(rows) != length:
                raise self._error("rewards", "", f"has {len(rows)} rows, {length} were announced")
            self.rewards[start:end] = rows
        terminated, truncated = self._flags("terminations", terminations), self._flags("truncations", truncations)
        check_time_limit(np.array([length]), time_limit, self.name, e)
        if length == time_limit:
            terminated[-1], truncated[-1] = False, True
        if not terminated[-1]:
            truncated[-1] = True
        self.terminations[start:end], self.truncations[start:end] = terminated, truncated
        self._next += 1

    def _rows(self, kind: str, space: Space, value: Any) -> Iterator[tuple[str, Array]]:
        """Path and fitted rows of every leaf."""
        try:
            found = leaf_values(space, value)
        except DataError as error:
            raise self._error(kind, "", f"do not fit the space: {error}") from error
        for path, leaf in leaf_spaces(space).items():
            try:
                yield path, fit_leaf(leaf, numbers(found[path]))
            except DataError as error:
                raise self._error(kind, path, str(error)) from error

    def _flags(self, kind: str, value: Any) -> npt.NDArray[np.bool_]:
        """Flags [T] of the next episode; one number speaks for its last step only."""
        length = int(self.offsets[self._next + 1] - self.offsets[self._next])
        try:
            marked = column(flags(value))
        except DataError as error:
            raise self._error(kind, "", str(error)) from error
        if marked.ndim == 0:
            marked = np.append(np.zeros(length - 1, bool), marked)
        if len(marked) != length:
            raise self._error(kind, "", f"has {len(marked)} rows for {length} rewards")
        return marked

    def _error(self, kind: str, path: str, text: str) -> DataError:
        return DataError(f"{self.name}: {leaf_name(kind, path)} of episode {self._next} {text}")

    def finish(self, **facts: Any) -> Trajectories:
        """The checked trajectories; ``facts`` are further fields of ``Trajectories``."""
        assert self._next == len(self.offsets) - 1, "fewer episodes were added than announced"
        return Trajectories(
            self.observations,
            self.actions,
            self.rewards,
            self.terminations,
            self.truncations,
            self.offsets,
            *self.spaces,
            name=self.name,
            **({"final_observations": self.final_observations} | facts),
        )


def join_trajectories(
    parts: Sequence[Trajectories],
    name: str,
    metadata: Mapping[str, Any] | None = None,
    newest: int | None = None,
) -> Trajectories:
    """The episodes of all parts, one part after the other; those of a single part are not copied.

    Args:
        newest: how many episodes stay, the last ones; all by default.

    Raises:
        DataError: when the parts have different spaces.
    """
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

    return Trajectories(
        {path: join(part.observations[path] for part in parts) for path in first.observations},
        {path: join(part.actions[path] for part in parts) for path in first.actions},
        join(part.rewards for part in parts),
        join(part.terminations for part in parts),
        join(part.truncations for part in parts),
        np.concatenate([[0], np.cumsum(join(part.lengths for part in parts))]).astype(np.int64),
        first.observation_space,
        first.action_space,
        name,
        first.env_id,
        first.env_spec,
        all(part.final_observations for part in parts),
        metadata if metadata is not None else first.metadata,
        contents_checked=True,
        guesses=first.guesses,
    )


def _newest(parts: Sequence[Trajectories], count: int) -> list[Trajectories]:
    """The last ``count`` episodes of all parts, as views."""
    kept: list[Trajectories] = []
    for part in reversed(parts):
        if count > 0:
            kept.insert(0, _since(part, max(len(part) - count, 0)))
            count -= len(part)
    return kept


def _since(data: Trajectories, first: int) -> Trajectories:
    """The episodes from the number ``first`` on, as views."""
    start = int(data.offsets[first])
    return replace(
        data,
        observations={path: leaf[start + first :] for path, leaf in data.observations.items()},
        actions={path: leaf[start:] for path, leaf in data.actions.items()},
        rewards=data.rewards[start:],
        terminations=data.terminations[start:],
        truncations=data.truncations[start:],
        offsets=data.offsets[first:] - start,
        contents_checked=True,
    )


def in_spaces(data: Trajectories, observation_space: Space, action_space: Space) -> Trajectories:
    """The same episodes as data of spaces that differ in bounds, in the width of numbers, and in further classes alone.

    Raises:
        DataError: a number is beyond the type that the spaces store.
    """

    def fitted(space: Space, values: Leaves) -> Leaves:
        return {path: fit_leaf(leaf, values[path]) for path, leaf in leaf_spaces(space).items()}

    return replace(
        data,
        observations=fitted(observation_space, data.observations),
        actions=fitted(action_space, data.actions),
        observation_space=observation_space,
        action_space=action_space,
        contents_checked=True,
    )


def fit_leaf(space: Space, rows: Array, first: int = 0) -> Array:
    """Rows [R, ...] in the stored type of the leaf; a surplus axis of size 1 is dropped, no value is changed.

    ``first`` is the number of the first row in messages.

    Raises:
        DataError: when the shape does not match the space, integers are expected and others are given, or a number is
            beyond the stored type.
    """
    shape, dtype = space.shape or (), stored_dtype(space)
    if rows.ndim == len(shape) + 2 and rows.shape[-1] == 1 and rows.shape[1:-1] == shape:
        rows = rows[..., 0]
    if rows.shape[1:] != shape or rows.ndim == 0:
        raise DataError(f"has rows of shape {rows.shape[1:]}, the space {space} asks for {shape}")
    check_numeric(rows.dtype)
    if space is REWARD and rows.dtype.itemsize > 1:
        sizes = np.abs(rows, dtype=np.float64)
        beyond = (sizes > LARGEST_NUMBER) & (sizes <= LARGEST_FLOAT)
        _refuse(rows, beyond, f"is beyond {LARGEST_NUMBER:g}, so float32 tells no others apart; repair it", first)
    if rows.dtype == dtype:
        return rows
    if dtype.kind == "f":
        with np.errstate(over="ignore"):
            fitted = rows.astype(dtype)
        _refuse(rows, np.isinf(fitted) & np.isfinite(rows), f"is beyond the largest {dtype}; scale it down", first)
        return fitted
    if rows.dtype.kind == "f":
        _refuse(rows, rows != np.trunc(rows), f"is not an integer, the space is {space}", first)
    lowest, highest = (0, 1) if dtype.kind == "b" else (np.iinfo(dtype).min, np.iinfo(dtype).max)
    beyond = (rows < lowest) | (rows >= float(highest) + 1 if rows.dtype.kind == "f" else rows > highest)
    _refuse(rows, beyond, f"is outside {lowest}..{highest}, the space is {space}", first)
    return rows.astype(dtype)


def _refuse(rows: Array, wrong: Array, fault: str, first: int) -> None:
    if wrong.any():
        where = tuple(np.argwhere(wrong)[0])
        raise DataError(f"holds the number {rows[where]!s} in row {first + where[0]}, which {fault}")


def column(values: Array) -> Array:
    """[N] of (N,) or (N, 1), a single number as it is.

    Raises:
        DataError: for other shapes.
    """
    if values.ndim == 2 and values.shape[1] == 1:
        return values[:, 0]
    if values.ndim > 1:
        raise DataError(f"has shape {values.shape}, one number per step is needed")
    return values


def jumps(next_observations: Array, following: Array) -> npt.NDArray[np.bool_]:
    """Where next observations [T, ...] are not the observations [T, ...] of the following rows, to 1e-6."""
    difference = np.abs(np.asarray(next_observations, np.float64) - np.asarray(following, np.float64))
    return np.asarray((difference > 1e-6).any(axis=tuple(range(1, difference.ndim))))


def check_time_limit(lengths: Array, time_limit: int | None, name: str, first: int = 0) -> None:
    """Refuses episodes [E] that are longer than the step limit of their environment, of which ``first`` is the number.

    Raises:
        DataError: an episode has more than ``time_limit`` steps.
    """
    if time_limit is not None and (longer := np.flatnonzero(lengths > time_limit)).size:
        e = int(longer[0])
        raise DataError(
            f"{name}: episode {first + e} has {int(lengths[e]):,} steps, more than time_limit={time_limit:,}, the step "
            "limit of the environment; correct the limit, or where resets are not marked, the ends of episodes"
        )


def leaf_name(kind: str, path: str) -> str:
    """How messages call a leaf: observations['camera']."""
    return f"{kind}[{path!r}]" if path else kind


def _checksum(file: Path) -> int:
    """CRC-32 of the content of a file."""
    checksum = 0
    with file.open("rb") as stream:
        while piece := stream.read(2**16):
            checksum = zlib.crc32(piece, checksum)
    return checksum


def _ranges(starts: Array, lengths: Array) -> npt.NDArray[np.int64]:
    """starts[0] .. starts[0] + lengths[0] - 1, then the same for the next, as one array."""
    ends = np.cumsum(lengths)
    return np.arange(ends[-1]) + np.repeat(starts - (ends - lengths), lengths)


def _return_to_go(rewards: Array, offsets: Array, discount: float) -> Array:
    check(discount, UnitInterval, "discount")
    lengths = np.diff(offsets)
    result = np.empty(len(rewards), np.float64)
    if len(lengths) <= lengths.max():  # few long episodes: one filter each
        from scipy.signal import lfilter  # a second to import, which few data sets are worth

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


def _spread(values: Array) -> dict[str, float]:
    quantiles = np.quantile(values, [0.0, 0.1, 0.5, 0.9, 1.0])
    names = ("min", "p10", "median", "p90", "max")
    spread = {name: float(value) for name, value in zip(names, quantiles, strict=True)}
    return {"mean": float(np.mean(values)), "std": float(np.std(values)), **spread}


def _check_layout(data: Trajectories) -> None:
    name, offsets = data.name, data.offsets
    if offsets.ndim != 1 or offsets.dtype.kind not in "iu":
        raise DataError(f"{name}: offsets are {offsets.dtype} {offsets.shape}, expected int64 (episodes + 1,)")
    if len(offsets) < 2:
        raise DataError(f"{name}: holds no episode; nothing can be learned from it")
    lengths = np.diff(offsets.astype(np.int64))
    if lengths.min() <= 0 or offsets[0] != 0:
        raise DataError(f"{name}: episode {int(lengths.argmin())} is empty; drop episodes without steps")
    steps, episodes = int(offsets[-1]), len(offsets) - 1
    for kind, leaves, space, rows in (
        ("observations", data.observations, data.observation_space, steps + episodes),
        ("actions", data.actions, data.action_space, steps),
    ):
        expected = leaf_spaces(space)
        if list(leaves) != list(expected):
            wrong = next(iter(set(leaves) ^ set(expected)), "")
            raise DataError(
                f"{name}: {kind} have leaves {list(leaves)}, the space {list(expected)}; "
                f"{did_you_mean(wrong, expected)}"
            )
        for path, leaf in expected.items():
            want, dtype = (rows, *(leaf.shape or ())), stored_dtype(leaf)
            if leaves[path].shape != want or leaves[path].dtype != dtype:
                raise DataError(
                    f"{name}: {leaf_name(kind, path)} is {leaves[path].dtype} {leaves[path].shape}; {steps} steps of "
                    f"{episodes} episodes in {leaf} need {dtype} {want}"
                )
    for kind, dtype in (
        ("rewards", np.dtype(np.float32)),
        ("terminations", np.dtype(bool)),
        ("truncations", np.dtype(bool)),
    ):
        array = getattr(data, kind)
        if array.shape != (steps,) or array.dtype != dtype:
            raise DataError(f"{name}: {kind} are {array.dtype} {array.shape}, expected {dtype} ({steps},)")


def _check_contents(data: Trajectories) -> None:
    bounds = data.offsets
    for path, leaf in leaf_spaces(data.observation_space).items():
        _check_leaf(data, "observations", path, leaf, data.observations[path], bounds + np.arange(len(bounds)))
    check_actions(data, data.action_space)
    _check_leaf(data, "rewards", "", REWARD, data.rewards, bounds)
    ended = data.terminations | data.truncations
    last = np.zeros(data.steps, bool)
    last[bounds[1:] - 1] = True
    wrong = np.flatnonzero(ended != last)
    if wrong.size:
        episode, step = _locate(int(wrong[0]), bounds)
        length = int(bounds[episode + 1] - bounds[episode])
        raise DataError(
            f"{data.name}: episode {episode} is terminated or truncated at step {step} but has {length} steps; "
            f"end episodes where their flags are set"
        )


def check_actions(data: Trajectories, space: Space) -> None:
    """Raise unless all actions lie in the space, up to the rounding of floats (see ``members``).

    Raises:
        DataError: names episode, step, value, bound and the way out.
    """
    for path, leaf in leaf_spaces(space).items():
        _check_leaf(data, "actions", path, leaf, data.actions[path], data.offsets)


def _check_leaf(data: Trajectories, kind: str, path: str, space: Space, rows: Array, bounds: Array) -> None:
    for chunk in chunks(rows):
        part = np.asarray(rows[chunk])
        if kind != "actions" and all_members(space, part):
            continue
        good = members(space, part, bounded=kind == "actions")
        if good.all():
            continue
        row = int(np.argmin(good))
        episode, step = _locate(chunk.start + row, bounds)
        value = np.array2string(part[row], threshold=8)
        raise DataError(
            f"{data.name}: {leaf_name(kind, path)} of episode {episode}, step {step} is {value}, "
            f"{_fault(space, part[row])}"
        )


def _fault(space: Space, row: Array) -> str:
    """Message about a row that is no member, with the way out."""
    if row.dtype.kind == "f" and not np.isfinite(row).all():
        return "NaN or infinity; drop that episode or repair the recording"
    if not isinstance(space, spaces.Box):
        return f"outside {space}; pass the space that the data come from"
    low, high = action_bounds(space)
    at = tuple(np.argwhere((row < low) | (row > high))[0])
    entry = f" at entry {[int(index) for index in at]}" if at else ""
    return (
        f"outside the bounds {space.low[at]}..{space.high[at]}{entry}; pass the action_space that the data come from, "
        f"or clip the actions as the environment did"
    )


def _locate(row: int, bounds: Array) -> tuple[int, int]:
    episode = int(np.searchsorted(bounds, row, side="right")) - 1
    return episode, row - int(bounds[episode])
