"""Every source of episodes gives the same, aligned trajectories; what is wrong is named."""

import io
import json
import pickle
import re
import shutil
import threading
import time
import warnings
from dataclasses import replace
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import gymnasium as gym
import h5py
import minari
import numpy as np
import pytest
from gymnasium import spaces
from minari.data_collector import EpisodeBuffer

from rltransformers.core.errors import ConfigError, DataError
from rltransformers.core.spaces import check_supported, leaf_spaces, nest_leaves, stored_dtype
from rltransformers.data import Trajectories, load_trajectories, write_minari
from rltransformers.data.d4rl import trajectories_from_d4rl
from rltransformers.data.minari import EPISODES_AT_ONCE
from rltransformers.data.spaces import infer_space
from rltransformers.training.offline.data import data_parts
from tests.data.coded import LENGTHS, coded_episodes, flat, wrong_pairs

BOX: dict[str, Any] = {"observation_space": spaces.Box(-np.inf, np.inf, (2,)), "action_space": spaces.Box(-1, 1, (1,))}


@pytest.fixture(autouse=True)
def minari_root(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    monkeypatch.setenv("MINARI_DATASETS_PATH", str(tmp_path / "minari"))
    return tmp_path / "minari"


def write_hdf5(path: Path, arrays: dict[str, Any]) -> Path:
    with h5py.File(path, "w") as file:
        for key, value in arrays.items():
            file[key] = value
    return path


# Alignment ------------------------------------------------------------


def test_no_pair_of_episode_dicts_is_wrong() -> None:
    data = load_trajectories(coded_episodes())
    assert wrong_pairs(data) == 0
    assert data.final_observations
    assert data.steps == sum(LENGTHS) and len(data.observations[""]) == sum(LENGTHS) + len(LENGTHS)


def test_no_pair_is_wrong_without_last_observations() -> None:
    data = load_trajectories(iter(coded_episodes(final=False)))
    assert wrong_pairs(data) == 0
    assert not data.final_observations


def test_no_pair_of_a_d4rl_dict_is_wrong() -> None:
    assert wrong_pairs(load_trajectories(flat(coded_episodes()))) == 0
    without = load_trajectories(flat(coded_episodes(), next_observations=False))
    assert wrong_pairs(without) == 0 and not without.final_observations


def test_no_pair_of_a_d4rl_file_is_wrong_whatever_its_layout(tmp_path: Path) -> None:
    arrays = flat(coded_episodes())
    columns = arrays | {"rewards": arrays["rewards"][:, None], "terminals": arrays["terminals"][:, None]}
    assert wrong_pairs(load_trajectories(write_hdf5(tmp_path / "flat.hdf5", arrays))) == 0
    assert wrong_pairs(load_trajectories(str(write_hdf5(tmp_path / "columns.h5", columns)))) == 0
    parts = {f"virtual/{i}/{key}": value[10 * i : 10 * i + 10] for i in range(3) for key, value in arrays.items()}
    assert wrong_pairs(load_trajectories(write_hdf5(tmp_path / "virtual.hdf5", parts))) == 0


def test_no_pair_of_a_minari_set_is_wrong() -> None:
    written = write_minari(load_trajectories(coded_episodes()), "coded/pairs-v0")
    assert [len(episode.observations) - len(episode.rewards) for episode in written] == [1] * len(LENGTHS)
    assert wrong_pairs(load_trajectories("coded/pairs-v0")) == 0
    assert wrong_pairs(load_trajectories(written)) == 0
    assert wrong_pairs(load_trajectories(Path(written.spec.data_path).parent)) == 0


@pytest.mark.parametrize("path", ["virtual/x/rewards", "virtual/0", "virtual"])
def test_parts_of_a_d4rl_file_that_are_none_are_named(tmp_path: Path, path: str) -> None:
    file = write_hdf5(tmp_path / "virtual.hdf5", {path: np.zeros(3)})
    with pytest.raises(
        DataError, match=r"virtual.hdf5: 'virtual' is .*; it should hold groups of arrays numbered 0, 1"
    ):
        load_trajectories(file)


def test_a_name_longer_than_file_systems_take_is_refused() -> None:
    for name in ("x" * 300, "x" * 300 + ".npz", "a" * 5000 + "-v0"):
        with pytest.raises(DataError, match="is no path that can be read: File name too long"):
            load_trajectories(name)


def test_a_filtered_minari_set_keeps_its_own_episodes() -> None:
    written = write_minari(load_trajectories(coded_episodes()), "coded/filter-v0")
    kept = load_trajectories(written.filter_episodes(lambda episode: len(episode.rewards) > 4))
    assert list(kept.lengths) == [length for length in LENGTHS if length > 4]
    assert kept.episode(1).observations[""][0, 0] == 2000


def test_trajectories_and_their_folder_load_as_they_are(tmp_path: Path) -> None:
    data = load_trajectories(coded_episodes())
    assert load_trajectories(data) is data
    assert wrong_pairs(load_trajectories(data.save(tmp_path / "own"))) == 0


def test_options_apply_to_trajectories_and_their_folder_or_are_refused(tmp_path: Path) -> None:
    episodes = coded_episodes((4, 2, 4))
    for episode in episodes:
        episode["terminations"][-1], episode["truncations"][-1] = True, False
    whole = load_trajectories(episodes)
    for source in (whole, whole.save(tmp_path / "own")):
        data = load_trajectories(source, time_limit=4, name="cut")
        ends = data.offsets[1:] - 1
        assert data.name == "cut" and list(data.lengths) == [4, 2, 4]
        assert list(data.terminations[ends]) == [False, True, False]
        assert list(data.truncations[ends]) == [True, False, True]
        with pytest.raises(DataError, match="episode 0 has 4 steps, more than time_limit=3, the step limit"):
            load_trajectories(source, time_limit=3)
        for options in ({"split_on_discontinuity": True}, {"cache": tmp_path / "cache"}):
            with pytest.raises(ConfigError, match="does not apply to trajectories"):
                load_trajectories(source, **options)
    assert whole.terminations[whole.offsets[1:] - 1].all()


def test_the_worst_episode_is_not_dropped() -> None:
    data = load_trajectories(flat(coded_episodes()))
    assert data.returns.min() == 11.0 and len(data) == len(LENGTHS)


# Ends of episodes -----------------------------------------------------


def test_without_timeouts_a_time_limit_cuts_every_episode_at_its_own_age() -> None:
    arrays = flat(coded_episodes((4, 4, 2, 4, 3)), timeouts=False)
    arrays["terminals"] = np.zeros(17, bool)
    arrays["terminals"][9] = True  # the third episode terminates early; counters start anew behind it
    data = load_trajectories(arrays, time_limit=4)
    assert list(data.lengths) == [4, 4, 2, 4, 3]
    with pytest.raises(DataError, match="episode 0 has 4 steps, more than time_limit=3, the step limit"):
        load_trajectories(flat(coded_episodes((4, 2))), time_limit=3)
    assert list(data.terminations[data.offsets[1:] - 1]) == [False, False, True, False, False]


def test_without_timeouts_and_limit_an_unfinished_end_warns_and_is_kept_as_truncated() -> None:
    arrays = flat(coded_episodes(), timeouts=False)
    with pytest.warns(UserWarning, match="time_limit"):
        data = load_trajectories(arrays)
    assert list(data.lengths) == [6, 12, 12]
    assert data.truncations[-1] and not data.terminations[-1]


def test_an_unfinished_last_episode_of_a_file_with_timeouts_is_kept() -> None:
    arrays = {key: value[:-2] for key, value in flat(coded_episodes()).items()}
    data = load_trajectories(arrays)
    assert list(data.lengths) == [5, 1, 9, 3, 10]
    assert data.truncations[-1]


def test_jumps_between_rows_can_end_episodes() -> None:
    arrays = flat(coded_episodes())
    arrays["timeouts"] = np.zeros(sum(LENGTHS), bool)
    arrays["terminals"] = np.zeros(sum(LENGTHS), bool)
    with pytest.warns(
        UserWarning, match=r"within episodes 4 next_observations differ .* first in row 4; pass split_on"
    ):
        assert len(load_trajectories(arrays)) == 1
    assert tuple(load_trajectories(arrays, split_on_discontinuity=True).lengths) == LENGTHS
    with pytest.raises(DataError, match="next_observations"):
        load_trajectories(flat(coded_episodes(), next_observations=False), split_on_discontinuity=True)


def test_a_stated_time_limit_turns_false_terminations_into_truncations() -> None:
    episodes = coded_episodes((4, 2, 4))
    for episode in episodes:
        episode["terminations"][-1], episode["truncations"][-1] = True, False
    with pytest.raises(DataError, match="episode 2 has 4 steps, more than time_limit=2, the step limit"):
        load_trajectories(episodes[1:2] * 2 + episodes[:1], time_limit=2)
    data = load_trajectories(episodes, time_limit=4)
    assert list(data.terminations[data.offsets[1:] - 1]) == [False, True, False]
    assert list(data.truncations[data.offsets[1:] - 1]) == [True, False, True]


def test_flags_may_be_named_as_d4rl_does_be_scalar_or_missing() -> None:
    episode = {"observations": np.zeros((3, 2)), "actions": np.zeros((3, 1)), "rewards": [1, 2, 3]}
    data = load_trajectories([episode | {"terminals": True}, episode | {"terminals": [0, 0, 1]}, episode])
    assert list(data.terminations[data.offsets[1:] - 1]) == [True, True, False]
    assert list(data.truncations[data.offsets[1:] - 1]) == [False, False, True]


def test_next_observations_of_episode_dicts_give_the_last_observation() -> None:
    episodes = coded_episodes()
    for episode in episodes:
        episode["next_observations"] = episode["observations"][1:]
        episode["observations"] = episode["observations"][:-1]
    data = load_trajectories(episodes)
    assert data.final_observations and wrong_pairs(data) == 0
    following = episodes[0]["next_observations"]
    episodes[0]["next_observations"] = following + 2e-6 * (np.arange(len(following)) == 2)[:, None]
    with pytest.raises(
        DataError, match=r"next_observations of episode 0 .*differ about what follows step 2; leave out"
    ):
        load_trajectories(episodes)
    episodes[0]["next_observations"] = following
    episodes[1]["next_observations"] = episodes[1]["next_observations"][:-1]
    with pytest.raises(DataError, match=r"next_observations of episode 1 do not fit.*\(0 rows for 1 steps\)"):
        load_trajectories(episodes)


@pytest.mark.parametrize("rows", [np.zeros((9, 3)), [[0, 1], [2]], {"a": np.zeros((9, 2))}])
def test_an_episode_that_does_not_fit_the_others_is_named(rows: Any) -> None:
    episodes = coded_episodes()
    episodes[2]["observations"] = rows
    with pytest.raises(DataError, match="observations of episode 2 do not fit those of episode 0"):
        load_trajectories(episodes)
    with pytest.raises(DataError, match="observations of episode 0 are unfit"):
        load_trajectories([episodes[0] | {"observations": [[0, 1], [2]]}])


# Spaces ---------------------------------------------------------------


def test_spaces_are_inferred_by_the_stated_rules() -> None:
    floats, counts = np.array([[0.5, -3.0], [0.1, 2.0]], np.float32), np.array([[1, 4], [0, 2]])
    assert infer_space(floats, "observations", "x") == spaces.Box(-np.inf, np.inf, (2,))
    assert infer_space(floats, "actions", "x") == spaces.Box(
        np.array([-1, -3], np.float32), np.array([1, 3], np.float32)
    )
    assert infer_space(counts[:, 1], "actions", "x") == spaces.Discrete(5)
    assert infer_space(counts, "actions", "x") == spaces.MultiDiscrete([2, 5])
    assert infer_space(counts > 0, "observations", "x") == spaces.MultiBinary(2)
    assert infer_space(np.zeros((2, 4, 5), np.uint8), "observations", "x") == spaces.Box(0, 255, (4, 5), np.uint8)
    nested = {"a": floats, "b": (counts[:, 0],)}
    assert infer_space(nested, "observations", "x") == spaces.Dict(
        {"a": spaces.Box(-np.inf, np.inf, (2,)), "b": spaces.Tuple([spaces.Discrete(2)])}
    )
    with pytest.raises(DataError, match="pass action_space"):
        infer_space(-counts, "actions", "x")


def test_given_spaces_are_checked_against_the_data() -> None:
    assert load_trajectories(coded_episodes(), **BOX).action_space == BOX["action_space"]
    with pytest.raises(DataError, match=r"observations of episode 0 has rows of shape \(2,\).*\(3,\)"):
        load_trajectories(coded_episodes(), observation_space=spaces.Box(-1, 1, (3,)))
    with pytest.raises(DataError, match=r"1e-04 in row 1, which is not an integer"):
        load_trajectories(flat(coded_episodes()), action_space=spaces.Discrete(3))
    with pytest.raises(DataError, match="action space of the data"):
        load_trajectories(load_trajectories(coded_episodes()), action_space=spaces.Discrete(3))


def with_actions(value: float) -> list[dict[str, Any]]:
    return [episode | {"actions": np.full((len(episode["rewards"]), 1), value)} for episode in coded_episodes()]


def test_given_spaces_are_those_of_the_result_whatever_the_source(tmp_path: Path) -> None:
    """So that data whose spaces were guessed can be joined, as the error of joining advises."""
    given: dict[str, Any] = {
        "observation_space": spaces.Box(-9, 9, (2,), np.float64),
        "action_space": spaces.Box(-2, 2, (1,)),
    }
    parts = [load_trajectories(with_actions(value)) for value in (0.5, 1.5)]
    with pytest.raises(DataError, match="load both with the same observation_space and action_space"):
        Trajectories.concatenate(parts)
    assert len(Trajectories.concatenate(load_trajectories(part, **given) for part in parts)) == 2 * len(LENGTHS)
    for source in (parts[0], parts[0].save(tmp_path / "own"), write_minari(parts[0], "coded/given-v0")):
        data = load_trajectories(source, **given)
        assert data.observation_space == given["observation_space"] and data.action_space == given["action_space"]
        assert data.fingerprint() == parts[0].fingerprint()
    with pytest.raises(DataError, match=r"is \[1.5\], outside the bounds -1.0..1.0"):
        load_trajectories(parts[1], action_space=spaces.Box(-1, 1, (1,)))


def test_classes_that_the_data_do_not_hold_may_be_given() -> None:
    episodes = [episode | {"actions": np.arange(len(episode["rewards"])) % 2} for episode in coded_episodes()]
    guessed = load_trajectories(episodes)
    assert guessed.action_space == spaces.Discrete(2)
    for wider in (spaces.Discrete(3), spaces.Discrete(4, start=-1)):
        data = load_trajectories(guessed, action_space=wider)
        assert data.action_space == wider and data.fingerprint() == guessed.fingerprint()
        with pytest.raises(DataError, match="action space of the data is"):
            load_trajectories(data, action_space=spaces.Discrete(2))
    pairs = [episode | {"actions": np.zeros((len(episode["rewards"]), 2), int)} for episode in coded_episodes()]
    assert load_trajectories(pairs).action_space == spaces.MultiDiscrete([1, 1])
    wide = spaces.MultiDiscrete([2, 3])
    assert load_trajectories(load_trajectories(pairs), action_space=wide).action_space == wide
    with pytest.raises(DataError, match="action space of the data is"):
        load_trajectories(load_trajectories(pairs, action_space=wide), action_space=spaces.MultiDiscrete([2, 2]))


def test_actions_outside_a_discrete_space_are_named() -> None:
    episodes = coded_episodes()
    for episode in episodes:
        episode["actions"] = np.full(len(episode["rewards"]), 5)
    data = load_trajectories(episodes, action_space=spaces.Discrete(3, start=4))
    assert set(data.actions[""]) == {5}
    episodes[2]["actions"][3] = 7
    with pytest.raises(DataError, match=r"actions of episode 2, step 3 is 7, outside Discrete\(3, start=4\)"):
        load_trajectories(episodes, action_space=spaces.Discrete(3, start=4))


SPACES = {
    "discrete": spaces.Discrete(6),
    "discrete_from_5": spaces.Discrete(3, start=5),
    "box": spaces.Box(-np.inf, np.inf, (3,), np.float64),
    "multi_discrete": spaces.MultiDiscrete([3, 5, 2]),
    "multi_binary": spaces.MultiBinary(4),
    "tuple": spaces.Tuple([spaces.Discrete(4), spaces.Box(-1, 1, (2,))]),
    "dict": spaces.Dict({"goal": spaces.Box(-1, 1, (2,)), "arm": spaces.Dict({"grip": spaces.Discrete(2)})}),
    "image": spaces.Box(0, 255, (33, 35, 3), np.uint8),
    "stack": spaces.Box(0, 255, (4, 36, 34), np.uint8),
}


def sampled(space: gym.Space[Any], rows: int, rng: np.random.Generator) -> Any:
    def leaf(node: gym.Space[Any]) -> np.ndarray:
        node.seed(int(rng.integers(2**31)))
        return np.array([node.sample() for _ in range(rows)], stored_dtype(node)).astype(node.dtype)

    return nest_leaves(space, {path: leaf(node) for path, node in leaf_spaces(space).items()})


@pytest.mark.parametrize("name", SPACES)
def test_every_space_survives_a_round_trip_through_minari_exactly(name: str) -> None:
    rng = np.random.default_rng(3)
    actions = spaces.MultiDiscrete([2, 3]) if name in {"image", "stack"} else SPACES[name]
    episodes = [
        {
            "observations": sampled(SPACES[name], length + 1, rng),
            "actions": sampled(actions, length, rng),
            "rewards": rng.normal(size=length),
            "terminations": np.arange(length) == length - 1,
        }
        for length in (4, 1, 3)
    ]
    data = load_trajectories(episodes, observation_space=SPACES[name], action_space=actions)
    write_minari(data, f"round-trip/{name.replace('_', '-')}-v0")
    again = load_trajectories(f"round-trip/{name.replace('_', '-')}-v0")
    assert again.observation_space == data.observation_space and again.action_space == data.action_space
    for kind in ("observations", "actions"):
        for path, leaf in getattr(data, kind).items():
            np.testing.assert_array_equal(getattr(again, kind)[path], leaf)
    for kind in ("rewards", "terminations", "truncations", "offsets"):
        np.testing.assert_array_equal(getattr(again, kind), getattr(data, kind))


def contents(file: h5py.File) -> dict[str, Any]:
    """Of every group its attributes, of every array its type, its shape and its numbers."""
    found: dict[str, Any] = {}

    def note(name: str, node: Any) -> None:
        attributes = {key: (value.dtype, value) for key, value in node.attrs.items()}
        if isinstance(node, h5py.Group):
            found[name] = attributes, sorted(node)
        else:
            found[name] = attributes, h5py.check_enum_dtype(node.dtype), node.dtype, node.shape, node[()].tobytes()

    file.visititems(note)
    return found


@pytest.mark.parametrize("name", SPACES)
def test_files_hold_what_minari_itself_writes(name: str, minari_root: Path) -> None:
    rng = np.random.default_rng(5)
    space = SPACES[name]
    episodes = [
        {"observations": sampled(space, length + 1, rng), "actions": sampled(space, length, rng)}
        | {"rewards": rng.integers(-9, 9, length) / 4, "truncations": np.arange(length) == length - 1}
        for length in (4, 1, 3, 2, 7, 1, 1, 5, 2, 3)
    ]
    data = load_trajectories(episodes, observation_space=space, action_space=space)
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")  # about an author, code and environment that nobody named
        minari.create_dataset_from_buffers(
            "their/own-v0",
            [
                EpisodeBuffer(i, None, None, **episode, terminations=np.zeros(len(episode["rewards"]), bool))
                for i, episode in enumerate(episodes)
            ],
            observation_space=space,
            action_space=space,
            jpeg_encoding=False,
        )
    write_minari(data, "our/own-v0")
    folders = [minari_root / f"{which}/own-v0/data" for which in ("our", "their")]
    ours, theirs = (json.loads((folder / "metadata.json").read_text()) for folder in folders)
    for description in (ours, theirs):
        del description["dataset_id"], description["dataset_size"]
    assert ours == theirs
    with h5py.File(folders[0] / "main_data.hdf5") as one, h5py.File(folders[1] / "main_data.hdf5") as other:
        ours, theirs = contents(one), contents(other)
    assert ours.keys() == theirs.keys()
    for path, facts in theirs.items():
        assert ours[path] == facts, path


def test_the_evaluation_environment_of_a_minari_set_is_read_and_written() -> None:
    spec = gym.spec("CartPole-v1").to_json()
    write_minari(replace(load_trajectories(coded_episodes()), metadata={"eval_env_spec": spec}), "coded/eval-v0")
    data = load_trajectories("coded/eval-v0")
    assert json.loads(data.summary()["metadata"]["eval_env_spec"])["id"] == "CartPole-v1"
    env = write_minari(data, "coded/eval-v1").recover_environment(eval_env=True)
    assert env.spec.id == "CartPole-v1"
    assert Trajectories.concatenate([data, data]).metadata["eval_env_spec"] == data.metadata["eval_env_spec"]
    other = replace(data, metadata={"eval_env_spec": gym.spec("Acrobot-v1").to_json()})
    assert "eval_env_spec" not in Trajectories.concatenate([data, other]).metadata


def test_minari_can_add_episodes_to_a_written_set() -> None:
    written = write_minari(load_trajectories(coded_episodes()), "coded/longer-v0")
    first = written[0]
    more = EpisodeBuffer(
        None, None, None, first.observations, first.actions, first.rewards, first.terminations, first.truncations
    )
    written.update_dataset_from_buffer([more, more])
    again = load_trajectories("coded/longer-v0")
    assert tuple(again.lengths) == (*LENGTHS, LENGTHS[0], LENGTHS[0])
    np.testing.assert_array_equal(again.episode(-1).observations[""], first.observations)


def test_many_episodes_are_read_a_few_at_a_time() -> None:
    lengths = tuple(1 + i % 4 for i in range(2 * EPISODES_AT_ONCE + 3))
    write_minari(load_trajectories(coded_episodes(lengths)), "coded/many-v0")
    assert wrong_pairs(load_trajectories("coded/many-v0"), lengths) == 0


def test_flat_files_are_read_in_pieces_of_their_own_chunks(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("rltransformers.data.spaces.CHUNK_ROWS", 8)
    for following in (True, False):
        arrays = flat(coded_episodes(), next_observations=following)
        for rows in (3, 5, 8, 20):
            with h5py.File(tmp_path / "chunked.hdf5", "w") as file:
                for key, value in arrays.items():
                    file.create_dataset(key, data=value, chunks=(rows, *value.shape[1:]), compression="gzip")
            assert wrong_pairs(load_trajectories(tmp_path / "chunked.hdf5")) == 0
        assert wrong_pairs(load_trajectories(arrays)) == 0
    split = load_trajectories(flat(coded_episodes()), split_on_discontinuity=True)
    assert tuple(split.lengths) == LENGTHS


def test_leaves_can_be_left_out_before_they_are_checked() -> None:
    space = spaces.Dict({"image": spaces.Box(0, 255, (7, 7, 3), np.uint8), "mission": spaces.Text(20)})
    episode = {
        "observations": {"image": np.zeros((3, 7, 7, 3), np.uint8), "mission": ["go", "go", "go"]},
        "actions": [0, 1],
        "rewards": [0, 1],
    }
    with pytest.raises(ConfigError, match="'mission' is Text"):
        load_trajectories([episode], observation_space=space)
    data = load_trajectories([episode], observation_space=space, observation_leaves=["image"])
    assert list(data.observations) == ["image"]
    with pytest.raises(ConfigError, match="did you mean 'image'"):
        load_trajectories([episode], observation_space=space, observation_leaves=["imagen"])


def test_leaves_and_a_space_that_is_given_for_all_of_them_go_together(tmp_path: Path) -> None:
    whole = spaces.Dict({"image": spaces.Box(0, 255, (7, 7, 3), np.uint8), "place": spaces.Box(-1, 1, (2,))})
    seen = {"image": np.zeros((3, 7, 7, 3), np.uint8), "place": np.zeros((3, 2), np.float32)}
    episode = {"observations": seen, "actions": [0, 1], "rewards": [0, 1]}
    data = load_trajectories([episode], observation_space=whole)
    for source in ([episode], data, data.save(tmp_path / "own"), write_minari(data, "coded/leaves-v0")):
        kept = load_trajectories(source, observation_space=whole, observation_leaves=["place"])
        assert list(kept.observations) == ["place"] and kept.observation_space == spaces.Dict(place=whole["place"])


@pytest.mark.parametrize("values", [np.zeros((7, 0), int), np.zeros((7, 0), bool), np.zeros((7, 2, 0))])
def test_rows_without_a_number_are_refused(values: Any) -> None:
    with pytest.raises(DataError, match=r"observations have rows of shape \[.*0\], which hold no number"):
        load_trajectories([{"observations": values, "actions": np.zeros(6), "rewards": np.ones(6)}])
    with pytest.raises(ConfigError, match="is a MultiDiscrete of shape"):
        check_supported(spaces.MultiDiscrete(np.ones((0,), int)), "observation")


def test_a_pickle_is_read_as_what_it_holds(tmp_path: Path) -> None:
    (tmp_path / "data.pkl").write_bytes(pickle.dumps(flat(coded_episodes())))
    split = load_trajectories(tmp_path / "data.pkl", trust=True, split_on_discontinuity=True)
    assert tuple(split.lengths) == LENGTHS


@pytest.mark.parametrize("path", ["image/0", "0", ""])
def test_what_lies_inside_an_array_is_no_leaf(path: str) -> None:
    episode = {"observations": {"image": np.zeros((3, 7, 5))}, "actions": [0, 1], "rewards": [0, 1]}
    with pytest.raises(ConfigError, match=f"observation_leaves names '{path}': known: image|did you mean 'image'"):
        load_trajectories([episode], observation_leaves=[path])


# What is wrong is named -----------------------------------------------


@pytest.mark.parametrize("kind", ["observations", "actions", "rewards"])
@pytest.mark.parametrize("value", [np.nan, np.inf])
def test_numbers_that_are_not_finite_are_named_with_episode_and_step(kind: str, value: float) -> None:
    episodes = coded_episodes()
    episodes[2][kind][4] = value
    with pytest.raises(DataError, match=rf"coded: {kind} of episode 2, step 4 is .*NaN or infinity; drop that episode"):
        load_trajectories(episodes, name="coded")
    with pytest.raises(DataError, match=rf"{kind} of episode 2, step 4"):
        load_trajectories(flat(episodes, next_observations=False))


def test_missing_keys_are_named() -> None:
    with pytest.raises(DataError, match=r"episode 1 lacks 'rewards', and others have them"):
        episodes = coded_episodes()
        del episodes[1]["rewards"]
        load_trajectories(episodes)
    arrays = flat(coded_episodes())
    arrays.pop("terminals")
    with pytest.raises(
        DataError, match=r"the key 'terminals' is missing, .* pass time_limit=.*, or time_limit=30 where"
    ):
        load_trajectories(arrays)


def test_empty_data_and_empty_episodes_are_named() -> None:
    with pytest.raises(DataError, match="holds no episode"):
        load_trajectories([])
    with pytest.raises(DataError, match="episode 1 is empty"):
        load_trajectories(coded_episodes((3, 0, 2)))
    with pytest.raises(DataError, match="holds no rows"):
        load_trajectories({key: value[:0] for key, value in flat(coded_episodes()).items()}, **BOX)


@pytest.mark.parametrize(("kind", "rows"), [("observations", 3), ("actions", 8), ("terminations", 4)])
def test_arrays_of_another_length_are_named(kind: str, rows: int) -> None:
    episodes = coded_episodes()
    episodes[2][kind] = episodes[2][kind][:rows]
    with pytest.raises(DataError, match=rf"{kind} of episode 2|{kind}.*episode 2"):
        load_trajectories(episodes)
    arrays = flat(coded_episodes())
    key = "terminals" if kind == "terminations" else kind
    arrays[key] = arrays[key][:-1]
    with pytest.raises(DataError, match=f"{key} has 29 rows for 30 steps"):
        load_trajectories(arrays)


@pytest.mark.parametrize("limit", [0, -3, 4.5, True])
def test_a_time_limit_is_a_whole_number_of_steps(limit: Any) -> None:
    with pytest.raises(ConfigError, match="time_limit must be a whole number of at least 1 or None"):
        load_trajectories(coded_episodes(), time_limit=limit)


def test_an_end_inside_an_episode_is_named() -> None:
    episodes = coded_episodes()
    episodes[2]["terminations"][3] = True
    with pytest.raises(DataError, match="episode 2 is terminated or truncated at step 3 but has 9 steps"):
        load_trajectories(episodes)


def test_ragged_and_textual_leaves_are_refused() -> None:
    episode = {"actions": [0, 1], "rewards": [0.0, 1.0]}
    with pytest.raises(DataError, match=r"are unfit: (has dtype|is no array)"):
        load_trajectories([episode | {"observations": ["a", "b"]}])
    with pytest.raises(DataError, match="are unfit"):
        load_trajectories([episode | {"observations": [[1.0], [1.0, 2.0]]}])


def test_a_missing_minari_set_is_refused_at_once_with_the_command_that_fetches_it(monkeypatch: Any) -> None:
    monkeypatch.setattr("socket.socket", None)  # nothing may even try the network
    with pytest.raises(DataError, match="minari download mujoco/hopper/medium-v0"):
        load_trajectories("mujoco/hopper/medium-v0")
    write_minari(load_trajectories(coded_episodes()), "mujoco/hopper/medium-v1")
    with pytest.raises(DataError, match="did you mean 'mujoco/hopper/medium-v1'"):
        load_trajectories("mujoco/hopper/medium-v2")


def test_a_missing_or_truncated_or_foreign_file_is_named(tmp_path: Path) -> None:
    with pytest.raises(DataError, match=r"there is no file .*gone\.hdf5"):
        load_trajectories(tmp_path / "gone.hdf5")
    whole = write_hdf5(tmp_path / "whole.hdf5", flat(coded_episodes())).read_bytes()
    (tmp_path / "half.hdf5").write_bytes(whole[: len(whole) // 2])
    with pytest.raises(DataError, match=r"half\.hdf5 is truncated or no HDF5 file"):
        load_trajectories(tmp_path / "half.hdf5")
    (tmp_path / "text.hdf5").write_text("hello")
    with pytest.raises(DataError, match="truncated or no HDF5 file"):
        load_trajectories(tmp_path / "text.hdf5")
    for name in ("data.pkl", "data.npz", "data.parquet", "data.xyz", "data"):
        with pytest.raises(DataError, match=rf"there is no file .*{name}"):
            load_trajectories(str(tmp_path / name))
    with pytest.raises(DataError, match=r"there is no folder .*nowhere\)"):
        load_trajectories(tmp_path / "nowhere/deep/data.npz")
    for there in ("text.txt", "empty"):
        (tmp_path / "text.txt").write_text("hello")
        (tmp_path / "empty").mkdir(exist_ok=True)
        with pytest.raises(DataError, match=rf"{there} is neither a file that can be read"):
            load_trajectories(tmp_path / there)
    with pytest.raises(DataError, match="is a folder, a file is needed"):
        (tmp_path / "folder.npz").mkdir()
        load_trajectories(tmp_path / "folder.npz")
    written = write_minari(load_trajectories(coded_episodes()), "coded/foreign-v0")
    with pytest.raises(DataError, match="belongs to a Minari data set"):
        load_trajectories(Path(written.spec.data_path) / "main_data.hdf5")


def test_a_minari_set_whose_episodes_are_shorter_than_announced_is_refused(minari_root: Path) -> None:
    write_minari(load_trajectories(coded_episodes()), "coded/cut-v0")
    with h5py.File(minari_root / "coded/cut-v0/data/main_data.hdf5", "a") as file:
        file["episode_2"].attrs["total_steps"] = 40_000
    with pytest.raises(DataError, match="episode 2 has 9 steps on reading, its metadata say 40000"):
        load_trajectories("coded/cut-v0")
    description = minari_root / "coded/cut-v0/data/metadata.json"
    with h5py.File(minari_root / "coded/cut-v0/data/main_data.hdf5", "a") as file:
        file["episode_2"].attrs["total_steps"] = 9
    description.write_text(json.dumps(json.loads(description.read_text()) | {"total_steps": 31}))
    with pytest.raises(DataError, match="hold 30 steps, the metadata say 31"):
        load_trajectories("coded/cut-v0")


def test_a_damaged_minari_set_is_named(minari_root: Path) -> None:
    write_minari(load_trajectories(coded_episodes()), "coded/damaged-v0")
    main = minari_root / "coded/damaged-v0/data/main_data.hdf5"
    main.write_bytes(main.read_bytes()[:2000])
    with pytest.raises(DataError, match="damaged"):
        load_trajectories("coded/damaged-v0")


def test_other_objects_are_refused_with_the_list_of_sources() -> None:
    with pytest.raises(DataError, match="cannot read a dataset from int"):
        load_trajectories(3)
    with pytest.raises(ConfigError, match="cache does not apply to data in memory"):
        load_trajectories(coded_episodes(), cache="somewhere")


# Cache and Minari writing ---------------------------------------------


def test_the_cache_is_memory_mapped_and_follows_the_source(tmp_path: Path) -> None:
    path = write_hdf5(tmp_path / "flat.hdf5", flat(coded_episodes()))
    first = load_trajectories(path, cache=tmp_path / "cache")
    again = load_trajectories(path, cache=tmp_path / "cache")
    assert wrong_pairs(first) == wrong_pairs(again) == 0
    assert isinstance(again.observations[""], np.memmap)
    assert len(list((tmp_path / "cache").glob("trajectories-*"))) == 1
    write_hdf5(path, flat(coded_episodes((2, 6, 1))))
    assert wrong_pairs(load_trajectories(path, cache=tmp_path / "cache"), (2, 6, 1)) == 0
    write_minari(load_trajectories(coded_episodes()), "coded/cached-v0")
    for _ in range(2):
        assert wrong_pairs(load_trajectories("coded/cached-v0", cache=tmp_path / "cache")) == 0
    assert len(list((tmp_path / "cache").glob("trajectories-*"))) == 2


@pytest.mark.parametrize("damage", ["truncated", "missing", "description", "flat offsets"])
def test_a_damaged_copy_in_the_cache_is_written_anew(tmp_path: Path, damage: str) -> None:
    path, cache = write_hdf5(tmp_path / "a.hdf5", flat(coded_episodes())), tmp_path / "cache"
    load_trajectories(path, cache=cache)
    (copy,) = cache.glob("trajectories-*")
    match damage:
        case "truncated":
            (copy / "rewards.npy").write_bytes((copy / "rewards.npy").read_bytes()[:100])
        case "missing":
            (copy / "rewards.npy").unlink()
        case "description":
            (copy / "trajectories.json").write_text("{")
        case _:
            np.save(copy / "offsets.npy", 3)
    for _ in range(2):
        assert wrong_pairs(load_trajectories(path, cache=cache)) == 0
    assert sorted(cache.iterdir()) == [cache / ".lock", copy]


def test_what_killed_processes_left_in_a_cache_is_removed_with_the_next_copy(tmp_path: Path) -> None:
    path, cache = write_hdf5(tmp_path / "a.hdf5", flat(coded_episodes())), tmp_path / "cache"
    load_trajectories(path, cache=cache)
    (copy,) = cache.glob("trajectories-*")
    unfinished = [cache / f".{name}.abcdefgh" for name in (copy.name, "trajectories-0123456789abcdef")]
    for folder in unfinished:
        shutil.copytree(copy, folder)
    (copy / "rewards.npy").unlink()
    assert wrong_pairs(load_trajectories(path, cache=cache)) == 0
    assert sorted(cache.iterdir()) == [cache / ".lock", copy]


def test_a_copy_goes_only_when_one_of_its_files_has_changed(tmp_path: Path) -> None:
    cache = tmp_path / "cache"
    one, other = (write_hdf5(tmp_path / name, flat(coded_episodes())) for name in ("a.hdf5", "b.hdf5"))
    load_trajectories(other, cache=cache)
    of_other = set(cache.glob("trajectories-*"))
    opened = load_trajectories(one, cache=cache)
    load_trajectories(one, cache=cache, name="another")
    assert len(set(cache.glob("trajectories-*"))) == 3
    write_hdf5(one, flat(coded_episodes((2, 6, 1))))
    load_trajectories(one, cache=cache)
    assert len(set(cache.glob("trajectories-*"))) == 2 and of_other < set(cache.glob("trajectories-*"))
    assert wrong_pairs(opened) == 0  # who has it open keeps it


def test_processes_that_begin_together_write_one_copy(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    path, cache = write_hdf5(tmp_path / "a.hdf5", flat(coded_episodes())), tmp_path / "cache"
    reads, begun = [], threading.Event()

    def slow(*given: Any, **options: Any) -> Trajectories:
        reads.append(given)
        begun.set()
        time.sleep(0.2)
        return trajectories_from_d4rl(*given, **options)

    monkeypatch.setattr("rltransformers.data.items.trajectories_from_d4rl", slow)
    found: list[Trajectories] = []
    threads = [threading.Thread(target=lambda: found.append(load_trajectories(path, cache=cache))) for _ in range(2)]
    threads[0].start()
    assert begun.wait(10)
    threads[1].start()
    for thread in threads:
        thread.join()
    assert [wrong_pairs(each) for each in found] == [0, 0] and len(reads) == 1


def test_a_cache_that_is_no_folder_is_refused(tmp_path: Path) -> None:
    path = write_hdf5(tmp_path / "a.hdf5", flat(coded_episodes()))
    for cache in (path, path / "below"):
        with pytest.raises(ConfigError, match=r"^cache='.*': .*a\.hdf5 is a file, and a folder is needed"):
            load_trajectories(path, cache=cache)
    with pytest.raises(ConfigError, match="cache must be a text, a path or None"):
        load_trajectories(path, cache=3)  # type: ignore[arg-type]


def test_the_cache_tells_spaces_apart_that_print_alike(tmp_path: Path) -> None:
    path = write_hdf5(tmp_path / "flat.hdf5", flat(coded_episodes()))
    for high in (2e9, 2e9 + 1.0):
        space = spaces.Box(-1e9, np.array([1e9, high]), (2,), np.float64)
        found = load_trajectories(path, observation_space=space, cache=tmp_path / "cache")
        assert found.observation_space == space


def test_an_existing_minari_set_is_replaced_only_when_asked(minari_root: Path) -> None:
    write_minari(load_trajectories(coded_episodes()), "coded/twice-v0", ref_min_score=0.0, ref_max_score=10.0)
    short = load_trajectories(coded_episodes((2,)))
    with pytest.raises(DataError, match="exists"):
        write_minari(short, "coded/twice-v0")
    assert len(load_trajectories("coded/twice-v0")) == 5
    assert load_trajectories("coded/twice-v0").metadata["ref_max_score"] == 10.0
    write_minari(short, "coded/twice-v0", overwrite=True)
    assert len(load_trajectories("coded/twice-v0")) == 1
    with pytest.raises(ConfigError, match="is no Minari id"):
        write_minari(short, "coded/unversioned")
    with pytest.raises(ConfigError, match="both reference scores"):
        write_minari(short, "coded/one-v0", ref_min_score=0.0)


def test_an_interrupted_writing_leaves_nothing(minari_root: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    def interrupt(*_: object) -> io.BytesIO:
        raise KeyboardInterrupt

    monkeypatch.setattr("rltransformers.data.minari._groups", interrupt)
    with pytest.raises(KeyboardInterrupt):
        write_minari(load_trajectories(coded_episodes()), "coded/broken-v0")
    assert [path.name for path in minari_root.iterdir()] == [".coded%broken-v0.lock"]
    shutil.rmtree(minari_root)


def test_data_without_last_observations_are_not_written_as_minari() -> None:
    with pytest.raises(DataError, match="last observations of episodes are unknown"):
        write_minari(load_trajectories(coded_episodes(final=False)), "coded/none-v0")


# Guessed spaces ------------------------------------------------------------

DOUBTFUL = {
    "one integer per row": (np.arange(6)[:, None] % 2, r"Discrete\(2\)"),
    "classes": (np.arange(6) % 2, "no class above 1 occurs"),
    "one-hot integers": (np.eye(3, dtype=int)[np.arange(6) % 3], "one-hot"),
    "one-hot floats": (np.eye(3)[np.arange(6) % 3], "one-hot"),
    "one-hot flags": (np.eye(3, dtype=bool)[np.arange(6) % 3], "one-hot"),
    "bytes": (np.array([[9, 200, 30]] * 6, np.uint8), "may be numbers of Box"),
    "a picture": (np.zeros((6, 2, 2), np.uint8), "bytes of several axes"),
    "several classes": (np.array([[0, 1], [2, 1]] * 3), "no classes above"),
    "no axis": (np.linspace(0, 1, 6), "without an axis"),
    "classes as floats": (np.arange(6.0)[:, None], "small whole numbers"),
    "classes as floats without an axis": (np.arange(6.0), "small whole numbers"),
    "beyond the unit box": (np.full((6, 2), 1.37), "reach 1.37"),
}


def walk(actions: Any) -> dict[str, Any]:
    return {"observations": np.zeros((7, 2)), "actions": actions, "rewards": np.ones(6)}


@pytest.mark.parametrize("kind", DOUBTFUL)
def test_what_speaks_against_a_guessed_space_is_kept_and_said_before_training(kind: str, tmp_path: Path) -> None:
    actions, words = DOUBTFUL[kind]
    data = load_trajectories([walk(actions)])
    assert re.search(words, data.guesses["action_space"])
    opened = Trajectories.open(data.save(tmp_path / "folder"))
    assert opened.guesses == data.guesses == data.select([0]).guesses
    settings: Any = SimpleNamespace(validation=0.0, top_fraction=1.0, delayed_reward=False, critic=None)
    with pytest.warns(UserWarning, match=words):
        data_parts(opened, settings)
    given = load_trajectories([walk(actions)], action_space=data.action_space)
    assert "action_space" not in given.guesses


def test_flags_and_numbers_in_the_unit_box_are_no_doubtful_guess() -> None:
    for actions in (np.arange(6) % 2 == 0, np.linspace(-0.9, 0.9, 12).reshape(6, 2)):
        assert not any(load_trajectories([walk(actions)]).guesses.values())


def test_what_was_guessed_of_all_parts_stays_a_guess_of_what_is_joined_of_them() -> None:
    first, second = (load_trajectories([walk(np.arange(6) % 2 == 0)]) for _ in range(2))
    joined = Trajectories.concatenate([first, second])
    assert joined.guesses == first.guesses == {"observation_space": "", "action_space": ""}
    with pytest.raises(DataError, match="it was guessed: load the source again with action_space"):
        load_trajectories(joined, action_space=spaces.MultiDiscrete([2, 2]))
    known = load_trajectories([walk(np.arange(6) % 2 == 0)], action_space=first.action_space)
    assert list(Trajectories.concatenate([first, known]).guesses) == ["observation_space"]


@pytest.mark.parametrize("kind", ["rewards", "observations", "actions"])
def test_a_number_that_hides_all_others_is_refused(kind: str) -> None:
    episode = walk(np.linspace(-0.9, 0.9, 12).reshape(6, 2))
    episode[kind] = np.where(episode[kind] == episode[kind].flat[0], 2.0**62, episode[kind])
    with pytest.raises(DataError, match=f"{kind}.*float32 tells no others apart"):
        load_trajectories([episode])


def test_text_among_observations_names_the_leaves_to_keep(tmp_path: Path) -> None:
    episode = walk(np.zeros((6, 1)))
    told = np.array(["go"] * 7)
    episode["observations"] = {"seen": np.zeros((7, 2)), "told": told}
    space = spaces.Dict({"seen": spaces.Box(-1, 1, (2,)), "told": spaces.Text(4)})
    options: list[dict[str, Any]] = [{}, {"observation_space": space}]
    for given in options:
        with pytest.raises(DataError if not given else ConfigError, match=r"observation_leaves="):
            load_trajectories([episode], **given)
        assert load_trajectories([episode], observation_leaves=["seen"], **given).steps == 6
    arrays: dict[str, Any] = {"observations/seen": np.zeros((6, 2)), "observations/told": told[:6]}
    arrays |= {"actions": np.zeros((6, 1)), "rewards": np.ones(6), "terminals": np.arange(6) == 5}
    np.savez(tmp_path / "a.npz", **arrays)
    assert load_trajectories(tmp_path / "a.npz", observation_leaves=["seen"]).steps == 6


@pytest.mark.parametrize("version", ["v99999999999999999999", "v1000000"])
def test_absurd_versions_of_minari_ids_are_refused(version: str) -> None:
    with pytest.raises(ConfigError, match="beyond 999,999"):
        write_minari(load_trajectories(coded_episodes((2,))), f"data-{version}")


def test_a_version_of_a_minari_id_is_written_without_zeros_in_front() -> None:
    """Minari reads v007 as 7 and finds the set under neither name."""
    with pytest.raises(ConfigError, match="its version is written v7"):
        write_minari(load_trajectories(coded_episodes((2,))), "data-v007")
