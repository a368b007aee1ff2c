"""What the mLSTM adds and keeps behind gates of any size."""

import math

import pytest
import torch
from torch import Tensor
from torch.nn import functional as F

from rltransformers.core.errors import ConfigError
from rltransformers.core.record import Probe, Record
from rltransformers.mixers.interface import Dims
from rltransformers.mixers.mlstm import MatrixLSTM, Options
from tests.mixers import episodes

WIDTH, T = 6, 9
DIMS = Dims(width=WIDTH, heads=1, kv_heads=1, head_dim=WIDTH, value_dim=WIDTH, memory=1)
OPEN = 100.0
"""A logit of a gate that keeps everything."""


pytestmark = pytest.mark.usefixtures("double")


def memory() -> MatrixLSTM:
    """One head; log i of a token is its last number, and f is 1."""
    mixer = MatrixLSTM(DIMS, Options(expansion=1, conv=0, block=1))
    with torch.no_grad():
        mixer.up.weight[:WIDTH] = torch.eye(WIDTH)
        mixer.value.weight.fill_(1)
        mixer.gates.weight[0, -1] = 1
        mixer.gates.bias.copy_(torch.tensor([0.0, OPEN]))
    return mixer


def run(mixer: MatrixLSTM, h: Tensor, probe: Probe | None = None) -> Tensor:
    """Outputs of one episode [T, D]."""
    return episodes.run(mixer, h[None], probe)[0]


def rows_of(mixer: MatrixLSTM, h: Tensor) -> tuple[Tensor, Tensor, Tensor]:
    """Queries, keys and values of one head [T, X]."""
    x = mixer.up(h[None])[..., :WIDTH]
    near = F.silu(x)
    return mixer.query(near)[0], mixer.key(near)[0] / math.sqrt(WIDTH), mixer.value(x)[0]


def output(mixer: MatrixLSTM, h: Tensor, read: Tensor) -> Tensor:
    """Outputs of tokens, by what they read."""
    x, gate = mixer.up(h).chunk(2, -1)
    return mixer.down((F.layer_norm(read, (WIDTH,)) + F.silu(x)) * F.silu(gate))


def test_with_all_gates_open_a_head_reads_sums_of_keys_and_values() -> None:
    mixer, h = memory(), torch.randn(T, WIDTH)
    h[:, -1] = 0
    q, k, v = rows_of(mixer, h)
    weights = (q @ k.T).tril()
    read = weights @ v / weights.sum(1, keepdim=True).abs().clamp(min=1)
    torch.testing.assert_close(run(mixer, h), output(mixer, h, read))


def test_a_token_whose_input_gate_is_shut_leaves_nothing() -> None:
    mixer, h = memory(), torch.randn(T, WIDTH)
    h[3, -1] = -80
    rest = torch.cat([h[:3], h[4:]])
    torch.testing.assert_close(run(mixer, h)[4:], run(mixer, rest)[3:])


def test_a_token_whose_input_gate_is_wide_open_outweighs_all_others() -> None:
    mixer, h = memory(), torch.randn(T, WIDTH)
    h[3, -1] = 80
    q, k, v = rows_of(mixer, h)
    read = torch.sign(q @ k[3])[:, None] * v[3]
    torch.testing.assert_close(run(mixer, h)[3:], output(mixer, h, read)[3:])


@pytest.mark.parametrize("forget", [-3.0, 0.0, OPEN])
def test_gates_of_any_size_give_what_sums_without_a_scale_do(forget: float) -> None:
    mixer, h = memory(), torch.randn(T, WIDTH)
    h[:, -1] = 80 * torch.randint(-1, 2, (T,))
    mixer.gates.bias.data[1] = forget
    q, k, v = rows_of(mixer, h)
    ages = torch.arange(T)[:, None] - torch.arange(T)
    logs = h[:, -1] + ages * F.logsigmoid(torch.tensor(forget))
    weights = (q @ k.T * logs.exp()).tril()
    read = weights @ v / weights.sum(1, keepdim=True).abs().clamp(min=1)
    torch.testing.assert_close(run(mixer, h), output(mixer, h, read))


def test_in_float32_gates_of_any_size_leave_outputs_and_gradients_finite() -> None:
    mixer, h = memory(), torch.randn(200, WIDTH)
    h[:, -1] = 80 * torch.randint(-1, 2, (200,))
    exact = run(mixer, h)
    torch.set_default_dtype(torch.float32)
    low = h.float().requires_grad_()
    out = run(mixer.float(), low)
    torch.testing.assert_close(out.double(), exact, rtol=1e-3, atol=1e-3)
    gradients = torch.autograd.grad(out.square().sum(), [low, *mixer.parameters()])
    assert all(each.isfinite().all() for each in gradients)


def test_forget_gates_start_open_wider_from_head_to_head() -> None:
    dims, record = Dims(width=8, heads=4, kv_heads=4, head_dim=2, value_dim=2, memory=1), Record()
    mixer = MatrixLSTM(dims, Options())
    torch.testing.assert_close(mixer.gates.bias.detach()[4:], torch.tensor([3.0, 4, 5, 6]))
    run(mixer, torch.randn(T, 8), Probe(record, "layer0"))
    expected = torch.sigmoid(torch.tensor([3.0, 4, 5, 6])).mean()
    assert record.metrics["layer0/kept"].item() == pytest.approx(float(expected))


def test_heads_that_do_not_divide_the_inner_width_are_refused_and_blocks_shrink_to_what_does() -> None:
    with pytest.raises(ConfigError, match=r"heads \(4\) to divide expansion \* width \(1 \* 6 = 6\)"):
        MatrixLSTM(Dims(width=6, heads=4, kv_heads=4, head_dim=1, value_dim=1, memory=1), Options(1, 0, 1))
    blocks = {block: MatrixLSTM(DIMS, Options(block=block)).query.weight.shape for block in (4, 5, 11, 10_000)}
    assert blocks == {4: (3, 4, 4), 5: (3, 4, 4), 11: (2, 6, 6), 10_000: (1, 12, 12)}
