"""Which choices work together, read off what the mechanisms declare: what they offer, need, refuse and produce.

No mechanism is named here. A mechanism acts in the layers whose mixer offers what it needs; where it cannot act at
all, or stands beside what it refuses, the config is refused with the reason and with a change that mends it.
"""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass
from itertools import combinations
from typing import TYPE_CHECKING

from rltransformers.backbone.axes import AXES
from rltransformers.backbone.choices import Choices, LayerChoices
from rltransformers.core.errors import ConfigError
from rltransformers.core.spec import Choice, Feature, Loss, is_list

if TYPE_CHECKING:
    from rltransformers.backbone.config import BackboneConfig


@dataclass(frozen=True)
class Origin:
    """Where a feature of a config comes from, and how to do without it."""

    text: str
    way_out: str


def check_combinations(config: BackboneConfig) -> None:
    """Raise ConfigError for two choices or settings that clash, with the reason and the way out."""
    check_places(config.choices.positions)
    for index, layer in enumerate(config.choices.kinds):
        check_layer(config, layer, index)
    for choice in config.choices.common():
        check_reach(choice, config.choices)
    check_keys(config)
    check_refusals(config)
    check_losses(config)
    check_effects(config)


def check_effects(config: BackboneConfig) -> None:
    """Raise where a setting would be without effect."""
    for name, axis in AXES.items():
        written = getattr(config, name)
        if axis.per_layer and is_list(written) and len(written) > config.layers:
            raise ConfigError(
                f"{name} lists {len(written)} choices for layers to take in turn, but layers is {config.layers}; "
                f"set layers to at least {len(written)} or shorten {name}"
            )
    between = (
        (config.choices.prior, "hands on what a layer below found", {Feature.CARRY, Feature.FIRST_VALUES}),
        (config.choices.depth, "ends tokens before the last layer", {Feature.HALTING}),
    )
    for choice, effect, features in between:
        if config.layers == 1 and features & {*choice.spec.offers}:
            raise ConfigError(
                f"{title(choice)} has no effect in a single layer: it {effect}; "
                f"set layers to at least 2, or {without(choice)}"
            )
    ff = config.choices.ff
    if config.ff_width is not None and Feature.MIXER_ALONE in ff.spec.offers:
        raise ConfigError(
            f"ff_width {config.ff_width} has no effect: {title(ff)} has no transform; "
            f"{without(ff)} or leave ff_width out"
        )


def check_places(choices: Iterable[Choice]) -> None:
    """Raise unless every choice acts at a place of its own."""
    for one, other in combinations(choices, 2):
        if one.spec.acts_at and one.spec.acts_at == other.spec.acts_at:
            raise ConfigError(
                f"{one.spec.axis}s {one.name} and {other.name} both act {one.spec.acts_at}; keep one of them"
            )


def check_layer(config: BackboneConfig, layer: LayerChoices, index: int) -> None:
    """Raise unless a layer has one pattern or one per head, and its mixer offers what its other choices need."""
    mixer, count = layer.mixer, len(layer.patterns)
    if count not in (1, config.heads):
        raise ConfigError(
            f"{count} patterns per head for {config.heads} heads; give one per head or {without(layer.patterns[0])}"
        )
    where = f"mixer {mixer.name!r}" + (f" of layer {index}" if len(config.choices.kinds) > 1 else "")
    for choice in layer:
        for feature in choice.spec.needs:
            if feature not in mixer.spec.offers:
                raise ConfigError(
                    f"{title(choice)} needs {feature.value}, but {where} has none; {without(choice)} or "
                    f"mixer to {serving(choice)}"
                )
    if config.memory == 0 and Feature.ROWS not in mixer.spec.offers:
        raise ConfigError(
            f"{where} carries a state of its own, so memory 0 does not make it memoryless; "
            f"set mixer to {offering(Feature.ROWS)} or memory to at least 1"
        )


def check_reach(choice: Choice, choices: Choices) -> None:
    """Raise unless a choice for all layers acts in one of them and fits every layer that it reaches."""
    reaches = AXES[choice.spec.axis].reaches
    for feature in choice.spec.needs:
        mixers = [layer.mixer for layer in choices.kinds if (reaches or feature) in layer.mixer.spec.offers]
        lacking = [mixer for mixer in mixers if feature not in mixer.spec.offers]
        if not mixers or lacking:
            names = sorted({mixer.name for mixer in lacking} or {layer.mixer.name for layer in choices.kinds})
            raise ConfigError(
                f"{title(choice)} needs {feature.value}, but mixer {' and '.join(map(repr, names))} has none; "
                f"{without(choice)} or mixer to {serving(choice)}"
            )


def check_keys(config: BackboneConfig) -> None:
    """Raise unless settings of keys have keys to shape, and heads divide what they share."""
    mixers = {layer.mixer.name: layer.mixer.spec for layer in config.choices.kinds}
    width, heads, kv_heads = config.width, config.heads, config.kv_heads
    if not any(Feature.KEYS in spec.offers for spec in (config.choices.topology.spec, *mixers.values())):
        for name in ("kv_heads", "head_dim", "value_dim", "attention_bias"):
            if getattr(config, name):
                unset = "False" if name == "attention_bias" else "None (null)"
                raise ConfigError(
                    f"{name} is about {Feature.KEYS.value}, but mixer {' and '.join(map(repr, sorted(mixers)))} has "
                    f"none; set mixer to {offering(Feature.KEYS)}, or {name} to {unset}"
                )
    elif config.head_dim is None and width % heads:
        raise ConfigError(
            f"heads ({heads}) must divide width ({width}); nearest that do: {nearest_divisors(width, heads)}; or set "
            "head_dim"
        )
    elif kv_heads is not None and heads % kv_heads:
        raise ConfigError(
            f"kv_heads ({kv_heads}) must divide heads ({heads}); nearest that do: {nearest_divisors(heads, kv_heads)}"
        )


def nearest_divisors(number: int, near: int) -> str:
    """The divisors of ``number`` next to ``near`` on either side."""
    divisors = [each for each in range(1, number + 1) if number % each == 0]
    below, above = ([each for each in divisors if each < near], [each for each in divisors if each > near])
    return ", ".join(map(str, below[-1:] + above[:1]))


def check_refusals(config: BackboneConfig) -> None:
    """Raise unless no choice refuses a feature of another one that acts in the same layers, or of the settings."""
    common = config.choices.common()
    of_settings = setting_features(config)
    for layer in config.choices.kinds:
        together = (*layer, *common)
        owners = {feature: each for each in together for feature in each.spec.offers}
        for choice in together:
            for refusal in choice.spec.refuses:
                feature = refusal.feature
                if feature is Feature.HEAD_PATTERNS and len(layer.patterns) > 1:
                    origin = Origin("pattern is a list", without(layer.patterns[0]))
                elif feature in of_settings:
                    origin = of_settings[feature]
                elif feature in owners:
                    origin = Origin(title(owners[feature]), without(owners[feature]))
                else:
                    continue
                other = without(choice)
                raise ConfigError(
                    f"{title(choice)} does not go with {feature.value} ({origin.text}): {refusal.reason}; "
                    + (other if other == origin.way_out else f"{origin.way_out} or {other.removeprefix('set ')}")
                )


def setting_features(config: BackboneConfig) -> dict[Feature, Origin]:
    """Features that come from settings that are no choices, and from lists of choices."""
    kinds, kv_heads, losses = config.choices.kinds, config.kv_heads, ", ".join(config.losses)
    settings = (
        (Feature.NO_MEMORY, config.memory == 0, "memory 0", "set memory to at least 1"),
        (Feature.STEP_TOKENS, config.tokens_per_step > 1, f"tokens_per_step {config.tokens_per_step}",
         "set tokens_per_step to 1 (a Decision Transformer has 2 or 3)"),
        (Feature.SHARED_KEYS, (kv_heads or config.heads) < config.heads, f"kv_heads {kv_heads}",
         f"set kv_heads to {config.heads}"),
        (Feature.CHUNKS, config.ff_chunks > 1, f"ff_chunks {config.ff_chunks}", "set ff_chunks to 1"),
        (Feature.RECOMPUTED, config.checkpoint, "checkpoint true", "set checkpoint to False"),
        (Feature.LOSSES, bool(losses), f"losses {losses}", "set losses to {}"),
    )  # fmt: skip
    features = {feature: Origin(text, way_out) for feature, holds, text, way_out in settings if holds}
    keys = [layer.of_keys for layer in kinds]
    differing = [axis for axis in keys[0] if any(each[axis] != keys[0][axis] for each in keys)]
    if differing:
        name = differing[0]
        features[Feature.MIXED_KEYS] = Origin(f"{name} is a list", f"set {name} to {AXES[name].neutral!r}")
    if any(layer != kinds[0] for layer in kinds):
        parts = zip(*(vars(layer).items() for layer in kinds), strict=True)
        name = next(items[0][0].removesuffix("s") for items in parts if any(item != items[0] for item in items))
        features[Feature.MIXED_LAYERS] = Origin(f"{name} is a list", f"set {name} to {AXES[name].neutral!r}")
    return features


def check_losses(config: BackboneConfig) -> None:
    """Raise unless every loss has a mechanism that produces it."""
    chosen = config.choices.chosen()
    for choice in config.choices.losses:
        name, defaults = choice.name, choice.spec.defaults()
        producing = [(each, loss) for each in chosen for loss in each.spec.produces if loss.name == name]
        if choice.spec.build is None and not any(produced(*each) for each in producing):
            raise ConfigError(
                f"loss {name!r} has nothing to act on; it needs {' or '.join(producers(name))}, or set losses to {{}}"
            )
        unread = {option: each for each, loss in producing for option in loss.unread(each.options)}
        for option, origin in unread.items():
            value = getattr(choice.options, option)
            if value != defaults[option]:
                raise ConfigError(
                    f"backbone.losses.{name}.{option} {value!r} has no effect: nothing reads it beside "
                    f"{title(origin)} with its options; leave {option} out"
                )


def produced(choice: Choice, loss: Loss) -> bool:
    """Whether the options are those that a loss needs."""
    return all(getattr(choice.options, option) == value for option, value in loss.options.items())


def producers(name: str) -> list[str]:
    """How the choices that produce a loss are written."""
    written = []
    for spec in (spec for axis in AXES.values() for spec in axis.table.values()):
        for loss in spec.produces:
            options = "".join(f", {option}: {value}" for option, value in loss.options.items())
            choice = f"{{name: {spec.name}{options}}}" if options else spec.name
            written += [f"{spec.axis}: {choice}"] if loss.name == name else []
    return written


def title(choice: Choice) -> str:
    """A choice in a sentence."""
    return f"{'loss' if choice.spec.axis == 'losses' else choice.spec.axis} {choice.name!r}"


def without(choice: Choice) -> str:
    """The change that takes a choice out."""
    axis = AXES[choice.spec.axis]
    return f"set {axis.name} to {axis.neutral!r}" if axis.neutral else f"set {axis.name} to {{}}"


def offering(feature: Feature) -> str:
    """The mixers that offer a feature."""
    return " or ".join(repr(spec.name) for spec in AXES["mixer"].table.values() if feature in spec.offers)


def serving(choice: Choice) -> str:
    """The mixers that a choice can act in: they offer all that it needs, and neither of the two refuses the other."""
    return " or ".join(
        repr(spec.name)
        for spec in AXES["mixer"].table.values()
        if all(feature in spec.offers for feature in choice.spec.needs)
        and not any(refusal.feature in choice.spec.offers for refusal in spec.refuses)
        and not any(refusal.feature in spec.offers for refusal in choice.spec.refuses)
    )
