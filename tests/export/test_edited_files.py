"""Exported files whose description was edited: an error of ours when they are read, or they act."""

import json
import zipfile
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import gymnasium as gym
import numpy as np
import onnx
import pytest

from rltransformers.agents import Actor, DecisionTransformer, GTrXLPPO
from rltransformers.core.errors import CheckpointError, DataError
from rltransformers.data import record
from rltransformers.export.files import METADATA

pytestmark = pytest.mark.slow
VALUES: list[Any] = [None, True, -1, 0, 3, 10**30, 1.5, 1e308, float("nan"), "x", "float16", [], [[]], {}, {"x": 1}]
"""What an edit puts in the place of a value."""


def online() -> Any:
    policy = {"backbone": {"width": 8, "heads": 2, "layers": 1, "memory": 4}, "previous_reward": True}
    return GTrXLPPO("GTrXLPolicy", "CartPole-v1", policy_kwargs=policy, seed=0, device="cpu")


def offline() -> Any:
    data = record("CartPole-v1", "random", episodes=3, seed=0)
    policy = {"backbone": {"width": 8, "heads": 2, "layers": 1}}
    return DecisionTransformer("DTPolicy", data, context_length=3, policy_kwargs=policy, seed=0)


def places(value: Any, path: tuple[Any, ...] = ()) -> Iterator[tuple[Any, ...]]:
    """Where a value may be replaced: every member of mappings and lists, however deep, and the whole."""
    yield path
    members = value.items() if isinstance(value, dict) else enumerate(value) if isinstance(value, list) else ()
    for key, part in members:
        yield from places(part, (*path, key))


def edited(about: Any, path: tuple[Any, ...], value: Any) -> Any:
    about = json.loads(json.dumps(about))
    if not path:
        return value
    holder = about
    for key in path[:-1]:
        holder = holder[key]
    if value is ...:
        del holder[path[-1]]
    else:
        holder[path[-1]] = value
    return about


class Onnx:
    def __init__(self, path: Path) -> None:
        self.model = onnx.load(path)
        (self.entry,) = [entry for entry in self.model.metadata_props if entry.key == METADATA]
        self.text = self.entry.value

    def write(self, path: Path, text: str) -> None:
        self.entry.value = text
        onnx.save(self.model, path)


class Pt2:
    def __init__(self, path: Path) -> None:
        with zipfile.ZipFile(path) as archive:
            self.members = {info.filename: archive.read(info) for info in archive.infolist()}
        (self.name,) = [name for name in self.members if name.endswith(METADATA)]
        self.text = self.members[self.name].decode()

    def write(self, path: Path, text: str) -> None:
        with zipfile.ZipFile(path, "w") as archive:
            for name, content in (self.members | {self.name: text.encode()}).items():
                archive.writestr(name, content)


@pytest.mark.parametrize(  # either description in one form: what reads it is the same for both
    ("make", "ending", "kind", "share"),
    [(online, "pt2", Pt2, 240), (offline, "onnx", Onnx, 24)],
    ids=["online as pt2", "offline as onnx"],
)
def test_an_edited_description_is_refused_or_the_file_acts(
    make: Callable[[], Any], ending: str, kind: Any, share: int, tmp_path: Path
) -> None:
    file = kind(make().export(tmp_path / f"policy.{ending}"))
    about = json.loads(file.text)
    edits = [(path, value) for path in places(about) for value in [..., *VALUES] if path or value is not ...]
    chosen = np.random.default_rng(0).permutation(len(edits))[: len(edits) // share]
    refused = 0
    for path, value in [edits[index] for index in chosen]:
        file.write(tmp_path / f"edited.{ending}", json.dumps(edited(about, path, value)))
        try:
            actor = Actor.from_export(tmp_path / f"edited.{ending}")
        except CheckpointError:
            refused += 1
            continue
        assert acts(actor), (path, value)
    assert refused > len(chosen) / 3


def acts(actor: Actor) -> bool:
    """Three steps that give actions; an edited length of episodes may end them."""
    env = gym.make("CartPole-v1")
    (observation, _), reward = env.reset(seed=0), 0.0
    actor.reset()
    try:
        for _ in range(3):
            action = actor.decide(observation, reward).action
            observation, reward, *_ = env.step(action)  # type: ignore[assignment]
    except DataError as error:
        return "longer than the" in str(error)
    return True
