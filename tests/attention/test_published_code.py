"""What stands around attention computes what published code does with the same weights."""

import pytest
import torch
from torch import Tensor, nn

from tests.published import HEADS, TIME, WIDTH, agree, backbone, call, double, imported, naive

pytestmark = pytest.mark.third_party
__all__ = ["double"]  # a fixture

MASK = torch.full((TIME, TIME), -torch.inf).triu(1)
HEAD = {"hidden_size": WIDTH, "num_attention_heads": HEADS, "head_dim": 4, "rms_norm_eps": 1e-5}
HALVES = [0, 2, 1, 3]
"""Channels of a head whose halves other code turns, where ours turns neighbors."""


def unturned(count: int = 4) -> tuple[Tensor, Tensor]:
    """Cosines and sines that turn nothing."""
    return torch.ones(1, TIME, count), torch.zeros(1, TIME, count)


def angles() -> tuple[Tensor, Tensor]:
    """Cosines and sines of heads of 4 channels, for code that turns halves."""
    angle = torch.arange(TIME)[:, None] * 10_000.0 ** -(torch.arange(4) % 2 / 2)
    return angle.cos()[None], angle.sin()[None]


def halves(rows: Tensor) -> Tensor:
    """Weights of a projection [H 4, D], or numbers of a head [4], in the order of channels that turns halves."""
    return rows.unflatten(0, (-1, 4))[:, HALVES].flatten(0, 1)


def test_forget_gates_are_those_of_flash_linear_attention() -> None:
    code = naive("forgetting_attn")
    ours = backbone(prior="forget")
    layer, mixer = ours.layer(0), ours.layer(0).mixing.mixer

    def theirs(x: Tensor) -> Tensor:
        h = layer.join_mixing.prepare(x)
        q, k, v = (each.unflatten(-1, (HEADS, -1)) for each in mixer.project(h).chunk(3, -1))
        read = code.naive_forgetting_attn(q, k, v, nn.functional.logsigmoid(mixer.prior.gate(h)))
        return x + mixer.output(read.flatten(2))

    agree(ours, theirs)


def test_latent_attention_is_that_of_deepseek_v2() -> None:
    code = imported("transformers.models.deepseek_v2.modeling_deepseek_v2")
    config = code.DeepseekV2Config(
        hidden_size=WIDTH, num_attention_heads=HEADS, num_key_value_heads=HEADS, q_lora_rank=None, kv_lora_rank=8,
        qk_rope_head_dim=4, qk_nope_head_dim=6, v_head_dim=5, attn_implementation="eager",
    )  # fmt: skip
    module = code.DeepseekV2Attention(config, 0)
    module.kv_a_layernorm.variance_epsilon = 1e-5
    heads = {"name": "mla", "latent": 8, "turned": 4}
    ours = backbone(head_dim=6, value_dim=5, position="rope", head_mixing=heads)
    layer, mixer = ours.layer(0), ours.layer(0).mixing.mixer
    turns = torch.exp(1j * torch.arange(TIME)[:, None] * 10_000.0 ** (-torch.arange(2) / 2))[None]

    def theirs(x: Tensor) -> Tensor:
        queries, kept = mixer.project.weight.split([HEADS * 10, 4 + 8])
        turned, own = queries.unflatten(0, (HEADS, -1)).split([4, 6], 1)
        weights = {
            "q_proj.weight": torch.cat([own, turned], 1).flatten(0, 1),
            "kv_a_proj_with_mqa.weight": torch.cat([kept[4:], kept[:4]]),
            "kv_a_layernorm.weight": mixer.score.gain, "kv_b_proj.weight": mixer.score.up.flatten(0, 1),
            "o_proj.weight": mixer.output.weight,
        }  # fmt: skip
        inputs = {"attention_mask": MASK, "position_embeddings": turns}
        out: Tensor = call(module, weights, layer.join_mixing.prepare(x), **inputs)[0]
        return x + out

    agree(ours, theirs)


def test_a_layer_of_the_modern_stack_is_that_of_qwen3() -> None:
    """Normalized queries and keys, rotation, RMSNorm, SwiGLU."""
    code = imported("transformers.models.qwen3.modeling_qwen3")
    config = code.Qwen3Config(
        **HEAD, num_key_value_heads=1, intermediate_size=4 * WIDTH, num_hidden_layers=1, attn_implementation="eager"
    )
    module = code.Qwen3DecoderLayer(config, 0)
    mixer_of = {"name": "softmax", "qk_norm": True}
    ff = {"name": "glu", "activation": "silu"}
    ours = backbone(kv_heads=1, mixer=mixer_of, position="rope", norm="rms", ff=ff)
    layer, mixer = ours.layer(0), ours.layer(0).mixing.mixer

    def theirs(x: Tensor) -> Tensor:
        q, k, v = mixer.project.weight.split([12, 4, 4])
        gate, up = layer.ff.into.weight.chunk(2)
        weights = {
            "self_attn.q_proj.weight": halves(q), "self_attn.k_proj.weight": halves(k), "self_attn.v_proj.weight": v,
            "self_attn.o_proj.weight": mixer.output.weight,
            "self_attn.q_norm.weight": halves(mixer.score.norm.query_gain),
            "self_attn.k_norm.weight": halves(mixer.score.norm.key_gain), "mlp.gate_proj.weight": gate,
            "mlp.up_proj.weight": up, "mlp.down_proj.weight": layer.ff.out.weight,
            "input_layernorm.weight": layer.join_mixing.norm.weight,
            "post_attention_layernorm.weight": layer.join_ff.norm.weight,
        }  # fmt: skip
        return call(module, weights, x, attention_mask=MASK, position_embeddings=angles())

    agree(ours, theirs, without=("layers.0.ff.into.bias", "layers.0.ff.out.bias"))


def test_gated_heads_are_those_of_qwen3_next() -> None:
    code = imported("transformers.models.qwen3_next.modeling_qwen3_next")
    config = code.Qwen3NextConfig(**HEAD, num_key_value_heads=1, num_hidden_layers=1, attn_implementation="eager")
    module = code.Qwen3NextAttention(config, 0)
    ours = backbone(kv_heads=1, mixer={"name": "softmax", "qk_norm": True}, position="rope", head_mixing="gated")
    layer, mixer = ours.layer(0), ours.layer(0).mixing.mixer

    def theirs(x: Tensor) -> Tensor:
        q, k, v = mixer.project.weight.split([12, 4, 4])
        gate = mixer.output.gate.weight.unflatten(0, (HEADS, 4))
        weights = {
            "q_proj.weight": torch.cat([halves(q).unflatten(0, (HEADS, 4)), gate], 1).flatten(0, 1),
            "k_proj.weight": halves(k), "v_proj.weight": v, "o_proj.weight": mixer.output.project.weight,
            "q_norm.weight": halves(mixer.score.norm.query_gain) - 1,
            "k_norm.weight": halves(mixer.score.norm.key_gain) - 1,
        }  # fmt: skip
        inputs = {"attention_mask": MASK, "position_embeddings": angles()}
        out: Tensor = call(module, weights, layer.join_mixing.prepare(x), **inputs)[0]
        return x + out

    agree(ours, theirs)


@pytest.mark.parametrize("name", ["gemma2", "gpt_oss"])
def test_capped_logits_and_sinks_are_those_of_gemma2_and_gpt_oss(name: str) -> None:
    code = imported(f"transformers.models.{name}.modeling_{name}")
    kind, options = {
        "gemma2": ("Gemma2", {"attn_logit_softcapping": 2.0, "query_pre_attn_scalar": 4}),
        "gpt_oss": ("GptOss", {}),
    }[name]
    config = getattr(code, f"{kind}Config")(
        **HEAD, **options, num_key_value_heads=1, attention_bias=False, num_hidden_layers=1, attn_implementation="eager"
    )
    module = getattr(code, f"{kind}Attention")(config, 0)
    choice = {"softcap": 2.0} if name == "gemma2" else {"sink_logit": True}
    ours = backbone(kv_heads=1, mixer={"name": "softmax", **choice})
    layer, mixer = ours.layer(0), ours.layer(0).mixing.mixer

    def theirs(x: Tensor) -> Tensor:
        q, k, v = mixer.project.weight.split([12, 4, 4])
        weights = {"q_proj.weight": q, "k_proj.weight": k, "v_proj.weight": v, "o_proj.weight": mixer.output.weight}
        if name == "gpt_oss":
            weights["sinks"] = mixer.score.sink
        inputs = {"attention_mask": MASK, "position_embeddings": unturned(4 if name == "gemma2" else 2)}
        out: Tensor = call(module, weights, layer.join_mixing.prepare(x), **inputs)[0]
        return x + out

    agree(ours, theirs)


def test_differential_heads_are_those_of_diffllama() -> None:
    """It has no gain of heads, which is part of its projection here, and pairs the first half of the heads."""
    code = imported("transformers.models.diffllama.modeling_diffllama")
    config = code.DiffLlamaConfig(
        **HEAD | {"num_attention_heads": 6}, num_key_value_heads=6, num_hidden_layers=1, attn_implementation="eager"
    )
    module = code.DiffLlamaAttention(config, 0)
    ours = backbone(heads=6, head_dim=4, head_mixing="differential")
    layer, mixer = ours.layer(0), ours.layer(0).mixing.mixer

    def theirs(x: Tensor) -> Tensor:
        q, k, v = (rows.unflatten(0, (3, 2, 4)).transpose(0, 1).flatten(0, 2) for rows in mixer.project.weight.chunk(3))
        out = mixer.output
        weights = {
            "q_proj.weight": q, "k_proj.weight": k, "v_proj.weight": v,
            "o_proj.weight": out.project.weight * out.gain.repeat(3),
            "lambda_q1": out.queries[0], "lambda_q2": out.queries[1], "lambda_k1": out.keys[0],
            "lambda_k2": out.keys[1],
        }  # fmt: skip
        inputs = {"attention_mask": MASK, "position_embeddings": unturned()}
        result: Tensor = call(module, weights, layer.join_mixing.prepare(x), **inputs)[0]
        return x + result

    agree(ours, theirs)
