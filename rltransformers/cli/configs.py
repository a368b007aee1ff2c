"""Where the config of a run comes from: a YAML file, a packaged one, or an environment and the usual settings."""

import argparse
import json
import re
from collections.abc import Sequence
from importlib import resources
from pathlib import Path
from typing import Any

from rltransformers.cli.settings import catalogue, refuse_unknown_settings
from rltransformers.cli.trust import import_modules
from rltransformers.cli.words import Overrides
from rltransformers.core.errors import ConfigError, did_you_mean
from rltransformers.core.files import read_text
from rltransformers.core.yaml_text import parse_yaml
from rltransformers.training.runs.experiment import (
    BASELINES,
    AgentName,
    ExperimentConfig,
    build_experiment,
    read_values,
    set_value,
)

USUAL = """
agent: gtrxl_ppo
environment: {num_envs: 8}
train: {total_timesteps: 100_000}
evaluation: {episodes: 20, every: 10_000}
"""
"""Settings of a run that names an environment alone; what is not here has the default of the agent."""
USUAL_BASELINE = USUAL.replace("num_envs: 8", "num_envs: 8, normalize_reward: true")
"""The same for agents of Stable-Baselines3, which scale no rewards by themselves."""
USUAL_OFFLINE = """
agent: decision_transformer
environment: {num_envs: 8}
train: {gradient_steps: 10_000}
evaluation: {episodes: 20, every: 2_500}
"""
USUAL_DATA = """
agent: decision_transformer
algorithm: {validation: 0.1}
train: {gradient_steps: 10_000}
evaluation: {every: 1_000}
"""
"""The same for a run that names data alone."""


def packaged_configs() -> list[str]:
    """Names of the configs that are installed with the package."""
    entries = resources.files("rltransformers.configs").iterdir()
    return sorted(entry.name.removesuffix(".yaml") for entry in entries if entry.name.endswith(".yaml"))


def packaged_suites() -> dict[str, str]:
    """Titles of the suites of results that are installed with the package, by name."""
    folder = resources.files("rltransformers.configs") / "suites"
    entries = sorted(folder.iterdir(), key=lambda entry: entry.name)
    titles = {entry.name: parse_yaml(entry.read_text(encoding="utf-8"), entry.name)["title"] for entry in entries}
    return {name.removesuffix(".yaml"): title for name, title in titles.items()}


def find_config(
    name: str, overrides: Sequence[tuple[str, str]], imports: Sequence[str] = (), trust: bool = False
) -> tuple[str, ExperimentConfig]:
    """Stem and content of a config: a YAML file, or the name of a packaged one, also as configs/NAME.yaml.

    The modules that it names under ``imports`` are imported where ``trust`` allows it, and ``imports`` of the command
    line are added to them. Raises ConfigError when it is neither, and for what ``read_experiment`` refuses.
    """
    path = Path(name)
    if path.is_file():
        return path.stem, _read(read_text(path, "config"), name, overrides, imports, trust)
    stem = name.removeprefix("configs/").removesuffix(".yaml")
    if stem in packaged_configs():
        text = (resources.files("rltransformers.configs") / f"{stem}.yaml").read_text(encoding="utf-8")
        return stem, _read(text, f"packaged config {stem}", overrides, imports)
    if path.stem in packaged_configs():
        raise ConfigError(f"config {name}: there is no such file; for the packaged config name it alone: {path.stem}")
    if (path / "config.yaml").is_file():
        raise ConfigError(
            f"{name} is a run folder: go on with `train --resume {name}`, or begin anew with `train {name}/config.yaml`"
        )
    way_out = did_you_mean(stem, packaged_configs())
    if env_id := environment_named(name):
        way_out = f"for an environment write --env {env_id}"
    elif name in catalogue()["agents"]:
        way_out = f"it is an agent: write --env ID --agent {name}"
    raise ConfigError(f"config {name!r} is neither a file nor a packaged config; {way_out}")


def environment_named(name: str) -> str | None:
    """The id of the environment that a word seems to name, also without its version; None where it names none."""
    if re.search(r"-v\d+$", name):
        return name
    import gymnasium

    ids = [key for key in gymnasium.registry if key.rpartition("/")[2].rpartition("-v")[0].lower() == name.lower()]
    return max(ids, key=lambda key: ("/" not in key, key), default=None)


def config_of_env(
    env_id: str, overrides: Sequence[tuple[str, str]], imports: Sequence[str] = ()
) -> tuple[str, ExperimentConfig]:
    """Name and content of the config of an environment with the usual settings of the agent in ``overrides``."""
    agent = parse_yaml(dict(overrides).get("agent", AgentName.GTRXL_PPO), "--agent")
    text = USUAL_OFFLINE if agent == AgentName.DECISION_TRANSFORMER else USUAL_BASELINE if agent in BASELINES else USUAL
    config = _read(text, "--env", overrides, imports)
    return f"{env_id.rpartition(':')[2].rpartition('/')[2]}-{config.agent}", config


def names_data(overrides: Sequence[tuple[str, str]]) -> bool:
    """Whether settings name the data of a run."""
    return any(key in ("dataset", "dataset.id") for key, _ in overrides)


def read_config(arguments: argparse.Namespace) -> tuple[str, ExperimentConfig, Overrides]:
    """Name and config that the words of a command ask for, and the settings that were typed."""
    if arguments.config is None and arguments.env is None and names_data(arguments.overrides):
        config = _read(USUAL_DATA, "--dataset.id", arguments.overrides, arguments.imports)
        assert config.dataset is not None and config.dataset.id is not None  # whoever has no environment needs an id
        return f"{Path(config.dataset.id).stem}-{config.agent}", config, arguments.overrides
    if (arguments.config is None) == (arguments.env is None):
        names = ", ".join(packaged_configs())
        raise ConfigError(
            f"{arguments.command} needs either CONFIG or --env ID (with a CONFIG: --environment.id ID), or "
            f"--dataset.id alone; packaged configs: {names}"
        )
    if arguments.config is not None:
        trust = getattr(arguments, "trust", False)
        return *find_config(arguments.config, arguments.overrides, arguments.imports, trust), arguments.overrides
    typed = [("environment.id", json.dumps(arguments.env)), *arguments.overrides]
    for key, _ in arguments.overrides:
        if key in ("environment", "environment.id"):
            raise ConfigError(f"--{key} would replace --env; name the environment once, as --env or in a CONFIG")
    return *config_of_env(arguments.env, typed, arguments.imports), typed


def _read(
    text: str, source: str, overrides: Sequence[tuple[str, str]], imports: Sequence[str], trust: bool = False
) -> ExperimentConfig:
    values = read_values(text, source, overrides)
    if modules := values.get("imports"):
        import_modules(modules, source, trust or "imports" in dict(overrides))
    if imports:
        values["imports"] = list(dict.fromkeys([*(modules or ()), *imports]))
    typed: dict[str, Any] = {"agent": values.get("agent")}
    for key, words in overrides:
        set_value(typed, key, parse_yaml(words, f"--{key}"))
    refuse_unknown_settings(typed)
    refuse_unknown_settings(values, f"{source}: ")
    return build_experiment(values, source)
