"""State of vector environments as plain data: a run that goes on from it equals one that never stopped.

An environment takes part by two methods. ``state_dict()`` returns everything that its coming steps depend on: nested
dictionaries and lists of numbers, strings, booleans, None and numpy arrays (a numpy generator is its
``bit_generator.state``), or None when it cannot tell. ``load_state_dict(state)`` goes on from there, in an environment
that was built with the same options. One layer of a stack that cannot tell leaves all of it without a state.
"""

from collections.abc import Mapping, Sequence
from typing import Any

import numpy as np
from stable_baselines3.common.vec_env import VecEnv, VecEnvWrapper, VecMonitor, VecNormalize

from rltransformers.envs.novelty import NoveltyBonus

State = dict[str, Any]
COUNT = f"{VecMonitor.__name__}/count"
"""End of the path of the episodes that a ``VecMonitor`` has counted."""


def environment_state(env: VecEnv) -> State | None:
    """The state of every layer of ``env`` by name, from the outermost; None when one of them cannot tell.

    ``VecNormalize`` is left out: its statistics are saved with the agent, whether or not environments can tell.
    """
    states: State = {}
    for name, layer in _layers(env).items():
        state = _state(layer)
        if state is None:
            return None
        states[name] = state
    return states


def takes_state(env: VecEnv, state: Mapping[str, Any]) -> bool:
    """Whether ``env`` has the layers that ``state`` was read from, in the same order."""
    layers = _layers(env)
    return list(layers) == list(state) and all(_state(layer) is not None for layer in layers.values())


def restore_environment(env: VecEnv, state: Mapping[str, Any]) -> None:
    """Set every layer of ``env`` to the state that ``environment_state`` returned."""
    for name, layer in _layers(env).items():
        if isinstance(layer, VecMonitor):
            layer.episode_returns = state[name]["returns"].copy()
            layer.episode_lengths = state[name]["lengths"].copy()
            layer.episode_count = state[name]["count"]
        else:
            layer.load_state_dict(state[name])


def restore_bonus(env: VecEnv, state: Mapping[str, Any]) -> None:
    """Of such a state, set how far a ``NoveltyBonus`` has fallen alone: for new episodes."""
    for name, layer in _layers(env).items():
        if isinstance(layer, NoveltyBonus):
            layer.steps_done = state[name]["steps_done"]


def joined_states(states: Sequence[State | None]) -> State | None:
    """The state of the environments of several processes behind each other, each with equally many of them.

    An array or a list in a state has one entry for every environment; whatever else it holds is the same for all, but
    for the episodes that a ``VecMonitor`` has counted, which are added up. None when one of them cannot tell.
    """
    if len(states) == 1 or None in states:
        return None if None in states else states[0]
    joined: State = _joined(list(states), "")
    return joined


def part_of_state(state: Any, rank: int, size: int, name: str = "") -> Any:
    """The inverse of ``joined_states``: the state of process ``rank`` of ``size``, of a part at the path ``name``."""
    if isinstance(state, list) or (isinstance(state, np.ndarray) and state.ndim):
        share = len(state) // size
        return state[rank * share : (rank + 1) * share]
    if isinstance(state, Mapping):
        return {key: part_of_state(part, rank, size, f"{name}/{key}") for key, part in state.items()}
    return state if rank == 0 or not name.endswith(COUNT) else 0


def _joined(values: list[Any], name: str) -> Any:
    first = values[0]
    if isinstance(first, np.ndarray):
        return np.concatenate(values) if first.ndim else first
    if isinstance(first, list):
        return [entry for value in values for entry in value]
    if isinstance(first, Mapping):
        return {key: _joined([value[key] for value in values], f"{name}/{key}") for key in first}
    return sum(values) if name.endswith(COUNT) else first


def _state(layer: Any) -> State | None:
    if isinstance(layer, VecMonitor):
        returns, lengths = layer.episode_returns.copy(), layer.episode_lengths.copy()
        return {"returns": returns, "lengths": lengths, "count": layer.episode_count}
    # Wrappers answer for attributes of what they wrap, so the type is asked.
    state: State | None = layer.state_dict() if hasattr(type(layer), "state_dict") else None
    return state


def _layers(env: VecEnv) -> dict[str, Any]:
    """The layers of ``env`` by the names of their classes with a number, from the outermost."""
    layers: list[Any] = [env]
    while isinstance(layers[-1], VecEnvWrapper):
        layers.append(layers[-1].venv)
    others = [layer for layer in layers if not isinstance(layer, VecNormalize)]
    return {f"{index} {type(layer).__name__}": layer for index, layer in enumerate(others)}
