"""Command lines: every command with hostile words. Exit code 0 or 2, one line of error, nothing outside the folder."""

import contextlib
import io
import os
import random
import shlex
import tempfile
from functools import cache
from pathlib import Path

from rltransformers.cli.main import main
from rltransformers.core.errors import ConfigError
from tests.fuzz.probe import Probe, WrongError, shown

WORDS = (
    "", "abc", "1", "0", "-1", "1.5", "nan", "inf", "-inf", "1e400", "null", "true", "[]", "[1]", "{}", "{a: 1}", "[",
    "{", "~", "../x", "/", ".", "x/y", "a\0b", "é", "'", '"', "- 1", "!!python/object:os.system", "*x", "&x 1", "--",
    "1000000000000", "99999999999999999999999", "{a: {b: {c: 1}}}", "a: b: c", "gtrxl", "random",
)  # fmt: skip
TINY = shlex.split(
    "--environment.num_envs 2 --environment.kwargs.delay 2 --algorithm.n_steps 4 --algorithm.n_epochs 1"
    " --train.total_timesteps 8 --evaluation.episodes 2 --evaluation.every 0 --backbone.width 8 --backbone.heads 2"
    " --backbone.memory 3 --algorithm.batch_size null"
)
TINY_OFFLINE = shlex.split(
    "--environment.num_envs 2 --environment.kwargs.delay 2 --dataset.collect.episodes 4 --algorithm.context_length 4"
    " --algorithm.batch_size 4 --train.gradient_steps 2 --evaluation.episodes 2 --evaluation.every 0"
    " --backbone.width 8 --backbone.heads 2"
)
KEYS = (
    "agent", "environment", "environment.id", "environment.num_envs", "environment.kwargs", "environment.kwargs.delay",
    "environment.kwargs.x", "environment.wrappers", "environment.processes", "environment.normalize_observation",
    "train", "train.total_timesteps", "train.gradient_steps", "seed", "dataset", "dataset.id", "dataset.collect",
    "dataset.collect.episodes", "dataset.collect.behaviors", "backbone", "backbone.preset", "backbone.width",
    "backbone.position", "backbone.position.name", "backbone.losses", "backbone.x", "policy", "policy.log_std_init",
    "algorithm", "algorithm.gamma", "algorithm.learning_rate", "algorithm.n_steps", "algorithm.batch_size",
    "algorithm.max_grad_norm", "algorithm.device", "algorithm.seed", "algorithm.x", "algorithm.context_length",
    "evaluation", "evaluation.episodes", "evaluation.every", "evaluation.target_returns", "evaluation.seed",
    "evaluation.deterministic", "evaluation.kwargs", "output", "threads", "x", "", "a.b.c", "environment.id.x",
    "name", "resume", "verbose", "json",
)  # fmt: skip
OPTIONS = {
    "evaluate": ("--episodes", "--target-return", "--seed", "--env-kwargs", "--checkpoint", "--threads", "--plot",
                 "--sample", "--json", "--x", "--max-episode-steps"),
    "collect": ("--env", "--behavior", "--dataset", "--steps", "--num-envs", "--seed", "--env-kwargs", "--threads",
                "--keep-indices", "--drop-indices", "--deterministic", "--overwrite", "--json", "--x"),
    "list": ("--json", "--x"),
    "inspect": ("--json", "--x"),
}  # fmt: skip
LONG = 100_000
"""Runs of that many steps are honest, but not for a test."""


def draw(chance: random.Random) -> Probe:
    """One command line."""
    command = chance.choice(("train", "train", "train", "evaluate", "collect", "list", "inspect", "nothing"))
    words = {"train": _train, "nothing": _nothing}.get(command, lambda chance: _with_options(command, chance))(chance)
    return Probe(f"rltransformers {shown(words, 400)}", lambda: _act(words))


def _train(chance: random.Random) -> list[str]:
    config, tiny = chance.choice((("gtrxl_cue_recall", TINY), ("dt_cue_recall", TINY_OFFLINE)))
    if chance.random() < 0.1:
        config = chance.choice(WORDS)
    words: list[str] = []
    for _ in range(chance.choice((1, 1, 1, 2))):
        key, value = chance.choice(KEYS), chance.choice(WORDS)
        words += chance.choice(([f"--{key}", value], [f"--{key}={value}"], [f"--{key}"]))
        pairs = zip(tiny[::2], tiny[1::2], strict=True)
        tiny = [word for pair in pairs if not f"{pair[0]}.".startswith(f"--{key}.") for word in pair]
    return ["train", config, *tiny, *words]


def _with_options(command: str, chance: random.Random) -> list[str]:
    words = [command]
    if command == "evaluate":
        words.append(chance.choice((str(_run()), str(_run()), str(_run()), *WORDS)))
    if command == "inspect":
        words.append(chance.choice((str(_run()), str(_run() / "last.zip"), *WORDS)))
    if command == "collect":
        words += ["--env", "rltransformers/CueRecall-v0", "--env-kwargs", '{"delay": 2}', "--behavior", "random"]
        words += ["--steps", "20", "--dataset", "fuzz/cue-v0"]
    for _ in range(chance.choice((0, 1, 1, 2))):
        words += [chance.choice(OPTIONS[command]), *chance.choices(WORDS, k=chance.choice((0, 1, 1, 1, 2)))]
    return words


def _nothing(chance: random.Random) -> list[str]:
    return chance.choices((*WORDS, "train", "evaluate", "list", "--help", "--version"), k=chance.choice((0, 1, 2)))


_FOLDER = tempfile.TemporaryDirectory(prefix="fuzz-run-")  # one finished run, for the commands that read one


@cache
def _run() -> Path:
    with contextlib.redirect_stdout(io.StringIO()), contextlib.redirect_stderr(io.StringIO()) as errors:
        status = main(["train", "gtrxl_cue_recall", *TINY, "--output", _FOLDER.name, "--name", "run"])
    if status:
        raise RuntimeError(f"the run that other probes read could not be made: {errors.getvalue()}")
    return Path(_FOLDER.name) / "run"


def _act(words: list[str]) -> None:
    output, errors = io.StringIO(), io.StringIO()
    here = os.getcwd()
    with tempfile.TemporaryDirectory(prefix="fuzz-") as folder:
        place = Path(folder) / "place"
        place.mkdir()
        os.chdir(place)
        variable = os.environ.get("MINARI_DATASETS_PATH")
        os.environ["MINARI_DATASETS_PATH"] = str(place / "datasets")
        try:
            with contextlib.redirect_stdout(output), contextlib.redirect_stderr(errors):
                try:
                    status: object = main(words)
                except SystemExit as error:
                    status = error.code
        finally:
            os.chdir(here)
            if variable is None:
                del os.environ["MINARI_DATASETS_PATH"]
            else:
                os.environ["MINARI_DATASETS_PATH"] = variable
        outside = [path.name for path in Path(folder).iterdir() if path != place]
    message = errors.getvalue()
    if outside:
        raise WrongError(f"it wrote {outside} outside its folder")
    if status not in (0, 2):
        raise WrongError(f"exit code {status}: {shown(message, 300)}")
    if "Traceback" in message:
        raise WrongError(f"a traceback: {shown(message, 300)}")
    if status == 2:
        lines = [line for line in message.splitlines() if line.startswith("rltransformers")]
        if len(lines) != 1 or len(lines[0]) < 25:
            raise WrongError(f"not one line of error: {shown(message, 300)}")
        raise ConfigError(lines[0])
