"""Action chunks: k actions decided from one state (ACT, Zhao et al. 2023, arXiv 2304.13705, section IV).

A policy with ``chunk`` = k predicts the action of the present step and those of the k - 1 steps after it, takes
``decide_every`` of them, and decides anew (receding horizon of Diffusion Policy, Chi et al. 2023, arXiv 2303.04137).
In between it reads every step as ever: the tokens of what was observed, earned and done enter its memory as in
training, and only what it would decide there is not read. What it decided last is part of the state of acting, as
outputs of the head and the noise to sample with: a mask is then that of the step in which an action is taken.

"..." stands for any leading axes, k actions of a chunk, A outputs and U numbers of noise of one action.
"""

from collections.abc import Mapping

import torch
from jaxtyping import Float, Int, Shaped
from torch import Tensor, nn

from rltransformers.core.spaces import Space
from rltransformers.policies.action_heads import ActionHead
from rltransformers.policies.action_leaves import Units
from rltransformers.policies.several_modes import BoxLeaf


class ChunkHead(ActionHead):
    """An action head with a row of outputs for each of k actions: [..., k, A] where a head of one action has [..., A].

    Leaves, tokens and masks are those of one action. Given the features, actions of a chunk do not depend on each
    other, but for what a leaf decides for all: which normal of a mixture they are of, and where a flow carries them.

    ``noise`` is for all k actions, one after another: [..., k U].
    """

    common_draws: Tensor

    def __init__(self, space: Space, width: int, chunk: int, box: BoxLeaf, units: Mapping[str, Units] | None) -> None:
        super().__init__(space, width, box=box, units=units)
        self.chunk = chunk
        self.sizes = [(leaf.common, chunk * (leaf.outputs - leaf.common)) for leaf in self.by_path.values()]
        self.linear = nn.Linear(width, sum(common + own for common, own in self.sizes))
        self.draws *= chunk
        common = [number < leaf.common_draws for leaf in self.by_path.values() for number in range(leaf.draws)]
        self.register_buffer("common_draws", torch.tensor(common, dtype=torch.bool), persistent=False)

    def forward(self, features: Float[Tensor, "... W"]) -> Float[Tensor, "... k A"]:
        rows, flat = [], self.linear(features).split_with_sizes([sum(sizes) for sizes in self.sizes], -1)
        for (common, own), part in zip(self.sizes, flat, strict=True):
            if common:
                rows.append(part[..., None, :common].expand(*part.shape[:-1], self.chunk, common))
            if own:
                rows.append(part[..., common:].unflatten(-1, (self.chunk, own // self.chunk)))
        return rows[0] if len(rows) == 1 else torch.cat(rows, -1)

    def masked(self, outputs: Float[Tensor, "... A"], mask: Shaped[Tensor, "... M"]) -> Float[Tensor, "... A"]:
        """As of one action; a mask without the axis k is that of every action."""
        return super().masked(outputs, mask if mask.dim() == outputs.dim() else mask.unsqueeze(-2))

    def decode(
        self, outputs: Float[Tensor, "... k A"], noise: Float[Tensor, "... U"] | None = None
    ) -> dict[str, Tensor]:
        """All actions of a chunk by path [..., k, leaf shape]: the most probable ones, or samples."""
        if noise is not None:
            noise = noise.unflatten(-1, (self.chunk, -1))
            noise = torch.where(self.common_draws, noise[..., :1, :], noise)
        return super().decode(outputs, noise)


def of_step(values: Shaped[Tensor, "B k ..."], position: Int[Tensor, " B"]) -> Shaped[Tensor, "B ..."]:
    """What a chunk holds for the step with this number in it."""
    index = position.view(-1, *[1] * (values.dim() - 1)).expand(-1, 1, *values.shape[2:])
    return values.gather(1, index).squeeze(1)


def outputs_taken(
    outputs: Float[Tensor, "B T k A"], timestep: Int[Tensor, "B T"], decide_every: int
) -> Float[Tensor, "B T A"]:
    """Outputs that acting decodes the action of every step from, in windows that begin with a decision."""
    position = timestep % decide_every
    step = torch.arange(outputs.shape[1], device=outputs.device) - position
    decided = outputs.gather(1, step[..., None, None].expand(-1, -1, *outputs.shape[2:]))
    return of_step(decided.flatten(0, 1), position.flatten()).unflatten(0, position.shape)
