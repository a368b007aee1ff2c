"""Schedules of runs that are made longer: those of the longer run, which is said where a value goes back."""

import warnings
from pathlib import Path
from typing import Any

import pytest
import torch
from gymnasium import spaces
from stable_baselines3.common.callbacks import BaseCallback

from rltransformers.agents import GTrXLDQN, GTrXLPPO, GTrXLVMPO
from tests.agents.tiny_envs import AnySpace

BACKBONE = {"preset": "gtrxl", "width": 8, "layers": 1, "heads": 2, "memory": 4}
FALLS = {"start": 1e-3, "end": 0.0}


def env() -> AnySpace:
    return AnySpace(spaces.Box(-1.0, 1.0, (3,)), spaces.Discrete(2))


def agent(kind: Any, **settings: Any) -> Any:
    if kind is GTrXLDQN:
        sizes: dict[str, Any] = {"segment_length": 4, "learning_starts": 4, "train_freq": 8, "batch_size": 2}
        policy = "GTrXLQPolicy"
    else:
        sizes, policy = {"n_steps": 8, "n_epochs": 1}, "GTrXLPolicy"
    kwargs = {"backbone": BACKBONE}
    return kind(policy, env(), policy_kwargs=kwargs, seed=0, device="cpu", **sizes | settings)


def heard_of(model: Any, steps: int, callback: Any = None) -> str:
    with warnings.catch_warnings(record=True) as heard:
        warnings.simplefilter("always")
        model.learn(steps, callback=callback, reset_num_timesteps=False)
    return "".join(str(each.message) for each in heard if "was to end earlier" in str(each.message))


class Stop(BaseCallback):
    """Ends a run in its second rollout, where saving is done between two updates."""

    def _on_step(self) -> bool:
        return self.num_timesteps < 17


@pytest.mark.parametrize(
    ("kind", "settings", "told"),
    [
        (GTrXLPPO, {"learning_rate": FALLS}, ["learning_rate from 0 to 0.0005"]),
        (GTrXLPPO, {"learning_rate": lambda left: 1e-3 * left**2}, ["learning_rate from 0 to 0.00025"]),
        (
            GTrXLPPO,
            {"clip_range": FALLS, "ent_coef": {"start": 0, "end": 1}},
            ["clip_range from", "ent_coef from 1 to 0.5"],
        ),
        (GTrXLPPO, {"learning_rate": FALLS | {"fraction": 0.25}}, []),
        (GTrXLPPO, {}, []),
        (GTrXLVMPO, {"learning_rate": FALLS}, ["learning_rate from 0 to 0.0005"]),
        (GTrXLDQN, {"exploration": {"start": 1.0, "end": 0.2}}, ["exploration from 0.2 to 0.6"]),
        (GTrXLDQN, {}, []),
    ],
)
def test_a_finished_run_that_goes_on_says_which_settings_go_back(
    kind: Any, settings: dict[str, Any], told: list[str], tmp_path: Path
) -> None:
    model = agent(kind, **settings)
    assert heard_of(model, 32) == ""
    if "learning_rate" not in settings or not callable(settings["learning_rate"]):
        model.save(tmp_path / "model")
        text = heard_of(kind.load(tmp_path / "model", env=env(), device="cpu"), 32)
        assert all(each in text for each in told) and bool(text) == bool(told)
    text = heard_of(model, 32)
    assert all(each in text for each in told) and bool(text) == bool(told)
    assert bool(heard_of(model, 16)) == bool(told)  # and again


def test_a_run_that_was_stopped_goes_on_along_the_same_line(tmp_path: Path) -> None:
    whole, stopped = (agent(GTrXLPPO, learning_rate=FALLS) for _ in range(2))
    rates: list[float] = []

    class Rates(BaseCallback):
        def _on_step(self) -> bool:
            return True

        def _on_rollout_end(self) -> None:
            rates.append(self.model.policy.optimizer.param_groups[0]["lr"])

    whole.learn(64, callback=Rates())
    expected, rates[:] = list(rates), []
    stopped.learn(64, callback=[Rates(), Stop()])
    assert heard_of(stopped, 64 - stopped.num_timesteps, Rates()) == ""
    assert torch.allclose(torch.tensor(rates[:3]), torch.tensor(expected[:3]))
    assert heard_of(stopped, 64) != ""
    assert heard_of(agent(GTrXLPPO, learning_rate=FALLS), 64) == ""
