"""Files that are written inside a rollout."""

import warnings
from pathlib import Path
from typing import Any

import pytest
from stable_baselines3.common.callbacks import BaseCallback, CheckpointCallback, EvalCallback, StopTrainingOnMaxEpisodes

from rltransformers.agents import GTrXLPPO, GTrXLVMPO
from tests.agents.tiny_envs import Walk

POLICY = {"backbone": {"preset": "gtrxl", "width": 8, "layers": 1, "heads": 2, "memory": 4}}


class Saves(BaseCallback):
    """Saves whenever one thing happens."""

    def __init__(self, when: str, folder: Path) -> None:
        super().__init__()
        self.when, self.path = when, folder / "model"

    def _on_step(self) -> bool:
        return self._save("step")

    def _on_rollout_start(self) -> None:
        self._save("rollout_start")

    def _on_rollout_end(self) -> None:
        self._save("rollout_end")

    def _on_training_end(self) -> None:
        self._save("training_end")

    def _save(self, now: str) -> bool:
        if now == self.when:
            self.model.save(self.path)
        return True


CALLBACKS = {
    "checkpoints": lambda folder: CheckpointCallback(5, str(folder)),
    "checkpoints at the end of rollouts": lambda folder: CheckpointCallback(8, str(folder)),
    "every step": lambda folder: Saves("step", folder),
    "rollout end": lambda folder: Saves("rollout_end", folder),
    "rollout start": lambda folder: Saves("rollout_start", folder),
    "training end": lambda folder: Saves("training_end", folder),
    "stopped": lambda folder: [StopTrainingOnMaxEpisodes(2), Saves("training_end", folder)],
    "best model": lambda folder: EvalCallback(
        Walk((5,)), n_eval_episodes=1, eval_freq=5, best_model_save_path=str(folder), verbose=0, warn=False
    ),
}


@pytest.mark.parametrize("name", CALLBACKS)
@pytest.mark.parametrize("kind", [GTrXLPPO, GTrXLVMPO])
def test_whoever_saves_steps_that_were_not_learned_from_hears_of_it(kind: Any, name: str, tmp_path: Path) -> None:
    model = kind("GTrXLPolicy", Walk((5,)), n_steps=8, n_epochs=1, policy_kwargs=POLICY, seed=0, device="cpu")
    loses = name.startswith("checkpoints") or name in ("every step", "rollout end")
    with warnings.catch_warnings(record=True) as heard:
        warnings.simplefilter("always")
        model.learn(24, callback=CALLBACKS[name](tmp_path))
    assert any("inside a rollout: its " in str(each.message) for each in heard) is loses
    assert list(tmp_path.glob("*.zip"))


def test_a_rollout_that_an_error_ended_is_told_of_until_the_next_one(tmp_path: Path) -> None:
    class Fails(BaseCallback):
        def _on_step(self) -> bool:
            if self.n_calls == 3:
                raise KeyboardInterrupt
            return True

    model = GTrXLPPO("GTrXLPolicy", Walk((5,)), n_steps=8, policy_kwargs=POLICY, seed=0, device="cpu")
    with pytest.raises(KeyboardInterrupt):
        model.learn(24, callback=Fails())
    with pytest.warns(UserWarning, match=r"saved at step 3, inside a rollout: its 3 steps"):
        model.save(tmp_path / "model")
    model.learn(8, reset_num_timesteps=False).save(tmp_path / "model")
