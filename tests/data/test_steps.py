"""Logs of one row per step: whatever the table, every step keeps its observation, action, reward and end."""

import json
import warnings
from collections import namedtuple
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from gymnasium import spaces

from rltransformers.core.errors import ConfigError, DataError
from rltransformers.data import Trajectories, load_trajectories, write_csv, write_minari
from tests.data.coded import LENGTHS, coded_episodes, flat, wrong_pairs

pandas = pytest.importorskip("pandas", reason="needs the extra csv")
pa = pytest.importorskip("pyarrow", reason="needs the extra parquet")

COLUMNS = {
    "observations": "obs_*",
    "actions": "action_*",
    "rewards": "reward",
    "terminations": "terminated",
    "truncations": "truncated",
    "episode": "episode_id",
    "step": "t",
}
"""What the columns of ``frame_of`` hold."""


def frame_of(lengths: tuple[int, ...] = LENGTHS) -> Any:
    """Coded episodes with a number per column, and columns that say nothing of steps."""
    arrays = flat(coded_episodes(lengths))
    return pandas.DataFrame(
        {
            **{f"obs_{index}": arrays["observations"][:, index] for index in range(2)},
            "action_0": arrays["actions"][:, 0],
            "reward": arrays["rewards"],
            "terminated": arrays["terminals"],
            "truncated": arrays["timeouts"],
            "episode_id": np.repeat([f"run {index}" for index in range(len(lengths))], lengths),
            "t": np.concatenate([np.arange(length) for length in lengths]),
            "note": "fine",
        }
    )


def listed(next_observations: bool = True) -> Any:
    """Coded episodes with a list per column."""
    arrays = flat(coded_episodes())
    columns = {"obs": "observations", "action": "actions", "reward": "rewards"}
    columns |= {"terminated": "terminals", "truncated": "timeouts"}
    columns |= {"next_obs": "next_observations"} if next_observations else {}
    return pandas.DataFrame({name: list(arrays[key]) for name, key in columns.items()})


def told(source: Any, **options: Any) -> tuple[Trajectories, str]:
    """The trajectories and the warning of a source of which something is guessed."""
    with pytest.warns(UserWarning) as caught:
        data = load_trajectories(source, **options)
    return data, " ".join(str(each.message) for each in caught)


def refusal(source: Any, **options: Any) -> str:
    """The message with which a source is refused."""
    with warnings.catch_warnings(), pytest.raises((DataError, ConfigError)) as caught:
        warnings.simplefilter("ignore")
        load_trajectories(source, **options)
    return str(caught.value)


# Every kind of table ------------------------------------------------------------


def csv(frame: Any, folder: Path) -> Path:
    frame.to_csv(folder / "log.csv", index=False)
    return folder / "log.csv"


def parquet(frame: Any, folder: Path) -> Path:
    frame.to_parquet(folder / "log.parquet", index=False)
    return folder / "log.parquet"


def jsonl(frame: Any, folder: Path) -> Path:
    frame.to_json(folder / "log.jsonl", orient="records", lines=True, double_precision=15)
    return folder / "log.jsonl"


def arrow(frame: Any, folder: Path) -> Any:
    return pa.Table.from_pandas(frame, preserve_index=False)


def dicts(frame: Any, folder: Path) -> Any:
    return frame.to_dict("records")


def itself(frame: Any, folder: Path) -> Any:
    return frame


@pytest.mark.parametrize("kind", [itself, csv, parquet, jsonl, arrow, dicts])
def test_the_guess_is_said_as_the_option_that_says_the_same(kind: Callable[..., Any], tmp_path: Path) -> None:
    source = kind(frame_of(), tmp_path)
    data, warning = told(source)
    assert f"columns={COLUMNS!r} is a guess" in warning and "nothing is read from: ['note']" in warning
    assert wrong_pairs(data) == 0 and not data.final_observations
    assert data.metadata["columns"] == COLUMNS
    again = load_trajectories(source, columns=COLUMNS)  # warnings are errors
    assert again.fingerprint() == data.fingerprint()


def test_components_keep_the_names_of_their_columns(tmp_path: Path) -> None:
    columns = {**COLUMNS, "observations": {"arm": ["obs_1", "obs_0"]}, "actions": "action_*"}
    data = load_trajectories(frame_of(), columns=columns)
    assert data.component_names("observations", "arm") == ["obs_1", "obs_0"]
    assert data.component_names("actions", "") == ["action_0"]
    assert data.component_names("observations", "leg") is None
    assert load_trajectories(listed()).component_names("observations", "") is None  # vectors in one column
    data.save(tmp_path / "saved")
    again = Trajectories.concatenate([data, load_trajectories(str(tmp_path / "saved"))])
    assert again.component_names("observations", "arm") == ["obs_1", "obs_0"]
    renamed = frame_of().rename(columns={"obs_0": "elbow"})
    other = load_trajectories(renamed, columns={**columns, "observations": {"arm": ["obs_1", "elbow"]}})
    assert Trajectories.concatenate([data, other]).component_names("observations", "arm") is None
    turned = load_trajectories(frame_of(), columns={**columns, "observations": {"arm": ["obs_0", "obs_1"]}})
    with pytest.raises(DataError, match="read them in that order"):
        Trajectories.concatenate([data, turned])


def test_next_observations_stand_in_the_order_of_observations() -> None:
    steps = np.arange(6.0)
    columns = {"obs_x": steps, "obs_v": -steps, "action_0": steps, "reward": steps, "episode": steps // 3}
    columns |= {"next_obs_v": -steps - 1, "next_obs_x": steps + 1}  # the other way round
    with pytest.warns(UserWarning, match=r"'next_observations': \['next_obs_x', 'next_obs_v'\].*a guess"):
        data = load_trajectories(pandas.DataFrame(columns))
    assert data.final_observations
    assert data.episode(0).observations[""][-1].tolist() == [3.0, -3.0]


def test_the_description_calls_components_by_their_columns() -> None:
    frame = frame_of().rename(columns={"obs_0": "elbow", "obs_1": "an angle of a joint whose name is very long"})
    columns = {**COLUMNS, "observations": list(frame.columns[:2]), "actions": ["action_0"]}
    data = load_trajectories(frame.assign(elbow=0.5), columns=columns)
    lines = data.describe().splitlines()
    assert any(line.split() == ["elbow", "0.5", "0.5"] for line in lines)
    assert any(line.strip().startswith("an angle of a joint whose name is very long") for line in lines)
    assert "    1 of 2 numbers never change: elbow" in lines
    assert any(line.startswith("  action_0") for line in lines) and max(map(len, lines)) <= 80


def test_rounding_of_large_numbers_is_no_reset() -> None:
    seen = 1_000.0 + 0.3 * np.arange(21.0)[:, None]
    table = {"observations": seen[:20].astype(np.float32), "next_observations": seen[1:], "rewards": np.ones(20)}
    data = load_trajectories(table | {"actions": np.zeros((20, 1))}, time_limit=20, split_on_discontinuity=True)
    assert data.lengths.tolist() == [20]
    whole = 20_000_000 + np.array([0, 1, 3, 4])  # what float32 would round counts where nothing is float32
    table = {"observations": whole[:, None], "next_observations": whole[:, None] + 1, "rewards": np.ones(4)}
    space = spaces.Box(-(2**31), 2**31 - 1, (1,), np.int64)
    table |= {"actions": np.zeros((4, 1))}
    assert len(load_trajectories(table, observation_space=space, time_limit=4, split_on_discontinuity=True)) == 2


@pytest.mark.parametrize("kind", [itself, parquet, jsonl, arrow, dicts])
@pytest.mark.parametrize("final", [True, False])
def test_lists_under_the_librarys_names_are_read_without_a_word(
    kind: Callable[..., Any], final: bool, tmp_path: Path
) -> None:
    data = load_trajectories(kind(listed(final), tmp_path))
    assert wrong_pairs(data) == 0 and data.final_observations == final


def test_a_data_set_of_another_library_is_read_through_arrow() -> None:
    class Stream:
        def __arrow_c_stream__(self, requested_schema: Any = None) -> Any:
            return pa.Table.from_pandas(listed()).__arrow_c_stream__(requested_schema)

    assert wrong_pairs(load_trajectories(Stream())) == 0


def test_structs_are_nested_observations(tmp_path: Path) -> None:
    rows = [
        {"obs": {"place": row["obs"], "turn": index % 3}, "action": row["action"], "reward": row["reward"]}
        | {"terminated": row["terminated"], "truncated": row["truncated"]}
        for index, row in enumerate(listed().to_dict("records"))
    ]
    pa_table = pa.Table.from_pylist(rows)
    (tmp_path / "log.jsonl").write_text("\n".join(json.dumps(row) for row in pa_table.to_pylist()) + "\n\n")
    for source in (rows, pa_table, tmp_path / "log.jsonl"):
        data = load_trajectories(source, observation_leaves=["place"])
        np.testing.assert_array_equal(data.observations["place"], load_trajectories(listed(False)).observations[""])
        assert set(load_trajectories(source).observations) == {"place", "turn"}


def transitions(flags: int, info: bool = False) -> list[tuple[Any, ...]]:
    """Coded episodes as tuples that end in one or two flags."""
    arrays = flat(coded_episodes())
    keys = ("observations", "actions", "rewards", "next_observations", "terminals", "timeouts")[: 4 + flags]
    return [(*(arrays[key][row] for key in keys), *([{}] if info else [])) for row in range(sum(LENGTHS))]


@pytest.mark.parametrize("info", [True, False])
def test_tuples_of_steps_with_both_flags_are_read(info: bool) -> None:
    data = load_trajectories(transitions(2, info))
    assert wrong_pairs(data) == 0 and data.final_observations
    assert load_trajectories(iter(transitions(2, info))).fingerprint() == data.fingerprint()


def test_a_done_that_nothing_else_explains_is_a_termination() -> None:
    steps = transitions(1)
    resets = np.cumsum(LENGTHS)
    odd = [step for row, step in enumerate(steps) if np.searchsorted(resets, row, side="right") % 2 == 1]
    data = load_trajectories(odd)
    assert data.lengths.tolist() == [1, 3] and data.terminations[data.offsets[1:] - 1].all()
    assert load_trajectories(odd, time_limit=3).truncations[data.offsets[1:] - 1].tolist() == [False, True]
    cut, warning = told(steps[:8])
    assert (
        "or split_on_discontinuity=True: 1 next_observations are not followed" in warning
        and cut.truncations[-1]
        and not cut.terminations[-1]
    )
    split, _ = told(steps, split_on_discontinuity=True)
    assert split.lengths.tolist() == list(LENGTHS)


def test_named_tuples_are_dicts() -> None:
    step = namedtuple("step", ["obs", "action", "reward", "next_obs", "terminated", "truncated"])
    assert wrong_pairs(load_trajectories([step(*each) for each in transitions(2)])) == 0


# Where episodes end ------------------------------------------------------------


def test_rows_in_any_order_are_sorted_by_episode_and_step(tmp_path: Path) -> None:
    frame = frame_of()
    mixed = frame.sample(frac=1.0, random_state=3)
    data = load_trajectories(csv(mixed, tmp_path), columns=COLUMNS)
    order = [int(name.split()[1]) for name in dict.fromkeys(mixed["episode_id"])]
    assert wrong_pairs(data.select(np.argsort(order))) == 0
    interleaved = frame.sort_values("t", kind="stable")
    assert wrong_pairs(load_trajectories(interleaved, columns=COLUMNS)) == 0


@pytest.mark.parametrize(
    "left_out", [["episode"], ["step"], ["episode", "step"], ["terminations"], ["truncations", "step"]]
)
def test_episodes_end_where_any_of_the_columns_says(left_out: list[str]) -> None:
    columns = COLUMNS | dict.fromkeys(left_out)
    data = load_trajectories(frame_of(), columns=columns)
    assert data.lengths.tolist() == list(LENGTHS)
    terminated = [index % 2 == 1 and "terminations" not in left_out for index in range(len(LENGTHS))]
    assert data.terminations[data.offsets[1:] - 1].tolist() == terminated


def test_without_flags_the_step_number_that_falls_begins_an_episode() -> None:
    columns = COLUMNS | {"terminations": None, "truncations": None, "episode": None}
    data = load_trajectories(frame_of(), columns=columns)
    assert data.lengths.tolist() == list(LENGTHS) and data.truncations[data.offsets[1:] - 1].all()


def test_dones_beside_other_flags_are_ends_of_the_other_kind() -> None:
    frame = frame_of()
    frame["done"] = frame["terminated"] | frame["truncated"]
    for role, other in (("terminations", "truncations"), ("truncations", "terminations")):
        data = load_trajectories(frame, columns=COLUMNS | {"dones": "done", role: None, "episode": None})
        assert wrong_pairs(data) == 0, other
    data, warning = told(frame.drop(columns=["terminated", "truncated", "episode_id", "t"]))
    assert "'dones' count as terminations" in warning and data.terminations[data.offsets[1:] - 1].all()


def test_several_columns_are_the_key_of_an_episode_and_levels_of_an_index_are_columns() -> None:
    frame = frame_of()
    frame["seed_number"], frame["number"] = frame["episode_id"].str[-1].astype(int) // 2, 0
    frame["number"] = frame["episode_id"].str[-1].astype(int) % 2
    columns = COLUMNS | {"episode": ["seed_number", "number"]}
    assert wrong_pairs(load_trajectories(frame, columns=columns)) == 0
    assert wrong_pairs(load_trajectories(frame.set_index(["episode_id", "t"]), columns=COLUMNS)) == 0


def test_a_name_for_every_leaf_makes_a_nested_space(tmp_path: Path) -> None:
    columns = COLUMNS | {"observations": {"arm/left": ["obs_0"], "arm/right": "obs_1"}}
    data = load_trajectories(frame_of(), columns=columns)
    assert {path: leaf.shape for path, leaf in data.observations.items()} == {"arm/left": (35, 1), "arm/right": (35,)}
    dotted = frame_of().rename(columns={"obs_0": "observation.arm.x_1", "obs_1": "observation.arm.x_2"})
    data, warning = told(csv(dotted, tmp_path))
    assert "'observations': {'arm/x': 'observation.arm.x_*'}" in warning
    np.testing.assert_array_equal(data.observations["arm/x"][:, 1], -data.observations["arm/x"][:, 0])


def test_columns_beyond_ten_stand_in_the_order_of_their_numbers() -> None:
    frame = frame_of().drop(columns=["obs_0", "obs_1"])
    more = pandas.DataFrame({f"obs[{index}]": np.full(len(frame), float(index)) for index in (*range(2, 13), 0, 1)})
    data = load_trajectories(pandas.concat([frame, more], axis=1), columns=COLUMNS | {"observations": "obs[*]"})
    assert data.observations[""][0].tolist() == list(range(13))
    assert "number 5 is missing" in refusal(
        pandas.concat([frame, more.drop(columns="obs[5]")], axis=1), columns=COLUMNS | {"observations": "obs[*]"}
    )


def test_a_table_may_be_cached_under_the_columns_it_was_read_by(tmp_path: Path) -> None:
    path = csv(frame_of(), tmp_path)
    for columns in (COLUMNS, COLUMNS | {"rewards": "obs_0"}):
        for _ in range(2):
            cached = load_trajectories(path, columns=columns, cache=tmp_path / "cache")
            assert cached.rewards[0] == (1.0 if columns is COLUMNS else 0.0)
    assert len(list((tmp_path / "cache").glob("trajectories-*"))) == 2


# Without rewards ------------------------------------------------------------


def test_data_without_rewards_are_for_cloning_only(tmp_path: Path) -> None:
    from rltransformers import DecisionTransformer

    columns = COLUMNS | {"rewards": None}
    data, said = told(frame_of(), columns=columns, action_space=spaces.Box(-1, 1, (1,)))
    assert said == "frame: has no rewards, so no return can be asked for; clone these data with mode='bc'"
    assert not data.has_rewards and not data.rewards.any()
    small: dict[str, Any] = {"context_length": 4, "batch_size": 4}
    DecisionTransformer("DTPolicy", data, mode="bc", **small).learn(1)
    for source in (data, Trajectories.concatenate([data, load_trajectories(frame_of(), columns=COLUMNS)])):
        with pytest.raises(ConfigError, match="has no rewards, and mode 'dt' needs them; clone all episodes"):
            DecisionTransformer("DTPolicy", source, **small)
    with pytest.raises(ConfigError, match="has no rewards, and top_fraction needs them"):
        DecisionTransformer("DTPolicy", data, mode="bc", top_fraction=0.5, **small)
    assert not Trajectories.open(data.save(tmp_path / "saved")).has_rewards
    known = load_trajectories(transitions(2))
    silent = Trajectories.concatenate([known]).select([0, 1])
    write_minari_refuses(known, silent)


def write_minari_refuses(known: Trajectories, silent: Trajectories) -> None:
    """Minari stores rewards, so data without them are not written."""
    from dataclasses import replace

    with pytest.raises(DataError, match="rewards are unknown and Minari stores them"):
        write_minari(replace(silent, metadata={"rewards": "unknown"}), "silent/walk-v0")


# What is wrong is named ------------------------------------------------------------


def test_columns_that_are_not_there_are_named(tmp_path: Path) -> None:
    frame = frame_of()
    assert "names 'reward', did you mean 'rewards'?" in refusal(frame, columns={"reward": "gain"}).replace(";", ",")
    assert "names 'rewrad', which is no column; did you mean 'reward'?" in refusal(frame, columns={"rewards": "rewrad"})
    assert "'seen_*', which no column is called like" in refusal(frame, columns={"observations": "seen_*"})
    assert "names '3', which is no column" in refusal(frame, columns={"rewards": 3})
    assert "must be a name of a column, a list of names or a dict of leaves, got 0.5" in refusal(
        frame, columns={"rewards": 0.5}
    )
    assert "no column is called like actions; present: ['obs_0'" in refusal(frame.drop(columns="action_0"))
    assert "'obs' has no single number per row" in refusal(listed(), columns={"observations": ["obs", "reward"]})
    ends = ["terminated", "truncated", "episode_id", "t"]
    assert "no column says where episodes end; present: ['obs_0'" in refusal(frame.drop(columns=ends))
    assert "columns applies to tables and lists of steps, and Trajectories is none" in refusal(
        load_trajectories(listed()), columns=COLUMNS
    )


def test_episodes_that_cannot_be_told_apart_are_refused() -> None:
    frame = frame_of()
    twice = pandas.concat([frame, frame])
    assert "two rows are step 0 of episode 'run 0'; number the episodes of several" in refusal(twice)
    apart = pandas.concat([frame[:3], frame[5:], frame[3:5]])
    assert "the rows of episode 'run 0' lie apart, and no column says" in refusal(apart, columns={"step": None})
    assert "step names 2 columns, ['t', 'reward']" in refusal(frame, columns={"step": ["t", "reward"]})
    early = frame.assign(terminated=frame["t"] == 2)
    assert "step 2 of episode 0 is flagged as an end, and the episode goes on" in refusal(early, columns={"step": "t"})
    frame.loc[4, "episode_id"] = None
    assert "episode: row 4 has no value; fill it in or drop the row" in refusal(frame)
    assert "episode 2 has 9 steps, more than time_limit=7" in refusal(frame_of(), time_limit=7)


def test_rows_that_differ_and_files_that_are_no_tables_are_named(tmp_path: Path) -> None:
    steps = dicts(listed(), tmp_path)
    assert "step 3 has ['obs'], step 0 has ['action', 'next_obs'" in refusal([*steps[:3], {"obs": [0.0]}])
    assert "obs: its rows are not of one shape" in refusal([steps[0], steps[1] | {"obs": np.zeros(3)}])
    assert "step 0 has 3 members, (1, 2, 3); a step is (observation, action, reward" in refusal([(1, 2, 3)])
    assert "a step is (observation, action, reward, next_observation" in refusal([(0.5, 1, 2.0, False, 0.6)])
    assert "step 1 has 4 members, step 0 has 5 members" in refusal([(0, 0, 0, 0, True), (0, 0, 0, 0)])
    for name, content, words in (
        ("text.jsonl", '{"obs": 1}\nobs', "line 2 is no JSON"),
        ("bytes.jsonl", b"\xff\xfe", "is no text"),
        ("empty.csv", "", "is no table of comma-separated values"),
        ("head.csv", "obs_0,action,done\n", "holds no rows"),
        ("latin.csv", "größe".encode("latin-1"), "pandas.read_csv(file, encoding=..., sep=...) and pass the DataFrame"),
        ("ragged.csv", "obs,action\n1,2\n1,2,3\n", "is no table of comma-separated values"),
    ):
        (tmp_path / name).write_bytes(content if isinstance(content, bytes) else content.encode())
        assert words in refusal(tmp_path / name), name
    frame = frame_of()
    frame.loc[8, "obs_1"] = np.nan
    assert "observations of episode 2, step 2 is [2002.   nan], NaN or infinity" in refusal(frame)
    assert "two columns are called 'reward'" in refusal(frame.rename(columns={"note": "reward"}))


# Written back ------------------------------------------------------------


@pytest.mark.parametrize("final", [True, False])
def test_csv_holds_every_number_exactly(final: bool, tmp_path: Path) -> None:
    data = load_trajectories(coded_episodes(final=final))
    noise = np.random.default_rng(0).normal(size=data.observations[""].shape).astype(np.float32)
    data.observations[""][:] += noise if final else 0
    again, _ = told(write_csv(data, tmp_path / "log.csv"))
    assert again.fingerprint() == data.fingerprint() and again.final_observations == final
    with pytest.raises(DataError, match=r"log\.csv exists; pass overwrite=True"):
        write_csv(data, tmp_path / "log.csv")
    write_csv(data.select([1]), tmp_path / "log.csv", overwrite=True)
    assert told(tmp_path / "log.csv")[0].lengths.tolist() == [1]


def test_leaves_and_classes_and_missing_rewards_survive_csv(tmp_path: Path) -> None:
    episode = {"observations": {"arm": np.arange(6.0).reshape(3, 2), "turn": np.arange(3)}, "actions": np.arange(2)}
    data = load_trajectories([episode | {"rewards": np.ones(2), "terminations": True}] * 2)
    known: Any = {"observation_space": data.observation_space, "action_space": data.action_space}
    assert told(write_csv(data, tmp_path / "log.csv"), **known)[0].fingerprint() == data.fingerprint()
    silent = told(frame_of(), columns=COLUMNS | {"rewards": None})[0]
    assert not told(write_csv(silent, tmp_path / "silent.csv"))[0].has_rewards
    pictures = load_trajectories(
        [{"observations": np.zeros((3, 2, 2, 3), np.uint8), "actions": np.zeros((2, 1)), "rewards": np.ones(2)}]
    )
    with pytest.raises(DataError, match=r"observations has shape \(2, 2, 3\), and a line holds single numbers"):
        write_csv(pictures, tmp_path / "pictures.csv")


# As strangers write them ------------------------------------------------------------


def episodes_of(frame: Any) -> list[Any]:
    """A frame per episode, without a column that numbers them and without flags."""
    parts = frame.groupby("episode_id", sort=False)
    return [part.drop(columns=["episode_id", "t", "terminated", "truncated"]) for _, part in parts]


@pytest.mark.parametrize(
    "names",
    [
        {"obs_0": "Obs_0", "obs_1": "Obs_1", "action_0": "Action_0", "episode_id": "EpisodeId", "reward": "Reward"},
        {"obs_0": "OBS_0", "obs_1": "OBS_1", "action_0": "ACTION_0", "episode_id": "EPISODE_ID", "reward": "REWARD"},
        {"obs_0": "obs 0", "obs_1": "obs 1", "action_0": "action 0", "episode_id": "Episode ID", "reward": " reward"},
        {"obs_0": "state_angle", "obs_1": "state_speed", "action_0": "action_torque"},
    ],
)
def test_names_in_capitals_with_blanks_or_words_are_usual_names(names: dict[str, str]) -> None:
    data, warning = told(frame_of().rename(columns=names))
    assert wrong_pairs(data) == 0 and len(data) == len(LENGTHS) and "is a guess" in warning
    spelled = names | {"terminated": "Terminated", "truncated": "TRUNCATED", "t": "TimeStep"}
    assert wrong_pairs(told(frame_of().rename(columns=spelled))[0]) == 0


def test_levels_and_numbers_are_names_of_columns() -> None:
    frame = frame_of()
    tuples = [("obs", "x"), ("obs", "y"), ("action", "u"), *((name, "") for name in frame.columns[3:])]
    levels = frame.set_axis(pandas.MultiIndex.from_tuples(tuples), axis="columns")
    assert wrong_pairs(told(levels)[0]) == 0
    numbered = frame.set_axis(range(len(frame.columns)), axis="columns")
    for observations in ([0, 1], range(2), pandas.Index([0, 1])):
        columns = {"observations": observations, "actions": [2], "rewards": 3, "terminations": 4, "truncations": 5}
        assert wrong_pairs(load_trajectories(numbered, columns=columns)) == 0


@pytest.mark.parametrize(
    ("change", "words"),
    [
        ({"obs_1": "left"}, "'obs_1' holds text, such as 'left' in row 0; number the classes: frame['obs_1'] = "),
        (
            {"action_0": "left"},
            "'action_0' holds text, such as 'left' in row 0; number the classes: frame['action_0'] = ",
        ),
        ({"obs_1": "0.5"}, "frame['obs_1'] = pandas.to_numeric(frame['obs_1'])"),
        ({"obs_1": "0,5"}, "pandas.to_numeric(frame['obs_1'].str.replace(',', '.'))"),
        ({"obs_1": np.datetime64("2026-01-01")}, "(frame['obs_1'] - frame['obs_1'].min()).dt.total_seconds()"),
        ({"obs_1": 1j}, "'obs_1' holds complex128, no numbers"),
        ({"terminated": [None, *[False] * 29]}, "'terminated' holds no value in row 0; fill it in"),
        ({"obs_1": -1, "obs_0": -2}, "integers down to -2, which are no classes; pass observation_space, for numbers "),
        ({"obs_0": [*[0.0] * 29, None], "obs_1": "x"}, "'obs_1' holds text"),
        ({"obs_1": ["x", None, *["y"] * 28]}, "'obs_1' holds no value in row 1"),
    ],
)
def test_what_is_no_number_is_refused_with_the_line_to_write(change: dict[str, Any], words: str) -> None:
    assert words in refusal(frame_of().assign(**change))


def test_integers_are_numbers_in_the_space_that_the_message_names() -> None:
    frame = frame_of().assign(obs_0=-2, obs_1=-1)
    assert "gymnasium.spaces.Box(-numpy.inf, numpy.inf, (2,))" in refusal(frame)
    data = load_trajectories(frame, columns=COLUMNS, observation_space=spaces.Box(-np.inf, np.inf, (2,)))
    assert data.observations[""].tolist()[0] == [-2.0, -1.0]


def test_columns_that_nothing_is_read_from_may_hold_anything(tmp_path: Path) -> None:
    frame = frame_of()
    frame["lidar"] = [[0.0] * (row % 3) for row in range(len(frame))]
    frame["remark"] = [None, *["x"] * (len(frame) - 1)]
    for kind in (itself, parquet, jsonl, dicts):
        data, warning = told(kind(frame, tmp_path))
        assert wrong_pairs(data) == 0 and "'lidar', 'remark'" in warning
        assert "lidar" in refusal(kind(frame, tmp_path), columns={"observations": "lidar"})


def test_decimals_of_a_data_base_are_numbers(tmp_path: Path) -> None:
    table = arrow(frame_of(), tmp_path)
    place = table.schema.get_field_index("obs_1")
    table = table.set_column(place, "obs_1", table.column("obs_1").cast(pa.decimal128(10, 2)))
    assert wrong_pairs(told(table)[0]) == 0


@pytest.mark.parametrize(
    ("file", "options"),
    [
        ("log.csv", {"sep": ";"}),
        ("log.csv", {"sep": "\t"}),
        ("log.tsv", {"sep": "\t"}),
        ("log.csv.gz", {}),
        ("LOG.CSV", {"encoding": "utf-8-sig"}),
    ],
)
def test_tables_in_text_are_read_whatever_separates_columns(file: str, options: Any, tmp_path: Path) -> None:
    frame_of().to_csv(tmp_path / file, index=False, **options)
    data, _ = told(tmp_path / file)
    assert wrong_pairs(data) == 0 and data.name.lower() == "log"


@pytest.mark.parametrize("write", [list, np.asarray])
def test_lists_in_the_cells_of_a_csv_file_are_lists(write: Callable[..., Any], tmp_path: Path) -> None:
    frame = listed(next_observations=False)
    frame["obs"] = [write(row) for row in frame["obs"].map(lambda row: row.tolist())]
    frame["action"] = [write(row) for row in frame["action"].map(lambda row: row.tolist())]
    assert wrong_pairs(load_trajectories(csv(frame, tmp_path))) == 0


def test_a_folder_of_csv_files_and_a_list_of_frames_hold_an_episode_each(tmp_path: Path) -> None:
    parts = episodes_of(frame_of())
    for number, part in enumerate(parts):
        part.to_csv(tmp_path / f"{number}.csv", index=False)
    for source in (parts, tmp_path, {f"run {number}": part for number, part in enumerate(parts)}):
        data, _ = told(source)
        assert data.lengths.tolist() == list(LENGTHS) and data.truncations.sum() == len(LENGTHS)
        assert (data.observations[""][0] == parts[0][["obs_0", "obs_1"]].iloc[0]).all()
    whole = frame_of()
    assert wrong_pairs(told([whole[:11], whole[11:]])[0]) == 0  # a column of theirs numbers the episodes
    flagged = [part.assign(done=[*[False] * (len(part) - 2), True, False][-len(part) :]) for part in parts]
    assert "flagged as an end, and the episode goes on" in refusal(flagged)
    assert "holds no rows" in refusal([parts[0][:0]])


def test_json_files_are_lists_of_steps_or_of_episodes_or_objects_of_arrays(tmp_path: Path) -> None:
    steps = listed(next_observations=False).map(lambda value: value.tolist() if hasattr(value, "tolist") else value)
    for name, content in (
        ("steps.json", json.dumps(steps.to_dict("records"))),
        ("arrays.json", json.dumps(steps.rename(columns={"terminated": "terminals"}).to_dict("list"))),
        ("steps.ndjson", "\n".join(map(json.dumps, steps.to_dict("records")))),
    ):
        (tmp_path / name).write_text(content, encoding="utf-8-sig")
        assert wrong_pairs(load_trajectories(tmp_path / name)) == 0, name
    for content in ("null", "3"):
        (tmp_path / "no_list.json").write_text(content)
        assert f"holds {json.loads(content)}; write a list of steps" in refusal(tmp_path / "no_list.json")
    (tmp_path / "bad.json").write_text("{")
    assert "is no JSON" in refusal(tmp_path / "bad.json")


@pytest.mark.parametrize("kind", ["dicts", "tuples", "steps"])
def test_lists_of_steps_in_a_list_are_episodes(kind: str) -> None:
    frame, ends = listed(), np.cumsum(LENGTHS)
    rows = frame.to_dict("records")
    if kind == "tuples":
        rows = [tuple(row[key] for key in ("obs", "action", "reward", "next_obs", "terminated")) for row in rows]
    else:
        keys = ("obs", "action", "reward", "next_obs", "terminated")
        rows = [{key: row[key] for key in keys} for row in rows]
    episodes: list[Any] = [rows[end - length : end] for end, length in zip(ends, LENGTHS, strict=True)]
    data = load_trajectories([{"steps": episode} for episode in episodes] if kind == "steps" else episodes)
    assert wrong_pairs(data) == 0 and data.lengths.tolist() == list(LENGTHS)


def test_a_next_observation_may_be_none_where_nothing_follows() -> None:
    rows = [
        tuple(row[key] for key in ("obs", "action", "reward", "next_obs", "terminated", "truncated"))
        for row in listed()
        .assign(next_obs=lambda frame: frame["next_obs"].where(~frame["terminated"], None))
        .to_dict("records")
    ]
    data = load_trajectories(rows)
    assert wrong_pairs(data) == 0 and not data.final_observations


@pytest.mark.parametrize("form", ["dict", "npz", "hdf5"])
@pytest.mark.parametrize("how", ["episode", "episode_starts", "columns"])
def test_flat_arrays_may_number_their_episodes_or_be_named(form: str, how: str, tmp_path: Path) -> None:
    arrays = flat(coded_episodes())
    numbers = np.repeat(np.arange(len(LENGTHS)), LENGTHS)
    options: dict[str, Any] = {}
    kept = {key: arrays[key] for key in ("observations", "actions", "rewards", "terminals")}
    if how == "episode":
        kept["episode"] = numbers
    elif how == "episode_starts":
        kept["episode_starts"] = np.append(1.0, np.diff(numbers))
    else:
        kept = {"X": arrays["observations"], "U": arrays["actions"], "R": arrays["rewards"], "run": numbers}
        kept["D"] = arrays["terminals"]
        options["columns"] = {"observations": "X", "actions": "U", "rewards": "R", "episode": "run"}
        options["columns"]["terminations"] = "D"
    source: Any = kept
    if form == "npz":
        np.savez(source := tmp_path / "log.npz", **kept)
    elif form == "hdf5":
        h5py = pytest.importorskip("h5py")
        with h5py.File(source := tmp_path / "log.hdf5", "w") as file:
            for key, values in kept.items():
                file[key] = values
    data = load_trajectories(source, **options)
    assert wrong_pairs(data) == 0 and data.lengths.tolist() == list(LENGTHS)


@pytest.mark.parametrize("marks", ["x", [[0, 1]], [[0] * 2, [0]]])
def test_marks_of_first_rows_are_one_number_per_row(marks: Any) -> None:
    frame = frame_of().drop(columns=["episode_id", "t", "terminated", "truncated"])
    frame["is_first"] = [marks[row % len(marks)] for row in range(len(frame))]
    assert "no column says where episodes end" in refusal(frame)


def test_a_column_of_steps_that_holds_no_steps_is_a_column() -> None:
    assert "no column is called like observations; present: ['steps']" in refusal(pa.table({"steps": [[1, 2], [3]]}))


def test_records_of_numpy_are_a_table() -> None:
    assert wrong_pairs(told(frame_of().drop(columns=["note", "episode_id"]).to_records(index=False))[0]) == 0


# The last row of RLDS ------------------------------------------------------------


def with_last_rows(blank: float) -> Any:
    """Coded episodes with a row behind each that holds only the last observation; flags as RLDS writes them."""
    rows = []
    for episode in coded_episodes():
        steps = len(episode["rewards"])
        for step in range(steps + 1):
            acts = step < steps
            row = {"observation": episode["observations"][step].tolist(), "is_first": step == 0, "is_last": not acts}
            row["action"] = episode["actions"][step].tolist() if acts else [blank] * episode["actions"].shape[1]
            row["reward"] = float(episode["rewards"][step]) if acts else blank
            row["is_terminal"] = not acts and bool(episode["terminations"][-1])
            rows.append(row | {"discount": 1.0})
    return rows


@pytest.mark.parametrize("form", ["steps", "episodes", "table", "nested table"])
@pytest.mark.parametrize("blank", [0.0, np.nan])
def test_the_last_row_of_rlds_is_the_last_observation(form: str, blank: float) -> None:
    rows: Any = with_last_rows(blank)
    ends = np.cumsum(np.array(LENGTHS) + 1)
    episodes = [{"steps": rows[end - length - 1 : end]} for end, length in zip(ends, LENGTHS, strict=True)]
    source = {
        "steps": rows,
        "episodes": episodes,
        "table": pa.Table.from_pylist(rows),
        "nested table": pa.Table.from_pylist([episode | {"file_path": "x"} for episode in episodes]),
    }[form]
    with warnings.catch_warnings():
        warnings.filterwarnings("ignore", message=".* is a guess")
        data = load_trajectories(source)
    assert wrong_pairs(data) == 0 and data.final_observations
    whole = load_trajectories(coded_episodes())
    assert data.fingerprint() == whole.fingerprint()


def test_a_last_row_of_rlds_with_an_action_is_a_step() -> None:
    rows = with_last_rows(0.0)
    rows[-1]["action"] = [1.0] * len(rows[-1]["action"])
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        assert load_trajectories(rows).lengths.tolist() == [length + 1 for length in LENGTHS]
