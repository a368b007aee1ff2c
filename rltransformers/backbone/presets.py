"""Named combinations. A preset fixes only what its paper fixes; sizes and the rest are the defaults of the config.

Each entry: the overrides, the source, and how the form built here deviates from it.
"""

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any


@dataclass(frozen=True)
class Preset:
    """Overrides of the default config."""

    overrides: Mapping[str, Any]
    paper: str
    deviation: str = ""


_WINDOW = "window memory: every token sees the same number of steps, whatever the split into calls"
_DECODER_POSITION = {"name": "learned", "max_len": 1024}

PRESETS: dict[str, Preset] = {
    "gpt": Preset(
        {"position": _DECODER_POSITION, "ff": {"name": "ffn", "activation": "gelu"}, "final_norm": True,
         "memory_kind": "cache"},
        "Radford et al. 2019, GPT-2",
        "the position counts from the start of the episode",
    ),
    "roformer": Preset(
        {"position": "rope", "residual": "post_ln"}, "Su et al. 2021, arXiv 2104.09864", "causal"
    ),
    "alibi": Preset({"position": "alibi", "final_norm": True}, "Press et al. 2022, arXiv 2108.12409"),
    "transformer_xl": Preset(
        {"position": "trxl", "residual": "post_ln"},
        "Dai et al. 2019, arXiv 1901.02860",
        f"{_WINDOW}; u and v per layer",
    ),
    "gtrxl": Preset(
        {"position": "trxl", "residual": "gru"},
        "Parisotto et al. 2019, arXiv 1910.06764",
        f"{_WINDOW}; u and v per layer",
    ),
    "compressive": Preset(
        {"position": "trxl", "residual": "post_ln", "memory_kind": "compressive", "losses": {"compression": 1.0}},
        "Rae et al. 2019, arXiv 1911.05507",
        "blocks anchored to the episode; compression trained by auto-encoding",
    ),
    "adaptive_span": Preset(
        {"position": {"name": "shaw", "max_distance": 64, "values": False}, "span": "adaptive", "residual": "post_ln",
         "losses": {"span": 2e-6}},
        "Sukhbaatar et al. 2019, arXiv 1905.07799",
        "the token itself is in its span; relative vectors are shared by heads and clipped at 64",
    ),
    "universal_act": Preset(
        {"position": "sinusoidal", "residual": "post_ln", "depth": "universal_act", "losses": {"ponder": 0.01}},
        "Dehghani et al. 2019, arXiv 1807.03819",
        "states are summed with Graves' weights",
    ),
    "linear_transformer": Preset(
        {"mixer": "linear", "position": "sinusoidal", "final_norm": True}, "Katharopoulos et al. 2020, arXiv 2006.16236"
    ),
    "performer": Preset(
        {"mixer": "performer", "position": "sinusoidal", "final_norm": True},
        "Choromanski et al. 2021, arXiv 2009.14794",
        "random features are drawn once, so that acting and training agree",
    ),
    "nystromformer": Preset(
        {"mixer": "nystrom", "position": "sinusoidal", "final_norm": True},
        "Xiong et al. 2021, arXiv 2102.03902",
        "causal block form over the window",
    ),
    "realformer": Preset(
        {"prior": "realformer", "position": "sinusoidal", "residual": "post_ln"}, "He et al. 2021, arXiv 2012.11747"
    ),
    "talking_heads": Preset({"head_mixing": "talking", "position": "t5"}, "Shazeer et al. 2020, arXiv 2003.02436"),
    "mqa": Preset({"kv_heads": 1, "position": "sinusoidal"}, "Shazeer 2019, arXiv 1911.02150"),
    "average": Preset(
        {"mixer": "average", "position": "sinusoidal", "residual": "post_ln"}, "Zhang et al. 2018, arXiv 1805.00631"
    ),
    "topk": Preset({"selection": "topk", "position": "sinusoidal"}, "Gupta et al. 2021, arXiv 2106.06899"),
    "reversible": Preset(
        {"residual": "reversible", "position": "sinusoidal", "final_norm": True},
        "Kitaev et al. 2020, arXiv 2001.04451; Gomez et al. 2017, arXiv 1707.04585",
        "softmax attention, no hashing",
    ),
    "decision_transformer": Preset(
        {"width": 128, "layers": 3, "heads": 1, "memory": 19, "tokens_per_step": 3, "dropout": 0.1,
         "position": {"name": "timestep", "max_len": 4096}, "input_norm": True, "final_norm": True},
        "Chen et al. 2021, arXiv 2106.01345, appendix",
        "windows count whole environment steps",
    ),
}  # fmt: skip
