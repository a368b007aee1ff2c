"""Ways to compute the same attention, pure functions; ``attention.plan`` chooses, ``dense`` is the twin of all."""
