"""Rules of a step, and its programs: traced either way they equal eager, and tracing leaves nothing behind."""

from collections.abc import Callable

import pytest
import torch
from torch import Tensor, nn

from rltransformers.core.errors import ConfigError
from rltransformers.export.step import Tensors, batch_of, check_step, in_place_program, pure_program
from tests.export.laws import assert_runs_equal, check_traced, run_of
from tests.export.steps import SHARED, toy, toy_inputs, toy_state


class Sum(nn.Module):
    """The smallest step: a sum that grows by ``x``, and its mean over time."""

    def __init__(self, change: Callable[[nn.Module, Tensors, Tensors, Tensors, Tensors], object] | None = None) -> None:
        super().__init__()
        self.scale = nn.Parameter(torch.ones(3))
        self.change = change

    def forward(self, inputs: Tensors, state: Tensors) -> tuple[Tensors, Tensors]:
        new = {"sum": state["sum"] + self.scale * inputs["x"], "count": state["count"] + 1}
        outputs = {"mean": new["sum"] / new["count"]}
        if self.change is not None:
            self.change(self, inputs, state, outputs, new)
        return outputs, new


def examples() -> tuple[Tensors, Tensors]:
    return {"x": torch.rand(4, 3)}, {"sum": torch.zeros(4, 3), "count": torch.tensor(0)}


def test_the_toy_keeps_the_laws_of_a_step() -> None:
    late = toy_state(3) | {
        "clock": torch.tensor(60),
        "position": torch.tensor([0, 60, 7]),
    }  # before the ring's last row
    check_traced(
        toy(), toy_inputs(3, torch.Generator()), late, shared=SHARED, steps=9, draw=lambda it: toy_inputs(3, it)
    )


@pytest.mark.parametrize(
    ("change", "message"),
    [
        (lambda outputs, state: outputs["mean"][2].add_(3e-5), "step 7, mean"),
        (lambda outputs, state: outputs["mean"][2].fill_(torch.nan), "step 7, mean"),
        (lambda outputs, state: state["sum"][0, 1].sub_(1e-2), "step 7, sum"),
        (lambda outputs, state: state["count"].add_(1), "step 7, count"),
        (lambda outputs, state: outputs.update(mean=outputs["mean"].double()), "mean"),
        (lambda outputs, state: outputs.update(mean=outputs["mean"][:2]), "mean"),
        (lambda outputs, state: outputs.update(other=outputs.pop("mean")), None),
    ],
)
def test_a_run_that_differs_in_one_number_of_one_step_is_found(
    change: Callable[[Tensors, Tensors], object], message: str | None
) -> None:
    inputs, state = examples()
    found, wanted = (run_of(Sum().eval(), lambda _: inputs, state, 9) for _ in range(2))
    assert_runs_equal(found, wanted, tolerance=1e-5)
    found[3][0]["mean"].add_(1e-5)  # within the tolerance
    assert_runs_equal(found, wanted, tolerance=1e-5)
    change(*found[7])
    with pytest.raises(AssertionError, match=message):
        assert_runs_equal(found, wanted, tolerance=1e-5)


def test_a_program_for_one_batch_size_refuses_others() -> None:
    program = pure_program(Sum().eval(), *examples(), dynamic=False).module()
    with pytest.raises((RuntimeError, AssertionError), match="x"):
        program({"x": torch.rand(5, 3)}, {"sum": torch.zeros(5, 3), "count": torch.tensor(0)})


def test_a_program_takes_its_tensors_by_name_in_any_order() -> None:
    inputs, state = examples()
    program = pure_program(Sum().eval(), inputs, state).module()
    for names in (["sum", "count"], ["count", "sum"]):
        outputs, new_state = program(inputs, {name: state[name] for name in names})
        torch.testing.assert_close(outputs["mean"], inputs["x"])
        assert new_state["count"] == 1


def test_the_program_in_place_writes_to_the_state_it_is_given() -> None:
    inputs, state = examples()
    program = in_place_program(Sum().eval(), inputs, state).module()
    (mean,) = program(inputs["x"], state["count"], state["sum"])
    torch.testing.assert_close(mean, inputs["x"])
    torch.testing.assert_close(state["sum"], inputs["x"])
    assert state["count"] == 1


def plain_tensor(module: nn.Module, *_: Tensors) -> None:
    module.table = torch.zeros(3)


@pytest.mark.parametrize(
    ("change", "message"),
    [
        (lambda m, i, s, o, n: s["sum"].add_(1), "wrote to sum"),
        (lambda m, i, s, o, n: i["x"].mul_(2), "wrote to x"),
        (lambda m, i, s, o, n: m.scale.data.mul_(2), "wrote to scale"),
        (lambda m, i, s, o, n: n.pop("count"), "in one of them only: count"),
        (lambda m, i, s, o, n: n.update(extra=n["sum"]), "in one of them only: extra"),
        (lambda m, i, s, o, n: n.update(sum=n["sum"].double()), r"sum went from float32\[4, 3\] to float64\[4, 3\]"),
        (lambda m, i, s, o, n: n.update(sum=n["sum"][:, :2]), r"sum went from float32\[4, 3\] to float32\[4, 2\]"),
        (lambda m, i, s, o, n: o.update(mean=0.5), "got float for mean"),
    ],
)
def test_a_step_that_breaks_a_rule_is_refused_by_name(
    change: Callable[[nn.Module, Tensors, Tensors, Tensors, Tensors], object], message: str
) -> None:
    with pytest.raises(ConfigError, match=message):
        check_step(Sum(change).eval(), *examples())


def test_a_step_in_training_mode_is_refused() -> None:
    with pytest.raises(ConfigError, match="evaluation mode"):
        check_step(Sum(), *examples())


def test_one_part_in_training_mode_is_refused_by_name() -> None:
    module = nn.Sequential(Sum(), nn.Dropout()).eval()
    module[1].train()
    with pytest.raises(ConfigError, match="1 is in training mode"):
        check_step(module, *examples())


@pytest.mark.parametrize(
    "hidden",
    [torch.zeros(3), [torch.zeros(3)], {"deep": torch.zeros(3)}, [nn.Linear(2, 2)]],
    ids=["tensor", "list", "mapping", "module"],
)
def test_tensors_that_are_neither_parameters_nor_buffers_are_refused(hidden: object) -> None:
    module = Sum().eval()
    module.hidden = hidden if not isinstance(hidden, Tensor) else None  # type: ignore[assignment]
    vars(module)["hidden"] = hidden
    with pytest.raises(ConfigError, match=r"hidden.*neither a parameter nor a buffer.*register"):
        check_step(module, *examples())


def test_a_list_of_modules_that_are_registered_elsewhere_hides_nothing() -> None:
    module = Sum().eval()
    module.part = nn.Linear(2, 2).eval()
    vars(module)["parts"] = [module.part]
    check_step(module, *examples())


@pytest.mark.parametrize("name", ["", "state.x", "next.x"])
def test_names_that_files_use_for_states_are_refused(name: str) -> None:
    inputs, state = examples()
    with pytest.raises(ConfigError, match="cannot be called"):
        check_step(Sum().eval(), inputs | {name: torch.zeros(4)}, state)


def test_a_name_of_both_an_input_and_a_state_is_refused() -> None:
    inputs, state = examples()
    with pytest.raises(ConfigError, match="share the names sum"):
        check_step(Sum().eval(), inputs | {"sum": torch.zeros(4)}, state)


def test_the_batch_is_the_first_axis_of_all_but_numbers_and_shared_tensors() -> None:
    inputs, state = examples()
    assert batch_of(inputs, state) == 4
    assert batch_of(inputs | {"table": torch.zeros(7, 2)}, state, ["table"]) == 4
    with pytest.raises(ConfigError, match=r"sum 4, table 7, x 4; name tensors without one in shared"):
        batch_of(inputs | {"table": torch.zeros(7, 2)}, state)
    with pytest.raises(ConfigError, match=r"does not take: tabel"):
        batch_of(inputs, state, ["tabel"])
    with pytest.raises(ConfigError, match="no tensor of the step has a batch"):
        batch_of({}, {"count": torch.tensor(0)})


def test_a_step_that_looks_at_numbers_is_refused_with_the_reason() -> None:
    def look(module: nn.Module, inputs: Tensors, *_: Tensors) -> None:
        if inputs["x"].sum() > 0:
            inputs["x"].mean()

    with pytest.raises(ConfigError, match="cannot be written as one graph"):
        pure_program(Sum(look).eval(), *examples())


def test_a_step_that_looks_at_the_size_of_the_batch_is_refused_unless_it_is_fixed() -> None:
    def look(module: nn.Module, inputs: Tensors, state: Tensors, outputs: Tensors, new: Tensors) -> None:
        outputs["mean"] = outputs["mean"] + inputs["x"].new_ones(4, 3)

    with pytest.raises(ConfigError, match="cannot be written as one graph"):
        pure_program(Sum(look).eval(), *examples())
    pure_program(Sum(look).eval(), *examples(), dynamic=False)


def test_a_step_that_takes_the_number_of_streams_with_len_is_told_how_to_write_it() -> None:
    def look(module: nn.Module, inputs: Tensors, state: Tensors, outputs: Tensors, new: Tensors) -> None:
        outputs["mean"] = outputs["mean"] + inputs["x"].new_ones(1, 3).expand(len(inputs["x"]), 3)

    with pytest.raises(ConfigError, match=r"write p.shape\[0\] in place of len\(p\)"):
        pure_program(Sum(look).eval(), *examples())
