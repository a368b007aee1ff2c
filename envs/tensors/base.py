"""Vector environments whose observations, actions and rewards are tensors on one device. Axis letter: N environments.

A ``TensorVecEnv`` is a ``VecEnv`` of Stable-Baselines3 as well, in numpy arrays, so that its tools take it; the agents
of this package step it in tensors.
"""

from abc import abstractmethod
from collections.abc import Mapping, Sequence
from functools import cached_property
from typing import Any, NamedTuple, NoReturn

import gymnasium
import numpy as np
import torch
from gymnasium import spaces
from stable_baselines3.common.monitor import Monitor
from stable_baselines3.common.vec_env import VecEnv, VecNormalize
from stable_baselines3.common.vec_env.base_vec_env import VecEnvIndices, VecEnvObs, VecEnvStepReturn
from torch import Tensor

from rltransformers.core.device import find_device
from rltransformers.core.errors import ConfigError, DataError
from rltransformers.core.ranges import Environments, check
from rltransformers.core.spaces import (
    Space,
    check_supported,
    leaf_spaces,
    leaf_values,
    nest_leaves,
    observation_leaves,
    stack_members,
)
from rltransformers.core.values import WAY_OUT, named, torch_type
from rltransformers.envs.tensors.streams import random_shares, random_words
from rltransformers.functional.windows import match_axes

Leaves = dict[str, Tensor]
"""Tensors [N, ...] by leaf path; that of a space that is one leaf is ""."""


class Outcome(NamedTuple):
    """What a step made of every environment, before any reset."""

    observations: Any  # nested as the observation space, leaves [N, ...]
    rewards: Tensor  # [N]
    terminated: Tensor  # bool [N]
    truncated: Tensor  # bool [N]
    successes: Tensor | None = None  # bool [N], read where an episode ends; None where nothing succeeds or fails


class TensorStep(NamedTuple):
    """A step of every environment; those whose episode ended have begun the next one."""

    observations: Leaves  # of the episodes that go on or begin
    rewards: Tensor  # float32 [N]
    terminated: Tensor  # bool [N]
    truncated: Tensor  # bool [N], and not terminated
    last_observations: Leaves | None  # before any reset; None where the environment does not tell
    returns: Tensor  # float64 [N], of the episodes so far
    lengths: Tensor  # int64 [N], of the episodes so far
    successes: Tensor | None  # bool [N]

    @property
    def ended(self) -> Tensor:
        """Where an episode ended, bool [N]."""
        return self.terminated | self.truncated


class TensorVecEnv(VecEnv):
    """N environments that are stepped together in tensors on one device; a subclass has ``begin`` and ``advance``.

    Episodes that end are begun anew in the same step, as Stable-Baselines3 has it. Returns and lengths of episodes are
    counted here, no ``VecMonitor`` is needed; ``VecNormalize`` around it is computed in tensors by the agents.
    ``reset`` and ``step`` are those of Stable-Baselines3 and copy to numpy; ``reset_tensors`` and ``step_tensors`` do
    not.

    A subclass that keeps all that coming steps depend on in the dictionary ``state``, tensors [N, ...] by name (empty
    before the first reset), and draws random numbers by ``draw`` alone, is saved with its agents: a resumed run equals
    one that never stopped.

    Shapes and types of what a subclass returns are checked in every step, values by the agents of this package.

    Args:
        num_envs: N.
        observation_space, action_space: of one environment; observations may be nested.
        device: ``"auto"``, ``"cpu"``, ``"cuda"``: where the agent has to be as well.

    Raises:
        ConfigError: for unsupported spaces, or another number of environments than 1 to 65,536.
        DataError: of resets and steps, where a subclass returns another shape or type than it has to.
    """

    state: dict[str, Tensor] | None = None
    _streams: Tensor
    _episodes: Tensor
    _returns: Tensor
    _lengths: Tensor

    def __init__(
        self, num_envs: int, observation_space: Space, action_space: Space, device: torch.device | str = "auto"
    ) -> None:
        self.device = find_device(device)
        self.single_observation_space = observation_space
        check_supported(observation_space, "observation")
        check_supported(action_space, "action")
        leaves = observation_leaves(observation_space)
        self._bare = "" in leaves
        super().__init__(check(num_envs, Environments, "num_envs"), leaves.get("", spaces.Dict(leaves)), action_space)
        self._shapes = {path: (num_envs, *(leaf.shape or ())) for path, leaf in leaves.items()}
        drawn = np.random.SeedSequence().generate_state(num_envs, np.uint64) >> 1
        self.take_seeds(drawn.tolist())
        self._all = torch.ones(num_envs, dtype=torch.bool, device=self.device)
        self._clear_sums()

    @abstractmethod
    def begin(self, mask: Tensor) -> Any:
        """Begin an episode in the environments under ``mask`` [N], and leave the others alone.

        Returns observations of all, nested as the space; those outside the mask are not read. The first call is of all.
        """

    @abstractmethod
    def advance(self, actions: Any) -> Outcome:
        """Take one step in every environment, without any reset.

        ``actions`` are nested as the action space: leaves [N, ...], int64 for classes, those of a Box inside it.
        """

    def draw(self, mask: Tensor, count: int) -> Tensor:
        """Uniform numbers in [0, 1) for the episodes that begin under ``mask``: float64 [N, count].

        They depend on the seed of an environment, the number of its episode, and nothing else. One call per ``begin``.
        """
        words = random_words(self._streams, self._episodes + 1)
        self._episodes = self._episodes + mask
        return random_shares(random_words(words[:, None], torch.arange(1, count + 1, device=self.device)))

    def take_seeds(self, seeds: Sequence[int]) -> None:
        """Take a seed for every environment, from the reset on that comes next."""
        self._streams = torch.tensor(list(seeds), dtype=torch.int64, device=self.device)
        self._episodes = torch.zeros_like(self._streams)

    # In tensors

    def reset_tensors(self) -> Leaves:
        """Begin an episode everywhere; the first observations by leaf."""
        if None not in self._seeds:
            self.take_seeds(self._seeds)  # type: ignore[arg-type]  # none is None
        self._reset_seeds()
        self._reset_options()
        self._clear_sums()
        return self._leaves(self.begin(self._all), "begin")

    def step_tensors(self, actions: Any) -> TensorStep:
        """Take a step, and begin the episodes behind those that ended; ``actions`` as for ``advance``."""
        outcome, last = self._advanced(actions)
        truncated = outcome.truncated & ~outcome.terminated
        ended = outcome.terminated | truncated
        fresh = self._leaves(self.begin(ended), "begin")
        observations = {path: torch.where(match_axes(ended, leaf), fresh[path], leaf) for path, leaf in last.items()}
        return self._counted(outcome, observations, truncated, last)

    def _advanced(self, actions: Any) -> tuple[Outcome, Leaves]:
        """What ``advance`` gives, and the leaves of its observations; DataError for other shapes and types."""
        outcome = self.advance(actions)
        for name in ("rewards", "terminated", "truncated", "successes"):
            value: Any = getattr(outcome, name)
            if name == "successes" and value is None:
                continue
            is_type = _is_number if name == "rewards" else _is_flag
            if not (isinstance(value, Tensor) and value.shape == (self.num_envs,) and is_type(value.dtype)):
                self._refuse("advance", name, value, "numbers [N]" if name == "rewards" else "bool [N]")
        return outcome, self._leaves(outcome.observations, "advance")

    def _counted(self, outcome: Outcome, observations: Leaves, truncated: Tensor, last: Leaves | None) -> TensorStep:
        """The step with returns and lengths of its episodes; those that ended are counted from 0 again."""
        returns, lengths = self._returns + outcome.rewards, self._lengths + 1
        going_on = ~(outcome.terminated | truncated)
        self._returns, self._lengths = returns * going_on, lengths * going_on
        rewards = outcome.rewards.to(torch.float32)
        return TensorStep(
            observations, rewards, outcome.terminated, truncated, last, returns, lengths, outcome.successes
        )

    def _leaves(self, observations: Any, method: str) -> Leaves:
        """The leaves of what a ``method`` returned; DataError for one that lacks, or has another shape or type."""
        try:
            leaves = {"": observations} if self._bare else leaf_values(self.single_observation_space, observations)
        except DataError as error:
            raise DataError(f"{method} returned an observation in which {error}; {WAY_OUT}") from error
        for path, shape in self._shapes.items():
            value = leaves[path]
            if not (isinstance(value, Tensor) and value.shape == shape and _is_number(value.dtype)):
                due = ", ".join(["N", *map(str, shape[1:])])
                self._refuse(method, named("observation", path), value, f"numbers [{due}]")
        return leaves

    def _refuse(self, method: str, what: str, value: Any, due: str) -> NoReturn:
        """Raise DataError for what a method returned in place of what was ``due``."""
        got = f"{value.dtype} {list(value.shape)}" if isinstance(value, Tensor) else f"a {type(value).__name__}"
        when = f" in step {int(self._lengths[0]) + 1} of the episode of environment 0" if method == "advance" else ""
        raise DataError(
            f"{what} must be {due} for N = {self.num_envs} environments, {method} returned {got}{when}; {WAY_OUT}"
        )

    def _clear_sums(self) -> None:
        self._returns = torch.zeros(self.num_envs, dtype=torch.float64, device=self.device)
        self._lengths = torch.zeros(self.num_envs, dtype=torch.int64, device=self.device)

    # As Stable-Baselines3 has it

    def reset(self) -> VecEnvObs:
        self.reset_infos = [{} for _ in range(self.num_envs)]
        return self._arrays(self.reset_tensors())

    def step_async(self, actions: Any) -> None:
        nested = isinstance(self.action_space, spaces.Dict | spaces.Tuple)
        leaves = leaf_values(self.action_space, stack_members(self.action_space, actions) if nested else actions)
        tensors = {path: torch.as_tensor(np.asarray(leaf), device=self.device) for path, leaf in leaves.items()}
        self._actions = nest_leaves(self.action_space, tensors)

    def step_wait(self) -> VecEnvStepReturn:
        step = self.step_tensors(self._actions)
        infos = StepInfos(step, self._arrays)
        return self._arrays(step.observations), step.rewards.cpu().numpy(), infos.ended, list(infos)

    def _arrays(self, leaves: Mapping[str, Tensor]) -> Any:
        """Observations as arrays of their own, in the types of the space."""
        types = {path: leaf.dtype for path, leaf in observation_leaves(self.observation_space).items()}
        arrays = {path: leaf.cpu().numpy().astype(types[path]) for path, leaf in leaves.items()}
        return arrays[""] if self._bare else arrays

    # State

    def state_dict(self) -> dict[str, Any] | None:
        """Everything that coming steps depend on (see ``envs.saving``); None where there is no ``state``."""
        if self.state is None:
            return None
        tensors = {"streams": self._streams, "episodes": self._episodes}
        tensors |= {"returns": self._returns, "lengths": self._lengths}
        return {name: value.cpu().numpy().copy() for name, value in tensors.items()} | {
            "state": {name: value.cpu().numpy().copy() for name, value in self.state.items()}
        }

    def load_state_dict(self, state: Mapping[str, Any]) -> None:
        """Go on where ``state_dict`` was called; seeds that wait for a reset are forgotten.

        Raises:
            ConfigError: when the state is that of another number of environments.
        """
        if len(state["streams"]) != self.num_envs:
            raise ConfigError(f"the state is that of {len(state['streams'])} environments, there are {self.num_envs}")
        names = ("streams", "episodes", "returns", "lengths")
        self._streams, self._episodes, self._returns, self._lengths = (self._tensor(state[name]) for name in names)
        self.state = {name: self._tensor(value) for name, value in state["state"].items()}
        self._reset_seeds()
        self._reset_options()

    def _tensor(self, value: Any) -> Tensor:
        return torch.tensor(value, device=self.device)

    # What one program has for all environments

    def close(self) -> None:
        """Close the program; a subclass that holds something open lets go of it."""

    def get_attr(self, attr_name: str, indices: VecEnvIndices = None) -> list[Any]:
        value = None if attr_name == "render_mode" else getattr(self, attr_name)
        return [value for _ in self._get_indices(indices)]

    def set_attr(self, attr_name: str, value: Any, indices: VecEnvIndices = None) -> None:
        if list(self._get_indices(indices)) != list(range(self.num_envs)):
            raise ConfigError(f"set_attr reaches all environments of {type(self).__name__}; leave out indices")
        setattr(self, attr_name, value)

    def env_method(self, method_name: str, *method_args: Any, indices: VecEnvIndices = None, **keywords: Any) -> Any:
        """Refuse: there are no single environments."""
        raise ConfigError(f"{type(self).__name__} has no single environments whose {method_name} could be called")

    def env_is_wrapped(
        self, wrapper_class: type[gymnasium.Wrapper[Any, Any, Any, Any]], indices: VecEnvIndices = None
    ) -> list[bool]:
        """True for ``Monitor``, whose statistics are in the infos here; nothing else is wrapped."""
        return [wrapper_class is Monitor for _ in self._get_indices(indices)]


def inner_tensors(env: VecEnv | None) -> TensorVecEnv | None:
    """The environments in ``env`` that can be stepped in tensors: a ``TensorVecEnv``, also in ``VecNormalize``.

    None within other wrappers, which know numpy alone.
    """
    inside = env.venv if isinstance(env, VecNormalize) else env
    return inside if isinstance(inside, TensorVecEnv) else None


class LazyArray(Sequence[Any]):
    """A tensor that becomes an array when somebody looks at it, and not before."""

    def __init__(self, tensor: Tensor) -> None:
        self._tensor = tensor

    def __array__(self, dtype: Any = None, copy: bool | None = None) -> np.ndarray:
        return np.asarray(self._tensor.cpu().numpy(), dtype)

    def __len__(self) -> int:
        return len(self._tensor)

    def __getitem__(self, index: Any) -> Any:
        return np.asarray(self)[index]


class StepInfos(Sequence[dict[str, Any]]):
    """The infos of a step as Stable-Baselines3 has them; nothing is copied to the host before one is looked at.

    Args:
        step: of tensors.
        to_arrays: makes observations of leaves.
    """

    def __init__(self, step: TensorStep, to_arrays: Any) -> None:
        self._step, self._to_arrays = step, to_arrays

    @cached_property
    def ended(self) -> np.ndarray:
        """Where an episode ended, bool [N]."""
        return self._step.ended.cpu().numpy()

    @cached_property
    def _infos(self) -> list[dict[str, Any]]:
        step = self._step
        truncated: list[bool] = step.truncated.tolist()
        infos: list[dict[str, Any]] = [{"TimeLimit.truncated": is_cut} for is_cut in truncated]
        rows = np.flatnonzero(self.ended).tolist()
        if not rows:
            return infos
        chosen = torch.tensor(rows, device=step.rewards.device)
        columns = {"r": step.returns[chosen].tolist(), "l": step.lengths[chosen].tolist()}
        successes = None if step.successes is None else step.successes[chosen].tolist()
        last = None
        if step.last_observations is not None:
            last = self._to_arrays({path: leaf[chosen] for path, leaf in step.last_observations.items()})
        for index, row in enumerate(rows):
            infos[row]["episode"] = {name: column[index] for name, column in columns.items()}
            if successes is not None:
                infos[row]["is_success"] = successes[index]
            if isinstance(last, dict):
                infos[row]["terminal_observation"] = {path: leaf[index] for path, leaf in last.items()}
            elif last is not None:
                infos[row]["terminal_observation"] = last[index]
        return infos

    def __len__(self) -> int:
        return len(self._step.rewards)

    def __getitem__(self, index: Any) -> Any:
        return self._infos[index]


def _is_number(dtype: torch.dtype) -> bool:
    """Whether numpy has the type, and it holds no complex numbers."""
    return not dtype.is_complex and dtype is not torch.bfloat16


def _is_flag(dtype: torch.dtype) -> bool:
    return dtype is torch.bool


def action_types(space: Space) -> dict[str, torch.dtype]:
    """Types of actions by leaf path as environments of tensors get them: int64 for classes, else those of the space."""
    counted = (spaces.Discrete, spaces.MultiDiscrete)
    return {
        path: torch.int64 if isinstance(leaf, counted) else torch_type(leaf.dtype)
        for path, leaf in leaf_spaces(space).items()
    }
