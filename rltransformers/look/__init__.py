"""One HTML page of episodes that an agent plays: what it saw and did, and what every head of attention looked at."""

from rltransformers.look.page import look

__all__ = ["look"]
