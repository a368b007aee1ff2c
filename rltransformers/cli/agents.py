"""From a run's config to an agent that learns, evaluates and saves: one class online, one offline."""

import json
import os
import sys
import zipfile
from abc import ABC, abstractmethod
from contextlib import nullcontext
from dataclasses import replace
from pathlib import Path
from typing import Any, ClassVar, cast

import numpy as np
import torch
from gymnasium import spaces
from stable_baselines3.common.base_class import BaseAlgorithm
from stable_baselines3.common.callbacks import BaseCallback
from stable_baselines3.common.vec_env import VecEnv, VecNormalize

from rltransformers.agents.decision_transformer import DecisionTransformer
from rltransformers.agents.load import agent_checkpoint, steps_of
from rltransformers.cli.baselines import is_sb3, load_baseline, make_baseline, save_baseline
from rltransformers.cli.collect import collect_episodes, make_environment
from rltransformers.cli.keywords import MEMORY_AGENTS, check_config, offline_policy
from rltransformers.core.action_masks import ACTION_MASK
from rltransformers.core.errors import OUR_ERRORS, CheckpointError, ConfigError, one_line
from rltransformers.core.pictures import is_image
from rltransformers.core.registry import find_spec
from rltransformers.core.seeding import branch_seeds, seed_environments
from rltransformers.core.spaces import differing_spaces
from rltransformers.core.world import current_sharing
from rltransformers.data import load_trajectories
from rltransformers.envs.novelty import NoveltyBonus
from rltransformers.policies.steps import Acting
from rltransformers.training.evaluation import EvaluationResult, evaluate_online
from rltransformers.training.normalization import pack_normalization, set_statistics
from rltransformers.training.offline.episodes import open_environments
from rltransformers.training.offline.playing import check_explores, check_lengths
from rltransformers.training.offline.validation import ValidationResult
from rltransformers.training.online.online_agent import OnlineAgent
from rltransformers.training.runs.experiment import (
    BASELINES,
    AgentName,
    EnvironmentConfig,
    EvaluationConfig,
    ExperimentConfig,
)


class RunAgent(ABC):
    """An agent of one run; ``steps`` names what training counts."""

    steps: ClassVar[str]
    online: ClassVar[bool]
    config: ExperimentConfig
    model: Any

    @abstractmethod
    def learn(self, total: int, callback: BaseCallback, progress: bool) -> None:
        """Train until ``total`` steps are done, those before a resume included."""

    @abstractmethod
    def evaluate(self, evaluation: EvaluationConfig, progress: bool = False) -> list[EvaluationResult]:
        """Results of the present weights, one per target return."""

    def validate(self) -> ValidationResult | None:
        """Errors of the present weights on held-out episodes; None where there are none."""
        return None

    def fault(self) -> str | None:
        """Why no episode can be played, where an agent can be evaluated without; None where one can."""
        return None

    @property
    def steps_done(self) -> int:
        return int(self.model.num_timesteps)

    @property
    def goes_on(self) -> bool:
        return self.steps_done < self.config.steps

    def check_lengths(self, before: ExperimentConfig, run: str) -> None:
        """Raise ConfigError where the config asks a ``run`` to end before what it did; ``before`` is its last one."""
        if self.config.steps < min(self.steps_done, before.steps):
            raise ConfigError(
                f"run {run} is at step {self.steps_done}, so it cannot end at {self.config.steps}; name more steps, or "
                "none, to go on with it"
            )

    def hyperparameters(self) -> dict[str, Any]:
        """Settings of agent and run for TensorBoard; those of the agent have their names in Python."""
        config = self.config.to_dict()
        if self.config.agent in BASELINES:
            return config
        agents_own = ("agent", "algorithm", "policy", "backbone")
        return self.model.hyperparameters() | {name: value for name, value in config.items() if name not in agents_own}

    @property
    def inexact(self) -> str | None:
        """Before ``learn``: why training does not go on as if it had not stopped, and the way out; None if it does."""
        return None

    def restart(self, step: int) -> None:
        """Begin new episodes that depend on the seed of the run and ``step`` only."""
        raise NotImplementedError

    def save(self, path: str | os.PathLike[str]) -> None:
        self.model.save(path)

    def close(self) -> None:  # noqa: B027 (an agent without environments of its own has nothing to close)
        """Close the environments."""


class OnlineRunAgent(RunAgent):
    """One of ``MEMORY_AGENTS`` or a baseline, and its environments."""

    steps = "environment steps"
    online = True

    def __init__(
        self, config: ExperimentConfig, checkpoint: Path | None, training: bool, acting: Acting | None
    ) -> None:
        self.config, self._training = config, training
        self._overrides: dict[str, Any] = {} if acting is None else {"acting": acting}
        seed = config.seed if training else config.evaluation.seed
        self._device = str(config.algorithm.get("device", "auto"))
        environment = self._share() if training else config.environment
        self._environments = [make_environment(environment, seed, device=self._device)]
        env = self._environments[0]
        settings = config.environment
        if training and settings.novelty_bonus:
            steps = None if settings.novelty_steps is None else max(settings.novelty_steps // settings.num_envs, 1)
            env = NoveltyBonus(env, settings.novelty_bonus, steps)
        if config.agent in MEMORY_AGENTS:
            self.model = self._gtrxl(MEMORY_AGENTS[config.agent], env, checkpoint)
        else:
            self.model = self._baseline(env, checkpoint)
            seed_environments(env, branch_seeds(seed, "environment", env.num_envs))  # Stable-Baselines3: seed + i
        if isinstance(env, NoveltyBonus):
            env.steps_done = self.model.num_timesteps // settings.num_envs
        self._evaluation_env: VecEnv | None = None
        if training and config.evaluation.kwargs:
            self.evaluation_environment()  # what cannot work should not wait for the first evaluation

    def _share(self) -> EnvironmentConfig:
        sharing, environment = current_sharing(), self.config.environment
        if sharing.is_single:
            return environment
        if self.config.agent not in MEMORY_AGENTS:
            raise ConfigError(
                f"{self.config.agent} is trained by one process, not by {sharing.size}: leave torchrun out"
            )
        return replace(environment, num_envs=sharing.share_of(environment.num_envs, "environment.num_envs"))

    def _gtrxl(self, kind: type[OnlineAgent], env: VecEnv, checkpoint: Path | None) -> OnlineAgent:
        config = self.config
        if checkpoint is not None:
            exact = False if config.train.restart_every else None  # restarts need no state of the environments
            reset = exact if self._training else True
            return kind.load(checkpoint, env=env, device=self._device, force_reset=reset, **self._overrides)
        policy = config.policy | {"backbone": config.backbone}
        make: type[Any] = kind
        name = next(iter(kind.policy_aliases))
        return make(name, self._normalized(env), policy_kwargs=policy, seed=config.seed, **config.algorithm)

    def _baseline(self, env: VecEnv, checkpoint: Path | None) -> BaseAlgorithm:
        if self._overrides.get("acting") == "compiled":
            raise ConfigError(f"{self.config.agent} has no compiled steps; leave --acting out")
        if checkpoint is not None:
            return load_baseline(self.config, env, checkpoint, self._device)
        return make_baseline(self.config, self._normalized(env))

    def _normalized(self, env: VecEnv) -> VecEnv:
        settings = self.config.environment
        if not settings.normalizes:
            return env
        return VecNormalize(
            env,
            norm_obs=settings.normalize_observation,
            norm_reward=settings.normalize_reward,
            gamma=self.config.algorithm.get("gamma", 0.99),
            norm_obs_keys=_vectors_of(env.observation_space) if settings.normalize_observation else None,
        )

    def learn(self, total: int, callback: BaseCallback, progress: bool) -> None:
        remaining = total - self.steps_done
        if remaining > 0:  # with reset_num_timesteps=False Stable-Baselines3 adds the steps already done
            self.model.learn(remaining, callback=callback, reset_num_timesteps=False, progress_bar=progress)

    def evaluate(self, evaluation: EvaluationConfig, progress: bool = False) -> list[EvaluationResult]:
        of_torch = not isinstance(self.model, OnlineAgent)  # its sampled actions; those of training stay as they are
        with torch.random.fork_rng() if of_torch else nullcontext():
            if of_torch:
                torch.manual_seed(evaluation.seed)
            result = evaluate_online(
                self.model,
                self.evaluation_environment(),
                self.config.environment.id,
                episodes=evaluation.episodes,
                seed=evaluation.seed,
                deterministic=evaluation.deterministic,
                progress=progress,
                longest_episode=evaluation.longest_episode,
            )
        return [result]

    def evaluation_environment(self) -> VecEnv:
        """Environments of their own, so that evaluating leaves the episodes of training alone."""
        statistics = self.model.get_vec_normalize_env()
        if self._evaluation_env is None:
            seed = self.config.evaluation.seed
            env = make_environment(self.config.evaluation_environment, seed, device=self._device)
            self._environments.append(env)
            ours = self.model.observation_space, self.model.action_space
            for role, before, after in differing_spaces(ours, (env.observation_space, env.action_space)):
                raise ConfigError(
                    f"evaluation.kwargs {self.config.evaluation.kwargs} change the {role} space from {before} to"
                    f" {after}; take values that leave it as in training"
                )
            if statistics is not None:
                env = VecNormalize(env, training=False, **pack_normalization(statistics)["settings"])
            self._evaluation_env = env
        if statistics is not None:  # whose environment may stand in a NoveltyBonus
            set_statistics(cast(VecNormalize, self._evaluation_env), pack_normalization(statistics))
        return self._evaluation_env

    @property
    def inexact(self) -> str | None:
        if not isinstance(self.model, OnlineAgent):
            agent = self.config.agent
            replay = " and the replay is empty" if agent is AgentName.SAC else ""
            return f"environments begin new episodes and sampling new random numbers{replay}: {agent} saves none of it"
        if self.model.is_in_episodes:
            return None
        return (
            f"environments begin new episodes: the checkpoint has no state of {self.config.environment.id}; "
            "with train.restart_every a resumed run equals one that never stopped"
        )

    def restart(self, step: int) -> None:
        words = np.random.SeedSequence([self.config.seed, step]).generate_state(1)
        self.model.begin_episodes(int(words[0]) % 2**31)

    def save(self, path: str | os.PathLike[str]) -> None:
        if isinstance(self.model, OnlineAgent):  # holds the statistics itself
            self.model.save(path)
        else:
            save_baseline(self.model, path)

    def close(self) -> None:
        for env in self._environments:
            env.close()


class OfflineRunAgent(RunAgent):
    """A DecisionTransformer (or behavior cloning), its dataset, and an environment to evaluate in, if it has one."""

    steps = "gradient steps"
    online = False

    def __init__(
        self,
        config: ExperimentConfig,
        checkpoint: Path | None,
        training: bool,
        acting: Acting | None,
        validating: bool = False,
    ) -> None:
        self.config = config
        dataset = None
        try:
            dataset = self._dataset() if training or validating else None
        except OUR_ERRORS as error:  # another machine may have the environment and not the data
            if training or not config.environment.id:
                raise
            print(f"no validation: {error}", file=sys.stderr)
        if checkpoint is not None:
            device = config.algorithm.get("device", "auto")
            replaced: dict[str, Any] = {} if acting is None else {"acting": acting}
            self.model = DecisionTransformer.load(checkpoint, dataset, device=device, **replaced)
            return
        policy = offline_policy(config)
        self.model = DecisionTransformer(
            "DTPolicy", dataset, policy_kwargs=policy, seed=config.seed, **config.algorithm
        )
        if config.online is not None:
            check_explores(self.model.policy.head, self.model.settings, config.online.exploration_noise)
            spec, longest = find_spec(config.environment.id), config.evaluation.longest_episode
            check_lengths(self.model.settings, longest, spec, config.environment.kwargs)
        # One episode before training: a wrong environment or target return should not wait for the end of the run.
        if config.environment.id:
            self.evaluate(replace(config.evaluation, episodes=1))

    def _dataset(self) -> Any:
        dataset = self.config.dataset
        assert dataset is not None  # ExperimentConfig checks it
        if dataset.collect is None:  # programs() has asked for the consent that a pickle needs
            data = load_trajectories(dataset.id, **dataset.reading(), trust=True)
            compared = bool(self.config.environment.id)  # the environment tells whether guesses are right
            return replace(data, guesses=dict.fromkeys(data.guesses, ""), verify=False) if compared else data
        return collect_episodes(self.config.environment, dataset.collect, self.config.seed)

    @property
    def goes_on(self) -> bool:
        return self._learns_offline or self._learns_online

    @property
    def _learns_offline(self) -> bool:
        """Whether gradient steps from the data are to come; those of online episodes count on behind them."""
        return super().goes_on and not self.model.online_timesteps

    @property
    def _learns_online(self) -> bool:
        online = self.config.online
        return online is not None and (self.model.online_timesteps < online.timesteps or self.model.online_updates > 0)

    def check_lengths(self, before: ExperimentConfig, run: str) -> None:
        super().check_lengths(before, run)
        done, online = self.model.online_timesteps, self.config.online
        if done and self.config.steps != before.steps:
            raise ConfigError(
                f"run {run} has begun to learn online, behind {before.steps} gradient steps, of which there cannot be "
                f"{self.config.steps} any more; name more online.timesteps to go on with it"
            )
        least = done if before.online is None else min(done, before.online.timesteps)
        if online is not None and online.timesteps < least:
            raise ConfigError(
                f"run {run} has learned from {done} steps online, so it cannot end at {online.timesteps}; name more "
                "or none, to go on with it"
            )

    def learn(self, total: int, callback: BaseCallback, progress: bool) -> None:
        if self._learns_offline:
            self.model.learn(gradient_steps=total - self.steps_done, callback=callback, progress_bar=progress)
        online, environment = self.config.online, self.config.environment
        if online is not None and self._learns_online:
            self.model.learn_online(
                environment.id,
                max(online.timesteps - self.model.online_timesteps, 0),
                **{name: value for name, value in vars(online).items() if name != "timesteps"},
                env_kwargs=environment.kwargs,
                wrappers=environment.wrappers,
                longest_episode=self.config.evaluation.longest_episode,
                callback=callback,
                progress_bar=progress,
            )

    def evaluate(self, evaluation: EvaluationConfig, progress: bool = False) -> list[EvaluationResult]:
        environment = self.config.evaluation_environment
        if not environment.id:
            return []
        return self.model.evaluate(
            environment.id,
            target_returns=evaluation.target_returns or None,
            episodes=evaluation.episodes,
            num_envs=environment.num_envs,
            seed=evaluation.seed,
            env_kwargs=environment.kwargs,
            wrappers=environment.wrappers,
            deterministic=evaluation.deterministic,
            longest_episode=evaluation.longest_episode,
            progress_bar=progress,
        )

    def validate(self) -> ValidationResult | None:
        return self.model.validate() if self.model.validates else None

    def fault(self) -> str | None:
        environment = self.config.evaluation_environment
        spaces = self.model.observation_space, self.model.action_space
        try:
            if environment.id:
                with open_environments(environment.id, 1, environment.kwargs, environment.wrappers, spaces):
                    return None
        except OUR_ERRORS as error:
            return str(error)
        return "environment.id is missing"


def build_agent(
    config: ExperimentConfig,
    checkpoint: Path | None = None,
    training: bool = True,
    acting: Acting | None = None,
    validating: bool = False,
) -> RunAgent:
    """The agent of a config, new or from a checkpoint; a dataset is read where it is ``training`` or ``validating``.

    ``acting`` takes the place of the setting in the checkpoint.
    """
    check_config(config, new=checkpoint is None)
    if config.agent is AgentName.DECISION_TRANSFORMER:
        return OfflineRunAgent(config, checkpoint, training, acting, validating)
    return OnlineRunAgent(config, checkpoint, training, acting)


def checkpoint_step(path: Path) -> int:
    """The training step a checkpoint was written at; CheckpointError when it is corrupt or of no agent."""
    try:
        if is_sb3(path):
            with zipfile.ZipFile(path) as archive:
                return int(json.loads(archive.read("data"))["num_timesteps"])
        return steps_of(agent_checkpoint(path))
    except (zipfile.BadZipFile, KeyError, ValueError) as error:
        raise CheckpointError(f"checkpoint {path} is corrupt or of no agent ({one_line(error)})") from error


def _vectors_of(space: spaces.Space[Any]) -> list[str] | None:
    """The keys of a Dict that ``VecNormalize`` is for: vectors of floats, not images or indices. None for a vector.

    ``VecNormalize`` would change the space of an image, and of integers the values but not the space.
    """
    leaves = space.spaces if isinstance(space, spaces.Dict) else {"": space}
    keys = [
        key
        for key, leaf in leaves.items()
        if isinstance(leaf, spaces.Box) and not is_image(leaf) and np.issubdtype(leaf.dtype, np.floating)
        if key != ACTION_MASK
    ]
    if not keys:
        raise ConfigError(
            f"environment.normalize_observation finds no vector of floats in {space}; leave it off, policies scale "
            "images and integers themselves"
        )
    return keys if isinstance(space, spaces.Dict) else None
