"""Logs as people hold them: each loads with its numbers, or is refused with the line to write."""

import datetime
import json
import uuid
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from gymnasium import spaces
from stable_baselines3 import DQN

from rltransformers.core.errors import DataError
from rltransformers.data import Trajectories, load_trajectories

pandas = pytest.importorskip("pandas")
pyarrow = pytest.importorskip("pyarrow")
parquet = pytest.importorskip("pyarrow.parquet")

OBS = np.arange(10, dtype=np.float32).reshape(5, 2) / 8
A, R = np.array([0, 1, 2, 1, 0]), np.arange(1.0, 6.0)
ENDS = [False, False, True, False, True]
EPISODES = [0, 0, 0, 1, 1]
FRAME = pandas.DataFrame({"obs_0": OBS[:, 0], "obs_1": OBS[:, 1], "action": A, "reward": R, "episode": EPISODES})
ARRAYS = {"observations": OBS, "actions": A, "rewards": R}
pytestmark = pytest.mark.filterwarnings("ignore:.*guess|.*nothing is read from|.*no 'timeouts'")


def steps(**changes: Callable[[int], Any]) -> list[dict[str, Any]]:
    usual: dict[str, Callable[[int], Any]] = {
        "obs": OBS.__getitem__,
        "action": A.__getitem__,
        "reward": R.__getitem__,
        "done": ENDS.__getitem__,
    }
    return [{key: value(row) for key, value in (usual | changes).items()} for row in range(5)]


def check_numbers(data: Trajectories, lengths: list[int]) -> None:
    """All numbers are those of the log, in its order."""
    kept = np.arange(data.steps) + np.repeat(np.arange(len(lengths)), lengths)
    assert data.lengths.tolist() == lengths
    assert np.array_equal(data.observations[""][kept], OBS)
    assert np.array_equal(data.actions[""], A) and np.array_equal(data.rewards, R)


def bfloat16(values: Any) -> torch.Tensor:
    return torch.as_tensor(np.asarray(values)).bfloat16().requires_grad_()


@pytest.mark.parametrize(
    ("log", "lengths"),
    [
        ([ARRAYS | {key: torch.as_tensor(value) for key, value in ARRAYS.items()}], [5]),
        ([ARRAYS | {"observations": bfloat16(OBS), "rewards": bfloat16(R)}], [5]),
        (ARRAYS | {"observations": bfloat16(OBS), "episode": torch.tensor(EPISODES)}, [3, 2]),
        (steps(obs=lambda row: bfloat16(OBS[row]), reward=lambda row: bfloat16(R[row])), [3, 2]),
        (steps(value=lambda row: bfloat16([row])), [3, 2]),
        (steps(done=lambda row: torch.tensor([ENDS[row]])), [3, 2]),
        (ARRAYS | {"episode": EPISODES, "gamma": 0.99, "infos": None}, [3, 2]),
        ([ARRAYS | {"truncations": None, "next_observations": None}], [5]),
        (np.array(ARRAYS | {"terminals": ENDS}, dtype=object), [3, 2]),
        (FRAME.to_dict(), [3, 2]),
        ([dict(zip(ARRAYS, zip(*zip(OBS, A, R, strict=True), strict=True), strict=True))], [5]),
        (FRAME.assign(episode=[uuid.UUID(int=each) for each in EPISODES]), [3, 2]),
        (FRAME.assign(episode=[datetime.date(2026, 1, 1 + each) for each in EPISODES]), [3, 2]),
        (FRAME.assign(episode=[1, 1, 1, "1", "1"]), [3, 2]),
        (FRAME.assign(episode=0, t=["1", "2", "9", "10", "11"]), [5]),
    ],
)
def test_what_people_hold_loads_with_its_numbers(log: Any, lengths: list[int]) -> None:
    check_numbers(load_trajectories(log), lengths)


def test_dicts_of_steps_inside_an_episode_are_leaves() -> None:
    data = load_trajectories([ARRAYS | {"observations": [{"x": row[0], "y": row} for row in OBS]}])
    assert np.array_equal(data.observations["x"][:5], OBS[:, 0]) and np.array_equal(data.observations["y"][:5], OBS)


def zipped(*columns: Any) -> list[Any]:
    return list(zip(*columns, strict=True))


ONE = {"observations": OBS[:2], "actions": A[:1], "rewards": R[:1], "terminations": [False]}
STATES, NEXT = [3, 0, 7, 2, 9], [4, 1, 8, 3, 5]
RLDS = [{"observation": OBS[row], "action": np.array([row % 2, 0], np.float32), "reward": R[row], "is_first": row == 0,
         "is_last": row == 4, "is_terminal": False} for row in range(5)]  # fmt: skip


@pytest.mark.parametrize(
    ("log", "options", "lengths"),
    [
        ([ONE, ONE], {}, [1, 1]),
        (zipped(STATES, A, R, NEXT, [False] * 5), {"split_on_discontinuity": True}, [1] * 5),
        ([[step] for step in zipped(STATES, A, R, NEXT, [False] * 5)], {}, [1] * 5),
        (FRAME.assign(read=1), {}, [3, 2]),
        ([FRAME[:3], FRAME[3:].assign(note="x")], {}, [3, 2]),
        ([FRAME[:1].assign(episode=0), FRAME[1:3].assign(episode=1), FRAME[3:].assign(episode=1)], {}, [1, 4]),
        (FRAME.drop(columns="episode").assign(t=["8", "9", "10", "11", "12"]), {"columns": {"step": "t"}}, [5]),
        (FRAME.assign(episode=0, t=[str(1790000000000000001 + row) for row in range(5)]), {}, [5]),
        ({key: dict(reversed(rows.items())) for key, rows in FRAME.to_dict().items()}, {}, [3, 2]),
        (FRAME.drop(columns="episode").assign(done=ENDS).to_dict(), {}, [3, 2]),
        (ARRAYS | {"episode": EPISODES, "truncations": None}, {}, [3, 2]),
        (steps(t=lambda row: None), {}, [3, 2]),
    ],
)
def test_what_only_looks_wrong_loads(log: Any, options: dict[str, Any], lengths: list[int]) -> None:
    assert load_trajectories(log, **options).lengths.tolist() == lengths


def test_observations_say_the_type_of_a_guessed_space() -> None:
    frame = FRAME.drop(columns=["obs_0", "obs_1"]).assign(state=[0, 1, 2, 0, 3], next_state=[1.0, 2.0, 4.0, 3.0, 3.5])
    with pytest.raises(DataError, match=r"next_observations holds the number 3.5 in row 4, which is not an integer"):
        load_trajectories(frame)
    assert load_trajectories(frame.assign(next_state=[1.0, 2.0, 4.0, 3.0, 3.0])).observation_space == spaces.Discrete(5)
    images = np.zeros((5, 4, 4, 3), np.uint8)
    data = load_trajectories({**ARRAYS, "observations": images, "next_observations": images * 1.0, "terminals": ENDS})
    assert data.observation_space == spaces.Box(0, 255, (4, 4, 3), np.uint8)


def test_leaves_of_next_observations_are_found_by_the_names_of_observations() -> None:
    leaves = {"State/a": OBS[:, 0], "NextState/a": [*OBS[1:, 0], 9.0]}
    data = load_trajectories(pandas.DataFrame(leaves | {"Action": A, "Reward": R, "EpisodeId": EPISODES}))
    assert data.observations["a"][[3, 6]].tolist() == [OBS[3, 0], 9.0]


def test_a_tuple_holds_leaves_unless_it_holds_steps() -> None:
    leaves = OBS[:3], OBS[:3, :1]
    data = load_trajectories([{"observations": leaves, "actions": A[:3], "rewards": (1.0, 2.0, 3.0)}])
    assert isinstance(data.observation_space, spaces.Tuple) and np.array_equal(data.observations["1"][:3], OBS[:3, :1])
    with pytest.raises(DataError, match="may be 2 steps or as many leaves of a Tuple space; give steps as a list"):
        load_trajectories([{"observations": (OBS[:2], OBS[2:4]), "actions": A[:2], "rewards": (1.0, 2.0)}])


def test_only_missing_actions_make_classes_of_whole_numbers() -> None:
    assert isinstance(load_trajectories(RLDS).action_space, spaces.Box)
    single = FRAME.assign(action=np.array([1, 0, np.nan, 1, np.nan], np.float32))
    assert isinstance(load_trajectories(single).action_space, spaces.Box)
    with pytest.raises(DataError, match="actions of episode 0, step 0 is inf"):
        load_trajectories(FRAME.assign(action=[np.inf, 0, np.nan, 1, np.nan]))


def test_vectors_may_be_missing_where_an_episode_ends() -> None:
    data = load_trajectories([dict(step, action=None if step["done"] else [0.25, 0.5]) for step in steps()])
    assert data.lengths.tolist() == [2, 1] and np.array_equal(data.observations[""], OBS)


@pytest.mark.parametrize(
    ("log", "words"),
    [
        (steps(**dict.fromkeys(("reward", "done"), lambda row: np.array([row == 4]))), None),
        (
            [{"obs": OBS[row : row + 1], "action": A[row : row + 1], "reward": [1.0], "terminated": [row > 3]}
             for row in range(5)],
            "write [{key: value[0] for key, value in step.items()} for step in steps]",
        ),
        ([FRAME[:3].assign(episode=0), FRAME[3:].assign(episode=0)], "lie in two files, the second from row 3 on"),
        (FRAME.rename(columns={"obs_1": "Obs_1"}), "both 'obs_*' and 'Obs_*' may be observations; say which: columns="),
        (FRAME.assign(actions=A), "both 'actions' and 'action' may be actions"),
        (ARRAYS | {"episode": [0, 0]}, "'episode' has 2 rows, 'observations' 5"),
        (ARRAYS | {"rewards": R[:3], "episode": EPISODES}, "'rewards' has 3 rows, 'observations' 5"),
        (FRAME.assign(episode=[np.nan, "a", "a", "b", "b"]), "episode: row 0 has no value"),
        ([load_trajectories([ARRAYS])] * 2, "Trajectories, which holds many episodes; pass it alone, or join several"),
        ([(OBS[row], A[row], R[row], int(ENDS[row]), 0) for row in range(5)], "with both flags"),
        ([(row, 1, 0.5, int(row == 4), 0) for row in range(5)], "with both flags"),
        ([(OBS[row], A[row], OBS[row], R[row], ENDS[row]) for row in range(5)], "(observation, action, reward, next_"),
        (np.c_[OBS, A, R, ENDS].tolist(), "of rows of numbers pass a DataFrame with names"),
        (ARRAYS | {"episode": 0}, "episode is 0; a column has a value for every row"),
        (ARRAYS | {"terminals": ENDS, "next_observations": np.zeros((5, 3))}, "shape (3,), observations (2,)"),
        (ARRAYS | {"observations": np.r_[OBS, OBS[:1]]}, "a row more than actions, as of an episode; pass [episode]"),
        ({key: np.stack([each[:2], each[2:4]]) for key, each in ARRAYS.items()}, "rewards have shape (2, 2), one num"),
        ({"observations": {"a": np.r_[OBS, OBS[:2]], "b": OBS}, "actions": A, "rewards": R, "episode": EPISODES},
         "'observations/b' has 5 rows, 'observations/a' 7"),
        ({"observations": None, "actions": A, "rewards": R}, "lacks 'observations'; present: ['actions', 'rewards']"),
        ([FRAME[:3].assign(episode=0, done=False), FRAME[3:].assign(episode=0, done=False)], "lie in two files"),
        ([FRAME, ARRAYS], "the first a DataFrame; pass DataFrames alone"),
        ([FRAME[:3], FRAME[3:].drop(columns="obs_1")], "'obs_1' is a column of only one of the tables 0 and 1"),
        (pyarrow.Table.from_arrays([pyarrow.array(R)] * 2, names=["reward"] * 2), "two columns are called 'reward'"),
        (pandas.Series([1.0, 2.0]), "Series is no table"),
        (FRAME.assign(reward=["1,000"] * 5), "or with '' in place of '.' if the comma parts thousands"),
        (FRAME.assign(reward=["1", "-", "3", "4", "5"]), "text, such as '-' in row 1, beside numbers"),
        (FRAME.assign(done=["False"] * 4 + ["True"]), "make flags of it: frame['done'] = frame['done'] == 'True'"),
        (FRAME.assign(obs_1=["[1]", "[2]", None, "[3]", "[4]"]), "row 2 has no value"),
    ],
)  # fmt: skip
def test_what_cannot_be_read_is_refused_with_the_line_to_write(log: Any, words: str | None) -> None:
    if words is None:
        assert load_trajectories(log).lengths.tolist() == [5]
        return
    with pytest.raises(DataError) as caught:
        load_trajectories(log)
    assert words in str(caught.value)


def test_a_buffer_inside_a_list_is_many_episodes() -> None:
    model = DQN("MlpPolicy", "CartPole-v1", buffer_size=100, learning_starts=1000).learn(60)
    with pytest.raises(DataError, match="item 0 is ReplayBuffer, which holds many episodes"):
        load_trajectories([model.replay_buffer])


def test_one_step_that_ends_is_an_episode() -> None:
    bandit = [{"observations": OBS[row : row + 1], "actions": A[row : row + 1], "rewards": R[row : row + 1],
               "terminations": [True]} for row in range(5)]  # fmt: skip
    check_numbers(load_trajectories(bandit), [1] * 5)


@pytest.mark.parametrize("state", [lambda row: row, lambda row: np.array([row, 2 * row])])
def test_the_last_next_observation_counts_among_the_classes(state: Callable[[int], Any]) -> None:
    data = load_trajectories([(state(row), A[row], R[row], state(row + 1), row == 4) for row in range(5)])
    space = data.observation_space
    assert space in (spaces.Discrete(6), spaces.MultiDiscrete([6, 11])) and np.max(data.observations[""]) >= 5


# Files


@pytest.mark.parametrize("first", ["frame", "obs_0"])
def test_lines_that_end_in_a_comma_keep_their_columns(first: str, tmp_path: Path) -> None:
    frame = FRAME.assign(frame=range(5), **{"a, b": "c"})
    text = frame[[first, *frame.columns.drop(first)]].to_csv(index=False).splitlines()
    (tmp_path / "log.csv").write_text("\n".join([text[0].replace(",", ", "), *(line + "," for line in text[1:])]))
    check_numbers(load_trajectories(tmp_path / "log.csv"), [3, 2])
    check_numbers(load_trajectories(str(tmp_path / "log.csv").encode()), [3, 2])
    with (tmp_path / "log.csv").open() as opened, pytest.raises(DataError, match="is an open file; pass its path"):
        load_trajectories(opened)


def test_names_of_rows_stay_apart(tmp_path: Path) -> None:
    lines = [f"run{row},{','.join(map(str, values))},NA" for row, values in enumerate(FRAME.to_numpy().tolist())]
    (tmp_path / "log.csv").write_text("\n".join([",".join([*FRAME.columns, "note"]), *lines]))
    assert np.array_equal(load_trajectories(tmp_path / "log.csv").observations[""][[0, 1, 2]], OBS[:3])


def test_the_default_json_of_pandas_loads(tmp_path: Path) -> None:
    text = FRAME.drop(columns=["obs_0", "obs_1"]).assign(obs=[list(map(float, row)) for row in OBS]).to_json()
    (tmp_path / "log.json").write_text(json.dumps(json.loads(text), sort_keys=True))
    check_numbers(load_trajectories(tmp_path / "log.json"), [3, 2])


@pytest.mark.parametrize("action", [[0.25, 0.5, None, 0.75, None], [0, 1, None, 2, None]])
@pytest.mark.parametrize("ending", ["parquet", "jsonl", "frame"])
def test_a_last_row_without_an_action_holds_the_last_observation(
    ending: str, action: list[Any], tmp_path: Path
) -> None:
    frame, file = FRAME.assign(action=action), tmp_path / f"log.{ending}"
    if ending == "parquet":
        frame.assign(action=pandas.array(action)).to_parquet(file)
    elif ending == "jsonl":
        file.write_text("".join(json.dumps(row) + "\n" for row in frame.replace({np.nan: None}).to_dict("records")))
    data = load_trajectories(frame if ending == "frame" else file)
    assert data.lengths.tolist() == [2, 1] and np.array_equal(data.observations[""], OBS)
    assert data.actions[""].tolist() == [each for each in action if each is not None]
    assert isinstance(data.action_space, spaces.Discrete) == (action[1] == 1)


def test_files_of_a_folder_may_differ_in_the_order_and_width_of_numbers(tmp_path: Path) -> None:
    table = pyarrow.Table.from_pandas(FRAME, preserve_index=False)
    parquet.write_table(table.slice(0, 3), tmp_path / "0.parquet")
    other = table.slice(3).select(table.column_names[::-1])
    whole = other.set_column(other.column_names.index("reward"), "reward", pyarrow.array([4, 5]))
    parquet.write_table(whole, tmp_path / "1.parquet")
    check_numbers(load_trajectories(tmp_path), [3, 2])
    parquet.write_table(other.set_column(0, other.column_names[0], pyarrow.array(["a", "b"])), tmp_path / "1.parquet")
    with pytest.raises(DataError, match="episode has different types in some files"):
        load_trajectories(tmp_path)
    again = other.set_column(other.column_names.index("episode"), "episode", pyarrow.array([0, 0]))
    parquet.write_table(again, tmp_path / "1.parquet")
    with pytest.raises(DataError, match="lie in two files, the second from row 3 on"):
        load_trajectories(tmp_path)


def test_an_empty_folder_that_is_called_like_a_file_is_named(tmp_path: Path) -> None:
    (tmp_path / "log.csv").mkdir()
    with pytest.raises(DataError, match="a folder without CSV files"):
        load_trajectories(tmp_path / "log.csv")
