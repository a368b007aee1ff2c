"""How a Decision Transformer plays episodes to learn from (Zheng et al. 2022, arXiv 2202.05607). N environments."""

import warnings
from collections.abc import Mapping
from dataclasses import dataclass, replace
from typing import Any

import gymnasium as gym
import numpy as np
import torch
from gymnasium.envs.registration import EnvSpec
from gymnasium.vector import VectorEnv

from rltransformers.core.errors import ConfigError
from rltransformers.core.ranges import WholeNumber, check_fields
from rltransformers.core.seeding import step_seed
from rltransformers.core.spaces import leaf_values, nest_leaves
from rltransformers.data import Trajectories
from rltransformers.data.adapt import in_spaces
from rltransformers.data.recorder import record
from rltransformers.policies.action_heads import ActionHead
from rltransformers.policies.action_leaves import ContinuousAction, NormalAction
from rltransformers.policies.decision import ActingState, Decider
from rltransformers.training.decision_data import DataSummary
from rltransformers.training.decision_settings import Settings
from rltransformers.training.episodes import ActForTargets, action_token, executed


@dataclass
class OnlineCounts:
    """How far learning online has come; a checkpoint holds it.

    Attributes:
        timesteps: of environments.
        episodes: played to their end.
        updates: still to come for the episodes played last.
    """

    timesteps: WholeNumber = 0
    episodes: WholeNumber = 0
    updates: WholeNumber = 0

    def __post_init__(self) -> None:
        check_fields(self, "online.")


class Exploring:
    """A behaviour that samples actions of a Decision Transformer asked for one return.

    Args:
        act: as ``evaluate_decisions`` takes it.
        decider: that it acts by.
        target: the return to ask for, NaN for what the policy predicts.
        noise: deviation of what is added to the one action of a Box, in units where its bounds are -1 and 1.
        spaces: of the observations and of the actions that the policy learned from.
        action_space: of the environment, whose Boxes may be narrower.
    """

    name = "exploring"

    def __init__(
        self,
        act: ActForTargets,
        decider: Decider,
        target: float,
        noise: float,
        spaces: tuple[gym.Space[Any], gym.Space[Any]],
        action_space: gym.Space[Any],
    ) -> None:
        self._act, self._decider, self._target, self._noise = act, decider, target, noise
        self.spaces, self._action_space = spaces, action_space
        self._state: ActingState | None = None

    def act(
        self,
        observations: Any,
        episode_starts: np.ndarray,
        generator: np.random.Generator,
        rewards: np.ndarray | None = None,
    ) -> Any:
        """Actions [N, ...] nested as the action space."""
        rows = len(episode_starts)
        state = self._decider.initial_state(rows) if self._state is None else self._state
        leaves = {path: np.asarray(leaf) for path, leaf in leaf_values(self.spaces[0], observations).items()}
        noise = generator.random((rows, self._decider.policy.head.draws))
        targets = [self._target] * rows
        received = np.zeros(rows) if rewards is None else np.asarray(rewards)
        actions, state = self._act(leaves, state, episode_starts, received, targets, noise)
        if self._noise > 0:
            actions, state = self._disturbed(actions, state, generator)
        actions, self._state = executed(self._decider.policy, actions, state, self._action_space)
        return nest_leaves(self.spaces[1], actions)

    def _disturbed(
        self, actions: Mapping[str, np.ndarray], state: ActingState, generator: np.random.Generator
    ) -> tuple[dict[str, np.ndarray], ActingState]:
        """Actions with noise, and the state after them: it remembers what was done, not what was decided."""
        head, disturbed = self._decider.policy.head, dict(actions)
        device = state.action.device
        for path, leaf in point_leaves(head):
            added = torch.as_tensor(self._noise * generator.standard_normal(actions[path].shape), device=device)
            moved = leaf.disturbed(torch.as_tensor(actions[path], device=device), added)
            disturbed[path] = moved.cpu().numpy().astype(actions[path].dtype)
        return disturbed, replace(state, action=action_token(self._decider.policy, disturbed))


def play_round(
    envs: VectorEnv[Any, Any, Any], behaviour: Exploring, seed: int, episodes: int, longest: int | None
) -> Trajectories:
    """One episode of every environment, which depend on the seed of the run and the episodes before alone.

    They are data of the spaces of ``behaviour``, whatever bounds and types those of the environments have.

    Args:
        episodes: played before.
        longest: steps after which an episode that goes on is an error; None for the limit of ``record``.

    Raises:
        DataError: for what the environment may not return, and for an episode that does not end.
    """
    with warnings.catch_warnings():  # of an environment that nobody can make again: nobody is to, of a replay
        warnings.filterwarnings("ignore", ".*keeps no specification", UserWarning)
        played = record(
            envs,
            behaviour,
            episodes=envs.num_envs,
            seed=step_seed(seed, episodes, "online"),
            name="online",
            longest_episode=longest,
        )
    return in_spaces(played, *behaviour.spaces)


def exploration_target(given: float | None, settings: Settings, summary: DataSummary) -> float:
    """Return that episodes are asked for: without ``given`` the best of the data and as much again as they differ by.

    The paper asks for twice the return of the expert; where the worst return is 0, this is twice the best one. NaN: a
    policy that predicts returns is asked for what it predicts.
    """
    if given is not None:
        return given
    return float("nan") if settings.return_head is not None else summary.best_return + summary.spread


def point_leaves(head: ActionHead) -> list[tuple[str, ContinuousAction]]:
    """Leaf paths and parts of the Boxes that have one action for every state."""
    return [
        (path, leaf)
        for path, leaf in head.named_leaves()
        if isinstance(leaf, ContinuousAction) and not isinstance(leaf, NormalAction)
    ]


def check_explores(head: ActionHead, settings: Settings, noise: float) -> None:
    """Raise ConfigError for a policy that cannot learn from episodes of its own."""
    if settings.mode == "bc":
        raise ConfigError(
            "mode 'bc' asks for no return, so it would imitate whatever it does; learn_online needs mode 'dt'"
        )
    paths = [path for path, _ in point_leaves(head)]
    if paths and noise == 0:
        place = f" {paths[0]!r}" if paths[0] else ""
        raise ConfigError(
            f"the policy has one action of the Box{place} for every state, so it would try nothing out; make the model"
            " with stochastic=True, or set exploration_noise (0.1 is usual)"
        )
    if noise > 0 and not paths:
        raise ConfigError(
            f"exploration_noise ({noise:g}) moves the one action of a Box, and all actions of this policy are drawn"
            " already; leave it at 0"
        )


def step_limit(spec: EnvSpec | None, env_kwargs: Mapping[str, Any] | None) -> int | None:
    """Steps after which the environment cuts an episode; None where nothing says so, or -1 says that nothing does."""
    limit = (env_kwargs or {}).get("max_episode_steps", None if spec is None else spec.max_episode_steps)
    return None if limit == -1 else limit


def check_lengths(settings: Settings, longest: int | None) -> None:
    """Raise ConfigError where ``whole_episodes`` may meet an episode of more than ``context_length`` steps.

    Args:
        longest: steps of the longest episode that the environment plays; None where nothing limits them.
    """
    if settings.whole_episodes and (longest is None or longest > settings.context_length):
        raise ConfigError(
            f"whole_episodes learns from episodes of at most context_length = {settings.context_length} steps, and the"
            f" environment plays {'without a limit' if longest is None else f'up to {longest}'}; give longest_episode,"
            " after which an episode is an error, or leave whole_episodes out (of a saved model with"
            " load(..., whole_episodes=False))"
        )


def interval_of(episodes: Trajectories, device: torch.device) -> Mapping[str, torch.Tensor]:
    """Metrics of the episodes of one round, by path."""
    returns, lengths = float(episodes.returns.mean()), float(episodes.lengths.mean())
    values = {"online/return_mean": returns, "online/length_mean": lengths}
    return {name: torch.tensor(value, dtype=torch.float32, device=device) for name, value in values.items()}
