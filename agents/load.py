"""An agent from its file, whichever it is."""

import os
from pathlib import Path
from typing import get_args

import torch

from rltransformers.agents.decision_transformer import DecisionTransformer
from rltransformers.agents.gtrxl_dqn import GTrXLDQN
from rltransformers.agents.gtrxl_ppo import GTrXLPPO
from rltransformers.agents.gtrxl_sac import GTrXLSAC
from rltransformers.agents.gtrxl_vmpo import GTrXLVMPO
from rltransformers.core.checkpoint import Checkpoint, load_checkpoint
from rltransformers.core.errors import CheckpointError
from rltransformers.core.ranges import check

Agent = GTrXLPPO | GTrXLVMPO | GTrXLDQN | GTrXLSAC | DecisionTransformer
CHECKPOINT = "last.zip"
"""Newest checkpoint of a run folder."""
KINDS: dict[str, type[Agent]] = {each.kind: each for each in get_args(Agent)}


def load_agent(path: str | os.PathLike[str], *, device: torch.device | str = "auto") -> Agent:
    """The agent in a checkpoint, of whatever kind, for acting: without environment and dataset.

    Args:
        path: what ``save`` of an agent wrote, or a run folder, whose ``last.zip`` is taken.

    Raises:
        CheckpointError: for a file that is missing, corrupt or of no agent of this package.
    """
    file = checkpoint_in(check(path, str | os.PathLike[str], "path"))
    return KINDS[agent_checkpoint(file).kind].load(file, device=device)


def agent_checkpoint(file: Path) -> Checkpoint:
    """Content of a file; raises CheckpointError unless it is an agent of this package."""
    checkpoint = load_checkpoint(file)
    if checkpoint.kind not in KINDS:
        raise CheckpointError(
            f"checkpoint {file} holds a {checkpoint.kind}, not an agent; agents: {', '.join(sorted(KINDS))}"
        )
    return checkpoint


def steps_of(checkpoint: Checkpoint) -> int:
    """Training steps behind an agent's checkpoint: gradient steps of a Decision Transformer, else environment steps."""
    tensors = checkpoint.tensors
    return int(tensors["updates"] if "updates" in tensors else tensors["counters"]["num_timesteps"])


def checkpoint_in(path: str | os.PathLike[str]) -> Path:
    """The file itself, or the newest checkpoint of a run folder."""
    return Path(path) / CHECKPOINT if Path(path).is_dir() else Path(path)
