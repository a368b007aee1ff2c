"""Policies of sb3-contrib's ``RecurrentPPO`` that learn faster, with its LSTMs or, as in POPGym, with GRUs.

Axis letters: T steps, S sequences, L layers, H units, F features.
"""

from typing import Any

import torch
from sb3_contrib.common.recurrent.policies import (
    RecurrentActorCriticCnnPolicy,
    RecurrentActorCriticPolicy,
    RecurrentMultiInputActorCriticPolicy,
)
from torch import Tensor, nn

State = tuple[Tensor, Tensor]


class LSTMPolicy(RecurrentActorCriticPolicy):
    """For vectors of numbers. A sequence in which no episode begins behind its first step is one call of the network.

    sb3-contrib takes a call for every step of a minibatch in which any episode begins; yet its minibatches hold
    sequences that begin with the episode. Results are the same, gradients up to rounding.
    """

    @staticmethod
    def _process_sequence(  # type: ignore[override]  # there the pair of states is annotated as a Tensor
        features: Tensor, lstm_states: State, episode_starts: Tensor, lstm: nn.LSTM
    ) -> tuple[Tensor, State]:
        """Outputs [S * T, H] and the state after the last step, of features [S * T, F] and states [L, S, H]."""
        starts = episode_starts.reshape(lstm_states[0].shape[1], -1)
        if not starts[:, 1:].any():
            going_on = 1 - starts[:, :1]
            lstm_states = (going_on * lstm_states[0], going_on * lstm_states[1])
            episode_starts = torch.zeros_like(episode_starts)
        step_through: Any = RecurrentActorCriticPolicy._process_sequence
        outputs, states = step_through(features, lstm_states, episode_starts, lstm)
        return outputs, states


class CnnLSTMPolicy(LSTMPolicy, RecurrentActorCriticCnnPolicy):
    """For images."""


class MultiInputLSTMPolicy(LSTMPolicy, RecurrentMultiInputActorCriticPolicy):
    """For Dict observations."""


class PairedGRU(nn.GRU):
    """``torch.nn.GRU`` that takes and returns the pair of states of an LSTM; both are its one state [L, S, H]."""

    def forward(self, x: Tensor, state: State) -> tuple[Tensor, State]:  # type: ignore[override]
        outputs, hidden = super().forward(x, state[0])
        return outputs, (hidden, hidden)


class GRUPolicy(LSTMPolicy):
    """For vectors of numbers; has a GRU of the same sizes wherever the policy would have an LSTM."""

    def __init__(self, observation_space: Any, action_space: Any, lr_schedule: Any, *args: Any, **kwargs: Any) -> None:
        super().__init__(observation_space, action_space, lr_schedule, *args, **kwargs)
        for name in ("lstm_actor", "lstm_critic"):
            lstm = getattr(self, name)
            if lstm is not None:
                gru = PairedGRU(lstm.input_size, lstm.hidden_size, num_layers=lstm.num_layers, **self.lstm_kwargs)
                setattr(self, name, gru)
        optimizer_class: type[Any] = self.optimizer_class
        self.optimizer = optimizer_class(self.parameters(), lr=lr_schedule(1), **self.optimizer_kwargs)


class CnnGRUPolicy(GRUPolicy, RecurrentActorCriticCnnPolicy):
    """For images."""


class MultiInputGRUPolicy(GRUPolicy, RecurrentMultiInputActorCriticPolicy):
    """For Dict observations."""


RECURRENT_POLICIES: dict[str, dict[str, type[RecurrentActorCriticPolicy]]] = {
    "lstm": {"vector": LSTMPolicy, "image": CnnLSTMPolicy, "dict": MultiInputLSTMPolicy},
    "gru": {"vector": GRUPolicy, "image": CnnGRUPolicy, "dict": MultiInputGRUPolicy},
}
"""Policies by their cell and the kind of observation."""
