"""Policies of sb3-contrib's ``RecurrentPPO`` with GRUs in place of its LSTMs: a baseline, as in POPGym.

Axis letters: T steps, B sequences, L layers, H units.
"""

from typing import Any

from sb3_contrib.common.recurrent.policies import (
    RecurrentActorCriticCnnPolicy,
    RecurrentActorCriticPolicy,
    RecurrentMultiInputActorCriticPolicy,
)
from torch import Tensor, nn

State = tuple[Tensor, Tensor]


class PairedGRU(nn.GRU):
    """``torch.nn.GRU`` that takes and returns the pair of states of an LSTM; both are its one state [L, B, H]."""

    def forward(self, x: Tensor, state: State) -> tuple[Tensor, State]:  # type: ignore[override]
        """Outputs [T, B, H] and the state after the last step, twice; of ``state`` the first is read."""
        outputs, hidden = super().forward(x, state[0])
        return outputs, (hidden, hidden)


class _WithGRU(RecurrentActorCriticPolicy):
    """Has a GRU of the same sizes wherever the policy would have an LSTM."""

    def __init__(self, observation_space: Any, action_space: Any, lr_schedule: Any, *args: Any, **kwargs: Any) -> None:
        super().__init__(observation_space, action_space, lr_schedule, *args, **kwargs)
        for name in ("lstm_actor", "lstm_critic"):
            lstm = getattr(self, name)
            if lstm is not None:
                setattr(self, name, self._gru(lstm))
        optimizer_class: type[Any] = self.optimizer_class
        self.optimizer = optimizer_class(self.parameters(), lr=lr_schedule(1), **self.optimizer_kwargs)

    def _gru(self, lstm: nn.LSTM) -> PairedGRU:
        return PairedGRU(lstm.input_size, lstm.hidden_size, num_layers=lstm.num_layers, **self.lstm_kwargs)


class GRUPolicy(_WithGRU):
    """For vectors of numbers."""


class CnnGRUPolicy(_WithGRU, RecurrentActorCriticCnnPolicy):
    """For images."""


class MultiInputGRUPolicy(_WithGRU, RecurrentMultiInputActorCriticPolicy):
    """For Dict observations."""
