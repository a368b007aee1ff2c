"""Records behaviors as datasets: for ``rltransformers collect``, and for runs that collect before they train.

Behaviors may be trained agents: ``checkpoint:<zip or run folder>`` and ``export:<pt2 or onnx file>``.
"""

import argparse
import sys
from collections.abc import Sequence
from contextlib import closing
from typing import Any

from gymnasium import spaces
from stable_baselines3.common.vec_env import VecEnv
from tqdm import tqdm

from rltransformers.agents import Actor, load_agent
from rltransformers.agents.load import checkpoint_in
from rltransformers.cli.baselines import is_sb3
from rltransformers.cli.words import mapping
from rltransformers.core.errors import ConfigError, DataError
from rltransformers.core.spaces import Space
from rltransformers.data.behaviors import Mixture, mixture, register_behavior
from rltransformers.data.minari import check_dataset_id, write_minari, writing_minari
from rltransformers.data.recorder import record
from rltransformers.data.trajectories import Trajectories
from rltransformers.envs.make import make_vec_env
from rltransformers.training.runs.experiment import CollectConfig, EnvironmentConfig, read_experiment
from rltransformers.training.runs.run_folder import statistics_path
from rltransformers.training.runs.threads import use_threads


def make_environment(config: EnvironmentConfig, seed: int, monitor: bool = True, device: str = "auto") -> VecEnv:
    """The vector environment that a config describes, without normalization; in tensors it is on ``device``."""
    kwargs = {"device": device} | config.kwargs if config.processes == "tensors" else config.kwargs
    return make_vec_env(
        config.id,
        config.num_envs,
        seed=seed,
        env_kwargs=kwargs,
        wrappers=config.wrappers,
        processes=config.processes,
        monitor=monitor,
    )


def kwargs_of_one(config: EnvironmentConfig) -> dict[str, Any]:
    """Keywords of a single environment of the config's id, which is on no device."""
    of_device = ("device",) if config.processes == "tensors" else ()
    return {name: value for name, value in config.kwargs.items() if name not in of_device}


def collect_episodes(environment: EnvironmentConfig, collect: CollectConfig, seed: int) -> Trajectories:
    """Episodes of a run's behaviors in its environment, in memory; the same seed gives the same episodes."""
    with closing(make_environment(environment, seed)) as env:
        parts, longest = parse_behaviors(collect.behaviors), collect.longest_episode
        return record(env, parts, episodes=collect.episodes, seed=seed, longest_episode=longest)


def collect_dataset(arguments: argparse.Namespace) -> dict[str, Any]:
    """Record what the options of ``rltransformers collect`` ask for as a Minari dataset; describe it as JSON values."""
    kwargs = mapping(arguments.env_kwargs, "--env-kwargs")
    environment = EnvironmentConfig(arguments.env, arguments.num_envs, kwargs)
    threads, dataset = use_threads(arguments.threads), arguments.dataset
    parts = parse_behaviors(arguments.behavior)
    check_dataset_id(dataset)
    with writing_minari(dataset):
        from minari.storage import get_dataset_path  # slow to import

        if not arguments.overwrite and (get_dataset_path(dataset) / "data").exists():  # before hours of recording
            raise DataError(f"the Minari dataset {dataset!r} exists; raise its version or pass --overwrite")
        # without monitor: the recording holds returns and lengths
        with closing(make_environment(environment, arguments.seed, monitor=False)) as env:
            keep = arguments.keep_indices
            if arguments.drop_indices is not None:
                keep = _others(env.observation_space, arguments.drop_indices)
            if threads is not None:
                print(threads, file=sys.stderr, flush=True)
            with tqdm(total=arguments.steps, desc="recording", unit="step", disable=not sys.stderr.isatty()) as bar:

                def advance(done: int) -> None:
                    bar.update((done if bar.total is None else min(done, bar.total)) - bar.n)

                data = record(
                    env,
                    parts,
                    arguments.steps,
                    episodes=arguments.episodes,
                    seed=arguments.seed,
                    recorded=keep,
                    deterministic=arguments.deterministic,
                    name=environment.id,
                    progress=advance,
                )
        write_minari(data, dataset, overwrite=arguments.overwrite)
    return {"dataset": dataset} | data.summary()


def parse_behaviors(texts: Sequence[str]) -> Mixture:
    """A mixture of behavior texts, each with an optional ``=weight`` behind it (1 when absent)."""
    register_behavior("checkpoint", _checkpoint)
    register_behavior("export", _export)
    return mixture([_weighted(text) for text in texts])


def _weighted(text: str) -> tuple[float, str]:
    spec, separator, weight = text.rpartition("=")
    if not separator:
        return 1.0, text
    try:
        return float(weight), spec
    except ValueError as error:
        raise ConfigError(f"behavior {text!r}: the weight behind = must be a number, got {weight!r}") from error


def _others(space: Space, drop: Sequence[int]) -> list[int]:
    if not isinstance(space, spaces.Box) or len(space.shape) != 1:
        raise ConfigError(f"--drop-indices needs a vector observation (Box of one axis), got {space}")
    size = space.shape[0]
    if any(not 0 <= index < size for index in drop) or len(set(drop)) == size:
        raise ConfigError(f"--drop-indices must lie in 0..{size - 1} and leave one entry, got {list(drop)}")
    return [index for index in range(size) if index not in drop]


def _checkpoint(argument: str, observation_space: Space, action_space: Space, deterministic: bool) -> Actor:
    file = checkpoint_in(argument)
    if is_sb3(file):
        config = file.with_name("config.yaml")
        agent = read_experiment(config).agent.replace("_", "") if config.is_file() else "CLASS"
        way_out = f"write sb3:{agent}:{file}"
        if statistics_path(file).is_file():
            way_out += ", unless environment.normalize_observation was on: sb3 cannot read these statistics"
        raise ConfigError(f"{file} is a pickle of Stable-Baselines3, as runs of baselines write it; {way_out}")
    actor = load_agent(file, device="cpu").actor(deterministic=deterministic)
    actor.name = f"checkpoint:{file}"
    return actor


def _export(argument: str, observation_space: Space, action_space: Space, deterministic: bool) -> Actor:
    return Actor.from_export(argument, deterministic=deterministic)
