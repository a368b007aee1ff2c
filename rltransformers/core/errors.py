"""Errors that name the rule that was broken, the value that broke it and the way out."""

import difflib
import importlib
from collections.abc import Collection, Iterable
from types import ModuleType

from rltransformers.core.synonyms import WITHOUT_EQUIVALENT, ways_to


class ConfigError(ValueError):
    """A setting, or a combination of settings, cannot work."""


class DataError(ValueError):
    """Observations, rewards or a dataset break a rule that training relies on."""


class CheckpointError(RuntimeError):
    """A checkpoint is unreadable, of another format version, or of another agent."""


class MissingExtraError(ImportError):
    """An optional dependency is not installed, or it is and cannot be imported; the message says which."""


class CompileError(RuntimeError):
    """A step could not be compiled on this machine, or what was compiled could not be loaded; eager mode works."""


class MissingCompilerError(CompileError):
    """This machine has no C++ compiler that works."""


class WorldError(RuntimeError):
    """Another process of a distributed run ended or timed out."""


OUR_ERRORS = (ConfigError, DataError, CheckpointError, MissingExtraError, CompileError, WorldError)
"""Errors that the command line prints as one line."""


def one_line(value: object) -> str:
    """The text of ``value`` in one line, for a message."""
    return " ".join(str(value).split())


def error_line(error: BaseException) -> str:
    """An error of somebody else's code in one line, with its type."""
    return f"{type(error).__name__}: {one_line(error)}"


def did_you_mean(name: object, known: Iterable[object]) -> str:
    """A sentence with the known names that are meant by a word of other programs, else the closest, else all.

    Of a word for what there is not, what to do instead.
    """
    if (instead := WITHOUT_EQUIVALENT.get(str(name))) is not None:
        return instead
    names = sorted(str(known_name) for known_name in known)
    lower = {each.lower(): each for each in names}
    close = [repr(lower[match]) for match in difflib.get_close_matches(str(name).lower(), lower, n=2, cutoff=0.6)]
    if ways := ways_to(name, names) or close:
        return f"did you mean {' or '.join(ways[:2])}?"
    return f"known: {', '.join(names)}"


def refuse_unknown(names: Iterable[object], known: Collection[object], path: str = "", source: str = "") -> None:
    """Raise ConfigError for the first name of a mapping that is none of ``known``, with the closest known ones.

    The message begins with ``source``, a file or the part that takes the settings; ``path``, as "algorithm.", is put
    before the name.
    """
    for name in names:
        if name not in known:
            way_out = did_you_mean(name, known) if known else "it takes none"
            raise ConfigError(f"{source}{': ' if source else ''}unknown setting {path}{name}; {way_out}")


def require(module: str, extra: str) -> ModuleType:
    """Import ``module`` or raise MissingExtraError: with the extra that provides it, or why importing it fails."""
    try:
        return importlib.import_module(module)
    except Exception as error:  # a package may raise anything while it is imported
        if isinstance(error, ModuleNotFoundError) and error.name in (module, module.partition(".")[0]):
            message = f"{module} is not installed; it comes with: pip install 'rltransformers[{extra}]'"
        else:
            message = f"{module} is installed, but importing it fails: {error_line(error)}"
        raise MissingExtraError(message) from error
