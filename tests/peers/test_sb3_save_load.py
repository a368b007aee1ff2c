"""What Stable-Baselines3 asks of saving, loading, parameters and environments, of every online agent.

Its ``test_save_load``; what does not apply stands in docs/guides/from_stable_baselines3.md.
"""

import io
import tempfile
from collections.abc import Callable
from contextlib import nullcontext
from copy import deepcopy
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from stable_baselines3.common.utils import ConstantSchedule, FloatSchedule

from rltransformers.agents import DecisionTransformer, GTrXLDQN, GTrXLPPO, GTrXLVMPO
from rltransformers.core.errors import CheckpointError, ConfigError
from tests.agents.test_actor import offline
from tests.agents.tiny_envs import PixelCue
from tests.peers.small import AGENTS, STEPS, WITH_REPLAY, Kind, agent, every_agent, walk, walks


@pytest.fixture(scope="module", params=AGENTS)
def trained(request: pytest.FixtureRequest) -> Any:
    return agent(request.param).learn(2 * STEPS)


def decisions(model: Any) -> np.ndarray:
    """The most likely actions of one episode; what is predicted leaves nothing behind in the agent."""
    observations = np.random.default_rng(0).normal(size=(6, 3)).astype(np.float32)
    actions, state = [], None
    for observation in observations:
        action, state = model.predict(observation, state, deterministic=True)
        actions.append(action)
    return np.array(actions)


def weights(model: Any) -> dict[str, torch.Tensor]:
    parts = {name: part for name, part in model.get_parameters().items() if "optimizer" not in name}
    return {f"{name}.{key}": value.clone() for name, part in parts.items() for key, value in part.items()}


def same(one: dict[str, torch.Tensor], other: dict[str, torch.Tensor]) -> bool:
    return list(one) == list(other) and all(torch.equal(one[name], other[name]) for name in one)


def test_parameters_are_all_replaced_but_those_that_are_left_out(trained: Any) -> None:
    model = deepcopy_of(trained)
    before = deepcopy(model.get_parameters())
    generator = torch.Generator().manual_seed(1)
    given = {
        name: part
        if "optimizer" in name
        else {key: torch.rand(value.shape, generator=generator) for key, value in list(part.items())[:-1]}
        for name, part in before.items()
    }
    model.set_parameters(given, exact_match=False)
    for name, part in model.get_parameters().items():
        if "optimizer" not in name:
            *others, last = part
            assert torch.equal(part[last], before[name][last])
            assert not any(torch.equal(part[key], before[name][key]) for key in others)


def deepcopy_of(model: Any) -> Any:
    """Another agent with the same parameters."""
    other = agent(type(model))
    other.set_parameters(model.get_parameters())
    return other


def test_parameters_with_a_stranger_or_a_gap_are_refused_as_a_value(trained: Any) -> None:
    whole = trained.get_parameters()
    shorter: list[dict[str, Any]] = [
        {name: whole[name] for name in list(whole)[:-1]},
        {name: {key: part[key] for key in list(part)[:-1]} for name, part in whole.items()},
    ]
    for exact in (True, False):
        with pytest.raises(ValueError, match="stranger"):
            trained.set_parameters(whole | {"stranger": {}}, exact_match=exact)
    for given in shorter:
        with pytest.raises(ValueError, match="lack"):
            trained.set_parameters(given, exact_match=True)


@pytest.mark.parametrize("device", ["auto", "cpu", "cuda"])
def test_a_loaded_agent_decides_as_before_on_the_device_that_was_asked_for(
    trained: Any, device: str, tmp_path: Path
) -> None:
    if device == "cuda" and not torch.cuda.is_available():
        pytest.skip("without a GPU the device falls back to the CPU, which 'auto' tries")
    trained.save(tmp_path / "agent.zip")
    model = type(trained).load(str(tmp_path / "agent.zip"), env=walk(type(trained)), device=device)
    assert {tensor.device.type for tensor in weights(model).values()} == {model.device.type}
    assert model.policy.device.type == model.device.type
    assert same(weights(model), weights(trained))
    np.testing.assert_allclose(decisions(model), decisions(trained), rtol=1e-4)
    model.learn(STEPS)
    assert not same(weights(model), weights(trained))


@pytest.mark.filterwarnings("ignore:.*torch.jit.*:DeprecationWarning")  # of torch itself, when it first compiles
@every_agent
def test_an_agent_with_a_compiled_policy_learns_and_its_file_is_that_of_the_plain_one(
    kind: Kind, tmp_path: Path
) -> None:
    settings: dict[str, Any] = {"target_update_interval": 1} if kind is GTrXLVMPO else {}
    models = [agent(kind, **settings) for _ in range(2)]
    models[1].policy = torch.compile(models[1].policy)
    found = []
    for name, model in zip(("plain", "compiled"), models, strict=True):
        model.learn(2 * STEPS)
        model.save(tmp_path / name)
        found.append(weights(kind.load(tmp_path / name)))
    assert same(*found)
    models[1].set_parameters(tmp_path / "plain")
    assert same(weights(models[1]), found[0])


@pytest.mark.filterwarnings("ignore:.*torch.jit.*:DeprecationWarning")
def test_a_compiled_decision_transformer_writes_the_file_of_the_plain_one(tmp_path: Path) -> None:
    model = offline()
    before = weights(model)
    model.policy = torch.compile(model.policy)  # type: ignore[assignment]  # a module around it
    model.save(tmp_path / "compiled")
    assert same(weights(DecisionTransformer.load(tmp_path / "compiled")), before)
    model.set_parameters(tmp_path / "compiled")
    assert same(weights(model), before)


@every_agent
def test_another_environment_begins_anew_and_the_same_one_goes_on(kind: Kind, tmp_path: Path) -> None:
    model = agent(kind, walks(kind, 1)).learn(STEPS)
    model.set_env(walks(kind, 1), force_reset=True)
    assert model._last_obs is None
    assert model.learn(STEPS, reset_num_timesteps=True).num_timesteps == STEPS
    model.set_env(walk(kind))  # is wrapped
    model.learn(STEPS)
    with pytest.raises(ConfigError, match="2 copies, this agent learns from 1"):
        model.set_env(walks(kind, 2))
    model.set_env(model.get_env(), force_reset=False)
    assert model._last_obs is not None
    assert model.learn(STEPS, reset_num_timesteps=False).num_timesteps == 2 * STEPS
    model.save(tmp_path / "agent")
    goes_on = kind.load(tmp_path / "agent", env=model.get_env(), force_reset=False)
    assert goes_on._last_obs is not None
    assert goes_on.learn(STEPS, reset_num_timesteps=False).num_timesteps == 3 * STEPS
    anew = kind.load(tmp_path / "agent", env=walk(kind), force_reset=True)
    assert anew._last_obs is None
    assert anew.learn(STEPS, reset_num_timesteps=False).num_timesteps == 3 * STEPS
    with pytest.warns(UserWarning, match="replay") if kind in WITH_REPLAY else nullcontext():
        two = kind.load(tmp_path / "agent", env=walks(kind, 2))
    assert two.learn(2 * STEPS).n_envs == 2


@every_agent
def test_an_agent_of_pictures_goes_on_from_its_file(kind: Kind, tmp_path: Path) -> None:
    env = PixelCue((40, 40, 2))
    agent(kind, env).learn(STEPS).save(tmp_path / "agent")
    assert kind.load(tmp_path / "agent", env=env).learn(STEPS).num_timesteps == STEPS


@every_agent
def test_what_stood_in_place_of_a_setting_counts_after_loading(kind: Kind, tmp_path: Path) -> None:
    agent(kind, gamma=0.7, verbose=2).save(tmp_path / "agent")
    model = kind.load(tmp_path / "agent", custom_objects={"learning_rate": 2e-5})
    assert (model.verbose, model.gamma, model.lr_schedule(1.0)) == (2, 0.7, 2e-5)
    if kind is GTrXLDQN:
        assert model.target_update_interval == 3
    with pytest.raises(ConfigError, match="dummy"):
        kind.load(tmp_path / "agent", custom_objects={"dummy": 1.0})
    for words in ({"exclude": ["verbose"]}, {"include": ["verbose"]}):
        with pytest.raises(ConfigError, match="always complete"):
            model.save(tmp_path / "agent", **words)


@every_agent
def test_schedules_give_plain_floats_before_and_after_saving(kind: Kind, tmp_path: Path) -> None:
    def rate(progress: float) -> np.floating[Any]:
        return progress * np.float64(1e-3)

    model = agent(kind, learning_rate=rate)
    model.save(tmp_path / "function")
    agent(kind, learning_rate={"start": 1e-3, "end": 0.0}).save(tmp_path / "line")
    for each in (model, kind.load(tmp_path / "line"), kind.load(tmp_path / "function")):
        assert type(each.lr_schedule(1.0)) is float
        assert (each.lr_schedule(1.0), each.lr_schedule(0.5)) == pytest.approx((1e-3, 5e-4))
    if kind is GTrXLPPO:
        clip_range = kind.load(tmp_path / "line").clip_range
        assert isinstance(clip_range, FloatSchedule) and isinstance(clip_range.value_schedule, ConstantSchedule)
        assert clip_range.value_schedule.val == 0.2


def test_open_files_take_and_give_agents_and_stay_open(trained: Any) -> None:
    makers: list[Callable[[], Any]] = [io.BytesIO, tempfile.TemporaryFile]
    for make in makers:
        with make() as file:
            trained.save(file)
            model = type(trained).load(file)  # wherever the file stands
            other = deepcopy_of(model)
            other.set_parameters(file)
            assert not file.closed
        assert same(weights(model), weights(trained)) and same(weights(other), weights(trained))
    with pytest.raises(CheckpointError, match="the open file"):
        type(trained).load(io.BytesIO(b"no checkpoint"))


def test_an_open_file_takes_and_gives_a_replay() -> None:
    model, other = (agent(GTrXLDQN).learn(steps) for steps in (40, 8))
    with tempfile.TemporaryFile() as file:
        model.save_replay_buffer(file)
        other.load_replay_buffer(file)
        assert not file.closed
    whole = 40 - 1  # the newest step has no next observation yet, and goes with its episode
    assert torch.equal(*(each.replay_buffer.rewards[:, :whole] for each in (other, model)))


def test_learning_again_and_again_from_one_replay_warns_of_nothing() -> None:
    model = agent(GTrXLDQN)  # warnings are errors
    model.learn(40).learn(40, reset_num_timesteps=False).learn(40)
    assert len(model.replay_buffer) > 0
