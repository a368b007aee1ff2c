"""What a row of the tests says about one catalogue entry, and the edits that bring a backbone to a limit."""

from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Any

import torch
from torch import Tensor, nn

from rltransformers.attention.layer import Attention
from rltransformers.backbone import Backbone
from rltransformers.laws import EXACT, Limit
from rltransformers.laws.gradients import Edit
from rltransformers.stacks.plain import Plain

BASE: dict[str, Any] = {
    "width": 15,
    "heads": 3,
    "layers": 2,
    "memory": 6,
    "ff_width": 22,
    "position": "trxl",
    "residual": "pre_ln",
}
# The twins in tests/mixers/twins.py are written for these widths.
KERNEL: dict[str, Any] = {"width": 12, "heads": 4, "position": "sinusoidal"}
GROUPED_SIZES: dict[str, Any] = {"width": 12, "heads": 4, "kv_heads": 2, "value_dim": 5}
GROUPED = {**KERNEL, **GROUPED_SIZES}


@dataclass(frozen=True)
class Row:
    """How one catalogue entry is tested.

    Attributes:
        twin: what the entry does, written from the formula: the record or function of its axis in ``twins``; None of
            losses, which change no output.
        config: overrides of ``BASE``; the entry's own example comes in between.
        limits: equal backbones, or "file::test" where the limit is not an equality of two backbones.
        tolerance: of outputs and states in float64.
        float32: largest error of float32, relative to the largest output.
        bfloat16: the same for bfloat16, which rounds to 8 bits, 0.4 %, in every operation.
        why: reason of a tolerance that is not the usual one.
    """

    config: Mapping[str, Any] = field(default_factory=dict)
    twin: Any = None
    limits: tuple[Limit | str, ...] = ()
    tolerance: float = EXACT
    float32: float = 1e-5
    bfloat16: float = 0.1
    why: str = ""


def zero(*names: str) -> Edit:
    """Set the parameters of the special backbone whose names end so to zero."""

    def edit(special: Backbone, plain: Backbone) -> None:
        found = [value for name, value in special.named_parameters() if name.endswith(names)]
        assert found, names
        for value in found:
            value.data.zero_()

    return edit


def fill(name: str, number: float) -> Edit:
    """Set one parameter of every layer of the special backbone to a number."""

    def edit(special: Backbone, plain: Backbone) -> None:
        found = [value for key, value in special.named_parameters() if key.endswith(name)]
        assert found, name
        for value in found:
            value.data.fill_(number)

    return edit


def as_built(name: str) -> Edit:
    """Set one parameter of the special backbone back to the value that it starts from."""

    def edit(special: Backbone, plain: Backbone) -> None:
        built = {key: value for key, value in Backbone(special.config).named_parameters() if key.endswith(name)}
        assert built, name
        for key, value in built.items():
            special.get_parameter(key).data.copy_(value)

    return edit


def both(*edits: Edit) -> Edit:
    """One after the other."""

    def edit(special: Backbone, plain: Backbone) -> None:
        for each in edits:
            each(special, plain)

    return edit


def table_of_sinusoids(special: Backbone, plain: Backbone) -> None:
    """A learned table that holds the sinusoidal encoding."""
    table = special.get_parameter("input_positions.0.table.weight")
    rows, width = table.shape
    for p in range(rows):
        for f in range(width):
            angle = torch.tensor(p / 10_000 ** (2 * (f // 2) / (width + width % 2)), dtype=torch.float64)
            table.data[p, f] = torch.sin(angle) if f % 2 == 0 else torch.cos(angle)


def identity_heads(special: Backbone, plain: Backbone) -> None:
    """Talking heads that do not talk."""
    for name, value in special.named_parameters():
        if name.endswith(("head_mixing.before", "head_mixing.after")):
            value.data.copy_(torch.eye(len(value)))


def projections(mixer: nn.Module) -> tuple[Tensor, Tensor]:
    """Views of the weights that make queries, and of those that make keys and values."""
    assert isinstance(mixer, Attention)
    queries, keys = mixer.project.weight.data.split([mixer.query_width, mixer.key_width])
    return queries, keys


def tie_keys(special: Backbone, plain: Backbone) -> None:
    """Give every head of the plain backbone the one key/value head of the special one."""
    for index in range(len(special.layers)):
        mine, other = (backbone.get_submodule(f"layers.{index}.mixing.mixer") for backbone in (special, plain))
        heads = plain.config.heads
        key, value = projections(mine)[1].chunk(2)
        projections(other)[0].copy_(projections(mine)[0])
        projections(other)[1].copy_(torch.cat([key.repeat(heads, 1), value.repeat(heads, 1)]))


def mean_by_softmax(special: Backbone, plain: Backbone) -> None:
    """Kernels with zero queries and keys, and softmax attention with zero queries: both average the values."""
    for index in range(len(special.layers)):
        mine, other = (backbone.get_submodule(f"layers.{index}.mixing.mixer") for backbone in (special, plain))
        project, out = (mine.get_parameter(name).data for name in ("project.weight", "out.weight"))
        queries, keys = projections(other)
        queries_and_keys = 2 * len(queries)
        project[:queries_and_keys] = 0
        queries.zero_()
        values = len(project) - queries_and_keys
        keys[-values:] = project[-values:]
        other.get_parameter("output.weight").data.copy_(out)


def tie_projections(special: Backbone, plain: Backbone) -> None:
    """One projection for queries, keys and values against two."""
    for index in range(len(special.layers)):
        mine, other = (backbone.get_submodule(f"layers.{index}.mixing.mixer") for backbone in (special, plain))
        other.get_parameter("project.weight").data.copy_(mine.get_parameter("project.weight").data)
        other.get_parameter("output.weight").data.copy_(mine.get_parameter("out.weight").data)


def span_of_bias(special: Backbone, plain: Backbone) -> None:
    """A predicted span that does not read the token."""
    for index in range(len(special.layers)):
        span, other = (backbone.get_submodule(f"layers.{index}.mixing.mixer.span") for backbone in (special, plain))
        span.get_parameter("predict.weight").data.zero_()
        other.get_parameter("fraction").data.copy_(span.get_parameter("predict.bias").data.sigmoid())


def same_layer_everywhere(special: Backbone, plain: Backbone) -> None:
    """Copies of the one layer of a universal backbone, whose step signal is switched off."""
    for layer in plain.layers:
        layer.load_state_dict(special.layers[0].state_dict())
    special.stack = Plain([special.layer(index) for index in range(special.config.layers)])


def flat_slopes(special: Backbone, plain: Backbone) -> None:
    """ALiBi that subtracts nothing."""
    for name, value in special.named_buffers():
        if name.endswith("slopes"):
            value.zero_()


NONE = {"position": "none"}
KEEP_ALL = {"position": "none", "memory": 30}
FULL_SPAN = {"name": "adaptive", "ramp": 2.0, "initial": 1.0}
BLOCKS = "tests/blocks/test_blocks.py::"
MIXERS = "tests/mixers/test_mixers.py::"
TREES = "tests/attention/test_trees.py::"
PARTS = "tests/attention/test_parts.py::"
ROUTING = "tests/attention/test_routing.py::"
GATE_LIMIT = f"{BLOCKS}test_a_gate_that_is_shut_leaves_the_stream_alone"
PSEUDO_INVERSE = "the inverse of a softmax matrix amplifies rounding by its condition, about 1e4 here"
HALTING = "a token whose total lies near the threshold may halt one step earlier after rounding"
CHOICE = "rounding changes which of two nearly equal keys is kept"
EPSILON = "linear attention adds 1e-6 to its denominator"
