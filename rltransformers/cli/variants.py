"""Variants of a config: names with the settings that differ, from `--sweep`, from a file or from a suite."""

import argparse
import itertools
import re
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from hashlib import sha256
from typing import Any

from rltransformers.cli import trust
from rltransformers.cli.configs import read_config
from rltransformers.cli.values import check_values
from rltransformers.core.errors import ConfigError
from rltransformers.core.files import read_text
from rltransformers.core.ranges import Count, check
from rltransformers.core.yaml_text import parse_yaml, yaml_of
from rltransformers.training.runs.experiment import ExperimentConfig
from rltransformers.training.runs.groups import ASIDE, value_text

LONGEST_SLUG = 100


@dataclass(frozen=True)
class Variant:
    """A config with a name, and the beginning of the names of its run folders; ``seeds`` of it are trained at most."""

    name: str
    folder: str
    config: ExperimentConfig
    seeds: int | None = None


def read_variants(arguments: argparse.Namespace) -> list[Variant]:
    """The product of `--variants FILE` and every `--sweep KEY=V1,V2,...`, checked before anything is trained.

    Raises:
        ConfigError: for what cannot be meant, and for a variant whose config cannot work; names it.
    """
    sweeps = _sweeps(arguments.sweep)
    _check_apart(arguments.overrides, sweeps)
    base = {"": {}} if arguments.variants is None else read_file(arguments.variants)
    for name, changes in base.items():
        _check_apart(arguments.overrides, changes, f"{arguments.variants}: {name}: ")
        trust.import_modules(changes.get("imports", []), str(arguments.variants), arguments.trust)
        for key, swept in itertools.product(changes, sweeps):
            if key == swept or key.startswith(f"{swept}."):
                place = f"--sweep {swept}: {name} in {arguments.variants}"
                raise ConfigError(f"{place} sets {key}; leave one of the two out")
    variants: list[tuple[str, ExperimentConfig, int | None]] = []
    typed = [*arguments.overrides, *((key, "") for key in sweeps)]
    of_env = [] if arguments.env is None else [("environment.id", arguments.env)]
    for (name, changes), *values in itertools.product(base.items(), *sweeps.values()):
        settings = dict(zip(sweeps, values, strict=True))
        texts = [name] if name else []
        name = ", ".join([*texts, *(f"{key}={value_text(value)}" for key, value in settings.items())])
        changes = dict(changes)
        seeds = changes.pop("seeds", None)
        try:
            config = _config(arguments, changes | settings)
            check_values(config)
        except ConfigError as error:
            raise ConfigError(f"variant {name}: {error}") from error
        foreign = trust.not_typed(trust.programs(config), typed if "config" in changes else [*of_env, *typed])
        trust.require_trust(foreign, str(arguments.variants or arguments.config), arguments.trust)
        variants.append((name, config, seeds))
    folders = folders_of([name for name, *_ in variants], "the sweep")
    return [Variant(name, folders[name], config, seeds) for name, config, seeds in variants]


def folders_of(names: Sequence[str], place: str) -> dict[str, str]:
    """Name of a folder for each variant; ConfigError, which begins with ``place``, for two that would share one."""
    slugs = [slug(name) for name in names]
    for name, folder in zip(names, slugs, strict=True):
        if slugs.count(folder) > 1:
            raise ConfigError(
                f"{place}: two variants would share the run folder {folder!r}; rename one ({name!r}; values of a sweep "
                "get names of their own in a file, see --variants)"
            )
    return dict(zip(names, slugs, strict=True))


def slug(name: str) -> str:
    """A name as a folder."""
    text = re.sub(r"[=([,] *-(?=[.\d])", "-minus", name.lower())
    text = re.sub(r"[^\w.]+|_+", "-", text).strip("-") or "variant"
    if len(text.encode()) > LONGEST_SLUG:
        cut = text.encode()[:LONGEST_SLUG].decode(errors="ignore")
        text = f"{cut}-{sha256(name.encode()).hexdigest()[:8]}"
    return text


def _sweeps(texts: Sequence[str]) -> dict[str, list[Any]]:
    """Values of every swept setting."""
    sweeps: dict[str, list[Any]] = {}
    for text in texts:
        key, equals, values = text.partition("=")
        if not equals or not key:
            raise ConfigError(f"--sweep takes KEY=VALUE,VALUE,..., as backbone.mixer=softmax,linear; got {text!r}")
        if key in sweeps:
            raise ConfigError(f"--sweep {key} is given twice; give it once, with all values")
        if (name := key.partition(".")[0]) in ASIDE:
            hint = {"seed": "give --seeds N", "tune": "leave it out"}.get(name, f"give --{name} VALUE")
            raise ConfigError(f"--sweep {key}: runs are not compared by {name}; {hint}")
        sweeps[key] = parse_yaml(f"[{values}]", f"--sweep {key}")
        if len(sweeps[key]) < 2:
            raise ConfigError(
                f"--sweep {key} has one value ({values}); give several, V1,V2, or --{key} {values or 'V'}"
            )
        if doubles := [value for place, value in enumerate(sweeps[key]) if value in sweeps[key][:place]]:
            raise ConfigError(f"--sweep {key} has {value_text(doubles[0])} twice; give every value once")
    for key, other in itertools.permutations(sweeps, 2):
        if key.startswith(f"{other}."):
            raise ConfigError(f"--sweep {key} is a part of {other}, which is swept too; sweep one of the two")
    return sweeps


def read_file(path: str) -> dict[str, dict[str, Any]]:
    """Variants of a YAML file, name -> dotted overrides; ConfigError for one that is none."""
    values = parse_yaml(read_text(path, "--variants"), path)
    if not isinstance(values, Mapping) or not values:
        raise ConfigError(f"--variants {path} must map names to settings, as `no memory: {{backbone.memory: 0}}`")
    for name, changes in values.items():
        if not isinstance(changes, Mapping | None):
            raise ConfigError(f"{path}: {name} must be a mapping of settings, got {changes!r}")
        if (changes or {}).get("dataset") == "mean":
            raise ConfigError(f"{path}: {name}: `dataset: mean` trains nothing: it is for `rltransformers suite`")
        for key in changes or {}:
            if str(key).partition(".")[0] in ASIDE:
                raise ConfigError(f"{path}: {name}: {key} is that of all variants; leave it out")
    variants = {str(name): dict(changes or {}) for name, changes in values.items()}
    for name, changes in variants.items():
        if "seeds" in changes:
            changes["seeds"] = check(changes["seeds"], Count, f"{path}: {name}: seeds")
    if len(variants) < len(values):
        raise ConfigError(f"{path}: two variants have the same name, one of them as a number; rename one")
    return variants


def _check_apart(overrides: Sequence[tuple[str, str]], keys: Iterable[str], place: str = "--sweep ") -> None:
    """Raise ConfigError for a key that an override of the command line sets, or is a part of."""
    for key in keys:
        for typed, _ in overrides:
            if typed == key or typed.startswith(f"{key}."):
                raise ConfigError(f"{place}{key} would replace --{typed}; leave one of the two out")


def _config(arguments: argparse.Namespace, changes: Mapping[str, Any]) -> ExperimentConfig:
    words, settings = argparse.Namespace(**vars(arguments)), dict(changes)
    if "config" in settings:
        words.config, words.env = str(settings.pop("config")), None
    words.overrides = [*arguments.overrides, *((key, yaml_of(value)) for key, value in settings.items())]
    return read_config(words)[1]
