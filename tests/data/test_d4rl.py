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
        ("minigrid-fourrooms-random-v0", "minigrid-fourrooms"),
        ("maze2d-open-v0", "maze2d-open"),
        ("maze2d-open-dense-v0", "maze2d-open-dense"),
        ("walker2d-medium-expert-v2", "walker2d"),
        ("halfcheetah-full-replay-v2", "halfcheetah"),
        ("door-v0", "door"),  # the environment under D4RL's door data sets
        ("relocate-cloned-v1", "relocate"),
        ("D4RL/door/expert-v2", "door"),
        ("FrankaKitchen-v1", "kitchen"),
        ("D4RL/kitchen/complete-v2", "kitchen"),
        ("AntMaze_Large_Diverse_GR-v4", "antmaze"),
        ("D4RL/antmaze/medium-play-v1", "antmaze"),
        # names of the files that D4RL downloads
        ("hopper_medium_replay-v2", "hopper"),
        ("walker_mixed", "walker2d"),
        ("door-v0_demos_clipped", "door"),
        ("pen-demos-v0-bc-combined", "pen"),
        ("maze2d-large-sparse-v1", "maze2d-large"),
        ("kitchen_microwave_kettle_light_slider-v0", "kitchen"),
        ("Ant_maze_big-maze_noisy_multistart_True_multigoal_False_sparse_fixed", "antmaze"),
    ],
)
def test_a_task_finds_its_reference_under_every_name(task: str, entry: str) -> None:
    assert reference_scores(task) == REFERENCE_SCORES[entry]


@pytest.mark.parametrize(
    "task",
    [
        "door-key-v0",
        "Pen-Drop-v1",
        "hammer-toss-human-v0",
        "ant-colony-v2",
        "kitchen-timer-v0",
        "hopper-with-obstacles-v1",
        "Ant_maze_of_mine",
        "my/door/human-v0",
        "door/D4RL-v0",
        "antmazes-v0",
        "AntMaze_UMazeDense-v5",  # D4RL's pair of AntMaze counts goals reached
        "bullet-hopper-medium-v0",  # other physics, another pair
        "AdroitHandDoorSparse-v1",
        "maze2d-eval-umaze-v1",
        "maze2d-v1",
    ],
)
def test_a_task_that_only_starts_like_one_of_d4rl_has_no_reference(task: str) -> None:
    assert reference_scores(task) is None


@pytest.mark.parametrize("task", ["CartPole-v1", "HopperMasked-v0", "", "v5", "Humanoid-v5", "D4RL/pointmaze/umaze-v2"])
def test_other_tasks_have_none(task: str) -> None:
    assert reference_scores(task) is None
    assert normalized_score(task, [1.0]) is None


def test_the_score_is_0_at_random_and_100_at_the_expert() -> None:
    scores = normalized_score("Hopper-v5", [-20.272305, 3234.3, 1500.0])
    assert scores is not None
    np.testing.assert_allclose(scores, [0.0, 100.0, 46.7119], atol=1e-4)  # (1500 + 20.272305) / 3254.572305
