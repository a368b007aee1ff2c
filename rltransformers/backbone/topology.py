"""Whether layers read anything besides their own stream: the catalogue of topologies."""

from rltransformers.attention.cross import CrossAttention
from rltransformers.core.spec import Feature, NoOptions, Refusal, Spec, Traits, by_name
from rltransformers.mixers.interface import Dims


def build_decoder(dims: Dims, dropout: float, options: NoOptions) -> None:
    """Build nothing: a decoder reads its own stream alone."""


def build_encoder_decoder(dims: Dims, dropout: float, options: NoOptions) -> CrossAttention:
    """Build the cross-attention of one layer."""
    return CrossAttention(dims, dropout)


TOPOLOGIES = by_name(
    Spec(
        "E2", "decoder", "topology", "Radford et al. 2018, GPT",
        "A token reads the tokens before it, and nothing else.", build_decoder,
        formula="x = x + Mix(x), x = x + FF(x)",
    ),
    Spec(
        "E0", "encoder_decoder", "topology", "Vaswani et al. 2017, arXiv 1706.03762, section 3.2.3",
        "Between mixer and feed-forward part every layer attends to the encoded elements of the token's "
        "observation.",
        build_encoder_decoder,
        traits=Traits(
            family="EXPL", horizon="the token's own observation",
            causal_form="a token reads the elements of its own observation, which the agent's policy encodes "
            "(`observation: {encoder: ...}`); there all tokens read one source text; a token without elements "
            "passes unchanged",
        ),
        offers=(Feature.KEYS, Feature.CONTEXT),
        refuses=(
            Refusal(Feature.INVERSE, "two streams have two submodules a layer, of which none reads elements"),
        ),
        formula="x_t = x_t + W_o sum_n softmax_n(q_t k_tn / sqrt(Dh)) v_tn for the elements n of observation t",
    ),
)  # fmt: skip
