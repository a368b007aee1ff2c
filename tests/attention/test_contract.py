"""The laws of the backbone, held against every catalogue entry, its variants and every preset, in float64."""

import ast
import json
from collections.abc import Iterable, Iterator, Mapping
from pathlib import Path

import pytest
import torch

from rltransformers import laws
from rltransformers.backbone import AXES, PRESETS, BackboneConfig
from rltransformers.laws import Case, Limit, perturbed
from rltransformers.laws.costs import cost
from rltransformers.laws.streams import backbone_of
from tests.attention.references import backbone_reference, twin_of
from tests.attention.row import Row
from tests.attention.rows import PRESET_ROWS, ROWS, cases, config_of, entry_config, examples, preset_config
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
SPLITS = ([10, 2, 11], [2, 2, 1, 1, 1, 1, 4, 11])
"""Long and short calls, steps of acting, and a call that begins within an episode; a third split saw no bug alone."""


def of_cases(names: Iterable[str]) -> pytest.MarkDecorator:
    """Run a law on these cases, and on every case where all are asked for."""
    chosen = NAMES if ALL_CASES else names
    return pytest.mark.parametrize("name", [pytest.param(name, id="=".join(NAMES[name])) for name in chosen])


ALIKE = (
    *("shaw without values", "rope on some channels", "rope with sinks", "rope with slots", "pattern per head"),
    *("pattern per head in one layer", "tree with turned nodes", "tree with logits of the layer below"),
    *("attention, mean and convolution", "sinks kept as keys", "max compression", "compression with shaw"),
    *("talking sinks", "layered logits with slots", "talking realformer with spans", "halting with post norm"),
    *("RMS norms behind gates", "RMS norms of compressed rows", "GRU gates behind the norm"),
    *("input gates behind the norm", "biases", "biases and sinks kept as keys", "biases and slots"),
    *("biases of kernels", "biases of landmarks", "other activations", "gelu"),
    *("union of heads that differ, with sinks", "a graph of steps", "blocks of steps", "random blocks of steps"),
    *("big bird among steps", "strides of steps and chosen keys", "a grid of steps"),
    *("number of the application told once", "scores of keys at nodes and sinks", "factors of nodes and of slots"),
    "softmax with every option among scores by distance, sinks and talking heads",
    *("additive with biases and slots", "hard gaussian among steps"),
    "latents beside turned keys, kept by a cache, with sinks",
    *("differential heads that share keys, with sinks of both kinds", "gates of heads with biases"),
    *("collaborative heads that start apart", "evolving attention among steps and patterns of heads"),
    "weights shared by three layers among sinks and talking heads",
    *("values of the first layer among sinks and steps", "values of the first layer of compressed blocks"),
    *("forgetting among chosen keys", "dynamic convolution padded with zeros", "packed by elu"),
    *("channels that decay behind sigmoid gates", "state space without a convolution"),
    *("a wide minimal lstm beside a highway", "complex numbers in a narrow ring"),
    *("a state space of one number with long steps", "a real-gated recurrence without its convolution"),
    *("traces of one frequency", "hadamard memory that hardly grows", "mLSTM without expansion or convolution"),
    *(
        "KDA with negative eigenvalues and without norm",
        "blocks sorted among steps",
        "walks among steps",
        "slots among steps",
    ),
    *("halting computed again", "elements read by grouped heads", "elements between layers with a state"),
    *("elements on the way out of the stack", "elements of one layer applied again", "one oscillator, not rectified"),
)
"""Variants that run no line or operation which neither an entry nor another variant runs, in any law.

Where mechanisms meet, splits, acting and twins show it first; the other laws leave these variants out.
"""
# A preset combines entries: what they keep each alone, it keeps unless they meet, which splits and twins show.
every_case = of_cases(NAMES)
every_mechanism = of_cases(name for name in NAMES if not name.startswith("preset:") and name not in ALIKE)
# Options of an entry change neither what it costs, nor what its weights are saved as, nor how far it carries a stream.
every_plain_entry = of_cases(name for name in NAMES if tuple(name.split(":")) in ROWS)


@pytest.fixture(autouse=True)
def double(law_device: None) -> Iterator[None]:
    with laws.in_double():
        yield


def case_of(name: str) -> Case:
    config, row = CASES[name]
    return Case.of(perturbed(config), tolerance=row.tolerance)


def test_every_catalogue_entry_has_a_row_and_every_row_an_entry() -> None:
    assert set(ROWS) == set(examples())
    assert set(PRESET_ROWS) <= set(PRESETS)


def test_variants_that_laws_leave_out_exist() -> None:
    assert set(NAMES) >= {*ALIKE}


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


def test_mechanisms_since_2022_declare_the_bounds_of_low_precision_that_their_rows_have() -> None:
    """``check_mechanism`` reads those of the traits."""
    recent = {key: row for key, row in ROWS.items() if AXES[key[0]].table[key[1]].id.startswith("N")}
    assert len(recent) >= 19
    for (axis, name), row in recent.items():
        traits = AXES[axis].table[name].traits
        assert (row.float32, row.bfloat16, row.why) == (traits.single, traits.half, traits.rounding), name


@every_mechanism
def test_l1_nothing_depends_on_the_future(name: str) -> None:
    laws.causality(case_of(name))


@every_case
def test_l2_any_split_gives_the_same_outputs_and_state(name: str) -> None:
    laws.split_invariance(case_of(name), SPLITS)


@every_mechanism
def test_l2_cutting_a_call_into_blocks_changes_nothing(name: str) -> None:
    laws.block_invariance(case_of(name))


@every_case
def test_l2_acting_without_gradient_equals_the_segment_with_it(name: str) -> None:
    laws.acting_equals_training(case_of(name))


@every_mechanism
def test_l2_training_mode_computes_what_evaluation_mode_does(name: str) -> None:
    laws.training_equals_evaluation(case_of(name))


@every_plain_entry
def test_l2_streams_of_260_tokens_equal_their_parts(name: str) -> None:
    config, row = CASES[name]
    laws.long_streams(config, row.tolerance)


@every_mechanism
def test_l2_keys_in_place_of_layer_inputs_act_alike(name: str) -> None:
    laws.acting_from_keys(case_of(name))


@every_mechanism
def test_l2_leaving_out_outputs_changes_neither_the_others_nor_the_state(name: str) -> None:
    laws.outputs_left_out(case_of(name))


@every_mechanism
def test_l3_an_episode_in_a_stream_equals_the_episode_alone(name: str) -> None:
    laws.episode_isolation(case_of(name))


@every_mechanism
def test_l4_padding_and_other_streams_change_nothing(name: str) -> None:
    laws.padding(case_of(name))


@pytest.mark.parametrize("name", [name for name in NAMES if "decision_transformer" not in name])
def test_l5_values_gradients_and_state_equal_the_twin(name: str) -> None:
    config, row = CASES[name]
    laws.equals_reference(perturbed(config), backbone_reference, row.tolerance)


LIMITS = [
    (key, index) for key, row in ROWS.items() for index, limit in enumerate(row.limits) if isinstance(limit, Limit)
]


@pytest.mark.parametrize(
    ("key", "index"), LIMITS, ids=lambda value: ":".join(value) if isinstance(value, tuple) else ""
)
def test_l6_at_its_limit_an_entry_becomes_another(key: tuple[str, str], index: int) -> None:
    limit = ROWS[key].limits[index]
    assert isinstance(limit, Limit)
    laws.becomes_another(config_of(limit.special), config_of(limit.plain), limit)


@every_mechanism
def test_l7_gradients_are_those_of_finite_differences(name: str) -> None:
    laws.finite_differences(CASES[name][0])


@every_plain_entry
def test_l7_gradients_flow_through_220_tokens_unless_they_stop_by_declaration(name: str) -> None:
    laws.far_gradients(CASES[name][0])


@every_mechanism
def test_l7_every_parameter_receives_a_gradient_and_the_given_state_none(name: str) -> None:
    laws.gradients_everywhere(CASES[name][0])


@every_plain_entry
def test_l8_work_and_kept_memory_grow_with_the_tokens_as_declared(name: str) -> None:
    laws.grows_as_declared(CASES[name][0])


def test_l8_the_declared_growth_of_every_entry_is_what_its_case_shows() -> None:
    for (axis, name), spec in examples_with_traits().items():
        squared = entry_config((axis, name)).choices.memory_kind.name in ("compressive", "slots")
        assert spec == ("T^2" if squared and axis == "memory_kind" else "T"), (axis, name)


def examples_with_traits() -> dict[tuple[str, str], str]:
    from rltransformers.backbone import catalogue

    return {(axis, spec.name): spec.traits.time for axis, specs in catalogue().items() for spec in specs}


@every_plain_entry
def test_l8_a_step_costs_the_same_after_492_steps_as_after_12(name: str) -> None:
    laws.constant_steps(CASES[name][0])


def kept_memory(residual: str, layers: int) -> int:
    backbone = backbone_of(config_of({"residual": residual, "layers": layers}))
    x = torch.randn(1, 64, backbone.width)
    return cost(lambda: backbone(x)[0])[1]


def test_l8_reversible_layers_keep_nothing_that_grows_with_their_number() -> None:
    kept = [kept_memory(residual, layers) for residual in ("reversible", "pre_ln") for layers in (2, 8)]
    assert kept[1] == kept[0]
    assert kept[3] > 3 * kept[2]


@every_mechanism
def test_l9_states_can_be_saved_picked_moved_and_joined(name: str) -> None:
    laws.portable_states(case_of(name))


@every_plain_entry
def test_l9_a_new_backbone_with_the_same_weights_continues_alike(name: str) -> None:
    laws.same_weights(case_of(name))


@every_mechanism
def test_l10_autocast_stays_in_the_bound_of_bfloat16_in_segments_and_in_acting(name: str) -> None:
    laws.autocast(case_of(name), CASES[name][1].bfloat16)


@every_plain_entry
def test_l10_float32_is_precise_and_bfloat16_stays_in_its_bound(name: str) -> None:
    row = CASES[name][1]
    laws.low_precision(case_of(name), row.float32, row.bfloat16)
