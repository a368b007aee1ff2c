"""The checks. Each compares two ways to compute the same outputs, and says how far they are apart, and where.

Steps are taken one at a time with ``step`` from a fresh state; B = 3 rows hold different numbers.
"""

import math
import tempfile
from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import Literal

import torch
from torch import Tensor

from rltransformers.conformance import protocol
from rltransformers.conformance.comparing import (
    BEFORE,
    ROWS,
    Found,
    Inapplicable,
    attempted,
    compared,
    first_steps,
    histories,
    numbers,
    row_by_row,
    stepped,
    steps_of,
    tolerance_of,
    until_refused,
    worst,
)
from rltransformers.conformance.protocol import PolicyWithMemory, Traits
from rltransformers.core.errors import ConfigError, did_you_mean
from rltransformers.core.ranges import Count, check, shown

Status = Literal["passed", "failed", "does not apply"]
Check = Callable[[PolicyWithMemory], Found]
LOUD = 1000.0  # how much larger numbers are that nobody may see: a leak that is a thousandth of its share shows as well
CLEARLY = 10.0  # something has an effect when outputs change by more than so many times their tolerance


@dataclass(frozen=True)
class Result:
    """Result of a check.

    Attributes:
        figure: the largest difference between two outputs that should be equal, infinite where one was refused; None
            where nothing was compared.
        tolerance: the largest difference that passes.
        note: where the difference is, or why the check does not apply.
    """

    check: str
    status: Status
    figure: float | None = None
    tolerance: float | None = None
    note: str = ""

    @property
    def failed(self) -> bool:
        return self.status == "failed"

    def __str__(self) -> str:
        figure = "" if self.figure is None else f" {self.figure:.1e}"
        return f"{self.check}: {self.status}{figure}{f' ({self.note})' if self.note else ''}"


def step_equals_segment(policy: PolicyWithMemory) -> Found:
    """Acting one step at a time computes what the training pass computes on the whole segment.

    Both compute for a row what they compute for it without the other rows.
    """
    steps, first = steps_of(policy), first_steps(ROWS, steps_of(policy))
    if policy.traits.resets_inside:
        first = first_steps(ROWS, steps, (5,), (2, 9)) if steps > 9 else first_steps(ROWS, steps, (steps // 2,))
    inputs = numbers(policy, steps)

    def acted(inputs: Tensor, first: Tensor) -> Tensor:
        return stepped(policy, inputs, first)[0]

    def trained(inputs: Tensor, first: Tensor) -> Tensor:
        return policy.segment(inputs, first, policy.reset(len(inputs)))

    found, expected = acted(inputs, first), trained(inputs, first)
    findings = [compared(found, expected)]
    for way, together, compute in (("acting", found, acted), ("training", expected, trained)):
        place = f"{way}: row {{row}}, step {{step}}, beside other rows and without them"
        findings.append(compared(together, row_by_row(compute, inputs, first), place))
    later = first.clone()
    later[:, 0] = False
    for steps_before in histories(policy) if policy.traits.continues else ():
        before = numbers(policy, steps_before, seed=1)
        (_, state), (_, again) = stepped(policy, before), stepped(policy, before)
        found, _ = stepped(policy, inputs, later, state)
        place = f"row {{row}}, step {{step}} of a segment that follows {steps_before} steps"
        findings.append(compared(found, policy.segment(inputs, later, again), place))
    return worst(findings)


def reset_leaks_nothing(policy: PolicyWithMemory) -> Found:
    """An episode's outputs do not depend on the episode before it."""
    steps, longest = max(2, steps_of(policy) - BEFORE), policy.traits.longest or math.inf
    inputs, findings = numbers(policy, steps), []
    expected, _ = stepped(policy, inputs)
    for before in histories(policy):
        first = first_steps(ROWS, before + steps)
        first[:, before] = True
        for name, seed, size in (("a quiet", 1, 1.0), ("a loud", 2, LOUD)):
            both = torch.cat([size * numbers(policy, before, seed), inputs], 1)
            found, _ = stepped(policy, both, first)
            place = f"row {{row}}, step {{step}} of an episode after {name} one of {before} steps"
            findings.append(compared(found[:, before:], expected, f"acting: {place}"))
            if policy.traits.resets_inside and before + steps <= longest:
                alone = policy.segment(inputs, first_steps(ROWS, steps), policy.reset(ROWS))
                together = policy.segment(both, first, policy.reset(ROWS))[:, before:]
                findings.append(compared(together, alone, f"training: {place}"))
    return worst(findings)


def no_look_ahead(policy: PolicyWithMemory) -> Found:
    """The training pass sees nothing of later steps: changing them changes no output before."""
    steps, findings = steps_of(policy), []
    inputs, first = numbers(policy, steps), first_steps(ROWS, steps)
    expected = policy.segment(inputs, first, policy.reset(ROWS))
    for cut in sorted({1, steps // 2, steps - 1}):
        other = inputs.clone()
        other[:, cut:] = LOUD * numbers(policy, steps - cut, seed=1)
        found = policy.segment(other, first, policy.reset(ROWS))
        place = f"row {{row}}, step {{step}}, when steps from {cut} on change"
        findings.append(compared(found[:, :cut], expected[:, :cut], place))
    return worst(findings)


def padding_does_not_matter(policy: PolicyWithMemory) -> Found:
    """Neither the amount of padding, another one in every row, nor what stands in it changes an output."""
    if not isinstance(policy, protocol.Pads):
        raise Inapplicable("its segments hold no padding")
    if policy.padding not in ("left", "right"):
        raise ConfigError(f"padding must be 'left' or 'right', got {shown(policy.padding)}")
    steps, findings = steps_of(policy), []
    lengths, place = [max(steps // 2 - row, 1) for row in range(ROWS)], torch.arange(steps)
    real_steps = torch.tensor(lengths)[:, None]
    valid = place >= steps - real_steps if policy.padding == "left" else place < real_steps
    inputs = numbers(policy, steps)
    episodes = [inputs[row : row + 1, :length] for row, length in enumerate(lengths)]
    expected = [policy.segment(each, first_steps(1, each.shape[1]), policy.reset(1)) for each in episodes]
    for name, size in (("zeros", 0.0), ("numbers", 1.0), ("large numbers", LOUD)):
        filled = size * numbers(policy, steps, seed=1)
        filled[valid] = torch.cat(episodes, 1)[0]
        found = policy.pad(filled, valid)
        for row, outputs in enumerate(expected):
            where = f"row {row}, step {{step}} with {steps - lengths[row]} steps of padding that hold {name}"
            findings.append(compared(found[row : row + 1, valid[row]], outputs, where))
    return worst(findings)


def changed_weights_take_effect(policy: PolicyWithMemory) -> Found:
    """After the weights changed, the next step is what the training pass computes with them from what is remembered.

    Keys and values of old weights, which a training pass makes anew, show here.
    """
    traits = policy.traits
    if not traits.cache:
        raise Inapplicable("nothing is cached")
    steps = min(BEFORE, steps_of(policy) - 1)
    inputs, no = numbers(policy, steps + 1), torch.zeros(ROWS, dtype=torch.bool)
    (_, state), (_, remembered) = (stepped(policy, inputs[:, :steps]) for _ in range(2))
    before = stepped(policy, inputs)[0][:, steps]
    with other_weights(policy):
        if isinstance(policy, protocol.Renews):
            state = policy.renew(state)
        found = policy.step(inputs[:, steps], no, state)[0]
        if traits.continues:
            expected = policy.segment(inputs[:, steps:], no[:, None], remembered)[:, 0]
        else:
            expected = policy.segment(inputs, first_steps(ROWS, steps + 1), policy.reset(ROWS))[:, steps]
    result = compared(found[:, None], expected[:, None], "row {row}, the first step with new weights")
    if float((expected - before).abs().max()) <= CLEARLY * result.tolerance:
        raise Inapplicable("its outputs do not depend on its weights")
    if traits.caller_holds_cache and not result.passes:
        raise Inapplicable(
            f"the caller holds {traits.cache}: make them anew when weights change; kept, outputs are off by "
            f"{result.difference:.1e}"
        )
    return result


@contextmanager
def other_weights(policy: PolicyWithMemory) -> Iterator[None]:
    """Within the block the policy has other weights, written in place."""
    generator = torch.Generator().manual_seed(3)
    held = [(weight, weight.detach().clone()) for weight in policy.weights()]
    with torch.no_grad():
        for weight, _ in held:
            weight.add_(0.2 * torch.randn(weight.shape, generator=generator).to(weight))
        try:
            yield
        finally:
            for weight, value in held:
                weight.copy_(value)


def positions_are_contiguous(policy: PolicyWithMemory) -> Found:
    """A stream longer than any ring, window or table is computed as in training, or refused; never something else."""
    full = policy.traits.full
    if full is None:
        raise Inapplicable("nothing fills up: a recurrent state has no positions")
    inputs = numbers(policy, 3 * full + 5)
    acted, refusal = until_refused(policy, inputs)
    if isinstance(policy, protocol.Windows):
        found = against_windows(policy, inputs, acted)
    else:
        taken = acted.shape[1]
        expected, reason = attempted(policy.segment, inputs[:, :taken], first_steps(ROWS, taken), policy.reset(ROWS))
        if expected is None:
            return Found(float("inf"), 0.0, f"acting takes {taken} steps, which the training pass refuses: {reason}")
        found = compared(acted, expected, f"row {{row}}, step {{step}} of {taken}, full after {full}")
    return found._replace(remark=f"from step {acted.shape[1]} on it refuses: {refusal}") if refusal else found


def against_windows(policy: protocol.Windows, inputs: Tensor, acted: Tensor) -> Found:
    """Every step against the last output of the window that it looks at."""
    findings = [Found(0.0, 1.0, "")]
    for t in range(acted.shape[1]):
        start = t + 1 - policy.lookback(t)
        expected, reason = attempted(policy.window, inputs[:, start : t + 1], start)
        if expected is None:
            refused = Found(float("inf"), 0.0, f"step {t}: acting goes on where the training pass refuses: {reason}")
            return refused if worst(findings).passes else worst(findings)
        findings.append(compared(acted[:, t : t + 1], expected[:, -1:], f"row {{row}}, step {t}"))
    return worst(findings)


def first_ratio_is_one(policy: PolicyWithMemory) -> Found:
    """Log-probabilities of acting are those of the first training pass, before any update."""
    if not isinstance(policy, protocol.Ratios):
        raise Inapplicable("it learns without probabilities of acting")
    acted, trained = policy.log_probabilities()
    ratio = (trained - acted).exp()[None]
    found = compared(ratio, torch.ones_like(ratio), "step {step} of the rollout")
    return found._replace(tolerance=tolerance_of(acted))  # the error of a log-probability is that of the ratio


def saved_in_mid_episode(policy: PolicyWithMemory) -> Found:
    """A policy and its state, written in mid-episode and read again, act as if nothing had happened."""
    if not isinstance(policy, protocol.Saves):
        raise Inapplicable("it offers no way to store what it remembers in mid-episode")
    findings = []
    for before in histories(policy):
        inputs = numbers(policy, before + steps_of(policy))
        (_, state), (_, other) = (stepped(policy, inputs[:, :before]) for _ in range(2))
        expected, _ = stepped(policy, inputs[:, before:], state=state)
        with tempfile.TemporaryDirectory() as folder:
            policy.save(other, Path(folder))
            again, loaded = policy.load(Path(folder))
        found, _ = stepped(again, inputs[:, before:], state=loaded)
        findings.append(compared(found, expected, f"row {{row}}, step {{step}} after loading at step {before}"))
    return worst(findings)


def stopped_run_keeps_memory(policy: PolicyWithMemory) -> Found:
    """A training run that is saved and loaded in mid-episode goes on with the memory that it had."""
    if not isinstance(policy, protocol.Resumes):
        raise Inapplicable("its learning holds no memory between updates")
    with tempfile.TemporaryDirectory() as folder:
        found, expected = policy.resume(Path(folder))
    return compared(found[:, None], expected[:, None], "row {row}, the first step after loading")


def bootstraps_from_the_right_memory(policy: PolicyWithMemory) -> Found:
    """Where a limit or a rollout cuts an episode, the value is that of its last observation after all steps before."""
    if not isinstance(policy, protocol.Bootstraps):
        raise Inapplicable("it learns without values of what comes after a cut")
    findings, forgotten = [], 0.0
    for cut in policy.bootstraps():
        steps = len(cut.inputs)
        value = policy.segment(cut.inputs[None], first_steps(1, steps), policy.reset(1))[:, -1:, -1]
        findings.append(compared(torch.full_like(value, cut.value), value, f"{cut.where}, after {steps - 1} steps"))
        alone = policy.segment(cut.inputs[None, -1:], first_steps(1, 1), policy.reset(1))[:, -1:, -1]
        forgotten = max(forgotten, compared(alone, value).difference)
    if not findings:
        raise Inapplicable("no episode was cut")
    if forgotten <= CLEARLY * findings[0].tolerance:
        raise Inapplicable("its value does not depend on earlier steps")
    return worst(findings)


CHECKS: Mapping[str, Check] = {
    "step = segment": step_equals_segment,
    "reset leaks nothing": reset_leaks_nothing,
    "no look-ahead": no_look_ahead,
    "padding does not matter": padding_does_not_matter,
    "changed weights take effect": changed_weights_take_effect,
    "positions are contiguous": positions_are_contiguous,
    "first ratio is 1": first_ratio_is_one,
    "saved in mid-episode": saved_in_mid_episode,
    "stopped run keeps memory": stopped_run_keeps_memory,
    "bootstraps from the right memory": bootstraps_from_the_right_memory,
}
"""By the name that results and ``Traits.exempt`` give them."""


def check_policy(policy: PolicyWithMemory) -> list[Result]:
    """All checks, in their order; a policy whose outputs depend on no earlier step has nothing to check.

    Raises ConfigError for an unknown check in ``traits.exempt``, and members that are none of ``PolicyWithMemory``.
    """
    check_members(policy)
    return [_result(policy, name) for name in CHECKS]


def check_one(policy: PolicyWithMemory, name: str) -> Result:
    """The result of the check with this name; raises as ``check_policy``."""
    check_members(policy)
    return _result(policy, name)


def _result(policy: PolicyWithMemory, name: str) -> Result:
    exempt = policy.traits.exempt
    for known in (name, *exempt):
        if known not in CHECKS:
            raise ConfigError(f"there is no check {known!r}; {did_you_mean(known, CHECKS)}")
    if name in exempt:
        return Result(name, "does not apply", note=exempt[name])
    try:
        with torch.no_grad():
            refuse_memoryless(policy)
            found = CHECKS[name](policy)
    except Inapplicable as reason:
        return Result(name, "does not apply", note=str(reason))
    note = found.remark if found.passes else found.place
    return Result(name, "passed" if found.passes else "failed", found.difference, found.tolerance, note)


def check_members(policy: PolicyWithMemory) -> None:
    """Raise ConfigError for a member that is missing or of another kind, before a check stumbles over it."""
    if isinstance(policy, type):
        raise ConfigError(f"{policy.__name__} is a class; give an instance of it: {policy.__name__}()")
    missing = [name for name in ("reset", "step", "segment", "weights") if not callable(getattr(policy, name, None))]
    missing += [name for name in ("inputs", "traits") if not hasattr(policy, name)]
    if missing:
        raise ConfigError(f"{type(policy).__name__} lacks {', '.join(missing)}; see PolicyWithMemory for its members")
    check(policy.inputs, Count, "inputs")
    check(policy.traits, Traits, "traits")
    if not list(policy.weights()):
        raise ConfigError("weights() is empty; it gives all tensors that learning changes")


def refuse_memoryless(policy: PolicyWithMemory) -> None:
    """Raise Inapplicable unless outputs of the last step change with the inputs of the steps before."""
    inputs = numbers(policy, steps_of(policy))
    other = inputs.clone()
    other[:, :-1] += 1.0
    expected, found = stepped(policy, inputs)[0][:, -1:], stepped(policy, other)[0][:, -1:]
    change = float((found - expected).abs().max())
    if change <= CLEARLY * tolerance_of(expected):
        raise Inapplicable(f"no output depends on an earlier step (largest change {change:.1e}): there is no memory")
