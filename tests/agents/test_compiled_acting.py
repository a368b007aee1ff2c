"""Both agents act by machine code as they act in eager mode, wherever they act."""

from typing import Any, get_args

import gymnasium as gym
import numpy as np
import pytest

from rltransformers.agents import DecisionTransformer, GTrXLPPO
from rltransformers.core.errors import DataError
from rltransformers.data import record
from rltransformers.policies import steps
from rltransformers.policies.decision import ActingMode
from tests.export.stand_in import StandIn

STEPS = 30
"""Of the longest episode, which the tables of places are made for."""
ACTINGS = ["eager", "compiled"]
Agent = GTrXLPPO | DecisionTransformer


@pytest.fixture(scope="module", autouse=True)
def _environment() -> Any:
    gym.register("Short-v0", "gymnasium.envs.classic_control:CartPoleEnv", max_episode_steps=STEPS)
    yield
    del gym.registry["Short-v0"]


def online(acting: str, rows: int = STEPS, position: str = "learned", **settings: Any) -> GTrXLPPO:
    places = {"position": {"name": position, "max_len": rows}}
    policy = {"backbone": {"width": 8, "layers": 1, "heads": 2, "memory": 4} | places, "previous_action": True}
    values: dict[str, Any] = {"n_steps": 32, "seed": 0, "device": "cpu", "acting": acting, "policy_kwargs": policy}
    return GTrXLPPO("GTrXLPolicy", "Short-v0", **(values | settings))


def offline(acting: str, rows: int = STEPS, position: str = "timestep", **settings: Any) -> DecisionTransformer:
    data = record("Short-v0", "random", episodes=4, num_envs=2, seed=0)
    backbone = {"width": 8, "layers": 1, "heads": 2, "position": {"name": position, "max_len": rows}}
    values: dict[str, Any] = {"context_length": 6, "batch_size": 8, "seed": 0, "device": "cpu", "acting": acting}
    return DecisionTransformer("DTPolicy", data, policy_kwargs={"backbone": backbone}, **(values | settings))


def steps_until_refused(model: Agent) -> tuple[int, str]:
    """How many steps of one episode an agent acts in, and the error after them."""
    state: Any = None
    for count in range(100):
        try:
            _, state = model.predict(np.zeros((2, 4), np.float32), state, deterministic=True, reward=np.ones(2))
        except DataError as error:
            return count, str(error)
    raise AssertionError("no place was missing")


@pytest.mark.parametrize("position", ["learned", "timestep"])
def test_online_acting_ends_with_the_table_of_places_in_either_way_of_acting(
    position: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(steps, "CompiledStep", StandIn)
    eager, compiled = (steps_until_refused(online(acting, 7, position)) for acting in ACTINGS)
    assert eager == compiled
    assert eager[0] == 7 and "outside the position table of 7 rows" in eager[1]


@pytest.mark.parametrize("mode", get_args(ActingMode))
def test_offline_acting_ends_with_the_table_of_steps_in_either_way_of_acting(
    mode: ActingMode, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(steps, "CompiledStep", StandIn)
    eager, compiled = (steps_until_refused(offline(acting, 9, acting_mode=mode)) for acting in ACTINGS)
    assert eager == compiled
    assert eager[0] == 9 and "environment step 9 is outside the position table of 9 rows" in eager[1]


def test_offline_acting_ends_with_the_table_of_tokens_in_either_way_of_acting(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(steps, "CompiledStep", StandIn)
    eager, compiled = (steps_until_refused(offline(acting, 20, "learned", acting_mode="banded")) for acting in ACTINGS)
    assert eager == compiled
    assert eager[0] == 7 and "episode position 22 is outside the position table of 20 rows" in eager[1]


@pytest.mark.parametrize("acting", ACTINGS)
@pytest.mark.parametrize(("mode", "rows"), [("banded", 20), ("refresh", 17)])
def test_a_table_that_holds_an_episode_or_a_window_serves_one_after_another(
    mode: ActingMode, rows: int, acting: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The action that ended an episode, or a window, is fed with the next step and stands where no row is."""
    monkeypatch.setattr(steps, "CompiledStep", StandIn)
    model = offline(acting, rows, "learned", acting_mode=mode)
    state: Any = None
    for time in range(21):
        start = np.full(2, time % 7 == 0)
        observation = np.full((2, 4), 0.1 * time, np.float32)
        _, state = model.predict(observation, state, start, deterministic=True, reward=np.ones(2))
