"""The command ``rltransformers``: one file of ``commands`` for each of its commands."""

# PYTHON_ARGCOMPLETE_OK

import os
import signal
import sys
import threading
import warnings
from collections.abc import Sequence

from rltransformers import __version__
from rltransformers.cli.commands import (
    collect,
    compare,
    evaluate,
    export,
    inspect,
    look,
    settings,
    show,
    suite,
    train,
    tune,
)
from rltransformers.cli.commands import list as listing
from rltransformers.cli.printing import short_warning
from rltransformers.cli.trust import import_typed
from rltransformers.cli.words import Overrides, Parser, split_overrides
from rltransformers.core.errors import OUR_ERRORS, ConfigError, did_you_mean
from rltransformers.core.files import naming, refusal

MODULES = (train, tune, show, compare, evaluate, look, export, collect, suite, listing, settings, inspect)
COMMANDS = {each.__name__.rpartition(".")[2]: each for each in MODULES}
"""Modules by the name of their command: ``add`` makes its parser, ``run`` does it."""
WITH_SETTINGS = ("train", "tune", "show")  # commands that take every setting of a run by its dotted name


def main(argv: Sequence[str] | None = None) -> int:
    """Run one command; returns the exit code: 0 done, 2 refused with a reason, 128 + N ended by signal N."""
    words = list(sys.argv[1:] if argv is None else argv)
    debug = "--debug" in words
    report_thread, threading.excepthook = threading.excepthook, _report_thread
    report_warning = warnings.formatwarning
    if not debug:
        warnings.formatwarning = short_warning
    try:
        parser, overrides = build_parser(), Overrides()
        if "_ARGCOMPLETE" in os.environ:  # the shell asks what could be typed next
            from rltransformers.cli.completion import complete

            complete(parser)
        if words[:1] in ([], ["help"]):
            words = [*words[1:2], "--help"]
        if not words[0].startswith("-") and words[0] not in parser.commands:
            raise ConfigError(f"there is no command {words[0]!r}; {_way_out(words[0], parser)}")
        if words[0] in WITH_SETTINGS:
            siblings = {name: parser.commands[name] for name in WITH_SETTINGS}
            words, overrides = split_overrides(words, siblings[words[0]], siblings)
        elif words[0] in parser.commands:
            parser.commands[words[0]].refuse_unknown_options(words[1:])
        arguments = parser.parse_args(words)
        arguments.overrides = overrides
        import_typed(arguments.imports)
        COMMANDS[arguments.command].run(arguments)
        with naming("standard output"):
            sys.stdout.flush()
    except OUR_ERRORS as error:
        if debug:
            raise
        rank = os.environ.get("RANK")
        print(f"rltransformers{'' if rank is None else f' (process {rank})'}: {error}", file=sys.stderr)
        return 2
    except KeyboardInterrupt as interruption:
        return 128 + getattr(interruption, "signum", signal.SIGINT)
    except BrokenPipeError:  # whoever read our output has left, as `head` does
        _silence()
    except OSError as error:  # a full disk, a folder that must not be written to
        if debug:
            raise
        print(f"rltransformers: {refusal(error)}", file=sys.stderr)
        if error.filename in (None, "standard output"):
            _silence()
        return 2
    finally:
        threading.excepthook, warnings.formatwarning = report_thread, report_warning
    return 0


def _way_out(word: str, parser: Parser) -> str:
    from rltransformers.cli.configs import environment_named, packaged_configs

    if env_id := environment_named(word):
        return f"to train in an environment: rltransformers train --env {env_id}"
    if word in packaged_configs() or word.endswith((".yaml", ".yml")):
        return f"to train a config: rltransformers train {word}"
    return did_you_mean(word, parser.commands)


def _report_thread(failure: threading.ExceptHookArgs) -> None:
    """Errors of threads, but for those of the operating system: TensorBoard's writer raises them again in ours."""
    if not issubclass(failure.exc_type, OSError):
        threading.__excepthook__(failure)


def _silence() -> None:
    """Drop what is left of the output, which nobody takes; Python must not complain about it when it exits."""
    os.dup2(os.open(os.devnull, os.O_WRONLY), sys.stdout.fileno())


def build_parser() -> Parser:
    """All commands with their help."""
    parser = Parser(
        prog="rltransformers",
        description="Train and evaluate transformers for sequential decisions: GTrXL policies, Decision Transformers.",
        epilog="A first run: `rltransformers train --env CartPole-v1`, then `rltransformers look` with its run folder. "
        "`rltransformers COMMAND --help` explains a command and shows examples.",
    )
    parser.add_argument("--version", action="version", version=f"rltransformers {__version__}")
    commands = parser.add_subparsers(dest="command", required=True, metavar="COMMAND", parser_class=Parser)
    for each in COMMANDS.values():
        each.add(commands)
    parser.commands = commands.choices
    return parser


if __name__ == "__main__":
    sys.exit(main())
