"""LazyFormer: the first layer of a group computes weights, the others read values with them (Ying et al. 2021)."""

from dataclasses import dataclass
from typing import Annotated

from annotated_types import Ge, Le

from rltransformers.attention.roles import HandUp, Part
from rltransformers.core.spec import Feature, Refusal, Spec, Traits
from rltransformers.mixers.interface import Dims


@dataclass(frozen=True)
class Options:
    """Layers that share the weights of the first of them; 1 shares none."""

    group: Annotated[int, Ge(1), Le(1000)] = 2


class Lazy(Part):
    """Of one layer of a group of ``group``."""

    def __init__(self, dims: Dims, options: Options) -> None:
        super().__init__()
        self.group, place = options.group, dims.layer % options.group
        self.takes_weights = place > 0
        self.hands = HandUp.WEIGHTS if place < self.group - 1 else HandUp.NOTHING


SPEC = Spec(
    id="B5", name="lazyformer", axis="prior", paper="Ying et al. 2021, arXiv 2102.12702",
    summary="Only the first layer of a group has queries and keys; the others read their own values with its weights.",
    build=Lazy, options=Options, example={"prior": "lazyformer", "layers": 3},
    traits=Traits(
        family="EXPL", state="memory kv_heads Dv in place of keys and values (acting, but the first of a group)"
    ),
    offers=(Feature.CARRY, Feature.MIXED_LAYERS), needs=(Feature.LOGITS, Feature.PRODUCTS),
    refuses=(
        Refusal(Feature.MIXED_KEYS, "the weights of the first layer of a group must be about the same keys"),
        Refusal(Feature.HALTING, "a token that halts hands nothing on to the layers above"),
        Refusal(Feature.CHOICE, "layers without queries cannot say which keys the first one chose"),
        Refusal(Feature.STORE, "the layer that reads the store may have no queries"),
    ),
    formula="a^l = a^(l - l mod group), o^l_t = sum_s a^l_ts v^l_s",
)  # fmt: skip
