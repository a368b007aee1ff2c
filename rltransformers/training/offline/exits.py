"""The threshold of a Decision Transformer that leaves its layers early, as low as is safe. B windows, K steps."""

import torch
from torch import Tensor

from rltransformers.algorithms.calibration import learn_then_test
from rltransformers.algorithms.decision import difference
from rltransformers.blocks.leaving import NEVER, Confident
from rltransformers.data import ContextBatch
from rltransformers.policies.decision import DecisionPolicy


@torch.no_grad()
def calibrate(
    policy: DecisionPolicy, leaving: Confident, batch: ContextBatch, bound: float, error: float, candidates: int
) -> float:
    """Set the threshold of ``leaving`` and return it; see ``DecisionTransformer.calibrate_exits``."""

    def outputs(threshold: float) -> Tensor:
        leaving.threshold.fill_(threshold)
        found: Tensor = policy(batch.observations, batch.actions, batch.return_to_go, batch.timestep, batch.valid)
        return found

    whole = outputs(2 * NEVER)

    def losses(threshold: float) -> Tensor:
        differs = difference(policy.head, outputs(threshold), whole)
        return torch.where(batch.valid, differs, 0.0).sum(1) / batch.valid.sum(1).clamp(min=1)

    tried = [1.0 - index / candidates for index in range(candidates + 1)]
    found = learn_then_test(tried, losses, bound, error)
    leaving.threshold.fill_(2 * NEVER if found is None else found)
    return float(leaving.threshold)
