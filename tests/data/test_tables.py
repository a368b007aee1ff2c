"""Parquet files and data sets of Hugging Face: what is read is what was written, and what is wrong is named."""

import json
from contextlib import suppress
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from rltransformers.core.errors import ConfigError, DataError
from rltransformers.data import Trajectories, load_trajectories
from rltransformers.data.tables import stated_values
from tests.data.coded import LENGTHS, coded_episodes, flat, wrong_pairs

pa = pytest.importorskip("pyarrow", reason="needs the extra parquet")
parquet = pytest.importorskip("pyarrow.parquet", reason="needs the extra parquet")

LAYOUT = ("observations", "actions", "rewards", "dones")
"""Columns of edbeeching/decision_transformer_gym_replay, a row per episode."""


def replay_rows(final: bool = False) -> list[dict[str, Any]]:
    """Coded episodes in that layout: nested lists, ``dones`` marks terminated episodes."""
    rows = []
    for episode in coded_episodes(final=final):
        rows.append({key: episode[key].tolist() for key in LAYOUT[:3]} | {"dones": episode["terminations"].tolist()})
    return rows


def file_of(folder: Path, rows: list[dict[str, Any]], name: str = "table.parquet", **options: Any) -> Path:
    """The rows as a Parquet file."""
    parquet.write_table(pa.Table.from_pylist(rows), folder / name, **options)
    return folder / name


@pytest.mark.parametrize("final", [False, True])
@pytest.mark.parametrize("group", [1, 2, 100])
def test_a_row_per_episode_is_read(final: bool, group: int, tmp_path: Path) -> None:
    data = load_trajectories(file_of(tmp_path, replay_rows(final), row_group_size=group))
    assert wrong_pairs(data) == 0 and data.final_observations == final
    assert (data.name, data.metadata["format"]) == ("table", "table")


def test_dones_end_episodes_as_d4rls_terminals_do(tmp_path: Path) -> None:
    """Without one the episode was cut; ``time_limit`` tells of exporters that mark those too."""
    path = file_of(tmp_path, replay_rows())
    assert load_trajectories(path).terminations[np.cumsum(LENGTHS) - 1].tolist() == [False, True, False, True, False]
    limited = load_trajectories(file_of(tmp_path, replay_rows()[1::2], "odd.parquet"), time_limit=3)
    assert limited.lengths.tolist() == [1, 3] and limited.terminations[limited.offsets[1:] - 1].tolist() == [
        True,
        False,
    ]
    with pytest.raises(DataError, match="episode 2 has 9 steps, more than time_limit=5, the step limit"):
        load_trajectories(path, time_limit=5)
    rows = [row | {"truncations": row["dones"]} for row in replay_rows()]
    with pytest.raises(DataError, match="'dones', which does not tell"):
        load_trajectories(file_of(tmp_path, rows, "both.parquet"))


def test_a_row_per_step_is_read(tmp_path: Path) -> None:
    arrays = flat(coded_episodes())
    columns = {key: value.tolist() for key, value in arrays.items()}
    parquet.write_table(pa.table(columns), tmp_path / "steps.parquet", row_group_size=7)
    assert wrong_pairs(load_trajectories(tmp_path / "steps.parquet")) == 0
    columns["observations/place"] = columns.pop("observations")
    columns["next_observations/place"] = columns.pop("next_observations")
    parquet.write_table(pa.table(columns), tmp_path / "nested.parquet")
    data = load_trajectories(tmp_path / "nested.parquet", split_on_discontinuity=True)
    assert list(data.observations) == ["place"] and tuple(data.lengths) == LENGTHS


@pytest.mark.parametrize("inside", [True, False])
def test_structs_are_nested_observations(inside: bool, tmp_path: Path) -> None:
    """A struct of lists per episode, or a list of structs."""
    rows = replay_rows()
    for row in rows:
        places = row["observations"]
        row["observations"] = (
            [{"place": each, "turn": step % 3} for step, each in enumerate(places)]
            if inside
            else {"place": places, "turn": [step % 3 for step in range(len(places))]}
        )
    data = load_trajectories(file_of(tmp_path, rows))
    plain = load_trajectories(coded_episodes(final=False))
    np.testing.assert_array_equal(data.observations["place"], plain.observations[""])
    assert data.episode(4).observations["turn"][:5].tolist() == [0, 1, 2, 0, 1]


def test_types_of_fixed_size_and_one_flag_for_an_episode_are_read(tmp_path: Path) -> None:
    schema = pa.schema(
        {
            "observations": pa.large_list(pa.list_(pa.float64(), 2)),
            "actions": pa.list_(pa.list_(pa.float32(), 1)),
            "rewards": pa.list_(pa.list_(pa.float32())),
            "terminated": pa.bool_(),
            "id": pa.int64(),
        }
    )
    rows = [
        {key: row[key] for key in ("observations", "actions")}
        | {"rewards": [[each] for each in row["rewards"]], "terminated": row["dones"][-1], "id": index}
        for index, row in enumerate(replay_rows())
    ]
    parquet.write_table(pa.Table.from_pylist(rows, schema), tmp_path / "typed.parquet")
    assert wrong_pairs(load_trajectories(tmp_path / "typed.parquet")) == 0


def test_a_folder_of_files_is_one_data_set_and_may_be_cached(tmp_path: Path) -> None:
    rows = replay_rows()
    folder = tmp_path / "hopper"
    folder.mkdir()
    for index, part in enumerate((rows[:2], rows[2:3], rows[3:])):
        file_of(folder, part, f"{index:04}.parquet")
    assert wrong_pairs(load_trajectories(folder)) == 0
    for _ in range(2):
        cached = load_trajectories(folder, cache=tmp_path / "cache")
        assert wrong_pairs(cached) == 0 and isinstance(cached.rewards, np.memmap)
    assert len(list((tmp_path / "cache").glob("trajectories-*"))) == 1
    file_of(folder, [{key: value for key, value in rows[0].items() if key != "dones"}], "0003.parquet")
    with pytest.raises(DataError, match="files have different columns"):
        load_trajectories(folder)


# What is wrong is named ------------------------------------------------------------


def refusal(folder: Path, rows: list[dict[str, Any]], **options: Any) -> str:
    """The message with which the table is refused."""
    with pytest.raises(DataError) as caught:
        load_trajectories(file_of(folder, rows), **options)
    return str(caught.value)


def test_absent_unknown_and_empty_columns_are_named(tmp_path: Path) -> None:
    rows = replay_rows()
    for key in ("observations", "actions"):
        found = refusal(tmp_path, [{name: row[name] for name in row if name != key} for row in rows])
        assert f"episode 0 lacks '{key}'" in found
    assert "no column is called like observations; present: ['actions']" in refusal(tmp_path, [{"actions": [0.0]}])
    assert "unknown key 'returns'" in refusal(tmp_path, [row | {"returns": row["rewards"]} for row in rows])
    with pytest.warns(UserWarning, match=r"columns that nothing is read from: \['length'\]"):
        assert len(load_trajectories(file_of(tmp_path, [row | {"length": 5} for row in rows]))) == len(rows)
    assert "holds no rows" in refusal(tmp_path, rows[:0])
    empty: dict[str, Any] = {key: [] for key in LAYOUT}
    assert "episode 1 is empty" in refusal(tmp_path, [rows[0], empty, rows[1]])


def test_missing_entries_steps_of_other_sizes_and_wrong_numbers_are_named(tmp_path: Path) -> None:
    rows = replay_rows()
    rows[2]["observations"][3] = [1.0]
    assert "observations holds rows of 1 and of 2 numbers" in refusal(tmp_path, rows)
    rows = replay_rows()
    rows[2]["actions"][3] = [None]
    assert "actions of episode 2, step 3 is [nan]" in refusal(tmp_path, rows)
    rows = replay_rows()
    rows[2]["rewards"][4] = float("nan")
    assert "rewards of episode 2, step 4 is nan" in refusal(tmp_path, rows)
    rows = replay_rows()
    rows[1]["actions"] = rows[0]["actions"]
    assert "actions of episode 1 has 5 rows for 1 steps" in refusal(tmp_path, rows)
    rows = [row | {"rewards": [str(each) for each in row["rewards"]]} for row in replay_rows()]
    assert "rewards of episode 0 has dtype object" in refusal(tmp_path, rows)
    with pytest.raises(ConfigError, match="split_on_discontinuity does not apply to tables with an episode per row"):
        load_trajectories(file_of(tmp_path, replay_rows()), split_on_discontinuity=True)


def test_files_that_are_cut_or_foreign_are_named(tmp_path: Path) -> None:
    whole = file_of(tmp_path, replay_rows()).read_bytes()
    for ending in ("parquet", "arrow"):
        for name, content in (("half", whole[: len(whole) // 2]), ("text", b"hello"), ("nothing", b"")):
            (tmp_path / f"{name}.{ending}").write_bytes(content)
            with pytest.raises(DataError, match=rf"{name}\.{ending} is truncated or no table"):
                load_trajectories(tmp_path / f"{name}.{ending}")


def test_a_file_that_states_far_more_than_it_stores_is_refused(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    parquet.write_table(pa.table({"rewards": np.zeros(20_000, np.float32)}), tmp_path / "large.parquet")
    with pytest.raises(DataError, match="no column is called like observations"):
        load_trajectories(tmp_path / "large.parquet")
    monkeypatch.setattr("rltransformers.data.tables.ALWAYS_READ", 1000)
    monkeypatch.setattr("rltransformers.data.tables.MAX_VALUES", 2)
    with pytest.raises(DataError, match=r"states 20,000 values in [\d,]+ bytes; it is damaged"):
        load_trajectories(tmp_path / "large.parquet")


def test_a_file_with_any_byte_of_its_footer_flipped_is_read_or_refused(tmp_path: Path) -> None:
    """pyarrow ends the process where it is asked about a column of a damaged row group."""
    whole = file_of(tmp_path, replay_rows()).read_bytes()
    footer = len(whole) - 8 - int.from_bytes(whole[-8:-4], "little")
    for place in range(footer, len(whole)):
        (tmp_path / "flipped.parquet").write_bytes(whole[:place] + bytes([whole[place] ^ 4]) + whole[place + 1 :])
        with suppress(DataError):
            load_trajectories(tmp_path / "flipped.parquet")


def test_the_footer_states_as_many_values_as_pyarrow_counts(tmp_path: Path) -> None:
    columns = {"rewards": np.zeros(50), "flag": np.arange(50) % 2 == 0, "text": ["x" * 99] * 50, "list": [[1, 2]] * 50}
    parquet.write_table(pa.table(columns), tmp_path / "groups.parquet", row_group_size=3)
    described = parquet.read_metadata(tmp_path / "groups.parquet").to_dict()
    counted = sum(column["num_values"] for group in described["row_groups"] for column in group["columns"])
    assert stated_values(tmp_path / "groups.parquet") == counted == 250


# Hugging Face datasets ------------------------------------------------------------


def saved_by_hand(folder: Path, rows: list[dict[str, Any]], files: int = 2, stream: bool = True) -> Path:
    """A folder laid out as ``Dataset.save_to_disk`` does, without the package."""
    folder.mkdir(parents=True)
    table, names = pa.Table.from_pylist(rows), [f"data-{index:05}-of-{files:05}.arrow" for index in range(files)]
    size = -(-len(rows) // files)
    for index, name in enumerate(names):
        part = table.slice(index * size, size)
        opened = pa.ipc.new_stream if stream else pa.ipc.new_file
        with pa.OSFile(str(folder / name), "wb") as sink, opened(sink, table.schema) as writer:
            writer.write_table(part)
    (folder / "state.json").write_text(json.dumps({"_data_files": [{"filename": name} for name in names]}))
    (folder / "dataset_info.json").write_text(json.dumps({"config_name": "hopper-medium-v2"}))
    return folder


@pytest.mark.parametrize("stream", [True, False])
def test_a_folder_of_save_to_disk_is_read_without_the_package(stream: bool, tmp_path: Path) -> None:
    data = load_trajectories(saved_by_hand(tmp_path / "set", replay_rows(), stream=stream))
    assert wrong_pairs(data) == 0 and data.name == "hopper-medium-v2"
    assert wrong_pairs(load_trajectories(tmp_path / "set" / "data-00000-of-00002.arrow"), LENGTHS[:3]) == 0


def test_splits_missing_files_and_files_outside_are_named(tmp_path: Path) -> None:
    saved_by_hand(tmp_path / "one" / "train", replay_rows())
    (tmp_path / "one" / "dataset_dict.json").write_text('{"splits": ["train"]}')
    assert wrong_pairs(load_trajectories(tmp_path / "one")) == 0
    (tmp_path / "one" / "dataset_dict.json").write_text('{"splits": ["train", "test"]}')
    with pytest.raises(DataError, match=r"has the splits \['train', 'test'\]; pass the folder of one"):
        load_trajectories(tmp_path / "one")
    state = tmp_path / "one" / "train" / "state.json"
    for content, words in (
        ('{"_data_files": [{"filename": "../../gone.arrow"}]}', r"there is no file .*train/gone\.arrow"),
        ("[]", "is no description of a data set"),
        ("{", "is missing or damaged"),
        ("{}", "lists no files"),
    ):
        state.write_text(content)
        with pytest.raises(DataError, match=words):
            load_trajectories(tmp_path / "one" / "train")


@pytest.mark.third_party
def test_data_sets_of_hugging_face_are_read_as_objects_and_from_disk(tmp_path: Path) -> None:
    datasets = pytest.importorskip("datasets", reason="compares with Hugging Face datasets, extra third-party")
    features = datasets.Features(
        {key: datasets.Sequence(datasets.Sequence(datasets.Value("float32"))) for key in LAYOUT[:2]}
        | {"rewards": datasets.Sequence(datasets.Value("float32")), "dones": datasets.Sequence(datasets.Value("bool"))}
    )
    whole = datasets.Dataset.from_list(replay_rows(), features=features)

    def right(data: Trajectories) -> None:
        assert wrong_pairs(data) == 0

    right(load_trajectories(whole))
    right(load_trajectories(datasets.DatasetDict({"train": whole})))
    rows = replay_rows()
    mixed = datasets.Dataset.from_list([rows[index] for index in (4, 0, 2, 1, 3)], features=features)
    right(load_trajectories(mixed.select([1, 3, 2, 4, 0])))  # an index beside the table
    with pytest.raises(DataError, match=r"has the splits \['test', 'train'\]; pass one of them"):
        load_trajectories(datasets.DatasetDict({"train": whole, "test": whole}))
    whole.save_to_disk(tmp_path / "disk", num_shards=3)
    right(load_trajectories(tmp_path / "disk"))
    datasets.DatasetDict({"train": whole}).save_to_disk(tmp_path / "splits")
    right(load_trajectories(tmp_path / "splits"))
    whole.to_parquet(tmp_path / "whole.parquet")
    right(load_trajectories(tmp_path / "whole.parquet"))
    image = datasets.Array2D((4, 3), "uint8")
    shape = (3, 4, 3)
    picture = np.arange(36, dtype=np.uint8).reshape(shape)
    pictures = datasets.Dataset.from_list(
        [{"observations": picture, "actions": [0, 1, 0], "rewards": [0.0, 0.0, 1.0]}],
        features=datasets.Features(
            {
                "observations": datasets.Sequence(image),
                "actions": datasets.Sequence(datasets.Value("int64")),
                "rewards": datasets.Sequence(datasets.Value("float64")),
            }
        ),
    )
    seen = load_trajectories(pictures)
    np.testing.assert_array_equal(seen.observations[""][:3], picture)
    assert "uint8" in str(seen.observation_space)
