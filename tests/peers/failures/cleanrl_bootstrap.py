"""CleanRL `ppo_trxl`: the value at the end of a rollout does not see the newest step

Once an episode is longer than `trxl_memory_length`, the value of the
observation after a rollout reads a window that begins one step too early, and
whose last row, the newest step, the mask hides. The next step of acting
values the same observation with the right window.
"""

import sys

import gymnasium
import torch

sys.path.insert(0, "cleanrl/cleanrl/ppo_trxl")
from ppo_trxl import Agent, Args, batched_index_select

torch.manual_seed(0)
args = Args(trxl_num_layers=1, trxl_num_heads=2, trxl_dim=8)
agent = Agent(args, gymnasium.spaces.Box(-1, 1, (3,)), (2,), 16)
length, step = 4, 9  # of the memory, and steps of the episode so far
mask = torch.tril(torch.ones(length, length), diagonal=-1)[[-1]]
memory, observation = torch.randn(1, 16, 1, 8), torch.randn(1, 3)
# memory_indices of the program, for this step and the one before
now, before = (
    torch.arange(end - length + 1, end + 1)[None] for end in (step, step - 1)
)
with torch.no_grad():
    # "bootstrap value if not done": rows from step - length to step
    rows = torch.arange(step - length, step)[None]
    window = batched_index_select(memory, 1, rows)
    bootstrap = agent.get_value(observation, window, mask, before)
    # the first step of the next rollout
    window = batched_index_select(memory, 1, now)
    acting = agent.get_value(observation, window, mask, now)
print("rows that are seen:", rows[0, :-1].tolist(), now[0, :-1].tolist())
print("difference:", float((bootstrap - acting).abs()))
