"""Mixers other than softmax against twins that follow one episode token by token."""

import math
from collections.abc import Callable
from itertools import pairwise
from typing import Any

import pytest
import torch
from torch import Tensor, nn
from torch.utils.flop_counter import FlopCounterMode

from rltransformers.core.errors import ConfigError
from rltransformers.core.record import Probe, Record
from rltransformers.core.spec import Choice, NoOptions
from rltransformers.functional.call import Call, Tokens, episode_positions
from rltransformers.functional.keys import Group, Rows
from rltransformers.mixers import average, convolution, landmarks, light_conv, linear, nystrom, performer
from rltransformers.mixers.interface import Dims, StateMixer
from tests.mixers.twins import (
    D,
    average_twin,
    heads_of,
    light_conv_twin,
    linear_twin,
    nystrom_twin,
    performer_twin,
)

B, T = 3, 23
DIMS = Dims(width=D, heads=4, kv_heads=2, head_dim=3, value_dim=5, memory=30)
STARTS = [[0], [0, 6, 7, 16], [3, 19]]  # where the episodes of each row begin; row 2 begins inside an earlier one
SPLITS = [[T], [1] * T, [10, 2, 11], [5, 5, 5, 5, 3]]

SILENT = Probe()
Build = Callable[[Dims], nn.Module]
BUILDS: dict[str, Build] = {
    "linear": lambda dims: linear.LinearAttention(dims, NoOptions()),
    "performer": lambda dims: performer.Performer(dims, performer.Options(features=7)),
    "average": lambda dims: average.AverageAttention(dims, average.Options(hidden=9)),
    "light_conv": lambda dims: light_conv.LightConv(
        dims, convolution.Options(taps=6)
    ),  # longer than the last episode of row 2
    "light_conv_zero": lambda dims: light_conv.LightConv(dims, convolution.Options(taps=4, pad="zero")),
    "light_conv_1": lambda dims: light_conv.LightConv(dims, convolution.Options(taps=1)),
    "nystrom": lambda dims: nystrom.Nystrom(dims, nystrom.Options(block=3, landmarks=2)),
    "nystrom_exact_inverse": lambda dims: nystrom.Nystrom(dims, nystrom.Options(block=2, landmarks=3, iterations=0)),
    "nystrom_conv": lambda dims: nystrom.Nystrom(dims, nystrom.Options(block=3, landmarks=1, conv=9)),
    "nystrom_1": lambda dims: nystrom.Nystrom(dims, nystrom.Options(block=1, landmarks=2, iterations=0)),
}
every_mixer = pytest.mark.parametrize("name", BUILDS)


def make(name: str) -> Any:
    mixer: Any = BUILDS[name](DIMS).double()
    if getattr(mixer, "iterations", 1) == 0:
        # Freshly drawn queries and keys give nearly equal landmarks, whose inverse would amplify rounding.
        mixer.project.weight.data[:18] *= 2
    return mixer


def resets() -> Tensor:
    reset = torch.zeros(B, T, dtype=torch.bool)
    for row, starts in zip(reset, STARTS, strict=True):
        row[starts] = True
    return reset


def fresh(mixer: Any, batch: int, dtype: torch.dtype = torch.float64) -> Any:
    """Carried state of a state mixer, or the hidden rows in front of a window mixer."""
    if isinstance(mixer, StateMixer):
        return {key: torch.zeros(batch, *shape, dtype=dtype) for key, shape in mixer.state_shapes().items()}
    return torch.zeros(batch, mixer.horizon, D, dtype=dtype)


def call(
    mixer: Any,
    x: Tensor,
    state: Any,
    before: Tensor,
    reset: Tensor,
    length: Tensor | None = None,
    probe: Probe = SILENT,
) -> tuple[Tensor, Any, Tensor]:
    """Outputs, state and position after one call."""
    p = episode_positions(before, reset)
    tokens = Tokens(p, p, reset.cumsum(1) == 0, before, length)
    if isinstance(state, dict):
        mixed = mixer(x, state, Call(tokens, probe))
        return mixed.out, mixed.state, tokens.last_position()
    rows = torch.cat([state, x], 1)
    return mix_rows(mixer, x, rows, tokens), tokens.newest_rows(rows, mixer.horizon), tokens.last_position()


def mix_rows(mixer: Any, x: Tensor, rows: Tensor, tokens: Tokens) -> Tensor:
    """Outputs of a row mixer for the tokens x, the last of the rows."""
    past = (Group(mixer.keys(rows), Rows()),)
    out: Tensor = mixer(x, mixer.queries_and_keys(x)[0], past, {}, Call(tokens), None).out
    return out


def stream(mixer: Any, x: Tensor, reset: Tensor, split: list[int], state: Any = None) -> tuple[Tensor, Any]:
    state = fresh(mixer, len(x)) if state is None else state
    before, outs = torch.full((len(x),), -1), []
    for part, part_reset in zip(x.split(split, 1), reset.split(split, 1), strict=True):
        out, state, before = call(mixer, part, state, before, part_reset)
        outs.append(out)
    return torch.cat(outs, 1), state


def episodes() -> list[tuple[int, int, int]]:
    """(row, first token, end) of every episode."""
    cut = [(row, [*([0] if starts[0] else []), *starts, T]) for row, starts in enumerate(STARTS)]
    return [(row, first, end) for row, borders in cut for first, end in pairwise(borders)]


def plain(state: Any) -> list[Tensor]:
    return list(state.values()) if isinstance(state, dict) else [state]


TWINS: dict[str, Callable[[Any, Tensor], tuple[Tensor, Any]]] = {
    "linear": linear_twin,
    "performer": performer_twin,
    "average": average_twin,
    "light": light_conv_twin,
    "nystrom": nystrom_twin,
}


@every_mixer
def test_outputs_gradients_and_state_equal_the_twin_of_every_episode(name: str) -> None:
    mixer, twin = make(name), TWINS[name.split("_")[0]]
    x = torch.randn(B, T, D, dtype=torch.float64, requires_grad=True)
    weight = torch.randn(B, T, D, dtype=torch.float64)
    out, state = stream(mixer, x, resets(), [T])
    expected, expected_state = torch.zeros_like(out), {}
    for row, first, end in episodes():
        expected[row, first:end], final = twin(mixer, x[row, first:end])
        expected_state[row] = final  # the last episode of the row stays
    if isinstance(state, dict):
        final_state = {key: torch.stack([expected_state[row][key] for row in range(B)]) for key in state}
        torch.testing.assert_close(state, final_state)
        out_loss, twin_loss = (sum(s.square().sum() for s in each.values()) for each in (state, final_state))
    else:
        out_loss = twin_loss = 0
    wanted = [x, *mixer.parameters()]
    grads = torch.autograd.grad((out * weight).sum() + out_loss, wanted)
    twin_grads = torch.autograd.grad((expected * weight).sum() + twin_loss, wanted)
    # The inverse of a softmax matrix amplifies rounding by its condition, its gradient by the square: up to 1e4 here.
    rtol, atol = (1e-6, 1e-7) if "nystrom" in name else (1e-9, 1e-10)
    torch.testing.assert_close(out, expected, rtol=rtol, atol=atol)
    torch.testing.assert_close(grads, twin_grads, rtol=rtol, atol=atol)
    if name != "light_conv_1":  # the softmax of a single tap is 1 whatever its logit
        assert all(grad.abs().sum() > 0 for grad in grads)


@every_mixer
@pytest.mark.parametrize("split", SPLITS[1:], ids=str)
def test_any_split_of_a_stream_gives_the_same_outputs_and_state(name: str, split: list[int]) -> None:
    mixer, x = make(name), torch.randn(B, T, D, dtype=torch.float64)
    whole, parts = (stream(mixer, x, resets(), each) for each in ([T], split))
    torch.testing.assert_close(parts[0], whole[0], rtol=1e-6, atol=1e-7)  # see the twin test
    torch.testing.assert_close(parts[1], whole[1])


@every_mixer
def test_nothing_flows_from_the_future_or_from_another_episode(name: str) -> None:
    mixer = make(name)
    x = torch.randn(B, T, D, dtype=torch.float64, requires_grad=True)
    noise = fresh(mixer, B)
    noise = {k: torch.randn_like(s) for k, s in noise.items()} if isinstance(noise, dict) else torch.randn_like(noise)
    before = torch.full((B,), 40)
    out, after, _ = call(mixer, x, noise, before, resets())
    for row, t in ((1, 5), (1, 6), (1, 12), (1, 22), (2, 21)):
        start = max(s for s in STARTS[row] if s <= t)
        (grad,) = torch.autograd.grad(out[row, t].sum(), x, retain_graph=True)
        others = torch.ones(B, T, dtype=torch.bool)
        others[row, start : t + 1] = False
        assert grad[others].eq(0).all()
        assert grad[row, t].ne(0).any()
    alone, state = stream(mixer, x[:, 19:].detach(), torch.ones(B, 4, dtype=torch.bool).cumsum(1) == 1, [4])
    torch.testing.assert_close(out[2, 19:], alone[2], rtol=1e-6, atol=1e-7)
    if isinstance(after, dict):
        torch.testing.assert_close({k: s[2] for k, s in after.items()}, {k: s[2] for k, s in state.items()})


@every_mixer
def test_padding_and_other_rows_change_nothing(name: str) -> None:
    mixer, x = make(name), torch.randn(B, T, D, dtype=torch.float64)
    length = torch.tensor([0, 8, 17])
    state = stream(mixer, torch.randn(B, 5, D, dtype=torch.float64), resets()[:, :5], [5])[1]
    before = torch.tensor([4, 4, 1])
    out, after, position = call(mixer, x, state, before, resets(), length)
    for row, count in enumerate(length.tolist()):
        mine = {k: s[row : row + 1] for k, s in state.items()} if isinstance(state, dict) else state[row : row + 1]
        if count == 0:
            expected_state = mine
        else:
            one = slice(row, row + 1)
            expected, expected_state, last = call(mixer, x[one, :count], mine, before[one], resets()[one, :count])
            torch.testing.assert_close(out[one, :count], expected, rtol=1e-6, atol=1e-7)
            assert last.item() == position[row].item()
        for found, wanted in zip(plain(after), plain(expected_state), strict=True):
            torch.testing.assert_close(found[row : row + 1], wanted)


@every_mixer
def test_flops_and_saved_bytes_grow_linearly_with_the_tokens(name: str) -> None:
    mixer = make(name)

    def cost(time: int) -> tuple[int, int]:
        x = torch.randn(1, time, D, dtype=torch.float64, requires_grad=True)
        reset = torch.arange(time)[None] == 0
        storages: dict[int, int] = {}

        def note(saved: Tensor) -> Tensor:
            storages[saved.untyped_storage().data_ptr()] = saved.untyped_storage().nbytes()
            return saved.detach()

        with torch.autograd.graph.saved_tensors_hooks(note, lambda saved: saved):
            out, _ = stream(mixer, x, reset, [time])
        saved_bytes = sum(storages.values())
        with FlopCounterMode(display=False) as counter:
            stream(mixer, x, reset, [time])[0].sum().backward()
        del out
        return counter.get_total_flops(), saved_bytes

    costs = [cost(time) for time in (256, 512, 1024)]
    for small, middle, large in zip(*costs, strict=True):
        # 2 exactly, but for the constant part and the last block, both below 2 % of 256 tokens (3 % for small ones)
        assert (large - middle) / (middle - small) == pytest.approx(2, rel=0.03)


@every_mixer
def test_bfloat16_is_finite_and_near_float32(name: str) -> None:
    mixer, x = BUILDS[name](DIMS), torch.randn(B, T, D)
    exact = stream(mixer, x, resets(), [T], fresh(mixer, B, torch.float32))[0]
    state = fresh(mixer, B, torch.bfloat16)
    if isinstance(state, dict):
        state = {key: each.float() for key, each in state.items()}
    out, after = stream(mixer.bfloat16(), x.bfloat16(), resets(), [T], state)
    assert out.dtype == torch.bfloat16
    if isinstance(after, dict):
        assert all(each.dtype == torch.float32 for each in after.values())
    # bfloat16 has 8 bits: 0.4 % per rounding, a few roundings of numbers of size 1. The pseudo-inverse of rounded
    # matrices amplifies them without a bound worth stating, there only finite numbers are promised.
    assert out.isfinite().all()
    if "nystrom" not in name:
        torch.testing.assert_close(out.float(), exact, rtol=0.1, atol=0.1)


def full_attention(mixer: Any, x: Tensor) -> Tensor:
    q, k, v = heads_of(mixer, x)
    return mixer.out(nn.functional.scaled_dot_product_attention(q, k, v, is_causal=True).transpose(0, 1).flatten(1))


def test_nystrom_with_blocks_of_one_token_is_full_attention() -> None:
    mixer = nystrom.Nystrom(DIMS, nystrom.Options(block=1, landmarks=9, iterations=0)).double()
    # Large projections make the softmax between landmarks close to the identity, hence well conditioned.
    q, k, _ = mixer.project.weight.data.split([12, 6, 10])
    k.normal_(std=2)
    q.copy_(k.view(2, 1, 3, D).expand(2, 2, 3, D).reshape(12, D))
    x = torch.randn(1, 10, D, dtype=torch.float64)
    out, _ = stream(mixer, x, torch.arange(10)[None] == 0, [10])
    torch.testing.assert_close(out[0], full_attention(mixer, x[0]), rtol=1e-8, atol=1e-9)


def test_nystrom_with_one_block_for_everything_is_full_attention() -> None:
    mixer = nystrom.Nystrom(DIMS, nystrom.Options(block=10, landmarks=1)).double()
    x = torch.randn(1, 10, D, dtype=torch.float64)
    out, _ = stream(mixer, x, torch.arange(10)[None] == 0, [10])
    torch.testing.assert_close(out[0], full_attention(mixer, x[0]))


def test_nystrom_iterations_approach_the_pseudo_inverse_of_every_matrix_on_its_own() -> None:
    matrices = torch.randn(7, 5, 5, dtype=torch.float64).softmax(-1)
    exact = landmarks.pseudo_inverse(matrices, 0)
    torch.testing.assert_close(landmarks.pseudo_inverse(matrices, 30), exact, rtol=1e-6, atol=1e-6)
    alone = landmarks.pseudo_inverse(matrices[2:3], 6)
    torch.testing.assert_close(landmarks.pseudo_inverse(matrices, 6)[2:3], alone)


def test_nystrom_sees_exactly_its_horizon() -> None:
    mixer = nystrom.Nystrom(DIMS, nystrom.Options(block=3, landmarks=2)).double()
    x = torch.randn(1, T, D, dtype=torch.float64, requires_grad=True)
    out, _ = stream(mixer, x, torch.arange(T)[None] == 0, [T])
    (grad,) = torch.autograd.grad(out[0, 20].sum(), x)  # last token of its block: it looks back furthest
    seen = grad[0].ne(0).any(-1)
    assert mixer.horizon == 8
    assert seen.tolist() == [12 <= t <= 20 for t in range(T)]


def test_nystrom_needs_no_rows_that_do_not_exist() -> None:
    mixer, x = make("nystrom"), torch.randn(B, T, D, dtype=torch.float64)
    expected, _ = stream(mixer, x, resets(), [T])
    p = episode_positions(torch.full((B,), -1), resets())
    tokens = Tokens(p, p, resets().cumsum(1) == 0, torch.full((B,), -1))
    torch.testing.assert_close(mix_rows(mixer, x, x, tokens), expected)
    late = torch.full((B, 1), 7)  # an older episode whose rows are lost: only the token itself is left to see
    tokens = Tokens(late, late, torch.ones(B, 1, dtype=torch.bool), late[:, 0] - 1)
    alone = mixer.out(torch.stack([heads_of(mixer, row)[2].flatten() for row in x[:, :1]]))
    torch.testing.assert_close(mix_rows(mixer, x[:, :1], x[:, :1], tokens)[:, 0], alone)


def test_performer_error_falls_with_the_square_root_of_the_features() -> None:
    dims = Dims(width=D, heads=4, kv_heads=2, head_dim=3, value_dim=5, memory=0)
    x = torch.randn(1, T, D, dtype=torch.float64)
    reset = torch.arange(T)[None] == 0

    def error(features: int) -> float:
        squares = []
        for seed in range(20):
            torch.manual_seed(5)
            mixer = performer.Performer(dims, performer.Options(features=features, seed=seed)).double()
            mixer.project.weight.data[:18] *= 0.5  # the variance grows with exp(|q' + k'|^2); keep it near 1
            exact = full_attention(mixer, x[0])
            squares.append((stream(mixer, x, reset, [T])[0][0] - exact).square().mean().item())
        return math.sqrt(sum(squares) / len(squares))

    few, many = error(16), error(1024)
    # 64 times the features: error / 8. The mean over 20 draws leaves about 20 % of doubt, so between 5 and 13.
    assert 5 < few / many < 13


def test_performer_kernel_has_the_error_of_positive_features() -> None:
    generator = torch.Generator().manual_seed(1)
    q, k = (0.7 * torch.randn(4, generator=generator, dtype=torch.float64) for _ in range(2))
    scaled_q, scaled_k = q / 4**0.25, k / 4**0.25
    kernel = (scaled_q @ scaled_k).exp()
    m = 4
    estimates = []
    for _ in range(2000):
        w = performer.orthogonal_directions(m, 4, generator)
        ratio = performer.query_features(q, w) @ performer.key_features(k, w)
        undo = (w @ scaled_q).max() - scaled_q @ scaled_q / 2  # the factor that query_features leaves out
        estimates.append(ratio * undo.exp() / m)
    found = torch.stack(estimates)
    size = (scaled_q + scaled_k).square().sum().exp()
    independent = size * kernel**2 * (1 - 1 / size) / m
    deviation = found.std() / math.sqrt(len(found))
    assert abs(found.mean() - kernel) < 4 * deviation  # unbiased; 4 sigma
    assert found.var() < independent  # orthogonal rows do better than independent ones


def test_performer_directions_are_orthogonal_in_blocks_fixed_and_saved() -> None:
    mixer = performer.Performer(DIMS, performer.Options(features=7, seed=3))
    for block in mixer.directions.split(3):
        gram = block @ block.T
        torch.testing.assert_close(gram, gram.diagonal().diag(), atol=1e-5, rtol=0)  # float32
    assert torch.equal(mixer.directions, performer.Performer(DIMS, performer.Options(features=7, seed=3)).directions)
    assert "directions" in mixer.state_dict()
    other_layer = Dims(**{**vars(DIMS), "layer": 1})
    assert not torch.equal(
        mixer.directions, performer.Performer(other_layer, performer.Options(features=7, seed=3)).directions
    )
    default = performer.Performer(
        Dims(width=64, heads=1, kv_heads=1, head_dim=64, value_dim=64, memory=0), performer.Options()
    )
    assert default.directions.shape == (266, 64)


def test_performer_keys_along_a_long_direction_stay_within_bounds() -> None:
    directions = torch.full((1, 4), 10.0)  # |w|^2 / 2 = 200: the feature of k' = w would be exp(200)
    keys = torch.stack([directions[0], 0.1 * directions[0], -directions[0]]) * 4**0.25
    features = performer.key_features(keys, directions)
    torch.testing.assert_close(features.log(), torch.tensor([[60.0], [38.0], [-60.0]]))  # of 200, 38 and -600
    single = performer.key_features(keys[1:], directions)
    assert torch.equal(single, features[1:])  # the bound is no maximum over keys


@pytest.mark.parametrize("scale", [1e-3, 30.0, 1e4])
def test_performer_stays_finite_for_queries_and_keys_of_any_size(scale: float) -> None:
    mixer = performer.Performer(DIMS, performer.Options(features=7))
    mixer.project.weight.data *= scale
    x = torch.randn(B, T, D, requires_grad=True)
    out, _ = stream(mixer, x, resets(), [T], fresh(mixer, B, torch.float32))
    assert out.isfinite().all()
    (grad,) = torch.autograd.grad(out.sum(), x)
    assert grad.isfinite().all()


def test_linear_and_average_of_a_constant_stream_are_constant() -> None:
    x = torch.randn(1, 1, D, dtype=torch.float64).expand(1, T, D)
    for name in ("linear", "performer", "average", "light_conv"):
        out, _ = stream(make(name), x, torch.arange(T)[None] == 0, [T])
        # linear attention divides by the sum of the weights plus 1e-6
        torch.testing.assert_close(out, out[:, :1].expand_as(out), rtol=1e-5, atol=1e-6)


def test_record_tells_the_mean_lag_and_the_weight_of_the_past() -> None:
    record = Record()
    conv = make("light_conv")
    conv.kernel.data.zero_()
    x, reset = torch.randn(1, 5, D, dtype=torch.float64), torch.arange(5)[None] == 0
    before, length = torch.tensor([-1]), torch.tensor([4])
    call(conv, x, fresh(conv, 1), before, reset, length, probe=Probe(record, "layer0"))
    # equal weights over 1, 2, 3, 4 taps: mean lags 0, 0.5, 1, 1.5; the fifth token is padding
    assert record.metrics["layer0/lookback"].item() == pytest.approx(0.75)
    mixer = make("average")
    nn.init.zeros_(mixer.gates.weight)
    nn.init.zeros_(mixer.gates.bias)
    call(mixer, x, fresh(mixer, 1), before, reset, length, probe=Probe(record, "layer1"))
    assert record.metrics["layer1/past_gate"].item() == 0.5


@pytest.mark.parametrize(
    ("build", "message"),
    [
        (
            lambda: light_conv.LightConv(Dims(10, 4, 4, 2, 2, 0), convolution.Options()),
            r"heads \(4\) to divide width \(10\)",
        ),
        (
            lambda: nystrom.Nystrom(DIMS, nystrom.Options(block=8, landmarks=4)),
            "39 tokens back, the memory holds 30; raise memory to 39",
        ),
        (
            lambda: nystrom.Nystrom(Dims(D, 4, 2, 3, 5, 4, tokens_per_step=3), nystrom.Options(block=5, landmarks=3)),
            "raise memory to 6",
        ),
    ],
)
def test_options_that_cannot_work_are_refused_with_the_way_out(build: Callable[[], Any], message: str) -> None:
    with pytest.raises(ConfigError, match=message):
        build()


@pytest.mark.parametrize("module", [linear, performer, average, light_conv, nystrom])
def test_catalogue_rows_build_their_own_example(module: Any) -> None:
    choice = Choice.parse(module.SPEC.example["mixer"], "mixer", {module.SPEC.name: module.SPEC})
    choice.build(Dims(D, 4, 4, 3, 3, module.SPEC.example.get("memory", 0)))
