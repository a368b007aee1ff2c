"""What every preset has of its source: norms, biases, activation, scale of scores, first weights, told or the same.

The table is written by hand from the papers and the authors' code; nothing of it is read from the presets. A fact that
a source does not tell, or that was not looked up, is None.
"""

from dataclasses import astuple, dataclass, fields
from pathlib import Path

import pytest
import torch
from torch import nn

from rltransformers.attention.layer import Attention
from rltransformers.attention.roles import Heads, Score
from rltransformers.backbone import PRESETS, Backbone
from rltransformers.backbone.presets import INITIAL
from rltransformers.functional.keys import Rows

TORCH, BERT, XAVIER, UNIT = "uniform in +-1 / sqrt(inputs)", "N(0, 0.02)", "Xavier, uniform", "uniform, unit scaling"
T5 = "1"


@dataclass(frozen=True)
class Facts:
    """Where submodules are normalized, norms of the embedding and behind the last layer, biases of attention, what the
    transform does between its maps, what products of queries and keys are multiplied by, and first weights of maps."""

    residual: str | None = None
    input_norm: bool | None = None
    final_norm: bool | None = None
    bias: bool | None = None
    activation: str | None = None
    scale: str | None = None
    initial: str | None = None


ROOT_DH = "1/sqrt(Dh)"
BERT_LAYERS = Facts("post_ln", True, False, True, "gelu", ROOT_DH, BERT)
BERT_TANH = Facts("post_ln", True, False, True, "gelu_tanh", ROOT_DH, BERT)
GPT2 = Facts("pre_ln", False, True, True, "gelu_tanh", ROOT_DH, BERT)
T2T = Facts("pre_ln", False, True, False, "relu", ROOT_DH, UNIT)
T5_LAYERS = Facts("pre_ln", False, True, False, "relu", T5)

SOURCES = {
    "gpt": GPT2,  # openai/gpt-2
    "roformer": BERT_LAYERS,  # transformers, RoFormer
    "alibi": Facts("pre_ln", False, False, True, "relu", ROOT_DH, XAVIER),  # fairseq, transformer_lm_wiki103
    "tupe": Facts("post_ln", True, False, True, "gelu", "1/sqrt(2 Dh)", BERT),  # guolinke/TUPE
    "deberta": Facts("post_ln", True, False, True, "gelu", "1/sqrt(3 Dh)", BERT),  # microsoft/DeBERTa
    "da_transformer": Facts("post_ln", scale=ROOT_DH),
    "transformer_xl": Facts("post_ln", False, False, False, "relu", ROOT_DH, BERT),  # kimiyoung/transformer-xl
    "gtrxl": Facts("gru", bias=False, activation="relu", scale=ROOT_DH),
    "agalite": Facts("gru", False, False, True, "relu", None, "orthogonal"),  # subho406/agalite, src_pure
    "compressive": Facts(scale=ROOT_DH),
    "memorizing": Facts("pre_ln", False, True),  # google-research/meliad, decoder_stack.py
    "adaptive_span": Facts("post_ln", False, False, False, "relu", ROOT_DH, TORCH),  # facebookresearch/adaptive-span
    "universal_act": Facts("post_ln", False, None, False, "relu", ROOT_DH, UNIT),  # tensor2tensor
    "universal_sep_conv": Facts("post_ln", False, None, False, "relu", ROOT_DH, UNIT),
    "linear_transformer": Facts("post_ln", False, True, True, "relu", None, TORCH),  # idiap/fast-transformers
    "performer": Facts("post_ln"),
    "rfa": Facts("post_ln"),
    "fast_weight": Facts("post_ln", False, False, False, "relu", None, BERT),  # IDSIA/lmtool-fwms
    "luna": Facts("post_ln"),
    "clustered": Facts("post_ln", False, None, True, "relu", None, TORCH),  # idiap/fast-transformers
    "nystromformer": Facts(
        "post_ln", True, False, True, "gelu_tanh", None, TORCH
    ),  # mlpen/Nystromformer, code/model.py
    "memory_compressed": T2T,
    "linformer": BERT_LAYERS,  # fairseq, examples/linformer
    "gaussian_predicted": Facts("post_ln", False, False, True, "relu", ROOT_DH),
    "poolingformer": BERT_LAYERS,  # made of RoBERTa
    "informer": Facts("post_ln", False, True, True, "gelu", None, TORCH),  # zhouhaoyi/Informer2020
    "csalr": Facts(),
    "lazyformer": BERT_LAYERS,
    "camtl": BERT_LAYERS,  # CAMTL/CA-MTL, ca_mtl_base.py
    "predictive": Facts("post_ln", scale=ROOT_DH),
    "realformer": BERT_TANH,  # google-research/realformer
    "talking_heads": T5_LAYERS,
    "mqa": T2T,
    "average": Facts("post_ln", False, False),
    "dynamic_conv": Facts("post_ln", False, False, None, "relu"),  # fairseq, lightconv
    "gmlp": Facts("pre_ln", False, True),
    "topk": Facts("post_ln", False, False, True, "relu", ROOT_DH, TORCH),  # ag1988/top_k_attention, modeling.py
    "hopfield": Facts("post_ln"),
    "graph_attention": Facts(scale="a sum"),
    "synthesizer_dense": Facts(bias=False),
    "synthesizer_random": Facts(bias=False),
    "hard_gaussian": Facts("post_ln"),
    "lowrank_band": Facts("post_ln"),
    "collaborative": Facts(),
    "capsule": Facts("post_ln", False, False, True, "relu", ROOT_DH),
    "image_transformer": Facts("post_ln", False, None, False, "relu", ROOT_DH, UNIT),  # tensor2tensor
    "sparse_transformer": Facts("pre_ln", False, True, True, "x sigmoid(1.702 x)", ROOT_DH),
    "blockwise": BERT_LAYERS,
    "longformer": Facts(scale=ROOT_DH),
    "bigbird": BERT_TANH,  # google-research/bigbird, encoder.py with postnorm
    "bp": Facts("post_ln", True, False, False, "relu", ROOT_DH, XAVIER),  # yzh119/BPT
    "gpt3_alternating": GPT2,
    "multi_scale": Facts("post_ln", scale=ROOT_DH),
    "reversible": Facts("reversible", False, True, False, "relu", ROOT_DH),
    "depth_adaptive": Facts("post_ln", False, False, True, "relu", ROOT_DH, XAVIER),
    "calm": T5_LAYERS,
    "al_rfou": Facts("post_ln", scale=ROOT_DH),
    "modern": Facts("pre_ln", False, True, False, "silu", ROOT_DH),  # transformers, Qwen3
    "fox": Facts("pre_ln", False, True, False, "silu", ROOT_DH, BERT),  # zhixuan-lin/forgetting-transformer
    "hybrid": Facts("pre_ln", False, True, False, "silu", None, BERT),  # transformers, Qwen3-Next
    "kimi": Facts("pre_ln", False, True, False, "silu", None, BERT),  # moonshotai/Kimi-Linear
    "retnet": Facts("pre_ln", False, True, False, "gelu", None, XAVIER),
    "mamba2": Facts("pre_ln", False, True, False, None, None, TORCH),  # state-spaces/mamba, mixer_seq_simple.py
    "griffin": Facts("pre_ln", False, True, True, "gelu_tanh", None, "LeCun, normal"),  # google-deepmind/recurrentgemma
    "xlstm": Facts("pre_ln", False, True, False, None, None, "small, normal"),  # NX-AI/xlstm
    "decision_transformer": Facts("pre_ln", True, True, True, "relu", ROOT_DH, BERT),  # kzl/decision-transformer
}
WORDS = {
    "residual": ("there after it",),
    "input_norm": ("the embedding is not normalized",),
    "final_norm": ("no norm behind the last layer",),
    "bias": ("no biases in attention",),
    "activation": ("ReLU in place of GELU", "GELU as it is"),
    "scale": ("1/sqrt(Dh)",),
}
"""What a deviation says where a fact is not that of the source."""


def built(name: str) -> Facts:
    """What a preset has, read off its modules."""
    backbone = Backbone({"preset": name, "width": 48})
    config, mixer = backbone.config, backbone.layer(0).mixing.mixer
    maps = [module for module in mixer.modules() if isinstance(module, nn.Linear)]
    options = config.choices.ff.options
    return Facts(
        config.residual,
        backbone.input_norm is not None,
        backbone.final_norm is not None,
        any(module.bias is not None for module in maps[-1:]) or config.attention_bias,
        getattr(options, "activation", None),
        scale_of(mixer) if isinstance(mixer, Attention) and type(mixer.score) is Score else None,
        TORCH if all(is_uniform(module) for module in maps if module.weight.any()) else "?",
    )


def scale_of(mixer: Attention) -> str:
    """What products of queries and keys are multiplied by."""
    dims, channels = mixer.dims, mixer.position.channels
    q = torch.ones(1, 1, 1, dims.head_dim + channels)
    factor = float(mixer.score.content(q, Heads(q, q, Rows()))) / q.numel() * mixer.position.scale
    return {1: ROOT_DH, 2: "1/sqrt(2 Dh)", 3: "1/sqrt(3 Dh)"}[round(1 / (factor**2 * dims.head_dim))]


def is_uniform(module: nn.Linear) -> bool:
    bound = module.in_features**-0.5
    weight = module.weight.detach()
    return bool(weight.abs().max() <= bound) and abs(float(weight.std()) * 3**0.5 / bound - 1) < 0.2


def test_the_table_has_every_preset() -> None:
    assert list(SOURCES) == list(PRESETS)


@pytest.mark.parametrize("name", SOURCES)
def test_a_preset_has_what_its_source_has_or_says_that_it_has_not(name: str) -> None:
    found, deviation = built(name), PRESETS[name].deviation
    for fact, source, own in zip(fields(Facts), astuple(SOURCES[name]), astuple(found), strict=True):
        if source is None or own is None:
            continue
        if fact.name == "initial":
            assert own == TORCH  # that of most sources is another one: said for all of them
            continue
        told = [words for words in WORDS[fact.name] if words in deviation]
        assert bool(told) == (source != own), f"{fact.name}: the source has {source}, the preset {own}, told: {told}"


def test_the_page_of_presets_tells_how_weights_start() -> None:
    assert INITIAL in (Path(__file__).parents[2] / "docs/mechanisms/preset.md").read_text()
