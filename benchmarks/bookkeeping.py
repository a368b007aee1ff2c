"""Cost of a vector step of online learning beside the policy, now and at an earlier commit.

``python -m benchmarks.bookkeeping COMMIT`` prints microseconds per vector step of 16 environments, the lowest
of many rollouts in which the two versions take turns. The policy's step is replaced by actions from a table, so that
environments, checks, callbacks and the rollout buffer are left. With ``--worker`` this file is one of the versions.
"""

import sys
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

import gymnasium
import numpy as np

ENVS, STEPS = 16, 128
TASKS = ("cue_recall", "cartpole", "cartpole_sb3")
"""Our vectorized CueRecall, CartPole by our ``make_vec_env``, and by that of Stable-Baselines3 (a ``DummyVecEnv``)."""
PARTS = ("environments", "observations", "buffer", "callback", "episodes", "actions")
"""The whole of ``env.step``; checks of observations and their tensors; rollout buffer with advantages; the calls of the
callback; reported episodes; actions as arrays."""


def main(commit: str, rounds: int = 60) -> None:
    """Print a row per task and part: microseconds then, now, and their ratio.

    "simulator" is what others wrote: Gymnasium's CartPole, for ``cartpole_sb3`` with ``DummyVecEnv`` and ``Monitor``.
    """
    from benchmarks import past

    with past.checkout(commit) as folder:
        for task in TASKS:
            program = Path(__file__)
            workers = [past.Worker(place, "--worker", task, program=program) for place in (folder, past.ROOT)]
            answers = [
                [[float(number) for number in worker.ask().split()] for worker in workers] for _ in range(rounds)
            ]
            for one in workers:
                one.close()
            lowest = np.min(answers, axis=0)  # [version, simulator, whole, part, ...]
            simulator, whole, parts = lowest[:, 0], lowest[:, 1], lowest[:, 2:]
            rows = {"whole": whole, "simulator": simulator, "whole without simulator": whole - simulator}
            parts[:, 0] -= simulator
            rows |= dict(zip(PARTS, parts.T, strict=True)) | {"other": whole - simulator - parts.sum(1)}
            for name, (then, now) in rows.items():
                print(f"{task:13} {name:24} {then:7.1f} {now:7.1f} {now / then if then else 1.0:6.2f}", flush=True)


def worker(task: str) -> None:
    """Answer every line with microseconds per vector step: of the simulator, of all, and of ``PARTS``."""
    import torch

    torch.set_num_threads(1)
    model = agent(task)
    _, callback = model._setup_learn(10**9, None)
    callback.on_training_start(locals(), globals())

    def rollout() -> float:
        began = time.process_time()
        model.collect_rollouts(model.env, callback, model.rollout_buffer, STEPS)
        return 1e6 * (time.process_time() - began) / STEPS

    rollout()
    simulate = simulator(task)
    print("ready", flush=True)
    for _ in sys.stdin:
        whole = min(rollout() for _ in range(3))
        with Clocks(model, callback) as clocks:
            rollout()
        parts = [clocks.seconds[part] * 1e6 / STEPS for part in PARTS]
        print(simulate(), whole, *parts, flush=True)


def simulator(task: str) -> Callable[[], float]:
    """Microseconds per vector step of the environments as others wrote them; 0 where they are ours."""
    if task == "cue_recall":
        return lambda: 0.0
    actions = np.random.default_rng(0).integers(2, size=(STEPS, ENVS))
    if task == "cartpole_sb3":
        venv = environments(task)
        venv.reset()
    copies = [gymnasium.make("CartPole-v1", disable_env_checker=True) for _ in range(ENVS)]
    for number, copy in enumerate(copies):
        copy.reset(seed=number)

    def step_copies(row: np.ndarray) -> None:
        for copy, action in zip(copies, row, strict=True):
            _, _, terminated, truncated, _ = copy.step(action)
            if terminated or truncated:
                copy.reset()

    step = venv.step if task == "cartpole_sb3" else step_copies

    def run() -> float:
        began = time.process_time()
        for row in actions:
            step(row)
        return 1e6 * (time.process_time() - began) / STEPS

    return run


def agent(task: str) -> Any:
    """An agent whose policy takes actions from a table."""
    import torch

    from rltransformers.agents import GTrXLPPO

    backbone = {"preset": "gtrxl", "width": 16, "layers": 1, "heads": 2, "memory": 8}
    model = GTrXLPPO(
        "GTrXLPolicy", environments(task), n_steps=STEPS, seed=0, device="cpu", policy_kwargs={"backbone": backbone}
    )
    policy: Any = model.policy
    generator = torch.Generator().manual_seed(0)
    tables = [torch.randint(2, (ENVS,), generator=generator) for _ in range(1000)]
    values, log_probs, count = torch.zeros(ENVS), torch.zeros(ENVS), 0
    named = hasattr(policy, "machine_code")  # actions by leaf path, noise drawn outside the step

    def step(leaves: Any, state: Any, first: Any, *_: Any, **__: Any) -> Any:
        nonlocal count
        count += 1
        actions = tables[count % len(tables)]
        return {"": actions} if named else actions, values, log_probs, state

    policy.step = step
    policy.values = lambda leaves, *_: values[: len(next(iter(leaves.values())))]
    if named:  # once a part of the step
        policy.action_head.draw = lambda *_: None
    return model


def environments(task: str) -> Any:
    """Of one of ``TASKS``."""
    if task == "cartpole_sb3":
        from stable_baselines3.common.env_util import make_vec_env as plain

        return plain("CartPole-v1", ENVS, seed=0)
    from rltransformers.envs import make_vec_env

    return make_vec_env({"cue_recall": "rltransformers/CueRecall-v0", "cartpole": "CartPole-v1"}[task], ENVS, seed=0)


class Clocks:
    """Seconds in the parts of a rollout within the block."""

    def __init__(self, model: Any, callback: Any) -> None:
        self.seconds = dict.fromkeys(PARTS, 0.0)
        self._model, self._callback, self._put_back = model, callback, list[Callable[[], None]]()

    def __enter__(self) -> "Clocks":
        model = self._model
        self._watch(getattr(model, "_guard", model.env), "step", "environments")
        self._watch(model.rollout_buffer, "add", "buffer")
        self._watch(model.rollout_buffer, "reset", "buffer")
        self._watch(model.rollout_buffer, "finish", "buffer")
        self._watch(self._callback, "update_locals", "callback")
        self._watch(self._callback, "on_step", "callback")
        self._watch(model, "_update_info_buffer", "episodes")
        self._watch(model.policy, "environment_actions", "actions")
        if hasattr(model, "_observed"):
            self._watch(model, "_observed", "observations")
        else:
            self._watch(model._guard, "leaves", "observations")
            self._watch(model.policy, "leaves_to_tensors", "observations")
        return self

    def __exit__(self, *_: object) -> None:
        for undo in self._put_back:
            undo()

    def _watch(self, owner: Any, name: str, part: str) -> None:
        call, own = getattr(owner, name), name in vars(owner)

        def timed(*arguments: Any, **keywords: Any) -> Any:
            began = time.process_time()
            result = call(*arguments, **keywords)
            self.seconds[part] += time.process_time() - began
            return result

        setattr(owner, name, timed)
        self._put_back.append((lambda: setattr(owner, name, call)) if own else (lambda: delattr(owner, name)))


if __name__ == "__main__":
    worker(sys.argv[2]) if sys.argv[1] == "--worker" else main(sys.argv[1])
