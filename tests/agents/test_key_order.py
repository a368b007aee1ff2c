"""Dicts whose keys come in another order: weights are those of leaves by path, whatever order an environment has."""

from pathlib import Path
from typing import Any

import gymnasium as gym
import numpy as np
import pytest
from gymnasium import spaces
from stable_baselines3.common.vec_env import DummyVecEnv

from rltransformers.agents import DecisionTransformer, GTrXLDQN, GTrXLPPO, GTrXLSAC, GTrXLVMPO
from rltransformers.core.errors import ConfigError
from rltransformers.data import record
from tests.agents.tiny_envs import AnySpace

POLICY: dict[str, Any] = {"backbone": {"preset": "gtrxl", "width": 8, "layers": 1, "heads": 2, "memory": 4}}
PAIR, ONE = spaces.Box(-1.0, 1.0, (2,)), spaces.Box(-1.0, 1.0, (1,))
REPLAY = {"buffer_size": 2000, "learning_starts": 4, "segment_length": 4, "burn_in": 4, "train_freq": 4}
AGENTS: dict[str, tuple[Any, dict[str, Any]]] = {
    "ppo": (GTrXLPPO, {"n_steps": 8}),
    "vmpo": (GTrXLVMPO, {"n_steps": 8}),
    "dqn": (GTrXLDQN, REPLAY),
    "sac": (GTrXLSAC, REPLAY),
}


def keyed(part: gym.Space[Any], order: str) -> spaces.Dict:
    return spaces.Dict([(key, part) for key in order])


def environment(case: str, order: str) -> AnySpace:
    """With keys in that order in the observation, in one inside it, or in the action."""
    if case == "actions":
        return AnySpace(PAIR, keyed(ONE, order))
    seen = keyed(PAIR, order)
    return AnySpace(spaces.Dict({"n": seen}) if case == "nested observations" else seen, ONE)


def said(model: Any, case: str) -> list[float]:
    """The value of an observation, and the action there, of leaf by leaf."""
    leaves = {"a": np.array([0.9, -0.4], np.float32), "b": np.array([-0.2, 0.7], np.float32)}
    seen: Any = {"n": leaves} if case == "nested observations" else leaves
    actor = model.actor()
    actor.reset()
    output = actor.decide(leaves["a"] if case == "actions" else seen)
    action = output.action
    parts = [action["a"], action["b"]] if case == "actions" else [action]
    return [float(output.value), *np.concatenate([np.atleast_1d(part) for part in parts]).tolist()]


CASES = [
    (name, case)
    for name in AGENTS
    for case in ("observations", "nested observations", "actions")
    if (name, case) != ("dqn", "actions")
]


@pytest.mark.parametrize(("name", "case"), CASES)
def test_the_order_of_keys_changes_nothing(name: str, case: str, tmp_path: Path) -> None:
    kind, settings = AGENTS[name]

    def env(order: str) -> Any:
        made = environment(case, order)
        if name == "dqn":
            made.action_space = spaces.Discrete(2)
        return made

    model = kind(*kind.policy_aliases, env("ab"), seed=0, policy_kwargs=POLICY, device="cpu", **settings).learn(16)
    model.save(tmp_path / "model")
    expected = said(model, case)
    there, later, alone = kind.load(tmp_path / "model", env("ba")), kind.load(tmp_path / "model"), model
    later.set_env(env("ba"))
    alone.set_env(env("ba"))
    for each in (there, later, alone):
        assert said(each, case) == pytest.approx(expected, abs=1e-6)
        each.learn(16, reset_num_timesteps=False)
        each.save(tmp_path / "more")
        assert said(kind.load(tmp_path / "more"), case) == pytest.approx(said(each, case), abs=1e-6)


@pytest.mark.parametrize("case", ["observations", "actions"])
def test_parameters_of_keys_in_another_order_are_refused(case: str, tmp_path: Path) -> None:
    model, other = (GTrXLPPO("GTrXLPolicy", environment(case, order), policy_kwargs=POLICY) for order in ("ab", "ba"))
    model.save(tmp_path / "model")
    with pytest.raises(ConfigError, match=r"in the order \['a', 'b'\].*\['b', 'a'\].*GTrXLPPO.load"):
        other.set_parameters(tmp_path / "model")


def test_masks_of_keys_in_another_order_are_refused(tmp_path: Path) -> None:
    def env(order: str) -> AnySpace:
        return AnySpace(
            spaces.Dict({"action_mask": spaces.MultiBinary(4), "x": PAIR}), keyed(spaces.Discrete(2), order)
        )

    GTrXLPPO("GTrXLPolicy", env("ab"), policy_kwargs=POLICY).save(tmp_path / "model")
    with pytest.raises(ConfigError, match=r"masks.*\['b', 'a'\].*\['a', 'b'\]"):
        GTrXLPPO.load(tmp_path / "model", env("ba"))


def test_numbers_as_keys_of_a_vector_environment_are_refused() -> None:
    keys: Any = (0, 1)
    numbered = spaces.Dict([(key, PAIR) for key in keys])
    with pytest.raises(ConfigError, match="have the key 0, and keys must be texts; put the wrapper FlatDict"):
        GTrXLPPO("GTrXLPolicy", DummyVecEnv([lambda: AnySpace(numbered, ONE)]), policy_kwargs=POLICY)


class Told(AnySpace):
    """Observations that follow from the step alone; keeps what was done."""

    def __init__(self, case: str, order: str) -> None:
        made = environment(case, order)
        super().__init__(made.observation_space, made.action_space)
        self.case = case
        self.done: list[np.ndarray] = []

    def _seen(self) -> Any:
        leaves = {key: np.full(2, step * self.t, np.float32) for key, step in (("b", -0.2), ("a", 0.1))}
        if self.case == "actions":
            return leaves["a"]
        return {"n": leaves} if self.case == "nested observations" else leaves

    def reset(self, **kwargs: Any) -> Any:
        return super().reset(**kwargs) and (self._seen(), {})

    def step(self, action: Any) -> Any:
        self.done += [action["a"], action["b"]] if self.case == "actions" else [action]
        _, *rest = super().step(action)
        return self._seen(), *rest


@pytest.mark.parametrize("case", ["observations", "nested observations", "actions"])
def test_a_decision_transformer_acts_and_learns_alike_in_any_order(case: str, tmp_path: Path) -> None:
    data = record(environment(case, "ab"), "random", episodes=4, seed=0)
    policy = {"backbone": {"width": 8, "layers": 1, "heads": 2}}
    model = DecisionTransformer("DTPolicy", data, context_length=3, seed=0, policy_kwargs=policy, device="cpu")
    model.learn(2).save(tmp_path / "model")
    envs = [Told(case, order) for order in ("ab", "ba")]
    for env in envs:
        other = DecisionTransformer.load(tmp_path / "model", data, device="cpu")
        other.evaluate(env, 1.0, episodes=2)
        other.learn_online(env, 8, updates_per_episode=1, exploration_noise=0.3)
        other.evaluate(env, 1.0, episodes=2)
    assert len(envs[0].done) >= 24
    np.testing.assert_allclose(np.stack(envs[1].done), np.stack(envs[0].done), atol=1e-6)
