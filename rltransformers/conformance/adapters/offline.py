"""``DecisionTransformer``: a cache that is made anew every now and then. Inputs: see ``sequences``."""

from collections.abc import Iterable
from dataclasses import fields, replace
from pathlib import Path
from typing import Any, Self

import numpy as np
import torch
from gymnasium import spaces
from jaxtyping import Bool, Float
from torch import Tensor

from rltransformers.agents import DecisionTransformer
from rltransformers.backbone import State
from rltransformers.conformance.adapters import sequences
from rltransformers.conformance.adapters.rollouts import shaken
from rltransformers.conformance.protocol import Traits
from rltransformers.data import load_trajectories
from rltransformers.policies.decider import ActingState

CONTEXT, LONGEST_EPISODE = 8, 20


class DecisionTransformerAgent:
    """The agent in its acting mode ``refresh``, with positions for 20 steps."""

    inputs = sequences.INPUTS
    padding = "left"

    def __init__(self) -> None:
        self.traits = Traits(
            full=CONTEXT,
            longest=CONTEXT,
            resets_inside=False,
            continues=False,
            cache="keys and values of the episode so far",
            caller_holds_cache=True,
            exempt=sequences.OFFLINE,
        )
        rng = np.random.default_rng(0)
        episode = {
            "observations": rng.normal(size=(12, sequences.OBSERVATION)).astype(np.float32),
            "actions": rng.uniform(-1, 1, (12, sequences.ACTION)).astype(np.float32),
            "rewards": rng.normal(size=12).astype(np.float32),
        }
        backbone = {
            "preset": "decision_transformer",
            "width": 16,
            "layers": 2,
            "heads": 2,
            "position": {"name": "timestep", "max_len": LONGEST_EPISODE},
        }
        data = load_trajectories([episode], action_space=spaces.Box(-1.0, 1.0, (sequences.ACTION,), np.float32))
        self.model = DecisionTransformer(
            "DTPolicy", data, context_length=CONTEXT, policy_kwargs={"backbone": backbone}, seed=0, device="cpu"
        )
        shaken(self.model.policy.parameters())

    def reset(self, batch: int) -> ActingState:
        return self.model.decider().initial_state(batch)

    def step(
        self, inputs: Float[Tensor, "B D"], first: Bool[Tensor, " B"], state: ActingState
    ) -> tuple[Float[Tensor, "B A"], ActingState]:
        asked = sequences.returns_to_go(inputs).double()
        decided, _, after = self.model.decider().step(
            {"": sequences.observations(inputs)},
            replace(state, return_to_go=asked),
            start=first,
            reward=torch.zeros_like(asked),
            target_return=asked,
        )
        taken = self.model.policy.head.embed({"": sequences.actions(inputs)})
        return decided[""].clone(), replace(after, action=taken)  # a copy: those of acting are inference tensors

    def segment(self, inputs: Float[Tensor, "B T D"], first: Bool[Tensor, "B T"], state: Any) -> Float[Tensor, "B T A"]:
        return self.window(inputs, 0)

    def window(self, inputs: Float[Tensor, "B T D"], start: int) -> Float[Tensor, "B T A"]:
        return self._outputs(inputs, torch.ones(inputs.shape[:2], dtype=torch.bool), start)

    def lookback(self, step: int) -> int:
        return int(self.model.decider().window(torch.tensor([step])))

    def pad(self, inputs: Float[Tensor, "B T D"], valid: Bool[Tensor, "B T"]) -> Float[Tensor, "B T A"]:
        return self._outputs(inputs, valid, 0)

    def _outputs(self, inputs: Tensor, valid: Tensor, start: int) -> Tensor:
        policy = self.model.policy
        outputs = policy(
            {"": sequences.observations(inputs)},
            {"": sequences.actions(inputs)},
            sequences.returns_to_go(inputs),
            sequences.timesteps(valid, start),
            valid,
        )
        return policy.head.decode(outputs)[""]

    def weights(self) -> Iterable[Tensor]:
        return list(self.model.policy.parameters())

    def save(self, state: ActingState, folder: Path) -> None:
        assert state.memory is not None  # of the mode ``recompute`` alone there is none
        self.model.save(folder / "model.zip")
        others = {each.name: getattr(state, each.name) for each in fields(state) if each.name != "memory"}
        torch.save({"memory": dict(state.memory.tensors), **others}, folder / "state.pt")

    def load(self, folder: Path) -> tuple[Self, ActingState]:
        again = object.__new__(type(self))
        again.traits, again.model = self.traits, DecisionTransformer.load(folder / "model.zip", device="cpu")
        stored = torch.load(folder / "state.pt", weights_only=True)
        return again, ActingState(memory=State(stored.pop("memory")), **stored)
