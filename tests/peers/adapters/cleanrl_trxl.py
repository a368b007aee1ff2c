"""CleanRL's ``ppo_trxl.py``, which runs here as it is for two rollouts, with a learning rate of 0.

It is of Gymnasium 0.29: environments begin anew in the step that ends an episode, and tell of ends as they did then.
"""

import contextlib
import io
import itertools
import os
import runpy
import tempfile
from collections.abc import Iterator, Sequence
from pathlib import Path
from typing import Any
from unittest import mock

import gymnasium as gym
import numpy as np
import torch
from torch import Tensor

from rltransformers.conformance.adapters.rollouts import ACTIONS, LIMITS, ROLLOUT, Limited
from rltransformers.conformance.protocol import Bootstrap, Traits
from tests.peers.adapters.episodic_memory import PADDED, EpisodicMemory
from tests.peers.adapters.marcometer import EXEMPT
from tests.peers.sources import SOURCES

LAYERS, WIDTH = 2, 16


class Logged(Limited):
    """Remembers the observations of its episode; each environment made has the next of ``LIMITS``."""

    lengths: Iterator[int] = itertools.cycle(LIMITS)

    def __init__(self, render_mode: str | None = None) -> None:
        super().__init__(next(self.lengths))
        self.episode: list[np.ndarray] = []

    def reset(
        self, *, seed: int | None = None, options: dict[str, Any] | None = None
    ) -> tuple[np.ndarray, dict[str, Any]]:
        self.episode = []
        return super().reset(seed=seed, options=options)

    def _observe(self) -> np.ndarray:
        self.episode.append(super()._observe())
        return self.episode[-1]


class Vector(gym.vector.SyncVectorEnv):
    """As that of Gymnasium 0.29."""

    def __init__(self, functions: Any) -> None:
        super().__init__(functions, autoreset_mode=gym.vector.AutoresetMode.SAME_STEP)

    def step(self, actions: Any) -> Any:
        observations, rewards, terminated, truncated, infos = super().step(np.asarray(actions).reshape(-1))
        told = infos.pop("final_info", {}).get("episode")
        if told is not None:
            infos["final_info"] = [
                {"episode": {"r": each, "l": steps}} for each, steps in zip(told["r"], told["l"], strict=True)
            ]
        return observations, rewards, terminated, truncated, infos


class CleanRLPolicy(EpisodicMemory):
    """Outputs: log-probabilities of the actions, and value.

    Args:
        length: of the window, ``trxl_memory_length``; episodes have at most 40 steps.
    """

    def __init__(self, length: int) -> None:
        self.names = run(length)
        agent, longest = self.names["agent"], self.names["max_episode_steps"]
        super().__init__(
            Traits(full=length, exempt=EXEMPT | PADDED),
            agent,
            self._outputs,
            self.names["batched_index_select"],
            self.names["memory_mask"],
            self.names["memory_indices"],
            (longest, LAYERS, WIDTH),
            trims=True,
        )

    def _outputs(self, inputs: Tensor, window: Tensor, mask: Tensor, indices: Tensor) -> tuple[Tensor, Tensor]:
        outputs = []
        for action in range(ACTIONS):
            chosen = torch.full((len(inputs), 1), action)
            _, log_prob, _, value, new = self.net.get_action_and_value(inputs, window, mask, indices, chosen)
            outputs.append(log_prob)
        return torch.cat([*outputs, value[:, None]], -1), new

    def log_probabilities(self) -> tuple[Tensor, Tensor]:
        names = self.names
        return names["b_logprobs"][names["mb_inds"]].flatten(), names["newlogprob"].detach().flatten()

    def bootstraps(self) -> Sequence[Bootstrap]:
        """Of the end of the rollout: an episode that a limit cuts is one that has ended to the program."""
        episodes = [torch.as_tensor(np.stack(env.unwrapped.episode)) for env in self.names["envs"].envs]
        values = self.names["next_value"].tolist()
        return [
            Bootstrap(episode, value, f"environment {row}, end of the rollout")
            for row, (episode, value) in enumerate(zip(episodes, values, strict=True))
        ]


def run(length: int) -> dict[str, Any]:
    """The names that the program leaves behind after two rollouts."""
    gym.register("Logged-v0", lambda **arguments: Logged(**arguments), max_episode_steps=max(LIMITS))
    words = {
        "env-id": "Logged-v0", "num-envs": len(LIMITS), "num-steps": ROLLOUT, "num-minibatches": 1, "update-epochs": 1,
        "total-timesteps": 2 * ROLLOUT * len(LIMITS), "init-lr": 0, "final-lr": 0, "trxl-num-layers": LAYERS,
        "trxl-num-heads": 2, "trxl-dim": WIDTH, "trxl-memory-length": length,
    }  # fmt: skip
    arguments = ["ppo_trxl.py", "--no-cuda", *(f"--{name}={value}" for name, value in words.items())]
    program = Path(SOURCES["cleanrl"].folders[0]) / "ppo_trxl.py"
    Logged.lengths = itertools.cycle(LIMITS)
    before = os.getcwd()
    with (
        tempfile.TemporaryDirectory() as folder,
        contextlib.redirect_stdout(io.StringIO()),
        mock.patch("sys.argv", arguments),
        mock.patch("gymnasium.vector.SyncVectorEnv", Vector),
        torch.enable_grad(),
    ):
        os.chdir(folder)  # it writes for TensorBoard
        try:
            return runpy.run_path(str(program), run_name="__main__")
        finally:
            os.chdir(before)
