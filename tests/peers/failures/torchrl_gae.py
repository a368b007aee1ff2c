"""torchrl `TransformerModule`: `GAE` values the next observations without the first one

By default `GAE` computes the values of the next observations as a sequence of
their own, which begins with the second observation of the episode. An LSTM
has its state in the rollout; `TransformerModule` has none there, so the next
values lack the first observation and count positions from the second.
`GAE(shifted=True, shifted_budget=...)` with room for every episode of a
rollout is exact.
"""

import sys

import torch

sys.path.insert(0, "torchrl-nightly")
from tensordict import TensorDict
from tensordict.nn import TensorDictModule, TensorDictSequential
from torchrl.modules import TransformerModule, set_recurrent_mode
from torchrl.objectives.value import GAE

torch.manual_seed(0)
sizes = {"num_heads": 2, "max_seq_len": 8}
net = TensorDictSequential(
    TransformerModule(3, 8, in_key="observation", out_key="x", **sizes),
    TensorDictModule(torch.nn.Linear(8, 1), ["x"], ["state_value"]),
)
observations = torch.randn(1, 6, 3)
begins = torch.arange(5)[None, :, None] == 0
no, zero = torch.zeros_like(begins), torch.zeros(1, 5, 1)
after = {"observation": observations[:, 1:], "reward": zero}
after |= {"done": no, "terminated": no, "is_init": no}
steps = {"observation": observations[:, :5], "is_init": begins}
rollout = TensorDict({**steps, "next": after}, [1, 5])
gae = GAE(gamma=0.9, lmbda=0.9, value_network=net, deactivate_vmap=True)
with torch.no_grad(), set_recurrent_mode(True):
    gae(rollout)
values = rollout["state_value"][0, 1:, 0]
of_next = rollout["next", "state_value"][0, :-1, 0]
print("values of steps 1 to 4:     ", [round(float(v), 3) for v in values])
print("next values of steps 0 to 3:", [round(float(v), 3) for v in of_next])
print("difference:", float((values - of_next).abs().max()))
