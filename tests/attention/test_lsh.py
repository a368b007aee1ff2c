"""Facts about attention by hashes that the contract does not state: its limit, its rounds, its cost."""

from collections.abc import Iterator
from typing import Any

import pytest
import torch
from torch import Tensor
from torch.nn import functional as F
from torch.utils.flop_counter import FlopCounterMode

from rltransformers.attention.layer import Attention
from rltransformers.attention.selections.lsh import SELF, Hashing, buckets_of, first_of_each
from rltransformers.backbone import Backbone
from rltransformers.core.errors import ConfigError
from rltransformers.laws import EXACT, perturbed
from rltransformers.laws.costs import UNCOUNTED
from tests.attention.rows import config_of


@pytest.fixture(autouse=True)
def double() -> Iterator[None]:
    torch.set_default_dtype(torch.float64)
    yield
    torch.set_default_dtype(torch.float32)


def hashed(rounds: int = 2, buckets: int = 4, window: int = 4, **overrides: Any) -> Backbone:
    """One layer whose skip path is open and whose feed-forward network is shut."""
    selection = {"name": "lsh", "rounds": rounds, "buckets": buckets, "window": window}
    plain = {"layers": 1, "residual": "pre_ln", "position": "none", "memory": 30}
    backbone = perturbed(config_of({**plain, "selection": selection, **overrides}))
    for name in ("weight", "bias"):
        backbone.get_parameter(f"layers.0.ff.out.{name}").data.zero_()
    return backbone


def parts(backbone: Backbone, x: Tensor) -> tuple[Tensor, Tensor, Attention]:
    """Shared queries and keys, and values, [B, H, T, K] each; the mixer."""
    mixer, norm = (backbone.get_submodule(f"layers.0.{name}") for name in ("mixing.mixer", "join_mixing.norm"))
    assert isinstance(mixer, Attention)
    shared, v = (each.unflatten(-1, (3, 5)).transpose(1, 2) for each in mixer.project(norm(x)).chunk(2, -1))
    return shared, v, mixer


def attended(shared: Tensor, v: Tensor, allowed: Tensor) -> Tensor:
    """One softmax over the allowed keys, of length 1, the own one only where there is no other."""
    time = v.shape[2]
    bias = torch.where(allowed, 0.0, -torch.inf) + SELF * torch.eye(time)
    out = F.scaled_dot_product_attention(shared, F.normalize(shared, dim=-1), v, attn_mask=bias)
    return out.transpose(1, 2).flatten(2)


def test_one_bucket_is_attention_with_shared_projections_that_avoids_itself() -> None:
    backbone, x = hashed(rounds=1, buckets=2, window=31), torch.randn(2, 11, 15)
    shared, v, mixer = parts(backbone, x)
    backbone.get_buffer("layers.0.mixing.mixer.chooser.rotations").zero_()  # everything hashes alike
    out = attended(shared, v, torch.ones(11, 11, dtype=torch.bool).tril())
    torch.testing.assert_close(backbone(x)[0] - x, mixer.combined(out), rtol=EXACT, atol=EXACT)


def test_several_rounds_are_one_softmax_over_the_union_of_their_keys() -> None:
    """Rounds merged by their normalizers, pairs weighted by how many rounds find them (equation 7 of the paper)."""
    backbone, x = hashed(rounds=3, buckets=4, window=31), torch.randn(1, 9, 15)
    shared, v, mixer = parts(backbone, x)
    chooser = mixer.chooser
    assert isinstance(chooser, Hashing)
    buckets = buckets_of(shared, chooser.rotations)  # 1 H R T
    causal = torch.ones(9, 9, dtype=torch.bool).tril()
    found = (buckets[..., :, None] == buckets[..., None, :]) & causal  # 1 H R T S
    count = found.sum(2, keepdim=True)
    logits = shared @ F.normalize(shared, dim=-1).transpose(-1, -2) / 5**0.5 + SELF * torch.eye(9)
    rounds = (logits[:, :, None] - count.clamp(min=1).log()).masked_fill(~found, -torch.inf)
    shares = rounds.logsumexp(-1).softmax(2)  # of the rounds
    out = (shares[..., None] * (rounds.softmax(-1) @ v[:, :, None])).sum(2).transpose(1, 2).flatten(2)
    torch.testing.assert_close(backbone(x)[0] - x, mixer.combined(out), rtol=1e-10, atol=1e-10)


def test_the_length_of_a_vector_does_not_change_its_bucket() -> None:
    x, rotations = torch.randn(2, 3, 7, 5), torch.randn(3, 4, 5, 6)
    buckets = buckets_of(x, rotations)
    assert torch.equal(buckets_of(3.7 * x, rotations), buckets)
    assert buckets.min() >= 0 and buckets.max() == 11
    assert torch.equal(buckets_of(-x, rotations), (buckets + 6) % 12)


def test_a_key_that_several_rounds_find_counts_once() -> None:
    index = torch.tensor([[[[4, 2, 4, 0, 2, 4]]]])
    exists = torch.tensor([[[[True, True, True, False, True, True]]]])
    assert first_of_each(index, exists, 9).tolist() == [[[[True, True, False, False, False, False]]]]


def test_work_grows_with_the_window_and_not_with_the_memory() -> None:
    flops = []
    for memory in (64, 512):
        backbone = hashed(memory=memory, window=4)
        with FlopCounterMode(display=False, custom_mapping=UNCOUNTED) as counter, torch.no_grad():
            backbone(torch.randn(1, 256, 15))
        flops.append(counter.get_total_flops())
    assert flops[1] < 1.05 * flops[0]


@pytest.mark.parametrize(
    ("values", "words"),
    [({"kv_heads": 1}, "kv_heads .1. has to equal heads .3."), ({}, "even number of buckets")],
)
def test_settings_that_cannot_be_hashed_are_refused(values: dict[str, Any], words: str) -> None:
    with pytest.raises(ConfigError, match=words):
        config_of({"selection": {"name": "lsh", "buckets": 4 if values else 5}, **values})
