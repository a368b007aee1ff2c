"""The laws that every backbone keeps, as functions of a backbone; tests choose which backbones to hold against them.

Axes: B streams, T tokens, D width. Every stream of ``Case`` has several episodes; sizes differ from each other.
"""

from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from itertools import pairwise

import torch
from torch import Tensor

from rltransformers.backbone import Backbone, BackboneConfig, State
from scripts.benchmarks.elements import backbone_of
from tests.seeding import seed as start_generators

B, T = 3, 23
STARTS = [[7], [0, 3, 4, 15], [20]]  # adjacent episodes, one at the first token, one at the fourth token from the end
SPLITS = [[10, 2, 11], [5, 5, 5, 5, 3], [2] + 10 * [1] + [11]]
PADDING = [0, 1, 5, 6, 7, 13, 20, 30, 31]  # left, middle, right

# Rounding of float64 (1e-16) through three layers of a few hundred additions each.
EXACT = 1e-12


def perturbed(config: BackboneConfig, scale: float = 0.2, seed: int = 0) -> Backbone:
    """A backbone in evaluation mode with no parameter at the special value it starts from."""
    start_generators(seed)
    backbone = backbone_of(config).eval()
    with torch.no_grad():
        for parameter in backbone.parameters():
            parameter.add_(scale * torch.randn_like(parameter))
    backbone.constrain_()
    return backbone


@dataclass(frozen=True)
class Case:
    """One backbone and the streams it is tried on."""

    backbone: Backbone
    x: Tensor
    reset: Tensor
    tolerance: float = EXACT

    @staticmethod
    def of(
        backbone: Backbone,
        starts: Sequence[Sequence[int]] = STARTS,
        time: int = T,
        tolerance: float = EXACT,
    ) -> "Case":
        """Random streams whose episodes begin at ``starts``."""
        reset = torch.zeros(len(starts), time, dtype=torch.bool)
        for row, places in zip(reset, starts, strict=True):
            row[list(places)] = True
        parameter = next(backbone.parameters())
        x = torch.randn(len(starts), time, backbone.width, dtype=torch.float64).to(parameter.dtype)
        return Case(backbone, x, reset, tolerance)

    def episodes(self) -> list[tuple[int, int, int]]:
        """(row, first token, end) of every episode."""
        found = []
        for row, places in enumerate(self.reset):
            borders = sorted({0, *places.nonzero().flatten().tolist(), self.x.shape[1]})
            found += [(row, first, end) for first, end in pairwise(borders)]
        return found

    def close(self, found: Tensor, expected: Tensor, what: str = "outputs") -> None:
        """Within the tolerance, relative to numbers of size 1."""
        torch.testing.assert_close(
            found, expected, rtol=self.tolerance, atol=self.tolerance, msg=lambda m: f"{what}: {m}"
        )

    def close_states(self, found: State, expected: State) -> None:
        """All tensors of two states; of rings what lies in the window, wherever the clocks stand."""
        found, expected = (self.backbone.in_order(state) if state.acts else state for state in (found, expected))
        assert found.tensors.keys() == expected.tensors.keys()
        for name, value in expected.tensors.items():
            self.close(found.tensors[name], value, f"state {name}")


def in_parts(case: Case, split: Iterable[int], state: State | None) -> tuple[Tensor, State]:
    """Outputs and state when the streams arrive in several calls."""
    outputs, first = [], 0
    for count in split:
        part = slice(first, first + count)
        y, state = case.backbone(case.x[:, part], state, case.reset[:, part])
        outputs.append(y)
        first += count
    assert state is not None
    return torch.cat(outputs, 1), state


def causality(case: Case) -> None:
    """L1: nothing before token u depends on its input, nor does any other stream."""
    time = case.x.shape[1]
    with torch.no_grad():
        y, _ = case.backbone(case.x, None, case.reset)
        for u in (1, time // 3, time - 2):
            changed = case.x.clone()
            changed[:, u] += 1
            again, _ = case.backbone(changed, None, case.reset)
            assert torch.equal(again[:, :u], y[:, :u])
            assert not torch.equal(again[:, u], y[:, u])
    x = case.x.clone().requires_grad_()
    y, _ = case.backbone(x, None, case.reset)
    for u in (1, time // 2):
        (gradient,) = torch.autograd.grad((y * torch.randn_like(y))[0, :u].sum(), x, retain_graph=True)
        assert gradient[:, u:].eq(0).all()
        assert gradient[1:].eq(0).all()
        assert gradient[0, u - 1].ne(0).any()


def split_invariance(case: Case, splits: Iterable[Sequence[int]] = SPLITS) -> None:
    """L2: however a stream is split into calls, in training form and in acting form."""
    with torch.no_grad():
        y, state = case.backbone(case.x, None, case.reset)
        begun, after = case.backbone(case.x, case.backbone.initial_state(len(case.x)), case.reset)
        case.close(begun, y)
        case.close_states(after, state)
        for split in splits:
            for cached in (False, True):
                parts, after = in_parts(case, split, case.backbone.initial_state(len(case.x), cached=cached))
                case.close(parts, y)
                if cached:  # empty rows hold zeros in one form and projected zeros in the other; nobody looks at them
                    relevant(case, after, case.backbone.with_cache(state))
                case.close_states(case.backbone.without_cache(after), state)


def episode_isolation(case: Case) -> None:
    """L3: an episode inside a stream equals the same episode alone, in values and in where gradients go."""
    x = case.x.clone().requires_grad_()
    y, state = case.backbone(x, None, case.reset)
    for row, first, end in case.episodes():
        alone, _ = case.backbone(case.x[row : row + 1, first:end])
        case.close(y[row : row + 1, first:end], alone)
        (gradient,) = torch.autograd.grad(y[row, end - 1].sum(), x, retain_graph=True)
        others = torch.ones(x.shape[:2], dtype=torch.bool)
        others[row, first:end] = False
        assert gradient[others].eq(0).all()
    start = case.reset.clone()
    start[:, 0] = True
    fresh, after_fresh = case.backbone(case.x, None, start)
    for carried in (state.detach(), case.backbone.with_cache(state.detach())):
        again, after = case.backbone(case.x, carried, start)
        case.close(again, fresh)
        relevant(case, case.backbone.without_cache(after), after_fresh)


def relevant(case: Case, found: State, expected: State) -> None:
    """Compare two states where a later token could look: rows of the newest episode."""
    found, expected = (case.backbone.in_order(state) if state.acts else state for state in (found, expected))
    p = expected.tensors["position"]
    assert found.tensors.keys() == expected.tensors.keys()
    assert torch.equal(found.tensors["position"], p)
    for name, value in expected.tensors.items():
        last = name.split(".")[-1]
        other = found.tensors[name]
        if last in ("hidden", "keys"):
            young = torch.arange(value.shape[1] - 1, -1, -1) <= p[:, None]
        elif last in ("sinks", "sink_keys"):
            young = torch.arange(value.shape[1]) <= p[:, None]
        elif last == "slot_keys":
            young = expected.tensors[name.replace("slot_keys", "slots")].ne(0).any(-1)
        else:
            case.close(other, value, f"state {name}")
            continue
        case.close(other[young], value[young], f"state {name}")


def padding(case: Case) -> None:
    """L4: padding, whatever it holds, and the other streams change nothing."""
    batch, time = case.x.shape[:2]
    spaces = [place for place in PADDING if place < time + len(PADDING)]
    longer = time + len(spaces)
    valid = torch.ones(batch, longer, dtype=torch.bool)
    valid[:, spaces] = False
    x = 100 * torch.randn(batch, longer, case.x.shape[2], dtype=case.x.dtype)
    reset = torch.rand(batch, longer) < 0.5
    x[valid], reset[valid] = case.x.flatten(0, 1), case.reset.flatten()
    with torch.no_grad():
        y, state = case.backbone(case.x, None, case.reset)
        padded, after = case.backbone(x, None, reset, valid=valid)
        case.close(padded[valid], y.flatten(0, 1))
        assert padded[~valid].eq(0).all()
        case.close_states(after, state)
        for start in (state, case.backbone.with_cache(state)):
            valid[0] = False
            mixed, after = case.backbone(x, start, reset, valid=valid)
            more, expected = case.backbone(case.x[1:], start[1:], case.reset[1:])
            case.close(mixed[1:][valid[1:]], more.flatten(0, 1))
            case.close_states(after[1:], expected)
            case.close_states(after[:1], start[:1])
        order = torch.tensor([2, 0])[: batch - 1] if batch > 2 else torch.tensor([1])
        chosen, after = case.backbone(case.x[order], None, case.reset[order])
        case.close(chosen, y[order])
        case.close_states(after, state[order])
