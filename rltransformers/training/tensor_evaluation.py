"""Episodes of an evaluation in a ``TensorVecEnv``: a copy to the host every ``STEPS_BETWEEN_LOOKS`` steps, not in each.

Axes: N environments, U numbers of noise.
"""

import itertools
from collections.abc import Iterator, Sequence
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
from rltransformers.core.seeding import seed_environments, step_seed
from rltransformers.core.values import WAY_OUT
from rltransformers.envs.tensors.base import TensorStep, TensorVecEnv, inner_tensors
from rltransformers.envs.tensors.streams import random_shares, random_words
from rltransformers.policies.action_heads import Noise, noise_of
from rltransformers.policies.memory_policy import MemoryPolicy
from rltransformers.training.normalization import CLIP
from rltransformers.training.tensor_checks import CheckedTensors
from rltransformers.training.tensor_statistics import TensorStatistics

STEPS_BETWEEN_LOOKS = 32
"""Steps after which it is looked whether all episodes are over."""


def plays_tensors(model: Any, env: VecEnv) -> bool:
    """Whether ``model`` is an online agent that can be evaluated in ``env`` in tensors."""
    inside = inner_tensors(env)
    is_agent = isinstance(model, BaseAlgorithm) and isinstance(model.policy, MemoryPolicy)
    return inside is not None and is_agent and inside.device.type == model.device.type


def play_in_tensors(
    agent: Any, env: Any, seeds: Sequence[int], counted: int, deterministic: bool, longest: int, name: str | None
) -> list[tuple[float, int, bool | None]]:
    """Return, length and success (None: nothing succeeds) of an episode of the first ``counted`` environments.

    Args:
        agent: an online agent, which acts with its present weights.
        env: a ``TensorVecEnv``, also in ``VecNormalize``, whose statistics do not move.
        seeds: of every environment.
        deterministic: take the most likely actions.
        longest: steps after which an episode that goes on is an error; seen up to ``STEPS_BETWEEN_LOOKS`` steps later.
        name: of the environment, for messages.

    Raises:
        DataError: for an exception of the environment, for values that are not finite or outside their space, and for
            an episode that does not end.
    """
    inside = inner_tensors(env)
    assert inside is not None
    seed_environments(inside, seeds)
    checked = CheckedTensors(inside, agent.policy.masks)
    statistics = TensorStatistics(None if env is inside else env, None, 1.0, inside.device)
    with statistics.on_device(checked, keep=False):
        running = torch.arange(inside.num_envs, device=inside.device) < counted
        streams = None
        if not deterministic:
            streams = torch.tensor([step_seed(seed, 0, "action") for seed in seeds], device=inside.device)
        ends: TensorStep | None = None
        for number, step in enumerate(_steps(agent, inside, checked, statistics, streams), 1):
            ended = step.ended & running
            ends = step if ends is None else _where(ended, step, ends)
            running = running & ~ended
            if number % STEPS_BETWEEN_LOOKS == 0:
                checked.refuse()
                left = running.nonzero().flatten().tolist()
                if not left:
                    break
                if number >= longest:
                    raise endless_episode(name, left[0], longest)
    assert ends is not None
    lengths: list[int] = ends.lengths[:counted].tolist()
    if max(lengths) > longest:
        raise endless_episode(name, lengths.index(max(lengths)), longest)
    returns: list[float] = ends.returns[:counted].tolist()
    if not np.isfinite(returns).all():
        row = int(np.argmin(np.isfinite(returns)))
        raise DataError(f"the return of environment {row} is {returns[row]}, not finite; {WAY_OUT}")
    successes = [None] * counted if ends.successes is None else ends.successes[:counted].tolist()
    return list(zip(returns, lengths, successes, strict=True))


def _steps(
    agent: Any, env: TensorVecEnv, checked: CheckedTensors, statistics: TensorStatistics, streams: Tensor | None
) -> Iterator[TensorStep]:
    """Steps without end, with actions sampled from ``streams`` [N], or the most likely ones."""
    policy: MemoryPolicy = agent.policy
    noise_parts = noise_of(policy.action_head)
    unit = None if agent._own_scale is None else agent.reward_unit
    policy.end_training_mode()
    seen = checked.reset("in step 0")
    first, state = torch.ones(env.num_envs, dtype=torch.bool, device=env.device), policy.initial_state(env.num_envs)
    for number in itertools.count(1):
        leaves = policy.leaves_to_tensors(statistics.observed(seen, takes=False))
        noise = None if streams is None else noise_of_step(noise_parts, streams, number - 1)
        actions, values, log_probs, state = policy.step(leaves, state, first, noise, overwrites=True)
        step = checked.step(policy.action_head, actions, partial("in step {}".format, number), values + log_probs)
        if policy.uses_previous_reward:
            rewards = statistics.earned(step.rewards, first, step.ended)
            rewards = rewards if unit is None else (rewards / unit).clamp(-CLIP, CLIP)
            state = replace(state, previous_reward=rewards.to(state.previous_reward.dtype))
        seen, first = step.observations, step.ended
        yield step


def noise_of_step(noise: Sequence[Noise], streams: Tensor, step: int) -> Tensor:
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
