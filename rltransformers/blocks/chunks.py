"""A position-wise transform that takes the tokens in chunks (Kitaev et al. 2020).

Axes: B batch, T tokens, D model width.
"""

from collections.abc import Callable

import torch
from jaxtyping import Float
from torch import Tensor
from torch.utils.checkpoint import checkpoint

from rltransformers.core.spec import Spec, Traits


def in_chunks(transform: Callable[[Tensor], Tensor], x: Float[Tensor, "B T D"], chunks: int) -> Float[Tensor, "B T D"]:
    """``transform(x)``, in at most ``chunks`` slices of the tokens, one after the other.

    Its hidden units exist for one slice at a time. So that this holds in training as well, the backward pass computes
    those of a slice again.
    """
    if chunks == 1 or x.shape[1] == 1:
        return transform(x)
    parts = x.chunk(chunks, 1)
    if torch.is_grad_enabled():
        return torch.cat([checkpoint(transform, part, use_reentrant=False) for part in parts], 1)
    return torch.cat([transform(part) for part in parts], 1)


SPEC = Spec(
    id="R4",
    name="chunked",
    axis="ff",
    paper="Kitaev et al. 2020, arXiv 2001.04451, section 3",
    summary="The transform takes the tokens in chunks, so that few of its hidden units exist at a time.",
    settings="ff_chunks: n",
    example={"ff_chunks": 3},
    traits=Traits(causality="N/A"),
    formula="[ff(x_1); ...; ff(x_n)] of n slices of the tokens, computed again in the backward pass",
)
