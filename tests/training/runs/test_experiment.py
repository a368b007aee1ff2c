"""Run configs: YAML with overrides becomes typed values; everything misspelt or impossible is refused."""

import time
from pathlib import Path
from typing import Any

import pytest
import yaml

from rltransformers.core.errors import ConfigError
from rltransformers.core.yaml_text import parse_yaml
from rltransformers.training.runs.experiment import (
    AgentName,
    CollectConfig,
    build_experiment,
    read_experiment,
    set_value,
)

ONLINE = """
agent: gtrxl_ppo
environment: {id: CartPole-v1, num_envs: 3, kwargs: {delay: 7}, wrappers: [{name: DropIndices, indices: [1, 3]}]}
backbone: {preset: gtrxl, width: 16, losses: {span: 2e-6}}
algorithm: {learning_rate: 3e-4, n_steps: 5}
train: {total_timesteps: 100}
"""
OFFLINE = """
agent: decision_transformer
environment: {id: CartPole-v1}
dataset: {collect: {episodes: 4}}
train: {gradient_steps: 10}
evaluation: {target_returns: [1, 2.5]}
"""


@pytest.fixture
def online(tmp_path: Path) -> Path:
    path = tmp_path / "online.yaml"
    path.write_text(ONLINE)
    return path


@pytest.fixture
def offline(tmp_path: Path) -> Path:
    path = tmp_path / "offline.yaml"
    path.write_text(OFFLINE)
    return path


def test_values_arrive_with_their_types_and_defaults(online: Path, offline: Path) -> None:
    config = read_experiment(online)
    assert (config.environment.num_envs, config.environment.kwargs, config.seed) == (3, {"delay": 7}, 0)
    assert config.algorithm == {"learning_rate": 0.0003, "n_steps": 5}
    assert config.backbone["losses"] == {"span": 0.000002}  # YAML 1.1 would read 2e-6 as a string
    config = read_experiment(offline)
    assert config.evaluation.target_returns == [1.0, 2.5]
    assert config.dataset is not None and config.dataset.collect == CollectConfig(episodes=4)
    assert config.agent is AgentName.DECISION_TRANSFORMER and type(config.to_dict()["agent"]) is str


def test_overrides_reach_every_depth_and_leave_their_neighbors(online: Path) -> None:
    config = read_experiment(
        online,
        [
            ("seed", "5"),
            ("algorithm.learning_rate", "1e-3"),
            ("backbone.memory", "8"),
            ("backbone.ff.name", "glu"),
            ("environment.processes", "true"),
            ("environment.wrappers", "[]"),
        ],
    )
    assert config.seed == 5
    assert config.algorithm == {"learning_rate": 0.001, "n_steps": 5}
    assert config.backbone == {
        "preset": "gtrxl",
        "width": 16,
        "losses": {"span": 2e-6},
        "memory": 8,
        "ff": {"name": "glu"},
    }
    assert config.environment.processes is True and config.environment.wrappers == []


def test_a_written_config_reads_back_as_itself(online: Path, offline: Path, tmp_path: Path) -> None:
    for path in (online, offline):
        config = read_experiment(path)
        (tmp_path / "copy.yaml").write_text(yaml.safe_dump(config.to_dict()))
        assert read_experiment(tmp_path / "copy.yaml") == config


def test_threads_are_left_open_or_a_number(online: Path) -> None:
    assert read_experiment(online).threads is None
    assert read_experiment(online, [("threads", "2")]).threads == 2
    assert read_experiment(online, [("threads", "null")]).threads is None


def test_a_dataset_may_be_just_its_id(offline: Path) -> None:
    config = read_experiment(offline, [("dataset", "hopper/mixture-v0")])
    assert config.dataset is not None and config.dataset.id == "hopper/mixture-v0"


@pytest.mark.parametrize(
    ("override", "message"),
    [
        (("sed", "3"), "unknown setting sed; did you mean 'seed'"),
        (("environment.num_env", "3"), r"unknown setting environment\.num_env; did you mean 'num_envs'"),
        (("seed", "x"), r"^seed must be a whole number in \[0, 4294967296\), got 'x'"),
        (("seed", "-1"), r"^seed must be a whole number in \[0, 4294967296\), got -1"),
        (("environment", "3"), "environment must be a mapping of settings, got 3"),
        (("environment", "null"), "environment.id is missing, in which agent gtrxl_ppo acts: set it"),
        (("output", "null"), r"^output must be a text, got None"),
        (("environment.id", "3"), r"^environment\.id must be a text, got 3"),
        (("environment.wrappers", "[3]"), r"^environment\.wrappers must be a list .*, got \[3\]"),
        (("train.total_timesteps", "0"), r"^train\.total_timesteps must be a whole number .*, got 0"),
        (("seed", "4294967296"), r"^seed must be a whole number .*, got 4294967296"),
        (("seed", "2020-13-45"), "--seed is not valid YAML: month must be in 1..12"),
        (("seed.x", "1"), "seed must be a whole number .* got {'x': 1}"),
        (("threads", "0"), r"^threads must be a whole number in \[1, 1024\] or None \(null\), got 0"),
        (("threads", "1.5"), r"threads must be .*, got 1\.5"),
        (("threads", "true"), "threads must be .*, got True"),
        (("train.total_timesteps", "x"), r"^train\.total_timesteps must be a whole number .*, got 'x'"),
        (("thread", "2"), "unknown setting thread; did you mean 'threads'"),
        (("agent.x", "1"), "agent is 'gtrxl_ppo', which has no keys"),
        (("environment.id.x", "1"), "environment.id is '.*', which has no keys"),
        (("environment.num_envs", "1.5"), r"^environment\.num_envs must be a whole number in \[1, 65536\], got 1\.5"),
        (("environment.num_envs", "0"), r"^environment\.num_envs must be a whole number .* got 0"),
        (("environment", "{num_envs: 3}"), r"environment\.id is missing"),
        (("environment.wrappers", "[["), "--environment.wrappers is not valid YAML"),
        (("agent", "a2c"), "agent must be one of 'gtrxl_ppo', .*got 'a2c'"),
        (
            ("evaluation.target_returns", "[a]"),
            r"^evaluation\.target_returns must be a list of finite numbers, got",
        ),
        (("evaluation.target_returns", "[1]"), "target_returns are for agent decision_transformer"),
        (("evaluation.episodes", "0"), r"^evaluation\.episodes must be a whole number in \[1, 1000000\], got 0"),
        (("dataset", "a/b-v0"), "agent gtrxl_ppo learns in its environment anyway: leave dataset out"),
        (("train.gradient_steps", "5"), "takes train.total_timesteps, got total_timesteps, gradient_steps"),
        (("agent", "decision_transformer"), "agent decision_transformer takes train.gradient_steps"),
        (("agent", "recurrent_ppo"), "LSTM instead of a backbone"),
        (
            ("environment.novelty_bonus", "-1"),
            r"^environment\.novelty_bonus must be a finite number in \[0, 1e\+30\], got -1",
        ),
        (("environment.novelty_steps", "9"), "how long environment.novelty_bonus is paid: set that, too"),
    ],
)
def test_bad_online_values_are_refused(online: Path, override: tuple[str, str], message: str) -> None:
    with pytest.raises(ConfigError, match=message):
        read_experiment(online, [override])


def test_a_policy_that_sees_rewards_sees_no_bonus(online: Path) -> None:
    bonus = ("environment.novelty_bonus", "0.1")
    read_experiment(online, [bonus])
    with pytest.raises(ConfigError, match="paid in training only: leave one of the two out"):
        read_experiment(online, [bonus, ("policy.previous_reward", "true")])


@pytest.mark.parametrize(
    ("override", "message"),
    [
        (("dataset", "null"), "learns from data: set dataset.id or dataset.collect"),
        (("dataset.id", "a/b-v0"), "either id .* or collect"),
        (("dataset", "{}"), "either id .* or collect"),
        (("dataset.collect.episode", "3"), r"unknown setting dataset\.collect\.episode; did you mean 'episodes'"),
        (("dataset.collect.episodes", "0"), r"^dataset\.collect\.episodes must be a whole number .*, got 0"),
    ],
)
def test_bad_offline_values_are_refused(offline: Path, override: tuple[str, str], message: str) -> None:
    with pytest.raises(ConfigError, match=message):
        read_experiment(offline, [override])


@pytest.mark.parametrize(
    ("override", "message"),
    [
        (("environment.kwargs.start", "2020-01-01"),
         r"environment\.kwargs\.start is a date \(2020-01-01\), which .*; write it in quotes"),
        (("environment.kwargs.at", "2020-01-01 10:00:00"), r"environment\.kwargs\.at is a datetime"),
        (("environment.kwargs", "{a: [1, {b: 2020-01-01}]}"), r"environment\.kwargs\.a\[1\]\.b is a date"),
        (("environment.kwargs", "{x: {2020-01-01: 3}}"), r"environment\.kwargs\.x has a key that is a date"),
        (("environment.wrappers", "[{name: History, x: 2020-01-01}]"), r"environment\.wrappers\[0\]\.x is a date"),
        (("algorithm.x", "!!set {a}"), r"algorithm\.x is a set"),
        (("policy.x", "!!binary aGVsbG8="), r"policy\.x is a bytes"),
        (("seed", "2020-01-01"), r"^seed must be a whole number"),
    ],
)  # fmt: skip
def test_a_value_that_no_run_folder_could_hold_is_refused_by_its_key(
    online: Path, override: tuple[str, str], message: str
) -> None:
    with pytest.raises(ConfigError, match=message):
        read_experiment(online, [override])
    read_experiment(online, [("environment.kwargs", '{start: "2020-01-01", x: {3: null, y: .nan}}')])


def test_the_home_folder_stands_for_itself_in_output(online: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("HOME", "/home/somebody")
    monkeypatch.setenv("USERPROFILE", "/home/somebody")
    assert read_experiment(online, [("output", "~/runs")]).to_dict()["output"] == "/home/somebody/runs"
    assert read_experiment(online, [("output", "a/~")]).output == "a/~"


PLACES = ("environment.kwargs", "environment.wrappers", "evaluation.kwargs", "backbone", "policy", "algorithm")


@pytest.mark.parametrize("place", PLACES)
def test_a_class_that_a_config_names_is_a_value_and_is_never_called(online: Path, tmp_path: Path, place: str) -> None:
    marker = tmp_path / "owned"
    call = {"class_path": "pathlib.Path.touch", "init_args": {"self": str(marker)}}
    popen = {"class_path": "subprocess.Popen", "init_args": {"args": ["touch", str(marker)]}}
    for value in ({"x": popen, "y": [popen], **popen}, {"x": call}):
        text = yaml.safe_dump([value] if place == "environment.wrappers" else value)
        config = read_experiment(online, [(place, text)])
        found: object = config
        for key in place.split("."):
            found = getattr(found, key)
        assert found == yaml.safe_load(text)
    time.sleep(0.05)  # a process that was started would need some of it
    assert not marker.exists()


@pytest.mark.parametrize("place", ["environment", "train", "evaluation", "policy", "environment.kwargs"])
def test_a_section_is_never_read_from_another_file(online: Path, tmp_path: Path, place: str) -> None:
    (tmp_path / "section.yaml").write_text("total_timesteps: 7\n")
    with pytest.raises(ConfigError, match=f"{place} must be a mapping( of settings)?, got '.*section.yaml'"):
        read_experiment(online, [(place, str(tmp_path / "section.yaml"))])
    backbone = read_experiment(online, [("backbone", str(tmp_path / "section.yaml"))]).backbone
    assert backbone == {"preset": str(tmp_path / "section.yaml")}  # a name, which building the network refuses


@pytest.mark.parametrize(
    ("text", "message"),
    [
        (ONLINE + "seed: 1\nseed: 2\n", f"'seed' is given twice.*line {ONLINE.count(chr(10)) + 2}, column 1"),
        (ONLINE.replace("environment", "enviroment"), "unknown setting enviroment; did you mean 'environment'"),
        ("- a list\n", "must be a mapping"),
        ("", "must be a mapping"),
        ("agent: [\n", "not valid YAML"),
        ("agent: 2001-99-99\n", "not valid YAML"),
        (f"agent: {'9' * 5000}\n", "not valid YAML"),
        pytest.param("agent: " + "[" * 20_000, "nested too deeply", id="deep"),
        ("agent: &a [*a]\n", "an alias stands inside itself"),
        (
            "a0: &a0 [1]\n" + "".join(f"a{i}: &a{i} [{f'*a{i - 1}, ' * 10}]\n" for i in range(1, 10)),
            "more than 100,000",
        ),
    ],
)
def test_bad_files_are_refused(tmp_path: Path, text: str, message: str) -> None:
    path = tmp_path / "bad.yaml"
    path.write_text(text)
    with pytest.raises(ConfigError, match=message):
        read_experiment(path)


def test_a_file_that_is_no_text_is_named(tmp_path: Path) -> None:
    (tmp_path / "binary.yaml").write_bytes(b"\xff\xfe\x00")
    with pytest.raises(ConfigError, match=r"binary\.yaml cannot be read"):
        read_experiment(tmp_path / "binary.yaml")


def test_a_missing_file_is_named(tmp_path: Path) -> None:
    with pytest.raises(ConfigError, match=r"nowhere\.yaml cannot be read"):
        read_experiment(tmp_path / "nowhere.yaml")


def test_values_from_python_work_like_a_file() -> None:
    config = build_experiment(yaml.safe_load(OFFLINE))
    assert config.steps == 10


def test_whole_numbers_may_be_written_as_powers_of_ten(online: Path) -> None:
    config = read_experiment(online, [("train.total_timesteps", "1e6"), ("algorithm.n_steps", "+2E+1")])
    assert (config.train.total_timesteps, config.algorithm["n_steps"]) == (1_000_000, 20)
    with pytest.raises(ConfigError, match=r"whole number.*, got 0\.1"):
        read_experiment(online, [("train.total_timesteps", "1e-1")])
    assert parse_yaml("[1.5e3, 1e-2, 1e300]", "test") == [1500.0, 0.01, 1e300]
    assert [type(each) for each in parse_yaml("[1e3, 1.0e3]", "test")] == [int, float]


def test_numbers_are_read_as_in_yaml_1_2() -> None:
    assert parse_yaml("[010, -07, 0_1_0, 0, 1_000, 0x1f, 089]", "test") == [10, -7, 10, 0, 1000, 31, 89]
    assert parse_yaml("[1:30, -1:30]", "test") == ["1:30", "-1:30"]


def test_a_preset_or_mechanism_that_is_named_alone_takes_options() -> None:
    values: dict[str, Any] = {"backbone": "gtrxl", "policy": {"readout": "knn"}}
    set_value(values, "backbone.memory", 3)
    set_value(values, "policy.readout.refresh", 2)
    assert values == {
        "backbone": {"preset": "gtrxl", "memory": 3},
        "policy": {"readout": {"name": "knn", "refresh": 2}},
    }
