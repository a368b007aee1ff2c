"""Facts about softmax attention and its parts that the contract does not state."""

import math
from collections.abc import Iterator
from typing import Any

import pytest
import torch
from torch import Tensor, nn
from torch.nn import functional as F

from rltransformers.attention.layer import Attention
from rltransformers.attention.reach import Columns, window_distance
from rltransformers.attention.roles import View
from rltransformers.attention.selections.topk import Options, TopK
from rltransformers.attention.spans.interface import soft_mask
from rltransformers.backbone import Backbone, BackboneConfig, Record
from rltransformers.blocks.layer import read_frozen
from rltransformers.core.errors import ConfigError
from rltransformers.functional.keys import Rows
from rltransformers.functional.windows import by_key
from rltransformers.laws import EXACT, perturbed
from rltransformers.mixers.interface import Dims
from tests.attention.row import projections
from tests.attention.rows import ROWS, config_of, entry_config


@pytest.fixture(autouse=True)
def double() -> Iterator[None]:
    torch.set_default_dtype(torch.float64)
    yield
    torch.set_default_dtype(torch.float32)


def plain(**overrides: Any) -> Backbone:
    """One layer of softmax attention whose skip path is open."""
    return perturbed(config_of({"layers": 1, "residual": "pre_ln", "position": "none", "memory": 30, **overrides}))


def part(backbone: Backbone, name: str) -> nn.Module:
    return backbone.get_submodule(f"layers.0.mixing.mixer{'.' + name if name else ''}")


def mixed(backbone: Backbone, x: Tensor) -> Tensor:
    """What the mixing submodule of the only layer adds, with the feed-forward part switched off."""
    backbone.get_parameter("layers.0.ff.out.weight").data.zero_()
    backbone.get_parameter("layers.0.ff.out.bias").data.zero_()
    return backbone(x)[0] - x


def attention_of_torch(attention: nn.Module, bias: bool) -> nn.MultiheadAttention:
    """The attention of PyTorch with the same parameters."""
    other = nn.MultiheadAttention(15, 3, bias=bias, batch_first=True)
    pairs = [("project.weight", other.in_proj_weight), ("output.weight", other.out_proj.weight)]
    pairs += [("project.bias", other.in_proj_bias), ("output.bias", other.out_proj.bias)] if bias else []
    for name, parameter in pairs:
        parameter.data.copy_(attention.get_parameter(name))
    return other


@pytest.mark.parametrize("bias", [False, True])
def test_softmax_attention_equals_the_one_of_torch(bias: bool) -> None:
    backbone = plain(attention_bias=bias)
    x = torch.randn(2, 11, 15)
    h = F.layer_norm(x, (15,), backbone.get_parameter("layers.0.join_mixing.norm.weight"),
                     backbone.get_parameter("layers.0.join_mixing.norm.bias"))  # fmt: skip
    other = attention_of_torch(part(backbone, ""), bias)
    expected, _ = other(h, h, h, attn_mask=torch.ones(11, 11, dtype=torch.bool).triu(1), need_weights=False)
    torch.testing.assert_close(mixed(backbone, x), expected, rtol=EXACT, atol=EXACT)


@pytest.mark.parametrize("bias", [False, True])
def test_attention_by_content_alone_equals_the_one_of_torch(bias: bool) -> None:
    attention = part(plain(attention_bias=bias), "")
    assert isinstance(attention, Attention)
    other = attention_of_torch(attention, bias)
    other.out_proj.weight.data.copy_(torch.eye(15))
    if bias:
        nn.init.zeros_(other.out_proj.bias)
    h, rows, seen = torch.randn(2, 4, 15), torch.randn(2, 7, 15), torch.rand(2, 7) < 0.6
    seen[:, 0] = True
    expected, _ = other(h, rows, rows, key_padding_mask=~seen, need_weights=False)
    torch.testing.assert_close(read_frozen(attention, h, rows, seen), expected, rtol=EXACT, atol=EXACT)


SCORED = [key for key in ROWS if key[0] in ("position", "prior", "span", "head_mixing", "selection")]
# Their windows, blocks, edges or states are nothing without a memory, which they say.
NEED_MEMORY = [
    ("position", "global_labels"),
    ("prior", "predictive"),
    ("span", "multi_scale"),
    ("selection", "sinkhorn"),
    ("selection", "sac"),
]


@pytest.mark.parametrize("key", NEED_MEMORY, ids=":".join)
def test_what_needs_a_memory_is_refused_without_one(key: tuple[str, str]) -> None:
    with pytest.raises(ConfigError, match="memory"):
        entry_config(key, memory=0, tokens_per_step=1)


@pytest.mark.parametrize("key", [key for key in SCORED if key not in NEED_MEMORY], ids=":".join)
def test_without_memory_every_token_is_alone(key: tuple[str, str]) -> None:
    backbone = perturbed(entry_config(key, memory=0, tokens_per_step=1))
    x = torch.randn(2, 9, backbone.width)
    timestep = torch.arange(9).expand(2, -1)
    together, _ = backbone(x)
    alone = [
        backbone(
            x[:, t : t + 1],
            backbone.initial_state(2) if t == 0 else state_at(backbone, t),
            timestep=timestep[:, t : t + 1],
        )[0]
        for t in range(9)
    ]
    torch.testing.assert_close(together, torch.cat(alone, 1))


def state_at(backbone: Backbone, p: int) -> Any:
    """An empty memory at episode position p."""
    state = backbone.initial_state(2)
    state.tensors["position"].fill_(p - 1)
    return state


def test_a_convolution_of_one_tap_mixes_no_tokens() -> None:
    backbone = perturbed(
        config_of({"width": 12, "heads": 4, "position": "none", "mixer": {"name": "light_conv", "taps": 1}})
    )
    x = torch.randn(2, 9, 12)
    torch.testing.assert_close(backbone(x)[0], backbone(x.view(18, 1, 12))[0].view(2, 9, 12))


def test_average_attention_without_its_network_is_the_mean_of_the_episode() -> None:
    from rltransformers.functional.call import Tokens, episode_positions
    from rltransformers.mixers.average import episode_mean

    x, reset = torch.randn(1, 9, 4), torch.arange(9)[None] == 5
    p = episode_positions(torch.tensor([-1]), reset)
    mean, total = episode_mean(x, torch.zeros(1, 4), Tokens(p, p, reset.cumsum(1) == 0, torch.tensor([-1])))
    expected = [x[0, : t + 1].mean(0) if t < 5 else x[0, 5 : t + 1].mean(0) for t in range(9)]
    torch.testing.assert_close(mean[0], torch.stack(expected))
    torch.testing.assert_close(total[0], x[0, 5:].sum(0))


def test_the_gaussian_prior_is_highest_at_its_distance() -> None:
    prior = part(plain(prior="gaussian_transformer"), "prior")
    w, b = 0.5, 0.5 * 9  # softplus(width) = 0.5, softplus(offset) = 4.5: highest at d = sqrt(9)
    prior.get_parameter("width").data.fill_(math.log(math.expm1(w)))
    prior.get_parameter("offset").data.fill_(math.log(math.expm1(b)))
    logits = prior.of_distances(torch.arange(8), torch.zeros(())).T  # type: ignore[operator] # modules are not typed by name
    assert logits.argmax(1).tolist() == [3, 3, 3]
    torch.testing.assert_close(logits[0], -(w * torch.arange(8.0) ** 2 - b).abs())


def test_a_layer_without_queries_takes_over_the_weights_of_the_layer_below() -> None:
    backbone = perturbed(config_of({"prior": "realformer", "position": "none", "layers": 2}))
    projections(backbone.get_submodule("layers.1.mixing.mixer"))[0].zero_()
    record = Record(weights=True)
    backbone(torch.randn(2, 13, 15), record=record)
    torch.testing.assert_close(record.lookback["layer0"], record.lookback["layer1"])
    torch.testing.assert_close(record.metrics["layer0/entropy"], record.metrics["layer1/entropy"])


def test_the_span_loss_is_the_mean_span_of_the_heads() -> None:
    backbone = perturbed(config_of({"span": {"name": "adaptive", "ramp": 2.0}, "layers": 2, "losses": {"span": 0.1}}))
    fractions = [backbone.get_parameter(f"layers.{i}.mixing.mixer.span.fraction") for i in (0, 1)]
    for value, numbers in zip(fractions, ([0.0, 0.5, 1.0], [0.25, 0.25, 0.25]), strict=True):
        value.data.copy_(torch.tensor(numbers))
    record = Record()
    backbone(torch.randn(2, 5, 15), record=record)
    assert record.losses["span"].item() == pytest.approx(6 * (0.5 + 0.25))
    (gradient,) = torch.autograd.grad(record.losses["span"], fractions[0])
    torch.testing.assert_close(gradient, torch.full((3,), 6 / 3))
    assert record.metrics["layer0/span"].item() == pytest.approx(3.0)
    assert backbone.aux_weights == {"span": 0.1}


def test_the_loss_of_predicted_spans_counts_valid_tokens_only() -> None:
    backbone = perturbed(config_of({"span": {"name": "adaptive_dynamic", "ramp": 2.0}, "layers": 1}))
    x = torch.randn(2, 6, 15)
    valid = torch.ones(2, 6, dtype=torch.bool)
    valid[:, 4:] = False
    short, long = Record(), Record()
    backbone(x[:, :4], record=short)
    backbone(x, valid=valid, record=long)
    torch.testing.assert_close(short.losses["span"], long.losses["span"])


def test_spans_are_clamped_after_an_optimizer_step() -> None:
    backbone = plain(span={"name": "adaptive", "ramp": 2.0})
    span = part(backbone, "span").get_parameter("fraction")
    span.data.copy_(torch.tensor([-0.3, 0.4, 1.7]))
    backbone.constrain_()
    assert span.tolist() == [0.0, 0.4, 1.0]


def test_a_soft_mask_falls_along_its_ramp() -> None:
    mask = soft_mask(torch.tensor([0.0, 3.0]), torch.arange(8), 4.0)
    assert mask[0].tolist() == [1, 0.75, 0.5, 0.25, 0, 0, 0, 0]
    assert mask[1].tolist() == [1, 1, 1, 1, 0.75, 0.5, 0.25, 0]


def test_top_k_keeps_the_largest_logits() -> None:
    logits = torch.randn(2, 3, 4, 9)
    columns = Columns(torch.zeros(2, 1, 4, 9), torch.arange(9), (None,), 9)
    nowhere = View(torch.empty(2, 4, 5), columns, None)
    for k in (1, 4, 9, 20):
        kept = TopK(Dims(9, 3, 3, 3, 3, 8), Options(k)).masked_logits(logits, nowhere) == logits
        assert kept.sum(-1).eq(min(k, 9)).all()
        worst = logits.masked_fill(~kept, math.inf).amin(-1)
        assert (logits.masked_fill(kept, -math.inf).amax(-1) <= worst).all()


@pytest.mark.parametrize(("time", "rows", "length"), [(1, 1, 1), (1, 7, 9), (4, 4, 2), (5, 12, 3), (5, 12, 40)])
def test_scores_by_distance_are_shifted_as_a_gather_would(time: int, rows: int, length: int) -> None:
    scores = torch.randn(2, time, length)
    d = window_distance(Rows(), time, rows, scores.device)
    listed = (d >= 0) & (d < length)
    expected = torch.where(listed, scores.gather(-1, d.clamp(0, length - 1).expand(2, -1, -1)), 0.0)
    torch.testing.assert_close(by_key(scores.flip(-1), rows) * (d >= 0), expected, rtol=0, atol=0)


def test_metrics_of_uniform_attention_are_known() -> None:
    backbone = plain(memory=4)
    projections(part(backbone, ""))[0].zero_()
    record = Record(weights=True)
    backbone(torch.randn(3, 8, 15), record=record)
    seen = [min(t, 4) + 1 for t in range(8)]
    lookback = sum((n - 1) / 2 for n in seen) / 8
    assert record.metrics["layer0/lookback"].item() == pytest.approx(lookback)
    assert record.metrics["layer0/entropy"].item() == pytest.approx(sum(math.log(n) for n in seen) / 8)
    assert record.metrics["layer0/empty_slots"].item() == pytest.approx(sum(1 - n / 5 for n in seen) / 8)
    mass = record.lookback["layer0"]
    torch.testing.assert_close(mass.sum(-1), torch.ones(3))
    assert mass[0, 4].item() == pytest.approx(4 / 8 / 5)


@pytest.mark.parametrize("time", [40, 120])
def test_metrics_do_not_depend_on_padding_nor_on_blocks(time: int) -> None:
    backbone = plain(memory=6, position="trxl")
    x = torch.randn(2, time, 15)
    valid = torch.ones(2, time + 5, dtype=torch.bool)
    valid[:, [0, 1, 9, 20, -1]] = False
    padded = torch.randn(2, time + 5, 15)
    padded[valid] = x.flatten(0, 1)
    clean, with_padding = Record(weights=True), Record(weights=True)
    backbone(x, record=clean)
    backbone(padded, valid=valid, record=with_padding)
    for name, value in clean.metrics.items():
        torch.testing.assert_close(with_padding.metrics[name], value, msg=name)
    torch.testing.assert_close(with_padding.lookback["layer0"][:, :7], clean.lookback["layer0"][:, :7])


def test_metrics_leave_the_outputs_alone() -> None:
    backbone = plain(memory=6, position="trxl")
    x = torch.randn(2, 40, 15)
    # The fused kernel and the explicit weights round differently.
    torch.testing.assert_close(backbone(x, record=Record(weights=True))[0], backbone(x)[0], rtol=1e-12, atol=1e-12)


def test_a_bias_that_peaks_at_a_distance_makes_a_head_an_exact_shift() -> None:
    backbone = plain(heads=1, position={"name": "t5", "buckets": 16, "max_distance": 64})
    projections(part(backbone, ""))[0].zero_()
    table = part(backbone, "position").get_parameter("table").data
    table.zero_()
    table[0, 3] = 1e4
    attention = part(backbone, "")
    projections(attention)[1][15:] = torch.eye(15)
    attention.get_parameter("output.weight").data.copy_(torch.eye(15))
    norm = "layers.0.join_mixing.norm."
    x = torch.randn(1, 10, 15)
    h = F.layer_norm(x, (15,), backbone.get_parameter(norm + "weight"), backbone.get_parameter(norm + "bias"))
    torch.testing.assert_close(mixed(backbone, x)[:, 3:], h[:, :-3])


def test_dropout_acts_in_training_only() -> None:
    backbone = Backbone(config_of({"dropout": 0.5}))
    x = torch.randn(2, 5, 15)
    assert not torch.equal(backbone(x)[0], backbone(x)[0])
    backbone.eval()
    assert torch.equal(backbone(x)[0], backbone(x)[0])


@pytest.mark.parametrize("residual", ["gru", "input", "output", "highway", "sigtanh", "pre_ln"])
def test_autocast_trains_every_gate(residual: str) -> None:
    backbone = Backbone(BackboneConfig.preset("gtrxl", width=16, heads=2, memory=4, residual=residual))
    x = torch.randn(2, 5, 16)
    with torch.autocast("cpu", torch.bfloat16):
        y, _ = backbone(x)
    y.float().square().sum().backward()
    assert torch.isfinite(y).all() and all(parameter.grad is not None for parameter in backbone.parameters())
