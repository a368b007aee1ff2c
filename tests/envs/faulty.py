"""An environment with one fault; a module of its own, because processes import it anew."""

import os
from typing import Any

import gymnasium
import numpy as np
from gymnasium import spaces


class Wrong(gymnasium.Env[Any, Any]):
    """Returns or raises at its second step what ``fault`` names; only in the copy with seed 11."""

    def __init__(self, fault: str = "nothing", at: int = 2) -> None:
        self.observation_space = spaces.Dict(
            {
                "box": spaces.Box(-1.0, 1.0, (3,), np.float32),
                "count": spaces.Discrete(4),
                "picture": spaces.Box(0, 255, (2, 3), np.uint8),
            }
        )
        self.action_space = spaces.Discrete(2)
        self.fault, self.at, self.t, self.copy = fault, at, 0, 0

    def reset(self, *, seed: int | None = None, options: dict[str, Any] | None = None) -> tuple[Any, dict[str, Any]]:
        self.t, self.copy = 0, seed if seed is not None else self.copy
        return (self._observation(), {})

    def step(self, action: Any) -> Any:
        self.t += 1
        results: list[Any] = [self._observation(), 1.0, False, False, {}]
        if self.fault in RESULTS and self._wrong():
            place, value = RESULTS[self.fault]
            results[place] = value
        if self.fault == "too few" and self._wrong():
            results.pop()
        return tuple(results)

    def _wrong(self) -> bool:
        return self.t == self.at and self.copy == 11

    def _observation(self) -> Any:
        observation: dict[str, Any] = {"box": np.zeros(3, np.float32), "count": 1, "picture": np.ones((2, 3), np.uint8)}
        if self.fault == "exit" and self._wrong():
            os._exit(7)
        if self.fault == "raises" and self._wrong():
            raise ZeroDivisionError("the pole\nbroke")
        if self.fault == "missing" and self._wrong():
            del observation["count"]
        if self.fault in OBSERVATIONS and self._wrong():
            leaf, value = OBSERVATIONS[self.fault]
            observation[leaf] = value
        return observation


class AlwaysWrong(Wrong):
    """The same in a copy of any seed."""

    def _wrong(self) -> bool:
        return self.t == self.at


OBSERVATIONS: dict[str, tuple[str, Any]] = {
    "broadcast": ("box", np.zeros(1, np.float32)),
    "longer": ("box", np.zeros(4, np.float32)),
    "text": ("box", np.array(["1.0"] * 3)),
    "complex": ("box", np.zeros(3, complex)),
    "objects": ("box", [None] * 3),
    "overflow": ("box", np.full(3, 1e39)),
    "class": ("count", 4),
    "negative class": ("count", -1),
    "half a class": ("count", 0.5),
    "bright": ("picture", np.full((2, 3), 256)),
}
RESULTS: dict[str, tuple[int, Any]] = {
    "no reward": (1, None),
    "text reward": (1, "1.0"),
    "complex reward": (1, 1j),
    "huge reward": (1, 1e39),
    "nan reward": (1, float("nan")),
    "two rewards": (1, np.ones(2)),
    "a row of one reward": (1, np.ones(1)),
    "no flag": (2, None),
    "half a flag": (2, 0.5),
    "nan flag": (3, float("nan")),
    "text flag": (3, "False"),
}
