"""Every option of every catalogue entry and every field: wrong values are refused, accepted ones work at their ends."""

import contextlib
import functools
import hashlib
import json
import math
import subprocess
import sys
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import fields
from typing import Annotated, Any, Literal, get_args, get_origin

import numpy as np
import pytest
import torch
from annotated_types import Ge, Gt, Interval, Le, Lt

from rltransformers.backbone import PLAIN, Backbone, BackboneConfig, Record, catalogue
from rltransformers.backbone.axes import AXES
from rltransformers.core.errors import ConfigError
from rltransformers.core.ranges import fits, shown
from rltransformers.core.spec import Choice, Spec
from rltransformers.positions.interface import Position

NAN, INF = float("nan"), float("inf")
VALUES: list[Any] = [
    NAN, INF, -INF, -1, -1.5, 0, 0.0, 1.5, 10**12, 10**400, 1e308, True, False, "x", "3", "no", "", b"x", None,
    [], [1], {}, {"name": "x"}, 1j, np.float32(NAN), np.int64(-1), np.bool_(True), object,
]  # fmt: skip
"""Tried for every option; what its annotation accepts is left out, and accepted numbers are tried below."""


def as_python(value: Any) -> Any:
    """The same without numpy."""
    return value.item() if isinstance(value, np.generic) else value


def entries() -> Iterator[tuple[str, Spec, str]]:
    """Axis, entry and name of every option in the catalogue."""
    for axis, specs in catalogue().items():
        for spec in specs:
            for option in spec.ranges():
                yield axis, spec, option


ENTRIES = {f"{spec.axis}.{spec.name}.{option}": (axis, spec, option) for axis, spec, option in entries()}
every_option = pytest.mark.parametrize("key", ENTRIES)


def config_with(key: str, value: Any) -> dict[str, Any]:
    """The smallest settings that use an option, with ``value`` for it."""
    axis, spec, option = ENTRIES[key]
    example = dict(spec.example)
    if axis == "losses":
        written = {spec.name: {"weight": 1.0, option: value}}
        return {**PLAIN, "width": 12, "heads": 3, "memory": 6, **example, axis: written}
    choice = example[axis] if isinstance(example[axis], Mapping) else {"name": example[axis]}
    settings = {
        "width": 12,
        "heads": 3,
        "layers": 2,
        "memory": 6,
        "ff_width": 7,
        **example,
        axis: {**choice, option: value},
    }
    if axis == "mixer":
        settings["position"] = "sinusoidal"
    if settings.get("ff") == "none":
        del settings["ff_width"]
    return {"position": "none", "residual": "pre_ln", **settings}


def bounds(annotation: Any) -> tuple[Any, list[Any]]:
    """Base type of an annotation and its bounds."""
    if get_origin(annotation) is Annotated:
        base, *metadata = get_args(annotation)
        return base, metadata
    parts = [part for part in get_args(annotation) if part is not type(None)]
    if type(None) in get_args(annotation) and len(parts) == 1:
        return bounds(parts[0])
    return annotation, []


def edge(bound: Any) -> Any:
    """The number in a bound."""
    return next(getattr(bound, name) for name in ("ge", "gt", "le", "lt") if hasattr(bound, name))


LISTS: dict[str, list[Any]] = {
    "pattern.blockwise.shifts": [[0], [2, 0], [1, 0, 2]],
    "pattern.union.patterns": [["full"], ("full", {"name": "band", "window": 2})],
    "pattern.adjacency.offsets": [[], [0], [1, 6, 6]],
    "pattern.adjacency.edges": [[], [[0, 0]], [[6, 0], [8, 7], (3, 2)]],
    "span.multi_scale.windows": [[1], [7, 1], [2, 4, 5]],
}
"""Values of options that are lists."""


def ends(key: str, annotation: Any) -> list[Any]:
    """Values at both ends of a range; of sizes only the lower end, the upper one is a matter of memory."""
    base, limits = bounds(annotation)
    if key == "memory_kind.memorizing.search":  # the other one searches a file
        return ["exact"]
    if get_origin(base) is Literal:
        return list(get_args(base))
    if base is bool:
        return [True, False]
    if get_origin(base) is Sequence:
        return LISTS[key]
    if base is str:  # the name of a file
        return []
    low: Any = next((each for each in limits if isinstance(each, Ge | Gt)), None)
    high: Any = next((each for each in limits if isinstance(each, Le | Lt)), None)
    if base is int:
        return [edge(low), 2 * max(edge(low), 1)]  # twice, because the channels that rope turns are even
    assert base is float
    assert low is not None, "an open range needs a reason, and values of its own here"
    least: float = edge(low) if isinstance(low, Ge) else math.nextafter(edge(low), INF)
    most: float = 1e308 if high is None else edge(high) if isinstance(high, Le) else math.nextafter(edge(high), -INF)
    return [least, most, *(whole for whole in (1, 2) if least <= whole <= most)]


def test_every_option_has_a_type_and_every_number_a_range() -> None:
    assert len(ENTRIES) > 30
    for key, (_, spec, option) in ENTRIES.items():
        base, limits = bounds(spec.ranges()[option])
        if get_origin(base) is Sequence:
            base = get_args(base)[0]
            if base is Choice:
                continue
            base, limits = bounds(get_args(base)[0] if get_origin(base) is tuple else base)
        assert base in (int, float, bool, str) or get_origin(base) is Literal, key
        if base in (int, float):
            assert any(isinstance(each, Ge | Gt | Interval) for each in limits), key
            # A whole number counts rows, units or steps: without an upper end it would ask for all memory there is.
            assert base is float or any(isinstance(each, Le | Interval) for each in limits), key


@every_option
def test_an_option_refuses_every_value_that_it_does_not_mean(key: str) -> None:
    axis, spec, option = ENTRIES[key]
    wrong = [value for value in VALUES if not fits(as_python(value), spec.ranges()[option])]
    assert len(wrong) > len(VALUES) / 2
    for value in wrong:
        with pytest.raises(ConfigError) as caught:
            BackboneConfig(**config_with(key, value))
        where = f"{axis}.{spec.name}" if axis == "losses" else axis
        assert f"backbone.{where}.{option} must be" in str(caught.value)
        assert f"got {shown(as_python(value))}" in str(caught.value)


# Ends that need other sizes to be built at all, or that only exist together with another option.
BESIDE: dict[str, dict[str, Any]] = {
    "position.t5.buckets": {"max_distance": 3},
    "position.t5.max_distance": {"buckets": 2},
    "position.timestep.max_len": {"max_len": 9},
    "position.learned.max_len": {"max_len": 9},
    "position.attn_only.max_len": {"max_len": 9},
    "position.untied.max_len": {"max_len": 9},
    "pattern.etc.globals": {"block": 1},
    "pattern.block_local.back": {"block": 2},
    "mixer.poolingformer.kernel": {"stride": 1},
    "mixer.poolingformer.reach": {"kernel": 1, "stride": 1},
    "mixer.poolingformer.window": {"reach": None},
    "mixer.nystrom.landmarks": {"block": 2},
    "mixer.nystrom.block": {"landmarks": 2},
    "mixer.csalr.landmarks": {"block": 2},
    "mixer.csalr.block": {"landmarks": 2},
    "mixer.memory_compressed.blocks": {"block": 2},
    "mixer.linformer.blocks": {"block": 2},
    "mixer.linformer.block": {"slots": 1},
    "mixer.informer.factor": {"samples": None},
    "mixer.lru.r_min": {"r_max": 0.999999},
    "mixer.lru.r_max": {"r_min": 0.0},
    "mixer.s5.delta_min": {"delta_max": 100.0},
    "mixer.s5.delta_max": {"delta_min": 1e-6},
    "mixer.rg_lru.a_min": {"a_max": 0.999999},
    "mixer.rg_lru.a_max": {"a_min": 1e-6},
    "mixer.mamba2.delta_min": {"delta_max": 10.0},
    "mixer.mamba2.delta_max": {"delta_min": 1e-6},
}


# Ends that need other fields of the config.
FIELDS_BESIDE: dict[str, dict[str, Any]] = {
    "memory_kind.memorizing.layer": {"layers": 3},
    "mixer.slstm.units": {"heads": 1},
    "head_mixing.differential.initial": {"heads": 4},
    "losses.exits.slack": {"depth": {"name": "calm", "confidence": "classifier"}},
}


def beside(key: str, values: dict[str, Any]) -> dict[str, Any]:
    axis = ENTRIES[key][0]
    return {**values, **FIELDS_BESIDE.get(key, {}), axis: {**values[axis], **BESIDE.get(key, {})}}


@every_option
def test_an_option_gives_finite_numbers_at_both_ends_of_its_range(key: str) -> None:
    _, spec, option = ENTRIES[key]
    for value in ends(key, spec.ranges()[option]):
        runs(beside(key, config_with(key, value)))


def runs(values: dict[str, Any]) -> None:
    """Build, train on 9 tokens after 5 others, act: outputs, losses and gradients are finite."""
    torch.manual_seed(0)
    backbone = Backbone(BackboneConfig(**values))
    x, reset = torch.randn(2, 14, backbone.width), torch.zeros(2, 14, dtype=torch.bool)
    reset[0, 7] = True
    positions = [each for each in backbone.modules() if isinstance(each, Position)]
    tables = [end for each in positions for end in (each.places, each.timesteps) if end is not None]
    longest = min(tables, default=14)
    reset[:, ::longest] = True
    _, state = backbone(x[:, :5], None, reset[:, :5])
    record = Record()
    y, _ = backbone(x[:, 5:], state, reset[:, 5:], record=record)
    loss = y.square().mean() + sum(record.losses.values())
    gradients = torch.autograd.grad(loss, list(backbone.parameters()), allow_unused=True)
    for each in (y, loss, *(gradient for gradient in gradients if gradient is not None)):
        assert each.isfinite().all(), values
    backbone.eval()
    acting = backbone.initial_state(2, cached=True)
    with torch.inference_mode():
        for t in range(8):  # a ring of 6 rows goes round
            y, acting = backbone(x[:, t : t + 1], acting, reset[:, t : t + 1])
            assert y.isfinite().all(), values


SEVERAL = [spec for specs in catalogue().values() for spec in specs if spec.axis != "losses" and len(spec.ranges()) > 1]
# Beside which an option cannot differ in a test this small, or is required and cannot be left out.
ALIKE: dict[str, dict[str, Any]] = {
    "pattern.etc.block": {"globals": 0},
    "mixer.linformer.blocks": {"block": None},
}
# Thresholds among the confidences of these tokens: near 1 by saturation, around a half by a classifier as it was drawn.
TELLING = {"depth.calm": [{"threshold": each} for each in (0.99, 0.96, 0.6)]}


@pytest.mark.parametrize("spec", SEVERAL, ids=lambda spec: f"{spec.axis}.{spec.name}")
def test_an_option_changes_something_or_is_refused_beside_every_value_of_the_others(spec: Spec) -> None:
    for name, hint in spec.ranges().items():
        key = f"{spec.axis}.{spec.name}.{name}"
        for other, other_hint in spec.ranges().items():
            if other == name:
                continue
            for value in switch_values(other_hint):
                if value == ALIKE.get(key, {}).get(other, NAN):
                    continue
                found: list[tuple[list[BackboneConfig], list[str]]] = []
                for tried in distinct(key, hint):
                    values = beside(key, config_with(key, tried))
                    wanted = {name: tried, other: value}
                    telling = TELLING.get(f"{spec.axis}.{spec.name}", [{}])
                    with contextlib.suppress(ConfigError):
                        written = [{**values[spec.axis], **each, **wanted} for each in telling]
                        configs = [BackboneConfig(**{**values, spec.axis: each}) for each in written]
                        found.append((configs, [behavior(config) for config in configs]))
                    if len(found) > 1 and differ(found[0], found[-1]):
                        break
                else:
                    assert len(found) < 2, f"{key} changes nothing beside {other} {value!r}"


def differ(some: tuple[list[BackboneConfig], list[str]], others: tuple[list[BackboneConfig], list[str]]) -> bool:
    """Whether backbones behave differently, in updates or, where those are equal, in acting."""
    if some[1] != others[1]:
        return True
    one, other = ([behavior(config, acts=True) for config in configs] for configs, _ in (some, others))
    return one != other


def switch_values(annotation: Any) -> list[Any]:
    """Values of an option that can turn others off: modes, None, 0."""
    base, limits = bounds(annotation)
    found = [*get_args(base)] if get_origin(base) is Literal else [True, False] if base is bool else []
    found += [None] if type(None) in get_args(annotation) else []
    return found + [0 for limit in limits if base in (int, float) and isinstance(limit, Ge) and limit.ge == 0]


def distinct(key: str, annotation: Any) -> list[Any]:
    """Values of an option that can be told apart where it acts."""
    values: list[Any] = [None] if type(None) in get_args(annotation) else []
    values += ends(key, annotation)
    base, _ = bounds(annotation)
    if base in (int, float):
        values = [value for value in values if value is None or value == 0 or 1e-6 < abs(value) < 1e6]
        values.append(3 if base is int else 0.3)
    return values


def behavior(config: BackboneConfig, acts: bool = False) -> str:
    """A digest of the first weights, and of outputs, losses, gradients and states of two updates; or of 20 steps."""
    return behavior_of(json.dumps(config.to_dict(), sort_keys=True), acts)


@functools.lru_cache
def behavior_of(settings: str, acts: bool) -> str:
    """Of a config as text: options are tried beside each other in either order."""
    torch.manual_seed(0)
    backbone = Backbone(BackboneConfig.from_dict(json.loads(settings)))
    x, reset = torch.randn(2, 20, backbone.width), torch.zeros(2, 20, dtype=torch.bool)
    reset[0, 7] = True
    digest = hashlib.sha1()

    def add(tensors: Mapping[str, torch.Tensor]) -> None:
        for name, tensor in tensors.items():
            digest.update(name.encode() + tensor.detach().double().numpy().tobytes())

    add(backbone.state_dict())
    if acts:
        backbone.eval()
        acting = backbone.initial_state(2, cached=True)
        with torch.inference_mode():
            for t in range(20):
                y, acting = backbone(x[:, t : t + 1], acting, reset[:, t : t + 1])
                add({"outputs": y})
        add(acting.tensors)
        return digest.hexdigest()
    _, state = backbone(x[:, :9], None, reset[:, :9])
    for _ in range(2):
        record = Record()
        y, after = backbone(x[:, 9:], state, reset[:, 9:], record=record)
        learned = [each for each in backbone.parameters() if each.requires_grad]
        gradients = torch.autograd.grad(
            y.square().mean() + sum(record.losses.values()), learned, allow_unused=True, materialize_grads=True
        )
        add({**record.losses, "outputs": y, **after.tensors} | {str(i): each for i, each in enumerate(gradients)})
        with torch.no_grad():
            for weight, gradient in zip(learned, gradients, strict=True):
                weight.sub_(0.01 * gradient)
        backbone.constrain_()
        backbone.maintain()
    add(backbone.state_dict())
    return digest.hexdigest()


FIELDS = {"width", "layers", "heads", "kv_heads", "head_dim", "value_dim", "memory", "tokens_per_step", "ff_width",
          "ff_chunks"}  # fmt: skip
SWITCHES = {"attention_bias", "input_norm", "final_norm", "checkpoint"}
CHOICES = {axis for axis in AXES if axis != "losses"}


def test_the_fields_are_those_below() -> None:
    assert {each.name for each in fields(BackboneConfig)} == FIELDS | SWITCHES | CHOICES | {
        "dropout",
        "losses",
        "compute_dtype",
        "norm",
    }


@pytest.mark.parametrize("name", sorted(FIELDS | SWITCHES | {"dropout"}))
def test_a_field_refuses_every_value_that_it_does_not_mean(name: str) -> None:
    least = 0 if name in ("memory", "dropout") else 1
    for value in VALUES:
        plain = as_python(value)
        number = type(plain) in (int, float) and plain == plain // 1  # 0.0 is a whole number
        accepted = {
            **dict.fromkeys(FIELDS, (number and plain in (least,)) or (plain is None and name not in REQUIRED)),
            **dict.fromkeys(SWITCHES, isinstance(plain, bool)),
            "dropout": plain == 0 and type(plain) in (int, float),
        }[name]
        if accepted:
            continue
        with pytest.raises(ConfigError) as caught:
            BackboneConfig(**{name: value})
        assert f"backbone.{name} must be" in str(caught.value) and f"got {shown(plain)}" in str(caught.value)


REQUIRED = {"width", "layers", "heads", "memory", "tokens_per_step", "ff_chunks"}


@pytest.mark.parametrize("name", sorted(CHOICES))
def test_an_axis_refuses_what_is_no_choice(name: str) -> None:
    nested = ["none", "full", "softmax"]
    for value in [
        *VALUES,
        [[]],
        [None],
        [[[nested]]],
        [["sinusoidal"], ["none"]],
        {"name": ["x"]},
        {1: 2},
        {"name": "x", 1: 2},
    ]:
        with pytest.raises(ConfigError, match=rf"backbone\.{name}"):
            BackboneConfig(**{name: value})


@pytest.mark.parametrize("axis", ["mixer", "pattern", "selection", "span", "position"])
def test_a_wrong_choice_inside_a_list_is_found_wherever_it_stands(axis: str) -> None:
    plain = {"mixer": "softmax", "pattern": "full", "selection": "none", "span": "full", "position": "none"}[axis]
    with pytest.raises(ConfigError, match=rf"backbone\.{axis}\[2\]: unknown {axis} 'x'"):
        BackboneConfig(**{axis: [plain, plain, "x"]})  # type: ignore[arg-type]
    with pytest.raises(ConfigError, match=r"backbone\.pattern\[0\]\[1\]\.window must be"):
        BackboneConfig(heads=2, pattern=[["full", {"name": "band", "window": 0}]])


def test_weights_of_losses_are_numbers_that_are_not_negative() -> None:
    span: dict[str, Any] = {"span": {"name": "adaptive", "ramp": 2.0}}
    for weight in (NAN, INF, -1, True, "1", None, [1], 1e308):
        with pytest.raises(ConfigError, match=r"backbone\.losses\.span must be a finite number in \[0, 1000000.0\]"):
            BackboneConfig(losses={"span": weight}, **span)
    for losses in (None, [], "span", 1.0, NAN, [("span", 1.0)]):
        with pytest.raises(ConfigError, match=r"backbone\.losses must be a mapping"):
            BackboneConfig(losses=losses, **span)  # type: ignore[arg-type]
    with pytest.raises(ConfigError, match=r"unknown setting backbone\.losses\.1"):
        BackboneConfig(losses={1: 1.0}, **span)
    assert BackboneConfig(losses={"span": np.float64(0.5)}, **span).to_dict()["losses"] == {"span": 0.5}


def test_what_is_no_mapping_or_no_preset_is_refused() -> None:
    assert BackboneConfig.from_dict("gtrxl") == BackboneConfig.from_dict({"preset": "gtrxl"})
    for value in (None, [], 3, NAN, [("width", 3)]):
        with pytest.raises(ConfigError, match="backbone must be a preset, or a mapping"):
            BackboneConfig.from_dict(value)  # type: ignore[arg-type]
    presets: list[Any] = [None, [], {}, 3, True, NAN, b"gtrxl"]
    for preset in presets:
        with pytest.raises(ConfigError, match=r"backbone\.preset must be a text"):
            BackboneConfig.from_dict({"preset": preset})
    for key in (None, 3, ("width",), NAN):
        with pytest.raises(ConfigError, match=r"unknown setting backbone\."):
            BackboneConfig.from_dict({key: 3})  # type: ignore[dict-item]


def test_a_config_keeps_plain_copies_of_what_it_was_given() -> None:
    options = {"name": "band", "window": np.int64(3)}
    patterns = (options, "full")
    config = BackboneConfig(width=np.int32(32), dropout=np.float32(0.5), pattern=patterns, final_norm=np.bool_(True))  # type: ignore[arg-type]
    options["window"] = 0
    found = config.to_dict()
    assert found["pattern"] == [{"name": "band", "window": 3}, "full"]
    assert [type(found[name]) for name in ("width", "dropout", "final_norm")] == [int, float, bool]
    assert type(found["pattern"][0]["window"]) is int
    found["pattern"][0]["window"] = 9
    assert config.to_dict()["pattern"][0]["window"] == 3


def test_a_dict_of_an_older_version_that_lacks_a_newer_field_gives_the_same_config() -> None:
    stored = BackboneConfig(position="rope", residual="post_ln").to_dict()
    del stored["attention_bias"]
    assert BackboneConfig.from_dict(stored) == BackboneConfig(position="rope", residual="post_ln")


def test_making_a_config_draws_no_numbers() -> None:
    before = torch.get_rng_state()
    BackboneConfig(position=["learned"], mixer=["performer", "light_conv"])
    BackboneConfig(position="shaw", head_mixing="talking")
    assert torch.equal(torch.get_rng_state(), before)


@pytest.mark.slow
def test_making_a_config_does_not_load_the_compiler_of_torch() -> None:
    script = """
import sys
from rltransformers.backbone import PLAIN, PRESETS, BackboneConfig, catalogue
before = set(sys.modules)
for name in PRESETS:
    BackboneConfig.preset(name)
for specs in catalogue().values():
    for spec in specs:
        BackboneConfig(**{**PLAIN, **spec.example})
assert "sympy" not in set(sys.modules) - before
"""
    subprocess.run([sys.executable, "-c", script], check=True, timeout=120)
