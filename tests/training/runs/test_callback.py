"""When a run is evaluated and saved: between updates, the best kept, the last about once a minute."""

import csv
import signal
from os import PathLike
from pathlib import Path

import pytest
from stable_baselines3.common.logger import Logger

from rltransformers.core.signals import Stopped
from rltransformers.training.evaluation import EvaluationResult
from rltransformers.training.runs import callback as module
from rltransformers.training.runs.callback import RunCallback
from rltransformers.training.runs.run_folder import MetricsCSV, RunFolder


class Model:
    """What a callback needs of an algorithm."""

    def __init__(self) -> None:
        self.num_timesteps = self._n_updates = 0
        self.logger = Logger(None, [])

    def get_env(self) -> None:
        return None


class Run:
    """A run whose evaluations return given means; notes what is written."""

    def __init__(
        self, folder: Path, means: list[float], every: int, online: bool, restart_every: int = 0, begun: int = 0
    ) -> None:
        self.model, self.means, self.saved = Model(), means, list[tuple[str, int]]()
        self.folder, self.said = RunFolder(folder), list[str]()
        self.restarts = list[int]()
        self.callback = RunCallback(
            self.folder,
            every,
            evaluate=self.evaluate,
            save=self.save,
            steps="steps",
            online=online,
            report=self.said.append,
            restart_every=restart_every,
            restart=self.restarts.append,
        )
        self.callback.init_callback(self.model)  # type: ignore[arg-type]
        self.model.num_timesteps = begun
        self.callback.on_training_start({}, {})

    def evaluate(self) -> list[EvaluationResult]:
        mean = self.means.pop(0)
        return [EvaluationResult("CartPole-v1", (mean, mean), (1, 1), (0, 1))]

    def save(self, path: PathLike[str]) -> None:
        Path(path).touch()
        self.saved.append((Path(path).name, self.model.num_timesteps))

    def step(self, to: int, *, rollout: bool) -> None:
        self.model.num_timesteps = to
        self.callback.on_step()
        if rollout:
            self.callback.on_rollout_start()


def test_online_work_happens_between_rollouts_and_keeps_the_best(tmp_path: Path) -> None:
    run = Run(tmp_path, [1.0, 3.0, 2.0, 9.0], every=10, online=True)
    metrics = MetricsCSV(tmp_path / "progress.csv")
    run.model.logger.output_formats.append(metrics)
    for updates, (to, rollout) in enumerate(((8, True), (11, False), (16, True), (24, True), (32, True))):
        run.model._n_updates = updates
        run.step(to, rollout=rollout)
    metrics.close()
    with (tmp_path / "progress.csv").open() as file:
        counts = [(int(row["step"]), int(row["train/n_updates"])) for row in csv.DictReader(file)]
    assert counts == [(16, 2), (24, 3), (32, 4)], "an evaluation stands behind the updates of its step"
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
    resumed = Run(tmp_path, [4.0, 6.0], every=1, online=False, begun=1)
    resumed.step(2, rollout=False)
    assert ("best.zip", 2) not in resumed.saved
    resumed.step(3, rollout=False)
    assert ("best.zip", 3) in resumed.saved


def test_of_several_targets_the_highest_mean_counts(tmp_path: Path) -> None:
    run = Run(tmp_path, [], every=1, online=False)
    for step, means in enumerate(((3.0, 5.0), (4.0, 4.5), (1.0, 6.0)), 1):
        results = [EvaluationResult("CartPole-v1", (mean,), (1,), (0,), None, mean) for mean in means]
        run.callback._evaluate = lambda results=results: results  # type: ignore[misc]
        run.step(step, rollout=False)
    assert [entry for entry in run.saved if entry[0] == "best.zip"] == [("best.zip", 1), ("best.zip", 3)]


def test_past_scores_are_not_computed_again(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    scores, score = list[float](), module.score

    def counted(results: list[EvaluationResult], validation: None = None) -> float:
        scores.append(score(results, validation))
        return scores[-1]

    monkeypatch.setattr(module, "score", counted)
    run = Run(tmp_path, [float(mean) for mean in range(20)], every=1, online=False)
    for step in range(1, 21):
        run.step(step, rollout=False)
    assert len(scores) == 20 and run.saved[-1] == ("best.zip", 20)


def test_a_minute_without_a_checkpoint_makes_one(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    now = [100.0]
    monkeypatch.setattr("time.monotonic", lambda: now[0])
    run = Run(tmp_path, [], every=0, online=True)
    run.step(5, rollout=True)
    now[0] += module.SAVE_SECONDS + 1
    run.step(10, rollout=True)
    run.step(15, rollout=True)
    assert run.saved == [("last.zip", 0), ("last.zip", 10)]


def test_slow_checkpoints_are_rarer(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    now = [100.0]
    monkeypatch.setattr("time.monotonic", lambda: now[0])
    run = Run(tmp_path, [], every=0, online=True)
    save = run.callback._save

    def slowly(path: PathLike[str]) -> None:
        now[0] += 10.0
        save(path)

    run.callback._save = slowly
    for step, passed in ((5, 0.0), (10, 61.0), (15, 199.0), (20, 2.0)):
        now[0] += passed
        run.step(step, rollout=True)
    assert run.saved == [("last.zip", 0), ("last.zip", 10), ("last.zip", 20)]  # the first was quick


def test_every_target_is_logged_under_its_own_name(tmp_path: Path) -> None:
    run = Run(tmp_path, [], every=1, online=False)
    metrics = MetricsCSV(tmp_path / "progress.csv")
    run.model.logger.output_formats.append(metrics)
    run.model.logger.record("train/loss", 3.0)  # of the row that the next log writes
    targets = (700.0, 2400.0, 2400.0001)
    results = [EvaluationResult("Hopper-v5", (mean,), (1,), (0,), None, mean) for mean in targets]
    run.callback._evaluate = lambda: results
    run.step(1, rollout=False)
    metrics.close()
    with (tmp_path / "progress.csv").open() as file:
        (row,) = csv.DictReader(file)
    assert row["eval/return_mean_target_700"] == "700.0" and row["eval/return_mean_target_2400"] == "2400.0"
    assert row["eval/return_mean_target_2400.0001"] == "2400.0001", "a name of its own"
    assert row["step"] == "1" and "eval/normalized_score_target_700" in row and "train/loss" not in row
    assert run.model.logger.name_to_value == {"train/loss": 3.0}


def test_what_a_return_head_predicts_is_logged(tmp_path: Path) -> None:
    run = Run(tmp_path, [], every=1, online=False)
    metrics = MetricsCSV(tmp_path / "progress.csv")
    run.model.logger.output_formats.append(metrics)
    result = EvaluationResult("CartPole-v1", (3.0, 5.0), (1, 1), (0, 1), predicted_returns=(8.0, 6.0))
    run.callback._evaluate = lambda: [result]
    run.step(1, rollout=False)
    metrics.close()
    with (tmp_path / "progress.csv").open() as file:
        (row,) = csv.DictReader(file)
    assert row["eval/predicted_return"] == "7.0"
    assert run.said == ["         1 steps: return 4.00 ± 1.00 (predicted 7)"]


def test_the_evaluation_of_a_step_comes_behind_its_checkpoint(tmp_path: Path) -> None:
    run = Run(tmp_path, [], every=1, online=False)

    def dies() -> list[EvaluationResult]:
        raise OSError("no environment")

    run.callback._evaluate = dies
    with pytest.raises(OSError, match="no environment"):
        run.step(1, rollout=False)
    assert run.saved[-1] == ("last.zip", 1) and run.folder.read_evaluations() == []
    again = Run(tmp_path, [4.0], every=1, online=False, begun=1)  # the evaluation that is missing comes first
    assert [step for step, _ in again.folder.read_evaluations()] == [1]
    assert [entry for entry in again.saved if entry[0] == "best.zip"] == [("best.zip", 1)]


@pytest.mark.parametrize("online", [True, False])
def test_a_signal_ends_the_run_between_two_updates_behind_a_checkpoint(tmp_path: Path, online: bool) -> None:
    run = Run(tmp_path, [], every=0, online=online)
    run.step(3, rollout=True)
    run.callback.stop(signal.SIGTERM)
    run.model.num_timesteps = 5
    if online:  # in the middle of a rollout
        run.callback.on_step()
        assert run.saved == [("last.zip", 0)]
    with pytest.raises(Stopped) as stopped:
        run.step(6, rollout=True)
    assert run.saved[-1] == ("last.zip", 6) and stopped.value.signum == signal.SIGTERM
    with pytest.raises(Stopped, match="SIGINT"):
        run.callback.stop(signal.SIGINT)


@pytest.mark.parametrize("early", [True, False])
def test_a_signal_ends_an_evaluation_at_once(tmp_path: Path, early: bool) -> None:
    run = Run(tmp_path, [1.0], every=2, online=False)
    run.step(1, rollout=False)

    def evaluate() -> list[EvaluationResult]:
        assert not early
        run.callback.stop(signal.SIGHUP)
        raise AssertionError("unreachable")

    run.callback._evaluate = evaluate
    if early:
        run.callback.stop(signal.SIGHUP)
    with pytest.raises(Stopped, match="SIGHUP"):
        run.step(2, rollout=False)
    assert run.saved[-1] == ("last.zip", 2) and run.folder.read_evaluations() == []


def test_episodes_restart_right_behind_a_checkpoint_and_there_is_no_other(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(module, "SAVE_SECONDS", -1.0)
    run = Run(tmp_path, [1.0, 2.0, 3.0], every=15, online=True, restart_every=20)
    for to in (0, 8, 16, 24, 32, 40, 48):
        run.step(to, rollout=True)
    assert run.restarts == [0, 24, 40]
    assert [entry for entry in run.saved if entry[0] == "last.zip"] == [("last.zip", step) for step in (0, 24, 40)]
    assert [step for step, _ in run.folder.read_evaluations()] == [16, 32, 48]
    resumed = Run(tmp_path, [], every=0, online=True, restart_every=20, begun=40)
    resumed.step(40, rollout=True)
    resumed.step(56, rollout=True)
    resumed.step(60, rollout=True)
    assert resumed.restarts == [40, 60]
    resumed.callback.stop(signal.SIGTERM)
    with pytest.raises(Stopped):
        resumed.step(68, rollout=True)
    assert resumed.saved[-1] == ("last.zip", 60)
