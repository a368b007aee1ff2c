"""One row per encoder, and more where options change what is computed: settings to test it with, twin, abilities.

Sizes differ: B = 2, T = 3, H = 4, Dh = 5, F = 8, N = 10, hidden units 11, W = 20.
"""

from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from typing import Any

import torch
from gymnasium import spaces
from torch import Tensor

from rltransformers.policies.observed import SetEncoder, build_encoder
from rltransformers.policies.set_encoders.catalogue import read_encoder
from tests.policies.set_encoders import twins

LEAD, HEADS, FEATURES, ELEMENTS, HIDDEN, WIDTH = (2, 3), 4, 8, 10, 11, 20


@dataclass(frozen=True)
class Row:
    """What the contract suite knows of an encoder.

    Attributes:
        options: of the entry.
        twin: from the layers, tokens [n, W] of the elements that exist, and their places, to rows [n, W].
        symmetric: whether elements without positions are a set to it.
        whole: options of a set of 256 elements and of one of 1024, whose cost is compared.
    """

    options: Mapping[str, Any]
    twin: Callable[[torch.nn.Module, Tensor, list[int]], Tensor]
    symmetric: bool = False
    whole: Mapping[str, Any] = field(default_factory=dict)

    @property
    def name(self) -> str:
        """Of the entry."""
        return str(self.options["name"])


ROWS = {
    "bert": Row({"name": "bert"}, twins.bert, symmetric=True),
    "set_transformer": Row(
        {"name": "set_transformer", "points": 7}, twins.set_transformer, symmetric=True, whole={"points": 16}
    ),
    "linformer": Row({"name": "linformer", "slots": 7}, twins.linformer, whole={"slots": 16}),
    "linformer_none": Row({"name": "linformer", "slots": 7, "sharing": "none"}, twins.linformer, whole={"slots": 16}),
    "linformer_kv": Row({"name": "linformer", "slots": 7, "sharing": "kv"}, twins.linformer, whole={"slots": 16}),
    "linformer_layerwise": Row(
        {"name": "linformer", "slots": 7, "sharing": "layerwise"}, twins.linformer, whole={"slots": 16}
    ),
    "luna": Row({"name": "luna", "slots": 7}, twins.luna, symmetric=True, whole={"slots": 16}),
    "luna_untied": Row({"name": "luna", "slots": 7, "tied": False}, twins.luna, symmetric=True, whole={"slots": 16}),
    "informer": Row({"name": "informer", "samples": 6, "active_queries": 3, "seed": 9}, twins.informer),
    "nystrom": Row({"name": "nystrom", "landmarks": 3, "conv": 5}, twins.nystrom, whole={"landmarks": 16}),
}

SPACE = spaces.Dict(
    {
        "units": spaces.Box(-1, 1, (ELEMENTS, FEATURES)),
        "alive": spaces.MultiBinary(ELEMENTS),
        "score": spaces.Box(-1, 1, (2,)),
    }
)


def encoder_of(row: Row, start: int = 5, **changes: Any) -> SetEncoder:
    """In float64, with weights far enough from their first values that every one matters; ``start`` seeds them."""
    torch.manual_seed(start)
    choice = read_encoder({**row.options, "heads": HEADS, "ff_width": HIDDEN, "mask": "alive", **changes})
    assert choice is not None
    encoder = build_encoder(choice, SPACE, WIDTH).double()
    with torch.no_grad():
        for each in encoder.parameters():
            each.add_(0.1 * torch.randn_like(each))
    return encoder


def observations(lead: tuple[int, ...] = LEAD, seed: int = 3) -> dict[str, Tensor]:
    """Some elements of every observation exist; the first observation has all."""
    generator = torch.Generator().manual_seed(seed)
    alive = torch.rand(*lead, ELEMENTS, generator=generator) > 0.35
    alive.reshape(-1, ELEMENTS)[0] = True
    alive[..., 4] = True
    units = torch.randn(*lead, ELEMENTS, FEATURES, generator=generator, dtype=torch.float64)
    return {"units": units, "alive": alive.to(torch.int8)}
