"""Types, ranges and names of the settings of agent, policy and backbone, checked before torch is imported."""

import dataclasses
from collections.abc import Iterator, Mapping, Sequence
from functools import cache
from typing import Any

from rltransformers.cli.entries import CHOICES, from_json
from rltransformers.cli.settings import catalogue, refuse_set_elsewhere
from rltransformers.core.errors import ConfigError, did_you_mean
from rltransformers.core.extensions import load_installed
from rltransformers.core.ranges import check, check_settings
from rltransformers.core.spec import Choice, NoOptions, Spec, is_list
from rltransformers.training.runs.experiment import ExperimentConfig


def check_values(config: ExperimentConfig) -> None:
    """Raise unless every value of agent, policy and backbone has its type, lies in its range, or is a known name.

    Raises ConfigError in the words of ``rltransformers.cli.keywords.check_config``.
    """
    agent = config.agent.value
    refuse_set_elsewhere(config.algorithm)
    check_settings(_types("algorithm.", agent), config.algorithm, "algorithm.")
    check_settings(_types("policy.", agent), config.policy, "policy.")
    for record in ("algorithm.critic_kwargs", "algorithm.action_head_kwargs"):
        values = config.algorithm.get(record.partition(".")[2]) or {}
        check_settings(_types(f"{record}.", agent), values, f"{record}.")
    observation = config.policy.get("observation") or {}
    for key, value in (
        ("policy.readout", config.policy.get("readout")),
        ("policy.observation.encoder", observation.get("encoder")),
    ):
        if value is not None and (table := _mechanisms(key)):
            Choice.parse(value, key.rpartition(".")[2], table, key)
    for wrapper in config.environment.wrappers:
        _check_wrapper(wrapper)
    _check_backbone(config.backbone, agent)


def _check_backbone(backbone: Mapping[str, Any], agent: str) -> None:
    presets = [each["name"] for each in catalogue()["presets"]]
    preset = check(backbone.get("preset", presets[0]), str, "backbone.preset")
    if preset not in presets:
        raise ConfigError(f"backbone: unknown preset {preset!r}; {did_you_mean(preset, presets)}")
    types = _types("backbone.", agent)
    for name, value in backbone.items():
        key = f"backbone.{name}"
        if table := _mechanisms(key):
            for place, choice in _choices(value, key):
                Choice.parse(choice, name, table, place)
        elif name in types:
            check(value, types[name], key)
    losses, weights = backbone.get("losses"), _types("backbone.losses.", agent)
    if isinstance(losses, Mapping):
        if not losses.keys() <= weights.keys():
            load_installed()
            weights = _types("backbone.losses.", agent)
        numbers = {
            name: value for name, value in losses.items() if not (name in weights and isinstance(value, Mapping))
        }
        check_settings(weights, numbers, "backbone.losses.")


def _check_wrapper(wrapper: Any) -> None:
    """Raise ConfigError for a name that is no wrapper; what a module of somebody else holds is not looked at."""
    name = wrapper.get("name") if isinstance(wrapper, Mapping) else wrapper
    ours = catalogue()["wrappers"]
    if not isinstance(name, str) or ":" in name or name in ours:
        return
    import gymnasium.wrappers

    if not hasattr(gymnasium.wrappers, name):
        known = [*ours, *(each for each in gymnasium.wrappers.__all__ if each[0].isupper())]  # no modules
        raise ConfigError(f"unknown wrapper {name!r}; {did_you_mean(name, known)}")


def _choices(value: Any, place: str) -> Iterator[tuple[str, Any]]:
    """The choices in a value and where they stand; lists hold those of layers, and of heads inside these."""
    if not is_list(value):
        yield place, value
        return
    for index, each in enumerate(value):
        yield from _choices(each, f"{place}[{index}]")


def _types(section: str, agent: str) -> dict[str, Any]:
    return {
        entry["key"].removeprefix(section): from_json(entry["type"])
        for entry in catalogue()["settings"]
        if entry["key"].startswith(section)
        and "." not in entry["key"].removeprefix(section)
        and agent in entry["agents"]
        and "type" in entry
    }


@cache
def _mechanisms(key: str) -> dict[str, Spec]:
    """The mechanisms that a setting can name, with their options; none where it is no choice."""
    settings = catalogue()["settings"]
    if not any(entry["key"] == f"{key}.name" for entry in settings):
        return {}
    axis = key.rpartition(".")[2]
    table = {}
    for entry in catalogue()["axes"][axis]:
        own = [each for each in settings if each.get("of") == entry["name"] and each["key"].startswith(f"{key}.")]
        options: dict[str, Any] = {}  # fields of a record of options; agents may have entries of their own
        for each in own:
            option = each["key"].rpartition(".")[2]
            annotation = Sequence[Choice] if each["type"] == CHOICES else from_json(each["type"])
            required = each["default"] == "required"  # of others the default is not looked at
            options[option] = (option, annotation, *([] if required else [dataclasses.field(default=None)]))
        record = dataclasses.make_dataclass("Options", options.values(), frozen=True) if options else NoOptions
        table[entry["name"]] = Spec("", entry["name"], axis, "", "", options=record, settings=entry["settings"])
    return table
