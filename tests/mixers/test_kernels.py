"""Facts about kernel attentions that the contract does not state: what they estimate, forget, store and cost."""

import math

import pytest
import torch
from torch.nn import functional as F

from rltransformers.core.errors import ConfigError
from rltransformers.core.record import Probe, Record
from rltransformers.functional.call import Call, Tokens
from rltransformers.functional.delta import delta_sums
from rltransformers.functional.recurrences import kernel_attention
from rltransformers.mixers import clustered, fast_weight, luna, performer, rfa, set_transformer
from rltransformers.mixers.interface import Dims
from tests.mixers.episodes import DIMS, T, fresh, heads_of, one_episode, run

pytestmark = pytest.mark.usefixtures("double")


def test_random_features_approach_softmax_of_unit_queries_and_keys() -> None:
    x = torch.randn(1, T, 12)

    def error(directions: int) -> float:
        squares = []
        for seed in range(20):
            torch.manual_seed(5)
            mixer = rfa.RandomFeatureAttention(DIMS, rfa.Options(directions=directions, sigma=1.7, seed=seed))
            q, k, v = heads_of(mixer, x)
            q, k = F.normalize(q, dim=-1), F.normalize(k, dim=-1)
            exact = F.scaled_dot_product_attention(q, k, v, is_causal=True, scale=1.7**-2)
            squares.append((run(mixer, x) - mixer.out(exact.transpose(1, 2).flatten(2))).square().mean().item())
        return math.sqrt(sum(squares) / len(squares))

    # 64 times the directions: error / 8. The mean over 20 draws leaves about 20 % of doubt, so between 5 and 13.
    assert 5 < error(32) / error(2048) < 13


def test_a_gate_of_n_by_n_plus_1_is_no_gate() -> None:
    q, k = torch.rand(1, 3, T, 4), torch.rand(1, 3, T, 4)
    v = torch.randn(1, 3, T, 5)
    start = {"sum": torch.zeros(1, 3, 4, 5), "norm": torch.zeros(1, 3, 4)}
    n = torch.arange(T)
    decay = (n / (n + 1)).clamp(min=1e-9).log().expand(1, 3, T)  # nothing is kept from before the first token
    plain, sums = kernel_attention(q, k, v, start, one_episode())
    gated, means = kernel_attention(q, k / (n + 1)[:, None], v, start, one_episode(), log_decay=decay)
    torch.testing.assert_close(gated, plain)
    torch.testing.assert_close({name: T * value for name, value in means.items()}, sums)


def test_the_kernel_of_a_token_with_itself_is_one_and_others_are_unbiased() -> None:
    q, k = (F.normalize(torch.randn(4), dim=0) for _ in range(2))
    expected = torch.exp(-(q - k).square().sum() / (2 * 0.8**2))
    found = []
    for seed in range(400):
        w = rfa.RandomFeatureAttention(
            Dims(4, 1, 1, 4, 4, 1), rfa.Options(directions=3, sigma=0.8, seed=seed)
        ).directions
        of_q, of_k = (rfa.fourier_features(each.view(1, 1, 1, 4), w).flatten() for each in (3 * q, 0.2 * k))
        torch.testing.assert_close(of_q @ of_q, torch.tensor(1.0))
        found.append(of_q @ of_k)
    estimates = torch.stack(found)
    assert abs(estimates.mean() - expected) < 4 * estimates.std() / math.sqrt(len(estimates))  # 4 sigma


def test_what_a_denominator_near_zero_divides_stays_bounded() -> None:
    mixer = rfa.RandomFeatureAttention(DIMS, rfa.Options(directions=1, sigma=0.2, floor=0.5))
    x = torch.randn(5, T, 12)
    q, k, v = heads_of(mixer, x)
    phi = [f(each) for f, each in ((mixer.of_queries, q), (mixer.of_keys, k[:, ::2]))]
    weights = (phi[0] @ phi[1].repeat_interleave(2, 1).transpose(-1, -2)).tril()
    assert (weights.sum(-1) < 0).any()
    tokens = torch.arange(1.0, T + 1)[:, None]
    expected = weights @ v / torch.maximum(weights.sum(-1, keepdim=True), 0.5 * tokens)
    torch.testing.assert_close(run(mixer, x), mixer.out(expected.transpose(1, 2).flatten(2)))


def test_outputs_of_a_narrow_kernel_do_not_grow_with_the_episode() -> None:
    mixer = rfa.RandomFeatureAttention(DIMS, rfa.Options(directions=2, sigma=0.1, floor=0.1))
    x = torch.randn(1, 5000, 12)
    phi = mixer.of_queries(heads_of(mixer, x)[0])
    largest = phi.norm(dim=-1).amax() * heads_of(mixer, x)[2].norm(dim=-1).amax() / 0.1
    q, k, v = heads_of(mixer, x)
    out, _ = mixer.attend(
        mixer.of_queries(q),
        mixer.of_keys(k[:, ::2]),
        v[:, ::2],
        fresh(mixer),
        one_episode(5000),
    )
    assert bool((out.norm(dim=-1) <= largest).all())


@pytest.mark.parametrize("head_dim", [64, 192, 512])
def test_random_features_of_wide_heads_tell_keys_apart(head_dim: int) -> None:
    """Weights of keys of length sqrt(Dh) differ, in float32, by more than rounding; their logarithms by about 1."""
    directions = performer.orthogonal_directions(256, head_dim, torch.Generator().manual_seed(0)).float()
    q, k = torch.randn(2, 40, head_dim, dtype=torch.float32)
    k.requires_grad_()
    weights = performer.query_features(q, directions) @ performer.key_features(k, directions).T
    weights = weights / weights.sum(-1, keepdim=True)
    assert bool(weights.isfinite().all()) and float(weights.detach().log().std(-1).mean()) > 0.3
    (gradient,) = torch.autograd.grad((weights @ torch.randn(40, 3, dtype=torch.float32)).square().sum(), k)
    assert float(gradient.abs().amax(-1).gt(1e-8).float().mean()) > 0.5


def test_directions_are_fixed_saved_and_differ_by_layer_and_head() -> None:
    first, again = (rfa.RandomFeatureAttention(DIMS, rfa.Options(seed=3)) for _ in range(2))
    other = rfa.RandomFeatureAttention(Dims(**{**vars(DIMS), "layer": 1}), rfa.Options(seed=3))
    assert torch.equal(first.directions, again.directions)
    assert "directions" in first.state_dict()
    assert first.directions.ne(other.directions).all()
    assert first.directions[0].ne(first.directions[1]).all()


def test_the_record_tells_how_much_a_gate_keeps() -> None:
    mixer, record = rfa.RandomFeatureAttention(DIMS, rfa.Options(gate=True)), Record()
    assert mixer.gate is not None
    torch.nn.init.zeros_(mixer.gate.weight)
    torch.nn.init.constant_(mixer.gate.bias, math.log(3))
    run(mixer, torch.randn(2, 4, 12), Probe(record, "layer0"))
    assert record.metrics["layer0/kept"].item() == pytest.approx(0.75)


def test_under_orthonormal_keys_fast_weights_hold_the_latest_value() -> None:
    basis = torch.linalg.qr(torch.randn(4, 4)).Q
    written = torch.tensor([2, 0, 2, 1, 0, 2, 1])
    v = torch.randn(1, 1, len(written), 5)
    for asked in range(4):
        query = basis[asked].expand(1, 1, len(written), 4)
        key, rate = basis[written][None, None], torch.ones(1, 1, len(written))
        out, _ = delta_sums(query, key, v, rate, torch.zeros(1, 1, 4, 5), one_episode(len(written)))
        for t in range(len(written)):
            places = [s for s in range(t + 1) if written[s] == asked]
            expected = v[0, 0, places[-1]] if places else torch.zeros(5)
            torch.testing.assert_close(out[0, 0, t], expected)


def test_a_rate_of_zero_writes_nothing() -> None:
    q, k, v, start = torch.rand(1, 2, T, 4), torch.rand(1, 2, T, 4), torch.randn(1, 2, T, 5), torch.randn(1, 2, 4, 5)
    p = torch.arange(7, 7 + T)[None]
    tokens = Tokens(p, p, torch.ones(1, T, dtype=torch.bool), torch.tensor([6]))
    out, after = delta_sums(q, k, v, torch.zeros(1, 2, T), start, tokens)
    torch.testing.assert_close(out, q @ start)
    torch.testing.assert_close(after, start)


def test_summing_fast_weights_are_linear_attention_without_its_denominator() -> None:
    mixer = fast_weight.FastWeights(DIMS, fast_weight.Options(rule="sum"))
    x = torch.randn(2, T, 12)
    q, k, v = heads_of(mixer, x)
    phi_q, phi_k = (F.elu(each) + 1 for each in (q, k))
    weights = (phi_q / phi_q.sum(-1, keepdim=True)) @ (phi_k / phi_k.sum(-1, keepdim=True)).transpose(-1, -2)
    torch.testing.assert_close(run(mixer, x), mixer.out((weights.tril() @ v).transpose(1, 2).flatten(2)))


def test_products_of_rectified_numbers_by_hand() -> None:
    # r = [1, 0, 0, 2]; rolled by one place [2, 1, 0, 0], by two [0, 2, 1, 0], by three [0, 0, 2, 1]
    features = fast_weight.fast_weight_features(torch.tensor([1.0, -2.0]), 3)
    torch.testing.assert_close(features, torch.tensor([2.0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 2.0]) / 4)
    assert fast_weight.fast_weight_features(torch.zeros(2), 3).eq(0).all()
    with pytest.raises(ConfigError, match="set nu to at most 5"):
        fast_weight.FastWeights(DIMS, fast_weight.Options(nu=6))


def test_the_record_tells_the_rate_of_writing() -> None:
    mixer, record = fast_weight.FastWeights(DIMS, fast_weight.Options()), Record()
    assert mixer.rate is not None
    torch.nn.init.zeros_(mixer.rate.weight)
    run(mixer, torch.randn(2, 4, 12), Probe(record, "layer0"))
    assert record.metrics["layer0/rate"].item() == 0.5


def test_induced_attention_is_the_attention_of_two_blocks() -> None:
    """For the last token: points attend to all tokens, then the token to the points."""
    mixer = set_transformer.InducedAttention(DIMS, set_transformer.Options(points=6))
    x = torch.randn(3, T, 12)
    q, k, v = heads_of(mixer, x)
    points = mixer.points.repeat_interleave(2, 0).expand(3, -1, -1, -1)
    summaries = F.scaled_dot_product_attention(points, k, v)
    keys = summaries @ mixer.of_summaries.transpose(-1, -2)
    last = F.scaled_dot_product_attention(q[:, :, -1:], keys, summaries)
    torch.testing.assert_close(run(mixer, x)[:, -1], mixer.out(last.transpose(1, 2).flatten(2))[:, 0])


@pytest.mark.parametrize("scale", [1e-3, 30.0, 1e4])
def test_points_stay_finite_for_keys_of_any_size(scale: float) -> None:
    torch.set_default_dtype(torch.float32)
    mixer = set_transformer.InducedAttention(DIMS, set_transformer.Options(points=6))
    mixer.project.weight.data *= scale
    x = torch.randn(3, 200, 12, requires_grad=True)
    out = run(mixer, x)
    gradients = torch.autograd.grad(out.square().sum(), [x, *mixer.parameters()])
    assert all(each.isfinite().all() for each in (out, *gradients))


@pytest.mark.parametrize("level", [-37.0, 37.0])
def test_gradients_of_a_running_softmax_are_precise_near_the_bound_of_its_exponents(level: float) -> None:
    """A constant that all logits have in common cancels, in float32 too."""
    found = []
    for shift in (0.0, level):
        torch.set_default_dtype(torch.float32)
        torch.manual_seed(1)
        mixer = set_transformer.InducedAttention(DIMS, set_transformer.Options(points=6))
        with torch.no_grad():
            # keys and points get a coordinate whose product is the shift for all tokens
            mixer.project.weight.data.view(-1, 12)[12:18:3, :] = 0
            mixer.points[..., 0] = shift * math.sqrt(3)
        mixer.project.bias = torch.nn.Parameter(torch.zeros(28))
        with torch.no_grad():
            mixer.project.bias[12:18:3] = 1
        x = torch.randn(2, 40, 12, requires_grad=True)
        out = run(mixer, x)
        found.append([out, *torch.autograd.grad(out.square().sum(), x)])
    torch.testing.assert_close(found[1], found[0], rtol=1e-3, atol=1e-4)  # exponents near 37 keep 5 digits


def test_packing_weights_are_one_at_zero_and_those_of_the_paper() -> None:
    x = torch.tensor([[-1.0, 0.0, 3.0]])
    torch.testing.assert_close(luna.packing_weights(x, "elu"), torch.tensor([[math.exp(-1), 1, 4]]))
    expected = torch.tensor([[math.log2(1.5), 1, math.log2(9)]])
    torch.testing.assert_close(luna.packing_weights(x, "softplus"), expected)


def test_a_codebook_that_holds_every_query_gives_full_attention() -> None:
    mixer = clustered.Clustered(DIMS, clustered.Options(clusters=T + 2, top=0))
    x = torch.randn(1, T, 12)
    q, k, v = heads_of(mixer, x)
    mixer.codebook[:, 1 : T + 1] = q[0].flip(1)
    full = F.scaled_dot_product_attention(q, k, v, is_causal=True)
    torch.testing.assert_close(run(mixer, x), mixer.out(full.transpose(1, 2).flatten(2)))


def test_with_one_codeword_at_zero_all_values_weigh_the_same() -> None:
    mixer = clustered.Clustered(DIMS, clustered.Options(clusters=1, top=0))
    mixer.codebook.zero_()
    x = torch.randn(2, T, 12)
    mean = heads_of(mixer, x)[2].cumsum(2) / torch.arange(1, T + 1)[:, None]
    torch.testing.assert_close(run(mixer, x), mixer.out(mean.transpose(1, 2).flatten(2)))


def test_codewords_move_in_maintain_only_towards_the_queries_of_training() -> None:
    mixer = clustered.Clustered(DIMS, clustered.Options(clusters=9, top=2, decay=0.75)).train()
    before, x = mixer.codebook.clone(), torch.randn(2, 5, 12)
    with torch.no_grad():
        run(mixer, x)
    mixer.eval()
    run(mixer, x)
    mixer.maintain()
    assert torch.equal(mixer.codebook, before)
    tokens = one_episode(5, 2)
    padded = Tokens(tokens.p, tokens.p, tokens.live, tokens.before, torch.tensor([5, 3]))
    mixer.train()(x, fresh(mixer, 2), Call(padded))
    assert torch.equal(mixer.codebook, before)
    mixer.maintain()
    q, moved = heads_of(mixer, x)[0], 0
    for head in range(4):
        seen = [*q[0, head], *q[1, head, :3]]
        nearest = [int((before[head] - row).square().sum(-1).argmin()) for row in seen]
        for word in range(9):
            members = [row for row, own in zip(seen, nearest, strict=True) if own == word]
            expected = before[head, word]
            if members:
                expected, moved = 0.75 * expected + 0.25 * torch.stack(members).mean(0), moved + 1
            torch.testing.assert_close(mixer.codebook[head, word], expected)
    assert 4 < moved < 32
    after = mixer.codebook.clone()
    mixer.maintain()
    assert torch.equal(mixer.codebook, after)


def test_queries_learn_from_the_keys_that_weigh_most_only() -> None:
    x = torch.randn(2, T, 12)
    for top, learns in ((0, False), (3, True)):
        mixer = clustered.Clustered(DIMS, clustered.Options(clusters=4, top=top))
        run(mixer, x).square().sum().backward()
        assert mixer.project.weight.grad is not None
        assert mixer.project.weight.grad[:12].ne(0).any() == learns
        assert mixer.project.weight.grad[12:].ne(0).any()


@pytest.mark.parametrize("scale", [1e-3, 30.0, 1e4])
def test_codewords_stay_finite_for_queries_and_keys_of_any_size(scale: float) -> None:
    torch.set_default_dtype(torch.float32)
    mixer = clustered.Clustered(DIMS, clustered.Options(clusters=4, top=3))
    mixer.project.weight.data *= scale
    x = torch.randn(3, 200, 12, requires_grad=True)
    out = run(mixer, x)
    gradients = torch.autograd.grad(out.square().sum(), [x, *mixer.parameters()])
    assert all(each.isfinite().all() for each in (out, *gradients))


def test_the_record_tells_how_far_queries_lie_from_their_codewords() -> None:
    mixer, record = clustered.Clustered(DIMS, clustered.Options(clusters=1)), Record()
    mixer.codebook.zero_()
    x = torch.randn(2, 4, 12)
    run(mixer, x, Probe(record, "layer0"))
    expected = heads_of(mixer, x)[0].norm(dim=-1).mean()
    torch.testing.assert_close(record.metrics["layer0/distance"], expected.detach())
