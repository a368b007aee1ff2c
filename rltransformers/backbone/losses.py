"""Auxiliary losses: what is trained besides the task, each produced by a mechanism of another axis or by attention."""

from dataclasses import dataclass
from typing import Annotated, Literal

from annotated_types import Ge, Le

from rltransformers.attention.objectives import disagreement, guidance
from rltransformers.core.spec import Feature, Spec, Traits, Unread, by_name


@dataclass(frozen=True)
class ExitOptions:
    """How exits are trained.

    Attributes:
        training: "aligned": all tokens leave after the same layer, and all layers count; "mixed": every token leaves
            after a layer that is drawn for it.
        weights: of the layers: all alike, or growing with their number n. Only in aligned training.
        penalty: how much loss one more layer has to save. For depth_adaptive alone.
        smoothing: sum losses of neighboring steps, weighed by exp(-distance^2 / smoothing); 0 does not. For
            depth_adaptive alone.
        slack: a layer is right if its loss is at most this much above that of the last one. For the classifier of
            calm alone.
    """

    training: Literal["aligned", "mixed"] = "aligned"
    weights: Annotated[
        Literal["uniform", "growing"], Unread("training 'mixed'", lambda options: options.training == "mixed")
    ] = "growing"
    penalty: Annotated[float, Ge(0), Le(1e6)] = 0.01
    smoothing: Annotated[float, Ge(0), Le(1e6)] = 0.0
    slack: Annotated[float, Ge(0), Le(1e6)] = 0.1


@dataclass(frozen=True)
class DeepOptions:
    """Weight of the loss about the action after the next one; 0 leaves it out."""

    future: Annotated[float, Ge(0), Le(1e6)] = 0.5


LOSSES = by_name(
    Spec(
        "X2", "span", "losses", "Sukhbaatar et al. 2019, arXiv 1905.07799, equation 6",
        "Mean span in tokens, summed over layers.",
        formula="sum over layers of mean_h z_h", traits=Traits(causality="N/A"),
        example={"losses": {"span": 1e-3}, "span": {"name": "adaptive", "ramp": 2.0, "initial": 0.5}},
    ),
    Spec(
        "X3", "ponder", "losses", "Graves 2016, arXiv 1603.08983, equation 13",
        "Steps taken plus remainder, mean over tokens.",
        formula="mean_t (N_t + R_t)", traits=Traits(causality="N/A"),
        example={"losses": {"ponder": 1e-2}, "depth": "universal_act"},
    ),
    Spec(
        "X6", "compression", "losses", "Rae et al. 2019, arXiv 1911.05507, section 3.2",
        "Squared error of decoding compressed memories, or of what attention reads from them.",
        formula="mean |old - dec(f_c(old))|^2, or mean |att(h, old) - att(h, f_c(old))|^2",
        example={"losses": {"compression": 1.0}, "memory": 5,
                 "memory_kind": {"name": "compressive", "slots": 3, "rate": 2}},
        traits=Traits(causality="N/A"),
    ),
    Spec(
        "C3-commitment", "commitment", "losses", "Roy et al. 2021, arXiv 2003.05997, section 4.1",
        "Squared distance of normalized queries and keys from their centroids, mean over both, summed over layers.",
        formula="mean |x - SG(mu_c(x))|^2 over normalized queries and keys",
        example={"losses": {"commitment": 1e-4}, "selection": {"name": "routing", "clusters": 3, "window": 2}},
        traits=Traits(causality="N/A"),
    ),
    Spec(
        "X1", "al_rfou", "losses", "Al-Rfou et al. 2018, arXiv 1808.04444, section 2",
        "The policy's loss on the outputs of inner layers, each for a part of training, and the loss of "
        "predicting the next action.",
        options=DeepOptions,
        formula="sum_(l < n) [progress < l / 2n] L^l + future sum_l L'^l, L' about the action after the next one",
        example={"losses": {"al_rfou": 1.0}}, traits=Traits(causality="N/A"), offers=(Feature.STREAMS,),
    ),
    Spec(
        "X7", "exits", "losses",
        "Elbayad et al. 2020, arXiv 1910.10073, section 3; Schuster et al. 2022, arXiv 2207.07061, section 3.3",
        "The policy's loss if all tokens left after the same layer, weighted by layer, and the loss of the "
        "predictor of exits.",
        options=ExitOptions,
        formula="sum_n w_n L^n / sum_n w_n - log q(argmin_n (L^n_t + penalty n)), or binary cross-entropies of "
        "L^n_t <= L^N_t + slack",
        example={"losses": {"exits": 1.0}, "depth": "depth_adaptive"},
        traits=Traits(
            causality="N/A",
            causal_form="the classifier of calm learns to accept a layer whose loss is at most `slack` above that"
                        " of the last one, in the paper one that predicts the same",
        ),
        offers=(Feature.STREAMS,),
    ),
    disagreement.SPEC,
    guidance.SPEC,
)  # fmt: skip
