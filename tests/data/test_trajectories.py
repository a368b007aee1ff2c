"""Returns, selections, statistics and the memory-mapped folder of trajectories."""

import copy
import json
import re
import tracemalloc
import zlib
from collections.abc import Callable, Iterator
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from gymnasium import spaces

from rltransformers.core.errors import ConfigError, DataError
from rltransformers.data import Trajectories, load_trajectories, trajectories
from rltransformers.data.spaces import CHUNK_BYTES, CHUNK_ROWS, chunks, infer_space
from rltransformers.data.trajectories import discounted_sums, join_trajectories
from tests.data.coded import LENGTHS, coded_episodes, wrong_pairs


@pytest.fixture
def data() -> Trajectories:
    return load_trajectories(coded_episodes())


def random_data(lengths: list[int], seed: int = 0) -> Trajectories:
    rng = np.random.default_rng(seed)
    episodes = coded_episodes(tuple(lengths))
    for episode in episodes:
        episode["rewards"] = rng.normal(size=len(episode["rewards"])).astype(np.float32)
    return load_trajectories(episodes)


# Few long episodes and many short ones take different paths through the code.
@pytest.mark.parametrize("long", [10, 100], ids=["long", "short"])
@pytest.mark.parametrize("lengths", [[40, 7, 23], [1, 2, 3, 1, 5, 2, 2, 1, 4]], ids=["few", "many"])
@pytest.mark.parametrize("discount", [1.0, 0.9, 0.0])
def test_return_to_go_is_the_discounted_sum_of_what_is_still_to_come(
    lengths: list[int], discount: float, long: int, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(trajectories, "LONG", long)
    data = random_data(lengths)
    result = data.return_to_go(discount)
    for index in range(len(data)):
        rewards = data.episode(index).rewards.astype(np.float64)
        by_hand = [sum(discount**k * rewards[t + k] for k in range(len(rewards) - t)) for t in range(len(rewards))]
        got = result[data.offsets[index] : data.offsets[index + 1]]
        np.testing.assert_allclose(got, by_hand, rtol=1e-6, atol=1e-6)  # float32 of sums made in float64
        steps = got - discount * np.append(got[1:], 0.0)
        np.testing.assert_allclose(steps, rewards, atol=2e-6)  # R_t - discount R_{t+1} = r_t up to float32 rounding


def test_a_long_episode_among_many_short_ones_costs_its_own_steps_alone() -> None:
    class Counted(np.ndarray[Any, Any]):
        negations = 0

        def __neg__(self) -> Any:
            Counted.negations += 1
            return super().__neg__()

    offsets = np.concatenate([[0], np.cumsum(np.append(np.full(500, 2), 400))]).view(Counted)
    result = discounted_sums(np.ones(1400), offsets, 1.0)
    assert result[1000] == 400 and Counted.negations == 1  # of all lengths; not again in each of the 400 steps


def test_a_long_episode_loses_no_small_rewards() -> None:
    rewards = np.full(200_000, 0.1, np.float32)
    data = load_trajectories(
        [{"observations": np.zeros((200_000, 1)), "actions": np.zeros((200_000, 1)), "rewards": rewards}]
    )
    assert data.return_to_go()[0] == pytest.approx(200_000 * float(np.float32(0.1)), rel=1e-7)
    assert data.returns[0] == pytest.approx(200_000 * float(np.float32(0.1)), rel=1e-9)


def test_a_discount_outside_the_unit_interval_is_refused(data: Trajectories) -> None:
    with pytest.raises(ConfigError, match=r"1\.5"):
        data.return_to_go(1.5)


def test_selected_episodes_keep_their_pairs_and_order(data: Trajectories) -> None:
    selected = data.select([4, 0])
    assert list(selected.lengths) == [12, 5]
    np.testing.assert_array_equal(selected.episode(0).observations[""][:, 0], 4000 + np.arange(13))
    np.testing.assert_array_equal(selected.episode(1).observations[""][:, 0], np.arange(6))
    np.testing.assert_array_equal(selected.episode(-1).actions[""][:, 0], np.arange(5, dtype=np.float32) / 10_000)
    with pytest.raises(DataError, match="no episode is left"):
        data.select([])
    with pytest.raises(DataError, match=r"0\.\.4 exist"):
        data.select([5])


def test_a_mask_selects_the_episodes_where_it_is_true(data: Trajectories) -> None:
    mask = np.isin(np.arange(len(data)), [1, 3])
    for given in (mask, mask.tolist()):
        assert data.select(given).fingerprint() == data.select([1, 3]).fingerprint()
    with pytest.raises(DataError, match="no episode is left"):
        data.select(data.returns > np.inf)


@pytest.mark.parametrize("given", [[True, False], [0.7, 1.2], [1.0], ["a"], [[0], [0, 1]], [None], "1", True, [2**70]])
def test_episodes_are_selected_by_whole_numbers_or_a_mask(data: Trajectories, given: object) -> None:
    with pytest.raises(DataError, match=r"selected by whole numbers, or by one boolean for each of the 5; got .+"):
        data.select(given)  # type: ignore[arg-type]


def test_the_top_fraction_holds_the_best_episodes_up_to_that_share_of_the_steps(data: Trajectories) -> None:
    assert list(data.returns) == [15.0, 11.0, 225.0, 96.0, 558.0]
    assert list(data.lengths) == [5, 1, 9, 3, 12]  # best first: 12, 21, 24, 29, 30 of 30 steps
    for fraction, returns in (
        (0.4, [558.0]),
        (0.69, [558.0]),
        (0.7, [225.0, 558.0]),
        (0.8, [225.0, 96.0, 558.0]),
        (0.01, [558.0]),  # the best episode, even where it holds more than its share
    ):
        assert list(data.top_fraction(fraction).returns) == returns, fraction
    assert wrong_pairs(data.top_fraction(1.0)) == 0
    for fraction in (0.0, 1.1):
        with pytest.raises(ConfigError, match=r"top_fraction must be a finite number in \(0, 1\], got"):
            data.top_fraction(fraction)


def test_a_tenth_of_the_steps_is_not_a_tenth_of_the_episodes_where_good_episodes_are_long() -> None:
    data = random_data([10] * 90 + [100] * 10)  # 1,900 steps
    data = replace(data, rewards=np.ones_like(data.rewards))  # the return is the length
    kept = data.top_fraction(0.1)
    assert kept.steps == 100 and len(kept) == 1  # of the episodes it would be ten of 1,000 steps


def test_seven_hundredths_of_a_hundred_equal_episodes_are_seven() -> None:
    assert 0.07 * 100 > 7  # in floats
    assert len(random_data([1] * 100).top_fraction(0.07)) == 7
    assert 0.29 * 100 < 29
    assert len(random_data([1] * 100).top_fraction(0.29)) == 29


def test_delayed_rewards_keep_the_returns(data: Trajectories) -> None:
    delayed = data.delayed_rewards()
    np.testing.assert_array_equal(delayed.returns, data.returns)
    assert np.count_nonzero(delayed.rewards) == len(data)
    assert delayed.return_to_go()[0] == data.returns[0] == delayed.return_to_go()[4]


def test_statistics_cover_the_observations_that_saw_an_action(data: Trajectories) -> None:
    mean, deviation = data.observation_statistics()
    acted = np.concatenate([data.episode(index).observations[""][:-1] for index in range(len(data))]).astype(np.float64)
    np.testing.assert_allclose(mean[""], acted.mean(axis=0), rtol=1e-6)
    np.testing.assert_allclose(deviation[""], acted.std(axis=0), rtol=1e-6)
    without = load_trajectories(coded_episodes(final=False)).observation_statistics()
    np.testing.assert_array_equal(without[0][""], mean[""])  # the filler rows are not counted


def test_statistics_skip_classes_and_bytes() -> None:
    episode = {"observations": {"image": np.zeros((2, 4, 5), np.uint8), "at": [0, 1], "speed": [0.5, 1.5]}}
    mean, _ = load_trajectories([episode | {"actions": [0, 1], "rewards": [0, 0]}]).observation_statistics()
    assert {path: float(value) for path, value in mean.items()} == {"speed": 1.0}


def test_a_saved_folder_opens_memory_mapped_and_equal(data: Trajectories, tmp_path: Path) -> None:
    data = replace(data, env_id="CartPole-v1", metadata={"note": [1, "two"]})
    opened = Trajectories.open(data.save(tmp_path / "a" / "folder"))
    assert wrong_pairs(opened) == 0
    assert isinstance(opened.observations[""], np.memmap) and isinstance(opened.rewards, np.memmap)
    assert opened.observation_space == data.observation_space and opened.action_space == data.action_space
    assert (opened.name, opened.env_id, dict(opened.metadata)) == (data.name, "CartPole-v1", {"note": [1, "two"]})
    np.testing.assert_array_equal(opened.return_to_go(), data.return_to_go())
    assert type(Trajectories.open(tmp_path / "a" / "folder", mmap=False).rewards) is np.ndarray


def test_changing_opened_arrays_leaves_the_files_alone(data: Trajectories, tmp_path: Path) -> None:
    folder = data.save(tmp_path / "folder")
    Trajectories.open(folder).rewards[:] = 7.0
    np.testing.assert_array_equal(Trajectories.open(folder).rewards, data.rewards)


def test_saving_twice_needs_permission_and_never_touches_other_folders(data: Trajectories, tmp_path: Path) -> None:
    data.save(tmp_path / "folder")
    with pytest.raises(DataError, match="overwrite=True"):
        data.save(tmp_path / "folder")
    data.select([1]).save(tmp_path / "folder", overwrite=True)
    assert len(Trajectories.open(tmp_path / "folder")) == 1
    (tmp_path / "other").mkdir()
    with pytest.raises(DataError, match="not overwritten"):
        data.save(tmp_path / "other", overwrite=True)


def test_an_interrupted_save_leaves_the_old_folder(
    data: Trajectories, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    data.save(tmp_path / "folder")

    def fail(*_: object) -> None:
        raise KeyboardInterrupt

    monkeypatch.setattr("rltransformers.data.folders._describe", fail)
    with pytest.raises(KeyboardInterrupt):
        data.select([1]).save(tmp_path / "folder", overwrite=True)
    assert [path.name for path in tmp_path.iterdir()] == ["folder"]
    assert wrong_pairs(Trajectories.open(tmp_path / "folder")) == 0


@pytest.mark.parametrize(
    "damage",
    [
        "truncated",
        "missing",
        "pickled",
        "foreign",
        "version 99",
        "a key",
        "a byte",
        "no description",
    ],
)
def test_a_damaged_folder_is_named(data: Trajectories, tmp_path: Path, damage: str) -> None:
    folder = data.save(tmp_path / "folder")
    array, description = folder / "observations.0.npy", folder / "trajectories.json"
    if damage == "truncated":
        array.write_bytes(array.read_bytes()[:-40])
    elif damage == "missing":
        array.unlink()
    elif damage == "pickled":
        np.save(array, np.array([{"a": 1}], object), allow_pickle=True)
    elif damage == "foreign":
        description.write_text("{}")
    elif damage == "version 99":
        description.write_text(description.read_text().replace('"version": 2', '"version": 99'))
    elif damage == "a key":
        description.write_text(description.read_text().replace('"env_id"', '"environment"'))
    elif damage == "a byte":
        array.write_bytes(array.read_bytes()[:-1] + b"\x01")
    else:
        description.unlink()
    for mmap in (True, False):
        with pytest.raises(DataError, match=r"observations\.0\.npy|trajectories|version 99|lacks 'env_id'"):
            Trajectories.open(folder, mmap=mmap)


def edited(value: Any, place: tuple[Any, ...], new: Any) -> Any:
    """A copy of nested JSON values with another one at ``place``."""
    if not place:
        return new
    changed = copy.copy(value)
    changed[place[0]] = edited(value[place[0]], place[1:], new)
    return changed


def places(value: Any) -> Iterator[tuple[Any, ...]]:
    yield ()
    items = value.items() if isinstance(value, dict) else enumerate(value) if isinstance(value, list) else ()
    for key, part in items:
        yield from ((key, *place) for place in places(part))


def test_an_edited_description_is_refused_or_changes_nothing_else(data: Trajectories, tmp_path: Path) -> None:
    folder = data.save(tmp_path / "folder")
    file = folder / "trajectories.json"
    description = json.loads(file.read_text())
    values: tuple[Any, ...] = ("x", None, [], {}, -1, 2**70)
    texts = [description | {key: json.dumps(edited(json.loads(description[key]), place, new))}
             for key in ("observation_space", "action_space") for place in places(json.loads(description[key]))
             for new in values]  # fmt: skip
    texts += [edited(description, place, new) for place in places(description) for new in values]
    refused = 0
    for text in texts:
        file.write_text(json.dumps(text))
        try:
            read = Trajectories.open(folder)
        except DataError:
            refused += 1
        else:
            assert read.fingerprint() == data.fingerprint() and read.summary()
    assert refused > len(texts) / 2


@pytest.mark.parametrize(
    ("file", "content", "words"),
    [
        ("offsets", np.array(3), "offsets are"),
        ("offsets", np.array([0.0, 5.0]), "offsets are"),
        ("offsets", np.array([0, 5, 3], np.uint64), "empty"),
        ("actions.0", np.array([0, 1, 7, 0, 1]), "outside Discrete"),
        ("rewards", np.array([0, 1, np.nan, 0, 1], np.float32), "NaN"),
        ("header", b"{'descr': '<f4', 'fortran_order': False, 'shape': (", "damaged"),
    ],
)
def test_an_edited_file_whose_checksum_was_edited_too_is_read_as_any_data(
    file: str, content: Any, words: str, tmp_path: Path
) -> None:
    episode = {"observations": np.zeros((6, 1)), "actions": np.array([0, 1, 0, 1, 0]), "rewards": np.ones(5)}
    folder = load_trajectories([episode], action_space=spaces.Discrete(2)).save(tmp_path / "folder")
    array = folder / f"{'rewards' if file == 'header' else file}.npy"
    if isinstance(content, bytes):
        array.write_bytes(array.read_bytes()[:10] + content.ljust(118) + array.read_bytes()[128:])
    else:
        np.save(array, content)
    description = json.loads((folder / "trajectories.json").read_text())
    description["checksums"][array.name] = zlib.crc32(array.read_bytes())
    (folder / "trajectories.json").write_text(json.dumps(description))
    with pytest.raises(DataError, match=words):
        Trajectories.open(folder)


def test_parts_join_one_after_the_other(data: Trajectories) -> None:
    joined = join_trajectories([data, data.select([2])], "both")
    assert tuple(joined.lengths) == (*LENGTHS, 9)
    np.testing.assert_array_equal(joined.episode(5).observations[""], data.episode(2).observations[""])
    with pytest.raises(DataError, match="different spaces"):
        join_trajectories(
            [
                data,
                random_data([2]).select([0]),
                load_trajectories([{"observations": [1.0], "actions": [1], "rewards": [1]}]),
            ],
            "x",
        )


def test_a_single_part_is_not_copied(data: Trajectories) -> None:
    joined = join_trajectories([data], "alone", {"format": "x"})
    assert joined.name == "alone" and joined.metadata == {"format": "x"}
    assert joined.observations[""] is data.observations[""] and joined.rewards is data.rewards


def test_the_layout_is_checked_on_construction(data: Trajectories) -> None:
    with pytest.raises(DataError, match="episode 1 is empty"):
        replace(data, offsets=np.array([0, 5, 5, 30]))
    with pytest.raises(DataError, match="observations is float32"):
        replace(data, observations={"": data.observations[""][:-1]})
    with pytest.raises(DataError, match="rewards are float64"):
        replace(data, rewards=data.rewards.astype(np.float64))
    with pytest.raises(DataError, match="have leaves"):
        replace(data, actions={"arm": data.actions[""]})


def test_the_summary_counts_ends_and_is_json(data: Trajectories) -> None:
    summary = data.summary()
    assert (summary["episodes"], summary["steps"]) == (5, 30)
    assert (summary["terminated_episodes"], summary["truncated_episodes"]) == (2, 3)
    assert summary["return"]["max"] == 558.0 and summary["length"]["min"] == 1.0


def test_a_fingerprint_is_that_of_the_numbers(data: Trajectories, tmp_path: Path) -> None:
    own = data.fingerprint()
    assert re.fullmatch("[0-9a-f]{16}", own) and data.summary()["fingerprint"] == own
    assert Trajectories.open(data.save(tmp_path / "copy")).fingerprint() == own
    assert replace(data, name="other", env_id="Other-v0").fingerprint() == own
    for leaves in (data.observations, data.actions):
        before = leaves[""].copy()
        leaves[""].reshape(-1)[-1] += 1
        assert data.fingerprint() != own
        leaves[""][:] = before
    assert data.fingerprint() == own
    rewards = data.rewards.copy()
    rewards[-1] = np.nextafter(rewards[-1], np.float32(0.0))
    assert replace(data, rewards=rewards).fingerprint() != own
    assert data.select([1, 0, 2, 3, 4]).fingerprint() != own


def test_concatenated_trajectories_hold_the_episodes_of_all() -> None:
    whole, short = load_trajectories(coded_episodes()), load_trajectories(coded_episodes((2, 4), final=False), name="b")
    joined = Trajectories.concatenate([whole, short, whole])
    assert tuple(joined.lengths) == (*LENGTHS, 2, 4, *LENGTHS) and not joined.final_observations
    assert (joined.name, joined.metadata["parts"]) == ("episodes + b", ["episodes", "b"])
    for index, (part, episode) in enumerate([*((whole, i) for i in range(5)), (short, 0), (short, 1), (whole, 0)]):
        np.testing.assert_equal(vars(joined.episode(index)), vars(part.episode(episode)))
    named = replace(whole, env_id="A-v0")
    assert Trajectories.concatenate([named, named], "two").env_id == "A-v0"
    assert Trajectories.concatenate([named, whole]).env_id is None
    with pytest.raises(DataError, match="nothing to concatenate"):
        Trajectories.concatenate([])
    with pytest.raises(DataError, match="only Trajectories are concatenated, got 'a'; load_trajectories makes them"):
        Trajectories.concatenate([whole, "a"])  # type: ignore[list-item]
    wide = load_trajectories(coded_episodes(), action_space=spaces.Box(-9, 9, (1,)))
    with pytest.raises(DataError, match=r"different spaces and cannot be joined: .*load both with the same"):
        Trajectories.concatenate([whole, wide])


def test_target_returns_are_the_median_the_ninth_decile_and_the_best() -> None:
    episodes = [{"observations": np.zeros((2, 1)), "actions": [0], "rewards": [float(value)]} for value in range(101)]
    assert load_trajectories(episodes).target_returns() == [50.0, 90.0, 100.0]
    assert load_trajectories(episodes[:1]).target_returns() == [0.0]


@pytest.mark.parametrize("returns", [[9876.54] * 3, [-10_000.0, -9_999.5, -9_995.1]])
def test_targets_are_as_exact_as_returns_differ(returns: list[float]) -> None:
    episodes = [{"observations": np.zeros((2, 1)), "actions": [0], "rewards": [value]} for value in returns]
    data = load_trajectories(episodes)
    assert data.target_returns() == list(dict.fromkeys(returns[1:]))
    assert all(near["episodes"] for near in data.summary()["near_targets"])
    assert f"{returns[-1]:,}" in data.describe()


def test_target_returns_of_a_discount_are_discounted_returns() -> None:
    episodes = [
        {"observations": np.zeros((4, 1)), "actions": [0] * 3, "rewards": [1.0, 2.0, 4.0 * k]} for k in range(3)
    ]
    assert load_trajectories(episodes).target_returns(0.5)[-1] == 1.0 + 1.0 + 2.0


# Pieces ---------------------------------------------------------------


class Stored:
    """Integers 0, 1, 2, ... as an HDF5 data set gives them: in slices of rows, each of which is noted."""

    def __init__(self, rows: int, width: int, chunk: int | None = None) -> None:
        self.shape, self.ndim, self.dtype = (rows, width), 2, np.dtype(np.int64)
        self.chunks = None if chunk is None else (chunk, width)
        self.asked: list[int] = []

    def __len__(self) -> int:
        return self.shape[0]

    def __getitem__(self, rows: slice) -> np.ndarray:
        taken = np.arange(self.shape[0])[rows]
        self.asked.append(taken.size * self.shape[1] * 8)
        return np.broadcast_to(taken[..., None], (*taken.shape, self.shape[1]))


def test_a_piece_has_so_many_rows_and_so_many_bytes_and_at_least_one_row() -> None:
    assert next(chunks(np.broadcast_to(np.float32(0), (10**6, 256)))) == slice(0, CHUNK_ROWS)
    assert next(chunks(np.broadcast_to(np.float32(0), (10**6, 512)))) == slice(0, CHUNK_ROWS // 2)
    assert next(chunks(np.broadcast_to(np.uint8(0), (10**6, 84, 84, 4)))) == slice(0, CHUNK_BYTES // (84 * 84 * 4))
    assert list(chunks(np.broadcast_to(np.uint8(0), (2, CHUNK_BYTES + 1)))) == [slice(0, 1), slice(1, 2)]
    assert list(chunks(np.zeros((2, 0)))) == [slice(0, 2)]


def test_pieces_of_hdf5_arrays_are_whole_chunks() -> None:
    most = CHUNK_BYTES // (1000 * 8)  # 4,194 rows
    assert next(chunks(Stored(10**5, 1000, chunk=1000))) == slice(0, most // 1000 * 1000)
    assert next(chunks(Stored(10**5, 1000, chunk=5000))) == slice(0, 5000)


def test_a_space_is_guessed_in_pieces() -> None:
    stored = Stored(10**4, 1000)
    with pytest.raises(DataError, match="integers up to 9999"):  # the last piece counts
        infer_space(stored, "observations", "x")
    assert max(stored.asked) <= CHUNK_BYTES and sum(stored.asked) > 10**4 * 1000 * 8


@pytest.mark.parametrize("use", [Trajectories.observation_statistics, Trajectories.fingerprint, replace])
def test_heavy_rows_are_read_a_few_at_a_time(use: Callable[..., object], monkeypatch: pytest.MonkeyPatch) -> None:
    rows = np.random.default_rng(0).normal(size=(201, 4096)).astype(np.float32)  # of 16 KiB
    data = load_trajectories([{"observations": rows, "actions": np.zeros((200, 1)), "rewards": np.zeros(200)}])
    whole, piece = data.fingerprint(), 2**17
    monkeypatch.setattr("rltransformers.data.spaces.CHUNK_BYTES", piece)
    tracemalloc.start()
    try:
        use(data)
        _, peak = tracemalloc.get_traced_memory()
    finally:
        tracemalloc.stop()
    assert peak < 5 * piece  # a piece, the same in float64, and what is kept; in one piece all of them have 25 pieces
    means, deviations = data.observation_statistics()
    np.testing.assert_allclose(means[""], rows[:-1].mean(axis=0, dtype=np.float64), rtol=1e-6)
    np.testing.assert_allclose(deviations[""], rows[:-1].std(axis=0, dtype=np.float64), rtol=1e-6)
    assert data.fingerprint() == whole
