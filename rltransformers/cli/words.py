"""The words of a command line: parsers of commands, numbers in their ranges, and settings with dotted names."""

import argparse
import re
from collections import Counter
from collections.abc import Callable, Mapping, Sequence
from contextlib import suppress
from typing import Any, NoReturn

from rltransformers.core.errors import ConfigError, did_you_mean
from rltransformers.core.ranges import Count, Episodes, Seed, Threads, check, describe
from rltransformers.core.yaml_text import parse_yaml

Parsers = Any  # argparse keeps the type of its sub-parsers private
Overrides = list[tuple[str, str]]  # pairs (dotted key, text of its value)


class Once(argparse._StoreAction):
    """An option with a value that is given once: argparse lets a second one take the place of the first."""

    def __call__(
        self, parser: Any, namespace: argparse.Namespace, values: Any, option_string: str | None = None
    ) -> None:
        if option_string is not None:  # a positional argument has none
            given: set[str] = vars(namespace).setdefault("given", set())
            if option_string in given:
                raise ConfigError(f"{option_string} is given twice; give it once")
            given.add(option_string)
        super().__call__(parser, namespace, values, option_string)


class Parser(argparse.ArgumentParser):
    """argparse with our errors: one line, without the usage in front; an option that does not repeat is given once.

    ``commands`` are the parsers below that of the whole command line, by name.
    """

    commands: dict[str, "Parser"]

    def __init__(self, *args: Any, **options: Any) -> None:
        super().__init__(*args, **options)
        self.register("action", None, Once)
        self._negative_number_matcher = re.compile(r"-\d*\.?\d+([eE][-+]?\d+)?$")  # -1e3 is a value, no option

    def error(self, message: str) -> NoReturn:
        """Raise in place of printing and leaving."""
        raise ConfigError(re.sub(r"^argument (\S+): must be", r"\1 must be", message))

    def refuse_unknown_options(self, words: Sequence[str]) -> None:
        """Raise ConfigError for an option that is none, with the one that is meant."""
        for word in words:
            option = word.partition("=")[0]
            if option.startswith("--") and option not in (*self._option_string_actions, "--"):
                known = [each for each in self._option_string_actions if each.startswith("--")]
                raise ConfigError(f"unknown option {option}; {did_you_mean(option, known)}")


def command(commands: Parsers, name: str, summary: str, text: str) -> Parser:
    """The parser of one command; ``text`` stands below its options and ends with examples."""
    parser = commands.add_parser(
        name,
        help=summary,
        description=summary,
        epilog=text.strip(),
        formatter_class=argparse.RawDescriptionHelpFormatter,
        allow_abbrev=False,
    )
    assert isinstance(parser, Parser)
    parser.add_argument(
        "--import",
        dest="imports",
        action="append",
        default=[],
        metavar="MODULE",
        help="import a module that registers mechanisms of its own; may be repeated",
    )
    parser.add_argument("--debug", action="store_true", help="show the traceback of an error")
    return parser


def flag(annotation: Any) -> Callable[[str], Any]:
    """A function that reads the text of a flag as a number of this type and range."""

    def read(text: str) -> Any:
        value: Any = text
        for kind in (float, int):
            with suppress(ValueError):
                value = kind(text)
        try:
            return check(value, annotation, "it")
        except ConfigError as error:
            raise argparse.ArgumentTypeError(f"must be {describe(annotation)}, got {text!r}") from error

    return read


def mapping(text: str, name: str) -> dict[str, Any]:
    """The JSON object that the flag ``name`` was given; ConfigError for text that is none."""
    value = parse_yaml(text, name)  # which JSON is a part of
    if not isinstance(value, dict):
        raise ConfigError(f'{name} must be JSON such as {{"delay": 16}}, got {text!r}')
    return value


def split_overrides(
    words: Sequence[str], parser: argparse.ArgumentParser, siblings: Mapping[str, argparse.ArgumentParser] | None = None
) -> tuple[list[str], Overrides]:
    """The words that ``parser`` knows, and pairs (dotted key, text) from all other ``--key value``, ``--key=value``.

    Raises ConfigError for a key without a value or without a name, for an option of one of the ``siblings``, commands
    by name, and for a key given twice.
    """
    options = {option: action.nargs != 0 for action in parser._actions for option in action.option_strings}
    others: list[str] = []
    overrides: Overrides = []
    remaining = list(words)
    while remaining:
        word = remaining.pop(0)
        key, separator, value = word.partition("=")
        if key in options or not key.startswith("--"):
            others.append(word)
            if options.get(key) and not separator and remaining:
                others.append(remaining.pop(0))
            continue
        if key == "--":
            raise ConfigError(f"{word} names no setting; write --key value")
        if theirs := [name for name, each in (siblings or {}).items() if key in each._option_string_actions]:
            raise ConfigError(f"{key} is an option of {' and '.join(theirs)}, not a setting; leave it out here")
        if not separator:
            if not remaining:
                raise ConfigError(f"{key} needs a value: {key} VALUE")
            value = remaining.pop(0)
        overrides.append((key[2:], value))
    for key, times in Counter(key for key, _ in overrides).items():
        if times > 1:
            raise ConfigError(f"--{key} is given twice; give it once")
    return others, overrides


def add_config(parser: argparse.ArgumentParser) -> None:
    """CONFIG, or --env in its place: where the settings of a run come from."""
    parser.add_argument("config", nargs="?", metavar="CONFIG", help="YAML file or name of a packaged config")
    parser.add_argument("--env", metavar="ID", help="environment to train in with default settings, without a CONFIG")


def add_engine(
    parser: argparse.ArgumentParser, condition: str, noun: str, default: str = "1, on Ray the cores of the cluster"
) -> None:
    """--jobs, --engine and --address: how many processes at a time, and where.

    Their help begins with ``condition``; ``noun`` says what is run, in the plural, ``default`` the jobs without --jobs.
    """
    parser.add_argument(
        "--jobs", type=flag(Count), metavar="J", help=f"{condition}{noun} at the same time (default: {default})"
    )
    parser.add_argument(
        "--engine",
        choices=("local", "ray"),
        default="local",
        help=f"{condition}where {noun} go: this machine (default), or Ray",
    )
    parser.add_argument(
        "--address",
        metavar="A",
        help='with --engine ray: address of a cluster, "auto" for the one this machine belongs to',
    )


def jobs_of(arguments: argparse.Namespace) -> int | None:
    """How many processes run at a time, as the flags of ``add_engine`` say; None: as many as the engine has slots."""
    return arguments.jobs or (1 if arguments.engine == "local" else None)


def add_episodes(parser: argparse.ArgumentParser, episodes: str) -> None:
    """RUN's episodes: how many, by ``episodes`` where that is not said, of which weights, in which environment."""
    argument = parser.add_argument
    argument("--episodes", type=flag(Episodes), metavar="N", help=f"episodes, per target return (default: {episodes})")
    argument(
        "--target-return",
        type=flag(float),
        action="append",
        default=[],
        metavar="R",
        help="return a Decision Transformer is asked for; repeat for several (default: of the config)",
    )
    argument("--seed", type=flag(Seed), help="from which the seeds of the episodes follow (default: of the config)")
    argument(
        "--env",
        metavar="ID",
        help="another environment with the same observations and actions, with the keywords of --env-kwargs alone "
        "(default: that of training)",
    )
    argument(
        "--env-kwargs",
        default="{}",
        metavar="JSON",
        help="keywords of the environment to change for this evaluation; with --env all of them",
    )
    argument(
        "--longest-episode",
        type=flag(Count),
        metavar="N",
        help="steps after which an episode that goes on is an error "
        "(default: of the config, else 200000, or the registered limit where that is larger)",
    )
    argument(
        "--checkpoint",
        choices=("last", "best"),
        default="last",
        help="which weights (default: last; best was chosen by its evaluations, which flatters it)",
    )
    argument("--sample", action="store_true", help="sample actions instead of taking the most likely ones")
    add_threads(parser, "of the config, else 1, or OMP_NUM_THREADS where it is set")
    add_trust(parser)


def add_threads(parser: argparse.ArgumentParser, default: str) -> None:
    """--threads."""
    parser.add_argument("--threads", type=flag(Threads), metavar="N", help=f"threads of torch (default: {default})")


def add_trust(parser: argparse.ArgumentParser) -> None:
    """--trust."""
    parser.add_argument(
        "--trust", action="store_true", help="let modules and pickles that a config or run folder names run their code"
    )
