"""Policies of this package and of others, as the checks see them; each module needs only the library it is for."""

import importlib
import importlib.util
from collections.abc import Callable
from dataclasses import dataclass
from importlib.metadata import version
from types import ModuleType
from typing import Any

from rltransformers.conformance.protocol import PolicyWithMemory
from rltransformers.core.errors import require

EXTRA = "conformance"


@dataclass(frozen=True)
class Subject:
    """A policy that can be checked.

    Attributes:
        name: what the table calls it.
        library: distribution that it comes from.
        imports: what has to be installed for it.
        module: of this package, with its adapter.
        build: makes the policy from the module.
    """

    name: str
    library: str
    imports: str
    module: str
    build: Callable[[Any], PolicyWithMemory]

    @property
    def installed(self) -> bool:
        return importlib.util.find_spec(self.imports) is not None

    @property
    def version(self) -> str:
        """Of its library."""
        return version(self.library)

    def make(self) -> PolicyWithMemory:
        """The policy, small and with random weights.

        Raises:
            MissingExtraError: when its library is not installed.
        """
        require(self.imports, EXTRA)
        adapter: ModuleType = importlib.import_module(f"{__name__}.{self.module}")
        return self.build(adapter)


OURS = "rltransformers"
SUBJECTS = (
    Subject("GTrXLPPO", OURS, OURS, "online", lambda adapter: adapter.OnPolicyAgent(adapter.GTrXLPPO)),
    Subject("GTrXLVMPO", OURS, OURS, "online", lambda adapter: adapter.OnPolicyAgent(adapter.GTrXLVMPO)),
    Subject("GTrXLDQN", OURS, OURS, "online", lambda adapter: adapter.QAgent()),
    Subject("DecisionTransformer", OURS, OURS, "offline", lambda adapter: adapter.DecisionTransformerAgent()),
    Subject("RecurrentPPO", "sb3-contrib", "sb3_contrib", "recurrent_ppo", lambda a: a.RecurrentPPOPolicy()),
    Subject("LSTMModule, GAE", "torchrl", "torchrl", "torchrl_modules", lambda a: a.TorchRLRecurrentPolicy()),
    Subject(
        "DTActor, 5 of 20 steps", "torchrl", "torchrl", "torchrl_modules", lambda a: a.TorchRLDecisionTransformer(5)
    ),
    Subject(
        "DTActor, 20 of 20 steps", "torchrl", "torchrl", "torchrl_modules", lambda a: a.TorchRLDecisionTransformer(20)
    ),
    Subject(
        "DecisionTransformerModel", "transformers", "transformers", "hugging_face", lambda a: a.HuggingFacePolicy()
    ),
    Subject("DecisionTransformer", "d3rlpy", "d3rlpy", "d3rlpy_transformers", lambda a: a.D3rlpyPolicy(False)),
    Subject("DiscreteDecisionTransformer", "d3rlpy", "d3rlpy", "d3rlpy_transformers", lambda a: a.D3rlpyPolicy(True)),
    Subject(
        "cache, learned positions",
        "x-transformers",
        "x_transformers",
        "x_transformers_cache",
        lambda a: a.XTransformersPolicy(rotary=False),
    ),
    Subject(
        "cache, rotary positions",
        "x-transformers",
        "x_transformers",
        "x_transformers_cache",
        lambda a: a.XTransformersPolicy(rotary=True),
    ),
)
