"""Laws L1 to L4 of segments and steps: nothing of the future, of other calls, episodes or streams changes an output."""

import copy
import math
from collections.abc import Iterable, Sequence

import torch

from rltransformers.backbone import BackboneConfig
from rltransformers.laws.costs import window_of_16
from rltransformers.laws.streams import EXACT, PADDING, SPLITS, Case, blocks_of, in_parts, perturbed, require

LONG_STARTS, LONG_SPLIT = [[], [150]], [100, 60, 31, 7, 57, *5 * [1]]
"""Where episodes begin in streams of 260 tokens, and calls that they are cut into."""


def causality(case: Case) -> None:
    """L1: nothing before token u depends on its input, nor does any other stream."""
    time = case.x.shape[1]
    with torch.no_grad():
        y, _ = case.backbone(case.x, None, case.reset)
        for u in (1, time // 3, time - 2):
            changed = case.x.clone()
            changed[:, u] += 1
            again, _ = case.backbone(changed, None, case.reset)
            require(torch.equal(again[:, :u], y[:, :u]), f"another input at token {u} changes outputs before it")
            require(not torch.equal(again[:, u], y[:, u]), f"another input at token {u} does not change its own output")
    x = case.x.clone().requires_grad_()
    y, _ = case.backbone(x, None, case.reset)
    for u in (1, time // 2):
        (gradient,) = torch.autograd.grad((y * torch.randn_like(y))[0, :u].sum(), x, retain_graph=True)
        require(gradient[:, u:].eq(0).all(), f"outputs before token {u} have a gradient into it or later tokens")
        require(gradient[1:].eq(0).all(), "outputs of one stream have a gradient into another one")
        require(gradient[0, u - 1].ne(0).any(), f"the output of token {u - 1} has no gradient into its own input")


def split_invariance(case: Case, splits: Iterable[Sequence[int]] = SPLITS) -> None:
    """L2: however a stream is split into calls, in training form and in acting form, outputs and state are the same."""
    with torch.no_grad():
        y, state = case.backbone(case.x, None, case.reset)
        begun, after = case.backbone(case.x, case.backbone.initial_state(len(case.x)), case.reset)
        case.close(begun, y, "outputs from an initial state and from None")
        case.close_states(after, state)
        for split in splits:
            for cached in (False, True):
                parts, after = in_parts(case, split, case.backbone.initial_state(len(case.x), cached=cached))
                case.close(parts, y, f"outputs of one call and of calls of {str(split[:3])[1:-1]}, ... tokens")
                if cached:  # empty rows hold zeros in one form and projected zeros in the other; nobody looks at them
                    case.close_states(after, case.backbone.with_cache(state), newest=True)
                case.close_states(case.backbone.without_cache(after), state)


def long_streams(config: BackboneConfig, tolerance: float = EXACT) -> Case:
    """L2: streams of 260 tokens equal their parts, where chunks of 64 follow each other; returns the comparison."""
    case = Case.of(perturbed(window_of_16(config)), LONG_STARTS, sum(LONG_SPLIT), tolerance)
    split_invariance(case, [LONG_SPLIT])
    return case


def block_invariance(case: Case) -> None:
    """L2: cutting a call into blocks changes nothing."""
    blocks, state = case.backbone(case.x, None, case.reset)
    with blocks_of(1000):
        whole, after = case.backbone(case.x, None, case.reset)
    case.close(blocks, whole)
    case.close_states(state, after)


def acting_equals_training(case: Case) -> None:
    """L2: steps without gradient equal the segment with it: other kernels, and windows that are extended in place."""
    x = case.x.clone().requires_grad_()
    whole, _ = case.backbone(x, None, case.reset)
    state, outputs = case.backbone.initial_state(len(x), cached=True), []
    with torch.inference_mode():
        for t in range(x.shape[1]):
            if t % 5 == 0:  # at every place of a ring of a few rows
                case.backbone(x[:, t : t + 1] + 1, state, case.reset[:, t : t + 1])  # a path not taken
            y, state = case.backbone(x[:, t : t + 1], state, case.reset[:, t : t + 1])
            outputs.append(y)
    case.close(torch.cat(outputs, 1), whole, "outputs of steps and of the segment")
    y, _ = case.backbone(x[:, :3], state, case.reset[:, :3])  # what acting leaves is fit for training
    torch.autograd.grad(y.sum(), x)


def training_equals_evaluation(case: Case) -> None:
    """L2: training mode gives the outputs and the state of evaluation mode, where the config has no dropout."""
    if case.backbone.config.dropout:
        return
    y, state = case.backbone(case.x, None, case.reset)
    learner = copy.deepcopy(case.backbone).train()  # whose statistics may follow the data
    learned, after = learner(case.x, None, case.reset)
    case.close(learned, y, "outputs in training mode and in evaluation mode")
    case.close_states(after, state)


def acting_from_keys(case: Case) -> None:
    """L2: a state with keys in place of layer inputs acts alike, and keeps its shapes."""
    start = case.backbone.initial_state(len(case.x), cached="only")
    shapes = {key: value.shape for key, value in start.tensors.items()}
    with torch.inference_mode():
        whole, _ = case.backbone(case.x, None, case.reset)
        for count in (5, 1):
            state, outputs = start, []
            for part, reset in zip(case.x.split(count, 1), case.reset.split(count, 1), strict=True):
                y, state = case.backbone(part, state, reset)
                outputs.append(y)
                now = {key: value.shape for key, value in state.tensors.items()}
                require(now == shapes, "the shapes of a state change from call to call")
            case.close(torch.cat(outputs, 1), whole, "outputs of a state of keys alone and of the segment")


def outputs_left_out(case: Case) -> None:
    """L2: leaving out outputs changes neither the others nor the state."""
    valid = torch.rand(case.x.shape[:2]) > 0.2
    ends = torch.arange(case.x.shape[1]).expand_as(valid) < 17
    # Cut into blocks, and as a whole, where queries are left out as well.
    for smallest, padding in ((4, valid), (4, ends), (1000, None), (1000, valid)):
        with blocks_of(smallest), torch.no_grad():
            whole, state = case.backbone(case.x, None, case.reset, valid=padding)
            for wanted in (slice(1, None, 3), slice(-1, None), slice(0, 0)):
                part, after = case.backbone(case.x, None, case.reset, valid=padding, wanted=wanted)
                case.close(part, whole[:, wanted], "outputs of wanted tokens and of all")
                case.close_states(after, state)


def episode_isolation(case: Case) -> None:
    """L3: an episode inside a stream equals the same episode alone, in values and in where gradients go."""
    x = case.x.clone().requires_grad_()
    y, state = case.backbone(x, None, case.reset)
    for row, first, end in case.episodes():
        alone, _ = case.backbone(case.x[row : row + 1, first:end])
        case.close(y[row : row + 1, first:end], alone, "outputs of an episode in a stream and alone")
        if row != 1 and len(x) > 1:  # where gradients go shows in the stream with most episodes; causality has others
            continue
        (gradient,) = torch.autograd.grad(y[row, end - 1].sum(), x, retain_graph=True)
        others = torch.ones(x.shape[:2], dtype=torch.bool)
        others[row, first:end] = False
        require(gradient[others].eq(0).all(), "the output of an episode has a gradient into another episode")
    start = case.reset.clone()
    start[:, 0] = True
    fresh, after_fresh = case.backbone(case.x, None, start)
    for carried in (state.detach(), case.backbone.with_cache(state.detach())):
        again, after = case.backbone(case.x, carried, start)
        case.close(again, fresh, "outputs of new episodes behind an old state and from the start")
        case.close_states(case.backbone.without_cache(after), after_fresh, newest=True)


def padding(case: Case) -> None:
    """L4: padding, whatever it holds, and the other streams change nothing."""
    batch, time = case.x.shape[:2]
    spaces = [place for place in PADDING if place < time + len(PADDING)]
    longer = time + len(spaces)
    valid = torch.ones(batch, longer, dtype=torch.bool)
    valid[:, spaces] = False
    x = 100 * torch.randn(batch, longer, case.x.shape[2], dtype=case.x.dtype)
    x[:, spaces[::2]] = math.nan
    reset = torch.rand(batch, longer) < 0.5
    x[valid], reset[valid] = case.x.flatten(0, 1), case.reset.flatten()
    with torch.no_grad():
        y, state = case.backbone(case.x, None, case.reset)
        padded, after = case.backbone(x, None, reset, valid=valid)
        case.close(padded[valid], y.flatten(0, 1), "outputs with padding and without")
        require(padded[~valid].eq(0).all(), "outputs of padding are not zero")
        case.close_states(after, state)
        for start in (state, case.backbone.with_cache(state)):
            valid[0] = False
            mixed, after = case.backbone(x, start, reset, valid=valid)
            more, expected = case.backbone(case.x[1:], start[1:], case.reset[1:])
            case.close(mixed[1:][valid[1:]], more.flatten(0, 1), "outputs beside a stream of padding and without it")
            case.close_states(after[1:], expected)
            case.close_states(after[:1], start[:1])
        order = torch.tensor([2, 0])[: batch - 1] if batch > 2 else torch.tensor([1])
        chosen, after = case.backbone(case.x[order], None, case.reset[order])
        case.close(chosen, y[order], "outputs of a stream in another batch")
        case.close_states(after, state[order])
