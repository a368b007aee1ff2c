"""What head mechanisms do, by numbers and laws of their papers."""

import math
from collections.abc import Iterator
from typing import Any

import pytest
import torch
from torch import Tensor

from rltransformers.attention.heads.capsule_dynamic import dynamic_routing, squash
from rltransformers.attention.heads.capsule_em import em_routing
from rltransformers.attention.heads.collaborative import slices
from rltransformers.attention.heads.differential import Differential, Options
from rltransformers.attention.heads.mla import Latent
from rltransformers.backbone import PLAIN, Backbone, BackboneConfig
from rltransformers.core.errors import ConfigError
from rltransformers.laws import perturbed
from rltransformers.mixers.interface import Dims

VOTES = (2, 3, 5, 4, 6)  # streams, tokens, heads, capsules, width of a capsule


@pytest.fixture(autouse=True)
def double() -> Iterator[None]:
    torch.set_default_dtype(torch.float64)
    torch.manual_seed(0)
    yield
    torch.set_default_dtype(torch.float32)


def test_one_iteration_is_the_squashed_mean_of_the_votes() -> None:
    votes = torch.randn(VOTES)
    torch.testing.assert_close(dynamic_routing(votes, 1), squash(votes.sum(2) / 4))


def test_capsules_are_shorter_than_one() -> None:
    votes = 30 * torch.randn(VOTES)
    lengths = dynamic_routing(votes, 3).norm(dim=-1)
    assert (lengths < 1).all() and lengths.max() > 0.9
    small = squash(torch.tensor([0.3, 0.4]))  # 0.25 / 1.25 of a unit vector
    torch.testing.assert_close(small, 0.2 * torch.tensor([0.6, 0.8]), rtol=0, atol=1e-7)


def test_a_capsule_of_length_nothing_has_a_gradient() -> None:
    votes = torch.zeros(VOTES, requires_grad=True)
    found = dynamic_routing(votes, 3)
    (gradient,) = torch.autograd.grad(found.sum(), votes)
    assert found.eq(0).all() and gradient.isfinite().all()


def test_routing_sends_votes_where_most_heads_agree() -> None:
    """Four heads agree about the first capsule and one does not; its vote has less weight than in the mean."""
    votes = torch.zeros(1, 1, 5, 2, 3)
    votes[..., :4, 0, 0], votes[..., 4, 0, 1] = 2.0, 2.0
    one, three = dynamic_routing(votes, 1)[0, 0, 0], dynamic_routing(votes, 3)[0, 0, 0]
    assert three[1] / three[0] < 0.8 * one[1] / one[0]


def test_votes_that_agree_leave_a_gaussian_around_them() -> None:
    votes = torch.randn(VOTES)[:, :, :1].expand(VOTES)
    capsules, shares = em_routing(votes, torch.zeros(4), torch.zeros(4), 3)
    assert capsules.isfinite().all() and shares.isfinite().all()
    direction = torch.nn.functional.cosine_similarity(capsules, votes[:, :, 0], dim=-1)
    torch.testing.assert_close(direction, torch.ones_like(direction))


def test_the_shares_of_a_head_in_capsules_sum_to_one() -> None:
    _, shares = em_routing(torch.randn(VOTES), torch.randn(4), torch.randn(4), 2)
    torch.testing.assert_close(shares.sum(-1), torch.ones(VOTES[:3]))


def test_slices_give_every_channel_to_one_head() -> None:
    found = slices(3, 8)
    assert found.sum(0).eq(1).all()
    assert sorted(found.sum(1).tolist()) == [2, 3, 3]


@pytest.mark.parametrize("width", [4, 12])
def test_collaborative_heads_keep_one_key_of_the_width_that_is_asked_for(width: int) -> None:
    heads = {"name": "collaborative", "width": width}
    sizes = {"width": 12, "heads": 4, "layers": 1, "memory": 5, "position": "none"}
    backbone = Backbone(BackboneConfig(**{**PLAIN, **sizes, "head_mixing": heads}))
    state = backbone.initial_state(2, cached=True).tensors
    assert state["layer0.key_ring"].shape == (2, 6, width + 12)


def differential(layer: int = 0, heads: int = 8, kv_heads: int = 8) -> Differential:
    """With heads of values that are six wide in pairs."""
    sizes = Dims(12, heads, kv_heads, head_dim=3, value_dim=6, memory=4, layer=layer)
    return Differential(sizes, Options())


def test_what_both_heads_of_a_pair_read_alike_is_taken_off() -> None:
    """With a factor of 1 nothing of it is left, whatever else they read."""
    module = differential()
    module.keys.data.zero_()
    module.queries.data[0], module.keys.data[0] = 1.0, math.log(2 - module.initial) / 3
    torch.testing.assert_close(module.factor(), torch.tensor(1.0))
    own, common = torch.randn(2, 5, 4, 1, 6), 1e3 * torch.randn(2, 5, 4, 1, 6)
    pairs = torch.cat([own, torch.zeros_like(own)], -2)
    torch.testing.assert_close(module((pairs + common).flatten(2)), module(pairs.flatten(2)), rtol=1e-9, atol=1e-9)


def test_the_factor_starts_lower_in_the_first_layers() -> None:
    found = [differential(layer).initial for layer in range(4)]
    assert found == sorted(found) and found[0] == pytest.approx(0.2) and found[3] == pytest.approx(0.8 - 0.6 * 0.40657)


def test_heads_without_a_partner_are_refused() -> None:
    with pytest.raises(ConfigError, match=r"heads \(3\) is odd: set heads to \d+, or head_mixing"):
        differential(heads=3, kv_heads=3)
    with pytest.raises(ConfigError, match=r"kv_heads \(1\) is odd: set kv_heads to \d+, or head_mixing"):
        differential(kv_heads=1)


def of_latents(**settings: Any) -> Backbone:
    """Heads of a latent of 16 numbers beside a key of 4 that turns, in float64."""
    heads = {"name": "mla", "latent": 16, "turned": 4}
    sizes = {"width": 24, "heads": 4, "layers": 2, "memory": 11, "position": "rope"}
    return perturbed(BackboneConfig(**{**PLAIN, **sizes, "head_mixing": heads, **settings}))


@pytest.mark.parametrize("position", ["rope", "alibi", "trxl"])
@pytest.mark.parametrize("mixer", ["softmax", {"name": "softmax", "softcap": 3.0, "sink_logit": True}])
def test_a_step_reads_latents_as_they_are(position: str, mixer: Any, monkeypatch: pytest.MonkeyPatch) -> None:
    """No step makes a key or a value, and its numbers are those of the keys and values of a long call."""
    backbone = of_latents(position=position, mixer=mixer)
    layers = [backbone.get_submodule(f"layers.{index}.mixing.mixer") for index in range(2)]
    x = torch.randn(3, 30, 24)
    monkeypatch.setattr(layers[0], "few", 0)
    monkeypatch.setattr(layers[1], "few", 0)
    with torch.no_grad():
        expected, _ = backbone(x)
    monkeypatch.undo()
    assert [layer.few for layer in layers] == [16 * 12 // (2 * 16 - 12)] * 2

    def refuse(self: Latent, rows: Tensor) -> None:
        raise AssertionError("keys and values are made")

    monkeypatch.setattr(Latent, "split", refuse)
    for time in (1, 2, 9):
        state = backbone.initial_state(3, cached="only")
        outputs = []
        with torch.no_grad():
            for part in x.split(time, 1):
                out, state = backbone(part, state)
                outputs.append(out)
        torch.testing.assert_close(torch.cat(outputs, 1), expected, rtol=1e-12, atol=1e-12)
    with pytest.raises(AssertionError, match="are made"):
        backbone(x)


def test_gradients_of_a_short_call_are_those_of_keys_and_values(monkeypatch: pytest.MonkeyPatch) -> None:
    backbone, x = of_latents(), torch.randn(2, 7, 24, requires_grad=True)

    def gradients() -> list[Tensor]:
        return list(torch.autograd.grad(backbone(x)[0].square().sum(), [x, *backbone.parameters()]))

    short = gradients()
    for index in range(2):
        monkeypatch.setattr(backbone.get_submodule(f"layers.{index}.mixing.mixer"), "few", 0)
    torch.testing.assert_close(short, gradients(), rtol=1e-11, atol=1e-11)


def test_a_row_of_acting_has_a_latent_and_a_key_that_turns() -> None:
    state = of_latents(memory_kind="cache").initial_state(5, cached=True).tensors
    rings = {name: ring.element_size() * ring[0].numel() for name, ring in state.items() if name.startswith("layer")}
    assert rings == {f"layer{index}.key_ring": 8 * (11 + 1) * (16 + 4) for index in range(2)}


def test_norms_of_keys_need_keys_and_turns_channels() -> None:
    with pytest.raises(ConfigError, match="set qk_norm to False or head_mixing to 'mha'"):
        of_latents(mixer={"name": "softmax", "qk_norm": True})
    with pytest.raises(ConfigError, match="set turned of head_mixing 'mla' to at least 2"):
        of_latents(head_mixing={"name": "mla", "turned": 0})
