"""Localness: every query predicts where it looks, and how widely (Yang et al. 2018).

Axes: B batch, H heads, T tokens, L distances, K head width.
"""

from dataclasses import dataclass
from typing import Annotated

import torch
from annotated_types import Ge, Le
from jaxtyping import Float, Int
from torch import Tensor, nn

from rltransformers.attention.roles import Part
from rltransformers.core.spec import Feature, Spec, Traits
from rltransformers.functional.call import Tokens
from rltransformers.functional.modules import wide
from rltransformers.mixers.interface import Dims

NARROWEST = 0.5
"""Smallest standard deviation in tokens: narrower ones tell no distance from its neighbors."""


def gaussian(
    center: Float[Tensor, "B H T"], window: Float[Tensor, "*B H T"], distance: Int[Tensor, " L"]
) -> Float[Tensor, "B H T L"]:
    """``-(d - center)^2 / (2 sd^2)`` with sd half of the window."""
    deviation = (window / 2).clamp(min=NARROWEST)[..., None]
    return -0.5 * ((distance - center[..., None]) / deviation).square()


@dataclass(frozen=True)
class Options:
    """Twice the standard deviation in tokens; None lets every query predict it."""

    window: Annotated[float, Ge(1), Le(1e12)] | None = None


class PredictedGaussian(Part):
    """A penalty for the distance from a center; center and window are shares of the visible past of the query."""

    scores_queries = True

    def __init__(self, dims: Dims, options: Options) -> None:
        super().__init__()
        heads, head_dim, self.window = dims.heads, dims.head_dim, options.window
        self.reach = dims.tokens_in_view - 1  # distance of the oldest token of a full window
        self.hidden = nn.Parameter(torch.randn(heads, head_dim, head_dim) / head_dim**0.5)
        self.center = nn.Parameter(torch.randn(heads, head_dim) / head_dim**0.5)
        self.width = nn.Parameter(torch.randn(heads, head_dim) / head_dim**0.5) if self.window is None else None

    def of_queries(self, q: Tensor, distance: Tensor, tokens: Tokens) -> Tensor:
        """Squares in float32 at least."""
        inner = torch.tanh(q @ self.hidden.transpose(1, 2))
        past = tokens.p.clamp(max=self.reach)[:, None]
        center = past * self.share(inner, self.center)
        if self.width is None:
            window = torch.full_like(center, self.window or 0.0)
        else:
            window = past * self.share(inner, self.width)
        return gaussian(center, window, distance).to(q.dtype)

    @staticmethod
    def share(inner: Float[Tensor, "B H T K"], weight: Float[Tensor, "H K"]) -> Float[Tensor, "B H T"]:
        """Between 0 and 1."""
        product = (inner * weight[:, None]).sum(-1)
        return wide(product).sigmoid()


SPEC = Spec(
    id="B1", name="gaussian_predicted", axis="prior", paper="Yang et al. 2018, arXiv 1810.10182, equations 4-8",
    summary="Every query predicts a distance and a width; scores are lowered by a Gaussian around that distance.",
    build=PredictedGaussian, options=Options,
    traits=Traits(
        causality="C*",
        family="EXPL",
        causal_form="center and width are shares of the visible past n_t = min(p_t, W - 1), counted backwards, "
                    "there of the sentence; a deviation is at least half a token",
    ),
    needs=(Feature.SCORES, Feature.PRODUCTS),
    formula="l_ts += -(d - P_t)^2 / (2 sd_t^2), P_t = n_t sigm(u_p h_t), sd_t = max(1/2, n_t sigm(u_d h_t) / 2), "
    "h_t = tanh(W q_t)",
)  # fmt: skip
