"""Policies as they stand in files: observations as the environment gives them in, actions as it takes them out.

Whatever else a policy needs is inside: statistics of ``VecNormalize``, tables that depend on weights alone. Axes: B
environments, U numbers of noise.
"""

import copy
import json
import os
from collections.abc import Mapping
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

import numpy as np
import torch
from torch import Tensor, nn

from rltransformers.backbone import Backbone
from rltransformers.core.action_masks import ACTION_MASK
from rltransformers.core.errors import ConfigError
from rltransformers.core.spaces import Space, space_to_json
from rltransformers.core.values import torch_type
from rltransformers.export.files import write_step
from rltransformers.export.step import Tensors
from rltransformers.policies.action_heads import ActionHead, blank_invalid, noise_of
from rltransformers.policies.decider import Decider
from rltransformers.policies.memory_policy import MemoryPolicy
from rltransformers.policies.steps import TABLE, ActorCriticStep, DecisionStep, announce, leaf_name


@dataclass(frozen=True)
class Scaling:
    """Scaling of a leaf or the reward by ``VecNormalize``: (x - mean) / sqrt(variance + epsilon), clipped."""

    mean: np.ndarray
    variance: np.ndarray
    epsilon: float
    clip: float

    def __call__(self, values: Any) -> np.ndarray:
        """``values`` as ``VecNormalize`` passes them on, in float32."""
        scaled = (values - self.mean) / np.sqrt(self.variance + self.epsilon)
        return np.clip(scaled, -self.clip, self.clip).astype(np.float32)


class Scaled(nn.Module):
    """A ``Scaling``: computed in float64 and given in float32, as numpy does."""

    mean: Tensor
    deviation: Tensor

    def __init__(self, scaling: Scaling) -> None:
        super().__init__()
        self.clip = float(scaling.clip)
        deviation = np.sqrt(np.asarray(scaling.variance, np.float64) + scaling.epsilon)
        self.register_buffer("mean", torch.tensor(scaling.mean, dtype=torch.float64))
        self.register_buffer("deviation", torch.tensor(deviation, dtype=torch.float64))

    def forward(self, x: Tensor) -> Tensor:
        return ((x.double() - self.mean) / self.deviation).clamp(-self.clip, self.clip).float()


class PolicyInFile(nn.Module):
    """A step of a policy between the types of an environment; tables are constants."""

    step: Any  # what a subclass makes

    def __init__(self, head: ActionHead, tables: Mapping[str, Tensor]) -> None:
        super().__init__()
        self.noise = [
            {"of": leaf_name("action", path), "numbers": numbers, "distribution": "normal" if normal else "uniform"}
            for path, (numbers, normal) in zip([*head.spaces] * head.chunk, noise_of(head), strict=True)
            if numbers
        ]
        self.action_types = {leaf_name("action", path): torch_type(space.dtype) for path, space in head.spaces.items()}
        self.table_names = [f"{TABLE}.{name}" for name in tables]
        for index, table in enumerate(tables.values()):
            self.register_buffer(f"table_{index}", table)

    def scaled(self, inputs: Tensors) -> Tensors:
        """Inputs of the step inside, from those of the file; all but the tables."""
        raise NotImplementedError

    def forward(self, inputs: Tensors, state: Tensors) -> tuple[Tensors, Tensors]:
        tables = {name: self.get_buffer(f"table_{index}") for index, name in enumerate(self.table_names)}
        outputs, after = self.step(self.scaled(inputs) | tables, state)
        return outputs | {name: outputs[name].to(dtype) for name, dtype in self.action_types.items()}, after


class ActorCriticInFile(PolicyInFile):
    """One step of a ``MemoryPolicy``.

    Inputs: observation leaves of the types of the space, and for a policy that masks actions the mask, int8 [B, M],
    whose name the metadata hold as "action_mask"; "first" bool [B]; "noise" float32 [B, U]; "greedy" bool [B];
    "reward" float32 [B] of the last step, as the environment gave it, where the policy reads it. Outputs: the fields of
    ``PolicyOutput`` that the policy has, those of leaves under the names of the leaves ("probabilities.grip").

    ``scalings`` are of observation leaves by path; ``kind`` is that of the agent.
    """

    def __init__(
        self,
        policy: MemoryPolicy,
        scalings: Mapping[str, Scaling] | None = None,
        reward_scaling: Scaling | None = None,
        kind: str = "GTrXLPPO",
    ) -> None:
        policy = copy.deepcopy(policy).cpu().eval()
        for name in policy.only_learns:
            delattr(policy, name)
        super().__init__(policy.action_head, policy.tables.current())
        self.policy, self.kind = policy, kind
        self.step = ActorCriticStep(policy, ships=True)
        self.types = {leaf_name("observation", path): dtype for path, dtype in policy.leaf_types.items()}
        scalings = scalings or {}
        self.scaled_names = [leaf_name("observation", path) for path in scalings]
        self.scalings = nn.ModuleList(Scaled(scaling) for scaling in scalings.values())
        self.reward_scaling = None if reward_scaling is None else Scaled(reward_scaling)

    def scaled(self, inputs: Tensors) -> Tensors:
        found = dict(inputs)
        for name, scaling in zip(self.scaled_names, self.scalings, strict=True):
            found[name] = scaling(found[name])
        if self.reward_scaling is not None and "reward" in found:
            found["reward"] = self.reward_scaling(found["reward"])
        return found | {name: found[name].to(dtype) for name, dtype in self.types.items()}

    def examples(self, batch: int) -> tuple[Tensors, Tensors]:
        """Inputs that the step can take, and the state before the first step."""
        first, noise = torch.ones(batch, dtype=torch.bool), torch.zeros(batch, self.policy.action_head.draws)
        state = self.policy.initial_state(batch, cached="only")
        leaves = _blank_leaves(self.policy.seen_leaves, batch)
        return self.step.inputs(leaves, state, first, noise), self.step.to_dict(state)

    def about(self) -> dict[str, Any]:
        """Facts for clients that shapes do not say, as JSON values."""
        # Both backbones have the same positions.
        about: dict[str, Any] = {"longest_episode": longest_episode(self.policy.actor.backbone, tokens_per_step=1)}
        if self.policy.masks:
            about["action_mask"] = leaf_name("observation", ACTION_MASK)
        return about


class DecisionInFile(PolicyInFile):
    """One decision of a ``Decider``.

    Inputs: observation leaves of the types of the space; "start" bool [B]; where they decide anything, "reward" [B] of
    the last step and "target_return" [B] of episodes that start here, float64 (NaN asks a policy that predicts returns
    for what it predicts); for heads that sample, "noise" float64 [B, U] and "greedy" bool [B]. Outputs: as for
    ``ActorCriticInFile``. ``best_return`` is what a client may ask for when it knows nothing better,
    ``names`` what the log calls the numbers of observations and actions, so that a client puts them in this order.

    Raises:
        ConfigError: for the mode ``recompute``, which keeps no state of the network.
    """

    kind = "DecisionTransformer"

    def __init__(
        self, decider: Decider, best_return: float, names: dict[str, dict[str, list[str]]] | None = None
    ) -> None:
        if decider.mode == "recompute":
            raise ConfigError(
                "acting mode 'recompute' runs the whole context anew for every decision and cannot be written as one "
                "step; export with acting_mode='refresh' (on the command line: --acting-mode refresh)"
            )
        decider = replace(decider, policy=copy.deepcopy(decider.policy).cpu().eval())
        super().__init__(decider.policy.head, decider.policy.tables.current())
        self.best_return, self.names = best_return, names
        self.step = DecisionStep(decider, ships=True)
        self.reads_target = decider.policy.takes_target
        self.reads_reward = self.reads_target and not decider.delayed_reward

    def scaled(self, inputs: Tensors) -> Tensors:
        zeros = torch.zeros_like(inputs["start"], dtype=torch.float64)
        return {"reward": zeros, "target_return": zeros} | inputs

    def examples(self, batch: int) -> tuple[Tensors, Tensors]:
        start, zeros = torch.ones(batch, dtype=torch.bool), torch.zeros(batch)
        leaves = _blank_leaves(self.step.policy.observation_leaves, batch)
        inputs = self.step.inputs(leaves, start, zeros, zeros, None)
        read = {"reward": self.reads_reward, "target_return": self.reads_target}
        inputs = {name: value for name, value in inputs.items() if read.get(name, True)}
        return inputs, self.step.to_dict(self.step.decider.initial_state(batch))

    def about(self) -> dict[str, Any]:
        decider, policy = self.step.decider, self.step.policy
        group = policy.tokens_per_step
        return {
            "acting_mode": decider.mode,
            "context_length": decider.context_length,
            "discount": decider.discount,
            "delayed_reward": decider.delayed_reward,
            "return_scale": policy.return_scale,
            "best_return": self.best_return,
            "predicts_return": policy.return_head is not None,
            "chunk": policy.chunk,
            "decide_every": policy.decide_every,
            "names": self.names or {},
            # A cache that begins anew never comes to the end of a table of places.
            "longest_episode": longest_episode(policy.backbone, group, whole=decider.mode == "banded"),
        }


def write_policy(
    step: ActorCriticInFile | DecisionInFile,
    path: str | os.PathLike[str],
    batch: int | None,
    observation_space: Space,
    action_space: Space,
    verbose: int = 0,
) -> Path:
    """Write a policy as ``.pt2`` or ``.onnx`` file, by the ending of ``path``, and return its path.

    See ``rltransformers.export.files``. Where ``verbose`` is not 0, a line says first that this takes a while.

    Raises:
        ConfigError: for another ending, and for what a file of that kind cannot express.
        MissingExtraError: for ONNX without its packages.
    """
    if Path(path).is_dir():
        raise ConfigError(f"{path} is a folder; give the name of a file in it")
    if verbose:
        announce(f"tracing the policy and writing {path}; this takes up to a minute")
    inputs, state = step.examples(2)
    metadata = {
        "agent": step.kind,
        "observation_space": json.loads(space_to_json(observation_space)),
        "action_space": json.loads(space_to_json(action_space)),
        "noise": step.noise,
        "initial_state": {name: _row(value) for name, value in state.items()},
        **step.about(),
    }
    write_step(step.eval(), path, inputs, state, batch=batch, metadata=metadata)
    return Path(path)


def _row(value: Tensor) -> Any:
    """First value of every row of a state: one number where all are equal, else nested lists."""
    row = value[0]
    return row.flatten()[0].item() if row.numel() and bool((row == row.flatten()[0]).all()) else row.tolist()


def longest_episode(backbone: Backbone, tokens_per_step: int, whole: bool = True) -> int | None:
    """Steps until a position table ends, None where none does; ``whole``: places count from the first step."""
    steps = []
    for position in backbone.finite_positions:
        if position.timesteps is not None:
            steps.append(position.timesteps)
        if position.places is not None and whole:
            # The last token of an episode is the observation, the last but one of its group.
            steps.append((position.places - max(tokens_per_step - 1, 1)) // tokens_per_step + 1)
    return min(steps, default=None)


def _blank_leaves(leaves: Mapping[str, Space], batch: int) -> Tensors:
    """A legal observation."""
    shapes = {path: (batch, *(leaf.shape or ())) for path, leaf in leaves.items()}
    zeros = {path: torch.zeros(shape, dtype=torch_type(leaves[path].dtype)) for path, shape in shapes.items()}
    return blank_invalid(leaves, zeros, torch.zeros(batch, dtype=torch.bool))
