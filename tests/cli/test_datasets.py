"""Datasets by their paths: inspected, trained on, and programs among them only for those who trust them."""

import json
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from stable_baselines3 import DQN

from rltransformers.data import load_trajectories, record
from tests.cli.test_runs import refused, run, work

__all__ = ["work"]  # a fixture
TASK = "rltransformers/KeyToDoor-v0"
SHORT = ["--train.gradient_steps", "2", "--evaluation.episodes", "2"]


def flat_file(path: Path) -> Path:
    """Random walks as flat arrays, every end a terminal."""
    data = record(TASK, "random", episodes=6, num_envs=2, seed=0)
    rows = np.arange(data.steps) + np.repeat(np.arange(len(data)), data.lengths)
    np.savez(
        path,
        observations=data.observations[""][rows],
        actions=data.actions[""],
        rewards=data.rewards,
        terminals=data.terminations | data.truncations,
    )
    return path


def test_inspect_says_which_returns_to_ask_for(work: Path, capsys: pytest.CaptureFixture[str]) -> None:
    steps = np.arange(10) == 0
    for name, returns in (("many", [1.23456, 2.0, 3.0, 40.0, 500.0]), ("one", [7.0, 7.0])):
        rewards = np.concatenate([value * steps for value in returns])
        ends = np.tile(np.arange(10) == 9, len(returns))
        np.savez(
            f"{name}.npz", observations=np.zeros((len(ends), 2)), actions=ends * 1, rewards=rewards, terminals=ends
        )
    printed = run(capsys, "inspect", "many.npz")
    assert "--evaluation.target_returns '[3.0, 500.0]'" in printed  # no episode is near 316, the quantile 0.9
    assert json.loads(run(capsys, "inspect", "many.npz", "--json"))["target_returns"] == [3.0, 500.0]
    assert json.loads(run(capsys, "inspect", "one.npz", "--json"))["target_returns"] == [7.0]
    summary = json.loads(run(capsys, "inspect", "one.npz", "--time-limit", "10", "--json"))
    assert (summary["terminated_episodes"], summary["truncated_episodes"]) == (0, 2)
    with pytest.warns(UserWarning, match="has no rewards"):
        load_trajectories([{"observations": np.zeros((9, 2)), "actions": np.arange(9) % 2}]).save("unpaid")
    printed = run(capsys, "inspect", "unpaid")
    assert "only mode='bc' learns from these data" in printed and "target_returns" not in printed
    assert "there is no file gone.npz" in refused(capsys, "inspect", "gone.npz")


def test_files_are_trained_on_and_read_as_the_config_says(work: Path, capsys: pytest.CaptureFixture[str]) -> None:
    path = str(flat_file(work / "walks.npz"))
    options = ["--dataset", json.dumps({"id": path, "time_limit": 24, "cache": "cache"})]
    run(capsys, "train", "offline.yaml", *options, *SHORT)
    (cached,) = (work / "cache").glob("trajectories-*")
    assert not np.load(cached / "terminations.npy").any()
    options = ["--dataset", '{"collect": {"episodes": 2}, "time_limit": 24}']
    assert "dataset.time_limit is about how the data of dataset.id are read" in refused(
        capsys, "train", "offline.yaml", *options
    )


def test_a_log_with_names_of_its_own_is_trained_on(work: Path, capsys: pytest.CaptureFixture[str]) -> None:
    data = record(TASK, "random", episodes=6, num_envs=2, seed=0)
    names = {"observations": "seen_*", "actions": "key", "rewards": "gain", "episode": "run", "step": "time"}
    rows = np.arange(data.steps) + np.repeat(np.arange(len(data)), data.lengths)
    seen = data.observations[""][rows].reshape(data.steps, -1)
    columns = {f"seen_{index}": seen[:, index] for index in range(seen.shape[1])}
    columns |= {"key": data.actions[""], "gain": data.rewards, "run": np.repeat(np.arange(len(data)), data.lengths)}
    columns["time"] = np.arange(data.steps)
    lines = [json.dumps({name: values[row].item() for name, values in columns.items()}) for row in range(data.steps)]
    (work / "walks.jsonl").write_text("\n".join(lines))
    path, space = str(work / "walks.jsonl"), str(data.action_space)

    def options(**columns: str) -> list[str]:
        return ["--dataset", json.dumps({"id": path, "action_space": space, "columns": columns}), *SHORT]

    run(capsys, "train", "offline.yaml", *options(**names))
    words = ["inspect", path, "--action-space", space, "--json", "--columns"]
    assert json.loads(run(capsys, *words, json.dumps(names)))["return"]["mean"] == pytest.approx(data.returns.mean())
    assert "columns names 'reward'; did you mean 'rewards'?" in refused(capsys, *words, "{reward: gain}")
    dataset = {"id": path, "action_space": space, "columns": names}
    config = {"agent": "decision_transformer", "dataset": dataset, "algorithm": {"validation": 0.1}}
    (work / "walks.yaml").write_text(json.dumps(config | {"train": {"gradient_steps": 1}}))
    summary = json.loads(run(capsys, "inspect", "walks.yaml", "--json"))
    assert summary["action_values"][""]["names"] == ["key"] and summary["length"]["max"] == data.lengths.max()
    assert json.loads(run(capsys, "inspect", "walks.yaml", "--time-limit", "24", "--json"))["truncated_episodes"] == 6
    (work / "online.yaml").write_text("agent: gtrxl_ppo\nenvironment: {id: CartPole-v1}\ntrain: {total_timesteps: 8}")
    assert "online.yaml names no recorded data (dataset.id)" in refused(capsys, "inspect", "online.yaml")
    assert "no column is called like observations" in refused(capsys, "train", "offline.yaml", *options())
    assert "columns names 'reward'; did you mean 'rewards'?" in refused(
        capsys, "train", "offline.yaml", *options(reward="gain")
    )


def test_a_pickled_buffer_is_read_only_for_those_who_trust_it(work: Path, capsys: pytest.CaptureFixture[str]) -> None:
    from rltransformers.envs import make_vec_env

    model = DQN(
        "MlpPolicy", make_vec_env(TASK, num_envs=1, seed=0), buffer_size=100, learning_starts=10**6, device="cpu"
    )
    model.learn(72)
    model.save_replay_buffer("walks.pkl")
    assert "trust=True" in refused(capsys, "inspect", "walks.pkl")
    assert "episodes               3" in run(capsys, "inspect", "walks.pkl", "--trust")
    config = Path("offline.yaml").read_text().replace("collect:\n    episodes: 10", "id: walks.pkl")
    assert "walks.pkl" in config
    Path("pickled.yaml").write_text(config)
    message = refused(capsys, "train", "pickled.yaml", *SHORT)
    assert "dataset.id 'walks.pkl' is a pickle, which runs code when it is read" in message
    run(capsys, "train", "pickled.yaml", *SHORT, "--trust")
    run(capsys, "train", "offline.yaml", *SHORT, "--dataset", "walks.pkl")  # typed, his own word


def test_a_space_that_was_guessed_is_named_and_can_be_given(work: Path, capsys: pytest.CaptureFixture[str]) -> None:
    """Actions of shape [T, 1] stand for the classes of a Discrete; the last class never occurs in these."""
    data = record(TASK, "random", episodes=6, num_envs=2, seed=0)
    rows = np.arange(data.steps) + np.repeat(np.arange(len(data)), data.lengths)
    arrays: dict[str, Any] = {"observations": data.observations[""][rows], "rewards": data.rewards}
    actions = np.minimum(data.actions[""], 1)[:, None]
    np.savez("walks.npz", actions=actions, terminals=data.terminations | data.truncations, **arrays)
    printed = run(capsys, "inspect", "walks.npz")
    assert "action_space MultiDiscrete([2]) is a guess" in printed and "--action-space" in printed
    message = refused(capsys, "train", "offline.yaml", "--dataset", "walks.npz", *SHORT)
    assert "is not that of the dataset" in message and "dataset.action_space" in message
    with pytest.warns(UserWarning, match="is a guess"):  # no environment tells
        run(capsys, "train", "--dataset.id", "walks.npz", "--train.gradient_steps", "1", "--output", "alone")
    space = str(data.action_space)
    assert "is a guess" not in run(capsys, "inspect", "walks.npz", "--action-space", space)
    run(capsys, "train", "offline.yaml", "--dataset", json.dumps({"id": "walks.npz", "action_space": space}), *SHORT)
