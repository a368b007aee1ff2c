"""Mixers that read blocks of earlier tokens through a few slots; values of the axis ``mixer``."""
