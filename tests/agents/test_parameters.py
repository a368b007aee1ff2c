"""Parameters given anew, settings replaced on loading: the habits of Stable-Baselines3."""

from collections.abc import Callable
from pathlib import Path
from typing import Any

import gymnasium as gym
import pytest
import torch
from stable_baselines3.common.callbacks import LogEveryNTimesteps
from stable_baselines3.common.logger import KVWriter, Logger
from stable_baselines3.common.vec_env import DummyVecEnv

from rltransformers.agents import DecisionTransformer, GTrXLPPO, GTrXLVMPO
from rltransformers.core.errors import CheckpointError, ConfigError
from rltransformers.data import record
from tests.agents.test_actor import MAKERS, Stream, offline, online
from tests.agents.test_decision_transformer import make
from tests.agents.test_decision_transformer import record as drifts

KINDS = ["ppo", "vmpo", "dqn", "dt"]


def tensors_of(model: Any) -> list[torch.Tensor]:
    return [tensor for part in model.get_parameters().values() if "state" not in part for tensor in part.values()]


@pytest.mark.parametrize("name", KINDS)
@pytest.mark.parametrize("from_file", [False, True])
def test_an_agent_with_the_parameters_of_another_acts_as_it(name: str, from_file: bool, tmp_path: Path) -> None:
    model, other = MAKERS[name](), MAKERS[name]()
    with torch.no_grad():
        for tensor in other.policy.parameters():
            tensor.add_(torch.randn(tensor.shape, generator=torch.Generator().manual_seed(tensor.dim())), alpha=0.5)
    stream = Stream(model, 3)
    before = stream.play(model.actor())
    actor = model.actor()  # follows the weights of its agent
    other.save(tmp_path / "other.zip")
    model.set_parameters(tmp_path / "other.zip" if from_file else other.get_parameters())
    assert all(torch.equal(*pair) for pair in zip(tensors_of(model), tensors_of(other), strict=True))
    after = stream.play(actor)
    assert (after == stream.play(other.actor())).all() and (after != before).any()


@pytest.mark.parametrize("from_file", [False, True])
def test_the_slow_parts_of_a_critic_come_with_its_parameters(from_file: bool, tmp_path: Path) -> None:
    kwargs: dict[str, Any] = {"critic": "qt", "critic_kwargs": {"width": 16}}
    model, other = make(drifts(), **kwargs), make(drifts(), learning_rate=1e-2, **kwargs).learn(3)
    other.save(tmp_path / "other.zip")
    model.set_parameters(tmp_path / "other.zip" if from_file else other.get_parameters())
    assert model._critic is not None and other._critic is not None
    slow, average = (other._critic.slow, other._critic.average) if from_file else (other._critic.critics, other.policy)
    for ours, theirs in ((model._critic.slow, slow), (model._critic.average, average)):
        expected = theirs.state_dict()
        assert all(torch.equal(value, expected[name]) for name, value in ours.state_dict().items())


@pytest.mark.parametrize("name", KINDS)
def test_parameters_that_do_not_fit_change_nothing(name: str, tmp_path: Path) -> None:
    model = MAKERS[name]()
    whole = model.get_parameters()
    before = [tensor.clone() for tensor in tensors_of(model)]
    weights = {key: value + 1.0 for key, value in whole["policy"].items()}
    key = next(name for name, _ in model.policy.named_parameters())
    cases: list[tuple[Any, str]] = [
        ({"policy": weights}, "exact_match=False"),
        (whole | {"polcy": weights}, "did you mean 'policy'"),
        (whole | {"policy": {k: v for k, v in weights.items() if k != key}}, f"policy lacks {key}"),
        (whole | {"policy": weights | {key: torch.zeros(99)}}, f"policy.{key}"),
        (whole | {"policy": weights | {key: weights[key] / 0}}, f"policy: {key} is not finite"),
    ]
    for given, words in cases:
        with pytest.raises(ConfigError, match=words):
            model.set_parameters(given)
    with pytest.raises(CheckpointError, match="does not exist"):
        model.set_parameters(tmp_path / "none.zip")
    assert all(torch.equal(*pair) for pair in zip(before, tensors_of(model), strict=True))
    model.set_parameters({"policy": {key: weights[key]}}, exact_match=False)
    assert torch.equal(model.get_parameters()["policy"][key], weights[key])


def test_custom_objects_replace_settings_under_the_names_of_stable_baselines3(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    online().save(tmp_path / "agent.zip")
    schedules: dict[str, Callable[[float], float]] = {"lr_schedule": lambda _: 0.25, "clip_range": lambda _: 0.125}
    load = GTrXLPPO.load
    model = load(tmp_path / "agent.zip", custom_objects=schedules | {"_last_obs": None}, print_system_info=True)
    assert model.lr_schedule(1.0) == 0.25 and callable(model.clip_range)
    printed = capsys.readouterr().out
    assert "CURRENT SYSTEM INFO" in printed and printed.count("rltransformers: ") == 2
    assert load(tmp_path / "agent.zip", custom_objects={"gamma": 0.5}).gamma == 0.5
    with pytest.raises(ConfigError, match=r"custom_objects\.gama; did you mean 'gamma'"):
        load(tmp_path / "agent.zip", custom_objects={"gama": 0.5})
    with pytest.raises(ConfigError, match="gamma"):
        load(tmp_path / "agent.zip", custom_objects={"gamma": 5.0})


def test_custom_objects_replace_settings_of_a_decision_transformer(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    data = record("CartPole-v1", "random", episodes=5, num_envs=2, seed=0)
    offline().save(tmp_path / "agent.zip")
    load, path = DecisionTransformer.load, tmp_path / "agent.zip"
    objects = {"learning_rate": 0.5, "batch_size": 3, "clip_range": lambda _: 0.0, "_last_obs": None}
    model = load(path, data, custom_objects=objects, print_system_info=True)
    assert "CURRENT SYSTEM INFO" in capsys.readouterr().out
    plain = load(path, data).learn(1)
    model.learn(1)  # the first of the updates over which the rate falls
    assert model.settings.batch_size == 3 and model._optimizer.param_groups[0]["lr"] == 0.5
    assert plain._optimizer.param_groups[0]["lr"] == 3e-2
    assert load(path, acting="eager", custom_objects={"acting": "compiled"}).settings.acting == "eager"
    wrongs: dict[str, Any] = {"learning_rate": -1.0, "acting_mode": "none", "context_length": 3, "lerning_rate": 0.1}
    for name, value in wrongs.items():
        with pytest.raises(ConfigError, match=name):
            load(path, custom_objects={name: value})


@pytest.mark.parametrize("name", ["ppo", "vmpo", "dqn"])
def test_without_a_log_interval_a_callback_says_when_the_log_is_written(name: str) -> None:
    written: list[int] = []

    class Writes(KVWriter):
        def write(self, key_values: Any, key_excluded: Any, step: int = 0) -> None:
            written.append(step)

    model: Any = MAKERS[name]()
    model.set_logger(Logger(None, [Writes()]))
    model.learn(80, LogEveryNTimesteps(40), log_interval=None)
    assert written == [40, 80]


@pytest.mark.parametrize("name", KINDS)
def test_moments_of_an_optimizer_that_do_not_fit_change_nothing(name: str) -> None:
    """Adam writes behind the end of a moment that is too small."""
    model = MAKERS[name]()
    model.learn(1 if name == "dt" else 200)
    part = "optimizer" if name == "dt" else "policy.optimizer"
    whole = model.get_parameters()
    other = {key: value + 1.0 for key, value in whole["policy"].items()}
    before = [tensor.clone() for tensor in tensors_of(model)]
    state, groups = dict(whole[part]["state"]), whole[part]["param_groups"]
    small = state | {0: state[0] | {"exp_avg": torch.zeros(1)}}
    fewer = [groups[0] | {"params": groups[0]["params"][1:]}]
    for optimizer, words in (
        ({"state": small, "param_groups": groups}, rf"{part}\.state\.0\.exp_avg"),
        ({"state": state, "param_groups": fewer}, f"{part} is of"),
    ):
        with pytest.raises(ConfigError, match=words):
            model.set_parameters(whole | {"policy": other, part: optimizer})
    assert all(torch.equal(*pair) for pair in zip(before, tensors_of(model), strict=True))


@pytest.mark.parametrize("setting", ["eta_init", "alpha_init"])
def test_first_values_of_what_a_file_holds_cannot_be_replaced(setting: str, tmp_path: Path) -> None:
    MAKERS["vmpo"]().save(tmp_path / "model")
    with pytest.raises(ConfigError, match=f"{setting}: the first value of what the file holds"):
        GTrXLVMPO.load(tmp_path / "model", custom_objects={setting: 7.0})


@pytest.mark.parametrize("given", [{"policy": 5}, {"policy.optimizer": [1]}])
def test_parameters_that_are_no_mapping_are_refused(given: dict[str, Any]) -> None:
    model = MAKERS["ppo"]()
    with pytest.raises(ConfigError, match=f"parameters.{next(iter(given))} must be a mapping"):
        model.set_parameters(given, exact_match=False)


def rate_of(model: Any) -> float:
    """The learning rate of the last update."""
    optimizer = model._optimizer if isinstance(model, DecisionTransformer) else model.policy.optimizer
    return float(optimizer.param_groups[0]["lr"])


@pytest.mark.parametrize(
    ("name", "by"),
    [
        ("ppo", "load"),
        ("ppo", "assignment"),
        ("vmpo", "load"),
        ("dqn", "assignment"),
        ("dt", "load"),
        ("dt", "assignment"),
    ],
)
def test_another_learning_rate_holds_from_the_next_update_on(name: str, by: str, tmp_path: Path) -> None:
    MAKERS[name]().save(tmp_path / "agent.zip")
    copies = DummyVecEnv([lambda: gym.make("CartPole-v1")] * 2)
    data: Any = record("CartPole-v1", "random", episodes=5, num_envs=2, seed=0) if name == "dt" else copies
    load = type(MAKERS[name]()).load
    words: dict[str, Any] = {"learning_rate": 1e-6} if by == "load" else {}
    model: Any = load(tmp_path / "agent.zip", data, device="cpu", **words)
    if by == "assignment":
        model.learning_rate = 1e-6
    model.learn(*([1] if name == "dt" else [200, None, 1, None, False]))
    assert rate_of(model) == 1e-6
    model.save(tmp_path / "again.zip")
    model = load(tmp_path / "again.zip", data, device="cpu")
    model.learn(*([1] if name == "dt" else [200, None, 1, None, False]))
    assert rate_of(model) == 1e-6
    with pytest.raises(ConfigError, match=r"learning_rate must be .* got -1"):
        model.learning_rate = -1.0
    if name != "dt":
        model.learning_rate = {"start": 0.5, "end": 0.25}
        assert model.lr_schedule(1.0) == 0.5 and model.lr_schedule(0.0) == 0.25


def test_scheduled_settings_of_ppo_may_be_set_to_numbers() -> None:
    model: Any = MAKERS["ppo"]()
    model.clip_range, model.clip_range_vf = 0.3, {"start": 0.4, "end": 0.4}
    model.learn(32, reset_num_timesteps=False)
    assert model.logger.name_to_value["train/clip_range"] == 0.3


def test_a_decision_transformer_takes_on_loading_what_does_not_change_its_network(tmp_path: Path) -> None:
    offline().save(tmp_path / "agent.zip")
    load = DecisionTransformer.load
    model = load(tmp_path / "agent.zip", warmup_steps=7, batch_size=3, weight_decay=0.5, acting_mode="banded", seed=9)
    settings = model.settings
    assert (settings.warmup_steps, settings.batch_size, settings.acting_mode, model.seed) == (7, 3, "banded", 9)
    assert model._optimizer.param_groups[0]["weight_decay"] == 0.5
    for words, message in (
        ({"lerning_rate": 0.1}, "unknown setting lerning_rate; did you mean 'learning_rate'"),
        ({"context_length": 3}, "context_length belongs to what the file has learned"),
        ({"batch_size": 0}, "batch_size must be"),
    ):
        with pytest.raises(ConfigError, match=message):
            load(tmp_path / "agent.zip", **words)


@pytest.mark.parametrize(("stored", "given"), [(None, 0.01), (0.01, None)])
def test_popart_of_a_file_cannot_be_switched_on_or_off(
    stored: float | None, given: float | None, tmp_path: Path
) -> None:
    policy = {"backbone": {"width": 8, "layers": 1, "heads": 2, "memory": 4}}
    settings: dict[str, Any] = {"n_steps": 16, "popart": stored, "policy_kwargs": policy, "device": "cpu"}
    GTrXLPPO("GTrXLPolicy", "CartPole-v1", **settings).save(tmp_path / "agent.zip")
    with pytest.raises(ConfigError, match=f"popart was {stored} when the agent was made"):
        GTrXLPPO.load(tmp_path / "agent.zip", popart=given)
    if stored is not None:
        assert GTrXLPPO.load(tmp_path / "agent.zip", popart=0.5).policy.value_net.step == 0.5
