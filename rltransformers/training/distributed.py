"""Sharing between processes besides gradients: statistics of ``VecNormalize``, and sums that mixers learn from."""

from typing import Any

import numpy as np
import torch
from stable_baselines3.common.logger import Logger
from stable_baselines3.common.running_mean_std import RunningMeanStd
from stable_baselines3.common.vec_env import VecNormalize

from rltransformers.core.errors import ConfigError
from rltransformers.core.world import Traffic, World, current_world

EndedEpisode = tuple[dict[str, Any], bool]
"""An info about an episode, and whether the episode ended."""


class SharedMeanStd(RunningMeanStd):
    """Running mean and variance of what all processes see, where ``VecNormalize`` has those of its own environments."""

    def __init__(self, own: RunningMeanStd) -> None:
        super().__init__(shape=own.mean.shape)
        self.mean, self.var, self.count = own.mean, own.var, own.count

    def update(self, arr: np.ndarray) -> None:
        """Take in the arrays of all processes as one; sums are taken around the mean so far, for precision."""
        away = np.asarray(arr, np.float64) - self.mean
        sums = np.stack([away.sum(0), np.square(away).sum(0), np.full(self.mean.shape, len(arr), np.float64)])
        first, second, count = current_world().total(torch.from_numpy(sums)).numpy()
        number = float(count.flat[0])
        self.update_from_moments(self.mean + first / number, second / number - np.square(first / number), number)


def share_statistics(world: World, normalizer: VecNormalize | None) -> None:
    """Let the statistics of ``normalizer`` be those of the environments of all processes."""
    if world.alone or normalizer is None:
        return
    if normalizer.norm_obs:
        held: Any = normalizer.obs_rms
        if isinstance(held, dict):
            normalizer.obs_rms = {key: shared(each) for key, each in held.items()}
        else:
            normalizer.obs_rms = shared(held)  # type: ignore[assignment]  # SB3 declares the dictionary alone
    normalizer.ret_rms = shared(normalizer.ret_rms)


def shared(own: RunningMeanStd) -> RunningMeanStd:
    """The same statistics, which take in what all processes see from now on."""
    return own if isinstance(own, SharedMeanStd) else SharedMeanStd(own)


def log_traffic(logger: Logger, world: World) -> None:
    """Record the messages since the last call: megabytes, their number, and the share of the time that they took."""
    if world.alone:
        return
    traffic, world.traffic = world.traffic, Traffic()
    logger.record("time/sent_mb", traffic.bytes / 1e6)
    logger.record("time/messages", traffic.calls)
    logger.record("time/waiting", traffic.seconds / max(world.traffic.began - traffic.began, 1e-9))


def check_shared(world: World, readout: object, *batches: int) -> None:
    """Raise ConfigError for what several processes cannot train.

    Args:
        readout: of the policy, None for none.
        batches: how many things the minibatches hold that are shared out, segments or windows.
    """
    if min(batches) < world.size:
        raise ConfigError(
            f"a minibatch of {min(batches)} cannot be shared by {world.size} processes: raise batch_size, of which "
            "every process takes its part (on policy it holds whole segments, and the last one may be smaller)"
        )
    if not world.alone and readout is not None:
        raise ConfigError(
            f"a readout keeps a store of its own in every process, so {world.size} processes would act by {world.size} "
            "different ones; train it with one process, or leave readout out"
        )
