"""The gallery shows pictures that are there, small, and described; its program runs the commands that it shows."""

import re
from pathlib import Path

from docs._tools import gallery

PAGE = gallery.DOCS / "gallery.md"
EARLIER = ("remembers.gif", "results/memories.png")
"""Pictures of other pages, which may be larger."""


def test_pictures_of_the_gallery_are_small_and_described() -> None:
    pictures = re.findall(r"!\[([^\]]*)\]\(([^)]+)\)", PAGE.read_text())
    assert {path for _, path in pictures} >= {f"gallery/{path.name}" for path in gallery.PICTURES.iterdir()}
    for text, path in pictures:
        assert len(text) > 20, path
        assert (PAGE.parent / path).stat().st_size < 150_000 or path in EARLIER, path


def test_its_program_runs_the_commands_that_it_shows() -> None:
    commands = [" ".join(words) for words in gallery.commands(PAGE.read_text())]
    assert [command.split()[1] for command in commands] == ["collect", "train", "look", "evaluate", "train", "evaluate"]
    for run in gallery.OFFLINE, gallery.ONLINE:
        assert any(str(run) in command for command in commands)
        assert Path(str(run)).name in PAGE.read_text()
