"""The nonlinear functions that transforms choose from."""

from collections.abc import Callable
from functools import partial
from typing import Literal

from torch import Tensor
from torch.nn import functional as F

Activation = Literal["relu", "gelu", "gelu_tanh", "silu", "sigmoid", "identity"]


def unchanged(x: Tensor) -> Tensor:
    """The tensor itself; a lambda could not be pickled, nor could a network."""
    return x


ACTIVATIONS: dict[str, Callable[[Tensor], Tensor]] = {
    "relu": F.relu, "gelu": F.gelu, "gelu_tanh": partial(F.gelu, approximate="tanh"), "silu": F.silu,
    "sigmoid": Tensor.sigmoid, "identity": unchanged,
}  # fmt: skip
