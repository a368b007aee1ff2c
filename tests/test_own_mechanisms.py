"""Two mechanisms in an installed package of their own: checked, trained, saved, loaded and exported by its users.

``examples/own_mechanisms`` is installed as it is; every step runs in a process of its own.
"""

import os
import re
import shutil
import subprocess
import sys
from pathlib import Path

import pytest

ROOT = Path(__file__).resolve().parent.parent
EXAMPLE = ROOT / "examples" / "own_mechanisms"
pytestmark = [pytest.mark.slow, pytest.mark.xdist_group("own_mechanisms")]

CHOICES = {"backbone.mixer": "own_retention", "backbone.residual": "update_gate", "backbone.position": "none"}
TYPED = [word for key, value in CHOICES.items() for word in (f"--{key}", value)]
OFFLINE = """
agent: decision_transformer
environment: {id: rltransformers/KeyToDoor-v0, num_envs: 2}
dataset: {collect: {episodes: 10}}
backbone: {width: 12, heads: 2, layers: 2, position: none, mixer: own_retention, residual: update_gate}
algorithm: {context_length: 5, batch_size: 4, device: cpu}
train: {gradient_steps: 4}
evaluation: {episodes: 3, target_returns: [1]}
"""
TRAIN = """
import torch
from rltransformers import GTrXLPPO, make_vec_env

torch.set_num_threads(1)
env = make_vec_env("rltransformers/CueRecall-v0", num_envs=2, env_kwargs={"delay": 2}, seed=0)
backbone = {"width": 12, "heads": 2, "layers": 1, "position": "none", "residual": {"name": "update_gate", "bias": 0.5},
            "mixer": {"name": "own_retention", "first": 3}}
model = GTrXLPPO("GTrXLPolicy", env, n_steps=8, n_epochs=1, policy_kwargs={"backbone": backbone}, device="cpu", seed=0)
model.learn(64)
model.save("agent")
model.export("agent.onnx")
model.export("agent.pt2")
"""
PLAY = """
import numpy as np, torch
from rltransformers import Actor, load_agent

torch.set_num_threads(1)
actor = ACTOR
generator = np.random.default_rng(0)
for step in range(40):
    if step % 9 == 0:
        actor.reset()
    output = actor.decide(OBSERVATION, 0.0 if step % 9 == 0 else 0.5)
    print(f"{float(output.value):.6f}")
"""


@pytest.fixture(scope="module")
def site(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A folder with the installed package."""
    work = tmp_path_factory.mktemp("own")
    shutil.copytree(EXAMPLE, work / "source")  # building writes beside the source
    words = ["--quiet", "--no-deps", "--no-build-isolation", "--target", str(work / "site"), str(work / "source")]
    environment = {**os.environ, "PIP_DISABLE_PIP_VERSION_CHECK": "1"}
    subprocess.run([sys.executable, "-m", "pip", "install", *words], check=True, env=environment)
    return work / "site"


def run(folder: Path, site: Path | None, *words: str, code: int = 0) -> str:
    """What ``python WORDS`` prints in a folder, with the package installed or without it."""
    environment = {name: value for name, value in os.environ.items() if name != "PYTHONPATH"}
    if site is not None:
        environment["PYTHONPATH"] = str(site)
    done = subprocess.run(
        [sys.executable, *words], cwd=folder, env=environment, capture_output=True, text=True, timeout=600
    )
    assert done.returncode == code, done.stdout + done.stderr
    return done.stdout + done.stderr


def test_the_laws_hold(site: Path, tmp_path: Path) -> None:
    out = run(tmp_path, site, str(EXAMPLE / "check.py"))
    assert len(re.findall(r" held\b", out)) == 24 and "failed" not in out
    assert len(re.findall(r"L5 .* held ", out)) == 2
    assert "L13  two mechanisms side by side both act         held" in out


def test_the_package_imports_the_door_alone() -> None:
    for path in EXAMPLE.rglob("*.py"):
        names = set(re.findall(r"^(?:from|import) (rltransformers[\w.]*)", path.read_text(), re.MULTILINE))
        assert names <= {"rltransformers", "rltransformers.mechanisms", "rltransformers.conformance"}, path


def commands(folder: Path, site: Path | None, *lines: list[str], code: int = 0) -> str:
    """What ``rltransformers WORDS`` prints for each list of words, one after the other in a process of their own."""
    program = f"from rltransformers.cli.main import main\nraise SystemExit(max(main(words) for words in {list(lines)}))"
    return run(folder, site, "-c", program, code=code)


def test_they_are_listed_and_explained(site: Path, tmp_path: Path) -> None:
    out = commands(tmp_path, site, ["list"], ["settings", "backbone.mixer.first"])
    assert "Sums of key-value products that decay" in out and "update_gate" in out
    assert "of own_retention" in out and "a finite number in [0.5, 20]; default 5.0" in out
    assert "own_retention" not in commands(tmp_path, None, ["list"])


def test_runs_of_both_agents_from_yaml_and_from_the_command_line(site: Path, tmp_path: Path) -> None:
    shutil.copy(EXAMPLE / "cue_recall.yaml", tmp_path)
    (tmp_path / "offline.yaml").write_text(OFFLINE)
    sizes = ["--backbone.width", "12", "--backbone.heads", "2", "--algorithm.n_steps", "8"]
    short = ["--train.total_timesteps", "128", "--evaluation.episodes", "3", "--evaluation.every", "0"]
    commands(
        tmp_path,
        site,
        ["train", "cue_recall.yaml", "--train.total_timesteps", "256"],
        ["train", "--env", "rltransformers/CueRecall-v0", *TYPED, *sizes, *short, "--name", "typed"],
        ["train", "offline.yaml"],
    )
    folders = ("cue_recall-seed0", "typed", "offline-seed0")
    evaluate = [["evaluate", f"runs/{folder}", "--episodes", "2"] for folder in folders]
    commands(tmp_path, site, *evaluate, ["train", "--resume", "runs/offline-seed0", "--train.gradient_steps", "6"])
    out = commands(tmp_path, None, ["evaluate", "runs/offline-seed0"], code=2)
    assert "pip install own-mechanisms, or import own_mechanisms." in out


def test_an_agent_is_saved_loaded_and_played_without_the_package(site: Path, tmp_path: Path) -> None:
    observation = "np.eye(3, dtype=np.float32)[generator.integers(3)]"

    def playing(*actors: str) -> str:
        return "".join([PLAY.replace("ACTOR", actor).replace("OBSERVATION", observation) for actor in actors])

    (tmp_path / "train.py").write_text(
        TRAIN + playing('load_agent("agent.zip", device="cpu").actor(deterministic=True)')
    )
    live = [float(line) for line in run(tmp_path, site, "train.py").splitlines()[-40:]]
    assert len(set(live)) > 10
    files = [f'Actor.from_export("{name}", deterministic=True)' for name in ("agent.onnx", "agent.pt2")]
    (tmp_path / "play.py").write_text(playing(*files) + "load_agent('agent.zip')")
    out = run(tmp_path, None, "play.py", code=1)
    assert [float(line) for line in out.splitlines()[:80]] == pytest.approx(2 * live, abs=2e-5)
    assert "agent.zip needs mixer 'own_retention'" in out or "agent.zip needs residual 'update_gate'" in out
