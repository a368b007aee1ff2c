"""Online agents learn to remember; without memory the same network cannot."""

from typing import Any

import pytest
from stable_baselines3.common.evaluation import evaluate_policy

from rltransformers.agents import GTrXLPPO, GTrXLVMPO
from rltransformers.backbone import BackboneConfig
from rltransformers.envs import make_vec_env

CUE = "rltransformers/CueRecall-v0"


def success(kind: type[Any], memory: int, steps: int, **settings: Any) -> float:
    """Success on CueRecall with a delay of 4, after training."""
    env = make_vec_env(CUE, 16, seed=0, env_kwargs={"delay": 4})
    backbone = {"preset": "gtrxl", "width": 32, "layers": 1, "heads": 2, "memory": memory}
    model = kind(
        "GTrXLPolicy",
        env,
        n_steps=24,
        learning_rate=1e-3,
        policy_kwargs={"backbone": backbone},
        seed=0,
        device="cpu",
        **settings,
    ).learn(steps)
    mean, _ = evaluate_policy(model, make_vec_env(CUE, 16, seed=9, env_kwargs={"delay": 4}), 160)
    return float(mean)  # type: ignore[arg-type]


@pytest.mark.slow
def test_a_cue_is_recalled_with_memory_and_guessed_without() -> None:
    assert success(GTrXLPPO, memory=6, steps=8_000, ent_coef=0.01) >= 0.95  # 1.0 on seeds 0, 1 and 2
    # Chance is 0.5 with a standard error of 0.04 over 160 episodes.
    assert success(GTrXLPPO, memory=0, steps=2_000, ent_coef=0.01) <= 0.66


@pytest.mark.slow
def test_v_mpo_recalls_a_cue_with_memory_and_guesses_without() -> None:
    assert success(GTrXLVMPO, memory=6, steps=20_000) >= 0.95  # 1.0 on seed 0, after 14,000 steps too
    assert success(GTrXLVMPO, memory=0, steps=2_000) <= 0.66  # as above


def test_the_defaults_are_a_gated_transformer() -> None:
    model = GTrXLPPO("GTrXLPolicy", "CartPole-v1", device="cpu")
    assert model.policy.config == BackboneConfig.preset("gtrxl")
    assert model.memory_refresh == "update"
