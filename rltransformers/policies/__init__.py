"""Between observations, the backbone and actions: encoders, heads, policies of the agents."""

from rltransformers.policies.registered import register_encoder

__all__ = ["register_encoder"]
