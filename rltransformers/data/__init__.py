"""Logged and fresh experience as contiguous arrays; knows nothing of networks."""

from rltransformers.data.behaviors import Behavior, load_behavior, mixture, register_behavior
from rltransformers.data.d4rl import normalized_score, reference_scores
from rltransformers.data.lerobot import write_lerobot
from rltransformers.data.load import load_trajectories
from rltransformers.data.minari import write_minari
from rltransformers.data.recorder import ObservationView, record
from rltransformers.data.sampler import ContextBatch, ContextSampler
from rltransformers.data.steps import write_csv
from rltransformers.data.trajectories import Episode, Trajectories

__all__ = [
    "Behavior",
    "ContextBatch",
    "ContextSampler",
    "Episode",
    "ObservationView",
    "Trajectories",
    "load_behavior",
    "load_trajectories",
    "mixture",
    "normalized_score",
    "record",
    "reference_scores",
    "register_behavior",
    "write_csv",
    "write_lerobot",
    "write_minari",
]
