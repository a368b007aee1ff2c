"""The GRU baseline: sb3-contrib's policies with the other cell."""

from typing import Any

import gymnasium
import numpy as np
import pytest
import torch
from gymnasium import spaces
from sb3_contrib.common.recurrent.policies import RecurrentActorCriticPolicy
from sb3_contrib.common.recurrent.type_aliases import RNNStates
from torch import nn

from rltransformers.policies.gru import CnnGRUPolicy, GRUPolicy, MultiInputGRUPolicy, PairedGRU

VECTOR = spaces.Box(-1, 1, (3,), np.float32)
IMAGE = spaces.Box(0, 255, (3, 36, 36), np.uint8)
KINDS: list[tuple[type[RecurrentActorCriticPolicy], gymnasium.Space[Any]]] = [
    (GRUPolicy, VECTOR),
    (CnnGRUPolicy, IMAGE),
    (MultiInputGRUPolicy, spaces.Dict({"a": VECTOR})),
]
CRITICS = [{}, {"shared_lstm": True, "enable_critic_lstm": False}, {"enable_critic_lstm": False}]


def policy_of(kind: type[RecurrentActorCriticPolicy], space: gymnasium.Space[Any], **options: Any) -> Any:
    torch.manual_seed(0)
    return kind(space, spaces.Discrete(2), lambda _: 1e-3, lstm_hidden_size=5, n_lstm_layers=2, **options)


def observations(space: gymnasium.Space[Any], steps: int) -> Any:
    rows = [space.sample() for _ in range(steps)]
    if isinstance(space, spaces.Dict):
        return {"a": torch.as_tensor(np.stack([row["a"] for row in rows]))}
    return torch.as_tensor(np.stack(rows))


@pytest.mark.parametrize(("kind", "space"), KINDS)
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


@pytest.mark.parametrize(("kind", "space"), KINDS)
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
