"""A policy from a file alone: train, evaluate, go on and export where no environment is named, or can be made."""

import json
import shutil
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
import yaml
from tensorboard.backend.event_processing.event_accumulator import EventAccumulator

from rltransformers.agents import DecisionTransformer
from rltransformers.cli.main import main
from rltransformers.cli.printing import print_validation
from rltransformers.cli.seeds import print_seeds, seeds_summary
from rltransformers.data import record
from rltransformers.training.offline.validation import ActionError, ValidationResult
from rltransformers.training.runs.callback import score
from rltransformers.training.runs.run_folder import RunFolder

CONFIG: dict[str, Any] = {
    "agent": "decision_transformer",
    "dataset": "data",
    "backbone": {"width": 8, "layers": 1, "heads": 2},
    "algorithm": {"context_length": 5, "batch_size": 4, "warmup_steps": 2, "validation": 0.25, "device": "cpu"},
    "train": {"gradient_steps": 6},
    "evaluation": {"every": 2},
}


@pytest.fixture(scope="module")
def recorded(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return record("CartPole-v1", "random", episodes=8, seed=0).save(tmp_path_factory.mktemp("recorded") / "data")


@pytest.fixture
def work(tmp_path: Path, recorded: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    monkeypatch.chdir(tmp_path)
    shutil.copytree(recorded, "data")
    Path("file.yaml").write_text(yaml.safe_dump(CONFIG))
    return tmp_path


def run(capsys: pytest.CaptureFixture[str], *words: str) -> tuple[str, str]:
    capsys.readouterr()
    code = main(words)
    out, err = capsys.readouterr()
    assert code == 0, err
    return out, err


def refused(capsys: pytest.CaptureFixture[str], *words: str) -> str:
    capsys.readouterr()
    assert main(words) == 2
    return capsys.readouterr().err


def weights(path: Path) -> dict[str, torch.Tensor]:
    return DecisionTransformer.load(path, device="cpu").policy.state_dict()


def test_a_file_is_enough_to_train_evaluate_and_export(work: Path, capsys: pytest.CaptureFixture[str]) -> None:
    out, err = run(capsys, "train", "file.yaml")
    assert "held-out episodes 2 (" in out and "one-step cloning" in out and "validation.json" in out
    assert "2 gradient steps: action loss" in err and "evaluation.json" not in out and "--episodes" not in out
    folder = RunFolder.open("runs/file-seed0")
    entries = folder.entries()
    assert [entry.step for entry in entries] == [2, 4, 6] and not any(entry.results for entry in entries)
    losses = [entry.validation.action_loss for entry in entries if entry.validation is not None]
    best = DecisionTransformer.load(folder.best, dataset="data", device="cpu")
    assert best.num_timesteps == [2, 4, 6][int(np.argmin(losses))]
    assert best.validate().action_loss == min(losses)
    header, *rows = folder.metrics.read_text().splitlines()
    place = header.split(",").index("eval/action_loss")
    logged = [float(row.split(",")[place]) for row in rows if row.split(",")[place]]
    assert logged == pytest.approx(losses)
    events = EventAccumulator(str(folder.path))
    events.Reload()
    assert [event.value for event in events.Scalars("eval/action_loss")] == pytest.approx(losses, rel=1e-6)
    assert {"eval/accuracy_action", "eval/accuracy_action_one_step", "eval/calibration_error"} <= {
        *events.Tags()["scalars"]
    }
    final = json.loads(folder.validation.read_text())
    assert final["action_loss"] == losses[-1] and folder.learning_curve.is_file()
    table, _ = run(capsys, "evaluate", str(folder.path))
    assert f"action loss       {losses[-1]:.4f}" in table and "accuracy of action" in table
    values = json.loads(run(capsys, "evaluate", str(folder.path), "--json")[0])
    assert values == {"results": [], "validation": final}
    assert run(capsys, "export", str(folder.path), "--format", "pt2")[0].strip().endswith("last.pt2")
    # A simulator that comes later is one option away.
    later, _ = run(capsys, "evaluate", str(folder.path), "--env", "CartPole-v1", "--episodes", "2")
    assert "return, mean" in later and "held-out episodes 2" in later


def test_a_run_that_goes_on_equals_one_that_never_stopped(work: Path, capsys: pytest.CaptureFixture[str]) -> None:
    run(capsys, "train", "file.yaml", "--name", "whole")
    run(capsys, "train", "file.yaml", "--name", "part", "--train.gradient_steps", "2")
    run(capsys, "train", "--resume", "runs/part", "--train.gradient_steps", "6")
    whole, part = RunFolder.open("runs/whole"), RunFolder.open("runs/part")
    assert whole.entries() == part.entries()
    for name in ("last", "best"):
        ours, theirs = weights(getattr(whole, name)), weights(getattr(part, name))
        assert all(torch.equal(value, theirs[key]) for key, value in ours.items())


def test_patience_ends_a_run_which_stays_ended(work: Path, capsys: pytest.CaptureFixture[str]) -> None:
    worse = ["--algorithm.learning_rate", "1.0", "--algorithm.max_grad_norm", "100", "--algorithm.warmup_steps", "0"]
    words = ["--evaluation.patience", "2", "--train.gradient_steps", "200"]
    _, err = run(capsys, "train", "file.yaml", "--name", "short", *worse, *words)
    folder = RunFolder.open("runs/short")
    entries, final = folder.entries(), folder.validation.read_bytes()
    losses = [entry.validation.action_loss for entry in entries if entry.validation is not None]
    assert int(np.argmin(losses)) == len(losses) - 3 and entries[-1].step == 2 * len(losses) < 200
    assert "no better evaluation in the last 2: training ends" in err and "resume the run with a larger one" in err
    before = folder.last.read_bytes()
    run(capsys, "train", "--resume", "runs/short")
    assert folder.entries() == entries and folder.validation.read_bytes() == final
    assert weights(folder.last).keys() and len(before) == folder.last.stat().st_size
    # Killed behind the checkpoint and before the evaluation that ends the run: it is made, and no update more.
    lines = folder.evaluations.read_text().splitlines(keepends=True)
    folder.evaluations.write_text("".join(lines[:-1]))
    run(capsys, "train", "--resume", "runs/short")
    assert folder.entries() == entries
    assert DecisionTransformer.load(folder.last, device="cpu").num_timesteps == entries[-1].step


def test_an_environment_that_cannot_be_made_leaves_the_held_out_episodes(
    work: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    Path("both.yaml").write_text(
        yaml.safe_dump(CONFIG | {"environment": {"id": "CartPole-v1"}, "evaluation": {"every": 3, "episodes": 2}})
    )
    out, _ = run(capsys, "train", "both.yaml")
    assert "return, mean" in out and "held-out episodes 2" in out
    folder = RunFolder.open("runs/both-seed0")
    means = [score(entry.results) for entry in folder.entries()]
    step = DecisionTransformer.load(folder.best, device="cpu").num_timesteps
    assert step == folder.entries()[int(np.argmax(means))].step  # the return decides where there is one
    values = yaml.safe_load(folder.config.read_text())
    folder.config.write_text(yaml.safe_dump(values | {"environment": {"id": "Gone-v7"}}))
    out, err = run(capsys, "evaluate", str(folder.path))
    assert "held-out episodes 2" in out and "return, mean" not in out
    assert "no episode is played: " in err and "Gone" in err
    assert "Gone" in refused(capsys, "evaluate", str(folder.path), "--episodes", "3")  # who asks is told
    folder.config.write_text(yaml.safe_dump(values))
    shutil.rmtree("data")
    out, err = run(capsys, "evaluate", str(folder.path))
    assert "return, mean" in out and "held-out" not in out and "no validation: " in err


def test_data_in_place_of_a_config_have_the_usual_settings(work: Path, capsys: pytest.CaptureFixture[str]) -> None:
    out, _ = run(capsys, "show", "--dataset.id", "data")
    values = yaml.safe_load(out)
    assert values["agent"] == "decision_transformer" and values["environment"] is None
    assert values["algorithm"] == {"validation": 0.1} and values["evaluation"]["every"]
    assert "agents that have it: decision_transformer" in refused(
        capsys, "train", "--dataset.id", "data", "--agent", "gtrxl_ppo"
    )
    assert "or --dataset.id alone" in refused(capsys, "train", "--seed", "1")


@pytest.mark.parametrize(
    ("words", "message"),
    [
        (["--algorithm.validation", "0"], "set algorithm.validation (0.1 is usual), or environment.id"),
        (["--evaluation.episodes", "3"], "evaluation.episodes is about episodes in an environment"),
        (["--evaluation.target_returns", "[3]"], "evaluation.target_returns is about episodes"),
        (["--environment.num_envs", "2"], "environment.num_envs is set, and environment.id is missing"),
        (["--online.timesteps", "9"], "environment.id is missing, in which online acts"),
        (["--dataset", "{collect: {episodes: 3}}"], "environment.id is missing, in which dataset.collect acts"),
        (["--evaluation.patience", "2", "--evaluation.every", "0"], "set evaluation.every, too"),
        (["--algorithm.validation", "1.0"], "algorithm.validation"),
    ],
)
def test_what_needs_an_environment_is_refused_without(
    work: Path, capsys: pytest.CaptureFixture[str], words: list[str], message: str
) -> None:
    assert message in refused(capsys, "train", "file.yaml", *words)
    assert not Path("runs").exists()


def test_other_agents_have_no_patience(work: Path, capsys: pytest.CaptureFixture[str]) -> None:
    words = ["--evaluation.patience", "2"]
    assert "is for agent decision_transformer" in refused(capsys, "show", "--env", "CartPole-v1", *words)
    online = ["--agent", "decision_transformer", "--dataset", "data", "--online.timesteps", "9"]
    assert "without online: leave it out" in refused(capsys, "show", "--env", "CartPole-v1", *online, *words)


def test_episodes_that_somebody_asks_to_see_need_an_environment(work: Path, capsys: pytest.CaptureFixture[str]) -> None:
    run(capsys, "train", "file.yaml", "--train.gradient_steps", "1")
    for words in (["--plot", "lookback"], ["--video", "films"]):
        assert "give --env ID" in refused(capsys, "evaluate", "runs/file-seed0", *words)
    assert "evaluation.episodes is about" in refused(capsys, "evaluate", "runs/file-seed0", "--episodes", "3")


def test_settings_that_change_the_loss_are_not_searched(work: Path, capsys: pytest.CaptureFixture[str]) -> None:
    for key in ("algorithm.validation", "algorithm.top_fraction"):
        message = refused(capsys, "tune", "file.yaml", "--search", f"{key}=0.1..0.5", "--trials", "1")
        assert f"{key} changes which loss that is" in message


def test_seeds_are_compared_by_their_loss(capsys: pytest.CaptureFixture[str]) -> None:
    runs = []
    for seed, loss in enumerate((0.5, 0.7)):
        result = ValidationResult(3, 2, 20, loss, (ActionError("action", "accuracy", 0.8, 0.5, 0.6),), {})
        runs.append({"seed": seed, "run": f"runs/{seed}", "results": [], "validation": result.to_dict()})
        assert score([], result) == -loss
    (summary,) = seeds_summary(runs)
    assert summary["action_loss_mean"] == pytest.approx(0.6) and summary["action_loss_least"] == 0.5
    print_seeds(runs)
    out = capsys.readouterr().out
    assert "2 seeds: action loss 0.600" in out and "action loss 0.7000" in out


def test_a_long_name_of_a_leaf_stands_apart_from_its_number(capsys: pytest.CaptureFixture[str]) -> None:
    error = ActionError("gripper.left", "accuracy", 0.5, 0.4, 0.3)
    print_validation(ValidationResult(0, 1, 5, 0.25, (error,), {"calibration_error_gripper.left": 0.125}))
    table = capsys.readouterr().out.splitlines()
    assert table[1:3] == [f"{'action loss':<31}0.2500", f"{'calibration error gripper.left':<31}0.125"]
