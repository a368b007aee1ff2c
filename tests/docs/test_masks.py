"""Pictures of masks show what attention reads."""

from collections.abc import Callable
from pathlib import Path
from xml.etree import ElementTree

import pytest
import torch

from docs._tools import masks
from rltransformers.backbone import catalogue

STEPS = masks.STEPS

TWINS: dict[str, Callable[[int, int], bool]] = {
    "full": lambda t, s: t - s <= 27,
    "band": lambda t, s: t - s < 8,
    "dilated": lambda t, s: t - s < 24 and (t - s) % 4 == 0,
    "longformer": lambda t, s: t - s < 6 or s < 3,
    "global": lambda t, s: t == s or s < 3,
    "block_local": lambda t, s: t // 8 - s // 8 <= 1,
    "sparse_fixed": lambda t, s: t // 6 == s // 6 or s % 6 == 5,
}
"""Whether step t reads step s <= t, written from the formulas."""


@pytest.mark.parametrize("name", TWINS)
def test_a_picture_shows_the_mask_of_the_formula(name: str) -> None:
    (panel,), _ = masks.masks("pattern", name)
    expected = [[s <= t and TWINS[name](t, s) for s in range(STEPS)] for t in range(STEPS)]
    assert panel.read.tolist() == expected and not panel.summaries and panel.title == ""


def test_heads_and_layers_have_a_picture_each_where_they_differ() -> None:
    titles = [panel.title for panel in masks.masks("pattern", "schedule")[0]]
    assert titles == ["layer 1, head 1", "layer 1, head 2", "layer 2"]
    widths = [int(panel.read[-1].sum()) for panel in masks.masks("span", "multi_scale")[0]]
    assert widths == [4, 12, 28]


def test_the_spans_of_a_tree_tile_the_past() -> None:
    ((_, cells),) = masks.panels_of("pattern", "bp")
    read, *summaries = (cells[color] for color in (masks.READ, *masks.SUMMARIES))
    tiles = read.int() + sum(each.int() for each in summaries)
    assert torch.equal(tiles, torch.ones(STEPS, STEPS, dtype=torch.int).tril())
    assert read.sum(1).tolist() == [min(t + 1, 3) for t in range(STEPS)]  # a step and its two neighbors


def test_every_pattern_has_a_picture() -> None:
    assert set(masks.PICTURES["pattern"]) == {spec.name for spec in catalogue()["pattern"]}


def test_a_picture_is_small_and_has_every_cell_of_the_past_once() -> None:
    texts = masks.pages(Path())
    assert sum(map(len, texts.values())) < 300_000
    svg = "{http://www.w3.org/2000/svg}"
    (group,) = ElementTree.fromstring(texts[Path(masks.path("pattern", "etc"))]).findall(f"{svg}g")
    area = sum(
        int(run.split("h")[1].split("v")[0])
        for path in group.findall(f"{svg}path")
        for run in path.attrib["d"].split("M")[1:]
    )
    assert area == STEPS * (STEPS + 1) // 2
