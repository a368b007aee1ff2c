"""The agents of this package as the checks see them."""

from collections.abc import Callable, Mapping

from rltransformers.agents import GTrXLPPO, GTrXLVMPO
from rltransformers.conformance.adapters.offline import DecisionTransformerAgent
from rltransformers.conformance.adapters.online import OnPolicyAgent, QAgent, SoftAgent
from rltransformers.conformance.protocol import PolicyWithMemory

AGENTS: Mapping[str, Callable[[], PolicyWithMemory]] = {
    "GTrXLPPO": lambda: OnPolicyAgent(GTrXLPPO),
    "GTrXLVMPO": lambda: OnPolicyAgent(GTrXLVMPO),
    "GTrXLDQN": QAgent,
    "GTrXLSAC": SoftAgent,
    "DecisionTransformer": DecisionTransformerAgent,
}
"""Makers of small policies with random weights, by the name of their agent."""
