"""What a step computes: operations to be listed, or to be run again without Python, in place of a CUDA graph."""

from collections.abc import Callable
from typing import Any

import torch
from torch import Tensor
from torch.utils._python_dispatch import TorchDispatchMode
from torch.utils._pytree import tree_leaves

LOOKS = (torch.ops.aten._local_scalar_dense, torch.ops.aten.item, torch.ops.aten.equal, torch.ops.aten.is_nonzero)


class Tape(TorchDispatchMode):
    """Records operations. As in a capture, nobody may look at results, and ``undo`` leaves nothing written."""

    def __init__(self) -> None:
        super().__init__()
        self.operations: list[tuple[Any, tuple[Any, ...], dict[str, Any], list[Any]]] = []
        self.overwritten: list[tuple[Tensor, Tensor]] = []

    def __torch_dispatch__(self, func: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        if func.overloadpacket in LOOKS:
            raise RuntimeError("operation not permitted when stream is capturing")
        for argument, value in zip(func._schema.arguments, args, strict=False):
            if argument.alias_info is not None and argument.alias_info.is_write:
                self.overwritten.append((value, value.clone()))
        result = func(*args, **(kwargs or {}))
        self.operations.append((func, args, kwargs or {}, tree_leaves(result)))
        return result

    def undo(self) -> None:
        """What was written in place is as it was."""
        for tensor, before in reversed(self.overwritten):
            tensor.copy_(before)
        self.overwritten.clear()

    def replay(self) -> None:
        """All operations again; every result lands where it was."""
        for func, args, kwargs, results in self.operations:
            for place, value in zip(results, tree_leaves(func(*args, **kwargs)), strict=True):
                if isinstance(place, Tensor) and place.data_ptr() != value.data_ptr():
                    place.copy_(value)


class Operations(TorchDispatchMode):
    """Names of what is computed, with what ``describe`` says of the tensors that it takes."""

    def __init__(self, describe: Callable[[Tensor], str]) -> None:
        super().__init__()
        self.describe, self.found = describe, set[tuple[str, ...]]()

    def __torch_dispatch__(self, func: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        tensors = {self.describe(leaf) for leaf in tree_leaves((args, kwargs)) if isinstance(leaf, Tensor)}
        self.found.add((str(func), *sorted(tensors)))
        return func(*args, **(kwargs or {}))


class Captures:
    """Makes tapes in place of graphs and counts them."""

    def __init__(self) -> None:
        self.count = 0

    def __call__(self, work: Callable[[], None]) -> Callable[[], None]:
        self.count += 1
        tape = Tape()
        with torch.inference_mode():
            try:
                with tape:
                    work()
            finally:
                tape.undo()
        return tape.replay
