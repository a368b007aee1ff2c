"""One frozen record for every axis of the backbone, read from YAML or a dict, checked before anything is built."""

from collections.abc import Mapping, Sequence
from dataclasses import asdict, dataclass, field, fields
from typing import Any

from rltransformers.attention.catalogue import HEAD_MIXINGS, MIXERS, PATTERNS, PRIORS, SELECTIONS, SPANS
from rltransformers.backbone.presets import PRESETS, Preset
from rltransformers.backbone.rules import check_combinations
from rltransformers.blocks.feedforward import FEED_FORWARDS
from rltransformers.blocks.residual import RESIDUALS
from rltransformers.core.errors import ConfigError, did_you_mean
from rltransformers.core.spec import Choice, Spec, Traits
from rltransformers.memory.catalogue import MEMORIES
from rltransformers.positions.catalogue import POSITIONS


def _depth(id: str, name: str, paper: str, summary: str, example: dict[str, Any]) -> Spec:
    return Spec(id, name, "depth", paper, summary, _depth_options[name], example, Traits(causality="N/A"))


def _no_options() -> None:
    """Depths without options."""


def _act_options(*, epsilon: float = 0.01) -> None:
    """A token halts when its halting probabilities add up to 1 - epsilon."""


_depth_options = {"fixed": _no_options, "universal": _no_options, "universal_act": _act_options}
_UNIVERSAL = "Dehghani et al. 2019, arXiv 1807.03819"
DEPTHS = {
    spec.name: spec
    for spec in (
        _depth("D0", "fixed", "-", "Every layer has its own weights.", {"depth": "fixed"}),
        _depth("D2", "universal", _UNIVERSAL, "One layer, applied `layers` times.", {"depth": "universal"}),
        _depth(
            "D3", "universal_act", f"{_UNIVERSAL}; Graves 2016, arXiv 1603.08983",
            "One layer, applied until each token halts, at most `layers` times.", {"depth": "universal_act"},
        ),
    )
}  # fmt: skip
LOSSES = {
    spec.name: spec
    for spec in (
        Spec(
            "X2", "span", "losses", "Sukhbaatar et al. 2019, arXiv 1905.07799, equation 6",
            "Mean span in tokens, summed over layers.", None,
            {"losses": {"span": 1e-3}, "span": {"name": "adaptive", "ramp": 2.0, "initial": 0.5}},
            Traits(causality="N/A"),
        ),
        Spec(
            "X3", "ponder", "losses", "Graves 2016, arXiv 1603.08983, equation 13",
            "Steps taken plus remainder, mean over tokens.", None,
            {"losses": {"ponder": 1e-2}, "depth": "universal_act"}, Traits(causality="N/A"),
        ),
        Spec(
            "X6", "compression", "losses", "Rae et al. 2019, arXiv 1911.05507, section 3.2",
            "Squared error of decoding compressed memories, or of what attention reads from them.", None,
            {"losses": {"compression": 1.0}, "memory": 5,
             "memory_kind": {"name": "compressive", "slots": 3, "rate": 2}},
            Traits(causality="N/A"),
        ),
    )
}  # fmt: skip

AXES: dict[str, dict[str, Spec]] = {
    "position": POSITIONS,
    "pattern": PATTERNS,
    "selection": SELECTIONS,
    "mixer": MIXERS,
    "prior": PRIORS,
    "head_mixing": HEAD_MIXINGS,
    "span": SPANS,
    "memory_kind": MEMORIES,
    "depth": DEPTHS,
    "residual": RESIDUALS,
    "ff": FEED_FORWARDS,
    "losses": LOSSES,
}
PER_LAYER = ("mixer", "pattern", "selection", "span")


def catalogue() -> dict[str, list[Spec]]:
    """Every mechanism by axis, in the order of the docs."""
    return {axis: list(table.values()) for axis, table in AXES.items()}


@dataclass(frozen=True)
class BackboneConfig:
    """What a backbone is made of. A mechanism is written as ``name`` or ``{name: ..., option: value}``.

    Attributes:
        width: D of the residual stream, input and output.
        layers: layers, or the largest number of applications of a universal layer.
        heads: attention heads.
        kv_heads: key/value heads (1: multi-query); default ``heads``.
        head_dim: width of a query/key head; default width / heads.
        value_dim: width of a value head; default ``head_dim``.
        memory: environment steps of the past that every layer may see; 0 makes a memoryless twin.
        memory_kind: what is remembered.
        tokens_per_step: tokens that share one environment step (Decision Transformer: 3).
        position: one encoding, or a list of encodings that act at different places.
        mixer, pattern, selection, span: one choice, or a list that the layers cycle through; a pattern that is itself a
            list inside the list gives one choice per head.
        prior, head_mixing, depth, residual, ff: one choice.
        ff_width: hidden width of the position-wise transform; default 4 width.
        input_norm, final_norm: LayerNorm before and after the stack.
        dropout: on embeddings, attention weights and submodule outputs.
        losses: weights of the auxiliary losses.

    Raises:
        ConfigError: unknown names, sizes that do not divide, impossible combinations, each with its reason.
    """

    width: int = 64
    layers: int = 2
    heads: int = 4
    kv_heads: int | None = None
    head_dim: int | None = None
    value_dim: int | None = None
    memory: int = 64
    memory_kind: Any = "transformer_xl"
    tokens_per_step: int = 1
    position: Any = "none"
    mixer: Any = "softmax"
    pattern: Any = "full"
    selection: Any = "none"
    prior: Any = "none"
    head_mixing: Any = "mha"
    span: Any = "full"
    depth: Any = "fixed"
    residual: Any = "pre_ln"
    ff: Any = "ffn"
    ff_width: int | None = None
    input_norm: bool = False
    final_norm: bool = False
    dropout: float = 0.0
    losses: Mapping[str, float] = field(default_factory=dict)

    def __post_init__(self) -> None:
        """Check sizes, names and combinations."""
        check_sizes(self)
        check_names(self)
        check_combinations(self)

    @staticmethod
    def preset(name: str, **overrides: Any) -> "BackboneConfig":
        """A named combination with ``overrides``.

        Raises:
            ConfigError: unknown preset or field.
        """
        return BackboneConfig.from_dict({"preset": name, **overrides})

    @staticmethod
    def from_dict(values: "Mapping[str, Any] | BackboneConfig") -> "BackboneConfig":
        """Read what a YAML file carries; ``preset`` names the starting point (default: gtrxl).

        Raises:
            ConfigError: unknown preset or field.
        """
        if isinstance(values, BackboneConfig):
            return values
        given = dict(values)
        name = given.pop("preset", None)
        if name is None and set(given) == {each.name for each in fields(BackboneConfig)}:
            return BackboneConfig(**given)
        chosen = find_preset("gtrxl" if name is None else name)
        known = [each.name for each in fields(BackboneConfig)]
        for key in given:
            if key not in known:
                raise ConfigError(f"unknown backbone setting {key!r}; {did_you_mean(key, known)}")
        return BackboneConfig(**{**chosen.overrides, **given})

    def to_dict(self) -> dict[str, Any]:
        """Every field, as plain JSON values."""
        return {key: plain(value) for key, value in asdict(self).items()}

    def choice(self, axis: str, layer: int = 0) -> Choice:
        """The entry of one axis that a layer uses."""
        value = getattr(self, axis)
        if axis in PER_LAYER and is_list(value):
            value = value[layer % len(value)]
        return Choice.parse(value, axis, AXES[axis])

    def positions(self) -> list[Choice]:
        """All position encodings."""
        values = self.position if is_list(self.position) else [self.position]
        return [Choice.parse(value, "position", POSITIONS) for value in values]

    def patterns(self, layer: int) -> list[Choice]:
        """One pattern for all heads of a layer, or one per head."""
        value = self.pattern
        if is_list(value):
            value = value[layer % len(value)]
        values = value if is_list(value) else [value]
        return [Choice.parse(each, "pattern", PATTERNS) for each in values]


def is_list(value: Any) -> bool:
    """True for YAML lists and tuples."""
    return isinstance(value, Sequence) and not isinstance(value, str)


def plain(value: Any) -> Any:
    """Tuples and mappings as lists and dicts."""
    if isinstance(value, Mapping):
        return {key: plain(item) for key, item in value.items()}
    return [plain(item) for item in value] if is_list(value) else value


def find_preset(name: str) -> Preset:
    """A preset by name.

    Raises:
        ConfigError: unknown name.
    """
    if name not in PRESETS:
        raise ConfigError(f"unknown preset {name!r}; {did_you_mean(name, PRESETS)}")
    return PRESETS[name]


def check_sizes(config: BackboneConfig) -> None:
    """Whole numbers in range that divide each other.

    Raises:
        ConfigError: the first size that is wrong.
    """
    for name, least in (("width", 1), ("layers", 1), ("heads", 1), ("memory", 0), ("tokens_per_step", 1)):
        value = getattr(config, name)
        if not isinstance(value, int) or isinstance(value, bool) or value < least:
            raise ConfigError(f"{name} must be a whole number of at least {least}, got {value!r}")
    for name in ("kv_heads", "head_dim", "value_dim", "ff_width"):
        value = getattr(config, name)
        if value is not None and (not isinstance(value, int) or value < 1):
            raise ConfigError(f"{name} must be a whole number of at least 1 or null, got {value!r}")
    if config.head_dim is None and config.width % config.heads:
        raise ConfigError(
            f"heads ({config.heads}) must divide width ({config.width}); nearest that do: "
            f"{nearest_divisors(config.width, config.heads)}; or set head_dim"
        )
    if config.kv_heads is not None and config.heads % config.kv_heads:
        raise ConfigError(
            f"kv_heads ({config.kv_heads}) must divide heads ({config.heads}); nearest that do: "
            f"{nearest_divisors(config.heads, config.kv_heads)}"
        )
    if not 0 <= config.dropout < 1:
        raise ConfigError(f"dropout must be in [0, 1), got {config.dropout}")


def nearest_divisors(number: int, wanted: int) -> str:
    """The divisors of ``number`` next to ``wanted`` on either side."""
    divisors = [each for each in range(1, number + 1) if number % each == 0]
    below = [each for each in divisors if each < wanted][-1:]
    above = [each for each in divisors if each > wanted][:1]
    return ", ".join(map(str, below + above))


def check_names(config: BackboneConfig) -> None:
    """Every choice is in the catalogue.

    Raises:
        ConfigError: unknown name or option.
    """
    for axis in ("mixer", "selection", "span", "memory_kind", "prior", "head_mixing", "depth", "residual", "ff"):
        for layer in range(config.layers):
            config.choice(axis, layer)
    if config.choice("head_mixing").name in ("mqa", "decoupled"):
        numbers = {"mqa": "kv_heads: 1", "decoupled": "head_dim: n"}[config.choice("head_mixing").name]
        raise ConfigError(f"head_mixing {config.choice('head_mixing').name!r} is chosen by numbers: write {numbers}")
    config.positions()
    for layer in range(config.layers):
        config.patterns(layer)
    for name, weight in config.losses.items():
        if name not in LOSSES:
            raise ConfigError(f"unknown loss {name!r}; {did_you_mean(name, LOSSES)}")
        if not isinstance(weight, int | float):
            raise ConfigError(f"the weight of loss {name!r} must be a number, got {weight!r}")
