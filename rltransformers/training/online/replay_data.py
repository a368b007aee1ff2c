"""Between an agent and its replay: raw observations in, normalized ones out, and files. Axes as in ``data.replay``."""

from collections.abc import Callable, Mapping
from dataclasses import replace
from typing import Any

import numpy as np
import torch
from stable_baselines3.common.vec_env import VecNormalize
from torch import Tensor

from rltransformers.core.checkpoint import (
    File,
    check_same,
    check_tensor,
    contents_of,
    file_name,
    load_checkpoint,
    save_checkpoint,
)
from rltransformers.core.device import CPU
from rltransformers.core.errors import CheckpointError, ConfigError
from rltransformers.core.ranges import NonNegativeNumber, check
from rltransformers.core.spaces import Space, leaf_spaces, nested_leaves, space_to_json
from rltransformers.core.values import check_observations, to_tensor
from rltransformers.core.world import Sharing, rows_of
from rltransformers.data.replay import Draw, SegmentReplay, Window, draw_segments
from rltransformers.policies.observations import tree_space
from rltransformers.training.normalization import RewardScale

KIND = "SegmentReplay"


# Replays of all processes


def draw_of_all(
    replay: SegmentReplay, count: int, generator: torch.Generator, prioritized: bool, sharing: Sharing
) -> tuple[Draw, Tensor]:
    """Draw segments of the replays of all processes; return them and which process learns from each."""
    oldest, counts = replay.eligible()
    rows = {"oldest": torch.from_numpy(oldest), "counts": torch.from_numpy(counts)}
    rows = sharing.all_gather(rows | ({"priorities": replay.priorities} if prioritized else {}))
    oldest, counts = (rows[name].numpy() for name in ("oldest", "counts"))
    draw = draw_segments(oldest, counts, rows.get("priorities", replay.priorities), count, generator, prioritized)
    return draw, sharing.assign(torch.from_numpy(draw.rows) // replay.n_envs)


def own_window(replay: SegmentReplay, draw: Draw, takers: Tensor, sharing: Sharing) -> Window:
    """The rows of the segments of a draw that this process learns from, wherever they are stored."""
    window = replay.gather(_own(replay, draw, sharing)[1])
    owners = torch.from_numpy(draw.rows) // replay.n_envs
    return Window(**sharing.all_to_all(window.tensors(), owners, takers), context=window.context)


def prioritize_own(replay: SegmentReplay, draw: Draw, priorities: Tensor, sharing: Sharing) -> None:
    """Give the drawn segments of this process their new priorities, which are of all of the draw."""
    own, part = _own(replay, draw, sharing)
    if len(own):
        replay.prioritize(part, priorities[own])
    replay.largest_priority = max(replay.largest_priority, float(priorities.max()))


def _own(replay: SegmentReplay, draw: Draw, sharing: Sharing) -> tuple[np.ndarray, Draw]:
    """Places in a draw of the segments that the replay of this process stores, and these segments."""
    own = np.flatnonzero(draw.rows // replay.n_envs == sharing.rank)
    return own, Draw(draw.rows[own] % replay.n_envs, draw.segments[own], draw.weights[own])


# VecNormalize


def raw_leaves(normalizer: VecNormalize | None, observation: Any, stored: Any) -> Mapping[str, Any]:
    """The leaves of the newest observations before ``VecNormalize``, arrays or, while a rollout runs in them, tensors.

    ``stored``: the same of a checkpoint, for a ``VecNormalize`` that has seen none yet.
    """
    seen = observation if normalizer is None else vars(normalizer).get("old_obs", {})
    return nested_leaves(seen) if len(seen) else stored


def pack_observation(normalizer: VecNormalize | None, observation: Any, stored: Any) -> dict[str, Tensor] | None:
    """``raw_leaves`` for a checkpoint; None without ``VecNormalize`` or observation."""
    if normalizer is None or observation is None:
        return None
    return {path: to_tensor(leaf, CPU) for path, leaf in raw_leaves(normalizer, observation, stored).items()}


def unpack_observation(packed: Any, normalizer: VecNormalize | None) -> dict[str, np.ndarray] | None:
    """The inverse of ``pack_observation``; raises CheckpointError or DataError for what is no observation."""
    if packed is None or normalizer is None:
        return None
    held = check(packed, dict[str, Tensor], "last_raw_observation")
    leaves = {path: leaf.numpy() for path, leaf in held.items()}
    check_observations(leaf_spaces(tree_space(normalizer.venv.observation_space)), leaves, "last raw observation")
    return leaves


def normalized(
    normalizer: VecNormalize | None, scale: RewardScale | None, window: Window, types: Mapping[str, torch.dtype]
) -> Window:
    """A window as the policy sees it, under the statistics of now, with observations of these types."""
    observations: Mapping[str, Tensor] = window.observations
    if normalizer is not None:
        arrays: dict[str, Any] = {path: leaf.numpy() for path, leaf in observations.items()}
        bare = "" in arrays  # beside it stands at most a mask of actions
        arrays |= {"": normalizer.normalize_obs(arrays[""])} if bare else normalizer.normalize_obs(arrays)
        observations = {path: to_tensor(leaf, CPU) for path, leaf in arrays.items()}
    change: Any = scale or (None if normalizer is None else normalizer.normalize_reward)
    if change is not None:
        for name in ("rewards", "previous_rewards"):
            rewards = getattr(window, name)
            scaled: Any = to_tensor(change(rewards.numpy()), CPU, rewards.dtype)
            window = replace(window, **{name: scaled})
    return replace(window, observations={path: leaf.to(types[path]) for path, leaf in observations.items()})


# Files


def layout_of(replay: SegmentReplay, sharing: Sharing) -> dict[str, int]:
    """Description of the replays of all processes for a file: whether another run can take them over."""
    return {"n_envs": replay.n_envs * sharing.size, "segments": replay.segments, "segment_length": replay.length}


def contents_of_replay(replay: SegmentReplay, action_space: Space) -> dict[str, Any]:
    """Description of what the rows of a replay are for a file: whether another agent can learn from them."""
    leaves = {path: [list(shape), str(dtype)] for path, (shape, dtype) in replay.observation_leaves.items()}
    return {"observations": leaves, "action_space": space_to_json(action_space)}


def restore_replay(replay: SegmentReplay, stored: Any, sharing: Sharing) -> None:
    """Take over the rows of ``rows_of_replay`` that are of the environments of this process, each part checked."""
    state = check(stored, Mapping[str, Any], "replay")
    rewards = check_tensor(state["rewards"], "replay.rewards", (replay.n_envs * sharing.size, None), torch.float32)
    written = check_tensor(state["written"], "replay.written", (len(rewards),), torch.int64)
    used = rewards.shape[1]
    if used > replay.rows:
        raise CheckpointError(f"replay.rewards has {used} rows, there is room for {replay.rows}")
    if bool((written < 0).any()) or used != min(int(written.max()), replay.rows):
        raise CheckpointError(f"replay.written says {written.tolist()}, but there are {used} rows")
    if not sharing.is_single:
        block = sharing.block(replay.n_envs)
        state = _replay_of_all(state, lambda rows: rows_of(rows, block), state["largest_priority"])
    largest = check(state["largest_priority"], NonNegativeNumber, "replay.largest_priority")
    check_same({**state, "largest_priority": None}, replay.state_dict(used) | {"largest_priority": None}, "replay")
    if (fault := replay.fault(state)) is not None:
        raise CheckpointError(f"replay.{fault}")
    replay.load_state_dict({**state, "largest_priority": largest})


def rows_of_replay(replay: SegmentReplay, sharing: Sharing) -> dict[str, Any]:
    """``state_dict`` of a replay of the environments of all processes, on the first one."""
    (used,) = sharing.max(replay.used)
    return _replay_of_all(replay.state_dict(int(used)), sharing.to_leader, *sharing.max(replay.largest_priority))


def _replay_of_all(state: Mapping[str, Any], change: Callable[[Any], Any], largest: float) -> dict[str, Any]:
    """The state of a replay whose tensors, with a row for each environment, went through ``change``."""
    tensors = {name: tensor for name, tensor in state.items() if name != "largest_priority"}
    return change(tensors) | {"largest_priority": largest}


def save_replay(path: File, replay: SegmentReplay, action_space: Space, sharing: Sharing) -> None:
    """Write a replay to one file; a crash at any moment leaves the old file or the new one, whole."""
    rows = rows_of_replay(replay, sharing)
    if sharing.is_leader:
        settings = layout_of(replay, sharing) | contents_of_replay(replay, action_space)
        save_checkpoint(path, KIND, settings, {"replay": rows})


def load_replay(path: File, replay: SegmentReplay, action_space: Space, sharing: Sharing) -> None:
    """Take over the replay in a file, behind which new episodes begin; refuses that of another agent."""
    checkpoint = load_checkpoint(path, KIND)
    wanted, contents = layout_of(replay, sharing), contents_of_replay(replay, action_space)
    stored = {name: value for name, value in checkpoint.settings.items() if name not in contents}
    if stored != wanted:
        raise ConfigError(
            f"{file_name(path)} is a replay of {stored}, this agent's is {wanted}: make the agent with "
            "the same environments, buffer_size and segment_length"
        )
    for name, value in contents.items():
        if (other := checkpoint.settings.get(name)) != value:
            raise ConfigError(
                f"{file_name(path)} is a replay of another environment: its {name} {other}, this agent's {value}"
            )
    with contents_of(path, KIND):
        restore_replay(replay, checkpoint.tensors["replay"], sharing)
    replay.part()
