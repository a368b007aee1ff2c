"""Independent heads; kv_heads, head_dim and value_dim are plain numbers of the config."""

from rltransformers.attention.roles import Part
from rltransformers.core.spec import Spec

MHA = Spec(
    id="H0", name="mha", axis="head_mixing", paper="Vaswani et al. 2017, arXiv 1706.03762",
    summary="Independent heads, concatenated and projected.",
    build=Part,
    formula="y_t = W_O [o_t1; ...; o_tH]",
)  # fmt: skip
MQA = Spec(
    id="H1", name="mqa", axis="head_mixing", paper="Shazeer 2019, arXiv 1911.02150",
    summary="All heads share one key and value head: `kv_heads: 1` (more than 1: grouped).",
    settings="kv_heads: 1", example={"kv_heads": 1},
    formula="l_ts = q_th k_s / sqrt(Dh), o_th = sum_s a_tsh v_s: one k_s and v_s for all heads h",
)  # fmt: skip
DECOUPLED = Spec(
    id="H2", name="decoupled", axis="head_mixing", paper="Bhojanapalli et al. 2020, arXiv 2002.07028",
    summary="Head width chosen freely: `head_dim: n`, `value_dim: n`.",
    settings="head_dim: n", example={"head_dim": 5, "value_dim": 3},
    formula="Dh and Dv free, W_O: H Dv -> D",
)  # fmt: skip
