"""GTrXLDQN learns to remember; without memory the same network cannot."""

import pytest
from stable_baselines3.common.evaluation import evaluate_policy

from rltransformers.agents import GTrXLDQN
from rltransformers.envs import make_vec_env

CUE = "rltransformers/CueRecall-v0"


def success(memory: int, steps: int) -> float:
    """Success on CueRecall with a delay of 4, after training."""
    model = GTrXLDQN(
        "GTrXLQPolicy",
        make_vec_env(CUE, 16, seed=0, env_kwargs={"delay": 4}),
        learning_rate=2e-3,
        learning_starts=1_000,
        batch_size=8,
        segment_length=18,
        train_freq=2,
        target_update_interval=50,
        n_step=3,
        policy_kwargs={"backbone": {"preset": "gtrxl", "width": 32, "layers": 1, "heads": 2, "memory": memory}},
        seed=0,
        device="cpu",
    ).learn(steps)
    mean, _ = evaluate_policy(model, make_vec_env(CUE, 16, seed=9, env_kwargs={"delay": 4}), 160, deterministic=True)
    return float(mean)  # type: ignore[arg-type]


@pytest.mark.slow
def test_a_cue_is_recalled_with_memory_and_guessed_without() -> None:
    assert success(memory=6, steps=12_000) >= 0.95
    assert success(memory=0, steps=2_000) <= 0.66  # chance is 0.5 with a standard error of 0.04 over 160 episodes
