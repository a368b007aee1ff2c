"""Updates of the Decision Transformer equal a plain loop: tokens, loss, clipping, AdamW, bounds, learning rate.

Axes: B windows, K steps of a window.
"""

import copy
import math
from typing import Any

import numpy as np
import pytest
import torch
from gymnasium import spaces
from torch import Tensor

from rltransformers.agents import DecisionTransformer
from rltransformers.backbone import Record
from rltransformers.data import ContextBatch, Trajectories, load_trajectories
from rltransformers.data.sampler import EVERYTHING
from rltransformers.policies.decision_network import DecisionPolicy

WINDOWS, CONTEXT = 6, 5
LENGTHS = (3, 9, 4, 2, 8)  # some shorter than a window: padding must be nowhere in the loss
SETTINGS: dict[str, Any] = {
    "learning_rate": 0.04,
    "weight_decay": 0.9,
    "warmup_steps": 3,
    "decay_steps": 7,
    "max_grad_norm": 0.1,
    "discount": 0.9,
}
BACKBONE: dict[str, Any] = {
    "width": 16,
    "layers": 2,
    "heads": 2,
    "dropout": 0.0,
    "span": [{"name": "adaptive", "ramp": 3.0, "initial": start} for start in (0.0, 1.0)],
    "losses": {"span": 0.6},
}
BOX = spaces.Box(np.array([-2, 1], np.float32), np.array([2, 7], np.float32))


def episodes(kind: str) -> Trajectories:
    """Random numbers; observations and rewards far from mean 0 and deviation 1."""
    space: spaces.Space[Any] = BOX if kind == "real" else spaces.Discrete(3, start=4)
    generator = np.random.default_rng(7)
    space.seed(7)
    recorded = [
        {
            "observations": generator.normal([3, -40, 0.2], [2, 9, 0.1], (n + 1, 3)).astype(np.float32),
            "actions": np.array([space.sample() for _ in range(n)]),
            "rewards": generator.normal(2, 3, n),
            "terminations": np.arange(n) == n - 1,
            "truncations": np.zeros(n, bool),
        }
        for n in LENGTHS
    ]
    observation = spaces.Box(-np.inf, np.inf, (3,), np.float32)
    return load_trajectories(recorded, observation_space=observation, action_space=space, name="random")


class Plain:
    """The steps of the data, one by one, in float64."""

    def __init__(self, data: Trajectories, discount: float) -> None:
        self.observations: list[np.ndarray] = []
        self.actions: list[Any] = []
        self.return_to_go: list[float] = []
        self.remaining: list[int] = []
        self.timestep: list[int] = []
        for index in range(len(data)):
            episode = data.episode(index)
            rewards = episode.rewards.astype(np.float64)
            for t in range(len(episode)):
                self.observations.append(episode.observations[""][t].astype(np.float64))
                self.actions.append(episode.actions[""][t])
                self.return_to_go.append(sum(discount ** (k - t) * rewards[k] for k in range(t, len(rewards))))
                self.remaining.append(len(rewards) - t)
                self.timestep.append(t)
        self.mean, self.deviation = np.mean(self.observations, 0), np.std(self.observations, 0)
        self.scale = math.sqrt(np.mean(np.square(self.return_to_go)))

    def windows(self, batch: ContextBatch) -> list[list[int]]:
        """The steps of every window, found by their observations."""
        found = []
        for b in range(WINDOWS):
            length = int(batch.valid[b].sum())
            numbers = batch.observations[""][b, 0].numpy()
            first = next(
                n for n, row in enumerate(self.observations) if np.array_equal(row.astype(np.float32), numbers)
            )
            assert length == CONTEXT or self.timestep[first] == 0 or length == self.remaining[first]
            found.append(list(range(first, first + min(length, self.remaining[first]))))
        return found


def plain_loss(policy: DecisionPolicy, data: Plain, windows: list[list[int]], mode: str) -> Tensor:
    """Mean error of the actions of all steps, every window alone and without padding, plus weighted auxiliary losses.

    The loss of spans is that of the parameters, so any window gives it.
    """
    head, group, errors = policy.head, 3 if mode == "dt" else 2, []
    for window in windows:
        tokens, times = [], []
        for n in window:
            if mode == "dt":
                assert policy.embed_return is not None
                tokens.append(policy.embed_return(torch.tensor([data.return_to_go[n] / data.scale]).float()))
            observation = (data.observations[n] - data.mean) / data.deviation
            assert policy.encoder is not None
            tokens.append(policy.encoder({"": torch.as_tensor(observation).float()[None]})[0])
            tokens.append(head.embed({"": torch.as_tensor(data.actions[n])[None]})[0])
            times += [data.timestep[n]] * group
        record = Record()
        features, _ = policy.backbone(torch.stack(tokens)[None], timestep=torch.tensor(times)[None], record=record)
        for place, n in enumerate(window):
            output = head.linear(features[0, place * group + group - 2])
            if isinstance(policy.head.spaces[""], spaces.Box):
                wanted = torch.as_tensor((data.actions[n] - (BOX.low + BOX.high) / 2) / ((BOX.high - BOX.low) / 2))
                errors.append((output.tanh() - wanted).square().mean())
            else:
                errors.append(output.exp().sum().log() - output[int(data.actions[n]) - 4])
    losses = [weight * record.losses[name] for name, weight in BACKBONE["losses"].items()]
    return torch.stack(errors).mean() + torch.stack(losses).sum()


def parameters(policy: DecisionPolicy) -> dict[str, Tensor]:
    """Copies, by name."""
    return {name: parameter.detach().clone() for name, parameter in policy.named_parameters()}


def plain_rate(update: int) -> float:
    """Warm-up over 3 updates, then a cosine to a tenth at the 7th."""
    if update < 3:
        return 0.04 * (update + 1) / 3
    return 0.04 * max(0.1, (1 + math.cos(math.pi * min(1.0, (update - 3) / 4))) / 2)


@pytest.mark.parametrize(("kind", "mode"), [("real", "dt"), ("counted", "dt"), ("real", "bc")])
def test_the_parameters_after_some_updates_are_those_of_a_plain_loop(kind: str, mode: str) -> None:
    data, updates = episodes(kind), 6
    settings = SETTINGS | ({"discount": 1.0} if mode == "bc" else {})
    model = DecisionTransformer(
        "DTPolicy", data, context_length=CONTEXT, batch_size=WINDOWS, seed=1, device="cpu", mode=mode,  # type: ignore[arg-type]
        policy_kwargs={"backbone": BACKBONE}, **settings,
    )  # fmt: skip
    plain, policy = Plain(data, settings["discount"]), copy.deepcopy(model.policy)
    adam = torch.optim.AdamW(policy.parameters(), lr=1.0, weight_decay=settings["weight_decay"])
    assert model._sampler is not None
    batches: list[ContextBatch] = []
    draw = model._sampler.sample

    def watch(batch_size: int, generator: torch.Generator, part: slice = EVERYTHING) -> ContextBatch:
        batches.append(draw(batch_size, generator, part))
        return batches[-1]

    model._sampler.sample = watch  # type: ignore[method-assign]
    model.learn(updates)
    assert len(batches) == updates and not torch.equal(batches[0].timestep, batches[1].timestep)
    start = parameters(policy)
    norms, bounded = [], 0.0
    for update, batch in enumerate(batches):
        assert not bool(batch.valid.all())
        adam.zero_grad()
        plain_loss(policy, plain, plain.windows(batch), mode).backward()
        gradients = [parameter.grad for parameter in policy.parameters() if parameter.grad is not None]
        norms.append(float(torch.cat([gradient.flatten() for gradient in gradients]).norm()))
        for gradient in gradients:
            gradient.mul_(min(1.0, settings["max_grad_norm"] / norms[-1]))
        adam.param_groups[0]["lr"] = plain_rate(update)
        adam.step()
        with torch.no_grad():
            for name, parameter in policy.named_parameters():
                if name.endswith("span.fraction"):
                    inside = parameter.clamp(0.0, 1.0)
                    bounded = max(bounded, float((parameter - inside).abs().max()))
                    parameter.copy_(inside)
    # A hundredth of the largest step of Adam: sums run in another order, and Adam divides by what may be small.
    torch.testing.assert_close(parameters(model.policy), parameters(policy), atol=4e-4, rtol=1e-4)
    assert min(norms) > settings["max_grad_norm"] and bounded > 1e-3
    assert sum(not torch.equal(start[name], value) for name, value in model.policy.named_parameters()) > 20
