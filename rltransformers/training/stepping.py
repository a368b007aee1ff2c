"""Steppers of an ``Actor``: the policy of an online agent, a Decision Transformer, an exported file.

Axis letters: B environments that act at the same time, U numbers of noise.
"""

import json
import os
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Any, NamedTuple, Protocol

import gymnasium as gym
import numpy as np
from numpy.typing import NDArray

from rltransformers.core.action_masks import ACTION_MASK
from rltransformers.core.checkpoint import contents_of
from rltransformers.core.device import to_tensor
from rltransformers.core.errors import ConfigError, DataError
from rltransformers.core.spaces import leaf_spaces, space_from_json
from rltransformers.export.reading import Arrays, read_step
from rltransformers.policies.decision import ActingState, Decider
from rltransformers.policies.memory_policy import MemoryPolicy, PolicyState, with_reward
from rltransformers.policies.noise import Noise, NoiseType, noise_of
from rltransformers.policies.observations import check_state
from rltransformers.policies.shipping import Scaling
from rltransformers.policies.steps import leaf_name
from rltransformers.training.target_returns import finite_targets

Space = gym.Space[Any]
Leaves = dict[str, NDArray[Any]]
Bools = NDArray[np.bool_]


class Stepping(Protocol):
    """A policy as an actor takes it: one step of B environments, and no state but the one passed in and returned.

    A state has the attribute ``batch_size``.

    Attributes:
        takes_masks: whether the leaf ``action_mask`` of ``step`` keeps it to allowed actions.
        needs_masks: whether there has to be such a leaf.
    """

    observation_space: Space
    action_space: Space
    takes_masks: bool
    needs_masks: bool
    noise: Sequence[Noise]
    noise_type: NoiseType

    def normalizes(self) -> bool:
        """Whether ``VecNormalize`` of the training is inside."""
        return False

    def begin(self, rows: int) -> Any:
        """The state before the first step of ``rows`` episodes."""

    def check_state(self, state: Any, rows: int) -> None:
        """Raise ConfigError unless ``state`` is one of this policy, of ``rows`` environments."""

    def needs_reward(self, state: Any, start: Bools) -> bool:
        """Whether this step reads the reward of the last one."""

    def step(
        self, leaves: Leaves, state: Any, start: Bools, rewards: NDArray[np.float64], noise: NDArray[Any] | None
    ) -> tuple[Leaves, Any]:
        """Actions by path [B, ...], and the state after them, from what the environment gave.

        Args:
            leaves: observations by path [B, ...], and masks as the leaf ``action_mask`` int8 [B, M].
            start: where an episode begins [B]; what ``state`` holds there is not read.
            rewards: of the last step [B], 0 where an episode begins.
            noise: [B, U]; None takes the most likely action.
        """


Rewards = NDArray[np.float64]
Scalings = Callable[[], tuple[dict[str, Scaling], Scaling | None]]
"""Functions of today's ``VecNormalize``: of observation leaves by path, and of the reward."""
NO_TARGET = "this policy is asked for no return; leave target_return out"


class PolicySteps(Stepping):
    """Steps of a ``MemoryPolicy`` on what the environment gave."""

    noise_type = np.float32

    def __init__(self, policy: MemoryPolicy, scalings: Scalings) -> None:
        self.observation_space, self.action_space = policy.tree, policy.action_space
        self.takes_masks = self.needs_masks = policy.masks
        self.noise = noise_of(policy.action_head)
        self._policy, self._scalings = policy, scalings

    def normalizes(self) -> bool:
        return any(self._scalings())

    def begin(self, rows: int) -> PolicyState:
        return self._policy.initial_state(rows)

    def check_state(self, state: Any, rows: int) -> None:
        self._policy.check_state(state, rows)

    def needs_reward(self, state: PolicyState, start: Bools) -> bool:
        return self._policy.uses_previous_reward and not start.all()

    def step(
        self, leaves: Leaves, state: PolicyState, start: Bools, rewards: Rewards, noise: NDArray[Any] | None
    ) -> tuple[Leaves, PolicyState]:
        policy = self._policy
        policy.end_training_mode()
        scaled, scaled_reward = self._scalings()
        leaves = leaves | {path: scaling(leaves[path]) for path, scaling in scaled.items()}
        if policy.uses_previous_reward:
            given = rewards if scaled_reward is None else scaled_reward(rewards)
            state = with_reward(state, np.where(start, 0.0, given))
        device = state.previous_reward.device
        actions, _, _, state = policy.step(
            policy.leaves_to_tensors(leaves),
            state,
            to_tensor(start, device),
            None if noise is None else to_tensor(noise, device),
        )
        return policy.executed(actions), state


class DecisionSteps(Stepping):
    """Decisions of a Decision Transformer that is asked for one return, or for what it predicts (None)."""

    noise_type = np.float64

    def __init__(
        self,
        decider: Decider,
        act: Callable[..., tuple[Leaves, ActingState]],
        spaces: tuple[Space, Space],
        target_return: Any,
    ) -> None:
        self.observation_space, self.action_space = spaces
        self.needs_masks = decider.policy.masks
        self.takes_masks = self.needs_masks or ACTION_MASK not in leaf_spaces(spaces[0])
        self.noise = noise_of(decider.policy.head)
        self._decider, self._act, self._target = decider, act, target_return
        if target_return is not None:
            self._targets(np.size(target_return))

    def _targets(self, rows: int) -> NDArray[np.float64]:
        if self._target is None:
            return np.full(rows, np.nan)
        return finite_targets(self._target, rows, self._decider.policy.return_scale)

    def begin(self, rows: int) -> ActingState:
        self._targets(rows)
        return self._decider.initial_state(rows)

    def check_state(self, state: Any, rows: int) -> None:
        self._decider.check_state(state, rows)

    def needs_reward(self, state: ActingState, start: Bools) -> bool:
        if not self._decider.policy.return_conditioned or self._decider.delayed_reward:
            return False
        return bool((~start & ~state.return_to_go.isnan().cpu().numpy()).any())

    def step(
        self, leaves: Leaves, state: ActingState, start: Bools, rewards: Rewards, noise: NDArray[Any] | None
    ) -> tuple[Leaves, ActingState]:
        return self._act(self._decider, leaves, state, start, rewards, self._targets(len(start)), noise)


class FileState(NamedTuple):
    """The tensors of a file's state by name, and the steps of every episode so far [B]."""

    tensors: Arrays
    age: NDArray[np.int64]

    @property
    def batch_size(self) -> int:
        """B."""
        return len(self.age)


@dataclass(frozen=True)
class _Facts:
    """Description of the policy of a file."""

    agent: str
    spaces: tuple[Space, Space]
    action_mask: str | None
    noise: list[Noise]
    initial: dict[str, Any]
    longest: int | None
    best_return: float | None
    predicts_return: bool
    return_scale: float


class FileSteps(Stepping):
    """Steps of a policy that ``export`` wrote; no network of this package is built."""

    def __init__(self, path: str | os.PathLike[str], target_return: Any = None) -> None:
        self._file = read_step(path)
        with contents_of(path, "policy"):
            facts = self._facts = _facts(self._file.metadata)
            inputs = self._file.inputs
            self._observed = {path: leaf_name("observation", path) for path in leaf_spaces(facts.spaces[0])}
            if facts.action_mask is not None:
                self._observed[ACTION_MASK] = facts.action_mask
            self._acted = {path: leaf_name("action", path) for path in leaf_spaces(facts.spaces[1])}
            self._first = "start" if "start" in inputs else "first"
            _ = [inputs[name] for name in (self._first, *self._observed.values())]
            self.noise_type = np.float64 if inputs.get("noise", {}).get("dtype") == "float64" else np.float32
            self.begin(self._file.batch or 1)
        self.observation_space, self.action_space = facts.spaces
        self.takes_masks = self.needs_masks = facts.action_mask is not None
        self.noise = facts.noise
        if target_return is not None and "target_return" not in inputs:
            raise ConfigError(NO_TARGET)
        best = None if facts.predicts_return else facts.best_return
        self._target = best if target_return is None else target_return
        if self._target is not None:
            self._targets(np.size(self._target))

    def _targets(self, rows: int) -> NDArray[np.float64]:
        if self._target is None:
            return np.full(rows, np.nan)
        return finite_targets(self._target, rows, self._facts.return_scale)

    def begin(self, rows: int) -> FileState:
        """The state in which ``rows`` environments begin.

        Raises:
            ConfigError: when the file was exported for another number of environments.
        """
        if self._file.batch not in (None, rows):
            raise ConfigError(
                f"the file is for {self._file.batch} environments, got {rows}; export(path, batch=None) writes one for "
                "any number"
            )
        tensors = {
            name: self._file.filled(kind, rows, self._facts.initial[name]) for name, kind in self._file.state.items()
        }
        return FileState(tensors, np.zeros(rows, np.int64))

    def check_state(self, state: Any, rows: int) -> None:
        check_state(state, FileState, rows)
        found = {name: value.shape for name, value in state.tensors.items()}
        expected = {name: (rows, *kind["shape"][1:]) for name, kind in self._file.state.items()}
        for name in [*expected, *found]:
            if found.get(name) != expected.get(name):
                raise ConfigError(
                    f"the state is of another file: {name} has shape {found.get(name)}, here {expected.get(name)}; "
                    "pass what predict of this one returned, or None to begin anew"
                )

    def needs_reward(self, state: FileState, start: Bools) -> bool:
        if "reward" not in self._file.inputs:
            return False
        asked = state.tensors.get("return_to_go")
        return bool((~start & ~np.isnan(asked)).any()) if asked is not None else not start.all()

    def step(
        self, leaves: Leaves, state: FileState, start: Bools, rewards: Rewards, noise: NDArray[Any] | None
    ) -> tuple[Leaves, FileState]:
        """Actions of one step, and the state after it.

        Raises:
            DataError: when an episode is longer than the positions of the policy reach.
        """
        age, longest = np.where(start, 0, state.age) + 1, self._facts.longest
        if longest is not None and (age > longest).any():
            raise DataError(
                f"the episode of environment {int(np.argmax(age))} is longer than the {longest} steps that positions "
                "of the policy reach; train with a longer table (max_len) or cut episodes"
            )
        kinds, rows = self._file.inputs, len(start)
        values: dict[str, Any] = {name: leaves[path] for path, name in self._observed.items()}
        values |= {
            self._first: start,
            "reward": rewards,
            "greedy": noise is None,
            "noise": 0.0 if noise is None else noise,
        }
        if "target_return" in kinds:
            values["target_return"] = self._targets(rows)
        inputs = {name: self._file.filled(kind, rows, values[name]) for name, kind in kinds.items()}
        outputs, tensors = self._file.run(inputs, state.tensors)
        return {path: outputs[name] for path, name in self._acted.items()}, FileState(tensors, age)


def _facts(metadata: Any) -> _Facts:
    observed, acted = (space_from_json(json.dumps(metadata[f"{kind}_space"])) for kind in ("observation", "action"))
    return _Facts(
        agent=str(metadata["agent"]),
        spaces=(observed, acted),
        action_mask=metadata.get("action_mask"),
        noise=[Noise(int(each["numbers"]), each["distribution"] == "normal") for each in metadata["noise"]],
        initial=dict(metadata["initial_state"]),
        longest=metadata["longest_episode"],
        best_return=metadata.get("best_return"),
        predicts_return=bool(metadata.get("predicts_return")),
        return_scale=float(metadata.get("return_scale", 1.0)),
    )
