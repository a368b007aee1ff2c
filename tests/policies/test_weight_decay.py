"""Weight decay leaves alone what mechanisms name in ``no_decay``: rates of forgetting, gains, biases of gates."""

from pathlib import Path
from typing import Any

import pytest
import torch
from torch import nn

from rltransformers.agents import GTrXLPPO
from rltransformers.backbone import PLAIN, Backbone, BackboneConfig
from rltransformers.core.checkpoint import check_optimizer
from rltransformers.core.errors import CheckpointError
from rltransformers.envs import make_vec_env
from rltransformers.policies.optimizers import decay_groups, over

EXEMPT = {
    "gated_deltanet": {"log_scale", "step_bias", "out.gain"},
    "kda": {"log_scale", "step_bias", "out.gain"},
    "mamba2": {"step_bias", "log_rate", "skip", "gain", "conv.bias"},
    "mlstm": {"gates.bias", "gain", "skip", "conv.bias"},
    "slstm": {"of_token.bias", "gain"},
    "gla": {"rates.1.bias", "out.gain"},
    "retention": {"logit", "out.gain"},
    "lru": {"nu", "theta", "gamma"},
    "s5": {"rate", "turn", "delta"},
    "rg_lru": {"rate", "conv.bias"},
    "ffm": {"alpha", "omega"},
    "min_gru": {"project.bias"},
    "min_lstm": {"project.bias"},
    "softmax": set(),
    "linear": set(),
}


@pytest.mark.parametrize("name", EXEMPT)
def test_what_a_mixer_forgets_by_does_not_decay(name: str) -> None:
    mixer: Any = {"name": name, "decay": "learned"} if name == "retention" else name
    module = Backbone(BackboneConfig(**{**PLAIN, "width": 12, "layers": 1, "mixer": mixer}))
    groups = decay_groups(module, module.parameters())
    names = {id(each): key.removeprefix("layers.0.mixing.mixer.") for key, each in module.named_parameters()}
    assert {names[id(each)] for group in groups[1:] for each in group["params"]} == EXEMPT[name]
    assert sum(len(group["params"]) for group in groups) == len(names)
    assert [group.get("weight_decay") for group in groups] == ([None, 0.0] if EXEMPT[name] else [None])


class Own(nn.Module):
    """A module of somebody else."""

    no_decay = ("rate", "gate.bias", "of_another_option")

    def __init__(self) -> None:
        super().__init__()
        self.rate, self.gate = nn.Parameter(torch.ones(3)), nn.Linear(2, 2)


def test_a_step_without_gradients_shrinks_all_but_what_is_named() -> None:
    module = nn.ModuleList([nn.Linear(2, 2), Own()])
    optimizer = torch.optim.Adam(decay_groups(module, module.parameters()), lr=0.1, weight_decay=0.5)
    before = {name: each.detach().clone() for name, each in module.named_parameters()}
    for each in module.parameters():
        each.grad = torch.zeros_like(each)
    optimizer.step()
    same = {name for name, each in module.named_parameters() if torch.equal(each, before[name])}
    assert same == {"1.rate", "1.gate.bias"}
    assert over(optimizer, module, decay_groups(module, module.parameters())) is optimizer
    other = over(optimizer, module, decay_groups(module, module[0].parameters()))
    assert other.defaults["weight_decay"] == 0.5 and len(other.param_groups) == 1


def test_an_agent_with_both_groups_goes_on_from_its_file(tmp_path: Path) -> None:
    backbone = {"preset": "mamba2", "width": 8, "layers": 1, "heads": 2, "mixer": {"name": "mamba2", "state": 4}}
    env = make_vec_env("rltransformers/CueRecall-v0", num_envs=2, seed=0)
    settings: dict[str, Any] = {"backbone": backbone, "optimizer_kwargs": {"weight_decay": 0.1}}
    model = GTrXLPPO("GTrXLPolicy", env, n_steps=8, policy_kwargs=settings, seed=0, device="cpu").learn(32)
    assert [group["weight_decay"] for group in model.policy.optimizer.param_groups] == [0.1, 0.0]
    model.save(tmp_path / "model")
    loaded = GTrXLPPO.load(tmp_path / "model", env=env)
    one, other = model.policy.optimizer.state_dict(), loaded.policy.optimizer.state_dict()
    assert one["param_groups"] == other["param_groups"]
    assert all(torch.equal(one["state"][key]["exp_avg"], other["state"][key]["exp_avg"]) for key in one["state"])
    single = {**one, "param_groups": [{**one["param_groups"][0], "params": list(range(len(one["state"])))}]}
    with pytest.raises(CheckpointError, match=r"is of \d+ parameters, here are \d+ \+ 5"):
        check_optimizer(model.policy.optimizer, single)
