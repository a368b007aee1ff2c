"""The command ``export``: from a run folder or a checkpoint to a file, or a refusal that says what else to do."""

from pathlib import Path
from typing import Any

import gymnasium as gym
import pytest
import torch
from stable_baselines3.common.vec_env import DummyVecEnv, VecNormalize

from rltransformers.agents import DecisionTransformer, GTrXLPPO
from rltransformers.cli.main import main
from rltransformers.core.checkpoint import save_checkpoint
from rltransformers.export.reading import read_step
from rltransformers.policies.shipping import ActorCriticInFile
from rltransformers.training.normalization import scalings_of
from tests.data.coded import coded_episodes

BACKBONE = {"width": 8, "layers": 1, "heads": 2, "memory": 4}


@pytest.fixture(scope="module")
def run(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A folder with a run of Pendulum whose observations are normalized."""
    folder = tmp_path_factory.mktemp("run")
    env = VecNormalize(DummyVecEnv([lambda: gym.make("Pendulum-v1")]))
    settings: dict[str, Any] = {"n_steps": 16, "n_epochs": 1, "seed": 0, "device": "cpu"}
    model = GTrXLPPO("GTrXLPolicy", env, policy_kwargs={"backbone": BACKBONE}, **settings).learn(64)
    model.save(folder / "last.zip")
    (folder / "config.yaml").write_text(
        "agent: gtrxl_ppo\nenvironment: {id: Pendulum-v1}\ntrain: {total_timesteps: 64}\n"
    )
    return folder


@pytest.mark.slow
def test_a_run_folder_and_its_checkpoint_give_the_same_policy(
    run: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    assert main(["export", str(run), "--format", "pt2"]) == 0
    assert capsys.readouterr().out == f"{run / 'last.pt2'}\n"
    assert (
        main(["export", str(run / "last.zip"), "--format", "pt2", "--batch", "1", "--output", f"{tmp_path}/a.pt2"]) == 0
    )
    step = exported_step(run / "last.zip")
    inputs, state = step.examples(1)
    inputs["observation"] = torch.tensor([[1.0, 0.5, -3.0]])
    with torch.no_grad():
        expected = step(inputs, state)[0]["action"]
    for path in (run / "last.pt2", tmp_path / "a.pt2"):
        torch.testing.assert_close(torch.export.load(path).module()(inputs, state)[0]["action"], expected)


def exported_step(checkpoint: Path) -> ActorCriticInFile:
    """Of the agent in a checkpoint, which has no environment."""
    model = GTrXLPPO.load(checkpoint, device="cpu")
    return ActorCriticInFile(model.policy, *scalings_of(model._normalization())).eval()


def refused(capsys: pytest.CaptureFixture[str], *words: str) -> str:
    assert main(["export", *words]) == 2
    error = capsys.readouterr().err
    assert error.count("\n") == 1
    return error


def test_what_cannot_be_exported_is_refused_with_one_line(
    run: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    assert "tmp_nothing.zip" in refused(capsys, str(tmp_path / "tmp_nothing.zip"), "--format", "onnx")
    assert "not a run folder" in refused(capsys, str(tmp_path), "--format", "onnx")
    assert "must end in .onnx" in refused(capsys, str(run), "--format", "onnx", "--output", "policy.pt2")
    assert "--format" in refused(capsys, str(run))
    assert "--batch must be" in refused(capsys, str(run), "--format", "pt2", "--batch", "0")
    save_checkpoint(tmp_path / "other.zip", "VecNormalize", {}, {})
    assert "holds a VecNormalize" in refused(capsys, str(tmp_path / "other.zip"), "--format", "onnx")
    lstm = tmp_path / "lstm"
    lstm.mkdir()
    (lstm / "config.yaml").write_text(
        "agent: recurrent_ppo\nenvironment: {id: Pendulum-v1}\ntrain: {total_timesteps: 64}\n"
    )
    assert "every other agent can be exported" in refused(capsys, str(lstm), "--format", "onnx")
    assert not [path for path in run.iterdir() if path.suffix == ".onnx"]


@pytest.fixture(scope="module")
def recompute(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A checkpoint of a Decision Transformer whose acting mode cannot be written."""
    path = tmp_path_factory.mktemp("offline") / "model.zip"
    settings: dict[str, Any] = {"context_length": 4, "acting_mode": "recompute", "seed": 0, "device": "cpu"}
    backbone = {"width": 8, "layers": 1, "heads": 2}
    DecisionTransformer("DTPolicy", coded_episodes(), policy_kwargs={"backbone": backbone}, **settings).save(path)
    return path


@pytest.mark.parametrize("mode", ["refresh", "banded"])
def test_the_acting_mode_of_the_file_may_be_another_than_that_of_training(
    recompute: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str], mode: str
) -> None:
    words = (str(recompute), "--format", "pt2")
    assert "acting_mode" in refused(capsys, *words)
    assert main(["export", *words, "--acting-mode", mode, "--output", f"{tmp_path}/policy.pt2"]) == 0
    assert read_step(tmp_path / "policy.pt2").metadata["acting_mode"] == mode


def test_an_acting_mode_is_refused_where_it_means_nothing(
    run: Path, recompute: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    message = refused(capsys, str(run), "--format", "pt2", "--acting-mode", "refresh")
    assert "--acting-mode is a choice of Decision Transformers" in message and "GTrXLPPO" in message
    assert "--acting-mode" in refused(capsys, str(recompute), "--format", "pt2", "--acting-mode", "recompute")
