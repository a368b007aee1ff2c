"""Which mechanisms may be combined, pair by pair, written by hand from their formulas; the library is not asked.

A pair that is not listed works. A row names mechanisms ("axis: names"), what they cannot be combined with, and words
that the reason must contain. A new mechanism goes into ``MECHANISMS`` of the laws, and into rows of what it cannot do.
"""

from typing import Any

from rltransformers.laws.partners import MECHANISMS, SIZES

SCORES = (
    "position: shaw global_labels t5 trxl rope alibi; prior: gaussian_transformer gaussian_predicted camtl; "
    "span: adaptive adaptive_dynamic; losses: span"
)
STATES = "mixer: linear performer rfa fast_weight set_transformer luna clustered linformer_prefix average light_conv"
STATES += " gated_deltanet mlstm kda rwkv7"
STATES += " gru lstm slstm"
STATES += " agalite galite"
STATES += " min_gru min_lstm lru rg_lru s5 ffm shm"
STATES += " gla mamba2 retention"
NO_SCORES = f"{STATES} nystrom"
SLOTS = "mixer: memory_compressed linformer"
SLOTS += " informer poolingformer"
NO_SCORES += " csalr"
VALUES = "mixer: average light_conv mlstm gru lstm slstm min_gru min_lstm lru rg_lru s5 ffm mamba2 rwkv7"
TAPS = "mixer: dynamic_conv gmlp"
LOGITS = (
    "selection: topk routing; prior: realformer lazyformer predictive forget; head_mixing: talking; losses: commitment"
)
RULES = "pattern: random block_local image_1d image_2d sparse_strided sparse_fixed blockwise bigbird union adjacency"
RESTRICTED = f"{RULES} band dilated longformer bp etc global schedule; setting: patterns_of_heads patterns_of_layers"
SCALES = "span: multi_scale"

KEYLESS = "mixer: synthesizer_dense synthesizer_random hard_gaussian gcn"
OF_PRODUCTS = "position: shaw global_labels trxl rope"

REFUSED: list[tuple[str, str, str]] = [
    # Without scores of pairs there is nothing to add to by distance, and no weight to multiply. Rotated queries and
    # keys would need a numerator and a denominator of their own in sums over the past; slots would need a distance.
    # Neither is built.
    (SCORES, NO_SCORES, "scores of pairs"),
    (
        LOGITS,
        NO_SCORES,
        "the logits of all pairs",
    ),
    (RESTRICTED, NO_SCORES, "keys that a pattern can leave out"),
    # The state is the memory: no rows are kept, so none can be kept in another way.
    ("memory_kind: cache", STATES, "rows of earlier tokens"),
    ("memory_kind: compressive; losses: compression", NO_SCORES, "compressed rows"),
    ("setting: no_memory", STATES, "does not make it memoryless"),
    # Values are not projected per head, and there are no keys.
    ("head_mixing: mqa decoupled; setting: bias", VALUES, "queries, keys and values"),
    # Vectors that are added to values are as wide as the keys.
    ("head_mixing: decoupled", "position: shaw", "needs value_dim"),
    # Heads share their weights after the softmax: what one leaves out another brings back.
    (
        "head_mixing: talking",
        "selection: topk routing; losses: commitment; setting: patterns_of_heads",
        "one mask for all of them",
    ),
    # One of the two chooses the keys of a query.
    ("pattern: bp etc", "selection: routing; losses: commitment", "choose the keys of a query themselves"),
    # Blocks decide what is visible, and count tokens.
    ("memory_kind: compressive; losses: compression", RESTRICTED, "itself decides which tokens are visible"),
    ("memory_kind: compressive; losses: compression", "setting: two_tokens", "cut through a step"),
    # A layer adds the logits of the one before, key by key.
    ("prior: realformer", "setting: patterns_of_layers mixers_of_layers", "about the same keys"),
    ("prior: realformer", "depth: act universal_act; losses: ponder", "a halted token takes no step"),
    ("prior: realformer", "selection: routing; losses: commitment", "for the keys of its cluster only"),
    # Inputs are rebuilt from outputs: nothing may pass beside the streams, be added between layers, or need the stored
    # forward pass.
    ("residual: reversible", "prior: realformer", "beside the streams is not rebuilt"),
    ("residual: reversible", "depth: universal", "not taken off again"),
    ("residual: reversible", "depth: act universal_act; losses: ponder", "a token that halts leaves nothing"),
    ("residual: reversible", "losses: span compression commitment", "no gradient would reach them"),
    ("residual: reversible", "topology: encoder_decoder", "none reads elements"),
    # One layer has one mixer and one pattern.
    (
        "depth: universal act universal_act; losses: ponder",
        "setting: patterns_of_layers mixers_of_layers",
        "there is only one layer",
    ),
    # A choice that takes the place of the producer.
    ("losses: span", "span: full", "has nothing to act on"),
    ("losses: commitment", "selection: none topk", "has nothing to act on"),
    ("losses: ponder", "depth: fixed universal", "has nothing to act on"),
    ("losses: compression", "memory_kind: cache transformer_xl", "has nothing to act on"),
    # Layers that differ in their mixer: per-layer choices must suit each; those of the model act in the first.
    ("selection: topk routing; losses: commitment", "setting: mixers_of_layers", "the logits of all pairs"),
    ("pattern: band dilated longformer bp etc", "setting: mixers_of_layers", "keys that a pattern can leave out"),
    ("span: adaptive adaptive_dynamic; losses: span", "setting: mixers_of_layers", "scores of pairs"),
    # The window of these is longer than no memory.
    ("pattern: band dilated longformer", "setting: no_memory", "set memory to at least"),
    ("mixer: nystrom csalr", "setting: no_memory", "raise memory"),
    # Distances are counted in tokens, of which a step has two.
    ("pattern: dilated", "setting: two_tokens", "counts tokens"),
    # Taps of convolutions weigh values; there are no queries, no keys, no scores, and no rows.
    (SCORES, TAPS, "scores of pairs"),
    (LOGITS, TAPS, "the logits of all pairs"),
    (RESTRICTED, TAPS, "keys that a pattern can leave out"),
    ("memory_kind: cache", TAPS, "rows of earlier tokens"),
    ("memory_kind: compressive; losses: compression", TAPS, "compressed rows"),
    ("setting: no_memory", TAPS, "does not make it memoryless"),
    ("head_mixing: mqa decoupled; setting: bias", TAPS, "queries, keys and values"),
    # Rows hold values, and those of the first layer stand for the same tokens as those of all others.
    ("prior: value_residual", f"{NO_SCORES}; {TAPS}; mixer: additive", "values that are no keys"),
    (
        "prior: value_residual",
        "setting: patterns_of_layers mixers_of_layers; pattern: schedule",
        "stand in the same rows",
    ),
    ("prior: value_residual", "memory_kind: memorizing", "does not keep"),
    ("prior: value_residual", "depth: universal", "there is only one layer"),
    (
        "prior: value_residual",
        "depth: act universal_act depth_adaptive calm; losses: ponder exits",
        "hands nothing on",
    ),
    ("prior: value_residual", "residual: reversible", "beside the streams is not rebuilt"),
    # Slots stand for several tokens, and lazy queries meet no keys; both decide what is visible, and have distances.
    (LOGITS, SLOTS, "the logits of all pairs"),
    (RESTRICTED, SLOTS, "keys that a pattern can leave out"),
    ("memory_kind: compressive; losses: compression", SLOTS, "compressed rows"),
    ("mixer: memory_compressed linformer poolingformer", "setting: no_memory", "raise memory"),
    # Patterns with rules about the position of the query.
    (f"{RULES} global schedule", "setting: mixers_of_layers", "keys that a pattern can leave out"),
    (f"{RULES} schedule", "setting: no_memory", "set memory to at least"),
    ("pattern: global", "setting: no_memory", "does not make it memoryless"),
    ("pattern: schedule", "prior: realformer", "about the same keys"),
    ("pattern: schedule", "depth: universal universal_act act; losses: ponder", "there is only one layer"),
    # A window per head is a pattern per head.
    (SCALES, NO_SCORES, "keys that a pattern can leave out"),
    (SCALES, TAPS, "keys that a pattern can leave out"),
    (SCALES, SLOTS, "keys that a pattern can leave out"),
    (SCALES, "setting: mixers_of_layers", "keys that a pattern can leave out"),
    (SCALES, "setting: no_memory", "set memory to at least"),
    (SCALES, "pattern: bp etc", "all heads alike"),
    (SCALES, "head_mixing: talking", "one mask for all of them"),
    (SCALES, "memory_kind: compressive; losses: compression", "itself decides which tokens are visible"),
    (SCALES, "losses: span", "has nothing to act on"),
    ("pattern: random blockwise bigbird", "head_mixing: talking", "one mask for all of them"),
    # Hashes need products to stand for, and one projection makes a query and a key of every head.
    ("selection: lsh", NO_SCORES, "the logits of all pairs"),
    ("selection: lsh", TAPS, "the logits of all pairs"),
    ("selection: lsh", SLOTS, "the logits of all pairs"),
    ("selection: lsh", "setting: mixers_of_layers", "the logits of all pairs"),
    ("selection: lsh", "head_mixing: mqa", "has to equal heads"),
    ("selection: lsh", "head_mixing: talking", "one mask for all of them"),
    ("selection: lsh", "pattern: bp etc", "choose the keys of a query themselves"),
    ("selection: lsh", "prior: realformer", "for the keys of its buckets only"),
    ("selection: lsh", "losses: commitment", "has nothing to act on"),
    # Queries predict where they look; layers without queries and keys have none to do without.
    ("prior: gaussian_predicted lazyformer", f"mixer: additive; {KEYLESS}", "products of queries and keys"),
    # Weights are reused about the same keys, in layers without queries, which differ from the first of their group.
    (
        "prior: lazyformer predictive",
        "setting: patterns_of_layers mixers_of_layers; pattern: schedule",
        "about the same keys",
    ),
    ("prior: lazyformer", "pattern: bp etc", "which keys the first one chose"),
    ("prior: predictive", "pattern: bp etc", "have no neighbors"),
    ("prior: predictive", "setting: no_memory", "does not make the layers memoryless"),
    ("prior: lazyformer predictive", "selection: routing lsh sinkhorn sac; losses: commitment", "from layer to layer"),
    ("prior: lazyformer", "memory_kind: memorizing", "may have no queries"),
    ("prior: lazyformer predictive", "depth: universal", "there is only one layer"),
    (
        "prior: lazyformer predictive",
        "depth: act universal_act depth_adaptive calm; losses: ponder exits",
        "hands nothing on",
    ),
    ("prior: lazyformer predictive", "residual: reversible", "beside the streams is not rebuilt"),
    # All logits of a layer are 0.
    ("prior: realformer predictive", "mixer: gcn", "gives every key the score 0"),
    # A transform that reads earlier tokens keeps them itself; without any, one of two streams stands still.
    ("ff: sep_conv", "setting: no_memory", "does not make the layers memoryless"),
    ("ff: none", "residual: reversible", "would never change"),
    # A store behind a window.
    (
        "memory_kind: memorizing",
        f"{NO_SCORES}; {TAPS}; {SLOTS}",
        "what is retrieved from a store",
    ),
    (
        "memory_kind: memorizing",
        f"pattern: band dilated longformer global bp etc schedule; {RULES}; {SCALES}; "
        "setting: patterns_of_layers patterns_of_heads",
        "nobody would read what lies in between",
    ),
    ("memory_kind: memorizing", "depth: universal act universal_act; losses: ponder", "there is only one layer"),
    ("memory_kind: memorizing", "setting: no_memory", "does not make it memoryless"),
    ("memory_kind: memorizing", "losses: compression", "has nothing to act on"),
    # Slots are rows beside those of the window, and are kept whatever the window is.
    ("memory_kind: slots", f"{NO_SCORES}; {TAPS}; {SLOTS}; {KEYLESS}; mixer: lowrank_band", "compressed rows"),
    (
        "memory_kind: slots compressive; losses: compression",
        "setting: no_memory",
        "does not make the layers memoryless",
    ),
    ("memory_kind: slots", "losses: compression", "has nothing to act on"),
    # Scores that are not products of queries and keys, or have no keys at all.
    (
        f"{OF_PRODUCTS}; selection: routing lsh; losses: commitment; pattern: bp etc",
        f"mixer: additive; {KEYLESS}",
        "products of queries and keys",
    ),
    ("memory_kind: compressive; losses: compression", f"{KEYLESS}; mixer: lowrank_band", "compressed rows"),
    ("head_mixing: mqa decoupled; setting: bias", KEYLESS, "queries, keys and values"),
    ("head_mixing: mqa", "mixer: additive lowrank_band", "keys that heads of queries share"),
    ("head_mixing: decoupled", "mixer: additive", "reads what it compares"),
    ("head_mixing: talking", "mixer: lowrank_band", "one mask for all of them"),
    ("selection: lsh", "mixer: lowrank_band", "projections of their own"),
    ("memory_kind: memorizing", f"mixer: additive lowrank_band; {KEYLESS}", "what is retrieved from a store"),
    ("pattern: bp etc", "mixer: lowrank_band", "all heads alike"),
    ("setting: no_memory", "mixer: lowrank_band", "set memory to at least"),
    # Sorted blocks take the place of a pattern.
    ("selection: sinkhorn sac", f"{NO_SCORES}; {TAPS}; {SLOTS}", "the logits of all pairs"),
    ("selection: sinkhorn sac", "setting: mixers_of_layers", "the logits of all pairs"),
    ("selection: sinkhorn sac", f"mixer: additive; {KEYLESS}", "products of queries and keys"),
    (
        "selection: sinkhorn",
        f"{RULES} global band dilated longformer schedule; span: multi_scale; setting: patterns_of_heads "
        "patterns_of_layers",
        "mixes everything that the memory holds",
    ),
    ("selection: sinkhorn sac", "pattern: bp etc", "choose the keys of a query themselves"),
    ("selection: sinkhorn sac", "setting: no_memory", "set memory to at least"),
    ("selection: sac", "prior: realformer", "for its edges only"),
    ("selection: sac", "head_mixing: talking", "one mask for all of them"),
    (
        "selection: sac",
        f"{RULES} global band dilated longformer schedule; span: multi_scale; setting: patterns_of_heads "
        "patterns_of_layers",
        "edges to everything that the memory holds",
    ),
    ("selection: sinkhorn", "prior: realformer", "are not those of the next one"),
    ("selection: sinkhorn sac", "losses: commitment", "has nothing to act on"),
    # What heads agree on, and where they look, is read from explicit weights.
    ("losses: disagreement pattern", f"{NO_SCORES}; {TAPS}; {SLOTS}", "the logits of all pairs"),
    ("losses: disagreement pattern", "residual: reversible", "no gradient would reach them"),
    # One query and one key for all heads; outputs of heads that vote.
    (
        "head_mixing: collaborative mla",
        f"mixer: additive lowrank_band; {KEYLESS}; {NO_SCORES}; {TAPS}; {SLOTS}",
        "keys that heads can have in common",
    ),
    ("head_mixing: collaborative mla", "position: shaw", "needs value_dim"),
    ("head_mixing: collaborative", "selection: lsh", "weighed by every head"),
    ("head_mixing: mla", "selection: lsh", "made of a latent"),
    ("head_mixing: mla", "prior: value_residual", "made at reading"),
    ("head_mixing: collaborative mla", "memory_kind: memorizing", "keys of single heads"),
    (
        "head_mixing: capsule_dynamic capsule_em gated differential",
        f"{NO_SCORES}; {TAPS}",
        "outputs of heads that can be routed",
    ),
    ("head_mixing: differential", "position: shaw", "needs value_dim"),
    ("head_mixing: differential", "memory_kind: memorizing", "values of single heads"),
    # A token that leaves a layer early has no logits there, and no input could be rebuilt from it.
    ("prior: realformer", "depth: depth_adaptive calm; losses: exits", "a halted token takes no step"),
    ("residual: reversible", "depth: depth_adaptive calm; losses: exits", "a token that halts leaves nothing"),
    ("losses: exits", "depth: fixed universal act universal_act", "has nothing to act on"),
    ("losses: ponder", "depth: depth_adaptive calm", "has nothing to act on"),
    ("losses: al_rfou", "depth: act universal_act depth_adaptive calm", "has nothing to act on"),
    ("losses: al_rfou", "residual: reversible", "no gradient would reach them"),
    # Positions of queries and keys need both. Compressed keys are as wide as contents, keys of a store have length 1,
    # and one projection that makes queries and keys makes no difference between theirs.
    ("position: attn_only untied", f"{NO_SCORES}; {TAPS}", "scores of pairs"),
    ("position: attn_only untied", f"mixer: additive; {KEYLESS}", "products of queries and keys"),
    ("position: untied", f"{SLOTS}; mixer: lowrank_band", "room for channels"),
    ("position: attn_only untied", "memory_kind: memorizing", "compared by contents"),
    ("position: untied", "selection: lsh", "projections of their own"),
    ("position: attn_only untied", "head_mixing: collaborative mla", "of single heads"),
    ("pattern: etc", "setting: no_memory", "set memory to at least"),
    # Positions that multiply products, or score queries and keys against vectors of distances.
    ("position: multiplicative da shaw_sinusoidal deberta", f"{NO_SCORES}; {TAPS}", "scores of pairs"),
    (
        "position: multiplicative da shaw_sinusoidal deberta",
        f"mixer: additive; {KEYLESS}",
        "products of queries and keys",
    ),
    # What is added before a layer would have to be taken off again.
    ("position: ut_2d", "residual: reversible", "not taken off again"),
    # A ReLU before the softmax makes many scores 0.
    ("position: da", "selection: topk", "which of equal scores are the largest"),
    # All neighbors are alike, or those on either side of a focus.
    ("mixer: gcn hard_gaussian", "selection: topk", "which of equal scores are the largest"),
]

Name = tuple[str, str]


def named(text: str) -> list[Name]:
    """Axis and name of the mechanisms in "axis: names; axis: names"."""
    parts = (part.split(":") for part in text.split(";"))
    return [(axis.strip(), name) for axis, names in parts for name in names.split()]


def verdicts() -> dict[frozenset[Name], str]:
    """Every pair of mechanisms of two axes with the words of its reason; "" where they may be combined."""
    names = [(axis, name) for axis, table in MECHANISMS.items() for name in table]
    found = {frozenset((one, other)): "" for one in names for other in names if allowed(one, other)}
    for left, right, words in REFUSED:
        for one in named(left):
            for other in named(right):
                pair = frozenset((one, other))
                assert pair in found, f"no such pair: {one}, {other}"
                assert not found[pair], f"listed twice: {one}, {other}"
                found[pair] = words
    return found


def allowed(one: Name, other: Name) -> bool:
    """Two axes, and two values that do not stand in the same field; a loss gives way to the other of a pair."""
    fields = set(MECHANISMS[one[0]][one[1]]) & set(MECHANISMS[other[0]][other[1]])
    return one[0] != other[0] and (not fields or "losses" in (one[0], other[0]))


def settings(pair: frozenset[Name]) -> dict[str, Any]:
    """The config of a pair, on top of the plain stack."""
    ordered = sorted(pair, key=lambda name: name[0] != "losses")
    values = dict(SIZES)
    for axis, name in ordered:
        values |= MECHANISMS[axis][name]
    return values | ({"ff_width": None} if values.get("ff") == "none" else {})
