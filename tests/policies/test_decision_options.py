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
    "condition": {"return_in": "condition"},
    "head": {"highest_to_go": torch.tensor([0.6, 1.5, 0.3, -0.4, 0.9]), "return_in": "condition"},
    "candidates": {"critic_width": 8},
    "candidates, condition": {"critic_width": 8, "return_in": "condition"},
    "advantage": {"advantage_bins": 5},
    "advantage, condition": {"advantage_bins": 5, "return_in": "condition"},
}
JITTER = (0.0, 3.0, -2.0)


def build(kind: str, memory: int = 32, **backbone: Any) -> DecisionPolicy:
    torch.manual_seed(3)
    group = 2 if "return_in" in KINDS[kind] else 3
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
        self.rewards = self.rewards.abs() - 0.4


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
    assert not asked[:, 1::2].isnan().any() and not ("head" in kind and asked.isnan().any())
    told = asked if policy.takes_target else torch.full_like(asked, 4.0)
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


@pytest.mark.parametrize("discount, delayed", [(1.0, False), (0.9, False), (1.0, True)])
@pytest.mark.parametrize("mode", ["refresh", "banded", "recompute"])
def test_an_answer_keeps_what_the_last_one_left_and_stays_within_the_data(
    mode: Any, discount: float, delayed: bool, monkeypatch: pytest.MonkeyPatch
) -> None:
    stream = Unasked()
    actor = actor_of("head", mode, 5, discount=discount, delayed_reward=delayed)
    limits, head = actor.policy.highest_to_go, actor.policy.return_head
    assert head is not None
    torch.nn.init.constant_(head.bias, 1.0)  # a little below the limits
    _, states, predicted = watched(actor, stream, monkeypatch)
    cases = {"prediction": 0, "data": 0, "last answer": 0}
    for t, state in enumerate(states):
        for row in range(4):
            asked, step = float(state.return_to_go[row]), int(state.step[row])
            reward = 0.0 if delayed else float(stream.rewards[t, row])
            left = -torch.inf if step == 0 else (float(states[t - 1].return_to_go[row]) - reward) / discount
            if row % 2:  # somebody asked: nothing is predicted
                assert asked == pytest.approx(float(stream.targets[t, row]) if step == 0 else left, abs=1e-12)
                assert state.asked is not None and state.asked[row]
                continue
            values = float(predicted[t, row]), float(limits[min(step, 4)]), left
            expected = min(max(values[0], left), values[1])
            assert asked == pytest.approx(expected, abs=1e-12)
            assert state.predicted_return is not None and float(state.predicted_return[row]) == values[0]
            cases[list(cases)[values.index(expected)]] += 1
    assert min(cases.values()) > 0, cases


def test_where_rewards_are_unknown_only_the_data_limit_an_answer(monkeypatch: pytest.MonkeyPatch) -> None:
    stream, actor = Unasked(), actor_of("head", "refresh", 5)
    stream.targets[:] = torch.nan
    stream.rewards[:] = torch.nan
    _, states, predicted = watched(actor, stream, monkeypatch)
    steps = torch.stack([state.step for state in states])
    expected = torch.minimum(predicted, actor.policy.highest_to_go[steps.clamp(max=4)])
    torch.testing.assert_close(torch.stack([state.return_to_go for state in states]), expected, **EXACT)


def test_returns_that_were_asked_for_do_not_change_what_the_head_predicts() -> None:
    first, second, actor = Unasked(), Unasked(), actor_of("head", "refresh", 5)
    monkeypatch = pytest.MonkeyPatch()
    second.targets, second.rewards = second.targets + 7.0, second.rewards - 2.0
    taken = actor.policy.head.decode
    with monkeypatch.context() as patch:  # the same actions, whatever is asked for
        patch.setattr(actor.policy.head, "decode", lambda outputs, noise: taken(0 * outputs, noise))
        (_, states, one), (_, others, other) = (watched(actor, each, patch) for each in (first, second))
    assert torch.equal(one, other)
    assert not torch.equal(states[-1].return_to_go, others[-1].return_to_go)


def test_limits_rise_with_other_episodes_and_the_last_one_holds_for_all_later_steps() -> None:
    policy = build("head")
    policy.raise_limits(torch.tensor([0.5, 2.0, 0.4, -1.0, 0.2, 0.1, 3.0]))
    expected = torch.tensor([0.6, 2.0, 0.4, -0.4, 3.0, 3.0], dtype=torch.float64)
    torch.testing.assert_close(policy.limit(torch.tensor([0, 1, 2, 3, 4, 90])), expected, atol=1e-7, rtol=0.0)
    policy.raise_limits(torch.tensor([0.7]))
    assert policy.limit(torch.tensor([0, 1])).tolist() == pytest.approx([0.7, 2.0])


def test_a_head_beside_returns_in_the_sequence_is_refused() -> None:
    with pytest.raises(ConfigError, match="set return_in to 'condition'"):
        DecisionPolicy(OBSERVATION, ACTION, config(), highest_to_go=torch.ones(3))


def test_a_predicted_return_depends_on_the_past_and_on_no_return() -> None:
    policy, inputs, t = build("head"), window(), 3

    def predicted(name: str, step: slice) -> Tensor:
        value = inputs[name][""] if isinstance(inputs[name], dict) else inputs[name]
        other = value.clone()
        other[:, step] += 1.7
        given = {**inputs, name: {"": other} if isinstance(inputs[name], dict) else other}
        found = policy.read(**given)[1]
        assert found is not None
        return found[:, t]

    before = predicted("return_to_go", slice(0, 0))
    for name, hidden in (("return_to_go", 0), ("actions", t), ("observations", t + 1)):
        assert torch.equal(before, predicted(name, slice(hidden, None))), name
    for name, last in (("actions", t - 1), ("observations", t)):
        assert (before - predicted(name, slice(last, last + 1))).abs().min() > 1e-6, name


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
