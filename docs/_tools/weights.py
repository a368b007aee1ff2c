"""Pictures of what a mechanism alone makes of attention: its weights where all contents score alike, or, of selections,
which choose by contents, where steps are of a few kinds."""

from typing import Any

import torch
from jaxtyping import Float
from torch import Tensor

from docs._tools.masks import PAST, READ, STEPS, Cells, Watch, title
from rltransformers.attention.layer import Attention
from rltransformers.attention.reach import Columns
from rltransformers.backbone import PLAIN, Backbone, BackboneConfig, Record
from rltransformers.functional.call import Tokens

KINDS, FACTOR = 4, 4.0
"""Kinds of steps in an episode; how much larger random weights are than at the start of a training."""
NOISE = 0.3
"""Deviation of what steps of a kind differ by, for selections: equal steps would be chosen by their order."""
EXAMPLE = -1
"""Of the heads of all layers, the one that an overview shows."""
SHADES = {0.02: "30", 0.1: "60", 0.3: "90", 0.6: "c0", 0.9: "ff"}
"""Opacity of the color from a share of the largest weight of the row on."""

PICTURES: dict[str, dict[str, dict[str, Any]]] = {
    "position": {
        "t5": {"position": {"name": "t5", "buckets": 12, "max_distance": 40}},
        "alibi": {"position": "alibi", "heads": 3},
    },
    "prior": {
        "gaussian_transformer": {"prior": "gaussian_transformer"},
        "gaussian_predicted": {"prior": "gaussian_predicted", "heads": 2},
        "realformer": {"prior": "realformer", "layers": 2},
        "lazyformer": {"prior": "lazyformer", "layers": 2},
        "predictive": {"prior": {"name": "predictive", "alpha": 0.5}, "layers": 2},
        "camtl": {"prior": {"name": "camtl", "task": 0, "block": 8, "blocks": 2}},
        "forget": {"prior": {"name": "forget", "bias": 2.0}, "heads": 2},
    },
    "span": {
        "adaptive": {"span": {"name": "adaptive", "ramp": 8, "initial": 0.3}},
        "adaptive_dynamic": {"span": {"name": "adaptive_dynamic", "ramp": 8, "bias": -2.0}},
        "multi_scale": {"span": {"name": "multi_scale", "windows": [4, 12, 28]}, "heads": 3},
    },
    "selection": {
        "topk": {"selection": {"name": "topk", "k": 5}},
        "routing": {"selection": {"name": "routing", "clusters": 4, "window": 6}},
        "lsh": {"selection": {"name": "lsh", "rounds": 1, "buckets": 4, "window": 6}},
        "sac": {"selection": {"name": "sac", "edges": 4}},
    },
}
"""What is drawn, by slot and name; heads and layers only where they differ."""
FACTORS = {"t5": 40.0}
"""Where ``FACTOR`` is too little to be seen."""
LEGEND = (
    "Attention weights of the last layer if all contents score alike: the darker the blue, the larger the weight; gray "
    f"is less than {100 * min(SHADES):.0f} % of the largest weight of the row. The network is untrained, with weights "
    f"{FACTOR:.0f} times as large as at the start of a training, and sees {KINDS} kinds of steps in random order"
)


SELECTION_LEGEND = (
    "Attention weights: the darker the blue, the larger the weight; gray steps are not read, or with less than "
    f"{100 * min(SHADES):.0f} % of the largest weight of the row. The network is untrained, with weights {FACTOR:.0f} "
    f"times as large as at the start of a training, and sees {KINDS} kinds of steps in random order; steps of a kind "
    "differ a little. `sinkhorn` has no picture: it reads mixtures of whole blocks."
)


class Weights(Watch):
    """Keeps the weights of every layer, too."""

    def __init__(self) -> None:
        super().__init__()
        self.weights: list[Tensor] = []

    def of_weights(self, weights: Tensor, columns: Columns, tokens: Tokens) -> None:
        super().of_weights(weights, columns, tokens)
        self.weights.append(weights)


def legend(axis: str) -> str:
    """How to read the pictures of a slot."""
    if axis == "selection":
        return SELECTION_LEGEND
    others = ", ".join(
        f"for `{name}` weights {FACTORS[name]:.0f} times as large" for name in PICTURES[axis] if name in FACTORS
    )
    return f"{LEGEND}{', ' if others else ''}{others}."


def panels_of(axis: str, name: str) -> list[tuple[str, dict[str, Cells]]]:
    """For every head of every layer: title, and the cells of every color."""
    return [(text, colored(shares)) for text, shares in shares_of(axis, name).items()]


@torch.no_grad()
def shares_of(axis: str, name: str) -> dict[str, Float[Tensor, "T T"]]:
    """For every head of every layer, by title: the weight of every earlier step, divided by the largest of the row."""
    torch.manual_seed(0)
    sizes = {"width": 24, "heads": 1, "layers": 1, "memory": STEPS - 1, "position": "none"}
    backbone = Backbone(BackboneConfig(**{**PLAIN, **sizes, **PICTURES[axis][name]})).double()
    mixers = [mixer for mixer in backbone.mixers() if isinstance(mixer, Attention)]
    watch = Weights()
    for mixer in mixers:
        mixer.plan.objectives, mixer.plan.judges_weights = (watch,), True
        for parameter in mixer.parameters():
            if parameter.numel() > 1 and parameter.std() > 0:  # it was drawn at random
                parameter.mul_(FACTORS.get(name, FACTOR))
    steps = torch.randn(KINDS, backbone.width).double()[torch.randint(KINDS, (STEPS,))]
    if axis == "selection":
        steps = steps + NOISE * torch.randn(steps.shape).double()
    else:
        forget_contents(mixers[-1])
    state, shares = None, dict[str, Tensor]()
    for t in range(STEPS):
        watch.columns.clear()
        watch.weights.clear()
        _, state = backbone(steps[None, t : t + 1], state, record=Record())
        for layer, (columns, weights) in enumerate(zip(watch.columns, watch.weights, strict=True)):
            (distance,) = columns.distances()
            for head, row in enumerate(weights[0, :, 0]):
                text = title(layer, len(mixers), head, weights.shape[1])
                square = shares.setdefault(text, torch.zeros(STEPS, STEPS).double())
                back = distance[0, 0, 0]
                past = back <= t
                share = row[past] / row.max().clamp(min=1e-12)  # 0 where a step reads nothing
                # a place without a key counts as the step itself, with weight 0
                square[t].scatter_reduce_(0, t - back[past], share, "amax")
    return shares


def forget_contents(mixer: Attention) -> None:
    """Set the keys of a layer to zero, so that all contents score alike."""
    if mixer.prior.takes_weights:  # it has no keys
        return
    first, count = mixer.score.own, mixer.dims.kv_heads * mixer.dims.head_dim
    for parameter in mixer.project.parameters():
        parameter[first : first + count] = 0.0


def colored(shares: Float[Tensor, "T T"]) -> dict[str, Cells]:
    """The cells of every color."""
    level = torch.bucketize(shares, torch.tensor([*SHADES]).double(), right=True)
    past = torch.ones(STEPS, STEPS, dtype=torch.bool).tril()
    colors = [PAST, *(f"{READ}{opacity}" for opacity in SHADES.values())]
    return {color: past & (level == number) for number, color in enumerate(colors)}
