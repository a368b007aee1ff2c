"""Action heads of a Decision Transformer: one action of a Box per state, a normal one, or actions with several modes.

"..." stands for any leading axes, A counts the components of a leaf, K the normals of a mixture, O outputs of a leaf, U
numbers of noise.
"""

import math
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from functools import partial
from typing import Annotated, Any, Literal

import torch
from annotated_types import Ge, Le
from gymnasium import spaces
from jaxtyping import Bool, Float
from torch import Tensor, nn
from torch.nn import functional as F

from rltransformers.core.errors import ConfigError, refuse_unknown
from rltransformers.core.ranges import check_fields
from rltransformers.core.spaces import Space, leaf_spaces
from rltransformers.functional.modules import scale_gradient
from rltransformers.policies.action_leaves import (
    BoxAction,
    ContinuousAction,
    NormalAction,
    Units,
    class_at,
    log_std_within,
    normal_entropy,
    normal_log_prob,
    normal_numbers,
    shaped,
)

LOG_TWO = math.log(2.0)
ActionHeadName = Literal["deterministic", "gaussian", "mixture", "flow"]
BoxLeaf = Callable[[spaces.Box, int | None, Units | None], BoxAction]
"""Makes the leaf of a Box from its space, the width of tokens, and units as for ``ContinuousAction``."""
READ: Mapping[str, tuple[str, ...]] = {"mixture": ("components",), "flow": ("steps", "width")}
"""Options that a head reads, by its name."""


@dataclass(frozen=True)
class ActionHeadOptions:
    """Keys of ``action_head_kwargs``.

    Attributes:
        components: of "mixture", how many normal distributions a Box has.
        steps: of "flow", Euler steps from noise to an action.
        width: of "flow", of the three hidden layers of its velocity.
    """

    components: Annotated[int, Ge(1), Le(1_000)] = 5
    steps: Annotated[int, Ge(1), Le(1_000)] = 10
    width: Annotated[int, Ge(1), Le(10**4)] = 128

    def __post_init__(self) -> None:
        check_fields(self, "action_head_kwargs.")

    @classmethod
    def read(cls, head: ActionHeadName, values: Mapping[str, Any]) -> "ActionHeadOptions":
        """Options from keywords; ConfigError for one that this head does not read."""
        refuse_unknown(values, READ.get(head, ()), "action_head_kwargs.", f"action_head {head!r}")
        return cls(**values)


def box_leaf(head: ActionHeadName, options: ActionHeadOptions, action_space: Space, chunk: int = 1) -> BoxLeaf:
    """What an action head makes of a Box; ConfigError for one with a distribution of Boxes where there is no Box.

    ``chunk`` is the number of actions that are predicted at once.
    """
    if head != "deterministic" and not any(isinstance(leaf, spaces.Box) for leaf in leaf_spaces(action_space).values()):
        raise ConfigError(
            f"action_head {head!r} is how actions of a Box are drawn, and the action space {action_space} has no Box:"
            " its actions are drawn already; leave action_head out"
        )
    if head == "mixture":
        return partial(MixtureAction, count=options.components)
    if head == "flow":
        return partial(FlowAction, steps=options.steps, hidden=options.width, chunk=chunk)
    return NormalAction if head == "gaussian" else ContinuousAction


class MixtureAction(ContinuousAction):
    """A Box leaf with a mixture of normal distributions in head units, all from the network (Bishop 1994, NCRG/94/004).

    All components of the leaf are of the same normal of the mixture, inside which they are independent. Means lie
    between the bounds by a tanh and samples are clipped to them, as for ``NormalAction``; the density is that before
    clipping. The most probable action is the mean of the normal with the largest weight. All actions of a chunk are of
    the same normal, too.

    Args:
        count: K, how many normals there are.
    """

    has_density = True

    def __init__(self, space: spaces.Box, width: int | None, units: Units | None = None, *, count: int) -> None:
        super().__init__(space, width, units)
        self.count = self.common = count
        self.common_draws = 1
        self.outputs = count * (1 + 2 * self.components)
        self.draws = 1 + 2 * self.components

    def normals(
        self, output: Float[Tensor, "... O"]
    ) -> tuple[Float[Tensor, "... K"], Float[Tensor, "... K A"], Float[Tensor, "... K A"]]:
        """Logits of the weights, means, and logarithms of the deviations in head units."""
        numbers = self.count * self.components
        logits, means, spreads = output.split_with_sizes([self.count, numbers, numbers], -1)
        means, spreads = (each.unflatten(-1, (self.count, self.components)) for each in (means, spreads))
        return logits, super().squash(means), log_std_within(spreads)

    def squash(self, output: Float[Tensor, "... O"]) -> Float[Tensor, "... A"]:
        logits, means, _ = self.normals(output)
        return _row(means, logits.argmax(-1))

    def sample(self, output: Float[Tensor, "... O"], noise: Float[Tensor, "... U"]) -> Float[Tensor, "... A"]:
        """The first number of ``noise`` chooses the normal."""
        noise = noise.to(output.dtype)
        logits, means, log_std = self.normals(output)
        index = class_at(logits, noise[..., 0])
        normal = normal_numbers(noise[..., 1:])
        return torch.addcmul(_row(means, index), _row(log_std, index).exp(), normal)

    def distribution(self, output: Float[Tensor, "... O"]) -> dict[str, Tensor]:
        """Mean and deviation of the whole mixture."""
        logits, means, log_std = self.normals(output)
        weights = logits.softmax(-1).unsqueeze(-1)
        mean = (weights * means).sum(-2)
        variance = (weights * ((means - mean.unsqueeze(-2)).square() + (2.0 * log_std).exp())).sum(-2)
        mean, deviation = torch.addcmul(self.center, mean, self.scale), variance.sqrt() * self.scale
        return {"mean": shaped(mean, self.shape), "deviation": shaped(deviation, self.shape)}

    def balance(self, output: Float[Tensor, "... O"]) -> Float[Tensor, "... O"]:
        logits, _, log_std = self.normals(output.detach())
        variance = (2.0 * log_std).exp().flatten(-2)
        return scale_gradient(output, torch.cat([torch.ones_like(logits), variance, variance], -1))

    def log_prob(self, output: Float[Tensor, "... O"], action: Tensor) -> Float[Tensor, "..."]:
        logits, densities = self._densities(output, action)
        return (logits.log_softmax(-1) + densities).logsumexp(-1)

    def log_prob_of_chunk(
        self, output: Float[Tensor, "... k O"], action: Tensor, counts: Bool[Tensor, "... k"]
    ) -> Float[Tensor, "..."]:
        """Log-probability of those actions of a chunk that count, all of the same normal."""
        logits, densities = self._densities(output, action)
        together = torch.where(counts.unsqueeze(-1), densities, 0.0).sum(-2)
        return (logits[..., 0, :].log_softmax(-1) + together).logsumexp(-1)

    def _densities(
        self, output: Float[Tensor, "... O"], action: Tensor
    ) -> tuple[Float[Tensor, "... K"], Float[Tensor, "... K"]]:
        """Logits of the weights, and the log-density of an action under every normal."""
        logits, means, log_std = self.normals(output)
        return logits, normal_log_prob(self.as_numbers(action).unsqueeze(-2), means, log_std)

    def cumulative(self, output: Float[Tensor, "... O"], action: Tensor) -> Float[Tensor, "... A"]:
        """Probability that a component lies below that of the action."""
        logits, means, log_std = self.normals(output)
        distance = (self.as_numbers(action).unsqueeze(-2) - means) * (-log_std).exp()
        return (logits.softmax(-1).unsqueeze(-1) * torch.special.ndtr(distance)).sum(-2)

    def spread(self, output: Float[Tensor, "... O"]) -> Float[Tensor, "..."]:
        logits, _, log_std = self.normals(output)
        return (logits.detach().softmax(-1) * normal_entropy(log_std)).sum(-1)

    def entropy(self, output: Float[Tensor, "... O"]) -> Float[Tensor, "..."]:
        """A bound from below: a mixture has no closed entropy.

        That of Kolchinsky and Tracey 2017 (arXiv 1706.02419, section 3) with Bhattacharyya distances. It is exact where
        normals are equal or far apart, and otherwise less than ln K too small.
        """
        logits, means, log_std = self.normals(output)
        logs = logits.log_softmax(-1)
        one, other = log_std.unsqueeze(-2), log_std.unsqueeze(-3)
        log_variance = torch.logaddexp(2.0 * one, 2.0 * other) - LOG_TWO
        gap = (means.unsqueeze(-2) - means.unsqueeze(-3)).square() * (-log_variance).exp()
        distances = (0.125 * gap + 0.5 * (log_variance - one - other)).sum(-1)
        overlap = (logs.unsqueeze(-2) - distances).logsumexp(-1)
        return (logs.exp() * (normal_entropy(log_std) - overlap)).sum(-1)


class FlowAction(ContinuousAction):
    """A Box leaf whose actions flow out of normal noise along a learned velocity (flow matching).

    The velocity v(x, t) of a point x in head units at time t from 0 to 1 has three hidden layers; the first is a
    linear map of x and t that the outputs of the head scale and shift. It is learned along straight lines from noise to
    recorded actions (Lipman et al. 2023, arXiv 2210.02747, with sigma_min 0; Liu et al. 2023, arXiv 2209.03003). Acting
    follows it in Euler steps and clips the end to the Box.

    A flow can have any number of modes of any shape, but has neither ``log_prob`` nor ``entropy``. "The most probable
    action" is where zero noise flows to; between two modes that may be an action of neither, so sample.

    Args:
        steps: Euler steps.
        hidden: width of the hidden layers.
        chunk: k, actions that flow together, as one point of k times as many components. With more than one, outputs,
            noise of acting and actions have the axis k before their last axes, and k equal rows of outputs.
    """

    def __init__(
        self,
        space: spaces.Box,
        width: int | None,
        units: Units | None = None,
        *,
        steps: int,
        hidden: int,
        chunk: int = 1,
    ) -> None:
        super().__init__(space, width, units)
        numbers = chunk * self.components
        self.steps, self.chunk = steps, chunk
        self.outputs = self.common = 2 * hidden
        self.draws = 2 * self.components
        self.loss_draws = 1 + 2 * numbers
        self.first = nn.Linear(numbers + 1, hidden, bias=False)
        self.second = nn.Linear(hidden, hidden)
        self.third = nn.Linear(hidden, hidden)
        self.last = nn.Linear(hidden, numbers)

    def velocity(
        self, output: Float[Tensor, "... O"], point: Float[Tensor, "... A"], time: Float[Tensor, "... 1"]
    ) -> Float[Tensor, "... A"]:
        """Where points at a time move, in head units per unit of time."""
        shift, scale = output.chunk(2, -1)
        hidden = F.silu(torch.addcmul(shift, 1.0 + scale, self.first(torch.cat([point, time], -1))))
        return self.last(F.silu(self.third(F.silu(self.second(hidden)))))

    def matching_loss(
        self, output: Float[Tensor, "... O"], action: Tensor, noise: Float[Tensor, "... L"]
    ) -> Float[Tensor, "..."]:
        """Mean square of v(x_t, t) - (a - z) over the components of an action, with x_t = (1 - t) z + t a.

        ``noise`` are L = ``loss_draws`` uniform numbers in [0, 1): the time t, and what makes the normal z.
        """
        time, target = noise[..., :1].to(output.dtype), self.as_numbers(action)
        start = normal_numbers(noise[..., 1:].to(output.dtype))
        if self.chunk > 1:
            output, target = output[..., 0, :], target.flatten(-2)
        speed = target - start
        missed = self.velocity(output, torch.addcmul(start, time, speed), time) - speed
        return self._by_action(missed).square().mean(-1)

    def squash(self, output: Float[Tensor, "... O"]) -> Float[Tensor, "... A"]:
        return self.end_of(output, output.new_zeros(*output.shape[:-1], self.components))

    def end_of(self, output: Float[Tensor, "... O"], point: Float[Tensor, "... A"]) -> Float[Tensor, "... A"]:
        """Where a point at time 0 is at time 1, before it is clipped."""
        if self.chunk > 1:
            output, point = output[..., 0, :], point.flatten(-2)
        for step in range(self.steps):
            time = torch.full_like(point[..., :1], step / self.steps)
            point = point + self.velocity(output, point, time) / self.steps
        return self._by_action(point)

    def _by_action(self, point: Float[Tensor, "... N"]) -> Float[Tensor, "... A"]:
        """The components of every action of a chunk in a row of its own."""
        return point if self.chunk == 1 else point.unflatten(-1, (self.chunk, self.components))

    def sample(self, output: Float[Tensor, "... O"], noise: Float[Tensor, "... U"]) -> Float[Tensor, "... A"]:
        return self.end_of(output, normal_numbers(noise.to(output.dtype)))

    def distribution(self, output: Float[Tensor, "... O"]) -> dict[str, Tensor]:
        """Nothing: mean and deviation of a flow are not known."""
        return {}


def _row(values: Float[Tensor, "... K A"], index: Tensor) -> Float[Tensor, "... A"]:
    """The row ``index`` [...] of each."""
    place = index[..., None, None].expand(*index.shape, 1, values.shape[-1])
    return values.gather(-2, place).squeeze(-2)
