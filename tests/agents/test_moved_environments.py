"""Somebody else resets or steps the training environment: new episodes begin, and nothing is learned across the gap."""

from collections.abc import Callable
from functools import partial
from pathlib import Path
from typing import Any

import gymnasium as gym
import numpy as np
import pytest
import torch
from gymnasium import spaces
from gymnasium.vector import AsyncVectorEnv, AutoresetMode, SyncVectorEnv
from stable_baselines3.common.callbacks import BaseCallback, EvalCallback
from stable_baselines3.common.evaluation import evaluate_policy
from stable_baselines3.common.vec_env import DummyVecEnv, SubprocVecEnv, VecMonitor, VecNormalize

from rltransformers.agents import GTrXLDQN, GTrXLPPO, GTrXLVMPO
from rltransformers.core.errors import ConfigError
from rltransformers.envs import make_vec_env
from rltransformers.training.online.online_agent import OnlineAgent

POLICY = {"backbone": {"width": 8, "layers": 1, "heads": 1, "memory": 4}, "previous_action": True}
COMMON: dict[str, Any] = {"policy_kwargs": POLICY, "seed": 0, "device": "cpu"}


class Coded(gym.Env[Any, Any]):
    """Observes [number of the episode, step in it]; seven steps, or cut by a limit after ``limit``."""

    def __init__(self, limit: int | None = None, shows_episode: bool = True) -> None:
        self.observation_space = spaces.Box(0, 1e6, (2,))
        self.action_space = spaces.Discrete(2)
        self.limit, self.shows_episode = limit, shows_episode
        self.episode, self.t = 0, 0

    def reset(self, *, seed: int | None = None, options: dict[str, Any] | None = None) -> tuple[Any, dict[str, Any]]:
        super().reset(seed=seed)
        self.episode, self.t = self.episode + self.shows_episode, 0
        return self._observe(), {}

    def step(self, action: Any) -> tuple[Any, float, bool, bool, dict[str, Any]]:
        self.t += 1
        return self._observe(), float(action), self.t == 7, self.t == self.limit, {}

    def _observe(self) -> np.ndarray:
        return np.array([self.episode, self.t], np.float32)


def agent(kind: str, env: Any) -> Any:
    if kind == "dqn":
        sizes: dict[str, Any] = {
            "segment_length": 4,
            "learning_starts": 0,
            "batch_size": 2,
            "train_freq": 5,
            "buffer_size": 400,
        }
        return GTrXLDQN("GTrXLQPolicy", env, **sizes, **COMMON)
    return (GTrXLPPO if kind == "ppo" else GTrXLVMPO)("GTrXLPolicy", env, n_steps=5, **COMMON)


def rows(model: OnlineAgent) -> list[tuple[np.ndarray, np.ndarray]]:
    """Observations and beginnings of episodes of every environment, of the newest segment or the whole replay."""
    if isinstance(model, GTrXLDQN):
        replay = model.replay_buffer
        assert replay is not None
        leaf, first = replay.observations[""].numpy(), replay.first.numpy()
        return [(leaf[i, : replay.written[i]], first[i, : replay.written[i]]) for i in range(model.n_envs)]
    segment = model.carry.segment
    assert segment is not None
    return list(zip(segment.observations[""].numpy(), segment.first.numpy(), strict=True))


def check_true(model: OnlineAgent) -> None:
    """Every row follows the one before it in the environment, or begins an episode."""
    for observations, first in rows(model):
        assert (observations[first, 1] == 0).all()
        follows = (observations[1:] - observations[:-1] == [0, 1]).all(1)
        assert (follows | first[1:]).all(), observations


TWO: list[Any] = [Coded, Coded]


ENVIRONMENTS: dict[str, Callable[[], Any]] = {
    "DummyVecEnv": lambda: DummyVecEnv(TWO),
    "wrapped": lambda: VecNormalize(VecMonitor(DummyVecEnv(TWO)), norm_obs=False),
    "SubprocVecEnv": lambda: SubprocVecEnv(TWO, start_method="fork"),
    "Gymnasium": Coded,
    "make_vec_env": lambda: make_vec_env(Coded, 2),
    **{mode.value: partial(SyncVectorEnv, TWO, autoreset_mode=mode) for mode in AutoresetMode},
    "AsyncVectorEnv": lambda: AsyncVectorEnv(TWO),
}
ACTIONS = np.zeros(2, np.int64)
MOVES: list[tuple[str, Callable[[Any, Any], Any]]] = [  # of the environment as given, and of the agent
    ("DummyVecEnv", lambda env, model: env.reset()),
    ("DummyVecEnv", lambda env, model: env.step(ACTIONS)),
    ("DummyVecEnv", lambda env, model: model.get_env().reset()),
    ("DummyVecEnv", lambda env, model: env.envs[1].reset()),
    ("DummyVecEnv", lambda env, model: env.envs[1].unwrapped.step(0)),
    ("DummyVecEnv", lambda env, model: env.env_method("reset", indices=[0])),
    ("DummyVecEnv", lambda env, model: evaluate_policy(model, env, 2, warn=False)),
    ("DummyVecEnv", lambda env, model: agent("ppo", env).learn(10)),
    ("wrapped", lambda env, model: env.venv.venv.reset()),
    ("wrapped", lambda env, model: model.env.venv.step(ACTIONS)),
    ("SubprocVecEnv", lambda env, model: env.step(ACTIONS)),
    ("SubprocVecEnv", lambda env, model: env.env_method("reset")),
    ("Gymnasium", lambda env, model: env.reset()),
    ("Gymnasium", lambda env, model: env.step(0)),
    ("Gymnasium", lambda env, model: evaluate_policy(model, env, 1, warn=False)),
    ("make_vec_env", lambda env, model: env.reset()),
    *((mode.value, lambda env, model: env.reset()) for mode in AutoresetMode),
    *((mode.value, lambda env, model: model.env.step(ACTIONS)) for mode in AutoresetMode),
    ("AsyncVectorEnv", lambda env, model: env.step(ACTIONS)),
    ("AsyncVectorEnv", lambda env, model: (env.reset_async(), env.reset_wait())),
]


class MovesAt(BaseCallback):
    """Moves the environments behind one step, or when the rollout of that step begins."""

    def __init__(self, step: int, move: Callable[[], Any], event: str = "step") -> None:
        super().__init__()
        self.step, self.move, self.event = step, move, event

    def _on_step(self) -> bool:
        self._at("step")
        return True

    def _on_rollout_start(self) -> None:
        self._at("start")

    def _on_rollout_end(self) -> None:
        self._at("end")

    def _at(self, event: str) -> None:
        if (event, self.num_timesteps) == (self.event, self.step):
            self.move()


@pytest.mark.parametrize(("name", "move"), MOVES)
@pytest.mark.parametrize("kind", ["ppo", "dqn"])
def test_a_move_by_any_reference_begins_new_episodes(kind: str, name: str, move: Callable[[Any, Any], Any]) -> None:
    env = ENVIRONMENTS[name]()
    model = agent(kind, env)
    count = model.n_envs
    model.learn(5 * count)
    assert model.is_in_episodes
    move(env, model)
    assert not model.is_in_episodes
    model.learn(5 * count, reset_num_timesteps=False)
    check_true(model)
    at = 0 if kind == "ppo" else 5
    assert all(first[at] for _, first in rows(model))
    model.learn(5 * count, MovesAt(13 * count, partial(move, env, model)), reset_num_timesteps=False)
    check_true(model)
    model.env.close()


@pytest.mark.parametrize("kind", ["ppo", "vmpo", "dqn"])
def test_a_callback_may_move_the_environments_at_any_moment(kind: str) -> None:
    for step, event in ((3, "step"), (5, "step"), (5, "end"), (5, "start")):  # a rollout has 5 steps
        env = DummyVecEnv(TWO)
        model = agent(kind, env)
        model.learn(20 if event == "start" else 10, MovesAt(2 * step, partial(env.step, ACTIONS), event))
        check_true(model)


def test_the_callback_of_stable_baselines_may_evaluate_in_the_training_environment() -> None:
    for kind in ("ppo", "vmpo", "dqn"):
        env = DummyVecEnv(TWO)
        model = agent(kind, env).learn(40, EvalCallback(env, n_eval_episodes=2, eval_freq=3, verbose=0, warn=False))
        check_true(model)
        firsts = sum(int(first.sum()) for _, first in rows(model))
        assert firsts >= 2  # five steps, a move every third


class SeesTime(BaseCallback):
    """Resets the environments behind steps 3, 6, ... of their episodes."""

    def _on_step(self) -> bool:
        if self.locals["new_obs"][0, 1] == 3:
            self.model.get_env().reset()  # type: ignore[union-attr]
        return True


@pytest.mark.parametrize("kind", ["ppo", "vmpo"])
def test_an_interrupted_episode_counts_as_cut_by_a_limit(kind: str) -> None:
    """With the value of its last observation: the same run as under a limit of so many steps."""
    cut = agent(kind, DummyVecEnv([partial(Coded, 3, False)] * 2)).learn(40)
    left = agent(kind, DummyVecEnv([partial(Coded, None, False)] * 2)).learn(40, SeesTime())
    for name in ("first", "rewards", "returns", "advantages", "values"):
        torch.testing.assert_close(getattr(left.carry.segment, name), getattr(cut.carry.segment, name), rtol=0, atol=0)
    for a, b in zip(left.policy.parameters(), cut.policy.parameters(), strict=True):
        assert torch.equal(a, b)


@pytest.mark.parametrize("kind", ["ppo", "dqn"])
def test_a_moved_environment_is_no_place_to_resume_from(kind: str, tmp_path: Path) -> None:
    path = tmp_path / "agent.zip"
    env = make_vec_env("rltransformers/CueRecall-v0", 2, seed=0)
    model = agent(kind, env).learn(20)
    env.reset()
    model.save(path)
    with pytest.raises(ConfigError, match="somebody else"):
        type(model).load(path, env=make_vec_env("rltransformers/CueRecall-v0", 2), device="cpu", force_reset=False)
    again = type(model).load(path, env=make_vec_env("rltransformers/CueRecall-v0", 2), device="cpu", force_reset=None)
    assert not again.is_in_episodes
    again.learn(10, reset_num_timesteps=False)
    model.learn(10, reset_num_timesteps=False)


def test_what_counts_moves_is_the_environment_it_was() -> None:
    """Instances, attributes, copies and pickles of an environment stay those of its class."""
    import pickle
    from copy import deepcopy

    env = Coded()
    model = agent("ppo", env).learn(5)
    assert isinstance(env, Coded) and type(env).__name__ == "Coded" and type(env).__module__ == __name__
    for copy in (deepcopy(env), pickle.loads(pickle.dumps(env))):
        assert type(copy) is Coded and copy.t == env.t
        copy.reset()
        assert model.is_in_episodes
    state = deepcopy(vars(env))
    env.step(0)
    vars(env).update(state)
    assert env.t == state["t"]


def test_an_agent_with_its_environments_can_be_copied_and_pickled() -> None:
    import pickle
    from copy import deepcopy

    model = agent("ppo", Coded()).learn(10)
    for copy in (deepcopy(model), pickle.loads(pickle.dumps(model))):
        copy.learn(10)
        check_true(copy)
        assert copy.num_timesteps == 10 and model.is_in_episodes
