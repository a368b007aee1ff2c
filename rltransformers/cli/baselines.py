"""Agents of Stable-Baselines3 and sb3-contrib that runs compare with: made, loaded and saved with their statistics."""

import os
import zipfile
from collections.abc import Mapping
from pathlib import Path
from typing import Any, cast

from gymnasium import spaces
from stable_baselines3.common.base_class import BaseAlgorithm
from stable_baselines3.common.vec_env import VecEnv

from rltransformers.cli.keywords import AGENT_CLASSES
from rltransformers.core.errors import CheckpointError, ConfigError, one_line
from rltransformers.core.files import replacing
from rltransformers.core.spaces import leaf_spaces
from rltransformers.policies.recurrent import RECURRENT_POLICIES
from rltransformers.training.normalization import load_normalization, save_normalization
from rltransformers.training.runs.experiment import AgentName, ExperimentConfig
from rltransformers.training.runs.run_folder import statistics_path
from rltransformers.training.schedules import Line, as_schedule

POLICIES = {"vector": "MlpPolicy", "image": "CnnPolicy", "dict": "MultiInputPolicy"}


def make_baseline(config: ExperimentConfig, env: VecEnv) -> BaseAlgorithm:
    """The agent of a config, new.

    Raises:
        ConfigError: for observations that it does not take, and for what it refuses.
    """
    seen, kind = env.observation_space, AGENT_CLASSES[config.agent]
    recurrent = config.agent is AgentName.RECURRENT_PPO
    if recurrent and any(isinstance(leaf, spaces.MultiDiscrete) for leaf in leaf_spaces(seen).values()):
        raise ConfigError(
            "RecurrentPPO of sb3-contrib takes no MultiDiscrete observations; add the wrapper FlattenObservation"
        )
    policy = dict(config.policy)
    policies: Mapping[str, Any] = RECURRENT_POLICIES[policy.pop("cell", "lstm")] if recurrent else POLICIES
    images = isinstance(seen, spaces.Box) and len(seen.shape) == 3
    name = policies["dict" if isinstance(seen, spaces.Dict) else "image" if images else "vector"]
    algorithm: dict[str, Any] = {
        key: as_schedule(cast(Line, value), f"algorithm.{key}") if isinstance(value, Mapping) else value
        for key, value in config.algorithm.items()
    }
    try:
        model: BaseAlgorithm = kind(name, env, policy_kwargs=policy, seed=config.seed, **algorithm)
    except (TypeError, ValueError, AssertionError, RuntimeError) as error:
        raise ConfigError(f"{kind.__name__} of {_origin(kind)} refuses algorithm or policy: {error}") from error
    return model


def load_baseline(config: ExperimentConfig, env: VecEnv, checkpoint: Path, device: str) -> BaseAlgorithm:
    """The agent of a checkpoint, around the environment its statistics belong to.

    Raises:
        CheckpointError: where a file is missing, damaged or of another agent.
    """
    if not checkpoint.is_file():
        raise CheckpointError(f"checkpoint {checkpoint} does not exist")
    if config.environment.normalizes:
        statistics = statistics_path(checkpoint)
        if not statistics.is_file():
            raise CheckpointError(
                f"{statistics} is not there, which holds the statistics that {checkpoint} is normalized by; put it "
                "back, or train anew"
            )
        env = load_normalization(statistics, env, training=True)
    kind = AGENT_CLASSES[config.agent]
    try:
        model: BaseAlgorithm = kind.load(checkpoint, env=env, device=device)
    except (ValueError, AssertionError, KeyError, EOFError, RuntimeError) as error:
        raise CheckpointError(
            f"checkpoint {checkpoint} is corrupt or not of a {kind.__name__} ({one_line(error)})"
        ) from error
    return model


def save_baseline(model: BaseAlgorithm, path: str | os.PathLike[str]) -> None:
    """Write its checkpoint, and beside it the statistics of a ``VecNormalize`` around its environment.

    Both are written before one of them takes its name: on a full disk the two of before stay together.
    """
    statistics = model.get_vec_normalize_env()
    with replacing(path) as temporary:
        model.save(temporary)
        if statistics is not None:
            save_normalization(statistics_path(Path(path)), statistics)


def is_sb3(path: Path) -> bool:
    """Whether a file is a checkpoint of Stable-Baselines3; False for a damaged one, whose reader says what is wrong."""
    try:
        with zipfile.ZipFile(path) as archive:
            return "data" in archive.namelist()
    except Exception:  # whatever a damaged file raises
        return False


def _origin(kind: type[Any]) -> str:
    return "sb3-contrib" if kind.__module__.startswith("sb3_contrib") else "Stable-Baselines3"
