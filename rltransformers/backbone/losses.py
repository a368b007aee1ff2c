"""Auxiliary losses: what is trained besides the task, each produced by a mechanism of another axis or by attention."""

from rltransformers.attention.objectives import disagreement, guidance
from rltransformers.core.spec import Spec, Traits

LOSSES = {
    spec.name: spec
    for spec in (
        Spec(
            "X2", "span", "losses", "Sukhbaatar et al. 2019, arXiv 1905.07799, equation 6",
            "Mean span in tokens, summed over layers.",
            formula="sum over layers of mean_h z_h",
            example={"losses": {"span": 1e-3}, "span": {"name": "adaptive", "ramp": 2.0, "initial": 0.5}},
            traits=Traits(causality="N/A"),
        ),
        Spec(
            "X3", "ponder", "losses", "Graves 2016, arXiv 1603.08983, equation 13",
            "Steps taken plus remainder, mean over tokens.",
            formula="mean_t (N_t + R_t)",
            example={"losses": {"ponder": 1e-2}, "depth": "universal_act"}, traits=Traits(causality="N/A"),
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
            "Squared distance of normalised queries and keys from their centroids, mean over both, summed over layers.",
            formula="mean |x - SG(mu_c(x))|^2 over normalised queries and keys",
            example={"losses": {"commitment": 1e-4}, "selection": {"name": "routing", "clusters": 3, "window": 2}},
            traits=Traits(causality="N/A"),
        ),
        disagreement.SPEC,
        guidance.SPEC,
    )
}  # fmt: skip
