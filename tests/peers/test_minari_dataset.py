"""What Minari asks of its data sets, of ours: its tests of ``dataset``, with our writer and our reader.

Where the same behaviors are tests of ours already: tests/data/test_load.py.
"""

import json
import warnings
from pathlib import Path
from typing import Any

import gymnasium as gym
import numpy as np
import pytest
from gymnasium import spaces

from rltransformers.core.errors import DataError
from rltransformers.data import Trajectories, load_trajectories, record, write_minari
from tests.data.coded import LENGTHS, coded_episodes, wrong_pairs

minari = pytest.importorskip("minari")
from minari.data_collector import EpisodeBuffer  # noqa: E402  # where Minari is not installed, nothing here runs
from minari.utils import combine_datasets  # noqa: E402

FORMATS = ["hdf5", "arrow", "parquet"]
without_author = pytest.mark.filterwarnings("ignore::UserWarning")  # of Minari, about facts that nobody gave


@pytest.fixture(autouse=True)
def a_folder_of_its_own(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("MINARI_DATASETS_PATH", str(tmp_path))


def buffers(episodes: list[dict[str, Any]]) -> list[Any]:
    """New episodes with a seed and options, as Minari's collector stores them."""
    return [EpisodeBuffer(None, index, {"level": index}, **episode) for index, episode in enumerate(episodes)]


def coded_spaces() -> dict[str, gym.Space[Any]]:
    data = load_trajectories(coded_episodes())
    return {"observation_space": data.observation_space, "action_space": data.action_space}


def cart_pole(episodes: int, limit: int | None = None, seed: int = 0) -> Trajectories:
    return record(gym.make("CartPole-v1", max_episode_steps=limit), "random", episodes=episodes, seed=seed)


@without_author
@pytest.mark.parametrize("data_format", FORMATS)
def test_what_minari_writes_in_any_format_is_read_step_by_step(data_format: str) -> None:
    if data_format != "hdf5":
        pytest.importorskip("pyarrow")
    episodes = buffers(coded_episodes())
    written = minari.create_dataset_from_buffers("coded/told-v0", episodes, data_format=data_format, **coded_spaces())
    written.storage.update_episode_metadata([{"note": "mine"}], episode_indices=[2])
    assert wrong_pairs(load_trajectories("coded/told-v0")) == 0


@without_author
@pytest.mark.parametrize("compressed", [True, False])
def test_pictures_are_read_exactly_where_they_were_stored_so(compressed: bool) -> None:
    space = spaces.Box(0, 255, (64, 64, 3), np.uint8)
    pictures = np.random.default_rng(0).integers(0, 256, (4, *space.shape), np.uint8)
    episode = {"observations": pictures, "actions": [0, 1, 1], "rewards": [0.0, 1.0, 2.0]}
    ends = {"terminations": [False, False, True], "truncations": [False] * 3}
    places = {"observation_space": space, "action_space": spaces.Discrete(2), "jpeg_encoding": compressed}
    minari.create_dataset_from_buffers("pictures/four-v0", buffers([episode | ends]), **places)
    read = load_trajectories("pictures/four-v0").episode(0).observations[""]
    assert read.shape == pictures.shape and read.dtype == np.uint8
    assert np.array_equal(read, pictures) is not compressed


def test_a_chosen_part_of_a_set_grows_apart_from_the_rest() -> None:
    written = write_minari(load_trajectories(coded_episodes()), "coded/part-v0")
    part = written.filter_episodes(lambda episode: int(episode.id) in (0, 3))
    first = coded_episodes()[0]
    part.update_dataset_from_buffer(buffers([first, first]))
    assert tuple(load_trajectories(part).lengths) == (LENGTHS[0], LENGTHS[3], LENGTHS[0], LENGTHS[0])
    assert tuple(load_trajectories("coded/part-v0").lengths) == (*LENGTHS, LENGTHS[0], LENGTHS[0])


def test_minari_walks_through_our_sets_as_through_its_own() -> None:
    written = write_minari(load_trajectories(coded_episodes()), "coded/walk-v0")
    assert [episode.id for episode in written] == [written[index].id for index in range(5)] == list(range(5))
    assert {episode.id for episode in written.iterate_episodes([1, 3])} == {1, 3}
    assert [len(list(written.sample_episodes(count))) for count in (1, 5)] == [1, 5]
    with pytest.raises(ValueError, match="sample"):
        written.sample_episodes(6)
    totals = list(written.storage.apply(lambda episode: float(np.sum(episode["rewards"])), episode_indices=[0, 4]))
    assert totals == [sum(episode["rewards"]) for episode in (coded_episodes()[0], coded_episodes()[4])]


def test_facts_about_a_set_are_kept_and_its_size_is_told() -> None:
    facts: dict[str, Any] = {
        "algorithm_name": "random",
        "author": "me",
        "code_permalink": "https://here",
        "description": "steps",
    }
    written = write_minari(cart_pole(2), "space_1/inner/cart-pole/deep-v3", **facts)
    metadata = minari.load_dataset("space_1/inner/cart-pole/deep-v3").storage.metadata
    assert {name: metadata[name] for name in facts} == facts | {"author": {"me"}}
    assert metadata["dataset_size"] == written.storage.get_size()
    assert (written.spec.namespace, written.spec.dataset_name, written.spec.version) == (
        "space_1/inner/cart-pole",
        "deep",
        3,
    )


def test_a_set_is_listed_until_it_is_deleted() -> None:
    write_minari(cart_pole(1), "peers/short-v0")
    assert "peers/short-v0" in minari.list_local_datasets()
    minari.delete_dataset("peers/short-v0")
    with pytest.raises(DataError, match="peers/short-v0"):
        load_trajectories("peers/short-v0")


def test_data_are_read_where_their_environment_is_not_installed() -> None:
    written = write_minari(cart_pole(2), "peers/gone-v0")
    file = Path(written.storage.data_path) / "metadata.json"
    metadata = json.loads(file.read_text())
    spec = json.loads(metadata["env_spec"]) | {"id": "Gone-v0", "entry_point": "gone_module:Gone"}
    metadata |= {"env_spec": json.dumps(spec), "requirements": ["no<requirement@@3.2", "minari<0.0.1"]}
    file.write_text(json.dumps(metadata))
    with warnings.catch_warnings():
        warnings.simplefilter("error")
        data = load_trajectories("peers/gone-v0")
    assert data.env_id == "Gone-v0" and len(data) == 2
    with pytest.warns(UserWarning), pytest.raises(ModuleNotFoundError, match="gone_module"):
        minari.load_dataset("peers/gone-v0").recover_environment()


@without_author
def test_a_set_of_sets_holds_the_episodes_of_all_in_order() -> None:
    parts = [cart_pole(3, limit, seed) for seed, limit in enumerate((5, 3, 7))]
    written = [write_minari(part, f"peers/part{index}-v0") for index, part in enumerate(parts)]
    combined = combine_datasets(written, new_dataset_id="peers/all-v0")
    data = load_trajectories("peers/all-v0")
    assert len(data) == combined.spec.total_episodes == 9
    np.testing.assert_array_equal(data.observations[""], np.concatenate([part.observations[""] for part in parts]))
    np.testing.assert_array_equal(data.lengths, np.concatenate([part.lengths for part in parts]))
    assert json.loads(str(data.env_spec))["max_episode_steps"] == 7
