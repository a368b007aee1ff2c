"""Priors beyond the laws: numbers that can be worked out by hand."""

import pytest
import torch
from torch import Tensor

from rltransformers.attention.priors import camtl, forget, gaussian_predicted
from rltransformers.backbone import Backbone
from rltransformers.functional.call import Tokens
from rltransformers.laws import perturbed
from rltransformers.mixers.interface import Dims
from tests.attention.rows import config_of


def places(*p: int) -> Tokens:
    """One stream of one episode."""
    place = torch.tensor([p])
    return Tokens(place, place, place < 0, torch.tensor([-1]))


def test_a_narrow_predicted_gaussian_leaves_the_token_at_its_center() -> None:
    distance = torch.arange(9)
    scores = gaussian_predicted.gaussian(
        torch.tensor([[[0.2, 3.4, 7.9]]]), torch.tensor([[[1e-3, 0.0, 1.0]]]), distance
    )
    assert scores.argmax(-1).tolist() == [[[0, 3, 8]]]
    torch.testing.assert_close(scores[0, 0, 1, 3:5], torch.tensor([-0.5 * 0.8**2, -0.5 * 1.2**2]))


def test_a_query_looks_back_by_its_share_of_the_visible_past() -> None:
    prior = gaussian_predicted.PredictedGaussian(
        Dims(2, heads=1, kv_heads=1, head_dim=2, value_dim=2, memory=6), gaussian_predicted.Options()
    )
    assert prior.width is not None
    for value, number in ((prior.center, 0.0), (prior.width, 0.0)):
        value.data.fill_(number)  # both shares are one half
    found = prior.of_queries(torch.randn(1, 1, 3, 2), torch.arange(8), places(4, 6, 60))
    # past 4: center 2, window 2, sd 1; past 6, and no more: center 3, window 3, sd 1.5
    torch.testing.assert_close(found[0, 0, 0, :4], torch.tensor([-2.0, -0.5, 0.0, -0.5]))
    torch.testing.assert_close(found[0, 0, 1, 0], torch.tensor(-2.0))
    assert torch.equal(found[0, 0, 1], found[0, 0, 2])


def test_a_task_shifts_the_places_of_a_block_alike_in_all_blocks() -> None:
    dims = Dims(5, heads=1, kv_heads=1, head_dim=5, value_dim=5, memory=6)
    prior = camtl.ConditionalBlocks(dims, camtl.Options(tasks=2, task=1, size=4, blocks=3, block=3))
    prior.matrices.data.zero_()
    found = prior.of_queries(torch.randn(1, 1, 2, 5), torch.arange(3), places(2, 5))[0, 0]
    assert torch.equal(found[0], found[1])
    assert len(found[0].unique()) == 3
    torch.testing.assert_close(found[0].flip(0), prior.film(prior.vectors[1])[3:])


def test_lazy_layers_have_values_only_and_the_weights_of_the_first_of_their_group() -> None:
    config = config_of({"prior": {"name": "lazyformer", "group": 2}, "layers": 4, "position": "none"})
    backbone = perturbed(config)
    sizes = [value.shape[0] for name, value in backbone.named_parameters() if name.endswith("mixer.project.weight")]
    assert sizes == [45, 15, 45, 15]
    shapes = {name: value.shape[-1] for name, value in backbone.initial_state(1, cached="only").tensors.items()}
    assert [shapes[f"layer{index}.key_ring"] for index in range(4)] == [30, 15, 30, 15]
    parameters, _ = config.numbers()
    found = sum(value.numel() for name, value in backbone.named_parameters() if "norm" not in name)
    assert parameters == sum(value.numel() for value in Backbone(config).parameters() if value.dim() > 0) >= found


def test_a_token_that_looks_at_itself_alone_does_so_in_lazy_layers_too() -> None:
    backbone = perturbed(config_of({"prior": "lazyformer", "pattern": {"name": "band", "window": 1}, "ff": "none"}))
    x = torch.randn(1, 6, 15)
    changed = x.clone()
    changed[:, 2] += 1
    same = (backbone(changed)[0] == backbone(x)[0]).all(-1)[0]
    assert same.tolist() == [True, True, False, True, True, True]


def sums(log_f: Tensor, before: Tensor) -> Tensor:
    """What rows have lost, added up token by token in float64."""
    streams, time, heads = log_f.shape
    found = torch.zeros(streams, time, heads, before.shape[-1] + 2, dtype=torch.float64)
    for t in range(time):
        for d in range(1, found.shape[-1]):
            found[:, t, :, d] = log_f[:, max(0, t - d + 1) : t + 1].double().sum(1)
            if d > t + 1:
                found[:, t, :, d] += before[..., d - t - 2].double()
    return found


@pytest.mark.parametrize("time", [1, 3, 5, 8, 33])
@pytest.mark.parametrize("rows", [0, 1, 6, 21])
def test_rows_lose_what_the_tokens_after_them_take(time: int, rows: int) -> None:
    log_f, before = -torch.rand(2, time, 3, dtype=torch.float64), -torch.rand(2, 3, rows, dtype=torch.float64)
    torch.testing.assert_close(forget.lost_by_distance(log_f, before), sums(log_f, before), rtol=1e-13, atol=1e-13)


def test_what_a_row_has_lost_keeps_its_digits_in_long_calls() -> None:
    log_f = -torch.rand(1, 5000, 1) * torch.tensor([1e-4, 300.0])[torch.arange(5000) % 1000 // 999][:, None]
    found, expected = forget.lost_by_distance(log_f, torch.zeros(1, 1, 40)), sums(log_f, torch.zeros(1, 1, 40))
    assert float(((found - expected) / expected.clamp(max=-1e-9)).abs().max()) < 1e-6


@pytest.mark.parametrize("number", [0.0, -1e-30, -1e4])
def test_gates_that_are_open_or_shut_leave_finite_gradients(number: float) -> None:
    log_f = torch.full((1, 70, 2), number, requires_grad=True)
    found = forget.lost_by_distance(log_f, torch.full((1, 2, 30), number))
    (gradient,) = torch.autograd.grad(found.sum(), log_f)
    assert found.isfinite().all() and gradient.isfinite().all()
    assert float(found[0, -1, 0, -1].detach()) == pytest.approx(31 * number)


def test_layers_without_a_share_of_their_own_read_the_values_of_the_first() -> None:
    """Also for tokens that a memory holds: two calls of one episode."""
    backbone = perturbed(config_of({"prior": "value_residual", "layers": 3, "heads": 3, "memory": 4}))
    mixers = [backbone.get_submodule(f"layers.{index}.mixing.mixer") for index in range(3)]
    x = torch.randn(2, 9, 15)

    def outputs() -> Tensor:
        start, state = backbone(x[:, :5])
        return torch.cat([start, backbone(x[:, 5:], state)[0]], 1)

    def other_values(*layers: int) -> Tensor:
        weights = [mixers[layer].get_parameter("project.weight") for layer in layers]
        for weight in weights:
            weight.data[-15:] *= -1.0
        found = outputs()
        for weight in weights:
            weight.data[-15:] *= -1.0
        return found

    with torch.no_grad():
        assert not torch.allclose(other_values(1, 2), outputs())
        for mixer in mixers[1:]:
            mixer.get_parameter("prior.own").fill_(0.0)
            mixer.get_parameter("prior.first").fill_(1.0)
        assert torch.equal(other_values(1, 2), outputs())
        assert not torch.allclose(other_values(0), outputs())
