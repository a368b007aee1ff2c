"""The online agents. Inputs: three numbers observed, the previous action and reward."""

import warnings
from collections.abc import Iterable, Sequence
from dataclasses import replace
from pathlib import Path
from typing import Any, Self

import numpy as np
import torch
from jaxtyping import Bool, Float
from torch import Tensor

from rltransformers.agents import GTrXLDQN, GTrXLPPO, GTrXLSAC, GTrXLVMPO
from rltransformers.algorithms.dqn import double_q_values
from rltransformers.algorithms.sac import soft_values
from rltransformers.conformance.adapters import rollouts
from rltransformers.conformance.adapters.rollouts import OBSERVATION, ROLLOUT, Recorder, collected, limited, shaken
from rltransformers.conformance.protocol import Bootstrap, Traits
from rltransformers.data.replay import Window
from rltransformers.data.rollout import Segment
from rltransformers.policies.policy_state import PolicyState, StepInputs
from rltransformers.training.online.off_policy_agent import OffPolicyMemoryAgent

MEMORY, LAYERS, SEGMENT = 4, 2, 8
BACKBONE = {"preset": "gtrxl", "width": 16, "layers": LAYERS, "heads": 2, "memory": MEMORY}
EVERYTHING = {"previous_action": True, "previous_reward": True, "first_step": True}
# The checks show the network rewards themselves.
SETTINGS: dict[str, Any] = {"gamma": rollouts.DISCOUNT, "scale_rewards": False, "seed": 0, "device": "cpu"}
CACHE = "keys and values of the memory"


class _Agent:
    """Base of the online agents: acting is the same code in all of them."""

    inputs = OBSERVATION + 2
    model: Any

    def reset(self, batch: int) -> PolicyState:
        return self._acts().initial_state(batch)

    def step(
        self, inputs: Float[Tensor, "B D"], first: Bool[Tensor, " B"], state: PolicyState
    ) -> tuple[Float[Tensor, "B A"], PolicyState]:
        policy = self._acts()
        observation, action, reward = parts(inputs)
        state = replace(state, previous_action={"": action}, previous_reward=reward)
        policy.check_places(state, first)
        outputs, values, after = policy.network_step({"": observation}, state, first, policy.tables.current())
        return torch.cat([outputs, values[:, None]], -1), after

    def weights(self) -> Iterable[Tensor]:
        return list(self._acts().parameters())

    def renew(self, state: PolicyState) -> PolicyState:
        policy = self._acts()
        return policy.with_cache(policy.without_cache(state))

    def save(self, state: PolicyState, folder: Path) -> None:
        save(self.model, folder / "model.zip")
        torch.save(state.tensors(), folder / "state.pt")

    def load(self, folder: Path) -> tuple[Self, PolicyState]:
        again = object.__new__(type(self))
        again.__dict__.update(vars(self) | {"model": type(self.model).load(folder / "model.zip", device="cpu")})
        return again, PolicyState.from_tensors(torch.load(folder / "state.pt", weights_only=True))

    def resume(self, folder: Path) -> tuple[Tensor, Tensor]:
        model = self.model
        collect_more(model)
        save(model, folder / "run.zip")
        loaded = type(model).load(folder / "run.zip", env=model.env, device="cpu", force_reset=False)
        return self._next_outputs(loaded), self._next_outputs(model)

    def _acts(self, model: Any = None) -> Any:
        return getattr(self.model if model is None else model, "_actor", None) or (model or self.model).policy

    def _next_outputs(self, model: Any) -> Tensor:
        policy = self._acts(model)
        observation, first = torch.as_tensor(model._last_obs), torch.as_tensor(model._last_episode_starts)
        outputs, values, _ = policy.network_step({"": observation}, model.carry.acting, first, policy.tables.current())
        return torch.cat([outputs, values[:, None]], -1)


def save(model: Any, path: Path) -> None:
    """Save ``model`` behind a rollout from which no update learns."""
    with warnings.catch_warnings():
        warnings.filterwarnings("ignore", "saved at step", UserWarning)
        model.save(path)


def collect_more(model: Any) -> Recorder:
    """So many steps that every environment stands in the middle of an episode."""
    if not isinstance(model, OffPolicyMemoryAgent):
        return collected(model, 1)
    recorder = Recorder()
    _, callback = model._setup_learn(10**6, recorder)
    frequency = model.train_freq._replace(frequency=ROLLOUT)  # type: ignore[union-attr]  # it is no number by now
    model.collect_rollouts(model.env, callback, frequency, model.replay_buffer)  # type: ignore[arg-type]
    return recorder


def parts(inputs: Float[Tensor, "*n D"]) -> tuple[Tensor, Tensor, Tensor]:
    """Observation, previous action and previous reward."""
    return inputs[..., :OBSERVATION], rollouts.decoded(inputs[..., OBSERVATION]), inputs[..., OBSERVATION + 1]


def started(inputs: Float[Tensor, "B T D"], start: int) -> Bool[Tensor, "B T"]:
    """Where episodes begin in steps from ``start`` on: at the first of them, if anywhere."""
    first = torch.zeros(inputs.shape[:2], dtype=torch.bool)
    first[:, 0] = start == 0
    return first


class OnPolicyAgent(_Agent):
    """``GTrXLPPO`` or ``GTrXLVMPO``, of which the target acts."""

    def __init__(self, kind: type[GTrXLPPO] | type[GTrXLVMPO]) -> None:
        self.traits = Traits(full=MEMORY * LAYERS, cache=CACHE)
        self.model = kind(
            "GTrXLPolicy", limited(), n_steps=ROLLOUT, policy_kwargs={"backbone": BACKBONE} | EVERYTHING, **SETTINGS
        )
        shaken(self.model.policy.parameters())
        if isinstance(self.model, GTrXLVMPO):
            self.model.target.load_state_dict(self.model.policy.state_dict())

    def segment(
        self, inputs: Float[Tensor, "B T D"], first: Bool[Tensor, "B T"], state: PolicyState
    ) -> Float[Tensor, "B T A"]:
        policy = self._acts()
        observation, action, reward = parts(inputs)
        read = StepInputs({"": observation}, {"": action}, reward, first)
        now = policy.evaluate(read, policy.without_cache(state))
        return torch.cat([now.outputs, now.values[..., None]], -1)

    def log_probabilities(self) -> tuple[Tensor, Tensor]:
        collected(self.model, 2)
        segment = self._newest()
        return segment.log_probs.flatten(), self._acts().evaluate_segment(segment).log_probs.flatten()

    def bootstraps(self) -> Sequence[Bootstrap]:
        recorder = collected(self.model, 2)
        segment = self._newest()
        advantages, values, rewards = (each.numpy() for each in (segment.advantages, segment.values, segment.rewards))
        return rollouts.bootstraps(recorder, rollouts.next_values(advantages, values, rewards))

    def _newest(self) -> Segment:
        segment = self.model.carry.segment
        assert segment is not None
        return segment


class QAgent(_Agent):
    """``GTrXLDQN``, whose training pass begins with the context that the replay brings along."""

    def __init__(self, kind: type[GTrXLDQN] | type[GTrXLSAC] = GTrXLDQN, **settings: Any) -> None:
        self.traits = Traits(
            full=MEMORY * LAYERS,
            continues=False,  # what was remembered is computed again from the steps before a segment
            cache=CACHE,
            exempt={"first ratio is 1": "Q-learning compares no probabilities"},
        )
        self.model = kind(
            next(iter(kind.policy_aliases)),
            limited(),
            buffer_size=300,
            learning_starts=0,
            segment_length=SEGMENT,
            train_freq=ROLLOUT,
            n_step=1,
            policy_kwargs={"backbone": BACKBONE} | EVERYTHING,
            **SETTINGS,
            **settings,
        )
        shaken(self.model.policy.learned)
        self.model.policy.follow(1.0)

    def weights(self) -> Iterable[Tensor]:
        return list(self.model.policy.learned)

    # States are pairs: what the policy remembers, and the steps of the episodes so far [B, t, D], as replay has them.

    def reset(self, batch: int) -> Any:
        return super().reset(batch), torch.zeros(batch, 0, self.inputs)

    def step(self, inputs: Tensor, first: Tensor, state: Any) -> tuple[Tensor, Any]:
        outputs, after = super().step(inputs, first, state[0])
        return outputs, (after, torch.cat([state[1], inputs[:, None]], 1))

    def renew(self, state: Any) -> Any:
        remembered, inputs = state
        context = inputs[:, -self.model.context :]
        start = inputs.shape[1] - context.shape[1]
        window = self._window(context, started(context, start), context.shape[1], start)
        return self.model.policy.acting_state(window, remembered.previous_action, remembered.previous_reward), inputs

    def save(self, state: Any, folder: Path) -> None:
        super().save(state[0], folder)
        torch.save(state[1], folder / "steps.pt")

    def load(self, folder: Path) -> tuple[Self, Any]:
        again, remembered = super().load(folder)
        return again, (remembered, torch.load(folder / "steps.pt", weights_only=True))

    def segment(self, inputs: Tensor, first: Tensor, state: Any) -> Tensor:
        return self._evaluated(self._window(inputs, first, context=0, start=0))

    def lookback(self, step: int) -> int:
        return min(step, self.model.context) + 1

    def window(self, inputs: Tensor, start: int) -> Tensor:
        return self._evaluated(self._window(inputs, started(inputs, start), inputs.shape[1] - 1, start))

    def _window(self, inputs: Tensor, first: Tensor, context: int, start: int) -> Window:
        observation, action, reward = parts(inputs)
        rows, steps = inputs.shape[0], inputs.shape[1] - context
        none = torch.zeros(rows, steps, dtype=torch.bool)
        return Window(
            observations={"": observation},
            previous_actions={"": action},
            previous_rewards=reward,
            first=first,
            position=torch.full((rows,), start),
            actions={"": action[:, context:]},
            rewards=reward[:, context:],
            terminal=none,
            counts=~none,
            weights=torch.ones(rows),
            context=context,
        )

    def _evaluated(self, window: Window) -> Tensor:
        q = self.model.policy.evaluate_window(window).q
        return torch.cat([q, q.amax(-1, keepdim=True)], -1)

    def bootstraps(self) -> Sequence[Bootstrap]:
        replay, found = self.model.replay_buffer, []
        assert replay is not None
        newest = replay.written.copy()
        recorder = collect_more(self.model)
        for (row, step), last in sorted(recorder.last.items()):
            newest[row] += 1  # a last observation is a row of its own
            place = int(newest[row]) + step
            begin = place // SEGMENT * SEGMENT
            drawn = replay.window(np.array([row]), np.array([begin]), SEGMENT + 1, torch.ones(1))
            window = self.model._normalized(drawn.trimmed())
            value = float(self._bootstrap(window)[0, place - begin])
            where = f"environment {row}, time limit at step {step}"
            found.append(Bootstrap(recorder.inputs(row, step, last), value, where))
        return found

    def _bootstrap(self, window: Window) -> Tensor:
        policy = self.model.policy
        return double_q_values(policy.evaluate_window(window).q, policy.evaluate_window(window, target=True).q)


class SoftAgent(QAgent):
    """``GTrXLSAC``; without entropy, whose share in a bootstrap is no part of the value that acting says."""

    def __init__(self) -> None:
        super().__init__(GTrXLSAC, ent_coef=0.0)

    def _evaluated(self, window: Window) -> Tensor:
        policy = self.model.policy
        outputs = policy.window_outputs(policy.features(window, policy.actor), window)
        drawn = policy.action_head.drawn(outputs)
        q = policy.critics(policy.features(window, policy.trunk), drawn.boxes)
        return torch.cat([outputs, (drawn.log_probs.exp() * q.amin(-2)).sum(-1, keepdim=True)], -1)

    def _bootstrap(self, window: Window) -> Tensor:
        policy = self.model.policy
        outputs = policy.window_outputs(policy.features(window, policy.actor), window)
        drawn = policy.action_head.drawn(outputs)
        q = policy.target_values(policy.features(window, policy.target_trunk), drawn)
        return soft_values(q, drawn.log_probs, drawn.log_density, torch.zeros(()))
