"""Does the error on held-out episodes say which policy is better? ``python benchmarks/validation.py [TASK ...]``.

Prints, for every task, the return and the held-out numbers of one training at several steps, and of several settings at
their end; and the rank correlation (Spearman) of minus the action loss with the return.
"""

import argparse
from collections.abc import Iterator, Mapping
from dataclasses import dataclass, field
from typing import Any

import torch
from scipy.stats import spearmanr

from rltransformers.agents import DecisionTransformer
from rltransformers.cli.collect import collect_episodes
from rltransformers.training.runs.experiment import CollectConfig, EnvironmentConfig

CHECKPOINTS = 6


@dataclass(frozen=True)
class Task:
    """A task in a short form: the sizes of the config of the same name, fewer steps and episodes."""

    environment: EnvironmentConfig
    data: CollectConfig
    target: float
    steps: int
    episodes: int
    settings: Mapping[str, Any]
    deterministic: bool = True
    backbone: Mapping[str, Any] = field(default_factory=lambda: {"width": 32, "layers": 2, "heads": 1})


BEHAVIORS = "rltransformers.zoo.behaviors"
BASE: dict[str, Any] = {"batch_size": 64, "learning_rate": 5e-3, "warmup_steps": 50, "max_grad_norm": 1.0}
TASKS = {
    "key_to_door": Task(
        EnvironmentConfig("rltransformers/KeyToDoor-v0", 50), CollectConfig(1_000), 1.0, 420, 200,
        BASE | {"context_length": 24, "decay_steps": 420},
    ),
    "cue_recall": Task(
        EnvironmentConfig("rltransformers/CueRecall-v0", 50, {"delay": 10}), CollectConfig(2_000), 1.0, 360, 200,
        BASE | {"context_length": 12, "whole_episodes": True, "decay_steps": 360},
    ),
    "cartpole_mixture": Task(
        EnvironmentConfig("CartPole-v1", 20),
        CollectConfig(70, ["random=2", f"{BEHAVIORS}:cartpole_weak=2", f"{BEHAVIORS}:cartpole_good=3"]),
        500.0, 360, 15,
        BASE | {"context_length": 20, "learning_rate": 1e-3, "decay_steps": 360},
        False,
        {"width": 64, "layers": 2, "heads": 2},
    ),
}  # fmt: skip
VARIANTS: Mapping[str, Mapping[str, Any]] = {
    "one step of context": {"context_length": 1, "whole_episodes": False},
    "a quarter of the context": {"context_length": -4, "whole_episodes": False},
    "behavior cloning": {"mode": "bc"},
    "a tenth of the learning rate": {"learning_rate": 0.1},
    "best tenth of the data": {"mode": "bc", "top_fraction": 0.1},
}
"""Changes of the settings; a context below 0 divides, a learning rate multiplies."""


def outcome(task: Task, model: DecisionTransformer) -> tuple[float, float, float]:
    """Action loss and mean error of the components on held-out episodes, and mean return."""
    validation = model.validate()
    target = None if model.settings.mode == "bc" else task.target
    (result,) = model.evaluate(
        task.environment.id, target, task.episodes, task.environment.num_envs, 1_000_000, task.environment.kwargs,
        deterministic=task.deterministic,
    )  # fmt: skip
    return validation.action_loss, validation.errors[0].policy, result.mean


def train(
    task: Task, data: Any, changes: Mapping[str, Any], checkpoints: int
) -> Iterator[tuple[int, tuple[float, float, float]]]:
    """Step and ``outcome`` at every checkpoint of a training with some settings changed."""
    settings = dict(task.settings) | dict(changes)
    if changes.get("context_length", 0) < 0:
        settings["context_length"] = max(task.settings["context_length"] // -changes["context_length"], 1)
    if "learning_rate" in changes:
        settings["learning_rate"] = task.settings["learning_rate"] * changes["learning_rate"]
    backbone = dict(task.backbone)
    model = DecisionTransformer(
        "DTPolicy", data, validation=0.1, policy_kwargs={"backbone": backbone}, seed=0, device="cpu", **settings
    )
    for _ in range(checkpoints):
        model.learn(task.steps // checkpoints)
        yield model.num_timesteps, outcome(task, model)


def tell(label: str, numbers: tuple[float, float, float]) -> None:
    """Print a row."""
    print(f"| {label} | {numbers[0]:.4f} | {numbers[1]:.3f} | {numbers[2]:.2f} |", flush=True)


def correlation(rows: list[tuple[float, float, float]]) -> float:
    """Spearman of minus the loss with the return."""
    return float(spearmanr([-loss for loss, _, _ in rows], [mean for _, _, mean in rows]).statistic)


def parser() -> argparse.ArgumentParser:
    """The command line."""
    made = argparse.ArgumentParser(description=__doc__)
    made.add_argument("task", nargs="*", choices=[*TASKS, []], help="default: all")
    return made


def main() -> None:
    """Run and print Markdown."""
    torch.set_num_threads(1)
    for name in parser().parse_args().task or TASKS:
        task = TASKS[name]
        data = collect_episodes(task.environment, task.data, 0)
        print(f"### {name}\n\n| policy | action loss | error | return |\n|---|---|---|---|", flush=True)
        course, settings = [], []
        for step, numbers in train(task, data, {}, CHECKPOINTS):
            course.append(numbers)
            tell(f"{step} steps", numbers)
        settings.append(course[-1])
        for label, changes in VARIANTS.items():
            ((_, numbers),) = train(task, data, changes, 1)
            settings.append(numbers)
            tell(label, numbers)
        print(f"\nSpearman over steps of one training: {correlation(course):.2f}; ", end="")
        print(f"over settings: {correlation(settings):.2f}", flush=True)


if __name__ == "__main__":
    main()
