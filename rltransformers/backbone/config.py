"""One frozen record for every axis of the backbone, read from YAML or a dict, checked before anything is built."""

from collections.abc import Mapping
from dataclasses import MISSING, dataclass, field, fields
from functools import cached_property
from typing import Annotated, Any, Literal

import numpy as np
from annotated_types import Ge, Le

from rltransformers.backbone.axes import CHOICES, PLAIN
from rltransformers.backbone.build import PartNumbers, check_parts, part_numbers
from rltransformers.backbone.choices import Choices, read
from rltransformers.backbone.presets import PRESETS, Preset
from rltransformers.backbone.rules import check_combinations
from rltransformers.core.errors import ConfigError, did_you_mean, refuse_unknown
from rltransformers.core.ranges import DropoutRate, annotations, check
from rltransformers.core.spec import WEIGHT, Choice, Feature, Size, is_list

NormName = Literal["layer", "rms"]
ComputeType = Literal["float32", "bfloat16"]


@dataclass(frozen=True)
class BackboneConfig:
    """Config of a backbone. A mechanism is written as ``name`` or ``{name: ..., option: value}``.

    The defaults of the fields are the preset gtrxl; ``from_dict`` starts from another one where it is named.

    Attributes:
        width: width D of the residual stream, input and output.
        layers: layers, or the largest number of applications of a universal layer.
        heads: attention heads.
        kv_heads: key/value heads (1: multi-query); default ``heads``.
        head_dim: width of a query/key head; default width / heads.
        value_dim: width of a value head; default ``head_dim``.
        attention_bias: biases in the projections of queries, keys, values and outputs, as GPT-2 has them; they start
            at 0.
        memory: environment steps of the past that every layer may see; 0 makes a memoryless twin.
        memory_kind: what is remembered.
        tokens_per_step: tokens that share one environment step (Decision Transformer: 3).
        position: one encoding, or a list of encodings that act at different places.
        mixer, pattern, selection, span: one choice, or a list that the layers cycle through; a pattern that is itself a
            list inside the list gives one choice per head.
        prior, head_mixing, depth, residual, ff, topology: one choice.
        ff_width: hidden width of the position-wise transform; default 4 width.
        ff_chunks: slices of the tokens that the position-wise transform takes one after the other, to use less memory.
        norm: of every join and around the layers: LayerNorm, or "rms", which has no mean and no shift (Zhang & Sennrich
            2019, arXiv 1910.07467).
        input_norm: a norm before the first layer.
        final_norm: a norm after the last layer.
        dropout: rate of dropout on embeddings, attention weights and submodule outputs.
        checkpoint: keep the inputs of the layers alone for the backward pass and compute the rest again.
        compute_dtype: "bfloat16" multiplies the matrices of segments in bfloat16, and takes the softmax so where one
            kernel does both, while weights, sums and states stay in float32, and so do the steps of acting; "float32",
            and networks of another type, compute in the type of their weights.
        losses: weights of the auxiliary losses, 0 to 1e6, or ``{weight: ..., option: value}``.

    Raises:
        ConfigError: values of another type or outside their range, unknown names, sizes that do not divide or would
            need more than ``build.MAX_NUMBERS`` numbers, impossible combinations, each with its reason.
    """

    width: Size = 64
    layers: Annotated[int, Ge(1), Le(1000)] = 2
    heads: Size = 4
    kv_heads: Size | None = None
    head_dim: Size | None = None
    value_dim: Size | None = None
    attention_bias: bool = False
    memory: Annotated[int, Ge(0), Le(1_000_000)] = 64
    memory_kind: Any = "transformer_xl"
    tokens_per_step: Annotated[int, Ge(1), Le(1000)] = 1
    position: Any = "trxl"
    mixer: Any = "softmax"
    pattern: Any = "full"
    selection: Any = "none"
    prior: Any = "none"
    head_mixing: Any = "mha"
    span: Any = "full"
    depth: Any = "fixed"
    residual: Any = "gru"
    ff: Any = "ffn"
    topology: Any = "decoder"
    ff_width: Size | None = None
    ff_chunks: Size = 1
    norm: NormName = "layer"
    input_norm: bool = False
    final_norm: bool = False
    dropout: DropoutRate = 0.0
    checkpoint: bool = False
    compute_dtype: ComputeType = "float32"
    losses: Mapping[Any, Any] = field(default_factory=dict)

    def __post_init__(self) -> None:
        """Copy the values as plain ones; check types and ranges, names, combinations, and what would be built."""
        for name, annotation in annotations(BackboneConfig).items():
            value = getattr(self, name)
            if value is not getattr(BackboneConfig, name, MISSING):  # defaults need no check
                object.__setattr__(self, name, check(plain(value), annotation, f"backbone.{name}"))
        check_combinations(self)
        check_parts(self)

    @staticmethod
    def preset(name: str, **overrides: Any) -> "BackboneConfig":
        """A named combination with ``overrides``; errors are those of ``from_dict``."""
        return BackboneConfig.from_dict({"preset": name, **overrides})

    @staticmethod
    def from_dict(values: "Mapping[str, Any] | BackboneConfig | str") -> "BackboneConfig":
        """Read what a YAML file carries; ``preset`` names the starting point (default: gtrxl). A text is a preset.

        Raises:
            ConfigError: not a mapping, an unknown preset or field, or what ``BackboneConfig`` refuses.
        """
        if isinstance(values, BackboneConfig):
            return values
        if isinstance(values, str):
            values = {"preset": values}
        if not isinstance(values, Mapping):
            raise ConfigError(f"backbone must be a preset, or a mapping of a preset and settings, got {values!r}")
        given = dict(values)
        preset = given.pop("preset", "gtrxl")
        defaults, cut = {**PLAIN, **find_preset(preset).overrides}, {}
        refuse_unknown(given, ["preset", *annotations(BackboneConfig)], "backbone.")
        layers = plain({**defaults, **given}.get("layers", BackboneConfig.layers))
        for name, axis in CHOICES.items():  # no choices for layers that there are not
            if axis.per_layer and is_list(defaults[name]) and isinstance(layers, int):
                if 0 < layers < len(defaults[name]) and name not in given:
                    cut[name] = defaults[name]
                defaults[name] = defaults[name][: max(layers, 1)]
        try:
            return BackboneConfig(**{**defaults, **given})
        except ConfigError as error:
            for name, choices in cut.items():
                explain_cut(preset, name, choices, {**defaults, **given}, error)
            raise

    def to_dict(self) -> dict[str, Any]:
        """Every field, as plain JSON values."""
        return {each.name: plain(getattr(self, each.name)) for each in fields(self)}

    @cached_property
    def choices(self) -> Choices:
        """The mechanisms with their options, per layer and for all layers."""
        return read(self)

    @cached_property
    def counts(self) -> PartNumbers:
        """Sizes of the parts, counted once."""
        return part_numbers(self)

    def loss_weights(self) -> dict[str, float]:
        """Weights of the auxiliary losses by name."""
        return {name: value[WEIGHT] if isinstance(value, Mapping) else value for name, value in self.losses.items()}

    @property
    def tasks(self) -> int | None:
        """How many tasks every call has to tell apart; None where nothing reads them."""
        options = self.choices.prior.options
        tasks: int | None = getattr(options, "tasks", None)
        return tasks if getattr(options, "task", None) is None else None

    @property
    def reads_context(self) -> bool:
        """Whether every call has to bring the elements that layers read."""
        return Feature.CONTEXT in self.choices.topology.spec.offers

    def numbers(self) -> tuple[int, int]:
        """Parameters, and numbers of training state per stream, of all parts but the norms around the layers."""
        return sum(self.counts.parameters.values()), sum(self.counts.training_state.values())


def plain(value: Any) -> Any:
    """A copy: tuples and mappings as lists and dicts, numbers of numpy as Python's."""
    if isinstance(value, Choice):
        return plain(value.to_dict())
    if isinstance(value, np.generic):
        return value.item()
    if isinstance(value, Mapping):
        return {key: plain(item) for key, item in value.items()}
    return [plain(item) for item in value] if is_list(value) else value


def find_preset(name: str) -> Preset:
    """Return a preset by name; ConfigError if there is none of this name."""
    check(name, str, "backbone.preset")
    if name not in PRESETS:
        raise ConfigError(f"backbone: unknown preset {name!r}; {did_you_mean(name, PRESETS)}")
    return PRESETS[name]


def explain_cut(preset: str, name: str, choices: list[Any], settings: Mapping[str, Any], error: ConfigError) -> None:
    """Raise ConfigError where too few layers leave out choices of a preset without which the others do not go."""
    layers, count = settings["layers"], len(choices)
    last = choices[-layers:]
    try:
        BackboneConfig(**{**settings, name: last})
    except ConfigError:
        return
    names = ", ".join(str(each["name"] if isinstance(each, Mapping) else each) for each in choices)
    raise ConfigError(
        f"{name} of preset {preset!r} is a list of {count} ({names}), of which layers, {layers}, leaves out the last "
        f"{count - layers}; set layers to at least {count}, or {name} to {last}. With the first {layers}: {error}"
    ) from error
