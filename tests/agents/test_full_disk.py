"""Where a disk is full, what writes a file raises an error that can be caught, and leaves what was there before."""

import subprocess
import sys
from pathlib import Path

import pytest

resource = pytest.importorskip("resource")  # which Windows lacks

PROGRAM = """
import resource, sys
from pathlib import Path
from rltransformers.agents import GTrXLPPO
from rltransformers.data import record
folder = Path(sys.argv[1])
policy = {"backbone": {"width": 8, "heads": 2, "layers": 1, "memory": 4}}
model = GTrXLPPO("GTrXLPolicy", "CartPole-v1", n_steps=8, policy_kwargs=policy, device="cpu")
resource.setrlimit(resource.RLIMIT_FSIZE, (5_000, 5_000))  # files of more bytes are refused, as by a full disk
for name, write in (("policy.pt2", model.export), ("policy.onnx", model.export), ("model.zip", model.save)):
    (folder / name).write_text("before")
    try:
        write(folder / name)
    except (OSError, RuntimeError) as error:
        print(name, type(error).__name__, str(folder / name) in str(error))
try:
    record("CartPole-v1", "random", episodes=20).save(folder / "data")
except OSError as error:
    print(error)
"""


@pytest.mark.slow
def test_a_full_disk_ends_no_process(tmp_path: Path) -> None:
    command = [sys.executable, "-c", PROGRAM, str(tmp_path)]
    process = subprocess.run(command, capture_output=True, text=True, timeout=600)
    assert process.returncode == 0, process.stderr[-2000:]
    lines = ["policy.pt2 OSError True", "policy.onnx OSError True", "model.zip CheckpointError True"]
    *printed, data = process.stdout.splitlines()
    assert printed == lines
    assert data == f"[Errno 28] No space left on device: '{tmp_path / 'data'}'"
    assert sorted(path.name for path in tmp_path.iterdir()) == ["model.zip", "policy.onnx", "policy.pt2"]
    assert {path.read_text() for path in tmp_path.iterdir()} == {"before"}
