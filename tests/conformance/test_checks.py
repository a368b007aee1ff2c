"""Every check passes a policy that conforms, and fails one that does not by a single slip."""

import math
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest
import torch
import yaml
from torch import Tensor

from rltransformers.conformance import CHECKS, Traits, check_one, check_policy
from rltransformers.conformance.comparing import compared
from rltransformers.core.errors import ConfigError
from tests.conformance.faulty import (
    FAULTS,
    MEMORY,
    Conforming,
    CountsFromTheWindow,
    KeepsStaleKeys,
    Memoryless,
    StaysAtTheLastPosition,
    Windowed,
)
from tests.docs.blocks import ROOT, blocks_of


def test_a_conforming_policy_passes_every_check() -> None:
    results = check_policy(Conforming())
    assert [result.check for result in results] == list(CHECKS)
    assert [result.status for result in results] == ["passed"] * len(CHECKS), results
    assert all(result.figure is not None and result.figure <= 1e-10 for result in results)  # float64


@pytest.mark.parametrize(
    ("faulty", "check"), [(faulty, check) for faulty, checks in FAULTS.items() for check in checks]
)
def test_every_slip_is_seen(faulty: type[Conforming], check: str) -> None:
    result = check_one(faulty(), check)
    assert result.failed, result
    assert result.figure is not None and result.figure > 1e-3  # far beyond rounding
    assert result.note


def test_every_check_is_seen_to_fail() -> None:
    assert {check for checks in FAULTS.values() for check in checks} == set(CHECKS)


def test_stale_keys_show_in_one_check_alone() -> None:
    failed = [result.check for result in check_policy(KeepsStaleKeys()) if result.failed]
    assert failed == ["changed weights take effect"]


@pytest.mark.slow
@pytest.mark.parametrize(("kind", "failed"), [("Resetting", 0), ("Recurrent", 2)])
def test_the_test_file_of_the_page_runs_as_its_workflow_runs_it(tmp_path: Path, kind: str, failed: int) -> None:
    blocks = blocks_of((ROOT / "docs" / "conformance.md").read_text(), "conformance.md")
    (place,) = (i for i, block in enumerate(blocks) if "def test_acting" in block.text)
    policies = [block.text for block in blocks[:place] if block.language == "python"]
    (tmp_path / "my_policy.py").write_text("\n".join(policies))
    (tmp_path / "test_conformance.py").write_text(blocks[place].text.replace("Resetting", kind))
    workflow = yaml.safe_load(blocks[place + 1].text)
    commands = [step["run"] for step in workflow["jobs"]["conformance"]["steps"] if "run" in step]
    assert commands[-2:] == ["pip install rltransformers pytest", "pytest test_conformance.py"]
    command = [sys.executable, "-m", *commands[-1].split()]
    done = subprocess.run(command, cwd=tmp_path, capture_output=True, text=True, check=False)
    assert done.returncode == bool(failed), done.stdout
    assert (f"{failed} failed" in done.stdout) == bool(failed) and " passed" in done.stdout


def test_a_policy_without_memory_has_nothing_to_check() -> None:
    results = check_policy(Memoryless())
    assert {result.status for result in results} == {"does not apply"}
    assert all("there is no memory" in result.note for result in results)


class Delayed(Conforming):
    """Acts on the input of 8 steps ago, learns on that of 7 steps ago; what lies before the episode is 0."""

    traits = Traits(full=8, resets_inside=False)

    def __init__(self, values: Any = None, dtype: torch.dtype = torch.float32) -> None:
        self.out, self.values, self.dtype = torch.ones(1), values or (lambda x: x), dtype
        self.lag = 7

    def weights(self) -> list[Tensor]:
        return [self.out]

    def reset(self, batch: int) -> Any:
        return torch.zeros(batch, 8, 2)

    def step(self, inputs: Tensor, first: Tensor, state: Any) -> Any:
        state = state * ~first[:, None, None]
        return self.values(state[:, 0]).to(self.dtype), torch.cat([state[:, 1:], inputs[:, None]], 1)

    def segment(self, inputs: Tensor, first: Tensor, state: Any) -> Tensor:
        both = torch.cat([state, inputs], 1)
        seen = both[:, 8 - self.lag : both.shape[1] - self.lag]
        return self.values(seen).to(self.dtype)


def test_a_memory_that_reaches_far_is_found() -> None:
    assert check_one(Delayed(), "step = segment").failed
    exact = Delayed()
    exact.lag = 8
    assert check_one(exact, "step = segment").status == "passed"


def test_masked_logits_are_compared_and_rounded_numbers_refused() -> None:
    for lag, status in ((8, "passed"), (7, "failed")):
        policy = Delayed(lambda x: torch.where(x > 0, x, -torch.inf))
        policy.lag = lag
        assert check_one(policy, "step = segment").status == status
    with pytest.raises(ConfigError, match=r"outputs must be float32 or float64, got torch\.bfloat16"):
        check_one(Delayed(dtype=torch.bfloat16), "step = segment")


def test_what_is_no_policy_is_refused_by_name() -> None:
    class Weightless(Conforming):
        def weights(self) -> list[Tensor]:
            return []

    class Middle(Conforming):
        padding = "middle"

    class Wide(Conforming):
        inputs: Any = "4"

    for policy, message in (
        (Conforming, "Conforming is a class; give an instance"),
        (object(), "object lacks reset, step, segment, weights, inputs, traits"),
        (Weightless(), r"weights\(\) is empty"),
        (Middle(), "padding must be 'left' or 'right', got 'middle'"),
        (Wide(), "inputs must be a whole number"),
    ):
        with pytest.raises(ConfigError, match=message):
            check_policy(policy)  # type: ignore[arg-type]  # as mistaken users do
    numbers: list[dict[str, Any]] = [{"full": -3}, {"full": 4, "longest": 1}, {"full": 4, "longest": 0}]
    for wrong in numbers:
        with pytest.raises(ConfigError, match=r"traits\.(full|longest) must be"):
            Traits(**wrong)


def test_windows_are_compared_step_by_step_until_both_sides_refuse() -> None:
    result = check_one(Windowed(), "positions are contiguous")
    assert result.status == "passed"
    assert "from step 9 on it refuses: IndexError" in result.note


def test_acting_beyond_a_table_that_training_refuses_to_leave_fails() -> None:
    result = check_one(StaysAtTheLastPosition(), "positions are contiguous")
    assert result.failed and result.figure == math.inf
    assert "step 9: acting goes on where the training pass refuses: IndexError" in result.note


def test_a_difference_before_a_refusal_is_told_first() -> None:
    result = check_one(CountsFromTheWindow(), "positions are contiguous")
    assert result.failed and result.figure is not None and math.isfinite(result.figure)
    assert check_one(CountsFromTheWindow(), "step = segment").status == "passed"  # one window shows nothing of it


def test_what_a_policy_does_not_offer_does_not_apply() -> None:
    statuses = {result.check: result for result in check_policy(Windowed())}
    assert statuses["padding does not matter"].note == "its segments hold no padding"
    assert statuses["changed weights take effect"].note == "nothing is cached"
    assert statuses["first ratio is 1"].status == "does not apply"


def test_a_cache_that_the_caller_holds_is_told_with_what_keeping_it_costs() -> None:
    policy: Any = KeepsStaleKeys()
    policy.traits = Traits(full=MEMORY, cache="keys", caller_holds_cache=True)
    result = check_one(policy, "changed weights take effect")
    assert result.status == "does not apply"
    assert "the caller holds keys: make them anew when weights change; kept, outputs are off by" in result.note


def test_exemptions_have_a_reason_and_the_name_of_a_check() -> None:
    policy: Any = Conforming()
    policy.traits = Traits(full=MEMORY, exempt={"first ratio is 1": "it learns nothing"})
    assert check_one(policy, "first ratio is 1").note == "it learns nothing"
    policy.traits = Traits(full=MEMORY, exempt={"first ratio": "it learns nothing"})
    with pytest.raises(ConfigError, match="no check 'first ratio'; did you mean 'first ratio is 1'"):
        check_policy(policy)


def test_weights_are_what_they_were_after_the_checks() -> None:
    policy = Conforming()
    before = [weight.clone() for weight in policy.weights()]
    check_policy(policy)
    assert all(torch.equal(weight, held) for weight, held in zip(policy.weights(), before, strict=True))


@pytest.mark.parametrize(
    ("found", "difference", "place"),
    [
        (torch.tensor([[1.0, 2.0], [3.0, 4.5]]), 0.5, "row 1, step 1"),
        (torch.tensor([[1.0, math.nan], [3.0, 4.0]]), math.inf, "row 0, step 1"),
        (torch.tensor([[1.0, 2.0, 3.0]]), math.inf, r"shapes (1, 3) and (2, 2)"),
    ],
)
def test_differences_are_found_where_they_are(found: Tensor, difference: float, place: str) -> None:
    result = compared(found, torch.tensor([[1.0, 2.0], [3.0, 4.0]]))
    assert (result.difference, result.place) == (difference, place)
    assert not result.passes
