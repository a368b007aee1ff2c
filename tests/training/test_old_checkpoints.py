"""Checkpoints of the layout before actions were kept by leaf: they load, and training goes on as from a new one."""

from functools import partial
from pathlib import Path
from typing import Any

import gymnasium as gym
import numpy as np
import pytest
import torch
from gymnasium import spaces
from stable_baselines3.common.vec_env import DummyVecEnv, VecEnv
from torch import Tensor

from rltransformers.agents import DecisionTransformer, GTrXLDQN, GTrXLPPO, GTrXLVMPO
from rltransformers.backbone import State
from rltransformers.core.checkpoint import load_checkpoint, save_checkpoint
from rltransformers.core.errors import ConfigError
from rltransformers.policies.actor_critic import GTrXLPolicy
from tests.agents.test_gtrxl_ppo_checkpoint import assert_equal, everything
from tests.agents.tiny_envs import AnySpace

BACKBONE = {"preset": "gtrxl", "width": 8, "layers": 1, "heads": 2, "memory": 4}
SEEN = spaces.Dict({"vector": spaces.Box(-1.0, 1.0, (3,)), "counts": spaces.Box(0, 99, (2,), np.int16)})
ACTIONS: dict[str, gym.Space[Any]] = {
    "discrete": spaces.Discrete(3, start=5),
    "multi-discrete": spaces.MultiDiscrete([2, 3], start=[1, 4]),
    "multi-binary": spaces.MultiBinary(3),
    "box": spaces.Box(np.array([[-1.0, 0.0]]), np.array([[1.0, 0.1]]), dtype=np.float64),
}
OLD_NAMES = {"action_head.linear.weight": "action_net.weight", "action_head.linear.bias": "action_net.bias"}


def environments(space: gym.Space[Any]) -> VecEnv:
    env = DummyVecEnv([partial(AnySpace, SEEN, space)] * 2)
    env.seed(0)
    return env


def old_action(leaves: dict[str, Tensor], space: gym.Space[Any]) -> Tensor:
    """Classes from 0, bits and Boxes as float32, Boxes flat."""
    value = leaves[""]
    if isinstance(space, spaces.Box):
        return value.flatten(-2).float()
    return value.float() if isinstance(space, spaces.MultiBinary) else value - torch.as_tensor(space.start)  # type: ignore[attr-defined]


def old_layout(tensors: dict[str, Any], space: gym.Space[Any], parameters: list[str]) -> dict[str, Any]:
    """A checkpoint of today as it was written then."""
    weights: dict[str, Tensor] = dict(tensors["policy"])
    moments = dict(tensors["optimizer"]["state"])
    names = list(parameters)
    deviation = "action_head.leaves.0.log_std"
    old_weights: dict[str, Tensor] = {}
    if deviation in weights:
        old_weights["log_std"] = weights.pop(deviation)
        names.remove(deviation)
        names.insert(0, deviation)
    for weight, value in weights.items():
        old_weights[OLD_NAMES.get(weight, weight)] = value

    def with_old(part: dict[str, Any], *keys: str) -> dict[str, Any]:
        return part | {key: old_action(part[key], space) for key in keys}

    segment = with_old(tensors["segment"], "actions", "previous_action")
    observed = segment["observations"]
    segment["observations"] = observed | {"counts": observed["counts"].long()}
    segment["memory"] = with_old(segment["memory"], "previous_action")
    return tensors | {
        "policy": old_weights,
        "optimizer": tensors["optimizer"]
        | {"state": {index: moments[parameters.index(name)] for index, name in enumerate(names)}},
        "acting": with_old(tensors["acting"], "previous_action"),
        "segment": segment,
    }


@pytest.mark.parametrize("name", ACTIONS)
def test_a_run_goes_on_from_an_old_checkpoint_as_from_a_new_one(name: str, tmp_path: Path) -> None:
    space = ACTIONS[name]
    policy = {"backbone": BACKBONE, "previous_action": True, "shared_backbone": False, "head_width": 5}
    model = GTrXLPPO(
        "GTrXLPolicy", environments(space), n_steps=6, n_epochs=2, seed=0, device="cpu",
        memory_refresh="epoch", policy_kwargs=policy,
    ).learn(24)  # fmt: skip
    model.save(tmp_path / "new")
    checkpoint = load_checkpoint(tmp_path / "new", "GTrXLPPO")
    parameters = [each for each, _ in model.policy.named_parameters()]
    old = old_layout(checkpoint.tensors, space, parameters)
    assert "action_net.weight" in old["policy"] and isinstance(old["acting"]["previous_action"], Tensor)
    save_checkpoint(tmp_path / "old", "GTrXLPPO", checkpoint.settings, old)
    found, expected = (GTrXLPPO.load(tmp_path / file, env=environments(space), device="cpu") for file in ("old", "new"))
    assert_equal(everything(found), everything(expected))
    for loaded in (found, expected):
        loaded.learn(12, reset_num_timesteps=False)
    assert_equal(everything(found), everything(expected))


@pytest.mark.parametrize("kind", [GTrXLPPO, GTrXLVMPO])
def test_a_box_of_a_file_without_units_has_those_of_the_environment(kind: Any, tmp_path: Path) -> None:
    space, kwargs = spaces.Box(0.0, 100.0, (2,)), {"backbone": BACKBONE, "previous_action": True}
    model = kind("GTrXLPolicy", environments(space), n_steps=6, seed=0, device="cpu", policy_kwargs=kwargs)
    networks = [model.policy, *([model.target] if kind is GTrXLVMPO else [])]
    for network in networks:
        leaf = network.action_head.leaves[0]
        leaf.centre.zero_()
        leaf.scale.fill_(1.0)
    model.learn(24).save(tmp_path / "new")
    model.policy.save(tmp_path / "policy.zip")
    for file, name in (("new.zip", model.kind), ("policy.zip", "GTrXLPolicy")):
        held = load_checkpoint(tmp_path / file, name)
        tensors = dict(held.tensors)
        for part in ("policy", "target"):
            if part in tensors:
                units = [key for key in tensors[part] if key.endswith((".centre", ".scale"))]
                assert len(units) == 2
                tensors[part] = {key: value for key, value in tensors[part].items() if key not in units}
        save_checkpoint(tmp_path / f"old-{file}", name, held.settings, tensors)
    found, expected = (kind.load(tmp_path / file, env=environments(space), device="cpu") for file in ("old-new", "new"))
    for loaded in (found, expected):
        loaded.learn(12, reset_num_timesteps=False)
    assert_equal(everything(found), everything(expected))
    policy = GTrXLPolicy.load(tmp_path / "old-policy.zip", device="cpu")
    assert_equal(policy.state_dict(), model.policy.state_dict())


def test_a_run_goes_on_from_memories_that_were_no_rings(tmp_path: Path) -> None:
    """Rows with their keys, oldest first, as they were written before acting had rings."""
    space = ACTIONS["discrete"]
    policy = {"backbone": BACKBONE, "shared_backbone": False}
    model = GTrXLPPO(
        "GTrXLPolicy", environments(space), n_steps=7, n_epochs=2, seed=0, device="cpu", policy_kwargs=policy
    ).learn(28)
    model.save(tmp_path / "new")
    checkpoint = load_checkpoint(tmp_path / "new", "GTrXLPPO")
    acting = dict(checkpoint.tensors["acting"])
    for name, part in zip(("actor", "critic"), model.policy.backbones(), strict=True):
        acting[name] = part.backbone.in_order(State(dict(acting[name]))).tensors
        assert set(acting[name]) == {"position", "layer0.hidden", "layer0.keys"}
    save_checkpoint(tmp_path / "old", "GTrXLPPO", checkpoint.settings, checkpoint.tensors | {"acting": acting})
    weights = []
    for file in ("old", "new"):
        env = environments(space)
        env.reset()  # both runs go on in the same episodes
        loaded = GTrXLPPO.load(tmp_path / file, env=env, device="cpu", force_reset=False)
        weights.append(loaded.learn(14, reset_num_timesteps=False).policy.state_dict())
    assert_equal(*weights)


IDLE = {"ff": "none", "ff_width": 9, "pattern": ["full", {"name": "band", "window": 2}]}
PLAIN = {"ff": "none", "pattern": ["full"]}
"""What ``IDLE`` comes to in one layer."""


def test_settings_without_effect_that_an_older_version_took_are_taken_from_its_files(tmp_path: Path) -> None:
    space = ACTIONS["discrete"]
    kwargs, idle = ({"backbone": BACKBONE | more} for more in (PLAIN, IDLE))
    model = GTrXLPPO("GTrXLPolicy", environments(space), n_steps=6, device="cpu", policy_kwargs=kwargs)
    model.learn(12).save(tmp_path / "agent")
    model.policy.save(tmp_path / "policy")
    for name, kind in (("agent", "GTrXLPPO"), ("policy", "GTrXLPolicy")):
        held = load_checkpoint(tmp_path / f"{name}.zip", kind)
        stored = held.settings["policy_kwargs"] | idle
        save_checkpoint(tmp_path / name, kind, held.settings | {"policy_kwargs": stored}, held.tensors)

    loaded = GTrXLPPO.load(tmp_path / "agent", env=environments(space), device="cpu")
    assert_equal(loaded.policy.state_dict(), model.policy.state_dict())
    loaded.learn(12, reset_num_timesteps=False).save(tmp_path / "again")
    GTrXLPPO.load(tmp_path / "again", device="cpu")
    assert_equal(GTrXLPolicy.load(tmp_path / "policy.zip", device="cpu").state_dict(), model.policy.state_dict())
    for make in (partial(GTrXLPPO, "GTrXLPolicy", environments(space)), partial(GTrXLPPO.load, tmp_path / "again")):
        with pytest.raises(ConfigError, match="pattern lists 2 choices"):  # whoever writes them now hears of it
            make(device="cpu", policy_kwargs=idle)


def test_the_file_of_a_decision_transformer_may_hold_settings_without_effect(tmp_path: Path) -> None:
    episodes = [{"observations": np.zeros((3, 2)), "actions": [0, 1], "rewards": [1.0, 1.0]}]
    backbone: dict[str, Any] = {"width": 8, "heads": 2, "layers": 1}
    kwargs = {"backbone": backbone | PLAIN}
    model = DecisionTransformer("DTPolicy", episodes, context_length=3, policy_kwargs=kwargs, seed=0, device="cpu")
    model.save(tmp_path / "agent")
    held = load_checkpoint(tmp_path / "agent.zip", "DecisionTransformer")
    stored = held.settings["backbone"] | IDLE
    save_checkpoint(tmp_path / "agent", "DecisionTransformer", held.settings | {"backbone": stored}, held.tensors)
    loaded = DecisionTransformer.load(tmp_path / "agent", device="cpu")
    assert_equal(loaded.policy.state_dict(), model.policy.state_dict())


def test_settings_that_had_another_name_are_those_of_today(tmp_path: Path) -> None:
    env, kwargs = environments(ACTIONS["discrete"]), {"backbone": BACKBONE}
    vmpo = GTrXLVMPO("GTrXLPolicy", env, target_update_interval=7, n_steps=6, device="cpu", policy_kwargs=kwargs)
    dqn = GTrXLDQN("GTrXLQPolicy", env, burn_in=3, segment_length=6, device="cpu", policy_kwargs=kwargs)
    for model, old, new in ((vmpo, "target_update", "target_update_interval"), (dqn, "context_length", "burn_in")):
        model.save(tmp_path / "agent")
        held = load_checkpoint(tmp_path / "agent.zip", model.kind)
        settings = dict(held.settings)
        settings[old] = settings.pop(new)
        save_checkpoint(tmp_path / "agent", model.kind, settings, held.tensors)
        loaded = type(model).load(tmp_path / "agent", device="cpu")
        assert getattr(loaded, new) == getattr(model, new)
