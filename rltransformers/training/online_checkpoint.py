"""Parts of a checkpoint of an online agent besides settings, weights and optimiser. Axis letter: E environments."""

from collections import deque
from collections.abc import Mapping
from typing import Annotated, Any

import numpy as np
import torch
from annotated_types import Ge, Le, Lt
from gymnasium import spaces
from stable_baselines3.common.base_class import BaseAlgorithm
from torch import Tensor

from rltransformers.core.checkpoint import check_tensor, pack_arrays, unpack_arrays
from rltransformers.core.device import CPU, to_tensor
from rltransformers.core.guard import check_observations
from rltransformers.core.ranges import check
from rltransformers.core.spaces import leaf_spaces, nest_leaves, nested_leaves
from rltransformers.core.world import Sharing
from rltransformers.envs.saving import environment_state, joined_states
from rltransformers.policies.observations import tree_space

Counter = Annotated[int, Ge(0), Lt(2**63)]
COUNTERS: dict[str, Any] = {
    **dict.fromkeys(("num_timesteps", "_total_timesteps", "_episode_num", "_n_updates"), Counter),
    "_current_progress_remaining": Annotated[float, Ge(0), Le(1)],
}


def pack_progress(agent: BaseAlgorithm, sharing: Sharing) -> dict[str, Any]:
    """Counters, reported episodes, and the place in the environments where acting stopped.

    The environments are those of all processes of ``sharing``, on its first one.
    """
    observed = None if agent._last_obs is None else nested_leaves(agent._last_obs)
    state = None if agent.env is None or observed is None else environment_state(agent.env)
    states = sharing.all_gather_object(state)
    return {
        "counters": {name: getattr(agent, name) for name in COUNTERS},
        "episodes": [_plain_part(info) for info in agent.ep_info_buffer or ()],
        "successes": [float(success) for success in agent.ep_success_buffer or ()],
        "environment": None if state is None else pack_arrays(joined_states(states)),
        "last_observation": None
        if observed is None
        else sharing.to_leader({k: to_tensor(np.asarray(v), CPU) for k, v in observed.items()}),
        "last_episode_starts": None
        if observed is None
        else sharing.to_leader(to_tensor(agent._last_episode_starts, CPU)),
    }


def _plain_part(info: Mapping[Any, Any]) -> dict[str, Any]:
    """A reported episode as a checkpoint can hold it, packed; an environment may report objects of any class."""
    part = {}
    for name, value in info.items():
        try:
            packed = pack_arrays(value)
        except (TypeError, ValueError):  # of a type that numpy has and torch has not
            continue
        if _is_plain({name: packed}):
            part[name] = packed
    return part


def _is_plain(value: Any) -> bool:
    """Whether nothing but tensors, numbers, texts, booleans and None is in ``value``, and no subclass of them."""
    if isinstance(value, dict):
        return all(type(name) in (str, int) and _is_plain(item) for name, item in value.items())
    if isinstance(value, list):
        return all(map(_is_plain, value))
    return value is None or type(value) in (Tensor, bool, int, float, str)


def restore_progress(agent: BaseAlgorithm, tensors: Mapping[str, Any]) -> None:
    """Counters and reported episodes.

    Raises:
        CheckpointError, ConfigError: for what is none.
    """
    for name, annotation in COUNTERS.items():
        setattr(agent, name, check(tensors["counters"][name], annotation, f"counters.{name}"))
    episodes = check(unpack_arrays(tensors["episodes"]), list[Mapping[str, Any]], "episodes")
    for name in ("r", "l"):
        for episode in episodes:
            check(episode[name], float, f"episodes.{name}")
    agent.ep_info_buffer = deque(episodes, maxlen=agent._stats_window_size)
    successes = check(tensors["successes"], list[float], "successes")
    agent.ep_success_buffer = deque(successes, maxlen=agent._stats_window_size)


def restore_observation(agent: BaseAlgorithm, tensors: Mapping[str, Any]) -> None:
    """The newest observations and which of them begin episodes.

    Raises:
        CheckpointError, DataError: for what is none of the space.
    """
    space = agent.observation_space
    observed = check(tensors["last_observation"], dict[str, Tensor], "last_observation")
    leaves = {path: leaf.numpy() for path, leaf in observed.items()}
    check_observations(leaf_spaces(tree_space(space)), leaves, "last observation")
    agent._last_obs = leaves if isinstance(space, spaces.Dict) else nest_leaves(space, leaves)
    starts = check_tensor(tensors["last_episode_starts"], "last_episode_starts", (agent.n_envs,), torch.bool)
    agent._last_episode_starts = starts.numpy()


def restore_generators(generators: Mapping[str, torch.Generator], stored: Mapping[str, Any]) -> None:
    """Random streams by name; a run that moves to another device gets new ones there.

    Raises:
        CheckpointError: for what is no state of a generator.
    """
    for name, generator in generators.items():
        value = check_tensor(stored[name], f"generators.{name}", (None,), torch.uint8)
        if len(value) == len(generator.get_state()):
            generator.set_state(value)
