"""Writes into the documents what is known elsewhere: the catalogue of mechanisms, with pictures, the figures
of docs/benchmarks/*.csv, the results in docs/results/*.csv; the page that a package index shows; the catalogue that the
command line reads; the tutorials as notebooks.

A table stands between the markers of its name, `<!-- slots:start -->` and `<!-- slots:end -->`.

python docs/_tools/update_docs.py            # rewrite the files
python docs/_tools/update_docs.py --check    # exit 1 and name the files that differ
python docs/_tools/update_docs.py --picture  # draw the picture of the README, too
python docs/_tools/update_docs.py --notebooks  # run the tutorials and keep their output, too (extra docs)
python docs/_tools/update_docs.py --pairs    # try all pairs of mechanisms anew, too
"""

import argparse
import hashlib
import re
import sys
from pathlib import Path

from rltransformers.backbone import PRESETS

ROOT = Path(__file__).resolve().parents[2]
sys.path.insert(0, str(ROOT))  # so that scripts and benchmarks are found

from docs._tools import catalogue, notebooks, pairs, summaries  # noqa: E402
from docs._tools import pages as mechanism_pages  # noqa: E402
from rltransformers.zoo import pictures, report  # noqa: E402
from rltransformers.zoo.aims import Runs  # noqa: E402
from rltransformers.zoo.suites import SUITES, Task, read_suite  # noqa: E402
from scripts import benchmark  # noqa: E402

README = ROOT / "README.md"
MECHANISMS = ROOT / "docs" / "mechanisms"
INDEX_PAGE = ROOT / "docs" / "package_index.md"
PICTURE = ROOT / "docs" / "learning.png"
RESULTS = ROOT / "docs" / "results"
FILES = (
    README,
    ROOT / "docs" / "benchmarks" / "README.md",
    ROOT / "docs" / "results" / "README.md",
    ROOT / "docs" / "results" / "pairs.md",
)

# What the README shows of all results and figures. Both lists hold targets that are not met.
RESULTS_LEGEND = (
    "A score is the interquartile mean over seeds, with its 95 % interval in brackets; higher is better. *Compared "
    "with* is the baseline of the task, *best other* the best of all other agents and variants that were run on it; "
    "their seeds are named where they are fewer."
)
SPEED_LEGEND = (
    "Medians of 5 repetitions, with the range of the ratio in brackets. The baseline in parentheses runs in the same "
    "process. The target is the ratio to reach; *yes* and *no* say whether it is reached."
)
README_RESULTS = {
    "popgym": ["repeat_previous_hard"],
    "vmpo": ["cartpole_masked"],
    "beyond_cloning": ["stitching"],
    "offline": ["hopper_mixture"],
}
README_SPEED = (
    "GTrXL loop",
    "GTrXL loop, compiled",
    "GTrXL loop, compiled: rollout",
    "DT update",
    "DT acting, compiled, 1 env",
    "band, T 8192",
)
README_SLOTS = {
    "position": ("trxl", "rope", "alibi"),
    "pattern": ("band", "dilated", "longformer"),
    "mixer": ("softmax", "mamba2", "gated_deltanet"),
    "memory_kind": ("transformer_xl", "compressive", "memorizing"),
    "residual": ("gru", "highway", "pre_ln"),
}
README_PICTURE = ("first_contact", "cartpole_masked", ("GTrXL", "LSTM", "PPO"))


def main() -> int:
    """Exit status: 1 when ``--check`` finds a difference."""
    arguments = parser().parse_args()
    if arguments.picture:
        draw(PICTURE)
    if arguments.notebooks:
        notebooks.run()
    if arguments.pairs:
        pairs.write(MECHANISMS)
    different = []
    for path, new in pages().items():
        if not path.is_file() or path.read_text() != new:
            different.append(path)
            if not arguments.check:
                path.parent.mkdir(exist_ok=True)
                path.write_text(new)
    for path in different:
        print(f"{path.relative_to(ROOT)} {'differs; run docs/_tools/update_docs.py' if arguments.check else 'written'}")
    return 1 if arguments.check and different else 0


def parser() -> argparse.ArgumentParser:
    """The options."""
    made = argparse.ArgumentParser(description="Write the generated tables into the documents.")
    made.add_argument("--check", action="store_true", help="change nothing, fail when a file differs")
    made.add_argument("--picture", action="store_true", help="draw the picture of the README anew")
    made.add_argument("--notebooks", action="store_true", help="run the tutorials and keep their output, too")
    made.add_argument("--pairs", action="store_true", help="try all pairs of mechanisms anew")
    return made


def pages() -> dict[Path, str]:
    """The text that every generated file should have."""
    texts = {path: updated(path.read_text()) for path in FILES}
    made = {INDEX_PAGE: index_page(texts[README]), catalogue.PATH: catalogue.text()} | notebooks.pages()
    return texts | made | mechanism_pages.pages(MECHANISMS)


def updated(text: str) -> str:
    """``text`` with everything between the markers replaced; unchanged where the markers are missing."""
    for name, table in TABLES.items():
        start, end = f"<!-- {name}:start -->", f"<!-- {name}:end -->"
        if start in text and end in text:
            before, rest = text.split(start, 1)
            _, after = rest.split(end, 1)
            lines = "\n".join(["", *table(), ""])
            text = f"{before}{start}\n{lines}\n{end}{after}"
    return text


def index_page(readme: str) -> str:
    """The README as a package index can show it: away from the repository, so without links to its files.

    A link to a file becomes its text, with the path behind it where the text does not name it; a picture becomes its
    description. Comments go. Code stays as it is.
    """
    parts = re.split(r"(^```.*?^```$)", readme, flags=re.MULTILINE | re.DOTALL)
    return "".join(part if part.startswith("```") else _without_files(part) for part in parts)


def _without_files(text: str) -> str:
    text = re.sub(r"<!--.*?-->\n?", "", text, flags=re.DOTALL)
    text = re.sub(r"!\[([^\]]*)\]\((?!https?://)[^)]*\)", r"*\1*", text)
    text = re.sub(r"(?<!!)\[([^\]]*)\]\((?!https?://)([^)]*)\)", _named, text)
    return re.sub(r"\n{3,}", "\n\n", text)


def _named(link: re.Match[str]) -> str:
    text, path = link.group(1), link.group(2).partition("#")[0]
    return text if not path or text.strip("`").rstrip("/") in path else f"{text} (`{path}`)"


def slots() -> list[str]:
    """The README's choice of slots: what each decides, some names that fit, and how many more there are."""
    lines = ["| slot | decides | names |", "|---|---|---|"]
    mechanisms = mechanism_pages.mechanisms()
    for axis, names in README_SLOTS.items():
        examples = ", ".join(f"`{name}`" for name in names)
        more = len(mechanisms[axis]) - len(names)
        decides = mechanism_pages.decides(axis)
        lines.append(f"| [`{axis}`](docs/mechanisms/{axis}.md) | {decides} | {examples}, {more} more |")
    papers = f"{len(PRESETS)} presets"
    lines.append(f"| [`preset`](docs/mechanisms/preset.md) | a published combination of all slots | {papers} |")
    return lines


def aims() -> list[str]:
    """The tasks that have a target, by suite."""
    legend, *tables = "\n".join(report.summary(RESULTS, SUITES)).split("\n\n**")
    with_aims = []
    for table in tables:
        lines = table.split("\n")
        tasks = [line for line in lines[4:] if not line.endswith("| - | - |")]
        if tasks:
            with_aims += ["", "\n".join([f"**{lines[0]}", *lines[1:4], *tasks])]
    return [legend, *with_aims]


def readme_results() -> list[str]:
    """The README's choice of results."""
    return [RESULTS_LEGEND, "", *report.selection(RESULTS, SUITES, README_RESULTS)]


def readme_speed() -> list[str]:
    """The README's choice of figures of speed and memory."""
    lines = [SPEED_LEGEND, "", "| benchmark | ours | baseline | ratio [range] | target |", "|---|---|---|---|---|"]
    for row in benchmark.targets(benchmark.RESULTS, README_SPEED)[2:]:
        *cells, target, met = (cell.strip() for cell in row.strip("| ").split(" | "))
        lines.append(f"| {' | '.join(cells)} | {target}: {met} |")
    return lines


def draw(path: Path) -> None:
    """The README's picture, from the curves in docs/results; it carries the digest of what it shows."""
    task, runs = picture_runs()
    figure = pictures.curves(task, runs)
    figure.savefig(path, dpi=120, metadata={"Software": None, "Description": digest(runs)})


def picture_runs() -> tuple[Task, Runs]:
    """Task and runs that the README's picture shows."""
    suite_name, name, variants = README_PICTURE
    suite = read_suite(str(SUITES / f"{suite_name}.yaml"))
    runs = report.runs_of(suite, name, report.rows_of(suite, RESULTS))
    return suite.tasks[name], {variant: runs[variant] for variant in variants}


def digest(runs: Runs) -> str:
    """A name for the curves of ``runs``: the same curves, the same name."""
    curves = [(variant, row.seed, row.curve) for variant, rows in runs.items() for row in rows]
    return hashlib.sha256(repr(curves).encode()).hexdigest()


TABLES = {
    "slots": slots,
    "readme-results": readme_results,
    "readme-speed": readme_speed,
    "speed-summary": lambda: summaries.summary(benchmark.RESULTS),
    "speed-beside": lambda: summaries.beside(benchmark.RESULTS),
    "growth": lambda: summaries.grown(benchmark.RESULTS),
    "time-to-learn": lambda: summaries.learning(benchmark.RESULTS),
    "dt-returns": lambda: summaries.returns(benchmark.RESULTS, RESULTS),
    "targets": lambda: summaries.targets(benchmark.RESULTS),
    "benchmarks": lambda: report.folded("rows", benchmark.summary(benchmark.RESULTS)),
    "results": aims,
    "suites": lambda: report.index(RESULTS, SUITES),
}


if __name__ == "__main__":
    sys.exit(main())
