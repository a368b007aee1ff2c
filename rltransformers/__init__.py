"""Transformers for sequential decisions: Gated Transformer-XL policies online, Decision Transformers offline."""

__version__ = "0.1.0"
