"""One hostile or harmless input, what must come of it, and the judgment over what came of it."""

import json
import random
import signal
import traceback
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from typing import Any

from rltransformers.core.errors import OUR_ERRORS, one_line

SECONDS = 60.0
LONGEST_MESSAGE = 900


class _Thing:
    """An object of no known kind, whose name is the same in every run."""

    def __repr__(self) -> str:
        return "<an object>"


THING = _Thing()
HOSTILE: tuple[Any, ...] = (
    None, True, False, 0, 1, -1, 2, 3, 0.5, 1.5, -0.5, 1e-300, 1e300, 10**12, 2**63, -(2**63), 10**400,
    float("nan"), float("inf"), float("-inf"), "", "abc", "1", "nan", "null", "../x", b"x", 1j, (), [], [1], [None],
    {}, {"a": 1}, {"name": "x"}, {1: 2}, THING, set(),
)  # fmt: skip
"""Values that a setting may be given by mistake or malice."""


class WrongError(Exception):
    """An input was accepted, and what came of it is not what it says."""


class Hang(BaseException):
    """An input took longer than any honest one would; no ``except Exception`` on the way may swallow it."""


@dataclass(frozen=True)
class Probe:
    """One input.

    Attributes:
        text: names the input in a report.
        act: tries it; returns when it was accepted and is right, raises ``WrongError`` when accepted and wrong.
        refused: True when it has to be refused, False when it has to be accepted, None when either is right.
        names: words of which a refusal has to hold one; empty for any.
    """

    text: str
    act: Callable[[], None]
    refused: bool | None = None
    names: tuple[str, ...] = ()


@dataclass(frozen=True)
class Judgment:
    """Outcome of a probe: "accepted" and "refused" are right, "unclear", "hang" and "wrong" are faults."""

    outcome: str
    detail: str = ""

    @property
    def fault(self) -> bool:
        """Whether somebody has to mend something."""
        return self.outcome in ("unclear", "hang", "wrong")


Area = Callable[[random.Random], Probe]
"""Draws one probe; the same random numbers give the same probe."""


def judge(probe: Probe, seconds: float = SECONDS) -> Judgment:
    """Try the probe, for ``seconds`` at most."""
    try:
        with _at_most(seconds):
            probe.act()
    except OUR_ERRORS as error:
        return _judge_refusal(probe, str(error))
    except WrongError as error:
        return Judgment("wrong", str(error))
    except Hang:
        return Judgment("hang", f"not done after {seconds:g} s")
    except BaseException as error:
        if isinstance(error, KeyboardInterrupt):
            raise
        where = traceback.extract_tb(error.__traceback__)[-1]
        return Judgment("unclear", f"{type(error).__name__}: {one_line(error)[:300]} ({where.filename}:{where.lineno})")
    if probe.refused:
        return Judgment("wrong", "accepted, though it has to be refused")
    return Judgment("accepted")


def _judge_refusal(probe: Probe, message: str) -> Judgment:
    if probe.refused is False:
        return Judgment("wrong", f"refused, though nothing is wrong with it: {message}")
    if not message.strip() or "\n" in message or len(message) > LONGEST_MESSAGE:
        return Judgment("unclear", f"not one line of at most {LONGEST_MESSAGE} characters: {message!r}")
    if probe.names and not any(name in message for name in probe.names):
        return Judgment("unclear", f"names none of {probe.names}: {message}")
    return Judgment("refused", message)


def shown(value: Any, longest: int = 80) -> str:
    """``value`` in a report."""
    text = repr(value)
    return text if len(text) <= longest else f"{text[:longest]}..."


def is_json(value: Any, allow_nan: bool = True) -> bool:
    """Whether a JSON text can hold ``value``."""
    try:
        json.dumps(value, allow_nan=allow_nan)
    except (TypeError, ValueError):
        return False
    return True


def edit_json(content: Any, chance: random.Random, values: Sequence[Any]) -> str:
    """Remove one value of nested JSON in place, or put one of ``values`` there; says which."""
    path, place = [], content
    while True:
        key = chance.choice(sorted(place, key=str)) if isinstance(place, dict) else chance.randrange(len(place))
        path.append(key)
        if not isinstance(place[key], dict | list) or not place[key] or chance.random() < 0.2:
            break
        place = place[key]
    if chance.random() < 0.25:
        del place[path[-1]]
        return f"without {path}"
    place[path[-1]] = chance.choice(values)
    return f"with {path} = {shown(place[path[-1]])}"


@contextmanager
def _at_most(seconds: float) -> Iterator[None]:
    def stop(signum: int, frame: Any) -> None:
        raise Hang

    before = signal.signal(signal.SIGALRM, stop)
    signal.setitimer(signal.ITIMER_REAL, seconds)
    try:
        yield
    finally:
        signal.setitimer(signal.ITIMER_REAL, 0.0)
        signal.signal(signal.SIGALRM, before)
