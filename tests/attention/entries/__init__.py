"""Rows of catalogue entries beside the twins that they carry, a module per family."""

from tests.attention.entries import (
    cells,
    decays,
    depths,
    galites,
    heads,
    kernels,
    matrix_memories,
    patterns,
    positions,
    priors,
    scans,
    scores,
    selections,
    slots,
    stores,
    topologies,
)

FAMILIES = (
    patterns,
    positions,
    scores,
    heads,
    priors,
    kernels,
    decays,
    scans,
    matrix_memories,
    slots,
    selections,
    stores,
    depths,
    topologies,
    cells,
    galites,
)
