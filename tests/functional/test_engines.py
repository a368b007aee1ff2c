"""Laws of every recurrence by itself, against a loop over tokens in float64."""

import math

import pytest
import torch
from torch import Tensor

from rltransformers.functional.call import Tokens
from rltransformers.laws.costs import cost as counted_cost
from tests.functional.engines import ENGINES, Engine, Rows, State
from tests.functional.test_recurrences import tokens_of

B, T = 3, 23
BEFORE = torch.tensor([6, 2, 4])

every_engine = pytest.mark.parametrize("name", ENGINES)


def borders() -> Tensor:
    """Episodes begin at the first token, in the middle of chunks, one after another; row 2 lives on from before."""
    reset = torch.zeros(B, T, dtype=torch.bool)
    reset[0, 0] = reset[1, 3] = reset[1, 4] = reset[1, 19] = True
    return reset


def of_valid(out: Tensor, length: list[int]) -> Tensor:
    return torch.cat([row[:count].flatten() for row, count in zip(out, length, strict=True)])


def results(
    engine: Engine, rows: Rows, state: State, reset: Tensor, length: list[int], chunk: int | None
) -> dict[str, Tensor]:
    """Outputs of valid tokens, states and gradients; of the loop without ``chunk``."""
    leaves = [x.detach().clone().requires_grad_() for x in [*rows.values(), *state.values()]]
    rows = dict(zip(rows, leaves, strict=False))
    state = dict(zip(state, leaves[len(rows) :], strict=True))
    if chunk is None:
        outs, finals = engine.loop(rows, state, reset, length)
        out = torch.cat([x.flatten() for row in outs for x in row])
        after = {name: torch.stack([final[name] for final in finals]) for name in state}
    else:
        tokens = tokens_of(reset, BEFORE, torch.tensor(length))
        out, after = engine.call(rows, state, tokens, chunk)
        out = of_valid(out, length)
    weight = torch.linspace(-1, 2, len(out), dtype=out.dtype)
    loss = (out * weight).sum() + torch.cat([x.flatten() for name, x in after.items() if name != "max"]).square().sum()
    grads = torch.autograd.grad(loss, leaves, allow_unused=True, materialize_grads=True)
    named = dict(zip([*rows, *(f"before {name}" for name in state)], grads, strict=True))
    named.pop("before max", None)  # a scale, which is no function
    return {"out": out} | {f"after {name}": x for name, x in after.items()} | named


@every_engine
@pytest.mark.parametrize("chunk", [1, 7, 16, 64])
@pytest.mark.parametrize("length", [[T, T, T], [0, 9, 22]], ids=str)
def test_values_gradients_and_states_equal_a_loop_over_tokens(name: str, chunk: int, length: list[int]) -> None:
    engine, reset = ENGINES[name], borders()
    reset[2, 22] = True  # inside the padding: must not clear the state
    rows, state = engine.draw(B, T)
    ours = results(engine, rows, state, reset, length, chunk)
    torch.testing.assert_close(ours, results(engine, rows, state, reset, length, None))
    if not length[0]:
        for key, before in state.items():
            assert torch.equal(ours[f"after {key}"][0], before[0])


@every_engine
@pytest.mark.parametrize("sizes", [[1] * T, [1, 9, 13], [22, 1]], ids=str)
def test_any_split_of_a_stream_gives_the_same_outputs_and_states(name: str, sizes: list[int]) -> None:
    engine, reset = ENGINES[name], borders()
    rows, state = engine.draw(B, T)
    whole, after = engine.call(rows, state, tokens_of(reset, BEFORE), 16)
    outs, start, before = [], 0, BEFORE
    for size in sizes:
        part = slice(start, start + size)
        tokens = tokens_of(reset[:, part], before)
        out, state = engine.call({key: x[:, part] for key, x in rows.items()}, state, tokens, 4)
        outs.append(out)
        start, before = start + size, tokens.last_position()
    torch.testing.assert_close(torch.cat(outs, 1), whole)
    torch.testing.assert_close(state, after)


@every_engine
@pytest.mark.parametrize("dtype", [torch.float64, torch.float32], ids=str)
def test_no_decay_makes_values_or_gradients_wrong(name: str, dtype: torch.dtype) -> None:
    """Decays of 1, 1e-30 and 0 side by side, and inputs of exp(80) and exp(-80) where an engine takes exponents."""
    engine, reset, length = ENGINES[name], borders(), [T, T, T]
    rows, state = engine.draw(B, T)
    generator = torch.Generator().manual_seed(1)
    for key, choices in (("log_decay", [0.0, -0.1, math.log(1e-30), -1e4]), ("log_input", [0.0, 80.0, -80.0, -1e4])):
        if key in rows:
            index = torch.randint(len(choices), rows[key].shape, generator=generator)
            rows[key] = torch.tensor(choices, dtype=torch.float64)[index]
    inputs, before = ({key: x.to(dtype) for key, x in each.items()} for each in (rows, state))
    ours = results(engine, inputs, before, reset, length, 16)
    expected = results(engine, rows, state, reset, length, None)
    for key, value in ours.items():
        bound = (1e-4 if dtype == torch.float32 else 1e-10) * (1 + expected[key].abs().max())
        assert (value - expected[key]).abs().max() <= bound, key  # NaN fails, too


@every_engine
def test_gradients_equal_finite_differences(name: str) -> None:
    engine, reset = ENGINES[name], borders()[:, :9]
    rows, state = engine.draw(B, 9)
    tokens = tokens_of(reset, BEFORE, torch.tensor([0, 7, 9]))

    def call(*inputs: Tensor) -> Tensor:
        names = [key for key in (*rows, *state) if key != "max"]
        values = dict(zip(names, inputs, strict=True))
        before = {key: values.get(key, state[key]) for key in state}
        out, _ = engine.call({key: values[key] for key in rows}, before, tokens, 4)
        return of_valid(out, [0, 7, 9])

    leaves = [x.requires_grad_() for key, x in [*rows.items(), *state.items()] if key != "max"]
    assert torch.autograd.gradcheck(call, leaves, fast_mode=True)


@every_engine
def test_no_gradient_crosses_an_episode_border(name: str) -> None:
    engine, reset = ENGINES[name], borders()
    rows, state = engine.draw(B, T)
    for x in (*rows.values(), *state.values()):
        x.requires_grad_()
    out, after = engine.call(rows, state, tokens_of(reset, BEFORE), 7)
    loss = out[1, 19:].sum() + torch.cat([x[1].flatten() for key, x in after.items() if key != "max"]).sum()
    grads = torch.autograd.grad(loss, [*rows.values(), *state.values()], allow_unused=True, materialize_grads=True)
    for key, grad in zip(rows, grads, strict=False):
        assert grad[1, :19].eq(0).all() and grad[[0, 2]].eq(0).all(), key
        assert grad[1, 20:].ne(0).any(), key
    for grad in grads[len(rows) :]:
        assert grad.eq(0).all()


@every_engine
def test_work_and_kept_memory_grow_linearly(name: str) -> None:
    def cost(time: int) -> tuple[int, int]:
        rows, state = ENGINES[name].draw(1, time)
        for x in rows.values():
            x.requires_grad_()
        tokens = tokens_of(torch.zeros(1, time, dtype=torch.bool), torch.tensor([3]))
        return counted_cost(lambda: ENGINES[name].call(rows, state, tokens, 16)[0])

    for small, large in zip(cost(256), cost(1024), strict=True):
        assert large <= 4.2 * small


@every_engine
def test_half_precision_and_autocast_leave_sums_in_float32(name: str) -> None:
    engine = ENGINES[name]
    rows, state = engine.draw(B, T)
    reset, chunk = borders(), 16
    half = {key: x.bfloat16() for key, x in rows.items()}
    exact = {key: x.float() for key, x in half.items()}
    state = {key: x.float() for key, x in state.items()}
    with torch.autocast("cpu", torch.bfloat16):
        if "scan" in name:  # its decay is made of a logarithm in the test
            half["log_decay"] = exact["log_decay"]
            half |= {"angle": exact["angle"]} if "angle" in half else {}
        out, after = engine.call(half, state, tokens_of(reset, BEFORE), chunk)
    expected, expected_after = engine.call(exact, state, tokens_of(reset, BEFORE), chunk)
    assert out.dtype == torch.float32 and all(x.dtype == torch.float32 for x in after.values())
    torch.testing.assert_close(out, expected, rtol=1e-5, atol=1e-5)
    torch.testing.assert_close(after, expected_after, rtol=1e-5, atol=1e-5)


@every_engine
def test_a_step_is_one_graph_for_every_position_of_an_episode(name: str) -> None:
    """An exported step, whose shapes and operations cannot change, equals the eager one near and far."""
    engine = ENGINES[name]
    rows, state = engine.draw(B, 1)
    keys = list(rows)

    class Step(torch.nn.Module):
        def forward(self, inputs: list[Tensor], state: State, p: Tensor) -> tuple[Tensor, State]:
            return engine.call(dict(zip(keys, inputs, strict=True)), state, Tokens(p, p, p != 0, p[:, 0] - 1), 16)

    def arguments(*places: int) -> tuple[list[Tensor], State, Tensor]:
        return list(rows.values()), state, torch.tensor(places)[:, None]

    exported = torch.export.export(Step(), arguments(3, 4, 5))
    for places in ((0, 1, 10), (100_000, 0, 7)):
        expected = Step()(*arguments(*places))
        torch.testing.assert_close(exported.module()(*arguments(*places)), expected)
    assert not [node for node in exported.graph.nodes if "sym" in str(node.target)]
