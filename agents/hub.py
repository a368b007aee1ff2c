"""Trained agents as folders for the Hugging Face Hub: a checkpoint, its settings, its results and a model card."""

import json
import os
import shutil
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import torch
import yaml

from rltransformers import __version__
from rltransformers.agents.load import CHECKPOINT, Agent, load_agent
from rltransformers.core.checkpoint import load_checkpoint
from rltransformers.core.errors import CheckpointError, ConfigError, require
from rltransformers.core.files import replacing_folder
from rltransformers.core.ranges import strict
from rltransformers.training.evaluation import EvaluationResult, read_results

if __name__ != "rltransformers.agents.hub":
    raise ImportError("import this file as rltransformers.agents.hub")

CARD = "README.md"
FILES = (CHECKPOINT, CARD, "config.json", "results.json")
"""What every folder holds; of a run its ``config.yaml`` too."""


@strict
def package_for_hub(
    source: Agent | str | os.PathLike[str],
    folder: str | os.PathLike[str],
    results: Sequence[EvaluationResult] | None = None,
) -> Path:
    """Make a folder that is ready to be uploaded, and return it.

    It holds ``last.zip``, the checkpoint; ``config.json``, its settings; ``results.json``; ``README.md``, a model card
    whose front matter the Hub reads (tags, environment, mean reward); of a run its ``config.yaml``. ``load_agent``
    takes the folder, and nothing in it is executed by that.

    Args:
        source: an agent, or a run folder, whose ``last.zip`` is taken.
        folder: one that does not exist yet.
        results: of evaluations, see ``evaluate_online``; of several the one of the highest mean is on the card. None
            takes the final evaluation of a run.

    Raises:
        ConfigError: the folder exists, there are no results, or they name no environment.
        CheckpointError: the run has no checkpoint, or one that is not of this package.
    """
    from rltransformers.training.run_folder import RunFolder  # brings matplotlib, which agents start without

    folder = Path(folder)
    if folder.exists():
        raise ConfigError(f"{folder} exists; name a new folder, nothing is overwritten")
    run = RunFolder.open(source) if isinstance(source, str | os.PathLike) else None
    if results is None and run is not None and run.evaluation.is_file():
        results = read_results(run.evaluation)
    if not results:
        raise ConfigError("there are no results; give results=[evaluate_online(...)], or a run that ended")
    best = max(results, key=lambda result: result.mean)
    if best.env_id is None:
        raise ConfigError("the results name no environment; give them an env_id, the card is about it")
    with replacing_folder(folder) as place:
        if run is not None:
            if not run.last.is_file():
                raise CheckpointError(f"run {run.path} has no {CHECKPOINT}: it was stopped before its first checkpoint")
            shutil.copyfile(run.last, place / CHECKPOINT)
            shutil.copyfile(run.config, place / run.config.name)
        else:
            source.save(place / CHECKPOINT)  # type: ignore[union-attr]  # an agent, where it is no run
        checkpoint = load_checkpoint(place / CHECKPOINT)
        config = {"agent": checkpoint.kind, "environment": best.env_id, "rltransformers": checkpoint.code_version}
        (place / "config.json").write_text(_json(config | {"settings": checkpoint.settings}))
        told = {"mean_reward": best.mean, "std_reward": best.std, "n_eval_episodes": len(best.returns)}
        (place / "results.json").write_text(_json(told | {"results": [result.to_dict() for result in results]}))
        (place / CARD).write_text(_card(checkpoint.kind, best))
    return folder


def _json(values: dict[str, Any]) -> str:
    return json.dumps(values, indent=1) + "\n"


def _card(kind: str, result: EvaluationResult) -> str:
    """A model card; its front matter is what cards of Stable-Baselines3 agents have, which the Hub shows and ranks."""
    value = f"{result.mean:.2f} +/- {result.std:.2f}"
    metric = {"type": "mean_reward", "name": "mean_reward", "value": value, "verified": False}
    task = "reinforcement-learning"
    entry = {
        "task": {"type": task, "name": task},
        "dataset": {"type": result.env_id, "name": result.env_id},
        "metrics": [metric],
    }
    matter = {
        "library_name": "rltransformers",
        "tags": [result.env_id, "deep-reinforcement-learning", task, "rltransformers"],
        "model-index": [{"name": kind, "results": [entry]}],
    }
    asked = "" if result.target_return is None else f", asked for a return of {result.target_return:g}"
    return f"""---
{yaml.safe_dump(matter, sort_keys=False)}---

# {kind} in {result.env_id}

Mean return **{value}** over {len(result.returns)} episodes from seeds {result.seeds[0]} to {result.seeds[-1]}{asked}.
All episodes: `results.json`. Settings: `config.json`.

```python
import gymnasium as gym

from rltransformers.agents import load_from_hub

actor = load_from_hub("USER/NAME").actor()  # this repository, or a folder
env = gym.make("{result.env_id}")
(observation, _), reward, ended = env.reset(), None, False
actor.reset()
while not ended:
    observation, reward, terminated, truncated, _ = env.step(actor(observation, reward))
    ended = terminated or truncated
```

Written by rltransformers {__version__}. The checkpoint is data: loading it executes nothing.
"""


@strict
def push_to_hub(folder: str | os.PathLike[str], repo_id: str, *, private: bool = False) -> str:
    """Upload a folder of ``package_for_hub`` and return the address of the commit; a new repository is made if needed.

    Who you are is up to ``huggingface_hub``: ``hf auth login``, or the variable ``HF_TOKEN``.

    Args:
        repo_id: ``"USER/NAME"``.
        private: whether a new repository is private.

    Raises:
        ConfigError: the folder lacks a file of such folders.
        MissingExtraError: ``huggingface_hub`` is not installed; it comes with the extra ``hub``.
    """
    if missing := [name for name in FILES if not (Path(folder) / name).is_file()]:
        raise ConfigError(f"{folder} lacks {', '.join(missing)}; package_for_hub makes folders for the Hub")
    api = require("huggingface_hub", "hub").HfApi()
    api.create_repo(repo_id=repo_id, private=private, exist_ok=True)
    return str(api.upload_folder(repo_id=repo_id, folder_path=os.fspath(folder)))


@strict
def load_from_hub(repo_id: str, *, revision: str | None = None, device: torch.device | str = "auto") -> Agent:
    """The agent of a repository of the Hub that ``push_to_hub`` filled; nothing in it is executed.

    Args:
        repo_id: ``"USER/NAME"``, or a folder of this machine, which is looked for first.
        revision: branch, tag or commit of a repository; None for its newest.

    Raises:
        CheckpointError: the checkpoint is missing, corrupt, or of no agent of this package.
        MissingExtraError: ``huggingface_hub`` is not installed; it comes with the extra ``hub``.
    """
    if Path(repo_id).is_dir():
        return load_agent(repo_id, device=device)
    hub = require("huggingface_hub", "hub")
    return load_agent(hub.hf_hub_download(repo_id=repo_id, filename=CHECKPOINT, revision=revision), device=device)
