"""Pictures of mechanisms show what attention reads, and with which weights."""

import math
from collections.abc import Callable
from pathlib import Path
from xml.etree import ElementTree

import pytest
import torch

from docs._tools import masks, pictures, weights
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
    widths = [int((square[-1] > 0).sum()) for square in weights.shares_of("span", "multi_scale").values()]
    assert widths == [4, 12, 28]


def test_the_spans_of_a_tree_tile_the_past() -> None:
    ((_, cells),) = masks.panels_of("pattern", "bp")
    read, *summaries = (cells[color] for color in (masks.READ, *masks.SUMMARIES))
    tiles = read.int() + sum(each.int() for each in summaries)
    assert torch.equal(tiles, torch.ones(STEPS, STEPS, dtype=torch.int).tril())
    assert read.sum(1).tolist() == [min(t + 1, 3) for t in range(STEPS)]  # a step and its two neighbors


def test_mechanisms_that_change_what_is_read_have_a_picture() -> None:
    mechanisms = {axis: {spec.name for spec in specs} for axis, specs in catalogue().items()}
    assert set(masks.PICTURES["pattern"]) == mechanisms["pattern"]
    assert set(weights.PICTURES["span"]) == mechanisms["span"] - {"full"}
    assert set(weights.PICTURES["selection"]) == mechanisms["selection"] - {"none", "sinkhorn"}  # mixtures of blocks
    assert set(weights.PICTURES["prior"]) == mechanisms["prior"] - {"none", "value_residual"}  # which changes values


CURVE = math.log1p(math.exp(-4.0))
BY_DISTANCE: dict[tuple[str, str], Callable[[int], list[float]]] = {
    ("prior", "gaussian_transformer"): lambda d: [math.exp(-abs(CURVE * d**2 - CURVE))],
    ("position", "alibi"): lambda d: [math.exp(-d / 2**power) for power in (4, 8, 2)],
    ("span", "adaptive"): lambda d: [min(max((8 + 0.3 * (STEPS - 1) - d) / 8, 0.0), 1.0)],
}
"""Weight at distance d where contents score alike, before it is divided by the largest of its row; by head."""


@pytest.mark.parametrize(("axis", "name"), BY_DISTANCE)
def test_a_picture_shows_the_weights_of_the_formula(axis: str, name: str) -> None:
    for head, square in enumerate(weights.shares_of(axis, name).values()):
        for t in range(STEPS):
            row = torch.tensor([BY_DISTANCE[axis, name](t - s)[head] for s in range(t + 1)]).double()
            torch.testing.assert_close(square[t, : t + 1], row / row.max(), rtol=0, atol=1e-6)  # parameters: float32


@pytest.mark.parametrize(("name", "most"), {"topk": 5, "routing": 6, "lsh": 5, "sac": 5}.items())
def test_a_picture_of_a_selection_shows_as_many_keys_as_are_chosen(name: str, most: int) -> None:
    (square,) = weights.shares_of("selection", name).values()
    assert (square > 0).sum(1).max() == most  # of lsh all but the step itself, of sac the edges and the step itself
    assert torch.equal(square, square.tril()) and set(square.amax(1).tolist()) <= {0.0, 1.0}


@pytest.mark.parametrize("name", ["realformer", "lazyformer"])
def test_a_layer_whose_contents_score_alike_has_the_weights_of_the_layer_below(name: str) -> None:
    below, above = weights.shares_of("prior", name).values()
    assert torch.equal(below, above) and below[-1].unique().numel() > 3


def test_what_a_forget_gate_drops_stays_dropped() -> None:
    for square in weights.shares_of("prior", "forget").values():
        shares = square.tril()
        assert (shares[1:, :-1].tril() <= shares[:-1, :-1].tril() + 1e-9).all()  # along the columns


def test_a_color_gets_darker_with_the_weight() -> None:
    cells = weights.colored(
        torch.full((STEPS, STEPS), 0.3).double().tril().diagonal_scatter(torch.ones(STEPS).double())
    )
    colors = {color: int(chosen.sum()) for color, chosen in cells.items() if chosen.any()}
    assert colors == {masks.READ + "90": STEPS * (STEPS - 1) // 2, masks.READ + "ff": STEPS}


def test_a_picture_is_small_and_has_every_cell_of_the_past_once() -> None:
    texts = pictures.pages(Path())
    assert sum(map(len, texts.values())) < 500_000
    for axis, name in ("pattern", "etc"), ("prior", "camtl"):
        assert area(texts[Path(pictures.path(axis, name))]) == STEPS * (STEPS + 1) // 2


def area(text: str) -> int:
    """Cells of a picture with one square."""
    svg = "{http://www.w3.org/2000/svg}"
    (group,) = ElementTree.fromstring(text).findall(f"{svg}g")
    return sum(
        int(run.split("h")[1].split("v")[0])
        for path in group.findall(f"{svg}path")
        for run in path.attrib["d"].split("M")[1:]
    )
