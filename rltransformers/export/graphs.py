"""A step as a CUDA graph that computes with the weights of the live module and writes the state in place.

Without a graph the kernels of a small step are over before the next one is launched; a graph launches all at once.
"""

from collections.abc import Callable, Collection

import torch
from torch import nn

from rltransformers.core.errors import CompileError, one_line
from rltransformers.core.places import places_of
from rltransformers.export.step import Tensors

Work = Callable[[], None]


def captured(work: Work) -> Work:
    """A function that runs the kernels of ``work`` again, on the memory that they had here, without ``work`` itself."""
    graph = torch.cuda.CUDAGraph()
    with torch.cuda.graph(graph):
        work()
    return graph.replay


class GraphStep:
    """The step of ``module`` for the sizes and addresses it was called with last, as a CUDA graph.

    A graph knows tensors by their addresses. It reads weights and shared inputs where they lie, and state tensors that
    ``module`` writes in place are written where they lie: what is written into them counts from the next step on. As
    soon as one of them lies elsewhere, or any size or type changes, the step is captured anew, which costs a few eager
    steps. All other tensors are copied into memory of the graph and out of it, and are meant to be small.

    A part of ``module`` that is replaced as a whole needs a new ``GraphStep``. One thread at a time may call it.

    Args:
        module: a step in evaluation mode, which may write tensors of the state in place and return them.
        shared: names of inputs that stay where they are for many steps.
    """

    def __init__(self, module: nn.Module, shared: Collection[str] = (), capture: Callable[[Work], Work] = captured):
        self.module, self.shared, self.capture = module, frozenset(shared), capture
        self._places = places_of(module)
        self._replay: Work | None = None
        self._known: list[object] = []
        self._in_place: frozenset[str] = frozenset()
        self._inputs: Tensors = {}  # at the addresses that the graph reads
        self._state: Tensors = {}
        self._outputs: Tensors = {}  # at the addresses that the graph writes
        self._after: Tensors = {}

    @torch.inference_mode()
    def step(self, inputs: Tensors, state: Tensors) -> Tensors:
        """Take one step: return the outputs, which are new tensors, and write the new state over ``state``.

        Raises:
            CompileError: when the step cannot be captured; the state is as it was, and eager mode works.
        """
        if self._replay is None or self._facts(inputs, state) != self._known:
            self._capture(inputs, state)
        assert self._replay is not None
        for name in inputs.keys() - self.shared:
            self._inputs[name].copy_(inputs[name])
        for name in state.keys() - self._in_place:
            self._state[name].copy_(state[name])
        self._replay()
        outputs = {name: value.clone() for name, value in self._outputs.items()}
        for name in state.keys() - self._in_place:
            state[name].copy_(self._after[name])
        return outputs

    def _facts(self, inputs: Tensors, state: Tensors) -> list[object]:
        """Facts that a graph takes for granted; others need another graph."""
        weights = [holder[name] for holder, name in self._places]
        facts: list[object] = [None if weight is None else (weight.data_ptr(), weight.dtype) for weight in weights]
        for tensors, at_home in ((inputs, self.shared), (state, self._in_place)):
            for name, tensor in tensors.items():
                address = tensor.data_ptr() if name in at_home else None
                facts.append((name, address, tensor.dtype, tensor.shape, tensor.stride() if name in at_home else None))
        return facts

    def _capture(self, inputs: Tensors, state: Tensors) -> None:
        """Make a graph for these tensors; the state keeps its numbers."""
        self._replay, self._outputs, self._after = None, {}, {}  # the memory of the old graph is free for the new one
        try:
            # Libraries that make their workspaces at the first call cannot do so inside a graph. Run on a copy, because
            # a step that is taken twice may not be the same step.
            trial = {name: tensor.clone() for name, tensor in state.items()}
            _, after = self.module(inputs, trial)
            self._in_place = frozenset(
                name for name, tensor in trial.items() if after[name].data_ptr() == tensor.data_ptr()
            )
            del trial, after
            self._inputs = {name: tensor if name in self.shared else tensor.clone() for name, tensor in inputs.items()}
            self._state = {name: tensor if name in self._in_place else tensor.clone() for name, tensor in state.items()}
            self._replay = self.capture(self._work)
        except RuntimeError as error:
            reason = one_line(error)[:500]
            raise CompileError(f"the step cannot be captured as a CUDA graph: {reason}; eager mode works") from error
        finally:
            # The graph needs addresses, not owners: a state that its owner drops is not kept alive here.
            self._inputs = {name: tensor for name, tensor in self._inputs.items() if name not in self.shared}
            self._state = {name: tensor for name, tensor in self._state.items() if name not in self._in_place}
        self._known = self._facts(inputs, state)

    def _work(self) -> None:
        outputs, after = self.module(self._inputs, self._state)
        self._outputs.update(outputs)
        self._after.update({name: after[name] for name in self._state if name not in self._in_place})
