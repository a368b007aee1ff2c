"""What stands in the documents is what the catalogue, the CSVs and the curves say."""

import random
import re

import pytest
from PIL import Image

from docs._tools import pages, pairs, update_docs
from rltransformers.backbone import AXES, PRESETS, BackboneConfig
from rltransformers.zoo import report
from rltransformers.zoo.suites import SUITES


@pytest.mark.xdist_group("committed suites")
def test_docs_are_up_to_date() -> None:
    for path, text in update_docs.pages().items():
        assert path.read_text() == text, f"run docs/_tools/update_docs.py: {path}"


def test_every_table_has_its_place() -> None:
    texts = [path.read_text() for path in update_docs.FILES]
    for name in update_docs.TABLES:
        assert sum(f"<!-- {name}:start -->" in text for text in texts) == 1, name


def test_the_picture_shows_the_curves_of_today() -> None:
    _, runs = update_docs.picture_runs()
    with Image.open(update_docs.PICTURE) as picture:
        assert picture.info["Description"] == update_docs.digest(runs), "run docs/_tools/update_docs.py --picture"


def test_the_page_of_a_slot_tells_everything_about_every_entry() -> None:
    texts = {path.stem: text for path, text in pages.pages(update_docs.MECHANISMS).items()}
    for axis, specs in pages.mechanisms().items():
        for spec in specs:
            assert f"({axis}.md#{spec.name})" in texts["README"]
            _, section = texts[axis].split(f"\n## {spec.name}\n")
            section = section.split("\n## ")[0]
            assert f"`{spec.formula.replace('`', '')}`" in section  # a formula is one piece of code
            shared = {name for name, *_ in pages.common(specs)}
            assert all(
                f"| `{name}` |" in (texts[axis] if f"`{name}`" in shared else section) for name in spec.defaults()
            )
            assert spec.traits.causal_form in section
    for name, preset in PRESETS.items():
        assert f"| [`{name}`](#{name}) | {preset.paper} |" in texts["preset"]
        _, section = texts["preset"].split(f"\n## {name}\n")
        section = section.split("\n## ")[0]
        assert preset.deviation in section
        assert all(f"`{key}: " in section for key in preset.overrides)


def test_the_lines_of_a_config_are_accepted_beside_the_preset_of_online_agents() -> None:
    for axis, specs in pages.mechanisms().items():
        for spec in specs:
            if axis in AXES and not spec.settings:
                BackboneConfig.preset("gtrxl", **pages.choice(spec))


def test_learning_is_told_of_variants_that_change_nothing_else() -> None:
    assert list(pages.learning("mixer", "gmlp", {"mixer", "position", "ff"}))  # a variant that also sets ff: none
    assert not list(pages.learning("ff", "none", {"ff"}))


def test_the_table_of_pairs_says_what_configs_get_told() -> None:
    """A sample: trying all of them takes minutes; `docs/_tools/update_docs.py --pairs` does."""
    found, every = pairs.read(update_docs.MECHANISMS), list(pairs.pairs(pairs.entries()))
    assert set(found) == {(pairs.label(one), pairs.label(other)) for one, other in every}
    for one, other in random.Random(5).sample(every, 100):
        assert found[pairs.label(one), pairs.label(other)] == pairs.verdict(one, other)


def test_the_readme_has_six_rows_of_slots_with_names_that_exist() -> None:
    rows = update_docs.slots()[2:]
    assert len(rows) == 6
    for row, (axis, names) in zip(rows, update_docs.README_SLOTS.items(), strict=False):
        known = [spec.name for spec in pages.mechanisms()[axis]]
        assert f"/{axis}.md)" in row and f" {len(known) - len(names)} more |" in row and set(names) <= set(known)


@pytest.mark.xdist_group("committed suites")
def test_the_readme_shows_four_results_and_six_figures_with_unmet_targets_among_them() -> None:
    results = report.selection(update_docs.RESULTS, SUITES, update_docs.README_RESULTS)[2:]
    targets = [tuple(map(int, met)) for row in results for met in re.findall(r"\| (\d+) of (\d+) \|$", row)]
    assert len(results) == 4
    assert any(met < total for met, total in targets) and any(met == total for met, total in targets)
    speed = update_docs.readme_speed()[4:]
    assert len(speed) == 6 and all(row.count("|") == 6 for row in speed)
    assert any("**no**" in row for row in speed) and any("yes" in row for row in speed)


def test_text_without_markers_stays_as_it_is() -> None:
    assert update_docs.updated("no markers") == "no markers"
    old = "a\n<!-- slots:start -->\nstale table\n<!-- slots:end -->\nb\n"
    new = update_docs.updated(old)
    assert new.startswith("a\n") and new.endswith("b\n") and "stale table" not in new
    assert update_docs.updated(new) == new
