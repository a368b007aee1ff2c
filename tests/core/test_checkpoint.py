"""Checkpoints: round trip, atomic writing, and refusal of everything that is not a sound checkpoint of ours."""

import copy
import io
import json
import os
import pickle
import tracemalloc
import zipfile
from collections import OrderedDict
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch

from rltransformers import __version__
from rltransformers.core.checkpoint import (
    FORMAT,
    FORMAT_VERSION,
    load_checkpoint,
    restore_optimizer,
    save_checkpoint,
)
from rltransformers.core.errors import CheckpointError


def tensors() -> dict[str, Any]:
    layer = torch.nn.Linear(3, 2)
    optimizer = torch.optim.Adam(layer.parameters())
    layer(torch.ones(5, 3)).sum().backward()
    optimizer.step()
    return {
        "policy": OrderedDict(layer.state_dict()),
        "optimizer": optimizer.state_dict(),
        "generator": torch.Generator().manual_seed(3).get_state(),
        "counters": {"steps": 7, "best": np.float64(1.5), "name": "run", "none": None, "flag": True},
        "nested": [(torch.arange(4), 2.0), {1: torch.zeros(())}],
    }


def test_an_optimizer_goes_on_with_the_moments_and_the_learning_rate_that_were_stored() -> None:
    layers = [torch.nn.Linear(3, 2) for _ in range(2)]
    layers[1].load_state_dict(layers[0].state_dict())
    first = torch.optim.Adam(layers[0].parameters(), lr=0.3, betas=(0.8, 0.9))
    other = torch.optim.Adam(layers[1].parameters(), lr=0.001, betas=(0.8, 0.9), weight_decay=0.25)

    def update(layer: torch.nn.Linear, optimizer: torch.optim.Optimizer) -> None:
        optimizer.zero_grad()
        layer(torch.arange(15.0).view(5, 3)).square().sum().backward()
        optimizer.step()

    update(layers[0], first)
    restore_optimizer(other, copy.deepcopy(first.state_dict()))
    assert other.param_groups[0]["lr"] == 0.3
    assert other.param_groups[0]["weight_decay"] == 0.25  # a setting of the agent
    other.param_groups[0]["weight_decay"] = 0
    layers[1].load_state_dict(layers[0].state_dict())
    for layer, optimizer in zip(layers, (first, other), strict=True):
        update(layer, optimizer)
    assert_same(dict(layers[0].state_dict()), dict(layers[1].state_dict()))


def assert_same(a: Any, b: Any) -> None:
    if isinstance(a, torch.Tensor):
        torch.testing.assert_close(a, b, rtol=0, atol=0)
    elif isinstance(a, dict):
        assert list(a) == list(b)
        for key in a:
            assert_same(a[key], b[key])
    elif isinstance(a, list | tuple):
        assert type(a) is type(b) and len(a) == len(b)
        for x, y in zip(a, b, strict=True):
            assert_same(x, y)
    else:
        assert a == b


def rewrite(path: Path, **entries: bytes) -> None:
    """Replace entries (dots as __) of the zip at ``path``."""
    with zipfile.ZipFile(path) as archive:
        contents = {name: archive.read(name) for name in archive.namelist()}
    contents |= {name.replace("__", "."): content for name, content in entries.items()}
    with zipfile.ZipFile(path, "w") as archive:
        for name, content in contents.items():
            archive.writestr(name, content)


@pytest.fixture
def saved(tmp_path: Path) -> Path:
    save_checkpoint(tmp_path / "model", "GTrXLPPO", {"n_steps": 8}, tensors())
    return tmp_path / "model.zip"


def test_everything_comes_back_as_it_was_saved(tmp_path: Path) -> None:
    content = tensors()
    save_checkpoint(tmp_path / "deep" / "model", "GTrXLPPO", {"a": [1, None], "b": {"c": "x"}}, content)
    loaded = load_checkpoint(tmp_path / "deep" / "model", "GTrXLPPO")
    assert (loaded.kind, loaded.settings, loaded.code_version) == (
        "GTrXLPPO",
        {"a": [1, None], "b": {"c": "x"}},
        __version__,
    )
    assert_same(content, loaded.tensors)


def test_the_zip_extension_is_added_as_in_stable_baselines(tmp_path: Path) -> None:
    for name in ("model", "model.ckpt"):
        save_checkpoint(tmp_path / name, "A", {}, {})
    assert {path.name for path in tmp_path.iterdir()} == {"model.zip", "model.ckpt"}
    assert load_checkpoint(tmp_path / "model.zip").kind == load_checkpoint(str(tmp_path / "model")).kind == "A"


def test_a_slice_of_a_large_tensor_does_not_save_the_large_tensor(tmp_path: Path) -> None:
    save_checkpoint(tmp_path / "model.zip", "A", {}, {"row": torch.zeros(1000, 1000)[3, :5]})
    assert (tmp_path / "model.zip").stat().st_size < 20_000


def test_a_missing_file_is_named(tmp_path: Path) -> None:
    with pytest.raises(CheckpointError, match=r"nowhere.*does not exist"):
        load_checkpoint(tmp_path / "nowhere")


@pytest.mark.parametrize("length", [253, 300])
def test_a_name_longer_than_file_systems_take_is_refused(tmp_path: Path, length: int) -> None:
    with pytest.raises(
        CheckpointError, match=r"cannot read checkpoint .*xx(\.zip)?: File name too long; choose a shorter name"
    ):
        load_checkpoint(tmp_path / ("x" * length))


def test_a_folder_is_not_a_checkpoint(tmp_path: Path) -> None:
    with pytest.raises(CheckpointError, match="is a folder"):
        load_checkpoint(tmp_path)


@pytest.mark.parametrize("keep", [0, 10, 0.5, 0.99])
def test_a_truncated_file_is_named_as_such(saved: Path, keep: float) -> None:
    content = saved.read_bytes()
    saved.write_bytes(content[: keep if isinstance(keep, int) else int(len(content) * keep)])
    with pytest.raises(CheckpointError, match=r"model\.zip is corrupt or truncated"):
        load_checkpoint(saved)


def test_one_flipped_bit_in_the_tensors_is_found(saved: Path) -> None:
    content = bytearray(saved.read_bytes())
    content[len(content) // 2] ^= 1
    saved.write_bytes(bytes(content))
    with pytest.raises(CheckpointError, match=r"corrupt or truncated"):
        load_checkpoint(saved)


def test_another_agent_is_refused_with_the_class_to_use(saved: Path) -> None:
    with pytest.raises(CheckpointError, match=r"is a GTrXLPPO checkpoint; load it with GTrXLPPO\.load"):
        load_checkpoint(saved, "DecisionTransformer")


def test_another_format_version_is_refused(saved: Path) -> None:
    header = {
        "format": FORMAT,
        "format_version": FORMAT_VERSION + 1,
        "code_version": "9.9",
        "kind": "A",
        "settings": {},
    }
    rewrite(saved, header__json=json.dumps(header).encode())
    with pytest.raises(CheckpointError, match=r"format version 3, this code reads 2.*rltransformers 9\.9"):
        load_checkpoint(saved)


def test_a_zip_of_something_else_is_refused(tmp_path: Path) -> None:
    with zipfile.ZipFile(tmp_path / "sb3.zip", "w") as archive:
        archive.writestr("data", "{}")
    with pytest.raises(CheckpointError, match="not an rltransformers checkpoint"):
        load_checkpoint(tmp_path / "sb3.zip")


class Payload:
    """Runs a command when unpickled."""

    def __init__(self, marker: Path) -> None:
        self.marker = marker

    def __reduce__(self) -> tuple[Any, tuple[str]]:
        return os.system, (f"touch {self.marker}",)


@pytest.mark.parametrize("form", ["plain pickle", "torch pickle"])
def test_code_in_a_checkpoint_is_refused_and_never_runs(saved: Path, tmp_path: Path, form: str) -> None:
    marker = tmp_path / "owned"
    buffer = io.BytesIO()
    if form == "plain pickle":
        pickle.dump(Payload(marker), buffer, protocol=2)  # the one torch reads without a warning
    else:
        torch.save({"policy": Payload(marker)}, buffer)
    rewrite(saved, tensors__pt=buffer.getvalue())
    with pytest.raises(CheckpointError, match="would run code"):
        load_checkpoint(saved)
    assert not marker.exists()


def retold(payload: bytes, name: str, content: Callable[[bytes], bytes], compress: bool = False) -> bytes:
    """The file of ``torch.save`` with another entry ``name``."""
    buffer = io.BytesIO()
    with zipfile.ZipFile(io.BytesIO(payload)) as archive, zipfile.ZipFile(buffer, "w") as changed:
        for entry in archive.infolist():
            held = archive.read(entry)
            if entry.filename.endswith(name):
                kind = zipfile.ZIP_DEFLATED if compress else zipfile.ZIP_STORED
                changed.writestr(entry.filename, content(held), kind)
            else:
                changed.writestr(entry.filename, held)
    return buffer.getvalue()


def saved_tensor(tensor: torch.Tensor) -> bytes:
    buffer = io.BytesIO()
    torch.save({"x": tensor}, buffer)
    return buffer.getvalue()


NUMBERS = saved_tensor(torch.arange(1000, 1024))
SIZES = {
    "more numbers than are stored": retold(NUMBERS, "data.pkl", lambda p: p.replace(b"K\x18t", b"M\xff\x7ft")),
    "fewer bytes than its numbers": retold(NUMBERS, "data/0", lambda p: p[:16]),
    "a size beyond its storage": retold(NUMBERS, "data.pkl", lambda p: p.replace(b"K\x18\x85", b"M\xff\x7f\x85")),
    "a place beyond its storage": retold(
        NUMBERS, "data.pkl", lambda p: p.replace(b"K\x00K\x18\x85", b"K\x01K\x18\x85")
    ),
    "a number spread over terabytes": saved_tensor(torch.zeros(1).expand(10**12)),
    "more 16-bit numbers than are stored": retold(
        saved_tensor(torch.arange(24).to(torch.uint16)), "data.pkl", lambda p: p.replace(b"K\x18\x85", b"K\x19\x85")
    ),
    "a compressed record": retold(saved_tensor(torch.zeros(10**6)), "data/0", lambda p: p, compress=True),
}


@pytest.mark.parametrize("dtype", [torch.uint8, torch.uint16, torch.uint32, torch.uint64, torch.float16, torch.bool])
def test_numbers_of_every_type_come_back(tmp_path: Path, dtype: torch.dtype) -> None:
    values = {"x": torch.arange(24).reshape(4, 6).to(dtype), "none": torch.zeros(0, 3, dtype=dtype)}
    save_checkpoint(tmp_path / "numbers", "A", {}, values)
    found = load_checkpoint(tmp_path / "numbers.zip").tensors
    assert all(torch.equal(found[name], value) and found[name].dtype == dtype for name, value in values.items())


@pytest.mark.parametrize("what", SIZES)
def test_sizes_that_a_file_states_are_checked_before_they_are_believed(saved: Path, what: str) -> None:
    assert SIZES[what] != NUMBERS
    rewrite(saved, tensors__pt=SIZES[what])
    with pytest.raises(CheckpointError, match="refused: its tensors are corrupt"):
        load_checkpoint(saved)


def test_a_checkpoint_in_an_open_file_may_stand_behind_other_bytes(tmp_path: Path) -> None:
    with (tmp_path / "several").open("w+b") as file:
        file.write(b"before it")
        save_checkpoint(file, "Agent", {"width": 3}, {"x": torch.arange(3)})
        file.seek(9)
        assert load_checkpoint(file).settings == {"width": 3}
        file.seek(3)
        with pytest.raises(CheckpointError, match="does not start where its directory says"):
            load_checkpoint(file)


@pytest.mark.parametrize("name", ["", ".", "/"])
def test_a_checkpoint_needs_a_name(name: str) -> None:
    with pytest.raises(CheckpointError, match=r"is no name of a file; give one"):
        save_checkpoint(name, "Agent", {}, {})


def test_objects_that_torch_would_build_and_we_never_save_are_refused(saved: Path) -> None:
    class Room:
        def __reduce__(self) -> tuple[Any, tuple[int]]:
            return bytearray, (10**9,)

    buffer = io.BytesIO()
    torch.save({"x": Room()}, buffer)
    rewrite(saved, tensors__pt=buffer.getvalue())
    with pytest.raises(CheckpointError, match=r"refused.*bytearray"):
        load_checkpoint(saved)


def header(**changes: Any) -> bytes:
    values = {"format": FORMAT, "format_version": FORMAT_VERSION, "code_version": "1", "kind": "A", "settings": {}}
    return json.dumps(values | changes).encode()


@pytest.mark.parametrize(
    "content",
    [
        b"[" * 100_000,
        header(code_version=0)[:-1] + b', "x": ' + b"9" * 5000 + b"}",
        b"\xff\xfe",
        header() + b" " * 2**24,
    ],
    ids=["nested", "a number of 5000 digits", "no text", "too long"],
)
def test_a_header_made_to_do_harm_is_refused(saved: Path, content: bytes) -> None:
    rewrite(saved, header__json=content)
    with pytest.raises(CheckpointError, match=r"model\.zip is corrupt or truncated"):
        load_checkpoint(saved)


def test_a_header_that_inflates_is_refused(tmp_path: Path) -> None:
    with zipfile.ZipFile(tmp_path / "bomb.zip", "w", zipfile.ZIP_DEFLATED) as archive:
        archive.writestr("header.json", header() + b" " * 10**7)
        archive.writestr("tensors.pt", b"")
    with pytest.raises(CheckpointError, match=r"header\.json is compressed, ours never are"):
        load_checkpoint(tmp_path / "bomb.zip")


def test_an_entry_that_is_there_twice_is_refused(saved: Path) -> None:
    with zipfile.ZipFile(saved, "a") as archive:
        archive.writestr("Header.json", header())
    with pytest.raises(CheckpointError, match=r"holds header\.json 2 times"):
        load_checkpoint(saved)


@pytest.mark.parametrize("value", [object(), np.zeros(3), {3.5: 1}])
def test_a_value_that_would_not_load_safely_is_refused_when_saving(tmp_path: Path, value: object) -> None:
    with pytest.raises(CheckpointError, match=r"cannot save A\.inner\.x"):
        save_checkpoint(tmp_path / "model", "A", {}, {"inner": {"x": value}})
    with pytest.raises(CheckpointError, match="JSON"):
        save_checkpoint(tmp_path / "model", "A", {"x": object()}, {})


@pytest.mark.parametrize(
    ("error", "message"),
    [
        (MemoryError(), r"cannot write checkpoint .*model\.zip of A: there is not enough memory for it; free some"),
        (RuntimeError("no\nroom"), r"cannot write checkpoint .*model\.zip of A: no room; free some memory, or save"),
        (OSError(28, "No space left on device"), r"cannot write checkpoint .*model\.zip: No space left .*; free some"),
    ],
)
@pytest.mark.parametrize("entry", ["header.json", "tensors.pt"])
def test_what_stops_the_writing_is_named_and_the_old_file_stays(
    saved: Path, monkeypatch: pytest.MonkeyPatch, error: Exception, message: str, entry: str
) -> None:
    """In the middle of the tensors, too, where torch says of any error that it miscounted."""
    before, write = saved.read_bytes(), zipfile._ZipWriteFile.write  # type: ignore[attr-defined]

    def full(self: Any, content: Any) -> int:
        if self._zinfo.filename == entry and (self._file_size > 100 or entry == "header.json"):
            raise error
        return int(write(self, content))

    monkeypatch.setattr(zipfile._ZipWriteFile, "write", full)  # type: ignore[attr-defined]
    with pytest.raises(CheckpointError, match=message):
        save_checkpoint(saved, "A", {}, {"big": torch.ones(1000)})
    assert saved.read_bytes() == before and os.listdir(saved.parent) == ["model.zip"]


def test_tensors_are_written_from_where_they_lie(tmp_path: Path) -> None:
    """Not by way of a copy of them all in Python's memory: a replay may fill most of a machine."""
    content = {"large": torch.arange(2**20), "small": torch.ones(3)}  # 8 MiB
    with open(tmp_path / "other.zip", "wb") as file:
        for target in (tmp_path / "model.zip", file):
            tracemalloc.start()
            save_checkpoint(target, "A", {}, content)
            _, most = tracemalloc.get_traced_memory()
            tracemalloc.stop()
            assert most < 2**20
    for name in ("model.zip", "other.zip"):
        assert_same(content, load_checkpoint(tmp_path / name).tensors)


def test_a_crash_while_writing_leaves_the_old_checkpoint_and_no_litter(
    saved: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    before = saved.read_bytes()

    def crash(descriptor: int) -> None:
        raise OSError("disk full")

    monkeypatch.setattr(os, "fsync", crash)
    with pytest.raises(CheckpointError, match="disk full"):
        save_checkpoint(saved, "GTrXLPPO", {}, {"big": torch.ones(1000)})
    assert saved.read_bytes() == before
    assert os.listdir(saved.parent) == ["model.zip"]
