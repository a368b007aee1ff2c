"""Files that other libraries write give the episodes that were put into them; what is wrong names the line to write."""

import json
import pickle
import re
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

import h5py
import numpy as np
import numpy.typing as npt
import pytest
from gymnasium import spaces

from rltransformers.core.errors import ConfigError, DataError
from rltransformers.data import Trajectories, load_trajectories
from tests.data.coded import LENGTHS, coded_episodes, flat, write_arrays, wrong_pairs

ENDS = [False, True, False, True, False]  # which of the coded episodes are terminated


def check(data: Trajectories, final: bool = False) -> None:
    """The coded episodes, with the ends that they have."""
    if "state" in data.observations:
        assert isinstance(data.observation_space, spaces.Dict)
        data = replace(
            data, observations={"": data.observations["state"]}, observation_space=data.observation_space["state"]
        )
    assert wrong_pairs(data) == 0 and data.final_observations == final
    last = data.offsets[1:] - 1
    assert data.terminations[last].tolist() == ENDS and data.truncations[last].tolist() == [not end for end in ENDS]


# Demonstrations --------------------------------------------------------


def write_demos(path: Path, *, next_obs: bool = True, **changes: Any) -> Path:
    """The coded episodes as robomimic's demonstrations 0, 2, 9, 10 and 11, each with ``changes``; None leaves out."""
    with h5py.File(path, "w") as file:
        data = file.create_group("data")
        data.attrs["env_args"] = json.dumps({"env_name": "Lift", "type": 1, "env_kwargs": {"horizon": 400}})
        for number, episode, end in zip([0, 2, 9, 10, 11], coded_episodes(), ENDS, strict=True):
            demo, rows, length = data.create_group(f"demo_{number}"), episode["observations"], len(episode["rewards"])
            demo.attrs["num_samples"] = length
            dones = np.arange(length) < length // 2  # a success on the way ends nothing
            dones[-1] = end
            arrays = {"actions": episode["actions"], "rewards": episode["rewards"], "dones": dones.astype(np.int64)}
            arrays |= {"obs/state": rows[:-1], "obs/image": np.zeros((length, 4, 5, 3), np.uint8)}
            if next_obs:
                arrays |= {"next_obs/state": rows[1:], "next_obs/image": arrays["obs/image"]}
            arrays |= {"states": np.zeros((length, 71)), "action_dict/abs_pos": np.zeros((length, 3))}
            for key, value in (arrays | changes).items():
                if value is not None:
                    demo[key] = value
        file["mask/train"] = np.array([b"demo_11", b"demo_2"])
    return path


@pytest.mark.parametrize("next_obs", [True, False])
def test_demonstrations_of_robomimic_are_read_in_the_order_of_their_numbers(tmp_path: Path, next_obs: bool) -> None:
    path = write_demos(tmp_path / "low_dim.hdf5", next_obs=next_obs)
    data = load_trajectories(path)
    check(data, next_obs)
    assert data.observation_space["image"] == spaces.Box(0, 255, (4, 5, 3), np.uint8)  # type: ignore[index]
    assert data.metadata["format"] == "robomimic" and data.metadata["env_args"]["env_kwargs"] == {"horizon": 400}
    assert data.select(data.metadata["mask"]["train"]).lengths.tolist() == [LENGTHS[4], LENGTHS[1]]
    chosen = load_trajectories(path, observation_leaves=["state"], cache=tmp_path / "cache")
    check(chosen, next_obs)
    assert list(chosen.observations) == ["state"]


def test_demonstrations_of_maniskill_have_one_observation_more(tmp_path: Path) -> None:
    path = tmp_path / "trajectory.h5"
    with h5py.File(path, "w") as file:
        for index, episode in enumerate(coded_episodes()):
            keys = {"obs/state": "observations", "actions": "actions", "rewards": "rewards"}
            keys |= {"terminated": "terminations", "truncated": "truncations", "success": "terminations"}
            for key, ours in keys.items():
                file[f"traj_{index}/{key}"] = episode[ours]
    check(load_trajectories(path), final=True)


def test_demonstrations_without_rewards_are_for_cloning_and_say_so(tmp_path: Path) -> None:
    path = write_demos(tmp_path / "isaac.hdf5", rewards=None, dones=None)
    with pytest.warns(UserWarning, match="isaac: has no rewards, so no return can be asked for; clone"):
        data = load_trajectories(path)
    assert not data.has_rewards and data.truncations[data.offsets[1:] - 1].all()


@pytest.mark.parametrize(
    ("changes", "message"),
    [
        ({"obs/state": None, "obs/image": None}, r"demo_0 has no observations \('obs'\).*dataset_states_to_obs.py"),
        ({"actions": None}, "demo_0 has no array 'actions'"),
        ({"actions": np.zeros((2, 1))}, "demo_0 states 5 samples and holds 2 actions; it is incomplete"),
        ({"obs/state": np.zeros((7, 2))}, r"observations\['state'\] of episode 0 has 7 rows for 5 steps; 5 or 6 fit"),
    ],
)
def test_a_fault_of_a_demonstration_is_named(tmp_path: Path, changes: dict[str, Any], message: str) -> None:
    changes = {"next_obs/state": None, "next_obs/image": None} | changes
    path = write_demos(tmp_path / "demo.hdf5", next_obs=False, **changes)
    with pytest.raises(DataError, match=message):
        load_trajectories(path)


# d3rlpy ----------------------------------------------------------------


def write_dump(path: Path, episodes: list[dict[str, Any]], stated: int | None = None) -> Path:
    """As ``ReplayBuffer.dump`` of d3rlpy 2 writes them."""
    with h5py.File(path, "w") as file:
        file["columns"] = ["observations", "actions", "rewards", "terminated"]
        file["num_episodes"] = len(episodes) if stated is None else stated
        file["version"] = "2.1"
        for index, episode in enumerate(episodes):
            observations = episode["observations"]
            if isinstance(observations, tuple):
                for member, rows in enumerate(observations):
                    file[f"observations_{index}_{member}"] = rows
            else:
                file[f"observations_{index}"] = observations
            file[f"actions_{index}"] = episode["actions"]
            file[f"rewards_{index}"] = episode["rewards"][:, None]
            file[f"terminated_{index}"] = bool(episode["terminations"][-1])
    return path


def test_a_dump_of_d3rlpy_2_is_read(tmp_path: Path) -> None:
    episodes = coded_episodes(final=False) * 3  # more than ten: observations_10 follows observations_9
    data = load_trajectories(write_dump(tmp_path / "buffer.h5", episodes))
    for part in range(3):
        check(data.select(range(5 * part, 5 * part + 5)))
    assert data.metadata["format"] == "d3rlpy"


def test_classes_and_tuples_of_d3rlpy_are_read_as_such(tmp_path: Path) -> None:
    episodes = coded_episodes(final=False)
    for episode in episodes:
        rows = episode["observations"]
        episode["observations"] = (rows, np.zeros((len(rows), 1, 4, 4), np.uint8))
        episode["actions"] = (np.arange(len(rows)) % 3)[:, None].astype(np.int32)
    data = load_trajectories(write_dump(tmp_path / "buffer.h5", episodes))
    assert data.action_space == spaces.Discrete(3) and list(data.observations) == ["0", "1"]
    np.testing.assert_array_equal(data.episode(4).actions[""], np.arange(12) % 3)


def test_a_dump_that_lacks_episodes_is_refused(tmp_path: Path) -> None:
    path = write_dump(tmp_path / "buffer.h5", coded_episodes(final=False), stated=6)
    with pytest.raises(DataError, match="states 6 episodes and holds 5; dump the buffer again"):
        load_trajectories(path)


@pytest.mark.parametrize("discrete", [False, True])
def test_a_dump_of_d3rlpy_1_is_read(tmp_path: Path, discrete: bool) -> None:
    arrays = flat(coded_episodes(), next_observations=False)
    ends = arrays["terminals"] | arrays.pop("timeouts")
    with h5py.File(tmp_path / "dataset.h5", "w") as file:
        for key, value in arrays.items():
            file[key] = value.astype(np.float32)
        if discrete:
            del file["actions"]
            file["actions"] = (np.arange(len(ends)) % 4).astype(np.int32)
        file["episode_terminals"], file["discrete_action"] = ends.astype(np.float32), discrete
        file["version"], file["create_mask"], file["mask_size"] = "1.0", False, 1
    data = load_trajectories(tmp_path / "dataset.h5")
    if discrete:
        assert data.action_space == spaces.Discrete(4) and data.terminations[data.offsets[1:] - 1].tolist() == ENDS
    else:
        check(data)
    with h5py.File(tmp_path / "dataset.h5", "a") as file:
        del file["rewards"]
    with pytest.raises(DataError, match=r"a dump of d3rlpy holds .*, this one lacks \['rewards'\]"):
        load_trajectories(tmp_path / "dataset.h5")


@pytest.mark.third_party
def test_what_d3rlpy_dumps_is_read(tmp_path: Path) -> None:
    d3rlpy = pytest.importorskip("d3rlpy")
    episodes = [
        d3rlpy.dataset.Episode(
            episode["observations"], episode["actions"], episode["rewards"][:, None], bool(episode["terminations"][-1])
        )
        for episode in coded_episodes(final=False)
    ]
    buffer = d3rlpy.dataset.create_infinite_replay_buffer(episodes)
    with (tmp_path / "buffer.h5").open("w+b") as file:
        buffer.dump(file)
    check(load_trajectories(tmp_path / "buffer.h5"))
    check(load_trajectories(buffer.episodes))  # in memory, too
    check(load_trajectories(buffer))


# Pickles and objects ---------------------------------------------------


def test_pickles_of_the_authors_of_the_decision_transformer_are_read_with_trust(tmp_path: Path) -> None:
    path = tmp_path / "hopper-medium-v2.pkl"
    episodes = [
        {
            "observations": episode["observations"][:-1],
            "next_observations": episode["observations"][1:],
            "actions": episode["actions"],
            "rewards": episode["rewards"],
            "terminals": episode["terminations"],
        }
        for episode in coded_episodes()
    ]
    path.write_bytes(pickle.dumps(episodes))
    with pytest.raises(ConfigError, match=r"hopper-medium-v2.pkl is a pickle, .* pass trust=True"):
        load_trajectories(path)
    data = load_trajectories(path, trust=True)
    check(data, final=True)
    assert data.name == "hopper-medium-v2"
    path.write_bytes(pickle.dumps(flat(coded_episodes())))
    check(load_trajectories(path, trust=True), final=True)
    for content, kind in ((7, "int"), ("hopper-medium-v2", "str")):
        path.write_bytes(pickle.dumps(content))
        with pytest.raises(DataError, match=f"holds {kind}, not a replay buffer, a list of episodes or a dict"):
            load_trajectories(path, trust=True)


class DictObs:
    """As imitation keeps observations of a Dict space."""

    def __init__(self, arrays: dict[str, npt.NDArray[np.float32]]) -> None:
        self.arrays = arrays

    def unwrap(self) -> dict[str, npt.NDArray[np.float32]]:
        return self.arrays


@dataclass
class TrajectoryWithRew:
    """As imitation defines it, field by field."""

    obs: Any
    acts: npt.NDArray[np.float32]
    infos: Any
    terminal: bool
    rews: npt.NDArray[np.float32] | None = None

    def __len__(self) -> int:
        return len(self.acts)


@pytest.mark.parametrize("nested", [False, True])
def test_trajectories_of_imitation_are_read(nested: bool) -> None:
    made = [
        TrajectoryWithRew(
            DictObs({"state": episode["observations"]}) if nested else episode["observations"],
            episode["actions"],
            np.array([{}] * len(episode["rewards"])),
            bool(episode["terminations"][-1]),
            episode["rewards"],
        )
        for episode in coded_episodes()
    ]
    check(load_trajectories(made), final=True)
    with pytest.raises(DataError, match="episode 0 is int, expected a dict of arrays"):
        load_trajectories([7])


# OGBench ---------------------------------------------------------------


def recordings() -> dict[str, Any]:
    """The coded episodes as OGBench records them: the last row of each holds its last observation."""
    episodes = coded_episodes()
    ends = [np.arange(length + 1) == length for length in LENGTHS]
    return {
        "observations": np.concatenate([episode["observations"] for episode in episodes]),
        "actions": np.concatenate([np.append(episode["actions"], [[9]], axis=0) for episode in episodes]) / 10,
        "terminals": np.concatenate(ends),
        "qpos": np.zeros((sum(LENGTHS) + len(LENGTHS), 15), np.float32),
    }


@pytest.mark.parametrize("name", ["cube-single-play-v0.npz", "cube-single-play-v0-val.npz"])
def test_a_file_of_ogbench_is_read_by_its_path(tmp_path: Path, name: str) -> None:
    np.savez_compressed(tmp_path / name, **recordings())
    task = re.escape(name.replace("-v0", "-singletask-task1-v0"))
    said = f"holds no rewards, so it is read as data of OGBench: .* ends in '{task}'"
    with pytest.warns(UserWarning, match=said), pytest.warns(UserWarning, match="has no rewards, so no return"):
        data = load_trajectories(tmp_path / name)
    assert data.lengths.tolist() == list(LENGTHS) and data.final_observations and not data.has_rewards
    for index, episode in enumerate(coded_episodes()):
        np.testing.assert_array_equal(data.episode(index).observations[""], episode["observations"])
        np.testing.assert_array_equal(data.episode(index).actions[""], episode["actions"] / np.float32(10))
    assert data.truncations.sum() == len(LENGTHS) and not data.terminations.any()


def test_files_of_ogbench_without_a_transition_are_refused(tmp_path: Path) -> None:
    arrays = {key: rows[:1] for key, rows in recordings().items()}
    np.savez(tmp_path / "cube-single-play-v0.npz", **arrays)
    with pytest.warns(UserWarning, match="read as data of OGBench"), pytest.raises(DataError, match="no transition"):
        load_trajectories(tmp_path / "cube-single-play-v0.npz")


# Without rewards, without ends -----------------------------------------


def without_rewards(form: str, folder: Path) -> Any:
    """The coded episodes as somebody recorded demonstrations: no rewards anywhere."""
    episodes = [{key: episode[key] for key in episode if key != "rewards"} for episode in coded_episodes()]
    arrays = {key: values for key, values in flat(coded_episodes()).items() if key != "rewards"}
    if form == "imitation":
        return [
            TrajectoryWithRew(each["observations"], each["actions"], None, each["terminations"][-1])
            for each in episodes
        ]
    if form in ("npz", "hdf5"):
        return write_arrays(form, folder, arrays)
    if form == "table":
        pa = pytest.importorskip("pyarrow")
        return pa.Table.from_pylist([{key: values.tolist() for key, values in each.items()} for each in episodes])
    if form == "frame":
        return pytest.importorskip("pandas").DataFrame({key: list(values) for key, values in arrays.items()})
    return episodes if form == "episodes" else arrays


@pytest.mark.parametrize("form", ["imitation", "npz", "hdf5", "table", "frame", "episodes", "dict"])
def test_demonstrations_without_rewards_are_for_cloning(form: str, tmp_path: Path) -> None:
    with pytest.warns(UserWarning, match=r"has no rewards, .*; clone these data with mode='bc'"):
        data = load_trajectories(without_rewards(form, tmp_path))
    assert not data.has_rewards and not data.rewards.any()
    rewards = load_trajectories(coded_episodes()).rewards
    check(replace(data, rewards=rewards), final=True)


def test_a_file_of_one_episode_says_so_by_its_limit(tmp_path: Path) -> None:
    (episode,) = coded_episodes((9,), final=False)
    arrays = {key: episode[key] for key in ("observations", "actions", "rewards")}
    np.savez(tmp_path / "episode_0.npz", **arrays)
    with pytest.raises(DataError, match=r"'terminals' is missing.*cut the 9 rows, or time_limit=9 where they are one"):
        load_trajectories(tmp_path / "episode_0.npz")
    for limit, lengths in ((9, [9]), (100, [9]), (4, [4, 4, 1])):
        data = load_trajectories(tmp_path / "episode_0.npz", time_limit=limit)
        assert data.lengths.tolist() == lengths and data.truncations.sum() == len(lengths)
    with pytest.raises(DataError, match=r"files are joined by Trajectories.concatenate\(map\(load_trajectories, files"):
        load_trajectories([str(tmp_path / "episode_0.npz")])


def test_episodes_may_have_names(tmp_path: Path) -> None:
    episodes = {f"run_{number}": episode for number, episode in enumerate(coded_episodes())}
    check(load_trajectories(episodes), final=True)
    with h5py.File(tmp_path / "log.hdf5", "w") as file:
        for name, episode in episodes.items():
            for key, values in episode.items():
                file[f"{name}/{key}"] = values
    check(load_trajectories(tmp_path / "log.hdf5"), final=True)


def test_columns_say_what_a_pickle_holds(tmp_path: Path) -> None:
    arrays = flat(coded_episodes())
    named = {"X": arrays["observations"], "U": arrays["actions"], "R": arrays["rewards"], "D": arrays["terminals"]}
    (tmp_path / "log.pkl").write_bytes(pickle.dumps(named | {"timeouts": arrays["timeouts"]}))
    columns = {"observations": "X", "actions": "U", "rewards": "R", "terminations": "D"}
    check(load_trajectories(tmp_path / "log.pkl", columns=columns, trust=True))
    (tmp_path / "log.pkl").write_bytes(pickle.dumps(load_trajectories(coded_episodes())))
    with pytest.raises(ConfigError, match="columns applies to tables and lists of steps, and Trajectories is none"):
        load_trajectories(tmp_path / "log.pkl", columns=columns, trust=True)
