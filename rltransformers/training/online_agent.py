"""Base of online agents with memory: environments, checkpoints, random streams, a log that survives a stop.

Stable-Baselines3 looks these up on the class of an algorithm, so they are one class under the agents and not functions.
"""

import inspect
import os
import warnings
from collections.abc import Iterable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from functools import cached_property
from itertools import chain
from operator import attrgetter
from pathlib import Path
from typing import Annotated, Any, ClassVar, NamedTuple, Self, cast

import gymnasium as gym
import numpy as np
import torch
from annotated_types import Ge, Lt
from stable_baselines3.common.base_class import BaseAlgorithm
from stable_baselines3.common.callbacks import BaseCallback
from stable_baselines3.common.logger import Logger
from stable_baselines3.common.policies import BasePolicy
from stable_baselines3.common.type_aliases import MaybeCallback
from stable_baselines3.common.vec_env import VecEnv, VecNormalize
from torch import Tensor, nn

from rltransformers.backbone import BackboneConfig
from rltransformers.core.action_masks import ACTION_MASK, MASK_METHOD, observes_mask
from rltransformers.core.checkpoint import (
    Checkpoint,
    File,
    check_same,
    check_tensor,
    contents_of,
    file_name,
    load_checkpoint,
    pack_arrays,
    restore_optimizer,
    restore_weights,
    save_checkpoint,
    unpack_arrays,
)
from rltransformers.core.described import count
from rltransformers.core.device import find_device, to_tensor
from rltransformers.core.episodes import episode_record, success_of
from rltransformers.core.errors import CheckpointError, ConfigError, DataError, one_line, refuse_unknown
from rltransformers.core.files import check_path
from rltransformers.core.guard import Guard, named_fault, raised_in_reset, reset_rows, warn_of_statistics
from rltransformers.core.ranges import Count, Environments, Seed, annotations, check, check_settings, strict
from rltransformers.core.seeding import branch_seeds, generators, seed_environments
from rltransformers.core.spaces import space_from_json, space_to_json
from rltransformers.core.world import World, current_world, rows_of
from rltransformers.data.rollout import Segment
from rltransformers.envs.saving import part_of_state, restore_environment, takes_state
from rltransformers.policies.actor_critic import GTrXLPolicy
from rltransformers.policies.memory_policy import MemoryPolicy, PolicyState, with_reward
from rltransformers.policies.observations import tree_space
from rltransformers.policies.own_policies import (
    check_same_network,
    named_policy,
    policy_settings,
    restored_kwargs,
    stored_kwargs,
)
from rltransformers.policies.shipping import ActorCriticInFile, Scaling, write_policy
from rltransformers.policies.steps import ActorCriticMachine
from rltransformers.policies.stored_size import check_stored_size
from rltransformers.training.actor import Actor
from rltransformers.training.distributed import EndedEpisode, share_seen, share_statistics
from rltransformers.training.interval_log import check_callback
from rltransformers.training.normalization import (
    check_evaluation_env,
    check_same_observations,
    check_same_rewards,
    checked_normalization,
    pack_normalization,
    scalings_of,
    set_statistics,
    with_normalizer,
    wrapper_between,
)
from rltransformers.training.online_checkpoint import (
    on_device,
    pack_progress,
    restore_generators,
    restore_observation,
    restore_progress,
    segment_tensors,
    stored_segment,
)
from rltransformers.training.parameters import print_system, replaced_settings, take_parameters, uncompiled
from rltransformers.training.reward_scale import RewardScale
from rltransformers.training.run_card import write_run_card
from rltransformers.training.schedules import Scheduled, as_schedule, is_line, plain_schedule, warn_of_jumps
from rltransformers.training.stepping import PolicySteps, Scalings
from rltransformers.training.unwritten_metrics import UnwrittenMetrics
from rltransformers.training.vec_envs import as_vec_env, check_trained_spaces

Space = gym.Space[Any]
GENERATORS = ("_action_generator", "_batch_generator", "_predict_generator")
NOT_SETTINGS = ("policy", "env", "device", "_init_setup_model")
"""Arguments of a constructor that are given anew when a checkpoint is loaded."""


class Outcome(NamedTuple):
    """Outcome of a step of B environments.

    ``counts`` [B] is False for rows of a reset, ``unscaled`` [B] are the rewards before the agent's own scale, the rest
    is as SB3 names it.
    """

    new_obs: Any
    rewards: np.ndarray
    dones: np.ndarray
    infos: list[dict[str, Any]]
    counts: np.ndarray
    unscaled: np.ndarray


class Stored(NamedTuple):
    """Description of an agent in a checkpoint: policy by name, constructor arguments, (observation, action) spaces."""

    policy: str
    settings: dict[str, Any]
    spaces: tuple[Space, Space]
    n_envs: int


class OnlineAgent(BaseAlgorithm):
    """Base class of the online agents: an algorithm of Stable-Baselines3 whose policy has a memory.

    An agent is a subclass of this class first and of an algorithm of Stable-Baselines3 second, with its constructor,
    ``_setup_model`` (which calls ``_make_policy`` and ``_begin_run``), ``collect_rollouts`` and ``train``.

    Attributes:
        kind: name of the agent in its checkpoints and logs.
        scheduled: constructor arguments that may be a schedule.
        policy_aliases: the policy of the agent, by the name that a user gives.
        of_environments: parts of a checkpoint whose tensors have a row for every environment.
        first_values: constructor arguments that only a new agent reads: first values of what a checkpoint holds.
    """

    kind: ClassVar[str]
    scheduled: ClassVar[tuple[str, ...]]
    policy_aliases: ClassVar[dict[str, type[BasePolicy]]] = {"GTrXLPolicy": GTrXLPolicy}
    of_environments: ClassVar[tuple[str, ...]] = (
        "acting",
        "segment",
        "last_observation",
        "last_episode_starts",
        "running_returns",
    )
    first_values: ClassVar[tuple[str, ...]] = ()
    policy: Any  # a MemoryPolicy; SB3 declares its own policy without memory
    acting: str
    memory_refresh: str
    max_grad_norm: float
    gamma: float
    scale_rewards: bool

    @classmethod
    def setting_names(cls) -> list[str]:
        """Constructor arguments that a checkpoint stores and ``load`` may override."""
        return list(cls._setting_hints())

    @classmethod
    def _setting_hints(cls) -> dict[str, Any]:
        """Annotations of the settings, those too that a constructor hands on to the next one as ``**kwargs``."""
        hints: dict[str, Any] = {}
        for each in cls.__mro__:
            if "__init__" in vars(each):
                constructor = vars(each)["__init__"]
                hints = annotations(constructor) | hints
                parameters = inspect.signature(constructor).parameters.values()
                if not any(each.kind in (each.VAR_POSITIONAL, each.VAR_KEYWORD) for each in parameters):
                    break
        return {name: hint for name, hint in hints.items() if name not in NOT_SETTINGS}

    @classmethod
    def check_policy(cls, settings: Mapping[str, Any], prefix: str, policy: str | type | None = None) -> dict[str, Any]:
        """The keywords of a policy, by default the one of the agent, each checked; see ``policy_settings``."""
        chosen = next(iter(cls.policy_aliases)) if policy is None else policy
        return policy_settings(named_policy(chosen, cls.policy_aliases), settings, prefix)

    @staticmethod
    def _wrap_env(env: Any, verbose: int = 0, monitor_wrapper: bool = True) -> VecEnv:
        return as_vec_env(env, monitor_wrapper)

    @property
    def learning_rate(self) -> Any:
        """A schedule; another number, line or function holds from the next update on.

        Raises:
            ConfigError: when it is set to something else.
        """
        return self._learning_rate

    @learning_rate.setter
    def learning_rate(self, value: Scheduled) -> None:
        self._learning_rate = as_schedule(value, "learning_rate")
        self.lr_schedule = self._learning_rate

    @property
    def _last_obs(self) -> Any:
        """The newest observation, of where the environments stand as long as ``_moved`` says nothing else."""
        return self._observation

    @_last_obs.setter
    def _last_obs(self, observation: Any) -> None:
        self._observation = observation
        if observation is not None and self.env is not None:
            self._guard.note()

    @property
    def _moved(self) -> bool:
        """Whether the environments were reset or stepped by somebody else since the newest observation."""
        return self.env is not None and self._guard.moved

    @cached_property
    def world(self) -> World:
        """The processes that train this agent, as ``rltransformers.core.world.join`` found them."""
        return current_world()

    @property
    def all_envs(self) -> int:
        """Environments of all processes; ``n_envs`` counts those of this one."""
        return int(self.n_envs) * self.world.size

    def _own_rows(self, tree: Any) -> Any:
        """Of tensors with a row for each of ``all_envs`` those of this process."""
        return tree if self.world.alone else rows_of(tree, self.world.block(self.n_envs))

    def _set_random_streams(self) -> None:
        """Global generators, and those of sampled actions, of ``predict`` and of minibatches; alike everywhere."""
        if not self.world.alone:
            drawn = int(np.random.SeedSequence().generate_state(1)[0]) % 2**31
            self.seed = self.world.same(drawn if self.seed is None else self.seed)
        if self.seed is None:
            self._begin_streams(None)
        else:
            self.set_random_seed(self.seed)

    def _begin_streams(self, seed: int | None) -> None:
        streams = generators(seed, self.device)
        self._action_generator = streams.action.torch
        self._predict_generator = streams.model.torch
        self._batch_generator = generators(seed).data.torch

    def _find_masks(self) -> None:
        """Let the policy mask actions where the environment has masks, and the settings do not say whether.

        Raises:
            ConfigError: it should, and the environment has none.
        """
        wanted, env = self.policy_kwargs.get("action_masks"), self.env
        observed = observes_mask(tree_space(self.observation_space), self.action_space, wanted)
        if observed or env is None or wanted is False:
            return
        found = env.has_attr(MASK_METHOD)
        if wanted and not found:
            raise ConfigError(
                f"the policy masks actions, and the environment has neither a method {MASK_METHOD}() nor a leaf "
                f"{ACTION_MASK!r} of its observation; wrap it in ActionMasker of sb3-contrib, or set "
                "policy_kwargs={'action_masks': False}"
            )
        if found:
            self.policy_kwargs = self.policy_kwargs | {"action_masks": True}

    def _check_masks(self, env: VecEnv) -> None:
        """Raise ConfigError unless ``env`` has masks of actions beside its observation where the policy reads such."""
        if self.policy.masks_beside and not env.has_attr(MASK_METHOD):
            raise ConfigError(
                f"the policy masks actions by the method {MASK_METHOD}() of its environment, and this one has none; "
                "wrap it in ActionMasker of sb3-contrib"
            )
        unread = not self.policy.masks and self.policy_kwargs.get("action_masks") is not False
        if unread and env.has_attr(MASK_METHOD):
            raise ConfigError(
                f"the environment has a method {MASK_METHOD}(), and the policy was made without masks: "
                f"{self.kind}.load(path, env=env) makes one with them, "
                "load(path, policy_kwargs={..., 'action_masks': False}) one that leaves them alone"
            )

    def _make_policy(self, popart: float | None = None) -> None:
        """Random streams, and the network on its device, with a value head that follows the returns at ``popart``."""
        self._setup_lr_schedule()
        self._set_random_streams()
        self._find_masks()
        make: Any = self.policy_class
        self.policy = make(self.observation_space, self.action_space, self.lr_schedule, **self.policy_kwargs)
        self.policy.complete()
        if popart is not None:
            self.policy.normalise_values(popart)
        self.policy = self.policy.to(self.device)
        if self.acting == "compiled":
            self.policy.machine_code = ActorCriticMachine(self.policy)

    def _begin_run(self) -> None:
        """Nothing remembered yet, of episodes, of rollouts and of metrics."""
        self._acting = self.policy.initial_state(self.n_envs)
        self._segment: Segment | None = None
        self._segment_before: Segment | None = None
        self._metrics = UnwrittenMetrics()
        self._loaded_normalization: dict[str, Any] | None = None  # of a model that was loaded without environment
        self._scaled_rewards: bool | None = None  # whether it learned from rewards that VecNormalize scaled
        self._scale = RewardScale(self.n_envs, self.world) if self.scale_rewards else None
        self._counted = 0  # steps of this process in the running rollout
        self._ended: list[list[EndedEpisode]] = []  # episodes of this process in it, by step
        self._look_at_environment()
        if not self.world.leads:
            self.tensorboard_log, self.verbose = None, 0
        check_path(self.tensorboard_log or "")

    def _look_at_environment(self) -> None:
        if self.env is not None:
            self._guard = Guard(self.env, self._steps_of_run, self.policy.masks, self.policy.masks_beside)
            warn_of_statistics(self.env)

    def _to_device(self, array: Any) -> Tensor:
        return to_tensor(array, self.device)

    # Rollout

    def _steps_of_run(self) -> int:
        """Steps of each environment so far."""
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

    def _step_environments(self, actions: Any, state: PolicyState) -> Outcome:
        """Take one step in all environments with ``actions``, which left ``state``, and count it.

        Raises:
            DataError: for an exception of an environment (chained), and for rewards or flags that are none.
        """
        new_obs, unscaled, dones, infos = self._guard.step(actions)
        rewards, scale = unscaled, self._own_scale
        if scale is not None:
            scale.update(unscaled, cast(np.ndarray, self._last_episode_starts), self.gamma)
            rewards = scale(unscaled)
        resets = reset_rows(self._guard)
        self._count_steps(self.n_envs - int(np.count_nonzero(resets)))
        self._acting = with_reward(state, rewards)
        self._last_obs = new_obs
        # After a reset row the observation is the first of an episode; the row itself was an episode of its own.
        self._last_episode_starts = dones | resets
        return Outcome(new_obs, rewards, dones, infos, ~resets, unscaled)

    def _reset_environments(self) -> Any:
        """The first observations of new episodes, which act next.

        Raises:
            DataError: for an exception of an environment (chained), and for what a ``VecNormalize`` must not take in.
        """
        self._last_obs = self._guard.reset()
        self._last_episode_starts = np.ones(self.n_envs, dtype=bool)
        return self._last_obs

    # Update

    def _begin_update(self) -> None:
        """Training mode, and the learning rate of this point of the run."""
        self.policy.set_training_mode(True)
        self.policy.progress = 1.0 - self._current_progress_remaining
        self._update_learning_rate(self.policy.optimizer)
        if (scale := self._own_scale) is not None:
            self.logger.record("train/reward_scale", float(np.sqrt(scale.moments.var)))

    def _step(self, loss: Tensor, learned: Iterable[nn.Parameter]) -> Tensor:
        """One step of the optimiser; returns the norm of the gradient of ``learned`` before it was clipped.

        Raises:
            DataError: for a loss that is not finite.
        """
        if not torch.isfinite(loss):
            raise DataError(
                f"the loss of update {self._n_updates} is {float(loss.detach())}; rewards or observations may be far "
                "too large (VecNormalize scales observations, scale_rewards=True rewards), or learning_rate too high"
            )
        self.policy.optimizer.zero_grad()
        loss.backward()
        self.world.sum_gradients(self.policy.optimizer.param_groups[0]["params"])
        norm = torch.nn.utils.clip_grad_norm_(learned, self.max_grad_norm)
        self.policy.optimizer.step()
        for part in self.policy.backbones():
            part.backbone.constrain_()
        return norm

    def _maintain(self) -> None:
        """Let mixers learn from what they saw, on all processes."""
        for part in self.policy.backbones():
            share_seen(self.world, part.backbone)
            part.backbone.maintain()

    # Several processes

    def _count_steps(self, count: int) -> None:
        """Steps of the environments of this process; as long as the rollout lasts, the others count as many."""
        self._counted += count
        self.num_timesteps += count * self.world.size

    def _update_info_buffer(self, infos: list[dict[str, Any]], dones: np.ndarray | None = None) -> None:
        infos = [  # without an environment's own "episode", which Stable-Baselines3's log would take for a record
            {name: value for name, value in info.items() if name != "episode"}
            if "episode" in info and episode_record(info) is None
            else info
            for info in infos
        ]
        for index in () if dones is None else np.flatnonzero(dones).tolist():
            success_of({"is_success": infos[index].get("is_success")}, index)
        if self.world.alone:
            super()._update_info_buffer(infos, dones)
            return
        ended = np.zeros(len(infos), bool) if dones is None else dones
        endings: list[dict[str, Any]] = [
            {name: info[name] for name in ("episode", "is_success") if name in info} for info in infos
        ]
        self._ended.append([(info, bool(end)) for info, end in zip(endings, ended, strict=True) if info or end])

    def _share_rollout(self, before: int, going_on: bool) -> bool:
        """Count the steps of all processes since there were ``before``, and their episodes as one process would.

        Returns whether all of them are ``going_on``.
        """
        if not self.world.alone:
            parts = self.world.all_of((self._counted, self._ended, going_on))
            going_on = all(each for _, _, each in parts)
            self.num_timesteps = before + sum(counted for counted, _, _ in parts)
            for episodes in zip(*(ended for _, ended, _ in parts), strict=True):
                for info, end in chain(*episodes):
                    super()._update_info_buffer([info], np.array([end]))
        self._counted, self._ended = 0, []
        return going_on

    def _update_current_progress_remaining(self, num_timesteps: int, total_timesteps: int) -> None:
        """From 1 to 0, where it stays: rollouts are whole, and the last one may go beyond the end of the run."""
        super()._update_current_progress_remaining(num_timesteps, total_timesteps)
        self._current_progress_remaining = max(0.0, self._current_progress_remaining)

    # Log

    def set_logger(self, logger: Logger) -> None:
        super().set_logger(logger)
        self._metrics.hand_to(logger)

    def _setup_learn(
        self, total_timesteps: int, callback: MaybeCallback = None, reset_num_timesteps: bool = True, *rest: Any
    ) -> tuple[int, BaseCallback]:
        check_callback(callback)
        before = self._current_progress_remaining
        self._settings()  # an agent that cannot be saved is refused before it has learned
        if reset_num_timesteps:
            self._metrics = UnwrittenMetrics()
        self._counted, self._ended = 0, []
        if self._vec_normalize_env is not None:
            self._scaled_rewards = bool(self._vec_normalize_env.norm_reward)
        share_statistics(self.world, self._vec_normalize_env)
        try:
            with self._guard.inside:
                result = super()._setup_learn(total_timesteps, callback, reset_num_timesteps, *rest)
        except Exception as error:
            if isinstance(error, ConfigError | DataError) or self.env is None or not raised_in_reset(error):
                raise
            raise named_fault(self.env, error, "in step 0") from error
        self._guard.check(self._last_obs, lambda: "in step 0")
        if self._vec_normalize_env is not None:
            check_evaluation_env(result[1], cast(VecEnv, self.env))
        if not reset_num_timesteps and self.num_timesteps and self.world.leads:
            values = {name: getattr(self, name) for name in self.scheduled}
            warn_of_jumps(values, before, 1.0 - self.num_timesteps / self._total_timesteps)
        self._metrics.hand_to(self.logger)
        if not self._custom_logger and self.num_timesteps == 0:
            write_run_card(self.logger, self.hyperparameters())
        return result

    # Use

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

        ``log_interval``: rollouts from one line of the log to the next; None leaves writing to a callback.
        ``tb_log_name``: what a run is called in TensorBoard; None for the name of the agent.

        Raises:
            DataError: when an observation, a reward or a flag is none of the space, or the environment raises an
                exception (chained); names the environment and the step.
            ConfigError: when the agent was loaded without an environment.
        """
        if self.env is None:
            raise ConfigError(
                f"this agent has no environment to learn in; load it with {self.kind}.load(path, env=env)"
            )
        return super().learn(  # type: ignore[safe-super]  # that of the algorithm beside this class
            total_timesteps,
            callback=callback,
            log_interval=cast(int, log_interval),  # SB3 reads None too
            tb_log_name=self.kind if tb_log_name is None else tb_log_name,
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
        scale = self._own_scale
        if scale is not None and reward is not None and self.policy.uses_previous_reward:
            reward = scale.of_last_step(reward)
        return self.policy.predict(observation, state, episode_start, deterministic, reward, streams, action_masks)

    # Episodes and random streams

    def set_env(self, env: Any, force_reset: bool = True) -> None:
        """Replace the environment by another with as many copies.

        An agent that was loaded without one takes it as ``load`` would have: in the ``VecNormalize`` of the checkpoint,
        or with the statistics of that in its own. Afterwards the newest environment says how it is normalised.

        Args:
            env: as for the constructor.
            force_reset: reset it before training goes on.

        Raises:
            ConfigError: when it has other spaces, or another number of copies, or has masks of actions where that of
                the policy had none, or the other way round.
        """
        env = self._wrap_env(env, self.verbose)
        packed = self._loaded_normalization if self.env is None else None
        if packed is not None:
            env = with_normalizer(env, packed)
            check_same_observations(env, packed)
        if self.env is None and self.policy.uses_previous_reward:
            check_same_rewards(env, packed)
        check_trained_spaces((tree_space(self.observation_space), self.action_space), env)
        if env.num_envs != self.n_envs:
            raise ConfigError(
                f"the environment has {env.num_envs} copies, this agent learns from {self.n_envs}; give as many, or "
                f"load it with {self.kind}.load(path, env=env), which takes any number"
            )
        self._check_masks(env)
        self.observation_space = env.observation_space  # that of a file is nested where the environment's is flat
        super().set_env(env, force_reset)
        self._look_at_environment()
        if packed is not None:
            set_statistics(cast(VecNormalize, self._vec_normalize_env), packed, self.world)
            self._scaled_rewards = packed["settings"]["norm_reward"]

    @strict
    def begin_episodes(self, seed: Seed) -> None:
        """Begin new episodes in all environments; those of every environment follow from ``seed``.

        Only between two updates: in a rollout the steps so far would lose their ends.

        Raises:
            ConfigError: when the agent was loaded without an environment.
        """
        if self.env is None:
            raise ConfigError(f"this agent has no environment; load it with {self.kind}.load(path, env=env)")
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
        count = self.env.num_envs  # type: ignore[union-attr]  # asked for where there is one
        seed_environments(cast(VecEnv, self.env), branch_seeds(seed, "environment", count, self.world.rank * count))

    @property
    def stands_in_episodes(self) -> bool:
        """Whether ``learn(..., reset_num_timesteps=False)`` goes on with running episodes; else it begins new ones."""
        return self._last_obs is not None and not self._moved

    # Acting

    @strict
    def actor(self, *, deterministic: bool = True, seed: Seed | None = None) -> Actor:
        """The agent as something that acts and remembers by itself, on observations as the environment gives them.

        What ``VecNormalize`` and ``scale_rewards`` did in training, it does by itself with the present statistics:
        those of environment and agent, or those of the checkpoint of an agent that was loaded without environment.

        Args:
            deterministic: take the most likely action, or a sample.
            seed: of sampled actions; None draws one.

        Raises:
            ConfigError: when a wrapper stands between ``VecNormalize`` and the policy.
        """
        scalings = Scalings(self)
        scalings()  # an impossible one is told now
        return Actor(PolicySteps(self.policy, scalings), deterministic=deterministic, seed=seed, name=self.kind)

    # Files

    @strict
    def export(self, path: str | os.PathLike[str], *, batch: Environments | None = None) -> Path:
        """Write the policy to a file that runs without this package: ``.pt2`` for torch, ``.onnx`` for ONNX runtimes.

        The file takes raw observations and rewards, and gives actions as the environment takes them, and the other
        fields of ``PolicyOutput`` beside them; what ``VecNormalize`` and ``scale_rewards`` do is inside. The policy
        itself stays as it is. Returns the path. It takes up to a minute, of which a line tells where ``verbose`` is not
        0.

        Args:
            path: the ending says which kind of file.
            batch: the number of environments that the file is for; None for any.

        Raises:
            ConfigError: for another ending, for what a file of that kind cannot express, or when a wrapper stands
                between ``VecNormalize`` and the policy.
            MissingExtraError: for ONNX without its packages.
        """
        step = ActorCriticInFile(self.policy, *self.scalings(), self.kind)
        return write_policy(step, path, batch, tree_space(self.observation_space), self.action_space, self.verbose)

    def scalings(self) -> tuple[dict[str, Scaling], Scaling | None]:
        """What is done to observation leaves by path, and to rewards where the policy reads them.

        Raises:
            ConfigError: when a wrapper stands between ``VecNormalize`` and the policy.
        """
        leaves, reward = scalings_of(self._normalization(), self.env)
        if (scale := self._own_scale) is not None and self.policy.uses_previous_reward:
            reward = scale.scaling()
        return leaves, reward

    def _normalization(self) -> dict[str, Any] | None:
        """Settings and statistics of ``VecNormalize``; rewards as in training, whatever evaluations set since."""
        if self._vec_normalize_env is not None:
            packed = pack_normalization(self._vec_normalize_env) | {"between": wrapper_between(self.env)}
            if self._scaled_rewards is not None:
                packed["settings"]["norm_reward"] = self._scaled_rewards
            return packed
        return self._loaded_normalization if self.env is None else None

    @strict
    def save(self, path: File, exclude: Any = None, include: Any = None) -> None:
        """Write everything a later ``learn`` or ``predict`` needs to one file; nothing in it is executed on loading.

        ``path`` may be a file that is open for bytes, from where it stands; such a file stays open.

        It holds weights, optimiser, settings, spaces, counters, random streams, the memory and observations where
        acting stopped, the statistics of ``VecNormalize`` and ``scale_rewards``, metrics that were recorded and not
        written yet, and the state of environments that can tell it (``rltransformers.envs.saving``). What is scheduled
        by a function of one's own is stored as the line that it is; one that is no line as its present value, with a
        warning.

        Raises:
            ConfigError: for ``exclude`` or ``include``, which this format has no use for.
        """
        if exclude or include:
            raise ConfigError(f"a checkpoint of {self.kind} is always complete; leave out exclude and include")
        for name in self.scheduled:
            value = getattr(self, name)
            if callable(value) and not is_line(as_schedule(value, name)):
                warnings.warn(
                    f"{name} is a function that is no straight line, and files hold no functions: this one holds its "
                    f"present value; whoever goes on gives it again, load(path, {name}=...)",
                    UserWarning,
                    stacklevel=2,
                )
        settings = self._settings() | {
            "observation_space": space_to_json(tree_space(self.observation_space)),
            "action_space": space_to_json(self.action_space),
            "n_envs": self.all_envs,
            "policy": type(uncompiled(self.policy)).__name__,
        }
        tensors = self._tensors()
        if self.world.leads:
            save_checkpoint(path, self.kind, settings, tensors)

    def _get_torch_save_params(self) -> tuple[list[str], list[str]]:
        return list(self._parts()), []

    def _parts(self) -> dict[str, str]:
        """Names of ``get_parameters``, and where a checkpoint holds each."""
        return {"policy": "policy", "policy.optimizer": "optimizer"}

    @strict
    def set_parameters(
        self,
        load_path_or_dict: File | Mapping[str, Any],
        exact_match: bool = True,
        device: torch.device | str = "auto",
    ) -> None:
        """Take over weights and optimisers: those of a checkpoint, or what ``get_parameters`` returned.

        Memories stay; what is cached of them is computed anew with the new weights.

        Args:
            exact_match: every part and every parameter has to be there; False takes those that are given.
            device: where tensors of a file are read to; the agent stays where it is.

        Raises:
            CheckpointError: when the file is missing, corrupt, or of another agent.
            ConfigError: for what does not fit; a part of other names or shapes changes nothing.
        """
        if isinstance(load_path_or_dict, Mapping):
            given = dict(load_path_or_dict)
        else:
            tensors = load_checkpoint(load_path_or_dict, self.kind, find_device(device)).tensors
            with contents_of(load_path_or_dict, self.kind):
                given = {name: tensors[key] for name, key in self._parts().items()}
        take_parameters({name: uncompiled(attrgetter(name)(self)) for name in self._parts()}, given, exact_match)
        actor = self._actor
        self._acting = actor.with_cache(actor.without_cache(self._acting))

    @property
    def _actor(self) -> MemoryPolicy:
        """The policy that ``_acting`` belongs to."""
        return cast(MemoryPolicy, self.policy)

    def __repr__(self) -> str:
        policy = getattr(self, "policy", None)
        if policy is None:  # made with _init_setup_model=False
            return f"{type(self).__name__}(not built yet)"
        sizes = f"{count(self.num_timesteps, 'step')}, {count(self.n_envs, 'environment')}"
        return f"{type(self).__name__}({sizes}): {policy!r}"

    def hyperparameters(self) -> dict[str, Any]:
        """Kind and settings of the agent as JSON values, as TensorBoard shows them."""
        return {"agent": self.kind, "n_envs": self.all_envs} | self._settings()

    def _settings(self) -> dict[str, Any]:
        """Constructor arguments as JSON values.

        Raises:
            ConfigError: for a subclass whose constructor would not get them back, or does not keep one.
        """
        names, agent = self.setting_names(), next(each for each in type(self).__mro__ if "kind" in vars(each))
        if lost := [name for name in agent.setting_names() if name not in names]:  # type: ignore[attr-defined]
            raise ConfigError(
                f"a {type(self).__name__} cannot be saved: its constructor takes no {', '.join(lost)}; let it take "
                "**kwargs, and pass them to super().__init__"
            )
        if absent := [name for name in names if name != "stats_window_size" and not hasattr(self, name)]:
            raise ConfigError(
                f"a {type(self).__name__} cannot be saved: it does not keep the argument {absent[0]!r} of its "
                f"constructor; set self.{absent[0]}"
            )
        return {name: self._setting(name) for name in names if name != "tensorboard_log"}

    def _setting(self, name: str) -> Any:
        if name == "stats_window_size":
            return self._stats_window_size
        value = getattr(self, name)
        if name == "policy_kwargs":
            return stored_kwargs(value)
        if name in self.scheduled and value is not None:
            return plain_schedule(as_schedule(value, name), self._current_progress_remaining)
        return os.fspath(value) if isinstance(value, os.PathLike) else value

    def _tensors(self) -> dict[str, Any]:
        if self.world.any(self._moved):
            self._last_obs = None  # of episodes that are gone: nobody can go on from it
        logger = self.logger if hasattr(self, "_logger") else None
        again = self.memory_refresh == "epoch" and self._segment is not None  # the next update encodes it again
        return {
            "policy": uncompiled(self.policy).state_dict(),
            "optimizer": self.policy.optimizer.state_dict(),
            "generators": {name: getattr(self, name).get_state() for name in GENERATORS},
            "metrics": pack_arrays(self._metrics.to_store(logger)),
            "segment": self._of_all_envs(segment_tensors(cast(Segment, self._segment)) if again else None),
            "acting": self._of_all_envs(self._acting.tensors()),
            **pack_progress(self, self.world),
            "normalisation": self._shared_normalization(),
            "reward_scale": None if self._scale is None else self._scale.tensors(),
            "running_returns": None if self._scale is None else self._of_all_envs(torch.as_tensor(self._scale.returns)),
        }

    def _of_all_envs(self, tree: Any) -> Any:
        """For a file, where process 0 needs them: tensors with the rows of all environments."""
        return self.world.to_leader(tree)

    def _shared_normalization(self) -> dict[str, Any] | None:
        packed = self._normalization()
        if packed is None or self.world.alone:
            return packed
        return packed | {"running_returns": self._of_all_envs(packed["running_returns"])}

    @classmethod
    @strict
    def load(
        cls,
        path: File,
        env: Any = None,
        device: torch.device | str = "auto",
        custom_objects: Mapping[str, Any] | None = None,
        print_system_info: bool = False,
        force_reset: bool | None = True,
        **overrides: Any,
    ) -> Self:
        """The agent that ``save`` wrote.

        Args:
            path: file, with or without ``.zip``, or one that is open for bytes.
            env: environment to go on with; None when only ``predict`` is needed. An environment without
                ``VecNormalize`` is wrapped in one when the agent was trained with it; the stored statistics are
                restored either way. It may have another number of copies: then new episodes begin. ``GTrXLDQN`` fills
                a new replay, and warns of it, for another number of copies, ``buffer_size`` or ``segment_length``.
            device: where the weights go.
            custom_objects: constructor arguments that replace the stored ones, under the names that Stable-Baselines3
                has for them; files of this package hold no other objects that could be replaced.
            print_system_info: print this machine and its versions, and the version that wrote the file.
            force_reset: reset the environment before training goes on. False when ``env`` stands exactly where the
                saved run stopped: then the run continues as if it had never been interrupted. None for False when the
                checkpoint holds the state of the environments and ``env`` takes it (``rltransformers.envs.saving``),
                else True. Where there is such a state, False sets it too.
            **overrides: constructor arguments that replace the stored ones. ``popart`` is the step of statistics that
                stay; whether there are any is not to be changed. With a ``seed``, here or in
                ``custom_objects``, the random streams begin anew from it; without one they go on where they stood.
                ``tensorboard_log`` is never stored: where a run writes is up to who runs it.

        Raises:
            CheckpointError: when the file is missing, corrupt, or of another agent.
            ConfigError: when ``env`` has other spaces, or an override is unknown or changes the network.
        """
        device = find_device(device)
        checkpoint = load_checkpoint(path, cls.kind)
        if print_system_info:
            print_system(checkpoint.code_version)
        tensors = checkpoint.tensors
        with contents_of(path, cls.kind):
            stored = cls._description(checkpoint)
        refuse_unknown(overrides, cls.setting_names(), source="load")
        overrides = replaced_settings(custom_objects, cls.setting_names()) | overrides
        if outdated := [name for name in cls.first_values if name in overrides]:
            raise ConfigError(
                f"{', '.join(outdated)}: the first value of what the file holds as it is by now, so another one has no "
                "effect; leave it out"
            )
        if "popart" in overrides and (overrides["popart"] is None) is not (stored.settings.get("popart") is None):
            raise ConfigError(
                f"popart was {stored.settings.get('popart')} when the agent was made: whether its value head follows "
                "the returns is settled, and load changes only the step of one that does; leave popart out"
            )
        if overrides.get("policy_kwargs") is not None:
            check_same_network(stored.settings.get("policy_kwargs") or {}, overrides["policy_kwargs"])
        packed, vec_env = tensors.get("normalisation"), None if env is None else cls._wrap_env(env)
        if vec_env is not None:
            if packed is not None:
                with contents_of(path, cls.kind):
                    vec_env = with_normalizer(vec_env, packed)
                check_same_observations(vec_env, packed)
            check_trained_spaces(stored.spaces, vec_env)
        alone = env is None and not overrides
        with cls._fit_check(path, overrides), contents_of(path, cls.kind, alone):
            model = cls._of_stored(stored, overrides, vec_env, device, tensors)
        if model.policy.uses_previous_reward:
            if model.scale_rewards != (trained := stored.settings["scale_rewards"]):
                raise ConfigError(
                    f"scale_rewards={model.scale_rewards}: the policy reads rewards and was trained with "
                    f"scale_rewards={trained}; leave it out"
                )
            if vec_env is not None:
                check_same_rewards(vec_env, packed)
        if packed is not None and vec_env is not None:
            model._scaled_rewards = packed["settings"]["norm_reward"]
        with cls._fit_check(path, overrides), contents_of(path, cls.kind):
            known = stored.n_envs == model.all_envs
            if known and not model.world.alone:
                tensors = model._own_part(tensors)
            model._restore(tensors, model.n_envs if known else stored.n_envs)
        with contents_of(path, cls.kind):
            if overrides.get("seed") is not None:
                model._begin_streams(model.seed)
            if packed is not None and vec_env is None:
                model._loaded_normalization = checked_normalization(packed, tree_space(model.observation_space))
            elif packed is not None:
                set_statistics(cast(VecNormalize, model._vec_normalize_env), packed, model.world)
            state = unpack_arrays(tensors.get("environment"))
        if force_reset is False and tensors["last_observation"] is None and model.num_timesteps:
            raise ConfigError(
                "the file holds no place to go on from: its agent had no environment when it was saved, or one that "
                "somebody else had reset or stepped; leave force_reset out to begin new episodes"
            )
        restorable = known and state is not None and vec_env is not None and takes_state(vec_env, state)
        if tensors["last_observation"] is not None and (restorable if force_reset is None else not force_reset):
            if not known:
                raise ConfigError(
                    f"the run was saved with {stored.n_envs} environments, this one has {model.all_envs}; "
                    "load with force_reset=True to begin new episodes"
                )
            with contents_of(path, cls.kind):
                if restorable:
                    restore_environment(cast(VecEnv, vec_env), state)
                model._restore_place(tensors)
        return model

    @classmethod
    def _description(cls, checkpoint: Checkpoint) -> Stored:
        """Description of the agent of a checkpoint, each part checked."""
        values, acting = checkpoint.settings, checkpoint.tensors["acting"]
        settings, spaces, n_envs = cls._stored_settings(values)
        policy = check(values["policy"], str, "policy")
        rewards = check_tensor(acting["previous_reward"], "acting.previous_reward", (None,), torch.float32)
        if len(rewards) != n_envs:
            raise CheckpointError(f"it names {n_envs} environments and holds another number of memories")
        if settings["scale_rewards"] and checkpoint.tensors.get("reward_scale") is None:
            raise CheckpointError("it says that rewards are scaled and holds no scale")
        return Stored(policy, settings, spaces, n_envs)

    @classmethod
    def _of_stored(
        cls,
        stored: Stored,
        overrides: dict[str, Any],
        env: VecEnv | None,
        device: torch.device | str,
        tensors: Mapping[str, Any],
    ) -> Self:
        """The agent that a checkpoint describes, with new weights, unless the file has fewer than it describes."""
        make: Any = cls  # a subclass, whose constructor is another than that of its base
        model: Self = make(
            stored.policy, env, device=device, _init_setup_model=False, **stored.settings | dict(overrides)
        )
        if env is None:
            (model.observation_space, model.action_space), model.n_envs = stored.spaces, stored.n_envs
        backbone = BackboneConfig.from_dict(model.policy_kwargs.get("backbone") or {})
        acting = check(tensors["acting"]["actor"], Mapping[str, Any], "acting.actor")
        check_stored_size(backbone, tensors["policy"], acting, stored.n_envs)
        model._setup_model()
        return model

    @classmethod
    @contextmanager
    def _fit_check(cls, path: File, overrides: Mapping[str, Any]) -> Iterator[None]:
        """Within the block, that a checkpoint does not fit its agent is a fault of ``overrides`` if it fits without.

        Raises:
            ConfigError: names the overrides.
        """
        try:
            yield
        except CheckpointError as error:
            if not overrides:
                raise
            if isinstance(path, str | os.PathLike):
                cls.load(path, device="cpu")  # refuses a file that is broken
            raise ConfigError(
                f"what {file_name(path)} holds does not fit with {', '.join(overrides)} replaced "
                f"({one_line(error.__cause__)}); a setting that changes the network, its memory or its optimiser "
                "cannot be replaced on load: leave it out"
            ) from error

    def _own_part(self, tensors: Mapping[str, Any]) -> dict[str, Any]:
        """Of what a file holds of ``all_envs`` what belongs to the environments of this process."""
        own = dict(tensors)
        for name in self.of_environments:
            own[name] = self._own_rows(own.get(name))
        normalisation, state = own.get("normalisation"), own.get("environment")
        if normalisation is not None:
            own["normalisation"] = normalisation | {"running_returns": self._own_rows(normalisation["running_returns"])}
        if state is not None:
            own["environment"] = pack_arrays(part_of_state(unpack_arrays(state), self.world.rank, self.world.size))
        return own

    def _restore_place(self, tensors: Mapping[str, Any]) -> None:
        """Go on where acting stopped: its memory and the newest observations."""
        self._acting = PolicyState.from_tensors(on_device(tensors["acting"], self.device))
        restore_observation(self, tensors)

    @classmethod
    def _stored_settings(cls, stored: Mapping[str, Any]) -> tuple[dict[str, Any], tuple[Space, Space], int]:
        """Constructor arguments, the two spaces and the number of environments, each checked."""
        known = [name for name in cls.setting_names() if name in stored and name != "tensorboard_log"]
        settings = check_settings(cls._setting_hints(), {name: stored[name] for name in known}, "settings.")
        given = restored_kwargs(settings["policy_kwargs"] or {})
        settings["policy_kwargs"] = cls.check_policy(given, "settings.policy_kwargs.", stored["policy"])
        both = space_from_json(stored["observation_space"]), space_from_json(stored["action_space"])
        return settings, both, check(stored["n_envs"], Count, "settings.n_envs")

    def _restore(self, tensors: Mapping[str, Any], n_envs: int) -> None:
        """Everything but the place where acting stopped; ``n_envs`` is the number of environments then."""
        restore_weights(self.policy, tensors["policy"])
        restore_optimizer(self.policy.optimizer, tensors["optimizer"])
        restore_generators({name: getattr(self, name) for name in GENERATORS}, tensors["generators"])
        restore_progress(self, tensors)
        check_same(tensors["acting"], self._acting.tensors(), "acting", n_envs)
        if self._scale is not None and tensors.get("reward_scale") is not None:
            self._scale.restore(tensors["reward_scale"], tensors["running_returns"], n_envs)
        self._metrics = UnwrittenMetrics(unpack_arrays(tensors["metrics"]))
        segment = stored_segment(tensors["segment"], self.policy, n_envs, self.device)
        self._segment = segment if n_envs == self.n_envs else None
