"""Rows and twins of further entries: priors, and mixers and transforms that mix the newest tokens."""

from typing import Any

import torch
from torch import Tensor

from rltransformers.backbone import Backbone
from tests.attention import twins
from tests.attention.row import KERNEL, Limit, Row


def dynamic_conv_twin(mixer: Any, x: Tensor) -> tuple[Tensor, dict[str, Tensor]]:
    """Wu et al. 2019, equation 4, channel by channel."""
    width, heads, taps = x.shape[1], mixer.heads, mixer.taps
    value, gate = mixer.project(x)[:, :width], mixer.project(x)[:, width:]
    y = value / (1 + torch.exp(-gate))
    rows = []
    for t in range(len(x)):
        predicted = torch.exp(mixer.predict.weight @ y[t])
        channels = []
        for channel in range(width):
            head = channel * heads // width
            weights = predicted[head * taps : (head + 1) * taps]
            lags = range(min(t + 1, taps))
            total = weights[: len(lags)].sum() if mixer.renormalise else weights.sum()
            channels.append(torch.stack([weights[lag] * y[t - lag, channel] for lag in lags]).sum() / total)
        rows.append(torch.stack(channels))
    return mixer.out(torch.stack(rows)), {"taps": torch.cat([y.new_zeros(taps - 1, width), y])[len(y) :]}


def equal_taps(special: Backbone, plain: Backbone) -> None:
    """Kernels that do not read the token, and kernels that are learned alone: all taps weigh the same."""
    for index in range(len(special.layers)):
        special.get_parameter(f"layers.{index}.mixing.mixer.predict.weight").data.zero_()
        plain.get_parameter(f"layers.{index}.mixing.mixer.kernel").data.zero_()


DYNAMIC = {**KERNEL, "mixer": {"name": "dynamic_conv", "taps": 4}}

ROWS: dict[tuple[str, str], Row] = {
    ("mixer", "dynamic_conv"): Row(
        DYNAMIC,
        twins.other_mixer(dynamic_conv_twin),
        (Limit(DYNAMIC, {**KERNEL, "mixer": {"name": "light_conv", "taps": 4}}, equal_taps),),
    ),
}
VARIANTS: dict[str, Row] = {
    "dynamic convolution padded with zeros": Row(
        {**KERNEL, "mixer": {"name": "dynamic_conv", "taps": 3, "pad": "zero"}}
    ),
}
PRESET_ROWS: dict[str, Row] = {"dynamic_conv": Row({"width": 12, "heads": 4})}
