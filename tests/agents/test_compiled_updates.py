"""Updates by machine code learn what updates in eager mode learn."""

from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
import torch
from functorch.compile import nop
from stable_baselines3.common.env_util import make_vec_env

from rltransformers.agents import GTrXLDQN, GTrXLPPO, GTrXLSAC, GTrXLVMPO
from rltransformers.backbone.presets import PRESETS
from rltransformers.training import update

IN_EAGER_MODE = {"compressive", "csalr", "nystromformer", "reversible"}
"""Presets whose segments need numbers of their tensors: how many blocks are full, which tokens are chosen."""
ROUNDING = 1e-5
"""Of weights in float32: a step of Adam moves each by 5e-4, also where its gradient is little more than rounding."""
OTHER_SIZES: dict[str, dict[str, Any]] = {
    "blockwise": {"heads": 4},
    "multi_scale": {"heads": 4},
    "decision_transformer": {"dropout": 0.0},
}


@pytest.fixture
def said(monkeypatch: pytest.MonkeyPatch) -> list[str]:
    """Lines about compilations."""
    lines: list[str] = []
    monkeypatch.setattr(update, "announce", lines.append)
    return lines


def learned(kind: Any, updates: str, environment: str = "CartPole-v1", **settings: Any) -> Any:
    """An agent after two updates of four environments."""
    values: dict[str, Any] = {"n_steps": 8, "seed": 0, "device": "cpu", "n_epochs": 2}
    agent = kind("GTrXLPolicy", make_vec_env(environment, 4, seed=0), updates=updates, **(values | settings))
    agent.learn(2 * 4 * 8)
    return agent


def replayed(kind: Any, updates: str, environment: str, losses: dict[str, Any]) -> Any:
    """An agent after 16 updates from the replay of two environments, the first ones with little context."""
    backbone = {"preset": "gtrxl", "width": 16, "layers": 2, "heads": 2, "memory": 8, "losses": losses}
    values: dict[str, Any] = {"learning_starts": 16, "segment_length": 4, "batch_size": 4, "seed": 0, "device": "cpu"}
    (policy,), env = kind.policy_aliases, make_vec_env(environment, 2, seed=0)
    agent = kind(policy, env, updates=updates, policy_kwargs={"backbone": backbone}, **values)
    agent.learn(16 + 2 * 4 * 16)
    return agent


def assert_same_weights(one: Any, other: Any, allowed: float) -> None:
    pairs = zip(one.policy.state_dict().items(), other.policy.state_dict().values(), strict=True)
    for (name, expected), got in pairs:
        torch.testing.assert_close(got, expected, rtol=0, atol=allowed, msg=name)


@pytest.mark.slow
@pytest.mark.parametrize("preset", sorted(PRESETS))
def test_what_is_traced_is_the_evaluation(preset: str, said: list[str], monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("torch._inductor.compile_fx.compile_fx_inner", nop)  # the graph, operation by operation
    sizes = {"preset": preset, "width": 16, "heads": 2} | OTHER_SIZES.get(preset, {})
    settings: dict[str, Any] = {"policy_kwargs": {"backbone": sizes}, "target_kl": None}
    if preset in ("linear_transformer", "fast_weight"):
        pytest.skip("operation by operation, torch 2.13 cannot run the graphs of these two; machine code can")
    eager, compiled = (learned(GTrXLPPO, updates, **settings) for updates in ("eager", "compiled"))
    assert bool([line for line in said if "eager" in line]) == (preset in IN_EAGER_MODE)
    assert_same_weights(eager, compiled, ROUNDING)


@pytest.mark.parametrize(
    ("kind", "settings"),
    [
        (GTrXLPPO, {"gradient_window": 4, "popart": 0.01, "environment": "Pendulum-v1"}),
        (GTrXLVMPO, {"policy_kwargs": {"backbone": {"preset": "linear_transformer", "width": 16, "heads": 2}}}),
    ],
)
def test_machine_code_learns_the_same(kind: Any, settings: dict[str, Any], said: list[str], tmp_path: Path) -> None:
    small = {"policy_kwargs": {"backbone": {"preset": "gtrxl", "width": 16, "layers": 1, "heads": 2, "memory": 8}}}
    eager, compiled = (learned(kind, updates, **(small | settings)) for updates in ("eager", "compiled"))
    assert [line.split(" ", 2)[:2] for line in said] == [["compiling", "the"], ["compiled", "the"]]
    assert_same_weights(eager, compiled, ROUNDING)
    compiled.save(tmp_path / "agent.zip")
    loaded = kind.load(tmp_path / "agent.zip", updates="eager")
    assert loaded.updates == "eager" and kind.load(tmp_path / "agent.zip").updates == "compiled"
    assert_same_weights(loaded, compiled, 0.0)


def test_numbers_of_the_program_follow_the_run_and_the_settings(
    said: list[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    """The losses of inner layers end, each in its time; another window for the gradient is another program."""
    monkeypatch.setattr("torch._inductor.compile_fx.compile_fx_inner", nop)

    def trained(updates: Any) -> Any:
        backbone = {"preset": "gtrxl", "width": 16, "layers": 2, "heads": 2, "memory": 8, "losses": {"al_rfou": 1.0}}
        environment = make_vec_env("CartPole-v1", 4, seed=0)
        settings: dict[str, Any] = {"n_steps": 8, "n_epochs": 1, "target_kl": None, "seed": 0, "device": "cpu"}
        policy = {"backbone": backbone}
        agent = GTrXLPPO("GTrXLPolicy", environment, updates=updates, popart=0.01, policy_kwargs=policy, **settings)
        agent.learn(8 * 4 * 8)
        agent.gradient_window = 4
        return agent.learn(2 * 4 * 8, reset_num_timesteps=False)

    eager, compiled = (trained(updates) for updates in ("eager", "compiled"))
    assert said and not [line for line in said if "eager" in line]
    assert_same_weights(eager, compiled, ROUNDING)


SMALL = {"preset": "gtrxl", "width": 16, "layers": 1, "heads": 2, "memory": 8}


@pytest.fixture
def doubles() -> Iterator[None]:
    """Networks that are made in the test compute in float64."""
    before = torch.get_default_dtype()
    torch.set_default_dtype(torch.float64)
    yield
    torch.set_default_dtype(before)


@pytest.mark.slow
@pytest.mark.usefixtures("doubles")
def test_machine_code_learns_the_same_in_float64(said: list[str]) -> None:
    eager, compiled = (
        learned(GTrXLPPO, updates, policy_kwargs={"backbone": SMALL}) for updates in ("eager", "compiled")
    )
    assert said and not [line for line in said if "eager" in line]
    assert compiled.policy.value_net.weight.dtype == torch.float64
    assert_same_weights(eager, compiled, 1e-13)  # outputs that are rounded to float32 move weights by 1e-11


def test_bfloat16_is_of_updates_alone(said: list[str], monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("torch._inductor.compile_fx.compile_fx_inner", nop)
    types = ("float32", "bfloat16")
    wide, eager = (learned(GTrXLPPO, "eager", policy_kwargs={"backbone": SMALL | {"compute_dtype": t}}) for t in types)
    compiled = learned(GTrXLPPO, "compiled", policy_kwargs={"backbone": SMALL | {"compute_dtype": "bfloat16"}})
    assert said and not [line for line in said if "eager" in line]
    assert_same_weights(eager, compiled, ROUNDING)
    assert not torch.equal(wide.policy.value_net.weight, eager.policy.value_net.weight)
    for agent in (eager, compiled):
        rings = [value for name, value in agent.carry.acting.actor.tensors.items() if "ring" in name]
        segment = agent.carry.segment
        assert rings and {each.dtype for each in (*rings, segment.log_probs, segment.values)} == {torch.float32}
        assert agent.logger.name_to_value["train/first_ratio_error"] < 1e-3


@pytest.mark.parametrize(
    ("kind", "environment", "losses"),
    [
        (GTrXLDQN, "CartPole-v1", {"al_rfou": {"weight": 0.5, "future": 0.5}}),
        (GTrXLSAC, "Pendulum-v1", {}),
    ],
)
def test_machine_code_learns_the_same_from_replay(
    kind: Any, environment: str, losses: dict[str, Any], said: list[str]
) -> None:
    eager, compiled = (replayed(kind, updates, environment, losses) for updates in ("eager", "compiled"))
    assert said and not [line for line in said if "eager" in line]
    assert_same_weights(eager, compiled, ROUNDING)
