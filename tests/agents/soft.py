"""Small agents of soft actor-critic, whose policies and values are far from constant."""

from functools import partial
from typing import Any

import numpy as np
import torch
from gymnasium import spaces
from stable_baselines3.common.vec_env import DummyVecEnv, VecEnv
from torch import Tensor

from rltransformers.agents import GTrXLSAC
from rltransformers.data.replay import Draw
from tests.agents.replayed import EVERYTHING, N_STEP, SEGMENT, TINY
from tests.agents.tiny_envs import Walk


class Step(Walk):
    """A ``Walk`` with any actions, whose reward is the mean of their numbers; checks what it gets."""

    def __init__(self, action_space: spaces.Space[Any], lengths: tuple[int, ...], truncates: bool) -> None:
        super().__init__(lengths, truncates)
        self.action_space = action_space

    def step(self, action: Any) -> tuple[Any, float, bool, bool, dict[str, Any]]:
        assert self.action_space.contains(action), f"{action!r} is not in {self.action_space}"
        numbers: Any = spaces.flatten(self.action_space, action)
        return super().step([float(numbers.mean())])


BOX = spaces.Box(np.array([-2.0, 0.5], np.float32), np.array([2.0, 1.5], np.float32))
CHOICES = spaces.MultiDiscrete([2, 3], start=[4, 0])
MIXED = spaces.Dict(
    {
        "a": spaces.Box(-1.0, 3.0, (2, 1)),
        "b": spaces.Discrete(3, start=5),
        "c": spaces.MultiBinary(2),
        "d": spaces.Box(-5, 9, (1,), np.int16),
    }
)
SPACES: dict[str, spaces.Space[Any]] = {"box": BOX, "choices": CHOICES, "mixed": MIXED}


def walks(space: spaces.Space[Any] = BOX, lengths: tuple[int, ...] = (5, 9, 30, 3)) -> VecEnv:
    """One environment per length; the first episodes of 9 and 3 steps, and all later ones, a limit cuts."""
    return DummyVecEnv([partial(Step, space, (length, 4, 7), length in (9, 3)) for length in lengths])


def soft(env: Any = None, backbone: dict[str, Any] | None = None, policy: Any = None, **settings: Any) -> GTrXLSAC:
    """An agent of raw rewards with small networks."""
    chosen: dict[str, Any] = {
        "buffer_size": 4 * 60,
        "learning_starts": 0,
        "batch_size": 3,
        "segment_length": SEGMENT,
        "train_freq": 6,
        "n_step": N_STEP,
        "scale_rewards": False,
        "seed": 0,
        "device": "cpu",
    } | settings
    kwargs = {"backbone": TINY | (backbone or {}), "head_width": 24} | EVERYTHING | (policy or {})
    model = GTrXLSAC("GTrXLSACPolicy", walks() if env is None else env, policy_kwargs=kwargs, **chosen)
    with torch.no_grad():
        model.policy.action_head.linear.weight.mul_(50.0)
        for parameter in model.policy.target.parameters():
            parameter.add_(0.05 * torch.sin(torch.arange(parameter.numel()).float()).view_as(parameter))
    return model


def all_segments(model: GTrXLSAC) -> Draw:
    assert model.replay_buffer is not None
    oldest, counts = model.replay_buffer.eligible()
    rows = np.repeat(np.arange(model.n_envs), counts)
    numbers = np.concatenate([np.arange(o, o + c) for o, c in zip(oldest, counts, strict=True)])
    return Draw(rows, numbers, torch.ones(len(rows)))


def vector(parameters: Any) -> Tensor:
    return torch.nn.utils.parameters_to_vector(list(parameters)).detach().clone()
