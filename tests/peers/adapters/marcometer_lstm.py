"""MarcoMeter's ``recurrent-ppo-truncated-bptt`` with an LSTM: its trainer and buffer."""

from collections.abc import Iterable, Sequence
from typing import Any

import numpy as np
import torch
from jaxtyping import Bool, Float
from torch import Tensor

from rltransformers.conformance.adapters.rollouts import ACTIONS, OBSERVATION
from rltransformers.conformance.protocol import Bootstrap, Traits
from tests.peers.adapters.marcometer import EXEMPT, Environment, ends_of_rollout, trainer

HIDDEN, SEQUENCE = 16, 8
State = tuple[Tensor, Tensor]


class MarcoMeterLstmPolicy:
    """Outputs: logits and value. The training pass is of the sequences that the buffer cuts and pads."""

    inputs = OBSERVATION

    def __init__(self) -> None:
        padded = {"padding does not matter": "the buffer pads sequences by itself, in step = segment"}
        self.traits = Traits(full=None, exempt=EXEMPT | padded)
        recurrence = {"layer_type": "lstm", "hidden_state_size": HIDDEN, "sequence_length": SEQUENCE}
        self.trainer = trainer(hidden_layer_size=HIDDEN, recurrence=recurrence | {"reset_hidden_state": True})
        self.net = self.trainer.model

    def reset(self, batch: int) -> State:
        return torch.zeros(1, batch, HIDDEN), torch.zeros(1, batch, HIDDEN)

    def step(
        self, inputs: Float[Tensor, "B D"], first: Bool[Tensor, " B"], state: State
    ) -> tuple[Float[Tensor, "B A"], State]:
        begun = tuple(each * ~first[:, None] for each in state)
        policy, value, after = self.net(inputs, begun, "cpu")
        return torch.cat([policy[0].logits, value[:, None]], -1), after

    def segment(self, inputs: Float[Tensor, "B T D"], first: Bool[Tensor, "B T"], state: State) -> Tensor:
        rows, steps = first.shape
        config = self.trainer.config | {"n_workers": rows, "worker_steps": steps}
        buffer = type(self.trainer.buffer)(config, Environment.observation_space, (ACTIONS,), "cpu")
        buffer.obs[:] = inputs
        buffer.dones[:, :-1] = first[:, 1:].numpy()
        for t in range(steps):
            begun = [each * ~first[:, t, None] for each in state]
            buffer.hxs[:, t], buffer.cxs[:, t] = (each.squeeze(0) for each in begun)
            _, state = self.step(inputs[:, t], first[:, t], state)
        buffer.prepare_batch_dict()
        _, outputs = self._trained(buffer)
        order = np.concatenate([np.asarray(each) for each in buffer.flat_sequence_indices]).astype(int)
        assert order.tolist() == list(range(rows * steps))
        return outputs.unflatten(0, (rows, steps))

    def _trained(self, buffer: Any) -> tuple[dict[str, Tensor], Tensor]:
        """The samples of a minibatch of everything, in their order, and outputs [N, A] where they are no padding."""
        samples = buffer.samples_flat
        cell = samples["hxs"][None], samples["cxs"][None]
        policy, value, _ = self.net(samples["obs"], cell, "cpu", buffer.actual_sequence_length)
        return samples, torch.cat([policy[0].logits, value[:, None]], -1)[samples["loss_mask"]]

    def weights(self) -> Iterable[Tensor]:
        return list(self.net.parameters())

    def log_probabilities(self) -> tuple[Tensor, Tensor]:
        for _ in range(2):
            self.trainer._sample_training_data()
        buffer = self.trainer.buffer
        buffer.prepare_batch_dict()
        samples, outputs = self._trained(buffer)
        actions = samples["actions"][samples["loss_mask"]]
        return samples["log_probs"].flatten(), outputs[:, :ACTIONS].log_softmax(-1).gather(1, actions)[:, 0]

    def bootstraps(self) -> Sequence[Bootstrap]:
        self.trainer._sample_training_data()
        now = torch.as_tensor(self.trainer.obs)
        return ends_of_rollout(self.trainer, self.net(now, self.trainer.recurrent_cell, "cpu")[1])
