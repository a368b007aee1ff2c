"""MarcoMeter's ``episodic-transformer-memory-ppo``: its trainer and buffer."""

import importlib
from collections.abc import Sequence

import torch
from torch import Tensor

from rltransformers.conformance.protocol import Bootstrap, Traits
from tests.peers.adapters.episodic_memory import PADDED, EpisodicMemory
from tests.peers.adapters.marcometer import EXEMPT, ends_of_rollout, trainer

BLOCKS, WIDTH = 2, 16


class MarcoMeterPolicy(EpisodicMemory):
    """Outputs: logits and value.

    Args:
        length: of the window, ``memory_length``; episodes have at most 40 steps.
    """

    def __init__(self, length: int) -> None:
        network = {"num_blocks": BLOCKS, "embed_dim": WIDTH, "num_heads": 2, "memory_length": length}
        published = {"positional_encoding": "relative", "layer_norm": "pre", "gtrxl": True, "gtrxl_bias": 0.0}
        self.trainer = trainer(hidden_layer_size=WIDTH, transformer=network | published)
        super().__init__(
            Traits(full=length, exempt=EXEMPT | PADDED),
            self.trainer.model,
            self._outputs,
            importlib.import_module("utils").batched_index_select,
            self.trainer.memory_mask,
            self.trainer.memory_indices,
            (self.trainer.max_episode_length, BLOCKS, WIDTH),
            trims=False,
        )

    def _outputs(self, inputs: Tensor, window: Tensor, mask: Tensor, indices: Tensor) -> tuple[Tensor, Tensor]:
        policy, value, new = self.net(inputs, window, mask, indices)
        return torch.cat([policy[0].logits, value[:, None]], -1), new

    def log_probabilities(self) -> tuple[Tensor, Tensor]:
        for _ in range(2):
            self.trainer._sample_training_data()
        self.trainer.buffer.prepare_batch_dict()
        (batch,) = self.trainer.buffer.mini_batch_generator()
        window = self.select(batch["memories"], 1, batch["memory_indices"])
        policy, _, _ = self.net(batch["obs"], window, batch["memory_mask"], batch["memory_indices"])
        return batch["log_probs"].flatten(), policy[0].log_prob(batch["actions"][:, 0])

    def bootstraps(self) -> Sequence[Bootstrap]:
        self.trainer._sample_training_data()
        return ends_of_rollout(self.trainer, self.trainer.get_last_value())
