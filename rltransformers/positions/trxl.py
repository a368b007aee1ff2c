"""Relative scores of Transformer-XL: content and position biases, sinusoids of the distance (Dai et al. 2019)."""

import torch
from torch import Tensor, nn

from rltransformers.core.spec import Spec
from rltransformers.functional.modules import linear
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
        self._distance: Tensor | None = None
        self._encoded = torch.empty(0)

    def content_query(self, q: Tensor) -> Tensor:
        """q + u."""
        return q + self.content_bias

    def logits(self, q: Tensor, distance: Tensor) -> Tensor:
        """[B, H, T, L]: one product per head, for all streams and tokens at once."""
        batch, heads, time, width = q.shape
        r = linear(self.project, self.encoded(distance, q)).view(-1, heads, width)
        biased = (q + self.position_bias).transpose(0, 1).reshape(heads, batch * time, width)
        return torch.bmm(biased, r.permute(1, 2, 0)).view(heads, batch, time, -1).transpose(0, 1)

    def encoded(self, distance: Tensor, like: Tensor) -> Tensor:
        """PE(d) / sqrt(Dh) [L, D]; kept while the same list of distances comes again, as it does in acting."""
        if self._distance is not distance or self._encoded.dtype != like.dtype:
            with torch.inference_mode(False):
                scale = like.shape[-1] ** -0.5
                self._distance, self._encoded = distance, sinusoid(distance, self.project.in_features, like) * scale
        return self._encoded


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
