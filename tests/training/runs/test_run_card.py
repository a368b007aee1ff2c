"""What TensorBoard shows of a run besides its curves."""

from pathlib import Path
from typing import Any

import pytest
import yaml
from stable_baselines3.common.logger import Logger, TensorBoardOutputFormat, configure
from tensorboard.backend.event_processing.event_accumulator import EventAccumulator

from rltransformers.agents import DecisionTransformer, GTrXLDQN, GTrXLPPO, GTrXLVMPO
from rltransformers.cli.main import main
from rltransformers.data import record
from rltransformers.envs import make_vec_env
from rltransformers.training.runs.run_card import METRICS, write_run_card

BACKBONE = {"width": 8, "layers": 1, "heads": 2, "memory": 4}


def card_of(folder: Path) -> tuple[str, bytes]:
    """The text of the one card in a folder of TensorBoard, and its hyperparameters as bytes of a message."""
    events = EventAccumulator(str(folder))
    events.Reload()
    (tag,) = [tag for tag in events.Tags()["tensors"] if tag.startswith("config")]
    (text,) = events.Tensors(tag)
    content: bytes = events.summary_metadata["_hparams_/session_start_info"].plugin_data.content
    return text.tensor_proto.string_val[0].decode(), content


def learn(name: str, log: str | None) -> tuple[Any, int]:
    """A new agent and the steps of one short training."""
    if name == "DecisionTransformer":
        walks = record("rltransformers/KeyToDoor-v0", "random", episodes=4, num_envs=4, seed=0)
        backbone = {"preset": "decision_transformer", "width": 8, "layers": 1, "heads": 1}
        keywords: dict[str, Any] = {"policy_kwargs": {"backbone": backbone}, "batch_size": 2, "context_length": 3}
        return DecisionTransformer("DTPolicy", walks, seed=5, tensorboard_log=log, **keywords), 1
    env = make_vec_env("rltransformers/CueRecall-v0", 2, seed=0)
    keywords = {"policy_kwargs": {"backbone": {"preset": "gtrxl", **BACKBONE}}, "seed": 5, "tensorboard_log": log}
    if name == "GTrXLDQN":
        replay: dict[str, Any] = {"segment_length": 4, "batch_size": 2, "buffer_size": 200, "learning_starts": 9}
        return GTrXLDQN("GTrXLQPolicy", env, **replay, **keywords), 8
    kind: Any = {"GTrXLPPO": GTrXLPPO, "GTrXLVMPO": GTrXLVMPO}[name]
    return kind("GTrXLPolicy", env, n_steps=8, **keywords), 16


@pytest.mark.parametrize("name", ["GTrXLPPO", "GTrXLVMPO", "GTrXLDQN", "DecisionTransformer"])
def test_a_run_from_python_has_one_card_with_its_settings(name: str, tmp_path: Path) -> None:
    model, steps = learn(name, str(tmp_path))
    model.learn(steps, tb_log_name="run")
    model.learn(steps, tb_log_name="run", **({} if name == "DecisionTransformer" else {"reset_num_timesteps": False}))
    model.logger.close()
    (folder,) = tmp_path.iterdir()
    text, content = card_of(folder)
    assert text.splitlines()[0] == f"    agent: {name}" and "    seed: 5" in text and "width: 8" in text
    assert all(word in content for word in (b"agent", name.encode(), b"seed", b"backbone.width"))
    assert not any(path.suffix == ".csv" for path in folder.iterdir())


def test_who_sets_a_logger_writes_its_card(tmp_path: Path) -> None:
    model, steps = learn("GTrXLPPO", None)
    logger = configure(str(tmp_path), ["tensorboard"])
    model.set_logger(logger)
    write_run_card(logger, {"agent": "mine"})
    model.learn(steps)
    logger.close()
    assert card_of(tmp_path)[0] == "    agent: mine"


def test_hyperparameters_are_those_that_stable_baselines3_would_write(tmp_path: Path) -> None:
    """Its convention: one HParam, whose values are numbers, texts and booleans, for TensorBoard alone."""
    seen: list[Any] = []

    class Spy(TensorBoardOutputFormat):
        def write(self, key_values: dict[str, Any], key_excluded: dict[str, Any], step: int = 0) -> None:
            seen.append(dict(key_values))
            super().write(key_values, key_excluded, step)

    write_run_card(Logger(None, [Spy(str(tmp_path))]), {"a": None, "b": {"c": 2.0, "d": [1]}, "e": True})
    (values,) = seen
    assert values["hparams"].hparam_dict == {"b.c": 2.0, "b.d": "[1]", "e": True}
    assert set(values["hparams"].metric_dict) == set(METRICS)


def test_tensorboard_shows_the_config_and_its_settings_and_the_csv_does_not(tmp_path: Path) -> None:
    logger = configure(str(tmp_path), ["csv", "tensorboard"])
    write_run_card(logger, {"agent": "gtrxl_ppo", "seed": 3, "train": {"fast": True}, "wrappers": ["History"]})
    logger.close()
    events = EventAccumulator(str(tmp_path))
    events.Reload()
    (tag,) = [tag for tag in events.Tags()["tensors"] if tag.startswith("config")]
    text = events.Tensors(tag)[0].tensor_proto.string_val[0].decode()
    assert text.splitlines()[0] == "    agent: gtrxl_ppo" and "    - History" in text.splitlines()
    experiment = events.summary_metadata["_hparams_/experiment"].plugin_data.content
    assert all(metric.encode() in experiment for metric in METRICS)
    content = events.summary_metadata["_hparams_/session_start_info"].plugin_data.content
    assert all(word in content for word in (b"agent", b"gtrxl_ppo", b"train.fast", b"seed"))
    assert (tmp_path / "progress.csv").read_text() == ""


def test_a_run_of_the_command_line_names_agent_and_settings_as_python_does(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.chdir(tmp_path)
    config = {
        "agent": "gtrxl_ppo", "environment": {"id": "rltransformers/CueRecall-v0", "num_envs": 2}, "backbone": BACKBONE,
        "algorithm": {"n_steps": 8, "device": "cpu"}, "train": {"total_timesteps": 16}, "evaluation": {"episodes": 2},
    }  # fmt: skip
    Path("short.yaml").write_text(yaml.safe_dump(config))
    assert main(["train", "short.yaml"]) == 0
    folder = Path("runs/short-seed0")
    text, content = card_of(folder)
    assert text.splitlines()[0] == "    agent: gtrxl_ppo"
    names = (b"GTrXLPPO", b"acting", b"clip_range", b"ent_coef", b"learning_rate", b"environment.id")
    assert all(name in content for name in names)
    events = EventAccumulator(str(folder))
    events.Reload()
    tags = set(events.Tags()["scalars"])
    assert {"eval/mean_reward", "eval/mean_ep_length", "eval/return_std"} <= tags
    assert not {"eval/return_mean", "eval/length_mean", "train/log_barrier", "train/barrier_coef"} & tags


def test_a_curve_that_cannot_be_drawn_does_not_end_a_run(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    def refusing(*_: Any) -> None:
        raise PermissionError(13, "Permission denied", "learning_curve.png")

    monkeypatch.chdir(tmp_path)
    monkeypatch.setattr("rltransformers.training.runs.run_folder.plot_learning_curve", refusing)
    words = ["--train.total_timesteps", "16", "--algorithm.n_steps", "8", "--environment.num_envs", "2"]
    assert main(["train", "--env", "CartPole-v1", *words, "--evaluation", "{episodes: 2, every: 8}"]) == 0
    said = capsys.readouterr()
    assert "learning_curve.png cannot be drawn (PermissionError" in said.err and "learning curve" not in said.out
    assert Path("runs/CartPole-v1-gtrxl_ppo-seed0/evaluation.json").is_file()
