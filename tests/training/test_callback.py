"""When a run is evaluated and saved: between updates, the best kept, the last at least once a minute."""

from os import PathLike
from pathlib import Path
from typing import Any

import pytest
from stable_baselines3.common.logger import Logger

from rltransformers.training import callback as module
from rltransformers.training.callback import RunCallback
from rltransformers.training.evaluation import EvaluationResult
from rltransformers.training.run_folder import RunFolder


class Model:
    """What a callback needs of an algorithm."""

    def __init__(self) -> None:
        self.num_timesteps = 0
        self.logger = Logger(None, [])

    def get_env(self) -> None:
        return None


class Run:
    """A run whose evaluations return given means; notes what is written."""

    def __init__(self, folder: Path, means: list[float], every: int, online: bool) -> None:
        self.model, self.means, self.saved = Model(), means, list[tuple[str, int]]()
        self.folder, self.said = RunFolder(folder), list[str]()
        self.callback = RunCallback(self.folder, every, self.evaluate, self.save, "steps", online, self.said.append)
        self.callback.init_callback(self.model)  # type: ignore[arg-type]
        self.callback.on_training_start({}, {})

    def evaluate(self) -> list[EvaluationResult]:
        mean = self.means.pop(0)
        return [EvaluationResult("CartPole-v1", (mean, mean), (1, 1), (0, 1))]

    def save(self, path: PathLike[str]) -> None:
        self.saved.append((Path(path).name, self.model.num_timesteps))

    def step(self, to: int, *, rollout: bool) -> None:
        self.model.num_timesteps = to
        self.callback.on_step()
        if rollout:
            self.callback.on_rollout_start()


def test_online_work_happens_between_rollouts_and_keeps_the_best(tmp_path: Path) -> None:
    run = Run(tmp_path, [1.0, 3.0, 2.0, 9.0], every=10, online=True)
    for to, rollout in ((8, True), (11, False), (16, True), (24, True), (32, True)):
        run.step(to, rollout=rollout)
    assert [step for step, _ in run.folder.read_evaluations()] == [16, 24, 32]
    assert [entry for entry in run.saved if entry[0] == "best.zip"] == [("best.zip", 16), ("best.zip", 24)]
    assert [entry for entry in run.saved if entry[0] == "last.zip"] == [("last.zip", step) for step in (0, 16, 24, 32)]
    assert run.said[0].split() == ["16", "steps:", "return", "1.00", "±", "0.00"]


def test_offline_work_happens_after_a_step_and_the_last_evaluation_is_not_repeated(tmp_path: Path) -> None:
    run = Run(tmp_path, [1.0, 2.0], every=2, online=False)
    for to in (1, 2, 3, 4):
        run.step(to, rollout=False)
    assert run.callback.finish()[0].returns == (2.0, 2.0)
    assert [step for step, _ in run.folder.read_evaluations()] == [2, 4]


def test_the_best_of_a_resumed_run_counts(tmp_path: Path) -> None:
    Run(tmp_path, [5.0], every=1, online=False).step(1, rollout=False)
    resumed = Run(tmp_path, [4.0, 6.0], every=1, online=False)
    resumed.model.num_timesteps = 1
    resumed.callback.on_training_start({}, {})
    resumed.step(2, rollout=False)
    assert ("best.zip", 2) not in resumed.saved
    resumed.step(3, rollout=False)
    assert ("best.zip", 3) in resumed.saved


def test_a_minute_without_a_checkpoint_makes_one(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    now = [100.0]
    monkeypatch.setattr("time.monotonic", lambda: now[0])
    run = Run(tmp_path, [], every=0, online=True)
    run.step(5, rollout=True)
    now[0] += module.SAVE_SECONDS + 1
    run.step(10, rollout=True)
    run.step(15, rollout=True)
    assert run.saved == [("last.zip", 0), ("last.zip", 10)]


def test_every_target_is_logged_under_its_own_name(tmp_path: Path) -> None:
    run = Run(tmp_path, [], every=1, online=False)
    logged: dict[str, Any] = {}
    run.model.logger.record = lambda key, value, exclude=None: logged.update({key: value})  # type: ignore[method-assign]
    results = [EvaluationResult("Hopper-v5", (mean,), (1,), (0,), None, mean) for mean in (700.0, 2400.0)]
    run.callback._evaluate = lambda: results
    run.step(1, rollout=False)
    assert logged["eval/return_mean_target_700"] == 700.0 and logged["eval/return_mean_target_2400"] == 2400.0
    assert "eval/normalized_score_target_700" in logged
