"""Tensors of a checkpoint of an online agent: what changes while it learns."""

from collections import deque
from collections.abc import Mapping, Sequence
from typing import Annotated, Any

import numpy as np
import torch
from annotated_types import Ge, Le, Lt
from gymnasium import spaces
from stable_baselines3.common.logger import Logger
from torch import Tensor, nn
from torch.utils import _pytree as pytree

from rltransformers.core.checkpoint import (
    check_same,
    check_tensor,
    pack_arrays,
    restore_optimizer,
    restore_weights,
    unpack_arrays,
)
from rltransformers.core.device import CPU
from rltransformers.core.errors import CheckpointError
from rltransformers.core.ranges import WholeNumber, check, shown
from rltransformers.core.spaces import leaf_spaces, nest_leaves, nested_leaves
from rltransformers.core.values import check_observations, to_tensor
from rltransformers.core.world import rows_of
from rltransformers.data.rollout import RolloutBuffer, Segment
from rltransformers.envs.saving import environment_state, joined_states, part_of_state
from rltransformers.policies.memory_policy import MemoryPolicy
from rltransformers.policies.observations import tree_space
from rltransformers.policies.policy_state import PolicyState
from rltransformers.training.online.carry import segment_of, segment_tensors
from rltransformers.training.parameters import place_of

GENERATORS = ("_action_generator", "_batch_generator", "_predict_generator")
Counter = Annotated[int, Ge(0), Lt(2**63)]
COUNTERS: dict[str, Any] = {
    **dict.fromkeys(("num_timesteps", "_total_timesteps", "_episode_num", "_n_updates"), Counter),
    "_current_progress_remaining": Annotated[float, Ge(0), Le(1)],
}

STORABLE = (bool, int, float, str, np.generic)
"""Values of a logger that a checkpoint can hold."""


class UnwrittenMetrics:
    """Metrics that were recorded and not written yet, carried over a checkpoint, so that no line of the log has a gap.

    Args:
        stored: {name: (value, count, excluded)}, what ``to_store`` gave.

    Raises:
        CheckpointError: for what is no number and no text.
        ConfigError: for what is no such mapping.
    """

    def __init__(self, stored: Mapping[str, Any] | None = None) -> None:
        checked = check(stored or {}, dict[str, tuple[Any, WholeNumber, Sequence[str]]], "metrics")
        for name, (value, *_) in checked.items():
            if not isinstance(value, STORABLE):
                raise CheckpointError(f"metrics.{name} must be a number or a text, got {shown(value)}")
        self._waiting: dict[str, Any] = checked

    def to_store(self, logger: Logger | None) -> dict[str, Any]:
        """Metrics that still wait, or that the logger will write next."""
        if self._waiting or logger is None:
            return self._waiting
        return {
            name: (value, logger.name_to_count.get(name, 0), logger.name_to_excluded[name])
            for name, value in logger.name_to_value.items()
            if isinstance(value, STORABLE)
        }

    def hand_to(self, logger: Logger) -> None:
        """Let the logger write what waits."""
        for name, (value, count, excluded) in self._waiting.items():
            logger.record(name, value, exclude=tuple(excluded))
            logger.name_to_count[name] = count
        self._waiting = {}


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


def tensors_of(agent: Any) -> dict[str, Any]:
    """Everything that changes while an agent learns, of all processes; complete on the first one alone."""
    sharing, carry, scale = agent.sharing, agent.carry, agent._scale
    if sharing.any(agent._moved):
        agent._last_obs = None  # of episodes that are gone: nobody can go on from it
    logger = agent.logger if hasattr(agent, "_logger") else None
    again = agent.memory_refresh == "epoch" and carry.segment is not None  # the next update encodes it again
    normalization = agent._normalization()
    if normalization is not None:
        normalization = normalization | {"running_returns": sharing.to_leader(normalization["running_returns"])}
    observed = starts = state = None
    if agent._last_obs is not None:
        observed = {path: to_tensor(leaf, CPU) for path, leaf in nested_leaves(agent._last_obs).items()}
        starts = to_tensor(agent._last_episode_starts, CPU)
        state = None if agent.env is None else environment_state(agent.env)
    states = sharing.all_gather_object(state)
    return {
        **{place_of(name): part.state_dict() for name, part in agent._learned_parts().items()},
        "generators": {name: getattr(agent, name).get_state() for name in GENERATORS},
        "metrics": pack_arrays(agent._metrics.to_store(logger)),
        "segment": sharing.to_leader(segment_tensors(carry.segment) if again else None),
        "acting": sharing.to_leader(carry.acting.tensors()),
        "counters": {name: getattr(agent, name) for name in COUNTERS},
        "episodes": [_plain_part(info) for info in agent.ep_info_buffer or ()],
        "successes": [float(success) for success in agent.ep_success_buffer or ()],
        "environment": None if state is None else pack_arrays(joined_states(states)),
        "last_observation": sharing.to_leader(observed),
        "last_episode_starts": sharing.to_leader(starts),
        "normalization": normalization,
        "reward_scale": None if scale is None else scale.tensors(),
        "running_returns": None if scale is None else sharing.to_leader(torch.as_tensor(scale.returns)),
    }


def restore_learning(agent: Any, tensors: Mapping[str, Any], n_envs: int) -> None:
    """Restore everything but the place where acting stopped; ``n_envs`` is the number of environments then."""
    carry, scale = agent.carry, agent._scale
    for name, part in agent._learned_parts().items():
        restore: Any = restore_weights if isinstance(part, nn.Module) else restore_optimizer
        restore(part, tensors[place_of(name)], place_of(name))
    for name in GENERATORS:
        generator = getattr(agent, name)
        value = check_tensor(tensors["generators"][name], f"generators.{name}", (None,), torch.uint8)
        if len(value) == len(generator.get_state()):  # a run that moves to another device gets new ones there
            generator.set_state(value)
    for name, annotation in COUNTERS.items():
        setattr(agent, name, check(tensors["counters"][name], annotation, f"counters.{name}"))
    episodes = check(unpack_arrays(tensors["episodes"]), list[dict[str, Any]], "episodes")
    for name in ("r", "l"):
        for episode in episodes:
            if isinstance(episode[name], np.ndarray):  # of one entry, as some environments report it
                episode[name] = np.reshape(episode[name], ())[()]
            check(episode[name], float, f"episodes.{name}")
    agent.ep_info_buffer = deque(episodes, maxlen=agent._stats_window_size)
    successes = check(tensors["successes"], list[float], "successes")
    agent.ep_success_buffer = deque(successes, maxlen=agent._stats_window_size)
    check_same(tensors["acting"], carry.acting.tensors(), "acting", n_envs)
    if scale is not None and tensors["reward_scale"] is not None:
        scale.restore(tensors["reward_scale"], tensors["running_returns"], n_envs)
    agent._metrics = UnwrittenMetrics(unpack_arrays(tensors["metrics"]))
    segment = stored_segment(tensors["segment"], agent.policy, n_envs, agent.device)
    carry.segment = segment if n_envs == agent.n_envs else None
    agent._restore_own(tensors, n_envs)


def restore_place(agent: Any, tensors: Mapping[str, Any]) -> None:
    """Let an agent go on where acting stopped: its memory, the newest observations, and which begin episodes."""
    agent.carry.acting = PolicyState.from_tensors(on_device(tensors["acting"], agent.device))
    if tensors.get("own_memory") is not None:
        agent.carry.own_memory = PolicyState.from_tensors(on_device(tensors["own_memory"], agent.device))
    space = agent.observation_space
    observed = check(tensors["last_observation"], dict[str, Tensor], "last_observation")
    leaves = {path: leaf.numpy() for path, leaf in observed.items()}
    check_observations(leaf_spaces(tree_space(space)), leaves, "last observation")
    agent._last_obs = leaves if isinstance(space, spaces.Dict) else nest_leaves(space, leaves)
    starts = check_tensor(tensors["last_episode_starts"], "last_episode_starts", (agent.n_envs,), torch.bool)
    agent._last_episode_starts = starts.numpy()


def own_tensors(agent: Any, tensors: dict[str, Any]) -> dict[str, Any]:
    """Rows of the environments of this process in the tensors of a checkpoint that have one for each."""
    sharing = agent.sharing
    if sharing.is_single:
        return tensors
    block = sharing.block(agent.n_envs)
    own = tensors | {name: rows_of(tensors[name], block) for name in agent.per_environment}
    if (packed := own["normalization"]) is not None:
        own["normalization"] = packed | {"running_returns": rows_of(packed["running_returns"], block)}
    if (state := own["environment"]) is not None:
        own["environment"] = pack_arrays(part_of_state(unpack_arrays(state), sharing.rank, sharing.size))
    return own


def stored_segment(
    tensors: Mapping[str, Any] | None, policy: MemoryPolicy, n_envs: int, device: torch.device
) -> Segment | None:
    """The segment of a checkpoint of ``n_envs`` environments; raises CheckpointError unless it is one of ``policy``."""
    if tensors is None:
        return None
    tensors = on_device(check(tensors, Mapping[str, Any], "segment"), device)
    steps = check_tensor(tensors["rewards"], "segment.rewards", (n_envs, None), torch.float32).shape[1]
    empty = RolloutBuffer(1, steps, policy.seen_leaves, policy.action_space, device)
    blank = policy.initial_state(1, cached=False)
    empty.reset(blank)
    check_same(tensors, segment_tensors(empty.finish(blank.previous_reward, 1.0, 1.0)), "segment", n_envs)
    return segment_of(tensors)


def on_device(value: Any, device: torch.device) -> Any:
    """Tensors in nested mappings on ``device``."""
    return pytree.tree_map_only(Tensor, lambda tensor: tensor.to(device), value)
