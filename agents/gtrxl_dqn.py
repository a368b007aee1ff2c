"""Q-learning with a transformer that remembers, from replay, as a Stable-Baselines3 algorithm.

A run is read from top to bottom: collect steps, learn from segments of all steps so far, go on with fresh weights.
Checkpoints and environments are those of every ``OnlineAgent``. Axes: E environments, B segments.
"""

import os
import warnings
from collections.abc import Mapping
from functools import partial
from typing import Annotated, Any, Literal, Self, cast

import numpy as np
import torch
from annotated_types import Ge, Le, Lt
from stable_baselines3.common.callbacks import BaseCallback
from stable_baselines3.common.off_policy_algorithm import OffPolicyAlgorithm
from stable_baselines3.common.type_aliases import MaybeCallback, RolloutReturn, TrainFreq, TrainFrequencyUnit
from stable_baselines3.common.vec_env import VecEnv
from torch import Tensor

from rltransformers.algorithms.dqn import DQNLoss, Steps, dqn_loss, q_targets, step_losses
from rltransformers.core.action_masks import ACTION_MASK
from rltransformers.core.checkpoint import File
from rltransformers.core.device import check_memory
from rltransformers.core.errors import ConfigError
from rltransformers.core.ranges import Count, Fraction, PositiveNumber, Seed, UnitInterval, WholeNumber, strict
from rltransformers.core.spaces import leaf_spaces
from rltransformers.core.values import to_tensor
from rltransformers.data.replay import SegmentReplay, Window
from rltransformers.data.rollout import bytes_of, observation_layout
from rltransformers.policies.memory_policy import PolicyState
from rltransformers.policies.observations import tree_space
from rltransformers.policies.q_network import GTrXLQPolicy
from rltransformers.policies.steps import Acting
from rltransformers.training.normalization import check_outermost, wrapper_between
from rltransformers.training.online import replay_data
from rltransformers.training.online.online_agent import OnlineAgent
from rltransformers.training.schedules import Scheduled, as_schedule
from rltransformers.training.update import add_auxiliary, descend, log_losses, maintain, memory_panel

MemoryRefresh = Literal["never", "update"]
BYTES_BESIDE = 19
"""Of a row of the replay beside its observation: action, reward, position, flags."""
MOST_PRIORITIES = 2**24
"""Of torch, which draws from no more classes."""
LADDER = "ladder"
Exploration = Literal["ladder"] | Scheduled
"""Rates of environments that differ by powers, or one rate of all of them that may change over the run."""


class GTrXLDQN(OnlineAgent, OffPolicyAlgorithm):  # type: ignore[misc]  # actor: SB3 has a network of that name
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
        gradient_steps: updates in a round.
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
        policy_kwargs: arguments of ``GTrXLQPolicy`` as JSON values, or with a ``BackboneConfig`` under ``"backbone"``.

    Raises:
        ConfigError: for a setting that cannot work, an unsupported space, or an unknown policy argument.

    The replay holds what environments gave, before ``VecNormalize``, and no memory: that is made anew from the context.
    """

    kind = "GTrXLDQN"
    per_environment = (*OnlineAgent.per_environment, "last_raw_observation")
    scheduled = ("learning_rate", "exploration")
    policy_aliases = {"GTrXLQPolicy": GTrXLQPolicy}
    policy: GTrXLQPolicy
    replay_buffer: SegmentReplay | None  # type: ignore[assignment]  # segments in place of SB3's transitions

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
        gradient_steps: Count = 1,
        target_update_interval: Count = 2_500,
        tau: Fraction = 1.0,
        gamma: UnitInterval = 0.99,
        n_step: Annotated[int, Ge(1), Le(5)] = 1,
        value_rescale: bool = False,
        scale_rewards: bool = True,
        prioritized: bool = False,
        exploration: Exploration = "ladder",
        max_grad_norm: PositiveNumber = 1.0,
        memory_refresh: MemoryRefresh = "never",
        checkpoint_replay: bool = True,
        acting: Acting = "eager",
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
            gradient_steps=gradient_steps,
            stats_window_size=stats_window_size,
            tensorboard_log=tensorboard_log,
            policy_kwargs=policy_kwargs,
            verbose=verbose,
            seed=seed,
            device=device,
            needs_env=_init_setup_model,
            support_multi_env=True,
            sde_support=False,
        )
        self.train_freq = TrainFreq(train_freq, TrainFrequencyUnit.STEP)  # type: ignore[assignment]  # as SB3 keeps it
        self.segment_length, self.burn_in = segment_length, burn_in
        self.target_update_interval = target_update_interval
        self.n_step, self.value_rescale, self.prioritized = n_step, value_rescale, prioritized
        self.scale_rewards, self.exploration = scale_rewards, exploration
        self.max_grad_norm, self.memory_refresh = max_grad_norm, memory_refresh
        self.checkpoint_replay, self.acting = checkpoint_replay, acting
        if _init_setup_model:
            self._setup_model()

    def _setup_model(self) -> None:
        check_exploration(self.exploration)
        self.sharing.check(None, self.batch_size)
        self._make_policy()
        receptive_field = self.policy.actor.backbone.receptive_field
        if self.burn_in is None and receptive_field is None:
            raise ConfigError(
                "this backbone remembers more than a window of rows, so no number of steps before a segment is enough "
                "for all episodes: set burn_in, to the longest episode for exact memories, or to fewer steps, after "
                "which the memory is taken as good enough"
            )
        self.context = cast(int, receptive_field if self.burn_in is None else self.burn_in)
        # Of a checkpoint, for the environment that may be set later.
        self._stored: dict[str, Any] = {"replay": None, "last_raw_observation": None}
        self._raw_obs: Any = None  # what the last observation was before VecNormalize, of a checkpoint
        self.replay_buffer = None if self.env is None else self._new_replay()
        self._begin_run()

    def _new_replay(self) -> SegmentReplay:
        normalizer = self._vec_normalize_env
        if normalizer is not None:
            check_outermost(wrapper_between(self.env))
        space = tree_space(self.observation_space if normalizer is None else normalizer.venv.observation_space)
        leaves = self.policy.seen_leaves | leaf_spaces(space)
        room, segments = self.buffer_size // self.sharing.size, self.buffer_size // self.segment_length
        if self.prioritized and segments > MOST_PRIORITIES:
            raise ConfigError(
                f"prioritized draws from at most {MOST_PRIORITIES:,} segments, buffer_size / segment_length are "
                f"{segments:,}; raise segment_length, lower buffer_size, or set prioritized=False"
            )
        row = bytes_of(observation_layout(leaves)) + BYTES_BESIDE  # in the memory of this machine, not of a GPU
        check_memory(room * row, f"buffer_size ({room}) steps need", "lower buffer_size")
        sizes = self.segment_length, self.context, self.n_step
        return SegmentReplay(room, self.n_envs, *sizes, leaves, self.action_space)

    # Collecting

    def collect_rollouts(  # type: ignore[override]  # SB3 asks for its own buffer and for noise of actions
        self,
        env: VecEnv,
        callback: BaseCallback,
        train_freq: TrainFreq,
        replay_buffer: SegmentReplay,
        action_noise: None = None,
        learning_starts: int = 0,
        log_interval: int | None = None,
    ) -> RolloutReturn:
        """``train_freq`` steps of every environment, into the replay; says whether a callback ends training."""
        policy, episodes, before = self.policy, self._episode_num, self.num_timesteps
        policy.set_training_mode(False)
        callback.on_rollout_start()
        if self._guard.moves != self._moves:
            self._reset_environments()
        normalizer = self._vec_normalize_env
        seen = self._guard.leaves(self._observation)
        leaves = policy.leaves_to_tensors(seen)
        going_on = True
        for step in range(train_freq.frequency):
            episode_starts = cast(np.ndarray, self._last_episode_starts)
            first = to_tensor(episode_starts, self.device)
            raw = replay_data.raw_observation(normalizer, self._observation, self._raw_obs)
            if policy.masks_beside:
                raw[ACTION_MASK] = seen[ACTION_MASK]
            noise = policy.exploration(self._rates(), self._action_generator)[self.own_envs]
            actions, _, _, state = policy.step(leaves, self.carry.acting, first, noise, overwrites=True)
            executed = policy.environment_actions(actions)
            new_obs, rewards, dones, infos, counts, unscaled = self._step_environments(executed, state)
            cut, last = self._guard.last_leaves(dones, infos, values_read_masks=True)
            terminal = dones.copy()
            terminal[cut] = False
            earned = unscaled if normalizer is None else normalizer.get_original_reward()
            replay_buffer.add(raw, actions, earned, episode_starts, terminal, counts)
            if cut:
                replay_buffer.add_last(cut, replay_data.raw_last(normalizer, last))
            callback.update_locals(locals())
            going_on = bool(callback.on_step()) and going_on
            self._update_info_buffer(infos, dones)
            self._update_current_progress_remaining(self.num_timesteps, self._total_timesteps)
            self._episode_num += int(np.count_nonzero(dones))
            if not going_on and self.sharing.is_single:
                return RolloutReturn((step + 1) * env.num_envs, self._episode_num - episodes, continue_training=False)
            if self._guard.moves != self._moves:  # by the callback: the replay takes these episodes as left
                new_obs = self._reset_environments()
            seen = self._guard.leaves(new_obs)
            leaves = policy.leaves_to_tensors(seen)
        if not self.sharing.is_single:
            going_on = self._share_rollout(before, going_on)
        self._episode_num = episodes + self.sharing.count(self._episode_num - episodes)
        if going_on:
            if log_interval is not None and self._episode_num // log_interval > episodes // log_interval:
                self.dump_logs()
            callback.on_rollout_end()
        return RolloutReturn(train_freq.frequency * env.num_envs, self._episode_num - episodes, going_on)

    def _rates(self) -> Tensor:
        """How often each environment of all processes explores now [E]; always before learning starts."""
        if self.num_timesteps < self.learning_starts:
            return torch.ones(self.all_envs, device=self.device)
        rates = exploration_rates(self.exploration, self._current_progress_remaining, self.all_envs)
        return torch.as_tensor(rates, dtype=torch.float32, device=self.device)

    # Learning

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
            window = self._normalized(replay_data.own_window(replay, draw, takers, sharing).trimmed())
            now = policy.evaluate_window(window)
            with torch.no_grad():
                later = policy.evaluate_window(window, target=True)
            part = Steps(policy.classes(window), window.rewards, window.terminal, window.counts, window.weights)
            targets = q_targets(now.q, later.q, part, self.gamma, self.n_step, self.value_rescale)
            policy.add_deep_losses(now, window, partial(step_losses, targets=targets, steps=part), targets.shape[1])
            rows = sharing.gather({"q": now.q, "targets": targets, **vars(part)}, takers)
            q, targets, steps = rows.pop("q"), rows.pop("targets"), Steps(**rows)
            loss = add_auxiliary(dqn_loss(q, targets, steps), now, part.counts, steps.counts, sharing)
            losses.append(loss)
            norm = descend(policy, loss.total, policy.learned, self.max_grad_norm, self._n_updates, sharing)
            norms.append(float(norm))
            if self.prioritized:
                replay_data.prioritize_own(replay, draw, loss.priorities, sharing)
            self._n_updates += 1
            if self._n_updates % self.target_update_interval == 0:
                policy.follow(self.tau)
        maintain(policy, sharing)
        with torch.no_grad():
            self.carry.acting = self._renewed_memory(replay)
        parts = {name: name for name in ("td_loss", "td_error", "q_value", "target")}
        log_losses(logger, losses, parts)
        logger.record("train/grad_norm", float(np.mean(norms)))
        logger.record("train/n_updates", self._n_updates, exclude="tensorboard")

    def _normalized(self, window: Window) -> Window:
        """A window as the policy sees it, on its device."""
        normalizer, scale = self._vec_normalize_env, self._own_scale
        return replay_data.normalized(normalizer, scale, window, self.policy.leaf_types).to(self.device)

    def _renewed_memory(self, replay: SegmentReplay) -> PolicyState:
        """Keys and values of the acting memory always follow the new weights; what they are made from may too."""
        policy, state = self.policy, self.carry.acting
        if self.memory_refresh == "never" or not self.context or not replay.joined.all():
            return policy.with_cache(policy.without_cache(state))
        policy.set_training_mode(False)
        window = self._normalized(replay.newest(np.arange(self.n_envs), 0))
        return policy.acting_state(window, state.previous_action, state.previous_reward)

    # Log

    def dump_logs(self) -> None:
        """Write a line of the log, with a look at where attention goes in the newest segment of one environment."""
        replay = self.replay_buffer
        rows = np.array([self._n_updates % self.n_envs])
        if replay is not None and self._n_updates and replay.written[rows] >= self.segment_length:
            self.policy.set_training_mode(False)
            window = self._normalized(replay.newest(rows, self.segment_length).trimmed())
            for name, value in memory_panel(lambda record: self.policy.evaluate_window(window, record=record)).items():
                self.logger.record(name, float(value))
        self.logger.record("rollout/exploration_rate", float(self._rates().mean()))
        self.logger.record("replay/size", 0 if replay is None else self.sharing.count(replay.size))
        self.sharing.log_traffic(self.logger.record)
        super().dump_logs()

    # Use

    @strict
    def learn(
        self,
        total_timesteps: Annotated[int, Ge(0), Lt(2**63)],
        callback: MaybeCallback = None,
        log_interval: Count | None = 100,
        tb_log_name: str | None = None,
        reset_num_timesteps: bool = True,
        progress_bar: bool = False,
    ) -> Self:
        """Train for at least ``total_timesteps`` environment steps and return self.

        ``log_interval`` counts episodes; None leaves writing to a callback. ``tb_log_name``: as for ``GTrXLPPO``.

        Raises:
            DataError, ConfigError: as ``GTrXLPPO.learn``.
        """
        return super().learn(total_timesteps, callback, log_interval, tb_log_name, reset_num_timesteps, progress_bar)

    # Files

    @strict
    def save_replay_buffer(self, path: File) -> None:
        """Write the replay to one file, atomically; nothing in it is executed on loading.

        Raises:
            ConfigError: when the agent has no environment and so no replay.
        """
        self._check_env()
        replay_data.save_replay(path, cast(SegmentReplay, self.replay_buffer), self.action_space, self.sharing)

    @strict
    def load_replay_buffer(self, path: File, truncate_last_traj: bool = True) -> None:
        """Take over the replay in a file; its running episodes count as left, and new ones begin behind them.

        Raises:
            CheckpointError: when the file is missing, corrupt or something else.
            ConfigError: for a replay with other settings, an agent without environment, ``truncate_last_traj=False``.
        """
        self._check_env()
        if not truncate_last_traj:
            raise ConfigError(
                "a replay file cannot go on with its running episodes: GTrXLDQN.save and GTrXLDQN.load can, or leave "
                "truncate_last_traj=True"
            )
        replay_data.load_replay(path, cast(SegmentReplay, self.replay_buffer), self.action_space, self.sharing)

    def set_env(self, env: Any, force_reset: bool = True) -> None:
        """Replace the environment as ``GTrXLPPO`` does; a replay that waits for one, after ``load``, is taken over."""
        super().set_env(env, force_reset)
        if self.replay_buffer is None:
            self.replay_buffer = self._new_replay()
            self._take_over()

    def _own_tensors(self) -> dict[str, Any]:
        replay = self.replay_buffer
        if replay is None:
            return self._stored
        raw = replay_data.pack_observation(self._vec_normalize_env, self._last_obs, self._raw_obs)
        rows = replay_data.rows_of_replay(replay, self.sharing) if self.checkpoint_replay else None
        return {
            "replay": None if rows is None else {"layout": replay_data.layout_of(replay, self.sharing), "rows": rows},
            "last_raw_observation": self.sharing.to_leader(raw),
        }

    def _restore_own(self, tensors: Mapping[str, Any], n_envs: int) -> None:
        self._stored = {name: tensors[name] for name in self._stored}
        if self.replay_buffer is not None:
            self._take_over()

    def _take_over(self) -> None:
        """The raw observation and the replay of a checkpoint; a replay of another form is left out, with a warning."""
        self._raw_obs = replay_data.unpack_observation(self._stored["last_raw_observation"], self._vec_normalize_env)
        replay, stored = cast(SegmentReplay, self.replay_buffer), self._stored["replay"]
        self._stored["replay"] = None  # it would stay beside the replay that takes its rows over
        if stored is None:
            return
        wanted = replay_data.layout_of(replay, self.sharing)
        if stored["layout"] == wanted:
            replay_data.restore_replay(replay, stored["rows"], self.sharing)
        elif stored["rows"]["rewards"].numel():
            warnings.warn(
                f"the replay of the checkpoint is left out and a new one filled: it is one of {stored['layout']}, this "
                f"agent's is {wanted}; it is kept with the same number of environments, buffer_size and segment_length",
                UserWarning,
                stacklevel=2,
            )


def exploration_rates(exploration: Any, progress: float, n_envs: int) -> np.ndarray:
    """The share of random actions of every environment [E] at a remaining progress (1 to 0).

    The ladder is that of Ape-X (Horgan et al. 2018, arXiv 1803.00933, section 4.1): environment i explores with
    0.4^(1 + 7 i / (E - 1)), from 0.4 down to 0.00066; an only environment stands in its middle, 0.016.
    """
    if exploration == LADDER:
        rung = np.linspace(0.0, 1.0, n_envs) if n_envs > 1 else np.full(1, 0.5)
        return 0.4 ** (1.0 + 7.0 * rung)
    return np.full(n_envs, as_schedule(exploration, "exploration")(progress))


def check_exploration(exploration: Any) -> None:
    """Raise ConfigError unless rates are probabilities at both ends of a run."""
    for progress in (1.0, 0.0):
        if not 0.0 <= (rate := float(exploration_rates(exploration, progress, 1)[0])) <= 1.0:
            raise ConfigError(
                f"exploration is a probability, got {rate} at progress {progress}; give numbers from 0 to 1, or "
                f"{LADDER!r} for a rate of every environment"
            )
