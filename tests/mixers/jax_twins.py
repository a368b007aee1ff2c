"""Memories whose published code is of JAX compute what it does.

Importing JAX starts threads, and every later ``fork`` of the process warns of a deadlock. So pytest does not collect
this file by itself: ``test_published_code.py`` runs it in a process of its own.
"""

import importlib
from typing import Any

import jax
import numpy as np
import torch
from jax import numpy as jnp
from torch import Tensor

from rltransformers.mixers import agalite, ffm
from rltransformers.mixers.interface import Dims
from tests.peers.sources import AGALITE
from tests.published import HEADS, WIDTH, agree, double

__all__ = ["double"]  # a fixture

TRACES, FREQUENCIES = 5, 3
HEAD, ROWS, OSCILLATORS = 4, 2, 5


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


jax.config.update("jax_enable_x64", True)


def test_agalite_is_that_of_its_authors() -> None:
    AGALITE.use()
    code = importlib.import_module("agalite")
    dims = Dims(width=WIDTH, heads=HEADS, kv_heads=HEADS, head_dim=HEAD, value_dim=HEAD, memory=1)
    layer = code.AttentionORLiTLayer(WIDTH, HEAD, HEADS, ROWS, OSCILLATORS)
    begin = code.RecurrentLinearTransformerEncoder.initialize_memory(HEADS, HEAD, ROWS, OSCILLATORS)
    ours: Any = agalite.AGaLiTe(dims, agalite.Options(eta=ROWS, oscillators=OSCILLATORS, relu=False))

    def function(x: Any, *kernels: Any) -> Any:
        names = ("linear_kqvbetagammas", "linear_p1p2p3", "project")
        maps = {
            name: {"kernel": each, "bias": jnp.zeros(each.shape[1])} for name, each in zip(names, kernels, strict=True)
        }
        return jnp.stack([layer.apply({"params": maps}, each, jnp.zeros(len(each)), begin)[0] for each in x])

    def by_head(*maps: Tensor) -> Tensor:
        return torch.cat([each.unflatten(0, (HEADS, -1)) for each in maps], 1).flatten(0, 1).T

    def theirs(x: Tensor) -> Tensor:
        query, key, value = ours.project.weight.split(list(ours.widths))
        beta, gamma, of_key, of_gamma, of_query = ours.gates.weight.split(ours.gate_widths)
        kernels = by_head(key, query, value, beta, gamma), by_head(of_key, of_query, of_gamma), ours.out.weight.T
        out: Tensor = ByJax.apply(function, x, *kernels)
        return out

    agree(ours, theirs)


def test_fast_and_forgetful_memory_is_that_of_memax() -> None:
    import equinox
    from memax.equinox.semigroups import ffm as code

    code.jnp = Double()
    layer = code.FFM(WIDTH, TRACES, FREQUENCIES, jax.random.PRNGKey(0))
    dims = Dims(width=WIDTH, heads=1, kv_heads=1, head_dim=4, value_dim=4, memory=1)
    ours: Any = ffm.FastForgetfulMemory(dims, ffm.Options(traces=TRACES, frequencies=FREQUENCIES))

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
