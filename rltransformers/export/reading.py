"""A step read back from a file of ``rltransformers.export.files``, called with arrays whatever the file is for."""

import io
import json
import os
from collections.abc import Callable, Iterable, Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Annotated, Any, Literal, Self, TypedDict

import numpy as np
import torch
from annotated_types import Ge
from torch.export import ExportedProgram
from torch.utils._pytree import tree_unflatten

from rltransformers.core.checkpoint import contents_of
from rltransformers.core.device import CPU
from rltransformers.core.errors import CheckpointError, ConfigError, one_line, require
from rltransformers.core.ranges import check
from rltransformers.core.values import to_tensor
from rltransformers.export.files import EXTRA, METADATA
from rltransformers.export.step import quiet

Arrays = dict[str, np.ndarray]
TensorKinds = dict[str, dict[str, Any]]
Run = Callable[[Arrays, Arrays], tuple[Arrays, Arrays]]


@dataclass(frozen=True)
class StepFile:
    """A step in a file.

    Of every tensor it says type and shape by name, as {"dtype": ..., "shape": [...]}; the first axis is the batch,
    "batch" where the file takes any.
    """

    inputs: Mapping[str, Mapping[str, Any]]
    state: Mapping[str, Mapping[str, Any]]
    outputs: Mapping[str, Mapping[str, Any]]
    metadata: Mapping[str, Any]
    run: Run  # takes inputs and state, gives outputs and the new state
    source: tuple[Path, bytes]  # path and content of the file; a pickle holds them

    def __deepcopy__(self, memo: dict[int, Any]) -> Self:
        return self  # it holds no state

    def __reduce__(self) -> Any:
        return _of_bytes, self.source

    @property
    def batch(self) -> int | None:
        """The one size of batch that the file is for; None for any."""
        sizes = [each["shape"][0] for each in self.inputs.values() if each["shape"]]
        return next((size for size in sizes if size != "batch"), None)

    def filled(self, kind: Mapping[str, Any], rows: int, value: Any) -> np.ndarray:
        """``value``, one for all rows or one for each, as a tensor of this type and shape with ``rows`` rows."""
        return np.array(np.broadcast_to(np.asarray(value, kind["dtype"]), (rows, *kind["shape"][1:])))


def read_step(path: str | os.PathLike[str]) -> StepFile:
    """The step in a ``.pt2`` or ``.onnx`` file.

    An ``.onnx`` file is data. A ``.pt2`` file is read by torch, which may run code that stands in it: read files of
    people you trust only.

    Raises:
        ConfigError: for another ending.
        CheckpointError: for a file that is missing, that cannot be read, or that no ``export`` wrote.
        MissingExtraError: for an ``.onnx`` file without onnxruntime.
    """
    file = Path(path)
    if file.suffix not in READERS:
        raise ConfigError(f"{file.name!r} must end in .pt2 or .onnx: files that export(path) of an agent writes")
    if not file.is_file():
        raise CheckpointError(f"there is no file {file}; export(path) of an agent writes one")
    return _of_bytes(file, file.read_bytes())


def _of_bytes(file: Path, content: bytes) -> StepFile:
    about, run = READERS[file.suffix](file, content)

    def checked(inputs: Arrays, state: Arrays) -> tuple[Arrays, Arrays]:
        try:
            return run(inputs, state)
        except Exception as error:  # what torch and onnxruntime raise in the middle of a step
            raise CheckpointError(
                f"{file} cannot compute this step ({one_line(error)[:300]}); export it anew"
            ) from error

    return StepFile(about["inputs"], about["state"], about["outputs"], about["metadata"], checked, (file, content))


def _read_pt2(file: Path, content: bytes) -> tuple[dict[str, Any], Run]:
    extra: dict[str, Any] = {METADATA: ""}
    try:
        with quiet():
            loaded = torch.export.load(io.BytesIO(content), extra_files=extra)
            program: Any = loaded.module()
            signature = _signature(loaded)
    except Exception as error:  # whatever torch raises for a file that is none
        raise CheckpointError(f"{file} is no readable .pt2 file ({one_line(error)[:300]})") from error
    about = _about(file, extra[METADATA], *signature)

    def run(inputs: Arrays, state: Arrays) -> tuple[Arrays, Arrays]:
        tensors = [
            {name: to_tensor(given[name], CPU) for name in names}
            for given, names in ((inputs, about["inputs"]), (state, about["state"]))
        ]
        with torch.no_grad():
            outputs, after = ({name: each.numpy() for name, each in part.items()} for part in program(*tensors))
        return outputs, after

    return about, run


def _signature(program: ExportedProgram) -> tuple[TensorKinds, set[str]]:
    """Inputs and states of a program by the names of ONNX files, and the names of its outputs."""
    names = set(program.graph_signature.user_inputs)
    values = [node.meta["val"] for node in program.graph.nodes if node.op == "placeholder" and node.name in names]
    (given, state), _ = tree_unflatten(values, program.call_spec.in_spec)
    tensors = given | {f"state.{name}": value for name, value in state.items()}
    inputs = {name: _kind(str(each.dtype).removeprefix("torch."), each.shape) for name, each in tensors.items()}
    results = program.call_spec.out_spec
    outputs, after = tree_unflatten([None] * results.num_leaves, results)
    return inputs, {*outputs, *(f"next.{name}" for name in after)}


def _kind(dtype: str, shape: Iterable[Any]) -> dict[str, Any]:
    return {"dtype": dtype, "shape": [size if isinstance(size, int) else "batch" for size in shape]}


def _read_onnx(file: Path, content: bytes) -> tuple[dict[str, Any], Run]:
    runtime = require("onnxruntime", EXTRA)
    try:
        session = runtime.InferenceSession(content, providers=["CPUExecutionProvider"])
        text = session.get_modelmeta().custom_metadata_map.get(METADATA, "")
    except Exception as error:  # onnxruntime has error types of its own
        raise CheckpointError(f"{file} is no readable .onnx file ({one_line(error)[:300]})") from error
    names = [output.name for output in session.get_outputs()]
    inputs = {each.name: _kind(_ONNX_TYPES.get(each.type, each.type), each.shape) for each in session.get_inputs()}
    about = _about(file, text, inputs, set(names))

    def run(inputs: Arrays, state: Arrays) -> tuple[Arrays, Arrays]:
        feed = {name: inputs[name] for name in about["inputs"]}
        # onnxruntime reads the bytes of another byte order as if they were in its own.
        held = {f"state.{name}": np.asarray(state[name], kind["dtype"]) for name, kind in about["state"].items()}
        results = dict(zip(names, session.run(None, feed | held), strict=True))
        after = {name: results.pop(f"next.{name}") for name in about["state"]}
        return results, after

    return about, run


def _about(file: Path, text: str | bytes, inputs: TensorKinds, outputs: set[str]) -> dict[str, Any]:
    """The description in a file; raise CheckpointError unless it names what the program takes and gives."""
    with contents_of(file, "policy"):
        if not text:
            raise CheckpointError("it says nothing of its inputs; read a file that export(path) wrote")
        about = check(json.loads(text), dict[str, Any], "the description")
        for part in ("inputs", "state", "outputs"):
            about[part] = check(about[part], dict[str, _Kind], part)
        check(about["metadata"], dict[str, Any], "metadata")
        named = about["inputs"] | {f"state.{name}": kind for name, kind in about["state"].items()}
        if {name: dict(kind) for name, kind in named.items()} != inputs:
            wrong = next(name for name in [*named, *inputs] if named.get(name) != inputs.get(name))
            raise CheckpointError(
                f"it describes the input {wrong!r} as {named.get(wrong)}, which is {inputs.get(wrong)}"
            )
        if {*about["outputs"], *(f"next.{name}" for name in about["state"])} != outputs:
            raise CheckpointError(f"it describes the outputs {sorted(about['outputs'])}, and gives {sorted(outputs)}")
    return about


class _Kind(TypedDict):
    """Type and shape of a tensor in a file."""

    dtype: str
    shape: list[Annotated[int, Ge(0)] | Literal["batch"]]


_ONNX_TYPES = {
    "tensor(float)": "float32",
    "tensor(double)": "float64",
    "tensor(float16)": "float16",
    **{f"tensor({name})": name for name in ("bool", "int8", "int16", "int32", "int64")},
    **{f"tensor({name})": name for name in ("uint8", "uint16", "uint32", "uint64")},
}
READERS = {".pt2": _read_pt2, ".onnx": _read_onnx}  # reader of a file, by its ending
