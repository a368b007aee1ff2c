"""Laws L11 and L12: the step of acting has one fixed shape, can be written to a file, and follows every weight."""

from collections.abc import Callable
from contextlib import ExitStack
from typing import Any
from unittest.mock import patch

import torch
from torch import Tensor, nn

from rltransformers.backbone import Backbone, BackboneConfig, State
from rltransformers.backbone.state import Tables, part_of, prefixed
from rltransformers.export.step import Tensors, check_step, pure_program
from rltransformers.laws.costs import of_one_layer
from rltransformers.laws.streams import EXACT, Case, LawError, perturbed, require

BATCH, MANY, FEW, SOME = 3, 10, 20, 24  # streams of the trace, streams of a run, steps, steps


class BackboneStep(nn.Module):
    """A backbone as a step: inputs "x" [B, G, D] and "reset" [B, G] of one environment step, output "y" [B, G, D]."""

    def __init__(self, backbone: Backbone) -> None:
        super().__init__()
        self.backbone = backbone

    def forward(self, inputs: Tensors, state: Tensors) -> tuple[Tensors, Tensors]:
        y, after = self.backbone.step(inputs["x"], State(state), inputs["reset"], tables=part_of("table", inputs))
        return {"y": y}, after.tensors

    def start(self, streams: int = BATCH) -> Tensors:
        return self.backbone.initial_state(streams, cached=True).tensors

    def draw(self, batch: int, generator: torch.Generator) -> Tensors:
        """Draw inputs of one step, with the tables of today's weights."""
        return {**self.tokens(batch, generator), **self.tables()}

    def tables(self) -> Tensors:
        """Compute what depends on the weights alone."""
        return prefixed("table", self.backbone.tables())

    def tokens(self, batch: int, generator: torch.Generator) -> Tensors:
        """Draw tokens of one step: an episode begins in one of ten, at its first token."""
        group = self.backbone.config.tokens_per_step
        reset = torch.zeros(batch, group, dtype=torch.bool)
        reset[:, 0] = torch.rand(batch, generator=generator) < 0.1
        x = torch.randn(batch, group, self.backbone.width, generator=generator)
        return {"x": x, "reset": reset}


def step_of(config: BackboneConfig) -> BackboneStep:
    """Make the step of a backbone with these settings, of one layer where that says as much."""
    return BackboneStep(perturbed(of_one_layer(config))).eval()


def taken(step: BackboneStep, function: Callable[..., Any], streams: int, steps: int) -> tuple[list[Tensor], Tensors]:
    """Return outputs of many steps and the last state; every form of a step gets the same tokens and resets."""
    generator, state = torch.Generator().manual_seed(1), step.start(streams)
    outputs: list[Tensor] = []
    with torch.no_grad():
        tables = step.tables()
        for _ in range(steps):
            output, state = function({**step.tokens(streams, generator), **tables}, state)
            outputs.append(output["y"])
    return outputs, state


def exported_equals_eager(
    step: BackboneStep, steps: int | None = None, tolerance: float = 10 * EXACT, strict: bool = False
) -> Case:
    """L11: an exported step equals the eager one over many ``steps`` with resets; returns what was compared.

    The step is traced before eager mode has ever seen its sizes: nothing may be left behind in eager mode. It is for
    any number of streams: it is traced with three and takes ten. What is written to files and compiled is traced by
    running the step. Strict tracing reads its code as well, and refuses Python that it cannot follow.
    """
    inputs, state = step.draw(BATCH, torch.Generator().manual_seed(0)), step.start()
    shared = [key for key in inputs if key.startswith("table.")]
    program = pure_program(step, inputs, state, shared=shared).module()
    read = pure_program(step, inputs, state, dynamic=False, strict=True).module() if strict else None
    check_step(step, inputs, state)
    case = Case(step.backbone, inputs["x"], inputs["reset"], tolerance)
    rings = [value.shape[1] for key, value in state.items() if key.endswith("_ring")]
    steps = steps or max([SOME, *(3 * slots for slots in rings)])  # every ring is written over three times
    before, after = taken(step, step, MANY, steps)
    outputs, last = taken(step, program, MANY, steps)
    for mine, theirs in zip(before, outputs, strict=True):
        case.close(theirs, mine, "outputs of the exported step and of the eager one")
    for key, value in after.items():
        case.close(last[key], value, f"state {key} of the exported step and of the eager one")
    again, _ = taken(step, step, MANY, min(FEW, steps))
    require(all(map(torch.equal, before, again)), "tracing a step changes what eager mode computes later")
    if read is not None:
        for mine, theirs in zip(taken(step, step, BATCH, FEW)[0], taken(step, read, BATCH, FEW)[0], strict=True):
            case.close(theirs, mine, "outputs of the strictly traced step and of the eager one")
    return case


def fixed_addresses(step: BackboneStep) -> None:
    """L12: a step in place keeps shapes and addresses and equals the pure one."""
    generator, backbone = torch.Generator().manual_seed(2), step.backbone
    pure, own = State(step.start()), State(step.start())
    shapes = {key: value.shape for key, value in pure.tensors.items()}
    rings = {key: value.data_ptr() for key, value in own.tensors.items() if key.endswith("_ring")}
    with torch.inference_mode():
        for _ in range(max([12, *(2 * pure.tensors[key].shape[1] for key in rings)])):  # every ring goes round twice
            inputs = step.draw(BATCH, generator)
            y, pure = backbone.step(inputs["x"], pure, inputs["reset"])
            mine, own = backbone.step(inputs["x"], own, inputs["reset"], overwrites=True)
            require(torch.equal(mine, y), "a step that overwrites its state gives other outputs")
            for state in (pure, own):
                now = {key: value.shape for key, value in state.tensors.items()}
                require(now == shapes, "the shapes of the state change from step to step")
            same = {key: own.tensors[key].data_ptr() for key in rings} == rings
            require(same, "a step in place moves a ring of the state")


def no_tensors_from_numbers(step: BackboneStep) -> None:
    """L12: what a step needs besides its inputs is a buffer; a CUDA graph cannot copy numbers from the host."""
    inputs, state = step.draw(BATCH, torch.Generator().manual_seed(0)), step.start()

    def refuse(*arguments: object, **keywords: object) -> Tensor:
        raise LawError("a step makes a tensor from numbers; register it as a buffer when the module is built")

    with torch.inference_mode(), ExitStack() as stack:
        for place, name in ((torch, "tensor"), (torch, "as_tensor"), (Tensor, "new_tensor")):
            stack.enter_context(patch.object(place, name, refuse))
        step(inputs, step(inputs, state)[1])


def fresh_tables(step: BackboneStep) -> None:
    """L12: tables of acting follow every weight, however it is changed."""
    backbone = step.backbone
    tables = Tables(backbone, backbone.table_sources(), backbone.tables)
    state, generator = State(step.start()), torch.Generator().manual_seed(3)
    with torch.no_grad():
        for _ in range(3):
            inputs = step.draw(BATCH, generator)
            _, state = backbone.step(inputs["x"], state, inputs["reset"])
        for index, (name, parameter) in enumerate(backbone.named_parameters()):
            noise = 0.3 * torch.randn(parameter.shape, generator=generator)
            if index % 3 == 0:
                parameter.add_(noise)
            elif index % 3 == 1:
                parameter.data = parameter.data + noise
            else:
                parameter.data.add_(noise)
            current, anew = tables.current(), backbone.tables()
            same = current.keys() == anew.keys() and all(torch.equal(current[key], anew[key]) for key in anew)
            require(same, f"tables of acting do not follow the parameter {name}; name its module in table_sources")
        y, _ = backbone.step(inputs["x"], state, inputs["reset"], tables=tables.current())
        expected, _ = backbone.step(inputs["x"], state, inputs["reset"])
        Case(backbone, inputs["x"], inputs["reset"]).close(y, expected, "outputs with tables and without")
