"""An agent whose outputs show what it remembers, and its rollouts one by one."""

import torch
from stable_baselines3.common.callbacks import BaseCallback

from rltransformers.agents import GTrXLPPO, GTrXLVMPO
from rltransformers.data.rollout import Segment
from rltransformers.training.online.on_policy_agent import OnPolicyMemoryAgent

ON_POLICY: list[type[OnPolicyMemoryAgent]] = [GTrXLPPO, GTrXLVMPO]
ACTING = (
    *("gtrxl", "adaptive_span", "compressive", "memorizing", "linear_transformer", "dynamic_conv", "average"),
    *("topk", "clustered", "universal_act", "calm", "reversible"),
)
"""Presets that keep states in different ways, or learn something between updates."""


class StopsAt(BaseCallback):
    """Ends training inside a rollout."""

    def __init__(self, step: int) -> None:
        super().__init__()
        self.step = step

    def _on_step(self) -> bool:
        return self.num_timesteps < self.step


def loud(model: OnPolicyMemoryAgent) -> None:
    """Enlarge the heads, whose first outputs are nearly constant: differences in memory must show."""
    with torch.no_grad():
        for parameter in model.policy.action_head.linear.parameters():
            parameter.mul_(50.0)
        model.policy.value_net.weight.mul_(5.0)
    if isinstance(model, GTrXLVMPO):
        model.target.load_state_dict(model.policy.state_dict())


def rollout(model: OnPolicyMemoryAgent) -> Segment:
    """One more segment, without an update."""
    _, callback = model._setup_learn(10**6, reset_num_timesteps=False)
    assert model.env is not None
    model.collect_rollouts(model.env, callback, model.rollout_buffer, model.n_steps)
    assert model.carry.segment is not None
    return model.carry.segment
