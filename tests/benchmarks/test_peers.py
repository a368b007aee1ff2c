"""How transformers of others are run beside ours; what they need is not installed here, and times are not tested."""

import json
import time
from dataclasses import replace
from types import SimpleNamespace
from typing import Any

import numpy as np
import pytest
from gymnasium import spaces
from stable_baselines3.common.vec_env import VecEnv

from benchmarks import learning, loops, returns
from benchmarks.learning import note_of
from benchmarks.peers import CleanRLEnvs, MarcoMeterEnvs, MarcoMeterWorker, Vectors, Watch
from benchmarks.tasks import OURS_OFFLINE, Clock, Learned, OfflineTask, OnlineTask
from rltransformers.cli.configs import find_config
from rltransformers.core.errors import ConfigError
from rltransformers.envs import make_vec_env
from tests.peers.sources import VARIABLE


def cues(num_envs: int = 3) -> VecEnv:
    return make_vec_env("rltransformers/CueRecall-v0", num_envs, seed=0, env_kwargs={"delay": 2})


def test_numbers_of_a_few_become_vectors_and_returns_are_counted() -> None:
    vectors = Vectors(make_vec_env("Taxi-v4", 2, seed=0), 200)
    assert vectors.reset().shape == (2, 500)
    assert vectors.observation_space.shape == (500,)
    env = Vectors(cues(), 4)
    env.reset()
    ended = [env.step(np.zeros(3, int))[3] for _ in range(8)]
    lengths = [episode[1] for step in ended for episode in step if episode is not None]
    assert lengths and set(lengths) == {4}


def test_actions_that_are_not_discrete_are_refused() -> None:
    with pytest.raises(TypeError, match="discrete actions; got"):
        Vectors(make_vec_env("Pendulum-v1", 1, seed=0), 200)


def test_both_programs_see_the_same_episodes() -> None:
    cleanrl, marcometer = CleanRLEnvs(Vectors(cues(), 4), Watch()), MarcoMeterEnvs(Vectors(cues(), 4))
    workers = [MarcoMeterWorker(marcometer, row) for row in range(3)]
    for worker in workers:
        worker.send(("reset", None))
    expected, _ = cleanrl.reset(0)
    assert np.array_equal(np.stack([worker.recv() for worker in workers]), expected)
    for t in range(9):
        actions = np.arange(3)[:, None] + t & 1
        expected, rewards, ends, _, infos = cleanrl.step(actions)
        for worker, action in zip(workers, actions, strict=True):
            worker.send(("step", action))
        for row, worker in enumerate(workers):
            observation, reward, end, info = worker.recv()
            assert (reward, end) == (rewards[row], ends[row])
            if end:
                assert info is not None and info["reward"] == infos["final_info"][row]["episode"]["r"]
                worker.send(("reset", None))
                observation = worker.recv()
            assert np.array_equal(observation, expected[row])


def test_the_clock_stops_while_weights_are_evaluated_and_ends_what_takes_too_long() -> None:
    task = OnlineTask("task", {}, 1, aim=1.0, every=100)

    def slow() -> float:
        until = time.process_time() + 0.05
        while time.process_time() < until:
            pass
        return 0.5

    clock = Clock(task, limit=100.0)
    clock.start()
    assert clock.goes_on(99, lambda: pytest.fail("too early"))
    assert all(clock.goes_on(steps, slow) for steps in (100, 200, 300))
    assert clock.run.seconds < 0.05
    assert not clock.goes_on(400, lambda: 1.0)
    assert clock.run.reached and clock.run.steps == 400
    over = Clock(task, limit=1e-9)
    over.start()
    assert not over.goes_on(50, slow)
    assert not over.run.reached


def test_a_note_says_what_was_not_reached() -> None:
    runs = [Learned(1.0, 2048, True), Learned(2.0, 4096, True), Learned(60.0, 70_000, False)]
    assert note_of(runs) == "2 of 3 after 2,048 to 4,096 steps (median 3,072), not within 70,000 steps"
    assert note_of(runs[2:]) == "0 of 1, not within 70,000 steps"


def test_an_unknown_task_is_refused() -> None:
    with pytest.raises(ConfigError, match="unknown task 'cartpole'"):
        next(learning.time_to_learn(only=["cartpole"]))


def test_without_the_folder_the_rows_are_of_recurrent_ppo_and_a_line_says_how_to_get_the_others(
    monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    class Worker:
        def __init__(self, folder: Any, system: str, program: Any) -> None:
            self.seconds = 2.0 if system in ("ours", "compiled", "wide") else 6.0

        def ask(self) -> str:
            parts = {"whole": self.seconds, "rollout": self.seconds / 4, "update": self.seconds * 3 / 4}
            return json.dumps(parts | {"memory": 1e6 * self.seconds, "parameters": 10})

        def close(self) -> None:
            pass

    monkeypatch.delenv(VARIABLE, raising=False)
    monkeypatch.setattr("benchmarks.past.Worker", Worker)
    rows = list(loops.gtrxl_loop(repetitions=2))
    assert {row.peer_name for row in rows} == {"RecurrentPPO"}
    assert {row.ratio for row in rows} == {3.0}
    assert [row.name for row in rows[:4]] == [f"GTrXL loop{part}" for part in ("", ": rollout", ": update", ": memory")]
    assert (rows[0].ours, rows[3].ours) == (16 * 512 / 2.0, 2.0)
    lines = capsys.readouterr().out.splitlines()
    assert [line.partition(":")[0] for line in lines] == ["CleanRL ppo_trxl", "episodic-transformer-memory-ppo"]
    assert all("not run; in the folder of --sources: git clone" in line for line in lines)


def test_a_window_begins_at_its_step_ends_with_the_episode_and_is_filled_up_on_the_left() -> None:
    observations, rewards = np.arange(8, dtype=np.float32).reshape(4, 2), np.array([1, 2, 3, 4], np.float32)
    episode = returns.Steps(observations, np.eye(2, dtype=np.float32)[[0, 1, 1, 0]], rewards)
    late, early = (returns.windows([(episode, start)], 3) for start in (2, 0))
    assert late["mask"].tolist() == [[0, 1, 1]] and early["mask"].tolist() == [[1, 1, 1]]
    assert late["states"][0].tolist() == [[0, 0], [4, 5], [6, 7]]
    assert late["actions"][0].tolist() == [[-10, -10], [0, 1], [1, 0]]
    assert late["timesteps"].tolist() == [[0, 2, 3]]
    assert np.allclose(returns.SCALE * late["returns"][0, :, 0], [0, 7, 4])
    assert np.allclose(returns.SCALE * early["returns"][0, :, 0], [10, 9, 7])


def test_episodes_are_played_to_their_ends_with_the_rewards_of_the_steps_before() -> None:
    config = find_config("dt_cartpole_mixture", [("evaluation.episodes", "3")])[1]
    seen: list[tuple[int, float]] = []

    def begin(target: float, count: int) -> returns.Act:
        assert (target, count) == (500.0, 3)

        def act(rows: Any, observations: Any, rewards: Any) -> list[int]:
            assert observations.shape == (len(rows), 4)
            seen.extend(zip(rows, rewards, strict=True))
            return [0] * len(rows)

        return act

    totals = returns.play(config, begin, 500.0)
    for row, total in enumerate(totals):  # CartPole pays 1 for a step, and a constant action fails within ten
        rewards = [reward for number, reward in seen if number == row]
        assert rewards == [0.0] + [1.0] * (len(rewards) - 1) and total == len(rewards) and 7 < total < 12


def test_the_error_is_over_targets_and_episodes() -> None:
    assert returns.error_of({10.0: [7.0, 10.0], 20.0: [20.0, 24.0]}) == 2.5


def test_an_unknown_decision_transformer_is_refused() -> None:
    with pytest.raises(ConfigError, match="unknown peer 'd3rlpi'; did you mean 'd3rlpy'"):
        next(returns.dt_returns(only=["d3rlpi"]))


def offline(**settings: Any) -> OfflineTask:
    course = {"target": 1.0, "aim": 2.0, "every": 10, "episodes": 2}
    return OfflineTask("KeyToDoor", "dt_key_to_door", **(course | settings))


def test_ours_learns_offline_until_an_evaluation_reaches_the_aim() -> None:
    task = offline(aim=-1.0, every=2)
    clock = Clock(task, task.limit)
    task.train(OURS_OFFLINE, 0, clock)
    assert clock.run.reached and clock.run.steps == 2 and clock.run.seconds > 0


def test_a_peer_offline_has_the_data_of_ours_and_ends_with_the_first_evaluation_in_which_a_way_reaches_the_aim(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    def begin(value: float) -> returns.Begin:
        return lambda target, count: lambda rows, observations, rewards: [value]

    def train(data: Any, config: Any, seed: int, watch: returns.Watch) -> Any:
        assert len(data) == 1000 and config.evaluation.target_returns == [1.0] and seed == 3
        for done in range(config.steps + 1):
            watch(done, {"bad": begin(0.0), "good": begin(done)})
        pytest.fail("goes on behind the aim")

    def play(config: Any, begin: returns.Begin, target: float) -> list[float]:
        assert config.evaluation.episodes == 2 and target == 1.0
        return [*begin(target, 1)([0], np.zeros((1, 6), np.float32), np.zeros(1))]

    peer = returns.Peer("a peer", ("numpy",), "", train)
    monkeypatch.setattr(returns, "PEERS", {"peer": peer, "absent": returns.Peer("", ("not_a_package",), "", train)})
    monkeypatch.setattr(returns, "play", play)
    task = offline(aim=25.0)
    assert task.systems == [OURS_OFFLINE, "peer"]
    clock = Clock(task, task.limit)
    task.train("peer", 3, clock)
    assert clock.run.reached and clock.run.steps == 30


def test_tasks_whose_data_or_package_are_missing_are_named_with_the_way_to_get_them(
    monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str], tmp_path: Any
) -> None:
    monkeypatch.setenv("MINARI_DATASETS_PATH", str(tmp_path))
    monkeypatch.setattr("benchmarks.tasks.find_spec", lambda _: None)
    assert not list(learning.time_to_learn(only=["hopper_mixture", "minigrid_memory"]))
    hopper, minigrid = (line for line in capsys.readouterr().out.splitlines() if line[:4] in ("Hopp", "Mini"))
    assert hopper.startswith("Hopper mixture, offline: not run; ") and "configs/dt_hopper_mixture.yaml" in hopper
    assert minigrid == 'MiniGrid-MemoryS7: not run; pip install "rltransformers[minigrid]"'


def test_rows_offline_compare_with_the_peers_and_count_updates(monkeypatch: pytest.MonkeyPatch) -> None:
    class Process:
        def submit(self, learn: Any, system: str, name: str, seed: int) -> Any:
            run = Learned(1.0, 100, True) if system == OURS_OFFLINE else Learned(3.0, 1500, False)
            return SimpleNamespace(result=lambda: run)

    processes: Any = {system: Process() for system in (OURS_OFFLINE, *returns.PEERS)}
    monkeypatch.setattr(returns.Peer, "installed", True)
    *rows, slowest = learning.rows_of("key_to_door", 3, processes)
    assert [row.peer_name for row in rows] == ["d3rlpy Decision Transformer", "hugging_face Decision Transformer"]
    assert all(row.ratio == 3.0 and row.setting.endswith("at most 1,500 updates") for row in rows)
    assert rows[0].note.endswith("d3rlpy Decision Transformer 0 of 2, not within 1,500 updates")
    assert slowest.note == "3 of 3 after 100 to 100 updates (median 100)"


def test_a_task_without_a_target_has_no_slowest_seed_where_one_did_not_learn(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(returns, "PEERS", {})
    runs = iter([Learned(1.0, 100, True), Learned(2.0, 200, False)])
    process: Any = SimpleNamespace(submit=lambda *_: SimpleNamespace(result=lambda: next(runs)))
    assert not [*learning.rows_of("key_to_door", 2, {OURS_OFFLINE: process})]


def test_numbers_of_actions_become_vectors_and_vectors_stay() -> None:
    data = offline().data(0)
    assert [each.actions.shape for each in returns.episodes(data)][:2] == [(n, 4) for n in data.lengths[:2]]
    first = returns.episodes(data)[0]
    assert first.actions.argmax(1).tolist() == data.actions[""][: len(first.actions)].tolist()
    space = spaces.Box(-1, 1, (3,))
    boxes = replace(data, actions={"": np.zeros((data.steps, 3), np.float32)}, action_space=space)
    assert returns.episodes(boxes)[0].actions.shape == (data.lengths[0], 3)
