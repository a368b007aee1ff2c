"""Steppers of an ``Actor``. Axis letters: B environments that act at the same time, U numbers of noise."""

import json
import os
from collections.abc import Callable, Mapping, Sequence
from functools import partial
from typing import Any, Literal, NamedTuple, Protocol, TypedDict

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor

from rltransformers.core.action_masks import ACTION_MASK, mask_space
from rltransformers.core.checkpoint import contents_of
from rltransformers.core.errors import CheckpointError, ConfigError, DataError
from rltransformers.core.ranges import Count, PositiveNumber, check
from rltransformers.core.spaces import Space, leaf_spaces, space_from_json
from rltransformers.core.values import Bools, all_finite, check_observations, finite, numbers, to_tensor
from rltransformers.export.reading import Arrays, read_step
from rltransformers.policies.action_heads import OUTPUT_NOT_FINITE, Noise, NoiseType, as_arrays, noise_of
from rltransformers.policies.decider import ActingState, Decider
from rltransformers.policies.memory_policy import MemoryPolicy
from rltransformers.policies.observations import check_state
from rltransformers.policies.output import OF_ACTIONS, OF_LEAVES, Kinds
from rltransformers.policies.policy_state import PolicyState, with_reward
from rltransformers.policies.returns import finite_targets
from rltransformers.policies.shipping import Scaling, longest_episode
from rltransformers.policies.steps import leaf_name, leaves_of

Leaves = dict[str, NDArray[Any]]
Rewards = NDArray[np.float64]


class Stepping(Protocol):
    """A policy as an actor takes it: one step of B environments, and no state but the one passed in and returned.

    A state has the attribute ``batch_size``.
    """

    observation_space: Space
    action_space: Space
    takes_masks: bool  # whether the leaf ``action_mask`` of ``step`` keeps it to allowed actions
    needs_masks: bool  # whether there has to be such a leaf
    noise: Sequence[Noise]
    longest_episode: int | None  # steps of an episode that positions of the policy reach; None where they know no end
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
        self, leaves: Leaves, state: Any, start: Bools, rewards: Rewards, noise: NDArray[Any] | None, whole: bool
    ) -> tuple[Kinds, Any]:
        """Fields of ``PolicyOutput`` by leaf [B, ...], and the state after them, from what the environment gave.

        Args:
            leaves: observations by path [B, ...], and masks as the leaf ``action_mask`` int8 [B, M].
            start: where an episode begins [B]; what ``state`` holds there is not read.
            rewards: of the last step [B], 0 where an episode begins, NaN where they are unknown and not needed.
            noise: [B, U]; None takes the most likely action.
            whole: all fields, computed in eager mode; False gives the action at least.
        """


ALWAYS_FINITE = ("action", "probabilities", "mean", *OF_ACTIONS)
NO_TARGET = "this policy is asked for no return; leave target_return out"


Scalings = tuple[dict[str, Scaling], Scaling | None]
"""What ``VecNormalize`` does to observation leaves, by path, and to the reward."""


class PolicySteps(Stepping):
    """Steps of a ``MemoryPolicy`` on what the environment gave.

    Args:
        scalings: those of an agent as it is now; a copy, pickled or not, leaves the agent behind and keeps the last.
    """

    noise_type = np.float32

    def __init__(self, policy: MemoryPolicy, scalings: Callable[[], Scalings]) -> None:
        self.observation_space, self.action_space = policy.tree, policy.action_space
        self.takes_masks = self.needs_masks = policy.masks
        self.noise = noise_of(policy.action_head)
        self.longest_episode = longest_episode(policy.actor.backbone, 1)
        self._policy, self._scalings = policy, scalings

    def __getstate__(self) -> dict[str, Any]:
        return vars(self) | {"_scalings": partial(tuple, self._scalings())}

    def normalizes(self) -> bool:
        return any(self._scalings())

    def begin(self, rows: int) -> PolicyState:
        return self._policy.initial_state(rows)

    def check_state(self, state: Any, rows: int) -> None:
        self._policy.check_state(state, rows)

    def needs_reward(self, state: PolicyState, start: Bools) -> bool:
        return self._policy.uses_previous_reward and not start.all()

    def step(
        self,
        leaves: Leaves,
        state: PolicyState,
        start: Bools,
        rewards: Rewards,
        noise: NDArray[Any] | None,
        whole: bool,
    ) -> tuple[Kinds, PolicyState]:
        policy, head = self._policy, self._policy.action_head
        policy.end_training_mode()
        scaled, scaled_reward = self._scalings()
        leaves = leaves | {path: scaling(leaves[path]) for path, scaling in scaled.items()}
        if policy.uses_previous_reward:
            given = rewards if scaled_reward is None else scaled_reward(rewards)
            state = with_reward(state, np.where(start, 0.0, given))
        device = state.previous_reward.device
        drawn = None if noise is None else to_tensor(noise, device)
        inputs = policy.leaves_to_tensors(leaves), state, to_tensor(start, device), drawn
        fields: dict[str, dict[str, Tensor]] = {}
        if whole:
            fields, state = policy.decide(*inputs)
            output = fields["value"][""] + fields["log_prob"][""]
        else:
            fields["action"], values, log_probs, state = policy.step(*inputs)
            output = values + log_probs
        acted = as_arrays(head.execute(fields["action"]), head.spaces, output)
        return as_numbers(fields) | {"action": acted}, state


class DecisionSteps(Stepping):
    """Decisions of a Decision Transformer that is asked for one return, or for what it predicts (None)."""

    noise_type = np.float64

    def __init__(self, decider: Decider, spaces: tuple[Space, Space], target_return: Any) -> None:
        self.observation_space, self.action_space = spaces
        self.needs_masks = decider.policy.masks
        self.takes_masks = self.needs_masks or ACTION_MASK not in leaf_spaces(spaces[0])
        self.noise = noise_of(decider.policy.head)
        self._decider, self._target = decider, target_return
        backbone, group = decider.policy.backbone, decider.policy.tokens_per_step
        self.longest_episode = longest_episode(backbone, group, whole=decider.mode == "banded")
        self._return_scale = decider.policy.return_scale
        if target_return is not None:
            target_returns(target_return, np.size(target_return), self._return_scale)

    def begin(self, rows: int) -> ActingState:
        target_returns(self._target, rows, self._return_scale)
        return self._decider.initial_state(rows)

    def check_state(self, state: Any, rows: int) -> None:
        self._decider.check_state(state, rows)

    def needs_reward(self, state: ActingState, start: Bools) -> bool:
        if not self._decider.policy.takes_target or self._decider.delayed_reward:
            return False
        return bool((~start & (True if state.asked is None else state.asked.cpu().numpy())).any())

    def step(
        self,
        leaves: Leaves,
        state: ActingState,
        start: Bools,
        rewards: Rewards,
        noise: NDArray[Any] | None,
        whole: bool,
    ) -> tuple[Kinds, ActingState]:
        decider, policy = self._decider, self._decider.policy
        targets = target_returns(self._target, len(start), self._return_scale)
        if not whole:
            acted, state = act_on_arrays(decider, self.action_space, leaves, state, start, rewards, targets, noise)
            return {"action": acted}, state
        observations, inputs = decision_inputs(decider, leaves, start, rewards, targets, noise)
        with torch.inference_mode():
            decider.check_places(state, inputs["start"])
            tables = policy.tables.current()
            actions, outputs, state = decider.network_step(observations, state, tables=tables, **inputs)
            fields = policy.fields(observations, outputs, actions)
        acted = as_arrays(actions, leaf_spaces(self.action_space), outputs)
        return as_numbers(fields) | {"action": acted}, state


def target_returns(target: Any, rows: int, scale: float) -> NDArray[np.float64]:
    """The return that each environment is asked for [B]; NaN where the policy predicts it (``target`` is None)."""
    return np.full(rows, np.nan) if target is None else finite_targets(target, rows, scale)


def decision_inputs(
    decider: Decider, leaves: Mapping[str, Any], start: Bools, reward: Any, target_return: Any, noise: Any
) -> tuple[dict[str, Tensor], dict[str, Any]]:
    """Observations and the keywords of ``Decider.step`` as tensors; one copy to the device per leaf."""
    device = decider.policy.head.linear.weight.device
    inputs = {
        "start": to_tensor(start, device),
        "reward": to_tensor(reward, device, torch.float64),
        "target_return": to_tensor(target_return, device, torch.float64),
        "noise": None if noise is None else to_tensor(noise, device),
    }
    return {path: to_tensor(value, device) for path, value in leaves.items()}, inputs


def act_on_arrays(
    decider: Decider,
    action_space: Space,
    leaves: Mapping[str, Any],
    state: ActingState,
    start: Bools,
    reward: Any,
    target_return: Any,
    noise: Any,
    overwrites: bool = False,
) -> tuple[Leaves, ActingState]:
    """``Decider.step`` on numpy arrays; one copy to the device per leaf, one back."""
    observations, inputs = decision_inputs(decider, leaves, start, reward, target_return, noise)
    actions, output, state = decider.step(observations, state, **inputs, overwrites=overwrites)
    return as_arrays(actions, leaf_spaces(action_space), output), state


def as_numbers(fields: Mapping[str, Mapping[str, Tensor]]) -> Kinds:
    """Fields of ``PolicyOutput`` by leaf as arrays."""
    return {kind: {path: value.cpu().numpy() for path, value in leaves.items()} for kind, leaves in fields.items()}


class FileState(NamedTuple):
    """The tensors of a file's state by name, and the steps of every episode so far [B]."""

    tensors: Arrays
    age: NDArray[np.int64]

    @property
    def batch_size(self) -> int:
        return len(self.age)


class _NoiseKind(TypedDict):
    """Noise of a leaf in the description of a file."""

    of: str
    numbers: Count
    distribution: Literal["normal", "uniform"]


class FileSteps(Stepping):
    """Steps of a policy that ``export`` wrote; no network of this package is built."""

    def __init__(self, path: str | os.PathLike[str], target_return: Any = None) -> None:
        self._file = read_step(path)
        inputs = self._file.inputs
        with contents_of(path, "policy"):
            self._first = "start" if "start" in inputs else "first"
            self.noise_type = np.float64 if inputs.get("noise", {}).get("dtype") == "float64" else np.float32
            self._read(self._file.metadata)
            self._check_tensors()
            self._try()
        if target_return is not None:
            if "target_return" not in inputs:
                raise ConfigError(NO_TARGET)
            self._target = target_return
            target_returns(target_return, np.size(target_return), self._return_scale)

    def _read(self, metadata: Mapping[str, Any]) -> None:
        """Take in the description of the policy."""

        def fact(name: str, kind: Any, *default: Any) -> Any:
            return check(metadata.get(name, *default) if default else metadata[name], kind, name)

        with np.errstate(over="ignore"):  # of bounds that an edit moved beyond their type
            self.observation_space, self.action_space = (
                space_from_json(json.dumps(metadata[f"{kind}_space"])) for kind in ("observation", "action")
            )
        fact("agent", str)
        mask = fact("action_mask", str | None, None)
        noise = fact("noise", list[_NoiseKind])
        self.takes_masks = self.needs_masks = mask is not None
        self.noise = [Noise(each["numbers"], each["distribution"] == "normal") for each in noise]
        self.longest_episode = fact("longest_episode", Count | None)
        self._initial = fact("initial_state", dict[str, Any])
        for name, value in self._initial.items():
            if not finite(numbers(value)).all():
                raise DataError(f"initial_state.{name} is not finite")
        best_return = fact("best_return", float | None, None)
        self._target = None if fact("predicts_return", bool, False) else best_return
        self._return_scale = fact("return_scale", PositiveNumber, 1.0)
        self._observed = {path: leaf_name("observation", path) for path in leaf_spaces(self.observation_space)}
        if mask is not None:
            self._observed[ACTION_MASK] = mask

    def _check_tensors(self) -> None:
        """Raise CheckpointError unless the file takes and gives what its spaces, noise and initial state say."""
        file, acted = self._file, leaf_spaces(self.action_space)
        leaves = leaf_spaces(self.observation_space)
        if self.takes_masks:
            leaves = {ACTION_MASK: mask_space(self.action_space)} | leaves
        inputs: dict[str, Any] = {
            name: (str(leaves[path].dtype), leaves[path].shape) for path, name in self._observed.items()
        }
        inputs |= dict.fromkeys((self._first, "greedy"), ("bool", ()))
        inputs |= dict.fromkeys(("reward", "target_return"), ("float", ()))
        inputs["noise"] = "float", (sum(each.numbers for each in self.noise),)
        outputs = {leaf_name("action", path): (str(leaf.dtype), leaf.shape) for path, leaf in acted.items()}
        optional = {"greedy", "reward", "target_return", "noise"}
        for due, tensors in ((inputs, file.inputs), (outputs, file.outputs)):
            for name in [*due, *(tensors if due is inputs else ())]:
                kind, wanted = tensors.get(name), due.get(name)
                if kind is None and name in optional:
                    continue
                fits = kind and wanted and kind["dtype"].startswith(wanted[0]) and tuple(kind["shape"][1:]) == wanted[1]
                if not fits:
                    raise CheckpointError(f"{name!r} is {kind} in the file, where its spaces and noise say {wanted}")
        if set(self._initial) != set(file.state):
            raise CheckpointError(f"initial_state is of {sorted(self._initial)}, the state of {sorted(file.state)}")
        if "noise" not in file.inputs and self.noise:
            raise CheckpointError("it describes noise and takes none")
        if "asked" in file.state and len(file.state["asked"]["shape"]) != 1:
            raise CheckpointError("asked of the state is not one truth for each environment")

    def _try(self) -> None:
        """Take a step from zeros, which an edited description may not survive."""
        rows = self._file.batch or 1
        kinds = {path: self._file.inputs[name] for path, name in self._observed.items()}
        leaves = {path: self._file.filled(kind, rows, path == ACTION_MASK) for path, kind in kinds.items()}
        for path, leaf in leaf_spaces(self.observation_space).items():
            leaves[path] += np.asarray(getattr(leaf, "start", 0), leaves[path].dtype)
        fields, _ = self.step(leaves, self.begin(rows), np.ones(rows, bool), np.zeros(rows), None, whole=True)
        check_observations(leaf_spaces(self.action_space), fields["action"], "action")

    def begin(self, rows: int) -> FileState:
        if self._file.batch not in (None, rows):
            raise ConfigError(
                f"the file is for {self._file.batch} environments, got {rows}; export(path, batch=None) writes one for "
                "any number"
            )
        tensors = {name: self._file.filled(kind, rows, self._initial[name]) for name, kind in self._file.state.items()}
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
        return bool((~start & state.tensors.get("asked", np.True_)).any())

    def step(
        self, leaves: Leaves, state: FileState, start: Bools, rewards: Rewards, noise: NDArray[Any] | None, whole: bool
    ) -> tuple[Kinds, FileState]:
        age, longest = np.where(start, 0, state.age) + 1, self.longest_episode
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
            values["target_return"] = target_returns(self._target, rows, self._return_scale)
        inputs = {name: self._file.filled(kind, rows, values[name]) for name, kind in kinds.items()}
        outputs: Any  # arrays, which leaves_of takes as it takes tensors
        outputs, tensors = self._file.run(inputs, state.tensors)
        fields: Kinds = {kind: leaves_of(kind, outputs) for kind in (*OF_LEAVES, *OF_ACTIONS)}
        if not all(all_finite(value) for kind in ALWAYS_FINITE for value in fields[kind].values()):
            raise DataError(OUTPUT_NOT_FINITE)
        return fields, FileState(tensors, age)
