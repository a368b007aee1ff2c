"""The nonlinear functions that transforms choose from."""

from collections.abc import Callable
from functools import partial
from typing import Literal

from torch import Tensor
from torch.nn import functional as F

Activation = Literal["relu", "gelu", "gelu_tanh", "silu", "sigmoid", "identity"]
ACTIVATIONS: dict[str, Callable[[Tensor], Tensor]] = {
    "relu": F.relu, "gelu": F.gelu, "gelu_tanh": partial(F.gelu, approximate="tanh"), "silu": F.silu,
    "sigmoid": Tensor.sigmoid, "identity": lambda x: x,
}  # fmt: skip
