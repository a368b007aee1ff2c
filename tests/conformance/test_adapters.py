"""The table of the documents is what the checks say: of our agents here and now, of other libraries where installed."""

import importlib
import re
import sys
from pathlib import Path
from typing import Any

import pytest

from rltransformers.conformance import __main__ as command
from rltransformers.conformance.checks import CHECKS, Result, Status
from tests.docs.blocks import ROOT
from tests.peers.conformance import OURS, SUBJECTS, Subject, checked, checked_apart, main
from tests.peers.reproductions import FAILURES, Failure
from tests.peers.sources import VARIABLE, Source
from tests.peers.table import MARKS, Row, as_markdown, in_page, title

PAGE = ROOT / "docs" / "results" / "conformance.md"
ALWAYS = [subject for subject in SUBJECTS if subject.library in (OURS, "sb3-contrib")]
OTHERS = [subject for subject in SUBJECTS if subject not in ALWAYS]
START, END = (mark.format(name="conformance") for mark in MARKS)
FAILURES_START, FAILURES_END = (mark.format(name="failures") for mark in MARKS)


def committed(subject: Subject) -> tuple[str, list[Status]]:
    """Version and statuses in the table of the page."""
    table = PAGE.read_text().partition(START)[2].partition(END)[0]
    shown = re.escape(title(subject.name))
    row = re.search(rf"^\| {subject.library} (\S+) {shown} \| (.+) \|$", table, re.MULTILINE)
    assert row is not None, f"{subject.name} is not in the table: python -m tests.peers.conformance --write {PAGE}"
    cells = row.group(2).split(" | ")
    return row.group(1), [
        "does not apply" if cell == "–" else "failed" if cell.startswith("**") else "passed" for cell in cells
    ]


@pytest.mark.parametrize("subject", ALWAYS, ids=lambda subject: subject.name)
def test_our_agents_and_recurrent_ppo_are_as_the_table_says(subject: Subject) -> None:
    results = checked(subject).results
    assert [result.status for result in results] == committed(subject)[1], results
    if subject.library == OURS:
        assert not any(result.failed for result in results)


def test_our_agents_are_put_to_nearly_every_check() -> None:
    agents = [zip(CHECKS, committed(subject)[1], strict=True) for subject in ALWAYS if subject.library == OURS]
    passed = [name for agent in agents for name, status in agent if status == "passed"]
    assert set(passed) == set(CHECKS)
    assert len(passed) >= 30  # of 50: what does not apply is an exception


@pytest.mark.third_party
@pytest.mark.filterwarnings("ignore")  # theirs
@pytest.mark.parametrize("subject", OTHERS, ids=lambda subject: f"{subject.library} {subject.name}")
def test_other_libraries_are_as_the_table_says(subject: Subject) -> None:
    if not subject.installed:
        pytest.skip(f"not run; {subject.missing}")
    version, statuses = committed(subject)
    if subject.version != version:
        pytest.skip(f"the table is of {subject.library} {version}, installed is {subject.version}")
    results = (checked(subject) if subject.source is None else checked_apart(subject)).results
    assert [result.status for result in results] == statuses, results


@pytest.mark.third_party
@pytest.mark.filterwarnings("ignore")
@pytest.mark.parametrize("failure", FAILURES, ids=lambda failure: failure.name)
def test_failures_of_others_are_reproduced(failure: Failure) -> None:
    subject = next(each for each in SUBJECTS if each.library == failure.library)
    if not subject.installed:
        pytest.skip(f"not run; {subject.missing}")
    told = failure.run()
    assert float(told.split()[-1]) > 1e-3, told  # the last number printed is how far two sides are apart


def test_every_failure_of_another_library_is_reproduced_on_the_page() -> None:
    page = PAGE.read_text().partition(FAILURES_START)[2].partition(FAILURES_END)[0]
    failing = [
        (subject.library, subject.name, check)
        for subject in SUBJECTS
        for check, status in zip(CHECKS, committed(subject)[1], strict=True)
        if status == "failed"
    ]
    assert all(any(each.explains(*case) for each in FAILURES) for case in failing)
    assert all(any(each.explains(*case) for case in failing) for each in FAILURES)
    for each in FAILURES:
        assert f"### {each.title}\n" in page and each.path.read_text().split('"""\n', 2)[-1].strip() in page, each.name
    assert {each.path for each in FAILURES} == set(FAILURES[0].path.parent.glob("*.py"))


def test_the_command_prints_and_writes_what_it_found(
    tmp_path: Path, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    results = [Result(name, "passed", 1e-7, 1e-5) for name in CHECKS]
    results[0] = Result("step = segment", "failed", 0.5, 1e-5, "row 1, step 2")
    monkeypatch.setattr("tests.peers.conformance.check_policy", lambda policy: results)
    monkeypatch.setattr(command, "check_policy", lambda policy: results)
    page = tmp_path / "page.md"
    page.write_text(f"before\n{START}\nold\n{END}\n{FAILURES_START}\n{FAILURES_END}\nafter\n")
    monkeypatch.setattr(Failure, "run", lambda failure: "1.0\n")
    main(["--library", "sb3-contrib", "--write", str(page)])
    assert "step = segment: failed 5.0e-01 (row 1, step 2)" in capsys.readouterr().out
    assert command.main(["--agent", "GTrXLPPO"]) == 1
    assert "GTrXLPPO\n  step = segment: failed 5.0e-01 (row 1, step 2)" in capsys.readouterr().out
    text = page.read_text()
    assert "old" not in text and text.startswith("before") and text.endswith("after\n")
    assert "`RecurrentPPO` | **0.5** | 1e-07" in text


def test_a_page_that_is_not_there_is_refused_before_anything_is_computed(
    tmp_path: Path, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("tests.peers.conformance.check_policy", lambda policy: pytest.fail("computed"))
    with pytest.raises(SystemExit):
        main(["--write", str(tmp_path / "missing.md")])
    assert "No such file" in capsys.readouterr().err
    page = tmp_path / "page.md"
    page.write_text("text without marks")
    with pytest.raises(SystemExit):
        main(["--write", str(page)])
    assert "the page has no place for the table" in capsys.readouterr().err
    marks = f"{START}\nold\n{END}\n{FAILURES_START}\n{FAILURES_END}\n"
    page.write_text(marks)
    monkeypatch.setattr(Subject, "installed", property(lambda subject: subject.library == OURS))
    with pytest.raises(SystemExit):
        main(["--library", "d3rlpy", "--write", str(page)])
    assert "would lack the rows of d3rlpy; pip install" in capsys.readouterr().err
    assert page.read_text() == marks


def test_a_library_that_lacks_what_it_needs_gets_a_line_and_others_are_checked(
    tmp_path: Path, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    def make() -> Any:
        return importlib.import_module("a_package_that_nobody_has")

    present = next(subject for subject in SUBJECTS if subject.library == "sb3-contrib")
    monkeypatch.setattr("tests.peers.conformance.SUBJECTS", (Subject("needy", "sb3-contrib", make), present))
    monkeypatch.setattr("tests.peers.conformance.check_policy", lambda policy: [])
    main(["--library", "sb3-contrib"])
    lines = capsys.readouterr().out.splitlines()
    assert lines[0].startswith("sb3-contrib: needy: not run; No module named 'a_package_that_nobody_has'; pip install")
    assert lines[1].startswith("sb3-contrib ") and lines[1].endswith(": RecurrentPPO")
    page = tmp_path / "page.md"
    page.write_text(marks := f"{START}\nold\n{END}\n{FAILURES_START}\n{FAILURES_END}\n")
    with pytest.raises(SystemExit):
        main(["--library", "sb3-contrib", "--write", str(page)])
    assert "the table would lack rows: sb3-contrib: No module named" in capsys.readouterr().err
    assert page.read_text() == marks


def test_a_reason_names_a_library_alone_where_it_is_true_of_all_that_it_has() -> None:
    check, *_ = CHECKS
    rows = [
        Row(name, library, [Result(check, "does not apply", note=note)])
        for name, library, note in (
            ("A, small", "one 1", "no mask"), ("B", "one 1", "no mask"),
            ("C", "two 2", "no mask"), ("D", "two 2", "no step"),
        )
    ]  # fmt: skip
    lines = as_markdown(rows).splitlines()
    assert "| one 1 `A`, small | – |" in lines
    assert lines[-5:-2] == [f"- *{check}*", "    - no mask: one, two `C`", "    - no step: two `D`"]


def test_a_page_without_marks_is_refused() -> None:
    with pytest.raises(ValueError, match="no place for the table"):
        in_page("text", "conformance", as_markdown([Row("name", "library 1", [])]))


def test_policies_of_a_library_that_is_missing_are_told_with_the_extra(
    capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(Subject, "installed", property(lambda subject: False))
    main(["--library", "d3rlpy"])
    assert "d3rlpy: DecisionTransformer: not run; pip install" in capsys.readouterr().out


def test_a_library_without_a_package_is_told_with_its_checkout(
    tmp_path: Path, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.delenv(VARIABLE, raising=False)
    main(["--library", "cleanrl"])
    told = "cleanrl: ppo_trxl, memory of 8 steps: not run; in the folder of --sources: git clone https://github.com/"
    assert told in capsys.readouterr().out
    monkeypatch.setenv(VARIABLE, "")  # so that it is restored
    main(["--library", "cleanrl", "--sources", str(tmp_path)])  # an empty folder
    assert told in capsys.readouterr().out


def test_a_library_in_the_folder_of_sources_is_read_from_there(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    source = Source("theirs", "git clone theirs", ("theirs/code",))
    (tmp_path / "theirs" / "code").mkdir(parents=True)
    information = tmp_path / "theirs" / "theirs-1.2.dist-info"
    information.mkdir()
    (information / "METADATA").write_text("Name: theirs\nVersion: 1.2\n")
    monkeypatch.setenv(VARIABLE, str(tmp_path))
    monkeypatch.setattr(sys, "path", list(sys.path))
    source.use()
    assert source.exists and source.version == "1.2" and sys.path[0] == str(tmp_path / "theirs" / "code")
