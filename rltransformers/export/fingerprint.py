"""Fingerprint of the machine code of a module: shapes of tensors, other attributes, program, machine."""

import enum
import functools
import hashlib
import platform
import types
from collections.abc import Mapping, Set
from pathlib import Path

import numpy as np
import torch
from torch import nn
from torch.export import ExportedProgram

import rltransformers


def digest(*parts: str) -> str:
    """A name of 64 letters for these texts; other texts, or texts cut elsewhere, have another name."""
    return hashlib.sha256("".join(f"{len(part)}:{part}" for part in parts).encode()).hexdigest()


def of_module(module: nn.Module) -> str:
    """A text that differs where steps may differ, unless code besides the package and torch does (``of_program``).

    Numbers in parameters and buffers have no part in it, nor have attributes that a part lists as ``outside_steps``.
    """
    lines = []
    names: dict[int, list[str]] = {}
    for path, part in module.named_modules(remove_duplicate=False):
        lines.append(f"{path}: {_name(type(part))} training={part.training}")
        without = _OF_EVERY_MODULE | getattr(part, "outside_steps", frozenset())
        own = {name: value for name, value in vars(part).items() if name not in without}
        lines += [f"{path}.{name} = {plain(own[name])}" for name in sorted(own)]
        for name, tensor in [*part._parameters.items(), *part._buffers.items()]:
            lines.append(f"{path}.{name} {None if tensor is None else (tensor.dtype, tensor.shape, tensor.stride())}")
            names.setdefault(id(tensor), []).append(f"{path}.{name}")
    ties = [together for together in names.values() if len(together) > 1]  # a tied weight is one constant of the code
    return "\n".join([*lines, f"ties {ties}", _text_of_package()])


def is_foreign(module: nn.Module) -> bool:
    """Whether a part of ``module`` is of a class that is neither torch's nor the package's."""
    kinds = {kind for part in module.modules() for kind in type(part).__mro__}
    return not {kind.__module__.partition(".")[0] for kind in kinds} <= {
        "builtins",
        "torch",
        "typing",
        "rltransformers",
    }


def of_program(program: ExportedProgram) -> str:
    """What a traced step computes: the source of a class says too little where that calls functions of other files."""
    graphs = [part.code for part in program.graph_module.modules() if isinstance(part, torch.fx.GraphModule)]
    constants = [program.constants[name].numpy() for name in program.graph_signature.lifted_tensor_constants]
    return "\n".join([*graphs, plain(constants)])


_OF_EVERY_MODULE = frozenset(vars(nn.Module()))


def of_machine() -> str:
    """A text that differs where code made in one place must not run in the other: versions and processors."""
    versions = [rltransformers.__version__, torch.__version__, str(torch.version.git_version)]
    kind = [platform.system(), platform.machine(), torch.backends.cpu.get_cpu_capability()]
    try:
        lines = Path("/proc/cpuinfo").read_text().split("\n\n")[0].splitlines()
        processor = [line for line in lines if line.startswith(("model name", "flags", "Features", "CPU part"))]
    except OSError:  # not Linux
        processor = [platform.processor()]
    return "\n".join([*versions, *kind, *processor])


def plain(value: object, above: tuple[int, ...] = ()) -> str:
    """A text for a value and what it holds, equal in every process; a function is its code and what it closes over."""
    if id(value) in above:
        return "above"
    within = functools.partial(plain, above=(*above, id(value)))
    if value is None or isinstance(value, bool | int | float | complex | str | bytes | torch.dtype | torch.device):
        return repr(value)
    if isinstance(value, enum.Enum | type):
        return f"{_name(type(value))} {value!r}"
    if isinstance(value, np.ndarray | np.generic):
        return f"{value.dtype} {value.shape} {hashlib.sha256(value.tobytes()).hexdigest()}"
    if isinstance(value, Mapping):
        return "{" + ", ".join(f"{within(key)}: {within(member)}" for key, member in value.items()) + "}"
    if isinstance(value, Set):
        return "{" + ", ".join(sorted(map(within, value))) + "}"
    if isinstance(value, list | tuple):
        return "(" + ", ".join(map(within, value)) + ")"
    if isinstance(value, functools.partial):
        return f"partial({within(value.func)}, {within(value.args)}, {within(value.keywords)})"
    if isinstance(value, types.MethodType):
        return f"{within(value.__func__)} of {within(value.__self__)}"
    if isinstance(value, types.FunctionType):
        closed = [cell.cell_contents for cell in value.__closure__ or ()]
        given = [value.__defaults__, value.__kwdefaults__, closed]
        return f"{value.__module__}.{value.__qualname__} {within(value.__code__)} {within(given)}"
    if isinstance(value, types.CodeType):
        return f"{value.co_code.hex()} {value.co_names} {within(value.co_consts)}"
    if isinstance(value, nn.Module | torch.optim.Optimizer):
        return _name(type(value))  # modules are listed where they are registered; optimizers take no part in a step
    if isinstance(value, types.BuiltinFunctionType | torch._ops.OpOverload | torch._ops.OpOverloadPacket):
        return f"{value.__module__}.{value!s}" if "at 0x" not in str(value) else f"{value.__module__}.{value.__name__}"
    slots = [name for kind in type(value).__mro__ for name in getattr(kind, "__slots__", ())]
    members = {name: getattr(value, name) for name in slots if hasattr(value, name)} | getattr(value, "__dict__", {})
    return f"{_name(type(value))} {within(members)}"


def _name(kind: type) -> str:
    return f"{kind.__module__}.{kind.__qualname__}"


@functools.cache
def _text_of_package() -> str:
    """The source of the whole package: any part of it may take part in a step."""
    top = Path(rltransformers.__file__).parent
    folders = sorted({top, *(link.resolve() for link in top.iterdir() if link.is_symlink())})
    files = [file for folder in folders for file in sorted(folder.rglob("*.py"))]
    return digest(*(file.read_text(encoding="utf-8") for file in files))
