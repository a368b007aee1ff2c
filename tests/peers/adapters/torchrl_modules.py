"""Modules of torchrl: its LSTM and its Decision Transformer."""

from collections.abc import Iterable, Sequence
from typing import Any

import torch
from jaxtyping import Bool, Float
from tensordict import TensorDict
from tensordict.nn import TensorDictModule, TensorDictSequential
from torch import Tensor, nn
from torchrl.envs import GymWrapper, InitTracker, TransformedEnv
from torchrl.modules import DecisionTransformerInferenceWrapper, DTActor, LSTMModule, set_recurrent_mode
from torchrl.objectives.value import GAE

from rltransformers.conformance.adapters import sequences
from rltransformers.conformance.adapters.rollouts import DISCOUNT, LIMITS, ROLLOUT, Limited, shaken
from rltransformers.conformance.protocol import Bootstrap, Traits
from tests.peers.adapters.recomputing import EXEMPT, Recomputing

HIDDEN, STACKED = 16, 20
NO_LEARNER = "a module without a learner"


class TorchRLRecurrentPolicy:
    """``LSTMModule`` and a linear layer: steps with ``is_init``, segments with ``set_recurrent_mode``.

    Inputs: three numbers; the last output is the value. The state is hidden and cell state [B, 1, H]; an episode begins
    with zeros in it, as with the ``TensorDictPrimer`` of the module.
    """

    inputs = 3

    def __init__(self) -> None:
        exempt = {
            "first ratio is 1": NO_LEARNER,
            "saved in mid-episode": "weights and states are tensors, which the caller stores",
            "stopped run keeps memory": NO_LEARNER,
        }
        self.traits = Traits(full=None, exempt=exempt)
        states = ["h", "c", ("next", "h"), ("next", "c")]
        lstm = LSTMModule(
            input_size=3, hidden_size=HIDDEN, in_keys=["observation", *states[:2]], out_keys=["features", *states[2:]]
        )
        head = TensorDictModule(nn.Linear(HIDDEN, 3), in_keys=["features"], out_keys=["outputs"])
        value = TensorDictModule(lambda outputs: outputs[..., -1:], in_keys=["outputs"], out_keys=["state_value"])
        self.lstm, self.net = lstm, TensorDictSequential(lstm, head, value)
        shaken(self.net.parameters())

    def reset(self, batch: int) -> tuple[Tensor, Tensor]:
        return torch.zeros(batch, 1, HIDDEN), torch.zeros(batch, 1, HIDDEN)

    def step(
        self, inputs: Float[Tensor, "B D"], first: Bool[Tensor, " B"], state: tuple[Tensor, Tensor]
    ) -> tuple[Float[Tensor, "B A"], tuple[Tensor, Tensor]]:
        entries = {"observation": inputs, "is_init": first[:, None], "h": state[0], "c": state[1]}
        found = self.net(TensorDict(entries, batch_size=[len(first)]))
        return found["outputs"], (found["next", "h"], found["next", "c"])

    def segment(
        self, inputs: Float[Tensor, "B T D"], first: Bool[Tensor, "B T"], state: tuple[Tensor, Tensor]
    ) -> Float[Tensor, "B T A"]:
        rows, steps = first.shape
        held = []
        for each in state:
            every = torch.zeros(rows, steps, *each.shape[1:])
            every[:, 0] = torch.where(first[:, 0, None, None], 0.0, each)
            held.append(every)
        entries = {"observation": inputs, "is_init": first[..., None], "h": held[0], "c": held[1]}
        with set_recurrent_mode(True):
            found: Tensor = self.net(TensorDict(entries, batch_size=[rows, steps]))["outputs"]
        return found

    def bootstraps(self) -> Sequence[Bootstrap]:
        """Of ``GAE`` on rollouts of environments that tell where episodes begin."""
        choose = TensorDictModule(lambda outputs: outputs.argmax(-1), in_keys=["outputs"], out_keys=["action"])
        policy, found = TensorDictSequential(self.net, choose), []
        gae = GAE(gamma=DISCOUNT, lmbda=0.95, value_network=self.net, deactivate_vmap=True)
        for row, length in enumerate(LIMITS):
            env = TransformedEnv(GymWrapper(Limited(length), categorical_action_encoding=True))
            env.append_transform(InitTracker())
            env.append_transform(self.lstm.make_tensordict_primer())
            found += bootstraps_of(env, row, policy, gae)
        return found

    def weights(self) -> Iterable[Tensor]:
        return list(self.net.parameters())


def bootstraps_of(env: TransformedEnv, row: int, policy: TensorDictSequential, gae: GAE) -> list[Bootstrap]:
    """What ``gae`` bootstraps from in a rollout of ``policy`` in environment ``row``."""
    env.set_seed(row)
    steps = env.rollout(ROLLOUT, policy, break_when_any_done=False)[None].exclude("state_value")
    with set_recurrent_mode(True):
        gae(steps)
    return cuts(steps, row)


def cuts(steps: TensorDict, row: int) -> list[Bootstrap]:
    """Next values of ``GAE`` where a limit or the end of a rollout [1, T] cut an episode of an environment."""
    found, after, begin = [], steps[0]["next"], 0
    for t in range(steps.shape[1]):
        begin = t if bool(steps[0]["is_init"][t]) else begin
        if bool(after["truncated"][t]) or t == steps.shape[1] - 1:
            inputs = torch.cat([steps[0]["observation"][begin : t + 1], after["observation"][t : t + 1]])
            found.append(Bootstrap(inputs, float(after["state_value"][t]), f"environment {row}, cut at step {t}"))
    return found


class TorchRLDecisionTransformer(Recomputing):
    """``DTActor`` behind ``DecisionTransformerInferenceWrapper``, as the recipe of the library puts them together.

    The newest 20 steps are stacked, with zeros before an episode (``CatFrames``); inputs: see ``sequences``.

    Args:
        visible: steps of the stack that the wrapper does not set to 0, its ``inference_context``.
    """

    inputs = sequences.INPUTS

    def __init__(self, visible: int = 5) -> None:
        exempt = EXEMPT | {
            "saved in mid-episode": "the caller holds the steps and the weights",
            "padding does not matter": "no mask: that it sees the zeros before an episode shows in step = segment",
        }
        self.traits = Traits(full=STACKED, longest=STACKED, resets_inside=False, continues=False, exempt=exempt)
        config = DTActor.default_config()
        config.n_embd, config.n_layer, config.n_head, config.n_inner = 16, 2, 2, 32
        self.net = DTActor(sequences.OBSERVATION, sequences.ACTION, transformer_config=config).eval()
        shaken(self.net.parameters())
        actor = TensorDictModule(self.net, in_keys=["observation", "action", "return_to_go"], out_keys=["action"])
        self.wrapper = DecisionTransformerInferenceWrapper(actor, inference_context=visible).eval()
        self.visible = visible
        super().__init__(STACKED + 1, self._decide)

    def _decide(self, steps: Tensor, start: int) -> Tensor:
        # The wrapper takes actions one step late: the newest is that before the observation.
        late = torch.cat([torch.zeros_like(steps[:, :1]), steps[:, :-1]], 1)
        entries = {
            "observation": sequences.observations(steps),
            "action": torch.where(late.any(-1, keepdim=True), sequences.actions(late), 0.0),
            "return_to_go": sequences.returns_to_go(steps)[..., None],
        }
        stacked = {name: stack(each) for name, each in entries.items()}
        found: Tensor = self.wrapper(TensorDict(stacked, batch_size=[len(steps)]))["action"]
        return found

    def lookback(self, step: int) -> int:
        return min(step + 1, self.visible)

    def segment(self, inputs: Float[Tensor, "B T D"], first: Bool[Tensor, "B T"], state: Any) -> Float[Tensor, "B T A"]:
        return self.window(inputs, 0)

    def window(self, inputs: Float[Tensor, "B T D"], start: int) -> Float[Tensor, "B T A"]:
        """Without numbers of steps: the module has none."""
        steps = sequences.observations(inputs), sequences.actions(inputs), sequences.returns_to_go(inputs)[..., None]
        found: Tensor = self.net(*steps)
        return found

    def weights(self) -> Iterable[Tensor]:
        return list(self.net.parameters())


def stack(steps: Float[Tensor, "B n D"]) -> Float[Tensor, "B 20 D"]:
    """The newest steps, with zeros before them where there are too few."""
    missing = max(0, STACKED - steps.shape[1])
    return nn.functional.pad(steps[:, -STACKED:], (0, 0, missing, 0))
