"""Wrong numbers, flags and keys are refused by name from every source; what loads is what was given."""

import json
import random
import re
import warnings
from collections.abc import Callable
from pathlib import Path
from typing import Any

import h5py
import numpy as np
import pytest
from gymnasium import spaces
from hypothesis import given, settings
from hypothesis import strategies as st

from rltransformers.core.errors import ConfigError, DataError
from rltransformers.core.values import ACTION_ROUNDING
from rltransformers.data import Trajectories, load_trajectories, write_minari
from rltransformers.data.keys import NAMES
from rltransformers.data.spaces import MAX_GUESSED_CLASSES
from tests.data.coded import LENGTHS, coded_episodes, flat, write_arrays, wrong_pairs

Episodes = list[dict[str, Any]]
UNIT = spaces.Box(-1.0, 1.0, (1,), np.float32)
PLACE = (2, 4)  # episode and step of the planted fault
ROW = sum(LENGTHS[: PLACE[0]]) + PLACE[1]


def from_dicts(episodes: Episodes, folder: Path, **options: Any) -> Trajectories:
    return load_trajectories(episodes, **options)


def from_flat_dict(episodes: Episodes, folder: Path, **options: Any) -> Trajectories:
    return load_trajectories(flat(episodes), **options)


def from_file(episodes: Episodes, folder: Path, **options: Any) -> Trajectories:
    with h5py.File(folder / "faulty.hdf5", "w") as file:
        for key, value in flat(episodes).items():
            file[key] = value
    return load_trajectories(folder / "faulty.hdf5", **options)


SOURCES: dict[str, Callable[..., Trajectories]] = {
    "episode dicts": from_dicts,
    "flat dict": from_flat_dict,
    "file": from_file,
}
any_source = pytest.mark.parametrize("source", SOURCES)
dicts_only = pytest.mark.parametrize("source", ["episode dicts", "flat dict"])


def with_fault(kind: str, value: Any, dtype: Any = None) -> Episodes:
    """Coded episodes in which one number of ``kind`` is ``value``; ``dtype`` replaces that of the array first."""
    episodes = coded_episodes()
    for episode in episodes:
        episode[kind] = episode[kind].astype(dtype or episode[kind].dtype)
    episodes[PLACE[0]][kind][PLACE[1]] = value
    return episodes


def refusal(source: str, episodes: Episodes, folder: Path, **options: Any) -> str:
    """The message with which the source is refused; a warning would be another failure."""
    with warnings.catch_warnings():
        warnings.simplefilter("error")
        with pytest.raises(DataError) as caught:
            SOURCES[source](episodes, folder, **options)
    return str(caught.value)


# Actions and their bounds ------------------------------------------------------------


@any_source
@pytest.mark.parametrize("value", [1.001, -1.001, 7.5, -1e30])
def test_an_action_outside_its_box_is_named_with_its_place_and_bounds(
    source: str, value: float, tmp_path: Path
) -> None:
    message = refusal(source, with_fault("actions", value), tmp_path, action_space=UNIT)
    assert "actions of episode 2, step 4 is [" in message
    assert "outside the bounds -1.0..1.0 at entry [0]; clip the actions" in message


@any_source
def test_an_action_outside_a_box_of_integers_is_named(source: str, tmp_path: Path) -> None:
    space = spaces.Box(-3, 9, (1,), np.int64)
    episodes = with_fault("actions", 10, np.int64)
    assert "episode 2, step 4 is [10], outside the bounds -3..9" in refusal(
        source, episodes, tmp_path, action_space=space
    )
    episodes[PLACE[0]]["actions"][PLACE[1]] = 9
    assert SOURCES[source](episodes, tmp_path, action_space=space).steps == sum(LENGTHS)


def test_bounds_hold_per_component_and_infinite_ones_bind_nothing() -> None:
    space = spaces.Box(np.array([-np.inf, 0.0, -5.0]), np.array([np.inf, np.inf, -2.0]), dtype=np.float64)

    def load(*action: float) -> Trajectories:
        episode = {"observations": np.zeros((2, 1)), "actions": [action], "rewards": [0.0]}
        return load_trajectories([episode], action_space=space)

    load(-1e30, 1e30, -2.0)
    with pytest.raises(DataError, match=r"bounds 0\.0\.\.inf at entry \[1\]"):
        load(0.0, -0.5, -3.0)
    with pytest.raises(DataError, match=r"bounds -5\.0\.\.-2\.0 at entry \[2\]"):
        load(0.0, 0.0, -1.9)


@pytest.mark.parametrize("bound", [0.4, 1.0, 2.0, 150.0])
def test_the_rounding_of_policies_is_no_fault(bound: float) -> None:
    """A tanh rescaled in float32 leaves the bounds by roundings; ten times the allowed part is outside."""
    space = spaces.Box(-bound, bound, (1,), np.float64)
    tanh = np.tanh(np.linspace(-30, 30, 4001, dtype=np.float32))
    rescaled = np.float32(-bound) + np.float32(0.5) * (tanh + np.float32(1)) * np.float32(2 * bound)
    doubled = (np.float32(bound) * tanh * np.float32(1 + 2**-23))[:, None]
    for actions in (rescaled[:, None], doubled):
        episode = {"observations": np.zeros((4001, 1)), "actions": actions, "rewards": np.zeros(4001)}
        assert load_trajectories([episode], action_space=space).steps == 4001
    episode["actions"] = np.full((4001, 1), bound * (1 + 10 * ACTION_ROUNDING))
    with pytest.raises(DataError, match="outside the bounds"):
        load_trajectories([episode], action_space=space)


def test_a_stored_set_is_checked_against_the_action_space_given_later() -> None:
    data = load_trajectories(with_fault("actions", 0.75), action_space=UNIT)
    half = spaces.Box(-0.5, 0.5, (1,), np.float32)
    write_minari(data, "faults/wide-v0", overwrite=True)
    for stored in (data, "faults/wide-v0"):
        with pytest.raises(DataError, match=r"episode 2, step 4 is \[0\.75\], outside the bounds -0\.5\.\.0\.5"):
            load_trajectories(stored, action_space=half)


@any_source
def test_observations_beyond_their_bounds_are_real(source: str, tmp_path: Path) -> None:
    narrow = spaces.Box(-1.0, 1.0, (2,), np.float32)
    assert SOURCES[source](coded_episodes(), tmp_path, observation_space=narrow).steps == sum(LENGTHS)


# Flags ------------------------------------------------------------


@any_source
@pytest.mark.parametrize("kind", ["terminations", "truncations"])
@pytest.mark.parametrize("value", [np.nan, 0.5, -1.0, 2.0, np.inf, float(2**62)])
def test_only_booleans_and_exact_zeros_and_ones_are_flags(source: str, kind: str, value: float, tmp_path: Path) -> None:
    message = refusal(source, with_fault(kind, value, np.float64), tmp_path)
    step = PLACE[1] if source == "episode dicts" else ROW
    assert f"is {value!s} at step {step}; flags are True or False, or exactly 0 or 1" in message
    assert kind in message or {"terminations": "terminals", "truncations": "timeouts"}[kind] in message


@dicts_only
@pytest.mark.parametrize("dtype", [bool, np.int8, np.uint64, np.float16, np.float64])
def test_zeros_and_ones_of_any_type_are_flags(source: str, dtype: Any, tmp_path: Path) -> None:
    episodes = coded_episodes()
    for episode in episodes:
        for kind in ("terminations", "truncations"):
            episode[kind] = episode[kind].astype(dtype)
    before = [{kind: np.array(value) for kind, value in episode.items()} for episode in episodes]
    assert wrong_pairs(SOURCES[source](episodes, tmp_path)) == 0
    (tmp_path / "limited").mkdir()
    limited = SOURCES[source](episodes[1:2], tmp_path / "limited", time_limit=1)  # terminated, and as long as the limit
    assert limited.truncations[-1] and not limited.terminations[-1]
    for old, new in zip(before, episodes, strict=True):
        np.testing.assert_equal(new, old)


@any_source
@pytest.mark.parametrize("kind", ["terminations", "truncations", "rewards"])
def test_a_second_column_is_not_dropped(source: str, kind: str, tmp_path: Path) -> None:
    episodes = coded_episodes()
    for episode in episodes:
        episode[kind] = np.stack([episode[kind], episode[kind]], axis=1)
    message = refusal(source, episodes, tmp_path)
    assert "one number per step" in message or (kind == "rewards" and "rows of shape (2,)" in message)


# Numbers ------------------------------------------------------------

NOT_NUMBERS: dict[str, tuple[Any, str]] = {
    "complex": (np.complex64, "complex numbers"),
    "dates": ("datetime64[s]", "dates"),
    "time spans": ("timedelta64[s]", "time spans"),
    "text": ("U8", "text"),
    "bytes": ("S8", "text"),
    "objects": (object, "objects"),
}
KINDS = ("observations", "actions", "rewards", "terminations", "truncations")


@dicts_only
@pytest.mark.parametrize("spaces_given", [False, True])
@pytest.mark.parametrize("kind", KINDS)
@pytest.mark.parametrize("name", NOT_NUMBERS)
def test_what_is_no_number_is_not_turned_into_one(
    source: str, name: str, kind: str, spaces_given: bool, tmp_path: Path
) -> None:
    dtype, words = NOT_NUMBERS[name]
    episodes = coded_episodes()
    for episode in episodes:
        values = np.ones_like(episode[kind])
        whole = values.astype(np.int64) if name in ("dates", "time spans") else values.astype(np.int8)
        episode[kind] = whole.astype(dtype)
    options: dict[str, Any] = {}
    if spaces_given:
        options = {"observation_space": spaces.Box(-np.inf, np.inf, (2,)), "action_space": UNIT}
    message = refusal(source, episodes, tmp_path, **options)
    assert f": {words}" in message or "dtype" in message
    assert kind in message or {"terminations": "terminals", "truncations": "timeouts"}.get(kind, "?") in message


@pytest.mark.parametrize("kind", KINDS)
def test_masked_entries_are_not_unmasked(kind: str) -> None:
    episodes = coded_episodes()
    episodes[2][kind] = np.ma.masked_array(episodes[2][kind], np.arange(episodes[2][kind].size) == 3)
    with pytest.raises(DataError, match="masked entries"):
        load_trajectories(episodes)


@any_source
@pytest.mark.parametrize("kind", ["observations", "actions", "rewards"])
def test_a_number_beyond_float32_is_named_as_it_was_given(source: str, kind: str, tmp_path: Path) -> None:
    space = spaces.Box(-np.inf, np.inf, (1,), np.float64)
    message = refusal(source, with_fault(kind, 1e39, np.float64), tmp_path, action_space=space)
    row = PLACE[1] if source == "episode dicts" else ROW
    assert f"{kind} " in message and f"the number 1e+39 in row {row}, which is beyond the largest float32" in message


@any_source
def test_a_guess_of_very_many_classes_is_refused(source: str, tmp_path: Path) -> None:
    """Every class would get weights of its own, whether a value is meant or one of 10**9 slipped in."""
    for kind in ("actions", "observations"):
        episodes = with_fault(kind, 10**9, np.int64)
        for episode in episodes:
            episode[kind] = np.abs(episode[kind])
        message = refusal(source, episodes, tmp_path)
        assert f"{kind} are integers up to 1000000000" in message and f"pass {kind[:-1]}_space" in message
    episodes = with_fault("actions", MAX_GUESSED_CLASSES - 1, np.int64)
    assert SOURCES[source](episodes, tmp_path).action_space == spaces.MultiDiscrete([MAX_GUESSED_CLASSES])
    message = refusal(source, with_fault("actions", MAX_GUESSED_CLASSES, np.int64), tmp_path)
    assert f"{MAX_GUESSED_CLASSES + 1:,} classes" in message


# Keys ------------------------------------------------------------

ALIASES = [(ours, name) for ours, names in NAMES.items() for name in names]


def renamed(arrays: dict[str, Any], old: str, new: str) -> dict[str, Any]:
    return {new if key == old else key: value for key, value in arrays.items()}


@pytest.mark.parametrize(("ours", "name"), ALIASES)
def test_every_usual_name_of_an_array_is_understood(ours: str, name: str) -> None:
    episodes = coded_episodes()
    for episode in episodes:
        episode["next_observations"] = episode["observations"][1:]
        episode["observations"] = episode["observations"][:-1]
    assert wrong_pairs(load_trajectories([renamed(episode, ours, name) for episode in episodes])) == 0
    theirs = {"terminations": "terminals", "truncations": "timeouts"}.get(ours, ours)
    assert wrong_pairs(load_trajectories(renamed(flat(coded_episodes()), theirs, name))) == 0


@pytest.mark.parametrize(("ours", "name"), [alias for alias in ALIASES if alias[0] != alias[1]])
def test_two_names_of_the_same_array_are_refused(ours: str, name: str) -> None:
    episodes = coded_episodes()
    for episode in episodes:
        episode["next_observations"] = episode["observations"][1:]
        episode[name] = episode[ours]
    with pytest.raises(DataError, match=f"episode 0 has both '{ours}' and '{name}'"):
        load_trajectories(episodes)


UNKNOWN = [
    ("done", "does not tell whether an episode was terminated"),
    ("dones", "does not tell whether an episode was terminated"),
    ("terminatons", "did you mean 'terminations'"),
    ("Terminated", "did you mean 'terminated'"),
    ("truncation_", "did you mean 'truncations'"),
    ("next_observation_", "did you mean 'next_observation'"),
    ("is_last", "unknown key 'is_last'"),
    ("worker_id", "unknown key 'worker_id'"),
]


@any_source
@pytest.mark.parametrize(("key", "words"), UNKNOWN)
def test_a_key_that_would_be_dropped_is_refused(source: str, key: str, words: str, tmp_path: Path) -> None:
    episodes = coded_episodes()
    if source == "episode dicts":
        for episode in episodes:
            episode[key] = episode.pop("terminations")
        assert words in refusal(source, episodes, tmp_path)
        return
    arrays = flat(episodes) | {key: flat(episodes)["terminals"]}
    with h5py.File(tmp_path / "unknown.hdf5", "w") as file:
        for name, value in arrays.items():
            file[name] = value
    with pytest.raises(DataError, match=re.escape(words)):
        load_trajectories(arrays if source == "flat dict" else tmp_path / "unknown.hdf5")


def test_facts_about_steps_that_nobody_reads_may_stay(tmp_path: Path) -> None:
    """D4RL's own files hold infos/qpos, metadata/algorithm and the like; imitation's trajectories hold infos."""
    arrays = flat(coded_episodes())
    extra: dict[str, Any] = {"infos/qpos": arrays["observations"], "metadata/algorithm": np.bytes_("sac")}
    assert wrong_pairs(load_trajectories(arrays | extra)) == 0
    with h5py.File(tmp_path / "extra.hdf5", "w") as file:
        for name, value in (arrays | extra).items():
            file[name] = value
    assert wrong_pairs(load_trajectories(tmp_path / "extra.hdf5")) == 0
    minari_like = {"id": 0, "seed": 3, "options": None, "total_steps": 5, "infos": {"a": np.zeros(6)}}
    assert wrong_pairs(load_trajectories([episode | minari_like for episode in coded_episodes()])) == 0


def test_parts_of_a_file_with_other_arrays_are_refused(tmp_path: Path) -> None:
    arrays = flat(coded_episodes())
    with h5py.File(tmp_path / "virtual.hdf5", "w") as file:
        for i in range(2):
            for key, value in arrays.items():
                if (i, key) != (0, "timeouts"):
                    file[f"virtual/{i}/{key}"] = value
    with pytest.raises(DataError, match="part 1 of 'virtual' has"):
        load_trajectories(tmp_path / "virtual.hdf5")


def test_leaves_that_only_some_episodes_have_are_not_dropped() -> None:
    episodes = coded_episodes()
    for index, episode in enumerate(episodes):
        episode["observations"] = {"a": episode["observations"]} | ({"b": np.zeros(4)} if index == 3 else {})
    with pytest.raises(DataError, match="different leaves"):
        load_trajectories(episodes)


# What loads is what was given ------------------------------------------------------------

VALUES: st.SearchStrategy[Any] = st.one_of(
    st.floats(width=64, allow_nan=True, allow_infinity=True),
    st.integers(-3, 3),
    st.integers(-(2**65), 2**65),
    st.booleans(),
    st.sampled_from([None, "1.0", b"1", 1j, np.datetime64("2020-01-01"), np.timedelta64(1, "s"), [1.0], {}]),
)
CONTAINERS = st.sampled_from([list, np.asarray])


@settings(max_examples=200)
@given(kind=st.sampled_from(KINDS), value=VALUES, container=CONTAINERS, as_flat=st.booleans(), guessed=st.booleans())
def test_any_value_anywhere_is_refused_or_loaded_as_it_is(
    kind: str, value: Any, container: Any, as_flat: bool, guessed: bool
) -> None:
    rows: dict[str, list[Any]] = {
        "observations": [[0.5], [1.5], [2.5]],
        "actions": [[0.25], [-0.25]],
        "rewards": [1.0, 2.0],
        "terminations": [False, True],
        "truncations": [False, False],
    }
    rows[kind][-1] = [value] if kind in ("observations", "actions") else value
    if as_flat:
        rows["observations"] = rows["observations"][1:]
    spaces_given: dict[str, Any] = {}
    if not guessed:
        spaces_given = {"observation_space": spaces.Box(-np.inf, np.inf, (1,)), "action_space": UNIT}
    try:
        episode = {key: container(values) for key, values in rows.items()}
    except (ValueError, TypeError, OverflowError):
        return  # numpy itself makes no array of it
    try:
        with warnings.catch_warnings():
            warnings.simplefilter("error")
            data = load_trajectories(episode if as_flat else [episode], **spaces_given)
    except (DataError, ConfigError) as error:
        assert kind in str(error)
        return
    loaded = {
        "observations": data.observations[""][-1 if not as_flat else -2],
        "actions": data.actions[""][-1],
        "rewards": data.rewards[-1],
        "terminations": data.terminations[-1],
        "truncations": data.truncations[-1],
    }[kind]
    if kind == "truncations" and not value:
        return  # the episode terminates
    assert isinstance(value, bool | int | float)
    if kind in ("terminations", "truncations"):
        assert bool(loaded) == value
    else:
        np.testing.assert_array_equal(np.reshape(loaded, ()), np.float32(value))


# Damaged and edited files ------------------------------------------------------------


def written_file(kind: str, folder: Path) -> Path:
    """A small data set in a file of this kind."""
    if kind in ("npz", "hdf5"):
        return write_arrays(kind, folder, flat(coded_episodes((3, 2))))
    write_minari(load_trajectories(coded_episodes((3, 2))), "data-v0")
    return next((folder / "data-v0" / "data").glob("*.hdf5" if kind == "minari" else "metadata.json"))


@pytest.mark.parametrize(("kind", "edits"), [("npz", 150), ("hdf5", 250), ("minari", 250)])
def test_any_edit_of_a_file_is_refused_or_read(
    kind: str, edits: int, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("MINARI_DATASETS_PATH", str(tmp_path))
    file = written_file(kind, tmp_path)
    dataset, whole, rng = "data-v0" if file.parent.name == "data" else file, file.read_bytes(), random.Random(0)
    refused = 0
    for _ in range(edits):
        content = bytearray(whole)
        content[rng.randrange(len(content))] = rng.randrange(256)
        file.write_bytes(content)
        try:
            with warnings.catch_warnings():
                warnings.simplefilter("ignore")  # of spaces with odd bounds
                load_trajectories(dataset)
        except (DataError, ConfigError):
            refused += 1
    assert refused > edits / 20


@pytest.mark.parametrize("value", ["x", [], {}, -1])
def test_wrong_totals_of_minari_metadata_are_named(value: Any, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("MINARI_DATASETS_PATH", str(tmp_path))
    file = written_file("metadata", tmp_path)
    metadata = json.loads(file.read_text())
    for key in ("total_steps", "total_episodes", "observation_space"):
        file.write_text(json.dumps(metadata | {key: value}))
        with pytest.raises(DataError, match="data-v0"):
            load_trajectories("data-v0")
