"""An evaluation of a network that learns, forward and backward, as machine code: a program per shape of its inputs."""

import time
from collections.abc import Callable, Hashable, Iterable, Mapping
from typing import Any, TypeAlias

import torch
from torch import Tensor, nn
from torch.func import functional_call
from torch.utils import _pytree as pytree

from rltransformers.core.errors import CompileError, one_line
from rltransformers.core.places import named_places
from rltransformers.export.compiled import LeftBehind, compiler

Tree: TypeAlias = Any
"""Dicts, lists and registered dataclasses (``torch.utils._pytree``) of tensors, None, and trees of them."""
Program = Callable[[Mapping[str, Tensor], Tree], Tree]
"""Outputs for weights by name, and inputs."""
OPTIONS = {
    "cpp.threads": 1,  # no OpenMP regions: products of matrices still use the threads of torch
    "compile_threads": 1,  # no processes that stay
    "fallback_random": True,  # dropout draws what it draws in eager mode
}


class CompiledEvaluation(LeftBehind):
    """``function`` of tensors, which reads the weights of ``module``, as machine code.

    Outputs carry gradient to the parameters of ``module`` as those of ``function`` do, and buffers that it writes are
    written. Whatever is no tensor is a constant of the program. Where it cannot be compiled, ``function`` itself is
    called, and ``notify`` says why. Under ``torch.autocast`` it has programs of its own. Torch keeps programs in its
    own folder (``TORCHINDUCTOR_CACHE_DIR``).

    Args:
        module: holds every parameter and buffer that ``function`` reads; each may be written or replaced at any time.
        function: from a tree of tensors to a tree of tensors, whose shapes follow from those of the inputs.
        notify: gets a line before and after a compilation.
    """

    def __init__(self, module: nn.Module, function: Callable[[Tree], Tree], notify: Callable[[str], None]):
        self._module, self._function, self._notify = module, function, notify
        places = {(id(holder), own): (name, (holder, own)) for name, (holder, own) in named_places(module)}
        self._places = dict(places.values())
        self._programs: dict[Hashable, Program] = {}
        self.failed = False

    def __call__(self, inputs: Tree) -> Tree:
        """The outputs for these inputs."""
        if self.failed:
            return self._function(inputs)
        weights = {name: holder[own] for name, (holder, own) in self._places.items() if holder[own] is not None}
        learns = {name: each.requires_grad and torch.is_grad_enabled() for name, each in weights.items()}
        leaves, names = pytree.tree_flatten(inputs)
        kinds = [(each.dtype, each.device, each.shape) if isinstance(each, Tensor) else each for each in leaves]
        key = names, tuple(kinds), self._module.training, tuple(learns.items()), autocast_types(weights.values())
        if key not in self._programs:
            try:
                self._programs[key] = self._compile(weights, inputs)
            except CompileError as error:
                self.failed = True
                self._notify(f"updates go on in eager mode: {error}")
                return self._function(inputs)
        return self._programs[key](weights, inputs)

    def _compile(self, weights: Mapping[str, Tensor], inputs: Tree) -> Program:
        """The program for inputs of these shapes."""
        maker = compiler() if all(each.is_cpu for each in weights.values()) else "Triton"
        self._notify(f"compiling the update with {maker}, about 30 s, once per size of minibatch")
        start = time.monotonic()
        program = program_of(self._module, self._function)
        copies = {name: each.detach().clone().requires_grad_(each.requires_grad) for name, each in weights.items()}
        try:
            with torch.random.fork_rng():  # both passes are compiled when they are first run
                outputs = [each for each in pytree.tree_leaves(program(copies, inputs)) if isinstance(each, Tensor)]
                if learned := [each.sum() for each in outputs if each.requires_grad]:
                    torch.stack(learned).sum().backward()
        except Exception as error:
            raise CompileError(f"the update could not be compiled: {one_line(error)[:500]}") from error
        self._notify(f"compiled the update in {time.monotonic() - start:.0f} s")
        return program


def program_of(module: nn.Module, function: Callable[[Tree], Tree]) -> Program:
    """``function`` with the weights of ``module`` as an input, traced and compiled where it is first called."""
    # The compilers take seconds to import.
    from functorch.compile import aot_function, default_partition
    from torch._export.utils import _compiling_state_context
    from torch._inductor import config
    from torch._inductor.compile_fx import compile_fx_inner
    from torch._inductor.decomposition import select_decomp_table

    bound = _Bound(module, function)

    def evaluate(weights: Mapping[str, Tensor], inputs: Tree) -> Tree:
        named = {f"module.{name}": each for name, each in weights.items()}
        with _compiling_state_context():
            # One name per place: a place that is filled twice would keep what was traced.
            return functional_call(bound, named, (inputs,), tie_weights=False)

    def compile_graph(graph: torch.fx.GraphModule, examples: Any) -> Any:
        with config.patch(OPTIONS):
            return compile_fx_inner(graph, examples)

    with config.patch(OPTIONS):
        decompositions = select_decomp_table()
    return aot_function(evaluate, compile_graph, partition_fn=default_partition, decompositions=decompositions)


def autocast_types(tensors: Iterable[Tensor]) -> tuple[torch.dtype | None, ...]:
    """The type in which ``torch.autocast`` computes products on each kind of device of ``tensors``; None where none."""
    kinds = sorted({each.device.type for each in tensors})
    return tuple(torch.get_autocast_dtype(kind) if torch.is_autocast_enabled(kind) else None for kind in kinds)


class _Bound(nn.Module):
    """A function as a module, which holds the one whose weights the function reads."""

    def __init__(self, module: nn.Module, function: Callable[[Tree], Tree]) -> None:
        super().__init__()
        self.module, self._function = module, function

    def forward(self, inputs: Tree) -> Tree:
        return self._function(inputs)
