"""Records behaviors as datasets: for ``rltransformers collect``, and for runs that collect before they train."""

import sys
from collections.abc import Sequence
from typing import Any

from gymnasium import spaces
from stable_baselines3.common.vec_env import VecEnv
from tqdm import tqdm

from rltransformers.cli import behaviors as checkpoints
from rltransformers.core.errors import ConfigError, DataError
from rltransformers.data.behaviors import Mixture, mixture
from rltransformers.data.minari import check_dataset_id, write_minari, writing_minari
from rltransformers.data.recorder import record
from rltransformers.data.trajectories import Trajectories
from rltransformers.envs.make import make_vec_env
from rltransformers.training.runs.experiment import CollectConfig, EnvironmentConfig


def make_environment(config: EnvironmentConfig, seed: int, monitor: bool = True) -> VecEnv:
    """The vector environment that a config describes, without normalization."""
    return make_vec_env(
        config.id,
        config.num_envs,
        seed=seed,
        env_kwargs=config.kwargs,
        wrappers=config.wrappers,
        processes=config.processes,
        monitor=monitor,
    )


def collect_episodes(environment: EnvironmentConfig, collect: CollectConfig, seed: int) -> Trajectories:
    """Episodes of a run's behaviors in its environment, in memory; the same seed gives the same episodes."""
    env = make_environment(environment, seed)
    try:
        return record(
            env,
            parse_behaviors(collect.behaviors),
            episodes=collect.episodes,
            seed=seed,
            longest_episode=collect.longest_episode,
        )
    finally:
        env.close()


def collect_dataset(
    environment: EnvironmentConfig,
    behaviors: Sequence[str],
    dataset: str,
    seed: int,
    *,
    steps: int | None = None,
    episodes: int | None = None,
    keep: Sequence[int] | None = None,
    drop: Sequence[int] | None = None,
    deterministic: bool = False,
    overwrite: bool = False,
    progress: bool = False,
    notice: str | None = None,
) -> dict[str, Any]:
    """Record at least ``steps`` steps, or ``episodes``, write them as a Minari dataset and describe it as JSON values.

    ``dataset`` is the id of the new dataset.
    ``keep`` or ``drop`` are indices of a vector observation: what is recorded; behaviors always see all of it.
    ``notice`` is printed to standard error when recording starts.
    """
    parts = parse_behaviors(behaviors)
    check_dataset_id(dataset)
    with writing_minari(dataset):
        _refuse_existing(dataset, overwrite)
        env = make_environment(environment, seed, monitor=False)  # the recording holds returns and lengths itself
        try:
            if drop is not None:
                keep = _others(env.observation_space, drop)
            if notice is not None:
                print(notice, file=sys.stderr, flush=True)
            with tqdm(total=steps, desc="recording", unit="step", disable=not progress) as bar:
                data = record(
                    env,
                    parts,
                    steps,
                    episodes=episodes,
                    seed=seed,
                    recorded=keep,
                    deterministic=deterministic,
                    name=environment.id,
                    progress=lambda done: _advance(bar, done),
                )
        finally:
            env.close()
        write_minari(data, dataset, overwrite=overwrite)
    return {"dataset": dataset} | data.summary()


def _refuse_existing(dataset: str, overwrite: bool) -> None:
    """Raise for an id in use before hours of recording, not after."""
    from minari.storage import get_dataset_path  # slow to import

    if not overwrite and (get_dataset_path(dataset) / "data").exists():
        raise DataError(f"the Minari dataset {dataset!r} exists; raise its version or pass --overwrite")


def _advance(bar: Any, done: int) -> None:
    bar.update((done if bar.total is None else min(done, bar.total)) - bar.n)


def parse_behaviors(texts: Sequence[str]) -> Mixture:
    """A mixture of behavior texts, each with an optional ``=weight`` behind it (1 when absent)."""
    checkpoints.register()
    return mixture([_weighted(text) for text in texts])


def _weighted(text: str) -> tuple[float, str]:
    spec, separator, weight = text.rpartition("=")
    if not separator:
        return 1.0, text
    try:
        return float(weight), spec
    except ValueError as error:
        raise ConfigError(f"behavior {text!r}: the weight behind = must be a number, got {weight!r}") from error


def _others(space: spaces.Space[Any], drop: Sequence[int]) -> list[int]:
    """The indices of a vector observation that are not dropped."""
    if not isinstance(space, spaces.Box) or len(space.shape) != 1:
        raise ConfigError(f"--drop-indices needs a vector observation (Box of one axis), got {space}")
    size = space.shape[0]
    if any(not 0 <= index < size for index in drop) or len(set(drop)) == size:
        raise ConfigError(f"--drop-indices must lie in 0..{size - 1} and leave one entry, got {list(drop)}")
    return [index for index in range(size) if index not in drop]
