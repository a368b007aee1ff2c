"""From a checked config to parts: the only place that reads both."""

from __future__ import annotations

import math
from collections import Counter
from collections.abc import Collection, Iterable, Mapping, Sequence
from dataclasses import dataclass, replace
from functools import cache
from typing import TYPE_CHECKING, Any

import torch
from torch import Tensor, nn
from torch.overrides import TorchFunctionMode

from rltransformers.attention.plan import Plan
from rltransformers.attention.reach import Pattern, Reach
from rltransformers.attention.roles import Chooser, Combine, HandUp, HeadOptions, Part, Score, Stage
from rltransformers.attention.scores.interface import ValuesOnly
from rltransformers.backbone.axes import AXES
from rltransformers.backbone.rules import setting_features, title, without
from rltransformers.blocks.layer import Layer, Sublayer
from rltransformers.core.errors import ConfigError, error_line
from rltransformers.core.spec import Choice, Feature
from rltransformers.functional.modules import NORMS
from rltransformers.memory.interface import RINGS, Form, MemoryOptions
from rltransformers.mixers.interface import Dims, Mixer, RowMixer
from rltransformers.positions.interface import INSIDE_ATTENTION, Acts, Position

if TYPE_CHECKING:
    from rltransformers.backbone.config import BackboneConfig

MAX_NUMBERS = 1_000_000_000
"""Parameters of a backbone, and numbers of its state per stream: 4 GB each in single precision."""


def layer_dims(config: BackboneConfig, layer: int) -> Dims:
    """Sizes with their defaults filled in."""
    head_dim = config.head_dim or config.width // config.heads
    return Dims(
        width=config.width,
        heads=config.heads,
        kv_heads=config.kv_heads or config.heads,
        head_dim=head_dim,
        value_dim=config.value_dim or head_dim,
        memory=config.memory,
        tokens_per_step=config.tokens_per_step,
        layer=layer,
        bias=config.attention_bias,
    )


def inside(config: BackboneConfig, dims: Dims) -> Dims:
    """Sizes as the parts of attention meet them: heads may make queries and keys of another width."""
    heads, mixer = config.choices.head_mixing, config.choices.layer(dims.layer).mixer
    acts = isinstance(heads.options, HeadOptions) and offered(heads, mixer.spec.offers)
    return heads.options.inside(dims) if acts else dims


def build_positions(config: BackboneConfig, layers: int) -> tuple[nn.ModuleList, list[Position]]:
    """Encodings of the input, and the one that acts inside attention for each of ``layers`` layers."""
    sizes = [inside(config, layer_dims(config, layer)) for layer in range(layers)]
    at_input: list[nn.Module] = []
    at_score: list[Position] = [Position() for _ in range(layers)]
    acting: list[str] = []  # inside attention
    for choice in config.choices.positions:
        first = choice.build(sizes[0])
        assert isinstance(first, Position)
        within = bool(first.acts & INSIDE_ATTENTION)
        if within and first.acts & (Acts.INPUT | Acts.EVERY_LAYER):
            raise ConfigError(
                f"position {choice.name!r} acts at the input and inside attention, but does one alone; make two "
                "positions of it"
            )
        acting += [choice.name] if within else []
        if len(acting) > 1:
            raise ConfigError(f"positions {acting[0]} and {acting[1]} both act inside attention; keep one of them")
        signals = Acts.INPUT in first.acts and Feature.LAYER_SIGNALS in choice.spec.offers
        if Acts.EVERY_LAYER in first.acts and not signals:
            raise ConfigError(
                f"position {choice.name!r} acts on the input of every layer; it also needs Acts.INPUT, for stacks of "
                "one layer, and offers=(Feature.LAYER_SIGNALS,) in its Spec"
            )
        if Acts.EVERY_LAYER in first.acts and not shares_layers(config):
            continue  # every layer has one
        if Acts.INPUT in first.acts:
            at_input.append(first)
        elif first.acts & INSIDE_ATTENTION:
            at_score = [first] * layers if first.shared else [first, *map(choice.build, sizes[1:])]
            for position in at_score[1:]:
                position.share(first)
    return nn.ModuleList(at_input), at_score


def build_mixing(config: BackboneConfig, layer: int, position: Position) -> Sublayer:
    """Mixer and memory of one layer."""
    dims = layer_dims(config, layer)
    choice = config.choices.layer(layer).mixer
    plan = build_plan(config, layer, dims, position) if Feature.SCORES in choice.spec.offers else None
    if plan is not None and plan.prior.takes_weights:
        mixer: Mixer = plain_choice("mixer").build(dims, plan)  # it has no queries of its own to mix in another way
    else:
        mixer = choice.build(dims) if plan is None else choice.build(dims, plan)
    if plan is not None and isinstance(score := getattr(mixer, "score", None), Score):
        check_score(config, layer, plan, score)
    if not isinstance(mixer, RowMixer):
        rows = sorted({*RINGS, *RINGS.values()} & {*mixer.state_shapes()})
        if rows:
            raise ConfigError(
                f"mixer {choice.name!r} calls a tensor of its state {rows[0]!r}, the name of rows that a memory keeps; "
                "give it another name in state_shapes"
            )
        return Sublayer(mixer, None)
    sizes = mixer.horizon + mixer.stored, dims.width, mixer.key_width, mixer.sinks, dims.tokens_per_step
    return Sublayer(mixer, config.choices.memory_kind.build(*sizes))


def check_score(config: BackboneConfig, layer: int, plan: Plan, score: Score) -> None:
    """Raise ConfigError where the score of a mixer takes the place of one in which another mechanism acts."""
    choices, common = config.choices.layer(layer), config.choices
    lost = plan.lost_under(score)
    if not lost:
        return
    shared = setting_features(config).get(Feature.SHARED_KEYS)
    makers = choices.selection, *choices.patterns, common.head_mixing
    others = () if type(plan.score) is not Score else (*common.common(), choices.span)
    offers = choices.mixer.spec.offers  # what the mixer does not promise was not put into this layer
    acting = [
        (title(each), without(each))
        for each in (*makers, *others)
        if lost & {*each.spec.needs} and offered(each, offers)
    ]
    if shared is not None and Feature.SHARED_KEYS in lost:
        acting.insert(0, (shared.text, shared.way_out))
    for text, way_out in acting:
        raise ConfigError(
            f"{title(choices.mixer)} has scores of its own, in which {text} does not act; {way_out} or mixer to "
            f"{plain_choice('mixer').name!r}"
        )


def plain_choice(axis: str) -> Choice:
    """The neutral choice of an axis."""
    return Choice.parse(AXES[axis].neutral, axis, AXES[axis].table)


def build_plan(config: BackboneConfig, layer: int, dims: Dims, position: Position) -> Plan:
    """Parts of softmax attention; a memory may decide itself what is visible, and may exclude a span."""
    choices, common = config.choices.layer(layer), config.choices
    offers = choices.mixer.spec.offers
    position = position if all(offered(each, offers) for each in common.positions) else Position()
    heads_act, prior_acts = (offered(choice, offers) for choice in (common.head_mixing, common.prior))
    memory: MemoryOptions = common.memory_kind.options
    own = memory.reach(dims.memory)
    content = inside(config, dims)
    met = replace(content, head_dim=content.head_dim + position.channels)
    selection: Part | Chooser = choices.selection.build(met)
    heads: Part | Combine = common.head_mixing.build(content) if heads_act else Part()
    patterns = [choice.build(met) for choice in choices.patterns] if own is None else [own]
    chooser = next((each for each in (*patterns, selection) if isinstance(each, Chooser)), None)
    stores = layer == layer_with_store(config) and Feature.RETRIEVAL in choices.mixer.spec.offers
    span: Part = choices.span.build(met)
    reaches = tuple(map(reach_of, patterns))
    for choice, reach in zip(choices.patterns, reaches, strict=False):
        if dims.memory == 0 and reach.sinks:
            raise ConfigError(
                f"{title(choice)} keeps first tokens, so memory 0 does not make it memoryless; set memory to at least "
                f"1 or {without(choice).removeprefix('set ')}"
            )
    pattern = span.narrowed(Pattern(reaches))
    prior: Part = common.prior.build(met) if prior_acts else Part()
    if prior.takes_weights:
        return Plan(pattern, ValuesOnly(dims), prior=prior, combine=heads if isinstance(heads, Combine) else None)
    store = memory.build_store(dims) if stores else None
    if store is not None and store.weighs and Stage.WEIGHTS in span.stages:
        raise ConfigError(
            f"memory_kind {common.memory_kind.name!r} with joint weighs what a query sees, and span "
            f"{choices.span.name!r} hides a part of it afterwards; leave joint out or set span to 'full'"
        )
    return Plan(
        pattern=pattern,
        score=heads if isinstance(heads, Score) else Score(dims) if chooser is None else chooser.score(dims),
        position=position,
        chooser=chooser,
        store=store,
        selection=selection if isinstance(selection, Part) else Part(),
        prior=prior,
        head_mixing=heads if isinstance(heads, Part) and not isinstance(heads, Score) else Part(),
        span=span,
        combine=heads if isinstance(heads, Combine) else None,
        dropout=0.0 if prior.hands is HandUp.WEIGHTS else config.dropout,
        objectives=tuple(each.build(dims) for each in common.losses if each.spec.build and offered(each, offers)),
    )


def offered(choice: Choice, offers: Collection[Feature]) -> bool:
    """Whether a mixer offers all that a choice needs."""
    return all(feature in offers for feature in choice.spec.needs)


def layer_with_store(config: BackboneConfig) -> int | None:
    """The layer that reads a store behind its window, where the memory has one."""
    memory: MemoryOptions = config.choices.memory_kind.options
    offers = [config.choices.layer(index).mixer.spec.offers for index in range(config.layers)]
    return memory.layer_with_store([i for i, each in enumerate(offers) if Feature.RETRIEVAL in each], config.layers)


def reach_of(pattern: Reach | Chooser) -> Reach:
    """How far back a pattern looks; one that chooses keys itself says it beside the choice."""
    reach = pattern.reach if isinstance(pattern, Chooser) else pattern
    assert reach is not None, "a chooser that is a pattern has a reach"
    return reach


def build_layer(config: BackboneConfig, layer: int, position: Position) -> Layer:
    """One layer."""
    hidden = config.ff_width or 4 * config.width
    residual = config.choices.residual
    mixing, ff = build_mixing(config, layer, position), config.choices.ff.build(config.width, hidden)
    join_mixing = residual.build(config.width)
    join_ff = None if ff is None else residual.build(config.width)
    dims, signal = layer_dims(config, layer), None
    if not shares_layers(config):
        signals = [each for each in config.choices.positions if Feature.LAYER_SIGNALS in each.spec.offers]
        signal = signals[0].build(inside(config, dims)) if signals else None
    cross = config.choices.topology.build(dims, config.dropout)
    join_cross = None if cross is None else residual.build(config.width)
    if config.norm != "layer":
        for join in (join_mixing, join_ff, join_cross):
            if join is not None:
                join.norm = NORMS[config.norm](config.width)
    rest = config.dropout, config.ff_chunks, signal, layer + 1, cross, join_cross
    return Layer(mixing, ff, join_mixing, join_ff, *rest)


def shares_layers(config: BackboneConfig) -> bool:
    """Whether one layer is applied again and again; it is told where."""
    return Feature.SHARED in config.choices.depth.spec.offers


def build_layers(config: BackboneConfig, indices: Iterable[int], positions: Sequence[Position]) -> list[Layer]:
    """The layers at ``indices``; what mixers of the same choice share belongs to the first of them."""
    layers: list[Layer] = []
    choices: list[Choice] = []
    for index, position in zip(indices, positions, strict=True):
        layers.append(build_layer(config, index, position))
        choices.append(config.choices.layer(index).mixer)
        first = choices.index(choices[-1])
        if first < len(layers) - 1:
            layers[-1].mixing.mixer.share(layers[first].mixing.mixer)
    return layers


@dataclass(frozen=True)
class PartNumbers:
    """How many numbers the parts of a backbone have, by name, states per stream; norms around layers do not count."""

    parameters: Mapping[str, int]
    acting_state: Mapping[str, int]
    training_state: Mapping[str, int]


def check_parts(config: BackboneConfig) -> None:
    """Build everything without storage: raise ConfigError for what parts refuse, and for absurd sizes."""
    state = "numbers of state per stream", config.counts.acting_state
    for what, counts in (("parameters", config.counts.parameters), state):
        total = sum(counts.values())
        if total > MAX_NUMBERS:
            largest = max(counts, key=lambda name: counts[name])
            raise ConfigError(
                f"this backbone would have {total:,} {what}, more than {MAX_NUMBERS:,}, most of them in {largest!r}; "
                "choose smaller sizes"
            )


def part_numbers(config: BackboneConfig) -> PartNumbers:
    """Count the numbers of all parts, of layers that are alike in one of them."""
    store, universal, prior = layer_with_store(config), shares_layers(config), config.choices.prior
    carries = {Feature.CARRY, Feature.FIRST_VALUES} & {*prior.spec.offers}  # the lowest layer has nothing below it
    turns = math.lcm(len(config.choices.kinds), prior.build(layer_dims(config, 0)).group if carries else 1)
    firsts: dict[tuple[int, bool, bool], int] = {}
    kinds = Counter(
        0 if universal else firsts.setdefault((layer % turns, layer == store, bool(carries) and layer == 0), layer)
        for layer in range(config.layers)
    )
    try:
        with torch.device("meta"), _Unfilled():
            inputs, at_scores = build_positions(config, max(kinds) + 1)
            layers = build_layers(config, kinds, [at_scores[kind] for kind in kinds])
    except Exception as error:
        if not hasattr(error, "__notes__"):  # which names the choice
            raise
        raise ConfigError(
            f"{error.__notes__[0]} cannot be built ({error_line(error)}); a config builds it once without numbers, to "
            "count its sizes, so make initial values without a look at those of tensors, for instance with NumPy"
        ) from error
    parameters: dict[str, int] = {}
    states: tuple[dict[str, int], dict[str, int]] = ({}, {})
    counted: list[nn.Parameter] = []
    for (kind, count), layer in zip(kinds.items(), layers, strict=True):
        common = [*at_scores[0].common_parameters(), *layer.mixing.mixer.shared_parameters()]
        for name, value in layer.named_parameters():
            if any(value is each for each in counted):
                continue
            in_common = any(value is each for each in common)
            parameters[f"layers.{kind}.{name}"] = value.numel() * (1 if universal or in_common else count)
            counted += [value] if in_common else []
        for state, form in zip(states, (Form.ACTING, Form.TRAINING), strict=True):
            for name, shape in layer.shapes(form).items():
                state[f"layers.{kind}.{name}"] = math.prod(shape) * count
    parameters |= {f"input_positions.{name}": value.numel() for name, value in inputs.named_parameters()}
    return PartNumbers(parameters, *states)


class _Unfilled(TorchFunctionMode):
    """Leaves out initial numbers and what is computed with them: without storage both load PyTorch's compiler, 5 s."""

    def __torch_function__(self, function: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        named, name = kwargs or {}, function.__name__
        if function in (torch.randn, torch.rand):
            return torch.empty(*args, **named)
        if function is torch.eye:
            return torch.empty(args[0], args[0])
        tags = _tags_of(name)
        if name.endswith("_") and not name.endswith("__") and torch.Tag.inplace_view not in tags:
            return args[0] if args else named["tensor"]
        tensors = [value for value in (*args, *named.values()) if isinstance(value, Tensor)]
        if torch.Tag.pointwise in tags and any(value.is_meta for value in tensors):
            nothing = {key: _without_numbers(value) for key, value in named.items()}
            result = function(*map(_without_numbers, args), **nothing)
            return torch.empty(torch.broadcast_tensors(*tensors)[0].shape, dtype=result.dtype)
        return function(*args, **named)


def _without_numbers(value: Any) -> Any:
    """For a tensor an empty one with storage, of the same type and rank; for a scalar 1."""
    return torch.ones([0] * value.dim(), dtype=value.dtype, device="cpu") if isinstance(value, Tensor) else value


@cache
def _tags_of(name: str) -> Sequence[torch.Tag]:
    """What PyTorch says of its operator of this name; ``1 - x`` is called ``__rsub__``."""
    name = name.strip("_").removeprefix("r") if name.startswith("__") else name
    operator = getattr(torch.ops.aten, name, None)
    tags: Sequence[torch.Tag] = [] if operator is None else getattr(operator, operator.overloads()[0]).tags
    return tags
