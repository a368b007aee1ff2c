"""Laws L11 and L12 over the whole catalogue: the step of acting has one fixed shape and can be written to a file."""

import re
from collections.abc import Iterator
from pathlib import Path

import pytest
import torch
from torch import Tensor

import rltransformers
from rltransformers.backbone import Backbone, BackboneConfig, State
from rltransformers.backbone.tables import Tables
from rltransformers.core.spec import Feature
from rltransformers.export.step import check_step, pure_program
from tests.attention.rows import ROWS
from tests.attention.stepping import BackboneStep, Tensors
from tests.attention.test_contract import CASES
from tests.backbone.laws import perturbed

BATCH, FEW = 3, 20
LONG = {"position:trxl", "memory_kind:compressive", "mixer:linear", "mixer:nystrom", "selection:routing", "ff:glu"}
every_case = pytest.mark.parametrize("name", CASES)
ENTRIES = {f"{axis}:{name}" for axis, name in ROWS if axis != "losses"}  # a step computes no loss


@pytest.fixture(autouse=True)
def double() -> Iterator[None]:
    torch.set_default_dtype(torch.float64)
    yield
    torch.set_default_dtype(torch.float32)


def step_of(name: str) -> BackboneStep:
    """The step of a case; one layer where all are alike and nothing passes between them, traced in half the time."""
    config = CASES[name][0]
    alike = len(config.choices.kinds) == 1 and config.choices.depth.name == "fixed"
    if alike and Feature.CARRY not in config.choices.prior.spec.offers:
        config = BackboneConfig.from_dict({**config.to_dict(), "layers": 1})
    return BackboneStep(perturbed(config)).eval()


def start_of(backbone: Backbone) -> Tensors:
    return backbone.initial_state(BATCH, cached=True).tensors


def taken(step: BackboneStep, function: object, steps: int) -> tuple[list[Tensor], Tensors]:
    """Outputs of many steps and the last state; every form of a step gets the same tokens and resets."""
    generator, state, found = torch.Generator().manual_seed(1), start_of(step.backbone), []
    with torch.no_grad():
        tables = step.tables()
        for _ in range(steps):
            outputs, state = function({**step.tokens(BATCH, generator), **tables}, state)  # type: ignore[operator]
            found.append(outputs["y"])
    return found, state


def compare(name: str, steps: int, ways: tuple[bool, ...]) -> None:
    """An exported step equals the eager one, and eager mode computes afterwards what it did before.

    It is traced, strictly or not, before eager mode has ever seen these sizes: nothing may be left behind. The first
    way of tracing takes all of the steps, the others a few.
    """
    step, tolerance = step_of(name), CASES[name][1].tolerance
    inputs, state = step.draw(BATCH, torch.Generator().manual_seed(0)), start_of(step.backbone)
    shared = [key for key in inputs if key.startswith("table.")]
    exported = [pure_program(step, inputs, state, shared=shared, strict=strict).module() for strict in ways]
    check_step(step, inputs, state)
    before, after = taken(step, step, steps)
    for program, count in zip(exported, [steps, *[FEW] * len(ways)], strict=False):
        found, last = taken(step, program, count)
        # The same operations in float64; what a state hands on adds up over the steps.
        for mine, theirs in zip(before, found, strict=False):
            torch.testing.assert_close(theirs, mine, rtol=10 * tolerance, atol=10 * tolerance)
        if count == steps:
            for key, value in after.items():
                torch.testing.assert_close(last[key], value, rtol=10 * tolerance, atol=10 * tolerance)
    again, _ = taken(step, step, FEW)
    assert all(map(torch.equal, before, again))


@pytest.mark.parametrize("name", ["position:trxl", "memory_kind:compressive", "sinks among steps"])
def test_l11_an_exported_step_equals_the_eager_one(name: str) -> None:
    compare(name, 60, (True, False))


@pytest.mark.parametrize("folder", ["attention", "functional", "memory", "positions", "blocks", "stacks", "policies"])
def test_l12_no_tensor_is_kept_at_the_level_of_a_module(folder: str) -> None:
    """A cached function may keep a tensor of a trace, and every later call would compute with it."""
    for path in Path(rltransformers.__path__[0], folder).rglob("*.py"):
        assert not re.search(r"\b(lru_cache|functools\.cache|@cache)\b", path.read_text()), path


@pytest.mark.slow
@pytest.mark.parametrize("name", [name for name in CASES if not name.startswith("preset:")])
def test_l11_an_exported_step_equals_the_eager_one_over_a_thousand_steps(name: str) -> None:
    """A thousand steps of three streams together, or of each where ``LONG`` says so.

    Variants and losses, which are made of the entries, take fewer steps and are traced in one way. Presets are, too;
    ``tests/agents/test_export.py`` writes them to files.
    """
    steps = 1000 if name in LONG else -(-1000 // BATCH)
    compare(name, steps, (True, False)) if name in ENTRIES else compare(name, 40, (False,))


@every_case
def test_l12_a_step_in_place_keeps_shapes_and_addresses_and_equals_the_pure_one(name: str) -> None:
    backbone = perturbed(CASES[name][0])
    step, generator = BackboneStep(backbone).eval(), torch.Generator().manual_seed(2)
    pure, own = State(start_of(backbone)), State(start_of(backbone))
    shapes = {key: value.shape for key, value in pure.tensors.items()}
    rings = {key: value.data_ptr() for key, value in own.tensors.items() if key.endswith("_ring")}
    with torch.inference_mode():
        for _ in range(40):
            inputs = step.draw(BATCH, generator)
            y, pure = backbone.step(inputs["x"], pure, inputs["reset"])
            mine, own = backbone.step(inputs["x"], own, inputs["reset"], overwrites=True)
            torch.testing.assert_close(mine, y, rtol=0, atol=0)
            for state in (pure, own):
                assert {key: value.shape for key, value in state.tensors.items()} == shapes
            assert {key: own.tensors[key].data_ptr() for key in rings} == rings


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


@every_case
def test_l12_tables_follow_every_weight_however_it_is_changed(name: str) -> None:
    backbone = perturbed(CASES[name][0])
    tables = Tables(backbone, backbone.table_sources(), backbone.tables)
    step, state = BackboneStep(backbone).eval(), State(start_of(backbone))
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
            found, _ = backbone.step(inputs["x"], state, inputs["reset"], tables=tables.current())
            expected, _ = backbone.step(inputs["x"], state, inputs["reset"])
            torch.testing.assert_close(found, expected, rtol=1e-12, atol=1e-12)
