"""Nested observations, however the environment is named, in every agent."""

from collections.abc import Callable
from functools import partial
from typing import Any

import gymnasium as gym
import pytest
from gymnasium import spaces
from gymnasium.vector import SyncVectorEnv

from rltransformers.agents import DecisionTransformer, GTrXLDQN, GTrXLPPO, GTrXLVMPO
from rltransformers.data import record
from rltransformers.envs import make_vec_env
from tests.agents.tiny_envs import AnySpace

POLICY: dict[str, Any] = {"backbone": {"width": 8, "layers": 1, "heads": 1, "memory": 4}}
CHOICE, VECTOR = spaces.Discrete(2), spaces.Box(-1.0, 1.0, (2,))
SPACES: dict[str, spaces.Space[Any]] = {
    "Dict in Dict": spaces.Dict({"x": spaces.Dict({"y": CHOICE})}),
    "Tuple in Tuple": spaces.Tuple([spaces.Tuple([CHOICE, VECTOR]), VECTOR]),
    "Tuple in Dict": spaces.Dict({"x": spaces.Tuple([CHOICE, VECTOR]), "z": VECTOR}),
    "numbers as keys": spaces.Dict([(0, VECTOR), (1, CHOICE)]),  # type: ignore[list-item]  # Gymnasium declares texts
    "Dict in Tuple": spaces.Tuple([spaces.Dict({"a": CHOICE}), VECTOR]),
}
ID = {name: f"tests/{name.replace(' ', '')}-v0" for name in SPACES}
WAYS: dict[str, Callable[[str], Any]] = {
    "id": lambda name: ID[name],
    "specification": lambda name: gym.spec(ID[name]),
    "function": lambda name: partial(AnySpace, SPACES[name], CHOICE),
    "class": lambda name: type(
        "Nested", (AnySpace,), {"__init__": lambda self: AnySpace.__init__(self, SPACES[name], CHOICE)}
    ),
    "instance": lambda name: AnySpace(SPACES[name], CHOICE),
    "make_vec_env": lambda name: make_vec_env(ID[name], 2),
    "vector of Gymnasium": lambda name: SyncVectorEnv([partial(AnySpace, SPACES[name], CHOICE)] * 2),
}
for name, space in SPACES.items():
    gym.register(ID[name], entry_point=partial(AnySpace, space, CHOICE))


@pytest.mark.filterwarnings("ignore:the recording of")  # a partial is no entry point for JSON
@pytest.mark.parametrize("way", WAYS)
@pytest.mark.parametrize("name", SPACES)
def test_every_way_to_name_a_nested_environment_goes_with_every_agent(name: str, way: str) -> None:
    def env() -> Any:
        return WAYS[way](name)

    for kind in (GTrXLPPO, GTrXLVMPO):
        kind("GTrXLPolicy", env(), n_steps=5, policy_kwargs=POLICY, device="cpu").learn(5).predict(
            SPACES[name].sample()
        )
    GTrXLDQN("GTrXLQPolicy", env(), segment_length=4, policy_kwargs=POLICY, device="cpu").learn(8)
    data = record(env(), "random", episodes=2)
    assert data.steps == 8
    model = DecisionTransformer("DTPolicy", data, context_length=2, policy_kwargs=POLICY, device="cpu")
    if way in ("id", "function", "class", "instance"):
        assert model.evaluate(env(), 1.0, episodes=2)[0].lengths == (4, 4)
