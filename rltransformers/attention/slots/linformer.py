"""Linformer, causal by blocks: a few mixtures of its keys, and of its values, stand for a completed block.

Axes: B batch, N blocks, b tokens of a block, c slots of a block, G key-value heads, X width of a key or value.
"""

from dataclasses import dataclass
from typing import Annotated, Literal

import torch
from jaxtyping import Float
from torch import Tensor, nn

from rltransformers.attention.plan import Plan
from rltransformers.attention.slots.interface import (
    BlockConvolution,
    Compression,
    SlotAttention,
    block_count,
    visible_tokens,
)
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


class Projections(Compression):
    """Learned mixtures of all tokens of a block, E for its keys and F for its values, which stand at its end."""

    span = 0

    def __init__(self, dims: Dims, block: int, slots: int, sharing: Sharing) -> None:
        super().__init__()
        self.slots = slots
        groups = dims.kv_heads if sharing == "none" else 1
        self.of_keys = BlockProjection(groups, slots, block)
        one = sharing in ONE_FOR_KEYS_AND_VALUES
        self.of_values = self.of_keys if one else BlockProjection(groups, slots, block)

    def forward(self, k: Tensor, v: Tensor) -> tuple[Tensor, Tensor]:
        """E k and F v."""
        return self.of_keys(k), self.of_values(v)


class Pooled(Compression):
    """The mean or the maximum of the keys, and of the values, of every part of a block."""

    def __init__(self, block: int, slots: int, maximum: bool) -> None:
        super().__init__()
        self.slots, self.span, self.maximum = slots, block // slots, maximum

    def forward(self, k: Tensor, v: Tensor) -> tuple[Tensor, Tensor]:
        """One slot per part."""
        return self.pooled(k), self.pooled(v)

    def pooled(self, x: Float[Tensor, "B N b G X"]) -> Float[Tensor, "B N c G X"]:
        """One vector per part."""
        parts = x.unflatten(2, (self.slots, self.span))
        return parts.amax(3) if self.maximum else parts.mean(3)


class Convolved(Compression):
    """A convolution whose kernel and stride are a part of a block."""

    def __init__(self, dims: Dims, block: int, slots: int, sharing: Sharing) -> None:
        super().__init__()
        self.slots, self.span = slots, block // slots
        groups = dims.kv_heads if sharing == "none" else 1
        self.of_keys = BlockConvolution(groups, self.span, dims.head_dim)
        one = sharing in ONE_FOR_KEYS_AND_VALUES
        self.of_values = self.of_keys if one else BlockConvolution(groups, self.span, dims.value_dim)

    def forward(self, k: Tensor, v: Tensor) -> tuple[Tensor, Tensor]:
        """One slot per part."""
        return self.convolved(self.of_keys, k), self.convolved(self.of_values, v)

    def convolved(self, convolution: BlockConvolution, x: Float[Tensor, "B N b G X"]) -> Float[Tensor, "B N c G X"]:
        """One vector per part."""
        made: Tensor = convolution(x.unflatten(2, (self.slots, self.span)).flatten(1, 2))
        return made.unflatten(1, (-1, self.slots))


class Linformer(SlotAttention):
    """Slot attention whose layers may have the compression in common."""

    def __init__(
        self, dims: Dims, plan: Plan, compression: Compression, block: int, blocks: int, sharing: Sharing
    ) -> None:
        super().__init__(dims, plan, compression, block, blocks, 0.0)
        self.shared = ("compression",) if sharing == "layers" else ()


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


def build(dims: Dims, plan: Plan, options: Options) -> Linformer:
    """S8 by blocks, for one layer.

    Raises:
        ConfigError: the memory does not hold the blocks, there are more slots than tokens, parts of a block differ in
            size, or one convolution would serve keys and values of different widths.
    """
    block = options.block or max(1, min(16, (visible_tokens(dims) + 2) // 2))
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
    compression: Compression
    if projection == "learned":
        compression = Projections(dims, block, slots, sharing)
    elif projection == "conv":
        compression = Convolved(dims, block, slots, sharing)
    else:
        compression = Pooled(block, slots, projection == "max")
    return Linformer(dims, plan, compression, block, blocks, sharing)


SPEC = Spec(
    id="S8",
    name="linformer",
    axis="mixer",
    paper="Wang et al. 2020, arXiv 2006.04768, equation 7",
    summary="Completed blocks are read through a few projected keys and values, the tokens behind them directly.",
    build=build,
    options=Options,
    example={"mixer": {"name": "linformer", "block": 4, "slots": 2, "blocks": 1}},
    traits=Traits(
        causality="X",
        family="SLOT",
        horizon="(blocks + 1) block - 2",
        state="memory D (training), memory kv_heads (Dh + Dv) more (acting)",
        causal_form="E and F project completed blocks of an episode, not all of it; the tokens behind are keys, too",
    ),
    offers=(Feature.SCORES, Feature.PRODUCTS, Feature.OUTPUTS, Feature.ROWS, Feature.KEYS),
    formula="o_t = softmax(q_t [E K_m ...; K_tail] / sqrt(Dh)) [F V_m ...; V_tail], E, F [slots, block]",
)
