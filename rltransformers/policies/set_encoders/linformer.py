"""The encoder of Linformer: elements read a few mixtures of them (Wang et al. 2020, arXiv 2006.04768).

Axes: B observations, N elements, H heads, G heads with a projection of their own or 1, c slots, Dh width of a head.
"""

from dataclasses import dataclass
from typing import Literal

import torch
from jaxtyping import Bool, Float
from torch import Tensor, nn

from rltransformers.core.errors import ConfigError
from rltransformers.core.spec import Size, Spec, Traits
from rltransformers.policies.set_encoders.interface import Attention, EncoderOptions, PostNormStack, attend, check_table

Sharing = Literal["none", "headwise", "kv", "layerwise"]


def project(
    x: Float[Tensor, "B H N Dh"], projection: Float[Tensor, "G c N"], exists: Bool[Tensor, "B N"]
) -> Float[Tensor, "B H c Dh"]:
    """``E x`` over the rows that exist."""
    return projection @ x.masked_fill(~exists[:, None, :, None], 0.0)


class Projections(nn.Module):
    """E for keys and F for values, or one for both; they start as N(0, 1 / N), so that slots are as large as rows."""

    def __init__(self, groups: int, slots: int, elements: int, one: bool) -> None:
        super().__init__()
        self.of_keys = nn.Parameter(torch.randn(groups, slots, elements) * elements**-0.5)
        self.of_values = self.of_keys if one else nn.Parameter(torch.randn(groups, slots, elements) * elements**-0.5)


class ProjectedAttention(Attention):
    """``softmax(q (E k)^T / sqrt(Dh)) F v`` (equation 7)."""

    def __init__(self, width: int, heads: int, projections: Projections) -> None:
        super().__init__(width, heads)
        self.projections = projections

    def read(self, q: Tensor, k: Tensor, v: Tensor, exists: Tensor) -> Tensor:
        keys = project(k, self.projections.of_keys, exists)
        return attend(q, keys, project(v, self.projections.of_values, exists))  # slots always exist, if only as zeros


@dataclass(frozen=True)
class Options(EncoderOptions):
    """Options of Linformer.

    Attributes:
        slots: projected keys and values; default: a quarter of the elements, between 2 and 256, the most in the paper.
        sharing: of E and F: by nobody ("none"), by the heads of a layer ("headwise"), by keys and values, too ("kv",
            E = F), or by all layers, one E for all of it ("layerwise").
    """

    slots: Size | None = None
    sharing: Sharing = "headwise"


def build(elements: int, width: int, options: Options) -> PostNormStack:
    """Build the layers of BERT, as in the paper, with projections over the fixed N.

    Compared with github.com/lucidrains/linformer at 970e1c3, one layer of attention with its weights, in float64:
    largest error 1.3e-15, also where the last elements are absent. There E starts uniform in +-c^-1/2, layers have
    their norms in front, and ``share_kv`` makes one map of that of keys and that of values, too.

    Raises:
        ConfigError: more slots than elements, or projections that would fill the memory.
    """
    slots = options.slots or max(min(elements, 2), min(256, elements // 4))  # of one slot all would read the same
    if slots > elements:
        raise ConfigError(
            f"encoder 'linformer' makes {slots} slots of {elements} elements; set slots to at most {elements}"
        )
    groups = options.heads if options.sharing == "none" else 1
    check_table("a projection of encoder 'linformer'", groups * slots, elements, "lower slots, or share them by heads")
    one = options.sharing in ("kv", "layerwise")
    made = [
        Projections(groups, slots, elements, one)
        for _ in range(1 if options.sharing == "layerwise" else options.layers)
    ]
    attentions = [ProjectedAttention(width, options.heads, made[layer % len(made)]) for layer in range(options.layers)]
    return PostNormStack(width, attentions, options.ff_width or 4 * width)


SPEC = Spec(
    id="S8-encoder", name="linformer", axis="encoder", paper="Wang et al. 2020, arXiv 2006.04768, equation 7",
    summary="Elements of an observation attend to a few learned mixtures of their keys and values.", build=build,
    options=Options, example={"observation": {"encoder": {"name": "linformer", "layers": 1, "slots": 2}}},
    traits=Traits(
        causality="N/A",
        horizon="-",
        time="N",
        causal_form="absent elements are left out of the mixtures, which are not rescaled; mixtures start from "
                    "N(0, 1 / N)",
    ),
    formula="o_i = softmax(q_i (E K)^T / sqrt(Dh)) F V",
)  # fmt: skip
