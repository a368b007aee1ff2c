"""Objects, functions and specifications where ids are taken; modules in the current folder; models as behaviors."""

import os
import subprocess
import sys
from collections.abc import Callable
from pathlib import Path
from typing import Any

import gymnasium as gym
import numpy as np
import pytest
from stable_baselines3 import PPO, SAC
from stable_baselines3.common.env_util import make_vec_env as sb3_make_vec_env
from stable_baselines3.common.vec_env import VecNormalize

from rltransformers.agents import DecisionTransformer, GTrXLDQN, GTrXLPPO
from rltransformers.backbone import Backbone
from rltransformers.core.errors import ConfigError
from rltransformers.data import Trajectories, record
from rltransformers.data.behaviors import as_behavior
from rltransformers.envs import make_vec_env, make_vector_env
from rltransformers.training.evaluation import evaluate_online
from rltransformers.training.runs.experiment import read_experiment

SMALL = {"width": 8, "layers": 1, "heads": 2}
SOURCES: dict[str, Callable[[], Any]] = {
    "an id": lambda: "CartPole-v1",
    "a specification": lambda: gym.spec("CartPole-v1"),
    "a function": lambda: lambda: gym.make("CartPole-v1"),
    "an environment": lambda: gym.make("CartPole-v1"),
}


def online(env: Any, kind: type[Any] = GTrXLPPO) -> Any:
    settings = {} if kind is GTrXLDQN else {"n_steps": 8}
    return kind(*kind.policy_aliases, env, policy_kwargs={"backbone": SMALL}, seed=0, device="cpu", **settings)


def offline(data: Any = None, **settings: Any) -> DecisionTransformer:
    data = record("CartPole-v1", "random", episodes=3, seed=0) if data is None else data
    return DecisionTransformer("DTPolicy", data, policy_kwargs={"backbone": SMALL}, seed=0, **settings)


def same(one: Trajectories, other: Trajectories) -> bool:
    return np.array_equal(one.observations[""], other.observations[""])


@pytest.mark.parametrize("source", list(SOURCES))
def test_every_door_takes_what_environments_are_made_from(source: str, tmp_path: Path) -> None:
    make, model = SOURCES[source], online("CartPole-v1")
    model.save(tmp_path / "agent.zip")
    with_id = online("CartPole-v1").learn(16)
    assert (online(make()).learn(16)._last_obs == with_id._last_obs).all()
    assert GTrXLPPO.load(tmp_path / "agent.zip", env=make(), device="cpu").learn(8).num_timesteps == 8
    expected = evaluate_online(model, make_vec_env("CartPole-v1"), "CartPole-v1", 2).returns
    assert evaluate_online(model, make_vec_env(make()), "CartPole-v1", 2).returns == expected
    observation, _ = make_vector_env(make()).reset(seed=3)
    np.testing.assert_array_equal(observation, make_vector_env("CartPole-v1").reset(seed=3)[0])
    dt = offline()
    (expected_result,) = dt.evaluate("CartPole-v1", 10.0, episodes=3)
    (result,) = dt.evaluate(make(), 10.0, episodes=3)
    assert result.returns == expected_result.returns and result.env_id == "CartPole-v1"
    assert same(record(make(), "random", episodes=2), record("CartPole-v1", "random", episodes=2))


def test_an_environment_that_was_given_stays_open_and_functions_take_keywords() -> None:
    env, dt, closed = gym.make("CartPole-v1"), offline(), []
    env.close = lambda: closed.append(env)  # type: ignore[method-assign]
    dt.evaluate(env, 10.0, episodes=1)
    env.reset()
    env.step(0)
    assert closed == []
    keywords: dict[str, Any] = {"env_kwargs": {"id": "CartPole-v1", "max_episode_steps": 4}}
    (result,) = dt.evaluate(gym.make, 10.0, episodes=3, **keywords)
    assert max(result.lengths) <= 4
    assert record(gym.make, "random", episodes=2, **keywords).lengths.max() <= 4
    vec_env = make_vec_env(gym.make, 3, **keywords)
    assert vec_env.num_envs == 3 and vec_env.get_attr("spec")[0].max_episode_steps == 4


def test_what_cannot_be_copied_or_reset_is_refused_with_the_way_out() -> None:
    env = gym.make("CartPole-v1")
    with pytest.raises(ConfigError, match=r"one environment, which has no copies.* give its id, or a function"):
        make_vec_env(env, 2)
    with pytest.raises(ConfigError, match="give a function that makes it"):
        make_vec_env(env, processes=True)
    with pytest.raises(ConfigError, match=r"holds environments already.*give an id, a function"):
        offline().evaluate(make_vec_env("CartPole-v1"), 10.0, episodes=1)
    with pytest.raises(ConfigError, match="makes 3, which is no environment"):
        make_vec_env(lambda: 3)  # type: ignore[arg-type]
    with pytest.raises(ConfigError, match="a function that makes an environment"):
        online(3)


@pytest.mark.parametrize("env_id", ["popgym-RepeatPreviousEasy-v0"])
def test_the_constructor_finds_the_ids_of_a_suite(env_id: str, recwarn: pytest.WarningsRecorder) -> None:
    pytest.importorskip("popgym")
    assert online(env_id).observation_space == make_vec_env(env_id).observation_space
    assert record(env_id, "random", steps=1).steps


MODULE = """
import gymnasium, numpy as np
from gymnasium.envs.classic_control import CartPoleEnv
class Own(CartPoleEnv):
    def __init__(self, **options):
        import beside_for_tests  # only when it is made
        super().__init__(**options)
class Same(gymnasium.Wrapper): pass
gymnasium.register("OwnPole-v0", entry_point="own_for_tests:Own", max_episode_steps=9)
def act(observations, episode_starts, generator): return np.zeros(len(episode_starts), int)
"""


def test_a_console_script_sees_modules_of_the_current_folder(tmp_path: Path) -> None:
    """A console script has its own folder first on the path, not the current one."""
    work, scripts = tmp_path / "work", tmp_path / "bin"
    work.mkdir()
    scripts.mkdir()
    (work / "own_for_tests.py").write_text(MODULE)
    (work / "beside_for_tests.py").write_text("")
    (scripts / "rltransformers").write_text("import sys\nfrom rltransformers.cli.main import main\nsys.exit(main())\n")
    environment = os.environ | {"MINARI_DATASETS_PATH": str(work), "PYTHONPATH": str(Path(__file__).parents[2])}
    words = ["collect", "--env", "own_for_tests:OwnPole-v0", "--behavior", "own_for_tests:act", "--steps", "20"]
    command = [sys.executable, str(scripts / "rltransformers"), *words, "--dataset", "own/pole-v0"]
    done = subprocess.run(command, cwd=work, env=environment, capture_output=True, text=True, timeout=300)
    assert done.returncode == 0, done.stderr
    assert "own/pole-v0" in done.stdout


# Behaviors -------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("what", [lambda model: model, lambda model: model.policy], ids=["model", "policy"])
def test_models_and_policies_of_stable_baselines3_are_behaviors(what: Callable[[Any], Any]) -> None:
    short: dict[str, Any] = {"env_kwargs": {"max_episode_steps": 30}}
    for model in (PPO("MlpPolicy", "CartPole-v1", seed=0), SAC("MlpPolicy", "Pendulum-v1", seed=0)):
        env_id = model.get_env().get_attr("spec")[0].id  # type: ignore[union-attr]
        data = record(env_id, what(model), episodes=2, num_envs=2, deterministic=True, **short)
        rows = np.arange(data.steps) + np.repeat(np.arange(len(data)), data.lengths)
        expected, _ = model.predict(data.observations[""][rows], deterministic=True)
        np.testing.assert_allclose(data.actions[""], expected, atol=1e-5)  # rounding of other batches
        sampled = [record(env_id, what(model), steps=9, seed=seed, **short) for seed in (1, 1, 2)]
        assert same(*sampled[:2]) and not same(sampled[0], sampled[2])


def test_a_model_brings_its_statistics_and_may_not_meet_them_twice() -> None:
    env = VecNormalize(sb3_make_vec_env("CartPole-v1", 2))
    model = PPO("MlpPolicy", env, n_steps=32, seed=0).learn(64)
    data = record("CartPole-v1", model, episodes=1, deterministic=True)
    expected, _ = model.predict(env.normalize_obs(data.observations[""][:-1]), deterministic=True)
    np.testing.assert_array_equal(data.actions[""], expected)
    ours = GTrXLPPO("GTrXLPolicy", env, n_steps=8, policy_kwargs={"backbone": SMALL}, seed=0)
    models: tuple[Any, ...] = (model, ours)
    for each in models:
        with pytest.raises(ConfigError, match=r"without VecNormalize, as env\.venv"):
            record(env, each, episodes=1)
        record(env.venv, each, episodes=1)


@pytest.mark.parametrize("make", [lambda: online("CartPole-v1"), lambda: online("CartPole-v1", GTrXLDQN), offline])
def test_agents_are_behaviors(make: Callable[[], Any]) -> None:
    agent = make()
    data = record("CartPole-v1", agent, episodes=2, deterministic=True)
    assert same(data, record("CartPole-v1", agent.actor(), episodes=2))
    assert data.metadata["behaviors"][0]["name"] == agent.kind


def test_a_behavior_of_other_actions_is_refused() -> None:
    model = PPO("MlpPolicy", "CartPole-v1", seed=0)
    with pytest.raises(ConfigError, match=r"PPO acts in Discrete\(2\), the environment takes"):
        record("Pendulum-v1", model, steps=1)
    with pytest.raises(ConfigError, match="a model or policy of Stable-Baselines3; got int"):
        as_behavior(3, model.observation_space, model.action_space)  # type: ignore[arg-type]


# A preset ---------------------------------------------------------------------------------------------------


def test_a_backbone_may_be_named(tmp_path: Path) -> None:
    assert Backbone("gtrxl").config == Backbone({"preset": "gtrxl"}).config
    kinds: tuple[Any, ...] = (GTrXLPPO, GTrXLDQN)
    for kind in kinds:
        model = kind(*kind.policy_aliases, "CartPole-v1", policy_kwargs={"backbone": "alibi"}, device="cpu")
        model.save(tmp_path / "agent.zip")
        assert kind.load(tmp_path / "agent.zip").policy.config == Backbone("alibi").config
    data = record("CartPole-v1", "random", episodes=1)
    dt = DecisionTransformer("DTPolicy", data, policy_kwargs={"backbone": "gtrxl"}, context_length=5)
    assert dt.backbone_config.choices.residual.name == "gru" and dt.backbone_config.memory == 4
    with pytest.raises(ConfigError, match="unknown preset 'gtrx'; did you mean 'gtrxl'"):
        DecisionTransformer("DTPolicy", data, policy_kwargs={"backbone": "gtrx"})


def test_a_config_may_name_its_backbone(tmp_path: Path) -> None:
    for text in ("backbone: alibi", "backbone: {preset: alibi}"):
        (tmp_path / "run.yaml").write_text(
            f"agent: gtrxl_ppo\nenvironment: {{id: CartPole-v1}}\ntrain: {{total_timesteps: 9}}\n{text}\n"
        )
        assert read_experiment(tmp_path / "run.yaml").backbone == {"preset": "alibi"}
