"""The names that the arrays of episodes go by in dicts and files."""

from collections.abc import Mapping, Sequence
from typing import Any

from rltransformers.core.errors import ConfigError, DataError, did_you_mean
from rltransformers.core.ranges import shown
from rltransformers.core.spaces import nest_paths, nested_leaves

NAMES = {
    "observations": ("observations", "observation", "obs"),
    "actions": ("actions", "action", "acts"),
    "rewards": ("rewards", "reward", "rews", "rew"),
    "terminations": ("terminations", "terminals", "terminated", "terminal"),
    "truncations": ("truncations", "timeouts", "truncated"),
    "next_observations": ("next_observations", "next_observation", "next_obs"),
}
"""Our name → all names; those of Gymnasium, Minari, D4RL and the imitation library."""
IGNORED = ("infos", "info", "metadata", "id", "seed", "options", "total_steps")
ENDS = ("dones", "done")

PER_STEP = frozenset((*ENDS, *(key for names in NAMES.values() for key in names)))
"""All names of arrays with a value per step."""


def is_ignored(key: str) -> bool:
    """Whether a key says nothing about steps."""
    return key in IGNORED or key.startswith(("infos/", "metadata/"))


def pick_leaves(arrays: Any, leaves: Sequence[str] | None) -> Any:
    """Keep only these leaves in the observations of a dict, as nested dicts; None keeps all."""
    if leaves is None or not isinstance(arrays, Mapping):
        return arrays
    picked = dict(arrays)
    for key in NAMES["observations"] + NAMES["next_observations"]:
        if key in arrays:
            known = nested_leaves(arrays[key])
            check_leaves(leaves, known)
            picked[key] = nest_paths({path: known[path] for path in leaves})
    return picked


def check_leaves(leaves: Sequence[str], known: Mapping[str, Any]) -> None:
    """Raise ConfigError for a leaf of ``observation_leaves`` that is not there."""
    for path in leaves:
        if path not in known:
            raise ConfigError(f"observation_leaves names {path!r}: {did_you_mean(path, known)}")


def key_names(arrays: Mapping[Any, Any], where: str) -> dict[str, str]:
    """Our name → the name in ``arrays``, for the arrays that are there; ``where`` opens the messages.

    Other keys are refused: a misspelt flag that is dropped makes every episode end differently. DataError without
    observations or actions, too.
    """
    ours = {name: standard for standard, names in NAMES.items() for name in names}
    names_of: dict[str, str] = {}
    for key in map(str, arrays):
        if key in ours:
            other = names_of.setdefault(ours[key], key)
            if other != key:
                raise DataError(f"{where} has both {other!r} and {key!r}, two names of the same array; keep one")
        elif key in ENDS:
            raise DataError(
                f"{where} has {key!r}, which does not tell whether an episode was terminated (nothing follows) or "
                f"truncated (by a limit); rename it to 'terminations' or 'truncations'. If it marks both, name it "
                f"'terminations' and pass time_limit=<the environment's step limit>; of flat arrays "
                f"columns={{'dones': {key!r}}} says it"
            )
        elif not is_ignored(key):
            raise DataError(
                f"{where} has the unknown key {shown(key)}; {did_you_mean(key, ours)} If it is none of them, take it "
                f"out or put it under 'infos', which is not read; columns={{...}} says what flat arrays hold"
            )
    for key in ("observations", "actions"):
        if key not in names_of:
            raise DataError(
                f"{where} lacks {key!r}; present: {sorted(map(str, arrays))}; columns={{...}} says what flat arrays of "
                f"other names hold"
            )
    return names_of
