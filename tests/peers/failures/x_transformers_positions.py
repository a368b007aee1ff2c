"""x-transformers: `ContinuousAutoregressiveWrapper` outgrows its positions

With learned positions, `generate(..., cache_kv=True)` (the default) continues
after `max_seq_len` steps: every new step gets the last position, and the
cache keeps keys that were computed for other positions.
`AutoregressiveWrapper` of the same library refuses this. Rotary positions
with `max_seq_len=None` pass; the library says that it does [not support
sliding windows](https://github.com/lucidrains/x-transformers/issues/292).
"""

import torch
from x_transformers import (
    ContinuousAutoregressiveWrapper,
    ContinuousTransformerWrapper,
    Decoder,
)

torch.manual_seed(0)
layers = Decoder(dim=32, depth=2, heads=2)
net = ContinuousTransformerWrapper(
    dim_in=3, dim_out=3, max_seq_len=8, attn_layers=layers
)
begin = torch.randn(1, 2, 3)
wrapped = ContinuousAutoregressiveWrapper(net)
cached = wrapped.generate(begin, 12, cache_kv=True)
difference = (cached - wrapped.generate(begin, 12, cache_kv=False)).abs()
print(
    "with and without cache, first 7 steps:", float(difference[:, :7].max())
)
print("difference of 12 steps:", float(difference.max()))
