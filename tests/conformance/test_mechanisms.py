"""The laws over one mechanism: held by one that keeps them, and each seen failing by one that breaks it."""

import re
import sys
from collections.abc import Callable, Iterator
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
import torch

from rltransformers.conformance import check_mechanism
from rltransformers.conformance.__main__ import main
from rltransformers.core.errors import ConfigError
from rltransformers.core.extensions import EXTENSIONS
from rltransformers.laws import Limit
from rltransformers.mechanisms import (
    TABLES,
    Dims,
    Part,
    Plan,
    Position,
    StateMixer,
    Traits,
)
from tests.conformance.broken import ALSO, BROKEN, CutsGradients, Totals, spec_of, twin, wrong_twin
from tests.extending import unregistered

MINE = spec_of(Totals)


@pytest.fixture(autouse=True)
def clean() -> Iterator[None]:
    with unregistered():
        yield


def test_a_mechanism_that_keeps_the_laws_is_reported_so() -> None:
    before = torch.get_rng_state()
    report = check_mechanism(MINE, twin=twin)
    assert report.held and report.failed() == {}
    results = {result.law: result for result in report.results}
    assert [f"L{number}" for number in range(1, 14)] == list(results)
    assert [law for law, result in results.items() if result.status == "not applicable"] == ["L6"]
    assert results["L6"].note == "no settings that make it another mechanism were passed, limits=..."
    assert results["L5"].figure is not None and results["L5"].figure < 1e-12
    assert results["L13"].note.startswith("beside ")
    lines = str(report).splitlines()
    assert lines[0] == "mixer totals" and len(lines) == 14 and "held" in lines[1]
    assert not EXTENSIONS and "totals" not in TABLES["mixer"]
    assert torch.equal(torch.get_rng_state(), before) and torch.get_default_dtype() is torch.float32


@pytest.mark.parametrize("name", ["retention", "shm", "agalite", "galite"])
def test_mechanisms_that_round_more_than_usual_say_so_and_are_held_to_what_they_say(name: str) -> None:
    spec = TABLES["mixer"][name]
    result = check_mechanism(spec, only=("L10",)).results[0]
    assert (result.status, result.note) == ("held", spec.traits.rounding)
    usual = check_mechanism(spec, only=("L10",), single=1e-6, half=0.01).results[0]
    assert result.note and usual.status == "failed"


@pytest.mark.parametrize("law", BROKEN)
def test_every_law_is_seen_failing(law: str) -> None:
    kind, message = BROKEN[law]
    seen(law, kind, message)


@pytest.mark.parametrize("fault", ALSO)
def test_further_faults_are_seen(fault: str) -> None:
    seen(*ALSO[fault])


def seen(law: str, kind: Callable[..., StateMixer], message: str) -> None:
    report = check_mechanism(spec_of(kind), only=[law])
    assert not report.held
    assert re.match(message, report.failed()[law])


def test_a_text_names_one_law() -> None:
    assert [result.law for result in check_mechanism(MINE, only="L13").results] == ["L13"]


def test_a_gradient_that_stops_by_declaration_is_exempt_and_told() -> None:
    traits = Traits(stops_gradient="sums of chunks before")
    result = check_mechanism(spec_of(CutsGradients, traits=traits), only="L7").results[0]
    assert (result.status, result.note) == ("held", "none through sums of chunks before")


def test_a_twin_that_computes_something_else_is_seen() -> None:
    report = check_mechanism(MINE, twin=wrong_twin, only=["L5"])
    assert "outputs and those of the twin differ by 2.0e-06, allowed are 1e-12" in report.failed()["L5"]
    reference = check_mechanism(MINE, reference=lambda backbone, x: (backbone(x[None])[0][0] * 2, None), only=["L5"])
    assert "outputs and those of the twin differ" in reference.failed()["L5"]


def test_a_limit_is_held_or_seen() -> None:
    whole = Limit({"mixer": "totals", "layers": 1}, {"mixer": "totals", "layers": 1})
    assert check_mechanism(MINE, limits=[whole], only=["L6"]).held
    report = check_mechanism(MINE, limits=[Limit({"mixer": "totals"}, {"mixer": "softmax"})], only=["L6"])
    assert "outputs at the limit and those of the other mechanism differ" in report.failed()["L6"]


@pytest.mark.parametrize("name", ["linformer", "memory_compressed", "poolingformer", "linear"])
def test_a_mixer_that_promises_what_another_one_offers_is_seen(name: str) -> None:
    table = TABLES["mixer"]
    build = table[name].build
    assert build is not None
    changes: dict[str, Any] = {"name": "mine", "offers": table["softmax"].offers, "refuses": ()}
    if name == "linear":  # as it is, ``register`` says that it is built without a plan
        changes["build"] = lambda dims, plan, options: build(dims, options)
    report = check_mechanism(replace(table[name], **changes), only=["L13"])
    assert "is accepted beside mixer 'mine', but" in report.failed()["L13"]
    assert "which Spec.offers promises" in report.failed()["L13"]


@pytest.mark.parametrize("part", ["prior", "selection", "head_mixing", "span", "position"])
def test_a_mixer_that_drops_a_part_of_the_plan_is_seen(part: str) -> None:
    hopfield = TABLES["mixer"]["hopfield"]

    def build(dims: Dims, plan: Plan, options: Any) -> Any:
        assert hopfield.build is not None
        nothing: dict[str, Any] = {part: Position() if part == "position" else Part()}
        return hopfield.build(dims, replace(plan, **nothing), options)

    message = check_mechanism(replace(hopfield, name="mine", build=build), only=["L13"]).failed()["L13"]
    assert f"{part} '" in message and "is accepted beside mixer 'mine', but changes nothing; it needs" in message


def test_a_mechanism_without_effect_is_seen() -> None:
    idle = replace(TABLES["residual"]["pre_ln"], name="mine")
    message = check_mechanism(idle, only=["L13"]).failed()["L13"]
    assert message == "residual 'mine' changes nothing: the outputs are those of the plain backbone"


@pytest.mark.parametrize(
    ("call", "message"),
    [
        (lambda: check_mechanism(TABLES["encoder"]["bert"]), "encoder 'bert' is a part of policies"),
        (lambda: check_mechanism(TABLES["prior"]["gaussian_transformer"], twin=twin), "pass reference="),
        (lambda: check_mechanism(MINE, {"absent": 1}), "accepted by none of the small configs: .*absent"),
        (lambda: check_mechanism(replace(MINE, summary="")), "has no summary"),
        (lambda: check_mechanism(MINE, only=["L1", "L14"]), r"only: unknown law 'L14'; did you mean"),
        (lambda: check_mechanism(MINE, only="l1"), "only: unknown law 'l1'; did you mean 'L1'"),
        (lambda: check_mechanism(MINE, only=[]), "only names no law; leave it out, or name some of L1, L2,"),
        (lambda: check_mechanism(MINE, only=None), "only must be a list of texts, got None"),  # type: ignore[arg-type]
        (
            lambda: check_mechanism(MINE, settings={"widht": 3}),
            r"unknown setting settings\.widht; did you mean 'width'",
        ),
        (lambda: check_mechanism(MINE, tolerance=float("inf")), "tolerance must be a finite number in .0, 1."),
        (lambda: check_mechanism(MINE, tolerance=float("nan")), "tolerance must be a finite number in .0, 1."),
        (lambda: check_mechanism(MINE, tolerance=-1), "tolerance must be a finite number in .0, 1."),
        (lambda: check_mechanism(MINE, half=float("inf")), "half must be a finite number in .0, 1."),
        (lambda: check_mechanism(MINE, twin=twin, reference=lambda b, x: (x, None)), "pass one of the two"),
    ],
)
def test_what_cannot_be_checked_is_refused(call: Callable[[], object], message: str) -> None:
    with pytest.raises(ConfigError, match=message):
        call()


def test_the_command_prints_the_table(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    (tmp_path / "theirs.py").write_text("from tests.conformance.broken import *\nSPEC = spec_of(Deaf)\n")
    monkeypatch.chdir(tmp_path)
    assert main(["theirs:SPEC", "--law", "L7", "--law", "L9"]) == 1
    out = capsys.readouterr().out
    assert "mixer deaf" in out and "L7" in out and "receives no gradient" in out and "L1 " not in out
    assert main(["theirs:SPEC", "--law", "L9"]) == 0
    sys.path.remove(str(tmp_path))
    for words, message in (
        (["theirs"], "MODULE:NAME"),
        (["theirs:absent"], "has no 'absent'"),
        (["absent:SPEC"], "cannot be imported"),
        (["theirs:spec_of"], "register takes a Spec"),
    ):
        with pytest.raises(SystemExit):
            main(words)
        assert message in capsys.readouterr().err
