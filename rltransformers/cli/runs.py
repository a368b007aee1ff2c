"""The life of a run: train from a config, resume from its folder, evaluate it."""

import argparse
import os
import re
import shlex
import shutil
import socket
import sys
from collections.abc import Callable, Mapping, Sequence
from contextlib import closing, nullcontext, suppress
from dataclasses import replace
from pathlib import Path
from typing import Any

from stable_baselines3.common.logger import KVWriter, Logger

from rltransformers.agents import DecisionTransformer, load_agent
from rltransformers.cli.agents import RunAgent, build_agent, checkpoint_step
from rltransformers.cli.collect import kwargs_of_one
from rltransformers.cli.trust import import_modules, not_typed, programs, require_trust
from rltransformers.core.described import exact
from rltransformers.core.errors import ConfigError, require
from rltransformers.core.files import naming
from rltransformers.core.signals import Stopped, signals_to
from rltransformers.core.world import current_sharing
from rltransformers.envs.video import check_recordable
from rltransformers.look.watch import backbone_of
from rltransformers.training.evaluation import EvaluationResult
from rltransformers.training.offline.validation import ValidationResult
from rltransformers.training.runs.callback import RunCallback
from rltransformers.training.runs.experiment import (
    BASELINES,
    AgentName,
    EnvironmentConfig,
    ExperimentConfig,
    read_experiment,
)
from rltransformers.training.runs.groups import differing
from rltransformers.training.runs.lookback import lookback_of
from rltransformers.training.runs.plots import check_picture, plot_lookback, plot_return_versus_target
from rltransformers.training.runs.run_card import flat_settings, write_run_card
from rltransformers.training.runs.run_folder import RunFolder
from rltransformers.training.runs.threads import use_threads
from rltransformers.training.runs.trackers import begin_tracking

Evaluated = Callable[[int, float], None]
PICTURES = {"lookback": "lookback.png", "target": "return_versus_target.png"}
"""Plots of ``evaluate``, and their files in the run folder."""
_JOB = ".job"  # file of a run folder that says which job of ``torchrun`` it belongs to
_RESUMABLE = ("train", "evaluation", "threads", "tracker", "online.timesteps", "algorithm.device")
"""Settings and sections that may be others when a run goes on."""


def train(
    name: str, config: ExperimentConfig, verbose: bool = False, evaluated: Evaluated | None = None
) -> tuple[RunFolder, list[EvaluationResult]]:
    """Train a config in a new folder ``name`` and evaluate it; returns the folder and the final results.

    ``evaluated`` gets the step and the score of every evaluation during training; what it raises ends the run. Of
    several processes the first one has the folder and the results. A job that ``torchrun`` started again goes on in the
    folder that it began.
    """
    sharing = current_sharing()
    (restarts,) = sharing.max(int(os.environ.get("TORCHELASTIC_RESTART_COUNT", "0")))  # of the machine that failed
    begun = sharing.broadcast(_begun(config, name) if sharing.is_leader and restarts else None)
    if begun is not None:
        say(f"the job was started again: it goes on in {begun}")
        return resume(begun, (), verbose, trust=True)  # it was allowed when the job began
    import_modules(config.imports, name, trust=True)  # allowed by whoever read or wrote the config
    threads = use_threads(config.threads)
    if config.tracker is not None:
        require(config.tracker, "track")
    # Before the folder is made: a config that cannot work leaves nothing behind.
    with closing(build_agent(config)) as agent:
        path = RunFolder.create(config.output, name).path if sharing.is_leader else None
        if path is not None and job() is not None:
            (path / _JOB).write_text(f"{job()}\n")
        folder = RunFolder(sharing.broadcast(path) or "")
        with folder.locked() if sharing.is_leader else nullcontext():
            if sharing.is_leader:
                folder.write_config(config.to_dict())
            say(threads)
            try:
                tracked = _trackers(agent, config, folder)
            except ConfigError:
                shutil.rmtree(folder.path, ignore_errors=True)
                raise
            return folder, _run(agent, config, folder, tracked, verbose, evaluated)


def job() -> str | None:
    """Name that ``torchrun`` has for the job of this process, before and after restarts; None without it."""
    name = os.environ.get("TORCHELASTIC_RUN_ID")
    if name == "none":  # nobody gave --rdzv-id: the process that restarts us stays the same
        return f"{socket.gethostname()} {os.getppid()}"
    return name


def _begun(config: ExperimentConfig, name: str) -> str | None:
    """The newest unfinished folder ``name``, ``name-2``, ... that this job began with the same config.

    Another job may have had the same id before: what it finished, or began with another config, is not ours.
    """
    numbered_names = re.compile(rf"{re.escape(name)}(-\d+)?")
    marks = [mark for mark in Path(config.output).glob(f"*/{_JOB}") if numbered_names.fullmatch(mark.parent.name)]
    for mark in sorted(marks, key=lambda path: path.stat().st_mtime_ns, reverse=True):
        folder = RunFolder(mark.parent)
        if mark.read_text().strip() != job() or folder.evaluation.is_file() or not folder.config.is_file():
            continue
        with suppress(ConfigError):  # a config that cannot be read is not this one
            if not differing([read_experiment(folder.config).to_dict(), config.to_dict()]):
                return str(folder.path)
    return None


def resume(
    path: str, overrides: Sequence[tuple[str, str]], verbose: bool = False, trust: bool = False
) -> tuple[RunFolder, list[EvaluationResult]]:
    """Go on with a run from its ``last.zip`` as if it had not stopped, or say what is not exact.

    What the stopped run logged after that checkpoint is taken back. A run that was stopped before its first checkpoint
    begins at step 0. ``trust`` allows what the folder asks to run besides this package (``rltransformers.cli.trust``).
    Nothing but ``_RESUMABLE`` settings may differ from what the run began with.
    """
    sharing = current_sharing()
    folder = RunFolder.open(path)
    for key, _ in overrides:
        if not _resumable(key):
            raise ConfigError(f"--{key} cannot change when a run is resumed; these can: {', '.join(_RESUMABLE)}")
    with folder.locked() if sharing.is_leader else nullcontext():
        stored = read_experiment(folder.config)  # alone: overrides may stand for what is cut off
        config = read_experiment(folder.config, overrides)
        edited = _edited(folder, config)
        require_trust(not_typed(programs(config, folder.last), overrides), path, trust)
        import_modules(config.imports, path, trust=True)
        threads = use_threads(config.threads)
        begun = folder.last.is_file()
        with closing(build_agent(config, folder.last if begun else None)) as agent:
            agent.check_lengths(stored, path)
            tracked = _trackers(agent, config, folder)  # before anything of the folder changes
            if sharing.is_leader:
                folder.write_config(config.to_dict())
            say(threads)
            if not begun and (folder.best.is_file() or folder.evaluations.is_file()):
                say(f"{folder.last} is not there: the run begins at step 0, and what it had logged is taken back")
            if begun and agent.inexact and agent.goes_on:
                say(agent.inexact)
            if sharing.is_leader:
                evaluated = not any(key.startswith("evaluation") for key in edited)
                _take_back(folder, agent.steps_done if begun else 0, evaluated, agent.goes_on)
            sharing.broadcast(None)  # nobody goes on before
            return folder, _run(agent, config, folder, tracked, verbose)


def _resumable(key: str) -> bool:
    return key in _RESUMABLE or key.split(".")[0] in _RESUMABLE


def _edited(folder: RunFolder, config: ExperimentConfig) -> list[str]:
    """The dotted keys of ``config`` that are not as before; ConfigError for one that cannot change."""
    if not folder.begun.is_file():
        raise ConfigError(
            f"{folder.path} has no {folder.begun.name}, which says what the run began with: copy hidden files with a "
            f"run folder, or, if {folder.config.name} is as it was, copy that to {folder.begun.name}"
        )
    edited = sorted(differing([read_experiment(folder.begun).to_dict(), config.to_dict()]))
    if wrong := [key for key in edited if not _resumable(key)]:
        raise ConfigError(
            f"{folder.config} is not what the run began with: {', '.join(wrong)} cannot change when a run is resumed "
            f"(these can: {', '.join(_RESUMABLE)}); take the values of {folder.begun}, or begin a new run: "
            f"rltransformers train {shlex.quote(str(folder.config))}"
        )
    return edited


def _take_back(folder: RunFolder, step: int, evaluated: bool, goes_on: bool) -> None:
    """Cut logs and ``best.zip`` back to ``step``, and without ``evaluated`` its evaluation, to make it again.

    The final evaluation of a run that goes on is one of weights that will not be its last.
    """
    folder.cut(step, evaluated)
    if goes_on:
        folder.evaluation.unlink(missing_ok=True)
        folder.validation.unlink(missing_ok=True)
    if folder.best.is_file() and checkpoint_step(folder.best) > step:
        folder.best.unlink()


def _trackers(agent: RunAgent, config: ExperimentConfig, folder: RunFolder) -> list[KVWriter]:
    if config.tracker is None or not current_sharing().is_leader:
        return []
    return [begin_tracking(config.tracker, folder.path, flat_settings(agent.hyperparameters()))]


def _run(
    agent: RunAgent,
    config: ExperimentConfig,
    folder: RunFolder,
    tracked: Sequence[KVWriter],
    verbose: bool,
    evaluated: Evaluated | None = None,
) -> list[EvaluationResult]:
    sharing = current_sharing()
    logger = folder.logger(stdout=verbose) if sharing.is_leader else Logger(None, [])
    logger.output_formats += tracked
    agent.model.set_logger(logger)
    if not agent.steps_done:
        write_run_card(logger, config.to_dict(), agent.hyperparameters())
    evaluation = config.evaluation
    callback = RunCallback(
        folder,
        evaluation.every,
        evaluate=lambda: agent.evaluate(evaluation),
        save=agent.save,
        steps=agent.steps,
        online=agent.online,
        report=say,
        restart_every=config.train.restart_every or 0,
        restart=agent.restart,
        evaluated=evaluated,
        sharing=sharing,
        validate=agent.validate,
        patience=evaluation.patience,
    )
    say(f"run folder: {folder.path}   (TensorBoard: tensorboard --logdir {config.output})")
    try:
        with signals_to(callback.stop):
            callback.init_callback(agent.model)
            if not callback.is_over():
                agent.learn(config.steps, callback, progress=sharing.is_leader and sys.stderr.isatty() and not verbose)
                callback.init_callback(agent.model)
            results = list(callback.finish())
            if sharing.is_leader:
                folder.write_final(results, folder.entries()[-1].validation)
    except KeyboardInterrupt as interruption:
        flag = " --trust" if programs(config, folder.last) else ""
        path = shlex.quote(str(folder.path))
        kept = ""
        if config.train.restart_every is not None:
            step = checkpoint_step(folder.last) if folder.last.is_file() else 0
            kept = f" at step {agent.steps_done:,}; train.restart_every goes on from its last restart, step {step:,}"
        by = f" by {interruption}" if isinstance(interruption, Stopped) else ""
        say(f"stopped{by}{kept}; go on with: rltransformers train --resume {path}{flag}")
        raise
    finally:
        logger.close()
    return results


def evaluate(
    arguments: argparse.Namespace, env_kwargs: dict[str, Any]
) -> tuple[list[EvaluationResult], ValidationResult | None, list[Path]]:
    """Evaluate a checkpoint of a run as the options of the command say; what is not given is that of its config.

    Returns results, those on held-out episodes, and the paths of pictures and videos. Where the environment is missing
    or cannot be made, and no option asks for its episodes, held-out episodes are all. ``env_kwargs`` change keywords of
    the environment; another environment (``--env``) gets these alone.
    """
    plots, video, acting = arguments.plot, arguments.video, arguments.acting
    if "lookback" in plots:
        if acting == "compiled":
            raise ConfigError(
                "--plot lookback looks at attention, which compiled steps do not show; leave --acting out"
            )
        acting = "eager"
    folder = RunFolder.open(arguments.folder)
    checkpoint = getattr(folder, arguments.checkpoint)
    config, validates = read_evaluation(arguments, folder, checkpoint, env_kwargs)
    environment, evaluation = config.environment, config.evaluation
    if not environment.id and (plots or video is not None):
        raise ConfigError(
            f"--{'plot' if plots else 'video'} shows episodes in an environment, and the run has none: give --env ID"
        )
    pictures = {plot: folder.path / PICTURES[plot] for plot in plots}
    for picture in pictures.values():  # before hours of episodes
        check_picture(picture)
    mode = config.algorithm.get("mode", "dt")
    if "target" in plots and (config.agent is not AgentName.DECISION_TRANSFORMER or mode != "dt"):
        whose = f"agent {config.agent}" if mode == "dt" else "behavior cloning" if mode == "bc" else f"mode {mode}"
        raise ConfigError(f"--plot target draws returns against target returns, and {whose} has none; leave it out")
    if "lookback" in plots and config.agent in BASELINES:
        raise ConfigError(f"agent {config.agent} has no attention to draw")
    videos: dict[int, str] = {}  # names by the number of the episode among all of the evaluation
    if video is not None:
        for place, target in enumerate([f"target_{exact(each)}-" for each in evaluation.target_returns] or [""]):
            for episode in range(min(arguments.videos or 1, evaluation.episodes)):
                videos[place * evaluation.episodes + episode] = f"{target}episode-{episode}"
        config = replace(config, environment=_drawing(config, Path(video), videos))
    threads = use_threads(config.threads if arguments.threads is None else arguments.threads)
    with closing(build_agent(config, checkpoint, training=False, acting=acting, validating=validates)) as agent:
        say(threads)
        validation, results = agent.validate(), list[EvaluationResult]()
        asks = any((arguments.episodes, arguments.target_return, arguments.env, env_kwargs, plots, video))
        fault = None if validation is None or asks else agent.fault()
        if fault is not None and config.environment.id:
            say(f"no episode is played: {fault}")
        decider = agent.model.decider() if isinstance(agent.model, DecisionTransformer) else None
        with lookback_of(backbone_of(agent.model), decider) if "lookback" in plots else nullcontext() as meter:
            if fault is None:
                results = agent.evaluate(evaluation, progress=sys.stderr.isatty())
        if meter is not None:
            plot_lookback(pictures["lookback"], meter.result(), f"{folder.path.name}: attention while acting")
        if "target" in plots:
            title = f"{folder.path.name}: return against target"
            plot_return_versus_target(pictures["target"], results, title, agent.model.summary.without_data)
    return results, validation, [*pictures.values(), *(Path(video or "") / f"{name}.mp4" for name in videos.values())]


def read_evaluation(
    arguments: argparse.Namespace,
    folder: RunFolder,
    checkpoint: Path,
    env_kwargs: dict[str, Any],
    validates: bool = True,
) -> tuple[ExperimentConfig, bool]:
    """The config of a run with the evaluation that the options of ``add_episodes`` ask for, once it is trusted.

    Beside it stands whether there are held-out episodes, which ``validates`` asks for.
    """
    config = read_experiment(folder.config)
    validates = (
        validates and bool(config.algorithm.get("validation")) and getattr(config.dataset, "id", None) is not None
    )
    require_trust(programs(config, checkpoint, training=validates), arguments.folder, arguments.trust)
    import_modules(config.imports, arguments.folder, trust=True)
    given = {name: getattr(arguments, name) for name in ("episodes", "seed", "longest_episode")}
    changes = {name: value for name, value in given.items() if value is not None}
    changes["deterministic"] = config.evaluation.deterministic and not arguments.sample
    if arguments.target_return:
        changes["target_returns"] = arguments.target_return
    environment = config.environment
    if arguments.env is None:
        changes["kwargs"] = config.evaluation.kwargs | env_kwargs
    else:
        environment, changes["kwargs"] = replace(environment, id=arguments.env, kwargs={}), env_kwargs
    evaluation = replace(config.evaluation, **changes)
    # Checks target returns against the agent.
    return replace(config, environment=environment, evaluation=evaluation), validates


def say_of_tensors(environment: EnvironmentConfig) -> None:
    """Say that what plays alone in place of environments in tensors has episodes of its own."""
    if environment.processes == "tensors":
        say(f"episodes of Gymnasium's {environment.id}, which begin otherwise than those of environments in tensors")


def _drawing(config: ExperimentConfig, folder: Path, names: Mapping[int, str]) -> EnvironmentConfig:
    """The environment of an evaluation, one copy of it, that records what it plays; tried with one frame."""
    environment = config.evaluation_environment
    if environment.processes == "envpool":
        raise ConfigError("EnvPool's environments cannot be recorded; leave --video out")
    say_of_tensors(environment)
    kwargs = kwargs_of_one(environment) | {"render_mode": "rgb_array"}
    check_recordable(environment.id, kwargs, list(environment.wrappers))
    with naming(folder):
        folder.mkdir(parents=True, exist_ok=True)
    recorder = {"name": "rltransformers.envs.video:EpisodeVideo", "folder": str(folder), "names": names}
    wrappers = [recorder, *environment.wrappers]
    return replace(environment, num_envs=1, processes=False, kwargs=kwargs, wrappers=wrappers)


def export(arguments: argparse.Namespace) -> Path:
    """Write the policy of a run folder or a checkpoint to a file as the options of the command say; return where."""
    acting_mode, output = arguments.acting_mode, arguments.output
    checkpoint, ending = Path(arguments.run_or_checkpoint), f".{arguments.format}"
    if checkpoint.is_dir():
        folder = RunFolder.open(checkpoint)
        if (name := read_experiment(folder.config).agent) in BASELINES:
            raise ConfigError(
                f"{name} has a policy of Stable-Baselines3, which has no file form; every other agent can be exported"
            )
        checkpoint = folder.last
    written = checkpoint.with_suffix(ending) if output is None else Path(output)
    if written.suffix != ending:
        raise ConfigError(f"--output {output} must end in {ending}, as --format says")
    agent = load_agent(checkpoint, device="cpu")
    agent.verbose = 1  # a line tells that this takes a while
    if acting_mode is not None and not isinstance(agent, DecisionTransformer):
        raise ConfigError(
            f"--acting-mode is a choice of Decision Transformers, and {checkpoint} holds a {agent.kind}; leave it out"
        )
    agent.export(written, batch=arguments.batch, **({} if acting_mode is None else {"acting_mode": acting_mode}))
    return written


def say(text: str) -> None:
    """Tell people something without touching standard output, which belongs to results; process 0 speaks for all."""
    if current_sharing().is_leader:
        print(text, file=sys.stderr, flush=True)
