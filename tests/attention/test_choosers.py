"""A pattern may choose the keys of every query itself, and make keys of its own: all of them count as keys do."""

from collections.abc import Iterator

import pytest
import torch
from torch import Tensor

from rltransformers.attention.reach import Reach
from rltransformers.attention.roles import Chooser, Heads, Selected
from rltransformers.backbone import AXES
from rltransformers.core.spec import NoOptions, Spec
from rltransformers.functional.call import Call
from rltransformers.functional.keys import At
from rltransformers.functional.windows import fetch
from rltransformers.laws import Case, perturbed
from rltransformers.mixers.interface import Dims
from tests.attention.rows import config_of

MEMORY = 30


class Halves(Chooser):
    """All keys: those at even distances are rows of the window, the others are handed over as keys of its own."""

    reach = Reach(MEMORY + 1)

    def __init__(self, shift: float) -> None:
        super().__init__()
        self.shift = shift

    def choose(
        self, q: Tensor, window: Heads, state: dict[str, Tensor], call: Call
    ) -> tuple[Selected, dict[str, Tensor]]:
        p = call.tokens.p
        last = torch.arange(p.shape[1])[:, None] + window.k.shape[2] - p.shape[1]
        index, at, shift = [], [], []
        for first in (0, 1):
            distance = torch.arange(first, MEMORY + 1, 2).expand(*p.shape, -1)
            index.append((last - distance).clamp(min=0)[:, None])
            at.append(At(distance, distance <= p[..., None], farthest=MEMORY))
            shift.append(q.new_full((*q.shape[:3], distance.shape[-1]), self.shift))
        own = Heads(fetch(window.k, index[1]), fetch(window.v, index[1]), at[1], shift[1])
        return Selected(index[0], at[0], shift[0], (own,)), state


@pytest.fixture(autouse=True)
def double() -> Iterator[None]:
    torch.set_default_dtype(torch.float64)
    yield
    torch.set_default_dtype(torch.float32)


@pytest.mark.parametrize("position", ["none", "trxl", "rope", "alibi", "shaw"])
@pytest.mark.parametrize("shift", [0.0, 1.5])
def test_keys_of_a_chooser_stand_where_it_says(position: str, shift: float, monkeypatch: pytest.MonkeyPatch) -> None:
    """A shift that all keys share changes no softmax."""

    def build(dims: Dims, options: NoOptions) -> Halves:
        return Halves(shift)

    monkeypatch.setitem(AXES["pattern"].table, "halves", Spec("A99", "halves", "pattern", "-", "All keys.", build))
    values = {"position": position, "memory": MEMORY}
    halves, full = (perturbed(config_of({**values, "pattern": name})) for name in ("halves", "full"))
    case = Case.of(halves)
    case.close(halves(case.x, None, case.reset)[0], full(case.x, None, case.reset)[0])


def test_the_shift_of_a_chooser_is_added_to_the_logits(monkeypatch: pytest.MonkeyPatch) -> None:
    """Keys whose logits lie far below the others might as well not be there."""

    class Even(Halves):
        def choose(
            self, q: Tensor, window: Heads, state: dict[str, Tensor], call: Call
        ) -> tuple[Selected, dict[str, Tensor]]:
            selected, state = super().choose(q, window, state, call)
            assert selected.shift is not None
            return Selected(selected.index, selected.at, selected.shift + 100.0, selected.others), state

    def build(dims: Dims, options: NoOptions) -> Halves:
        return Even(0.0)

    monkeypatch.setitem(AXES["pattern"].table, "even", Spec("A99", "even", "pattern", "-", "Even ones.", build))
    dilated = {"name": "dilated", "window": MEMORY // 2 + 1, "dilation": 2}
    even, other = (perturbed(config_of({"memory": MEMORY, "pattern": pattern})) for pattern in ("even", dilated))
    case = Case.of(even)
    case.close(even(case.x, None, case.reset)[0], other(case.x, None, case.reset)[0])
