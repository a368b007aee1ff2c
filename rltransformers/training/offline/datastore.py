"""The store of a readout, filled with features and actions of a dataset. Axes: B windows, K steps of a window."""

import torch

from rltransformers.data import ContextSampler
from rltransformers.policies.decision import DecisionPolicy

WINDOWS = 64
"""Windows that are read at once."""


@torch.no_grad()
def fill_store(policy: DecisionPolicy, sampler: ContextSampler, seed: int, device: torch.device) -> None:
    """Read episodes with today's weights and store what the head reads at every step, and the action taken there.

    Every step is read once, with K - h to K steps of context where there are as many, h half of K: as in acting. Where
    the dataset has more steps than the store, windows are taken in an order that follows from ``seed``.
    """
    readout = policy.head.readout
    assert readout is not None
    returns = torch.from_numpy(sampler.trajectories.returns)
    episodes = torch.arange(len(returns))
    if readout.options.better:
        episodes = episodes[returns >= returns.mean()]
    windows, wanted = sampler.covering(episodes.to(sampler.device))
    order = torch.randperm(len(windows), generator=torch.Generator("cpu").manual_seed(seed), device="cpu").to(
        sampler.device
    )
    store, stored, trains = readout.store, 0, policy.training
    store.clear()
    policy.eval()
    for part in order.split(WINDOWS):
        batch, rows = sampler.window(windows[part]).to(device), wanted[part].to(device)
        features, _ = policy.read(batch.observations, batch.actions, batch.return_to_go, batch.timestep, batch.valid)
        actions = policy.head.as_numbers(batch.actions)
        store.add(features[rows], actions[rows], batch.episode[:, None].expand(rows.shape)[rows])
        stored += int(rows.sum())
        if stored >= store.size:
            break
    policy.train(trains)
