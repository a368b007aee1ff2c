"""The encoder of Nystromformer: elements read through means of segments (Xiong et al. 2021, arXiv 2102.03902).

Axes: B observations, N elements, L landmarks, K taps, H heads, Dh width of a head.
"""

import math
from dataclasses import dataclass
from typing import Annotated

import torch
from annotated_types import Ge, Le
from jaxtyping import Bool, Float
from torch import Tensor, nn
from torch.nn import functional as F

from rltransformers.core.errors import ConfigError
from rltransformers.core.spec import Spec, Traits
from rltransformers.mixers.landmarks import MAX_LANDMARKS, pseudo_inverse
from rltransformers.policies.set_encoders.interface import Attention, EncoderOptions, PostNormStack, check_table, shares


def nystrom(
    q: Float[Tensor, "B H N Dh"],
    k: Float[Tensor, "B H N Dh"],
    v: Float[Tensor, "B H N Dh"],
    exists: Bool[Tensor, "B N"],
    segments: Bool[Tensor, "L N"],
    iterations: int,
) -> Float[Tensor, "B H N Dh"]:
    """``softmax(q k~^T) softmax(q~ k~^T)^+ softmax(q~ k^T) v`` (equation 13); q~ and k~ are means over segments.

    A segment of which no element exists has no landmark.
    """
    members = (segments & exists[:, None]).to(q.dtype)
    count = members.sum(-1)
    present = count > 0
    means = (members / count.clamp(min=1)[..., None])[:, None]
    q = q / math.sqrt(q.shape[-1])
    mean_q, mean_k = means @ q, means @ k
    between = shares(mean_q @ mean_k.transpose(-1, -2), present)
    # An absent landmark is a segment of its own: the inverse of the others is theirs alone.
    identity = torch.eye(len(segments), dtype=between.dtype, device=between.device)
    between = torch.where(present[:, None, :, None], between, identity)
    gathered = shares(mean_q @ k.transpose(-1, -2), exists) @ v
    return shares(q @ mean_k.transpose(-1, -2), present) @ (pseudo_inverse(between, iterations).to(v.dtype) @ gathered)


class NystromAttention(Attention):
    """Nystrom attention, and a convolution per head over the values beside it."""

    segments: Tensor

    def __init__(self, width: int, heads: int, segments: Bool[Tensor, "L N"], iterations: int, taps: int) -> None:
        super().__init__(width, heads)
        self.iterations = iterations
        self.register_buffer("segments", segments, persistent=False)
        self.kernel = nn.Parameter(torch.empty(heads, taps).uniform_(-1, 1) / math.sqrt(taps)) if taps else None

    def read(self, q: Tensor, k: Tensor, v: Tensor, exists: Tensor) -> Tensor:
        found = nystrom(q, k, v, exists, self.segments, self.iterations)
        if self.kernel is None:
            return found
        taps, v = self.kernel.shape[1], v.masked_fill(~exists[:, None, :, None], 0.0)
        return found + F.conv2d(v, self.kernel[:, None, :, None], padding=(taps // 2, 0), groups=self.heads)


@dataclass(frozen=True)
class Options(EncoderOptions):
    """Options of Nystromformer.

    Attributes:
        landmarks: segments; default: a quarter of the elements, at most 64 as published.
        iterations: of the pseudo-inverse; 6 as published, 0 for the exact one.
        conv: taps of the convolution over values, odd, 0 for none; those farther away than any element are left out.
    """

    landmarks: Annotated[int, Ge(1), Le(MAX_LANDMARKS)] | None = None
    iterations: Annotated[int, Ge(0), Le(100)] = 6
    conv: Annotated[int, Ge(0), Le(4095)] = 33


def build(elements: int, width: int, options: Options) -> PostNormStack:
    """Build Nystrom attention in the layers of BERT, as in the paper.

    Compared with github.com/mlpen/Nystromformer at 5689313 (``NystromAttention`` with the start per matrix and the
    convolution), in float64: largest error 1.8e-15; 0.04 against their default start.

    Raises:
        ConfigError: more landmarks than elements, an even number of taps, or segments that would fill the memory.
    """
    landmarks = options.landmarks or max(1, min(64, MAX_LANDMARKS, elements // 4))
    if landmarks > elements:
        raise ConfigError(f"encoder 'nystrom': landmarks ({landmarks}) are means of elements; set at most {elements}")
    if options.conv and options.conv % 2 == 0:
        raise ConfigError(
            f"encoder 'nystrom': conv ({options.conv}) must be odd, to look equally far to both sides; "
            f"set {options.conv + 1}"
        )
    check_table("the segments of encoder 'nystrom'", landmarks, elements, "lower landmarks")
    segment = torch.arange(elements) * landmarks // elements  # their lengths differ by one at most
    segments, taps = segment == torch.arange(landmarks)[:, None], min(options.conv, 2 * elements - 1)
    attentions = [
        NystromAttention(width, options.heads, segments, options.iterations, taps) for _ in range(options.layers)
    ]
    return PostNormStack(width, attentions, options.ff_width or 4 * width)


SPEC = Spec(
    id="S16-encoder", name="nystrom", axis="encoder", paper="Xiong et al. 2021, arXiv 2102.03902, equation 13",
    summary="Elements of an observation attend to each other through means of segments and a pseudo-inverse.",
    build=build, options=Options,
    example={"observation": {"encoder": {"name": "nystrom", "layers": 1, "landmarks": 2}}},
    traits=Traits(
        causality="N/A",
        horizon="-",
        time="N",
        causal_form="the pseudo-inverse starts from the norms of every matrix, in the authors' default from those of "
        "the whole batch; segments may differ in length by one and means are over elements that exist, there absent "
        "ones count as zeros; with as many landmarks as elements it is softmax attention only once the "
        "pseudo-inverse is exact (`iterations: 0`)",
    ),
    formula="o = softmax(Q K~^T) softmax(Q~ K~^T)^+ softmax(Q~ K^T) V + conv(V), logits over sqrt(Dh), "
    "Q~ and K~ means of segments",
)  # fmt: skip
