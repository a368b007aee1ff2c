"""Agents that learn: one file is one agent, readable from top to bottom."""

if __name__ != "rltransformers.agents":
    raise ImportError("import this folder as rltransformers.agents")

from rltransformers.agents.decision_transformer import DecisionTransformer
from rltransformers.agents.gtrxl_ppo import GTrXLPPO

__all__ = ["DecisionTransformer", "GTrXLPPO"]
