"""Acting steps of both policies as modules over dictionaries of tensors, for machine code and for files.

A step is ``forward(inputs, state) -> (outputs, new_state)``, pure and of fixed shapes (``rltransformers.export.step``).
Names: observation leaves are "observation" or "observation.<path>", actions "action" or "action.<path>", tables that
depend on weights alone "table.<place>". Axes: B environments, U numbers of noise.
"""

import sys
from collections.abc import Mapping
from typing import Any, Literal

import torch
from torch import Tensor, nn

from rltransformers.backbone import State
from rltransformers.backbone.state import part_of, prefixed
from rltransformers.core.action_masks import ACTION_MASK
from rltransformers.core.errors import CompileError
from rltransformers.export.compiled import CompiledStep, LeftBehind
from rltransformers.export.evaluation import autocast_types
from rltransformers.export.graphs import GraphStep
from rltransformers.export.step import Tensors
from rltransformers.policies.decider import OF_SOME, ActingState, Decider
from rltransformers.policies.memory_policy import MemoryPolicy
from rltransformers.policies.policy_state import PolicyState

TABLE = "table"

Acting = Literal["eager", "compiled"]
"""How steps of acting are computed: by PyTorch, operation by operation, or as a whole: machine code, a CUDA graph."""


class ActorCriticStep(nn.Module):
    """One step of a ``MemoryPolicy``.

    Inputs: observation leaves; "first" bool [B], where an episode begins; "noise" [B, U] of the action head; "greedy"
    bool [B], where the most likely action is taken in place of a sample; "reward" [B] of the last action, where the
    policy reads it. Outputs: actions, "value" [B], "log_prob" [B].

    Args:
        policy: in evaluation mode.
        ships: whether actions are given as the environment takes them, clipped into their Boxes, and all fields of
            ``PolicyOutput`` beside them.
        overwrites: whether rings of the state are written in place; the step is not pure then.
    """

    def __init__(self, policy: MemoryPolicy, ships: bool = False, overwrites: bool = False) -> None:
        super().__init__()
        self.policy, self.ships, self.overwrites = policy, ships, overwrites

    def forward(self, inputs: Tensors, state: Tensors) -> tuple[Tensors, Tensors]:
        policy, head = self.policy, self.policy.action_head
        leaves, tables = leaves_of("observation", inputs), part_of(TABLE, inputs)
        outputs, values, after = policy.network_step(
            leaves, self.from_dict(inputs, state), inputs["first"], tables, self.overwrites
        )
        actions = head.decode_some(outputs, inputs["noise"], inputs["greedy"])
        if self.ships:
            fields = {"action": head.execute(actions), "value": {"": values}} | head.distribution(outputs, actions)
        else:
            fields = {"action": actions, "value": {"": values}, "log_prob": {"": head.log_prob(outputs, actions)}}
        return flat_fields(fields), self.to_dict(PolicyState(after.actor, after.critic, actions, after.previous_reward))

    def inputs(
        self, observations: Mapping[str, Tensor], state: PolicyState, first: Tensor, noise: Tensor | None
    ) -> Tensors:
        """Arguments of ``forward``; without noise the most likely actions."""
        found = flat_fields({"observation": observations})
        found |= {"first": first, "greedy": torch.full_like(first, noise is None)}
        if noise is None:
            noise = first.new_zeros(len(first), self.policy.action_head.draws, dtype=torch.float32)
        found["noise"] = noise
        return found | ({"reward": state.previous_reward} if self.policy.uses_previous_reward else {})

    def to_dict(self, state: PolicyState) -> Tensors:
        parts = {"actor": state.actor.tensors} | ({} if state.critic is None else {"critic": state.critic.tensors})
        if self.policy.uses_previous_action:
            # Copies, because others hold the actions that were taken: a rollout does.
            parts["previous_action"] = {path: value.clone() for path, value in state.previous_action.items()}
        return flat_fields(parts)

    def from_dict(self, inputs: Tensors, state: Tensors) -> PolicyState:
        critic = part_of("critic", state)
        reward = inputs.get("reward", torch.zeros_like(inputs["first"], dtype=torch.float32))
        actor, action = State(part_of("actor", state)), leaves_of("previous_action", state)
        return PolicyState(actor, State(critic) if critic else None, action, reward)


class DecisionStep(nn.Module):
    """One decision of a ``Decider``.

    Inputs: observation leaves; "start" bool [B]; "reward" [B] of the last step and "target_return" [B] of episodes that
    start here, float64; for heads that sample, "noise" [B, U] and "greedy" bool [B]. Outputs: actions, and the "total"
    [B] of the outputs of the head.

    Args:
        ships: whether all fields of ``PolicyOutput`` stand beside the actions, in place of the total.
    """

    def __init__(self, decider: Decider, ships: bool = False) -> None:
        super().__init__()
        self.policy, self.decider, self.ships = decider.policy, decider, ships

    def forward(self, inputs: Tensors, state: Tensors) -> tuple[Tensors, Tensors]:
        observations = leaves_of("observation", inputs)
        actions, outputs, after = self.decider.network_step(
            observations,
            self.from_dict(state),
            start=inputs["start"],
            reward=inputs["reward"],
            target_return=inputs["target_return"],
            noise=inputs.get("noise"),
            greedy=inputs.get("greedy"),
            tables=part_of(TABLE, inputs),
        )
        total = {"action": actions, "total": {"": outputs.sum(-1)}}
        fields = self.policy.fields(observations, outputs, actions) if self.ships else total
        return flat_fields(fields), self.to_dict(after)

    def inputs(
        self,
        observations: Mapping[str, Tensor],
        start: Tensor,
        reward: Tensor,
        target_return: Tensor,
        noise: Tensor | None,
    ) -> Tensors:
        """Arguments of ``forward``; without noise the most likely actions."""
        found = flat_fields({"observation": observations})
        found |= {"start": start, "reward": reward.double(), "target_return": target_return.double()}
        if self.policy.head.draws:
            found["greedy"] = torch.full_like(start, noise is None)
            zeros = start.new_zeros(len(start), self.policy.head.draws, dtype=torch.float64)
            found["noise"] = zeros if noise is None else noise.double()
        return found

    def to_dict(self, state: ActingState) -> Tensors:
        """The state as one dictionary; the streams of an environment lie side by side."""
        streams = self.decider.prefixes * self.decider.streams
        tensors = {} if state.memory is None else {
            f"memory.{name}": value.unflatten(0, (-1, streams)) for name, value in state.memory.tensors.items()
        }  # fmt: skip
        others = {"action_token" if name == "action" else name: value for name, value in state.tensors().items()}
        if not state.tokens.shape[1]:
            del others["tokens"]
        return tensors | others

    def from_dict(self, state: Tensors) -> ActingState:
        memory = {name: value.flatten(0, 1) for name, value in part_of("memory", state).items()}
        action = state["action_token"]
        tokens = state.get("tokens", action.new_zeros(action.shape[0], 0, action.shape[1]))
        others = {name: state[name] for name in ("return_to_go", "step", *OF_SOME) if name in state}
        return ActingState(State(memory) if memory else None, tokens, action, **others)


class MachineCode(LeftBehind):
    """Runs a step in evaluation mode as machine code or as a CUDA ``graph``, or says once why there is none.

    A step that becomes a graph may write its state in place.
    """

    def __init__(self, step: nn.Module, graph: bool = False) -> None:
        self.step, self._graph = step, graph
        self._compiled: CompiledStep | GraphStep | None = None
        self.failed = False

    def run(self, inputs: Tensors, state: Tensors) -> Tensors | None:
        """Outputs, with the new state written over ``state``; None where there is no machine code.

        There is none under ``torch.autocast``: it computes in the types of the weights.
        """
        if self.failed or any(autocast_types(inputs.values())):
            return None
        try:
            if self._compiled is None:
                tables = [name for name in inputs if name.startswith(f"{TABLE}.")]
                if self._graph:
                    self._compiled = GraphStep(self.step, tables)
                else:
                    self._compiled = CompiledStep(self.step, inputs, state, shared=tables, notify=announce)
            return self._compiled.step(inputs, state)
        except CompileError as error:
            self.failed, self._compiled = True, None
            announce(f"acting goes on in eager mode: {error}")
            return None


class ActorCriticMachine(MachineCode):
    """Steps of a ``MemoryPolicy``: machine code on the CPU, and a CUDA graph where a state is handed on."""

    def __init__(self, policy: MemoryPolicy) -> None:
        super().__init__(ActorCriticStep(policy).eval())
        self.graph = MachineCode(ActorCriticStep(policy, overwrites=True).eval(), graph=True)

    def __call__(
        self,
        observations: Mapping[str, Tensor],
        state: PolicyState,
        first: Tensor,
        noise: Tensor | None,
        tables: Tensors,
        overwrites: bool,
    ) -> tuple[Tensors, Tensor, Tensor, PolicyState] | None:
        """``MemoryPolicy.step``; None where there is no machine code."""
        if not (first.is_cpu or (first.is_cuda and overwrites)):  # copies of a state would need a graph each
            return None
        code = self if first.is_cpu else self.graph
        step: Any = code.step
        state = state if overwrites else state.clone()
        tensors = step.to_dict(state)
        found = code.run(step.inputs(observations, state, first, noise) | prefixed(TABLE, tables), tensors)
        if found is None:
            return None
        actions = leaves_of("action", found)
        previous = leaves_of("previous_action", tensors) or actions
        after = PolicyState(state.actor, state.critic, previous, state.previous_reward)
        return actions, found["value"], found["log_prob"], after


class DecisionMachine(LeftBehind):
    """Decisions of the ``Decider`` of a policy; one machine code per way of acting."""

    def __init__(self) -> None:
        self._machines: dict[Any, MachineCode] = {}

    def __call__(
        self,
        decider: Decider,
        observations: Mapping[str, Tensor],
        state: ActingState,
        start: Tensor,
        reward: Tensor,
        target_return: Tensor,
        noise: Tensor | None,
        tables: Tensors,
        overwrites: bool,
    ) -> tuple[Tensors, Tensor, ActingState] | None:
        """``Decider.step``; None where there is no machine code."""
        if not start.is_cpu:
            return None
        masked = ACTION_MASK in observations
        way = decider.context_length, decider.mode, decider.discount, decider.delayed_reward, decider.jitter, masked
        if way not in self._machines:
            self._machines[way] = MachineCode(DecisionStep(decider).eval())
        step: Any = self._machines[way].step
        tensors = step.to_dict(state)
        if not overwrites:
            tensors = {name: tensor.clone() for name, tensor in tensors.items()}
        inputs = step.inputs(observations, start, reward, target_return, noise)
        found = self._machines[way].run(inputs | prefixed(TABLE, tables), tensors)
        return None if found is None else (leaves_of("action", found), found["total"], step.from_dict(tensors))


def announce(line: str) -> None:
    """Tell the user of a compilation, which takes a while, or of why there is none."""
    print(line, file=sys.stderr, flush=True)


def leaf_name(kind: str, path: str) -> str:
    """Name of an observation or action leaf in inputs, outputs and states."""
    return f"{kind}.{path}" if path else kind


def flat_fields(fields: Mapping[str, Mapping[str, Tensor]]) -> Tensors:
    """Fields of ``PolicyOutput`` by leaf as outputs of a step."""
    return {leaf_name(kind, path): leaf for kind, leaves in fields.items() for path, leaf in leaves.items()}


def leaves_of(kind: str, tensors: Tensors) -> Tensors:
    """The leaves of a kind by path."""
    return part_of(kind, tensors) | ({"": tensors[kind]} if kind in tensors else {})
