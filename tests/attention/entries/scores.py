"""Rows and twins of further entries: scores."""

import math

import torch
from torch import Tensor

from rltransformers.backbone import Backbone
from tests.attention.row import GROUPED_SIZES, Limit, Row
from tests.attention.twins import Meeting, Reader, Rows, attention_by, softmax

SCORES = "tests/attention/test_scores.py::"
NONE = {"position": "none"}


def mixers(special: Backbone, plain: Backbone) -> list[tuple[torch.nn.Module, torch.nn.Module]]:
    """The mixers of both, layer by layer."""
    count = len(special.layers)
    return [
        (special.get_submodule(f"layers.{i}.mixing.mixer"), plain.get_submodule(f"layers.{i}.mixing.mixer"))
        for i in range(count)
    ]


# Hopfield


def beta(reader: Reader, head: int, width: int) -> Tensor:
    """Of one head."""
    given, factor = reader.options("mixer").beta, reader.get("mixing.mixer.score.factor")
    fixed = torch.tensor(1 / math.sqrt(width) if given is None else given)
    return fixed if factor is None else fixed * torch.exp(factor[head, 0, 0])


def moved(reader: Reader, head: int, q: Tensor, keys: Rows, added: Rows) -> Tensor:
    """Ramsauer et al. 2020, equation 3, from the query on; Transformer-XL's u belongs to the query."""
    u = reader.get("mixing.mixer.position.content_bias")
    xi = q if u is None else q + u[head, 0]
    for _ in range(reader.options("mixer").updates):
        shares = softmax([beta(reader, head, len(q)) * (xi @ k) + a for k, a in zip(keys, added, strict=True)])
        xi = sum((share * k for share, k in zip(shares, keys, strict=True)), 0 * q)
    return xi


def resemblance(reader: Reader, head: int, xi: Tensor, k: Tensor, distance: int) -> Tensor:
    """beta xi k."""
    return beta(reader, head, len(xi)) * (xi @ k)


ROWS: dict[tuple[str, str], Row] = {
    ("mixer", "hopfield"): Row(
        twin=attention_by(Meeting(content=resemblance, settle=moved)),
        limits=(
            Limit({"mixer": {"name": "hopfield", "updates": 0}}, {}),
            f"{SCORES}test_the_energy_of_a_state_pattern_falls_with_every_update_and_is_never_negative",
            f"{SCORES}test_one_update_finds_the_nearest_of_patterns_that_lie_apart",
        ),
    ),
}
VARIANTS: dict[str, Row] = {
    "hopfield with a learned beta": Row(
        {"mixer": {"name": "hopfield", "beta": 0.7, "learned": True}, "position": "alibi", **GROUPED_SIZES}
    ),
}
PRESET_ROWS: dict[str, Row] = {}
