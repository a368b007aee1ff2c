"""Facts about cells that the contract does not state: that they are torch's, what they keep, and how runs are cut."""

from typing import Any

import pytest
import torch
from torch import Tensor, nn

from rltransformers.core.errors import ConfigError
from rltransformers.functional.call import Call, Tokens
from rltransformers.mixers import gru, lstm, slstm
from rltransformers.mixers.cell import CellOptions
from rltransformers.mixers.interface import Dims

DIMS = Dims(width=6, heads=2, kv_heads=2, head_dim=3, value_dim=3, memory=1)
KINDS: list[Any] = [(gru.GRU, nn.GRU), (lstm.LSTM, nn.LSTM)]


pytestmark = pytest.mark.usefixtures("double")


def tokens_of(starts: list[list[int]], time: int, before: int = -1, length: list[int] | None = None) -> Tokens:
    """Streams in which episodes begin at ``starts``."""
    p = torch.zeros(len(starts), time, dtype=torch.long)
    for row, places in enumerate(starts):
        at = before
        for t in range(time):
            at = 0 if t in places else at + 1
            p[row, t] = at
    live = p > torch.arange(time)
    return Tokens(p, p, live, torch.full((len(starts),), before), None if length is None else torch.tensor(length))


def fresh(mixer: Any, batch: int) -> dict[str, Tensor]:
    return {name: torch.randn(batch, *shape) for name, shape in mixer.state_shapes().items()}


@pytest.mark.parametrize(("kind", "network"), KINDS)
def test_an_episode_is_one_of_torchs_network(kind: Any, network: Any) -> None:
    mixer, theirs = kind(DIMS, CellOptions(units=5)), network(6, 5, batch_first=True)
    theirs.load_state_dict({f"{name}_l0": value for name, value in mixer.cell.state_dict().items()})
    for time in (9, 40):
        x = torch.randn(3, time, 6)
        mixed = mixer(x, fresh(mixer, 3), Call(tokens_of([[0]] * 3, time)))
        outputs, last = theirs(x)
        torch.testing.assert_close(mixed.out, mixer.out(outputs))
        last = last if isinstance(last, tuple) else (last,)
        for name, expected in zip(mixer.names, last, strict=True):
            torch.testing.assert_close(mixed.state[name], expected[0])


@pytest.mark.parametrize("kind", [gru.GRU, lstm.LSTM, slstm.ScalarLSTM])
@pytest.mark.parametrize("length", [None, [40, 23, 0, 1], [0, 0, 0, 0]])
def test_runs_side_by_side_are_a_walk_token_by_token(kind: Any, length: list[int] | None) -> None:
    mixer, x = kind(DIMS, CellOptions()), torch.randn(4, 40, 6)
    tokens = tokens_of([[0, 1, 2, 30], [], [22, 39], [7]], 40, before=3, length=length)
    before, valid = {name: value.abs() for name, value in fresh(mixer, 4).items()}, tokens.valid()
    whole = mixer(x, before, Call(tokens))
    out, after = mixer.by_token(x, [before[name] for name in mixer.names], mixer.weights(), Call(tokens))
    torch.testing.assert_close(whole.out[valid], mixer.project(out)[valid])
    for name, expected in zip(mixer.names, after, strict=True):
        torch.testing.assert_close(whole.state[name], expected)


def test_layers_share_the_runs_of_a_call() -> None:
    mixer, call = gru.GRU(DIMS, CellOptions()), Call(tokens_of([[3]], 40))
    mixer(torch.randn(1, 40, 6), fresh(mixer, 1), call)
    runs = call.made["runs"]
    mixer(torch.randn(1, 40, 6), fresh(mixer, 1), call)
    assert call.made["runs"] is runs
    assert runs.sizes.tolist() == [2] * 3 + [1] * 34  # 37 tokens and 3, side by side


@pytest.mark.parametrize("time", [5, 40])
def test_a_gru_with_an_open_update_gate_keeps_what_it_has(time: int) -> None:
    mixer = gru.GRU(DIMS, CellOptions(units=5))
    with torch.no_grad():
        mixer.cell.bias_ih[5:10] = 1000.0
    before = fresh(mixer, 2)
    mixed = mixer(torch.randn(2, time, 6), before, Call(tokens_of([[], []], time, before=7)))
    torch.testing.assert_close(mixed.state, before)
    mixed = mixer(torch.randn(2, time, 6), before, Call(tokens_of([[2], [2]], time, before=7)))
    torch.testing.assert_close(mixed.state["cell"], torch.zeros(2, 5))


@pytest.mark.parametrize("time", [5, 40])
def test_an_lstm_with_open_gates_counts(time: int) -> None:
    mixer = lstm.LSTM(DIMS, CellOptions(units=5))
    with torch.no_grad():
        for value in mixer.cell.parameters():
            value.zero_()
        mixer.cell.bias_ih[:] = 1000.0
    before = {name: torch.zeros(1, 5) for name in mixer.names}
    mixed = mixer(torch.randn(1, time, 6), before, Call(tokens_of([[0]], time)))
    torch.testing.assert_close(mixed.state["cell"], torch.full((1, 5), float(time)))
    torch.testing.assert_close(mixed.state["output"], torch.tanh(torch.full((1, 5), float(time))))


def scalar_cell(input_gates: Tensor, log_forget: float) -> tuple[Tensor, dict[str, Tensor]]:
    """A cell of one unit whose token says z and log i; the output gate is open."""
    time = len(input_gates)
    mixer = slstm.ScalarLSTM(Dims(2, 1, 1, 1, 1, 1), CellOptions(units=1))
    with torch.no_grad():
        mixer.of_token.weight.copy_(torch.tensor([[0, 1.0], [0, 0], [1.0, 0], [0, 0]]))
        mixer.of_token.bias.copy_(torch.tensor([0, log_forget, 0, 1000.0]))
    x = torch.stack([torch.linspace(-1, 1, time), input_gates], 1)[None]
    state = {name: torch.zeros(1, 1) for name in mixer.names}
    out, _ = mixer.by_token(x, [state[name] for name in mixer.names], mixer.weights(), Call(tokens_of([[0]], time)))
    return out[0, :, 0], mixer(x, state, Call(tokens_of([[0]], time))).state


@pytest.mark.parametrize("loudness", [-80.0, 0.0, 80.0])
def test_exponential_gates_take_means_and_the_loudest_token(loudness: float) -> None:
    z = torch.linspace(-1, 1, 20).tanh()
    out, _ = scalar_cell(torch.full((20,), loudness), 1000.0)  # nothing is forgotten, all weigh the same
    torch.testing.assert_close(out, z.cumsum(0) / torch.arange(1, 21))
    gates = torch.zeros(20)
    gates[6] = 80.0
    out, state = scalar_cell(gates + loudness, 1000.0)
    torch.testing.assert_close(out[6:], z[6].expand(14))
    assert state["max"].item() == 80 + loudness
    assert all(value.isfinite().all() for value in state.values())


def test_gradients_of_exponential_gates_are_finite_at_any_size() -> None:
    for size in (1.0, 1e3, 1e5):
        mixer = slstm.ScalarLSTM(DIMS, CellOptions())
        x = (size * torch.randn(2, 40, 6)).requires_grad_()
        mixed = mixer(x, {name: torch.zeros(2, 6) for name in mixer.names}, Call(tokens_of([[0], [3, 20]], 40)))
        gradients = torch.autograd.grad(mixed.out.sum(), [x, *mixer.parameters()])
        assert all(each.isfinite().all() for each in (mixed.out, *gradients))


def test_units_that_heads_cannot_share_are_refused() -> None:
    with pytest.raises(ConfigError, match="set units to a multiple of heads"):
        slstm.ScalarLSTM(DIMS, CellOptions(units=5))
