"""Catalogue for the command line, which reads it without torch: every mechanism, and every setting of a run.

``scripts/update_docs.py`` writes it to ``rltransformers/cli/catalogue.json``, which ``list``, ``settings``, suggestions
and the completion of the shell read. A setting is what an annotation and the entry in a docstring say about it.
"""

import dataclasses
import inspect
import json
import re
import typing
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import asdict, fields, is_dataclass
from enum import StrEnum
from pathlib import Path
from typing import Any, Literal, get_args, get_origin

import gymnasium

from rltransformers.backbone import AXES, PLAIN, PRESETS, BackboneConfig, catalogue
from rltransformers.backbone.choices import WEIGHT
from rltransformers.backbone.config import LossWeight
from rltransformers.cli.keywords import AGENT_CLASSES, keyword_hints, policy_class, policy_hints
from rltransformers.cli.values import CHOICES
from rltransformers.core.ranges import describe
from rltransformers.core.spec import Choice, Spec
from rltransformers.core.stored_types import to_json
from rltransformers.envs.wrappers import WRAPPERS
from rltransformers.policies.observed import ObservationOptions
from rltransformers.policies.readouts.catalogue import READOUTS
from rltransformers.policies.set_encoders.catalogue import ENCODERS
from rltransformers.training.decision_settings import CriticOptions
from rltransformers.training.experiment import RESTARTING, AgentName, ExperimentConfig

PATH = Path(__file__).resolve().parents[1] / "rltransformers" / "cli" / "catalogue.json"
REQUIRED = "required"
OF_MECHANISM = {"accepts": "a name, or {name: ..., option: value}"}
OF_RECURRENT_PPO = {
    "n_steps": "Steps per environment between two updates",
    "batch_size": "Steps per minibatch",
    "normalize_advantage": "Bring the advantages of every minibatch to mean 0 and standard deviation 1",
    "use_sde": "Explore by noise that depends on the state (gSDE, arXiv 2005.05719)",
    "sde_sample_freq": "Steps between two draws of the gSDE noise; -1: one draw per rollout",
    "log_std_init": "First logarithm of the standard deviation of Box actions",
    "net_arch": "Hidden layers behind the LSTM: widths, or {pi: widths, vf: widths}",
    "activation_fn": "Class of the activation; from Python only",
    "ortho_init": "Begin with orthogonal weights",
    "full_std": "With use_sde: a deviation per feature and action, not per feature alone",
    "use_expln": "With use_sde: a deviation that grows slower than exponentially",
    "squash_output": "With use_sde: bend actions by tanh",
    "features_extractor_class": "Class of the network in front of the LSTM; from Python only",
    "features_extractor_kwargs": "Keywords of the network in front of the LSTM",
    "share_features_extractor": "Let actor and critic share the network in front of the LSTM",
    "normalize_images": "Divide images by 255",
    "optimizer_class": "Class of the optimiser; from Python only",
    "optimizer_kwargs": "Keywords of the optimiser beside the learning rate",
    "lstm_hidden_size": "Units of every layer of the LSTM",
    "n_lstm_layers": "Layers of the LSTM",
    "shared_lstm": "Let actor and critic share one LSTM, which learns from the actor alone",
    "enable_critic_lstm": "Give the critic an LSTM of its own",
    "lstm_kwargs": "Further keywords of torch.nn.LSTM or GRU",
    "cell": "What remembers: LSTMs, or GRUs wherever the other settings say LSTM",
}
"""Keywords of sb3-contrib's agent in words of ours; the others mean what they mean for GTrXLPPO."""
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
    "train.total_timesteps": ONLINE,
    "train.gradient_steps": OFFLINE,
    "train.restart_every": RESTARTING,
    "dataset.": OFFLINE,
    "online.": OFFLINE,
    "evaluation.target_returns": OFFLINE,
}
"""Settings, and sections, that ``ExperimentConfig`` refuses for other agents."""
Setting = dict[str, Any]


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
        "axes": {axis: [_mechanism(spec) for spec in specs] for axis, specs in _axes().items()},
        "presets": presets,
        "agents": [agent.value for agent in AgentName],
        "wrappers": sorted(WRAPPERS),
        "settings": settings(),
    }


def _axes() -> dict[str, list[Spec]]:
    return catalogue() | {"encoder": list(ENCODERS.values()), "readout": list(READOUTS.values())}


def _mechanism(spec: Spec) -> dict[str, Any]:
    return {
        "id": spec.id,
        "name": spec.name,
        "paper": spec.paper,
        "summary": spec.summary,
        "formula": spec.formula,
        "settings": spec.settings,
        "options": spec.options_text(),
        "traits": asdict(spec.traits),
    }


def settings() -> list[Setting]:
    """Every dotted key, in the order of a config; one that differs between agents or mechanisms has an entry for each.

    An entry has ``key``, ``accepts``, ``default`` (as YAML; "required" without one), ``says``, and where they apply
    ``agents`` that alone have it, ``of`` (the mechanism that alone has it), ``names`` that it can be, and ``type`` (of
    ``rltransformers.core.stored_types``).
    """
    found: list[Setting] = []
    for entry in _of_record(ExperimentConfig, ""):
        section = {"backbone": _backbone_by_agent, "algorithm": _algorithm, "policy": _policy}.get(entry["key"])
        found += [entry] if section is None else section()
    return [_of_some_agents(each) for entry in found for each in (entry, *_below(entry))]


def _below(entry: Setting) -> Iterator[Setting]:
    """The keys of a keyword of an agent that is a mapping."""
    inner: list[Setting] = []
    match key := entry["key"]:
        case "algorithm.critic_kwargs":
            inner = list(_of_record(CriticOptions, f"{key}."))
        case "policy.readout":
            inner = list(_of_choice(key, READOUTS))
        case "policy.observation":
            explained = explanations(ObservationOptions)
            choice = _setting(f"{key}.encoder", Any, None, explained["encoder"])
            leaves = _setting(f"{key}.leaves", ObservationOptions.__annotations__["leaves"], None, explained["leaves"])
            choice |= OF_MECHANISM | {"names": list(ENCODERS)}
            inner = [choice, *_of_choice(f"{key}.encoder", ENCODERS), leaves]
    yield from (each | {"agents": entry["agents"]} for each in inner)


def _of_choice(key: str, specs: Mapping[str, Spec]) -> Iterator[Setting]:
    """The keys of a mechanism that is written with its options."""
    yield _setting(f"{key}.name", str, dataclasses.MISSING, "The mechanism, where its options are set too") | {
        "names": [name for name, spec in specs.items() if not spec.settings]
    }
    for spec in specs.values():
        yield from _options(key, spec)


def _of_some_agents(entry: Setting) -> Setting:
    """The entry with the agents that take it, where not all do."""
    takers = next((agents for key, agents in OF_AGENTS.items() if entry["key"].startswith(key)), ())
    return entry | {"agents": [agent.value for agent in takers]} if takers else entry


def _of_record(record: type, prefix: str) -> Iterator[Setting]:
    hints, explained = typing.get_type_hints(record, include_extras=True), explanations(record)
    for each in fields(record):
        key, hint = prefix + each.name, hints[each.name]
        inner = next((part for part in (hint, *get_args(hint)) if isinstance(part, type) and is_dataclass(part)), None)
        if inner is not None:
            yield from _of_record(inner, f"{key}.")
            continue
        default = each.default if each.default_factory is dataclasses.MISSING else each.default_factory()
        yield _setting(key, hint, default, explained[each.name])


def _backbone_by_agent() -> Iterator[Setting]:
    """A decision_transformer starts from the preset of its name, the others that have a backbone from gtrxl."""
    preset = AgentName.DECISION_TRANSFORMER.value
    others = [agent.value for agent in AgentName if agent not in (preset, AgentName.RECURRENT_PPO)]
    defaults = {**PLAIN, **PRESETS[preset].overrides}
    own = {name: _plain(value) for name, value in defaults.items()} | OF_DECISION_TRANSFORMER
    for entry in _backbone():
        default = own.get(entry["key"].removeprefix("backbone."), entry["default"])
        if default == entry["default"]:
            yield entry | {"agents": [*others, preset]}
        else:
            yield entry | {"agents": others}
            yield entry | {"agents": [preset], "default": default}


def _backbone() -> Iterator[Setting]:
    yield _setting(
        "backbone.preset",
        str,
        "gtrxl",
        "The combination of a paper that other settings change; decision_transformer has one of its name",
    ) | {"names": sorted(PRESETS)}
    explained = explanations(BackboneConfig)
    hints = typing.get_type_hints(BackboneConfig, include_extras=True)
    for each in fields(BackboneConfig):
        key, specs = f"backbone.{each.name}", AXES[each.name].table.values() if each.name in AXES else ()
        if each.name == "losses":
            for spec in specs:
                yield _setting(
                    f"{key}.{spec.name}", LossWeight, 0.0, f"Weight of the auxiliary loss: {spec.summary.rstrip('.')}"
                )
                if spec.ranges():
                    weight = "Weight of the auxiliary loss, where its options are set too"
                    yield _setting(f"{key}.{spec.name}.{WEIGHT}", LossWeight, dataclasses.MISSING, weight)
                    yield from _options(f"{key}.{spec.name}", spec)
            continue
        if not specs:
            yield _setting(key, hints[each.name], each.default, explained[each.name])
            continue
        names = [spec.name for spec in specs if not spec.settings]
        yield _setting(key, Any, each.default, f"{AXES[each.name].decides[0].upper()}{AXES[each.name].decides[1:]}") | {
            "accepts": OF_MECHANISM["accepts"] + _lists(each.name),
            "names": names,
        }
        yield from _of_choice(key, {spec.name: spec for spec in specs})


def _lists(axis: str) -> str:
    if AXES[axis].per_layer:
        return "; a list gives the layers theirs in turn"
    return "; a list gives several that act together" if AXES[axis].several else ""


def _options(key: str, spec: Spec) -> Iterator[Setting]:
    explained, ranges, defaults = explanations(spec.options), spec.ranges(), spec.defaults()
    if len(defaults) == 1:  # the record of a single option may say it in its first line
        (name,), (first, *_) = defaults, (inspect.getdoc(spec.options) or "").split("\n\n")
        explained = {name: _explanation(name, first)} | explained
    texts = dict(zip(defaults, spec.options_text(), strict=True))
    for name, default in defaults.items():
        accepts = re.sub(r"^[^(]*\((.*)\)$", r"\1", texts[name].removeprefix(f"{name}={default}"))
        yield _setting(f"{key}.{name}", ranges[name], default, explained.get(name, "")) | {
            "accepts": accepts,
            "of": spec.name,
        }


def _algorithm() -> Iterator[Setting]:
    yield from _by_agent("algorithm.", keyword_hints, lambda agent: AGENT_CLASSES[agent])


def _policy() -> Iterator[Setting]:
    yield from _by_agent("policy.", policy_hints, policy_class)


def _by_agent(
    prefix: str, hints_of: Callable[[AgentName], Mapping[str, Any]], class_of: Callable[[AgentName], type]
) -> Iterator[Setting]:
    """Keywords of all agents; agents that say the same of one share an entry."""
    found: dict[str, list[Setting]] = {}
    common = explanations(class_of(AgentName.GTRXL_PPO))
    for agent in AgentName:
        made = class_of(agent)
        defaults = inspect.signature(made.__init__).parameters  # type: ignore[misc]
        explained = OF_RECURRENT_PPO if agent is AgentName.RECURRENT_PPO else explanations(made)
        for name, hint in hints_of(agent).items():
            explanation = explained.get(name, "")
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


def _setting(key: str, hint: Any, default: Any, says: str) -> Setting:
    names = [str(name).lower() if isinstance(name, bool) else name for name in _names(hint)]
    if key == "environment.id":
        names = [each for each in gymnasium.registry if each.startswith("rltransformers/")]
    entry: Setting = {"key": key, "accepts": describe(hint), "default": _plain(default), "says": says}
    if key.startswith(("backbone.", "algorithm.", "policy.")) and hint is not Any:  # other sections need no torch
        entry["type"] = CHOICES if hint == Sequence[Choice] else to_json(hint)
    return entry | ({"names": sorted(names)} if names else {})


def _plain(value: Any) -> str:
    if value in (dataclasses.MISSING, inspect.Parameter.empty):
        return REQUIRED
    if isinstance(value, str):
        return str(value)
    if isinstance(value, type):
        return value.__name__
    return json.dumps(value, default=str)


def _names(hint: Any) -> list[Any]:
    """The values that completion can offer."""
    if hint is bool:
        return [True, False]
    if get_origin(hint) is Literal:
        return list(get_args(hint))
    if isinstance(hint, type) and issubclass(hint, StrEnum):
        return [each.value for each in hint]
    return [name for part in get_args(hint) for name in _names(part)]


def explanations(described: type) -> dict[str, str]:
    """Explanation of each argument or attribute in the docstring of a class, or of one it is made from.

    Read is ``name, other: text`` under "Args:" or "Attributes:".
    """
    found: dict[str, str] = {}
    for each in reversed(described.__mro__):
        documents = [inspect.cleandoc(part.__doc__ or "") for part in (each, each.__init__)]  # type: ignore[misc]
        for document in documents:
            block = re.search(r"^(?:Args|Attributes):\n((?: {4}.*\n?|\n)*)", document, re.MULTILINE)
            entries = re.findall(r"^ {4}([\w, ]+): (.*(?:\n {5,}.*)*)", block.group(1) if block else "", re.MULTILINE)
            for names, words in entries:
                found |= {name: _explanation(name, words) for name in names.split(", ")}
    return found


def _explanation(name: str, words: str) -> str:
    """The text of an entry as a sentence of its own: behind its name, "learning_rate: of AdamW" leaves the noun out."""
    line = " ".join(words.split()).replace("``", "").rstrip(".;, ")
    if line.startswith("of "):
        line = f"{name.replace('_', ' ')} {line}"
    return line if "_" in line.split()[0] else line[:1].upper() + line[1:]
