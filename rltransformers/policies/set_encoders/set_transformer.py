"""The Set Transformer: elements read what a few learned points have read of them (Lee et al. 2019, arXiv 1810.00825).

Axes: B observations, N elements, m inducing points, W width.
"""

from dataclasses import dataclass

import torch
from jaxtyping import Bool, Float
from torch import Tensor, nn

from rltransformers.core.spec import Size, Spec, Traits
from rltransformers.policies.set_encoders.interface import AttentionBlock, EncoderOptions, Position, check_table


class InducedBlock(nn.Module):
    """``ISAB(X) = MAB(X, MAB(I, X))`` with m learned points I (equations 9 and 10)."""

    def __init__(self, width: int, heads: int, ff_width: int, points: int) -> None:
        super().__init__()
        self.points = nn.Parameter(nn.init.xavier_uniform_(torch.empty(points, width)))
        self.gather, self.spread = (AttentionBlock(width, heads, ff_width) for _ in range(2))

    def forward(self, x: Float[Tensor, "B N W"], exists: Bool[Tensor, "B N"]) -> Float[Tensor, "B N W"]:
        summary = self.gather(self.points.expand(x.shape[0], -1, -1), x, exists)
        return self.spread(x, summary)


class InducedStack(nn.Module):
    """Blocks in turn."""

    def __init__(self, blocks: list[InducedBlock]) -> None:
        super().__init__()
        self.blocks = nn.ModuleList(blocks)

    def forward(self, x: Float[Tensor, "B N W"], exists: Bool[Tensor, "B N"]) -> Float[Tensor, "B N W"]:
        for block in self.blocks:
            x = block(x, exists)
        return x


@dataclass(frozen=True)
class Options(EncoderOptions):
    """Options of the Set Transformer.

    Attributes:
        points: inducing points m of a layer.
    """

    position: Position = "none"
    points: Size = 16


def build(elements: int, width: int, options: Options) -> InducedStack:
    """Build blocks as in equations 6 to 10, with layer norms, biases of linear maps but not of keys, and ReLU.

    Compared with github.com/juho-lee/set_transformer at 73432c6 (two times ``ISAB`` with layer norms, and the block of
    ``PMA``), with its weights, in float64: largest error 6.7e-16. Its blocks add the projected query, not X, have no
    W_o, divide by sqrt(W) and end with one linear map and a ReLU; the comparison sets W_q to the identity there, and
    W_o and the second map of the feed-forward layer here.

    Raises:
        ConfigError: the points would fill the memory.
    """
    check_table("the inducing points of encoder 'set_transformer'", options.points, width, "lower points")
    inner = options.ff_width or 4 * width
    blocks = [InducedBlock(width, options.heads, inner, options.points) for _ in range(options.layers)]
    return InducedStack(blocks)


SPEC = Spec(
    id="S9-encoder", name="set_transformer", axis="encoder",
    paper="Lee et al. 2019, arXiv 1810.00825, equations 6 to 11",
    summary="A few learned points read all elements of an observation, and elements read the points.", build=build,
    options=Options, example={"observation": {"encoder": {"name": "set_transformer", "layers": 1, "points": 3}}},
    traits=Traits(
        causality="N/A",
        horizon="-",
        time="N",
        causal_form="as in the paper's equations; the authors' code adds the projected query in place of X, has no "
        "W_o, divides by sqrt(W) and ends a block with one linear map and a ReLU",
    ),
    formula="MAB(X, MAB(I, X)), MAB(X, Y) = LN(h + rFF(h)), h = LN(X + softmax(X W_q (Y W_k)^T / sqrt(Dh)) Y W_v W_o)",
)  # fmt: skip
