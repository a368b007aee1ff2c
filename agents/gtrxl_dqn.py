"""Q-learning with a transformer that remembers, from replay, as a Stable-Baselines3 algorithm.

A run is read from top to bottom: collect steps, learn from segments of all steps so far, go on with fresh weights.
Checkpoints and environments are those of every ``OnlineAgent``. Axes: E environments, B segments.
"""

import os
from collections.abc import Mapping
from functools import partial
from typing import Annotated, Any, Literal

import numpy as np
import torch
from annotated_types import Ge, Le, Lt
from torch import Tensor

from rltransformers.algorithms.dqn import DQNLoss, SegmentSteps, dqn_loss, q_targets, step_losses
from rltransformers.core.errors import ConfigError
from rltransformers.core.ranges import Count, Fraction, PositiveNumber, Seed, UnitInterval, WholeNumber, strict
from rltransformers.data.replay import SegmentReplay
from rltransformers.policies.policy_state import PolicyState
from rltransformers.policies.q_network import GTrXLQPolicy
from rltransformers.policies.steps import Acting
from rltransformers.training.online import replay_data
from rltransformers.training.online.off_policy_agent import GradientSteps, OffPolicyMemoryAgent, ReplayMemoryRefresh
from rltransformers.training.schedules import Scheduled, as_schedule
from rltransformers.training.update import UpdateMode, add_auxiliary, descend, in_mode, log_losses, maintain

MOST_PRIORITIES = 2**24
"""Of torch, which draws from no more classes."""
LADDER = "ladder"
Exploration = Literal["ladder"] | Scheduled
"""Rates of environments that differ by powers, or one rate of all of them that may change over the run."""


class GTrXLDQN(OffPolicyMemoryAgent):
    """Double Q-learning (arXiv 1509.06461) from replayed segments, GTrXL (arXiv 1910.06764) by default; for Discrete.

    Used like any Stable-Baselines3 algorithm, ``save_replay_buffer`` included.

    Args:
        policy: ``"GTrXLQPolicy"``, or a subclass of it.
        env, learning_rate, gamma, max_grad_norm, acting, stats_window_size, tensorboard_log, verbose, seed, device: as
            for ``GTrXLPPO``.
        buffer_size: steps that are kept, of all environments together; the newest whole segments of every environment.
        learning_starts: environment steps with random actions before the first update.
        batch_size: segments per update.
        segment_length: steps of a segment, all of which are learned from.
        burn_in: steps before a segment that are encoded to make its memory. None: as many as the layers look
            back together, which makes the memory exact; a backbone that remembers more than a window needs a number. As
            many steps as the longest episode has are exact for every backbone; fewer are the burn-in of R2D2, before
            which the memory is zeros.
        train_freq: steps of every environment between two rounds of updates.
        gradient_steps: updates in a round; -1: as many as all environments made steps since the last one.
        target_update_interval: updates between two moves of the target network.
        tau: share of the way that the target network moves; 1 copies the network, 0.005 with an interval of 1 is
            Polyak's average.
        n_step: steps of rewards in a target, 1 to 5; fewer where the episode ends.
        value_rescale: whether the network estimates h(value), h(x) = sign(x)(sqrt(|x| + 1) - 1) + 0.001 x (arXiv
            1805.11593), for returns of very different sizes.
        scale_rewards: as for ``GTrXLPPO``; the replay keeps raw rewards, which are divided when they are drawn.
        prioritized: whether segments are drawn by their errors, 0.9 of the largest plus 0.1 of the mean (R2D2), instead
            of evenly; importance-sampling weights correct the bias.
        exploration: share of random actions: ``"ladder"`` gives environment i 0.4^(1 + 7 i / (E - 1)) (Ape-X, arXiv
            1803.00933); or one for all of them, a number or a schedule like
            ``{"start": 1.0, "end": 0.05, "fraction": 0.1}``.
        memory_refresh: what happens to the memory of running episodes when weights change. ``"never"``: keys and values
            follow the new weights, what they are made from stays. ``"update"``: after every round of updates the
            newest steps are encoded again.
        checkpoint_replay: whether checkpoints hold the replay, without which a resumed run fills a new one.
        updates: ``"compiled"`` evaluates windows, forward and backward, as machine code, made once (about a minute);
            ``"eager"`` as PyTorch operations. Both compute the same.
        policy_kwargs: arguments of ``GTrXLQPolicy`` as JSON values, or with a ``BackboneConfig`` under ``"backbone"``.

    Raises:
        ConfigError: for a setting that cannot work, an unsupported space, or an unknown policy argument.

    The replay holds what environments gave, before ``VecNormalize``, and no memory: that is made anew from the context.
    """

    kind = "GTrXLDQN"
    scheduled = ("learning_rate", "exploration")
    policy_aliases = {"GTrXLQPolicy": GTrXLQPolicy}
    policy: GTrXLQPolicy

    @strict
    def __init__(
        self,
        policy: str | type[GTrXLQPolicy],
        env: Any,
        learning_rate: Scheduled = 3e-4,
        buffer_size: Annotated[int, Ge(1), Lt(2**63)] = 100_000,
        learning_starts: WholeNumber = 1_000,
        batch_size: Annotated[int, Ge(1), Le(2**16)] = 32,
        segment_length: Annotated[int, Ge(1), Le(2**20)] = 64,
        burn_in: Annotated[int, Ge(0), Le(2**20)] | None = None,
        train_freq: Count = 4,
        gradient_steps: GradientSteps = 1,
        target_update_interval: Count = 2_500,
        tau: Fraction = 1.0,
        gamma: UnitInterval = 0.99,
        n_step: Annotated[int, Ge(1), Le(5)] = 1,
        value_rescale: bool = False,
        scale_rewards: bool = True,
        prioritized: bool = False,
        exploration: Exploration = "ladder",
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
        self.target_update_interval = target_update_interval
        self.n_step, self.value_rescale, self.prioritized = n_step, value_rescale, prioritized
        self.scale_rewards, self.exploration = scale_rewards, exploration
        self.max_grad_norm, self.memory_refresh = max_grad_norm, memory_refresh
        self.checkpoint_replay, self.acting, self.updates = checkpoint_replay, acting, updates
        if _init_setup_model:
            self._setup_model()

    def check_together(self) -> None:
        for progress in (1.0, 0.0):
            if not 0.0 <= (rate := float(exploration_rates(self.exploration, progress, 1)[0])) <= 1.0:
                raise ConfigError(
                    f"exploration is a probability, got {rate} at progress {progress}; give numbers from 0 to 1, or "
                    f"{LADDER!r} for a rate of every environment"
                )

    def _new_replay(self) -> SegmentReplay:
        segments = self.buffer_size // self.segment_length
        if self.prioritized and segments > MOST_PRIORITIES:
            raise ConfigError(
                f"prioritized draws from at most {MOST_PRIORITIES:,} segments, buffer_size / segment_length are "
                f"{segments:,}; raise segment_length, lower buffer_size, or set prioritized=False"
            )
        return super()._new_replay()

    # Collecting

    def _act(self, leaves: Mapping[str, Tensor], first: Tensor) -> tuple[dict[str, Tensor], PolicyState]:
        noise = self.policy.exploration(self._rates(), self._action_generator)[self.own_envs]
        actions, _, _, state = self.policy.step(leaves, self.carry.acting, first, noise, overwrites=True)
        return actions, state

    def _rates(self) -> Tensor:
        """How often each environment of all processes explores now [E]; always before learning starts."""
        if self.num_timesteps < self.learning_starts:
            return torch.ones(self.all_envs, device=self.device)
        rates = exploration_rates(self.exploration, self._current_progress_remaining, self.all_envs)
        return torch.as_tensor(rates, dtype=torch.float32, device=self.device)

    # Learning

    def _compile(self) -> None:
        super()._compile()
        policy, of_target = self.policy, partial(self.policy.evaluate_window, target=True)
        self._evaluate = in_mode(policy, policy.evaluate_window, self.updates)
        self._evaluate_target = in_mode(policy, of_target, self.updates)

    def train(self, gradient_steps: int, batch_size: int) -> None:
        """So many updates on segments drawn from the replay, then bring the acting memory up to date."""
        policy, replay, sharing, logger = self.policy, self.replay_buffer, self.sharing, self.logger
        if replay is None or not sharing.count(len(replay)):
            return  # no segment is whole yet
        self._begin_update()
        losses: list[DQNLoss] = []
        norms: list[float] = []
        for _ in range(gradient_steps):
            draw, takers = replay_data.draw_of_all(replay, batch_size, self._batch_generator, self.prioritized, sharing)
            window = self._window(draw, takers)
            now = self._evaluate(window)
            with torch.no_grad():
                later = self._evaluate_target(window)
            part = SegmentSteps(policy.classes(window), window.rewards, window.terminal, window.counts, window.weights)
            targets = q_targets(now.q, later.q, part, self.gamma, self.n_step, self.value_rescale)
            policy.add_deep_losses(now, window, partial(step_losses, targets=targets, steps=part), targets.shape[1])
            rows = sharing.gather({"q": now.q, "targets": targets, **vars(part)}, takers)
            q, targets, steps = rows.pop("q"), rows.pop("targets"), SegmentSteps(**rows)
            loss = add_auxiliary(dqn_loss(q, targets, steps), now, part.counts.numel(), sharing)
            losses.append(loss)
            norm = descend(policy, loss.total, policy.learned, self.max_grad_norm, self._n_updates, sharing)
            norms.append(float(norm))
            if self.prioritized:
                replay_data.prioritize_own(replay, draw, loss.priorities, sharing)
            self._n_updates += 1
            if self._n_updates % self.target_update_interval == 0:
                policy.follow(self.tau)
        maintain(policy, sharing)
        self._renew_memory(replay)
        log_losses(logger, losses, "td_loss", "td_error", "q_value", "target")
        logger.record("train/grad_norm", float(np.mean(norms)))
        logger.record("train/n_updates", self._n_updates, exclude="tensorboard")

    # Log

    def dump_logs(self) -> None:
        self.logger.record("rollout/exploration_rate", float(self._rates().mean()))
        super().dump_logs()


def exploration_rates(exploration: Any, progress: float, n_envs: int) -> np.ndarray:
    """The share of random actions of every environment [E] at a remaining progress (1 to 0).

    The ladder is that of Ape-X (Horgan et al. 2018, arXiv 1803.00933, section 4.1): environment i explores with
    0.4^(1 + 7 i / (E - 1)), from 0.4 down to 0.00066; an only environment stands in its middle, 0.016.
    """
    if exploration == LADDER:
        rung = np.linspace(0.0, 1.0, n_envs) if n_envs > 1 else np.full(1, 0.5)
        return 0.4 ** (1.0 + 7.0 * rung)
    return np.full(n_envs, as_schedule(exploration, "exploration")(progress))
