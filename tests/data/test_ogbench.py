"""Datasets of OGBench: which file an id means, and that episodes end at the goal of its task."""

from pathlib import Path
from typing import Any

import gymnasium
import numpy as np
import pytest

from rltransformers.core.errors import DataError
from rltransformers.data import load_trajectories, ogbench, write_minari
from rltransformers.data.d4rl import D4RL_FILES
from rltransformers.data.ogbench import episodes_of_task, ogbench_file
from rltransformers.envs import make_vec_env
from tests.data.coded import coded_episodes

TASK = "pointmaze-medium-navigate-singletask-task{}-v0"


@pytest.fixture
def folder(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """An empty folder of OGBench."""
    monkeypatch.setattr(ogbench, "FOLDER", tmp_path)
    return tmp_path


@pytest.mark.parametrize(
    ("name", "file"),
    [
        (TASK.format(1), "pointmaze-medium-navigate-v0.npz"),
        ("pointmaze-medium-navigate-singletask-v0", "pointmaze-medium-navigate-v0.npz"),
        ("visual-cube-double-noisy-singletask-task5-v0", "visual-cube-double-noisy-v0.npz"),
        ("puzzle-4x4-play-singletask-task2-v0", "puzzle-4x4-play-v0.npz"),
    ],
)
def test_an_id_with_a_task_means_the_file_of_its_data(name: str, file: str, folder: Path) -> None:
    assert ogbench_file(name) == folder / file


@pytest.mark.parametrize("name", [*D4RL_FILES, "mujoco/hopper/medium-v0", "CartPole-v1", "pointmaze-medium-v0"])
def test_other_ids_mean_no_file_of_ogbench(name: str) -> None:
    assert ogbench_file(name) is None


@pytest.mark.parametrize("name", ["pointmaze-medium-navigate-v0", "antmaze-large-explore-v0", "cube-single-play-v0"])
def test_data_without_a_task_have_no_rewards(name: str) -> None:
    with pytest.raises(DataError, match=rf"no rewards unless a task .*'{name[:-3]}-singletask-task1-v0'"):
        load_trajectories(name)


@pytest.mark.usefixtures("folder")
def test_rows_of_ones_own_without_rewards_keep_their_last_action_where_columns_say_so(tmp_path: Path) -> None:
    ends = np.arange(6) % 3 == 2
    np.savez(tmp_path / "own.npz", observations=np.zeros((6, 2)), actions=np.arange(6.0)[:, None], terminals=ends)
    told = r"read as data of OGBench.*say what the arrays hold: columns=\{'obs"
    with pytest.warns(UserWarning, match=told), pytest.warns(UserWarning, match="has no rewards"):
        assert load_trajectories(tmp_path / "own.npz").steps == 4
    columns = {"observations": "observations", "actions": "actions", "terminations": "terminals"}
    with pytest.warns(UserWarning, match="has no rewards"):
        data = load_trajectories(tmp_path / "own.npz", columns=columns)
    assert data.actions[""][:, 0].tolist() == [0, 1, 2, 3, 4, 5]


def test_a_missing_file_is_named_with_the_command_that_fetches_it() -> None:
    with pytest.raises(
        DataError, match=r"no file .*navigate-v0.npz.*download_datasets\(\['pointmaze-medium-navigate-v0'"
    ):
        load_trajectories(TASK.format(1))


@pytest.mark.parametrize("name", [TASK.format(1), "pointmaze-medium-navigate-v0"])
def test_a_minari_set_of_that_name_is_read(name: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("MINARI_DATASETS_PATH", str(tmp_path))
    write_minari(load_trajectories(coded_episodes()), name)
    assert load_trajectories(name).metadata["format"] == "minari"


def test_episodes_end_at_the_goal_and_begin_outside_of_it() -> None:
    #   in the goal at rows:      -  -  g  g  -  g  | g  g  -  | -  -   (| where a recording was cut)
    at_goal = np.array([0, 0, 1, 1, 0, 1, 1, 1, 0, 0, 0], bool)
    cut = np.array([0, 0, 0, 0, 0, 1, 0, 0, 1, 0, 1], bool)
    rows = np.arange(11, dtype=np.float32)
    data = load_trajectories(
        episodes_of_task(
            {
                "observations": rows[:, None],
                "next_observations": rows[:, None] + 1,
                "actions": rows[:, None],
                "rewards": at_goal - np.float32(1),
                "masks": 1.0 - at_goal,
                "terminals": cut.astype(np.float32),
            }
        )
    )
    begins = data.observations[""][data.offsets[:-1] + np.arange(len(data)), 0]
    assert begins.tolist() == [0, 4, 6, 8, 9] and data.lengths.tolist() == [3, 2, 1, 1, 2]
    assert data.returns.tolist() == [-2, -1, 0, -1, -2]
    last = data.offsets[1:] - 1
    assert data.terminations[last].tolist() == [True, True, True, False, False]
    assert data.truncations[last].tolist() == [False, False, False, True, True]


def written(folder: Path, arrays: dict[str, Any]) -> bytes:
    """A file of arrays."""
    np.savez_compressed(folder / "some.npz", **arrays)
    return (folder / "some.npz").read_bytes()


def recording(env: Any, steps: int) -> dict[str, Any]:
    """What OGBench's scripts record, with random actions; it begins in the goal of task 1."""
    rng = np.random.default_rng(0)
    observation, _ = env.reset(seed=0, options={"task_info": {"init_ij": (6, 6), "goal_ij": (1, 1)}})
    rows: dict[str, list[Any]] = {key: [] for key in ("observations", "actions", "terminals", "qpos", "qvel")}
    for step in range(steps):
        action = np.clip(rng.normal(-0.5, 1.0, 2), -1, 1)
        following, _, _, _, info = env.step(action)
        row = (observation, action, step == steps - 1, info["prev_qpos"], info["prev_qvel"])
        for values, value in zip(rows.values(), row, strict=True):
            values.append(value)
        observation = following
    return {key: np.array(value, bool if key == "terminals" else np.float32) for key, value in rows.items()}


@pytest.mark.third_party
def test_rewards_are_those_of_the_environment_of_the_task(folder: Path, tmp_path: Path) -> None:
    pytest.importorskip("ogbench")
    env = gymnasium.make("pointmaze-medium-v0", terminate_at_goal=False, max_episode_steps=1001)
    arrays = recording(env, 60)
    np.savez_compressed(folder / "pointmaze-medium-navigate-v0.npz", **arrays)
    near, far = (load_trajectories(TASK.format(task), cache=tmp_path / "cache") for task in (1, 2))
    assert (near.env_id, far.env_id) == tuple(f"pointmaze-medium-singletask-task{task}-v0" for task in (1, 2))
    assert near.lengths[0] == 1 and near.returns[0] == 0 and near.terminations[0]  # it begins in the goal of task 1
    assert far.lengths.tolist() == [59] and far.returns.tolist() == [-59] and far.truncations[-1]
    task: Any = gymnasium.make(str(near.env_id))
    task.reset(seed=0)
    (tmp_path / "elsewhere").mkdir()
    np.savez(tmp_path / "elsewhere" / "pointmaze-medium-navigate-v0-val.npz", **arrays)
    val = load_trajectories(tmp_path / "elsewhere" / TASK.format(1).replace("-v0", "-v0-val.npz"))
    assert val.fingerprint() == near.fingerprint() and val.env_id == near.env_id
    for start, stop in zip(near.offsets, near.offsets[1:], strict=False):
        for row in range(start, stop):
            # the observation of a row is the place, so the environment can be put there
            task.unwrapped.set_xy(near.observations[""][row + np.searchsorted(near.offsets, row, side="right") - 1])
            _, reward, terminated, _, _ = task.step(near.actions[""][row])
            assert (reward, terminated) == (near.rewards[row], near.terminations[row])


@pytest.mark.third_party
def test_damaged_files_and_tasks_that_are_none_are_named(folder: Path) -> None:
    pytest.importorskip("ogbench")
    for damaged in (b"PK\x03\x04 cut off", written(folder, {"observations": np.zeros((3, 2))})):
        (folder / "pointmaze-medium-navigate-v0.npz").write_bytes(damaged)
        with pytest.raises(
            DataError, match=r"truncated or no .npz file|no data set of OGBench, it holds \['observations'\]"
        ):
            load_trajectories(TASK.format(1))
    with pytest.raises(DataError, match="no environment 'pointmaze-medium-singletask-task9-v0'"):
        load_trajectories(TASK.format(9))


@pytest.mark.third_party
@pytest.mark.parametrize("kind", ["medium", "teleport"])
def test_seeds_repeat_episodes_of_ogbench(kind: str) -> None:
    pytest.importorskip("ogbench")
    actions = np.random.default_rng(0).uniform(-1, 1, (200, 4, 2)).astype(np.float32)
    envs = [make_vec_env(f"pointmaze-{kind}-singletask-task1-v0", 4, seed=seed) for seed in (0, 0, 4)]
    first, again, other = ([env.reset(), *(env.step(action)[0] for action in actions)] for env in envs)
    np.testing.assert_array_equal(first, again)
    assert len(np.unique([*first[0], *other[0]], axis=0)) == 8
