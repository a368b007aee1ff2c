"""Laws of action chunks: acting takes what training predicts at the decision, with the mask and the noise of one chunk.

B rows, k actions of a chunk.
"""

from dataclasses import replace
from typing import Any, cast

import numpy as np
import pytest
import torch
from gymnasium import spaces
from torch import Tensor

from rltransformers.algorithms.decision import leaf_loss, step_losses
from rltransformers.core.action_masks import ACTION_MASK
from rltransformers.core.errors import ConfigError
from rltransformers.policies.action_chunks import ChunkHead
from rltransformers.policies.action_heads import ActionHead
from rltransformers.policies.decider import ActingState, Decider
from rltransformers.policies.decision_network import DecisionPolicy
from rltransformers.policies.several_modes import ActionHeadName, ActionHeadOptions, FlowAction, MixtureAction, box_leaf
from tests.policies.test_decision_network import EXACT, config

BOX = spaces.Box(np.array([-2.0, 0.0], np.float32), np.array([2.0, 1.0], np.float32))
NESTED = spaces.Dict(
    {
        "arm": BOX,
        "gear": spaces.Discrete(4, start=2),
        "keys": spaces.MultiBinary(3),
        "mode": spaces.MultiDiscrete([3, 2]),
    }
)
OPTIONS = ActionHeadOptions(components=3, steps=3, width=5)
HEADS: tuple[ActionHeadName, ...] = ("deterministic", "gaussian", "mixture", "flow")
CHUNK = 3


def build(
    head: ActionHeadName = "deterministic",
    action: Any = BOX,
    decide_every: int | None = None,
    masked: bool = False,
    chunk: int = CHUNK,
    memory: int = 32,
    **options: Any,
) -> DecisionPolicy:
    torch.manual_seed(3)
    vector = spaces.Box(-np.inf, np.inf, (3,), np.float32)
    seen = spaces.Dict({ACTION_MASK: spaces.MultiBinary(4), "v": vector}) if masked else spaces.Dict({"v": vector})
    group = 2 if "return_in" in options else 3
    policy = DecisionPolicy(
        seen,
        action,
        config(memory=memory, layers=2, tokens_per_step=group),
        return_scale=2.0,
        box=box_leaf(head, OPTIONS, action, chunk) if head != "deterministic" else box_leaf(head, OPTIONS, action),
        chunk=chunk,
        decide_every=decide_every,
        **options,
    )
    with torch.no_grad():  # position tables start near 0; make every input count
        for parameter in policy.parameters():
            parameter.add_(0.3 * torch.randn_like(parameter))
    return policy.double().eval()


class Stream:
    """Observations, rewards, noise and ragged episode starts for a batch of environments, replayable."""

    def __init__(self, policy: DecisionPolicy, rows: int = 4, steps: int = 26) -> None:
        generator = torch.Generator().manual_seed(11)
        self.observations = {"v": torch.randn(steps, rows, 3, generator=generator).double()}
        if policy.masks:
            masks = torch.rand(steps, rows, 4, generator=generator) < 0.5
            masks[..., 1] |= ~masks.any(-1)
            self.observations[ACTION_MASK] = masks.to(torch.int8)
        self.rewards = torch.randn(steps, rows, generator=generator).double()
        self.targets = 5 * torch.randn(steps, rows, generator=generator).double()
        self.noise = torch.rand(steps, rows, policy.head.draws, generator=generator, dtype=torch.float64)
        self.start = torch.rand(steps, rows, generator=generator) < 0.15
        self.start[0] = True
        self.start[:, 0] = torch.arange(steps) == 0  # one episode that never ends
        self.greedy = torch.rand(steps, generator=generator) < 0.4

    def play(self, decider: Decider, alter: float = 0.0) -> tuple[list[dict[str, Tensor]], list[ActingState]]:
        """Actions as they were taken, and states; ``alter`` moves the Box after it was decided."""
        policy, state = decider.policy, decider.initial_state(self.start.shape[1])
        actions, states = [], []
        for t, start in enumerate(self.start):
            noise = None if self.greedy[t] else self.noise[t]
            seen = {path: leaf[t] for path, leaf in self.observations.items()}
            inputs: dict[str, Any] = {"reward": self.rewards[t], "target_return": self.targets[t], "noise": noise}
            taken, _, state = decider.step(seen, state, start=start, **inputs)
            if alter:
                taken = {path: value + alter if value.is_floating_point() else value for path, value in taken.items()}
                state = replace(state, action=policy.head.embed(taken))
            actions.append(taken)
            states.append(state)
        return actions, states


def rerun(
    decider: Decider, stream: Stream, actions: list[dict[str, Tensor]], states: list[ActingState], t: int, row: int
) -> tuple[dict[str, Tensor], Tensor]:
    """The action of step t anew, from the training forward on the window of its decision; and its outputs."""
    policy = decider.policy
    position = int(states[t].step[row]) % policy.decide_every
    t, now = t - position, t
    steps = slice(t + 1 - int(decider.window(states[t].step)[row]), t + 1)
    taken = {path: torch.stack([each[path][row] for each in actions[steps]]) for path in policy.head.spaces}
    for path, value in taken.items():
        value[-1] = torch.as_tensor(getattr(policy.head.spaces[path], "start", 0))  # must not matter
    features, _ = policy.read(
        {path: leaf[steps, row][None] for path, leaf in stream.observations.items()},
        {path: value[None] for path, value in taken.items()},
        torch.stack([state.return_to_go[row] for state in states[steps]])[None],
        torch.stack([state.step[row] for state in states[steps]])[None],
        torch.ones(1, steps.stop - steps.start, dtype=torch.bool),
    )
    outputs = policy.outputs(features, None)[:, -1]
    outputs = policy.masked(outputs, {path: leaf[now, row][None] for path, leaf in stream.observations.items()})
    decoded = policy.head.decode(outputs, None if stream.greedy[t] else stream.noise[t, row][None])
    return {path: value[0, position] for path, value in decoded.items()}, outputs[0, position]


def assert_acts_as_it_trains(decider: Decider, stream: Stream, alter: float = 0.0) -> None:
    actions, states = stream.play(decider, alter)
    for t in range(len(actions)):
        for row in range(stream.start.shape[1]):
            again, _ = rerun(decider, stream, actions, states, t, row)
            for path, value in again.items():
                moved = alter if value.is_floating_point() else 0
                torch.testing.assert_close(actions[t][path][row], value + moved, **EXACT)


@pytest.mark.parametrize("decide_every", [None, 2, 1])
@pytest.mark.parametrize("mode", ["refresh", "banded", "recompute"])
def test_the_action_of_every_step_is_the_one_that_training_predicts_for_it_at_the_decision(
    mode: Any, decide_every: int | None
) -> None:
    policy = build("mixture", decide_every=decide_every, memory={"banded": 4}.get(mode, 32))
    assert_acts_as_it_trains(Decider(policy, 5, mode), Stream(policy))


@pytest.mark.parametrize("action", [BOX, NESTED], ids=["box", "nested"])
@pytest.mark.parametrize("head", HEADS)
def test_so_it_is_for_every_head_and_space_when_other_actions_are_taken_than_planned(
    head: ActionHeadName, action: Any
) -> None:
    policy = build(head, action)
    assert_acts_as_it_trains(Decider(policy, 5, discount=0.9), Stream(policy, rows=2), alter=0.01)


@pytest.mark.parametrize("options", [{"return_in": "condition"}, {"advantage_bins": 4}], ids=str)
def test_so_it_is_where_returns_stand_elsewhere(options: dict[str, Any]) -> None:
    policy = build(decide_every=2, **options)
    stream = Stream(policy, rows=2)
    decider = Decider(policy, 5)
    actions, states = stream.play(decider)
    if "advantage_bins" in options:  # acting asks for the best
        states = [replace(state, return_to_go=torch.full_like(state.return_to_go, 3.0)) for state in states]
    for t in range(len(actions)):
        again, _ = rerun(decider, stream, actions, states, t, 1)
        torch.testing.assert_close(actions[t][""][1], again[""], **EXACT)


def test_the_mask_is_that_of_the_step_in_which_an_action_is_taken() -> None:
    policy = build(action=spaces.Discrete(4, start=2), masked=True)
    decider, stream = Decider(policy, 5), Stream(policy)
    actions, states = stream.play(decider)
    forbidden = 0
    for t in range(len(actions)):
        allowed = stream.observations[ACTION_MASK][t].gather(1, (actions[t][""] - 2)[:, None])
        assert bool(allowed.all())
        for row in range(4):
            again, outputs = rerun(decider, stream, actions, states, t, row)
            assert int(actions[t][""][row]) == int(again[""])
            forbidden += int(outputs.lt(-1e20).sum())
    assert forbidden > 50


def test_actions_of_a_chunk_do_what_was_decided_whatever_is_seen_meanwhile() -> None:
    policy = build("mixture")
    decider, stream = Decider(policy, 5), Stream(policy)
    actions, _ = stream.play(decider)
    other = Stream(policy)
    other.observations["v"][1:3] += 3.0  # after the first decision of the episodes that begin at step 0
    other.noise[1:3] = 0.5
    other.start[:4] = stream.start[:4] = False
    other.start[0] = stream.start[0] = True
    actions, again = stream.play(decider)[0], other.play(decider)[0]
    for t in range(3):
        assert torch.equal(actions[t][""], again[t][""])
    assert not torch.equal(actions[3][""], again[3][""])  # what was seen is remembered


def test_a_state_is_cut_to_some_rows_with_its_plan_and_belongs_to_one_length_of_chunk() -> None:
    policy = build("mixture", NESTED)
    decider, stream = Decider(policy, 5), Stream(policy)
    _, states = stream.play(decider)
    state = states[10]
    rows = torch.tensor([2, 0])
    assert state.plan is not None and state.plan_noise is not None and state.plan_greedy is not None
    few = state[rows]
    for name, value in state.tensors().items():
        assert torch.equal(value[rows], few.tensors()[name])
    inputs: dict[str, Any] = {
        "reward": stream.rewards[11],
        "target_return": stream.targets[11],
        "noise": stream.noise[11],
    }
    seen, start = {"v": stream.observations["v"][11]}, torch.zeros(4, dtype=torch.bool)
    whole, *_ = decider.step(seen, state, start=start, **inputs)
    part, *_ = decider.step(
        {"v": seen["v"][rows]}, few, start=start[:2], **{name: value[rows] for name, value in inputs.items()}
    )
    for path, value in part.items():
        torch.testing.assert_close(value, whole[path][rows], **EXACT)
    with pytest.raises(ConfigError, match=r"another acting_mode: plan has shape \(4, 3, 27\), here \(4, 4, 27\)"):
        Decider(build("mixture", NESTED, chunk=4), 5).check_state(state, 4)
    with pytest.raises(ConfigError, match=r"plan has shape \(4, 3, 27\), here None"):
        Decider(build("mixture", NESTED, chunk=1), 5).check_state(state, 4)


def test_one_action_is_a_head_and_a_state_without_chunks() -> None:
    policy = build("mixture", chunk=1)
    assert type(policy.head) is ActionHead
    assert policy.head.linear.out_features == 15 and Decider(policy, 5).initial_state(2).plan is None
    chunked = build("mixture").head
    assert type(chunked) is ChunkHead and chunked.linear.out_features == 3 + CHUNK * 12
    assert {name for name, _ in chunked.named_parameters()} == {name for name, _ in policy.head.named_parameters()}


# Losses


def rows_of(head: ActionHeadName, action: Any = BOX) -> tuple[ActionHead, Tensor, dict[str, Tensor]]:
    """A head, and outputs and actions of 6 chunks [1, 6, k, ...]."""
    generator, policy = torch.Generator().manual_seed(0), build(head, action)
    outputs = policy.head(torch.randn(1, 6, policy.width, generator=generator).double())
    action.seed(0)
    samples = [[action.sample() for _ in range(CHUNK)] for _ in range(6)]
    if isinstance(action, spaces.Dict):
        taken = {
            path: torch.as_tensor(np.array([[[each[path] for each in chunk] for chunk in samples]]))
            for path in action.spaces
        }
    else:
        taken = {"": torch.as_tensor(np.array([samples]))}
    return policy.head, outputs, taken


COUNTS = torch.tensor([[[1, 1, 1], [1, 1, 1], [1, 1, 1], [1, 1, 1], [1, 1, 0], [1, 0, 0]]], dtype=torch.bool)


@pytest.mark.parametrize("head", ["deterministic", "gaussian"])
def test_the_loss_of_a_chunk_is_the_mean_of_the_losses_of_its_actions_inside_the_episode(head: ActionHeadName) -> None:
    head_, outputs, taken = rows_of(head, NESTED)
    losses = step_losses(head_, outputs, taken, None, COUNTS)
    for step, counts in enumerate(COUNTS[0]):
        parts = []
        for number in range(int(counts.sum())):
            row = head_.split(outputs[0, step, number])
            values = [leaf_loss(leaf, row[path], taken[path][0, step, number]) for path, leaf in head_.by_path.items()]
            parts.append(torch.stack(values).sum())
        torch.testing.assert_close(losses[0, step], torch.stack(parts).mean(), atol=1e-12, rtol=1e-12)


@pytest.mark.parametrize("head", HEADS)
def test_actions_behind_the_end_of_an_episode_change_neither_loss_nor_gradient(head: ActionHeadName) -> None:
    head_, outputs, taken = rows_of(head)
    noise = None
    if head_.loss_draws:
        noise = torch.rand(1, 6, head_.loss_draws, generator=torch.Generator().manual_seed(1)).double()
    results = []
    for filling in (0.3, 0.9):
        actions = {"": torch.where(COUNTS[..., None], taken[""], filling)}
        losses = step_losses(head_, outputs, actions, noise, COUNTS)
        results.append((losses, torch.autograd.grad(losses.sum(), [head_.linear.weight], retain_graph=True)[0]))
    if head == "flow":  # points are of all actions together: where one flows to depends on where the others are
        torch.testing.assert_close(results[0][0][:, :4], results[1][0][:, :4], **EXACT)
    else:
        torch.testing.assert_close(results[0], results[1], **EXACT)
    counted = step_losses(head_, outputs, taken, noise, torch.ones_like(COUNTS))
    assert not torch.allclose(counted[:, 4:], results[0][0][:, 4:])
    torch.testing.assert_close(counted[:, :4], results[0][0][:, :4], **EXACT)


def test_a_mixture_says_which_normal_all_actions_of_a_chunk_are_of() -> None:
    head, outputs, taken = rows_of("mixture")
    losses = step_losses(head, outputs, taken, None, COUNTS)
    leaf = head.by_path[""]
    assert isinstance(leaf, MixtureAction)
    for step, counts in enumerate(COUNTS[0]):
        number = int(counts.sum())
        longer = MixtureAction(spaces.Box(np.tile(BOX.low, number), np.tile(BOX.high, number)), None, count=3).double()
        rows = outputs[0, step, :number]
        means, spreads = (part.unflatten(-1, (3, 2)).transpose(0, 1).flatten() for part in rows[:, 3:].chunk(2, -1))
        joint = -longer.log_prob(torch.cat([rows[0, :3], means, spreads]), taken[""][0, step, :number].flatten())
        torch.testing.assert_close(losses[0, step], joint / number, **EXACT)
    noise = torch.rand(1, 500, head.draws, generator=torch.Generator().manual_seed(0)).double()
    apart = torch.tensor([[0.0, 0.0, -60.0] + [5.0] * 2 + [-5.0] * 2 + [0.0] * 2 + [-9.0] * 6]).double()
    samples = head.decode(apart.expand(1, 500, CHUNK, -1), noise)[""][0, :, :, 0]
    high = samples > 0
    assert bool((high == high[:, :1]).all()) and 0.3 < float(high.double().mean()) < 0.7
    assert float(samples.std(0).min()) > 0 and not torch.equal(samples[:, 0], samples[:, 1])


def test_a_flow_carries_all_actions_of_a_chunk_as_one_point() -> None:
    head, outputs, taken = rows_of("flow")
    leaf = cast(FlowAction, head.by_path[""])
    joined = FlowAction(
        spaces.Box(np.tile(BOX.low, CHUNK), np.tile(BOX.high, CHUNK)), None, steps=OPTIONS.steps, hidden=OPTIONS.width
    ).double()
    joined.load_state_dict(leaf.state_dict(), strict=False)
    row, noise = (
        outputs[:, :, 0],
        torch.rand(1, 6, head.loss_draws, generator=torch.Generator().manual_seed(1)).double(),
    )
    assert torch.equal(outputs, row.unsqueeze(2).expand_as(outputs))
    losses = step_losses(head, outputs, taken, noise, torch.ones_like(COUNTS))
    torch.testing.assert_close(losses, joined.matching_loss(row, taken[""].flatten(-2), noise), **EXACT)
    sampled = torch.rand(1, 6, head.draws, generator=torch.Generator().manual_seed(2)).double()
    # a row of noise of one action is [one, other] of the Box-Muller transform
    other = sampled.unflatten(-1, (CHUNK, 2, 2)).transpose(-2, -3).flatten(-3)
    decoded = head.decode(outputs, sampled)[""]
    torch.testing.assert_close(decoded.flatten(-2), joined.decode(row, other), **EXACT)


# Probabilities


def test_windows_that_begin_with_a_decision_have_the_outputs_of_acting() -> None:
    policy = build("mixture", NESTED, decide_every=2)
    decider, steps = Decider(policy, 8), 8
    stream = Stream(policy, rows=3, steps=steps)
    stream.start[1:] = False
    state, fields, actions, asked = decider.initial_state(3), [], [], []
    with torch.inference_mode():
        for t in range(steps):
            seen = {"v": stream.observations["v"][t]}
            inputs = stream.start[t], stream.rewards[t], stream.targets[t], stream.noise[t]
            taken, outputs, state = decider.network_step(seen, state, *inputs, tables=policy.tables.current())
            fields.append(policy.fields(seen, outputs, taken))
            actions.append(taken)
            asked.append(state.return_to_go)
    whole = {path: torch.stack([each[path] for each in actions], 1).numpy() for path in actions[0]}
    observations, goals = {"v": stream.observations["v"].transpose(0, 1).float().numpy()}, torch.stack(asked, 1).numpy()
    found = policy.evaluate_actions(observations, whole, goals)
    expected = torch.stack([each["log_prob"][""] for each in fields], 1)
    # observations are float32
    torch.testing.assert_close(found.log_prob, expected.to(found.log_prob), atol=1e-4, rtol=1e-4)
    assert found.entropy.shape == (3, steps)
    with pytest.raises(ConfigError, match="decides every 2 steps of an episode, and a window begins at timestep 3"):
        policy.evaluate_actions(observations, whole, goals, np.arange(3, 3 + steps) + np.zeros((3, 1)))
