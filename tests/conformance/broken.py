"""A small mixer that keeps every law, and copies of it that each break one."""

from collections.abc import Callable
from dataclasses import replace
from typing import Any

import torch
from torch import Tensor, nn
from torch.nn import functional as F

from rltransformers.mechanisms import Call, Dims, Mixed, NoOptions, Spec, StateMixer, causal_sums


class Totals(StateMixer):
    """The projected sum of the values of the episode so far."""

    def __init__(self, dims: Dims) -> None:
        super().__init__()
        self.value = nn.Linear(dims.width, dims.width, bias=False)

    def state_shapes(self) -> dict[str, tuple[int, ...]]:
        return {"sum": (1, 1, self.value.out_features)}

    def sums(self, v: Tensor, state: dict[str, Tensor], call: Call) -> tuple[Tensor, dict[str, Tensor]]:
        ones = torch.ones_like(v[:, None, :, :1])
        out, after = causal_sums(ones, ones, v[:, None], state["sum"], call.tokens)
        return out[:, 0].to(v.dtype), {"sum": after.to(state["sum"].dtype)}

    def forward(self, h: Tensor, state: dict[str, Tensor], call: Call) -> Mixed:
        out, after = self.sums(self.value(h), state, call)
        return Mixed(out[:, call.wanted], after)


def twin(module: Any, h: Tensor) -> Tensor:
    return torch.stack(
        [sum((module.value.weight @ h[a] for a in range(t + 1)), torch.zeros(())) for t in range(len(h))]
    )


def wrong_twin(module: Any, h: Tensor) -> Tensor:
    return twin(module, h) + 1e-6


class SeesTheFuture(Totals):
    def forward(self, h: Tensor, state: dict[str, Tensor], call: Call) -> Mixed:
        return super().forward(h - h.mean(1, keepdim=True), state, call)


class NeverForgets(Totals):
    def sums(self, v: Tensor, state: dict[str, Tensor], call: Call) -> tuple[Tensor, dict[str, Tensor]]:
        out = state["sum"][:, 0] + v.masked_fill(~call.tokens.valid()[..., None], 0.0).cumsum(1)
        return out, {"sum": out[:, None, -1:]}


class LooksAround(Totals):
    def forward(self, h: Tensor, state: dict[str, Tensor], call: Call) -> Mixed:
        return super().forward(h - h.mean(0, keepdim=True), state, call)


class Deaf(Totals):
    def __init__(self, dims: Dims) -> None:
        super().__init__(dims)
        self.idle = nn.Parameter(torch.ones(dims.width))


class WrongGradient(Totals):
    def sums(self, v: Tensor, state: dict[str, Tensor], call: Call) -> tuple[Tensor, dict[str, Tensor]]:
        out, after = super().sums(v, state, call)
        return out * out.detach(), after


class Grows(Totals):
    def forward(self, h: Tensor, state: dict[str, Tensor], call: Call) -> Mixed:
        mixed = super().forward(h, {"sum": state["sum"][:, -1:]}, call)
        return Mixed(mixed.out, {"sum": torch.cat([state["sum"], mixed.state["sum"]], 1)})


class Draws(Totals):
    def forward(self, h: Tensor, state: dict[str, Tensor], call: Call) -> Mixed:
        return super().forward(h + 1e-3 * torch.randn_like(h), state, call)


class AllPairs(Totals):
    def sums(self, v: Tensor, state: dict[str, Tensor], call: Call) -> tuple[Tensor, dict[str, Tensor]]:
        out, after = super().sums(v, state, call)
        return out + 0.0 * ((v @ v.transpose(1, 2)) @ v), after


class Forgetful(Totals):
    """A number of its own that no file holds."""

    scale: Tensor

    def __init__(self, dims: Dims) -> None:
        super().__init__(dims)
        self.register_buffer("scale", torch.rand(()) + 1, persistent=False)

    def forward(self, h: Tensor, state: dict[str, Tensor], call: Call) -> Mixed:
        return super().forward(h * self.scale, state, call)


class Cancels(Totals):
    def forward(self, h: Tensor, state: dict[str, Tensor], call: Call) -> Mixed:
        return super().forward((h + 1e4) - 1e4, state, call)


class Branches(Totals):
    def forward(self, h: Tensor, state: dict[str, Tensor], call: Call) -> Mixed:
        mixed = super().forward(h, state, call)
        return Mixed(2 * mixed.out if bool(h.sum() > 1e9) else mixed.out, mixed.state)


class Numbers(Totals):
    def forward(self, h: Tensor, state: dict[str, Tensor], call: Call) -> Mixed:
        return super().forward(h * torch.tensor(0.5, dtype=h.dtype), state, call)


class LeaksInTraining(Totals):
    def forward(self, h: Tensor, state: dict[str, Tensor], call: Call) -> Mixed:
        return super().forward(h - h.mean(1, keepdim=True) if self.training else h, state, call)


class FollowsTheBatch(Totals):
    def __init__(self, dims: Dims) -> None:
        super().__init__(dims)
        self.norm = nn.BatchNorm1d(dims.width)

    def forward(self, h: Tensor, state: dict[str, Tensor], call: Call) -> Mixed:
        return super().forward(self.norm(h.flatten(0, 1)).view_as(h), state, call)


class Drops(Totals):
    def forward(self, h: Tensor, state: dict[str, Tensor], call: Call) -> Mixed:
        return super().forward(F.dropout(h, 0.3, self.training), state, call)


class LearnsNothing(Totals):
    def forward(self, h: Tensor, state: dict[str, Tensor], call: Call) -> Mixed:
        return super().forward(h.detach() if self.training else h, state, call)


class StateOfTraining(Totals):
    def forward(self, h: Tensor, state: dict[str, Tensor], call: Call) -> Mixed:
        mixed = super().forward(h, state, call)
        return Mixed(mixed.out, {"sum": mixed.state["sum"] * (0.9 if self.training else 1.0)})


class LeaksInLongCalls(Totals):
    def forward(self, h: Tensor, state: dict[str, Tensor], call: Call) -> Mixed:
        return super().forward(h - h.mean(1, keepdim=True) if h.shape[1] > 32 else h, state, call)


class LosesChunks(Totals):
    """In chunks of 64 tokens; from the third one on the first is lost."""

    def sums(self, v: Tensor, state: dict[str, Tensor], call: Call) -> tuple[Tensor, dict[str, Tensor]]:
        out, after = super().sums(v, state, call)
        lost = torch.arange(v.shape[1], device=v.device)[:, None] >= 128
        return out - lost * v[:, :64].sum(1, keepdim=True), after


class CutsGradients(Totals):
    """In chunks of 16 tokens, each with what the chunks before it sum up to, but without its gradient."""

    def sums(self, v: Tensor, state: dict[str, Tensor], call: Call) -> tuple[Tensor, dict[str, Tensor]]:
        out, after = super().sums(v, state, call)
        place = torch.arange(v.shape[1], device=v.device)
        begun = place // 16 * 16  # the first token of the chunk
        before = F.pad(out, (0, 0, 1, 0))[:, begun] * (call.tokens.p > place - begun)[..., None]
        return out - before + before.detach(), after


def spec_of(kind: Callable[[Dims], StateMixer], **changes: Any) -> Spec:
    """The mixer that a class is."""

    def build(dims: Dims, options: NoOptions) -> StateMixer:
        return kind(dims)

    name = getattr(kind, "__name__", "mine").lower()
    return replace(Spec(name=name, axis="mixer", summary="Sums.", build=build), **changes)


BROKEN = {
    "L1": (SeesTheFuture, "another input at token 1 changes outputs before it"),
    "L2": (Draws, "outputs from an initial state and from None differ by"),
    "L3": (NeverForgets, "outputs of an episode in a stream and alone differ by"),
    "L4": (LooksAround, "outputs beside a stream of padding and without it differ by"),
    "L7": (Deaf, "the parameter layers.0.mixing.mixer.idle receives no gradient"),
    "L8": (AllPairs, r"work grows as T\^1\.[0-9]+, but Traits\.time declares T; compute in blocks"),
    "L9": (Forgetful, "another backbone with the same weights gives other outputs"),
    "L10": (Cancels, "outputs of torch.float32 differ by .* of their size, allowed are 1e-05"),
    "L11": (Branches, "it raised ConfigError: this step cannot be written as one graph"),
    "L12": (Numbers, "a step makes a tensor from numbers; register it as a buffer"),
}
"""Law → a mixer that breaks it, and what the law says."""
MODES = "in training mode and in evaluation mode differ by"
ALSO = {
    "wrong gradient": ("L7", WrongGradient, "gradients differ from finite differences by"),
    "growing state": ("L8", Grows, "it raised ConfigError: mixer Grows returned a state with"),
    "growing state of a step": ("L12", Grows, "it raised ConfigError: mixer Grows returned a state with"),
    "a leak in training alone": ("L2", LeaksInTraining, f"outputs {MODES}"),
    "batch norm": ("L2", FollowsTheBatch, f"outputs {MODES}"),
    "dropout that nobody asked for": ("L2", Drops, f"outputs {MODES}"),
    "another state in training": ("L2", StateOfTraining, "state layer0.sum differ by"),
    "no gradient in training": ("L7", LearnsNothing, "gradients differ from finite differences by"),
    "a leak in long calls": ("L2", LeaksInLongCalls, "outputs of one call and of calls of 100, 60, 31, ... tokens"),
    "a chunk that is lost": ("L2", LosesChunks, "outputs of one call and of calls of 100, 60, 31, ... tokens"),
    "no gradient from chunk to chunk": ("L7", CutsGradients, "gradients differ from finite differences by"),
}
