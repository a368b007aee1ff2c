"""Data of the Decision Transformer from a dataset: episodes to train on, their summary, statistics of observations."""

import math
import warnings
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any, NamedTuple

import gymnasium as gym
import numpy as np
import numpy.typing as npt
import torch
from torch import Tensor

from rltransformers.backbone import Backbone
from rltransformers.core.action_masks import ACTION_MASK, check_mask_order, check_recorded
from rltransformers.core.checkpoint import check_tensor
from rltransformers.core.errors import CheckpointError, ConfigError, DataError
from rltransformers.core.ranges import LARGEST, Count, PositiveNumber, WholeNumber, check, check_fields
from rltransformers.core.seeding import step_seed
from rltransformers.core.spaces import Space, box_bounds, differing_spaces, leaf_spaces, normalized_leaves
from rltransformers.core.spec import Choice
from rltransformers.core.values import named
from rltransformers.data import Trajectories, load_trajectories
from rltransformers.data.checks import check_actions, check_order, takes_layout
from rltransformers.data.description import NEAR, return_gaps
from rltransformers.data.load import in_spaces
from rltransformers.policies.returns import MAX_SCALED
from rltransformers.policies.set_encoders.elements import find_leaf
from rltransformers.training.offline.settings import USUAL_CONTEXT, Settings

ROUNDING = 1e-6
"""Deviation by the size of numbers up to which it is rounding: some steps of float32, which are 1.2e-7 wide."""

WHOLE = 2.0**24
"""From here on float32 does not know every whole number."""

LONGEST_FITTED = 64
"""Steps of an episode up to which a context takes it whole: an update costs about as much as it has steps."""


@dataclass(frozen=True)
class DataSummary:
    """Summary of a dataset that a model keeps.

    Attributes:
        return_scale: reward units per unit of network input.
        best_return: highest episode return, the target of ``predict`` and ``evaluate`` when none is given.
        environment: Gymnasium id the data came from, if known; names the reference scores.
        worst_return: lowest episode return; None, as what follows, where only a published model is known.
        lowest_to_go, highest_to_go: of all steps.
        return_gaps: lowest and highest return of the ranges between worst and best that no episode is near.
        action_units: mean and standard deviation of every component of the Boxes that lack a bound, by path.
        value_scale: reward units per unit of the critics' networks, the largest return-to-go.
        names: what the log calls the components of leaves: {"actions": {"": ["motor_1", "motor_2"]}}.
    """

    return_scale: PositiveNumber
    best_return: float
    environment: str | None
    worst_return: float | None = None
    lowest_to_go: float | None = None
    highest_to_go: float | None = None
    action_units: dict[str, list[list[float]]] | None = None
    return_gaps: list[list[float]] | None = None
    names: dict[str, dict[str, list[str]]] | None = None
    value_scale: PositiveNumber = 1.0

    def __post_init__(self) -> None:
        check_fields(self, "summary.")
        check_scale(self.return_scale, abs(self.best_return))

    @property
    def spread(self) -> float:
        """The best minus the worst return, the unit of differences; where all returns are alike, the scale."""
        difference = self.best_return - (self.best_return if self.worst_return is None else self.worst_return)
        return difference if difference > 0 else self.return_scale

    @property
    def range_to_go(self) -> tuple[float, float]:
        """Lowest and highest return-to-go of a step; of data that nobody knows what a network can read."""
        if self.lowest_to_go is None or self.highest_to_go is None:
            return -MAX_SCALED * self.return_scale, MAX_SCALED * self.return_scale
        return self.lowest_to_go, self.highest_to_go

    @property
    def without_data(self) -> list[list[float]]:
        """Ranges of target returns that no episode is near, lowest and highest; empty where this is not known."""
        if self.return_gaps is None or self.worst_return is None:
            return []
        reach = NEAR * (self.best_return - self.worst_return)
        return [[-math.inf, self.worst_return - reach], *self.return_gaps, [self.best_return + reach, math.inf]]


@dataclass
class OnlineCounts:
    """How far learning online has come; a checkpoint holds it."""

    timesteps: WholeNumber = 0  # of environments
    episodes: WholeNumber = 0  # played to their end
    updates: WholeNumber = 0  # still to come for the episodes played last

    def __post_init__(self) -> None:
        check_fields(self, "online.")


@dataclass
class HeldOut:
    """Episodes that no update sees, and what evaluations on them have come to; a checkpoint holds it."""

    episodes: Tensor  # their numbers in the dataset, in order [V]
    of: Count  # episodes of the dataset
    best: float | None = None  # lowest action loss so far
    since: WholeNumber = 0  # evaluations after that one

    def __post_init__(self) -> None:
        check_fields(self, "held_out.")

    @classmethod
    def restored(cls, stored: Any, share: float) -> "HeldOut":
        """That of a checkpoint of a model with ``validation=share``."""
        values = check(stored, Mapping[str, Any], "held_out")
        episodes, of = values["episodes"], check(values["of"], Count, "held_out.of")
        numbers = check_tensor(episodes, "held_out.episodes", (held_out_count(of, share),), torch.int64).cpu()
        if int(numbers[0]) < 0 or int(numbers[-1]) >= of or bool((numbers.diff() <= 0).any()):
            raise CheckpointError(f"held_out.episodes are not in order, or not all of 0 to {of - 1}")
        return cls(numbers, of, values["best"], values["since"])

    def note(self, action_loss: float) -> bool:
        """Count an evaluation; whether it is the best so far."""
        better = self.best is None or action_loss < self.best
        self.best, self.since = (action_loss, 0) if better else (self.best, self.since + 1)
        return better


class DataParts(NamedTuple):
    """Episodes to learn from, and those that are held out, both as ``shaped`` makes them; None for none."""

    training: Trajectories
    validation: Trajectories | None = None
    held_out: HeldOut | None = None


def fitted_context(data: Trajectories) -> int:
    """The steps of the longest episode where they are at most ``LONGEST_FITTED``, else the usual number."""
    longest = int(data.lengths.max())
    return longest if longest <= LONGEST_FITTED else USUAL_CONTEXT


def load_alike(
    dataset: Any, spaces: tuple[Space, Space], names: Mapping[str, Mapping[str, Sequence[str]]] | None, masked: bool
) -> Trajectories:
    """Episodes in the ``spaces`` of a model (observations, actions), which stand in place of guessed ones.

    Args:
        names: of the components of leaves in the data of the model.
        masked: whether the model reads masks of actions in the observations.

    Raises:
        ConfigError: for other spaces, and for keys in another order that masks follow.
        DataError: for components in another order, and actions outside the action space.
    """
    data = load_trajectories(dataset)
    check_order(data, names, "the data of the model")
    taken = [
        key in data.guesses and takes_layout(ours, getattr(data, key))
        for key, ours in zip(("observation_space", "action_space"), spaces, strict=True)
    ]
    data = in_spaces(data, *(ours if takes else None for ours, takes in zip(spaces, taken, strict=True)))
    for role, ours, theirs in differing_spaces(spaces, (data.observation_space, data.action_space)):
        raise ConfigError(f"the {role} space of the dataset ({theirs}) is not the one of the model ({ours})")
    if masked:
        check_mask_order(spaces[1], data.action_space)
    check_actions(data, spaces[1])
    return data


def data_parts(data: Trajectories, settings: Settings, held_out: HeldOut | None = None) -> DataParts:
    """Split a dataset by whole episodes; warn of doubtful guesses of spaces.

    Args:
        held_out: of the checkpoint that training goes on from. It stays held out where the data have grown, and their
            share of the new episodes with it; fewer episodes are split by the seed alone.

    Raises ConfigError for a single episode.
    """
    for key, guess in data.guesses.items():
        if not guess:
            continue
        warnings.warn(
            f"{data.name}: {key} {guess}. An environment with another space refuses the trained agent: say what it is "
            f"with load_trajectories(..., {key}=...), in a config with dataset.{key}",
            UserWarning,
            stacklevel=2,
        )
    if not settings.validation:
        return DataParts(shaped(data, settings))
    if len(data) < 2:
        raise ConfigError(
            f"validation ({settings.validation:g}) holds whole episodes out, and {data.name} has one; give more"
            " episodes, or set validation to 0 (a run then needs environment.id)"
        )
    if held_out is None or held_out.of != len(data):
        held_out = _held_out(data, settings, held_out)
    chosen = held_out.episodes.numpy()
    others = np.setdiff1d(np.arange(len(data)), chosen)
    training, validation = (shaped(data.select(each), settings) for each in (others, chosen))
    return DataParts(training, validation, held_out)


def _held_out(data: Trajectories, settings: Settings, before: HeldOut | None) -> HeldOut:
    """Draw episodes to hold out, beside those that were held out of fewer episodes ``before``."""
    if before is not None and before.of > len(data):
        warnings.warn(
            f"{data.name} has {len(data)} episodes, the data before had {before.of}: others are held out now, and the "
            "model may have learned from some of them; pass all earlier episodes, with new ones behind them",
            UserWarning,
            stacklevel=2,
        )
        before = None
    kept, known = (np.zeros(0, np.int64), 0) if before is None else (before.episodes.numpy(), before.of)
    generator = np.random.default_rng(step_seed(settings.seed, 0, "validation"))
    count = held_out_count(len(data), settings.validation) - len(kept)
    new = known + generator.permutation(len(data) - known)[:count]
    return HeldOut(torch.from_numpy(np.sort(np.append(kept, new))), len(data))


def held_out_count(episodes: int, share: float) -> int:
    """The number of held-out episodes: the nearest to the share, but at least one, and never all."""
    return min(max(round(share * episodes), 1), episodes - 1)


def shaped(data: Trajectories, settings: Settings) -> Trajectories:
    """The best episodes of the data where only these count, with the rewards that the agent is to see.

    Raises ConfigError for data without rewards, unless all of them are cloned.
    """
    reading = {"critic": settings.critic is not None, "top_fraction": settings.top_fraction < 1}
    if not data.has_rewards and (settings.mode != "bc" or any(reading.values())):
        needs = next((name for name, reads in reading.items() if reads), f"mode {settings.mode!r}")
        without = f"leave {needs} out" if settings.mode == "bc" else "clone all episodes with mode='bc'"
        raise ConfigError(
            f"{data.name}: has no rewards, and {needs} needs them; {without}, or name the "
            f"column of rewards, load_trajectories(..., columns={{'rewards': ...}}), in a config with dataset.columns"
        )
    if settings.top_fraction < 1:
        data = data.top_fraction(settings.top_fraction)
    return data.delayed_rewards() if settings.delayed_reward else data


def summary_of(data: Trajectories, settings: Settings, return_scale: float | None) -> DataSummary:
    """Summary of the data for a model; without ``return_scale`` the root mean square of return-to-go."""
    return_to_go = data.return_to_go(settings.discount)
    if return_scale is None:
        return_scale = float(np.sqrt(np.mean(np.square(return_to_go.astype(np.float64))))) or 1.0
    else:
        check_scale(return_scale, float(np.abs(return_to_go).max()))
    first_steps = return_to_go[data.offsets[:-1]]
    return DataSummary(
        return_scale,
        best_return=float(first_steps.max()),
        environment=data.env_id,
        worst_return=float(first_steps.min()),
        lowest_to_go=float(return_to_go.min()),
        highest_to_go=float(return_to_go.max()),
        action_units=action_units_of(data),
        return_gaps=return_gaps(first_steps),
        names=data.metadata.get("names"),
        value_scale=float(np.abs(return_to_go).max()) or 1.0,
    )


def highest_to_go(data: Trajectories, discount: float) -> Tensor:
    """The largest return-to-go at every step of an episode [L], float64; L is the length of the longest one."""
    highest = np.full(int(data.lengths.max()), -np.inf)
    step = np.arange(data.steps) - data.offsets[:-1][data.episode_of_steps]
    np.maximum.at(highest, step, data.return_to_go(discount))
    return torch.from_numpy(highest)


def action_units_of(data: Trajectories) -> dict[str, list[list[float]]]:
    """Mean and standard deviation of every component of the Boxes of actions that lack a bound, by path."""
    units = {}
    for path, leaf in leaf_spaces(data.action_space).items():
        if isinstance(leaf, gym.spaces.Box) and not (np.abs(box_bounds(leaf)) < LARGEST).all():
            rows = np.asarray(data.actions[path], np.float64).reshape(data.steps, -1)
            mean, deviation = rows.mean(0), rows.std(0)
            units[path] = [
                mean.tolist(),
                np.where(deviation > ROUNDING * _size(mean, deviation), deviation, 1.0).tolist(),
            ]
    return units


def check_longest(backbone: Backbone, data: Trajectories) -> None:
    """Raise DataError where the longest episode has more steps than a position table, before a window meets it."""
    episode = int(data.lengths.argmax())
    steps = int(data.lengths[episode])
    try:
        backbone.check_places(torch.zeros(1, dtype=torch.long), torch.tensor([steps - 1]))
    except DataError as error:
        raise DataError(f"{data.name}: episode {episode} has {steps:,} steps: {error}") from error


def check_scale(return_scale: float, largest: float) -> None:
    """Raise ConfigError unless a network can read returns of up to ``largest``, divided by ``return_scale``."""
    if largest > MAX_SCALED * return_scale:
        raise ConfigError(
            f"return_scale ({return_scale:g}) is too small for returns of up to {largest:g}: the network would read "
            f"{largest / return_scale:g}, at most {MAX_SCALED:g} makes sense; leave it out for one that fits the data"
        )
    if return_scale < np.finfo(np.float32).tiny:
        raise ConfigError(
            f"return_scale ({return_scale:g}) is 0 in float32, by which returns are divided; leave it out for one that "
            "fits the data"
        )


def check_masked(data: Trajectories) -> None:
    """Raise DataError unless every recorded action is among those that the mask of its observation allows."""
    episode = data.episode_of_steps
    masks = np.asarray(data.observations[ACTION_MASK])[np.arange(data.steps) + episode]

    def place(row: int) -> str:
        return f"{row - data.offsets[episode[row]]} of episode {episode[row]}"

    check_recorded(data.actions, masks, data.action_space, place)


def statistics_of(data: Trajectories, encoder: Choice | None) -> dict[str, tuple[Tensor, Tensor]]:
    """Mean of the leaves that are standardized, and what they are divided by: the deviation.

    Where a number never changes but for rounding it is the size of the number, 1 at least, so that it enters as 0.
    Elements that an ``encoder`` reads have the same units at every place where they are a set or some do not exist.
    """
    elements: dict[str, tuple[int, str | None]] = {}
    if encoder is not None and (encoder.options.position == "none" or encoder.options.mask is not None):
        path, layout = find_leaf(data.observation_space, encoder.options)
        elements[path] = layout.size, encoder.options.mask
    means, deviations = data.observation_statistics(elements)
    leaves, statistics = leaf_spaces(data.observation_space), {}
    for path in normalized_leaves(data.observation_space):
        mean, deviation, dtype = means[path], deviations[path], leaves[path].dtype
        size = _size(mean, deviation)
        changes = deviation > ROUNDING * size
        finest = np.finfo(dtype).eps if np.issubdtype(dtype, np.floating) else 0.0
        coarse = (deviation > 0.0) & (size >= WHOLE)  # what float32 left of a column of wider numbers
        lost = ~changes & ((deviation > finest * size) | coarse)
        if lost.any():
            warnings.warn(
                f"{data.name}: {named('observation', path)} has numbers near {mean[lost][0]:g} that deviate by "
                f"{deviation[lost][0]:g}, which is taken for rounding, so the network sees none of it; subtract a "
                "constant from it, or scale it, in a wrapper and in the data",
                UserWarning,
                stacklevel=2,
            )
        divisor = np.where(changes, deviation, np.maximum(size, 1.0))
        statistics[path] = torch.as_tensor(mean), torch.as_tensor(divisor.astype(np.float32))
    return statistics


def _size(mean: np.ndarray, deviation: np.ndarray) -> npt.NDArray[np.float64]:
    """The size that rounding goes by: that of a number, or of larger ones beside it, but of these 1 at most."""
    size = np.hypot(mean.astype(np.float64), deviation)
    return np.asarray(np.maximum(size, min(float(size.max()), 1.0)))
