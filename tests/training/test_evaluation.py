"""Evaluation results and the evaluation loop: every started episode counts, whatever its length."""

from pathlib import Path
from typing import Any

import gymnasium
import numpy as np
import pytest
from gymnasium import spaces
from stable_baselines3.common.monitor import Monitor
from stable_baselines3.common.vec_env import DummyVecEnv, VecMonitor, VecNormalize

from rltransformers.core.errors import ConfigError, DataError
from rltransformers.core.seeding import branch_seeds
from rltransformers.training.evaluation import (
    EvaluationResult,
    evaluate_online,
    read_results,
    return_alignment,
    write_results,
)


class Countdown(gymnasium.Env[Any, Any]):
    """Lasts 1 to 9 steps as its seed decides, pays the step number, and is a success when it lasted an even number."""

    observation_space = spaces.Box(0.0, 10.0, (1,))
    action_space = spaces.Discrete(2)

    def reset(self, *, seed: int | None = None, options: dict[str, Any] | None = None) -> tuple[Any, dict[str, Any]]:
        super().reset(seed=seed)
        self.length, self.t = int(self.np_random.integers(1, 10)), 0
        return np.zeros(1, np.float32), {}

    def step(self, action: Any) -> tuple[Any, float, bool, bool, dict[str, Any]]:
        self.t += 1
        done = self.t == self.length
        info = {"is_success": self.length % 2 == 0} if done else {}
        return np.full(1, self.t, np.float32), float(self.t * (1 + action)), done, False, info


class Counter:
    """Acts 1 on every third step of an episode by counting in its recurrent state, so that a lost state shows."""

    def predict(self, observation: Any, state: Any, episode_start: Any, deterministic: bool) -> tuple[Any, Any]:
        count = np.zeros(len(episode_start), int) if state is None else np.where(episode_start, 0, state)
        return (count % 3 == 2).astype(int), count + 1


def vector(copies: int, monitor: bool = False) -> DummyVecEnv:
    return DummyVecEnv([lambda: Monitor(Countdown()) if monitor else Countdown()] * copies)


def by_hand(seed: int) -> tuple[float, int]:
    env = Countdown()
    env.reset(seed=seed)
    return sum(t * (2 if t % 3 == 0 else 1) for t in range(1, env.length + 1)), env.length


@pytest.mark.parametrize("copies", [1, 3, 8])
@pytest.mark.parametrize("monitor", [False, True])
def test_each_episode_is_the_one_of_its_seed_however_many_copies_run(copies: int, monitor: bool) -> None:
    result = evaluate_online(Counter(), vector(copies, monitor), "Countdown", episodes=7, seed=40)
    seeds = branch_seeds(40, "evaluation", 7)
    expected = [by_hand(seed) for seed in seeds]
    assert list(zip(result.returns, result.lengths, strict=True)) == expected
    assert result.seeds == tuple(seeds)
    assert result.successes == tuple(length % 2 == 0 for _, length in expected)


def test_monitored_returns_are_counted_below_the_normalization() -> None:
    env = VecNormalize(VecMonitor(vector(2)), training=False)
    result = evaluate_online(Counter(), env, "Countdown", episodes=4, seed=3)
    assert list(result.returns) == [by_hand(seed)[0] for seed in result.seeds]


class Lives(gymnasium.Wrapper[Any, Any, Any, Any]):
    """Ends the learner's episode every second step, as Atari wrappers do at a lost life; the game goes on."""

    @property
    def game(self) -> Countdown:
        assert isinstance(self.env.unwrapped, Countdown)
        return self.env.unwrapped

    def reset(self, *, seed: int | None = None, options: dict[str, Any] | None = None) -> tuple[Any, dict[str, Any]]:
        if seed is None and self.game.t < self.game.length:
            return np.full(1, self.game.t, np.float32), {}
        return self.env.reset(seed=seed, options=options)

    def step(self, action: Any) -> tuple[Any, Any, bool, bool, dict[str, Any]]:
        observation, reward, terminated, truncated, info = self.env.step(action)
        return observation, reward, terminated or self.game.t % 2 == 0, truncated, info


def test_a_lost_life_starts_the_memory_anew_and_does_not_end_the_game() -> None:
    env = DummyVecEnv([lambda: Lives(Monitor(Countdown()))] * 2)
    result = evaluate_online(Counter(), env, "Countdown", episodes=4, seed=40)
    lengths = [by_hand(seed)[1] for seed in result.seeds]
    assert list(result.lengths) == lengths
    # The counter never reaches its third step, so it always acts 0.
    assert list(result.returns) == [sum(range(1, length + 1)) for length in lengths]


def test_an_environment_that_would_falsify_the_result_is_refused() -> None:
    with pytest.raises(ConfigError, match=r"env is a str; evaluate_online takes a VecEnv: .*make_vec_env"):
        evaluate_online(Counter(), "CartPole-v1", "CartPole-v1")  # type: ignore[arg-type]
    with pytest.raises(ConfigError, match="training=False"):
        evaluate_online(Counter(), VecNormalize(VecMonitor(vector(1))), "Countdown")
    with pytest.raises(ConfigError, match="VecMonitor below"):
        evaluate_online(Counter(), VecNormalize(vector(1), training=False), "Countdown")


class Greedy(Counter):
    """Acts 1 where the last reward was odd."""

    def predict(  # type: ignore[override]
        self, observation: Any, state: Any, episode_start: Any, deterministic: bool, reward: Any
    ) -> tuple[Any, Any]:
        return (np.where(episode_start, 0, reward) % 2 == 1).astype(int), np.zeros(len(episode_start))


def test_an_agent_that_reads_rewards_gets_them() -> None:
    result = evaluate_online(Greedy(), vector(3), "Countdown", episodes=5, seed=40)
    for total, length in zip(result.returns, result.lengths, strict=True):
        expected, reward = 0, 0
        for t in range(1, length + 1):
            reward = t * (1 + reward % 2)
            expected += reward
        assert total == expected


def test_no_episodes_is_an_error() -> None:
    with pytest.raises(ConfigError, match=r"episodes must be a whole number in \[1, 1000000\], got 0"):
        evaluate_online(Counter(), vector(1), "Countdown", episodes=0)


def result(**changes: Any) -> EvaluationResult:
    values: dict[str, Any] = {
        "env_id": "Hopper-v5",
        "returns": (0.0, 100.0, 200.0, 300.0, 1000.0),
        "lengths": (1, 2, 3, 4, 5),
        "seeds": (0, 1, 2, 3, 4),
        "successes": (True, False, True, True, False),
        "target_return": 700.0,
    }
    return EvaluationResult(**values | changes)


def test_the_summary_holds_the_numbers_worked_out_by_hand() -> None:
    summary = result().summary()
    assert summary["return_mean"] == 320.0
    assert summary["return_std"] == pytest.approx(np.std([0, 100, 200, 300, 1000]))
    assert summary["return_iqm"] == 200.0  # floor(5 / 4) = 1 episode cut at each end
    low, high = summary["return_iqm_interval"]
    assert 0 <= low < 200 < high <= 1000
    assert (summary["episodes"], summary["length_mean"], summary["success_rate"]) == (5, 3.0, 0.6)
    assert summary["target_return"] == 700.0
    assert summary["alignment_error"] == pytest.approx(((700**2 + 600**2 + 500**2 + 400**2 + 300**2) / 5) ** 0.5)
    # D4RL's hopper pair: 100 (R + 20.272305) / (3234.3 + 20.272305)
    assert summary["normalized_score"] == pytest.approx(100 * 340.272305 / 3254.572305)


def test_what_is_not_defined_is_left_out() -> None:
    summary = result(env_id="CartPole-v1", successes=None, target_return=None).summary()
    assert not {"normalized_score", "success_rate", "target_return", "alignment_error"} & set(summary)


def test_return_alignment_weighs_every_target_alike_and_leaves_out_results_without_one() -> None:
    two = result(returns=(1.0, 4.0), lengths=(1, 1), seeds=(0, 1), successes=None, target_return=1.0)  # 0, 9
    one = result(returns=(7.0,), lengths=(1,), seeds=(0,), successes=None, target_return=2.0)  # 25
    assert return_alignment([two, one, result(target_return=None)]) == pytest.approx(((4.5 + 25) / 2) ** 0.5)
    assert return_alignment([result(target_return=None)]) is None


def test_results_read_back_as_written(tmp_path: Path) -> None:
    results = [result(), result(successes=None, target_return=None)]
    write_results(tmp_path / "evaluation.json", results)
    assert read_results(tmp_path / "evaluation.json") == results


def test_unusable_results_are_refused(tmp_path: Path) -> None:
    with pytest.raises(ConfigError, match="at least one episode"):
        result(returns=())
    with pytest.raises(ConfigError, match="lengths has 1 entries for 5 episodes"):
        result(lengths=(1,))
    (tmp_path / "bad.json").write_text("[{]")
    with pytest.raises(DataError, match=r"bad\.json is not a list of evaluation results"):
        read_results(tmp_path / "bad.json")


def test_a_monitor_above_the_normalization_does_not_hide_it() -> None:
    with pytest.raises(ConfigError, match="VecMonitor below"):
        evaluate_online(Counter(), VecMonitor(VecNormalize(vector(1), training=False)), "Countdown")
    env = VecMonitor(VecNormalize(vector(1), training=False, norm_reward=False))
    result = evaluate_online(Counter(), env, "Countdown", episodes=1, seed=3)
    assert result.returns[0] == by_hand(result.seeds[0])[0]


def test_alignment_compares_discounted_returns_with_discounted_targets(tmp_path: Path) -> None:
    result = EvaluationResult(None, (50.0, 50.0), (50, 50), (0, 1), target_return=18.0, discounted_returns=(17.0, 20.0))
    assert result.mean == 50.0 and result.alignment_error == pytest.approx(2.5**0.5)
    assert return_alignment([result]) == result.alignment_error
    write_results(tmp_path / "evaluation.json", [result])
    assert read_results(tmp_path / "evaluation.json") == [result]
    with pytest.raises(ConfigError, match="discounted_returns has 1 entries"):
        EvaluationResult(None, (50.0, 50.0), (50, 50), (0, 1), discounted_returns=(17.0,))
