"""What is passed to a backbone, checked before anything reads it. Axes: B batch, T tokens, D model width."""

import torch
from torch import Tensor

from rltransformers.backbone.state import State
from rltransformers.core.errors import ConfigError
from rltransformers.functional.call import Context


def check_inputs(x: Tensor, state: State | None, width: int, weights: torch.dtype, **beside: Tensor | None) -> None:
    """Raise ConfigError unless x is [B, T, width], what is ``beside`` it [B, T], and the state one of B streams.

    Numbers are of the type of the ``weights``; outside autocast nothing else is taken.
    """
    if not isinstance(x, Tensor) or x.dim() != 3 or x.shape[-1] != width or 0 in x.shape:
        got = tuple(x.shape) if isinstance(x, Tensor) else f"a {type(x).__name__}"
        form = f"[batch, time, width {width}] of at least one stream and one token"
        raise ConfigError(f"the backbone takes a tensor {form}, got {got}")
    if not x.is_floating_point():
        raise ConfigError(
            f"the backbone takes floating-point tensors, got {x.dtype}: pass x.float(), or embed what are classes"
        )
    if x.dtype != weights and not torch.is_autocast_enabled(x.device.type):
        raise ConfigError(
            f"x is of {x.dtype}, the weights are of {weights}: pass x.to({weights}), or convert the backbone to "
            f"{x.dtype}"
        )
    for name, value in beside.items():
        if value is None:
            continue
        if value.shape != x.shape[:2]:
            raise ConfigError(
                f"{name} has shape {tuple(value.shape)}, the tokens have {tuple(x.shape[:2])}: pass one value per "
                "stream and token"
            )
        is_flag = name in ("reset", "valid")
        if is_flag and value.dtype != torch.bool:
            raise ConfigError(f"{name} is of {value.dtype}, expected torch.bool: pass {name}.bool()")
        if not is_flag and value.dtype not in (torch.int64, torch.int32):
            raise ConfigError(f"{name} is of {value.dtype}, expected whole numbers: pass {name}.long()")
    if state is None:
        return
    if not isinstance(state, State):
        raise ConfigError(
            f"state is a {type(state).__name__}; pass what a call returned, State(tensors) of tensors that were "
            f"saved, or initial_state({len(x)})"
        )
    if state.batch_size != len(x):
        raise ConfigError(
            f"state is for {state.batch_size} streams, x has {len(x)}; pass initial_state({len(x)}) or None"
        )
    known = weights, x.dtype, torch.bfloat16, torch.float16  # half precision is what autocast leaves
    for value in state.tensors.values():
        if value.dtype not in known and value.is_floating_point():
            raise ConfigError(
                f"state is of {value.dtype}, the weights are of {weights}: pass state.to(dtype={weights})"
            )


def checked_context(x: Tensor, context: Context | None, reads: bool) -> Context:
    """The elements to look at, or ConfigError; asked where layers ``reads`` elements or there are any."""
    if not reads:
        raise ConfigError("no layer reads the context that was passed; set topology to 'encoder_decoder'")
    if context is None:
        raise ConfigError(
            "topology 'encoder_decoder' reads the elements of every observation: pass context=Context(rows, exists)"
            ", in an agent's policy name an encoder (observation={'encoder': ...}), or set topology to 'decoder'"
        )
    if not isinstance(context, Context):
        raise ConfigError(f"context must be a Context(rows, exists), got {type(context).__name__}")
    tokens = len(range(x.shape[1])[context.tokens])
    expected = (x.shape[0], tokens, context.exists.shape[-1], x.shape[-1])
    if context.rows.shape != expected or context.exists.shape != expected[:-1]:
        raise ConfigError(
            f"the context of {tokens} tokens in {len(x)} streams has rows {expected} and says of each whether it "
            f"exists, got {tuple(context.rows.shape)} and {tuple(context.exists.shape)}"
        )
    return context
