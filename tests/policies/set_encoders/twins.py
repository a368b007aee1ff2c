"""Slow twins of the encoders: loops over elements and heads, written from the formulas of the papers.

A twin knows only the elements that exist, as a list; there is no mask in it. The functions take layers for their
parameters alone. Axes: n elements that exist, W width.
"""

import math
from typing import Any

import torch
from torch import Tensor, nn

Rows = list[Tensor]


def softmax(logits: list[Tensor]) -> list[Tensor]:
    raised = [(logit - max(each.item() for each in logits)).exp() for logit in logits]
    total = sum(raised)
    return [each / total for each in raised]


def weighted(weights: list[Tensor], rows: Rows) -> Tensor:
    total = torch.zeros_like(rows[0])
    for weight, row in zip(weights, rows, strict=True):
        total = total + weight * row
    return total


def affine(layer: Any, x: Tensor) -> Tensor:
    y = layer.weight @ x
    return y if layer.bias is None else y + layer.bias


def norm(layer: Any, x: Tensor) -> Tensor:
    centered = x - x.mean()
    return centered / (centered.square().mean() + 1e-5).sqrt() * layer.weight + layer.bias


def feed_forward(layer: Any, x: Tensor, activation: Any) -> Tensor:
    return affine(layer.second, activation(affine(layer.first, x)))


def gelu(x: Tensor) -> Tensor:
    return x * 0.5 * (1 + torch.erf(x / math.sqrt(2)))


def of_head(rows: Rows, head: int, heads: int) -> Rows:
    size = len(rows[0]) // heads
    return [row[head * size : (head + 1) * size] for row in rows]


def read(q: Rows, k: Rows, v: Rows) -> Rows:
    """Softmax attention of one head; of nothing it is 0."""
    if not k:
        return [torch.zeros_like(row) for row in q]
    return [weighted(softmax([(row @ key) / math.sqrt(len(row)) for key in k]), v) for row in q]


def by_heads(heads: int, q: Rows, k: Rows, v: Rows, how: Any = read) -> Rows:
    parts = [how(*(of_head(rows, head, heads) for rows in (q, k, v))) for head in range(heads)]
    return [torch.cat([part[i] for part in parts]) for i in range(len(q))]


def block(layer: Any, x: Rows, y: Rows) -> Rows:
    """MAB."""
    q, k, v = ([affine(m, row) for row in rows] for m, rows in ((layer.query, x), (layer.key, y), (layer.value, y)))
    if not y:
        found = [torch.zeros_like(row) for row in x]
    else:
        found = by_heads(layer.heads, q, k, v)
    h = [norm(layer.attention_norm, row + affine(layer.out, other)) for row, other in zip(x, found, strict=True)]
    return [norm(layer.norm, row + feed_forward(layer.feed_forward, row, torch.relu)) for row in h]


def pooled(layer: Any, x: Rows) -> Tensor:
    """PMA."""
    return block(layer.block, [layer.seed[0]], [feed_forward(layer.feed_forward, row, torch.relu) for row in x])[0]


def layers_in_turn(stack: Any, x: Tensor, how: Any) -> Tensor:
    """Post-norm layers; ``how(attention, place of the layer)`` makes the reading of one head."""
    rows = list(x)
    if stack.embedding_norm is not None:
        rows = [norm(stack.embedding_norm, row) for row in rows]
    for place, layer in enumerate(stack.layers):
        a = layer.attention
        q, k, v = ([affine(m, row) for row in rows] for m in (a.query, a.key, a.value))
        parts = [how(a, place, head, *(of_head(each, head, a.heads) for each in (q, k, v))) for head in range(a.heads)]
        found = [affine(a.out, torch.cat([part[i] for part in parts])) for i in range(len(rows))]
        rows = [norm(layer.attention_norm, row + other) for row, other in zip(rows, found, strict=True)]
        rows = [norm(layer.norm, row + feed_forward(layer.feed_forward, row, gelu)) for row in rows]
    return torch.stack(rows)


def bert(stack: nn.Module, x: Tensor, places: list[int]) -> Tensor:
    return layers_in_turn(stack, x, lambda attention, layer, head, q, k, v: read(q, k, v))


def linformer(stack: nn.Module, x: Tensor, places: list[int]) -> Tensor:
    def how(attention: Any, layer: int, head: int, q: Rows, k: Rows, v: Rows) -> Rows:
        made = attention.projections
        e, f = (each[head if len(each) > 1 else 0] for each in (made.of_keys, made.of_values))
        slots = range(len(e))
        keys = [weighted([e[c, place] for place in places], k) for c in slots]
        return read(q, keys, [weighted([f[c, place] for place in places], v) for c in slots])

    return layers_in_turn(stack, x, how)


def fifth(number: int) -> int:
    return pow(number % (2**31 - 1), 5, 2**31 - 1)


def informer(stack: nn.Module, x: Tensor, places: list[int]) -> Tensor:
    """With 6 samples, 3 active queries, seed 9 (the row of the suite)."""

    def how(attention: Any, layer: int, head: int, q: Rows, k: Rows, v: Rows) -> Rows:
        key = fifth(fifth(9 + 2) + layer + 1)
        measures = []
        for place, query in zip(places, q, strict=True):
            chosen = [fifth(fifth(place + key + 1) + draw + 1) % len(k) for draw in range(6)]
            products = [(query @ k[i]).item() / math.sqrt(len(query)) for i in chosen]
            measures.append(max(products) - sum(products) / len(products))
        active = sorted(range(len(q)), key=lambda i: -measures[i])[:3]
        mean = weighted([torch.tensor(1 / len(v), dtype=torch.float64)] * len(v), v)
        full = read(q, k, v)
        return [full[i] if i in active else mean for i in range(len(q))]

    return layers_in_turn(stack, x, how)


def nystrom(stack: nn.Module, x: Tensor, places: list[int]) -> Tensor:
    """10 places in segments of 4, 3 and 3, 6 iterations, a kernel over places (the row of the suite)."""

    def how(attention: Any, layer: int, head: int, q: Rows, k: Rows, v: Rows) -> Rows:
        segments = [range(0, 4), range(4, 7), range(7, 10)]
        inside = [[i for i, place in enumerate(places) if place in segment] for segment in segments]
        inside = [members for members in inside if members]
        mean_q, mean_k = ([torch.stack([rows[i] for i in each]).mean(0) for each in inside] for rows in (q, k))

        def table(left: Rows, right: Rows) -> Tensor:
            scale = math.sqrt(len(left[0]))
            return torch.stack([torch.stack(softmax([a @ b / scale for b in right])) for a in left])

        between = table(mean_q, mean_k)
        columns = between.detach().abs().sum(0).argmax()
        z, one = between.T / between[:, columns].sum(), torch.eye(len(between), dtype=x.dtype)
        for _ in range(6):
            az = between @ z
            z = z / 4 @ (13 * one - az @ (15 * one - az @ (7 * one - az)))
        found = table(q, mean_k) @ z @ table(mean_q, k) @ torch.stack(v)
        kernel = attention.kernel[head]
        out = []
        for row, place in zip(found, places, strict=True):
            for other, value in zip(places, v, strict=True):
                if abs(other - place) <= len(kernel) // 2:
                    row = row + kernel[other - place + len(kernel) // 2] * value
            out.append(row)
        return out

    return layers_in_turn(stack, x, how)


def set_transformer(stack: Any, x: Tensor, places: list[int]) -> Tensor:
    rows = list(x)
    for each in stack.blocks:
        rows = block(each.spread, rows, block(each.gather, list(each.points), rows))
    return torch.stack(rows)


def luna(stack: Any, x: Tensor, places: list[int]) -> Tensor:
    rows = [norm(stack.embedding_norm, row) for row in x]
    packed = [norm(stack.packed_norm, row) for row in stack.packed]

    def reading(layer: Any, x: Rows, y: Rows) -> Rows:
        of_keys = layer.value if layer.key is None else layer.key
        q, k, v = ([affine(m, row) for row in seq] for m, seq in ((layer.query, x), (of_keys, y), (layer.value, y)))
        return by_heads(layer.heads, q, k, v)

    for number, layer in enumerate(stack.layers):
        gathered = reading(layer.pack, packed, rows)
        found = reading(layer.unpack, rows, gathered)
        rows = [norm(layer.attention_norm, r + affine(layer.out, o)) for r, o in zip(rows, found, strict=True)]
        rows = [norm(layer.norm, row + feed_forward(layer.feed_forward, row, gelu)) for row in rows]
        if number + 1 < len(stack.layers):
            packed = [norm(layer.packed_norm, p + g) for p, g in zip(packed, gathered, strict=True)]
    return torch.stack(rows)
