"""Files of a step: equal to eager for a thousand steps, named, whole or absent, and readable without this package."""

import json
import subprocess
import sys
import zipfile
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from torch import nn

from rltransformers.core.errors import ConfigError, MissingExtraError
from rltransformers.export.files import METADATA, write_step
from rltransformers.export.step import Tensors
from tests.export.laws import Run, assert_runs_equal, cloned, run_of
from tests.export.steps import SHARED, ToyStep, toy, toy_inputs, toy_state
from tests.export.test_step import Sum, examples


def eager_run(module: ToyStep, batch: int, steps: int) -> Run:
    return run_of(module, lambda generator: toy_inputs(batch, generator), toy_state(batch), steps)


def write_toy(path: Path, **settings: Any) -> ToyStep:
    module = toy()
    write_step(module, path, toy_inputs(4, torch.Generator()), toy_state(4), shared=SHARED, **settings)
    return module


PT2_CLIENT = """
import json, sys, torch
extra = {"rltransformers.json": ""}
program = torch.export.load(sys.argv[1], extra_files=extra).module()
calls, state = torch.load(sys.argv[2])
run = []
with torch.no_grad():
    for inputs in calls:
        outputs, state = program(inputs, state)
        run.append((outputs, state))
torch.save(run, sys.argv[3])
assert "rltransformers" not in sys.modules
print(sorted(json.loads(extra["rltransformers.json"])))
"""


@pytest.mark.slow
def test_a_process_without_this_package_takes_a_thousand_equal_steps_from_a_pt2_file(tmp_path: Path) -> None:
    module = write_toy(tmp_path / "step.pt2", metadata={"run": 7})
    generator = torch.Generator().manual_seed(1000)
    calls = [toy_inputs(3, generator) for _ in range(1000)]
    torch.save((calls, toy_state(3)), tmp_path / "calls.pt")
    files = [str(tmp_path / name) for name in ("step.pt2", "calls.pt", "run.pt")]
    command = [sys.executable, "-I", "-c", PT2_CLIENT, *files]
    client = subprocess.run(command, capture_output=True, text=True, timeout=300)
    assert client.stdout == "['inputs', 'metadata', 'outputs', 'state', 'versions']\n", client.stderr
    assert_runs_equal(torch.load(tmp_path / "run.pt"), eager_run(module, 3, 1000), tolerance=1e-6)


@pytest.mark.slow
@pytest.mark.parametrize("batch", [1, 3])
def test_an_onnx_file_takes_a_thousand_equal_steps(tmp_path: Path, onnx_file: tuple[Path, ToyStep], batch: int) -> None:
    path, module = onnx_file
    step = onnx_step(path)
    run = run_of(step, lambda generator: toy_inputs(batch, generator), toy_state(batch), 1000)
    assert_runs_equal(run, eager_run(module, batch, 1000), tolerance=1e-5)


@pytest.fixture(scope="module")
def onnx_file(tmp_path_factory: pytest.TempPathFactory) -> tuple[Path, ToyStep]:
    path = tmp_path_factory.mktemp("files") / "step.onnx"
    return path, write_toy(path, metadata={"run": "é"})


@pytest.mark.slow
def test_files_hold_no_paths_of_the_machine_that_wrote_them(tmp_path: Path, onnx_file: tuple[Path, ToyStep]) -> None:
    """Nor of the temporary file, so that the same step gives the same bytes."""
    module = write_toy(tmp_path / "step.pt2")
    write_step(module, tmp_path / "other.pt2", toy_inputs(4, torch.Generator()), toy_state(4), shared=SHARED)
    assert (tmp_path / "step.pt2").read_bytes() == (tmp_path / "other.pt2").read_bytes()
    with zipfile.ZipFile(tmp_path / "step.pt2") as archive:
        parts = {name: archive.read(name) for name in archive.namelist()}
    assert len(parts) > 5
    for name, content in {**parts, "step.onnx": onnx_file[0].read_bytes()}.items():
        for path in (Path(__file__).parents[2], Path(torch.__path__[0])):
            assert str(path).encode() not in content, f"{name}: {path}"


def onnx_step(path: Path) -> Callable[[Tensors, Tensors], tuple[Tensors, Tensors]]:
    """A step that an ONNX runtime takes."""
    session = onnx_session(path)
    names = [value.name for value in session.get_outputs()]

    def step(inputs: Tensors, state: Tensors) -> tuple[Tensors, Tensors]:
        feed = inputs | {f"state.{name}": tensor for name, tensor in state.items()}
        results = session.run(names, {name: tensor.numpy() for name, tensor in feed.items()})
        fetched = {name: torch.from_numpy(np.array(result)) for name, result in zip(names, results, strict=True)}
        new_state = {name.removeprefix("next."): fetched.pop(name) for name in names if name.startswith("next.")}
        return fetched, new_state

    return step


def onnx_session(path: Path) -> Any:
    import onnxruntime

    options = onnxruntime.SessionOptions()
    options.intra_op_num_threads = 1
    return onnxruntime.InferenceSession(path, options, providers=["CPUExecutionProvider"])


@pytest.mark.slow
def test_tensors_of_an_onnx_file_have_stable_names_and_its_properties_say_what_they_are(
    onnx_file: tuple[Path, ToyStep],
) -> None:
    session = onnx_session(onnx_file[0])
    state = sorted(toy_state(1))
    inputs = {value.name: value.shape for value in session.get_inputs()}
    outputs = {value.name: value.shape for value in session.get_outputs()}
    assert list(inputs) == ["bias", "first", "noise", "observation", *(f"state.{name}" for name in state)]
    assert list(outputs) == [*(["action", "log_probability", "position", "value"]), *(f"next.{name}" for name in state)]
    assert inputs["bias"] == [4] and inputs["noise"] == ["batch", 4] and inputs["state.clock"] == []
    assert outputs["next.keys0"] == ["batch", 65, 64] == inputs["state.keys0"]
    about = json.loads(session.get_modelmeta().custom_metadata_map[METADATA])
    assert about["metadata"] == {"run": "é"}
    assert about["state"]["keys0"] == {"dtype": "float32", "shape": ["batch", 65, 64]}
    assert about["outputs"]["action"] == {"dtype": "int64", "shape": ["batch"]}
    assert about["versions"]["torch"] == torch.__version__


@pytest.mark.parametrize("name", ["sum.pt2", "sum.onnx"])
def test_writing_prints_nothing_and_leaves_one_file_and_eager_mode_as_they_were(
    tmp_path: Path, capfd: pytest.CaptureFixture[str], name: str
) -> None:
    module, (inputs, state) = Sum().eval(), examples()
    before = cloned(module(inputs, state)[0])
    write_step(module, tmp_path / name, inputs, state)
    assert capfd.readouterr() == ("", "")
    assert [each.name for each in tmp_path.iterdir()] == [name]
    torch.testing.assert_close(module(inputs, state)[0], before, rtol=0, atol=0)


def test_names_of_outputs_may_be_those_that_torch_gives_to_values_inside(tmp_path: Path) -> None:
    def more(module: nn.Module, inputs: Tensors, state: Tensors, outputs: Tensors, new: Tensors) -> None:
        outputs |= {"mul": new["sum"] - 1, "add": new["sum"] * 2, "sub": inputs["x"], "val_0": new["sum"] % 3}

    module, (inputs, state) = Sum(more).eval(), examples()
    write_step(module, tmp_path / "sum.onnx", inputs, state)
    outputs, new_state = onnx_step(tmp_path / "sum.onnx")(inputs, state)
    assert_runs_equal([(outputs, new_state)], [module(inputs, state)], tolerance=1e-6)


def test_a_file_keeps_the_weights_it_was_written_with(tmp_path: Path) -> None:
    module, (inputs, state) = Sum().eval(), examples()
    write_step(module, tmp_path / "sum.pt2", inputs, state, batch=4)
    with torch.no_grad():
        module.scale.mul_(3)
    program = torch.export.load(tmp_path / "sum.pt2").module()
    torch.testing.assert_close(program(inputs, state)[0]["mean"], inputs["x"])


@pytest.mark.parametrize("name", ["sum.pt2", "sum.onnx"])
@pytest.mark.parametrize(
    ("settings", "message"),
    [
        ({"batch": 0}, r"batch must be a whole number in \[1, 65536\]"),
        ({"batch": 10**9}, r"batch must be a whole number in \[1, 65536\]"),
        ({"metadata": {"array": np.zeros(3)}}, "what JSON can hold"),
        ({"metadata": {"score": float("nan")}}, "what JSON can hold"),
        ({"shared": ["y"]}, "does not take: y"),
    ],
)
def test_what_cannot_be_written_is_refused_and_leaves_the_old_file(
    tmp_path: Path, name: str, settings: dict[str, Any], message: str
) -> None:
    path = tmp_path / name
    path.write_text("old")
    with pytest.raises(ConfigError, match=message):
        write_step(Sum().eval(), path, *examples(), **settings)
    assert [each.read_text() for each in tmp_path.iterdir()] == ["old"]


@pytest.mark.parametrize("name", ["sum", "sum.pt", "sum.onnx.gz"])
def test_a_file_says_what_it_is_by_its_ending(tmp_path: Path, name: str) -> None:
    with pytest.raises(ConfigError, match=f"'{name}' must end in"):
        write_step(Sum().eval(), tmp_path / name, *examples())


def test_without_onnx_the_extra_is_named(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    for name in ("onnx", "onnxscript"):
        monkeypatch.setitem(sys.modules, name, None)
    with pytest.raises(MissingExtraError, match=r"pip install 'rltransformers\[export\]'"):
        write_step(Sum().eval(), tmp_path / "sum.onnx", *examples())
    assert not list(tmp_path.iterdir())


class Streams(nn.Module):
    """Two streams of every row side by side in one longer batch, as acting in two caches has them."""

    def __init__(self) -> None:
        super().__init__()
        self.norm, self.linear = nn.LayerNorm(4), nn.Linear(4, 4)

    def forward(self, inputs: Tensors, state: Tensors) -> tuple[Tensors, Tensors]:
        rows = inputs["x"].repeat_interleave(2, 0)
        before = state["sum"].flatten(0, 1)
        for _ in range(3):
            rows = self.norm(rows + self.linear(rows))
        clock = (state["clock"] + 1).flatten().view(inputs["x"].shape[0], -1)  # 2 a row, which a trace does not see
        return {"y": rows.unflatten(0, (-1, 2))[:, 0]}, {"sum": (before + rows).unflatten(0, (-1, 2)), "clock": clock}


@pytest.mark.slow
def test_sizes_inside_that_are_multiples_of_the_batch_do_not_bear_its_name(tmp_path: Path) -> None:
    module = Streams().eval()
    zeros = {"sum": torch.zeros(2, 2, 4), "clock": torch.zeros(2, 2)}
    write_step(module, tmp_path / "step.onnx", {"x": torch.zeros(2, 4)}, zeros)
    import onnx

    graph = onnx.load(tmp_path / "step.onnx").graph
    axes = {
        value.name: [axis.dim_param or axis.dim_value for axis in value.type.tensor_type.shape.dim]
        for value in [*graph.input, *graph.output, *graph.value_info]
    }
    inside = {name for name, sizes in axes.items() if not name.startswith(("x", "y", "state.", "next."))}
    names = {size for name in inside for size in axes[name] if isinstance(size, str)}
    assert "batch" in names and len(names) > 1
    states = {"sum": ["batch", 2, 4], "clock": ["batch", 2]}
    outside = {"x": ["batch", 4], "y": ["batch", 4]}
    outside |= {f"{when}.{name}": sizes for name, sizes in states.items() for when in ("state", "next")}
    assert {name: axes[name] for name in axes.keys() - inside} == outside
    for batch in (1, 3):
        inputs, state = {"x": torch.randn(batch, 4)}, {"sum": torch.randn(batch, 2, 4), "clock": torch.ones(batch, 2)}
        with torch.no_grad():
            expected = module(inputs, state)
        assert_runs_equal([onnx_step(tmp_path / "step.onnx")(inputs, state)], [expected], tolerance=1e-5)
