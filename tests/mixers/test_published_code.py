"""Memories of 2022 to 2026 compute what published code does with the same weights: outputs and gradients, in float64.

Weights of the other module are made of those of ours, so that gradients of ours through either must agree. Code that
computes in float32 whatever it gets is made to compute in float64.
"""

import functools
import importlib.util
from collections.abc import Callable, Iterator, Mapping
from pathlib import Path
from types import ModuleType
from typing import Any

import pytest
import torch
from torch import Tensor, nn
from torch.func import functional_call

from rltransformers.backbone import PLAIN, Backbone, BackboneConfig
from rltransformers.mixers import gated_deltanet, gla, kda, lru, mamba2, min_rnn, mlstm, retention, rg_lru, slstm
from rltransformers.mixers.cell import CellOptions
from rltransformers.mixers.interface import Dims
from tests.mixers.episodes import run

pytestmark = pytest.mark.third_party

WIDTH, HEADS, TIME = 12, 3, 21
TOLERANCE = 1e-6  # of sums in another order, and of a number that the other code adds to a norm; measured: 1e-8
DIMS = Dims(width=WIDTH, heads=HEADS, kv_heads=HEADS, head_dim=4, value_dim=5, memory=1)


@pytest.fixture(autouse=True)
def double(monkeypatch: pytest.MonkeyPatch) -> Iterator[None]:
    monkeypatch.setattr(Tensor, "float", Tensor.double)
    torch.set_default_dtype(torch.float64)
    torch.manual_seed(0)
    yield
    torch.set_default_dtype(torch.float32)


class Double:
    """The module torch, whose float32 is float64."""

    float32 = float = torch.float64

    def __getattr__(self, name: str) -> Any:
        return getattr(torch, name)


def imported(name: str) -> Any:
    """A module of another package that computes in float64; skips the test where it is missing."""
    module = pytest.importorskip(name, reason="compared with; extra third-party", exc_type=ImportError)
    if hasattr(module, "torch"):
        module.torch = Double()
    return module


def naive(name: str) -> ModuleType:
    """A file of fla.ops, without the package, which needs triton and this file does not."""
    spec = importlib.util.find_spec("fla")
    if spec is None or not spec.submodule_search_locations:
        pytest.skip("fla-core is not installed; extra third-party")
    path = Path(spec.submodule_search_locations[0]) / "ops" / name / "naive.py"
    found = importlib.util.spec_from_file_location(f"fla_naive_{name}", path)
    assert found is not None and found.loader is not None
    module = importlib.util.module_from_spec(found)
    found.loader.exec_module(module)
    vars(module)["torch"] = Double()
    return module


def agree(
    ours: nn.Module,
    theirs: Callable[[Tensor], Tensor],
    without: tuple[str, ...] = (),
    forward: Callable[[Any, Tensor], Tensor] = run,
) -> None:
    """Compare outputs, and gradients of inputs and of all weights of ours, but for those that theirs has not."""
    for weight in ours.parameters():
        weight.data += 0.3 * torch.randn_like(weight)
    for name in without:
        ours.get_parameter(name).data.zero_()
    x = torch.randn(2, TIME, WIDTH, requires_grad=True)
    weights = [x, *(each for name, each in ours.named_parameters() if name not in without)]
    direction = torch.randn(2, TIME, WIDTH)
    results = []
    for out in (forward(ours, x), theirs(x)):
        results.append((out.detach(), *torch.autograd.grad((out * direction).sum(), weights)))
    names = ["output", "input", *(name for name, _ in ours.named_parameters() if name not in without)]
    for name, one, other in zip(names, *results, strict=True):
        error = float((one - other).abs().max() / other.abs().max().clamp(min=1))
        assert error <= TOLERANCE, f"{name}: {error:.1e}"
        assert float(other.abs().max()) > 1e-3, f"{name} has no effect"


def call(module: nn.Module, weights: Mapping[str, Tensor], *inputs: Any, **keywords: Any) -> Any:
    """What a module gives with these weights, which are all that it has."""
    assert set(weights) == {name for name, _ in module.named_parameters()}
    shapes = {name: each.shape for name, each in module.named_parameters()}
    assert shapes == {name: each.shape for name, each in weights.items()}
    return functional_call(module, dict(weights), inputs, keywords)


def taps(kernel: Tensor) -> Tensor:
    """Weights of a causal convolution of torch, whose last tap is that of the token itself."""
    return kernel.flip(-1)[:, None]


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


def test_forget_gates_are_those_of_flash_linear_attention() -> None:
    code = naive("forgetting_attn")
    settings = {"width": WIDTH, "heads": HEADS, "layers": 1, "memory": TIME, "prior": "forget", "ff": "none"}
    ours: Any = Backbone(BackboneConfig(**{**PLAIN, **settings}))
    layer, mixer = ours.layer(0), ours.layer(0).mixing.mixer

    def theirs(x: Tensor) -> Tensor:
        h = layer.join_mixing.prepare(x)
        q, k, v = (each.unflatten(-1, (HEADS, -1)) for each in mixer.project(h).chunk(3, -1))
        read = code.naive_forgetting_attn(q, k, v, nn.functional.logsigmoid(mixer.prior.gate(h)))
        return x + mixer.output(read.flatten(2))

    agree(ours, theirs, forward=lambda backbone, x: backbone(x)[0])


def test_latent_attention_is_that_of_deepseek_v2() -> None:
    code = imported("transformers.models.deepseek_v2.modeling_deepseek_v2")
    config = code.DeepseekV2Config(
        hidden_size=WIDTH, num_attention_heads=HEADS, num_key_value_heads=HEADS, q_lora_rank=None, kv_lora_rank=8,
        qk_rope_head_dim=4, qk_nope_head_dim=6, v_head_dim=5, attn_implementation="eager",
    )  # fmt: skip
    module = code.DeepseekV2Attention(config, 0)
    module.kv_a_layernorm.variance_epsilon = 1e-5
    heads = {"name": "mla", "latent": 8, "turned": 4}
    settings = {"width": WIDTH, "heads": HEADS, "head_dim": 6, "value_dim": 5, "layers": 1, "memory": TIME}
    choices = {"position": "rope", "ff": "none", "head_mixing": heads}
    ours: Any = Backbone(BackboneConfig(**{**PLAIN, **settings, **choices}))
    layer, mixer = ours.layer(0), ours.layer(0).mixing.mixer
    turns = torch.exp(1j * torch.arange(TIME)[:, None] * 10_000.0 ** (-torch.arange(2) / 2))[None]
    mask = torch.full((TIME, TIME), -torch.inf).triu(1)

    def theirs(x: Tensor) -> Tensor:
        queries, kept = mixer.project.weight.split([HEADS * 10, 4 + 8])
        turned, own = queries.unflatten(0, (HEADS, -1)).split([4, 6], 1)
        weights = {
            "q_proj.weight": torch.cat([own, turned], 1).flatten(0, 1),
            "kv_a_proj_with_mqa.weight": torch.cat([kept[4:], kept[:4]]),
            "kv_a_layernorm.weight": mixer.score.gain, "kv_b_proj.weight": mixer.score.up.flatten(0, 1),
            "o_proj.weight": mixer.output.weight,
        }  # fmt: skip
        inputs = {"attention_mask": mask, "position_embeddings": turns}
        out: Tensor = call(module, weights, layer.join_mixing.prepare(x), **inputs)[0]
        return x + out

    agree(ours, theirs, forward=lambda backbone, x: backbone(x)[0])
