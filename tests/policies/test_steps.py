"""Acting by machine code: left behind by copies, and eager where it cannot be made."""

import copy
import pickle
from pathlib import Path
from typing import Any

import pytest
import torch

from rltransformers.agents import GTrXLPPO
from rltransformers.export.cache import VARIABLE

BACKBONE = {"width": 8, "layers": 1, "heads": 2}


def online(acting: str, **settings: Any) -> GTrXLPPO:
    policy = {"backbone": {"memory": 4, **BACKBONE}}
    values: dict[str, Any] = {"n_steps": 32, "seed": 0, "device": "cpu", "acting": acting, "policy_kwargs": policy}
    return GTrXLPPO("GTrXLPolicy", "CartPole-v1", **(values | settings))


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


def test_copies_of_a_policy_leave_the_machine_code_behind() -> None:
    model = online("compiled")
    assert model.policy.machine_code is not None
    assert copy.deepcopy(model.policy).machine_code is None
    assert pickle.loads(pickle.dumps(model.policy.machine_code)) is None
