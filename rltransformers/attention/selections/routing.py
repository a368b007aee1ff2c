"""Routing attention: queries read the newest keys of their own cluster (Roy et al. 2021, arXiv 2003.05997).

Axes: B batch, H heads, T tokens, N key rows, C clusters, K head width, w keys of a query.
"""

from dataclasses import dataclass
from typing import Annotated

import torch
from annotated_types import Ge, Lt
from jaxtyping import Float, Int
from torch import Tensor
from torch.nn import functional as F

from rltransformers.attention.roles import Chooser, Heads, Selected
from rltransformers.attention.selections.interface import newest_of_class
from rltransformers.core.errors import ConfigError
from rltransformers.core.spec import Feature, Loss, Refusal, Size, Spec, Traits
from rltransformers.functional.call import Call
from rltransformers.functional.draws import DrawSeed, fill, layer_generator, seeded_normal
from rltransformers.functional.keys import At
from rltransformers.functional.online_means import OnlineMeans
from rltransformers.mixers.interface import Dims


def spherical(heads: Float[Tensor, "*n K"]) -> Float[Tensor, "*n K"]:
    """Layer norm without parameters: vectors of length sqrt(K), so that the largest product is the nearest one."""
    return F.layer_norm(heads, heads.shape[-1:])


def clusters_of(x: Float[Tensor, "B H N K"], centroids: Float[Tensor, "H C K"]) -> Int[Tensor, "B H N"]:
    """The centroid with the largest product, of full precision: acting and learning have to find the same one."""
    with torch.autocast(x.device.type, enabled=False):
        return (x @ centroids.to(x.dtype).transpose(-1, -2)).argmax(-1)


@dataclass(frozen=True)
class Options:
    """Options of routing.

    Attributes:
        clusters: centroids C of every head.
        window: keys that a query reads at most.
        decay: share of a centroid that stays when it moves.
        seed: of the first centroids.
    """

    clusters: Size = 8
    window: Size = 32
    decay: Annotated[float, Ge(0), Lt(1)] = 0.999
    seed: DrawSeed = 0


class Routing(OnlineMeans, Chooser):
    """Online k-means over normalized queries and keys; a query reads the ``window`` newest keys of its cluster.

    Centroids move in ``maintain`` only, so that the policy that is improved is the one that acted.
    """

    centroids: Tensor

    def __init__(self, dims: Dims, options: Options) -> None:
        super().__init__()
        if dims.head_dim == 1:
            raise ConfigError(
                "selection 'routing' normalizes queries and keys, so a head_dim of 1 leaves only zeros; set head_dim "
                "to at least 2"
            )
        self.window, self.decay = options.window, options.decay
        shape = dims.heads, options.clusters, dims.head_dim
        self.register_buffer("centroids", torch.empty(shape))
        self.make_sums(shape)
        fill(self.centroids, lambda: spherical(seeded_normal(shape, layer_generator(options.seed, dims.layer))))

    def prepare(self, heads: Float[Tensor, "B H *n K"]) -> Float[Tensor, "B H *n K"]:
        return spherical(heads)

    def choose(
        self, q: Float[Tensor, "B H T K"], window: Heads, state: dict[str, Tensor], call: Call
    ) -> tuple[Selected, dict[str, Tensor]]:
        time, rows = q.shape[2], window.k.shape[2]
        of_queries, of_keys = (clusters_of(x.detach(), self.centroids) for x in (q, window.k))
        if call.probe.listens or (self.training and torch.is_grad_enabled()):
            self.watch(q, window.k[:, :, rows - time :], of_queries, of_keys[:, :, rows - time :], call)
        index, away, exists = newest_of_class(of_queries, of_keys, window.place, min(self.window, rows))
        return Selected(index, At(away.masked_fill(~exists, 0), exists)), state

    def watch(self, q: Tensor, k: Tensor, of_queries: Tensor, of_keys: Tensor, call: Call) -> None:
        """Sum up the tokens of a call by cluster for ``maintain``, and tell how far they lie from their centroids."""
        x, clusters = torch.cat([q, k], 2), torch.cat([of_queries, of_keys], 2)
        valid = call.tokens.valid().repeat(1, 2)[:, None]
        if self.training and torch.is_grad_enabled():
            self.add(x, clusters, valid)
        if call.probe.listens:
            heads = torch.arange(q.shape[1], device=q.device)[:, None]
            error = (x - self.centroids[heads, clusters]).square().sum(-1)
            number = valid.sum() * q.shape[1]
            call.probe.loss("commitment", (error * valid).sum() / number.clamp(min=1), number)

    def maintain(self) -> None:
        """Move every centroid with members towards the mean of its queries and keys since the last call."""
        self.move(self.centroids, self.decay, spherical)


SPEC = Spec(
    id="C3", name="routing", axis="selection", paper="Roy et al. 2021, arXiv 2003.05997",
    summary="Each query reads the newest keys of its cluster; clusters are learned by online k-means.",
    build=Routing, options=Options, example={"selection": {"name": "routing", "clusters": 2, "window": 3}},
    traits=Traits(
        causality="X",
        family="SEL",
        causal_form="a query reads the newest keys of its centroid, there the nearest ones, which may lie in the "
                    "future; a token belongs to one centroid, and a query without keys there reads nothing; "
                    "centroids move between collecting and learning, and are normalized; products are divided by "
                    "sqrt(Dh), in the authors' code not",
    ),
    offers=(Feature.SELECTION,), needs=(Feature.LOGITS, Feature.PRODUCTS), produces=(Loss("commitment"),),
    refuses=(
        Refusal(Feature.CARRY, "a query has logits for the keys of its cluster only, other ones in every layer"),
        Refusal(Feature.CHOICE, "clusters choose the keys of a query themselves"),
    ),
    formula="c(x) = argmax_c x mu_c on the sphere; a_t = softmax over the newest `window` s with c(k_s) = c(q_t)",
)  # fmt: skip
