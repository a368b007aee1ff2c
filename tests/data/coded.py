"""Episodes whose every number tells its episode and step, so that a wrong pairing shows."""

from pathlib import Path
from typing import Any

import h5py
import numpy as np
import numpy.typing as npt
import torch

LENGTHS = (5, 1, 9, 3, 12)


def code(episode: int, step: npt.ArrayLike) -> npt.NDArray[np.float32]:
    """1000 * episode + step, exact in float32."""
    return np.asarray(1000 * episode + np.asarray(step), np.float32)


def coded_episodes(lengths: tuple[int, ...] = LENGTHS, *, final: bool = True) -> list[dict[str, Any]]:
    """Observations (code, -code), actions (code / 10000,), rewards 10 * episode + step + 1; odd episodes terminate."""
    episodes = []
    for episode, length in enumerate(lengths):
        steps = np.arange(length)
        rows = np.arange(length + final)
        ends = steps == length - 1
        episodes.append(
            {
                "observations": np.stack([code(episode, rows), -code(episode, rows)], axis=1),
                "actions": (code(episode, steps) / 10_000)[:, None],
                "rewards": (10 * episode + steps + 1).astype(np.float32),
                "terminations": ends & (episode % 2 == 1),
                "truncations": ends & (episode % 2 == 0),
            }
        )
    return episodes


def write_arrays(kind: str, folder: Path, arrays: dict[str, Any]) -> Path:
    """The arrays in a file "data.npz", or compressed in chunks in "data.hdf5"."""
    path = folder / f"data.{kind}"
    if kind == "npz":
        np.savez(path, **arrays)
        return path
    with h5py.File(path, "w") as file:
        for key, values in arrays.items():
            file.create_dataset(key, data=values, chunks=True, compression="gzip")
    return path


def flat(episodes: list[dict[str, Any]], *, next_observations: bool = True, timeouts: bool = True) -> dict[str, Any]:
    """The same episodes as D4RL stores them."""
    arrays = {
        "observations": np.concatenate([episode["observations"][: len(episode["rewards"])] for episode in episodes]),
        "actions": np.concatenate([episode["actions"] for episode in episodes]),
        "rewards": np.concatenate([episode["rewards"] for episode in episodes]),
        "terminals": np.concatenate([episode["terminations"] for episode in episodes]),
    }
    if timeouts:
        arrays["timeouts"] = np.concatenate([episode["truncations"] for episode in episodes])
    if next_observations:
        arrays["next_observations"] = np.concatenate([episode["observations"][1:] for episode in episodes])
    return arrays


def wrong_pairs(trajectories: Any, lengths: tuple[int, ...] = LENGTHS) -> int:
    """How many steps of the trajectories carry an observation, action, reward or final observation of another step."""
    assert tuple(trajectories.lengths) == lengths
    wrong = 0
    for index, length in enumerate(lengths):
        episode, steps = trajectories.episode(index), np.arange(length)
        observations = episode.observations[""]
        wrong += int(
            (observations[:-1, 0] != code(index, steps)).sum() + (observations[:-1, 1] != -code(index, steps)).sum()
        )
        wrong += int((episode.actions[""][:, 0] != code(index, steps) / np.float32(10_000)).sum())
        wrong += int((episode.rewards != 10 * index + steps + 1).sum())
        last = length if trajectories.final_observations else length - 1
        wrong += int(observations[-1, 0] != code(index, last))
        wrong += int(episode.terminations[-1] != (index % 2 == 1)) + int(episode.truncations[-1] != (index % 2 == 0))
    return wrong


def seeded(seed: int = 0) -> torch.Generator:
    """A torch generator with the given seed."""
    return torch.Generator().manual_seed(seed)
