"""Evaluations of a Decision Transformer while it learns: the keys and the file of Stable-Baselines3's EvalCallback."""

from pathlib import Path
from typing import Any

import gymnasium as gym
import numpy as np
import pytest
from stable_baselines3.common.callbacks import (
    BaseCallback,
    EvalCallback,
    StopTrainingOnNoModelImprovement,
    StopTrainingOnRewardThreshold,
)
from stable_baselines3.common.logger import Logger, configure
from stable_baselines3.common.monitor import Monitor

from rltransformers.agents import DecisionTransformer, GTrXLPPO
from rltransformers.data import record
from rltransformers.training.evaluation import EvaluationResult
from rltransformers.training.offline.evaluation_callback import EvaluationCallback
from rltransformers.training.offline.validation import ValidationResult

SMALL = {"width": 8, "layers": 1, "heads": 2}


def rows(folder: Path) -> list[dict[str, str]]:
    lines = (folder / "progress.csv").read_text().splitlines()
    return [dict(zip(lines[0].split(","), line.split(","), strict=True)) for line in lines[1:]]


@pytest.mark.filterwarnings("ignore:Training and eval env are not of the same type")
def test_all_agents_log_evaluations_under_the_same_names(tmp_path: Path) -> None:
    data = record("CartPole-v1", "random", episodes=4, seed=0)
    found = {}
    for mode in ("dt", "bc"):
        dt = DecisionTransformer("DTPolicy", data, policy_kwargs={"backbone": SMALL}, mode=mode, seed=0)
        dt.set_logger(configure(str(tmp_path / mode), ["csv"]))
        callback = EvaluationCallback(
            "CartPole-v1",
            n_eval_episodes=3,
            eval_freq=2,
            log_path=tmp_path / mode,
            best_model_save_path=tmp_path / mode,
        )
        dt.learn(5, callback=callback, log_interval=100)
        dt.logger.close()
        written = [row for row in rows(tmp_path / mode) if row["eval/mean_reward"]]
        assert [int(row["time/total_timesteps"]) for row in written] == [2, 4]
        found[mode] = {key for key in written[0] if key.startswith(("eval/", "time/total"))}
        with np.load(tmp_path / mode / "evaluations.npz") as file:
            arrays = dict(file)
        assert arrays["timesteps"].tolist() == [2, 4] and arrays["results"].shape == arrays["ep_lengths"].shape == (
            2,
            3,
        )
        assert float(written[-1]["eval/mean_reward"]) == pytest.approx(arrays["results"][-1].mean())
        best = DecisionTransformer.load(tmp_path / mode / "best_model.zip")
        (again,) = best.evaluate("CartPole-v1", episodes=3)
        assert again.mean == callback.best_mean_reward == max(arrays["results"].mean(1))
    ppo = GTrXLPPO("GTrXLPolicy", "CartPole-v1", n_steps=8, policy_kwargs={"backbone": SMALL}, seed=0)
    ppo.set_logger(configure(str(tmp_path / "ppo"), ["csv"]))
    evaluations = EvalCallback(Monitor(gym.make("CartPole-v1")), eval_freq=8, n_eval_episodes=1, verbose=0)
    ppo.learn(8, callback=evaluations)
    ppo.logger.close()
    online = {key for key in rows(tmp_path / "ppo")[0] if key.startswith("eval/")} | {"time/total_timesteps"}
    assert online < found["bc"] and online < found["dt"]


def test_of_several_targets_the_best_is_the_result_and_each_is_logged(tmp_path: Path) -> None:
    data = record("CartPole-v1", "random", episodes=4, seed=0)
    dt = DecisionTransformer("DTPolicy", data, policy_kwargs={"backbone": SMALL}, seed=0)
    dt.set_logger(configure(str(tmp_path), ["csv"]))
    callback = EvaluationCallback("CartPole-v1", [5.0, 50.0], n_eval_episodes=4, eval_freq=1)
    dt.learn(1, callback=callback)
    dt.logger.close()
    (row,) = [row for row in rows(tmp_path) if row["eval/mean_reward"]]
    means = [float(row[f"eval/return_mean_target_{target}"]) for target in (5, 50)]
    assert max(means) == float(row["eval/mean_reward"]) == callback.last_mean_reward
    expected = [result.mean for result in dt.evaluate("CartPole-v1", [5.0, 50.0], episodes=4)]
    assert means == expected


class Scripted:
    """What a callback needs of a model whose evaluations return these means."""

    validates = False

    def __init__(self, means: list[float]) -> None:
        self.means, self.saved, self.num_timesteps, self.logger = iter(means), list[float](), 0, Logger(None, [])

    def get_env(self) -> None:
        return None

    def targets_of(self, target_returns: Any) -> list[None]:
        return [None]

    def evaluate(self, *arguments: Any, **options: Any) -> list[EvaluationResult]:
        self.mean = next(self.means)
        return [EvaluationResult("CartPole-v1", (self.mean,), (1,), (0,))]

    def save(self, path: Path) -> None:
        self.saved.append(self.mean)


def test_the_best_model_is_that_of_the_highest_mean_so_far(tmp_path: Path) -> None:
    model: Any = Scripted([2.0, 1.0, 5.0, 4.0, 5.0])
    callback = EvaluationCallback("CartPole-v1", best_model_save_path=tmp_path)
    callback.init_callback(model)
    for _ in range(5):
        assert callback.evaluate()
    assert model.saved == [2.0, 5.0] and callback.best_mean_reward == callback.last_mean_reward == 5.0


class Calls(BaseCallback):
    """Counts its calls after evaluations, and keeps the updates at which they came."""

    def __init__(self) -> None:
        super().__init__()
        self.updates: list[int] = []
        self.started = False

    def _on_training_start(self) -> None:
        self.started = True

    def _on_step(self) -> bool:
        self.updates.append(self.model.num_timesteps)
        return True


def test_callbacks_below_an_evaluation_are_called_after_it_and_end_training() -> None:
    data = record("CartPole-v1", "random", episodes=4, seed=0)

    def updates(**callbacks: Any) -> int:
        dt = DecisionTransformer("DTPolicy", data, policy_kwargs={"backbone": SMALL}, seed=0)
        dt.learn(12, callback=EvaluationCallback("CartPole-v1", [5.0], n_eval_episodes=2, eval_freq=2, **callbacks))
        return dt.num_timesteps

    best, every = Calls(), Calls()
    assert updates(callback_on_new_best=best, callback_after_eval=every) == 12
    assert best.started and every.started and best.model is every.model
    assert every.updates == [2, 4, 6, 8, 10, 12] and best.updates[0] == 2 and set(best.updates) <= set(every.updates)
    assert updates(callback_on_new_best=StopTrainingOnRewardThreshold(1.0)) == 2
    assert updates(callback_on_new_best=StopTrainingOnRewardThreshold(1e9)) == 12
    stall = next(update for update in every.updates if update not in best.updates)
    assert updates(callback_after_eval=StopTrainingOnNoModelImprovement(0)) == stall


def test_the_progress_bar_shows_the_newest_action_loss(capsys: pytest.CaptureFixture[str]) -> None:
    data = record("CartPole-v1", "random", episodes=4, seed=0)
    model = DecisionTransformer("DTPolicy", data, policy_kwargs={"backbone": SMALL}, validation=0.3, seed=0)
    model.learn(3, callback=EvaluationCallback(eval_freq=2), progress_bar=True)
    bar = capsys.readouterr().err
    assert "3/3" in bar and f"action loss {model.held_out.best:.4f} at 2" in bar


def test_callbacks_that_stop_compare_action_losses_where_there_is_no_environment(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    data = record("CartPole-v1", "random", episodes=4, seed=0)
    model = DecisionTransformer("DTPolicy", data, policy_kwargs={"backbone": SMALL}, validation=0.3, seed=0)
    losses = iter([5.0, 4.0, 3.0, 3.5, 3.0, 4.0])
    monkeypatch.setattr(model, "validate", lambda: ValidationResult(0, 1, 1, next(losses), (), {}))
    stop = StopTrainingOnNoModelImprovement(max_no_improvement_evals=2)
    callback = EvaluationCallback(eval_freq=1, callback_after_eval=stop)
    model.learn(40, callback=callback)
    assert model.num_timesteps == 6  # the third evaluation without a lower loss
    assert (callback.best_mean_reward, callback.last_mean_reward) == (-3.0, -4.0)
