"""How often the layers of a stack are applied, and whether they share their weights."""

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Annotated

from annotated_types import Ge, Lt
from torch import nn

from rltransformers.blocks.layer import Layer
from rltransformers.core.spec import Feature, Loss, NoOptions, Refusal, Spec, Traits
from rltransformers.stacks.halting import AdaptiveTime
from rltransformers.stacks.plain import Embed, Plain, Universal


class Depth:
    """Every layer once.

    Attributes:
        shared: one layer is applied again and again.
    """

    shared = False

    def halt(self, width: int, layers: int) -> nn.Module | None:
        """What decides from the stream where a token halts; None where no token halts."""
        return None

    def stack(self, layers: Sequence[Layer], embed: Embed, halt: nn.Module | None) -> Plain:
        """The way through the layers, of which there is one per application."""
        return Plain(layers)


class UniversalDepth(Depth):
    """One layer, always as many times."""

    shared = True

    def stack(self, layers: Sequence[Layer], embed: Embed, halt: nn.Module | None) -> Plain:
        """Layers that are told where they are applied."""
        return Universal(layers, embed)


@dataclass(frozen=True)
class HaltingDepth(UniversalDepth):
    """One layer, until the halting probabilities of each token add up to 1 - epsilon."""

    epsilon: float

    def halt(self, width: int, layers: int) -> nn.Module:
        """A projection to one logit that starts in favour of halting."""
        projection = nn.Linear(width, 1)
        nn.init.ones_(projection.bias)
        return projection

    def stack(self, layers: Sequence[Layer], embed: Embed, halt: nn.Module | None) -> Plain:
        """The stack that ``halt`` cuts short."""
        assert isinstance(halt, nn.Linear)  # made by this class
        return AdaptiveTime(layers, embed, halt, self.epsilon)


@dataclass(frozen=True)
class HaltingOptions:
    """A token halts when its halting probabilities add up to 1 - epsilon."""

    epsilon: Annotated[float, Ge(0), Lt(1)] = 0.01


def build_fixed(options: NoOptions) -> Depth:
    """D0."""
    return Depth()


def build_universal(options: NoOptions) -> Depth:
    """D2."""
    return UniversalDepth()


def build_halting(options: HaltingOptions) -> Depth:
    """D3."""
    return HaltingDepth(options.epsilon)


ONE_LAYER = (Refusal(Feature.MIXED_LAYERS, "there is only one layer, which cannot change between its applications"),)
_UNIVERSAL = "Dehghani et al. 2019, arXiv 1807.03819"
DEPTHS = {
    spec.name: spec
    for spec in (
        Spec(
            "D0", "fixed", "depth", "-", "Every layer has its own weights.", build_fixed,
            example={"depth": "fixed"}, formula="x^n = layer_n(x^(n-1))", traits=Traits(causality="N/A"),
        ),
        Spec(
            "D1", "act", "depth", "Graves 2016, arXiv 1603.08983",
            "Weights of the states of one token, decided as they come, that sum to 1.", settings="depth: universal_act",
            example={"depth": "universal_act"}, traits=Traits(causality="N/A"),
            formula="N = min{n: p_1 + ... + p_n >= 1 - epsilon}, y = sum_(n<N) p_n s_n + (1 - sum_(n<N) p_n) s_N",
        ),
        Spec(
            "D2", "universal", "depth", _UNIVERSAL, "One layer, applied `layers` times.", build_universal,
            example={"depth": "universal"}, formula="x^n = layer(x^(n-1) + PE(p_t) + PE(n))",
            traits=Traits(causality="N/A"), offers=(Feature.SHARED,), refuses=ONE_LAYER,
        ),
        Spec(
            "D3", "universal_act", "depth", f"{_UNIVERSAL}; Graves 2016, arXiv 1603.08983",
            "One layer, applied until each token halts, at most `layers` times.", build_halting, HaltingOptions,
            example={"depth": "universal_act"}, traits=Traits(causality="N/A"),
            formula="y = sum_n w_n x^n, w_n = sigmoid(w_h x^n + b_h) up to a sum of 1 - epsilon, then what is left",
            offers=(Feature.SHARED, Feature.HALTING), refuses=ONE_LAYER, produces=(Loss("ponder"),),
        ),
    )
}  # fmt: skip
