"""tianshou `Recurrent`: an update starts every stack from zeros, acting carries its state

The collector carries the state of the LSTM through an episode. The buffer
hands out the newest `stack_num` observations of a step, and the update runs
the LSTM over them from zeros. So the update values decisions of a policy that
forgets after `stack_num` steps; that is the random update of the DRQN paper,
an approximation. At the beginning of an episode the buffer also repeats the
first observation until the stack is full, which acting never sees.
"""

import sys

import torch

sys.path.insert(0, "tianshou")
from tianshou.data import Batch, ReplayBuffer
from tianshou.utils.net.common import Recurrent

torch.manual_seed(0)
net = Recurrent(
    layer_num=1, state_shape=3, action_shape=2, hidden_layer_size=16
)
buffer, state, acted = ReplayBuffer(10, stack_num=4), None, []
observations = torch.randn(10, 3).numpy()
with torch.no_grad():
    for observation in observations:
        q_values, state = net(observation[None], state)
        acted.append(q_values)
        step = {"obs": observation, "obs_next": observation, "act": 0}
        step |= {"rew": 0.0, "terminated": False, "truncated": False}
        buffer.add(Batch(**step))
    trained = net(buffer.get(buffer.sample_indices(0), "obs"))[0]
differences = (torch.cat(acted) - trained).abs().amax(1)
print("difference of each step:", [round(float(d), 3) for d in differences])
print("largest difference:", float(differences.max()))
