"""Multi-head latent attention: a token keeps few numbers, of which all heads make their keys and values at reading.

Axes: B batch, T tokens, N key rows, H heads, K width of queries and keys, r channels of the key that heads share and
that positions turn, c numbers of the latent, C = r + c, V value width, Q and E numbers of a query and of a key row, O
numbers that the projection makes of a layer input.
"""

from dataclasses import dataclass, replace
from typing import Annotated

import torch
from annotated_types import Ge, Le
from jaxtyping import Float
from torch import Tensor, nn
from torch.nn import functional as F

from rltransformers.attention.roles import HeadOptions, Heads, Score
from rltransformers.core.spec import Feature, Refusal, Size, Spec, Traits
from rltransformers.functional.keys import Past
from rltransformers.functional.modules import normalize_rms
from rltransformers.mixers.interface import Dims


@dataclass(frozen=True)
class Options(HeadOptions):
    """Options of latent attention.

    Attributes:
        latent: numbers of a token that keys and values are made from; None: four times the head width.
        turned: channels beside those of every head, with one key for all heads; of a position that turns queries and
            keys it turns these alone.
        norm: RMS normalization of the latent, with gains.
    """

    latent: Size | None = None
    turned: Annotated[int, Ge(0), Le(1_000_000)] = 16
    norm: bool = True

    def inside(self, dims: Dims) -> Dims:
        """Every head has the turned channels in front of its own."""
        return replace(dims, head_dim=dims.head_dim + self.turned, turned=self.turned)


class Latent(Score):
    """``softmax(q_r k_r + q_c (W_k c))`` of ``W_v c``, in short calls without any key or value: q W_k meets c."""

    has_keys = False

    def __init__(self, dims: Dims, options: Options) -> None:
        super().__init__(dims)
        self.turned = options.turned
        self.head_dim = dims.head_dim - self.turned
        self.latent = options.latent or 4 * self.head_dim
        self.key_width = self.turned + self.latent
        made = self.head_dim + dims.value_dim
        bound = self.latent**-0.5
        self.up = nn.Parameter(torch.empty(dims.heads, made, self.latent).uniform_(-bound, bound))
        self.gain = nn.Parameter(torch.ones(self.latent)) if options.norm else None
        wider = 2 * self.latent - made  # more numbers for every query and row than with keys and values
        self.few = self.latent * made // wider if wider > 0 else 1_000_000

    def rows(
        self, made: Float[Tensor, "B T O"], h: Float[Tensor, "B T D"]
    ) -> tuple[Float[Tensor, "B T Q"], Float[Tensor, "B T E"]]:
        query, keys = super().rows(made, h)
        return query, self.key_rows(keys)

    def key_rows(self, made: Float[Tensor, "B *n E"]) -> Float[Tensor, "B *n E"]:
        """The shared key, and the latent as it is kept."""
        if self.gain is None:
            return made
        key, latent = made.split_with_sizes([self.turned, self.latent], -1)
        return torch.cat([key, normalize_rms(latent, self.gain).to(key.dtype)], -1)

    def split(self, rows: Float[Tensor, "B *T N E"]) -> tuple[Float[Tensor, "B H *T N K"], Float[Tensor, "B H *T N V"]]:
        """Keys and values of every head."""
        key, latent = rows.split_with_sizes([self.turned, self.latent], -1)
        made = F.linear(latent, self.up.flatten(0, 1)).unflatten(-1, (self.dims.heads, -1)).movedim(-2, 1)
        k, v = made.split_with_sizes([self.head_dim, self.dims.value_dim], -1)
        return torch.cat([key[:, None].expand(*k.shape[:-1], -1), k], -1), v

    def absorbed(self, query: Float[Tensor, "B H T K"], past: Past) -> tuple[Float[Tensor, "B H T C"], list[Heads]]:
        """Queries that meet rows as they are kept, which are not copied."""
        turned, own = query.split_with_sizes([self.turned, self.head_dim], -1)
        scale = (self.key_width / self.dims.head_dim) ** 0.5  # products are divided by sqrt(C), not by sqrt(K)
        rows = [(group.rows[:, None], group.place) for group in past]
        groups = [Heads(each, each[..., self.turned :], place) for each, place in rows]
        return torch.cat([turned, own @ self.up[:, : self.head_dim]], -1) * scale, groups

    def of_latents(self, out: Float[Tensor, "B H T c"]) -> Float[Tensor, "B H T V"]:
        """What heads read from what they read of latents."""
        return out @ self.up[:, self.head_dim :].transpose(1, 2)


SPEC = Spec(
    id="N26", name="mla", axis="head_mixing", paper="DeepSeek-AI 2024, arXiv 2405.04434, section 2.1",
    summary="Multi-head latent attention: keeps a short latent per token, from which keys and values are "
            "computed, and one rotated key.",
    build=Latent, options=Options,
    traits=Traits(
        family="EXPL",
        state="memory D (training), memory (latent + turned) more (acting); with memory_kind cache these alone",
        causal_form="queries have no latent (as in DeepSeek-V2-Lite); keys are rotated when they are read, by "
                    "their distance; norms add 1e-5, there 1e-6; with other positions than rotations, and with a "
                    "selection, short calls compute keys and values too",
    ),
    offers=(Feature.LATENT,), needs=(Feature.COMMON_KEYS,),
    refuses=(
        Refusal(Feature.SHARED_KEYS, "all of its heads share one latent already"),
        Refusal(Feature.TIED_KEYS, "its keys are made of a latent, its queries of the token"),
        Refusal(Feature.STORE, "what is stored are keys of single heads"),
        Refusal(Feature.PLACES, "positions are added to queries and keys of single heads"),
    ),
    formula="logit_h = (q_h k_r + q'_h W_h c_s) / sqrt(r + Dh), value U_h c_s, c = RMSNorm(W_c h); k_r for all heads, "
    "turned like q_h by rope",
)  # fmt: skip
