"""How often the layers of a stack are applied, and whether they share their weights."""

from collections.abc import Callable, Collection, Sequence
from dataclasses import dataclass
from typing import Annotated, Any, Literal

from annotated_types import Ge, Le, Lt
from torch import nn

from rltransformers.blocks.layer import Layer
from rltransformers.blocks.leaving import Classified, Geometric, Leaving, Multinomial, Saturated
from rltransformers.core.spec import Feature, Loss, NoOptions, Refusal, Size, Spec, Traits, Unread, by_name
from rltransformers.stacks.exits import Exits
from rltransformers.stacks.halting import AdaptiveTime
from rltransformers.stacks.plain import Embed, Plain


@dataclass(frozen=True)
class Depth:
    """How the layers are applied.

    Attributes:
        stack: makes the stack of the layer of every application, the embedding of inputs, and what ``halt`` made.
        halt: makes the module that decides where a token halts from D and the number of layers; None: no token halts.

    One layer is applied again and again where the spec offers ``Feature.SHARED``.
    """

    stack: Callable[[Sequence[Layer], Embed, Any], Plain]
    halt: Callable[[int, int], nn.Module] | None = None


def exits_where(leaving: Callable[[int, int], Leaving]) -> Depth:
    """Apply every layer once, until a token leaves."""
    return Depth(lambda layers, embed, halt: Exits(layers, halt), leaving)


def halting_unit(width: int, layers: int) -> nn.Linear:
    """Make a projection to one logit that starts in favor of halting."""
    projection = nn.Linear(width, 1)
    nn.init.ones_(projection.bias)
    return projection


@dataclass(frozen=True)
class HaltingOptions:
    """A token halts when its halting probabilities add up to 1 - epsilon."""

    epsilon: Annotated[float, Ge(0), Lt(1)] = 0.01


@dataclass(frozen=True)
class ConfidentOptions:
    """When a token is sure enough to leave.

    Attributes:
        confidence: "saturation" is the cosine of the stream before and behind a layer, which is near 1 from the start
            where gates are nearly shut (residual gru); "classifier" is learned by the loss exits; without
            it in ``losses`` it keeps its random initial weights.
        threshold: confidence lambda at which a token leaves.
        decay: early tokens of an episode have to be surer, by 0.1 exp(-decay p / horizon); None: all alike.
        horizon: tokens over which the higher threshold of early tokens fades; not read without a decay.
    """

    confidence: Literal["saturation", "classifier"] = "saturation"
    threshold: Annotated[float, Ge(-1), Le(2)] = 0.9
    decay: Annotated[float, Ge(0), Le(1e6)] | None = 4.0
    horizon: Annotated[Size, Unread("no decay", lambda options: not options.decay)] = 512


@dataclass(frozen=True)
class AdaptiveOptions:
    """Predictor of where a token leaves: one choice after the first layer, or one decision after every layer.

    It is learned by the loss exits; where ``losses`` does not name that, tokens leave as the first weights say.
    """

    predictor: Literal["multinomial", "geometric"] = "multinomial"


def build_calm(options: ConfidentOptions) -> Depth:
    """Build confident adaptive language modeling (CALM): a token leaves once it is sure."""
    rest = options.threshold, options.decay, options.horizon
    if options.confidence == "classifier":
        return exits_where(lambda width, layers: Classified(width, *rest))
    return exits_where(lambda width, layers: Saturated(*rest))


def unread_by_calm(options: ConfidentOptions) -> Collection[str]:
    """Options of the loss exits that do not act: nothing but a classifier is trained, and only by ``slack``."""
    oracle = "penalty", "smoothing"
    return oracle if options.confidence == "classifier" else (*oracle, "slack")


def unread_by_adaptive(options: AdaptiveOptions) -> Collection[str]:
    """Options of the loss exits that do not act: a predictor has no slack."""
    return ("slack",)


def build_adaptive(options: AdaptiveOptions) -> Depth:
    """Build the depth-adaptive transformer: where a token leaves is predicted."""
    return exits_where(Multinomial if options.predictor == "multinomial" else Geometric)


def build_fixed(options: NoOptions) -> Depth:
    """Build a stack of layers of their own."""
    return Depth(lambda layers, embed, halt: Plain(layers))


def build_universal(options: NoOptions) -> Depth:
    """Build the Universal Transformer: one layer again and again."""
    return Depth(lambda layers, embed, halt: Plain(layers, embed=embed))


def build_halting(options: HaltingOptions) -> Depth:
    """Build the Universal Transformer with adaptive computation time."""
    return Depth(lambda layers, embed, halt: AdaptiveTime(layers, halt, options.epsilon, embed=embed), halting_unit)


ONE_LAYER = (Refusal(Feature.MIXED_LAYERS, "there is only one layer, which cannot change between its applications"),)
_DEPTH_ADAPTIVE = "every token chooses for itself: one choice for a whole sequence would have to read later tokens"
_CALM = (
    "tokens may leave after the first layer, in the authors' code after the second; there lam multiplies the "
    "decaying part too, lam (0.9 + 0.1 exp(-decay p / horizon)); the classifier learns to accept a layer whose "
    "loss is at most `slack` above that of the last one, there one that predicts the same"
)
_UNIVERSAL = "Dehghani et al. 2019, arXiv 1807.03819"
DEPTHS = by_name(
    Spec(
        "D0", "fixed", "depth", "-", "Every layer has its own weights.", build_fixed,
        formula="x^n = layer_n(x^(n-1))", traits=Traits(causality="N/A"), produces=(Loss("al_rfou"),),
    ),
    Spec(
        "D1", "act", "depth", "Graves 2016, arXiv 1603.08983",
        "Adaptive computation time: the output of a token is a weighted mean of its states after every step.",
        settings="depth: universal_act", example={"depth": "universal_act"}, traits=Traits(causality="N/A"),
        formula="N = min{n: p_1 + ... + p_n >= 1 - epsilon}, y = sum_(n<N) p_n s_n + (1 - sum_(n<N) p_n) s_N",
    ),
    Spec(
        "D2", "universal", "depth", _UNIVERSAL, "One layer, applied `layers` times.", build_universal,
        formula="x^n = layer(x^(n-1) + PE(p_t) + PE(n))",
        traits=Traits(causality="N/A"), offers=(Feature.SHARED,), refuses=ONE_LAYER, produces=(Loss("al_rfou"),),
    ),
    Spec(
        "D3", "universal_act", "depth", f"{_UNIVERSAL}; Graves 2016, arXiv 1603.08983",
        "One layer, applied until each token halts, at most `layers` times.", build_halting, HaltingOptions,
        traits=Traits(causality="N/A"),
        formula="y = sum_n w_n x^n, w_n = sigmoid(w_h x^n + b_h) up to a sum of 1 - epsilon, then what is left",
        offers=(Feature.SHARED, Feature.HALTING), refuses=ONE_LAYER, produces=(Loss("ponder"),),
    ),
    Spec(
        "D4", "depth_adaptive", "depth", "Elbayad et al. 2020, arXiv 1910.10073, section 3",
        "A predictor, trained by the loss `exits`, chooses the layer after which a token leaves; its state is "
        "copied to the layers above.",
        build_adaptive, AdaptiveOptions, traits=Traits(causality="C*", causal_form=_DEPTH_ADAPTIVE),
        offers=(Feature.HALTING,), produces=(Loss("exits", unread=unread_by_adaptive),),
        formula="n_t = argmax_n softmax(W h^1_t + b), or the first n with sigmoid(w_n h^n_t + b_n) > 1/2; h^m_t = "
        "h^(n_t)_t for m > n_t",
    ),
    Spec(
        "D5", "calm", "depth", "Schuster et al. 2022, arXiv 2207.07061, section 3",
        "A token leaves after the first layer with enough confidence; its state is copied to the layers above.",
        build_calm, ConfidentOptions, example={"depth": {"name": "calm", "threshold": 0.6}},
        traits=Traits(causal_form=_CALM),
        offers=(Feature.HALTING,), produces=(Loss("exits", unread=unread_by_calm),),
        formula="n_t = min{n: c^n_t >= clip(0.9 lam + 0.1 exp(-decay p_t / horizon), 0, 1)}, c = cos(h^n, h^(n-1)) "
        "or sigmoid(w h^n + b); h^m_t = h^(n_t)_t for m > n_t",
    ),
)  # fmt: skip
