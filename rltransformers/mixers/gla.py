"""Gated linear attention: a sum of key-value products of which every channel of the key forgets at its own rate.

Axes: B batch, T tokens, D width, H heads, G key-value heads, Dh width of a head, Dv numbers of a value.
"""

from dataclasses import dataclass
from typing import Annotated

from annotated_types import Ge, Le
from jaxtyping import Float
from torch import Tensor, nn
from torch.nn import functional as F

from rltransformers.core.spec import Feature, Size, Spec, Traits
from rltransformers.functional.call import Call
from rltransformers.functional.channels import channel_sums
from rltransformers.functional.modules import wide
from rltransformers.functional.stages import GatedOutput, OutputGate
from rltransformers.mixers.interface import Dims, LayerState, Mixed, StateMixer


@dataclass(frozen=True)
class Options:
    """Options of gated linear attention.

    Attributes:
        rank: numbers of a token from which the rates of all channels are made.
        temperature: divides the logarithms of the decays: the larger, the longer a channel keeps what it holds.
        gate: of the output.
    """

    rank: Size = 16
    temperature: Annotated[float, Ge(0.1), Le(1e4)] = 16.0
    gate: OutputGate = "silu"


class GatedLinearAttention(StateMixer):
    """``S_t = diag(a_t) S_(t-1) + k_t v_t^T``, ``o_t = S_t^T q_t / sqrt(Dh)``, behind it a gated output.

    Source: Yang et al. 2024 (arXiv 2312.06635), section 4; key-value heads as in the authors' code.
    """

    no_decay = ("rates.1.bias",)

    def __init__(self, dims: Dims, options: Options) -> None:
        super().__init__()
        self.dims, self.temperature = dims, options.temperature
        self.project = dims.projection(dims.width, sum(dims.widths))
        self.rates = nn.Sequential(
            nn.Linear(dims.width, options.rank, bias=False), nn.Linear(options.rank, dims.kv_heads * dims.head_dim)
        )
        self.out = GatedOutput(dims.width, dims.heads, dims.value_dim, options.gate, dims.bias)

    def state_shapes(self) -> dict[str, tuple[int, ...]]:
        """The sums of key-value products."""
        return {"sum": (self.dims.heads, self.dims.head_dim, self.dims.value_dim)}

    def forward(self, h: Float[Tensor, "B T D"], state: LayerState, call: Call) -> Mixed:
        """Tells the mean of a as "kept"."""
        dims = self.dims
        q, k, v = dims.by_head(self.project(h))
        rates = self.rates(h)
        log_decay = F.logsigmoid(wide(rates)) / self.temperature
        call.tell("kept", lambda: log_decay.exp())
        log_decay = log_decay.unflatten(-1, (dims.kv_heads, -1)).transpose(1, 2)
        k, v, log_decay = (rows.repeat_interleave(dims.share, 1) for rows in (k, v, log_decay))
        read, after = channel_sums(q * dims.head_dim**-0.5, k, v, state["sum"], call.tokens, log_decay)
        return Mixed(self.out(read, h, call.wanted), {"sum": after})


SPEC = Spec(
    id="N2", name="gla", axis="mixer", paper="Yang et al. 2024, arXiv 2312.06635, section 4",
    summary="gated linear attention: every channel of the key decays at a rate that the token sets",
    build=GatedLinearAttention, options=Options,
    traits=Traits(
        family="KERN", horizon="episode", state="H Dh Dv",
        causal_form="keys are as wide as values, there half as wide",
    ),
    offers=(Feature.KEYS,),
    formula="o_t = W_o (norm(S_t^T q_t / sqrt(Dh)) * silu(W_g x_t)), S_t = diag(a_t) S_(t-1) + k_t v_t^T, "
    "log a_t = logsigmoid(W_2 W_1 x_t + b) / temperature",
)  # fmt: skip
