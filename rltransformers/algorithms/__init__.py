"""Losses of the algorithms on batches: ``ppo``, ``vmpo``, ``dqn``, ``decision``. Loops over data are in ``agents``."""
