"""Trained agents as behaviors for recording: ``checkpoint:<zip or run folder>`` and ``export:<pt2 or onnx file>``."""

import zipfile
from pathlib import Path
from typing import Any

import gymnasium as gym

from rltransformers.agents import Actor, load_agent
from rltransformers.agents.load import checkpoint_in
from rltransformers.core.errors import ConfigError
from rltransformers.data.behaviors import register_behavior

Space = gym.Space[Any]


def _checkpoint(argument: str, observation_space: Space, action_space: Space, deterministic: bool) -> Actor:
    file = checkpoint_in(argument)
    _refuse_recurrent(file)
    actor = load_agent(file, device="cpu").actor(deterministic=deterministic)
    actor.name = f"checkpoint:{file}"
    return actor


def _refuse_recurrent(file: Path) -> None:
    """Raise ConfigError for a checkpoint in the format of Stable-Baselines3, as ``recurrent_ppo`` writes it."""
    try:
        with zipfile.ZipFile(file) as archive:
            names = archive.namelist()
    except Exception:  # whatever a damaged file raises; who loads it says so
        return
    if "data" not in names:
        return
    way_out = f"write sb3:recurrentppo:{file}"
    if file.with_suffix(".normalization.zip").is_file():
        way_out += ", unless environment.normalize_observation was on: sb3 cannot read these statistics"
    raise ConfigError(f"{file} is a pickle of Stable-Baselines3, as runs of recurrent_ppo write it; {way_out}")


def _export(argument: str, observation_space: Space, action_space: Space, deterministic: bool) -> Actor:
    return Actor.from_export(argument, deterministic=deterministic)


def register() -> None:
    """Make ``checkpoint:...`` and ``export:...`` behavior texts."""
    register_behavior("checkpoint", _checkpoint)
    register_behavior("export", _export)
