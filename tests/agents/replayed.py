"""Small agents that learn from replay, and what they said while they acted."""

from collections.abc import Callable
from functools import partial
from typing import Any
from unittest.mock import patch

import numpy as np
import torch
from stable_baselines3.common.vec_env import DummyVecEnv, VecEnv
from torch import Tensor

from rltransformers.agents import GTrXLDQN
from rltransformers.data.replay import Draw, SegmentReplay, Window, draw_segments
from tests.agents.tiny_envs import Stroll

TINY = {"preset": "gtrxl", "width": 16, "layers": 2, "heads": 2, "memory": 3}
EVERYTHING = {"previous_action": True, "previous_reward": True, "first_step": True}
SEGMENT, N_STEP = 5, 2


def strolls(lengths: tuple[int, ...] = (5, 9, 30, 3), truncated: tuple[int, ...] = (9, 3)) -> VecEnv:
    """One environment per length; the first episodes of those in ``truncated``, and all later ones, a limit cuts."""
    return DummyVecEnv([partial(Stroll, (length, 4, 7), length in truncated) for length in lengths])


def agent(env: Any = None, backbone: dict[str, Any] | None = None, policy: Any = None, **settings: Any) -> GTrXLDQN:
    """An agent whose values are far from constant: differences in memory must show.

    Of raw rewards: acting read them under the statistics of its step, a replay under those of the day.
    """
    chosen: dict[str, Any] = {
        "buffer_size": 4 * 60,
        "learning_starts": 0,
        "batch_size": 3,
        "segment_length": SEGMENT,
        "train_freq": 6,
        "n_step": N_STEP,
        "exploration": 0.5,
        "scale_rewards": False,
        "seed": 0,
        "device": "cpu",
    } | settings
    kwargs = {"backbone": TINY | (backbone or {})} | (EVERYTHING if policy is None else policy)
    model = GTrXLDQN("GTrXLQPolicy", strolls() if env is None else env, policy_kwargs=kwargs, **chosen)
    loud(model)
    return model


def loud(model: GTrXLDQN) -> None:
    """Enlarge the head, whose first outputs are nearly constant; the target network becomes another one."""
    with torch.no_grad():
        model.policy.action_head.linear.weight.mul_(50.0)
    model.policy.follow(1.0)
    with torch.no_grad():
        for parameter in model.policy.target.parameters():
            parameter.add_(0.05 * torch.sin(torch.arange(parameter.numel()).float()).view_as(parameter))


def replay_of(model: Any) -> SegmentReplay:
    replay: SegmentReplay = model.replay_buffer
    return replay


def draw_from(replay: SegmentReplay, count: int, generator: torch.Generator, prioritized: bool = False) -> Draw:
    """Some segments of a replay, drawn as in an update."""
    return draw_segments(*replay.eligible(), replay.priorities, count, generator, prioritized)


def train_on(model: Any, window: Window) -> dict[str, float]:
    """Metrics of an update on this window in place of a drawn one."""
    with patch("rltransformers.training.online.replay_data.own_window", lambda *_: window):
        model.train(1, len(window.weights))
    metrics: dict[str, float] = model.logger.name_to_value
    return metrics


def first_part(result: Any) -> Tensor:
    found: Tensor = result[0]
    return found


def collect(
    model: Any, steps: int, fresh: bool = False, read: Callable[[Any], Tensor] = first_part
) -> list[list[Tensor | None]]:
    """So many steps of every environment without an update; values [A] of every row, None for last observations.

    ``read`` takes what ``network_step`` returns.
    """
    _, callback = model._setup_learn(10**6, reset_num_timesteps=fresh)
    replay, said = replay_of(model), []
    found: list[list[Tensor | None]] = [[] for _ in range(model.n_envs)]
    network_step, add, add_last = model.policy.network_step, replay.add, replay.add_last

    def listening(*args: Any, **kwargs: Any) -> Any:
        result = network_step(*args, **kwargs)
        said.append(read(result).clone())
        return result

    def adding(*args: Any) -> None:
        before = replay.written.copy()
        add(*args)
        for row in np.flatnonzero(replay.written > before):
            found[row].append(said[-1][row])

    def adding_last(rows: list[int], observations: Any) -> None:
        before = replay.written.copy()
        add_last(rows, observations)
        for row in np.flatnonzero(replay.written > before):
            found[row].append(None)

    model.policy.network_step = listening
    replay.add, replay.add_last = adding, adding_last  # type: ignore[method-assign, assignment]
    try:
        assert model.env is not None
        model.collect_rollouts(model.env, callback, model.train_freq._replace(frequency=steps), replay)
    finally:
        del model.policy.network_step, replay.add, replay.add_last
    return found
