"""Sparse adaptive connection: a recurrent network draws the edges of every token (Li et al. 2020, arXiv 2003.09833).

Axes: B batch, H heads, T tokens, S key rows, C edges of a query, K key width, E width of an edge, n rows in sight.
"""

from dataclasses import dataclass
from typing import Annotated

import torch
from annotated_types import Ge, Le
from jaxtyping import Bool, Float, Int
from torch import Tensor, nn

from rltransformers.attention.reach import block_size, window_distance
from rltransformers.attention.roles import Chooser, Heads, Selected
from rltransformers.core.errors import ConfigError
from rltransformers.core.spec import Feature, Refusal, Size, Spec, Traits
from rltransformers.functional import windows
from rltransformers.functional.call import Call
from rltransformers.functional.keys import At, Rows, oldest_first, slots_of
from rltransformers.mixers.interface import Dims


@dataclass(frozen=True)
class Options:
    """Options of edge prediction.

    Attributes:
        edges: of every token, besides the one to itself.
        width: of the network that predicts the edges.
    """

    edges: Annotated[int, Ge(1), Le(256)] = 8
    width: Size = 16


class EdgePredictor(Chooser):
    """An LSTM that starts from the query walks over the past: each step goes to the token it finds most likely.

    Steps are the most likely ones, so that acting and learning find the same edges. A token always has an edge to
    itself, with nothing added to its score.
    """

    def __init__(self, dims: Dims, options: Options) -> None:
        super().__init__()
        if dims.memory == 0:
            raise ConfigError("selection 'sac' draws edges to earlier tokens; set memory to at least 1")
        self.horizon, width = dims.memory * dims.tokens_per_step, options.width
        self.edges = min(options.edges, self.horizon)
        self.start = nn.Linear(dims.head_dim, width)
        self.target = nn.Linear(dims.head_dim, width, bias=False)
        self.walk = nn.LSTMCell(width, width)

    def choose(
        self, q: Float[Tensor, "B H T K"], window: Heads, state: dict[str, Tensor], call: Call
    ) -> tuple[Selected, dict[str, Tensor]]:
        """The query's own token, then the tokens of its walk."""
        p, time, rows = call.tokens.p, q.shape[2], window.k.shape[2]
        y = self.target(oldest_first(window.k, window.place, 2))
        block = block_size(self.horizon)
        if self.horizon + block < rows:  # blocks of queries, each with its own part of the past
            y = windows.fold_keys(self.with_horizon(y, time), self.horizon, block)
            p_of_block, q_of_block = windows.fold(p, block), windows.fold(q.transpose(1, 2), block).transpose(1, 2)
            away, log = self.walks(q_of_block, y.unflatten(-1, (q.shape[1], -1)).transpose(1, 2), p_of_block)
            away, log = (
                windows.unfold_tokens(each.transpose(1, 2), time, len(q)).transpose(1, 2) for each in (away, log)
            )
        else:
            away, log = self.walks(q, y, p)
        own = torch.zeros_like(away[..., :1])
        away, shift = torch.cat([own, away], -1), torch.cat([own.to(log.dtype), log], -1)
        limit = p.clamp(max=self.horizon)[:, None, :, None]
        exists = (torch.arange(away.shape[-1], device=p.device) <= limit) & (away <= limit)
        row = torch.arange(rows - time, rows, device=p.device)[:, None] - away
        index = slots_of(row.clamp(min=0), window.place, rows)
        return Selected(index, At(away.masked_fill(~exists, 0), exists), shift.masked_fill(~exists, 0.0)), state

    def with_horizon(self, y: Float[Tensor, "B H S E"], time: int) -> Float[Tensor, "B N HE"]:
        """Heads side by side, with ``horizon`` rows in front of the tokens of the call."""
        flat = y.transpose(1, 2).flatten(2)
        missing = self.horizon - (flat.shape[1] - time)
        return nn.functional.pad(flat, (0, 0, missing, 0)) if missing > 0 else flat[:, -missing:]

    def walks(
        self, q: Float[Tensor, "B H T K"], y: Float[Tensor, "B H n E"], p: Int[Tensor, "B T"]
    ) -> tuple[Int[Tensor, "B H T C"], Float[Tensor, "B H T C"]]:
        """How far back every step of a walk goes, and the logarithm of its probability; ``y`` ends with the queries."""
        distance = window_distance(Rows(), q.shape[2], y.shape[2], q.device)
        free = ((distance >= 1) & (distance <= p.clamp(max=self.horizon)[..., None]))[:, None]
        free = free.expand(-1, q.shape[1], -1, -1)
        shape = q.shape[:3]
        hidden = torch.tanh(self.start(q)).flatten(0, 2)
        cell, found, logs = torch.zeros_like(hidden), [], []
        for _ in range(self.edges):
            step, log = self.step(hidden.unflatten(0, shape), y, free)
            found.append(distance.expand(*free.shape).gather(-1, step))
            logs.append(log)
            free = free.scatter(-1, step, False)
            target = y.gather(2, step.expand(-1, -1, -1, y.shape[-1]))
            hidden, cell = self.walk(target.flatten(0, 2), (hidden, cell))
        return torch.cat(found, -1), torch.cat(logs, -1)

    def step(
        self, hidden: Float[Tensor, "B H T E"], y: Float[Tensor, "B H n E"], free: Bool[Tensor, "B H T n"]
    ) -> tuple[Int[Tensor, "B H T 1"], Float[Tensor, "B H T 1"]]:
        """The most likely row of those that are free, and the logarithm of its probability."""
        with torch.autocast(hidden.device.type, enabled=False):
            scores = hidden @ y.to(hidden.dtype).transpose(-1, -2) * hidden.shape[-1] ** -0.5
        scores = scores.masked_fill(~free, torch.finfo(scores.dtype).min)
        chosen = scores.detach().argmax(-1, keepdim=True)
        return chosen, scores.log_softmax(-1).gather(-1, chosen)


SPEC = Spec(
    id="C5", name="sac", axis="selection", paper="Li et al. 2020, arXiv 2003.09833, section 3",
    summary="A small LSTM draws the edges along which a token looks back, one after the other.",
    build=EdgePredictor, options=Options, example={"selection": {"name": "sac", "edges": 3, "width": 4}},
    traits=Traits(
        causality="X",
        family="SEL",
        horizon="memory",
        causal_form="every query has a walk of its own over its past, there one walk covers all nodes; steps are "
                    "the most likely ones, there samples; the log-probability of an edge is added to its score, "
                    "which trains the walk without REINFORCE; no distances in the walk",
    ),
    offers=(Feature.SELECTION,), needs=(Feature.LOGITS, Feature.PRODUCTS),
    refuses=(
        Refusal(Feature.CARRY, "a query has logits for its edges only, other ones in every layer"),
        Refusal(Feature.CHOICE, "edges choose the keys of a query themselves"),
        Refusal(Feature.REACH, "it draws edges to everything that the memory holds"),
    ),
    formula="h_0 = tanh(W q_t), s_j = argmax_(s < t, new) h_j y_s, h_(j+1) = LSTM(y_(s_j), h_j); "
    "l_ts_j + log softmax(h_j y)_(s_j), and l_tt",
)  # fmt: skip
