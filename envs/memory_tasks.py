"""Our memory tasks as Gymnasium environments: a scalar and a vectorized form of the same rules. N: copies.

The scalar environment seeded with s + i sees the episodes of copy i of the vector environment seeded with s.
"""

from collections.abc import Callable, Sequence
from typing import Any, ClassVar

import gymnasium
import numpy as np
from gymnasium.error import InvalidAction, ResetNeeded
from gymnasium.spaces import Discrete
from gymnasium.utils import seeding
from gymnasium.vector import AutoresetMode, VectorEnv
from gymnasium.vector.utils import batch_space

from rltransformers.core.errors import ConfigError, did_you_mean
from rltransformers.core.ranges import annotations, check_settings
from rltransformers.envs import memory_rules
from rltransformers.envs.memory_rules import Array, Rules, RulesOutcome, State


class MemoryTask(gymnasium.Env[Array, Any]):
    """One copy of a memory task; its options are those of its rules.

    The info of the last step holds ``is_success``. The time limit belongs to the rules (``rules.horizon``); it ends an
    episode by termination, but for ``Stitching``, ``ProofOfMemory`` and ``DistractorTMaze``, which truncate it.

    Raises:
        ConfigError: for an unknown or impossible option.
        TypeError: for a ``render_mode``.
    """

    metadata: dict[str, Any] = {"render_modes": []}
    rules_type: ClassVar[Callable[..., Rules]]

    def __init__(self, **options: Any) -> None:
        self.rules = _rules(self.rules_type, options)
        self.observation_space = self.rules.observation_space
        self.action_space = self.rules.action_space
        self._state: State | None = None

    def reset(self, *, seed: int | None = None, options: dict[str, Any] | None = None) -> tuple[Array, dict[str, Any]]:
        super().reset(seed=seed)
        self._state = self.rules.start(self.np_random.random((1, self.rules.draws)))
        return self.rules.observe(self._state)[0], {}

    def step(self, action: Any) -> tuple[Array, float, bool, bool, dict[str, Any]]:
        outcome = _step(
            self.rules, self.action_space, self._state, np.reshape(action, (1, *(self.action_space.shape or ())))
        )
        self._state, terminated = outcome.state, bool(outcome.terminated[0])
        truncated = outcome.truncated is not None and bool(outcome.truncated[0])
        info = {"is_success": bool(outcome.success[0])} if terminated or truncated else {}
        return self.rules.observe(self._state)[0], float(outcome.reward[0]), terminated, truncated, info


class MemoryTaskVector(VectorEnv[Array, Array, Array]):
    """N copies of a memory task in one numpy program; all three Gymnasium autoreset modes.

    ``reset(options={"reset_mask": mask})`` resets the copies under a boolean mask [N] and leaves the others alone, in
    every mode. Infos, ``final_obs`` and ``final_info`` are laid out as ``gymnasium.vector.SyncVectorEnv`` does.

    Args:
        autoreset_mode: an ``AutoresetMode`` or its value ("NextStep", "SameStep", "Disabled").
        options: those of the rules; errors are those of ``MemoryTask``.
    """

    rules_type: ClassVar[Callable[..., Rules]]
    takes_seeds: ClassVar[bool] = True

    def __init__(
        self, num_envs: int = 1, autoreset_mode: AutoresetMode | str = AutoresetMode.NEXT_STEP, **options: Any
    ) -> None:
        if num_envs < 1:
            raise ConfigError(f"num_envs must be at least 1, got {num_envs}")
        self.rules = _rules(self.rules_type, options)
        self.num_envs = num_envs
        modes = [mode.value for mode in AutoresetMode]
        if autoreset_mode not in (*AutoresetMode, *modes):
            raise ConfigError(f"unknown autoreset_mode {autoreset_mode!r}; {did_you_mean(autoreset_mode, modes)}")
        self.autoreset_mode = AutoresetMode(autoreset_mode)
        self.metadata = {"render_modes": [], "autoreset_mode": self.autoreset_mode}
        self.single_observation_space = self.rules.observation_space
        self.single_action_space = self.rules.action_space
        self.observation_space = batch_space(self.single_observation_space, num_envs)
        self.action_space = batch_space(self.single_action_space, num_envs)
        self._generators: list[np.random.Generator] = []
        self._state: State | None = None
        self._ended = np.zeros(num_envs, bool)

    def reset(
        self, *, seed: int | Sequence[int | None] | None = None, options: dict[str, Any] | None = None
    ) -> tuple[Array, dict[str, Any]]:
        mask = self._reset_mask(options)
        seeds = self._seeds(seed)
        if not self._generators:
            self._generators = [seeding.np_random(seed_i)[0] for seed_i in seeds]
        for i, seed_i in enumerate(seeds):
            if seed_i is not None and mask[i]:
                self._generators[i] = seeding.np_random(seed_i)[0]
        self._restart(mask)
        assert self._state is not None
        return self.rules.observe(self._state), {}

    def step(self, actions: Array) -> tuple[Array, Array, Array, Array, dict[str, Any]]:
        if self.autoreset_mode is AutoresetMode.DISABLED and np.count_nonzero(self._ended):
            raise ResetNeeded(f"copies {np.flatnonzero(self._ended).tolist()} ended; reset them with a reset_mask")
        actions = np.asarray(actions)
        if actions.shape != self.action_space.shape:
            raise InvalidAction(f"actions must have shape {self.action_space.shape}, got {actions.shape}")
        restarted = self._ended
        outcome = _step(self.rules, self.single_action_space, self._state, actions)
        self._state, reward, terminated = outcome.state, outcome.reward, outcome.terminated
        truncated = np.zeros(self.num_envs, bool) if outcome.truncated is None else outcome.truncated
        if np.count_nonzero(restarted):  # only NEXT_STEP comes here with ended copies: their action is ignored
            self._restart(restarted)
            reward = np.where(restarted, 0.0, reward)
            terminated, truncated = terminated & ~restarted, truncated & ~restarted
        infos: dict[str, Any] = {}
        ended = terminated | truncated
        some_ended = np.count_nonzero(ended) > 0
        if some_ended:
            infos = {"is_success": outcome.success & ended, "_is_success": ended.copy()}
        if self.autoreset_mode is not AutoresetMode.SAME_STEP:
            self._ended = ended.copy()
        elif some_ended:
            final_obs, observation = np.full(self.num_envs, None, dtype=object), self.rules.observe(self._state)
            for i in np.flatnonzero(ended):
                final_obs[i] = observation[i]
            final = {"final_obs": final_obs, "final_info": infos}
            infos = final | {"_final_obs": ended.copy(), "_final_info": ended.copy()}
            self._restart(ended)
        return self.rules.observe(self._state), reward, terminated, truncated, infos

    def state_dict(self) -> dict[str, Any]:
        """Everything the coming episodes depend on: the running episodes and the generators (see ``envs.saving``)."""
        return {
            "generators": [generator.bit_generator.state for generator in self._generators],
            "episodes": None if self._state is None else {name: value.copy() for name, value in self._state.items()},
            "ended": self._ended.copy(),
        }

    def load_state_dict(self, state: dict[str, Any]) -> None:
        """Go on where ``state_dict`` was called on a task with the same options."""
        if len(state["ended"]) != self.num_envs:
            raise ConfigError(f"the state is that of {len(state['ended'])} copies, this task has {self.num_envs}")
        self._generators = [seeding.np_random(0)[0] for _ in state["generators"]]
        for generator, stored in zip(self._generators, state["generators"], strict=True):
            generator.bit_generator.state = stored
        episodes = state["episodes"]
        self._state = None if episodes is None else {name: value.copy() for name, value in episodes.items()}
        self._ended = state["ended"].copy()

    def _restart(self, mask: Array) -> None:
        """New episodes for the copies under the mask; draws only from their generators."""
        rows = np.flatnonzero(mask)
        fresh = self.rules.start(np.stack([self._generators[i].random(self.rules.draws) for i in rows]))
        if self._state is None or len(rows) == self.num_envs:
            self._state = fresh
        else:
            self._state = {name: value.copy() for name, value in self._state.items()}
            for name, value in self._state.items():
                value[rows] = fresh[name]
        self._ended = self._ended & ~mask

    def _seeds(self, seed: int | Sequence[int | None] | None) -> Sequence[int | None]:
        if seed is None:
            return [None] * self.num_envs
        if isinstance(seed, int | np.integer):
            return [int(seed) + i for i in range(self.num_envs)]
        if len(seed) != self.num_envs:
            raise ConfigError(f"one seed per copy is needed: {self.num_envs} copies, {len(seed)} seeds")
        return seed

    def _reset_mask(self, options: dict[str, Any] | None) -> Array:
        if options is None or "reset_mask" not in options:
            return np.ones(self.num_envs, bool)
        mask = np.asarray(options["reset_mask"])
        if mask.shape != (self.num_envs,) or mask.dtype != np.bool_ or not mask.any():
            raise ConfigError(f"reset_mask must be {self.num_envs} booleans with at least one True, got {mask!r}")
        if self._state is None and not mask.all():
            raise ResetNeeded("the first reset must be of all copies")
        return mask


def _rules(rules_type: Callable[..., Rules], options: dict[str, Any]) -> Rules:
    if "render_mode" in options:  # ``make_vec_env`` of Stable-Baselines3 asks for one first, and reads TypeError as no
        raise TypeError("memory tasks draw nothing; leave out render_mode")
    return rules_type(**check_settings(annotations(rules_type), options))


def _step(rules: Rules, action_space: Any, state: State | None, actions: Array) -> RulesOutcome:
    if state is None:
        raise ResetNeeded("call reset before the first step")
    counts = isinstance(action_space, Discrete)
    low, high = (0, action_space.n - 1) if counts else (action_space.low, action_space.high)
    kinds = "biu" if counts else "biuf"
    if actions.dtype.kind not in kinds or np.count_nonzero((actions >= low) & (actions <= high)) < actions.size:
        rule = f"lie in {np.min(low)}..{np.max(high)}{' and be integers' if counts else ''}"
        raise InvalidAction(f"actions must {rule}, got {actions.tolist()} ({actions.dtype})")
    return rules.step(state, actions)


TASKS = (
    "CueRecall", "PassiveTMaze", "ActiveTMaze", "KeyToDoor",
    "Stitching", "ProofOfMemory", "DistractorTMaze", "EndlessTMaze",
    "MovingCue", "LastKey", "Parity", "Dihedral",
    "TwoGates",
)  # fmt: skip
"""Names of tasks and of their rules; the classes ``<name>`` and ``<name>Vector`` stand in this module."""


for _name in TASKS:
    _members = {
        "__module__": __name__,
        "__doc__": f"``rltransformers/{_name}-v0``; rules: ``memory_rules.{_name}``.",
        "rules_type": getattr(memory_rules, _name),
    }
    globals()[_name] = type(_name, (MemoryTask,), _members)
    globals()[f"{_name}Vector"] = type(f"{_name}Vector", (MemoryTaskVector,), _members)


def register_tasks() -> None:
    """Registers the tasks with Gymnasium under ``rltransformers/<name>-v0``."""
    for name in TASKS:
        gymnasium.register(
            id=f"rltransformers/{name}-v0",
            entry_point=f"{__name__}:{name}",
            vector_entry_point=f"{__name__}:{name}Vector",
        )
