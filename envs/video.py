"""Episodes as mp4 files, recorded by Gymnasium's ``RecordVideo``, and whether an environment can be recorded."""

import os
import sys
import warnings
from collections.abc import Mapping, Sequence
from typing import Any

import gymnasium
import numpy as np
from gymnasium.wrappers import RecordVideo

from rltransformers.core.errors import ConfigError, one_line, require
from rltransformers.envs.make import EnvironmentSource, WrapperConfig, Wrappers, make_env

DISPLAYS = {"DISPLAY", "WAYLAND_DISPLAY", "SDL_VIDEODRIVER"}
"""Variables of which one is set where pygame has something to draw on."""


class EpisodeVideo(RecordVideo[Any, Any]):
    """Records some of the episodes that begin with a seed, as those of an evaluation do; others only fill the time.

    Args:
        folder: for the videos; made where it is missing.
        names: file names without ending by the number of the episode, from 0.
    """

    def __init__(self, env: gymnasium.Env[Any, Any], folder: str, names: Mapping[int, str]) -> None:
        self._names, self._number, self._wanted = names, -1, False
        with warnings.catch_warnings():
            warnings.simplefilter("ignore")  # that the folder exists
            super().__init__(env, folder, episode_trigger=lambda _: self._wanted)

    def reset(self, *, seed: int | None = None, options: dict[str, Any] | None = None) -> tuple[Any, dict[str, Any]]:
        self._number += seed is not None
        self._wanted = seed is not None and self._number in self._names
        return super().reset(seed=seed, options=options)

    def start_recording(self, video_name: str) -> None:
        super().start_recording(self._names[self._number])


def check_recordable(env_id: str, env_kwargs: Mapping[str, Any], wrappers: Sequence[WrapperConfig]) -> None:
    """Raise ConfigError unless a frame can be drawn, with the ``render_mode`` of ``env_kwargs``.

    Raises MissingExtraError without MoviePy.
    """
    require("moviepy", "video")
    if (fault := drawing_fault(env_id, env_kwargs, wrappers)) is not None:
        raise ConfigError(f"{env_id} cannot be recorded: {fault}; leave --video out")


def drawing_fault(env_id: EnvironmentSource, env_kwargs: Mapping[str, Any], wrappers: Wrappers) -> str | None:
    """Try to draw a frame with the ``render_mode`` of ``env_kwargs``; return why that fails, None where it does not.

    On a Linux without display, pygame is told to draw without one: it would look for one, and complain.
    """
    if sys.platform == "linux" and not DISPLAYS & os.environ.keys():
        os.environ["SDL_VIDEODRIVER"] = "dummy"
    try:
        with warnings.catch_warnings():
            warnings.simplefilter("ignore")  # Gymnasium only warns of a render mode that is none
            env = make_env(env_id, env_kwargs=env_kwargs, wrappers=wrappers)
            try:
                env.reset(seed=0)
                frame: Any = env.render()
            finally:
                env.close()
    except Exception as error:  # whatever an environment raises that cannot draw itself, or lacks a package for it
        return one_line(error)
    if isinstance(frame, np.ndarray) and frame.ndim == 3:
        return None
    kind = "nothing" if frame is None else f"a {type(frame).__name__}"
    return f"with render_mode 'rgb_array' it draws {kind}, no image"
