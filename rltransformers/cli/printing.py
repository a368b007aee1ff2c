"""How results reach standard output: tables for people, JSON for programs."""

import json
import math
from collections.abc import Mapping, Sequence
from typing import Any


def print_results(results: Sequence[Any], validation: Any) -> None:
    """A table with one column per target return, and that of held-out episodes, where there are some."""
    from rltransformers.training.evaluation import return_alignment

    summaries = [result.summary() for result in results]
    labels = {
        "step": "training step",
        "target_return": "target return",
        "predicted_return_mean": "predicted return",
        "episodes": "episodes",
        "return_mean": "return, mean",
        "return_std": "return, std",
        "return_iqm": "return, IQM",
        "return_iqm_interval": "  95 % interval",
        "length_mean": "episode length",
        "success_rate": "success rate",
        "normalized_score": "normalized score",
        "discounted_return_mean": "discounted, mean",
        "alignment_error": "target error, RMS",
    }
    for key, label in labels.items():
        if any(key in summary for summary in summaries):
            print(f"{label:<18}" + "".join(f"{cell(summary.get(key)):>24}" for summary in summaries))
    targets = {summary["target_return"] for summary in summaries if "target_return" in summary}
    if len(targets) > 1:
        print(f"return alignment, RMSE over {len(targets)} targets: {cell(return_alignment(results))}")
    if validation is not None:
        print_validation(validation)


def print_validation(result: Any) -> None:
    """A table with a row for every component of the action."""
    width = max([18, *(len(name) + 1 for name in result.calibration)])
    print(f"held-out episodes {result.episodes} ({result.steps:,} steps)")
    print(f"{'action loss':<{width}}{result.action_loss:.4f}")
    for name, value in result.calibration.items():
        print(f"{name.replace('_', ' '):<{width}}{value:.3f}")
    width = max(len(f"{error.measure} of {error.component}") for error in result.errors)
    others = {"mean action" if error.measure == "rmse" else "most frequent" for error in result.errors}
    mean = "mean / most frequent" if len(others) > 1 else others.pop()
    chunks = result.errors[0].chunk is not None
    print(
        f"\n{'':<{width}}{'policy':>12}{mean:>22}{'one-step cloning':>20}{'whole chunk' if chunks else '':>15}".rstrip()
    )
    for error in result.errors:
        row = f"{error.policy:>12.4g}{error.mean_action:>22.4g}{error.one_step:>20.4g}"
        row += f"{error.chunk:>15.4g}" if chunks else ""
        print(f"{f'{error.measure} of {error.component}':<{width}}{row}")


def cell(value: Any) -> str:
    """A value in a table."""
    if isinstance(value, list):
        return f"[{', '.join(f'{each:.3f}' for each in value)}]"
    return f"{value:.3f}" if isinstance(value, float) else str(value)


def print_json(value: Any) -> None:
    """For programs; numbers that JSON does not have are null."""
    print(json.dumps(_of_json(value), indent=1))


def _of_json(value: Any) -> Any:
    if isinstance(value, Mapping):
        return {key: _of_json(each) for key, each in value.items()}
    if isinstance(value, list | tuple):
        return [_of_json(each) for each in value]
    return None if isinstance(value, float) and not math.isfinite(value) else value


def short_warning(
    message: Warning | str, category: type[Warning], filename: str, lineno: int, line: str | None = None
) -> str:
    """A warning without the place in the code that gave it, which says nothing to who typed a command."""
    return f"rltransformers: {category.__name__}: {message}\n"
