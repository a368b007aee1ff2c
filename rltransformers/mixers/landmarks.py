"""Base of attention through landmarks: exact inside the token's own block, landmarks for the completed blocks.

Axes: B batch, T tokens, S key rows, H heads, n query blocks, L landmarks, b tokens of a block. Blocks are counted from
the start of the episode, so neither a reset nor the way a stream is cut into calls moves a border.
"""

import math
from abc import abstractmethod
from collections.abc import Callable

import torch
from jaxtyping import Bool, Float, Shaped
from torch import Tensor

from rltransformers.core.errors import ConfigError
from rltransformers.core.spec import Traits
from rltransformers.functional.blocks import episode_blocks
from rltransformers.functional.call import Call, chosen
from rltransformers.functional.keys import Past, in_order
from rltransformers.functional.modules import wide
from rltransformers.functional.windows import take_rows
from rltransformers.mixers.interface import Dims, LayerState, Mixed, RowMixer


def pseudo_inverse(matrix: Float[Tensor, "*n L L"], iterations: int) -> Float[Tensor, "*n L L"]:
    """Moore-Penrose inverse of row-stochastic matrices; float32 at least.

    The third-order iterations of arXiv 2102.03902, section 3.3. The first guess divides by the norms of each matrix,
    not of the batch as in the published code, which lets batch rows change each other. 6 iterations, as published,
    are not converged for every matrix; ``iterations=0`` is exact (torch.linalg.pinv).
    """
    matrix = wide(matrix)
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


def landmark_blocks(
    q: Float[Tensor, "B N b H Dh"],
    k: Float[Tensor, "B N b H Dh"],
    v: Float[Tensor, "B N b H Dv"],
    present: Bool[Tensor, "B n L"],
    exists: Bool[Tensor, "B n b"],
    solve: Callable[[Tensor, Tensor], Tensor],
) -> Float[Tensor, "B n b H Dv"]:
    """Outputs for the last n = N - L blocks; block i sees itself causally and its L predecessors where ``present``.

    Landmarks are the means of the q and k of a predecessor. With F, A and G the softmax attention of queries to
    landmarks, landmarks to landmarks and landmarks to the predecessors' tokens, the past is ``F solve(A, G V)``. Past
    and own block are merged by their mass, where a landmark counts for the b tokens it stands for. ``exists`` is False
    for tokens of the own block that are older than the rows at hand.
    """
    block, head_dim, landmarks = q.shape[2], q.shape[-1], present.shape[-1]
    q = q / math.sqrt(head_dim)
    own_q, own_k, own_v = q[:, landmarks:], k[:, landmarks:], v[:, landmarks:]
    mean_q, mean_k = _predecessors(q.mean(2), landmarks), _predecessors(k.mean(2), landmarks)  # B n H Dh L
    past_k, past_v = _predecessors(k, landmarks), _predecessors(v, landmarks)  # B n b H Dh L

    seen = present[:, :, None, None]  # B n 1 1 L: as keys
    between = torch.einsum("bnhdl,bnhdm->bnhlm", mean_q, mean_k)
    identity = torch.eye(landmarks, dtype=between.dtype, device=between.device)
    # An absent landmark is a block of its own: identity here, so that the inverse of the others is theirs alone.
    between = torch.where(present[:, :, None, :, None], _softmax(between, seen), identity)

    to_tokens = torch.einsum("bnhdl,bnjhdm->bnhlmj", mean_q, past_k)
    to_tokens = _softmax(to_tokens.flatten(-2), seen.repeat_interleave(block, -1)).unflatten(-1, (landmarks, block))
    read = torch.einsum("bnhlmj,bnjhvm->bnhlv", to_tokens, past_v)
    summary = solve(between, read)

    far = torch.einsum("bnihd,bnhdl->bnhil", own_q, mean_k) + math.log(block)
    near = torch.einsum("bnihd,bnjhd->bnhij", own_q, own_k)
    within = torch.ones(block, block, dtype=torch.bool, device=q.device).tril() & exists[:, :, None, None]
    allowed = torch.cat([seen.expand(-1, -1, 1, block, -1), within], -1)
    far, near = _softmax(torch.cat([far, near], -1), allowed).split([landmarks, block], -1)
    return torch.einsum("bnhil,bnhlv->bnihv", far, summary) + torch.einsum("bnhij,bnjhv->bnihv", near, own_v)


def _predecessors(blocks: Shaped[Tensor, "B N *n"], landmarks: int) -> Shaped[Tensor, "B M *n L"]:
    """The ``landmarks`` entries in front of every entry but the first ``landmarks``, on a new last axis; a view."""
    return blocks[:, :-1].unfold(1, landmarks, 1)


def _softmax(logits: Tensor, allowed: Bool[Tensor, "..."]) -> Tensor:
    """Softmax over the allowed entries of the last axis; zeros where there are none."""
    return logits.masked_fill(~allowed, torch.finfo(logits.dtype).min).softmax(-1) * allowed


TRAITS = Traits(
    causality="X", family="SLOT", horizon="(landmarks + 1) block - 1",
    state="memory D (training), memory 3 H Dh more (acting)",
    causal_form="blocks count from the start of the episode; landmarks and normalizers use completed blocks only",
)  # fmt: skip


class LandmarkAttention(RowMixer):
    """Attention over the window of the last ``(landmarks + 1) * block`` tokens, through landmarks where it is far.

    As published, landmark means and normalizers see the future. Here they use completed blocks only, and the blocks
    kept are also the tokens that the landmarks read, so the output is a function of the window.

    Args:
        landmarks: L; None for as many as the memory holds.
        conv: taps of a convolution over the rows; 0 for none.

    Raises:
        ConfigError: the memory holds less than ``(landmarks + 1) * block - 1`` or ``conv - 1`` tokens, or so much that
            there would be too many landmarks.
    """

    def __init__(self, name: str, dims: Dims, block: int, landmarks: int | None, conv: int = 0) -> None:
        super().__init__()
        self.dims, self.widths, self.block = dims, dims.widths, block
        self.landmarks, self.horizon = window_of(name, dims, block, landmarks, conv)
        self.key_width = sum(self.widths)
        self.project = dims.projection(dims.width, self.key_width)
        self.out = dims.projection(dims.heads * dims.value_dim, dims.width)

    @abstractmethod
    def solve(
        self, between: Float[Tensor, "B n H L L"], read: Float[Tensor, "B n H L Dv"]
    ) -> Float[Tensor, "B n H L Dv"]:
        """Values that queries read from landmarks; an absent landmark is a row and a column of the identity."""

    def keys(self, h: Float[Tensor, "B S D"]) -> Float[Tensor, "B S E"]:
        """Queries, keys and values side by side: a landmark averages the queries of its block, too."""
        return self.project(h)

    def queries_and_keys(self, h: Float[Tensor, "B T D"]) -> tuple[Float[Tensor, "B T E"], Float[Tensor, "B T E"]]:
        rows = self.keys(h)
        return rows, rows

    def forward(
        self,
        h: Float[Tensor, "B T D"],
        query: Float[Tensor, "B T E"],
        past: Past,
        state: LayerState,
        call: Call,
        below: Tensor | None,
    ) -> Mixed:
        tokens, keys = call.tokens, in_order(past[-1])
        blocks = episode_blocks(tokens.p, keys.shape[1] - h.shape[1], self.block)
        steps = torch.arange(self.landmarks, 0, -1, device=h.device)
        start = torch.cat([blocks.start[:, :1] - self.block * steps, blocks.start], 1)
        index = start[..., None] + torch.arange(self.block, device=h.device)
        # A block that the call does not complete has no further rows: any stand in, no token looks at them.
        q, k, v = self.heads_of(take_rows(keys, index))
        present = (steps <= blocks.number[..., None]) & _predecessors(start >= 0, self.landmarks)
        grid = landmark_blocks(q, k, v, present, index[:, self.landmarks :] >= 0, self.solve).flatten(1, 2)
        mixed = self.finished(take_rows(grid, blocks.of_token * self.block + blocks.place), keys, call)
        return Mixed(self.out(chosen(mixed.flatten(2), call.wanted)), state)

    def heads_of(self, rows: Float[Tensor, "*n E"]) -> list[Tensor]:
        """Queries, keys and values [*n, H, Dh]; shared key and value heads are repeated."""
        counts = (self.dims.heads, self.dims.kv_heads, self.dims.kv_heads)
        parts = zip(rows.split(self.widths, -1), counts, strict=True)
        return [part.unflatten(-1, (n, -1)).repeat_interleave(self.dims.heads // n, -2) for part, n in parts]

    def finished(self, mixed: Float[Tensor, "B T H Dv"], keys: Float[Tensor, "B S E"], call: Call) -> Tensor:
        """Outputs of the heads, with what else reads the rows."""
        return mixed


MAX_LANDMARKS = 1000
"""Landmarks are compared with each other, and the matrix of every block is inverted."""


def window_of(name: str, dims: Dims, block: int, landmarks: int | None, conv: int) -> tuple[int, int]:
    """Landmarks and the horizon; raises as ``LandmarkAttention``."""
    visible = dims.tokens_in_view - 1
    if landmarks is None:
        landmarks = max(1, (visible + 1) // block - 1)
        if landmarks > MAX_LANDMARKS:
            raise ConfigError(
                f"{name} with block={block} would keep {landmarks} landmarks of a memory of {visible} tokens, "
                f"at most are {MAX_LANDMARKS}; choose larger blocks or write landmarks"
            )
    horizon = max((landmarks + 1) * block, conv) - 1
    if visible < horizon:
        taps = f", conv={conv}" if conv else ""
        steps = -(-(horizon + 1) // dims.tokens_per_step) - 1
        raise ConfigError(
            f"{name} with landmarks={landmarks}, block={block}{taps} looks {horizon} tokens back, "
            f"the memory holds {visible}; raise memory to {steps} steps or choose fewer landmarks or smaller blocks"
        )
    return landmarks, horizon
