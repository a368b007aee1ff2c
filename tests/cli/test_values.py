"""Wrong values of a config are refused before its environment or its data are made."""

from copy import deepcopy
from typing import Any

import pytest

from rltransformers.cli.keywords import check_config
from rltransformers.core.errors import ConfigError
from rltransformers.training.experiment import build_experiment, set_value
from tests.cli.test_runs import OFFLINE, ONLINE

WRONG = {
    "algorithm.gamma": 2,
    "algorithm.learning_rate": {"start": 1},
    "algorithm.n_steps": "x",
    "algorithm.device": 3,
    "algorithm.seed": 3,
    "backbone.width": -1,
    "backbone.preset": "GTrXL",
    "backbone.pattern": "bnd",
    "backbone.position": {"name": "shaw", "distance": 3},
    "backbone.mixer": ["softmax", {"name": "performer", "features": 0}],
    "backbone.head_mixing": "mqa",
    "backbone.losses": {"pondr": 1},
    "policy.head_width": "x",
    "policy.readout": {"name": "knnn"},
    "policy.observation": {"encoder": "bertt"},
    "environment.wrappers": ["DropIndex"],
    "seed": -1,
    "train.total_timesteps": 0,
}
WRONG_OFFLINE = {"algorithm.context_length": 0, "algorithm.critic_kwargs": {"weight": -1}, "algorithm.gama": 1}


@pytest.mark.parametrize("key", [*WRONG, *WRONG_OFFLINE])
def test_a_wrong_value_is_refused_before_anything_is_made(key: str) -> None:
    values: dict[str, Any] = deepcopy(OFFLINE if key in WRONG_OFFLINE else ONLINE)
    set_value(values, key, (WRONG | WRONG_OFFLINE)[key])
    with pytest.raises(ConfigError):
        check_config(build_experiment(values))
