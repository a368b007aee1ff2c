"""Named combinations. A preset changes the plain stack (``axes.PLAIN``) where its paper does, sizes are yours."""

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any


@dataclass(frozen=True)
class Preset:
    """Changes of the plain stack.

    Attributes:
        overrides: settings in place of the plain ones.
        paper: the source.
        deviation: how the form built here differs from it.
        id: of the system in the catalogue, where the whole combination is one.
    """

    overrides: Mapping[str, Any]
    paper: str
    deviation: str = ""
    id: str = ""


_WINDOW = "window memory: every token sees the same number of steps, whatever the split into calls"
_BIASES = "every layer has biases u and v of its own"
_NO_BIAS = "no biases in attention (`attention_bias: true`)"
_RELU = "ReLU in place of GELU"
_PRE_NORM = "normalized before each submodule, there after it (`residual: post_ln`)"
_TRANSFORMER = {"position": "sinusoidal", "residual": "post_ln"}
"""The layers of Vaswani et al. 2017."""
_GELU_TANH = {"name": "ffn", "activation": "gelu_tanh"}
_BERT = {"residual": "post_ln", "attention_bias": True, "input_norm": True, "ff": {"name": "ffn", "activation": "gelu"}}
"""The layers of BERT, in the libraries that compute GELU exactly."""
_BERT_TANH = {**_BERT, "ff": _GELU_TANH}
"""The same in the code of BERT itself, whose GELU is an approximation."""
_MODERN = {
    "mixer": {"name": "softmax", "qk_norm": True, "sink_logit": True}, "head_mixing": "gated", "position": "rope",
    "norm": "rms", "final_norm": True, "ff": {"name": "glu", "activation": "silu"},
}  # fmt: skip
"""The layers of language models of 2025."""
_SWIGLU = "the feed-forward part has 4 D units, there 8/3 D or fewer"
_GPT = {"position": "learned", "ff": _GELU_TANH, "attention_bias": True, "final_norm": True, "memory_kind": "cache"}

INITIAL = (
    "Whatever the source does, linear maps start with PyTorch's weights (uniform within 1 / sqrt(inputs)), gates "
    "of `mlstm` and biases of attention at 0."
)

PRESETS: dict[str, Preset] = {
    "gpt": Preset(
        _GPT, "Radford et al. 2019, GPT-2",
        "the position counts from the start of the episode; PyTorch's initial weights, there N(0, 0.02)",
    ),
    "roformer": Preset({"position": "rope", **_BERT}, "Su et al. 2021, arXiv 2104.09864", "causal"),
    "alibi": Preset({"position": "alibi"}, "Press et al. 2022, arXiv 2108.12409", _NO_BIAS),
    "tupe": Preset(
        {"position": {"name": "untied", "max_len": 1024}, **_BERT}, "Ke et al. 2021, arXiv 2006.15595",
        "TUPE-A, without the relative bias of TUPE-R; causal; no [CLS] token; the table is not normalized and its "
        "projections have no biases, as in the paper and not in the authors' code",
    ),
    "deberta": Preset(
        {"position": "deberta", **_BERT}, "He et al. 2021, arXiv 2006.03654",
        "causal; no absolute positions before the last layers; the third term takes the rows of the paper's equation, "
        "the authors' code those of the second one; projections of distances have no biases",
    ),
    "da_transformer": Preset(
        {"position": "da", "residual": "post_ln"}, "Wu et al. 2021, arXiv 2010.06925",
        f"causal; slopes and bounds of distances start at 0; {_NO_BIAS}",
    ),
    "transformer_xl": Preset(
        {"position": "trxl", "residual": "post_ln"}, "Dai et al. 2019, arXiv 1901.02860",
        f"{_WINDOW}; {_BIASES}",
    ),
    "gtrxl": Preset(
        {"position": "trxl", "residual": "gru"}, "Parisotto et al. 2019, arXiv 1910.06764",
        f"{_WINDOW}; {_BIASES}",
        id="RL1",
    ),
    "agalite": Preset(
        {"mixer": "agalite", "residual": "gru", "attention_bias": True}, "Pramanik et al. 2024, arXiv 2310.15719",
        "the block of GTrXL; the time of oscillators counts from the start of the episode, there of the stream; no "
        "ReLU after the feed-forward part",
    ),
    "compressive": Preset(
        {"position": "trxl", "residual": "post_ln", "memory_kind": "compressive", "losses": {"compression": 1.0}},
        "Rae et al. 2019, arXiv 1911.05507",
        f"blocks count from the start of the episode; {_BIASES}; compression trained by auto-encoding, in the "
        "paper's best runs by attention reconstruction (`objective: attention`)",
    ),
    "memorizing": Preset(
        {"position": "t5", "memory_kind": "memorizing", "final_norm": True}, "Wu et al. 2022, arXiv 2203.08913",
        f"{_WINDOW}; the store holds 1,024 steps, there 8,192 and more (`store`); scales of normalized products start "
        f"at sqrt(Dh), in the authors' code at 1; LayerNorm in place of T5's norm without mean and shift; {_RELU}",
    ),
    "adaptive_span": Preset(
        {"position": {"name": "shaw", "max_distance": 64, "values": False}, "span": "adaptive", "residual": "post_ln",
         "losses": {"span": 2e-6}},
        "Sukhbaatar et al. 2019, arXiv 1905.07799",
        "the token itself is in its span; relative vectors are shared by heads, clipped at 64 and belong to a layer, "
        "there one table serves all layers",
    ),
    "universal_act": Preset(
        {**_TRANSFORMER, "depth": "universal_act", "losses": {"ponder": 0.01}},
        "Dehghani et al. 2019, arXiv 1807.03819",
        "p_n is read after the n-th application, in the paper's listing before it; states are summed with Graves' "
        "weights and the last step allowed takes the remainder, the listing interpolates from step to step and gives "
        "unfinished tokens none",
    ),
    "universal_sep_conv": Preset(
        {**_TRANSFORMER, "depth": "universal", "ff": {"name": "sep_conv", "second_taps": 5}},
        "Dehghani et al. 2019, arXiv 1807.03819",
        "decoder alone; convolutions of 3 and 5 tokens as in tensor2tensor (0405ed1)",
    ),
    "linear_transformer": Preset(
        {"mixer": "linear", "position": "sinusoidal", "final_norm": True},
        "Katharopoulos et al. 2020, arXiv 2006.16236",
        f"{_PRE_NORM}; {_NO_BIAS}",
    ),
    "performer": Preset(
        {"mixer": "performer", "position": "sinusoidal", "final_norm": True},
        "Choromanski et al. 2021, arXiv 2009.14794",
        "random features are drawn once, so that acting and training agree; nothing is added to them, there 1e-6; "
        f"{_PRE_NORM}",
    ),
    "rfa": Preset(
        {"mixer": {"name": "rfa", "gate": True}, **_TRANSFORMER}, "Peng et al. 2021, arXiv 2103.02143",
        "random directions are drawn once, so that acting and training agree, there from a pool of 200 sets; the "
        f"denominator is at least 0.001, in the authors' code 1 for features that are smaller; {_RELU}; {_NO_BIAS}",
    ),
    "fast_weight": Preset(
        {"mixer": "fast_weight", **_TRANSFORMER}, "Schlag et al. 2021, arXiv 2102.11174",
        "what is read is not divided by sqrt(Dh), the output projection can do that",
    ),
    "luna": Preset(
        {"mixer": "luna", **_TRANSFORMER}, "Ma et al. 2021, arXiv 2106.01540",
        "decoder alone; queries that pack are parameters of a layer, there projections of what the encoder hands on; "
        f"keys and values are not tied; {_RELU}; {_NO_BIAS}",
    ),
    "clustered": Preset(
        {"mixer": {"name": "clustered", "clusters": 100, "top": 32}, **_TRANSFORMER},
        "Vyas et al. 2020, arXiv 2007.04825",
        "causal; improved clustered attention with a codebook, there Lloyd's algorithm on hashes of the queries of one "
        f"sequence; {_NO_BIAS}",
    ),
    "nystromformer": Preset(
        {"mixer": "nystrom", "position": "learned", **_BERT_TANH}, "Xiong et al. 2021, arXiv 2102.03902",
        "causal block form over the window; no convolution beside it (`conv: 33`); the layers of their language model, "
        "those for Long Range Arena are normalized before each submodule and once more at the end",
    ),
    "memory_compressed": Preset(
        {"mixer": ["softmax", "memory_compressed"], "position": "sinusoidal", "final_norm": True},
        "Liu et al. 2018, arXiv 1801.10198",
        "layers in between read the whole window, there blocks of 256 tokens; completed blocks from the episode start, "
        "with the tokens behind them; keys and values are convolved apart; no mixtures of experts",
    ),
    "linformer": Preset(
        {"mixer": "linformer", "position": "learned", **_BERT}, "Wang et al. 2020, arXiv 2006.04768",
        "causal: completed blocks of 16 tokens become 4, there 512 tokens 128",
    ),
    "gaussian_predicted": Preset(
        {"prior": "gaussian_predicted", **_TRANSFORMER}, "Yang et al. 2018, arXiv 1810.10182",
        "causal: center and width are shares of the visible past, counted backwards; a deviation is at least half a "
        f"token; in all layers, in the paper's best runs in the lowest ones; decoder alone; {_NO_BIAS}",
    ),
    "poolingformer": Preset(
        {"mixer": "poolingformer", "position": "learned", **_BERT}, "Zhang et al. 2021, arXiv 2105.04371",
        "causal; the two windows share the memory, there they are 128 and 512 tokens to either side; slots of 5 tokens "
        "every 4; the outputs of both levels are added; the decoder is trained from nothing",
    ),
    "informer": Preset(
        {"mixer": "informer", **_TRANSFORMER, "final_norm": True,
         "ff": {"name": "ffn", "activation": "gelu"}},
        "Zhou et al. 2021, arXiv 2012.07436",
        "causal: queries compete with those before them; decoder alone, no distilling between layers; "
        f"no embeddings of calendar time; {_NO_BIAS}",
    ),
    "csalr": Preset(
        {"mixer": "csalr", "position": "sinusoidal"},
        "Chen et al. 2020, IJCAI, Compressed self-attention with low-rank approximation",
        f"causal block form over the window, in a stack of the kind of the others here; {_NO_BIAS}",
    ),
    "lazyformer": Preset(
        {"prior": "lazyformer", "position": "learned", **_BERT}, "Ying et al. 2021, arXiv 2102.12702",
        "causal; layers keep their width, there wider layers use the time that is saved",
    ),
    "camtl": Preset(
        {"prior": {"name": "camtl", "task": 0}, "position": "learned", **_BERT},
        "Pilault et al. 2021, arXiv 2009.09139",
        "the conditional attention alone, in all layers, in the paper in the upper half; no conditional alignment, "
        "layer norm or bottleneck, no uncertainty sampling of tasks; one task (`tasks`, `task: null`); blocks start at "
        "random numbers, in the authors' code at 0",
    ),
    "predictive": Preset(
        {"prior": "predictive", **_TRANSFORMER},
        "Wang et al. 2020, Predictive Attention Transformer, a submission to ICLR 2021",
        "causal: the kernel covers this query and the two before it; no second mix behind the convolution and no ReLU, "
        f"which the later version and its code have (arXiv 2102.12895); decoder alone; {_NO_BIAS}",
    ),
    "realformer": Preset(
        {"prior": "realformer", "position": "learned", **_BERT_TANH}, "He et al. 2021, arXiv 2012.11747",
        "causal",
    ),
    "talking_heads": Preset(
        {"head_mixing": "talking", "position": "t5", "final_norm": True}, "Shazeer et al. 2020, arXiv 2003.02436",
        "logits are mixed with their position scores, in the authors' code before these are added; logits keep "
        "1/sqrt(Dh), which T5 leaves to the initial weights; LayerNorm in place of T5's norm without mean and shift; "
        "mixing starts as the identity",
    ),
    "mqa": Preset(
        {"kv_heads": 1, "position": "learned", "final_norm": True}, "Shazeer 2019, arXiv 1911.02150",
        "decoder alone; no wider feed-forward part for the parameters saved (`ff_width`)",
    ),
    "average": Preset({"mixer": "average", **_TRANSFORMER}, "Zhang et al. 2018, arXiv 1805.00631", "decoder alone"),
    "dynamic_conv": Preset(
        {"mixer": "dynamic_conv", **_TRANSFORMER}, "Wu et al. 2019, arXiv 1901.10430",
        "decoder alone; 7 taps in every layer, there 3 to 31 from the lowest up (`mixer` as a list); taps before the "
        "episode leave their weight to the others (`pad: zero`); no dropout of kernel weights",
    ),
    "gmlp": Preset(
        {"mixer": "gmlp", "ff": "none", "final_norm": True}, "Liu et al. 2021, arXiv 2105.08050",
        "causal: a number per distance below 64, there one per pair of places (`weights: absolute`); no tiny attention",
    ),
    "topk": Preset(
        {"selection": "topk", **_TRANSFORMER, "attention_bias": True}, "Gupta et al. 2021, arXiv 2106.06899",
        "the layers of the authors' benchmark, sinusoids besides; queries are not taken in chunks to save memory; the "
        "feed-forward part keeps all of its units, and has biases",
    ),
    "hopfield": Preset(
        {"mixer": "hopfield", **_TRANSFORMER}, "Ramsauer et al. 2020, arXiv 2008.02217",
        "causal; one update (`updates`), there until a state pattern stands still; beta is 1 / sqrt(Dh), there tuned; "
        f"stored and state patterns have no norms of their own; {_NO_BIAS}",
    ),
    "graph_attention": Preset(
        {"mixer": "additive"}, "Velickovic et al. 2018, arXiv 1710.10903",
        "tokens are the nodes and the past of an episode their neighbors; norms, a feed-forward and a projection of "
        "the heads, there an ELU over heads side by side, which the last layer averages; no dropout of weights",
    ),
    "synthesizer_dense": Preset(
        {"mixer": "synthesizer_dense", **_TRANSFORMER}, "Tay et al. 2021, arXiv 2005.00743",
        "logits belong to distances, there to places of a sequence of fixed length; heads share the hidden units",
    ),
    "synthesizer_random": Preset(
        {"mixer": "synthesizer_random", **_TRANSFORMER}, "Tay et al. 2021, arXiv 2005.00743",
        "logits belong to distances, there to places of a sequence of fixed length",
    ),
    "hard_gaussian": Preset(
        {"mixer": "hard_gaussian", **_TRANSFORMER}, "You et al. 2020, arXiv 2005.00742",
        "decoder alone, without attention to a source; weights are normalized over the tokens in sight, there they are "
        f"densities as they are; {_NO_BIAS}",
    ),
    "lowrank_band": Preset(
        {"mixer": "lowrank_band", **_TRANSFORMER}, "Guo et al. 2019, IEEE/ACM TASLP 27",
        "causal; low rank and band are heads of their own, joined by the projection; half of the heads have a quarter "
        f"of the width, the others see an eighth of the memory; {_NO_BIAS}",
    ),
    "collaborative": Preset(
        {"head_mixing": "collaborative", **_TRANSFORMER}, "Cordonnier et al. 2020, arXiv 2006.16362",
        "decoder alone; the common width is that of all heads side by side, less of it is chosen with `width`; no bias "
        f"of contents per head; {_NO_BIAS}",
    ),
    "capsule": Preset(
        {"head_mixing": "capsule_em", **_TRANSFORMER}, "Li et al. 2019, arXiv 1904.03100",
        "decoder alone, routing in every layer, there in the lowest ones of an encoder; as many capsules as heads, "
        f"there 512 (`capsules`); {_NO_BIAS}",
    ),
    "image_transformer": Preset(
        {"pattern": {"name": "image_1d", "block": 8, "before": 16}, **_TRANSFORMER},
        "Parmar et al. 2018, arXiv 1802.05751",
        "decoder alone; 1D local attention, the 2D form is `pattern: image_2d`; blocks of 8 steps with 16 in front, "
        "there hundreds of pixels; sinusoids of the position in the episode, there of rows and columns",
    ),
    "sparse_transformer": Preset(
        {"pattern": {"name": "sparse_fixed", "block": 8, "summary": 2}, "position": "learned",
         "ff": {"name": "ffn", "activation": "gelu"}, "final_norm": True, "attention_bias": True},
        "Child et al. 2019, arXiv 1904.10509",
        "the fixed pattern, both parts in one softmax as in its model of text; for data with a period, as images have, "
        "`pattern: {name: sparse_strided, stride: n}` with n steps to a period; `part` gives layers or heads one part "
        "each; blocks of 8 steps with 2 of summary fit a memory of 64, there 128 and 32; positions are one table; "
        "GELU as it is, there x sigmoid(1.702 x)",
    ),
    "blockwise": Preset(
        {"pattern": {"name": "blockwise", "block": 16, "shifts": [0, 0, 0, 1]}, "position": "learned", **_BERT},
        "Qiu et al. 2019, arXiv 1911.02972",
        "causal: heads look at their own block or the one before, there at blocks of a permutation, most of them at "
        "their own, too",
    ),
    "longformer": Preset(
        {"layers": 3, "pattern": [{"name": "band", "window": 8}, {"name": "band", "window": 16},
                                  {"name": "band", "window": 32}],
         "position": "trxl"},
        "Beltagy et al. 2020, arXiv 2004.05150, section 4",
        "its language model, whose windows grow from layer to layer, there from 32 to 512; no heads with a dilated "
        "window in high layers (`pattern: dilated`); first tokens that stay visible are `pattern: longformer`; "
        f"{_BIASES}; {_NO_BIAS}",
    ),
    "bigbird": Preset(
        {"pattern": {"name": "bigbird", "window": 12, "random": 3, "block": 4, "sinks": 8}, "position": "learned",
         **_BERT},
        "Zaheer et al. 2020, arXiv 2007.14062",
        "causal, inside the memory; blocks of 4 steps, there of 64; the window of three blocks ends with the token; "
        "random blocks are drawn from those that the memory holds, there from all; global tokens are the first of the "
        "episode; GELU as it is, there its approximation by tanh",
    ),
    "bp": Preset(
        {"pattern": "bp", "residual": "post_ln", "input_norm": True}, "Ye et al. 2019, arXiv 1911.04070",
        "left context only; nodes are made of the keys and values of their leaves in every layer, there they are "
        "states that layers update",
    ),
    "gpt3_alternating": Preset(
        {"pattern": ["full", {"name": "band", "window": 16}], **_GPT},
        "Brown et al. 2020, arXiv 2005.14165, section 2.1",
        "every second layer sees the newest 16 steps, there a banded sparse pattern of unpublished sizes; "
        "PyTorch's initial weights, there N(0, 0.02)",
    ),
    "multi_scale": Preset(
        {"layers": 3, "span": [{"name": "multi_scale", "windows": [1, 3, 3, 4]},
                               {"name": "multi_scale", "windows": [1, 3, 8, 16]},
                               {"name": "multi_scale", "windows": [3, 8, 16, 32]}],
         **_TRANSFORMER},
        "Guo et al. 2020, AAAI, arXiv 1912.00544",
        "causal: windows end with the token; scales of 1, 3 and shares of a memory of 64, few and small ones in low "
        f"layers, there shares of the length of the text; no token of a whole text; {_NO_BIAS}",
    ),
    "reversible": Preset(
        {"residual": "reversible", "position": "sinusoidal", "final_norm": True},
        "Kitaev et al. 2020, arXiv 2001.04451; Gomez et al. 2017, arXiv 1707.04585",
        "softmax attention, no hashing; the output is the mean of the two streams, there they are joined side by side",
    ),
    "depth_adaptive": Preset(
        {"depth": "depth_adaptive", **_TRANSFORMER, "losses": {"exits": 1.0}}, "Elbayad et al. 2020, arXiv 1910.10073",
        "decoder alone; layers share the output head; the predictor's targets are actions, its loss does not train the "
        f"stream; {_NO_BIAS}",
    ),
    "calm": Preset(
        {"depth": "calm", "position": "t5", "final_norm": True, "losses": {"exits": 1.0}},
        "Schuster et al. 2022, arXiv 2207.07061",
        "decoder alone; confidence is the saturation of the stream, there also the gap of the softmax; LayerNorm in "
        "place of T5's norm without mean and shift, and logits keep 1/sqrt(Dh)",
    ),
    "al_rfou": Preset(
        {"position": "learned", "residual": "post_ln", "losses": {"al_rfou": 1.0}},
        "Al-Rfou et al. 2018, arXiv 1808.04444",
        "learned positions are added once, there in front of every layer; inner layers share the output head of the "
        f"last one; predicts actions, the next one with a head of its own; {_NO_BIAS}",
    ),
    "modern": Preset(
        _MODERN,
        "Touvron et al. 2023, arXiv 2302.13971; Yang et al. 2025, arXiv 2505.09388; Qiu et al. 2025, arXiv 2505.06708; "
        "OpenAI 2025, arXiv 2508.10925",
        "RoPE, normalized queries and keys, RMSNorm in front of submodules, SwiGLU, gated heads and a sink together, "
        f"each of which some of the sources have; {_SWIGLU}; heads do not share keys (`kv_heads`)",
    ),
    "fox": Preset(
        {**_MODERN, "position": "none", "prior": "forget"}, "Lin et al. 2025, arXiv 2503.02130, FoX (Pro)",
        "adds a sink; no norm of what heads read and no shift of keys and values; biases of forget gates start at 5, "
        f"in the authors' code at 0; {_SWIGLU}",
    ),
    "hybrid": Preset(
        {**_MODERN, "mixer": ["gated_deltanet"] * 3 + [{"name": "softmax", "qk_norm": True}], "layers": 4},
        "Qwen Team 2025, Qwen3-Next; Yang, Kautz and Hatamizadeh 2025, arXiv 2412.06464",
        "every fourth layer attends to the memory, there to everything so far; RoPE rotates all channels of queries "
        f"and keys, there the first quarter (`dims`); {_SWIGLU} and one of a mixture of experts; heads do not share "
        "keys (`kv_heads`); with fewer than four layers set `mixer`",
    ),
    "kimi": Preset(
        {"layers": 4, "mixer": ["kda", "kda", "kda", "softmax"], "head_mixing": "mla", "memory_kind": "cache",
         "position": "none", "norm": "rms", "final_norm": True, "ff": {"name": "glu", "activation": "silu"}},
        "Kimi Team 2025, arXiv 2510.26692",
        "every fourth layer attends to the memory, there to everything so far; "
        f"{_SWIGLU} and one of a mixture of experts; with fewer than four layers set `mixer`",
    ),
    "retnet": Preset(
        {"mixer": "retention", "final_norm": True, "ff": {"name": "ffn", "activation": "gelu"}},
        "Sun et al. 2023, arXiv 2307.08621",
        "the layers of the paper, whose authors' later code has RMSNorm and SwiGLU; the feed-forward part has 4 D "
        "units, there 2 D, with values twice as wide",
    ),
    "mamba2": Preset(
        {"mixer": "mamba2", "ff": "none", "norm": "rms", "final_norm": True}, "Dao & Gu 2024, arXiv 2405.21060",
        "a state of 64 numbers, in the authors' code 128 (`state`); heads of width / heads numbers, there 64",
    ),
    "griffin": Preset(
        {"layers": 3, "mixer": ["rg_lru", "rg_lru", "softmax"], "kv_heads": 1, "position": "rope", "norm": "rms",
         "final_norm": True, "ff": {"name": "glu", "activation": "gelu_tanh"}},
        "De et al. 2024, arXiv 2402.19427",
        "attention covers the memory, there 1,024 tokens; the feed-forward part has 4 D units, there 3 D; RoPE rotates "
        "all channels, in the authors' code the first half (`dims`); no bias after attention, there one; with fewer "
        "than three layers set `mixer`",
    ),
    "xlstm": Preset(
        {"layers": 8, "mixer": ["mlstm", "slstm"] + ["mlstm"] * 6, "ff": "none", "final_norm": True},
        "Beck et al. 2024, arXiv 2405.04517, xLSTM[7:1]",
        "the scalar memory is the second of eight layers, there its places depend on the size; no feed-forward "
        "part after it, there a GeGLU; norms have biases",
    ),
    "decision_transformer": Preset(
        {"width": 128, "layers": 3, "heads": 1, "memory": 19, "tokens_per_step": 3, "dropout": 0.1,
         "position": "timestep", "input_norm": True, "final_norm": True},
        "Chen et al. 2021, arXiv 2106.01345, appendix",
        "windows count whole environment steps; PyTorch's initial weights, there N(0, 0.02); "
        f"{_NO_BIAS}",
        id="RL2",
    ),
}  # fmt: skip
