"""AMAGO `Experiment`: episodes that span an update act with keys of old weights

`Experiment` keeps the hidden state of the training environments from epoch to
epoch. An episode that goes on after learning reads keys and values that the
old weights computed; training computes all of them with the new ones. How far
they are apart depends on how far the weights move in an epoch.
`force_reset_train_envs_every=1` begins new episodes.
"""

import sys

import torch

sys.path.insert(0, "amago")
from amago.nets.traj_encoders import TformerTrajEncoder
from amago.nets.transformer import VanillaAttention

torch.compiler.set_stance("force_eager")
torch.manual_seed(0)
net = TformerTrajEncoder(
    3, max_seq_len=8, d_model=16, n_heads=2, attention_type=VanillaAttention
)
steps, numbers = torch.randn(1, 6, 3), torch.arange(6)[None, :, None]
hidden = net.init_hidden_state(1, torch.device("cpu"))
optimizer = torch.optim.Adam(net.parameters(), lr=1e-3)
for t in range(6):
    if t == 5:  # an epoch of learning
        for _ in range(10):
            loss = net.train()(steps, numbers)[0].square().mean()
            optimizer.zero_grad()
            loss.backward()
            optimizer.step()
    now = slice(t, t + 1)
    with torch.no_grad():
        acting, hidden = net.eval()(steps[:, now], numbers[:, now], hidden)
with torch.no_grad():
    trained = net(steps, numbers)[0][:, 5]
print("difference:", float((acting[:, 0] - trained).abs().max()))
