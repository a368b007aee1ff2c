"""Collecting and learning with thousands of environments in tensors on a device: steps per second of an agent."""

from collections.abc import Iterator
from time import perf_counter
from typing import Any

from benchmarks.harness import Row, Stopwatch, absolute, parameters
from rltransformers.agents import GTrXLPPO
from rltransformers.envs import make_vec_env
from rltransformers.policies.steps import Acting
from rltransformers.training.update import UpdateMode

TASK = "CartPole-v1"


def loop(
    backbone: dict[str, Any],
    envs: int,
    steps: int,
    goal: int,
    repetitions: int,
    device: str,
    updates: UpdateMode = "eager",
) -> Iterator[Row]:
    """Steps per second of whole iterations, and of their rollouts, which should reach the goal."""
    acting: Acting = "eager" if device == "cpu" else "compiled"  # a C++ compiler of a CPU tells nothing of a GPU
    env = make_vec_env(TASK, envs, seed=0, processes="tensors", env_kwargs={"device": device})
    model = GTrXLPPO(
        "GTrXLPolicy", env, n_steps=steps, n_epochs=1, target_kl=None, acting=acting, updates=updates, seed=0,
        device=device, policy_kwargs={"backbone": backbone},
    )  # fmt: skip
    watch, whole = Stopwatch(), []
    for _ in range(2 + repetitions):  # programs are made in the first, and met again in the second
        start = perf_counter()
        model.learn(envs * steps, callback=watch, reset_num_timesteps=False)
        whole.append(perf_counter() - start)
    setting = (
        f"{TASK} in tensors, {envs:,} envs x {steps} steps, one epoch of four minibatches, width {backbone['width']},"
        f" layers {backbone['layers']}, memory {backbone['memory']}, acting {acting}, updates {updates};"
        f" {parameters(model.policy):,} parameters"
    )
    end = f"width {backbone['width']}, {envs:,} envs{'' if updates == 'eager' else ', compiled updates'}"
    for name, seconds in (("loop", whole), ("rollout", watch.rollouts)):
        rates = [envs * steps / each for each in seconds[-repetitions:]]
        yield absolute(f"{name}, {end}", setting, "steps/s", rates, note=f"goal {goal:,}" if name == "rollout" else "")
