"""Cost of attention over long segments: windows against dense attention, linear attention, every catalogue entry.

Axes: B batch, H heads, T tokens, D width. A variant is timed only while its laws hold (``laws.require_green``).
"""

import csv
import importlib.util
import json
import math
import statistics
import subprocess
import sys
import time
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

import torch
from torch import Tensor, nn
from torch.nn import functional as F

from rltransformers.backbone import AXES, PLAIN, Backbone, BackboneConfig
from rltransformers.backbone import catalogue as entries
from rltransformers.functional import recurrences
from rltransformers.functional.call import Call
from rltransformers.functional.keys import Group, Rows
from rltransformers.functional.windows import Tokens
from rltransformers.mixers.linear import EPS, positive
from scripts.benchmarks.counting import cost
from scripts.benchmarks.harness import (
    RESULTS,
    ROOT,
    Row,
    Timed,
    absolute,
    interleave,
    machine,
    meets,
    resident_bytes,
    timed,
)
from scripts.benchmarks.laws import require_green

HEADS, HEAD_DIM = 4, 32
WIDTH = HEADS * HEAD_DIM
WINDOW = 64
SIZES = f"{HEADS} heads x {HEAD_DIM}, float32"
READY = "both from ready queries, keys and values; ours with its output projection"


def batch_for(time: int) -> int:
    """Streams in one call: long segments come alone."""
    return max(1, min(4, 4096 // time))


# --- attention alone ---


def banded(position: str) -> dict[str, Any]:
    """Softmax attention over the newest ``WINDOW`` steps."""
    return {"pattern": {"name": "band", "window": WINDOW}, "position": position}


LINEAR = {"mixer": "linear"}


class Attention:
    """The attention of one layer alone: projections, masks and memory rows, without norm and residual."""

    def __init__(self, settings: Mapping[str, Any]) -> None:
        torch.manual_seed(0)
        # with post_ln the stream enters the mixer as it is
        sizes: dict[str, Any] = {
            "width": WIDTH,
            "heads": HEADS,
            "layers": 1,
            "memory": WINDOW - 1,
            "residual": "post_ln",
        }
        self.backbone = Backbone(BackboneConfig(**{**PLAIN, **sizes, **settings}))
        self.parameters = list(self.backbone.layer(0).mixing.parameters())

    def __call__(self, h: Tensor) -> Tensor:
        """Outputs for streams without a past."""
        # places and masks belong to the call: a layer may keep with the tokens what it derives from them
        tokens = self.backbone.locate(h, None, None, None, None)
        return self.backbone.layer(0).mix(h, self.backbone.layer_state(0, None, h), Call(tokens), None).out


def gradients_of(forward: Callable[[], Tensor], wanted: Sequence[Tensor]) -> Timed:
    """One forward and backward pass, the gradient of the output fixed beforehand."""
    direction = torch.randn_like(forward())

    def work() -> None:
        torch.autograd.grad(forward(), wanted, direction)

    return work


def inputs(batch: int, time: int) -> Tensor:
    """What a layer hands to its mixer."""
    return torch.randn(batch, time, WIDTH, requires_grad=True)


def attention(settings: Mapping[str, Any], batch: int, time: int) -> Timed:
    """Forward and backward of attention, with the gradients of its input and its parameters."""
    module, h = Attention(settings), inputs(batch, time)
    return gradients_of(lambda: module(h), [h, *module.parameters])


def from_ready_keys(settings: Mapping[str, Any], batch: int, time: int) -> Timed:
    """Forward and backward of windowed attention from ready queries, keys and values on, as the dense kernel starts."""
    module, h = Attention(settings), inputs(batch, time)
    mixer: Any = module.backbone.layer(0).mixing.mixer
    with torch.no_grad():
        query, keys = (part.clone().requires_grad_() for part in mixer.queries_and_keys(h))

    def forward() -> Tensor:
        call = Call(module.backbone.locate(h, None, None, None, None))
        out: Tensor = mixer(h, query, (Group(keys, Rows()),), {}, call, None).out
        return out

    return gradients_of(forward, [query, keys, mixer.output.weight, *mixer.position.parameters()])


def linear_from_ready_keys(batch: int, time: int) -> Timed:
    """Forward and backward of linear attention from ready queries, keys and values on."""
    q, k, v = (torch.randn(batch, HEADS, time, HEAD_DIM, requires_grad=True) for _ in range(3))
    state = {"sum": torch.zeros(batch, HEADS, HEAD_DIM, HEAD_DIM), "norm": torch.zeros(batch, HEADS, HEAD_DIM)}
    p = torch.arange(time).expand(batch, -1)

    def forward() -> Tensor:
        tokens = Tokens(p, p, torch.zeros_like(p, dtype=torch.bool), torch.full((batch,), -1))
        return recurrences.kernel_attention(positive(q), positive(k), v, state, tokens, EPS)[0]

    return gradients_of(forward, [q, k, v])


def dense(batch: int, time: int) -> Timed:
    """Forward and backward of torch's fused causal attention over everything, without positions."""
    q, k, v = (torch.randn(batch, HEADS, time, HEAD_DIM, requires_grad=True) for _ in range(3))
    return gradients_of(lambda: F.scaled_dot_product_attention(q, k, v, is_causal=True), [q, k, v])


def saved_bytes(settings: Mapping[str, Any], time: int) -> int:
    """Bytes that the forward pass of attention keeps for its backward pass."""
    module, h = Attention(settings), inputs(1, time)
    return cost(lambda: module(h))[1]


def growth(small: float, large: float, ratio: float = 2.0) -> float:
    """e of T^e between two lengths whose quotient is ``ratio``."""
    return math.log(large / small) / math.log(ratio)


# --- windowed ---


@dataclass(frozen=True)
class Windowed:
    """One windowed variant: the laws it stands on, its target at 8192 tokens."""

    name: str
    position: str
    laws: tuple[str, ...]
    target: str


WINDOWED = (
    Windowed("band", "none", ("position:none", "position:sinusoidal"), ">= 10"),
    Windowed("band + alibi", "alibi", ("position:alibi",), ">= 5"),
    Windowed("band + trxl", "trxl", ("position:trxl",), ">= 5"),
)
COMMON_LAWS = ("pattern:band", "mixer:softmax")


def windowed(*, repetitions: int = 5) -> Iterator[Row]:
    """Attention over a window of 64 against dense causal attention: time, kept memory, training of long segments."""
    if importlib.util.find_spec("x_transformers") is None:
        raise SystemExit('the peer x-transformers is missing: pip install "rltransformers[bench]"')
    green = require_green({law for each in WINDOWED for law in (*each.laws, *COMMON_LAWS)})
    chosen = [each for each in WINDOWED if green.issuperset((*each.laws, *COMMON_LAWS))]
    for length in (8192, 2048, 512):
        for each in chosen:
            yield against_dense(each, length, repetitions)
    for each in chosen:
        yield kept_memory(each.name, banded(each.position))
    for each in chosen:
        if each.position in ("none", "alibi"):
            yield from against_x_transformers(each, repetitions)
    for each in chosen:
        yield long_segment(each.name, banded(each.position))


def against_dense(variant: Windowed, length: int, repetitions: int) -> Row:
    """Seconds of a windowed variant and of torch's dense causal kernel without positions."""
    batch = batch_for(length)
    note = READY
    if variant.position == "none":
        note += "; the same figure holds for encodings added at the input"
    pair = interleave(from_ready_keys(banded(variant.position), batch, length), dense(batch, length), repetitions)
    return pair.row(
        f"{variant.name}, T {length}",
        f"T {length}, batch {batch}, window {WINDOW}, {SIZES}, forward + backward",
        "ms",
        "F.scaled_dot_product_attention, causal, no positions",
        variant.target if length == 8192 else "",
        scale=1e3,
        note=note,
    )


def kept_memory(name: str, settings: Mapping[str, Any]) -> Row:
    """Growth of what is kept for the backward pass when a segment doubles."""
    kept = {length: saved_bytes(settings, length) for length in (2048, 4096, 8192)}
    ratio = kept[8192] / kept[4096]
    listed = ", ".join(f"{count / 2**20:.1f} MB at T {length}" for length, count in kept.items())
    target = "<= 2.1"
    return Row(
        f"{name}, kept memory", f"batch 1, {SIZES}, tensors saved for backward", "MB at T 8192", kept[8192] / 2**20,
        kept[4096] / 2**20, "the same at T 4096", ratio, ratio, ratio, target, meets(ratio, target), note=listed,
    )  # fmt: skip


def against_x_transformers(variant: Windowed, repetitions: int, length: int = 2048) -> Iterator[Row]:
    """The same window in x-transformers, which masks dense attention, and its dense causal attention."""
    batch = batch_for(length)
    for reach, label in ((WINDOW - 1, f"max_attend_past {WINDOW - 1}"), (None, "dense")):
        peer = x_transformers(variant.position, reach, batch, length)
        yield interleave(attention(banded(variant.position), batch, length), peer, repetitions).row(
            f"{variant.name}, x-transformers",
            f"T {length}, batch {batch}, window {WINDOW}, {SIZES}, forward + backward",
            "ms",
            f"x-transformers Attention, flash, {label}",
            "",
            scale=1e3,
            note="both sides include their projections",
        )


def x_transformers(position: str, reach: int | None, batch: int, length: int) -> Timed:
    """Forward and backward of the peer's causal attention over the newest ``reach`` tokens, or over everything."""
    from x_transformers.x_transformers import AlibiPositionalBias
    from x_transformers.x_transformers import Attention as Peer

    module = Peer(dim=WIDTH, dim_head=HEAD_DIM, heads=HEADS, causal=True, flash=True, max_attend_past=reach)
    bias = AlibiPositionalBias(HEADS) if position == "alibi" else None
    h = inputs(batch, length)
    return gradients_of(lambda: module(h, rel_pos=bias), [h, *module.parameters()])


# --- linear ---


def linear(*, repetitions: int = 5) -> Iterator[Row]:
    """Linear attention against dense causal attention, lengths of its chunks, training of long segments."""
    require_green({"mixer:linear"})
    for length in (8192, 2048, 512):
        batch = batch_for(length)
        pair = interleave(linear_from_ready_keys(batch, length), dense(batch, length), repetitions)
        yield pair.row(
            f"linear, T {length}",
            f"T {length}, batch {batch}, {SIZES}, forward + backward",
            "ms",
            "F.scaled_dot_product_attention, causal, no positions",
            ">= 12" if length == 8192 else "",
            scale=1e3,
            note="both from ready queries, keys and values",
        )
    yield kept_memory("linear", LINEAR)
    for length in (1024, 8192):
        yield from chunk_lengths(length, repetitions)
    yield long_segment("linear", LINEAR)


def chunk_lengths(length: int, repetitions: int) -> Iterator[Row]:
    """Seconds of the chunked sums by length of the chunk, all lengths in turn."""
    sizes = (16, 32, 64, 128, 256)
    works = [causal_sums(length, chunk) for chunk in sizes]
    rounds = [[timed(work) for work in works] for _ in range(repetitions + 1)][1:]
    for chunk, seconds in zip(sizes, zip(*rounds, strict=True), strict=True):
        yield absolute(
            f"linear, chunk {chunk}, T {length}",
            f"T {length}, batch 1, {SIZES}, forward + backward of causal_sums, no projections",
            "ms",
            [1e3 * each for each in seconds],
            note="the default" if chunk == recurrences.CHUNK else "",
        )


def causal_sums(length: int, chunk: int) -> Timed:
    """Forward and backward of the sums alone, one column of values more for the denominator, as the mixer has it."""
    q, k = (torch.rand(1, HEADS, length, HEAD_DIM, requires_grad=True) for _ in range(2))
    v = torch.randn(1, HEADS, length, HEAD_DIM + 1, requires_grad=True)
    state, p = torch.zeros(1, HEADS, HEAD_DIM, HEAD_DIM + 1), torch.arange(length)[None]
    live, before = torch.zeros_like(p, dtype=torch.bool), torch.tensor([-1])

    def forward() -> Tensor:
        return recurrences.causal_sums(q, k, v, state, Tokens(p, p, live, before), chunk)[0]

    return gradients_of(forward, [q, k, v])


# --- long segments in a process of their own ---


def long_segment(name: str, settings: Mapping[str, Any], length: int = 8192) -> Row:
    """Peak memory of one training step of two layers on one long segment, in a fresh process."""
    command = [sys.executable, "-m", "scripts.benchmarks.attention"]
    command += [str(length), str(torch.get_num_threads()), json.dumps(dict(settings))]
    run = subprocess.run(command, cwd=ROOT, capture_output=True, text=True, check=False)
    if run.returncode:
        raise SystemExit(f"the training step of {name} on {length} tokens failed:\n{run.stderr.strip()[-2000:]}")
    found = json.loads(run.stdout.splitlines()[-1])
    return absolute(
        f"{name}, training step",
        f"T {length}, batch 1, width {WIDTH}, 2 layers, forward + backward + AdamW in a fresh process",
        "MB peak RSS",
        [found["peak_mb"]],
        "<= 4096",
        note=f"of it {found['before_mb']:.0f} MB before the step (Python and torch); {found['seconds']:.2f} s",
    )


def train_once(length: int, threads: int, settings: Mapping[str, Any]) -> dict[str, float]:
    """One optimiser step on one long segment; peak resident memory in MB."""
    torch.set_num_threads(threads)
    torch.manual_seed(0)
    sizes: dict[str, Any] = {"width": WIDTH, "heads": HEADS, "layers": 2, "memory": WINDOW - 1}
    backbone = Backbone(BackboneConfig(**{**PLAIN, **sizes, **settings}))
    optimizer = torch.optim.AdamW(backbone.parameters())
    x = torch.randn(1, length, WIDTH)
    before, began = resident_bytes("VmHWM"), time.perf_counter()
    backbone(x)[0].square().mean().backward()
    optimizer.step()
    seconds, peak = time.perf_counter() - began, resident_bytes("VmHWM")
    return {"seconds": seconds, "before_mb": before / 2**20, "peak_mb": peak / 2**20}


# --- catalogue ---

ATTENTION = [name for name, axis in AXES.items() if axis.attention]
LAYERS = 2  # logits that a layer hands to the next one cost something only where there is a next one
LENGTHS = (256, 512, 1024, 2048, 4096, 8192)
MOST_SECONDS, MOST_BYTES = 20.0, 4 * 2**30
DECLARED = {"T": 1.0, "T^2": 2.0}
# Examples of the catalogue are as small as an entry can be; these are the same entries at a memory of 64 steps.
SCALED: dict[tuple[str, str], dict[str, Any]] = {
    ("position", "shaw"): {"position": {"name": "shaw", "max_distance": 64}},
    ("position", "t5"): {"position": "t5"},
    ("pattern", "band"): banded("none"),
    ("pattern", "dilated"): {"pattern": {"name": "dilated", "window": 17, "dilation": 4}},
    ("pattern", "longformer"): {"pattern": {"name": "longformer", "window": 61, "sinks": 4}},
    ("selection", "topk"): {"selection": {"name": "topk", "k": 16}},
    ("mixer", "nystrom"): {"mixer": {"name": "nystrom", "block": 8, "landmarks": 7}},
    ("prior", "realformer"): {"prior": "realformer"},
    ("head_mixing", "decoupled"): {"head_dim": 16, "value_dim": 48},
    ("span", "adaptive"): {"span": {"name": "adaptive", "ramp": 32.0, "initial": 0.5}},
    ("span", "adaptive_dynamic"): {"span": {"name": "adaptive_dynamic", "ramp": 32.0, "bias": 0.0}},
    ("memory_kind", "compressive"): {"memory_kind": {"name": "compressive", "slots": 16, "rate": 4}},
}
SETTING = (
    f"width {WIDTH}, {SIZES}, memory 64, batch 1, per layer of {LAYERS}: norm, mixer with projections, residual; "
    "feed-forward net of width 1"
)


@dataclass(frozen=True)
class Cost:
    """What one entry costs per layer at one length.

    Attributes:
        flops: of the forward pass, counted; fused attention counts every pair of a block, masked or not.
        saved_bytes: kept for the backward pass.
        runs: seconds of forward and backward; equal places of two lengths were measured next to each other.
        state_bytes: carried from call to call, training form.
    """

    entry: str
    length: int
    flops: float
    saved_bytes: float
    runs: tuple[float, ...]
    state_bytes: float

    @property
    def seconds(self) -> float:
        """Median of the runs."""
        return statistics.median(self.runs)


def entry_config(axis: str, name: str, longest: int) -> BackboneConfig:
    """A catalogue entry at benchmark size; tables of positions cover the longest segment."""
    spec = next(spec for spec in entries()[axis] if spec.name == name)
    values: dict[str, Any] = {**SCALED.get((axis, name), spec.example)}
    position = values.get("position")
    if isinstance(position, Mapping) and "max_len" in position:
        values["position"] = {**position, "max_len": longest}
    sizes: dict[str, Any] = {"width": WIDTH, "heads": HEADS, "layers": LAYERS, "memory": 64, "ff_width": 1}
    return BackboneConfig(**{**PLAIN, **sizes, **values})


def catalogue(
    *, repetitions: int = 3, lengths: Sequence[int] = LENGTHS, only: Sequence[str] | None = None
) -> Iterator[Row]:
    """Cost of every entry that acts on sequences, by length, and its growth against what the entry declares.

    Args:
        repetitions: of every length; 3 are enough for a growth.
        lengths: ascending, each twice the one before.
        only: names such as "mixer:linear"; default: all entries that change attention.
    """
    chosen = {f"{axis}:{spec.name}": spec for axis in ATTENTION for spec in entries()[axis]}
    if only is not None:
        chosen = {name: spec for name, spec in chosen.items() if name in only}
    green = require_green(chosen)
    costs: list[Cost] = []
    for name, spec in chosen.items():
        if name in green:
            config = entry_config(spec.axis, spec.name, lengths[-1])
            found = costs_of(f"{spec.id} {name}", config, lengths, min(repetitions, 3))
            costs += found
            yield growth_row(found, spec.traits.time, lengths)
    reference = reference_costs(lengths, min(repetitions, 3))
    write_costs([*costs, *reference])
    picture([*costs, *reference], RESULTS / "cost.png")


def costs_of(name: str, config: BackboneConfig, lengths: Sequence[int], repetitions: int) -> list[Cost]:
    """Cost at every length that is affordable: T^2 entries stop before they fill the machine."""
    torch.manual_seed(0)
    backbone = Backbone(config)
    state = backbone.initial_state(1)
    state_bytes = sum(value.nbytes for key, value in state.tensors.items() if key != "position")

    def forward_of(length: int) -> Callable[[], Tensor]:
        x = torch.randn(1, length, WIDTH, requires_grad=True)
        return lambda: backbone(x)[0]

    return measure(name, forward_of, list(backbone.parameters()), lengths, repetitions, state_bytes, LAYERS)


def measure(
    name: str,
    forward_of: Callable[[int], Callable[[], Tensor]],
    parameters: Sequence[Tensor],
    lengths: Sequence[int],
    repetitions: int,
    state_bytes: int,
    layers: int,
) -> list[Cost]:
    """FLOPs, kept bytes and seconds by length; the lengths are run in turn, so that a slow minute falls on all."""
    counted: dict[int, tuple[int, int]] = {}
    works: dict[int, Timed] = {}
    seconds = 0.0
    for length in lengths:
        if counted and (4 * seconds > MOST_SECONDS or 4 * counted[length // 2][1] > MOST_BYTES):
            break
        forward = forward_of(length)
        counted[length] = cost(forward)
        works[length] = backward_of(forward, parameters)
        seconds = timed(works[length])
    rounds = [[timed(work) for work in works.values()] for _ in range(repetitions)]
    return [
        Cost(name, length, flops / layers, kept / layers, tuple(spent / layers for spent in runs), state_bytes / layers)
        for (length, (flops, kept)), runs in zip(counted.items(), zip(*rounds, strict=True), strict=True)
    ]


def backward_of(forward: Callable[[], Tensor], parameters: Sequence[Tensor]) -> Timed:
    """Forward and backward; some parameters need not matter."""

    def work() -> None:
        out = forward()
        torch.autograd.grad(out, parameters, torch.ones_like(out), allow_unused=True)

    return work


def growth_row(costs: Sequence[Cost], declared: str, lengths: Sequence[int]) -> Row:
    """Growth of work and kept memory between the two longest segments, and of time over up to three doublings.

    Two neighbouring times say little: one disturbed run among them moves the exponent by half.
    """
    first, last, largest = costs[max(0, len(costs) - 4)], costs[-2], costs[-1]
    expected = DECLARED[declared]
    flops, kept = growth(last.flops, largest.flops), growth(last.saved_bytes, largest.saved_bytes)
    ratio = largest.length / first.length
    exponents = [growth(*pair, ratio) for pair in zip(first.runs, largest.runs, strict=True)]
    skipped = "" if largest.length == lengths[-1] else f"; longer segments exceed {MOST_SECONDS:g} s or 4 GB"
    row = absolute(
        largest.entry,
        f"T {first.length} to {largest.length}, {SETTING}",
        "time exponent",
        exponents,
        f"<= {expected + 0.3:g}",
        note=f"declared {declared}; from T {last.length} on exponents of FLOPs {flops:.2f} and kept bytes {kept:.2f} "
        f"(bound {expected + 0.15:g}); at T {largest.length}: {1e3 * largest.seconds:.1f} ms, "
        f"{largest.flops / 1e9:.3g} GFLOP forward, {largest.saved_bytes / 2**20:.1f} MB kept, "
        f"state {largest.state_bytes / 1024:.1f} kB{skipped}",
    )
    return replace(row, met=bool(row.met) and max(flops, kept) <= expected + 0.15)


REFERENCE = "dense causal"


class DenseAttention(nn.Module):
    """Torch's fused causal attention between the same projections."""

    def __init__(self) -> None:
        super().__init__()
        self.norm = nn.LayerNorm(WIDTH)
        self.project = nn.Linear(WIDTH, 3 * WIDTH, bias=False)
        self.output = nn.Linear(WIDTH, WIDTH, bias=False)

    def forward(self, x: Tensor) -> Tensor:
        """Norm, attention over everything before, residual."""
        q, k, v = (part.unflatten(-1, (HEADS, -1)).transpose(1, 2) for part in self.project(self.norm(x)).chunk(3, -1))
        mixed = F.scaled_dot_product_attention(q, k, v, is_causal=True)
        return x + self.output(mixed.transpose(1, 2).flatten(2))


def reference_costs(lengths: Sequence[int], repetitions: int) -> list[Cost]:
    """The line that every entry is compared with."""
    module = DenseAttention()

    def forward_of(length: int) -> Callable[[], Tensor]:
        x = torch.randn(1, length, WIDTH, requires_grad=True)
        return lambda: module(x)

    return measure(REFERENCE, forward_of, list(module.parameters()), lengths, repetitions, 0, 1)


def write_costs(costs: Sequence[Cost]) -> None:
    """``catalogue_cost.csv``: one line per entry and length."""
    facts = machine()
    RESULTS.mkdir(parents=True, exist_ok=True)
    with (RESULTS / "catalogue_cost.csv").open("w", newline="") as file:
        writer = csv.writer(file)
        writer.writerow(["entry", "T", "forward_flops", "saved_bytes", "forward_backward_ms", "state_bytes",
                         "setting", "threads", "device", "commit", "date"])  # fmt: skip
        for each in costs:
            numbers = [round(each.flops), round(each.saved_bytes), f"{1e3 * each.seconds:.4g}", round(each.state_bytes)]
            writer.writerow([each.entry, each.length, *numbers, SETTING, torch.get_num_threads(),
                             facts["device"], facts["commit"], facts["date"]])  # fmt: skip


# --- picture ---

DRAWN = {
    "dense causal": "dense causal (SDPA)",
    "M2 memory_kind:compressive": "compressive",
    "S16 mixer:nystrom": "Nyström",
    "C1 selection:topk": "top-k",
    "H3 head_mixing:talking": "talking heads",
    "P6 position:shaw": "Shaw",
    "P10 position:trxl": "Transformer-XL",
    "P13 position:alibi": "ALiBi",
    "A2 pattern:band": "band 64",
    "S3 mixer:linear": "linear",
    "F3 mixer:light_conv": "light conv",
}


def picture(costs: Sequence[Cost], path: Path) -> None:
    """Time and kept memory against the length, every line named at its end."""
    import matplotlib

    matplotlib.use("Agg")
    from matplotlib import pyplot, ticker

    panels = (
        ("forward + backward per layer, ms", "seconds", 1e3),
        ("kept for backward per layer, MB", "saved_bytes", 2**-20),
    )
    drawn = {name: label for name, label in DRAWN.items() if any(each.entry == name for each in costs)}
    colors = dict(zip(drawn, ["black", *matplotlib.color_sequences["tab10"]], strict=False))
    figure, axes = pyplot.subplots(1, 2, figsize=(13, 6), constrained_layout=True)
    for axis, (title, field, scale) in zip(axes, panels, strict=True):
        ends = {}
        for name in drawn:
            points = [(each.length, scale * getattr(each, field)) for each in costs if each.entry == name]
            axis.plot(*zip(*points, strict=True), color=colors[name], linestyle="--" if name == REFERENCE else "-")
            ends[name] = points[-1]
        axis.set(xscale="log", yscale="log", xlabel="tokens T", title=title)
        lengths = sorted({each.length for each in costs})
        axis.set_xticks(lengths, [str(length) for length in lengths])
        axis.yaxis.set_major_locator(ticker.LogLocator(subs=(1, 2, 5)))
        axis.yaxis.set_major_formatter("{x:g}")
        axis.minorticks_off()
        axis.grid(alpha=0.3)
        name_lines(axis, ends, drawn, colors)
    sizes = f"width {WIDTH}, {HEADS} heads, memory 64, batch 1, {torch.get_num_threads()} thread(s)"
    figure.suptitle(f"Cost of one layer's attention, projections included: {sizes}")
    figure.savefig(path, dpi=120)
    pyplot.close(figure)


def name_lines(
    axis: Any, ends: Mapping[str, tuple[int, float]], labels: Mapping[str, str], colors: Mapping[str, Any]
) -> None:
    """Labels beside the right border, in the order of the line ends, moved apart where they would overlap."""
    low, high = (math.log(bound) for bound in axis.get_ylim())
    order = sorted(ends, key=lambda each: ends[each][1])
    heights = [math.log(ends[name][1]) for name in order]
    places = dict(zip(order, apart(heights, 0.045 * (high - low)), strict=True))
    right = max(length for length, _ in ends.values())
    for name, place in places.items():
        axis.annotate(
            labels[name],
            xy=ends[name],
            xytext=(right * 1.25, math.exp(place)),
            color=colors[name],
            va="center",
            fontsize=9,
            annotation_clip=False,
            arrowprops={"arrowstyle": "-", "color": colors[name], "alpha": 0.4, "linewidth": 0.8},
        )


def apart(heights: Sequence[float], step: float) -> list[float]:
    """Ascending heights moved as far up as down until neighbours are ``step`` apart."""
    up, down = list(heights), list(heights)
    for index in range(1, len(up)):
        up[index] = max(up[index], up[index - 1] + step)
        down[-1 - index] = min(down[-1 - index], down[-index] - step)
    return [(high + low) / 2 for high, low in zip(up, down, strict=True)]


if __name__ == "__main__":
    print(json.dumps(train_once(int(sys.argv[1]), int(sys.argv[2]), json.loads(sys.argv[3]))))
