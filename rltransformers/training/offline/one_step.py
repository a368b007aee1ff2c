"""Behavior cloning with one step, the least that a Decision Transformer has to beat. R steps, F features, A numbers."""

from collections.abc import Mapping

import numpy as np
import torch
from gymnasium import spaces
from jaxtyping import Float, Int
from torch import Tensor

from rltransformers.core.action_masks import ACTION_MASK
from rltransformers.core.spaces import Space
from rltransformers.data import Trajectories
from rltransformers.policies.action_leaves import ActionLeaf, BinaryAction, BoxAction
from rltransformers.policies.decision_network import DecisionPolicy

STEPS = 20_000
"""Steps that are read at most."""
PENALTY = 1e-3
"""Of the squared weights, in units in which features and steps have variance 1."""
LARGEST_LEAF = 1_024
"""Numbers of a leaf that are features themselves; of more, as many random mixtures are."""
ROUNDING = 1e-6
"""Deviation of a feature up to which it counts as constant, in units of its mean where that is below 1."""
CHUNK = 512
"""Steps that are mixed at once."""
CLASSES = 256
"""Features of a component that counts; classes beyond share them."""


class OneStep:
    """Mean action, and actions linear in the newest observation by ridge regression on the data of training.

    Actions are numbers as ``ActionHead.as_numbers`` writes them: 1 for the class that was taken and 0 for the others.
    Features have mean 0 and deviation 1; the regression minimizes the mean squared error plus ``PENALTY`` times the
    squares of the weights, the intercept excepted. Of more than ``STEPS`` steps, so many are drawn; the same every
    time.
    """

    def __init__(self, policy: DecisionPolicy, data: Trajectories) -> None:
        self._head = policy.head
        masks = [ACTION_MASK] if policy.masks else []
        self._leaves = {path: leaf for path, leaf in policy.observation_leaves.items() if path not in masks}
        self._mixtures = {path: _mixture(leaf) for path, leaf in self._leaves.items()}
        device = policy.head.linear.weight.device
        steps = np.arange(data.steps)
        if data.steps > STEPS:
            steps = np.sort(np.random.default_rng(0).choice(data.steps, STEPS, replace=False))
        rows = steps + data.episode_of_steps[steps]
        features = self._features({path: torch.as_tensor(data.observations[path][rows]) for path in self._leaves})
        actions = {path: torch.as_tensor(leaf[steps], device=device) for path, leaf in data.actions.items()}
        numbers = self._head.as_numbers(actions).cpu().double()
        self.mean_action: Float[Tensor, " A"] = numbers.mean(0)
        deviation = features.std(0, correction=0)
        self._center = features.mean(0)
        rounding = ROUNDING * self._center.abs().clamp(max=1.0)
        self._scale = torch.where(deviation > rounding, deviation, 1.0)
        features = (features - self._center) / self._scale
        moments = features.T @ features / len(steps) + PENALTY * torch.eye(features.shape[1], dtype=torch.float64)
        self._weights = torch.linalg.solve(moments, features.T @ (numbers - self.mean_action) / len(steps))

    def predict(self, observations: Mapping[str, Tensor]) -> Float[Tensor, "R A"]:
        """Numbers of the actions for observations by path, every leaf [R, ...]."""
        features = self._features({path: observations[path].cpu() for path in self._leaves})
        return self.mean_action + (features - self._center) / self._scale @ self._weights

    def _features(self, observations: Mapping[str, Tensor]) -> Float[Tensor, "R F"]:
        columns = []
        for path, leaf in self._leaves.items():
            values, mixture = observations[path], self._mixtures[path]
            values = values.reshape(len(values), -1)
            if isinstance(leaf, spaces.Discrete | spaces.MultiDiscrete):
                columns.append(_classes(leaf, values))
            elif mixture is None:
                columns.append(values.double())
            else:  # images take eight times their memory as numbers
                columns.append(torch.cat([part.double() @ mixture for part in values.split(CHUNK)]))
        return torch.cat(columns, 1)


def decode(leaf: ActionLeaf, numbers: Float[Tensor, "R A"], allowed: Tensor | None) -> Tensor:
    """The action of a leaf [R, leaf shape] from numbers between recorded ones; of classes the largest ``allowed``."""
    if isinstance(leaf, BoxAction):
        return leaf.inside(numbers)
    outputs = numbers - 0.5 if isinstance(leaf, BinaryAction) else numbers
    return leaf.decode(outputs if allowed is None else leaf.masked(outputs, allowed))


def _classes(leaf: spaces.Discrete | spaces.MultiDiscrete, values: Int[Tensor, "R C"]) -> Float[Tensor, "R F"]:
    """1 for the class of every component, 0 for its others."""
    sizes = np.reshape(leaf.n if isinstance(leaf, spaces.Discrete) else leaf.nvec, -1)
    starts = np.reshape(leaf.start, -1)
    parts = []
    for column, (size, start) in enumerate(zip(sizes, starts, strict=True)):
        width = min(int(size), CLASSES)
        parts.append(torch.nn.functional.one_hot((values[:, column].long() - int(start)) % width, width))
    return torch.cat(parts, 1).double()


def _mixture(leaf: Space) -> Float[Tensor, "N F"] | None:
    """Weights of the mixtures that stand for a leaf of many numbers."""
    if isinstance(leaf, spaces.Discrete | spaces.MultiDiscrete) or np.prod(leaf.shape or ()) <= LARGEST_LEAF:
        return None
    size = int(np.prod(leaf.shape or ()))
    return torch.from_numpy(np.random.default_rng(0).standard_normal((size, LARGEST_LEAF)) / np.sqrt(size))
