"""Losses of the algorithms on batches, and the targets they follow. Loops over data are in ``agents``."""
