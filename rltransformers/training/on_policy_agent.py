"""Base of online agents that learn from the steps just taken: rollouts and their ends, minibatches, the memory.

Axes: E environments, T steps.
"""

import os
import warnings
from collections.abc import Iterator, Mapping
from dataclasses import dataclass, fields, replace
from pathlib import Path
from typing import Any, Literal, TypeVar, cast

import numpy as np
import torch
from stable_baselines3.common.callbacks import BaseCallback
from stable_baselines3.common.on_policy_algorithm import OnPolicyAlgorithm
from stable_baselines3.common.vec_env import VecEnv
from torch import Tensor

from rltransformers.algorithms.ppo import PPOLoss
from rltransformers.algorithms.vmpo import VMPOLoss
from rltransformers.core.checkpoint import File
from rltransformers.core.device import find_device
from rltransformers.core.errors import ConfigError
from rltransformers.core.ranges import strict
from rltransformers.core.world import rows_of
from rltransformers.data.rollout import Recorded, RolloutBuffer, Segment, row_batches
from rltransformers.policies.actor_critic import GTrXLPolicy, SegmentEvaluation
from rltransformers.policies.memory_policy import PolicyState
from rltransformers.policies.own_policies import named_policy, policy_settings
from rltransformers.policies.popart import PopArt
from rltransformers.policies.steps import Acting
from rltransformers.training.distributed import check_shared, log_traffic
from rltransformers.training.memory_panel import memory_panel, staleness
from rltransformers.training.online_agent import OnlineAgent
from rltransformers.training.online_checkpoint import segment_of, segment_tensors
from rltransformers.training.rollout_settings import check_batch_size, check_room
from rltransformers.training.schedules import Scheduled, as_schedule
from rltransformers.training.vec_envs import as_vec_env

LossT = TypeVar("LossT", PPOLoss, VMPOLoss)
RATIO_TOLERANCE = 0.01
"""Of the first probability ratio of an update: far above rounding, in bfloat16 (4e-4) too."""
MemoryRefresh = Literal["never", "update", "epoch"]
"""Ways to treat memory written by older weights; the agents say what each does."""


@dataclass(frozen=True)
class Minibatch:
    """Whole segments of some environments.

    Attributes:
        rows: the environments, among those of all processes.
        segment: the segments of them that this process evaluates.
        outputs: what stands beside those [E, T, A]; None where nothing was handed in.
        takers: which process evaluates each of ``rows``; None for a process that is alone.
    """

    rows: Tensor
    segment: Segment
    outputs: Tensor | None
    takers: Tensor | None


class OnPolicyMemoryAgent(OnlineAgent, OnPolicyAlgorithm):
    """An online agent that collects a segment of every environment with a policy that remembers, and learns from it.

    An agent is a subclass with its constructor, ``train``, and where another policy than ``self.policy`` acts,
    ``_actor``. The arguments are described there; all are checked when they come here.
    """

    policy: GTrXLPolicy  # type: ignore[assignment]  # SB3 declares its own policy without memory

    def __init__(
        self,
        policy: str | type[GTrXLPolicy],
        env: Any,
        *,
        learning_rate: Scheduled,
        n_steps: int,
        batch_size: int | None,
        n_epochs: int,
        gamma: float,
        gae_lambda: float,
        vf_coef: float,
        max_grad_norm: float,
        popart: float | None,
        scale_rewards: bool,
        gradient_window: int | None,
        memory_refresh: MemoryRefresh,
        acting: Acting,
        stats_window_size: int,
        tensorboard_log: str | os.PathLike[str] | None,
        policy_kwargs: Mapping[str, Any] | None,
        verbose: int,
        seed: int | None,
        device: torch.device | str,
        has_env: bool,
    ) -> None:
        kind = named_policy(policy, self.policy_aliases)
        if env is None and has_env:
            raise ConfigError("env is None, but an agent learns in one: give an environment id or an environment")
        if isinstance(env, str):
            env = as_vec_env(env)
        policy_kwargs = policy_settings(kind, policy_kwargs or {}, "policy_kwargs.")
        super().__init__(
            kind,
            env,
            learning_rate=as_schedule(learning_rate, "learning_rate"),
            n_steps=n_steps,
            gamma=gamma,
            gae_lambda=gae_lambda,
            ent_coef=0.0,
            vf_coef=vf_coef,
            max_grad_norm=max_grad_norm,
            use_sde=False,
            sde_sample_freq=-1,
            stats_window_size=stats_window_size,
            tensorboard_log=None if tensorboard_log is None else os.fspath(tensorboard_log),
            policy_kwargs=policy_kwargs,
            verbose=verbose,
            seed=seed,
            device=find_device(device),
            _init_setup_model=False,
        )
        self.batch_size = batch_size
        self.n_epochs = n_epochs
        self.popart = popart
        self.scale_rewards = scale_rewards
        self.gradient_window = gradient_window
        self.memory_refresh = memory_refresh
        self.acting = acting

    def _setup_model(self) -> None:
        check_batch_size(self.batch_size, self.n_steps)
        self._check_settings()
        rows = self._rows_per_batch()
        check_shared(self.world, self.policy_kwargs.get("readout"), rows, self.all_envs % rows or rows)
        check_room(self.n_envs, self.n_steps, self.observation_space, self.device)
        self._make_policy(self.popart)
        self.rollout_buffer = RolloutBuffer(  # type: ignore[assignment]  # segments with memory in place of SB3's buffer
            self.n_envs, self.n_steps, self.policy.seen_leaves, self.action_space, self.device
        )
        self._begin_run()
        self._rollout_from: int | None = None  # steps at the start of a rollout that no update has learned from yet

    def _check_settings(self) -> None:
        """Raise ConfigError unless the agent's own settings agree with each other and with the spaces."""

    @property
    def _actor(self) -> GTrXLPolicy:
        """The policy that acts while a rollout is collected."""
        return self.policy

    # Rollout

    def collect_rollouts(self, env: VecEnv, callback: BaseCallback, rollout_buffer: Any, n_rollout_steps: int) -> bool:
        """One segment of every environment; False when a callback ends training.

        Of several processes the one whose callback does so fills its segment first, as the others count on it; then
        all of them end.
        """
        buffer: RolloutBuffer = rollout_buffer
        self._rollout_from = self.num_timesteps
        policy, state = self._actor, self._acting
        policy.set_training_mode(False)
        buffer.reset(policy.without_cache(state), state.previous_action, state.previous_reward)
        before = self.num_timesteps
        callback.on_rollout_start()
        if self._moved:
            self._reset_environments()
        segment_before = self._segment if self.memory_refresh == "epoch" else None
        self._segment = None  # until this one is whole: what follows a rollout that was given up follows no segment
        leaves = policy.leaves_to_tensors(self._guard.leaves(self._last_obs))
        going_on = True
        while not buffer.full:
            episode_starts = cast(np.ndarray, self._last_episode_starts)
            first = self._to_device(episode_starts)
            noise = self._own_rows(policy.action_head.draw(self.all_envs, self._action_generator))
            actions, values, log_probs, state = policy.step(leaves, self._acting, first, noise, overwrites=True)
            clipped_actions = policy.environment_actions(actions)
            new_obs, rewards, dones, infos, counts, _ = self._step_environments(clipped_actions, state)
            callback.update_locals(locals())
            going_on = bool(callback.on_step()) and going_on
            if not going_on and self.world.alone:
                self._rollout_from = None
                return False
            self._update_info_buffer(infos, dones)
            if self._moved:  # by the callback: these episodes end here, as cut by a limit
                infos, dones = _cut(infos, dones, new_obs), np.ones_like(dones)
                new_obs = self._reset_environments()
            buffer.add(leaves, actions, rewards, episode_starts, dones, values, log_probs, counts)
            if np.count_nonzero(dones):
                self._bootstrap(buffer, self._acting, *self._guard.last_leaves(dones, infos))
            leaves = policy.leaves_to_tensors(self._guard.leaves(new_obs))
        if not self._share_rollout(before, going_on):
            self._rollout_from = None
            return False
        last_values = policy.values(leaves, self._acting, self._to_device(self._last_episode_starts))
        self._segment_before = segment_before
        self._segment = buffer.finish(last_values, self.gamma, self.gae_lambda)
        callback.update_locals(locals())
        callback.on_rollout_end()
        return True

    def _bootstrap(
        self, buffer: RolloutBuffer, state: PolicyState, cut: list[int], leaves: Mapping[str, np.ndarray]
    ) -> None:
        """Value episodes that a limit cut, at their true last observation and with the memory of that moment."""
        if cut:
            rows = self._to_device(cut)
            goes_on = torch.zeros(len(cut), dtype=torch.bool, device=self.device)
            buffer.truncate(rows, self._actor.values(self._actor.leaves_to_tensors(leaves), state[rows], goes_on))

    # Files

    @strict
    def save(self, path: File, exclude: Any = None, include: Any = None) -> None:
        """As ``OnlineAgent.save``; for a run that goes on as if it had not stopped between two updates.

        That is in ``on_rollout_start`` of a callback, or after ``learn``. Steps since the last update are counted, but
        no part of a file.

        Warns:
            UserWarning: of such steps. Not of ``best_model``, which ``EvalCallback`` keeps for its weights.
        """
        lost = 0 if self._rollout_from is None else self.num_timesteps - self._rollout_from
        if lost and not (isinstance(path, str | os.PathLike) and Path(path).stem == "best_model"):
            warnings.warn(
                f"saved at step {self.num_timesteps:,}, inside a rollout: its {lost:,} steps so far are counted, and "
                "nobody who goes on from the file learns from them; save between two updates, in on_rollout_start of a "
                "callback or after learn (docs/online.md, Stopping and resuming)",
                UserWarning,
                stacklevel=3,
            )
        super().save(path, exclude, include)

    # Update

    def _begin_update(self) -> None:
        self._rollout_from = None
        super()._begin_update()

    def _look_at_memory(self, segment: Segment) -> None:
        """Log what the memory is used for."""
        if not self.world.leads:
            return
        watched = segment.rows(self._watched_rows())
        for name, value in memory_panel(lambda record: self.policy.evaluate_segment(watched, record)).items():
            self.logger.record(name, float(value))

    def _log_ratio_error(self, error: float) -> None:
        """Log how far the first probability ratio of an update is from 1; warn of more than rounding makes of it."""
        self.logger.record("train/first_ratio_error", error)
        if error > RATIO_TOLERANCE and self.world.leads:
            warnings.warn(
                f"acting and training disagree: train/first_ratio_error is above {RATIO_TOLERANCE}, where rounding "
                "leaves 1e-4; the agent learns about actions that it would not have drawn. Parts of your own may see "
                'more, or other, than one step at a time (docs/conformance.md); acting="eager" leaves out the compiler',
                UserWarning,
                stacklevel=2,
            )

    def _end_update(self, segment: Segment) -> None:
        """Let mixers that learn from what they saw, the memory and the readout follow the new weights."""
        self._maintain()
        self._refresh_memory(segment)
        self.policy.remember(segment)
        log_traffic(self.logger, self.world)

    def _rows_per_batch(self) -> int:
        if self.batch_size is None:
            return max(1, self.all_envs // 4)
        return min(self.all_envs, self.batch_size // self.n_steps)

    def _recorded(self, segment: Segment) -> Recorded:
        """The segments of all processes."""
        own = {each.name: getattr(segment, each.name) for each in fields(Recorded)}
        return Recorded(**self.world.rows_of_all(own))

    def _minibatches(self, segment: Segment, outputs: Tensor | None = None) -> Iterator[Minibatch]:
        """The environments of all processes in random order, a minibatch at a time, the last of which may be smaller.

        Args:
            segment: of the environments of this process.
            outputs: what goes with them [E, T, A].
        """
        device = segment.rewards.device
        batches = row_batches(self.all_envs, self._rows_per_batch(), self._batch_generator)
        if self.world.alone:
            for rows in batches:
                rows = rows.to(device)
                yield Minibatch(rows, segment.rows(rows), None if outputs is None else outputs[rows], None)
            return
        # Every process takes its share of every minibatch. What it lacks of it changes hands before the epoch.
        owners = [rows // self.n_envs for rows in batches]
        takers = [self.world.takers(each) for each in owners]
        order = torch.cat(batches)
        own = (order[torch.cat(owners) == self.world.rank] % self.n_envs).to(device)
        held = {"segment": rows_of(segment_tensors(segment), own), "outputs": None if outputs is None else outputs[own]}
        taken = self.world.exchange(held, torch.cat(owners), torch.cat(takers))
        begin = 0
        for rows, who in zip(batches, takers, strict=True):
            part = rows_of(taken, slice(begin, begin := begin + int((who == self.world.rank).sum())))
            yield Minibatch(rows.to(device), segment_of(part["segment"]), part["outputs"], who)

    def _of_all(self, now: SegmentEvaluation, part: Segment, counts: Tensor, takers: Tensor) -> SegmentEvaluation:
        """Evaluation of a minibatch by all processes, each of its part, whose steps that count are ``counts`` [B, T].

        The auxiliary losses of the network are means over steps, and weighted by their number.
        """
        names = ("log_probs", "values", "entropy", "log_barrier")
        found = self.world.whole({name: getattr(now, name) for name in names}, takers)
        last, weight = now.last, part.counts.sum() / counts.sum().clamp(min=1)
        if last.auxiliary_loss is not None:
            losses = {name: self.world.total(weight * value.detach()) for name, value in last.losses.items()}
            last = replace(last, auxiliary_loss=self.world.total(weight * last.auxiliary_loss), losses=losses)
        return replace(now, **found, last=last)

    def _follow_returns(self, batch: Recorded) -> None:
        """With PopArt: statistics first, the fit to them after."""
        head = self.policy.value_net
        if isinstance(head, PopArt) and bool(batch.counts.any()):
            head.follow(batch.returns[batch.counts])

    def _weight(self, name: str) -> float:
        """A scheduled setting at this point of the run, whatever it is by now: number, dictionary, function."""
        return as_schedule(getattr(self, name), name)(self._current_progress_remaining)

    def _descend(self, loss: Tensor) -> None:
        self._step(loss, self.policy.parameters())

    # Memory

    @torch.no_grad()
    def _memory_after(self, segment: Segment) -> PolicyState:
        return self.policy.memory_after(segment)

    def _refresh_memory(self, segment: Segment) -> None:
        """Keys and values of the acting memory always follow the new weights; what they are made from may too."""
        renewed = self._renewed_memory(segment)
        with torch.no_grad():
            self._acting = self.policy.with_cache(renewed)

    def _renewed_memory(self, segment: Segment) -> PolicyState:
        """The memory after a segment, as ``memory_refresh`` wants it; how old the one of acting was is logged."""
        stored = self.policy.without_cache(self._acting)
        if self.memory_refresh == "never":
            rows = self._watched_rows()
            age = staleness(stored[rows], self._memory_after(segment.rows(rows)))
            renewed = stored
        else:
            renewed = self._memory_after(segment)
            age = staleness(stored, renewed)
        self.logger.record("memory/staleness", age)
        return renewed

    def _watched_rows(self) -> Tensor:
        """The one environment that the memory panel looks at, to cost little: another one in every update."""
        return torch.as_tensor([self._n_updates // self.n_epochs % self.n_envs], device=self.device)


def _cut(infos: list[dict[str, Any]], dones: np.ndarray, observations: Any) -> list[dict[str, Any]]:
    """``infos`` in which the episodes that go on are cut by a limit, at these last observations."""

    def cut(row: int) -> dict[str, Any]:
        leaves = observations.items() if isinstance(observations, Mapping) else ()
        last = {key: leaf[row] for key, leaf in leaves} or observations[row]
        return infos[row] | {"terminal_observation": last, "TimeLimit.truncated": True}

    return [info if dones[row] else cut(row) for row, info in enumerate(infos)]


def with_auxiliary(loss: LossT, now: SegmentEvaluation) -> LossT:
    """The loss with those of the network itself, which are in the evaluation it was made of."""
    if now.last.auxiliary_loss is None:
        return loss
    named = {name: value.detach() for name, value in now.last.losses.items()}
    return replace(loss, total=loss.total + now.last.auxiliary_loss, auxiliary=named)
