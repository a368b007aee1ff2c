"""Decays of channels where they equal decays of heads."""

import pytest
import torch

from rltransformers.functional.channels import channel_delta_sums, channel_sums
from rltransformers.functional.delta import delta_sums
from rltransformers.functional.recurrences import causal_sums
from tests.functional.test_recurrences import B, H, T, example, tokens_of


@pytest.mark.parametrize("corrects", [False, True])
def test_equal_decays_of_all_channels_are_one_decay(corrects: bool) -> None:
    q, k, v, state, reset = example()
    k = torch.nn.functional.normalize(k, dim=-1)
    log_decay, rate = -torch.rand(B, H, T, dtype=torch.float64), torch.rand(B, H, T, dtype=torch.float64)
    tokens = tokens_of(reset, torch.tensor([6, 2, 4]), torch.tensor([0, 7, 12]))
    channels = log_decay[..., None].expand(k.shape)
    if corrects:
        ours = channel_delta_sums(q, k, v, rate, state, tokens, channels, 8)
        expected = delta_sums(q, k, v, rate, state, tokens, 8, log_decay)
    else:
        ours = channel_sums(q, k, v, state, tokens, channels, 8)
        expected = causal_sums(q, k, v, state, tokens, 8, log_decay)
    torch.testing.assert_close(ours[1], expected[1])
    for b, count in enumerate([0, 7, 12]):
        torch.testing.assert_close(ours[0][b, :, :count], expected[0][b, :, :count])


def test_a_channel_that_forgets_everything_leaves_the_others_exact() -> None:
    """Over 64 tokens e^-6400 underflows; a division by it would make the slow channel NaN, too."""
    q, k, v, state, _ = example()
    q, k, v = (x[:, :, :1].expand(-1, -1, 64, -1).float() for x in (q, k, v))
    log_decay = torch.tensor([-100.0, -1e-3, 0.0, -1e4]).expand(k.shape)
    tokens = tokens_of(torch.zeros(B, 64, dtype=torch.bool), torch.tensor([6, 2, 4]))
    _, after = channel_sums(q, k, v, state.float(), tokens, log_decay, 64)
    slow = torch.exp(-1e-3 * torch.arange(64, dtype=torch.float64)).sum()
    one = (k[:, :, 0, :, None] * v[:, :, 0, None]).double()
    kept = (one[:, :, 1] * slow + state[:, :, 1] * torch.exp(torch.tensor(-0.064, dtype=torch.float64))).float()
    torch.testing.assert_close(after[:, :, 1], kept, rtol=1e-5, atol=1e-5)
    torch.testing.assert_close(after[:, :, 3], one[:, :, 3].float())
