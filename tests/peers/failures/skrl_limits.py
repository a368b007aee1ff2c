"""skrl `PPO_RNN`: an episode that a time limit cuts is valued with the next episode

`compute_gae` of `PPO_RNN` knows terminations, not time limits: after a
truncated step it adds the value of the first observation of the next episode,
and its trace continues into that episode. With `time_limit_bootstrap=True`
the value of the observation *before* the step is added as well. `PPO` of the
same release stops at both if `time_limit_bootstrap` is set.
"""

import torch
from skrl.agents.torch.ppo.ppo_rnn import compute_gae

# two episodes of two steps; the first is cut by a time limit
values = torch.tensor([1.0, 2.0, 50.0, 60.0])[:, None]
truncated = torch.tensor([False, True, False, False])[:, None]
rewards = torch.zeros(4, 1)
rewards += 1.0 * values * truncated  # as record_transition does it
returns, _ = compute_gae(
    rewards=rewards,
    terminated=torch.zeros(4, 1, dtype=torch.bool),
    values=values,
    next_values=torch.tensor([0.0]),
    discount_factor=1.0,
    lambda_coefficient=0.0,
)
last = 3.0  # value of the last observation of the first episode
print("used after the time limit:", float(returns[1]))
print("value of the last observation:", last)
print("difference:", abs(float(returns[1]) - last))
