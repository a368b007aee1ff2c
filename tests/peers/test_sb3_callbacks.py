"""What Stable-Baselines3 asks of callbacks: its ``test_callbacks``, with every online agent."""

from functools import partial
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from stable_baselines3.common.callbacks import (
    BaseCallback,
    CallbackList,
    CheckpointCallback,
    EvalCallback,
    EveryNTimesteps,
    LogEveryNTimesteps,
    StopTrainingOnMaxEpisodes,
    StopTrainingOnNoModelImprovement,
    StopTrainingOnRewardThreshold,
)
from stable_baselines3.common.vec_env import DummyVecEnv, VecNormalize

from tests.agents.tiny_envs import Steady
from tests.peers.small import (
    STEPS,
    VECTOR,
    WITH_REPLAY,
    Kind,
    Still,
    actions_of,
    agent,
    every_agent,
    listening,
    walk,
    walks,
)


@pytest.mark.filterwarnings("ignore:saved at step")
@every_agent
def test_callbacks_see_every_step_and_the_variables_of_the_loop(kind: Kind, tmp_path: Path) -> None:
    model = agent(kind)
    saves, events = CheckpointCallback(6, str(tmp_path)), CheckpointCallback(1, str(tmp_path), name_prefix="event")
    every, logs = EveryNTimesteps(8, events), LogEveryNTimesteps(8)
    evaluates = EvalCallback(
        walk(kind),
        n_eval_episodes=1,
        eval_freq=12,
        best_model_save_path=str(tmp_path),
        log_path=str(tmp_path),
        verbose=0,
    )
    all_of_them = CallbackList([saves, evaluates, every, logs, StopTrainingOnMaxEpisodes(1000)])
    with listening(model) as rows:
        model.learn(24, callback=all_of_them)
    assert model.observation_space.contains(all_of_them.locals["new_obs"][0])
    for each in (saves, evaluates, every, events):
        assert each.locals["new_obs"] is all_of_them.locals["new_obs"]
    assert every.num_timesteps == every.n_calls == model.num_timesteps == 24
    found = {path.stem for path in tmp_path.glob("*.zip")}
    times = {"event": range(8, 25, 8), "rl_model": range(6, 25, 6)}
    assert found == {"best_model"} | {f"{name}_{step}_steps" for name, steps in times.items() for step in steps}
    assert kind.load(tmp_path / "event_16_steps").num_timesteps == 16
    assert [row["step"] for row in rows if "eval/mean_reward" in row] == [12, 24]
    assert {8, 16, 24} <= {row["step"] for row in rows}


@every_agent
def test_callbacks_may_be_none_a_list_or_a_function_and_progress_is_shown(kind: Kind) -> None:
    model, steps = agent(kind), []
    model.learn(STEPS, callback=None)
    model.learn(STEPS, callback=[EveryNTimesteps(4, LogEveryNTimesteps(4))], progress_bar=True)
    model.learn(STEPS, callback=lambda variables, _: not steps.append(variables["new_obs"]))  # type: ignore[func-returns-value]
    assert len(steps) == STEPS


class Answers(BaseCallback):
    def __init__(self, answer: Any) -> None:
        super().__init__()
        self.answer = answer

    def _on_step(self) -> bool:
        return self.answer


@pytest.mark.parametrize("answer", [False, None, np.bool_(False), torch.tensor(False)])
@every_agent
def test_anything_false_ends_a_run_at_once(kind: Kind, answer: Any) -> None:
    model, callback = agent(kind), Answers(answer)
    model.learn(STEPS, callback=callback)
    assert callback.n_calls == model.num_timesteps == 1


@every_agent
def test_a_run_ends_with_the_last_wanted_episode_of_its_environments(kind: Kind) -> None:
    callback = StopTrainingOnMaxEpisodes(2)
    model = agent(kind, walks(kind, 2, (11,))).learn(10 * STEPS, callback=callback)
    assert (callback.n_episodes, model.num_timesteps) == (4, 2 * 2 * 11)


class Child(BaseCallback):
    """Notes the best result of the evaluation that it hangs on."""

    def __init__(self) -> None:
        super().__init__()
        self.results: list[float] = []

    def _on_step(self) -> bool:
        assert isinstance(self.parent, EvalCallback)
        self.results.append(self.parent.best_mean_reward)
        return True


@every_agent
def test_evaluations_of_several_copies_know_their_children_and_end_runs(kind: Kind) -> None:
    best, after = Child(), Child()
    flat = StopTrainingOnNoModelImprovement(max_no_improvement_evals=2)

    def evaluation(on_best: list[BaseCallback], after_each: list[BaseCallback]) -> EvalCallback:
        copies = DummyVecEnv([partial(Steady, 5)] * 3)
        each = {"callback_on_new_best": CallbackList(on_best), "callback_after_eval": CallbackList(after_each)}
        return EvalCallback(copies, n_eval_episodes=3, eval_freq=4, verbose=0, warn=False, **each)  # type: ignore[arg-type]

    model = agent(kind, Steady(5))
    callback = evaluation([best], [after, flat])
    model.learn(4 * STEPS, callback=callback)
    assert callback.last_mean_reward == 5.0 and best.results == [5.0]
    assert after.results == [5.0] * (model.num_timesteps // 4) and model.num_timesteps == 4 * 4
    assert model.learn(4 * STEPS, callback=evaluation([StopTrainingOnRewardThreshold(4.9)], [])).num_timesteps == 4


@every_agent
def test_successes_of_an_evaluation_are_counted_and_written(kind: Kind, tmp_path: Path) -> None:
    makes = partial(Still, VECTOR, actions_of(kind), 3)
    callback = EvalCallback(
        makes((True, False, False, False)),
        n_eval_episodes=4,
        eval_freq=STEPS,
        log_path=str(tmp_path),
        verbose=0,
        warn=False,
    )
    model = agent(kind, makes())
    with listening(model) as rows:
        model.learn(STEPS, callback=callback)
    assert [row["eval/success_rate"] for row in rows if "eval/success_rate" in row] == [0.25]
    with np.load(tmp_path / "evaluations.npz") as written:
        assert written["successes"].tolist() == [[True, False, False, False]]


@pytest.mark.filterwarnings("ignore:saved at step")
@every_agent
def test_checkpoints_come_with_replay_and_statistics_that_load(kind: Kind, tmp_path: Path) -> None:
    saves = CheckpointCallback(STEPS, str(tmp_path), save_replay_buffer=True, save_vecnormalize=True)
    model = agent(kind, VecNormalize(walks(kind, 1))).learn(STEPS, callback=saves)
    stem = f"rl_model_{{}}{STEPS}_steps"
    statistics = VecNormalize.load(str(tmp_path / f"{stem.format('vecnormalize_')}.pkl"), walks(kind, 1))
    loaded = kind.load(tmp_path / f"{stem.format('')}.zip", env=statistics)
    assert loaded.num_timesteps == model.num_timesteps
    replay = tmp_path / f"{stem.format('replay_buffer_')}.pkl"
    assert replay.exists() == (kind in WITH_REPLAY)
    if kind in WITH_REPLAY:
        loaded.load_replay_buffer(replay)  # without the newest step, whose next observation is still to come
        assert torch.equal(*(each.replay_buffer.rewards[:, : STEPS - 1] for each in (loaded, model)))
