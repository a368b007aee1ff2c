"""Settings that a program sets on an agent after it was made: they hold from then on, or are refused."""

from pathlib import Path
from typing import Any

import pytest

from rltransformers.agents import GTrXLDQN, GTrXLPPO, GTrXLSAC, GTrXLVMPO
from rltransformers.core.errors import ConfigError
from tests.peers.small import STEPS, Kind, agent

SETTLED: list[tuple[Kind, str, Any]] = [
    (GTrXLPPO, "n_steps", 16),
    (GTrXLPPO, "popart", 0.1),
    (GTrXLVMPO, "acting", "compiled"),
    (GTrXLVMPO, "scale_rewards", False),
    (GTrXLDQN, "buffer_size", 800),
    (GTrXLDQN, "n_step", 3),
    (GTrXLDQN, "updates", "compiled"),
    (GTrXLDQN, "train_freq", 8),
    (GTrXLSAC, "segment_length", 8),
    (GTrXLSAC, "burn_in", 3),
    (GTrXLSAC, "ent_coef", 0.9),
]
WRONG: list[tuple[Kind, str, Any]] = [
    (GTrXLPPO, "n_epochs", 0),
    (GTrXLPPO, "gae_lambda", 3.0),
    (GTrXLVMPO, "memory_refresh", "sometimes"),
    (GTrXLDQN, "batch_size", 0),
    (GTrXLSAC, "gradient_steps", 0),
    (GTrXLSAC, "max_grad_norm", -1),
]


def refuses(model: Any, message: str, folder: Path) -> None:
    for use in (lambda: model.learn(STEPS), lambda: model.save(folder / "model")):
        with pytest.raises(ConfigError, match=message):
            use()


@pytest.mark.parametrize(("kind", "name", "value"), SETTLED)
def test_what_an_agent_is_built_for_cannot_be_set_later(kind: Kind, name: str, value: Any, tmp_path: Path) -> None:
    model = agent(kind)
    before = getattr(model, name)
    setattr(model, name, value)
    refuses(model, rf"{name} was .* when this {kind.__name__} was made, .* set it back", tmp_path)
    setattr(model, name, before)
    model.learn(STEPS).save(tmp_path / "model")


@pytest.mark.parametrize(("kind", "name", "value"), WRONG)
def test_a_wrong_value_is_refused_before_learning_and_saving(kind: Kind, name: str, value: Any, tmp_path: Path) -> None:
    model = agent(kind)
    setattr(model, name, value)
    refuses(model, f"{name} must be", tmp_path)


@pytest.mark.parametrize(
    ("kind", "name", "value"),
    [(GTrXLPPO, "batch_size", 2), (GTrXLVMPO, "batch_size", 9), (GTrXLSAC, "target_critics", 3)],
)
def test_values_that_do_not_fit_others_are_refused(kind: Kind, name: str, value: Any, tmp_path: Path) -> None:
    model = agent(kind)
    setattr(model, name, value)
    refuses(model, f"{name} ", tmp_path)


@pytest.mark.parametrize(("kind", "name", "value"), [(GTrXLPPO, "gamma", 0.5), (GTrXLSAC, "gradient_steps", -1)])
def test_other_settings_hold_from_then_on(kind: Kind, name: str, value: Any, tmp_path: Path) -> None:
    model = agent(kind)
    setattr(model, name, value)
    model.learn(STEPS).save(tmp_path / "model")
    assert getattr(kind.load(tmp_path / "model"), name) == value
