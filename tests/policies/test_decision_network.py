"""Laws of the Decision Transformer module and of its acting. B rows, K steps, W width."""

from typing import Any

import numpy as np
import pytest
import torch
from gymnasium import spaces
from torch import Tensor

from rltransformers.algorithms.decision import step_losses
from rltransformers.backbone import BackboneConfig
from rltransformers.core.errors import ConfigError, DataError
from rltransformers.functional.modules import masked_mean
from rltransformers.mechanisms import register
from rltransformers.policies.action_heads import ActionHead, blank_invalid
from rltransformers.policies.action_leaves import CategoricalAction, ContinuousAction
from rltransformers.policies.decider import ActingState, Decider
from rltransformers.policies.decision_network import DecisionPolicy
from rltransformers.policies.returns import MAX_SCALED
from tests.conformance.broken import FollowsTheBatch, spec_of
from tests.extending import unregistered

OBSERVATION = spaces.Box(-np.inf, np.inf, (3,), np.float32)
ACTION = spaces.Box(np.array([-2.0, 0.0], np.float32), np.array([2.0, 1.0], np.float32))
# float64: sums of a few hundred terms of order 1, reordered between kernels of different shape
EXACT: dict[str, Any] = {"atol": 1e-12, "rtol": 0.0}


def config(**backbone: Any) -> BackboneConfig:
    sizes = {"width": 16, "layers": 3, "heads": 2, "memory": 32, "tokens_per_step": 3}
    return BackboneConfig.from_dict({"preset": "decision_transformer", **sizes, **backbone})


def build(
    return_conditioned: bool = True,
    memory: int = 32,
    action: spaces.Space[Any] = ACTION,
    observation: spaces.Space[Any] = OBSERVATION,
    **backbone: Any,
) -> DecisionPolicy:
    torch.manual_seed(3)
    options = {"memory": memory, "tokens_per_step": 3 if return_conditioned else 2, **backbone}
    policy = DecisionPolicy(
        observation, action, config(**options), return_conditioned=return_conditioned, return_scale=2.0
    )
    with torch.no_grad():  # position tables start near 0; make every input count
        for parameter in policy.parameters():
            parameter.add_(0.3 * torch.randn_like(parameter))
    return policy.double().eval()


def window(batch: int = 5, steps: int = 7, seed: int = 0) -> dict[str, Any]:
    generator = torch.Generator().manual_seed(seed)

    def normal(*shape: int) -> Tensor:
        return torch.randn(*shape, generator=generator, dtype=torch.float64)

    return {
        "observations": {"": normal(batch, steps, 3)},
        "actions": {"": normal(batch, steps, 2)},
        "return_to_go": normal(batch, steps),
        "timestep": torch.arange(steps) + torch.randint(0, 9, (batch, 1), generator=generator),
        "valid": torch.ones(batch, steps, dtype=torch.bool),
    }


def changed(inputs: dict[str, Any], name: str, step: int | slice) -> dict[str, Any]:
    tensor = inputs[name][""] if name in ("observations", "actions") else inputs[name]
    other = tensor.clone()
    other[:, step] += 1.7
    return {**inputs, name: {"": other} if name in ("observations", "actions") else other}


# ------------------------------------------------------------------------------------------------- the module


def test_the_prediction_of_an_action_depends_on_its_past_and_on_nothing_after_its_observation() -> None:
    policy, inputs, t = build(), window(), 3
    before = policy(**inputs)
    for name, first_hidden in (("actions", t), ("observations", t + 1), ("return_to_go", t + 1)):
        after = policy(**changed(inputs, name, slice(first_hidden, None)))
        assert torch.equal(before[:, : t + 1], after[:, : t + 1]), name
        seen = policy(**changed(inputs, name, first_hidden - 1))
        assert (before[:, t] - seen[:, t]).abs().amax(-1).min() > 1e-4, name


def test_behavior_cloning_never_sees_returns() -> None:
    policy, inputs = build(return_conditioned=False), window()
    assert policy.tokens_per_step == 2
    assert torch.equal(policy(**inputs), policy(**changed(inputs, "return_to_go", slice(None))))


@pytest.mark.parametrize("side", ["left", "right", "both"])
def test_amount_side_and_content_of_padding_change_neither_loss_nor_gradient(side: str) -> None:
    policy, inputs = build(), window(steps=6)
    before, behind = {"left": (4, 0), "right": (0, 4), "both": (3, 2)}[side]

    def pad(tensor: Tensor, filling: float) -> Tensor:
        front, back = (torch.full_like(tensor[:, :1], filling).repeat_interleave(n, 1) for n in (before, behind))
        return torch.cat([front, tensor, back], 1)

    padded = {
        name: {"": pad(value[""], float("nan"))} if isinstance(value, dict) else pad(value, 77)
        for name, value in inputs.items()
    }
    padded["valid"] = pad(inputs["valid"], 0.0)

    def loss_and_gradients(batch: dict[str, Any]) -> tuple[Tensor, list[Tensor]]:
        actions = blank_invalid(policy.head.spaces, batch["actions"], batch["valid"])
        loss = masked_mean(step_losses(policy.head, policy(**batch), actions), batch["valid"])
        return loss, list(torch.autograd.grad(loss, list(policy.parameters()), materialize_grads=True))

    plain, plain_gradients = loss_and_gradients(inputs)
    other, other_gradients = loss_and_gradients(padded)
    torch.testing.assert_close(other, plain, **EXACT)
    for ours, theirs in zip(plain_gradients, other_gradients, strict=True):
        torch.testing.assert_close(theirs, ours, **EXACT)


def test_every_valid_step_has_the_same_weight_in_the_loss() -> None:
    policy, inputs = build(), window(batch=2, steps=6)
    inputs["valid"][1, 2:] = False
    outputs, head = policy(**inputs), policy.head
    leaf = next(iter(head.by_path.values()))
    assert isinstance(leaf, ContinuousAction)
    errors = (leaf.squash(outputs) - leaf.as_numbers(inputs["actions"][""])).square().mean(-1)
    by_hand = torch.cat([errors[0], errors[1, :2]]).mean()
    torch.testing.assert_close(
        masked_mean(step_losses(head, outputs, inputs["actions"]), inputs["valid"]), by_hand, **EXACT
    )


def test_observations_are_standardized_and_returns_scaled() -> None:
    policy, inputs = build(), window()
    mean, deviation = torch.tensor([1.0, -2.0, 0.5]), torch.tensor([2.0, 0.1, 3.0])
    statistics = {"": (mean, deviation)}
    other = DecisionPolicy(OBSERVATION, ACTION, config(), return_scale=10.0, statistics=statistics).double()
    other.load_state_dict(policy.state_dict(), strict=False)
    raw = {"": inputs["observations"][""] * deviation + mean}
    scaled = {**inputs, "observations": raw, "return_to_go": inputs["return_to_go"] * 5.0}
    torch.testing.assert_close(other.eval()(**scaled), policy(**inputs), atol=1e-6, rtol=0.0)  # statistics are float32


# --------------------------------------------------------------------------------------------------- the heads


def test_a_bounded_box_is_predicted_inside_its_bounds_and_an_open_one_is_not_squashed() -> None:
    space = spaces.Box(np.array([-2.0, -np.inf, 0.0], np.float32), np.array([2.0, np.inf, np.inf], np.float32))
    leaf = ContinuousAction(space, 4)
    action = leaf.decode(torch.tensor([[50.0, 50.0, -3.0], [-50.0, 0.5, 3.0]]))
    assert torch.equal(action, torch.tensor([[2.0, 50.0, 0.0], [-2.0, 0.5, 3.0]]))
    assert torch.equal(leaf.as_numbers(torch.tensor([1.0, 5.0, 7.0])), torch.tensor([0.5, 5.0, 7.0]))


def test_classes_are_counted_from_the_start_of_the_space() -> None:
    leaf = CategoricalAction(spaces.Discrete(3, start=5), 4)
    assert leaf.classes(torch.tensor([5, 7])).flatten().tolist() == [0, 2]
    assert leaf.decode(torch.tensor([[0.0, 2.0, 1.0]])).tolist() == [6]


def test_sampled_classes_follow_the_distribution() -> None:
    leaf = CategoricalAction(spaces.MultiDiscrete([2, 3]), 4)
    logits = torch.tensor([0.7, 0.3, 0.5, 0.2, 0.3]).log()
    uniform = torch.rand(20_000, 2, generator=torch.Generator().manual_seed(0))
    drawn = leaf.decode(logits.expand(20_000, -1), uniform)
    for column, expected in enumerate(([0.7, 0.3], [0.5, 0.2, 0.3])):
        share = torch.bincount(drawn[:, column]) / 20_000
        torch.testing.assert_close(share, torch.tensor(expected), atol=0.015, rtol=0.0)  # 4 standard errors


def test_the_loss_of_several_components_is_the_sum_of_their_negative_log_probabilities() -> None:
    space = spaces.Dict({"a": spaces.MultiDiscrete([2, 3]), "b": spaces.MultiBinary(2)})
    head = ActionHead(space, 4)
    outputs = torch.randn(1, 1, head.linear.out_features)
    actions = {"a": torch.tensor([[[1, 2]]]), "b": torch.tensor([[[1, 0]]])}
    parts = head.split(outputs)
    first, second = parts["a"][..., :2].log_softmax(-1), parts["a"][..., 2:].log_softmax(-1)
    bits = parts["b"].sigmoid()
    by_hand = -(first[..., 1] + second[..., 2] + bits[..., 0].log() + (1 - bits[..., 1]).log())
    loss = masked_mean(step_losses(head, outputs, actions), torch.ones(1, 1, dtype=torch.bool))
    torch.testing.assert_close(loss, by_hand.squeeze())


# ------------------------------------------------------------------------------------------------------ acting


class Stream:
    """Observations, rewards and ragged episode starts for a batch of environments, replayable."""

    def __init__(self, rows: int = 4, steps: int = 40, dtype: torch.dtype = torch.float64) -> None:
        generator = torch.Generator().manual_seed(11)
        self.observations = torch.randn(steps, rows, 3, generator=generator).to(dtype)
        self.rewards = torch.randn(steps, rows, generator=generator).to(dtype)
        self.targets = 5 * torch.randn(steps, rows, generator=generator).to(dtype)
        self.start = torch.rand(steps, rows, generator=generator) < 0.06
        self.start[0] = True
        self.start[:, 0] = torch.arange(steps) == 0  # one episode that never ends
        self.start[12:20, 1] = torch.arange(8) % 2 == 0  # very short ones

    def play(self, actor: Decider) -> tuple[Tensor, list[ActingState]]:
        state, actions, states = actor.initial_state(self.start.shape[1]), [], []
        for observation, reward, target, start in zip(
            self.observations, self.rewards, self.targets, self.start, strict=True
        ):
            action, _, state = actor.step({"": observation}, state, start=start, reward=reward, target_return=target)
            actions.append(action[""])
            states.append(state)
        return torch.stack(actions), states


def rerun(actor: Decider, stream: Stream, actions: Tensor, states: list[ActingState]) -> Tensor:
    """Every decision anew, row by row, by the training forward on the window that acting says it looked back on."""
    policy, decisions = actor.policy, torch.zeros_like(actions)
    for t in range(len(actions)):
        for row in range(actions.shape[1]):
            steps = slice(t + 1 - int(actor.window(states[t].step)[row]), t + 1)
            taken = actions[steps, row].clone()
            taken[-1] = 9.0  # the action that is being decided must not matter
            asked = torch.stack([state.return_to_go[row] for state in states[steps]])
            numbers = torch.stack([state.step[row] for state in states[steps]])
            outputs = policy(
                {"": stream.observations[steps, row][None]},
                {"": taken[None]},
                asked[None],
                numbers[None],
                torch.ones(1, len(asked), dtype=torch.bool),
            )
            decisions[t, row] = policy.head.decode(outputs[:, -1])[""][0]
    return decisions


@pytest.mark.parametrize("return_conditioned", [True, False])
@pytest.mark.parametrize("context_length", [1, 2, 5, 64])
def test_cached_acting_equals_the_training_forward_on_the_window_it_reports(
    context_length: int, return_conditioned: bool
) -> None:
    policy, stream = build(return_conditioned, memory=context_length), Stream()
    actor = Decider(policy, context_length, "refresh")
    actions, states = stream.play(actor)
    torch.testing.assert_close(actions, rerun(actor, stream, actions, states), **EXACT)
    window = torch.stack([actor.window(state.step) for state in states])
    age = torch.stack([state.step for state in states]) + 1
    assert window.max() == min(context_length, 40)
    assert torch.equal(window[age <= context_length], age[age <= context_length])  # nothing is dropped before K steps
    assert torch.all(window[age > context_length] > context_length // 2)


def test_a_table_of_one_context_of_positions_serves_caches_that_restart_at_different_steps() -> None:
    policy, stream = build(position={"name": "learned", "max_len": 15}, memory=5), Stream()
    actor = Decider(policy, 5, "refresh")
    actions, states = stream.play(actor)
    window = torch.stack([actor.window(state.step) for state in states])
    due = (window[1:] < window[:-1]) & ~stream.start[1:]
    assert (due.any(1) & ~due.all(1)).any()  # some restart while others go on
    torch.testing.assert_close(actions, rerun(actor, stream, actions, states), **EXACT)


def test_a_restarted_cache_looks_back_on_at_least_half_the_context() -> None:
    stream = Stream()
    actor = Decider(build(), 6, "refresh")
    _, states = stream.play(actor)
    window = [int(actor.window(state.step)[0]) for state in states]
    assert window[:15] == [1, 2, 3, 4, 5, 6, 4, 5, 6, 4, 5, 6, 4, 5, 6]


def test_recomputation_looks_back_on_the_whole_context_and_equals_the_cache_until_it_is_full() -> None:
    policy, stream = build(), Stream()
    actor = Decider(policy, 6, "recompute")
    actions, states = stream.play(actor)
    torch.testing.assert_close(actions, rerun(actor, stream, actions, states), **EXACT)
    age = torch.stack([state.step for state in states]) + 1
    assert torch.equal(torch.stack([actor.window(state.step) for state in states]), age.clamp(max=6))
    whole, _ = stream.play(Decider(policy, 40, "recompute"))
    cached, _ = stream.play(Decider(policy, 40, "refresh"))
    torch.testing.assert_close(cached, whole, **EXACT)


@pytest.mark.parametrize("memory", [1, 4])
def test_banded_acting_equals_one_forward_over_the_whole_episode(memory: int) -> None:
    policy, stream = build(memory=memory), Stream()
    actor = Decider(policy, 6, "banded")
    actions, states = stream.play(actor)
    age = torch.stack([state.step for state in states]) + 1
    assert torch.equal(torch.stack([actor.window(state.step) for state in states]), age)
    torch.testing.assert_close(actions, rerun(actor, stream, actions, states), **EXACT)


@pytest.mark.parametrize("mode", ["refresh", "banded"])
def test_float32_acting_stays_within_1e_5_of_float64(mode: Any) -> None:
    policy = build(memory=4)
    precise, _ = Stream().play(Decider(policy, 6, mode))
    rough, _ = Stream(dtype=torch.float32).play(Decider(policy.float(), 6, mode))
    # actions span 4 units; 1e-5 relative to that
    torch.testing.assert_close(rough.double(), precise, atol=4e-5, rtol=0.0)


def test_return_to_go_falls_by_the_reward_and_restarts_with_the_target() -> None:
    stream = Stream()
    for discount, delayed in ((1.0, False), (0.9, False), (1.0, True)):
        actor = Decider(build(), 6, "refresh", discount=discount, delayed_reward=delayed)
        _, states = stream.play(actor)
        for t, state in enumerate(states):
            earned = torch.zeros_like(stream.rewards[t]) if delayed else stream.rewards[t]
            previous = states[t - 1].return_to_go if t else torch.zeros(4, dtype=torch.float64)
            expected = torch.where(stream.start[t], stream.targets[t], (previous - earned) / discount)
            torch.testing.assert_close(state.return_to_go, expected, **EXACT)


def test_what_a_discount_leaves_over_grows_to_the_end_of_the_data_or_not_at_all() -> None:
    policy = build()
    actor = Decider(policy, 6, "refresh", discount=0.9, range_to_go=(-2.0, 5.0))
    asked = torch.tensor([3.0, 7.0, -1.0, -4.0, 7.0, float("nan")], dtype=torch.float64)
    reward = torch.tensor([0.0, 0.0, 0.0, 0.0, 4.0, 0.0], dtype=torch.float64)
    limits = torch.tensor([5.0, 7.0, -2.0, -4.0, -2.0, float("nan")], dtype=torch.float64)
    state, start = actor.initial_state(6), torch.ones(6, dtype=torch.bool)
    for step in range(40):
        *_, state = actor.step(
            {"": torch.zeros(6, 3, dtype=torch.float64)}, state, start=start, reward=reward, target_return=asked
        )
        start = torch.zeros(6, dtype=torch.bool)
        if step == 1:
            after = torch.tensor([3.0 / 0.9, 7.0, -1.0 / 0.9, -4.0, 3.0 / 0.9, float("nan")], dtype=torch.float64)
            torch.testing.assert_close(state.return_to_go, after, equal_nan=True, **EXACT)
    torch.testing.assert_close(state.return_to_go, limits, equal_nan=True, **EXACT)


def test_goals_of_candidates_leave_the_data_only_as_far_as_they_do_in_the_first_step() -> None:
    several = Decider(build(), 6, discount=0.9, range_to_go=(-2.0, 5.0))
    object.__setattr__(several, "jitter", (-3.0, 0.0, 3.0))  # past the rule that critics choose
    asked, steps = torch.tensor([4.0, 4.0, 4.0, 0.0]), torch.tensor([0, 2, 100, 100])
    expected = torch.tensor([[1.0, 4.0, 7.0], [4 - 3 / 0.81, 4, 7], [-2, 4, 7], [-3, 0, 5]])
    torch.testing.assert_close(several.goals(asked, steps), expected)


def test_a_discount_never_asks_for_infinity() -> None:
    policy = build()
    actor = Decider(policy, 6, "refresh", discount=0.5)
    state = actor.initial_state(1)
    none, start = torch.zeros(1, dtype=torch.float64), torch.tensor([True])
    for step in range(1100):  # 2^1100 is beyond float64
        action, _, state = actor.step(
            {"": torch.zeros(1, 3, dtype=torch.float64)}, state, start=start, reward=none, target_return=none + 3.0
        )
        start = torch.tensor([False])
        assert bool(action[""].isfinite().all()), step
    assert state.return_to_go.item() == MAX_SCALED
    object.__setattr__(actor, "jitter", (-1.0, 0.0, 1.0))
    assert bool(actor.goals(state.return_to_go, torch.tensor([1100])).isfinite().all())


def test_rows_do_not_depend_on_the_rows_beside_them() -> None:
    policy, stream = build(), Stream()
    actor = Decider(policy, 6)
    together, states = stream.play(actor)
    state = states[24][torch.tensor([2, 0])]
    stream.observations, stream.rewards = stream.observations[25:, [2, 0]], stream.rewards[25:, [2, 0]]
    stream.targets, stream.start = stream.targets[25:, [2, 0]], stream.start[25:, [2, 0]]
    alone = []
    for observation, reward, target, start in zip(
        stream.observations, stream.rewards, stream.targets, stream.start, strict=True
    ):
        action, _, state = actor.step({"": observation}, state, start=start, reward=reward, target_return=target)
        alone.append(action[""])
    torch.testing.assert_close(torch.stack(alone), together[25:, [2, 0]], **EXACT)


def test_acting_never_changes_the_state_it_was_given() -> None:
    stream = Stream()
    actor = Decider(build(), 3)
    _, states = stream.play(actor)
    state = states[9]
    copies = {name: getattr(state, name).clone() for name in ("tokens", "action", "return_to_go", "step")}
    assert state.memory is not None
    memory = {name: tensor.clone() for name, tensor in state.memory.tensors.items()}
    actor.step(
        {"": stream.observations[10]},
        state,
        start=stream.start[10],
        reward=stream.rewards[10],
        target_return=stream.targets[10],
    )
    assert all(torch.equal(getattr(state, name), copy) for name, copy in copies.items())
    assert all(torch.equal(state.memory.tensors[name], copy) for name, copy in memory.items())


def test_an_episode_longer_than_the_timestep_table_is_refused() -> None:
    policy = build(position={"name": "timestep", "max_len": 30})
    with pytest.raises(DataError, match="max_len"):
        Stream().play(Decider(policy, 6))


def test_an_unknown_acting_mode_is_refused() -> None:
    with pytest.raises(ConfigError, match=r"acting_mode must be one of 'refresh', .* did you mean 'refresh'"):
        Decider(build(), 6, "refrsh")  # type: ignore[arg-type]


def test_a_mixer_that_acts_otherwise_than_it_learns_is_refused() -> None:
    with unregistered():
        register(spec_of(FollowsTheBatch))
        with pytest.raises(ConfigError, match=r"DecisionPolicy has BatchNorm1d at 'backbone.*\.mixer\.norm'"):
            build(mixer="followsthebatch")
