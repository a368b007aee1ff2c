"""Speed and memory of the online agent: acting, segment updates, rollout storage.

Axes: B environments or steps taken alone, T steps, M memory rows, H heads, K head width, W model width.
"""

import math
import statistics
import time
from collections.abc import Iterator, Mapping
from dataclasses import dataclass, fields, is_dataclass, replace
from typing import Any, NamedTuple

import numpy as np
import torch
from gymnasium import spaces
from torch import Tensor, nn
from torch.nn import functional as F

from benchmarks import past
from benchmarks.harness import Row, interleave, meets, parameters
from rltransformers.algorithms.ppo import Estimates, PPOWeights, ppo_loss
from rltransformers.data.rollout import Recorded, RolloutBuffer, Segment
from rltransformers.policies.actor_critic import GTrXLPolicy
from rltransformers.policies.policy_state import PolicyState
from rltransformers.policies.steps import Acting, ActorCriticMachine

OBSERVATIONS = spaces.Box(-1.0, 1.0, (8,), np.float32)
ACTIONS = spaces.Discrete(4)
SMALL = {"preset": "gtrxl", "width": 64, "layers": 2, "heads": 4, "memory": 64}
LARGE = {"preset": "gtrxl", "width": 384, "layers": 3, "heads": 8, "memory": 119}
PUBLISHED_FF_WIDTH = 64  # published GTrXL agents of width 64 have about 154,000 parameters: no widening inside a layer
ENVS = 16
MEGABYTE = 1e6
WEIGHTS = PPOWeights(clip_range=0.2, clip_range_vf=None, ent_coef=0.01, vf_coef=0.5)


# Acting


BEFORE_RINGS = "e137b19"
"""The last commit whose memories were growing windows: what the step of fixed shape is measured against."""


def gtrxl_acting(*, repetitions: int = 5) -> Iterator[Row]:
    """One step against the code before rings, and how much a sixteen times longer memory costs."""
    yield from against_the_past(repetitions)
    yield memory_row("GTrXL acting, memory 512", {}, repetitions)
    yield memory_row("GTrXL acting, memory 512, one key-value head", {"kv_heads": 1}, repetitions)
    yield memory_row("GTrXL acting, memory 512, mla", {"head_mixing": "mla"}, repetitions)
    yield memory_row("GTrXL acting, memory 512, compiled", {}, repetitions, "compiled")


def memory_row(name: str, backbone: Mapping[str, Any], repetitions: int, acting: Acting = "eager") -> Row:
    """A step with a full memory of 512 against one of 32."""
    steps = 200
    policies = {rows: MidEpisode.filled(rows, backbone, acting) for rows in (512, 32)}
    pair = interleave(lambda: policies[512].run(steps), lambda: policies[32].run(steps), repetitions)
    ratios = [long / short for long, short in zip(pair.ours, pair.peer, strict=True)]
    ratio, target, scale = statistics.median(ratios), "<= 1.6", 1e3 / steps
    setting = f"policy.step of {ENVS} envs, width 64, 2 layers, 4 heads, ff_width 64; memory full"
    return Row(
        name, setting, "ms per step",
        statistics.median(pair.ours) * scale, statistics.median(pair.peer) * scale, "memory 32",
        ratio, min(ratios), max(ratios), target, meets(ratio, target), len(ratios),
        note="the ratio is time at 512 / time at 32",
    )  # fmt: skip


def against_the_past(repetitions: int) -> Iterator[Row]:
    """``policy.step`` of today, eager and compiled, against that of an earlier commit; the ratio is theirs to ours."""
    setting = "policy.step of 16 envs, width 64, 2 layers, 4 heads, memory 64, ff_width 64; processes in turn"
    with past.checkout(BEFORE_RINGS) as folder:
        before = past.Worker(folder, "eager")
        for acting, target in (("eager", "<= 0.55"), ("compiled", "<= 0.2")):
            now = past.Worker(past.ROOT, acting)
            times = [(now.seconds(), before.seconds()) for _ in range(20 * repetitions)]
            now.close()
            ratios = [ours / theirs for ours, theirs in times]
            ratio = statistics.median(ratios)
            ours, theirs = (1e3 * statistics.median(column) for column in zip(*times, strict=True))
            yield Row(
                f"GTrXL step, {acting}", setting, "ms per step", ours, theirs, f"commit {BEFORE_RINGS}",
                ratio, min(ratios), max(ratios), target, meets(ratio, target), len(ratios),
                note="the ratio is the time of today / the time then",
            )  # fmt: skip
        before.close()


@dataclass
class MidEpisode:
    """A policy in the middle of episodes."""

    policy: GTrXLPolicy
    observations: dict[str, Tensor]
    state: PolicyState

    @classmethod
    def filled(cls, memory: int, backbone: Mapping[str, Any], acting: Acting) -> "MidEpisode":
        """A policy whose memory is full."""
        torch.manual_seed(0)
        policy = new_policy(SMALL | {"memory": memory, "ff_width": PUBLISHED_FF_WIDTH} | dict(backbone))
        if acting == "compiled":
            policy.machine_code = ActorCriticMachine(policy)
        segment = random_segment(policy, ENVS, memory, policy.initial_state(ENVS, cached=False))
        state = policy.with_cache(policy.memory_after(segment))
        return cls(policy, {path: leaf[:, 0] for path, leaf in segment.observations.items()}, state)

    def run(self, steps: int) -> None:
        """Act for ``steps`` steps."""
        first = torch.zeros(ENVS, dtype=torch.bool)
        for _ in range(steps):
            noise = self.policy.action_head.draw(len(first), None)
            *_, self.state = self.policy.step(self.observations, self.state, first, noise, overwrites=True)


def new_policy(backbone: Mapping[str, Any]) -> GTrXLPolicy:
    """A policy over the spaces of this benchmark."""
    return GTrXLPolicy(OBSERVATIONS, ACTIONS, lambda _: 3e-4, backbone=backbone)


@torch.no_grad()
def random_segment(policy: GTrXLPolicy, n_envs: int, n_steps: int, start: PolicyState) -> Segment:
    """A finished rollout in the middle of episodes that starts from ``start``, filled with random numbers."""
    buffer = RolloutBuffer(n_envs, n_steps, {"": OBSERVATIONS}, ACTIONS)
    buffer.reset(policy.without_cache(start))
    no, yes = np.zeros(n_envs, bool), np.ones(n_envs, bool)
    for _ in range(n_steps):
        observations = {path: torch.rand(n_envs, *shape) for path, (shape, _) in buffer.observation_leaves.items()}
        actions = {"": torch.randint(int(ACTIONS.n), (n_envs,))}
        values, rewards = torch.randn(2, n_envs)
        log_probs = torch.full((n_envs,), -math.log(int(ACTIONS.n)))
        buffer.add(observations, actions, rewards.numpy(), no, no, values, log_probs, yes)
    return buffer.finish(torch.zeros(n_envs), discount=0.99, trace=0.95)


# Update


def gtrxl_update(*, repetitions: int = 5) -> Iterator[Row]:
    """Whole segments against every step computed alone from its own gathered window."""
    segments, steps, alone = 2, 512, 128
    torch.manual_seed(0)
    policy = new_policy(LARGE)
    begin = random_segment(policy, segments, steps, policy.initial_state(segments, cached=False))
    with torch.no_grad():
        segment = random_segment(policy, segments, steps, policy.memory_after(begin))
    twin = StepwiseTwin(width=384, layers=3, heads=8, memory=119)
    part = first_steps(segment.rows(torch.tensor([0])), alone)

    def ours() -> None:
        policy.zero_grad()
        descend(policy.evaluate_segment(segment), segment)

    def peer() -> float:
        twin.zero_grad()
        began = time.perf_counter()
        estimates = twin(part.observations[""][0, :alone], part.actions[""][0, :alone])
        descend(TwinEstimates(*(estimate[None] for estimate in estimates)), part)
        return (time.perf_counter() - began) * segments * steps / alone

    pair = interleave(ours, peer, repetitions)
    setting = (
        f"{segments} segments of {steps}, memory 119, 3 layers x width 384, 8 heads, ff_width 1536; forward, loss, "
        f"backward; {parameters(policy)} parameters, twin {parameters(twin)}"
    )
    yield pair.row(
        "GTrXL update", setting, "ms per step", "step by step", ">= 10", scale=1e3 / (segments * steps),
        note=f"the twin is timed on {alone} steps in one batch; it projects keys and values of 119 rows for every step",
    )  # fmt: skip


def descend(now: Estimates, batch: Segment) -> None:
    """Loss, and its gradient."""
    ppo_loss(now, Recorded(**batch.numbers()), WEIGHTS).total.backward()


def first_steps(segment: Segment, count: int) -> Segment:
    """Input of a loss from a segment, of its first steps only."""
    names = ("log_probs", "values", "advantages", "returns", "counts")
    return replace(segment, **{name: getattr(segment, name)[:, :count] for name in names})


class TwinEstimates(NamedTuple):
    """Evaluation of the steps by the twin, [1, T] each."""

    log_probs: Tensor
    values: Tensor
    entropy: Tensor
    log_barrier: None = None


class StepwiseTwin(nn.Module):
    """A GTrXL agent as often published: a step is one batch element with its own window of stored layer inputs."""

    def __init__(self, width: int, layers: int, heads: int, memory: int) -> None:
        super().__init__()
        self.encoder = nn.Linear(8, width)
        self.layers = nn.ModuleList(StepwiseLayer(width, heads) for _ in range(layers))
        self.action = nn.Linear(width, int(ACTIONS.n))
        self.value = nn.Linear(width, 1)
        self.memory = memory
        self.register_buffer("stored", torch.randn(layers, 1024, width))
        self.register_buffer("distances", distance_table(memory + 1, width))

    def forward(self, observations: Tensor, actions: Tensor) -> tuple[Tensor, Tensor, Tensor]:
        """Log-probabilities, values and entropies [B]."""
        stored, distances = self.get_buffer("stored"), self.get_buffer("distances")
        window = torch.arange(len(observations))[:, None] + torch.arange(self.memory)
        x = self.encoder(observations)
        for layer, inputs in zip(self.layers, stored, strict=True):
            x = layer(x, inputs[window], distances)
        log_probs = self.action(x).log_softmax(-1)
        entropy = -(log_probs.exp() * log_probs).sum(-1)
        return log_probs.gather(-1, actions[:, None]).squeeze(-1), self.value(x).squeeze(-1), entropy


class StepwiseLayer(nn.Module):
    """Transformer-XL attention of one query over its window, gates, and a position-wise transform."""

    def __init__(self, width: int, heads: int) -> None:
        super().__init__()
        self.heads = heads
        self.norm, self.ff_norm = nn.LayerNorm(width), nn.LayerNorm(width)
        self.query, self.key, self.value, self.output, self.position = (
            nn.Linear(width, width, bias=False) for _ in range(5)
        )
        self.content_bias = nn.Parameter(torch.zeros(heads, width // heads))
        self.position_bias = nn.Parameter(torch.zeros(heads, width // heads))
        self.gate, self.ff_gate = StepwiseGate(width), StepwiseGate(width)
        self.into, self.out = nn.Linear(width, 4 * width), nn.Linear(4 * width, width)

    def forward(self, x: Tensor, window: Tensor, distances: Tensor) -> Tensor:
        """Stream [B, W] after the layer; ``window`` [B, M, W] are layer inputs, oldest first."""
        h = self.norm(torch.cat([window, x[:, None]], 1))
        q = self.heads_of(self.query(h[:, -1]))
        k, v, r = self.heads_of(self.key(h)), self.heads_of(self.value(h)), self.heads_of(self.position(distances))
        content = torch.einsum("bhk,bmhk->bhm", q + self.content_bias, k)
        position = torch.einsum("bhk,mhk->bhm", q + self.position_bias, r)
        weights = ((content + position) / math.sqrt(q.shape[-1])).softmax(-1)
        read = self.output(torch.einsum("bhm,bmhk->bhk", weights, v).flatten(1))
        x = self.gate(x, F.relu(read))
        return self.ff_gate(x, F.relu(self.out(F.relu(self.into(self.ff_norm(x))))))

    def heads_of(self, x: Tensor) -> Tensor:
        """[..., W] as [..., H, K]."""
        return x.unflatten(-1, (self.heads, -1))


class StepwiseGate(nn.Module):
    """The GRU gate with one linear map per term, as it is written in the paper (arXiv 1910.06764, section 3.2)."""

    def __init__(self, width: int) -> None:
        super().__init__()
        self.w_r, self.u_r, self.w_z, self.u_z, self.w_g, self.u_g = (
            nn.Linear(width, width, bias=False) for _ in range(6)
        )
        self.bias = nn.Parameter(torch.full((width,), 2.0))

    def forward(self, x: Tensor, y: Tensor) -> Tensor:
        """Stream [B, W] that lets ``y`` in."""
        r = torch.sigmoid(self.w_r(y) + self.u_r(x))
        z = torch.sigmoid(self.w_z(y) + self.u_z(x) - self.bias)
        return (1 - z) * x + z * torch.tanh(self.w_g(y) + self.u_g(r * x))


def distance_table(rows: int, width: int) -> Tensor:
    """Sinusoids [rows, W] of the distances rows - 1 .. 0."""
    distance = torch.arange(rows - 1, -1, -1)[:, None]
    angle = distance * 10_000.0 ** (-torch.arange(0, width, 2) / width)
    return torch.stack([angle.sin(), angle.cos()], -1).flatten(1)


# Storage


def memory(*, repetitions: int = 5) -> Iterator[Row]:
    """Bytes of a finished rollout and of its largest minibatch; they are counted, so repetitions change nothing."""
    del repetitions
    envs, steps, batch = 32, 512, 8
    torch.manual_seed(0)
    policy = new_policy(LARGE | {"memory": 1024})
    segment = random_segment(policy, envs, steps, after_acting(policy, envs, steps=3))
    setting = f"{envs} envs x {steps} steps, 3 layers x width 384, memory 1024, 8 floats per observation"
    note = "the memory comes from policy.step, the steps themselves are random numbers put into RolloutBuffer"
    held = held_bytes(segment) / MEGABYTE
    limit = "<= 160"
    yield Row("GTrXL rollout storage", setting, "MB", held, target=limit, met=meets(held, limit), note=note)
    order = torch.randperm(len(segment), generator=torch.Generator().manual_seed(0)).split(batch)
    copies = (held_bytes(segment.rows(rows)) for rows in order)
    copy, share = max(copies) / MEGABYTE, held * batch / envs
    limit = "<= 1.05"
    yield Row(
        "GTrXL largest minibatch", f"{setting}; {batch} segments per minibatch", "MB", copy, share,
        f"{batch}/{envs} of the rollout", copy / share, copy / share, copy / share, limit, meets(copy / share, limit),
        note="the ratio is copy / share",
    )  # fmt: skip


def after_acting(policy: GTrXLPolicy, envs: int, steps: int) -> PolicyState:
    """The state as acting leaves it."""
    state, first = policy.initial_state(envs), torch.ones(envs, dtype=torch.bool)
    for _ in range(steps):
        noise = policy.action_head.draw(envs, None)
        *_, state = policy.step({"": torch.rand(envs, 8)}, state, first, noise)
        first = torch.zeros_like(first)
    return state


def held_bytes(value: Any) -> int:
    """Bytes of all storages that ``value`` keeps alive, each counted once and whole."""
    storages = {tensor.untyped_storage().data_ptr(): tensor.untyped_storage().nbytes() for tensor in tensors_of(value)}
    return sum(storages.values())


def tensors_of(value: Any) -> Iterator[Tensor]:
    """Every tensor inside records and dictionaries."""
    if isinstance(value, Tensor):
        yield value
    elif isinstance(value, Mapping):
        for part in value.values():
            yield from tensors_of(part)
    elif is_dataclass(value):
        for field in fields(value):
            yield from tensors_of(getattr(value, field.name))
