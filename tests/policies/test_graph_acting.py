"""Acting of a GTrXL policy as a graph; operations that run again without Python stand in for the GPU."""

from typing import Any

import numpy as np
import pytest
import torch
from gymnasium import spaces

from rltransformers.backbone.state import prefixed
from rltransformers.export.graphs import GraphStep
from rltransformers.policies import steps
from rltransformers.policies.actor_critic import GTrXLPolicy
from rltransformers.policies.policy_state import PolicyState, with_reward
from rltransformers.policies.steps import TABLE, ActorCriticMachine, ActorCriticStep
from tests.export.tape import Captures

BATCH = 3
OBSERVATIONS = spaces.Dict({"a": spaces.Box(-1, 1, (4,), np.float32), "b": spaces.Discrete(3)})
BACKBONES: dict[str, dict[str, Any]] = {
    "gtrxl": {"preset": "gtrxl", "width": 16, "layers": 2, "heads": 2, "memory": 5},
    "rope": {"width": 12, "layers": 2, "heads": 2, "memory": 4, "position": "rope", "memory_kind": "cache"},
    "learned": {"width": 12, "layers": 1, "heads": 2, "memory": 4, "position": {"name": "learned", "max_len": 24}},
    "compressive": {"preset": "compressive", "width": 12, "layers": 2, "heads": 3, "memory": 4,
                    "memory_kind": {"name": "compressive", "slots": 2, "rate": 2}},
}  # fmt: skip


def new_policy(backbone: str, **settings: Any) -> GTrXLPolicy:
    torch.manual_seed(0)
    policy = GTrXLPolicy(
        OBSERVATIONS, spaces.MultiDiscrete([3, 2]), lambda _: 1e-3, backbone=BACKBONES[backbone], **settings
    )
    return policy.eval()


def draw(generator: torch.Generator) -> tuple[dict[str, torch.Tensor], torch.Tensor]:
    observations = {
        "a": torch.randn(BATCH, 4, generator=generator),
        "b": torch.randint(3, (BATCH,), generator=generator),
    }
    return observations, torch.rand(BATCH, generator=generator) < 0.2


@torch.inference_mode()
def graph_step(
    graph: GraphStep, step: ActorCriticStep, state: PolicyState, observations: Any, first: Any, noise: Any
) -> tuple[dict[str, torch.Tensor], PolicyState]:
    tables = prefixed(TABLE, step.policy.tables.current())
    tensors = step.to_dict(state)
    found = graph.step(step.inputs(observations, state, first, noise) | tables, tensors)
    return found, step.from_dict({"first": first, "reward": state.previous_reward}, tensors)


@pytest.mark.parametrize("backbone", BACKBONES)
@pytest.mark.parametrize("shared", [True, False])
def test_a_graph_acts_as_the_policy_through_resets_and_changes_of_weights(backbone: str, shared: bool) -> None:
    policy = new_policy(backbone, shared_backbone=shared, previous_action=True, previous_reward=True)
    step, captures = ActorCriticStep(policy, overwrites=True).eval(), Captures()
    graph = GraphStep(step, [f"{TABLE}.{name}" for name in policy.tables.current()], captures)
    ours, theirs = policy.initial_state(BATCH), policy.initial_state(BATCH)
    generator = torch.Generator().manual_seed(1)
    counts = []
    for time in range(24):
        observations, first = draw(generator)
        noise = None if time % 5 == 4 else policy.action_head.draw(BATCH, generator)
        if time == 12:
            with torch.no_grad():
                for weight in policy.parameters():
                    weight.add_(0.1 * torch.randn(weight.shape, generator=generator))
        actions, values, log_probs, theirs = policy.step(observations, theirs, first, noise, overwrites=True)
        found, ours = graph_step(graph, step, ours, observations, first, noise)
        assert torch.equal(found["action"], actions[""])
        torch.testing.assert_close(found["value"], values)
        torch.testing.assert_close(found["log_prob"], log_probs)
        ours, theirs = (with_reward(state, np.arange(BATCH, dtype=np.float32)) for state in (ours, theirs))
        counts.append(captures.count)
    assert counts[11] == 1
    # Tables of distances are made anew with the weights they depend on, and lie elsewhere then; these depend on none.
    assert counts[-1] == (1 if backbone in ("rope", "learned") else 2)


def test_only_the_clock_and_small_tensors_of_the_state_are_copied() -> None:
    policy = new_policy("gtrxl", previous_action=True)
    step = ActorCriticStep(policy, overwrites=True).eval()
    graph = GraphStep(step, [], Captures())
    observations, first = draw(torch.Generator().manual_seed(1))
    with torch.inference_mode():
        state = policy.initial_state(BATCH)
        graph.step(step.inputs(observations, state, first, None), step.to_dict(state))
    assert {name for name in step.to_dict(state) if "ring" in name} == graph._in_place


def test_a_step_without_a_graph_is_announced_once_and_taken_by_the_policy(monkeypatch: pytest.MonkeyPatch) -> None:
    lines: list[str] = []
    monkeypatch.setattr(steps, "announce", lines.append)
    if torch.cuda.is_available():
        monkeypatch.setattr(torch.cuda, "CUDAGraph", lambda: torch.tensor(1).to("meta").item())
    policy = new_policy("gtrxl")
    code = ActorCriticMachine(policy).graph
    step: Any = code.step
    observations, first = draw(torch.Generator().manual_seed(1))
    with torch.inference_mode():
        state = policy.initial_state(BATCH)
        for _ in range(2):
            assert code.run(step.inputs(observations, state, first, None), step.to_dict(state)) is None
    assert len(lines) == 1
    assert "acting goes on in eager mode: the step cannot be captured as a CUDA graph" in lines[0]
