"""Checks that any policy with memory can be put to: is what it does when acting what it learns from?

``check_policy(policy)`` runs them on anything with the members of ``PolicyWithMemory``. ``python -m
rltransformers.conformance`` prints the results of this package's agents, whose members are in ``adapters``.
"""

from rltransformers.conformance.checks import CHECKS, Result, check_one, check_policy
from rltransformers.conformance.protocol import (
    Bootstrap,
    Bootstraps,
    Pads,
    PolicyWithMemory,
    Ratios,
    Renews,
    Resumes,
    Saves,
    Traits,
    Windows,
)

__all__ = [
    "CHECKS",
    "Bootstrap",
    "Bootstraps",
    "Pads",
    "PolicyWithMemory",
    "Ratios",
    "Renews",
    "Result",
    "Resumes",
    "Saves",
    "Traits",
    "Windows",
    "check_one",
    "check_policy",
]
