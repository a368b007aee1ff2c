"""A step read back from a file of ``rltransformers.export.files``, called with arrays whatever the file is for."""

import json
import os
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np
import torch

from rltransformers.core.device import CPU, to_tensor
from rltransformers.core.errors import CheckpointError, ConfigError, one_line, require
from rltransformers.export.files import EXTRA, METADATA
from rltransformers.export.step import quiet

Arrays = dict[str, np.ndarray]


@dataclass(frozen=True)
class StepFile:
    """A step in a file.

    Attributes:
        inputs, state: type and shape of every tensor by name, as {"dtype": ..., "shape": [...]}; the first axis is the
            batch, "batch" where the file takes any.
        metadata: what was written beside the step.
        run: takes inputs and state, gives outputs and the new state.
    """

    inputs: Mapping[str, Mapping[str, Any]]
    state: Mapping[str, Mapping[str, Any]]
    metadata: Mapping[str, Any]
    run: Callable[[Arrays, Arrays], tuple[Arrays, Arrays]]

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
    reader = READERS.get(file.suffix)
    if reader is None:
        raise ConfigError(f"{file.name!r} must end in .pt2 or .onnx: files that export(path) of an agent writes")
    if not file.is_file():
        raise CheckpointError(f"there is no file {file}; export(path) of an agent writes one")
    return reader(file)


def _read_pt2(file: Path) -> StepFile:
    extra: dict[str, Any] = {METADATA: ""}
    try:
        with quiet():
            program = torch.export.load(file, extra_files=extra).module()
    except Exception as error:  # whatever torch raises for a file that is none
        raise CheckpointError(f"{file} is no readable .pt2 file ({one_line(error)[:300]})") from error
    about = _about(file, extra[METADATA])

    def run(inputs: Arrays, state: Arrays) -> tuple[Arrays, Arrays]:
        tensors = [
            {name: to_tensor(given[name], CPU) for name in names}
            for given, names in ((inputs, about["inputs"]), (state, about["state"]))
        ]
        with torch.no_grad():
            outputs, after = program(*tensors)
        return _numpy(outputs), _numpy(after)

    return StepFile(about["inputs"], about["state"], about["metadata"], run)


def _numpy(tensors: Mapping[str, torch.Tensor]) -> Arrays:
    return {name: tensor.numpy() for name, tensor in tensors.items()}


def _read_onnx(file: Path) -> StepFile:
    runtime = require("onnxruntime", EXTRA)
    try:
        session = runtime.InferenceSession(os.fspath(file), providers=["CPUExecutionProvider"])
        text = session.get_modelmeta().custom_metadata_map.get(METADATA, "")
    except Exception as error:  # onnxruntime has error types of its own
        raise CheckpointError(f"{file} is no readable .onnx file ({one_line(error)[:300]})") from error
    about = _about(file, text)
    names = [output.name for output in session.get_outputs()]

    def run(inputs: Arrays, state: Arrays) -> tuple[Arrays, Arrays]:
        feed = {name: inputs[name] for name in about["inputs"]}
        # onnxruntime reads the bytes of another byte order as if they were in its own.
        held = {f"state.{name}": np.asarray(state[name], kind["dtype"]) for name, kind in about["state"].items()}
        results = dict(zip(names, session.run(None, feed | held), strict=True))
        after = {name: results.pop(f"next.{name}") for name in about["state"]}
        return results, after

    return StepFile(about["inputs"], about["state"], about["metadata"], run)


def _about(file: Path, text: str | bytes) -> dict[str, Any]:
    """Description in the file."""
    try:
        about: dict[str, Any] = json.loads(text)
        _ = about["inputs"].items(), about["state"].items(), about["metadata"].items()
    except (ValueError, TypeError, LookupError, AttributeError) as error:
        raise CheckpointError(f"{file} says nothing of its inputs; read a file that export(path) wrote") from error
    return about


READERS = {".pt2": _read_pt2, ".onnx": _read_onnx}
"""Reader of a file, by its ending."""
