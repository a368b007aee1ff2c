"""One round of updates equals a plain loop: draws, targets row by row, losses, clipping, Adam, target network."""

import copy
from dataclasses import replace
from functools import partial
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from gymnasium import spaces
from stable_baselines3.common.vec_env import DummyVecEnv
from torch import Tensor

from rltransformers.agents import GTrXLDQN
from rltransformers.backbone import Record
from rltransformers.data.replay import Window
from rltransformers.policies.policy_state import StepInputs
from rltransformers.policies.q_network import GTrXLQPolicy
from tests.agents.replayed import SEGMENT, agent, collect, draw_from, replay_of, strolls, train_on
from tests.agents.tiny_envs import AnySpace

UPDATES, BATCH = 3, 4
ADAPTIVE = {
    "span": [{"name": "adaptive", "ramp": 2.0, "initial": start} for start in (0.0, 1.0)],
    "position": {"name": "shaw", "max_distance": 8, "values": False},
    "losses": {"span": 0.7},
}
CASES: dict[str, dict[str, Any]] = {
    "plain": {"n_step": 1, "target_update_interval": 2},
    "steps": {"scale_rewards": True, "n_step": 3, "tau": 0.3, "target_update_interval": 1, "max_grad_norm": 0.02},
    "rescaled": {"scale_rewards": True, "n_step": 2, "value_rescale": True, "target_update_interval": 10},
    "prioritized": {"scale_rewards": True, "n_step": 2, "prioritized": True, "target_update_interval": 2},
    "spans": {"n_step": 2, "backbone": ADAPTIVE, "target_update_interval": 2, "learning_rate": 0.05},
}


def h(x: float) -> float:
    return (1.0 if x >= 0 else -1.0) * ((abs(x) + 1.0) ** 0.5 - 1.0) + 1e-3 * x


def h_inverse(x: float) -> float:
    root = ((1.0 + 4e-3 * (abs(x) + 1.0 + 1e-3)) ** 0.5 - 1.0) / 2e-3
    return (1.0 if x >= 0 else -1.0) * (root**2 - 1.0)


def values(policy: Any, parts: Any, window: Any, record: Record | None = None) -> Tensor:
    """Values [B, T, A] behind the context, from a state that the context alone has made."""
    actor, hidden, head = parts
    state = actor.backbone.initial_state(len(window.position))
    state.tensors["position"] = window.position - 1
    steps = [window.observations, window.previous_actions, window.previous_rewards, window.first]
    cut = window.context

    def part(of: slice) -> StepInputs:
        observations, actions = ({k: v[:, of] for k, v in each.items()} for each in steps[:2])
        return StepInputs(observations, actions, steps[2][:, of], steps[3][:, of])

    if cut:
        with torch.no_grad():
            _, state = actor(part(slice(0, cut)), state, None)
    features, _ = actor(part(slice(cut, None)), state, record)
    found: Tensor = head(hidden(features))
    return found


def scaled(window: Window, variance: float) -> Window:
    """The window with rewards in units of the deviation of the return."""
    deviation = (variance + 1e-8) ** 0.5
    both = (window.rewards, window.previous_rewards)
    rewards, previous = ((each.double() / deviation).clamp(-10.0, 10.0).float() for each in both)
    return replace(window, rewards=rewards, previous_rewards=previous)


def plain_round(model: GTrXLDQN, settings: dict[str, Any]) -> tuple[GTrXLQPolicy, dict[str, float]]:
    """The policy after a round of updates, and what was seen on the way. ``model`` stays as it is."""
    policy, replay = copy.deepcopy(model.policy), copy.deepcopy(replay_of(model))
    policy.set_training_mode(True)
    generator = torch.Generator()
    generator.set_state(model._batch_generator.get_state())
    learned = [parameter for name, parameter in policy.named_parameters() if not name.startswith("target.")]
    for parameter in learned:
        parameter.requires_grad_(True)
    adam = torch.optim.Adam(learned, lr=settings.get("learning_rate", 3e-4))
    n, gamma, rescaled = settings["n_step"], model.gamma, settings.get("value_rescale", False)
    seen = {"clipped": 0.0, "auxiliary": 0.0, "terminal": 0.0, "stops": 0.0, "beyond": 0.0}
    for update in range(1, UPDATES + 1):
        draw = draw_from(replay, BATCH, generator, settings.get("prioritized", False))
        window = replay.gather(draw)
        window = window if model._scale is None else scaled(window, float(model._scale.moments.var))
        record = Record()
        q = values(policy, (policy.actor, policy.action_hidden, policy.action_head), window, record)
        later = values(policy, tuple(policy.target.values()), window).detach()
        best = q.detach().argmax(-1)
        losses: list[Tensor] = []
        for row in range(BATCH):
            sizes = []
            for t in range(SEGMENT):
                if not window.counts[row, t]:
                    seen["stops"] += 1
                    continue
                total, weight = 0.0, 1.0
                for k in range(t, t + n + 1):
                    if k == t + n or not window.counts[row, k]:
                        value = float(later[row, k, best[row, k]])
                        total += weight * (h_inverse(value) if rescaled else value)
                        break
                    total += weight * float(window.rewards[row, k])
                    weight *= gamma
                    if window.terminal[row, k]:
                        seen["terminal"] += 1
                        break
                error = (h(total) if rescaled else total) - q[row, t, int(window.actions[""][row, t]) - 5]
                size = error.abs()
                seen["beyond"] += float(size.detach() > 1)
                losses.append(window.weights[row] * torch.where(size <= 1, size**2 / 2, size - 0.5))
                sizes.append(float(size.detach()))
            if settings.get("prioritized"):
                place = int(draw.rows[row]), int(draw.segments[row]) % replay.segments
                twice = any(
                    (draw.rows[i], draw.segments[i]) == (draw.rows[row], draw.segments[row]) for i in range(row)
                )
                priority = 0.9 * max(sizes) + 0.1 * sum(sizes) / len(sizes)
                replay.priorities[place] = max(priority, float(replay.priorities[place])) if twice else priority
        loss = torch.stack(losses).mean()
        for name, weight in policy.config.loss_weights().items():
            if name in record.losses:
                loss = loss + weight * record.losses[name]
                seen["auxiliary"] += float(record.losses[name].detach())
        adam.zero_grad()
        loss.backward()
        gradients = [parameter.grad for parameter in learned if parameter.grad is not None]
        norm = float(torch.cat([gradient.flatten() for gradient in gradients]).norm())
        bound = settings.get("max_grad_norm", 1.0)
        seen["clipped"] += float(norm > bound)
        for gradient in gradients:
            gradient.mul_(min(1.0, bound / (norm + 1e-6)))
        adam.step()
        with torch.no_grad():
            for name, parameter in policy.named_parameters():
                if name.endswith("span.fraction") and not name.startswith("target."):
                    parameter.clamp_(0.0, 1.0)
        if update % settings["target_update_interval"] == 0:
            tau = settings.get("tau", 1.0)
            own = dict(policy.named_parameters())
            with torch.no_grad():
                for name, parameter in policy.target.named_parameters():
                    parameter.copy_((1 - tau) * parameter + tau * own[name])
    return policy, seen


@pytest.mark.parametrize("name", sorted(CASES))
def test_a_round_of_updates_is_the_plain_loop(name: str) -> None:
    settings = dict(CASES[name])
    model = agent(strolls(), gradient_steps=UPDATES, batch_size=BATCH, **settings)
    collect(model, 90)
    before = [parameter.detach().clone() for parameter in model.policy.parameters()]
    expected, seen = plain_round(model, settings)
    model.train(UPDATES, BATCH)
    # A hundredth of a step of Adam: sums run in another order, and Adam divides by them.
    step = model.policy.optimizer.param_groups[0]["lr"]
    found = dict(model.policy.named_parameters())
    for key, parameter in expected.named_parameters():
        torch.testing.assert_close(found[key].detach(), parameter.detach(), atol=0.02 * step, rtol=1e-5, msg=key)
    assert sum(not torch.equal(a, b) for a, b in zip(before, model.policy.parameters(), strict=True)) > 20
    assert model._n_updates == UPDATES
    # Every rule of the loop had something to do.
    assert seen["terminal"] > 1 and seen["stops"] > 1 and seen["beyond"] > 1
    assert seen["clipped"] == (UPDATES if "max_grad_norm" in settings else seen["clipped"])
    assert seen["auxiliary"] > 0 or name != "spans"


def test_only_the_target_network_stands_still_between_its_moves() -> None:
    model = agent(target_update_interval=3)
    collect(model, 60)
    target = [parameter.clone() for parameter in model.policy.target.parameters()]
    model.train(2, 3)
    assert all(torch.equal(a, b) for a, b in zip(target, model.policy.target.parameters(), strict=True))
    model.train(1, 3)
    for name, module in model.policy.target.items():
        own = dict(getattr(model.policy, name).named_parameters())
        for key, parameter in module.named_parameters():
            assert torch.equal(parameter, own[key])
    assert not any(parameter.requires_grad for parameter in model.policy.target.parameters())


def test_losses_behind_inner_layers_learn_from_the_same_targets() -> None:
    model = agent(backbone={"preset": "calm", "losses": {"exits": 0.5}})
    collect(model, 60)
    replay = replay_of(model)
    logged = train_on(model, replay.gather(draw_from(replay, 3, torch.Generator().manual_seed(0))))
    assert logged["train/exits_loss"] > 0
    assert logged["train/loss"] == pytest.approx(logged["train/td_loss"] + 0.5 * logged["train/exits_loss"], rel=1e-5)
    idle = [
        name
        for name, parameter in model.policy.named_parameters()
        if parameter.requires_grad and parameter.grad is None
    ]
    assert idle == []


def test_every_loss_and_mechanism_trains() -> None:
    """Losses that predict, choosers that learn between updates, masks that adapt: an update moves weights, finite."""
    for backbone in (
        {"preset": "al_rfou", "losses": {"al_rfou": {"weight": 0.5, "future": 0.5}}},
        {"preset": "compressive", "losses": {"compression": 0.3}},
        {"preset": "universal_act"},
        {"selection": {"name": "routing", "clusters": 2, "window": 3}},
    ):
        model = agent(backbone=backbone, burn_in=9)
        collect(model, 40)
        before = torch.nn.utils.parameters_to_vector(model.policy.learned).detach().clone()
        model.train(2, 3)
        after = torch.nn.utils.parameters_to_vector(model.policy.learned).detach()
        assert bool(torch.isfinite(after).all()) and not torch.equal(before, after)


@pytest.mark.parametrize(
    "space",
    [
        spaces.Box(0, 255, (7, 7, 3), np.uint8),
        spaces.MultiBinary(3),
        spaces.Box(0, 60_000, (4,), np.uint16),
        spaces.Box(0, 4_000_000_000, (4,), np.uint32),
        spaces.MultiDiscrete([3, 4], dtype=np.uint16),
    ],
)
def test_observations_of_any_space_are_learned_from_and_saved(space: Any, tmp_path: Path) -> None:
    env = DummyVecEnv([partial(AnySpace, space, spaces.Discrete(4))] * 2)
    model = agent(env, backbone={"layers": 1}, buffer_size=2 * 60).learn(80)
    assert model._n_updates > 3
    model.save(tmp_path / "agent")
    loaded = GTrXLDQN.load(tmp_path / "agent", env, device="cpu")
    assert loaded.learn(8, reset_num_timesteps=False).num_timesteps > 80


def test_a_memoryless_network_learns_with_a_memory_that_is_encoded_again() -> None:
    model = agent(strolls(), backbone={"memory": 0}, memory_refresh="update")
    model.learn(100)
    assert model._n_updates > 0


@pytest.mark.parametrize("what", ["learn", "train"])
def test_learning_and_updates_alone_run_under_autocast(what: str, monkeypatch: pytest.MonkeyPatch) -> None:
    model, under = agent(strolls()), GTrXLDQN
    method = getattr(under, what)

    def lowered(*arguments: Any, **keywords: Any) -> Any:
        with torch.autocast("cpu", torch.bfloat16):
            return method(*arguments, **keywords)

    monkeypatch.setattr(under, what, lowered)
    model.learn(10 * model.n_envs * 6)
    assert model._n_updates > 0
