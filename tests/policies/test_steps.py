"""Acting by machine code: left behind by copies, and eager where it cannot be made."""

import copy
import pickle
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from gymnasium.spaces import Box, Discrete

from rltransformers.agents import DecisionTransformer, GTrXLPPO, GTrXLSAC, GTrXLVMPO
from rltransformers.data import load_trajectories
from rltransformers.export.cache import VARIABLE

BACKBONE = {"width": 8, "layers": 1, "heads": 2}


def online(acting: str, kind: Any = GTrXLPPO, **settings: Any) -> Any:
    policy = {"backbone": {"memory": 4, **BACKBONE}}
    values: dict[str, Any] = {"n_steps": 32, "seed": 0, "device": "cpu", "acting": acting, "policy_kwargs": policy}
    return kind("GTrXLPolicy", "CartPole-v1", **(values | settings))


def test_without_a_compiler_acting_goes_on_in_eager_mode_and_says_so_once(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.setenv(VARIABLE, str(tmp_path))
    monkeypatch.setenv("CXX", str(tmp_path / "no-such-compiler"))
    found, expected = online("compiled").learn(64), online("eager").learn(64)
    (line,) = capsys.readouterr().err.splitlines()
    assert line.startswith("acting goes on in eager mode: no C++ compiler:")
    for one, other in zip(found.policy.parameters(), expected.policy.parameters(), strict=True):
        assert torch.equal(one, other)


@pytest.mark.parametrize("copied", [copy.deepcopy, lambda agent: pickle.loads(pickle.dumps(agent))])
@pytest.mark.parametrize("kind", [GTrXLPPO, GTrXLVMPO])
def test_copies_of_an_agent_have_machine_code_of_their_own(kind: Any, copied: Any) -> None:
    model = online("compiled", kind, updates="compiled")
    other = copied(model)
    for one in (other.policy, other._actor):
        assert one.machine_code is not None
    assert other._program._module is other.policy and other._actor.machine_code.step.policy is other._actor
    assert copied(online("eager", kind)).policy.machine_code is None


@pytest.mark.parametrize("updates", ["eager", "compiled"])
@pytest.mark.parametrize("copied", [copy.deepcopy, lambda agent: pickle.loads(pickle.dumps(agent))])
def test_copies_of_an_agent_with_a_replay_learn_from_their_own_weights(updates: str, copied: Any) -> None:
    model = GTrXLSAC("GTrXLSACPolicy", "Pendulum-v1", updates=updates, policy_kwargs={"backbone": BACKBONE})  # type: ignore[arg-type]
    other = copied(model)
    evaluate = other._evaluate_trunk._function if updates == "compiled" else other._evaluate_trunk
    assert evaluate.func.__self__ is other.policy


def test_copies_of_a_policy_leave_the_machine_code_behind() -> None:
    model = online("compiled")
    assert model.policy.machine_code is not None
    assert copy.deepcopy(model.policy).machine_code is None
    assert pickle.loads(pickle.dumps(model.policy.machine_code)) is None


def test_copies_of_a_decision_transformer_have_machine_code_of_their_own() -> None:
    data = [{"observations": np.zeros((3, 2), np.float32), "actions": np.zeros(2, np.int64), "rewards": np.ones(2)}]
    spaces: dict[str, Any] = {"observation_space": Box(-1, 1, (2,)), "action_space": Discrete(2)}
    episodes = load_trajectories([{**each, "terminations": [False, True]} for each in data], **spaces)
    policy = {"backbone": BACKBONE}
    model = DecisionTransformer("DTPolicy", episodes, acting="compiled", policy_kwargs=policy, device="cpu")
    other = copy.deepcopy(model)
    assert other.policy.machine_code is not None and other.policy.machine_code is not model.policy.machine_code
