"""Linformer, causal by blocks: a few mixtures of its keys, and of its values, stand for a completed block.

Axes: B batch, N blocks, b tokens of a block, c slots of a block, G key-value heads, X width of a key or value.
"""

from dataclasses import dataclass
from typing import Annotated, Literal

import torch
from jaxtyping import Float
from torch import Tensor, nn

from rltransformers.attention.plan import Plan
from rltransformers.attention.slots.interface import BlockConvolution, Compression, Pooled, SlotAttention, block_count
from rltransformers.core.errors import ConfigError
from rltransformers.core.spec import Feature, Size, Spec, Traits, Unread
from rltransformers.mixers.interface import Dims

Sharing = Literal["none", "heads", "kv", "layers"]
ONE_FOR_KEYS_AND_VALUES = ("kv", "layers")


class BlockProjection(nn.Module):
    """``E x`` for the tokens x of a block; starts as N(0, 1 / b), so that slots are as large as tokens."""

    def __init__(self, groups: int, slots: int, block: int) -> None:
        super().__init__()
        self.weight = nn.Parameter(torch.randn(groups, slots, block) * block**-0.5)

    def forward(self, x: Float[Tensor, "B N b G X"]) -> Float[Tensor, "B N c G X"]:
        """The slots of every block."""
        return torch.einsum("znjgx,gcj->zncgx", x, self.weight)


NOTHING_LEARNED = Unread("projection 'mean' or 'max'", lambda options: options.projection in ("mean", "max"))


@dataclass(frozen=True)
class Options:
    """Options of Linformer.

    Attributes:
        block: tokens that are projected together; default: 16, or fewer where the memory holds fewer than two blocks.
        slots: rows that a block becomes; default: a quarter of its tokens.
        blocks: completed blocks that stay readable; default: as many as the memory holds.
        projection: what makes slots of tokens: learned mixtures of all of them, or the mean, the maximum or a
            convolution of as many parts.
        sharing: of what is learned: none, by the heads of a layer, by keys and values, too (E = F), or by all layers
            with the same options; not read by the mean and the maximum, which learn nothing.
    """

    block: Size | None = None
    slots: Size | None = None
    blocks: Size | None = None
    projection: Literal["learned", "mean", "max", "conv"] = "learned"
    sharing: Annotated[Sharing, NOTHING_LEARNED] = "heads"


def build(dims: Dims, plan: Plan, options: Options) -> SlotAttention:
    """Attention to a few slots per block, made by E of its keys and by F of its values."""
    block = options.block or max(1, min(16, (dims.tokens_in_view + 1) // 2))
    slots, projection, sharing = options.slots or max(1, block // 4), options.projection, options.sharing
    blocks = block_count("linformer", dims, block, options.blocks)
    if slots > block:
        raise ConfigError(f"linformer makes {slots} slots of {block} tokens; set slots to at most {block}")
    if projection != "learned" and block % slots:
        raise ConfigError(
            f"linformer with projection={projection} cuts a block in equal parts, but slots ({slots}) do not divide "
            f"block ({block}); choose slots that do or projection: learned"
        )
    if projection == "conv" and sharing in ONE_FOR_KEYS_AND_VALUES and dims.head_dim != dims.value_dim:
        raise ConfigError(
            f"linformer with sharing={sharing} convolves keys ({dims.head_dim}) and values ({dims.value_dim}) alike; "
            "leave value_dim out or set sharing to heads"
        )
    groups, span = dims.kv_heads if sharing == "none" else 1, block // slots

    def of_rows(width: int) -> nn.Module:
        if projection == "learned":
            return BlockProjection(groups, slots, block)
        if projection == "conv":
            return BlockConvolution(groups, slots, span, width)
        return Pooled(slots, maximum=projection == "max")

    of_keys = of_rows(dims.head_dim)
    of_values = of_keys if sharing in ONE_FOR_KEYS_AND_VALUES else of_rows(dims.value_dim)
    compression = Compression(of_keys, of_values, slots, span=0 if projection == "learned" else span)
    mixer = SlotAttention(dims, plan, compression, block, blocks, 0.0)
    mixer.shared = ("compression",) if sharing == "layers" else ()
    return mixer


SPEC = Spec(
    id="S8", name="linformer", axis="mixer", paper="Wang et al. 2020, arXiv 2006.04768, equation 7",
    summary="Reads completed blocks through a few projected keys and values, and newer tokens directly.",
    build=build, options=Options, example={"mixer": {"name": "linformer", "block": 4, "slots": 2, "blocks": 1}},
    traits=Traits(
        causality="X",
        family="SLOT",
        horizon="(blocks + 1) block - 2",
        state="memory D (training), memory kv_heads (Dh + Dv) more (acting)",
        causal_form="E and F project completed blocks of an episode, not all of it; the tokens behind are keys, too",
    ),
    offers=(Feature.SCORES, Feature.PRODUCTS, Feature.OUTPUTS, Feature.ROWS, Feature.KEYS, Feature.VALUES),
    formula="o_t = softmax(q_t [E K_m ...; K_tail] / sqrt(Dh)) [F V_m ...; V_tail], E, F [slots, block]",
)  # fmt: skip
