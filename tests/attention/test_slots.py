"""Slots that stand for blocks of tokens: numbers by hand and limits that are no equality of two backbones."""

import pytest
import torch
from torch import Tensor
from torch.nn import functional as F

from rltransformers.attention.informer import ProbSparse
from rltransformers.attention.slots.interface import SlotAttention
from rltransformers.attention.slots.poolingformer import Poolingformer
from rltransformers.backbone import PLAIN, Backbone, BackboneConfig
from rltransformers.functional.blocks import ends_of_slots
from rltransformers.functional.call import Call, Tokens
from rltransformers.functional.keys import Group, Rows
from rltransformers.mixers import csalr
from rltransformers.mixers.interface import Mixer
from rltransformers.mixers.linformer_prefix import LinformerPrefix

SIZES = {"width": 12, "heads": 3, "layers": 1, "memory": 11, "ff_width": 7}


def mixer_of(**mixer: object) -> Mixer:
    torch.manual_seed(0)
    return Backbone(BackboneConfig(**{**PLAIN, **SIZES, "mixer": mixer})).layer(0).mixing.mixer


def attention_of(**mixer: object) -> SlotAttention:
    found = mixer_of(**mixer)
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


@pytest.mark.parametrize("sharing", ["none", "heads", "kv", "layers"])
def test_a_prefix_as_long_as_its_projections_is_the_published_linformer(sharing: str) -> None:
    """The last of n tokens reads E K and F V of all of them, as every token does in equation 7 of the paper."""
    mixer = mixer_of(name="linformer_prefix", slots=3, max_len=5, sharing=sharing)
    assert isinstance(mixer, LinformerPrefix)
    x = torch.randn(1, 5, 12)
    q, k, v = (part.unflatten(-1, (3, 4)) for part in mixer.project(x)[0].split(12, -1))
    expected = []
    for head in range(3):
        e, f = (
            each.weight[:, head if sharing == "none" else 0].T
            for each in (mixer.projections.of_keys, mixer.projections.of_values)
        )
        weights = (q[-1, head] @ (e @ k[:, head]).T / 2).softmax(-1)
        expected.append(weights @ (f @ v[:, head]))
    p = torch.arange(5)[None]
    state = {name: torch.zeros(1, *shape) for name, shape in mixer.state_shapes().items()}
    out = mixer(x, state, Call(Tokens(p, p, p < 0, torch.tensor([-1])))).out
    torch.testing.assert_close(out[0, -1], mixer.out(torch.cat(expected)))


def test_sharing_leaves_the_projections_of_the_paper() -> None:
    """Section 4 counts 2 L, L and 1 matrices for heads, keys and values, and layers."""
    counts = {}
    for sharing in ("none", "heads", "kv", "layers"):
        mixer = {"name": "linformer", "block": 4, "slots": 2, "sharing": sharing}
        backbone = Backbone(BackboneConfig(**{**PLAIN, **SIZES, "layers": 5, "mixer": mixer}))
        own = sum(value.numel() for name, value in backbone.named_parameters() if ".compression." in name)
        counts[sharing] = own // (2 * 4)
    assert counts == {"none": 2 * 5 * 3, "heads": 2 * 5, "kv": 5, "layers": 1}


def test_weights_of_regularized_landmarks_sum_to_the_published_half() -> None:
    """A is row-stochastic: (A + I) 1 = 2, so values that are all 1 are read as 1/2 from far and as 1 from near."""
    logits = torch.randn(2, 3, 4, 6, 6, dtype=torch.float64)
    for iterations in (0, 8):
        read = csalr.ridge_solve(logits.softmax(-1), torch.ones(2, 3, 4, 6, 5, dtype=torch.float64), 1.0, iterations)
        torch.testing.assert_close(read, torch.full_like(read, 0.5))


def test_a_larger_ridge_leaves_less_of_what_is_far() -> None:
    """One landmark alone is read with the weight 1 / (1 + ridge)."""
    read = torch.randn(1, 1, 1, 1, 5)
    found = csalr.ridge_solve(torch.ones(1, 1, 1, 1, 1), read, 3.0, 0)
    torch.testing.assert_close(found, read / 4)


def test_a_lazy_query_reads_the_mean_and_an_active_one_by_its_scores() -> None:
    """Of two queries one may be active: the second, whose measure is not 0 as that of the first, is."""
    mixer = mixer_of(name="informer", samples=7, active_queries=1, candidates=2)
    assert isinstance(mixer, ProbSparse)
    x = torch.randn(1, 4, 12)
    query, rows = mixer.queries_and_keys(x)
    p = torch.arange(4)[None]
    call = Call(Tokens(p, p, p < 0, torch.tensor([-1])))
    found = mixer(x, query, (Group(rows, Rows()),), {"measures": torch.zeros(1, 1, 3)}, call, None)
    measures = mixer.sparsities(query, Group(rows, Rows()), call)[0]
    q, k, v = (part.unflatten(-1, (3, 4)) for part in mixer.project(x)[0].split(12, -1))
    for t in range(1, 4):
        expected = []
        for head in range(3):
            logits = k[: t + 1, head] @ q[t, head] / 2
            lazy = measures[head, t - 1] > measures[head, t]
            expected.append((logits * (0.0 if lazy else 1.0)).softmax(-1) @ v[: t + 1, head])
        torch.testing.assert_close(found.out[0, t], mixer.output(torch.cat(expected)))
    assert measures[:, 0].eq(0).all() and measures.ge(0).all()
    torch.testing.assert_close(found.state["measures"][0, 0], measures[:, 3])


def test_slots_of_one_token_are_a_band_over_the_first_level() -> None:
    mixer = mixer_of(name="poolingformer", window=3, reach=4, kernel=1, stride=1, pooling="mean")
    assert isinstance(mixer, Poolingformer)
    y = torch.randn(1, 9, 12)
    p = torch.arange(9)[None]
    state = {"pooled": torch.zeros(1, *mixer.state_shapes()["pooled"])}
    z, _ = mixer.second_level(y, state, Tokens(p, p, p < 0, torch.tensor([-1])))
    q, k, v = (part.unflatten(-1, (3, 4)).transpose(0, 1) for part in mixer.second(y)[0].split(12, -1))
    seen = (p[0][:, None] >= p[0]) & (p[0][:, None] - p[0] < 4)
    expected = F.scaled_dot_product_attention(q, k, v, attn_mask=seen).transpose(0, 1).flatten(1)
    torch.testing.assert_close(z[0], mixer.second_output(expected))


def test_a_slot_that_the_first_tokens_have_none_of_adds_nothing() -> None:
    mixer = mixer_of(name="poolingformer", window=3, reach=8, kernel=4, stride=2)
    assert isinstance(mixer, Poolingformer)
    p = torch.arange(5)[None]
    state = {name: torch.zeros(1, *shape) for name, shape in mixer.state_shapes().items()}
    z, _ = mixer.second_level(torch.randn(1, 5, 12), state, Tokens(p, p, p < 0, torch.tensor([-1])))
    assert z[0, :3].eq(0).all() and z[0, 3:].ne(0).all()


def test_blocks_end_where_the_episode_says() -> None:
    p = torch.tensor([[4, 5, 6, 0, 1, 2, 3, 4, 5]])
    ends, done = ends_of_slots(p, torch.tensor([3]), size=3, stride=3, slots=2)
    # The token in front of the call stands at 3, the first of its block; blocks before it end 2 and 5 tokens earlier.
    assert ends.tolist() == [[-5, -2, 1, 5, 8]]
    assert done.tolist() == [[0, 1, 1, 1, 1, 2, 2, 2, 3]]
