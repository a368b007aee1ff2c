"""Kimi Delta Attention beside Gated DeltaNet, and its decays channel by channel."""

import pytest
import torch
from torch.nn import functional as F

from rltransformers.core.record import Probe, Record
from rltransformers.mixers import gated_deltanet, kda
from rltransformers.mixers.gated_deltanet import GatedDeltaNet
from rltransformers.mixers.interface import Dims
from rltransformers.mixers.kda import KimiDeltaAttention
from tests.mixers.episodes import read

pytestmark = pytest.mark.usefixtures("double")


def test_channels_that_decay_alike_are_those_of_gated_deltanet() -> None:
    dims = Dims(width=12, heads=4, kv_heads=2, head_dim=3, value_dim=5, memory=1)
    ours, other = KimiDeltaAttention(dims, kda.Options(True)), GatedDeltaNet(dims, gated_deltanet.Options(True))
    assert other.decay is not None
    with torch.no_grad():
        for name in ("project.weight", "conv.kernel", "rate.weight", "log_scale"):
            other.get_parameter(name).copy_(ours.get_parameter(name))
        down, up = (ours.decay.get_parameter(f"{layer}.weight") for layer in range(2))
        up.copy_(up[::3].repeat_interleave(3, 0))
        ours.step_bias.copy_(other.step_bias.repeat_interleave(3))
        other.decay.weight.copy_(up[::3] @ down)
    h = torch.randn(2, 40, 12)
    torch.testing.assert_close(read(ours, h), read(other, h))


def memory() -> KimiDeltaAttention:
    """One head of four channels whose inputs are its query, key, value, rate and decays, one after another."""
    dims = Dims(width=16, heads=1, kv_heads=1, head_dim=4, value_dim=3, memory=1)
    mixer, rows = KimiDeltaAttention(dims, kda.Options(conv=0)), torch.eye(16)
    down, up = (mixer.decay.get_parameter(f"{layer}.weight") for layer in range(2))
    parts = rows.split([11, 1, 4])
    for parameter, value in zip((mixer.project.weight, mixer.rate.weight, down), parts, strict=True):
        parameter.data.copy_(value)
    up.data.copy_(torch.eye(4))
    mixer.log_scale.data.zero_()
    mixer.step_bias.data.zero_()
    return mixer


def test_every_channel_forgets_by_itself() -> None:
    mixer, values, decays = memory(), torch.randn(2, 3), torch.randn(7, 4)
    decays[:2] = -1e4  # nothing is lost
    h = torch.zeros(1, 7, 16)
    h[0, :2, 4:6] = 1e4 * torch.eye(2)  # long, so that keys are of length 1 behind SiLU
    h[0, 2:, 6] = 1e4
    h[0, :2, 8:11], h[0, :, 11], h[0, :, 12:] = values, torch.tensor([100.0] * 2 + [-100.0] * 5), decays
    _, state = read(mixer, h)
    kept = (-F.softplus(decays)).exp().prod(0)
    expected = torch.cat([kept[:2, None] * F.silu(values), torch.zeros(2, 3)])
    torch.testing.assert_close(state["weights"][0, 0], expected)


def test_the_record_tells_rates_and_what_is_kept() -> None:
    record = Record()
    read(memory(), torch.zeros(2, 5, 16), Probe(record, "layer0"))
    assert record.metrics["layer0/rate"].item() == 0.5
    assert record.metrics["layer0/kept"].item() == pytest.approx(0.5)


def test_decays_start_between_those_of_the_shortest_and_the_longest_step() -> None:
    dims = Dims(width=8, heads=500, kv_heads=500, head_dim=2, value_dim=1, memory=1)
    mixer = KimiDeltaAttention(dims, kda.Options())
    steps, scales = F.softplus(mixer.step_bias.detach()), mixer.log_scale.detach().exp()
    assert 1e-3 <= float(steps.min()) < 1.1e-3 and 0.098 < float(steps.max()) <= 0.1
    assert 1 <= float(scales.min()) < 1.5 and 15.5 < float(scales.max()) <= 16
