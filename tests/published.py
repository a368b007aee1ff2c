"""Compare a module of ours with published code in float64: outputs and gradients, in one segment and in two.

Weights of the other module are made of those of ours, so that gradients of ours through either must agree. Code that
computes in float32 whatever it gets is made to compute in float64.
"""

import importlib.util
from collections.abc import Callable, Iterator, Mapping
from pathlib import Path
from types import ModuleType
from typing import Any

import pytest
import torch
from torch import Tensor, nn
from torch.func import functional_call

from rltransformers.backbone import PLAIN, Backbone, BackboneConfig
from rltransformers.functional.call import Call
from tests.mixers.episodes import one_episode, run

WIDTH, HEADS, TIME = 12, 3, 21
CUT = 8  # tokens of the first of two segments
TOLERANCE = 1e-6  # of sums in another order, and of a number that the other code adds to a norm; measured: 1e-8


@pytest.fixture(autouse=True)
def double(monkeypatch: pytest.MonkeyPatch) -> Iterator[None]:
    """Compute in float64, whatever other code asks for; a module of tests takes this fixture by importing it."""
    monkeypatch.setattr(Tensor, "float", Tensor.double)
    torch.set_default_dtype(torch.float64)
    torch.manual_seed(0)
    yield
    torch.set_default_dtype(torch.float32)


class Double:
    """The module torch, whose float32 is float64."""

    float32 = float = torch.float64
    complex64 = torch.complex128

    def __getattr__(self, name: str) -> Any:
        return getattr(torch, name)


def imported(name: str) -> Any:
    """A module of another package that computes in float64; skips the test where it is missing."""
    module = pytest.importorskip(name, reason="compared with; extra third-party", exc_type=ImportError)
    if hasattr(module, "torch"):
        module.torch = Double()
    return module


def naive(name: str) -> ModuleType:
    """A file of fla.ops, without the package, which needs triton and this file does not."""
    spec = importlib.util.find_spec("fla")
    if spec is None or not spec.submodule_search_locations:
        pytest.skip("fla-core is not installed; extra third-party")
    path = Path(spec.submodule_search_locations[0]) / "ops" / name / "naive.py"
    source = importlib.util.spec_from_file_location(f"fla_naive_{name.replace('/', '_')}", path)
    assert source is not None and source.loader is not None
    module = importlib.util.module_from_spec(source)
    source.loader.exec_module(module)
    vars(module)["torch"] = Double()
    return module


def run_cut(mixer: Any, x: Tensor) -> Tensor:
    """Outputs of a mixer that sees an episode in two segments."""
    batch = len(x)
    start = {name: torch.zeros(batch, *shape) for name, shape in mixer.state_shapes().items()}
    first = mixer(x[:, :CUT], start, Call(one_episode(CUT, batch)))
    second = mixer(x[:, CUT:], first.state, Call(one_episode(x.shape[1] - CUT, batch, CUT)))
    return torch.cat([first.out, second.out], 1)


def backbone(**settings: Any) -> Any:
    """A backbone of one layer of attention, without a transform, that looks back as far as an episode goes."""
    basis = {"width": WIDTH, "heads": HEADS, "layers": 1, "memory": TIME, "ff": "none"}
    return Backbone(BackboneConfig(**{**PLAIN, **basis, **settings}))


def agree(ours: nn.Module, theirs: Callable[[Tensor], Tensor], without: tuple[str, ...] = ()) -> None:
    """Compare outputs, and gradients of inputs and of all weights of ours, but for those that theirs has not.

    The same is asked of an episode in two segments; of a backbone its outputs alone, because a call ends its gradient.
    """
    for weight in ours.parameters():
        weight.data += 0.3 * torch.randn_like(weight)
    for name in without:
        ours.get_parameter(name).data.zero_()
    x = torch.randn(2, TIME, WIDTH, requires_grad=True)
    named = {"input": x, **{name: each for name, each in ours.named_parameters() if name not in without}}
    direction = torch.randn(2, TIME, WIDTH)

    def result(out: Tensor) -> dict[str, Tensor]:
        return {
            "output": out.detach(),
            **dict(zip(named, torch.autograd.grad((out * direction).sum(), [*named.values()]), strict=True)),
        }

    expected = result(theirs(x))
    if isinstance(ours, Backbone):
        first, state = ours(x[:, :CUT])
        results = [result(ours(x)[0]), {"output": torch.cat([first, ours(x[:, CUT:], state)[0]], 1).detach()}]
    else:
        results = [result(run(ours, x)), result(run_cut(ours, x))]
    for segments, got in enumerate(results, 1):
        for name, value in got.items():
            other = expected[name]
            error = float((value - other).abs().max() / other.abs().max().clamp(min=1))
            assert error <= TOLERANCE, f"{name} in {segments} segment(s): {error:.1e}"
            assert float(other.abs().max()) > 1e-3, f"{name} has no effect"


def call(module: nn.Module, weights: Mapping[str, Tensor], *inputs: Any, **keywords: Any) -> Any:
    """What a module gives with these weights, which are all that it has."""
    assert set(weights) == {name for name, _ in module.named_parameters()}
    shapes = {name: each.shape for name, each in module.named_parameters()}
    assert shapes == {name: each.shape for name, each in weights.items()}
    return functional_call(module, dict(weights), inputs, keywords)


def taps(kernel: Tensor) -> Tensor:
    """Weights of a causal convolution of torch, whose last tap is that of the token itself."""
    return kernel.flip(-1)[:, None]
