"""What trajectories hold, as JSON values and as text: leaves, ends, returns, and what can be asked for.

Axis letters: E episodes, N steps of all episodes, D numbers of one row.
"""

import json
import math
import textwrap
from collections.abc import Iterable, Iterator, Mapping
from typing import TYPE_CHECKING, Any

import numpy as np
import numpy.typing as npt
from gymnasium import spaces

from rltransformers.core.spaces import Space, leaf_spaces
from rltransformers.core.values import Array
from rltransformers.data.spaces import chunks, one_hot
from rltransformers.data.starts import share_of_start

if TYPE_CHECKING:
    from rltransformers.data.trajectories import Trajectories

Floats = npt.NDArray[np.float64]
NEAR = 0.05
"""An episode is near a target return if it differs by at most this share of the range of returns."""
MOST_LISTED = 64
"""Numbers of a row up to which a leaf is described number by number."""
_WIDTH = 80
_MOST_GAPS = 4
_MOST_LINES = 16  # of one leaf, in the text


def summary_of(data: "Trajectories") -> dict[str, Any]:
    """Do what ``Trajectories.summary`` says."""
    returns, lengths, ends = data.returns, data.lengths, data.offsets[1:] - 1
    targets, reach = data.target_returns(), NEAR * float(np.ptp(returns))
    arrays = [*data.observations.values(), *data.actions.values(), data.rewards, data.terminations, data.truncations]
    reaches = [max(reach * (1 + 1e-9), 1e-6 * abs(target)) for target in targets]  # targets are rounded
    near = [int((np.abs(returns - target) <= most).sum()) for target, most in zip(targets, reaches, strict=True)]
    return {
        "name": data.name,
        "env_id": data.env_id,
        "episodes": len(data),
        "steps": data.steps,
        "length": _spread(lengths),
        "has_rewards": data.has_rewards,
        "return": _spread(returns),
        "return_explained_by_start": share_of_start(data),
        "target_returns": targets,
        "near_targets": [
            {"return": target, "episodes": count, "share": count / len(data)}
            for target, count in zip(targets, near, strict=True)
        ],
        "return_gaps": return_gaps(returns),
        "terminated_episodes": int(data.terminations[ends].sum()),
        "truncated_episodes": int(data.truncations[ends].sum()),
        "final_observations": data.final_observations,
        "observations": {path: str(leaf) for path, leaf in leaf_spaces(data.observation_space).items()},
        "actions": {path: str(leaf) for path, leaf in leaf_spaces(data.action_space).items()},
        "observation_values": {
            path: _values(leaf, data.component_names("observations", path)) for path, leaf in data.observations.items()
        },
        "action_values": {
            path: _values(data.actions[path], data.component_names("actions", path))
            | _use(leaf, data.actions[path], "action_space" in data.guesses)
            for path, leaf in leaf_spaces(data.action_space).items()
        },
        "megabytes": round(sum(array.nbytes for array in arrays) / 1e6, 3),
        "fingerprint": data.fingerprint(),
        "metadata": dict(data.metadata),
        "guesses": dict(data.guesses),
    }


def return_gaps(returns: npt.ArrayLike) -> list[list[float]]:
    """Lowest and highest return of every range between the worst and the best in which no episode is near."""
    ordered = np.sort(np.asarray(returns, np.float64))
    reach = NEAR * float(np.ptp(ordered))
    below, above = ordered[:-1] + reach, ordered[1:] - reach
    return np.stack([below, above], 1)[above > below + 1e-9 * np.abs(below)].tolist()


def _spread(values: Array) -> dict[str, float]:
    quantiles = {"min": 0.0, "p10": 0.1, "p25": 0.25, "median": 0.5, "p75": 0.75, "p90": 0.9, "max": 1.0}
    spread = {name: float(np.quantile(values, share)) for name, share in quantiles.items()}
    return {"mean": float(np.mean(values)), "std": float(np.std(values)), **spread}


def _rows(leaf: Array) -> Iterator[Floats]:
    """Rows [R, D] of a leaf, some at a time."""
    for chunk in chunks(leaf):
        part = np.asarray(leaf[chunk], np.float64)
        yield part.reshape(len(part), -1)


def _values(leaf: Array, names: list[str] | None) -> dict[str, Any]:
    """Shape, type and range of a leaf [rows, ...], how many of its numbers never change, whether rows are one-hot."""
    extremes: list[Array] = []
    all_one_hot = leaf.ndim == 2 and leaf.shape[1] > 1
    for chunk in chunks(leaf):
        rows = np.reshape(leaf[chunk], (-1, math.prod(leaf.shape[1:])))
        extremes = [np.min([*extremes[:1], rows.min(0)], axis=0), np.max([*extremes[1:], rows.max(0)], axis=0)]
        all_one_hot = all_one_hot and bool(one_hot(rows).all())
    low, high = (extreme.astype(np.float64) for extreme in extremes)
    values: dict[str, Any] = {"shape": list(leaf.shape[1:]), "type": str(leaf.dtype)}
    values |= {"min": float(low.min()), "max": float(high.max()), "constant": int((low == high).sum())}
    values["one_hot"] = all_one_hot
    if len(low) <= MOST_LISTED:
        values |= {"low": low.tolist(), "high": high.tolist()} | ({"names": names} if names else {})
    return values


def _use(space: Space, leaf: Array, guessed: bool) -> dict[str, Any]:
    """How a leaf of actions [N, ...] uses its space, and what it would cost always to give the same action."""
    if isinstance(space, spaces.Box):
        return _use_of_box(space, leaf, guessed)
    counts = [np.unique(column, return_counts=True)[1] for column in np.reshape(leaf, (len(leaf), -1)).T]
    errors = [1 - float(count.max()) / len(leaf) for count in counts[:MOST_LISTED]]
    return {"classes": [len(count) for count in counts[:MOST_LISTED]], "error_of_most_frequent": errors}


def _use_of_box(space: spaces.Box, leaf: Array, guessed: bool) -> dict[str, Any]:
    size = math.prod(leaf.shape[1:])
    mean = np.sum([rows.sum(0) for rows in _rows(leaf)], axis=0) / len(leaf)
    square = np.sum([((rows - mean) ** 2).sum(0) for rows in _rows(leaf)], axis=0) / len(leaf)
    low, high = (np.reshape(bound, -1).astype(np.float64) for bound in (space.low, space.high))
    if guessed:  # the bounds are those of the data
        low, high = np.full(size, -1.0), np.full(size, 1.0)
    room = np.where(np.isfinite(high - low), 1e-6 * (high - low), 0.0)
    at, beyond, steps = np.zeros(size), np.zeros(size), 0
    for rows in _rows(leaf):
        outside = (rows < low - room) | (rows > high + room)
        at += (((rows <= low + room) | (rows >= high - room)) & ~outside).sum(0)
        beyond += outside.sum(0)
        steps += int(outside.any(1).sum())
    use: dict[str, Any] = {"bounds_guessed": guessed, "steps_beyond": steps}
    if size <= MOST_LISTED:
        use |= {"mean": mean.tolist(), "error_of_mean": np.sqrt(square).tolist()}
        use |= {"share_at_bounds": (at / len(leaf)).tolist(), "share_beyond": (beyond / len(leaf)).tolist()}
    return use


def summary_text(summary: Mapping[str, Any]) -> str:
    """The text for what ``Trajectories.summary`` returned, 80 columns wide."""
    return "\n".join(line.rstrip() for line in _lines(summary))


def _lines(summary: Mapping[str, Any]) -> Iterator[str]:
    length = summary["length"]
    yield _fact("name", summary["name"])
    yield _fact("environment", summary["env_id"] or "not named")
    yield _fact("episodes", f"{summary['episodes']:,}")
    yield _fact("steps", f"{summary['steps']:,}")
    yield _fact("lengths", f"min {_short(length['min'])}, median {_short(length['median'])}, max {length['max']:g}")
    yield _fact("ends", f"{summary['terminated_episodes']:,} terminated, {summary['truncated_episodes']:,} truncated")
    yield _fact("last observations", "known" if summary["final_observations"] else "unknown")
    for role in ("observation", "action"):
        yield ""
        yield f"{role}s{', of a guessed space' if f'{role}_space' in summary['guesses'] else ''}"
        yield from _leaves(summary[f"{role}s"], summary[f"{role}_values"])
    for path, values in summary["action_values"].items():
        yield from _action_lines(path, values)
    yield ""
    if summary["has_rewards"]:
        yield from _return_lines(summary)
    else:
        yield _fact("returns", "not logged, so only mode='bc' learns from these data")
    yield ""
    yield _fact("memory", f"{summary['megabytes']:.3g} MB")
    yield _fact("fingerprint", summary["fingerprint"])
    for key, value in summary["metadata"].items():
        if key == "names":  # said above
            continue
        text = value if isinstance(value, str) else json.dumps(value)
        yield _fact(key, text)


def _return_lines(summary: Mapping[str, Any]) -> Iterator[str]:
    returns = summary["return"]
    yield "returns"
    keys = ("min", "p25", "median", "p75", "max", "mean", "std")
    yield _row(("", "min", "25 %", "median", "75 %", "max", "mean", "std"), 10)
    yield _row(("", *(_short(returns[key]) for key in keys)), 10)
    if "normalized_score_mean" in summary:
        yield _fact("normalized score", f"mean {_short(summary['normalized_score_mean'])}")
    yield from _wrapped(_start_sentence(summary["return_explained_by_start"]))
    yield ""
    yield f"targets                episodes within {NEAR:.0%} of the range of returns"
    for near in summary["near_targets"]:
        yield _fact(f"{near['return']:,.15g}", f"{near['episodes']:,} of {summary['episodes']:,} ({near['share']:.1%})")
    if summary["return_gaps"]:
        spread = returns["max"] - returns["min"]
        gaps = [" to ".join(f"{rounded(bound, spread):,.15g}" for bound in gap) for gap in summary["return_gaps"]]
        some = ", ".join(gaps[:_MOST_GAPS]) + (f" and {len(gaps) - _MOST_GAPS} more" if len(gaps) > _MOST_GAPS else "")
        yield from _wrapped(f"No episode is so near to returns of {some}: what a target there obtains is a guess.")


def _leaves(texts: Mapping[str, str], leaves: Mapping[str, Mapping[str, Any]]) -> Iterator[str]:
    yield _row(("  leaf", "shape", "type", "min", "max"), 13, first=24)
    for path, values in leaves.items():
        shape = f"({', '.join(map(str, values['shape']))}{',' if len(values['shape']) == 1 else ''})"
        cells = (f"  {path or '(whole)'}", shape, values["type"], _short(values["min"]), _short(values["max"]))
        yield _row(cells, 13, first=24)
        yield from _wrapped(texts[path], indent="    ", most=2)
        size = math.prod(values["shape"])
        ranges = list(zip(values.get("low", ()), values.get("high", ()), strict=True))
        if size > 1 and "names" in values:
            rows = zip(values["names"], ranges, strict=True)
            yield from _some(_row((f"    {name}", "", "", *map(_short, pair)), 13, first=24) for name, pair in rows)
        if values["one_hot"]:
            yield "    every row is one-hot"
        if values["constant"]:
            names = values.get("names", range(len(ranges)))
            constant = [name for name, (low, high) in zip(names, ranges, strict=True) if low == high]
            listed = ", ".join(map(str, constant[:12])) + (", ..." if len(constant) > 12 else "")
            which = f": {listed}" if 0 < len(constant) < size else ""
            yield from _wrapped(f"{values['constant']:,} of {size:,} numbers never change{which}", indent="    ")


def _action_lines(path: str, values: Mapping[str, Any]) -> Iterator[str]:
    where = f" of {path}" if path else ""
    names = values.get("names") or list(map(str, range(MOST_LISTED)))
    if "error_of_most_frequent" in values:
        yield f"always the most frequent action{where}"
        yield _row(("  component", "classes", "wrong in"), 14, first=14)
        listed = zip(names, values["classes"], values["error_of_most_frequent"], strict=False)
        rows = [(f"  {name}", f"{count}", f"{error:.1%}") for name, count, error in listed]
        yield from _some([_row(row, 14, first=14) for row in rows])
    elif "mean" in values:
        at = "at -1 or 1" if values["bounds_guessed"] else "at a bound"
        yield f"always the mean action{where}: error is the root of the mean square"
        yield _row(("  component", "mean", "error", at, "beyond"), 14, first=14)
        keys = ("mean", "error_of_mean", "share_at_bounds", "share_beyond")
        rows_ = zip(names, *(values[key] for key in keys), strict=False)
        yield from _some(
            _row((f"  {name}", _short(mean), _short(error), f"{at:.1%}", f"{beyond:.1%}"), 14, first=14)
            for name, mean, error, at, beyond in rows_
        )
        if values["bounds_guessed"] and values["steps_beyond"]:
            yield from _wrapped(
                f"{values['steps_beyond']:,} steps have an action beyond -1..1 (from {_short(values['min'])} to "
                f"{_short(values['max'])}). Most environments clip such actions; if yours does, train on "
                f"np.clip(actions, -1, 1)."
            )


def _start_sentence(start: Mapping[str, Any] | None) -> str:
    if start is None:
        return (
            "How much of the return the first observation decides cannot be told: episodes are too few, or all "
            "returns are equal."
        )
    share, how = start["share"], f"{start['method']}, {start['folds']}-fold cross-validation"
    said = f"The first observation explains {share:.0%} of the variance of returns ({how})."
    if share < 0.1:
        return f"{said} Returns are hardly decided by the start."
    much = "Most" if share >= 0.5 else "A part"
    return (
        f"{said} {much} of a return is luck of the start, and a return that is luck cannot be asked for: compare what "
        f"an agent obtains with episodes of the same starts, not with the target."
    )


def _fact(key: str, value: str) -> str:
    line = f"{key:<22} {value}"
    return line if len(line) <= _WIDTH else f"{line[: _WIDTH - 4]} ..."


def _row(cells: Iterable[str], width: int, first: int = 2) -> str:
    head, *rest = cells
    end = "".join(f"{cell:>{width}}" for cell in rest)
    room = max(len(end) + first, _WIDTH) - len(end.lstrip()) - 1  # a long name reaches into the blanks behind it
    if len(head) > room:
        head = f"{head[: room - 3]}..."
    return f"{head:<{first}}" + end[max(len(head) - first, 0) :]


def _some(lines: Iterable[str]) -> Iterator[str]:
    listed = list(lines)
    yield from listed[:_MOST_LINES]
    if len(listed) > _MOST_LINES:
        yield f"  ... and {len(listed) - _MOST_LINES} more, with --json"


def _wrapped(text: str, indent: str = "", most: int = 9) -> list[str]:
    return textwrap.wrap(
        text, _WIDTH, initial_indent=indent, subsequent_indent=indent, max_lines=most, placeholder=" ..."
    )


def rounded(value: float, spread: float) -> float:
    """A number to four digits, and to four of the ``spread`` of numbers like it, but to seven at most (float32)."""
    size = abs(value)
    return round(value, 3 - math.floor(math.log10(min(size, max(spread, size / 1000))))) if value else value


def _short(value: float) -> str:
    return f"{value:,.0f}" if value == int(value) and abs(value) < 1e6 else f"{value:.4g}"
