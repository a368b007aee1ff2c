"""Agents with Muon: stopped runs go on as if they had not stopped, machine code learns the same, and they learn."""

from contextlib import suppress
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from functorch.compile import nop

from rltransformers.agents import DecisionTransformer, GTrXLDQN, GTrXLPPO, GTrXLSAC, GTrXLVMPO
from rltransformers.core.errors import CheckpointError, ConfigError
from rltransformers.envs import make_vec_env
from tests.agents.test_compiled_updates import assert_same_weights, learned
from tests.agents.test_decision_transformer import Losses, make, record
from tests.agents.test_gtrxl_ppo_checkpoint import SaveAndStop, assert_equal, everything

BACKBONE = {"preset": "gtrxl", "width": 8, "layers": 1, "heads": 2, "memory": 4}
MUON = {"backbone": BACKBONE, "optimizer": "muon"}
REPLAY: dict[str, Any] = {"learning_starts": 16, "segment_length": 4, "batch_size": 4, "train_freq": 4}
AGENTS: dict[type[Any], dict[str, Any]] = {
    GTrXLPPO: {"n_steps": 16, "batch_size": 32, "n_epochs": 2},
    GTrXLVMPO: {"n_steps": 16, "batch_size": 32},
    GTrXLDQN: REPLAY,
    GTrXLSAC: REPLAY,
}
STEPS = 64


def agent(kind: type[Any], **policy: Any) -> Any:
    env = make_vec_env("rltransformers/CueRecall-v0", 2, seed=0, env_kwargs={"delay": 3})
    (name,), line = kind.policy_aliases, {"start": 1e-2, "end": 1e-3}
    return kind(name, env, learning_rate=line, seed=0, device="cpu", policy_kwargs=MUON | policy, **AGENTS[kind])


@pytest.mark.parametrize("kind", AGENTS)
def test_stopping_and_resuming_is_the_same_run_as_not_stopping(kind: type[Any], tmp_path: Path) -> None:
    """Momenta of Muon, moments of AdamW, and a learning rate that falls."""
    straight, stopped = agent(kind).learn(2 * STEPS), agent(kind)
    with suppress(KeyboardInterrupt):
        stopped.learn(2 * STEPS, callback=SaveAndStop(STEPS, tmp_path / "half"))
    torch.rand(3)
    resumed = kind.load(tmp_path / "half", env=stopped.get_env(), device="cpu", force_reset=False)
    momenta = [each["momentum_buffer"] for each in resumed.policy.optimizer.state.values() if "momentum_buffer" in each]
    assert len(momenta) > 5 and all(bool(each.any()) for each in momenta[:3])
    resumed.learn(STEPS, reset_num_timesteps=False)
    assert resumed.num_timesteps == straight.num_timesteps == 2 * STEPS
    assert_equal(everything(resumed), everything(straight))


def test_a_decision_transformer_that_was_stopped_goes_on_as_if_it_had_not(tmp_path: Path) -> None:
    backbone = {"width": 8, "layers": 1, "heads": 2}
    data, settings = record(), {"policy_kwargs": {"backbone": backbone, "optimizer": "muon"}}
    straight = make(data, **settings).learn(9)
    make(data, **settings).learn(4).save(tmp_path / "half")
    resumed = DecisionTransformer.load(tmp_path / "half", data, device="cpu").learn(5)
    assert resumed.settings.optimizer == "muon"
    assert_equal(resumed.get_parameters(), straight.get_parameters())
    with pytest.raises(ConfigError, match="optimizer belongs to what the file has learned"):
        DecisionTransformer.load(tmp_path / "half", optimizer="adam")


def test_a_file_of_another_optimizer_is_refused_and_changes_nothing(tmp_path: Path) -> None:
    agent(GTrXLPPO).learn(STEPS).save(tmp_path / "muon")
    with pytest.raises(ConfigError, match="its optimizer cannot be replaced on load"):
        GTrXLPPO.load(tmp_path / "muon", policy_kwargs={"backbone": BACKBONE})
    other = agent(GTrXLPPO, optimizer="adam")
    before = other.policy.state_dict()["value_net.weight"].clone()
    with pytest.raises((ConfigError, CheckpointError), match="optimizer"):
        other.set_parameters(tmp_path / "muon")
    assert torch.equal(other.policy.state_dict()["value_net.weight"], before)
    same = agent(GTrXLPPO)
    same.set_parameters(tmp_path / "muon")
    assert len(same.policy.optimizer.state) == len(list(same.policy.parameters()))


def test_compiled_updates_learn_the_same(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("torch._inductor.compile_fx.compile_fx_inner", nop)  # the graph, operation by operation
    kwargs: dict[str, Any] = {"policy_kwargs": {"backbone": BACKBONE | {"width": 16}, "optimizer": "muon"}}
    eager, compiled = (learned(GTrXLPPO, updates, **kwargs) for updates in ("eager", "compiled"))
    # Newton-Schulz in bfloat16 (2^-8) makes of other roundings of a gradient another step of 3e-4 times 0.2 sqrt(32).
    assert_same_weights(eager, compiled, 1e-3)


@pytest.mark.slow
def test_a_decision_transformer_learns_a_function_of_its_observation() -> None:
    observations = np.random.default_rng(0).uniform(-1, 1, (40, 9, 1)).astype(np.float32)
    ends, ones = np.arange(8) == 7, np.ones(8)
    episodes = [
        {"observations": o, "actions": 0.9 * o[:-1], "rewards": ones, "terminations": ends, "truncations": ends & False}
        for o in observations
    ]
    backbone = {"width": 16, "layers": 1, "heads": 1, "dropout": 0.0}
    losses, kwargs = Losses(), {"backbone": backbone, "optimizer": "muon"}
    make(episodes, learning_rate=5e-3, policy_kwargs=kwargs).learn(250, callback=losses)
    assert np.mean(losses.values[-20:]) < 0.02  # predicting the mean gives 0.27


@pytest.mark.slow
def test_an_agent_remembers_a_cue() -> None:
    env = make_vec_env("rltransformers/CueRecall-v0", 16, seed=0, env_kwargs={"delay": 2})
    settings: dict[str, Any] = {"n_steps": 32, "learning_rate": 3e-3, "scale_rewards": False, "seed": 0}
    model = GTrXLPPO("GTrXLPolicy", env, policy_kwargs=MUON, device="cpu", **settings).learn(10_000)
    assert np.mean([each["r"] for each in model.ep_info_buffer or ()]) > 0.9  # chance is 0.5
