"""Which cases tests take."""

import os

import torch

ALL_CASES = os.environ.get("RLTRANSFORMERS_ALL_CASES") == "1"
"""Whether tests that take a choice of their cases take them all."""
STRICT_TRACING = torch.__version__ >= "2.13"
"""Whether laws of strict tracing are asked of PyTorch, which before 2.13 follows no checks of shapes inside a step."""
