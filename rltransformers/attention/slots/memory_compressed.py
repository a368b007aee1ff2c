"""Memory-compressed attention: a convolution whose stride is its kernel makes one key and value of every block."""

import math
from dataclasses import dataclass
from typing import Literal

from rltransformers.attention.plan import Plan
from rltransformers.attention.slots.interface import BlockConvolution, Compression, Pooled, SlotAttention, block_count
from rltransformers.core.spec import Feature, Size, Spec, Traits
from rltransformers.mixers.interface import Dims


@dataclass(frozen=True)
class Options:
    """Options of memory-compressed attention.

    Attributes:
        block: tokens that become one slot: kernel and stride of the convolution.
        blocks: completed blocks that stay readable; default: as many as the memory holds.
        compress: what makes a slot of them.
        mass: add ln(block) to the score of a slot, so that it counts for all of its tokens.
    """

    block: Size = 3
    blocks: Size | None = None
    compress: Literal["conv", "mean"] = "conv"
    mass: bool = False


def build(dims: Dims, plan: Plan, options: Options) -> SlotAttention:
    """Attention to one slot per block; keys and values have convolutions of their own, or are averaged."""
    block = options.block
    blocks = block_count("memory_compressed", dims, block, options.blocks)
    of_keys, of_values = (
        BlockConvolution(dims.kv_heads, 1, block, width) if options.compress == "conv" else Pooled(1)
        for width in (dims.head_dim, dims.value_dim)
    )
    compression = Compression(of_keys, of_values, slots=1, span=0)
    return SlotAttention(dims, plan, compression, block, blocks, math.log(block) if options.mass else 0.0)


SPEC = Spec(
    id="S7", name="memory_compressed", axis="mixer", paper="Liu et al. 2018, arXiv 1801.10198, section 4.2.3",
    summary="Reads completed blocks through one convolved key and value each, and newer tokens directly.",
    build=build, options=Options, example={"mixer": {"name": "memory_compressed", "blocks": 1}},
    traits=Traits(
        causality="X",
        family="SLOT",
        horizon="(blocks + 1) block - 2",
        state="memory D (training), memory kv_heads (Dh + Dv) more (acting)",
        causal_form="blocks from the episode start, seen once they are complete; the tokens behind them are keys, too",
    ),
    offers=(Feature.SCORES, Feature.PRODUCTS, Feature.OUTPUTS, Feature.ROWS, Feature.KEYS, Feature.VALUES),
    formula="o_t = softmax(q_t [K'; K_tail] / sqrt(Dh)) [V'; V_tail], K'_m = sum_j W_j k_(m b + j) of completed blocks",
)  # fmt: skip
