"""Proximal Policy Optimization of a transformer policy with memory, as a Stable-Baselines3 algorithm.

A run is read from top to bottom: ``OnPolicyMemoryAgent`` collects segments and keeps the memory, ``train`` learns from
them. Checkpoints and environments are those of every ``OnlineAgent``. Axes: E environments, T steps.
"""

import math
import os
from collections.abc import Mapping
from dataclasses import replace
from typing import Annotated, Any, ClassVar

import torch
from annotated_types import Ge, Le
from gymnasium import spaces

from rltransformers.algorithms.ppo import PPOLoss, PPOWeights, next_rate_share, ppo_loss, standard_scores
from rltransformers.core.errors import ConfigError
from rltransformers.core.ranges import (
    Count,
    Fraction,
    NonNegativeNumber,
    PositiveNumber,
    Seed,
    Steps,
    UnitInterval,
    Weight,
    WholeNumber,
    check,
    strict,
)
from rltransformers.core.spaces import leaf_spaces
from rltransformers.data.rollout import Recorded
from rltransformers.policies.actor_critic import GTrXLPolicy
from rltransformers.policies.steps import Acting
from rltransformers.training import update
from rltransformers.training.online.carry import MemoryRefresh
from rltransformers.training.online.on_policy_agent import OnPolicyMemoryAgent
from rltransformers.training.schedules import Scheduled, as_schedule, value_at


class GTrXLPPO(OnPolicyMemoryAgent):
    """PPO (arXiv 1707.06347) with a transformer that remembers, GTrXL (arXiv 1910.06764) by default.

    Used like any Stable-Baselines3 algorithm: ``learn``, ``predict``, ``save``, ``load``, callbacks, logger,
    ``VecNormalize`` and ``evaluate_policy`` work as they do there.

    Args:
        policy: ``"GTrXLPolicy"``, or a subclass of it.
        env: environment id, a function or a class that makes an environment, Gymnasium environment, Stable-Baselines3
            ``VecEnv``, or Gymnasium vector environment in any autoreset mode. Observations and actions may be nested
            Dicts and Tuples. Its copies in this process are wrapped in a ``CheckedEnv`` from then on.
        learning_rate: a number; ``{"start": a, "end": b}`` for a linear change over the run (with ``"fraction": f``,
            over its first part f); or a function of the remaining progress (1 to 0).
        n_steps: length of a segment: steps per environment between two updates.
        batch_size: steps per minibatch; whole segments are kept together, so a multiple of ``n_steps``. None: a quarter
            of the environments, at least one.
        n_epochs: passes over the rollout per update.
        gamma: discount.
        gae_lambda: lambda of the generalized advantage estimate (GAE, arXiv 1506.02438).
        clip_range: bound of the probability ratio; number or schedule.
        clip_range_vf: bound of the change of the value; None for none.
        normalize_advantage: bring the advantages of a whole rollout to mean 0 and standard deviation 1.
        least_advantage_std: smallest standard deviation that advantages are divided by, in units of the scaled reward;
            keeps small errors of the critic from being scaled to unit size. None: 0.1 where they are normalized.
        ent_coef: weight of the entropy bonus; number or schedule.
        barrier_coef: weight of a log barrier, mean log-probability over all actions (Agarwal et al. 2021, arXiv
            1908.00261, section 5); number or schedule. Unlike that of the entropy bonus, its gradient does not vanish
            for improbable actions. Not for a Box of actions.
        vf_coef: weight of the value error.
        max_grad_norm: bound of the gradient norm.
        popart: let the value function learn in units in which returns have mean 0 and deviation 1 (PopArt, arXiv
            1809.04474); the step of its running statistics per minibatch. None: it learns in units of the reward.
        scale_rewards: divide rewards by the running deviation of the discounted return, as ``VecNormalize`` does; the
            statistics are part of the agent. Left to ``VecNormalize`` where that has ``norm_reward=True``.
        target_kl: stop an update when the approximate divergence exceeds 1.5 times this, and take smaller steps while
            updates stop early; None for neither.
        gradient_window: steps through which gradient flows inside a segment; None for the whole segment.
        memory_refresh: what happens to memory written by older weights. ``"never"``: it stays as it was written.
            ``"update"``: after every update the rollout is encoded again with the new weights, from the memory it
            started with, and acting goes on from there. ``"epoch"``: in addition, before every epoch but the first, the
            memory at the segment start is made anew by encoding the rollout before this one with the current weights.
        acting: ``"compiled"`` takes steps of acting as machine code, made once per kind of policy and machine (about
            half a minute), and kept in the user's cache folder; ``"eager"`` as PyTorch operations. Both compute the
            same.
        updates: ``"compiled"`` evaluates minibatches, forward and backward, as machine code, made once per size of a
            minibatch (about half a minute); ``"eager"`` as PyTorch operations. Both compute the same.
        stats_window_size: episodes in the reported means.
        tensorboard_log: folder for TensorBoard; None for no log.
        policy_kwargs: arguments of ``GTrXLPolicy`` as JSON values, or with a ``BackboneConfig`` under ``"backbone"``.
        verbose: 0 silent, 1 progress.
        seed: of weights, sampled actions, minibatches and environments; None for a random one.
        device: ``"auto"``, ``"cpu"``, ``"cuda"``.

    Raises:
        ConfigError: for a setting that cannot work, an unsupported space, or an unknown policy argument.

    The probability ratio of the first minibatch of every update is 1, because acting and training compute the same
    function; the largest deviation is logged as ``train/first_ratio_error``, and above 0.01 there is a warning.
    """

    kind = "GTrXLPPO"
    earlier_defaults: ClassVar[dict[str, Any]] = {
        "learning_rate": 3e-4, "n_epochs": 4, "target_kl": None, "least_advantage_std": 0.0
    }  # fmt: skip
    """What were the defaults until November 2026: ``GTrXLPPO(..., **GTrXLPPO.earlier_defaults)``."""
    scheduled = ("learning_rate", "clip_range", "clip_range_vf", "ent_coef", "barrier_coef")
    ent_coef: Scheduled  # type: ignore[assignment]  # always a number in Stable-Baselines3

    @strict
    def __init__(
        self,
        policy: str | type[GTrXLPolicy],
        env: Any,
        learning_rate: Scheduled = 5e-4,
        n_steps: Steps = 128,
        batch_size: Count | None = None,
        n_epochs: Annotated[int, Ge(1), Le(10**4)] = 10,
        gamma: UnitInterval = 0.99,
        gae_lambda: UnitInterval = 0.95,
        clip_range: Scheduled = 0.2,
        clip_range_vf: Scheduled | None = None,
        normalize_advantage: bool = True,
        least_advantage_std: NonNegativeNumber | None = None,
        ent_coef: Scheduled = 0.0,
        barrier_coef: Scheduled = 0.0,
        vf_coef: Weight = 0.5,
        max_grad_norm: PositiveNumber = 0.5,
        popart: Fraction | None = None,
        scale_rewards: bool = True,
        target_kl: PositiveNumber | None = 0.02,
        gradient_window: Count | None = None,
        memory_refresh: MemoryRefresh = "update",
        acting: Acting = "eager",
        updates: update.UpdateMode = "eager",
        stats_window_size: Annotated[int, Ge(1), Le(10**9)] = 100,
        tensorboard_log: str | os.PathLike[str] | None = None,
        policy_kwargs: Mapping[str, Any] | None = None,
        verbose: WholeNumber = 0,
        seed: Seed | None = None,
        device: torch.device | str = "auto",
        _init_setup_model: bool = True,
    ) -> None:
        super().__init__(
            policy,
            env,
            learning_rate=learning_rate,
            n_steps=n_steps,
            gamma=gamma,
            gae_lambda=gae_lambda,
            vf_coef=vf_coef,
            max_grad_norm=max_grad_norm,
            stats_window_size=stats_window_size,
            tensorboard_log=tensorboard_log,
            policy_kwargs=policy_kwargs,
            verbose=verbose,
            seed=seed,
            device=device,
            needs_env=_init_setup_model,
        )
        self.batch_size, self.n_epochs = batch_size, n_epochs
        self.popart, self.scale_rewards = popart, scale_rewards
        self.gradient_window, self.memory_refresh = gradient_window, memory_refresh
        self.acting, self.updates = acting, updates
        self.clip_range = as_schedule(clip_range, "clip_range")
        self.clip_range_vf = None if clip_range_vf is None else as_schedule(clip_range_vf, "clip_range_vf")
        # As it was given: callbacks written for Stable-Baselines3 read and replace it as a number.
        self.ent_coef = ent_coef
        self.barrier_coef = barrier_coef
        self.normalize_advantage = normalize_advantage
        self.least_advantage_std = least_advantage_std
        self.target_kl = target_kl
        self._rate_share = 1.0  # of the learning rate; less while updates stop early
        if _init_setup_model:
            self._setup_model()

    def check_together(self) -> None:
        super().check_together()
        boxes = any(isinstance(leaf, spaces.Box) for leaf in leaf_spaces(self.action_space).values())
        if self.barrier_coef != 0.0 and boxes:
            raise ConfigError("barrier_coef is for actions that can be counted; with a Box of actions use ent_coef")
        if self.least_advantage_std and not self.normalize_advantage:
            raise ConfigError(
                f"least_advantage_std={self.least_advantage_std} bounds what normalized advantages are divided by, but "
                "normalize_advantage is False; set normalize_advantage=True, or least_advantage_std=0"
            )
        if self.n_steps * self.all_envs == 1 and self.normalize_advantage:
            raise ConfigError(
                "one step of one environment has no advantages to normalize; raise n_steps or turn it off"
            )

    def train(self) -> None:
        """Improve the policy on the collected segments, then bring the acting memory up to date."""
        policy, carry, sharing, logger = self.policy, self.carry, self.sharing, self.logger
        segment = carry.segment
        assert segment is not None  # learn() collects before it trains
        self._begin_update()
        self._log_memory(segment)
        steps = recorded = Recorded(**sharing.all_gather(segment.numbers()))
        if self.normalize_advantage:
            least_std = 0.1 if self.least_advantage_std is None else self.least_advantage_std
            scores = standard_scores(recorded.advantages, recorded.counts, least_std)
            steps = replace(recorded, advantages=scores)
        names, progress = ("clip_range", "clip_range_vf", "ent_coef", "barrier_coef"), self._current_progress_remaining
        scheduled = {name: value_at(getattr(self, name), name, progress) for name in names}
        weights = PPOWeights(vf_coef=self.vf_coef, **scheduled)
        losses: list[PPOLoss] = []
        again, stops = segment, False
        for epoch in range(self.n_epochs):
            if epoch and carry.before is not None:
                with torch.no_grad():
                    again = replace(segment, memory=policy.memory_after(carry.before))
            for minibatch in update.minibatches(sharing, again, self._rows_per_batch(), self._batch_generator):
                batch = steps.rows(minibatch.rows)
                update.follow_returns(policy, batch)
                now = update.evaluate(self._evaluate, minibatch, sharing)
                loss = ppo_loss(now, batch, replace(weights, vf_coef=self.vf_coef * float(policy.value_units)))
                losses.append(update.add_auxiliary(loss, now, minibatch.segment.counts.numel(), sharing))
                stops = self.target_kl is not None and float(loss.approx_kl) > 1.5 * self.target_kl
                if stops:
                    break
                update.descend(
                    policy, losses[-1].total, policy.parameters(), self.max_grad_norm, self._n_updates, sharing
                )
            self._n_updates += 1
            if stops:
                break
        planned = self.n_epochs * math.ceil(self.all_envs / self._rows_per_batch())
        self._rate_share = next_rate_share(self._rate_share, (len(losses) - stops) / planned)
        update.maintain(policy, sharing)
        with torch.no_grad():
            memory, age = update.renew_memory(policy, segment, carry.acting, self.memory_refresh, self._watched_rows())
            carry.acting = policy.with_cache(memory)  # keys and values always follow the new weights
        if policy.action_head.readout is not None:
            policy.remember(segment)
        logger.record("memory/staleness", age)
        sharing.log_traffic(logger.record)
        self._log_update(recorded, losses, weights)

    def _update_learning_rate(self, optimizers: Any) -> None:
        """As in Stable-Baselines3, of which ``_rate_share`` is taken where ``target_kl`` may end updates."""
        super()._update_learning_rate(optimizers)
        if self.target_kl is None:
            self._rate_share = 1.0
        for group in self.policy.optimizer.param_groups:
            group["lr"] *= self._rate_share
        self.logger.record("train/learning_rate", self.policy.optimizer.param_groups[0]["lr"])

    def _own_tensors(self) -> dict[str, Any]:
        return {"rate_share": self._rate_share}

    def _restore_own(self, tensors: Mapping[str, Any], n_envs: int) -> None:
        self._rate_share = check(tensors["rate_share"], Fraction, "rate_share")

    def _log_update(self, recorded: Recorded, losses: list[PPOLoss], weights: PPOWeights) -> None:
        """Record means over the minibatches of an update, in the names of Stable-Baselines3."""
        record = self.logger.record
        names = {"policy_gradient_loss": "policy", "value_loss": "value"}
        update.log_losses(self.logger, losses, "approx_kl", "clip_fraction", **names)
        record("train/entropy_loss", -update.mean_of(losses, "entropy"))
        for name in ("clip_range", "clip_range_vf", "ent_coef"):
            if (value := getattr(weights, name)) is not None:
                record(f"train/{name}", value)
        if losses[0].log_barrier is not None and weights.barrier_coef:
            record("train/log_barrier", update.mean_of(losses, "log_barrier"))
            record("train/barrier_coef", weights.barrier_coef)
        self._log_rollout(recorded)
        update.log_ratio_error(self.logger, float(losses[0].ratio_error), self.sharing)
