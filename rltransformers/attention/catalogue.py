"""All mixers, patterns, selections, priors, head mechanisms and spans by name."""

from rltransformers.attention import informer, reach, roles, softmax
from rltransformers.attention.heads import (
    capsule_dynamic,
    capsule_em,
    collaborative,
    differential,
    gated,
    mla,
    multi_head,
    talking,
)
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
from rltransformers.attention.priors import (
    camtl,
    forget,
    gaussian,
    gaussian_predicted,
    lazyformer,
    predictive,
    realformer,
    value_residual,
)
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
from rltransformers.core.spec import by_name
from rltransformers.mixers import (
    agalite,
    average,
    clustered,
    csalr,
    dynamic_conv,
    fast_weight,
    ffm,
    galite,
    gated_deltanet,
    gla,
    gmlp,
    gru,
    kda,
    light_conv,
    linear,
    linformer_prefix,
    lru,
    lstm,
    luna,
    mamba2,
    min_rnn,
    mlstm,
    nystrom,
    performer,
    retention,
    rfa,
    rg_lru,
    rwkv7,
    s5,
    set_transformer,
    shm,
    slstm,
)

# fmt: off
MIXERS = by_name(
    softmax, hopfield, additive, synthesizer_dense, synthesizer_random, hard_gaussian, gcn, lowrank_band, linear,
    performer, rfa, fast_weight, set_transformer, luna, clustered, nystrom, average, light_conv, dynamic_conv, gmlp,
    memory_compressed, linformer, linformer_prefix, csalr, informer, poolingformer,
    gated_deltanet, mlstm, kda, rwkv7,
    gru, lstm, slstm,
    agalite, galite,
    min_rnn.MIN_GRU, min_rnn.MIN_LSTM, lru, rg_lru, s5, ffm, shm,
    gla, mamba2, retention,
)
PATTERNS = by_name(
    reach.FULL, band, dilated, longformer, bp, etc, global_tokens, random, block_local, image_1d, image_2d,
    sparse_strided, sparse_fixed, blockwise, bigbird, union, adjacency, schedule,
)
SELECTIONS = by_name(selection.NONE, topk, routing, lsh, sinkhorn, sac)
PRIORS = by_name(
    roles.NO_PRIOR, gaussian, gaussian_predicted, realformer, lazyformer, predictive, camtl, forget, value_residual,
)
HEAD_MIXINGS = by_name(
    multi_head.MHA, multi_head.MQA, multi_head.DECOUPLED, talking, collaborative, capsule_dynamic, capsule_em,
    gated, differential, mla,
)
SPANS = by_name(span.FULL, adaptive, adaptive_dynamic, multi_scale)
# fmt: on
