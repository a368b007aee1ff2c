"""Runs compared: what belongs together and how it is called, statistics by the functions they are of, CSV, errors."""

import copy
import csv
import json
from collections.abc import Callable, Mapping, Sequence
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from PIL import Image
from tensorboard.compat.proto.event_pb2 import Event
from tensorboard.summary.writer.record_writer import RecordWriter

import rltransformers
from rltransformers.cli.main import main
from rltransformers.core.errors import ConfigError, DataError
from rltransformers.functional.statistics import iqm, iqm_interval, probability_of_improvement, stratified_bootstrap
from rltransformers.training.runs.comparison import Comparison, compare, duration
from rltransformers.training.runs.experiment import build_experiment, set_value
from rltransformers.training.runs.groups import differing, find_runs
from rltransformers.training.runs.plots import plot_lookback
from rltransformers.training.runs.run_folder import RunFolder

CONFIG: dict[str, Any] = {
    "agent": "gtrxl_ppo",
    "environment": {"id": "CartPole-v1", "num_envs": 2},
    "backbone": {"preset": "gtrxl", "memory": 5},
    "algorithm": {"n_steps": 8},
    "train": {"total_timesteps": 300},
    "evaluation": {"every": 100, "episodes": 3},
}
PPO = CONFIG | {"agent": "ppo", "backbone": {}}
DT: dict[str, Any] = {
    "agent": "decision_transformer",
    "dataset": {"id": "some"},
    "algorithm": {"validation": 0.1},
    "train": {"gradient_steps": 300},
}
Make = Callable[..., Path]


@pytest.fixture
def make(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Make:
    """Makes a run folder as training would: a log line and an evaluation every 100 steps with one of the scores."""
    monkeypatch.chdir(tmp_path)

    def make(
        name: str,
        scores: Sequence[float],
        config: Mapping[str, Any] = CONFIG,
        finished: bool = True,
        metric: str = "eval/mean_reward",
        **settings: Any,
    ) -> Path:
        values: dict[str, Any] = copy.deepcopy(dict(config))
        for key, value in settings.items():
            set_value(values, key.replace("__", "."), value)
        folder = RunFolder.create("runs", name)
        folder.write_config(build_experiment(values).to_dict())
        logger = folder.logger(stdout=False)
        for place, score in enumerate(scores, 1):
            logger.record("train/n_updates", 10 * place)
            logger.dump(100 * place)
            logger.record(metric, score)
            logger.record("eval/success_rate", score / 10)
            logger.dump(100 * place)
        logger.close()
        if finished:
            folder.evaluation.write_text("[]")
        return folder.path

    return make


@pytest.fixture
def runs(make: Make) -> list[Path]:
    """Two groups of five and three seeds."""
    softmax = [make(f"a-seed{seed}", [0.0, 5.0 - seed, seed], seed=seed) for seed in range(5)]
    return softmax + [make(f"b-seed{seed}", [0.0, 1.0, 2.5 + seed], seed=seed, backbone__memory=0) for seed in range(3)]


def names(comparison: Comparison) -> list[str]:
    return [group.name for group in comparison.groups]


# Groups


def test_seeds_of_a_config_are_a_group_that_is_called_by_what_differs(runs: list[Path]) -> None:
    comparison = compare(runs)
    assert names(comparison) == ["backbone.memory=5", "backbone.memory=0"] and comparison.notes == ()
    assert [[run.config.seed for run in group.runs] for group in comparison.groups] == [[0, 1, 2, 3, 4], [0, 1, 2]]
    assert [run.path for run in comparison.groups[1].runs] == runs[5:]
    assert names(compare(runs[:5])) == ["gtrxl_ppo"]


def test_no_group_gets_lost_behind_a_name(make: Make) -> None:
    """Values that are near each other, or look like what a name leaves out."""
    near = [make(f"n{rate}", [1.0], algorithm__learning_rate=rate) for rate in (0.00012345678, 0.00012345679)]
    assert names(compare(near)) == [f"algorithm.learning_rate={rate}" for rate in (0.00012345678, 0.00012345679)]
    kwargs: list[dict[str, Any]] = [{"mode": "default"}, {}, {"other": 1}, {"other": 1.0}]
    made = [make(f"k{place}", [1.0], environment__kwargs=each) for place, each in enumerate(kwargs)]
    assert names(compare(made[:2])) == ["environment.kwargs.mode=default", "environment.kwargs.mode=default (2)"]
    assert [len(group.runs) for group in compare(made[2:]).groups] == [2], "1 is 1.0"


def test_names_in_pictures_are_no_formulas(make: Make) -> None:
    path = make("a", [1.0, 2.0])
    compare({"$x^$": path, r"\frac $_$": path}).plot("curves.png")
    plot_lookback(Path("lookback.png"), {"layer0": np.ones((2, 3))}, "$x^$")


DAMAGE: dict[str, tuple[str, bytes]] = {
    "a number that is none": ("progress.csv", b"step,eval/mean_reward\n100,0.5x\n"),
    "rows that are no text": ("progress.csv", b"step,eval/mean_reward\n100,\xff\xfe\n"),
    "a config that is no YAML": ("config.yaml", b"{agent: ["),
    "a config that is no text": ("config.yaml", b"\xff\xfe"),
    "a config of something else": ("config.yaml", b"learning: 1\n"),
}


@pytest.mark.parametrize(("file", "content"), DAMAGE.values(), ids=DAMAGE)
def test_a_damaged_run_is_named_and_the_others_are_compared(
    make: Make, capsys: pytest.CaptureFixture[str], file: str, content: bytes
) -> None:
    whole = [make(f"a-seed{seed}", [1.0], seed=seed) for seed in (0, 1)]
    damaged = make("a-seed2", [1.0], seed=2)
    (damaged / file).write_bytes(content)
    comparison = compare([damaged, *whole])
    assert [[run.path for run in group.runs] for group in comparison.groups] == [whole]
    note = next(note for note in comparison.notes if note.startswith(f"{damaged} is left out: "))
    assert file in note
    assert main(["compare", "runs"]) == 0 and f"note: {note}" in capsys.readouterr().out
    with pytest.raises(DataError, match=file):
        compare(damaged)


def test_a_metric_that_is_no_number_is_named(make: Make, capsys: pytest.CaptureFixture[str]) -> None:
    one, two = (make(name, [1.0]) for name in "ab")
    RunFolder(one).metrics.write_text("step,train/n_updates,eval/mean_reward\n100,3,0.5x\n")
    with pytest.raises(DataError, match=r"progress\.csv: eval/mean_reward is '0\.5x' at step 100, which is no number"):
        compare(one)
    RunFolder(one).metrics.write_text("step,train/n_updates,eval/mean_reward\n100,x,0.5\n")
    with pytest.raises(DataError, match="train/n_updates is 'x' at step 100"):
        compare(one)
    RunFolder(one).metrics.write_text("step,eval/mean_reward\n50,3\n100,nan\n")
    comparison = compare({"a": two, "b": one})
    figures = comparison.summary()[1]
    assert figures["improvement"] is None and figures["best"] == 3.0, "nan is not worse than a number"
    assert "the last eval/mean_reward of runs/a is not a number" in comparison.notes[0]
    assert main(["compare", "runs/b", "--json"]) == 0
    told = json.loads(capsys.readouterr().out, parse_constant=lambda name: pytest.fail(f"{name} is no JSON"))
    assert told["groups"][0]["iqm"] == 1.0
    assert main(["compare", "runs/a", "--json"]) == 0
    told = json.loads(capsys.readouterr().out, parse_constant=lambda name: pytest.fail(f"{name} is no JSON"))
    assert told["groups"][0]["iqm"] is None


def test_a_named_group_has_one_scale(make: Make) -> None:
    cart, pendulum = make("a", [1.0]), make("b", [2.0], environment__id="Pendulum-v1")
    offline = make("c", [3.0], metric="eval/action_loss")
    with pytest.raises(ConfigError, match="group 'mixed' has runs that share no scale") as refusal:
        compare({"good": cart, "mixed": [cart, pendulum]})
    assert "(CartPole-v1 eval/mean_reward, Pendulum-v1 eval/mean_reward)" in str(refusal.value)
    with pytest.raises(ConfigError, match="mean_reward, CartPole-v1 eval/action_loss"):
        compare({"mixed": [cart, offline]})


def test_groups_whose_names_differ_in_the_environment_alone_are_both_drawn(
    make: Make, monkeypatch: pytest.MonkeyPatch
) -> None:
    drawn: list[str] = []

    def note(axes: Any, lines: Mapping[str, Any]) -> list[Any]:
        drawn.extend(lines)
        return []

    monkeypatch.setattr("rltransformers.training.runs.comparison.draw_curves", note)
    compare({"CartPole-v1, z": make("a", [1.0]), "z": make("b", [2.0])}).plot("curves.png")
    assert drawn == ["CartPole-v1, z", "z"]


@pytest.mark.parametrize(
    ("runs", "message"),
    [
        (3, "runs must be"),
        (None, "runs must be"),
        ({1: "runs/a"}, "runs must be"),
        ("", "name of a run is empty"),
        ([], "no run is named"),
        ({}, "no run"),
    ],
)
def test_what_names_no_runs_is_refused(make: Make, runs: Any, message: str) -> None:
    with pytest.raises(ConfigError, match=message):
        compare(runs)


def test_output_threads_and_search_are_no_difference(make: Make) -> None:
    changes: list[dict[str, Any]] = [{}, {"output": "elsewhere"}, {"threads": 3}, {"tune": {"trials": 3}}]
    comparison = compare([make("a", [1.0], seed=seed, **each) for seed, each in enumerate(changes)])
    assert len(comparison.groups) == 1


def test_values_are_named_as_in_a_config_and_what_is_missing_is_left_out_or_default(make: Make) -> None:
    made = [
        make("a", [1.0]),
        make("b", [1.0], backbone__pattern={"name": "band", "window": 16}, algorithm__learning_rate=3e-4),
        make("c", [1.0], backbone__pattern=["full", "band"], evaluation__deterministic=False),
    ]
    assert names(compare([made[0], make("d", [1.0], algorithm__gamma=0.9)])) == [
        "algorithm.gamma=default",
        "algorithm.gamma=0.9",
    ]
    assert names(compare(made)) == [
        "evaluation.deterministic=true",
        "backbone.pattern={name: band, window: 16}, algorithm.learning_rate=0.0003, evaluation.deterministic=true",
        "backbone.pattern=[full, band], evaluation.deterministic=false",
    ]
    one, two = ({"pattern": {"name": "band", "window": size}, "width": 8} for size in (16, 32))
    assert differing([one, two]) == ["pattern.window"], "mappings of all are entered"


def test_agents_and_environments_are_named_where_they_differ_and_settings_within_one_of_them(make: Make) -> None:
    made = [
        make("a", [1.0]),
        make("b", [1.0], backbone__memory=0),
        make("c", [1.0], PPO, environment__normalize_reward=True),
        make("d", [1.0], environment__id="Pendulum-v1"),
    ]
    assert names(compare(made[:3])) == ["gtrxl_ppo, backbone.memory=5", "gtrxl_ppo, backbone.memory=0", "ppo"]
    comparison = compare(made)
    assert names(comparison)[2:] == ["ppo, CartPole-v1", "gtrxl_ppo, Pendulum-v1"]
    assert comparison.groups[3].label == "gtrxl_ppo"
    scales, settings = comparison.notes
    assert scales.startswith("scores in different environments (CartPole-v1, Pendulum-v1) share no scale")
    assert settings == "agents in the same environment also differ in environment.normalize_reward"
    better = [values["improvement"] for values in comparison.summary()]
    assert better == [None, 0.5, 0.5, None], "no run is better than one in another environment"


def test_a_mapping_says_itself_what_belongs_together(runs: list[Path]) -> None:
    comparison = compare({"few": runs[5:], "many": "runs/a-*"})
    assert names(comparison) == ["few", "many"]
    assert [len(group.runs) for group in comparison.groups] == [3, 5]


# Places


def test_runs_are_found_by_name_below_a_folder_and_by_pattern_once(make: Make) -> None:
    made = [make(f"a-seed{seed}", [1.0]) for seed in (10, 9)]
    (made[0].parent / "a-seed9.log").touch()
    assert find_runs(["runs"]) == find_runs(["runs/a*"]) == made[::-1], "9 before 10"
    assert find_runs([made[0], "runs", "runs/a-seed9.log"]) == made
    inside = make("a", [1.0]) / "wandb" / "files"
    inside.mkdir(parents=True)
    (inside / "config.yaml").write_text("of a tracker")
    assert Path("runs/a/wandb/files") not in find_runs(["runs"]), "a folder inside a run is no run"


@pytest.mark.parametrize(
    ("place", "message"),
    [
        ("nowhere", "nowhere is not a run folder: it has no config.yaml"),
        ("empty", "empty holds no run folder: no config.yaml in it or below"),
        ("runs/b*", r"no run folder fits runs/b\*"),
        ("runs/a/progress.csv", "is a file of the run runs/a"),
        ("runs/c.log", r"runs/c\.log is not a run folder"),
    ],
)
def test_a_place_without_a_run_is_refused(make: Make, place: str, message: str) -> None:
    make("a", [1.0])
    Path("empty").mkdir()
    Path("runs/c.log").touch()
    with pytest.raises(ConfigError, match=message):
        compare(place)


# Figures


def test_statistics_are_those_of_the_functions(runs: list[Path]) -> None:
    first, second = compare(runs).summary()
    scores, others = [0.0, 1.0, 2.0, 3.0, 4.0], [2.5, 3.5, 4.5]
    assert (first["iqm"], second["iqm"]) == (iqm(scores), iqm(others)) == (2.0, 3.5)
    assert (
        (first["low"], first["high"])
        == iqm_interval(scores)
        == stratified_bootstrap([scores], np.random.default_rng(0))
    )
    assert first["improvement"] is None
    assert second["improvement"] == probability_of_improvement([others], [scores]) == (3 + 4 + 5) / 15
    assert first["best"] == iqm([max(0.0, 5.0 - seed, seed) for seed in range(5)])
    assert (first["seeds"], first["steps"], first["metric"]) == ([0, 1, 2, 3, 4], 300, "eval/mean_reward")
    only = compare(runs[0]).summary()[0]
    assert (only["iqm"], only["low"]) == (0.0, None), "one seed has no interval"


def test_losses_are_better_the_lower_they_are(make: Make) -> None:
    made = [make(f"a{seed}", [0.5, 0.2, 0.3], DT, metric="eval/action_loss", seed=seed) for seed in range(2)]
    made += [make("b", [0.5, 0.4, 0.1], DT, metric="eval/action_loss", algorithm__learning_rate=1.0)]
    first, second = compare(made).summary()
    assert (first["metric"], first["best"], second["improvement"]) == ("eval/action_loss", 0.2, 1.0)
    assert compare(made, metric="eval/success_rate").summary()[1]["improvement"] == 0.0


def test_different_metrics_and_kinds_of_steps_are_said(make: Make) -> None:
    comparison = compare([make("a", [1.0]), make("b", [1.0], DT, metric="eval/action_loss")])
    text = str(comparison)
    assert "eval/mean_reward 1 " in text and "eval/action_loss 1 " in text
    assert "different metrics (eval/mean_reward, eval/action_loss), which share no scale" in text
    assert "environment steps online and gradient steps offline" in text
    with pytest.raises(ConfigError, match=r"runs/b has no metric 'eval/mean_reward'; "):
        compare(["runs/a", "runs/b"], metric="eval/mean_reward")


def test_unfinished_runs_are_named_with_their_steps_and_count_where_there_are_no_others(
    runs: list[Path], make: Make
) -> None:
    killed = make("a-seed7", [0.0, 9.0], seed=7, finished=False)
    first = (comparison := compare([*runs, killed])).summary()[0]
    assert (first["iqm"], first["unfinished"], len(first["runs"])) == (2.0, 1, 6)
    assert comparison.notes == (f"{killed} is not finished, at step 200 of 300",)
    assert "5 + 1 unfinished" in str(comparison)
    alone = compare(killed)
    assert alone.summary()[0]["iqm"] == 9.0 and alone.notes[0].endswith("at step 200 of 300, and so are the figures")


def test_runs_without_an_evaluation_are_left_out_and_refused_where_no_other_is(make: Make) -> None:
    made = [make("a", [1.0]), make("b", [], finished=False)]
    assert compare(made).notes == ("runs/b is left out: no evaluation until step 0 of 300",)
    with pytest.raises(ConfigError, match=r"no run has an evaluation yet \(runs/b at step 0 of 300\); wait for one"):
        compare("runs/b")


def test_a_seed_that_is_there_twice_is_named(make: Make) -> None:
    comparison = compare([make("a", [1.0], seed=3), make("a", [1.0], seed=3)])
    assert comparison.notes == ("gtrxl_ppo has seed 3 more than once: equal runs make the interval too narrow",)


def test_seconds_are_those_of_all_processes_that_trained_here(make: Make) -> None:
    folder = RunFolder(make("a", []))
    for path in folder.event_files():
        path.unlink()
    processes = [(1000.0, {100: 1007.0, 200: 1010.0}), (5000.0, {300: 5004.0}), (9000.0, {400: 9001.0})]
    for number, (begin, steps) in enumerate(processes):
        with Path(f"runs/a/events.out.tfevents.{number}").open("wb") as file:
            writer = RecordWriter(file)
            writer.write(Event(wall_time=begin, file_version="brain.Event:2").SerializeToString())
            for step, at in steps.items():
                event = Event(wall_time=at, step=step)
                event.summary.value.add(tag="eval/mean_reward", simple_value=1.0)
                writer.write(event.SerializeToString())
    assert folder.read_seconds() == {100: 7.0, 200: 10.0, 300: 14.0, 400: 15.0}


def test_speed_is_of_the_steps_whose_time_is_known(make: Make) -> None:
    folder = RunFolder(make("a", [1.0, 2.0]))
    (events,) = folder.event_files()
    with events.open("wb") as file:  # damaged behind the first evaluation
        writer = RecordWriter(file)
        writer.write(Event(wall_time=1000.0, file_version="brain.Event:2").SerializeToString())
        event = Event(wall_time=1010.0, step=100)
        event.summary.value.add(tag="eval/mean_reward", simple_value=1.0)
        writer.write(event.SerializeToString())
    found = compare(folder.path)
    assert found.summary()[0]["steps_per_second"] == 10.0
    assert found.notes == ("runs/a tells no time behind step 100: a TensorBoard file is damaged or missing",)


def test_updates_are_counted_by_the_agent_and_are_the_steps_of_a_decision_transformer(make: Make) -> None:
    (online,), (offline,) = (
        compare(make(name, [1.0, 2.0], config)).groups[0].runs for name, config in (("a", CONFIG), ("b", DT))
    )
    assert online.curve("updates").tolist() == [[10.0, 1.0], [20.0, 2.0]]
    assert offline.curve("updates").tolist() == [[100.0, 1.0], [200.0, 2.0]]
    assert online.curve("steps").tolist() == [[100.0, 1.0], [200.0, 2.0]]
    metrics = RunFolder(online.path).metrics
    metrics.write_text("step,train/n_updates,eval/mean_reward\n100,0,\n100,9,1.0\n200,10,\n200,19,2.0\n")
    (online,) = compare(online.path).groups[0].runs
    assert online.curve("updates").tolist() == [[9.0, 1.0], [19.0, 2.0]], "an evaluation that says it is believed"


def test_times_are_told_in_their_unit() -> None:
    assert [duration(value) for value in (None, 0.0, 59.0, 90.0, 5400.0)] == [
        "-",
        "0.0 s",
        "59.0 s",
        "1.5 min",
        "1.5 h",
    ]


# Files and the command line


def test_a_csv_holds_every_number_exactly(runs: list[Path], tmp_path: Path) -> None:
    comparison = compare(runs)
    evaluations, groups = comparison.write_csv("out/all.csv")
    assert (str(evaluations), str(groups)) == ("out/all.csv", "out/all-groups.csv")

    def read(path: Path) -> list[dict[str, Any]]:
        with path.open(newline="") as file:
            return list(csv.DictReader(file))

    def text(value: Any) -> str:
        return "" if value is None else " ".join(map(str, value)) if isinstance(value, list) else str(value)

    for path, rows in ((evaluations, comparison.rows()), (groups, comparison.summary())):
        assert read(path) == [{name: text(value) for name, value in row.items()} for row in rows]
    scores: dict[str, list[float]] = {}
    for row in read(evaluations):
        if row["step"] == "300":
            scores.setdefault(row["group"], []).append(float(row["value"]))
    assert [iqm(each) for each in scores.values()] == [float(row["iqm"]) for row in read(groups)] == [2.0, 3.5]


@pytest.mark.parametrize("by", ["steps", "seconds", "updates"])
def test_curves_are_drawn_with_a_panel_per_environment(make: Make, runs: list[Path], by: Any) -> None:
    runs += [make("c", [1.0, 2.0], environment__id="Pendulum-v1"), make("a-seed8", [1.0, 2.0], finished=False)]
    compare(runs[:8]).plot("one.png", by)
    compare(runs).plot("two.png", by)
    with Image.open("one.png") as one, Image.open("two.png") as two:
        assert two.height == 2 * one.height


def test_curves_that_cannot_be_drawn_are_refused(runs: list[Path]) -> None:
    for path in RunFolder(runs[3]).event_files():
        path.unlink()
    comparison = compare(runs)
    assert comparison.groups[0].runs[3].seconds is None
    with pytest.raises(ConfigError, match=r"a-seed3 does not tell seconds: it has no TensorBoard file; compare by ste"):
        comparison.plot("x.png", "seconds")
    with pytest.raises(ConfigError, match=r"x\.jpg must end in \.png"):
        comparison.plot("x.jpg")
    with pytest.raises(ConfigError, match="did you mean 'steps'"):
        comparison.plot("x.png", "step")  # type: ignore[arg-type]


def test_python_and_the_command_line_say_the_same(runs: list[Path], capsys: pytest.CaptureFixture[str]) -> None:
    comparison = rltransformers.compare(["runs/b*", "runs/a*"], metric="eval/success_rate")
    words = ["compare", "runs/b*", "runs/a*", "--metric", "eval/success_rate"]
    assert main([*words, "--json"]) == 0
    said = json.loads(capsys.readouterr().out)
    assert said == {"groups": comparison.summary(), "notes": list(comparison.notes)}
    assert main([*words, "--plot", "c.png", "--by", "seconds", "--csv", "c.csv"]) == 0
    assert capsys.readouterr().out == f"{comparison}\n\nwritten  c.png\nwritten  c.csv\nwritten  c-groups.csv\n"
    assert Path("c.png").stat().st_size > 1000
    by_csv = Path("c.csv").read_bytes()
    comparison.write_csv("d.csv")
    assert Path("d.csv").read_bytes() == by_csv


@pytest.mark.parametrize(
    ("words", "message"),
    [
        (["runs", "--by", "seconds"], "--by seconds is the x-axis of a picture: give --plot FILE.png, too"),
        (["runs", "--plot", "x.gif"], "x.gif must end in .png"),
        (["runs", "--plot", "x.png", "--csv", "x.png"], "--csv x.png must end in .csv"),
        (["runs", "--metric", "eval/mean_rewrad"], "has no metric 'eval/mean_rewrad'; did you mean 'eval/mean_reward'"),
        ([], "RUN"),
    ],
)
def test_what_the_command_cannot_mean_is_refused(
    runs: list[Path], words: list[str], message: str, capsys: pytest.CaptureFixture[str]
) -> None:
    assert main(["compare", *words]) == 2
    assert message in capsys.readouterr().err
