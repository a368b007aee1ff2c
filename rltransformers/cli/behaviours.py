"""Checkpoints of this package as behaviours for recording: ``checkpoint:<zip or run folder>``."""

from pathlib import Path
from typing import Any

import gymnasium as gym
import numpy as np
from numpy.typing import NDArray

from rltransformers.agents.decision_transformer import DecisionTransformer
from rltransformers.agents.gtrxl_dqn import GTrXLDQN
from rltransformers.agents.gtrxl_ppo import GTrXLPPO
from rltransformers.agents.gtrxl_vmpo import GTrXLVMPO
from rltransformers.data.behaviours import register_behaviour
from rltransformers.training.checkpoint import Checkpoint, load_checkpoint

Space = gym.Space[Any]


class CheckpointBehaviour:
    """A trained agent; a Decision Transformer is asked for the best return of its dataset, or what it predicts.

    Raises:
        CheckpointError: for a file that is missing, corrupt or of another kind.
    """

    def __init__(self, path: str, deterministic: bool) -> None:
        file = Path(path) / "last.zip" if Path(path).is_dir() else Path(path)
        checkpoint = load_checkpoint(file)
        self.name, self.deterministic, self._state = f"checkpoint:{file}", deterministic, None
        self._statistics = checkpoint.tensors.get("normalisation")
        self._model = self._load(file, checkpoint)

    def _load(self, file: Path, checkpoint: Checkpoint) -> Any:
        kinds: dict[str, Any] = {each.kind: each for each in (DecisionTransformer, GTrXLVMPO, GTrXLDQN)}
        return kinds.get(checkpoint.kind, GTrXLPPO).load(file)

    def act(
        self,
        observations: Any,
        episode_starts: NDArray[np.bool_],
        generator: np.random.Generator,
        rewards: NDArray[np.floating[Any]] | None = None,
    ) -> Any:
        """Actions [B, ...]; sampled ones come from the agent's own generator, which its checkpoint fixes."""
        state = None if episode_starts.all() else self._state
        actions, self._state = self._model.predict(
            self._normalized(observations),
            state,
            episode_starts,
            deterministic=self.deterministic,
            reward=None if state is None else rewards,
        )
        return actions

    def _normalized(self, observations: Any) -> Any:
        """Observations as the ``VecNormalize`` of the training passed them on."""
        if self._statistics is None or not self._statistics["observations"]:
            return observations
        settings, moments = self._statistics["settings"], self._statistics["observations"]

        def normalize(value: Any, moment: dict[str, Any]) -> NDArray[np.float32]:
            deviation = np.sqrt(moment["var"].numpy() + settings["epsilon"])
            scaled = (value - moment["mean"].numpy()) / deviation
            return np.clip(scaled, -settings["clip_obs"], settings["clip_obs"]).astype(np.float32)

        if not isinstance(observations, dict):
            return normalize(observations, moments[""])
        return {key: normalize(value, moments[key]) if key in moments else value for key, value in observations.items()}


def register() -> None:
    """Make ``checkpoint:...`` a behaviour text."""

    def load(argument: str, observation_space: Space, action_space: Space, deterministic: bool) -> CheckpointBehaviour:
        return CheckpointBehaviour(argument, deterministic)

    register_behaviour("checkpoint", load)
