"""Actions in both directions: a token from an action taken, an action from a network output; one part per space leaf.

A leaf of the action space reads ``outputs`` numbers of the head's row and ``draws`` numbers of noise; of its mask it
reads ``choices`` entries. Everything is arithmetic on tensors whose shapes do not depend on their values, so that a
step can be traced and compiled. "..." stands for any leading axes, W is model width, C counts the components of a leaf,
N the classes of its largest, M the entries of a mask.
"""

import math
from collections.abc import Mapping, Sequence
from typing import Any

import gymnasium as gym
import numpy as np
import torch
from gymnasium import spaces
from jaxtyping import Bool, Float, Int, Num, Shaped
from torch import Tensor, nn
from torch.nn import functional as F

from rltransformers.core.guard import check_actions
from rltransformers.core.ranges import LARGEST
from rltransformers.core.spaces import box_bounds, check_supported, check_width, leaf_spaces
from rltransformers.core.spec import Choice
from rltransformers.functional.divergences import (
    bernoulli_divergence,
    categorical_divergence,
    gaussian_covariance_divergence,
    gaussian_mean_divergence,
)
from rltransformers.functional.modules import linear
from rltransformers.policies.readouts.interface import Readout

HALF_LOG_TAU = 0.5 * math.log(2.0 * math.pi)
LEAST = 1e-30
"""Of a probability that is a mixture: its logarithm is finite."""
MASKED = -1e30
"""Output of a class that must not be taken: its probability is exactly 0, its logarithm finite."""
LOG_STD_RANGE = (-5.0, 2.0)
"""Of deviations that a network predicts, as in the published code of the Online Decision Transformer."""
Units = Sequence[Sequence[float]]
"""Centres and scales of the components of a Box."""


class BoxAction(nn.Module):
    """A Box leaf in head units, in which its bounds are -1 and 1.

    Components with an open side keep the units of the environment, unless ``units`` has others for them; one of a
    single value is 0. Actions of a Box of integers are rounded to the nearest.

    Args:
        units: centre and scale of every component, for those with an open side; None leaves these as they are.
    """

    centre: Tensor
    scale: Tensor
    bounded: Tensor
    low: Tensor
    high: Tensor
    countable = tied = False
    choices = 0

    def __init__(self, space: spaces.Box, units: Units | None = None) -> None:
        super().__init__()
        low, high = (bound.reshape(-1) for bound in box_bounds(space))
        closed = (np.abs(low) < LARGEST) & (np.abs(high) < LARGEST)  # float32 ends at 3.4e38
        half = np.where(closed, high / 2 - low / 2, 0.0)
        bounded = half >= np.finfo(np.float32).tiny
        centre, scale = np.zeros_like(low), np.where(bounded, half, 1.0)
        if units is not None:
            centre[~closed], scale[~closed] = (np.asarray(each)[~closed] for each in units)
        centre[closed] = low[closed] / 2 + high[closed] / 2
        self.shape, self.components, self.whole = space.shape, len(low), holds_integers(space)
        self.all_bounded = bool(bounded.all())
        low, high = (bound.reshape(-1) for bound in inner_bounds(space))  # what is executed lies in the Box
        buffers = {"centre": centre.astype(np.float32), "scale": scale.astype(np.float32)}
        for name, values in {**buffers, "low": low, "high": high, "bounded": bounded}.items():
            self.register_buffer(name, torch.as_tensor(values), persistent=False)

    def normalise(self, action: Tensor) -> Float[Tensor, "... A"]:
        """An action of the environment in head units, flat; data outside the bounds lands outside [-1, 1]."""
        return (_flat(action, self.shape).to(self.centre.dtype) - self.centre) / self.scale

    def recorded(self, action: Tensor) -> Float[Tensor, "... A"]:
        """An action of the environment as a readout stores it, in head units."""
        return self.normalise(action)

    def inside(self, flat: Float[Tensor, "... A"]) -> Float[Tensor, "..."]:
        """The action of the Box that is nearest to one in head units: [..., A] to [..., leaf shape]."""
        action = torch.addcmul(self.centre, flat, self.scale)
        action = action.round() if self.whole else action
        return _shaped(action.clamp(self.low, self.high), self.shape)

    def mixed(self, output: Tensor, recorded: Tensor, share: Tensor) -> Tensor:
        """Not of this leaf, whose actions have no probabilities."""
        raise NotImplementedError("a Box has no mixture of probabilities")

    def masked(self, output: Tensor, allowed: Tensor) -> Tensor:
        """The output itself: numbers have no mask."""
        return output


class ContinuousAction(BoxAction):
    """A Box leaf of which one action is predicted, in head units; actions are those of the environment.

    Args:
        width: of the tokens; None for no tokens.
        units: as for ``BoxAction``.
    """

    def __init__(self, space: spaces.Box, width: int | None, units: Units | None = None) -> None:
        super().__init__(space, units)
        self.outputs, self.draws = self.components, 0
        self.embedding = None if width is None else nn.Linear(self.components, width)

    def squash(self, output: Float[Tensor, "... A"]) -> Float[Tensor, "... A"]:
        """The predicted action in head units: tanh between two bounds, the output itself elsewhere."""
        return output.tanh() if self.all_bounded else torch.where(self.bounded, output.tanh(), output)

    def embed(self, action: Tensor) -> Float[Tensor, "... W"]:
        assert self.embedding is not None
        return linear(self.embedding, self.normalise(action))

    def decode(self, output: Float[Tensor, "... A"], noise: Tensor | None = None) -> Tensor:
        """The executed action, inside the Box. The leaf is deterministic: ``noise`` (no draws) changes nothing."""
        return self.inside(self.squash(output))

    def distribution(self, output: Tensor) -> dict[str, Tensor]:
        """Fields of ``PolicyOutput`` [..., leaf shape] in the units of the environment."""
        return {"mean": _shaped(torch.addcmul(self.centre, self.squash(output), self.scale), self.shape)}

    def disturbed(self, action: Tensor, noise: Tensor) -> Tensor:
        """The action moved by ``noise`` in head units, inside the Box; both [..., leaf shape]."""
        return self.inside(self.normalise(action) + _flat(noise, self.shape).to(self.centre.dtype))

    def execute(self, action: Tensor) -> Tensor:
        """The action itself."""
        return action


class NormalAction(ContinuousAction):
    """A Box leaf whose components are normal in head units: means and deviations from the network (arXiv 2202.05607).

    The mean is the action of a ``ContinuousAction``, so acting without noise is the same. Samples are clipped to the
    bounds; that paper bends them by tanh, which has no closed entropy and no density for actions at the bounds.
    """

    def __init__(self, space: spaces.Box, width: int | None, units: Units | None = None) -> None:
        super().__init__(space, width, units)
        self.outputs = self.draws = 2 * self.components

    def squash(self, output: Float[Tensor, "... O"]) -> Float[Tensor, "... A"]:
        """The mean in head units."""
        return super().squash(output[..., : self.components])

    def log_std(self, output: Float[Tensor, "... O"]) -> Float[Tensor, "... A"]:
        """Logarithms of the deviations in head units, within ``LOG_STD_RANGE``."""
        low, high = LOG_STD_RANGE
        return low + 0.5 * (high - low) * (output[..., self.components :].tanh() + 1.0)

    def decode(self, output: Float[Tensor, "... O"], noise: Float[Tensor, "... U"] | None = None) -> Tensor:
        """The mean, or with uniform ``noise`` in [0, 1) a sample, inside the Box.

        Two uniform numbers make a normal one (Box and Muller 1958), in operations that every runtime has.
        """
        if noise is None:
            return super().decode(output)
        one, other = noise.to(output.dtype).unflatten(-1, (2, self.components)).unbind(-2)
        distance = (-2.0 * torch.log1p(-one.clamp(max=1.0 - 1e-7))).sqrt()  # float32 rounds numbers below 1 to 1
        normal = distance * (2.0 * math.pi * other).cos()
        return self.inside(torch.addcmul(self.squash(output), self.log_std(output).exp(), normal))

    def distribution(self, output: Float[Tensor, "... O"]) -> dict[str, Tensor]:
        """Fields of ``PolicyOutput`` [..., leaf shape] in the units of the environment."""
        deviation = _shaped(self.log_std(output).exp() * self.scale, self.shape)
        return super().distribution(output) | {"deviation": deviation}

    def log_prob(self, output: Float[Tensor, "... O"], action: Tensor) -> Float[Tensor, "..."]:
        """Log-density of the action in head units, before clipping."""
        log_std = self.log_std(output)
        distance = (self.normalise(action) - self.squash(output)) * (-log_std).exp()
        return -(0.5 * distance.square() + log_std + HALF_LOG_TAU).sum(-1)

    def entropy(self, output: Float[Tensor, "... O"]) -> Float[Tensor, "..."]:
        """Differential entropy in nats, in head units, before clipping."""
        return (self.log_std(output) + (0.5 + HALF_LOG_TAU)).sum(-1)


class GaussianAction(BoxAction):
    """A Box leaf whose components are normal: means from the network, one standard deviation each for all states.

    Samples, means, deviations, log-probabilities and entropies are in head units, as an agent stores and sees its
    actions; ``execute`` makes of a sample what the environment takes.
    """

    def __init__(self, space: spaces.Box, log_std: float) -> None:
        super().__init__(space)
        self.outputs = self.draws = self.components
        self.log_std = nn.Parameter(torch.full((self.outputs,), float(log_std)))

    def draw(self, rows: int, generator: torch.Generator | None) -> Float[Tensor, "R A"]:
        """Standard normal numbers."""
        like = self.log_std
        return torch.randn(rows, self.draws, generator=generator, device=like.device, dtype=like.dtype)

    def decode(self, output: Float[Tensor, "... A"], noise: Float[Tensor, "... A"] | None = None) -> Tensor:
        """The mean, or with standard normal ``noise`` a sample, in head units; see ``execute``."""
        flat = output if noise is None else torch.addcmul(output, self.log_std.exp(), noise.to(output.dtype))
        return _shaped(flat, self.shape)

    def execute(self, action: Tensor) -> Tensor:
        """The action in the units of the environment and inside the Box, from a sample [..., leaf shape]."""
        return self.inside(_flat(action, self.shape))

    def distribution(self, output: Float[Tensor, "... A"]) -> dict[str, Tensor]:
        """Fields of ``PolicyOutput`` [..., leaf shape] in the units of the environment."""
        mean, deviation = torch.addcmul(self.centre, output, self.scale), self.log_std.exp() * self.scale
        return {"mean": _shaped(mean, self.shape), "deviation": _shaped(deviation.expand_as(mean), self.shape)}

    def log_prob(self, output: Float[Tensor, "... A"], action: Tensor) -> Float[Tensor, "..."]:
        """Log-density of a sample, before it was clipped."""
        distance = (_flat(action, self.shape) - output) * (-self.log_std).exp()
        return -(0.5 * distance.square() + self.log_std + HALF_LOG_TAU).sum(-1)

    def entropy(self, output: Float[Tensor, "... A"]) -> Float[Tensor, "..."]:
        """Differential entropy in nats, the same for all states."""
        return (self.log_std + (0.5 + HALF_LOG_TAU)).sum().expand(output.shape[:-1])

    def divergences(
        self, output: Float[Tensor, "... A"], old: "GaussianAction", old_output: Float[Tensor, "... A"]
    ) -> dict[str, Float[Tensor, "..."]]:
        """Apart for the mean (with the old deviations) and for the covariance (the same for all states)."""
        old_log_std = old.log_std.detach()
        covariance = gaussian_covariance_divergence(old_log_std, self.log_std)
        return {
            "mean": gaussian_mean_divergence(old_output, output, old_log_std),
            "covariance": covariance.expand(output.shape[:-1]),
        }


class CategoricalAction(nn.Module):
    """A Discrete or MultiDiscrete leaf: one softmax per component, tokens are sums of one embedding per component."""

    start: Tensor
    offset: Tensor
    places: Tensor
    exists: Tensor
    counts: Tensor
    countable = tied = True

    def __init__(self, space: spaces.Discrete | spaces.MultiDiscrete, width: int | None) -> None:
        super().__init__()
        sizes = np.atleast_1d(space.n if isinstance(space, spaces.Discrete) else space.nvec).reshape(-1)
        self.sizes = [int(size) for size in sizes]
        self.shape = space.shape or ()
        self.outputs, self.draws = sum(self.sizes), len(self.sizes)
        self.choices = self.outputs
        self.largest = max(self.sizes)
        self.equal = min(self.sizes) == self.largest
        self.embedding = None if width is None else nn.Embedding(self.outputs, width)
        start = torch.as_tensor(np.atleast_1d(space.start).reshape(-1).astype(np.int64))
        self.counted_from_zero = not bool(start.any())
        offset = torch.as_tensor(np.cumsum([0, *self.sizes[:-1]]))
        classes = torch.arange(self.largest)
        exists = classes < torch.as_tensor(self.sizes)[:, None]
        places = torch.where(exists, offset[:, None] + classes, 0)
        counts = torch.as_tensor(self.sizes, dtype=torch.get_default_dtype())
        for name, values in {
            "start": start, "offset": offset, "places": places.flatten(), "exists": exists, "counts": counts
        }.items():  # fmt: skip
            self.register_buffer(name, values, persistent=False)

    def draw(self, rows: int, generator: torch.Generator | None) -> Float[Tensor, "R C"]:
        """Uniform numbers in [0, 1)."""
        like = self.counts
        return torch.rand(rows, self.draws, generator=generator, device=like.device, dtype=like.dtype)

    def classes(self, action: Tensor) -> Int[Tensor, "... C"]:
        """Class index of every component, counted from 0."""
        lead = action.dim() - len(self.shape)
        flat = action.reshape(*action.shape[:lead], self.draws).long()
        return flat if self.counted_from_zero else flat - self.start

    def recorded(self, action: Tensor) -> Float[Tensor, "... A"]:
        """The action as a readout stores it: 1 for the class of every component, 0 for its others."""
        place = self.classes(action) + self.offset
        zeros = self.counts.new_zeros(*place.shape[:-1], self.outputs)
        return zeros.scatter(-1, place, 1.0)

    def mixed(
        self, output: Float[Tensor, "... A"], recorded: Float[Tensor, "... A"], share: Float[Tensor, "... 1"]
    ) -> Float[Tensor, "... A"]:
        """Logits of a mixture with what is recorded, component by component."""
        parts = zip(output.split_with_sizes(self.sizes, -1), recorded.split_with_sizes(self.sizes, -1), strict=True)
        mixtures = [share * other + (1 - share) * own.softmax(-1) for own, other in parts]
        return torch.cat(mixtures, -1).clamp(min=LEAST).log()

    def masked(self, output: Float[Tensor, "... A"], allowed: Bool[Tensor, "... A"]) -> Float[Tensor, "... A"]:
        """The output where only ``allowed`` classes can be taken."""
        return output.masked_fill(~allowed, MASKED)

    def logits(self, output: Float[Tensor, "... A"]) -> Float[Tensor, "... C N"]:
        """One row of logits per component; -inf for the classes that the largest component has and this one lacks."""
        shape = (*output.shape[:-1], self.draws, self.largest)
        if self.equal:
            return output.view(shape)
        return output.index_select(-1, self.places).view(shape).masked_fill(~self.exists, -math.inf)

    def embed(self, action: Tensor) -> Float[Tensor, "... W"]:
        assert self.embedding is not None
        embedded: Tensor = self.embedding(self.classes(action) + self.offset).sum(-2)
        return embedded

    def decode(self, output: Float[Tensor, "... A"], noise: Float[Tensor, "... C"] | None = None) -> Tensor:
        """The most probable action, or with uniform ``noise`` in [0, 1) a sample."""
        logits = self.logits(output)
        if noise is None:
            chosen = logits.argmax(-1)
        else:
            # Class k is taken where the noise lies in [P(< k), P(<= k)). Rounded probabilities sum to nearly 1;
            # measured in parts of their own sum, no class of probability 0 is ever taken.
            up_to = logits.softmax(-1).cumsum(-1)
            chosen = (up_to[..., :-1] <= noise.unsqueeze(-1) * up_to[..., -1:]).sum(-1)
        if not self.counted_from_zero:
            chosen = chosen + self.start
        return chosen.view(*output.shape[:-1], *self.shape)

    def execute(self, action: Tensor) -> Tensor:
        """The action itself."""
        return action

    def distribution(self, output: Float[Tensor, "... A"]) -> dict[str, Tensor]:
        """Fields of ``PolicyOutput``: probabilities of the classes of all components side by side."""
        parts = output.split_with_sizes(self.sizes, -1)
        return {"probabilities": torch.cat([part.softmax(-1) for part in parts], -1)}

    def log_prob(self, output: Float[Tensor, "... A"], action: Tensor) -> Float[Tensor, "..."]:
        """Log-probability of the classes, all components together."""
        logs = self.logits(output).log_softmax(-1)
        return logs.gather(-1, self.classes(action).unsqueeze(-1)).sum((-2, -1))

    def _log_probs(self, output: Float[Tensor, "... A"]) -> Float[Tensor, "... C N"]:
        """Of every class, and 0 where there is none."""
        logs = self.logits(output).log_softmax(-1)
        return logs if self.equal else logs.masked_fill(~self.exists, 0.0)

    def entropy(self, output: Float[Tensor, "... A"]) -> Float[Tensor, "..."]:
        """Entropy in nats, the sum over the components."""
        logs = self._log_probs(output)
        return -(logs.exp() * logs).sum((-2, -1))

    def log_barrier(self, output: Float[Tensor, "... A"]) -> Float[Tensor, "..."]:
        """Mean log-probability of the classes plus the logarithm of their number, the sum over the components.

        Classes that must not be taken do not count.
        """
        logs = self._log_probs(output)
        counted = (logs > 0.5 * MASKED) & self.exists
        counts = counted.sum(-1).to(logs.dtype)
        return (torch.where(counted, logs, 0.0).sum(-1) / counts + counts.log()).sum(-1)

    def divergences(
        self, output: Float[Tensor, "... A"], old: "CategoricalAction", old_output: Float[Tensor, "... A"]
    ) -> dict[str, Float[Tensor, "..."]]:
        """Of all classes, the sum over the components."""
        return {"classes": categorical_divergence(self._log_probs(old_output), self._log_probs(output))}


class BinaryAction(nn.Module):
    """A MultiBinary leaf: independent bits."""

    def __init__(self, space: spaces.MultiBinary, width: int | None) -> None:
        super().__init__()
        self.shape = space.shape
        self.outputs = self.draws = int(np.prod(space.shape))
        self.choices = 2 * self.outputs
        self.embedding = None if width is None else nn.Linear(self.outputs, width)
        self.register_buffer("like", torch.zeros(()), persistent=False)

    like: Tensor
    """Says the type and the device of noise and bits."""
    countable, tied = True, False

    def recorded(self, action: Tensor) -> Float[Tensor, "... A"]:
        """The action as a readout stores it."""
        return self.bits(action)

    def mixed(
        self, output: Float[Tensor, "... A"], recorded: Float[Tensor, "... A"], share: Float[Tensor, "... 1"]
    ) -> Float[Tensor, "... A"]:
        """Logits of a mixture with what is recorded, bit by bit."""
        on, off = (
            (share * other + (1 - share) * own.sigmoid()).clamp(min=LEAST)
            for other, own in ((recorded, output), (1 - recorded, -output))
        )
        return on.log() - off.log()

    def draw(self, rows: int, generator: torch.Generator | None) -> Float[Tensor, "R A"]:
        """Uniform numbers in [0, 1)."""
        return torch.rand(rows, self.draws, generator=generator, device=self.like.device, dtype=self.like.dtype)

    def masked(self, output: Float[Tensor, "... A"], allowed: Bool[Tensor, "... M"]) -> Float[Tensor, "... A"]:
        """The output where only ``allowed`` values of bits can be taken; they stand as 0 and 1 of each bit, in turn."""
        off, on = allowed.unflatten(-1, (self.outputs, 2)).unbind(-1)
        return torch.where(off, output, -MASKED).masked_fill(~on, MASKED)

    def bits(self, action: Tensor) -> Float[Tensor, "... A"]:
        """The action as numbers 0 and 1, flat."""
        return _flat(action, self.shape).to(self.like.dtype)

    def embed(self, action: Tensor) -> Float[Tensor, "... W"]:
        assert self.embedding is not None
        embedded: Tensor = self.embedding(self.bits(action))
        return embedded

    def decode(self, output: Float[Tensor, "... A"], noise: Float[Tensor, "... A"] | None = None) -> Tensor:
        """The most probable bits, or with uniform ``noise`` in [0, 1) a sample."""
        on = output > 0 if noise is None else output.sigmoid() > noise
        return _shaped(on.to(torch.int8), self.shape)

    def execute(self, action: Tensor) -> Tensor:
        """The action itself."""
        return action

    def distribution(self, output: Float[Tensor, "... A"]) -> dict[str, Tensor]:
        """Fields of ``PolicyOutput``: the probability of a 1 in every bit [..., leaf shape]."""
        return {"probabilities": _shaped(output.sigmoid(), self.shape)}

    # With s the logistic function, log s(x) = x + log s(-x): both sides of a bit from one logarithm.

    def log_prob(self, output: Float[Tensor, "... A"], action: Tensor) -> Float[Tensor, "..."]:
        """Log-probability of the bits, all together."""
        return torch.addcmul(F.logsigmoid(-output), self.bits(action), output).sum(-1)

    def entropy(self, output: Float[Tensor, "... A"]) -> Float[Tensor, "..."]:
        """Entropy in nats, the sum over the bits."""
        return -torch.addcmul(F.logsigmoid(-output), output.sigmoid(), output).sum(-1)

    def log_barrier(self, output: Float[Tensor, "... A"]) -> Float[Tensor, "..."]:
        """Mean log-probability of 0 and 1 plus log 2, the sum over the bits that can be both."""
        each = F.logsigmoid(-output) + 0.5 * output + math.log(2.0)
        return torch.where(output.abs() < -0.5 * MASKED, each, 0.0).sum(-1)

    def divergences(
        self, output: Float[Tensor, "... A"], old: "BinaryAction", old_output: Float[Tensor, "... A"]
    ) -> dict[str, Float[Tensor, "..."]]:
        """Of all bits, their sum."""
        return {"classes": bernoulli_divergence(old_output, output)}


ActionLeaf = ContinuousAction | GaussianAction | CategoricalAction | BinaryAction
SampledLeaf = GaussianAction | CategoricalAction | BinaryAction
"""Leaves with a probability for every action."""


class ActionHead(nn.Module):
    """Linear layer from features to the outputs of every leaf of an action space; samples, and tokens from actions.

    Actions are dictionaries by leaf path ("" for a space that is one leaf) of tensors [..., leaf shape], as the
    environment counts and scales them; with ``log_std`` those of a Box are in head units until ``execute``.

    Args:
        width: of the features, and of the tokens.
        log_std: Box leaves are normal with this first logarithm of their standard deviation, in units where the bounds
            are -1 and 1; None makes them deterministic: the tanh of an output, between the bounds.
        embeds: whether actions are turned into tokens.
        readout: what is added of recorded actions; None for nothing.
        predicts_deviation: without ``log_std``, Box leaves are normal, with deviations that depend on the features.
        units: without ``log_std``, of Box leaves by path; as for ``ContinuousAction``.

    Raises:
        ConfigError: for an action space with an unsupported leaf, or one that the readout cannot serve.
    """

    def __init__(
        self,
        space: gym.Space[Any],
        width: int,
        *,
        log_std: float | None = None,
        embeds: bool = True,
        readout: Choice | None = None,
        predicts_deviation: bool = False,
        units: Mapping[str, Units] | None = None,
    ) -> None:
        super().__init__()
        check_supported(space, "action")
        check_width(space, "action", width)
        leaves = leaf_spaces(space)
        self.paths, self.spaces = list(leaves), list(leaves.values())
        token_width = width if embeds else None
        parts = [
            _leaf(leaf, token_width, log_std, predicts_deviation, (units or {}).get(path))
            for path, leaf in leaves.items()
        ]
        self.leaves = nn.ModuleList(parts)
        self._named: list[tuple[str, ActionLeaf]] = list(zip(self.paths, parts, strict=True))
        self._of_actors = not any(isinstance(leaf, ContinuousAction) for leaf in parts)
        self.linear = nn.Linear(width, sum(leaf.outputs for leaf in parts))
        self.draws = sum(leaf.draws for leaf in parts)
        self.choices = sum(leaf.choices for leaf in parts)
        self.countable = all(leaf.countable for leaf in parts)
        self.numbers = sum(leaf.components if isinstance(leaf, BoxAction) else leaf.outputs for leaf in parts)
        self.readout: Readout | None = None if readout is None else readout.build(width, parts)

    def named_leaves(self) -> list[tuple[str, ActionLeaf]]:
        """Leaf paths with their parts, in the order of the space."""
        return self._named

    def sampled_leaves(self) -> list[tuple[str, SampledLeaf]]:
        """The same, of a head of an actor that learns online from samples: no Box is a ``ContinuousAction``."""
        assert self._of_actors, "a Box of this head has no density, or none that its samples follow"
        return self._named  # type: ignore[return-value]  # none of them is a ContinuousAction

    def forward(self, features: Float[Tensor, "... W"]) -> Float[Tensor, "... A"]:
        """Outputs of all leaves, side by side."""
        return linear(self.linear, features) if self.readout is None else self.readout(features, self.linear)

    def learning(self, features: Float[Tensor, "... W"], episode: Int[Tensor, "..."]) -> Float[Tensor, "... A"]:
        """Outputs to learn recorded actions by: without what a readout reads of the same ``episode``."""
        if self.readout is None or not self.readout.learns:
            return linear(self.linear, features)
        return self.readout(features, self.linear, episode)

    def recorded(self, actions: Mapping[str, Tensor]) -> Float[Tensor, "... A"]:
        """Actions as a readout stores them and a critic reads them, in ``numbers`` numbers."""
        return torch.cat([leaf.recorded(actions[path]) for path, leaf in self.named_leaves()], -1)

    def blank(self, actions: Mapping[str, Tensor], valid: Bool[Tensor, "..."]) -> dict[str, Tensor]:
        """The actions with a legal constant wherever ``valid`` is False, whatever stood there (NaN, -10)."""
        return blank_invalid(dict(zip(self.paths, self.spaces, strict=True)), actions, valid)

    def split(self, outputs: Float[Tensor, "... A"]) -> dict[str, Tensor]:
        """The outputs of every leaf by path."""
        if len(self.paths) == 1:
            return {self.paths[0]: outputs}
        parts = outputs.split_with_sizes([leaf.outputs for _, leaf in self.named_leaves()], -1)
        return dict(zip(self.paths, parts, strict=True))

    def masked(self, outputs: Float[Tensor, "... A"], mask: Shaped[Tensor, "... M"]) -> Float[Tensor, "... A"]:
        """The outputs where only choices can be taken at which ``mask`` is not 0; see ``action_masks.mask_space``.

        Everything read off them then is that of the distribution over the allowed actions: samples, log-probability,
        entropy, divergences, log barrier. Where a mask allows nothing, everything is equally likely.
        """
        allowed = mask != 0
        if len(self.paths) == 1:
            return self.named_leaves()[0][1].masked(outputs, allowed)
        parts, leaves = self.split(outputs), self.named_leaves()
        masks = allowed.split_with_sizes([leaf.choices for _, leaf in leaves], -1)
        return torch.cat([leaf.masked(parts[path], each) for (path, leaf), each in zip(leaves, masks, strict=True)], -1)

    def embed(self, actions: Mapping[str, Tensor]) -> Float[Tensor, "... W"]:
        """The token of an action: the sum of its leaves' embeddings."""
        tokens = [
            leaf.embed(actions[path]) for path, leaf in self.named_leaves() if not isinstance(leaf, GaussianAction)
        ]
        return _total(tokens)

    def draw(self, rows: int, generator: torch.Generator | None) -> Float[Tensor, "R U"]:
        """Noise for ``decode``: uniform numbers in [0, 1) for classes and bits, standard normal ones for Boxes."""
        parts = [leaf.draw(rows, generator) for _, leaf in self.sampled_leaves()]
        return parts[0] if len(parts) == 1 else torch.cat(parts, -1)

    def decode(self, outputs: Float[Tensor, "... A"], noise: Float[Tensor, "... U"] | None = None) -> dict[str, Tensor]:
        """Actions by path: the most probable, or sampled with ``draws`` numbers of ``noise`` per row."""
        if len(self.paths) == 1:
            ((path, leaf),) = self.named_leaves()
            return {path: leaf.decode(outputs, noise)}
        parts = self.split(outputs)
        if noise is None:
            return {path: leaf.decode(parts[path]) for path, leaf in self.named_leaves()}
        numbers = noise.split_with_sizes([leaf.draws for _, leaf in self.named_leaves()], -1)
        return {
            path: leaf.decode(parts[path], part)
            for (path, leaf), part in zip(self.named_leaves(), numbers, strict=True)
        }

    def decode_some(
        self, outputs: Float[Tensor, "B A"], noise: Float[Tensor, "B U"] | None, greedy: Bool[Tensor, " B"]
    ) -> dict[str, Tensor]:
        """``decode`` with noise, and the most probable actions in the rows that are ``greedy``; looks at no data."""
        likely = self.decode(outputs)
        return {
            path: torch.where(greedy.view(-1, *[1] * (value.dim() - 1)), likely[path], value)
            for path, value in self.decode(outputs, noise).items()
        }

    def execute(self, actions: Mapping[str, Tensor]) -> dict[str, Tensor]:
        """The actions as the environment takes them: those of a Box in its units, and clipped."""
        return {path: leaf.execute(actions[path]) for path, leaf in self.named_leaves()}

    def as_drawn(self, actions: Mapping[str, Tensor]) -> dict[str, Tensor]:
        """Actions of the environment as ``decode`` gives them: those of a Gaussian Box in head units."""
        return {
            path: _shaped(leaf.normalise(actions[path]), leaf.shape)
            if isinstance(leaf, GaussianAction)
            else actions[path]
            for path, leaf in self.named_leaves()
        }

    def log_prob(self, outputs: Float[Tensor, "... A"], actions: Mapping[str, Tensor]) -> Float[Tensor, "..."]:
        """Log-probability of actions that ``decode`` gave, the sum over the leaves."""
        parts = self.split(outputs)
        return _total([leaf.log_prob(parts[path], actions[path]) for path, leaf in self.sampled_leaves()])

    def entropy(self, outputs: Float[Tensor, "... A"]) -> Float[Tensor, "..."]:
        """Entropy in nats, that of a Box in head units; the sum over the leaves."""
        parts = self.split(outputs)
        return _total([leaf.entropy(parts[path]) for path, leaf in self.sampled_leaves()])

    def distribution(
        self, outputs: Float[Tensor, "... A"], actions: Mapping[str, Tensor]
    ) -> dict[str, dict[str, Tensor]]:
        """Fields of ``PolicyOutput`` by leaf that say how actions are distributed, and how likely these are.

        Numbers of whole actions have the path ""; they are missing where a Box has no density.
        """
        parts = self.split(outputs)
        found: dict[str, dict[str, Tensor]] = {}
        log_probs, entropies = [], []
        for path, leaf in self.named_leaves():
            for kind, value in leaf.distribution(parts[path]).items():
                found.setdefault(kind, {})[path] = value
            if not isinstance(leaf, ContinuousAction) or isinstance(leaf, NormalAction):
                log_probs.append(leaf.log_prob(parts[path], actions[path]))
                entropies.append(leaf.entropy(parts[path]))
        if len(log_probs) == len(self.leaves):
            found |= {"log_prob": {"": _total(log_probs)}, "entropy": {"": _total(entropies)}}
        return found

    def log_barrier(self, outputs: Float[Tensor, "... A"]) -> Float[Tensor, "..."] | None:
        """Minus the divergence of this policy from the uniform one; None unless the actions are ``countable``.

        -KL(uniform || policy) in nats, the sum over the parts of an action: 0 for a uniform policy, and without bound
        below as any action dies out (Agarwal et al. 2021, arXiv 1908.00261, section 5).
        """
        if not self.countable:
            return None
        parts = self.split(outputs)
        return _total(
            [leaf.log_barrier(parts[path]) for path, leaf in self.named_leaves() if not isinstance(leaf, BoxAction)]
        )

    def divergences(
        self, outputs: Float[Tensor, "... A"], old: "ActionHead", old_outputs: Float[Tensor, "... A"]
    ) -> dict[str, Float[Tensor, "..."]]:
        """KL(old policy || this policy) of the whole distribution in nats, the sums over the leaves by their kind.

        "classes": of everything that can be counted. "mean" and "covariance": of Boxes, decoupled as in V-MPO (arXiv
        1909.12238, section 4.1.2): one with the old deviations, one with equal means. Kinds that the space lacks are
        missing. Gradient flows into this policy alone, of which ``old`` is a head of the same space.
        """
        parts, old_parts = self.split(outputs), self.split(old_outputs.detach())
        found: dict[str, list[Tensor]] = {}
        for (path, leaf), (_, old_leaf) in zip(self.sampled_leaves(), old.sampled_leaves(), strict=True):
            several: Any = leaf  # both heads have the same kind of leaf at a place
            for kind, part in several.divergences(parts[path], old_leaf, old_parts[path]).items():
                found.setdefault(kind, []).append(part)
        return {kind: _total(found[kind]) for kind in self.divergence_kinds()}

    def divergence_kinds(self) -> list[str]:
        """Names of ``divergences`` for this space."""
        boxes = any(isinstance(leaf, GaussianAction) for leaf in self.leaves)
        countable = any(leaf.countable for _, leaf in self.named_leaves())
        return (["classes"] if countable else []) + (["mean", "covariance"] if boxes else [])

    def box_entropy(self, outputs: Float[Tensor, "... A"]) -> Float[Tensor, "..."]:
        """Entropy of the Boxes with predicted deviations in head units, in nats, the sum over the leaves."""
        parts = self.split(outputs)
        return _total([leaf.entropy(parts[path]) for path, leaf in self.normal_leaves()])

    def normal_leaves(self) -> list[tuple[str, NormalAction]]:
        """Leaf paths and parts of the Boxes with predicted deviations."""
        return [(path, leaf) for path, leaf in self.named_leaves() if isinstance(leaf, NormalAction)]

    def standard_deviation(self) -> Tensor | None:
        """Mean over the components of all Boxes, in head units; None where there is no Gaussian."""
        logs: list[Tensor] = [leaf.log_std for leaf in self.leaves if isinstance(leaf, GaussianAction)]
        return torch.cat(logs).exp().mean() if logs else None


def holds_integers(space: spaces.Box) -> bool:
    """Whether a Box is one of integers or booleans, to which numbers in between are rounded."""
    return not np.issubdtype(space.dtype, np.floating)


def inner_bounds(space: spaces.Box) -> tuple[np.ndarray, np.ndarray]:
    """Bounds of a Box in float32, never outside it: 0.1 in float64 lies below 0.1 in float32."""
    low, high = space.low.astype(np.float32), space.high.astype(np.float32)
    exact_low, exact_high = (bound.astype(np.float64) for bound in (space.low, space.high))
    low = np.where(low.astype(np.float64) < exact_low, np.nextafter(low, np.float32(np.inf)), low)
    high = np.where(high.astype(np.float64) > exact_high, np.nextafter(high, np.float32(-np.inf)), high)
    return low, high


def as_arrays(actions: Mapping[str, Tensor], leaves: Mapping[str, gym.Space[Any]]) -> dict[str, np.ndarray]:
    """Actions [N, ...] by path in the types of their leaves.

    Raises:
        DataError: for a Box that holds no finite numbers.
    """
    arrays = {path: value.cpu().numpy() for path, value in actions.items()}
    check_actions(arrays)
    return {path: _as_leaf(rows, leaves[path]) for path, rows in arrays.items()}


def _as_leaf(rows: np.ndarray, space: gym.Space[Any]) -> np.ndarray:
    """Rows in the type of their leaf; inside its Box, whose bounds float32 may not have."""
    found = rows.astype(space.dtype)
    if isinstance(space, spaces.Box) and rows.dtype != found.dtype and not holds_integers(space):
        np.clip(found, space.low, space.high, out=found)
    return found


def blank_invalid(
    spaces_: Mapping[str, gym.Space[Any]], values: Mapping[str, Tensor], valid: Bool[Tensor, "..."]
) -> dict[str, Tensor]:
    """Values by leaf path with a legal constant (0, or the first class) wherever ``valid`` is False."""
    blanked = {}
    for path, space in spaces_.items():
        value = values[path]
        first = space.start if isinstance(space, spaces.Discrete | spaces.MultiDiscrete) else 0
        legal = torch.as_tensor(first, dtype=value.dtype, device=value.device)
        mask = valid.reshape(*valid.shape, *[1] * (value.dim() - valid.dim()))
        blanked[path] = torch.where(mask, value, legal)
    return blanked


def _leaf(
    space: gym.Space[Any], width: int | None, log_std: float | None, predicts_deviation: bool, units: Units | None
) -> ActionLeaf:
    if isinstance(space, spaces.Box):
        if log_std is not None:
            return GaussianAction(space, log_std)
        return (NormalAction if predicts_deviation else ContinuousAction)(space, width, units)
    if isinstance(space, spaces.MultiBinary):
        return BinaryAction(space, width)
    assert isinstance(space, spaces.Discrete | spaces.MultiDiscrete)  # check_supported has refused the rest
    return CategoricalAction(space, width)


def _total(parts: list[Tensor]) -> Tensor:
    return parts[0] if len(parts) == 1 else torch.stack(parts).sum(0)


def _flat(action: Tensor, shape: tuple[int, ...]) -> Num[Tensor, "... A"]:
    return action if len(shape) == 1 else action.reshape(*action.shape[: action.dim() - len(shape)], math.prod(shape))


def _shaped(flat: Num[Tensor, "... A"], shape: tuple[int, ...]) -> Tensor:
    return flat if len(shape) == 1 else flat.reshape(*flat.shape[:-1], *shape)
