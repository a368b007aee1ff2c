"""Runs logged to trackers of others: what goes there, that a resumed run goes on, that a missing one is said."""

import sys
from pathlib import Path
from typing import Any

import pytest
import yaml
from tensorboard.backend.event_processing.event_accumulator import EventAccumulator
from tensorboard.plugins.custom_scalar import layout_pb2

from rltransformers.cli.main import main
from rltransformers.training.runs import trackers
from rltransformers.training.runs.run_card import CHARTS

CONFIG = {
    "agent": "ppo", "environment": {"id": "CartPole-v1", "num_envs": 2},
    "algorithm": {"n_steps": 8, "batch_size": 16, "n_epochs": 1, "device": "cpu"},
    "train": {"total_timesteps": 32}, "evaluation": {"episodes": 2, "every": 16},
}  # fmt: skip


@pytest.fixture
def config(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    monkeypatch.chdir(tmp_path)
    path = tmp_path / "short.yaml"
    path.write_text(yaml.safe_dump(CONFIG))
    return path


def test_numbers_go_to_the_tracker_and_a_resumed_run_goes_on_there(
    config: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    begun: list[str | None] = []
    logged: list[tuple[int, dict[str, float]]] = []

    class Noted(trackers._Tracker):
        def begin(self, folder: Path, settings: Any, identity: str | None) -> str:
            begun.append(identity)
            assert folder.name == "short-seed0" and settings["algorithm.n_steps"] == 8
            return identity or "first"

        def log(self, numbers: dict[str, float], step: int) -> None:
            logged.append((step, numbers))

        def close(self) -> None:
            begun.append("closed")

    monkeypatch.setitem(trackers.TRACKERS, "wandb", Noted)
    monkeypatch.setitem(sys.modules, "wandb", sys)
    assert main(["train", str(config), "--tracker", "wandb"]) == 0
    assert main(["train", "--resume", "runs/short-seed0", "--train.total_timesteps", "64", "--trust"]) == 0
    assert begun == [None, "closed", "first", "closed"]
    known = {step: {key for at, numbers in logged if at == step for key in numbers} for step, _ in logged}
    assert {16, 32, 48, 64} <= set(known) and all("eval/mean_reward" in known[step] for step in (16, 32, 48, 64))
    assert all(type(value) is float for _, numbers in logged for value in numbers.values())


def test_a_tracker_that_takes_no_metrics_costs_no_run(
    config: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    class Full(trackers._Tracker):
        def begin(self, folder: Path, settings: Any, identity: str | None) -> str:
            return "first"

        def log(self, numbers: dict[str, float], step: int) -> None:
            raise RuntimeError("no room")

        def close(self) -> None: ...

    monkeypatch.setitem(trackers.TRACKERS, "wandb", Full)
    monkeypatch.setitem(sys.modules, "wandb", sys)
    with pytest.warns(UserWarning, match="full did not take metrics: RuntimeError: no room; the run goes on"):
        assert main(["train", str(config), "--tracker", "wandb"]) == 0


def test_names_are_such_as_mlflow_takes() -> None:
    assert trackers._plain("eval/rmse_torque [N]") == "eval/rmse_torque _N_"
    assert trackers._plain("eval/return_mean_target_1e+06") == "eval/return_mean_target_1e_06"
    assert trackers._plain("train/value loss: 1.5-x") == "train/value loss: 1.5-x"


def test_a_tracker_that_is_missing_or_does_not_begin_is_said(
    config: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.setitem(sys.modules, "mlflow", None)
    assert main(["train", str(config), "--tracker", "mlflow"]) == 2
    assert "mlflow is " in capsys.readouterr().err
    assert not Path("runs").exists(), "said before a run folder is made"

    class Closed(trackers._Tracker):
        def begin(self, folder: Path, settings: Any, identity: str | None) -> str:
            raise RuntimeError("no account")

        def log(self, numbers: dict[str, float], step: int) -> None:
            raise AssertionError("it never began")

    monkeypatch.setitem(trackers.TRACKERS, "wandb", Closed)
    monkeypatch.setitem(sys.modules, "wandb", sys)
    assert main(["train", str(config), "--tracker", "wandb"]) == 2
    assert (
        "tracker wandb does not begin: RuntimeError: no account; log in, or set WANDB_MODE=offline"
        in capsys.readouterr().err
    )
    assert main(["train", str(config), "--tracker", "tensorbord"]) == 2
    assert not list(Path("runs").iterdir()), "nothing is left of a run that did not begin"

    assert main(["train", str(config), "--name", "done"]) == 0
    run = Path("runs/done")
    before = {path.name: path.read_bytes() for path in run.iterdir()}
    words = ["train", "--resume", str(run), "--train.total_timesteps", "64", "--tracker", "wandb", "--trust"]
    assert main(words) == 2
    assert {path.name: path.read_bytes() for path in run.iterdir()} == before, "a resumed run is left as it was"


def test_tensorboard_groups_curves_in_charts(config: Path) -> None:
    assert main(["train", str(config)]) == 0
    events = EventAccumulator("runs/short-seed0")
    events.Reload()
    text = events.Tensors("custom_scalars__config__")[0].tensor_proto.string_val[0]
    layout = layout_pb2.Layout.FromString(text)
    found = {
        group.title: {chart.title: list(chart.multiline.tag) for chart in group.chart} for group in layout.category
    }
    assert {group: list(charts) for group, charts in found.items()} == {
        group: list(charts) for group, charts in CHARTS.items()
    }
    assert found["return"]["return"] == ["^rollout/ep_rew_mean$", "^eval/mean_reward$"]


@pytest.mark.third_party
def test_weights_and_biases_gets_a_run(config: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    pytest.importorskip("wandb")
    monkeypatch.setenv("WANDB_MODE", "offline")
    assert main(["train", str(config), "--tracker", "wandb"]) == 0
    assert main(["train", "--resume", "runs/short-seed0", "--train.total_timesteps", "64", "--trust"]) == 0
    runs = list(Path("runs/short-seed0/wandb").glob("offline-run-*/*.wandb"))
    identity = Path("runs/short-seed0/wandb_id.txt").read_text().strip()
    assert len(runs) == 2 and all(identity in run.name for run in runs)
    assert all(b"eval/mean_reward" in run.read_bytes() for run in runs)


@pytest.mark.third_party
@pytest.mark.filterwarnings("ignore")  # of SQLAlchemy, which it calls in an older way
def test_mlflow_gets_a_run(config: Path, monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    mlflow = pytest.importorskip("mlflow")
    monkeypatch.setenv("MLFLOW_TRACKING_URI", f"sqlite:///{tmp_path}/mlflow.db")
    monkeypatch.setenv("MLFLOW_EXPERIMENT_NAME", "memory")
    assert main(["train", str(config), "--tracker", "mlflow"]) == 0
    assert main(["train", "--resume", "runs/short-seed0", "--train.total_timesteps", "64", "--trust"]) == 0
    client = mlflow.MlflowClient()
    run = client.get_run(Path("runs/short-seed0/mlflow_id.txt").read_text().strip())
    assert (
        run.info.run_name == "short-seed0"
        and run.data.params["algorithm.n_steps"] == "8"
        and run.info.status == "FINISHED"
    )
    steps = [metric.step for metric in client.get_metric_history(run.info.run_id, "eval/mean_reward")]
    assert sorted(set(steps)) == [16, 32, 48, 64]
