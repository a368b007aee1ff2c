"""Trained agents as behaviours for recording: ``checkpoint:<zip or run folder>`` and ``export:<pt2 or onnx file>``."""

from typing import Any

import gymnasium as gym

from rltransformers.agents import Actor, load_agent
from rltransformers.agents.load import checkpoint_in
from rltransformers.data.behaviours import register_behaviour

Space = gym.Space[Any]


def _checkpoint(argument: str, observation_space: Space, action_space: Space, deterministic: bool) -> Actor:
    actor = load_agent(argument, device="cpu").actor(deterministic=deterministic)
    actor.name = f"checkpoint:{checkpoint_in(argument)}"
    return actor


def _export(argument: str, observation_space: Space, action_space: Space, deterministic: bool) -> Actor:
    return Actor.from_export(argument, deterministic=deterministic)


def register() -> None:
    """Make ``checkpoint:...`` and ``export:...`` behaviour texts."""
    register_behaviour("checkpoint", _checkpoint)
    register_behaviour("export", _export)
