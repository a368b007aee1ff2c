"""Attention with explicit logits and weights: a walk through the stages; every other engine equals it.

Axes: B batch, H heads, T tokens, N keys of a group, S keys of all groups, L listed distances, K key width, V value
width, D model width.
"""

import functools

import torch
from jaxtyping import Float
from torch import Tensor

from rltransformers.attention.columns import Columns, beside, by_head
from rltransformers.attention.plan import Plan
from rltransformers.attention.roles import HandUp, Heads, View
from rltransformers.functional.keys import At
from rltransformers.functional.modules import dropout
from rltransformers.functional.windows import FEW_TOKENS
from rltransformers.positions.interface import Acts


def dense(
    plan: Plan,
    query: Float[Tensor, "B H T K"],
    groups: list[Heads],
    scores: Float[Tensor, "..."] | None,
    listed: dict[str, Tensor],
    view: View,
    training: bool,
) -> tuple[Float[Tensor, "B H T V"], Float[Tensor, "B H T S"], Float[Tensor, "B H T S"]]:
    """Outputs, what the layer above may build on (the unmasked logits, or weights), and every head's own weights.

    Where the plan has a store that ``weighs``, every output ends with the logarithm of the sum of exponentials.

    Args:
        query: as it meets contents, turned where keys are.
        scores: by listed distance, see ``Plan.scores``.
        listed: ``TABLES`` of the listed distances.
    """
    columns = view.columns
    if plan.prior.takes_weights:
        assert view.below is not None  # the first layer of a group handed them on
        return read(plan, view.below, groups, columns), view.below, view.below
    spread = None if scores is None else columns.spread(scores)

    def logits_of(query: Tensor) -> Tensor:
        found = beside(contents(plan, query, groups, listed, columns))
        return found if spread is None else found + spread

    if not plan.score.plain:
        query = plan.score.settled(query, groups, logits_of, columns.visible)
    logits = logits_of(query)
    for part in plan.on_logits:
        logits = part.logits(logits, view)
    handed = logits
    logits = logits.masked_fill(~columns.visible, torch.finfo(logits.dtype).min)
    for part in plan.on_masked_logits:
        logits = part.masked_logits(logits, view)
    weights = logits.softmax(-1)
    if plan.chooser is not None:  # which may have found no key: the query reads nothing then
        weights = weights.masked_fill(~columns.visible, 0.0)
    for part in plan.on_weights:
        weights = part.weights(weights, view)
    mixed = weights
    for part in plan.on_mixed_weights:
        mixed = part.mixed_weights(mixed, view)
    if plan.hands is HandUp.WEIGHTS:
        handed = mixed
    mixed = dropout(mixed, plan.dropout) if training and plan.dropout else mixed
    out = read(plan, mixed, groups, columns)
    if plan.store is not None and plan.store.weighs:
        out = torch.cat([out, logits.logsumexp(-1, keepdim=True).to(out.dtype)], -1)
    return out, handed, weights


def contents(
    plan: Plan, query: Float[Tensor, "B H T K"], groups: list[Heads], listed: dict[str, Tensor], columns: Columns
) -> list[Float[Tensor, "B H T N"]]:
    """Scores of keys by their contents, group by group: products, multiplied by distance, with the group's shifts."""
    found = [plan.score.content(query, group) for group in groups]
    if plan.position.scale != 1.0:
        found = [each * plan.position.scale for each in found]
    if "factors" in listed:
        factors = columns.of_groups(listed["factors"].T)
        found = [plan.position.multiplied(*each) for each in zip(found, factors, strict=True)]
    if "keys" in listed:
        scores = [of_keys(group, listed["keys"], index) for group, index in zip(groups, columns.index, strict=True)]
        found = [each + score for each, score in zip(found, scores, strict=True)]
    if Acts.LABEL in plan.position.acts and len(found) > 1:
        labels = plan.position.label_scores(query)
        found = [*(each + labels for each in found[:-1]), found[-1]]
    return [shifted(each, group) for each, group in zip(found, groups, strict=True)]


def shifted(scores: Float[Tensor, "B H T N"], group: Heads) -> Float[Tensor, "B H T N"]:
    """With what the group, and the place of its rows, add."""
    if isinstance(group.place, At) and group.place.shift:
        scores = scores + group.place.shift
    return scores if group.shift is None else scores + group.shift


def of_keys(group: Heads, vectors: Float[Tensor, "L H K"], index: Tensor | None) -> Float[Tensor, "B H T N"]:
    """Products of keys with the vectors of their listed distances, which ``Columns.index`` tells."""
    if index is None:
        return (group.k * vectors.transpose(0, 1)).sum(-1)[:, :, None]
    index, (listed, heads) = by_head(index), vectors.shape[:2]
    if group.per_token or index.shape[2] <= FEW_TOKENS:
        first = torch.arange(heads, device=index.device)[:, None, None] * listed
        own = vectors.transpose(0, 1).flatten(0, 1)[first + index]
        return ((group.k if group.per_token else group.k[:, :, None]) * own).sum(-1)
    products = vectors.permute(1, 0, 2) @ group.k.transpose(-1, -2)
    return products.gather(2, index.expand(*products.shape[:2], -1, -1))


def read(
    plan: Plan, weights: Float[Tensor, "B H T S"], groups: list[Heads], columns: Columns
) -> Float[Tensor, "B H T V"]:
    """Weighted sum of values, plus value vectors by distance."""
    counts = [group.k.shape[-2] for group in groups]
    parts = weights.split_with_sizes(counts, -1) if len(groups) > 1 else (weights,)
    outputs = [
        (part[..., None] * group.v).sum(-2) if group.per_token else part @ group.v
        for part, group in zip(parts, groups, strict=True)
    ]
    if Acts.VALUE in plan.position.acts:
        table = plan.position.value_table(columns.length, weights)
        outputs += [vectors(part, table[distance]) for part, distance in zip(parts, columns.distances(), strict=True)]
    return functools.reduce(Tensor.add, outputs)


def vectors(weights: Float[Tensor, "B H T N"], table: Float[Tensor, "b h T N V"]) -> Float[Tensor, "B H T V"]:
    """Weighted sums of vectors of queries and keys, which are not copied for streams and heads that share them."""
    if table.shape[1] > 1:
        return torch.einsum("bhtn,bhtnv->bhtv", weights, table)
    if table.shape[0] > 1:
        return torch.einsum("bhtn,btnv->bhtv", weights, table[:, 0])
    return torch.einsum("bhtn,tnv->bhtv", weights, table[0, 0])
