"""``torchrun ... -m rltransformers train``: the command line with two processes, one of which is killed."""

import subprocess
import sys
from dataclasses import replace
from pathlib import Path

import pytest
import torch
import yaml

from rltransformers.cli import runs
from rltransformers.cli.configs import find_config
from rltransformers.cli.main import main
from rltransformers.core.checkpoint import load_checkpoint
from rltransformers.training.runs.experiment import ExperimentConfig
from rltransformers.training.runs.run_folder import RunFolder

ROOT = Path(__file__).parents[2]


@pytest.mark.slow
@pytest.mark.xdist_group("two processes")
def test_a_job_whose_process_was_killed_goes_on_and_equals_one_process(tmp_path: Path) -> None:
    config = {
        "agent": "gtrxl_ppo",
        "environment": {
            "id": "tests.cli.mortal:test/Mortal-v0", "num_envs": 4,
            "kwargs": {"grave": str(tmp_path / "grave"), "at": 30}, "normalize_observation": True,
        },
        "backbone": {"preset": "gtrxl", "width": 8, "layers": 1, "heads": 2, "memory": 4},
        "algorithm": {"n_steps": 8, "batch_size": 16, "n_epochs": 2},
        "train": {"total_timesteps": 192, "restart_every": 64},
        "evaluation": {"episodes": 3, "every": 96},
    }  # fmt: skip
    path = tmp_path / "mortal.yaml"
    path.write_text(yaml.safe_dump(config))
    start = [sys.executable, "-m", "torch.distributed.run", "--standalone", "--nproc-per-node", "2"]
    train = ["train", str(path), "--trust", "--output", str(tmp_path / "two")]
    command = [*start, "--max-restarts", "1", "-m", "rltransformers", *train]
    done = subprocess.run(command, cwd=ROOT, capture_output=True, text=True, timeout=500, check=False)
    assert done.returncode == 0, done.stderr
    assert (tmp_path / "grave").exists()
    assert "(process 0): process 0 of 2 lost the others: one of them ended" in done.stderr
    assert done.stdout.count("learning curve") == 1
    assert f"the job was started again: it goes on in {tmp_path / 'two' / 'mortal-seed0'}" in done.stderr

    assert main(["train", str(path), "--trust", "--output", str(tmp_path / "one")]) == 0
    (two,), (one,) = (list((tmp_path / name).iterdir()) for name in ("two", "one"))
    assert two.name == one.name == "mortal-seed0"
    found, expected = (load_checkpoint(folder / "last.zip").tensors for folder in (two, one))
    for name, weight in expected["policy"].items():
        torch.testing.assert_close(found["policy"][name], weight, rtol=0, atol=1e-6)
    assert found["counters"] == expected["counters"]
    both = [RunFolder(folder).read_evaluations() for folder in (two, one)]
    assert [step for step, _ in both[0]] == [step for step, _ in both[1]] == [96, 192]
    first, second = ([result.returns for _, past in each for result in past] for each in both)
    assert first == second


def begin(output: Path, name: str, job: str, config: ExperimentConfig, finished: bool = False) -> Path:
    """A run folder as a job of torchrun leaves it."""
    folder = RunFolder.create(output, name)
    folder.write_config(config.to_dict())
    (folder.path / ".job").write_text(f"{job}\n")
    if finished:
        folder.evaluation.write_text("[]")
    return folder.path


def test_a_restarted_job_goes_on_in_the_newest_unfinished_folder_of_its_name_and_config(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("TORCHELASTIC_RUN_ID", "job42")
    config = replace(find_config("gtrxl_cue_recall", [])[1], output=str(tmp_path))
    begin(tmp_path, "c-seed10", "job42", config)
    begin(tmp_path, "c-seed1x", "job42", config)
    assert runs._begun(config, "c-seed1") is None
    first = begin(tmp_path, "c-seed1", "job42", config)
    assert runs._begun(config, "c-seed1") == str(first)
    begin(tmp_path, "c-seed1", "job43", config)
    begin(tmp_path, "c-seed1", "job42", replace(config, seed=3))
    begin(tmp_path, "c-seed1", "job42", config, finished=True)
    (begin(tmp_path, "c-seed1", "job42", config) / "config.yaml").unlink()
    assert runs._begun(config, "c-seed1") == str(first)
    second = begin(tmp_path, "c-seed1", "job42", config)
    assert runs._begun(config, "c-seed1") == str(second)
    (second / "evaluation.json").write_text("[]")
    assert runs._begun(config, "c-seed1") == str(first)
