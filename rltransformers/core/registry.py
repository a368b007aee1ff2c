"""From an environment id to its registered specification, after importing the package that registers it."""

import difflib
import importlib.util

import gymnasium
from gymnasium.envs.registration import EnvSpec

from rltransformers.core.errors import ConfigError, MissingExtraError, one_line, require
from rltransformers.core.modules import import_module

OGBENCH = (
    *("pointmaze-", "antmaze-", "humanoidmaze-", "antsoccer-"),
    *("cube-", "scene-", "puzzle-", "visual-", "powderworld-"),
)
"""Begins of the ids of OGBench's environments and datasets."""
GLOBAL_RANDOMNESS = (*OGBENCH, "popgym-CountRecall", "popgym-Labyrinth")
"""Begins of the ids of environments that draw from global generators, which no seed of ``reset`` reaches."""
SUITES = {
    "rltransformers/": (("rltransformers.envs",), ""),
    "popgym-": (("popgym",), "popgym"),
    "MiniGrid-": (("minigrid",), "minigrid"),
    "BabyAI-": (("minigrid",), "minigrid"),
    "ALE/": (("ale_py",), "atari"),
    "bsuite/": (("bsuite", "shimmy"), "bsuite"),  # shimmy registers it, and says nothing when bsuite is not there
    **{prefix: (("ogbench",), "ogbench") for prefix in OGBENCH},
}
"""Prefix of an id → (modules, of which the last one registers it; extra of this package that installs them)."""
BESIDE = {"popgym-Labyrinth": ("mazelib", "'popgym[navigation]'")}
"""Prefix of an id → (module without which its suite leaves it out; what pip installs for it)."""


def find_spec(env_id: str) -> EnvSpec:
    """The registered specification of ``env_id``, after importing the package that registers it.

    Raises ConfigError when no environment has this id, with the closest ones; MissingExtraError when it belongs to a
    known suite that is not installed, or not with all that it needs.
    """
    module, _, name = env_id.rpartition(":")
    if module:
        try:
            import_module(module)
        except (ImportError, TypeError, ValueError) as error:
            raise ConfigError(
                f"{env_id!r} asks for the module {module!r}, which cannot be imported: {one_line(error)}"
            ) from error
    for prefix, (modules, extra) in SUITES.items():
        if name.startswith(prefix) and name not in gymnasium.registry:
            for suite in modules:
                require(suite, extra)
    if name not in gymnasium.registry:
        for prefix, (needed, packages) in BESIDE.items():
            if name.startswith(prefix) and importlib.util.find_spec(needed) is None:
                raise MissingExtraError(
                    f"{name} needs {needed}, which is not installed; it comes with: pip install {packages}"
                )
        raise ConfigError(f"no environment is registered as {name!r}; {_close_ids(name)}")
    return gymnasium.spec(name)


def _close_ids(name: str) -> str:
    """The closest registered ids, with or without their namespace, in any case of letters."""
    ids = {key.lower(): key for key in gymnasium.registry}
    bare = {key.rpartition("/")[2]: key for key in ids}
    wanted = name.lower()
    close = difflib.get_close_matches(wanted, ids, n=2) + [
        bare[match] for match in difflib.get_close_matches(wanted.rpartition("/")[2], bare, n=2)
    ]
    if not close:
        return "gymnasium.pprint_registry() lists all; give 'module:id' when a module of yours registers it"
    return f"did you mean {' or '.join(repr(ids[key]) for key in dict.fromkeys(close))}?"
