"""Facts about Mamba-2 that the contract does not state: where its steps start, what they keep, what it refuses."""

import math

import pytest
import torch
from torch import Tensor

from rltransformers.core.errors import ConfigError
from rltransformers.core.record import Probe, Record
from rltransformers.functional.call import Call
from rltransformers.mixers import mamba2
from rltransformers.mixers.interface import Dims
from tests.mixers.episodes import DIMS, T, fresh, one_episode, run

pytestmark = pytest.mark.usefixtures("double")


def mixer_with(step: float, rate: float = 1.0) -> mamba2.Mamba2:
    """A mixer whose heads all take steps of one size, whatever the token."""
    mixer = mamba2.Mamba2(DIMS, mamba2.Options(state=6))
    mixer.project.weight.data[-mixer.heads :] = 0
    mixer.step_bias.data.fill_(math.log(math.expm1(step)))
    mixer.log_rate.data.fill_(math.log(rate))
    return mixer


def state_after(mixer: mamba2.Mamba2, x: Tensor) -> Tensor:
    """The states of the heads [H, N, P] after an episode."""
    after: Tensor = mixer(x, fresh(mixer), Call(one_episode(x.shape[1]))).state["sum"][0]
    return after


def products(mixer: mamba2.Mamba2, x: Tensor) -> Tensor:
    """B x^T of every token and head [T, H, N, P]."""
    rows = mixer.project(x)[..., mixer.inner : -mixer.heads]
    mixed, _ = mixer.conv(rows, fresh(mixer)["taps"], one_episode(x.shape[1]))
    value, key, _ = mixed[0].split([mixer.inner, 6, 6], -1)
    return torch.einsum("tn,thp->thnp", key, value.unflatten(-1, (mixer.heads, -1)))


def test_steps_near_zero_leave_the_state_and_long_ones_replace_it() -> None:
    x = torch.randn(1, T, 12)
    slow = mixer_with(1e-9)
    torch.testing.assert_close(state_after(slow, x) / 1e-9, products(slow, x).sum(0), rtol=1e-6, atol=1e-6)
    fast = mixer_with(50.0)
    torch.testing.assert_close(state_after(fast, x), 50 * products(fast, x)[-1])
    half = mixer_with(1.0, rate=math.log(2))
    kept = torch.stack([each * 0.5 ** (T - 1 - t) for t, each in enumerate(products(half, x))])
    torch.testing.assert_close(state_after(half, x), kept.sum(0))


def test_without_what_it_keeps_a_token_meets_the_last_taps_alone() -> None:
    mixer, x = mixer_with(50.0), torch.randn(1, T, 12)
    torch.testing.assert_close(run(mixer, x)[:, -1], run(mixer, x[:, -4:])[:, -1])
    assert not torch.allclose(run(mixer, x)[:, -1], run(mixer, x[:, -3:])[:, -1])


@pytest.mark.parametrize("conv", [0, 1])
def test_without_earlier_taps_and_without_a_state_a_token_is_alone(conv: int) -> None:
    mixer, x = mamba2.Mamba2(DIMS, mamba2.Options(conv=conv)), torch.randn(1, T, 12)
    mixer.project.weight.data[-mixer.heads :] = 0
    mixer.step_bias.data.fill_(1e3)
    torch.testing.assert_close(run(mixer, x)[:, -1], run(mixer, x[:, -1:])[:, -1])


def test_steps_start_between_their_ends_and_rates_between_1_and_16() -> None:
    dims = Dims(width=512, heads=256, kv_heads=256, head_dim=2, value_dim=2, memory=1)
    mixer = mamba2.Mamba2(dims, mamba2.Options(state=1, delta_min=0.01, delta_max=1.0))
    logs = torch.nn.functional.softplus(mixer.step_bias).log10()
    assert len(logs) == 512 and -2 <= logs.min() < -1.95 and -0.05 < logs.max() <= 0
    assert abs(logs.mean() + 1) < 0.1
    rates = mixer.log_rate.exp()
    assert 1 <= rates.min() < 1.2 and 15.8 < rates.max() <= 16 and abs(rates.mean() - 8.5) < 0.6


def test_sizes_that_do_not_fit_are_refused_with_the_way_out() -> None:
    with pytest.raises(ConfigError, match=r"heads \(5\) to divide width \(12\): change one"):
        mamba2.Mamba2(Dims(width=12, heads=5, kv_heads=5, head_dim=3, value_dim=3, memory=1), mamba2.Options())
    with pytest.raises(ConfigError, match=r"delta_min \(0.5\) must be at most delta_max \(0.1\); change one"):
        mamba2.Mamba2(DIMS, mamba2.Options(delta_min=0.5))


def test_the_record_tells_how_much_is_kept() -> None:
    mixer, record = mixer_with(1.0, rate=math.log(2)), Record()
    run(mixer, torch.randn(2, T, 12), Probe(record, "layer0"))
    torch.testing.assert_close(record.metrics["layer0/kept"], torch.tensor(0.5))
