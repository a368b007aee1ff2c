"""Laws of an actor: it acts as ``predict`` with a state does, on what the environment gives, and leaks nothing."""

from collections.abc import Callable
from pathlib import Path
from typing import Any

import gymnasium as gym
import numpy as np
import pytest
import torch
from stable_baselines3.common.evaluation import evaluate_policy
from stable_baselines3.common.vec_env import DummyVecEnv, VecNormalize

from rltransformers.agents import Actor, DecisionTransformer, GTrXLDQN, GTrXLPPO, GTrXLVMPO
from rltransformers.core.errors import CheckpointError, ConfigError, DataError
from rltransformers.data import record
from rltransformers.data.behaviors import Behavior
from rltransformers.envs import make_vec_env
from rltransformers.training.evaluation import evaluate_online
from rltransformers.training.stepping import FileState

SMALL = {"width": 8, "layers": 1, "heads": 2}
Agent = GTrXLPPO | GTrXLVMPO | GTrXLDQN | DecisionTransformer


def online(
    kind: type[Any] = GTrXLPPO,
    environment: str = "CartPole-v1",
    reads: bool = True,
    steps: int = 64,
    memory: int = 6,
    normalized: bool = True,
) -> Any:
    """On normalized observations and rewards, with statistics that are not the initial ones.

    Where not ``normalized``, on raw observations and rewards that the agent scales by itself.
    """
    env: Any = DummyVecEnv([lambda: gym.make(environment)] * 2)
    env = VecNormalize(env) if normalized else env
    policy = {"backbone": {"memory": memory, **SMALL}, "previous_action": True, "previous_reward": reads}
    settings = {"learning_starts": 40} if kind is GTrXLDQN else {"n_steps": 16, "n_epochs": 1}
    model = kind(*kind.policy_aliases, env, policy_kwargs=policy, seed=0, device="cpu", learning_rate=3e-2, **settings)
    return model.learn(steps)


def offline(environment: str = "CartPole-v1", **settings: Any) -> DecisionTransformer:
    data = record(environment, "random", episodes=5, num_envs=2, seed=0)
    values: dict[str, Any] = {"context_length": 6, "batch_size": 8, "warmup_steps": 1, "learning_rate": 3e-2, "seed": 0}
    values["policy_kwargs"] = {"backbone": SMALL}
    return DecisionTransformer("DTPolicy", data, **(values | settings)).learn(10)


pytestmark = pytest.mark.filterwarnings("ignore:the return head predicts")  # after ten updates

MAKERS: dict[str, Callable[[], Agent]] = {
    "ppo": online,
    "ppo, its own scale of rewards": lambda: online(normalized=False),
    "ppo, a Box of actions": lambda: online(environment="Pendulum-v1"),
    "vmpo": lambda: online(GTrXLVMPO),
    "dqn": lambda: online(GTrXLDQN),
    "dqn, its own scale of rewards": lambda: online(GTrXLDQN, normalized=False),
    "dt": offline,
    "dt, a Box of actions": lambda: offline("Pendulum-v1", action_head="gaussian"),
    "bc": lambda: offline(mode="bc", seed=1),
    "dt, return head": lambda: offline(return_head="expectile", seed=4),
    "dt, delayed": lambda: offline(delayed_reward=True, acting_mode="banded"),
}


@pytest.fixture(scope="module", params=list(MAKERS))
def agent(request: pytest.FixtureRequest) -> Agent:
    return MAKERS[request.param]()


@pytest.mark.parametrize(
    ("make", "name"),
    [
        (lambda: online(reads=False), "CartPole-v1"),
        (lambda: online(GTrXLDQN, reads=False), "CartPole-v1"),
        (lambda: online(environment="Pendulum-v1", reads=False), "Pendulum-v1"),
        (lambda: offline(), "CartPole-v1"),
        (lambda: offline("Pendulum-v1", action_head="gaussian"), "Pendulum-v1"),
    ],
)
def test_sampled_evaluations_do_not_depend_on_the_number_of_environments(make: Callable[[], Any], name: str) -> None:
    model, short = make(), {"max_episode_steps": 60 if name == "CartPole-v1" else 9}

    def returns(copies: int) -> list[float]:
        env = make_vec_env(name, copies, env_kwargs=short)
        acted = evaluate_online(model.actor(), env, name, 7, seed=4, deterministic=False)
        if isinstance(model, DecisionTransformer):
            found = model.evaluate(name, None, 7, copies, 4, env_kwargs=short, deterministic=False)[0]
        else:
            env = VecNormalize(env, training=False, norm_reward=False)
            env.obs_rms = model.get_vec_normalize_env().obs_rms
            found = evaluate_online(model, env, name, 7, seed=4, deterministic=False)
        assert acted.returns == pytest.approx(found.returns, rel=1e-5)
        return list(found.returns)

    alone = returns(1)
    assert len(set(alone)) > 3
    for copies in (3, 8):
        assert returns(copies) == pytest.approx(alone, rel=1e-5)


class Stream:
    """Observations, rewards and ends of B episodes of any lengths, as an environment gives them."""

    def __init__(self, agent: Agent, batch: int, steps: int = 25, seed: int = 0) -> None:
        generator = np.random.default_rng(seed)
        width = agent.observation_space.shape[0]  # type: ignore[index]
        self.observations = generator.normal(0.0, 2.0, (steps, batch, width)).astype(np.float32)
        self.observations = self.observations.clip(-0.4, 0.4)
        self.rewards = generator.normal(1.0, 3.0, (steps, batch))
        self.ended = generator.random((steps, batch)) < 0.15

    def play(self, actor: Actor) -> np.ndarray:
        """Actions [T, B, ...] of the whole stream."""
        actor.reset()
        actions = []
        for step, observation in enumerate(self.observations):
            actions.append(actor(observation, self.rewards[step]))
            actor.reset(self.ended[step])
        return np.stack(actions)


def by_predict(agent: Agent, stream: Stream, target: Any = None) -> np.ndarray:
    """What the agent's own ``predict`` does with a state, on normalized values where there are statistics."""
    normal = agent.get_vec_normalize_env()
    state, start, actions = None, None, []
    for observation, ended, reward in zip(stream.observations, stream.ended, stream.rewards, strict=True):
        told: dict[str, Any] = {"reward": reward}
        if normal is not None:
            observation, told["reward"] = normal.normalize_obs(observation), normal.normalize_reward(reward)
        if target is not None:
            told["target_return"] = target
        action, state = agent.predict(observation, state, start, deterministic=True, **told)
        start = ended
        actions.append(action)
    return np.stack(actions)


def test_an_actor_acts_as_predict_with_a_state_does(agent: Agent) -> None:
    stream = Stream(agent, 3)
    actions = stream.play(agent.actor())
    np.testing.assert_array_equal(actions, by_predict(agent, stream))
    assert np.ptp(actions) > 0  # else anything would equal it


def test_an_environment_alone_is_acted_in_as_beside_others(agent: Agent) -> None:
    stream, actor = Stream(agent, 3), agent.actor()
    together = stream.play(actor)
    for row in range(3):
        actor.reset()
        for step, expected in enumerate(together[:, row]):
            action = actor(stream.observations[step, row], float(stream.rewards[step, row]))
            assert np.shape(action) == agent.action_space.shape
            np.testing.assert_allclose(action, expected, atol=1e-5)  # float32; products of 1 and of 3 rows
            if stream.ended[step, row]:
                actor.reset()


def test_a_reset_leaks_nothing(agent: Agent) -> None:
    used, stream = agent.actor(), Stream(agent, 3)
    Stream(agent, 4, seed=1).play(used)
    np.testing.assert_array_equal(stream.play(used), stream.play(agent.actor()))


def test_what_predict_remembers_is_not_what_the_actor_remembers(agent: Agent) -> None:
    stream, actor, other = Stream(agent, 2), agent.actor(), Stream(agent, 3, seed=2)
    expected = stream.play(agent.actor())
    actor.reset()
    state, start = None, np.ones(3, bool)
    for step, observation in enumerate(stream.observations):
        np.testing.assert_array_equal(actor(observation, stream.rewards[step]), expected[step])
        _, state = actor.predict(other.observations[step], state, start, reward=other.rewards[step])
        actor.reset(stream.ended[step])
        start = other.ended[step]


def test_predict_of_an_actor_takes_the_steps_of_its_loop(agent: Agent) -> None:
    stream, actor = Stream(agent, 3), agent.actor()
    expected, state, start = stream.play(actor), None, None
    for step, observation in enumerate(stream.observations):
        action, state = actor.predict(observation, state, start, reward=stream.rewards[step])
        np.testing.assert_array_equal(action, expected[step])
        start = stream.ended[step]


def test_samples_follow_from_the_seed_and_leave_the_agent_alone(agent: Agent) -> None:
    stream = Stream(agent, 3)
    first, again, other = (stream.play(agent.actor(deterministic=False, seed=seed)) for seed in (1, 1, 2))
    np.testing.assert_array_equal(first, again)
    deterministic = not agent.actor()._policy.noise[0].numbers
    assert deterministic == np.array_equal(first, other)
    streams = [name for name in ("_predict_generator", "_action_generator") if hasattr(agent, name)]
    before = {name: getattr(agent, name).get_state() for name in streams}
    stream.play(agent.actor(deterministic=False))
    assert all(bool((getattr(agent, name).get_state() == before[name]).all()) for name in streams)


def test_a_loaded_agent_without_environment_uses_the_stored_statistics(agent: Agent, tmp_path: Path) -> None:
    agent.save(tmp_path / "agent.zip")
    loaded = type(agent).load(tmp_path / "agent.zip", device="cpu")
    stream = Stream(agent, 3)
    np.testing.assert_array_equal(stream.play(loaded.actor()), stream.play(agent.actor()))


def test_a_recording_in_an_environment_of_other_spaces_is_refused_before_it_starts(agent: Agent) -> None:
    with pytest.raises(ConfigError, match=r"the observation space of the behavior .* is not that of the environment"):
        record("MountainCar-v0", agent.actor(), 5)


def test_a_recording_holds_the_actions_of_the_actor(agent: Agent) -> None:
    environment = "Pendulum-v1" if agent.observation_space.shape == (3,) else "CartPole-v1"
    actor = agent.actor()
    assert isinstance(actor, Behavior)
    data = record(environment, actor, episodes=3, num_envs=2, seed=3)
    for episode, begins in enumerate(data.offsets[:-1]):
        actor.reset()
        for step in range(begins, min(data.offsets[episode + 1], begins + 60)):
            reward = data.rewards[step - 1] if step > begins else None
            observation = data.observations[""][step + episode]  # an episode has one more, its last
            np.testing.assert_allclose(actor(observation, reward), data.actions[""][step], atol=1e-4)


def test_targets_decide_what_a_decision_transformer_is_asked_for() -> None:
    model = offline()
    stream, targets = Stream(model, 3), [-40.0, 5.0, 60.0]
    actions = stream.play(model.actor(targets))
    np.testing.assert_array_equal(actions, by_predict(model, stream, targets))
    assert (actions != stream.play(model.actor(5.0))).any()


def test_evaluate_policy_plays_raw_environments_as_evaluations_play_normalized_ones() -> None:
    model = online(reads=False)
    raw = make_vec_env("CartPole-v1", 1)
    normalized = VecNormalize(make_vec_env("CartPole-v1", 1), training=False, norm_reward=False)
    normalized.obs_rms = model.get_vec_normalize_env().obs_rms
    expected = evaluate_online(model, normalized, "CartPole-v1", 2)
    for seed, total in zip(expected.seeds, expected.returns, strict=True):
        raw.seed(seed)
        assert evaluate_policy(model.actor(), raw, n_eval_episodes=1, return_episode_rewards=True)[0] == [total]
    evaluate_policy(model.actor(), gym.make("CartPole-v1"), n_eval_episodes=1, warn=False)


@pytest.mark.parametrize("kind", [GTrXLPPO, GTrXLDQN])
def test_rewards_are_scaled_as_in_training_after_an_evaluation_of_stable_baselines_too(
    kind: type[Any], tmp_path: Path
) -> None:
    """Which sets ``norm_reward`` to False, as its guide says."""
    model = online(kind, steps=80)
    stream = Stream(model, 3)
    expected = stream.play(model.actor())
    env = model.get_vec_normalize_env()
    env.training = env.norm_reward = False
    np.testing.assert_array_equal(stream.play(model.actor()), expected)
    model.save(tmp_path / "model")
    np.testing.assert_array_equal(stream.play(kind.load(tmp_path / "model").actor()), expected)
    again = kind.load(tmp_path / "model", env=make_vec_env("CartPole-v1", 2))
    assert again.get_vec_normalize_env().norm_reward
    model.learn(8)
    assert model._normalization()["settings"]["norm_reward"] is False  # which it has learned from by now


@pytest.mark.parametrize("later", [False, True])
def test_an_environment_with_other_rewards_is_refused_where_the_policy_reads_them(later: bool, tmp_path: Path) -> None:
    def load() -> GTrXLPPO:
        env = VecNormalize(make_vec_env("CartPole-v1", 2), norm_reward=False)
        model = GTrXLPPO.load(tmp_path / "model", env=None if later else env)
        if later:
            model.set_env(env)
        return model

    online(reads=False).save(tmp_path / "model")
    assert not load().get_vec_normalize_env().norm_reward  # type: ignore[union-attr]
    online().save(tmp_path / "model")
    with pytest.raises(ConfigError, match=r"reads rewards .* trained with VecNormalize\(norm_reward=True\)"):
        load()


def test_a_watched_environment_tells_the_actor_its_rewards() -> None:
    model = offline("Pendulum-v1")
    actor = model.actor(-900.0)
    env = actor.watch("Pendulum-v1")
    (expected,) = model.evaluate("Pendulum-v1", -900.0, episodes=1, seed=5)
    env.seed(expected.seeds[0])
    returns, _ = evaluate_policy(actor, env, n_eval_episodes=1, return_episode_rewards=True)
    np.testing.assert_allclose(returns, expected.returns, rtol=1e-4)  # float32 sums of 200 steps
    for unheard in (model.actor(), actor):  # of the second the watched environment is another one
        with pytest.raises(ConfigError, match=r"actor\.watch\(env\)"):
            evaluate_policy(unheard, make_vec_env("Pendulum-v1", 2), n_eval_episodes=1)


def test_what_the_actor_normalizes_is_not_normalized_before() -> None:
    model = online()
    with pytest.raises(ConfigError, match="normalizes observations by itself, and so does this environment"):
        model.actor().watch(model.get_env())
    actor = model.actor()
    evaluate_policy(actor, actor.watch("CartPole-v1"), n_eval_episodes=1)


def test_wrong_use_names_the_way_out() -> None:
    model, one = offline(), np.zeros(4, np.float32)
    actor = model.actor()
    with pytest.raises(ConfigError, match=r"actor\.reset\(\) comes first"):
        actor(one)
    with pytest.raises(ConfigError, match=r"call actor\.reset\(\) before"):
        actor.reset(np.array([True]))
    actor.reset()
    actor(one)
    with pytest.raises(ConfigError, match=r"actor\(observation, reward\)"):
        actor(one)
    with pytest.raises(ConfigError, match=r"1 environments, got 2; call actor\.reset\(\)"):
        actor(np.zeros((2, 4)), 1.0)
    with pytest.raises(DataError, match="episode_start has 3 entries for 1"):
        actor.reset([True, False, True])
    many = model.actor()
    many.reset()
    many.reset([False, True, False])  # all begin anyway
    with pytest.raises(DataError, match="episode_start is 2 at step 1"):
        many.reset([0, 2, 0])
    with pytest.raises(DataError, match="episode_start has 2 entries for 3"):
        many.predict(np.zeros((3, 4)), episode_start=[True, True])
    many(np.zeros((3, 4), np.float32))
    for ended in ([1], [True], [0, 2]):  # indices are no booleans, one is none for each
        with pytest.raises(DataError, match=r"for 3 environments; give one boolean for each|episode_start"):
            many.reset(ended)
    with pytest.raises(DataError, match="not finite"):
        actor(one, np.nan)
    actor(one, 1.0)  # what was refused changed nothing
    with pytest.raises(ConfigError, match="leave target_return out"):
        offline(mode="bc").actor(3.0)
    with pytest.raises(ConfigError, match="finite number"):
        model.actor(float("inf"))
    with pytest.raises(ConfigError, match=r"one per environment \(2\)"):
        refused = model.actor([1.0, 2.0, 3.0])
        refused.reset()
        refused(np.zeros((2, 4)))
    strangers: tuple[Any, ...] = (torch.Generator(), np.random.RandomState(0), 5, [5])
    for wrong in strangers:
        sampling = model.actor(1.0, deterministic=False)
        sampling.reset()
        with pytest.raises(ConfigError, match=r"pass numpy\.random\.default_rng\(seed\)"):
            sampling.decide(one, generator=wrong)
    with pytest.raises(ConfigError, match="state must be what predict returned"):
        actor.predict(one, state=(1, 2))


def test_predict_refuses_the_state_of_another_policy() -> None:
    actor, narrow, other = online().actor(), online(steps=0, memory=9).actor(), offline().actor()
    one = np.zeros(4, np.float32)
    states = [each.predict(one)[1] for each in (actor, narrow, other)]
    actor.predict(one, states[0], reward=1.0)
    with pytest.raises(ConfigError, match=r"state is of another backbone: .* has shape"):
        actor.predict(one, states[1])
    with pytest.raises(ConfigError, match="state must be what predict returned, or None; got ActingState"):
        actor.predict(one, states[2])
    with pytest.raises(ConfigError, match="belongs to 1 environments, the observation to 2; pass state=None"):
        actor.predict(np.zeros((2, 4), np.float32), states[0])
    other.predict(one, states[2], reward=1.0)
    with pytest.raises(ConfigError, match="got PolicyState"):
        other.predict(one, states[0], reward=1.0)
    with pytest.raises(ConfigError, match="of another model or another acting_mode"):
        other.predict(one, offline(context_length=7).actor().predict(one)[1], reward=1.0)


NOT_FINITE = "policy's values or log-probabilities are not finite; look whether its weights"


@pytest.mark.parametrize("make", [online, lambda: online(GTrXLDQN), offline, lambda: offline(mode="bc")])
def test_nobody_acts_on_a_network_that_is_not_finite(make: Callable[[], Any]) -> None:
    model, seen = make(), np.zeros(4, np.float32)
    head = model.policy.head if isinstance(model, DecisionTransformer) else model.policy.action_head
    with torch.no_grad():
        head.linear.weight.fill_(torch.nan)
    actor = model.actor()
    calls: list[Callable[[], object]] = [
        lambda: actor(seen, 1.0),
        lambda: actor.decide(seen, 1.0),
        lambda: actor.predict(seen),
        lambda: model.predict(seen),
    ]
    if isinstance(model, DecisionTransformer):
        calls.append(lambda: model.evaluate("CartPole-v1", episodes=2))
    actor.reset()
    for call in calls:
        with pytest.raises(DataError, match=NOT_FINITE):
            call()


@pytest.mark.slow
@pytest.mark.parametrize("make", [online, offline])
def test_neither_does_machine_code_nor_a_file(make: Callable[[], Any], tmp_path: Path) -> None:
    model, seen = make(), np.zeros(4, np.float32)
    model.save(tmp_path / "agent")
    model = type(model).load(tmp_path / "agent", device="cpu", acting="compiled")
    actor = model.actor()
    actor.reset()
    actor(seen, 1.0)
    head = model.policy.head if isinstance(model, DecisionTransformer) else model.policy.action_head
    with torch.no_grad():
        head.linear.weight.fill_(torch.nan)
    with pytest.raises(DataError, match=NOT_FINITE):
        actor(seen, 1.0)
    model.export(tmp_path / "policy.pt2")
    with pytest.raises(CheckpointError, match=NOT_FINITE):
        Actor.from_export(tmp_path / "policy.pt2")


def test_a_number_beyond_the_type_of_the_observation_is_refused() -> None:
    half = gym.spaces.Box(-np.inf, np.inf, (4,), np.float16)
    env: Any = gym.wrappers.TransformObservation(gym.make("CartPole-v1"), lambda seen: seen.astype(np.float16), half)
    actor = GTrXLPPO("GTrXLPolicy", env, n_steps=8, policy_kwargs={"backbone": SMALL}).actor()
    actor.reset()
    with pytest.raises(DataError, match=r"observation of environment 0 is inf at entry \[0\], not finite"):
        actor(np.array([1e5, 0.0, 0.0, 0.0], np.float32))


def test_a_faulty_step_leaves_what_is_remembered() -> None:
    model, stream = online(), None
    stream = Stream(model, 3)
    expected, actor = stream.play(model.actor()), model.actor()
    actor.reset()
    for step, observation in enumerate(stream.observations):
        with pytest.raises(DataError, match="not finite"):
            actor(observation * np.nan, stream.rewards[step])
        np.testing.assert_array_equal(actor(observation, stream.rewards[step]), expected[step])
        actor.reset(stream.ended[step])


@pytest.mark.slow
@pytest.mark.xdist_group("exported actors")
@pytest.mark.parametrize(
    ("name", "ending"),
    [("ppo", "onnx"), ("dqn, its own scale of rewards", "pt2"), ("dt, return head", "pt2")],
)
def test_a_file_acts_as_the_live_agent(name: str, ending: str, tmp_path: Path) -> None:
    model = MAKERS[name]()
    path = tmp_path / f"policy.{ending}"
    model.export(path)
    stream, target = Stream(model, 3), {"target_return": [-40.0, 5.0, 60.0]} if name == "dt" else {}
    for sampled in ({}, {"deterministic": False, "seed": 3}):
        found = stream.play(Actor.from_export(path, **target, **sampled))  # type: ignore[arg-type]
        np.testing.assert_array_equal(found, stream.play(model.actor(**target, **sampled)))  # type: ignore[arg-type]


@pytest.mark.slow
def test_a_file_for_one_environment_says_so_and_long_episodes_are_refused(tmp_path: Path) -> None:
    model = offline(mode="bc", policy_kwargs={"backbone": {**SMALL, "position": {"name": "timestep", "max_len": 200}}})
    model.export(tmp_path / "one.pt2", batch=1)
    actor = Actor.from_export(tmp_path / "one.pt2")
    _, state = actor.predict(np.zeros(4), None)
    _, state = actor.predict(np.zeros(4), state)
    with pytest.raises(ConfigError, match=r"the state is of another file: .* has shape None"):
        actor.predict(np.zeros(4), FileState({}, state.age))
    with pytest.raises(ConfigError, match="state must be what predict returned, or None; got PolicyState"):
        actor.predict(np.zeros(4), online(steps=0).actor().predict(np.zeros(4))[1])
    actor.reset()
    with pytest.raises(ConfigError, match=r"for 1 environments, got 2; export\(path, batch=None\)"):
        actor(np.zeros((2, 4)))
    assert actor.longest_episode == model.actor().longest_episode == 200
    with pytest.raises(DataError, match="longer than the 200 steps"):
        for _ in range(201):
            actor(np.zeros(4))
    with pytest.raises(ConfigError, match="leave target_return out"):
        Actor.from_export(tmp_path / "one.pt2", 3.0)


def test_what_is_no_file_of_a_policy_is_refused(tmp_path: Path) -> None:
    with pytest.raises(CheckpointError, match="there is no file"):
        Actor.from_export(tmp_path / "none.onnx")
    for wrong in (None, 3):
        with pytest.raises(ConfigError, match="path must be a text or a path"):
            Actor.from_export(wrong)  # type: ignore[arg-type]
    with pytest.raises(ConfigError, match=r"must end in \.pt2 or \.onnx"):
        Actor.from_export(tmp_path / "agent.zip")
    for name in ("noise.onnx", "noise.pt2"):
        (tmp_path / name).write_bytes(b"noise")
        with pytest.raises(CheckpointError, match="no readable"):
            Actor.from_export(tmp_path / name)
