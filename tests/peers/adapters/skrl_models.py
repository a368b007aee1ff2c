"""``PPO_RNN`` of skrl, with an LSTM for the policy and one for the value.

Models are the user's in this library: these follow the ones of its documentation, and begin anew in the middle of a
sequence wherever the agent does so while acting: after an episode that ended, or that a limit cut.
"""

from collections.abc import Iterable, Sequence
from typing import Any

import numpy as np
import torch
from gymnasium import spaces
from jaxtyping import Bool, Float
from skrl.agents.torch.ppo import PPO_RNN
from skrl.memories.torch import RandomMemory
from skrl.models.torch import DeterministicMixin, GaussianMixin, Model
from torch import Tensor, nn

from rltransformers.conformance.adapters.rollouts import DISCOUNT, LIMITS, OBSERVATION, ROLLOUT, shaken
from rltransformers.conformance.protocol import Bootstrap, Traits
from tests.peers.adapters.recording import RecordedEnvs

ACTIONS, HIDDEN, SEQUENCE = 2, 16, 6
SPACES = {
    "observation_space": spaces.Box(-np.inf, np.inf, (OBSERVATION,), np.float32),
    "action_space": spaces.Box(-1.0, 1.0, (ACTIONS,), np.float32),
    "device": "cpu",
}


class Recurrent(Model):
    """An LSTM and a linear layer, for sequences of ``length`` steps in training."""

    length = SEQUENCE

    def __init__(self, outputs: int) -> None:
        Model.__init__(self, **SPACES)
        self.lstm, self.out = nn.LSTM(OBSERVATION, HIDDEN, batch_first=True), nn.Linear(HIDDEN, outputs)

    def get_specification(self) -> dict[str, Any]:
        return {"rnn": {"sequence_length": self.length, "sizes": [(1, len(LIMITS), HIDDEN)] * 2}}

    def hidden(self, inputs: dict[str, Any]) -> tuple[Tensor, list[Tensor]]:
        """Outputs [N, A] and states; in training N runs through sequences, and states are those of all their steps."""
        read, states = inputs["observations"], list(inputs["rnn"])
        if not self.training:
            outputs, after = self.lstm(read[:, None], tuple(states))
            return self.out(outputs[:, 0]), list(after)
        read = read.unflatten(0, (-1, self.length))
        states = [each.unflatten(1, (-1, self.length))[:, :, 0].contiguous() for each in states]
        ends = (inputs["terminated"] | inputs["truncated"]).view(-1, self.length)
        outputs = []
        for t in range(self.length):
            output, after = self.lstm(read[:, t, None], tuple(states))
            outputs.append(output)
            states = [each * ~ends[:, t, None] for each in after]
        return self.out(torch.cat(outputs, 1)).flatten(0, 1), states


class Policy(GaussianMixin, Recurrent):
    def __init__(self) -> None:
        Recurrent.__init__(self, ACTIONS)
        GaussianMixin.__init__(self)
        self.log_std = nn.Parameter(torch.zeros(ACTIONS))

    def compute(self, inputs: dict[str, Any], role: str = "") -> tuple[Tensor, dict[str, Any]]:
        outputs, states = self.hidden(inputs)
        return outputs, {"log_std": self.log_std, "rnn": states}


class Value(DeterministicMixin, Recurrent):
    def __init__(self) -> None:
        Recurrent.__init__(self, 1)
        DeterministicMixin.__init__(self)

    def compute(self, inputs: dict[str, Any], role: str = "") -> tuple[Tensor, dict[str, Any]]:
        outputs, states = self.hidden(inputs)
        return outputs, {"rnn": states}


class SkrlPolicy:
    """Outputs: mean of the actions and value. The state is the hidden and cell states of both models [1, B, H]."""

    inputs = OBSERVATION

    def __init__(self) -> None:
        exempt = {
            "stopped run keeps memory": "a run goes on in new environments, whose episodes begin",
            "saved in mid-episode": "the caller holds states and models are the user's own",
        }
        self.traits = Traits(full=None, exempt=exempt)
        self.policy, self.value = Policy(), Value()
        shaken(self.weights())

    def reset(self, batch: int) -> list[Tensor]:
        return [torch.zeros(1, batch, HIDDEN) for _ in range(4)]

    def step(
        self, inputs: Float[Tensor, "B D"], first: Bool[Tensor, " B"], state: list[Tensor]
    ) -> tuple[Float[Tensor, "B A"], list[Tensor]]:
        begun = [each * ~first[:, None] for each in state]  # as ``record_transition`` clears them
        self._train(False)
        _, actions = self.policy.act({"observations": inputs, "rnn": begun[:2]}, role="policy")
        value, values = self.value.act({"observations": inputs, "rnn": begun[2:]}, role="value")
        return torch.cat([actions["mean_actions"], value], -1), [*actions["rnn"], *values["rnn"]]

    def segment(
        self, inputs: Float[Tensor, "B T D"], first: Bool[Tensor, "B T"], state: list[Tensor]
    ) -> Float[Tensor, "B T A"]:
        rows, steps = first.shape
        begun = [(each * ~first[:, 0, None]).repeat_interleave(steps, 1) for each in state]
        ends = torch.cat([first[:, 1:], torch.zeros(rows, 1, dtype=torch.bool)], 1).flatten()[:, None]
        sequence = {"observations": inputs.flatten(0, 1), "terminated": torch.zeros_like(ends), "truncated": ends}
        self._train(True)
        self.policy.length = self.value.length = steps
        _, actions = self.policy.act(sequence | {"rnn": begun[:2]}, role="policy")
        value, _ = self.value.act(sequence | {"rnn": begun[2:]}, role="value")
        self.policy.length = self.value.length = SEQUENCE
        return torch.cat([actions["mean_actions"], value], -1).unflatten(0, (rows, steps))

    def _train(self, mode: bool) -> None:
        self.policy.enable_training_mode(mode)
        self.value.enable_training_mode(mode)

    def weights(self) -> Iterable[Tensor]:
        return [*self.policy.parameters(), *self.value.parameters()]

    def _updated(self) -> tuple[PPO_RNN, RecordedEnvs, list[tuple[Tensor, Tensor]]]:
        """Two rollouts, each with an update that changes nothing; log-probabilities of then and of the last update."""
        memory, envs, pairs = RandomMemory(memory_size=ROLLOUT, num_envs=len(LIMITS), device="cpu"), RecordedEnvs(), []
        agent = PPO_RNN(
            models={"policy": self.policy, "value": self.value},
            memory=memory,
            cfg={
                "rollouts": ROLLOUT,
                "learning_epochs": 1,
                "mini_batches": 1,
                "learning_rate": 0.0,
                "discount_factor": DISCOUNT,
                "gae_lambda": 0.0,  # no trace: returns tell next values
                "time_limit_bootstrap": True,
                "experiment": {"write_interval": 0, "checkpoint_interval": 0},
            },
            **SPACES,
        )
        agent.init()
        agent.enable_training_mode(True)
        act = self.policy.act

        def watched(inputs: dict[str, Any], role: str = "") -> Any:
            actions, outputs = act(inputs, role=role)
            if "taken_actions" in inputs:
                pairs.append((memory.sample_all(["log_prob"], sequence_length=SEQUENCE)[0][0], outputs["log_prob"]))
            return actions, outputs

        self.policy.act = watched
        try:
            for step in range(2 * ROLLOUT):
                now, times = envs.observations, {"timestep": step, "timesteps": 2 * ROLLOUT}
                with torch.no_grad():
                    actions = agent.act(now, None, **times)[0]
                    after, rewards, cut = envs.step()
                    agent.record_transition(
                        observations=now, states=None, actions=actions, rewards=rewards[:, None],
                        next_observations=after, next_states=None, terminated=torch.zeros_like(cut)[:, None],
                        truncated=cut[:, None], infos={}, **times,
                    )  # fmt: skip
                with torch.enable_grad():
                    agent.post_interaction(**times)
        finally:
            del self.policy.act
        return agent, envs, pairs

    def log_probabilities(self) -> tuple[Tensor, Tensor]:
        acted, trained = self._updated()[2][-1]
        return acted.flatten(), trained.detach().flatten()

    def bootstraps(self) -> Sequence[Bootstrap]:
        agent, envs, _ = self._updated()
        returns = agent.memory.get_tensor_by_name("returns").squeeze(-1)
        rewards = torch.as_tensor(envs.recorder.rewards[-1]).expand_as(returns)  # the same at every step
        return envs.bootstraps(((returns - rewards) / DISCOUNT).T.numpy())
