"""Expected values of policies under critics, for every kind of action. B rows, J alternatives."""

import itertools
from typing import Any

import gymnasium as gym
import numpy as np
import pytest
import torch
from gymnasium import spaces
from torch import Tensor

from rltransformers.core.errors import ConfigError
from rltransformers.policies.action_heads import ActionHead
from rltransformers.policies.critics import MAX_ALTERNATIVES, TwinCritics, alternatives, check_alternatives

OBSERVATION = spaces.Box(-1, 1, (3,))
BOX = spaces.Box(np.array([-2.0, 0.0], np.float32), np.array([2.0, 1.0], np.float32))
SPACES: dict[str, spaces.Space[Any]] = {
    "box": BOX,
    "discrete": spaces.Discrete(4, start=2),
    "multi": spaces.MultiDiscrete([2, 3]),
    "binary": spaces.MultiBinary(3),
    "mixed": spaces.Dict({"go": BOX, "what": spaces.Discrete(3), "with": spaces.MultiBinary(2)}),
}


def parts(space: gym.Space[Any], rows: int = 5) -> tuple[ActionHead, TwinCritics, Tensor, dict[str, Tensor]]:
    torch.manual_seed(0)
    head = ActionHead(space, 8)
    critics = TwinCritics(OBSERVATION, head.linear.out_features, 16)
    return head.double(), critics.double(), torch.randn(rows, head.linear.out_features).double(), {
        "": torch.randn(rows, 3).double()
    }  # fmt: skip


@pytest.mark.parametrize("kind", SPACES)
def test_the_expected_value_is_the_mean_over_sampled_actions(kind: str) -> None:
    """Sums over alternatives against the mean over samples of the head itself."""
    head, critics, outputs, observations = parts(SPACES[kind])
    expected = critics.expected(observations, head, outputs)
    count = 4000 if head.draws else 1
    noise = torch.rand(len(outputs), count, head.draws, generator=torch.Generator().manual_seed(3)).double()
    actions = head.decode(outputs[:, None].expand(-1, count, -1), noise if head.draws else None)
    sampled = critics(observations, head.as_numbers(actions))
    error = sampled.std(-1, correction=0) / count**0.5
    # 4.5 standard errors for ten means; a Box is clamped in float32
    assert torch.all((sampled.mean(-1) - expected).abs() <= 4.5 * error + 1e-6)


def test_alternatives_are_all_combinations_with_their_probabilities() -> None:
    head, _, outputs, _ = parts(SPACES["mixed"])
    numbers, probability = alternatives(head, outputs)
    assert numbers.shape == (5, 3 * 2 * 2, 2 + 3 + 2) and probability.shape == (5, 12)
    torch.testing.assert_close(probability.sum(-1), torch.ones(5).double())
    for j, (what, first, second) in enumerate(itertools.product(range(3), range(2), range(2))):
        one_hot = torch.eye(3)[what].tolist()
        assert numbers[0, j, 2:].tolist() == [*one_hot, first, second]
        bits = outputs[0, 5:].sigmoid()
        by_hand = outputs[0, 2:5].softmax(-1)[what]
        by_hand = by_hand * (bits[0] if first else 1 - bits[0]) * (bits[1] if second else 1 - bits[1])
        torch.testing.assert_close(probability[0, j], by_hand)
        torch.testing.assert_close(numbers[0, j, :2], outputs[0, :2].tanh())


def test_the_gradient_raises_what_the_critics_value_most() -> None:
    head, critics, outputs, observations = parts(SPACES["discrete"])
    outputs.requires_grad_(True)
    values = critics(observations, torch.eye(4).double().expand(5, -1, -1))[0]
    critics.expected(observations, head, outputs)[0].sum().backward()
    chances = outputs.softmax(-1)
    assert outputs.grad is not None  # of an expectation under a softmax: p_a (Q_a - E Q)
    torch.testing.assert_close(outputs.grad, (chances * (values - (chances * values).sum(-1, keepdim=True))).detach())


def test_more_combinations_than_can_be_summed_over_are_refused() -> None:
    check_alternatives(ActionHead(spaces.MultiBinary(6), 8))
    with pytest.raises(ConfigError, match=f"at most {MAX_ALTERNATIVES}, .* has 128; leave critic out"):
        check_alternatives(ActionHead(spaces.MultiBinary(7), 8))
