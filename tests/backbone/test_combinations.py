"""Random combinations of everything in the catalogue keep the laws, or are refused with a reason."""

import random
from collections.abc import Iterator
from typing import Any

import pytest
import torch

from rltransformers import laws
from rltransformers.attention import reach
from rltransformers.backbone import PLAIN, BackboneConfig, catalogue
from rltransformers.core.errors import ConfigError
from rltransformers.laws import Case, perturbed
from tests.backbone.ways_out import mended, refusal

WANTED = 120


@pytest.fixture(autouse=True)
def double(monkeypatch: pytest.MonkeyPatch, law_device: None) -> Iterator[None]:
    monkeypatch.setattr(reach, "SMALLEST_BLOCK", 3)
    torch.set_default_dtype(torch.float64)
    yield
    torch.set_default_dtype(torch.float32)


def choice(chance: random.Random, axis: str) -> Any:
    """Any entry of one axis, as its example writes it."""
    specs = [spec for spec in catalogue()[axis] if axis in spec.example and not spec.settings]
    value = chance.choice(specs).example[axis]
    return dict(value) if isinstance(value, dict) else value


def draw(chance: random.Random) -> dict[str, Any]:
    """Values for every axis; the plain one half of the time, or most draws would be refused."""
    values: dict[str, Any] = {
        "width": 12, "heads": chance.choice([2, 3, 4]), "layers": chance.choice([1, 2, 3]),
        "memory": chance.choice([0, 3, 5, 8]), "tokens_per_step": chance.choice([1, 1, 1, 2, 3]), "ff_width": 7,
        "input_norm": chance.random() < 0.3, "final_norm": chance.random() < 0.3,
    }  # fmt: skip
    for axis in ("residual", "ff", "position"):
        values[axis] = choice(chance, axis)
    for axis in ("prior", "head_mixing", "span", "selection", "memory_kind", "depth", "mixer", "pattern"):
        if chance.random() < 0.4:
            values[axis] = choice(chance, axis)
    if chance.random() < 0.3:
        values["position"] = [
            chance.choice(["sinusoidal", {"name": "learned", "max_len": 64}]),
            choice(chance, "position"),
        ]
    if chance.random() < 0.3:
        values["pattern"] = [choice(chance, "pattern") for _ in range(2)]
    elif chance.random() < 0.3:
        values["pattern"] = [[choice(chance, "pattern") for _ in range(values["heads"])]]
    if chance.random() < 0.2:
        values["mixer"] = [choice(chance, "mixer") for _ in range(2)]
    if values.get("mixer", "softmax") != "softmax" and chance.random() < 0.8:
        values |= {"position": "sinusoidal", "memory": 14}
        values = {key: value for key, value in values.items() if key not in ("prior", "span", "selection", "pattern")}
    for axis in ("span", "selection"):
        if chance.random() < 0.15:
            values[axis] = [choice(chance, axis) for _ in range(2)]
    if chance.random() < 0.3:
        values["kv_heads"] = chance.choice([1, 2])
    if chance.random() < 0.3:
        values["head_dim"], values["value_dim"] = chance.choice([(5, 3), (4, 4), (6, None)])
    if chance.random() < 0.2:
        values["topology"] = "encoder_decoder"
    return values | ({"ff_width": None} if values["ff"] == "none" else {})


def by_name() -> list[tuple[str, Any]]:
    """Axis and example of every entry that somebody chooses by its name, apart from the neutral ones."""
    return [
        (axis, spec.example[axis])
        for axis, specs in catalogue().items()
        for spec in specs
        if axis in spec.example
        and not spec.settings
        and axis != "losses"
        and spec.name not in ("none", "fixed", "full", "mha", "decoder")
    ]


def names(values: Any) -> set[str]:
    """Every string among the values of a config."""
    if isinstance(values, str):
        return {values}
    parts = values.values() if isinstance(values, dict) else values if isinstance(values, list) else ()
    return set().union(*map(names, parts))


def combinations() -> tuple[list[dict[str, Any]], list[tuple[dict[str, Any], str]]]:
    """Accepted draws, and refused ones with the message.

    Entries that the first draws leave out are set in further ones, so that the draws reach every entry.
    """
    chance = random.Random(7)
    accepted: list[dict[str, Any]] = []
    refused: list[tuple[dict[str, Any], str]] = []

    def attempt(values: dict[str, Any]) -> bool:
        try:
            BackboneConfig(**{**PLAIN, **values})  # counts its parts, as building it does
        except ConfigError as error:
            refused.append((values, str(error)))
            return False
        accepted.append(values)
        return True

    while len(accepted) < WANTED:
        attempt(draw(chance))
    for axis, example in by_name():
        wanted = names({axis: example})
        if not wanted <= names(accepted):
            assert any(attempt({**draw(chance), axis: example}) for _ in range(200)), (axis, example)
    return accepted, refused


ACCEPTED, REFUSED = combinations()


@pytest.mark.parametrize("index", range(len(ACCEPTED)))
def test_a_random_combination_keeps_the_laws(index: int) -> None:
    values = ACCEPTED[index]
    nystrom = "nystrom" in str(values)
    # The pseudo-inverse amplifies rounding; see the row of nystrom.
    backbone = perturbed(BackboneConfig(**{**PLAIN, **values}))
    case = Case.of(backbone, [[5], [0, 11]], time=16, tolerance=1e-7 if nystrom else 1e-11)
    laws.causality(case)
    laws.split_invariance(case, [[7, 1, 8], [3] * 5 + [1]])
    laws.episode_isolation(case)
    laws.padding(case)


def test_what_refusals_propose_leads_to_a_config_that_is_accepted() -> None:
    assert len(REFUSED) > WANTED
    for values, first in REFUSED[:WANTED]:
        message, changes = first, 0
        while message:
            assert changes < 10, (values, first)  # there are twelve axes, of which a change settles one
            values, changes = mended(values, message), changes + 1
            message = refusal(values)
