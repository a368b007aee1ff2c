"""Masked heads against the distributions of MaskablePPO (sb3-contrib) and by enumeration; the layout of masks."""

import itertools
from typing import Any

import gymnasium as gym
import numpy as np
import pytest
import torch
from gymnasium import spaces
from sb3_contrib.common.maskable.distributions import MaskableDistribution, make_masked_proba_distribution
from torch import Tensor

from rltransformers.core.action_masks import (
    check_masks,
    check_recorded,
    choices_of,
    first_allowed,
    fit_masks,
    mask_space,
    observes_mask,
)
from rltransformers.core.errors import ConfigError, DataError
from rltransformers.core.spaces import leaf_spaces
from rltransformers.policies.action_heads import ActionHead
from rltransformers.policies.q_network import QHead
from tests.policies.test_action_heads import EXACT, head_of, outputs_of

SPACES: dict[str, gym.Space[Any]] = {
    "discrete": spaces.Discrete(5),
    "equal sizes": spaces.MultiDiscrete([3, 3]),
    "unequal sizes": spaces.MultiDiscrete([2, 5, 3]),
    "bits": spaces.MultiBinary(4),
}
MIXED = spaces.Dict(
    {
        "arm": spaces.Box(-2.0, 2.0, (3,)),
        "grip": spaces.Discrete(4, start=2),
        "lamps": spaces.MultiBinary(2),
        "wheel": spaces.MultiDiscrete([2, 3]),
    }
)
# float32 of sb3-contrib, sums of ten terms of order 1 to 10
THEIRS: dict[str, Any] = {"atol": 1e-5, "rtol": 0.0}


def masks_of(space: gym.Space[Any], rows: int, seed: int = 0) -> np.ndarray:
    """Random ones in which every component has something allowed."""
    generator = np.random.default_rng(seed)
    parts = []
    for size in choices_of(space):
        part = generator.random((rows, size)) < 0.5
        part[np.arange(rows), generator.integers(size, size=rows)] = True
        parts.append(part)
    return np.concatenate(parts, 1)


@pytest.mark.parametrize("space", [*SPACES.values(), spaces.Discrete(3, start=-2), MIXED], ids=str)
def test_the_first_actions_that_masks_allow_are_allowed(space: gym.Space[Any]) -> None:
    masks = masks_of(space, 40)
    found = first_allowed(masks, space)
    boxes = {path: np.zeros((40, *(leaf.shape or ()))) for path, leaf in leaf_spaces(space).items()}
    check_recorded(boxes | found, masks, space)
    leaves = leaf_spaces(space)
    assert all(leaves[path].contains(row) for path, rows in found.items() for row in rows)


def actions_of(space: gym.Space[Any]) -> list[np.ndarray]:
    """All of them."""
    if isinstance(space, spaces.Discrete):
        return [np.array(space.start + n) for n in range(space.n)]
    sizes = choices_of(space)
    return [np.array(each) for each in itertools.product(*map(range, sizes))]


def theirs(space: Any, outputs: Tensor, masks: np.ndarray) -> MaskableDistribution:
    """The distribution of sb3-contrib; a bit has one logit here and two there."""
    if isinstance(space, spaces.MultiBinary):
        outputs = torch.stack([torch.zeros_like(outputs), outputs], -1).flatten(-2)
    distribution = make_masked_proba_distribution(space).proba_distribution(outputs.float())
    distribution.apply_masking(masks)
    return distribution


@pytest.mark.parametrize("name", SPACES)
def test_masked_probabilities_are_those_of_sb3_contrib(name: str) -> None:
    space = SPACES[name]
    head, masks = head_of(space), masks_of(space, 40)
    outputs = 2 * torch.randn(40, head.linear.out_features, dtype=torch.float64)
    masked = head.masked(outputs, torch.as_tensor(masks))
    distribution = theirs(space, outputs, masks)
    torch.testing.assert_close(head.entropy(masked).float(), distribution.entropy(), **THEIRS)
    likeliest = torch.as_tensor(head.decode(masked)[""]).reshape(40, -1)
    assert torch.equal(likeliest, distribution.mode().reshape(40, -1).to(likeliest.dtype))
    sums = torch.zeros(40, dtype=torch.float64)
    for action in actions_of(space):
        taken = torch.as_tensor(np.tile(action, (40, *[1] * action.ndim)))
        ours = head.log_prob(masked, {"": taken})
        sums += ours.exp()
        found = distribution.log_prob(taken.float())
        allowed = found > -1e6
        torch.testing.assert_close(ours.float()[allowed], found[allowed], **THEIRS)
        assert (ours.exp()[~allowed] == 0.0).all()
    torch.testing.assert_close(sums, torch.ones_like(sums), **EXACT)


@pytest.mark.parametrize("dtype", [torch.float32, torch.float64])
@pytest.mark.parametrize("name", SPACES)
def test_samples_keep_to_the_mask(name: str, dtype: torch.dtype) -> None:
    """Also for the smallest and the largest number that noise can be."""
    space = SPACES[name]
    head, masks = head_of(space).to(dtype), masks_of(space, 2000)
    outputs = 2 * torch.randn(2000, head.linear.out_features, dtype=dtype)
    noise = torch.rand(2000, head.draws, dtype=dtype)
    noise[:300], noise[300:900] = 0.0, 1.0 - torch.finfo(dtype).eps / 2
    actions = head.decode(head.masked(outputs, torch.as_tensor(masks)), noise)
    check_recorded({"": actions[""].numpy()}, masks, space)
    with pytest.raises(DataError, match="does not allow"):
        check_recorded({"": head.decode(outputs, noise)[""].numpy()}, masks, space)


@pytest.mark.parametrize("name", SPACES)
def test_divergence_and_barrier_are_sums_over_allowed_actions(name: str) -> None:
    space = SPACES[name]
    head, old = head_of(space), head_of(space)
    mask = torch.as_tensor(masks_of(space, 9))
    now, before = (head.masked(outputs_of(head, 9)[:, 0], mask) for _ in range(2))
    actions = [torch.as_tensor(np.tile(each, (9, *[1] * each.ndim))) for each in actions_of(space)]
    log_now = torch.stack([head.log_prob(now, {"": each}) for each in actions], -1)
    log_before = torch.stack([head.log_prob(before, {"": each}) for each in actions], -1)
    allowed = log_now > -1e6
    divergence = torch.where(allowed, log_before.exp() * (log_before - log_now), 0.0).sum(-1)
    torch.testing.assert_close(head.divergences(now, old, before)["classes"], divergence, **EXACT)
    count = allowed.sum(-1).double()
    barrier = torch.where(allowed, log_now, 0.0).sum(-1) / count + count.log()
    torch.testing.assert_close(head.log_barrier(now), barrier, **EXACT)


@pytest.mark.parametrize("name", SPACES)
def test_gradients_are_finite_and_none_reaches_what_is_not_allowed(name: str) -> None:
    space = SPACES[name]
    head, mask = head_of(space), torch.as_tensor(masks_of(space, 11))
    outputs = outputs_of(head, 11)[:, 0].requires_grad_(True)
    masked = head.masked(outputs, mask)
    barrier = head.log_barrier(masked)
    assert barrier is not None
    old = head.masked(outputs.detach() + 1.0, mask)
    taken = head.decode(masked.detach())
    total = (
        head.log_prob(masked, taken) + head.entropy(masked) + barrier + head.divergences(masked, head, old)["classes"]
    )
    total.sum().backward()
    assert outputs.grad is not None
    assert torch.isfinite(outputs.grad).all()
    open_ = mask.unflatten(-1, (-1, 2)).all(-1) if isinstance(space, spaces.MultiBinary) else mask
    assert (outputs.grad[~open_] == 0.0).all()
    assert (outputs.grad[open_] != 0.0).any()


def test_leaves_of_a_dict_have_their_parts_of_the_mask_and_boxes_none() -> None:
    head = head_of(MIXED)
    masks = masks_of(MIXED, 300)
    assert masks.shape[1] == mask_space(MIXED).n == 4 + 4 + 5
    outputs = 2 * torch.randn(300, head.linear.out_features, dtype=torch.float64)
    masked = head.masked(outputs, torch.as_tensor(masks))
    noise = torch.rand(300, head.draws, dtype=torch.float64)
    actions = head.decode(masked, noise)
    check_recorded({path: value.detach().numpy() for path, value in actions.items()}, masks, MIXED)
    assert torch.equal(head.split(masked)["arm"], head.split(outputs)["arm"])
    with pytest.raises(DataError, match="does not allow"):
        check_recorded(
            {path: value.detach().numpy() for path, value in head.decode(outputs, noise).items()}, masks, MIXED
        )


def test_a_mask_that_allows_everything_changes_nothing() -> None:
    for space in (*SPACES.values(), MIXED):
        head = head_of(space)
        outputs = outputs_of(head)
        ones = torch.ones(*outputs.shape[:-1], sum(leaf.choices for leaf in head.by_path.values()), dtype=torch.int8)
        assert torch.equal(head.masked(outputs, ones), outputs)


def test_where_a_mask_allows_nothing_numbers_stay_finite() -> None:
    """Rows that nobody acts in, such as resets, hold what environments left there."""
    head: ActionHead = head_of(SPACES["unequal sizes"])
    masked = head.masked(outputs_of(head), torch.zeros(7, 2, sum(leaf.choices for leaf in head.by_path.values())))
    barrier = head.log_barrier(masked)
    assert barrier is not None
    for found in (head.entropy(masked), barrier, head.log_prob(masked, head.decode(masked))):
        assert torch.isfinite(found).all()


def test_exploration_takes_every_allowed_action_alike_and_no_other() -> None:
    head = QHead(spaces.Discrete(5, start=3), 4, epsilon=0.3)
    mask = torch.tensor([0, 1, 0, 1, 1])
    q = head.masked(torch.tensor([9.0, 1.0, 8.0, 2.0, 0.0]), mask).expand(3000, 5)
    shares = (torch.arange(3000) / 3000).unsqueeze(-1)
    drawn = head.decode(q, shares - 1.0)[""]  # below 0 every action is a random one
    assert torch.bincount(drawn - 3, minlength=5).tolist() == [0, 1000, 0, 1000, 1000]
    mixed = head.decode(q, shares)[""]  # the first 0.3 of the numbers explore
    counted = torch.bincount(mixed - 3, minlength=5) - torch.tensor([0, 300, 0, 2400, 300])
    assert counted.abs().max() <= 1  # a number at the border of two actions may be rounded over it
    assert counted[mask == 0].eq(0).all()
    actions = torch.arange(3, 8)
    chances = head.log_prob(q[:5], {"": actions}).exp()
    torch.testing.assert_close(chances[mask == 1], torch.tensor([0.1, 0.8, 0.1]))


def test_masks_are_read_in_the_shapes_that_sb3_contrib_gives_them() -> None:
    space = SPACES["unequal sizes"]
    masks = masks_of(space, 3)
    np.testing.assert_array_equal(fit_masks(masks, space, 3), masks)
    np.testing.assert_array_equal(fit_masks(list(masks.astype(float)), space, 3), masks)
    np.testing.assert_array_equal(fit_masks(masks[0], space, 1), masks[:1])
    for bad, reason in ((masks[0], "need"), (masks[:, 1:], "need"), (masks + 1, "flags are")):
        with pytest.raises(DataError, match=reason):
            fit_masks(bad, space, 3)


def test_a_mask_that_allows_nothing_is_named() -> None:
    space = SPACES["unequal sizes"]
    masks = masks_of(space, 6)
    check_masks(masks, space)
    masks[4, 2:7] = False
    with pytest.raises(DataError, match="environment 4 at step 9 allows no action in component 1 of 3"):
        check_masks(masks, space, lambda row: f"{row} at step 9")


def test_a_leaf_of_that_name_has_to_be_a_mask_of_the_actions() -> None:
    def seen(leaf: gym.Space[Any]) -> gym.Space[Any]:
        return spaces.Dict({"position": spaces.Box(-1, 1, (2,)), "action_mask": leaf})

    actions = spaces.Discrete(3)
    assert observes_mask(seen(spaces.MultiBinary(3)), actions, None)
    assert observes_mask(seen(spaces.Box(0, 1, (3,), np.int8)), actions, True)
    assert not observes_mask(seen(spaces.MultiBinary(4)), actions, False)
    assert not observes_mask(spaces.MultiBinary(3), actions, None)
    for leaf, acting in ((spaces.MultiBinary(4), actions), (spaces.Box(0, 1, (3,)), actions)):
        with pytest.raises(ConfigError, match=r"MultiBinary\(3\)"):
            observes_mask(seen(leaf), acting, None)
    with pytest.raises(ConfigError, match="can be counted"):
        mask_space(spaces.Box(-1, 1, (2,)))
