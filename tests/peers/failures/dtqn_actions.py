"""DTQN with actions in its inputs: acting sees them one step late

The network moves actions one place to the right, as it needs for the replay
buffer, which keeps the action taken at an observation beside it. `Context`
keeps the action *before* an observation beside it: while acting, a step sees
the action before the previous one, the second step a random placeholder, and
the first step (a window of one is not moved) as well. By default the network
does not see actions (`--a-embed 0`), and acting equals training.
"""

import sys

import numpy as np
import torch

sys.path.insert(0, "DTQN")
from dtqn.agents.dtqn import DtqnAgent
from dtqn.networks.dtqn import DTQN
from utils.random import RNG

torch.manual_seed(0)
RNG.rng = np.random.default_rng(0)
for width in (0, 4):
    net = DTQN(3, 2, 1, width, 16, 2, 1, 8, pos="learned")
    agent = DtqnAgent(
        lambda: net,
        100,
        torch.device("cpu"),
        3,
        10,
        0.0,
        2,
        False,
        context_len=8,
    )
    q_values = []
    net.register_forward_hook(
        lambda _, inputs, out: q_values.append(out[0, -1])
    )
    actions = [1, 0, 0, 1, 1]
    observations = (
        np.random.default_rng(1).normal(size=(6, 3)).astype("float32")
    )
    agent.context_reset(observations[0])
    agent.get_action()
    for action, observation in zip(actions, observations[1:]):
        agent.observe(observation, action, 0.0, False)
        agent.get_action()
    acted = torch.stack(q_values)
    buffer = agent.replay_buffer
    with torch.no_grad():
        trained = net(
            torch.as_tensor(buffer.obss[:1, :6]),
            torch.as_tensor(buffer.actions[:1, :6], dtype=torch.long),
        )[0]
    difference = float((acted - trained).abs().max())
    print(f"difference with actions of {width} numbers:", difference)
