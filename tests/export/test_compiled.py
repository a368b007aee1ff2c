"""A compiled step is the step: same numbers, live weights, states written in place, nothing printed, refusals first."""

import gc
import os
import subprocess
import sys
from collections.abc import Callable, Iterator
from pathlib import Path

import pytest
import torch
from torch import nn

from rltransformers.core.errors import ConfigError, MissingCompilerError
from rltransformers.export.cache import VARIABLE
from rltransformers.export.compiled import CompiledStep
from rltransformers.export.step import Tensors
from tests.export.laws import ROUNDING, assert_runs_equal, check_compiled, cloned, run_of
from tests.export.steps import SHARED, ToyStep, toy, toy_inputs, toy_state

slow = [pytest.mark.slow, pytest.mark.xdist_group("compiled step")]


@pytest.fixture(scope="module")
def cache(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Path]:
    """The folder of this module's only package, which the first test that needs it makes."""
    with pytest.MonkeyPatch.context() as patch:
        folder = tmp_path_factory.mktemp("cache")
        patch.setenv(VARIABLE, str(folder))
        yield folder


@pytest.fixture
def module(cache: Path) -> ToyStep:
    return toy()


@pytest.fixture
def compiled(module: ToyStep) -> CompiledStep:
    return CompiledStep(module, toy_inputs(3, torch.Generator()), toy_state(3), shared=SHARED)


def differences(module: nn.Module, compiled: CompiledStep, seed: int = 0) -> float:
    """The largest difference between outputs of eager and compiled, two steps from a random state."""
    generator = torch.Generator().manual_seed(seed)
    state = toy_state(5)
    for name, ring in state.items():
        if ring.is_floating_point():
            state[name] = torch.randn(ring.shape, generator=generator)
    state["position"], state["clock"] = torch.tensor([0, 7, 40, 64, 300]), torch.tensor(300)
    worst = 0.0
    for _ in range(2):
        inputs = toy_inputs(5, generator)
        with torch.no_grad():
            expected, new_state = module(inputs, state)
        outputs = compiled.step(inputs, state)  # writes the new state
        for found, wanted in [(outputs, expected), (state, new_state)]:
            worst = max(
                [worst, *((found[name].double() - wanted[name].double()).abs().max().item() for name in wanted)]
            )
    return worst


class TestWeights:
    pytestmark = slow

    def test_every_parameter_and_buffer_takes_part_with_its_present_numbers(
        self, module: ToyStep, compiled: CompiledStep
    ) -> None:
        before = cloned(module.state_dict())
        inputs, fixed = toy_inputs(5, torch.Generator().manual_seed(1)), toy_state(5)
        fixed["position"], fixed["clock"] = torch.full((5,), 80), torch.tensor(80)
        for name, ring in fixed.items():
            if ring.is_floating_point():
                fixed[name] = torch.randn(ring.shape)
        plain_value = compiled.step(inputs, cloned(fixed))
        for name, parameter in [*module.named_parameters(), *module.named_buffers()]:
            old = parameter.detach().clone()
            with torch.no_grad():
                parameter.copy_(parameter.roll(1) if name == "slots" else parameter + 0.5 * torch.randn(old.shape))
            found = compiled.step(inputs, cloned(fixed))
            assert any(not torch.equal(found[each], plain_value[each]) for each in found), name
            assert differences(module, compiled) < 1e-4, (
                name
            )  # unlike ROUNDING, after weights of several times the size
            with torch.no_grad():
                parameter.copy_(old)
        torch.testing.assert_close(dict(module.state_dict()), before, rtol=0, atol=0)

    @pytest.mark.parametrize(
        "optimizer",
        [
            lambda parameters: torch.optim.Adam(parameters, lr=0.1),
            lambda parameters: torch.optim.Adam(parameters, lr=0.1, fused=True),
            lambda parameters: torch.optim.Adam(parameters, lr=0.1, foreach=True),
            lambda parameters: torch.optim.SGD(parameters, lr=1.0),
        ],
        ids=["adam", "fused", "foreach", "sgd"],
    )
    def test_a_step_after_an_optimizer_step_has_the_new_weights(
        self, module: ToyStep, compiled: CompiledStep, optimizer: Callable[..., torch.optim.Optimizer]
    ) -> None:
        old = toy_run(compiled)
        chosen = optimizer(module.parameters())
        outputs, _ = module(toy_inputs(7, torch.Generator()), toy_state(7))
        (outputs["value"].square().mean() - outputs["log_probability"].mean()).backward()
        chosen.step()
        assert not torch.equal(toy_run(compiled), old)
        assert differences(module, compiled) < ROUNDING

    @pytest.mark.parametrize("assign", [False, True])
    def test_a_step_after_loading_a_state_dict_has_the_new_weights(
        self, module: ToyStep, compiled: CompiledStep, assign: bool
    ) -> None:
        old = toy_run(compiled)
        torch.manual_seed(9)
        module.load_state_dict(toy().state_dict(), assign=assign)
        assert not torch.equal(toy_run(compiled), old)
        assert differences(module, compiled) < ROUNDING

    @pytest.mark.parametrize(
        "change",
        [
            lambda parameter: parameter.data.copy_(parameter.data + 0.3),
            lambda parameter: setattr(parameter, "data", parameter.data + 0.3),
            lambda parameter: parameter.detach().add_(0.3),
            lambda parameter: parameter.data.numpy().__iadd__(0.3),
        ],
        ids=["copied", "replaced", "added", "numpy"],
    )
    def test_a_step_after_any_write_has_the_new_weights(
        self, module: ToyStep, compiled: CompiledStep, change: Callable[[nn.Parameter], object]
    ) -> None:
        old = toy_run(compiled)
        change(module.critic.bias)
        assert not torch.equal(toy_run(compiled), old)
        assert differences(module, compiled) < ROUNDING

    def test_a_module_whose_weights_change_type_is_refused(self, module: ToyStep, compiled: CompiledStep) -> None:
        module.double()
        with pytest.raises(ConfigError, match=r"changed its type.*compile it again"):
            toy_run(compiled)

    def test_weights_are_freed_with_the_module_and_when_they_are_replaced(self, module: ToyStep, cache: Path) -> None:
        alone = [uses(weight.untyped_storage()) for weight in module.parameters()]
        compiled = CompiledStep(module, toy_inputs(3, torch.Generator()), toy_state(3), shared=SHARED)
        for _ in range(3):
            module.load_state_dict(cloned(module.state_dict()), assign=True)
            toy_run(compiled)
        held = module.critic.weight.untyped_storage()
        module.critic.weight = nn.Parameter(module.critic.weight.detach().clone())
        toy_run(compiled)
        assert uses(held) == 1, "only this test knows the replaced weight"
        del compiled
        gc.unfreeze()  # conftest hides what has survived a collection
        gc.collect()
        assert [uses(weight.untyped_storage()) for weight in module.parameters()] == alone

    def test_a_second_module_of_the_kind_uses_the_package_with_its_own_weights(
        self, module: ToyStep, compiled: CompiledStep
    ) -> None:
        files = set(compiled.path.parent.iterdir())
        torch.manual_seed(5)
        other = toy()
        second = CompiledStep(other, toy_inputs(8, torch.Generator()), toy_state(8), shared=SHARED, notify=refuse)
        assert second.path == compiled.path and set(compiled.path.parent.iterdir()) == files
        assert differences(other, second) < ROUNDING
        assert differences(module, compiled) < ROUNDING
        assert differences(module, second) > 0.01


def toy_run(compiled: CompiledStep) -> torch.Tensor:
    """The values of a step with fixed inputs."""
    return compiled.step(toy_inputs(3, torch.Generator()), toy_state(3))["value"]


def uses(storage: torch.UntypedStorage) -> int:
    """How many tensors and Python objects hold this memory."""
    return int(torch._C._storage_Use_Count(storage._cdata))


def refuse(line: str) -> None:
    raise AssertionError(f"nothing was to be compiled: {line}")


class TestNumbers:
    pytestmark = slow

    def test_a_thousand_steps_equal_eager(self, cache: Path) -> None:
        generator = torch.Generator()
        check_compiled(
            toy(), toy_inputs(3, generator), toy_state(3), shared=SHARED, steps=1000, draw=lambda it: toy_inputs(3, it)
        )

    @pytest.mark.parametrize("batch", [1, 2, 8, 16, 33])
    def test_one_package_serves_every_batch_size(self, module: ToyStep, compiled: CompiledStep, batch: int) -> None:
        def in_place(inputs: Tensors, state: Tensors) -> tuple[Tensors, Tensors]:
            return compiled.step(inputs, state), state

        runs = [run_of(form, lambda it: toy_inputs(batch, it), toy_state(batch), 70) for form in (in_place, module)]
        assert_runs_equal(*runs, tolerance=ROUNDING)

    def test_it_uses_the_threads_of_torch_and_starts_none_of_its_own(self, compiled: CompiledStep) -> None:
        threads = Path("/proc/self/task")
        if not threads.exists():
            pytest.skip("counts threads in /proc")
        toy_run(compiled)
        before = len(list(threads.iterdir()))
        compiled.step(toy_inputs(64, torch.Generator()), toy_state(64))
        assert len(list(threads.iterdir())) == before

    def test_the_state_is_written_in_place_and_outputs_are_new(self, compiled: CompiledStep) -> None:
        state = toy_state(3)
        addresses = {name: tensor.data_ptr() for name, tensor in state.items()}
        first = compiled.step(toy_inputs(3, torch.Generator()), state)
        seen = cloned(first)
        compiled.step(toy_inputs(3, torch.Generator().manual_seed(8)), state)
        assert {name: tensor.data_ptr() for name, tensor in state.items()} == addresses
        assert state["clock"] == 2 and state["keys0"][:, 1].abs().sum() > 0 and state["keys0"][:, 2:].abs().sum() == 0
        torch.testing.assert_close(first, seen, rtol=0, atol=0)

    def test_no_whole_ring_is_copied(self, compiled: CompiledStep) -> None:
        """A step that copied a ring would have to allocate one; 64 rings of 1 MiB are 10 times what a step needs."""
        state, inputs = toy_state(64), toy_inputs(64, torch.Generator())
        with torch.profiler.profile(profile_memory=True) as profile:
            compiled.step(inputs, state)
        ring = state["keys0"].nbytes
        sizes = [event.self_cpu_memory_usage for event in profile.events()]
        assert sizes and max(sizes) < ring / 2, (max(sizes), ring)


class TestRefusals:
    pytestmark = slow

    @pytest.mark.parametrize(
        ("change", "message"),
        [
            (lambda i, s: i.pop("noise"), r"also takes 'noise'"),
            (lambda i, s: s.pop("clock"), r"also takes 'clock'"),
            (lambda i, s: i.update(reward=torch.zeros(3)), r"does not take reward"),
            (lambda i, s: i.update(noise=torch.zeros(3, 5)), r"noise must be float32\[3, 4\], got float32\[3, 5\]"),
            (lambda i, s: i.update(noise=torch.zeros(2, 4)), r"noise must be float32\[3, 4\]"),
            (lambda i, s: i.update(first=torch.zeros(3)), r"first must be bool\[3\], got float32\[3\]"),
            (lambda i, s: i.update(bias=torch.zeros(3)), r"bias must be float32\[4\]"),
            (lambda i, s: s.update(keys0=s["keys0"].transpose(0, 1).contiguous().transpose(0, 1)), "keys0.*contiguous"),
            (lambda i, s: s.update(keys0=s["values0"]), "shares memory with values0"),
            (lambda i, s: i.update(noise=s["keys0"].view(-1)[:12].view(3, 4)), "keys0.*shares memory with noise"),
        ],
    )
    def test_what_does_not_fit_is_refused_by_name_and_nothing_is_written(
        self, compiled: CompiledStep, change: Callable[[Tensors, Tensors], object], message: str
    ) -> None:
        inputs, state = toy_inputs(3, torch.Generator()), toy_state(3)
        change(inputs, state)
        before = cloned(state)
        with pytest.raises(ConfigError, match=message):
            compiled.step(inputs, state)
        torch.testing.assert_close(state, before, rtol=0, atol=0)

    def test_a_batch_without_rows_is_refused(self, compiled: CompiledStep) -> None:
        inputs, state = toy_inputs(3, torch.Generator()), toy_state(3)
        inputs = {name: tensor if name in SHARED else tensor[:0] for name, tensor in inputs.items()}
        with pytest.raises(ConfigError, match="at least one"):
            compiled.step(inputs, {name: tensor[:0] if tensor.ndim else tensor for name, tensor in state.items()})

    def test_inputs_may_lie_in_memory_as_they_like(self, module: ToyStep, compiled: CompiledStep) -> None:
        inputs, state = toy_inputs(3, torch.Generator()), toy_state(3)
        scattered = inputs | {"observation": inputs["observation"].T.contiguous().T}
        torch.testing.assert_close(
            compiled.step(scattered, cloned(state)), compiled.step(inputs, state), rtol=0, atol=0
        )


class TestCompiling:
    pytestmark = slow

    def test_a_new_process_prints_nothing_and_finds_the_package(self, compiled: CompiledStep) -> None:
        code = (
            "import torch\n"
            "from tests.export.steps import *\n"
            "from rltransformers.export.compiled import CompiledStep\n"
            "step = CompiledStep(toy(), toy_inputs(2, torch.Generator()), toy_state(2), shared=SHARED)\n"
            "step.step(toy_inputs(2, torch.Generator()), toy_state(2))\n"
            f"assert str(step.path) == {str(compiled.path)!r}, step.path\n"
        )
        result = subprocess.run(
            [sys.executable, "-W", "error", "-c", code], capture_output=True, text=True, timeout=300
        )
        assert (result.returncode, result.stdout, result.stderr) == (0, "", "")


def test_without_a_compiler_the_reason_is_given_and_nothing_is_kept(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv(VARIABLE, str(tmp_path))
    monkeypatch.setenv("PATH", str(tmp_path / "empty"))
    monkeypatch.delenv("CXX", raising=False)
    lines: list[str] = []
    with pytest.raises(MissingCompilerError, match=r"no C\+\+ compiler: (g\+\+|clang\+\+) --version does not run"):
        CompiledStep(toy(), toy_inputs(2, torch.Generator()), toy_state(2), shared=SHARED, notify=lines.append)
    assert not lines
    assert not list(tmp_path.rglob("*.pt2"))


def test_a_compiler_that_does_not_exist_is_named(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv(VARIABLE, str(tmp_path))
    monkeypatch.setenv("CXX", os.fspath(tmp_path / "no-such-g++"))
    with pytest.raises(MissingCompilerError, match="no-such-g"):
        CompiledStep(toy(), toy_inputs(2, torch.Generator()), toy_state(2), shared=SHARED)
