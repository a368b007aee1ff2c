"""Whether a file holds a backbone as large as its settings say: they could ask for any amount of memory."""

from collections.abc import Mapping
from typing import Any

from torch import Tensor

from rltransformers.backbone import BackboneConfig
from rltransformers.core.errors import CheckpointError
from rltransformers.core.ranges import check


def check_stored_size(backbone: BackboneConfig, weights: Any, acting: Any = None, rows: int = 0) -> None:
    """Raise CheckpointError unless a backbone, not built yet, is at most as large as what a file holds of it.

    That are ``weights`` of the whole policy and, if any, the ``acting`` state of ``rows`` streams, by name.
    """
    parameters, state = backbone.numbers()
    wanted = {"parameters": (parameters, weights)} | (
        {} if acting is None else {"numbers of state": (state * rows, acting)}
    )
    for what, (count, tensors) in wanted.items():
        held = sum(
            tensor.numel() for tensor in check(tensors, Mapping[str, Any], what).values() if isinstance(tensor, Tensor)
        )
        if count > held:
            raise CheckpointError(f"its settings describe a backbone with {count:,} {what}, it holds {held:,}")
