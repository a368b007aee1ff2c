"""CleanRL `ppo_trxl`: in the update, the first step of an episode sees the steps after it

At the first step of an episode the mask hides every row of the memory.
`masked_fill` with -1e20 makes all scores equal, and their softmax is one over
the window: the step reads the mean of all rows. While acting they are empty;
in the update the stored memory of the episode holds its later steps. So the
ratio of the first epoch is not 1 there, and training looks ahead. All other
steps agree.
"""

import sys

import gymnasium
import torch

sys.path.insert(0, "cleanrl/cleanrl/ppo_trxl")
from ppo_trxl import Agent, Args

torch.manual_seed(0)
args = Args(trxl_num_layers=1, trxl_num_heads=2, trxl_dim=8)
agent = Agent(args, gymnasium.spaces.Box(-1, 1, (3,)), (2,), 16)
mask = torch.tril(torch.ones(4, 4), diagonal=-1)  # a memory of 4 steps
window, indices = torch.zeros(1, 4, 1, 8), torch.arange(4)[None]
observations, values = torch.randn(4, 1, 3), []
with torch.no_grad():
    for step, read in enumerate(observations):
        inputs = read, window.clone(), mask[[step]], indices
        _, _, _, value, new = agent.get_action_and_value(*inputs)
        values.append(float(value))
        window[:, step] = new
    # the update reads the same steps from the memory of the episode
    trained = [
        float(agent.get_value(read, window, mask[[step]], indices))
        for step, read in enumerate(observations)
    ]
print("acting:", [round(value, 4) for value in values])
print("update:", [round(value, 4) for value in trained])
print("difference at the first step:", abs(values[0] - trained[0]))
