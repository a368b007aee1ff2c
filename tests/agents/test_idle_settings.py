"""Settings that nothing reads beside others are refused, and what replaces them is named."""

from typing import Any

import gymnasium
import pytest

from rltransformers.agents import DecisionTransformer, GTrXLDQN, GTrXLSAC
from rltransformers.core.errors import ConfigError
from rltransformers.data import record

SMALL: dict[str, Any] = {"backbone": {"width": 8, "heads": 2, "layers": 1, "memory": 4, "position": "none"}}
OFFLINE: dict[str, Any] = {"context_length": 4, "device": "cpu", "seed": 0}


@pytest.mark.parametrize(
    ("settings", "message"),
    [
        ({"critic": "qt", "critic_kwargs": {"shift": 0.9}}, "shift .* has no effect without alignment"),
        ({"critic": "qt", "critic_kwargs": {"jitter": 3.0}}, "jitter .* has no effect without candidates"),
        ({"policy_kwargs": {"action_masks": True}}, "have no leaf 'action_mask' to read masks from"),
        ({"mode": "bc", "expectile": 0.9}, "expectile has no effect without a return_head; leave it out$"),
    ],
)
def test_of_a_decision_transformer(settings: dict[str, Any], message: str) -> None:
    data = record("CartPole-v1", "random", episodes=3, seed=0)
    with pytest.raises(ConfigError, match=message):
        DecisionTransformer("DTPolicy", data, **OFFLINE | {"policy_kwargs": {"backbone": {"width": 8}}} | settings)


def test_of_soft_actor_critic() -> None:
    with pytest.raises(ConfigError, match=r"ent_coef is 0\.1; set ent_coef to 'auto', or leave target_entropy out"):
        GTrXLSAC("GTrXLSACPolicy", "Pendulum-v1", ent_coef=0.1, target_entropy=-5.0, policy_kwargs=SMALL)


def test_of_a_memory_that_has_no_steps_to_be_encoded_from() -> None:
    with pytest.raises(ConfigError, match="burn_in is 0; leave burn_in out, or set memory_refresh to 'never'"):
        GTrXLDQN("GTrXLQPolicy", "CartPole-v1", memory_refresh="update", burn_in=0, policy_kwargs=SMALL)


def test_of_a_recording_in_an_environment_that_is_there() -> None:
    with pytest.raises(ConfigError, match=r"num_envs \(8\) is for ids and functions, and this environment is 1"):
        record(gymnasium.make("CartPole-v1"), "random", episodes=1, num_envs=8)
