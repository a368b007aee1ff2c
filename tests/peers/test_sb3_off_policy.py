"""What programs for SAC and DQN of Stable-Baselines3 write, with the online agents that have a replay."""

import warnings
from typing import Any

import numpy as np
import pytest

from tests.peers.small import WITH_REPLAY, Kind, agent, walks

off_policy = pytest.mark.parametrize("kind", WITH_REPLAY)


@off_policy
def test_as_many_updates_as_steps_are_minus_one(kind: Kind) -> None:
    model = agent(kind, walks(kind, 3), gradient_steps=-1, learning_starts=20)
    assert model.learn(60)._n_updates == 12 * 4  # rounds of 12 steps; the first one ends before learning starts


@off_policy
def test_callbacks_see_executed_and_stored_actions_by_name(kind: Kind) -> None:
    model = agent(kind, walks(kind, 2))
    seen: list[Any] = []

    def look(variables: dict[str, Any], _: Any) -> bool:
        seen.append((variables["actions"], variables["buffer_actions"][""].numpy()))
        return True

    model.learn(20, callback=look)
    for executed, stored in seen:
        assert isinstance(executed, np.ndarray) and all(map(model.action_space.contains, executed))
        assert len(executed) == len(stored) == 2
    stored = np.stack([each for _, each in seen], 1)
    held = model.replay_buffer
    assert np.array_equal(held.actions[""][0, : held.written[0]][held.counts[0, : held.written[0]]], stored[0])


@off_policy
def test_a_run_too_short_for_any_update_says_so(kind: Kind) -> None:
    settings: dict[str, Any] = {"segment_length": 16, "learning_starts": 10}
    with pytest.warns(UserWarning, match=r"nothing was .* has made 17 steps .* in 48 steps of 4 environments; train"):
        agent(kind, walks(kind, 4), **settings).learn(40)
    with warnings.catch_warnings():
        warnings.simplefilter("error")
        agent(kind, walks(kind, 4), **settings).learn(80)
        agent(kind, walks(kind, 4), **settings | {"learning_starts": 1000}).learn(40)


@off_policy
def test_the_size_of_a_replay_is_asked_for_as_of_any_buffer(kind: Kind) -> None:
    assert agent(kind, walks(kind, 2, (50,))).learn(16).replay_buffer.size() == 16
