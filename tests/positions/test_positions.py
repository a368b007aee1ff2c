"""Published values and identities of the position encodings."""

import math
from collections.abc import Iterator

import pytest
import torch

from rltransformers.backbone import Backbone
from rltransformers.core.errors import ConfigError, DataError
from rltransformers.core.spec import Choice, NoOptions
from rltransformers.mixers.interface import Dims
from rltransformers.positions import da, rope, shaw, trxl
from rltransformers.positions.alibi import slopes
from rltransformers.positions.catalogue import POSITIONS
from rltransformers.positions.interface import INSIDE_ATTENTION, Acts, Position, sinusoid
from rltransformers.positions.learned import LearnedOptions, LearnedTable, TimestepOptions, TimestepTable
from rltransformers.positions.t5 import bucket


@pytest.fixture(autouse=True)
def double() -> Iterator[None]:
    torch.set_default_dtype(torch.float64)
    yield
    torch.set_default_dtype(torch.float32)


def sizes(head_dim: int, heads: int = 1) -> Dims:
    return Dims(heads * head_dim, heads, heads, head_dim, head_dim, memory=0)


def learned(max_len: int) -> Position:
    return LearnedTable(sizes(4), LearnedOptions(max_len))


def pe(place: torch.Tensor, width: int = 12) -> torch.Tensor:
    return sinusoid(place, width, torch.zeros(()))


def test_sinusoids_have_the_published_values() -> None:
    encoded = pe(torch.arange(7))
    for p in range(7):
        for f in range(6):
            assert encoded[p, 2 * f].item() == pytest.approx(math.sin(p * 10_000 ** (-2 * f / 12)))
            assert encoded[p, 2 * f + 1].item() == pytest.approx(math.cos(p * 10_000 ** (-2 * f / 12)))


def test_sinusoids_have_one_length_and_products_that_depend_on_the_distance() -> None:
    encoded = pe(torch.arange(100))
    torch.testing.assert_close(encoded.square().sum(-1), torch.full((100,), 6.0))
    products = encoded @ encoded.T
    torch.testing.assert_close(products[5:, 5:], products[:-5, :-5])
    expected = sum(math.cos(7 * 10_000 ** (-2 * f / 12)) for f in range(6))
    assert products[20, 27].item() == pytest.approx(expected)


def test_sinusoids_of_later_places_are_rotations() -> None:
    k, encoded = 9, pe(torch.arange(40))
    for f in range(6):
        angle = k * 10_000 ** (-2 * f / 12)
        turn = torch.tensor([[math.cos(angle), math.sin(angle)], [-math.sin(angle), math.cos(angle)]])
        pair = encoded[:, 2 * f : 2 * f + 2]
        torch.testing.assert_close(pair[k:], pair[:-k] @ turn.T)


def test_an_odd_width_is_encoded_too() -> None:
    assert pe(torch.arange(3), 5).shape == (3, 5)


def test_buckets_of_t5_are_the_published_ones() -> None:
    distance = torch.tensor([0, 15, 16, 17, 18, 19, 31, 32, 64, 127, 128, 1000])
    assert bucket(distance, 32, 128).tolist() == [0, 15, 16, 16, 16, 17, 21, 21, 26, 31, 31, 31]
    assert bucket(torch.arange(300), 32, 128).diff().ge(0).all()


def test_slopes_of_alibi_are_the_published_ones() -> None:
    assert slopes(8) == [2.0**-h for h in range(1, 9)]
    assert slopes(12) == [2.0**-h for h in range(1, 9)] + [2**-0.5, 2**-1.5, 2**-2.5, 2**-3.5]
    assert slopes(1) == [2.0**-8]
    assert len(slopes(5)) == 5


def test_rotary_scores_depend_on_the_distance_only() -> None:
    encoding = rope.Rope(sizes(8), rope.Options())
    q, k = torch.randn(8), torch.randn(8)

    def score(i: int, j: int) -> torch.Tensor:
        turned = [encoding.turn(each, encoding.circle(torch.tensor(back), each)) for each, back in ((q, i), (k, j))]
        return turned[0] @ turned[1]

    torch.testing.assert_close(score(3, 1), score(103, 101))
    torch.testing.assert_close(score(5, 5), q @ k)
    assert not torch.isclose(score(3, 1), score(3, 2))


def test_rotation_keeps_lengths_the_first_place_and_the_channels_beyond_its_dims() -> None:
    rows, places = torch.randn(6, 7), torch.arange(6)
    encoding = rope.Rope(sizes(7), rope.Options(dims=4))
    turned = encoding.turn(rows, encoding.circle(places, rows))
    torch.testing.assert_close(turned.norm(dim=-1), rows.norm(dim=-1))
    assert torch.equal(turned[0], rows[0])
    assert torch.equal(turned[:, 4:], rows[:, 4:])
    assert not torch.isclose(turned[1:, :4], rows[1:, :4]).any()


@pytest.mark.parametrize("dims", [3, 0, 10])
def test_rotary_dims_that_do_not_fit_are_refused(dims: int) -> None:
    with pytest.raises(ConfigError, match=rf"rope dims \({dims}\) must be even, positive and at most the head width"):
        rope.Rope(sizes(8), rope.Options(dims=dims))


def test_shaw_distances_are_clipped_at_the_last_row() -> None:
    encoding = shaw.Shaw(sizes(4, heads=2), shaw.Options(max_distance=3))
    q = torch.randn(1, 2, 5, 4)
    logits = encoding.scores(q, encoding.of_distances(torch.arange(9), q))
    naive = torch.stack([q @ encoding.get_parameter("keys")[min(d, 3)] for d in range(9)], -1) / 2
    torch.testing.assert_close(logits, naive)


def test_one_vector_on_all_distances_shifts_all_scores_of_a_query_alike() -> None:
    encoding = trxl.TransformerXLRelative(sizes(3, heads=2), NoOptions())
    q = torch.randn(1, 2, 4, 3)
    scores = encoding.scores(q, encoding.of_distances(torch.arange(5), q))
    matrix = encoding.get_parameter("project.weight")
    r = matrix @ pe(torch.arange(5), 6).T
    shifted = (q + encoding.get_parameter("position_bias")) @ (r + 1.0).view(2, 3, 5) / math.sqrt(3)
    difference = shifted - scores
    torch.testing.assert_close(difference, difference[..., :1].expand_as(difference))


def test_learned_tables_are_looked_up_by_position_or_by_environment_step() -> None:
    x, p, n = torch.zeros(1, 3, 4), torch.tensor([[3, 4, 5]]), torch.tensor([[1, 1, 2]])
    by_position, by_step = learned(6), TimestepTable(sizes(4), TimestepOptions(max_len=6))
    for table, index in ((by_position, p), (by_step, n)):
        one_hot = torch.nn.functional.one_hot(index, 6).to(x.dtype)
        torch.testing.assert_close(table.embed(x, p, n), one_hot @ table.get_parameter("table.weight"))


def test_an_episode_longer_than_the_table_is_named() -> None:
    table = learned(6)
    with pytest.raises(DataError, match="episode position 6 is outside the position table of 6 rows; raise max_len"):
        table.check_places(torch.tensor([[6]]), torch.tensor([[0]]))
    steps = TimestepTable(sizes(4), TimestepOptions(max_len=6))
    with pytest.raises(DataError, match="environment step 9 is outside"):
        steps.check_places(torch.tensor([[0]]), torch.tensor([[9]]))


@pytest.mark.parametrize("name", ["attn_only", "untied"])
@pytest.mark.parametrize("cached", [False, True])
def test_an_episode_longer_than_a_table_inside_attention_is_named(name: str, cached: bool) -> None:
    position = {"name": name, "max_len": 6}
    backbone = Backbone({"position": position, "width": 6, "heads": 2, "layers": 1, "memory": 3})
    _, state = backbone(torch.randn(2, 6, 6), backbone.initial_state(2, cached=cached))
    with pytest.raises(DataError, match="episode position 6 is outside the position table of 6 rows"):
        backbone(torch.randn(2, 1, 6), state)
    backbone(torch.randn(2, 1, 6), state, torch.ones(2, 1, dtype=torch.bool))


def test_factors_of_da_grow_from_0_to_their_bound_and_are_1_at_the_token_itself() -> None:
    encoding = da.DistanceAware(sizes(4, heads=3), NoOptions())
    with torch.no_grad():
        encoding.get_parameter("slope").copy_(torch.tensor([0.5, -0.5, 0.0]))
        encoding.get_parameter("bound").copy_(torch.tensor([1.0, 0.3, 2.0]))
    factors = encoding.factors(torch.arange(200), torch.zeros(()))
    torch.testing.assert_close(factors[0], torch.ones(3))
    assert factors[:30, 0].diff().gt(0).all() and factors[:30, 1].diff().lt(0).all()
    assert factors[-1, 0].item() == pytest.approx(1 + math.e)
    assert factors[-1, 1].item() == pytest.approx(0)
    torch.testing.assert_close(factors[:, 2], torch.ones(200))
    assert factors[2, 0].item() == pytest.approx((1 + math.e) / (1 + math.exp(1 - 1)))
    products = torch.tensor([-2.0, 3.0]).expand(1, 3, 1, 2)
    assert encoding.multiplied(products, factors[:2].T[None, :, None])[0, 2, 0].tolist() == pytest.approx([0.0, 3.0])


@pytest.mark.parametrize("name", POSITIONS)
def test_an_encoding_acts_at_one_place(name: str) -> None:
    encoding = Choice.parse(name, "position", POSITIONS).build(sizes(6, heads=2))
    assert not (Acts.INPUT in encoding.acts and encoding.acts & INSIDE_ATTENTION)
    x, p = torch.randn(1, 4, 12), torch.arange(4)[None] + 1
    if Acts.INPUT in encoding.acts:
        assert not torch.equal(encoding.embed(x, p, p), x)
