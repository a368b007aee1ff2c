"""Environments: our memory tasks (registered with Gymnasium on import), wrappers, vector adaptors, ``make_vec_env``."""

if __name__ != "rltransformers.envs":
    raise ImportError("import this folder as rltransformers.envs")

from rltransformers.core.guard import FiniteVecEnv
from rltransformers.core.registry import find_spec
from rltransformers.envs.make import make_env, make_vec_env, make_vector_env
from rltransformers.envs.memory_tasks import TASKS, register_tasks
from rltransformers.envs.novelty import NoveltyBonus
from rltransformers.envs.vector import GymnasiumVecEnv
from rltransformers.envs.wrappers import (
    VELOCITY_INDICES,
    WRAPPERS,
    ActionMasks,
    CopyObservation,
    DropIndices,
    DropUnsupported,
    FlatDict,
    Flicker,
    GlobalSeed,
    GridSymbols,
    History,
    KeepIndices,
)

__all__ = [
    "TASKS", "VELOCITY_INDICES", "WRAPPERS", "ActionMasks", "CopyObservation", "DropIndices", "DropUnsupported",
    "FiniteVecEnv", "FlatDict", "Flicker", "GlobalSeed", "GridSymbols", "GymnasiumVecEnv", "History", "KeepIndices",
    "NoveltyBonus", "find_spec", "make_env", "make_vec_env", "make_vector_env",
]  # fmt: skip

register_tasks()
