"""Modules that users name: installed ones, and those in the folder they stand in."""

import importlib
import os
import sys
from collections.abc import Iterator
from contextlib import contextmanager
from types import ModuleType
from typing import Any

from rltransformers.core.errors import ConfigError, did_you_mean, error_line

SAFE_PATH = "PYTHONSAFEPATH"
"""Variable with which Python leaves the current folder and the folder of a script out of its search path."""


def import_module(name: str) -> ModuleType:
    """The module of that name, one in the current folder first, as for ``python -m`` and not for a console script.

    A folder that had it stays at the end of the search path: for what the module imports when it is used, and for
    worker processes. Raises ImportError, TypeError or ValueError when there is none, or for what cannot be a name.
    """
    folder = os.getcwd()
    if folder in sys.path or "" in sys.path:
        return importlib.import_module(name)
    sys.path.insert(0, folder)
    try:
        module = importlib.import_module(name)
    finally:
        sys.path.remove(folder)
    if os.path.abspath(str(getattr(module, "__file__", None) or "")).startswith(os.path.join(folder, "")):
        sys.path.append(folder)
    return module


def named_object(text: str, what: str) -> Any:
    """What MODULE:NAME names; ConfigError, which calls it ``what``, for a text that names nothing."""
    module, _, name = text.rpartition(":")
    if not (module and name):
        raise ConfigError(f"{what} {text!r} must be MODULE:NAME, such as my_module:MyClass")
    try:
        found = import_module(module)
    except Exception as error:  # somebody else's module may raise anything
        raise ConfigError(f"{what} {text!r}: the module {module!r} cannot be imported ({error_line(error)})") from error
    if not hasattr(found, name):
        public = [each for each in vars(found) if each[0] != "_"]
        raise ConfigError(f"{what} {text!r}: {module} has no {name!r}; {did_you_mean(name, public)}")
    return getattr(found, name)


@contextmanager
def safe_path() -> Iterator[None]:
    """Processes of ``multiprocessing`` that start in the block import nothing from the current folder.

    They begin as ``python -c``, which puts that folder in front of the standard library, until they take over the
    search path of this process.
    """
    before = os.environ.get(SAFE_PATH)
    os.environ[SAFE_PATH] = "1"
    try:
        yield
    finally:
        if before is None:
            del os.environ[SAFE_PATH]
        else:
            os.environ[SAFE_PATH] = before
