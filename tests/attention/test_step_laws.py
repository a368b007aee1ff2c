"""Laws L11 and L12 over the whole catalogue: the step of acting has one fixed shape and can be written to a file."""

import re
from collections.abc import Iterator
from contextlib import ExitStack
from pathlib import Path
from unittest.mock import patch

import pytest
import torch
from torch import Tensor
from torch._subclasses.fake_tensor import FakeTensorMode

import rltransformers
from rltransformers import laws
from rltransformers.backbone import AXES, BackboneConfig, State
from rltransformers.laws.steps import BATCH, FEW, BackboneStep
from tests.attention.rows import ROWS
from tests.attention.test_contract import ALIKE, CASES, NAMES, every_mechanism
from tests.choice import ALL_CASES, STRICT_TRACING
from tests.export.tape import Operations

LONG = {"position:trxl", "memory_kind:compressive", "mixer:linear"}  # a ring, a second memory behind it, sums
ENTRIES = [f"{axis}:{name}" for axis, name in ROWS if axis != "losses"]  # a step computes no loss
STREAMS = 17  # no other size of these backbones
QUICK = ("position:trxl", "memory_kind:compressive", "sinks among steps")
"""Cases of the tests that run before every commit."""


@pytest.fixture(autouse=True)
def double() -> Iterator[None]:
    with laws.in_double():
        yield


def step_of(name: str) -> BackboneStep:
    """The step of a case."""
    return laws.step_of(CASES[name][0])


def traced_step(name: str) -> BackboneStep:
    """The step that L11 traces: of entries without a feed-forward part, which reads one token whatever comes before.

    Variants keep it, and entries that are about it, gates or depth.
    """
    config = CASES[name][0]
    axes = {each.split(":")[0] for each in NAMES[name]}
    if name not in ENTRIES or axes & {"residual", "ff", "depth"} or (config.residual, config.ff) != ("pre_ln", "ffn"):
        return step_of(name)
    return laws.step_of(BackboneConfig.from_dict({**config.to_dict(), "ff": "none", "ff_width": None}))


def first_of_axes() -> set[str]:
    """Of every axis the first entry that does something."""
    first: dict[str, str] = {}
    for axis, name in ROWS:
        if axis != "losses" and name != AXES[axis].neutral and f"{axis}:{name}" in NAMES:
            first.setdefault(axis, f"{axis}:{name}")
    return {*first.values()}


FIRST = first_of_axes()
STRICTLY = set(NAMES) if ALL_CASES else {*QUICK, "mixer:linear", "depth:universal"}
"""The cases that are also traced strictly, which takes three times as long: a ring, two memories, sums, a loop."""
OF_THEIR_OWN = (
    *("mixer:min_lstm", "mixer:rg_lru", "mixer:ffm", "mixer:slstm", "mixer:retention", "mixer:fast_weight"),
    *("mixer:gcn", "mixer:gmlp", "mixer:informer", "mixer:clustered", "mixer:additive", "mixer:nystrom", "mixer:rfa"),
    *("mixer:light_conv", "selection:lsh", "selection:sac", "selection:sinkhorn", "pattern:bp"),
    *("depth:universal_act", "depth:calm", "residual:gru", "head_mixing:capsule_em", "prior:gaussian_predicted"),
    *("memory_kind:memorizing", "memory_kind:slots"),
    *("position:learned", "position:sinusoidal_learned_base", "position:global_labels"),
    *("landmarks by LU", "globals among steps", "Gated DeltaNet with three corrections"),
)
"""What is traced besides ``FIRST``: together they have every operation of any entry and variant, with the types of the
tensors that it takes. The others would trace what is traced already; they take a step with tensors that have no
numbers, which refuses a step that decides by a number or makes the number of streams a part of its graph."""
TRACED = {*FIRST, *QUICK, *LONG, *OF_THEIR_OWN}


VARIANTS = {name for name in OF_THEIR_OWN if ":" not in name}
"""Variants of entries, traced for their operations: the work of PyTorch's exporter, left to `make test-third-party`."""


def marks_of(name: str) -> tuple[pytest.MarkDecorator, ...]:
    """How a trace is chosen by ``make check``, ``make test`` and ``make test-third-party``."""
    if name in VARIANTS:
        return (pytest.mark.slow, pytest.mark.third_party)
    return () if name in QUICK else (pytest.mark.slow,)


def test_the_choice_of_traces_has_every_axis_and_no_case_that_is_unknown() -> None:
    assert {name.split(":")[0] for name in FIRST} == {axis for axis, _ in ROWS if axis != "losses"}
    assert set(NAMES) >= TRACED | STRICTLY


def test_what_is_not_traced_has_no_operation_of_its_own() -> None:
    found = {}
    for name in NAMES:
        if not name.startswith("preset:"):
            step = traced_step(name)
            inputs, state = step.draw(BATCH, torch.Generator().manual_seed(0)), step.start()
            with torch.no_grad(), Operations(lambda tensor: str(tensor.dtype)) as operations:
                step(inputs, state)
            found[name] = operations.found
    traced = set().union(*(own for name, own in found.items() if name in TRACED))
    missing = {name: sorted(own - traced) for name, own in found.items() if own - traced}
    assert not missing, f"to be added to OF_THEIR_OWN: {missing}"


@pytest.mark.parametrize(
    "name",
    [
        pytest.param(name, id="=".join(names), marks=marks_of(name))
        for name, names in NAMES.items()
        if name in TRACED or (ALL_CASES and not name.startswith("preset:"))
    ],
)
def test_l11_an_exported_step_equals_the_eager_one_over_a_thousand_steps(name: str) -> None:
    """Each of the streams takes a thousand steps where ``LONG`` says so. Other entries take so many that every ring of
    their state goes round three times: the program is one graph, so later steps do what those did. Variants, which are
    made of the entries, take fewer steps. Presets are left to ``tests/agents/test_export.py``, which writes them to
    files. The cases of ``STRICTLY`` show that no step has Python that strict tracing cannot follow.
    """
    steps = 1000 if name in LONG else None if name in ENTRIES else FEW
    strict = STRICT_TRACING and name in STRICTLY
    laws.exported_equals_eager(traced_step(name), steps, 10 * CASES[name][1].tolerance, strict)


@pytest.mark.parametrize(
    "name",
    [name for name in NAMES if name not in (TRACED - VARIANTS) | {*ALIKE} and not name.startswith("preset:")],
)
def test_l11_a_step_decides_nothing_by_a_number(name: str) -> None:
    """Nor does its graph hold the number of streams, which ``len(x)`` makes a number where ``x.shape[0]`` does not."""
    step = traced_step(name)
    inputs, state = step.draw(STREAMS, torch.Generator().manual_seed(0)), step.start(STREAMS)

    def rows(tensor: Tensor) -> int:
        assert tensor.shape[0] != STREAMS, "the number of streams becomes a fixed number of a graph: say x.shape[0]"
        return tensor.shape[0]

    with ExitStack() as stack:
        mode = stack.enter_context(FakeTensorMode(allow_non_fake_inputs=True))
        stack.enter_context(torch.no_grad())
        stack.enter_context(patch.object(torch.compiler, "_is_compiling_flag", True))
        stack.enter_context(patch.object(Tensor, "__len__", rows))
        outputs, after = step(
            {key: mode.from_tensor(value) for key, value in inputs.items()},
            {key: mode.from_tensor(value) for key, value in state.items()},
        )
    assert outputs["y"].shape == inputs["x"].shape
    assert {key: value.shape for key, value in after.items()} == {key: value.shape for key, value in state.items()}


@pytest.mark.parametrize("folder", ["attention", "functional", "memory", "positions", "blocks", "stacks", "policies"])
def test_l12_no_tensor_is_kept_at_the_level_of_a_module(folder: str) -> None:
    """A cached function may keep a tensor of a trace, and every later call would compute with it."""
    for path in Path(rltransformers.__path__[0], folder).rglob("*.py"):
        assert not re.search(r"\b(lru_cache|functools\.cache|@cache)\b", path.read_text()), path


@every_mechanism
def test_l12_a_step_in_place_keeps_shapes_and_addresses_and_equals_the_pure_one(name: str) -> None:
    laws.fixed_addresses(step_of(name))


@every_mechanism
def test_l12_a_step_makes_no_tensor_from_numbers(name: str) -> None:
    laws.no_tensors_from_numbers(step_of(name))


@pytest.mark.parametrize("name", [name for name, (config, _) in CASES.items() if config.tokens_per_step > 1])
def test_a_step_that_gives_the_last_token_alone_leaves_the_same_state(name: str) -> None:
    step = step_of(name)
    inputs, state = step.draw(BATCH, torch.Generator().manual_seed(4)), State(step.start())
    with torch.no_grad():
        y, after = step.backbone.step(inputs["x"], state, inputs["reset"])
        last, same = step.backbone.step(inputs["x"], state, inputs["reset"], wanted=slice(-1, None))
    assert y.shape == inputs["x"].shape
    torch.testing.assert_close(last, y[:, -1:], rtol=1e-12, atol=1e-12)  # products of another height round otherwise
    for key, value in after.tensors.items():
        torch.testing.assert_close(same.tensors[key], value, rtol=1e-12, atol=1e-12)


@every_mechanism
def test_l12_tables_follow_every_weight_however_it_is_changed(name: str) -> None:
    laws.fresh_tables(step_of(name))
