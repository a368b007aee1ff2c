"""The action head: outputs of all leaves of an action space from features, and actions in both directions.

"..." stands for any leading axes, W is model width, A counts outputs, U numbers of noise, M entries of a mask.
"""

from collections.abc import Mapping, Sequence
from typing import Any, NamedTuple

import numpy as np
import torch
from gymnasium import spaces
from jaxtyping import Bool, Float, Int, Shaped
from numpy.typing import NDArray
from torch import Tensor, nn

from rltransformers.core.errors import ConfigError, DataError
from rltransformers.core.ranges import shown
from rltransformers.core.spaces import Space, box_bounds, check_supported, check_width, leaf_spaces
from rltransformers.core.spec import Choice
from rltransformers.core.values import NOT_FINITE, all_finite, finite, named
from rltransformers.functional.windows import match_axes
from rltransformers.policies.action_leaves import (
    ActionLeaf,
    BinaryAction,
    CategoricalAction,
    ContinuousAction,
    GaussianAction,
    Units,
    holds_integers,
)
from rltransformers.policies.readouts.interface import Readout
from rltransformers.policies.several_modes import BoxLeaf

NoiseType = type[np.float32] | type[np.float64]
OUTPUT_NOT_FINITE = f"the policy's values or log-probabilities are not finite; {NOT_FINITE}"


class Noise(NamedTuple):
    """Numbers that sampling one leaf of the action takes: standard normal ones, or uniform ones in [0, 1)."""

    numbers: int
    normal: bool


class ActionHead(nn.Module):
    """Linear layer from features to the outputs of every leaf of an action space; samples, and tokens from actions.

    Actions are dictionaries by leaf path ("" for a space that is one leaf) of tensors [..., leaf shape], as the
    environment counts and scales them; those of a ``GaussianAction`` are in head units until ``execute``.

    Args:
        width: of the features, and of the tokens.
        embeds: whether actions are turned into tokens.
        readout: what is added of recorded actions; None for nothing.
        box: makes a Box leaf, by default a deterministic one: the tanh of an output, between the bounds.
        units: of Box leaves by path; as for ``ContinuousAction``.

    Raises ConfigError for an action space with an unsupported leaf, or one that the readout cannot serve.
    """

    chunk = 1  # actions that are predicted at once, see ``action_chunks``

    def __init__(
        self,
        space: Space,
        width: int,
        *,
        embeds: bool = True,
        readout: Choice | None = None,
        box: BoxLeaf = ContinuousAction,
        units: Mapping[str, Units] | None = None,
    ) -> None:
        super().__init__()
        check_supported(space, "action")
        check_width(space, "action", width)
        self.spaces = leaf_spaces(space)
        token_width = width if embeds else None
        parts = [_leaf(leaf, token_width, box, (units or {}).get(path)) for path, leaf in self.spaces.items()]
        self.leaves = nn.ModuleList(parts)
        self.by_path: dict[str, ActionLeaf] = dict(zip(self.spaces, parts, strict=True))  # in the order of the space
        self.linear = nn.Linear(width, sum(leaf.outputs for leaf in parts))
        self.draws = sum(leaf.draws for leaf in parts)
        self.loss_draws = sum(leaf.loss_draws for leaf in parts)
        self.countable = all(leaf.countable for leaf in parts)
        self.numbers = sum(leaf.numbers for leaf in parts)
        self.readout: Readout | None = None if readout is None else readout.build(width, parts)

    def forward(self, features: Float[Tensor, "... W"]) -> Float[Tensor, "... A"]:
        """Outputs of all leaves, side by side."""
        return self.linear(features) if self.readout is None else self.readout(features, self.linear)

    def learning(self, features: Float[Tensor, "... W"], episode: Int[Tensor, "..."]) -> Float[Tensor, "... A"]:
        """Outputs to learn recorded actions by: without what a readout reads of the same ``episode``."""
        if self.readout is None:
            return self(features)
        return self.readout(features, self.linear, episode) if self.readout.learns else self.linear(features)

    def as_numbers(self, actions: Mapping[str, Tensor]) -> Float[Tensor, "... A"]:
        """Actions as a readout stores them and a critic reads them, in ``numbers`` numbers."""
        return torch.cat([leaf.as_numbers(actions[path]) for path, leaf in self.by_path.items()], -1)

    def split(self, row: Shaped[Tensor, "... A"], size: str = "outputs") -> dict[str, Tensor]:
        """Parts of the last axis by path; ``size`` is the attribute of a leaf that says how long its part is."""
        if len(self.spaces) == 1:
            return dict.fromkeys(self.spaces, row)
        parts = row.split_with_sizes([getattr(leaf, size) for leaf in self.leaves], -1)
        return dict(zip(self.spaces, parts, strict=True))

    def masked(self, outputs: Float[Tensor, "... A"], mask: Shaped[Tensor, "... M"]) -> Float[Tensor, "... A"]:
        """The outputs where only choices can be taken at which ``mask`` is not 0; see ``action_masks.mask_space``.

        All that is read off them is of the distribution over these. Where a mask allows nothing, all is equally likely.
        """
        parts, masks = self.split(outputs), self.split(mask != 0, "choices")
        rows = [leaf.masked(parts[path], masks[path]) for path, leaf in self.by_path.items()]
        return rows[0] if len(rows) == 1 else torch.cat(rows, -1)

    def embed(self, actions: Mapping[str, Tensor]) -> Float[Tensor, "... W"]:
        """The token of an action: the sum of its leaves' embeddings."""
        return _total([leaf.embed(actions[path]) for path, leaf in self.by_path.items()])

    def draw(
        self, rows: int, generator: torch.Generator | Sequence[np.random.Generator] | None
    ) -> Float[Tensor, "R U"]:
        """Noise for ``decode``: uniform numbers in [0, 1) for classes and bits, standard normal ones for Boxes.

        It comes from one ``generator`` of torch, or from one of numpy for each row.
        """
        like = self.linear.weight
        if generator is not None and not isinstance(generator, torch.Generator):
            return torch.as_tensor(draw_noise(noise_of(self), rows, generator, np.float32), device=like.device)
        options: Any = {"generator": generator, "device": like.device, "dtype": like.dtype}
        leaves = self.by_path.values()
        parts = [(torch.randn if leaf.normal_noise else torch.rand)(rows, leaf.draws, **options) for leaf in leaves]
        return parts[0] if len(parts) == 1 else torch.cat(parts, -1)

    def decode(self, outputs: Float[Tensor, "... A"], noise: Float[Tensor, "... U"] | None = None) -> dict[str, Tensor]:
        """Actions by path: the most probable, or sampled with ``draws`` numbers of ``noise`` per row."""
        parts = self.split(outputs)
        numbers = dict.fromkeys(parts) if noise is None else self.split(noise, "draws")
        return {path: leaf.decode(parts[path], numbers[path]) for path, leaf in self.by_path.items()}

    def decode_some(
        self, outputs: Float[Tensor, "B ... A"], noise: Float[Tensor, "B U"] | None, greedy: Bool[Tensor, " B"]
    ) -> dict[str, Tensor]:
        """``decode`` with noise, and the most probable actions in the rows that are ``greedy``; looks at no data."""
        likely = self.decode(outputs)
        return {
            path: torch.where(match_axes(greedy, value), likely[path], value)
            for path, value in self.decode(outputs, noise).items()
        }

    def execute(self, actions: Mapping[str, Tensor]) -> dict[str, Tensor]:
        """The actions as the environment takes them: those of a Box in its units, and clipped."""
        return {path: leaf.execute(actions[path]) for path, leaf in self.by_path.items()}

    def as_drawn(self, actions: Mapping[str, Tensor]) -> dict[str, Tensor]:
        """Actions of the environment as ``decode`` gives them: those of a Gaussian Box in head units."""
        return {path: leaf.as_drawn(actions[path]) for path, leaf in self.by_path.items()}

    def log_prob(self, outputs: Float[Tensor, "... A"], actions: Mapping[str, Tensor]) -> Float[Tensor, "..."]:
        """Log-probability of actions that ``decode`` gave, the sum over the leaves."""
        parts = self.split(outputs)
        return _total([leaf.log_prob(parts[path], actions[path]) for path, leaf in self.by_path.items()])

    def entropy(self, outputs: Float[Tensor, "... A"]) -> Float[Tensor, "..."]:
        """Entropy in nats, that of a Box in head units; the sum over the leaves."""
        parts = self.split(outputs)
        return _total([leaf.entropy(parts[path]) for path, leaf in self.by_path.items()])

    def distribution(
        self, outputs: Float[Tensor, "... A"], actions: Mapping[str, Tensor]
    ) -> dict[str, dict[str, Tensor]]:
        """Fields of ``PolicyOutput`` by leaf that say how actions are distributed, and how likely these are.

        Numbers of whole actions have the path ""; they are missing where a Box has no density or no entropy.
        """
        parts = self.split(outputs)
        found: dict[str, dict[str, Tensor]] = {}
        for path, leaf in self.by_path.items():
            for kind, value in leaf.distribution(parts[path]).items():
                found.setdefault(kind, {})[path] = value
        if all(leaf.has_density for leaf in self.by_path.values()):
            found["log_prob"] = {"": self.log_prob(outputs, actions)}
            if all(leaf.has_entropy for leaf in self.by_path.values()):
                found["entropy"] = {"": self.entropy(outputs)}
        return found

    def balance(self, outputs: Float[Tensor, "... A"]) -> Float[Tensor, "... A"]:
        """The same outputs to learn recorded actions from, with gradients times the variance of their normals.

        The likelihood of a normal divides an error by the variance: what is predicted well already is learned on, and
        the rest is not (Seitzer et al. 2022, arXiv 2203.09168, with beta 1). Times the variance every error counts as
        in a squared error; the optimum stays where it is. Weights of a mixture and discrete actions are as they were.
        """
        parts = self.split(outputs)
        rows = [leaf.balance(parts[path]) for path, leaf in self.by_path.items()]
        return rows[0] if len(rows) == 1 else torch.cat(rows, -1)

    def log_barrier(self, outputs: Float[Tensor, "... A"]) -> Float[Tensor, "..."] | None:
        """Minus the divergence of this policy from the uniform one; None unless the actions are ``countable``.

        -KL(uniform || policy) in nats, the sum over the parts of an action: 0 for a uniform policy, and without bound
        below as any action dies out (Agarwal et al. 2021, arXiv 1908.00261, section 5).
        """
        if not self.countable:
            return None
        parts = self.split(outputs)
        return _total([leaf.log_barrier(parts[path]) for path, leaf in self.by_path.items()])

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
        for path, leaf in self.by_path.items():
            for kind, part in leaf.divergences(parts[path], old.by_path[path], old_parts[path]).items():
                found.setdefault(kind, []).append(part)
        return {kind: _total(found[kind]) for kind in self.divergence_kinds()}

    def divergence_kinds(self) -> list[str]:
        """Names of ``divergences`` for this space."""
        countable = [leaf.countable for leaf in self.by_path.values()]
        return (["classes"] if any(countable) else []) + ([] if all(countable) else ["mean", "covariance"])

    def spread(self, outputs: Float[Tensor, "... A"]) -> Float[Tensor, "..."]:
        """Mean entropy of the normals of ``dense_boxes`` in head units, in nats, the sum over the leaves.

        Of a mixture a bound from below, without a gradient into its weights: or else a normal as wide as can be would
        take weight for its entropy alone.
        """
        parts = self.split(outputs)
        return _total([leaf.spread(parts[path]) for path, leaf in self.dense_boxes()])

    def dense_boxes(self) -> list[tuple[str, ContinuousAction]]:
        """Leaf paths and parts of the Boxes with a density that the network predicts whole."""
        leaves = ((path, leaf) for path, leaf in self.by_path.items() if isinstance(leaf, ContinuousAction))
        return [(path, leaf) for path, leaf in leaves if leaf.has_density]

    def standard_deviation(self) -> Tensor | None:
        """Mean over the components of all Boxes, in head units; None where there is no Gaussian."""
        logs: list[Tensor] = [leaf.log_std for leaf in self.leaves if isinstance(leaf, GaussianAction)]
        return torch.cat(logs).exp().mean() if logs else None


def _leaf(space: Space, width: int | None, box: BoxLeaf, units: Units | None) -> ActionLeaf:
    if isinstance(space, spaces.Box):
        return box(space, width, units)
    if isinstance(space, spaces.MultiBinary):
        return BinaryAction(space, width)
    assert isinstance(space, spaces.Discrete | spaces.MultiDiscrete)  # check_supported has refused the rest
    return CategoricalAction(space, width)


def noise_of(head: ActionHead) -> list[Noise]:
    """Random numbers that sampling an action takes, by leaf; of a chunk those of its actions, one after another."""
    return [Noise(leaf.draws, leaf.normal_noise) for leaf in head.by_path.values()] * head.chunk


def draw_noise(
    noise: Sequence[Noise], rows: int, source: np.random.Generator | Sequence[np.random.Generator], kind: NoiseType
) -> NDArray[Any]:
    """Numbers [B, U] drawn with numpy, the same on every device: of one generator, or of one for each row.

    Raises ConfigError for what is no generator, and for another number of generators than rows.
    """
    if isinstance(source, np.random.Generator):
        parts = [
            (source.standard_normal if each.normal else source.random)((rows, each.numbers), kind) for each in noise
        ]
        return np.concatenate([np.zeros((rows, 0), kind), *parts], axis=1)
    if not isinstance(source, Sequence) or not all(isinstance(each, np.random.Generator) for each in source):
        raise ConfigError(
            f"actions are drawn by NumPy generators, one or one per environment, got {shown(source)}; pass "
            "numpy.random.default_rng(seed)"
        )
    if len(source) != rows:
        raise ConfigError(f"generators are {len(source)}, the observations are of {rows} environments; give one each")
    return np.concatenate([draw_noise(noise, 1, each, kind) for each in source])


def as_arrays(
    actions: Mapping[str, Tensor], leaves: Mapping[str, Space], output: Float[Tensor, "N ..."] | None = None
) -> dict[str, np.ndarray]:
    """Actions [N, ...] by path in the types of their leaves.

    Raises DataError for a Box that is not finite, and for such an ``output`` of the policy, whose copy waits for the
    device no longer than those of the actions.
    """
    beside = None if output is None else output.to("cpu", non_blocking=True)
    copies = {path: value.cpu().numpy() for path, value in actions.items()}
    if beside is not None and not bool(beside.isfinite().all()):
        raise DataError(OUTPUT_NOT_FINITE)
    arrays = {}
    for path, rows in copies.items():
        leaf = leaves[path]
        if rows.dtype.kind == "f" and not all_finite(rows):
            row = int(np.argmin(finite(rows).reshape(len(rows), -1).all(1)))
            raise DataError(
                f"the policy's {named('action', path)} for environment {row} is {shown(rows[row].tolist())}; "
                f"{NOT_FINITE}"
            )
        arrays[path] = rows.astype(leaf.dtype)
        if isinstance(leaf, spaces.Box) and rows.dtype != leaf.dtype and not holds_integers(leaf):
            np.clip(arrays[path], leaf.low, leaf.high, out=arrays[path])  # float32 may not have its bounds
    return arrays


def blank_invalid(
    spaces_: Mapping[str, Space], values: Mapping[str, Tensor], valid: Bool[Tensor, "..."]
) -> dict[str, Tensor]:
    """Values by leaf path with a legal constant (0, or the first class) wherever ``valid`` is False."""
    blanked = {}
    for path, space in spaces_.items():
        value = values[path]
        legal = torch.as_tensor(getattr(space, "start", 0), dtype=value.dtype, device=value.device)
        blanked[path] = torch.where(match_axes(valid, value), value, legal)
    return blanked


def _total(parts: list[Tensor]) -> Tensor:
    return parts[0] if len(parts) == 1 else torch.stack(parts).sum(0)


def check_action_space(space: Space) -> None:
    """Raise ConfigError unless an action head for ``space`` exists; a Box needs finite bounds."""
    check_supported(space, "action")
    for path, leaf in leaf_spaces(space).items():
        if isinstance(leaf, spaces.Box) and not np.isfinite(box_bounds(leaf)).all():
            at = f" at {path!r}" if path else ""
            raise ConfigError(
                f"a Box action space needs finite bounds, got {leaf}{at}; give it some with a wrapper, as gymnasium."
                "wrappers.TransformAction(env, lambda action: action, Box(-1.0, 1.0, shape))"
            )
