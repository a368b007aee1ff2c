"""Laws of acting with predicted returns, with returns outside the sequence, by candidates, and by advantages.

B rows, C candidates.
"""

import itertools
from typing import Any

import pytest
import torch
from torch import Tensor

from rltransformers.core.errors import ConfigError
from rltransformers.policies.decider import ActingState, Decider
from rltransformers.policies.decision_network import DecisionPolicy
from tests.policies.test_decision_network import ACTION, EXACT, OBSERVATION, Stream, config, window

KINDS: dict[str, dict[str, Any]] = {
    "head": {"predicts_return": True},
    "condition": {"return_in": "condition"},
    "head, condition": {"predicts_return": True, "return_in": "condition"},
    "candidates": {"critic_width": 8},
    "candidates, condition": {"critic_width": 8, "return_in": "condition"},
    "advantage": {"advantage_bins": 5},
    "advantage, condition": {"advantage_bins": 5, "return_in": "condition"},
}
JITTER = (0.0, 3.0, -2.0)


def build(kind: str, memory: int = 32, **backbone: Any) -> DecisionPolicy:
    torch.manual_seed(3)
    group = 2 if "condition" in kind else 3
    options = {"memory": memory, "tokens_per_step": group, **backbone}
    policy = DecisionPolicy(OBSERVATION, ACTION, config(**options), return_scale=2.0, **KINDS[kind])
    with torch.no_grad():  # position tables start near 0; make every input count
        for parameter in policy.parameters():
            parameter.add_(0.3 * torch.randn_like(parameter))
    return policy.double().eval()


def actor_of(kind: str, mode: Any, context: int, **options: Any) -> Decider:
    memory = {"refresh": context, "banded": 4, "recompute": 32}[mode]
    return Decider(build(kind, memory), context, mode, jitter=JITTER if "candidates" in kind else (), **options)


class Unasked(Stream):
    """A stream in which two rows of four are asked for nothing."""

    def __init__(self, rows: int = 4, steps: int = 24) -> None:
        super().__init__(rows, steps)
        self.targets[:, ::2] = torch.nan


def watched(
    actor: Decider, stream: Stream, monkeypatch: pytest.MonkeyPatch
) -> tuple[Tensor, list[ActingState], Tensor]:
    """Actions, states, and what was predicted for every step in reward units (NaN without a head)."""
    seen: list[Tensor] = []
    predict = actor.policy.predicted_return

    def spy(features: Tensor) -> Tensor:
        seen.append(predict(features))
        return seen[-1]

    with monkeypatch.context() as patch:
        patch.setattr(actor.policy, "predicted_return", spy)
        actions, states = stream.play(actor)
    predicted = torch.stack(seen) if seen else torch.full(stream.start.shape, torch.nan).double()
    return actions, states, predicted * actor.policy.return_scale


@pytest.mark.parametrize("context", [1, 5])
@pytest.mark.parametrize("mode", ["refresh", "banded", "recompute"])
@pytest.mark.parametrize("kind", KINDS)
def test_acting_equals_the_training_forward_on_the_window_it_reports(
    kind: str, mode: Any, context: int, monkeypatch: pytest.MonkeyPatch
) -> None:
    actor, stream = actor_of(kind, mode, context, discount=0.9), Unasked() if "head" in kind else Stream(steps=24)
    policy = actor.policy
    actions, states, predicted = watched(actor, stream, monkeypatch)
    asked = torch.stack([state.return_to_go for state in states])
    assert bool(asked.isnan().any()) == ("head" in kind)
    told = torch.where(asked.isnan(), predicted, asked) if policy.takes_target else torch.full_like(asked, 4.0)
    number = torch.stack([state.step for state in states])
    again, found = torch.zeros_like(actions), torch.zeros_like(predicted)
    for t in range(len(actions)):
        for row in range(actions.shape[1]):
            steps = slice(t + 1 - int(actor.window(states[t].step)[row]), t + 1)
            taken = actions[steps, row].clone()
            taken[-1] = 9.0  # the action that is being decided must not matter
            options = []
            for more in actor.jitter or (0.0,):
                goals = told[steps, row] + more * 0.9 ** -number[steps, row].double()
                valid = torch.ones(1, len(goals), dtype=torch.bool)
                seen = {"": stream.observations[steps, row][None]}
                features, guess = policy.read(seen, {"": taken[None]}, goals[None], number[steps, row][None], valid)
                options.append(policy.head.decode(policy.head(features)[:, -1])[""][0])
                found[t, row] = torch.nan if guess is None else guess[0, -1] * policy.return_scale
            if actor.jitter:
                assert policy.critics is not None
                numbers = policy.head.as_numbers({"": torch.stack(options)})
                worth = policy.critics({"": stream.observations[t, row]}, numbers).amin(0)
                again[t, row] = options[int(worth.argmax())]
            else:
                again[t, row] = options[0]
    torch.testing.assert_close(actions, again, **EXACT)
    torch.testing.assert_close(predicted, found, equal_nan=True, **EXACT)


def test_candidates_choose_other_actions_than_the_target_alone() -> None:
    policy, stream = build("candidates"), Stream()
    chosen, _ = stream.play(Decider(policy, 5, jitter=JITTER))
    plain, _ = stream.play(Decider(policy, 5))
    assert 0.2 < float((chosen - plain).abs().amax(-1).gt(1e-6).double().mean()) < 1.0


def test_a_past_is_kept_once_for_all_candidates_where_returns_are_outside_the_sequence() -> None:
    sizes = []
    for kind in ("candidates", "candidates, condition"):
        memory = Decider(build(kind), 5, "banded", jitter=JITTER).initial_state(4).memory
        assert memory is not None
        sizes.append(memory.batch_size)
    assert sizes == [12, 4]


def test_what_is_remembered_does_not_depend_on_returns_outside_the_sequence() -> None:
    policy, stream = build("condition"), Stream()
    _, states = stream.play(Decider(policy, 5))
    inputs = window()
    plain = policy.backbone
    seen: list[Tensor] = []
    handle = plain.register_forward_pre_hook(lambda _, given: seen.append(given[0]))
    first, second = (policy(**{**inputs, "return_to_go": inputs["return_to_go"] + more}) for more in (0.0, 5.0))
    handle.remove()
    assert torch.equal(seen[0], seen[1]) and seen[0].shape[1] == 2 * 7 - 1
    assert (first - second).abs().amax(-1).min() > 1e-4
    assert states[0].return_to_go.isfinite().all()


@pytest.mark.parametrize("kind", ["head", "head, condition"])
def test_a_predicted_return_depends_on_the_past_and_on_no_return_of_its_own_step(kind: str) -> None:
    policy, inputs, t = build(kind), window(), 3

    def predicted(name: str, step: slice) -> Tensor:
        value = inputs[name][""] if isinstance(inputs[name], dict) else inputs[name]
        other = value.clone()
        other[:, step] += 1.7
        given = {**inputs, name: {"": other} if isinstance(inputs[name], dict) else other}
        found = policy.read(**given)[1]
        assert found is not None
        return found[:, t]

    before = predicted("return_to_go", slice(0, 0))
    for name, hidden in (("return_to_go", t), ("actions", t), ("observations", t + 1)):
        assert torch.equal(before, predicted(name, slice(hidden, None))), name
    for name, last in (("actions", t - 1), ("observations", t)):
        assert (before - predicted(name, slice(last, last + 1))).abs().min() > 1e-6, name
    past = predicted("return_to_go", slice(0, t))
    assert ((before - past).abs().min() > 1e-6) == (kind == "head")  # outside the sequence no past return counts


@pytest.mark.parametrize("kind", ["advantage", "advantage, condition"])
def test_acting_by_advantages_asks_for_the_best_bin_and_reads_neither_target_nor_reward(kind: str) -> None:
    policy, stream, other = build(kind), Stream(steps=20), Stream(steps=20)
    other.targets, other.rewards = torch.full_like(other.targets, torch.nan), other.rewards + 3.0
    for mode in ("refresh", "banded", "recompute"):
        actor = Decider(policy, 5, mode)
        assert torch.equal(stream.play(actor)[0], other.play(actor)[0])
    inputs = window()
    bins = [policy(**{**inputs, "return_to_go": torch.full_like(inputs["return_to_go"], index)}) for index in range(5)]
    for one, following in itertools.pairwise(bins):
        assert (one - following).abs().amax(-1).min() > 1e-6
    with pytest.raises(ConfigError, match="leave return_to_go out"):
        policy.evaluate_actions(inputs["observations"][""], inputs["actions"][""], inputs["return_to_go"])


def test_candidates_need_critics_and_a_return_that_is_asked_for() -> None:
    for kind in ("head", "condition", "advantage"):
        with pytest.raises(ConfigError, match="leave jitter empty"):
            Decider(build(kind), 5, jitter=JITTER)
