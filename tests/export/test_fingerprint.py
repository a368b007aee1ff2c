"""Steps that differ have other fingerprints; those that differ in weights only have the same one, in every process."""

import dataclasses
import enum
import functools
import subprocess
import sys
from collections.abc import Callable

import numpy as np
import pytest
import torch
from gymnasium import spaces
from torch import Tensor, nn

from rltransformers.export.fingerprint import digest, is_foreign, of_machine, of_module, of_program, plain
from rltransformers.export.step import in_place_program
from rltransformers.policies.actor_critic import GTrXLPolicy
from tests.export.steps import SHARED, ToyStep, toy, toy_inputs, toy_state


class Kind(enum.Enum):
    A = 1
    B = 2


@dataclasses.dataclass(frozen=True, slots=True)
class Slots:
    rows: int


class Options:
    def __init__(self, rows: int) -> None:
        self.rows, self.self = rows, self


def scaled(factor: float) -> Callable[[float], float]:
    return lambda x: factor * x


def plus_one(x: float, more: float = 1.0) -> float:
    return x + more + 1.0


def plus_two(x: float, more: float = 1.0) -> float:
    return x + more + 2.0


def plus_more(x: float, more: float = 2.0) -> float:
    return x + more + 1.0


for _function in (plus_two, plus_more):  # edits of one function
    _function.__qualname__ = plus_one.__qualname__


def test_weights_have_no_part_in_it() -> None:
    torch.manual_seed(1)
    first = of_module(toy(2))
    torch.manual_seed(2)
    assert of_module(toy(2)) == first


def test_the_optimizer_of_a_module_has_no_part_in_it() -> None:
    module, texts = toy(2), []
    for rate in (0.1, 0.01):
        optimizer = torch.optim.Adam(module.parameters(), lr=rate)
        object.__setattr__(module, "optimizer", optimizer)
        texts.append(of_module(module))
    for parameter in module.parameters():
        parameter.grad = torch.ones_like(parameter)
    optimizer.step()  # from here on it holds moments
    assert len({*texts, of_module(module)}) == 1 and "torch.optim.adam.Adam" in texts[0]


CHANGES: list[Callable[[ToyStep], object]] = [
    lambda module: setattr(module, "rows", 3),
    lambda module: setattr(module.layers[1], "factor", 0.5),
    lambda module: setattr(module, "kind", Kind.A),
    lambda module: setattr(module, "kind", Kind.B),
    lambda module: setattr(module, "options", Options(3)),
    lambda module: setattr(module, "options", Options(4)),
    lambda module: setattr(module, "options", Slots(3)),
    lambda module: setattr(module, "options", Slots(4)),
    lambda module: setattr(module, "function", scaled(2)),
    lambda module: setattr(module, "function", scaled(3)),
    lambda module: setattr(module, "function", plus_one),
    lambda module: setattr(module, "function", plus_two),
    lambda module: setattr(module, "function", plus_more),
    lambda module: setattr(module, "function", torch.relu),
    lambda module: setattr(module, "function", torch.tanh),
    lambda module: setattr(module, "array", np.zeros(3)),
    lambda module: setattr(module, "array", np.ones(3)),
    lambda module: setattr(module, "function", functools.partial(torch.add, alpha=2)),
    lambda module: setattr(module, "function", functools.partial(torch.add, alpha=3)),
    lambda module: setattr(module.norm, "eps", 1e-3),
    lambda module: module.layers[0].train(),
    lambda module: module.double(),
    lambda module: setattr(module.critic, "bias", None),
    lambda module: setattr(module.layers[1].qkv, "weight", module.layers[0].get_parameter("qkv.weight")),
    lambda module: setattr(module.encoder, "weight", nn.Parameter(torch.zeros(6, 64).T)),
    lambda module: setattr(module, "norm", nn.Identity()),
    lambda module: module.register_buffer("more", torch.zeros(2)),
]


def test_whatever_changes_a_step_changes_it() -> None:
    def changed(change: Callable[[ToyStep], object]) -> str:
        module = toy(2)
        change(module)
        return of_module(module)

    texts = [of_module(toy(2)), *map(changed, CHANGES)]
    same = [(one, other) for one in range(len(texts)) for other in range(one) if texts[one] == texts[other]]
    assert not same, "numbers of changes that look alike, 0 is no change"


def test_what_no_step_reads_has_no_part_in_it() -> None:
    space = spaces.Box(-1.0, 1.0, (2,))
    policy = GTrXLPolicy(space, spaces.Discrete(2), lambda _: 1e-3, backbone={"width": 8, "layers": 1, "heads": 1})
    texts = []
    for progress in (0.0, 0.5):
        policy.predict(np.zeros(2), episode_start=np.ones(1, bool))
        policy.progress = progress
        texts.append(of_module(policy))
    assert texts[0] == texts[1]


@pytest.mark.parametrize("change", CHANGES)
def test_it_is_the_same_text_for_the_same_module(change: Callable[[ToyStep], object]) -> None:
    first, second = toy(2), toy(2)
    change(first), change(second)
    assert of_module(first) == of_module(second)


def halved(x: Tensor) -> Tensor:
    return x / 2


class Halving(nn.Module):
    """Calls a function that no attribute holds."""

    def forward(self, x: Tensor) -> Tensor:
        return halved(x) + torch.tensor([1.0, 2.0])


def test_what_a_step_of_others_calls_is_in_its_program(monkeypatch: pytest.MonkeyPatch) -> None:
    def program() -> str:
        return of_program(torch.export.export(Halving(), (torch.ones(2),)))

    assert is_foreign(nn.Sequential(Halving())) and not is_foreign(nn.Sequential(nn.Linear(2, 2)))
    first = program()
    assert first == program()
    monkeypatch.setattr(torch, "tensor", lambda values: torch.as_tensor([1.0, 3.0]))
    assert program() != first
    monkeypatch.undo()
    monkeypatch.setattr(sys.modules[__name__], "halved", lambda x: x / 3)
    assert program() != first


def test_it_is_the_same_in_another_process() -> None:
    code = (
        "import functools, torch\n"
        "from rltransformers.export.fingerprint import digest, of_machine, of_module, of_program\n"
        "from rltransformers.export.step import in_place_program\n"
        "from tests.export.steps import SHARED, toy, toy_inputs, toy_state\n"
        "from tests.export.test_fingerprint import Kind, Options, scaled\n"
        "module = toy(2)\n"
        "module.parts = [Kind.A, Options(3), scaled(2), torch.tanh, {'b', 'a', 'c'}]\n"
        "module.function = functools.partial(torch.add, alpha=2)\n"
        "print(digest(of_module(module), of_machine()))\n"
        "inputs = toy_inputs(3, torch.Generator())\n"
        "print(digest(of_program(in_place_program(toy(1), inputs, toy_state(3), shared=SHARED))))\n"
    )
    module = toy(2)
    vars(module)["parts"] = [Kind.A, Options(3), scaled(2), torch.tanh, {"b", "a", "c"}]
    vars(module)["function"] = functools.partial(torch.add, alpha=2)
    other = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, timeout=120)
    program = in_place_program(toy(1), toy_inputs(3, torch.Generator()), toy_state(3), shared=SHARED)
    ours = [digest(of_module(module), of_machine()), digest(of_program(program))]
    assert other.stdout.split() == ours, other.stderr


def test_texts_cut_elsewhere_have_another_digest() -> None:
    assert digest("ab", "c") != digest("a", "bc") != digest("abc")


def test_it_names_the_processor_and_the_versions() -> None:
    assert torch.__version__ in of_machine() and torch.backends.cpu.get_cpu_capability() in of_machine()


def test_values_that_hold_themselves_end() -> None:
    loop: list[object] = []
    loop.append(loop)
    assert plain(loop) == "(above)"
