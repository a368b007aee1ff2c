"""Cost of every catalogue entry by length: time, FLOPs, bytes kept for the backward pass, and their growth.

Times are CPU times of this process, which other work on the machine disturbs least. An entry is timed only while its
laws hold (``laws.require_green``). Axes: T tokens, D width.
"""

import csv
import itertools
import math
import statistics
import time
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

import torch
from torch import Tensor, nn
from torch.nn import functional as F

from benchmarks.attention import HEADS, SIZES, WIDTH, banded
from benchmarks.harness import RESULTS, Row, Timed, absolute, interleave, machine, meets, timed
from benchmarks.laws import require_green
from rltransformers.backbone import AXES, PLAIN, BackboneConfig
from rltransformers.backbone import catalogue as entries
from rltransformers.laws.costs import cost
from rltransformers.laws.streams import backbone_of

ATTENTION = [name for name, axis in AXES.items() if axis.attention]
LAYERS = 2  # logits that a layer hands to the next one cost something only where there is a next one
LENGTHS = (256, 512, 1024, 2048, 4096, 8192)
MAX_SECONDS, MAX_BYTES = 20.0, 4 * 2**30
# Examples of the catalogue are as small as an entry can be; these are the same entries at a memory of 64 steps.
SCALED: dict[tuple[str, str], dict[str, Any]] = {
    ("position", "shaw"): {"position": {"name": "shaw", "max_distance": 64}},
    ("position", "t5"): {"position": "t5"},
    ("pattern", "band"): banded("none"),
    ("pattern", "dilated"): {"pattern": {"name": "dilated", "window": 17, "dilation": 4}},
    ("pattern", "longformer"): {"pattern": {"name": "longformer", "window": 61, "sinks": 4}},
    ("pattern", "bp"): {"pattern": {"name": "bp", "neighbors": 8}},
    ("pattern", "global"): {"pattern": {"name": "global", "sinks": 4}},
    ("pattern", "random"): {"pattern": {"name": "random", "count": 16}},
    ("pattern", "block_local"): {"pattern": {"name": "block_local", "block": 32, "back": 1}},
    ("pattern", "image_1d"): {"pattern": {"name": "image_1d", "block": 32, "before": 32}},
    ("pattern", "image_2d"): {"pattern": {"name": "image_2d", "width": 16, "rows": 2, "columns": 4, "above": 1}},
    ("pattern", "sparse_strided"): {"pattern": {"name": "sparse_strided", "stride": 8}},
    ("pattern", "sparse_fixed"): {"pattern": {"name": "sparse_fixed", "block": 16, "summary": 2}},
    ("pattern", "blockwise"): {"pattern": {"name": "blockwise", "block": 16, "shifts": [0, 0, 1, 2]}},
    ("pattern", "bigbird"): {"pattern": {"name": "bigbird", "window": 24, "random": 8, "sinks": 4}},
    ("pattern", "union"): {
        "pattern": {
            "name": "union",
            "patterns": [{"name": "band", "window": 16}, {"name": "dilated", "window": 9, "dilation": 8}],
        }
    },
    ("pattern", "adjacency"): {"pattern": {"name": "adjacency", "offsets": [1, 2, 4, 8, 16, 32, 64]}},
    ("pattern", "schedule"): {"pattern": [{"name": "band", "window": 16}, "full"]},
    ("selection", "topk"): {"selection": {"name": "topk", "k": 16}},
    ("selection", "routing"): {"selection": {"name": "routing", "clusters": 8, "window": 16}},
    ("selection", "lsh"): {"selection": {"name": "lsh", "rounds": 4, "buckets": 8, "window": 8}},
    ("selection", "sinkhorn"): {"selection": {"name": "sinkhorn", "block": 16}},
    ("selection", "sac"): {"selection": {"name": "sac", "edges": 8, "width": 16}},
    ("mixer", "nystrom"): {"mixer": {"name": "nystrom", "block": 8, "landmarks": 7}},
    ("mixer", "csalr"): {"mixer": {"name": "csalr", "block": 8, "landmarks": 7}},
    ("mixer", "lowrank_band"): {"mixer": {"name": "lowrank_band", "rank": 8, "window": 16}},
    ("mixer", "gmlp"): {"mixer": {"name": "gmlp", "tokens": 64}, "ff": "none"},
    ("mixer", "memory_compressed"): {"mixer": "memory_compressed"},
    ("mixer", "linformer"): {"mixer": {"name": "linformer", "block": 16, "slots": 4}},
    ("prior", "realformer"): {"prior": "realformer"},
    ("prior", "lazyformer"): {"prior": "lazyformer"},
    ("prior", "predictive"): {"prior": "predictive"},
    ("head_mixing", "decoupled"): {"head_dim": 16, "value_dim": 48},
    ("head_mixing", "collaborative"): {"head_mixing": {"name": "collaborative", "width": 64}},
    ("span", "adaptive"): {"span": {"name": "adaptive", "ramp": 32.0, "initial": 0.5}},
    ("span", "adaptive_dynamic"): {"span": {"name": "adaptive_dynamic", "ramp": 32.0, "bias": 0.0}},
    ("span", "multi_scale"): {"span": {"name": "multi_scale", "windows": [1, 3, 16, 65]}},
    ("memory_kind", "compressive"): {"memory_kind": {"name": "compressive", "slots": 16, "rate": 4}},
    ("memory_kind", "slots"): {"memory_kind": {"name": "slots", "slots": 16, "block": 16}},
    ("memory_kind", "memorizing"): {"memory_kind": {"name": "memorizing", "store": 256, "neighbors": 16}},
}
SETTING = (
    f"width {WIDTH}, {SIZES}, memory 64, batch 1, per layer of {LAYERS}: norm, mixer with projections, residual; "
    "feed-forward net of width 1"
)

Forward = tuple[Callable[[], Tensor], Sequence[Tensor]]
"""A forward pass, and the parameters whose gradients belong to it."""


@dataclass(frozen=True)
class Cost:
    """Cost of one entry per layer at one length.

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
    if values.get("ff") == "none":
        del sizes["ff_width"]
    return BackboneConfig(**{**PLAIN, **sizes, **values})


def catalogue(
    *, repetitions: int = 3, lengths: Sequence[int] = LENGTHS, only: Sequence[str] | None = None
) -> Iterator[Row]:
    """Cost of every entry that acts on sequences, by length, and its growth against what the entry declares.

    Args:
        repetitions: of every length; 3 are enough for a growth.
        lengths: ascending, each twice the one before.
        only: names such as "mixer:linear", or "missing" for entries without figures; the figures of others stay.
            Default: all entries that change attention.

    Raises:
        SystemExit: ``only`` has no entry.
    """
    path = RESULTS / "catalogue_cost.csv"
    chosen = {f"{axis}:{spec.name}": spec for axis in ATTENTION for spec in entries()[axis]}
    order = [f"{spec.id} {name}" for name, spec in chosen.items()]
    earlier = [] if only is None else read_costs(path)
    if only is not None:
        names = {name for name in only if name != "missing"}
        measured = {row["entry"] for row in earlier}
        new = {name for name, spec in chosen.items() if f"{spec.id} {name}" not in measured}
        names |= new if "missing" in only else set()
        if unknown := sorted(names - chosen.keys()):
            raise SystemExit(f"no entry {', '.join(unknown)}; names are those of a slot and an entry: mixer:linear")
        if not names:
            raise SystemExit("every entry has figures; name those to measure again")
        chosen = {name: spec for name, spec in chosen.items() if name in names}
    green = require_green(chosen)
    costs: list[Cost] = []
    for name, spec in chosen.items():
        if name in green:
            config = entry_config(spec.axis, spec.name, lengths[-1])
            found = costs_of(f"{spec.id} {name}", config, lengths, min(repetitions, 3))
            costs += found
            yield growth_row(found, spec.traits.time, SETTING, lengths)
    reference = reference_costs(lengths, min(repetitions, 3))
    if only is None:
        write_costs([*costs, *reference], path, SETTING)
        draw([*costs, *reference], RESULTS)
    else:  # figures of another day do not belong into the same picture
        write_costs(costs, path, SETTING, earlier=earlier, order=[*order, REFERENCE])
        draw_chosen([*costs, *reference], RESULTS / "cost-chosen.png")


def acting(*, repetitions: int = 5, only: Sequence[str] | None = None) -> Iterator[Row]:
    """Time of acting at position 4,096 of an episode against position 32, for every mixer.

    Args:
        repetitions: five times as many pairs are measured, because a step is short.
        only: names such as "mixer:linear"; default: all mixers.
    """
    chosen = {f"mixer:{spec.name}": spec for spec in entries()["mixer"]}
    green = require_green(chosen if only is None else only)
    for name, spec in chosen.items():
        if name in green:
            yield acting_row(f"{spec.id} {name}", entry_config("mixer", spec.name, LATE), 5 * repetitions)


EARLY, LATE, ENVIRONMENTS, STEPS = 32, 4096, 16, 50


@torch.no_grad()
def acting_row(name: str, config: BackboneConfig, repetitions: int) -> Row:
    """Fifty steps of sixteen environments behind a segment of 4,096 steps, and the same behind one of 32, in turn."""
    torch.manual_seed(0)
    backbone = backbone_of(config).eval()
    tables, reset = backbone.tables(), torch.zeros(ENVIRONMENTS, 1, dtype=torch.bool)
    past, x = torch.randn(1, LATE, WIDTH), torch.randn(ENVIRONMENTS, 1, WIDTH)
    rows = torch.zeros(ENVIRONMENTS, dtype=torch.long)

    def steps_from(position: int) -> Callable[[], float]:
        start = backbone.with_cache(backbone(past[:, :position])[1][rows])

        def work() -> float:
            state = start.clone()
            began = time.process_time()
            for _ in range(STEPS):
                _, state = backbone.step(x, state, reset, tables=tables, overwrites=True)
            return time.process_time() - began

        return work

    pair = interleave(steps_from(LATE), steps_from(EARLY), repetitions, warmup=2)
    ratios = sorted(late / early for late, early in zip(pair.ours, pair.peer, strict=True))
    ratio, target, scale = statistics.median(ratios), "<= 1.1", 1e3 / STEPS
    return Row(
        name, f"backbone.step of {ENVIRONMENTS} environments, width {WIDTH}, {SIZES}, memory 64, {LAYERS} layers",
        "ms per step", statistics.median(pair.ours) * scale, statistics.median(pair.peer) * scale,
        f"position {EARLY}", ratio, ratios[len(ratios) // 4], ratios[-1 - len(ratios) // 4], target,
        meets(ratio, target), len(ratios),
        note=f"CPU time; the ratio is time at {LATE} / time at {EARLY}, with its quartiles",
    )  # fmt: skip


def costs_of(name: str, config: BackboneConfig, lengths: Sequence[int], repetitions: int) -> list[Cost]:
    """Cost at every length that is affordable: T^2 entries stop before they fill the machine."""
    torch.manual_seed(0)
    backbone = backbone_of(config)
    state = backbone.initial_state(1)
    state_bytes = sum(value.nbytes for key, value in state.tensors.items() if key != "position")

    def forward_of(length: int) -> Forward:
        x = torch.randn(1, length, WIDTH, requires_grad=True)
        return lambda: backbone(x)[0], list(backbone.parameters())

    return measure(name, forward_of, lengths, repetitions, state_bytes, config.layers)


def measure(
    name: str,
    forward_of: Callable[[int], Forward],
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
        if counted and (4 * seconds > MAX_SECONDS or 4 * counted[length // 2][1] > MAX_BYTES):
            break
        forward, parameters = forward_of(length)
        counted[length] = cost(forward)
        works[length] = backward_of(forward, parameters)
        seconds = timed(works[length])
    rounds = [[timed(work) for work in works.values()] for _ in range(repetitions)]
    return [
        Cost(
            name, length, flops / layers, saved / layers, tuple(spent / layers for spent in runs), state_bytes / layers
        )
        for (length, (flops, saved)), runs in zip(counted.items(), zip(*rounds, strict=True), strict=True)
    ]


def backward_of(forward: Callable[[], Tensor], parameters: Sequence[Tensor]) -> Timed:
    """CPU time of forward and backward; some parameters need not matter."""

    def work() -> float:
        began = time.process_time()
        out = forward()
        torch.autograd.grad(out, parameters, torch.ones_like(out), allow_unused=True)
        return time.process_time() - began

    return work


def growth(small: float, large: float, ratio: float = 2.0) -> float:
    """e of T^e between two lengths whose quotient is ``ratio``."""
    return math.log(large / small) / math.log(ratio)


def exponent(declared: str, small: int, large: int) -> float:
    """Of the declared growth, "T", "N", "T^2", "N^2" or "N ln N", between two lengths."""
    if declared.endswith(" ln N"):
        return 1.0 + growth(math.log(small), math.log(large), large / small)
    return 2.0 if declared.endswith("^2") else 1.0


def growth_row(costs: Sequence[Cost], declared: str, setting: str, lengths: Sequence[int]) -> Row:
    """Growth of work and kept memory between the two longest segments, and of time over up to three doublings.

    Two neighboring times say little: one disturbed run among them moves the exponent by half.
    """
    first, last, largest = costs[max(0, len(costs) - 4)], costs[-2], costs[-1]
    expected = exponent(declared, first.length, largest.length)
    flops, saved = growth(last.flops, largest.flops), growth(last.saved_bytes, largest.saved_bytes)
    ratio = largest.length / first.length
    exponents = [growth(*pair, ratio) for pair in zip(first.runs, largest.runs, strict=True)]
    skipped = "" if largest.length == lengths[-1] else f"; longer ones exceed {MAX_SECONDS:g} s or 4 GB"
    axis = declared[0]
    row = absolute(
        largest.entry,
        f"{axis} {first.length} to {largest.length}, {setting}",
        "time exponent",
        exponents,
        f"<= {expected + 0.3:.3g}",
        note=f"declared {declared}; from {axis} {last.length} on exponents of FLOPs {flops:.2f} and kept bytes "
        f"{saved:.2f} (bound {expected + 0.15:.3g}); at {axis} {largest.length}: {1e3 * largest.seconds:.1f} ms, "
        f"{largest.flops / 1e9:.3g} GFLOP forward, {largest.saved_bytes / 2**20:.1f} MB kept, "
        f"state {largest.state_bytes / 1024:.1f} kB{skipped}",
    )
    return replace(row, met=bool(row.met) and max(flops, saved) <= expected + 0.15)


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

    def forward_of(length: int) -> Forward:
        x = torch.randn(1, length, WIDTH, requires_grad=True)
        return lambda: module(x), list(module.parameters())

    return measure(REFERENCE, forward_of, lengths, repetitions, 0, 1)


def write_costs(
    costs: Sequence[Cost],
    path: Path,
    setting: str,
    axis: str = "T",
    earlier: Sequence[Mapping[str, str]] = (),
    order: Sequence[str] = (),
) -> None:
    """A CSV with one line per entry and length; rows of ``earlier`` whose entries were not measured again stay."""
    facts = machine()
    columns = [
        "entry", axis, "forward_flops", "saved_bytes", "forward_backward_ms", "state_bytes",
        "setting", "threads",
    ]  # fmt: skip
    rows: list[Mapping[str, Any]] = []
    for each in costs:
        numbers = [round(each.flops), round(each.saved_bytes), f"{1e3 * each.seconds:.4g}", round(each.state_bytes)]
        values = [each.entry, each.length, *numbers, setting, torch.get_num_threads()]
        rows.append(dict(zip(columns, values, strict=True)) | facts)
    new = {each.entry for each in costs}
    rows += [row for row in earlier if row["entry"] not in new and row["entry"] in order]
    if order:
        rows.sort(key=lambda row: order.index(row["entry"]))
    path.parent.mkdir(parents=True, exist_ok=True)
    with path.open("w", newline="") as file:
        writer = csv.DictWriter(file, [*columns, *facts])
        writer.writeheader()
        writer.writerows(rows)


def read_costs(path: Path) -> list[dict[str, str]]:
    """Rows that ``write_costs`` wrote; none without a file."""
    if not path.is_file():
        return []
    with path.open(newline="") as file:
        return list(csv.DictReader(file))


def cost_of(row: Mapping[str, str]) -> Cost:
    """The figures of a row, its time as the only run."""
    flops, saved, state = (float(row[key]) for key in ("forward_flops", "saved_bytes", "state_bytes"))
    return Cost(row["entry"], int(row["T"]), flops, saved, (float(row["forward_backward_ms"]) / 1e3,), state)


# --- picture ---

TITLE = f"Cost of one layer's attention, projections included: width {WIDTH}, {HEADS} heads, memory 64, batch 1"
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


def draw(costs: Sequence[Cost], folder: Path) -> None:
    """``cost.png`` with a choice of entries, and ``cost-SLOT.png`` with all entries of a slot."""
    picture(costs, DRAWN, folder / "cost.png", TITLE)
    for axis in ATTENTION:
        names = {f"{spec.id} {axis}:{spec.name}": spec.name for spec in entries()[axis]}
        picture(costs, {REFERENCE: DRAWN[REFERENCE], **names}, folder / f"cost-{axis}.png", TITLE)


def draw_chosen(costs: Sequence[Cost], path: Path) -> None:
    """All of ``costs`` beside the reference."""
    names = {each.entry: each.entry.partition(":")[2] for each in costs if each.entry != REFERENCE}
    picture(costs, {REFERENCE: DRAWN[REFERENCE], **names}, path, TITLE)


def picture(
    costs: Sequence[Cost], labels: Mapping[str, str], path: Path, title: str, axis_of: str = "tokens T"
) -> None:
    """Time and kept memory against the length, every line named at its end."""
    import matplotlib

    matplotlib.use("Agg")
    from matplotlib import pyplot, ticker

    panels = (
        ("forward + backward per layer, ms", "seconds", 1e3),
        ("kept for backward per layer, MB", "saved_bytes", 2**-20),
    )
    drawn = {name: label for name, label in labels.items() if any(each.entry == name for each in costs)}
    styles = itertools.product(("-", "--", ":"), matplotlib.color_sequences["tab10"])
    looks = dict(zip(drawn, itertools.chain([("--", "black")], itertools.cycle(styles)), strict=False))
    colors = {name: color for name, (_, color) in looks.items()}
    figure, axes = pyplot.subplots(1, 2, figsize=(13, max(6.0, 0.36 * len(drawn))), constrained_layout=True)
    for axis, (panel, field, scale) in zip(axes, panels, strict=True):
        ends = {}
        for name in drawn:
            points = [(each.length, scale * getattr(each, field)) for each in costs if each.entry == name]
            axis.plot(*zip(*points, strict=True), color=colors[name], linestyle=looks[name][0])
            ends[name] = points[-1]
        axis.set(xscale="log", yscale="log", xlabel=axis_of, title=panel)
        lengths = sorted({each.length for each in costs})
        axis.set_xticks(lengths, [str(length) for length in lengths])
        axis.yaxis.set_major_locator(ticker.LogLocator(subs=(1, 2, 5)))
        axis.yaxis.set_major_formatter("{x:g}")
        axis.minorticks_off()
        axis.grid(alpha=0.3)
        name_lines(axis, ends, drawn, colors)
    figure.suptitle(f"{title}, {torch.get_num_threads()} thread(s)")
    figure.savefig(path, dpi=120)
    pyplot.close(figure)


def name_lines(
    axis: Any, ends: Mapping[str, tuple[int, float]], labels: Mapping[str, str], colors: Mapping[str, Any]
) -> None:
    """Labels beside the right border, in the order of the line ends, moved apart where they would overlap."""
    low, high = (math.log(bound) for bound in axis.get_ylim())
    order = sorted(ends, key=lambda each: ends[each][1])
    heights = [math.log(ends[name][1]) for name in order]
    step = min(0.045, 0.95 / len(order)) * (high - low)
    spread = apart(heights, step)
    shift = max(low - spread[0], 0.0) - max(spread[-1] - high, 0.0)
    places = dict(zip(order, (place + shift for place in spread), strict=True))
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
            arrowprops={"arrowstyle": "-", "color": colors[name], "alpha": 0.4, "linewidth": 0.8, "relpos": (0, 0.5)},
        )


def apart(heights: Sequence[float], step: float) -> list[float]:
    """Ascending heights moved as far up as down until neighbors are ``step`` apart."""
    up, down = list(heights), list(heights)
    for index in range(1, len(up)):
        up[index] = max(up[index], up[index - 1] + step)
        down[-1 - index] = min(down[-1 - index], down[-index] - step)
    return [(high + low) / 2 for high, low in zip(up, down, strict=True)]
