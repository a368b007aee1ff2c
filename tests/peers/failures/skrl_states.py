"""skrl `PPO_RNN`: the update starts from the state after a step, not before it

After the first step, `_rnn_initial_states` and `_rnn_final_states` are the
same dictionary. `act` writes the new state of the policy into it, and
`record_transition` stores that as the state before the step. A sequence in
the update starts with a state that has already seen its first observation, so
the ratios of the first epoch are not 1. In this program the state of the
policy counts its steps.
"""

import gymnasium
import torch
from skrl.agents.torch.ppo import PPO_RNN
from skrl.memories.torch import RandomMemory
from skrl.models.torch import DeterministicMixin, GaussianMixin, Model

box = gymnasium.spaces.Box(-1, 1, (1,))
spaces = {"observation_space": box, "action_space": box, "device": "cpu"}


class Policy(GaussianMixin, Model):
    def __init__(self):
        Model.__init__(self, **spaces)
        GaussianMixin.__init__(self)
        self.mean = torch.nn.Parameter(torch.zeros(1))

    def get_specification(self):
        return {"rnn": {"sequence_length": 4, "sizes": [(1, 1, 1)]}}

    def compute(self, inputs, role):
        states = [inputs["rnn"][0] + 1]
        return self.mean.expand(1, 1), {"log_std": self.mean, "rnn": states}


class Value(DeterministicMixin, Model):
    def __init__(self):
        Model.__init__(self, **spaces)
        DeterministicMixin.__init__(self)
        self.value = torch.nn.Parameter(torch.zeros(1))

    def compute(self, inputs, role):
        return self.value.expand(1, 1), {}


memory = RandomMemory(memory_size=4, num_envs=1, device="cpu")
quiet = {"write_interval": 0, "checkpoint_interval": 0}
agent = PPO_RNN(
    models={"policy": Policy(), "value": Value()},
    memory=memory,
    cfg={"experiment": quiet},
    **spaces,
)
agent.init()
agent.enable_training_mode(True)
zero, no = torch.zeros(1, 1), torch.zeros(1, 1, dtype=torch.bool)
for step in range(4):
    agent.act(zero, None, timestep=step, timesteps=4)
    agent.record_transition(
        observations=zero,
        states=None,
        actions=zero,
        rewards=zero,
        next_observations=zero,
        next_states=None,
        terminated=no,
        truncated=no,
        infos={},
        timestep=step,
        timesteps=4,
    )
stored = memory.get_tensor_by_name("rnn_policy_0").flatten()
print("steps before each step:", [0, 1, 2, 3])
print("state in memory:       ", stored.int().tolist())
print("difference:", float((stored - torch.arange(4)).abs().max()))
