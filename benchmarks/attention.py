"""Cost of attention over long segments: windows against dense attention, linear attention.

Axes: B batch, H heads, T tokens, D width. A variant is timed only while its laws hold (``laws.require_green``).
"""

import importlib.util
import json
import subprocess
import sys
import time
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

import torch
from torch import Tensor
from torch.nn import functional as F

from benchmarks.harness import (
    ROOT,
    Row,
    Timed,
    absolute,
    interleave,
    meets,
    resident_bytes,
    timed,
)
from benchmarks.laws import require_green
from rltransformers.backbone import PLAIN, Backbone, BackboneConfig
from rltransformers.functional import recurrences
from rltransformers.functional.call import Call, Tokens
from rltransformers.functional.keys import Group, Rows
from rltransformers.laws.costs import cost
from rltransformers.mixers.linear import EPS, positive

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
        tokens = self.backbone.locate(h)
        return self.backbone.layer(0).mix(h, self.backbone.layer_states(None, h)[0], Call(tokens), None).out


def gradients_of(forward: Callable[[], Tensor], wanted: Sequence[Tensor]) -> Timed:
    """One forward and backward pass, the gradient of the output fixed beforehand."""
    direction = torch.randn_like(forward())

    def work() -> None:
        torch.autograd.grad(forward(), wanted, direction)

    return work


def inputs(batch: int, time: int) -> Tensor:
    """Arguments of a mixer in a layer."""
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
        call = Call(module.backbone.locate(h))
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
    saved = {length: saved_bytes(settings, length) for length in (2048, 4096, 8192)}
    ratio = saved[8192] / saved[4096]
    listed = ", ".join(f"{count / 2**20:.1f} MB at T {length}" for length, count in saved.items())
    target = "<= 2.1"
    return Row(
        f"{name}, kept memory", f"batch 1, {SIZES}, tensors saved for backward", "MB at T 8192", saved[8192] / 2**20,
        saved[4096] / 2**20, "the same at T 4096", ratio, ratio, ratio, target, meets(ratio, target), note=listed,
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
    command = [sys.executable, "-m", "benchmarks.attention"]
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
    """One optimizer step on one long segment; peak resident memory in MB."""
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


if __name__ == "__main__":
    print(json.dumps(train_once(int(sys.argv[1]), int(sys.argv[2]), json.loads(sys.argv[3]))))
