"""Heads of Boxes with several modes: densities, samples, the flow by its formula, what they learn from two modes."""

import math
from typing import Any

import numpy as np
import pytest
import torch
from gymnasium import spaces
from torch import Tensor, distributions

from rltransformers.algorithms.decision import step_losses
from rltransformers.core.errors import ConfigError
from rltransformers.policies.action_heads import ActionHead
from rltransformers.policies.action_leaves import ContinuousAction, normal_numbers
from rltransformers.policies.several_modes import (
    ActionHeadOptions,
    FlowAction,
    MixtureAction,
    box_leaf,
)

# float64: sums of some ten terms of order 1 to 10
EXACT: dict[str, Any] = {"atol": 1e-12, "rtol": 1e-12}
LINE = spaces.Box(-2.0, 2.0, (1,), np.float64)
PLANE = spaces.Box(np.array([-2.0, 0.0, -np.inf]), np.array([2.0, 0.5, np.inf]), dtype=np.float64)
CENTER, SCALE = torch.tensor([0.0, 0.25, 0.0]).double(), torch.tensor([2.0, 0.25, 1.0]).double()


def mixture(space: spaces.Box = PLANE, count: int = 3) -> MixtureAction:
    return MixtureAction(space, 4, count=count).double()


def flow(space: spaces.Box = PLANE, steps: int = 4) -> FlowAction:
    torch.manual_seed(1)
    return FlowAction(space, 4, steps=steps, hidden=6).double()


def as_mixture(leaf: MixtureAction, outputs: Tensor) -> distributions.MixtureSameFamily:
    """In head units: tanh of means where there are bounds, deviations from exp(-5) to exp(2)."""
    count, size = leaf.count, leaf.components
    logits, means, spread = outputs.split([count, count * size, count * size], -1)
    means = means.unflatten(-1, (count, size))
    means = torch.where(leaf.bounded, means.tanh(), means)
    deviations = torch.exp(-5.0 + 7.0 * (spread.unflatten(-1, (count, size)).tanh() + 1.0) / 2.0)
    return distributions.MixtureSameFamily(
        distributions.Categorical(logits=logits),
        distributions.Independent(distributions.Normal(means, deviations), 1),
    )


def row_of(weights: list[float], means: list[float], deviations: list[float]) -> Tensor:
    """Outputs of a mixture over ``LINE`` that has these parameters in head units."""
    spread = (torch.tensor(deviations).double().log() + 5.0) / 3.5 - 1.0
    return torch.cat([torch.tensor(weights).double().log(), torch.tensor(means).double().atanh(), spread.atanh()])


# Mixtures


def test_a_mixture_has_the_density_and_the_moments_of_torch() -> None:
    leaf, outputs = mixture(), torch.randn(5, 21, generator=torch.Generator().manual_seed(0)).double()
    assert (leaf.outputs, leaf.draws, leaf.numbers) == (21, 7, 3)
    action = torch.rand(5, 3, generator=torch.Generator().manual_seed(1)).double()
    theirs = as_mixture(leaf, outputs)
    torch.testing.assert_close(leaf.log_prob(outputs, action), theirs.log_prob((action - CENTER) / SCALE), **EXACT)
    moments = leaf.distribution(outputs)
    torch.testing.assert_close(moments["mean"], CENTER + SCALE * theirs.mean, **EXACT)
    torch.testing.assert_close(moments["deviation"], SCALE * theirs.stddev, **EXACT)


def test_the_density_of_a_mixture_integrates_to_one_and_its_entropy_is_bounded_from_below() -> None:
    leaf = mixture(LINE)
    grid = torch.linspace(-8.0, 8.0, 40_001).double()
    rows = {
        "overlap": row_of([0.5, 0.3, 0.2], [-0.3, 0.0, 0.4], [0.2, 0.3, 0.25]),
        "equal": row_of([0.5, 0.3, 0.2], [0.1, 0.1, 0.1], [0.2, 0.2, 0.2]),
        "apart": row_of([0.5, 0.3, 0.2], [-0.9, 0.0, 0.9], [0.02, 0.03, 0.02]),
    }
    for kind, row in rows.items():
        # the density is in head units, half those of this Box
        logs = leaf.log_prob(row.expand(len(grid), -1), 2.0 * grid[:, None])
        assert float(torch.trapezoid(logs.exp(), grid)) == pytest.approx(1.0, abs=1e-6)
        exact = -float(torch.trapezoid(logs.exp() * logs, grid))
        bound = float(leaf.entropy(row))
        assert exact - math.log(3) < bound < exact + 1e-6
        if kind != "overlap":
            assert bound == pytest.approx(exact, abs=1e-4)


def test_samples_of_a_mixture_have_its_density() -> None:
    leaf, count = mixture(LINE), 40_000
    row = row_of([0.6, 0.3, 0.1], [-0.5, 0.3, 0.6], [0.1, 0.05, 0.2]).expand(count, -1)
    noise = torch.rand(count, leaf.draws, generator=torch.Generator().manual_seed(0), dtype=torch.float64)
    samples = leaf.decode(row, noise)
    assert samples.shape == (count, 1) and float(samples.abs().max()) <= 2.0
    inner = samples[samples.abs() < 2.0][:, None]  # what was clipped lies at the bounds
    shares = leaf.cumulative(row[: len(inner)], inner).sort(0).values[:, 0]
    # Kolmogorov and Smirnov: the largest gap to the uniform distribution exceeds 2 / sqrt(n) once in 1,490 times.
    assert float((shares - torch.linspace(0, 1, len(inner))).abs().max()) < 2 / count**0.5 + 0.03
    assert float((samples < 0).double().mean()) == pytest.approx(0.6, abs=0.015)
    again = leaf.decode(row[:7], noise[:7])
    assert torch.equal(again, samples[:7])


def test_all_components_of_a_leaf_are_of_the_same_normal() -> None:
    leaf = mixture(spaces.Box(-1.0, 1.0, (2,), np.float64), count=2)
    row = torch.tensor([0.0, 0.0, 1.0, -1.0, -1.0, 1.0, *[-9.0] * 4]).double().expand(500, -1)
    noise = torch.rand(500, leaf.draws, generator=torch.Generator().manual_seed(0), dtype=torch.float64)
    samples = leaf.decode(row, noise)
    assert (samples[:, 0] * samples[:, 1] < 0).all() and 200 < int((samples[:, 0] > 0).sum()) < 300


def test_the_most_probable_action_is_the_mean_of_the_heaviest_normal() -> None:
    leaf = mixture(LINE)
    row = row_of([0.2, 0.5, 0.3], [-0.5, 0.25, 0.75], [0.1, 0.1, 0.1])
    torch.testing.assert_close(leaf.decode(row), torch.tensor([0.5]).double(), **EXACT)


# Flows


def test_the_loss_and_the_actions_of_a_flow_are_those_of_its_formula() -> None:
    leaf = flow()
    output = torch.randn(12, generator=torch.Generator().manual_seed(2)).double()
    noise = torch.rand(7, generator=torch.Generator().manual_seed(3)).double()

    def velocity(point: Tensor, time: float) -> Tensor:
        hidden = leaf.first.weight @ torch.cat([point, torch.tensor([time]).double()])
        hidden = output[:6] + (1 + output[6:]) * hidden
        for layer in (leaf.second, leaf.third):
            hidden = layer.weight @ (hidden * hidden.sigmoid()) + layer.bias
        return leaf.last.weight @ (hidden * hidden.sigmoid()) + leaf.last.bias

    action = torch.tensor([1.0, 0.375, -3.0]).double()
    target, start, time = torch.tensor([0.5, 0.5, -3.0]).double(), normal_numbers(noise[1:]), float(noise[0])
    found = velocity((1 - time) * start + time * target, time)
    loss = leaf.matching_loss(output, action, noise)
    torch.testing.assert_close(loss, (found - (target - start)).square().mean(), **EXACT)
    for given, point in ((noise[1:], start), (None, torch.zeros(3).double())):
        for step in range(4):
            point = point + 0.25 * velocity(point, 0.25 * step)
        expected = torch.minimum(torch.maximum(CENTER + SCALE * point, leaf.low), leaf.high)
        torch.testing.assert_close(leaf.decode(output, given), expected, atol=1e-6, rtol=0.0)  # bounds are float32


def test_a_flow_has_no_density() -> None:
    leaf, output = flow(), torch.zeros(2, 12).double()
    assert not leaf.has_density and leaf.distribution(output) == {}
    for asked in (lambda: leaf.log_prob(output, torch.zeros(2, 3)), lambda: leaf.entropy(output)):
        with pytest.raises(NotImplementedError):
            asked()


# Both


@pytest.mark.parametrize("name", ["mixture", "flow"])
def test_leaves_beside_a_box_stay_as_they_are_and_every_box_has_its_own_outputs(name: Any) -> None:
    space = spaces.Dict({"arm": PLANE, "go": spaces.Discrete(3, start=2), "hand": spaces.Box(0, 9, (2, 1), np.int16)})
    head = ActionHead(space, 8, box=box_leaf(name, ActionHeadOptions(), space))
    outputs, noise = head(torch.randn(20, 8)), head.draw(20, torch.Generator().manual_seed(0))
    sampled, likely = head.decode(outputs, noise), head.decode(outputs)
    for actions in (sampled, likely):
        for path, leaf in head.spaces.items():
            for row in actions[path].detach().numpy().astype(leaf.dtype):
                assert leaf.contains(row[()] if path == "go" else row)
    chosen = head.decode_some(outputs, noise, torch.arange(20) < 10)
    for path in head.spaces:
        assert torch.equal(chosen[path], torch.cat([likely[path][:10], sampled[path][10:]]))
        if path != "go":
            assert not torch.equal(sampled[path], likely[path])
    for path in ("arm", "hand"):  # an action does not depend on the noise of the other leaf
        parts = head.split(noise, "draws")
        mixed = torch.cat([part if other == path else part.flip(0) for other, part in parts.items()], -1)
        assert torch.equal(head.decode(outputs, mixed)[path], sampled[path])
    assert ("log_prob" in head.distribution(outputs, sampled)) == (name == "mixture")


def test_a_space_without_a_box_has_nothing_to_draw() -> None:
    with pytest.raises(ConfigError, match="has no Box: its actions are drawn already; leave action_head out"):
        box_leaf("flow", ActionHeadOptions(), spaces.Discrete(3))
    assert box_leaf("deterministic", ActionHeadOptions(), spaces.Discrete(3)) is ContinuousAction


@pytest.mark.parametrize(
    ("name", "values", "message"),
    [
        (
            "flow",
            {"components": 3},
            r"action_head 'flow': unknown setting action_head_kwargs\.components; known: steps",
        ),
        ("gaussian", {"steps": 3}, "action_head_kwargs.steps; it takes none"),
        ("mixture", {"components": 0}, r"action_head_kwargs\.components must be a whole number in \[1, 1000\], got 0"),
    ],
)
def test_options_that_a_head_does_not_read_are_refused(name: Any, values: dict[str, Any], message: str) -> None:
    with pytest.raises(ConfigError, match=message):
        ActionHeadOptions.read(name, values)


def test_a_balanced_mixture_learns_every_normal_by_its_squared_error_and_the_weights_as_they_are() -> None:
    head = ActionHead(PLANE, 2, box=box_leaf("mixture", ActionHeadOptions(components=3), PLANE), embeds=False).double()
    leaf = head.by_path[""]
    assert isinstance(leaf, MixtureAction)
    outputs = torch.randn(4, leaf.outputs, generator=torch.Generator().manual_seed(0)).double()
    variance = (2.0 * leaf.normals(outputs)[2]).exp().flatten(-2)
    outputs.requires_grad_(True)
    action = torch.as_tensor(np.array([[0.3, 0.1, 0.4]] * 4))
    (plain,) = torch.autograd.grad(leaf.log_prob(outputs, action).sum(), outputs)
    (found,) = torch.autograd.grad(leaf.log_prob(head.balance(outputs), action).sum(), outputs)
    torch.testing.assert_close(found, torch.cat([plain[:, :3], plain[:, 3:] * torch.cat([variance] * 2, -1)], -1))


def test_entropy_is_worth_nothing_in_the_weights_of_a_mixture() -> None:
    """A wide normal would take weight for it that no recorded action gives."""
    head = ActionHead(LINE, 2, box=box_leaf("mixture", ActionHeadOptions(components=2), LINE), embeds=False).double()
    row = row_of([0.25, 0.75], [0.1, -0.4], [2.0, 0.05]).requires_grad_(True)
    (gradient,) = torch.autograd.grad(head.spread(row), row)
    assert gradient[:2].tolist() == [0.0, 0.0] and bool((gradient[4:] > 0).all())
    normals = distributions.Normal(torch.zeros(2).double(), torch.tensor([2.0, 0.05]).double()).entropy()
    torch.testing.assert_close(head.spread(row), 0.25 * normals[0] + 0.75 * normals[1], **EXACT)


@pytest.mark.parametrize("name", ["mixture", "flow"])
def test_two_modes_are_learned_with_their_shares(name: Any) -> None:
    """Three of four actions lie about -1, the others about 1.5; one action per state would lie at -0.375."""
    torch.manual_seed(0)
    head = ActionHead(LINE, 2, box=box_leaf(name, ActionHeadOptions(components=3, width=32), LINE), embeds=False)
    generator = torch.Generator().manual_seed(0)
    optimizer = torch.optim.Adam(head.parameters(), lr=1e-2)
    features = torch.ones(1, 256, 2)
    for update in range(600):
        right = torch.rand(1, 256, 1, generator=generator) < 0.25
        action = torch.where(right, 1.5, -1.0) + 0.1 * torch.randn(1, 256, 1, generator=generator)
        noise = torch.rand(1, 256, head.loss_draws, generator=generator)
        loss = step_losses(head, head(features), {"": action}, noise).mean()
        optimizer.param_groups[0]["lr"] = 1e-2 * (1 - update / 600)
        optimizer.zero_grad()
        loss.backward()
        optimizer.step()
    count = 4_000
    sampled = head.decode(head(torch.ones(count, 2)), head.draw(count, generator))[""].detach()
    # Standard error 0.007; a flow of ten steps is not exact, and one in fifteen of its samples lies between the modes.
    assert float((sampled > 0.25).float().mean()) == pytest.approx(0.25, abs=0.06)
    near = ((sampled + 1.0).abs() < 0.4) | ((sampled - 1.5).abs() < 0.4)
    assert float(near.float().mean()) > (0.9 if name == "flow" else 0.98)
    if name == "mixture":
        torch.testing.assert_close(head.decode(head(features[0, :1]))[""], torch.tensor([[-1.0]]), atol=0.1, rtol=0.0)
