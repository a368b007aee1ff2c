"""Leaves of an action space: a token from an action, an action and its distribution from outputs of a head.

Everything is arithmetic on tensors whose shapes do not depend on their values, so that a step can be traced and
compiled. "..." stands for any leading axes, W is model width, C counts the components of a leaf, N the classes of its
largest, M the entries of a mask.
"""

import math
from collections.abc import Sequence
from typing import Any

import numpy as np
import torch
from gymnasium import spaces
from jaxtyping import Bool, Float, Int, Num
from torch import Tensor, nn
from torch.nn import functional as F

from rltransformers.core.errors import ConfigError
from rltransformers.core.ranges import LARGEST
from rltransformers.core.spaces import box_bounds
from rltransformers.functional.divergences import (
    bernoulli_divergence,
    categorical_divergence,
    gaussian_covariance_divergence,
    gaussian_mean_divergence,
)
from rltransformers.functional.modules import scale_gradient

HALF_LOG_TAU = 0.5 * math.log(2.0 * math.pi)
STEPS = 2**10
"""Steps of float32 between two bounds that an action needs at least; far from zero they are wide."""
LEAST = 1e-30  # of a probability that is a mixture: its logarithm is finite
MASKED = -1e30  # output of a class that must not be taken: its probability is exactly 0, its logarithm finite
LOG_STD_RANGE = (-5.0, 2.0)
"""Of deviations that a network predicts, as in the published code of the Online Decision Transformer."""
Units = Sequence[Sequence[float]]  # centers and scales of the components of a Box


class ActionLeaf(nn.Module):
    """One leaf of an action space."""

    shape: tuple[int, ...]  # of an action
    outputs: int  # numbers that the leaf reads of the head's row
    draws: int  # numbers of noise that sampling an action takes
    normal_noise = False  # whether these are standard normal, else uniform in [0, 1)
    loss_draws = 0  # uniform numbers in [0, 1) that the loss of a recorded action takes
    common = common_draws = 0  # outputs and numbers of noise, the first ones, that all actions of a chunk share
    numbers: int  # of an action as ``as_numbers`` writes it
    choices = 0  # entries of a mask
    countable = False  # whether actions are classes or bits
    tied = False  # whether rows of the head's last layer stand for actions, one row per class
    has_density = True  # whether ``log_prob`` and, where ``has_entropy``, ``entropy`` exist
    has_entropy = True

    def embed(self, action: Tensor) -> Float[Tensor, "... W"]:
        """The token of an action."""
        raise NotImplementedError

    def decode(self, output: Float[Tensor, "... A"], noise: Float[Tensor, "... U"] | None = None) -> Tensor:
        """The most probable action [..., leaf shape], or with ``noise`` a sample."""
        raise NotImplementedError

    def execute(self, action: Tensor) -> Tensor:
        """The action as the environment takes it, from one that ``decode`` gave."""
        return action

    def as_drawn(self, action: Tensor) -> Tensor:
        """The inverse of ``execute``."""
        return action

    def as_numbers(self, action: Tensor) -> Float[Tensor, "... A"]:
        """An action of the environment as readouts store it and critics read it."""
        raise NotImplementedError

    def mixed(self, output: Tensor, recorded: Tensor, share: Float[Tensor, "... 1"]) -> Tensor:
        """Outputs whose probabilities are ``share`` times ``recorded`` and the rest times those of ``output``."""
        raise NotImplementedError

    def masked(self, output: Tensor, allowed: Bool[Tensor, "... M"]) -> Tensor:
        """The output where only ``allowed`` classes or values of bits can be taken."""
        return output

    def distribution(self, output: Tensor) -> dict[str, Tensor]:
        """Fields of ``PolicyOutput``, in the units of the environment."""
        raise NotImplementedError

    def log_prob(self, output: Float[Tensor, "... A"], action: Tensor) -> Float[Tensor, "..."]:
        """Log-probability of an action that ``decode`` gave, all components together; of a Box before clipping."""
        raise NotImplementedError

    def entropy(self, output: Float[Tensor, "... A"]) -> Float[Tensor, "..."]:
        """Entropy in nats, the sum over the components; of a Box differential, in head units, before clipping."""
        raise NotImplementedError

    def balance(self, output: Float[Tensor, "... A"]) -> Float[Tensor, "... A"]:
        """The same output to learn from, see ``ActionHead.balance``."""
        return output

    def log_barrier(self, output: Float[Tensor, "... A"]) -> Float[Tensor, "..."]:
        """Minus the divergence from the uniform distribution; what must not be taken does not count."""
        raise NotImplementedError

    def divergences(self, output: Tensor, old: Any, old_output: Tensor) -> dict[str, Float[Tensor, "..."]]:
        """KL(old || this) by kind, of outputs and of an ``old`` leaf of the same kind; the sum over the components."""
        raise NotImplementedError


class BoxAction(ActionLeaf):
    """A Box leaf in head units, in which its bounds are -1 and 1.

    Components with an open side keep the units of the environment, unless ``units`` has center and scale for them; one
    of a single value is 0. Actions of a Box of integers are rounded to the nearest.

    Raises ConfigError for two bounds that lie fewer than ``STEPS`` steps of float32 apart.
    """

    center: Tensor
    scale: Tensor
    bounded: Tensor
    low: Tensor
    high: Tensor

    def __init__(self, space: spaces.Box, units: Units | None = None) -> None:
        super().__init__()
        low, high = (bound.reshape(-1) for bound in box_bounds(space))
        closed = (np.abs(low) < LARGEST) & (np.abs(high) < LARGEST)  # float32 ends at 3.4e38
        half = np.where(closed, high / 2 - low / 2, 0.0)
        bounded = half >= np.finfo(np.float32).tiny
        step = np.spacing(np.where(closed, np.maximum(np.abs(low), np.abs(high)), 0.0).astype(np.float32))
        coarse = bounded & (half < STEPS / 2 * step) & ((step > 0.5) | (not holds_integers(space)))
        if coarse.any():
            place = int(coarse.argmax())
            raise ConfigError(
                f"actions are computed in float32, with fewer than {STEPS:,} numbers between {low[place]:.10g} and "
                f"{high[place]:.10g}, bounds of {space}; rescale them, recorded ones too, by a wrapper "
                "(gymnasium.wrappers.RescaleAction, for integers TransformAction)"
            )
        center, scale = np.zeros_like(low), np.where(bounded, half, 1.0)
        if units is not None:
            center[~closed], scale[~closed] = (np.asarray(each)[~closed] for each in units)
        center[closed] = low[closed] / 2 + high[closed] / 2
        self.shape, self.components, self.whole = space.shape, len(low), holds_integers(space)
        self.outputs = self.numbers = self.components
        self.all_bounded = bool(bounded.all())
        low, high = (bound.reshape(-1) for bound in inner_bounds(space))  # what is executed lies in the Box
        buffers = {"center": center.astype(np.float32), "scale": scale.astype(np.float32)}
        for name, values in {**buffers, "low": low, "high": high, "bounded": bounded}.items():
            self.register_buffer(name, torch.as_tensor(values), persistent=False)

    def as_numbers(self, action: Tensor) -> Float[Tensor, "... A"]:
        """An action of the environment in head units, flat; data outside the bounds lands outside [-1, 1]."""
        return (flat(action, self.shape).to(self.center.dtype) - self.center) / self.scale

    def inside(self, numbers: Float[Tensor, "... A"]) -> Float[Tensor, "..."]:
        """The action of the Box that is nearest to one in head units: [..., A] to [..., leaf shape]."""
        action = torch.addcmul(self.center, numbers, self.scale)
        action = action.round() if self.whole else action
        return shaped(action.clamp(self.low, self.high), self.shape)


class ContinuousAction(BoxAction):
    """A Box leaf of which one action is predicted, in head units; actions are those of the environment.

    ``width`` is that of the tokens; None for no tokens.
    """

    draws = 0
    has_density = False

    def __init__(self, space: spaces.Box, width: int | None, units: Units | None = None) -> None:
        super().__init__(space, units)
        self.embedding = None if width is None else nn.Linear(self.components, width)

    def squash(self, output: Float[Tensor, "... A"]) -> Float[Tensor, "... A"]:
        """The predicted action in head units: tanh between two bounds, the output itself elsewhere."""
        return output.tanh() if self.all_bounded else torch.where(self.bounded, output.tanh(), output)

    def embed(self, action: Tensor) -> Float[Tensor, "... W"]:
        assert self.embedding is not None
        return self.embedding(self.as_numbers(action))

    def decode(self, output: Float[Tensor, "... A"], noise: Tensor | None = None) -> Tensor:
        return self.inside(self.squash(output) if noise is None else self.sample(output, noise))

    def sample(self, output: Float[Tensor, "... A"], noise: Float[Tensor, "... U"]) -> Float[Tensor, "... A"]:
        """A sampled action in head units, before it is clipped; the predicted one where nothing is drawn."""
        return self.squash(output)

    def distribution(self, output: Tensor) -> dict[str, Tensor]:
        return {"mean": shaped(torch.addcmul(self.center, self.squash(output), self.scale), self.shape)}

    def spread(self, output: Float[Tensor, "... O"]) -> Float[Tensor, "..."]:
        """See ``ActionHead.spread``."""
        return self.entropy(output)

    def disturbed(self, action: Tensor, noise: Tensor) -> Tensor:
        """The action moved by ``noise`` in head units, inside the Box; both [..., leaf shape]."""
        return self.inside(self.as_numbers(action) + flat(noise, self.shape).to(self.center.dtype))


class NormalAction(ContinuousAction):
    """A Box leaf whose components are normal in head units: means and deviations from the network (arXiv 2202.05607).

    The mean is the action of a ``ContinuousAction``, so acting without noise is the same. Samples are clipped to the
    bounds; that paper bends them by tanh, which has no closed entropy and no density for actions at the bounds.
    """

    has_density = True

    def __init__(self, space: spaces.Box, width: int | None, units: Units | None = None) -> None:
        super().__init__(space, width, units)
        self.outputs = self.draws = 2 * self.components

    def squash(self, output: Float[Tensor, "... O"]) -> Float[Tensor, "... A"]:
        return super().squash(output[..., : self.components])

    def log_std(self, output: Float[Tensor, "... O"]) -> Float[Tensor, "... A"]:
        """Logarithms of the deviations in head units, within ``LOG_STD_RANGE``."""
        return log_std_within(output[..., self.components :])

    def sample(self, output: Float[Tensor, "... O"], noise: Float[Tensor, "... U"]) -> Float[Tensor, "... A"]:
        normal = normal_numbers(noise.to(output.dtype))
        return torch.addcmul(self.squash(output), self.log_std(output).exp(), normal)

    def balance(self, output: Float[Tensor, "... O"]) -> Float[Tensor, "... O"]:
        variance = (2.0 * self.log_std(output.detach())).exp()
        return scale_gradient(output, torch.cat([variance, variance], -1))

    def distribution(self, output: Float[Tensor, "... O"]) -> dict[str, Tensor]:
        deviation = shaped(self.log_std(output).exp() * self.scale, self.shape)
        return super().distribution(output) | {"deviation": deviation}

    def log_prob(self, output: Float[Tensor, "... O"], action: Tensor) -> Float[Tensor, "..."]:
        return normal_log_prob(self.as_numbers(action), self.squash(output), self.log_std(output))

    def cumulative(self, output: Float[Tensor, "... O"], action: Tensor) -> Float[Tensor, "... A"]:
        """Probability that a component lies below that of the action."""
        return torch.special.ndtr((self.as_numbers(action) - self.squash(output)) * (-self.log_std(output)).exp())

    def entropy(self, output: Float[Tensor, "... O"]) -> Float[Tensor, "..."]:
        return normal_entropy(self.log_std(output))


class GaussianAction(BoxAction):
    """A Box leaf whose components are normal: means from the network, one standard deviation each for all states.

    Samples, means, deviations, log-probabilities and entropies are in head units, as an agent stores and sees its
    actions; ``execute`` makes of a sample what the environment takes.
    """

    normal_noise = True

    def __init__(self, space: spaces.Box, log_std: float) -> None:
        super().__init__(space)
        self.draws = self.components
        self.log_std = nn.Parameter(torch.full((self.outputs,), float(log_std)))

    def decode(self, output: Float[Tensor, "... A"], noise: Float[Tensor, "... A"] | None = None) -> Tensor:
        numbers = output if noise is None else torch.addcmul(output, self.log_std.exp(), noise.to(output.dtype))
        return shaped(numbers, self.shape)

    def execute(self, action: Tensor) -> Tensor:
        return self.inside(flat(action, self.shape))

    def as_drawn(self, action: Tensor) -> Tensor:
        return shaped(self.as_numbers(action), self.shape)

    def distribution(self, output: Float[Tensor, "... A"]) -> dict[str, Tensor]:
        mean, deviation = torch.addcmul(self.center, output, self.scale), self.log_std.exp() * self.scale
        return {"mean": shaped(mean, self.shape), "deviation": shaped(deviation.expand_as(mean), self.shape)}

    def log_prob(self, output: Float[Tensor, "... A"], action: Tensor) -> Float[Tensor, "..."]:
        return normal_log_prob(flat(action, self.shape), output, self.log_std)

    def entropy(self, output: Float[Tensor, "... A"]) -> Float[Tensor, "..."]:
        return normal_entropy(self.log_std).expand(output.shape[:-1])

    def divergences(self, output: Tensor, old: "GaussianAction", old_output: Tensor) -> dict[str, Tensor]:
        """Apart for the mean (with the old deviations) and for the covariance (the same for all states)."""
        old_log_std = old.log_std.detach()
        covariance = gaussian_covariance_divergence(old_log_std, self.log_std)
        return {
            "mean": gaussian_mean_divergence(old_output, output, old_log_std),
            "covariance": covariance.expand(output.shape[:-1]),
        }


class CategoricalAction(ActionLeaf):
    """A Discrete or MultiDiscrete leaf: one softmax per component, tokens are sums of one embedding per component."""

    start: Tensor
    offset: Tensor
    places: Tensor
    exists: Tensor
    like: Tensor
    countable = tied = True

    def __init__(self, space: spaces.Discrete | spaces.MultiDiscrete, width: int | None) -> None:
        super().__init__()
        sizes = np.atleast_1d(space.n if isinstance(space, spaces.Discrete) else space.nvec).reshape(-1)
        self.sizes = [int(size) for size in sizes]
        self.shape = space.shape or ()
        self.outputs = self.choices = self.numbers = sum(self.sizes)
        self.draws, self.largest = len(self.sizes), max(self.sizes)
        self.equal = min(self.sizes) == self.largest
        self.embedding = None if width is None else nn.Embedding(self.outputs, width)
        start = torch.as_tensor(np.atleast_1d(space.start).reshape(-1).astype(np.int64))
        self.counted_from_zero = not bool(start.any())
        offset = torch.as_tensor(np.cumsum([0, *self.sizes[:-1]]))
        classes = torch.arange(self.largest)
        exists = classes < torch.as_tensor(self.sizes)[:, None]
        places = torch.where(exists, offset[:, None] + classes, 0).flatten()
        like = torch.zeros(())  # has the type of outputs
        for name, values in (
            ("start", start), ("offset", offset), ("places", places), ("exists", exists), ("like", like)
        ):  # fmt: skip
            self.register_buffer(name, values, persistent=False)

    def classes(self, action: Tensor) -> Int[Tensor, "... C"]:
        """Class index of every component, counted from 0."""
        lead = action.dim() - len(self.shape)
        classes = action.reshape(*action.shape[:lead], self.draws).long()
        return classes if self.counted_from_zero else classes - self.start

    def as_numbers(self, action: Tensor) -> Float[Tensor, "... A"]:
        """1 for the class of every component, 0 for its others."""
        place = self.classes(action) + self.offset
        zeros = self.like.new_zeros(*place.shape[:-1], self.outputs)
        return zeros.scatter(-1, place, 1.0)

    def mixed(self, output: Tensor, recorded: Tensor, share: Float[Tensor, "... 1"]) -> Float[Tensor, "... A"]:
        parts = zip(output.split_with_sizes(self.sizes, -1), recorded.split_with_sizes(self.sizes, -1), strict=True)
        mixtures = [share * other + (1 - share) * own.softmax(-1) for own, other in parts]
        return torch.cat(mixtures, -1).clamp(min=LEAST).log()

    def masked(self, output: Float[Tensor, "... A"], allowed: Bool[Tensor, "... A"]) -> Float[Tensor, "... A"]:
        return output.masked_fill(~allowed, MASKED)

    def logits(self, output: Float[Tensor, "... A"]) -> Float[Tensor, "... C N"]:
        """One row of logits per component; -inf for the classes that the largest component has and this one lacks."""
        shape = (*output.shape[:-1], self.draws, self.largest)
        if self.equal:
            return output.view(shape)
        return output.index_select(-1, self.places).view(shape).masked_fill(~self.exists, -math.inf)

    def embed(self, action: Tensor) -> Float[Tensor, "... W"]:
        assert self.embedding is not None
        return self.embedding(self.classes(action) + self.offset).sum(-2)

    def decode(self, output: Float[Tensor, "... A"], noise: Float[Tensor, "... C"] | None = None) -> Tensor:
        logits = self.logits(output)
        chosen = logits.argmax(-1) if noise is None else class_at(logits, noise)
        if not self.counted_from_zero:
            chosen = chosen + self.start
        return chosen.view(*output.shape[:-1], *self.shape)

    def distribution(self, output: Float[Tensor, "... A"]) -> dict[str, Tensor]:
        parts = output.split_with_sizes(self.sizes, -1)
        return {"probabilities": torch.cat([part.softmax(-1) for part in parts], -1)}

    def log_prob(self, output: Float[Tensor, "... A"], action: Tensor) -> Float[Tensor, "..."]:
        logs = self.logits(output).log_softmax(-1)
        return logs.gather(-1, self.classes(action).unsqueeze(-1)).sum((-2, -1))

    def _log_probs(self, output: Float[Tensor, "... A"]) -> Float[Tensor, "... C N"]:
        """Of every class, and 0 where there is none."""
        logs = self.logits(output).log_softmax(-1)
        return logs if self.equal else logs.masked_fill(~self.exists, 0.0)

    def entropy(self, output: Float[Tensor, "... A"]) -> Float[Tensor, "..."]:
        logs = self._log_probs(output)
        return -(logs.exp() * logs).sum((-2, -1))

    def log_barrier(self, output: Float[Tensor, "... A"]) -> Float[Tensor, "..."]:
        """Mean log-probability of the classes plus the logarithm of their number, the sum over the components."""
        logs = self._log_probs(output)
        counted = (logs > 0.5 * MASKED) & self.exists
        counts = counted.sum(-1).to(logs.dtype)
        return (torch.where(counted, logs, 0.0).sum(-1) / counts + counts.log()).sum(-1)

    def divergences(self, output: Tensor, old: "CategoricalAction", old_output: Tensor) -> dict[str, Tensor]:
        return {"classes": categorical_divergence(self._log_probs(old_output), self._log_probs(output))}


class BinaryAction(ActionLeaf):
    """A MultiBinary leaf: independent bits."""

    like: Tensor
    countable = True

    def __init__(self, space: spaces.MultiBinary, width: int | None) -> None:
        super().__init__()
        self.shape = space.shape
        self.outputs = self.draws = self.numbers = int(np.prod(space.shape))
        self.choices = 2 * self.outputs
        self.embedding = None if width is None else nn.Linear(self.outputs, width)
        self.register_buffer("like", torch.zeros(()), persistent=False)  # has the type of outputs

    def as_numbers(self, action: Tensor) -> Float[Tensor, "... A"]:
        return flat(action, self.shape).to(self.like.dtype)

    def mixed(self, output: Tensor, recorded: Tensor, share: Float[Tensor, "... 1"]) -> Float[Tensor, "... A"]:
        on, off = (
            (share * other + (1 - share) * own.sigmoid()).clamp(min=LEAST)
            for other, own in ((recorded, output), (1 - recorded, -output))
        )
        return on.log() - off.log()

    def masked(self, output: Float[Tensor, "... A"], allowed: Bool[Tensor, "... M"]) -> Float[Tensor, "... A"]:
        off, on = allowed.unflatten(-1, (self.outputs, 2)).unbind(-1)  # 0 and 1 of each bit, in turn
        return torch.where(off, output, -MASKED).masked_fill(~on, MASKED)

    def embed(self, action: Tensor) -> Float[Tensor, "... W"]:
        assert self.embedding is not None
        return self.embedding(self.as_numbers(action))

    def decode(self, output: Float[Tensor, "... A"], noise: Float[Tensor, "... A"] | None = None) -> Tensor:
        on = output > 0 if noise is None else output.sigmoid() > noise
        return shaped(on.to(torch.int8), self.shape)

    def distribution(self, output: Float[Tensor, "... A"]) -> dict[str, Tensor]:
        return {"probabilities": shaped(output.sigmoid(), self.shape)}

    # With s the logistic function, log s(x) = x + log s(-x): both sides of a bit from one logarithm.

    def log_prob(self, output: Float[Tensor, "... A"], action: Tensor) -> Float[Tensor, "..."]:
        return torch.addcmul(F.logsigmoid(-output), self.as_numbers(action), output).sum(-1)

    def entropy(self, output: Float[Tensor, "... A"]) -> Float[Tensor, "..."]:
        return -torch.addcmul(F.logsigmoid(-output), output.sigmoid(), output).sum(-1)

    def log_barrier(self, output: Float[Tensor, "... A"]) -> Float[Tensor, "..."]:
        """Mean log-probability of 0 and 1 plus log 2, the sum over the bits that can be both."""
        each = F.logsigmoid(-output) + 0.5 * output + math.log(2.0)
        return torch.where(output.abs() < -0.5 * MASKED, each, 0.0).sum(-1)

    def divergences(self, output: Tensor, old: "BinaryAction", old_output: Tensor) -> dict[str, Tensor]:
        return {"classes": bernoulli_divergence(old_output, output)}


def class_at(logits: Float[Tensor, "... N"], noise: Float[Tensor, "..."]) -> Int[Tensor, "..."]:
    """The class k of which ``noise`` lies in [P(< k), P(<= k)).

    Rounded probabilities sum to nearly 1; measured in parts of their own sum, no class of probability 0 is ever taken.
    """
    up_to = logits.softmax(-1).cumsum(-1)
    return (up_to[..., :-1] <= noise.unsqueeze(-1) * up_to[..., -1:]).sum(-1)


def normal_numbers(uniform: Float[Tensor, "... U"]) -> Float[Tensor, "... C"]:
    """Standard normal numbers from twice as many uniform ones in [0, 1) (Box and Muller 1958).

    In operations that every runtime has.
    """
    one, other = uniform.unflatten(-1, (2, -1)).unbind(-2)
    distance = (-2.0 * torch.log1p(-one.clamp(max=1.0 - 1e-7))).sqrt()  # float32 rounds numbers below 1 to 1
    return distance * (2.0 * math.pi * other).cos()


def log_std_within(output: Float[Tensor, "*n"]) -> Float[Tensor, "*n"]:
    """Logarithms of deviations within ``LOG_STD_RANGE``, from any numbers."""
    low, high = LOG_STD_RANGE
    return low + 0.5 * (high - low) * (output.tanh() + 1.0)


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


def flat(action: Tensor, shape: tuple[int, ...]) -> Num[Tensor, "... A"]:
    """The numbers of an action [..., leaf shape]."""
    return action if len(shape) == 1 else action.reshape(*action.shape[: action.dim() - len(shape)], math.prod(shape))


def shaped(numbers: Num[Tensor, "... A"], shape: tuple[int, ...]) -> Tensor:
    """The inverse of ``flat``."""
    return numbers if len(shape) == 1 else numbers.reshape(*numbers.shape[:-1], *shape)


def normal_entropy(log_std: Float[Tensor, "*n"]) -> Float[Tensor, "..."]:
    """Entropy of independent normal numbers [..., A] in nats."""
    return (log_std + (0.5 + HALF_LOG_TAU)).sum(-1)


def normal_log_prob(numbers: Tensor, mean: Tensor, log_std: Tensor) -> Float[Tensor, "..."]:
    """Log-density of independent normal numbers [..., A]."""
    distance = (numbers - mean) * (-log_std).exp()
    return -(0.5 * distance.square() + log_std + HALF_LOG_TAU).sum(-1)
