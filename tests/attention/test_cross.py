"""Cross-attention reads what exists, and only that; contexts follow the tokens that they belong to."""

import pytest
import torch

from rltransformers.attention.cross import CrossAttention
from rltransformers.backbone import Backbone
from rltransformers.core.errors import ConfigError
from rltransformers.functional.call import Context
from rltransformers.laws import perturbed
from rltransformers.mixers.interface import Dims
from tests.attention.rows import config_of

B, T, N, D = 2, 7, 5, 15


@pytest.fixture(autouse=True)
def double() -> object:
    torch.set_default_dtype(torch.float64)
    torch.manual_seed(0)
    yield
    torch.set_default_dtype(torch.float32)


def looking(**values: object) -> Backbone:
    """A backbone whose context is passed by hand."""
    config = config_of({"topology": "encoder_decoder", **values})
    backbone = Backbone(config).eval()
    backbone.load_state_dict(perturbed(config).state_dict())
    return backbone


def test_one_element_is_read_as_it_is_whatever_the_query() -> None:
    dims = Dims(width=6, heads=3, kv_heads=3, head_dim=2, value_dim=4, memory=0)
    cross, row = CrossAttention(dims, 0.0), torch.randn(1, 1, 1, 6)
    read = [cross(torch.randn(1, 1, 6), row, torch.ones(1, 1, 1, dtype=torch.bool)) for _ in range(2)]
    values = (cross.keys.weight @ row[0, 0, 0]).view(3, 6)[:, 2:].flatten()
    for found in read:
        torch.testing.assert_close(found[0, 0], cross.output.weight @ values)


def test_dropout_of_what_is_read_acts_in_training_only() -> None:
    dims = Dims(width=6, heads=3, kv_heads=3, head_dim=2, value_dim=4, memory=0)
    cross = CrossAttention(dims, 0.5)
    h, rows, exists = torch.randn(B, T, 6), torch.randn(B, T, N, 6), torch.ones(B, T, N, dtype=torch.bool)
    assert not torch.equal(cross(h, rows, exists), cross(h, rows, exists))
    cross.eval()
    assert torch.equal(cross(h, rows, exists), cross(h, rows, exists))


def test_elements_that_do_not_exist_have_no_effect_and_no_gradient() -> None:
    backbone, x = looking(), torch.randn(B, T, D)
    rows, exists = torch.randn(B, T, N, D, requires_grad=True), torch.rand(B, T, N) < 0.5
    y, _ = backbone(x, context=Context(rows, exists))
    (gradient,) = torch.autograd.grad(y.square().sum(), rows)
    assert gradient[~exists].eq(0).all() and gradient[exists].ne(0).any(-1).all()
    other = torch.where(exists[..., None], rows, 100 * torch.randn_like(rows))
    other[~exists, 0] = torch.nan
    assert torch.equal(backbone(x, context=Context(other, exists))[0], y)
    padded, valid = other.masked_fill(torch.arange(T)[:, None, None] == T - 1, torch.nan), torch.arange(T) < T - 1
    found, _ = backbone(x, context=Context(padded, exists), valid=valid.expand(B, T))
    torch.testing.assert_close(found, torch.where(valid[:, None], y, 0.0))
    assert not torch.allclose(backbone(x, context=Context(rows + 1, exists))[0], y)


def test_the_order_of_the_elements_does_not_matter() -> None:
    backbone, x, rows, exists = looking(), torch.randn(B, T, D), torch.randn(B, T, N, D), torch.rand(B, T, N) < 0.5
    order = torch.randperm(N)
    y, _ = backbone(x, context=Context(rows, exists))
    again, _ = backbone(x, context=Context(rows[:, :, order], exists[:, :, order]))
    torch.testing.assert_close(again, y, rtol=1e-12, atol=1e-12)  # sums of five numbers in another order


@pytest.mark.parametrize("tokens", [slice(1, None, 3), slice(0, 1), slice(-1, None), slice(0, None, 2)])
@pytest.mark.parametrize("wanted", [slice(None), slice(1, None, 3), slice(-1, None), slice(2, 4), slice(0, 0)])
def test_tokens_without_elements_pass_unchanged_however_that_is_said(tokens: slice, wanted: slice) -> None:
    """A range of tokens with elements equals a context of all tokens, of which the others have none that exist."""
    backbone, x = looking(), torch.randn(B, T, D)
    full, some = torch.randn(B, T, N, D), torch.rand(B, T, N) < 0.6
    own = torch.zeros(T, dtype=torch.bool)
    own[tokens] = True
    part = Context(full[:, tokens], some[:, tokens], tokens)
    whole = Context(full, some & own[:, None])
    for valid in (None, torch.tensor([[True] * T, [False, True, True, False, True, True, True]])):
        y, state = backbone(x, valid=valid, context=whole, wanted=wanted)
        found, after = backbone(x, valid=valid, context=part, wanted=wanted)
        torch.testing.assert_close(found, y, rtol=1e-12, atol=1e-12)
        for name, value in state.tensors.items():
            torch.testing.assert_close(after.tensors[name], value, rtol=1e-12, atol=1e-12)


def test_a_stream_of_streams_repeats_its_elements() -> None:
    context = Context(torch.randn(B, T, N, D), torch.rand(B, T, N) < 0.5)
    twice = context.repeated(2)
    assert torch.equal(twice.rows[2], context.rows[1]) and torch.equal(twice.exists[1], context.exists[0])
    assert context.repeated(1) is context


def test_calls_whose_context_is_missing_of_another_size_or_not_read_are_refused() -> None:
    x, rows, exists = torch.randn(B, T, D), torch.randn(B, T, N, D), torch.ones(B, T, N, dtype=torch.bool)
    with pytest.raises(ConfigError, match="reads the elements of every observation: pass context="):
        looking()(x)
    with pytest.raises(ConfigError, match=r"the context of 7 tokens in 2 streams has rows \(2, 7, 5, 15\)"):
        looking()(x, context=Context(rows[..., 1:], exists))
    with pytest.raises(ConfigError, match="no layer reads the context that was passed"):
        Backbone(config_of({}))(x, context=Context(rows, exists))
