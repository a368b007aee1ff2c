"""Agents as folders for the Hugging Face Hub, and back; the Hub itself is a folder here."""

import importlib.util
import inspect
import json
import re
import shutil
import sys
from collections.abc import Mapping
from dataclasses import replace
from functools import partial
from pathlib import Path
from types import ModuleType
from typing import Any

import gymnasium as gym
import numpy as np
import pytest
import yaml
from stable_baselines3.common.vec_env import DummyVecEnv

from rltransformers.agents import (
    DecisionTransformer,
    GTrXLDQN,
    GTrXLPPO,
    load_agent,
    load_from_hub,
    package_for_hub,
    push_to_hub,
)
from rltransformers.cli import runs
from rltransformers.cli.main import main
from rltransformers.core.checkpoint import load_checkpoint, save_checkpoint
from rltransformers.core.errors import CheckpointError, ConfigError, MissingExtraError
from rltransformers.envs import make_vec_env
from rltransformers.training.evaluation import EvaluationResult, evaluate_online, read_results
from rltransformers.training.runs.experiment import build_experiment
from rltransformers.training.runs.run_folder import RunFolder
from tests.agents.masked_envs import Locks
from tests.agents.test_actor import MAKERS, SMALL, Stream, online
from tests.cli.test_surroundings import files_of_at_most
from tests.envs import stand_in_pool

RESULT = EvaluationResult("CartPole-v1", (10.0, 30.0), (10, 30), (5, 6))
BEST = EvaluationResult("CartPole-v1", (99.0, 100.0), (99, 100), (5, 6))
INSTALLED = importlib.util.find_spec("huggingface_hub") is not None


@pytest.fixture(scope="module", params=["ppo", "dt"])
def agent(request: pytest.FixtureRequest) -> Any:
    return MAKERS[request.param]()


def front_matter(folder: Path) -> Any:
    return yaml.safe_load((folder / "README.md").read_text().split("---\n")[1])


def played(folder: Path) -> dict[str, Any]:
    """The names that the code on the card leaves behind; the folder stands for its repository."""
    code = re.findall(r"```python\n(.*?)```", (folder / "README.md").read_text(), re.DOTALL)
    names: dict[str, Any] = {}
    exec(code[0].replace("USER/NAME", str(folder)), names)
    assert bool(names["ended"])
    return names


def config_of(agent: Any, environment: Mapping[str, Any] | None = None, **evaluation: Any) -> dict[str, Any]:
    """The config of a run, as far as a folder for the Hub reads it."""
    offline = isinstance(agent, DecisionTransformer)
    kinds = {"GTrXLPPO": "gtrxl_ppo", "GTrXLDQN": "gtrxl_dqn", "DecisionTransformer": "decision_transformer"}
    values = {
        "agent": kinds[agent.kind],
        "environment": {"id": "CartPole-v1"} | dict(environment or {}),
        "train": {"gradient_steps" if offline else "total_timesteps": agent.num_timesteps},
        "evaluation": evaluation,
    }
    return values | ({"dataset": {"collect": {"episodes": 5}}} if offline else {})


def run_of(agent: Any, root: Path, config: dict[str, Any], result: EvaluationResult = RESULT) -> RunFolder:
    """The folder of a run that ended, with this final evaluation."""
    run = RunFolder.create(root, "run")
    run.write_config(config)
    agent.save(run.last)
    run.write_final([result])
    return run


def test_an_agent_comes_back_from_its_folder_and_the_card_tells_its_best_result(agent: Any, tmp_path: Path) -> None:
    target = 120.0 if isinstance(agent, DecisionTransformer) else None
    best = replace(BEST, target_return=target)
    folder = package_for_hub(agent, tmp_path / "new" / "agent", [RESULT, best])
    assert sorted(path.name for path in folder.iterdir()) == ["README.md", "config.json", "last.zip", "results.json"]
    stream = Stream(agent, 3)
    expected = stream.play(agent.actor())
    with pytest.raises(ConfigError, match=r"revision 'main' is one of a repository, and .* is a folder"):
        load_from_hub(str(folder), revision="main")
    for loaded in (load_from_hub(str(folder), device="cpu"), load_agent(folder, device="cpu")):
        assert (stream.play(loaded.actor()) == expected).all()
    matter = front_matter(folder)
    assert {"CartPole-v1", "reinforcement-learning", "rltransformers"} <= set(matter["tags"])
    (model,) = matter["model-index"]
    (entry,) = model["results"]
    assert model["name"] == agent.kind and entry["dataset"]["type"] == "CartPole-v1"
    assert entry["metrics"][0]["value"] == "99.50 +/- 0.50" and entry["metrics"][0]["type"] == "mean_reward"
    measures = json.loads((folder / "results.json").read_text())
    assert measures["mean_reward"] == 99.5 and measures["n_eval_episodes"] == 2
    assert [EvaluationResult.from_dict(each) for each in measures["results"]] == [RESULT, best]
    config = json.loads((folder / "config.json").read_text())
    assert config["agent"] == agent.kind and config["environment"] == "CartPole-v1" and "settings" in config
    if INSTALLED:
        card = importlib.import_module("huggingface_hub").ModelCard.load(folder / "README.md")
        assert card.data.eval_results[0].metric_value == "99.50 +/- 0.50"


def test_a_run_brings_its_config_and_its_final_evaluation(agent: Any, tmp_path: Path) -> None:
    run = run_of(agent, tmp_path, config_of(agent))
    run.evaluation.unlink()
    with pytest.raises(ConfigError, match="no results"):
        package_for_hub(run.path, tmp_path / "hub")
    run.write_final([RESULT])
    folder = package_for_hub(str(run.path), tmp_path / "hub")
    assert (folder / "config.yaml").read_text() == run.config.read_text()
    assert (folder / "last.zip").read_bytes() == run.last.read_bytes()
    assert json.loads((folder / "results.json").read_text())["mean_reward"] == 20.0
    config = run.config.read_text()
    run.config.write_text("agent: gtrxl_ppo")
    with pytest.raises(ConfigError, match="train is missing"):
        package_for_hub(run.path, tmp_path / "damaged")
    run.config.write_text(config)
    run.last.write_bytes(b"PK")
    with pytest.raises(CheckpointError, match=f"{re.escape(str(run.last))}.*corrupt"):
        package_for_hub(run.path, tmp_path / "damaged")
    run.last.unlink()
    with pytest.raises(CheckpointError, match="stopped before"):
        package_for_hub(run.path, tmp_path / "damaged")
    save_checkpoint(run.last, "Normalizer", {}, {})
    with pytest.raises(CheckpointError, match=r"last\.zip holds a Normalizer, not an agent; agents: Decision"):
        package_for_hub(run.path, tmp_path / "damaged", [RESULT])
    assert sorted(path.name for path in tmp_path.iterdir()) == ["hub", "run"]


def test_a_card_quotes_the_id(agent: Any, tmp_path: Path) -> None:
    odd = replace(BEST, env_id="CartPole-v1`\n# <b>Trust me</b>")
    card = (package_for_hub(agent, tmp_path / "card", [odd]) / "README.md").read_text()
    assert [line for line in card.splitlines() if line.startswith("#")] == [
        f"# {agent.kind} in `CartPole-v1' # <b>Trust me</b>`"
    ]


def test_a_full_disk_is_told_of_the_folder_and_not_of_a_temporary_one(agent: Any, tmp_path: Path) -> None:
    run = run_of(agent, tmp_path, config_of(agent))
    for source, results in ((agent, [RESULT]), (run.path, None)):
        with files_of_at_most(3000), pytest.raises((CheckpointError, OSError)) as refused:
            package_for_hub(source, tmp_path / "hub", results)
        assert str(tmp_path / "hub") in str(refused.value) and ".hub" not in str(refused.value)


def test_a_folder_is_refused_before_anything_is_written(agent: Any, tmp_path: Path) -> None:
    (tmp_path / "there").mkdir()
    nameless = EvaluationResult(None, (1.0,), (1,), (0,))
    for folder, results, words in [("there", [RESULT], "exists"), ("a", [], "no results"), ("a", [nameless], "env_id")]:
        with pytest.raises(ConfigError, match=words):
            package_for_hub(agent, tmp_path / folder, results)
    with pytest.raises(ConfigError, match=r"config\.yaml"):
        package_for_hub(tmp_path, tmp_path / "a", [RESULT])
    assert [path.name for path in tmp_path.iterdir()] == ["there"]


TASK = """
import gymnasium as gym
import numpy as np


class Corridor(gym.Env):
    def __init__(self, length, noise):
        self.observation_space, self.action_space = gym.spaces.Box(-np.inf, np.inf, (3,)), gym.spaces.Discrete(2)
        self.length, self.noise = length, noise

    def reset(self, *, seed=None, options=None):
        super().reset(seed=seed)
        self.t = 0
        return self.observe(), {}

    def step(self, action):
        self.t += 1
        return self.observe(), float(action), self.t == self.length, False, {}

    def observe(self):
        return np.array([self.t, self.noise * self.np_random.normal(), 1.0], np.float32)


gym.register("hub/Corridor-v0", Corridor)
"""
"""A module that registers an environment, which cannot be made without keywords."""


@pytest.mark.parametrize("name", ["gtrxl_ppo", "decision_transformer"])
def test_the_card_of_a_run_plays_in_the_environment_that_was_evaluated(
    name: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.chdir(tmp_path)
    module = f"corridor_of_{name}"
    (tmp_path / f"{module}.py").write_text(TASK)
    monkeypatch.delitem(gym.registry, "hub/Corridor-v0", raising=False)
    values: dict[str, Any] = {
        "agent": name,
        "environment": {
            "id": f"{module}:hub/Corridor-v0",
            "kwargs": {"length": 5, "noise": 0.5},
            "wrappers": [{"name": "DropIndices", "indices": [1]}],
        },
        "backbone": {"preset": name.replace("_ppo", ""), **SMALL},
        "evaluation": {"episodes": 2, "kwargs": {"length": 9}},
    }
    if name == "gtrxl_ppo":
        values["environment"] |= {"normalize_observation": True, "normalize_reward": True}
        values |= {"policy": {"previous_reward": True}, "algorithm": {"n_steps": 8, "n_epochs": 1, "device": "cpu"}}
        values["train"] = {"total_timesteps": 8}
    else:
        values |= {"dataset": {"collect": {"episodes": 4}}, "train": {"gradient_steps": 1}}
        values["algorithm"] = {"context_length": 4, "batch_size": 4, "device": "cpu"}
        values["evaluation"]["target_returns"] = [3.0]
    run, results = runs.train("run", build_experiment(values | {"output": str(tmp_path)}))
    names = played(package_for_hub(run.path, tmp_path / "hub"))
    env = names["env"]
    assert (env.unwrapped.length, env.unwrapped.noise, env.observation_space.shape) == (9, 0.5, (2,))
    assert results[0].lengths == (9, 9)


def test_the_card_asks_for_the_return_that_its_figure_belongs_to(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    model, calls, actor = MAKERS["dt"](), [], DecisionTransformer.actor

    def spy(self: DecisionTransformer, *args: Any, **keywords: Any) -> Any:
        calls.append((args, keywords))
        return actor(self, *args, **keywords)

    monkeypatch.setattr(DecisionTransformer, "actor", spy)
    results = [replace(RESULT, target_return=500.0), replace(BEST, target_return=37.5)]
    played(package_for_hub(model, tmp_path / "hub", results))
    played(package_for_hub(model, tmp_path / "without", [RESULT]))
    run = run_of(model, tmp_path, config_of(model, deterministic=False), results[1])
    played(package_for_hub(run.path, tmp_path / "sampled"))
    assert calls == [((), {"target_return": 37.5}), ((), {}), ((), {"target_return": 37.5, "deterministic": False})]


def test_the_card_of_an_agent_alone_makes_its_environment_by_the_id(agent: Any, tmp_path: Path) -> None:
    folder = package_for_hub(agent, tmp_path / "hub", [RESULT])
    assert played(folder)["env"].spec.id == "CartPole-v1"
    assert "gym.make(" in (folder / "README.md").read_text()


def test_the_card_writes_keywords_as_python_does(agent: Any, tmp_path: Path) -> None:
    clip = {"name": "ClipReward", "min_reward": -np.inf, "max_reward": 0.5}
    config = config_of(agent, {"wrappers": [clip]}, kwargs={"max_episode_steps": 4, "sutton_barto_reward": False})
    names = played(package_for_hub(run_of(agent, tmp_path, config).path, tmp_path / "hub"))
    assert names["reward"] == 0.5 and names["env"].spec.max_episode_steps == 4


def test_results_of_another_environment_make_a_card_about_that(
    agent: Any, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.delitem(gym.registry, "hub/Other-v0", raising=False)
    gym.register("hub/Other-v0", "gymnasium.envs.classic_control:CartPoleEnv", max_episode_steps=3)
    limit = {"name": "TimeLimit", "max_episode_steps": 2}
    run = run_of(agent, tmp_path, config_of(agent, {"wrappers": [limit]}, kwargs={"max_episode_steps": 4}))
    result = replace(RESULT, env_id="hub/Other-v0")
    env = played(package_for_hub(run.path, tmp_path / "hub", [result]))["env"]
    limits = []
    while isinstance(env, gym.Wrapper):
        limits += [env._max_episode_steps] if isinstance(env, gym.wrappers.TimeLimit) else []
        env = env.env
    assert limits == [2, 3]  # the wrapper and the environment's own, not the keyword of the run's environment
    with pytest.raises(ConfigError, match=r"results are of CartPole-v1, hub/Other-v0, and a card is about one env"):
        package_for_hub(run.path, tmp_path / "both", [RESULT, result])


def test_the_card_gives_masks_that_stand_beside_the_observation(tmp_path: Path) -> None:
    gym.register("hub/Locks-v0", "tests.agents.masked_envs:Locks", disable_env_checker=True)
    policy = {"backbone": {"memory": 6, **SMALL}, "action_masks": True}
    model = GTrXLPPO("GTrXLPolicy", Locks(), n_steps=8, policy_kwargs=policy, seed=0, device="cpu")
    played(package_for_hub(model, tmp_path / "hub", [replace(RESULT, env_id="hub/Locks-v0")]))


def test_the_card_of_a_run_in_envpool_plays_there(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setitem(sys.modules, "envpool", stand_in_pool)
    model = online()
    environment = {"processes": "envpool", "kwargs": {"max_episode_steps": 5}, "num_envs": 2}
    run = run_of(model, tmp_path, config_of(model, environment))
    env = played(package_for_hub(run.path, tmp_path / "hub"))["env"]
    assert env.num_envs == 1 and type(env.unwrapped.env).__name__ == "EnvPoolVector"


def test_a_folder_holds_no_replay(tmp_path: Path) -> None:
    model = MAKERS["dqn"]()
    run = run_of(model, tmp_path, config_of(model))
    stream = Stream(model, 3)
    for source, name in ((model, "of the agent"), (run.path, "of the run")):
        folder = package_for_hub(source, tmp_path / name, [RESULT])
        assert load_checkpoint(run.last).tensors["replay"] is not None
        checkpoint = load_checkpoint(folder / "last.zip")
        assert checkpoint.tensors["replay"] is None
        assert checkpoint.settings == load_checkpoint(run.last).settings
        assert (folder / "last.zip").stat().st_size < run.last.stat().st_size
        assert (stream.play(load_from_hub(str(folder), device="cpu").actor()) == stream.play(model.actor())).all()
        env = [lambda: gym.make("CartPole-v1")] * 2
        resumed = GTrXLDQN.load(folder / "last.zip", env=DummyVecEnv(env), device="cpu")
        assert resumed.replay_buffer is not None and resumed.replay_buffer.size() == 0
        assert resumed.learn(16, reset_num_timesteps=False).num_timesteps > model.num_timesteps


def test_a_folder_holds_no_episodes_that_a_decision_transformer_played(tmp_path: Path) -> None:
    model: Any = MAKERS["dt, a Box of actions"]()
    model.learn_online("Pendulum-v1", 1, updates_per_episode=1)
    model.save(tmp_path / "model")
    folder = package_for_hub(model, tmp_path / "hub", [RESULT])
    assert "replay" in load_checkpoint(tmp_path / "model").tensors
    assert not {"replay", "online"} & set(load_checkpoint(folder / "last.zip").tensors)
    stream = Stream(model, 3)
    assert (stream.play(load_from_hub(str(folder), device="cpu").actor()) == stream.play(model.actor())).all()


def test_results_of_another_step_than_the_checkpoint_are_refused(
    agent: Any, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.chdir(tmp_path)
    steps = agent.num_timesteps
    run = run_of(agent, tmp_path, config_of(agent, episodes=2), replace(RESULT, step=steps - 3))
    numbers = rf"step {steps - 3}\b.* step {steps}\b"
    with pytest.raises(ConfigError, match=numbers + r".*rltransformers evaluate .*run --json > .*evaluation\.json"):
        package_for_hub(run.path, tmp_path / "hub")
    with pytest.raises(ConfigError, match=numbers):
        package_for_hub(agent, tmp_path / "hub", [replace(RESULT, step=steps), replace(RESULT, step=steps - 3)])
    assert not (tmp_path / "hub").exists()
    package_for_hub(agent, tmp_path / "hub", [replace(RESULT, step=steps), RESULT])
    assert main(["evaluate", str(run.path), "--json"]) == 0  # the way out
    run.evaluation.write_text(capsys.readouterr().out)
    assert read_results(run.evaluation)[0].step == steps
    played(package_for_hub(run.path, tmp_path / "again"))


def test_an_evaluation_says_which_weights_it_is_of(agent: Any) -> None:
    if isinstance(agent, DecisionTransformer):
        (result,) = agent.evaluate("CartPole-v1", episodes=2, target_returns=[9.0])
    else:
        result = evaluate_online(agent, make_vec_env("CartPole-v1", 2), "CartPole-v1", episodes=2)
    assert result.step == agent.num_timesteps > 0


def fits(real: Any, method: str | None, **keywords: Any) -> None:
    """Raise unless the real function, where it is installed, takes these keywords."""
    if real is not Any:
        call = real if method is None else partial(getattr(real, method), None)
        inspect.signature(call).bind(**keywords)


class Hub(ModuleType):
    """``huggingface_hub`` whose repositories are folders; its calls have the signatures of the real one.

    With an ``error`` every call raises it.
    """

    def __init__(self, root: Path, error: Exception | None = None) -> None:
        super().__init__("huggingface_hub")
        real: Any = importlib.import_module("huggingface_hub") if INSTALLED else self
        api, download = (getattr(real, name, Any) for name in ("HfApi", "hf_hub_download"))

        class HfApi:
            def create_repo(self, **keywords: Any) -> None:
                fits(api, "create_repo", **keywords)
                if error is not None:
                    raise error
                (root / keywords["repo_id"]).mkdir(parents=True, exist_ok=keywords["exist_ok"])

            def upload_folder(self, **keywords: Any) -> str:
                fits(api, "upload_folder", **keywords)
                shutil.copytree(keywords["folder_path"], root / keywords["repo_id"], dirs_exist_ok=True)
                return f"https://hub/{keywords['repo_id']}"

        def hf_hub_download(**keywords: Any) -> str:
            fits(download, None, **keywords)
            file = root / keywords["repo_id"] / keywords["filename"]
            if error is not None or not file.is_file():
                raise error or FileNotFoundError(f"404 Client Error.\n\nEntry Not Found for url: {file}.")
            return str(file)

        self.HfApi, self.hf_hub_download = HfApi, hf_hub_download


def test_a_repository_gives_back_what_was_pushed(agent: Any, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setitem(sys.modules, "huggingface_hub", Hub(tmp_path / "the hub"))
    monkeypatch.chdir(tmp_path)
    folder = package_for_hub(agent, "agent", [RESULT])
    assert push_to_hub(folder, "someone/agent") == "https://hub/someone/agent"
    push_to_hub(folder, "someone/agent", private=True)  # again
    stream = Stream(agent, 2)
    loaded = load_from_hub("someone/agent", device="cpu")
    assert (stream.play(loaded.actor()) == stream.play(agent.actor())).all()
    with pytest.raises(CheckpointError, match=r"someone/else.*404 Client Error\. Entry Not Found"):
        load_from_hub("someone/else")
    (folder / "README.md").unlink()
    with pytest.raises(ConfigError, match=r"lacks README\.md"):
        push_to_hub(folder, "someone/agent")


class ConnectError(Exception):
    """As that of httpx, which is no ``OSError``."""


class HfHubHTTPError(OSError):
    """As that of ``huggingface_hub``, whose messages have several lines."""


@pytest.mark.parametrize(
    "error",
    [
        HfHubHTTPError("401 Client Error. (Request ID: 1)\n\nRepository Not Found for url: https://hub/someone/agent."),
        ConnectError("[Errno 111] Connection refused"),
        ValueError("Repo id must be in the form 'repo_name' or 'namespace/repo_name'"),
    ],
)
def test_what_the_hub_refuses_names_the_repository_the_reason_and_a_way_out(
    agent: Any, error: Exception, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setitem(sys.modules, "huggingface_hub", Hub(tmp_path / "the hub", error))
    folder = package_for_hub(agent, tmp_path / "agent", [RESULT])
    with pytest.raises(CheckpointError) as load:
        load_from_hub("someone/agent")
    with pytest.raises(ConfigError) as push:
        push_to_hub(folder, "someone/agent")
    for refusal in (load.value, push.value):
        message = str(refusal)
        assert "someone/agent" in message and " ".join(str(error).split()) in message and "\n" not in message
        assert type(error).__name__ in message and "hf auth login" in message
        assert refusal.__cause__ is error


@pytest.mark.skipif(not INSTALLED, reason="asks huggingface_hub itself")
def test_without_network_the_hub_refuses_in_our_words(
    agent: Any, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("huggingface_hub.constants.HF_HUB_OFFLINE", True)
    with pytest.raises(CheckpointError, match="someone/of-whom-nothing-is-cached"):
        load_from_hub("someone/of-whom-nothing-is-cached")
    with pytest.raises(ConfigError, match="someone/agent"):
        push_to_hub(package_for_hub(agent, tmp_path / "agent", [RESULT]), "someone/agent")


def test_without_the_extra_folders_are_made_and_loaded_all_the_same(
    agent: Any, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setitem(sys.modules, "huggingface_hub", None)
    folder = package_for_hub(agent, tmp_path / "agent", [RESULT])
    assert load_from_hub(str(folder)).kind == agent.kind
    for call in (lambda: push_to_hub(folder, "someone/agent"), lambda: load_from_hub("someone/agent")):
        with pytest.raises(MissingExtraError, match=r"rltransformers\[hub\]"):
            call()
    with pytest.raises(MissingExtraError, match="there is no folder mistyped, and for a repository of the Hub: "):
        load_from_hub("mistyped")
