"""Suites of results: what is refused, which cells run, what aims and tables say, and that killed runs go on."""

import json
import math
import os
import pickle
import subprocess
import sys
import time
from collections.abc import Callable
from dataclasses import asdict, replace
from itertools import chain
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import yaml
from minari.storage import get_dataset_path

from docs._tools import update_docs
from rltransformers.agents import GTrXLPPO
from rltransformers.backbone import Backbone, BackboneConfig
from rltransformers.cli import engines
from rltransformers.cli.collect import collect_episodes
from rltransformers.cli.engines import LocalEngine
from rltransformers.cli.main import main
from rltransformers.cli.trust import behavior_programs
from rltransformers.core.described import number
from rltransformers.core.errors import ConfigError, DataError
from rltransformers.data import load_trajectories
from rltransformers.training.offline.settings import backbone_config
from rltransformers.training.runs import curves
from rltransformers.training.runs.experiment import (
    AgentName,
    CollectConfig,
    EnvironmentConfig,
    ExperimentConfig,
    build_experiment,
)
from rltransformers.training.runs.run_folder import RunFolder
from rltransformers.zoo import cell, pictures, report, reproduce
from rltransformers.zoo.aims import Verdict, verdict
from rltransformers.zoo.suites import SUITES, Aim, Suite, Task, Transfer, chosen, config_hash, find_suite, read_suite
from rltransformers.zoo.table import Row, current, differences, read_rows, record, score_of
from tests.copies import Copies

ONLINE: dict[str, Any] = {
    "agent": "gtrxl_ppo",
    "environment": {"id": "rltransformers/CueRecall-v0", "num_envs": 8, "kwargs": {"delay": 2}},
    "backbone": {"preset": "gtrxl", "width": 8, "layers": 1, "heads": 2, "memory": 5},
    "algorithm": {"n_steps": 16, "n_epochs": 1, "device": "cpu"},
    "train": {"total_timesteps": 256},
    "evaluation": {"episodes": 50, "every": 128},
}
OFFLINE: dict[str, Any] = {
    "agent": "decision_transformer",
    "environment": {"id": "CartPole-v1", "num_envs": 4},
    "dataset": {"id": "tiny/cartpole-v0"},
    "backbone": {"preset": "decision_transformer", "width": 8, "layers": 1, "heads": 1},
    "algorithm": {"context_length": 3, "batch_size": 4, "device": "cpu"},
    "train": {"gradient_steps": 4},
    "evaluation": {"episodes": 50, "target_returns": [10, 20]},
}
VARIANTS: dict[str, Any] = {"GTrXL": None, "no memory": {"backbone.memory": 0}}
Write = Callable[..., Path]


def suite_command(words: list[str]) -> int:
    """The exit code of `rltransformers suite`."""
    return main(["suite", *words])


@pytest.fixture
def write(tmp_path: Path) -> Write:
    """Writes a suite of one task next to its configs; keywords change the task."""
    (tmp_path / "online.yaml").write_text(yaml.safe_dump(ONLINE))
    (tmp_path / "offline.yaml").write_text(yaml.safe_dump(OFFLINE))

    def write(suite: dict[str, Any] | None = None, **task: Any) -> Path:
        values = {"title": "Cue", "config": str(tmp_path / "online.yaml"), "score": "success", "variants": VARIANTS}
        path = tmp_path / "tiny.yaml"
        path.write_text(yaml.safe_dump({"title": "Tiny", "seeds": 2, "tasks": {"cue": values | task}} | (suite or {})))
        return path

    return write


@pytest.fixture
def suite(write: Write) -> Suite:
    """Two variants, two seeds."""
    return read_suite(str(write()))


def row(suite: Suite, variant: str, seed: int, success: float | None, mean: float = 0.0, **other: Any) -> Row:
    """A row of the task `cue` with today's hash."""
    result = {"target_return": None, "return_mean": mean, "return_std": 0.0, "success_rate": success}
    config_hash = suite.variants["cue"][variant].config_hash
    made = Row("cue", variant, seed, success or 0.0, 50, 256, 60.0, 4.0, 1000, 20, [result], config_hash=config_hash)
    return replace(made, **other)


@pytest.mark.parametrize(("old", "new"), [('"{""', '"{{""'), (",250,", ",25O,"), ("no memory,1,", "no memory,one,")])
def test_a_damaged_line_of_a_csv_is_named(suite: Suite, tmp_path: Path, old: str, new: str) -> None:
    path = tmp_path / "tiny.csv"
    for seed in (0, 1):
        for variant in VARIANTS:
            made = row(suite, variant, seed, 0.5, versions={"python": "3"}, steps=250, machine="tiny")
            record(path, suite, made)
    assert len(read_rows(path)) == 4
    text = path.read_text()
    assert old in text
    for damaged in (text.replace(old, new, 1), text[:-40], f"{text.removesuffix(chr(10))},more\n"):
        path.write_text(damaged)
        with pytest.raises(DataError, match=r"tiny\.csv, line \d is damaged"):
            read_rows(path)


def test_programs_that_a_suite_names_want_trust(
    write: Write, tmp_path: Path, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(reproduce.Work, "_run", lambda self, missing, engine, jobs: 0)
    monkeypatch.setenv("MINARI_DATASETS_PATH", str(tmp_path))  # where nothing was recorded yet
    path = write(
        {"datasets": {"tiny/cartpole-v0": "--env CartPole-v1 --behavior stranger:act --steps 9"}},
        config=str(tmp_path / "offline.yaml"), score="return", target=20, variants={"DT": {}}, seeds=1,
    )  # fmt: skip
    words = [str(path), "--results", str(tmp_path / "out")]
    assert suite_command(words) == 2
    assert "suite tiny would run code" in (message := capsys.readouterr().err) and "stranger" in message
    recorded: list[str] = []
    monkeypatch.setattr(reproduce.Work, "_make_datasets", lambda self, missing: recorded.append("made"))
    suite_command([*words, "--trust"])
    assert recorded == ["made"]


def test_a_module_with_the_environment_of_a_transfer_wants_trust(
    write: Write, tmp_path: Path, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(reproduce.Work, "_run", lambda self, missing, engine, jobs: 0)
    path = write(transfers={"near": {}, "far": {"id": "stranger:CueRecall-v0"}})
    words = [str(path), "--results", str(tmp_path / "out")]
    assert suite_command(words) == 2
    assert "tasks.cue.transfers.far.id 'stranger:CueRecall-v0' imports" in capsys.readouterr().err
    assert suite_command([*words, "--trust"]) == 0


def test_the_pickle_that_a_killed_baseline_goes_on_from_wants_trust(
    write: Write, tmp_path: Path, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(reproduce.Work, "_run", lambda self, missing, engine, jobs: 0)
    values = {"agent": "recurrent_ppo", **{name: ONLINE[name] for name in ("environment", "train", "evaluation")}}
    (tmp_path / "lstm.yaml").write_text(yaml.safe_dump(values))
    path = write(config=str(tmp_path / "lstm.yaml"), variants={"LSTM": {}}, seeds=1)
    words = [str(path), "--results", str(tmp_path / "out")]
    assert suite_command(words) == 0
    (killed,) = read_suite(str(path)).cells()
    folder = tmp_path / "out" / "runs" / "tiny" / killed.task / killed.folder
    folder.parent.mkdir(parents=True)
    run_folder(folder, killed.config)
    assert suite_command(words) == 2
    assert "lstm-seed0/last.zip is a pickle of Stable-Baselines3" in capsys.readouterr().err
    assert suite_command([*words, "--trust"]) == 0


@pytest.mark.parametrize("place", ["overrides", "variants", "config"])
def test_a_module_that_a_suite_imports_wants_trust(
    write: Write, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, place: str
) -> None:
    (tmp_path / "stranger.py").write_text("import pathlib\npathlib.Path(__file__).with_suffix('.ran').touch()\n")
    monkeypatch.syspath_prepend(tmp_path)
    settings = {"imports": ["stranger"]}
    (tmp_path / "own.yaml").write_text(yaml.safe_dump(ONLINE | settings))
    tasks: dict[str, Any] = {"overrides": {place: settings}, "variants": {place: {"x": settings}}}
    path = write(**tasks.get(place, {"config": str(tmp_path / "own.yaml")}))
    with pytest.raises(ConfigError, match=r"(tiny|own)\.yaml would run code of whoever made it: .* module stranger"):
        read_suite(str(path))
    assert not (tmp_path / "stranger.ran").exists()
    assert read_suite(str(path), trust=True).variants and (tmp_path / "stranger.ran").exists()
    del sys.modules["stranger"]


def test_a_trusted_pickle_of_data_is_read_by_every_cell(write: Write, tmp_path: Path) -> None:
    episode = {"observations": np.zeros((3, 4), np.float32), "actions": np.zeros(2, int), "rewards": np.ones(2)}
    (tmp_path / "data.pkl").write_bytes(pickle.dumps([episode]))
    dataset = {"id": str(tmp_path / "data.pkl"), "action_space": "Discrete(2)"}
    (tmp_path / "pickled.yaml").write_text(yaml.safe_dump(OFFLINE | {"dataset": dataset}))
    config, variants = str(tmp_path / "pickled.yaml"), {"DT": {}, "data": {"dataset": "mean"}}
    suite = read_suite(str(write(config=config, score="return", target=20, seeds=1, variants=variants)), trust=True)
    agent, data = suite.cells()
    row = cell.measure(json.loads(cell.order_of(data, tmp_path, suite.tasks["cue"], [])))
    assert row.score == 2.0 and row.recording == cell._recording(agent.config)


# Suites


@pytest.mark.parametrize(
    ("task", "message"),
    [
        ({"overides": {}}, "tasks.cue: unknown setting overides; did you mean 'overrides'"),
        ({"aims": [{"leest": 1}]}, r"aims\[0\]: unknown setting leest; did you mean 'least'"),
        ({"aims": [{}]}, "an aim has one of least"),
        ({"aims": [{"least": 1, "most": 2}]}, "an aim has one of least"),
        ({"aims": [{"least": 1, "over": "no memory", "seeds": 2}]}, "leave seeds out"),
        ({"aims": [{"least": 1, "targets": [1, 2]}]}, "score spearman and rising"),
        ({"aims": [{"above": "no memry"}]}, "no variant 'no memry'; did you mean 'no memory'"),
        ({"aims": [{"least": "much"}]}, r"least must be a finite number or None \(null\), got 'much'"),
        ({"aims": [{"least": 1, "seeds": 3}]}, "an aim wants 3 seeds, its variant has 2"),
        ({"aims": [{"score": "rising"}]}, "score rising needs several target returns"),
        ({"aims": [{"most": 1, "target": 30}]}, "about target return 30; evaluation.target_returns are"),
        ({"transfers": {"far": {"kwarg": {}}}}, "far: unknown setting kwarg; did you mean 'kwargs'"),
        ({"transfers": {"far": {"episodes": 49}}}, "far: episodes is 49; .* at least 50"),
        (
            {"transfers": {"far": {"acting": "slow"}}},
            "far: acting must be one of 'eager', 'compiled', got 'slow'",
        ),
        ({"transfers": {"far": {}}, "aims": [{"least": 1, "transfer": "fat"}]}, "no transfer 'fat'; did you mean"),
        ({"aims": [{"least": 1, "transfer": "far", "target": 3}]}, "leave score and target out"),
        ({"baseline": "LSTM"}, "no variant 'LSTM'"),
        ({"score": "sucess"}, "did you mean 'success'"),
        ({"variants": {}}, "at least one"),
        ({"variants": {"A b": {}, "a-b": {"backbone.memory": 0}}}, "share the run folder 'a-b'"),
        ({"variants": {"x": {"evaluation.episodes": 49}}}, "x: evaluation.episodes is 49; .* at least 50"),
        ({"variants": {"x": {"backbone.memory": 0, "seed": 3}}}, "seed is set by the suite"),
        (
            {"variants": {"x": {"trian.total_timesteps": 3}}},
            "unknown setting trian.total_timesteps; did you mean 'train.total_timesteps'",
        ),
        ({"variants": {"x": {"dataset": "mean"}}}, "needs a config with a dataset"),
        (
            {"variants": {"x": {}, "y": {"train.total_timesteps": 5}}},
            r"cue: train.total_timesteps differs \(x \d+, y 5\); set it in the overrides",
        ),
        ({"overrides": {"output": "here"}}, "output is set by the suite"),
        ({"config": "gtrxl_cue_recal"}, "did you mean 'gtrxl_cue_recall'"),
        ({"config": "offline.yaml"}, "set the task's target to one of"),
        ({"seeds": 0}, "seeds must be at least 1"),
        ({"seeds": [3, 3]}, "without doubles"),
        ({"variants": {"x": {"seeds": 3}}}, "variants.x: 3 seeds, the task has 2"),
        ({"variants": {"x": {"seeds": [0]}}}, r"how many of the task's seeds it runs, got \[0\]"),
        ({"variants": {"x": {"seeds": 1}}, "aims": [{"least": 1, "seeds": 2}]}, "wants 2 seeds, its variant has 1"),
        ({"title": 3}, "title must be a text, got 3"),
        ({"overrides": None}, "overrides must be a mapping, got None"),
    ],
)
def test_what_cannot_be_meant_is_refused(
    task: dict[str, Any], message: str, write: Write, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.chdir(tmp_path)
    path = write(**task)
    with pytest.raises(ConfigError, match=message):
        read_suite(str(path))


@pytest.mark.parametrize("name", ["../../victim", "mem/short", "..", "", "a\nb", "a" * 201])
def test_the_name_of_a_task_is_that_of_one_folder(write: Write, name: str) -> None:
    task = {"title": "T", "config": "gtrxl_cue_recall", "variants": {"a/../b, c": {}}}
    with pytest.raises(ConfigError, match=r"^tiny\.yaml: the name of a task "):
        read_suite(str(write({"tasks": {name: task}})))
    (run,) = read_suite(str(write({"tasks": {"mem, short": task}, "seeds": 1}))).cells()
    assert run.folder == "a-..-b-c-seed0"


def test_words_of_a_dataset_have_their_quotes_in_pairs(write: Write) -> None:
    with pytest.raises(ConfigError, match=r"tiny\.yaml: datasets\.a/b-v0: No closing quotation; quotes stand in pairs"):
        read_suite(str(write({"datasets": {"a/b-v0": "--env 'CartPole-v1"}})))


def test_the_name_of_a_suite_is_that_of_one_folder(write: Write) -> None:
    path = write()
    with pytest.raises(ConfigError, match="the name of a suite must be the name of one folder"):
        read_suite(str(path.rename(path.with_name("...yaml"))))


def test_a_key_given_twice_is_refused_and_a_merge_is_not(write: Write) -> None:
    path = write()
    path.write_text(path.read_text() + "seeds: 3\n")
    with pytest.raises(ConfigError, match="'seeds' is given twice"):
        read_suite(str(path))
    path.write_text(
        "title: T\ntasks:\n  a: &a {title: A, config: gtrxl_cue_recall, variants: {x: }}\n  b: {<<: *a, title: B}"
    )
    tasks = read_suite(str(path)).tasks
    assert (tasks["b"].title, tasks["b"].config) == ("B", tasks["a"].config)


def test_a_suite_that_is_not_in_utf_8_is_refused_in_one_line(write: Write, capsys: pytest.CaptureFixture[str]) -> None:
    path = write()
    path.write_bytes(path.read_bytes().replace(b"Tiny", b"Caf\xe9"))
    assert suite_command([str(path)]) == 2
    (message,) = capsys.readouterr().err.splitlines()
    assert message.startswith(f"rltransformers: suite {path} cannot be read: ") and "save it as UTF-8" in message


IN_ANOTHER_LOCALE = """
import locale, sys
from pathlib import Path
from rltransformers.cli.variants import read_file
from rltransformers.zoo import report
from rltransformers.zoo.suites import read_suite
from rltransformers.zoo.table import Row, read_rows, record

assert locale.getpreferredencoding() != "UTF-8", "it says nothing"
folder = Path(sys.argv[1])
suite = read_suite(str(folder / "tiny.yaml"))
(cell,) = suite.cells()
result = {"target_return": None, "return_mean": 0.0, "return_std": 0.0, "success_rate": 0.5}
row = Row(*cell.key, 0.5, 50, 256, 60.0, results=[result], config_hash=cell.config_hash)
record(folder / "tiny.csv", suite, row)
assert read_rows(folder / "tiny.csv")[0].variant == "sans m\\u00e9moire"
assert report.write(suite, folder) and list(read_file(str(folder / "online.yaml"))) == ["sans m\\u00e9moire"]
"""


def test_files_of_suites_are_in_utf_8_in_every_locale(write: Write, tmp_path: Path) -> None:
    name = "sans mémoire"
    path = write(seeds=1, variants={name: {}}, title="é", aims=[{"least": 0.9}], config="own.yaml")
    path.write_text(f"# é\n{path.read_text()}", encoding="utf-8")
    (tmp_path / "own.yaml").write_text(f"# é\n{yaml.safe_dump(ONLINE)}", encoding="utf-8")
    (tmp_path / "online.yaml").write_text(f"{name}: {{backbone.memory: 0}}", encoding="utf-8")
    words = [sys.executable, "-c", IN_ANOTHER_LOCALE, str(tmp_path)]
    root = str(Path(__file__).parents[2])
    env = os.environ | {"LC_ALL": "C", "PYTHONUTF8": "0", "PYTHONPATH": root}
    done = subprocess.run(words, cwd=tmp_path, env=env, capture_output=True, text=True, check=False)
    assert done.returncode == 0, done.stderr
    assert "≥ 0.9" in (tmp_path / "tiny.md").read_text(encoding="utf-8")


def test_results_go_to_the_current_folder_outside_of_the_checkout(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.chdir(tmp_path)
    out = tmp_path / "results" / "tiny"
    assert reproduce.folders("tiny", None, None) == (out, out / "runs")
    assert reproduce.folders("tiny", "again", None) == (tmp_path / "again", tmp_path / "again" / "runs")
    root = Path(__file__).parents[2]
    monkeypatch.chdir(root / "docs")
    assert reproduce.folders("tiny", None, None) == (root / "docs" / "results", root / "runs" / "results")
    assert reproduce.folders("tiny", str(out), None) == (out, out / "runs")


def test_the_command_alone_lists_the_suites_with_their_titles(capsys: pytest.CaptureFixture[str]) -> None:
    assert suite_command([]) == 0
    listed = dict(line.split("  ", 1) for line in capsys.readouterr().out.splitlines())
    assert {name.strip() for name in listed} == {path.stem for path in SUITES.glob("*.yaml")}
    assert "Online: partial observability" in {title.strip() for title in listed.values()}


def test_behaviors_of_the_package_need_no_trust() -> None:
    ours, theirs = "rltransformers.zoo.behaviors:cartpole_weak", "rltransformers_zoo.behaviors:act"
    assert behavior_programs([ours], "--behavior") == [] and len(behavior_programs([theirs], "--behavior")) == 1


def test_errors_are_one_line_and_status_2(write: Write, capsys: pytest.CaptureFixture[str]) -> None:
    assert suite_command(["onlin"]) == 2
    assert suite_command([str(write()), "--only", "cue/GTrX", "--dry-run"]) == 2
    unknown, only = capsys.readouterr().err.splitlines()
    assert unknown.startswith("rltransformers: suite 'onlin' is neither a file nor a packaged suite")
    assert only == "rltransformers: --only cue/GTrX: no such task or TASK/VARIANT; did you mean 'cue/GTrXL'?"


def test_overrides_reach_the_config_with_their_type(write: Write) -> None:
    overrides = {
        "algorithm.learning_rate": 1e-5,
        "environment.wrappers": [],
        "evaluation.every": 7,
        "train.total_timesteps": 9,
    }
    variants = {"x": {"algorithm.target_kl": None, "evaluation.every": 9}, "y": {"config": "gtrxl_pendulum_masked"}}
    resolved = read_suite(str(write(overrides=overrides, variants=variants, score="return"))).variants["cue"]
    x, y = resolved["x"].config, resolved["y"].config
    assert x.algorithm["learning_rate"] == 1e-5 and x.algorithm["target_kl"] is None
    assert (x.environment.wrappers, x.evaluation.every) == ([], 9)
    assert (y.environment.id, y.evaluation.every) == ("Pendulum-v1", 7)


@pytest.mark.xdist_group("committed suites")
@pytest.mark.parametrize("path", sorted(SUITES.glob("*.yaml")), ids=lambda path: path.stem)
def test_every_network_of_a_committed_suite_can_be_built(path: Path) -> None:
    built = 0
    for variants in report.suite_of(path, path.read_text()).variants.values():
        for config, _, of_data in variants.values():
            if of_data or config.agent == "recurrent_ppo":
                continue
            if config.agent != "decision_transformer":
                backbone = BackboneConfig.from_dict(config.backbone)
            else:
                mode, length = config.algorithm.get("mode", "dt"), config.algorithm.get("context_length", 20)
                place = config.algorithm.get("return_in", "sequence")
                backbone = backbone_config({"backbone": config.backbone}, mode, length, place)
            Backbone(backbone)
            built += 1
    assert built > 0


def test_cells_run_seed_by_seed_and_only_chosen_ones(suite: Suite) -> None:
    cells = list(suite.cells())
    assert [(each.variant, each.seed) for each in cells] == [
        ("GTrXL", 0), ("no memory", 0), ("GTrXL", 1), ("no memory", 1),
    ]  # fmt: skip
    assert [each.config.seed for each in cells] == [0, 0, 1, 1]
    assert len(list(suite.cells(count=5))) == 10
    assert [str(each) for each in chosen(cells, ["cue/no memory"])] == [
        "cue / no memory, seed 0", "cue / no memory, seed 1",
    ]  # fmt: skip
    assert len(chosen(cells, ["cue"])) == len(chosen(cells, [])) == 4


def test_a_list_of_seeds_is_taken_as_it_is(write: Write) -> None:
    suite = read_suite(str(write(seeds=[11, 10, 12])))
    assert suite.seeds("cue") == [11, 10, 12] and suite.seeds("cue", 2) == [11, 10]


def test_a_variant_may_run_the_first_seeds_only(write: Write) -> None:
    plain, fewer = {"backbone.memory": 0}, {"backbone.memory": 0, "seeds": 1}
    suite = read_suite(str(write(seeds=[11, 10], variants={"GTrXL": {}, "all": plain, "one": fewer})))
    assert [each.seed for each in suite.cells() if each.variant == "one"] == [11]
    assert [each.seed for each in suite.cells() if each.variant == "all"] == [11, 10]
    assert suite.variants["cue"]["one"] == suite.variants["cue"]["all"], "the settings are the same, and so is the hash"


def test_a_stored_dataset_has_one_row_and_a_collected_one_a_row_per_seed(write: Write, tmp_path: Path) -> None:
    config = str(tmp_path / "offline.yaml")
    variants: dict[str, Any] = {"DT": {}, "data": {"dataset": "mean"}}
    stored = read_suite(str(write(config=config, target=20, variants=variants)))
    assert [each.seed for each in stored.cells() if each.of_data] == [0]
    variants["data"] |= {"dataset.collect": {"episodes": 3}, "dataset.id": None}
    collected = read_suite(str(write(config=config, target=20, variants=variants)))
    assert [each.seed for each in collected.cells() if each.of_data] == [0, 1]


def test_the_hash_is_of_what_a_run_computes() -> None:
    def hashed(**changes: Any) -> str:
        return config_hash(build_experiment(ONLINE | changes))

    earlier = GTrXLPPO.earlier_defaults | ONLINE["algorithm"] | {"scale_rewards": False}
    first = hashed(algorithm=earlier)
    for name in {
        "learning_rate",
        "target_kl",
        "least_advantage_std",
        "scale_rewards",
    }:  # left out, today's counts
        assert hashed(algorithm={key: value for key, value in earlier.items() if key != name}) != first
    assert first == "41b0fb6711bb"  # by this very function: another number would make every committed row stale
    assert hashed() not in (first, hashed(environment=ONLINE["environment"] | {"normalize_reward": True}))
    first = hashed()
    backwards = dict(reversed([(key, value) for key, value in ONLINE.items()]))
    assert config_hash(build_experiment(backwards)) == first
    assert hashed(seed=3, output="elsewhere", threads=2) == first
    assert hashed(evaluation={"episodes": 50, "every": 128, "deterministic": True}) == first
    assert hashed(backbone=ONLINE["backbone"] | {"memory": 6}) != first
    assert hashed(evaluation={"episodes": 51, "every": 128}) != first
    far = [config_hash(build_experiment(ONLINE), transfers={"far": Transfer(kwargs={"delay": n})}) for n in (8, 9)]
    assert len({first, *far}) == 3
    eager = Transfer(kwargs={"delay": 8}, acting="eager")
    assert config_hash(build_experiment(ONLINE), transfers={"far": eager}) == far[0]
    assert config_hash(build_experiment(ONLINE), "data") != first


@pytest.mark.parametrize("name", ["elsewhere/online.yaml", "./online"])
def test_a_path_without_a_file_is_no_packaged_suite(name: str) -> None:
    assert find_suite("online") == find_suite("online.yaml")
    with pytest.raises(ConfigError, match="there is no such file; for the packaged suite name it alone: online"):
        find_suite(name)


# The CSV


def test_a_csv_holds_what_was_written_in_the_order_of_the_suite(suite: Suite, tmp_path: Path) -> None:
    path = tmp_path / "results" / "tiny.csv"
    full = row(
        suite, "no memory", 1, 0.5, curve=[[128, 0.25], [256, 0.5]], metrics={"memory/staleness": 0.125},
        commit="abc-dirty", versions={"python": "3.11"}, machine="CPU, 2 cores", date="2026-01-02",
    )  # fmt: skip
    empty = replace(row(suite, "GTrXL", 1, 1.0), steps_per_cpu_second=None, parameters=None, state_bytes=None)
    gone = replace(full, task="former", seed=0)
    for each in (gone, full, empty, row(suite, "GTrXL", 0, 0.9)):
        record(path, suite, each)
    rows = read_rows(path)
    assert [each.key for each in rows] == [
        ("cue", "GTrXL", 0), ("cue", "GTrXL", 1), ("cue", "no memory", 1), ("former", "no memory", 0),
    ]  # fmt: skip
    assert rows[1:] == [empty, full, gone]
    record(path, suite, row(suite, "GTrXL", 0, 1.0))
    assert [each.score for each in read_rows(path)] == [1.0, 1.0, 0.5, 0.5]
    assert not [each for each in path.parent.iterdir() if ".tmp" in each.name]


def test_rows_of_other_settings_do_not_count(suite: Suite) -> None:
    rows = [row(suite, "GTrXL", 0, 1.0), replace(row(suite, "GTrXL", 1, 1.0), config_hash="0" * 12)]
    rows += [replace(rows[0], task="former"), replace(rows[0], variant="former")]
    assert list(current(suite, rows)) == [("cue", "GTrXL", 0)]


def test_a_new_rule_for_the_score_holds_for_old_rows(write: Write) -> None:
    suite = read_suite(str(write(score="return")))
    assert current(suite, [row(suite, "GTrXL", 0, 0.5, mean=17.0)])["cue", "GTrXL", 0].score == 17.0


def test_the_score_is_that_of_the_target() -> None:
    def result(target: float | None, mean: float) -> dict[str, float | None]:
        return {"target_return": target, "return_mean": mean, "return_std": 0.0, "success_rate": None}

    assert score_of([result(10, 1.0), result(20, 2.0)], "return", 20) == 2.0
    assert score_of([result(None, 3.0)], "return", 20) == 3.0  # behavior cloning has no targets
    with pytest.raises(DataError, match="no result has the target return 30"):
        score_of([result(10, 1.0), result(20, 2.0)], "return", 30)
    with pytest.raises(DataError, match="does not report is_success"):
        score_of([result(None, 3.0)], "success")


def test_a_variant_that_was_not_asked_for_a_return_has_no_cell_for_it() -> None:
    def asked(variant: str, *targets: float) -> Row:
        results = [
            {"target_return": each, "return_mean": each, "return_std": 0.0, "success_rate": None} for each in targets
        ]
        return Row("x", variant, 0, 1.0, 50, 256, 60.0, 4.0, 1000, 20, results)

    lines = [*report._by_target(TASK, {"ours": [asked("ours", 10, 20, 30)], "BC": [asked("BC", 10, 30)]})]
    assert [[cell.strip() for cell in line.strip("|").split("|")] for line in lines[-2:]] == [
        ["ours", "10", "20", "30", "0"], ["BC", "10", "-", "30", "0"],
    ]  # fmt: skip


# Aims

TASK = Task("T", "x", {"ours": {}, "BC": {}, "memoryless": {}}, score="return", target=20.0)


def runs(ours: list[float], others: list[float], targets: list[list[float]] | None = None) -> dict[str, list[Row]]:
    def made(variant: str, scores: list[float]) -> list[Row]:
        return [Row("t", variant, seed, score, 50, 1, 1.0) for seed, score in enumerate(scores)]

    found = {"ours": made("ours", ours), "BC": made("BC", others), "memoryless": made("memoryless", others)}
    for seed, means in enumerate(targets or []):
        results: list[dict[str, float | None]] = [
            {"target_return": 10.0 * (place + 1), "return_mean": mean, "return_std": 0.0, "success_rate": None}
            for place, mean in enumerate(means)
        ]
        found["ours"][seed] = replace(found["ours"][seed], results=results)
    return found


@pytest.mark.parametrize(
    ("aim", "ours", "text", "got", "met"),
    [
        (Aim(least=0.95, seeds=2), [0.95, 1.0], "≥ 0.95 in 2 of 3 seeds", "2 of 2", True),
        (Aim(least=0.95, seeds=3), [0.95, 1.0], "≥ 0.95 in 3 of 3 seeds", "2 of 2", None),
        (Aim(least=0.95, seeds=3), [0.94, 1.0], "≥ 0.95 in 3 of 3 seeds", "1 of 2", False),
        (Aim(least=0.95, seeds=3), [0.94, 1.0, 1.0], "≥ 0.95 in 3 of 3 seeds", "2 of 3", False),
        (Aim(least=0.9), [0.8, 0.9, 1.0], "≥ 0.9", "0.9", True),
        (Aim(least=0.9), [0.8, 0.9, 0.9], "≥ 0.9", "0.867", False),
        (Aim(least=0.95), [0.95, 0.95, 0.95], "≥ 0.95", "0.95", True),  # whose mean in floats is 0.9499999999999998
        (Aim(least=0.9), [0.9, 0.9], "≥ 0.9", "0.9", None),
        (Aim(least=0.9), [], "≥ 0.9", "", None),
        (Aim(most=0.1, variant="memoryless"), [], "memoryless: ≤ 0.1", "0.2", False),
        (Aim(most=0.2, variant="memoryless"), [], "memoryless: ≤ 0.2", "0.2", True),
        (Aim(least=3.0, over="BC"), [0.6, 0.6, 0.7], "≥ 3 × BC", "3.167 ×", True),
        (Aim(least=3.0, over="BC"), [0.5, 0.5, 0.7], "≥ 3 × BC", "2.833 ×", False),
        (Aim(least=3.0, over="BC"), [0.6, 0.7], "≥ 3 × BC", "3.25 ×", None),
        (Aim(above="BC"), [0.3, 0.4, 0.5], "above BC, intervals apart", "0.3 > 0.2", True),
        (Aim(above="BC"), [0.2, 0.4, 0.5], "above BC, intervals apart", "0.2 ≤ 0.2", False),
        (Aim(above="BC"), [0.3, 0.4], "above BC, intervals apart", "0.3 > 0.2", None),
        (Aim(above="BC"), [0.3], "above BC, intervals apart", "a single run has no interval", None),
        (Aim(least=3.0, over="BC"), [-0.6, -0.6, 0.0], "≥ 3 × BC", "no ratio of -0.4 to 0.2", False),
        (Aim(least=3.0, over="BC"), [-0.6], "≥ 3 × BC", "no ratio of -0.6 to 0.2", None),
        (Aim(least=0.9), [1.0, math.nan, 1.0], "≥ 0.9", "nan", False),
        (Aim(most=0.9), [0.1, math.nan, 0.1], "≤ 0.9", "nan", False),
        (Aim(least=0.9, seeds=2), [1.0, math.nan, math.nan], "≥ 0.9 in 2 of 3 seeds", "1 of 3", False),
    ],
)
def test_an_aim_is_met_missed_or_open(aim: Aim, ours: list[float], text: str, got: str, met: bool | None) -> None:
    planned = {"ours": 3, "BC": 3, "memoryless": 3}
    assert verdict(TASK, aim, runs(ours, [0.2, 0.2, 0.2]), planned) == Verdict(text, got, met)


@pytest.mark.parametrize(
    ("aim", "ours", "others", "got", "met"),
    [
        (Aim(above="BC"), [0.6], [0.5], "a single run has no interval", False),
        (Aim(least=1.3, over="BC"), [0.0], [0.0], "no ratio of 0 to 0", False),
        (Aim(most=1.3, over="BC"), [0.0], [0.0], "no ratio of 0 to 0", False),
        (Aim(least=1.3, over="BC"), [0.1], [0.0], "∞ ×", True),
        (Aim(most=1.3, over="BC"), [0.1], [0.0], "∞ ×", False),
        (Aim(least=1.3, over="BC"), [math.nan], [0.0], "no ratio of nan to 0", False),
    ],
)
def test_an_aim_is_not_met_by_what_cannot_be_compared(
    aim: Aim, ours: list[float], others: list[float], got: str, met: bool
) -> None:
    found = verdict(TASK, aim, runs(ours, others), {"ours": 1, "BC": 1})
    assert (found.got, found.met) == (got, met)


@pytest.mark.parametrize(
    ("aim", "means", "got", "met"),
    [
        (Aim(score="rising"), [[1.0, 2.0, 3.0], [2.0, 1.0, 4.0]], "1.5, 1.5, 3.5", False),
        (Aim(score="rising"), [[1.0, 2.0, 3.0], [1.0, 1.5, 4.0]], "1, 1.75, 3.5", True),
        (Aim(score="rising", targets=[20, 30]), [[9.0, 2.0, 3.0], [9.0, 1.0, 4.0]], "1.5, 3.5", True),
        (Aim(score="spearman", least=0.9), [[1.0, 2.0, 3.0], [1.0, 2.0, 3.0]], "1", True),
        (Aim(score="spearman", least=0.9), [[1.0, 2.0, 3.0], [2.0, 1.0, 3.0]], "0.75", False),
        (Aim(score="spearman", least=0.9), [[1.0, 2.0, 3.0], [2.0, 2.0, 2.0]], "0.5", False),
        (Aim(score="spearman", least=0.9, seeds=1), [[1.0, 2.0, 3.0], [2.0, 2.0, 2.0]], "1 of 2", True),
        (Aim(most=2.0, target=10.0), [[1.0, 7.0, 9.0], [3.0, 7.0, 9.0]], "2", True),
    ],
)
def test_aims_look_at_target_returns(aim: Aim, means: list[list[float]], got: str, met: bool) -> None:
    found = verdict(TASK, aim, runs([0.0, 0.0], [], means), {"ours": 2})
    assert (found.got, found.met) == (got, met)


@pytest.mark.parametrize(
    ("value", "text"),
    [
        (0.95, "0.95"), (0.9496, "0.95"), (0.9494, "0.949"), (1.0, "1"), (500.0, "500"), (-217.94, "-217.9"),
        (1500.4, "1,500"), (100.0, "100"), (-0.0001, "0"), (None, "-"), (float("inf"), "∞"),
    ],
)  # fmt: skip
def test_numbers_are_short(value: float | None, text: str) -> None:
    assert number(value) == text


# Tables and pictures


def test_a_slower_variant_is_scored_in_the_processor_time_of_the_method(write: Write) -> None:
    suite = read_suite(str(write({"metrics": ["equal_time"], "overview": "equal_time"})))
    rows = [
        row(suite, "GTrXL", 0, 1.0, steps=100, steps_per_cpu_second=10.0, curve=[[50, 0.5], [100, 1.0]]),
        row(suite, "no memory", 0, 0.8, steps=100, steps_per_cpu_second=7.5, curve=[[50, 0.2], [100, 0.8]]),
        row(suite, "no memory", 1, 0.8, steps_per_cpu_second=None),  # of a run that was killed and went on
    ]
    budget = rows[0].cpu_seconds
    assert [each.metric("equal_time", budget) for each in rows] == [1.0, pytest.approx(0.5), None]
    page = report.page(suite, rows)
    assert "## All tasks: score in the CPU time of GTrXL, mean over seeds" in page and "| 1 | 0.5 |" in page


def test_the_page_of_a_suite_shows_scores_aims_and_metrics(write: Write, tmp_path: Path) -> None:
    aims = [{"least": 0.95, "seeds": 2}, {"most": 0.7, "variant": "no memory"}]
    values = {"metrics": ["memory/staleness", "curve_mean"], "found": "Memory helps in one seed."}
    suite = read_suite(str(write(values, aims=aims, note="One seed is lost.")))
    rows = [
        row(suite, "GTrXL", 0, 1.0, metrics={"memory/staleness": 0.25}, commit="abc", curve=[[1, 0.5], [2, 1.0]]),
        row(suite, "GTrXL", 1, 0.9, metrics={"memory/staleness": 0.5}, commit="abd"),
        row(suite, "no memory", 0, 0.5),
        row(suite, "no memory", 1, 0.95),
    ]
    for each in rows:
        record(tmp_path / "tiny.csv", suite, each)
    assert report.write(suite, tmp_path) == [tmp_path / "tiny-cue.png", tmp_path / "tiny.md"]
    text = (tmp_path / "tiny.md").read_text()
    places = [text.index(each) for each in ("Memory helps", "](tiny-cue.png)", "| variant |", "- commit: abc; abd")]
    assert places == sorted(places)  # what was found, then the picture, then the table, where it comes from last
    assert "| GTrXL | 0.95 [0.9, 1] | 1 / 0.9 | 0.75 | 1,000 | 256 | 1.0 | 0.375 | 0.75 |" in text
    assert "| no memory | 0.725 [0.5, 0.95] | 0.5 / 0.95 | - | 1,000 | 256 | 1.0 | - | - |" in text
    assert "| ≥ 0.95 in 2 of 2 seeds | 1 of 2 | **no** |" in text and "\nOne seed is lost.\n" in text
    assert report.summary(tmp_path, tmp_path)[-1] == (
        "| Cue | GTrXL **0.95 [0.9, 1]**, 2 seeds | no memory 0.725 | ≥ 0.95 in 2 of 2 seeds; no memory: ≤ 0.7 "
        "| **no**; **no** |"
    )
    assert report.index(tmp_path, tmp_path)[-1].endswith("| 4 of 4 | 0.1 | 2 no |")
    chosen_line = report.selection(tmp_path, tmp_path, {"tiny": ["cue"]})[-1]
    assert chosen_line.startswith("| Cue | GTrXL **0.95 [0.9, 1]**, 2 seeds |")
    assert chosen_line.endswith("| no memory 0.725 | 0 of 2 |")
    with pytest.raises(ConfigError, match="no results of a suite 'tinny'; did you mean 'tiny'"):
        report.selection(tmp_path, tmp_path, {"tinny": ["cue"]})
    with pytest.raises(ConfigError, match="no task 'cues'; did you mean 'cue'"):
        report.selection(tmp_path, tmp_path, {"tiny": ["cues"]})
    alone = {"GTrXL": [row(suite, "GTrXL", 0, 1.0)], "no memory": []}
    assert report.selection_row(suite, "cue", alone).startswith("| Cue | GTrXL **1**, 1 seed | - | - |")


def test_the_note_stands_on_the_page_when_every_aim_is_met(write: Write, tmp_path: Path) -> None:
    suite = read_suite(str(write(aims=[{"least": 0.95}], note="Learned from a memory.")))
    for seed in range(2):
        record(tmp_path / "tiny.csv", suite, row(suite, "GTrXL", seed, 1.0))
        record(tmp_path / "tiny.csv", suite, row(suite, "no memory", seed, 0.5))
    report.write(suite, tmp_path)
    text = (tmp_path / "tiny.md").read_text()
    assert "| yes |" in text and "**no**" not in text and "\nLearned from a memory.\n" in text


def test_many_variants_without_aims_are_summed_up(write: Write, tmp_path: Path) -> None:
    variants: dict[str, dict[str, int]] = {"a": {}} | {f"b{i}": {"backbone.memory": i} for i in range(6)}
    suite = read_suite(str(write(variants=variants, baseline=None, aims=[], note="All about the same.")))
    for number_, variant in enumerate(variants):
        record(tmp_path / "tiny.csv", suite, row(suite, variant, 0, number_ / 8))
    report.write(suite, tmp_path)
    assert "\nAll about the same.\n" in (tmp_path / "tiny.md").read_text()
    assert report.summary(tmp_path, tmp_path)[-1] == (
        "| Cue | a **0**, 1 seed | b0 0.125; 5 further variants: 0.25 to 0.75 | - | - |"
    )
    assert report.index(tmp_path, tmp_path)[-1].endswith("| 7 of 14 | 0.1 | - |")


def test_a_long_table_opens_when_it_is_clicked() -> None:
    table = [*report.table_head(["a"]), *["| 1 |"] * report.MAX_LINES]
    assert report.folded("variants", table) == table
    table.append("| 1 |")
    assert report.folded("variants", table) == [
        '<details markdown="1">', "<summary>All 13 variants</summary>", "", *table, "", "</details>"
    ]  # fmt: skip


def test_tasks_of_an_overview_open_one_by_one_where_they_are_many(write: Write, tmp_path: Path) -> None:
    write()
    values = {"config": str(tmp_path / "online.yaml"), "score": "success", "variants": VARIANTS}
    tasks = {f"t{index}": values | {"title": f"Cue {index}"} for index in range(report.MAX_LINES)}

    def page() -> str:
        suite = read_suite(str(write({"overview": "score", "tasks": tasks})))
        return report.page(suite, [Row(name, "GTrXL", 0, 1.0, 50, 2, 1.0) for name in tasks])

    assert "\n## Cue 0\n" in page() and "<details" not in page()
    tasks["more"] = values | {"title": "Cue more"}
    assert '\n## Task by task\n\n<details markdown="1">\n<summary>Cue more</summary>\n\n![Cue more]' in page()


def test_runs_on_several_recordings_of_a_dataset_are_told_apart(suite: Suite) -> None:
    rows = [replace(row(suite, "GTrXL", seed, 1.0), recording="ab" if seed < 2 else "") for seed in range(3)]
    rows.append(replace(row(suite, "no memory", 0, 0.5), recording="cd"))
    runs = report.runs_of(suite, "cue", rows)
    text = "\n".join(report.section(suite, "cue", runs))
    assert "several recordings" in text
    assert "| ab | GTrXL (0, 1) |\n| not noted | GTrXL (2) |\n| cd | no memory (0) |" in text
    assert "several recordings" not in "\n".join(
        report.section(suite, "cue", runs | {"GTrXL": [], "no memory": rows[3:]})
    )


def test_an_overview_has_a_line_per_task_and_the_mean_of_those_that_all_variants_have(
    write: Write, tmp_path: Path
) -> None:
    write()
    values = {"config": str(tmp_path / "online.yaml"), "score": "success", "variants": VARIANTS}
    tasks = {name: values | {"title": f"Cue {name}"} for name in ("a", "b", "c", "d")}
    path = write({"metrics": ["curve_max"], "overview": "curve_max", "tasks": tasks})
    suite = read_suite(str(path))
    rows = []
    for task, variant, seed, scores in (
        ("a", "GTrXL", 0, (0.5, 0.75)), ("a", "GTrXL", 1, (0.25, 0.1)), ("a", "no memory", 0, (0.5, 0.5)),
        ("b", "GTrXL", 0, (1.0, 0.0)), ("c", "GTrXL", 0, (0.25, 0.0)), ("c", "no memory", 0, (0.0, 0.125)),
    ):  # fmt: skip
        curve = [[float(step), score] for step, score in enumerate(scores)]
        result = {"target_return": None, "return_mean": scores[-1], "return_std": 0.0, "success_rate": scores[-1]}
        rows.append(Row(task, variant, seed, scores[-1], 50, 2, 1.0, parameters=1, results=[result], curve=curve))
    text = report.page(suite, rows)
    assert (
        "## All tasks: highest evaluation, mean over seeds\n\n| task | GTrXL | no memory |\n|---|---|---|\n"
        "| mean of 2 tasks | 0.375 | 0.312 |\n| Cue a | 0.5 | 0.5 |\n| Cue b | 1 | - |\n| Cue c | 0.25 | 0.125 |\n"
        in text
    )
    alone = report.page(suite, rows[3:4])
    assert "| task | GTrXL | no memory |\n|---|---|---|\n| mean of 1 task | 1 | - |\n| Cue b | 1 | - |\n" in alone
    wider = {
        name: each | {"variants": VARIANTS | {"third": {}}, "baseline": "no memory"} for name, each in tasks.items()
    }
    path = write({"metrics": ["curve_max"], "overview": "curve_max", "overview_means": False, "tasks": wider})
    assert "mean of" not in report.page(read_suite(str(path)), rows)
    path = write({"metrics": ["curve_max"], "overview": "curve_max", "tasks": wider})
    begun = [*rows, replace(rows[0], variant="third")]  # of fewer than half of the tasks, and no part of means yet
    text = report.page(read_suite(str(path)), begun)
    assert "|---|\n| mean of 2 tasks | 0.375 | 0.312 | - |\n| Cue a | 0.5 | 0.5 | 0.75 |\n" in text
    text = report.page(read_suite(str(path)), [*begun, replace(begun[-1], task="b")])
    assert "| mean of 2 tasks | 0.375 | 0.312 | - |\n| mean of 1 task | 0.5 | 0.5 | 0.75 |\n" in text
    four = VARIANTS | {"third": {}, "under way": {}}
    more = {name: each | {"variants": four} for name, each in wider.items()}
    path = write({"metrics": ["curve_max"], "overview": "curve_max", "tasks": more})
    third = [replace(row, variant="third") for row in rows if row.variant == "no memory"]  # the tasks of the other two
    few = [replace(rows[0], variant="under way", task=name) for name in ("a", "b")]
    text = report.page(read_suite(str(path)), [*rows, *third, *few])
    assert "| mean of 2 tasks | 0.375 | 0.312 | 0.312 | - |\n| mean of 1 task | 0.5 | 0.5 | 0.5 | 0.75 |\n" in text
    single = tasks | {"a": wider["a"]}  # a variant of one task leaves the means as they are
    path = write({"metrics": ["curve_max"], "overview": "curve_max", "tasks": single})
    text = report.page(read_suite(str(path)), [*rows, replace(rows[0], variant="third")])
    assert "|---|\n| mean of 2 tasks | 0.375 | 0.312 | - |\n| Cue a | 0.5 | 0.5 | 0.75 |\n" in text
    for name, figure in (("a", 0.9), ("b", 0.0), ("d", 0.8)):
        tasks[name]["published"] = {"theirs": figure}
    path = write({"metrics": ["curve_max"], "overview": "curve_max", "overview_note": "From them.", "tasks": tasks})
    text = report.page(read_suite(str(path)), rows)
    assert (
        "| mean of 2 tasks | 0.375 | 0.312 | - |\n| mean of 1 task | 0.5 | 0.5 | 0.9 |\n"
        "| Cue a | 0.5 | 0.5 | 0.9 |\n| Cue b | 1 | - | 0 |\n| Cue c | 0.25 | 0.125 | - |\n\nFrom them.\n" in text
    )
    with pytest.raises(ConfigError, match=r"tasks\.a: published figures are shown in an overview; give the suite one"):
        read_suite(str(write({"tasks": tasks})))
    with pytest.raises(
        ConfigError, match="overview 'curve_min' is neither score nor map nor in metrics; did you mean 'curve_max'"
    ):
        read_suite(str(write({"metrics": ["curve_max"], "overview": "curve_min"})))


def test_a_map_has_a_line_per_variant_and_a_column_per_task_and_environment(
    write: Write, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    write()
    values = {"config": str(tmp_path / "online.yaml"), "score": "success", "variants": VARIANTS}
    keep = values | {"title": "Keep", "chance": 0.5, "transfers": {"10 times": {"kwargs": {"delay": 20}}}}
    add = values | {"title": "Add", "variants": VARIANTS | {"third": {}}}
    path = write({"overview": "map", "overview_note": "So it is.", "tasks": {"keep": keep, "add": add}})
    suite = read_suite(str(path))
    rows = []
    for task, variant, seed, scores in (
        ("keep", "GTrXL", 0, (1.0, 0.5)), ("keep", "GTrXL", 1, (0.5, 0.75)), ("add", "third", 0, (0.25,)),
        ("add", "GTrXL", 0, (0.0,)),
    ):  # fmt: skip
        results = [
            {"target_return": None, "return_mean": 9.0, "success_rate": each, "microseconds": 40.0 + seed}
            for each in scores
        ]
        transfers = dict(zip(["10 times"], results[1:], strict=False))
        made = Row(task, variant, seed, scores[0], 50, 2, 1.0, results=results[:1], transfers=transfers)
        rows.append(replace(made, state_bytes=96, config_hash=suite.variants[task][variant].config_hash))
    text = report.page(suite, rows)
    assert (
        "![Tiny](tiny.png)\n\n| memory | add | keep | keep, 10 times | seeds | state, bytes | µs per step, compiled |\n"
        "|---|---|---|---|---|---|---|\n| GTrXL | 0 | 0.75 | 0.625 | 1-2 | 96 | 40.5 |\n"
        "| third | 0.25 | - | - | 1 | 96 | - |\n\nSo it is.\n" in text
    )
    monkeypatch.setattr(report, "MAX_COLUMNS", 1)
    text = report.page(suite, rows)  # "third" has no runs of the second task
    assert "\n\n| memory | keep |\n|---|---|\n| GTrXL | 0.75 |\n\n| memory | keep, 10 times |\n" in text
    columns, lines = report.map_of(suite, rows)
    assert columns == {"add": 0.0, "keep": 0.5, "keep, 10 times": 0.5}
    assert lines == {"GTrXL": [0.0, 0.75, 0.625], "third": [0.25, None, None]}
    for each in rows:
        record(tmp_path / "tiny.csv", suite, each)
    assert tmp_path / "tiny.png" in report.write(suite, tmp_path) and (tmp_path / "tiny.png").stat().st_size > 1000
    with pytest.raises(ConfigError, match=r"chance 1\.0 is not below 1"):
        read_suite(str(write(chance=1.0)))


@pytest.mark.xdist_group("committed suites")
def test_the_committed_pages_are_those_of_the_csvs() -> None:
    for suite, rows in report.finished(update_docs.RESULTS, SUITES):
        page = (update_docs.RESULTS / f"{suite.name}.md").read_text()
        assert page == report.page(suite, rows), f"rltransformers suite {suite.name} --report"
        assert suite.text.found, f"{suite.name}: say in a sentence or two what its runs showed"
        for name in suite.tasks:
            picture = f"{suite.name}-{name}.png"
            assert (update_docs.RESULTS / picture).is_file() == (f"]({picture})" in page)


def test_a_readme_that_differs_from_the_csv_is_found(
    write: Write, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    suite = read_suite(str(write(aims=[{"least": 0.95}])))
    monkeypatch.setattr(update_docs, "RESULTS", tmp_path)
    monkeypatch.setattr(update_docs, "SUITES", tmp_path)
    csv = tmp_path / "tiny.csv"
    record(csv, suite, row(suite, "GTrXL", 0, 1.0))
    text = update_docs.updated("<!-- results:start -->\n<!-- results:end -->\n")
    assert "| Cue | GTrXL **1**, 1 seed |" in text and update_docs.updated(text) == text
    record(csv, suite, row(suite, "GTrXL", 0, 0.5))
    assert "| Cue | GTrXL **0.5**, 1 seed |" in update_docs.updated(text) != text
    write()
    assert "Cue" not in update_docs.updated(text)  # a task without a target is on the page of its suite


def test_curves_of_runs_are_compared_at_common_steps() -> None:
    first = Row("t", "a", 0, 0.0, 50, 1, 1.0, curve=[[10, 0.0], [20, 1.0], [30, 1.0]])
    second = replace(first, seed=1, curve=[[15, 0.5], [25, 0.0]])
    steps, scores = curves.on_one_grid([pictures.curve_of(first), pictures.curve_of(second)])
    assert steps.tolist() == [15, 20, 25]
    np.testing.assert_allclose(scores, [[0.5, 1.0, 1.0], [0.5, 0.25, 0.0]])


def test_names_at_the_ends_of_lines_do_not_cover_each_other() -> None:
    np.testing.assert_allclose(curves.apart([0.1, 0.12, 0.9], 0.0, 1.0), [0.1, 0.155, 0.9])
    np.testing.assert_allclose(curves.apart([0.5, 1.0, 1.0], 0.0, 1.0), [0.5, 0.945, 1.0])
    np.testing.assert_allclose(curves.apart([0.5] * 40, 0.0, 1.0), np.arange(1, 41) / 40)


@pytest.mark.parametrize("variants", [1, 2, 9])
def test_every_kind_of_picture_is_drawn(variants: int, tmp_path: Path) -> None:
    results = [
        {"target_return": target, "return_mean": target, "return_std": 0.0, "success_rate": None}
        for target in (1.0, 2.0)
    ]
    one = Row("t", "a", 0, 0.5, 50, 1, 1.0, curve=[[1, 0.0], [2, 1.0]], results=results if variants == 2 else [])
    plain = replace(one, curve=[], results=[])
    drawn = {f"v{place}": [one, replace(one, seed=1)] if place == 0 else [plain] for place in range(variants)}
    assert pictures.draw(tmp_path / "x.png", TASK, drawn | {"missing": []})
    assert (tmp_path / "x.png").stat().st_size > 5000  # a drawing, not an empty canvas
    assert not pictures.draw(tmp_path / "y.png", TASK, {"missing": []})


@pytest.mark.parametrize(("curve", "panels"), [([[1, 0.0], [2, 1.0]], 2), ([[2, 0.5]], 1), ([], 1)])
def test_the_mean_of_a_curve_is_drawn_where_there_is_a_curve(curve: list[list[float]], panels: int) -> None:
    figure = pictures.finals(TASK, {"a": [Row("t", "a", 0, 0.5, 50, 1, 1.0, curve=curve)]})
    assert len(figure.axes) == panels


def test_many_variants_stand_in_columns_under_what_they_change() -> None:
    settings = [*("backbone.position" for _ in range(67)), *("backbone.mixer" for _ in range(30)), "backbone.ff"]
    variants = {f"v{place}": {key: place, "seeds": 3} for place, key in enumerate(settings)}
    task = replace(TASK, variants={"base": {}, **variants}, baseline=None)
    runs = {variant: [Row("t", variant, 0, place / 100, 50, 1, 1.0)] for place, variant in enumerate(task.variants)}
    found = pictures.by_setting(task, runs)
    assert {name: len(names) for name, names in found.items()} == {"position": 67, "mixer": 30, "other settings": 2}
    assert found["other settings"] == ["base", "v97"]
    columns = pictures.in_columns(found, 3)
    ordered = list(chain.from_iterable(found.values()))
    assert [variant for column in columns for _, names in column for variant in names] == ordered
    titles = [[name for name, _ in column] for column in columns]
    assert titles == [["position"], ["position, continued"], ["mixer", "other settings"]], "no heading stands alone"
    heights = [sum(len(names) + pictures.HEADING_LINES for _, names in column) for column in columns]
    assert heights == [38, 35, 38]
    figure = pictures.catalogue(task, runs)
    drawn = [label.get_text() for axes in figure.axes for label in axes.get_yticklabels()]
    assert drawn == ordered
    boxes = [axes.get_position() for axes in figure.axes]
    assert all(0 <= box.x0 < box.x1 <= 1 and 0 <= box.y0 < box.y1 <= 1 for box in boxes)


# Running

FAKE_CELL = """
import json, pathlib, sys
order = json.loads(sys.stdin.readline())
if (order["variant"], order["seed"]) == ("no memory", 0):
    sys.exit("it went wrong")
folder = pathlib.Path(order["folder"])
folder.mkdir(parents=True)
result = {"target_return": None, "return_mean": 0.0, "return_std": 0.0, "success_rate": 0.75}
row = {key: order[key] for key in ("task", "variant", "seed", "config_hash")}
row |= {"score": 0.75, "episodes": 50, "steps": 256, "wall_seconds": 90.0, "parameters": 9, "results": [result]}
(folder / "row.json").write_text(json.dumps(row))
"""


@pytest.fixture
def fake_cells(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Cells that write a row at once; one of them fails."""
    (tmp_path / "fake_cell.py").write_text(FAKE_CELL)
    monkeypatch.setattr(reproduce, "CELL", (str(tmp_path / "fake_cell.py"),))


@pytest.mark.usefixtures("fake_cells")
def test_a_failing_cell_does_not_stop_the_others_and_runs_again(
    write: Write, tmp_path: Path, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    words = [str(write()), "--results", str(tmp_path / "out"), "--jobs", "2"]
    assert suite_command([*words, "--dry-run"]) == 0
    assert "4 to do" in capsys.readouterr().out and not (tmp_path / "out").exists()
    assert suite_command(words) == 2
    text = capsys.readouterr().out
    assert "FAILED (status 1): cue / no memory, seed 0" in text and "    it went wrong" in text
    assert "cue / GTrXL, seed 1: 0.75 after 1.5 min; " in text
    assert [each.key[1:] for each in read_rows(tmp_path / "out" / "tiny.csv")] == [
        ("GTrXL", 0), ("GTrXL", 1), ("no memory", 1),
    ]  # fmt: skip
    with monkeypatch.context() as patch:
        patch.setattr(LocalEngine, "slots", property(lambda engine: pytest.fail("an engine starts for finished runs")))
        assert suite_command([*words, "--only", "cue/GTrXL"]) == 0
    assert "2 runs, 2 done, 0 to do" in capsys.readouterr().out
    assert suite_command(words) == 2
    assert "4 runs, 3 done, 1 to do, 2 at a time, about 2 min" in capsys.readouterr().out


@pytest.mark.parametrize(
    ("published", "words"),
    [
        ({}, "; to the digit as published (commit abc)"),
        ({"wall_seconds": 7.0, "steps_per_cpu_second": 3.0, "machine": "another"}, "; to the digit as published"),
        ({"curve": [[128, 0.5]]}, "; published at commit abc on CPU, 2 cores: 0.75, other curve"),
        (
            {"episodes": 60, "parameters": 8},
            "; published at commit abc on CPU, 2 cores: 0.75, other episodes, parameters",
        ),
        ({"config_hash": "another"}, " left\n"),
    ],
)
@pytest.mark.usefixtures("fake_cells")
def test_a_repeated_run_is_compared_with_the_published_one(
    published: dict[str, Any],
    words: str,
    write: Write,
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
    capsys: pytest.CaptureFixture[str],
) -> None:
    path = write()
    suite = read_suite(str(path))
    there = replace(
        row(suite, "GTrXL", 0, 0.75, commit="abc", machine="CPU, 2 cores", parameters=9, state_bytes=None), **published
    )
    monkeypatch.setattr(reproduce, "published", lambda: tmp_path / "published")
    record(tmp_path / "published" / "tiny.csv", suite, there)
    order = [str(path), "--only", "cue/GTrXL", "--seeds", "1"]
    assert suite_command([*order, "--results", str(tmp_path / "again")]) == 0
    assert words in capsys.readouterr().out


def test_neither_what_a_clock_measured_nor_digits_that_are_not_stored_differ(suite: Suite) -> None:
    one, two, three = (
        {"10,000": {"success_rate": rate, "microseconds": time}} for rate, time in [(1, 3), (1, 4), (0, 3)]
    )
    rows = [row(suite, "GTrXL", 0, 1.0, transfers=each, metrics={"time/fps": 1.0}) for each in (one, two, three)]
    assert differences(rows[0], replace(rows[1], metrics={"time/fps": 2.0})) == []
    assert differences(rows[0], rows[2]) == ["transfers"]
    assert differences(replace(rows[0], score=0.99), replace(rows[0], score=0.98999998)) == []  # six digits are stored
    assert differences(replace(rows[0], score=0.99), replace(rows[0], score=0.98999)) == ["score"]
    assert differences(rows[0], replace(rows[0], metrics={"train/loss": 1.0})) == ["metrics"]


@pytest.mark.usefixtures("fake_cells")
def test_what_a_cell_left_behind_is_recorded_once(write: Write, tmp_path: Path) -> None:
    path, out = write(), tmp_path / "out"
    suite = read_suite(str(path))
    folder = out / "runs" / "tiny" / "cue" / "gtrxl-seed0"
    cell.write_row(folder, row(suite, "GTrXL", 0, 0.25))
    words = [str(path), "--results", str(out), "--only", "cue/GTrXL", "--seeds", "1"]
    assert suite_command(words) == 0
    assert [each.score for each in read_rows(out / "tiny.csv")] == [0.25]
    assert cell.read_row(folder) is None  # taken out of the CSV, the cell would run again


def test_the_time_left_is_that_of_the_same_variant_or_the_nearest(suite: Suite) -> None:
    cells = list(suite.cells())
    rows = [replace(row(suite, "GTrXL", 0, 1.0), wall_seconds=100.0)]
    assert reproduce.remaining(cells, rows, jobs=2) == 200.0
    rows.append(replace(row(suite, "no memory", 0, 1.0), wall_seconds=40.0))
    assert reproduce.remaining(cells[3:], rows, jobs=1) == 40.0
    assert reproduce.remaining(cells, [], jobs=1) is None
    assert reproduce.about(5400) == ", about 1 h 30 min" and reproduce.about(None) == ""


def test_missing_behaviors_are_named(tmp_path: Path) -> None:
    words = "--behavior sb3:a2c:{behaviors}/a2c/a.zip:{behaviors}/a2c/a.pkl=2 --behavior sb3:sac:{behaviors}/s.zip"
    with pytest.raises(ConfigError, match=r"give --behaviors DIR, a folder that holds a2c/a.zip, a2c/a.pkl, s.zip"):
        reproduce.with_behaviors(words, "x/y-v0", None)
    (tmp_path / "a2c").mkdir()
    for name in ("a2c/a.zip", "a2c/a.pkl"):
        (tmp_path / name).touch()
    with pytest.raises(ConfigError, match=r"lacks s.zip, which"):
        reproduce.with_behaviors(words, "x/y-v0", str(tmp_path))
    (tmp_path / "s.zip").touch()
    assert f"sac:{tmp_path}/s.zip" in reproduce.with_behaviors(words, "x/y-v0", str(tmp_path))
    assert reproduce.with_behaviors("--steps 3", "x/y-v0", None) == "--steps 3"


# Cells


def run_folder(path: Path, config: ExperimentConfig) -> None:
    """What a run killed after its first checkpoint leaves."""
    path.mkdir()
    (path / "config.yaml").write_text(yaml.safe_dump(config.to_dict()))
    (path / "last.zip").touch()


def test_a_run_goes_on_from_a_checkpoint_of_the_same_settings_only(tmp_path: Path) -> None:
    config = build_experiment(ONLINE)
    path = tmp_path / "run"
    assert not cell.resumable(path, config)
    run_folder(path, config)
    assert cell.resumable(path, replace(config, seed=4))
    assert not cell.resumable(path, replace(config, backbone={"preset": "gtrxl"}))
    (path / "config.yaml").write_text("agent: gt")
    assert not cell.resumable(path, config)
    (path / "config.yaml").write_text(yaml.safe_dump(config.to_dict()))
    (path / cell.RECORDED).touch()
    assert not cell.resumable(path, config)


def test_what_is_no_run_is_not_removed(suite: Suite, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    class Trains(Exception):  # noqa: N818
        """Ends the call."""

    def train(name: str, config: ExperimentConfig) -> None:
        raise Trains

    monkeypatch.setattr("rltransformers.cli.runs.train", train)
    folder = tmp_path / "run"
    order = json.loads(cell.order_of(next(suite.cells()), folder, suite.tasks["cue"], []))
    folder.mkdir()
    (folder / "thesis.tex").touch()
    with pytest.raises(ConfigError, match="run is in the way: it is no run folder; move it away"):
        cell.measure(order)
    assert (folder / "thesis.tex").exists()
    (folder / "thesis.tex").rename(folder / "config.yaml")
    for left in (None, ".lock", cell.RECORDED):  # of a run, of one that was hardly begun, of data that were scored
        folder.mkdir(exist_ok=True)
        if left is not None:
            (folder / left).touch()
        with pytest.raises(Trains):
            cell.measure(order)
        assert not folder.exists()


def test_an_lstm_without_its_normalization_starts_anew(tmp_path: Path) -> None:
    environment = ONLINE["environment"] | {"normalize_observation": True}
    config = build_experiment({"agent": "recurrent_ppo", "environment": environment, "train": {"total_timesteps": 256}})
    run_folder(tmp_path / "run", config)
    assert not cell.resumable(tmp_path / "run", config)
    (tmp_path / "run" / "last.normalization.zip").touch()
    assert cell.resumable(tmp_path / "run", config)


def test_the_clock_counts_what_the_last_checkpoint_kept(tmp_path: Path) -> None:
    config = build_experiment(ONLINE)
    path, clock = tmp_path / "run", tmp_path / "run.clock"
    assert cell._begin(clock, path, config) is None
    run_folder(path, config)
    began = json.loads(clock.read_text())["began"]
    os.utime(path / "last.zip", (began + 30, began + 30))
    assert cell._begin(clock, path, config) == pytest.approx(30, abs=0.1)  # file times are coarser than the clock
    again = json.loads(clock.read_text())["began"]
    os.utime(path / "last.zip", (again + 12, again + 12))
    assert cell._begin(clock, path, config) == pytest.approx(42, abs=0.1)


def test_the_last_value_of_a_metric_counts_and_the_highest_return_in_training(tmp_path: Path) -> None:
    path = tmp_path / "progress.csv"
    path.write_text("step,memory/staleness,eval/x,rollout/ep_rew_mean\n8,0.5,,0\n10,0.25,,-1.5\n10,,7.0,\n100,,,-2\n")
    lines = RunFolder(tmp_path).read_metrics()
    assert cell.logged_metrics(lines, ["memory/staleness", "state_bytes", "unknown"]) == {"memory/staleness": 0.25}
    assert cell.logged_metrics(lines, ["training_max"]) == {"training_max": -1.5}  # 0 is of few episodes


def test_no_row_comes_of_a_run_whose_training_disagreed_with_acting(tmp_path: Path) -> None:
    path, folder = tmp_path / "progress.csv", RunFolder(tmp_path)
    cell.check_ratios(folder.read_metrics(), path)  # of a run that logs nothing
    path.write_text("step,train/first_ratio_error\n1,1e-6\n2,\n3,0.009\n")
    cell.check_ratios(folder.read_metrics(), path)
    path.write_text("step,train/first_ratio_error\n1,1e-6\n2,\n3,0.15\n4,1e-6\n")
    with pytest.raises(
        DataError, match=r"first_ratio_error went up to 0.15, above 0.01: acting and training disagreed"
    ):
        cell.check_ratios(folder.read_metrics(), path)


@pytest.mark.slow
def test_a_killed_run_goes_on_and_a_finished_one_is_skipped(
    write: Write, tmp_path: Path, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    eager = {"acting": "eager"}  # compiling takes ten seconds
    far = {"longer": {"kwargs": {"delay": 6}} | eager, "as trained": {"id": "rltransformers/CueRecall-v0"} | eager}
    aims = [{"least": 0, "transfer": "longer"}]
    variants = {"GTrXL": {"train.total_timesteps": 512}}
    path = write({"metrics": ["memory/staleness"]}, seeds=1, variants=variants, transfers=far, aims=aims)
    work = reproduce.Work(read_suite(str(path)), tmp_path / "out", tmp_path / "runs")
    first = next(iter(work.suite.cells()))
    folder = work.folder(first)
    job = LocalEngine().start(work.order(first))
    while not (folder / "evaluations.jsonl").exists():  # an evaluation is followed by a checkpoint
        assert job.poll() is None, folder.with_name(f"{folder.name}.log").read_text()
        time.sleep(0.02)
    job.process.kill()
    assert job.wait() == -9
    assert not (folder / "row.json").exists()
    words = [str(path), "--results", str(tmp_path / "out"), "--runs", str(tmp_path / "runs"), "--jobs", "1"]
    monkeypatch.setattr(engines, "LocalEngine", Copies)
    assert suite_command(words) == 0
    assert folder.with_name(f"{folder.name}.log").read_text().count("run folder") == 2
    (only,) = read_rows(tmp_path / "out" / "tiny.csv")
    assert (only.steps, only.episodes, only.seed) == (512, 50, 0)
    assert [step for step, _ in only.curve] == list(range(128, 513, 128))
    assert only.score == only.curve[-1][1] and "memory/staleness" in only.metrics
    played = only.transfers
    assert played["as trained"]["success_rate"] == only.score, "the same episodes, whatever copies they are played in"
    assert played["longer"]["return_mean"] == played["longer"]["success_rate"]
    assert all((result["microseconds"] or 0) > 0 for result in played.values())
    text = (tmp_path / "out" / "tiny.md").read_text()
    assert "| as trained | longer | µs per step (as trained, longer: not compiled) |" in text
    assert "| longer: ≥ 0 |" in text
    assert only.wall_seconds > 0 and only.steps_per_cpu_second is None  # what was spent before the kill is not known
    assert only.config_hash == first.config_hash and set(only.versions) >= {"python", "torch", "rltransformers"}
    assert (
        only.parameters is not None and only.state_bytes is not None and only.parameters > only.state_bytes > 5 * 8 * 4
    )
    assert suite_command(words) == 0
    assert "1 runs, 1 done, 0 to do" in capsys.readouterr().out


@pytest.mark.parametrize(
    ("agent", "transfer", "expected"),
    [("gtrxl_ppo", {}, "compiled"), ("gtrxl_ppo", {"acting": "eager"}, "eager"), ("recurrent_ppo", {}, None)],
)
def test_transfers_act_as_they_say_and_without_training(
    agent: str, transfer: dict[str, Any], expected: str | None, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    class Called(Exception):  # noqa: N818
        """Ends the call."""

    def build(config: ExperimentConfig, path: Path, training: bool, acting: str | None) -> None:
        assert (path, training, acting) == (tmp_path / "last.zip", False, expected)
        assert (config.environment.num_envs, config.evaluation.kwargs) == (50, {"delay": 6})
        raise Called

    monkeypatch.setattr(cell, "build_agent", build)
    config = build_experiment(ONLINE)
    if agent == "recurrent_ppo":
        config = replace(config, agent=AgentName.RECURRENT_PPO, backbone={})
    with pytest.raises(Called):
        cell.transferred(config, tmp_path, {"far": asdict(Transfer(kwargs={"delay": 6}, **transfer))}, None)


@pytest.mark.parametrize(
    ("transfer", "message"),
    [
        ({"id": "rltransformers/CueRecal-v0"}, "transfers.far: no environment is registered"),
        ({"kwargs": {"dely": 6}}, "transfers.far: .*dely"),
        ({"id": "CartPole-v1"}, "transfers.far: its observation space is .*, that of training"),
    ],
)
def test_a_wrong_transfer_is_refused_before_the_training(
    transfer: dict[str, Any], message: str, write: Write, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("rltransformers.cli.runs.train", lambda name, config: pytest.fail("it trains"))
    suite = read_suite(str(write(transfers={"near": {"kwargs": {"delay": 6}}, "far": transfer})))
    run = next(suite.cells())
    order = json.loads(cell.order_of(run, tmp_path / "run", suite.tasks["cue"], []))
    if "id" in transfer:
        order["config"]["environment"]["kwargs"] = {}  # which go with the run to every environment
    with pytest.raises(ConfigError, match=message):
        cell.measure(order)


@pytest.mark.slow
def test_a_dataset_is_recorded_once_and_stands_beside_the_agents(
    write: Write, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(engines, "LocalEngine", Copies)
    path = write(
        {"datasets": {"tiny/cartpole-v0": "--env CartPole-v1 --behavior random --steps 200 --num-envs 2"}},
        config=str(tmp_path / "offline.yaml"),
        score="return",
        target=20,
        variants={"DT": {}, "data": {"dataset": "mean"}},
        seeds=1,
    )
    assert suite_command([str(path), "--results", str(tmp_path / "out"), "--jobs", "2"]) == 0
    agent, data = read_rows(tmp_path / "out" / "tiny.csv")
    assert [each["target_return"] for each in agent.results] == [10, 20]
    assert agent.steps_per_cpu_second is not None and agent.steps_per_cpu_second > 0
    assert data.steps_per_cpu_second is None
    assert agent.score == pytest.approx(agent.results[1]["return_mean"], rel=1e-5)  # six digits in the CSV
    recorded = load_trajectories("tiny/cartpole-v0")
    assert data.score == pytest.approx(float(np.mean(recorded.returns)), rel=1e-5)
    assert (data.episodes, data.steps, data.parameters) == (len(recorded), recorded.steps, None)
    assert agent.recording == data.recording == recorded.fingerprint()
    made = (get_dataset_path("tiny/cartpole-v0") / "data").stat().st_mtime_ns
    suite = read_suite(str(path))
    reproduce.Work(suite, tmp_path, tmp_path)._make_datasets(list(suite.cells()))
    assert (get_dataset_path("tiny/cartpole-v0") / "data").stat().st_mtime_ns == made


def test_an_episode_of_a_dataset_succeeds_when_its_environment_says_so() -> None:
    """Parity pays for every answer; an episode succeeds if all of them are right."""
    data = collect_episodes(EnvironmentConfig("rltransformers/Parity-v0", 2, {"length": 8}), CollectConfig(60), 0)
    right = data.returns > 1 - 1e-6
    assert 0 < right.sum() < len(data) and (data.returns > 0).sum() > 2 * right.sum()
    assert cell.success_rate(data) == right.mean()
    some = data.metadata["behaviors"][0].items() - {("successes", int(right.sum()))}
    assert cell.success_rate(replace(data, metadata={"behaviors": [dict(some)]})) is None
    assert cell.success_rate(data.select([0])) is None
    silent = {"observations": np.zeros((3, 1)), "actions": np.zeros(2, int), "rewards": np.ones(2)}
    assert cell.success_rate(load_trajectories([silent])) is None


def test_alignment_of_a_row_is_that_of_its_episodes() -> None:
    """Rows hold means and deviations; those of returns 1, 4 (asked 1) and 7 (asked 2) give sqrt((4.5 + 25) / 2)."""
    results = [
        {"target_return": 1.0, "return_mean": 2.5, "return_std": 1.5, "success_rate": None},
        {"target_return": 2.0, "return_mean": 7.0, "return_std": 0.0, "success_rate": None},
        {"target_return": None, "return_mean": 9.0, "return_std": 0.0, "success_rate": None},
    ]
    row = Row("task", "variant", 0, 0.0, 0, 0, 0.0, config_hash="", commit="", versions={}, machine="", date="")
    assert report.alignment_of(replace(row, results=results)) == pytest.approx(14.75**0.5)
