"""Where a network holds its parameters and buffers: not the tensors, for each may be replaced as a whole."""

from collections.abc import Iterator
from typing import Any

from torch import nn

Place = tuple[dict[str, Any], str]
"""The dictionary of a module that holds a tensor, or None, and the name in it: ``holder[name]`` is today's tensor."""


def places_of(*modules: nn.Module) -> list[Place]:
    """The place of every parameter and buffer of these modules and of all modules in them, each place once."""
    found = {(id(holder), name): (holder, name) for module in modules for _, (holder, name) in named_places(module)}
    return list(found.values())


def named_places(module: nn.Module) -> Iterator[tuple[str, Place]]:
    """Full name and place of every parameter and buffer; a place has as many names as ways lead to it."""
    for path, part in module.named_modules(remove_duplicate=False):
        for holder in (part._parameters, part._buffers):
            for name in holder:
                yield f"{path}.{name}" if path else name, (holder, name)
