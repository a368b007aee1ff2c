"""Episodes that a Decision Transformer plays: seeded one by one, several at a time, every started one counted.

N environments, R of them running an episode that counts.
"""

import math
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, replace
from functools import partial
from typing import Any

import gymnasium as gym
import numpy as np
import torch
from gymnasium.spaces import Box
from gymnasium.vector import AutoresetMode, VectorEnv
from tqdm.auto import tqdm

from rltransformers.core.action_masks import ACTION_MASK, first_allowed
from rltransformers.core.episodes import LONGEST_EPISODE, endless_episode, success_of
from rltransformers.core.errors import ConfigError
from rltransformers.core.guard import attempt, check_observations, check_outcome, checked_copies, warn_of_statistics
from rltransformers.core.seeding import episode_noise
from rltransformers.core.spaces import differing_spaces, leaf_spaces, leaf_values, nest_leaves, space_outline
from rltransformers.policies.decision import ActingState, Decider, DecisionPolicy
from rltransformers.training.evaluation import EvaluationResult

Leaves = dict[str, np.ndarray]
Act = Callable[
    [Leaves, ActingState, np.ndarray, np.ndarray, list[float], np.ndarray | None], tuple[Leaves, ActingState]
]
"""Observations [R, ...], state, episode starts [R], rewards [R], target returns (R, NaN for none) and random numbers
[R, draws] or None to the actions [R, ...] and the next state."""


@dataclass
class Episode:
    """One episode to play: the return asked for (None: none), its seed, and what came of it.

    ``discount`` and ``delayed`` (the whole return is paid in the last step) say how the target counts rewards.
    """

    target: float | None
    seed: int
    discount: float = 1.0
    delayed: bool = False
    total: float = 0.0
    discounted: float = 0.0
    length: int = 0
    success: bool | None = None

    def __post_init__(self) -> None:
        self.noise = episode_noise(self.seed)

    @property
    def obtained(self) -> float:
        """The return as the target counts it."""
        return self.total * self.discount ** (self.length - 1) if self.delayed else self.discounted

    def add(self, row: int, reward: float, ended: bool, infos: Mapping[str, Any]) -> None:
        """Count one step."""
        self.total += reward
        self.discounted += self.discount**self.length * reward
        self.length += 1
        if ended:
            present = {
                key: infos[key] if isinstance(infos[key], Mapping) else infos[key][row]
                for key in ("is_success", "success")
                if key in infos and np.all(infos.get(f"_{key}", np.ones(row + 1, bool))[row])
            }
            self.success = success_of(present, row)


def play(
    envs: VectorEnv[Any, Any, Any],
    episodes: Sequence[Episode],
    act: Act,
    decider: Decider,
    draws: int | None = None,
    longest: int = LONGEST_EPISODE,
    name: str | None = None,
    progress: bool = False,
) -> None:
    """Play all episodes to their end; an environment that ends one starts the next, until none is left.

    Args:
        envs: of ``make_vector_env`` or ``check_vector_env``.
        decider: that ``act`` decides by.
        draws: random numbers per action; None for deterministic actions.
        longest: steps after which an episode that goes on is an error.
        name: of the environment, for messages.
        progress: show a bar of the episodes.

    Raises:
        DataError: for an observation or a reward that the space or the network cannot hold, and for an exception of the
            environment (chained), with environment and step; for an episode that goes on after ``longest`` steps.
    """
    warn_of_statistics(envs)
    bar = tqdm(total=len(episodes), desc="evaluating", unit="episode", disable=not progress, leave=False)
    with checked_copies(envs), bar:
        _play(envs, episodes, act, decider, draws, longest, name, bar)


def _play(
    envs: VectorEnv[Any, Any, Any],
    episodes: Sequence[Episode],
    act: Act,
    decider: Decider,
    draws: int | None,
    longest: int,
    name: str | None,
    bar: Any,
) -> None:
    count, waiting = envs.num_envs, list(episodes)[::-1]
    playing: list[Episode | None] = [waiting.pop() if waiting else None for _ in range(count)]
    steps = 0
    observation = _reset(envs, [None if episode is None else episode.seed for episode in playing], "in step 0")
    rows = np.array([row for row, episode in enumerate(playing) if episode is not None])
    state, start = decider.initial_state(len(rows)), np.ones(len(rows), bool)
    reward = np.zeros(len(rows))
    actions = {
        path: np.broadcast_to(value, (count, *np.shape(value))).copy()
        for path, value in leaf_values(envs.single_action_space, envs.single_action_space.sample()).items()
    }
    while len(rows):
        running = [episode for episode in playing if episode is not None]
        leaves = _running_leaves(envs, observation, rows, running)
        noise = None if draws is None else np.stack([episode.noise.random(draws) for episode in running])
        targets = [math.nan if episode.target is None else episode.target for episode in running]
        chosen, state = act(leaves, state, start, reward, targets, noise)
        chosen, state = executed(decider.policy, chosen, state, envs.single_action_space)
        for path, value in chosen.items():
            actions[path][rows] = value
        if decider.policy.masks and len(rows) < count:
            _idle(envs, observation, np.setdiff1d(np.arange(count), rows), actions)
        steps += 1
        when = partial("in step {} of this evaluation".format, steps)
        # Copies: an environment may keep its action, a view of them, for its next step.
        taken = nest_leaves(envs.single_action_space, {path: value.copy() for path, value in actions.items()})
        observation, rewards, terminated, truncated, infos = attempt(envs, when, envs.step, taken)
        check_outcome(count, rewards, {"terminated": terminated, "truncated": truncated}, when)
        ended = np.logical_or(terminated, truncated)
        for row, episode in zip(rows, running, strict=True):
            episode.add(int(row), float(rewards[row]), bool(ended[row]), infos)
            if episode.length >= longest and not ended[row]:
                raise endless_episode(name, int(row), longest)
        bar.update(int(ended[rows].sum()))
        if ended.any():
            observation = _restart(envs, ended, playing, waiting, when())
        goes_on = np.array([playing[row] is not None for row in rows])
        start, reward = ended[rows][goes_on], np.asarray(rewards)[rows][goes_on]
        rows = rows[goes_on]
        if not goes_on.all():
            state = state[torch.as_tensor(np.flatnonzero(goes_on))]


def executed(
    policy: DecisionPolicy, actions: Leaves, state: ActingState, action_space: gym.Space[Any]
) -> tuple[Leaves, ActingState]:
    """Actions clipped to the Boxes of an environment, and the state after them, which remembers them clipped.

    The bounds of data that were guessed may be wider than those of the environment.
    """
    clipped, moved = dict(actions), np.zeros(state.batch_size, bool)
    for path, box in leaf_spaces(action_space).items():
        if isinstance(box, Box):
            clipped[path] = np.clip(actions[path], box.low, box.high).astype(box.dtype)
            # In the type of the policy: what only the environment's type can tell apart was remembered already.
            differs = clipped[path].astype(actions[path].dtype) != actions[path]
            moved |= differs.reshape(len(moved), -1).any(axis=1)
    if not moved.any():
        return clipped, state
    with torch.inference_mode():
        rows = torch.as_tensor(moved, device=state.action.device)[:, None]
        return clipped, replace(state, action=torch.where(rows, action_token(policy, clipped), state.action))


@torch.inference_mode()
def action_token(policy: DecisionPolicy, actions: Leaves) -> torch.Tensor:
    """What a policy remembers of actions: their token [N, width]."""
    device = policy.head.linear.weight.device
    return policy.embed_action({path: torch.as_tensor(value, device=device) for path, value in actions.items()})


def result_of(episodes: Sequence[Episode], env_id: str | None, step: int) -> EvaluationResult:
    """The result of episodes that were played with one target return, by the weights of training step ``step``."""
    discount = episodes[0].discount
    successes = tuple(episode.success for episode in episodes if episode.success is not None)
    return EvaluationResult(
        env_id=env_id,
        returns=tuple(episode.total for episode in episodes),
        lengths=tuple(episode.length for episode in episodes),
        seeds=tuple(episode.seed for episode in episodes),
        successes=successes if len(successes) == len(episodes) else None,
        target_return=episodes[0].target,
        discounted_returns=None if discount == 1.0 else tuple(episode.obtained for episode in episodes),
        step=step,
    )


def check_vector_env(
    envs: VectorEnv[Any, Any, Any], env_kwargs: Mapping[str, Any] | None, wrappers: Sequence[Any]
) -> VectorEnv[Any, Any, Any]:
    """The vector environment of a caller.

    Raises:
        ConfigError: when it restarts episodes by itself, or keywords and wrappers come with it.
    """
    if env_kwargs or wrappers:
        raise ConfigError("env_kwargs and wrappers belong to an environment id; a vector environment brings its own")
    mode = envs.metadata.get("autoreset_mode")
    if mode is not AutoresetMode.DISABLED:
        raise ConfigError(
            f"evaluate seeds every episode, so it needs a vector environment with AutoresetMode.DISABLED, got {mode};"
            " make it with autoreset_mode=AutoresetMode.DISABLED, or pass the environment id"
        )
    return envs


def check_spaces(
    envs: VectorEnv[Any, Any, Any], observation_space: gym.Space[Any], action_space: gym.Space[Any]
) -> None:
    """Raise unless the environments have the spaces of the data.

    Raises:
        ConfigError: with both.
    """
    for role, ours, theirs in differing_spaces(
        (observation_space, action_space), (envs.single_observation_space, envs.single_action_space)
    ):
        raise ConfigError(
            f"the {role} space of the environment ({space_outline(theirs)}) is not that of the dataset"
            f" ({space_outline(ours)}); apply the wrappers that were applied when the data were recorded, or, where the"
            f" spaces of the data were guessed, give {role}_space to load_trajectories (dataset.{role}_space in a"
            " config) and train again"
        )


def _idle(envs: VectorEnv[Any, Any, Any], observation: Any, rows: np.ndarray, actions: Leaves) -> None:
    """Let the actions of environments that only wait be allowed ones: some raise exceptions for others."""
    masks = leaf_values(envs.single_observation_space, observation)[ACTION_MASK]
    for path, value in first_allowed(np.asarray(masks)[rows], envs.single_action_space).items():
        actions[path][rows] = value


def _restart(
    envs: VectorEnv[Any, Any, Any], ended: np.ndarray, playing: list[Episode | None], waiting: list[Episode], when: str
) -> Any:
    """Seeded episodes where one ended; without one left an environment idles through episodes nobody counts."""
    seeds: list[int | None] = [None] * envs.num_envs
    for row in np.flatnonzero(ended):
        playing[row] = waiting.pop() if playing[row] is not None and waiting else None
        episode = playing[row]
        seeds[row] = None if episode is None else episode.seed
    return _reset(envs, seeds, when, options={"reset_mask": ended})


def _running_leaves(
    envs: VectorEnv[Any, Any, Any], observation: Any, rows: np.ndarray, running: Sequence[Episode]
) -> Leaves:
    space = envs.single_observation_space
    leaves = {path: np.asarray(value)[rows] for path, value in leaf_values(space, observation).items()}
    check_observations(leaf_spaces(space), leaves, place=lambda row: f"{rows[row]} at step {running[row].length}")
    return leaves


def _reset(
    envs: VectorEnv[Any, Any, Any], seeds: list[int | None], when: str, options: dict[str, Any] | None = None
) -> Any:
    """The observations after a reset with one seed per environment (the signature of the base class knows only one)."""
    return attempt(envs, lambda: when, envs.reset, seed=seeds, options=options)[0]
