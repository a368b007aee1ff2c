"""One cell in a process of its own: `python -m rltransformers.zoo.cell`, started by `rltransformers suite`.

The order stands in the first line of standard input; when the input ends, whoever ordered is gone, and so is this.
Beside the run folder lie NAME.log, NAME.clock (seconds so far) and NAME.lock; the row is left in it as row.json.
"""

import json
import os
import shutil
import sys
import threading
import time
from collections.abc import Iterator, Mapping, Sequence
from contextlib import closing, suppress
from dataclasses import asdict, replace
from pathlib import Path
from typing import Any

import numpy as np
from torch import Tensor

from rltransformers.agents.decision_transformer import DecisionTransformer
from rltransformers.cli import runs
from rltransformers.cli.agents import build_agent
from rltransformers.cli.collect import collect_episodes, make_environment
from rltransformers.cli.trust import import_modules
from rltransformers.core.errors import CheckpointError, ConfigError, DataError, MissingExtraError
from rltransformers.core.files import check_free, file_lock, replacing
from rltransformers.core.spaces import Space, differing_spaces
from rltransformers.data import load_trajectories
from rltransformers.data.trajectories import Trajectories
from rltransformers.policies.steps import Acting
from rltransformers.training.evaluation import EvaluationResult
from rltransformers.training.online.online_agent import OnlineAgent
from rltransformers.training.runs.experiment import (
    BASELINES,
    AgentName,
    DatasetConfig,
    EnvironmentConfig,
    ExperimentConfig,
    build_experiment,
    read_experiment,
)
from rltransformers.training.runs.run_folder import RunFolder, statistics_path
from rltransformers.training.update import RATIO_TOLERANCE
from rltransformers.zoo.facts import commit, machine, parameters, software
from rltransformers.zoo.suites import Cell, Task, config_hash
from rltransformers.zoo.table import COLUMNS, Result, Row, score_of

RECORDED = "recorded.json"
TRAINING_MAX = "training_max"
TRAINING_RETURN = "rollout/ep_rew_mean"  # of the last 100 training episodes
RATIO_ERROR = "train/first_ratio_error"


def order_of(cell: Cell, folder: Path, task: Task, metrics: Sequence[str]) -> str:
    """Order that this module reads from standard input: one line of JSON."""
    values = {name: getattr(cell, name) for name in ("task", "variant", "seed", "config_hash", "of_data")}
    values |= {"config": cell.config.to_dict(), "folder": str(folder), "metrics": list(metrics)}
    values |= {"score": task.score, "target": task.target}
    return json.dumps(values | {"transfers": {name: asdict(each) for name, each in task.transfers.items()}}) + "\n"


def main() -> int:
    """Do what is ordered; the exit status: 0 done, 2 refused with a reason."""
    order = json.loads(sys.stdin.readline())
    threading.Thread(target=_end_with_parent, daemon=True).start()
    folder = Path(order["folder"])
    try:
        with file_lock(folder.with_name(f"{folder.name}.lock"), f"run folder {folder}", DataError):
            row = measure(order)
            write_row(folder, row)
    except (ConfigError, DataError, CheckpointError, MissingExtraError) as error:
        print(error, file=sys.stderr)
        return 2
    return 0


def measure(order: Mapping[str, Any]) -> Row:
    """Train, or go on with training, or score the dataset; all there is to know about it."""
    config, score, target = build_experiment(order["config"]), order["score"], order["target"]
    import_modules(config.imports, order["task"], trust=True)  # allowed by whoever ordered
    row = Row(
        order["task"], order["variant"], order["seed"], 0.0, 0, 0, 0.0, config_hash=order["config_hash"],
        commit=commit(), versions=software(), machine=machine(), date=time.strftime("%Y-%m-%d"),
    )  # fmt: skip
    if order["of_data"]:
        row = _data_row(row, config, score)
    else:
        check_transfers(config, order["transfers"])
        folder, row = Path(order["folder"]), replace(row, recording=_recording(config))
        row = _run_row(row, config, folder, score, target, order["metrics"])
        row = replace(row, transfers=transferred(config, folder, order["transfers"], target))
    return replace(row, score=score_of(row.results, score, target))


def row_file(folder: Path) -> Path:
    """Where a cell leaves its row."""
    return folder / "row.json"


def read_row(folder: Path) -> Row | None:
    """The row that a cell left in its folder."""
    path = row_file(folder)
    if not path.is_file():
        return None
    try:
        return Row(**json.loads(path.read_text()))
    except (ValueError, TypeError, RecursionError) as error:
        raise DataError(f"{path} is damaged ({error}); delete it, the run goes on from its checkpoint") from error


def forget_row(folder: Path) -> None:
    """Note that the row stands in the CSV: from now on only a new run can fill its place."""
    os.replace(row_file(folder), folder / RECORDED)


def write_row(folder: Path, row: Row) -> None:
    """Leave the row in the folder."""
    with replacing(row_file(folder)) as temporary:
        temporary.write_text(json.dumps(asdict(row)))


# Runs


def _run_row(
    row: Row, config: ExperimentConfig, path: Path, score: str, target: float | None, metrics: Sequence[str]
) -> Row:
    clock = path.with_name(f"{path.name}.clock")
    before = _begin(clock, path, config)
    began, processor = time.time(), time.process_time()
    if before is None:
        check_free(path, row_file(path).name, RECORDED)
        if path.exists():
            shutil.rmtree(path)
        config = replace(config, output=str(path.parent), seed=row.seed)
        folder, results = runs.train(path.name, config)
    else:
        folder, results = runs.resume(str(path), [], trust=True)  # of its own making, and the config was compared
    seconds = (before or 0.0) + time.time() - began
    processor = time.process_time() - processor
    lines = folder.read_metrics()
    check_ratios(lines, folder.metrics)
    with closing(build_agent(config, folder.last, training=False)) as agent:
        steps = agent.steps_done
        row = replace(row, parameters=parameters(agent.model.policy), state_bytes=state_bytes(agent.model))
    curve = [[step, score_of(shortened(each), score, target)] for step, each in folder.read_evaluations()]
    return replace(
        row,
        episodes=len(results[0].returns),
        steps=steps,
        wall_seconds=seconds,
        steps_per_cpu_second=steps / processor if before is None else None,
        results=shortened(results),
        curve=curve,
        metrics=logged_metrics(lines, metrics),
    )


def _begin(clock: Path, path: Path, config: ExperimentConfig) -> float | None:
    """Seconds that earlier processes spent on what ``last.zip`` holds; None when the run has to start anew."""
    before = None
    if resumable(path, config) and clock.is_file():
        past = json.loads(clock.read_text())
        before = past["before"] + max(0.0, (path / "last.zip").stat().st_mtime - past["began"])
    with replacing(clock) as temporary:
        temporary.write_text(json.dumps({"before": before or 0.0, "began": time.time()}))
    return before


def resumable(path: Path, config: ExperimentConfig) -> bool:
    """Whether the folder holds a checkpoint of a run with this config that is not in the CSV yet."""
    folder = RunFolder(path)
    if (path / RECORDED).exists() or not (folder.config.is_file() and folder.last.is_file()):
        return False
    if config.agent is AgentName.SAC:
        return False  # its checkpoint has no replay
    if config.agent in BASELINES and config.environment.normalizes and not statistics_path(folder.last).is_file():
        return False  # killed between the two files of its first checkpoint
    try:
        return config_hash(read_experiment(folder.config)) == config_hash(config)
    except ConfigError:
        return False


def shortened(results: Sequence[EvaluationResult]) -> list[Result]:
    """Results without their episodes."""
    return [
        {
            "target_return": result.target_return,
            "return_mean": result.mean,
            "return_std": result.std,
            "success_rate": result.success_rate,
        }
        for result in results
    ]


def check_ratios(lines: Sequence[Mapping[str, str]], path: Path) -> None:
    """Raise DataError where a logged update disagreed with acting: no row comes of such a run."""
    worst = max((float(line.get(RATIO_ERROR) or 0) for line in lines), default=0.0)
    if worst > RATIO_TOLERANCE:
        raise DataError(
            f"{path}: {RATIO_ERROR} went up to {worst:.2g}, above {RATIO_TOLERANCE}: acting and training disagreed, so "
            "this run says nothing about the agent; mend that and delete the folder"
        )


def logged_metrics(lines: Sequence[Mapping[str, str]], names: Sequence[str]) -> dict[str, float]:
    """Last logged value of each metric; those that a run does not log are left out.

    ``training_max`` is the highest return behind the first tenth of the run, where the mean may be of a few episodes,
    and those the shortest.
    """
    wanted = [name for name in names if name not in COLUMNS]
    found = {name: float(line[name]) for line in lines for name in wanted if line.get(name)}
    if TRAINING_MAX in wanted:
        settled = [line for line in lines if 10 * int(line["step"]) >= int(lines[-1]["step"])]
        returns = [float(line[TRAINING_RETURN]) for line in settled if line.get(TRAINING_RETURN)]
        if returns:
            found[TRAINING_MAX] = max(returns)
    return found


def check_transfers(config: ExperimentConfig, transfers: Mapping[str, Mapping[str, Any]]) -> None:
    """Raise ConfigError for an environment of ``transfers`` that cannot be made, or has other spaces than the run's.

    Before the training: ``transferred`` would find it behind hours of it.
    """
    if not transfers:
        return
    ours = _spaces(config.environment)
    for name, transfer in transfers.items():
        try:
            theirs = _spaces(config_in(config, transfer).evaluation_environment)
        except (ConfigError, MissingExtraError) as error:
            raise ConfigError(f"transfers.{name}: {error}") from error
        for role, before, after in differing_spaces(ours, theirs):
            raise ConfigError(
                f"transfers.{name}: its {role} space is {after}, that of training {before}; name an environment whose "
                "spaces are those of training"
            )


def _spaces(environment: EnvironmentConfig) -> tuple[Space, Space]:
    with closing(make_environment(replace(environment, num_envs=1), seed=0)) as env:
        return env.observation_space, env.action_space


def config_in(config: ExperimentConfig, transfer: Mapping[str, Any]) -> ExperimentConfig:
    """The config whose evaluation is in the environment of a transfer, all of its episodes at the same time."""
    episodes, kwargs = transfer["episodes"], config.evaluation.kwargs | transfer["kwargs"]
    environment = replace(config.environment, id=transfer["id"] or config.environment.id, num_envs=episodes)
    return replace(
        config, environment=environment, evaluation=replace(config.evaluation, episodes=episodes, kwargs=kwargs)
    )


def transferred(
    config: ExperimentConfig, folder: Path, transfers: Mapping[str, Mapping[str, Any]], target: float | None
) -> dict[str, Result]:
    """Results of the last weights in other environments, all episodes of one at the same time, and what a step took.

    Agents of this package act as the transfer says.
    """
    results = {}
    for name, transfer in transfers.items():
        moved = config_in(config, transfer)
        evaluation = moved.evaluation if target is None else replace(moved.evaluation, target_returns=[target])
        acting: Acting | None = None if config.agent in BASELINES else transfer["acting"]
        with closing(build_agent(moved, RunFolder(folder).last, training=False, acting=acting)) as agent:
            with suppress(DataError):  # episodes that go on; what is compiled in their first step is not timed
                agent.evaluate(replace(evaluation, longest_episode=1))
            began = time.process_time()
            (result,) = agent.evaluate(evaluation)
            seconds = time.process_time() - began
        results[name] = shortened([result])[0] | {"microseconds": 1e6 * seconds / sum(result.lengths)}
    return results


def state_bytes(model: Any) -> int:
    """Bytes that acting carries from step to step for one environment."""
    if isinstance(model, DecisionTransformer):
        return sum(tensor.nbytes for tensor in _tensors(vars(model.decider().initial_state(1))))
    if isinstance(model, OnlineAgent):
        return sum(tensor.nbytes for tensor in _tensors(model.policy.initial_state(1).tensors()))
    shape = getattr(model.policy, "lstm_hidden_state_shape", (0,))
    return 2 * 4 * int(np.prod(list(shape)))  # hidden and cell of the actor, float32


def _tensors(value: Any) -> Iterator[Tensor]:
    if isinstance(value, Tensor):
        yield value
    elif value is not None:
        for part in (value if isinstance(value, Mapping) else vars(value)).values():
            yield from _tensors(part)


# Data


def _data_row(row: Row, config: ExperimentConfig, score: str) -> Row:
    began = time.time()
    assert config.dataset is not None
    if config.dataset.collect is None:
        data = _stored(config.dataset)
    else:
        data = collect_episodes(config.environment, config.dataset.collect, row.seed)
    returns = data.returns
    result: Result = {
        "target_return": None,
        "return_mean": float(np.mean(returns)),
        "return_std": float(np.std(returns)),
        "success_rate": success_rate(data) if score == "success" else None,
    }
    row = replace(row, wall_seconds=time.time() - began, recording=_recording(config, data))
    return replace(row, episodes=len(data), steps=data.steps, results=[result])


def _recording(config: ExperimentConfig, data: Trajectories | None = None) -> str:
    """The fingerprint of the stored dataset of a config, whose content is ``data`` where it was read already."""
    if config.dataset is None or config.dataset.collect is not None:
        return ""
    if data is None:
        data = _stored(config.dataset)
    return data.fingerprint()


def _stored(dataset: DatasetConfig) -> Trajectories:
    return load_trajectories(dataset.id, **dataset.reading(), trust=True)  # allowed by whoever ordered


def success_rate(data: Trajectories) -> float | None:
    """Share of the recorded episodes that succeeded, by what the environment said; None where it did not say."""
    parts = data.metadata.get("behaviors", ())
    if sum(part["episodes"] for part in parts if "successes" in part) != len(data):
        return None
    return float(sum(part["successes"] for part in parts) / len(data))


def _end_with_parent() -> None:
    sys.stdin.read()
    os._exit(1)


if __name__ == "__main__":
    sys.exit(main())
