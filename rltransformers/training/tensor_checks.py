"""What environments of tensors gave, looked at on their device, and read there where it is asked for. N environments.

A ``TensorVecEnv`` checks shapes and types itself, for nothing. Values are looked at in every step, but only flags are
kept; the host reads them behind many steps, and then names a fault as it is named in numpy.
"""

from collections.abc import Callable, Mapping
from typing import NamedTuple

import numpy as np
import torch
from gymnasium import spaces
from torch import Tensor

from rltransformers.core.action_masks import ACTION_MASK, STUCK_AT_LIMIT, check_masks, choices_of
from rltransformers.core.errors import DataError
from rltransformers.core.guard import attempt
from rltransformers.core.spaces import Space, nest_leaves
from rltransformers.core.values import When, check_observations, check_outcome, read_leaves, torch_type
from rltransformers.envs.tensors.base import Leaves, TensorStep, TensorVecEnv, action_types
from rltransformers.policies.action_heads import OUTPUT_NOT_FINITE, ActionHead

Fits = Callable[[Tensor], Tensor]
"""Rows [N, ...] to whether each entry is one of a space."""


class Seen(NamedTuple):
    """What a reset or a step gave."""

    good: Tensor  # bool [N]
    given: Leaves | TensorStep | Tensor  # observations of a reset, a step, or numbers of the policy
    when: str


class CheckedTensors:
    """Resets and steps environments, looks at what they give, and refuses what is wrong.

    Args:
        masks: whether masks of actions are read.
        last_masks: whether those of episodes that a limit cut are read, too.

    Attributes:
        refused: whether something was wrong.
    """

    refused = False

    def __init__(self, env: TensorVecEnv, masks: bool, last_masks: bool = False) -> None:
        self._env, self._masks, self._last_masks = env, masks, masks and last_masks
        self._leaves = read_leaves(env.observation_space)
        self._fits = {path: fits_of(space, env.device) for path, space in self._leaves.items()}
        self._choices = choices_of(env.action_space) if masks else []
        self._types = action_types(env.action_space)
        self._seen: list[Seen] = []

    def reset(self, when: str) -> Leaves:
        """Begin new episodes everywhere; their first observations."""
        leaves: Leaves = attempt(self._env, lambda: "in step 0", self._env.reset_tensors)
        self._look(leaves, when)
        return leaves

    def step(
        self, head: ActionHead, actions: Mapping[str, Tensor], when: When, output: Tensor | None = None
    ) -> TensorStep:
        """Take a step with actions of a policy, Boxes clipped; its numbers [N] in ``output`` are looked at, too."""
        if output is not None:
            self._seen.append(Seen(output.isfinite(), output, when()))
        leaves = {path: value.to(self._types[path]) for path, value in head.execute(actions).items()}
        executed = nest_leaves(self._env.action_space, leaves)
        step: TensorStep = attempt(self._env, when, self._env.step_tensors, executed)
        self._look(step, when())
        return step

    def _look(self, given: Leaves | TensorStep, when: str) -> None:
        """Look at the observations of a reset, or at what a step gave; copies nothing."""
        if not isinstance(given, TensorStep):
            flags = self._good(given, self._masks)
        else:
            flags = [*self._good(given.observations, self._masks), given.rewards.isfinite()]
            if (last := given.last_observations) is not None:
                flags += [good | ~given.ended for good in self._good(last, False)]
                if self._last_masks:
                    flags.append(self._allows(last) | ~given.truncated)
        self._seen.append(Seen(torch.stack(flags).all(0), given, when))

    def refuse(self, cause: Exception | None = None) -> None:
        """Read the flags of what was seen since the last call.

        Raises:
            DataError: from ``cause``, for the first value that is not finite or outside its space, and for the first
                mask that allows nothing; names leaf, environment and step.
        """
        seen, self._seen = self._seen, []
        if not seen or bool((good := torch.stack([each.good for each in seen]).all(1)).all()):
            return
        self.refused = True
        try:
            self._name(seen[good.tolist().index(False)])
        except DataError as error:
            raise error from cause

    def _good(self, leaves: Leaves, masks: bool) -> list[Tensor]:
        """Flags of observations, each bool [N]."""
        fitting = (fits(leaves[path]) for path, fits in self._fits.items())
        flags = [each if each.dim() == 1 else each.flatten(1).all(1) for each in fitting]
        return [*flags, self._allows(leaves)] if masks else flags

    def _allows(self, leaves: Leaves) -> Tensor:
        """Whether a mask allows something in every component of an action, bool [N]."""
        return torch.stack([part.any(1) for part in leaves[ACTION_MASK].split(self._choices, 1)]).all(0)

    def _name(self, seen: Seen) -> None:
        """Raise the error of numpy for what was seen."""
        given, space = seen.given, self._env.action_space
        if isinstance(given, Tensor):
            raise DataError(OUTPUT_NOT_FINITE)
        step = given if isinstance(given, TensorStep) else None

        def place(row: int) -> str:
            return f"{row} {seen.when}"

        if step is not None:
            check_outcome(self._env.num_envs, step.rewards.cpu().numpy(), {}, lambda: seen.when)
        observations = _arrays(given.observations if isinstance(given, TensorStep) else given)
        check_observations(self._leaves, observations, place=place)
        if self._masks:
            check_masks(observations[ACTION_MASK], space, place)
        if step is None or step.last_observations is None:
            return
        last, ended = _arrays(step.last_observations), np.flatnonzero(step.ended.cpu().numpy())
        of_ended = {path: leaf[ended] for path, leaf in last.items()}
        check_observations(self._leaves, of_ended, "terminal observation", lambda row: place(int(ended[row])))
        if self._last_masks:
            cut = np.flatnonzero(step.truncated.cpu().numpy())
            check_masks(last[ACTION_MASK][cut], space, lambda row: place(int(cut[row])), way_out=STUCK_AT_LIMIT)


def fits_of(space: Space, device: torch.device) -> Fits:
    """``core.values.members`` in tensors, entry by entry: finite in float32, and classes and integers of the space."""
    low: Tensor | int
    high: Tensor | int
    own: torch.dtype | None = None  # whose numbers all fit
    match space:
        case spaces.Discrete():
            low, high = int(space.start), int(space.start + space.n) - 1
        case spaces.MultiDiscrete():
            low, high = (torch.as_tensor(bound, device=device) for bound in (space.start, space.start + space.nvec - 1))
        case spaces.Box() if space.dtype.kind == "f":
            return lambda rows: rows.to(torch.float32).isfinite()
        case spaces.Box() if space.dtype.kind in "iu":
            limits, own = np.iinfo(space.dtype), torch_type(space.dtype)
            low, high = int(limits.min), min(int(limits.max), 2**63 - 1)
        case _:
            low, high = 0, 1

    def fits(rows: Tensor) -> Tensor:
        if rows.dtype == own:
            return torch.ones(len(rows), dtype=torch.bool, device=device)
        if rows.is_floating_point():
            return (rows >= low) & (rows <= high) & (rows == rows.trunc())
        rows = rows.long()  # a bound may be none of their type
        return (rows >= low) & (rows <= high)

    return fits


def _arrays(leaves: Leaves) -> dict[str, np.ndarray]:
    return {path: leaf.cpu().numpy() for path, leaf in leaves.items()}
