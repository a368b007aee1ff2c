"""Studies: what is searched, what a trial is, where a study goes on, and which config comes out."""

import json
import os
import signal
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import numpy as np
import pytest
import yaml

from rltransformers.cli import engines
from rltransformers.cli.engines import Job, LocalEngine, Order
from rltransformers.cli.main import main
from rltransformers.core.errors import ConfigError
from rltransformers.training.evaluation import EvaluationResult
from rltransformers.training.runs.experiment import ExperimentConfig, build_experiment
from rltransformers.training.runs.run_folder import RunFolder
from rltransformers.training.runs.search import OneOf, Span, read_search
from tests.cli.test_runs import refused, run, work

__all__ = ["work"]  # the fixture

RATES = ("--search", "algorithm.learning_rate=1e-5..1e-1:log")


@pytest.mark.parametrize(
    ("text", "expected"),
    [
        ("1..4", Span(1, 4)),
        ("0.5..2", Span(0.5, 2)),
        ("1e-5..1e-2:log", Span(1e-5, 1e-2, True)),
        ("1e1..1e2", Span(10, 100)),  # whole, as everywhere in a config
        ("0.0..1.0", Span(0.0, 1.0)),
        (" -1 .. 4 : log", "must begin above 0"),
        ("4..1", "the first must be the smaller one"),
        ("1..1", "the first must be the smaller one"),
        ("1..4:linear", "'linear' behind a range is unknown"),
        ("0..4:log", "must begin above 0"),
        ("1..inf", "must be a range"),
        ("nan..1", "must be a range"),
        ("1", "must be a range"),
        (3, "must be a range"),
        ({"low": 1}, "must be a range"),
        ([1, None, {"name": "rope"}], OneOf((1, None, {"name": "rope"}))),
        ([1], "at least two values"),
    ],
)
def test_a_search_is_a_range_or_a_list(text: Any, expected: Any) -> None:
    if not isinstance(expected, str):
        found = read_search(text, "x")
        assert found == expected
        assert [type(each) for each in vars(found).values()] == [type(each) for each in vars(expected).values()]
        return
    with pytest.raises(ConfigError, match=f"^x .*{expected}|^x: .*{expected}"):
        read_search(text, "x")


class Planted(LocalEngine):
    """Runs that evaluate three times and return minus the distance of their learning rate from 0.001.

    Attributes:
        ran: what was run.
        most: how many ran at the same time.
        faults: exit status of runs whose process fails by name, or what their first look raises.
    """

    def __init__(self) -> None:
        self.ran: list[ExperimentConfig] = []
        self.running: set[str] = set()
        self.most, self.faults = 0, dict[str, int | BaseException]()

    def start(self, order: Order) -> Any:
        """A run that writes its whole report at once and ends at the second look."""
        asked = json.loads(order.text)
        config = build_experiment(asked["config"])
        folder = RunFolder.create(config.output, asked["name"])
        folder.write_config(config.to_dict())
        self.ran.append(config)
        self.running.add(asked["name"])
        self.most = max(self.most, len(self.running))
        return PlantedJob(self, asked["name"], self._report(config, folder), Path(asked["report"]))

    def _report(self, config: ExperimentConfig, folder: RunFolder) -> list[dict[str, Any]]:
        if config.algorithm.get("n_epochs") == 7:
            return [{"refused": "seven epochs cannot be"}]
        value = -abs(config.algorithm["learning_rate"] - 0.001)
        evaluations: list[dict[str, Any]] = [{"step": step, "score": value} for step in (24, 48, 72)]
        final = {
            "run": str(folder.path),
            "results": [EvaluationResult("x", (value,), (1,), (0,)).to_dict()],
            "score": value,
        }
        return [*evaluations, final]


class PlantedJob(Job):
    def __init__(self, engine: Planted, name: str, report: list[dict[str, Any]], path: Path) -> None:
        self.engine, self.name, self.report, self.path, self.looks = engine, name, report, path, 0

    def poll(self) -> int | None:
        """0 at the second look; at the first one the report is written."""
        self.looks += 1
        fault = self.engine.faults.get(self.name)
        if isinstance(fault, BaseException):
            raise fault
        if self.looks == 1 and fault is None:
            self.path.write_text("".join(f"{json.dumps(each)}\n" for each in self.report))
        return None if self.looks == 1 else self.wait()

    def stop(self) -> None:
        """It ends anyway."""

    def wait(self) -> int:
        """The exit status."""
        self.engine.running.discard(self.name)
        status = self.engine.faults.get(self.name, 0)
        return status if isinstance(status, int) else 1


@pytest.fixture
def planted(monkeypatch: pytest.MonkeyPatch) -> Planted:
    """In place of processes."""
    pytest.importorskip("optuna", reason="tune needs Optuna: pip install 'rltransformers[tune]'")
    engine = Planted()
    monkeypatch.setattr(engines, "engine_of", lambda name, address: engine)
    monkeypatch.setattr(engines, "POLL_SECONDS", 0)
    return engine


def test_a_study_finds_the_best_config_and_goes_on_where_it_stopped(
    work: Path, capsys: pytest.CaptureFixture[str], planted: Planted, monkeypatch: pytest.MonkeyPatch
) -> None:
    words = ("tune", "online.yaml", *RATES, "--json", "--evaluation.every", "0")
    first = json.loads(run(capsys, *words, "--trials", "3"))
    assert len(planted.ran) == len(first["trials"]) == 3
    whole = json.loads(run(capsys, *words, "--trials", "5"))
    assert len(planted.ran) == len(whole["trials"]) == 5 and whole["trials"][:3] == first["trials"]
    with monkeypatch.context() as patch:
        patch.setattr(Planted, "slots", property(lambda engine: pytest.fail("an engine starts for finished trials")))
        assert json.loads(run(capsys, *words, "--trials", "5")) == whole and len(planted.ran) == 5
    rates = [config.algorithm["learning_rate"] for config in planted.ran]
    assert all(1e-5 <= rate <= 1e-1 for rate in rates) and len(set(rates)) == 5
    nearest = min(rates, key=lambda rate: abs(rate - 0.001))
    best = yaml.safe_load(Path("runs/online-tune/best.yaml").read_text())
    assert best["algorithm"]["learning_rate"] == whole["best"]["settings"]["algorithm.learning_rate"] == nearest
    assert best["output"] == "runs" and best["tune"] is None
    told = run(capsys, "tune", "online.yaml", *RATES, "--trials", "1", "--output", "my runs")
    assert told.endswith("rltransformers train 'my runs/online-tune/best.yaml' --seeds 5\n")
    original = yaml.safe_load(run(capsys, "show", "online.yaml", "--evaluation.every", "0"))
    original["algorithm"]["learning_rate"] = nearest
    assert best == original
    assert RunFolder.open(whole["best"]["run"]).path.parent == Path("runs/online-tune")


def test_a_study_lies_in_its_folder_whatever_that_is_called_and_in_no_run(
    work: Path, capsys: pytest.CaptureFixture[str], planted: Planted
) -> None:
    for name in ("what?mode=ro", "100%41"):
        run(capsys, "tune", "online.yaml", *RATES, "--trials", "1", "--name", name)
        assert (Path("runs") / name / "study.db").is_file() and (Path("runs") / name / "best.yaml").is_file()
    message = refused(
        capsys, "tune", "online.yaml", *RATES, "--trials", "1", "--output", "runs/100%41", "--name", "trial-0"
    )
    assert "runs/100%41/trial-0 is the folder of a run: give the study another --name" in message


def test_the_config_says_what_is_searched_and_every_kind_of_value_is_tried(
    work: Path, capsys: pytest.CaptureFixture[str], planted: Planted
) -> None:
    search = {
        "algorithm.learning_rate": "0.1..0.5",
        "algorithm.n_steps": "8..9",
        "backbone.position": ["trxl", {"name": "rope", "base": 100}],
    }
    values = yaml.safe_load(Path("online.yaml").read_text())
    Path("searched.yaml").write_text(yaml.safe_dump(values | {"tune": {"search": search, "trials": 8}}))
    run(capsys, "tune", "searched.yaml", "--search", "algorithm.n_epochs=[2, 3]")
    assert len(planted.ran) == 8
    assert {config.algorithm["n_steps"] for config in planted.ran} == {8, 9}
    positions = [config.backbone["position"] for config in planted.ran]
    assert "trxl" in positions and {"name": "rope", "base": 100} in positions
    assert {config.algorithm["n_epochs"] for config in planted.ran} == {2, 3}
    assert all(0.1 <= config.algorithm["learning_rate"] <= 0.5 for config in planted.ran)


def test_a_trial_below_the_median_is_stopped_early(
    work: Path, capsys: pytest.CaptureFixture[str], planted: Planted
) -> None:
    told = json.loads(run(capsys, "tune", "online.yaml", *RATES, "--trials", "16", "--json"))
    scores = [-abs(trial["settings"]["algorithm.learning_rate"] - 0.001) for trial in told["trials"]]
    ended = list[float]()
    for trial, score in zip(told["trials"], scores, strict=True):  # the first five are what others are compared with
        stopped = len(ended) >= 5 and score < np.median(ended)
        assert trial["state"] == ("pruned" if stopped else "complete"), trial
        ended += [] if stopped else [score]
    assert len(ended) < len(scores)


def test_an_environment_to_train_in_may_be_searched_where_evaluation_has_its_own(
    work: Path, capsys: pytest.CaptureFixture[str], planted: Planted
) -> None:
    words = ("--evaluation.kwargs.delay", "2", "--search", "environment.kwargs.delay=[1, 2, 3]")
    run(capsys, "tune", "online.yaml", *words, "--trials", "3", "--algorithm.learning_rate", "0.01")
    assert {config.evaluation_environment.kwargs["delay"] for config in planted.ran} == {2}


@pytest.mark.parametrize(("epochs", "state"), [(1, "complete"), (7, "refused")])
def test_trials_with_the_same_settings_share_one_run_also_at_the_same_time(
    work: Path, capsys: pytest.CaptureFixture[str], planted: Planted, epochs: int, state: str
) -> None:
    words = ("--search", f"algorithm.n_epochs=[{epochs}, 2]", "--algorithm.learning_rate", "0.01", "--jobs", "4")
    told = json.loads(run(capsys, "tune", "online.yaml", *words, "--trials", "8", "--json"))
    assert len(told["trials"]) == 8 and len(planted.ran) == 2
    states = {(trial["settings"]["algorithm.n_epochs"], trial["state"]) for trial in told["trials"]}
    assert states == {(epochs, state), (2, "complete")}


def test_a_trial_that_is_refused_is_told_and_the_study_goes_on(
    work: Path, capsys: pytest.CaptureFixture[str], planted: Planted
) -> None:
    epochs = ("--search", "algorithm.n_epochs=[1, 7]", "--algorithm.learning_rate", "0.01")
    told = json.loads(run(capsys, "tune", "online.yaml", *epochs, "--trials", "6", "--json"))
    states = {trial["settings"]["algorithm.n_epochs"]: trial["state"] for trial in told["trials"]}
    assert states == {1: "complete", 7: "refused"}
    assert {trial["refused"] for trial in told["trials"]} == {None, "seven epochs cannot be"}
    assert told["best"]["settings"]["algorithm.n_epochs"] == 1
    words = ("--search", "algorithm.gamma=0.5..1", "--algorithm.n_epochs", "7", "--algorithm.learning_rate", "0.01")
    assert "no trial of runs/x came to its end" in refused(
        capsys, "tune", "online.yaml", *words, "--name", "x", "--trials", "2"
    )


SHORT = ("tune", "online.yaml", *RATES, "--evaluation.every", "0", "--jobs", "2")


def test_an_interrupted_trial_begins_anew(work: Path, capsys: pytest.CaptureFixture[str], planted: Planted) -> None:
    planted.faults["trial-1"] = KeyboardInterrupt()
    assert main([*SHORT, "--trials", "3"]) == 130
    assert "the same command goes on" in capsys.readouterr().err
    planted.faults.clear()
    assert_begun_anew(json.loads(run(capsys, *SHORT, "--trials", "3", "--json")), planted)


def assert_begun_anew(summary: dict[str, Any], planted: Planted) -> None:
    """Three trials came to their end, one of them with the settings of trial 1, which did not."""
    rates = [trial["settings"]["algorithm.learning_rate"] for trial in summary["trials"]]
    assert [trial["state"] for trial in summary["trials"]] == ["complete"] * 3
    assert planted.ran[1].algorithm["learning_rate"] in rates
    assert 1 not in [trial["number"] for trial in summary["trials"]]


@pytest.mark.parametrize("status", [-signal.SIGTERM, 128 + signal.SIGTERM])
def test_a_signal_that_reaches_a_trial_before_the_study_refuses_no_trial(
    work: Path, capsys: pytest.CaptureFixture[str], planted: Planted, monkeypatch: pytest.MonkeyPatch, status: int
) -> None:
    planted.faults["trial-1"] = status

    def sleep(seconds: float) -> None:
        if "trial-1" in planted.faults and len(planted.ran) > 1 and "trial-1" not in planted.running:
            planted.faults.clear()
            os.kill(os.getpid(), signal.SIGTERM)

    monkeypatch.setattr(engines, "time", SimpleNamespace(sleep=sleep))
    before = signal.signal(signal.SIGTERM, lambda *_: None)
    try:
        assert main([*SHORT, "--trials", "3"]) == 128 + signal.SIGTERM
    finally:
        signal.signal(signal.SIGTERM, before)
    assert "refused" not in capsys.readouterr().err
    assert_begun_anew(json.loads(run(capsys, *SHORT, "--trials", "3", "--json")), planted)


@pytest.mark.parametrize(
    ("status", "how"),
    [
        (1, "exit code 1"),
        (-signal.SIGKILL, "SIGKILL; memory may have run out"),
        (128 + signal.SIGKILL, "SIGKILL; memory may have run out"),
        (-signal.SIGTERM, "SIGTERM"),
    ],
)
def test_a_trial_whose_process_dies_is_refused_and_not_repeated(
    work: Path, capsys: pytest.CaptureFixture[str], planted: Planted, status: int, how: str
) -> None:
    planted.faults["trial-1"] = status
    summary = json.loads(run(capsys, *SHORT, "--trials", "3", "--json"))
    reason = f"its process failed ({how}); see runs/online-tune/trial-1.log"
    assert [trial["refused"] for trial in summary["trials"]] == [None, reason, None]
    assert [trial["state"] for trial in summary["trials"]] == ["complete", "refused", "complete"]
    assert json.loads(run(capsys, *SHORT, "--trials", "3", "--json")) == summary and len(planted.ran) == 3
    refused_rate = planted.ran[1].algorithm["learning_rate"]
    run(capsys, *SHORT, "--trials", "5")
    assert refused_rate not in [config.algorithm["learning_rate"] for config in planted.ran[2:]]


def test_a_study_whose_trials_all_die_ends_with_the_reason(
    work: Path, capsys: pytest.CaptureFixture[str], planted: Planted
) -> None:
    planted.faults |= {f"trial-{number}": -signal.SIGKILL for number in range(9)}
    words = (*SHORT, "--trials", "3")
    for _ in range(2):
        message = refused(capsys, *words).splitlines()[-1]
        assert "no trial of runs/online-tune came to its end" in message
        assert "SIGKILL" in message and "trial-2.log" in message and "--trials" in message
    assert len(planted.ran) == 3


def test_settings_that_were_tried_are_not_trained_again(
    work: Path, capsys: pytest.CaptureFixture[str], planted: Planted
) -> None:
    few = ("--search", "algorithm.n_epochs=[1, 2, 7]", "--algorithm.learning_rate", "0.01")
    told = json.loads(run(capsys, "tune", "online.yaml", *few, "--trials", "12", "--json"))
    assert len(told["trials"]) == 12 and len(planted.ran) == 3
    by_epochs: dict[int, set[Any]] = {}
    for trial in told["trials"]:
        outcome = trial["state"], trial["score"], trial["run"], trial["refused"]
        by_epochs.setdefault(trial["settings"]["algorithm.n_epochs"], set()).add(outcome)
    assert sorted(by_epochs) == [1, 2, 7] and all(len(outcomes) == 1 for outcomes in by_epochs.values())


@pytest.mark.parametrize("jobs", [1, 4])
def test_so_many_trials_run_at_a_time_and_none_is_proposed_twice(
    work: Path, capsys: pytest.CaptureFixture[str], planted: Planted, jobs: int
) -> None:
    words = ("tune", "online.yaml", *RATES, "--evaluation.every", "0", "--json", "--jobs", str(jobs))
    told = json.loads(run(capsys, *words, "--trials", "14"))
    assert len(told["trials"]) == len(planted.ran) == 14 and planted.most == jobs
    rates = [config.algorithm["learning_rate"] for config in planted.ran]
    assert len(set(rates)) == 14
    assert told["best"]["settings"]["algorithm.learning_rate"] == min(rates, key=lambda rate: abs(rate - 0.001))


@pytest.mark.parametrize(
    ("words", "message"),
    [
        ([], "tune needs something to search"),
        (["--search", "algorithm.gamma"], "--search takes KEY=VALUES"),
        (["--search", "algorithm.gama=0.5..1"], "did you mean 'algorithm.gamma'"),
        (["--search", "algorithm.gamma=0.5..2"], "algorithm.gamma must be a finite number in [0, 1], got 2"),
        (["--search", "backbone.memory=-5..64"], "backbone.memory must be a whole number in [0, 1000000], got -5"),
        (["--search", "backbone.dropout=0.1..1.5"], "backbone.dropout must be a finite number in [0, 1), got 1.5"),
        (["--search", "backbone.preset=[gtrxl, foo]"], "unknown preset 'foo'"),
        (["--search", "backbone.width=1.5..3.5"], "backbone.width must be a whole number in [1, 1000000], got 1.5"),
        (["--search", "backbone.position=[trxl, ropy]"], "unknown position 'ropy'; did you mean 'rope'"),
        (["--backbone.pattern.name", "band", "--search", "backbone.pattern.window=0..4"],
         "backbone.pattern.window must be a whole number"),
        (["--search", "backbone.losses.span=-1..1"], "backbone.losses.span must be a finite number"),
        (["--search", "algorithm.gamma=[0.9, 2020-01-01]"], "algorithm.gamma is a date (2020-01-01)"),
        (["--search", "environment.kwargs.delay=[2020-01-01, 1]"], "environment.kwargs.delay is a date"),
        (["--tune.search", "{environment.kwargs.delay: [1, 2020-01-01]}"],
         "tune.search.environment.kwargs.delay[1] is a date"),
        (["--search", "train.total_timesteps=[8, x]"], "train.total_timesteps must be"),
        (["--search", "algorithm.gamma=high"], "search of algorithm.gamma must be a range"),
        (["--search", "output=[a, b]"], "output is no setting to search"),
        (["--search", "environment.id=[CartPole-v1, Acrobot-v1]"], "environment.id is no setting to search"),
        (["--search", "environment.kwargs.delay=[1, 2]"],
         "search of environment.kwargs.delay: trials would be evaluated in different environments"),
        (["--search", "environment=[{id: CartPole-v1}, {id: Acrobot-v1}]"],
         "search of environment: trials would be evaluated in different environments"),
        (["--search", "seed=[1, 2]"], "seed is no setting to search: the best of several seeds is luck"),
        (["--search", "threads=1..4"], "threads is no setting to search: it is the same in all trials of a study"),
        (["--search", "evaluation.episodes=1..40"], "evaluation.episodes is no setting to search"),
        (["--search", "evaluation=[{episodes: 1}, {episodes: 2}]"], "evaluation is no setting to search"),
        (["--search", "backbone.memory=2..8", "--search", "backbone=[{width: 8}, {width: 16}]"],
         "search of backbone.memory: it is a part of backbone, which is searched too"),
        (["--tune.search", "{backbone.position: [trxl, rope]}", "--search", "backbone.position.base=10..20"],
         "search of backbone.position.base: it is a part of backbone.position"),
        (["--search", "algorithm.gamma=0.5..0.6", "--search", "algorithm.gamma=0.7..0.8"],
         "--search algorithm.gamma is given twice, as 0.5..0.6 and as 0.7..0.8"),
        (["--search", "algorithm.gamma=0.5..1", "--name", "../x"], "../x"),
        (["--tune.search", "{algorithm.gamma: 3}"], "tune.search.algorithm.gamma must be a range"),
        (["--tune.trials", "0", *RATES], "tune.trials must be"),
        (["--name", "", *RATES], "must be the name of one folder"),
    ],
)  # fmt: skip
@pytest.mark.usefixtures("planted")
def test_a_search_that_cannot_work_is_refused(
    work: Path, capsys: pytest.CaptureFixture[str], words: list[str], message: str
) -> None:
    assert message in refused(capsys, "tune", "online.yaml", *words)
    assert not Path("runs").exists()


def test_a_program_among_the_values_of_a_file_runs_only_when_trusted(
    work: Path, capsys: pytest.CaptureFixture[str], planted: Planted
) -> None:
    values = yaml.safe_load(Path("online.yaml").read_text())
    values["algorithm"]["learning_rate"] = 0.1
    wrapper = [["strangers_module:Wrapper"], []]
    Path("evil.yaml").write_text(yaml.safe_dump(values | {"tune": {"search": {"environment.wrappers": wrapper}}}))
    message = refused(capsys, "tune", "evil.yaml", "--trials", "1")
    assert "imports the module strangers_module" in message and "--trust" in message and not planted.ran
    run(capsys, "tune", "evil.yaml", "--trials", "1", "--trust")
    typed = ("--search", f"environment.wrappers={json.dumps(wrapper)}", "--algorithm.learning_rate", "0.1")
    run(capsys, "tune", "online.yaml", "--trials", "1", *typed)
    assert len(planted.ran) == 2


def test_the_command_that_trains_the_best_config_again_trusts_what_was_typed_and_nobody_else(
    work: Path, capsys: pytest.CaptureFixture[str], planted: Planted
) -> None:
    values = yaml.safe_load(Path("online.yaml").read_text())
    values["environment"]["wrappers"] = ["own_module:Wrapper"]
    Path("foreign.yaml").write_text(yaml.safe_dump(values))
    typed = ["--environment.wrappers", '["own_module:Wrapper"]']
    for name, words, flag in (
        ("foreign", ["--trust"], ""),
        ("online", typed, " --trust"),
        ("online", ["--name", "x"], ""),
    ):
        printed = run(capsys, "tune", f"{name}.yaml", "--trials", "1", *words, *RATES)
        folder = "x" if "x" in words else f"{name}-tune"
        assert f"train again  rltransformers train runs/{folder}/best.yaml --seeds 5{flag}\n" in printed


def test_sizes_that_fit_each_other_in_some_trials_alone_may_be_searched(
    work: Path, capsys: pytest.CaptureFixture[str], planted: Planted
) -> None:
    words = ("--search", "backbone.heads=[2, 3]", "--search", "backbone.width=[8, 12]", "--trials", "3", "--json")
    told = json.loads(run(capsys, "tune", "online.yaml", *words, "--algorithm.learning_rate", "0.1"))
    assert len(told["trials"]) == 3 and planted.ran


@pytest.mark.usefixtures("planted")
def test_a_damaged_study_is_named_with_the_way_out(work: Path, capsys: pytest.CaptureFixture[str]) -> None:
    database = Path("runs/online-tune/study.db")
    database.parent.mkdir(parents=True)
    database.write_text("junk" * 2000)
    message = refused(capsys, "tune", "online.yaml", *RATES, "--trials", "1")
    assert (
        f"study {database} cannot be read" in message
        and "if it is damaged, move it away" in message
        and message.count("\n") == 1
    )
    assert database.read_text() == "junk" * 2000
    database.unlink()
    run(capsys, "tune", "online.yaml", *RATES, "--trials", "1")
    content = database.read_bytes()
    database.write_bytes(content[:5000] + b"x" * (len(content) - 5000))
    assert f"study {database} cannot be read" in refused(capsys, "tune", "online.yaml", *RATES, "--trials", "2")


@pytest.mark.usefixtures("planted")
def test_another_search_wants_another_name(work: Path, capsys: pytest.CaptureFixture[str]) -> None:
    run(capsys, "tune", "online.yaml", *RATES, "--trials", "1")
    assert "another --name" in refused(capsys, "tune", "online.yaml", *RATES, "--trials", "1", "--seed", "1")
    run(capsys, "tune", "online.yaml", *RATES, "--trials", "1", "--seed", "1", "--name", "second", "--threads", "1")


@pytest.mark.slow
def test_trials_are_real_runs(work: Path, capsys: pytest.CaptureFixture[str]) -> None:
    pytest.importorskip("optuna", reason="tune needs Optuna: pip install 'rltransformers[tune]'")
    told = json.loads(run(capsys, "tune", "online.yaml", *RATES, "--trials", "2", "--jobs", "2", "--json"))
    run(capsys, "train", "runs/online-tune/best.yaml", "--name", "again")
    final = [json.loads(RunFolder.open(path).evaluation.read_text()) for path in ("runs/again", told["best"]["run"])]
    assert final[0] == final[1]
    assert told["best"]["score"] == sum(final[0][0]["returns"]) / len(final[0][0]["returns"])
