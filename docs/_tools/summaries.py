"""Tables that pages show first, from the rows of CSV files: docs/benchmarks/README.md and docs/results/pairs.md."""

import re
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path

from rltransformers.core.errors import ConfigError
from rltransformers.training.runs.comparison import estimate
from rltransformers.zoo.report import alignment_of, line, opening, rows_of, runs_of, table_head
from rltransformers.zoo.suites import SUITES, read_suite
from scripts import benchmark


@dataclass(frozen=True)
class Comparison:
    """A line of the summary.

    Attributes:
        what: is compared.
        against: what.
        text: with a place for each ratio.
        rows: whose ratios these are, each with the beginning of the name of its peer; the first row counts.
    """

    what: str
    against: str
    text: str
    rows: Sequence[tuple[str, str]]


TRANSFORMERS = {
    "CleanRL `ppo_trxl`": "CleanRL ppo_trxl",
    "`episodic-transformer-memory-ppo`": "episodic-transformer-memory-ppo",
}
"""Peers that are transformers, by what pages call them."""
LOOP = "GTrXL loop"
TENSORS, ACTING = "Tensors: CartPole, width 16", "GTrXL acting, memory 512"
SUMMARY = (
    Comparison(
        "PPO, collecting and learning",
        "RecurrentPPO's LSTM",
        "{}, compiled {}",
        [(LOOP, "RecurrentPPO"), (f"{LOOP}, compiled", "RecurrentPPO")],
    ),
    Comparison("the same", "; ".join(TRANSFORMERS), "{}; {}", [(LOOP, name) for name in TRANSFORMERS.values()]),
    Comparison(
        "PPO with 1,024 CartPoles in tensors",
        "the same through `DummyVecEnv`",
        "{}, compiled {}",
        [(f"{TENSORS}, loop", "DummyVecEnv"), (f"{TENSORS}, compiled, loop", "DummyVecEnv")],
    ),
    Comparison(
        "a step of acting with a memory of 512",
        "a memory of 32",
        "{} as long; {} with one key-value head",
        [(ACTING, ""), (f"{ACTING}, one key-value head", "")],
    ),
    Comparison("a Decision Transformer's update", "Hugging Face `transformers`", "{}", [("DT update", "transformers")]),
    Comparison(
        "its step of acting, one environment",
        "the same",
        "{}, compiled {}",
        [("DT acting, 1 env", "transformers"), ("DT acting, compiled, 1 env", "transformers")],
    ),
)
RETURNS, ASKED, ERROR = "DT returns: ", ", asked for 500", ", target error"
OURS = {"defaults": "`DecisionTransformer` with its defaults", "tuned": "`DecisionTransformer`, `dt_cartpole_mixture`"}
"""Variants of the suite first_data, by what the table calls them."""
SLOWER = "acting-position"
LEARNING = "time to learn: "
KEPT = re.compile(r"at (T \d+): .* ([\d.]+ MB) kept")
REACHED = re.compile(r"(\d+) of (\d+)")


def summary(folder: Path) -> list[str]:
    """Ratios to peers and, of late steps, to early ones."""
    lines = [
        line([each.what, each.against, each.text.format(*(ratio_of(folder, *row) for row in each.rows))])
        for each in SUMMARY
    ]
    ratios = [float(row["ratio"]) for row in benchmark.measured(folder, [SLOWER])]
    late = f"{min(ratios):.2f} to {max(ratios):.2f} as long"
    lines.append(line(["a step at position 4,096 of an episode", f"position 32, {len(ratios)} mixers", late]))
    return [*table_head(["what", "against", "ratio"]), *lines]


def beside(folder: Path) -> list[str]:
    """How many times as fast parts of an iteration are as those of other transformers, and the peak of memory."""
    ours = benchmark.short(row_of(folder, f"{LOOP}: memory", next(iter(TRANSFORMERS.values())))["ours"])
    lines = table_head(["against", "steps per second", "acting", "update", f"peak of memory, ours {ours} MB"])
    for title, name in TRANSFORMERS.items():
        ratios = (ratio_of(folder, row, name) for row in (LOOP, f"{LOOP}: rollout", f"{LOOP}: update"))
        lines.append(line([title, *ratios, f"{benchmark.short(row_of(folder, f'{LOOP}: memory', name)['peer'])} MB"]))
    return lines


def learning(folder: Path) -> list[str]:
    """Median processor seconds to learn each task that was measured, and how many seeds did."""
    rows = [row for row in benchmark.measured(folder, ["time-to-learn"]) if row["peer_name"]]
    peers = list(dict.fromkeys(row["peer_name"] for row in rows))
    lines = table_head(["processor seconds (seeds)", "ours", *peers])
    for task in dict.fromkeys(row["name"] for row in rows):
        by_peer = {row["peer_name"]: row for row in rows if row["name"] == task}
        mine, *_ = by_peer.values()
        cells = [_seconds(mine["ours"], mine["note"].split(";")[0])]
        for name in peers:
            row = by_peer.get(name)
            cells.append("-" if row is None else _seconds(row["peer"], row["note"].split(";")[1]))
        lines.append(line([task.removeprefix(LEARNING), *cells]))
    return lines


def _seconds(value: str, note: str) -> str:
    """A median, with the share of the seeds that reached the aim; over it where most did not."""
    found = REACHED.search(note)
    assert found is not None
    reached, count = map(int, found.groups())
    return f"{'' if 2 * reached > count else 'over '}{float(value):.3g} ({reached} of {count})"


def grown(folder: Path) -> list[str]:
    """Entries of the catalogue whose cost grows faster than they declare."""
    rows = list(benchmark.measured(folder, ["catalogue"]))
    missed = [row for row in rows if row["met"] == "False"]
    lines = [f"{len(missed)} of {len(rows)} entries grow faster than they declare:", ""]
    lines += table_head(["entry", "exponent of the time in T", "allowed", "kept for the backward pass"])
    for row in missed:
        found = KEPT.search(row["note"])
        assert found is not None
        name = row["name"].rpartition(":")[2]
        kept = f"{found.group(2)} at {found.group(1)}"
        lines.append(line([f"`{name}`", f"{float(row['ours']):.2f}", row["target"].removeprefix("<= "), kept]))
    return lines


def targets(folder: Path) -> list[str]:
    """Rows with a target: those that miss it, and the others behind a line that opens them."""
    first, second, *rows = benchmark.targets(folder)
    missed = [row for row in rows if row.endswith("**no** |")]
    reached = [row for row in rows if row not in missed]
    title = f"The {len(reached)} that are reached"
    head = f"{len(missed)} of {len(rows)} targets are missed:"
    return [head, "", first, second, *missed, "", *opening(title, [first, second, *reached])]


def returns(folder: Path, results: Path) -> list[str]:
    """Decision Transformers of others on a recording of ours, and ours: return when asked for 500, and target error."""
    rows = {row["name"].removeprefix(RETURNS): row for row in benchmark.measured(folder, ["dt-returns"])}
    lines = table_head(["trained here", "actions", "asked for 500", "target error, RMSE", "seeds"])
    for name, row in rows.items():
        if name.endswith(ASKED):
            title, _, actions = name.removesuffix(ASKED).partition(", ")
            package, kind = title.split()
            error = rows[name.removesuffix(ASKED) + ERROR]
            version = row["note"].split(",")[0].removeprefix(f"{package} ")
            lines.append(
                line([f"{package} {version} `{kind}`", actions, _range(row), _range(error), row["repetitions"]])
            )
    suite = read_suite(str(SUITES / "first_data.yaml"))
    runs = runs_of(suite, "cartpole_mixture", rows_of(suite, results))
    for variant, title in OURS.items():
        scores = (estimate([value(row) for row in runs[variant]]) for value in (lambda row: row.score, alignment_of))
        lines.append(line([title, "drawn", *scores, str(len(runs[variant]))]))
    return lines


def _range(row: Mapping[str, str]) -> str:
    """The median of the seeds with their range, to a tenth."""
    middle, low, high = (f"{float(row[name]):.1f}".removesuffix(".0") for name in ("ours", "low", "high"))
    return middle if row["repetitions"] == "1" else f"{middle} [{low}, {high}]"


def ratio_of(folder: Path, name: str, peer: str) -> str:
    """The ratio of a row, three digits."""
    return benchmark.short(row_of(folder, name, peer)["ratio"])


def row_of(folder: Path, name: str, peer: str) -> dict[str, str]:
    """The first row of this name whose peer's name begins so.

    Raises:
        ConfigError: where there is none.
    """
    for row in benchmark.measured(folder, benchmark.COMMANDS):
        if row["name"] == name and row["peer_name"].startswith(peer):
            return row
    raise ConfigError(f"no row {name!r} beside {peer!r} in {folder}")
