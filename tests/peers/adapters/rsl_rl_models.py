"""``PPO`` of rsl_rl with ``RNNModel``, an LSTM for the actor and one for the critic.

A training pass is what ``PPO.update`` computes of the batches of ``RolloutStorage``, which splits a rollout into
episodes, pads them, and begins each with the state that acting had there.
"""

from collections.abc import Iterable, Sequence
from pathlib import Path
from typing import Any, Self

import torch
from jaxtyping import Bool, Float
from rsl_rl.algorithms import PPO
from rsl_rl.models import RNNModel
from rsl_rl.storage import RolloutStorage
from tensordict import TensorDict
from torch import Tensor

from rltransformers.conformance.adapters.rollouts import DISCOUNT, LIMITS, OBSERVATION, ROLLOUT, shaken
from rltransformers.conformance.protocol import Bootstrap, Traits
from tests.peers.adapters.recording import RecordedEnvs

ACTIONS, HIDDEN = 2, 16


class RslRlPolicy:
    """Outputs: mean of the actions and value. The state is the hidden states of both models, as they hand them out."""

    inputs = OBSERVATION

    def __init__(self) -> None:
        exempt = {
            "stopped run keeps memory": "a run goes on in new environments, whose episodes begin",
            "padding does not matter": "the storage pads by itself, in step = segment",
        }
        self.traits = Traits(full=None, exempt=exempt)
        example, groups = observed(torch.zeros(1, OBSERVATION)), {"actor": ["policy"], "critic": ["policy"]}
        sizes: dict[str, Any] = {"hidden_dims": [HIDDEN], "rnn_hidden_dim": HIDDEN}
        distribution = {"class_name": "rsl_rl.modules.GaussianDistribution"}
        self.actor = RNNModel(example, groups, "actor", ACTIONS, distribution_cfg=distribution, **sizes)
        self.critic = RNNModel(example, groups, "critic", 1, **sizes)
        shaken(self.weights())

    def algorithm(self, rows: int, steps: int) -> PPO:
        """A learner of so many environments and steps of a rollout, without a trace: advantages tell next values."""
        storage = RolloutStorage("rl", rows, steps, observed(torch.zeros(rows, OBSERVATION)), [ACTIONS])
        return PPO(self.actor, self.critic, storage, gamma=DISCOUNT, lam=0.0, num_mini_batches=1, num_learning_epochs=1)

    def reset(self, batch: int) -> Any:
        return tuple((torch.zeros(1, batch, HIDDEN), torch.zeros(1, batch, HIDDEN)) for _ in range(2))

    def step(self, inputs: Float[Tensor, "B D"], first: Bool[Tensor, " B"], state: Any) -> tuple[Tensor, Any]:
        self._begin(state, first)
        outputs = torch.cat([self.actor(observed(inputs)), self.critic(observed(inputs))], -1)
        return outputs, (self.actor.get_hidden_state(), self.critic.get_hidden_state())

    def segment(self, inputs: Float[Tensor, "B T D"], first: Bool[Tensor, "B T"], state: Any) -> Float[Tensor, "B T A"]:
        rows, steps = first.shape
        algorithm = self.algorithm(rows, steps)
        self._begin(state, first[:, 0])
        for t in range(steps):
            algorithm.act(observed(inputs[:, t]))
            ends = first[:, t + 1] if t + 1 < steps else torch.zeros(rows, dtype=torch.bool)
            algorithm.process_env_step(observed(inputs[:, t]), torch.zeros(rows), ends, {})
        batch = next(algorithm.storage.recurrent_mini_batch_generator(1, 1))
        models = zip((self.actor, self.critic), batch.hidden_states, strict=True)
        passes = [model(batch.observations, masks=batch.masks, hidden_state=hidden) for model, hidden in models]
        return torch.cat(passes, -1).reshape(steps, rows, -1).transpose(0, 1)  # of one step it gives no axis of steps

    def _begin(self, state: Any, first: Tensor) -> None:
        for model, hidden in zip((self.actor, self.critic), state, strict=True):
            model.reset(hidden_state=tuple(each.clone() for each in hidden))  # the next line writes into them
            model.reset(first)

    def weights(self) -> Iterable[Tensor]:
        return [*self.actor.parameters(), *self.critic.parameters()]

    def save(self, state: Any, folder: Path) -> None:
        torch.save((self.algorithm(1, 1).save(), state), folder / "all.pt")

    def load(self, folder: Path) -> tuple[Self, Any]:
        again = type(self)()
        weights, state = torch.load(folder / "all.pt", weights_only=True)
        again.algorithm(1, 1).load(weights, None, strict=True)
        return again, state

    def _collected(self) -> tuple[PPO, RecordedEnvs]:
        """Two rollouts without an update between them."""
        algorithm, envs = self.algorithm(len(LIMITS), ROLLOUT), RecordedEnvs()
        self._begin(self.reset(len(LIMITS)), torch.ones(len(LIMITS), dtype=torch.bool))
        for _ in range(2):
            algorithm.storage.clear()
            for _ in range(ROLLOUT):
                algorithm.act(observed(envs.observations))
                now, rewards, ends = envs.step()
                algorithm.process_env_step(observed(now), rewards, ends, {"time_outs": ends})
            algorithm.compute_returns(observed(envs.observations))
        return algorithm, envs

    def log_probabilities(self) -> tuple[Tensor, Tensor]:
        algorithm, _ = self._collected()
        batch = next(algorithm.storage.recurrent_mini_batch_generator(1, 1))
        self.actor(batch.observations, masks=batch.masks, hidden_state=batch.hidden_states[0], stochastic_output=True)
        return batch.old_actions_log_prob.flatten(), self.actor.get_output_log_prob(batch.actions).flatten()

    def bootstraps(self) -> Sequence[Bootstrap]:
        algorithm, envs = self._collected()
        returns = algorithm.storage.returns.squeeze(-1)
        rewards = torch.as_tensor(envs.recorder.rewards[-1]).expand_as(returns)  # the same at every step
        return envs.bootstraps(((returns - rewards) / DISCOUNT).T.numpy())


def observed(inputs: Tensor) -> TensorDict:
    """The observations as the environments of the library group them."""
    return TensorDict({"policy": inputs}, batch_size=[len(inputs)])
