"""Recurrent memories of 2022 to 2026 compute what published code does with the same weights."""

import functools
import importlib.util
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest
import torch
from torch import Tensor, nn

from rltransformers.mixers import (
    gated_deltanet,
    gla,
    kda,
    lru,
    mamba2,
    min_rnn,
    mlstm,
    retention,
    rg_lru,
    rwkv7,
    s5,
    slstm,
)
from rltransformers.mixers.cell import CellOptions
from rltransformers.mixers.interface import Dims
from tests.peers.sources import AGALITE, VARIABLE
from tests.published import HEADS, TIME, WIDTH, agree, call, double, imported, naive, taps

pytestmark = pytest.mark.third_party
__all__ = ["double"]  # a fixture

DIMS = Dims(width=WIDTH, heads=HEADS, kv_heads=HEADS, head_dim=4, value_dim=5, memory=1)


def test_gated_deltanet_is_that_of_qwen3_next() -> None:
    code = imported("transformers.models.qwen3_next.modeling_qwen3_next")
    config = code.Qwen3NextConfig(
        hidden_size=WIDTH, linear_num_value_heads=HEADS, linear_num_key_heads=HEADS, linear_key_head_dim=4,
        linear_value_head_dim=5, rms_norm_eps=1e-5, num_hidden_layers=1, layer_types=["linear_attention"],
    )  # fmt: skip
    module = code.Qwen3NextGatedDeltaNet(config, 0)
    ours: Any = gated_deltanet.GatedDeltaNet(DIMS, gated_deltanet.Options())

    def theirs(x: Tensor) -> Tensor:
        q, k, v = (rows.unflatten(0, (HEADS, -1)) for rows in ours.project.weight.split([12, 12, 15]))
        z = ours.out.gate.weight.unflatten(0, (HEADS, -1))
        weights = {
            "in_proj_qkvz.weight": torch.cat([q, k, v, z], 1).flatten(0, 1),
            "in_proj_ba.weight": torch.stack([ours.rate.weight, ours.decay.weight], 1).flatten(0, 1),
            "conv1d.weight": taps(ours.conv.kernel), "dt_bias": ours.step_bias, "A_log": ours.log_scale,
            "norm.weight": ours.out.gain, "out_proj.weight": ours.out.out.weight,
        }  # fmt: skip
        return call(module, weights, x)

    agree(ours, theirs)


def test_kimi_delta_attention_is_that_of_kimi_linear() -> None:
    code = imported("transformers.models.kimi_linear.modeling_kimi_linear")
    config = code.KimiLinearConfig(
        hidden_size=WIDTH, linear_num_heads=2, linear_head_dim=WIDTH, rms_norm_eps=1e-5, num_hidden_layers=1,
        layer_types=["linear_attention"],
    )  # fmt: skip
    module = code.KimiLinearDeltaAttention(config, 0)
    dims = Dims(width=WIDTH, heads=2, kv_heads=2, head_dim=WIDTH, value_dim=WIDTH, memory=1)
    ours: Any = kda.KimiDeltaAttention(dims, kda.Options())

    def theirs(x: Tensor) -> Tensor:
        q, k, v = ours.project.weight.chunk(3)
        weights = {
            "q_proj.weight": q, "k_proj.weight": k, "v_proj.weight": v, "conv1d.weight": taps(ours.conv.kernel),
            "forget_gate.f_a_proj.weight": ours.decay[0].weight, "forget_gate.f_b_proj.weight": ours.decay[1].weight,
            "forget_gate.dt_bias": ours.step_bias, "forget_gate.A_log": ours.log_scale.view(1, 1, -1, 1),
            "b_proj.weight": ours.rate.weight, "g_a_proj.weight": torch.eye(WIDTH),
            "g_b_proj.weight": ours.out.gate.weight, "o_norm.weight": ours.out.gain,
            "o_proj.weight": ours.out.out.weight,
        }  # fmt: skip
        return call(module, weights, x)

    agree(ours, theirs)


def test_mamba2_is_that_of_transformers() -> None:
    code = imported("transformers.models.mamba2.modeling_mamba2")
    config = code.Mamba2Config(
        hidden_size=WIDTH, num_heads=6, head_dim=4, state_size=5, expand=2, n_groups=1, chunk_size=8,
        layer_norm_epsilon=1e-5, num_hidden_layers=1,
    )  # fmt: skip
    module = code.Mamba2Mixer(config, 0)
    ours: Any = mamba2.Mamba2(DIMS, mamba2.Options(state=5))

    def theirs(x: Tensor) -> Tensor:
        weights = {
            "in_proj.weight": ours.project.weight, "conv1d.weight": taps(ours.conv.kernel),
            "conv1d.bias": ours.conv.bias, "dt_bias": ours.step_bias, "A_log": ours.log_rate,
            "D": ours.skip, "norm.weight": ours.gain, "out_proj.weight": ours.out.weight,
        }  # fmt: skip
        return call(module, weights, x)

    agree(ours, theirs)


def test_the_real_gated_lru_is_that_of_recurrent_gemma_behind_its_first_token() -> None:
    """Positions from 1: at 0 the code does not scale the input, the paper does."""
    code = imported("transformers.models.recurrent_gemma.modeling_recurrent_gemma")
    config = code.RecurrentGemmaConfig(
        hidden_size=WIDTH, lru_width=WIDTH, num_attention_heads=1, num_key_value_heads=1, conv1d_width=4,
        hidden_activation="gelu", num_hidden_layers=1,
    )  # fmt: skip
    module = code.RecurrentGemmaRecurrentBlock(config, 0)
    ours: Any = rg_lru.RealGatedLRU(DIMS, rg_lru.Options())

    def theirs(x: Tensor) -> Tensor:
        y, value = ours.project.weight.chunk(2)
        y_bias, value_bias = ours.project.bias.chunk(2)
        recurrence, entry = ours.gates.weight.chunk(2)
        recurrence_bias, entry_bias = ours.gates.bias.chunk(2)
        weights = {
            "linear_y.weight": y, "linear_y.bias": y_bias, "linear_x.weight": value, "linear_x.bias": value_bias,
            "linear_out.weight": ours.out.weight, "linear_out.bias": ours.out.bias,
            "conv_1d.weight": taps(ours.conv.kernel), "conv_1d.bias": ours.conv.bias,
            "rg_lru.recurrent_param": ours.rate,
            "rg_lru.input_gate_weight": entry.T[None], "rg_lru.input_gate_bias": entry_bias[None],
            "rg_lru.recurrent_gate_weight": recurrence.T[None], "rg_lru.recurrent_gate_bias": recurrence_bias[None],
        }  # fmt: skip
        places = torch.arange(1, TIME + 1).expand(len(x), -1)
        out: Tensor = call(module, weights, x, places, None, use_cache=False)[0]
        return out

    agree(ours, theirs)


def test_the_matrix_memory_is_that_of_xlstm() -> None:
    layer = imported("xlstm.blocks.mlstm.layer")
    config = layer.mLSTMLayerConfig(
        embedding_dim=WIDTH, num_heads=HEADS, conv1d_kernel_size=4, qkv_proj_blocksize=4, context_length=TIME
    )
    config._inner_embedding_dim = 2 * WIDTH
    module = layer.mLSTMLayer(config)
    cell = module.mlstm_cell
    cell.backend_fn = functools.partial(cell.backend_fn, eps=0.0)
    ours: Any = mlstm.MatrixLSTM(DIMS, mlstm.Options())

    def theirs(x: Tensor) -> Tensor:
        opened, forget = ours.gates.weight.chunk(2)
        opened_bias, forget_bias = ours.gates.bias.chunk(2)
        weights = {
            "proj_up.weight": ours.up.weight, "q_proj.weight": ours.query.weight.mT,
            "k_proj.weight": ours.key.weight.mT, "v_proj.weight": ours.value.weight.mT,
            "conv1d.conv.weight": taps(ours.conv.kernel), "conv1d.conv.bias": ours.conv.bias,
            "mlstm_cell.igate.weight": opened, "mlstm_cell.igate.bias": opened_bias,
            "mlstm_cell.fgate.weight": forget, "mlstm_cell.fgate.bias": forget_bias,
            "mlstm_cell.outnorm.weight": ours.gain - 1, "learnable_skip": ours.skip,
            "proj_down.weight": ours.down.weight,
        }  # fmt: skip
        return call(module, weights, x)

    agree(ours, theirs)


def test_the_scalar_memory_is_the_cell_of_xlstm() -> None:
    """Between our maps: that code has a convolution and other maps in front of it."""
    code = imported("xlstm.blocks.slstm.src.vanilla")
    ours: Any = slstm.ScalarLSTM(DIMS, CellOptions())

    def theirs(x: Tensor) -> Tensor:
        given = (x @ ours.of_token.weight.T).transpose(0, 1)
        point = code.slstm_pointwise_function_registry["slstm"]
        start = torch.zeros(4, len(x), WIDTH)
        states, *_ = code.slstm_forward(given, start, ours.of_state.mT, ours.of_token.bias, point)
        return ours.project(states[0, 1:].transpose(0, 1))

    agree(ours, theirs)


@pytest.mark.parametrize("gates", [1, 2])
def test_minimal_cells_are_those_of_min_gru_pytorch(gates: int) -> None:
    name = ("minGRU", "minLSTM")[gates - 1]
    module = getattr(imported(f"minGRU_pytorch.{name}"), name)(WIDTH, expansion_factor=1.5, proj_out=True)
    kind = (min_rnn.MinGRU, min_rnn.MinLSTM)[gates - 1]
    ours: Any = kind(DIMS, min_rnn.Options(expansion=1.5))
    into = ("to_hidden_and_gate.weight", "to_hidden_and_f_i_gate.weight")[gates - 1]

    def theirs(x: Tensor) -> Tensor:
        *of_gates, hidden = ours.project.weight.chunk(gates + 1)
        weights = {into: torch.cat([hidden, *of_gates]), "to_out.weight": ours.out.weight}
        return call(module, weights, x)

    agree(ours, theirs, without=("project.bias", "out.bias"))


def test_the_linear_recurrent_unit_is_that_of_lru_pytorch() -> None:
    code = imported("LRU_pytorch")
    module = code.LRU(WIDTH, WIDTH, 7)
    ours: Any = lru.LinearRecurrentUnit(DIMS, lru.Options(states=7))

    def theirs(x: Tensor) -> Tensor:
        into, out = ours.project.weight.view(2, 7, WIDTH), ours.out.weight.view(WIDTH, 2, 7)
        weights = {
            "nu_log": ours.nu, "theta_log": ours.theta, "gamma_log": ours.gamma, "B": torch.complex(*into),
            "C": torch.complex(out[:, 0], -out[:, 1]), "D": ours.skip.diag(),
        }  # fmt: skip
        return call(module, weights, x)

    agree(ours, theirs)


def test_retention_is_that_of_flash_linear_attention() -> None:
    code = naive("retention")
    ours: Any = retention.Retention(DIMS, retention.Options())

    def theirs(x: Tensor) -> Tensor:
        q, k, v = ours.project(x).split(DIMS.widths, -1)
        q, k, v = (each.unflatten(-1, (HEADS, -1)).transpose(1, 2) for each in (q, k, v))
        turn = torch.exp(1j * torch.arange(TIME)[:, None] * 10_000.0 ** (-torch.arange(2) / 2))
        pairs = (torch.complex(*each.unflatten(-1, (2, 2)).unbind(-1)) * turn for each in (q, k))
        q, k = (torch.view_as_real(each).flatten(-2) for each in pairs)
        return ours.out(code.naive_retention(q, k, v), x)

    agree(ours, theirs)


def test_gated_linear_attention_is_that_of_flash_linear_attention() -> None:
    code = naive("gla")
    ours: Any = gla.GatedLinearAttention(DIMS, gla.Options())

    def theirs(x: Tensor) -> Tensor:
        q, k, v = (each.unflatten(-1, (HEADS, -1)) for each in ours.project(x).split(DIMS.widths, -1))
        log_decay = nn.functional.logsigmoid(ours.rates(x)).unflatten(-1, (HEADS, -1)) / 16
        read = code.naive_recurrent_gla(q, k, v, log_decay)
        read = read[0] if isinstance(read, tuple) else read
        return ours.out(read.transpose(1, 2), x)

    agree(ours, theirs)


def test_negative_eigenvalues_are_those_of_olmo_hybrid() -> None:
    code = imported("transformers.models.olmo_hybrid.modeling_olmo_hybrid")
    config = code.OlmoHybridConfig(
        hidden_size=WIDTH, linear_num_value_heads=HEADS, linear_num_key_heads=HEADS, linear_key_head_dim=4,
        linear_value_head_dim=5, linear_allow_neg_eigval=True, num_hidden_layers=2,
        layer_types=["linear_attention", "full_attention"],
    )  # fmt: skip
    module = code.OlmoHybridGatedDeltaNet(config, 0)
    ours: Any = gated_deltanet.GatedDeltaNet(DIMS, gated_deltanet.Options(negative_eigenvalues=True))

    def theirs(x: Tensor) -> Tensor:
        q, k, v = ours.project.weight.split([12, 12, 15])
        weights = {
            "q_proj.weight": q, "k_proj.weight": k, "v_proj.weight": v, "conv1d.weight": taps(ours.conv.kernel),
            "a_proj.weight": ours.decay.weight, "b_proj.weight": ours.rate.weight, "dt_bias": ours.step_bias,
            "A_log": ours.log_scale, "g_proj.weight": ours.out.gate.weight, "o_norm.weight": ours.out.gain,
            "o_proj.weight": ours.out.out.weight,
        }  # fmt: skip
        return call(module, weights, x)

    agree(ours, theirs)


@pytest.mark.parametrize(("count", "decay"), [(1, False), (2, True), (3, False)])
def test_corrections_are_those_of_flash_linear_attention(count: int, decay: bool) -> None:
    code = naive("gated_delta_product")
    options = gated_deltanet.Options(decay=decay, householder=count, negative_eigenvalues=True, conv=0)
    ours: Any = gated_deltanet.GatedDeltaNet(DIMS, options)

    def theirs(x: Tensor) -> Tensor:
        rows = nn.functional.silu(ours.project(x)).split([12, 12 * count, 15 * count], -1)
        q, k, v = (
            each.unflatten(-1, (-1, HEADS, size)).flatten(1, 2) for each, size in zip(rows, (4, 4, 5), strict=True)
        )
        q, k = (each / (each.square().sum(-1, keepdim=True) + 1e-6).sqrt() for each in (q, k))
        beta = 2 * ours.rate(x).sigmoid().unflatten(-1, (count, HEADS)).flatten(1, 2)
        log_decay = None
        if decay:
            log_decay = -ours.log_scale.exp() * nn.functional.softplus(ours.decay(x) + ours.step_bias)
        read, _ = code.naive_recurrent_gated_delta_product(
            q / 2, k, v, log_decay, beta, 1.0, None, num_householder=count
        )
        return ours.out(read.transpose(1, 2), x)

    agree(ours, theirs)


def test_rwkv7_is_that_of_rwkv(monkeypatch: pytest.MonkeyPatch) -> None:
    """Its norm of heads adds 64e-5, which is for heads of 64 channels; TorchScript would compute in float32."""
    monkeypatch.setenv("RWKV_V7_ON", "1")
    for name in ("script", "script_method"):
        monkeypatch.setattr(torch.jit, name, lambda function: function)
    code = imported("rwkv.model")
    dims = Dims(width=WIDTH, heads=2, kv_heads=2, head_dim=64, value_dim=64, memory=1)
    ours: Any = rwkv7.RWKV7(dims, rwkv7.Options(rank=3, gate_rank=5))

    def theirs(x: Tensor) -> Tensor:
        shares = [ours.shares[name] for name in ("query", "decay", "key", "value", "rate", "gate")]
        low = [each.weight.T for part in (ours.decay, ours.rate, ours.gate) for each in (part[0], part[2])]
        maps = [each.weight.T for each in (ours.query, ours.key, ours.value, ours.out)]
        weights = [
            *shares, ours.decay[2].bias, *low[:2], ours.rate[2].bias, *low[2:4], *[torch.zeros(())] * 3, *low[4:],
            ours.removal, ours.rate_share, ours.bonus, *maps, ours.gain, ours.bias,
        ]  # fmt: skip
        outs = []
        for episode in x:
            last, state, first = torch.zeros(WIDTH), torch.zeros(2, 64, 64), torch.zeros(())
            for token in episode:
                step = code.RWKV_x070_TMix_one
                out, last, state, first = step(0, 2, 64, token, last, first, state, *weights)
                outs.append(out)
        return torch.stack(outs).unflatten(0, x.shape[:2])

    agree(ours, theirs)


def test_s5_is_that_of_s5_pytorch(monkeypatch: pytest.MonkeyPatch) -> None:
    code = pytest.importorskip("s5.s5_model", reason="compared with; extra third-party")
    monkeypatch.setattr(code, "as_complex", torch.view_as_complex)
    torch.set_default_dtype(torch.float32)  # its weights, which ours take the place of
    module = code.S5(WIDTH, 7).seq
    torch.set_default_dtype(torch.float64)
    ours: Any = s5.S5(DIMS, s5.Options(states=7))

    def theirs(x: Tensor) -> Tensor:
        into, out = ours.project.weight.view(2, 7, WIDTH), ours.out.weight.view(WIDTH, 2, 7)
        weights = {
            "Lambda": torch.complex(-ours.rate.exp(), ours.turn), "log_step": ours.delta, "D": ours.skip,
            "B": into.movedim(0, -1).contiguous(), "C": torch.complex(out[:, 0], -out[:, 1]),
        }  # fmt: skip
        return torch.stack([call(module, weights, episode) for episode in x])

    agree(ours, theirs)


@pytest.mark.parametrize("name", ["agalite", "memax"])
def test_memories_published_for_jax_are_those(name: str) -> None:
    """In a process of its own: one that has imported JAX must not fork, and other tests of this process do."""
    if name == "agalite" and not AGALITE.exists:
        pytest.skip(f"{VARIABLE} names no folder with it: {AGALITE.get}")
    for package in ("memax", "equinox") if name == "memax" else ("flax",):
        if importlib.util.find_spec(package) is None:
            pytest.skip(f"{package} is not installed; extra third-party")
    twins = Path(__file__).with_name("jax_twins.py")
    options = ["-q", "-p", "no:cacheprovider", "-p", "no:xdist", "-k", name]
    command = [sys.executable, "-m", "pytest", *options, str(twins)]
    done = subprocess.run(command, capture_output=True, text=True, timeout=600, check=False)
    assert done.returncode == 0, done.stdout[-4000:] + done.stderr[-2000:]
