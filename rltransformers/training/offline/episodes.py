"""Episodes that a Decision Transformer plays in N environments: seeded one by one, every started one counted."""

import math
from collections import deque
from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import replace
from typing import Any, cast

import gymnasium as gym
import numpy as np
import torch
from gymnasium.envs.registration import EnvSpec
from gymnasium.spaces import Box
from gymnasium.vector import AutoresetMode, VectorEnv
from tqdm.auto import tqdm

from rltransformers.core.action_masks import ACTION_MASK, check_mask_order, first_allowed
from rltransformers.core.episodes import LONGEST_EPISODE
from rltransformers.core.errors import ConfigError
from rltransformers.core.guard import guarding, warn_of_statistics
from rltransformers.core.registry import find_spec
from rltransformers.core.spaces import Space, differing_spaces, leaf_spaces, leaf_values, space_outline, split_members
from rltransformers.envs import GymnasiumVecEnv
from rltransformers.envs.make import EnvironmentSource, WrapperConfig, WrapperFunction, make_vector_env
from rltransformers.policies.decider import ActingState, Decider
from rltransformers.policies.decision_network import DecisionPolicy
from rltransformers.training.evaluation import EvaluationEpisode, play
from rltransformers.training.stepping import act_on_arrays

Leaves = dict[str, np.ndarray]


def evaluate_decisions(
    envs: VectorEnv[Any, Any, Any],
    episodes: Sequence[EvaluationEpisode],
    decider: Decider,
    action_space: Space,
    deterministic: bool = True,
    longest: int = LONGEST_EPISODE,
    name: str | None = None,
    progress: bool = False,
) -> None:
    """Play all episodes to their end; an environment that ends one starts the next, until none is left.

    Environments that are left over repeat their last action, or take an allowed one.

    Args:
        envs: of ``open_environments``.
        action_space: that the policy learned from; that of the environments may have narrower Boxes.
        deterministic: False samples actions, from the generator of each episode.
        longest: steps after which an episode that goes on is an error.
        name: of the environment, for messages.
    """
    warn_of_statistics(envs)
    env, policy, waiting = GymnasiumVecEnv(envs, raw=True), decider.policy, deque(episodes)
    space, running = env.action_space, cast(list[EvaluationEpisode | None], [None] * env.num_envs)
    following: dict[int, EvaluationEpisode | None] = {}
    rows, state = list(range(env.num_envs)), cast(ActingState | None, None)
    all_actions = {
        path: np.broadcast_to(value, (env.num_envs, *np.shape(value))).copy()
        for path, value in leaf_values(space, space.sample()).items()
    }

    def next_seed(row: int) -> int | None:
        """Choose the next episode; an environment that has none left idles through episodes that nobody counts."""
        first = row not in following
        episode = waiting.popleft() if waiting and (first or running[row] is not None) else None
        following[row] = episode
        if first:
            running[row] = episode
        return None if episode is None else episode.seed

    def decide(observation: Any, first: np.ndarray, rewards: np.ndarray) -> Any:
        nonlocal rows, state
        before, rows = rows, [row for row, episode in enumerate(running) if episode is not None]
        state = decider.initial_state(len(rows)) if state is None else state
        if len(rows) < state.batch_size:
            state = state[torch.as_tensor([place for place, row in enumerate(before) if row in rows])]
        leaves = observation if isinstance(observation, dict) else {"": observation}
        seen = {path: leaf[rows] for path, leaf in leaves.items()}
        playing = [episode for episode in running if episode is not None]
        targets = [math.nan if each.target is None else each.target for each in playing]
        noise = None if deterministic else np.stack([each.noise.random(policy.head.draws) for each in playing])
        actions, state = act_on_arrays(
            decider, action_space, seen, state, first[rows], rewards[rows], targets, noise, overwrites=True
        )
        if state.asked is not None:
            for row, episode in enumerate(playing):
                if episode.length == 0 and episode.target is None:
                    episode.predicted = float(state.return_to_go[row])
        actions, state = executed(policy, actions, state, space)
        for path, value in actions.items():
            all_actions[path][rows] = value
        idle = [row for row, episode in enumerate(running) if episode is None]
        if policy.masks and idle:  # some environments raise exceptions for actions they do not allow
            for path, value in first_allowed(leaves[ACTION_MASK][idle], space).items():
                all_actions[path][idle] = value
        # Copies: an environment may keep its action for its next step.
        copies = {path: value.copy() for path, value in all_actions.items()}
        return split_members(space, copies)

    env.next_seed = next_seed
    bar = tqdm(total=len(episodes), desc="evaluating", unit="episode", disable=not progress, leave=False)
    with guarding(env) as guarded, bar:
        play(guarded, decide, running, following.get, lambda *_: True, longest, name, bar)


def executed(
    policy: DecisionPolicy, actions: Leaves, state: ActingState, action_space: Space
) -> tuple[Leaves, ActingState]:
    """Actions clipped to the Boxes of an environment, and the state after them, which remembers them clipped."""
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
    return policy.head.embed({path: torch.as_tensor(value, device=device) for path, value in actions.items()})


@contextmanager
def open_environments(
    env: EnvironmentSource | VectorEnv[Any, Any, Any],
    num_envs: int,
    env_kwargs: Mapping[str, Any] | None,
    wrappers: Sequence[WrapperConfig | WrapperFunction],
    spaces: tuple[Space, Space],
) -> Iterator[tuple[VectorEnv[Any, Any, Any], EnvSpec | None]]:
    """The environments of a caller, or new ones of an id or a function that are closed at the end; their spec.

    Raises ConfigError for a vector environment that restarts episodes by itself or comes with keywords or wrappers, and
    for other spaces than ``spaces``, those of the data.
    """
    if not isinstance(env, VectorEnv):
        num_envs = 1 if isinstance(env, gym.Env) else num_envs
        envs = make_vector_env(env, num_envs, env_kwargs=env_kwargs, wrappers=sorted(wrappers, key=callable))
    elif env_kwargs or wrappers:
        raise ConfigError("env_kwargs and wrappers belong to an environment id; a vector environment brings its own")
    elif (mode := env.metadata.get("autoreset_mode")) is not AutoresetMode.DISABLED:
        raise ConfigError(
            f"evaluate seeds every episode, so it needs a vector environment with AutoresetMode.DISABLED, got {mode};"
            " make it with autoreset_mode=AutoresetMode.DISABLED, or pass the environment id"
        )
    else:
        envs = env
    try:
        for role, ours, theirs in differing_spaces(spaces, (envs.single_observation_space, envs.single_action_space)):
            raise ConfigError(
                f"the {role} space of the environment ({space_outline(theirs)}) is not that of the dataset"
                f" ({space_outline(ours)}); apply the wrappers that were applied when the data were recorded, or, where"
                f" the spaces of the data were guessed, give {role}_space to load_trajectories (dataset.{role}_space in"
                " a config) and train again"
            )
        if ACTION_MASK in leaf_spaces(spaces[0]):
            check_mask_order(spaces[1], envs.single_action_space)
        yield envs, find_spec(env) if isinstance(env, str) else envs.spec or getattr(env, "spec", None)
    finally:
        if not isinstance(env, gym.Env | VectorEnv):
            envs.close()
