"""The encoder of BERT: every element reads all elements (Devlin et al. 2018, arXiv 1810.04805).

Axes: B observations, N elements, H heads, Dh width of a head.
"""

from rltransformers.core.spec import Spec, Traits
from rltransformers.policies.set_encoders.interface import Attention, EncoderOptions, PostNormStack


def build(elements: int, width: int, options: EncoderOptions) -> PostNormStack:
    """Build layers with a norm behind every residual sum, GELU, and a norm of the tokens in front."""
    attentions = [Attention(width, options.heads) for _ in range(options.layers)]
    return PostNormStack(width, attentions, options.ff_width or 4 * width)


SPEC = Spec(
    id="E1", name="bert", axis="encoder", paper="Devlin et al. 2018, arXiv 1810.04805",
    summary="Every element of an observation reads all elements.", build=build, options=EncoderOptions,
    example={"observation": {"encoder": {"name": "bert", "layers": 1}}},
    traits=Traits(
        causality="N/A",
        horizon="-",
        time="N^2",
        causal_form="one learned query pools the elements (Lee et al. 2019) in place of a token [CLS]; no "
                    "embeddings of segments; PyTorch's initial weights, there N(0, 0.02); no dropout",
    ),
    formula="o_i = softmax_j(q_i k_j / sqrt(Dh)) v_j over all elements j",
)  # fmt: skip
