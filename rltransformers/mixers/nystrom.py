"""Nystrom attention, causal: exact inside the token's own block, landmarks for the completed blocks before it.

Axes: B batch, T tokens, S key rows, H heads, n query blocks, L landmarks, b tokens of a block. Blocks are counted from
the start of the episode, so neither a reset nor the way a stream is cut into calls moves a border.
"""

import math
from dataclasses import dataclass
from typing import Annotated

import torch
from annotated_types import Ge, Le
from jaxtyping import Bool, Float, Int, Shaped
from torch import Tensor, nn
from torch.nn import functional as F

from rltransformers.core.errors import ConfigError
from rltransformers.core.spec import Feature, Size, Spec, Traits
from rltransformers.functional.blocks import episode_blocks
from rltransformers.functional.call import Call, chosen
from rltransformers.functional.keys import Past, in_order
from rltransformers.functional.windows import take_rows
from rltransformers.mixers.interface import Dims, Mixed, RowMixer


def pseudo_inverse(matrix: Float[Tensor, "*n L L"], iterations: int) -> Float[Tensor, "*n L L"]:
    """Moore-Penrose inverse of row-stochastic matrices; float32 at least.

    The third-order iterations of arXiv 2102.03902, section 3.3. The first guess divides by the norms of each matrix,
    not of the batch as in the published code, which lets batch rows change each other. 6 iterations, as published,
    are not converged for every matrix; ``iterations=0`` is exact (torch.linalg.pinv).
    """
    matrix = matrix.to(torch.promote_types(matrix.dtype, torch.float32))
    if iterations == 0:
        return torch.linalg.pinv(matrix)
    size = matrix.abs().sum(-2).amax(-1) * matrix.abs().sum(-1).amax(-1)
    inverse = matrix.transpose(-1, -2) / size[..., None, None]
    identity = torch.eye(matrix.shape[-1], dtype=matrix.dtype, device=matrix.device)
    with torch.autocast(matrix.device.type, enabled=False):
        for _ in range(iterations):
            product = matrix @ inverse
            inverse = inverse @ (13 * identity - product @ (15 * identity - product @ (7 * identity - product))) / 4
    return inverse


def nystrom_blocks(
    q: Float[Tensor, "B N b H Dh"],
    k: Float[Tensor, "B N b H Dh"],
    v: Float[Tensor, "B N b H Dv"],
    present: Bool[Tensor, "B n L"],
    exists: Bool[Tensor, "B n b"],
    iterations: int,
) -> Float[Tensor, "B n b H Dv"]:
    """Outputs for the last n = N - L blocks; block i sees itself causally and its L predecessors where ``present``.

    ``exists`` is False for tokens of the own block that are older than the rows at hand.

    Landmarks are the means of the q and k of a predecessor. With F, A and G the softmax attention of queries to
    landmarks, landmarks to landmarks and landmarks to the predecessors' tokens, the past contributes ``F A^+ G V``.
    Past and own block are merged by their mass, where a landmark counts for the b tokens it stands for.
    """
    block, head_dim, landmarks = q.shape[2], q.shape[-1], present.shape[-1]
    q = q / math.sqrt(head_dim)
    own_q, own_k, own_v = q[:, landmarks:], k[:, landmarks:], v[:, landmarks:]
    mean_q, mean_k = _predecessors(q.mean(2), landmarks), _predecessors(k.mean(2), landmarks)  # B n H Dh L
    past_k = _predecessors(k, landmarks)  # B n b H Dh L
    past_v = _predecessors(v, landmarks)

    seen = present[:, :, None, None]  # B n 1 1 L: as keys
    between = torch.einsum("bnhdl,bnhdm->bnhlm", mean_q, mean_k)
    identity = torch.eye(landmarks, dtype=between.dtype, device=between.device)
    # An absent landmark is a block of its own: identity here, so that the inverse of the others is theirs alone.
    between = torch.where(present[:, :, None, :, None], _softmax(between, seen), identity)

    to_tokens = torch.einsum("bnhdl,bnjhdm->bnhlmj", mean_q, past_k)
    to_tokens = _softmax(to_tokens.flatten(-2), seen.repeat_interleave(block, -1)).unflatten(-1, (landmarks, block))
    read = torch.einsum("bnhlmj,bnjhvm->bnhlv", to_tokens, past_v)
    summary = pseudo_inverse(between, iterations).to(read.dtype) @ read

    far = torch.einsum("bnihd,bnhdl->bnhil", own_q, mean_k) + math.log(block)
    near = torch.einsum("bnihd,bnjhd->bnhij", own_q, own_k)
    causal = torch.ones(block, block, dtype=torch.bool, device=q.device).tril()
    within = causal & exists[:, :, None, None]
    allowed = torch.cat([seen.expand(-1, -1, 1, block, -1), within], -1)
    far, near = _softmax(torch.cat([far, near], -1), allowed).split([landmarks, block], -1)
    return torch.einsum("bnhil,bnhlv->bnihv", far, summary) + torch.einsum("bnhij,bnjhv->bnihv", near, own_v)


def _predecessors(blocks: Shaped[Tensor, "B N *n"], landmarks: int) -> Shaped[Tensor, "B M *n L"]:
    """The ``landmarks`` entries in front of every entry but the first ``landmarks``, on a new last axis; a view."""
    return blocks[:, :-1].unfold(1, landmarks, 1)


def _softmax(logits: Tensor, allowed: Bool[Tensor, "..."]) -> Tensor:
    """Softmax over the allowed entries of the last axis; zeros where there are none."""
    return logits.masked_fill(~allowed, torch.finfo(logits.dtype).min).softmax(-1) * allowed


def past_convolution(
    rows: Float[Tensor, "B S H Dv"], kernel: Float[Tensor, "H K"], p: Int[Tensor, "B T"]
) -> Float[Tensor, "B T H Dv"]:
    """``sum_k kernel[h, k] rows[t - k]`` inside the episode; the published skip looks to both sides."""
    time, taps = p.shape[1], kernel.shape[1]
    rows = F.pad(rows, (0, 0, 0, 0, max(0, taps - 1 + time - rows.shape[1]), 0))
    first = rows.shape[1] - time
    out = torch.zeros_like(rows[:, first:])
    for lag in range(taps):
        inside = (p >= lag)[..., None, None]
        out = out + (rows[:, first - lag : first - lag + time] * kernel[:, lag, None]).masked_fill(~inside, 0.0)
    return out


class Nystrom(RowMixer):
    """Block Nystrom attention over the window of the last ``(landmarks + 1) * block`` tokens (arXiv 2102.03902).

    As published, landmark means and normalisers see the future. Here they use completed blocks only, and the blocks
    kept are also the tokens that the landmarks read, so the output is a function of the window.
    """

    def __init__(self, dims: Dims, block: int, landmarks: int, iterations: int, conv: int, horizon: int) -> None:
        super().__init__()
        self.dims, self.block, self.landmarks, self.iterations = dims, block, landmarks, iterations
        self.horizon = horizon
        self.widths = [dims.heads * dims.head_dim, dims.kv_heads * dims.head_dim, dims.kv_heads * dims.value_dim]
        self.key_width = sum(self.widths)
        self.project = dims.projection(dims.width, self.key_width)
        self.out = dims.projection(dims.heads * dims.value_dim, dims.width)
        self.kernel: nn.Parameter | None = None
        if conv:
            self.kernel = nn.Parameter(torch.empty(dims.heads, conv).uniform_(-1, 1) / math.sqrt(conv))

    def keys(self, h: Float[Tensor, "B S D"]) -> Float[Tensor, "B S E"]:
        """Queries, keys and values side by side: a landmark averages the queries of its block, too."""
        return self.project(h)

    def queries_and_keys(self, h: Float[Tensor, "B T D"]) -> tuple[Float[Tensor, "B T E"], Float[Tensor, "B T E"]]:
        """The key rows hold the queries."""
        rows = self.keys(h)
        return rows, rows

    def forward(
        self,
        h: Float[Tensor, "B T D"],
        query: Float[Tensor, "B T E"],
        past: Past,
        state: dict[str, Tensor],
        call: Call,
        below: Tensor | None,
    ) -> Mixed:
        """The wanted tokens."""
        tokens, keys = call.tokens, in_order(past[-1])
        blocks = episode_blocks(tokens.p, keys.shape[1] - h.shape[1], self.block)
        steps = torch.arange(self.landmarks, 0, -1, device=h.device)
        start = torch.cat([blocks.start[:, :1] - self.block * steps, blocks.start], 1)
        index = start[..., None] + torch.arange(self.block, device=h.device)
        # A block that the call does not complete has no further rows: any stand in, no token looks at them.
        gathered = take_rows(keys, index.clamp(max=keys.shape[1] - 1).flatten(1)).unflatten(1, index.shape[1:])
        q, k, v = self._heads(gathered)
        present = (steps <= blocks.number[..., None]) & _predecessors(start >= 0, self.landmarks)
        grid = nystrom_blocks(q, k, v, present, index[:, self.landmarks :] >= 0, self.iterations).flatten(1, 2)
        mixed = take_rows(grid, blocks.of_token * self.block + blocks.place)
        if self.kernel is not None:
            mixed = mixed + past_convolution(self._heads(keys)[2], self.kernel, tokens.p)
        return Mixed(self.out(chosen(mixed.flatten(2), call.wanted)), state)

    def _heads(self, rows: Float[Tensor, "*n E"]) -> list[Tensor]:
        """Queries, keys and values [*n, H, Dh]; shared key and value heads are repeated."""
        counts = (self.dims.heads, self.dims.kv_heads, self.dims.kv_heads)
        parts = zip(rows.split(self.widths, -1), counts, strict=True)
        return [part.unflatten(-1, (n, -1)).repeat_interleave(self.dims.heads // n, -2) for part, n in parts]


MOST_LANDMARKS = 1000
"""Landmarks are compared with each other, and the matrix of every block is inverted."""


@dataclass(frozen=True)
class Options:
    """Options of Nystrom attention.

    Attributes:
        block: tokens of a block, attended exactly while it is the current one.
        landmarks: completed blocks that are kept; default: as many as the memory holds.
        iterations: of the pseudo-inverse; 6 as published, 0 for the exact one.
        conv: taps of a depthwise convolution over past values, added to the output; 0 for none, the paper uses 33.
    """

    block: Size = 8
    landmarks: Annotated[int, Ge(1), Le(MOST_LANDMARKS)] | None = None
    iterations: Annotated[int, Ge(0), Le(100)] = 6
    conv: Annotated[int, Ge(0), Le(4096)] = 0


def build(dims: Dims, options: Options) -> Nystrom:
    """Nystrom attention for one layer.

    Raises:
        ConfigError: the memory holds less than ``(landmarks + 1) * block - 1`` or ``conv - 1`` tokens, or so much that
            there would be too many landmarks.
    """
    block, landmarks, conv = options.block, options.landmarks, options.conv
    visible = (dims.memory + 1) * dims.tokens_per_step - 1
    if landmarks is None:
        landmarks = max(1, (visible + 1) // block - 1)
        if landmarks > MOST_LANDMARKS:
            raise ConfigError(
                f"nystrom with block={block} would keep {landmarks} landmarks of a memory of {visible} tokens, "
                f"at most are {MOST_LANDMARKS}; choose larger blocks or write landmarks"
            )
    horizon = max((landmarks + 1) * block, conv) - 1
    if visible < horizon:
        steps = -(-(horizon + 1) // dims.tokens_per_step) - 1
        raise ConfigError(
            f"nystrom with landmarks={landmarks}, block={block}, conv={conv} looks {horizon} tokens back, "
            f"the memory holds {visible}; raise memory to {steps} steps or choose fewer landmarks or smaller blocks"
        )
    return Nystrom(dims, block, landmarks, options.iterations, conv, horizon)


SPEC = Spec(
    id="S16",
    name="nystrom",
    axis="mixer",
    paper="Xiong et al. 2021, arXiv 2102.03902",
    summary="own block exactly, completed blocks through landmark means and a pseudo-inverse",
    build=build,
    options=Options,
    example={"mixer": {"name": "nystrom", "block": 3, "landmarks": 4}, "memory": 14},
    traits=Traits(
        causality="X",
        family="SLOT",
        horizon="(landmarks + 1) block - 1",
        state="window x 3 H Dh",
        time="T",
        causal_form="blocks from the episode start; landmarks and normalisers use completed blocks only",
    ),
    offers=(Feature.ROWS, Feature.KEYS),
    formula="far = F A^+ G V over completed blocks, near = softmax inside the own block, merged by their masses",
)
