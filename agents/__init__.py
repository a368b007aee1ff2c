"""Agents that learn: one file is one agent, readable from top to bottom.

An argument of a constructor is a setting of YAML and command line as well, once ``docs/_tools/update_docs.py`` has
listed it.
"""

if __name__ != "rltransformers.agents":
    raise ImportError("import this folder as rltransformers.agents")

from rltransformers.agents.decision_transformer import DecisionTransformer
from rltransformers.agents.gtrxl_dqn import GTrXLDQN
from rltransformers.agents.gtrxl_ppo import GTrXLPPO
from rltransformers.agents.gtrxl_sac import GTrXLSAC
from rltransformers.agents.gtrxl_vmpo import GTrXLVMPO
from rltransformers.agents.hub import load_from_hub, package_for_hub, push_to_hub
from rltransformers.agents.load import load_agent
from rltransformers.training.actor import Actor

__all__ = [
    "Actor",
    "DecisionTransformer",
    "GTrXLDQN",
    "GTrXLPPO",
    "GTrXLSAC",
    "GTrXLVMPO",
    "load_agent",
    "load_from_hub",
    "package_for_hub",
    "push_to_hub",
]
