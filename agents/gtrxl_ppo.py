"""Proximal Policy Optimisation of a transformer policy with memory, as a Stable-Baselines3 algorithm.

A run is read from top to bottom: collect segments, update on them, refresh the memory. Checkpoints and environments are
those of every ``OnlineAgent``. Axes: E environments, T steps.
"""

import os
from collections.abc import Mapping
from dataclasses import replace
from typing import Annotated, Any, Literal, Self, cast

import numpy as np
import torch
from annotated_types import Ge, Le, Lt
from stable_baselines3.common.callbacks import BaseCallback
from stable_baselines3.common.type_aliases import MaybeCallback
from stable_baselines3.common.vec_env import VecEnv
from torch import Tensor

from rltransformers.algorithms.ppo import PPOLoss, PPOWeights, ppo_loss, standard_scores
from rltransformers.core.device import find_device
from rltransformers.core.errors import ConfigError, DataError
from rltransformers.core.guard import attempt
from rltransformers.core.ranges import (
    Count,
    NonNegativeNumber,
    PositiveNumber,
    Seed,
    Steps,
    UnitInterval,
    Weight,
    WholeNumber,
    strict,
)
from rltransformers.data.rollout import RolloutBuffer, Segment, minibatches
from rltransformers.policies.actor_critic import GTrXLPolicy, PolicyState, check_policy_settings, rewarded
from rltransformers.policies.observations import tree_space
from rltransformers.policies.steps import Acting, ActorCriticMachine
from rltransformers.training.memory_panel import memory_panel, staleness
from rltransformers.training.online_agent import OnlineAgent
from rltransformers.training.ppo_log import log_update
from rltransformers.training.rollout_settings import (
    check_advantages,
    check_barrier,
    check_batch_size,
    check_room,
    json_kwargs,
)
from rltransformers.training.schedules import Scheduled, as_schedule
from rltransformers.training.vec_envs import as_vec_env
from rltransformers.training.watch import Watch

KIND = "GTrXLPPO"
MemoryRefresh = Literal["never", "update", "epoch"]


class GTrXLPPO(OnlineAgent):
    """PPO (arXiv 1707.06347) with a transformer that remembers, GTrXL (arXiv 1910.06764) by default.

    Used like any Stable-Baselines3 algorithm: ``learn``, ``predict``, ``save``, ``load``, callbacks, logger,
    ``VecNormalize`` and ``evaluate_policy`` work as they do there.

    Args:
        policy: ``"GTrXLPolicy"``.
        env: environment id, Gymnasium environment, Stable-Baselines3 ``VecEnv``, or Gymnasium vector environment in any
            autoreset mode. Observations may be nested Dicts and Tuples. Its copies in this process are wrapped in a
            ``CheckedEnv`` from then on.
        learning_rate: a number; ``{"start": a, "end": b}`` for a linear change over the run (with ``"fraction": f``,
            over its first part f); or a function of the remaining progress (1 to 0).
        n_steps: length of a segment: steps per environment between two updates.
        batch_size: steps per minibatch; whole segments are kept together, so a multiple of ``n_steps``. None: a quarter
            of the environments, at least one.
        n_epochs: passes over the rollout per update.
        gamma: discount.
        gae_lambda: trace of the generalised advantage estimate.
        clip_range: bound of the probability ratio; number or schedule.
        clip_range_vf: bound of the change of the value; None for none.
        normalize_advantage: bring the advantages of a whole rollout to mean 0 and standard deviation 1.
        least_advantage_std: normalised advantages are divided by at least this much, so that the critic's noise is not
            blown up once returns are foreseen; in units of the reward.
        ent_coef: weight of the entropy bonus; number or schedule.
        barrier_coef: weight of a log barrier, mean log-probability over all actions (Agarwal et al. 2021, arXiv
            1908.00261, section 5); number or schedule. Its pull does not fade as an action becomes improbable, which
            that of the entropy does, so no action is given up for good. Not for a Box of actions.
        vf_coef: weight of the value error.
        max_grad_norm: bound of the gradient norm.
        target_kl: stop an update when the approximate divergence exceeds 1.5 times this; None to never stop.
        gradient_window: steps through which gradient flows inside a segment; None for the whole segment.
        memory_refresh: what happens to memory written by older weights. ``"never"``: it stays as it was written.
            ``"update"``: after every update the rollout is encoded again with the new weights, from the memory it
            started with, and acting goes on from there. ``"epoch"``: in addition, before every epoch but the first, the
            memory at the segment start is made anew by encoding the rollout before this one with the current weights.
        acting: ``"compiled"`` takes steps of acting as machine code, made once per kind of policy and machine (about
            half a minute), and kept in the user's cache folder; ``"eager"`` as PyTorch operations. Both compute the
            same.
        stats_window_size: episodes in the reported means.
        tensorboard_log: folder for TensorBoard; None for no log.
        policy_kwargs: arguments of ``GTrXLPolicy`` as JSON values, or with a ``BackboneConfig`` under ``"backbone"``.
        verbose: 0 silent, 1 progress.
        seed: of weights, sampled actions, minibatches and environments; None for a random one.
        device: ``"auto"``, ``"cpu"``, ``"cuda"``.

    Raises:
        ConfigError: for a setting that cannot work, an unsupported space, or an unknown policy argument.

    The probability ratio of the first minibatch of every update is 1, because acting and training compute the same
    function; the largest deviation is logged as ``train/first_ratio_error``.
    """

    kind = KIND
    scheduled = ("learning_rate", "clip_range", "clip_range_vf", "ent_coef", "barrier_coef")
    ent_coef: Scheduled  # type: ignore[assignment]  # always a number in Stable-Baselines3

    @strict
    def __init__(
        self,
        policy: str | type[GTrXLPolicy],
        env: Any,
        learning_rate: Scheduled = 3e-4,
        n_steps: Steps = 128,
        batch_size: Count | None = None,
        n_epochs: Annotated[int, Ge(1), Le(10**4)] = 4,
        gamma: UnitInterval = 0.99,
        gae_lambda: UnitInterval = 0.95,
        clip_range: Scheduled = 0.2,
        clip_range_vf: Scheduled | None = None,
        normalize_advantage: bool = True,
        least_advantage_std: NonNegativeNumber = 0.0,
        ent_coef: Scheduled = 0.0,
        barrier_coef: Scheduled = 0.0,
        vf_coef: Weight = 0.5,
        max_grad_norm: PositiveNumber = 0.5,
        target_kl: PositiveNumber | None = None,
        gradient_window: Count | None = None,
        memory_refresh: MemoryRefresh = "update",
        acting: Acting = "eager",
        stats_window_size: Annotated[int, Ge(1), Le(10**9)] = 100,
        tensorboard_log: str | os.PathLike[str] | None = None,
        policy_kwargs: Mapping[str, Any] | None = None,
        verbose: WholeNumber = 0,
        seed: Seed | None = None,
        device: torch.device | str = "auto",
        _init_setup_model: bool = True,
    ) -> None:
        if policy not in ("GTrXLPolicy", GTrXLPolicy):
            raise ConfigError(f"policy must be 'GTrXLPolicy', got {policy!r}; the network is chosen in policy_kwargs")
        if env is None and _init_setup_model:
            raise ConfigError("env is None, but an agent learns in one: give an environment id or an environment")
        if isinstance(env, str):
            env = as_vec_env(env)
        policy_kwargs = check_policy_settings(json_kwargs(policy_kwargs), "policy_kwargs.")
        super().__init__(
            "GTrXLPolicy",
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
        self.clip_range = as_schedule(clip_range, "clip_range")
        self.clip_range_vf = None if clip_range_vf is None else as_schedule(clip_range_vf, "clip_range_vf")
        # As it was given: callbacks written for Stable-Baselines3 read and replace it as a number.
        self.ent_coef = ent_coef
        self.barrier_coef = barrier_coef
        self.normalize_advantage = normalize_advantage
        self.least_advantage_std = least_advantage_std
        self.target_kl = target_kl
        self.gradient_window = gradient_window
        self.memory_refresh = memory_refresh
        self.acting = acting
        if _init_setup_model:
            self._setup_model()

    def _setup_model(self) -> None:
        check_barrier(self.barrier_coef, self.action_space)
        check_batch_size(self.batch_size, self.n_steps)
        check_advantages(self.normalize_advantage, self.least_advantage_std, self.n_steps * self.n_envs)
        check_room(self.n_envs, self.n_steps, self.observation_space, self.device)
        self._setup_lr_schedule()
        self._set_random_streams()
        self.policy = GTrXLPolicy(self.observation_space, self.action_space, self.lr_schedule, **self.policy_kwargs)
        self.policy = self.policy.to(self.device)
        if self.acting == "compiled":
            self.policy.machine_code = ActorCriticMachine(self.policy)
        self.rollout_buffer = RolloutBuffer(  # type: ignore[assignment]  # segments with memory in place of SB3's buffer
            self.n_envs, self.n_steps, tree_space(self.observation_space), self.action_space, self.device
        )
        self._begin_run()

    # Rollout

    def collect_rollouts(self, env: VecEnv, callback: BaseCallback, rollout_buffer: Any, n_rollout_steps: int) -> bool:
        """One segment of every environment; False when a callback ends training."""
        buffer: RolloutBuffer = rollout_buffer
        policy = self.policy
        policy.set_training_mode(False)
        state = self._acting
        buffer.reset(policy.without_cache(state), state.previous_action, state.previous_reward)
        callback.on_rollout_start()
        watch = Watch(env, self._vec_normalize_env, self._leaf_spaces)
        leaves = policy.leaves_to_tensors(watch.observation(self._last_obs, self._place))
        none = np.zeros(self.n_envs, bool)
        while not buffer.full:
            first = self._to_device(self._last_episode_starts)
            noise = policy.action_head.draw(self.n_envs, self._action_generator)
            actions, values, log_probs, state = policy.step(leaves, state, first, noise, overwrites=True)
            clipped_actions = policy.environment_actions(actions)
            when = f"at step {self.num_timesteps // self.n_envs + 1} of this run"
            new_obs, rewards, dones, infos = attempt(env, when, env.step, clipped_actions)
            watch.outcome(rewards, dones, when)
            marks = [info.get("reset_row", False) for info in infos]
            resets = np.array(marks, bool) if any(marks) else none
            self.num_timesteps += env.num_envs - int(np.count_nonzero(resets))
            self._acting = state = rewarded(state, rewards)
            self._last_obs = cast(Any, new_obs)  # may be a tuple here, which SB3's declaration leaves out
            # After a reset row the observation is the first of an episode; the row itself was an episode of its own.
            self._last_episode_starts, starts = dones | resets, self._last_episode_starts
            callback.update_locals(locals())
            if not callback.on_step():
                return False
            self._update_info_buffer(infos, dones)
            buffer.add(leaves, actions, rewards, starts, dones, values, log_probs, ~resets)
            if np.count_nonzero(dones):
                self._bootstrap(buffer, state, *watch.last_observations(dones, infos, self._place))
            leaves = policy.leaves_to_tensors(watch.observation(new_obs, self._place))
        last_values = policy.values(leaves, state, self._to_device(self._last_episode_starts))
        self._segment_before = self._segment if self.memory_refresh == "epoch" else None
        self._segment = buffer.finish(last_values, self.gamma, self.gae_lambda)
        callback.update_locals(locals())
        callback.on_rollout_end()
        return True

    def _place(self, row: int) -> str:
        return f"{row} at step {self.num_timesteps // self.n_envs} of this run"

    def _bootstrap(
        self, buffer: RolloutBuffer, state: PolicyState, cut: list[int], leaves: Mapping[str, np.ndarray]
    ) -> None:
        """Value episodes that a limit cut, at their true last observation and with the memory of that moment."""
        if cut:
            rows = self._to_device(cut)
            goes_on = torch.zeros(len(cut), dtype=torch.bool, device=self.device)
            buffer.truncate(rows, self.policy.values(self.policy.leaves_to_tensors(leaves), state[rows], goes_on))

    # Update

    def train(self) -> None:
        """Improve the policy on the collected segments, then bring the acting memory up to date."""
        segment = self._segment
        assert segment is not None  # learn() collects before it trains
        self.policy.set_training_mode(True)
        self.policy.progress = 1.0 - self._current_progress_remaining
        self._update_learning_rate(self.policy.optimizer)
        watched = segment.rows(self._watched_rows())
        for name, value in memory_panel(lambda record: self.policy.evaluate_segment(watched, record)).items():
            self.logger.record(name, float(value))
        losses = self._optimise(segment)
        for part in self.policy.backbones():
            part.backbone.maintain()
        self._refresh_memory(segment)
        self.policy.remember(segment)
        self._log_update(segment, losses)

    def _optimise(self, segment: Segment) -> list[PPOLoss]:
        if self.normalize_advantage:
            advantages = standard_scores(segment.advantages, segment.counts, self.least_advantage_std)
            segment = replace(segment, advantages=advantages)
        losses: list[PPOLoss] = []
        for epoch in range(self.n_epochs):
            if epoch and self._segment_before is not None:
                segment = replace(segment, memory=self._memory_after(self._segment_before))
            for batch in minibatches(segment, self._rows_per_batch(), self._batch_generator):
                loss = self._loss(batch)
                losses.append(loss)
                if self.target_kl is not None and float(loss.approx_kl) > 1.5 * self.target_kl:
                    self._n_updates += 1
                    return losses
                self._descend(loss.total)
            self._n_updates += 1
        return losses

    def _rows_per_batch(self) -> int:
        if self.batch_size is None:
            return max(1, self.n_envs // 4)
        return min(self.n_envs, self.batch_size // self.n_steps)

    def _loss(self, batch: Segment) -> PPOLoss:
        now = self.policy.evaluate_segment(batch, gradient_window=self.gradient_window)
        loss = ppo_loss(now, batch, self._loss_weights())
        if now.last.auxiliary_loss is not None:
            named = {name: value.detach() for name, value in now.last.losses.items()}
            loss = replace(loss, total=loss.total + now.last.auxiliary_loss, auxiliary=named)
        return loss

    def _loss_weights(self) -> PPOWeights:
        progress = self._current_progress_remaining
        return PPOWeights(
            clip_range=self.clip_range(progress),
            clip_range_vf=None if self.clip_range_vf is None else self.clip_range_vf(progress),
            ent_coef=self._weight("ent_coef"),
            vf_coef=self.vf_coef,
            barrier_coef=self._weight("barrier_coef"),
        )

    def _weight(self, name: str) -> float:
        """A bonus at this point of the run, whatever it is given as by now: number, dictionary, function."""
        return as_schedule(getattr(self, name), name)(self._current_progress_remaining)

    def _descend(self, loss: Tensor) -> None:
        if not torch.isfinite(loss):
            raise DataError(
                f"the loss of update {self._n_updates} is {float(loss)}; rewards or observations may be far too large "
                "(VecNormalize scales them), or learning_rate too high"
            )
        self.policy.optimizer.zero_grad()
        loss.backward()
        torch.nn.utils.clip_grad_norm_(self.policy.parameters(), self.max_grad_norm)
        self.policy.optimizer.step()
        for part in self.policy.backbones():
            part.backbone.constrain_()

    # Memory

    @torch.no_grad()
    def _memory_after(self, segment: Segment) -> PolicyState:
        return self.policy.memory_after(segment)

    def _refresh_memory(self, segment: Segment) -> None:
        """Keys and values of the acting memory always follow the new weights; what they are made from may too."""
        stored = self.policy.without_cache(self._acting)
        if self.memory_refresh == "never":
            rows = self._watched_rows()
            age = staleness(stored[rows], self._memory_after(segment.rows(rows)))
            renewed = stored
        else:
            renewed = self._memory_after(segment)
            age = staleness(stored, renewed)
        self.logger.record("memory/staleness", age)
        with torch.no_grad():
            self._acting = self.policy.with_cache(renewed)

    def _watched_rows(self) -> Tensor:
        """The one environment that the memory panel looks at, to cost little: another one in every update."""
        return torch.as_tensor([self._n_updates % self.n_envs], device=self.device)

    def _log_update(self, segment: Segment, losses: list[PPOLoss]) -> None:
        deviation = self.policy.action_head.standard_deviation()
        log_update(self.logger, segment, losses, self._loss_weights(), deviation)
        self.logger.record("train/n_updates", self._n_updates, exclude="tensorboard")

    # Use

    @strict
    def learn(
        self,
        total_timesteps: Annotated[int, Ge(0), Lt(2**63)],
        callback: MaybeCallback = None,
        log_interval: Count = 1,
        tb_log_name: str = KIND,
        reset_num_timesteps: bool = True,
        progress_bar: bool = False,
    ) -> Self:
        """Train for at least ``total_timesteps`` environment steps (whole rollouts) and return self.

        Raises:
            DataError: when an observation, a reward or a flag is none of the space, or the environment raises an
                exception (chained); names the environment and the step.
            ConfigError: when the agent was loaded without an environment.
        """
        if self.env is None:
            raise ConfigError("this agent has no environment to learn in; load it with GTrXLPPO.load(path, env=env)")
        return super().learn(
            total_timesteps,
            callback=callback,
            log_interval=log_interval,
            tb_log_name=tb_log_name,
            reset_num_timesteps=reset_num_timesteps,
            progress_bar=progress_bar,
        )

    def predict(
        self,
        observation: Any,
        state: Any = None,
        episode_start: np.ndarray | None = None,
        deterministic: bool = False,
        reward: np.ndarray | float | None = None,
    ) -> tuple[Any, Any]:
        """Actions for one observation or a batch, and the state to pass in next; see ``GTrXLPolicy.predict``.

        Sampled actions come from a random stream of their own: predicting never changes a training run.
        """
        return self.policy.predict(observation, state, episode_start, deterministic, reward, self._predict_generator)
