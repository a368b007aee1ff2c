"""The run folder: unique names, continued metrics, evaluations that survive a resume, pictures, normalization files."""

import csv
import os
import subprocess
import sys
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from stable_baselines3.common.env_util import make_vec_env
from stable_baselines3.common.vec_env import VecNormalize
from tensorboard.backend.event_processing.event_accumulator import EventAccumulator
from tensorboard.summary.writer import event_file_writer

from rltransformers.core.checkpoint import save_checkpoint
from rltransformers.core.errors import CheckpointError, ConfigError
from rltransformers.training.evaluation import EvaluationResult, read_results
from rltransformers.training.normalization import load_normalization, save_normalization
from rltransformers.training.runs import plots
from rltransformers.training.runs.plots import plot_lookback, plot_return_versus_target
from rltransformers.training.runs.run_folder import MetricsCSV, RunFolder

PNG = b"\x89PNG"


@pytest.fixture(autouse=True)
def event_files_in_order(monkeypatch: pytest.MonkeyPatch) -> None:
    """Event files are read by name: second, machine, process, and how many files the process wrote before.

    Real runs write their files in different seconds; here several are written in one, and "10" stands before "9".
    """
    counter = type(event_file_writer._global_uid)(1000)
    monkeypatch.setattr(event_file_writer, "_global_uid", counter)


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
    (tmp_path / "best.zip").touch()
    with pytest.raises(ConfigError, match=r"best.zip is a file of the run .*; name the run .*--checkpoint"):
        RunFolder.open(tmp_path / "best.zip")


def test_a_process_that_is_killed_while_it_writes_its_config_leaves_no_run(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """A run without the copy of its config could not be resumed."""
    move, count = os.replace, []

    def once(source: Any, target: Any) -> None:
        count.append(target)
        if len(count) > 1:
            raise KeyboardInterrupt
        move(source, target)

    monkeypatch.setattr(os, "replace", once)
    with pytest.raises(KeyboardInterrupt):
        RunFolder(tmp_path).write_config({"seed": 1})
    assert RunFolder(tmp_path).begun.is_file() and not RunFolder(tmp_path).config.exists()


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


def scalars(folder: Path) -> dict[str, list[tuple[int, float]]]:
    """Everything that TensorBoard reads in a folder: (step, value) by tag."""
    accumulator = EventAccumulator(str(folder), {"scalars": 0})
    accumulator.Reload()
    return {tag: [(e.step, e.value) for e in accumulator.Scalars(tag)] for tag in accumulator.Tags()["scalars"]}


def rows(folder: Path) -> list[dict[str, str]]:
    with open(folder / "progress.csv", newline="") as file:
        return [{key: value for key, value in row.items() if value} for row in csv.DictReader(file)]


def write(folder: RunFolder, steps: range, evaluated: range = range(0), complete: bool = True) -> None:
    """One process of a run: a row per step, and evaluations of some steps; without ``complete`` it dies in the last."""
    logger = folder.logger(stdout=False)
    for step in steps:
        logger.record("train/loss", float(step))
        logger.dump(step)
        if step in evaluated:
            logger.record("eval/return_mean", float(10 * step))
            logger.record("train/loss", 0.5)  # of the last update, which the final evaluation writes along
            logger.dump(step)
            if complete or step != evaluated[-1]:
                folder.append_evaluation(step, [result(float(step))])
    logger.close()


@pytest.mark.parametrize("complete", [True, False])
@pytest.mark.parametrize("step", [0, 3, 4, 5, 9])
def test_what_was_logged_after_the_checkpoint_is_taken_back(tmp_path: Path, step: int, complete: bool) -> None:
    stopped, straight = RunFolder(tmp_path / "stopped"), RunFolder(tmp_path / "straight")
    for folder in (stopped, straight):
        folder.path.mkdir()
    write(stopped, range(3))
    last = range(4, step + 1, step - 4) if step > 4 else range(4, 5)
    write(stopped, range(3, 10), last, complete)
    stopped.cut(step)
    write(straight, range(min(3, step + 1)))
    write(straight, range(3, step + 1), last)
    if not complete and step >= 4:  # the evaluation that was running at the end is as if it had not begun
        (straight.path / "progress.csv").unlink()
        for file in straight.event_files():
            file.unlink()
        write(straight, range(3))
        write(straight, range(3, step + 1), last[:-1])
    assert rows(stopped.path) == rows(straight.path)
    assert stopped.metrics.read_text() == straight.metrics.read_text()  # columns that only lost rows had are gone
    assert scalars(stopped.path) == scalars(straight.path)
    ends = [at for at, _ in stopped.read_evaluations()]
    assert ends == [at for at in (last if complete else last[:-1]) if at <= step]


def test_torn_files_of_a_killed_process_are_read_up_to_the_tear(tmp_path: Path) -> None:
    folder = RunFolder(tmp_path)
    write(folder, range(4))
    with folder.metrics.open("a") as file:
        file.write("4,4")
    (events,) = folder.event_files()
    with events.open("ab") as file:
        file.write(b"\x18\0\0")
    folder.cut(7)
    write(folder, range(4, 6))
    assert [row["step"] for row in rows(tmp_path)] == list("012345")
    assert scalars(tmp_path) == {"train/loss": [(step, float(step)) for step in range(6)]}
    folder.metrics.write_text("st")
    write(folder, range(1))
    assert rows(tmp_path) == [{"step": "0", "train/loss": "0.0"}]


def test_a_new_metric_never_leaves_a_half_written_file(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    folder = RunFolder(tmp_path)
    write(folder, range(3))
    before = folder.metrics.read_text()
    seen, replace = list[str](), os.replace

    def watched(source: Path, target: Path) -> None:
        seen.append(folder.metrics.read_text())
        replace(source, target)

    monkeypatch.setattr(os, "replace", watched)
    metrics = MetricsCSV(folder.metrics)
    metrics.write({"a,b": 'say "x"', "loss": np.float32(0.5)}, {"a,b": ("tensorboard",), "loss": ()}, 3)
    metrics.write({"hidden": 1}, {"hidden": ("csv",)}, 4)
    metrics.close()
    assert seen == [before]
    assert rows(tmp_path)[3:] == [{"step": "3", "a,b": 'say "x"', "loss": "0.5"}, {"step": "4"}]


def test_only_what_this_run_left_half_written_is_removed(tmp_path: Path) -> None:
    folder = RunFolder(tmp_path)
    mine = [".last.abcd_123.tmp.zip", ".evaluations.01234567.tmp.jsonl", ".last.normalization.abcdefgh.tmp.zip"]
    other = [
        ".lookback.abcd1234.tmp.png",
        "last.abcd1234.tmp.zip",
        ".last.abcd1234.zip",
        ".last.abc.tmp.zip",
        "note.txt",
    ]
    for name in (*mine, *other):
        (tmp_path / name).touch()
    with folder.locked():
        left = {path.name for path in tmp_path.iterdir()}
    assert left == {*other, ".lock"}


HOLDER = """
import sys
from rltransformers.training.runs.run_folder import MetricsCSV, RunFolder
with RunFolder(sys.argv[1]).locked():
    print("held", flush=True)
    sys.stdin.read()
"""


def test_one_process_trains_in_a_folder_and_its_death_frees_it(tmp_path: Path) -> None:
    folder = RunFolder(tmp_path)
    half = tmp_path / ".last.abcd1234.tmp.zip"
    with subprocess.Popen([sys.executable, "-c", HOLDER, str(tmp_path)], stdin=-1, stdout=-1) as process:
        assert process.stdout is not None and process.stdout.readline() == b"held\n"
        half.touch()  # it may be writing this right now
        with pytest.raises(ConfigError, match=f"run folder .* is in use by process {process.pid} on "), folder.locked():
            pass
        assert half.exists()
        process.kill()
    with folder.locked():
        assert not half.exists()


def test_an_evaluation_that_a_resumed_run_repeats_replaces_the_old_ones(tmp_path: Path) -> None:
    folder = RunFolder(tmp_path)
    for step, mean in ((100, 1.0), (200, 2.0), (300, 3.0), (200, 5.0)):
        folder.append_evaluation(step, [result(mean)])
    assert folder.read_evaluations() == [(100, [result(1.0)]), (200, [result(5.0)])]


def test_the_evaluations_before_one_are_not_computed_again(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    folder, summaries, summary = RunFolder(tmp_path), [], EvaluationResult.summary

    def count(self: EvaluationResult) -> dict[str, Any]:
        summaries.append(self)
        return summary(self)

    monkeypatch.setattr(EvaluationResult, "summary", count)
    for step in range(1, 6):
        folder.append_evaluation(step, [result(float(step))])
    folder.cut(3)
    assert len(summaries) == 5 and [step for step, _ in folder.read_evaluations()] == [1, 2, 3]


def test_an_evaluation_costs_as_much_as_the_first_however_many_there_are(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Nothing is written or parsed again for each of them: counted in results and in files that are replaced."""
    parsed, written = list[int](), list[Path]()
    from_dict, replace = EvaluationResult.from_dict, os.replace

    def counted(values: dict[str, Any]) -> EvaluationResult:
        parsed.append(1)
        return from_dict(values)

    def watched(source: Path, target: Path) -> None:
        written.append(target)
        replace(source, target)

    monkeypatch.setattr(EvaluationResult, "from_dict", counted)
    monkeypatch.setattr(os, "replace", watched)
    folder = RunFolder(tmp_path)
    for step in range(20):
        folder.append_evaluation(step, [result(float(step))])
        assert folder.read_evaluations()[-1] == (step, [result(float(step))])
    assert len(parsed) <= 2 * 20 and written == [folder.evaluations]
    assert RunFolder(tmp_path).read_evaluations() == folder.read_evaluations()


def test_a_process_that_is_killed_in_the_middle_of_an_evaluation_leaves_those_before_it(tmp_path: Path) -> None:
    whole = RunFolder(tmp_path / "whole")
    whole.path.mkdir()
    for step in range(3):
        whole.append_evaluation(step, [result(float(step))])
    content = whole.evaluations.read_bytes()
    two, three = (content.index(b"\n", content.index(f'"step": {step}'.encode())) + 1 for step in (1, 2))
    for end in (two, two + 1, two + 30, three - 2, three - 1):  # the last one lacks nothing but the end of its line
        for knows in (True, False):  # whether it goes on in the process that failed, or in a new one
            folder = RunFolder(tmp_path)
            folder.evaluations.write_bytes(content[:two])
            assert len(folder.read_evaluations()) == 2
            folder.evaluations.write_bytes(content[:end])
            folder = folder if knows else RunFolder(tmp_path)
            assert len(folder.read_evaluations()) == (3 if end == three - 1 else 2)
            for step in (2, 3):
                folder.append_evaluation(step, [result(float(step))])
            assert folder.evaluations.read_bytes().startswith(content)
            assert [step for step, _ in RunFolder(tmp_path).read_evaluations()] == [0, 1, 2, 3]
            folder.cut(2)
            assert folder.evaluations.read_bytes() == content


def test_evaluations_that_somebody_edits_are_read_again(tmp_path: Path) -> None:
    folder = RunFolder(tmp_path)
    for step in (10, 20, 30):
        folder.append_evaluation(step, [result(1.0)])
    lines = folder.evaluations.read_text().splitlines(keepends=True)
    folder.evaluations.write_text(lines[0] + lines[2])
    assert [step for step, _ in folder.read_evaluations()] == [10, 30]
    folder.append_evaluation(40, [result(1.0)])
    assert [step for step, _ in folder.read_evaluations()] == [10, 30, 40]


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
    plot_lookback(tmp_path / "lookback.png", {"layer0": np.ones((2, 5)) / 5, "layer1": np.ones((1, 5)) / 5}, "title")
    for name in ("learning_curve.png", "target.png", "lookback.png"):
        assert (tmp_path / name).read_bytes().startswith(PNG)


def test_a_line_of_returns_lies_in_its_interval_where_targets_are_discounted(monkeypatch: pytest.MonkeyPatch) -> None:
    returns, discounted = tuple(map(float, range(100, 110))), tuple(map(float, range(30, 40)))
    ten = tuple(range(10))
    one = EvaluationResult(None, returns, ten, ten, target_return=36.0, discounted_returns=discounted)
    drawn: list[Any] = []
    monkeypatch.setattr(plots, "_write", lambda figure, path: drawn.append(figure.axes[0]))
    plots.plot_learning_curve("x.png", [(1, [one]), (2, [one])], "title", "steps")
    plots.plot_return_versus_target("x.png", [one], "title")
    curve, against = drawn
    low, high = curve.collections[0].get_paths()[0].get_extents().intervaly
    assert curve.lines[0].get_ydata() == pytest.approx([104.5, 104.5]) and 102 < low < 104.5 < high < 107
    assert against.containers[0].lines[0].get_ydata() == pytest.approx([34.5])
    assert one.line() == "return 104.50 ± 2.87 (discounted 34.50, target 36)"
    assert one.summary()["discounted_return_mean"] == 34.5


def test_a_look_back_picture_says_how_far_every_head_looks(monkeypatch: pytest.MonkeyPatch) -> None:
    drawn: list[Any] = []
    monkeypatch.setattr(plots, "_write", lambda figure, path: drawn.append(figure.axes[0]))
    plot_lookback("x.png", {"layer1": [[1.0, 0.0, 0.0], [0.25, 0.25, 0.5]], "layer3": [[0.0, 0.0, 0.5]]}, "title")
    names = [label.get_text() for label in drawn[0].get_yticklabels()]
    assert names == ["layer 1, head 0: 0.0 ago", "layer 1, head 1: 1.2 ago", "layer 3, head 0: 2.0 ago"]


def test_target_returns_without_data_are_shaded(monkeypatch: pytest.MonkeyPatch) -> None:
    drawn: list[Any] = []
    monkeypatch.setattr(plots, "_write", lambda figure, path: drawn.append(figure.axes[0]))
    ten = tuple(range(10))
    results = [EvaluationResult(None, ten, ten, ten, target_return=target) for target in (10.0, 20.0, 30.0)]
    missing = [[-np.inf, 12.0], [17.0, 24.0], [40.0, np.inf]]
    plots.plot_return_versus_target("x.png", results, "title", missing)
    plots.plot_return_versus_target("x.png", results, "title")
    shaded, plain = (
        [patch.get_extents().transformed(axes.transData.inverted()) for patch in axes.patches] for axes in drawn
    )
    left = drawn[0].get_xlim()[0]
    spans = [(box.x0, box.x1) for box in shaded]
    assert spans == [pytest.approx((left, 12.0)), pytest.approx((17.0, 24.0))] and not plain
    assert drawn[0].get_xlim() == drawn[1].get_xlim()
    labels = [[text.get_text() for text in axes.get_legend().get_texts()] for axes in drawn]
    assert labels[0].count("no data near") == 1 and "no data near" not in labels[1]


def test_pictures_without_their_data_are_refused(tmp_path: Path) -> None:
    with pytest.raises(ConfigError, match="no evaluation has a target return"):
        plot_return_versus_target(tmp_path / "x.png", [result(1.0)], "title")
    for wrong in ([np.ones(3)], [], [np.ones((2, 3)), np.ones((2, 4))]):
        with pytest.raises(ConfigError, match=r"\[heads, look-back\] of every layer"):
            plot_lookback(tmp_path / "x.png", {f"layer{i}": each for i, each in enumerate(wrong)}, "title")


def test_normalization_comes_back_without_pickle(tmp_path: Path) -> None:
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
