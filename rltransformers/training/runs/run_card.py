"""A run in TensorBoard besides its curves: the config as text, its settings as hyperparameters, and the curves that
belong together in one chart each.
"""

import json
from collections.abc import Mapping
from typing import Any

from stable_baselines3.common.logger import HParam, Logger, TensorBoardOutputFormat

from rltransformers.core.yaml_text import yaml_of

METRICS = ("eval/mean_reward", "eval/mean_ep_length", "rollout/ep_rew_mean", "rollout/ep_len_mean")
"""Metrics in the table of hyperparameters."""
CHARTS = {
    "return": {
        "return": ["rollout/ep_rew_mean", "eval/mean_reward"],
        "length of an episode": ["rollout/ep_len_mean", "eval/mean_ep_length"],
        "success": ["rollout/success_rate", "eval/success_rate"],
    },
    "memory": {
        "steps looked back": [r"memory/layer\d+/lookback"],
        "entropy of attention": [r"memory/layer\d+/entropy"],
        "openness of gates": [r"memory/layer\d+/(ff/)?gate_openness"],
    },
    "update": {
        "losses": [r"train/(\w+_)*loss"],
        "divergence from the last policy": ["train/approx_kl", "train/clip_fraction"],
        "explained variance": ["train/explained_variance"],
        "learning rate": ["train/learning_rate"],
    },
}
"""Charts of the tab CUSTOM SCALARS by group, each with regular expressions of the curves in it."""


def write_run_card(logger: Logger, config: Mapping[str, Any], settings: Mapping[str, Any] | None = None) -> None:
    """Write the config of a new run to TensorBoard, where the logger has it: JSON values.

    Args:
        settings: JSON values of the table of hyperparameters; None takes the config.
    """
    formats = [each for each in logger.output_formats if isinstance(each, TensorBoardOutputFormat)]
    if not formats:
        return
    text = yaml_of(json.loads(json.dumps(config)))  # of tuples and members of enumerations
    card = Logger(None, [*formats])
    card.record("config", "\n".join(f"    {line}" for line in text.splitlines()))  # Markdown shows it as it is
    card.record("hparams", HParam(flat_settings(config if settings is None else settings), dict.fromkeys(METRICS, 0.0)))
    card.dump(0)
    layout = {
        group: {title: ["Multiline", [f"^{each}$" for each in curves]] for title, curves in charts.items()}
        for group, charts in CHARTS.items()
    }
    for each in formats:
        each.writer.add_custom_scalars(layout)


def flat_settings(config: Mapping[str, Any], prefix: str = "") -> dict[str, Any]:
    """Numbers, booleans and texts by their dotted names; lists as text. What is None is left out."""
    found: dict[str, Any] = {}
    for name, value in config.items():
        if isinstance(value, Mapping):
            found |= flat_settings(value, f"{prefix}{name}.")
        elif isinstance(value, bool | int | float | str):
            found[f"{prefix}{name}"] = str(value) if isinstance(value, str) else value
        elif isinstance(value, list | tuple):
            found[f"{prefix}{name}"] = json.dumps(value)
    return found
