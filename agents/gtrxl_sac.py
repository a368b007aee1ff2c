"""Soft actor-critic with a transformer that remembers, from replay, as a Stable-Baselines3 algorithm.

A run is read from top to bottom: act by a sample of the policy, learn from segments of all steps so far, go on with
fresh weights. ``OffPolicyMemoryAgent`` collects and keeps the replay. Axes: E environments, B segments, T steps.
"""

import os
from collections.abc import Mapping
from dataclasses import replace
from functools import partial
from typing import Annotated, Any, Literal, cast

import numpy as np
import torch
from annotated_types import Ge, Le, Lt
from stable_baselines3.common.utils import update_learning_rate
from torch import Tensor

from rltransformers.algorithms.returns import n_step_returns
from rltransformers.algorithms.sac import (
    SACActorLoss,
    SACCriticLoss,
    Temperature,
    actor_loss,
    critic_loss,
    entropies,
    soft_values,
    temperature_loss,
)
from rltransformers.core.action_masks import ACTION_MASK
from rltransformers.core.errors import ConfigError
from rltransformers.core.ranges import (
    LARGEST,
    Count,
    Fraction,
    NonNegativeNumber,
    PositiveNumber,
    Seed,
    UnitInterval,
    WholeNumber,
    strict,
)
from rltransformers.data.replay import Window
from rltransformers.policies.policy_state import PolicyState
from rltransformers.policies.sac_policy import GTrXLSACPolicy, TrunkEvaluation
from rltransformers.policies.soft_head import Drawn
from rltransformers.policies.steps import Acting
from rltransformers.training.online import replay_data
from rltransformers.training.online.off_policy_agent import GradientSteps, OffPolicyMemoryAgent, ReplayMemoryRefresh
from rltransformers.training.schedules import Scheduled
from rltransformers.training.update import UpdateMode, add_auxiliary, descend, in_mode, log_losses, maintain

AUTO_SHARE = 0.98 * 0.7
"""Of the largest entropy of countable actions, what ``target_entropy="auto"`` aims at."""


class GTrXLSAC(OffPolicyMemoryAgent):
    """Soft actor-critic (arXiv 1812.05905) from replayed segments, GTrXL (arXiv 1910.06764) by default.

    Used like any Stable-Baselines3 algorithm, ``save_replay_buffer`` included. Boxes are the tanh of a normal variable;
    over Discrete, MultiDiscrete and MultiBinary all means are exact sums (arXiv 1910.07207); Dict and Tuple mix them.

    Args:
        policy: ``"GTrXLSACPolicy"``, or a subclass of it.
        env, learning_rate, gamma, max_grad_norm, acting, stats_window_size, tensorboard_log, verbose, seed, device: as
            for ``GTrXLPPO``; the gradients of actor and critics are clipped apart.
        buffer_size, batch_size, segment_length, burn_in, train_freq, gradient_steps: as for ``GTrXLDQN``.
        scale_rewards, memory_refresh, checkpoint_replay, updates: as for ``GTrXLDQN``.
        learning_starts: environment steps with uniformly random actions before the first update.
        encoder_rate: learning rate of encoders and backbones, in units of ``learning_rate``.
        tau: share of the way that the target network moves after every update.
        n_step: steps of rewards in a target, 1 to 5; fewer where the episode ends. The entropy of the steps in between
            is left out.
        ent_coef: temperature, the weight of the entropy: ``"auto"`` learns it from 1 on, ``"auto_0.1"`` from 0.1 on, a
            number stays.
        target_entropy: entropy that a learned temperature aims at, in nats. ``"auto"``: minus the number of components
            of Boxes, plus 0.686 of the largest entropy of all other actions that the masks allow.
        target_critics: critics of which a target takes the lowest value; fewer than ``n_critics`` of the policy are
            drawn for every update (arXiv 2101.05982).
        policy_kwargs: arguments of ``GTrXLSACPolicy`` as JSON values, or with a ``BackboneConfig`` under
            ``"backbone"``; ``{"shared_backbone": True}`` for one trunk.

    Raises:
        ConfigError: for a setting that cannot work, an unsupported space, or an unknown policy argument.
    """

    kind = "GTrXLSAC"
    scheduled = ("learning_rate",)
    policy_aliases = {"GTrXLSACPolicy": GTrXLSACPolicy}
    settled = (*OffPolicyMemoryAgent.settled, "ent_coef")
    parts = (*OffPolicyMemoryAgent.parts, "temperature", "temperature_optimizer")
    policy: GTrXLSACPolicy

    @strict
    def __init__(
        self,
        policy: str | type[GTrXLSACPolicy],
        env: Any,
        learning_rate: Scheduled = 3e-4,
        buffer_size: Annotated[int, Ge(1), Lt(2**63)] = 100_000,
        learning_starts: WholeNumber = 1_000,
        batch_size: Annotated[int, Ge(1), Le(2**16)] = 32,
        segment_length: Annotated[int, Ge(1), Le(2**20)] = 64,
        burn_in: Annotated[int, Ge(0), Le(2**20)] | None = None,
        train_freq: Count = 4,
        gradient_steps: GradientSteps = 1,
        encoder_rate: Annotated[float, Ge(0), Le(100)] = 0.3,
        tau: Fraction = 0.005,
        gamma: UnitInterval = 0.99,
        n_step: Annotated[int, Ge(1), Le(5)] = 1,
        ent_coef: str | NonNegativeNumber = "auto",
        target_entropy: Literal["auto"] | Annotated[float, Ge(-LARGEST), Le(LARGEST)] = "auto",
        target_critics: Annotated[int, Ge(1), Le(64)] = 2,
        scale_rewards: bool = True,
        max_grad_norm: PositiveNumber = 1.0,
        memory_refresh: ReplayMemoryRefresh = "never",
        checkpoint_replay: bool = True,
        acting: Acting = "eager",
        updates: UpdateMode = "eager",
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
            buffer_size=buffer_size,
            learning_starts=learning_starts,
            batch_size=batch_size,
            tau=tau,
            gamma=gamma,
            train_freq=train_freq,
            gradient_steps=gradient_steps,
            stats_window_size=stats_window_size,
            tensorboard_log=tensorboard_log,
            policy_kwargs=policy_kwargs,
            verbose=verbose,
            seed=seed,
            device=device,
            needs_env=_init_setup_model,
        )
        self.segment_length, self.burn_in = segment_length, burn_in
        self.encoder_rate, self.n_step, self.target_critics = encoder_rate, n_step, target_critics
        self.ent_coef, self.target_entropy = ent_coef, target_entropy
        self.scale_rewards, self.max_grad_norm = scale_rewards, max_grad_norm
        self.memory_refresh, self.checkpoint_replay = memory_refresh, checkpoint_replay
        self.acting, self.updates = acting, updates
        if _init_setup_model:
            self._setup_model()

    def _setup_model(self) -> None:
        self.temperature = Temperature(self.ent_coef)
        super()._setup_model()
        self.temperature = self.temperature.to(self.device)
        self.temperature_optimizer = torch.optim.Adam(self.temperature.parameters(), self.lr_schedule(1.0))

    def check_together(self) -> None:
        if self.target_entropy != "auto" and not isinstance(self.ent_coef, str):
            raise ConfigError(
                f"target_entropy is what a learned ent_coef aims at, and ent_coef is {self.ent_coef}; set ent_coef to "
                "'auto', or leave target_entropy out"
            )
        if self.target_critics > self.policy.n_critics:
            raise ConfigError(
                f"target_critics is {self.target_critics}, the policy has {self.policy.n_critics}; lower it, or raise "
                "n_critics in policy_kwargs (policy.n_critics in a config)"
            )

    # Collecting

    def _act(self, leaves: Mapping[str, Tensor], first: Tensor) -> tuple[dict[str, Tensor], PolicyState]:
        policy, head = self.policy, self.policy.action_head
        noise = head.draw(self.all_envs, self._action_generator)[self.own_envs]
        actions, _, _, state = policy.step(leaves, self.carry.acting, first, noise, overwrites=True)
        if self.num_timesteps < self.learning_starts:
            actions = head.uniform(noise, leaves[ACTION_MASK] if policy.masks else None)
            state = replace(state, previous_action=actions)
        return actions, state

    # Learning

    def _compile(self) -> None:
        super()._compile()
        policy = self.policy
        self._evaluate_trunk, self._evaluate_actor, self._evaluate_target = (
            in_mode(policy, partial(policy.evaluate_trunk, part=part), self.updates)
            for part in (policy.trunk, policy.actor, policy.target_trunk)
        )

    def train(self, gradient_steps: int, batch_size: int) -> None:
        """So many updates on segments drawn from the replay, then bring the acting memory up to date."""
        policy, replay, sharing, logger = self.policy, self.replay_buffer, self.sharing, self.logger
        if replay is None or not sharing.count(len(replay)):
            return  # no segment is whole yet
        self._begin_update()
        update_learning_rate(self.temperature_optimizer, self.lr_schedule(self._current_progress_remaining))
        head, trunk, bound = policy.action_head, policy.trunk, self.max_grad_norm
        learned = slice(None, self.segment_length)  # rows of a window; those behind them are what returns reach into
        critic_parameters, actor_parameters = policy.critic_parameters(), policy.actor_parameters()
        critic_losses: list[SACCriticLoss] = []
        actor_losses: list[SACActorLoss] = []
        others: dict[str, list[float]] = {}
        for _ in range(gradient_steps):
            draw, takers = replay_data.draw_of_all(replay, batch_size, self._batch_generator, False, sharing)
            noise, chosen = self._noise(batch_size, takers), self._chosen_critics()
            window = self._window(draw, takers)
            boxes, index = head.taken({path: leaf[:, learned] for path, leaf in window.actions.items()})
            counts, temperature = window.counts[:, learned], self.temperature.value

            # What the policy does at every step, and what comes of it: one sample serves target and actor.
            critic = self._evaluate_trunk(window)
            shared = policy.critic is None
            actor = TrunkEvaluation(critic.features.detach()) if shared else self._evaluate_actor(window)
            drawn = head.drawn(policy.window_outputs(actor.features, window), noise)
            with torch.no_grad():
                later = policy.target_values(self._evaluate_target(window).features, drawn)[..., chosen, :]
                values = soft_values(later, drawn.log_probs, drawn.log_density, temperature)
                discounts = self.gamma * (~window.terminal).to(values.dtype)
                targets = n_step_returns(window.rewards, discounts, values, ~window.counts, self.n_step)

            # The critics follow their targets.
            q = policy.taken_values(critic.features[:, learned], boxes, index)
            errors = partial(policy.critic_errors, boxes=boxes, index=index, targets=targets)
            policy.add_deep_losses(critic, trunk, window, errors, self.segment_length)
            rows = sharing.gather({"q": q, "targets": targets, "counts": counts}, takers)
            loss = add_auxiliary(critic_loss(**rows), critic, counts.numel(), sharing)
            critic_norm = descend(policy, loss.total, critic_parameters, bound, self._n_updates, sharing)

            # The actor prefers what the critics now value; they read the features from before their step.
            seen = critic.features[:, learned].detach()
            drawn = Drawn(*(part[:, learned] for part in drawn))
            policy.critics.requires_grad_(False)
            values = soft_values(policy.critics(seen, drawn.boxes), drawn.log_probs, drawn.log_density, temperature)
            regrets = partial(self._regrets, window=window, noise=noise[:, learned], seen=seen)
            policy.add_deep_losses(actor, policy.actor, window, regrets, self.segment_length)
            policy.critics.requires_grad_(True)
            entropy = entropies(drawn.log_probs, drawn.log_density)
            tensors = {"values": values, "entropy": entropy, "aims": self._aims(drawn.log_probs), "counts": counts}
            rows = sharing.gather(tensors, takers)
            gain = actor_loss(rows["values"], rows["entropy"], rows["counts"])
            gain = add_auxiliary(gain, actor, counts.numel(), sharing)
            actor_norm = descend(policy, gain.total, actor_parameters, bound, self._n_updates, sharing)

            # The temperature grows while the policy is more certain than it should be.
            numbers = {"critic_grad_norm": critic_norm, "actor_grad_norm": actor_norm, "ent_coef": temperature}
            if self.temperature.fixed is None:
                log_ent_coef = self.temperature.log_ent_coef
                ent_coef_loss = temperature_loss(log_ent_coef, rows["entropy"], rows["aims"], rows["counts"])
                self.temperature_optimizer.zero_grad()
                ent_coef_loss.backward()
                self.temperature_optimizer.step()
                numbers["ent_coef_loss"] = ent_coef_loss.detach()
            policy.follow(self.tau)
            self._n_updates += 1
            critic_losses.append(loss)
            actor_losses.append(gain)
            for name, number in numbers.items():
                others.setdefault(name, []).append(float(number))
        maintain(policy, sharing)
        self._renew_memory(replay)
        log_losses(logger, actor_losses, "actor_loss", "entropy")
        log_losses(logger, critic_losses, "td_error", "q_value", "target", critic_loss="td_loss")
        for name, column in others.items():
            logger.record(f"train/{name}", float(np.mean(column)))
        logger.record("train/n_updates", self._n_updates, exclude="tensorboard")

    def _regrets(self, features: Tensor, window: Window, noise: Tensor, seen: Tensor) -> Tensor:
        """What the actor would lose at every step with features of an inner layer; ``seen`` are the critics'."""
        drawn = self.policy.action_head.drawn(self.policy.window_outputs(features, window), noise)
        q = self.policy.critics(seen, drawn.boxes)
        return -soft_values(q, drawn.log_probs, drawn.log_density, self.temperature.value)

    def _noise(self, batch_size: int, takers: Tensor) -> Tensor:
        """Normal numbers for the Boxes at every row of the segments of this process; drawn alike everywhere."""
        size = (batch_size, self.segment_length + self.n_step, self.policy.action_head.box_numbers)
        noise = torch.randn(size, generator=self._batch_generator)
        return noise[takers == self.sharing.rank].to(self.device)

    def _chosen_critics(self) -> Tensor | slice:
        """The critics of which the targets of an update take the lowest value."""
        count = self.policy.n_critics
        if self.target_critics == count:
            return slice(None)
        return torch.randperm(count, generator=self._batch_generator)[: self.target_critics].to(self.device)

    def _aims(self, log_probs: Tensor) -> Tensor:
        """The entropy that the temperature aims at, at every step."""
        if self.target_entropy == "auto":
            return self.policy.action_head.auto_entropy(log_probs, AUTO_SHARE)
        return torch.full_like(log_probs[..., 0], float(self.target_entropy))

    def _update_learning_rate(self, optimizers: Any) -> None:
        """As in Stable-Baselines3; encoders and backbones learn at ``encoder_rate`` of it."""
        super()._update_learning_rate(optimizers)
        for group in self.policy.optimizer.param_groups:
            if group["trunk"]:
                group["lr"] *= self.encoder_rate

    @classmethod
    def only_starts(cls, name: str, value: Any, stored: Any) -> bool:
        return name == "ent_coef" and str(value).startswith("auto_") and isinstance(stored, str)

    def _taken_over(self, tensors: dict[str, Any], settings: Mapping[str, Any]) -> dict[str, Any]:
        if self.temperature.fixed is not None or isinstance(settings["ent_coef"], str):
            return tensors
        fresh = {"temperature": self.temperature, "temperature_optimizer": self.temperature_optimizer}
        return tensors | {name: cast(Any, part).state_dict() for name, part in fresh.items()}
