"""AMAGO `TformerTrajEncoder`: beyond `max_seq_len` acting sees more than training

The cache drops the oldest step when it is full, so a decision reads
`max_seq_len` steps, as training does. But the keys and values of the second
layer on were computed when older steps were still there: acting looks further
back than any window of training. With one layer both are equal. Nothing
differs in episodes of at most `max_seq_len` steps.
"""

import sys

import torch

sys.path.insert(0, "amago")
from amago.nets.traj_encoders import TformerTrajEncoder
from amago.nets.transformer import VanillaAttention

torch.compiler.set_stance("force_eager")
steps, numbers = torch.randn(1, 12, 3), torch.arange(12)[None, :, None]
for layers in (1, 2):
    torch.manual_seed(0)
    net = TformerTrajEncoder(
        3,
        max_seq_len=8,
        d_model=16,
        n_heads=2,
        n_layers=layers,
        attention_type=VanillaAttention,
    ).eval()
    hidden = net.init_hidden_state(1, torch.device("cpu"))
    with torch.no_grad():
        for t in range(12):
            now = slice(t, t + 1)
            acting, hidden = net(steps[:, now], numbers[:, now], hidden)
        window, _ = net(steps[:, 4:], numbers[:, 4:])
    difference = float((acting[:, 0] - window[:, -1]).abs().max())
    print(f"difference at step 11 with {layers} layers:", difference)
