"""Policies of GTrXLDQN as machine code and in files, which know no target network."""

from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from stable_baselines3.common.vec_env import VecNormalize

from rltransformers.agents import GTrXLDQN
from rltransformers.policies import steps
from tests.agents.replayed import agent, strolls
from tests.agents.test_export import assert_file_equals_eager
from tests.export.stand_in import StandIn


def trained(**settings: Any) -> GTrXLDQN:
    return agent(VecNormalize(strolls()), policy={"previous_action": True, "epsilon": 0.4}, **settings).learn(96)


@pytest.mark.slow
def test_files_equal_eager_acting_and_hold_no_target_network(tmp_path: Path) -> None:
    model = trained(backbone={"layers": 1})
    for name, tolerance in (("policy.pt2", 1e-6), ("policy.onnx", 1e-5)):
        model.export(tmp_path / name)
        assert_file_equals_eager(tmp_path / name, model, 300, 3, tolerance)
    held = torch.export.load(tmp_path / "policy.pt2")
    assert not any("target" in name for name in held.state_dict)
    assert b"GTrXLDQN" in (tmp_path / "policy.pt2").read_bytes()


def test_compiled_acting_is_eager_acting(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(steps, "CompiledStep", StandIn)
    eager, compiled = trained(), trained(acting="compiled")
    assert isinstance(compiled.policy.machine_code._compiled, StandIn)  # type: ignore[union-attr]
    for a, b in zip(eager.policy.parameters(), compiled.policy.parameters(), strict=True):
        assert torch.equal(a, b)
    observation = np.array([[0.1, 0.2, -0.4]], np.float32)
    states: list[Any] = [None, None]
    for step in range(9):
        actions = []
        for i, model in enumerate((eager, compiled)):
            action, states[i] = model.predict(observation * step, states[i], deterministic=step % 2 == 0)
            actions.append(int(action[0]))
        assert actions[0] == actions[1]
