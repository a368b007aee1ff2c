"""Facts about gated linear attention that the contract does not state: what its channels keep."""

import pytest
import torch

from rltransformers.core.record import Probe, Record
from rltransformers.functional.call import Call
from rltransformers.functional.recurrences import causal_sums
from rltransformers.mixers import gla
from tests.mixers.episodes import DIMS, T, fresh, heads_of, one_episode, run

pytestmark = pytest.mark.usefixtures("double")


def mixer_with(*logits: float, temperature: float = 1.0) -> gla.GatedLinearAttention:
    """A mixer whose channels decay by fixed logits, those of a head's three channels."""
    mixer = gla.GatedLinearAttention(DIMS, gla.Options(temperature=temperature))
    rates = mixer.rates[1]
    assert isinstance(rates, torch.nn.Linear)
    rates.weight.data.zero_()
    rates.bias.data.copy_(torch.tensor(logits).repeat(DIMS.kv_heads))
    return mixer


def test_with_one_decay_for_all_channels_the_sums_are_those_of_one_rate_per_head() -> None:
    mixer, x = mixer_with(0.7, 0.7, 0.7, temperature=2.0), torch.randn(2, T, 12)
    q, k, v = heads_of(mixer, x)
    decay = torch.full(q.shape[:3], 0.7).sigmoid().log() / 2
    sums, _ = causal_sums(q / 3**0.5, k, v, torch.zeros(2, 4, 3, 5), one_episode(T, 2), log_decay=decay)
    torch.testing.assert_close(run(mixer, x), mixer.out(sums, x))


def test_a_channel_that_keeps_everything_holds_the_first_token_and_one_that_keeps_nothing_the_last() -> None:
    mixer, x = mixer_with(1e4, -1e4, 0.0), torch.randn(1, T, 12)
    _, k, v = heads_of(mixer, x)
    after = mixer(x, fresh(mixer), Call(one_episode())).state["sum"]
    products = k[..., None] * v[..., None, :]
    torch.testing.assert_close(after[:, :, 0], products[:, :, :, 0].sum(2))
    torch.testing.assert_close(after[:, :, 1], products[:, :, -1, 1])
    halved = sum(products[:, :, t, 2] * 0.5 ** (T - 1 - t) for t in range(T))
    torch.testing.assert_close(after[:, :, 2], halved)


def test_the_record_tells_how_much_is_kept() -> None:
    mixer, record = mixer_with(0.0, 0.0, 0.0), Record()
    run(mixer, torch.randn(2, T, 12), Probe(record, "layer0"))
    torch.testing.assert_close(record.metrics["layer0/kept"], torch.tensor(0.5))
