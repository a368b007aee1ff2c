"""V-MPO (maximum a posteriori policy optimization on policy) of a transformer with memory, for Stable-Baselines3.

A run is read from top to bottom: ``OnPolicyMemoryAgent`` collects segments with the target policy, ``train`` improves
the learner on them and now and then makes the target a copy of it. Axes: E environments, T steps, A outputs.
"""

import copy
import os
from collections.abc import Mapping
from dataclasses import replace
from typing import Annotated, Any

import torch
from annotated_types import Ge, Gt, Le
from stable_baselines3.common.utils import update_learning_rate

from rltransformers.algorithms.vmpo import Multipliers, VMPOBounds, VMPOLoss, vmpo_loss
from rltransformers.core.checkpoint import check_same
from rltransformers.core.ranges import (
    Count,
    Fraction,
    PositiveNumber,
    Seed,
    Steps,
    UnitInterval,
    Weight,
    WholeNumber,
    check,
    strict,
)
from rltransformers.data.rollout import Recorded
from rltransformers.functional.modules import approach
from rltransformers.policies.actor_critic import GTrXLPolicy
from rltransformers.policies.popart import PopArt
from rltransformers.policies.steps import Acting
from rltransformers.training import update
from rltransformers.training.online.carry import MemoryRefresh
from rltransformers.training.online.on_policy_agent import OnPolicyMemoryAgent
from rltransformers.training.parameters import uncompiled
from rltransformers.training.schedules import Scheduled

MIN_STEPS = 256
"""Of a minibatch by default: the median and the soft maximum of fewer advantages are mostly noise."""
Bound = Annotated[float, Gt(0), Le(1e6)]
Multiplier = Annotated[float, Ge(1e-8), Le(1e6)]


class GTrXLVMPO(OnPolicyMemoryAgent):
    """V-MPO (arXiv 1909.12238), the algorithm of the GTrXL paper (arXiv 1910.06764), with a transformer that remembers.

    ``policy`` is the learner, which ``predict`` and ``export`` use; ``target`` is the policy that acts in training.

    Args:
        policy, env, learning_rate, n_epochs, gamma, max_grad_norm, popart, scale_rewards: as for ``GTrXLPPO``.
        gradient_window, acting, stats_window_size, tensorboard_log, verbose, seed, device: as for ``GTrXLPPO``.
        n_steps: length of a segment: steps per environment between two updates. Returns are bootstrapped at its end.
        batch_size: steps per minibatch; whole segments are kept together, so a multiple of ``n_steps``. The better half
            of a minibatch is what the policy learns from, so 256 and more. None: a quarter of the environments, more
            where that is below 256 steps.
        target_update_interval: gradient steps of the learner after which the target becomes a copy of it; copies are
            made between rollouts, so that all steps of one are of one policy.
        tau: share of the learner in a renewed target, as in Stable-Baselines3: 1 makes it a copy; below 1 it is an
            average of past learners, which the learner is kept close to, and which goes on with the memory it has.
        eps_eta: bound of the divergence of the weights of the better half from uniform ones, in nats.
        eps_alpha: bound of the divergence of the learner from the target, of actions that can be counted, in nats.
        eps_mean: bound of the divergence of the learner from the target for the mean of Box actions, in nats.
        eps_covariance: the same for the covariance of Box actions, in nats.
        eta_init: first temperature, in units of the reward.
        alpha_init: first penalty of every bound.
        multiplier_learning_rate: of the temperature and the penalties; Adam moves their logarithms by this much a step.
        vf_coef: weight of the value error, half a squared difference.
        memory_refresh: which memory the learner begins a segment with. ``"never"``: what the target wrote while it
            acted, made by older weights. ``"update"``: its own, made by encoding every rollout again after the update
            on it; a target that becomes a copy of the learner takes this memory over. ``"epoch"``: in addition, before
            every epoch but the first, made anew by encoding the rollout before this one with the current weights.
        policy_kwargs: arguments of ``GTrXLPolicy`` as JSON values, or with a ``BackboneConfig`` under ``"backbone"``;
            ``{"shared_backbone": False}`` gives the value function a trunk of its own.

    Raises:
        ConfigError: for a setting that cannot work, an unsupported space, or an unknown policy argument.

    Advantages are raw: the return of the segment (lambda 1, with the values of the target where it ends) minus the
    value that the learner gave before the update. There is no probability ratio and no entropy bonus.
    """

    kind = "GTrXLVMPO"
    per_environment = (*OnPolicyMemoryAgent.per_environment, "own_memory")
    scheduled = ("learning_rate",)
    parts = (*OnPolicyMemoryAgent.parts, "target", "multipliers", "multiplier_optimizer")

    @strict
    def __init__(
        self,
        policy: str | type[GTrXLPolicy],
        env: Any,
        learning_rate: Scheduled = 1e-3,
        n_steps: Steps = 128,
        batch_size: Count | None = None,
        n_epochs: Annotated[int, Ge(1), Le(10**4)] = 4,
        gamma: UnitInterval = 0.99,
        target_update_interval: Count = 10,
        tau: Fraction = 1.0,
        eps_eta: Bound = 0.1,
        eps_alpha: Bound = 0.01,
        eps_mean: Bound = 0.01,
        eps_covariance: Bound = 5e-5,
        eta_init: Multiplier = 1.0,
        alpha_init: Multiplier = 1.0,
        multiplier_learning_rate: Weight = 1e-2,
        vf_coef: Weight = 1.0,
        max_grad_norm: PositiveNumber = 0.5,
        popart: Fraction | None = None,
        scale_rewards: bool = True,
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
            gae_lambda=1.0,
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
        self.target_update_interval, self.tau = target_update_interval, tau
        self.eps_eta, self.eps_alpha = eps_eta, eps_alpha
        self.eps_mean, self.eps_covariance = eps_mean, eps_covariance
        self.eta_init, self.alpha_init = eta_init, alpha_init
        self.multiplier_learning_rate = multiplier_learning_rate
        if _init_setup_model:
            self._setup_model()

    def _setup_model(self) -> None:
        super()._setup_model()
        self.target = copy.deepcopy(self.policy).requires_grad_(False)
        self._compile()
        kinds = self.policy.action_head.divergence_kinds()
        self.multipliers = Multipliers(self.eta_init, dict.fromkeys(kinds, self.alpha_init)).to(self.device)
        self.multiplier_optimizer = torch.optim.Adam(self.multipliers.parameters(), self.multiplier_learning_rate)

    @property
    def _actor(self) -> GTrXLPolicy:
        return self.target

    def train(self) -> None:
        """Improve the learner on the collected segments, renew its memory, and the target when its time has come."""
        policy, carry, sharing, logger = self.policy, self.carry, self.sharing, self.logger
        acted = carry.segment
        assert acted is not None  # learn() collects before it trains
        self.target.set_training_mode(False)
        with torch.no_grad():
            old = self.target.evaluate_segment(acted)
            errors = ((old.log_probs - acted.log_probs).exp() - 1.0).abs().masked_fill(~acted.counts, 0.0)
            segment = acted if carry.own_memory is None else replace(acted, memory=carry.own_memory)
            values = policy.evaluate_segment(segment).values  # advantages are raw, over the values before the update
        carry.segment = segment = replace(segment, values=values, advantages=segment.returns - values)
        self._begin_update()
        self._log_memory(segment)
        update_learning_rate(self.multiplier_optimizer, self.multiplier_learning_rate)
        recorded = Recorded(**sharing.all_gather(segment.numbers()))
        losses: list[VMPOLoss] = []
        again = segment
        for epoch in range(self.n_epochs):
            if epoch and carry.before is not None:
                with torch.no_grad():
                    again = replace(segment, memory=policy.memory_after(carry.before))
            for minibatch in update.minibatches(
                sharing, again, self._rows_per_batch(), self._batch_generator, old.outputs
            ):
                batch = recorded.rows(minibatch.rows)
                if not bool(batch.counts.any()):
                    continue
                update.follow_returns(policy, batch)
                now = update.evaluate(self._evaluate, minibatch, sharing)
                divergences = policy.action_head.divergences(now.outputs, self.target.action_head, minibatch.outputs)
                divergences = sharing.gather(divergences, minibatch.takers)
                multipliers = self.multipliers  # whose gradient is the same on every process
                loss = vmpo_loss(
                    now, batch, divergences, multipliers.temperature, multipliers.penalties, self._bounds()
                )
                losses.append(update.add_auxiliary(loss, now, minibatch.segment.counts.numel(), sharing))
                self.multiplier_optimizer.zero_grad()
                update.descend(
                    policy, losses[-1].total, policy.parameters(), self.max_grad_norm, self._n_updates, sharing
                )
                self.multiplier_optimizer.step()
                self.multipliers.constrain_()
                carry.target_age += 1
            self._n_updates += 1
        update.maintain(policy, sharing)
        with torch.no_grad():  # the target keeps its weights, and so the memory of acting, for now
            rows = self._watched_rows()
            carry.own_memory, age = update.renew_memory(policy, segment, carry.acting, self.memory_refresh, rows)
        if policy.action_head.readout is not None:
            policy.remember(segment)
        logger.record("memory/staleness", age)
        sharing.log_traffic(logger.record)
        self._log_update(recorded, losses)
        update.log_ratio_error(logger, sharing.max(float(errors.max()))[0], sharing)
        if carry.target_age >= self.target_update_interval:
            self._renew_target()

    def _bounds(self) -> VMPOBounds:
        bounds = {"classes": self.eps_alpha, "mean": self.eps_mean, "covariance": self.eps_covariance}
        return VMPOBounds(self.eps_eta, bounds, self.vf_coef * float(self.policy.value_units))

    def _rows_per_batch(self) -> int:
        if self.batch_size is not None:
            return super()._rows_per_batch()
        return min(self.all_envs, max(self.all_envs // 4, -(-MIN_STEPS // self.n_steps)))

    @torch.no_grad()
    def _renew_target(self) -> None:
        """Move the target towards the learner; a copy also takes its memory, which these weights made."""
        carry, learned = self.carry, uncompiled(self.policy).state_dict()
        assert carry.own_memory is not None  # made by every update
        carry.target_age = 0
        if self.tau < 1.0:
            if isinstance(self.target.value_net, PopArt) and isinstance(self.policy.value_net, PopArt):
                self.target.value_net.take_units(self.policy.value_net)  # weights of different units have no mean
            approach(self.target.state_dict(), learned, self.tau)
            carry.acting = self.target.with_cache(self.target.without_cache(carry.acting))  # keys of the new weights
            return
        self.target.load_state_dict(learned)
        carry.acting = self.target.with_cache(carry.own_memory)

    def _log_update(self, recorded: Recorded, losses: list[VMPOLoss]) -> None:
        """Record means over the minibatches of an update, and the multipliers after it; divergences by their bounds."""
        record = self.logger.record
        self._log_rollout(recorded)
        record("train/temperature", float(self.multipliers.temperature.detach()))
        for kind, penalty in self.multipliers.penalties.items():
            record(f"train/alpha_{kind}", float(penalty.detach()))
            record(f"train/kl_bound_{kind}", self._bounds().eps_alpha[kind])
        record("train/target_age", self.carry.target_age)
        if not losses:  # no step of the rollout counted
            return
        names = {"policy_loss": "policy", "temperature_loss": "temperature", "value_loss": "value"}
        update.log_losses(self.logger, losses, **names, weights_kl="weights_divergence")
        record("train/entropy_loss", -update.mean_of(losses, "entropy"))
        divergences = {kind: torch.stack([loss.divergences[kind] for loss in losses]) for kind in losses[0].divergences}
        for kind, values in divergences.items():
            record(f"train/kl_{kind}", float(values.mean()))
        record("train/kl", float(torch.stack(list(divergences.values())).sum(0).mean()))

    @classmethod
    def only_starts(cls, name: str, value: Any, stored: Any) -> bool:
        return name in ("eta_init", "alpha_init")

    def _own_tensors(self) -> dict[str, Any]:
        memory = None if self._lost_steps else self.carry.own_memory  # which is that of the last update
        return {
            "target_age": self.carry.target_age,
            "own_memory": self.sharing.to_leader(None if memory is None else memory.tensors()),
        }

    def _restore_own(self, tensors: Mapping[str, Any], n_envs: int) -> None:
        self.carry.target_age = check(tensors["target_age"], WholeNumber, "target_age")
        if tensors["own_memory"] is not None:
            blank = self.policy.initial_state(self.n_envs, cached=False)
            check_same(tensors["own_memory"], blank.tensors(), "own_memory", n_envs)
