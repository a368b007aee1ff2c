"""Fast and forgetful memory computes what memax does, by JAX.

Importing JAX starts threads, and every later ``fork`` of the process warns of a deadlock. So pytest does not collect
this file by itself: ``test_published_code.py`` runs it in a process of its own.
"""

from typing import Any

import equinox
import jax
import numpy as np
import torch
from jax import numpy as jnp
from memax.equinox.semigroups import ffm as code
from torch import Tensor

from rltransformers.mixers import ffm
from rltransformers.mixers.interface import Dims
from tests.published import WIDTH, agree, double

__all__ = ["double"]  # a fixture

TRACES, FREQUENCIES = 5, 3
DIMS = Dims(width=WIDTH, heads=1, kv_heads=1, head_dim=4, value_dim=4, memory=1)


class Double:
    """jax.numpy, whose complex64 is complex128."""

    complex64 = jnp.complex128

    def __getattr__(self, name: str) -> Any:
        return getattr(jnp, name)


class ByJax(torch.autograd.Function):
    """What a function of JAX gives for tensors, with its gradient."""

    @staticmethod
    def forward(ctx: Any, function: Any, *tensors: Tensor) -> Tensor:
        result, ctx.backward_of = jax.vjp(jax.jit(function), *(jnp.array(each.detach().numpy()) for each in tensors))
        return torch.from_numpy(np.array(result))

    @staticmethod
    def backward(ctx: Any, *gradients: Tensor) -> Any:
        (gradient,) = gradients
        results = ctx.backward_of(jnp.array(gradient.numpy()))
        return (None, *(torch.from_numpy(np.array(each)) for each in results))


def test_fast_and_forgetful_memory_is_that_of_memax() -> None:
    jax.config.update("jax_enable_x64", True)
    code.jnp = Double()
    layer = code.FFM(WIDTH, TRACES, FREQUENCIES, jax.random.PRNGKey(0))
    ours: Any = ffm.FastForgetfulMemory(DIMS, ffm.Options(traces=TRACES, frequencies=FREQUENCIES))

    def maps(each: Any) -> tuple[Any, ...]:
        gates = (each.gate_in.linear, each.gate_out.linear)
        linear = (each.pre, *gates, each.mix)
        return (*(part.weight for part in linear), *(part.bias for part in linear), each.algebra.algebra.params)

    def function(x: Any, *weights: Any) -> Any:
        *parts, alpha, omega = weights
        filled = equinox.tree_at(maps, layer, (*parts, (alpha, omega)))
        starts = jnp.zeros(x.shape[1], bool)
        return jnp.stack([filled(filled.initialize_carry(), (episode, starts))[1] for episode in x])

    def theirs(x: Tensor) -> Tensor:
        weights, biases = (each.split([TRACES, TRACES, WIDTH]) for each in (ours.project.weight, ours.project.bias))
        mix = ours.out.weight.unflatten(1, (2, TRACES, FREQUENCIES)).transpose(1, 2).flatten(1)
        out: Tensor = ByJax.apply(function, x, *weights, mix, *biases, ours.out.bias, ours.alpha, ours.omega)
        return out

    agree(ours, theirs)
