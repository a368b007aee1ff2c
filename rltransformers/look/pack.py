"""Frames and attention in few bytes. H heads, S steps that a head looks back, G tokens per step."""

import base64
import io
import zlib
from collections.abc import Sequence

import numpy as np
from numpy.typing import NDArray
from PIL import Image

from rltransformers.agents.load import Agent
from rltransformers.core.pictures import is_image
from rltransformers.core.spaces import observation_leaves
from rltransformers.look.watch import Episode

LADDER = ((256, 80), (224, 65), (192, 50), (160, 40), (128, 30), (96, 25), (64, 20))
"""Largest side in pixels, and quality, of pictures: the first ones that fit are taken."""
SMALL = 64  # pixels of a side up to which a picture loses nothing
Frames = Sequence[NDArray[np.uint8]]
Layers = dict[str, tuple[int, int]]
"""Heads and S of the layers that have attention weights, by name."""


def pack_attention(episode: Episode, layers: Layers) -> str:
    """Attention of all layers, heads, steps t and min(t + 1, S) steps back, newest first, and tokens of a step.

    A byte is the square root of a weight times 255: of a weight of 1 / 500 it tells a tenth. Bytes are deflated (zlib)
    and written in base64. The page scales every row to its sum, see ``attention_sums``.
    """
    parts = []
    for name, (heads, reach) in layers.items():
        for head in range(heads):
            for t, masses in enumerate(episode.attention):
                mass = masses[name][head]
                row = np.zeros((min(t + 1, reach), mass.shape[1]), np.float32)
                row[: len(mass)] = mass
                parts.append(np.rint(255 * np.sqrt(row.clip(0, 1))).astype(np.uint8).reshape(-1))
    joined = np.concatenate(parts) if parts else np.zeros(0, np.uint8)
    return base64.b64encode(zlib.compress(joined.tobytes(), 9)).decode()


def attention_sums(episode: Episode, layers: Layers) -> list[list[float]] | None:
    """Sums of the weights of every head of every layer by step; None where all are 1: no head can look at nothing."""
    sums = np.concatenate(
        [np.stack([masses[name].sum((1, 2)) for masses in episode.attention], 1) for name in layers]
        or [np.ones((1, 1))]
    )
    return None if np.allclose(sums, 1.0, rtol=0, atol=1e-3) else np.round(sums.astype(float), 4).tolist()


def frames_of(agent: Agent, episode: Episode) -> list[NDArray[np.uint8]]:
    """What the environment drew; if nothing, the first image of the observation, whatever its channels are."""
    if episode.drawn:
        return episode.drawn
    leaves = observation_leaves(agent.observation_space)
    path = next((path for path, leaf in leaves.items() if is_image(leaf)), None)
    if path is None:
        return []
    frames = []
    for observation in episode.observations:
        frame = observation[path]
        if frame.ndim == 3 and frame.shape[0] < frame.shape[-1]:
            frame = frame.transpose(1, 2, 0)
        frame = frame if frame.ndim == 2 or frame.shape[-1] == 3 else frame[..., -1]
        frames.append(frame)
    return frames


def compress(episodes: Sequence[Frames], room: int) -> tuple[list[str], list[list[int]], int]:
    """Different frames as WebP in base64, as large and good as fit into ``room`` bytes; which of them each frame is.

    Where even the smallest ones do not fit, every second frame of an episode, or fewer, down to its first one, stands
    for those behind it: every n-th one. n is the last that is returned.
    """
    different, numbers = distinct(episodes)
    for side, quality in LADDER:
        sample = different[:: max(len(different) // 16, 1)]
        if len(different) * sum(map(len, encode(sample, side, quality))) <= room * len(sample):
            pictures = encode(different, side, quality)
            if sum(map(len, pictures)) <= room:
                return pictures, numbers, 1
    longest, stride, size = max(map(len, episodes)), 1, room + 1
    while size > room and stride < longest:
        stride *= 2
        different, numbers = distinct([[each[t - t % stride] for t in range(len(each))] for each in episodes])
        pictures = encode(different, *LADDER[-1])
        size = sum(map(len, pictures))
    return pictures, numbers, stride


def distinct(episodes: Sequence[Frames]) -> tuple[list[NDArray[np.uint8]], list[list[int]]]:
    """Frames without those that are equal to an earlier one, and which of them each frame is."""
    kept: dict[tuple[bytes, tuple[int, ...]], int] = {}
    different: list[NDArray[np.uint8]] = []
    numbers: list[list[int]] = []
    for frames in episodes:
        numbers.append([])
        for frame in frames:
            key = frame.tobytes(), frame.shape
            if key not in kept:
                kept[key] = len(different)
                different.append(frame)
            numbers[-1].append(kept[key])
    return different, numbers


def encode(frames: Frames, side: int, quality: int) -> list[str]:
    """Frames in base64, none with a side above ``side`` pixels; small ones without loss."""
    texts = []
    for frame in frames:
        picture, buffer = Image.fromarray(frame).convert("RGB"), io.BytesIO()
        if max(picture.size) <= SMALL:
            picture.save(buffer, "webp", lossless=True)
        else:
            picture.thumbnail((side, side))
            picture.save(buffer, "webp", quality=quality)
        texts.append(base64.b64encode(buffer.getvalue()).decode())
    return texts
