"""A step in a file that others can run: ``.pt2`` for torch without this package, ``.onnx`` for any ONNX runtime.

A ``.pt2`` file is called as the step is here: ``outputs, state = torch.export.load(path).module()(inputs, state)``.
An ``.onnx`` file has one name per tensor: inputs and outputs their own, states ``state.<name>`` before the step and
``next.<name>`` after it. Both hold a JSON text of what they are, under the name ``METADATA``.
"""

import json
import os
import platform
from collections.abc import Collection, Mapping, Sequence
from pathlib import Path
from typing import Any

import torch
from torch import Tensor, nn
from torch.export import ExportedProgram

import rltransformers
from rltransformers.core.device import check_bytes
from rltransformers.core.errors import ConfigError, one_line, require
from rltransformers.core.files import replacing
from rltransformers.core.ranges import Environments, check
from rltransformers.export.step import Tensors, batch_of, check_step, pure_program, rows_of, save_program, tracing

METADATA = "rltransformers.json"
"""Name of the JSON text: an extra file of a ``.pt2`` file, a property of an ONNX model."""

EXTRA = "export"


def write_step(
    module: nn.Module,
    path: str | os.PathLike[str],
    inputs: Tensors,
    state: Tensors,
    *,
    shared: Collection[str] = (),
    batch: int | None = None,
    metadata: Mapping[str, Any] | None = None,
) -> None:
    """Write the step of ``module`` with its present weights to ``path``.

    Args:
        module: a step, in evaluation mode.
        path: ends in ``.pt2`` for torch, or in ``.onnx`` for ONNX runtimes, whose weights can have 2 GB; what is there
            is replaced when the new file is whole.
        inputs, state: examples with any size of batch; their numbers do not matter.
        shared: names of tensors whose first axis is not the batch.
        batch: the size of batch that the file is for, up to 65,536; None for any.
        metadata: what JSON can hold, to be kept in the file.

    Raises:
        ConfigError: when ``module`` breaks a rule of a step or cannot be written, or for ``path`` or ``metadata``.
        MissingExtraError: for ``.onnx`` without onnx or onnxscript.
    """
    file = Path(path)
    if file.suffix not in (".pt2", ".onnx"):
        raise ConfigError(f"{file.name!r} must end in .pt2 (for torch) or .onnx (for any ONNX runtime)")
    if file.suffix == ".onnx":
        for package in ("onnxscript", "onnx"):
            require(package, EXTRA)
    check(batch, Environments | None, "batch")
    own = batch_of(inputs, state, shared)
    rows = batch or 2  # one row alone would be taken for a size that is always one
    size = sum(each.nbytes for name, each in (inputs | state).items() if name not in shared)
    # Inputs, states, the copies that a step is compared with, and as much inside.
    check_bytes(rows * size * 8 // own, f"writing a step of {rows} environments takes", "leave batch out, or lower it")
    inputs, state = (
        {name: rows_of(tensors[name], rows, name in shared) for name in sorted(tensors)} for tensors in (inputs, state)
    )
    outputs = check_step(module, inputs, state)
    about = {
        "inputs": {name: _about(tensor, batch, name in shared) for name, tensor in inputs.items()},
        "state": {name: _about(tensor, batch, name in shared) for name, tensor in state.items()},
        "outputs": {name: _about(outputs[name], batch, outputs[name].shape[:1] != (rows,)) for name in sorted(outputs)},
        "versions": {
            "rltransformers": rltransformers.__version__,
            "torch": torch.__version__,
            "python": platform.python_version(),
        },
        "metadata": dict(metadata or {}),
    }
    try:
        text = json.dumps(about, allow_nan=False)
    except (TypeError, ValueError) as error:
        raise ConfigError(f"metadata of a file is what JSON can hold: {one_line(error)}") from error
    program = pure_program(module, inputs, state, shared=shared, dynamic=batch is None)
    with replacing(file) as temporary:
        if file.suffix == ".pt2":
            save_program(program, temporary, {METADATA: text})
        else:
            _save_onnx(program, temporary, about, text)


def _save_onnx(program: ExportedProgram, path: Path, about: Mapping[str, Any], text: str) -> None:
    names_in = [*about["inputs"], *(f"state.{name}" for name in about["state"])]
    names_out = [*about["outputs"], *(f"next.{name}" for name in about["state"])]
    for node in program.graph.nodes:  # the exporter wants the axes of a largest or smallest number to be named
        if node.target in (torch.ops.aten.amax.default, torch.ops.aten.amin.default) and len(node.args) == 1:
            node.args = (node.args[0], list(range(node.args[0].meta["val"].dim())))
    # With gradients the exporter would pick another kernel of attention than the trace had, of other strides.
    with torch.no_grad(), tracing():
        try:
            exported = torch.onnx.export(
                program,
                input_names=[f"input {name}" for name in names_in],
                output_names=[f"output {name}" for name in names_out],
                dynamo=True,
                external_data=False,
                verbose=False,
            )
        except Exception as error:
            origin: BaseException = error  # torch's last error of the chain does not name the operation
            while origin.__cause__ is not None:
                origin = origin.__cause__
            raise ConfigError(
                f"this step cannot be written as ONNX: {one_line(origin)[:500]}; write a .pt2 file"
            ) from error
    assert exported is not None
    model = exported.model_proto
    # The exporter gives its names even where a value inside has the same one; names with a space meet none.
    names = {name: f"inside/{name}" for name in [*names_in, *names_out]}
    names |= {f"input {name}": name for name in names_in} | {f"output {name}": name for name in names_out}
    _rename(model.graph, names)
    state = about["state"]
    shapes = about["inputs"] | {f"state.{name}": value for name, value in state.items()}
    shapes |= about["outputs"] | {f"next.{name}": value for name, value in state.items()}
    _name_batch(model.graph, {name: value["shape"] for name, value in shapes.items()})
    entry = model.metadata_props.add()
    entry.key, entry.value = METADATA, text
    require("onnx", EXTRA).save(model, path)


def _about(tensor: Tensor, batch: int | None, shared: bool) -> dict[str, Any]:
    shape: list[int | str] = list(tensor.shape)
    if shape and not shared and batch is None:
        shape[0] = "batch"
    return {"dtype": str(tensor.dtype).removeprefix("torch."), "shape": shape}


def _name_batch(graph: Any, shapes: Mapping[str, Sequence[int | str]]) -> None:
    """Call the size of the batch "batch"; inside, sizes that are multiples of it keep their own names.

    What comes in and goes out has the ``shapes`` of the description: the exporter does not always see that a size of
    an output is fixed.
    """
    symbols = {axis.dim_param for value in graph.input for axis in value.type.tensor_type.shape.dim} - {""}
    for value in [*graph.input, *graph.output]:
        for axis, size in zip(value.type.tensor_type.shape.dim, shapes[value.name], strict=True):
            if isinstance(size, int):
                axis.dim_value = size
            else:
                axis.dim_param = size
    for value in graph.value_info:
        for axis in value.type.tensor_type.shape.dim:
            if axis.dim_param in symbols:
                axis.dim_param = "batch"


def _rename(graph: Any, names: Mapping[str, str]) -> None:
    """Give the values of an ONNX graph, and of the graphs inside it, the names that ``names`` has for them."""
    for value in [*graph.input, *graph.output, *graph.value_info, *graph.initializer]:
        value.name = names.get(value.name, value.name)
    for node in graph.node:
        node.input[:] = [names.get(name, name) for name in node.input]
        node.output[:] = [names.get(name, name) for name in node.output]
        for attribute in node.attribute:
            for inner in [*([attribute.g] if attribute.HasField("g") else []), *attribute.graphs]:
                _rename(inner, names)
