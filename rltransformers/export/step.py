"""Steps that can be compiled or written to a file, and their programs: whole graphs of fixed shape.

A step is any module ``forward(inputs, state) -> (outputs, new_state)`` over dictionaries of tensors. It changes
nothing, the new state has the names, shapes and types of the old one, and nothing in it looks at values to decide what
to do. The first axis of every tensor is the batch, except numbers without axes, such as a clock, and those named
``shared``.
"""

import io
import logging
import warnings
from collections.abc import Collection, Iterator, Mapping
from contextlib import contextmanager, redirect_stderr, redirect_stdout
from pathlib import Path
from typing import Any

import torch
from torch import Tensor, nn
from torch.export import Dim, ExportedProgram
from torch.fx import config as fx_config

from rltransformers.core.errors import ConfigError, one_line

Tensors = dict[str, Tensor]


def batch_of(inputs: Tensors, state: Tensors, shared: Collection[str] = ()) -> int:
    """Rows of the batch in these tensors, those in ``shared`` and those without axes left out; ConfigError for none."""
    if unknown := set(shared) - set(inputs) - set(state):
        raise ConfigError(f"shared names tensors that the step does not take: {', '.join(sorted(unknown))}")
    sizes = {name: len(tensor) for name, tensor in (inputs | state).items() if tensor.ndim and name not in shared}
    if not sizes:
        raise ConfigError("no tensor of the step has a batch as its first axis; give at least one that is not shared")
    if len(set(sizes.values())) > 1:
        listed = ", ".join(f"{name} {size}" for name, size in sorted(sizes.items()))
        raise ConfigError(
            f"the first axis of all tensors of a step is the batch, got {listed}; name tensors without one in shared"
        )
    return next(iter(sizes.values()))


def check_step(module: nn.Module, inputs: Tensors, state: Tensors) -> Tensors:
    """Take one step in eager mode; return its outputs, or raise ConfigError when it breaks a rule of a step."""
    if both := set(inputs) & set(state):
        raise ConfigError(f"inputs and state share the names {', '.join(sorted(both))}; rename one of each pair")
    for name in [*inputs, *state]:
        if not name or name.startswith(("state.", "next.")):
            raise ConfigError(
                f"a tensor of a step cannot be called {name!r}: 'state.' and 'next.' mark states in files"
            )
    if training := [path for path, part in module.named_modules() if part.training]:
        name = training[0] or "the module"
        raise ConfigError(
            f"a step is compiled and written in evaluation mode, but {name} is in training mode; call eval()"
        )
    if stray := next(_stray_tensors(module), None):
        raise ConfigError(
            f"{stray} is or holds a tensor that is neither a parameter nor a buffer, so a compiled step would keep its "
            "present numbers; register it"
        )
    owned = dict(module.named_parameters()) | dict(module.named_buffers())
    given = [inputs, state, owned]
    before = [{name: tensor.detach().clone() for name, tensor in tensors.items()} for tensors in given]
    with torch.no_grad():
        outputs, new_state = module(inputs, state)
    for tensors, copies in zip(given, before, strict=True):
        for name, tensor in tensors.items():
            if not torch.equal(tensor.detach().nan_to_num(), copies[name].nan_to_num()):
                raise ConfigError(f"a step changes nothing, but this one wrote to {name}; return the new value instead")
    _check_new_state(state, new_state)
    for name, output in outputs.items():
        if not isinstance(output, Tensor):
            raise ConfigError(f"outputs of a step are tensors, got {type(output).__name__} for {name}")
    return dict(outputs)


def _check_new_state(state: Tensors, new_state: Tensors) -> None:
    if set(new_state) != set(state):
        only = ", ".join(sorted(set(new_state) ^ set(state)))
        raise ConfigError(
            f"the new state of a step has the names of the old one; these are in one of them only: {only}"
        )
    for name, tensor in state.items():
        if described(tensor) != described(new_state[name]):
            raise ConfigError(
                f"the shapes and types of a state never change, but {name} went from {described(tensor)} to "
                f"{described(new_state[name])}"
            )


def rows_of(tensor: Tensor, rows: int, shared: bool) -> Tensor:
    """A tensor like ``tensor`` with a batch of ``rows``, made of its first row; a copy where it has no batch."""
    if shared or not tensor.ndim:
        return tensor.detach().clone()
    return tensor.detach()[:1].repeat(rows, *[1] * (tensor.ndim - 1))


def described(tensor: Tensor) -> str:
    """Type and shape of ``tensor`` in one word, such as ``float32[16, 4]``."""
    return f"{str(tensor.dtype).removeprefix('torch.')}{list(tensor.shape)}"


def _stray_tensors(module: nn.Module) -> Iterator[str]:
    """Names of attributes, lists, tuples and dictionaries that hold tensors which ``module`` does not know of."""
    known = {id(tensor) for tensor in [*module.parameters(), *module.buffers()]}
    for path, part in module.named_modules():
        for name, value in vars(part).items():
            if name in ("_parameters", "_buffers", "_modules"):
                continue
            members = value.values() if isinstance(value, Mapping) else value
            for member in members if isinstance(value, Mapping | list | tuple) else [value]:
                tensors = [*member.parameters(), *member.buffers()] if isinstance(member, nn.Module) else [member]
                if any(isinstance(tensor, Tensor) and id(tensor) not in known for tensor in tensors):
                    yield f"{path}.{name}".lstrip(".")


class _Sorted(nn.Module):
    """A step whose results are in the order of their names, so that files list them alike."""

    def __init__(self, step: nn.Module) -> None:
        super().__init__()
        self.step = step

    def forward(self, inputs: Tensors, state: Tensors) -> tuple[Tensors, Tensors]:
        outputs, new_state = self.step(inputs, state)
        return {name: outputs[name] for name in sorted(outputs)}, {name: new_state[name] for name in sorted(new_state)}


class _InPlace(nn.Module):
    """A step that writes the new state over the old one; tensors go in and out in the order of their names."""

    def __init__(self, step: nn.Module, inputs: list[str], state: list[str]) -> None:
        super().__init__()
        self.step, self.inputs, self.state = step, inputs, state

    def forward(self, *tensors: Tensor) -> tuple[Tensor, ...]:
        inputs = dict(zip(self.inputs, tensors[: len(self.inputs)], strict=True))
        state = dict(zip(self.state, tensors[len(self.inputs) :], strict=True))
        outputs, new_state = self.step(inputs, state)
        results = tuple(outputs[name] for name in sorted(outputs))
        for name in self.state:
            state[name].copy_(new_state[name])
        return results


def in_place_program(
    module: nn.Module, inputs: Tensors, state: Tensors, *, shared: Collection[str] = ()
) -> ExportedProgram:
    """The step as a program of any batch size that writes the states in place and returns the outputs.

    It takes inputs, then states, each in the order of their names. The examples have two rows or more.
    """
    names, states = sorted(inputs), sorted(state)
    tensors = tuple((inputs | state)[name].clone() for name in [*names, *states])
    axes = tuple(_axes(name, tensor, shared) for name, tensor in zip([*names, *states], tensors, strict=True))
    return _traced(_InPlace(module, names, states).eval(), tensors, (axes,), strict=False)


def pure_program(
    module: nn.Module,
    inputs: Tensors,
    state: Tensors,
    *,
    shared: Collection[str] = (),
    dynamic: bool = True,
    strict: bool = False,
) -> ExportedProgram:
    """The step as a program; ``program.module()(inputs, state)`` returns outputs and new state, as the module does.

    With ``dynamic`` it is for any batch size, and the examples have two rows or more; else for that of the examples.
    """
    examples = [{name: tensors[name].clone() for name in sorted(tensors)} for tensors in (inputs, state)]
    axes = tuple({name: _axes(name, tensor, shared) for name, tensor in tensors.items()} for tensors in examples)
    return _traced(_Sorted(module).eval(), tuple(examples), axes if dynamic else None, strict)


def _axes(name: str, tensor: Tensor, shared: Collection[str]) -> dict[int, Any]:
    return {0: Dim.DYNAMIC} if tensor.ndim and name not in shared else {}


def _traced(module: nn.Module, arguments: tuple[Any, ...], dynamic_shapes: Any, strict: bool) -> ExportedProgram:
    with torch.no_grad(), tracing():
        try:
            program = torch.export.export(module, arguments, dynamic_shapes=dynamic_shapes, strict=strict)
        except Exception as error:
            fault = one_line(error)[:500]
            if "Constraints violated" in fault:
                fault = (
                    "the number of streams became a fixed number in it; in mechanisms of your own write p.shape[0] in "
                    "place of len(p)"
                )
            raise ConfigError(f"this step cannot be written as one graph: {fault}; eager mode works") from error
    for node in program.graph.nodes:  # torch 2.11 notes places whatever ``tracing`` asks
        node.meta.pop("stack_trace", None)
    return program


def save_program(program: ExportedProgram, path: Path, extra_files: dict[str, Any] | None = None) -> None:
    """``torch.export.save`` by way of memory.

    Where a disk is full, torch ends the whole process; and what it writes to a path has the name of the file inside.
    """
    content = io.BytesIO()
    with quiet():
        torch.export.save(program, content, extra_files=extra_files)
    path.write_bytes(content.getbuffer())


@contextmanager
def tracing() -> Iterator[None]:
    """Steps are traced in the block without the notes of torch on where each operation was called.

    They would go into files, with the paths of this machine. Shapes of operations are found anew each time: in steps,
    where few are alike, that takes half of the time that looking them up does.
    """
    from torch._dynamo import config as dynamo_config  # takes a second, which only those who trace have to wait

    before = getattr(fx_config, "do_not_emit_stack_traces", False)
    fx_config.do_not_emit_stack_traces = True
    try:
        with quiet(), dynamo_config.patch(fake_tensor_cache_enabled=False):
            yield
    finally:
        fx_config.do_not_emit_stack_traces = before


@contextmanager
def quiet() -> Iterator[None]:
    """Hide warnings, logs and prints of torch about its own insides in the block."""
    logger = logging.getLogger("torch")
    level = logger.level
    with warnings.catch_warnings(), redirect_stdout(io.StringIO()), redirect_stderr(io.StringIO()):
        warnings.simplefilter("ignore")
        logger.setLevel(logging.CRITICAL)
        try:
            yield
        finally:
            logger.setLevel(level)
