"""Attention over a fixed number of sums over the past of an episode, in chunks.

Axes: B batch, H heads, T tokens, Dh width of a query, Dv width of a value, c sums.
"""

import torch
from jaxtyping import Float
from torch import Tensor

from rltransformers.functional.call import Tokens
from rltransformers.functional.modules import wide
from rltransformers.functional.recurrences import causal_sums

LARGEST_EXPONENT = 40.0
"""Exponents of weights that are summed and divided are held in [-40, 40]: sums, quotients and the gradients of both,
which divide by a sum twice, stay inside float32, and no maximum over the sequence has to be subtracted."""


def prefix_attention(
    q: Float[Tensor, "B H T Dh"],
    k: Float[Tensor, "B H T Dh"],
    v: Float[Tensor, "B H T Dv"],
    of_keys: Float[Tensor, "B H T c"],
    of_values: Float[Tensor, "B H T c"],
    state: dict[str, Tensor],
    tokens: Tokens,
    total: Float[Tensor, "B H T c"] | None = None,
) -> tuple[Float[Tensor, "B H T Dv"], dict[str, Tensor]]:
    """``softmax(q_t K'_t) V'_t`` with ``K'_t`` the sum of ``of_keys_s k_s`` over the episode up to t, ``V'_t`` alike.

    Two sums over the past without a denominator, one after the other: logits ``(q_t k_s) of_keys_s``, then weights
    ``(softmax_t of_values_s) v_s``. With ``total`` both K' and V' are divided by it, slot by slot. State:
    "projected_keys" [B, H, Dh, c] and "projected_values" [B, H, c, Dv].
    """
    logits, keys = causal_sums(q, k, of_keys, state["projected_keys"], tokens)
    weights = (logits if total is None else logits / total).softmax(-1)
    weights = weights if total is None else weights / total
    mixed, values = causal_sums(weights, of_values, v, state["projected_values"], tokens)
    return mixed, {"projected_keys": keys, "projected_values": values}


def episode_totals(
    weights: Float[Tensor, "B H T c"], before: Float[Tensor, "B H c"], tokens: Tokens
) -> tuple[Float[Tensor, "B H T c"], Float[Tensor, "B H c"]]:
    """The sum of the weights over the episode up to each token, and at the last valid one; float32 at least."""
    ones = torch.ones_like(weights[..., :1])
    total, after = causal_sums(ones, ones, weights, before[:, :, None], tokens)
    return total, after.squeeze(2)


def bounded_exp(logits: Float[Tensor, "*n c"]) -> Float[Tensor, "*n c"]:
    """Weights of a softmax that is summed token by token, see ``LARGEST_EXPONENT``; float32 at least."""
    return wide(logits).clamp(-LARGEST_EXPONENT, LARGEST_EXPONENT).exp()
