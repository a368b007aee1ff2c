"""Runs from the command line, in process: train, evaluate, resume, compare; and everything that must be refused."""

import inspect
import json
import os
import re
import runpy
import signal
import subprocess
import sys
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import fields
from pathlib import Path
from typing import Any, cast

import gymnasium as gym
import numpy as np
import pytest
import torch
import yaml
from gymnasium import spaces
from sb3_contrib import RecurrentPPO
from stable_baselines3 import PPO, SAC
from stable_baselines3.common.running_mean_std import RunningMeanStd
from stable_baselines3.common.vec_env import VecNormalize, is_vecenv_wrapped, unwrap_vec_wrapper

from rltransformers.agents import load_agent
from rltransformers.backbone import BackboneConfig
from rltransformers.cli import runs
from rltransformers.cli.agents import OnlineRunAgent, build_agent, checkpoint_step
from rltransformers.cli.configs import find_config, packaged_configs
from rltransformers.cli.keywords import check_keywords
from rltransformers.cli.main import build_parser, main
from rltransformers.cli.words import split_overrides
from rltransformers.core.errors import ConfigError
from rltransformers.core.seeding import branch_seeds, seed_environments
from rltransformers.core.signals import signals_to
from rltransformers.data import load_trajectories
from rltransformers.envs import DropIndices, NoveltyBonus, make_vec_env
from rltransformers.envs.memory_rules import CueRecall
from rltransformers.policies import steps
from rltransformers.training.evaluation import read_results
from rltransformers.training.runs import callback, run_folder
from rltransformers.training.runs.experiment import (
    CollectConfig,
    DatasetConfig,
    EnvironmentConfig,
    EvaluationConfig,
    ExperimentConfig,
    OnlineConfig,
    TrainConfig,
    TuneConfig,
    build_experiment,
    read_experiment,
)
from rltransformers.training.runs.run_folder import RunFolder
from rltransformers.training.schedules import as_schedule
from tests.agents.tiny_envs import AnySpace
from tests.export.stand_in import StandIn
from tests.kills.kill_runs import compare

ROOT = Path(__file__).parents[2]
BACKBONE = {"width": 8, "layers": 2, "heads": 2}
ONLINE = {
    "agent": "gtrxl_ppo",
    "environment": {"id": "rltransformers/CueRecall-v0", "num_envs": 3, "kwargs": {"delay": 2}},
    "backbone": {"preset": "gtrxl", "memory": 5, **BACKBONE},
    "algorithm": {"n_steps": 8, "n_epochs": 1, "device": "cpu"},
    "train": {"total_timesteps": 48},
    "evaluation": {"episodes": 4, "every": 24},
}
REPLAY = ONLINE | {
    "agent": "gtrxl_dqn",
    "algorithm": {
        "device": "cpu", "segment_length": 4, "batch_size": 3, "buffer_size": 3 * 40, "train_freq": 2,
        "learning_starts": 9,
    },
}  # fmt: skip
OFFLINE = {
    "agent": "decision_transformer",
    "environment": {"id": "rltransformers/KeyToDoor-v0", "num_envs": 2},
    "dataset": {"collect": {"episodes": 10}},
    "backbone": {"preset": "decision_transformer", **BACKBONE, "heads": 1},
    "algorithm": {"context_length": 5, "batch_size": 4, "device": "cpu"},
    "train": {"gradient_steps": 4},
    "evaluation": {"episodes": 3, "every": 2, "target_returns": [0, 1]},
}
LSTM = {
    "agent": "recurrent_ppo",
    "environment": {
        "id": "CartPole-v1",
        "num_envs": 2,
        "wrappers": [{"name": "DropIndices", "indices": "velocities"}],
        "normalize_observation": True,
    },
    "policy": {"lstm_hidden_size": 4},
    "algorithm": {"n_steps": 8, "batch_size": 8, "n_epochs": 1, "learning_rate": {"start": 0.01, "end": 0.0}},
    "train": {"total_timesteps": 32},
    "evaluation": {"episodes": 3},
}


@pytest.fixture
def work(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """An empty folder to run in, with the three configs and a Minari folder of its own."""
    monkeypatch.chdir(tmp_path)
    monkeypatch.setenv("MINARI_DATASETS_PATH", str(tmp_path / "minari"))
    (tmp_path / "minari").mkdir()
    for name, config in (("online", ONLINE), ("replay", REPLAY), ("offline", OFFLINE), ("lstm", LSTM)):
        (tmp_path / f"{name}.yaml").write_text(yaml.safe_dump(config))
    return tmp_path


def run(capsys: pytest.CaptureFixture[str], *words: str) -> str:
    """Standard output of a command that must succeed."""
    capsys.readouterr()
    code = main(words)
    out, err = capsys.readouterr()
    assert code == 0, err
    return str(out)


def refused(capsys: pytest.CaptureFixture[str], *words: str) -> str:
    """The one message of a command that must be refused."""
    capsys.readouterr()
    assert main(words) == 2
    out, err = capsys.readouterr()
    assert out == "" and "Traceback" not in err
    return str(err)


@pytest.mark.parametrize("name", ["online", "replay", "offline", "lstm"])
def test_a_run_leaves_everything_it_promises_and_evaluates_again_to_the_same_episodes(
    work: Path, capsys: pytest.CaptureFixture[str], name: str
) -> None:
    out = run(capsys, "train", f"{name}.yaml", "--seed", "3")
    folder = RunFolder.open(f"runs/{name}-seed3")
    assert "return, mean" in out and str(folder.learning_curve) in out
    files = {path.name for path in folder.path.iterdir()}
    assert {"config.yaml", "progress.csv", "last.zip", "best.zip", "evaluation.json", "learning_curve.png"} <= files
    assert any(file.startswith("events.out.tfevents") for file in files)
    steps = [step for step, _ in folder.read_evaluations()]
    assert steps == {"online": [24, 48], "replay": [24, 48], "offline": [2, 4], "lstm": [32]}[name]
    trust = ["--trust"] if name == "lstm" else []
    again = json.loads(run(capsys, "evaluate", str(folder.path), "--json", *trust))
    final = json.loads(folder.evaluation.read_text())
    assert again == final
    assert [len(result["returns"]) for result in final] == {
        "online": [4],
        "replay": [4],
        "offline": [3, 3],
        "lstm": [3],
    }[name]
    other = json.loads(run(capsys, "evaluate", str(folder.path), "--json", "--episodes", "2", "--seed", "9", *trust))
    assert other[0]["seeds"] == branch_seeds(9, "evaluation", 2)
    words = "is a run folder: go on with `train --resume runs/"
    assert words in refused(capsys, "train", os.path.relpath(folder.path))


def test_sampled_actions_differ_from_the_most_likely_ones(work: Path, capsys: pytest.CaptureFixture[str]) -> None:
    run(capsys, "train", "online.yaml")
    evaluations = [
        json.loads(run(capsys, "evaluate", "runs/online-seed0", "--json", "--episodes", "40", *words))[0]["returns"]
        for words in ([], ["--sample"])
    ]
    assert (
        evaluations[0] != evaluations[1]
    )  # equal by chance once in 2^40: the answers of an untrained policy are coins


def evaluated(capsys: pytest.CaptureFixture[str], name: str, *words: str) -> tuple[Any, bool]:
    """What ``evaluate`` prints about a run as JSON, and whether compiled steps were taken for it."""
    before = StandIn.taken
    return json.loads(run(capsys, "evaluate", f"runs/{name}", "--json", *words)), StandIn.taken > before


@pytest.mark.parametrize("name", ["online", "offline"])
def test_config_and_command_line_say_how_steps_are_computed(
    work: Path, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch, name: str
) -> None:
    monkeypatch.setattr(steps, "CompiledStep", StandIn)
    config = yaml.safe_load((work / f"{name}.yaml").read_text())
    config["algorithm"]["acting"] = "compiled"
    (work / "yaml.yaml").write_text(yaml.safe_dump(config))
    StandIn.taken = 0
    run(capsys, "train", f"{name}.yaml", "--name", "eager")
    assert StandIn.taken == 0
    run(capsys, "train", f"{name}.yaml", "--name", "compiled", "--algorithm.acting", "compiled")
    once, StandIn.taken = StandIn.taken, 0
    run(capsys, "train", "yaml.yaml", "--name", "yaml")
    assert StandIn.taken == once
    rollouts = 48 // 3 if name == "online" else 0
    assert once > rollouts, "evaluations of training take compiled steps too"
    expected, compiled = evaluated(capsys, "eager")
    assert not compiled
    assert evaluated(capsys, "compiled") == (expected, True), "as the agent was trained"
    assert evaluated(capsys, "eager", "--acting", "compiled") == (expected, True)
    assert evaluated(capsys, "compiled", "--acting", "eager") == (expected, False)
    assert evaluated(capsys, "compiled", "--plot", "lookback") == (expected, False)


def test_compiled_steps_are_refused_where_there_are_none(work: Path, capsys: pytest.CaptureFixture[str]) -> None:
    run(capsys, "train", "lstm.yaml")
    words = ("evaluate", "runs/lstm-seed0", "--trust", "--acting")
    run(capsys, *words, "eager")
    assert "recurrent_ppo has no compiled steps; leave --acting out" in refused(capsys, *words, "compiled")
    message = refused(capsys, "evaluate", "runs/lstm-seed0", "--acting", "compiled", "--plot", "lookback")
    assert "--plot lookback looks at attention, which compiled steps do not show; leave --acting out" in message
    assert "--acting" in refused(capsys, *words, "fast")


@pytest.mark.parametrize("name", ["online", "offline", "lstm"])
def test_evaluation_has_keywords_of_its_own(work: Path, capsys: pytest.CaptureFixture[str], name: str) -> None:
    """Episodes of training have 4 or 24 steps (CueRecall, delay 2; KeyToDoor, three phases of 8)."""
    changed = {"offline": {"phase_steps": 3}}.get(name, {"delay": 7})
    lengths = {"offline": (9,) * 3}.get(name, (9,) * 4)
    source = "online" if name == "lstm" else name
    config: dict[str, Any] = yaml.safe_load(Path(f"{source}.yaml").read_text())
    if name == "lstm":
        config |= {key: LSTM[key] for key in ("agent", "policy", "algorithm")} | {"backbone": {}}
    config["evaluation"]["kwargs"] = changed
    Path("many.yaml").write_text(yaml.safe_dump(config))
    run(capsys, "train", "many.yaml")
    folder = RunFolder.open("runs/many-seed0")
    assert read_results(folder.evaluation)[0].lengths == lengths
    assert all(each[0].lengths == lengths for _, each in folder.read_evaluations())
    words = ("evaluate", str(folder.path), "--json", "--trust", "--env-kwargs")
    again = json.loads(run(capsys, *words, json.dumps({key: 1 for key in changed})))
    assert again[0]["lengths"] == [3] * len(lengths)
    assert "unknown setting dealy" in refused(capsys, *words, '{"dealy": 1}')


def test_a_run_is_evaluated_in_another_environment(work: Path, capsys: pytest.CaptureFixture[str]) -> None:
    longer = "rltransformers-tests/LongerCueRecall-v0"
    gym.register(longer, "rltransformers.envs.memory_tasks:CueRecall", kwargs={"delay": 5})
    config: dict[str, Any] = yaml.safe_load(Path("online.yaml").read_text())
    del config["environment"]["kwargs"]
    Path("short.yaml").write_text(yaml.safe_dump(config))
    folder = json.loads(run(capsys, "train", "short.yaml", "--json"))["run"]
    words = ("evaluate", folder, "--json", "--env")
    (result,) = json.loads(run(capsys, *words, longer))
    assert result["env_id"] == longer and set(result["lengths"]) == {7}
    assert "observation space" in refused(capsys, *words, "rltransformers/KeyToDoor-v0")
    assert "LongerCueRecal-v0" in refused(capsys, *words, longer.replace("Recall", "Recal"))


def test_another_environment_gets_none_of_the_keywords_of_training(
    work: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    """KeyToDoor has no keyword ``delay``; episodes of CueRecall have two steps more than its delay."""
    config: dict[str, Any] = yaml.safe_load(Path("online.yaml").read_text())
    config["evaluation"]["kwargs"] = {"delay": 3}
    Path("short.yaml").write_text(yaml.safe_dump(config))
    folder = json.loads(run(capsys, "train", "short.yaml", "--json"))["run"]
    cue = ("evaluate", folder, "--json", "--env", "rltransformers/CueRecall-v0")
    assert "observation space" in refused(capsys, *cue[:-1], "rltransformers/KeyToDoor-v0")
    default = inspect.signature(CueRecall).parameters["delay"].default
    for words, delay in (((), default), (("--env-kwargs", '{"delay": 5}'), 5)):
        (result,) = json.loads(run(capsys, *cue, *words))
        assert set(result["lengths"]) == {delay + 2}


def test_evaluation_in_other_spaces_is_refused_before_training(work: Path, capsys: pytest.CaptureFixture[str]) -> None:
    message = refused(capsys, "train", "online.yaml", "--evaluation.kwargs", "{cues: 3}")
    assert "evaluation.kwargs {'cues': 3} change the observation space" in message
    assert not Path("runs").exists()


def weights_of(path: str) -> dict[str, Any]:
    agent = build_agent(read_experiment(f"{path}/config.yaml"), Path(path) / "last.zip", training=False)
    agent.close()
    return dict(agent.model.policy.state_dict())


@pytest.mark.parametrize("name", ["online", "offline", "lstm"])
def test_the_same_seed_gives_the_same_run(work: Path, capsys: pytest.CaptureFixture[str], name: str) -> None:
    runs = [json.loads(run(capsys, "train", f"{name}.yaml", "--json", "--seed", seed)) for seed in ("0", "0", "1")]
    weights = [weights_of(each["run"]) for each in runs]
    assert runs[0]["results"] == runs[1]["results"]
    assert all(weights[0][key].equal(weights[1][key]) for key in weights[0])
    assert not all(weights[0][key].equal(weights[2][key]) for key in weights[0])


def interrupt_at(monkeypatch: pytest.MonkeyPatch, step: int) -> None:
    """Stop the next run as Ctrl-C does, right before its update after ``step``."""
    between = callback.RunCallback._between_updates

    def stopping(self: callback.RunCallback) -> None:
        if self.model.num_timesteps >= step:
            raise KeyboardInterrupt
        between(self)

    monkeypatch.setattr(callback.RunCallback, "_between_updates", stopping)


CARTPOLE = ["--environment.id", "CartPole-v1", "--environment.kwargs", "{}", "--environment.normalize_reward", "true"]
RESTARTS = [*CARTPOLE, "--train.restart_every", "40"]


@pytest.mark.parametrize(
    ("name", "words", "at", "saved"),
    [
        ("online", [], 96, 72),
        ("replay", [], 96, 72),
        ("replay", RESTARTS, 120, 84),
        ("offline", ["--online", "{timesteps: 60, updates_per_episode: 3, replay_episodes: 11}"], 9, 8),
    ],
)
def test_an_interrupted_run_goes_on_as_if_it_had_not_been(
    work: Path,
    capsys: pytest.CaptureFixture[str],
    monkeypatch: pytest.MonkeyPatch,
    name: str,
    words: list[str],
    at: int,
    saved: int,
) -> None:
    """Weights, evaluations and everything logged, though logging went on behind the checkpoint.

    What ``kill_runs.py`` kills is left to it: an online run with restarts, and one that learns from data alone.
    """
    words = [*words, *(["--train.total_timesteps", "168"] if name in ("online", "replay") else [])]
    run(capsys, "train", f"{name}.yaml", "--name", "whole", *words)
    with monkeypatch.context() as patched:
        interrupt_at(patched, at)
        assert main(["train", f"{name}.yaml", "--name", "stopped", *words]) == 130
        told = capsys.readouterr().err
        assert "--resume runs/stopped" in told
        assert (f"goes on from its last restart, step {saved}" in told) == (words[: len(RESTARTS)] == RESTARTS)
    assert checkpoint_step(Path("runs/stopped/last.zip")) == saved
    assert main(["train", "--resume", "runs/stopped"]) == 0
    assert "new episodes" not in capsys.readouterr().err
    compared, differing = compare(Path("runs/whole"), Path("runs/stopped"))
    assert differing == "", compared
    run(capsys, "train", "--resume", "runs/stopped")  # nothing is left to do, and nothing is done twice
    assert compare(Path("runs/whole"), Path("runs/stopped")) == (compared, "")


def test_a_run_that_learns_online_goes_on_there(work: Path, capsys: pytest.CaptureFixture[str]) -> None:
    run(capsys, "train", "offline.yaml", "--name", "on", "--online", "{timesteps: 30, updates_per_episode: 1}")
    folder, resume = RunFolder.open("runs/on"), ("train", "--resume", "runs/on")
    assert read_results(folder.evaluation)[0].step == checkpoint_step(folder.last) > 4
    message = refused(capsys, *resume, "--train.gradient_steps", "400")
    assert "has begun to learn online, behind 4 gradient steps, of which there cannot be 400 any more" in message
    assert "steps online, so it cannot end at 5; name more" in refused(capsys, *resume, "--online.timesteps", "5")
    run(capsys, *resume, "--online.timesteps", "100")
    assert read_results(folder.evaluation)[0].step == checkpoint_step(folder.last) > 6


def test_the_evaluation_of_a_run_that_goes_on_online_is_not_its_final_one(
    work: Path, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    run(capsys, "train", "offline.yaml", "--name", "on", "--online", "{timesteps: 30, updates_per_episode: 1}")
    interrupt_at(monkeypatch, checkpoint_step(Path("runs/on/last.zip")) + 1)
    assert main(["train", "--resume", "runs/on", "--online.timesteps", "300"]) == 130
    assert not Path("runs/on/evaluation.json").exists()


def test_a_recurrent_run_without_its_statistics_is_refused(work: Path, capsys: pytest.CaptureFixture[str]) -> None:
    run(capsys, "train", "lstm.yaml", "--name", "scaled", "--environment.normalize_observation", "true")
    Path("runs/scaled/last.normalization.zip").unlink()
    for words in (["evaluate", "runs/scaled"], ["train", "--resume", "runs/scaled", "--train.total_timesteps", "64"]):
        assert "last.normalization.zip is not there, which holds the statistics" in refused(capsys, *words, "--trust")


def test_on_a_full_disk_a_checkpoint_keeps_its_statistics(
    work: Path, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    words = ["--environment.normalize_observation", "true"]
    run(capsys, "train", "lstm.yaml", "--name", "scaled", *words)
    files = [Path("runs/scaled/last.zip"), Path("runs/scaled/last.normalization.zip")]
    before = [path.read_bytes() for path in files]

    def full(self: Any, path: Path) -> None:
        raise OSError(28, "No space left on device")

    monkeypatch.setattr(RecurrentPPO, "save", full)
    assert main(["train", "--resume", "runs/scaled", "--train.total_timesteps", "96", "--trust"]) == 2
    assert [path.read_bytes() for path in files] == before


def test_metrics_are_on_the_disk_before_the_checkpoint_of_their_step(
    work: Path, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    safe: dict[str, str] = {}
    monkeypatch.setattr(run_folder, "sync", lambda path: safe.update({path.name: path.read_text(errors="replace")}))
    run(capsys, "train", "online.yaml", "--name", "safe")
    folder = RunFolder("runs/safe")
    rows = [line.split(",")[0] for line in safe["progress.csv"].splitlines()]
    assert rows[-1] == str(checkpoint_step(folder.last)) and folder.event_files()[0].name in safe


@pytest.mark.parametrize(("name", "code"), [("SIGINT", 130), ("SIGTERM", 143), ("SIGHUP", 129)])
@pytest.mark.usefixtures("default_signals")
def test_a_signal_ends_a_run_behind_its_update_and_a_checkpoint(
    work: Path, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch, name: str, code: int
) -> None:
    between = callback.RunCallback._between_updates

    def signalled(self: callback.RunCallback) -> None:
        if self.model.num_timesteps == 1:
            os.kill(os.getpid(), getattr(signal, name))
        between(self)

    monkeypatch.setattr(callback.RunCallback, "_between_updates", signalled)
    handlers = [signal.getsignal(number) for number in (signal.SIGINT, signal.SIGTERM, signal.SIGHUP)]
    assert main(["train", "offline.yaml"]) == code
    message = capsys.readouterr().err
    assert "a second signal ends at once" in message
    assert f"stopped by {name}; go on with: rltransformers train --resume runs/offline-seed0" in message
    assert checkpoint_step(Path("runs/offline-seed0/last.zip")) == 1
    assert handlers == [signal.getsignal(number) for number in (signal.SIGINT, signal.SIGTERM, signal.SIGHUP)]


def test_a_signal_that_is_ignored_stays_ignored() -> None:
    """As under nohup."""
    before = signal.signal(signal.SIGHUP, signal.SIG_IGN)
    try:
        stops = list[int]()
        with signals_to(stops.append):
            os.kill(os.getpid(), signal.SIGHUP)
            os.kill(os.getpid(), signal.SIGTERM)
    finally:
        signal.signal(signal.SIGHUP, before)
    assert stops == [signal.SIGTERM]


def test_show_prints_the_config_that_train_would_take(work: Path, capsys: pytest.CaptureFixture[str]) -> None:
    shown = run(capsys, "show", "offline.yaml", "--seed", "7", "--online", "{timesteps: 9}")
    config = find_config("offline.yaml", [("seed", "7"), ("online", "{timesteps: 9}")])[1]
    assert yaml.safe_load(shown) == config.to_dict() and config.online is not None
    Path("again.yaml").write_text(shown)
    assert read_experiment("again.yaml") == config
    assert "did you mean 'seed'" in refused(capsys, "show", "offline.yaml", "--sead", "7")
    assert not Path("runs").exists()


@pytest.mark.parametrize(
    ("words", "message"),
    [
        (["--backbone.heads", "3"], "heads (3) must divide width"),
        (["--backbone", "{preset: gtrxl, memory: -5}"], "backbone.memory must be a whole number"),
        (["--algorithm.gamma", "5"], "algorithm.gamma must be a finite number in [0, 1], got 5"),
        (["--policy.head_width", "x"], "policy.head_width must be"),
        (["--policy.readout", "knm"], "policy.readout: unknown readout 'knm'"),
        (["--policy.observation.encoder", "brt"], "policy.observation.encoder: unknown encoder 'brt'"),
        (["--environment.wrappers", "[DropIndex]"], "unknown wrapper 'DropIndex'; did you mean 'DropIndices'"),
        (["--environment.wrappers", "[{indices: velocities}]"], "a wrapper is a name or"),
        (["--backbone.dropout", "0.1"], "dropout is 0.1, but must be 0 online"),
        (["--algorithm.batch_size", "65"], "batch_size (65) must be a multiple of n_steps"),
    ],
)
def test_show_refuses_what_train_would_refuse_before_it_builds_anything(
    work: Path, capsys: pytest.CaptureFixture[str], words: list[str], message: str
) -> None:
    for config in ("online.yaml", "gtrxl_cue_recall"):
        assert message in refused(capsys, "show", config, *words)
    for mode in ("bc", "advantage"):
        message = f"algorithm.mode {mode} has no target return: set evaluation.target_returns to [], and leave --target"
        assert message in refused(capsys, "show", "offline.yaml", "--algorithm.mode", mode)
    assert "backbone.memory must be" in refused(capsys, "show", "offline.yaml", "--backbone.memory", "-5")
    assert "unknown encoder 'brt'" in refused(capsys, "show", "offline.yaml", "--policy.observation.encoder", "brt")
    assert "no_such_module" in run(
        capsys, "show", "online.yaml", "--environment.wrappers", "['no_such_module:Wrapper']"
    )


def test_a_packaged_config_is_taken_by_its_name_and_never_in_place_of_another_file(
    work: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    for path in ("no/such/dir/gtrxl_cue_recall.yaml", "./gtrxl_cue_recall.yaml", "/configs/gtrxl_cue_recall"):
        message = refused(capsys, "train", path)
        assert f"config {path}: there is no such file" in message and "name it alone: gtrxl_cue_recall" in message
    assert not Path("runs").exists()
    for name in ("gtrxl_cue_recall", "gtrxl_cue_recall.yaml", "configs/gtrxl_cue_recall.yaml"):
        assert find_config(name, [])[0] == "gtrxl_cue_recall"


@pytest.mark.parametrize("name", ["online", "offline", "lstm"])
def test_an_edited_config_is_refused_when_its_run_goes_on(
    work: Path, capsys: pytest.CaptureFixture[str], name: str
) -> None:
    run(capsys, "train", f"{name}.yaml")
    folder = RunFolder(f"runs/{name}-seed0")
    written = folder.config.read_text()
    before = {path.name: path.read_bytes() for path in folder.path.iterdir()}
    edited = yaml.safe_load(written)
    edited["algorithm"]["learning_rate"], edited["seed"], edited["policy"] = 0.5, 77, {}
    edited["environment"]["num_envs"], edited["evaluation"]["episodes"] = 5, 2
    edited["train"] = {key: value and 2 * value for key, value in edited["train"].items()}
    folder.config.write_text(yaml.safe_dump(edited))
    message = refused(capsys, "train", "--resume", str(folder.path), "--trust")
    keys = ["algorithm.learning_rate", "environment.num_envs", *(["policy.lstm_hidden_size"] if name == "lstm" else [])]
    assert f"is not what the run began with: {', '.join(sorted([*keys, 'seed']))} cannot change" in message
    assert f"train {folder.config}" in message
    folder.config.write_text(written)
    assert {path.name: path.read_bytes() for path in folder.path.iterdir()} == before
    folder.begun.rename("aside")  # as by `cp -r runs/*/*`
    assert "has no .config.yaml, which says what" in refused(capsys, "train", "--resume", str(folder.path), "--trust")
    Path("aside").rename(folder.begun)
    allowed = yaml.safe_load(written) | {"train": edited["train"], "threads": 1}
    folder.config.write_text(yaml.safe_dump(allowed))
    run(capsys, "train", "--resume", str(folder.path), "--trust")
    assert yaml.safe_load(folder.config.read_text()) == allowed


def test_printed_commands_are_quoted_for_the_shell(
    work: Path, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    out = run(capsys, "train", "online.yaml", "--output", "my runs")
    assert "evaluate again  rltransformers evaluate 'my runs/online-seed0' --episodes 100\n" in out
    folder = RunFolder("my runs/online-seed0")
    folder.config.write_text(folder.config.read_text().replace("n_steps: 8", "n_steps: 9"))
    message = refused(capsys, "train", "--resume", str(folder.path))
    assert "begin a new run: rltransformers train 'my runs/online-seed0/config.yaml'" in message

    def interrupted(*args: Any) -> None:
        raise KeyboardInterrupt

    monkeypatch.setattr(callback.RunCallback, "_on_rollout_end", interrupted)
    assert main(["train", "online.yaml", "--output", "my runs"]) == 130
    assert "go on with: rltransformers train --resume 'my runs/online-seed0-2'\n" in capsys.readouterr().err


def test_a_run_without_a_checkpoint_begins_anew(work: Path, capsys: pytest.CaptureFixture[str]) -> None:
    run(capsys, "train", "offline.yaml", "--name", "whole")
    run(capsys, "train", "offline.yaml", "--name", "stopped")
    for path in RunFolder("runs/stopped").path.glob("*.zip"):
        path.unlink()
    run(capsys, "train", "--resume", "runs/stopped")
    assert compare(Path("runs/whole"), Path("runs/stopped"))[1] == ""


def test_what_a_resumed_run_cannot_keep_is_said_once_with_the_way_out(
    work: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    for name, words, reason in (
        ("online", CARTPOLE, "the checkpoint has no state of CartPole-v1; with train.restart_every"),
        ("lstm", [], "new random numbers: recurrent_ppo saves none of it"),
    ):
        run(capsys, "train", f"{name}.yaml", *words)
        longer = ["--train.total_timesteps", "64", "--trust"]
        assert main(["train", "--resume", f"runs/{name}-seed0", *longer]) == 0
        assert capsys.readouterr().err.count(reason) == 1
    assert main(["train", "--resume", "runs/online-seed0", *longer]) == 0  # finished: there is nothing to go on with
    assert "new episodes" not in capsys.readouterr().err
    for name in ("offline", "lstm"):
        assert "is for agents gtrxl_ppo, gtrxl_vmpo, gtrxl_dqn, gtrxl_sac" in refused(
            capsys, "train", f"{name}.yaml", "--train.restart_every", "8"
        )
    assert "must be a whole number of at least 1" in refused(
        capsys, "train", "online.yaml", "--train.restart_every", "0"
    )


def test_a_run_without_its_checkpoint_says_that_it_begins_anew(work: Path, capsys: pytest.CaptureFixture[str]) -> None:
    run(capsys, "train", "offline.yaml", "--name", "a", "--train.gradient_steps", "2")
    Path("runs/a/last.zip").unlink()
    assert main(["train", "--resume", "runs/a"]) == 0
    assert "runs/a/last.zip is not there: the run begins at step 0" in capsys.readouterr().err


def test_restarts_that_would_never_come_are_refused(work: Path, capsys: pytest.CaptureFixture[str]) -> None:
    words = ["train", "online.yaml", "--train.total_timesteps", "96", "--train.restart_every"]
    for distance in ("96", "1000"):
        message = refused(capsys, *words, distance)
        assert f"train.restart_every ({int(distance):,}) must be below train.total_timesteps (96)" in message


def test_best_weights_of_a_lost_branch_go_with_it(work: Path, capsys: pytest.CaptureFixture[str]) -> None:
    run(capsys, "train", "offline.yaml", "--name", "short", "--train.gradient_steps", "2")
    run(capsys, "train", "offline.yaml", "--name", "long")
    short, long = RunFolder("runs/short"), RunFolder("runs/long")
    short.best.write_bytes(long.last.read_bytes())  # as if step 4 had been the best of a branch that was lost
    run(capsys, "train", "--resume", "runs/short", "--train.gradient_steps", "3")  # no score so far is exceeded
    assert checkpoint_step(short.best) == 3
    run(capsys, "train", "--resume", "runs/short", "--evaluation.episodes", "2")
    assert [result.step for result in read_results(short.evaluation)] == [3, 3]
    assert [len(result.returns) for result in read_results(short.evaluation)] == [2, 2]


def test_an_evaluation_that_was_edited_in_the_config_is_made_again(
    work: Path, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    run(capsys, "train", "offline.yaml", "--name", "a", "--train.gradient_steps", "2", "--evaluation.episodes", "2")
    folder = RunFolder("runs/a")
    folder.config.write_text(folder.config.read_text().replace("episodes: 2", "episodes: 3"))
    run(capsys, "train", "--resume", "runs/a")
    assert {len(result.returns) for result in read_results(folder.evaluation)} == {3}

    def stopped(*_: Any) -> None:
        raise KeyboardInterrupt

    monkeypatch.setattr(runs, "_run", stopped)
    main(["train", "--resume", "runs/a", "--train.gradient_steps", "4"])
    assert not folder.evaluation.exists(), "it is of other weights than those that the run will end with"


def test_a_run_cannot_end_before_the_step_it_is_at(work: Path, capsys: pytest.CaptureFixture[str]) -> None:
    run(capsys, "train", "offline.yaml", "--name", "done", "--train.gradient_steps", "4")
    before = Path("runs/done/config.yaml").read_text()
    assert main(["train", "--resume", "runs/done", "--train.gradient_steps", "3"]) == 2
    assert "run runs/done is at step 4, so it cannot end at 3; name more steps" in capsys.readouterr().err
    assert Path("runs/done/config.yaml").read_text() == before


def test_a_folder_in_use_is_not_resumed_and_still_evaluated(work: Path, capsys: pytest.CaptureFixture[str]) -> None:
    run(capsys, "train", "offline.yaml", "--train.gradient_steps", "1")
    with holding(
        "from rltransformers.training.runs.run_folder import RunFolder as R; lock = R('runs/offline-seed0').locked()"
    ):
        assert "runs/offline-seed0 is in use by process" in refused(capsys, "train", "--resume", "runs/offline-seed0")
        assert "training step" in run(capsys, "evaluate", "runs/offline-seed0")


@contextmanager
def holding(lock: str) -> Iterator[None]:
    """A process that holds the context ``lock`` which this code makes, and is killed in the end."""
    code = f"import sys\n{lock}\nwith lock:\n print('held', flush=True)\n sys.stdin.read()"
    with subprocess.Popen([sys.executable, "-c", code], stdin=-1, stdout=-1) as process:
        assert process.stdout is not None and process.stdout.readline() == b"held\n"
        yield
        process.kill()


def test_one_process_collects_into_an_id_and_a_killed_one_loses_nothing(
    work: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    words = ["collect", "--env", "rltransformers/KeyToDoor-v0", "--behavior", "random", "--dataset", "key/one-v0"]
    with holding("from rltransformers.data.minari import writing_minari; lock = writing_minari('key/one-v0')"):
        message = refused(capsys, *words, "--steps", "24")
        assert "'key/one-v0' is in use by process" in message
    run(capsys, *words, "--steps", "24")
    whole = work / "minari" / "key" / "one-v0"
    before = whole.with_name(".one-v0.abcd1234.before")
    whole.rename(before)  # killed between the two renames of --overwrite
    whole.with_name(".one-v0.abcd1234").mkdir()
    assert "24" in run(capsys, "inspect", "key/one-v0")
    assert [path.name for path in whole.parent.iterdir() if path.is_dir()] == ["one-v0"]
    whole.rename(before)
    assert "exists; raise its version" in refused(capsys, *words, "--steps", "24")
    whole.rename(before)
    run(capsys, *words, "--steps", "48", "--overwrite")
    assert not before.exists() and len(load_trajectories("key/one-v0")) >= 2


@pytest.mark.parametrize(("name", "done"), [("online", 72), ("lstm", 64)])
def test_a_finished_online_run_can_be_made_longer(
    work: Path, capsys: pytest.CaptureFixture[str], name: str, done: int
) -> None:
    run(capsys, "train", f"{name}.yaml")
    folder = RunFolder(f"runs/{name}-seed0")
    rows = len(folder.metrics.read_text().splitlines())
    run(capsys, "train", "--resume", str(folder.path), "--train.total_timesteps", str(done), "--trust")
    assert folder.read_evaluations()[-1][0] == done
    assert len(folder.metrics.read_text().splitlines()) > rows
    assert yaml.safe_load(folder.config.read_text())["train"]["total_timesteps"] == done


@pytest.mark.parametrize("name", ["online", "lstm"])
def test_normalized_inputs_come_back_with_the_checkpoint(
    work: Path, capsys: pytest.CaptureFixture[str], name: str
) -> None:
    words = [
        "--environment.id",
        "CartPole-v1",
        "--environment.kwargs",
        "{}",
        "--environment.normalize_observation",
        "true",
        "--environment.novelty_bonus",  # which the environment of evaluation does not have
        "0.25",
    ]
    run(capsys, "train", f"{name}.yaml", *(words if name == "online" else []))
    agent = build_agent(read_experiment(f"runs/{name}-seed0/config.yaml"), Path(f"runs/{name}-seed0/last.zip"), False)
    assert isinstance(agent, OnlineRunAgent)
    trained, evaluated = agent.model.get_vec_normalize_env(), agent.evaluation_environment()
    assert isinstance(evaluated, VecNormalize) and not evaluated.training
    assert trained.obs_rms.count > 32  # the steps of the training, not those of a fresh environment
    ours, theirs = cast(RunningMeanStd, evaluated.obs_rms), cast(RunningMeanStd, trained.obs_rms)
    np.testing.assert_array_equal(ours.mean, theirs.mean)
    np.testing.assert_array_equal(ours.var, theirs.var)
    agent.close()


def test_training_alone_pays_for_what_is_new(work: Path, capsys: pytest.CaptureFixture[str]) -> None:
    run(capsys, "train", "online.yaml", "--environment.novelty_bonus", "0.25", "--environment.novelty_steps", "1000")
    config = read_experiment("runs/online-seed0/config.yaml")
    for training in (True, False):
        agent = build_agent(config, Path("runs/online-seed0/last.zip"), training)
        assert isinstance(agent, OnlineRunAgent)
        env = agent.model.env
        bonus = unwrap_vec_wrapper(env, NoveltyBonus) if env is not None else None
        assert (bonus is not None) == training
        if bonus is not None:  # it goes on where the checkpoint stands
            count = config.environment.num_envs
            assert (bonus.steps, bonus.steps_done) == (1000 // count, agent.model.num_timesteps // count)
        assert not is_vecenv_wrapped(agent.evaluation_environment(), NoveltyBonus)
        agent.close()


class Signs(gym.ObservationWrapper[Any, Any, Any]):
    """The signs of a vector as a MultiDiscrete observation."""

    def __init__(self, env: gym.Env[Any, Any]) -> None:
        super().__init__(env)
        self.observation_space = spaces.MultiDiscrete([2] * 4)

    def observation(self, observation: Any) -> Any:
        return (np.asarray(observation) > 0).astype(np.int64)


def test_the_cell_of_the_baseline_can_be_a_gru(work: Path, capsys: pytest.CaptureFixture[str]) -> None:
    """Trained, resumed and evaluated as the LSTM is; the weights say which one it is, three gates in place of four."""
    run(capsys, "train", "lstm.yaml", "--policy.cell", "gru", "--name", "gru")
    run(capsys, "train", "--resume", "runs/gru", "--train.total_timesteps", "64", "--trust")
    model = RecurrentPPO.load("runs/gru/last.zip", device="cpu")
    assert model.num_timesteps == 64 and isinstance(model.policy.lstm_actor, torch.nn.GRU)
    assert model.policy.lstm_actor.weight_hh_l0.shape == (12, 4)
    assert len(json.loads(run(capsys, "evaluate", "runs/gru", "--trust", "--json"))[0]["returns"]) == 3
    message = refused(capsys, "train", "lstm.yaml", "--policy.cell", "rnn")
    assert "policy.cell must be one of 'lstm', 'gru', got 'rnn'" in message


@pytest.mark.parametrize(
    ("agent", "env", "algorithm", "kind"),
    [
        ("ppo", "CartPole-v1", {"n_steps": 8, "batch_size": 8, "learning_rate": {"start": 0.01, "end": 0.0}}, PPO),
        ("sac", "Pendulum-v1", {"learning_starts": 4, "buffer_size": 40, "batch_size": 4}, SAC),
    ],
)
def test_agents_without_memory_are_those_of_stable_baselines3(
    work: Path, capsys: pytest.CaptureFixture[str], agent: str, env: str, algorithm: dict[str, Any], kind: type[Any]
) -> None:
    """A run ends with the weights of the class itself, evaluates to what it wrote, and can be made longer."""
    values = LSTM | {
        "agent": agent,
        "algorithm": dict(algorithm),
        "policy": {"net_arch": [6]},
        "evaluation": {"episodes": 3},
    }
    values["environment"] = {"id": env, "num_envs": 2, "normalize_reward": True}
    Path("plain.yaml").write_text(yaml.safe_dump(values))
    run(capsys, "train", "plain.yaml", "--algorithm.device", "cpu")
    folder = RunFolder("runs/plain-seed0")
    again = json.loads(run(capsys, "evaluate", str(folder.path), "--trust", "--json"))
    assert again == json.loads(folder.evaluation.read_text())
    environment = make_vec_env(env, 2, seed=0)
    scaled = VecNormalize(environment, norm_obs=False)
    rate = as_schedule(algorithm.pop("learning_rate", 3e-4), "learning_rate")
    model = kind("MlpPolicy", scaled, rate, policy_kwargs={"net_arch": [6]}, seed=0, device="cpu", **algorithm)
    seed_environments(environment, branch_seeds(0, "environment", 2))
    model.learn(32)
    trained = kind.load(folder.last, device="cpu").policy.state_dict()
    torch.testing.assert_close(trained, model.policy.state_dict(), rtol=0, atol=0)
    assert main(["train", "--resume", str(folder.path), "--train.total_timesteps", "64", "--trust"]) == 0
    assert ("the replay is empty" in capsys.readouterr().err) == (agent == "sac")
    assert folder.read_evaluations()[-1][0] == 64
    message = refused(capsys, "train", "plain.yaml", "--backbone.width", "8")
    assert f"agent {agent} has a perceptron instead of a backbone" in message
    assert f"{agent} has a policy of Stable-Baselines3" in refused(
        capsys, "export", str(folder.path), "--format", "onnx"
    )


def test_what_the_lstm_cannot_read_is_refused_with_the_way_out(work: Path, capsys: pytest.CaptureFixture[str]) -> None:
    words = ["train", "lstm.yaml", "--environment.normalize_observation", "false", "--environment.wrappers"]
    message = refused(capsys, *words, "['tests.cli.test_runs:Signs']", "--name", "signs")
    assert "takes no MultiDiscrete observations; add the wrapper FlattenObservation" in message
    run(capsys, *words, "['tests.cli.test_runs:Signs', FlattenObservation]", "--name", "flat")


@pytest.mark.parametrize("output", ["taken", "taken/runs"])
def test_an_output_that_is_a_file_is_refused(work: Path, capsys: pytest.CaptureFixture[str], output: str) -> None:
    Path("taken").touch()
    message = refused(capsys, "train", "online.yaml", "--output", output)
    assert f"output={output!r}: " in message and "taken is a file, and a folder is needed" in message


def test_in_a_dict_the_vectors_are_normalized_and_indices_are_not(
    work: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    normalize = ["--environment.normalize_observation", "true", "--environment.wrappers"]
    for name in ("online", "lstm"):
        run(capsys, "train", f"{name}.yaml", *normalize, "[{name: History}]", "--name", name)
        folder = RunFolder(f"runs/{name}")
        agent = build_agent(read_experiment(folder.config), folder.last, False)
        assert isinstance(agent, OnlineRunAgent)
        for env in (agent.model.get_vec_normalize_env(), agent.evaluation_environment()):
            assert isinstance(env, VecNormalize)
            assert sorted(cast(dict[str, Any], env.obs_rms)) == ["first_step", "observation", "previous_reward"]
        agent.close()
    indices = "[{name: History, previous_reward: false, first_step: false}]"
    frozen = ["--environment.id", "FrozenLake-v1", "--environment.kwargs", "{}", *normalize, indices]
    assert "finds no vector of floats" in refused(capsys, "train", "online.yaml", *frozen, "--name", "frozen")


def test_a_policy_that_reads_rewards_is_evaluated_with_them(work: Path, capsys: pytest.CaptureFixture[str]) -> None:
    run(capsys, "train", "online.yaml", "--policy.previous_reward", "true")


@pytest.mark.usefixtures("drawn_pictures")
def test_pictures_are_drawn_for_either_agent(work: Path, capsys: pytest.CaptureFixture[str]) -> None:
    run(capsys, "train", "online.yaml")
    run(capsys, "train", "offline.yaml")
    run(capsys, "evaluate", "runs/online-seed0", "--episodes", "2", "--plot", "lookback", "--checkpoint", "best")
    words = ("--target-return", "0.5", "--target-return", "2", "--plot", "target", "--plot", "lookback", "--json")
    results = json.loads(run(capsys, "evaluate", "runs/offline-seed0", *words))
    assert [result["target_return"] for result in results] == [0.5, 2.0]
    for picture in (
        "online-seed0/lookback.png",
        "offline-seed0/lookback.png",
        "offline-seed0/return_versus_target.png",
    ):
        assert (Path("runs") / picture).read_bytes().startswith(b"\x89PNG")
    assert "agent recurrent_ppo has no attention to draw" in refused_lookback(capsys)


def refused_lookback(capsys: pytest.CaptureFixture[str]) -> str:
    run(capsys, "train", "lstm.yaml", "--train.total_timesteps", "16")
    return refused(capsys, "evaluate", "runs/lstm-seed0", "--plot", "lookback", "--trust")


def test_a_target_return_that_no_evaluation_takes_is_refused_before_training(
    work: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    targets = "--evaluation.target_returns", "[1, 1e30]", "--evaluation.every", "0"
    message = refused(capsys, "train", "offline.yaml", *targets)
    assert "target_returns must be at most" in message and not list(Path("runs").glob("*/last.zip"))


def test_a_dataset_is_collected_inspected_and_learnt_from(work: Path, capsys: pytest.CaptureFixture[str]) -> None:
    collect = ["collect", "--env", "rltransformers/KeyToDoor-v0", "--steps", "100", "--dataset", "key/random-v0"]
    collected = json.loads(run(capsys, *collect, "--behavior", "random=3", "--behavior", "random", "--json"))
    assert collected["steps"] >= 100
    assert "exists" in refused(capsys, *collect, "--behavior", "random")
    run(capsys, *collect, "--behavior", "random", "--overwrite")
    inspected = json.loads(run(capsys, "inspect", "key/random-v0", "--json"))
    assert inspected["env_id"] == "rltransformers/KeyToDoor-v0" and inspected["length"]["max"] == 24
    assert "episodes" in run(capsys, "inspect", "key/random-v0")
    run(capsys, "train", "offline.yaml", "--dataset", "key/random-v0")


def test_collect_records_steps_or_whole_episodes(work: Path, capsys: pytest.CaptureFixture[str]) -> None:
    words = ["collect", "--env", "CartPole-v1", "--num-envs", "2", "--behavior", "random", "--json", "--dataset"]
    collected = json.loads(run(capsys, *words, "cart/few-v0", "--episodes", "5"))
    assert collected["episodes"] == 5 and len(load_trajectories("cart/few-v0")) == 5
    for wrong, message in (
        ([], "required"),
        (["--steps", "1", "--episodes", "5"], "not allowed"),
        (["--episodes", "0"], "whole number in [1, "),
    ):
        assert message in refused(capsys, *words, "cart/none-v0", *wrong)


def test_trained_agents_are_behaviors(work: Path, capsys: pytest.CaptureFixture[str]) -> None:
    cartpole = ["--environment.id", "CartPole-v1", "--environment.kwargs", "{}"]
    run(capsys, "train", "online.yaml", *cartpole, "--environment.normalize_observation", "true", "--name", "agent")
    words = ["collect", "--env", "CartPole-v1", "--num-envs", "1", "--steps", "1", "--json", "--dataset"]
    collected = json.loads(run(capsys, *words, "cart/own-v0", "--deterministic", "--behavior", "checkpoint:runs/agent"))
    # One episode from a seed that recording draws; the same agent evaluated on its own acts the same way.
    actor = load_agent("runs/agent").actor()
    data = load_trajectories("cart/own-v0")
    episode = data.episode(0)
    actor.reset()
    again = [actor(episode.observations[""][step]) for step in range(len(episode))]
    assert collected["episodes"] == 1 and again == episode.actions[""].tolist()


def test_a_run_of_the_baseline_is_a_behavior_by_the_way_that_its_refusal_names(
    work: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    plain = ("--environment.normalize_observation", "false", "--train.total_timesteps", "16")
    run(capsys, "train", "lstm.yaml", *plain, "--policy.cell", "gru", "--name", "plain")
    run(capsys, "train", "lstm.yaml", "--train.total_timesteps", "16", "--name", "normalized")
    wrapped = "tests.cli.test_runs:masked_cart_pole"
    gym.register("rltransformers-tests/Masked-v0", wrapped)
    words = ["collect", "--env", "rltransformers-tests/Masked-v0", "--steps", "4", "--dataset", "cart/lstm-v0"]
    message = refused(capsys, *words, "--behavior", "checkpoint:runs/plain")
    assert "runs of baselines write it; write sb3:recurrentppo:runs/plain/last.zip\n" in message
    message = refused(capsys, *words, "--behavior", "checkpoint:runs/normalized/last.zip")
    assert "unless environment.normalize_observation was on: sb3 cannot read these statistics" in message
    run(capsys, *words, "--behavior", "sb3:recurrentppo:runs/plain/last.zip")
    assert len(load_trajectories("cart/lstm-v0"))


def masked_cart_pole() -> gym.Env[Any, Any]:
    """The environment of ``LSTM``."""
    return DropIndices(gym.make("CartPole-v1"), "velocities")


def test_agents_that_act_on_rewards_get_them_while_they_are_recorded(
    work: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    run(capsys, "train", "online.yaml", "--policy.previous_reward", "true", "--name", "rewarded")
    run(capsys, "train", "offline.yaml", "--name", "dt")
    for name, env in (("rewarded", "CueRecall-v0"), ("dt", "KeyToDoor-v0")):
        words = ["collect", "--env", f"rltransformers/{env}", "--num-envs", "1", "--steps", "1", "--deterministic"]
        run(capsys, *words, "--dataset", f"own/{name}-v0", "--behavior", f"checkpoint:runs/{name}/last.zip")
        episode = load_trajectories(f"own/{name}-v0").episode(0)
        model: Any = load_agent(f"runs/{name}/last.zip")
        state, actions = None, []
        for t in range(len(episode)):
            seen = episode.observations[""][t] if "" in episode.observations else episode.observations
            reward = {"reward": float(episode.rewards[t - 1])} if t else {}
            action, state = model.predict(seen, state, deterministic=True, **reward)
            actions.append(int(action))
        assert actions == episode.actions[""].tolist()


@pytest.fixture
def own_threads(monkeypatch: pytest.MonkeyPatch) -> Iterator[None]:
    """No number of threads in the environment; torch gets back what it had."""
    monkeypatch.delenv("OMP_NUM_THREADS", raising=False)
    before = torch.get_num_threads()
    torch.set_num_threads(2)
    yield
    torch.set_num_threads(before)


def threads_of(capsys: pytest.CaptureFixture[str], *words: str) -> str:
    """The line in which a command says how many threads torch has; it must come once."""
    capsys.readouterr()
    assert main(words) == 0
    out, err = capsys.readouterr()
    lines = [line for line in err.splitlines() if line.startswith("torch: ")]
    assert len(lines) == 1 and "torch: " not in out
    count = torch.get_num_threads()
    assert lines[0].startswith(f"torch: {count} thread{'' if count == 1 else 's'} (")
    return lines[0]


def test_every_command_says_once_how_many_threads_it_uses(
    work: Path, capsys: pytest.CaptureFixture[str], own_threads: None, monkeypatch: pytest.MonkeyPatch
) -> None:
    lstm = ("train", "lstm.yaml", "--train.total_timesteps")
    collect = ("collect", "--env", "CartPole-v1", "--behavior", "random", "--steps", "1", "--dataset")
    assert "1 thread (" in threads_of(capsys, *lstm, "16")
    evaluate = ("evaluate", "runs/lstm-seed0", "--episodes", "1", "--trust")
    assert "1 thread (" in threads_of(capsys, *evaluate)
    assert "2 threads (" in threads_of(capsys, *evaluate, "--threads", "2")
    assert "1 thread (" in threads_of(capsys, *collect, "cart/one-v0")
    assert "2 threads (" in threads_of(capsys, *collect, "cart/two-v0", "--threads", "2")
    monkeypatch.setenv("OMP_NUM_THREADS", "2")
    assert "from OMP_NUM_THREADS" in threads_of(capsys, *evaluate)
    assert "1 thread (" in threads_of(capsys, *evaluate, "--threads", "1")


def test_a_resumed_run_keeps_its_threads_unless_told_otherwise(
    work: Path, capsys: pytest.CaptureFixture[str], own_threads: None
) -> None:
    threads_of(capsys, "train", "lstm.yaml", "--train.total_timesteps", "16", "--threads", "2")
    resume = ("train", "--resume", "runs/lstm-seed0", "--trust", "--train.total_timesteps")
    assert "2 threads (" in threads_of(capsys, *resume, "32")
    assert "2 threads (" in threads_of(capsys, "evaluate", "runs/lstm-seed0", "--episodes", "1", "--trust")
    assert "1 thread (" in threads_of(capsys, *resume, "48", "--threads", "1")
    assert read_experiment("runs/lstm-seed0/config.yaml").threads == 1
    assert "--threads must be a whole number in [1, 1024], got '0'" in refused(
        capsys, "evaluate", "runs/lstm-seed0", "--threads", "0", "--trust"
    )


def test_a_part_of_the_observation_is_recorded(work: Path, capsys: pytest.CaptureFixture[str]) -> None:
    words = ["collect", "--env", "CartPole-v1", "--behavior", "random", "--steps", "30", "--json", "--dataset"]
    dropped = json.loads(run(capsys, *words, "cart/dropped-v0", "--drop-indices", "1", "3"))
    kept = json.loads(run(capsys, *words, "cart/kept-v0", "--keep-indices", "0", "2"))
    assert dropped["observations"] == kept["observations"] and "(2,)" in dropped["observations"][""]
    assert "0..3" in refused(capsys, *words, "cart/x-v0", "--drop-indices", "4")
    assert "recorded must name every entry once, got [0, 2, 0]" in refused(
        capsys, *words, "cart/x-v0", "--keep-indices", "0", "2", "0"
    )
    assert "vector observation" in refused(
        capsys, *words[:2], "FrozenLake-v1", *words[3:], "frozen/x-v0", "--drop-indices", "0"
    )


@pytest.mark.parametrize("name", ["online", "offline", "lstm"])
def test_a_run_goes_on_on_another_device(name: str, work: Path, capsys: pytest.CaptureFixture[str]) -> None:
    length = "train.gradient_steps" if name == "offline" else "train.total_timesteps"
    run(capsys, "train", f"{name}.yaml", f"--{length}", "16", "--algorithm.device", "auto")
    resume = ("train", "--resume", f"runs/{name}-seed0", "--trust", f"--{length}", "32")
    run(capsys, *resume, "--algorithm.device", "cpu")
    assert read_experiment(f"runs/{name}-seed0/config.yaml").algorithm["device"] == "cpu"
    assert "algorithm.batch_size cannot change" in refused(capsys, *resume, "--algorithm.batch_size", "2")


@pytest.mark.parametrize(
    ("words", "message"),
    [
        (["train"], "needs either CONFIG or --resume"),
        (["train", "online.yaml", "--resume", "x"], "needs either CONFIG or --resume"),
        (["train", "--resume", "x", "--name", "other"], "--name is for a new run, --resume goes on in the folder"),
        (["train", "--resume", "x", "--name", ""], "--name is for a new run, --resume goes on in the folder"),
        (["train", "online.yaml", "--name", ""], "must be the name of one folder"),
        (["train", "online.yaml", "--name", "", "--seeds", "2"], "must be the name of one folder"),
        (["train", "online.yaml", "--environment.kwargs.delay", "2020-01-01"],
         "environment.kwargs.delay is a date (2020-01-01)"),
        (["train", "gtrxl_cue_recal"], "did you mean 'gtrxl_cue_recall'"),
        (["train", "online.yaml", "--seed"], "--seed needs a value"),
        (["train", "online.yaml", "--sed", "1"], "unknown setting sed; did you mean 'seed'"),
        (["train", "online.yaml", "--threads", "0"], "threads must be a whole number in [1, 1024]"),
        (["train", "online.yaml", "--thread", "2"], "unknown setting thread; did you mean 'threads'"),
        (["train", "online.yaml", "--algorithm.learning_rat", "1"],
         "unknown setting algorithm.learning_rat; did you mean 'algorithm.learning_rate'"),
        (["train", "online.yaml", "--algorithm.seed", "1"], "algorithm.seed is set elsewhere in a config: seed"),
        (["train", "online.yaml", "--backbone.widht", "8"], "did you mean 'backbone.width'"),
        (["train", "online.yaml", "--backbone.heads", "3"], "heads"),
        (["train", "online.yaml", "--policy.hed", "3"], "unknown setting policy.hed; known: action_masks, "),
        (["train", "online.yaml", "--policy.backbone", "alibi"],
         "unknown setting policy.backbone; did you mean 'backbone'"),
        (["train", "online.yaml", "--environment.id", "CueRecal-v0"], "did you mean 'rltransformers/CueRecall-v0'"),
        (["train", "online.yaml", "--environment.wrappers", "[Drop]"], "unknown wrapper 'Drop'"),
        (["train", "offline.yaml", "--dataset", "nobody/nothing-v0"], "nobody/nothing-v0"),
        (["train", "offline.yaml", "--dataset", "null"], "learns from data"),
        (["train", "offline.yaml", "--online", "{timestep: 5}"], "did you mean 'online.timesteps'"),
        (["train", "offline.yaml", "--online", "{timesteps: 0}"], "online.timesteps"),
        (["train", "offline.yaml", "--online", "{timesteps: 5}", "--environment.id", "Pendulum-v1"],
         "action_head='gaussian'"),
        (["train", "offline.yaml", "--algorithm.stochastic", "true"],
         "unknown setting algorithm.stochastic; did you mean 'algorithm.action_head': 'gaussian'?"),
        (["train", "offline.yaml", "--algorithm.action_head", "mixtur"], "algorithm.action_head must be one of"),
        (["train", "offline.yaml", "--algorithm.action_head_kwargs", "{component: 2}"],
         "did you mean 'algorithm.action_head_kwargs.components'?"),
        (["train", "offline.yaml", "--online", "{timesteps: 5}", "--environment.id", "CartPole-v1",
          "--algorithm.whole_episodes", "true", "--algorithm.context_length", "200"], "plays up to 500"),
        (["train", "online.yaml", "--online", "{timesteps: 5}"], "learns in its environment anyway"),
        (["train", "offline.yaml", "--algorithm.mode", "bc"], "has no target return"),
        (["train", "offline.yaml", "--dataset.collect.behaviors", "[rando]"], "'rando' is none of"),
        (["train", "offline.yaml", "--environment.processes", "true"], "leave out processes"),
        (["train", "--resume", "runs/none"], "not a run folder"),
        (["train", "online.yaml", "--environment.kwargs", "{1: 2}"],
         "environment.kwargs must be a mapping, got {1: 2}; the key 1 is no text"),
        (["evaluate", "runs/none"], "not a run folder"),
        (["evaluate", "runs/none", "--target-return", "high"], "must be a finite number, got 'high'"),
        (["evaluate", "runs/none", "--target-return", "nan"], "must be a finite number, got 'nan'"),
        (["evaluate", "runs/none", "--longest-episode", "abc"],
         "--longest-episode must be a whole number of at least 1, got 'abc'"),
        (["evaluate", "runs/none", "--longest-episode", "0"],
         "--longest-episode must be a whole number of at least 1, got '0'"),
        (["train", "online.yaml", "--seed", "4294967295", "--seeds", "2"],
         "the last of 2 seeds from 4294967295 on must be a whole number in [0, 4294967296), got 4294967296"),
        (["inspect", "nobody/nothing-v0"], "nobody/nothing-v0"),
        (["collect", "--env", "Nope-v0", "--behavior", "random", "--steps", "9", "--dataset", "a-v0"], "Nope-v0"),
        (["collect", "--env", "CartPole-v1", "--behavior", "random=x", "--steps", "9", "--dataset", "a-v0"], "weight"),
        (["collect", "--env", "CartPole-v1", "--behavior", "rndm", "--steps", "9", "--dataset", "a-v0"], "'rndm' is"),
        (["collect", "--env", "CartPole-v1", "--behavior", "random", "--steps", "1000000000", "--dataset", "a"],
         "'a' is no Minari id (it has no version); write"),  # before hours of recording
        (["collect", "--env", "CartPole-v1", "--behavior", "random", "--steps", "9", "--dataset", "a-v0",
          "--threads", "-1"], "--threads must be a whole number in [1, 1024], got '-1'"),
        (["collect", "--env", "CartPole-v1", "--env-kwargs", "{", "--behavior", "random", "--steps", "9",
          "--dataset", "a-v0"], "--env-kwargs is not valid"),
    ],
)  # fmt: skip
def test_bad_input_is_refused_with_one_message(
    work: Path, capsys: pytest.CaptureFixture[str], words: list[str], message: str
) -> None:
    assert message in refused(capsys, *words)
    assert not Path("runs").exists()


def test_a_corrupt_or_foreign_checkpoint_and_a_wrong_resume_are_named(
    work: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    run(capsys, "train", "online.yaml")
    folder = RunFolder("runs/online-seed0")
    assert "--seed cannot change when a run is resumed" in refused(
        capsys, "train", "--resume", str(folder.path), "--seed", "1"
    )
    assert "target_returns are for agent decision_transformer" in refused(
        capsys, "evaluate", str(folder.path), "--target-return", "1"
    )
    content = folder.last.read_bytes()
    folder.last.write_bytes(content[:-200])
    assert "corrupt or truncated" in refused(capsys, "evaluate", str(folder.path))
    run(capsys, "train", "offline.yaml", "--train.gradient_steps", "1")
    folder.last.write_bytes(RunFolder("runs/offline-seed0").last.read_bytes())
    assert "is a DecisionTransformer checkpoint" in refused(capsys, "evaluate", str(folder.path))
    folder.last.unlink()
    assert "does not exist" in refused(capsys, "evaluate", str(folder.path))
    run(capsys, "evaluate", str(folder.path), "--checkpoint", "best")
    run(capsys, "train", "lstm.yaml", "--train.total_timesteps", "16")
    baseline = RunFolder("runs/lstm-seed0")
    for content in (b"no zip", RunFolder("runs/offline-seed0").last.read_bytes()):
        baseline.last.write_bytes(content)
        assert "is corrupt or not of a RecurrentPPO" in refused(capsys, "evaluate", str(baseline.path), "--trust")


def test_debug_shows_the_error_itself(work: Path) -> None:
    with pytest.raises(ConfigError):
        main(["train", "nothing", "--debug"])


def test_list_prints_what_a_config_can_name(capsys: pytest.CaptureFixture[str]) -> None:
    contents = json.loads(run(capsys, "list", "--json"))
    assert set(contents) == {"axes", "presets", "agents", "wrappers", "configs"}
    assert {"gtrxl", "decision_transformer"} <= {preset["name"] for preset in contents["presets"]}
    assert {"gtrxl_ppo", "decision_transformer"} <= set(contents["agents"])
    for entries in contents["axes"].values():
        assert entries and all({"id", "name", "paper", "traits"} <= set(entry) for entry in entries)
    plain = run(capsys, "list")
    assert all(entry["name"] in plain for entries in contents["axes"].values() for entry in entries)


@pytest.mark.parametrize("command", sorted(build_parser().commands))
def test_help_shows_an_example(capsys: pytest.CaptureFixture[str], command: str) -> None:
    with pytest.raises(SystemExit) as stop:
        main([command, "--help"])
    assert stop.value.code == 0
    assert f"\n  rltransformers {command}" in capsys.readouterr().out


def test_help_of_train_names_every_setting(capsys: pytest.CaptureFixture[str]) -> None:
    with pytest.raises(SystemExit):
        main(["train", "--help"])
    words = set(re.findall(r"\w+", capsys.readouterr().out))
    parts = (
        *(ExperimentConfig, EnvironmentConfig, DatasetConfig, CollectConfig),
        *(TrainConfig, OnlineConfig, EvaluationConfig, TuneConfig),
    )
    assert {each.name for part in parts for each in fields(part)} <= words


def test_overrides_are_told_apart_from_words_of_the_command() -> None:
    words = ["train", "--a.b", "-1", "file.yaml", "--c=x=y", "--resume", "run", "--json", "--name=n", "--seeds", "2"]
    assert split_overrides(words, build_parser().commands["train"]) == (
        ["train", "file.yaml", "--resume", "run", "--json", "--name=n", "--seeds", "2"],
        [("a.b", "-1"), ("c", "x=y")],
    )


@pytest.mark.parametrize("name", packaged_configs())
def test_packaged_configs_are_valid_and_say_how_they_are_run(name: str) -> None:
    stem, config = find_config(name, [])
    check_keywords(config.agent, config.algorithm)
    if config.backbone:
        BackboneConfig.from_dict(config.backbone)
    header = (ROOT / "configs" / f"{name}.yaml").read_text().split("\nagent:")[0]
    assert stem == name and f"rltransformers train {name}" in header
    assert all(line.startswith("#") for line in header.splitlines())


@pytest.mark.parametrize("command", ["train", "evaluate", "collect"])
def test_scripts_are_the_same_commands(
    command: str, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(sys, "argv", [f"{command}.py", "--help"])
    with pytest.raises(SystemExit):
        runpy.run_path(str(ROOT / "scripts" / f"{command}.py"), run_name="__main__")
    assert f"rltransformers {command}" in capsys.readouterr().out


def test_values_of_a_config_are_not_changed_by_building(work: Path, capsys: pytest.CaptureFixture[str]) -> None:
    written: dict[str, Any] = {}
    for name in ("first", "second"):
        run(capsys, "train", "runs/first/config.yaml" if name == "second" else "online.yaml", "--name", name)
        written[name] = Path(f"runs/{name}/config.yaml").read_text()
    assert written["first"] == written["second"]


@pytest.mark.parametrize(
    "space",
    [
        spaces.Box(0, 255, (12, 12, 3), np.uint8),
        spaces.Box(0, 255, (6,), np.uint8),
        spaces.Discrete(3),
        spaces.Dict({"counts": spaces.Box(-9, 9, (2,), np.int64)}),
    ],
)
def test_what_is_no_vector_of_floats_is_not_normalized(space: Any) -> None:
    """VecNormalize would give such observations another space than the environment has, or leave it."""
    gym.register("test/Any-v0", entry_point=lambda **_: AnySpace(space, spaces.Discrete(3)))
    environment = {"id": "test/Any-v0", "normalize_observation": True}
    config = build_experiment({"agent": "gtrxl_ppo", "environment": environment, "train": {"total_timesteps": 8}})
    try:
        with pytest.raises(ConfigError, match="finds no vector of floats"):
            build_agent(config)
    finally:
        gym.registry.pop("test/Any-v0")
