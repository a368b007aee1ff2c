"""Catalogue for the command line, which reads it without torch: every mechanism, and every setting of a run.

``docs/_tools/update_docs.py`` writes it to ``rltransformers/cli/catalogue.json``, which ``list``, ``settings``,
suggestions and the completion of the shell read. A setting is what an annotation and the entry in a docstring say about
it.
"""

import dataclasses
import inspect
import json
import typing
from collections.abc import Callable, Iterator, Mapping
from dataclasses import fields, is_dataclass
from pathlib import Path
from typing import Any, get_args

import gymnasium

from rltransformers.backbone import AXES, PLAIN, PRESETS, BackboneConfig, catalogue
from rltransformers.cli.entries import (
    Entry,
    choice_entries,
    explanations,
    loss_entries,
    mechanism_entry,
    plain_default,
    setting_entry,
)
from rltransformers.cli.keywords import AGENT_CLASSES, keyword_hints, policy_class, policy_hints
from rltransformers.core.spec import Spec
from rltransformers.envs.wrappers import WRAPPERS
from rltransformers.policies.observed import ObservationOptions
from rltransformers.policies.readouts.catalogue import READOUTS
from rltransformers.policies.set_encoders.catalogue import ENCODERS
from rltransformers.policies.several_modes import ActionHeadOptions
from rltransformers.training.offline.settings import SIZES, AdvantageOptions, CriticOptions
from rltransformers.training.runs.experiment import BASELINES, RESTARTING, AgentName, ExperimentConfig

PATH = Path(__file__).resolve().parents[2] / "rltransformers" / "cli" / "catalogue.json"
OF_MECHANISM = {"accepts": "a name, or {name: ..., option: value}"}
OF_BASELINES = {
    "n_steps": "Steps per environment between two updates",
    "batch_size": "Steps per minibatch",
    "normalize_advantage": "Bring the advantages of every minibatch to mean 0 and standard deviation 1",
    "use_sde": "Explore by noise that depends on the state (gSDE, arXiv 2005.05719)",
    "sde_sample_freq": "Steps between two draws of the gSDE noise; -1: one draw per rollout",
    "log_std_init": "First logarithm of the standard deviation of Box actions",
    "net_arch": "Hidden layers, of recurrent_ppo behind the LSTM: widths, or {pi: widths, vf: widths}",
    "activation_fn": "Class of the activation; from Python only",
    "ortho_init": "Begin with orthogonal weights",
    "full_std": "With use_sde: a deviation per feature and action, not per feature alone",
    "use_expln": "With use_sde: a deviation that grows slower than exponentially",
    "squash_output": "With use_sde: bend actions by tanh",
    "features_extractor_class": "Class of the network in front of it; from Python only",
    "features_extractor_kwargs": "Keywords of the network in front of it",
    "share_features_extractor": "Let actor and critic share the network in front of it",
    "normalize_images": "Divide images by 255",
    "optimizer_class": "Class of the optimizer; from Python only",
    "optimizer_kwargs": "Keywords of the optimizer beside the learning rate",
    "lstm_hidden_size": "Units of every layer of the LSTM",
    "n_lstm_layers": "Layers of the LSTM",
    "shared_lstm": "Let actor and critic share one LSTM, which learns from the actor alone",
    "enable_critic_lstm": "Give the critic an LSTM of its own",
    "lstm_kwargs": "Further keywords of torch.nn.LSTM or GRU",
    "cell": "What remembers: LSTMs, or GRUs wherever the other settings say LSTM",
}
"""Keywords of sb3-contrib's and Stable-Baselines3's agents in words of ours; others mean what they mean for ours."""
OF_SAC = {
    "batch_size": "Steps per minibatch",
    "buffer_size": "Steps of all environments together that the replay holds",
    "learning_starts": "Random steps of all environments together before the first update",
    "train_freq": "Steps per environment from one round of updates to the next",
    "n_steps": "Steps of reward before a target bootstraps",
    "ent_coef": "Weight of the entropy; auto: learned, auto_0.1: learned from there",
    "target_update_interval": "Gradient steps between two moves of the target",
    "target_entropy": "Entropy that a learned weight holds; auto: minus the number of actions",
    "use_sde_at_warmup": "With use_sde: use its noise before learning starts, too",
    "sde_sample_freq": "Steps between two draws of the gSDE noise; -1: one draw per collection",
    "optimize_memory_usage": "Keep next observations as observations of the next step",
    "log_std_init": "First logarithm of the standard deviation with use_sde",
    "clip_mean": "With use_sde: bound of the mean before tanh",
    "n_critics": "How many critics there are; targets take the least of them",
    "net_arch": "Hidden layers: widths, or {pi: widths, qf: widths}",
    "share_features_extractor": "Let actor and critics share the network in front",
    "gradient_steps": "Updates per round",
    "tau": "Step of the target towards the learner",
}
"""The same for SAC."""
ADDED = {"cell": "lstm"}
"""Defaults of keywords that the class of a policy does not have itself; of the others it is null."""
OF_DECISION_TRANSFORMER = {
    "preset": "decision_transformer",
    "memory": "algorithm.context_length - 1",
    "tokens_per_step": "3, without a token of the return 2",
}
"""Defaults of its backbone beside those of the preset."""
OFFLINE = (AgentName.DECISION_TRANSFORMER,)
ONLINE = tuple(agent for agent in AgentName if agent not in OFFLINE)
OF_AGENTS = {
    "environment.processes": ONLINE,
    "environment.normalize_observation": ONLINE,
    "environment.normalize_reward": ONLINE,
    "environment.novelty_bonus": ONLINE,
    "environment.novelty_steps": ONLINE,
    "train.total_timesteps": ONLINE,
    "train.gradient_steps": OFFLINE,
    "train.restart_every": RESTARTING,
    "dataset.": OFFLINE,
    "online.": OFFLINE,
    "evaluation.target_returns": OFFLINE,
    "evaluation.patience": OFFLINE,
}
"""Settings, and sections, that ``ExperimentConfig`` refuses for other agents."""


def text() -> str:
    """The file, a line per entry, so that a change shows as a changed line."""
    parts = []
    for name, value in contents().items():
        if isinstance(value, dict):
            groups = (f'"{key}": [\n{_lines(entries)}\n]' for key, entries in value.items())
            parts.append(f'"{name}": {{\n{",".join(groups)}\n}}')
        else:
            parts.append(f'"{name}": [\n{_lines(value)}\n]')
    return "{" + ",\n".join(parts) + "}\n"


def _lines(entries: list[Any]) -> str:
    return ",\n".join(json.dumps(each, ensure_ascii=False, default=list) for each in entries)


def contents() -> dict[str, Any]:
    """Axes with their mechanisms, presets, agents, wrappers, settings, as JSON values."""
    presets = [
        {"id": preset.id, "name": name, "paper": preset.paper, "sets": preset.overrides, "differs": preset.deviation}
        for name, preset in sorted(PRESETS.items())
    ]
    return {
        "axes": {axis: [mechanism_entry(spec) for spec in specs] for axis, specs in _axes().items()},
        "presets": presets,
        "agents": [agent.value for agent in AgentName],
        "wrappers": sorted(WRAPPERS),
        "settings": settings(),
    }


def _axes() -> dict[str, list[Spec]]:
    return catalogue() | {"encoder": list(ENCODERS.values()), "readout": list(READOUTS.values())}


def settings() -> list[Entry]:
    """Every dotted key, in the order of a config; one that differs between agents or mechanisms has an entry for each.

    An entry has ``key``, ``accepts``, ``default`` (as YAML; "required" without one), ``says``, and where they apply
    ``agents`` that alone have it, ``of`` (the mechanism that alone has it), ``names`` that it can be, and ``type`` (of
    ``rltransformers.cli.entries``).
    """
    found: list[Entry] = []
    for entry in _of_record(ExperimentConfig, ""):
        section = {"backbone": _backbone_by_agent, "algorithm": _algorithm, "policy": _policy}.get(entry["key"])
        found += [entry] if section is None else section()
    return [_of_some_agents(each) for entry in found for each in (entry, *_below(entry))]


def _below(entry: Entry) -> Iterator[Entry]:
    """The keys of a keyword of an agent that is a mapping."""
    inner: list[Entry] = []
    match key := entry["key"]:
        case "algorithm.advantage_kwargs":
            inner = list(_of_record(AdvantageOptions, f"{key}."))
        case "algorithm.critic_kwargs":
            inner = list(_of_record(CriticOptions, f"{key}."))
        case "algorithm.action_head_kwargs":
            inner = list(_of_record(ActionHeadOptions, f"{key}."))
        case "policy.readout":
            inner = list(choice_entries(key, READOUTS))
        case "policy.observation":
            explained = explanations(ObservationOptions)
            choice = _setting(f"{key}.encoder", Any, None, explained["encoder"])
            leaves = _setting(f"{key}.leaves", ObservationOptions.__annotations__["leaves"], None, explained["leaves"])
            choice |= OF_MECHANISM | {"names": list(ENCODERS)}
            inner = [choice, *choice_entries(f"{key}.encoder", ENCODERS), leaves]
    yield from (each | {"agents": entry["agents"]} for each in inner)


def _of_some_agents(entry: Entry) -> Entry:
    """The entry with the agents that take it, where not all do."""
    takers = next((agents for key, agents in OF_AGENTS.items() if entry["key"].startswith(key)), ())
    return entry | {"agents": [agent.value for agent in takers]} if takers else entry


def _of_record(record: type, prefix: str) -> Iterator[Entry]:
    hints, explained = typing.get_type_hints(record, include_extras=True), explanations(record)
    for each in fields(record):
        key, hint = prefix + each.name, hints[each.name]
        inner = next((part for part in (hint, *get_args(hint)) if isinstance(part, type) and is_dataclass(part)), None)
        if inner is not None:
            yield from _of_record(inner, f"{key}.")
            continue
        default = each.default if each.default_factory is dataclasses.MISSING else each.default_factory()
        yield _setting(key, hint, default, explained[each.name])


def _backbone_by_agent() -> Iterator[Entry]:
    """A decision_transformer starts from a small form of its preset, the others that have a backbone from gtrxl."""
    preset = AgentName.DECISION_TRANSFORMER.value
    others = [agent.value for agent in AgentName if agent not in (preset, *BASELINES)]
    defaults = {**PLAIN, **PRESETS[preset].overrides, **SIZES}
    own = {name: plain_default(value) for name, value in defaults.items()} | OF_DECISION_TRANSFORMER
    for entry in _backbone():
        default = own.get(entry["key"].removeprefix("backbone."), entry["default"])
        if default == entry["default"]:
            yield entry | {"agents": [*others, preset]}
        else:
            yield entry | {"agents": others}
            yield entry | {"agents": [preset], "default": default}


def _backbone() -> Iterator[Entry]:
    yield _setting(
        "backbone.preset",
        str,
        "gtrxl",
        "The combination of a paper that other settings change; decision_transformer has one of its name, made smaller",
    ) | {"names": sorted(PRESETS)}
    explained = explanations(BackboneConfig)
    hints = typing.get_type_hints(BackboneConfig, include_extras=True)
    for each in fields(BackboneConfig):
        key, specs = f"backbone.{each.name}", AXES[each.name].table.values() if each.name in AXES else ()
        if each.name == "losses":
            for spec in specs:
                yield from loss_entries(spec)
            continue
        if not specs:
            yield _setting(key, hints[each.name], each.default, explained[each.name])
            continue
        names = [spec.name for spec in specs if not spec.settings]
        yield _setting(key, Any, each.default, f"{AXES[each.name].decides[0].upper()}{AXES[each.name].decides[1:]}") | {
            "accepts": OF_MECHANISM["accepts"] + _lists(each.name),
            "names": names,
        }
        yield from choice_entries(key, {spec.name: spec for spec in specs})


def _lists(axis: str) -> str:
    if AXES[axis].per_layer:
        return "; a list gives the layers theirs in turn"
    return "; a list gives several that act together" if AXES[axis].several else ""


def _algorithm() -> Iterator[Entry]:
    yield from _by_agent("algorithm.", keyword_hints, lambda agent: AGENT_CLASSES[agent])


def _policy() -> Iterator[Entry]:
    yield from _by_agent("policy.", policy_hints, policy_class)


def _by_agent(
    prefix: str, hints_of: Callable[[AgentName], Mapping[str, Any]], class_of: Callable[[AgentName], type]
) -> Iterator[Entry]:
    """Keywords of all agents; agents that say the same of one share an entry."""
    found: dict[str, list[Entry]] = {}
    common = explanations(class_of(AgentName.GTRXL_PPO))
    for agent in AgentName:
        made = class_of(agent)
        defaults = inspect.signature(made.__init__).parameters  # type: ignore[misc]
        explained = OF_BASELINES if agent in BASELINES else explanations(made)
        explained = explained | (OF_SAC if agent is AgentName.SAC else {})
        for name, hint in hints_of(agent).items():
            explanation = explained.get(name, "")
            if explanation.startswith("As for GTrXLDQN"):
                explanation = explanations(AGENT_CLASSES[AgentName.GTRXL_DQN]).get(name, "")
            explanation = (
                common.get(name, "") if not explanation or explanation.startswith("As for GTrXL") else explanation
            )
            default = defaults[name].default if name in defaults else ADDED.get(name)
            entry = _setting(prefix + name, hint, default, explanation)
            twin = next(
                (each for each in found.setdefault(name, []) if each | {"agents": 0} == entry | {"agents": 0}), None
            )
            if twin is None:
                found[name].append(entry | {"agents": [agent.value]})
            else:
                twin["agents"].append(agent.value)
    for entries in found.values():
        yield from entries


def _setting(key: str, hint: Any, default: Any, says: str) -> Entry:
    entry = setting_entry(key, hint, default, says)
    if key == "environment.id":
        entry["names"] = sorted(each for each in gymnasium.registry if each.startswith("rltransformers/"))
    return entry
