"""RWKV-7 beside sums that decay, and what it removes; the recurrence beside that of Kimi Delta Attention."""

from collections.abc import Iterator

import pytest
import torch
from torch import Tensor

from rltransformers.core.record import Probe, Record
from rltransformers.functional.call import Call, Tokens
from rltransformers.functional.channels import channel_delta_sums, channel_sums, rank_one_sums
from rltransformers.mixers.interface import Dims
from rltransformers.mixers.rwkv7 import RWKV7, Options


@pytest.fixture(autouse=True)
def double() -> Iterator[None]:
    torch.set_default_dtype(torch.float64)
    torch.manual_seed(0)
    yield
    torch.set_default_dtype(torch.float32)


def stream(p: list[list[int]], before: int = -1) -> Tokens:
    """Tokens at these places of their episodes."""
    places = torch.tensor(p)
    return Tokens(places, places, ((places == 0).cumsum(1) == 0), torch.full((len(p),), before))


def drawn(time: int) -> dict[str, Tensor]:
    """Arguments of the recurrence for two streams and three heads of four channels."""
    rows = torch.randn(5, 2, 3, time, 4)
    names = ("query", "key", "value", "read", "write")
    return {**dict(zip(names, rows, strict=True)), "log_decay": -torch.rand(2, 3, time, 4)}


def summed(rows: dict[str, Tensor], state: Tensor, tokens: Tokens, chunk: int = 32) -> tuple[Tensor, Tensor]:
    """The recurrence of ``drawn`` rows."""
    query, key, value, read, write, log_decay = rows.values()
    return rank_one_sums(query, key, value, read, write, state, tokens, log_decay, chunk)


def test_what_is_removed_under_the_key_that_is_written_is_the_delta_rule() -> None:
    rows, rate, state = drawn(45), torch.rand(2, 3, 45), torch.randn(2, 3, 4, 4)
    tokens = stream([[*range(5, 40), *range(10)], [*range(5, 8), *range(42)]], before=4)
    key = rows["key"] / rows["key"].norm(dim=-1, keepdim=True)
    rows |= {"key": rate[..., None] * key, "write": rate[..., None] * key, "read": key}
    found = summed(rows, state, tokens)
    other = channel_delta_sums(rows["query"], key, rows["value"], rate, state, tokens, rows["log_decay"])
    torch.testing.assert_close(found, other)


@pytest.mark.parametrize("chunk", [1, 7, 64])
def test_the_recurrence_is_the_same_in_chunks_of_any_size_and_token_by_token(chunk: int) -> None:
    rows, state = drawn(21), torch.randn(2, 3, 4, 4)
    places = [[*range(3, 24)], [*range(3, 9), *range(15)]]
    expected, outputs = state, []
    for t in range(21):
        row = {name: each[:, :, t] for name, each in rows.items()}
        expected = torch.where(torch.tensor([each[t] == 0 for each in places])[:, None, None, None], 0.0, expected)
        expected = row["log_decay"].exp()[..., None] * expected
        taken = torch.einsum("bhf,bhfv->bhv", row["read"], expected)
        expected = expected + torch.einsum("bhf,bhv->bhfv", row["key"], row["value"])
        expected = expected - torch.einsum("bhf,bhv->bhfv", row["write"], taken)
        outputs.append(torch.einsum("bhf,bhfv->bhv", row["query"], expected))
    found = summed(rows, state, stream(places, before=2), chunk)
    # Without a bound on what is removed the state grows; errors are those of rounding beside its size.
    scale = float(expected.abs().max())
    torch.testing.assert_close(found, (torch.stack(outputs, 2), expected), rtol=1e-9, atol=1e-13 * scale)


def mixer_of(width: int = 12, heads: int = 3) -> RWKV7:
    """A mixer with random parameters."""
    dims = Dims(width=width, heads=heads, kv_heads=heads, head_dim=4, value_dim=4, memory=1)
    mixer = RWKV7(dims, Options(rank=3, gate_rank=2))
    for parameter in mixer.parameters():
        parameter.data += 0.3 * torch.randn_like(parameter)
    return mixer


def run(mixer: RWKV7, h: Tensor, probe: Probe | None = None) -> dict[str, Tensor]:
    """The state after episodes."""
    state = {name: torch.zeros(len(h), *shape) for name, shape in mixer.state_shapes().items()}
    return mixer(h, state, Call(stream([[*range(h.shape[1])]] * len(h)), probe or Probe())).state


def test_with_rates_of_0_the_memory_is_a_sum_that_decays_channel_by_channel() -> None:
    mixer, h = mixer_of(), torch.randn(2, 40, 12)
    mixer.get_parameter("rate.2.bias").data.fill_(-1e3)
    mixer.rate_share.data.zero_()
    mixer.shares.update({name: torch.nn.Parameter(torch.zeros(12)) for name in mixer.shares})
    k, v = (mixer.by_head(layer(h)) for layer in (mixer.key, mixer.value))
    log_decay = -(-0.5 * torch.ones(())).exp() * mixer.by_head(mixer.decay(h)).sigmoid()
    _, expected = channel_sums(k, k, v, torch.zeros(2, 3, 4, 4), stream([[*range(40)]] * 2), log_decay)
    torch.testing.assert_close(run(mixer, h)["weights"], expected)


def test_a_rate_of_1_removes_what_the_matrix_holds_under_the_key() -> None:
    """And what is written next takes its place; channels keep nearly all where decays are small."""
    mixer, h = mixer_of(), torch.randn(1, 8, 12)
    mixer.get_parameter("decay.2.bias").data.fill_(-1e3)
    mixer.get_parameter("decay.2.weight").data.zero_()
    mixer.get_parameter("rate.2.bias").data.fill_(1e3)
    mixer.removal.data.fill_(1.0)
    mixer.shares.update({name: torch.nn.Parameter(torch.zeros(12)) for name in mixer.shares})
    weights = run(mixer, h)["weights"][0]
    key, value = (mixer.by_head(layer(h[:, -1:]))[0, :, 0] for layer in (mixer.key, mixer.value))
    found = torch.einsum("hk,hkv->hv", key, weights)
    torch.testing.assert_close(found, key.square().sum(-1, keepdim=True) * value, rtol=1e-9, atol=1e-9)


def test_the_record_tells_rates_and_what_is_kept() -> None:
    record, dims = Record(), Dims(width=8, heads=2, kv_heads=2, head_dim=4, value_dim=4, memory=1)
    run(RWKV7(dims, Options()), torch.randn(2, 5, 8), Probe(record, "layer0"))
    assert 0.5 < record.metrics["layer0/kept"].item() < 1 and 0.4 < record.metrics["layer0/rate"].item() < 0.6
