"""Whole episodes that an agent goes on learning from while it plays new ones. E episodes."""

from collections.abc import Mapping
from typing import Any

import numpy as np
import torch
from torch import Tensor

from rltransformers.core.ranges import check
from rltransformers.core.spaces import Space, leaf_spaces
from rltransformers.data.folders import ARRAYS
from rltransformers.data.trajectories import Trajectories, join_trajectories


class EpisodeReplay:
    """At most ``capacity`` episodes; the oldest make room for new ones (Zheng et al. 2022, arXiv 2202.05607).

    Args:
        data: what there is at first; of more than ``capacity`` episodes those of highest return stay. They count as
            older the less they return.
        sort: False keeps their order, the oldest first.
    """

    def __init__(self, data: Trajectories, capacity: int, sort: bool = True) -> None:
        self.capacity = capacity
        self.data = data.select(np.argsort(data.returns, kind="stable")[-capacity:]) if sort else data

    def add(self, episodes: Trajectories) -> None:
        """Store new episodes, in their order; raises DataError for those of other spaces."""
        self.data = join_trajectories([self.data, episodes], self.data.name, newest=self.capacity)

    def state_dict(self) -> dict[str, Any]:
        """Tensors for a checkpoint."""
        arrays = {name: torch.from_numpy(np.array(getattr(self.data, name))) for name in ARRAYS}
        return arrays | {
            kind: {path: torch.from_numpy(np.array(leaf)) for path, leaf in getattr(self.data, kind).items()}
            for kind in ("observations", "actions")
        }

    @classmethod
    def restored(
        cls, stored: Any, observation_space: Space, action_space: Space, env_id: str | None
    ) -> "EpisodeReplay":
        """The replay of a checkpoint, with room for the episodes it holds; raises DataError or ConfigError."""
        state = check(stored, Mapping[str, Any], "replay")
        arrays: dict[str, Any] = {name: check(state[name], Tensor, f"replay.{name}").cpu().numpy() for name in ARRAYS}
        for kind, space in (("observations", observation_space), ("actions", action_space)):
            leaves = check(state[kind], dict[str, Tensor], f"replay.{kind}")
            arrays[kind] = {path: leaves[path].cpu().numpy() for path in leaf_spaces(space)}
        data = Trajectories(
            **arrays, observation_space=observation_space, action_space=action_space, name="replay", env_id=env_id
        )
        return cls(data, len(data), sort=False)
