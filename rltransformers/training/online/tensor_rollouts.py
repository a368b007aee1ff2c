"""Rollouts of online agents in a ``TensorVecEnv``, whose steps copy nothing to the host. E environments, T steps.

What is looked at in every step in numpy is looked at once behind the rollout: values that are not finite, episodes that
ended, and those that a limit cut.
"""

from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from dataclasses import replace
from typing import Any, NamedTuple, cast

import numpy as np
import torch
from stable_baselines3.common.callbacks import BaseCallback
from torch import Tensor

from rltransformers.core.errors import ConfigError
from rltransformers.core.spaces import nested_leaves
from rltransformers.data.replay import SegmentReplay
from rltransformers.data.rollout import RolloutBuffer
from rltransformers.envs.tensors.base import (
    LazyArray,
    Leaves,
    StepInfos,
    TensorStep,
    TensorVecEnv,
    inner_tensors,
)
from rltransformers.functional.windows import match_axes
from rltransformers.policies.memory_policy import MemoryPolicy
from rltransformers.policies.policy_state import PolicyState
from rltransformers.training.online.replay_data import raw_leaves
from rltransformers.training.tensor_checks import CheckedTensors
from rltransformers.training.tensor_statistics import TensorStatistics


def tensor_environments(agent: Any) -> TensorVecEnv | None:
    """The environments of an agent where it steps them in tensors; None where in numpy.

    Raises:
        ConfigError: where they are on another device than the agent, or several processes share the training.
    """
    env = inner_tensors(agent.env)
    if env is None:
        return None
    if env.device.type != agent.device.type:
        raise ConfigError(
            f"the environments are on {env.device}, the agent is on {agent.device}: make both with the same device (in "
            "a config environment.kwargs.device and algorithm.device)"
        )
    if not agent.sharing.is_single:
        raise ConfigError(
            f"environments in tensors are stepped by one process, not by {agent.sharing.size}: leave torchrun out, or "
            "take environments in numpy"
        )
    return env


class Step(NamedTuple):
    """A step of all environments as an agent learns from it."""

    observations: Leaves  # that act next, as the policy sees them
    rewards: Tensor  # float32 [E], scaled
    raw: TensorStep  # as the environments gave it
    last: Leaves | None  # last observations of episodes, as the policy sees them; None where they are not told
    cut: Tensor  # bool [E], episodes that a limit ended
    ended: Tensor  # bool [E], episodes that ended


class TensorRollout:
    """The environments of an agent while it collects one rollout; counts for it as ``OnlineAgent`` does in numpy.

    Args:
        reads_last_masks: whether masks of actions are read where a limit cuts an episode.

    Attributes:
        leaves: the newest observations as the policy takes them.
        checked: what was seen and is looked at behind the rollout.
    """

    def __init__(self, agent: Any, env: TensorVecEnv, reads_last_masks: bool = False) -> None:
        self.agent, self.env = agent, env
        self._statistics = TensorStatistics(agent._vec_normalize_env, agent._own_scale, agent.gamma, agent.device)
        self.checked = CheckedTensors(env, agent.policy.masks, reads_last_masks)
        self._steps: list[TensorStep] = []

    @contextmanager
    def running(self) -> Iterator["TensorRollout"]:
        """Within the block, statistics are on the device; behind it, they and the episodes are where numpy has them.

        Raises:
            DataError: behind the block, for values that are not finite or outside their space, and masks that allow
                nothing; statistics are then as they were before.
        """
        agent = self.agent
        with self._statistics.on_device(self.checked):
            self._see(nested_leaves(agent._observation))
            agent._last_episode_starts = torch.as_tensor(agent._last_episode_starts, device=agent.device)
            yield self
        self._tell_episodes()

    def reset(self) -> None:
        agent = self.agent
        leaves = self.checked.reset(f"at step {agent._steps_of_run()} of this run")
        self._see(self._statistics.first(leaves))
        agent._last_episode_starts = torch.ones(self.env.num_envs, dtype=torch.bool, device=agent.device)

    def raw_leaves(self) -> Leaves:
        """The newest observations before ``VecNormalize``, and masks that are a part of them."""
        agent = self.agent
        leaves = raw_leaves(agent._vec_normalize_env, agent._observation, agent._raw_obs)
        return {path: torch.as_tensor(leaf, device=agent.device) for path, leaf in leaves.items()}

    def step(self, actions: Mapping[str, Tensor], state: PolicyState) -> Step:
        """Take a step with ``actions`` of the policy, which left ``state``."""
        agent = self.agent
        raw = self.checked.step(agent._actor.action_head, actions, agent._guard._next_step)
        observations = self._statistics.observed(raw.observations, takes=True)
        rewards = self._statistics.earned(raw.rewards, agent._last_episode_starts, raw.ended)
        last = None if raw.last_observations is None else self._statistics.observed(raw.last_observations, takes=False)
        agent.num_timesteps += agent.n_envs
        agent.carry.acting = replace(state, previous_reward=rewards.to(state.previous_reward.dtype))
        agent._last_episode_starts = raw.ended
        self._see(observations)
        self._steps.append(raw)
        return Step(observations, rewards, raw, last, raw.truncated, raw.ended)

    def shown(self, step: Step) -> tuple[Any, LazyArray, LazyArray, StepInfos]:
        """Observations, rewards, ends and infos for callbacks; but for the first they are copied if one looks."""
        ends, infos = LazyArray(step.raw.ended), StepInfos(step.raw, self.env._arrays)
        return self.agent._observation, LazyArray(step.rewards), ends, infos

    def _see(self, leaves: Leaves) -> None:
        agent = self.agent
        agent._last_obs = leaves.get("", leaves)
        self.leaves = agent._actor.leaves_to_tensors(leaves)

    def _tell_episodes(self) -> None:
        """Hand the episodes that ended to the means of Stable-Baselines3, in the order of steps and environments."""
        agent, raw = self.agent, self._steps
        if not raw:
            return
        steps, rows = torch.stack([step.ended for step in raw]).nonzero(as_tuple=True)

        def column(values: list[Tensor]) -> list[Any]:
            return list(torch.stack(values)[steps, rows].tolist())

        returns, lengths = column([step.returns for step in raw]), column([step.lengths for step in raw])
        agent.ep_info_buffer.extend({"r": r, "l": length} for r, length in zip(returns, lengths, strict=True))
        if raw[0].successes is not None:
            agent.ep_success_buffer.extend(column([cast(Tensor, step.successes) for step in raw]))


# On policy


def collect_segments(
    agent: Any, env: TensorVecEnv, callback: BaseCallback, rollout_buffer: RolloutBuffer, n_rollout_steps: int
) -> bool:
    """The steps of ``OnPolicyMemoryAgent.collect_rollouts`` in tensors: the same segments, and random numbers."""
    buffer: Any = rollout_buffer  # which holds tensors here
    carry, policy = agent.carry, agent._actor
    buffer.take_tensors()
    steps: list[Step] = []
    with TensorRollout(agent, env).running() as rollout:
        for _ in range(n_rollout_steps):
            leaves, episode_starts = rollout.leaves, agent._last_episode_starts
            noise = policy.action_head.draw(agent.n_envs, agent._action_generator)
            actions, values, log_probs, state = policy.step(
                leaves, carry.acting, episode_starts, noise, overwrites=True
            )
            step = rollout.step(actions, state)
            new_obs, rewards, dones, infos = rollout.shown(step)
            callback.update_locals(locals())
            if not callback.on_step():
                return bool(agent._give_up())
            if agent._moved:  # by the callback: these episodes end here, as cut by a limit
                step = _cut_all(step)
                rollout.reset()
            buffer.add(leaves, actions, step.rewards, episode_starts, step.ended, values, log_probs, True)
            steps.append(step)
    value_ends(policy, buffer, steps, agent._rows_per_batch())
    last_values = policy.values(rollout.leaves, carry.acting, agent._last_episode_starts)
    carry.segment = buffer.finish(last_values, agent.gamma, agent.gae_lambda)
    callback.update_locals(locals())
    callback.on_rollout_end()
    return True


def _cut_all(step: Step) -> Step:
    """The step after which every episode that goes on is cut, at the observation that would have acted next."""
    ended, last = step.raw.ended, None
    if step.last is not None:
        last = {
            path: torch.where(match_axes(ended, leaf), step.last[path], leaf)
            for path, leaf in step.observations.items()
        }
    return step._replace(last=last, cut=step.cut | ~ended, ended=torch.ones_like(ended))


@torch.no_grad()
def value_ends(policy: MemoryPolicy, buffer: RolloutBuffer, steps: list[Step], rows_at_once: int) -> None:
    """Write into the buffer where a limit cut episodes in its steps, and the values of their true last observations.

    Acting would have to look in every step whether there is one. Here all of them are valued together behind the
    rollout: its segments are encoded once more, with the last observation of a cut episode as a step of its own before
    the episode that follows, which sees nothing of it. Where the environment does not tell its last observations, an
    end has the value of the observation before.
    """
    buffer.truncated = cut = cast(Any, torch.stack([step.cut for step in steps], 1))
    rows = cut.any(1).nonzero().flatten()
    if not len(rows):
        return
    if steps[0].last is None:
        buffer.last_values = torch.where(cut, torch.stack(buffer.values, 1), buffer.last_values)
        return
    if policy.actor.backbone.finite_positions:
        policy.actor.backbone.check_places(torch.stack([step.raw.lengths for step in steps], 1)[cut])
    last = [policy.leaves_to_tensors(cast(Leaves, step.last)) for step in steps]
    for part in rows.split(rows_at_once):
        ends = {path: torch.stack([leaves[path][part] for leaves in last], 1) for path in last[0]}
        buffer.last_values[part] = _values_of_ends(policy, buffer, part, cut[part], ends)


def _values_of_ends(policy: MemoryPolicy, buffer: RolloutBuffer, rows: Tensor, cut: Tensor, ends: Leaves) -> Tensor:
    """Values [R, T] of the last observations ``ends`` [R, T, ...] where ``cut`` [R, T]; 0 elsewhere."""
    steps = cut.shape[1]
    behind = (1 + cut.long()).cumsum(1)  # places up to and with those of a step
    places = torch.arange(int(behind[:, -1].max()), device=cut.device).expand(len(cut), -1).contiguous()
    source = torch.searchsorted(behind, places, right=True).clamp(max=steps - 1)
    is_end = cut.gather(1, source) & (places == behind.gather(1, source) - 1)
    row = torch.arange(len(cut), device=cut.device)[:, None]

    def spread(values: Tensor) -> Tensor:
        return values[row, source]

    seen = {
        path: torch.where(match_axes(is_end, leaf), spread(ends[path]), spread(leaf[rows]))
        for path, leaf in buffer.observations.items()
    }
    taken = {path: spread(leaf[rows]) for path, leaf in buffer.actions_so_far().items()}
    gains, first = spread(torch.as_tensor(buffer.rewards)[rows]), spread(torch.as_tensor(buffer.first)[rows]) & ~is_end
    before: PolicyState = cast(PolicyState, buffer.memory)[rows]
    features, value_features, _ = policy.run_backbones(before.inputs(seen, taken, gains, first), before)
    _, values = policy._read(features, value_features, seen)
    result = torch.zeros(cut.shape, device=cut.device)
    result[row.expand_as(source)[is_end], source[is_end]] = values[is_end].to(result.dtype)
    return result


# Off policy


class UnstoredSteps:
    """Steps of a rollout that go into the replay together, behind the last one or before a callback saves."""

    def __init__(self, checked: CheckedTensors) -> None:
        self._checked = checked
        self._steps: list[dict[str, Any]] = []

    def append(self, step: dict[str, Any]) -> None:
        self._steps.append(step)

    def store(self, replay: SegmentReplay) -> int:
        """Add them to a replay, and count the episodes that ended; DataError, and none is added, for wrong values."""
        steps, self._steps = self._steps, []
        self._checked.refuse()
        return _store(replay, steps) if steps else 0


def collect_steps(agent: Any, env: TensorVecEnv, callback: BaseCallback, frequency: int) -> bool:
    """The steps of ``OffPolicyMemoryAgent.collect_rollouts`` in tensors, which it adds to the replay behind them."""
    going_on = True
    with TensorRollout(agent, env, reads_last_masks=True).running() as rollout:
        agent.unstored = UnstoredSteps(rollout.checked)
        raw = rollout.raw_leaves()
        for _ in range(frequency):
            leaves, episode_starts = rollout.leaves, agent._last_episode_starts
            actions, state = agent._act(leaves, episode_starts)
            step = rollout.step(actions, state)
            new_obs, rewards, dones, infos = rollout.shown(step)
            agent.unstored.append({"observations": raw, "actions": actions, "first": episode_starts, "step": step.raw})
            callback.update_locals(locals())
            going_on = bool(callback.on_step())
            agent._update_current_progress_remaining(agent.num_timesteps, agent._total_timesteps)
            if not going_on:
                break
            if agent._moved:  # by the callback: the replay takes these episodes as left
                rollout.reset()
                raw = rollout.raw_leaves()
            else:
                raw = step.raw.observations
    return going_on


def _store(replay: SegmentReplay, kept: list[dict[str, Any]]) -> int:
    """Bring steps to the host, one copy for each kind of number, and add them to the replay; count the ends."""

    def columns(values: list[Tensor]) -> np.ndarray:
        return torch.stack(values).cpu().numpy()

    def leaves(of: list[Mapping[str, Tensor]]) -> dict[str, np.ndarray]:
        return {path: columns([each[path] for each in of]) for path in of[0]}

    steps: list[TensorStep] = [each["step"] for each in kept]
    seen = leaves([each["observations"] for each in kept])
    actions = {path: torch.from_numpy(rows) for path, rows in leaves([each["actions"] for each in kept]).items()}
    first, rewards = columns([each["first"] for each in kept]), columns([step.rewards for step in steps])
    terminated, truncated = (columns([getattr(step, name) for step in steps]) for name in ("terminated", "truncated"))
    last: dict[str, np.ndarray] | None = None
    if truncated.any() and steps[0].last_observations is not None:
        last = leaves([cast(Leaves, step.last_observations) for step in steps])
    active = np.ones(first.shape[1], bool)
    for t in range(len(kept)):
        observed = {path: leaf[t] for path, leaf in seen.items()}
        replay.add(
            observed, {path: rows[t] for path, rows in actions.items()}, rewards[t], first[t], terminated[t], active
        )
        rows = np.flatnonzero(truncated[t]).tolist()
        if rows and last is not None:
            replay.add_last(rows, {path: leaf[t][rows] for path, leaf in last.items()})
    return int((terminated | truncated).sum())
