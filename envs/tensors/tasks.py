"""Our memory tasks, classic control and POPGym's RepeatPrevious as programs in tensors. N environments.

Each is the twin of an environment in numpy and computes the same: from the same random numbers and actions the same
observations, rewards and ends. Positions and angles are float64, as there.
"""

import math
from abc import abstractmethod
from collections.abc import Callable
from typing import Annotated, Any, ClassVar

import numpy as np
import torch
from annotated_types import Ge, Le
from gymnasium import spaces
from torch import Tensor

from rltransformers.core.errors import ConfigError, did_you_mean
from rltransformers.core.modules import named_object
from rltransformers.core.ranges import annotations, check, check_settings
from rltransformers.core.spaces import Space
from rltransformers.envs import memory_rules
from rltransformers.envs.memory_rules import DOWN, LEFT, RIGHT, UP, Rules
from rltransformers.envs.memory_rules.interface import Length
from rltransformers.envs.tensors.base import Outcome, TensorVecEnv
from rltransformers.envs.tensors.streams import random_below, random_bits, random_shares, random_words
from rltransformers.functional.windows import match_axes

State = dict[str, Tensor]


TENSOR_TASKS: dict[str, tuple[str, dict[str, Any]]] = {
    **{
        f"rltransformers/{name}-v0": (name, {}) for name in ("CueRecall", "PassiveTMaze", "ActiveTMaze", "EndlessTMaze")
    },
    "CartPole-v1": ("CartPole", {}),
    "CartPole-v0": ("CartPole", {"max_episode_steps": 200}),
    "Pendulum-v1": ("Pendulum", {}),
    "popgym-RepeatPreviousEasy-v0": ("RepeatPrevious", {}),
    "popgym-RepeatPreviousMedium-v0": ("RepeatPrevious", {"num_decks": 2, "k": 32}),
    "popgym-RepeatPreviousHard-v0": ("RepeatPrevious", {"num_decks": 3, "k": 64}),
}
"""Ids of environments that have a form in tensors: the class in this module, and its options."""


def tensor_source(env_id: str) -> tuple[Callable[..., Any], dict[str, Any]]:
    """What makes the environments of an id, one of ``TENSOR_TASKS`` or "module:function", and the options it gets.

    Raises:
        ConfigError: for another id, and for a module or a function that is not there.
    """
    if env_id in TENSOR_TASKS:
        name, options = TENSOR_TASKS[env_id]
        return globals()[name], options
    if ":" not in env_id:
        raise ConfigError(
            f"{env_id!r} has no form in tensors; {did_you_mean(env_id, TENSOR_TASKS)} "
            "(a TensorVecEnv of yours: 'module:function')"
        )
    make = named_object(env_id, "environment")
    if not callable(make):
        raise ConfigError(f"environment {env_id!r} is no function or class that makes a TensorVecEnv")
    return make, {}


class TensorTask(TensorVecEnv):
    """Environments whose rules are pure functions of a state: they begin, save and resume by themselves.

    A subclass has ``draws``, ``start``, ``observe`` and ``follow``.
    """

    draws: ClassVar[int]
    """How many uniform numbers the beginning of an episode takes."""

    def __init__(
        self, num_envs: int, observation_space: Space, action_space: Space, device: torch.device | str = "auto"
    ) -> None:
        super().__init__(num_envs, observation_space, action_space, device)
        self.state: State = {}
        self._never = torch.zeros(num_envs, dtype=torch.bool, device=self.device)

    @abstractmethod
    def start(self, uniform: Tensor) -> State:
        """The first state of episodes from uniform numbers float64 [N, draws]."""

    @abstractmethod
    def observe(self, state: State) -> Tensor:
        """Observations of a state."""

    @abstractmethod
    def follow(self, state: State, actions: Tensor) -> tuple[State, Tensor, Tensor, Tensor, Tensor | None]:
        """The next state, rewards, whether episodes terminate, are truncated, and succeed; all [N]."""

    def begin(self, mask: Tensor) -> Tensor:
        fresh = self.start(self.draw(mask, self.draws))
        if self.state:
            fresh = {name: torch.where(match_axes(mask, new), new, self.state[name]) for name, new in fresh.items()}
        self.state = fresh
        return self.observe(fresh)

    def advance(self, actions: Tensor) -> Outcome:
        if not self.state:
            raise ConfigError("call reset before the first step")
        self.state, rewards, terminated, truncated, successes = self.follow(self.state, actions)
        return Outcome(self.observe(self.state), rewards, terminated, truncated, successes)


# Memory tasks


class MemoryTaskTensors(TensorTask):
    """A memory task; options, spaces and errors are those of its rules in ``memory_rules``."""

    rules_type: ClassVar[Callable[..., Rules]]

    def __init__(self, num_envs: int = 1, device: torch.device | str = "auto", **options: Any) -> None:
        self.rules: Any = self.rules_type(**check_settings(annotations(self.rules_type), options))
        super().__init__(num_envs, self.rules.observation_space, self.rules.action_space, device)


class CueRecall(MemoryTaskTensors):
    """``rltransformers/CueRecall-v0`` in tensors."""

    rules_type = memory_rules.CueRecall
    draws = 1

    def start(self, uniform: Tensor) -> State:
        drawn = self.rules.cues * uniform[:, 0]
        cue, zero = drawn.to(torch.int64), torch.zeros_like(drawn, dtype=torch.int64)
        delay = log_uniform(drawn - cue, self.rules.shortest_delay, self.rules.delay)
        return {"cue": cue, "due": zero + delay + 1, "t": zero}

    def observe(self, state: State) -> Tensor:
        cues = torch.arange(self.rules.cues, device=self.device)
        shown = (state["cue"][:, None] == cues) & (state["t"] == 0)[:, None]
        return torch.cat([shown, (state["t"] == state["due"])[:, None]], 1).to(torch.float32)

    def follow(self, state: State, actions: Tensor) -> tuple[State, Tensor, Tensor, Tensor, Tensor]:
        answered = state["t"] == state["due"]
        right = answered & (actions == state["cue"])
        return state | {"t": state["t"] + 1}, right.to(torch.float64), answered, self._never, right


class PassiveTMaze(MemoryTaskTensors):
    """``rltransformers/PassiveTMaze-v0`` in tensors."""

    rules_type: ClassVar[Callable[..., Rules]] = memory_rules.PassiveTMaze
    draws = 1

    def start(self, uniform: Tensor) -> State:
        detour, zero = self.rules.detour, torch.zeros(len(uniform), dtype=torch.int64, device=self.device)
        side = (2 * uniform[:, 0]).to(torch.int64)
        corridor = log_uniform(2 * uniform[:, 0] - side, self.rules.shortest_corridor, self.rules.corridor)
        return {
            "x": zero + detour,
            "y": zero,
            "end": detour + corridor,
            "goal": 2 * side - 1,
            "shown": zero > 0,
            "t": zero,
        }

    def observe(self, state: State) -> Tensor:
        at_cue = (state["x"] == 0) & ~state["shown"]
        at_junction = state["x"] == state["end"]
        second = torch.where(at_junction, state["y"], state["goal"] * at_cue)
        return torch.stack([at_junction.to(second.dtype), second], 1).to(torch.float32)

    def follow(self, state: State, actions: Tensor) -> tuple[State, Tensor, Tensor, Tensor, Tensor]:
        detour = self.rules.detour
        x, y, end, t = state["x"], state["y"], state["end"], state["t"] + 1
        along = (actions == RIGHT).to(torch.int64) - (actions == LEFT).to(torch.int64)
        across = (actions == UP).to(torch.int64) - (actions == DOWN).to(torch.int64)
        moved_x = torch.where(y == 0, torch.minimum((x + along).clamp(min=0), end), x)
        moved_y = torch.where(x == end, (y + across).clamp(-1, 1), y)
        last = end + detour + 1
        terminated = t >= last
        success = terminated & (moved_y == state["goal"])
        behind = ~terminated & (moved_x < t - detour)
        reward = success.to(torch.float64) - behind.to(torch.float64) / (last - 1)
        walked = {"x": moved_x, "y": moved_y, "shown": state["shown"] | (x == 0), "t": t}
        return state | walked, reward, terminated, self._never, success


class ActiveTMaze(PassiveTMaze):
    """``rltransformers/ActiveTMaze-v0`` in tensors."""

    rules_type = memory_rules.ActiveTMaze


class EndlessTMaze(MemoryTaskTensors):
    """``rltransformers/EndlessTMaze-v0`` in tensors."""

    rules_type = memory_rules.EndlessTMaze
    draws = 1

    def start(self, uniform: Tensor) -> State:
        seed = (uniform[:, 0] * 2.0**53).to(torch.int64)
        return {"seed": seed, **self._corridor(seed, torch.zeros_like(seed))}

    def observe(self, state: State) -> Tensor:
        first = state["cell"] == 0
        cue = [first & (state["side"] == side) for side in (0, 1)]
        return torch.stack([*cue, state["cell"] == state["end"]], 1).to(torch.float32)

    def follow(self, state: State, actions: Tensor) -> tuple[State, Tensor, Tensor, Tensor, Tensor]:
        turned = state["cell"] == state["end"]
        right = turned & (actions == state["side"])
        solved = right & (state["number"] == self.rules.junctions - 1)
        walked = state | {"cell": state["cell"] + 1}
        following = self._corridor(state["seed"], state["number"] + 1)
        entered = {name: torch.where(right, value, walked[name]) for name, value in following.items()}
        return walked | entered, right.to(torch.float64), solved | (turned & ~right), self._never, solved

    def _corridor(self, seed: Tensor, number: Tensor) -> State:
        """The first cell of the corridor with this number, 0 first: its last cell and the side of its cue."""
        longest = self.rules.corridor
        shortest = longest if self.rules.shortest_corridor is None else self.rules.shortest_corridor
        return {
            "number": number,
            "cell": torch.zeros_like(number),
            "end": shortest - 1 + random_below(random_words(seed, 2 * number), longest - shortest + 1),
            "side": random_bits(seed, 2 * number + 1).to(torch.int64),
        }


def log_uniform(uniform: Tensor, shortest: int | None, longest: int) -> Tensor:
    """Uniform numbers as whole numbers shortest..longest, as ``memory_rules.interface.log_uniform``."""
    if shortest is None:
        return torch.full_like(uniform, longest, dtype=torch.int64)
    return (shortest * ((longest + 1) / shortest) ** uniform).floor().to(torch.int64)


class RepeatPrevious(TensorTask):
    """POPGym's RepeatPrevious in tensors: name the suit of the card of ``k`` steps ago, card by card of shuffled decks.

    Cards are drawn from what is left of the decks, one per step, which deals them as a shuffle does. Observation and
    action: Discrete(4). Reward: 1 / (cards - k) for the right suit, minus that for another, nothing in the first steps.

    Args:
        num_decks: decks of 52 cards; an episode has a step for each card but the last.
        k: cards ago, the present one counted.

    Source: Morad et al. 2023, POPGym (arXiv 2303.01859).
    """

    draws = 1

    def __init__(
        self,
        num_envs: int = 1,
        device: torch.device | str = "auto",
        num_decks: Annotated[int, Ge(1), Le(10**4)] = 1,
        k: Length = 4,
    ) -> None:
        check(num_decks, Annotated[int, Ge(1), Le(10**4)], "num_decks")
        self.cards, self.k = 52 * num_decks, check(k, Annotated[int, Ge(1), Le(52 * num_decks - 1)], "k")
        super().__init__(num_envs, spaces.Discrete(4), spaces.Discrete(4), device)

    def start(self, uniform: Tensor) -> State:
        seed = (uniform[:, 0] * 2.0**53).to(torch.int64)
        left = torch.full((len(seed), 4), self.cards // 4, device=self.device)
        hand = torch.zeros((len(seed), self.k), dtype=torch.int64, device=self.device)
        return self._deal({"seed": seed, "t": torch.zeros_like(seed), "left": left, "hand": hand})

    def observe(self, state: State) -> Tensor:
        return state["hand"][:, -1]

    def follow(self, state: State, actions: Tensor) -> tuple[State, Tensor, Tensor, Tensor, None]:
        dealt = state["t"]
        right = torch.where(actions == state["hand"][:, 0], 1.0, -1.0).to(torch.float64)
        reward = right * (dealt >= self.k) / (self.cards - self.k)
        return self._deal(state), reward, dealt == self.cards - 1, self._never, None

    def _deal(self, state: State) -> State:
        """The state with one more card; behind the last one there is none to see, and the episode is over."""
        left, dealt = state["left"], state["t"]
        place = (random_shares(random_words(state["seed"], dealt)) * (self.cards - dealt)).to(torch.int64)
        suit = (place[:, None] >= left.cumsum(1)[:, :3]).sum(1)
        taken = suit[:, None] == torch.arange(4, device=self.device)
        hand = torch.cat([state["hand"][:, 1:], suit[:, None]], 1)
        return state | {"left": left - taken.to(left.dtype), "hand": hand, "t": dealt + 1}


# Classic control


class CartPole(TensorTask):
    """Gymnasium's CartPole-v1 in tensors.

    Args:
        max_episode_steps: where episodes are truncated.
        sutton_barto_reward: 0 per step and -1 for a fall, in place of 1 per step.
    """

    draws = 4

    def __init__(
        self,
        num_envs: int = 1,
        device: torch.device | str = "auto",
        max_episode_steps: Length = 500,
        sutton_barto_reward: bool = False,
    ) -> None:
        self.limit = check(max_episode_steps, Length, "max_episode_steps")
        self._sutton_barto = check(sutton_barto_reward, bool, "sutton_barto_reward")
        self.x_limit, self.angle_limit = 2.4, 12 * 2 * math.pi / 360
        high = np.array([2 * self.x_limit, np.inf, 2 * self.angle_limit, np.inf], np.float32)
        super().__init__(num_envs, spaces.Box(-high, high, dtype=np.float32), spaces.Discrete(2), device)

    def start(self, uniform: Tensor) -> State:
        return {
            "body": -0.05 + (0.05 - -0.05) * uniform,
            "t": torch.zeros(len(uniform), dtype=torch.int64, device=self.device),
        }

    def observe(self, state: State) -> Tensor:
        return state["body"].to(torch.float32)

    def follow(self, state: State, actions: Tensor) -> tuple[State, Tensor, Tensor, Tensor, None]:
        x, speed, angle, turning = state["body"].unbind(1)
        total_mass, pole_mass, half_length = 0.1 + 1.0, 0.1, 0.5
        mass_length = pole_mass * half_length
        force = torch.where(actions == 1, 10.0, -10.0).to(x.dtype)
        cosine, sine = angle.cos(), angle.sin()
        push = (force + mass_length * turning.square() * sine) / total_mass
        turn = (9.8 * sine - cosine * push) / (half_length * (4.0 / 3.0 - pole_mass * cosine.square() / total_mass))
        pull = push - mass_length * turn * cosine / total_mass
        x, speed = x + 0.02 * speed, speed + 0.02 * pull
        angle, turning = angle + 0.02 * turning, turning + 0.02 * turn
        fallen = (x.abs() > self.x_limit) | (angle.abs() > self.angle_limit)
        reward = torch.where(fallen, -1.0, 0.0) if self._sutton_barto else torch.ones_like(x)
        t = state["t"] + 1
        return {"body": torch.stack([x, speed, angle, turning], 1), "t": t}, reward, fallen, t >= self.limit, None


class Pendulum(TensorTask):
    """Gymnasium's Pendulum-v1 in tensors.

    Args:
        max_episode_steps: where episodes are truncated.
        g: acceleration of gravity in m/s^2.
    """

    draws = 2

    def __init__(
        self,
        num_envs: int = 1,
        device: torch.device | str = "auto",
        max_episode_steps: Length = 200,
        g: Annotated[float, Ge(-1e6), Le(1e6)] = 10.0,
    ) -> None:
        self.limit = check(max_episode_steps, Length, "max_episode_steps")
        self.g = check(g, Annotated[float, Ge(-1e6), Le(1e6)], "g")
        high = np.array([1.0, 1.0, 8.0], np.float32)
        super().__init__(num_envs, spaces.Box(-high, high, dtype=np.float32), spaces.Box(-2.0, 2.0, (1,)), device)

    def start(self, uniform: Tensor) -> State:
        return {
            "angle": -math.pi + (math.pi - -math.pi) * uniform[:, 0],
            "turning": -1.0 + (1.0 - -1.0) * uniform[:, 1],
            "t": torch.zeros(len(uniform), dtype=torch.int64, device=self.device),
        }

    def observe(self, state: State) -> Tensor:
        angle = state["angle"]
        return torch.stack([angle.cos(), angle.sin(), state["turning"]], 1).to(torch.float32)

    def follow(self, state: State, actions: Tensor) -> tuple[State, Tensor, Tensor, Tensor, None]:
        angle, turning, t = state["angle"], state["turning"], state["t"] + 1
        torque = actions[:, 0].clamp(-2.0, 2.0)
        upright = (angle + math.pi) % (2 * math.pi) - math.pi
        costs = upright**2 + 0.1 * turning**2 + 0.001 * torque**2
        turning = (turning + (3 * self.g / 2 * angle.sin() + 3.0 * torque) * 0.05).clamp(-8.0, 8.0)
        moved = {"angle": angle + turning * 0.05, "turning": turning, "t": t}
        return moved, -costs, self._never, t >= self.limit, None
