"""How a submodule joins the residual stream: before or after the norm, plainly or through a gate.

Every scheme prepares the submodule's input and combines its output with the stream; axes [..., D]. Gates join the
stream x with a submodule's output y (Parisotto et al. 2019, arXiv 1910.06764, section 3.2): they return the gated
stream and the openness in [0, 1], the share of y that passes. A positive bias closes them at the start, so that the
stack begins close to the identity.
"""

from collections.abc import Callable
from dataclasses import dataclass
from functools import partial
from typing import Annotated, Any

import torch
from annotated_types import Ge, Le
from torch import Tensor, nn
from torch.nn import functional as F

from rltransformers.core.record import Probe
from rltransformers.core.spec import Feature, NoOptions, Refusal, Spec, Traits, by_name
from rltransformers.functional.modules import Norm

GateBias = Annotated[float, Ge(-100), Le(100)]
"""Beyond these a sigmoid is 0 or 1 whatever the stream says."""


class Gate(nn.Module):
    """Base: two streams in, one out, with the openness beside it."""

    def forward(self, x: Tensor, y: Tensor) -> tuple[Tensor, Tensor]:
        """Gated stream [..., D] and openness [..., D]."""
        raise NotImplementedError("a gate defines forward")


class GRUGate(Gate):
    """r = s(W_r y + U_r x), z = s(W_z y + U_z x - b), h = tanh(W_g y + U_g (r x)), out = (1 - z) x + z h."""

    def __init__(self, width: int, bias: float) -> None:
        super().__init__()
        self.from_y = nn.Linear(width, 3 * width, bias=False)
        self.from_x = nn.Linear(width, 2 * width, bias=False)
        self.candidate = nn.Linear(width, width, bias=False)
        self.bias = nn.Parameter(torch.full((width,), bias))

    def forward(self, x: Tensor, y: Tensor) -> tuple[Tensor, Tensor]:
        width = x.shape[-1]
        from_y, y_g = F.linear(y, self.from_y.weight).split_with_sizes([2 * width, width], -1)
        r, z = (from_y + F.linear(x, self.from_x.weight)).split_with_sizes([width, width], -1)
        z = torch.sigmoid(z - self.bias)
        h = torch.tanh(y_g + F.linear(torch.sigmoid(r) * x, self.candidate.weight))
        if h.dtype == z.dtype == x.dtype:
            return torch.lerp(x, h, z), z
        return torch.lerp(x, h.to(x.dtype), z.to(x.dtype)), z  # autocast leaves three dtypes, lerp takes one


class InputGate(Gate):
    """out = s(W x) x + y; y passes whole."""

    def __init__(self, width: int, bias: float) -> None:
        super().__init__()
        self.linear = nn.Linear(width, width, bias=False)

    def forward(self, x: Tensor, y: Tensor) -> tuple[Tensor, Tensor]:
        return torch.sigmoid(F.linear(x, self.linear.weight)) * x + y, torch.ones_like(y)


class OutputGate(Gate):
    """out = x + s(W x - b) y."""

    def __init__(self, width: int, bias: float) -> None:
        super().__init__()
        self.linear = nn.Linear(width, width, bias=False)
        self.bias = nn.Parameter(torch.full((width,), bias))

    def forward(self, x: Tensor, y: Tensor) -> tuple[Tensor, Tensor]:
        openness = torch.sigmoid(F.linear(x, self.linear.weight) - self.bias)
        return x + openness * y, openness


class HighwayGate(OutputGate):
    """out = s(W x + b) x + (1 - s(W x + b)) y."""

    def forward(self, x: Tensor, y: Tensor) -> tuple[Tensor, Tensor]:
        openness = 1 - torch.sigmoid(F.linear(x, self.linear.weight) + self.bias)
        return x + openness * (y - x), openness


class SigTanhGate(Gate):
    """out = x + s(W y - b) tanh(U y)."""

    def __init__(self, width: int, bias: float) -> None:
        super().__init__()
        self.from_y = nn.Linear(width, 2 * width, bias=False)
        self.bias = nn.Parameter(torch.full((width,), bias))

    def forward(self, x: Tensor, y: Tensor) -> tuple[Tensor, Tensor]:
        gate, value = F.linear(y, self.from_y.weight).chunk(2, -1)
        openness = torch.sigmoid(gate - self.bias)
        return x + openness * torch.tanh(value), openness


def normalized(norm: Norm | None, x: Tensor) -> Tensor:
    """``norm(x)`` without the call of a module, which shows in a step of acting; x where there is no norm."""
    if isinstance(norm, nn.RMSNorm):
        return torch.rms_norm(x.to(norm.weight.dtype), norm.normalized_shape, norm.weight, norm.eps)
    return x if norm is None else torch.layer_norm(x, norm.normalized_shape, norm.weight, norm.bias, norm.eps)


class Residual(nn.Module):
    """One join of stream and submodule, with a norm before or behind the submodule.

    Args:
        reordered: the norm stands before the submodule (identity map reordering).
    """

    def __init__(self, width: int, reordered: bool) -> None:
        super().__init__()
        self.norm: Norm = nn.LayerNorm(width)
        self.reordered = reordered

    def prepare(self, x: Tensor) -> Tensor:
        return normalized(self.norm, x) if self.reordered else x

    def prepare_frozen(self, x: Tensor) -> Tensor:
        """The same with gradient for x only; the norm learns nothing from it."""
        frozen = {name: value.detach() for name, value in self.norm.named_parameters()}
        out: Tensor = torch.func.functional_call(self.norm, frozen, (x,)) if self.reordered else x
        return out

    def combine(self, x: Tensor, y: Tensor, probe: Probe) -> Tensor:
        """Stream after the submodule."""
        raise NotImplementedError("a residual scheme defines combine")


class PostNorm(Residual):
    """LN(x + f(x))."""

    def __init__(self, width: int) -> None:
        super().__init__(width, reordered=False)

    def combine(self, x: Tensor, y: Tensor, probe: Probe) -> Tensor:
        return normalized(self.norm, x + y)


class PreNorm(Residual):
    """x + f(LN(x)), with an optional ReLU on f as in identity map reordering."""

    def __init__(self, width: int, relu: bool) -> None:
        super().__init__(width, reordered=True)
        self.relu = relu

    def combine(self, x: Tensor, y: Tensor, probe: Probe) -> Tensor:
        return x + (F.relu(y) if self.relu else y)


class Gated(Residual):
    """gate(x, ReLU(f(LN(x)))); without identity map reordering LN(gate(x, f(x)))."""

    def __init__(self, width: int, gate: Gate, reordered: bool) -> None:
        super().__init__(width, reordered)
        self.gate = gate

    def combine(self, x: Tensor, y: Tensor, probe: Probe) -> Tensor:
        out, openness = self.gate(x, F.relu(y) if self.reordered else y)
        if probe.listens:
            probe.metric("gate_openness", openness.detach().mean())
        return out if self.reordered else normalized(self.norm, out)


@dataclass(frozen=True)
class InputOptions:
    """Options of the gate on the input.

    Attributes:
        reordered: the norm stands before the submodule (identity map reordering).
    """

    reordered: bool = True


@dataclass(frozen=True)
class GateOptions:
    """Options of a gate.

    Attributes:
        bias: of the gate: the larger, the nearer to the identity the stack starts.
        reordered: the norm stands before the submodule (identity map reordering).
    """

    bias: GateBias = 1.0
    reordered: bool = True


@dataclass(frozen=True)
class GRUOptions(GateOptions):
    """Options of the GRU gate.

    Attributes:
        bias: of the gate: 2 starts the stack near the identity.
    """

    bias: GateBias = 2.0


def build_post_ln(width: int, options: NoOptions) -> Residual:
    """Build the norm behind every submodule."""
    return PostNorm(width)


def build_pre_ln(width: int, options: NoOptions, relu: bool = False) -> Residual:
    """Build the norm in front of every submodule, and behind it, for TrXL-I, a ReLU."""
    return PreNorm(width, relu)


def build_gated(gate: Callable[[int, float], Gate], width: int, options: Any) -> Residual:
    """Build a gated join, with a gate made from the width and its bias, of which the gate on the input has none."""
    return Gated(width, gate(width, getattr(options, "bias", 0.0)), options.reordered)


GTRXL = "Parisotto et al. 2019, arXiv 1910.06764"
N_A = Traits(causality="N/A")


RESIDUALS = by_name(
    Spec(
        "R0", "post_ln", "residual", "Vaswani et al. 2017, arXiv 1706.03762",
        "Normalizes the sum after every submodule, as the original transformer does.", build_post_ln,
        formula="LN(x + f(x))", traits=N_A,
    ),
    Spec(
        "R1", "pre_ln", "residual", "Xiong et al. 2020, arXiv 2002.04745",
        "Normalizes the input of every submodule; the residual stream itself is not normalized.", build_pre_ln,
        formula="x + f(LN(x))", traits=N_A,
    ),
    Spec(
        "R1-relu", "pre_ln_relu", "residual", GTRXL,
        "As pre_ln, with a ReLU after every submodule: TrXL-I of the GTrXL paper.", partial(build_pre_ln, relu=True),
        formula="x + ReLU(f(LN(x)))", traits=N_A,
    ),
    Spec(
        "R2-gru", "gru", "residual", GTRXL, "GRU gate; bias 2 starts the stack near the identity.",
        partial(build_gated, GRUGate), GRUOptions, traits=N_A,
        formula="(1 - z) x + z h, z = sigmoid(W_z y + U_z x - b), h = tanh(W_g y + U_g (r x)), r = sigmoid(W_r y + "
        "U_r x)",
    ),
    Spec(
        "R2-input", "input", "residual", GTRXL, "A gate on the residual stream.", partial(build_gated, InputGate),
        InputOptions, formula="sigmoid(W x) x + y", traits=N_A,
    ),
    Spec(
        "R2-output", "output", "residual", GTRXL,
        "A gate on the output of the submodule, computed from the residual stream.",
        partial(build_gated, OutputGate), GateOptions, formula="x + sigmoid(W x - b) y", traits=N_A,
    ),
    Spec(
        "R2-highway", "highway", "residual", GTRXL,
        "One gate weighs the residual stream against the output of the submodule; the weights sum to 1.",
        partial(build_gated, HighwayGate), GateOptions,
        formula="sigmoid(W x + b) x + (1 - sigmoid(W x + b)) y", traits=N_A,
    ),
    Spec(
        "R2-sigtanh", "sigtanh", "residual", GTRXL,
        "A gate on the output of the submodule, computed from that output.",
        partial(build_gated, SigTanhGate), GateOptions, formula="x + sigmoid(W y - b) tanh(U y)", traits=N_A,
    ),
    Spec(
        "R3", "reversible", "residual",
        "Gomez et al. 2017, arXiv 1707.04585; Kitaev et al. 2020, arXiv 2001.04451",
        "Two streams; activations are recomputed in the backward pass instead of stored.", build_pre_ln,
        formula="y1 = x1 + f(LN(x2)), y2 = x2 + g(LN(y1))", traits=N_A, offers=(Feature.INVERSE,),
        refuses=(
            Refusal(Feature.MIXER_ALONE, "the second stream would never change"),
            Refusal(Feature.CARRY, "what passes from layer to layer beside the streams is not rebuilt"),
            Refusal(Feature.FIRST_VALUES, "what passes from layer to layer beside the streams is not rebuilt"),
            Refusal(Feature.HALTING, "a token that halts leaves nothing that its input could be rebuilt from"),
            Refusal(Feature.SHARED, "the signals added between its applications are not taken off again"),
            Refusal(Feature.LAYER_SIGNALS, "what is added before a layer is not taken off again"),
            Refusal(Feature.LOSSES, "its forward pass is not stored, so no gradient would reach them"),
            Refusal(Feature.RECOMPUTED, "its layers are rebuilt from their outputs already"),
        ),
    ),
    Spec(
        "R6", "rms", "residual", "Zhang & Sennrich 2019, arXiv 1910.07467",
        "RMSNorm in place of LayerNorm everywhere: no mean is subtracted and no bias is added.",
        settings="norm: rms", example={"norm": "rms"}, traits=N_A,
        formula="RMSNorm(x) = x / sqrt(mean(x^2) + 1e-5) * g",
    ),
    Spec(
        "R5", "checkpoint", "residual",
        "Chen et al. 2016, arXiv 1604.06174; Child et al. 2019, arXiv 1904.10509, section 5.4",
        "Keeps only the inputs of layers for the backward pass and computes the rest again.",
        settings="checkpoint: true", example={"checkpoint": True}, traits=N_A,
        formula="x^n is kept, and layer_n(x^(n-1)) computed twice",
    ),
    Spec(
        "R5-bfloat16", "mixed_precision", "residual",
        "Micikevicius et al. 2018, arXiv 1710.03740; Child et al. 2019, arXiv 1904.10509, section 6",
        "Matrix products in bfloat16, and softmax where one kernel does both; in training alone.",
        settings="compute_dtype: bfloat16", example={"compute_dtype": "bfloat16"}, traits=N_A,
        formula="x W computed from x and W rounded to bfloat16",
    ),
)  # fmt: skip
