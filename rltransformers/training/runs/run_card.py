"""A run in TensorBoard besides its curves: the config as text, and its settings as hyperparameters."""

import json
from collections.abc import Mapping
from typing import Any

import yaml
from stable_baselines3.common.logger import HParam, Logger, TensorBoardOutputFormat

METRICS = ("eval/mean_reward", "eval/mean_ep_length", "rollout/ep_rew_mean", "rollout/ep_len_mean")
"""Metrics in the table of hyperparameters."""


def write_run_card(logger: Logger, config: Mapping[str, Any], settings: Mapping[str, Any] | None = None) -> None:
    """Write the config of a new run to TensorBoard, where the logger has it: JSON values.

    Args:
        settings: JSON values of the table of hyperparameters; None takes the config.
    """
    formats = [each for each in logger.output_formats if isinstance(each, TensorBoardOutputFormat)]
    if not formats:
        return
    text = yaml.safe_dump(json.loads(json.dumps(config)), sort_keys=False)  # of tuples and members of enumerations
    card = Logger(None, [*formats])
    card.record("config", "\n".join(f"    {line}" for line in text.splitlines()))  # Markdown shows it as it is
    card.record("hparams", HParam(_settings(config if settings is None else settings), dict.fromkeys(METRICS, 0.0)))
    card.dump(0)


def _settings(config: Mapping[str, Any], prefix: str = "") -> dict[str, Any]:
    """Numbers, booleans and texts by their dotted names; what else there is stands in the text."""
    found: dict[str, Any] = {}
    for name, value in config.items():
        if isinstance(value, Mapping):
            found |= _settings(value, f"{prefix}{name}.")
        elif isinstance(value, bool | int | float | str):
            found[f"{prefix}{name}"] = str(value) if isinstance(value, str) else value
    return found
