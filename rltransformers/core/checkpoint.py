"""One-file checkpoints: ``header.json`` and torch tensors in a zip, written atomically, read without running code.

``tensors.pt`` is read with ``torch.load(weights_only=True)``: a checkpoint from a stranger is data, not a program.
"""

import io
import json
import math
import os
import pickle
import struct
import zipfile
from collections import Counter
from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager, nullcontext
from dataclasses import dataclass
from pathlib import Path
from typing import IO, Any, cast

import numpy as np
import torch
from torch import Tensor, nn

from rltransformers import __version__
from rltransformers.core.errors import CheckpointError, ConfigError, one_line
from rltransformers.core.extensions import extensions_named, require_extensions
from rltransformers.core.files import LARGEST_JSON, refusal, replacing
from rltransformers.core.ranges import NonNegativeNumber, check, shown, strict

File = str | os.PathLike[str] | io.BufferedIOBase
"""Where a checkpoint is: a path, or a file that is open for bytes and stays so."""
FORMAT = "rltransformers checkpoint"
FORMAT_VERSION = 2
_HEADER = "header.json"
_TENSORS = "tensors.pt"
LONGEST_REASON = 400
_READERS = {
    "SegmentReplay": "load_replay_buffer of an agent",
    "VecNormalize": "rltransformers.training.normalization.load_normalization",
}
"""What reads a checkpoint of a kind that is no class with ``load``."""
_STORAGES = {  # bytes of a number, of types without a storage of their own too: torch keeps these as bytes
    "DoubleStorage": 8, "FloatStorage": 4, "HalfStorage": 2, "BFloat16Storage": 2, "LongStorage": 8, "IntStorage": 4,
    "ShortStorage": 2, "CharStorage": 1, "ByteStorage": 1, "BoolStorage": 1, "ComplexDoubleStorage": 16,
    "ComplexFloatStorage": 8, "uint16": 2, "uint32": 4, "uint64": 8,
}  # fmt: skip


@dataclass(frozen=True)
class Checkpoint:
    """Content of a checkpoint file.

    ``settings`` are JSON values (tuples come back as lists); ``tensors`` has the nesting that was saved, with plain
    dictionaries in place of their subclasses.
    """

    kind: str
    settings: dict[str, Any]
    tensors: dict[str, Any]
    code_version: str


def file_name(path: File) -> str:
    """Name in messages."""
    return "the open file" if isinstance(path, io.BufferedIOBase) else os.fspath(path)


def checkpoint_path(path: str | os.PathLike[str]) -> Path:
    """The file a checkpoint called ``path`` is written to: ``.zip`` is added to a name without extension, as in SB3."""
    path = Path(path)
    if not path.name:
        raise CheckpointError(f"{os.fspath(path)!r} is no name of a file; give one, such as model.zip")
    return path if path.suffix else path.with_name(path.name + ".zip")


@strict
def save_checkpoint(path: File, kind: str, settings: Mapping[str, Any], tensors: Mapping[str, Any]) -> None:
    """Write one checkpoint file; a crash at any moment leaves the old file or the new one, whole, but for open files.

    ``kind`` is the class name of the agent, ``settings`` what its constructor needs as JSON values, ``tensors`` any
    nesting of dictionaries, lists and tuples over tensors, numbers, strings, booleans and None. Missing folders are
    made. The file names the modules of the registered mechanisms that are in ``settings``.

    Raises CheckpointError when a value is none of these (names the key), or the file cannot be written.
    """
    header: dict[str, Any] = {
        "format": FORMAT,
        "format_version": FORMAT_VERSION,
        "code_version": __version__,
        "kind": kind,
        "settings": settings,
    }
    if mechanisms := extensions_named(settings):
        header["mechanisms"] = mechanisms
    name = file_name(path)
    try:
        header_text = json.dumps(header, indent=1)
    except (TypeError, ValueError) as error:
        raise CheckpointError(
            f"cannot save {kind} to {name}: settings must be JSON values ({one_line(error)})"
        ) from error
    try:
        plain = _plain(tensors, kind)
        with (
            nullcontext(path) if isinstance(path, io.BufferedIOBase) else replacing(checkpoint_path(path)) as target,
            zipfile.ZipFile(target, "w", zipfile.ZIP_STORED) as archive,
        ):
            archive.writestr(_HEADER, header_text)
            with archive.open(_TENSORS, "w", force_zip64=True) as member:  # as it comes, not a copy of all of it first
                stream = _Stream(member)
                try:
                    torch.save(plain, stream)  # type: ignore[arg-type]  # of a file it needs no more than this
                except Exception as error:
                    if stream.failure is None:
                        raise
                    raise stream.failure from error
    except OSError as error:
        raise CheckpointError(f"cannot write checkpoint {refusal(error)}") from error
    except CheckpointError:
        raise
    except (MemoryError, RuntimeError) as error:  # torch raises the latter where memory is short
        reason = "there is not enough memory for it" if isinstance(error, MemoryError) else _reason(error)
        raise CheckpointError(
            f"cannot write checkpoint {name} of {kind}: {reason}; free some memory, or save less, as an agent without "
            "its replay: what was there before is still whole"
        ) from error


class _Stream:
    """Hands bytes on and keeps the error that stopped them, for torch goes on to say that its own count is wrong."""

    def __init__(self, stream: IO[bytes]) -> None:
        self.stream = stream
        self.failure: Exception | None = None

    def write(self, content: Any) -> int:
        try:
            return self.stream.write(content)
        except Exception as error:
            self.failure = error
            raise

    def flush(self) -> None:
        pass  # whoever opened the stream closes it


@strict
def load_checkpoint(path: File, kind: str | None = None, map_location: str | torch.device = "cpu") -> Checkpoint:
    """Read a checkpoint; tensors land on ``map_location``. With ``kind``, a checkpoint of any other agent is refused.

    Raises CheckpointError when the file is missing, corrupt, truncated, of another format version or of another agent,
    or needs mechanisms of a module that was not imported; it is never imported from here.
    """
    path = path if isinstance(path, io.BufferedIOBase) else _existing(Path(path))
    header, payload = _read(path)
    name, own = file_name(path), str(header["kind"])
    if kind is not None and own != kind:
        ours, theirs = (_READERS.get(each, f"{each}.load") for each in (own, kind))
        raise CheckpointError(f"{name} is a {own} checkpoint; load it with {ours}, not {theirs}")
    require_extensions(header.get("mechanisms", []), name)
    try:
        _check_sizes(payload)
        tensors = torch.load(io.BytesIO(payload), map_location=map_location, weights_only=True)
    except _CORRUPT as error:
        raise CheckpointError(
            f"{name} is refused: its tensors are corrupt or hold objects that would run code when loaded "
            f"({(str(error) or type(error).__name__).splitlines()[0]})"
        ) from error
    return Checkpoint(own, header["settings"], tensors, str(header.get("code_version", "unknown")))


def load_weights(path: Path) -> dict[str, Tensor]:
    """The tensors by name in a file of ``torch.save``; nothing is executed, CheckpointError for anything else."""
    try:
        payload = path.read_bytes()
        _check_sizes(payload)
        tensors = torch.load(io.BytesIO(payload), map_location="cpu", weights_only=True)
        return dict(check(tensors, Mapping[str, Tensor], "weights"))
    except (*_CORRUPT, OSError) as error:
        raise CheckpointError(
            f"{path} is refused: it is no file of torch.save, is damaged, or holds objects that would run code when "
            f"loaded ({_reason(error)})"
        ) from error


def pack_arrays(value: Any) -> Any:
    """``value`` with its numpy arrays and scalars as tensors of the same type, as ``save_checkpoint`` takes them."""
    if isinstance(value, np.ndarray | np.generic):
        return torch.as_tensor(np.array(value))
    if isinstance(value, Mapping):
        return {name: pack_arrays(item) for name, item in value.items()}
    return [pack_arrays(item) for item in value] if isinstance(value, list | tuple) else value


def unpack_arrays(value: Any) -> Any:
    """The inverse of ``pack_arrays``: tensors as numpy arrays, those without axes as numpy scalars."""
    if isinstance(value, Tensor):
        return value.cpu().numpy().copy()[()]
    if isinstance(value, Mapping):
        return {name: unpack_arrays(item) for name, item in value.items()}
    return [unpack_arrays(item) for item in value] if isinstance(value, list | tuple) else value


# What reading a file made to do harm may raise, besides OSError.
_CORRUPT = (
    pickle.UnpicklingError, zipfile.BadZipFile, struct.error, EOFError, MemoryError, RuntimeError, ArithmeticError,
    ValueError, TypeError, LookupError, AttributeError,
)  # fmt: skip


@contextmanager
def contents_of(path: File, kind: str, alone: bool = True) -> Iterator[None]:
    """Within the block an error is a fault of what the checkpoint ``path`` of a ``kind`` holds: a CheckpointError.

    With ``alone`` False the block reads other things too, and a ``ConfigError`` is about those and passes.
    """
    try:
        yield
    except _CORRUPT as error:
        if isinstance(error, ConfigError) and not alone:
            raise
        raise CheckpointError(f"{file_name(path)} does not hold a complete {kind}: {_reason(error)}") from error


def _reason(error: Exception) -> str:
    if isinstance(error, KeyError):
        return f"it lacks {shown(error.args[0])}"
    if isinstance(error, MemoryError):
        return "it asks for more memory than there is"
    text = one_line(error) or type(error).__name__
    return text if len(text) <= LONGEST_REASON else f"{text[:LONGEST_REASON]}..."


def check_same(found: Any, expected: Mapping[Any, Any], name: str, rows: int | None = None) -> None:
    """Raise unless ``found`` holds tensors of the same names, shapes and types as ``expected``, however deep.

    The CheckpointError names the first key that differs, behind ``name``, e.g. "policy". ``rows`` is the length of the
    first axis, where it is another than in ``expected``.
    """
    if not isinstance(found, Mapping):
        raise CheckpointError(f"{name} must be a mapping of tensors, got {shown(found)}")
    for key in [*expected, *found]:
        if key not in found:
            raise CheckpointError(f"{name} lacks {key}")
        if key not in expected:
            raise CheckpointError(f"{name} holds {shown(key)}, which has no place in this agent")
    for key, wanted in expected.items():
        value, path = found[key], f"{name}.{key}"
        if isinstance(wanted, Mapping):
            check_same(value, wanted, path, rows)
        elif isinstance(wanted, Tensor):
            check_tensor(value, path, wanted.shape if rows is None else (rows, *wanted.shape[1:]), wanted.dtype)
        elif value is not wanted:  # None
            raise CheckpointError(f"{path} must be {shown(wanted)}, got {_outline(value)}")


def check_tensor(value: Any, name: str, shape: Sequence[int | None], dtype: torch.dtype) -> Tensor:
    """``value`` if it is a tensor of this type and shape (None: any length), else CheckpointError says what it is."""
    fits = isinstance(value, Tensor) and value.dtype == dtype and len(value.shape) == len(shape)
    if not fits or any(want not in (None, have) for want, have in zip(shape, value.shape, strict=True)):
        wanted = " x ".join("any" if length is None else str(length) for length in shape) or "a single number"
        raise CheckpointError(f"{name} is {_outline(value)}, but {wanted} of {dtype} belong there")
    return cast(Tensor, value)


def _outline(value: Any) -> str:
    return f"{tuple(value.shape)} of {value.dtype}" if isinstance(value, Tensor) else shown(value)


def restore_weights(module: nn.Module, stored: Any, name: str = "policy") -> None:
    """Copy weights that a checkpoint holds under ``name`` into ``module``; CheckpointError as ``check_same``."""
    check_same(stored, module.state_dict(), name)
    module.load_state_dict(stored)


def restore_optimizer(optimizer: torch.optim.Optimizer, stored: Any, name: str = "optimizer") -> None:
    """Copy moments, step counts and learning rates under ``name``; other settings are those of the agent."""
    state, rates = check_optimizer(optimizer, stored, name)
    groups = zip(optimizer.state_dict()["param_groups"], rates, strict=True)
    optimizer.load_state_dict({"state": state, "param_groups": [group | {"lr": rate} for group, rate in groups]})


def check_optimizer(
    optimizer: torch.optim.Optimizer, stored: Any, name: str = "optimizer"
) -> tuple[Mapping[int, Any], list[float]]:
    """The state in ``stored`` and the learning rate of every group, which fit ``optimizer``, Adam, AdamW or Muon: it
    trusts the shapes that it is given.

    Raises CheckpointError for the first part that is missing or has another shape than its parameter, and ConfigError
    for a learning rate that is none.
    """
    groups = optimizer.param_groups
    parameters = [(each, group) for group in groups for each in group["params"]]
    stored = check(stored, Mapping[str, Any], name)
    stored_groups = check(stored["param_groups"], Sequence[Mapping[str, Any]], f"{name}.param_groups")
    rates = [check(group["lr"], NonNegativeNumber, f"{name}.lr") for group in stored_groups]
    sizes, stored_sizes = ([len(group["params"]) for group in each] for each in (groups, stored_groups))
    if stored_sizes != sizes:
        raise CheckpointError(f"{name} is of {_added(stored_sizes)} parameters, here are {_added(sizes)}")
    for index, state in check(stored["state"], Mapping[int, Any], f"{name}.state").items():
        if not 0 <= index < len(parameters):
            raise CheckpointError(f"{name}.state holds {index}, but there are {len(parameters)} parameters")
        check_same(state, _optimizer_state(*parameters[index]), f"{name}.state.{index}")
    return stored["state"], rates


def _optimizer_state(parameter: Tensor, group: Mapping[str, Any]) -> dict[str, Tensor]:
    """What an optimizer keeps of a parameter in this group."""
    if group.get("muon"):
        return {"momentum_buffer": parameter}
    moments = ["exp_avg", "exp_avg_sq", *(["max_exp_avg_sq"] if group["amsgrad"] else [])]
    return {"step": torch.zeros(())} | dict.fromkeys(moments, parameter)


def _added(sizes: Sequence[int]) -> str:
    return " + ".join(map(str, sizes)) or "no"


def _check_sizes(payload: bytes) -> None:
    """Raise unless every tensor lies inside the numbers that are stored for it.

    ``torch.load`` inflates compressed records and spreads one number over terabytes, as a file states it; older
    releases also read behind the end of a record that is shorter than stated.
    """
    with zipfile.ZipFile(io.BytesIO(payload)) as archive:
        _check_start(archive)
        _check_stored(archive)
        names = archive.namelist()
        root = names[0].partition("/")[0]
        stored = {entry.filename: entry.file_size for entry in archive.infolist()}
        _Outline(io.BytesIO(archive.read(f"{root}/data.pkl")), f"{root}/data/", stored, len(payload)).load()


class _Ordered(dict[Any, Any]):
    """Stands in for an ordered dictionary; that of ``state_dict()`` has an attribute, which a plain one cannot have."""


class _Outline(pickle._Unpickler):  # in C it allocates what an index asks for
    """Reads a pickle of ``torch.save`` with stand-ins for storages and tensors; knows no other objects."""

    def __init__(self, file: io.BytesIO, folder: str, stored: Mapping[str, int], limit: int) -> None:
        super().__init__(file)
        self.folder, self.stored, self.limit = folder, stored, limit

    def find_class(self, module: str, name: str) -> Any:
        if (module, name) == ("collections", "OrderedDict"):
            return _Ordered
        if (module, name) == ("torch._utils", "_rebuild_tensor_v2"):
            return self.tensor
        if (module, name) == ("torch._utils", "_rebuild_tensor_v3"):
            return self.tensor_of_bytes
        if (module, name) == ("torch.storage", "UntypedStorage"):
            return 1
        if module == "torch" and name in _STORAGES:
            return _STORAGES[name]
        raise pickle.UnpicklingError(f"{module}.{name}")

    def persistent_load(self, saved: Any) -> tuple[int, int]:
        _, width, key, _, count = saved
        held = self.stored[f"{self.folder}{key}"]
        if type(count) is not int or count * width != held:
            raise pickle.UnpicklingError(f"a tensor of {count} numbers is stored in {held} bytes")
        return count, width

    def tensor(self, storage: tuple[int, int], offset: int, size: Any, stride: Any, *_: Any) -> None:
        (count, width), numel = storage, math.prod(size)
        last = offset + sum((length - 1) * step for length, step in zip(size, stride, strict=True))
        if min(offset, 0, *size, *stride) < 0 or (numel and last >= count) or numel * width > self.limit:
            raise pickle.UnpicklingError(f"a tensor of size {tuple(size)} is not held by {count} numbers")

    def tensor_of_bytes(
        self, storage: tuple[int, int], offset: int, size: Any, stride: Any, grad: Any, hooks: Any, width: int, *_: Any
    ) -> None:
        count, unit = storage
        self.tensor((count * unit // width, width), offset, size, stride)


def _check_start(archive: zipfile.ZipFile, start: int = 0) -> None:
    """Raise unless the archive begins with the file, or at ``start``, behind what else was written there."""
    if archive.comment or min((entry.header_offset for entry in archive.infolist()), default=0) not in (0, start):
        # A file cut behind its tensors ends in the directory of the inner zip, which is what was found here.
        raise zipfile.BadZipFile("it does not start where its directory says")


def _check_stored(archive: zipfile.ZipFile) -> None:
    """Raise for archives other than ours, which hold every entry once and as it is."""
    entries = archive.infolist()
    name, count = Counter(entry.filename.lower() for entry in entries).most_common(1)[0]
    if count > 1:
        raise zipfile.BadZipFile(f"it holds {name} {count} times")
    for entry in entries:
        if entry.compress_type != zipfile.ZIP_STORED or entry.file_size != entry.compress_size:
            raise zipfile.BadZipFile(f"{entry.filename} is compressed, ours never are")


def _plain(value: Any, key: str) -> Any:
    """``value`` rebuilt from types that load without running code; a view of a larger tensor is compacted."""
    if isinstance(value, Tensor):
        tensor = value.detach()
        views_more = tensor.untyped_storage().nbytes() > tensor.numel() * tensor.element_size()
        return tensor.clone() if views_more else tensor
    if isinstance(value, np.generic):  # np.float64 is a float, yet pickles as a numpy global
        return value.item()
    if value is None or isinstance(value, bool | int | float | str):
        return value
    if isinstance(value, Mapping):
        for name in value:
            if not isinstance(name, str | int):
                raise CheckpointError(f"cannot save {key}: the key {name!r} is neither a string nor an integer")
        return {name: _plain(item, f"{key}.{name}") for name, item in value.items()}
    if isinstance(value, list):
        return [_plain(item, f"{key}[{index}]") for index, item in enumerate(value)]
    if isinstance(value, tuple):
        return tuple(_plain(item, f"{key}[{index}]") for index, item in enumerate(value))
    raise CheckpointError(
        f"cannot save {key}: {type(value).__name__} is no tensor, number, string, boolean, None or nesting of these"
        "; convert numpy arrays with torch.as_tensor"
    )


def _existing(path: Path) -> Path:
    try:
        for candidate in (path, checkpoint_path(path), path.with_name(path.name + ".zip")):
            if candidate.is_file():
                return candidate
    except OSError as error:  # a name that is too long, a folder that may not be read
        raise CheckpointError(f"cannot read checkpoint {refusal(error)}") from error
    what = "is a folder, not a checkpoint file" if path.is_dir() else "does not exist"
    raise CheckpointError(f"checkpoint {path} {what}")


def _read(path: Path | io.BufferedIOBase) -> tuple[dict[str, Any], bytes]:
    name = file_name(path)
    try:
        start = path.tell() if isinstance(path, io.BufferedIOBase) else 0
        with zipfile.ZipFile(path) as archive:
            _check_start(archive, start)
            if _HEADER not in archive.namelist() or _TENSORS not in archive.namelist():
                raise CheckpointError(
                    f"{name} is not an rltransformers checkpoint: a zip without {_HEADER} and {_TENSORS}"
                    " (zips of Stable-Baselines3 load with the class that saved them)"
                )
            _check_stored(archive)
            if (size := archive.getinfo(_HEADER).file_size) > LARGEST_JSON:
                raise zipfile.BadZipFile(f"{_HEADER} has {size:,} bytes, at most {LARGEST_JSON:,} are read")
            header = json.loads(archive.read(_HEADER))
            if not isinstance(header, dict) or header.get("format") != FORMAT:
                raise CheckpointError(f"{name} is not an rltransformers checkpoint: its header names another format")
            version = header.get("format_version")
            if version != FORMAT_VERSION:
                raise CheckpointError(
                    f"{name} has checkpoint format version {version}, this code reads {FORMAT_VERSION};"
                    f" it was written by rltransformers {header.get('code_version')}, load it with that version"
                )
            if not isinstance(header.get("settings"), dict) or "kind" not in header:
                raise CheckpointError(f"checkpoint {name} is corrupt: its header lacks kind or settings")
            return header, archive.read(_TENSORS)
    except CheckpointError:
        raise
    except _CORRUPT as error:
        raise CheckpointError(f"checkpoint {name} is corrupt or truncated ({one_line(error)})") from error
    except OSError as error:
        raise CheckpointError(f"checkpoint {name} cannot be read ({one_line(error)})") from error
