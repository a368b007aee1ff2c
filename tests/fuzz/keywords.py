"""Keywords of all agents: one or two of them with a hostile value. What is accepted must train to finite weights."""

import inspect
import math
import random
from collections.abc import Callable, Mapping
from functools import cache
from typing import Any

import numpy as np
from stable_baselines3.common.vec_env import VecEnv
from torch import nn

from rltransformers.agents import DecisionTransformer, GTrXLPPO, GTrXLVMPO
from rltransformers.data import Trajectories, record
from rltransformers.envs.make import make_vec_env
from tests.fuzz.probe import HOSTILE, Probe, WrongError, shown

TASK = "rltransformers/CueRecall-v0"
DELAY = {"delay": 2}
BACKBONE = {"width": 8, "heads": 2, "layers": 1, "memory": 3}
PPO: dict[str, Any] = {"n_steps": 4, "n_epochs": 1, "seed": 0, "device": "cpu", "policy_kwargs": {"backbone": BACKBONE}}
DT: dict[str, Any] = {
    "context_length": 3,
    "batch_size": 4,
    "seed": 0,
    "device": "cpu",
    "policy_kwargs": {"backbone": BACKBONE},
}
ONLINE: dict[str, Callable[..., Any]] = {"gtrxl_ppo": GTrXLPPO, "gtrxl_vmpo": GTrXLVMPO}
CALLS: dict[str, dict[str, tuple[str, ...]]] = {
    "gtrxl_ppo": {
        "learn": ("total_timesteps", "log_interval", "tb_log_name", "reset_num_timesteps", "progress_bar", "callback"),
        "predict": ("deterministic", "reward", "episode_start", "state", "observation"),
    },
    "gtrxl_vmpo": {
        "learn": ("total_timesteps", "tb_log_name", "callback"),
        "predict": ("deterministic", "reward", "state"),
    },
    "decision_transformer": {
        "learn": ("gradient_steps", "log_interval", "tb_log_name", "progress_bar", "callback"),
        "predict": ("deterministic", "reward", "episode_start", "state", "observation", "target_return"),
        "evaluate": ("target_returns", "episodes", "num_envs", "seed", "env_kwargs", "wrappers", "deterministic",
                     "acting_mode", "env"),
    },
}  # fmt: skip
# An independent table: which keywords take no number, which may be None, which may be false or true.
NONE_ALLOWED = {
    "batch_size", "clip_range_vf", "target_kl", "gradient_window", "popart", "tensorboard_log", "policy_kwargs", "seed",
    "tb_log_name", "log_interval", "warmup_steps", "return_head", "decide_every",
    "decay_steps", "return_scale", "callback", "reward", "episode_start", "state", "target_return", "target_returns",
    "env_kwargs", "acting", "acting_mode",
}  # fmt: skip
BOOLEANS = {
    "normalize_advantage", "delayed_reward", "normalize_observations", "whole_episodes", "reset_num_timesteps",
    "progress_bar", "deterministic",
}  # fmt: skip
TEXTS = {"memory_refresh", "mode", "acting", "acting_mode", "device", "tensorboard_log", "tb_log_name", "env"}
OTHERS = {"policy_kwargs", "callback", "state", "env_kwargs", "wrappers", "observation", "episode_start", "reward"}
LISTS = {"target_returns", "target_return"}
SCHEDULES = {"learning_rate", "clip_range", "clip_range_vf", "ent_coef", "barrier_coef"}
HUGE = (10**12, 2**63, 10**400)


def draw(chance: random.Random) -> Probe:
    """One call."""
    agent = chance.choice((*ONLINE, "decision_transformer"))
    if chance.random() < 0.6:
        return _constructor(agent, chance)
    method = chance.choice(sorted(CALLS[agent]))
    name, value = chance.choice(CALLS[agent][method]), chance.choice(HOSTILE)
    return Probe(
        f"{agent}.{method}({name}={shown(value)})",
        lambda: _call(agent, method, {name: value}),
        _must_refuse(name, value),
        (name,),
    )


def _constructor(agent: str, chance: random.Random) -> Probe:
    kind: Callable[..., Any] = (ONLINE | {"decision_transformer": DecisionTransformer})[agent]
    known = [name for name in inspect.signature(kind.__init__).parameters if name[0] != "_"]
    known = [name for name in known if name not in ("self", "policy", "env", "dataset", "verbose")]
    changed: dict[str, Any] = {}
    for _ in range(chance.choice((1, 1, 1, 2))):
        name = chance.choice(known)
        value = chance.choice(HOSTILE)
        if name in SCHEDULES and chance.random() < 0.4:
            value = {"start": value, "end": chance.choice((0.1, value))}
        if name == "policy_kwargs" and chance.random() < 0.5:
            value = {chance.choice(("backbone", "log_std_init", "share_backbone", "x")): value}
        changed[name] = value
    refused = any(_must_refuse(name, value) for name, value in changed.items()) or None
    return Probe(
        f"{agent}({', '.join(f'{name}={shown(value)}' for name, value in changed.items())})",
        lambda: _train(agent, changed),
        refused,
        (*changed, "backbone") if "policy_kwargs" in changed else tuple(changed),
    )


def _must_refuse(name: str, value: Any) -> bool | None:
    """True where no reading of the value makes sense; None elsewhere."""
    if value is None:
        return None if name in NONE_ALLOWED else True
    if name in OTHERS:
        return None
    if isinstance(value, bool):
        return None if name in BOOLEANS else True
    if name in BOOLEANS:
        return True
    if isinstance(value, str):
        return None if name in TEXTS else True
    if name in TEXTS:
        return True if isinstance(value, float) else None
    if isinstance(value, Mapping):
        return None if name in SCHEDULES else True
    if isinstance(value, list | tuple) and name in LISTS:
        return None
    if not isinstance(value, int | float):
        return True
    return True if isinstance(value, float) and not math.isfinite(value) else None


@cache
def data() -> Trajectories:
    """Random walks, recorded once."""
    return record(TASK, "random", episodes=4, env_kwargs=DELAY, seed=0)


@cache
def _env() -> VecEnv:
    return make_vec_env(TASK, 2, seed=0, env_kwargs=DELAY)


def build(agent: str, **changed: Any) -> Any:
    """A small agent with the keywords ``changed``."""
    if agent in ONLINE:
        return ONLINE[agent]("GTrXLPolicy", _env(), **{**PPO, **changed})
    return DecisionTransformer("DTPolicy", data(), **{**DT, **changed})


def _train(agent: str, changed: Mapping[str, Any]) -> None:
    model = build(agent, **changed)
    if any(isinstance(value, int) and value > 1000 for value in changed.values()):
        return  # a count that is honest, but not for a test
    model.learn(16 if agent in ONLINE else 2)
    check_finite(model.policy)


def check_finite(module: nn.Module) -> None:
    """Every parameter is finite."""
    for name, parameter in module.named_parameters():
        if not parameter.isfinite().all():
            raise WrongError(f"the weights {name} are not finite after training")


def _call(agent: str, method: str, changed: dict[str, Any]) -> None:
    model = build(agent)
    if method == "learn":
        length = {"total_timesteps": 8} if agent in ONLINE else {"gradient_steps": 1}
        if any(changed.get(name) in HUGE for name in length):
            return
        model.learn(**{**length, **changed})
        check_finite(model.policy)
    elif method == "predict":
        observation = np.zeros((2, *model.observation_space.shape), model.observation_space.dtype)
        action, _ = model.predict(**{"observation": observation, **changed})
        if not np.isfinite(np.asarray(action, np.float64)).all():
            raise WrongError(f"the action {action} is not finite")
    else:
        if changed.get("episodes") in HUGE or changed.get("num_envs") in HUGE:
            changed = {**changed, "episodes": 2}
        results = model.evaluate(**{"env": TASK, "episodes": 2, "env_kwargs": DELAY, "num_envs": 2, **changed})
        if not all(np.isfinite(result.returns).all() for result in results):
            raise WrongError("a return is not finite")
