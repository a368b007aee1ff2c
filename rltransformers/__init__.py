"""Transformers for sequential decisions: Gated Transformer-XL policies online, Decision Transformers offline."""

import os
import sys

_module = sys.orig_argv[-len(sys.argv)] if sys.argv[:1] == ["-m"] else ""  # whose package Python is looking for
if _module.removeprefix("-m").split(".")[0] == __name__ and not sys.flags.safe_path and sys.path[:1] == [os.getcwd()]:
    del sys.path[0]  # ``python -m`` put it there; a module that somebody left in the folder must not run

TYPE_CHECKING = False  # that of ``typing``: under ``python -m`` a module of the current folder would be imported for it
if TYPE_CHECKING:  # what ``__getattr__`` imports by need, so that ``import rltransformers`` is fast
    from typing import Any

    from rltransformers.agents import (
        Actor,
        DecisionTransformer,
        GTrXLDQN,
        GTrXLPPO,
        GTrXLSAC,
        GTrXLVMPO,
        load_agent,
        load_from_hub,
        package_for_hub,
        push_to_hub,
    )
    from rltransformers.backbone import Backbone, BackboneConfig
    from rltransformers.data import Trajectories, load_trajectories, record
    from rltransformers.envs import make_env, make_vec_env
    from rltransformers.mechanisms import register
    from rltransformers.training.evaluation import EvaluationResult, evaluate_online
    from rltransformers.training.runs.comparison import compare

__version__ = "0.1.0"
__all__ = [
    "Actor", "Backbone", "BackboneConfig", "DecisionTransformer", "EvaluationResult", "GTrXLDQN", "GTrXLPPO",
    "GTrXLSAC", "GTrXLVMPO", "Trajectories", "compare", "evaluate_online", "load_agent", "load_from_hub",
    "load_trajectories", "make_env", "make_vec_env", "package_for_hub", "push_to_hub", "record", "register",
]  # fmt: skip
_MODULES = {
    "agents": (
        "Actor DecisionTransformer GTrXLDQN GTrXLPPO GTrXLSAC GTrXLVMPO load_agent load_from_hub package_for_hub "
        "push_to_hub"
    ),
    "backbone": "Backbone BackboneConfig",
    "data": "Trajectories load_trajectories record",
    "envs": "make_env make_vec_env",
    "mechanisms": "register",
    "training.evaluation": "EvaluationResult evaluate_online",
    "training.runs.comparison": "compare",
}
_PLACES = {name: f"rltransformers.{module}" for module, names in _MODULES.items() for name in names.split()}


def __getattr__(name: str) -> "Any":
    from importlib import import_module

    if name not in _PLACES:
        raise AttributeError(f"module 'rltransformers' has no attribute {name!r}")
    value = globals()[name] = getattr(import_module(_PLACES[name]), name)
    return value


def __dir__() -> list[str]:
    return sorted({*globals(), *__all__})
