"""Relative scores of Transformer-XL: content and position biases, sinusoids of the distance (Dai et al. 2019)."""

import torch
from torch import Tensor, nn

from rltransformers.core.spec import Spec
from rltransformers.functional.sinusoids import sinusoid
from rltransformers.positions.interface import Position


class TransformerXLRelative(Position):
    """[(q + u) . k + (q + v) . W_R PE(d)] / sqrt(Dh); u, v and W_R belong to the layer, as with ``untie_r``."""

    at_score = True

    def __init__(self, width: int, heads: int, head_dim: int) -> None:
        super().__init__()
        self.content_bias = nn.Parameter(torch.zeros(heads, 1, head_dim))
        self.position_bias = nn.Parameter(torch.zeros(heads, 1, head_dim))
        self.project = nn.Linear(width, heads * head_dim, bias=False)
        self.heads = heads

    def content_query(self, q: Tensor) -> Tensor:
        """q + u."""
        return q + self.content_bias

    def logits(self, q: Tensor, length: int) -> Tensor:
        """[B, H, T, L]."""
        place = torch.arange(length, device=q.device)
        r = self.project(sinusoid(place, self.project.in_features, q))
        r = r.unflatten(-1, (self.heads, -1)).permute(1, 2, 0)
        return (q + self.position_bias) @ r / q.shape[-1] ** 0.5


def build(width: int, heads: int, head_dim: int) -> Position:
    """P10."""
    return TransformerXLRelative(width, heads, head_dim)


SPEC = Spec(
    id="P10",
    name="trxl",
    axis="position",
    paper="Dai et al. 2019, arXiv 1901.02860, section 3.3",
    summary="Scores content and a projected sinusoid of the distance with separate learned biases.",
    build=build,
    example={"position": "trxl"},
)
