"""All mixers, patterns, selections, priors, head mechanisms and spans by name."""

from rltransformers.attention import informer, reach, roles, softmax
from rltransformers.attention.heads import capsule_dynamic, capsule_em, collaborative, multi_head, talking
from rltransformers.attention.patterns import (
    adjacency,
    band,
    bigbird,
    block_local,
    blockwise,
    bp,
    dilated,
    etc,
    global_tokens,
    image_1d,
    image_2d,
    longformer,
    random,
    schedule,
    sparse_fixed,
    sparse_strided,
    union,
)
from rltransformers.attention.priors import camtl, gaussian, gaussian_predicted, lazyformer, predictive, realformer
from rltransformers.attention.scores import (
    additive,
    gcn,
    hard_gaussian,
    hopfield,
    lowrank_band,
    synthesizer_dense,
    synthesizer_random,
)
from rltransformers.attention.selections import interface as selection
from rltransformers.attention.selections import lsh, routing, sac, sinkhorn, topk
from rltransformers.attention.slots import linformer, memory_compressed, poolingformer
from rltransformers.attention.spans import adaptive, adaptive_dynamic, multi_scale
from rltransformers.attention.spans import interface as span
from rltransformers.mixers import (
    average,
    clustered,
    csalr,
    dynamic_conv,
    fast_weight,
    gmlp,
    light_conv,
    linear,
    linformer_prefix,
    luna,
    nystrom,
    performer,
    rfa,
    set_transformer,
)

MIXERS = {
    spec.name: spec
    for spec in (
        softmax.SPEC, hopfield.SPEC, additive.SPEC, synthesizer_dense.SPEC, synthesizer_random.SPEC,
        hard_gaussian.SPEC, gcn.SPEC, lowrank_band.SPEC, linear.SPEC, performer.SPEC, rfa.SPEC, fast_weight.SPEC,
        set_transformer.SPEC, luna.SPEC, clustered.SPEC, nystrom.SPEC, average.SPEC, light_conv.SPEC,
        dynamic_conv.SPEC, gmlp.SPEC, memory_compressed.SPEC, linformer.SPEC, linformer_prefix.SPEC, csalr.SPEC,
        informer.SPEC, poolingformer.SPEC,
    )
}  # fmt: skip
PATTERNS = {
    spec.name: spec
    for spec in (
        reach.FULL, band.SPEC, dilated.SPEC, longformer.SPEC, bp.SPEC, etc.SPEC, global_tokens.SPEC, random.SPEC,
        block_local.SPEC, image_1d.SPEC, image_2d.SPEC, sparse_strided.SPEC, sparse_fixed.SPEC, blockwise.SPEC,
        bigbird.SPEC, union.SPEC, adjacency.SPEC, schedule.SPEC,
    )
}  # fmt: skip
SELECTIONS = {
    spec.name: spec
    for spec in (
        selection.NONE, topk.SPEC, routing.SPEC, lsh.SPEC, sinkhorn.SPEC, sac.SPEC,
    )
}  # fmt: skip
PRIORS = {
    spec.name: spec
    for spec in (
        roles.NO_PRIOR, gaussian.SPEC, gaussian_predicted.SPEC, realformer.SPEC, lazyformer.SPEC, predictive.SPEC,
        camtl.SPEC,
    )
}  # fmt: skip
HEAD_MIXINGS = {
    spec.name: spec
    for spec in (
        multi_head.MHA, multi_head.MQA, multi_head.DECOUPLED, talking.SPEC, collaborative.SPEC, capsule_dynamic.SPEC,
        capsule_em.SPEC,
    )
}  # fmt: skip
SPANS = {
    spec.name: spec
    for spec in (
        span.FULL, adaptive.SPEC, adaptive_dynamic.SPEC, multi_scale.SPEC,
    )
}  # fmt: skip
