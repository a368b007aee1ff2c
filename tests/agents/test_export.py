"""Files of trained agents: equal to eager for a thousand steps, for every preset, and played without this package."""

import functools
import json
import subprocess
import sys
from collections.abc import Callable, Mapping
from pathlib import Path
from typing import Any

import gymnasium as gym
import numpy as np
import pytest
import torch
from stable_baselines3.common.vec_env import DummyVecEnv, VecNormalize

from rltransformers.agents import Actor, DecisionTransformer, GTrXLDQN, GTrXLPPO, GTrXLSAC
from rltransformers.backbone import PRESETS
from rltransformers.data import record
from rltransformers.export.step import Tensors
from rltransformers.policies.shipping import ActorCriticInFile, DecisionInFile
from rltransformers.training.normalization import scalings_of
from tests.attention.rows import small_windows
from tests.choice import ALL_CASES
from tests.docs.blocks import ROOT
from tests.export.laws import assert_runs_equal, random_like, run_of
from tests.export.tape import Operations
from tests.export.test_files import onnx_step

pytestmark = pytest.mark.slow

SMALL = {"width": 16, "heads": 2}
Agent = GTrXLPPO | GTrXLDQN | GTrXLSAC | DecisionTransformer


def layers_in(environment: str) -> int:
    """Two where a thousand steps are compared; a second one takes half as long again to write."""
    return 2 if environment == "CartPole-v1" else 1


def untrained(environment: str = "CartPole-v1", **backbone: Any) -> GTrXLPPO:
    """On normalized observations; reads its last action and reward."""
    env = VecNormalize(DummyVecEnv([lambda: gym.make(environment)] * 2))
    layered = {"layers": layers_in(environment)}
    policy = {
        "backbone": {"memory": 6, **SMALL, **layered, **backbone},
        "previous_action": True,
        "previous_reward": True,
    }
    settings: dict[str, Any] = {"n_steps": 32, "n_epochs": 1, "seed": 0, "device": "cpu", "learning_rate": 1e-2}
    return GTrXLPPO("GTrXLPolicy", env, policy_kwargs=policy, **settings)


def online(environment: str = "CartPole-v1") -> GTrXLPPO:
    """Trained for two updates."""
    return untrained(environment).learn(128)


def offline(environment: str = "CartPole-v1", **settings: Any) -> DecisionTransformer:
    data = record(environment, "random", episodes=4, num_envs=2, seed=0)
    values: dict[str, Any] = {"context_length": 6, "batch_size": 8, "warmup_steps": 1, "learning_rate": 1e-2, "seed": 0}
    layered = {"layers": layers_in(environment)}
    policy = {"backbone": {**SMALL, **layered, "position": {"name": "timestep", "max_len": 2000}}}
    values |= {"policy_kwargs": policy}
    return DecisionTransformer("DTPolicy", data, device="cpu", **(values | settings)).learn(10)


def step_of(model: Agent) -> ActorCriticInFile | DecisionInFile:
    if isinstance(model, DecisionTransformer):
        return DecisionInFile(model.decider(), model.summary.best_return).eval()
    return ActorCriticInFile(model.policy, *scalings_of(model._normalization())).eval()


def drawing(examples: Tensors) -> Callable[[torch.Generator], Tensors]:
    """Random inputs: one episode in ten begins, half of the actions are sampled, noise lies in [0, 1)."""

    def draw(generator: torch.Generator) -> Tensors:
        inputs = random_like(examples, generator)
        rows = len(next(iter(inputs.values())))
        for name in {"noise"} & set(inputs):
            inputs[name] = torch.rand(inputs[name].shape, generator=generator, dtype=inputs[name].dtype)
        for name in {"greedy"} & set(inputs):
            inputs[name] = torch.rand(rows, generator=generator) < 0.5
        return inputs

    return draw


def form_of(path: Path) -> Callable[[Tensors, Tensors], tuple[Tensors, Tensors]]:
    """The step that a file holds."""
    form: Any = onnx_step(path) if path.suffix == ".onnx" else torch.export.load(path).module()
    return form


def assert_file_equals_eager(path: Path, model: Agent, steps: int, batch: int, tolerance: float) -> None:
    assert_files_equal_eager({path: tolerance}, model, steps, batch)


def assert_files_equal_eager(tolerances: Mapping[Path, float], model: Agent, steps: int, batch: int) -> None:
    step = step_of(model)
    inputs, state = step.examples(batch)
    expected = run_of(step, drawing(inputs), state, steps)
    for path, tolerance in tolerances.items():
        assert_runs_equal(run_of(form_of(path), drawing(inputs), state, steps), expected, tolerance=tolerance)


Written = Callable[[Callable[[str], Agent], str], tuple[Agent, list[list[float]], Path]]
EITHER = [
    pytest.param(make, marks=pytest.mark.xdist_group(f"files of the {make.__name__} agent"))
    for make in (online, offline)
]
"""One process writes all files of an agent."""


@pytest.fixture(scope="module")
def written(tmp_path_factory: pytest.TempPathFactory) -> Written:
    """Gives an agent, what it played before it was written, and its ONNX file; each agent is made and written once."""

    @functools.cache
    def of(make: Callable[[str], Agent], environment: str) -> tuple[Agent, list[list[float]], Path]:
        model = make(environment)
        path, before = tmp_path_factory.mktemp("written") / "policy.onnx", played(model)
        model.export(path)
        return model, before, path

    return of


@pytest.mark.parametrize("make", EITHER)
def test_files_equal_eager_for_a_thousand_steps_and_leave_the_agent_as_it_was(
    make: Callable[[str], Agent], written: Written, tmp_path: Path
) -> None:
    model, before, onnx = written(make, "CartPole-v1")
    model.export(tmp_path / "policy.pt2")
    assert_files_equal_eager({tmp_path / "policy.pt2": 1e-6, onnx: 1e-5}, model, 1000, 3)
    assert played(model) == before


def played(model: Agent) -> list[list[float]]:
    """Twenty predicted actions, as numbers."""
    state: Any = None
    actions = []
    for time in range(20):
        observation = np.sin(np.arange(*(model.observation_space.shape or ())) + time).astype(np.float32)
        action, state = model.predict(observation, state, deterministic=True, reward=float(time))
        actions.append([float(number) for number in np.reshape(action, -1)])
    return actions


BETWEEN_LAYERS = (
    *("universal_act", "realformer", "reversible"),
    *("predictive", "lazyformer", "calm", "depth_adaptive", "hybrid", "kimi", "griffin", "xlstm"),
)
"""Presets whose mechanism lies between layers, or whose layers differ; of the others one shows all and takes half the
time to write."""


WRITTEN = (
    *("gtrxl", "universal_act", "compressive", "topk", "linear_transformer", "average", "nystromformer", "bp"),
    *("memorizing", "bigbird", "clustered", "rfa", "capsule", "tupe", "gaussian_predicted", "poolingformer", "calm"),
    *("informer", "dynamic_conv", "gmlp", "graph_attention", "synthesizer_dense", "lowrank_band", "blockwise"),
    *("hybrid", "retnet", "griffin", "xlstm"),
)
"""Presets that are written: together they have every operation, with the types that it takes, of any preset.

Which operations a format has is all that a file adds to the traces of law L11, which have every operation.
"""


ALWAYS = ("compressive", "capsule")
"""Written by ``make test``: a ring and a memory of two kinds, and a loop. What is left is the work of ONNX."""


def acting_as(preset: str) -> GTrXLPPO:
    """An untrained agent with a small backbone of a preset."""
    memory = 15 if preset in ("nystromformer", "csalr") else 4  # its blocks look that far back
    small: dict[str, Any] = {"layers": 2 if preset in BETWEEN_LAYERS else 1, "width": 8}
    tokens: dict[str, Any] = {"tokens_per_step": 1, "dropout": 0.0} if preset == "decision_transformer" else {}
    return untrained(preset=preset, **{"memory": memory, **small, **tokens, **small_windows(preset, small["layers"])})


@pytest.mark.third_party
def test_presets_that_are_not_written_have_no_operation_of_their_own() -> None:
    found = {}
    for preset in PRESETS:
        step = step_of(acting_as(preset))
        with torch.no_grad(), Operations(lambda tensor: str(tensor.dtype)) as operations:
            step(*step.examples(2))
        found[preset] = operations.found
    written = set().union(*(found[preset] for preset in WRITTEN))
    missing = {preset: sorted(own - written) for preset, own in found.items() if own - written}
    assert not missing, f"to be added to WRITTEN: {missing}"


@pytest.mark.parametrize(
    "preset",
    [
        pytest.param(preset, marks=() if preset in ALWAYS else pytest.mark.third_party)
        for preset in (PRESETS if ALL_CASES else WRITTEN)
    ],
)
def test_a_preset_acts_in_an_onnx_file(preset: str, tmp_path: Path) -> None:
    model = acting_as(preset).learn(128)
    model.export(tmp_path / "policy.onnx", batch=2)
    assert_file_equals_eager(tmp_path / "policy.onnx", model, 20, 2, 1e-5)  # longer than any memory


@pytest.mark.parametrize("acting_mode", ["refresh", pytest.param("banded", marks=pytest.mark.third_party)])
def test_steps_of_several_tokens_act_in_an_onnx_file_where_distances_are_learned(
    acting_mode: str, tmp_path: Path
) -> None:
    """Shifts of scores that learn had the exporter take another kernel of attention than the trace."""
    memory = {"memory": 3} if acting_mode == "banded" else {}
    backbone = {"preset": "gtrxl", "layers": 1, **SMALL, **memory}
    model = offline("CartPole-v1", policy_kwargs={"backbone": backbone}, acting_mode=acting_mode)
    model.export(tmp_path / "policy.onnx")
    assert_file_equals_eager(tmp_path / "policy.onnx", model, 20, 3, 1e-5)


@pytest.mark.parametrize("acting_mode", ["refresh", "banded"])
def test_a_file_of_torch_takes_one_environment_and_several(acting_mode: str, tmp_path: Path) -> None:
    model = offline("CartPole-v1", acting_mode=acting_mode)
    model.export(tmp_path / "policy.pt2")
    for batch in (1, 3):
        assert_file_equals_eager(tmp_path / "policy.pt2", model, 10, batch, 1e-6)
    Actor.from_export(tmp_path / "policy.pt2", target_return=10.0)


CLIENT = """
import runpy, sys
class Blocker:
    def find_spec(self, name, path=None, target=None):
        if name.partition(".")[0] in ("torch", "rltransformers", "stable_baselines3"):
            raise ImportError(f"{name} must not be needed")
sys.meta_path.insert(0, Blocker())
program, *sys.argv = sys.argv[1:]
sys.argv.insert(0, program)
runpy.run_path(program, run_name="__main__")
"""


@pytest.mark.parametrize(
    ("make", "environment"),
    [
        pytest.param(online, "Pendulum-v1", marks=pytest.mark.xdist_group("files of the online agent")),
        pytest.param(offline, "CartPole-v1", marks=pytest.mark.xdist_group("files of the offline agent")),
    ],
)
def test_the_example_plays_an_episode_as_predict_does_with_numpy_and_onnxruntime_alone(
    make: Callable[[str], Agent], environment: str, written: Written
) -> None:
    model, _, path = written(make, environment)
    program = str(ROOT / "examples" / "act_with_onnx.py")
    command = [sys.executable, "-c", CLIENT, program, str(path), environment]
    client = subprocess.run(command, capture_output=True, text=True, timeout=300)
    assert client.returncode == 0, client.stderr
    *lines, last = client.stdout.splitlines()
    env = gym.make(environment)
    observation, _ = env.reset(seed=0)
    statistics = model.get_vec_normalize_env()
    state, reward, total = None, 0.0, 0.0
    for line in lines:
        seen = observation if statistics is None else statistics.normalize_obs(observation)
        earned = reward if statistics is None else float(statistics.normalize_reward(np.array(reward)))
        action, state = model.predict(seen, state, deterministic=True, reward=earned)
        shown = np.array(json.loads(line.removeprefix("action ")))
        np.testing.assert_allclose(shown, action, rtol=1e-4, atol=1e-4)  # the episode enlarges the rounding
        observation, reward_now, terminated, truncated, _ = env.step(shown.astype(np.asarray(action).dtype))
        reward = float(reward_now)
        total += reward
    assert terminated or truncated
    assert float(last.removeprefix("return ")) == pytest.approx(total)
