"""The replay of whole episodes."""

import tracemalloc
from typing import Any

import numpy as np
import pytest
import torch
from gymnasium import spaces

from rltransformers.core.errors import DataError
from rltransformers.data import Trajectories, load_trajectories
from rltransformers.data.episode_replay import EpisodeReplay


def episodes(*returns: float, length: int = 2) -> Trajectories:
    """Episodes with the given returns, half of it in every one of two steps."""
    made: list[dict[str, Any]] = []
    for total in returns:
        made.append(
            {
                "observations": np.full((length + 1, 1), total, np.float32),
                "actions": np.zeros(length, np.int64),
                "rewards": np.full(length, total / length, np.float32),
                "terminations": np.arange(length) == length - 1,
                "truncations": np.zeros(length, bool),
            }
        )
    return load_trajectories(
        made, observation_space=spaces.Box(-100, 100, (1,)), action_space=spaces.Discrete(2), name="made"
    )


def returns(replay: EpisodeReplay) -> list[float]:
    return replay.data.returns.tolist()


def test_it_begins_with_the_best_episodes_and_forgets_the_worst_of_them_first() -> None:
    replay = EpisodeReplay(episodes(5.0, 1.0, 4.0, 2.0), 3)
    assert returns(replay) == [2.0, 4.0, 5.0]
    replay.add(episodes(0.0))
    assert returns(replay) == [4.0, 5.0, 0.0]
    replay.add(episodes(6.0, 9.0, length=3))
    assert returns(replay) == [0.0, 6.0, 9.0] and replay.data.lengths.tolist() == [2, 3, 3]
    assert replay.data.observations[""][:, 0].tolist() == [0.0] * 3 + [6.0] * 4 + [9.0] * 4


def test_more_new_episodes_than_there_is_room_for_leave_the_newest() -> None:
    replay = EpisodeReplay(episodes(1.0), 2)
    replay.add(episodes(2.0, 3.0, 4.0))
    assert returns(replay) == [3.0, 4.0]


def test_new_episodes_cost_one_copy_of_what_stays() -> None:
    replay, new = EpisodeReplay(episodes(*range(100), length=500), 100), episodes(7.0)
    tracemalloc.start()
    try:
        replay.add(new)
        _, peak = tracemalloc.get_traced_memory()
    finally:
        tracemalloc.stop()
    data = replay.data
    arrays = [data.observations[""], data.actions[""], data.rewards, data.terminations, data.truncations, data.offsets]
    assert len(data) == 100 and data.returns[-1] == 7.0
    assert peak < 1.2 * sum(array.nbytes for array in arrays)


def test_episodes_of_other_spaces_are_refused() -> None:
    other = load_trajectories(
        [
            {
                "observations": np.zeros((2, 1), np.float32),
                "actions": np.zeros(1, np.int64),
                "rewards": np.zeros(1, np.float32),
                "terminations": np.ones(1, bool),
                "truncations": np.zeros(1, bool),
            }
        ],
        observation_space=spaces.Box(-1, 1, (1,)),
        action_space=spaces.Discrete(2),
        name="other",
    )
    with pytest.raises(DataError, match="different spaces"):
        EpisodeReplay(episodes(1.0), 2).add(other)


def test_what_a_checkpoint_holds_is_the_replay() -> None:
    replay = EpisodeReplay(episodes(3.0, 1.0), 5)
    replay.add(episodes(2.0, length=4))
    data = replay.data
    again = EpisodeReplay.restored(replay.state_dict(), data.observation_space, data.action_space, "test/It-v0")
    assert returns(again) == [1.0, 3.0, 2.0] and again.capacity == 3 and again.data.env_id == "test/It-v0"
    for name in ("rewards", "terminations", "truncations", "offsets"):
        np.testing.assert_array_equal(getattr(again.data, name), getattr(data, name))
    np.testing.assert_array_equal(again.data.observations[""], data.observations[""])
    broken = replay.state_dict() | {"rewards": replay.state_dict()["rewards"][:-1]}
    with pytest.raises(DataError):
        EpisodeReplay.restored(broken, data.observation_space, data.action_space, None)


def test_it_comes_back_from_tensors_on_another_device() -> None:
    """A stand-in for a GPU, whose tensors have no numpy: they are copied to the processor first."""

    class Elsewhere(torch.Tensor):
        def numpy(self, **options: Any) -> Any:
            raise TypeError("can't convert cuda:0 device type tensor to numpy")

        def cpu(self, *args: Any) -> Any:
            return torch.tensor(self.tolist(), dtype=self.dtype)

    replay = EpisodeReplay(episodes(5.0, 1.0), 3)
    state = {
        name: {path: leaf.as_subclass(Elsewhere) for path, leaf in part.items()}
        if isinstance(part, dict)
        else part.as_subclass(Elsewhere)
        for name, part in replay.state_dict().items()
    }
    space = replay.data.observation_space, replay.data.action_space
    assert returns(EpisodeReplay.restored(state, *space, None)) == returns(replay)
