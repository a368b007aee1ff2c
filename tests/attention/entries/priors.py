"""Rows and twins of further entries: priors, and mixers and transforms that mix the newest tokens."""

from typing import Any

import torch
from torch import Tensor

from rltransformers.backbone import Backbone
from rltransformers.laws import Limit
from tests.attention import twins
from tests.attention.row import HALTING, KERNEL, Row, both, fill, projections, zero


def dynamic_conv_twin(mixer: Any, x: Tensor) -> tuple[Tensor, dict[str, Tensor]]:
    """Wu et al. 2019, equation 4, channel by channel."""
    width, heads, taps = x.shape[1], mixer.heads, mixer.taps
    value, gate = mixer.project(x)[:, :width], mixer.project(x)[:, width:]
    y = value / (1 + torch.exp(-gate))
    rows = []
    for t in range(len(x)):
        predicted = torch.exp(mixer.predict.weight @ y[t])
        channels = []
        for channel in range(width):
            head = channel * heads // width
            weights = predicted[head * taps : (head + 1) * taps]
            lags = range(min(t + 1, taps))
            total = weights[: len(lags)].sum() if mixer.renormalize else weights.sum()
            channels.append(torch.stack([weights[lag] * y[t - lag, channel] for lag in lags]).sum() / total)
        rows.append(torch.stack(channels))
    return mixer.out(torch.stack(rows)), {"taps": torch.cat([y.new_zeros(taps - 1, width), y])[len(y) :]}


def gmlp_twin(mixer: Any, x: Tensor) -> tuple[Tensor, dict[str, Tensor]]:
    """Liu et al. 2021, equations 1 to 4: sums over the tokens that a token may read."""
    n, absolute = mixer.tokens, mixer.weight.dim() == 2
    z = [twins.ACTIVATIONS["gelu"](mixer.project(row)) for row in x]
    half = len(z[0]) // 2
    norm = mixer.norm.weight, mixer.norm.bias
    read = [twins.layer_norm(row[half:], *norm) for row in z]
    rows = []
    for t in range(len(x)):
        gate = mixer.bias[t % n] if absolute else mixer.bias[0]
        for s in range(t + 1):
            if absolute and s // n == t // n:
                gate = gate + mixer.weight[t % n, s % n] * read[s]
            elif not absolute and t - s < n:
                gate = gate + mixer.weight[t - s] * read[s]
        rows.append(mixer.out.weight @ (z[t][:half] * gate) + mixer.out.bias)
    return torch.stack(rows), {"taps": newest(read, n - 1)}


def predicted_gaussian(reader: twins.Reader, head: int, q: Tensor, t: int, distance: int) -> Tensor:
    """Yang et al. 2018, equations 4 to 7, counted from the query backwards."""
    past = min(t, (reader.config.memory + 1) * reader.config.tokens_per_step - 1)
    inner = torch.tanh(reader["mixing.mixer.prior.hidden"][head] @ q)
    center = past * twins.sigmoid(reader["mixing.mixer.prior.center"][head] @ inner)
    width = reader.get("mixing.mixer.prior.width")
    fixed = reader.options("prior").window
    window = past * twins.sigmoid(width[head] @ inner) if width is not None else torch.tensor(fixed)
    deviation = max(window / 2, torch.tensor(0.5))
    return -((distance - center) ** 2) / (2 * deviation**2)


def conditional_blocks(reader: twins.Reader, head: int, q: Tensor, t: int, distance: int) -> Tensor:
    """Pilault et al. 2021, equation 4, for tokens of one block."""
    matrices = reader["mixing.mixer.prior.matrices"]
    count, size = matrices.shape[:2]
    if t // size != (t - distance) // size:
        return torch.zeros(())
    z = reader["mixing.mixer.prior.vectors"][reader.options("prior").task]
    film = reader["mixing.mixer.prior.film.weight"] @ z + reader["mixing.mixer.prior.film.bias"]
    place = (t - distance) % size
    return (1 + film[place]) * matrices[t // size % count, t % size, place] + film[size + place]


def evolved(reader: twins.Reader, own: Tensor, below: twins.Logits, t: int, head: int, key: twins.Key) -> Tensor:
    """Wang et al. 2021, section 3.2: three queries up to t and three keys around s, in all heads of the layer below."""
    if not below:
        return own
    kernel, total, (kind, s, _) = reader["mixing.mixer.prior.kernel"], torch.zeros(()), key
    for other in range(reader.heads):
        for i in range(3):
            for j in range(3):
                query, source = t - i, s + j - 1
                total = total + kernel[head, other, i, j] * below.get(
                    (query, other, (kind, source, query - source)), 0.0
                )
    alpha = reader.options("prior").alpha
    return alpha * own + (1 - alpha) * total


def log_gates(reader: twins.Reader, prepared: twins.Rows) -> list[Tensor]:
    """Logarithms of the shares that every token leaves to the rows before it, by head, computed once."""
    if id(prepared) not in reader.distances:
        weight, bias = (reader[f"mixing.mixer.prior.gate.{name}"] for name in ("weight", "bias"))
        rows = [-torch.log(1 + torch.exp(-(weight @ row + bias))) for row in prepared]
        reader.distances[id(prepared)] = torch.stack(rows)
    return list(reader.distances[id(prepared)])


def forgotten(reader: twins.Reader, prepared: twins.Rows, head: int, t: int, distance: int) -> Tensor:
    """Lin et al. 2025, equation 6: of the tokens behind the key, up to the query."""
    gates = log_gates(reader, prepared)
    return sum((gates[j][head] for j in range(t - distance + 1, t + 1)), torch.zeros(()))


def lost(reader: twins.Reader, prepared: twins.Rows) -> dict[str, Tensor]:
    """What the rows in the window of the next token have lost, the newest of them nothing, which is not kept."""
    last, group = len(prepared) - 1, reader.config.tokens_per_step
    rows = max(window.steps for window in twins.windows_of(reader)) * group - 1
    sums = [
        [forgotten(reader, prepared, head, last, d) if d <= last else torch.zeros(()) for d in range(1, rows + 1)]
        for head in range(reader.heads)
    ]
    return {"lost": torch.stack([torch.stack(row) for row in sums])} if rows else {}


def steady_gates(special: Backbone, plain: Backbone) -> None:
    """Gates that look at nothing and leave what ALiBi leaves from token to token."""
    zero("prior.gate.weight")(special, plain)
    for index in range(len(special.layers)):
        slopes = plain.get_buffer(f"layers.{index}.mixing.mixer.position.slopes")
        special.get_parameter(f"layers.{index}.mixing.mixer.prior.gate.bias").data.copy_(
            -torch.log(torch.expm1(slopes))
        )


def rows_below(reader: twins.Reader, below: twins.Logits, count: int) -> dict[str, Tensor]:
    """Logits of the last two tokens in the layer below, by head and distance."""
    if not below:
        return {}
    window = (reader.config.memory + 1) * reader.config.tokens_per_step
    rows = [
        [
            below.get((t, head, ("token", t - d, d)), torch.zeros(()))
            for head in range(reader.heads)
            for d in range(window)
        ]
        for t in (count - 2, count - 1)
    ]
    return {"logits": torch.stack([torch.stack(row) for row in rows])}


def center_alone(special: Backbone, plain: Backbone) -> None:
    """Kernels that read the same query, key and head; products twice as large make up for the share of one half."""
    for index, layer in enumerate(special.layers):
        if index > 0:
            kernel = layer.get_parameter("mixing.mixer.prior.kernel").data
            kernel.zero_()
            kernel[:, :, 0, 1] = 2 * torch.eye(len(kernel))
            mixer = layer.get_submodule("mixing.mixer")
            for name in ("position.content_bias", "position.position_bias"):
                mixer.get_parameter(name).data.mul_(2)
            queries, _ = projections(mixer)
            queries.mul_(2)


def is_lazy(reader: twins.Reader) -> bool:
    """Whether the layer takes its weights from the layer below."""
    return bool(reader.layer % reader.options("prior").group)


def lazy_values(reader: twins.Reader, tokens: twins.Rows, prepared: twins.Rows, below: twins.Logits) -> twins.Mixture:
    """Ying et al. 2021, section 3: values of its own under the weights of another layer."""
    groups, width = reader.config.kv_heads or reader.heads, reader.value_dim
    values = [reader.projected_by(slice(None), row).view(groups, width) for row in prepared]
    mixed = []
    for t in range(len(tokens)):
        heads = [torch.zeros(width) for _ in range(reader.heads)]
        for (query, head, (kind, s, _)), weight in below.items():
            if query == t:
                assert kind == "token"
                heads[head] = heads[head] + weight * values[s][head * groups // reader.heads]
        mixed.append(twins.projected(reader, heads))
    memory: twins.Memory = reader.twin("memory_kind")
    return mixed, memory.rows(reader, tokens, prepared), below


def weights_by_distance(special: Backbone, plain: Backbone) -> None:
    """A map between places that depends on their distance alone."""
    for index in range(len(special.layers)):
        mine, other = (each.get_submodule(f"layers.{index}.mixing.mixer") for each in (special, plain))
        weight, by_distance = mine.get_parameter("weight").data, other.get_parameter("weight").data
        for i in range(len(weight)):
            for j in range(i + 1):
                weight[i, j] = by_distance[i - j]
        mine.get_parameter("bias").data.fill_(float(other.get_parameter("bias")[0].detach()))


def equal_taps(special: Backbone, plain: Backbone) -> None:
    """Kernels that do not read the token, and kernels that are learned alone: all taps weigh the same."""
    for index in range(len(special.layers)):
        special.get_parameter(f"layers.{index}.mixing.mixer.predict.weight").data.zero_()
        plain.get_parameter(f"layers.{index}.mixing.mixer.kernel").data.zero_()


def channels_over_time(kernel: Tensor, rows: twins.Rows) -> twins.Rows:
    """Every channel weighs its newest numbers, the last weight for the oldest."""
    found = []
    for t in range(len(rows)):
        lags = range(min(t + 1, kernel.shape[1]))
        found.append(sum((kernel[:, lag] * rows[t - lag] for lag in lags), torch.zeros(())))
    return found


def newest(rows: twins.Rows, count: int) -> Tensor:
    """The last rows, zeros in front of the first one."""
    return torch.stack([torch.zeros_like(rows[0])] * count + rows)[len(rows) :]


def sep_conv(reader: twins.Reader, rows: twins.Rows) -> tuple[twins.Rows, dict[str, Tensor]]:
    """Dehghani et al. 2019, section 2.1; Chollet 2017."""
    options = reader.options("ff")
    state = {"taps": newest(rows, options.taps - 1)}
    act = twins.ACTIVATIONS[options.activation]
    mixed = channels_over_time(reader["ff.kernel"], rows)
    hidden = [act(reader["ff.into.weight"] @ row + reader["ff.into.bias"]) for row in mixed]
    second = reader.get("ff.second_kernel")
    if second is not None:
        state["second_taps"] = newest(hidden, options.second_taps - 1)
        hidden = channels_over_time(second, hidden)
    return [reader["ff.out.weight"] @ row + reader["ff.out.bias"] for row in hidden], state


def silence_transforms(special: Backbone, plain: Backbone) -> None:
    """Transforms of the plain backbone that add nothing."""
    for name, value in plain.named_parameters():
        if "ff.out" in name:
            value.data.zero_()


DYNAMIC = {**KERNEL, "mixer": {"name": "dynamic_conv", "taps": 4}}

# Value residuals


def with_first_values(reader: twins.Reader, v: Tensor, first: Tensor | None) -> Tensor:
    """Zhou et al. 2024, equation 5."""
    at = "mixing.mixer.prior."
    return v if first is None else reader[at + "own"] * v + reader[at + "first"] * first


ROWS: dict[tuple[str, str], Row] = {
    # Against github.com/pkuyym/EvolvingAttention, 276447b, the convolution of EAAugmentedConv1d without bias and
    # LeakyReLU on logits that were moved down by one query, in float64: largest error 4.4e-16.
    ("prior", "predictive"): Row(
        twin=twins.Prior(around=evolved, kept=rows_below),
        limits=(
            Limit({"prior": {"name": "predictive", "alpha": 1.0}}, {}),
            Limit({"prior": {"name": "predictive", "alpha": 0.5}}, {"prior": "realformer"}, center_alone),
        ),
    ),
    ("prior", "forget"): Row(
        {"prior": {"name": "forget", "bias": 1.0}},
        twins.Prior(over=forgotten, kept_over=lost),
        (
            Limit({"prior": "forget"}, {}, both(zero("prior.gate.weight"), fill("prior.gate.bias", 60.0))),
            Limit({"prior": "forget", "position": "none"}, {"position": "alibi"}, steady_gates),
        ),
    ),
    # Against github.com/CAMTL/CA-MTL, 1e6ebb7, CBDA with the same weights, its matrix added to logits of attention, in
    # float64: largest error 4.4e-16.
    ("prior", "camtl"): Row(
        twin=twins.Prior(at=conditional_blocks),
        limits=(
            Limit({"prior": {"name": "camtl", "task": 0}}, {}, zero("prior.matrices", "film.weight", "film.bias")),
        ),
    ),
    # No published code was found to compare with (looked for LazyFormer, lazy update and at guolinke/TUPE).
    ("prior", "lazyformer"): Row(
        twin=twins.Prior(hands_weights=True, reads=lambda reader: lazy_values if is_lazy(reader) else None),
        limits=(
            Limit({"prior": {"name": "lazyformer", "group": 1}}, {}),
            "tests/attention/test_priors.py::test_lazy_layers_have_values_only_and_the_weights_of_the_first_of_their_group",
        ),
    ),
    ("prior", "value_residual"): Row(
        {"layers": 3},
        twins.Prior(values=with_first_values),
        (
            Limit(
                {"prior": "value_residual", "layers": 3},
                {"layers": 3},
                both(fill("prior.own", 1.0), fill("prior.first", 0.0)),
            ),
            "tests/attention/test_priors.py::test_layers_without_a_share_of_their_own_read_the_values_of_the_first",
        ),
    ),
    ("prior", "gaussian_predicted"): Row(
        twin=twins.Prior(at=predicted_gaussian),
        limits=(
            Limit({"prior": {"name": "gaussian_predicted", "window": 1e9}}, {}),
            "tests/attention/test_priors.py::test_a_narrow_predicted_gaussian_leaves_the_token_at_its_center",
        ),
    ),
    # Against github.com/facebookresearch/fairseq, 3d262bb, DynamicConv1dTBC between our projections with the same
    # weights in float64, with renorm_padding for `pad: renormalize`: largest error 2.2e-16.
    ("mixer", "dynamic_conv"): Row(
        DYNAMIC,
        twins.other_mixer(dynamic_conv_twin),
        (Limit(DYNAMIC, {**KERNEL, "mixer": {"name": "light_conv", "taps": 4}}, equal_taps),),
    ),
    # Against github.com/lucidrains/g-mlp-pytorch, 970966c, a causal gMLPBlock with the same weights in float64; numbers
    # by distance as its matrix and as its circulant matrix: largest error 6.7e-16.
    ("mixer", "gmlp"): Row(
        {"position": "none"},
        twins.other_mixer(gmlp_twin),
        (
            Limit(
                {"position": "none", "mixer": {"name": "gmlp", "tokens": 24, "weights": "absolute"}},
                {"position": "none", "mixer": {"name": "gmlp", "tokens": 24}},
                weights_by_distance,
            ),
            "tests/mixers/test_gmlp.py::test_without_a_map_over_time_no_token_reads_another",
        ),
    ),
    # Against github.com/tensorflow/tensor2tensor, bafdc1b, sepconv_relu_sepconv to the left, its separable convolutions
    # computed by PyTorch, with the same weights in float64: largest error 1.1e-16.
    ("ff", "sep_conv"): Row(
        twin=sep_conv,
        limits=(Limit({"ff": {"name": "sep_conv", "taps": 1}}, {"ff": "ffn"}, fill("ff.kernel", 1.0)),),
    ),
    ("ff", "none"): Row(
        twin=twins.nothing,
        limits=(Limit({"ff": "none", "residual": "pre_ln"}, {"residual": "pre_ln"}, silence_transforms),),
    ),
}
VARIANTS: dict[str, Row] = {
    "evolving attention among steps and patterns of heads": Row(
        {
            "prior": {"name": "predictive", "alpha": 0.3},
            "memory": 2,
            "tokens_per_step": 2,
            "layers": 3,
            "position": "t5",
            "pattern": [["full", {"name": "band", "window": 2}, "full"]],
        }
    ),
    "weights shared by three layers among sinks and talking heads": Row(
        {
            "prior": {"name": "lazyformer", "group": 3},
            "layers": 4,
            "kv_heads": 1,
            "value_dim": 4,
            "position": "t5",
            "pattern": {"name": "longformer", "window": 3, "sinks": 2},
            "head_mixing": "talking",
        }
    ),
    "predicted Gaussian of a fixed width among steps and sinks": Row(
        {
            "prior": {"name": "gaussian_predicted", "window": 3.0},
            "memory": 2,
            "tokens_per_step": 3,
            "pattern": {"name": "longformer", "window": 2, "sinks": 2},
            "head_mixing": "talking",
        }
    ),
    "forgetting among steps, sinks, patterns of heads and a cap": Row(
        {
            "prior": {"name": "forget", "bias": 0.5},
            "mixer": {"name": "softmax", "softcap": 2.0, "sink_logit": True},
            "memory": 2,
            "tokens_per_step": 3,
            "pattern": [[{"name": "longformer", "window": 2, "sinks": 2}, "full", "full"]],
            "position": "none",
        }
    ),
    "values of the first layer among sinks and steps": Row(
        {
            "prior": {"name": "value_residual", "own": 0.8, "first": -0.4},
            "width": 12,
            "heads": 4,
            "layers": 3,
            "memory": 2,
            "tokens_per_step": 2,
            "value_dim": 5,
            "pattern": {"name": "longformer", "window": 2, "sinks": 2},
            "attention_bias": True,
        }
    ),
    "values of the first layer of compressed blocks": Row(
        {
            "prior": "value_residual",
            "kv_heads": 1,
            "memory": 3,
            "memory_kind": {"name": "compressive", "slots": 2, "rate": 2},
        }
    ),
    "forgetting among chosen keys": Row(
        {
            "prior": {"name": "forget", "bias": 0.0},
            "selection": {"name": "routing", "clusters": 3, "window": 3},
            "position": "none",
        },
        bfloat16=0.4,
    ),
    "gMLP of places": Row(
        {"position": "none", "mixer": {"name": "gmlp", "tokens": 4, "weights": "absolute", "hidden": 7}, "layers": 3}
    ),
    "two separable convolutions in a reversible stack": Row(
        {"ff": {"name": "sep_conv", "taps": 2, "second_taps": 4, "activation": "silu"}, "residual": "reversible"}
    ),
    "separable convolution, applied until tokens halt": Row(
        {"ff": "sep_conv", "depth": "universal_act", "layers": 3}, bfloat16=1.0, why=HALTING
    ),
    "dynamic convolution padded with zeros": Row(
        {**KERNEL, "mixer": {"name": "dynamic_conv", "taps": 3, "pad": "zero"}}
    ),
}
PRESET_ROWS: dict[str, Row] = {
    "camtl": Row({"prior": {"name": "camtl", "tasks": 2, "task": 0, "block": 4, "blocks": 2}}),
    "gmlp": Row({"mixer": {"name": "gmlp", "tokens": 5}}),
    "dynamic_conv": Row({"width": 12, "heads": 4}),
    "universal_sep_conv": Row({"layers": 3}),
}
