"""Facts about sorted blocks that the contract does not state: two limits, and what a block sees of the past."""

from collections.abc import Iterator
from typing import Any

import pytest
import torch
from torch import Tensor
from torch.nn import functional as F

from rltransformers import laws
from rltransformers.attention.layer import Attention
from rltransformers.attention.selections.sinkhorn import Sinkhorn
from rltransformers.backbone import Backbone
from rltransformers.core.errors import ConfigError
from rltransformers.laws import EXACT, Case, perturbed
from tests.attention.rows import config_of

TIME, BLOCK = 14, 3


@pytest.fixture(autouse=True)
def double() -> Iterator[None]:
    torch.set_default_dtype(torch.float64)
    yield
    torch.set_default_dtype(torch.float32)


def sorted_blocks(**overrides: Any) -> tuple[Backbone, Attention, Sinkhorn]:
    """One layer whose skip path is open and whose feed-forward network is shut."""
    selection = {"name": "sinkhorn", "block": BLOCK}
    plain = {"layers": 1, "residual": "pre_ln", "position": "none", "memory": 30}
    backbone = perturbed(config_of({**plain, "selection": selection, **overrides}))
    for name in ("weight", "bias"):
        backbone.get_parameter(f"layers.0.ff.out.{name}").data.zero_()
    mixer = backbone.get_submodule("layers.0.mixing.mixer")
    assert isinstance(mixer, Attention) and isinstance(mixer.chooser, Sinkhorn)
    return backbone, mixer, mixer.chooser


def masked(backbone: Backbone, mixer: Attention, x: Tensor, allowed: Tensor) -> Tensor:
    """What attention to the allowed tokens adds to the stream."""
    norm = backbone.get_submodule("layers.0.join_mixing.norm")
    q, k, v = (each.unflatten(-1, (3, 5)).transpose(1, 2) for each in mixer.project(norm(x)).chunk(3, -1))
    out = F.scaled_dot_product_attention(q, k, v, attn_mask=allowed)
    return mixer.combined(out.transpose(1, 2).flatten(2))


def test_a_mixture_of_the_block_before_alone_is_attention_to_two_blocks(monkeypatch: pytest.MonkeyPatch) -> None:
    backbone, mixer, chooser = sorted_blocks()
    chooser.none_key.data.zero_()
    chooser.none_value.data.zero_()

    def nearest(keys: Tensor, begin: Tensor, present: Tensor) -> Tensor:
        shares = torch.zeros(*keys.shape[:4])
        shares[..., -1] = present[:, None, :, -1].to(shares.dtype)
        return torch.cat([1 - shares.sum(-1, keepdim=True), shares], -1)

    monkeypatch.setattr(chooser, "shares", nearest)
    x = torch.randn(2, TIME, 15)
    index = torch.arange(TIME)
    u = index // BLOCK
    two = (u[:, None] - u <= 1) & (index[:, None] >= index)
    # In the first block a key of zeros for every row stands beside the own ones; compare the others.
    found, expected = backbone(x)[0] - x, masked(backbone, mixer, x, two)
    torch.testing.assert_close(found[:, BLOCK:], expected[:, BLOCK:], rtol=EXACT, atol=EXACT)


def test_a_mixture_that_is_not_seen_is_attention_to_the_own_block() -> None:
    backbone, mixer, chooser = sorted_blocks(attention_bias=True)
    chooser.none_score.data.fill_(1e9)  # every mixture is of nothing
    chooser.none_key.data.copy_(-1e6 * mixer.project.bias.data[:15].view(3, 5).sign())
    mixer.project.weight.data[:15] = 0  # queries are their biases, whatever the token
    x = torch.randn(2, TIME, 15)
    index = torch.arange(TIME)
    own = (index[:, None] // BLOCK == index // BLOCK) & (index[:, None] >= index)
    torch.testing.assert_close(backbone(x)[0] - x, masked(backbone, mixer, x, own), rtol=EXACT, atol=EXACT)


def test_shares_of_earlier_blocks_add_up_to_one_and_reach_no_farther_than_the_memory() -> None:
    _, _, chooser = sorted_blocks(memory=11)
    assert chooser.earlier == 3
    present = torch.tensor([[[False, True, True], [False, False, False]]])
    shares = chooser.shares(torch.randn(1, 3, 2, 3, BLOCK, 5), torch.randn(1, 3, 2, 5), present)
    torch.testing.assert_close(shares.sum(-1), torch.ones(1, 3, 2))
    assert shares[..., 0, 1].eq(0).all() and shares[..., 1, 0].eq(1).all()


def test_a_memory_shorter_than_two_blocks_is_refused() -> None:
    with pytest.raises(ConfigError, match="set memory to at least 15 or block to at most 4"):
        config_of({"selection": {"name": "sinkhorn", "block": 8}, "memory": 7})
    with pytest.raises(ConfigError, match=r"set memory to at least 1$"):
        config_of({"selection": {"name": "sinkhorn", "block": 1}, "memory": 0})
    config_of({"selection": {"name": "sinkhorn", "block": 8}, "memory": 15})
    config_of({"selection": {"name": "sinkhorn", "block": 4}, "memory": 7})


def test_what_came_before_an_episode_fades_no_row_that_stands_for_no_token() -> None:
    """Where a block has nothing before it, the learned row lies in front of the episode for forget gates."""
    forget = {"name": "forget", "bias": 0.0}
    backbone, _, _ = sorted_blocks(prior=forget, memory=8, layers=2)
    case = Case.of(backbone)
    laws.split_invariance(case, [[10, 2, 11], [2, 2, 1, 1, 1, 1, 4, 11]])
    laws.episode_isolation(case)
