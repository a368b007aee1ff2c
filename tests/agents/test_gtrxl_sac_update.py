"""One update of soft actor-critic equals a plain loop, and without memory that of Stable-Baselines3's SAC."""

import copy
import math
from typing import Any
from unittest.mock import patch

import pytest
import torch
from gymnasium import spaces
from stable_baselines3 import SAC
from stable_baselines3.common.logger import Logger
from stable_baselines3.common.type_aliases import ReplayBufferSamples
from torch import Tensor

from rltransformers.data.replay import Window
from rltransformers.policies.policy_state import StepInputs
from tests.agents.replayed import SEGMENT, collect, draw_from, replay_of, train_on
from tests.agents.soft import BOX, SPACES, soft, walks
from tests.agents.tiny_envs import AnySpace

BATCH = 3


def rows_after(part: Any, window: Window) -> Tensor:
    """Features of the rows behind the context of a window, from a state that the context alone has made."""
    steps: list[Any] = [window.observations, window.previous_actions, window.previous_rewards, window.first]

    def inputs(of: slice) -> StepInputs:
        leaves = [{path: leaf[:, of] for path, leaf in each.items()} for each in steps[:2]]
        return StepInputs(leaves[0], leaves[1], steps[2][:, of], steps[3][:, of])

    state = part.backbone.initial_state(len(window.position))
    state.tensors["position"] = window.position - 1
    with torch.no_grad():
        _, state = part(inputs(slice(0, window.context)), state, None)
    found: Tensor = part(inputs(slice(window.context, None)), state, None)[0]
    return found


def plain_normal(output: Tensor, noise: Tensor) -> tuple[Tensor, Tensor]:
    """A sample of tanh(normal) and its log-density, by torch's distributions."""
    mean, log_std = output.chunk(2, -1)
    normal = torch.distributions.Normal(mean, log_std.clamp(-20, 2).exp())
    transformed = torch.distributions.TransformedDistribution(normal, [torch.distributions.TanhTransform(cache_size=1)])
    u = mean + log_std.clamp(-20, 2).exp() * noise
    action = transformed.transforms[0](u)
    return action, transformed.log_prob(action).sum(-1)


class Plain:
    """What the policy does at one row, leaf by leaf of the space, and what critics say about it."""

    def __init__(self, name: str, output: Tensor, noise: Tensor) -> None:
        self.boxes, self.density = torch.zeros(0), torch.zeros(())
        self.logs = [torch.zeros(())]
        if name == "box":
            self.boxes, self.density = plain_normal(output, noise)
        elif name == "choices":
            self.logs = self.combined(output[:2], output[2:])
        else:  # a Box of two, a choice of three, two bits, a Box of one
            first, self.density = plain_normal(output[:4], noise[:2])
            second, more = plain_normal(output[9:], noise[2:])
            self.boxes, self.density = torch.cat([first, second]), self.density + more
            bits = [torch.stack([torch.zeros(()), output[i]]) for i in (7, 8)]
            self.logs = self.combined(output[4:7], *bits)

    @staticmethod
    def combined(*logits: Tensor) -> list[Tensor]:
        logs = [torch.zeros(())]
        for part in logits:
            logs = [a + b for a in logs for b in part.log_softmax(-1)]
        return logs

    def worth(self, critics: list[Any], z: Tensor, temperature: float) -> Tensor:
        q = [critic(torch.cat([z, self.boxes])) for critic in critics]
        total = torch.zeros(())
        for j, log in enumerate(self.logs):
            total = total + log.exp() * (
                torch.stack([each[j] for each in q]).min() - temperature * (log + self.density)
            )
        return total

    def entropy(self) -> Tensor:
        return -torch.stack([log.exp() * log for log in self.logs]).sum() - self.density


def taken(name: str, window: Window, row: int, t: int) -> tuple[Tensor, int]:
    """Numbers of the Boxes and the number of the combination in a row of the replay."""
    actions = {path: leaf[row, t] for path, leaf in window.actions.items()}
    if name == "box":
        return actions[""], 0
    if name == "choices":
        first, second = (int(each) for each in actions[""])
        return torch.zeros(0), (first - 4) * 3 + second
    bits = [int(each) for each in actions["c"]]
    index = ((int(actions["b"]) - 5) * 2 + bits[0]) * 2 + bits[1]
    return torch.cat([actions["a"].flatten(), actions["d"].flatten()]), index


@pytest.mark.parametrize("shared", [False, True])
@pytest.mark.parametrize("name", sorted(SPACES))
def test_an_update_is_the_plain_loop(name: str, shared: bool) -> None:
    n, gamma, bound, rate, tau = 2, 0.9, 0.5, 1e-3, 0.1
    settings: dict[str, Any] = {"gamma": gamma, "max_grad_norm": bound, "learning_rate": rate, "tau": tau, "n_step": n}
    policy_settings = {"shared_backbone": shared, "n_critics": 3, "layer_norm": True}
    model = soft(walks(SPACES[name]), policy=policy_settings, target_critics=2, batch_size=BATCH, **settings)
    collect(model, 90)
    plain = copy.deepcopy(model.policy)
    generator = torch.Generator()
    generator.set_state(model._batch_generator.get_state())
    replay = replay_of(model)
    window = replay.gather(draw_from(replay, BATCH, generator))
    width = {"box": 2, "choices": 0, "mixed": 3}[name]
    noise = torch.randn((BATCH, SEGMENT + n, width), generator=generator)
    chosen = torch.randperm(3, generator=generator)[:2].tolist()
    model.train(1, BATCH)

    plain.set_training_mode(True)
    actor, critic = plain.actor, plain.actor if shared else plain.critic
    head, critics, slow = plain.action_head.linear, list(plain.critics.each), plain.target
    slow_trunk: Any = slow["actor" if shared else "critic"]
    slow_critics = [list(slow["critics"].each)[i] for i in chosen]  # type: ignore[arg-type]
    z, z_slow = rows_after(critic, window), rows_after(slow_trunk, window)
    features = z.detach() if shared else rows_after(actor, window)
    outputs = head(plain.action_hidden(features))
    temperature = 1.0  # "auto" begins there
    done = {"critic": 0.0, "terminal": 0, "stops": 0}
    losses: list[Tensor] = []
    for row in range(BATCH):
        for t in range(SEGMENT):
            if not window.counts[row, t]:
                done["stops"] += 1
                continue
            target, weight = 0.0, 1.0
            for k in range(t, t + n + 1):
                if k == t + n or not window.counts[row, k]:
                    there = Plain(name, outputs[row, k].detach(), noise[row, k])
                    target += weight * float(there.worth(slow_critics, z_slow[row, k], temperature).detach())
                    break
                target += weight * float(window.rewards[row, k])
                weight *= gamma
                if window.terminal[row, k]:
                    done["terminal"] += 1
                    break
            boxes, index = taken(name, window, row, t)
            q = [each(torch.cat([z[row, t], boxes]))[index] for each in critics]
            losses.append(torch.stack([0.5 * (one - target) ** 2 for one in q]).sum())
    assert done["terminal"] > 0 and done["stops"] > 0
    of_critic = [*plain.critics.parameters(), *critic.parameters()]  # type: ignore[union-attr]
    of_actor = [*plain.action_hidden.parameters(), *head.parameters(), *([] if shared else actor.parameters())]
    trunks = {id(each) for part in (actor, critic) for each in part.parameters()}  # type: ignore[union-attr]

    def step(loss: Tensor, parameters: list[Any], more: bool) -> None:
        gradients = torch.autograd.grad(loss, parameters, retain_graph=more, allow_unused=True)
        norm = float(torch.stack([g.square().sum() for g in gradients if g is not None]).sum().sqrt())
        with torch.no_grad():
            for parameter, gradient in zip(parameters, gradients, strict=True):
                if gradient is not None:
                    clipped = gradient * min(1.0, bound / (norm + 1e-6))
                    own = rate * (0.3 if id(parameter) in trunks else 1.0)
                    parameter -= own * clipped / (clipped.abs() + 1e-8)  # the first step of Adam

    critic_loss = torch.stack(losses).mean()
    step(critic_loss, of_critic, True)
    worths, entropies = [], []
    for row in range(BATCH):
        for t in range(SEGMENT):
            if window.counts[row, t]:
                here = Plain(name, outputs[row, t], noise[row, t])
                worths.append(here.worth(critics, z[row, t].detach(), temperature))
                entropies.append(here.entropy())
    step(-torch.stack(worths).mean(), of_actor, False)
    with torch.no_grad():
        own = dict(plain.named_parameters())
        for key, parameter in plain.target.named_parameters():
            parameter.copy_((1 - tau) * parameter + tau * own[key])
    found = dict(model.policy.named_parameters())
    for key, parameter in plain.named_parameters():
        # Adam's first step is its rate with the sign of a gradient: of one near 0 rounding decides.
        apart = (found[key] - parameter).abs()
        assert float((apart > 0.02 * rate).float().mean()) < 0.01, key
    logged, worth = model.logger.name_to_value, float(torch.stack(worths).detach().mean())
    assert logged["train/critic_loss"] == pytest.approx(float(critic_loss.detach()), rel=1e-5)
    assert logged["train/actor_loss"] == pytest.approx(-worth, rel=1e-5)
    aim = {"box": -2.0, "choices": 0.686 * math.log(6), "mixed": 0.686 * math.log(12) - 3.0}[name]
    mean = float(torch.stack(entropies).detach().mean())
    assert logged["train/entropy"] == pytest.approx(mean, rel=1e-5)
    sign = math.copysign(1.0, mean - aim)  # a policy that is too certain gets a higher temperature
    assert float(model.temperature.log_ent_coef.detach()) == pytest.approx(-rate * sign, rel=1e-3)


@pytest.mark.parametrize("ent_coef", ["auto_0.3", 0.3])
def test_without_memory_it_is_the_sac_of_stable_baselines(ent_coef: str | float) -> None:
    """Losses, and weights after three updates, in float64: segments of one step whose features are the observation."""
    observation = spaces.Box(-1.0, 1.0, (4,))
    env = AnySpace(observation, BOX)
    theirs = SAC(
        "MlpPolicy", env, batch_size=16, ent_coef=ent_coef, gamma=0.9, tau=0.05, policy_kwargs={"net_arch": [24, 24]},
        seed=1, device="cpu",
    )  # fmt: skip
    theirs.set_logger(Logger(None, []))
    ours = soft(
        env,
        {"width": 4, "heads": 1, "layers": 1, "memory": 0},
        {"previous_action": False, "previous_reward": False, "first_step": False},
        segment_length=1,
        n_step=1,
        batch_size=16,
        ent_coef=ent_coef,
        gamma=0.9,
        tau=0.05,
        max_grad_norm=1e9,
        buffer_size=100,
    )
    collect(ours, 5)
    theirs.policy.double(), ours.policy.double(), ours.temperature.double()
    theirs.actor.action_dist.epsilon = 0.0  # of their logarithm, which ours does not need
    parts: list[Any] = [theirs.actor, theirs.critic, theirs.critic_target]
    for part in parts:  # which would make float32 of it
        part.extract_features = lambda observation, extractor: observation
    if isinstance(ent_coef, str):
        theirs.log_ent_coef.data = theirs.log_ent_coef.data.double()  # type: ignore[union-attr]
    else:
        theirs.ent_coef_tensor = theirs.ent_coef_tensor.double()
    copy_weights(theirs, ours)
    generator = torch.Generator().manual_seed(0)

    def drawn(*shape: int) -> Tensor:
        return torch.rand(shape, generator=generator, dtype=torch.float64) * 2 - 1

    with patch.object(ours.policy, "features", lambda window, *_: window.observations[""]):
        ours._normalized = lambda window: window  # type: ignore[method-assign]
        ours._renew_memory = lambda replay: None  # type: ignore[method-assign]
        for _ in range(3):
            rows, noise = drawn(16, 2, 4), drawn(16, 2, 2)
            actions, rewards, ends = drawn(16, 2, 2), drawn(16, 2), drawn(16, 2) > 0
            false = torch.zeros(16, 2, dtype=torch.bool)
            window = Window(
                observations={"": rows},
                previous_actions={"": actions},
                previous_rewards=rewards,
                first=false,
                position=torch.zeros(16, dtype=torch.long),
                actions={"": actions},
                rewards=rewards,
                terminal=ends,
                counts=~false,
                weights=torch.ones(16),
                context=0,
            )
            ours._noise = lambda *_, noise=noise: noise  # type: ignore[method-assign]
            metrics = dict(train_on(ours, window))
            samples = ReplayBufferSamples(rows[:, 0], actions[:, 0], rows[:, 1], ends[:, :1].double(), rewards[:, :1])
            numbers = iter([noise[:, 0], noise[:, 1]])
            with (
                patch.object(theirs.replay_buffer, "sample", lambda *_, samples=samples, **__: samples),
                patch.object(
                    torch.distributions.Normal,
                    "rsample",
                    lambda self, *_, numbers=numbers: self.loc + self.scale * next(numbers),
                ),
            ):
                theirs.train(1, 16)
            for name in ("actor_loss", "critic_loss", "ent_coef"):
                assert metrics[f"train/{name}"] == pytest.approx(theirs.logger.name_to_value[f"train/{name}"], abs=1e-6)
            assert ("train/ent_coef_loss" in metrics) is isinstance(ent_coef, str)
            if isinstance(ent_coef, str):
                expected = theirs.logger.name_to_value["train/ent_coef_loss"]
                assert metrics["train/ent_coef_loss"] == pytest.approx(expected, abs=1e-6)
            ours.logger.name_to_value.clear()
            theirs.logger.name_to_value.clear()
            theirs.logger.name_to_count.clear()
    other = copy.deepcopy(ours)
    copy_weights(theirs, other)
    for ours_now, theirs_now in zip(ours.policy.parameters(), other.policy.parameters(), strict=True):
        torch.testing.assert_close(ours_now, theirs_now, atol=1e-6, rtol=0)
    torch.testing.assert_close(ours.temperature.log_ent_coef, other.temperature.log_ent_coef, atol=1e-6, rtol=0)


def copy_weights(theirs: SAC, ours: Any) -> None:
    """Weights of a SAC of Stable-Baselines3 into ours."""
    policy, actor = ours.policy, theirs.actor
    pairs: list[Any] = [(policy.critics, theirs.critic), (policy.target["critics"], theirs.critic_target)]
    last: Any = actor
    with torch.no_grad():
        for mine, other in zip(policy.action_hidden.parameters(), actor.latent_pi.parameters(), strict=True):
            mine.copy_(other)
        policy.action_head.linear.weight.copy_(torch.cat([last.mu.weight, last.log_std.weight]))
        policy.action_head.linear.bias.copy_(torch.cat([last.mu.bias, last.log_std.bias]))
        for own, theirs_now in pairs:
            for a, b in zip(own.parameters(), theirs_now.parameters(), strict=True):
                a.copy_(b)
        if theirs.log_ent_coef is not None:
            ours.temperature.log_ent_coef.copy_(theirs.log_ent_coef[0])
