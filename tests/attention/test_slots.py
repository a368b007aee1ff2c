"""Slots that stand for blocks of tokens: numbers by hand and limits that are no equality of two backbones."""

import pytest
import torch
from torch import Tensor

from rltransformers.attention.slots.interface import SlotAttention, ends_of_blocks
from rltransformers.backbone import PLAIN, Backbone, BackboneConfig
from rltransformers.functional.call import Call
from rltransformers.functional.keys import Group, Rows
from rltransformers.functional.windows import Tokens

SIZES = {"width": 12, "heads": 3, "layers": 1, "memory": 11, "ff_width": 7}


def attention_of(**mixer: object) -> SlotAttention:
    torch.manual_seed(0)
    backbone = Backbone(BackboneConfig(**{**PLAIN, **SIZES, "mixer": mixer}))
    found = backbone.layer(0).mixing.mixer
    assert isinstance(found, SlotAttention)
    return found


def softmax_of_last(mixer: SlotAttention, h: Tensor, rows: list[int], counts: list[float]) -> Tensor:
    """What the last token reads from some rows, each of which counts as often as told."""
    project = mixer.project(h)
    q, k, v = (part.unflatten(-1, (3, 4)) for part in project.split(12, -1))
    logits = torch.einsum("hd,nhd->hn", q[0, -1], k[0, rows]) / 2 + torch.tensor(counts).log()
    out: Tensor = mixer.output(torch.einsum("hn,nhd->hd", logits.softmax(-1), v[0, rows]).flatten())
    return out


@pytest.mark.parametrize("mass", [False, True])
def test_a_slot_of_equal_tokens_counts_for_all_of_them_or_for_one(mass: bool) -> None:
    mixer = attention_of(name="memory_compressed", block=3, compress="mean", mass=mass)
    x = torch.randn(1, 4, 12)[:, [0, 0, 0, 1, 1, 1, 2, 3]]
    backbone_rows = mixed(mixer, x)
    times = 3.0 if mass else 1.0
    expected = softmax_of_last(mixer, x, [2, 5, 6, 7], [times, times, 1.0, 1.0])
    torch.testing.assert_close(backbone_rows[0, -1], expected, rtol=1e-5, atol=1e-6)


def mixed(mixer: SlotAttention, h: Tensor) -> Tensor:
    """All tokens of one episode."""
    p = torch.arange(h.shape[1])[None]
    tokens = Tokens(p, p, p < 0, torch.tensor([-1]))
    query, rows = mixer.queries_and_keys(h)
    out: Tensor = mixer(h, query, (Group(rows, Rows()),), {}, Call(tokens), None).out
    return out


def test_the_token_that_completes_a_block_sees_its_slot_alone() -> None:
    mixer = attention_of(name="memory_compressed", block=3, compress="mean")
    x = torch.randn(1, 3, 12)
    values = mixer.project(x)[..., 24:]
    torch.testing.assert_close(mixed(mixer, x)[0, 2], mixer.output(values.mean(1))[0])


def test_blocks_end_where_the_episode_says() -> None:
    p = torch.tensor([[4, 5, 6, 0, 1, 2, 3, 4, 5]])
    ends, before = ends_of_blocks(p, torch.tensor([3]), block=3, kept=2, spare=1)
    # The token in front of the call stands at 3, the first of its block; blocks before it end 2 and 5 tokens earlier.
    assert ends.tolist() == [[-5, -2, 1, 5, 8, 9]]
    assert before.tolist() == [[0, 0, 1, 1, 1, 1, 2, 2, 2]]
