"""Values as distributions, advantages and bins, against loops and numbers computed by hand."""

import numpy as np
import pytest
import torch

from rltransformers.algorithms.advantage import advantages, bin_edges, bins_of, mean_values, value_losses


def test_the_loss_of_a_value_shares_a_target_between_its_two_nearest_atoms() -> None:
    logits = torch.randn(2, 3, 5, generator=torch.Generator().manual_seed(0), dtype=torch.float64)
    targets = torch.tensor([[0.0, 0.1, 0.25], [0.9, 1.0, 1.5]], dtype=torch.float64)  # one outside [0, 1]
    weights = torch.tensor(
        [
            [[1, 0, 0, 0, 0], [0.6, 0.4, 0, 0, 0], [0, 1, 0, 0, 0]],
            [[0, 0, 0, 0.4, 0.6], [0, 0, 0, 0, 1], [0, 0, 0, 0, 1]],
        ],
        dtype=torch.float64,
    )
    expected = -(weights * logits.softmax(-1).log()).sum(-1)
    torch.testing.assert_close(value_losses(logits, targets), expected, atol=1e-12, rtol=0.0)
    atoms = torch.tensor([0.0, 0.25, 0.5, 0.75, 1.0]).double()
    torch.testing.assert_close(mean_values(logits), (logits.softmax(-1) * atoms).sum(-1), atol=1e-12, rtol=0.0)
    torch.testing.assert_close(mean_values((weights + 1e-300).log())[0, 1], torch.tensor(0.1).double())


@pytest.mark.parametrize("lam", [0.0, 0.7, 1.0])
def test_advantages_are_those_of_a_loop_over_every_episode(lam: float) -> None:
    generator, discount = np.random.default_rng(1), 0.9
    offsets = np.array([0, 4, 5, 11])
    rewards, values = generator.normal(size=(2, 11))
    found = advantages(rewards, values, offsets, discount, lam)
    for start, end in ((0, 4), (4, 5), (5, 11)):
        for t in range(start, end):
            expected = 0.0
            for i in range(t, end):
                following = values[i + 1] if i + 1 < end else 0.0
                expected += (discount * lam) ** (i - t) * (rewards[i] + discount * following - values[i])
            assert found[t] == pytest.approx(expected, abs=1e-12)
            if lam == 1.0:
                to_go = sum(discount ** (i - t) * rewards[i] for i in range(t, end))
                assert found[t] == pytest.approx(to_go - values[t], abs=1e-12)


def test_bins_hold_equally_many_values_and_equal_values_share_the_better_one() -> None:
    values = np.random.default_rng(0).permutation(12).astype(float)
    bins = bins_of(values, bin_edges(values, 4))
    assert [int((bins == index).sum()) for index in range(4)] == [3, 3, 3, 3]
    assert (bins[np.argsort(values)] == np.repeat([0, 1, 2, 3], 3)).all()
    assert (bins_of(np.zeros(9), bin_edges(np.zeros(9), 4)) == 3).all()
    tied = np.array([-1.0, 2.0, 2.0, 2.0, 2.0, 2.0])
    assert bins_of(tied, bin_edges(tied, 3)).tolist() == [0, 2, 2, 2, 2, 2]
