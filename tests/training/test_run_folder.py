"""The run folder: unique names, continued metrics, evaluations that survive a resume, pictures, normalisation files."""

import csv
from pathlib import Path

import numpy as np
import pytest
from stable_baselines3.common.env_util import make_vec_env
from stable_baselines3.common.vec_env import VecNormalize

from rltransformers.core.errors import CheckpointError, ConfigError
from rltransformers.training.checkpoint import save_checkpoint
from rltransformers.training.evaluation import EvaluationResult, read_results
from rltransformers.training.normalization import load_normalization, save_normalization
from rltransformers.training.plots import plot_lookback, plot_return_versus_target
from rltransformers.training.run_folder import RunFolder

PNG = b"\x89PNG"


def result(mean: float, target: float | None = None) -> EvaluationResult:
    returns = tuple(mean + offset for offset in (-2.0, 0.0, 1.0, 1.0))
    return EvaluationResult("CartPole-v1", returns, (1, 1, 1, 1), (0, 1, 2, 3), target_return=target)


def test_runs_of_one_name_get_folders_of_their_own(tmp_path: Path) -> None:
    names = [RunFolder.create(tmp_path / "runs", "a-seed0").path.name for _ in range(3)]
    assert names == ["a-seed0", "a-seed0-2", "a-seed0-3"]


def test_a_folder_without_config_is_not_a_run(tmp_path: Path) -> None:
    with pytest.raises(ConfigError, match="not a run folder"):
        RunFolder.open(tmp_path)
    RunFolder(tmp_path).write_config({"seed": 1})
    assert RunFolder.open(tmp_path).config.read_text() == "seed: 1\n"


def test_metrics_of_a_resumed_run_follow_the_old_ones(tmp_path: Path) -> None:
    for start, keys in ((0, ["train/loss"]), (2, ["train/loss"]), (4, ["train/loss", "train/extra"])):
        logger = RunFolder(tmp_path).logger(stdout=False)
        for step in (start, start + 1):
            for key in keys:
                logger.record(key, float(step))
            logger.record("note", "x" * 5000, exclude="tensorboard")  # a file larger than any read buffer
            logger.dump(step)
        logger.close()
    with open(tmp_path / "progress.csv", newline="") as file:
        rows = list(csv.DictReader(file))
    assert [row["train/loss"] for row in rows] == ["0.0", "1.0", "2.0", "3.0", "4.0", "5.0"]
    assert [row["train/extra"] for row in rows] == ["", "", "", "", "4.0", "5.0"]
    assert len(list(tmp_path.glob("events.out.tfevents.*"))) == 3


def test_an_evaluation_that_a_resumed_run_repeats_replaces_the_old_ones(tmp_path: Path) -> None:
    folder = RunFolder(tmp_path)
    for step, mean in ((100, 1.0), (200, 2.0), (300, 3.0), (200, 5.0)):
        folder.append_evaluation(step, [result(mean)])
    assert folder.read_evaluations() == [(100, [result(1.0)]), (200, [result(5.0)])]


def test_the_pictures_are_drawn(tmp_path: Path) -> None:
    folder = RunFolder(tmp_path)
    folder.plot("environment steps")
    assert not folder.learning_curve.exists()
    results = [result(5.0, 10.0), result(15.0, 20.0)]
    for step in (1000, 3000):
        folder.append_evaluation(step, results)
    folder.plot("gradient steps")
    folder.write_final(results)
    assert read_results(folder.evaluation) == results
    plot_return_versus_target(tmp_path / "target.png", results, "title")
    plot_lookback(tmp_path / "lookback.png", np.ones((2, 5)) / 5, "title")
    for name in ("learning_curve.png", "target.png", "lookback.png"):
        assert (tmp_path / name).read_bytes().startswith(PNG)


def test_pictures_without_their_data_are_refused(tmp_path: Path) -> None:
    with pytest.raises(ConfigError, match="no evaluation has a target return"):
        plot_return_versus_target(tmp_path / "x.png", [result(1.0)], "title")
    with pytest.raises(ConfigError, match=r"\[layers, look-back\], got shape \(3,\)"):
        plot_lookback(tmp_path / "x.png", np.ones(3), "title")


def test_normalisation_comes_back_without_pickle(tmp_path: Path) -> None:
    env = VecNormalize(make_vec_env("CartPole-v1", 2, seed=0), clip_obs=7.0)
    env.reset()
    for _ in range(20):
        env.step(np.array([0, 1]))
    save_normalization(tmp_path / "normalization", env)
    loaded = load_normalization(tmp_path / "normalization", make_vec_env("CartPole-v1", 2, seed=0), training=False)
    raw = np.array([[0.1, -0.2, 0.3, 0.4]])
    np.testing.assert_array_equal(env.normalize_obs(raw), loaded.normalize_obs(raw))
    assert (loaded.clip_obs, loaded.training, loaded.norm_reward) == (7.0, False, False)
    resumed = load_normalization(tmp_path / "normalization", env.venv, training=True)
    assert resumed.normalize_reward(np.array([2.0])) == env.normalize_reward(np.array([2.0])) != 2.0
    save_checkpoint(tmp_path / "other", "GTrXLPPO", {}, {})
    with pytest.raises(CheckpointError, match="is a GTrXLPPO checkpoint"):
        load_normalization(tmp_path / "other", env.venv, training=True)
