"""Base of online agents with memory: one class, because Stable-Baselines3 looks these methods up on an algorithm."""

import os
from collections.abc import Mapping, Sequence
from dataclasses import replace
from functools import cached_property
from itertools import chain
from pathlib import Path
from typing import Annotated, Any, Self, cast

import numpy as np
import torch
from annotated_types import Ge, Lt
from stable_baselines3.common.callbacks import BaseCallback
from stable_baselines3.common.logger import Logger
from stable_baselines3.common.policies import BasePolicy
from stable_baselines3.common.type_aliases import MaybeCallback
from stable_baselines3.common.vec_env import VecEnv, VecNormalize

from rltransformers.core.described import count
from rltransformers.core.device import find_device
from rltransformers.core.errors import ConfigError, DataError
from rltransformers.core.files import check_folder
from rltransformers.core.guard import Guard, named_fault, raised_in_reset, reset_rows, warn_of_statistics
from rltransformers.core.ranges import Count, Environments, Seed, constructor_annotations, strict
from rltransformers.core.seeding import branch_seeds, seed_environments, torch_stream
from rltransformers.core.values import episode_record, success_of, to_tensor
from rltransformers.core.world import Sharing, current_sharing
from rltransformers.policies.memory_policy import MemoryPolicy
from rltransformers.policies.observations import tree_space
from rltransformers.policies.own_policies import named_policy, policy_settings
from rltransformers.policies.policy_state import PolicyState
from rltransformers.policies.shipping import ActorCriticInFile, Scaling, write_policy
from rltransformers.training import normalization
from rltransformers.training.actor import Actor
from rltransformers.training.interval_log import check_callback
from rltransformers.training.normalization import CLIP, EPSILON, RewardScale
from rltransformers.training.online.carry import Carry, endings
from rltransformers.training.online.eval_callbacks import check_eval_callbacks
from rltransformers.training.online.online_checkpoint import UnwrittenMetrics
from rltransformers.training.online.stored_agent import StoredAgent, settings_of
from rltransformers.training.online.tensor_rollouts import tensor_environments
from rltransformers.training.online.vec_envs import (
    as_vec_env,
    check_masks_of,
    trained_spaces,
    with_masks,
    with_pictures,
)
from rltransformers.training.runs.run_card import write_run_card
from rltransformers.training.schedules import Scheduled, as_schedule, warn_of_jumps
from rltransformers.training.stepping import PolicySteps, Scalings


class OnlineAgent(StoredAgent):
    """Base class of the online agents: an algorithm of Stable-Baselines3 whose policy has a memory.

    An agent is a subclass of this class first and of an algorithm of Stable-Baselines3 second, with its constructor,
    ``_setup_model`` (which calls ``_make_policy`` and ``_begin_run``), ``collect_rollouts`` and ``train``.
    """

    policy: Any  # a MemoryPolicy; SB3 declares its own policy without memory
    gamma: float
    scale_rewards: bool

    def __init__(
        self,
        policy: str | type[BasePolicy],
        env: Any,
        *,
        tensorboard_log: str | os.PathLike[str] | None,
        policy_kwargs: Mapping[str, Any] | None,
        device: torch.device | str,
        needs_env: bool,
        **settings: Any,
    ) -> None:
        """``settings`` are the other arguments of the algorithm of Stable-Baselines3."""
        kind = named_policy(policy, self.policy_aliases)
        if env is None and needs_env:
            raise ConfigError("env is None, but an agent learns in one: give an environment id or an environment")
        super().__init__(
            kind,
            as_vec_env(env) if isinstance(env, str) else env,
            tensorboard_log=None if tensorboard_log is None else os.fspath(tensorboard_log),
            policy_kwargs=policy_settings(kind, policy_kwargs or {}, "policy_kwargs."),
            device=find_device(device),
            **settings,
        )
        if needs_env and "observation" in constructor_annotations(kind):  # an agent of a file reads as it did
            self.policy_kwargs = with_pictures(self.policy_kwargs, self.env, self.observation_space)

    @staticmethod
    def _wrap_env(env: Any, verbose: int = 0, monitor_wrapper: bool = True) -> VecEnv:
        return as_vec_env(env, monitor_wrapper)

    @property
    def learning_rate(self) -> Any:
        """A schedule; another number, line or function holds from the next update on, all else raises ConfigError."""
        return self._learning_rate

    @learning_rate.setter
    def learning_rate(self, value: Scheduled) -> None:
        self._learning_rate = as_schedule(value, "learning_rate")
        self.lr_schedule = self._learning_rate

    @property
    def _last_obs(self) -> Any:
        """``_observation``, of where the environments stand as long as ``_moved`` says nothing else."""
        return self._observation

    @_last_obs.setter
    def _last_obs(self, observation: Any) -> None:  # by Stable-Baselines3, which resets the environments
        self._observation = observation
        if observation is not None and self.env is not None:
            self._moves = self._guard.moves

    @property
    def _moved(self) -> bool:
        """Whether the environments were reset or stepped by somebody else since the newest observation."""
        return self.env is not None and self._guard.moves != self._moves

    @cached_property
    def sharing(self) -> Sharing:
        """The processes that train this agent, as ``rltransformers.core.world.join`` found them."""
        return current_sharing()

    @cached_property
    def all_envs(self) -> int:
        """Environments of all processes; ``n_envs`` counts those of this one."""
        return int(self.n_envs) * self.sharing.size

    @cached_property
    def own_envs(self) -> slice:
        """Where the environments of this process stand among those of all."""
        return self.sharing.block(int(self.n_envs))

    def _begin_streams(self, seed: int | None) -> None:
        """Generators of sampled actions, of ``predict`` and of minibatches."""
        self._action_generator = torch_stream(seed, "action", self.device)
        self._predict_generator = torch_stream(seed, "model", self.device)
        self._batch_generator = torch_stream(seed, "data")

    def _make_policy(self, popart: float | None = None) -> None:
        """Random streams, and the network on its device, with a value head that follows the returns at ``popart``."""
        self._setup_lr_schedule()
        if not self.sharing.is_single:  # the streams are the same everywhere
            drawn = int(np.random.SeedSequence().generate_state(1)[0]) % 2**31
            self.seed = self.sharing.broadcast(drawn if self.seed is None else self.seed)
        if self.seed is None:
            self._begin_streams(None)
        else:
            self.set_random_seed(self.seed)
        self.policy_kwargs = with_masks(self.policy_kwargs, self.env, self.observation_space, self.action_space)
        make: Any = self.policy_class
        self.policy = make(self.observation_space, self.action_space, self.lr_schedule, **self.policy_kwargs)
        self.policy.complete()
        if popart is not None:
            self.policy.normalize_values(popart)
        self.policy = self.policy.to(self.device)
        self._compile()

    def _begin_run(self) -> None:
        self._settled = {name: getattr(self, name) for name in self.settled}
        self.carry = Carry(self.policy.initial_state(self.n_envs))
        self._metrics = UnwrittenMetrics()
        self._loaded_normalization: dict[str, Any] | None = None  # of a model that was loaded without environment
        self._scaled_rewards: bool | None = None  # whether it learned from rewards that VecNormalize scaled
        self._scale = RewardScale(self.n_envs, self.sharing) if self.scale_rewards else None
        self._endings: list[Any] = []  # of several processes, by step of the running rollout, see ``endings``
        self._look_at_environment()
        if not self.sharing.is_leader:
            self.tensorboard_log, self.verbose = None, 0
        if self.tensorboard_log is not None:
            check_folder(self.tensorboard_log, "tensorboard_log")

    def _check_env(self) -> None:
        if self.env is None:
            raise ConfigError(
                f"this agent has no environment to learn in; load it with {self.kind}.load(path, env=env)"
            )

    def _look_at_environment(self) -> None:
        if self.env is not None:
            self._guard = Guard(self.env, self._steps_of_run, self.policy.masks, self.policy.masks_beside)
            self._moves = self._guard.moves
            self._tensors = tensor_environments(self)
            warn_of_statistics(self.env)

    # Rollout

    def _steps_of_run(self) -> int:
        return self.num_timesteps // self.n_envs

    @property
    def _own_scale(self) -> RewardScale | None:
        """The scale that rewards go through; None without ``scale_rewards``, and where ``VecNormalize`` scales them."""
        normalizer, loaded = self._vec_normalize_env, self._loaded_normalization
        if normalizer is not None:
            by_wrapper = normalizer.norm_reward if self._scaled_rewards is None else self._scaled_rewards
        else:
            by_wrapper = self.env is None and loaded is not None and loaded["settings"]["norm_reward"]
        return None if by_wrapper else self._scale

    def _step_environments(self, actions: Any, state: PolicyState) -> tuple[Any, ...]:
        """Take one step in all environments with ``actions``, which left ``state``, and count it.

        Returns observations, rewards, ends and infos as SB3 has them; which environments made a step, and no reset [E];
        and the rewards before the agent's own scale [E].
        """
        new_obs, unscaled, dones, infos = self._guard.step(actions)
        rewards, scale = unscaled, self._own_scale
        if scale is not None:
            rewards = scale.update(unscaled, cast(np.ndarray, self._last_episode_starts), self.gamma)
        resets = reset_rows(self._guard)
        steps = self.n_envs - int(np.count_nonzero(resets))
        self.num_timesteps += steps * self.sharing.size  # until ``_share_rollout`` counts those of the others
        self.carry.acting = replace(state, previous_reward=to_tensor(rewards, self.device, state.previous_reward.dtype))
        self._observation, self._moves = new_obs, self._guard.moves
        # After a reset row the observation is the first of an episode; the row itself was an episode of its own.
        self._last_episode_starts = dones | resets
        return new_obs, rewards, dones, infos, ~resets, unscaled

    def _reset_environments(self) -> Any:
        """The first observations of new episodes, which act next."""
        self._last_obs = self._guard.reset()
        self._last_episode_starts = np.ones(self.n_envs, dtype=bool)
        return self._last_obs

    def _begin_update(self) -> None:
        """Training mode, and the learning rate of this point of the run."""
        self.carry.rollout_from = None
        self.policy.set_training_mode(True)
        self.policy.progress = 1.0 - self._current_progress_remaining
        self._update_learning_rate(self.policy.optimizer)
        if (scale := self._own_scale) is not None:
            self.logger.record("train/reward_scale", float(np.sqrt(scale.moments.var)))

    def _update_info_buffer(self, infos: list[dict[str, Any]], dones: np.ndarray | None = None) -> None:
        """As in Stable-Baselines3, but for an environment's own "episode", which it would take for a record."""
        for row in () if dones is None else np.flatnonzero(dones).tolist():
            if type(infos[row].get("is_success")) is not bool:
                success_of(infos[row], row)
        infos = [
            {name: value for name, value in info.items() if name != "episode"}
            if "episode" in info and episode_record(info) is None
            else info
            for info in infos
        ]
        if self.sharing.is_single:
            super()._update_info_buffer(infos, dones)
        else:
            self._endings.append(endings(infos, dones))

    def _share_rollout(self, before: int, going_on: bool) -> bool:
        """Count the steps of all processes since there were ``before``, and their episodes as one process would.

        Returns whether all of them are ``going_on``.
        """
        own = (self.num_timesteps - before) // self.sharing.size
        steps, by_step, going = zip(*self.sharing.all_gather_object((own, self._endings, going_on)), strict=True)
        self._endings = []
        self.num_timesteps = before + sum(steps)
        for step in zip(*by_step, strict=True):
            for info, end in chain(*step):
                super()._update_info_buffer([info], np.array([end]))
        return all(going)

    def _update_current_progress_remaining(self, num_timesteps: int, total_timesteps: int) -> None:
        """From 1 to 0, where it stays: rollouts are whole, and the last one may go beyond the end of the run."""
        super()._update_current_progress_remaining(num_timesteps, total_timesteps)
        self._current_progress_remaining = max(0.0, self._current_progress_remaining)

    def set_logger(self, logger: Logger) -> None:
        super().set_logger(logger)
        self._metrics.hand_to(logger)

    def _setup_learn(
        self, total_timesteps: int, callback: MaybeCallback = None, reset_num_timesteps: bool = True, *rest: Any
    ) -> tuple[int, BaseCallback]:
        check_callback(callback)
        before = self._current_progress_remaining
        settings_of(self)  # an agent that cannot be saved is refused before it has learned
        if reset_num_timesteps:
            self._metrics = UnwrittenMetrics()
        self._endings = []
        if self._vec_normalize_env is not None:
            self._scaled_rewards = bool(self._vec_normalize_env.norm_reward)
        normalization.share_statistics(self.sharing, self._vec_normalize_env)
        try:
            with self._guard.inside:
                result = super()._setup_learn(total_timesteps, callback, reset_num_timesteps, *rest)
        except Exception as error:
            if isinstance(error, ConfigError | DataError) or self.env is None or not raised_in_reset(error):
                raise
            raise named_fault(self.env, error, "in step 0") from error
        self._guard.check(self._last_obs, lambda: "in step 0")
        check_eval_callbacks(result[1], cast(VecEnv, self.env), self.policy)
        if not reset_num_timesteps and self.num_timesteps and self.sharing.is_leader:
            values = {name: getattr(self, name) for name in self.scheduled}
            warn_of_jumps(values, before, 1.0 - self.num_timesteps / self._total_timesteps)
        self._metrics.hand_to(self.logger)
        if not self._custom_logger and self.num_timesteps == 0:
            write_run_card(self.logger, self.hyperparameters())
        return result

    @strict
    def learn(
        self,
        total_timesteps: Annotated[int, Ge(0), Lt(2**63)],
        callback: MaybeCallback = None,
        log_interval: Count | None = 1,
        tb_log_name: str | None = None,
        reset_num_timesteps: bool = True,
        progress_bar: bool = False,
    ) -> Self:
        """Train for at least ``total_timesteps`` environment steps, in whole rollouts, and return self.

        Args:
            log_interval: rollouts between two lines of the log; None leaves writing to a callback.
            tb_log_name: name of the run in TensorBoard; None for that of the agent.

        Raises:
            DataError: for a value outside its space, or an exception of the environment (chained); says where and when.
            ConfigError: when the agent was loaded without an environment.
        """
        self._check_env()
        name, interval = tb_log_name or self.kind, cast(int, log_interval)  # SB3 reads None too
        return super().learn(total_timesteps, callback, interval, name, reset_num_timesteps, progress_bar)  # type: ignore[safe-super]  # that of the algorithm beside this class

    def predict(
        self,
        observation: Any,
        state: Any = None,
        episode_start: np.ndarray | None = None,
        deterministic: bool = False,
        reward: np.ndarray | float | None = None,
        action_masks: Any = None,
        generators: Sequence[np.random.Generator] | None = None,
    ) -> tuple[Any, Any]:
        """Actions for one observation or a batch, and the state to pass in next; see ``MemoryPolicy.predict``.

        Sampled actions (of ``GTrXLDQN`` random ones with the probability ``epsilon`` of its policy, else the best) come
        from a random stream of their own, or from ``generators``, one for each environment [B]: predicting never
        changes a training run. ``reward`` is what the environment that the agent learns in returned; with
        ``scale_rewards`` it is scaled here, for policies that read it.
        """
        streams = self._predict_generator if generators is None else generators
        if reward is not None and self.policy.uses_previous_reward and (scale := self._own_scale) is not None:
            reward = scale.of_last_step(reward)
        return self.policy.predict(observation, state, episode_start, deterministic, reward, streams, action_masks)

    # Episodes and random streams

    def set_env(self, env: Any, force_reset: bool = True) -> None:
        """Replace the environment by another with as many copies.

        An agent that was loaded without one takes it as ``load`` would have. Afterwards the newest environment says how
        it is normalized.

        Args:
            env: as for the constructor.
            force_reset: reset it before training goes on.

        Raises:
            ConfigError: when it has other spaces, another number of copies, or masks of actions where the policy has
                none, or the other way round.
        """
        packed = self._loaded_normalization if self.env is None else None
        env = normalization.with_normalizer(self._wrap_env(env, self.verbose), packed)
        normalization.check_same_observations(env, packed)
        if self.env is None and self.policy.uses_previous_reward:
            normalization.check_same_rewards(env, packed)
        seen, _ = trained_spaces((tree_space(self.observation_space), self.action_space), env)
        if env.num_envs != self.n_envs:
            raise ConfigError(
                f"the environment has {env.num_envs} copies, this agent learns from {self.n_envs}; give as many, or "
                f"load it with {self.kind}.load(path, env=env), which takes any number"
            )
        check_masks_of(env, self.policy, self.policy_kwargs, self.kind)
        self.observation_space = seen
        super().set_env(env, force_reset)
        self._look_at_environment()
        if packed is not None:
            normalization.set_statistics(cast(VecNormalize, self._vec_normalize_env), packed, self.sharing)
            self._scaled_rewards = packed["settings"]["norm_reward"]

    @strict
    def begin_episodes(self, seed: Seed) -> None:
        """Begin new episodes in all environments; those of every environment follow from ``seed``.

        Only between two updates: in a rollout the steps so far would lose their ends.

        Raises:
            ConfigError: when the agent was loaded without an environment.
        """
        self._check_env()
        self._seed_environments(seed)
        self._reset_environments()

    @strict
    def set_random_seed(self, seed: Seed | None = None) -> None:
        """Let all that is drawn from now on follow from ``seed``, sampled actions and minibatches included.

        Environments follow from it when they are reset. None changes nothing.
        """
        if seed is None:
            return
        super().set_random_seed(seed)
        if self.env is not None:
            self._seed_environments(seed)
        self._begin_streams(seed)

    def _seed_environments(self, seed: int) -> None:
        """Seeds for the next reset, each of which depends on the number of the environment among ``all_envs`` alone."""
        seeds = branch_seeds(seed, "environment", self.n_envs, self.sharing.rank * self.n_envs)
        seed_environments(cast(VecEnv, self.env), seeds)

    @property
    def is_in_episodes(self) -> bool:
        """Whether ``learn(..., reset_num_timesteps=False)`` goes on with running episodes; else it begins new ones."""
        return self._last_obs is not None and not self._moved

    def hyperparameters(self) -> dict[str, Any]:
        """Kind and settings of the agent as JSON values, as TensorBoard shows them."""
        return {"agent": self.kind, "n_envs": self.all_envs} | settings_of(self)

    # Acting

    @strict
    def actor(self, *, deterministic: bool = True, seed: Seed | None = None) -> Actor:
        """Return the agent as something that acts and remembers by itself, on observations as environments give them.

        It applies ``VecNormalize`` and ``scale_rewards`` by itself, with the present statistics.

        Args:
            deterministic, seed: as for ``Actor``.

        Raises:
            ConfigError: when a wrapper stands between ``VecNormalize`` and the policy.
        """
        self.scalings()  # an impossible one is told now
        return Actor(PolicySteps(self.policy, self.scalings), deterministic=deterministic, seed=seed, name=self.kind)

    @strict
    def export(self, path: str | os.PathLike[str], *, batch: Environments | None = None) -> Path:
        """Write the policy to a file that runs without this package: ``.pt2`` for torch, ``.onnx`` for ONNX runtimes.

        The file takes raw observations and rewards (``VecNormalize`` and ``scale_rewards`` are inside) and gives
        actions as the environment takes them, and the other fields of ``PolicyOutput``. It takes up to a minute.
        Returns the path.

        Args:
            path: its ending chooses the kind of file.
            batch: number of environments that the file is for; None for any.

        Raises:
            ConfigError: for another ending, for what a file of that kind cannot express, or when a wrapper stands
                between ``VecNormalize`` and the policy.
            MissingExtraError: for ONNX without its packages.
        """
        step = ActorCriticInFile(self.policy, *self.scalings(), self.kind)
        return write_policy(step, path, batch, tree_space(self.observation_space), self.action_space, self.verbose)

    def scalings(self) -> Scalings:
        """What is done to observation leaves by path, and to rewards where the policy reads them.

        Raises:
            ConfigError: when a wrapper stands between ``VecNormalize`` and the policy.
        """
        leaves, reward = normalization.scalings_of(self._normalization())
        if (scale := self._own_scale) is not None and self.policy.uses_previous_reward:
            reward = Scaling(np.zeros(()), np.asarray(scale.moments.var), EPSILON, CLIP)
        return leaves, reward

    @property
    def reward_unit(self) -> float:
        """What 1 of the values of this policy is worth in rewards of the environment; 1 where these are not scaled."""
        if (scale := self._own_scale) is not None:
            return float(np.sqrt(scale.moments.var + EPSILON))
        _, reward = normalization.scalings_of(self._normalization())
        return 1.0 if reward is None else float(np.sqrt(reward.variance + reward.epsilon))

    def _normalization(self) -> dict[str, Any] | None:
        """Settings and statistics of ``VecNormalize``; rewards as in training, whatever evaluations set since."""
        if self._vec_normalize_env is not None:
            packed = normalization.pack_normalization(self._vec_normalize_env)
            packed["between"] = normalization.wrapper_between(self.env)
            if self._scaled_rewards is not None:
                packed["settings"]["norm_reward"] = self._scaled_rewards
            return packed
        return self._loaded_normalization if self.env is None else None

    @property
    def _actor(self) -> MemoryPolicy:
        """The policy that acts in the environments, from the memory ``carry.acting``."""
        return cast(MemoryPolicy, self.policy)

    def __repr__(self) -> str:
        policy = getattr(self, "policy", None)
        if policy is None:  # made with _init_setup_model=False
            return f"{type(self).__name__}(not built yet)"
        sizes = f"{count(self.num_timesteps, 'step')}, {count(self.n_envs, 'environment')}"
        return f"{type(self).__name__}({sizes}): {policy!r}"
