"""Whole agents on a device: trained there, judged there, saved, loaded on the CPU, and trained on."""

import tempfile
from collections.abc import Callable, Iterator
from pathlib import Path
from time import perf_counter
from typing import Any

import numpy as np
from stable_baselines3.common.evaluation import evaluate_policy

from benchmarks.harness import Row, absolute
from rltransformers.agents import DecisionTransformer, GTrXLDQN, GTrXLPPO, GTrXLSAC, GTrXLVMPO
from rltransformers.data import record
from rltransformers.envs import make_vec_env

GTRXL = {"preset": "gtrxl", "width": 32, "layers": 1, "heads": 2, "memory": 16}
DECISION = {"preset": "decision_transformer", "width": 32, "layers": 2, "heads": 1}
ENVIRONMENTS, DELAY = 16, 8
DOOR, ROOMS = "rltransformers/KeyToDoor-v0", {"size": 3, "phase_steps": 4}
SEGMENTS = {"n_steps": 64, "learning_rate": 1e-3}
# A greedy action belongs to the largest of some numbers: on another device, rounding may turn a near tie.
ALIKE, NEAR = ">= 0.99", "<= 0.02"


def online(agent: type[Any], policy: str, options: dict[str, Any], steps: int, device: str) -> Iterator[Row]:
    """An online agent on CueRecall: its success, and that it is the same agent on the CPU."""
    env = make_vec_env("rltransformers/CueRecall-v0", ENVIRONMENTS, seed=0, env_kwargs={"delay": DELAY})
    model = agent(policy, env, policy_kwargs={"backbone": GTRXL}, seed=0, device=device, **options)
    given = ", ".join(f"{name} {value}" for name, value in options.items())
    setting = f"CueRecall, delay {DELAY}, {ENVIRONMENTS} envs, {steps:,} steps, {given}, device {device}"
    start = perf_counter()
    model.learn(steps)
    yield absolute(f"{agent.__name__}, learn", setting, "s", [perf_counter() - start])
    success, _ = evaluate_policy(model, env, n_eval_episodes=100, warn=False)
    yield absolute(f"{agent.__name__}, success", setting, "of 100 episodes, greedy", [float(np.mean(success))])
    with tempfile.TemporaryDirectory() as folder:
        path = Path(folder, "model.zip")
        model.save(path)
        share = equal_actions(model, agent.load(path, device="cpu", acting="eager"))
        yield absolute(f"{agent.__name__}, on the CPU", setting, "share of equal actions", [share], ALIKE)
        again = agent.load(path, env=env, device=device)
        before = again.num_timesteps
        again.learn(steps // 10, reset_num_timesteps=False)
        yield absolute(f"{agent.__name__}, goes on", setting, "steps more", [again.num_timesteps - before], ">= 1")


def equal_actions(one: Any, other: Any, steps: int = 100) -> float:
    """How often two agents choose the same on the same random observations, each with its memory."""
    generator, starts, equal = np.random.default_rng(0), np.ones(ENVIRONMENTS, bool), []
    memory, others = None, None
    for _ in range(steps):
        observations = generator.random((ENVIRONMENTS, *one.observation_space.shape), np.float32)
        action, memory = one.predict(observations, memory, starts, deterministic=True)
        its, others = other.predict(observations, others, starts, deterministic=True)
        starts = generator.random(ENVIRONMENTS) < 0.1
        equal.append(action == its)
    return float(np.mean(equal))


def offline(options: dict[str, Any], updates: int, device: str) -> Iterator[Row]:
    """A Decision Transformer on KeyToDoor: what it reaches, and that it is the same agent on the CPU."""
    walks = record(DOOR, "random", episodes=1000, num_envs=20, env_kwargs=ROOMS, seed=0)
    values: dict[str, Any] = {"context_length": 12, "learning_rate": 3e-3, "policy_kwargs": {"backbone": DECISION}}
    model = DecisionTransformer("DTPolicy", walks, seed=0, device=device, **values, **options)
    given = "".join(f", {name} {value}" for name, value in options.items())
    setting = f"KeyToDoor, 1,000 random walks, {updates:,} updates{given}, device {device}"
    start = perf_counter()
    model.learn(updates)
    yield absolute("DecisionTransformer, learn", setting, "s", [perf_counter() - start])
    yield absolute("DecisionTransformer, asked for 1", setting, "mean return", [reached(model)])
    with tempfile.TemporaryDirectory() as folder:
        path = Path(folder, "model.zip")
        model.save(path)
        difference = abs(reached(DecisionTransformer.load(path, device="cpu", acting="eager")) - reached(model))
        yield absolute("DecisionTransformer, on the CPU", setting, "difference of returns", [difference], NEAR)
        again = DecisionTransformer.load(path, dataset=walks, device=device)
        again.learn(updates // 10)
        yield absolute("DecisionTransformer, trained on", setting, "mean return", [reached(again)])


def reached(model: DecisionTransformer) -> float:
    """Its mean return in a hundred episodes of which 1 is asked."""
    return model.evaluate(DOOR, target_returns=1.0, episodes=100, num_envs=50, env_kwargs=ROOMS, seed=1)[0].mean


AGENTS: dict[str, Callable[[int, int, str], Iterator[Row]]] = {
    "GTrXLPPO": lambda steps, _, device: online(GTrXLPPO, "GTrXLPolicy", SEGMENTS, steps, device),
    "GTrXLVMPO": lambda steps, _, device: online(GTrXLVMPO, "GTrXLPolicy", SEGMENTS, steps, device),
    "GTrXLDQN": lambda steps, _, device: online(GTrXLDQN, "GTrXLQPolicy", {"scale_rewards": False}, steps, device),
    "GTrXLSAC": lambda steps, _, device: online(GTrXLSAC, "GTrXLSACPolicy", {"learning_rate": 1e-3}, steps, device),
    "DecisionTransformer": lambda _, updates, device: offline({}, updates, device),
    "DecisionTransformer, critic": lambda _, updates, device: offline({"critic": "qcs"}, updates, device),
}
# Steps as machine code or a CUDA graph; on the CPU half a minute of a C++ compiler, which tells nothing of a GPU.
COMPILED: dict[str, Callable[[int, int, str], Iterator[Row]]] = {
    "GTrXLPPO, compiled": lambda steps, _, device: online(
        GTrXLPPO, "GTrXLPolicy", {**SEGMENTS, "acting": "compiled"}, steps, device
    ),
    "DecisionTransformer, compiled": lambda _, updates, device: offline({"acting": "compiled"}, updates, device),
}
