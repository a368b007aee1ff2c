"""Training environments that somebody else resets or steps. What an agent learns from must be what happened to it."""

import random
from collections.abc import Callable
from typing import Any

import gymnasium as gym
import numpy as np
from gymnasium import spaces
from stable_baselines3.common.callbacks import BaseCallback, EvalCallback
from stable_baselines3.common.evaluation import evaluate_policy
from stable_baselines3.common.vec_env import DummyVecEnv, VecEnv, VecMonitor, VecNormalize

from rltransformers.agents import GTrXLDQN, GTrXLPPO, GTrXLSAC, GTrXLVMPO
from tests.fuzz.keywords import BACKBONE
from tests.fuzz.probe import Probe, WrongError

LENGTH = 7


class Coded(gym.Env[Any, Any]):
    """Observes which episode it is in and which step; episodes of seven steps, or as many for ever."""

    def __init__(self, length: int = LENGTH, mark: bool = False) -> None:
        self.observation_space = spaces.Box(-1.0, 1e6, (2,))
        self.action_space = spaces.Discrete(2)
        self.length, self.mark = length, mark
        self.episode, self.t = -1, 0

    def reset(self, *, seed: int | None = None, options: dict[str, Any] | None = None) -> tuple[Any, dict[str, Any]]:
        super().reset(seed=seed)
        self.episode, self.t = self.episode + 1, 0
        return self._observe(), {}

    def step(self, action: Any) -> tuple[Any, float, bool, bool, dict[str, Any]]:
        self.t += 1
        infos = {"reset_row": True, "final_info": 3, "resets_next": True} if self.mark else {}
        return self._observe(), 1.0, False, self.t == self.length, infos

    def _observe(self) -> np.ndarray:
        return np.array([self.episode, self.t], np.float32)


def _dummy(**of_env: Any) -> VecEnv:
    return DummyVecEnv([lambda: Coded(**of_env)] * 2)


ENVIRONMENTS: dict[str, Callable[..., Any]] = {
    "one environment": Coded,
    "DummyVecEnv": _dummy,
    "VecMonitor": lambda **of_env: VecMonitor(_dummy(**of_env)),
    "VecNormalize of rewards": lambda **of_env: VecNormalize(_dummy(**of_env), norm_obs=False),
    **{
        f"SyncVectorEnv {mode.name}": lambda mode=mode, **of_env: gym.vector.SyncVectorEnv(
            [lambda: Coded(**of_env)] * 2, autoreset_mode=mode
        )
        for mode in gym.vector.AutoresetMode
    },
}
AGENTS: dict[str, tuple[Any, dict[str, Any]]] = {
    "GTrXLPPO": (GTrXLPPO, {"n_steps": 5, "n_epochs": 1}),
    "GTrXLVMPO": (GTrXLVMPO, {"n_steps": 5, "n_epochs": 1}),
    "GTrXLDQN": (
        GTrXLDQN,
        {"buffer_size": 400, "segment_length": 4, "learning_starts": 10, "train_freq": 5, "batch_size": 2},
    ),
    "GTrXLSAC": (
        GTrXLSAC,
        {"buffer_size": 400, "segment_length": 4, "learning_starts": 10, "train_freq": 5, "batch_size": 2},
    ),
}
Move = Callable[[Any, Any], Any]


def _step(model: Any, env: Any) -> None:
    vec_env: VecEnv = model.get_env()
    vec_env.step(np.zeros(vec_env.num_envs, np.int64))


def _step_of_user(model: Any, env: Any) -> None:
    env.step(0 if isinstance(env, gym.Env) else np.zeros(env.num_envs, np.int64))


def _other_agent(model: Any, env: Any) -> None:
    GTrXLPPO("GTrXLPolicy", env, n_steps=3, n_epochs=1, seed=1, policy_kwargs={"backbone": BACKBONE}).learn(3)


MOVES: dict[str, Move] = {
    "evaluate_policy(model, model.get_env())": lambda model, env: _evaluate(model, model.get_env()),
    "evaluate_policy(model, env)": lambda model, env: _evaluate(model, env),
    "get_env().reset()": lambda model, env: model.get_env().reset(),
    "get_env().step()": _step,
    "env.reset()": lambda model, env: env.reset(),
    "env.step()": _step_of_user,
    "another agent": _other_agent,
}


def _evaluate(model: Any, env: Any) -> None:
    if isinstance(env, gym.vector.VectorEnv):
        env = model.get_env()
    evaluate_policy(model, env, n_eval_episodes=2, warn=False)


def draw(chance: random.Random) -> Probe:
    """An agent, its environment, what moves it and when."""
    agent, env = chance.choice(sorted(AGENTS)), chance.choice(sorted(ENVIRONMENTS))
    move, when = chance.choice(sorted(MOVES)), chance.choice(("between", "step", "rollout", "EvalCallback", "never"))
    at, mark, length = chance.randrange(1, 25), chance.random() < 0.3, chance.choice((LENGTH, 10**6, 3))
    if length > 100 and (move.startswith("evaluate") or when == "EvalCallback"):
        length = LENGTH  # an evaluation would not end
    what = {"EvalCallback": "EvalCallback(get_env())", "never": "nobody"}.get(when, move)
    text = f"{agent} on {env}, episodes of {length}, moved by {what}, {when} {at}{', infos that look like ours' * mark}"
    return Probe(text, lambda: _act(agent, env, move, when, at, {"mark": mark, "length": length}), False)


class _Moves(BaseCallback):
    """Moves the environment once, after step ``at`` or behind the rollout that holds it; looks at what is learned."""

    def __init__(self, move: Callable[[], None], when: str, at: int) -> None:
        super().__init__()
        self.move, self.when, self.at = move, when, at

    def _on_step(self) -> bool:
        if self.when == "step" and self.n_calls == self.at:
            self.move()
        return True

    def _on_rollout_end(self) -> None:
        if self.when == "rollout" and self.n_calls >= self.at:
            self.when = "done"
            self.move()


def _act(agent: str, env_name: str, move: str, when: str, at: int, of_env: dict[str, Any]) -> None:
    env = ENVIRONMENTS[env_name](**of_env)
    kind, settings = AGENTS[agent]

    class Looking(kind):  # type: ignore[misc, valid-type]
        """Checks every segment before it learns from it."""

        def train(self, *given: Any, **named: Any) -> None:
            segment = getattr(self, "_segment", None)
            if segment is not None:
                _check(segment.observations[""].numpy(), segment.first.numpy(), segment.counts.numpy())
            super().train(*given, **named)

    model = Looking(
        next(iter(kind.policy_aliases)),
        env,
        seed=0,
        device="cpu",
        policy_kwargs={"backbone": BACKBONE},
        **settings,
    )
    n_envs = model.n_envs
    callbacks: list[BaseCallback] = [_Moves(lambda: MOVES[move](model, env), when, at)]
    if when == "EvalCallback":
        callbacks.append(EvalCallback(model.get_env(), eval_freq=at, n_eval_episodes=2, verbose=0, warn=False))
    model.learn(25 * n_envs, callback=callbacks)
    if when == "between":
        MOVES[move](model, env)
        model.learn(15 * n_envs, reset_num_timesteps=False)
    replay = getattr(model, "replay_buffer", None)
    if replay is not None:
        for row in range(n_envs):
            written = int(replay.written[row])
            part = slice(0, written)
            observed = replay.observations[""][row, part].numpy()[None]
            _check(observed, replay.first[row, part].numpy()[None], replay.counts[row, part].numpy()[None])


def _check(observed: np.ndarray, first: np.ndarray, counts: np.ndarray) -> None:
    """Rows [E, T, 2] follow each other in an episode, or begin one at its first step."""
    for row in range(len(observed)):
        for t in range(observed.shape[1]):
            (episode, step), begins = observed[row, t].tolist(), bool(first[row, t])
            if begins and step != 0 and counts[row, t]:
                raise WrongError(f"row {row}, step {t}: an episode begins at its step {step:g}")
            if t == 0 or begins or not counts[row, t]:
                continue
            before = observed[row, t - 1].tolist()
            if [episode, step] != [before[0], before[1] + 1]:
                raise WrongError(f"row {row}, step {t}: {[episode, step]} follows {before} and begins no episode")
