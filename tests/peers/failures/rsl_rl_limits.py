"""rsl_rl `PPO`: a time limit is valued with the observation before the last step

At a time limit, `process_env_step` adds the value of the observation that the
last action was chosen for, in place of the value of the last observation. Its
environments do not hand over the last observation, so it cannot do better
without a change of the interface; the error is the change of the value in one
step. The end of a rollout is exact. In this program an observation is its own
value.
"""

import torch
from rsl_rl.algorithms import PPO
from rsl_rl.models import MLPModel
from rsl_rl.storage import RolloutStorage
from tensordict import TensorDict


class Value(MLPModel):
    def forward(self, obs, **kwargs):
        return obs["policy"]


def observed(number):
    return TensorDict({"policy": torch.tensor([[number]])}, [1])


groups = {"actor": ["policy"], "critic": ["policy"]}
gaussian = {"class_name": "rsl_rl.modules.GaussianDistribution"}
actor = MLPModel(observed(0.0), groups, "actor", 1, distribution_cfg=gaussian)
critic = Value(observed(0.0), groups, "critic", 1)
storage = RolloutStorage("rl", 1, 3, observed(0.0), [1])
ppo = PPO(actor, critic, storage, gamma=1.0, lam=0.0)
for now, after in ((1.0, 2.0), (2.0, 3.0), (3.0, 50.0)):
    ppo.act(observed(now))
    # observation 4.0 is the last one; 50.0 belongs to the next episode
    ends = torch.tensor([now == 3.0])
    ppo.process_env_step(
        observed(after), torch.zeros(1), ends, {"time_outs": ends}
    )
ppo.compute_returns(observed(50.0))
used = float(storage.returns[2])
print("used after the time limit:", used)
print("value of the last observation:", 4.0)
print("difference:", abs(used - 4.0))
