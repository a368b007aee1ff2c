"""The command line as a user meets it: fast without torch, every setting explained and completed, several seeds."""

import copy
import json
import os
import re
import signal
import subprocess
import sys
import threading
import time
from collections.abc import Callable
from dataclasses import fields
from pathlib import Path
from typing import Any

import pytest
import yaml

from rltransformers.backbone import BackboneConfig
from rltransformers.cli import engines, seeds, settings, worker
from rltransformers.cli.configs import config_of_env, packaged_configs
from rltransformers.cli.engines import LocalEngine
from rltransformers.cli.keywords import check_keywords
from rltransformers.cli.main import build_parser, main
from rltransformers.core.errors import ConfigError
from rltransformers.core.signals import Stopped
from rltransformers.training.offline.settings import CriticOptions, backbone_config
from rltransformers.training.runs.experiment import AgentName, build_experiment, set_value
from rltransformers.training.runs.run_folder import RunFolder
from tests.cli.test_runs import ONLINE, refused, run, work
from tests.copies import Copies

__all__ = ["work"]  # the fixture

HEAVY = {"torch", "scipy", "stable_baselines3", "gymnasium", "matplotlib", "minari", "h5py"}
FAST = """
import os, sys
from rltransformers.cli.main import main
leave = os._exit
def end(code=0):
    print(*sorted(name for name in sys.modules if "." not in name), file=sys.stderr)
    leave(code)
os._exit = end
try:
    main(sys.argv[1:])
except SystemExit:
    pass
end()
"""


def imported(*words: str, **variables: str) -> tuple[str, set[str]]:
    """Standard output of a command in a process of its own, and the packages that it has imported."""
    done = subprocess.run(
        [sys.executable, "-c", FAST, *words], capture_output=True, text=True, check=True, env=os.environ | variables
    )
    return done.stdout, set(done.stderr.splitlines()[-1].split())


@pytest.mark.parametrize(
    "words",
    [["list"], ["--help"], ["train", "--help"], ["show", "gtrxl_cue_recall"], ["settings"]],
    ids=lambda words: " ".join(words),
)
def test_what_only_tells_something_imports_nothing_heavy(words: list[str]) -> None:
    out, packages = imported(*words)
    assert len(out) > 200
    assert "rltransformers" in packages and not packages & HEAVY


def completed(line: str, folder: Path) -> list[str]:
    """What the shell would offer behind ``line``."""
    pytest.importorskip("argcomplete", reason="argcomplete completes the words; it is not installed")
    answer = folder / "answer"
    variables = {
        "_ARGCOMPLETE": "1", "_ARGCOMPLETE_IFS": "\n", "_ARGCOMPLETE_STDOUT_FILENAME": str(answer),
        "COMP_LINE": line, "COMP_POINT": str(len(line)), "COMP_TYPE": "9",
    }  # fmt: skip
    _, packages = imported(**variables)
    assert not packages & HEAVY
    return [word.strip() for word in answer.read_text().split("\n")]


def test_the_shell_completes_commands_settings_their_values_and_configs(work: Path) -> None:
    assert {"train", "tune", "settings"} <= set(completed("rltransformers ", work))
    assert completed("rltransformers train gtrxl_t", work) == ["gtrxl_tmaze"]
    assert completed("rltransformers train onl", work) == ["online.yaml"]
    assert set(completed("rltransformers tune --algorithm.le", work)) == {
        "--algorithm.learning_rate", "--algorithm.least_advantage_std", "--algorithm.learning_starts",
    }  # fmt: skip
    assert set(completed("rltransformers show online.yaml --backbone.topology ", work)) == {
        "decoder",
        "encoder_decoder",
    }


def test_every_setting_says_what_it_takes_and_does(capsys: pytest.CaptureFixture[str]) -> None:
    entries = json.loads(run(capsys, "settings", "--json"))
    assert len({entry["key"] for entry in entries}) > 200
    for entry in entries:
        assert entry["says"] and entry["accepts"] and entry["default"], entry["key"]
    told = run(capsys, "settings", "algorithm.gamma", "--agent", "gtrxl_ppo")
    assert told == "algorithm.gamma\n    Discount.\n    a finite number in [0, 1]; default 0.99\n"
    assert "algorithm.critic" not in run(capsys, "settings", "algorithm", "--agent", "gtrxl_ppo")
    assert "(of band)" in run(capsys, "settings", "backbone.pattern.window")
    assert "did you mean 'algorithm.gamma'" in refused(capsys, "settings", "algorithm.gama")
    assert "did you mean 'gtrxl_vmpo'?" in refused(capsys, "settings", "--agent", "vmpo")


@pytest.mark.parametrize("agent", list(AgentName))
def test_the_settings_of_an_agent_are_those_that_it_takes(agent: AgentName) -> None:
    """Neither more nor fewer: what is listed passes the agent's own check of keywords, what is not is refused."""
    listed = {each.key for each in settings.find_settings("algorithm.", agent)}
    every = {each.key for each in settings.find_settings("algorithm.")}
    for key in every:
        name, _, inside = key.removeprefix("algorithm.").partition(".")
        try:
            check_keywords(agent, {name: {inside: object()} if inside else object()})
        except ConfigError as error:
            assert ("unknown setting" not in str(error)) == (key in listed), key


def test_keys_of_mappings_are_listed_and_wrong_ones_are_named_in_full(capsys: pytest.CaptureFixture[str]) -> None:
    listed = {(each.key, each.of) for each in settings.all_settings()}
    assert {
        ("algorithm.critic_kwargs.alignment", ""),
        ("algorithm.advantage_kwargs.bins", ""),
        ("policy.readout.name", ""),
        ("policy.readout.temperature", "knn"),
        ("policy.observation.encoder", ""),
        ("policy.observation.encoder.points", "set_transformer"),
        ("policy.observation.leaves", ""),
        ("backbone.losses.exits.weight", ""),
        ("backbone.losses.exits.slack", "exits"),
    } <= listed
    of_critic = {key.rpartition(".")[2] for key, _ in listed if key.startswith("algorithm.critic_kwargs.")}
    assert of_critic == {each.name for each in fields(CriticOptions)}
    for config, key, meant in (
        ("dt_key_to_door", "algorithm.critic_kwargs.alignmnt", "'algorithm.critic_kwargs.alignment'"),
        ("gtrxl_cue_recall", "policy.observation.encodr", "'policy.observation.encoder'"),
    ):
        message = refused(capsys, "show", config, f"--{key}", "1")
        assert f"unknown setting {key}" in message and f"did you mean {meant}" in message


OTHER_VALUES = {
    "environment.processes": True,
    "environment.normalize_observation": True,
    "environment.normalize_reward": True,
    "environment.novelty_bonus": 0.1,
    "train.total_timesteps": 10,
    "train.gradient_steps": 10,
    "train.restart_every": 4,
    "evaluation.target_returns": [1.0],
    "backbone.layers": 3,
}
"""Settings that not every agent has, besides whole sections."""


@pytest.mark.parametrize("agent", list(AgentName))
def test_settings_outside_its_own_sections_are_listed_for_the_agents_whose_configs_take_them(agent: AgentName) -> None:
    offline = agent is AgentName.DECISION_TRANSFORMER
    plain: dict[str, Any] = {"agent": agent, "environment": {"id": "CartPole-v1"}}
    plain["train"] = {"gradient_steps": 5} if offline else {"total_timesteps": 5}
    plain |= {"dataset": {"id": "some"}} if offline else {}
    listed = {each.key for each in settings.find_settings(agent=agent)}
    for key, value in OTHER_VALUES.items():
        values = copy.deepcopy(plain)
        set_value(values, key, value)
        try:
            build_experiment(values, "test")
        except ConfigError:
            assert key not in listed, key
        else:
            assert key in listed, key
    for section, value in (("dataset", {"id": "some"}), ("online", {"timesteps": 10})):
        taken = True
        try:
            build_experiment(plain | {section: value}, "test")
        except ConfigError:
            taken = False
        assert any(key.startswith(f"{section}.") for key in listed) == taken, section


@pytest.mark.parametrize("agent", [AgentName.GTRXL_PPO, AgentName.DECISION_TRANSFORMER])
def test_the_defaults_of_a_backbone_are_those_that_the_agent_builds(agent: AgentName) -> None:
    built = backbone_config(None, "dt", 20) if agent is AgentName.DECISION_TRANSFORMER else BackboneConfig()
    listed = {each.key: each.default for each in settings.find_settings("backbone.", agent) if not each.of}
    assert listed["backbone.preset"] == ("gtrxl" if built.residual == "gru" else "decision_transformer")
    words = {"algorithm.context_length - 1": 19, "3, without a token of the return 2": 3}
    for each in fields(BackboneConfig):
        if each.name != "losses":
            default = listed[f"backbone.{each.name}"]
            assert words.get(default, yaml.safe_load(default)) == getattr(built, each.name), each.name


@pytest.mark.parametrize(
    ("words", "message"),
    [
        (["--learning_rate", "1"], "unknown setting learning_rate; did you mean 'algorithm.learning_rate'?"),
        (["--total_timesteps", "1"], "unknown setting total_timesteps; did you mean 'train.total_timesteps'?"),
        (["--steps", "1"], "unknown setting steps; did you mean 'train.total_timesteps' or 'train.gradient_steps'?"),
        (["--lr", "1"], "unknown setting lr; did you mean 'algorithm.learning_rate'?"),
        (["--algorithm.width", "8"], "unknown setting algorithm.width; did you mean 'backbone.width'?"),
        (["--env.num_envs", "8"], "unknown setting env.num_envs; did you mean 'environment.num_envs'"),
        (["--evaluation.evry", "8"], "unknown setting evaluation.evry; did you mean 'evaluation.every'?"),
        (["--dataset.collect.episode", "8"],
         "unknown setting dataset.collect.episode; did you mean 'dataset.collect.episodes'"),
        (["--algorithm.critic", "qt"],
         "unknown setting algorithm.critic of agent gtrxl_ppo; agents that have it: decision_transformer"),
        (["--policy.qqq", "8"], "unknown setting policy.qqq; known: action_masks, features_extractor_class"),
        (["--name", "x"], "--name is an option of train and tune, not a setting; leave it out here"),
        (["--json"], "--json is an option of train and tune, not a setting"),
        (["--verbose", "--seed", "1"], "--verbose is an option of train, not a setting"),
        (["--trials=3"], "--trials is an option of tune, not a setting"),
        (["--", "3"], "-- names no setting; write --key value"),
        (["--=3"], "--=3 names no setting"),
    ],
)  # fmt: skip
def test_a_wrong_setting_is_refused_with_the_full_name_of_the_right_one(
    capsys: pytest.CaptureFixture[str], words: list[str], message: str
) -> None:
    told = refused(capsys, "show", "gtrxl_cue_recall", *words)
    assert told.startswith(f"rltransformers: {message}")


@pytest.mark.parametrize(
    ("words", "way"),
    [
        (["trian", "x"], "did you mean 'train'?"),
        (["run", "x"], "did you mean 'train'?"),
        (["eval", "x"], "did you mean 'evaluate'?"),
        (["CartPole-v1"], "rltransformers train --env CartPole-v1"),
        (["gtrxl_cue_recall"], "rltransformers train gtrxl_cue_recall"),
        (["train", "CartPole-v1"], "write --env CartPole-v1"),
        (["show", "cartpole"], "write --env CartPole-v1"),
        (["tune", "gtrxl_vmpo"], "write --env ID --agent gtrxl_vmpo"),
        (["show", "--env", "CartPole-v1", "--agent", "lstm"], "did you mean 'recurrent_ppo'?"),
        (["collect", "--env", "CartPole-v1", "--behaviour", "random"], "did you mean '--behavior'?"),
        (["evaluate", "runs/x", "--n_eval_episodes=3"], "did you mean '--episodes'?"),
        (["settings", "gate"], "did you mean 'backbone.residual'"),
        (["show", "gtrxl_cue_recall", "--algorithm.lr", "1"], "did you mean 'algorithm.learning_rate'?"),
        (["show", "gtrxl_cue_recall", "--net_arch", "1"], "did you mean 'backbone.width' or 'backbone.layers'?"),
        (["show", "gtrxl_cue_recall", "--policy.lstm_hidden_size", "1"], "did you mean 'backbone.width'?"),
        (["show", "online.yaml", "--agent", "recurrent_ppo", "--backbone", "{}", "--hidden_size", "1"],
         "did you mean 'policy.lstm_hidden_size'?"),
    ],
)  # fmt: skip
def test_words_of_other_programs_lead_to_ours(
    work: Path, capsys: pytest.CaptureFixture[str], words: list[str], way: str
) -> None:
    assert way in refused(capsys, *words)


def test_the_command_alone_and_help_print_the_help(capsys: pytest.CaptureFixture[str]) -> None:
    for words in ([], ["help"]):
        with pytest.raises(SystemExit, match="0"):
            main(words)
        assert "COMMAND ..." in capsys.readouterr().out
    with pytest.raises(SystemExit, match="0"):
        main(["help", "train"])
    assert "rltransformers train" in capsys.readouterr().out


@pytest.mark.parametrize(
    ("words", "message"),
    [
        (["show", "online.yaml", "--seed", "1", "--seed=2"], "--seed is given twice"),
        (["train", "online.yaml", "--backbone.memory", "3", "--backbone", "{width: 8}"],
         "--backbone would replace --backbone.memory in front of it; give the section first"),
        (["show", "--env", "CartPole-v1", "--environment.id", "Acrobot-v1"], "--environment.id would replace --env"),
        (["show", "--env", "CartPole-v1", "--environment", "{num_envs: 2}"], "--environment would replace --env"),
        (["show", "--env", "CartPole-v1", "--env", "Acrobot-v1"], "--env is given twice"),
        (["train", "online.yaml", "--seeds", "2", "--seeds=2"], "--seeds is given twice"),
        (["evaluate", "runs/x", "--seed", "1", "--seed", "1"], "--seed is given twice"),
        (["evaluate", "runs/x", "--checkpoint", "best", "--checkpoint", "last"], "--checkpoint is given twice"),
        (["evaluate", "runs/x", "--env-kwargs", '{"a": {"delay": 1, "delay": 2}}'],
         "--env-kwargs is not valid YAML: the key 'delay' is given twice"),
        (["collect", "--keep-indices", "0", "--keep-indices", "1"], "--keep-indices is given twice"),
        (["collect", "--steps", "1", "--steps", "2"], "--steps is given twice"),
        (["tune", "online.yaml", "--search", "seed=[1, 2]", "--trials", "2", "--trials", "3"],
         "--trials is given twice"),
    ],
)  # fmt: skip
def test_what_would_be_replaced_by_a_later_word_is_refused(
    work: Path, capsys: pytest.CaptureFixture[str], words: list[str], message: str
) -> None:
    assert refused(capsys, *words).startswith(f"rltransformers: {message}")


def test_options_that_repeat_and_a_section_before_its_setting_are_taken(
    work: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    words = ["evaluate", "x", "--target-return", "-1e3", "--target-return", "2", "--plot", "target", "--plot", "target"]
    assert build_parser().parse_args(words).target_return == [-1000, 2]
    seeds = build_parser().parse_args(["train", "online.yaml", "--seeds", "1e1"]).seeds
    assert (seeds, type(seeds)) == (10, int)
    shown = yaml.safe_load(run(capsys, "show", "online.yaml", "--backbone", "{width: 8}", "--backbone.memory", "3"))
    assert shown["backbone"] == {"width": 8, "memory": 3}


def test_a_wrong_setting_in_a_file_is_refused_with_the_file(work: Path, capsys: pytest.CaptureFixture[str]) -> None:
    values = yaml.safe_load(Path("online.yaml").read_text())
    Path("wrong.yaml").write_text(yaml.safe_dump(values | {"evaluation": {"episodse": 3}}))
    expected = "rltransformers: wrong.yaml: unknown setting evaluation.episodse; did you mean 'evaluation.episodes'"
    assert refused(capsys, "show", "wrong.yaml").startswith(expected)
    assert refused(capsys, "train", "wrong.yaml").startswith(expected)


@pytest.mark.parametrize("words", [["--environment", "3"], ["--sede", "1"], ["--seed", "["]])
def test_messages_about_a_packaged_config_name_it_and_no_path(
    capsys: pytest.CaptureFixture[str], words: list[str]
) -> None:
    message = refused(capsys, "show", "gtrxl_cue_recall", *words)
    assert os.sep not in message
    assert ("packaged config gtrxl_cue_recall: " in message) == (words[0] == "--environment")


def test_a_warning_is_one_line_without_a_place_in_the_code(
    capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    import warnings

    from rltransformers.cli.commands import list as listing

    def warned() -> dict[str, Any]:
        text = warnings.formatwarning("the data are old", UserWarning, "/x/site-packages/y.py", 3)
        print(text, end="", file=sys.stderr)
        return {"axes": {}, "presets": [], "agents": [], "configs": []}

    monkeypatch.setattr(listing, "list_contents", warned)
    before = warnings.formatwarning
    assert main(["list"]) == 0
    assert capsys.readouterr().err == "rltransformers: UserWarning: the data are old\n"
    assert warnings.formatwarning is before


@pytest.mark.parametrize("agent", list(AgentName))
def test_an_environment_is_a_config_for_every_agent(agent: AgentName) -> None:
    overrides = [("environment.id", "my/Task-v1"), ("agent", agent.value)]
    data = [("dataset", "some/data-v0")] if agent is AgentName.DECISION_TRANSFORMER else []
    name, config = config_of_env("some.module:my/Task-v1", overrides + data)
    assert name == f"Task-v1-{agent}"
    assert (config.agent, config.environment.id) == (agent, "my/Task-v1")
    assert config.steps and config.evaluation.every and config.steps % config.evaluation.every == 0
    check_keywords(agent, config.algorithm, config.policy)


def test_an_environment_is_trained_in_without_a_config(work: Path, capsys: pytest.CaptureFixture[str]) -> None:
    words = ["--train.total_timesteps", "32", "--algorithm.n_steps", "8", "--evaluation.episodes", "2"]
    words += ["--environment.num_envs", "2", "--backbone.width", "8", "--evaluation.every", "0"]
    run(capsys, "train", "--env", "CartPole-v1", *words, "--seed", "3")
    folder = RunFolder.open("runs/CartPole-v1-gtrxl_ppo-seed3")
    config = yaml.safe_load(folder.config.read_text())
    assert config["environment"]["id"] == "CartPole-v1" and config["train"]["total_timesteps"] == 32
    assert "either CONFIG or --env" in refused(capsys, "show")
    assert "one of the three" in refused(capsys, "train", "online.yaml", "--env", "CartPole-v1")
    assert "set dataset.id" in refused(capsys, "train", "--env", "CartPole-v1", "--agent", "decision_transformer")


def test_a_module_that_was_typed_with_the_environment_is_trusted(
    work: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    message = refused(capsys, "train", "--env", "no_such_module:Task-v0")
    assert "No module named 'no_such_module'" in message and "--trust" not in message


# Seeds ------------------------------------------------------------------------------------------------------

RUN = """
import json, signal, sys, time
from pathlib import Path
others, *words = sys.argv[1:]
order = json.loads(sys.stdin.readline())
seed, name = order["config"]["seed"], order["name"]
signals = []
signal.signal(signal.SIGTERM, lambda *_: signals.append("SIGTERM"))
Path(f"{name}.began").touch()
deadline = time.monotonic() + 60
while len(list(Path().glob("*.began"))) < int(others) and time.monotonic() < deadline:
    time.sleep(0.01)
if "wait" in words:
    while not signals and time.monotonic() < deadline:
        time.sleep(0.01)
    time.sleep(0.2)
    Path(f"{name}.signals").write_text(" ".join(signals))
    sys.exit(143)
print("about", name, file=sys.stderr)
if "fail" in words and seed == 1:
    sys.exit(2)
results = [{"returns": [seed, seed + 2.0], "target_return": target, "successes": None} for target in (None,)]
Path(order["report"]).write_text(json.dumps({"run": name, "results": results}) + "\\n")
"""
Train = Callable[..., list[seeds.Run]]


@pytest.fixture
def fake(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Train:
    """Trains seeds by a small program that waits until as many have begun as its first word says."""
    monkeypatch.chdir(tmp_path)
    (tmp_path / "fake.py").write_text(RUN)
    config = build_experiment(ONLINE | {"output": str(tmp_path)})

    def train(words: list[str], seeds_: range, jobs: int) -> list[seeds.Run]:
        monkeypatch.setattr(worker, "PROCESS", (str(tmp_path / "fake.py"), *words))
        return seeds.train_seeds(config, "x", seeds_, LocalEngine(), jobs)

    return train


@pytest.mark.parametrize("jobs", [1, 3])
def test_every_seed_trains_in_a_folder_of_its_own(fake: Train, capfd: pytest.CaptureFixture[str], jobs: int) -> None:
    runs = fake([str(jobs)], range(4, 7), jobs)  # with 3 jobs none ends before all have begun
    assert [(each["seed"], each["run"]) for each in runs] == [(4, "x-seed4"), (5, "x-seed5"), (6, "x-seed6")]
    lines = capfd.readouterr().err.splitlines()
    label = "seed {0}: " if jobs > 1 else ""
    assert sorted(lines) == [f"{label}about x-seed{{0}}".format(seed) for seed in (4, 5, 6)]
    assert Path("x-seed5.log").read_text() == "about x-seed5\n" and not list(Path().glob("*.report"))


def test_mean_and_spread_are_over_seeds(fake: Train, capsys: pytest.CaptureFixture[str]) -> None:
    runs = fake(["1"], range(3), 1)
    (summary,) = seeds.seeds_summary(runs)
    assert summary == {
        "target_return": None, "seeds": 3, "return_mean": 2.0, "return_std": 1.0, "return_least": 1.0,
        "return_most": 3.0,
    }  # fmt: skip
    seeds.print_seeds(runs)
    assert "3 seeds: return 2.000 ± 1.000 (standard deviation between seeds), from 1.000 to 3.000" in (
        capsys.readouterr().out
    )
    assert seeds.seeds_summary(runs[:1])[0]["return_std"] is None


def test_behind_a_run_that_fails_no_other_begins(fake: Train) -> None:
    with pytest.raises(ConfigError, match=r"seed 1 \(exit code 2\) failed, see above; .*: x-seed0$"):
        fake(["1", "fail"], range(4), 1)
    assert not Path("x-seed2.began").exists()


@pytest.mark.usefixtures("default_signals")
def test_a_signal_reaches_every_run_once_and_none_begins_behind_it(fake: Train) -> None:
    def interrupt() -> None:
        deadline = time.monotonic() + 60
        while len(list(Path().glob("*.began"))) < 2 and time.monotonic() < deadline:
            time.sleep(0.01)
        os.kill(os.getpid(), signal.SIGINT)

    thread = threading.Thread(target=interrupt)
    thread.start()
    with pytest.raises(Stopped) as stopped:
        fake(["2", "wait"], range(4), 2)
    thread.join()
    assert stopped.value.signum == signal.SIGINT
    assert [path.read_text() for path in sorted(Path().glob("*.signals"))] == ["SIGTERM", "SIGTERM"]
    assert len(list(Path().glob("*.began"))) == 2


@pytest.mark.slow
def test_seeds_of_a_config_are_runs_like_any_other(
    work: Path, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(engines, "LocalEngine", Copies)
    told = json.loads(run(capsys, "train", "online.yaml", "--seeds", "2", "--seed", "5", "--json"))
    assert [each["run"] for each in told["runs"]] == ["runs/online-seed5", "runs/online-seed6"]
    alone = json.loads(run(capsys, "train", "online.yaml", "--seed", "6", "--json"))
    assert alone["results"] == told["runs"][1]["results"]


@pytest.mark.parametrize(
    ("words", "message"),
    [
        (["online.yaml", "--seeds", "0"], "--seeds must be a whole number of at least 1"),
        (["online.yaml", "--jobs", "2"], "--jobs says how several seeds are trained: give --seeds N, too"),
        (["online.yaml", "--engine", "ray"], "--engine says how several seeds are trained"),
        (["online.yaml", "--seeds", "2", "--address", "auto"], "--address auto is that of a Ray cluster"),
        (["--resume", "runs/x", "--seeds", "2"], "--resume is for one run"),
        (["online.yaml", "--verbose", "--seeds", "2"], "--verbose is for one run"),
        (["online.yaml", "--seeds", "2", "--sed", "2"], "did you mean 'seed'"),
    ],
)
def test_what_seeds_cannot_do_is_refused(
    work: Path, capsys: pytest.CaptureFixture[str], words: list[str], message: str
) -> None:
    assert message in refused(capsys, "train", *words)


# Pictures ---------------------------------------------------------------------------------------------------


def test_a_picture_that_cannot_be_is_refused_before_an_episode_is_played(
    work: Path, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    from rltransformers.cli import runs

    folder = Path("runs/x")
    folder.mkdir(parents=True)
    (folder / "config.yaml").write_text(Path("online.yaml").read_text())
    monkeypatch.setattr(runs, "build_agent", lambda *args, **kwargs: pytest.fail("episodes would be played"))
    words = ("evaluate", "runs/x", "--plot")
    assert "agent gtrxl_ppo has none" in refused(capsys, *words, "target")
    (folder / "lookback.png").mkdir()
    assert "lookback.png is a folder" in refused(capsys, *words, "lookback")
    (folder / "lookback.png").rmdir()
    folder.joinpath("config.yaml").write_text(Path("offline.yaml").read_text())
    cloning = yaml.safe_load(Path("offline.yaml").read_text())
    cloning["algorithm"]["mode"], cloning["evaluation"]["target_returns"] = "bc", []
    folder.joinpath("config.yaml").write_text(yaml.safe_dump(cloning))
    assert "behavior cloning has none" in refused(capsys, *words, "target")

    def nothing(*args: Any, **kwargs: Any) -> Any:
        raise PermissionError(13, "Permission denied")

    monkeypatch.setattr("rltransformers.training.runs.plots.tempfile.TemporaryFile", nothing)
    assert "lookback.png" in refused(capsys, *words, "lookback")


def test_the_commands_are_those_of_the_page_and_each_takes_debug() -> None:
    commands = build_parser().commands
    page = (Path(__file__).parents[2] / "docs" / "command_line.md").read_text()
    assert set(commands) == set(re.findall(r"^\| `rltransformers (\w+)", page, re.MULTILINE))
    assert all("--debug" in command.format_help() for command in commands.values())
    assert packaged_configs()
