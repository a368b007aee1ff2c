"""One run in a process of its own, ``python -m rltransformers.cli.worker``, as ``train --seeds`` and ``tune`` order it.

The order is the first line of standard input; when the input ends, the run stops as for a signal. Its report is a JSON
object per line: ``step`` and ``score`` of an evaluation, and in the end ``run``, ``results``, ``score`` and those on
held-out episodes (``validation``), or why it was ``refused``.
"""

import json
import os
import signal
import sys
import threading
import warnings
from pathlib import Path
from typing import Any

from rltransformers.cli.engines import Lines, Order
from rltransformers.cli.printing import short_warning
from rltransformers.core.errors import OUR_ERRORS, one_line
from rltransformers.core.files import check_name, numbered
from rltransformers.training.runs.experiment import ExperimentConfig, build_experiment

PROCESS = ("-m", "rltransformers.cli.worker")


def order_of(config: ExperimentConfig, name: str, goes_on: bool = False) -> Order:
    """The process that trains ``config`` in a new run folder; log and report stand beside it.

    It is called ``name``, or ``name-2``, ``-3``, ... where a folder or a log of an earlier run has that name. One that
    ``goes_on`` is called ``name``, and goes on with the run in that folder where there is one.
    """
    check_name(name)
    output = Path(config.output).absolute()
    if not goes_on:
        free = (each for each in numbered(name) if not ((output / each).exists() or (output / f"{each}.log").exists()))
        name = next(free)
    report = output / f"{name}.report"
    text = json.dumps({"config": config.to_dict(), "name": name, "report": str(report), "goes_on": goes_on})
    return Order(PROCESS, f"{text}\n", output / f"{name}.log", (report,))


class Report:
    """Messages of a run so far; its ``outcome`` is empty before the end."""

    def __init__(self, order: Order) -> None:
        self.path = order.results[0]
        self.path.unlink(missing_ok=True)  # of an earlier run
        self._lines = Lines(self.path)
        self.outcome: dict[str, Any] = {}

    def read(self) -> list[tuple[int, float]]:
        """Step and score of the evaluations since the last call."""
        evaluations = []
        for line in self._lines.new():
            message = json.loads(line)
            if "step" in message:
                evaluations.append((message["step"], message["score"]))
            else:
                self.outcome = message
        return evaluations

    def close(self) -> dict[str, Any]:
        """The outcome; the file goes."""
        self.read()
        self.path.unlink(missing_ok=True)
        return self.outcome


def main() -> int:
    """Train what is ordered; the exit status: 0 done, 2 refused with a reason, 128 + N ended by signal N."""
    order = json.loads(sys.stdin.readline())
    threading.Thread(target=_stop_without_input, daemon=True).start()
    warnings.formatwarning = short_warning
    from rltransformers.cli import runs
    from rltransformers.training.runs.callback import score

    with Path(order["report"]).open("w", buffering=1) as report:

        def tell(**values: Any) -> None:
            report.write(f"{json.dumps(values)}\n")

        try:
            config = build_experiment(order["config"])
            begun = Path(config.output) / order["name"]
            if order["goes_on"] and (begun / "config.yaml").is_file():
                folder, results = runs.resume(str(begun), (), trust=True)  # whoever ordered it has asked
            else:
                folder, results = runs.train(
                    order["name"], config, evaluated=lambda step, value: tell(step=step, score=value)
                )
        except OUR_ERRORS as error:
            tell(refused=one_line(error))
            print(f"rltransformers: {error}", file=sys.stderr)
            return 2
        except KeyboardInterrupt as interruption:
            return 128 + getattr(interruption, "signum", signal.SIGINT)
        last = folder.entries()[-1].validation
        validation = {} if last is None else {"validation": last.to_dict()}
        tell(
            run=str(folder.path),
            results=[result.to_dict() for result in results],
            score=score(results, last),
            **validation,
        )
    return 0


def _stop_without_input() -> None:
    sys.stdin.read()
    os.kill(os.getpid(), signal.SIGTERM)


if __name__ == "__main__":
    sys.exit(main())
