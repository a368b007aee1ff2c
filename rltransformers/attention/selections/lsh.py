"""Reformer: queries read the newest keys that hash as they do (Kitaev et al. 2020, arXiv 2001.04451).

Axes: B batch, H heads, T tokens, N key rows, R rounds, K head width, n half of the buckets, w keys of a round, C keys
of a query.
"""

from dataclasses import dataclass
from typing import Annotated

import torch
from annotated_types import Ge, Le
from jaxtyping import Bool, Float, Int
from torch import Tensor
from torch.nn import functional as F

from rltransformers.attention.roles import Chooser, Heads, Score, Selected
from rltransformers.attention.selections.interface import newest_of_class
from rltransformers.core.errors import ConfigError
from rltransformers.core.spec import Feature, Refusal, Size, Spec, Traits
from rltransformers.functional.call import Call
from rltransformers.functional.draws import DrawSeed, fill, layer_generator, seeded_normal
from rltransformers.functional.keys import At
from rltransformers.mixers.interface import Dims

SELF = -5e4
"""Added to the logit of the token itself, which it reads only where there is nothing else; the paper adds -1e5."""


@dataclass(frozen=True)
class Options:
    """Options of hashing.

    Attributes:
        rounds: hashes of every token; the paper uses 4 and 8.
        buckets: of every hash; an even number.
        window: keys that a query reads at most in every round, itself included.
        seed: of the rotations.
    """

    rounds: Annotated[int, Ge(1), Le(64)] = 4
    buckets: Annotated[int, Ge(2), Le(65_536)] = 8
    window: Size = 16
    seed: DrawSeed = 0


class SharedQueries(Score):
    """One projection serves queries and keys; keys have length 1, so that only the query's own length counts."""

    def __init__(self, dims: Dims) -> None:
        super().__init__(dims)
        self.own = 0

    def rows(self, made: Float[Tensor, "B T O"], h: Float[Tensor, "B T D"]) -> tuple[Tensor, Tensor]:
        return made[..., : self.query_width], made

    def split(self, rows: Float[Tensor, "B *T N E"]) -> tuple[Float[Tensor, "B g *T N K"], Float[Tensor, "B G *T N V"]]:
        k, v = super().split(rows)
        return F.normalize(k, dim=-1), v


def buckets_of(x: Float[Tensor, "B H N K"], rotations: Float[Tensor, "H R K n"]) -> Int[Tensor, "B H R N"]:
    """The nearest of the 2 n directions of a random rotation; of full precision, so that acting and learning agree.

    Andoni et al. 2015 (arXiv 1509.02897): the argmax of [x R; -x R], which the length of x does not change.
    """
    with torch.autocast(x.device.type, enabled=False):
        turned = x[:, :, None] @ rotations.to(x.dtype)
        return torch.cat([turned, -turned], -1).argmax(-1)


def first_of_each(index: Int[Tensor, "B H T C"], exists: Bool[Tensor, "B H T C"], rows: int) -> Bool[Tensor, "B H T C"]:
    """Which of the rows are the first of their kind in a list that may name a row several times."""
    count = index.shape[-1]
    codes = torch.where(exists, index, rows) * count + torch.arange(count, device=index.device)  # all differ
    codes = codes.sort(-1).values
    row, place = codes // count, codes % count
    new = torch.cat([torch.ones_like(exists[..., :1]), row[..., 1:] != row[..., :-1]], -1) & (row < rows)
    return torch.zeros_like(exists).scatter(-1, place, new)


class Hashing(Chooser):
    """Every round hashes all tokens; a query reads, in one softmax, the newest ``window`` keys of its bucket per round.

    The rounds of the paper, weighted by their normalizers, are one softmax over the union of their keys.
    """

    rotations: Tensor

    def __init__(self, dims: Dims, options: Options) -> None:
        super().__init__()
        if options.buckets % 2:
            raise ConfigError(
                "selection 'lsh' needs an even number of buckets, directions and their opposites, got "
                f"{options.buckets}; set buckets to {options.buckets + 1}"
            )
        if dims.kv_heads != dims.heads:
            raise ConfigError(
                f"selection 'lsh' makes queries and keys by one projection, so kv_heads ({dims.kv_heads}) has to equal "
                f"heads ({dims.heads}); set kv_heads to {dims.heads} or selection to 'none'"
            )
        self.window, self.rounds = options.window, options.rounds
        shape = dims.heads, self.rounds, dims.head_dim, options.buckets // 2
        self.register_buffer("rotations", torch.empty(shape))
        fill(self.rotations, lambda: seeded_normal(shape, layer_generator(options.seed, dims.layer)))

    def score(self, dims: Dims) -> Score:
        return SharedQueries(dims)

    def choose(
        self, q: Float[Tensor, "B H T K"], window: Heads, state: dict[str, Tensor], call: Call
    ) -> tuple[Selected, dict[str, Tensor]]:
        heads, rows = q.shape[1], window.k.shape[2]
        of_keys = buckets_of(window.k.detach(), self.rotations).flatten(1, 2)
        of_queries = buckets_of(q.detach(), self.rotations).flatten(1, 2)
        found = newest_of_class(of_queries, of_keys, window.place, min(self.window, rows))
        parts = (each.unflatten(1, (heads, self.rounds)).transpose(2, 3).flatten(3) for each in found)
        index, away, exists = parts
        if self.rounds > 1:
            exists = first_of_each(index, exists, rows)
        away = away.masked_fill(~exists, 0)
        shift = torch.where(exists & (away == 0), SELF, 0.0).to(q.dtype)
        return Selected(index, At(away, exists), shift), state


SPEC = Spec(
    id="C2", name="lsh", axis="selection", paper="Kitaev et al. 2020, arXiv 2001.04451, section 2",
    summary="Each query reads the newest keys that hash as it does; queries and keys are made by one projection.",
    build=Hashing, options=Options, example={"selection": {"name": "lsh", "rounds": 2, "buckets": 4, "window": 3}},
    traits=Traits(
        causality="X",
        family="SEL",
        causal_form="a query reads the newest keys of its bucket, there chunks of the sorted sequence, whose "
                    "borders depend on later tokens; the number of buckets is fixed; the token itself has a logit"
                    " of -5e4, there -1e5; products are divided by sqrt(Dh), in the authors' code not",
    ),
    offers=(Feature.SELECTION, Feature.TIED_KEYS), needs=(Feature.LOGITS, Feature.PRODUCTS),
    refuses=(
        Refusal(Feature.CARRY, "a query has logits for the keys of its buckets only, other ones in every layer"),
        Refusal(Feature.CHOICE, "hashes choose the keys of a query themselves"),
    ),
    formula="h(x) = argmax [x R; -x R]; a_t = softmax of q_t k_s / sqrt(Dh) over the newest `window` s of every round "
    "with h(k_s) = h(q_t), k_s = q_s / |q_s|",
)  # fmt: skip
