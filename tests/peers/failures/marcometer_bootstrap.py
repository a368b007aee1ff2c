"""episodic-transformer-memory-ppo: the value at the end of a rollout does not see the newest step

`get_last_value` takes the rows from `step - memory_length` to `step`, and a
mask that hides the last of them: the newest step. Once an episode is longer
than the memory, acting reads one row further.
"""

import sys
from types import SimpleNamespace

import torch

sys.path.insert(0, "episodic-transformer-memory-ppo")
from trainer import PPOTrainer

length, step = 4, 9  # of the memory, and steps of the episode so far
mask = torch.tril(torch.ones(length, length), diagonal=-1)
seen = []


def model(observation, window, mask, indices):
    seen.append(window.flatten()[mask.flatten().bool()])
    return None, None, None


before = torch.arange(step - length, step)[None]
trainer = SimpleNamespace(
    worker_current_episode_step=torch.tensor([step]),
    memory_length=length,
    memory_mask=mask,
    memory=torch.arange(16.0).reshape(1, 16, 1, 1),  # row 3 holds a 3
    model=model,
    num_workers=1,
    obs=[[0.0]],
    buffer=SimpleNamespace(memory_indices=before[:, None]),
)
PPOTrainer.get_last_value(trainer)
acting = torch.arange(step - length + 1, step)  # memory_indices[step]
print("steps that acting sees:      ", acting.tolist())
print("steps that the bootstrap sees:", seen[0].int().tolist())
print("difference:", float((seen[0] - acting).abs().max()))
