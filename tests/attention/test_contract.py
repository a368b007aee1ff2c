"""The laws of the backbone, held against every catalogue entry, its variants and every preset, in float64."""

import ast
import io
import json
import math
from collections.abc import Iterable, Iterator, Mapping
from pathlib import Path

import pytest
import torch
from torch.utils.flop_counter import FlopCounterMode

from rltransformers.attention import layer as attention
from rltransformers.backbone import AXES, PRESETS, Backbone, BackboneConfig, Record, State
from rltransformers.core.spec import Feature
from scripts.benchmarks import counting
from scripts.benchmarks.elements import backbone_of
from tests.attention.references import backbone_reference, twin_of
from tests.attention.row import Limit, Row
from tests.attention.rows import PRESET_ROWS, ROWS, cases, config_of, entry_config, examples, preset_config
from tests.backbone import laws
from tests.backbone.laws import Case, perturbed
from tests.choice import ALL_CASES

ROOT = Path(__file__).parents[2]
CASES = cases() | {f"preset:{name}": (preset_config(name), PRESET_ROWS.get(name, Row())) for name in PRESETS}


def merged(cases: Mapping[str, tuple[BackboneConfig, Row]]) -> dict[str, list[str]]:
    """Cases with the same settings and tolerances are one: the first name → all names."""
    found: dict[object, list[str]] = {}
    for name, (config, row) in cases.items():
        settings = json.dumps(config.to_dict(), sort_keys=True)
        found.setdefault((settings, row.tolerance, row.float32, row.bfloat16), []).append(name)
    return {names[0]: names for names in found.values()}


NAMES = merged(CASES)


def of_cases(names: Iterable[str]) -> pytest.MarkDecorator:
    """Run a law on these cases, and on every case where all are asked for."""
    chosen = NAMES if ALL_CASES else names
    return pytest.mark.parametrize("name", [pytest.param(name, id="=".join(NAMES[name])) for name in chosen])


# A preset combines entries: what they keep each alone, it keeps unless they meet, which splits and twins show.
every_case = of_cases(NAMES)
every_mechanism = of_cases(name for name in NAMES if not name.startswith("preset:"))
# Options of an entry change neither what it costs nor what its weights are saved as.
every_plain_entry = of_cases(name for name in NAMES if tuple(name.split(":")) in ROWS)


@pytest.fixture(autouse=True)
def double(monkeypatch: pytest.MonkeyPatch, law_device: None) -> Iterator[None]:
    """Float64, and calls of 23 tokens are already cut into blocks as calls of thousands are."""
    monkeypatch.setattr(attention, "SMALLEST_BLOCK", 4)
    torch.set_default_dtype(torch.float64)
    yield
    torch.set_default_dtype(torch.float32)


def case_of(name: str) -> Case:
    config, row = CASES[name]
    return Case.of(perturbed(config), tolerance=row.tolerance)


def test_every_catalogue_entry_has_a_row_and_every_row_an_entry() -> None:
    assert set(ROWS) == set(examples())
    assert set(PRESET_ROWS) <= set(PRESETS)


def test_every_row_carries_a_twin_of_its_axis() -> None:
    for axis, name in ROWS:
        if not AXES[axis].neutral:
            assert ROWS[axis, name].twin is None, (axis, name)
        else:
            assert type(twin_of(axis, name)) is type(twin_of(axis, AXES[axis].neutral)), (axis, name)


def test_every_row_has_a_limit_and_a_reason_for_what_is_unusual() -> None:
    usual = Row()
    for key, row in ROWS.items():
        assert row.limits, key
        if (row.tolerance, row.float32, row.bfloat16) != (usual.tolerance, usual.float32, usual.bfloat16):
            assert row.why, key
        for limit in row.limits:
            if isinstance(limit, str):
                path, test = limit.split("::")
                tree = ast.parse((ROOT / path).read_text())
                assert test in {node.name for node in tree.body if isinstance(node, ast.FunctionDef)}, limit


@every_mechanism
def test_l1_nothing_depends_on_the_future(name: str) -> None:
    laws.causality(case_of(name))


@every_case
def test_l2_any_split_gives_the_same_outputs_and_state(name: str) -> None:
    laws.split_invariance(case_of(name))


@every_mechanism
def test_l2_cutting_a_call_into_blocks_changes_nothing(name: str, monkeypatch: pytest.MonkeyPatch) -> None:
    case = case_of(name)
    folded, state = case.backbone(case.x, None, case.reset)
    monkeypatch.setattr(attention, "SMALLEST_BLOCK", 1000)
    whole, after = case.backbone(case.x, None, case.reset)
    case.close(folded, whole)
    case.close_states(state, after)


@every_case
def test_l2_acting_without_gradient_equals_the_segment_with_it(name: str) -> None:
    """Other kernels and windows that are extended in place: the numbers have to be the same."""
    case = case_of(name)
    whole, _ = case.backbone(case.x.requires_grad_(), None, case.reset)
    state, outputs = case.backbone.initial_state(len(case.x), cached=True), []
    with torch.inference_mode():
        for t in range(case.x.shape[1]):
            case.backbone(case.x[:, t : t + 1] + 1, state, case.reset[:, t : t + 1])  # a path not taken
            y, state = case.backbone(case.x[:, t : t + 1], state, case.reset[:, t : t + 1])
            outputs.append(y)
    case.close(torch.cat(outputs, 1), whole)
    y, _ = case.backbone(case.x[:, :3], state, case.reset[:, :3])  # what acting leaves is fit for training
    torch.autograd.grad(y.sum(), case.x)


@every_mechanism
def test_l2_keys_in_place_of_layer_inputs_act_alike(name: str) -> None:
    case = case_of(name)
    shapes = {
        key: value.shape for key, value in case.backbone.initial_state(len(case.x), cached="only").tensors.items()
    }
    with torch.inference_mode():
        whole, _ = case.backbone(case.x, None, case.reset)
        for count in (5, 1):
            state, outputs = case.backbone.initial_state(len(case.x), cached="only"), []
            for part, reset in zip(case.x.split(count, 1), case.reset.split(count, 1), strict=True):
                y, state = case.backbone(part, state, reset)
                outputs.append(y)
                assert {key: value.shape for key, value in state.tensors.items()} == shapes
            case.close(torch.cat(outputs, 1), whole)


@every_mechanism
def test_l2_leaving_out_outputs_changes_neither_the_others_nor_the_state(
    name: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    case = case_of(name)
    valid = torch.rand(case.x.shape[:2]) > 0.2
    for smallest in (4, 1000):  # cut into blocks, and as a whole, where queries are left out as well
        monkeypatch.setattr(attention, "SMALLEST_BLOCK", smallest)
        for padding in (None, valid, torch.arange(case.x.shape[1]).expand_as(valid) < 17):
            whole, state = case.backbone(case.x, None, case.reset, valid=padding)
            for wanted in (slice(1, None, 3), slice(-1, None), slice(0, 0)):
                part, after = case.backbone(case.x, None, case.reset, valid=padding, wanted=wanted)
                case.close(part, whole[:, wanted])
                case.close_states(after, state)


@every_mechanism
def test_l3_an_episode_in_a_stream_equals_the_episode_alone(name: str) -> None:
    laws.episode_isolation(case_of(name))


@every_mechanism
def test_l4_padding_and_other_streams_change_nothing(name: str) -> None:
    laws.padding(case_of(name))


@pytest.mark.parametrize("name", [name for name in NAMES if "decision_transformer" not in name])
def test_l5_values_gradients_and_state_equal_the_twin(name: str) -> None:
    config, row = CASES[name]
    backbone = perturbed(config)
    # the second episode is longer than twice the window of most rows
    case = Case.of(backbone, [[0, 4]], time=15, tolerance=row.tolerance)
    x = case.x.requires_grad_()
    y, state = backbone(x, None, case.reset)
    first, _ = backbone_reference(backbone, x[0, :4])
    second, rows = backbone_reference(backbone, x[0, 4:])
    twin = torch.cat([first, second])
    case.close(y[0], twin)
    for key, found in state.tensors.items():
        if key == "position":
            assert found.tolist() == [10]
            continue
        expected, found = rows[key], found[0]
        if key.endswith(("sinks", "sink_keys")):
            expected = expected[: len(found)]
        elif key.endswith((".hidden", ".keys")):  # what lies further back belongs to the episode before
            count = min(len(found), len(expected))
            expected, found = expected[len(expected) - count :], found[len(found) - count :]
        case.close(found, expected, key)
    wanted = [x, *backbone.parameters()]
    weight = torch.randn_like(twin)
    gradients = torch.autograd.grad((y[0] * weight).sum(), wanted, allow_unused=True)
    by_twin = torch.autograd.grad((twin * weight).sum(), wanted, allow_unused=True)
    for (label, _), found, expect in zip([("x", x), *backbone.named_parameters()], gradients, by_twin, strict=True):
        found, expect = (torch.zeros(()) if each is None else each for each in (found, expect))
        # Gradients of sums over all tokens are up to 100 times larger than outputs.
        error = (found - expect).abs().max() / max(1.0, float(expect.abs().max()))
        assert error <= 100 * row.tolerance, label


LIMITS = [
    (key, index) for key, row in ROWS.items() for index, limit in enumerate(row.limits) if isinstance(limit, Limit)
]


@pytest.mark.parametrize(
    ("key", "index"), LIMITS, ids=lambda value: ":".join(value) if isinstance(value, tuple) else ""
)
def test_l6_at_its_limit_an_entry_becomes_another(key: tuple[str, str], index: int) -> None:
    limit = ROWS[key].limits[index]
    assert isinstance(limit, Limit)
    special, plain = (
        perturbed(config_of(values), seed=seed) for seed, values in enumerate((limit.special, limit.plain))
    )
    case = Case.of(special, tolerance=limit.tolerance)
    before, _ = special(case.x, None, case.reset)
    mine, others = dict(special.named_parameters()), dict(plain.named_parameters())
    for name in mine.keys() & others.keys():
        if mine[name].shape == others[name].shape:
            others[name].data.copy_(mine[name].data)
    limit.edit(special, plain)
    found, _ = special(case.x, None, case.reset)
    expected, _ = plain(case.x, None, case.reset)
    case.close(found, expected)
    assert expected.std() > 0.01
    if limit.edit is not Limit({}, {}).edit:
        assert before.isfinite().all()


@every_mechanism
def test_l7_gradients_are_those_of_finite_differences(name: str) -> None:
    step, errors = 1e-6, []
    for seed in range(3):
        backbone = perturbed(CASES[name][0], seed=seed)
        case = Case.of(backbone, [[0, 3]], time=8)
        wanted = [case.x.requires_grad_(), *backbone.parameters()]
        weight = torch.randn(1, 8, backbone.width)
        loss = (backbone(case.x, None, case.reset)[0] * weight).sum()
        gradients = torch.autograd.grad(loss, wanted, allow_unused=True)
        # One random direction through the input and all parameters, as torch.autograd.gradcheck does in its fast mode.
        direction = [torch.randn_like(value) for value in wanted]
        expected = sum(float((g * d).sum()) for g, d in zip(gradients, direction, strict=True) if g is not None)
        values = []
        with torch.no_grad():
            for move in (step, -2 * step):
                for value, each in zip(wanted, direction, strict=True):
                    value += move * each
                values.append(float((backbone(case.x, None, case.reset)[0] * weight).sum()))
        errors.append(abs((values[0] - values[1]) / (2 * step) - expected) / max(1.0, abs(expected)))
        # The error of a central difference is about step^2 for the curvature and 1e-16 / step for rounding. The step
        # may cross the kink of one of some thousand ReLUs, which no wrong gradient survives with three backbones.
        if errors[-1] < 1e-6:
            return
    raise AssertionError(errors)


@every_mechanism
def test_l7_every_parameter_receives_a_gradient_and_the_given_state_none(name: str) -> None:
    backbone = perturbed(CASES[name][0])
    case = Case.of(backbone)
    _, before = backbone(case.x, None, case.reset)
    state = before.map(lambda value: value.requires_grad_() if value.is_floating_point() else value)
    record = Record()
    y, _ = backbone(case.x, state, case.reset, record=record)
    loss = (y * torch.randn_like(y)).sum() + sum(record.losses.values())
    names, parameters = zip(*backbone.named_parameters(), strict=True)
    floats = [value for value in state.tensors.values() if value.is_floating_point() and value.numel()]
    gradients = torch.autograd.grad(loss, [*parameters, *floats], allow_unused=True)
    for label, gradient in zip(names, gradients, strict=False):
        if Feature.HALTING in backbone.config.choices.depth.spec.offers and gradient is None:
            assert label.startswith("halt.")  # what decides for one layer or another has no gradient, but a loss
            continue
        if backbone.config.memory == 0 and ("query" in label or "position" in label):
            continue  # the weight of the only key is 1, whatever its score
        assert gradient is not None, label
        assert gradient.ne(0).any(), label
        assert gradient.isfinite().all(), label
    assert all(gradient is None for gradient in gradients[len(names) :])


def cost(backbone: Backbone, time: int) -> tuple[int, int]:
    """FLOPs of the forward pass, and bytes of the tensors that it keeps for the backward pass."""
    x = torch.randn(1, time, backbone.width)
    return counting.cost(lambda: backbone(x)[0])


def of_one_layer(config: BackboneConfig) -> BackboneConfig:
    """The same with one layer, where all are alike and nothing passes between them."""
    alike = len(config.choices.kinds) == 1 and config.choices.depth.name == "fixed"
    if not alike or Feature.CARRY in config.choices.prior.spec.offers:
        return config
    return BackboneConfig.from_dict({**config.to_dict(), "layers": 1})


def window_of_16(values: BackboneConfig) -> BackboneConfig:
    """The same with a memory of 15 steps, where no option depends on the memory."""
    plain = values.to_dict()
    names = [layer.mixer.name for layer in values.choices.kinds]
    if "nystrom" not in names and values.choices.memory_kind.name != "compressive" and values.memory:
        plain["memory"] = 15
    for each in plain["position"] if isinstance(plain["position"], list) else [plain["position"]]:
        if isinstance(each, dict) and "max_len" in each:
            each["max_len"] = 4096
    return BackboneConfig.from_dict(plain)


@every_plain_entry
def test_l8_work_and_kept_memory_grow_with_the_tokens_as_declared(name: str) -> None:
    config = of_one_layer(window_of_16(CASES[name][0]))
    backbone = backbone_of(config)
    squared = config.choices.memory_kind.name == "compressive"
    lengths = (256, 1024)
    for values in zip(*(cost(backbone, time) for time in lengths), strict=True):
        growth = math.log(values[-1] / values[0]) / math.log(lengths[-1] / lengths[0])
        assert growth <= (2.1 if squared else 1.15)


def test_l8_the_declared_growth_of_every_entry_is_what_its_case_shows() -> None:
    for (axis, name), spec in examples_with_traits().items():
        squared = entry_config((axis, name)).choices.memory_kind.name == "compressive"
        assert spec == ("T^2" if squared and axis == "memory_kind" else "T"), (axis, name)


def examples_with_traits() -> dict[tuple[str, str], str]:
    from rltransformers.backbone import catalogue

    return {(axis, spec.name): spec.traits.time for axis, specs in catalogue().items() for spec in specs}


@every_plain_entry
def test_l8_a_step_costs_the_same_after_492_steps_as_after_12(name: str) -> None:
    config = of_one_layer(window_of_16(CASES[name][0]))
    backbone = backbone_of(config).eval()
    x = torch.randn(2, 501, backbone.width)
    state = backbone.initial_state(2, cached=True)
    shapes = {key: value.shape for key, value in state.tensors.items()}
    flops, first = [], 0
    with torch.no_grad():
        for steps in (12, 492):  # a compressive memory squeezes a block every 2 or 3 steps: compare steps that do
            _, state = backbone(x[:, first:steps], state)
            with FlopCounterMode(display=False, custom_mapping=counting.UNCOUNTED) as counter:
                backbone(x[:, steps : steps + 1], state)
            flops.append(counter.get_total_flops())
            first = steps
            assert {key: value.shape for key, value in state.tensors.items()} == shapes
    assert flops[0] == flops[1] > 0


def test_l8_reversible_layers_keep_nothing_that_grows_with_their_number() -> None:
    kept = [
        cost(backbone_of(config_of({"residual": residual, "layers": layers})), 64)[1]
        for residual in ("reversible", "pre_ln")
        for layers in (2, 8)
    ]
    assert kept[1] == kept[0]
    assert kept[3] > 3 * kept[2]


@every_mechanism
def test_l9_states_can_be_saved_picked_moved_and_joined(name: str) -> None:
    case = case_of(name)
    backbone, reset = case.backbone, case.reset
    with torch.no_grad():
        _, state = backbone(case.x, None, reset)
        for form in (state, backbone.with_cache(state)):
            y, after = backbone(case.x, form, reset)
            file = io.BytesIO()
            torch.save(form.tensors, file)
            file.seek(0)
            loaded = State(torch.load(file, weights_only=True))
            halves = State.cat([form[:1], form[1:]])
            order = torch.tensor([2, 0, 1])
            turned = form[order]
            for other in (loaded, halves, form.clone().detach(), form.where(torch.tensor([True, False, True]), form)):
                again, _ = backbone(case.x, other, reset)
                assert torch.equal(again, y)
            again, last = backbone(case.x[order], turned, reset[order])
            case.close(again, y[order])
            case.close_states(last, after[order])
            fresh = backbone.initial_state(3, cached=form is not state)
            mixed, _ = backbone(case.x, form.where(torch.tensor([False, True, False]), fresh), reset)
            begun, _ = backbone(case.x, fresh, reset)
            case.close(mixed, torch.stack([y[0], begun[1], y[2]]))
            moved = form.to(dtype=torch.float32)
            floats = [value for value in moved.tensors.values() if value.is_floating_point()]
            assert all(value.dtype == torch.float32 for value in floats)
            assert moved.tensors["position"].dtype == torch.long


@every_plain_entry
def test_l9_a_new_backbone_with_the_same_weights_continues_alike(name: str) -> None:
    case = case_of(name)
    config = BackboneConfig.from_dict(case.backbone.config.to_dict())
    assert config == case.backbone.config or config.to_dict() == case.backbone.config.to_dict()
    torch.manual_seed(77)
    other = backbone_of(config).eval()
    file = io.BytesIO()
    torch.save(case.backbone.state_dict(), file)
    file.seek(0)
    other.load_state_dict(torch.load(file, weights_only=True))
    with torch.no_grad():
        y, state = case.backbone(case.x, None, case.reset)
        again, _ = other(case.x, None, case.reset)
        assert torch.equal(again, y)
        assert torch.equal(other(case.x, state)[0], case.backbone(case.x, state)[0])


@every_mechanism
def test_l10_autocast_stays_in_the_bound_of_bfloat16_in_segments_and_in_acting(name: str) -> None:
    row, case = CASES[name][1], case_of(name)
    with torch.no_grad():
        expected, _ = case.backbone(case.x, None, case.reset)
    bound = row.bfloat16 * expected.abs().max()
    backbone, x = case.backbone.float(), case.x.float()
    few = 3  # calls of one token each; then the state of acting goes on with the rest
    with torch.autocast(x.device.type, torch.bfloat16):
        segment, _ = backbone(x, None, case.reset)
        segment.float().square().mean().backward()
        acted, state = [], backbone.initial_state(len(x), cached=True)
        with torch.no_grad():
            for place in range(few):
                y, state = backbone(x[:, place : place + 1], state, case.reset[:, place : place + 1])
                acted.append(y)
            rest, after = backbone(x[:, few:], state, case.reset[:, few:])
    for found in (segment.detach(), torch.cat([*acted, rest], 1)):
        assert found.isfinite().all()
        assert (found.double() - expected).abs().max() <= bound
    gradients = [each.grad for each in backbone.parameters() if each.grad is not None]
    assert gradients and all(each.isfinite().all() for each in gradients)
    assert all(value.isfinite().all() for value in after.tensors.values())


@every_plain_entry
def test_l10_float32_is_precise_and_bfloat16_stays_in_its_bound(name: str) -> None:
    row = CASES[name][1]
    case = case_of(name)
    with torch.no_grad():
        y, _ = case.backbone(case.x, None, case.reset)
        scale = y.abs().max()
        for dtype, bound in ((torch.float32, row.float32), (torch.bfloat16, row.bfloat16)):
            low = case.backbone.to(dtype)
            start = low.initial_state(len(y), cached=True)
            for form in (None, start):
                found, _ = low(case.x.to(dtype), form, case.reset)
                assert found.dtype == dtype
                assert found.isfinite().all()
                assert (found.double() - y).abs().max() <= bound * scale
            case.backbone.double()
            case.backbone.load_state_dict(perturbed(CASES[name][0]).state_dict())
