"""A reward for what an episode has not shown yet, in training only. N: environments."""

from collections.abc import Iterator, Mapping, Sequence
from hashlib import blake2b
from typing import Any

import numpy as np
from stable_baselines3.common.vec_env import VecEnv, VecEnvWrapper
from stable_baselines3.common.vec_env.base_vec_env import VecEnvObs, VecEnvStepReturn

from rltransformers.core.errors import ConfigError
from rltransformers.core.guard import reset_rows
from rltransformers.core.ranges import Count, PositiveNumber, strict
from rltransformers.core.spaces import leaf_values
from rltransformers.envs.tensors import TensorVecEnv


class NoveltyBonus(VecEnvWrapper):
    """Adds ``bonus`` to the reward of a step whose observation its episode has not had before.

    The count-based bonus within an episode (Henaff et al. 2022, arXiv 2210.05805, section 3): for tasks in which
    something has to be looked at before it is of use. A policy with memory knows what it has seen, so it can tell what
    is new. Put it around the environment of training and not around that of evaluation (an ``EvalCallback`` beside
    ``VecNormalize`` wants both alike); a ``VecMonitor`` inside it (``make_vec_env`` adds one) counts returns without
    it. Two observations are the same if all their numbers are, which suits grids, symbols and classes: where numbers
    hardly repeat, the bonus is a reward for going on.

    Args:
        venv: environments of numpy arrays.
        bonus: in units of the reward.
        steps: of each environment, over which the bonus falls linearly to 0; None: it stays as it is.

    Attributes:
        steps_done: of each environment. ``load`` of an agent restores it where the file holds the state of the
            environments (``rltransformers.envs.saving``); set it behind ``load`` where it does not.

    Raises:
        ConfigError: for environments in tensors, and a bonus that is not positive.
    """

    @strict
    def __init__(self, venv: VecEnv, bonus: PositiveNumber, steps: Count | None = None) -> None:
        if isinstance(venv.unwrapped, TensorVecEnv):
            raise ConfigError("a novelty bonus compares numpy arrays; leave it out, or 'processes: tensors'")
        super().__init__(venv)
        self.bonus, self.steps, self.steps_done = bonus, steps, 0
        self._seen: list[set[int]] = [set() for _ in range(self.num_envs)]

    def reset(self) -> VecEnvObs:
        observations = self.venv.reset()
        self._seen = [{_digest(leaves)} for leaves in self._rows(observations)]
        return observations

    def step_wait(self) -> VecEnvStepReturn:
        observations, rewards, dones, infos = self.venv.step_wait()
        new, resets = np.zeros(self.num_envs, bool), reset_rows(self)
        for index, leaves in enumerate(self._rows(observations)):
            seen, shown = self._seen[index], _digest(leaves)
            if resets[index]:  # nobody acted: what is shown is the first observation of an episode
                self._seen[index] = {shown}
                continue
            reached = shown
            if dones[index]:  # then what is shown is the first observation of the next episode, or a reset row follows
                last = leaf_values(self.observation_space, infos[index]["terminal_observation"]).values()
                reached = _digest([np.asarray(a, b.dtype) for a, b in zip(last, leaves, strict=True)])
                self._seen[index] = set()
            new[index] = reached not in seen
            self._seen[index].add(shown)
        share = 1.0 if self.steps is None else max(1.0 - self.steps_done / self.steps, 0.0)
        self.steps_done += 1
        return observations, (rewards + self.bonus * share * new).astype(rewards.dtype), dones, infos

    def _rows(self, observations: VecEnvObs) -> Iterator[tuple[np.ndarray, ...]]:
        """The leaves of the observation of each environment."""
        return zip(*leaf_values(self.observation_space, observations).values(), strict=True)

    def state_dict(self) -> dict[str, Any]:
        return {"steps_done": self.steps_done, "seen": [np.array(sorted(seen), np.int64) for seen in self._seen]}

    def load_state_dict(self, state: Mapping[str, Any]) -> None:
        self.steps_done = state["steps_done"]
        self._seen = [set(seen.tolist()) for seen in state["seen"]]


def _digest(leaves: Sequence[np.ndarray]) -> int:
    """64 bits of one observation."""
    same_zeros = (leaf + 0.0 if leaf.dtype.kind == "f" else leaf for leaf in leaves)  # -0.0 as 0.0
    data = b"".join(leaf.tobytes() for leaf in same_zeros)
    return int.from_bytes(blake2b(data, digest_size=8).digest(), "little", signed=True)
