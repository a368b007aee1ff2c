"""torchrl `DTActor`: acting sees zeros that training does not

`DecisionTransformerInferenceWrapper` sets all but the latest
`inference_context` steps (5 by default, and in the recipe) of its window to
zero. The network has no mask, and a token's position is its index in the
window. So an action equals neither what the 5 latest steps give in training
nor what all 20 give. With `inference_context=20` the two agree once an
episode has 20 steps; before, the window starts with zeros.
"""

import torch
from tensordict import TensorDict
from tensordict.nn import TensorDictModule
from torchrl.modules import DecisionTransformerInferenceWrapper, DTActor

torch.manual_seed(0)
keys = ["observation", "action", "return_to_go"]
net = DTActor(state_dim=3, action_dim=2).eval()
steps = [torch.randn(1, 20, size) for size in (3, 2, 1)]
# acting knows the actions before this step
late = torch.cat([torch.zeros(1, 1, 2), steps[1][:, :-1]], 1)
with torch.no_grad():
    for visible, window in ((20, 20), (5, 20), (5, 5)):
        acting = DecisionTransformerInferenceWrapper(
            TensorDictModule(net, keys, ["action"]), inference_context=visible
        )
        inputs = dict(zip(keys, [steps[0], late, steps[2]]))
        decided = acting(TensorDict(inputs, [1]))["action"]
        trained = net(*(each[:, -window:] for each in steps))[:, -1]
        difference = float((decided - trained).abs().max())
        print(f"{visible} steps visible, {window} in training:", difference)
