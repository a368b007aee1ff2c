"""Reference scores by any of the names a task goes by."""

import numpy as np
import pytest

from rltransformers.data import normalized_score, reference_scores
from rltransformers.data.d4rl import REFERENCE_SCORES


@pytest.mark.parametrize(
    ("task", "entry"),
    [
        ("hopper-medium-v2", "hopper"),
        ("Hopper-v4", "hopper"),
        ("Hopper-v5", "hopper"),
        ("mujoco/hopper/expert-v0", "hopper"),
        ("HalfCheetah-v5", "halfcheetah"),
        ("Walker2d-v5", "walker2d"),
        ("Ant-v5", "ant"),
        ("antmaze-large-diverse-v2", "antmaze"),
        ("D4RL/antmaze/umaze-v1", "antmaze"),
        ("AntMaze_UMaze-v5", "antmaze"),
        ("D4RL/pen/human-v2", "pen"),
        ("AdroitHandHammer-v1", "hammer"),
        ("kitchen-mixed-v0", "kitchen"),
        ("maze2d-umaze-v1", "maze2d-umaze"),
        ("maze2d-large-dense-v1", "maze2d-large-dense"),
        ("minigrid-fourrooms-v0", "minigrid-fourrooms"),
        ("D4RL/minigrid/fourrooms-v0", "minigrid-fourrooms"),
    ],
)
def test_a_task_finds_its_reference_under_every_name(task: str, entry: str) -> None:
    assert reference_scores(task) == REFERENCE_SCORES[entry]


@pytest.mark.parametrize("task", ["CartPole-v1", "HopperMasked-v0", "", "v5", "Humanoid-v5", "D4RL/pointmaze/umaze-v2"])
def test_other_tasks_have_none(task: str) -> None:
    assert reference_scores(task) is None
    assert normalized_score(task, [1.0]) is None


def test_the_score_is_0_at_random_and_100_at_the_expert() -> None:
    scores = normalized_score("Hopper-v5", [-20.272305, 3234.3, 1500.0])
    assert scores is not None
    np.testing.assert_allclose(scores, [0.0, 100.0, 46.7119], atol=1e-4)  # (1500 + 20.272305) / 3254.572305
