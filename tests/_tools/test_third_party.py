"""The page of the checks with packages of others: counts of a report of pytest."""

from pathlib import Path

from tests._tools.third_party import counts, page

REPORT = """<testsuites><testsuite>
<testcase classname="tests.cli.test_engines" name="one[a]" time="1"/>
<testcase classname="tests.cli.test_engines.TestRay" name="two"><skipped message="no ray"/></testcase>
<testcase classname="tests.agents.test_export" name="three"><failure message="no"/></testcase>
<testcase classname="tests.agents.test_export" name="four"><error message="fixture"/></testcase>
</testsuite></testsuites>
"""


def test_the_page_counts_what_passed_was_skipped_and_failed(tmp_path: Path) -> None:
    (tmp_path / "report.xml").write_text(REPORT)
    found = counts(tmp_path / "report.xml")
    assert found == {"tests.cli.test_engines": {"passed": 1, "skipped": 1}, "tests.agents.test_export": {"failed": 2}}
    lines = page(found).splitlines()
    assert "| `tests/cli/test_engines.py` | 1 | 1 | 0 |" in lines
    assert lines[-1] == "| all | 1 | 1 | 2 |"
