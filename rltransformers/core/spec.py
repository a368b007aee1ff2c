"""Entries of catalogues: id, source, how to choose it, how to build it, what it can do."""

import dataclasses
import typing
from collections.abc import Callable, Collection, Mapping, Sequence
from dataclasses import dataclass, field
from enum import Enum
from functools import cache
from types import ModuleType
from typing import Annotated, Any

from annotated_types import Ge, Le

from rltransformers.core.errors import OUR_ERRORS, ConfigError, did_you_mean, refuse_unknown
from rltransformers.core.extensions import find_mechanism, names_of
from rltransformers.core.ranges import check, describe, shown

Size = Annotated[int, Ge(1), Le(1_000_000)]
"""Rows, units, tokens: large enough for every use, small enough that products of three sizes fit 64 bits."""

SizeOrZero = Annotated[int, Ge(0), Le(1_000_000)]

WEIGHT = "weight"  # key beside the options of a loss


@dataclass(frozen=True)
class Unread:
    """Marks an option, in its annotation, that nothing reads beside certain values of the others.

    Attributes:
        beside: those values in words, as in "has no effect with ...".
        holds: whether a record of all options has them.
    """

    beside: str
    holds: Callable[[Any], bool]


@dataclass(frozen=True)
class NoOptions:
    """Of a mechanism that has none."""


@dataclass(frozen=True)
class Traits:
    """Abilities of one mechanism, as its catalogue row prints them.

    Attributes:
        causality: "C" causal as published, "C*" causal through a mask, "X" another causal form, "N/A" not about time.
        family: EXPL (explicit weights), SEL (selected logits), SLOT (compressed slots), KERN (recurrent kernels),
            VAL (values only), or "" where the axis has no family.
        horizon: largest distance in tokens that can influence the output of one layer.
        state: numbers kept per environment and layer while acting.
        time: growth of the work for T tokens, either "T" (linear) or "T^2"; for N elements of one observation "N",
            "N ln N" or "N^2".
        causal_form: how the published form differs from the one built here; empty when it does not.
        single, half: largest errors of float32 and bfloat16, relative to the largest output (law L10); bfloat16 rounds
            to 8 bits, 0.4 %, each time.
        rounding: why these are larger than usual, where they are: what its formula does to small numbers.
        stops_gradient: values through which no gradient flows, as published; empty where gradients are those of finite
            differences on streams of any length (law L7).
    """

    causality: str = "C"
    family: str = ""
    horizon: str = "window"
    state: str = "0"
    time: str = "T"
    causal_form: str = ""
    single: float = 1e-5
    half: float = 0.1
    rounding: str = ""
    stops_gradient: str = ""


class Feature(Enum):
    """Features of a mechanism that others can use or have to reckon with; the value is its name in messages."""

    SCORES = "scores of pairs of tokens, by distance"
    LOGITS = "the logits of all pairs of tokens"
    PRODUCTS = "products of queries and keys"
    CHANNELS = "queries and keys with room for channels of a position"
    PLACES = "queries and keys that know the episode position"
    OUTPUTS = "outputs of heads that can be routed"
    PATTERNS = "keys that a pattern can leave out"
    ROWS = "rows of earlier tokens"
    SLOTS = "compressed rows beside the other rows"
    KEYS = "queries, keys and values"
    REACH = "a reach of its own"
    SELECTION = "a selection of keys per head"
    CHOICE = "keys that are chosen for every query before any product"
    CARRY = "logits that pass from layer to layer"
    LATENT = "rows that keys and values are made from at reading"
    VALUES = "rows with values that are no keys"
    FIRST_VALUES = "values that pass from layer to layer"
    SHARED = "one layer that is applied again and again"
    HALTING = "tokens that halt"
    TIES = "scores that are the same for many keys"
    LAYER_SIGNALS = "signals that are added before every layer"
    INVERSE = "streams that are rebuilt in the backward pass"
    HEAD_PATTERNS = "a pattern per head"
    COMMON_KEYS = "keys that heads can have in common"
    TIED_KEYS = "queries that are keys, too"
    STORE = "a store behind the window"
    SHARED_KEYS = "keys that heads of queries share"
    NO_MEMORY = "a memory of nothing"
    MIXER_ALONE = "layers without a transform"
    STEP_TOKENS = "several tokens per step"
    MIXED_KEYS = "layers that differ in mixer or pattern"
    MIXED_LAYERS = "layers that differ"
    RETRIEVAL = "a place for what is retrieved from a store"
    LOSSES = "auxiliary losses"
    STREAMS = "the streams after inner layers"
    CHUNKS = "a transform that takes tokens in chunks"
    RECOMPUTED = "layers that are computed again in the backward pass"
    CONTEXT = "elements of an observation that layers read"


@dataclass(frozen=True)
class Refusal:
    """A feature that a mechanism cannot live beside, and why."""

    feature: Feature
    reason: str


def all_read(options: Any) -> Collection[str]:
    """No option of a loss, whatever the mechanism's: each is read."""
    return ()


@dataclass(frozen=True)
class Loss:
    """An auxiliary loss that a mechanism produces, by name.

    Attributes:
        options: those of the mechanism with which alone it does.
        unread: options of the loss that nothing reads then, by those of the mechanism.
    """

    name: str
    options: Mapping[str, Any] = field(default_factory=dict)
    unread: Callable[[Any], Collection[str]] = all_read  # a lambda could not be pickled, nor could a network


@dataclass(frozen=True)
class Spec:
    """A mechanism: one row of the catalogue. One of another package needs ``name``, ``axis``, ``summary``, ``build``.

    Attributes:
        id: the row's id, for instance "P12".
        name: the value to write in a config.
        axis: the config field that takes the value.
        paper: authors, year and arXiv number or venue.
        summary: what it changes, one sentence.
        build: makes the mechanism from the sizes that its axis hands out and, last, a record of ``options``: its class,
            or a function; None when other settings select it.
        options: frozen dataclass whose fields are annotated with their types and ranges (``core.ranges``).
        settings: what to write in place of the name when other settings select the entry, for instance "kv_heads: 1".
        example: the smallest config overrides that use the entry, where its name alone does not.
        traits: abilities as its catalogue row prints them.
        acts_at: the place where only one choice of the axis can act, for instance "on the input".
        offers: what other mechanisms can use or have to reckon with.
        needs: what the mixer of a layer must offer for the mechanism to act there.
        refuses: what it cannot live beside.
        produces: auxiliary losses.
        formula: what is computed, one line of plain text: t is the query, s a key, d = t - s.
    """

    id: str = ""
    name: str = ""
    axis: str = ""
    paper: str = ""
    summary: str = ""
    build: Callable[..., Any] | None = None
    options: type = NoOptions
    settings: str = ""
    example: Mapping[str, Any] = field(default_factory=dict)
    traits: Traits = Traits()
    acts_at: str = ""
    offers: Collection[Feature] = ()
    needs: Collection[Feature] = ()
    refuses: Collection[Refusal] = ()
    produces: Collection[Loss] = ()
    formula: str = ""

    def __post_init__(self) -> None:
        object.__setattr__(self, "example", self.example or {self.axis: self.name})

    def defaults(self) -> dict[str, Any]:
        """Option names with their defaults (``dataclasses.MISSING`` marks a required one)."""
        return {each.name: each.default for each in dataclasses.fields(self.options)}

    def ranges(self) -> Mapping[str, Any]:
        """Option names with the annotations of their types and ranges."""
        return _annotations(self.options)

    def unread(self, options: Any) -> dict[str, str]:
        """Names of the options that nothing reads beside the values of the others, each with those in words."""
        marks = ((name, mark) for name, hint in self.ranges().items() for mark in getattr(hint, "__metadata__", ()))
        return {name: mark.beside for name, mark in marks if isinstance(mark, Unread) and mark.holds(options)}

    def options_text(self) -> list[str]:
        """Options for people: ``name=default``, or the bare name of a required one, with what it accepts."""
        texts = []
        for name, default in self.defaults().items():
            hint = self.ranges()[name]
            accepts = f"a list of choices of {self.axis}" if hint == Sequence[Choice] else describe(hint)
            texts.append(f"{name if default is dataclasses.MISSING else f'{name}={default}'} ({accepts})")
        return texts


@dataclass(frozen=True)
class Choice:
    """A catalogue entry with its options, read from ``"name"`` or ``{"name": ..., option: value}``.

    ``options`` is a record of ``spec.options``, every option with its value.
    """

    spec: Spec
    options: Any

    @property
    def name(self) -> str:
        """Name of the entry."""
        return self.spec.name

    def build(self, *sizes: Any) -> Any:
        """Make the mechanism of the sizes that its axis hands out; ConfigError for options that do not fit them."""
        assert self.spec.build is not None, f"{self.name} is selected by other settings"
        try:
            return self.spec.build(*sizes, self.options)
        except Exception as error:
            if not isinstance(error, OUR_ERRORS):
                error.add_note(f"{self.spec.axis} {self.name!r}")  # read where sizes are counted
            raise

    @staticmethod
    def parse(value: Any, axis: str, table: Mapping[str, Spec], path: str = "") -> "Choice":
        """Check ``value`` against the rows of one axis; ``path`` is where it stands in the config, for messages.

        Raises:
            ConfigError: unknown name or option (with the closest known ones), a missing required option, an option of
                another type or outside its range, one that nothing reads beside the others, or an entry that other
                settings select.
        """
        path = path or axis
        if isinstance(value, Choice):
            value = value.to_dict()
        if isinstance(value, str):
            value = {"name": value}
        if not isinstance(value, Mapping) or not isinstance(value.get("name"), str):
            raise ConfigError(f"{path} takes a name or {{name: ..., option: value}}, got {value!r}")
        name = value["name"]
        spec = table.get(name) or find_mechanism(axis, name)
        if spec is None:
            raise ConfigError(f"{path}: unknown {axis} {name!r}; {did_you_mean(name, names_of(axis, table))}")
        if spec.settings:
            raise ConfigError(f"{path}: {axis} {name!r} is chosen by other settings: write {spec.settings}")
        given, known = {key: option for key, option in value.items() if key != "name"}, spec.defaults()
        if not given and dataclasses.MISSING not in known.values():
            return Choice(spec, spec.options())
        ranges = spec.ranges()
        refuse_unknown(given, known, f"{path}.", f"{axis} {name!r}")
        missing = [key for key, default in known.items() if default is dataclasses.MISSING and key not in given]
        if missing:
            raise ConfigError(
                f"{path}: {axis} {name!r} needs {', '.join(missing)}: write {{name: {name}, {missing[0]}: ...}}"
            )
        options = {
            key: _choices(option, axis, table, f"{path}.{key}")
            if ranges[key] == Sequence[Choice]
            else check(option, ranges[key], f"{path}.{key}")
            for key, option in given.items()
        }
        choice = Choice(spec, spec.options(**options))
        for key, beside in spec.unread(choice.options).items():
            if key in given:
                raise ConfigError(f"{path}.{key} {shown(given[key])} has no effect with {beside}; leave {key} out")
        return choice

    def unfolded(self) -> "tuple[Choice, ...]":
        """The choice, and those that its options hold."""
        inside = [getattr(self.options, name) for name, hint in self.spec.ranges().items() if hint == Sequence[Choice]]
        return (self, *(each for choices in inside for each in choices))

    def to_dict(self) -> Any:
        """The shortest form that ``parse`` reads back."""
        values = {name: _plain(getattr(self.options, name)) for name in self.spec.ranges()}
        changed = {name: value for name, value in values.items() if value != self.spec.defaults()[name]}
        return {"name": self.name, **changed} if changed else self.name


def is_list(value: Any) -> bool:
    """True for YAML lists and tuples."""
    return isinstance(value, Sequence) and not isinstance(value, str | bytes)


@cache
def _annotations(record: type) -> dict[str, Any]:
    hints = typing.get_type_hints(record, include_extras=True)
    return {each.name: hints[each.name] for each in dataclasses.fields(record)}


def _choices(value: Any, axis: str, table: Mapping[str, Spec], path: str) -> tuple[Choice, ...]:
    """Further choices of the same axis, which hold none themselves."""
    if not is_list(value) or not all(isinstance(each, str | Mapping | Choice) for each in value):
        raise ConfigError(f"{path} must be a list of names or {{name: ..., option: value}}, got {shown(value)}")
    for place, each in enumerate(map(_plain, value)):
        name = each.get("name") if isinstance(each, Mapping) else each
        spec = table.get(name) or find_mechanism(axis, name) if isinstance(name, str) else None
        if spec is not None and Sequence[Choice] in spec.ranges().values():
            raise ConfigError(
                f"{path}[{place}]: {axis} {name!r} inside itself adds nothing; write its parts in its place"
            )
    return tuple(Choice.parse(each, axis, table, f"{path}[{place}]") for place, each in enumerate(value))


def _plain(value: Any) -> Any:
    """Choices, and those in a list, as ``Choice.parse`` reads them."""
    if isinstance(value, Choice):
        return value.to_dict()
    return [_plain(each) for each in value] if isinstance(value, tuple) else value


def by_name(*entries: ModuleType | Spec) -> dict[str, Spec]:
    """A catalogue of entries, or of those of modules with one each."""
    specs = [entry.SPEC if isinstance(entry, ModuleType) else entry for entry in entries]
    return {spec.name: spec for spec in specs}
