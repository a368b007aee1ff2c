"""Check policies with memory and mechanisms of a backbone: does acting compute what is learned from?

``check_policy(policy)`` takes anything with the members of ``PolicyWithMemory``. ``python -m
rltransformers.conformance`` prints the results of this package's agents, whose members are in ``adapters``.
``check_mechanism(SPEC)``, and ``python -m rltransformers.conformance my_mechanisms:SPEC``, hold the laws of the library
against one mechanism.
"""

from rltransformers.conformance.checks import CHECKS, Result, check_one, check_policy
from rltransformers.conformance.mechanisms import LawResult, Report, check_mechanism
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
    "CHECKS", "Bootstrap", "Bootstraps", "LawResult", "Pads", "PolicyWithMemory", "Ratios", "Renews", "Report",
    "Result", "Resumes", "Saves", "Traits", "Windows", "check_mechanism", "check_one", "check_policy",
]  # fmt: skip
