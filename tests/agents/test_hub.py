"""Agents as folders for the Hugging Face Hub, and back; the Hub itself is a folder here."""

import importlib.util
import inspect
import json
import shutil
import sys
from functools import partial
from pathlib import Path
from types import ModuleType
from typing import Any

import pytest
import yaml

from rltransformers.agents import load_agent, load_from_hub, package_for_hub, push_to_hub
from rltransformers.core.errors import CheckpointError, ConfigError, MissingExtraError
from rltransformers.training.evaluation import EvaluationResult
from rltransformers.training.run_folder import RunFolder
from tests.agents.test_actor import MAKERS, Stream

RESULT = EvaluationResult("CartPole-v1", (10.0, 30.0), (10, 30), (5, 6))
BEST = EvaluationResult("CartPole-v1", (99.0, 100.0), (99, 100), (5, 6), target_return=120.0)
INSTALLED = importlib.util.find_spec("huggingface_hub") is not None


@pytest.fixture(scope="module", params=["ppo", "dt"])
def agent(request: pytest.FixtureRequest) -> Any:
    return MAKERS[request.param]()


def front_matter(folder: Path) -> Any:
    return yaml.safe_load((folder / "README.md").read_text().split("---\n")[1])


def test_an_agent_comes_back_from_its_folder_and_the_card_tells_its_best_result(agent: Any, tmp_path: Path) -> None:
    folder = package_for_hub(agent, tmp_path / "new" / "agent", [RESULT, BEST])
    assert sorted(path.name for path in folder.iterdir()) == ["README.md", "config.json", "last.zip", "results.json"]
    stream = Stream(agent, 3)
    expected = stream.play(agent.actor())
    for loaded in (load_from_hub(str(folder), device="cpu"), load_agent(folder, device="cpu")):
        assert (stream.play(loaded.actor()) == expected).all()
    matter = front_matter(folder)
    assert {"CartPole-v1", "reinforcement-learning", "rltransformers"} <= set(matter["tags"])
    (model,) = matter["model-index"]
    (entry,) = model["results"]
    assert model["name"] == agent.kind and entry["dataset"]["type"] == "CartPole-v1"
    assert entry["metrics"][0]["value"] == "99.50 +/- 0.50" and entry["metrics"][0]["type"] == "mean_reward"
    told = json.loads((folder / "results.json").read_text())
    assert told["mean_reward"] == 99.5 and told["n_eval_episodes"] == 2
    assert [EvaluationResult.from_dict(each) for each in told["results"]] == [RESULT, BEST]
    config = json.loads((folder / "config.json").read_text())
    assert config["agent"] == agent.kind and config["environment"] == "CartPole-v1" and "settings" in config
    if INSTALLED:
        card = importlib.import_module("huggingface_hub").ModelCard.load(folder / "README.md")
        assert card.data.eval_results[0].metric_value == "99.50 +/- 0.50"


def test_a_run_brings_its_config_and_its_final_evaluation(agent: Any, tmp_path: Path) -> None:
    run = RunFolder.create(tmp_path, "run")
    run.write_config({"agent": agent.kind})
    agent.save(run.last)
    with pytest.raises(ConfigError, match="no results"):
        package_for_hub(run.path, tmp_path / "hub")
    run.write_final([RESULT])
    folder = package_for_hub(str(run.path), tmp_path / "hub")
    assert (folder / "config.yaml").read_text() == run.config.read_text()
    assert (folder / "last.zip").read_bytes() == run.last.read_bytes()
    assert json.loads((folder / "results.json").read_text())["mean_reward"] == 20.0
    run.last.write_bytes(b"PK")
    with pytest.raises(CheckpointError, match="corrupt"):
        package_for_hub(run.path, tmp_path / "damaged")
    run.last.unlink()
    with pytest.raises(CheckpointError, match="stopped before"):
        package_for_hub(run.path, tmp_path / "damaged")
    assert sorted(path.name for path in tmp_path.iterdir()) == ["hub", "run"]


def test_a_folder_is_refused_before_anything_is_written(agent: Any, tmp_path: Path) -> None:
    (tmp_path / "there").mkdir()
    nameless = EvaluationResult(None, (1.0,), (1,), (0,))
    for folder, results, words in [("there", [RESULT], "exists"), ("a", [], "no results"), ("a", [nameless], "env_id")]:
        with pytest.raises(ConfigError, match=words):
            package_for_hub(agent, tmp_path / folder, results)
    with pytest.raises(ConfigError, match=r"config\.yaml"):
        package_for_hub(tmp_path, tmp_path / "a", [RESULT])
    assert [path.name for path in tmp_path.iterdir()] == ["there"]


def fits(real: Any, method: str | None, **keywords: Any) -> None:
    """Raise unless the real function, where it is installed, takes these keywords."""
    if real is not Any:
        call = real if method is None else partial(getattr(real, method), None)
        inspect.signature(call).bind(**keywords)


class Hub(ModuleType):
    """``huggingface_hub`` whose repositories are folders; its calls have the signatures of the real one."""

    def __init__(self, root: Path) -> None:
        super().__init__("huggingface_hub")
        real: Any = importlib.import_module("huggingface_hub") if INSTALLED else self
        api, download = (getattr(real, name, Any) for name in ("HfApi", "hf_hub_download"))

        class HfApi:
            def create_repo(self, **given: Any) -> None:
                fits(api, "create_repo", **given)
                (root / given["repo_id"]).mkdir(parents=True, exist_ok=given["exist_ok"])

            def upload_folder(self, **given: Any) -> str:
                fits(api, "upload_folder", **given)
                shutil.copytree(given["folder_path"], root / given["repo_id"], dirs_exist_ok=True)
                return f"https://hub/{given['repo_id']}"

        def hf_hub_download(**given: Any) -> str:
            fits(download, None, **given)
            return str(root / given["repo_id"] / given["filename"])

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
    with pytest.raises(CheckpointError, match="does not exist"):
        load_from_hub("someone/else")
    (folder / "README.md").unlink()
    with pytest.raises(ConfigError, match=r"lacks README\.md"):
        push_to_hub(folder, "someone/agent")


def test_without_the_extra_folders_are_made_and_loaded_all_the_same(
    agent: Any, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setitem(sys.modules, "huggingface_hub", None)
    folder = package_for_hub(agent, tmp_path / "agent", [RESULT])
    assert load_from_hub(str(folder)).kind == agent.kind
    for call in (lambda: push_to_hub(folder, "someone/agent"), lambda: load_from_hub("someone/agent")):
        with pytest.raises(MissingExtraError, match=r"rltransformers\[hub\]"):
            call()
