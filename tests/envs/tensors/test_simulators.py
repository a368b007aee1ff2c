"""Simulators as environments of tensors, by stand-ins of their interfaces; gymnax itself where it is installed."""

from types import SimpleNamespace
from typing import Any

import numpy as np
import pytest
import torch
from gymnasium import spaces

from rltransformers.agents import GTrXLDQN, GTrXLPPO, GTrXLSAC
from rltransformers.core.errors import ConfigError
from rltransformers.envs.tensors.simulators import JaxVecEnv, SimulatorVecEnv

POLICY = {"backbone": {"preset": "gtrxl", "width": 8, "layers": 1, "heads": 2, "memory": 4}}
N = 3


class StandIn:
    """The interface of Isaac Lab's ``ManagerBasedRLEnv``: resets itself, writes into the tensors that it returned.

    A point moves by its action; environment i is over by a limit after 4 + i steps, and fails beyond 2.
    """

    def __init__(self, group: str = "policy", **config: Any) -> None:
        self.num_envs, self.device, self.cfg = N, "cpu", SimpleNamespace(**config)
        box = spaces.Box(-np.inf, np.inf, (2,))
        self.single_observation_space = spaces.Dict({group: box, "critic": spaces.Box(-np.inf, np.inf, (5,))})
        self.single_action_space = spaces.Box(-np.inf, np.inf, (1,))
        self.group, self.buffer, self.rewards = group, torch.zeros(N, 2), torch.zeros(N)
        self.terminated, self.truncated = torch.zeros(2, N, dtype=torch.bool)
        self.seeds: list[Any] = []
        self.closed = False

    @property
    def unwrapped(self) -> Any:
        """Itself."""
        return self

    def reset(self, seed: int | None = None, options: Any = None) -> Any:
        self.seeds.append(seed)
        self.buffer.zero_()
        return self._observations(), {}

    def step(self, action: torch.Tensor) -> Any:
        assert action.abs().max() <= 1.0
        self.buffer[:, 0] += action[:, 0]
        self.buffer[:, 1] += 1
        self.rewards[:] = self.buffer[:, 0]
        self.terminated[:] = self.buffer[:, 0].abs() > 2
        self.truncated[:] = self.buffer[:, 1] == 4 + torch.arange(N)
        self.buffer[self.terminated | self.truncated] = 0
        return self._observations(), self.rewards, self.terminated, self.truncated, {"log": {}}

    def _observations(self) -> dict[str, torch.Tensor]:
        return {self.group: self.buffer, "critic": torch.zeros(N, 5)}

    def close(self) -> None:
        self.closed = True


def test_a_simulator_is_stepped_and_its_buffers_are_copied() -> None:
    simulator = StandIn()
    env = SimulatorVecEnv(simulator)
    assert env.observation_space.shape == (2,)
    assert env.action_space == spaces.Box(-1.0, 1.0, (1,))
    env.seed(7)
    seen = [env.reset_tensors()[""]]
    steps = [env.step_tensors(torch.full((N, 1), 0.25)) for _ in range(9)]
    seen += [step.observations[""] for step in steps]
    assert simulator.seeds == [7]
    assert [row.tolist() for row in torch.stack(seen)[:6, 0, 1]] == [0, 1, 2, 3, 0, 1]
    assert torch.stack([step.truncated for step in steps], 1).nonzero().tolist() == [[0, 3], [0, 7], [1, 4], [2, 5]]
    assert not any(step.terminated.any() for step in steps)
    ended = steps[4]
    assert [float(ended.lengths[1]), float(ended.returns[1])] == [5, pytest.approx(0.25 * 15)]
    assert ended.last_observations is None
    env.close()
    assert simulator.closed


def test_a_limit_of_a_finite_horizon_is_an_end() -> None:
    env = SimulatorVecEnv(StandIn("actor", is_finite_horizon=True, auto_reset=True))
    env.reset_tensors()
    steps = [env.step_tensors(torch.zeros(N, 1)) for _ in range(4)]
    assert steps[-1].terminated.tolist() == [True, False, False]
    assert not steps[-1].truncated.any()


def test_agents_learn_in_a_simulator_and_value_cut_episodes_by_the_observation_before() -> None:
    settings: dict[str, Any] = {"n_steps": 8, "n_epochs": 1, "policy_kwargs": POLICY, "seed": 0, "device": "cpu"}
    model: Any = GTrXLPPO("GTrXLPolicy", SimulatorVecEnv(StandIn()), **settings).learn(72)
    cut = model.rollout_buffer.truncated
    assert bool(cut.any())
    assert torch.equal(model.rollout_buffer.last_values[cut], model.carry.segment.values[cut])
    off: dict[str, Any] = {"segment_length": 4, "buffer_size": 400, "train_freq": 4, "learning_starts": 20}
    other: Any = GTrXLSAC(
        "GTrXLSACPolicy", SimulatorVecEnv(StandIn()), **off, policy_kwargs=POLICY, seed=0, device="cpu"
    )
    replay = other.learn(60).replay_buffer
    assert bool((replay.rewards[replay.terminal].abs() > 2).all()), "only failures are ends"
    left = ~replay.counts & (replay.positions > 0)
    assert bool(left.any()), "a cut episode ends at the last observation that is known"


@pytest.mark.parametrize(
    ("make", "message"),
    [
        (lambda: SimulatorVecEnv(object()), r"has no num_envs, which environments of Isaac Lab and mjlab have"),
        (lambda: SimulatorVecEnv(StandIn(), group="polcy"), r"no group of observations 'polcy'; did you mean 'policy'"),
        (lambda: SimulatorVecEnv(StandIn(auto_reset=False)), r"cfg.auto_reset is False"),
        (lambda: JaxVecEnv(object(), 2), r"has no reset_env, which environments of gymnax have"),
    ],
)
def test_what_cannot_work_is_refused(make: Any, message: str) -> None:
    if "gymnax" in message:
        pytest.importorskip("jax")
    with pytest.raises(ConfigError, match=message):
        make()


# JAX


def gymnax_env(jax: Any) -> Any:
    """The interface of gymnax: a point walks by its action and noise, ends beyond 1.5, and is cut after 6 steps."""

    class Space:
        def __init__(self, **facts: Any) -> None:
            vars(self).update(facts)

    class Params:
        def __init__(self, max_steps_in_episode: int = 6) -> None:
            self.max_steps_in_episode = max_steps_in_episode

        def replace(self, **changes: Any) -> Any:
            return Params(**changes)

    class Walk:
        default_params = Params()

        def observation_space(self, params: Any) -> Any:
            return Space(low=-5.0, high=5.0, shape=(2,), dtype=np.float32)

        def action_space(self, params: Any) -> Any:
            return Space(n=2, shape=())

        def reset_env(self, key: Any, params: Any) -> Any:
            state = jax.numpy.array([jax.random.uniform(key), 0.0])
            return state, state

        def step_env(self, key: Any, state: Any, action: Any, params: Any) -> Any:
            moved = state[0] + action - 0.5 + 0.1 * jax.random.normal(key)
            state = jax.numpy.array([moved, state[1] + 1])
            return state, state, moved, self.is_terminal(state, params), {}

        def is_terminal(self, state: Any, params: Any) -> Any:
            return (jax.numpy.abs(state[0]) > 1.5) | (state[1] >= params.max_steps_in_episode)

    return Walk()


@pytest.mark.third_party  # threads of JAX would make every later fork of this process warn
def test_environments_of_jax_end_at_limits_and_begin_anew() -> None:
    jax = pytest.importorskip("jax")
    env = JaxVecEnv(gymnax_env(jax), 4, device="cpu")
    env.seed(0)
    first = env.reset_tensors()[""].clone()
    assert len(set(first[:, 0].tolist())) == 4, "every environment draws its own numbers"
    ended, limits = 0, 0
    for step_number in range(40):
        step = env.step_tensors(torch.tensor([0, 1, step_number % 2, step_number % 2]))
        last = step.last_observations[""]  # type: ignore[index]
        torch.testing.assert_close(step.terminated, last[:, 0].abs() > 1.5)
        torch.testing.assert_close(step.truncated, (last[:, 1] >= 6) & ~step.terminated)
        assert bool((step.observations[""][step.ended][:, 1] == 0).all())
        assert torch.equal(step.observations[""][~step.ended], last[~step.ended])
        ended, limits = ended + int(step.terminated.sum()), limits + int(step.truncated.sum())
    assert ended
    assert limits
    env.seed(0)
    assert torch.equal(env.reset_tensors()[""], first)


@pytest.mark.third_party
def test_gymnax_walks_as_it_does_by_itself() -> None:
    gymnax = pytest.importorskip("gymnax")
    import jax

    program, params = gymnax.make("CartPole-v1")
    env = JaxVecEnv(program, 3, params.replace(max_steps_in_episode=30), device="cpu")
    env.seed(1)
    observation = env.reset_tensors()[""]
    generator = np.random.default_rng(0)
    for _ in range(80):
        actions, state = torch.tensor(generator.integers(2, size=3)), env._before[1]
        following = [
            program.step_env(jax.random.key(0), jax.tree.map(lambda leaf, i=i: leaf[i], state), int(actions[i]), params)
            for i in range(3)
        ]
        step = env.step_tensors(actions)
        expected = torch.tensor(np.stack([np.asarray(each[0]) for each in following]))
        torch.testing.assert_close(step.last_observations[""], expected)  # type: ignore[index]
        observation = step.observations[""]
    assert observation.shape == (3, 4)
    settings: dict[str, Any] = {"n_steps": 16, "policy_kwargs": POLICY, "seed": 0, "device": "cpu"}
    model: Any = GTrXLPPO("GTrXLPolicy", env, **settings).learn(96)
    assert model.num_timesteps == 96
    assert GTrXLDQN("GTrXLQPolicy", env, policy_kwargs=POLICY, device="cpu").learn(30).num_timesteps >= 30
