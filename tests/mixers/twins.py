"""Slow twins of the mixers other than attention: the output of one episode [t, D], written as the formula reads.

Each gives the final state of that episode, too, or None where the rows of a memory are all of it. They are written for
width 12, 4 heads, 2 key-value heads of width 3 and values of width 5.
"""

import math
from collections.abc import Callable
from typing import Any

import torch
from torch import Tensor

D = 12


def heads_of(mixer: Any, x: Tensor) -> tuple[Tensor, Tensor, Tensor]:
    """q, k, v [H, t, .] with key and value heads repeated."""
    q, k, v = mixer.project(x).split([12, 6, 10], -1)
    q, k, v = q.view(-1, 4, 3), k.view(-1, 2, 3), v.view(-1, 2, 5)
    repeat = [0, 0, 1, 1]
    return q.transpose(0, 1), k[:, repeat].transpose(0, 1), v[:, repeat].transpose(0, 1)


def kernel_twin(mixer: Any, x: Tensor, phi: Callable[[Tensor], Tensor], eps: float) -> tuple[Tensor, dict[str, Tensor]]:
    q, k, v = heads_of(mixer, x)
    phi_k = [[phi(k[h, a]) for a in range(len(x))] for h in range(4)]
    rows = []
    for t in range(len(x)):
        heads = []
        for h in range(4):
            phi_q = phi(q[h, t])
            weights = torch.stack([phi_q @ phi_k[h][a] for a in range(t + 1)])
            heads.append(weights @ v[h, : t + 1] / (weights.sum() + eps))
        rows.append(torch.cat(heads))
    sums, norms = [], []
    for h in range(4):
        features = torch.stack(phi_k[h])
        sums.append(torch.stack([torch.outer(f, v_a) for f, v_a in zip(features, v[h], strict=True)]).sum(0))
        norms.append(features.sum(0))
    return mixer.out(torch.stack(rows)), {"sum": torch.stack(sums), "norm": torch.stack(norms)}


def linear_twin(mixer: Any, x: Tensor) -> tuple[Tensor, dict[str, Tensor]]:
    return kernel_twin(mixer, x, lambda y: torch.where(y > 0, y + 1, y.clamp(max=0).exp()), 1e-6)


def performer_twin(mixer: Any, x: Tensor) -> tuple[Tensor, dict[str, Tensor]]:
    def phi(y: Tensor) -> Tensor:
        scaled = y / 3**0.25
        return (mixer.directions @ scaled - scaled @ scaled / 2).exp()

    return kernel_twin(mixer, x, phi, 0.0)


def average_twin(mixer: Any, x: Tensor) -> tuple[Tensor, dict[str, Tensor]]:
    rows = []
    for t in range(len(x)):
        past = mixer.feed_forward(x[: t + 1].sum(0) / (t + 1))
        gates = torch.sigmoid(mixer.gates(torch.cat([x[t], past])))
        rows.append(gates[:D] * x[t] + gates[D:] * past)
    return torch.stack(rows), {"sum": x.sum(0)}


def light_conv_twin(mixer: Any, x: Tensor) -> tuple[Tensor, dict[str, Tensor]]:
    value, gate = mixer.project(x)[:, :D], mixer.project(x)[:, D:]
    y = value * torch.sigmoid(gate)
    rows = []
    for t in range(len(x)):
        channels = []
        for channel in range(D):
            weights = mixer.kernel[channel // (D // 4)].exp()
            lags = range(min(t + 1, mixer.taps))
            total = weights[: len(lags)].sum() if mixer.renormalize else weights.sum()
            channels.append(torch.stack([weights[lag] * y[t - lag, channel] for lag in lags]).sum() / total)
        rows.append(torch.stack(channels))
    kept = torch.cat([y.new_zeros(mixer.taps - 1, D), y])[len(y) :]
    return mixer.out(torch.stack(rows)), {"taps": kept}


def nystrom_twin(mixer: Any, x: Tensor) -> tuple[Tensor, None]:
    def solved(between: Tensor, read: Tensor) -> Tensor:
        return (newton(between, mixer.iterations) if mixer.iterations else torch.linalg.inv(between)) @ read

    return landmark_twin(mixer, x, solved, mixer.kernel)


def csalr_twin(mixer: Any, x: Tensor) -> tuple[Tensor, None]:
    def solved(between: Tensor, read: Tensor) -> Tensor:
        between = between + mixer.ridge * torch.eye(len(between), dtype=between.dtype)
        return (newton(between, mixer.iterations) if mixer.iterations else torch.linalg.inv(between)) @ read

    return landmark_twin(mixer, x, solved, None)


def landmark_twin(
    mixer: Any, x: Tensor, solved: Callable[[Tensor, Tensor], Tensor], kernel: Tensor | None
) -> tuple[Tensor, None]:
    q, k, v = heads_of(mixer, x)
    b, rows = mixer.block, []
    for t in range(len(x)):
        block = t // b
        kept = range(max(0, block - mixer.landmarks), block)
        near = range(block * b, t + 1)
        heads = []
        for h in range(4):

            def dot(a: Tensor, c: Tensor) -> Tensor:
                return (a @ c / math.sqrt(3)).exp()

            mass_near = torch.stack([dot(q[h, t], k[h, j]) for j in near])
            top = mass_near @ v[h, near.start : near.stop]
            bottom = mass_near.sum()
            if kept:
                mean_q = [q[h, c * b : c * b + b].mean(0) for c in kept]
                mean_k = [k[h, c * b : c * b + b].mean(0) for c in kept]
                past = range(kept[0] * b, block * b)
                to_landmarks = torch.stack([dot(q[h, t], m) for m in mean_k])
                between = torch.stack([torch.stack([dot(m, n) for n in mean_k]) for m in mean_q])
                between = between / between.sum(1, keepdim=True)
                to_tokens = torch.stack([torch.stack([dot(m, k[h, j]) for j in past]) for m in mean_q])
                read = to_tokens @ v[h, past.start : past.stop] / to_tokens.sum(1, keepdim=True)
                far = to_landmarks / to_landmarks.sum() @ solved(between, read)
                mass_far = b * to_landmarks.sum()
                top, bottom = top + mass_far * far, bottom + mass_far
            mixed = top / bottom
            if kernel is not None:
                for lag in range(min(kernel.shape[1], t + 1)):
                    mixed = mixed + kernel[h, lag] * v[h, t - lag]
            heads.append(mixed)
        rows.append(torch.cat(heads))
    return mixer.out(torch.stack(rows)), None


def newton(matrix: Tensor, iterations: int) -> Tensor:
    inverse = matrix.T / (matrix.sum(0).max() * matrix.sum(1).max())
    one = torch.eye(len(matrix), dtype=matrix.dtype)
    for _ in range(iterations):
        az = matrix @ inverse
        inverse = 0.25 * inverse @ (13 * one - az @ (15 * one - az @ (7 * one - az)))
    return inverse
