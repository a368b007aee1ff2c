"""What the package offers by itself: its names by need, and objects that say what they are in three lines."""

import subprocess
import sys

import pytest

import rltransformers
from rltransformers import DecisionTransformer, EvaluationResult, GTrXLDQN, GTrXLPPO, Trajectories, make_vec_env, record

PROGRAM = """
import sys, rltransformers
assert set(rltransformers.__all__) < set(dir(rltransformers)) and not {"torch", "numpy"} & set(sys.modules)
from rltransformers import *
from rltransformers import agents, data
assert GTrXLPPO is agents.GTrXLPPO and record is data.record
"""
NET = {"policy_kwargs": {"backbone": {"width": 8, "layers": 1, "heads": 2, "memory": 4}}}


def test_names_of_the_package_are_imported_by_need() -> None:
    done = subprocess.run([sys.executable, "-c", PROGRAM], capture_output=True, text=True)
    assert done.returncode == 0, done.stderr
    assert {name for names in rltransformers._MODULES.values() for name in names.split()} == set(rltransformers.__all__)
    with pytest.raises(AttributeError, match="no attribute 'GTrXL'"):
        rltransformers.GTrXL  # noqa: B018


@pytest.fixture(scope="module")
def data() -> Trajectories:
    return record("CartPole-v1", "random", episodes=3, seed=0)


def test_objects_say_what_they_are_in_three_lines(data: Trajectories) -> None:
    ppo = GTrXLPPO("GTrXLPolicy", make_vec_env("CartPole-v1", 2), n_steps=8, **NET)  # type: ignore[arg-type]
    ppo.learn(16)
    dqn = GTrXLDQN("GTrXLQPolicy", "CartPole-v1", **NET)  # type: ignore[arg-type]
    dt = DecisionTransformer("DTPolicy", data, context_length=3, policy_kwargs={"backbone": {"width": 8, "heads": 2}})
    result = EvaluationResult("CartPole-v1", (1.0,) * 5_000, (1,) * 5_000, tuple(range(5_000)), step=7)
    for value, words in (
        (ppo, ("GTrXLPPO(16 steps, 2 environments)", "width 8, 1 layer, memory 4", "parameters", "Discrete(2)")),
        (ppo.policy, ("GTrXLPolicy(", "memory 4", "Discrete(2)")),
        (ppo.policy.initial_state(2), ("PolicyState(batch 2", "kB")),
        (ppo.actor(), ("Actor(GTrXLPPO", "most likely")),
        (dqn, ("GTrXLDQN(0 steps, 1 environment)",)),
        (dt, ("DecisionTransformer(0 updates", "context 3", "Discrete(2)")),
        (dt.policy, ("DecisionPolicy(width 8",)),
        (data, ("Trajectories(CartPole-v1, 3 episodes", "steps, returns", "Discrete(2)")),
        (data.episode(0), ("Episode(", "return")),
        (result, ("EvaluationResult(CartPole-v1, 5,000 episodes: return 1.00 ± 0.00, length 1.0", "step 7")),
    ):
        text = repr(value)
        assert len(text.splitlines()) <= 3 and len(text) < 500
        assert all(word in text for word in words), text
