"""Rows of catalogue entries beside the twins that they carry, a module per family."""

from tests.attention.entries import (
    depths,
    heads,
    kernels,
    patterns,
    positions,
    priors,
    scores,
    selections,
    slots,
    stores,
    topologies,
)

FAMILIES = (patterns, positions, scores, heads, priors, kernels, slots, selections, stores, depths, topologies)
