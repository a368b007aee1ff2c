"""Base of online agents that learn from the steps just taken. Axes: E environments, T steps."""

import os
import warnings
from collections.abc import Mapping
from pathlib import Path
from typing import Any, cast

import numpy as np
import torch
from stable_baselines3.common.callbacks import BaseCallback
from stable_baselines3.common.on_policy_algorithm import OnPolicyAlgorithm
from stable_baselines3.common.vec_env import VecEnv
from torch import Tensor

from rltransformers.algorithms.ppo import deviation_over, explained_variance
from rltransformers.core.checkpoint import File
from rltransformers.core.device import check_bytes
from rltransformers.core.errors import ConfigError
from rltransformers.core.ranges import strict
from rltransformers.core.spaces import leaf_spaces
from rltransformers.core.values import to_tensor
from rltransformers.data.rollout import Recorded, RolloutBuffer, Segment, bytes_of, observation_layout
from rltransformers.policies.actor_critic import GTrXLPolicy, SegmentEvaluation
from rltransformers.policies.deep_losses import ended_losses
from rltransformers.policies.observations import tree_space
from rltransformers.training.online.carry import MemoryRefresh
from rltransformers.training.online.online_agent import OnlineAgent
from rltransformers.training.online.tensor_rollouts import collect_segments
from rltransformers.training.update import UpdateMode, in_mode, memory_panel

BYTES_BESIDE = 24
"""Of a step beside its observation: action, reward, value, log-probability, last value, flags; at least."""
BYTES_OF_TENSORS = 400
"""Of a step of all environments, for what torch keeps of a handful of tensors beside their numbers."""


class OnPolicyMemoryAgent(OnlineAgent, OnPolicyAlgorithm):
    """An online agent that collects a segment of every environment with a policy that remembers, and learns from it.

    An agent is a subclass with its constructor, ``train``, and where another policy than ``self.policy`` acts,
    ``_actor``.
    """

    settled = (*OnlineAgent.settled, "n_steps", "popart")
    policy: GTrXLPolicy  # type: ignore[assignment]  # SB3 declares its own policy without memory
    batch_size: int | None
    n_epochs: int
    popart: float | None
    memory_refresh: MemoryRefresh
    gradient_window: int | None
    updates: UpdateMode

    def __init__(self, *arguments: Any, needs_env: bool, **settings: Any) -> None:
        super().__init__(
            *arguments,
            needs_env=needs_env,
            ent_coef=0.0,
            use_sde=False,
            sde_sample_freq=-1,
            _init_setup_model=False,
            **settings,
        )
        readout = self.policy_kwargs.get("readout")
        if needs_env and isinstance(readout, Mapping) and "refresh" in readout:
            raise ConfigError(
                f"policy_kwargs.readout.refresh ({readout['refresh']}) counts updates of a Decision Transformer; "
                "online the store takes in every rollout: leave it out"
            )

    def check_together(self) -> None:
        check_batch_size(self.batch_size, self.n_steps)

    def _setup_model(self) -> None:
        self.check_together()
        rows = self._rows_per_batch()
        self.sharing.check(self.policy_kwargs.get("readout"), rows, self.all_envs % rows or rows)
        step = bytes_of(observation_layout(leaf_spaces(tree_space(self.observation_space)))) + BYTES_BESIDE
        room = self.n_steps * (self.n_envs * step + BYTES_OF_TENSORS)
        what = f"n_steps ({self.n_steps}) steps of {self.n_envs} environments need"
        check_bytes(room, what, "lower n_steps or the number of environments", self.device)
        self._make_policy(self.popart)
        self.rollout_buffer = RolloutBuffer(  # type: ignore[assignment]  # segments with memory in place of SB3's buffer
            self.n_envs, self.n_steps, self.policy.seen_leaves, self.action_space, self.device
        )
        self._begin_run()

    def _compile(self) -> None:
        super()._compile()
        self._program = in_mode(self.policy, self._evaluate_inputs, self.updates)

    def _evaluate(self, segment: Segment) -> SegmentEvaluation:
        """Evaluate a minibatch; numbers that are constants of machine code stand beside it, one program for each."""
        return self._program(
            (segment, self.gradient_window, ended_losses(self.policy.actor.backbone, self.policy.progress))
        )

    def _evaluate_inputs(self, inputs: tuple[Segment, int | None, int]) -> SegmentEvaluation:
        segment, gradient_window, _ = inputs
        return self.policy.evaluate_segment(segment, gradient_window=gradient_window)

    def collect_rollouts(self, env: VecEnv, callback: BaseCallback, rollout_buffer: Any, n_rollout_steps: int) -> bool:
        """One segment of every environment; False when a callback ends training.

        Of several processes the one whose callback does so fills its segment first, as the others count on it; then
        all of them end.
        """
        buffer: RolloutBuffer = rollout_buffer
        carry, policy = self.carry, self._actor
        carry.rollout_from = before = self.num_timesteps
        policy.set_training_mode(False)
        buffer.reset(policy.without_cache(carry.acting))
        callback.on_rollout_start()
        if self._moved:
            self._reset_environments()
        carry.before = carry.segment if self.memory_refresh == "epoch" else None
        carry.segment = None  # until this one is whole: what follows a rollout that was given up follows no segment
        if self._tensors is not None:
            return collect_segments(self, self._tensors, callback, buffer, n_rollout_steps)
        leaves = policy.leaves_to_tensors(self._guard.leaves(self._observation))
        going_on = True
        for _ in range(n_rollout_steps):
            episode_starts = cast(np.ndarray, self._last_episode_starts)
            noise = policy.action_head.draw(self.all_envs, self._action_generator)[self.own_envs]
            first = to_tensor(episode_starts, self.device)
            actions, values, log_probs, state = policy.step(leaves, carry.acting, first, noise, overwrites=True)
            clipped_actions = policy.environment_actions(actions)
            new_obs, rewards, dones, infos, counts, _ = self._step_environments(clipped_actions, state)
            callback.update_locals(locals())
            going_on = bool(callback.on_step()) and going_on
            if not going_on and self.sharing.is_single:
                return self._give_up()
            self._update_info_buffer(infos, dones)
            if self._moved:  # by the callback: these episodes end here, as cut by a limit
                infos, dones = _cut(infos, dones, new_obs), np.ones_like(dones)
                new_obs = self._reset_environments()
            buffer.add(leaves, actions, rewards, episode_starts, dones, values, log_probs, counts)
            if dones.any():
                cut, last = self._guard.last_leaves(dones, infos)
                if cut:  # by a limit: valued at their true last observation, with the memory of that moment
                    rows = to_tensor(np.array(cut), self.device)
                    goes_on = torch.zeros(len(cut), dtype=torch.bool, device=self.device)
                    buffer.truncate(rows, policy.values(policy.leaves_to_tensors(last), carry.acting[rows], goes_on))
            leaves = policy.leaves_to_tensors(self._guard.leaves(new_obs))
        if not self.sharing.is_single and not self._share_rollout(before, going_on):
            return self._give_up()
        last_values = policy.values(leaves, carry.acting, to_tensor(self._last_episode_starts, self.device))
        carry.segment = buffer.finish(last_values, self.gamma, self.gae_lambda)
        callback.update_locals(locals())
        callback.on_rollout_end()
        return True

    def _give_up(self) -> bool:
        """Forget a rollout that a callback ended: no update learns from it."""
        self.carry.rollout_from = self.carry.own_memory = None
        return False

    @property
    def _lost_steps(self) -> int:
        """Steps of the running rollout, from which no update has learned yet."""
        return 0 if self.carry.rollout_from is None else self.num_timesteps - self.carry.rollout_from

    @strict
    def save(self, path: File, exclude: Any = None, include: Any = None) -> None:
        """As ``OnlineAgent.save``; for a run that goes on as if it had not stopped between two updates.

        That is in ``on_rollout_start`` of a callback, or after ``learn``. Steps since the last update are counted, but
        no part of a file.

        Warns:
            UserWarning: of such steps. Not of ``best_model``, which ``EvalCallback`` keeps for its weights.
        """
        lost = self._lost_steps
        if lost and not (isinstance(path, str | os.PathLike) and Path(path).stem == "best_model"):
            warnings.warn(
                f"saved at step {self.num_timesteps:,}, inside a rollout: its {lost:,} steps so far are counted, and "
                "nobody who goes on from the file learns from them; save between two updates, in on_rollout_start of a "
                "callback or after learn (docs/online/saving_and_resuming.md)",
                stacklevel=3,
            )
        super().save(path, exclude, include)

    def _rows_per_batch(self) -> int:
        if self.batch_size is None:
            return max(1, self.all_envs // 4)
        return min(self.all_envs, self.batch_size // self.n_steps)

    def _watched_rows(self) -> Tensor:
        """The one environment that the memory panel looks at, to cost little; another one every ``n_epochs`` epochs."""
        return torch.as_tensor([self._n_updates // self.n_epochs % self.n_envs], device=self.device)

    def _log_memory(self, segment: Segment) -> None:
        """Record the memory panel, which never changes an update."""
        watched = segment.rows(self._watched_rows())
        for name, value in memory_panel(lambda record: self.policy.evaluate_segment(watched, record)).items():
            self.logger.record(name, float(value))

    def _log_rollout(self, recorded: Recorded) -> None:
        """Record what all algorithms tell of the rollout that an update learned from, and of the head after it."""
        record, counts = self.logger.record, recorded.counts
        record("train/advantage_std", float(deviation_over(recorded.advantages, counts)))
        record("train/explained_variance", explained_variance(recorded.values, recorded.returns, counts))
        if (deviation := self.policy.action_head.standard_deviation()) is not None:
            record("train/std", float(deviation.detach()))
        record("train/n_updates", self._n_updates, exclude="tensorboard")


def _cut(infos: list[dict[str, Any]], dones: np.ndarray, observations: Any) -> list[dict[str, Any]]:
    """``infos`` in which the episodes that go on are cut by a limit, at these last observations."""

    def cut(row: int) -> dict[str, Any]:
        leaves = observations.items() if isinstance(observations, Mapping) else ()
        last = {key: leaf[row] for key, leaf in leaves} or observations[row]
        return infos[row] | {"terminal_observation": last, "TimeLimit.truncated": True}

    return [info if dones[row] else cut(row) for row, info in enumerate(infos)]


def check_batch_size(batch_size: int | None, n_steps: int) -> None:
    """Raise ConfigError unless minibatches hold whole segments."""
    if batch_size is not None and batch_size % n_steps:
        nearest = max(n_steps, round(batch_size / n_steps) * n_steps)
        raise ConfigError(
            f"batch_size ({batch_size}) must be a multiple of n_steps ({n_steps}), because segments are "
            f"kept whole; nearest that is: {nearest}"
        )
