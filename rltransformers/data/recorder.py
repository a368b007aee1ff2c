"""Records behaviors in B environments as trajectories: arrays that double when full, one copy per leaf and step."""

import inspect
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

import gymnasium as gym
import numpy as np
from gymnasium import spaces
from gymnasium.envs.registration import EnvSpec
from gymnasium.vector import VectorEnv
from stable_baselines3.common.base_class import BaseAlgorithm
from stable_baselines3.common.policies import BasePolicy
from stable_baselines3.common.vec_env import VecEnv, VecNormalize, is_vecenv_wrapped

from rltransformers.core.device import check_bytes
from rltransformers.core.episodes import endless_episode, longest_allowed
from rltransformers.core.errors import ConfigError, DataError, did_you_mean
from rltransformers.core.guard import guarding, warn_of_statistics
from rltransformers.core.ranges import Episodes, Steps, WholeNumber, check, shown, suggesting
from rltransformers.core.seeding import numpy_stream, seed_environments
from rltransformers.core.spaces import (
    Space,
    check_supported,
    differing_spaces,
    leaf_spaces,
    leaf_values,
    nest_leaves,
    space_from_leaves,
    space_outline,
    split_members,
    stored_dtype,
)
from rltransformers.core.values import Array, Bools, members, named, numbers, success_of
from rltransformers.data.behaviors import Behavior, Mixture, as_behavior, decides_by_itself
from rltransformers.data.environments import VectorMode, VectorSource, spec_json, vector_source
from rltransformers.data.rollout import bytes_of
from rltransformers.data.trajectories import Leaves, Trajectories, join_trajectories
from rltransformers.data.writer import mark_ends
from rltransformers.envs.play import steps as play

ObservationPart = Sequence[int] | Mapping[str, Sequence[int] | None]

FIRST_BYTES = 64 * 2**20
"""Of the arrays that a recording begins with; they double when they are full."""
LONGEST_FINISH = 10_000
"""Steps per environment for which an episode that runs when enough was recorded is carried on to its end."""


@dataclass(frozen=True)
class ObservationView:
    """The recorded part of an observation: ``function`` maps a batch to the batch of the given space."""

    function: Callable[[Any], Any]
    observation_space: Space


@suggesting
def record(
    env: str | EnvSpec | VectorEnv[Any, Any, Any] | VecEnv | gym.Env[Any, Any] | Callable[..., gym.Env[Any, Any]],
    behavior: Behavior | Mixture | BaseAlgorithm | BasePolicy | str | Callable[..., Any],
    steps: int | None = None,
    *,
    episodes: int | None = None,
    num_envs: int = 1,
    seed: int | None = 0,
    env_kwargs: Mapping[str, Any] | None = None,
    vectorization_mode: VectorMode | None = None,
    recorded: ObservationPart | ObservationView | None = None,
    deterministic: bool = False,
    name: str | None = None,
    progress: Callable[[int], None] | None = None,
    longest_episode: int | None = None,
) -> Trajectories:
    """Whole episodes of ``behavior`` in ``env``.

    Every episode that starts is recorded to its end, so that no length is favored: with ``steps`` the result holds
    that many steps and the rest of the episodes that run then (what has not ended after 10,000 more steps is kept as
    truncated); with ``episodes`` exactly that many, spread evenly over the environments. A mixture gives each part
    its share of either. The same seed gives the same data. ``metadata["behaviors"]`` says of each part how many of its
    episodes succeeded ("successes"), where the environment tells it of all of them.

    Args:
        env: a Gymnasium id or specification, a function that makes an environment, one environment, or a vector
            environment of Gymnasium or Stable-Baselines3. Those given as objects stay open.
        behavior: a behavior, a text for ``load_behavior``, a function with the arguments of ``Behavior.act``, an
            agent of this library, a model or a policy of Stable-Baselines3, or a ``mixture`` of these. It sees whole
            observations.
        num_envs: copies made of an id or a function.
        vectorization_mode: for ids, as in ``gymnasium.make_vec``.
        recorded: the part of the observation to record: different indices into a vector observation, {leaf: indices or
            None for the whole leaf} (other leaves are left out), or an ``ObservationView``.
        deterministic: take the mode of agents, models and policies, not a sample.
        name: of the result; the environment's id by default.
        progress: called with the number of steps so far.
        longest_episode: steps after which an episode that goes on is an error. None: with ``episodes`` 200,000, or the
            step limit of the environment's spec where that is larger; with ``steps`` no bound, for they end anyway.

    Raises:
        ConfigError: neither or both of steps and episodes, an argument of another type or range, an unsupported space,
            a policy of other spaces, keywords that the environment does not take, or more than fits into memory.
        DataError: when the environment raises an exception (chained) or returns what its spaces do not hold, NaN or
            infinity, as soon as it does, with environment and step; an episode that does not end.
    """
    if (steps is None) == (episodes is None):
        raise ConfigError(f"give steps or episodes, and not both: got steps={steps}, episodes={episodes}")
    steps, episodes = check(steps, Steps | None, "steps"), check(episodes, Episodes | None, "episodes")
    seed = check(seed, WholeNumber | None, "seed")
    deterministic = check(deterministic, bool, "deterministic")
    check(name, str | None, "name")
    check(progress, Callable[..., Any] | None, "progress")
    check(env_kwargs, Mapping[str, Any] | None, "env_kwargs")
    part = recorded if recorded is None or isinstance(recorded, ObservationView) else _part_of(recorded)
    environments, owned = vector_source(env, num_envs, dict(env_kwargs or {}), vectorization_mode)
    warn_of_statistics(environments.source)
    try:
        with guarding(environments.env) as environments.env:
            mixture = behavior if isinstance(behavior, Mixture) else Mixture(((1.0, behavior),))
            if deterministic and all(decides_by_itself(one) for _, one in mixture.parts):
                raise ConfigError(
                    "deterministic=True is for agents, models and policies; random actions have no mode, and other "
                    "behaviors decide by themselves; leave it out"
                )
            count, what = (steps, "steps") if steps is not None else (episodes or 0, "episodes")
            shares = mixture.shares(count)
            view = _view(part, environments.observation_space)
            # As recorded and as episodes, which have a step or more.
            room = 2 * count * bytes_of(_layout(view.observation_space, environments.action_space))
            way_out = "record fewer at a time and save each part, or less of the observation with recorded="
            check_bytes(room, f"to record {count:,} {what} needs at least", way_out)
            longest = None
            if episodes is not None or longest_episode is not None:
                longest = longest_allowed(longest_episode, environments.single_spec)
            reset_seeds, action_noise = numpy_stream(seed, "environment"), numpy_stream(seed, "action")
            spec = environments.single_spec
            env_id, env_spec = spec.id if spec else None, spec_json(environments)
            results: list[Trajectories] = []
            described: list[dict[str, Any]] = []
            for (weight, behaved), share in zip(mixture.parts, shares, strict=True):
                actor = as_behavior(
                    behaved, environments.observation_space, environments.action_space, deterministic=deterministic
                )
                _check_fits(actor, environments)
                recording = _Recording(environments, actor, view)
                seeds = reset_seeds.integers(2**31, size=environments.env.num_envs).tolist()
                done_before = sum(result.steps for result in results)
                recording.run(steps and share, episodes and share, seeds, action_noise, longest, progress, done_before)
                result = recording.trajectories(name or env_id or "recording", env_id, env_spec)
                facts = {"name": _label(actor), "weight": weight, "steps": result.steps, "episodes": len(result)}
                successes = [each for each in recording.successes if each is not None]
                if len(successes) == len(result):
                    facts["successes"] = sum(successes)
                described.append(facts)
                results.append(result)
    finally:
        if owned:
            environments.source.close()
    metadata: dict[str, Any] = {"format": "recorded", "behaviors": described, "seed": seed}
    if isinstance(part, dict):
        metadata["recorded"] = part
    return join_trajectories(results, results[0].name, metadata)


RESET, STEP, LAST = 0, 1, 2
"""Kinds of rows: a reset, a step with its observation, and the observation behind the last step of an episode."""
Layout = Mapping[str, tuple[tuple[int, ...], np.dtype[Any]]]


def _layout(observation_space: Space, action_space: Space) -> Layout:
    """Shape and type of what is kept of one step, by name."""
    layout: dict[str, tuple[tuple[int, ...], np.dtype[Any]]] = {
        "rewards": ((), np.dtype(np.float32)),
        "terminations": ((), np.dtype(bool)),
        "truncations": ((), np.dtype(bool)),
        "kinds": ((), np.dtype(np.int8)),
        "environments": ((), np.dtype(np.int32)),
    }
    for kind, space in (("observations", observation_space), ("actions", action_space)):
        leaves = leaf_spaces(space).items()
        layout |= {f"{kind} {path}": (leaf.shape or (), stored_dtype(leaf)) for path, leaf in leaves}
    return layout


class _Recording:
    """Rows of environments that go on, in arrays that double when they are full, cut into episodes at the end."""

    def __init__(self, environments: VectorSource, behavior: Behavior, view: ObservationView) -> None:
        self.environments, self.behavior, self.view = environments, behavior, view
        self.layout = _layout(view.observation_space, environments.action_space)
        self.numbers = np.arange(environments.env.num_envs)
        self.capacity = self.rows = 0
        self.arrays: Leaves = {}
        self.successes: list[bool | None] = []

    def run(
        self,
        steps: int | None,
        episodes: int | None,
        seeds: list[int],
        generator: np.random.Generator,
        longest: int | None,
        progress: Callable[[int], None] | None,
        done_before: int,
    ) -> None:
        """Fill the arrays until ``steps`` are counted and the running episodes ended, or with so many ``episodes``."""
        env, batch = self.environments.env, len(self.numbers)
        reads_rewards = "rewards" in inspect.signature(self.behavior.act).parameters
        live, quota = np.ones(batch, bool), None
        if episodes is not None:  # per environment, fixed beforehand: taking the first to finish would favor short ones
            quota = episodes // batch + (self.numbers < episodes % batch)
            live = quota > 0
        finished, age = np.zeros(batch, np.int64), np.zeros(batch, np.int64)
        nothing, count, finishing = np.zeros(batch, bool), 0, 0
        self._reserve(min((steps or 1024 * batch) + 64 * batch, FIRST_BYTES // bytes_of(self.layout)))

        def act(observation: Any, first: Bools, rewards: Array) -> Any:
            observations = self.environments.nested(observation)
            extra = {"rewards": rewards} if reads_rewards else {}
            actions = self._checked_actions(self.behavior.act(observations, first, generator, **extra))
            row = {"environments": self.numbers} | self._seen(observations)
            self._write(live, row | {f"actions {path}": leaf for path, leaf in actions.items()})
            return split_members(self.environments.action_space, actions)

        seed_environments(env, seeds)
        for step in play(env, act):
            counted = live & ~step.resets
            ended = step.ended & counted
            some_ended, cut = ended.any(), nothing
            if some_ended:
                cut = np.array([bool(info.get("TimeLimit.truncated", False)) for info in step.infos]) & ended
            kinds = np.where(counted, STEP, RESET)
            outcome = {"rewards": step.rewards, "terminations": ended & ~cut, "truncations": cut, "kinds": kinds}
            self.rows = self._write(live, outcome)
            if some_ended:
                self._write_last(ended, self._seen(self.environments.last(step.infos, ended)))
                self.successes += [success_of(step.infos[row], row) for row in np.flatnonzero(ended).tolist()]
            count += int(counted.sum())
            finished += ended
            age = np.where(ended, 0, age + counted)
            if longest is not None and (age >= longest).any():
                spec = self.environments.single_spec
                raise endless_episode(spec.id if spec else None, int(age.argmax()), longest)
            if quota is not None:
                live = finished < quota
            elif count >= (steps or 0):
                live = counted & ~ended
                finishing += 1
            if progress is not None:
                progress(done_before + count)
            if not live.any() or finishing > LONGEST_FINISH:
                break
        if live.any():
            seen = self._seen(self.environments.nested(step.observation))
            self._write_last(live, {name: leaf[live] for name, leaf in seen.items()})

    def _reserve(self, capacity: int) -> None:
        for key, (shape, dtype) in self.layout.items():
            try:
                grown = np.empty((capacity, *shape), dtype)
            except MemoryError as error:
                raise ConfigError(
                    f"more than {self.rows:,} steps do not fit into memory ({error}); record fewer at a time and save "
                    "each part, or less of the observation with recorded="
                ) from error
            if self.rows:
                grown[: self.rows] = self.arrays[key][: self.rows]
            self.arrays[key] = grown
        self.capacity = capacity

    def _seen(self, observations: Any) -> Leaves:
        leaves = leaf_values(self.view.observation_space, self.view.function(observations))
        return {f"observations {path}": np.asarray(leaf) for path, leaf in leaves.items()}

    def _checked_actions(self, actions: Any) -> dict[str, Array]:
        """Actions of the behavior by leaf path, each a member of its space."""
        taken, name = {}, _label(self.behavior)
        values = leaf_values(self.environments.action_space, actions)
        for path, leaf in leaf_spaces(self.environments.action_space).items():
            try:
                rows = taken[path] = numbers(values[path])
            except DataError as error:
                raise DataError(f"the {named('action', path)} of the behavior {name} {error}") from error
            if np.shape(rows) != (len(self.numbers), *(leaf.shape or ())):
                raise ConfigError(
                    f"the behavior {name} returned actions of shape {np.shape(rows)} for {len(self.numbers)} "
                    f"environments with action space {leaf}"
                )
            good = members(leaf, rows, bounded=True)
            if not good.all():
                worst = int(np.argmin(good))
                raise DataError(
                    f"the behavior {name} returned the action {rows[worst]} for environment {worst}, outside {leaf}; "
                    "clip it, or wrap the environment in what does"
                )
            if rows.dtype.kind == "f" and not isinstance(leaf, spaces.Box):
                raise DataError(
                    f"the behavior {name} returned numbers of {rows.dtype} for {leaf}; return whole numbers, as "
                    "actions.astype(int)"
                )
        return taken

    def _write(self, envs: Bools, values: Mapping[str, Array]) -> int:
        """Write values [B, ...] of these environments into the next rows; return where the rows end."""
        count = int(np.count_nonzero(envs))
        end = self.rows + count
        if end > self.capacity:
            self._reserve(max(2 * self.capacity, end))
        which = slice(None) if count == len(envs) else envs  # a view where it is all
        for name, value in values.items():
            self.arrays[name][self.rows : end] = value[which]
        return end

    def _write_last(self, envs: Bools, seen: Leaves) -> None:
        """Write the observations of these environments, and of no other, that follow their newest actions."""
        numbers = self.numbers[envs]
        row = {"environments": numbers, "kinds": np.full(len(numbers), LAST)}
        self.rows = self._write(np.ones(len(numbers), bool), row | seen)

    def trajectories(self, name: str, env_id: str | None, env_spec: str | None) -> Trajectories:
        """The episodes, environment by environment."""
        rows = np.flatnonzero(self.arrays["kinds"][: self.rows] != RESET)
        rows = rows[np.argsort(self.arrays["environments"][rows], kind="stable")]
        kinds = self.arrays["kinds"][rows]
        steps = rows[kinds == STEP]
        offsets = np.concatenate([[0], np.cumsum(kinds == STEP)[kinds == LAST]]).astype(np.int64)
        terminated, truncated = self.arrays["terminations"][steps], self.arrays["truncations"][steps]
        mark_ends(terminated, truncated, offsets, None)  # those that still ran are truncated
        observation_space, action_space = self.view.observation_space, self.environments.action_space
        return Trajectories(
            {path: self.arrays[f"observations {path}"][rows] for path in leaf_spaces(observation_space)},
            {path: self.arrays[f"actions {path}"][steps] for path in leaf_spaces(action_space)},
            self.arrays["rewards"][steps],
            terminated,
            truncated,
            offsets,
            observation_space,
            action_space,
            name,
            env_id,
            env_spec,
        )


def _check_fits(behavior: Behavior, environments: VectorSource) -> None:
    """Raise ConfigError for a policy of other spaces, and where it and the environment would both normalize."""
    own: Any = getattr(behavior, "observation_space", None), getattr(behavior, "action_space", None)
    if all(isinstance(space, gym.Space) for space in own):  # as actors of this library have them
        for role, ours, theirs in differing_spaces(own, (environments.observation_space, environments.action_space)):
            raise ConfigError(
                f"the {role} space of the behavior {_label(behavior)} ({space_outline(ours)}) is not that of the "
                f"environment ({space_outline(theirs)}); give it the environment that it was trained in, with its "
                "wrappers"
            )
    if is_vecenv_wrapped(environments.env, VecNormalize) and getattr(behavior, "normalizes", False):
        raise ConfigError(
            f"the behavior {_label(behavior)} normalizes observations by itself, and so does this environment, whose "
            "recording would be normalized too; give the environment without VecNormalize, as env.venv or an id"
        )


def _label(behavior: Behavior) -> str:
    return str(getattr(behavior, "name", type(behavior).__name__))


# What is recorded of an observation ------------------------------------------------------------


def _part_of(recorded: ObservationPart) -> dict[str, list[int] | None]:
    """What to record as indices by leaf, None for a whole leaf."""
    by_leaf = recorded if isinstance(recorded, Mapping) else {"": recorded}
    if not by_leaf:
        raise ConfigError("recorded names no leaf, so nothing would be recorded; leave it out to record everything")
    part: dict[str, list[int] | None] = {}
    for path, values in by_leaf.items():
        try:
            array = np.asarray(values)
        except ValueError:  # rows of different lengths
            array = np.array(None)
        if values is not None and (array.ndim != 1 or (array.size and array.dtype.kind not in "iu")):
            where = f" of {path!r}" if path else ""
            raise ConfigError(
                f"recorded{where} must be a list of indices, which are whole numbers; got {shown(values)}"
            )
        part[path] = None if values is None else array.tolist()
    return part


def _view(part: dict[str, list[int] | None] | ObservationView | None, space: Space) -> ObservationView:
    if isinstance(part, ObservationView):
        check_supported(part.observation_space, "recorded observation")
        return part
    if part is None:
        check_supported(space, "observation")
        return ObservationView(lambda observations: observations, space)
    leaves = leaf_spaces(space)
    for path in part:
        if path not in leaves:
            raise ConfigError(f"recorded names the leaf {path!r}; {did_you_mean(path, leaves)}")
    parts_by_path = {path: _space_of_part(path, leaf, part[path]) for path, leaf in leaves.items() if path in part}
    recorded_space = space_from_leaves(parts_by_path)
    check_supported(recorded_space, "recorded observation")

    def function(observations: Any) -> Any:
        values = leaf_values(space, observations)
        parts = {path: values[path] if part[path] is None else values[path][:, part[path]] for path in parts_by_path}
        return nest_leaves(recorded_space, parts)

    return ObservationView(function, recorded_space)


def _space_of_part(path: str, leaf: Space, indices: list[int] | None) -> Space:
    if indices is None:
        return leaf
    size = leaf.shape[0] if leaf.shape is not None and len(leaf.shape) == 1 else 0
    if not indices or not all(0 <= index < size for index in indices):
        raise ConfigError(f"recorded keeps the indices {indices} of {path!r}, a {leaf}; give some of 0..{size - 1}")
    if len(set(indices)) < len(indices):
        raise ConfigError(f"recorded must name every entry{f' of {path!r}' if path else ''} once, got {indices}")
    if isinstance(leaf, spaces.Box):
        return spaces.Box(leaf.low[indices], leaf.high[indices], dtype=leaf.dtype.type)
    if isinstance(leaf, spaces.MultiDiscrete):
        return spaces.MultiDiscrete(leaf.nvec[indices], start=leaf.start[indices], dtype=leaf.dtype.type)
    return spaces.MultiBinary(len(indices))
