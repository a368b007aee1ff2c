"""Trained agents as folders for the Hugging Face Hub: a checkpoint, its settings, its results and a model card."""

import ast
import json
import os
import shutil
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import torch
import yaml

from rltransformers import __version__
from rltransformers.agents.load import CHECKPOINT, KINDS, Agent, agent_checkpoint, load_agent, steps_of
from rltransformers.core.action_masks import ACTION_MASK
from rltransformers.core.checkpoint import save_checkpoint
from rltransformers.core.described import exact
from rltransformers.core.errors import CheckpointError, ConfigError, MissingExtraError, error_line, one_line, require
from rltransformers.core.files import replacing_folder
from rltransformers.core.ranges import strict
from rltransformers.core.spaces import leaf_spaces, space_from_json
from rltransformers.training.evaluation import EvaluationResult, read_results
from rltransformers.training.online.off_policy_agent import OffPolicyMemoryAgent
from rltransformers.training.runs.experiment import ExperimentConfig, read_experiment

CARD = "README.md"
FILES = (CHECKPOINT, CARD, "config.json", "results.json")
"""Files of every folder; of a run its ``config.yaml`` too."""
_EPISODE = """(observation, _), reward, ended = env.reset(), None, False
actor.reset()
while not ended:
    observation, reward, terminated, truncated, _ = env.step(actor({inputs}))
    ended = terminated or truncated"""
_EPISODE_OF_A_VECTOR = """observation, reward, ended = env.reset(), None, False
actor.reset()
while not ended:
    observation, reward, ended, _ = env.step(actor({inputs}))"""


@strict
def package_for_hub(
    source: Agent | str | os.PathLike[str],
    folder: str | os.PathLike[str],
    results: Sequence[EvaluationResult] | None = None,
) -> Path:
    """Make a folder that is ready to be uploaded, and return it.

    It holds ``last.zip``, the checkpoint without the replay; ``config.json``, its settings; ``results.json``;
    ``README.md``, a model card whose front matter the Hub reads (tags, environment, mean reward) and whose Python plays
    an episode; of a run its ``config.yaml``. ``load_agent`` takes the folder, and nothing in it is executed by that.

    Args:
        source: an agent, or a run folder, whose ``last.zip`` is taken. The card of a run makes the environment with the
            keywords and wrappers of the config (where the results are of another one, with the wrappers), that of an
            agent alone with ``gym.make`` of the id.
        folder: one that does not exist yet.
        results: of evaluations, see ``evaluate_online``; of several the one of the highest mean is on the card. None
            takes the final evaluation of a run.

    Raises:
        ConfigError: the folder exists, there are no results, they name no environment or several, or they are of
            another training step than the checkpoint; the config of the run cannot be read.
        CheckpointError: the run has no checkpoint, or one that is not of this package.
    """
    from rltransformers.training.runs.run_folder import RunFolder  # brings matplotlib, which agents start without

    folder = Path(folder)
    if folder.exists():
        raise ConfigError(f"{folder} exists; name a new folder, nothing is overwritten")
    run = RunFolder.open(source) if isinstance(source, str | os.PathLike) else None
    if results is None and run is not None and run.evaluation.is_file():
        results = read_results(run.evaluation)
    if not results:
        raise ConfigError(
            "there are no results of episodes; give results=[evaluate_online(...)], of a Decision Transformer "
            "results=model.evaluate(...), or a run with an environment that ended"
        )
    experiment = None if run is None else read_experiment(run.config)
    best = max(results, key=lambda result: result.mean)
    if best.env_id is None:
        raise ConfigError("the results name no environment; give them an env_id, the card is about it")
    if len(names := {_plain(str(result.env_id)) for result in results}) > 1:
        raise ConfigError(
            f"the results are of {', '.join(sorted(names))}, and a card is about one environment; give those of one"
        )
    with replacing_folder(folder) as place, _named(folder, place):
        if run is not None:
            if not run.last.is_file():
                raise CheckpointError(f"run {run.path} has no {CHECKPOINT}: it was stopped before its first checkpoint")
            shutil.copyfile(run.last, place / CHECKPOINT)
            shutil.copyfile(run.config, place / run.config.name)
        else:
            source.save(place / CHECKPOINT)  # type: ignore[union-attr]  # an agent, where it is no run
        checkpoint = agent_checkpoint(place / CHECKPOINT if run is None else run.last)  # messages name the user's file
        command = "" if run is None else f" (rltransformers evaluate {run.path} --json > {run.evaluation})"
        done, settings, tensors = steps_of(checkpoint), checkpoint.settings, checkpoint.tensors
        for result in results:
            if result.step not in (None, done):
                raise ConfigError(
                    f"a result is of step {result.step}, the checkpoint of step {done}, and a card is about one agent; "
                    f"evaluate the checkpoint{command} and package again"
                )
        if tensors.get("replay") is not None:  # which load does without
            if issubclass(KINDS[checkpoint.kind], OffPolicyMemoryAgent):
                tensors = tensors | {"replay": None}  # as with checkpoint_replay=False
            else:
                tensors = {name: value for name, value in tensors.items() if name not in ("replay", "online")}
            save_checkpoint(place / CHECKPOINT, checkpoint.kind, settings, tensors)
        config = {"agent": checkpoint.kind, "environment": best.env_id, "rltransformers": checkpoint.code_version}
        (place / "config.json").write_text(_json(config | {"settings": settings}))
        measures = {"mean_reward": best.mean, "std_reward": best.std, "n_eval_episodes": len(best.returns)}
        (place / "results.json").write_text(_json(measures | {"results": [result.to_dict() for result in results]}))
        leaves = leaf_spaces(space_from_json(settings["observation_space"]))
        masks_beside = bool((settings.get("policy_kwargs") or {}).get("action_masks")) and ACTION_MASK not in leaves
        snippet = _snippet(best, experiment, masks_beside)
        (place / CARD).write_text(_card(checkpoint.kind, best, snippet), encoding="utf-8")
    return folder


@contextmanager
def _named(folder: Path, place: Path) -> Iterator[None]:
    """Errors of checkpoints in the block name ``folder`` in place of ``place``, where it is filled."""
    try:
        yield
    except CheckpointError as error:
        if str(place) not in str(error):
            raise
        raise CheckpointError(str(error).replace(str(place), str(folder))) from error


def _plain(env_id: str) -> str:
    """An id without the module that registers it."""
    return env_id.rpartition(":")[2]


def _json(values: dict[str, Any]) -> str:
    return json.dumps(values, indent=1) + "\n"


def _snippet(result: EvaluationResult, config: ExperimentConfig | None, masks_beside: bool) -> str:
    """Python that plays an episode in the environment of a result; without a config only the id of that is known.

    ``masks_beside``: whether the agent takes masks of actions that are no part of its observation.
    """
    imports, env = _environment(str(result.env_id), config)
    vector = config is not None and config.environment.processes == "envpool"
    inputs = "observation, reward" + (", env.get_wrapper_attr('action_masks')()" if masks_beside else "")
    arguments = [] if result.target_return is None else [f"target_return={result.target_return!r}"]
    if config is not None and not config.evaluation.deterministic:
        arguments.append("deterministic=False")
    return f"""{imports}

actor = load_from_hub("USER/NAME").actor({", ".join(arguments)})  # this repository, or a folder
env = {env}
{(_EPISODE_OF_A_VECTOR if vector else _EPISODE).format(inputs=inputs)}"""


def _environment(env_id: str, config: ExperimentConfig | None) -> tuple[str, str]:
    """Imports, and the call that makes the environment: with keywords and wrappers of a config, else by its id."""
    load = "from rltransformers.agents import load_from_hub"
    if config is None:
        return f"import gymnasium as gym\n\n{load}", f"gym.make({env_id!r})  # and the wrappers it learned with, if any"
    environment = config.evaluation_environment
    keywords: dict[str, Any] = {"wrappers": environment.wrappers}
    if _plain(env_id) == _plain(environment.id):
        env_id = environment.id  # with the module that registers it
        keywords = {"env_kwargs": environment.kwargs} | keywords  # for no other one, as in `rltransformers evaluate`
    function = "make_env"
    if environment.processes == "envpool":  # which has no single environments
        function, keywords["processes"] = "make_vec_env", "envpool"
    names = "" if _is_literal(keywords) else "from math import inf, nan\n\n"
    call = ", ".join([repr(env_id), *(f"{name}={value!r}" for name, value in keywords.items() if value)])
    return f"{names}{load}\nfrom rltransformers.envs import {function}", f"{function}({call})"


def _is_literal(value: Any) -> bool:
    """Whether Python reads back what it writes of ``value``; it writes infinity as a name."""
    try:
        ast.literal_eval(repr(value))
    except ValueError:
        return False
    return True


def _card(kind: str, result: EvaluationResult, snippet: str) -> str:
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
    name = one_line(str(result.env_id)).replace("`", "'")  # as code, so that nothing in it is read as Markdown or HTML
    what = "return" if result.discounted_returns is None else "discounted return"
    target = "" if result.target_return is None else f", asked for a {what} of {exact(result.target_return)}"
    return f"""---
{yaml.safe_dump(matter, sort_keys=False)}---

# {kind} in `{name}`

Mean return **{value}** over {len(result.returns)} episodes{target}.
All episodes: `results.json`. Settings: `config.json`.

```python
{snippet}
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
        ConfigError: the folder lacks a file of such folders, or the Hub refuses it or cannot be reached.
        MissingExtraError: ``huggingface_hub`` is not installed; it comes with the extra ``hub``.
    """
    if missing := [name for name in FILES if not (Path(folder) / name).is_file()]:
        raise ConfigError(f"{folder} lacks {', '.join(missing)}; package_for_hub makes folders for the Hub")
    hub = require("huggingface_hub", "hub")
    way_out = "check the id (USER/NAME) and the network; to write, log in with `hf auth login`, or set HF_TOKEN"
    with _calls_to_the_hub(ConfigError, f"{folder} cannot be uploaded to {repo_id}", way_out):
        api = hub.HfApi()
        api.create_repo(repo_id=repo_id, private=private, exist_ok=True)
        return str(api.upload_folder(repo_id=repo_id, folder_path=os.fspath(folder)))


@strict
def load_from_hub(repo_id: str, *, revision: str | None = None, device: torch.device | str = "auto") -> Agent:
    """The agent of a repository of the Hub that ``push_to_hub`` filled; nothing in it is executed.

    Args:
        repo_id: ``"USER/NAME"``, or a folder of this machine, which is looked for first.
        revision: branch, tag or commit of a repository; None for its newest.

    Raises:
        CheckpointError: the checkpoint is missing, corrupt, or of no agent of this package, or the Hub refuses it or
            cannot be reached.
        ConfigError: a revision of a folder.
        MissingExtraError: ``huggingface_hub`` is not installed; it comes with the extra ``hub``.
    """
    if Path(repo_id).is_dir():
        if revision is not None:
            raise ConfigError(f"revision {revision!r} is one of a repository, and {repo_id} is a folder; leave it out")
        return load_agent(repo_id, device=device)
    try:
        hub = require("huggingface_hub", "hub")
    except MissingExtraError as error:
        raise MissingExtraError(f"there is no folder {repo_id}, and for a repository of the Hub: {error}") from error
    way_out = (
        "check id, revision and network; log in with `hf auth login` for a private or gated repository; or name a "
        "folder that exists"
    )
    with _calls_to_the_hub(CheckpointError, f"{repo_id} cannot be loaded from the Hub", way_out):
        file = hub.hf_hub_download(repo_id=repo_id, filename=CHECKPOINT, revision=revision)
    return load_agent(file, device=device)


@contextmanager
def _calls_to_the_hub(refusal: type[Exception], fault: str, way_out: str) -> Iterator[None]:
    """Raise ``refusal`` for any error in the block, in one line: the fault, the reason in brackets, the way out."""
    try:
        yield
    except Exception as error:  # of HTTP, of the network, of an id: they have no class in common, nor in all versions
        raise refusal(f"{fault} ({error_line(error)}); {way_out}") from error
