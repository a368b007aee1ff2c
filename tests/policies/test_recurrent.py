"""The recurrent baselines: sb3-contrib's policies with whole sequences, and with the other cell."""

from typing import Any

import gymnasium
import numpy as np
import pytest
import torch
from gymnasium import spaces
from sb3_contrib import RecurrentPPO
from sb3_contrib.common.recurrent.policies import RecurrentActorCriticPolicy
from sb3_contrib.common.recurrent.type_aliases import RNNStates
from torch import nn

from rltransformers.envs import make_vec_env
from rltransformers.policies.recurrent import RECURRENT_POLICIES, LSTMPolicy, PairedGRU

VECTOR = spaces.Box(-1, 1, (3,), np.float32)
SPACES = {"vector": VECTOR, "image": spaces.Box(0, 255, (3, 36, 36), np.uint8), "dict": spaces.Dict({"a": VECTOR})}
LSTMS, GRUS = ([(RECURRENT_POLICIES[cell][name], space) for name, space in SPACES.items()] for cell in ("lstm", "gru"))
CRITICS = [{}, {"shared_lstm": True, "enable_critic_lstm": False}, {"enable_critic_lstm": False}]


def policy_of(kind: type[RecurrentActorCriticPolicy], space: gymnasium.Space[Any], **options: Any) -> Any:
    torch.manual_seed(0)
    return kind(space, spaces.Discrete(2), lambda _: 1e-3, lstm_hidden_size=5, n_lstm_layers=2, **options)


def observations(space: gymnasium.Space[Any], steps: int) -> Any:
    rows = [space.sample() for _ in range(steps)]
    if isinstance(space, spaces.Dict):
        return {"a": torch.as_tensor(np.stack([row["a"] for row in rows]))}
    return torch.as_tensor(np.stack(rows))


@pytest.mark.parametrize(("kind", "space"), GRUS + LSTMS)
@pytest.mark.parametrize("critic", CRITICS)
def test_acting_step_by_step_equals_the_segment_with_episodes_that_start_inside(
    kind: type[RecurrentActorCriticPolicy], space: gymnasium.Space[Any], critic: dict[str, Any]
) -> None:
    policy, steps = policy_of(kind, space, **critic), 7
    space.seed(0)
    rows, starts = observations(space, steps), torch.tensor([1.0, 0, 0, 1, 0, 0, 0])
    zeros = (torch.zeros(2, 1, 5), torch.zeros(2, 1, 5))
    states, actions, values, log_probabilities = RNNStates(zeros, zeros), [], [], []
    with torch.no_grad():
        for t in range(steps):
            row = {"a": rows["a"][t : t + 1]} if isinstance(rows, dict) else rows[t : t + 1]
            action, value, log_probability, states = policy(row, states, starts[t : t + 1])
            actions.append(action)
            values.append(value)
            log_probabilities.append(log_probability)
        found = policy.evaluate_actions(rows, torch.cat(actions), RNNStates(zeros, zeros), starts)
    torch.testing.assert_close(found[0], torch.cat(values))
    torch.testing.assert_close(found[1], torch.cat(log_probabilities))
    assert states.pi[0].abs().sum() > 0


@pytest.mark.parametrize(("kind", "space"), GRUS)
@pytest.mark.parametrize("critic", CRITICS)
def test_every_lstm_is_a_gru_and_every_weight_is_trained(
    kind: type[RecurrentActorCriticPolicy], space: gymnasium.Space[Any], critic: dict[str, Any]
) -> None:
    policy = policy_of(kind, space, **critic)
    cells = [module for module in policy.modules() if isinstance(module, nn.RNNBase)]
    assert len(cells) == (1 if critic else 2) and all(type(cell) is PairedGRU for cell in cells)
    assert all((cell.hidden_size, cell.num_layers) == (5, 2) for cell in cells)
    trained = {id(parameter) for group in policy.optimizer.param_groups for parameter in group["params"]}
    assert trained == {id(parameter) for parameter in policy.parameters()}


class Calls:
    """Counts the calls of a network."""

    def __init__(self, network: nn.Module) -> None:
        self.count = 0
        network.register_forward_hook(self._count)

    def _count(self, *_: Any) -> None:
        self.count += 1


@pytest.mark.parametrize("network", [nn.LSTM, PairedGRU])
@pytest.mark.parametrize(
    ("starts", "calls"),
    [
        ([[1, 0, 0, 0], [0, 0, 0, 0], [1, 0, 0, 0]], 1),
        ([[0, 0, 0, 0], [0, 0, 0, 0], [0, 0, 0, 0]], 1),
        ([[1, 0, 0, 0], [0, 0, 1, 0], [0, 0, 0, 0]], 4),
    ],
)
def test_whole_sequences_are_one_call_and_learn_as_steps_do(
    network: type[nn.LSTM], starts: list[list[int]], calls: int
) -> None:
    """Gradients add up in another order: float64 to 1e-12."""
    torch.manual_seed(0)
    cell = network(3, 5, num_layers=2).double()
    begins = torch.tensor(starts, dtype=torch.float64).flatten()
    found = []
    for policy in (LSTMPolicy, RecurrentActorCriticPolicy):
        generator = torch.Generator().manual_seed(1)
        features, hidden, memory, weights = (
            torch.randn(*shape, generator=generator, dtype=torch.float64, requires_grad=True)
            for shape in ((12, 3), (2, 3, 5), (2, 3, 5), (12, 5))
        )
        cell.zero_grad(set_to_none=True)
        counter = Calls(cell)
        outputs, last = policy._process_sequence(features, (hidden, memory), begins, cell)
        ((outputs * weights).sum() + last[0].sum()).backward()
        assert counter.count == (calls if policy is LSTMPolicy or not begins.any() else 4)
        gradients = [features.grad, hidden.grad, *(parameter.grad for parameter in cell.parameters())]
        found.append([outputs, *last, *gradients])
    for ours, theirs in zip(*found, strict=True):
        torch.testing.assert_close(ours, theirs, rtol=1e-12, atol=1e-12)


def test_minibatches_of_training_are_whole_sequences() -> None:
    """Also those of episodes that end inside of a rollout, and of a rollout that goes on with an episode."""
    env = make_vec_env("rltransformers/CueRecall-v0", 4, seed=0, env_kwargs={"delay": 5})
    model = RecurrentPPO(LSTMPolicy, env, n_steps=16, batch_size=32, n_epochs=1, seed=0)
    policy: Any = model.policy
    calls = Calls(policy.lstm_actor)
    model.learn(4 * 32)
    acting, minibatches = 2 * 16, 2 * 2
    assert calls.count == acting + minibatches


def test_the_cell_is_that_of_torch() -> None:
    torch.manual_seed(0)
    cell, x, hidden = PairedGRU(3, 4), torch.randn(6, 2, 3), torch.randn(1, 2, 4)
    plain = nn.GRU(3, 4)
    plain.load_state_dict(cell.state_dict())
    outputs, (one, other) = cell(x, (hidden, torch.full_like(hidden, torch.nan)))
    expected, last = plain(x, hidden)
    torch.testing.assert_close(outputs, expected)
    torch.testing.assert_close(one, last)
    torch.testing.assert_close(other, last)
