"""The pages of docs/mechanisms: one per slot, written from the catalogue, the benchmarks and the results."""

import csv
import json
import re
from collections.abc import Collection, Iterator, Mapping, Sequence
from dataclasses import MISSING
from functools import cache
from pathlib import Path
from typing import Any

from docs._tools import pictures
from rltransformers.backbone import AXES, PLAIN, PRESETS, BackboneConfig, catalogue
from rltransformers.backbone.presets import INITIAL
from rltransformers.cli.entries import option_entries
from rltransformers.core.described import count
from rltransformers.core.errors import ConfigError
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
REFERENCE = "S0 mixer:softmax"
"""The entry of the benchmark on whose machine milliseconds can be compared."""

UNCOUNTED = ("N12-lstm mixer:lstm",)
"""Entries whose operations torch does not count."""

BESIDE = {
    "mixer": ("position", "ff"),
    "span": ("losses",),
    "depth": ("losses",),
    "topology": ("encoder",),
    "memory_kind": ("losses",),
}
"""What a variant of the suite may set beside the choice that it is about."""

NOTES = {
    "position": "With a limited memory take relative positions (`trxl`, `rope`, `alibi`, `t5`, `shaw`): they have no "
    "maximum length. Take absolute ones (`sinusoidal`, `learned`) where the place in the episode matters itself, as in "
    "[Autoencode](../lab/popgym.md#autoencode), and `none` with recurrent mixers. A list combines encodings that act "
    "at different places, as in `[sinusoidal, alibi]`.",
    "pattern": "With `full` every layer reads its whole memory. A shorter window saves time only where `memory` is "
    "long. `longformer` also keeps the first tokens of the episode, at any distance. Layers cycle through a list; a "
    "list inside that list gives one pattern per head.",
    "selection": "For experiments: with the memory of 64 steps measured here, every one of them costs more time than "
    "`none`. Layers cycle through a list.",
    "mixer": "[Recurrent memories](../guides/recurrent_memories.md) says which one to take. Mixers that see the whole "
    "episode have no memory window, and most no scores for the relative positions of `gtrxl`: hence "
    "`position: none`. Layers cycle through a list.",
    "prior": "`forget` with `position: none` is the attention of FoX (preset `fox`). The others are experiments.",
    "head_mixing": "`kv_heads: 1` makes acting with a long memory cheaper: the keys and values of a step are read once "
    "for all heads. `gated` is part of the presets `modern`, `fox` and `hybrid`.",
    "span": "Take `adaptive` with the loss `span` to learn how long a memory the task needs. Layers cycle through a "
    "list.",
    "memory_kind": "`transformer_xl` is for learning online: an update sees old steps with its own weights. `cache` "
    "needs less memory while acting and is enough where a segment holds the whole context. The other "
    "three keep steps that have left the window: `compressive` at a lower resolution, `memorizing` all of"
    " the last thousand, `slots` in a few vectors that are rewritten.",
    "depth": "`universal` has the parameters of one layer. `depth_adaptive` and `calm` save computation while acting "
    "([leaving early](../backbone.md#leaving-early)).",
    "residual": "The preset `gtrxl` sets `gru`, most presets of language models `pre_ln`. `post_ln` is the order of "
    "the original transformer and the hardest to train online ([gates](../results/vmpo.md)). `reversible` and "
    "`checkpoint` save memory while training.",
    "ff": "`glu` with `activation: silu` is SwiGLU. `ff_chunks` saves memory and changes no result.",
    "topology": "Take `encoder_decoder` where an observation is a set or a sequence and a layer should choose what to "
    "read from it; it needs an [encoder](encoder.md).",
    "losses": "Written as `losses: {NAME: weight}`, or `losses: {NAME: {weight: ..., option: value}}`. None is on by "
    "default. `span`, `ponder`, `compression`, `commitment` and `exits` belong to the mechanism that their section "
    "names.",
    "encoder": 'A part of the policy, not of the backbone: `policy_kwargs={"observation": {"encoder": ...}}`, '
    "`policy.observation.encoder` in YAML. The encoded elements are pooled into one token per step; with `topology: "
    "encoder_decoder` every layer attends to them too. Use it for [sets, sequences and image "
    "patches](../online/observations_and_actions.md#a-set-or-sequence-inside-one-observation), not for a few single "
    "numbers: the rows *learned* below treat every number of a flat observation as an element, which loses to no "
    "encoder ([why](../lab/cue_recall.md#numbers-of-an-observation-as-elements)).",
    "readout": 'A part of the policy, not of the backbone: `policy_kwargs={"readout": ...}`, `policy.readout` in YAML. '
    "Without it the action head uses its own output alone.",
}
"""What a page says below its title: when to take what."""


GLOSSARY = """\
A section has these lines, as far as they apply:

- *computes*: the formula. Token t is the query and token s the key, d = t - s their distance, p_t the position of t
  in its episode. x_t or h_t are the inputs of the layer; q, k, v queries, keys and values; l_ts attention logits,
  a_ts attention weights, o_t what a head reads. D is the width, H the number of heads, Dh and Dv the widths of their
  keys and values, G the number of key-value heads. `SG` stops the gradient, `*` multiplies element by element. Other
  letters are options or learned weights.
- *config*: what to write below `backbone:` of an online agent, whose preset is `gtrxl`.
- *sees*: how far back one layer reads. `memory` and `window` stand for the setting `memory`, `episode` for everything
  since the reset.
- *state*: the numbers that a layer keeps per environment; 0 where it adds none to those of `memory_kind`. `training`
  is the form that a rollout buffer stores; `acting` adds keys and values.
- *work grows as*: with the tokens T of a call, or the elements N of an observation.
- *differs from the source*: what is done otherwise here; "there" means in the source.
- *cost*: one layer with width 128, 4 heads and a memory of 64 steps: milliseconds on one core, arithmetic, and memory
  that is kept for the backward pass ([all lengths](../benchmarks/README.md#cost-against-length)).
- *learned*: two tasks of the suite [variants](../results/variants.md), where nothing else changes, but for the
  position if a mixer has no scores, and the feed-forward part, which `gmlp` leaves out. CueRecall: share of right
  answers about a cue 16 steps back, after 60,000 steps of PPO; chance is 0.5. KeyToDoor: share of episodes that open
  the door, after 1,000 updates of a Decision Transformer on random walks, of which 3 % do. Interquartile mean over
  seeds with its 95 % interval; three seeds tell 0.9 from 0.1 and nothing closer.
- *id*: the name of the entry in the CSV files of the [benchmarks](../benchmarks/README.md).
"""
"""What the lines of a section mean."""


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
    yield f"Look up the {count} mechanisms of [the backbone](../backbone.md): what each computes, how to write it in a"
    yield "config, its options, its source and how it differs from it, its cost, and what was measured. Each slot of a"
    yield "config has a page. [Choosing each axis](../backbone.md#choosing-each-axis) says where to start."
    yield "`rltransformers list` prints the names, `rltransformers list --json` all of this but the measurements."
    yield from ["", "| slot | decides | names |", "|---|---|---|"]
    for axis, specs in mechanisms().items():
        names = ", ".join(f"[`{spec.name}`]({axis}.md#{spec.name})" for spec in specs)
        yield f"| [`{axis}`]({axis}.md) | {decides(axis)} | {names} |"
    yield f"| [`preset`](preset.md) | a published combination of all slots | {len(PRESETS)} presets |"
    yield from ["", "## How to read these pages", ""]
    yield from GLOSSARY.splitlines()
    yield from ["", "## Which of them go together", ""]
    yield "[All pairs](pairs.csv) says which two mechanisms a config can combine, and the error message for others."
    yield "Open the picture to read the names."
    yield ""
    matrix = "A matrix of all mechanisms: green where two of them work together, red where they do not."
    yield f"[![{matrix}](pairs.png)](pairs.png)"


def slot(axis: str, specs: Sequence[Spec]) -> Iterator[str]:
    """The page of one axis."""
    text = decides(axis)
    default = f" Default: `{PLAIN[axis]}`." if axis in PLAIN else ""
    yield from [f"# {axis}", "", f"{text[0].upper()}{text[1:]}.{default} {NOTES[axis]}"]
    yield from ["", "[All slots, and how to read this page](README.md#how-to-read-these-pages).", ""]
    yield from pictures.overview(axis)
    yield from ["| name | id | in one sentence |", "|---|---|---|"]
    for spec in specs:
        yield report.line([f"[`{spec.name}`](#{spec.name})", spec.id, sentence(spec)])
    shared = common(specs)
    if shared:
        yield from ["", "Options of all of them:", "", *table(shared)]
    for spec in specs:
        yield from ["", f"## {spec.name}", ""]
        yield from entry(spec, shared)


def sentence(spec: Spec) -> str:
    """The summary, capitalised where it is words and not a formula."""
    text = spec.summary.rstrip(".")
    return text[0].upper() + text[1:] if re.match(r"[a-z]+,? [a-zA-Z]{2,}", text) else text


def options(spec: Spec) -> list[tuple[str, ...]]:
    """Rows about the options of a mechanism: name, default, accepted values as messages name them, meaning."""
    rows: list[tuple[str, ...]] = []
    for each in option_entries(spec.axis, spec):
        accepts, says = (re.sub(r"\bNone( \(null\))?", "null", each[key]) for key in ("accepts", "says"))
        rows.append((f"`{each['key'].rpartition('.')[2]}`", each["default"], accepts, says))
    return rows


def common(specs: Sequence[Spec]) -> list[tuple[str, ...]]:
    """Options that all mechanisms of a slot have, equal in everything."""
    first, *others = map(options, specs)
    return [row for row in first if others and all(row in rows for rows in others)]


def table(rows: Sequence[tuple[str, ...]]) -> Iterator[str]:
    """A table of options."""
    yield from report.table_head(["option", "default", "values", "meaning"])
    yield from map(report.line, rows)


def entry(spec: Spec, shared: Sequence[tuple[str, ...]] = ()) -> Iterator[str]:
    """Paragraphs about one mechanism."""
    yield from [f"{sentence(spec)}.", ""]
    yield from pictures.line(spec)
    yield f"- computes: `{spec.formula.replace('`', '')}`"
    yield f"- config: {config(spec)}"
    if (shown := pictures.settings(spec)) and shown != choice(spec):
        yield f"- in the picture: {lines_of(shown)}"
    traits = spec.traits
    if spec.axis in AXES and AXES[spec.axis].attention:
        yield f"- sees: {traits.horizon}; state: {traits.state}; work grows as {traits.time}"
    if traits.causal_form:
        yield f"- differs from the source: {traits.causal_form}"
    if traits.stops_gradient:
        yield f"- passes no gradient: {traits.stops_gradient}"
    if traits.rounding:
        yield f"- float32 is within {traits.single:g} of float64, bfloat16 within {traits.half:g}: {traits.rounding}"
    if spec.paper != "-":
        yield f"- source: {spec.paper} (id {spec.id})"
    for line in measured(spec):
        yield f"- {line}"
    if own := [row for row in options(spec) if row not in shared]:
        yield from ["", *table(own)]


def config(spec: Spec) -> str:
    """The lines of a config that choose a mechanism, as code."""
    return f"`{spec.settings}`" if spec.settings else lines_of(choice(spec))


def choice(spec: Spec) -> dict[str, Any]:
    """Settings that choose a mechanism, and what it cannot be without beside the preset ``gtrxl``."""
    if spec.axis == "losses":
        weight = spec.example["losses"][spec.name]
        needs = {key: _options(value).get("name", value) for key, value in spec.example.items() if key in AXES}
        return needs | {"losses": {spec.name: _options(weight).get("weight", weight)}}
    if spec.axis not in AXES:
        return {{"encoder": "policy.observation.encoder", "readout": "policy.readout"}[spec.axis]: spec.name}
    drawn = spec.axis == "pattern" or MISSING in spec.defaults().values()
    chosen = {spec.axis: pictures.settings(spec)[spec.axis] if drawn else spec.name}
    try:
        BackboneConfig.preset("gtrxl", **chosen)
    except ConfigError:  # a mixer without the scores that positions of the preset need
        chosen["position"] = "none"
    return chosen


def lines_of(settings: Mapping[str, Any]) -> str:
    """Settings as code, one after the other."""
    return ", ".join(f"`{key}: {written(value)}`" for key, value in settings.items())


def presets() -> Iterator[str]:
    """The page of the presets."""
    yield from ["# preset", "", "A published architecture in the sizes of your config. Write `preset: NAME` below"]
    yield "`backbone:`, and every key that should differ from it. Online agents start from `gtrxl`, the Decision"
    yield f"Transformer from a small `decision_transformer`. {INITIAL}"
    yield "[All slots, and how to read this page](README.md#how-to-read-these-pages)."
    yield from ["", *report.table_head(["name", "source"])]
    for name, preset in PRESETS.items():
        yield report.line([f"[`{name}`](#{name})", preset.paper])
    for name, preset in PRESETS.items():
        yield from ["", f"## {name}", ""]
        yield f"- sets: {lines_of(preset.overrides) or 'nothing, it is the plain stack'}"
        yield f"- source: {preset.paper}"
        if preset.deviation:
            yield f"- differs from the source: {preset.deviation}"
        if learned := "; ".join(learning("preset", name)):
            yield f"- learned: {learned}"


def written(value: Any) -> str:
    """A value as YAML has it on one line."""
    if isinstance(value, Mapping):
        return "{" + ", ".join(f"{key}: {written(item)}" for key, item in value.items()) + "}"
    if isinstance(value, list | tuple):
        return "[" + ", ".join(map(written, value)) + "]"
    return json.dumps(value) if isinstance(value, bool | None) else f"{value}"


def measured(spec: Spec) -> Iterator[str]:
    """Cost and learning of one mechanism, as far as they were measured."""
    name = f"{spec.id} {spec.axis}:{spec.name}"
    if cost := costs().get(name):
        elsewhere = "" if cost["device"] == costs()[REFERENCE]["device"] else " (on another machine)"
        flops = "" if name in UNCOUNTED else f"{float(cost['forward_flops']) / 1e6:.3g} MFLOP forward, "
        saved, time = float(cost["saved_bytes"]) / 2**20, float(cost["forward_backward_ms"])
        milliseconds = f"{time:,.0f}" if time >= 1000 else f"{time:.3g}"
        yield (
            f"cost at {LENGTH:,} tokens: {milliseconds} ms forward and backward{elsewhere}, "
            f"{flops}{saved:.3g} MiB for the backward pass"
        )
    if learned := list(learning(spec.axis, spec.name, {*spec.example, *BESIDE.get(spec.axis, ())})):
        yield f"learned: {'; '.join(learned)}"


@cache
def costs() -> dict[str, dict[str, str]]:
    """Rows of the benchmark of the catalogue at ``LENGTH`` tokens, by entry."""
    path = benchmark.RESULTS / "catalogue_cost.csv"
    with path.open(newline="") as file:
        return {row["entry"]: row for row in csv.DictReader(file) if row["T"] == str(LENGTH)}


def learning(axis: str, name: str, beside: Collection[str] | None = None) -> Iterator[str]:
    """The score of every task in a variant that differs from the first one in this choice, and ``beside`` it alone."""
    suite, runs = variants()
    for task, of_task in suite.tasks.items():
        for variant, overrides in of_task.variants.items():
            chosen = {key.partition(".")[2]: value for key, value in overrides.items() if "." in key}
            chosen |= chosen.pop("observation", {})
            others = chosen.keys() - {axis} - set(chosen if beside is None else beside)
            if not others and chooses(chosen, axis, name) and runs[task][variant]:
                scores = [row.score for row in runs[task][variant]]
                title = of_task.title.split(" after")[0].rstrip(",")
                used = {key: value for key, value in _options(chosen[axis]).items() if key != "name"}
                text = f" with {lines_of(used)}" if used else ""
                yield f"{title}: {estimate(scores)}, {count(len(scores), 'seed')}{text}"
                break


def _options(value: Any) -> Mapping[str, Any]:
    return value if isinstance(value, Mapping) else {}


def chooses(values: Mapping[str, Any], axis: str, name: str) -> bool:
    """Whether the settings choose ``name`` on ``axis``."""
    value = values.get(axis)
    if axis == "losses":
        return name in _options(value)
    return (value.get("name") if isinstance(value, Mapping) else value) == name


@cache
def variants() -> tuple[Any, dict[str, dict[str, list[Any]]]]:
    """The suite of variants, and its runs by task and variant."""
    suite = read_suite(str(SUITES / f"{SUITE}.yaml"))
    rows = report.rows_of(suite, RESULTS)
    return suite, {task: dict(report.runs_of(suite, task, rows)) for task in suite.tasks}
