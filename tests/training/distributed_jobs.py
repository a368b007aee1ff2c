"""What the tests of several processes let them do: small trainings, whose weights come back as numpy arrays."""

import importlib
from functools import partial
from typing import Any

import numpy as np
import torch
from stable_baselines3.common.running_mean_std import RunningMeanStd
from stable_baselines3.common.vec_env import VecEnv, VecMonitor, VecNormalize, sync_envs_normalization

from rltransformers.agents import DecisionTransformer, GTrXLDQN, GTrXLPPO, GTrXLSAC, GTrXLVMPO
from rltransformers.core.world import current_sharing
from rltransformers.envs import make_vec_env
from rltransformers.envs.vector import SerialVecEnv
from rltransformers.training.normalization import of_observations, share_statistics
from rltransformers.training.online.online_agent import OnlineAgent
from tests.agents.test_decision_transformer import Losses, make, record
from tests.agents.tiny_envs import Ramble, Stroll, Walk

BACKBONE = {"preset": "gtrxl", "width": 8, "layers": 2, "heads": 2, "memory": 5}
AGENTS: dict[str, type[OnlineAgent]] = {"ppo": GTrXLPPO, "vmpo": GTrXLVMPO, "dqn": GTrXLDQN, "sac": GTrXLSAC}


class Ends(Losses):
    """Ends training in its ninth call, in one process."""

    def __init__(self, rank: int) -> None:
        super().__init__()
        self.rank = rank

    def _on_step(self) -> bool:
        if "metrics" in self.locals:
            super()._on_step()
        return not (self.n_calls == 9 and current_sharing().rank == self.rank)


def environments(task: str, num_envs: int, normalize: bool) -> VecEnv:
    """This process's share of ``num_envs`` environments."""
    share = current_sharing().share_of(num_envs, "num_envs")
    env: VecEnv
    tasks = {"cue": ("CueRecall", {"delay": 3}), "maze": ("DistractorTMaze", {"corridor": 4, "limit": 9})}
    if task in tasks:  # of the maze every step has a reward
        name, options = tasks[task]
        env = make_vec_env(f"rltransformers/{name}-v0", share, env_kwargs=options)
    else:
        kinds: dict[str, Any] = {"walk": Walk, "stroll": Stroll, "ramble": Ramble, "narrow": partial(Walk, bound=1.0)}
        made = kinds[task]
        env = VecMonitor(SerialVecEnv([lambda: made(truncates=True)] * share))
    return VecNormalize(env) if normalize else env


def online(
    agent: str,
    task: str,
    num_envs: int,
    updates: int,
    normalize: bool = False,
    backbone: dict[str, Any] | None = None,
    policy: dict[str, Any] | None = None,
    save: str | None = None,
    ends_in: int | None = None,
    **settings: Any,
) -> dict[str, Any]:
    """Train so many updates, or until process ``ends_in`` ends it; what came out, which ``save`` keeps."""
    env = environments(task, num_envs, normalize)
    kwargs = {"backbone": BACKBONE | (backbone or {})} | (policy or {})
    model: Any = AGENTS[agent](next(iter(AGENTS[agent].policy_aliases)), env, seed=3, policy_kwargs=kwargs, **settings)
    start = flat(model)
    steps = model.train_freq.frequency if agent in ("dqn", "sac") else model.n_steps
    model.learn(updates * steps * num_envs, None if ends_in is None else Ends(ends_in))
    if save is not None:
        model.save(save)
    return outcome(model) | {"start": start}


def evaluation_statistics(steps: list[int]) -> dict[str, Any]:
    """What an evaluation counts that takes over the statistics of training, and so many ``steps`` of its own."""
    env, evaluation = environments("cue", 4, True), environments("cue", 2, True)
    assert isinstance(env, VecNormalize) and isinstance(evaluation, VecNormalize)
    share_statistics(current_sharing(), env)
    env.reset()
    sync_envs_normalization(env, evaluation)
    kinds = {type(evaluation.obs_rms), type(evaluation.ret_rms)}
    assert kinds == {RunningMeanStd}, kinds  # before any step, which would wait for the other process
    evaluation.reset()
    for _ in range(steps[current_sharing().rank]):
        evaluation.step(np.zeros(1, int))
    counts = {name: of_observations(each)[""].count for name, each in (("training", env), ("evaluation", evaluation))}
    env.reset()  # which both processes still do together
    return counts | {"later": of_observations(env)[""].count}


def resumed(path: str, agent: str, task: str, num_envs: int, steps: int, normalize: bool = False) -> dict[str, Any]:
    """Go on with a saved model until ``steps`` steps are done; what came out."""
    model: Any = AGENTS[agent].load(path, environments(task, num_envs, normalize), force_reset=None)
    assert model.is_in_episodes
    model.learn(steps - model.num_timesteps, reset_num_timesteps=False)
    return outcome(model)


def import_late() -> None:
    """Import what making an optimizer imports."""
    importlib.import_module("torch.distributed.nn")


def rows(owners: list[int], takers: list[int]) -> dict[str, Any]:
    """Let rows that say which they are change hands, and come together again with a gradient."""
    sharing, own = current_sharing(), torch.tensor(owners) == current_sharing().rank
    numbers = torch.arange(len(owners))[own]
    held = {
        "number": numbers,
        "flag": numbers % 2 == 1,
        "none": None,
        "pair": torch.stack([numbers, -numbers], 1).half(),
    }
    taken = sharing.all_to_all(held, torch.tensor(owners), torch.tensor(takers))
    leaf = taken["number"].double().requires_grad_()
    whole = sharing.gather({"square": leaf.square()}, torch.tensor(takers))["square"]
    (whole.sum() * sharing.sum(leaf.sum())).backward()
    found = {name: value.numpy() for name, value in taken.items() if value is not None}
    return found | {
        "whole": whole.detach().numpy(),
        "gradient": np.zeros(0) if leaf.grad is None else leaf.grad.numpy(),
    }


def played(updates: int) -> dict[str, Any]:
    """Learn from episodes of its own; what came out."""
    model = make(record(action="discrete"), learning_rate=1e-3)
    kwargs = {"action": "discrete"}
    model.learn_online("test/Drift-v0", 1, updates_per_episode=updates, num_envs=2, env_kwargs=kwargs)
    assert model._replay is not None
    rewards = model._replay.data.rewards
    return {"weights": flat(model), "rewards": np.array(rewards), "steps": model.online_timesteps}


def outcome(model: Any) -> dict[str, Any]:
    """Weights, moments of Adam or momenta of Muon, counters, episodes and statistics of a model."""
    moments = [each.get("exp_avg", each.get("momentum_buffer")) for each in model.policy.optimizer.state.values()]
    found = {
        "weights": flat(model),
        "moments": np.concatenate([each.numpy().ravel() for each in moments]),
        "steps": model.num_timesteps,
        "updates": model._n_updates,
        "returns": [float(each["r"]) for each in model.ep_info_buffer],
        "lengths": [int(each["l"]) for each in model.ep_info_buffer],
        "gradients": len(model.policy.optimizer.state_dict()["state"]),
    }
    if model._scale is not None:
        moments = model._scale.moments
        found["scale"] = np.array([moments.mean, moments.var, moments.count])
    normalizer = model.get_vec_normalize_env()
    if normalizer is not None:
        found["normalizer"] = np.concatenate(
            [
                np.ravel(each)
                for rms in (normalizer.obs_rms, normalizer.ret_rms)
                for each in (rms.mean, rms.var, rms.count)
            ]
        )
    if hasattr(model, "multipliers"):
        found["multipliers"] = np.concatenate(
            [each.detach().numpy().ravel() for each in model.multipliers.parameters()]
        )
    return found


def flat(model: Any) -> np.ndarray:
    """All weights and buffers of a policy."""
    return torch.cat([each.double().flatten() for each in model.policy.state_dict().values()]).numpy()


def offline(
    updates: int, ends_in: int | None = None, losses: dict[str, Any] | None = None, **settings: Any
) -> dict[str, Any]:
    """Train a Decision Transformer on a few recorded episodes, in double precision.

    So many updates, unless the callback of process ``ends_in`` ends it.
    """
    backbone = {"width": 16, "layers": 2, "heads": 2, "dropout": 0.0, "losses": losses or {}}
    model = make(record(), learning_rate=1e-2, policy_kwargs={"backbone": backbone}, **settings)
    double(model)
    start = flat(model)
    seen = Losses() if ends_in is None else Ends(ends_in)
    model.learn(updates, seen, log_interval=2)
    found = {"start": start, "weights": flat(model), "losses": np.array(seen.values)}
    moments = model._optimizer.state_dict()["state"].values()
    found["moments"] = np.concatenate([each["exp_avg"].numpy().ravel() for each in moments])
    if model._critic is not None:
        found["critic"] = np.concatenate([each.numpy().ravel() for each in model._critic.slow.state_dict().values()])
    if model._entropy is not None:
        found["temperature"] = model._entropy.temperature.numpy()
    return found


def double(model: DecisionTransformer) -> None:
    """Let weights and data be float64.

    The gradient of a key's bias is 0 but for rounding, which Adam scales up to whole steps where it is not below its
    epsilon of 1e-8: in float32 no two orders of summation give one result.
    """
    sampler, critic = model._sampler, model._critic
    assert sampler is not None
    for module in (model.policy, *(() if critic is None else (critic.slow, critic.average))):
        module.double()
    for leaves in (sampler._observations, sampler._actions):
        leaves.update({path: leaf.double() for path, leaf in leaves.items() if leaf.is_floating_point()})
    sampler._rewards, sampler._return_to_go = sampler._rewards.double(), sampler._return_to_go.double()
