"""What a study of ``rltransformers tune`` searches, read and checked before torch is imported."""

from collections.abc import Collection, Mapping
from copy import deepcopy
from typing import Any

from rltransformers.cli.settings import refuse_unknown_settings
from rltransformers.cli.trust import Program, programs, require_trust
from rltransformers.cli.values import check_values
from rltransformers.core.errors import ConfigError
from rltransformers.training.runs.experiment import AROUND, ExperimentConfig, build_experiment, set_value
from rltransformers.training.runs.search import OneOf, Span, read_search

Search = dict[str, Span | OneOf]
SAME_FOR_ALL = (*AROUND, "tune", "agent", "imports", "evaluation")
"""Settings and sections that all trials of a study have in common."""
LOSS_OF = ("algorithm.validation", "algorithm.top_fraction", "algorithm.action_head", "algorithm.chunk")
"""Settings that change what ``eval/action_loss`` is the loss of."""


def read_space(base: Mapping[str, Any], space: Mapping[str, Any], typed: Collection[str], trust: bool) -> Search:
    """Search space of every searched setting, with ends of ranges and values of lists that ``check_values`` takes.

    What values of keys that were not ``typed`` would run besides this package needs ``trust``. Raises ConfigError.
    """
    if not space:
        raise ConfigError(
            "tune needs something to search: --search KEY=low..high, or tune.search in the config; "
            "`rltransformers settings` names the keys"
        )
    search = {key: read_search(values, f"search of {key}") for key, values in space.items()}
    config = build_experiment(base, "config")
    evaluated_in, known, foreign = _evaluated_in(config), programs(config), list[Program]()
    for key, values in search.items():
        if outer := [other for other in search if key.startswith(f"{other}.")]:
            raise ConfigError(
                f"search of {key}: it is a part of {outer[0]}, which is searched too; search one of the two, and write "
                f"the values of {key} into those of {outer[0]}"
            )
        for value in values.values if isinstance(values, OneOf) else (values.low, values.high):
            if key == "seed":
                raise ConfigError(
                    "seed is no setting to search: the best of several seeds is luck; `rltransformers train --seeds N` "
                    "says how far they lie apart"
                )
            if key == "environment.id" or key.partition(".")[0] in SAME_FOR_ALL:
                raise ConfigError(
                    f"{key} is no setting to search: it is the same in all trials of a study, whose scores are compared"
                )
            if not config.environment.id and (key in LOSS_OF or key.startswith("dataset")):
                raise ConfigError(
                    f"search of {key}: without an environment trials are compared by their loss on held-out episodes, "
                    f"and {key} changes which loss that is; leave it out of the search"
                )
            candidate = with_values(base, {key: value})
            refuse_unknown_settings(candidate, "search: ")
            config = build_experiment(candidate, f"search of {key}")
            if _evaluated_in(config) != evaluated_in:
                raise ConfigError(
                    f"search of {key}: trials would be evaluated in different environments, and their scores are "
                    "compared; write the keywords that differ into evaluation.kwargs, where they are the same for all"
                )
            check_values(config)
            if isinstance(values, OneOf) and key not in typed:
                foreign += [each for each in programs(config) if each not in (*known, *foreign)]
    require_trust(foreign, "tune.search", trust)
    return search


def _evaluated_in(config: ExperimentConfig) -> tuple[str, dict[str, Any]]:
    return config.evaluation_environment.id, config.evaluation_environment.kwargs


def with_values(base: Mapping[str, Any], values: Mapping[str, Any]) -> dict[str, Any]:
    """A copy of a config with values at dotted keys."""
    copy = deepcopy(dict(base))
    for key, value in values.items():
        set_value(copy, key, deepcopy(value))
    return copy
