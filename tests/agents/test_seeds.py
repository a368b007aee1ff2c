"""Runs with different seeds share no environment, no episode and no random number; the same seed gives the same run."""

from collections.abc import Callable
from functools import partial
from typing import Any

import gymnasium as gym
import numpy as np
import pytest
from gymnasium import spaces
from gymnasium.vector import AutoresetMode, SyncVectorEnv
from stable_baselines3.common.vec_env import DummyVecEnv, VecEnv

from rltransformers.agents import DecisionTransformer, GTrXLDQN, GTrXLPPO, GTrXLVMPO
from rltransformers.core.seeding import BRANCHES, branch, branch_seeds
from rltransformers.data import record
from rltransformers.envs import make_vec_env
from rltransformers.training.evaluation import evaluate_online

COPIES, EPISODES, SEEDS = 3, 4, range(5)
POLICY: dict[str, Any] = {"backbone": {"width": 8, "layers": 1, "heads": 1, "memory": 4}}


class Draws(gym.Env[Any, Any]):
    """Observes a number that it draws in every reset; episodes of two steps. ``seen`` holds all numbers by copy."""

    seen: list[list[float]] = []

    def __init__(self) -> None:
        self.observation_space, self.action_space = spaces.Box(0.0, 1.0, (1,), np.float64), spaces.Discrete(2)
        self.numbers: list[float] = []
        Draws.seen.append(self.numbers)

    def reset(self, *, seed: int | None = None, options: dict[str, Any] | None = None) -> tuple[Any, dict[str, Any]]:
        super().reset(seed=seed)
        self.numbers.append(self.np_random.random())
        self.t = 0
        return np.array(self.numbers[-1:]), {}

    def step(self, action: Any) -> tuple[Any, float, bool, bool, dict[str, Any]]:
        self.t += 1
        return np.array(self.numbers[-1:]), 1.0, self.t == 2, False, {}


def learned(kind: type[Any], make: Callable[[], Any], seed: int) -> None:
    sizes: dict[str, Any] = {"segment_length": 2, "learning_starts": 10**6} if kind is GTrXLDQN else {"n_steps": 8}
    name = next(iter(kind.policy_aliases))
    kind(name, make(), policy_kwargs=POLICY, seed=seed, device="cpu", **sizes).learn(8 * COPIES)


class First:
    """Always takes the first action."""

    def predict(self, observation: Any, state: Any, episode_start: Any, deterministic: bool) -> tuple[Any, Any]:
        return np.zeros(len(episode_start), int), None


def evaluated(seed: int, copies: int = COPIES) -> None:
    evaluate_online(First(), DummyVecEnv([Draws] * copies), "Draws", EPISODES * COPIES, seed)


def model() -> DecisionTransformer:
    return DecisionTransformer("DTPolicy", record(Draws, "random", episodes=2), policy_kwargs=POLICY, device="cpu")


def begun(seed: int) -> None:
    agent = GTrXLPPO("GTrXLPolicy", DummyVecEnv([Draws] * COPIES), policy_kwargs=POLICY, device="cpu")
    for restart in (seed, seed + 1000):
        agent.begin_episodes(restart)


def made(seed: int) -> None:
    env: VecEnv = make_vec_env(Draws, COPIES, seed=seed)
    env.reset()


MODEL = model()
DRAWN: dict[str, Callable[[int], Any]] = {
    "PPO": partial(learned, GTrXLPPO, lambda: DummyVecEnv([Draws] * COPIES)),
    "V-MPO in make_vec_env": partial(learned, GTrXLVMPO, lambda: make_vec_env(Draws, COPIES)),
    "DQN": partial(learned, GTrXLDQN, lambda: DummyVecEnv([Draws] * COPIES)),
    **{
        mode.value: partial(learned, GTrXLPPO, partial(SyncVectorEnv, [Draws] * COPIES, autoreset_mode=mode))
        for mode in AutoresetMode
    },
    "make_vec_env": made,
    "begin_episodes": begun,
    "record": lambda seed: record(Draws, "random", episodes=EPISODES * COPIES, num_envs=COPIES, seed=seed),
    "record in a VecEnv": lambda seed: record(DummyVecEnv([Draws] * COPIES), "random", episodes=9, seed=seed),
    "evaluate_online": evaluated,
    "DecisionTransformer.evaluate": lambda seed: MODEL.evaluate(Draws, 1.0, episodes=9, num_envs=COPIES, seed=seed),
}


@pytest.mark.parametrize("name", DRAWN)
def test_seeds_share_no_environment(name: str) -> None:
    def drawn(seed: int) -> list[float]:
        Draws.seen.clear()
        DRAWN[name](seed)
        return [number for numbers in Draws.seen for number in numbers]

    runs = [drawn(seed) for seed in SEEDS]
    assert drawn(0) == runs[0]
    numbers = [number for run in runs for number in run]
    # environments that only fill an evaluation's last round draw unseeded numbers, which may be anything
    assert len(set(numbers)) == len(numbers) >= len(SEEDS) * COPIES


@pytest.mark.parametrize("kind", [GTrXLPPO, GTrXLDQN])
def test_seeds_share_no_cue(kind: type[Any]) -> None:
    def firsts(seed: int) -> list[bytes]:
        env = make_vec_env("rltransformers/CueRecall-v0", 4, env_kwargs={"cues": 8, "delay": 1}, seed=seed)
        sizes: dict[str, Any] = {"segment_length": 8} if kind is GTrXLDQN else {}
        name = next(iter(kind.policy_aliases))
        agent = kind(name, env, policy_kwargs=POLICY, seed=seed, device="cpu", **sizes)
        seen = [agent.env.reset()]
        for _ in range(80):
            observation, _, dones, _ = agent.env.step(np.zeros(4, np.int64))
            if dones.all():
                seen.append(observation)
        return [cues.tobytes() for cues in np.stack(seen, 1)]

    streams = [cues for seed in SEEDS for cues in firsts(seed)]
    assert len(set(streams)) == len(streams) == 20


def test_an_evaluation_is_the_same_with_any_number_of_copies() -> None:
    results = [
        evaluate_online(First(), DummyVecEnv([Draws] * copies), "Draws", EPISODES * COPIES, 3).seeds
        for copies in (1, COPIES, 8)
    ]
    assert results[0] == results[1] == results[2] and len(set(results[0])) == EPISODES * COPIES


def test_branches_of_all_seeds_and_names_are_different_streams() -> None:
    seeds = [each for seed in range(20) for name in BRANCHES for each in branch_seeds(seed, name, 20)]
    assert len(set(seeds)) == len(seeds) and max(seeds) < 2**31
    assert branch_seeds(7, "environment", 4)[2:] == branch_seeds(7, "environment", 2, first=2)
    plain = np.random.default_rng(0).random()  # what an environment draws that is reset with seed 0
    assert plain not in [np.random.default_rng(branch(0, name)).random() for name in BRANCHES]
