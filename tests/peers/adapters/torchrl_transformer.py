"""``TransformerModule`` of a nightly build of torchrl: steps with its cache, segments with ``set_recurrent_mode``."""

from collections.abc import Iterable, Sequence

from jaxtyping import Bool, Float
from tensordict import TensorDict
from tensordict.nn import TensorDictModule, TensorDictSequential
from torch import Tensor, nn
from torchrl.envs import GymWrapper, InitTracker, TransformedEnv
from torchrl.modules import TransformerModule, set_recurrent_mode
from torchrl.objectives.value import GAE

from rltransformers.conformance.adapters.rollouts import DISCOUNT, LIMITS, OBSERVATION, Limited, shaken
from rltransformers.conformance.protocol import Bootstrap, Traits
from tests.peers.adapters.torchrl_modules import NO_LEARNER, bootstraps_of

LONGEST, WIDTH = 48, 16
State = tuple[Tensor, Tensor, Tensor] | None


class TorchRLTransformerPolicy:
    """``TransformerModule`` and a linear layer, whose last output is the value.

    The module owns its cache. A state is what it holds after a step: keys, values and the steps so far.

    Args:
        shifted: whether ``GAE`` values a rollout in one sequence with room for all its episodes; by default in two.
    """

    inputs = OBSERVATION

    def __init__(self, shifted: bool) -> None:
        self.gae = {"shifted": True, "shifted_budget": 4} if shifted else {}
        exempt = {
            "first ratio is 1": NO_LEARNER,
            "changed weights take effect": "as documented, all streams restart, in the middle of their episodes",
            "saved in mid-episode": "as documented, copies and pickled modules start with an empty cache",
            "stopped run keeps memory": NO_LEARNER,
        }
        self.traits = Traits(full=LONGEST, continues=False, cache="keys and values", exempt=exempt)
        sizes = {"num_layers": 2, "num_heads": 2, "max_seq_len": LONGEST}
        self.module = TransformerModule(OBSERVATION, WIDTH, in_key="observation", out_key="features", **sizes)
        head = TensorDictModule(nn.Linear(WIDTH, 4), in_keys=["features"], out_keys=["outputs"])
        value = TensorDictModule(lambda outputs: outputs[..., -1:], in_keys=["outputs"], out_keys=["state_value"])
        self.net = TensorDictSequential(self.module, head, value)
        shaken(self.net.parameters())

    def reset(self, batch: int) -> State:
        return None

    def step(
        self, inputs: Float[Tensor, "B D"], first: Bool[Tensor, " B"], state: State
    ) -> tuple[Float[Tensor, "B A"], State]:
        module = self.module
        if state is None:
            module.reset_cache()
        else:
            module._kv_cache, module._positions = (state[0].clone(), state[1].clone()), state[2].clone()
            module._weights_version = module._current_weights_version()
        found = self.net(TensorDict({"observation": inputs, "is_init": first[:, None]}, batch_size=[len(first)]))
        return found["outputs"], (*module._kv_cache, module._positions)

    def segment(
        self, inputs: Float[Tensor, "B T D"], first: Bool[Tensor, "B T"], state: State
    ) -> Float[Tensor, "B T A"]:
        steps = TensorDict({"observation": inputs, "is_init": first[..., None]}, batch_size=first.shape)
        with set_recurrent_mode(True):
            found: Tensor = self.net(steps)["outputs"]
        return found

    def bootstraps(self) -> Sequence[Bootstrap]:
        """Of ``GAE`` on whole episodes, which is what the module trains on."""
        choose = TensorDictModule(lambda outputs: outputs[..., :3].argmax(-1), ["outputs"], ["action"])
        policy, found = TensorDictSequential(self.net, choose), []
        gae = GAE(gamma=DISCOUNT, lmbda=0.95, value_network=self.net, deactivate_vmap=True, **self.gae)
        for row, length in enumerate(LIMITS):
            env = TransformedEnv(GymWrapper(Limited(length), categorical_action_encoding=True), InitTracker())
            self.module.reset_cache()
            found += bootstraps_of(env, row, policy, gae)
        return found

    def weights(self) -> Iterable[Tensor]:
        return list(self.net.parameters())
