"""Wrong values are refused before torch is imported, in the words that torch's side has for them."""

import json
import subprocess
import sys
from pathlib import Path

import pytest
import yaml

from rltransformers.cli.entries import CHOICES, from_json
from rltransformers.cli.keywords import check_config
from rltransformers.cli.settings import catalogue
from rltransformers.cli.values import check_values
from rltransformers.core.errors import ConfigError
from rltransformers.core.ranges import describe
from rltransformers.training.runs.experiment import build_experiment
from tests.cli.test_runs import OFFLINE, ONLINE

WRONG = {
    "algorithm.gamma": 2,
    "algorithm.learning_rate": {"start": 1},
    "algorithm.n_steps": "x",
    "algorithm.device": 3,
    "algorithm.seed": 3,
    "backbone.width": -1,
    "backbone.preset": "GTrXL",
    "backbone.pattern": "bnd",
    "backbone.position": {"name": "shaw", "distance": 3},
    "backbone.mixer": ["softmax", {"name": "performer", "features": 0}],
    "backbone.head_mixing": "mqa",
    "backbone.losses": {"pondr": 1},
    "policy.head_width": "x",
    "policy.readout": {"name": "knnn"},
    "policy.observation": {"encoder": "bertt"},
    "environment.wrappers": ["DropIndex"],
    "seed": -1,
    "train.total_timesteps": 0,
}
WRONG_OFFLINE = {"algorithm.context_length": 0, "algorithm.critic_kwargs": {"weight": -1}, "algorithm.gama": 1}
MAIN = """
import json, sys
from rltransformers.cli.main import main
for words in json.load(sys.stdin):
    status = main(words)
    heavy = {"torch", "stable_baselines3"} & set(sys.modules)
    assert status == 2 and not heavy, (words, status, heavy)
"""


def test_wrong_values_and_keys_are_refused_before_torch_is_imported(tmp_path: Path) -> None:
    (tmp_path / "online.yaml").write_text(yaml.safe_dump(ONLINE))
    (tmp_path / "offline.yaml").write_text(yaml.safe_dump(OFFLINE))
    (tmp_path / "run").mkdir()
    (tmp_path / "run" / "config.yaml").write_text(yaml.safe_dump(ONLINE))
    commands = [["train", "online.yaml", f"--{key}", json.dumps(value)] for key, value in WRONG.items()]
    commands += [["train", "offline.yaml", f"--{key}", json.dumps(value)] for key, value in WRONG_OFFLINE.items()]
    commands += [
        ["tune", "online.yaml", "--search", words] for words in ("algorithm.gamma=0..2", "algorithm.gama=0..1")
    ]
    commands += [["evaluate", "absent"], ["evaluate", "run/config.yaml"], ["train", "--resume", "absent"]]
    commands += [["train", "--resume", "run", "--train.total_timesteps", "x"], ["show", "online.yaml", "--lr", "1"]]
    done = subprocess.run(
        [sys.executable, "-c", MAIN], input=json.dumps(commands), cwd=tmp_path, capture_output=True, text=True
    )
    assert done.returncode == 0, done.stderr


@pytest.mark.parametrize("key", [key for key in WRONG if key.startswith(("algorithm.", "backbone.", "policy."))])
def test_both_sides_refuse_a_value_in_the_same_words(key: str) -> None:
    section, _, name = key.partition(".")
    values = {**ONLINE, section: {**ONLINE.get(section, {}), name: WRONG[key]}}  # type: ignore[dict-item]
    config = build_experiment(values)
    messages = []
    for check in (check_values, check_config):
        with pytest.raises(ConfigError) as refusal:
            check(config)
        messages.append(str(refusal.value))
    assert messages[0] == messages[1]


def test_stored_types_accept_what_the_annotations_do() -> None:
    entries = [entry for entry in catalogue()["settings"] if entry.get("type", CHOICES) != CHOICES]
    assert len(entries) > 150
    for entry in entries:
        assert describe(from_json(entry["type"])) == entry["accepts"], entry["key"]
