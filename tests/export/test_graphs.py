"""A step as a graph is the step: live weights, states written in place, a new graph where addresses or sizes change."""

import gc
import weakref
from collections.abc import Callable

import pytest
import torch
from torch import nn

from rltransformers.core.errors import CompileError
from rltransformers.export.graphs import GraphStep
from rltransformers.export.step import Tensors
from tests.export.laws import Run, assert_runs_equal, cloned
from tests.export.tape import Captures

WIDTH, ROWS = 5, 4


class RingStep(nn.Module):
    """Writes its ring in place; two small tensors of the state change places, so neither may be written too soon."""

    def __init__(self) -> None:
        super().__init__()
        self.linear = nn.Linear(WIDTH, WIDTH)

    def forward(self, inputs: Tensors, state: Tensors) -> tuple[Tensors, Tensors]:
        slot = (state["clock"] % ROWS).long()
        ring = state["ring"].index_copy_(1, slot, self.linear(inputs["x"])[:, None])
        read = (ring * inputs["table"][:, None]).mean(1) + state["one"] - 2 * state["other"]
        after = {"clock": state["clock"] + 1, "ring": ring, "one": state["other"], "other": state["one"]}
        return {"y": read, "ring_sum": ring.sum((1, 2))}, after


def ring_state(batch: int, seed: int = 0) -> Tensors:
    draw = torch.Generator().manual_seed(seed)
    floats = {"ring": (batch, ROWS, WIDTH), "one": (batch, WIDTH), "other": (batch, WIDTH)}
    return {"clock": torch.tensor(0)} | {name: torch.randn(size, generator=draw) for name, size in floats.items()}


def draws(batch: int, count: int) -> list[Tensors]:
    draw, table = torch.Generator().manual_seed(1), torch.linspace(0.1, 1.0, ROWS)
    return [{"x": torch.randn(batch, WIDTH, generator=draw), "table": table} for _ in range(count)]


@torch.no_grad()
def eager(module: nn.Module, inputs: list[Tensors], state: Tensors) -> Run:
    run = []
    for each in inputs:
        outputs, state = module(each, cloned(state))
        run.append((outputs, state))
    return run


def graph_run(step: GraphStep, inputs: list[Tensors], state: Tensors) -> Run:
    return [(step.step(each, state), cloned(state)) for each in inputs]


def test_a_graph_gives_what_the_step_gives_and_is_captured_once() -> None:
    module, captures = RingStep(), Captures()
    step, inputs, state = GraphStep(module, ["table"], captures), draws(3, 11), ring_state(3)
    expected = eager(module, inputs, state)
    addresses = {name: tensor.data_ptr() for name, tensor in state.items()}
    assert_runs_equal(graph_run(step, inputs, state), expected, tolerance=1e-6)
    assert captures.count == 1
    assert addresses == {name: tensor.data_ptr() for name, tensor in state.items()}


def test_weights_changed_in_place_take_effect_in_the_next_step_without_another_capture() -> None:
    module, captures = RingStep(), Captures()
    step, inputs, state = GraphStep(module, ["table"], captures), draws(2, 6), ring_state(2)
    graph_run(step, inputs[:3], state)
    with torch.no_grad():
        module.linear.weight.mul_(-3)
        inputs[0]["table"].add_(1)
    expected = eager(module, inputs[3:], state)
    assert_runs_equal(graph_run(step, inputs[3:], state), expected, tolerance=1e-6)
    assert captures.count == 1


def replace_weight(module: RingStep, inputs: list[Tensors], state: Tensors) -> None:
    module.linear.weight.data = -module.linear.weight.data


def replace_parameter(module: RingStep, inputs: list[Tensors], state: Tensors) -> None:
    module.linear.bias = nn.Parameter(torch.ones(WIDTH))


def move_ring(module: RingStep, inputs: list[Tensors], state: Tensors) -> None:
    state["ring"] = 2 * state["ring"]


def move_table(module: RingStep, inputs: list[Tensors], state: Tensors) -> None:
    table = torch.arange(float(ROWS))
    for each in inputs:
        each["table"] = table


def another_batch(module: RingStep, inputs: list[Tensors], state: Tensors) -> None:
    state |= ring_state(7)
    inputs[:] = draws(7, len(inputs))


def another_type(module: RingStep, inputs: list[Tensors], state: Tensors) -> None:
    state["clock"] = state["clock"].int()


def without_bias(module: RingStep, inputs: list[Tensors], state: Tensors) -> None:
    module.linear.bias = None  # type: ignore[assignment]  # what a linear map without one has


@pytest.mark.parametrize(
    "change", [replace_weight, replace_parameter, move_ring, move_table, another_batch, another_type, without_bias]
)
def test_what_a_graph_cannot_follow_makes_another_graph(
    change: Callable[[RingStep, list[Tensors], Tensors], None],
) -> None:
    module, captures = RingStep(), Captures()
    step, inputs, state = GraphStep(module, ["table"], captures), draws(2, 6), ring_state(2)
    graph_run(step, inputs[:3], state)
    del inputs[:3]
    change(module, inputs, state)
    expected = eager(module, inputs, state)
    assert_runs_equal(graph_run(step, inputs, state), expected, tolerance=1e-6)
    assert captures.count == 2


def test_two_states_in_turn_stay_apart() -> None:
    module = RingStep()
    step, inputs = GraphStep(module, ["table"], Captures()), draws(2, 8)
    states = [ring_state(2), ring_state(2, seed=5)]
    expected = [eager(module, inputs[index::2], state) for index, state in enumerate(states)]
    found: list[Run] = [[], []]
    for time, each in enumerate(inputs):
        found[time % 2] += graph_run(step, [each], states[time % 2])
    for run, wanted in zip(found, expected, strict=True):
        assert_runs_equal(run, wanted, tolerance=1e-6)


def test_outputs_stay_as_they_were_returned() -> None:
    step, inputs, state = GraphStep(RingStep(), ["table"], Captures()), draws(2, 2), ring_state(2)
    first = step.step(inputs[0], state)
    copy = cloned(first)
    step.step(inputs[1], state)
    assert all(torch.equal(first[name], copy[name]) for name in first)


class Looks(RingStep):
    def forward(self, inputs: Tensors, state: Tensors) -> tuple[Tensors, Tensors]:
        outputs, after = super().forward(inputs, state)
        return outputs | {"y": outputs["y"] * float(after["clock"])}, after


def test_a_step_that_looks_at_data_is_refused_and_leaves_the_state_as_it_was() -> None:
    step, inputs, state = GraphStep(Looks(), ["table"], Captures()), draws(2, 1), ring_state(2)
    before = cloned(state)
    with pytest.raises(CompileError, match=r"cannot be captured as a CUDA graph: .*capturing; eager mode works"):
        step.step(inputs[0], state)
    assert all(torch.equal(state[name], before[name]) for name in state)


@pytest.mark.skipif(torch.cuda.is_available(), reason="what happens without a GPU")
def test_without_a_gpu_the_reason_is_given() -> None:
    with pytest.raises(CompileError, match="cannot be captured as a CUDA graph"):
        GraphStep(RingStep(), ["table"]).step(draws(2, 1)[0], ring_state(2))


def test_a_state_that_its_owner_drops_is_not_kept_alive() -> None:
    def executed(work: Callable[[], None]) -> Callable[[], None]:
        work()
        return lambda: None

    step, inputs, state = GraphStep(RingStep(), ["table"], executed), draws(2, 1), ring_state(2)
    step.step(inputs[0], state)
    ring = weakref.ref(state["ring"])
    del state
    gc.unfreeze()  # conftest hides what has survived a collection
    gc.collect()
    assert ring() is None


class Doubles(nn.Module):
    def forward(self, inputs: Tensors, state: Tensors) -> tuple[Tensors, Tensors]:
        return {"y": 2 * inputs["x"]}, state


def test_inputs_of_another_size_make_another_graph() -> None:
    step = GraphStep(Doubles(), capture=Captures())
    for rows in (3, 1, 2):
        assert torch.equal(step.step({"x": torch.ones(rows)}, {})["y"], torch.full((rows,), 2.0))
