"""Environments that never leave the device: their base class, and tasks in tensors."""

from rltransformers.envs.tensors.base import Outcome, TensorStep, TensorVecEnv

__all__ = ["Outcome", "TensorStep", "TensorVecEnv"]
