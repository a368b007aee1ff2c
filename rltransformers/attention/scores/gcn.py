"""Graph convolution: every token reads the mean of its neighbors, which the pattern names (Kipf & Welling 2017)."""

from dataclasses import replace

from rltransformers.attention.layer import Attention
from rltransformers.attention.plan import Plan
from rltransformers.attention.roles import HandUp
from rltransformers.attention.scores.interface import EXPLICIT, ValuesOnly, check_value_heads
from rltransformers.core.errors import ConfigError
from rltransformers.core.spec import Feature, NoOptions, Spec, Traits
from rltransformers.mixers.interface import Dims


def build(dims: Dims, plan: Plan, options: NoOptions) -> Attention:
    """Build attention whose logits are all 0, so that a softmax gives all neighbors the same weight."""
    check_value_heads("gcn", dims)
    if plan.hands is not HandUp.NOTHING and not plan.scores_distances:
        raise ConfigError(
            "mixer 'gcn' gives every key the score 0, so that a prior finds nothing in the layer below; set prior to "
            "'none', or position to one that scores distances (alibi, t5)"
        )
    return Attention(dims, replace(plan, score=ValuesOnly(dims)))


SPEC = Spec(
    id="A18", name="gcn", axis="mixer", paper="Kipf & Welling 2017, arXiv 1609.02907, equation 2",
    summary="The mean of the values of all tokens that the pattern shows; with `adjacency`, of neighbors in a graph.",
    build=build,
    example={"mixer": "gcn", "pattern": {"name": "adjacency", "offsets": [1, 4], "edges": [[3, 0], [5, 2]]}},
    traits=Traits(
        causality="C*",
        family="VAL",
        horizon="that of the pattern",
        state="that of the pattern",
        causal_form="edges lead to earlier tokens, so rows are divided by their degree, D^-1 (A + I); the symmetric "
        "D^-1/2 (A + I) D^-1/2 would count later ones; heads are joined by a projection, without a ReLU",
    ),
    offers=(*EXPLICIT, Feature.TIES),
    formula="o_t = sum_s v_s / (number of the s), over the s <= t that the pattern allows",
)  # fmt: skip
