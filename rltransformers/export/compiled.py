"""A step as machine code that computes with the weights of the live module and writes the state in place."""

import functools
import logging
import os
import subprocess
import sys
import tempfile
import time
import weakref
from collections.abc import Callable, Collection
from pathlib import Path
from typing import Any

import torch
from torch import Tensor, nn

from rltransformers.core.errors import CompileError, ConfigError, MissingCompilerError, one_line
from rltransformers.core.files import refusal
from rltransformers.core.places import named_places
from rltransformers.export.cache import cache_folder, found_or_made
from rltransformers.export.fingerprint import digest, is_foreign, of_machine, of_module, of_program, plain
from rltransformers.export.step import Tensors, batch_of, check_step, described, in_place_program, rows_of, save_program

log = logging.getLogger(__name__)

_BUILDER = Path(__file__).with_name("build.py")
_TIME_LIMIT = 1800.0  # seconds; a compilation that takes longer does not end
# Any size above 1 gives a program for all sizes; with this one, what the compiler assumes of loops is realistic.
_TRACED_BATCH = 16


class LeftBehind:
    """Attributes that a copy of a policy does not get: they belong to the weights of the original."""

    def __deepcopy__(self, memo: dict[int, Any]) -> None:
        return None

    def __reduce__(self) -> tuple[type[None], tuple[()]]:
        return type(None), ()


class CompiledStep:
    """The step of ``module`` for any size of batch, as machine code.

    The machine code is made once for a kind of step and machine, and kept in the user's cache folder. It computes with
    the tensors of ``module`` themselves: whatever happens to a parameter or a buffer, written in place or replaced, the
    next step has its new numbers. A part of ``module`` that is replaced as a whole needs a new ``CompiledStep``.
    One thread at a time may call it.
    """

    def __init__(
        self,
        module: nn.Module,
        inputs: Tensors,
        state: Tensors,
        *,
        shared: Collection[str] = (),
        notify: Callable[[str], None] = log.info,
    ) -> None:
        """Find the machine code of this step, or make it.

        Args:
            module: a step, on the CPU and in evaluation mode.
            inputs, state: examples with any size of batch; their numbers do not matter.
            shared: names of tensors whose first axis is not the batch; numbers without axes need no mention.
            notify: gets a line before and a line after a compilation, and none when there is nothing to compile.

        Raises:
            ConfigError: when ``module`` breaks a rule of a step, or cannot be written as one graph.
            CompileError: when this machine cannot compile it; eager mode works.
        """
        batch_of(inputs, state, shared)
        own = dict(module.named_parameters()) | dict(module.named_buffers())
        for name, tensor in (inputs | state | own).items():
            if not tensor.is_cpu:
                raise ConfigError(f"a compiled step computes on the CPU, but {name} is on {tensor.device}; move it")
        outputs = check_step(module, inputs, state)
        self._inputs, self._state, self._outputs = sorted(inputs), sorted(state), sorted(outputs)
        examples = {name: rows_of(tensor, _TRACED_BATCH, name in shared) for name, tensor in (inputs | state).items()}
        self._names = [*self._inputs, *self._state]
        self._dtypes = [examples[name].dtype for name in self._names]
        self._traced = [examples[name].shape for name in self._names]
        self._batched = [bool(examples[name].ndim) and name not in shared for name in self._names]
        self._first = self._batched.index(True)
        self._shapes: dict[torch.Size, list[torch.Size]] = {}
        layouts = [f"{name} {described(examples[name])} {name in shared}" for name in self._names]
        of_inputs, of_state = ({name: examples[name] for name in each} for each in (self._inputs, self._state))
        trace = functools.cache(lambda: in_place_program(module, of_inputs, of_state, shared=shared))
        foreign = [of_program(trace())] if is_foreign(module) else []
        builder = _BUILDER.read_text(encoding="utf-8")
        name = digest(of_module(module), *foreign, *layouts, plain(self._outputs), of_machine(), builder)
        self.path = cache_folder() / "compiled" / f"{name}.pt2"

        def make(path: Path) -> None:
            notify(f"compiling the acting step with {compiler()}, about 30 s, once; kept in {self.path.parent}")
            start = time.monotonic()
            _compile(trace(), path)
            notify(f"compiled the acting step in {time.monotonic() - start:.0f} s")

        try:
            found_or_made(self.path, make)
        except OSError as error:
            raise CompileError(f"the step could not be compiled: {refusal(error)}; eager mode works") from error
        self._package = _load(self.path)
        constants = set(self._package.get_constant_fqns())
        self._places = {
            constant: place for name, place in named_places(module) if (constant := f"step.{name}") in constants
        }
        # Tensors that are written in the source of the step have no place; they stay as they were compiled.
        if lost := sorted(name for name in constants - self._places.keys() if name.startswith("step.")):
            raise CompileError(f"the compiled step has {lost[0]}, which the module lacks; eager mode works")
        self._kinds = {name: _kind(holder[own]) for name, (holder, own) in self._places.items()}
        self._linked: Tensors = {}
        weakref.finalize(self, _let_go, self._linked).atexit = False
        self._link()

    def step(self, inputs: Tensors, state: Tensors) -> Tensors:
        """Take one step: return the outputs, which are new tensors, and write the new state over ``state``.

        The tensors of ``state`` are contiguous and overlap no other; those of ``inputs`` may lie in memory as they
        like. Gradients do not flow, and the state's version counters do not move.

        Raises:
            ConfigError: when names, shapes, types or places in memory do not fit the step; nothing is written then.
        """
        try:
            tensors = [inputs[name] for name in self._inputs] + [state[name] for name in self._state]
        except KeyError as error:
            raise ConfigError(f"the step also takes {error.args[0]!r}; give it") from None
        rows = tensors[self._first].shape[:1]
        shapes = self._shapes.get(rows) or self._shapes_for(rows)
        if (
            len(inputs) + len(state) != len(tensors)
            or [tensor.shape for tensor in tensors] != shapes
            or [tensor.dtype for tensor in tensors] != self._dtypes
            or not all([tensor.is_contiguous() and tensor.is_cpu for tensor in tensors])
            or len({tensor.data_ptr() for tensor in tensors}) != len(tensors)
        ):
            tensors = self._checked(inputs, state, shapes)
        if [holder[name].data_ptr() for holder, name in self._places.values()] != self._addresses:
            self._link()
        return dict(zip(self._outputs, self._package.run(tensors), strict=True))

    def _shapes_for(self, rows: torch.Size) -> list[torch.Size]:
        if rows.numel() == 0 or not rows:
            raise ConfigError(f"{self._names[self._first]} has no rows; a step takes a batch of at least one")
        pairs = zip(self._traced, self._batched, strict=True)
        shapes = [torch.Size([*rows, *traced[1:]]) if batched else traced for traced, batched in pairs]
        self._shapes[rows] = shapes
        return shapes

    def _checked(self, inputs: Tensors, state: Tensors, shapes: list[torch.Size]) -> list[Tensor]:
        """The tensors in the order of the machine code, inputs with gaps copied; raises where they are wrong."""
        if unknown := (set(inputs) - set(self._inputs)) | (set(state) - set(self._state)):
            raise ConfigError(f"the step does not take {', '.join(sorted(unknown))}; leave it out")
        tensors = [(inputs if name in self._inputs else state)[name] for name in self._names]
        for name, tensor, shape, dtype in zip(self._names, tensors, shapes, self._dtypes, strict=True):
            if tensor.shape != shape or tensor.dtype != dtype:
                expected = described(torch.empty(shape, dtype=dtype, device="meta"))
                raise ConfigError(f"{name} must be {expected}, got {described(tensor)}")
            if not tensor.is_cpu:
                raise ConfigError(f"a compiled step computes on the CPU, but {name} is on {tensor.device}; move it")
            if name in self._state and not tensor.is_contiguous():
                raise ConfigError(f"the state {name} is written in place and must be contiguous; use contiguous() once")
        for name in self._state:
            for other, tensor in zip(self._names, tensors, strict=True):
                if other != name and _overlap(state[name], tensor):
                    raise ConfigError(
                        f"the state {name} is written in place but shares memory with {other}; clone one of them"
                    )
        return [tensor.contiguous() for tensor in tensors]

    def _link(self) -> None:
        """Make the machine code compute with the parameters and buffers that the module has now."""
        weights = {name: holder[own].detach() for name, (holder, own) in self._places.items()}
        for name, weight in weights.items():
            if _kind(weight) != self._kinds[name]:
                raise ConfigError(
                    f"{name} changed its type, shape or device after the step was compiled; compile it again"
                )
        # Not the inactive set; without torch's own count, which prints a line for every literal; ours, not copies.
        self._package.load_constants(weights, False, False, True)
        self._addresses = [weight.data_ptr() for weight in weights.values()]
        _let_go(self._linked)
        self._linked.update(weights)


def _let_go(linked: Tensors) -> None:
    """Free the memory of these views of weights, as far as the module does not use it.

    ``load_constants`` of torch 2.13 never gives back what it was given, not even with the package.
    """
    for weight in linked.values():
        weight.data = weight.new_empty(0)
    linked.clear()


def _kind(tensor: Tensor) -> tuple[object, ...]:
    return tensor.dtype, tensor.device, tensor.shape, tensor.stride()


def _overlap(one: Tensor, other: Tensor) -> bool:
    """Whether two tensors, the first of them contiguous, may share memory."""
    if not one.numel() or not other.numel():
        return False
    last = sum((size - 1) * stride for size, stride in zip(other.shape, other.stride(), strict=True))
    ends = one.data_ptr() + one.numel() * one.element_size(), other.data_ptr() + (last + 1) * other.element_size()
    return one.data_ptr() < ends[1] and other.data_ptr() < ends[0]


def compiler() -> str:
    """The C++ compiler that torch will use; raise MissingCompilerError when it does not start."""
    name = os.environ.get("CXX") or {"darwin": "clang++", "win32": "cl"}.get(sys.platform, "g++")
    try:
        subprocess.run([name, "--version"], capture_output=True, check=sys.platform != "win32", timeout=60)
    except (OSError, subprocess.SubprocessError) as error:
        raise MissingCompilerError(
            f"no C++ compiler: {name} --version does not run ({one_line(error)}); install g++ or name one in CXX"
        ) from error
    return name


def _compile(program: torch.export.ExportedProgram, path: Path) -> None:
    """Compile ``program`` to the package ``path`` in another process, which leaves nothing else behind."""
    with tempfile.TemporaryDirectory(prefix="rltransformers-") as folder:
        source = Path(folder) / "program.pt2"
        save_program(program, source)
        environment = os.environ | {"TORCHINDUCTOR_CACHE_DIR": str(Path(folder) / "inductor")}
        try:
            subprocess.run(
                [sys.executable, "-P", str(_BUILDER), str(source), str(path)],
                env=environment,
                stdin=subprocess.DEVNULL,
                stdout=subprocess.PIPE,
                stderr=subprocess.STDOUT,
                text=True,
                check=True,
                timeout=_TIME_LIMIT,
            )
        except subprocess.CalledProcessError as error:
            log.debug("%s", error.stdout)
            reason = one_line(" ".join(error.stdout.strip().splitlines()[-3:]))[-500:]
            raise CompileError(f"the step could not be compiled: {reason or error}; eager mode works") from error
        except subprocess.TimeoutExpired as error:
            raise CompileError(f"compiling the step took more than {_TIME_LIMIT:.0f} s; eager mode works") from error


def _load(path: Path) -> torch._C._aoti.AOTIModelPackageLoader:
    """The machine code in ``path``; not through ``torch._inductor``, whose import takes seconds."""
    try:
        return torch._C._aoti.AOTIModelPackageLoader(str(path), "model", True, 1, -1)  # True: callers do not overlap
    except (RuntimeError, AttributeError, TypeError) as error:
        raise CompileError(f"{path} cannot be loaded: {one_line(error)[:500]}; remove it, or use eager mode") from error
