"""Files of strangers, damaged or edited. What is still read must be what was written, or at least fit."""

import json
import random
import re
import shutil
import tempfile
from collections.abc import Callable
from functools import cache
from pathlib import Path
from typing import Any

import h5py
import numpy as np

from rltransformers.agents import DecisionTransformer
from rltransformers.data import load_trajectories, write_minari
from rltransformers.training.actor import Actor
from tests.fuzz.data import episodes
from tests.fuzz.keywords import DT, build, check_finite, data
from tests.fuzz.probe import HOSTILE, Probe, WrongError, edit_json, is_json

_FOLDER = tempfile.TemporaryDirectory(prefix="fuzz-files-")
Damage = Callable[[Path, random.Random], str]
"""Changes a copy of a file or a folder, and says how."""
JSON_VALUES = [value for value in HOSTILE if is_json(value, allow_nan=False)]


# What is damaged -------------------------------------------------------------------------------------------


def _flat() -> dict[str, Any]:
    parts = episodes()
    flat = {
        name: np.concatenate([episode[name][: len(episode["rewards"])] for episode in parts])
        for name in ("observations", "actions", "rewards")
    }
    flat["terminals"] = np.concatenate([episode["terminations"] for episode in parts])
    flat["timeouts"] = np.concatenate([episode["truncations"] for episode in parts])
    return flat


def _npz(path: Path) -> None:
    np.savez(path, **_flat())


def _compressed(path: Path) -> None:
    np.savez_compressed(path, **_flat())


def _hdf5(path: Path) -> None:
    with h5py.File(path, "w") as file:
        for name, array in _flat().items():
            file.create_dataset(name, data=array)


def _parquet(path: Path) -> None:
    import pyarrow
    from pyarrow import parquet

    rows = [
        {name: np.asarray(episode[name][: len(episode["rewards"])]).tolist() for name in
         ("observations", "actions", "rewards", "terminations", "truncations")}
        for episode in episodes()
    ]  # fmt: skip
    parquet.write_table(pyarrow.Table.from_pylist(rows), path)


def _folder(path: Path) -> None:
    load_trajectories(episodes()).save(path)


def _minari(path: Path) -> None:
    write_minari(data(), "fuzz/files-v0", overwrite=True)
    from minari.storage import get_dataset_path

    shutil.copytree(get_dataset_path("fuzz/files-v0"), path)


def _onnx(path: Path) -> None:
    build("gtrxl_ppo").export(path)


def _decision_onnx(path: Path) -> None:
    build("decision_transformer").export(path)


KINDS: dict[str, tuple[str, Callable[[Path], None]]] = {
    ".npz": ("x.npz", _npz),
    "compressed .npz": ("x.npz", _compressed),
    ".hdf5": ("x.hdf5", _hdf5),
    ".parquet": ("x.parquet", _parquet),
    "a folder of trajectories": ("x", _folder),
    "a folder of Minari": ("x", _minari),
    ".onnx": ("x.onnx", _onnx),
    ".onnx of DecisionTransformer": ("x.onnx", _decision_onnx),
}
CHECKED = ("a folder of trajectories", ".npz", "compressed .npz")
"""Kinds whose numbers have checksums: what is read is what was written."""


@cache
def _original(kind: str) -> Path:
    name, write = KINDS[kind]
    folder = Path(_FOLDER.name) / re.sub(r"\W", "_", kind)
    folder.mkdir()
    write(folder / name)
    return folder / name


# How -------------------------------------------------------------------------------------------------------


def _some_file(path: Path, chance: random.Random) -> Path:
    return chance.choice(sorted(each for each in path.rglob("*") if each.is_file())) if path.is_dir() else path


def _flip(path: Path, chance: random.Random) -> str:
    file = _some_file(path, chance)
    content = bytearray(file.read_bytes())
    near = chance.random() < 0.5  # headers stand in front
    places = [
        chance.randrange(min(len(content), 128) if near else len(content)) for _ in range(chance.choice((1, 1, 3)))
    ]
    for place in places:
        content[place] ^= 1 << chance.randrange(8)
    file.write_bytes(content)
    return f"bits flipped in {file.name} at {places}"


def _cut(path: Path, chance: random.Random) -> str:
    file = _some_file(path, chance)
    content = file.read_bytes()
    end = chance.choice((0, 1, 100, chance.randrange(len(content)), len(content) - 1))
    file.write_bytes(content[:end])
    return f"{file.name} cut behind byte {end}"


def _remove(path: Path, chance: random.Random) -> str:
    file = _some_file(path, chance)
    file.unlink()
    return f"without {file.name}"


def _edit_json(path: Path, chance: random.Random) -> str:
    """One value of a JSON text replaced or taken away."""
    texts = sorted(each for each in path.rglob("*.json")) if path.is_dir() else []
    if not texts:
        return _flip(path, chance)
    file = chance.choice(texts)
    content = json.loads(file.read_text())
    text = edit_json(content, chance, JSON_VALUES)
    file.write_text(json.dumps(content))
    return f"{file.name} {text}"


def _edit_hdf5(path: Path, chance: random.Random) -> str:
    files = sorted(path.rglob("*.hdf5")) if path.is_dir() else [path]
    if not files or files[0].suffix != ".hdf5":
        return _flip(path, chance)
    with h5py.File(files[0], "r+") as file:
        names: list[str] = []
        file.visit(names.append)
        name = chance.choice(names)
        what = chance.choice(
            ("link", "itself", "outside", "group", "text", "scalar", "attribute", "longer", "empty", "nan")
        )
        node = file[name]
        if what == "attribute" and len(node.attrs):
            key = chance.choice(sorted(node.attrs))
            value = chance.choice(("x", -1, 2**40, float("nan"), [1, 2], ""))
            node.attrs[key] = value
            return f"attribute {key} of {name} = {value!r}"
        if what == "itself":
            group = file.create_group("g") if not isinstance(node, h5py.Group) else node
            group["self"] = file["/"]
            return "a group that holds its own parent"
        old = node[()] if isinstance(node, h5py.Dataset) else None
        del file[name]
        if what == "link":
            file[name] = h5py.SoftLink("/nowhere")
        elif what == "outside":
            file[name] = h5py.ExternalLink("/etc/hostname", "/x")
        elif what == "group":
            file.create_group(name)
        elif what == "text":
            file[name] = "abc"
        elif what == "empty":
            file[name] = h5py.Empty("f")
        elif what == "longer" and old is not None and np.ndim(old):
            file[name] = np.concatenate([old, old[:1]])
        elif what == "nan" and old is not None and np.ndim(old):
            file[name] = np.full(np.shape(old), np.nan)
        else:
            file[name] = 3
        return f"{name} replaced ({what})"


def _edit_onnx(path: Path, chance: random.Random) -> str:
    if path.suffix != ".onnx":
        return _flip(path, chance)
    import onnx

    model = onnx.load(path)
    entry = model.metadata_props[0]
    content = json.loads(entry.value)
    text = edit_json(content, chance, JSON_VALUES)
    entry.value = json.dumps(content)
    onnx.save(model, path)
    return f"metadata {text}"


def _edit_npy(path: Path, chance: random.Random) -> str:
    """The header of an array says something else."""
    arrays = sorted(path.rglob("*.npy")) if path.is_dir() else []
    if not arrays:
        return _flip(path, chance)
    file = chance.choice(arrays)
    content = file.read_bytes()
    end = content.index(b"\n")
    header = content[10:end].decode("latin1")
    old, new = chance.choice((
        ("<f4", "<f8"), ("<f4", "|O"), ("<f4", ">f4"), ("<i8", "<u8"), ("False", "True"), ("(", "(1, "), ("(", "(-"),
        ("shape", "shape_"), ("'", '"'), ("{", "["), ("<", "\0"), ("|b1", "|i1"), (",)", ", 1)"), (", ", ", 9" * 30),
    ))  # fmt: skip
    changed = header.replace(old, new, 1)[: len(header)].ljust(len(header))
    file.write_bytes(content[:10] + changed.encode("latin1") + content[end:])
    return f"header of {file.name}: {changed.strip()}"


DAMAGES: tuple[Damage, ...] = (_flip, _flip, _cut, _remove, _edit_json, _edit_json, _edit_hdf5, _edit_onnx, _edit_npy)


def draw(chance: random.Random) -> Probe:
    """One file, damaged once, read and learned from."""
    kind, damage, state = chance.choice(sorted(KINDS)), chance.choice(DAMAGES), chance.getrandbits(32)
    original = _original(kind)
    with tempfile.TemporaryDirectory() as folder:
        text = damage(_copy(original, Path(folder)), random.Random(state))

    def act() -> None:
        with tempfile.TemporaryDirectory() as folder:
            damaged = _copy(original, Path(folder))
            damage(damaged, random.Random(state))
            _use(kind, damaged)

    return Probe(f"{kind}, {text}", act)


def _copy(original: Path, folder: Path) -> Path:
    copy = folder / original.name
    if original.is_dir():
        shutil.copytree(original, copy)
    else:
        shutil.copyfile(original, copy)
    return copy


def _use(kind: str, path: Path) -> None:
    if path.suffix == ".onnx":
        actor = Actor.from_export(path)
        actor.reset()
        observation = actor.observation_space.sample()
        for _ in range(2):
            action = actor(observation, 0.0)
        if not actor.action_space.contains(action):
            raise WrongError(f"the action {action!r} is none of {actor.action_space}")
        return
    trajectories = load_trajectories(str(path))
    if kind in CHECKED:
        meant = load_trajectories(episodes())
        for name in ("rewards", "terminations", "truncations", "offsets"):
            if not np.array_equal(getattr(trajectories, name), getattr(meant, name)):
                raise WrongError(f"{name} are not those that were written")
        for name in ("observations", "actions"):
            leaves, others = getattr(trajectories, name), getattr(meant, name)
            if list(leaves) != list(others) or any(not np.array_equal(leaves[key], others[key]) for key in leaves):
                # flat files hold no last observations
                if name == "observations" and kind != "a folder of trajectories":
                    continue
                raise WrongError(f"{name} are not those that were written")
    json.dumps(trajectories.summary(), default=str)
    model = DecisionTransformer("DTPolicy", trajectories, **DT)
    model.learn(1)
    check_finite(model.policy)
