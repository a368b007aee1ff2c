"""Operations that attention and memory mechanisms may use in a step, each with its own output."""

from collections.abc import Callable

import torch
import torch.nn.functional as F
from torch import Tensor, nn

from rltransformers.export.step import Tensors

ROWS, WIDTH, HEADS = 6, 8, 2

Operation = Callable[[Tensor, Tensor, Tensor, Tensor], Tensor]
"""x [B, S, W], whole numbers [B, S] in 0..S-1, truths [B, S] none of whose rows is all False, clock [] → a tensor."""


def inverse(x: Tensor) -> Tensor:
    """Moore-Penrose inverse of x by Newton's iterations, for ``linalg.pinv``, which ONNX does not have."""
    guess = x.mT / (x.abs().sum(-1).amax(-1) * x.abs().sum(-2).amax(-1))[..., None, None]
    eye = torch.eye(x.shape[-2], dtype=x.dtype, device=x.device)
    for _ in range(20):
        guess = guess @ (2 * eye - x @ guess)
    return guess


def split(x: Tensor) -> Tensor:
    return x.unflatten(-1, (HEADS, -1)).transpose(1, 2)


OPERATIONS: dict[str, Operation] = {
    "index_copy": lambda x, i, m, c: x.index_copy(1, (c % ROWS).reshape(1), x[:, :1] + 1),
    "index_select": lambda x, i, m, c: x.index_select(1, (c - torch.arange(ROWS)) % ROWS),
    "gather_rows": lambda x, i, m, c: x.gather(1, i[..., None].expand(-1, -1, WIDTH)),
    "gather": lambda x, i, m, c: x[..., 0].gather(1, i),
    "where": lambda x, i, m, c: torch.where(m[..., None], x, 0.0),
    "cumsum": lambda x, i, m, c: x.cumsum(1),
    "cumsum_of_truths": lambda x, i, m, c: m.cumsum(1),
    "cummax": lambda x, i, m, c: x.cummax(1).values,
    "cumprod": lambda x, i, m, c: x.cumprod(1),
    "logcumsumexp": lambda x, i, m, c: x.logcumsumexp(1),
    "topk_values": lambda x, i, m, c: x.topk(3, -1).values,
    "topk_indices": lambda x, i, m, c: x.topk(3, -1).indices,
    "sort": lambda x, i, m, c: x.sort(-1).values,
    "stable_sort": lambda x, i, m, c: i.sort(dim=-1, stable=True).indices,
    "argsort": lambda x, i, m, c: x.argsort(-1),
    "stable_argsort": lambda x, i, m, c: torch.argsort(i, dim=-1, stable=True),
    "stable_order": lambda x, i, m, c: (i * ROWS + torch.arange(ROWS)).argsort(-1),
    "kthvalue": lambda x, i, m, c: x.kthvalue(3, -1).values,
    "scatter": lambda x, i, m, c: torch.zeros_like(x[..., 0]).scatter(1, i[:, :1], x[:, :1, 0]),
    "scatter_add": lambda x, i, m, c: torch.zeros_like(x[..., 0]).scatter_add(1, i, x[..., 0]),
    "index_add": lambda x, i, m, c: x.index_add(1, i[0], x),
    "index_put": lambda x, i, m, c: x.index_put((torch.arange(x.shape[0])[:, None], i[:, :1]), x[:, :1] * 2),
    "one_hot": lambda x, i, m, c: F.one_hot(i, ROWS).float(),
    "softmax": lambda x, i, m, c: x.softmax(-1),
    "masked_softmax": lambda x, i, m, c: x[..., 0].masked_fill(~m, -torch.inf).softmax(-1),
    "attention": lambda x, i, m, c: F.scaled_dot_product_attention(
        split(x), split(x), split(x), attn_mask=m[:, None, None]
    ),
    "attention_bias": lambda x, i, m, c: F.scaled_dot_product_attention(
        split(x), split(x), split(x), attn_mask=x[:, None, :, :ROWS]
    ),
    "logsumexp": lambda x, i, m, c: x.logsumexp(-1),
    "gelu": lambda x, i, m, c: F.gelu(x),
    "tanh_gelu": lambda x, i, m, c: F.gelu(x, approximate="tanh"),
    "layer_norm": lambda x, i, m, c: F.layer_norm(x, (WIDTH,)),
    "rms_norm": lambda x, i, m, c: F.rms_norm(x, (WIDTH,)),
    "newton_inverse": lambda x, i, m, c: inverse(x @ x.mT + torch.eye(ROWS)),
    "einsum": lambda x, i, m, c: torch.einsum("bsw,btw->bst", x, x),
    "bmm": lambda x, i, m, c: torch.bmm(x, x.mT),
    "baddbmm": lambda x, i, m, c: torch.baddbmm(x @ x.mT, x, x.mT),
    "remainder": lambda x, i, m, c: (i - 2 * c) % ROWS,
    "floor_divide": lambda x, i, m, c: (i - 2 * c) // 3,
    "amax": lambda x, i, m, c: x.amax(1),
    "amax_of_all": lambda x, i, m, c: x - x.amax(),
    "amin_of_all": lambda x, i, m, c: x - x.amin(),
    "argmax": lambda x, i, m, c: x.argmax(-1),
    "any": lambda x, i, m, c: m.any(-1),
    "embedding": lambda x, i, m, c: F.embedding(i, torch.linspace(0, 1, ROWS * 3).view(ROWS, 3)),
    "conv1d": lambda x, i, m, c: F.conv1d(x.mT, torch.ones(WIDTH, 1, 3), groups=WIDTH),
    "conv2d": lambda x, i, m, c: F.conv2d(x[:, None], torch.ones(2, 1, 3, 3), stride=2),
    "roll": lambda x, i, m, c: x.roll(1, 1),
    "flip": lambda x, i, m, c: x.flip(1),
    "tril": lambda x, i, m, c: (x @ x.mT).tril(),
    "unfold": lambda x, i, m, c: x.unfold(1, 3, 1),
    "repeat_interleave": lambda x, i, m, c: x.repeat_interleave(2, -1),
    "cdist": lambda x, i, m, c: torch.cdist(x, x),
    "outer_sum": lambda x, i, m, c: (x[..., :, None] * x[..., None, :]).sum(1),
    "searchsorted": lambda x, i, m, c: torch.searchsorted(torch.linspace(-1, 1, 5), x),
    "bitwise": lambda x, i, m, c: (i & 3) ^ 1,
    "shift": lambda x, i, m, c: i << 2,
    "nan_to_num": lambda x, i, m, c: (x / x.relu()).nan_to_num(0.0),
    "erfinv": lambda x, i, m, c: torch.erfinv(x.tanh() * 0.9),
    "cosine": lambda x, i, m, c: F.normalize(x, dim=-1) @ F.normalize(x, dim=-1).mT,
    "rfft": lambda x, i, m, c: torch.view_as_real(torch.fft.rfft(x, dim=1)),
    "pinv": lambda x, i, m, c: torch.linalg.pinv(x @ x.mT + torch.eye(ROWS)),
    "solve_triangular": lambda x, i, m, c: torch.linalg.solve_triangular(
        torch.eye(ROWS) + (x @ x.mT).tril(-1), x, upper=False
    ),
    "bucketize": lambda x, i, m, c: torch.bucketize(x, torch.linspace(-1, 1, 5)),
    "softplus": lambda x, i, m, c: F.softplus(x),
    "int_state_min": lambda x, i, m, c: torch.minimum(i, c),
}


ONNX_LACKS = (
    "cdist",
    "cummax",
    "cumprod",
    "erfinv",
    "kthvalue",
    "pinv",
    "searchsorted",
    "solve_triangular",
    "stable_argsort",
    "stable_sort",
)
"""Some have a way round: ``newton_inverse``, ``stable_order``, ``bucketize``; the last of ``topk`` for ``kthvalue``."""


class Operations(nn.Module):
    """A step with one output for each operation named, a ring of truths and one of whole numbers."""

    def __init__(self, names: list[str]) -> None:
        super().__init__()
        self.names = names

    def forward(self, inputs: Tensors, state: Tensors) -> tuple[Tensors, Tensors]:
        clock, truths, numbers = state["clock"], state["truths"], state["numbers"]
        slot = (clock % ROWS).reshape(1)
        truths = truths.index_copy(1, slot, inputs["truth"][:, None])
        numbers = numbers.index_copy(1, slot, inputs["number"][:, None])
        seen = truths | (torch.arange(ROWS) == slot)
        outputs = {name: OPERATIONS[name](inputs["x"], numbers, seen, clock) for name in self.names}
        return outputs, {"clock": clock + 1, "truths": truths, "numbers": numbers}


def operation_inputs(batch: int, generator: torch.Generator) -> Tensors:
    """Random inputs of one step."""
    return {
        "x": torch.randn(batch, ROWS, WIDTH, generator=generator),
        "truth": torch.rand(batch, generator=generator) < 0.5,
        "number": torch.randint(ROWS, (batch,), generator=generator),
    }


def operation_state(batch: int) -> Tensors:
    """The state before the first step."""
    return {
        "clock": torch.tensor(0),
        "truths": torch.zeros(batch, ROWS, dtype=torch.bool),
        "numbers": torch.zeros(batch, ROWS, dtype=torch.int64),
    }
