"""The pages of docs/mechanisms: one per slot, written from the catalogue, the benchmarks and the results."""

import csv
import json
import re
from collections.abc import Iterator, Mapping, Sequence
from functools import cache
from pathlib import Path
from typing import Any

from docs._tools import pictures
from rltransformers.backbone import AXES, PRESETS, catalogue
from rltransformers.backbone.presets import INITIAL
from rltransformers.core.spec import Spec
from rltransformers.policies.readouts.catalogue import DECIDES, READOUTS
from rltransformers.policies.set_encoders.catalogue import DECIDES as ENCODER_DECIDES
from rltransformers.policies.set_encoders.catalogue import ENCODERS
from rltransformers.training.runs.comparison import estimate
from rltransformers.zoo import report
from rltransformers.zoo.suites import SUITES, read_suite
from scripts import benchmark

LENGTH = 1024
"""Tokens of the segment whose cost a page tells."""

SUITE = "variants"
RESULTS = Path(__file__).resolve().parents[1] / "results"

NOTES = {
    "position": "A list combines encodings that act at different places.",
    "pattern": "Layers cycle through a list; a list inside that list gives one pattern per head.",
    "selection": "Layers cycle through a list.",
    "mixer": "Layers cycle through a list. Which one to take, with examples: "
    "[recurrent memories](../guides/recurrent_memories.md).",
    "span": "Layers cycle through a list.",
    "losses": "Written as `losses: {NAME: weight}`, or `losses: {NAME: {weight: ..., option: value}}`.",
    "encoder": 'Of the policy, not of the backbone: `policy_kwargs={"observation": {"encoder": ...}}`, '
    "`policy.observation.encoder` in YAML. What it encodes is pooled into the token of the step; with `topology: "
    "encoder_decoder` every layer attends to the elements too.",
    "readout": 'Of the policy, not of the backbone: `policy_kwargs={"readout": ...}`, `policy.readout` in YAML.',
}


def mechanisms() -> dict[str, list[Spec]]:
    """Those of the backbone by axis, and those of the policy."""
    return catalogue() | {"encoder": list(ENCODERS.values()), "readout": list(READOUTS.values())}


def decides(axis: str) -> str:
    """Subject of the answer, part of a sentence."""
    return AXES[axis].decides if axis in AXES else {"readout": DECIDES, "encoder": ENCODER_DECIDES}[axis]


def pages(folder: Path) -> dict[Path, str]:
    """Text of every page of ``folder``."""
    found = {folder / "README.md": "\n".join(index()) + "\n"}
    for axis, specs in mechanisms().items():
        found[folder / f"{axis}.md"] = "\n".join(slot(axis, specs)) + "\n"
    found[folder / "preset.md"] = "\n".join(presets()) + "\n"
    return found | pictures.pages(folder)


def index() -> Iterator[str]:
    """The page that lists the slots."""
    count = sum(map(len, mechanisms().values()))
    yield from ["# Mechanisms", ""]
    yield f"Look up the {count} mechanisms of [the backbone](../backbone.md) here. Each slot has a page with"
    yield "formulas, options, costs, differences from the source, and measurements."
    yield "`rltransformers list` prints them too. `python docs/_tools/update_docs.py` writes these pages."
    yield "[Recurrent memories](../guides/recurrent_memories.md) says how to choose Mamba 2, xLSTM, DeltaNet or LSTM."
    yield from ["", "| slot | decides | names |", "|---|---|---|"]
    for axis, specs in mechanisms().items():
        names = ", ".join(f"[`{spec.name}`]({axis}.md#{spec.name})" for spec in specs)
        yield f"| [`{axis}`]({axis}.md) | {decides(axis)} | {names} |"
    yield f"| [`preset`](preset.md) | a published combination of all slots | {len(PRESETS)} papers |"
    yield from ["", "## How to read these pages", ""]
    yield "- *sees*: how far back a layer can read: the `memory` (window), the whole episode, or as it says."
    yield "- *state*: numbers that it keeps per environment and layer while acting, besides the memory."
    yield "- *work grows as*: with the number T of tokens in a call, or N of elements in an observation."
    yield "- *learned*: interquartile mean over seeds with its 95 % interval, from [the suite](../results/variants.md)."
    yield "- *id*: the name of an entry in the CSV files of the [benchmarks](../benchmarks/README.md)."
    yield from ["", "## Which of them go together", ""]
    yield "[All pairs](pairs.csv) says which two mechanisms a config can combine, and the error message for others."
    yield ""
    matrix = "A matrix of all mechanisms: green where two of them work together, red where they do not."
    yield f"[![{matrix}](pairs.png)](pairs.png)"


def slot(axis: str, specs: Sequence[Spec]) -> Iterator[str]:
    """The page of one axis."""
    text = decides(axis)
    yield from [f"# {axis}", "", f"{text[0].upper()}{text[1:]}. {NOTES.get(axis, '')}".rstrip()]
    yield from ["[All slots, and how to read this page](README.md#how-to-read-these-pages).", ""]
    yield from pictures.overview(axis)
    yield from ["| name | id | in one sentence |", "|---|---|---|"]
    for spec in specs:
        yield report.line([f"[`{spec.name}`](#{spec.name})", spec.id, sentence(spec)])
    for spec in specs:
        yield from ["", f"## {spec.name}", ""]
        yield from entry(spec)


def sentence(spec: Spec) -> str:
    """The summary, capitalised where it is words and not a formula."""
    text = spec.summary.rstrip(".")
    return text[0].upper() + text[1:] if re.match(r"[a-z]+,? [a-zA-Z]{2,}", text) else text


def entry(spec: Spec) -> Iterator[str]:
    """Paragraphs about one mechanism."""
    yield from [f"{sentence(spec)}.", ""]
    yield from pictures.line(spec)
    yield f"- computes: `{spec.formula.replace('`', '')}`"
    if shown := pictures.settings(spec):
        yield f"- in the picture: {', '.join(f'`{key}: {written(value)}`' for key, value in shown.items())}"
    if spec.settings:
        yield f"- chosen by: `{spec.settings}`"
    options = spec.options_text()
    if options:
        yield f"- options: {', '.join(f'`{option}`' for option in options)}"
    traits = spec.traits
    if spec.axis in AXES and AXES[spec.axis].attention:
        yield f"- sees: {traits.horizon}; state: {traits.state}; work grows as {traits.time}"
    if traits.causal_form:
        yield f"- differs from the source: {traits.causal_form}"
    if traits.rounding:
        yield f"- float32 is within {traits.single:g} of float64, bfloat16 within {traits.half:g}: {traits.rounding}"
    if spec.paper != "-":
        yield f"- source: {spec.paper} (id {spec.id})"
    for line in measured(spec):
        yield f"- {line}"


def presets() -> Iterator[str]:
    """The page of the presets."""
    yield from ["# preset", "", "A published architecture; every other key of the config changes a part of it."]
    yield f"{INITIAL} [All slots](README.md)."
    yield from ["", *report.table_head(["name", "source"])]
    for name, preset in PRESETS.items():
        yield report.line([f"[`{name}`](#{name})", preset.paper])
    for name, preset in PRESETS.items():
        yield from ["", f"## {name}", ""]
        sets = ", ".join(f"`{key}: {written(value)}`" for key, value in preset.overrides.items())
        yield f"- sets: {sets or 'nothing, it is the plain stack'}"
        yield f"- source: {preset.paper}"
        if preset.deviation:
            yield f"- differs from the source: {preset.deviation}"
        if learned := "; ".join(learning("preset", name)):
            yield f"- learned ([all](../results/{SUITE}.md)): {learned}"


def written(value: Any) -> str:
    """A value as YAML has it on one line."""
    if isinstance(value, Mapping):
        return "{" + ", ".join(f"{key}: {written(item)}" for key, item in value.items()) + "}"
    if isinstance(value, list | tuple):
        return "[" + ", ".join(map(written, value)) + "]"
    return json.dumps(value) if isinstance(value, bool | None) else f"{value}"


def measured(spec: Spec) -> Iterator[str]:
    """Cost and learning of one mechanism, as far as they were measured."""
    cost = costs().get(f"{spec.id} {spec.axis}:{spec.name}")
    if cost:
        flops, saved = float(cost["forward_flops"]) / 1e6, float(cost["saved_bytes"]) / 2**20
        yield (
            f"cost of a layer at {LENGTH:,} tokens: {float(cost['forward_backward_ms']):.3g} ms forward and backward, "
            f"{flops:.3g} MFLOP forward, {saved:.3g} MB kept ([how, and other lengths](../benchmarks/README.md))"
        )
    learned = list(learning(spec.axis, spec.name))
    if learned:
        yield f"learned ([all](../results/{SUITE}.md)): {'; '.join(learned)}"


@cache
def costs() -> dict[str, dict[str, str]]:
    """Rows of the benchmark of the catalogue at ``LENGTH`` tokens, by entry."""
    path = benchmark.RESULTS / "catalogue_cost.csv"
    with path.open(newline="") as file:
        return {row["entry"]: row for row in csv.DictReader(file) if row["T"] == str(LENGTH)}


def learning(axis: str, name: str) -> Iterator[str]:
    """The score of every task whose variants differ from the first one in this choice alone."""
    suite, runs = variants()
    for task, of_task in suite.tasks.items():
        for variant, overrides in of_task.variants.items():
            chosen = {key.partition(".")[2]: value for key, value in overrides.items() if "." in key}
            chosen |= chosen.pop("observation", {})
            if chooses(chosen, axis, name) and runs[task][variant]:
                scores = [row.score for row in runs[task][variant]]
                title = of_task.title.split(" after")[0].rstrip(",")
                yield f"{title}: {estimate(scores)}, {report.count(scores, 'seed')}"
                break


def chooses(values: Mapping[str, Any], axis: str, name: str) -> bool:
    """Whether the settings choose ``name`` on ``axis``, beside what it cannot be without."""
    if axis == "losses":
        return name in values.get("losses", {})
    value = values.get(axis)
    if axis == "position" and len(values) > 1:
        return False  # a mixer that has no scores brings its position along
    return (value.get("name") if isinstance(value, Mapping) else value) == name


@cache
def variants() -> tuple[Any, dict[str, dict[str, list[Any]]]]:
    """The suite of variants, and its runs by task and variant."""
    suite = read_suite(str(SUITES / f"{SUITE}.yaml"))
    rows = report.rows_of(suite, RESULTS)
    return suite, {task: dict(report.runs_of(suite, task, rows)) for task in suite.tasks}
