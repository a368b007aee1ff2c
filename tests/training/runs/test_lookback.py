"""The look-back meter sees every call of a backbone and changes none."""

import numpy as np
import pytest
import torch

from rltransformers.backbone import Backbone, BackboneConfig, Record
from rltransformers.core.errors import ConfigError
from rltransformers.training.runs.lookback import LookbackMeter, lookback_of, newest_attention, recording


def test_attention_of_all_calls_is_averaged_and_outputs_stay() -> None:
    torch.manual_seed(0)
    backbone = Backbone(BackboneConfig.preset("gtrxl", width=16, layers=3, heads=2, memory=5)).eval()
    x = torch.randn(2, 7, 16)

    def act() -> torch.Tensor:
        state, outputs = None, []
        for t in range(7):
            y, state = backbone(x[:, t : t + 1], state)
            outputs.append(y)
        return torch.cat(outputs, 1)

    with torch.no_grad():
        before = act()
        with lookback_of(backbone) as meter:
            during = act()
        # Explicit weights and the fused kernel round differently in float32.
        torch.testing.assert_close(during, before, rtol=0, atol=1e-5)
        assert torch.equal(before, act())
    found = meter.result()
    weights = list(found.values())
    assert list(found) == ["layer0", "layer1", "layer2"] and all(
        layer.shape == weights[0].shape and layer.shape[1] >= 6 for layer in weights
    )
    # Every token's weights sum to one; float32 rounding over 7 calls stays far below 1e-5.
    np.testing.assert_allclose([layer.sum(1) for layer in weights], np.ones((3, 2)), rtol=0, atol=1e-5)


@torch.no_grad()
def test_attention_of_a_token_is_the_same_in_a_step_and_in_a_long_call() -> None:
    """Of a memory of 4 steps, 45 tokens are cut into blocks of 16, the last one with padding."""
    torch.manual_seed(0)
    backbone = Backbone(BackboneConfig.preset("gtrxl", width=18, layers=2, heads=3, memory=4)).eval()
    x, records = torch.randn(2, 45, 18), list[tuple[Record, torch.Tensor]]()

    def collect(record: Record, tokens: torch.Tensor, timestep: torch.Tensor | None) -> None:
        records.append((record, tokens))

    with recording(backbone, collect):
        backbone(x)
        state = backbone.initial_state(2, cached=True)
        for t in range(45):
            _, state = backbone.step(x[:, t : t + 1], state)
    (whole, *_, newest) = [newest_attention(*each) for each in records]
    assert whole["layer0"].shape == (2, 3, 5) and len(records) == 46
    for layer, mass in whole.items():
        torch.testing.assert_close(newest[layer], mass, rtol=0, atol=1e-6)  # rounding of float32, weights below 1
        torch.testing.assert_close(mass.sum(-1), torch.ones(2, 3), rtol=0, atol=1e-6)


def test_decisions_count_alike_and_are_padded() -> None:
    meter = LookbackMeter()
    meter.add({"layer1": torch.tensor([[[1.0, 0.0], [0.0, 1.0]], [[1.0, 0.0], [0.0, 1.0]]])})
    meter.add({"layer1": torch.tensor([[[0.0, 0.0, 1.0], [0.0, 0.0, 1.0]]])})
    meter.add({"layer1": torch.zeros(0, 2, 2)})
    np.testing.assert_array_equal(meter.result()["layer1"], [[2 / 3, 0.0, 1 / 3], [0.0, 2 / 3, 1 / 3]])


def test_a_backbone_without_weights_is_refused() -> None:
    assert LookbackMeter().result() == {}
    with pytest.raises(ConfigError, match=r"no attention weights.*leave the picture out"):
        LookbackMeter().add({})
