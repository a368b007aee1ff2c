"""``evaluate --video``: videos hold the episodes that count, and what cannot be recorded is refused before it plays."""

import json
import os
import sys
from pathlib import Path
from types import ModuleType
from typing import Any

import numpy as np
import pytest
import yaml

from rltransformers.cli import runs
from rltransformers.envs.video import DISPLAYS, drawing_fault
from tests.cli.test_runs import OFFLINE, ONLINE, refused, run, work

__all__ = ["work"]  # the fixture
CARTPOLE = {"id": "CartPole-v1", "num_envs": 2, "kwargs": {"max_episode_steps": 12}}


class Clip:
    """Writes how many frames it has, and whether something moves."""

    def __init__(self, frames: list[np.ndarray], fps: int) -> None:
        assert fps == 50 and {frame.shape for frame in frames} == {(400, 600, 3)}
        moves = bool((frames[0] != frames[-1]).any())
        self.text = json.dumps({"frames": len(frames), "moves": moves})

    def write_videofile(self, path: str, **options: Any) -> None:
        """As text."""
        Path(path).write_text(self.text)


@pytest.fixture
def moviepy(monkeypatch: pytest.MonkeyPatch) -> None:
    """MoviePy, which brings a program of 80 MB."""
    for name in ("moviepy", "moviepy.video", "moviepy.video.io", "moviepy.video.io.ImageSequenceClip"):
        monkeypatch.setitem(sys.modules, name, ModuleType(name))
    monkeypatch.setattr(sys.modules["moviepy.video.io.ImageSequenceClip"], "ImageSequenceClip", Clip, raising=False)


@pytest.mark.usefixtures("moviepy")
@pytest.mark.parametrize("agent", ["online", "offline"])
def test_videos_hold_the_first_episodes_and_change_no_result(
    work: Path, capsys: pytest.CaptureFixture[str], agent: str
) -> None:
    values: dict[str, Any] = (ONLINE if agent == "online" else OFFLINE) | {"environment": CARTPOLE}
    values["train"] = {"total_timesteps": 48} if agent == "online" else {"gradient_steps": 1}
    Path("cart.yaml").write_text(yaml.safe_dump(values))
    run(capsys, "train", "cart.yaml", "--name", "cart", "--evaluation.every", "0")
    words = ("evaluate", "runs/cart", "--episodes", "3", "--json")
    plain = json.loads(run(capsys, *words))
    filmed = json.loads(run(capsys, *words, "--video", "deep/videos", "--videos", "2"))
    assert filmed == plain
    found = {path.stem: json.loads(path.read_text()) for path in Path("deep/videos").iterdir()}
    targets = ["" if result["target_return"] is None else f"target_{result['target_return']:g}-" for result in plain]
    assert found == {
        f"{target}episode-{episode}": {"frames": result["lengths"][episode] + 1, "moves": True}
        for target, result in zip(targets, plain, strict=True)
        for episode in range(2)
    }


@pytest.mark.third_party
def test_moviepy_writes_an_mp4(work: Path, capsys: pytest.CaptureFixture[str]) -> None:
    pytest.importorskip("moviepy", reason="extra video")
    Path("cart.yaml").write_text(yaml.safe_dump(ONLINE | {"environment": CARTPOLE, "train": {"total_timesteps": 48}}))
    run(capsys, "train", "cart.yaml", "--name", "cart", "--evaluation.every", "0")
    run(capsys, "evaluate", "runs/cart", "--episodes", "1", "--video", "videos")
    (video,) = Path("videos").iterdir()
    assert video.suffix == ".mp4" and video.read_bytes()[4:8] == b"ftyp"


@pytest.mark.usefixtures("moviepy")
@pytest.mark.parametrize(
    ("environment", "words", "message"),
    [
        (
            {"id": "rltransformers/CueRecall-v0"},
            [],
            "CueRecall-v0 cannot be recorded: rltransformers/CueRecall-v0 cannot be made",
        ),
        ({"id": "CartPole-v1", "wrappers": ["Blind"]}, [], "Blind"),
        (CARTPOLE | {"processes": "envpool"}, [], "EnvPool's environments cannot be recorded"),
        (CARTPOLE, None, "--videos says how many episodes --video FOLDER records"),
    ],
)
def test_what_cannot_be_recorded_is_refused_before_it_plays(
    work: Path,
    capsys: pytest.CaptureFixture[str],
    monkeypatch: pytest.MonkeyPatch,
    environment: dict[str, Any],
    words: list[str] | None,
    message: str,
) -> None:
    monkeypatch.setattr(runs, "build_agent", lambda *args, **kwargs: pytest.fail("episodes would be played"))
    Path("runs/x").mkdir(parents=True)
    Path("runs/x/config.yaml").write_text(yaml.safe_dump(ONLINE | {"environment": environment}))
    flags = ["--videos", "2"] if words is None else ["--video", "videos"]
    assert message in refused(capsys, "evaluate", "runs/x", *flags)
    assert not Path("videos").exists()


def test_videos_without_moviepy_name_the_extra(
    work: Path, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setitem(sys.modules, "moviepy", None)
    Path("runs/x").mkdir(parents=True)
    Path("runs/x/config.yaml").write_text(yaml.safe_dump(ONLINE | {"environment": CARTPOLE}))
    message = refused(capsys, "evaluate", "runs/x", "--video", "videos")
    assert "pip install 'rltransformers[video]'" in message


@pytest.mark.skipif(sys.platform != "linux", reason="pygame looks for a display in other ways elsewhere")
@pytest.mark.parametrize("display", [None, ":7"])
def test_pygame_draws_without_a_display_where_there_is_none(
    monkeypatch: pytest.MonkeyPatch, display: str | None
) -> None:
    for name in (*DISPLAYS, "XDG_RUNTIME_DIR"):
        monkeypatch.delenv(name, raising=False)
    if display is not None:
        monkeypatch.setenv("DISPLAY", display)
    assert (
        drawing_fault("rltransformers/CueRecall-v0", {"render_mode": "rgb_array"}, ()) is not None
    )  # it draws nothing
    assert os.environ.get("SDL_VIDEODRIVER") == ("dummy" if display is None else None)
