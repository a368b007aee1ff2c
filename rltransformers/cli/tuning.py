"""The trials of a study: each a run with settings that Optuna suggests, in one folder that goes on where it stopped."""

import json
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import numpy as np

from rltransformers.cli import runs
from rltransformers.cli.engines import Engine, Job, Order, carry_out, signal_name
from rltransformers.cli.space import Search, with_values
from rltransformers.cli.worker import Report, order_of
from rltransformers.core.errors import OUR_ERRORS, ConfigError, one_line, require
from rltransformers.core.files import check_no_run, file_lock, replacing
from rltransformers.core.yaml_text import yaml_of
from rltransformers.training.runs.experiment import AROUND, build_experiment
from rltransformers.training.runs.search import OneOf


def tune(
    name: str,
    base: Mapping[str, Any],
    space: Mapping[str, Any],
    search: Search,
    engine: Engine,
    jobs: int | None,
    trials: int,
) -> dict[str, Any]:
    """Run trials in the folder ``name`` until there are so many, and write the config of the best as best.yaml.

    Args:
        base: the config of all trials, as JSON values.
        space: what is searched, as it was written, and ``search`` what ``read_space`` made of it.
        engine: where the processes of the trials run, ``jobs`` of them at a time.

    Returns JSON values: the best trial, all trials, the path of best.yaml. Raises ConfigError for a folder with another
    study, and when no trial came to its end.
    """
    optuna = require("optuna", "tune")
    optuna.logging.set_verbosity(optuna.logging.WARNING)
    folder = Path(base["output"]) / name
    check_no_run(folder, "study")
    folder.mkdir(parents=True, exist_ok=True)
    with file_lock(folder / ".lock", f"study {folder}", ConfigError), _naming_damage(optuna, folder / "study.db"):
        study = _study(optuna, folder, base, space)
        work = _Trials(optuna, study, folder, base, search)
        work.repair()
        work.go_on(trials, engine, jobs)
        return work.summary()


@contextmanager
def _naming_damage(optuna: Any, database: Path) -> Iterator[None]:
    from sqlalchemy.exc import SQLAlchemyError  # comes with Optuna

    try:
        yield
    except (SQLAlchemyError, optuna.exceptions.StorageInternalError) as error:
        raise ConfigError(
            f"study {database} cannot be read or written ({one_line(error.__cause__ or error)}); "
            "if it is damaged, move it away: the same command begins a new one"
        ) from error


def _study(optuna: Any, folder: Path, base: Mapping[str, Any], space: Mapping[str, Any]) -> Any:
    from sqlalchemy import URL
    from sqlalchemy.pool import NullPool  # comes with Optuna; closes each connection, where others stay open for ever

    url = URL.create("sqlite", database=str(folder / "study.db")).render_as_string()
    storage = optuna.storages.RDBStorage(url, engine_kwargs={"poolclass": NullPool})
    study = optuna.create_study(
        study_name="tune",
        storage=storage,
        load_if_exists=True,
        direction="maximize",
        pruner=optuna.pruners.MedianPruner(),
    )
    config = {key: value for key, value in base.items() if key not in AROUND}
    question = json.dumps({"config": config, "search": space}, sort_keys=True)
    if study.user_attrs.get("asked", question) != question:
        raise ConfigError(f"{folder} holds a study of another config or search: give this one another --name")
    study.set_user_attr("asked", question)
    # A sampler that begins anew must not suggest once more what it has suggested.
    words = np.random.SeedSequence([base["seed"], len(study.trials)]).generate_state(1)
    # Trials that run count as bad ones: others that begin meanwhile look elsewhere.
    study.sampler = optuna.samplers.TPESampler(seed=int(words[0]), constant_liar=True)
    return study


def as_text(settings: Mapping[str, Any]) -> str:
    """Settings of a trial in one line."""
    return ", ".join(
        f"{key} {value:.4g}" if isinstance(value, float) else f"{key} {value}" for key, value in settings.items()
    )


@dataclass
class _Attempt:
    """A trial that a process trains now; ``twins`` have the same settings and share its outcome."""

    trial: Any
    report: Report
    log: Path
    pruned: bool = False
    twins: list[Any] = field(default_factory=list)


class _Trials:
    """The trials of a study, which are numbered run folders."""

    def __init__(self, optuna: Any, study: Any, folder: Path, base: Mapping[str, Any], search: Search) -> None:
        self.study, self.folder, self.base, self.search = study, folder, base, search
        self.every = base["evaluation"]["every"]
        self.states = optuna.trial.TrialState
        self.attempts: dict[int, _Attempt] = {}

    def repair(self) -> None:
        """Trials that a killed process left behind begin anew."""
        for trial in self.study.get_trials(deepcopy=False, states=[self.states.RUNNING]):
            self.study.tell(trial.number, state=self.states.FAIL)
            self.study.enqueue_trial(trial.params)

    def past_trials(self) -> list[Any]:
        """Trials that came to their end, were stopped early or were refused; not those that were interrupted."""
        ended, trials = (self.states.COMPLETE, self.states.PRUNED), self.study.get_trials(deepcopy=False)
        return [each for each in trials if each.state in ended or "refused" in each.user_attrs]

    def go_on(self, trials: int, engine: Engine, jobs: int | None) -> None:
        """Train until ``trials`` have ended, ``jobs`` at a time; those that a signal stops begin anew later."""
        if not self.every:
            runs.say("evaluation.every is 0: without evaluations on the way no trial is stopped early")
        try:
            if len(self.past_trials()) < trials:
                carry_out(engine, self._orders(trials), jobs, self._end, self._listen)
        except BaseException:
            for trial in self._begun():
                self.study.tell(trial, state=self.states.FAIL)
                self.study.enqueue_trial(trial.params)
            runs.say("the same command goes on with the study")
            raise

    def _begun(self) -> list[Any]:
        return [trial for each in self.attempts.values() for trial in (each.trial, *each.twins)]

    def _orders(self, trials: int) -> Iterator[tuple[int, Order]]:
        while (count := len(self.past_trials()) + len(self._begun())) < trials:
            trial = self.study.ask()
            settings = self._suggestion(trial)
            if self._repeat(trial, settings):
                continue
            runs.say(f"trial {trial.number} ({count + 1} of {trials}): {as_text(settings)}")
            try:
                values = with_values(self.base, settings) | {"output": str(self.folder)}
                order = order_of(build_experiment(values, f"trial {trial.number}"), f"trial-{trial.number}")
            except OUR_ERRORS as error:
                self._refuse(trial, one_line(error))
                continue
            self.attempts[trial.number] = _Attempt(trial, Report(order), order.log)
            yield trial.number, order

    def _repeat(self, trial: Any, settings: Mapping[str, Any]) -> bool:
        """Give a trial the outcome of an earlier one with the same settings (and seed), where there is one.

        It waits for the outcome where the earlier one runs.
        """
        for attempt in self.attempts.values():
            if attempt.trial.user_attrs["settings"] == settings:
                attempt.twins.append(trial)
                return True
        twin = next((each for each in self.past_trials() if each.user_attrs["settings"] == settings), None)
        if twin is not None:
            self._copy_outcome(twin, trial)
        return twin is not None

    def _copy_outcome(self, source: Any, trial: Any) -> None:
        runs.say(f"trial {trial.number} has the settings of trial {source.number}, and its outcome")
        for name, value in source.user_attrs.items():
            trial.set_user_attr(name, value)
        self.study.tell(trial, source.value if source.state is self.states.COMPLETE else None, state=source.state)

    def _listen(self, number: int, job: Job) -> None:
        """Stop a trial early when its evaluations say so, also where it came to its end before anybody looked."""
        attempt = self.attempts[number]
        evaluations = attempt.report.read()
        for step, value in evaluations if self.every and not attempt.pruned else ():
            # Agents pass evaluation.every in strides of their own; trials are compared by how often they passed it.
            attempt.trial.report(value, step // self.every)
            if attempt.trial.should_prune():
                attempt.pruned = True
                job.stop()
                break

    def _end(self, number: int, status: int) -> None:
        attempt = self.attempts.pop(number)
        trial, outcome = attempt.trial, attempt.report.close()
        if not (attempt.pruned or outcome):  # the same settings would end the same way: it is not repeated
            cause = signal_name(status) or f"exit code {status}"
            cause += "; memory may have run out" if cause == "SIGKILL" else ""
            outcome = {"refused": f"its process failed ({cause}); see {self.folder / attempt.log.name}"}
        if "run" in outcome:
            trial.set_user_attr("run", outcome["run"])
        if attempt.pruned:
            self.study.tell(trial, state=self.states.PRUNED)
            runs.say(f"trial {number} is stopped: its evaluations lie below the median")
        elif "refused" in outcome:
            self._refuse(trial, outcome["refused"])
        else:
            self.study.tell(trial, outcome["score"])
            self.write_best()
        for twin in attempt.twins:
            self._copy_outcome(self.study.get_trials(deepcopy=False)[number], twin)

    def _refuse(self, trial: Any, reason: str) -> None:
        trial.set_user_attr("refused", reason)
        self.study.tell(trial, state=self.states.FAIL)
        runs.say(f"trial {trial.number} is refused: {reason}")

    def _suggestion(self, trial: Any) -> dict[str, Any]:
        values: dict[str, Any] = {}
        for key, allowed in self.search.items():
            if isinstance(allowed, OneOf):  # Optuna stores plain values alone; places in the list stand for all
                values[key] = allowed.values[trial.suggest_categorical(key, list(range(len(allowed.values))))]
            elif isinstance(allowed.low, int) and isinstance(allowed.high, int):
                values[key] = trial.suggest_int(key, allowed.low, allowed.high, log=allowed.log)
            else:
                values[key] = trial.suggest_float(key, allowed.low, allowed.high, log=allowed.log)
        trial.set_user_attr("settings", values)
        return values

    def write_best(self) -> Any:
        """Write the config of the best trial as best.yaml; ConfigError when no trial came to its end."""
        complete = self.study.get_trials(deepcopy=False, states=[self.states.COMPLETE])
        if not complete:
            reasons = [each.user_attrs["refused"] for each in self.past_trials() if "refused" in each.user_attrs]
            raise ConfigError(
                f"no trial of {self.folder} came to its end; the last one was refused: {reasons[-1]}; "
                "a larger --trials goes on with others"
            )
        best = max(complete, key=lambda each: (each.value, -each.number))  # the first of equals
        with replacing(self.folder / "best.yaml") as temporary:
            temporary.write_text(yaml_of(with_values(self.base, best.user_attrs["settings"])))
        return best

    def summary(self) -> dict[str, Any]:
        best, trials = self.write_best(), {}
        for trial in self.past_trials():
            facts = {name: trial.user_attrs.get(name) for name in ("settings", "run", "refused")}
            state = "refused" if "refused" in trial.user_attrs else trial.state.name.lower()
            trials[trial.number] = {"number": trial.number, "state": state, "score": trial.value} | facts
        return {"best": trials[best.number], "config": str(self.folder / "best.yaml"), "trials": list(trials.values())}
