"""Episodes as users pass them in, with one thing changed: refused where they must be, else read as they were meant."""

import random
from collections.abc import Callable
from typing import Any

import numpy as np

from rltransformers.data import load_trajectories
from tests.fuzz.probe import THING, Probe, WrongError, shown

Episodes = list[dict[str, Any]]
Change = tuple[str, bool | None, Callable[[Episodes, random.Random], Any]]
"""The change in words, whether the result has to be refused (False: read as if nothing had changed), the change."""
NO_EPISODES: tuple[Any, ...] = (
    None, 3, 1.5, "no/such-dataset-v0", "", b"x", [1], ["a"], [None], [[]], {}, {"observations": 1}, THING,
    "no_such_file.hdf5", "/", ".", "a\0b",
)  # fmt: skip
LENGTHS = (4, 1, 6)
FIELDS = ("observations", "actions", "rewards", "terminations", "truncations")
NUMBERS = ("observations", "actions", "rewards")


def episodes() -> Episodes:
    """Three episodes with known numbers; the second ends by truncation."""
    made = []
    for index, length in enumerate(LENGTHS):
        ends = np.arange(length) == length - 1
        made.append(
            {
                "observations": np.arange((length + 1) * 2, dtype=np.float32).reshape(-1, 2) + 100 * index,
                "actions": np.arange(length, dtype=np.int64) % 3,
                "rewards": np.linspace(-1.0, 1.0, length, dtype=np.float32) + index,
                "terminations": ends & (index != 1),
                "truncations": ends & (index == 1),
            }
        )
    return made


def _set(name: str, value: Any) -> Callable[[Episodes, random.Random], None]:
    def change(made: Episodes, chance: random.Random) -> None:
        episode = chance.choice(made)
        array = episode[name].astype(np.result_type(np.asarray(value), episode[name]))
        array.reshape(-1)[chance.randrange(array.size)] = value
        episode[name] = array

    return change


def _everywhere(name: str, function: Callable[[Any], Any]) -> Callable[[Episodes, random.Random], None]:
    def change(made: Episodes, chance: random.Random) -> None:
        for episode in made:
            episode[name] = function(episode[name])

    return change


def _rename(old: str, new: str) -> Callable[[Episodes, random.Random], None]:
    def change(made: Episodes, chance: random.Random) -> None:
        for episode in made:
            episode[new] = episode.pop(old)

    return change


def _drop_row(name: str, rows: int) -> Callable[[Episodes, random.Random], None]:
    def change(made: Episodes, chance: random.Random) -> None:
        episode = chance.choice(made)
        episode[name] = np.concatenate([episode[name]] * 3)[: len(episode[name]) + rows]

    return change


def _as(kind: str) -> Callable[[Any], Any]:
    return lambda array: np.asarray(array).astype(kind)


def _without(name: str) -> Callable[[Episodes, random.Random], Any]:
    return lambda made, chance: [{key: value for key, value in episode.items() if key != name} for episode in made]


def _replace_all(value: Any) -> Callable[[Episodes, random.Random], Any]:
    return lambda made, chance: value


def _add_key(key: Any) -> Callable[[Episodes, random.Random], None]:
    def change(made: Episodes, chance: random.Random) -> None:
        for episode in made:
            episode[key] = np.zeros(len(episode["rewards"]))

    return change


CHANGES: list[Change] = [
    ("nothing", False, lambda made, chance: None),
    ("lists in place of arrays", False, lambda made, chance: [{k: v.tolist() for k, v in e.items()} for e in made]),
    ("a tuple of episodes", False, lambda made, chance: tuple(made)),
    ("a generator of episodes", False, lambda made, chance: (episode for episode in made)),
    *((f"{name} as {kind}", False, _everywhere(name, _as(kind)))
      for name, kind in (("observations", "float64"), ("rewards", "float64"), ("rewards", "float16"),
                         ("actions", "int32"), ("actions", "uint8"), ("terminations", "int64"),
                         ("terminations", "float32"), ("truncations", "uint8"))),
    *((f"{old} called {new}", False, _rename(old, new)) for old, new in (
        ("terminations", "terminals"), ("terminations", "terminated"), ("truncations", "timeouts"),
        ("truncations", "truncated"))),
    *((f"{name} called {name[:-1]}x", True, _rename(name, f"{name[:-1]}x")) for name in FIELDS),
    ("terminations called done_flags", True, _rename("terminations", "done_flags")),
    *((f"{name} missing", True, _without(name)) for name in NUMBERS),
    *((f"an unknown key {key!r}", True, _add_key(key)) for key in ("reward_to_come", "obsrvations", 3, None, "")),
    ("terminations under two names", True, _add_key("terminals")),
    *((f"{value!r} in {name}", True, _set(name, value)) for name in NUMBERS
      for value in (float("nan"), float("inf"), -float("inf"), 1j)),
    *((f"{value!r} in {name}", True, _set(name, value)) for name in ("terminations", "truncations")
      for value in (float("nan"), 0.5, 2**62, -1, 2, 1j)),
    *((f"{name} as {kind}", True, _everywhere(name, _as(kind)))
      for name in FIELDS for kind in ("str", "complex64", "datetime64[s]", "timedelta64[s]")),
    *((f"{name} as objects", True, _everywhere(name, lambda x: np.array([THING] * len(x)))) for name in FIELDS),
    *((f"{name} one row {'longer' if rows > 0 else 'shorter'}", True if name != "observations" or rows > 0 else None,
       _drop_row(name, rows)) for name in FIELDS for rows in (1, -1)),
    *((f"{name} None", True, _everywhere(name, lambda x: None)) for name in NUMBERS),
    *((f"{name} a text", True, _everywhere(name, lambda x: "abc")) for name in FIELDS),
    *((f"{name} a number", True, _everywhere(name, lambda x: 1.0)) for name in ("observations", "actions")),
    ("an action of 10**9 among classes", None, _set("actions", 10**9)),
    ("a negative class", None, _set("actions", -1)),
    ("an action that is no whole number", None, _set("actions", 0.5)),
    ("actions beyond float32", True, _everywhere("actions", lambda x: np.full((len(x), 1), 1e39))),
    ("observations beyond float32", True, _everywhere("observations", lambda x: np.asarray(x, np.float64) + 1e39)),
    ("rewards beyond float32", True, _everywhere("rewards", lambda x: np.asarray(x, np.float64) + 1e39)),
    ("ragged observations", True, _everywhere("observations", lambda x: [[0.0]] + [[0.0, 1.0]] * (len(x) - 1))),
    ("a flag inside an episode", True, lambda made, chance: made[2]["terminations"].__setitem__(1, True)),
    ("no episode", True, _replace_all([])),
    ("an empty episode", True, lambda made, chance: made.append({k: v[:0] for k, v in made[0].items()})),
    *((f"{shown(value)} in place of episodes", True, _replace_all(value)) for value in NO_EPISODES),
]  # fmt: skip


def draw(chance: random.Random) -> Probe:
    """One dataset, with one change or two."""
    text, refused, change = chance.choice(CHANGES)
    made = episodes()
    result = change(made, chance)
    dataset: Any = made if result is None and not text.startswith("None in place") else result
    if chance.random() < 0.3 and dataset is made:
        second, also_refused, change = chance.choice(CHANGES[: len(CHANGES) - 20])
        try:
            if any(name in text and name in second for name in FIELDS):
                raise ValueError("the second change may undo the first")
            result = change(made, chance)
        except (KeyError, TypeError, ValueError, IndexError, AttributeError):
            result = None  # the two cannot be had together
        else:
            text, dataset = f"{text}, {second}", made if result is None else result
            refused = True if refused or also_refused else refused if also_refused is False else None
    exact = refused is False
    return Probe(f"episodes with {text}", lambda: _act(dataset, exact), refused)


def _act(dataset: Any, exact: bool) -> None:
    data = load_trajectories(dataset)
    for name, leaf in (*data.observations.items(), *data.actions.items(), ("rewards", data.rewards)):
        if leaf.dtype.kind == "f" and not np.isfinite(leaf).all():
            raise WrongError(f"{name or 'a leaf'} holds numbers that are not finite")
    if not exact:
        return
    for index, true in enumerate(episodes()):
        read = data.episode(index)
        for name, value in (
            ("observations", read.observations[""]),
            ("actions", read.actions[""]),
            ("rewards", read.rewards),
            ("terminations", read.terminations),
            ("truncations", read.truncations),
        ):
            if not np.allclose(np.asarray(value, np.float64), np.asarray(true[name], np.float64), atol=2e-3):  # float16
                raise WrongError(f"{name} of episode {index} are {value}, meant were {true[name]}")
