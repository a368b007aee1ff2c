"""``rltransformers look``: one HTML page of an episode."""

import argparse
from pathlib import Path

from rltransformers.cli.words import Parsers, add_episodes, command, mapping
from rltransformers.core.errors import ConfigError
from rltransformers.core.files import check_run


def add(commands: Parsers) -> None:
    """Its options and help."""
    parser = command(
        commands,
        "look",
        "Write an HTML page on which an episode can be watched.",
        """
RUN is a run folder made by `rltransformers train`, or a saved agent (.zip); one that lies outside of a run folder needs
--env. The episodes are the first ones that `evaluate` plays with the same seed. The page shows every step: what the
agent saw, its action with the probabilities, value, reward, surprise, gates, and what every head of every layer looks
at. It is one file without references to others or to the network: a browser opens it anywhere. Of a Decision
Transformer a slider switches between target returns.

  rltransformers look runs/gtrxl_cue_recall-seed0
  rltransformers look runs/dt_cartpole_mixture-seed0 --target-return 100 --target-return 300 -o two_targets.html
  rltransformers look agent.zip --env CartPole-v1 --sample
""",
    )
    parser.add_argument("folder", metavar="RUN", help="run folder or saved agent")
    add_episodes(parser, "1")
    parser.add_argument(
        "-o", "--output", metavar="FILE", help="page to write (default: look.html in RUN; of a .zip, beside it)"
    )


def run(arguments: argparse.Namespace) -> None:
    """Do it, and print the path of the page."""
    env_kwargs, path = mapping(arguments.env_kwargs, "--env-kwargs"), Path(arguments.folder)
    folder = path.parent if path.is_file() else path
    alone = path.is_file() and not (folder / "config.yaml").is_file()
    if alone and arguments.env is None:
        raise ConfigError(f"{path} lies in no run folder, which would say where it acts: give --env ID")
    if path.is_file() and "--checkpoint" in getattr(arguments, "given", ()):
        raise ConfigError(f"--checkpoint chooses one of a run folder, and {path} is one already; leave it out")
    if not alone:
        check_run(folder)
    from rltransformers.cli import runs
    from rltransformers.cli.collect import kwargs_of_one
    from rltransformers.look import look
    from rltransformers.training.runs.experiment import BASELINES, EnvironmentConfig, EvaluationConfig
    from rltransformers.training.runs.run_folder import RunFolder
    from rltransformers.training.runs.threads import use_threads

    checkpoint, threads = path, None
    if alone:
        environment = EnvironmentConfig(arguments.env, kwargs=env_kwargs)
        evaluation = EvaluationConfig(target_returns=arguments.target_return, deterministic=not arguments.sample)
    else:
        run_folder = RunFolder(folder)
        checkpoint = path if path.is_file() else getattr(run_folder, arguments.checkpoint)
        config, _ = runs.read_evaluation(arguments, run_folder, checkpoint, env_kwargs, validates=False)
        if config.agent in BASELINES:
            raise ConfigError(
                f"{config.agent} has a policy of Stable-Baselines3, without attention, and look shows agents of this "
                "package; a film of others: rltransformers evaluate --video"
            )
        environment, evaluation, threads = config.evaluation_environment, config.evaluation, config.threads
    if not environment.id or environment.processes == "envpool":
        what = "environments of EnvPool, of which none is played alone" if environment.id else "none"
        raise ConfigError(f"look plays in an environment of Gymnasium, and the run has {what}: give --env ID")
    runs.say_of_tensors(environment)
    runs.say(use_threads(threads if arguments.threads is None else arguments.threads))
    page = look(
        checkpoint,
        environment.id,
        arguments.output or (path.with_suffix(".html") if path.is_file() else path / "look.html"),
        episodes=arguments.episodes or 1,
        seed=evaluation.seed if arguments.seed is None else arguments.seed,
        target_returns=evaluation.target_returns or None,
        env_kwargs=kwargs_of_one(environment),
        wrappers=environment.wrappers,
        deterministic=evaluation.deterministic,
        longest_episode=arguments.longest_episode or evaluation.longest_episode,
    )
    print(page)
