"""Logged and fresh experience as contiguous arrays; knows nothing of networks."""

from rltransformers.data.d4rl import normalized_score, reference_scores
from rltransformers.data.load import load_trajectories
from rltransformers.data.sampler import ContextBatch, ContextSampler
from rltransformers.data.trajectories import Episode, Trajectories

__all__ = [
    "ContextBatch",
    "ContextSampler",
    "Episode",
    "Trajectories",
    "load_trajectories",
    "normalized_score",
    "reference_scores",
]
