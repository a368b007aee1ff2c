"""Every setting of every agent has a type and a range: values outside are refused by name, wherever they are given.

The tables are made from the signatures, so that a new keyword is in them from its first day.
"""

import inspect
import math
import typing
from collections.abc import Callable, Mapping
from dataclasses import MISSING, fields
from pathlib import Path
from typing import Any

import gymnasium
import pytest
import yaml
from stable_baselines3.common.vec_env import VecEnv

from rltransformers.agents import DecisionTransformer, GTrXLPPO, GTrXLSAC, GTrXLVMPO
from rltransformers.cli.keywords import AGENT_CLASSES, check_keywords
from rltransformers.cli.main import main
from rltransformers.core.errors import ConfigError, DataError
from rltransformers.core.ranges import annotations, check, fits
from rltransformers.policies.actor_critic import GTrXLPolicy
from rltransformers.policies.own_policies import policy_settings
from rltransformers.training.runs.experiment import (
    AgentName,
    CollectConfig,
    DatasetConfig,
    EnvironmentConfig,
    EvaluationConfig,
    ExperimentConfig,
    TrainConfig,
)
from tests.data.coded import coded_episodes

NAN, INF = math.nan, math.inf
VALUES: list[Any] = [
    NAN,
    INF,
    -1,
    -0.5,
    0,
    1.5,
    10**400,
    "fast",
    b"x",
    True,
    None,
    [],
    ["x"],
    {},
    {1: 2},
    object(),
    len,
]
LINES: list[Any] = [{"start": NAN, "end": 0.1}, {"start": "a", "end": 0.1}, {"start": 0.1}, {"start": 0.1, "end": -0.1},
                    {"start": 0.1, "end": 0.0, "fraction": 2.0}, {"start": 0.1, "end": 0.0, "slope": 1.0}]  # fmt: skip
CALLS: dict[str, Callable[..., Any]] = {
    "GTrXLPPO": GTrXLPPO.__init__,
    "GTrXLPPO.learn": GTrXLPPO.learn,
    "GTrXLVMPO": GTrXLVMPO.__init__,
    "GTrXLVMPO.learn": GTrXLVMPO.learn,
    "GTrXLPolicy": GTrXLPolicy.__init__,
    "GTrXLPPO.load": GTrXLPPO.load.__func__,  # type: ignore[attr-defined]
    "DecisionTransformer": DecisionTransformer.__init__,
    "DecisionTransformer.learn": DecisionTransformer.learn,
    "DecisionTransformer.evaluate": DecisionTransformer.evaluate,
    "DecisionTransformer.load": DecisionTransformer.load.__func__,  # type: ignore[attr-defined]
}
# No settings, or checked by more than a type and tested there.
LOOSE = {"observation_space", "action_space", "lr_schedule", "path", "env", "policy", "dataset", "target_returns"}
CASES = [(call, name) for call, function in CALLS.items() for name in annotations(function) if name not in LOOSE]


def bad_values(annotation: Any) -> list[Any]:
    """What does not fit; nothing that the checks accept is in here by mistake, see the first test."""
    return [value for value in VALUES + LINES if not fits(value, annotation)]


@pytest.mark.parametrize(("call", "name"), CASES, ids=[".".join(case) for case in CASES])
def test_every_keyword_has_a_type_that_its_default_fits_and_most_values_do_not(call: str, name: str) -> None:
    annotation, default = annotations(CALLS[call])[name], inspect.signature(CALLS[call]).parameters[name].default
    assert annotation is not Any
    assert default is inspect.Parameter.empty or fits(default, annotation)
    assert len(bad_values(annotation)) >= 8
    numbers = [part for part in (annotation, *typing.get_args(annotation)) if part in (int, float)]
    if numbers:  # a number without bounds must at least be one
        assert not fits(NAN, annotation) and not fits(True, annotation)


@pytest.mark.parametrize(("call", "name"), CASES, ids=[".".join(case) for case in CASES])
def test_a_value_outside_is_refused_by_name_before_anything_is_done(call: str, name: str) -> None:
    """The first argument is no agent at all: nothing is touched before the values are checked."""
    function = CALLS[call]
    required = {
        each.name: None
        for each in inspect.signature(function).parameters.values()
        if each.default is each.empty and each.kind is not each.VAR_KEYWORD
    }
    fitting = {"gradient_steps": 1, "total_timesteps": 1, "env": "CartPole-v1", "path": "x", "policy": "GTrXLPolicy",
               "observation_space": gymnasium.spaces.Discrete(2), "action_space": gymnasium.spaces.Discrete(2),
               "lr_schedule": len}  # fmt: skip
    for value in bad_values(annotations(function)[name]):
        given = required | {key: fitting[key] for key in required if key in fitting} | {name: value}
        with pytest.raises(ConfigError) as caught:
            function(**given)
        assert name in str(caught.value) and "\n" not in str(caught.value)


WEIGHTS = {
    GTrXLPPO: ("learning_rate", "clip_range", "clip_range_vf", "ent_coef", "barrier_coef", "vf_coef"),
    GTrXLVMPO: (
        "learning_rate",
        "multiplier_learning_rate",
        "vf_coef",
        "eps_eta",
        "eps_alpha",
        "eps_mean",
        "eps_covariance",
    ),
    DecisionTransformer: ("learning_rate", "weight_decay"),
}


@pytest.mark.parametrize(("agent", "name"), [(agent, name) for agent, names in WEIGHTS.items() for name in names])
def test_no_weight_of_a_loss_leaves_what_float32_can_compute_with(agent: Any, name: str) -> None:
    lines = [{"start": 1e7, "end": 0.1}] if name in getattr(agent, "scheduled", ()) else []
    values = [1e7, 1e300, *lines]
    for value in values:
        with pytest.raises(ConfigError, match=rf"{name}\S* must be"):
            agent("none", None, **{name: value})
    hint = annotations(agent.__init__)[name]
    assert fits(1e6, hint) and fits(1e-300, hint)


def test_a_loss_that_is_not_finite_names_the_settings_to_lower() -> None:
    model = DecisionTransformer(
        "DTPolicy", coded_episodes(), context_length=4, learning_rate=1e6, weight_decay=1e6, warmup_steps=0, seed=0,
        policy_kwargs={"backbone": {"width": 8, "heads": 2, "layers": 1}},
    )  # fmt: skip
    with pytest.raises(DataError, match="lower learning_rate or weight_decay"):
        model.learn(20, log_interval=1)


def test_a_keyword_that_an_environment_does_not_take_is_looked_for_where_it_was_given() -> None:
    model = DecisionTransformer(
        "DTPolicy", coded_episodes(), context_length=4, policy_kwargs={"backbone": {"width": 8, "heads": 2}}, seed=0
    )
    wrongs: list[Any] = [{"a": 1}, {1: 2}]
    for wrong in wrongs:
        with pytest.raises(ConfigError, match="env_kwargs"):
            model.evaluate("rltransformers/CueRecall-v0", env_kwargs=wrong)


@pytest.mark.parametrize("agent", AGENT_CLASSES)
def test_in_a_config_every_keyword_is_refused_with_its_full_name(agent: AgentName) -> None:
    twins: dict[AgentName, type[Any]] = {
        AgentName.RECURRENT_PPO: GTrXLPPO,
        AgentName.PPO: GTrXLPPO,
        AgentName.SAC: GTrXLSAC,
    }
    ours = annotations(twins[agent].__init__) if agent in twins else {}
    hints = annotations(AGENT_CLASSES[agent].__init__, VecEnv=VecEnv) | ours
    elsewhere = {"seed", "verbose", "tensorboard_log", "policy_kwargs", "_init_setup_model", *LOOSE}
    tried = 0
    for name in annotations(AGENT_CLASSES[agent].__init__, VecEnv=VecEnv).keys() - elsewhere:
        for value in bad_values(hints[name]):
            with pytest.raises(ConfigError, match=rf"algorithm\.{name}"):
                check_keywords(agent, {name: value})
            tried += 1
    assert tried > 100


def test_in_a_config_policy_keywords_are_refused_with_their_full_name() -> None:
    hints = annotations(GTrXLPolicy.__init__)
    for name in hints.keys() - LOOSE:
        for value in bad_values(hints[name]):
            with pytest.raises(ConfigError, match=rf"policy\.{name}"):
                check_keywords(AgentName.GTRXL_PPO, {}, {name: value})
            with pytest.raises(ConfigError, match=rf"policy\.{name}"):
                check_keywords(AgentName.GTRXL_VMPO, {}, {name: value})
    with pytest.raises(ConfigError, match=r"unknown setting policy\.lr_schedule"):
        policy_settings(GTrXLPolicy, {"lr_schedule": 1}, "policy.")
    with pytest.raises(ConfigError, match=r"policy\.lstm_hidden_size must be a whole number, got 1.5"):
        check_keywords(AgentName.RECURRENT_PPO, {}, {"lstm_hidden_size": 1.5})
    with pytest.raises(ConfigError, match=r"unknown setting policy\.lstm_hiden_size"):
        check_keywords(AgentName.RECURRENT_PPO, {}, {"lstm_hiden_size": 4})


PARTS: dict[type, tuple[str, Mapping[str, Any]]] = {
    EnvironmentConfig: ("environment.", {"id": "CartPole-v1"}),
    CollectConfig: ("dataset.collect.", {"episodes": 1}),
    DatasetConfig: ("dataset.", {}),
    TrainConfig: ("train.", {}),
    EvaluationConfig: ("evaluation.", {}),
    ExperimentConfig: (
        "",
        {
            "agent": "gtrxl_ppo",
            "environment": EnvironmentConfig("CartPole-v1"),
            "train": TrainConfig(total_timesteps=1),
        },
    ),
}


@pytest.mark.parametrize("part", PARTS, ids=[part.__name__ for part in PARTS])
def test_every_field_of_a_config_has_a_type_and_a_range(part: type) -> None:
    prefix, least = PARTS[part]
    hints = typing.get_type_hints(part, include_extras=True)
    part(**least)
    for each in fields(part):
        if each.default is not MISSING:
            check(each.default, hints[each.name], each.name)
        bad = bad_values(hints[each.name])
        assert len(bad) >= 8
        for value in bad:
            with pytest.raises(ConfigError) as caught:
                part(**{**least, each.name: value})
            assert str(caught.value).startswith(f"{prefix}{each.name} must be ")


CONFIG = {
    "agent": "gtrxl_ppo",
    "environment": {"id": "CartPole-v1"},
    "backbone": {"width": 8, "layers": 1, "heads": 1},
    "algorithm": {"n_steps": 4},
    "train": {"total_timesteps": 4},
}
COLLECT = ("collect", "--env", "CartPole-v1", "--behavior", "random", "--dataset", "a/b-v0")
LSTM = ("--agent", "recurrent_ppo", "--backbone", "null")


@pytest.mark.parametrize(
    ("words", "name"),
    [
        *[
            (("train", "run.yaml", f"--{name}", text), name)
            for name, text in (
                ("algorithm.gamma", "abc"), ("algorithm.n_steps", "1.5"), ("algorithm.max_grad_norm", "-0.5"),
                ("algorithm.vf_coef", ".nan"), ("algorithm.target_kl", "0"), ("algorithm.stats_window_size", "0"),
                ("algorithm.learning_rate", "{start: .nan, end: 0}"), ("algorithm.learning_rate", "[1]"),
                ("algorithm.device", "nonsense"), ("algorithm.memory_refresh", "updates"),
                ("policy.log_std_init", ".inf"),
                ("policy.optimizer_kwargs", "{eps: -1}"), ("policy.head_width", "1000000000000"),
                ("environment.num_envs", "true"), ("environment.wrappers", "3"), ("environment.kwargs", "[1]"),
                ("evaluation.deterministic", "1"), ("train.total_timesteps", "1e400"), ("output", "null"),
                ("seed", "4294967296"), ("threads", "1.5"), ("agent", "3"), ("train", "3"), ("backbone", "[]"),
            )
        ],
        (("train", "run.yaml", "--algorithm.n_steps", "1000000000000"), "n_steps"),
        (("train", "run.yaml", "--environment.kwargs", "{nonsense: 1}"), "nonsense"),
        (("train", "run.yaml", "--environment.wrappers", "[{nme: FlatDict}]"), "wrapper"),
        (("train", "run.yaml", "--environment.wrappers", "[{name: TimeLimit, max_episode_steps: x}]"), "TimeLimit"),
        (("train", "run.yaml", "--environment.id", "Nope-v0"), "Nope-v0"),
        (("train", "run.yaml", "--environment.id", "..:x"), "..:x"),
        (("train", "run.yaml", *LSTM, "--algorithm.gamma", "2"), "algorithm.gamma"),
        (("train", "run.yaml", *LSTM, "--algorithm.use_sde", "3"), "algorithm.use_sde"),
        (("train", "run.yaml", *LSTM, "--algorithm.batch_size", "1"), "batch_size"),
        (("train", "run.yaml", *LSTM, "--policy.lstm_hidden_size", "-4"), "policy"),
        (("train", "run.yaml", "--output", "run.yaml/x"), "run.yaml/x"),
        ((*COLLECT, "--steps", "many"), "--steps must be a whole number"),
        ((*COLLECT, "--steps", "0"), "--steps must be a whole number"),
        ((*COLLECT, "--steps", "3", "--num-envs", "-1"), "--num-envs must be a whole number"),
        ((*COLLECT, "--steps", "3", "--seed", "-1"), "--seed must be a whole number"),
        ((*COLLECT, "--steps", "3", "--keep-indices", "-1"), "--keep-indices must be a whole number"),
        ((*COLLECT, "--steps", "3", "--nonsense", "1"), "--nonsense"),
        (("evaluate", "run", "--episodes", "1.5"), "--episodes must be a whole number in [1, 1000000], got '1.5'"),
        (("evaluate", "run", "--target-return", "nan"), "--target-return must be a finite number, got 'nan'"),
        (("evaluate", "run", "--checkpoint", "third"), "--checkpoint"),
        (("evaluate",), "RUN"),
        (("nonsense",), "nonsense"),
    ],
)  # fmt: skip
def test_the_command_line_answers_with_one_line_and_code_two(
    words: tuple[str, ...],
    name: str,
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
    capsys: pytest.CaptureFixture[str],
) -> None:
    monkeypatch.chdir(tmp_path)
    Path("run.yaml").write_text(yaml.safe_dump(CONFIG))
    assert main(words) == 2
    out, err = capsys.readouterr()
    assert out == "" and err.count("\n") == 1 and "Traceback" not in err
    assert name in err
