"""Acting by machine code: announced with what it costs, left behind by copies, and eager where it cannot be made."""

import copy
import pickle
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch

from rltransformers.agents import GTrXLPPO
from rltransformers.export.cache import VARIABLE
from rltransformers.export.compiled import COMPILE_SECONDS
from rltransformers.policies import steps
from rltransformers.policies.steps import SPEED_UP, steps_until_paid

BACKBONE = {"width": 8, "layers": 1, "heads": 2}


def online(acting: str, **settings: Any) -> GTrXLPPO:
    policy = {"backbone": {"memory": 4, **BACKBONE}}
    values: dict[str, Any] = {"n_steps": 32, "seed": 0, "device": "cpu", "acting": acting, "policy_kwargs": policy}
    return GTrXLPPO("GTrXLPolicy", "CartPole-v1", **(values | settings))


@pytest.mark.parametrize("eager_seconds", [1e-4, 7e-4, 0.3])
@pytest.mark.parametrize("rows", [1, 8])
def test_after_the_announced_number_of_steps_compiling_has_paid(eager_seconds: float, rows: int) -> None:
    calls = steps_until_paid(eager_seconds, rows) / rows
    saved = calls * eager_seconds * (1 - 1 / SPEED_UP)
    assert saved == pytest.approx(COMPILE_SECONDS, rel=0.34)  # one digit: 1.5 is written as 1 or 2


def test_only_the_first_line_says_when_it_pays(
    monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    class Compiled:
        def __init__(self, *_: Any, notify: Any, **__: Any) -> None:
            notify("begun")
            notify("done")

        def step(self, *_: Any) -> None:
            return None

    monkeypatch.setattr(steps, "CompiledStep", Compiled)
    online("compiled").predict(np.zeros(4, np.float32))
    begun, done = capsys.readouterr().err.splitlines()
    assert begun.startswith("begun; pays from about ") and begun.endswith("00 environment steps on") and done == "done"


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
