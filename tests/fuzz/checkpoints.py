"""Checkpoint files of all agents, damaged. What still loads must be what was saved."""

import io
import json
import random
import tempfile
import zipfile
from functools import cache
from pathlib import Path
from typing import Any

import torch

from rltransformers.agents import DecisionTransformer
from tests.fuzz.keywords import ONLINE, build
from tests.fuzz.probe import HOSTILE, Probe, WrongError, edit_json, is_json, shown

HEADER, TENSORS = "header.json", "tensors.pt"
AGENTS: dict[str, Any] = {**ONLINE, "decision_transformer": DecisionTransformer}


@cache
def _saved(agent: str) -> tuple[bytes, dict[str, torch.Tensor]]:
    """A checkpoint file, and the weights in it."""
    model = build(agent)
    model.learn(16 if agent in ONLINE else 2)
    with tempfile.TemporaryDirectory() as folder:
        path = Path(folder) / "model.zip"
        model.save(path)
        return path.read_bytes(), {name: value.clone() for name, value in model.policy.state_dict().items()}


def draw(chance: random.Random) -> Probe:
    """One file."""
    agent = chance.choice(sorted(AGENTS))
    content, weights = _saved(agent)
    text, content, refused = chance.choice(
        (_flip, _flip, _cut, _blank, _grow, _edit_header, _edit_header, _edit_tensors)
    )(content, chance)
    return Probe(f"{agent} checkpoint, {text}", lambda: _act(agent, content, weights), refused)


Damaged = tuple[str, bytes, bool | None]


def _flip(content: bytes, chance: random.Random) -> Damaged:
    count = chance.choice((1, 1, 2, 8))
    damaged = bytearray(content)
    places = [chance.randrange(len(content)) for _ in range(count)]
    for place in places:
        damaged[place] ^= 1 << chance.randrange(8)
    return f"bits flipped at {places}", bytes(damaged), None


def _cut(content: bytes, chance: random.Random) -> Damaged:
    end = chance.choice((0, 1, 21, chance.randrange(len(content)), len(content) - 1, len(content) - 10))
    return f"cut behind byte {end}", content[:end], True


def _blank(content: bytes, chance: random.Random) -> Damaged:
    start = chance.randrange(len(content))
    damaged = content[:start] + b"\0" * len(content[start : start + 512]) + content[start + 512 :]
    return f"512 bytes from {start} blank", damaged, None


def _grow(content: bytes, chance: random.Random) -> Damaged:
    before = chance.random() < 0.5
    junk = bytes(chance.randrange(256) for _ in range(chance.choice((1, 100))))
    return (
        f"{len(junk)} bytes {'before' if before else 'behind'} it",
        junk + content if before else content + junk,
        None,
    )


def _edit_header(content: bytes, chance: random.Random) -> Damaged:
    """One value of the header replaced or taken away; the checksums are right."""
    with zipfile.ZipFile(io.BytesIO(content)) as archive:
        header, tensors = json.loads(archive.read(HEADER)), archive.read(TENSORS)
    text = edit_json(header, chance, [value for value in HOSTILE if is_json(value)])
    return f"header {text}", _zip(json.dumps(header).encode(), tensors), None


def _edit_tensors(content: bytes, chance: random.Random) -> Damaged:
    """One of the stored values replaced by another that loads without running code."""
    with zipfile.ZipFile(io.BytesIO(content)) as archive:
        header, payload = archive.read(HEADER), archive.read(TENSORS)
    tensors = torch.load(io.BytesIO(payload), weights_only=True)
    key = chance.choice(sorted(tensors))
    value: Any = chance.choice((None, 3, "x", [], {}, torch.zeros(2), {"a": torch.zeros(1)}))
    if isinstance(tensors[key], dict) and tensors[key] and chance.random() < 0.6:
        inner = chance.choice(sorted(tensors[key], key=str))
        if chance.random() < 0.5:
            del tensors[key][inner]
            text = f"without {key}.{inner}"
        else:
            tensors[key][inner] = value
            text = f"with {key}.{inner} = {shown(value)}"
    else:
        tensors[key] = value
        text = f"with {key} = {shown(value)}"
    buffer = io.BytesIO()
    torch.save(tensors, buffer)
    return text, _zip(header, buffer.getvalue()), None


def _zip(header: bytes, tensors: bytes) -> bytes:
    buffer = io.BytesIO()
    with zipfile.ZipFile(buffer, "w", zipfile.ZIP_STORED) as archive:
        archive.writestr(HEADER, header)
        archive.writestr(TENSORS, tensors)
    return buffer.getvalue()


def _act(agent: str, content: bytes, weights: dict[str, torch.Tensor]) -> None:
    with tempfile.TemporaryDirectory() as folder:
        path = Path(folder) / "model.zip"
        path.write_bytes(content)
        model = AGENTS[agent].load(path, device="cpu")
    for name, value in model.policy.state_dict().items():
        if name in weights and not torch.equal(value, weights[name]):
            raise WrongError(f"it loads with other weights in {name}")
    keywords: dict[str, Any] = {} if agent in ONLINE else {"target_return": 1.0}
    model.predict(model.observation_space.sample(), deterministic=True, **keywords)
