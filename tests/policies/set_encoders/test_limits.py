"""Where an encoder becomes something known."""

from typing import Any

import pytest
import torch
from torch import Tensor, nn
from torch.nn import functional as F

from rltransformers.policies.observed import SetEncoder
from rltransformers.policies.set_encoders import linformer
from rltransformers.policies.set_encoders.interface import AttentionBlock, FeedForward
from tests.policies.set_encoders.rows import ELEMENTS, HEADS, HIDDEN, ROWS, WIDTH, encoder_of

BATCH = 3
ROUNDING = 1e-12


def parts_of(encoder: SetEncoder) -> Any:
    """Its layers, whose parts differ by mechanism."""
    return encoder.stack


def tokens() -> tuple[Tensor, Tensor]:
    """Of observations all of whose elements exist, and some whose elements do not."""
    exists = torch.rand(BATCH, ELEMENTS) > 0.4
    exists[0] = True
    exists[:, 3] = True
    return torch.randn(BATCH, ELEMENTS, WIDTH, dtype=torch.float64), exists


def bert_with_weights_of(encoder: SetEncoder) -> SetEncoder:
    """Plain attention with all that both have in common."""
    plain = encoder_of(ROWS["bert"], position="learned")
    embedding_norm = getattr(encoder.stack, "embedding_norm", None)
    if embedding_norm is None:
        parts_of(plain).embedding_norm = None
    found = plain.stack.load_state_dict(encoder.stack.state_dict(), strict=False)
    assert not found.missing_keys
    return plain


def identical(found: SetEncoder, expected: SetEncoder, atol: float = ROUNDING) -> None:
    x, exists = tokens()
    for present in (exists, torch.ones_like(exists)):
        torch.testing.assert_close(
            found.stack(x, present)[present], expected.stack(x, present)[present], atol=atol, rtol=0
        )


@pytest.mark.parametrize(("elements", "slots"), [(1, 1), (3, 2), (7, 2), (12, 3), (4000, 256)])
def test_slots_of_linformer_tell_elements_apart(elements: int, slots: int) -> None:
    """Of one slot alone every element would read the same."""
    stack = linformer.build(elements, 8, linformer.Options(layers=1))
    assert next(p for name, p in stack.named_parameters() if name.endswith("of_keys")).shape == (1, slots, elements)


def test_bert_is_the_encoder_of_pytorch() -> None:
    ours = encoder_of(ROWS["bert"], layers=1)
    layer = parts_of(ours).layers[0]
    theirs = nn.TransformerEncoderLayer(WIDTH, HEADS, HIDDEN, 0.0, "gelu", batch_first=True).double()
    attention, maps = theirs.self_attn, layer.attention
    with torch.no_grad():
        attention.in_proj_weight.copy_(torch.cat([maps.query.weight, maps.key.weight, maps.value.weight]))
        attention.in_proj_bias.copy_(torch.cat([maps.query.bias, torch.randn(WIDTH), maps.value.bias]))
    for source, target in (
        (maps.out, attention.out_proj),
        (layer.feed_forward.first, theirs.linear1),
        (layer.feed_forward.second, theirs.linear2),
        (layer.attention_norm, theirs.norm1),
        (layer.norm, theirs.norm2),
    ):
        target.load_state_dict(source.state_dict())
    x, exists = tokens()
    found = ours.stack(x, exists)[exists]
    x = F.layer_norm(x, (WIDTH,), parts_of(ours).embedding_norm.weight, parts_of(ours).embedding_norm.bias)
    torch.testing.assert_close(found, theirs(x, src_key_padding_mask=~exists)[exists], atol=ROUNDING, rtol=0)


@pytest.mark.parametrize("sharing", ["none", "headwise", "kv", "layerwise"])
def test_linformer_with_a_slot_per_element_is_bert(sharing: str) -> None:
    """E = F = 1; an absent element leaves a slot of zeros, which counts, so all exist here."""
    encoder = encoder_of(ROWS["linformer"], slots=ELEMENTS, sharing=sharing)
    with torch.no_grad():
        for layer in parts_of(encoder).layers:
            for each in layer.attention.projections.parameters():
                each.copy_(torch.eye(ELEMENTS).expand_as(each))
    x, exists = tokens()
    everything = torch.ones_like(exists)
    plain = bert_with_weights_of(encoder)
    torch.testing.assert_close(encoder.stack(x, everything), plain.stack(x, everything), atol=ROUNDING, rtol=0)


@pytest.mark.parametrize(("sharing", "groups"), [("none", 2 * 2 * HEADS), ("headwise", 4), ("kv", 2), ("layerwise", 1)])
def test_what_linformer_shares(sharing: str, groups: int) -> None:
    """Two layers, E and F of 7 x 10 numbers."""
    encoder = encoder_of(ROWS["linformer"], sharing=sharing)
    names = [each for label, each in encoder.named_parameters() if "projections" in label]
    assert sum(each.numel() for each in names) == groups * 7 * ELEMENTS


def test_informer_whose_queries_are_all_active_is_bert() -> None:
    encoder = encoder_of(ROWS["informer"], active_queries=ELEMENTS)
    identical(encoder, bert_with_weights_of(encoder))


def test_a_lazy_query_of_informer_reads_the_mean_of_the_values() -> None:
    """The measure of a query of zeros is 0, the least there is; there is room for the three other ones."""
    encoder = encoder_of(ROWS["informer"], active_queries=3, samples=ELEMENTS)
    q, k, v = torch.randn(3, BATCH, HEADS, ELEMENTS, 5, dtype=torch.float64)
    exists = torch.ones(BATCH, ELEMENTS, dtype=torch.bool)
    exists[1, 6:] = False
    q[:, :, [0, 2, 3, 5, 6, 8, 9]] = 0.0
    found = parts_of(encoder).layers[0].attention.read(q, k, v, exists)
    for b in range(BATCH):
        mean = v[b, :, exists[b]].mean(1)
        torch.testing.assert_close(found[b, :, 2], mean, atol=ROUNDING, rtol=0)
        assert (found[b, :, [1, 4]] - mean[:, None]).abs().amin(-1).gt(1e-6).all()


@pytest.mark.parametrize("lengths", [(0.3, 7.0), (7.0, 0.3)])
def test_the_query_of_informer_that_singles_out_a_key_is_active(lengths: tuple[float, float]) -> None:
    """A query five times as long has five times the measure, and one place is free."""
    encoder = encoder_of(ROWS["informer"], active_queries=1, samples=ELEMENTS)
    k, v = torch.randn(2, 1, HEADS, ELEMENTS, 5, dtype=torch.float64)
    q = torch.zeros_like(k)
    q[:, :, 2], q[:, :, 7] = (length * torch.ones(5, dtype=torch.float64) for length in lengths)
    found = parts_of(encoder).layers[0].attention.read(q, k, v, torch.ones(1, ELEMENTS, dtype=torch.bool))
    mean = v.mean(2)
    active, lazy = (2, 7) if lengths[0] > lengths[1] else (7, 2)
    torch.testing.assert_close(found[:, :, lazy], mean, atol=ROUNDING, rtol=0)
    assert (found[:, :, active] - mean).abs().amax(-1).gt(1e-3).all()


def test_nystrom_with_a_landmark_per_element_is_bert() -> None:
    """A A^+ A = A for the true pseudo-inverse; its error grows with the condition of A, here up to 1e5."""
    encoder = encoder_of(ROWS["nystrom"], landmarks=ELEMENTS, iterations=0, conv=0)
    identical(encoder, bert_with_weights_of(encoder), atol=1e-9)


def test_the_convolution_of_nystrom_reads_values_of_both_sides() -> None:
    """A kernel of one tap, 1, at one place beside the middle adds the values of the elements there."""
    encoder = encoder_of(ROWS["nystrom"], conv=5)
    plain, attention = (
        parts_of(encoder_of(ROWS["nystrom"], conv=0)).layers[0].attention,
        parts_of(encoder).layers[0].attention,
    )
    q, k, v = torch.randn(3, BATCH, HEADS, ELEMENTS, 5, dtype=torch.float64)
    _, exists = tokens()
    for tap, shift in ((0, 2), (4, -2), (2, 0)):
        with torch.no_grad():
            attention.kernel.copy_(F.one_hot(torch.tensor(tap), 5).expand(HEADS, -1))
        moved = torch.zeros_like(v)
        for i in range(ELEMENTS):
            if 0 <= i - shift < ELEMENTS:
                moved[:, :, i] = v[:, :, i - shift] * exists[:, None, i - shift, None]
        found = attention.read(q, k, v, exists) - plain.read(q, k, v, exists)
        torch.testing.assert_close(found, moved, atol=ROUNDING, rtol=0)


def test_taps_beyond_every_element_are_left_out() -> None:
    attention = parts_of(encoder_of(ROWS["nystrom"], conv=33)).layers[0].attention
    assert attention.kernel.shape == (HEADS, 2 * ELEMENTS - 1)


def test_the_set_transformer_whose_points_are_the_elements_has_plain_blocks() -> None:
    """ISAB(X) = MAB(X, MAB(X, X)) for I = X."""
    encoder = encoder_of(ROWS["set_transformer"], points=ELEMENTS, layers=1)
    x = torch.randn(1, ELEMENTS, WIDTH, dtype=torch.float64)
    block = parts_of(encoder).blocks[0]
    with torch.no_grad():
        block.points.copy_(x[0])
    everything = torch.ones(1, ELEMENTS, dtype=torch.bool)
    expected = theirs_of(block.spread)(x, theirs_of(block.gather)(x, x))
    torch.testing.assert_close(encoder.stack(x, everything), expected, atol=ROUNDING, rtol=0)


def theirs_of(block: AttentionBlock) -> Any:
    """MAB with the attention of PyTorch."""
    attention = nn.MultiheadAttention(WIDTH, HEADS, batch_first=True).double()
    with torch.no_grad():
        attention.in_proj_weight.copy_(torch.cat([block.query.weight, block.key.weight, block.value.weight]))
        attention.in_proj_bias.copy_(torch.cat([block.query.bias, torch.zeros(WIDTH), block.value.bias]))
    attention.out_proj.load_state_dict(block.out.state_dict())
    layers: FeedForward = block.feed_forward

    def forward(x: Tensor, y: Tensor) -> Tensor:
        h = block.attention_norm(x + attention(x, y, y)[0])
        made: Tensor = block.norm(h + layers.second(layers.first(h).relu()))
        return made

    return forward


@pytest.mark.parametrize("name", ["luna", "luna_untied"])
def test_luna_whose_packing_looks_at_nothing_reads_the_mean(name: str) -> None:
    """Equal weights over elements make all packed rows the mean of the values, which is what every element unpacks."""
    encoder = encoder_of(ROWS[name], layers=1)
    layer = parts_of(encoder).layers[0]
    with torch.no_grad():
        layer.pack.query.weight.zero_()
        layer.pack.query.bias.zero_()
    x, exists = tokens()
    rows = parts_of(encoder).embedding_norm(x)
    for b in range(BATCH):
        mean = layer.unpack.value(layer.pack.value(rows[b, exists[b]].mean(0)))
        h = layer.attention_norm(rows[b] + layer.out(mean))
        expected = layer.norm(h + layer.feed_forward(h))
        torch.testing.assert_close(encoder.stack(x, exists)[b], expected, atol=ROUNDING, rtol=0)


def test_luna_hands_the_packed_sequence_on() -> None:
    """The second layer sees what the first one packed: its packing query alone decides whether that matters."""
    encoder = encoder_of(ROWS["luna"])
    x, exists = tokens()
    before = encoder.stack(x, exists)
    first = parts_of(encoder).layers[0]
    with torch.no_grad():
        first.packed_norm.weight.mul_(-1.3)
    assert (encoder.stack(x, exists) - before)[exists].abs().amax() > 1e-3


def test_pooling_of_equal_rows_is_pooling_of_one() -> None:
    """Softmax over equal rows has their value."""
    pooling = encoder_of(ROWS["bert"]).pooling
    one = torch.randn(BATCH, 1, WIDTH, dtype=torch.float64)
    exists = torch.ones(BATCH, 6, dtype=torch.bool)
    exists[1, 2:5] = False
    found = pooling(one.expand(-1, 6, -1), exists)
    torch.testing.assert_close(found, pooling(one, exists[:, :1]), atol=ROUNDING, rtol=0)
