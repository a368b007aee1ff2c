"""The action head against torch.distributions and by its definition: probabilities, samples from noise, tracing.

B rows, A outputs, U numbers of noise.
"""

import itertools
import math
from collections.abc import Callable
from typing import Any

import gymnasium as gym
import numpy as np
import pytest
import torch
from gymnasium import spaces
from torch import Tensor, distributions, nn
from torch.utils._python_dispatch import TorchDispatchMode

from rltransformers.core.errors import ConfigError
from rltransformers.policies.action_heads import ActionHead
from rltransformers.policies.action_leaves import (
    BinaryAction,
    CategoricalAction,
    ContinuousAction,
    GaussianAction,
    NormalAction,
    inner_bounds,
)
from rltransformers.policies.soft_head import SoftHead

SPACES: dict[str, gym.Space[Any]] = {
    "discrete": spaces.Discrete(3, start=4),
    "equal sizes": spaces.MultiDiscrete([3, 3], start=[0, 7]),
    "unequal sizes": spaces.MultiDiscrete(np.array([[2, 5, 3]])),
    "bits": spaces.MultiBinary([2, 2]),
    "box": spaces.Box(np.array([[-1.0, 0.1]]), np.array([[0.3, 0.7]]), dtype=np.float64),
    "integers": spaces.Box(np.array([-3, 0]), np.array([4, 255]), dtype=np.int16),
    "dict": spaces.Dict(
        {"arm": spaces.Box(-2.0, 2.0, (3,)), "grip": spaces.Discrete(4), "lamps": spaces.MultiBinary(2)}
    ),
    "tuple": spaces.Tuple([spaces.MultiDiscrete([2, 3]), spaces.Tuple([spaces.Discrete(2, start=-1)])]),
}
COUNTABLE = [name for name in SPACES if name not in ("box", "integers", "dict")]
# float64: sums of some ten terms of order 1 to 10
EXACT: dict[str, Any] = {"atol": 1e-12, "rtol": 0.0}


def gaussian_leaf(space: spaces.Box, *_: Any) -> GaussianAction:
    return GaussianAction(space, -0.4)


def head_of(space: gym.Space[Any]) -> ActionHead:
    torch.manual_seed(1)
    head = ActionHead(space, 6, box=gaussian_leaf, embeds=False).double()
    with torch.no_grad():
        for parameter in head.parameters():
            parameter.add_(torch.randn_like(parameter))
    return head


def outputs_of(head: ActionHead, rows: int = 7) -> Tensor:
    return 2 * torch.randn(rows, 2, head.linear.out_features, dtype=torch.float64)


def theirs(leaf: Any, output: Tensor) -> list[distributions.Distribution]:
    """The same leaf of torch.distributions, one for each component or for all."""
    if isinstance(leaf, CategoricalAction):
        return [distributions.Categorical(logits=part) for part in output.split(leaf.sizes, -1)]
    if isinstance(leaf, BinaryAction):
        return [distributions.Independent(distributions.Bernoulli(logits=output), 1)]
    assert isinstance(leaf, GaussianAction)
    return [distributions.Independent(distributions.Normal(output, leaf.log_std.exp()), 1)]


def values_of(leaf: Any, action: Tensor) -> list[Tensor]:
    """The action as those distributions count it."""
    flat = action.reshape(7, 2, -1)
    if isinstance(leaf, CategoricalAction):
        starts = leaf.start.expand(leaf.draws)
        return [flat[..., i] - starts[i] for i in range(leaf.draws)]
    return [flat.double()]


@pytest.mark.parametrize("name", SPACES)
def test_probabilities_and_entropies_are_those_of_torch_distributions(name: str) -> None:
    head = head_of(SPACES[name])
    outputs = outputs_of(head)
    noise = torch.stack([head.draw(2, torch.Generator().manual_seed(row)) for row in range(7)]).double()
    actions = head.decode(outputs, noise)
    log_prob = entropy = torch.zeros(7, 2, dtype=torch.float64)
    for path, leaf in head.by_path.items():
        for distribution, value in zip(
            theirs(leaf, head.split(outputs)[path]), values_of(leaf, actions[path]), strict=True
        ):
            log_prob = log_prob + distribution.log_prob(value)
            entropy = entropy + distribution.entropy()
    torch.testing.assert_close(head.log_prob(outputs, actions), log_prob, **EXACT)
    torch.testing.assert_close(head.entropy(outputs), entropy, **EXACT)


@pytest.mark.parametrize("name", COUNTABLE)
def test_shares_of_evenly_spaced_noise_are_the_probabilities(name: str) -> None:
    """Noise on a grid of n points per component: every share is the probability up to one point of the grid."""
    head = head_of(SPACES[name])
    output, n = outputs_of(head, 1)[:, 0], 4000
    noise = ((torch.arange(n) + 0.5) / n)[:, None].double().expand(n, head.draws)
    drawn = head.decode(output.expand(n, -1), noise)
    for path, leaf in head.by_path.items():
        flat = drawn[path].reshape(n, -1)
        if isinstance(leaf, CategoricalAction):
            flat = flat - leaf.start
        for column in range(flat.shape[1]):
            part = theirs(leaf, head.split(output)[path])[column if isinstance(leaf, CategoricalAction) else 0]
            if isinstance(leaf, BinaryAction):
                probabilities = torch.stack([1 - part.mean[0, column], part.mean[0, column]])
            else:
                assert isinstance(part, distributions.Categorical)
                probabilities = part.probs[0]
            share = torch.bincount(flat[:, column].long(), minlength=len(probabilities)) / n
            torch.testing.assert_close(share.double(), probabilities, atol=1.01 / n, rtol=0.0)


def test_noise_moves_a_box_by_standard_deviations() -> None:
    head = head_of(SPACES["box"])
    outputs, noise = outputs_of(head)[:, 0], torch.randn(7, 2, dtype=torch.float64)
    (log_std,) = (parameter for name, parameter in head.named_parameters() if "log_std" in name)
    torch.testing.assert_close(head.decode(outputs, noise)[""][:, 0], outputs + noise * log_std.exp(), **EXACT)
    assert torch.equal(head.decode(outputs)[""][:, 0], outputs)


@pytest.mark.parametrize("dtype", [torch.float32, torch.float64])
def test_a_class_without_probability_is_never_drawn(dtype: torch.dtype) -> None:
    """Rounded probabilities do not sum to 1: noise beside 0 and beside 1 must not fall on what lies outside."""
    leaf = CategoricalAction(spaces.Discrete(40), None)
    generator = torch.Generator().manual_seed(0)
    logits = torch.randn(5000, 40, generator=generator, dtype=dtype)
    logits[:, [0, 1, 20, 38, 39]] = -1e4
    below_one = torch.nextafter(torch.ones((), dtype=dtype), torch.zeros((), dtype=dtype))
    for noise in (torch.zeros((), dtype=dtype), below_one):
        drawn = leaf.decode(logits, noise.expand(5000, 1))
        assert not bool(torch.isin(drawn, torch.tensor([0, 1, 20, 38, 39])).any())
    bits = BinaryAction(spaces.MultiBinary(2), None).to(dtype)
    sure = torch.tensor([[-1e4, 1e4]], dtype=dtype)
    for noise in (torch.zeros(1, 2, dtype=dtype), below_one.expand(1, 2)):
        assert bits.decode(sure, noise).tolist() == [[0, 1]]


@pytest.mark.parametrize("name", SPACES)
def test_the_decision_without_noise_is_the_most_likely_one(name: str) -> None:
    head = head_of(SPACES[name])
    outputs = outputs_of(head)
    best = head.log_prob(outputs, head.decode(outputs))
    for seed in range(20):
        noise = head.draw(14, torch.Generator().manual_seed(seed)).double().view(7, 2, -1)
        assert bool((head.log_prob(outputs, head.decode(outputs, noise)) <= best).all())


@pytest.mark.parametrize("name", SPACES)
def test_decisions_are_members_of_the_space_once_they_are_executed(name: str) -> None:
    head = head_of(SPACES[name]).float()
    outputs = 9 * outputs_of(head, 40)[:, 0].float()
    noise = head.draw(40, torch.Generator().manual_seed(0))
    for actions in (head.execute(head.decode(outputs, noise)), head.execute(head.decode(outputs))):
        for path, space in head.spaces.items():
            for row in actions[path].detach().numpy().astype(space.dtype):
                assert space.contains(row[()] if isinstance(space, spaces.Discrete) else row)


def test_a_box_of_integers_executes_the_nearest_one() -> None:
    space = spaces.Box(0, 10, (3,), np.int64)
    wanted = (torch.tensor([6.8, 2.4, 12.0]) - 5) / 5
    assert GaussianAction(space, 0.0).execute(wanted).tolist() == [7.0, 2.0, 10.0]
    bits = spaces.Box(0, 1, (2,), np.bool_)  # type: ignore[arg-type]  # gymnasium takes bool_ but does not annotate it
    assert GaussianAction(bits, 0.0).execute(torch.tensor([-0.2, 0.2])).tolist() == [0, 1]
    for kind in (ContinuousAction, NormalAction):
        leaf = kind(space, 4)
        output = torch.cat([(wanted.clamp(max=0.98)).atanh(), torch.zeros(leaf.outputs - 3)])
        assert leaf.decode(output).tolist() == [7.0, 2.0, 10.0]
        assert leaf.disturbed(torch.tensor([7, 2, 10]), torch.tensor([0.1, -0.3, 0.2])).tolist() == [8.0, 0.0, 10.0]
    sample = NormalAction(space, 4).decode(torch.zeros(50, 6), torch.rand(50, 6))
    assert torch.equal(sample, sample.round()) and len(sample.unique()) > 5
    wide = ContinuousAction(spaces.Box(-np.inf, np.inf, (1,), np.int32), 4)
    assert wide.decode(torch.tensor([2.6])).tolist() == [3.0]


@pytest.mark.parametrize("kind", [ContinuousAction, NormalAction])
def test_components_without_bounds_have_the_units_they_are_given_and_fixed_ones_are_zero(kind: Any) -> None:
    low, high = np.array([-np.inf, 50.0, -2.0, 100.0]), np.array([np.inf, np.inf, 6.0, 100.0])
    leaf = kind(spaces.Box(low, high, dtype=np.float64), 4, [[1e3, 60.0, 7.0, 7.0], [100.0, 5.0, 9.0, 9.0]])
    action = torch.tensor([1200.0, 45.0, 6.0, 100.0])
    assert leaf.as_numbers(action).tolist() == [2.0, -3.0, 1.0, 0.0]
    output = torch.cat([torch.tensor([2.0, -1.0, 0.0, 9.0]), torch.zeros(leaf.outputs - 4)])
    assert leaf.decode(output).tolist() == [1200.0, 55.0, 2.0, 100.0]
    assert leaf.decode(-3.0 * output).tolist()[1] == 75.0 and leaf.decode(4.0 * output).tolist()[1] == 50.0


@pytest.mark.parametrize(
    ("low", "high", "of_zero", "of_one"),
    [
        (-1.0, 1.0, 0.0, 1.0),
        (0.0, 100.0, 50.0, 100.0),
        (1e-3, 2e-3, 1.5e-3, 2e-3),
        (7.0, 7.0, 7.0, 7.0),
        (-np.inf, np.inf, 0.0, 1.0),
        (-np.inf, 0.5, 0.0, 0.5),
        (0.25, np.inf, 0.25, 1.0),
        (-3.4e38, 3.4e38, 0.0, 1.0),
    ],
)
def test_every_leaf_of_a_box_has_the_same_units(low: float, high: float, of_zero: float, of_one: float) -> None:
    space = spaces.Box(low, high, (2, 1), np.float64)
    gaussian, *others = GaussianAction(space, 0.0), ContinuousAction(space, 4), NormalAction(space, 4)
    for leaf in others:
        assert torch.equal(leaf.center, gaussian.center) and torch.equal(leaf.scale, gaussian.scale)
        assert torch.equal(leaf.inside(torch.tensor([0.3, -0.7])), gaussian.inside(torch.tensor([0.3, -0.7])))
    for unit, action in ((0.0, of_zero), (1.0, of_one), (-30.0, max(low, -30.0))):
        sample = torch.full((2, 1), unit)
        torch.testing.assert_close(gaussian.execute(sample), torch.full((2, 1), action), rtol=1e-6, atol=0.0)
    inside = torch.tensor([[0.5], [0.25]])
    if (low, high) == (-1.0, 1.0):
        assert torch.equal(gaussian.execute(inside), inside)
    if np.isfinite([low, high]).all() and low < high < 1e30:
        torch.testing.assert_close(
            gaussian.as_numbers(gaussian.execute(inside)), inside.flatten(), rtol=1e-5, atol=1e-6
        )


@pytest.mark.parametrize(
    ("low", "high", "dtype"),
    [
        (1e6, 1e6 + 0.02, np.float64),
        (-2.4e9 - 100.0, -2.4e9, np.float64),
        (1.0, 1.0001, np.float32),
        (2**24, 2**24 + 3, np.int64),
    ],
)
def test_a_box_that_is_narrow_for_its_distance_from_zero_is_refused(low: float, high: float, dtype: Any) -> None:
    space = spaces.Box(np.array([-1, low], dtype), np.array([1, high], dtype), dtype=dtype)
    way_out = "fewer than 1,024 numbers between .* and .*RescaleAction"
    makers: list[Callable[[], object]] = [
        lambda: ActionHead(space, 8, box=gaussian_leaf),
        lambda: ActionHead(spaces.Dict({"arm": space}), 8),
        lambda: SoftHead(space, 8),
    ]
    for make in makers:
        with pytest.raises(ConfigError, match=way_out):
            make()


@pytest.mark.parametrize(
    ("low", "high", "dtype"),
    [(1e6, 1e6 + 3, np.int64), (2**40, 2**40 + 2**35, np.int64), (1.0, 1.0, np.float32), (0.0, 1e-30, np.float64)],
)
def test_a_box_of_numbers_that_float32_tells_apart_acts_between_its_bounds(low: float, high: float, dtype: Any) -> None:
    head = ActionHead(spaces.Box(np.array([low], dtype), np.array([high], dtype), dtype=dtype), 8, box=gaussian_leaf)
    found = head.execute({"": torch.linspace(-1.0, 1.0, 7)[:, None]})[""].double()
    assert float(found[0]) == pytest.approx(low) and float(found[-1]) == pytest.approx(high)
    assert len(found.unique()) == (1 if low == high else 4 if high - low == 3 else 7)


@pytest.mark.parametrize("dtype", [np.float64, np.float32, np.int32])
def test_bounds_in_float32_lie_inside_the_box(dtype: Any) -> None:
    below, above = np.array([-0.4, -2.0, -(2.0**31)]), np.array([0.1, 0.4, 2.0**31 - 1])
    space = spaces.Box(below.astype(dtype), above.astype(dtype), dtype=dtype)
    low, high = inner_bounds(space)
    assert low.dtype == high.dtype == np.float32
    assert (low.astype(np.float64) >= space.low).all() and (high.astype(np.float64) <= space.high).all()
    # to the next number of float32: half a unit of the last place, or a whole one where it was rounded outwards
    np.testing.assert_allclose(low, space.low, rtol=1.2e-7)
    np.testing.assert_allclose(high, space.high, rtol=1.2e-7)


def every_action(head: ActionHead) -> list[dict[str, Tensor]]:
    """All actions of a countable space, [1, leaf shape] each."""
    choices = []
    for leaf in head.by_path.values():
        if isinstance(leaf, CategoricalAction):
            ranges = [range(size) for size in leaf.sizes]
            members = [torch.tensor(classes) + leaf.start for classes in itertools.product(*ranges)]
        else:
            assert isinstance(leaf, BinaryAction)
            members = [torch.tensor(bits) for bits in itertools.product(*[range(2)] * leaf.outputs)]
        choices.append([member.reshape(1, *leaf.shape) for member in members])
    return [dict(zip(head.spaces, each, strict=True)) for each in itertools.product(*choices)]


@pytest.mark.parametrize("name", COUNTABLE)
def test_all_probabilities_sum_to_one_and_the_log_barrier_is_the_divergence_from_the_uniform_policy(name: str) -> None:
    head = head_of(SPACES[name])
    output = outputs_of(head, 1)[:, 0]
    log_probs = torch.stack([head.log_prob(output, action) for action in every_action(head)])
    torch.testing.assert_close(log_probs.exp().sum(0), torch.ones(1, dtype=torch.float64), **EXACT)
    torch.testing.assert_close(head.entropy(output), -(log_probs.exp() * log_probs).sum(0), **EXACT)
    barrier = head.log_barrier(output)
    assert barrier is not None and float(barrier.detach()) < -0.03
    torch.testing.assert_close(barrier, log_probs.mean(0) + math.log(len(log_probs)), **EXACT)


def test_the_pull_of_the_log_barrier_does_not_fade_where_that_of_the_entropy_does() -> None:
    head = ActionHead(spaces.Discrete(3), 6, embeds=False)
    logits = torch.tensor([[30.0, 0.0, 0.0]], requires_grad=True)
    barrier = head.log_barrier(logits)
    assert barrier is not None
    pull = torch.autograd.grad(barrier.sum(), logits)[0]
    torch.testing.assert_close(pull, torch.tensor([[-2 / 3, 1 / 3, 1 / 3]]))
    faded = torch.autograd.grad(head.entropy(logits).sum(), logits)[0]
    assert float(faded.abs().max()) < 1e-10


@pytest.mark.parametrize("name", ["box", "dict"])
def test_a_space_with_a_box_has_no_log_barrier(name: str) -> None:
    head = head_of(SPACES[name])
    assert head.log_barrier(outputs_of(head)) is None


@pytest.mark.parametrize("name", SPACES)
def test_gradients_are_finite_where_the_network_is_certain(name: str) -> None:
    """Outputs of a thousand: probabilities of 0 and logarithms of -1000, beside classes that do not exist."""
    head = head_of(SPACES[name]).float()
    outputs = (1e3 * outputs_of(head, 3).float()).requires_grad_()
    total = head.log_prob(outputs, head.decode(outputs.detach())).sum() + head.entropy(outputs).sum()
    barrier = head.log_barrier(outputs)
    (total if barrier is None else total + barrier.sum()).backward()
    assert outputs.grad is not None and bool(outputs.grad.isfinite().all())


class Acting(nn.Module):
    """What a step does with its head."""

    def __init__(self, head: ActionHead) -> None:
        super().__init__()
        self.head = head

    def forward(self, features: Tensor, noise: Tensor) -> tuple[dict[str, Tensor], Tensor]:
        outputs = self.head(features)
        actions = self.head.decode(outputs, noise)
        return self.head.execute(actions), self.head.log_prob(outputs, actions)


@pytest.mark.parametrize("name", ["dict", "tuple", "unequal sizes"])
@pytest.mark.parametrize("strict", [True, False])
def test_a_traced_head_decides_like_the_head_itself(name: str, strict: bool) -> None:
    step = Acting(head_of(SPACES[name])).float()
    features, noise = torch.randn(5, 6), step.head.draw(5, torch.Generator().manual_seed(0))
    program = torch.export.export(step, (features, noise), strict=strict).module()
    for seed in range(3):
        other, draw = torch.randn(5, 6), step.head.draw(5, torch.Generator().manual_seed(seed))
        mine, found = step(other, draw), program(other, draw)
        torch.testing.assert_close(found, mine, atol=0.0, rtol=0.0)


class Operations(TorchDispatchMode):
    """Counts the operations on tensors."""

    count = 0

    def __torch_dispatch__(self, func: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        self.count += 1
        return func(*args, **(kwargs or {}))


def test_a_decision_between_classes_takes_few_operations() -> None:
    """Twelve of arithmetic and twelve that only look at the same numbers in another shape; each costs microseconds."""
    step = Acting(ActionHead(spaces.Discrete(4), 6, embeds=False))
    features, noise = torch.randn(5, 6), step.head.draw(5, None)
    with Operations() as operations, torch.inference_mode():
        step(features, noise)
    assert operations.count <= 24


def test_a_deterministic_box_has_no_probability() -> None:
    head = ActionHead(spaces.Box(-1.0, 1.0, (2,)), 6)
    assert isinstance(next(iter(head.by_path.values())), ContinuousAction) and head.draws == 0
    with pytest.raises(NotImplementedError):
        head.log_prob(torch.zeros(1, 2), {"": torch.zeros(1, 2)})


@pytest.mark.parametrize("name", SPACES)
def test_divergences_are_of_the_whole_distribution_and_sum_over_the_leaves_of_a_kind(name: str) -> None:
    head, old = head_of(SPACES[name]), head_of(SPACES[name])
    with torch.no_grad():
        for parameter in head.parameters():  # log deviations of Boxes among them
            parameter.add_(torch.randn_like(parameter))
    outputs, old_outputs = outputs_of(head).requires_grad_(), outputs_of(old).requires_grad_()
    found = head.divergences(outputs, old, old_outputs)
    parts, old_parts = head.split(outputs.detach()), old.split(old_outputs.detach())
    expected: dict[str, Tensor] = {}
    for (path, leaf), (_, old_leaf) in zip(head.by_path.items(), old.by_path.items(), strict=True):
        if isinstance(leaf, GaussianAction) and isinstance(old_leaf, GaussianAction):
            moved = distributions.Normal(parts[path], old_leaf.log_std.exp())
            wider = distributions.Normal(old_parts[path], leaf.log_std.exp())
            before = distributions.Normal(old_parts[path], old_leaf.log_std.exp())
            pieces = {"mean": moved, "covariance": wider}
            sums = {kind: distributions.kl_divergence(before, piece).sum(-1) for kind, piece in pieces.items()}
        else:
            pairs = zip(theirs(old_leaf, old_parts[path]), theirs(leaf, parts[path]), strict=True)
            sums = {"classes": torch.stack([distributions.kl_divergence(*pair) for pair in pairs]).sum(0)}
        for kind, value in sums.items():
            expected[kind] = expected.get(kind, torch.zeros(())) + value.detach()
    assert list(found) == head.divergence_kinds() == sorted(expected, key=["classes", "mean", "covariance"].index)
    for kind, value in found.items():
        torch.testing.assert_close(value.detach(), expected[kind], **EXACT)
    torch.stack(list(found.values())).sum().backward()
    assert old_outputs.grad is None and all(parameter.grad is None for parameter in old.parameters())
    assert outputs.grad is not None and float(outputs.grad.abs().sum()) > 0.0


# Boxes with predicted deviations


def normal_head() -> tuple[ActionHead, NormalAction, Tensor]:
    """A head over bounded and unbounded components, its leaf, and some outputs."""
    torch.manual_seed(3)
    space = spaces.Box(np.array([-2.0, 0.0, -np.inf]), np.array([2.0, 0.5, np.inf]), dtype=np.float64)
    head = ActionHead(space, 6, box=NormalAction).double()
    ((_, leaf),) = head.dense_boxes()
    assert isinstance(leaf, NormalAction)
    return head, leaf, torch.randn(5, 2 * leaf.components, dtype=torch.float64)


def as_normal(leaf: NormalAction, outputs: Tensor) -> distributions.Normal:
    """In head units: tanh of the mean where there are bounds, deviations from exp(-5) to exp(2)."""
    mean, spread = outputs.chunk(2, -1)
    mean = torch.where(leaf.bounded, mean.tanh(), mean)
    return distributions.Normal(mean, torch.exp(-5.0 + 7.0 * (spread.tanh() + 1.0) / 2.0))


def test_a_normal_action_has_the_density_and_entropy_of_torch() -> None:
    head, leaf, outputs = normal_head()
    assert (head.numbers, head.draws, head.linear.out_features) == (3, 6, 6)
    action = torch.rand(5, 3, dtype=torch.float64)
    units = (action - torch.tensor([0.0, 0.25, 0.0])) / torch.tensor([2.0, 0.25, 1.0])
    normal = as_normal(leaf, outputs)
    torch.testing.assert_close(leaf.log_prob(outputs, action), normal.log_prob(units).sum(-1), atol=0.0, rtol=1e-12)
    torch.testing.assert_close(head.spread(outputs), normal.entropy().sum(-1), **EXACT)
    torch.testing.assert_close(head.as_numbers({"": action}), units, **EXACT)


def test_balanced_outputs_are_the_same_and_their_gradient_is_times_the_variance() -> None:
    head, leaf, outputs = normal_head()
    variance = leaf.log_std(outputs).mul(2.0).exp().repeat(1, 2)
    outputs.requires_grad_(True)
    action = torch.rand(5, 3, dtype=torch.float64)
    balanced = head.balance(outputs)
    assert torch.equal(balanced, outputs)
    (plain,) = torch.autograd.grad(leaf.log_prob(outputs, action).sum(), outputs)
    (found,) = torch.autograd.grad(leaf.log_prob(balanced, action).sum(), outputs)
    torch.testing.assert_close(found, plain * variance, **EXACT)


def test_its_mean_is_the_action_of_a_deterministic_head() -> None:
    head, leaf, outputs = normal_head()
    plain = ContinuousAction(head.spaces[""], 6).double()  # type: ignore[arg-type]
    torch.testing.assert_close(leaf.decode(outputs), plain.decode(outputs[..., :3]), **EXACT)


def test_uniform_noise_makes_samples_of_the_normal_inside_the_box() -> None:
    head, leaf, outputs = normal_head()
    count = 20_000
    noise = torch.rand(count, head.draws, generator=torch.Generator().manual_seed(0), dtype=torch.float64)
    row = outputs[:1].clone()
    row[:, 3:] = -0.4  # deviations of exp(-2.8): bounds cut nothing off
    row[:, :3] = torch.tensor([0.1, -0.2, 0.7])
    sampled = leaf.decode(row.expand(count, -1), noise)
    normal = as_normal(leaf, row[0])
    scale = torch.tensor([2.0, 0.25, 1.0], dtype=torch.float64)
    units = (sampled - torch.tensor([0.0, 0.25, 0.0], dtype=torch.float64)) / scale
    # Six standard errors of a mean and of a deviation over 20,000 samples.
    assert ((units.mean(0) - normal.mean).abs() < 6 * normal.stddev / count**0.5).all()
    assert ((units.std(0) / normal.stddev - 1).abs() < 6 / (2 * count) ** 0.5).all()
    assert torch.corrcoef(units.T)[0, 1].abs() < 6 / count**0.5
    for extreme in (
        torch.zeros(1, head.draws),
        torch.ones(1, head.draws) - 2**-24,
    ):  # float32 and its last number below 1
        wide = torch.full((1, 6), 9.0)
        found = leaf.float().decode(wide, extreme.float())
        assert found.isfinite().all() and (found[:, :2] <= torch.tensor([2.0, 0.5])).all()


@pytest.mark.parametrize("kind", [ContinuousAction, NormalAction])
def test_predicted_actions_lie_in_a_box_whose_bounds_float32_cannot_hold(kind: type[ContinuousAction]) -> None:
    space = spaces.Box(-0.1, 0.1, (2,), np.float64)
    leaf = kind(space, 4)
    for sign in (-1.0, 1.0):
        output = torch.full((leaf.outputs,), 50.0 * sign)
        for action in (leaf.decode(output), leaf.disturbed(torch.zeros(2), torch.full((2,), 9.0 * sign))):
            assert space.contains(action.numpy().astype(np.float64))
