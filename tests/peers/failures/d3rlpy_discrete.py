"""d3rlpy `DiscreteDecisionTransformer`: only the last step of a window equals acting

Its default positions (`GLOBAL`) give all steps of a window the number of its
*last* step, plus their index in the window. Acting uses the last output,
which is trained for it. But the loss is over all outputs, and the others
belong to no decision: they know how far the window continues. The published
code for Atari, which this follows, uses the number of the first step. The
continuous algorithm has `SIMPLE` positions and passes.
"""

import torch
from d3rlpy.algos import DiscreteDecisionTransformerConfig

torch.manual_seed(0)
algorithm = DiscreteDecisionTransformerConfig(
    context_size=4, num_heads=2, num_layers=2
).create()
algorithm.create_impl((3,), 2)
network = algorithm.impl.modules.transformer.eval()
steps = [torch.randn(1, 4, 3), torch.zeros(1, 4, 1), torch.ones(1, 4, 1)]
# as the wrapper that acts does it
padded = [
    torch.nn.functional.pad(each[:, :3], (0, 0, 1, 0)) for each in steps
]
with torch.no_grad():
    trained = network(
        *steps, torch.tensor([[1, 2, 3, 4]]), torch.zeros(1, 4)
    )[1][:, 2]
    acted = network(
        *padded,
        torch.tensor([[0, 1, 2, 3]]),
        torch.tensor([[1.0, 0.0, 0.0, 0.0]]),
    )[1][:, 3]
print("logits of step 3, acting:        ", acted[0].tolist())
print("the same three steps, training:  ", trained[0].tolist())
print("difference:", float((acted - trained).abs().max()))
