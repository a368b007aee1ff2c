"""episodic-transformer-memory-ppo: in the update, the first step of an episode sees the steps after it

As in CleanRL's `ppo_trxl`, which follows this repository: the mask of a first
step hides all rows, the softmax of equal scores reads all of them, and in the
update they hold later steps.
"""

import sys

import torch

sys.path.insert(0, "episodic-transformer-memory-ppo")
from transformer import Transformer

torch.manual_seed(0)
config = {"num_blocks": 1, "embed_dim": 8, "num_heads": 2, "gtrxl": True}
config |= {"positional_encoding": "relative", "layer_norm": "pre"}
net = Transformer(config | {"gtrxl_bias": 0.0}, 3, max_episode_steps=16)
mask = torch.tril(torch.ones(4, 4), diagonal=-1)  # a memory of 4 steps
window, indices = torch.zeros(1, 4, 1, 8), torch.arange(4)[None]
observations, acted = torch.randn(4, 1, 3), []
with torch.no_grad():
    for step, read in enumerate(observations):
        output, new = net(read, window.clone(), mask[[step]], indices)
        acted.append(output)
        window[:, step] = new
    # the update reads the same steps from the memory of the episode
    trained = [
        net(read, window, mask[[step]], indices)[0]
        for step, read in enumerate(observations)
    ]
differences = [
    float((now - then).abs().max()) for now, then in zip(trained, acted)
]
print("difference of each step:", differences)
print("difference at the first step:", differences[0])
