"""Base of online agents that learn from a replay of all steps so far. Axes: E environments, B segments."""

import warnings
from collections.abc import Mapping
from typing import Annotated, Any, Literal, Self, cast

import numpy as np
import torch
from annotated_types import Ge, Lt
from stable_baselines3.common.callbacks import BaseCallback
from stable_baselines3.common.off_policy_algorithm import OffPolicyAlgorithm
from stable_baselines3.common.type_aliases import MaybeCallback, RolloutReturn, TrainFreq, TrainFrequencyUnit
from stable_baselines3.common.vec_env import VecEnv
from torch import Tensor

from rltransformers.core.action_masks import ACTION_MASK
from rltransformers.core.checkpoint import File
from rltransformers.core.described import count
from rltransformers.core.device import check_bytes
from rltransformers.core.errors import ConfigError
from rltransformers.core.ranges import Count, strict
from rltransformers.core.spaces import leaf_spaces
from rltransformers.core.values import to_tensor
from rltransformers.data.replay import Draw, SegmentReplay, Window
from rltransformers.data.rollout import bytes_of, observation_layout
from rltransformers.policies.observations import tree_space
from rltransformers.policies.policy_state import PolicyState
from rltransformers.policies.replay_policy import ReplayPolicy
from rltransformers.training.normalization import check_outermost, wrapper_between
from rltransformers.training.online import replay_data
from rltransformers.training.online.online_agent import OnlineAgent
from rltransformers.training.online.tensor_rollouts import UnstoredSteps, collect_steps
from rltransformers.training.update import UpdateMode, memory_panel

ReplayMemoryRefresh = Literal["never", "update"]
GradientSteps = Literal[-1] | Count
BYTES_BESIDE = 19
"""Of a row of the replay beside its observation: action, reward, position, flags."""


class OffPolicyMemoryAgent(OnlineAgent, OffPolicyAlgorithm):  # type: ignore[misc]  # actor: SB3 has a network of that name
    """An online agent that keeps the steps of all environments in a ``SegmentReplay`` and learns from segments of it.

    An agent is a subclass with its constructor, ``_act`` and ``train``.
    """

    per_environment = (*OnlineAgent.per_environment, "last_raw_observation")
    settled = (*OnlineAgent.settled, "buffer_size", "segment_length", "burn_in", "n_step", "train_freq")
    policy: ReplayPolicy
    replay_buffer: SegmentReplay | None  # type: ignore[assignment]  # segments in place of SB3's transitions
    segment_length: int
    burn_in: int | None
    n_step: int
    memory_refresh: ReplayMemoryRefresh
    checkpoint_replay: bool
    updates: UpdateMode

    def __init__(self, *arguments: Any, train_freq: int, **settings: Any) -> None:
        super().__init__(*arguments, support_multi_env=True, sde_support=False, **settings)
        self.train_freq = TrainFreq(train_freq, TrainFrequencyUnit.STEP)  # type: ignore[assignment]  # as SB3 keeps it

    def _setup_model(self) -> None:
        self.sharing.check(None, self.batch_size)
        self._make_policy()
        self.check_together()
        receptive_field = self.policy.actor.backbone.receptive_field
        if self.burn_in is None and receptive_field is None:
            raise ConfigError(
                "this backbone remembers more than a window of rows, so no number of steps before a segment is enough "
                "for all episodes: set burn_in, to the longest episode for exact memories, or to fewer steps, after "
                "which the memory is taken as good enough"
            )
        if self.memory_refresh == "update" and self.burn_in == 0 and receptive_field != 0:
            raise ConfigError(
                "memory_refresh 'update' encodes the memory anew from the burn_in steps before, and burn_in is 0; "
                "leave burn_in out, or set memory_refresh to 'never'"
            )
        self.context = cast(int, receptive_field if self.burn_in is None else self.burn_in)
        # Of a checkpoint, for the environment that may be set later.
        self._stored: dict[str, Any] = {"replay": None, "last_raw_observation": None}
        self._raw_obs: Any = None  # what the last observation was before VecNormalize, of a checkpoint
        self.replay_buffer = None if self.env is None else self._new_replay()
        self.unstored: UnstoredSteps | None = None
        self._begin_run()

    def _new_replay(self) -> SegmentReplay:
        normalizer = self._vec_normalize_env
        if normalizer is not None:
            check_outermost(wrapper_between(self.env, rewards=True))
        space = tree_space(self.observation_space if normalizer is None else normalizer.venv.observation_space)
        leaves = self.policy.seen_leaves | leaf_spaces(space)
        room = self.buffer_size // self.sharing.size
        row = bytes_of(observation_layout(leaves)) + BYTES_BESIDE  # in the memory of this machine, not of a GPU
        check_bytes(room * row, f"buffer_size ({room}) steps need", "lower buffer_size")
        sizes = self.segment_length, self.context, self.n_step
        return SegmentReplay(room, self.n_envs, *sizes, leaves, self.policy.drawn_space)

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
        if self._moved:
            self._reset_environments()
        if self._tensors is not None:
            going_on = collect_steps(self, self._tensors, callback, train_freq.frequency)
            self._store_steps()
            return self._end_rollout(callback, before, episodes, going_on, log_interval)
        normalizer = self._vec_normalize_env
        seen = self._guard.leaves(self._observation)
        leaves = policy.leaves_to_tensors(seen)
        going_on = True
        for _ in range(train_freq.frequency):
            episode_starts = cast(np.ndarray, self._last_episode_starts)
            first = to_tensor(episode_starts, self.device)
            newest = replay_data.raw_leaves(normalizer, self._observation, self._raw_obs)
            raw = {path: np.array(leaf) for path, leaf in newest.items()}
            if policy.masks_beside:
                raw[ACTION_MASK] = seen[ACTION_MASK]
            buffer_actions, state = self._act(leaves, first)  # callbacks find both by the names of SB3
            actions = policy.environment_actions(buffer_actions)
            new_obs, rewards, dones, infos, counts, unscaled = self._step_environments(actions, state)
            cut, last = self._guard.last_leaves(dones, infos, for_replay=True)
            terminal = dones.copy()
            terminal[cut] = False
            earned = unscaled if normalizer is None else normalizer.get_original_reward()
            replay_buffer.add(raw, buffer_actions, earned, episode_starts, terminal, counts)
            if cut:
                replay_buffer.add_last(cut, last)
            callback.update_locals(locals())
            going_on = bool(callback.on_step()) and going_on
            self._update_info_buffer(infos, dones)
            self._update_current_progress_remaining(self.num_timesteps, self._total_timesteps)
            self._episode_num += int(np.count_nonzero(dones))
            if not going_on and self.sharing.is_single:
                return self._end_rollout(callback, before, episodes, going_on, log_interval)
            if self._moved:  # by the callback: the replay takes these episodes as left
                new_obs = self._reset_environments()
            seen = self._guard.leaves(new_obs)
            leaves = policy.leaves_to_tensors(seen)
        if not self.sharing.is_single:
            going_on = self._share_rollout(before, going_on)
        self._episode_num = episodes + self.sharing.count(self._episode_num - episodes)
        return self._end_rollout(callback, before, episodes, going_on, log_interval)

    def _store_steps(self) -> None:
        """Bring steps in tensors into the replay; those in numpy are there."""
        if self.unstored is not None:
            self._episode_num += self.unstored.store(cast(SegmentReplay, self.replay_buffer))

    def _end_rollout(
        self, callback: BaseCallback, before: int, episodes: int, going_on: bool, log_interval: int | None
    ) -> RolloutReturn:
        """Write the log where its time has come; ``before`` steps and ``episodes`` are those before the rollout."""
        if going_on:
            if log_interval is not None and self._episode_num // log_interval > episodes // log_interval:
                self.dump_logs()
            callback.on_rollout_end()
        return RolloutReturn(self.num_timesteps - before, self._episode_num - episodes, going_on)

    def _act(self, leaves: Mapping[str, Tensor], first: Tensor) -> tuple[dict[str, Tensor], PolicyState]:
        """Actions by path for the newest observations, explored, and the state after them."""
        raise NotImplementedError

    # Learning

    def _window(self, draw: Draw, takers: Tensor) -> Window:
        """The segments of this process as the policy sees them."""
        window = replay_data.own_window(cast(SegmentReplay, self.replay_buffer), draw, takers, self.sharing)
        # Machine code is made for one length of context.
        return self._normalized(window if self.updates == "compiled" else window.trimmed())

    def _normalized(self, window: Window) -> Window:
        """A window as the policy sees it, on its device."""
        normalizer, scale = self._vec_normalize_env, self._own_scale
        return replay_data.normalized(normalizer, scale, window, self.policy.leaf_types).to(self.device)

    @torch.no_grad()
    def _renew_memory(self, replay: SegmentReplay) -> None:
        """Keys and values of the acting memory always follow the new weights; what they are made from may too."""
        policy, state = self.policy, self.carry.acting
        if self.memory_refresh == "never" or not self.context or not replay.joined.all():
            self.carry.acting = policy.with_cache(policy.without_cache(state))
            return
        policy.set_training_mode(False)
        window = self._normalized(replay.newest(np.arange(self.n_envs), 0))
        self.carry.acting = policy.acting_state(window, state.previous_action, state.previous_reward)

    # Log

    def dump_logs(self) -> None:
        """Write a line of the log, with a look at where attention goes in the newest segment of one environment."""
        replay = self.replay_buffer
        rows = np.array([self._n_updates % self.n_envs])
        if replay is not None and self._n_updates and replay.written[rows] >= self.segment_length:
            self.policy.set_training_mode(False)
            window = self._normalized(replay.newest(rows, self.segment_length).trimmed())
            policy = self.policy
            for name, value in memory_panel(lambda record: policy.features(window, policy.actor, record)).items():
                self.logger.record(name, float(value))
        self.logger.record("replay/size", 0 if replay is None else self.sharing.count(replay.size()))
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
        super().learn(total_timesteps, callback, log_interval, tb_log_name, reset_num_timesteps, progress_bar)
        replay, needed = cast(SegmentReplay, self.replay_buffer), self.segment_length + self.n_step
        if not len(replay) and self.num_timesteps > self.learning_starts and self.sharing.is_leader:
            warnings.warn(
                f"nothing was learned: updates begin when an environment has made {needed} steps (segment_length + "
                f"n_step), and none has in {self.num_timesteps} steps of {count(self.all_envs, 'environment')}; train "
                "longer, or lower segment_length or the number of environments",
                stacklevel=3,
            )
        return self

    # Files

    @strict
    def save_replay_buffer(self, path: File) -> None:
        """Write the replay to one file, atomically; nothing in it is executed on loading.

        Raises:
            ConfigError: when the agent has no environment and so no replay.
        """
        self._check_env()
        self._store_steps()
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
                f"a replay file cannot go on with its running episodes: {self.kind}.save and {self.kind}.load can, or "
                "leave truncate_last_traj=True"
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
        self._store_steps()
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
                stacklevel=2,
            )
