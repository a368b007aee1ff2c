"""What every encoder of elements keeps, whatever its mechanism."""

import copy
import math
from typing import Any

import pytest
import torch
from gymnasium import spaces
from torch import Tensor, nn

from rltransformers.core.spec import Choice
from rltransformers.laws.costs import cost
from rltransformers.policies.observed import SetEncoder, build_encoder
from rltransformers.policies.set_encoders.catalogue import ENCODERS, read_encoder
from rltransformers.policies.set_encoders.interface import Encoded
from tests.policies.set_encoders import twins
from tests.policies.set_encoders.rows import (
    ELEMENTS,
    FEATURES,
    HEADS,
    LEAD,
    ROWS,
    SPACE,
    WIDTH,
    encoder_of,
    observations,
)

every_row = pytest.mark.parametrize("name", ROWS)

ROUNDING = 1e-12
"""Sums of a few hundred products of float64 in another order; layer norms make it ten times more."""


def close(found: Encoded, expected: Encoded, atol: float = ROUNDING) -> None:
    torch.testing.assert_close(found.rows, expected.rows, atol=atol, rtol=0)
    torch.testing.assert_close(found.pooled, expected.pooled, atol=atol, rtol=0)
    assert torch.equal(found.exists, expected.exists)


def both(found: Encoded) -> Tensor:
    """A number that depends on every row and on what is pooled, with other weights for each."""
    rows = torch.linspace(-1, 1, found.rows.numel(), dtype=found.rows.dtype).sin().view_as(found.rows)
    pooled = torch.linspace(-2, 1, found.pooled.numel(), dtype=found.rows.dtype).cos().view_as(found.pooled)
    return (rows * found.rows).sum() + (pooled * found.pooled).sum()


def test_every_entry_has_a_row() -> None:
    assert {row.name for row in ROWS.values()} == set(ENCODERS)
    for name, spec in ENCODERS.items():
        assert (spec.name, spec.axis) == (name, "encoder")
        assert spec.paper and spec.summary and spec.formula and spec.traits.causal_form


@pytest.mark.parametrize("name", ENCODERS)
def test_examples_build_and_are_written_as_they_are_read(name: str) -> None:
    choice = read_encoder(ENCODERS[name].example["observation"]["encoder"])
    assert choice is not None and read_encoder(choice.to_dict()) == choice
    encoder = build_encoder(choice, SPACE, 8)
    assert encoder.elements.paths == ("units",)
    found = encoder({path: value.float() for path, value in observations().items()})
    assert found.rows.shape == (*LEAD, ELEMENTS, 8) and found.pooled.shape == (*LEAD, 8)
    assert found.exists.all()


@every_row
def test_shapes_and_rows_of_absent_elements(name: str) -> None:
    encoder, leaves = encoder_of(ROWS[name]), observations()
    found = encoder(leaves)
    assert encoder.elements.paths == ("units", "alive") and encoder.elements.count == ELEMENTS
    assert found.rows.shape == (*LEAD, ELEMENTS, WIDTH) and found.pooled.shape == (*LEAD, WIDTH)
    assert torch.equal(found.exists, leaves["alive"].bool())
    assert torch.equal(found.rows.ne(0).any(-1), found.exists)


@every_row
def test_what_stands_at_absent_elements_changes_nothing(name: str) -> None:
    encoder, leaves = encoder_of(ROWS[name]), observations()
    absent = (leaves["alive"] == 0)[..., None]
    for content in (17.0, math.nan):
        other = leaves | {"units": leaves["units"].masked_fill(absent, content).requires_grad_()}
        found = encoder(other)
        close(found, encoder(leaves), atol=0)
        both(found).backward()
        gradient = other["units"].grad
        assert gradient is not None and torch.equal(gradient.ne(0).any(-1), ~absent[..., 0])
        assert all(each.grad is not None and each.grad.isfinite().all() for each in encoder.parameters())


@every_row
def test_no_layer_reads_rows_of_absent_elements(name: str) -> None:
    """Tokens of absent elements are the same for all; here they are made to differ behind the tokens."""
    encoder, leaves = encoder_of(ROWS[name]), observations()
    exists = leaves["alive"].bool().flatten(0, 1)
    x = torch.randn(*exists.shape, WIDTH, dtype=torch.float64, requires_grad=True)
    noise = torch.randn_like(x).masked_fill(exists[..., None], 0.0)
    found, other = encoder.stack(x, exists), encoder.stack(x + 9 * noise, exists)
    torch.testing.assert_close(found[exists], other[exists], atol=ROUNDING, rtol=0)
    torch.testing.assert_close(encoder.pooling(x, exists), encoder.pooling(x + 9 * noise, exists), atol=0, rtol=0)
    (gradient,) = torch.autograd.grad((found[exists] * torch.randn_like(found[exists])).sum(), x)
    assert torch.equal(gradient.ne(0).any(-1), exists)
    (gradient,) = torch.autograd.grad(encoder.pooling(x, exists).square().sum(), x)
    assert torch.equal(gradient.ne(0).any(-1), exists)


@every_row
def test_observations_do_not_change_each_other(name: str) -> None:
    encoder, leaves = encoder_of(ROWS[name]), observations()
    other = observations(seed=8)
    mixed = {path: value.clone() for path, value in leaves.items()}
    for path in mixed:
        mixed[path][1] = 3 * other[path][1]
    found, expected = encoder(mixed), encoder(leaves)
    close(Encoded(found.rows[0], found.exists[0], found.pooled[0]),
          Encoded(expected.rows[0], expected.exists[0], expected.pooled[0]), atol=0)  # fmt: skip


@every_row
def test_leading_axes_do_not_matter(name: str) -> None:
    encoder, leaves = encoder_of(ROWS[name]), observations()
    whole = encoder(leaves)
    for b in range(LEAD[0]):
        for t in range(LEAD[1]):
            alone = encoder({path: value[b, t] for path, value in leaves.items()})
            close(alone, Encoded(whole.rows[b, t], whole.exists[b, t], whole.pooled[b, t]))
    deep = encoder({path: value[:, None, :, None] for path, value in leaves.items()})
    close(Encoded(deep.rows[:, 0, :, 0], deep.exists[:, 0, :, 0], deep.pooled[:, 0, :, 0]), whole)
    none = encoder({path: value[:0] for path, value in leaves.items()})
    assert none.rows.shape == (0, LEAD[1], ELEMENTS, WIDTH)


@every_row
def test_values_and_gradients_are_those_of_the_slow_twin(name: str) -> None:
    row, encoder = ROWS[name], encoder_of(ROWS[name])
    leaves = observations((4,))
    leaves["alive"][1] = torch.tensor([0, 0, 0, 0, 1, 0, 1, 1, 0, 1])  # a segment of which nothing exists
    tokens, exists = encoder.elements(leaves)
    tokens = tokens.detach().requires_grad_()
    rows, pooled = [], []
    for x, present in zip(tokens, exists, strict=True):
        places = present.nonzero()[:, 0].tolist()
        slow = row.twin(encoder.stack, x[present], places)
        rows.append(torch.zeros_like(x).index_put((torch.tensor(places),), slow))
        pooled.append(twins.pooled(encoder.pooling, list(slow)))
    expected = Encoded(torch.stack(rows), exists, torch.stack(pooled))
    fast = encoder.stack(tokens, exists).masked_fill(~exists[..., None], 0.0)
    found = Encoded(fast, exists, encoder.pooling(fast, exists))
    close(found, expected)
    weights = [tokens, *(each for part in (encoder.stack, encoder.pooling) for each in part.parameters())]
    ours, theirs = (torch.autograd.grad(both(each), weights) for each in (found, expected))
    for mine, other in zip(ours, theirs, strict=True):
        torch.testing.assert_close(mine, other, atol=1e-9, rtol=1e-9)  # gradients here are up to 100


@every_row
def test_an_observation_without_elements_has_finite_outputs_and_gradients(name: str) -> None:
    encoder, leaves = encoder_of(ROWS[name]), observations()
    leaves["alive"][0] = 0
    leaves["units"].requires_grad_()
    found = encoder(leaves)
    assert found.rows[0].eq(0).all() and found.pooled.isfinite().all() and not found.exists[0].any()
    empty = twins.pooled(encoder.pooling, [])
    torch.testing.assert_close(found.pooled[0], empty.expand(LEAD[1], -1), atol=ROUNDING, rtol=0)
    both(found).backward()
    assert leaves["units"].grad is not None and leaves["units"].grad[0].eq(0).all()
    assert all(each.grad is not None and each.grad.isfinite().all() for each in encoder.parameters())


@every_row
def test_a_single_element_is_enough(name: str) -> None:
    row = ROWS[name]
    options = {
        key: value
        for key, value in row.options.items()
        if key not in ("slots", "samples", "active_queries", "landmarks")
    }
    choice = read_encoder({**options, "heads": HEADS})
    assert choice is not None
    found = build_encoder(choice, spaces.Box(-1, 1, (1, FEATURES)), WIDTH)({"": torch.randn(LEAD[0], 1, FEATURES)})
    assert found.rows.isfinite().all() and found.rows.shape == (LEAD[0], 1, WIDTH)


@every_row
def test_without_positions_elements_are_a_set_where_the_mechanism_has_it(name: str) -> None:
    row, order = ROWS[name], torch.randperm(ELEMENTS)
    leaves = observations()
    permuted = {path: value[:, :, order] for path, value in leaves.items()}
    for position in ("none", "learned", "sinusoidal"):
        encoder = encoder_of(row, position=position)
        found, other = encoder(leaves), encoder(permuted)
        rows = (found.rows[:, :, order] - other.rows).abs().amax()
        pooled = (found.pooled - other.pooled).abs().amax()
        if position == "none" and row.symmetric:
            assert rows < ROUNDING and pooled < ROUNDING
        else:
            assert rows > 1e-3 and pooled > 1e-3


@every_row
def test_every_parameter_gets_a_gradient(name: str) -> None:
    for position in ("none", "learned"):
        encoder = encoder_of(ROWS[name], position=position)
        both(encoder(observations())).backward()
        for label, each in encoder.named_parameters():
            assert each.grad is not None and each.grad.abs().amax() > 1e-8, label


@every_row
def test_gradients_are_those_of_differences(name: str) -> None:
    encoder, leaves = encoder_of(ROWS[name], layers=1), observations((1,))

    def function(units: Tensor, *weights: Tensor) -> tuple[Tensor, Tensor]:
        names = [label for label, _ in encoder.named_parameters()]
        values = dict(zip(names, weights, strict=True))
        found = torch.func.functional_call(encoder, values, ({"units": units, "alive": leaves["alive"]},))
        return found.rows, found.pooled

    weights = [each.detach().clone().requires_grad_() for each in encoder.parameters()]
    assert torch.autograd.gradcheck(function, (leaves["units"].requires_grad_(), *weights), fast_mode=True)


def test_second_gradients_are_those_of_differences() -> None:
    """Entry by entry of the Hessian: the tolerance of fast mode, a sum over all of them, hides a wrong one."""
    for row in {row.name: row for row in ROWS.values()}.values():
        encoder, leaves = encoder_of(row, layers=1), observations((1,))
        alive = leaves["alive"]

        def function(units: Tensor, encoder: SetEncoder = encoder, alive: Tensor = alive) -> Tensor:
            return both(encoder({"units": units, "alive": alive}))

        assert torch.autograd.gradgradcheck(function, (leaves["units"].requires_grad_(),), atol=1e-6, rtol=1e-4)


@every_row
def test_work_and_kept_memory_grow_with_the_elements_as_declared(name: str) -> None:
    row, costs = ROWS[name], []
    lengths = (512, 2048)
    options = {key: value for key, value in row.options.items() if key not in ("samples", "active_queries")}
    for length in lengths:
        choice = read_encoder({**options, **row.whole, "heads": 2, "layers": 1})
        assert choice is not None
        encoder = build_encoder(choice, spaces.Box(-1, 1, (length, 3)), 8)
        leaves = {"": torch.randn(1, length, 3)}
        costs.append(cost(lambda encoder=encoder, leaves=leaves: encoder(leaves).pooled))  # type: ignore[misc]
    declared = ENCODERS[row.name].traits.time
    for first, last in zip(*costs, strict=True):
        growth = math.log(last / first) / math.log(lengths[1] / lengths[0])
        # ln N grows by a quarter here, and c ceil(ln N) by a seventh; beside N^2 stand terms in N.
        low, high = {"N": (0.9, 1.05), "N ln N": (0.9, 1.2), "N^2": (1.5, 2.05)}[declared]
        assert low <= growth <= high


@every_row
def test_precisions_agree(name: str) -> None:
    encoder, leaves = encoder_of(ROWS[name]), observations()
    expected = encoder(leaves)
    single = copy.deepcopy(encoder).float()
    leaves = leaves | {"units": leaves["units"].float()}
    found = single(leaves)
    assert found.rows.dtype == found.pooled.dtype == torch.float32
    # 100 roundings of 6e-8 to values of up to 3; the inputs are rounded, too.
    torch.testing.assert_close(found.rows.double(), expected.rows, atol=1e-5, rtol=1e-5)
    torch.testing.assert_close(found.pooled.double(), expected.pooled, atol=1e-5, rtol=1e-5)
    with torch.autocast("cpu", torch.bfloat16):
        rough = single(leaves)
    both(rough).backward()
    assert all(each.grad is not None and each.grad.isfinite().all() for each in single.parameters())
    # Rows leave a layer norm, whose gains are near 1: at most sqrt(W) of them, 4.5, and a bias.
    assert rough.rows.isfinite().all() and rough.rows.abs().amax() < 8
    assert rough.pooled.isfinite().all() and rough.pooled.abs().amax() < 8


@every_row
def test_saved_weights_and_seeds_give_the_same_encoder(name: str) -> None:
    row, leaves = ROWS[name], observations()
    encoder = encoder_of(row)
    close(encoder_of(row)(leaves), encoder(leaves), atol=0)
    other = encoder_of(row, start=6)
    assert (other(leaves).rows - encoder(leaves).rows).abs().amax() > 1e-3
    other.load_state_dict(encoder.state_dict())  # what is drawn and not saved must not depend on the seed
    close(other(leaves), encoder(leaves), atol=0)


class AsTuple(nn.Module):
    """Leaves and outputs one by one, which exported programs take."""

    def __init__(self, encoder: SetEncoder) -> None:
        super().__init__()
        self.encoder = encoder

    def forward(self, units: Tensor, alive: Tensor) -> tuple[Tensor, Tensor, Tensor]:
        found = self.encoder({"units": units, "alive": alive})
        return found.rows, found.exists, found.pooled


@every_row
def test_an_exported_encoder_is_the_eager_one(name: str) -> None:
    """With two layers where those share weights or hand on a second stream: elsewhere the first shows all.

    Strict tracing reads the code and takes four times as long: an encoder of two streams is enough.
    """
    strict = name == "luna"
    encoder = encoder_of(ROWS[name], layers=2 if name in ("linformer_layerwise", "luna") else 1).eval()
    leaves, other = observations(), observations((5, LEAD[1]), seed=12)
    batch = torch.export.Dim("batch", min=2, max=64)
    program = torch.export.export(
        AsTuple(encoder), tuple(leaves.values()), dynamic_shapes=({0: batch}, {0: batch}), strict=strict
    )
    for each in (leaves, other):
        close(Encoded(*program.module()(*each.values())), encoder(each))


def test_a_choice_is_read_once_and_none_stays_none() -> None:
    choice = read_encoder({"name": "bert", "layers": 3})
    assert isinstance(choice, Choice) and read_encoder(choice) == choice
    assert read_encoder(None) is None


def plain(name: str, **options: Any) -> SetEncoder:
    choice = read_encoder({"name": name, **options})
    assert choice is not None
    return build_encoder(choice, SPACE, WIDTH)


@every_row
def test_new_encoders_give_rows_of_unit_size(name: str) -> None:
    encoder = plain(**{**ROWS[name].options, "leaf": "units"})
    units = torch.randn(16, ELEMENTS, FEATURES)
    found = encoder({"units": units})
    for each in (found.rows, found.pooled):
        assert 0.9 < each.square().mean().sqrt() < 1.1  # the last step is a layer norm with gain 1
