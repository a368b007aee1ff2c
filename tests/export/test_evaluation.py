"""An evaluation as machine code: outputs, gradients and written buffers are those of the function."""

from typing import Any

import pytest
import torch
from functorch.compile import nop
from torch import Tensor, nn

from rltransformers.export.evaluation import CompiledEvaluation


class Tied(nn.Module):
    """A part under two names, a buffer that is written, and dropout."""

    def __init__(self) -> None:
        super().__init__()
        self.first = nn.Linear(3, 3)
        self.second = self.first
        self.drop = nn.Dropout(0.5)
        self.calls: Tensor
        self.register_buffer("calls", torch.zeros(()))

    def evaluate(self, inputs: dict[str, Any]) -> dict[str, Any]:
        self.calls.add_(1.0)
        y = self.drop(self.second(self.first(inputs["x"]).tanh()))
        return {"y": y if inputs["scale"] is None else inputs["scale"] * y, "parts": {"sum": y.sum()}, "none": None}


def passes(module: Tied, evaluation: Any, inputs: dict[str, Any]) -> list[Tensor]:
    """Outputs, gradients and the buffer, with dropout as drawn from seed 0."""
    torch.manual_seed(0)
    module.zero_grad()
    module.calls.zero_()
    found = evaluation(inputs)
    assert found["none"] is None
    (found["y"].square().sum() + found["parts"]["sum"]).backward()
    gradients = [weight.grad for weight in module.parameters()]
    assert all(gradient is not None for gradient in gradients)
    return [found["y"], found["parts"]["sum"], module.calls.clone(), *gradients]


def test_it_is_the_function_of_inputs_weights_and_mode() -> None:
    lines: list[str] = []
    module = Tied().double()
    compiled = CompiledEvaluation(module, module.evaluate, lines.append)

    def check(inputs: dict[str, Any]) -> None:
        for expected, got in zip(
            passes(module, module.evaluate, inputs), passes(module, compiled, inputs), strict=True
        ):
            torch.testing.assert_close(got, expected, rtol=0, atol=1e-12)

    x = torch.randn(4, 3, dtype=torch.float64)
    check({"x": x, "scale": None})
    check({"x": x + 1.0, "scale": None})
    assert [line.split(" ", 3)[:3] for line in lines] == [["compiling", "the", "update"], ["compiled", "the", "update"]]
    module.first.weight.data.mul_(2.0)  # in place, and as a whole
    module.first.bias = nn.Parameter(torch.ones(3, dtype=torch.float64))
    check({"x": x, "scale": None})
    assert len(lines) == 2
    check({"x": x[:2], "scale": torch.tensor(3.0, dtype=torch.float64)})
    check({"x": x, "scale": None})
    module.eval()
    check({"x": x, "scale": None})
    assert len(lines) == 6 and not compiled.failed


def test_under_autocast_it_has_programs_of_its_own(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("torch._inductor.compile_fx.compile_fx_inner", nop)
    module = nn.Linear(3, 3)
    compiled, x = CompiledEvaluation(module, module, lambda _: None), torch.ones(4, 3)
    for enabled in (True, False, True):
        with torch.autocast("cpu", torch.bfloat16, enabled=enabled):
            expected, got = module(x), compiled(x)
        assert expected.dtype == (torch.bfloat16 if enabled else torch.float32)
        assert torch.equal(got, expected) and got.dtype == expected.dtype


def refused(function: Any) -> tuple[str, bool]:
    lines: list[str] = []
    module = Tied()
    compiled = CompiledEvaluation(module, function(module), lines.append)
    inputs = {"x": torch.ones(4, 3), "scale": None}
    for _ in range(2):
        found = compiled(inputs)
        assert found["y"].requires_grad
    assert all(isinstance(weight, nn.Parameter) for weight in module.parameters())
    assert sum("eager" in line for line in lines) == 1
    return lines[-1], compiled.failed


def test_weights_that_begin_to_learn_have_a_program_of_their_own(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("torch._inductor.compile_fx.compile_fx_inner", nop)
    module = nn.Linear(2, 2)
    compiled = CompiledEvaluation(module, lambda inputs: module(inputs["x"]), lambda line: None)
    inputs = {"x": torch.ones(3, 2)}
    module.bias.requires_grad_(False)
    compiled(inputs).sum().backward()
    assert module.weight.grad is not None and module.bias.grad is None
    module.bias.requires_grad_(True)
    compiled(inputs).sum().backward()
    assert module.bias.grad is not None and not compiled.failed


def test_a_function_that_reads_numbers_of_tensors_goes_on_in_eager_mode() -> None:
    def reads(module: Tied) -> Any:
        def evaluate(inputs: dict[str, Any]) -> dict[str, Any]:
            return {"y": module.first(inputs["x"]) * float(inputs["x"].sum())}

        return evaluate

    message, failed = refused(reads)
    assert failed and message.startswith("updates go on in eager mode: the update could not be compiled: ")


def test_without_a_compiler_it_goes_on_in_eager_mode(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("CXX", "no-such-compiler")
    message, failed = refused(lambda module: module.evaluate)
    assert failed and "no C++ compiler: no-such-compiler" in message
