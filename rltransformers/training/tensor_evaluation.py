"""Episodes of an evaluation in a ``TensorVecEnv``: a copy to the host every ``STEPS_BETWEEN_LOOKS`` steps, not in each.

Axes: N environments, U numbers of noise.
"""

from collections.abc import Sequence
from dataclasses import replace
from functools import partial
from typing import Any

import numpy as np
import torch
from stable_baselines3.common.base_class import BaseAlgorithm
from stable_baselines3.common.vec_env import VecEnv
from torch import Tensor

from rltransformers.core.episodes import endless_episode
from rltransformers.core.errors import DataError
from rltransformers.core.guard import attempt
from rltransformers.core.seeding import seed_environments, step_seed
from rltransformers.core.values import WAY_OUT
from rltransformers.envs.tensors.base import TensorStep, TensorVecEnv, action_types, inner_tensors
from rltransformers.envs.tensors.streams import random_shares, random_words
from rltransformers.policies.action_heads import Noise, noise_of
from rltransformers.policies.memory_policy import MemoryPolicy
from rltransformers.training.normalization import CLIP
from rltransformers.training.online.tensor_rollouts import executed_actions
from rltransformers.training.tensor_checks import TensorChecks
from rltransformers.training.tensor_statistics import TensorStatistics

STEPS_BETWEEN_LOOKS = 32
"""Steps after which it is looked whether all episodes are over."""


def plays_tensors(model: Any, env: VecEnv) -> bool:
    """Whether ``model`` is an online agent that can be evaluated in ``env`` in tensors."""
    inside = inner_tensors(env)
    is_agent = isinstance(model, BaseAlgorithm) and isinstance(model.policy, MemoryPolicy)
    return inside is not None and is_agent and inside.device.type == model.device.type


class TensorPlayer:
    """Plays one episode in every environment, each to its end, with the present weights of an agent.

    ``step`` is the training step of these weights.

    Args:
        agent: an online agent.
        env: a ``TensorVecEnv``, also in ``VecNormalize``, whose statistics do not move.
        deterministic: take the most likely actions.
        longest: steps after which an episode that goes on is an error; seen up to ``STEPS_BETWEEN_LOOKS`` steps later.
        name: of the environment, for messages.
    """

    def __init__(self, agent: Any, env: Any, deterministic: bool, longest: int, name: str | None) -> None:
        inside = inner_tensors(env)
        assert inside is not None
        self._env: TensorVecEnv = inside
        self._longest, self._name, self.step = longest, name, int(agent.num_timesteps)
        self._policy: MemoryPolicy = agent.policy
        self._normalizer = None if env is inside else env
        self._deterministic = deterministic
        self._noise = noise_of(self._policy.action_head)
        self._types = action_types(inside.action_space)
        self._unit = None if agent._own_scale is None else agent.reward_unit

    def play(self, seeds: Sequence[int], counted: int) -> list[tuple[float, int, bool | None]]:
        """Return, length and success (None: nothing succeeds) of the episodes of the first ``counted`` environments.

        Args:
            seeds: of every environment.

        Raises:
            DataError: for an exception of the environment, for values that are not finite or outside their space, and
                for an episode that does not end.
        """
        env, device = self._env, self._env.device
        seed_environments(env, seeds)
        self._checks = TensorChecks(env, self._policy.masks)
        statistics = TensorStatistics(self._normalizer, None, 1.0, device)
        statistics.begin()
        try:
            running = torch.arange(env.num_envs, device=device) < counted
            streams = torch.tensor([step_seed(seed, 0, "action") for seed in seeds], device=device)
            ends: TensorStep | None = None
            for steps, step in enumerate(self._steps(statistics, streams), 1):
                ended = step.ended & running
                ends = step if ends is None else _where(ended, step, ends)
                running = running & ~ended
                if steps % STEPS_BETWEEN_LOOKS == 0:
                    self._checks.refuse()
                    left = running.nonzero().flatten().tolist()
                    if not left:
                        break
                    if steps >= self._longest:
                        raise endless_episode(self._name, left[0], self._longest)
        except Exception as error:
            self._checks.refuse(error)  # a network raises something else for a class that it does not know
            raise
        finally:
            statistics.end(keep=False)
        assert ends is not None
        returns: list[float] = ends.returns[:counted].tolist()
        if not np.isfinite(returns).all():
            row = int(np.argmin(np.isfinite(returns)))
            raise DataError(f"the return of environment {row} is {returns[row]}, not finite; {WAY_OUT}")
        successes = [None] * counted if ends.successes is None else ends.successes[:counted].tolist()
        return list(zip(returns, ends.lengths[:counted].tolist(), successes, strict=True))

    def _steps(self, statistics: TensorStatistics, streams: Tensor) -> Any:
        """Steps without end."""
        env, policy, number = self._env, self._policy, 0
        policy.end_training_mode()
        seen = attempt(env, lambda: "in step 0", env.reset_tensors)
        self._checks.look(seen, None, "in step 0")
        first, state = torch.ones(env.num_envs, dtype=torch.bool, device=env.device), policy.initial_state(env.num_envs)
        while True:
            leaves = policy.leaves_to_tensors(statistics.observed(seen, takes=False))
            noise = None if self._deterministic else episode_noise(self._noise, streams, number)
            actions, _, _, state = policy.step(leaves, state, first, noise, overwrites=True)
            number += 1
            executed = executed_actions(policy.action_head, env.action_space, actions, self._types)
            when = partial("in step {}".format, number)
            step: TensorStep = attempt(env, when, env.step_tensors, executed)
            self._checks.look(step.observations, step, when())
            if policy.uses_previous_reward:
                rewards = statistics.earned(step.rewards, first, step.ended)
                rewards = rewards if self._unit is None else (rewards / self._unit).clamp(-CLIP, CLIP)
                state = replace(state, previous_reward=rewards.to(state.previous_reward.dtype))
            seen, first = step.observations, step.ended
            yield step


def episode_noise(noise: Sequence[Noise], streams: Tensor, step: int) -> Tensor:
    """Noise [N, U] of sampled actions in a step of episodes; it follows from their ``streams`` [N] and the step."""
    count = sum(each.numbers for each in noise)
    places = torch.arange(step * count, (step + 1) * count, device=streams.device)
    uniform = random_shares(random_words(streams[:, None], places))
    parts = uniform.split([each.numbers for each in noise], 1)
    # Half a step away from 0, where a normal number would be infinite, and below the 1 that float32 would round to.
    drawn = [
        torch.special.ndtri(part + 2.0**-54) if each.normal else part.clamp(max=1.0 - 2.0**-24)
        for each, part in zip(noise, parts, strict=True)
    ]
    return torch.cat(drawn, 1).to(torch.float32)


def _where(mask: Tensor, new: TensorStep, old: TensorStep) -> TensorStep:
    """The numbers of episodes: those of ``new`` under the mask [N], else those of ``old``."""
    successes = None
    if new.successes is not None and old.successes is not None:
        successes = torch.where(mask, new.successes, old.successes)
    returns, lengths = torch.where(mask, new.returns, old.returns), torch.where(mask, new.lengths, old.lengths)
    return old._replace(returns=returns, lengths=lengths, successes=successes)
