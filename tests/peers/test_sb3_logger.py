"""What Stable-Baselines3 asks of what an agent logs, and where: the part of its ``test_logger`` that agents have."""

from functools import partial
from pathlib import Path
from typing import Any

import pytest
from stable_baselines3.common.logger import HumanOutputFormat, TensorBoardOutputFormat, configure
from stable_baselines3.common.monitor import Monitor

from tests.agents.tiny_envs import Steady
from tests.peers.small import STEPS, VECTOR, Kind, Still, actions_of, agent, every_agent, listening


def outputs(model: Any) -> list[type[Any]]:
    return [type(each) for each in model.logger.output_formats]


@every_agent
def test_a_run_writes_where_its_settings_say(kind: Kind, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    assert outputs(agent(kind).learn(4)) == []
    assert outputs(agent(kind, verbose=1).learn(4)) == [HumanOutputFormat]
    board = agent(kind, verbose=1, tensorboard_log=tmp_path / "board").learn(4)
    assert outputs(board) == [HumanOutputFormat, TensorBoardOutputFormat]
    assert Path(board.logger.dir) == tmp_path / "board" / f"{kind.__name__}_1"
    monkeypatch.setenv("SB3_LOGDIR", str(tmp_path / "elsewhere"))
    assert Path(agent(kind).learn(4).logger.dir) == tmp_path / "elsewhere"


@every_agent
def test_a_logger_that_was_set_stays(kind: Kind, tmp_path: Path) -> None:
    model, logger = agent(kind, verbose=1), configure(str(tmp_path), ["csv", "json"])
    model.set_logger(logger)
    model.learn(STEPS, log_interval=1).learn(STEPS, log_interval=1)
    assert model.logger is logger
    logger.close()
    columns = (tmp_path / "progress.csv").read_text().splitlines()[0].split(",")
    assert {"time/total_timesteps", "rollout/ep_rew_mean"} <= set(columns)


class Ticking(Steady):
    """A step takes a millisecond of ``clock``, which holds nanoseconds."""

    def __init__(self, clock: list[int]) -> None:
        super().__init__(4)
        self.clock = clock

    def step(self, action: Any) -> tuple[Any, float, bool, bool, dict[str, Any]]:
        self.clock[0] += 10**6
        return super().step(action)


@every_agent
def test_steps_per_second_are_those_of_this_call_of_learn(kind: Kind, monkeypatch: pytest.MonkeyPatch) -> None:
    clock = [10**18]
    model = agent(kind, Ticking(clock))
    monkeypatch.setattr("time.time_ns", lambda: clock[0])
    with listening(model) as rows:
        model.learn(2 * STEPS, log_interval=1).learn(STEPS, log_interval=1)
        model.num_timesteps = 20_000
        model.learn(STEPS, log_interval=1, reset_num_timesteps=False)
    told = [row["time/fps"] for row in rows if "time/fps" in row]
    assert len(told) >= 4 and set(told) <= {999, 1000}  # whole numbers, rounded down


@every_agent
def test_a_clock_that_stands_still_divides_nothing_by_zero(kind: Kind, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("time.time_ns", lambda: 42)
    monkeypatch.setattr("time.time", lambda: 42.0)
    model = agent(kind)
    with listening(model) as rows:
        model.learn(2 * STEPS, log_interval=1)
    assert any("time/fps" in row for row in rows)


@every_agent
def test_success_rates_and_episodes_are_those_of_the_last_ones(kind: Kind) -> None:
    outcomes = (True, False, False, False, True, True, True, False)  # a quarter of the first four, then three
    env = Monitor(Still(VECTOR, actions_of(kind), STEPS // 4, outcomes))
    model = agent(kind, env, stats_window_size=4)
    with listening(model) as rows:
        model.learn(2 * STEPS, log_interval=1 if "n_steps" in kind.setting_names() else 4)
    assert model.ep_info_buffer.maxlen == model.ep_success_buffer.maxlen == 4
    assert [row["rollout/success_rate"] for row in rows if "rollout/success_rate" in row] == [0.25, 0.75]
    assert agent(kind, partial(Still, VECTOR, actions_of(kind))()).learn(4).ep_success_buffer.maxlen == 100
