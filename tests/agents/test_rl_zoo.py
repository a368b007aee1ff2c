"""``train`` and ``enjoy`` of rl_zoo3 with our agents, by the lines of the guide as they are printed."""

import importlib.util
import re
import shlex
import subprocess
import sys
from pathlib import Path

import pytest
import yaml

from tests.docs.blocks import ROOT, blocks_of

GUIDE = ROOT / "docs" / "guides" / "rl_zoo.md"
SHORT = {"n_timesteps": 128, "n_envs": 2, "n_steps": 16, "policy_kwargs": {"backbone": {"width": 8, "memory": 4}}}
FOR_Q = {"policy": "GTrXLQPolicy", "learning_starts": 32, "n_steps": None, "n_envs": 1, "env_wrapper": None}


def text_of(language: str) -> str:
    return next(block.text for block in blocks_of(GUIDE.read_text(), "guide") if block.language == language)


def run(line: str, folder: Path) -> str:
    command = [sys.executable, *shlex.split(line)[1:]]
    done = subprocess.run(command, cwd=folder, capture_output=True, text=True, check=False)
    assert done.returncode == 0, done.stdout[-500:] + done.stderr[-3000:]
    return done.stdout


@pytest.mark.third_party
@pytest.mark.skipif(importlib.util.find_spec("rl_zoo3") is None, reason="rl_zoo3 is not installed")
@pytest.mark.parametrize(
    ("agent", "environment"),
    [("gtrxl_ppo", "CartPole-v1"), ("gtrxl_vmpo", "rltransformers/CueRecall-v0"), ("gtrxl_dqn", "CartPole-v1")],
)
def test_the_zoo_trains_goes_on_and_plays(agent: str, environment: str, tmp_path: Path) -> None:
    settings = yaml.safe_load(text_of("yaml"))
    for each in settings.values():
        each |= SHORT | (FOR_Q if agent == "gtrxl_dqn" else {})
    short = {name: {k: v for k, v in each.items() if v is not None} for name, each in settings.items()}
    (tmp_path / "gtrxl.yml").write_text(yaml.safe_dump(short))
    (tmp_path / "zoo.py").write_text(text_of("python"))
    place = environment.replace("/", "-")
    train, enjoy, go_on = (
        line.replace("CartPole-v1_1/CartPole-v1", f"{place}_1/{place}")
        .replace("CartPole-v1 ", f"{environment} ")
        .replace("gtrxl_ppo", agent)
        for line in text_of("sh").replace("\\\n", " ").splitlines()
    )
    run(f"{train} --eval-freq 64 --eval-episodes 2 --seed 1 --log-interval -2", tmp_path)
    assert (tmp_path / "logs" / agent / f"{place}_1" / "best_model.zip").is_file()
    played = run(f"{enjoy} -n 90", tmp_path)
    assert re.search(r"Mean reward: [\d.]+ ", played), played
    continued = run(f"{go_on} --eval-freq -1 -n 64", tmp_path)
    assert "Loading pretrained agent" in continued
