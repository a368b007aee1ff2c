"""Laws L11 and L12 over the whole catalogue: the step of acting has one fixed shape and can be written to a file."""

import re
from collections.abc import Iterator
from pathlib import Path

import pytest
import torch
from torch import Tensor

import rltransformers
from rltransformers.backbone import AXES, Backbone, BackboneConfig, State
from rltransformers.backbone.tables import Tables
from rltransformers.export.step import check_step, pure_program
from tests.attention.rows import ROWS
from tests.attention.stepping import BackboneStep, Tensors
from tests.attention.test_contract import CASES, NAMES, every_mechanism, of_one_layer
from tests.backbone.laws import perturbed
from tests.choice import ALL_CASES, STRICT_TRACING
from tests.export.tape import Operations

BATCH, MANY, FEW, SOME = 3, 10, 20, 40  # streams of the trace, streams of a run, steps, steps
LONG = {"position:trxl", "memory_kind:compressive", "mixer:linear"}  # a ring, a second memory behind it, sums
ENTRIES = [f"{axis}:{name}" for axis, name in ROWS if axis != "losses"]  # a step computes no loss
QUICK = ("position:trxl", "memory_kind:compressive", "sinks among steps")
"""Cases of the tests that run before every commit."""


@pytest.fixture(autouse=True)
def double() -> Iterator[None]:
    torch.set_default_dtype(torch.float64)
    yield
    torch.set_default_dtype(torch.float32)


def step_of(name: str) -> BackboneStep:
    """The step of a case."""
    return step_with(CASES[name][0])


def step_with(config: BackboneConfig) -> BackboneStep:
    """The step of a backbone with these settings, of one layer where that says as much."""
    return BackboneStep(perturbed(of_one_layer(config))).eval()


def traced_step(name: str) -> BackboneStep:
    """The step that L11 traces: of entries without a feed-forward part, which reads one token whatever comes before.

    Variants keep it, and entries that are about it, gates or depth.
    """
    config = CASES[name][0]
    axes = {each.split(":")[0] for each in NAMES[name]}
    if name not in ENTRIES or axes & {"residual", "ff", "depth"} or (config.residual, config.ff) != ("pre_ln", "ffn"):
        return step_of(name)
    return step_with(BackboneConfig.from_dict({**config.to_dict(), "ff": "none", "ff_width": None}))


def start_of(backbone: Backbone, streams: int = BATCH) -> Tensors:
    return backbone.initial_state(streams, cached=True).tensors


def strictly_traced() -> set[str]:
    """The cases that are also traced strictly, which takes three times as long: see the law below.

    Those of ``QUICK``, of every axis the first entry that does something, and of every way of keeping a state the
    first entry that has it.
    """
    if ALL_CASES:
        return set(NAMES)
    found, axes, forms = set(QUICK), set(), set()
    for axis, name in ROWS:
        if axis == "losses" or name == AXES[axis].neutral or f"{axis}:{name}" not in NAMES:
            continue
        config = CASES[f"{axis}:{name}"][0]
        with torch.device("meta"):
            form = frozenset(key.split(".", 1)[-1] for key in start_of(Backbone(config)))
        if axis not in axes or form not in forms:
            found.add(f"{axis}:{name}")
        axes.add(axis)
        forms.add(form)
    return found


STRICTLY = strictly_traced()
OF_THEIR_OWN = (
    *("rope with sinks", "rope with slots", "pattern per head", "tree among steps", "mixer per layer"),
    *("convolution padded with zeros", "other activations", "globals among steps", "scores of keys at nodes and sinks"),
    *("sinusoids as wide as a head", "dense synthesizer with products", "hopfield with a learned beta"),
    *("predicted Gaussian of a fixed width among steps and sinks", "gMLP of places", "random features with a gate"),
    *("fast weights that sum products", "landmarks by LU", "a store in one softmax with the window"),
    *("sinks among steps", "exits one decision after the other"),
)
"""Variants that are traced as all entries are: together they have every operation of any variant that no entry has,
with the types and the number of axes of the tensors that it takes. The others would trace what is traced already."""


def rounds(backbone: Backbone) -> int:
    """Steps in which every ring of the state is written over three times, ``SOME`` at least."""
    state = start_of(backbone, 1)
    rings = [value.shape[1] for key, value in state.items() if key.endswith("_ring")]
    return max([SOME, *(3 * slots for slots in rings)])


def taken(step: BackboneStep, function: object, streams: int, steps: int) -> tuple[list[Tensor], Tensors]:
    """Outputs of many steps and the last state; every form of a step gets the same tokens and resets."""
    generator, state, found = torch.Generator().manual_seed(1), start_of(step.backbone, streams), []
    with torch.no_grad():
        tables = step.tables()
        for _ in range(steps):
            outputs, state = function({**step.tokens(streams, generator), **tables}, state)  # type: ignore[operator]
            found.append(outputs["y"])
    return found, state


def test_the_choice_of_strict_traces_has_every_axis_and_no_case_that_is_unknown() -> None:
    axes = {name.split(":")[0] for name in STRICTLY if ":" in name}
    assert axes == {axis for axis, _ in ROWS if axis != "losses"}
    assert set(NAMES) >= STRICTLY


def test_variants_that_are_not_traced_have_no_operation_of_their_own() -> None:
    found = {}
    for name in NAMES:
        if not name.startswith("preset:"):
            step = traced_step(name)
            inputs, state = step.draw(BATCH, torch.Generator().manual_seed(0)), start_of(step.backbone)
            with torch.no_grad(), Operations(lambda tensor: f"{tensor.dtype} {tensor.dim()}") as operations:
                step(inputs, state)
            found[name] = operations.found
    traced = set().union(*(own for name, own in found.items() if name in ENTRIES or name in OF_THEIR_OWN))
    missing = {name: sorted(own - traced) for name, own in found.items() if own - traced}
    assert not missing, f"to be added to OF_THEIR_OWN: {missing}"


@pytest.mark.parametrize(
    "name",
    [
        pytest.param(name, id="=".join(names), marks=() if name in QUICK else pytest.mark.slow)
        for name, names in NAMES.items()
        if name in ENTRIES or name in OF_THEIR_OWN or (ALL_CASES and not name.startswith("preset:"))
    ],
)
def test_l11_an_exported_step_equals_the_eager_one_over_a_thousand_steps(name: str) -> None:
    """The step is traced before eager mode has ever seen its sizes: nothing may be left behind in eager mode.

    Each of the streams takes a thousand where ``LONG`` says so. Other entries take so many that every ring of their
    state goes round three times (``rounds``): the program is one graph, so later steps do what those did. It is for any
    number of streams: it is traced with three and takes ten. Variants, which are made of the entries, take fewer steps.
    Presets are left to ``tests/agents/test_export.py``, which writes them to files.

    What is written to files and compiled is traced by running the step. Strict tracing reads its code as well, and
    refuses Python that it cannot follow; the cases of ``STRICTLY`` show that the step has none.
    """
    step, tolerance = traced_step(name), 10 * CASES[name][1].tolerance  # a state adds up what the steps round
    inputs, state = step.draw(BATCH, torch.Generator().manual_seed(0)), start_of(step.backbone)
    shared = [key for key in inputs if key.startswith("table.")]
    program = pure_program(step, inputs, state, shared=shared).module()
    followed = STRICT_TRACING and name in STRICTLY
    strict = pure_program(step, inputs, state, dynamic=False, strict=True).module() if followed else None
    check_step(step, inputs, state)
    steps = 1000 if name in LONG else rounds(step.backbone) if name in ENTRIES else FEW
    before, after = taken(step, step, MANY, steps)
    found, last = taken(step, program, MANY, steps)
    for mine, theirs in zip(before, found, strict=True):
        torch.testing.assert_close(theirs, mine, rtol=tolerance, atol=tolerance)
    for key, value in after.items():
        torch.testing.assert_close(last[key], value, rtol=tolerance, atol=tolerance)
    again, _ = taken(step, step, MANY, FEW)
    assert all(map(torch.equal, before, again))
    if strict is not None:
        for mine, theirs in zip(taken(step, step, BATCH, FEW)[0], taken(step, strict, BATCH, FEW)[0], strict=True):
            torch.testing.assert_close(theirs, mine, rtol=tolerance, atol=tolerance)


@pytest.mark.parametrize("folder", ["attention", "functional", "memory", "positions", "blocks", "stacks", "policies"])
def test_l12_no_tensor_is_kept_at_the_level_of_a_module(folder: str) -> None:
    """A cached function may keep a tensor of a trace, and every later call would compute with it."""
    for path in Path(rltransformers.__path__[0], folder).rglob("*.py"):
        assert not re.search(r"\b(lru_cache|functools\.cache|@cache)\b", path.read_text()), path


@every_mechanism
def test_l12_a_step_in_place_keeps_shapes_and_addresses_and_equals_the_pure_one(name: str) -> None:
    step, generator = step_of(name), torch.Generator().manual_seed(2)
    backbone = step.backbone
    pure, own = State(start_of(backbone)), State(start_of(backbone))
    shapes = {key: value.shape for key, value in pure.tensors.items()}
    rings = {key: value.data_ptr() for key, value in own.tensors.items() if key.endswith("_ring")}
    with torch.inference_mode():
        for _ in range(max([24, *(2 * pure.tensors[key].shape[1] for key in rings)])):  # every ring goes round twice
            inputs = step.draw(BATCH, generator)
            y, pure = backbone.step(inputs["x"], pure, inputs["reset"])
            mine, own = backbone.step(inputs["x"], own, inputs["reset"], overwrites=True)
            assert torch.equal(mine, y)
            for state in (pure, own):
                assert {key: value.shape for key, value in state.tensors.items()} == shapes
            assert {key: own.tensors[key].data_ptr() for key in rings} == rings


@every_mechanism
def test_l12_a_step_makes_no_tensor_from_numbers(name: str, monkeypatch: pytest.MonkeyPatch) -> None:
    """What a step needs besides its inputs is a buffer; a CUDA graph cannot copy numbers from the host."""
    step = step_of(name)
    inputs, state = step.draw(BATCH, torch.Generator().manual_seed(0)), start_of(step.backbone)

    def refuse(*arguments: object, **keywords: object) -> Tensor:
        raise AssertionError("a step makes a tensor from numbers")

    for place, function in ((torch, "tensor"), (torch, "as_tensor"), (Tensor, "new_tensor")):
        monkeypatch.setattr(place, function, refuse)
    with torch.inference_mode():
        step(inputs, step(inputs, state)[1])


@pytest.mark.parametrize("name", [name for name, (config, _) in CASES.items() if config.tokens_per_step > 1])
def test_a_step_that_gives_the_last_token_alone_leaves_the_same_state(name: str) -> None:
    step = step_of(name)
    inputs, state = step.draw(BATCH, torch.Generator().manual_seed(4)), State(start_of(step.backbone))
    with torch.no_grad():
        y, after = step.backbone.step(inputs["x"], state, inputs["reset"])
        last, same = step.backbone.step(inputs["x"], state, inputs["reset"], wanted=slice(-1, None))
    assert y.shape == inputs["x"].shape
    torch.testing.assert_close(last, y[:, -1:], rtol=1e-12, atol=1e-12)  # products of another height round otherwise
    for key, value in after.tensors.items():
        torch.testing.assert_close(same.tensors[key], value, rtol=1e-12, atol=1e-12)


@every_mechanism
def test_l12_tables_follow_every_weight_however_it_is_changed(name: str) -> None:
    step = step_of(name)
    backbone = step.backbone
    tables = Tables(backbone, backbone.table_sources(), backbone.tables)
    state = State(start_of(backbone))
    generator = torch.Generator().manual_seed(3)
    with torch.no_grad():
        for _ in range(3):
            inputs = step.draw(BATCH, generator)
            _, state = backbone.step(inputs["x"], state, inputs["reset"])
        for index, parameter in enumerate(backbone.parameters()):
            noise = 0.3 * torch.randn(parameter.shape, generator=generator)
            if index % 3 == 0:
                parameter.add_(noise)
            elif index % 3 == 1:
                parameter.data = parameter.data + noise
            else:
                parameter.data.add_(noise)
            found, anew = tables.current(), backbone.tables()
            assert found.keys() == anew.keys()
            assert all(torch.equal(found[key], value) for key, value in anew.items())
        y, _ = backbone.step(inputs["x"], state, inputs["reset"], tables=tables.current())
        expected, _ = backbone.step(inputs["x"], state, inputs["reset"])
        torch.testing.assert_close(y, expected, rtol=1e-12, atol=1e-12)
