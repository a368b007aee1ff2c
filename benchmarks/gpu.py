"""One visit to a machine with a CUDA GPU: laws, acting as a CUDA graph, figures; files in docs/benchmarks/gpu/.

Every part has its own seconds; what it measured until they are over is written. Axes: B streams or environments, T
steps, M memory rows, W model width, L layers.
"""

import argparse
import gc
import importlib.util
import itertools
import os
import signal
import subprocess
import sys
import tempfile
import traceback
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path
from time import monotonic
from types import FrameType, SimpleNamespace
from typing import Any
from xml.etree import ElementTree

import numpy as np
import torch
from gymnasium import spaces
from torch import Tensor, nn
from torch.utils.flop_counter import FlopCounterMode

from benchmarks.gpu_agents import AGENTS, COMPILED
from benchmarks.gpu_loop import loop
from benchmarks.harness import RESULTS, ROOT, Row, absolute, interleave, line, parameters, repeat, report
from rltransformers.algorithms.decision import step_losses
from rltransformers.algorithms.ppo import PPOWeights, ppo_loss
from rltransformers.backbone import Backbone, BackboneConfig
from rltransformers.core.errors import did_you_mean
from rltransformers.data.rollout import Recorded
from rltransformers.functional.modules import masked_mean
from rltransformers.policies.actor_critic import GTrXLPolicy
from rltransformers.policies.decision_network import DecisionPolicy
from rltransformers.policies.policy_state import StepInputs
from rltransformers.policies.steps import ActorCriticMachine

FOLDER = RESULTS / "gpu"
WHOLE = 540.0  # seconds; the visit is to fit a command of ten minutes
OBSERVATIONS = spaces.Box(-1.0, 1.0, (17,), np.float32)
MOVES, CHOICES = spaces.Box(-1.0, 1.0, (6,), np.float32), spaces.Discrete(6)
LAWS = ("tests/attention/test_contract.py", "tests/backbone/test_combinations.py")
LAW_DEVICE = "RLTRANSFORMERS_LAW_DEVICE"
PEAKS = {"A100": 312, "H100": 989, "H200": 989}
"""TFLOP/s of dense bfloat16 products that the maker names, by a word of the device's name."""
WEIGHTS = PPOWeights(clip_range=0.2, clip_range_vf=None, ent_coef=0.01, vf_coef=0.5)


@dataclass(frozen=True)
class Sizes:
    """Sizes of a measurement; ``FULL`` on a GPU, ``TINY`` where it is only shown that every part can be built."""

    laws: str  # which tests, as pytest's -k takes it
    decision: dict[str, Any]
    context: int
    decision_batch: int
    gtrxl: dict[str, Any]
    segments: int
    segment_steps: int
    acting: dict[str, Any]
    envs: tuple[int, ...]
    acting_steps: int
    graph_envs: int
    graph_steps: int
    width: int
    heads: int
    window: int
    lengths: tuple[int, ...]
    tensors: tuple[tuple[dict[str, Any], int], ...]  # networks, and the steps per second that each should reach
    tensor_envs: tuple[int, ...]
    tensor_steps: int
    steps: int
    updates: int
    repetitions: int


FULL = Sizes(
    laws="not l8",  # counts of operations and bytes, the same on every device
    decision={"width": 768, "layers": 12, "heads": 12},
    context=100,
    decision_batch=64,
    gtrxl={"preset": "gtrxl", "width": 512, "layers": 12, "heads": 8, "memory": 512},
    segments=8,
    segment_steps=512,
    acting={"preset": "gtrxl", "width": 256, "layers": 4, "heads": 8, "memory": 128},
    envs=(16, 64, 256, 1024, 4096),
    acting_steps=100,
    graph_envs=64,
    graph_steps=1000,
    width=512,
    heads=8,
    window=512,
    lengths=(1024, 4096, 16384, 65536),
    tensors=(
        ({"preset": "gtrxl", "width": 64, "layers": 2, "heads": 4, "memory": 64, "ff_width": 64}, 1_000_000),
        ({"preset": "gtrxl", "width": 384, "layers": 3, "heads": 8, "memory": 64}, 100_000),
    ),
    tensor_envs=(4096, 16384),
    tensor_steps=32,
    steps=20_480,
    updates=800,
    repetitions=5,
)
TINY = Sizes(
    laws="preset:gtrxl and (l1 or l4)",
    decision={"width": 16, "layers": 2, "heads": 2},
    context=5,
    decision_batch=3,
    gtrxl={"preset": "gtrxl", "width": 16, "layers": 2, "heads": 2, "memory": 4},
    segments=2,
    segment_steps=6,
    acting={"preset": "gtrxl", "width": 16, "layers": 2, "heads": 2, "memory": 4},
    envs=(2, 3),
    acting_steps=2,
    graph_envs=3,
    graph_steps=20,
    width=16,
    heads=2,
    window=4,
    lengths=(8, 16),
    tensors=(({"preset": "gtrxl", "width": 16, "layers": 2, "heads": 2, "memory": 4}, 1_000),),
    tensor_envs=(8,),
    tensor_steps=8,
    steps=1_024,
    updates=30,
    repetitions=1,
)


class OutOfTimeError(Exception):
    """The seconds of a part are over."""


@contextmanager
def limit(seconds: float) -> Iterator[None]:
    """Raise OutOfTimeError inside the block after so many seconds."""

    def stop(number: int, frame: FrameType | None) -> None:
        raise OutOfTimeError

    if seconds <= 0:
        raise OutOfTimeError
    before = signal.signal(signal.SIGALRM, stop)
    signal.setitimer(signal.ITIMER_REAL, seconds)
    try:
        yield
    finally:
        signal.setitimer(signal.ITIMER_REAL, 0)
        signal.signal(signal.SIGALRM, before)


def within(rows: Iterator[Row], seconds: float) -> Iterator[Row]:
    """The rows that are measured in so many seconds."""
    end = monotonic() + seconds
    while True:
        try:
            with limit(end - monotonic()):  # around the measurement alone: whoever takes the rows is not cut off
                row = next(rows)
        except StopIteration:
            return
        except OutOfTimeError:
            print(f"    time is over after {seconds:.0f} s; what was measured so far counts")
            return
        yield row


# Laws


def laws(sizes: Sizes, device: str, seconds: float) -> Iterator[Row]:
    """The laws of every mechanism with tensors on the device, in processes of their own."""
    with tempfile.TemporaryDirectory() as folder:
        results = Path(folder, "laws.xml")
        # Warnings are errors here, and pytest-benchmark warns beside pytest-xdist wherever both are installed.
        plugins = ["-p", "no:cacheprovider", "-p", "no:benchmark"]
        command = [sys.executable, "-m", "pytest", "-q", "--tb=line", *plugins, f"--junitxml={results}"]
        several = device != "cpu" and importlib.util.find_spec("xdist") is not None
        processes = ["-n", str(min(16, os.cpu_count() or 1))] if several else []
        process = subprocess.Popen(
            [*command, *processes, "-k", sizes.laws, *LAWS],
            cwd=ROOT,
            env={**os.environ, LAW_DEVICE: device, "OMP_NUM_THREADS": "1", "COLUMNS": "240"},
            stdout=subprocess.PIPE,
            stderr=subprocess.STDOUT,
            text=True,
        )
        cut = ""
        try:
            output, _ = process.communicate(timeout=max(seconds - 15, 1))
        except subprocess.TimeoutExpired:
            cut = f"cut off after {seconds:.0f} s"
            process.send_signal(signal.SIGINT)  # pytest then writes what it knows
            try:
                output, _ = process.communicate(timeout=10)
            finally:
                process.kill()
        finally:
            process.kill()
            process.wait()
        print(output[-9000:])
        yield law_row(results, sizes, device, cut)


def law_row(results: Path, sizes: Sizes, device: str, cut: str = "") -> Row:
    """How many laws hold, with the names of the others, and whether some were not tried.

    Raises:
        SystemExit: pytest left no results.
    """
    if not results.exists():
        raise SystemExit("the laws could not be checked; the output of pytest stands above")
    broken, passed = [], 0
    for case in ElementTree.parse(results).iter("testcase"):
        if case.find("failure") is not None or case.find("error") is not None:
            broken.append(str(case.get("name")))
        else:
            passed += case.find("skipped") is None
    setting = f"{' '.join(LAWS)} -k '{sizes.laws}', float64 on {device}"
    note = "; ".join(filter(None, [cut, f"broken: {', '.join(broken)}" if broken else ""]))
    target = f">= {passed + len(broken)}"
    return Row("laws that hold", setting, "laws", passed, target=target, met=bool(passed) and not broken, note=note)


# Acting


def policy_of(backbone: dict[str, Any], device: str) -> GTrXLPolicy:
    """A policy with weights from seed 0."""
    torch.manual_seed(0)
    return GTrXLPolicy(OBSERVATIONS, CHOICES, lambda _: 3e-4, backbone=backbone).to(device).eval()


class Acting:
    """A policy that acts on random numbers, in eager mode or as a CUDA graph.

    Args:
        graph: whether steps are one CUDA graph; on the CPU they are plain steps.
    """

    def __init__(self, backbone: dict[str, Any], envs: int, device: str, graph: bool) -> None:
        self.policy, self.envs, self.device = policy_of(backbone, device), envs, device
        if graph and device != "cpu":
            self.policy.machine_code = ActorCriticMachine(self.policy)
        self.state = self.policy.initial_state(envs)
        self.observations = torch.randn(envs, *OBSERVATIONS.shape, device=device)
        self.first = torch.zeros(envs, dtype=torch.bool, device=device)

    def step(self, observations: Tensor, first: Tensor, noise: Tensor | None) -> tuple[Tensor, Tensor, Tensor]:
        """Actions, values, log-probabilities."""
        actions, values, log_probs, self.state = self.policy.step(
            {"": observations}, self.state, first, noise, overwrites=True
        )
        return actions[""], values, log_probs

    def run(self, steps: int) -> None:
        """So many steps, all of them finished."""
        for _ in range(steps):
            self.step(self.observations, self.first, self.policy.action_head.draw(self.envs, None))
        finish(self.device)

    def require_graph(self) -> None:
        """Raise SystemExit when the policy went back to eager mode: its time would pass for that of a graph."""
        code = self.policy.machine_code
        if isinstance(code, ActorCriticMachine) and code.graph.failed:
            raise SystemExit("the step was not captured as a CUDA graph; the reason stands above")


def graph(sizes: Sizes, device: str, seconds: float) -> Iterator[Row]:
    """A captured step against the eager one, through resets, with weights that change in place half way."""
    del seconds
    # Tables of "trxl" are made anew when weights change, which captures anew; "rope" goes on with the same graph.
    for position in ("trxl", "rope"):
        backbone = {**sizes.acting, "position": position}
        ours = Acting(backbone, sizes.graph_envs, device, graph=True)
        eager = Acting(backbone, sizes.graph_envs, device, graph=False)
        largest = []
        for index in range(sizes.graph_steps):
            if index == sizes.graph_steps // 2:
                change_weights(ours.policy, eager.policy)
            observations = torch.randn(sizes.graph_envs, *OBSERVATIONS.shape, device=device)
            first = torch.rand(sizes.graph_envs, device=device) < 0.02
            # Most likely actions: an action sampled beside a border may differ by a rounding error.
            _, values, _ = ours.step(observations, first, None)
            _, expected, _ = eager.step(observations, first, None)
            largest.append(float((values - expected).abs().max() / expected.abs().max().clamp(min=1.0)))
        ours.require_graph()
        setting = (
            f"{described(backbone)}, {sizes.graph_envs} envs, float32, {sizes.graph_steps} steps, episodes start with"
            f" probability 0.02, all weights change in place after {sizes.graph_steps // 2}"
        )
        # The same kernels in the same order; only cuBLAS may choose others, which round differently (1e-7 a step, and a
        # state that hands differences on).
        name, unit = f"graph against eager, {position}", "largest relative error of a value"
        yield absolute(name, setting, unit, [max(largest)], "<= 0.0001")


def change_weights(*policies: nn.Module) -> None:
    """Add the same random numbers to the weights of all policies, in place."""
    with torch.no_grad():
        for weights in zip(*(policy.parameters() for policy in policies), strict=True):
            change = 0.02 * torch.randn_like(weights[0])
            for weight in weights:
                weight.add_(change)


def acting(sizes: Sizes, device: str, seconds: float) -> Iterator[Row]:
    """Steps of all environments, eager and as a graph in turn."""
    del seconds
    for envs in sizes.envs:
        ours = Acting(sizes.acting, envs, device, graph=True)
        eager = Acting(sizes.acting, envs, device, graph=False)
        pair = interleave(
            lambda: ours.run(sizes.acting_steps),  # noqa: B023  # called before the next turn of the loop
            lambda: eager.run(sizes.acting_steps),  # noqa: B023
            sizes.repetitions,
        )
        ours.require_graph()
        setting = f"{described(sizes.acting)}, policy.step of {envs} envs, float32"
        name = f"GTrXL acting, {envs} envs"
        yield pair.row(name, setting, "ms per step of all", "eager", "", scale=1e3 / sizes.acting_steps)


# Updates


def decision_update(sizes: Sizes, device: str, seconds: float) -> Iterator[Row]:
    """One update of a Decision Transformer in bfloat16: forward, backward, clipping, AdamW."""
    del seconds
    torch.manual_seed(0)
    batch, context = sizes.decision_batch, sizes.context
    config = BackboneConfig.preset(
        "decision_transformer", memory=context, position={"name": "timestep", "max_len": 1000}, **sizes.decision
    )
    policy = DecisionPolicy(OBSERVATIONS, MOVES, config).to(device).train()
    optimizer = torch.optim.AdamW(policy.parameters(), lr=1e-4, fused=True)
    observations = {"": torch.randn(batch, context, *OBSERVATIONS.shape, device=device)}
    actions = {"": torch.rand(batch, context, *MOVES.shape, device=device) * 2 - 1}
    returns = torch.rand(batch, context, device=device)
    timestep = torch.arange(context, device=device).expand(batch, context)
    valid = torch.ones(batch, context, dtype=torch.bool, device=device)

    def update() -> None:
        optimizer.zero_grad(set_to_none=True)
        with torch.autocast(device, torch.bfloat16):
            outputs = policy(observations, actions, returns, timestep, valid)
        masked_mean(step_losses(policy.head, outputs.float(), actions), valid).backward()
        nn.utils.clip_grad_norm_(policy.parameters(), 0.25)
        optimizer.step()
        finish(device)

    setting = (
        f"{described(sizes.decision)}, K {context} ({3 * context} tokens), batch {batch}, bf16 autocast, forward,"
        f" backward, clipping, AdamW; {parameters(policy):,} parameters"
    )
    for row in measured("DT update", setting, "ms per update", update, sizes.repetitions, device):
        yield row
        if row.name == "DT update":
            yield products_per_second(row, update)


def products_per_second(row: Row, work: Callable[[], None]) -> Row:
    """Floating-point operations of matrix products and attention in ``work``, by the milliseconds of ``row``."""
    with FlopCounterMode(display=False) as counter:
        work()
    rate = counter.get_total_flops() / (1e9 * row.ours)
    device = torch.cuda.get_device_name() if torch.cuda.is_available() else ""
    peak = next((peak for name, peak in PEAKS.items() if name in device), None)
    note = "" if peak is None else f"{rate / peak:.1%} of the {peak} that the card can do; goal 40 %"
    return absolute(f"{row.name}, operations", row.setting, "TFLOP/s", [rate], note=note)


def gtrxl_update(sizes: Sizes, device: str, seconds: float) -> Iterator[Row]:
    """One PPO update of whole segments from a full memory, in float32 and in bfloat16."""
    del seconds
    policy = policy_of(sizes.gtrxl, device).train()
    optimizer = torch.optim.Adam(policy.parameters(), lr=3e-4, fused=True)
    batch, steps = sizes.segments, sizes.segment_steps
    observations = {"": torch.randn(batch, steps, *OBSERVATIONS.shape, device=device)}
    actions = {"": torch.randint(int(CHOICES.n), (batch, steps), device=device)}
    rewards, first = (
        torch.zeros(batch, steps, device=device),
        torch.zeros(batch, steps, dtype=torch.bool, device=device),
    )
    with torch.no_grad():
        empty = policy.initial_state(batch, cached=False)
        state = policy.evaluate(StepInputs(observations, actions, rewards, first), empty).state
    log_probs, values, advantages, returns = torch.randn(4, batch, steps, device=device)
    recorded = Recorded(
        log_probs=-log_probs.abs(),
        values=values,
        advantages=advantages,
        returns=returns,
        counts=torch.ones_like(first),
    )

    def update(low: bool) -> Callable[[], None]:
        def work() -> None:
            optimizer.zero_grad(set_to_none=True)
            with torch.autocast(device, torch.bfloat16, enabled=low):
                found = policy.evaluate(StepInputs(observations, actions, rewards, first), state)
                now = policy.action_head.log_prob(found.outputs, actions)
                entropy = policy.action_head.entropy(found.outputs)
            estimates = SimpleNamespace(
                log_probs=now.float(), values=found.values.float(), entropy=entropy.float(), log_barrier=None
            )
            ppo_loss(estimates, recorded, WEIGHTS).total.backward()
            nn.utils.clip_grad_norm_(policy.parameters(), 0.5)
            optimizer.step()
            finish(device)

        return work

    for kind, low in (("float32", False), ("bf16 autocast", True)):
        setting = (
            f"{described(sizes.gtrxl)}, {batch} segments of {steps}, {kind}, forward, loss, backward, clipping, Adam;"
            f" {parameters(policy):,} parameters"
        )
        yield from measured(f"GTrXL update, {kind}", setting, "ms per update", update(low), sizes.repetitions, device)


# Attention


def attention(sizes: Sizes, device: str, seconds: float) -> Iterator[Row]:
    """Forward and backward of one layer of banded attention by length, with the highest memory."""
    del seconds
    for position, time_ in itertools.product(("none", "trxl"), sizes.lengths):
        torch.manual_seed(0)
        values: dict[str, Any] = {"width": sizes.width, "heads": sizes.heads, "layers": 1, "memory": sizes.window - 1}
        pattern = {"name": "band", "window": sizes.window}
        config = BackboneConfig(**values, pattern=pattern, position=position, residual="pre_ln")
        backbone = Backbone(config).to(device)
        x = torch.randn(1, time_, sizes.width, device=device, requires_grad=True)
        direction = torch.randn_like(x)
        wanted = [x, *backbone.parameters()]

        def work() -> None:
            with torch.autocast(device, torch.bfloat16):
                y = backbone(x)[0]  # noqa: B023  # called before the next turn of the loop
            torch.autograd.grad(y, wanted, direction.to(y.dtype), allow_unused=True)  # noqa: B023
            finish(device)

        setting = (
            f"T {time_}, batch 1, width {sizes.width}, {sizes.heads} heads, window {sizes.window}, position {position},"
            " one layer with its feed-forward net, bf16 autocast, forward and backward"
        )
        yield from measured(f"banded, {position}, T {time_}", setting, "ms", work, sizes.repetitions, device)


# Environments in tensors


def tensors(sizes: Sizes, device: str, seconds: float) -> Iterator[Row]:
    """Collecting and learning with environments in tensors on the device."""
    del seconds
    for (backbone, goal), envs in itertools.product(sizes.tensors, sizes.tensor_envs):
        yield from loop(backbone, envs, sizes.tensor_steps, goal, sizes.repetitions, device)
    if device != "cpu":  # at last, because it takes the longest to begin
        (backbone, goal), envs = sizes.tensors[0], sizes.tensor_envs[0]
        yield from loop(backbone, envs, sizes.tensor_steps, goal, sizes.repetitions, device, updates="compiled")


# Agents


def agents(sizes: Sizes, device: str, seconds: float) -> Iterator[Row]:
    """Every agent trained on the device, judged, saved, loaded on the CPU and trained on; one that fails is a row."""
    del seconds
    for name, rows in (AGENTS if device == "cpu" else AGENTS | COMPILED).items():
        try:
            yield from rows(sizes.steps, sizes.updates, device)
        except OutOfTimeError:
            raise
        except Exception as error:  # the other agents still count
            traceback.print_exc()
            note = f"{type(error).__name__}: {error}"
            yield absolute(f"{name} ended", f"device {device}", "1 where it ended well", [0.0], ">= 1", note=note)


# What parts share


def finish(device: str) -> None:
    """Wait for the GPU."""
    if device != "cpu":
        torch.cuda.synchronize()


def measured(
    name: str, setting: str, unit: str, work: Callable[[], None], repetitions: int, device: str
) -> Iterator[Row]:
    """Milliseconds of ``work`` and, on a GPU, its highest memory, that of weights and data included."""
    if device != "cpu":
        torch.cuda.empty_cache()
        torch.cuda.reset_peak_memory_stats()
    yield absolute(name, setting, unit, [1e3 * seconds for seconds in repeat(work, repetitions, warmup=2)])
    if device != "cpu":
        yield absolute(f"{name}, memory", setting, "MB at most", [torch.cuda.max_memory_allocated() / 1e6])


def described(sizes: dict[str, Any]) -> str:
    """Sizes in words."""
    return ", ".join(f"{name} {value}" for name, value in sizes.items() if name != "preset")


@dataclass(frozen=True)
class Part:
    """One thing to do on a GPU, and the seconds it may take."""

    rows: Callable[[Sizes, str, float], Iterator[Row]]
    seconds: float


PARTS = {
    "laws": Part(laws, 180),
    "graph": Part(graph, 30),
    "dt-update": Part(decision_update, 20),
    "gtrxl-update": Part(gtrxl_update, 20),
    "acting": Part(acting, 40),
    "attention": Part(attention, 30),
    "tensors": Part(tensors, 80),
    "agents": Part(agents, 140),
}


def main(arguments: Sequence[str] | None = None) -> int:
    """Run the chosen parts; 0 unless one failed."""
    chosen = parser().parse_args(arguments)
    if unknown := [name for name in chosen.parts if name not in PARTS]:
        print(f"no part {unknown[0]!r}; {did_you_mean(unknown[0], PARTS)}", file=sys.stderr)
        return 2
    names = chosen.parts or list(PARTS)
    if chosen.dry_run:
        return dry_run(names)
    if not torch.cuda.is_available():
        reason = f"torch {torch.__version__} sees no CUDA GPU"
        print(f"{reason}; run this on a machine with one, or try it without: --dry-run", file=sys.stderr)
        return 2
    torch.backends.cuda.matmul.allow_tf32 = False  # float32 means float32; the default, stated
    return run(names, chosen.seconds)


def run(names: Sequence[str], seconds: float) -> int:
    """Measure within so many seconds in all, and write the figures of every part as it ends; 1 if a part failed."""
    end, failed = monotonic() + seconds, []
    stretch = seconds / sum(PARTS[name].seconds for name in names)
    for name in names:
        part, left = PARTS[name], end - monotonic()
        if left < 5:
            print(f"{name}: left out, {left:.0f} s are left")
            continue
        given = min(stretch * part.seconds, left)
        try:
            rows = report(name, within(part.rows(FULL, "cuda", given), given), FOLDER, "scripts/on_gpu.sh")
        except (Exception, SystemExit) as error:  # the other parts still count
            print(f"{name}: failed: {type(error).__name__}: {error}", file=sys.stderr)
            failed.append(name)
        else:
            failed += [name] if any(row.met is False for row in rows) else []
        gc.collect()  # a policy and its CUDA graph name each other; the memory of the next part would count theirs
        torch.cuda.empty_cache()
    if failed:
        print(f"failed: {', '.join(failed)}; the messages stand above", file=sys.stderr)
    return 1 if failed else 0


def dry_run(names: Sequence[str]) -> int:
    """Print what would be run, and run every part at tiny sizes on the CPU; nothing is written."""
    for name in names:
        part = PARTS[name]
        print(f"{name}: {part.seconds:.0f} s; {str(part.rows.__doc__).splitlines()[0]}")
        print(f"    full sizes: {USED[name](FULL)}")
        for row in part.rows(TINY, "cpu", part.seconds):
            print(f"    tiny, on the CPU: {line(row)}")
            if row.met is False:
                print(f"{name}: {row.name} is {row.ours:g}, but must be {row.target}", file=sys.stderr)
                return 1
    print(f"{sum(PARTS[name].seconds for name in names):.0f} s of {WHOLE:.0f} s at most; nothing was written")
    return 0


USED: dict[str, Callable[[Sizes], str]] = {
    "laws": lambda sizes: f"{' '.join(LAWS)} -k '{sizes.laws}' with {LAW_DEVICE}=cuda",
    "graph": lambda sizes: (
        f"{described(sizes.acting)}, positions trxl and rope, {sizes.graph_envs} envs, {sizes.graph_steps} steps"
    ),
    "dt-update": lambda sizes: f"{described(sizes.decision)}, K {sizes.context}, batch {sizes.decision_batch}",
    "gtrxl-update": lambda sizes: f"{described(sizes.gtrxl)}, {sizes.segments} segments of {sizes.segment_steps}",
    "acting": lambda sizes: f"{described(sizes.acting)}, envs {', '.join(map(str, sizes.envs))}",
    "tensors": lambda sizes: (
        f"{'; '.join(described(backbone) for backbone, _ in sizes.tensors)}; envs"
        f" {', '.join(map(str, sizes.tensor_envs))} x {sizes.tensor_steps} steps"
    ),
    "agents": lambda sizes: f"{sizes.steps:,} steps online, {sizes.updates:,} updates offline",
    "attention": lambda sizes: f"width {sizes.width}, window {sizes.window}, T {', '.join(map(str, sizes.lengths))}",
}


def parser() -> argparse.ArgumentParser:
    """Options of the command line."""
    outer = argparse.ArgumentParser(prog="scripts/on_gpu.sh", description=__doc__)
    outer.add_argument("parts", nargs="*", metavar="PART", help=f"all, or some of {', '.join(PARTS)}")
    outer.add_argument("--dry-run", action="store_true", help="print the plan, try every part at tiny sizes on the CPU")
    outer.add_argument("--seconds", type=float, default=WHOLE, help="for all parts together (default: %(default)s)")
    return outer


if __name__ == "__main__":
    sys.exit(main())
