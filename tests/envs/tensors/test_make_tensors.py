"""Environments in tensors by id: from Python and from a config."""

import sys
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from stable_baselines3 import PPO

from rltransformers.cli.main import main
from rltransformers.core.errors import ConfigError
from rltransformers.envs import make_vec_env
from rltransformers.envs.tensors.tasks import TENSOR_TASKS, CartPole, RepeatPrevious

BACKBONE = "{preset: gtrxl, width: 8, layers: 1, heads: 2, memory: 4}"


@pytest.mark.parametrize("env_id", TENSOR_TASKS)
def test_every_id_is_made_with_the_spaces_of_its_twin(env_id: str) -> None:
    env: Any = make_vec_env(env_id, 2, seed=0, processes="tensors")
    more: Any = make_vec_env(env_id, 3, seed=0, processes="tensors")
    assert (env.reset() == more.reset()[:2]).all()
    if env_id.startswith("popgym"):
        pytest.importorskip("popgym")
    twin: Any = make_vec_env(env_id, 2)
    assert env.observation_space == twin.observation_space
    assert env.action_space == twin.action_space
    if isinstance(env, CartPole):
        assert env.limit == twin.get_attr("spec")[0].max_episode_steps
    with pytest.raises(ConfigError, match="reaches all environments of"):
        env.set_attr("limit", 5, indices=[0])


def test_sizes_of_repeat_previous_are_those_of_popgym() -> None:
    sizes = {}
    for size in ("Easy", "Medium", "Hard"):
        env = make_vec_env(f"popgym-RepeatPrevious{size}-v0", processes="tensors")
        assert isinstance(env, RepeatPrevious)
        sizes[size] = (env.cards, env.k)
    assert sizes == {"Easy": (52, 4), "Medium": (104, 32), "Hard": (156, 64)}


@pytest.mark.parametrize(
    ("env_id", "options", "message"),
    [
        ("CartPol-v1", {}, r"'CartPol-v1' has no form in tensors; did you mean 'CartPole-v1' or 'CartPole-v0'\?"),
        ("CartPole-v1", {"wrappers": ["History"]}, r"no single ones that wrappers \['History'\] could go around"),
        ("CartPole-v1", {"env_kwargs": {"length": 3}}, r"unexpected keyword argument 'length'"),
        ("CartPole-v1", {"env_kwargs": {"max_episode_steps": 0}}, r"env_kwargs of CartPole-v1: max_episode_steps must"),
        ("rltransformers/CueRecall-v0", {"env_kwargs": {"dely": 3}}, r"dely; did you mean 'delay'"),
        ("nothere:make", {}, r"the module 'nothere' cannot be imported"),
        ("math:make", {}, r"math has no 'make'"),
        ("math:pi", {}, r"'math:pi' is no function or class that makes a TensorVecEnv"),
        (lambda num_envs, device: 3, {}, r"makes 3, which is no TensorVecEnv"),
    ],
)
def test_what_makes_none_is_refused(env_id: Any, options: dict[str, Any], message: str) -> None:
    with pytest.raises(ConfigError, match=message):
        make_vec_env(env_id, 2, processes="tensors", **options)


def test_a_config_trains_goes_on_and_evaluates(tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: Any) -> None:
    (tmp_path / "my_tensors.py").write_text(
        "from rltransformers.envs.tensors.tasks import CartPole\n"
        "def make(num_envs, device, limit=500):\n"
        "    return CartPole(num_envs, device, max_episode_steps=limit)\n"
    )
    monkeypatch.chdir(tmp_path)
    monkeypatch.syspath_prepend(str(tmp_path))
    (tmp_path / "config.yaml").write_text(
        "agent: gtrxl_ppo\n"
        "environment: {id: my_tensors:make, num_envs: 8, processes: tensors, normalize_observation: true,\n"
        "  kwargs: {limit: 12}}\n"
        f"backbone: {BACKBONE}\n"
        "algorithm: {n_steps: 8, n_epochs: 1, device: cpu}\n"
        "train: {total_timesteps: 128}\n"
        "evaluation: {episodes: 3, every: 64}\n"
    )
    assert main(["train", "config.yaml", "--output", "runs", "--trust"]) == 0
    folder = next((tmp_path / "runs").iterdir())
    assert main(["train", "--resume", str(folder), "--train.total_timesteps", "256", "--trust"]) == 0
    assert "begin new episodes" not in capsys.readouterr().err
    assert main(["evaluate", str(folder), "--sample", "--trust"]) == 0
    assert "12.000" in capsys.readouterr().out  # nobody falls in so few steps
    sys.modules.pop("my_tensors", None)


def test_agents_of_stable_baselines_learn_in_them_too() -> None:
    env = make_vec_env("Pendulum-v1", 4, seed=0, processes="tensors")
    model = PPO("MlpPolicy", env, n_steps=8, batch_size=16, seed=0, device="cpu").learn(64)
    assert np.isfinite(model.predict(env.reset())[0]).all()  # type: ignore[arg-type]
