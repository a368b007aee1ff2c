"""What programs for SAC and DQN of Stable-Baselines3 write, with the online agents that have a replay."""

import pytest

from tests.peers.small import WITH_REPLAY, Kind, agent, walks

off_policy = pytest.mark.parametrize("kind", WITH_REPLAY)


@off_policy
def test_as_many_updates_as_steps_are_minus_one(kind: Kind) -> None:
    model = agent(kind, walks(kind, 3), gradient_steps=-1, learning_starts=20)
    assert model.learn(60)._n_updates == 12 * 4  # rounds of 12 steps; the first one ends before learning starts
