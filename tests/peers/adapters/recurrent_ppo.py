"""``RecurrentPPO`` of sb3-contrib: an LSTM for the actor and one for the critic, as it makes them by default."""

from collections.abc import Iterable, Sequence
from pathlib import Path
from typing import Any, Self

import numpy as np
import torch
from jaxtyping import Bool, Float
from sb3_contrib import RecurrentPPO
from sb3_contrib.common.recurrent.type_aliases import RNNStates
from torch import Tensor

from rltransformers.conformance.adapters.rollouts import (
    DISCOUNT,
    OBSERVATION,
    ROLLOUT,
    bootstraps,
    collected,
    limited,
    next_values,
    shaken,
)
from rltransformers.conformance.protocol import Bootstrap, Traits

HIDDEN = 16


class RecurrentPPOPolicy:
    """Outputs: logits and value. The state is what ``RecurrentActorCriticPolicy.forward`` takes and returns."""

    inputs = OBSERVATION
    padding = "right"

    def __init__(self, **policy_kwargs: Any) -> None:
        self.traits = Traits(full=None)
        self.model = RecurrentPPO(
            "MlpLstmPolicy",
            limited(),
            n_steps=ROLLOUT,
            batch_size=10,  # sequences are cut in their middle, as they are with the default of 128 steps
            gamma=DISCOUNT,
            policy_kwargs={"lstm_hidden_size": HIDDEN, "net_arch": [HIDDEN], **policy_kwargs},
            seed=0,
            device="cpu",
        )
        shaken(self.model.policy.parameters())

    @property
    def policy(self) -> Any:
        return self.model.policy

    def reset(self, batch: int) -> RNNStates:
        zeros = [torch.zeros(1, batch, HIDDEN) for _ in range(4)]
        return RNNStates((zeros[0], zeros[1]), (zeros[2], zeros[3]))

    def step(
        self, inputs: Float[Tensor, "B D"], first: Bool[Tensor, " B"], state: RNNStates
    ) -> tuple[Float[Tensor, "B A"], RNNStates]:
        distribution, _ = self.policy.get_distribution(inputs, state.pi, first.float())
        _, values, _, after = self.policy(inputs, state, first.float())
        return torch.cat([distribution.distribution.logits, values], -1), after

    def segment(
        self, inputs: Float[Tensor, "B T D"], first: Bool[Tensor, "B T"], state: RNNStates
    ) -> Float[Tensor, "B T A"]:
        rows, steps = first.shape
        flat, starts = inputs.flatten(0, 1), first.float().flatten()
        # ``evaluate_actions`` tells the log-probability of one action: of all of them, these are the logits.
        logits = [
            self.policy.evaluate_actions(flat, torch.full((rows * steps,), action), state, starts)[1]
            for action in range(int(self.model.action_space.n))  # type: ignore[attr-defined]  # it is Discrete
        ]
        values = self.policy.evaluate_actions(flat, torch.zeros(rows * steps), state, starts)[0].flatten()
        return torch.stack([*logits, values], -1).unflatten(0, (rows, steps))

    def pad(self, inputs: Float[Tensor, "B T D"], valid: Bool[Tensor, "B T"]) -> Float[Tensor, "B T A"]:
        first = torch.zeros_like(valid)
        first[:, 0] = True
        return self.segment(inputs, first, self.reset(inputs.shape[0]))

    def weights(self) -> Iterable[Tensor]:
        return list(self.policy.parameters())

    def save(self, state: RNNStates, folder: Path) -> None:
        self.model.save(folder / "model.zip")
        torch.save([*state.pi, *state.vf], folder / "state.pt")

    def load(self, folder: Path) -> tuple[Self, RNNStates]:
        again = object.__new__(type(self))
        again.traits, again.model = self.traits, RecurrentPPO.load(folder / "model.zip", device="cpu")
        states = torch.load(folder / "state.pt", weights_only=True)
        return again, RNNStates((states[0], states[1]), (states[2], states[3]))

    def resume(self, folder: Path) -> tuple[Tensor, Tensor]:
        collected(self.model, 1)
        self.model.save(folder / "run.zip")
        loaded = RecurrentPPO.load(folder / "run.zip", env=self.model.env, device="cpu", force_reset=False)
        return tuple(self._next_outputs(model) for model in (loaded, self.model))  # type: ignore[return-value]

    def _next_outputs(self, model: Any) -> Tensor:
        starts = torch.as_tensor(model._last_episode_starts).float()
        return model.policy(torch.as_tensor(model._last_obs), model._last_lstm_states, starts, deterministic=True)[1]

    def log_probabilities(self) -> tuple[Tensor, Tensor]:
        collected(self.model, 2)
        acted, trained = [], []
        buffer: Any = self.model.rollout_buffer  # SB3 declares its own, without sequences
        for batch in buffer.get(self.model.batch_size):
            _, now, _ = self.policy.evaluate_actions(
                batch.observations, batch.actions.long().flatten(), batch.lstm_states, batch.episode_starts
            )
            real = batch.mask > 1e-8
            acted.append(batch.old_log_prob[real])
            trained.append(now[real])
        return torch.cat(acted), torch.cat(trained)

    def bootstraps(self) -> Sequence[Bootstrap]:
        recorder, buffer = collected(self.model, 2), self.model.rollout_buffer
        # Rewards of the environment: those in the buffer have the value behind a time limit added.
        rewards = np.stack(recorder.rewards[-ROLLOUT:])
        values = next_values(buffer.advantages, buffer.values, rewards).T
        return bootstraps(recorder, values, lambda inputs: inputs[:, :OBSERVATION])
