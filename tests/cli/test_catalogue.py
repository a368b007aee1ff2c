"""The whole catalogue is listed: every system that the library means to have, by id."""

from rltransformers.cli.commands.list import list_contents

SYSTEMS = {
    "P": range(18), "A": range(18), "C": range(1, 6), "S": range(17), "B": range(1, 11), "H": range(7), "SP": range(4),
    "M": range(4), "D": range(6), "R": range(6), "F": range(6), "X": range(1, 8), "E": range(3), "O": range(1, 3),
    "RL": range(1, 3),
}  # fmt: skip
"""Positions, patterns, choices of keys, scores and mixers, priors, heads, spans, memories, depths, residuals,
transforms, losses, topologies, readouts, policies."""


def test_all_115_systems_are_listed() -> None:
    contents = list_contents()
    entries = [each for axis in contents["axes"].values() for each in axis] + contents["presets"]
    listed = {part.split("-")[0] for each in entries for part in each["id"].replace(",", " ").split()}
    systems = {f"{letters}{number}" for letters, numbers in SYSTEMS.items() for number in numbers}
    assert len(systems) == 115
    assert systems <= listed, sorted(systems - listed)
