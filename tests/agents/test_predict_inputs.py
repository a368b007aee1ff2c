"""What ``predict`` refuses leaves the episode as it was: both agents go on as if they had never been asked."""

from collections.abc import Callable
from typing import Any

import gymnasium as gym
import numpy as np
import pytest
from gymnasium import spaces
from stable_baselines3.common.vec_env import DummyVecEnv

from rltransformers.agents import DecisionTransformer, GTrXLPPO
from rltransformers.core.errors import ConfigError, DataError
from rltransformers.training.offline.evaluation_callback import EvaluationCallback
from tests.agents.tiny_envs import AnySpace
from tests.data.coded import coded_episodes

TINY = {"width": 8, "heads": 2, "layers": 1}
OBSERVATIONS = spaces.Box(-np.inf, np.inf, (2,), np.float64)


def online(shared_backbone: bool = True, **backbone: Any) -> Any:
    env = DummyVecEnv([lambda: AnySpace(OBSERVATIONS, spaces.Discrete(3))] * 3)
    policy = {"backbone": TINY | {"memory": 4} | backbone, "previous_reward": True, "shared_backbone": shared_backbone}
    return GTrXLPPO("GTrXLPolicy", env, n_steps=8, policy_kwargs=policy, seed=0)


def offline() -> Any:
    return DecisionTransformer("DTPolicy", coded_episodes(), context_length=4, policy_kwargs={"backbone": TINY}, seed=0)


AGENTS: dict[str, Callable[[], Any]] = {"online": online, "offline": offline}


@pytest.fixture(scope="module", params=AGENTS)
def agent(request: pytest.FixtureRequest) -> Any:
    return AGENTS[request.param]()


def observation(value: float = 0.5) -> np.ndarray:
    batch = np.linspace(-1.0, 1.0, 6).reshape(3, 2)
    batch[1, 1] = value
    return batch


NEVER = {"reward": np.ones(3), "episode_start": np.zeros(3, bool)}
FAULTS: list[tuple[str, Any]] = [
    *[("observation", observation(value)) for value in (np.nan, np.inf, 1e39)],
    ("observation", observation().astype(complex)),
    ("observation", observation().astype(str)),
    ("observation", observation().astype(object)),
    ("observation", observation()[:2]),
    ("observation", observation()[:, :1]),
    *[("reward", np.array([1.0, value, 1.0])) for value in (np.nan, np.inf, -np.inf, 1e39)],
    ("reward", ["1.0"] * 3),
    ("reward", np.ones(3) * 1j),
    ("reward", np.ones(2)),
    ("episode_start", [0, np.nan, 0]),
    ("episode_start", [0, 0.5, 0]),
    ("episode_start", [False, False]),
    ("state", "a state"),
    *[("deterministic", value) for value in (None, 0, 1, 1.0, "true", [], [True])],
]


@pytest.mark.parametrize(("name", "value"), FAULTS, ids=lambda part: str(part).replace("\n", " "))
def test_a_refused_call_leaves_the_episode_as_it_was(agent: Any, name: str, value: Any) -> None:
    _, state = agent.predict(observation(), deterministic=True)
    expected, _ = agent.predict(observation(0.25), state, deterministic=True, **NEVER)
    inputs: dict[str, Any] = {"observation": observation(0.25), "state": state, "deterministic": True} | NEVER
    with pytest.raises((DataError, ConfigError)):
        agent.predict(**inputs | {name: value})
    again, _ = agent.predict(**inputs)
    np.testing.assert_array_equal(again, expected)


@pytest.mark.parametrize("value", [value for name, value in FAULTS if name == "episode_start"], ids=str)
def test_the_first_call_checks_where_episodes_start(agent: Any, value: Any) -> None:
    with pytest.raises(DataError, match="episode_start"):
        agent.predict(observation(), episode_start=value)
    expected, _ = agent.predict(observation(), deterministic=True)
    for starts in (True, [True] * 3, [False] * 3):  # with state=None all begin
        np.testing.assert_array_equal(
            agent.predict(observation(), episode_start=starts, deterministic=True)[0], expected
        )


@pytest.mark.parametrize("target", [np.nan, np.inf, 1e39, True, [True] * 3, "7", 1j, [1.0, 2.0], [1.0, np.nan, 1.0]])
def test_a_target_return_is_a_finite_number(target: Any) -> None:
    model = offline()
    with pytest.raises(ConfigError, match="target_return"):
        model.predict(observation(), target_return=target)
    assert model.predict(observation(), deterministic=True)[0].shape == (3, 1)


@pytest.mark.parametrize("target", [np.nan, 1e39, np.float64(1e308), 10**400, True, "7", [1.0, np.inf]])
def test_so_is_every_target_return_of_an_evaluation(target: Any) -> None:
    with pytest.raises(ConfigError, match="target_returns"):
        offline().evaluate("CartPole-v1", target_returns=target)


@pytest.mark.parametrize("target", [1e30, -3e8])
def test_a_target_return_that_no_network_can_read_is_refused_at_once(target: float) -> None:
    model = offline()
    unit = model.summary.return_scale
    assert model.predict(observation(), target_return=np.sign(target) * 1e6 * unit)[0].shape == (3, 1)
    for ask in (
        lambda: model.predict(observation(), target_return=target),
        lambda: model.actor(target_return=target),
        lambda: model.evaluate("CartPole-v1", target_returns=[1.0, target]),
        lambda: model.learn(1, callback=EvaluationCallback("CartPole-v1", target_returns=target, eval_freq=9)),
    ):
        with pytest.raises(ConfigError, match=r"target_returns? must be at most .* in size, got .* in units of"):
            ask()
    assert model.num_timesteps == 0
    with pytest.raises(ConfigError, match="exploration_return must be at most"):
        model.learn_online("CartPole-v1", 10, exploration_return=target, exploration_noise=0.1)


@pytest.mark.parametrize("return_scale", [1e-300, 1e-9])
def test_a_return_scale_that_leaves_the_numbers_of_the_network_is_refused(return_scale: float) -> None:
    with pytest.raises(ConfigError, match=r"return_scale \(1e-.*leave it out"):
        DecisionTransformer("DTPolicy", coded_episodes(), return_scale=return_scale)


def test_sampled_actions_do_not_depend_on_refused_calls() -> None:
    """The random stream is part of the state: a refused call draws nothing."""
    episodes = coded_episodes()
    for episode in episodes:
        episode["actions"] = np.arange(len(episode["rewards"])) % 7
    first, second = (
        DecisionTransformer("DTPolicy", episodes, context_length=4, policy_kwargs={"backbone": TINY}, seed=0)
        for _ in range(2)
    )
    many = np.zeros((50, 2))
    expected = first.predict(many)[0]
    for refused in ({"target_return": np.nan}, {"target_return": "x"}):
        with pytest.raises(ConfigError):
            second.predict(many, **refused)
    with pytest.raises(DataError):
        second.predict(many * np.nan)
    np.testing.assert_array_equal(second.predict(many)[0], expected)


@pytest.mark.parametrize("other", [{"memory": 3}, {"memory": 9}, {"layers": 2}, {"width": 16}], ids=str)
def test_a_state_of_another_network_is_refused(other: dict[str, Any]) -> None:
    _, state = online(**other).predict(observation())
    with pytest.raises(ConfigError, match="state is of another backbone"):
        online().predict(observation(0.25), state, **NEVER)


@pytest.mark.parametrize(
    "action_space",
    [spaces.MultiDiscrete([2, 2]), spaces.Discrete(5), spaces.Dict({"a": spaces.Discrete(2)}), spaces.Box(-1, 1, (1,))],
    ids=str,
)
def test_a_state_of_other_actions_is_refused(action_space: gym.Space[Any]) -> None:
    policy = {"backbone": {"width": 8, "layers": 1, "heads": 1, "memory": 4}, "previous_action": True}
    one, other = (
        GTrXLPPO("GTrXLPolicy", AnySpace(spaces.Box(-1.0, 1.0, (2,)), space), policy_kwargs=policy, device="cpu")
        for space in (spaces.Discrete(2), action_space)
    )
    seen = np.zeros((40, 2), np.float32)  # some of the 40 actions are none of the other policy's
    _, state = other.predict(seen)
    with pytest.raises(ConfigError, match="state is of a policy with other actions than Discrete"):
        one.predict(seen, state)


def test_a_state_with_the_memory_of_a_critic_is_for_a_policy_that_has_one() -> None:
    one, two = online(), online(shared_backbone=False)
    for model, other in ((one, two), (two, one)):
        _, state = other.predict(observation())
        with pytest.raises(ConfigError, match="a policy whose value has its own backbone"):
            model.predict(observation(0.25), state, **NEVER)


def test_a_batch_of_no_observation_is_refused(agent: Any) -> None:
    with pytest.raises(DataError, match="the batch of observations has no row"):
        agent.predict(observation()[:0])
