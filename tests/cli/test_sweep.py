"""Variants of a config: what `--sweep` and `--variants` mean, and that a sweep goes on where it stopped."""

import argparse
import json
import time
from pathlib import Path
from typing import Any

import pytest
import yaml

from rltransformers.cli import engines, sweep, worker
from rltransformers.cli.engines import LocalEngine, Order
from rltransformers.cli.main import main
from rltransformers.cli.variants import Variant, read_variants, slug
from rltransformers.core.errors import ConfigError
from rltransformers.training.runs.comparison import compare
from rltransformers.training.runs.experiment import build_experiment
from rltransformers.training.runs.run_folder import RunFolder
from tests.cli.test_runs import ONLINE, refused, run, work
from tests.copies import Copies

__all__ = ["work"]  # the fixture

MEMORIES = ("train", "online.yaml", "--sweep", "backbone.memory=5,0", "--seeds", "2", "--jobs", "2")


def variants_of(*sweeps: str, **words: Any) -> list[Variant]:
    given: dict[str, Any] = {
        "config": "online.yaml",
        "env": None,
        "overrides": [],
        "imports": [],
        "trust": False,
        "variants": None,
    }
    return read_variants(argparse.Namespace(command="train", sweep=list(sweeps), **(given | words)))


@pytest.fixture
def copies(work: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Runs are processes that are copies of this one."""
    monkeypatch.setattr(engines, "LocalEngine", Copies)


def runs_of(name: str) -> dict[str, RunFolder]:
    return {path.parent.name: RunFolder(path.parent) for path in sorted(Path(name).glob("*/config.yaml"))}


# Variants


def test_a_sweep_is_the_product_of_its_values_in_their_order(work: Path) -> None:
    variants = variants_of("backbone.memory=5,0", "algorithm.learning_rate=1e-3,{start: 1e-3, end: 0.0}")
    assert [each.name for each in variants] == [
        "backbone.memory=5, algorithm.learning_rate=0.001",
        "backbone.memory=5, algorithm.learning_rate={start: 0.001, end: 0.0}",
        "backbone.memory=0, algorithm.learning_rate=0.001",
        "backbone.memory=0, algorithm.learning_rate={start: 0.001, end: 0.0}",
    ]
    last = variants[-1].config
    assert last.backbone["memory"] == 0 and last.algorithm["learning_rate"] == {"start": 1e-3, "end": 0.0}
    (_, second) = variants_of("backbone.position=trxl,[trxl, rope]", overrides=[("seed", "4")])
    assert second.config.backbone["position"] == ["trxl", "rope"] and second.config.seed == 4


def test_a_file_names_variants_as_a_suite_does(work: Path) -> None:
    variants: dict[str, Any] = {
        "plain": None,
        "LSTM": {"config": "lstm.yaml", "policy.lstm_hidden_size": 3, "seeds": 1},
    }
    Path("v.yaml").write_text(yaml.safe_dump(variants, sort_keys=False))
    plain, lstm = variants_of(variants="v.yaml")
    assert (plain.name, plain.config.backbone, plain.seeds) == ("plain", ONLINE["backbone"], None)
    assert (lstm.config.agent, lstm.config.policy["lstm_hidden_size"], lstm.seeds) == ("recurrent_ppo", 3, 1)
    Path("v.yaml").write_text("plain: {}\nblind: {backbone.memory: 0}")
    names = [each.name for each in variants_of("algorithm.n_steps=8,16", variants="v.yaml")]
    assert names == [f"{name}, algorithm.n_steps={steps}" for name in ("plain", "blind") for steps in (8, 16)]


@pytest.mark.parametrize(
    ("sweeps", "message"),
    [
        (["backbone.memory"], "--sweep takes KEY=VALUE,VALUE,..."),
        (["backbone.memory=5"], r"has one value \(5\); give several, V1,V2, or --backbone.memory 5"),
        (["backbone.memory=5,5"], "backbone.memory has 5 twice"),
        (["backbone.memory=5,0", "backbone.memory=1,2"], "is given twice; give it once, with all values"),
        (["seed=1,2"], "runs are not compared by seed; give --seeds N"),
        (["seed.x=1,2"], "--sweep seed.x: runs are not compared by seed; give --seeds N"),
        (["tune.trials=1,2"], "--sweep tune.trials: runs are not compared by tune; leave it out"),
        (["output=a,b"], "runs are not compared by output; give --output VALUE"),
        (["backbone={memory: 1},{memory: 2}", "backbone.memory=1,2"], "backbone.memory is a part of backbone"),
        (["algorithm.gamma=0.9,0.8"], "--sweep algorithm.gamma would replace --algorithm.gamma"),
        (["backbone.memroy=1,2"], "variant backbone.memroy=1: unknown setting backbone.memroy; did you mean"),
        (["backbone.mixer=softmax,lineer"], "variant backbone.mixer=lineer: .*did you mean 'linear'"),
        (["lr=1e-3,1e-4"], "variant lr=0.001: unknown setting lr; did you mean 'algorithm.learning_rate'"),
        (["backbone.memory=[1,2"], "--sweep backbone.memory is not valid YAML"),
    ],
)
def test_a_sweep_that_cannot_be_meant_is_refused(work: Path, sweeps: list[str], message: str) -> None:
    with pytest.raises(ConfigError, match=message):
        variants_of(*sweeps, overrides=[("algorithm.gamma", "0.9")])


@pytest.mark.parametrize(
    ("content", "message"),
    [
        ("[1, 2]", "must map names to settings"),
        ("a: 3", "a must be a mapping of settings, got 3"),
        ("a: {dataset: mean}", "trains nothing: it is for `rltransformers suite`"),
        ("a: {seed: 3}", "seed is that of all variants"),
        ("a: {tune.trials: 3}", "tune.trials is that of all variants"),
        ("a: {seeds: 0}", "a: seeds must be a whole number of at least 1, got 0"),
        ("a: {algorithm.gamma: 0.5}", "a: algorithm.gamma would replace --algorithm.gamma"),
        ("a: {backbone.memory: 1}", "--sweep backbone.memory: a in v.yaml sets backbone.memory; leave"),
        ("a: {policy.previous_action: true, policy: {}}", "--policy would replace --policy.previous_action in front"),
        ("'a b': {}\na-b: {}", "two variants would share the run folder 'a-b-backbone.memory-1'"),
        ("a: {imports: [stranger]}", r"v\.yaml would run code of whoever made it: imports runs the module stranger"),
        ("a: {environment.id: 'stranger:Task-v0'}", "would run code of whoever made it: .* add --trust"),
    ],
)
def test_a_file_of_variants_that_cannot_be_meant_is_refused(work: Path, content: str, message: str) -> None:
    Path("v.yaml").write_text(content)
    with pytest.raises(ConfigError, match=message):
        variants_of("backbone.memory=1,2", variants="v.yaml", overrides=[("algorithm.gamma", "0.9")])


def test_the_environment_that_was_typed_needs_no_word_of_trust_and_that_of_a_file_does(work: Path) -> None:
    typed = {"config": None, "env": "stranger:Task-v0"}
    made = variants_of("algorithm.gamma=0.9,0.8", **typed)
    assert [each.config.environment.id for each in made] == [typed["env"]] * 2
    config = yaml.safe_load(Path("online.yaml").read_text())
    config["environment"]["id"] = "other:Task-v0"
    Path("foreign.yaml").write_text(yaml.safe_dump(config))
    Path("v.yaml").write_text("a: {}\nb: {config: foreign.yaml}")
    with pytest.raises(ConfigError, match=r"v\.yaml would run code of whoever made it: .*module other"):
        variants_of(variants="v.yaml", **typed)


def test_seeds_of_a_variant_may_be_a_float_that_is_whole(work: Path) -> None:
    Path("v.yaml").write_text("a: {seeds: 2.0}")
    assert type(variants_of(variants="v.yaml")[0].seeds) is int


def test_a_swept_section_takes_nothing_from_a_variant(work: Path) -> None:
    Path("v.yaml").write_text("memory: {}\nno memory: {backbone.memory: 0}")
    with pytest.raises(ConfigError, match=r"--sweep backbone: no memory in v\.yaml sets backbone\.memory; leave"):
        variants_of("backbone={preset: gtrxl},{preset: alibi}", variants="v.yaml")


@pytest.mark.parametrize(
    ("words", "message"),
    [
        (["--resume", "runs/x", "--sweep", "backbone.memory=1,2"], "--resume is for one run, --sweep for several"),
        (["online.yaml", "--verbose", "--variants", "v.yaml"], "--verbose is for one run, --variants for several"),
        (["online.yaml", "--variants", "v.yaml"], "--variants v.yaml cannot be read"),
        (["online.yaml", "--sweep", "backbone.position=trxl,none", "--backbone.mixer", "linear"],
         "variant backbone.position=trxl: position 'trxl' needs scores"),
    ],
)  # fmt: skip
def test_what_a_sweep_cannot_do_is_refused_before_anything_is_trained(
    work: Path, capsys: pytest.CaptureFixture[str], words: list[str], message: str
) -> None:
    assert message in refused(capsys, "train", *words)
    assert not Path("runs").exists()


def test_every_variant_has_a_name_and_a_folder_of_its_own(work: Path) -> None:
    near = variants_of("algorithm.learning_rate=0.00012345678,0.00012345679")
    assert [each.name.partition("=")[2] for each in near] == ["0.00012345678", "0.00012345679"]
    assert slug("low=-1") == "low-minus1" and slug("low=[1, -0.5]") == "low-1-minus0.5" and slug("low=1") == "low-1"
    assert slug("größe 内存") == "größe-内存" and len(slug("内" * 100).encode()) < 120
    Path("numbers.yaml").write_text("1: {}\n'1': {backbone.memory: 1}")
    with pytest.raises(ConfigError, match=r"numbers\.yaml: two variants have the same name"):
        variants_of(variants="numbers.yaml")
    with pytest.raises(ConfigError, match=r"share the run folder 'environment.kwargs.word-a'.*--variants"):
        variants_of("environment.kwargs.word=a,A")


def test_names_become_folders_that_are_not_too_long() -> None:
    assert slug("backbone.mixer=linear, algorithm.gamma=0.9") == "backbone.mixer-linear-algorithm.gamma-0.9"
    one, two = slug("x" * 300), slug("x" * 301)
    assert one != two and len(one) < 120


# Runs


@pytest.mark.usefixtures("copies")
def test_a_sweep_trains_what_is_missing_and_ends_with_the_table_of_compare(
    capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    out = run(capsys, *MEMORIES)
    names = [f"backbone.memory-{memory}-seed{seed}" for memory in (0, 5) for seed in (0, 1)]
    folders = runs_of("runs/online-sweep")
    assert list(folders) == names
    table = str(compare({f"backbone.memory={memory}": f"runs/online-sweep/*-{memory}-*" for memory in (5, 0)}))
    assert out == f"{table}\n\ncompare again  rltransformers compare {folders[names[2]].path} runs/online-sweep\n"
    inside = "train", "online.yaml", "--sweep", "backbone.memory=5,0", "--output", "runs/online-sweep"
    message = refused(capsys, *inside, "--name", names[0])
    assert "is the folder of a run: give the sweep another --name" in message
    (group, *_) = compare([folders[names[2]].path, "runs/online-sweep"]).groups
    assert [run.path.name for run in group.runs] == names[2:], "the first group of the table comes first again"
    before = {name: folder.last.stat().st_mtime_ns for name, folder in folders.items()}
    evaluations = folders[names[0]].evaluations.read_text()
    folders[names[0]].evaluation.unlink()  # killed before it was written
    for path in folders[names[1]].path.iterdir():
        path.unlink()
    folders[names[1]].path.rmdir()
    assert main(list(MEMORIES)) == 0
    said = capsys.readouterr()
    assert "4 runs in runs/online-sweep: 2 finished, 1 stopped, 1 new" in said.err and said.out.startswith("group ")
    assert folders[names[0]].evaluation.is_file() and folders[names[0]].evaluations.read_text() == evaluations
    changed = {name for name in names if folders[name].last.stat().st_mtime_ns != before[name]}
    assert names[1] in changed and not changed & set(names[2:]) and list(runs_of("runs/online-sweep")) == names
    monkeypatch.setattr(Copies, "slots", property(lambda engine: pytest.fail("an engine starts for finished runs")))
    told = json.loads(run(capsys, *MEMORIES, "--json"))
    assert [group["group"] for group in told["groups"]] == ["backbone.memory=5", "backbone.memory=0"]
    assert [group["seeds"] for group in told["groups"]] == [[0, 1], [0, 1]]


@pytest.mark.usefixtures("copies")
def test_a_folder_with_a_run_of_another_config_is_refused(capsys: pytest.CaptureFixture[str]) -> None:
    run(capsys, *MEMORIES[:4], "--name", "mine")
    message = refused(capsys, *MEMORIES[:4], "--name", "mine", "--algorithm.gamma", "0.5")
    assert "holds a run of another config (algorithm.gamma differ); give this sweep another --name" in message
    folder = RunFolder("runs/mine/backbone.memory-5-seed0")
    folder.config.unlink()
    assert "is in the way: it is no run folder" in refused(capsys, *MEMORIES[:4], "--name", "mine")
    assert folder.last.is_file()


@pytest.mark.usefixtures("copies")
def test_a_folder_of_a_process_that_was_killed_at_once_is_no_obstacle(capsys: pytest.CaptureFixture[str]) -> None:
    empty = Path("runs/online-sweep/backbone.memory-5-seed0")
    empty.mkdir(parents=True)
    (empty / ".lock").touch()
    file = empty.with_name("backbone.memory-0-seed0")
    file.touch()
    assert "backbone.memory-0-seed0 is in the way: it is no run folder" in refused(capsys, *MEMORIES[:4])
    file.unlink()
    run(capsys, *MEMORIES[:4])
    assert list(runs_of("runs/online-sweep")) == ["backbone.memory-0-seed0", "backbone.memory-5-seed0"]


FAILING = """
import json, sys
from rltransformers.cli import worker
order = json.loads(sys.stdin.readline())
if order["config"]["backbone"]["memory"] == 5:
    sys.exit(3)
sys.stdin = __import__("io").StringIO(json.dumps(order) + "\\n")
worker._stop_without_input = lambda: None
sys.exit(worker.main())
"""


@pytest.mark.slow
def test_behind_a_run_that_fails_other_variants_begin_and_no_other_seed_of_its_own(
    work: Path, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    (work / "failing.py").write_text(FAILING)
    monkeypatch.setattr(worker, "PROCESS", (str(work / "failing.py"),))
    assert main([*MEMORIES[:6], "--jobs", "1"]) == 2
    said = capsys.readouterr()
    assert "backbone.memory=5, seed 0 (exit code 3) failed, see above; the same command tries again" in said.err
    assert "seed 1 (exit code" not in said.err and said.out.startswith("group ")
    assert list(runs_of("runs/online-sweep")) == ["backbone.memory-0-seed0", "backbone.memory-0-seed1"]


@pytest.mark.usefixtures("copies")
def test_where_all_runs_fail_their_failure_is_told(
    capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    Path("runs_that_fail.py").write_text("def main():\n    return 3\n")
    monkeypatch.syspath_prepend(Path.cwd())
    order = Order(("-m", "runs_that_fail"), "", Path("x.log"), (Path("x.report"),))
    monkeypatch.setattr(sweep, "_order", lambda config, folder: order)
    message = refused(capsys, *MEMORIES[:6])  # one at a time
    ended = ("backbone.memory=5, seed 0 (exit code 3)", "backbone.memory=0, seed 0 (exit code 3)")
    assert f"rltransformers: {', '.join(ended)} failed, see above; the same command tries again" in message


@pytest.mark.slow
def test_a_killed_run_of_a_sweep_goes_on(work: Path, capsys: pytest.CaptureFixture[str]) -> None:
    words = ("train", "online.yaml", "--train.total_timesteps", "1200", "--seed", "3")
    config = next(
        iter(variants_of("backbone.memory=5,0", overrides=[("train.total_timesteps", "1200"), ("seed", "3")]))
    )
    run(capsys, *words, "--name", "whole")
    folder = RunFolder("runs/online-sweep/backbone.memory-5-seed3")
    killed = build_experiment(config.config.to_dict() | {"output": str(folder.path.parent)})
    job = LocalEngine().start(sweep._order(killed, folder))
    while len(folder.entries()) < 2:
        assert job.poll() is None
        time.sleep(0.01)
    job.process.kill()
    assert job.wait() == -9 and not folder.evaluation.exists()
    assert main([*words, "--sweep", "backbone.memory=5,0"]) == 0
    assert "2 runs in runs/online-sweep: 1 stopped, 1 new" in capsys.readouterr().err
    whole = RunFolder("runs/whole")
    assert folder.evaluations.read_text() == whole.evaluations.read_text(), "as if it had not been killed"
